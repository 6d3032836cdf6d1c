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
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.kernels import Engine, Ints, Labels, Sign
from verax.kernels._cells import excess, signs

Planes = npt.NDArray[np.float32]

_RADIX = 4096
_GEMM_TASKS = 2048  # a product of so many tasks is as quick as one of more
MOST_CELLS = 2**16 - 1  # that 16 bits can number
_TWOFOLD_TASKS = 2**20
_BATCH = 2**16  # numbers in one histogram: few calls, still in cache, and 16 bits can number its cells


def counts(rows: Labels, columns: Labels, classes: int, part: Ints | None, parts: int, engine: Engine) -> Ints:
    """See `verax.kernels.counts`: by the way that takes least on so many agents and tasks."""
    shape = (len(rows), len(columns), parts, classes, classes)
    if not len(rows) or not len(columns) or not rows.shape[1]:
        return np.zeros(shape, dtype=np.int64)
    left_out = bool(rows.min() < 0 or columns.min() < 0)
    found = np.empty(shape, dtype=np.int64)
    way = _cheapest_way(len(rows), len(columns), rows.shape[1], classes, left_out, parts)
    way.count(rows, columns, part, found, engine)
    return found


def _cheapest_way(
    rows: int, columns: int, tasks: int, classes: int, left_out: bool, parts: int
) -> _Products | _Folded | _Twofold:
    """The way that takes least on so many agents and tasks."""
    ways: list[_Products | _Folded | _Twofold] = [_Products(left_out)]
    width = classes + left_out
    for r in range(1, min(rows, 8) + 1):
        for c in range(1, min(columns, 8) + 1):
            if r == c == 1 or parts * width ** (r + c) <= MOST_CELLS:
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
        step, span = _tile_size(max(len(rows), len(columns)), classes - 1 + self.left_out, engine)
        for h in range(parts):
            x, y = (rows, columns) if part is None else (rows[:, part == h], columns[:, part == h])
            for i, j in square_tiles(len(rows), len(columns), step, rows is columns):
                found[i, j, h] = self._all_cells(x[i], y[j], classes, span)
        if rows is columns:
            mirror_pairs(found)

    def _all_cells(self, rows: Labels, columns: Labels, classes: int, span: int) -> Ints:
        """C (I, J, L, L) on all these tasks."""
        planes, tasks = classes - 1 + self.left_out, rows.shape[1]
        shape = ((planes + 1) // 2, len(rows), planes, len(columns))
        met = np.zeros((2, *shape), dtype=np.int64)
        a, b = np.zeros((planes, len(rows)), dtype=np.int64), np.zeros((planes, len(columns)), dtype=np.int64)
        for start in range(0, tasks, span):
            x = self._label_planes(rows[:, start : start + span], planes)
            y = self._label_planes(columns[:, start : start + span], planes)
            a += x.sum(-1).astype(np.int64)
            b += y.sum(-1).astype(np.int64)
            packed = x[0::2]
            packed[: planes // 2] += np.float32(_RADIX) * x[1::2]
            product = packed.reshape(-1, x.shape[-1]) @ y.reshape(-1, x.shape[-1]).T
            both = product.astype(np.int32).reshape(shape)
            met[0] += both & (_RADIX - 1)
            met[1] += both >> 12
        c = met.swapaxes(0, 1).reshape(-1, *shape[1:])[:planes].transpose(1, 3, 0, 2)
        return self._add_last_label(c, a.T[:, None, : classes - 1], b.T[None, :, : classes - 1], tasks, classes)

    def _label_planes(self, labels: Labels, planes: int) -> Planes:
        x = np.empty((planes, *labels.shape), dtype=np.float32)
        for k in range(planes):
            np.equal(labels, k, out=x[k])
        if self.left_out:
            np.greater_equal(labels, 0, out=x[-1])
        return x

    def _add_last_label(self, met: Ints, a: Ints, b: Ints, tasks: int, classes: int) -> Ints:
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


def _tile_size(agents: int, planes: int, engine: Engine) -> tuple[int, int]:
    """How many agents a side and how many tasks: small enough to skip half, and to fit planes and products."""
    step, span = max(16, min(128, agents // 2)), _GEMM_TASKS
    while step > 1 and 12 * planes * step * span + 24 * (planes * step) ** 2 > engine.max_bytes:
        step //= 2
    while span > 64 and 12 * planes * step * span > engine.max_bytes:
        span //= 2
    return step, span


def square_tiles(rows: int, columns: int, step: int, mirror: bool) -> Iterator[tuple[slice, slice]]:
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
        each = 1.6 * tasks + 1.1 * cells + (2e3 + unfolded) / min(across, _batch_size(tasks, cells))
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
                self._add_counts(x[:below], y[j : j + step], first, found[:below, j : j + step], width, start == 0)
        if rows is columns:
            mirror_pairs(found)

    def _add_counts(
        self, rows: Labels, columns: Labels, first: Ints | None, found: Ints, width: int, new: bool
    ) -> None:
        parts, shape = found.shape[2], (width**self.rows, width**self.columns)
        cells = parts * shape[0] * shape[1]
        kind: Any = np.uint16 if cells <= MOST_CELLS else np.int64
        codes = fold_agents(columns, self.columns, width, kind, self.left_out)
        batch = min(len(codes), _batch_size(rows.shape[1], cells))
        shift = np.arange(batch, dtype=kind)[:, None] * kind(cells)
        if first is not None:
            shift = shift + first.astype(kind)
        for i in range(0, len(rows), self.rows):
            group = rows[i : i + self.rows]
            base = fold_agents(group, self.rows, width, kind, self.left_out) * kind(shape[1]) + shift
            for g in range(0, len(codes), batch):
                some = codes[g : g + batch]
                table = np.bincount((base[: len(some)] + some).ravel(), minlength=len(some) * cells)
                into = found[i : i + self.rows, g * self.columns : (g + len(some)) * self.columns]
                each = self._sum_out(table.reshape(len(some), parts, *shape), width, found.shape[2:])
                each = each[: len(into), : into.shape[1]]
                into[...] = each if new else into + each

    def _sum_out(self, table: Ints, width: int, shape: tuple[int, ...]) -> Ints:
        """Sum out the other agents of each fold, as products with 0/1 matrices; sums under 2^24 are exact."""
        if self.rows == self.columns == 1:
            return table[None, ..., self.left_out :, self.left_out :]
        summed = table.astype(np.float32)
        if self.rows > 1:
            summed = _digit_sums(width, self.rows) @ summed
        if self.columns > 1:
            summed = summed @ _digit_sums(width, self.columns).T
        apart = summed.reshape(*table.shape[:2], self.rows, width, self.columns, width).transpose(2, 0, 4, 1, 3, 5)
        return apart[..., self.left_out :, self.left_out :].reshape(self.rows, -1, *shape).astype(np.int64)


@functools.lru_cache(maxsize=32)
def _digit_sums(width: int, size: int) -> Planes:
    """Row (k, l) has a 1 for every number of so many digits whose digit k is l."""
    digits = np.indices((width,) * size).reshape(size, -1)
    return np.concatenate([digits[k] == np.arange(width)[:, None] for k in range(size)]).astype(np.float32)


def _batch_size(tasks: int, cells: int) -> int:
    return max(1, _BATCH // max(tasks, cells))


def fold_agents(labels: Labels, size: int, width: int, kind: Any, border: bool) -> npt.NDArray[Any]:
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
                self._add_counts(rows[i, start : start + span], columns[j, start : start + span], found[i, j, 0])

    def _add_counts(self, row: Labels, column: Labels, found: Ints) -> None:
        """Both bytes of the number are counts; a last task without a partner is counted alone."""
        border, width = int(self.left_out), len(found) + self.left_out
        code = _as_bytes(row) * np.uint8(width)
        code += _as_bytes(column)
        if border:
            code += np.uint8(width + 1)
        even = len(code) // 2 * 2
        table = np.bincount(code[:even].view(np.uint16), minlength=2**16).reshape(2**8, 2**8)
        cells = table.sum(0) + table.sum(1) + np.bincount(code[even:], minlength=2**8)
        found += cells[: width**2].reshape(width, width)[border:, border:]


def _as_bytes(labels: Labels) -> npt.NDArray[np.uint8]:
    return labels.view(np.uint8) if labels.itemsize == 1 else labels.astype(np.uint8)


def mirror_pairs(found: Ints) -> None:
    """Fill the pairs below the diagonal from those above: C_ji = C_ij^T."""
    for i in range(len(found)):
        found[i + 1 :, i] = found[i, i + 1 :].swapaxes(-1, -2)


Count = Callable[[Labels, Labels, int, Ints | None, int, Engine], Ints]


def totals(
    rows: Labels, columns: Labels, classes: int, sign: Sign, half: Ints | None, engine: Engine, count: Count = counts
) -> tuple[Ints, Ints]:
    """See `verax.kernels.totals`; what counts may be another's."""
    parts = 1 if half is None else 2
    total = np.empty((len(rows), len(columns), parts), dtype=np.int64)
    tasks = np.empty_like(total)
    same = rows is columns and (isinstance(sign, str) or bool((sign == sign.T).all()))
    for i, j in square_tiles(len(rows), len(columns), side_of_tile(parts * classes**2, engine), same):
        x = rows[i]
        y = x if rows is columns and i == j else columns[j]
        total[i, j], tasks[i, j] = reduced(count(x, y, classes, half, parts, engine), sign)
        if same and i != j:
            total[j, i], tasks[j, i] = total[i, j].swapaxes(0, 1), tasks[i, j].swapaxes(0, 1)
    return total, tasks


def side_of_tile(cells: int, engine: Engine) -> int:
    """Agents a side of a tile whose counts, and four arrays like them, fit the memory."""
    return max(1, min(256, math.isqrt(engine.max_bytes // 2 // (40 * cells))))


def reduced(counts: Ints, sign: Sign) -> tuple[Ints, Ints]:
    """Totals and tasks from counts (I, J, H, L, L); a row at a time, so that they are still in cache."""
    total = np.empty(counts.shape[:3], dtype=np.int64)
    for found, row in zip(total, counts, strict=True):
        over = excess(row)
        if isinstance(sign, str) and sign == "plugin":
            np.maximum(over, 0, out=over).sum((-2, -1), out=found)
        else:
            (over * signs(over, sign)).sum((-2, -1), out=found)
    return total, np.asarray(counts.sum((-2, -1)))
