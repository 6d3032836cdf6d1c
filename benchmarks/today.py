"""What people use today to score pairs of agents, written as they write it.

Every way is a function (labels (K, N), classes) -> work, and work(units) does that many units and says how many it
did. A unit is a pair of agents; in the literal loop it is one task of one pair. What a way can prepare once for all
pairs (one-hot matrices) is prepared before the clock starts.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from itertools import combinations, islice
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Work = Callable[[int], int]


def excess(table: Array) -> int:
    """The learned-sign total of one pair: the sum of n C - a b^T where it is above 0."""
    excess = table.sum() * table - np.outer(table.sum(1), table.sum(0))
    return int(excess[excess > 0].sum())


def excesses(tables: Array) -> Array:
    """The same for many pairs (..., L, L) at once."""
    n = tables.sum((-2, -1), keepdims=True)
    cells = n * tables - tables.sum(-1, keepdims=True) * tables.sum(-2, keepdims=True)
    return np.where(cells > 0, cells, 0).sum((-2, -1))


def counted(own: Array, other: Array, classes: int) -> Array:
    """The joint counts of one pair, as everybody writes it."""
    codes = own.astype(np.int64) * classes + other
    return np.bincount(codes, minlength=classes**2).reshape(classes, classes)


def _each_pair(agents: int, task: Callable[[int, int], Any]) -> Work:
    def work(units: int) -> int:
        done = 0
        for i, j in islice(combinations(range(agents), 2), units):
            task(i, j)
            done += 1
        return done

    return work


def bincount(labels: Array, classes: int) -> Work:
    """np.bincount for one pair after another, and the score of each."""
    return _each_pair(len(labels), lambda i, j: excess(counted(labels[i], labels[j], classes)))


def bincount_counts(labels: Array, classes: int) -> Work:
    """np.bincount for one pair after another, the tables only: those of one agent beside all later ones are kept."""
    kept: list[Array] = []

    def pair(i: int, j: int) -> None:
        if j == i + 1 or not kept:
            kept[:] = [np.empty((len(labels) - i - 1, classes, classes), dtype=np.int64)]
        kept[0][j - i - 1] = counted(labels[i], labels[j], classes)

    return _each_pair(len(labels), pair)


def bincount_dropped(labels: Array, classes: int) -> Work:
    """The same where every table is dropped as soon as it is made: less than was asked for."""
    return _each_pair(len(labels), lambda i, j: counted(labels[i], labels[j], classes))


def sklearn(labels: Array, classes: int) -> Work:
    """sklearn.metrics.confusion_matrix for one pair after another, and the score of each."""
    from sklearn.metrics import confusion_matrix

    names = np.arange(classes)
    return _each_pair(len(labels), lambda i, j: excess(confusion_matrix(labels[i], labels[j], labels=names)))


def blocks(agents: int, pairs: int, height: int) -> Iterator[tuple[slice, slice, int]]:
    """Rows beside columns until so many pairs i < j are done, and how many of them each block holds."""
    for i in range(0, agents, height):
        if pairs <= 0:
            return
        tall = min(height, agents - i)
        wide = min(agents - i, tall - (-pairs // tall))
        here = tall * wide - tall * (tall + 1) // 2
        yield slice(i, i + tall), slice(i, i + wide), here
        pairs -= here


def sparse(labels: Array, classes: int) -> Work:
    """scipy.sparse: one-hot matrices, their product for one agent beside all later ones, and the scores."""
    from scipy.sparse import csr_array

    agents, tasks = labels.shape
    columns = (np.arange(agents)[:, None] * classes + labels).T.reshape(-1)
    shape = (tasks, agents * classes)
    all_hot = csr_array((np.ones(labels.size), columns, np.arange(tasks + 1) * agents), shape=shape).tocsc()

    def work(units: int) -> int:
        done = 0
        for i, j, here in blocks(agents, units, 1):
            own = all_hot[:, i.start * classes : i.stop * classes].T
            table = (own @ all_hot[:, j.start * classes : j.stop * classes]).toarray().astype(np.int64)
            excesses(table.reshape(classes, -1, classes).transpose(1, 0, 2))
            done += here
        return done

    return work


def torch_one_hot(labels: Array, classes: int) -> Work:
    """torch: one-hot float32 matrices, one product for 32 agents beside all later ones, and the scores."""
    import torch

    agents, tasks = labels.shape
    hot = torch.zeros((agents, classes, tasks), dtype=torch.float32)
    for i, row in enumerate(labels):
        hot[i].scatter_(0, torch.from_numpy(row.astype(np.int64))[None], 1.0)

    def work(units: int) -> int:
        done = 0
        for i, j, here in blocks(agents, units, 32):
            table = (hot[i].flatten(0, 1) @ hot[j].flatten(0, 1).T).reshape(-1, classes, j.stop - j.start, classes)
            cells = table.permute(0, 2, 1, 3).long()
            part = tasks * cells - cells.sum(-1, keepdim=True) * cells.sum(-2, keepdim=True)
            torch.where(part > 0, part, 0).sum((-2, -1))
            done += here
        return done

    return work


def monte_carlo(labels: Array, classes: int) -> Work:
    """Algorithm 1 in NumPy with one random pairing a task and the identity sign: scores with sampling noise."""
    rng = np.random.default_rng(0)

    def pair(i: int, j: int) -> float:
        own, other = labels[i], labels[j]
        p, q = _distinct(rng, len(own))
        return float((own == other).mean() - (own[p] == other[q]).mean())

    return _each_pair(len(labels), pair)


def _distinct(rng: np.random.Generator, tasks: int) -> tuple[Array, Array]:
    """For every task n two other tasks, all three different."""
    here = np.arange(tasks)
    first = rng.integers(0, tasks - 1, tasks)
    second = rng.integers(0, tasks - 2, tasks)
    second += second >= first
    return (here + 1 + first) % tasks, (here + 1 + second) % tasks


def literal(labels: Array, classes: int) -> Work:
    """Algorithm 1 as printed, task by task in Python, the identity sign, one draw a task; 20,000 tasks at most."""
    own, other = labels[0].tolist(), labels[1].tolist()
    sign = np.eye(classes, dtype=int).tolist()
    draw = random.Random(0).randrange

    def work(units: int) -> int:
        total, units = 0, min(units, 20_000)
        for n in range(units):
            n %= len(own)
            while (p := draw(len(own))) == n:
                pass
            while (q := draw(len(own))) in (n, p):
                pass
            total += sign[own[n]][other[n]] - sign[own[p]][other[q]]
        return units

    return work


def rows_closed(rows: Array, labels: Array) -> Work:
    """The `ce` score of one pair after another in NumPy, the exact form, logarithms taken once."""
    logs, here = np.log(rows), np.arange(labels.shape[1])
    columns, classes, tasks = logs.sum(1), rows.shape[2], labels.shape[1]

    def pair(i: int, j: int) -> float:
        own = logs[i][here, labels[j]].sum()
        held = columns[i] @ np.bincount(labels[j], minlength=classes)
        return float(own / tasks - (held - own) / (tasks * (tasks - 1)))

    return _both_ways(len(labels), pair)


def rows_monte_carlo(rows: Array, labels: Array) -> Work:
    """Algorithm 1 in NumPy for `ce`, one random pairing a task."""
    rng, logs, here = np.random.default_rng(0), np.log(rows), np.arange(labels.shape[1])

    def pair(i: int, j: int) -> float:
        p, q = _distinct(rng, len(here))
        return float((logs[i][here, labels[j]] - logs[i][p, labels[j][q]]).mean())

    return _both_ways(len(labels), pair)


def rows_sklearn(rows: Array, labels: Array) -> Work:
    """sklearn.metrics.log_loss for one pair after another: the bonus alone, without the penalty."""
    from sklearn.metrics import log_loss

    names = np.arange(rows.shape[2])

    def pair(i: int, j: int) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(log_loss(labels[j], rows[i], labels=names))

    return _both_ways(len(labels), pair)


def _both_ways(agents: int, task: Callable[[int, int], Any]) -> Work:
    """Each ordered pair: a row beside a label is not the label beside the row."""

    def work(units: int) -> int:
        for n in range(units):
            i, j = divmod(n % (agents * (agents - 1)), agents - 1)
            task(i, j + (j >= i))
        return units

    return work


PAIRS = {
    "np.bincount a pair": bincount,
    "sklearn confusion_matrix a pair": sklearn,
    "scipy.sparse one-hot product": sparse,
    "torch one-hot product": torch_one_hot,
    "NumPy Monte Carlo a pair": monte_carlo,
}
ROWS = {
    "NumPy exact form a pair": rows_closed,
    "NumPy Monte Carlo a pair": rows_monte_carlo,
    "sklearn log_loss a pair": rows_sklearn,
}
