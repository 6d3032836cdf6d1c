"""A PyTorch app of Flower: a small network with BatchNorm learns to read digits."""
