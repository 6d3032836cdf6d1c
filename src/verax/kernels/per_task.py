"""What a mean over peers needs instead of pairs: how many agents said what, task by task.

Every agent answered every task here. Each function has a plain NumPy form; where numba is asked for,
its form gives the same integers, and the same sums of squares to rounding.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.kernels import Engine, Floats, Ints, Labels

_MOST_CELLS = 2**32  # of a table that the compiled form can point into
_WORTH_COMPILING = 1.0  # seconds
_BLOCK = 255  # agents whose hits a byte can count


def _fast(engine: Engine | None, labels: Labels, classes: int, seconds: float) -> bool:
    """Whether to use the compiled form: if asked for, or if NumPy would take long at so many seconds a label."""
    if labels.shape[1] * classes >= _MOST_CELLS or (engine is not None and engine.backend not in ("auto", "numba")):
        return False
    if engine is not None and engine.backend == "numba":
        return True
    return labels.size * seconds > _WORTH_COMPILING and importlib.util.find_spec("numba") is not None


def tallies(labels: Labels, classes: int, engine: Engine | None = None) -> tuple[Ints, Ints]:
    """How often each label was said on each task (N, L), and by each agent (K, L).

    >>> said, held = tallies(np.array([[0, 1, 1], [0, 0, 1]]), 2)
    >>> said.tolist(), held.tolist()
    ([[2, 0], [1, 1], [0, 2]], [[1, 2], [2, 1]])
    """
    if _fast(engine, labels, classes, 2e-9):
        from verax.kernels import _per_task_numba as fast

        return fast.tallies(labels, classes)
    agents, tasks = labels.shape
    said = np.zeros((tasks, classes), dtype=np.int64)
    held = np.empty((agents, classes), dtype=np.int64)
    for i in range(0, agents, _BLOCK):
        block = labels[i : i + _BLOCK]
        for k in range(classes):
            hit = block == k
            said[:, k] += np.add.reduce(hit.view(np.uint8), axis=0, dtype=np.uint8)
            held[i : i + _BLOCK, k] = np.count_nonzero(hit, axis=1)
    return said, held


def weighed(labels: Labels, table: Ints, engine: Engine | None = None) -> Ints:
    """Sum over tasks n of table[n, label], for every agent: (K,).

    >>> weighed(np.array([[0, 1], [1, 1]]), np.array([[1, 10], [100, 1000]])).tolist()
    [1001, 1010]
    """
    if _fast(engine, labels, table.shape[1], 3e-9):
        from verax.kernels import _per_task_numba as fast

        return fast.weighed(labels, table)
    tasks, classes = table.shape
    flat, first = np.ascontiguousarray(table).ravel(), np.arange(tasks) * classes
    found = np.empty(len(labels), dtype=np.int64)
    for i in range(0, len(labels), step := max(1, 2**21 // max(tasks, 1))):
        found[i : i + step] = flat[first + labels[i : i + step]].sum(1)
    return found


def centre(n: int, held: Ints, rest: Ints, matrix: npt.NDArray[Any], same: bool) -> tuple[Floats, Floats]:
    """What `spread` takes out of each agent's psi: share (K, L) of what was said, shift (K, L) by label.

    `held` and `rest` (K, L) are how often an agent and its peers said each label on n tasks; `same` where what was said
    counts the agent among its own peers.

    >>> centre(4, np.array([[2, 2]]), np.array([[1, 3]]), np.eye(2), False)
    (array([[0.5, 0.5]]), array([[ 0.25, -0.25]]))
    """
    s, own, theirs = matrix.astype(np.float64), held / n, rest / n
    share, rows = times(own, s), times(theirs, s.T)
    shift = np.einsum("kl,kl->k", own, rows)[:, None] - rows
    if same:
        shift += share - np.diagonal(s)
    return share, shift


def times(held: Any, matrix: npt.NDArray[Any]) -> Any:
    """held @ S, which the usual S leaves as it is.

    >>> times(np.array([[1, 2]]), np.array([[0, 1], [1, 0]])).tolist()
    [[2, 1]]
    """
    return held if np.array_equal(matrix, np.eye(len(matrix))) else held @ matrix


def influence(labels: Labels, weight: Floats, said: Floats, share: Floats, shift: Floats) -> Floats:
    """psi of every agent and task: weight[n, label] + shift[label] - share . said[n]: (K, N).

    >>> influence(np.array([[0, 1]]), np.eye(2), np.ones((2, 2)), np.array([[0.5, 0.5]]), np.zeros((1, 2))).tolist()
    [[0.0, 0.0]]
    """
    first = np.arange(len(weight)) * weight.shape[1]
    psi = np.ascontiguousarray(weight).ravel()[first + labels]
    psi -= share @ said.T
    psi += np.take_along_axis(shift, labels.astype(np.int64), 1)
    return np.asarray(psi)


def spread(
    labels: Labels, weight: Floats, said: Floats, share: Floats, shift: Floats, engine: Engine | None = None
) -> tuple[Floats, Floats]:
    """The sum of each agent's psi over tasks, and of its squared distance from its mean: (K,) each.

    >>> spread(np.array([[0, 1]]), np.eye(2), np.ones((2, 2)), np.zeros((1, 2)), np.array([[0.0, 2.0]]))
    (array([4.]), array([2.]))
    """
    if _fast(engine, labels, weight.shape[1], 12e-9):
        from verax.kernels import _per_task_numba as fast

        return fast.spread(labels, weight, said, share, shift)
    total, square = np.empty(len(labels)), np.empty(len(labels))
    for i in range(0, len(labels), step := max(1, 2**20 // max(len(weight), 1))):
        psi = influence(labels[i : i + step], weight, said, share[i : i + step], shift[i : i + step])
        first = psi[:, :1].copy()
        psi -= first  # a psi that never changes has no spread, whatever its size
        moved = psi.mean(1)
        total[i : i + step] = (first[:, 0] + moved) * psi.shape[1]
        psi -= moved[:, None]
        square[i : i + step] = np.einsum("in,in->i", psi, psi)
    return total, square
