"""How pairs are counted. A kernel counts; what the counts mean is decided in `joint`.

A task carries an optional *part*: the half it falls in when a sign is learned, times its stratum.
All kernels give bit-equal int64 counts.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verax.errors import ExtraMissing, OptionError

Labels = npt.NDArray[np.signedinteger]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
BACKENDS = ("auto", "numpy", "numba", "torch")


@dataclass(frozen=True)
class Engine:
    """How the counting is done, never what it gives.

    >>> Engine(backend="numpy").threads is None  # every core this process may use
    True
    """

    backend: str = "auto"
    threads: int | None = None
    max_bytes: int = 64 * 2**20


def engine(backend: str = "auto", threads: int | None = None, max_bytes: int | None = None) -> Engine:
    """A checked choice of how to count.

    >>> engine("numpy", threads=1)
    Engine(backend='numpy', threads=1, max_bytes=67108864)
    """
    if backend not in BACKENDS:
        raise OptionError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend in ("numba", "torch") and importlib.util.find_spec(backend) is None:
        raise ExtraMissing(f"backend {backend}", {"numba": "fast", "torch": "torch"}[backend])
    if threads is not None and threads < 1:
        raise OptionError(f"threads is {threads}; give 1 or more, or leave it out for every core")
    if max_bytes is not None and max_bytes < 2**20:
        raise OptionError(f"max_bytes is {max_bytes}; give at least {2**20}, a mebibyte")
    return Engine(backend, threads, Engine.max_bytes if max_bytes is None else max_bytes)


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
