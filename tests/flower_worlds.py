"""Four small models on scikit-learn's digits, as federations train them: what a server and a client need of each.

A linear model, convolutions under GroupNorm and under BatchNorm (with its counter of batches), and a transformer of
which only the low-rank adapters and the head are trained and sent.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

CLASSES = tuple("0123456789")
torch.set_num_threads(1)


@cache
def digits():
    """Images (n, 1, 8, 8) and labels in a fixed random order; the last 800 are nobody's."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return torch.from_numpy((x[order] / 16).astype(np.float32)).reshape(-1, 1, 8, 8), torch.from_numpy(y[order])


def pool():
    return digits()[0][-800:-500]


class Adapted(nn.Module):
    """A frozen projection with a low-rank correction that starts at 0."""

    def __init__(self, size, rank=4):
        super().__init__()
        self.base = nn.Linear(size, size).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, size) / size**0.5)
        self.up = nn.Parameter(torch.zeros(size, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


class Transformer(nn.Module):
    """One block of attention over the rows of an image; everything but adapters and head stays as it was drawn."""

    def __init__(self, size=32):
        super().__init__()
        self.embed = nn.Linear(8, size).requires_grad_(False)
        self.place = nn.Parameter(torch.randn(8, size), requires_grad=False)
        self.query, self.key, self.value = Adapted(size), Adapted(size), Adapted(size)
        self.head = nn.Linear(8 * size, 10)

    def forward(self, x):
        rows = self.embed(x[:, 0]) + self.place
        share = (self.query(rows) @ self.key(rows).transpose(1, 2) / rows.shape[2] ** 0.5).softmax(2)
        return self.head((rows + share @ self.value(rows)).flatten(1))


def convolutions(norm):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )


NETS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
    "GroupNorm": lambda: convolutions(nn.GroupNorm(2, 8)),
    "BatchNorm": lambda: convolutions(nn.BatchNorm2d(8)),
    "LoRA": Transformer,
}


def network(kind, model=None):
    """The network as it was drawn, with a model's arrays where some are given."""
    torch.manual_seed(0)
    net = NETS[kind]()
    if model is not None:
        net.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in model.items()}, strict=False)
    return net


def arrays(net):
    """What is sent: all that is trained, and all buffers."""
    still = {name for name, p in net.named_parameters() if not p.requires_grad}
    return {name: a.numpy().copy() for name, a in net.state_dict().items() if name not in still}


def predict(kind):
    def rows(model, images):
        with torch.no_grad():
            return network(kind, model).eval()(images).softmax(1).numpy()

    return rows


def trained(kind, model, number, of, seed):
    """The model after some steps on one client's share, and the loss it began with."""
    x, y = (part[:-800][number::of][:110] for part in digits())  # as much for each
    net = network(kind, model).train()
    with torch.no_grad():
        before = float(cross_entropy(net.eval()(x), y))
    descent = torch.optim.SGD(
        [p for p in net.train().parameters() if p.requires_grad], lr=0.01 if kind == "LoRA" else 0.1, momentum=0.9
    )
    order = torch.Generator().manual_seed(seed)
    for _ in range(2):
        for chosen in torch.randperm(len(y), generator=order).split(22):
            descent.zero_grad()
            cross_entropy(net(x[chosen]), y[chosen]).backward()
            descent.step()
    return arrays(net), before


def accuracy(kind, model):
    x, y = (part[-500:] for part in digits())
    return float((predict(kind)(model, x).argmax(1) == y.numpy()).mean())
