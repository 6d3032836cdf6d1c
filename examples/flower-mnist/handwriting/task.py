"""The model and the data: a network with one hidden layer on MNIST, dealt out unevenly."""

from functools import cache

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from verax.reproduce.datasets import load

CLASSES = tuple(map(str, range(10)))
HELD, SKEW = 5000, 0.3  # images a client, and how uneven their labels are: the Dirichlet distribution's parameter
WRONG = 0.0  # the share of its labels that a client has wrong

torch.set_num_threads(1)


@cache
def mnist(folder, fetch):
    """The data set as it is published, read once a process."""
    return load("mnist", folder, fetch=fetch)


def scaled(images):
    """Bytes as numbers in 0..1, a row an image."""
    return torch.from_numpy(images.reshape(len(images), -1) / np.float32(255))


@cache
def partition(number, of, folder, fetch):
    """One client's images and labels: a few digits often, the others rarely or never."""
    data = mnist(folder, fetch)
    mine, labels = dealt(data.train_labels, of)[number]
    return scaled(data.train_images[mine]), torch.from_numpy(labels)


def dealt(labels, of):
    """The places of each client's images and what it takes them for: digits as it has them, while some are left."""
    rng = np.random.default_rng(0)
    piles = [rng.permutation(np.flatnonzero(labels == digit)).tolist() for digit in range(10)]
    held = []
    for _ in range(of):
        counts = rng.multinomial(HELD, rng.dirichlet(np.full(10, SKEW)))
        mine = [pile.pop() for pile, count in zip(piles, counts, strict=True) for _ in range(min(count, len(pile)))]
        wrong = rng.random(len(mine)) < WRONG
        own = labels[mine]
        own[wrong] = rng.integers(0, 10, int(wrong.sum()))
        held.append((mine, own))
    return held


def network(model=None):
    """The network, with the weights of a model or with fixed random ones."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    if model is not None:
        net.load_state_dict({name: torch.from_numpy(np.array(values)) for name, values in model.items()})
    return net


def arrays(net):
    """The network's weights by name."""
    return {name: values.numpy() for name, values in net.state_dict().items()}


def probabilities(model, images):
    """What a model says of every image."""
    with torch.no_grad():
        return network(model)(images).softmax(1).numpy()


def trained(model, images, labels, seed, epochs=1, rate=0.1, batch=32):
    """The model after stochastic gradient descent, an epoch unless told otherwise."""
    net = network(model)
    descent = torch.optim.SGD(net.parameters(), lr=rate)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for chosen in torch.randperm(len(labels), generator=order).split(batch):
            descent.zero_grad()
            cross_entropy(net(images[chosen]), labels[chosen]).backward()
            descent.step()
    return arrays(net)
