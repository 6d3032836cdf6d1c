"""Pairs counted in machine code: bit planes for few labels, histograms for many; it counts and reduces, nothing more.

A label's *plane* has one bit a task, set where the agent says it. How often i says k while j says l is the number
of bits that two planes share: AND, then popcount. Eight columns stand side by side in the lanes of a vector, so one
word of the row meets eight columns at once and no sum ever crosses lanes. The last label needs no plane: its cells
follow from the margins. Where a task was left out, a plane of the tasks answered takes the last label's place and
gives the margins of the common tasks.

Both ways leave the counts of some rows and groups of columns in `cells` (rows, groups, parts, L, L * lanes), with
eight lanes or one, and in eight lanes with margins in the place of the last label. They never leave the core's cache:
totals or tables are made of them before the next come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from verax.kernels import Engine, Floats, Ints, Labels, Sign, _numpy, cores, per_task
from verax.kernels._compiled import (
    I64,
    MOST_NARROW,
    WORD,
    cgutils,
    compiled,
    in_all,
    load,
    narrow,
    ones,
    popcount,
    says,
)

LANES = 8
_SIDE = 3  # planes of a block: nine sums stay in registers
_L1_WORDS = 320  # of eight columns that stay in the innermost cache
_ROWS = 8  # met with a group before the next group comes
_CACHE = 2**19  # bytes of counts made at once
_CHUNK = 2**17  # tasks whose planes are made at once
_RUN = 2**12  # tasks of a histogram whose numbers stay in the innermost cache
_WORTH_TWO = 2**17  # tasks for which a table of 65,536 numbers is little
_WORTH_USUAL = 16  # columns
_FEW_DIFFER = 0.3  # share of the pairs for which single look-ups are quicker than folded ones
_LONG = 2**20  # tasks of a histogram, and enough for a thread of their own
_ALL = np.uint64(2**64 - 1)
_GIVEN, _PLUGIN, _SPLIT = 0, 1, 2
_PLAIN, _MIRROR, _TURNED = 0, 1, 2

Words = npt.NDArray[np.uint64]
Cells = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]
Work = Callable[["Side", Cells, int, Ints], None]

# Vectors. LLVM turns them into whatever the processor has: vpopcntq, or table look-ups in a byte shuffle.

_LANE = ir.VectorType(I64, LANES)


def _at(builder: Any, start: Any, stride: Any, plane: int, word: Any, size: int) -> Any:
    """The address of a word of a plane."""
    index = builder.add(builder.mul(stride, ir.Constant(I64, plane)), word)
    return builder.add(start, builder.mul(index, ir.Constant(I64, size)))


def _block(builder: Any, height: int, width: int, args: tuple[Any, ...]) -> None:
    """Meet `height` planes of a row with `width` planes of eight columns; every sum stays in a register."""
    row, columns, stride, words, out, out_stride = args
    cells = [(k, m) for k in range(height) for m in range(width)]
    sums = {cell: cgutils.alloca_once(builder, _LANE) for cell in cells}
    for each in sums.values():
        builder.store(ir.Constant(_LANE, [0] * LANES), each)
    with cgutils.for_range(builder, words) as loop:
        y = [load(builder, _at(builder, columns, stride, m, loop.index, 8 * LANES), _LANE, 8) for m in range(width)]
        for k in range(height):
            word = load(builder, _at(builder, row, stride, k, loop.index, 8), I64, 8)
            x = in_all(builder, word, LANES)
            for m in range(width):
                met = popcount(builder, builder.and_(x, y[m]), "v8i64")
                builder.store(builder.add(builder.load(sums[k, m]), met), sums[k, m])
    for k, m in cells:
        cell = _at(builder, out, out_stride, k, ir.Constant(I64, m), 8 * LANES)
        old = load(builder, cell, _LANE, 8)
        new = builder.store(builder.add(old, builder.load(sums[k, m])), builder.inttoptr(cell, _LANE.as_pointer()))
        new.align = 8


def _meet_planes(
    _: Any, height: Any, width: Any, row: Any, columns: Any, stride: Any, words: Any, out: Any, out_stride: Any
) -> Any:
    """Add what planes (height of the row, width of the columns) share to the cells at `out`; addresses throughout."""

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        for k in range(1, _SIDE + 1):
            for m in range(1, _SIDE + 1):
                tall = builder.icmp_signed("==", args[0], ir.Constant(I64, k))
                wide = builder.icmp_signed("==", args[1], ir.Constant(I64, m))
                with builder.if_then(builder.and_(tall, wide)):
                    _block(builder, k, m, tuple(args[2:]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), code


meet_planes: Any = intrinsic(_meet_planes)


class Tasks(NamedTuple):
    """Tasks in the order of the words: each part fills whole words."""

    order: npt.NDArray[np.int32]  # the task at every bit, -1 where there is none; empty: as they come
    starts: Ints  # the first word of every part, and the end
    sizes: Ints
    part: Ints  # empty: one part

    @classmethod
    def of(cls, part: Ints | None, parts: int, tasks: int) -> Tasks:
        """Tasks by part; within a part as they come.

        >>> Tasks.of(np.array([1, 0, 1]), 2, 3).order[[0, 64, 65]].tolist()
        [1, 0, 2]
        """
        sizes = np.array([tasks]) if part is None else np.bincount(part, minlength=parts)
        starts = np.concatenate([[0], np.cumsum(-(-sizes // WORD))])
        if part is None:
            return cls(np.empty(0, np.int32), starts, sizes, np.empty(0, np.int64))
        order = np.full(starts[-1] * WORD, -1, dtype=np.int32)
        before = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        order[np.arange(tasks) + np.repeat(starts[:-1] * WORD - before, sizes)] = np.argsort(part, kind="stable")
        return cls(order, starts, sizes, np.ascontiguousarray(part, dtype=np.int64))


@dataclass(frozen=True)
class Side:
    """Some agents, ready to meet others: their labels, and their planes where planes count."""

    labels: Labels  # (agents, N)
    first: int  # the number of the first
    planes: Words  # (groups, planes, words, lanes)
    margins: Ints  # (groups, lanes, parts, planes)
    lanes: int

    @classmethod
    def of(cls, labels: Labels, first: int, tasks: Tasks, said: Words, lanes: int) -> Side:
        """The planes of these agents: plane p has the tasks whose label l has said[p, l + 1]."""
        groups, parts = -(-len(labels) // lanes) if len(said) else 0, len(tasks.sizes)
        planes = np.zeros((groups, len(said), tasks.starts[-1], lanes), dtype=np.uint64)
        margins = np.zeros((groups, lanes, parts, len(said)), dtype=np.int64)
        if groups:
            _planes(labels, said, tasks.order, tasks.starts, planes, margins)
        return cls(labels, first, planes, margins, lanes)


@compiled
def _planes(labels, said, order, starts, planes, margins):  # type: ignore[no-untyped-def]
    """Every agent's planes, and how many tasks each has in each part."""
    count, words, lanes = planes.shape[1:]
    line, held = np.empty(64 * words, np.int8), np.empty(said.shape[1], np.uint64)
    for j in range(len(labels)):
        g, t = j // lanes, j % lanes
        for q in range(line.size):
            task = order[q] if order.size else q
            line[q] = labels[j, task] if 0 <= task < labels.shape[1] else -1
        for w in range(words):
            for m in range(held.size):
                held[m] = says(line.ctypes.data + 64 * w, m - 1)
            for p in range(count):
                word = np.uint64(0)
                for m in range(held.size):
                    word |= held[m] & said[p, m]
                planes[g, p, w, t] = word
        for h in range(starts.size - 1):
            for p in range(count):
                total = 0
                for w in range(starts[h], starts[h + 1]):
                    total += ones(planes[g, p, w, t])
                margins[g, t, h, p] = total


@compiled
def _meet(x, y, starts, skipped, cells):  # type: ignore[no-untyped-def]
    """What the planes x (rows, Px, words, 1) share with y (groups, Py, words, 8), a part at a time."""
    height, width, words, stride = x.shape[1], y.shape[1], x.shape[2], cells.shape[4] // LANES
    step, tall, broad = max(8, _L1_WORDS // width), -(-height // _SIDE), -(-width // _SIDE)
    for r in range(cells.shape[0]):
        for g in range(skipped[r], cells.shape[1]):
            row, columns = x[r].ctypes.data, y[g].ctypes.data
            for h in range(cells.shape[2]):
                out = cells[r, g, h].ctypes.data
                for k in range(cells.shape[3]):
                    for m in range(cells.shape[4]):
                        cells[r, g, h, k, m] = 0
                for first in range(starts[h], starts[h + 1], step):
                    count = min(step, starts[h + 1] - first)
                    for b in range(tall):
                        k, below = height * b // tall, height * (b + 1) // tall
                        for d in range(broad):
                            m, after = width * d // broad, width * (d + 1) // broad
                            meet_planes(
                                below - k, after - m, row + 8 * (k * words + first),
                                columns + 8 * LANES * (m * words + first), words, count,
                                out + 8 * LANES * (k * stride + m), stride,
                            )  # fmt: skip


@compiled
def _put_margins(cells, rows, columns, sizes, skipped):  # type: ignore[no-untyped-def]
    """Dense reports: the agents' own margins, where the plane of the tasks answered would have met them."""
    last = cells.shape[3] - 1
    for r in range(cells.shape[0]):
        for g in range(skipped[r], cells.shape[1]):
            for h in range(cells.shape[2]):
                c = cells[r, g, h]
                for k in range(last):
                    for t in range(LANES):
                        c[k, LANES * last + t] = rows[r, 0, h, k]
                        c[last, LANES * k + t] = columns[g, t, h, k]
                for t in range(LANES):
                    c[last, LANES * last + t] = sizes[h]


@compiled
def _complete(cells, skipped):  # type: ignore[no-untyped-def]
    """Turn margins in the last row and column into the last label's counts."""
    last = cells.shape[3] - 1
    for r in range(cells.shape[0]):
        for g in range(skipped[r], cells.shape[1]):
            for h in range(cells.shape[2]):
                c = cells[r, g, h]
                for k in range(last):
                    for t in range(LANES):
                        c[last, LANES * last + t] -= c[k, LANES * last + t]
                _take_from_last(c)


@compiled
def _take_from_last(c):  # type: ignore[no-untyped-def]
    """Take the other cells of each row and column from its last; in an order where no sum waits for its neighbour's."""
    last = c.shape[0] - 1
    for k in range(last):
        for m in range(LANES * last):
            c[last, m] -= c[k, m]
    for m in range(last):
        for k in range(last + 1):
            for t in range(LANES):
                c[k, LANES * last + t] -= c[k, LANES * m + t]


@compiled
def _histograms(rows, columns, part, skipped, cells):  # type: ignore[no-untyped-def]
    """The counts of every pair, one a group. Two tables where they are small: equal neighbours need not wait."""
    parts, classes, width = cells.shape[2], cells.shape[3], cells.shape[3] + 1
    size, tasks, one = parts * width * width, rows.shape[1], np.uint32(1)
    base, tally = np.empty(tasks, np.uint32), np.empty(2 * size if size <= 4096 else size, np.uint32)
    low, high, half = tally[:size], tally[tally.size - size :], tasks // 2
    later = base[half:]
    for r in range(len(rows)):
        for n in range(tasks):
            base[n] = (rows[r, n] + 1) * width + 1
        for n in range(part.size):
            base[n] += part[n] * width * width
        for g in range(skipped[r], len(columns)):
            column, column_later = columns[g], columns[g, half:]
            for c in range(tally.size):
                tally[c] = 0
            for n in range(half):
                low[np.uint64(base[n] + column[n])] += one
                high[np.uint64(later[n] + column_later[n])] += one
            if tasks % 2:
                low[np.uint64(base[tasks - 1] + column[tasks - 1])] += one
            for h in range(parts):
                for k in range(classes):
                    start = (h * width + k + 1) * width + 1
                    for m in range(classes):
                        cells[r, g, h, k, m] = low[start + m]
                    if tally.size > size:
                        for m in range(classes):
                            cells[r, g, h, k, m] += high[start + m]


@compiled
def _histograms_of_two(rows, columns, skipped, cells):  # type: ignore[no-untyped-def]
    """The same for many tasks: what a pair says on a task is a byte, and the bytes of two tasks are one number."""
    classes = cells.shape[3]
    width = classes // 2 * 2 + 2  # even: where most pairs agree, their numbers are then not all a page apart
    tasks, one, last = rows.shape[1], np.uint32(1), np.uint8(0)
    table, once, first = np.empty(2**16, np.uint32), np.empty(2**8, np.int64), np.empty(2**8, np.int64)
    bytes_ = np.empty(_RUN, np.uint8)
    numbers = bytes_.view(np.uint16)
    for r in range(len(rows)):
        for g in range(skipped[r], len(columns)):
            for c in range(table.size):
                table[c] = 0
            for c in range(once.size):
                once[c] = 0
            for start in range(0, tasks, _RUN):
                row, column = rows[r, start : start + _RUN], columns[g, start : start + _RUN]
                for n in range(row.size):
                    bytes_[n] = (row[n] + 1) * width + column[n] + 1
                for n in range(row.size // 2):
                    table[np.uint64(numbers[n])] += one
                last = bytes_[row.size - 1]
            if tasks % 2:
                once[last] += 1
            for high in range(width * width):
                met, total = table[high * once.size : (high + 1) * once.size], 0
                for low in range(once.size):
                    once[low] += met[low]
                for low in range(once.size):
                    total += met[low]
                first[high] = total
            for k in range(classes):
                for m in range(classes):
                    cell = (k + 1) * width + m + 1
                    cells[r, g, 0, k, m] = first[cell] + once[cell]


@dataclass(frozen=True)
class Counter:
    """How the pairs of some tasks are counted, and the columns they are counted with."""

    tasks: Tasks
    classes: int
    said: Words  # what each plane says; none: histograms count
    left_out: bool  # whether any task was left out
    mirror: bool  # the columns are the rows: pairs below the diagonal are not counted

    @classmethod
    def of(
        cls, rows: Labels, columns: Labels, classes: int, part: Ints | None, parts: int, mirror: bool = False
    ) -> Counter:
        """The quicker way for these reports; both give the same."""
        tasks = Tasks.of(part, parts, rows.shape[1])
        left_out = bool(rows.min(initial=0) < 0 or columns.min(initial=0) < 0)
        said = np.zeros((classes - 1 + left_out, classes + 1), dtype=np.uint64)
        said[np.arange(classes - 1), np.arange(1, classes)] = _ALL
        if left_out:
            said[-1, 1:] = _ALL
        if not _by_planes(len(rows), len(columns), classes, len(said), tasks):
            said = said[:0]
        return cls(tasks, classes, said, left_out, mirror)

    @property
    def lanes(self) -> int:
        """How many columns stand side by side in a group."""
        return LANES if len(self.said) else 1

    @property
    def pair_bytes(self) -> int:
        """What the counts of one pair take."""
        return 8 * len(self.tasks.sizes) * self.classes**2

    def tiles(self, columns: Labels, engine: Engine) -> Iterator[Side]:
        """The columns, as many at a time as fit the memory."""
        each = len(self.said) * (8 * self.tasks.starts[-1] + 8 * len(self.tasks.sizes)) + columns.shape[1]
        step = self.lanes * max(1, int(engine.max_bytes // 2 // max(each * self.lanes, 1)))
        for first in range(0, len(columns), step):
            yield self.side(columns[first : first + step], first, self.lanes)

    def side(self, labels: Labels, first: int, lanes: int) -> Side:
        """Agents with their planes, in lanes."""
        return Side.of(narrow(labels, self.classes), first, self.tasks, self.said, lanes)

    def batches(self, rows: Labels, tile: Side, engine: Engine, work: Work) -> None:
        """Count the pairs of all rows and a tile, as many at a time as stay in cache, and give them to `work`."""
        threads = engine.threads or cores()
        run = max(1, min(_ROWS, -(-len(rows) // threads)))

        def count(first: int) -> None:
            side = self.side(rows[first : first + run], first, 1)
            groups = -(-len(tile.labels) // self.lanes)
            step = max(1, _CACHE // max(1, self.pair_bytes * self.lanes * len(side.labels)))
            start = (first - tile.first) // self.lanes if self.mirror else 0
            for g in range(max(0, start), groups, step):
                work(side, *self._count(side, tile, g, min(groups, g + step)))

        _each(count, range(0, len(rows), run), threads)

    def _count(self, side: Side, tile: Side, g: int, end: int) -> tuple[Cells, int, Ints]:
        """Cells of these rows and groups, the number of the first column, and the groups to skip in each row."""
        parts, lanes = len(self.tasks.sizes), self.lanes
        cells = np.empty((len(side.labels), end - g, parts, self.classes, self.classes * lanes), dtype=np.int64)
        first = tile.first + g * lanes
        behind = (side.first + np.arange(len(side.labels)) - first) // lanes
        skipped = np.clip(behind, 0, end - g) if self.mirror else np.zeros_like(behind)
        if lanes == 1 and parts == 1 and self.classes < 2**4 and side.labels.shape[1] >= _WORTH_TWO:
            _histograms_of_two(side.labels, tile.labels[g:end], skipped, cells)
        elif lanes == 1:
            _histograms(side.labels, tile.labels[g:end], self.tasks.part, skipped, cells)
        else:
            _meet(side.planes, tile.planes[g:end], self.tasks.starts, skipped, cells)
            if not self.left_out:
                _put_margins(cells, side.margins, tile.margins[g:end], self.tasks.sizes, skipped)
        return cells, first, skipped


def _by_planes(rows: int, columns: int, classes: int, planes: int, tasks: Tasks) -> bool:
    """Whether planes are quicker than histograms; nanoseconds a pair as measured on a Zen 4 core."""
    if not 2 <= classes <= MOST_NARROW:
        return False
    lanes, parts, size = -(-columns // LANES) * LANES / max(columns, 1), len(tasks.sizes), int(tasks.sizes.sum())
    made = (1 / max(rows, 1) + 1 / max(columns, 1)) * (0.25 + 0.045 * classes) * size
    by_planes = made + lanes * (0.058 * int(tasks.starts[-1]) * planes**2 + 0.3 * parts * classes**2)
    one = 0.3 if parts == 1 and classes < 2**4 and size >= _WORTH_TWO else 0.45
    return bool(by_planes < one * size + 0.5 * parts * (classes + 1) ** 2)


def _each(work: Callable[[int], None], items: Iterable[int], threads: int) -> None:
    """Do the work on every item, in so many threads."""
    if threads == 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, items):
            pass


@compiled
def _add_counts(cells, i, j, columns, skipped, way, found):  # type: ignore[no-untyped-def]
    """Add to found (I, J, parts, L, L): the rows as rows, as columns, or on both sides of the diagonal."""
    rows, groups, parts, classes, width = cells.shape
    lanes = width // classes
    for r in range(rows):
        for g in range(skipped[r], groups):
            for t in range(min(lanes, columns - g * lanes)):
                p, q = i + r, j + g * lanes + t
                for h in range(parts):
                    for k in range(classes):
                        if way == _PLAIN or (way == _MIRROR and p <= q):
                            for m in range(classes):
                                found[p, q, h, k, m] += cells[r, g, h, k, m * lanes + t]
                        if way == _TURNED or (way == _MIRROR and p < q):
                            for m in range(classes):
                                found[q, p, h, m, k] += cells[r, g, h, k, m * lanes + t]


def counts(rows: Labels, columns: Labels, classes: int, part: Ints | None, parts: int, engine: Engine) -> Ints:
    """How often row i says k while column j says l on a part's tasks: (I, J, parts, L, L).

    >>> labels = np.array([[0, 1, 1, -1], [0, 1, 0, 1]])
    >>> counts(labels[:1], labels[1:], 2, None, 1, Engine())[0, 0, 0].tolist()
    [[1, 0], [1, 1]]
    """
    shape, threads = (len(rows), len(columns), parts, classes, classes), engine.threads or cores()
    if min(shape[:2]) < threads and rows.shape[1] > _LONG and 16 * threads * math.prod(shape) < engine.max_bytes:
        return _counts_of_runs(rows, columns, classes, part, parts, replace(engine, threads=threads))
    found = np.zeros(shape, dtype=np.int64)
    way = _MIRROR if rows is columns else _TURNED if len(rows) > len(columns) else _PLAIN
    if way == _TURNED:
        rows, columns = columns, rows
    for chunk in _chunks(rows.shape[1], len(columns), engine):
        x = rows[:, chunk]
        y = x if way == _MIRROR else columns[:, chunk]
        counter = Counter.of(x, y, classes, None if part is None else part[chunk], parts, way == _MIRROR)
        for tile in counter.tiles(y, engine):

            def add(side: Side, cells: Cells, j: int, skipped: Ints, end: int = tile.first + len(tile.labels)) -> None:
                if cells.shape[4] > classes:
                    _complete(cells, skipped)
                _add_counts(cells, side.first, j, end - j, skipped, way, found)

            counter.batches(x, tile, engine, add)
    return found


def _counts_of_runs(rows: Labels, columns: Labels, classes: int, part: Ints | None, parts: int, engine: Engine) -> Ints:
    """Few pairs on many tasks: each thread counts a run of the tasks, and the counts add up."""
    threads, tasks = engine.threads or 1, rows.shape[1]
    found: list[Ints] = [np.empty(0, dtype=np.int64)] * threads

    def count(k: int) -> None:
        run = slice(tasks * k // threads, tasks * (k + 1) // threads)
        x = rows[:, run]
        y = x if rows is columns else columns[:, run]
        share = replace(engine, threads=1, max_bytes=engine.max_bytes // threads)
        found[k] = counts(x, y, classes, None if part is None else part[run], parts, share)

    _each(count, range(threads), threads)
    return np.asarray(sum(found[1:], found[0]))


def _chunks(tasks: int, columns: int, engine: Engine) -> Iterator[slice]:
    """Runs of tasks: as many as stay in cache with the planes of eight columns, more where there are no planes."""
    size = max(WORD**2, min(_CHUNK if columns >= LANES else _LONG, engine.max_bytes // 64))
    return (slice(start, min(tasks, start + size)) for start in range(0, tasks, size))


@compiled
def _excess(cells, skipped, n, a, b):  # type: ignore[no-untyped-def]
    """Turn the counts into n C - a b^T in place; n (.., lanes), a (.., L, lanes), b (.., L * lanes) are their margins.

    In eight lanes the last row and column hold margins still; those of the result follow, because they sum to 0.
    """
    rows, groups, parts, classes, width = cells.shape
    for r in range(rows):
        for g in range(skipped[r], groups):
            for h in range(parts):
                c, size, own, other = cells[r, g, h], n[r, g, h], a[r, g, h], b[r, g, h]
                if width > classes:
                    _excess_from_margins(c, size, own, other)
                    continue
                size[0] = 0
                for m in range(width):
                    other[m] = 0
                for k in range(classes):
                    held = 0
                    for m in range(width):
                        held += c[k, m]
                        other[m] += c[k, m]
                    own[k, 0] = held
                    size[0] += held
                for k in range(classes):
                    for m in range(width):
                        c[k, m] = size[0] * c[k, m] - own[k, 0] * other[m]


@compiled
def _excess_from_margins(c, n, a, b):  # type: ignore[no-untyped-def]
    last = c.shape[0] - 1
    for t in range(LANES):
        n[t] = a[last, t] = b[LANES * last + t] = c[last, LANES * last + t]
        c[last, LANES * last + t] = 0
    for k in range(last):
        for t in range(LANES):
            a[k, t], b[LANES * k + t] = c[k, LANES * last + t], c[last, LANES * k + t]
            a[last, t] -= a[k, t]
            b[LANES * last + t] -= b[LANES * k + t]
            c[k, LANES * last + t] = c[last, LANES * k + t] = 0
    for k in range(last):
        for m in range(last):
            for t in range(LANES):
                c[k, LANES * m + t] = n[t] * c[k, LANES * m + t] - a[k, t] * b[LANES * m + t]
    _take_from_last(c)


def _turned_to_excess(cells: Cells, skipped: Ints, lanes: int) -> tuple[Ints, Ints, Ints]:
    """The cells become n C - a b^T; n, a and b are returned."""
    shape, classes = cells.shape[:3], cells.shape[3]
    n, a = np.empty((*shape, lanes), dtype=np.int64), np.empty((*shape, classes, lanes), dtype=np.int64)
    b = np.empty((*shape, classes * lanes), dtype=np.int64)
    _excess(cells, skipped, n, a, b)
    return n, a, b


@compiled
def _add_totals(over, n, i, j, columns, skipped, way, learned, sign, total, tasks):  # type: ignore[no-untyped-def]
    """Put <S, n C - a b^T> and n at (i, j), at (j, i), or at both. S is 1 where its source is positive."""
    rows, groups, parts, classes, width = over.shape
    lanes, held = width // classes, np.empty(width, np.int64)
    for r in range(rows):
        for g in range(skipped[r], groups):
            for h in range(parts):
                source = sign if learned == _GIVEN else over[r, g, h if learned == _PLUGIN else 1 - h]
                for m in range(width):
                    held[m] = 0
                for k in range(classes):
                    for m in range(width):
                        held[m] += over[r, g, h, k, m] if source[k, m] > 0 else 0
                for t in range(min(lanes, columns - g * lanes)):
                    summed = 0
                    for m in range(classes):
                        summed += held[m * lanes + t]
                    p, q = i + r, j + g * lanes + t
                    if way != _TURNED:
                        total[p, q, h], tasks[p, q, h] = summed, n[r, g, h, t]
                    if way != _PLAIN:
                        total[q, p, h], tasks[q, p, h] = summed, n[r, g, h, t]


def totals(
    rows: Labels, columns: Labels, classes: int, sign: Sign, half: Ints | None, engine: Engine
) -> tuple[Ints, Ints]:
    """sum_kl S(k, l) (n C(k, l) - a(k) b(l)) and n, for every pair and half: (I, J, H) each.

    >>> labels = np.array([[0, 1, 1, 0], [0, 1, 1, 1]])
    >>> totals(labels, labels, 2, "plugin", None, Engine())[0][:, :, 0].tolist()
    [[8, 4], [4, 6]]
    """
    if not 0 < rows.shape[1] <= _CHUNK:
        return _numpy.totals(rows, columns, classes, sign, half, engine, counts)
    parts, same = 1 if half is None else 2, rows is columns
    total = np.zeros((len(rows), len(columns), parts), dtype=np.int64)
    tasks = np.zeros_like(total)
    way = _TURNED if len(rows) > len(columns) else _PLAIN
    if same and (isinstance(sign, str) or bool((sign == sign.T).all())):
        way = _MIRROR
    if way == _TURNED:
        rows, columns = columns, rows
        sign = sign if isinstance(sign, str) else sign.T
    counter = Counter.of(rows, columns, classes, half, parts, way == _MIRROR)
    if not isinstance(sign, str) and not counter.left_out and len(columns) > LANES // 2 and classes <= MOST_NARROW:
        tasks[:] = rows.shape[1]
        into = total[:, :, 0].T if way == _TURNED else total[:, :, 0]
        _given(counter, rows, columns, sign, into, engine)
        return total, tasks
    learned, matrix = _source(sign, counter)
    for tile in counter.tiles(columns, engine):

        def put(side: Side, cells: Cells, j: int, skipped: Ints, end: int = tile.first + len(tile.labels)) -> None:
            n, _, _ = _turned_to_excess(cells, skipped, counter.lanes)
            _add_totals(cells, n, side.first, j, end - j, skipped, way, learned, matrix, total, tasks)

        counter.batches(rows, tile, engine, put)
    return total, tasks


def _given(
    counter: Counter, rows: Labels, columns: Labels, sign: npt.NDArray[np.generic], total: Ints, engine: Engine
) -> None:
    """With S given and dense reports no cell is needed: the planes of k, all in a row, meet those of S(k, l) = 1.

    What they share is sum_n S(f_i(n), f_j(n)), and n times that less a^T S b is the total.
    """
    said = np.zeros((2, counter.classes, counter.classes + 1), dtype=np.uint64)
    said[0, :, 1:][np.eye(counter.classes, dtype=bool)] = said[1, :, 1:][sign.astype(bool)] = _ALL
    asked = replace(counter, said=said[1])
    size, n = counter.classes * counter.tasks.starts[-1], rows.shape[1]
    for tile in asked.tiles(columns, engine):
        y, paid = tile.planes.reshape(-1, 1, size, LANES), tile.margins.reshape(-1, counter.classes)[: len(tile.labels)]

        def meet(first: int, tile: Side = tile, y: Words = y, paid: Ints = paid) -> None:
            side = replace(counter, said=said[0]).side(rows[first : first + 3 * LANES], first, 1)
            start = max(0, (first - tile.first) // LANES) if counter.mirror else 0
            if start >= len(y):
                return
            met = np.empty((1, len(y) - start, 1, len(side.labels), LANES), dtype=np.int64)
            x = side.planes.reshape(1, -1, size, 1)
            _meet(x, y[start:], np.array([0, size]), np.zeros(1, np.int64), met)
            held = paid[start * LANES :]
            shared = met[0, :, 0].swapaxes(0, 1).reshape(len(side.labels), -1)[:, : len(held)]
            found = n * shared - side.margins.reshape(-1, counter.classes) @ held.T
            i, j = slice(first, first + len(found)), tile.first + start * LANES
            total[i, j : j + len(held)] = found
            if counter.mirror:
                total[j : j + len(held), i] = found.T

        _each(meet, range(0, len(rows), 3 * LANES), engine.threads or cores())


def _source(sign: Sign, counter: Counter) -> tuple[int, Ints]:
    """How S is found, and S itself in every lane where it is given."""
    if isinstance(sign, str):
        return _PLUGIN if sign == "plugin" else _SPLIT, np.empty((0, 0), dtype=np.int64)
    return _GIVEN, np.repeat(sign.astype(np.int64), counter.lanes, axis=1)


@compiled
def _repeat(values, out):  # type: ignore[no-untyped-def]
    """The lanes' values, for every label again."""
    wide = values.size > 1
    for m in range(out.size):
        out[m] = values[m % LANES if wide else 0]


@compiled
def _sum_labels(row, out):  # type: ignore[no-untyped-def]
    """Sums over the labels, lane by lane."""
    for t in range(out.size):
        held = 0
        for m in range(t, row.size, out.size):
            held += row[m]
        out[t] = held


@compiled
def _centre(over, n, a, b, j, skip, learned, sign, border, tables):  # type: ignore[no-untyped-def]
    """(psi - mean psi) / N of every cell, as `_numpy.centred`, in tables (rows, columns, parts, L, L) with a border."""
    rows, groups, parts, classes, width = over.shape
    lanes, across = width // classes, np.empty((classes, width // classes), np.int64)
    expected, total = np.empty(lanes, np.int64), np.empty(lanes, np.int64)
    own, down, kept = np.empty(width, np.int64), np.empty(width, np.int64), np.empty(width, np.int64)
    held, whole = np.empty(width, np.int64), np.empty(width, np.int64)
    for r in range(rows):
        for g in range(groups):
            for h in range(parts):
                source = sign[h] if learned == _GIVEN else over[r, g, h if learned == _PLUGIN else 1 - h]
                size = n[r, g, h]
                for m in range(width):
                    down[m] = held[m] = 0
                for t in range(lanes):
                    expected[t] = 0
                for k in range(classes):
                    _repeat(a[r, g, h, k], own)
                    for m in range(width):
                        paid = source[k, m] > 0
                        down[m] += own[m] if paid else 0
                        held[m] += over[r, g, h, k, m] if paid else 0
                        kept[m] = b[r, g, h, m] if paid else 0
                    _sum_labels(kept, across[k])
                    for t in range(lanes):
                        expected[t] += a[r, g, h, k, t] * across[k, t]
                _sum_labels(held, total)
                _repeat(size, whole)
                for k in range(classes):
                    for t in range(lanes):
                        across[k, t] = expected[t] - total[t] - size[t] * across[k, t]
                    _repeat(across[k], own)
                    for m in range(width):
                        one = whole[m] if source[k, m] > 0 else 0
                        kept[m] = own[m] + whole[m] * (one - down[m])
                    for t in range(min(lanes, tables.shape[1] - g * lanes)):
                        both = 0
                        for other in range(parts):
                            both += n[r, g, other, t]
                        if size[t] >= 2 and j + g * lanes + t != skip[r]:
                            share = 1.0 / (float(size[t]) * float(size[t]) * float(both))
                            for m in range(classes):
                                tables[r, g * lanes + t, h, k + border, m + border] = kept[m * lanes + t] * share


@compiled
def _differ(over, j, skip, learned, usual, found):  # type: ignore[no-untyped-def]
    """Which pairs (rows, columns) have another sign than the usual one, or are not to be counted at all."""
    rows, groups, parts, classes, width = over.shape
    lanes, other = width // classes, np.empty(width, np.int64)
    for r in range(rows):
        for g in range(groups):
            for m in range(width):
                other[m] = 0
            for h in range(parts):
                source = over[r, g, h if learned == _PLUGIN else 1 - h]
                for k in range(classes):
                    for m in range(width):
                        other[m] |= np.int64(source[k, m] > 0) ^ usual[h, k, m]
            for t in range(min(lanes, found.shape[1] - g * lanes)):
                differs = j + g * lanes + t == skip[r]
                for m in range(t, width, lanes):
                    differs |= other[m] != 0
                found[r, g * lanes + t] = differs


@compiled
def _bases(labels, part, border, width, deep, base):  # type: ignore[no-untyped-def]
    """Where a row's part of a table starts, for what it says on each task; a table has `deep` entries a label."""
    for n in range(labels.size):
        base[n] = (labels[n] + border) * deep
    for n in range(part.size):
        base[n] += part[n] * width * deep


@compiled
def _look_up(rows, columns, part, border, tables, found):  # type: ignore[no-untyped-def]
    """Add tables[r, c, part(n), row_r(n), column_c(n)]; a label is moved by the border."""
    tasks, width = rows.shape[1], tables.shape[-1]
    base = np.empty(tasks, np.uint32)
    for r in range(len(rows)):
        _bases(rows[r], part, border, width, width, base)
        for n in range(tasks):
            base[n] += border
        held, last = found[r], len(columns) // 2 * 2
        for c in range(0, last, 2):
            t0, t1, c0, c1 = tables[r, c].ravel(), tables[r, c + 1].ravel(), columns[c], columns[c + 1]
            for n in range(tasks):
                held[n] += t0[np.uint64(base[n] + c0[n])] + t1[np.uint64(base[n] + c1[n])]
        if last < len(columns):
            t0, c0 = tables[r, last].ravel(), columns[last]
            for n in range(tasks):
                held[n] += t0[np.uint64(base[n] + c0[n])]


@compiled
def _look_up_some(rows, columns, chosen, part, tables, found):  # type: ignore[no-untyped-def]
    """As `_look_up` without a border, for the chosen (rows, columns) only."""
    tasks, width = rows.shape[1], tables.shape[-1]
    base = np.empty(tasks, np.uint32)
    for r in range(len(rows)):
        held = found[r]
        _bases(rows[r], part, 0, width, width, base)
        for c in range(len(columns)):
            if chosen[r, c]:
                table, column = tables[r, c].ravel(), columns[c]
                for n in range(tasks):
                    held[n] += table[np.uint64(base[n] + column[n])]


@compiled
def _sum_tables(one, two, out):  # type: ignore[no-untyped-def]
    """Tables of what two columns say (Q, W), as one table of what both say (Q, W * W)."""
    width = one.shape[1]
    for q in range(len(one)):
        for m in range(width):
            for k in range(width):
                out[q, m * width + k] = one[q, m] + two[q, k]


@compiled
def _look_up_folded(rows, codes, part, border, fold, tables, found):  # type: ignore[no-untyped-def]
    """As `_look_up`, where a byte stands for what two or four columns say: one table of all, fewer look-ups."""
    tasks, (deep, width) = rows.shape[1], tables.shape[2:]
    few = width if fold == 2 else width * width
    base, pair, every = np.empty(tasks, np.uint32), np.empty((2, deep, few)), np.empty((4, deep, few * few))
    t0, t1, t2, t3 = every[0].ravel(), every[1].ravel(), every[2].ravel(), every[3].ravel()
    for r in range(len(rows)):
        _bases(rows[r], part, border, width, few * few, base)
        held = found[r]
        for c in range(0, len(codes), 4):
            for d in range(4):
                each = tables[r, (c + d) * fold : (c + d + 1) * fold]
                if fold == 2:
                    _sum_tables(each[0], each[1], every[d])
                else:
                    _sum_tables(each[0], each[1], pair[0])
                    _sum_tables(each[2], each[3], pair[1])
                    _sum_tables(pair[0], pair[1], every[d])
            c0, c1, c2, c3 = codes[c], codes[c + 1], codes[c + 2], codes[c + 3]
            for n in range(tasks):
                at = np.uint64(base[n])
                low = t0[at + np.uint64(c0[n])] + t1[at + np.uint64(c1[n])]
                held[n] += low + (t2[at + np.uint64(c2[n])] + t3[at + np.uint64(c3[n])])


def phi(
    rows: Labels, columns: Labels, classes: int, sign: Sign, half: Ints | None, skip: Ints | None, engine: Engine
) -> tuple[Ints, Ints, Floats]:
    """The totals, and for each row and task the sum over columns of (psi - mean psi) / N. See `verax.kernels.phi`.

    >>> labels = np.array([[0, 1, 1, 0], [0, 1, 1, 1]])
    >>> phi(labels[:1], labels[1:], 2, "plugin", None, None, Engine())[2].tolist()
    [[0.125, 0.0, 0.0, -0.125]]
    """
    if not 0 < rows.shape[1] <= _CHUNK:
        return _numpy.phi(rows, columns, classes, sign, half, skip, engine, counts, sums)
    parts = 1 if half is None else 2
    skip = np.full(len(rows), -1) if skip is None else skip.astype(np.int64)
    counter = Counter.of(rows, columns, classes, half, parts)
    learned, matrix = _source(sign, counter)
    total = np.zeros((len(rows), len(columns), parts), dtype=np.int64)
    tasks = np.zeros_like(total)
    border = int(counter.left_out)
    width = classes + border
    fold = _fold(rows.shape[1], width, parts) if counter.lanes > 1 else 1
    usual, found = None, np.zeros(rows.shape)
    if learned != _GIVEN and not counter.left_out and len(columns) >= _WORTH_USUAL:
        usual, found = _usual(rows, columns, classes, learned == _PLUGIN, half, engine)
    same = None if usual is None else np.repeat(usual, counter.lanes, axis=2)
    for tile in counter.tiles(columns, engine):
        codes = _codes(tile.labels, fold, width, border)

        def add(side: Side, cells: Cells, j: int, skipped: Ints, tile: Side = tile, codes: Codes = codes) -> None:
            start, end = j - tile.first, min(len(tile.labels), j - tile.first + cells.shape[1] * counter.lanes)
            who, most = slice(side.first, side.first + len(side.labels)), -(-(end - start) // (4 * fold)) * 4 * fold
            n, a, b = _turned_to_excess(cells, skipped, counter.lanes)
            stop = tile.first + end - j
            _add_totals(cells, n, side.first, j, stop, skipped, _PLAIN, learned, matrix, total, tasks)
            few = np.ones((len(side.labels), end - start), dtype=np.bool_)
            if same is not None:
                _differ(cells, j, skip[who], learned, same, few)
                if not few.any():
                    return
            tables = np.zeros((len(side.labels), most, parts, width, width))
            _centre(cells, n, a, b, j, skip[who], learned, matrix[None], border, tables[:, : end - start])
            if same is not None:
                counted = np.zeros_like(tables)
                _centre(cells, n, a, b, j, np.full_like(skip[who], -1), _GIVEN, same, border, counted[:, : end - start])
                tables -= counted
            if few.mean() < _FEW_DIFFER:
                _look_up_some(side.labels, tile.labels[start:end], few, counter.tasks.part, tables, found[who])
            elif fold > 1:
                some, flat = codes[start // fold : (start + most) // fold], tables.reshape(len(tables), most, -1, width)
                _look_up_folded(side.labels, some, counter.tasks.part, border, fold, flat, found[who])
            else:
                _look_up(side.labels, tile.labels[start:end], counter.tasks.part, border, tables, found[who])

        counter.batches(rows, tile, engine, add)
    return total, tasks, found


def _usual(
    rows: Labels, columns: Labels, classes: int, here: bool, half: Ints | None, engine: Engine
) -> tuple[Ints | None, Floats]:
    """The sign that all pairs together have in each half, and phi if every pair had it; none where few of them do.

    Classifiers that are right more often than not mostly share one sign, and a sum over columns with one sign needs
    only how many said what. What is left to look up are the pairs that have another.
    """
    parts = [np.arange(rows.shape[1])] if half is None else [np.nonzero(half == h)[0] for h in (0, 1)]
    tallies = [per_task.tallies(columns[:, at], classes, engine)[0].astype(np.float64) for at in parts]
    pooled = np.stack([_pooled_sign(said) for said in tallies])
    usual = pooled if here else np.ascontiguousarray(pooled[::-1])
    some, beside = rows[:: max(1, len(rows) // 8)], columns[:: max(1, len(columns) // 64)]
    over = _numpy.excess(counts(some, beside, classes, half, len(parts), engine)) > 0
    if (over == pooled).all((2, 3, 4)).mean() < 0.5:
        return None, np.zeros(rows.shape)
    found = np.zeros(rows.shape)
    for at, said, matrix in zip(parts, tallies, usual, strict=True):
        if len(at) < 2:
            continue
        weight = per_task.times(said, matrix.T)
        for i in range(0, len(rows), step := max(1, engine.max_bytes // (64 * len(at)))):
            labels = rows[i : i + step, at]
            held = per_task.tallies(labels, classes, engine)[1]
            rest = np.broadcast_to(said.sum(0), held.shape)
            terms = per_task.centre(len(at), held, rest, matrix, False)
            psi = per_task.influence(labels, weight, said, *terms)
            psi -= psi[:, :1].copy()  # a psi that never changes has no spread, whatever its size
            found[i : i + step, at] = (psi - psi.mean(1, keepdims=True)) / rows.shape[1]
    return usual, found


def _pooled_sign(said: Floats) -> Ints:
    """Where the excess of all pairs together is above 0; any sign would do, this one is likely."""
    held = said.sum(0)
    return (len(said) * (said.T @ said) > np.outer(held, held)).astype(np.int64)


def _fold(tasks: int, width: int, parts: int) -> int:
    """How many columns one byte stands for: as many as keep the tables small beside the tasks."""
    return next((f for f in (4, 2) if width**f <= 2**8 and parts * width ** (f + 1) <= min(2**12, tasks // 2)), 1)


def _codes(labels: Labels, fold: int, width: int, border: int) -> Codes:
    """What every so many columns say, as one byte; four more at the end, so that four can be read at any."""
    if fold == 1:
        return np.empty((0, labels.shape[1]), dtype=np.uint8)
    codes = np.zeros((-(-len(labels) // fold) + 4, labels.shape[1]), dtype=np.uint8)
    for k in range(fold):
        said = labels[k::fold]
        codes *= np.uint8(width)
        codes[: len(said)] += (said + border).astype(np.uint8)
    return codes


def sums(rows: Labels, columns: Labels, tables: Floats, part: Ints | None, engine: Engine) -> Floats:
    """Sum over the columns j of tables[i, j, part(n), row_i(n), column_j(n)], for every row and task: (I, N).

    >>> tables = np.array([[[[[3., 4.], [5., 6.]]]]])
    >>> sums(np.array([[0, 1, -1]]), np.array([[0, 0, 0]]), tables, None, Engine()).tolist()
    [[3.0, 5.0, 0.0]]
    """
    found = np.zeros(rows.shape)
    parts = np.empty(0, dtype=np.int64) if part is None else np.ascontiguousarray(part, dtype=np.int64)
    x, y = narrow(rows, tables.shape[-1]), narrow(columns, tables.shape[-1])
    step = max(1, min(len(columns), int(engine.max_bytes // 2 // max(1, tables[:1, :1].nbytes))))

    def add(i: int) -> None:
        for j in range(0, len(columns), step):
            bordered = np.pad(tables[i : i + 1, j : j + step], ((0, 0), (0, 0), (0, 0), (1, 0), (1, 0)))
            _look_up(x[i : i + 1], y[j : j + step], parts, 1, bordered, found[i : i + 1])

    _each(add, range(len(rows)), engine.threads or cores())
    return found
