"""Riders: what somebody replies in a federation who did not do the work; what it earns is scored elsewhere.

A rider knows the broadcasts so far (`history`, the last one just sent out) and has a generator of its own. Those that
know the test of `echo.echo_test` follow the plain ones; last come lies of a client that did train.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from simulated import Ints, Rider, initial, predict, train

from verax.echo import Floats, Weights, perturbed, stepped

History = Sequence[Weights]


def echo(history: History, rng: np.random.Generator) -> Weights:
    """The broadcast, sent back.

    >>> echo([[np.zeros(1)], [np.ones(1)]], np.random.default_rng(0))
    [array([1.])]
    """
    return history[-1]


def stale(history: History, rng: np.random.Generator) -> Weights:
    """The broadcast before, if there was one.

    >>> stale([[np.zeros(1)], [np.ones(1)]], np.random.default_rng(0))
    [array([0.])]
    """
    return history[-2] if len(history) > 1 else history[-1]


def noised(share: float, ride: Rider = echo) -> Rider:
    """Another rider's reply with Gaussian noise of `share` times each array's standard deviation.

    >>> noised(0.3)([[np.ones(2)]], np.random.default_rng(0))
    [array([1., 1.])]
    """
    return lambda history, rng: perturbed(ride(history, rng), share, rng)


def extrapolated(step: float) -> Rider:
    """The broadcast moved on by `step` times its last change.

    >>> extrapolated(2.0)([[np.zeros(1)], [np.ones(1)]], np.random.default_rng(0))
    [array([3.])]
    """
    return lambda history, rng: stepped(history[-1], stale(history, rng), step)


def random_model(history: History, rng: np.random.Generator) -> Weights:
    """A new random network of the same shape.

    >>> [a.shape for a in random_model([initial((4, 3, 2), np.random.default_rng(0))], np.random.default_rng(1))]
    [(4, 3), (3,), (3, 2), (2,)]
    """
    matrices = history[-1][::2]
    return initial([matrices[0].shape[0], *(m.shape[1] for m in matrices)], rng)


def constant(label: int) -> Rider:
    """A network that says one label whatever it sees.

    >>> constant(1)([[np.ones((2, 2)), np.zeros(2)]], np.random.default_rng(0))[1]
    array([0., 1.])
    """

    def ride(history: History, rng: np.random.Generator) -> Weights:
        weights = [np.zeros_like(array) for array in history[-1]]
        weights[-1][label] = 1
        return weights

    return ride


def shaped(size: float) -> Rider:
    """The broadcast with noise where, and as large as, its last change was: it looks like an update.

    >>> shaped(1.0)([[np.zeros(2)], [np.array([0.0, 1.0])]], np.random.default_rng(0))[0].tolist()[0]
    0.0
    """

    def ride(history: History, rng: np.random.Generator) -> Weights:
        return [a + a.dtype.type(size) * (a - b) * rng.standard_normal(a.shape).astype(a.dtype)
                for a, b in zip(history[-1], stale(history, rng), strict=True)]  # fmt: skip

    return ride


def unitwise(size: float) -> Rider:
    """The last change of every unit of the network, each times a number of its own.

    >>> unitwise(1.0)([[np.zeros((2, 2))], [np.eye(2)]], np.random.default_rng(0))[0].tolist()[0][1]
    0.0
    """

    def ride(history: History, rng: np.random.Generator) -> Weights:
        return [a + a.dtype.type(size) * (a - b) * rng.standard_normal((a.shape[-1],)).astype(a.dtype)
                for a, b in zip(history[-1], stale(history, rng), strict=True)]  # fmt: skip

    return ride


def mixed(size: float) -> Rider:
    """The last change with its units mixed up at random: structured noise that keeps the inputs' patterns.

    >>> len(mixed(1.0)([[np.zeros((2, 2))], [np.eye(2)]], np.random.default_rng(0)))
    1
    """

    def ride(history: History, rng: np.random.Generator) -> Weights:
        moved = []
        for a, b in zip(history[-1], stale(history, rng), strict=True):
            mix = rng.standard_normal((a.shape[-1],) * 2) / np.sqrt(a.shape[-1])
            moved.append(a + a.dtype.type(size) * ((a - b) @ mix.astype(a.dtype)))
        return moved

    return ride


def trained(inputs: Callable[[np.random.Generator], Floats], labels: str, epochs: int = 1) -> Rider:
    """The broadcast trained on inputs without labels: with `random` ones, or with its `own` answers.

    >>> ride = trained(lambda rng: rng.random((8, 4), dtype=np.float32), "random")
    >>> len(ride([initial((4, 3, 2), np.random.default_rng(0))], np.random.default_rng(1)))
    4
    """

    def ride(history: History, rng: np.random.Generator) -> Weights:
        shown = inputs(rng)
        own = predict(history[-1], shown)
        said = own.argmax(1) if labels == "own" else rng.integers(0, own.shape[1], len(own))
        return train(history[-1], shown, said, rng, epochs=epochs)

    return ride


def replayed(update: Weights) -> Rider:
    """The broadcast plus an update that was honest work in an earlier round.

    >>> replayed([np.ones(1)])([[np.zeros(1)]], np.random.default_rng(0))
    [array([1.])]
    """
    return lambda history, rng: [a + b for a, b in zip(history[-1], update, strict=True)]


def relabelled(model: Weights, names: Sequence[int]) -> Weights:
    """A model that says names[k] where it means k.

    >>> relabelled([np.array([[1.0, 2.0, 3.0]]), np.zeros(3)], [1, 2, 0])[0].tolist()
    [[3.0, 1.0, 2.0]]
    """
    back = np.argsort(names)
    return [*model[:-2], model[-2][:, back], model[-1][back]]


def misreported(labels: Ints, share: float, classes: int, rng: np.random.Generator) -> Ints:
    """Labels of which a share is replaced, each by another one drawn at random.

    >>> misreported(np.zeros(4, int), 1.0, 2, np.random.default_rng(0)).tolist()
    [1, 1, 1, 1]
    """
    changed = rng.random(len(labels)) < share
    return np.where(changed, (labels + rng.integers(1, classes, len(labels))) % classes, labels)


def made_up(tasks: int, classes: int, rng: np.random.Generator) -> Ints:
    """A labelling with no model behind it, for a ring to agree on.

    >>> made_up(5, 3, np.random.default_rng(0)).tolist()
    [2, 1, 1, 0, 0]
    """
    return rng.integers(0, classes, tasks)
