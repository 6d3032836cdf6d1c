"""Ten clients with uneven shares of MNIST, three of them up to no good, paid in every round."""
