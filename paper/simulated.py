"""A federation in one process, for studies and benchmarks; those who do not work in it are in `riders`.

A round: the server broadcasts a model, every client trains it on its own data and replies, the server predicts
each reply on an unlabelled pool and averages. What tells free riders apart is in `verax.echo`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from verax.echo import Floats, Weights
from verax.errors import InputError
from verax.public import Public

Ints = npt.NDArray[np.integer]
Rider = Callable[[Sequence[Weights], np.random.Generator], Weights]


def initial(sizes: Sequence[int], rng: np.random.Generator) -> Weights:
    """A random network with one hidden layer or more: a matrix and a bias a layer.

    >>> [array.shape for array in initial((784, 64, 10), np.random.default_rng(0))]
    [(784, 64), (64,), (64, 10), (10,)]
    """
    weights: Weights = []
    for inputs, outputs in pairwise(sizes):
        weights.append((rng.standard_normal((inputs, outputs)) * math.sqrt(2 / inputs)).astype(np.float32))
        weights.append(np.zeros(outputs, np.float32))
    return weights


def predict(weights: Weights, inputs: Floats) -> Floats:
    """Probabilities (N, L) of a network of `initial`.

    >>> predict([np.eye(2), np.zeros(2), np.eye(2), np.zeros(2)], np.array([[0.0, np.log(3)]])).round(2).tolist()
    [[0.25, 0.75]]
    """
    return _softmax(_layers(weights, inputs)[-1])


def train(
    weights: Weights,
    inputs: Floats,
    labels: Ints,
    rng: np.random.Generator,
    *,
    epochs: int = 2,
    rate: float = 0.1,
    batch: int = 32,
) -> Weights:
    """The network after plain stochastic gradient descent on cross-entropy; the given weights stay as they are."""
    weights = [array.copy() for array in weights]
    for _ in range(epochs):
        order = rng.permutation(len(labels))
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            _descend(weights, inputs[chosen], labels[chosen], rate)
    return weights


def _layers(weights: Weights, inputs: Floats) -> list[Floats]:
    """What goes into each layer, and the last one's output."""
    values = [inputs]
    for i in range(0, len(weights), 2):
        out = values[-1] @ weights[i] + weights[i + 1]
        values.append(np.maximum(out, 0) if i + 2 < len(weights) else out)
    return values


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def _descend(weights: Weights, inputs: Floats, labels: Ints, rate: float) -> None:
    """One step down the slope of the batch, in place."""
    values = _layers(weights, inputs)
    slope = _softmax(values.pop())
    slope[np.arange(len(labels)), labels] -= 1
    slope /= len(labels)
    for i in range(len(weights) - 2, -1, -2):
        below = values.pop()
        behind = (slope @ weights[i].T) * (below > 0) if i else slope
        weights[i] -= rate * (below.T @ slope)
        weights[i + 1] -= rate * slope.sum(0)
        slope = behind


def average(models: Sequence[Weights], shares: npt.ArrayLike) -> Weights:
    """FedAvg with weights the server sets; all zero is the plain mean.

    >>> average([[np.array([0.0])], [np.array([4.0])]], [3, 1])
    [array([1.])]
    """
    given = np.asarray(shares, dtype=float)
    if given.shape != (len(models),) or not len(models) or not (given >= 0).all():
        raise InputError(
            f"{len(models)} models and shares {given.tolist()}; give one share of 0 or more for each model"
        )
    part = given / given.sum() if given.sum() > 0 else np.full(len(given), 1 / len(given))
    return [sum((p.astype(a.dtype) * a for p, a in zip(part, arrays, strict=True)), np.zeros_like(arrays[0]))
            for arrays in zip(*models, strict=True)]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Client:
    """Somebody with data: inputs (n, d) and labels (n,)."""

    inputs: Floats
    labels: Ints

    def reply(self, broadcast: Weights, rng: np.random.Generator, epochs: int = 2) -> Weights:
        """The broadcast model, trained on this client's data."""
        return train(broadcast, self.inputs, self.labels, rng, epochs=epochs)


def clients(
    inputs: Floats,
    labels: Ints,
    sizes: Sequence[int],
    rng: np.random.Generator,
    *,
    skew: float | None = None,
    noise: Sequence[float] = (),
) -> list[Client]:
    """Disjoint shares of a data set: labels in even proportion or, with `skew`, as a Dirichlet draw has them.

    `noise`: the share of each client's labels that is replaced by random ones. A class that runs out is left short.

    >>> held = clients(np.zeros((100, 2)), np.arange(100) % 10, [20, 30], np.random.default_rng(0))
    >>> sum(len(c.labels) for c in held) <= 50
    True
    """
    if sum(sizes) > len(labels):
        raise InputError(f"clients ask for {sum(sizes)} of {len(labels)} examples; give them fewer")
    classes = int(labels.max()) + 1
    free = [rng.permutation(np.nonzero(labels == c)[0]).tolist() for c in range(classes)]
    found = []
    for i, size in enumerate(sizes):
        share = np.full(classes, 1 / classes) if skew is None else rng.dirichlet(np.full(classes, skew))
        counts = rng.multinomial(size, share)
        mine = np.array([pile.pop() for pile, n in zip(free, counts, strict=True) for _ in range(min(n, len(pile)))])
        own = labels[mine].copy()
        wrong = rng.random(len(own)) < (noise[i] if len(noise) else 0.0)
        own[wrong] = rng.integers(0, classes, int(wrong.sum()))
        found.append(Client(inputs[mine], own))
    return found


@dataclass(frozen=True, eq=False)
class Round:
    """What a server sees in one round: all broadcasts so far, the last of them just sent out, and the replies."""

    history: tuple[Weights, ...]
    replies: tuple[Weights, ...]

    @property
    def broadcast(self) -> Weights:
        """The model this round began with."""
        return self.history[-1]

    @property
    def earlier(self) -> tuple[Weights, ...]:
        """The broadcasts before it, oldest first."""
        return self.history[:-1]


def federate(
    start: Weights,
    members: Sequence[Client],
    rounds: int,
    rng: np.random.Generator,
    *,
    riders: Sequence[Rider] = (),
    weigh: Callable[[Round], npt.ArrayLike] | None = None,
    epochs: int = 2,
) -> Iterator[Round]:
    """The rounds of a federation, clients first and riders after them in every round's replies.

    `weigh` says what each reply counts for in the average; left out, all count the same.
    """
    history: tuple[Weights, ...] = (start,)
    for _ in range(rounds):
        replies = [c.reply(history[-1], rng, epochs) for c in members] + [ride(history, rng) for ride in riders]
        played = Round(history, tuple(replies))
        yield played
        history += (average(replies, weigh(played) if weigh else np.ones(len(replies))),)


def pair_scores(
    labels: npt.ArrayLike, classes: int, features: npt.ArrayLike | Public | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """`zero-one` of every pair of dense reports (K, K), and each mean over peers' standard error (K,).

    The same numbers as `verax.score(..., public=features)`, with each report projected once.

    >>> pairs, stderr = pair_scores([[0, 1, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]], 2)
    >>> pairs.round(3).tolist()[0][1:]
    [0.333, 0.0]
    """
    table = np.asarray(labels)
    signal = Public.of(features, table.shape[1])
    left = np.stack([signal.residual(np.eye(classes)[row]) for row in table])
    free = max(table.shape[1] - signal.rank, 1)
    flat = left.reshape(len(table), -1)
    total = left.sum(0)
    psi = np.stack([(rows * (total - rows)).sum(1) for rows in left]) / (len(table) - 1)
    error = psi.std(1) * math.sqrt(table.shape[1]) / table.shape[1]
    return flat @ flat.T / free, error
