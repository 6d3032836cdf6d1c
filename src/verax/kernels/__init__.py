"""How pairs are counted. A kernel counts; what the counts mean is decided in `joint`.

A task carries an optional *part*: the half it falls in when a sign is learned, times its stratum.
Each function takes many rows beside many columns and gives it to `_numpy`, `_numba` or `_torch`, by the engine's
backend or, for "auto", by what the work would take. All give bit-equal int64 counts and totals; sums of floats agree
to rounding. Passing the same array as rows and columns halves the work.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.errors import ExtraMissing, InputError, OptionError

Labels = npt.NDArray[np.signedinteger]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Sign = npt.NDArray[np.generic] | str
BACKENDS = ("auto", "numpy", "numba", "torch")
_MOST_TASKS = 1_500_000_000  # n C - a b^T and three times n^2 fit 64 bits


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
        raise ExtraMissing(f"Counts by {backend}", {"numba": "fast", "torch": "torch"}[backend])
    if threads is not None and threads < 1:
        raise OptionError(f"threads is {threads}; give 1 or more, or leave it out for every core")
    if max_bytes is not None and max_bytes < 2**20:
        raise OptionError(f"max_bytes is {max_bytes}; give at least {2**20}, a mebibyte")
    return Engine(backend, threads, Engine.max_bytes if max_bytes is None else max_bytes)


_DEFAULT = Engine()


def counts(
    rows: Labels, columns: Labels, classes: int, part: Ints | None = None, parts: int = 1, engine: Engine = _DEFAULT
) -> Ints:
    """Count how often row i says k while column j says l, on each part's tasks: (I, J, parts, L, L).

    Labels (I, N) and (J, N) are integers, -1 where a task was left out; such a task is not counted. `part` (N,)
    says which of the `parts` each task belongs to.

    >>> counts(np.array([[0, 1, 1, -1]]), np.array([[0, 1, 0, 1]]), 2)[0, 0, 0].tolist()
    [[1, 0], [1, 1]]
    """
    classes, parts = int(classes), int(parts)
    _check(rows, columns, classes, part, parts)
    kernel = _kernel(engine, "counts", rows, columns, classes)
    found: Ints = kernel.counts(rows, columns, classes, part, parts, engine)
    return found


def totals(
    rows: Labels, columns: Labels, classes: int, sign: Sign, half: Ints | None = None, engine: Engine = _DEFAULT
) -> tuple[Ints, Ints]:
    """sum_kl S(k, l) (n C(k, l) - a(k) b(l)), and n, for every pair and half: (I, J, H) each.

    `sign` is S itself, 0 or 1 in every cell; "plugin", S = 1 where n C > a b^T on the same tasks; or "split", learned
    on the other `half` (0 or 1 a task; H = 2). Counts are reduced as they are made and never stored for all pairs.

    >>> labels = np.array([[0, 1, 1, 0], [0, 1, 1, 1]])
    >>> total, tasks = totals(labels, labels, 2, "plugin")
    >>> total[:, :, 0].tolist(), tasks[0, 1].tolist()
    ([[8, 4], [4, 6]], [4])
    """
    classes = int(classes)
    _check(rows, columns, classes, half, 1 if half is None else 2)
    sign = _check_sign(sign, half, classes)
    kernel = _kernel(engine, "totals" if isinstance(sign, str) else "given", rows, columns, classes)
    found: tuple[Ints, Ints] = kernel.totals(rows, columns, classes, sign, half, engine)
    return found


def phi(
    rows: Labels,
    columns: Labels,
    classes: int,
    sign: Sign,
    half: Ints | None = None,
    skip: Ints | None = None,
    engine: Engine = _DEFAULT,
) -> tuple[Ints, Ints, Floats]:
    """`totals`, and for each row i and task n the sum over columns j of (psi_ij(n) - mean psi_ij) / N_ij: (I, N).

    psi is what a task contributes to <S, delta> of the pair, found and centred in each half apart; N_ij counts the
    common tasks of both halves. A task that the pair does not share adds 0, and so do pairs of fewer than two
    tasks and the column skip[i] of row i. Pairs are counted once for both. `sign` and `half` are those of `totals`.

    >>> labels = np.array([[0, 1, 1, 0], [0, 1, 1, 1]])
    >>> total, tasks, found = phi(labels, labels, 2, "plugin", skip=np.array([0, 1]))
    >>> found[0].tolist()
    [0.125, 0.0, 0.0, -0.125]
    """
    classes = int(classes)
    _check(rows, columns, classes, half, 1 if half is None else 2)
    sign = _check_sign(sign, half, classes)
    kernel = _kernel(engine, "phi", rows, columns, classes)
    found: tuple[Ints, Ints, Floats] = kernel.phi(rows, columns, classes, sign, half, skip, engine)
    return found


def sums(rows: Labels, columns: Labels, tables: Floats, part: Ints | None = None, engine: Engine = _DEFAULT) -> Floats:
    """Sum over the columns j of tables[i, j, part(n), row_i(n), column_j(n)], for every row and task: (I, N).

    `tables` has shape (I, J, parts, L, L); a task that either side left out adds 0.

    >>> sums(np.array([[0, 1, -1]]), np.array([[0, 0, 0]]), np.array([[[[[3., 4.], [5., 6.]]]]])).tolist()
    [[3.0, 5.0, 0.0]]
    """
    parts, classes = tables.shape[2], tables.shape[-1]
    _check(rows, columns, classes, part, parts)
    kernel = _kernel(engine, "sums", rows, columns, classes)
    found: Floats = kernel.sums(rows, columns, tables, part, engine)
    return found


def _check(rows: Labels, columns: Labels, classes: int, part: Ints | None, parts: int) -> None:
    """Refuse what a kernel would read or write outside its arrays."""
    if rows.ndim != 2 or columns.ndim != 2 or rows.shape[1] != columns.shape[1]:
        raise InputError(f"labels of shapes {rows.shape} and {columns.shape} do not meet; give (I, N) and (J, N)")
    if rows.shape[1] > _MOST_TASKS:
        raise InputError(f"more than {_MOST_TASKS:,} tasks do not fit exact 64-bit counts; score a part of them")
    for labels in (rows,) if rows is columns else (rows, columns):
        if labels.size and (labels.min() < -1 or labels.max() >= classes):
            raise InputError(f"a label is outside 0..{classes - 1}; give labels in that range, or -1 for none")
    if part is not None and (part.shape != rows.shape[1:] or (part.size and not 0 <= part.min() <= part.max() < parts)):
        raise InputError(f"a task's part is missing or outside 0..{parts - 1}; give one in that range for each task")


def _check_sign(sign: Sign, half: Ints | None, classes: int) -> Sign:
    """S as small integers, or the name of how it is learned."""
    if (half is None) == (isinstance(sign, str) and sign == "split"):
        raise OptionError("a sign learned on the other half needs halves, and no other does; give both or neither")
    if isinstance(sign, str):
        if sign not in ("plugin", "split"):
            raise OptionError(f"sign is {sign!r}; give plugin, split or a matrix")
        return sign
    matrix = np.asarray(sign)
    if matrix.shape != (classes, classes) or not np.isin(matrix, (0, 1)).all():
        raise InputError(f"a sign of shape {matrix.shape} does not fit; give 0 or 1 for each of {classes} x {classes}")
    return matrix.astype(np.int8)


# Seconds saved. Measured on one core of an AMD EPYC (Zen 4) with NumPy 2.4 and numba 0.68: importing numba and loading
# its kernels takes 0.7 s, compiling them, once a machine, 8 s more; importing torch takes 2 s.
_WORTH_CALLING, _WORTH_LOADING, _WORTH_A_DEVICE = 0.05, 1.5, 5.0


def _seconds(work: str, rows: Labels, columns: Labels, classes: int) -> tuple[float, float]:
    """About what NumPy and numba would take on that core; nanoseconds a pair and task, whatever their number."""
    planes = classes - 1
    by_numpy = min(0.013 * planes * (planes + 1), 0.5 + 0.04 * classes, 2.0)
    by_numba = min(0.001 * planes**2, 0.5)
    if work == "given":
        by_numba = min(by_numba, 0.002 * classes)
    if work == "sums":
        by_numpy = by_numba = 0.0
    if work in ("phi", "sums"):
        by_numpy, by_numba = by_numpy + 2.5, by_numba + 0.3
    pairs = len(rows) * len(columns) * rows.shape[1] * (0.5 if rows is columns and work != "phi" else 1.0)
    return pairs * by_numpy * 1e-9, pairs * by_numba * 1e-9


def _kernel(engine: Engine, work: str, rows: Labels, columns: Labels, classes: int) -> Any:
    """The module that does this work: the one asked for, or the one that will be done first."""
    if engine.backend not in BACKENDS:
        raise OptionError(f"backend is {engine.backend!r}; choose one of {', '.join(BACKENDS)}")
    name = engine.backend
    if name == "auto" or (name == "torch" and work in ("phi", "sums")):
        name = _quickest(engine, work, rows, columns, classes)
    elif name != "numpy" and importlib.util.find_spec(name) is None:
        raise ExtraMissing(f"Counts by {name}", {"numba": "fast", "torch": "torch"}[name])
    return importlib.import_module(f"verax.kernels._{name}")


def _quickest(engine: Engine, work: str, rows: Labels, columns: Labels, classes: int) -> str:
    """The backend that will be done first, counting what it takes to load."""
    by_numpy, by_numba = _seconds(work, rows, columns, classes)
    by_numba /= engine.threads or cores()
    saved = by_numpy - by_numba
    if saved < _WORTH_CALLING:
        return "numpy"
    fast = importlib.util.find_spec("numba") is not None
    if work not in ("phi", "sums") and (by_numba if fast else by_numpy) > _WORTH_A_DEVICE and _device():
        return "torch"
    loaded = "verax.kernels._numba" in sys.modules
    return "numba" if fast and (loaded or saved > _WORTH_LOADING) else "numpy"


def _device() -> bool:
    """Whether torch is here, and a GPU that it can use; importing it takes seconds."""
    return importlib.util.find_spec("torch") is not None and bool(importlib.import_module("torch").cuda.is_available())


def cores() -> int:
    """How many cores this process may use.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
