"""Pairs counted with NumPy alone: matrix products for few labels, folded histograms for the others.

`np.bincount` costs about the same whatever the numbers are, so several agents are folded into one number: two rows and
two columns of ten labels make 10^4 cells, and one pass counts four pairs. Two tasks fold as well: two bytes are one
16-bit number. A matrix product of one-hot planes is quicker for few labels; two planes share one float32, as 1 and as
4096, which is exact on up to 4,095 tasks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from verax.kernels import Engine, Floats, Ints, Labels, Sign

Planes = npt.NDArray[np.float32]

_RADIX = 4096
_GEMM_TASKS = 2048  # a product of so many tasks is as quick as one of more
_MOST_CELLS = 2**16 - 1  # that 16 bits can number
_TWOFOLD_TASKS = 2**20
_BATCH = 2**16  # numbers in one histogram: few calls, still in cache, and 16 bits can number its cells


def counts(rows: Labels, columns: Labels, classes: int, part: Ints | None, parts: int, engine: Engine) -> Ints:
    """How often row i says k while column j says l on a part's tasks: (I, J, parts, L, L).

    >>> counts(np.array([[0, 1, 1, -1]]), np.array([[0, 1, 0, 1]]), 2, None, 1, Engine())[0, 0, 0].tolist()
    [[1, 0], [1, 1]]
    """
    shape = (len(rows), len(columns), parts, classes, classes)
    if not len(rows) or not len(columns) or not rows.shape[1]:
        return np.zeros(shape, dtype=np.int64)
    left_out = bool(rows.min() < 0 or columns.min() < 0)
    found = np.empty(shape, dtype=np.int64)
    way = _cheapest(len(rows), len(columns), rows.shape[1], classes, left_out, parts)
    way.count(rows, columns, part, found, engine)
    return found


class _Way(Protocol):
    def nanoseconds(self, rows: int, columns: int, tasks: int, classes: int, parts: int) -> float:
        """About what all pairs take, as measured on a Zen 4 core."""

    def count(self, rows: Labels, columns: Labels, part: Ints | None, found: Ints, engine: Engine) -> None:
        """Fill found (I, J, parts, L, L)."""


def _cheapest(rows: int, columns: int, tasks: int, classes: int, left_out: bool, parts: int) -> _Way:
    """The way that takes least on so many agents and tasks."""
    ways: list[_Way] = [_Products(left_out)]
    width = classes + left_out
    for r in range(1, min(rows, 8) + 1):
        for c in range(1, min(columns, 8) + 1):
            if r == c == 1 or parts * width ** (r + c) <= _MOST_CELLS:
                ways.append(_Folded(left_out, r, c))
    if parts == 1 and width**2 <= 2**8:
        ways.append(_Twofold(left_out))
    return min(ways, key=lambda way: way.nanoseconds(rows, columns, tasks, classes, parts))


@dataclass(frozen=True)
class _Products:
    """One-hot planes multiplied; without the last label, or with the tasks answered in its place."""

    left_out: bool

    def nanoseconds(self, rows: int, columns: int, tasks: int, classes: int, parts: int) -> float:
        """About what all pairs take, as measured on a Zen 4 core."""
        planes = classes - 1 + self.left_out
        product = 0.026 * tasks * planes * ((planes + 1) // 2) + 4 * planes**2 * parts * (1 + tasks // _GEMM_TASKS)
        return rows * columns * product + 0.6 * (rows + columns) * tasks * planes + 2e5 * parts

    def count(self, rows: Labels, columns: Labels, part: Ints | None, found: Ints, engine: Engine) -> None:
        """Tile by tile; agents beside themselves need the tiles above the diagonal only."""
        classes, parts = found.shape[-1], found.shape[2]
        step, span = _tile(max(len(rows), len(columns)), classes - 1 + self.left_out, engine)
        for h in range(parts):
            x, y = (rows, columns) if part is None else (rows[:, part == h], columns[:, part == h])
            for i, j in _tiles(len(rows), len(columns), step, rows is columns):
                found[i, j, h] = self._cells(x[i], y[j], classes, span)
        if rows is columns:
            mirror(found)

    def _cells(self, rows: Labels, columns: Labels, classes: int, span: int) -> Ints:
        """C (I, J, L, L) on all these tasks."""
        planes, tasks = classes - 1 + self.left_out, rows.shape[1]
        shape = ((planes + 1) // 2, len(rows), planes, len(columns))
        met = np.zeros((2, *shape), dtype=np.int64)
        a, b = np.zeros((planes, len(rows)), dtype=np.int64), np.zeros((planes, len(columns)), dtype=np.int64)
        for start in range(0, tasks, span):
            x = self._planes(rows[:, start : start + span], planes)
            y = self._planes(columns[:, start : start + span], planes)
            a += x.sum(-1).astype(np.int64)
            b += y.sum(-1).astype(np.int64)
            packed = x[0::2]
            packed[: planes // 2] += np.float32(_RADIX) * x[1::2]
            product = packed.reshape(-1, x.shape[-1]) @ y.reshape(-1, x.shape[-1]).T
            both = product.astype(np.int32).reshape(shape)
            met[0] += both & (_RADIX - 1)
            met[1] += both >> 12
        c = met.swapaxes(0, 1).reshape(-1, *shape[1:])[:planes].transpose(1, 3, 0, 2)
        return self._complete(c, a.T[:, None, : classes - 1], b.T[None, :, : classes - 1], tasks, classes)

    def _planes(self, labels: Labels, planes: int) -> Planes:
        x = np.empty((planes, *labels.shape), dtype=np.float32)
        for k in range(planes):
            np.equal(labels, k, out=x[k])
        if self.left_out:
            np.greater_equal(labels, 0, out=x[-1])
        return x

    def _complete(self, met: Ints, a: Ints, b: Ints, tasks: int, classes: int) -> Ints:
        """The last label's cells, from margins: the agents' own, or met by the plane of tasks answered."""
        last = classes - 1
        full = np.empty((*met.shape[:2], classes, classes), dtype=np.int64)
        full[..., :last, :last] = inner = met[..., :last, :last]
        n: Ints | int = met[..., last, last] if self.left_out else tasks
        if self.left_out:
            a, b = met[..., :last, last], met[..., last, :last]
        full[..., :last, last] = a - inner.sum(-1)
        full[..., last, :last] = b - inner.sum(-2)
        full[..., last, last] = n - a.sum(-1) - full[..., last, :last].sum(-1)
        return full


def _tile(agents: int, planes: int, engine: Engine) -> tuple[int, int]:
    """How many agents a side and how many tasks: small enough to skip half, and to fit planes and products."""
    step, span = max(16, min(128, agents // 2)), _GEMM_TASKS
    while step > 1 and 12 * planes * step * span + 24 * (planes * step) ** 2 > engine.max_bytes:
        step //= 2
    while span > 64 and 12 * planes * step * span > engine.max_bytes:
        span //= 2
    return step, span


def _tiles(rows: int, columns: int, step: int, mirror: bool) -> Iterator[tuple[slice, slice]]:
    """Squares of pairs; without those below the diagonal where the columns are the rows."""
    for i in range(0, rows, step):
        for j in range(i if mirror else 0, columns, step):
            yield slice(i, min(rows, i + step)), slice(j, min(columns, j + step))


@dataclass(frozen=True)
class _Folded:
    """Histograms of numbers, each of which stands for what several rows and columns say on a task."""

    left_out: bool
    rows: int
    columns: int

    def nanoseconds(self, rows: int, columns: int, tasks: int, classes: int, parts: int) -> float:
        """About what all pairs take, as measured on a Zen 4 core."""
        width, folds = classes + self.left_out, self.rows + self.columns
        cells, across = parts * width**folds, -(-columns // self.columns)
        unfolded = 0.0 if folds == 2 else 9e3 + 0.04 * width * (self.rows * cells + folds * width ** (self.columns + 1))
        each = 1.6 * tasks + 1.1 * cells + (2e3 + unfolded) / min(across, _batch(tasks, cells))
        return float(-(-rows // self.rows) * (4e4 + across * each) + 0.4 * (rows + columns) * tasks)

    def count(self, rows: Labels, columns: Labels, part: Ints | None, found: Ints, engine: Engine) -> None:
        """One group of rows beside a batch of groups of columns at a time."""
        width = found.shape[-1] + self.left_out
        span = max(2**12, min(2**18, engine.max_bytes // 64))
        step = self.columns * max(1, engine.max_bytes // 4 // (8 * span))
        for start in range(0, rows.shape[1], span):
            x, y = rows[:, start : start + span], columns[:, start : start + span]
            first = None if part is None else part[start : start + span] * width ** (self.rows + self.columns)
            for j in range(0, len(columns), step):
                below = min(len(rows), j + step) if rows is columns else len(rows)
                self._add(x[:below], y[j : j + step], first, found[:below, j : j + step], width, start == 0)
        if rows is columns:
            mirror(found)

    def _add(self, rows: Labels, columns: Labels, first: Ints | None, found: Ints, width: int, new: bool) -> None:
        parts, shape = found.shape[2], (width**self.rows, width**self.columns)
        cells = parts * shape[0] * shape[1]
        kind: Any = np.uint16 if cells <= _MOST_CELLS else np.int64
        codes = _fold(columns, self.columns, width, kind, self.left_out)
        batch = min(len(codes), _batch(rows.shape[1], cells))
        shift = np.arange(batch, dtype=kind)[:, None] * kind(cells)
        if first is not None:
            shift = shift + first.astype(kind)
        for i in range(0, len(rows), self.rows):
            group = rows[i : i + self.rows]
            base = _fold(group, self.rows, width, kind, self.left_out) * kind(shape[1]) + shift
            for g in range(0, len(codes), batch):
                some = codes[g : g + batch]
                table = np.bincount((base[: len(some)] + some).ravel(), minlength=len(some) * cells)
                into = found[i : i + self.rows, g * self.columns : (g + len(some)) * self.columns]
                each = self._unfold(table.reshape(len(some), parts, *shape), width, found.shape[2:])
                each = each[: len(into), : into.shape[1]]
                into[...] = each if new else into + each

    def _unfold(self, table: Ints, width: int, shape: tuple[int, ...]) -> Ints:
        """Sum out the other agents of each fold, as products with 0/1 matrices; sums under 2^24 are exact."""
        if self.rows == self.columns == 1:
            return table[None, ..., self.left_out :, self.left_out :]
        summed = table.astype(np.float32)
        if self.rows > 1:
            summed = _margins(width, self.rows) @ summed
        if self.columns > 1:
            summed = summed @ _margins(width, self.columns).T
        apart = summed.reshape(*table.shape[:2], self.rows, width, self.columns, width).transpose(2, 0, 4, 1, 3, 5)
        return apart[..., self.left_out :, self.left_out :].reshape(self.rows, -1, *shape).astype(np.int64)


@functools.lru_cache(maxsize=32)
def _margins(width: int, size: int) -> Planes:
    """Row (k, l) has a 1 for every number of so many digits whose digit k is l."""
    digits = np.indices((width,) * size).reshape(size, -1)
    return np.concatenate([digits[k] == np.arange(width)[:, None] for k in range(size)]).astype(np.float32)


def _batch(tasks: int, cells: int) -> int:
    return max(1, _BATCH // max(tasks, cells))


def _fold(labels: Labels, size: int, width: int, kind: Any, border: bool) -> npt.NDArray[Any]:
    """Groups of so many agents as one number a task; the last group is filled up with agents that say 0."""
    codes = labels[::size].astype(kind)
    for k in range(1, size):
        codes *= kind(width)
        said = labels[k::size]
        codes[: len(said)] += said.astype(kind)
    if border:  # every digit one more, so that an abstention is 0
        codes += kind(sum(width**k for k in range(size)))
    return codes


@dataclass(frozen=True)
class _Twofold:
    """Histograms of two tasks at once: what one agent says beside another is a byte, and two bytes a number."""

    left_out: bool

    def nanoseconds(self, rows: int, columns: int, tasks: int, classes: int, parts: int) -> float:
        """About what all pairs take, as measured on a Zen 4 core."""
        return rows * columns * (0.8 * tasks + 7e4 * (1 + tasks // _TWOFOLD_TASKS))

    def count(self, rows: Labels, columns: Labels, part: Ints | None, found: Ints, engine: Engine) -> None:
        """Pair by pair."""
        span = 2 * max(2**11, min(_TWOFOLD_TASKS, engine.max_bytes // 16) // 2)
        for i, j in np.ndindex(found.shape[:2]):
            found[i, j] = 0
            for start in range(0, rows.shape[1], span):
                self._add(rows[i, start : start + span], columns[j, start : start + span], found[i, j, 0])

    def _add(self, row: Labels, column: Labels, found: Ints) -> None:
        """Both bytes of the number are counts; a last task without a partner is counted alone."""
        border, width = int(self.left_out), len(found) + self.left_out
        code = _bytes(row) * np.uint8(width)
        code += _bytes(column)
        if border:
            code += np.uint8(width + 1)
        even = len(code) // 2 * 2
        table = np.bincount(code[:even].view(np.uint16), minlength=2**16).reshape(2**8, 2**8)
        cells = table.sum(0) + table.sum(1) + np.bincount(code[even:], minlength=2**8)
        found += cells[: width**2].reshape(width, width)[border:, border:]


def _bytes(labels: Labels) -> npt.NDArray[np.uint8]:
    return labels.view(np.uint8) if labels.itemsize == 1 else labels.astype(np.uint8)


def mirror(found: Ints) -> None:
    """Fill the pairs below the diagonal from those above: C_ji = C_ij^T."""
    for i in range(len(found)):
        found[i + 1 :, i] = found[i, i + 1 :].swapaxes(-1, -2)


Count = Callable[[Labels, Labels, int, Ints | None, int, Engine], Ints]
Add = Callable[[Labels, Labels, Floats, Ints | None, Engine], Floats]


def totals(
    rows: Labels,
    columns: Labels,
    classes: int,
    sign: Sign,
    half: Ints | None,
    engine: Engine,
    count: Count = counts,
) -> tuple[Ints, Ints]:
    """sum_kl S(k, l) (n C(k, l) - a(k) b(l)) and n, for every pair and half: (I, J, H) each.

    >>> labels = np.array([[0, 1, 1, 0], [0, 1, 1, 1]])
    >>> totals(labels, labels, 2, "plugin", None, Engine())[0][:, :, 0].tolist()
    [[8, 4], [4, 6]]
    """
    parts = 1 if half is None else 2
    total = np.empty((len(rows), len(columns), parts), dtype=np.int64)
    tasks = np.empty_like(total)
    same = rows is columns and (isinstance(sign, str) or bool((sign == sign.T).all()))
    for i, j in _tiles(len(rows), len(columns), _side(parts * classes**2, engine), same):
        x = rows[i]
        y = x if rows is columns and i == j else columns[j]
        total[i, j], tasks[i, j] = reduced(count(x, y, classes, half, parts, engine), sign)
        if same and i != j:
            total[j, i], tasks[j, i] = total[i, j].swapaxes(0, 1), tasks[i, j].swapaxes(0, 1)
    return total, tasks


def _side(cells: int, engine: Engine) -> int:
    """Agents a side of a tile whose counts, and four arrays like them, fit the memory."""
    return max(1, min(256, math.isqrt(engine.max_bytes // 2 // (40 * cells))))


def excess(counts: Ints) -> Ints:
    """n C - a b^T of every table."""
    found: Ints = counts * counts.sum((-2, -1), keepdims=True)
    found -= counts.sum(-1, keepdims=True) * counts.sum(-2, keepdims=True)
    return found


def reduced(counts: Ints, sign: Sign) -> tuple[Ints, Ints]:
    """Totals and tasks from counts (I, J, H, L, L); a row at a time, so that they are still in cache."""
    total = np.empty(counts.shape[:3], dtype=np.int64)
    for found, row in zip(total, counts, strict=True):
        over = excess(row)
        if isinstance(sign, str) and sign == "plugin":
            np.maximum(over, 0, out=over).sum((-2, -1), out=found)
        else:
            (over * _signs(over, sign)).sum((-2, -1), out=found)
    return total, np.asarray(counts.sum((-2, -1)))


def _signs(over: Ints, sign: Sign) -> npt.NDArray[np.bool_]:
    """S, given or learned where n C > a b^T: on the same half, or on the other."""
    if not isinstance(sign, str):
        return sign.astype(np.bool_)
    return over > 0 if sign == "plugin" else (over > 0)[..., ::-1, :, :]


def phi(
    rows: Labels,
    columns: Labels,
    classes: int,
    sign: Sign,
    half: Ints | None,
    skip: Ints | None,
    engine: Engine,
    count: Count = counts,
    add: Add | None = None,
) -> tuple[Ints, Ints, Floats]:
    """The totals, and for each row and task the sum over columns of (psi - mean psi) / N. See `verax.kernels.phi`.

    >>> labels = np.array([[0, 1, 1, 0], [0, 1, 1, 1]])
    >>> phi(labels[:1], labels[1:], 2, "plugin", None, None, Engine())[2].tolist()
    [[0.125, 0.0, 0.0, -0.125]]
    """
    found, parts = np.zeros(rows.shape), 1 if half is None else 2
    total = np.zeros((len(rows), len(columns), parts), dtype=np.int64)
    tasks = np.zeros_like(total)
    side = _side(2 * parts * classes**2, engine)
    for i, j in _tiles(len(rows), len(columns), side, False):
        met = count(rows[i], columns[j], classes, half, parts, engine)
        total[i, j], tasks[i, j] = reduced(met, sign)
        tables = centred(met, sign)
        if skip is not None:
            tables[np.arange(j.start, j.stop) == skip[i, None]] = 0.0
        found[i] += (add or sums)(rows[i], columns[j], tables, half, engine)
    return total, tasks, found


def centred(counts: Ints, sign: Sign) -> Floats:
    """(psi - mean psi) / N of every cell, from counts (I, J, H, L, L): an exact integer over n^2 N.

    psi(k, l) = (e_k - a/n)^T S (e_l - b/n), in each half with its own n; N is both halves together.
    """
    n, a, b = counts.sum((-2, -1), keepdims=True), counts.sum(-1, keepdims=True), counts.sum(-2, keepdims=True)
    s = np.broadcast_to(_signs(excess(counts), sign), counts.shape).astype(np.int64)
    across, down = (s * b).sum(-1, keepdims=True), (s * a).sum(-2, keepdims=True)
    met, expected = (s * counts).sum((-2, -1), keepdims=True), (a * across).sum((-2, -1), keepdims=True)
    top = n * (n * s - across - down - met) + 2 * expected
    whole = n.sum(-3, keepdims=True)
    return np.where((n < 2) | (whole < 2), 0.0, top / np.maximum(n.astype(np.float64) ** 2 * whole, 1.0))


def sums(rows: Labels, columns: Labels, tables: Floats, part: Ints | None, engine: Engine) -> Floats:
    """Sum over the columns j of tables[i, j, part(n), row_i(n), column_j(n)], for every row and task: (I, N).

    Several columns are folded into one number, and their tables into one: fewer look-ups for small tables.

    >>> tables = np.array([[[[[3., 4.], [5., 6.]]]]])
    >>> sums(np.array([[0, 1, -1]]), np.array([[0, 0, 0]]), tables, None, Engine()).tolist()
    [[3.0, 5.0, 0.0]]
    """
    found = np.zeros(rows.shape)
    parts, width = tables.shape[2], tables.shape[-1] + 1
    most = min(_MOST_CELLS, rows.shape[1] // 4)
    size = next((c for c in (3, 2) if parts * width ** (c + 1) <= most), 1)
    span = max(2**12, engine.max_bytes // 32)
    kind: Any = np.uint16 if parts * width ** (size + 1) <= _MOST_CELLS else np.int64
    step = size * max(1, engine.max_bytes // 4 // (2 * max(1, min(span, rows.shape[1]))))
    for start in range(0, rows.shape[1], span):
        x, y = rows[:, start : start + span], columns[:, start : start + span]
        for j in range(0, len(columns), step):
            codes = _fold(y[j : j + step], size, width, kind, True)
            for i, row in enumerate(x):
                base = (row + 1).astype(kind) * kind(width**size)
                if part is not None:
                    base += (part[start : start + span] * width ** (size + 1)).astype(kind)
                bordered = np.pad(tables[i, j : j + step], ((0, 0), (0, 0), (1, 0), (1, 0)))
                into = found[i, start : start + span]
                for g, code in enumerate(codes):
                    into += _table(bordered[g * size : (g + 1) * size], size)[base + code]
    return found


def _table(tables: Floats, size: int) -> Floats:
    """One table of what several columns say together: the sum of their own; fewer at the end than elsewhere."""
    parts, width = tables.shape[1:3]
    table = np.zeros((parts, width, *(width,) * size))
    for k, each in enumerate(tables):
        table += each.reshape(parts, width, *(width if q == k else 1 for q in range(size)))
    return table.ravel()
