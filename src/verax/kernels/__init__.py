"""How reports are counted: pairs of agents, or all of them task by task. What the counts mean is decided elsewhere.

A task carries an optional *part*: the half it falls in when a sign is learned, times its stratum. All backends give
bit-equal int64 counts and totals; sums of floats agree to rounding. Passing the same array as rows and columns halves
the work of pairs. `tallies`, `weighed`, `influence` and `spread` are of agents who answered every task.

Every operation is declared once: about what it takes NumPy and numba, and the family of modules that do it,
`_numpy_<family>`, `_numba_<family>` and `_torch_<family>`, each with a function of its name.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.answers import Answers
from verax.errors import ExtraMissing, InputError, OptionError
from verax.space import check_memory

Labels = npt.NDArray[np.signedinteger]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Sign = npt.NDArray[np.generic] | str
_log = logging.getLogger("verax")
BACKENDS = ("auto", "numpy", "numba", "torch")
_EXTRAS = {"numba": "fast", "torch": "torch"}
_MOST_ANSWERS = 2**31 - 1  # their places fit 32 bits
_MOST_TASKS = 1_500_000_000  # n C - a b^T and three times n^2 fit 64 bits

# Seconds. Measured on one core of an AMD EPYC (Zen 4) with NumPy 2.4 and numba 0.68: importing numba and loading
# its kernels takes 0.5 s, compiling them, once a machine, 6 s more; importing torch takes 2 s.
_WORTH_CALLING, _WORTH_LOADING, _WORTH_COMPILING, _WORTH_A_DEVICE = 0.05, 0.6, 7.0, 5.0
_KEPT = Path(__file__).parent / "__pycache__", Path.home() / ".cache" / "numba"  # where numba keeps what it compiled


@dataclass(frozen=True)
class Engine:
    """How the counting is done, never what it gives.

    >>> Engine(backend="numpy").threads is None  # every core this process may use
    True
    """

    backend: str = "auto"
    threads: int | None = None
    max_bytes: int = 64 * 2**20

    def for_few(self) -> Engine:
        """The same where a pair or two is counted at a time: nothing to load, or to spread over threads.

        >>> Engine().for_few().backend
        'numpy'
        """
        return self if self.backend == "torch" else replace(self, backend="numpy", threads=1)


def engine(backend: str = "auto", threads: int | None = None, max_bytes: int | None = None) -> Engine:
    """A checked choice of how to count.

    >>> engine("numpy", threads=1)
    Engine(backend='numpy', threads=1, max_bytes=67108864)
    """
    _check_backend(backend)
    if threads is not None and not (type(threads) is int and threads >= 1):
        raise OptionError(f"threads is {threads!r}; give 1 or more, or leave it out for every core")
    if max_bytes is not None and not (type(max_bytes) is int and max_bytes >= 2**20):
        raise OptionError(f"max_bytes is {max_bytes!r}; give at least {2**20}, a mebibyte")
    return Engine(backend, threads, Engine.max_bytes if max_bytes is None else max_bytes)


def cores() -> int:
    """How many cores this process may use.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_backend(backend: str) -> None:
    """Refuse a backend that does not exist, or is not here."""
    if backend not in BACKENDS:
        raise OptionError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend in _EXTRAS and not _is_installed(backend):
        raise ExtraMissing(f"Counts by {backend}", _EXTRAS[backend])


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@functools.cache
def _is_compiled(family: str) -> bool:
    """Whether numba has kept kernels of this family on this machine; looked up without importing it."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    kept = f"_numba_{family}.*.nbi"
    return any(any(f.glob(kept)) or any(f.glob(f"kernels_*/{kept}")) for f in ([Path(chosen)] if chosen else _KEPT))


def _has_gpu() -> bool:
    """Whether torch is here, and a GPU that it can use; importing it takes seconds."""
    return _is_installed("torch") and bool(importlib.import_module("torch").cuda.is_available())


@dataclass(frozen=True)
class _Operation:
    """What every backend does alike; costs are nanoseconds a label met, by how many labels there are."""

    name: str
    family: str
    numpy: Callable[[int], float]
    numba: Callable[[int], float]
    threaded: bool = True  # numba spreads it over the threads
    device: bool = True  # a GPU was measured to be quicker at much of it

    def run(self, engine: Engine, size: float, classes: int, *given: Any) -> Any:
        """Do it on so many labels met, by the backend that was asked for or the one that is done first."""
        backend = engine.backend
        if backend == "auto":
            backend = self.quickest(engine, size, classes)
        else:
            _check_backend(backend)
        name = f"verax.kernels._{backend}_{self.family}"
        if backend == "numba" and name not in sys.modules and not _is_compiled(self.family):
            _log.warning("fast kernels are being compiled, once on this machine: about 6 s")
        return getattr(importlib.import_module(name), self.name)(*given, engine)

    def quickest(self, engine: Engine, size: float, classes: int) -> str:
        """The backend that will be done first, counting what it takes to load."""
        by_numpy = size * self.numpy(classes) * 1e-9
        if by_numpy < _WORTH_CALLING:
            return "numpy"
        by_numba = size * self.numba(classes) * 1e-9 / ((engine.threads or cores()) if self.threaded else 1)
        saved, fast = by_numpy - by_numba, _is_installed("numba")
        if saved < _WORTH_CALLING:
            return "numpy"
        if self.device and (by_numba if fast else by_numpy) > _WORTH_A_DEVICE and _has_gpu():
            return "torch"
        if not fast or f"verax.kernels._numba_{self.family}" in sys.modules:
            return "numba" if fast else "numpy"
        loading = saved > _WORTH_COMPILING or (saved > _WORTH_LOADING and _is_compiled(self.family))
        return "numba" if loading else "numpy"


def _numpy_pair(classes: int) -> float:
    return min(0.013 * (classes - 1) * classes, 0.5 + 0.04 * classes, 2.0)


def _numba_pair(classes: int) -> float:
    return min(0.001 * (classes - 1) ** 2, 0.5)


_COUNTS = _Operation("counts", "pairs", _numpy_pair, _numba_pair)
_LEARNED = _Operation("totals", "pairs", _numpy_pair, _numba_pair)
_GIVEN = replace(_LEARNED, numba=lambda classes: min(_numba_pair(classes), 0.002 * classes))
_PHI = _Operation("phi", "phi", lambda n: _numpy_pair(n) + 2.5, lambda n: _numba_pair(n) + 0.3, device=False)
_SUMS = _Operation("sums", "phi", lambda _: 2.5, lambda _: 0.3, device=False)
_TALLIES = _Operation("tallies", "tasks", lambda n: 0.35 * n, lambda n: 0.2 + 0.04 * n, threaded=False)
_WEIGHED = _Operation("weighed", "tasks", lambda _: 3.0, lambda _: 0.4, threaded=False)
_SPREAD = _Operation("spread", "tasks", lambda n: 8.0 + 0.3 * n, lambda n: 0.2 * n, threaded=False, device=False)
_INFLUENCE = replace(_SPREAD, name="influence", numba=_SPREAD.numpy)  # numba has none of its own
_MEETINGS = _Operation("meetings", "meetings", lambda _: 180.0, lambda _: 4.0, threaded=False, device=False)
_AGREEMENT = replace(_MEETINGS, name="agreement", numpy=lambda _: 25.0, numba=lambda _: 3.0)
_AGREED = replace(_AGREEMENT, name="agreed", numpy=lambda _: 90.0, numba=lambda _: 8.0)
_EXACT_SUMS = replace(_AGREEMENT, name="exact_sums", numpy=lambda _: 35.0, numba=lambda _: 6.0)
_DEFAULT = Engine()


@dataclass(frozen=True, eq=False)
class Meetings:
    """Pairs of agents, `row` and `peer`, in the order in which each row first meets them, and where they meet.

    Pair p meets from `start[p]` to `start[p + 1]`: at which of the row's answers (`mine`), what the peer `said` there.
    """

    row: npt.NDArray[np.int32]
    peer: npt.NDArray[np.int32]
    start: Ints
    mine: npt.NDArray[np.int32]
    said: Labels

    @property
    def common(self) -> Ints:
        """How many tasks each pair has in common."""
        return np.diff(self.start)


def quicker_by_meetings(answered: int, agents: int, tasks: int, met: Callable[[], int], classes: int,
                        engine: Engine) -> bool:  # fmt: skip
    """Whether pairs are found sooner from the answers that meet than from all cells of an array; `met` counts them."""
    backend = _PHI.quickest(engine, agents * agents * tasks, classes) if engine.backend == "auto" else engine.backend
    by_cell = getattr(_PHI, backend if backend != "torch" else "numpy")(classes) * agents * agents * tasks
    each = sum(getattr(op, backend if backend == "numba" else "numpy")(classes)
               for op in (_MEETINGS, _AGREEMENT, _AGREED))  # fmt: skip
    return bool(each * answered * answered < by_cell * tasks and each * met() < by_cell)


def for_meetings(engine: Engine, met: int) -> Engine:
    """The same with a backend chosen for so many meetings in all, of which few are counted at a time.

    >>> for_meetings(Engine(), 1000).backend
    'numpy'
    """
    return engine if engine.backend != "auto" else replace(engine, backend=_MEETINGS.quickest(engine, met, 2))


def meetings(answers: Answers, first: int, last: int, least: int = 2, engine: Engine = _DEFAULT) -> Meetings:
    """Who meets agents `first` to `last` - 1 on at least so many tasks, and where.

    >>> said = Answers.of_array(np.array([[0, 1, -1], [1, 1, 0], [-1, -1, 0]]))
    >>> met = meetings(said, 0, 3)
    >>> met.row.tolist(), met.peer.tolist(), met.start.tolist(), met.mine.tolist(), met.said.tolist()
    ([0, 1], [1, 0], [0, 2, 4], [0, 1, 2, 3], [1, 1, 0, 1])
    """
    if len(answers) > _MOST_ANSWERS:
        raise InputError(f"more than {_MOST_ANSWERS:,} answers cannot be counted one by one; score a part of them")
    found: Meetings = _MEETINGS.run(engine, float(answers.meetings[first:last].sum()), 2, answers, first, last, least)
    return found


def agreement(met: Meetings, labels: Labels, classes: int, engine: Engine = _DEFAULT) -> Ints:
    """What `totals` gives with the identity for a sign, of every pair that meets; `labels` are those of all answers.

    >>> said = Answers.of_array(np.array([[0, 1, 1], [0, 1, 0]]))
    >>> agreement(meetings(said, 0, 1), said.label, 2).tolist()
    [2]
    """
    found: Ints = _AGREEMENT.run(engine, len(met.mine), classes, met, labels, classes)
    return found


def agreed(
    met: Meetings, labels: Labels, classes: int, weight: Floats, into: Floats, first: int, engine: Engine = _DEFAULT
) -> None:
    """Add what `phi` adds up with the identity for a sign to answers from `first` on, each pair by its weight above 0.

    >>> said, into = Answers.of_array(np.array([[0, 1, 1], [0, 1, 0]])), np.zeros(3)
    >>> agreed(meetings(said, 0, 1), said.label, 2, np.ones(1), into, 0); into.round(3).tolist()
    [0.074, 0.074, -0.148]
    """
    _AGREED.run(engine, len(met.mine), classes, met, labels, classes, weight, into, first)


def exact_sums(values: Floats, start: Ints, engine: Engine = _DEFAULT) -> Floats:
    """The sums of values[start[i]:start[i + 1]], each rounded once, in whatever order the values stand.

    >>> exact_sums(np.array([1e100, 1.0, -1e100, 0.1, 0.2]), np.array([0, 3, 5])).tolist()
    [1.0, 0.30000000000000004]
    """
    found: Floats = _EXACT_SUMS.run(engine, len(values), 2, values, start)
    return found


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
    _check_labels(rows, columns, classes, part, parts)
    found: Ints = _COUNTS.run(engine, _labels_met(rows, columns), classes, rows, columns, classes, part, parts)
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
    _check_labels(rows, columns, classes, half, 1 if half is None else 2)
    sign = _checked_sign(sign, half, classes)
    operation = _LEARNED if isinstance(sign, str) else _GIVEN
    found: tuple[Ints, Ints] = operation.run(
        engine, _labels_met(rows, columns), classes, rows, columns, classes, sign, half
    )
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
    _check_labels(rows, columns, classes, half, 1 if half is None else 2)
    sign, pairs = _checked_sign(sign, half, classes), len(columns) * rows.size
    found: tuple[Ints, Ints, Floats] = _PHI.run(engine, pairs, classes, rows, columns, classes, sign, half, skip)
    return found


def sums(rows: Labels, columns: Labels, tables: Floats, part: Ints | None = None, engine: Engine = _DEFAULT) -> Floats:
    """Sum over the columns j of tables[i, j, part(n), row_i(n), column_j(n)], for every row and task: (I, N).

    `tables` has shape (I, J, parts, L, L); a task that either side left out adds 0.

    >>> sums(np.array([[0, 1, -1]]), np.array([[0, 0, 0]]), np.array([[[[[3., 4.], [5., 6.]]]]])).tolist()
    [[3.0, 5.0, 0.0]]
    """
    parts, classes = tables.shape[2], tables.shape[-1]
    _check_labels(rows, columns, classes, part, parts)
    found: Floats = _SUMS.run(engine, _labels_met(rows, columns), classes, rows, columns, tables, part)
    return found


def tallies(labels: Labels, classes: int, engine: Engine = _DEFAULT) -> tuple[Ints, Ints]:
    """How often each label was said on each task (N, L), and by each agent (K, L).

    >>> said, held = tallies(np.array([[0, 1, 1], [0, 0, 1]]), 2)
    >>> said.tolist(), held.tolist()
    ([[2, 0], [1, 1], [0, 2]], [[1, 2], [2, 1]])
    """
    check_memory("how often each label was said", "score fewer tasks at a time", labels.shape[1], classes)
    found: tuple[Ints, Ints] = _TALLIES.run(engine, labels.size, classes, labels, classes)
    return found


def weighed(labels: Labels, table: Ints, engine: Engine = _DEFAULT) -> Ints:
    """Sum over tasks n of table[n, label], for every agent: (K,).

    >>> weighed(np.array([[0, 1], [1, 1]]), np.array([[1, 10], [100, 1000]])).tolist()
    [1001, 1010]
    """
    found: Ints = _WEIGHED.run(engine, labels.size, table.shape[1], labels, table)
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


def influence(
    labels: Labels, weight: Floats, said: Floats, share: Floats, shift: Floats, engine: Engine = _DEFAULT
) -> Floats:
    """psi of every agent and task: weight[n, label] + shift[label] - share . said[n]: (K, N).

    >>> influence(np.array([[0, 1]]), np.eye(2), np.ones((2, 2)), np.array([[0.5, 0.5]]), np.zeros((1, 2))).tolist()
    [[0.0, 0.0]]
    """
    found: Floats = _INFLUENCE.run(engine, labels.size, weight.shape[1], labels, weight, said, share, shift)
    return found


def spread(
    labels: Labels, weight: Floats, said: Floats, share: Floats, shift: Floats, engine: Engine = _DEFAULT
) -> tuple[Floats, Floats]:
    """The sum of each agent's psi over tasks, and of its squared distance from its mean: (K,) each.

    >>> spread(np.array([[0, 1]]), np.eye(2), np.ones((2, 2)), np.zeros((1, 2)), np.array([[0.0, 2.0]]))
    (array([4.]), array([2.]))
    """
    given, classes = (labels, weight, said, share, shift), weight.shape[1]
    found: tuple[Floats, Floats] = _SPREAD.run(engine, labels.size, classes, *given)
    return found


def _labels_met(rows: Labels, columns: Labels) -> float:
    """How many labels meet; half of them where the agents meet themselves."""
    return len(columns) * rows.size * (0.5 if rows is columns else 1.0)


def _check_labels(rows: Labels, columns: Labels, classes: int, part: Ints | None, parts: int) -> None:
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


def _checked_sign(sign: Sign, half: Ints | None, classes: int) -> Sign:
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
