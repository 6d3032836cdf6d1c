"""How pairs are counted. A kernel counts; what the counts mean is decided in `joint`.

A task carries an optional *part*: the half it falls in when a sign is learned, times its stratum.
All kernels give bit-equal int64 counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.signedinteger]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def _cells(own: Labels, part: Ints | None, width: int) -> Ints:
    """The part of a cell's number that the report and the task decide; label -1 has a cell too."""
    base = (own.astype(np.int64) + 1) * width + 1
    return base if part is None else base + part * width**2


def pair_counts(own: Labels, others: Labels, classes: int, part: Ints | None = None, parts: int = 1) -> Ints:
    """Count how often `own` (N,) says k while each of `others` (J, N) says l: (J, parts, L, L).

    A task that either side left out (-1) is counted for neither.

    >>> pair_counts(np.array([0, 1, 1, -1]), np.array([[0, 1, 0, 1]]), 2)[0, 0].tolist()
    [[1, 0], [1, 1]]
    """
    width = classes + 1
    base, size = _cells(own, part, width), parts * width**2
    counts = np.empty((len(others), parts, classes, classes), dtype=np.int64)
    for j, other in enumerate(others):
        table = np.bincount(base + other, minlength=size)
        counts[j] = table.reshape(parts, width, width)[:, 1:, 1:]
    return counts


def pair_sum(own: Labels, others: Labels, tables: Floats, part: Ints | None = None) -> Floats:
    """Sum over the others j of tables[j, part(n), own(n), other_j(n)], for every task n: (N,).

    >>> pair_sum(np.array([0, 1, -1]), np.array([[0, 0, 0]]), np.array([[[[3., 4.], [5., 6.]]]])).tolist()
    [3.0, 5.0, 0.0]
    """
    width = tables.shape[-1] + 1
    base = _cells(own, part, width)
    bordered = np.pad(tables, ((0, 0), (0, 0), (1, 0), (1, 0))).reshape(len(tables), -1)
    total = np.zeros(len(own))
    for table, other in zip(bordered, others, strict=True):
        total += table[base + other]
    return total
