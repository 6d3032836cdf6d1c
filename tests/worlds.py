"""Worlds: small populations whose every probability is known. They say what is true, not what verax makes of it.

A world is a table of probabilities with one axis for each agent (its label, or the signal it sees) and the truth
on the last axis. Entries are fractions, so a world can be turned into counts, or into a list of tasks, that have
exactly its probabilities: what is measured there is an expectation, without sampling error. Label 0 is the
paper's label 1, label 1 its label 2.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import numpy.typing as npt

Exact = npt.NDArray[np.object_]
Ints = npt.NDArray[np.int64]


def exact(values: npt.ArrayLike) -> Exact:
    """The numbers as they are written, as fractions: 0.1 is one tenth, not the double nearest to it.

    >>> exact([0.1, "1/3"]).tolist()
    [Fraction(1, 10), Fraction(1, 3)]
    """
    written = np.asarray(values, dtype=object)
    return np.vectorize(lambda v: v if isinstance(v, Fraction) else Fraction(str(v)), otypes=[object])(written)


def even_prior(classes: int) -> Exact:
    """Every label equally likely."""
    return exact([Fraction(1, classes)] * classes)


def binary(alpha: Fraction | float | str, beta: Fraction | float | str) -> Exact:
    """P(label | truth) of an agent with false negative rate alpha = P(1 | 0), false positive rate beta = P(0 | 1).

    >>> binary(0.25, 0.5).astype(float).tolist()
    [[0.75, 0.25], [0.5, 0.5]]
    """
    a, b = exact([alpha, beta])
    return exact([[1 - a, a], [b, 1 - b]])


def even_errors(classes: int, accuracy: Fraction | float | str) -> Exact:
    """P(label | truth) of an agent whose errors fall on all wrong labels alike: categorical at any prior.

    >>> even_errors(3, 0.5).astype(float).tolist()
    [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]
    """
    right = exact(accuracy).item()
    wrong = (1 - right) / (classes - 1)
    return exact([[right if k == truth else wrong for k in range(classes)] for truth in range(classes)])


def youden(confusion: Exact) -> Fraction:
    """J = 1 - alpha - beta of a binary agent: positive if it is informative, negative if it is reversed.

    >>> youden(binary(0.25, 0.5))
    Fraction(1, 4)
    """
    return 1 - confusion[0, 1] - confusion[1, 0]


def random_rows(rows: int, columns: int, rng: np.random.Generator, parts: int = 20) -> Exact:
    """Rows of positive multiples of 1 / parts that sum to 1: random confusions, likelihoods, priors.

    No entry is 0, so every label is held sometimes; several rows are not all alike, so it says something.

    >>> random_rows(2, 3, np.random.default_rng(0), parts=4).sum(1).tolist()
    [Fraction(1, 1), Fraction(1, 1)]
    """
    while True:
        chances = rng.dirichlet(np.ones(columns), rows)
        drawn = rng.multinomial(parts - columns, chances) + 1
        if rows == 1 or (drawn != drawn[0]).any():
            return exact(drawn.astype(object)) / parts


def every_map(domain: int, codomain: int) -> Ints:
    """All functions from 0..domain-1 to 0..codomain-1, a row each: relabellings, or classifiers of signals.

    >>> every_map(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    return np.array(list(product(range(codomain), repeat=domain)))


def classified(likelihood: Exact, classifier: npt.ArrayLike, classes: int) -> Exact:
    """P(label | truth) of an agent that sees a signal of P(signal | truth) and says classifier[signal].

    >>> classified(exact([[0.5, 0.25, 0.25], [0, 0.5, 0.5]]), [0, 1, 1], classes=2).astype(float).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """
    return likelihood @ np.eye(classes, dtype=int)[np.asarray(classifier)].astype(object)


def conditionally_independent(prior: Exact, *confusions: Exact) -> Exact:
    """P(label of each agent, truth) when the truth is all that the agents' labels have in common.

    >>> conditionally_independent(even_prior(2), binary(0, 0.5), binary(0.5, 0)).astype(float)[0, 0].tolist()
    [0.25, 0.0]
    """
    world = prior
    for confusion in reversed(confusions):
        world = confusion.T.reshape(confusion.shape[1], *[1] * (world.ndim - 1), len(prior)) * world[None]
    return world


def copying(prior: Exact, confusion: Exact, peer: Exact, share: Fraction | float | str) -> Exact:
    """P(label, peer's label, truth) when the peer copies the agent on a share of tasks and answers alone on the others.

    >>> between(copying(even_prior(2), binary(0.5, 0.5), binary(0, 0), share=1), 0, 1).astype(float).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    copied = exact(share).item()
    copies = np.eye(len(prior), dtype=int)[:, :, None] * conditionally_independent(prior, confusion)[:, None]
    return copied * copies + (1 - copied) * conditionally_independent(prior, confusion, peer)


def never_wrong_together(prior: Exact, error: Fraction | float | str) -> Exact:
    """P(label, peer's label, truth), two labels, when each of the two errs at this rate but never on the same task.

    >>> never_wrong_together(even_prior(2), 0.25)[..., 0].astype(float).tolist()
    [[0.25, 0.125], [0.125, 0.0]]
    """
    rate = exact(error).item()
    given_0 = exact([[1 - 2 * rate, rate], [rate, 0]])
    return np.stack([given_0, given_0[::-1, ::-1]], axis=-1) * prior


def between(world: Exact, report: int, reference: int) -> Exact:
    """P(k, l) of two axes of a world, rows the report's; axis -1 is the truth.

    >>> between(conditionally_independent(even_prior(2), binary(0, 0.5)), 0, -1).astype(float).tolist()
    [[0.5, 0.25], [0.0, 0.25]]
    """
    i, j = report % world.ndim, reference % world.ndim
    table = world.sum(tuple(axis for axis in range(world.ndim) if axis not in (i, j)))
    return table if i < j else table.T


def counts(world: Exact) -> Ints:
    """The smallest table of whole numbers with exactly the world's probabilities.

    >>> counts(exact([[0.4, 0.1], [0.2, 0.3]])).tolist()
    [[4, 1], [2, 3]]
    """
    return (world * math.lcm(*(p.denominator for p in world.flat))).astype(np.int64)


def listed(table: Ints) -> Ints:
    """One column for each task a table counts, one row for each of its axes: (axes, N).

    >>> listed(np.array([[2, 0], [1, 1]])).tolist()
    [[0, 0, 1, 1], [0, 0, 0, 1]]
    """
    return np.repeat(np.indices(table.shape).reshape(table.ndim, -1), table.ravel(), axis=1)


def draw(world: npt.ArrayLike, tasks: int, rng: np.random.Generator) -> Ints:
    """Tasks drawn at random from a world, one row for each of its axes: (axes, tasks).

    >>> draw([[0, 0], [1, 0]], tasks=3, rng=np.random.default_rng(0)).tolist()
    [[1, 1, 1], [0, 0, 0]]
    """
    chances = np.asarray(world, dtype=float)
    return np.stack(np.unravel_index(rng.choice(chances.size, size=tasks, p=chances.ravel()), chances.shape))


def agents_given_truth(
    prior: npt.ArrayLike, confusions: Sequence[npt.ArrayLike], tasks: int, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Labels (agents, tasks) and truth (tasks,) drawn at random, agents conditionally independent given the truth.

    The same distribution as `draw(conditionally_independent(prior, *confusions), ...)`, for any number of agents.

    >>> labels, truth = agents_given_truth([0.5, 0.5], [np.eye(2), [[0, 1], [1, 0]]], 4, np.random.default_rng(0))
    >>> np.array_equal(labels[0], truth), np.array_equal(labels[1], 1 - truth)
    (True, True)
    """
    truth = rng.choice(len(np.asarray(prior)), size=tasks, p=np.asarray(prior, dtype=float))
    edges = np.asarray(confusions, dtype=float).cumsum(-1)[..., :-1]
    return np.stack([(rng.random(tasks)[:, None] >= edge[truth]).sum(1) for edge in edges]), truth
