"""Pairs counted in machine code: bit planes for few labels, histograms for many; it counts and reduces, nothing more.

A label's *plane* has one bit a task, set where the agent says it. How often i says k while j says l is the number
of bits that two planes share: AND, then popcount. Eight columns stand side by side in the lanes of a vector, so one
word of the row meets eight columns at once and no sum ever crosses lanes. The last label needs no plane: its cells
follow from the margins. Where a task was left out, a plane of the tasks answered takes the last label's place and
gives the margins of the common tasks.

Both ways leave the counts of some rows and groups of columns in `cells` (rows, groups, parts, L, L * lanes), with
eight lanes or one. They never leave the core's cache: totals or tables are made of them before the next come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic

from verax.kernels import Engine, Floats, Ints, Labels, Sign, _numpy, cores
from verax.kernels._compiled import compiled

cgutils: Any = untyped_cgutils

LANES = 8
_WORD = 64
_SIDE = 3  # planes of a block: nine sums stay in registers
_ROWS = 8  # met with a group before the next group comes
_CACHE = 2**19  # bytes of counts made at once
_CHUNK = 2**17  # tasks whose planes are made at once
_MOST_NARROW = 127  # labels that fit int8
_ALL = np.uint64(2**64 - 1)
_GIVEN, _PLUGIN, _SPLIT = 0, 1, 2
_PLAIN, _MIRROR, _TURNED = 0, 1, 2

Words = npt.NDArray[np.uint64]
Cells = npt.NDArray[np.int64]
Work = Callable[["Side", Cells, int, Ints], None]

# Vectors. LLVM turns them into whatever the processor has: vpopcntq, or table look-ups in a byte shuffle.

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_LANE = ir.VectorType(_I64, LANES)


def _popcount(builder: Any, value: Any, name: str) -> Any:
    kind = ir.FunctionType(value.type, [value.type])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.ctpop.{name}"), [value])


def _load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = align
    return loaded


def _spread(builder: Any, value: Any, lanes: int) -> Any:
    """The value in every lane."""
    empty = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes))


def _at(builder: Any, start: Any, stride: Any, plane: int, word: Any, size: int) -> Any:
    """The address of a word of a plane."""
    index = builder.add(builder.mul(stride, ir.Constant(_I64, plane)), word)
    return builder.add(start, builder.mul(index, ir.Constant(_I64, size)))


def _block(builder: Any, height: int, width: int, args: tuple[Any, ...]) -> None:
    """Meet `height` planes of a row with `width` planes of eight columns; every sum stays in a register."""
    row, columns, stride, words, out, out_stride = args
    cells = [(k, m) for k in range(height) for m in range(width)]
    sums = {cell: cgutils.alloca_once(builder, _LANE) for cell in cells}
    for each in sums.values():
        builder.store(ir.Constant(_LANE, [0] * LANES), each)
    with cgutils.for_range(builder, words) as loop:
        y = [_load(builder, _at(builder, columns, stride, m, loop.index, 8 * LANES), _LANE, 8) for m in range(width)]
        for k in range(height):
            word = _load(builder, _at(builder, row, stride, k, loop.index, 8), _I64, 8)
            x = _spread(builder, word, LANES)
            for m in range(width):
                met = _popcount(builder, builder.and_(x, y[m]), "v8i64")
                builder.store(builder.add(builder.load(sums[k, m]), met), sums[k, m])
    for k, m in cells:
        cell = _at(builder, out, out_stride, k, ir.Constant(_I64, m), 8 * LANES)
        old = _load(builder, cell, _LANE, 8)
        new = builder.store(builder.add(old, builder.load(sums[k, m])), builder.inttoptr(cell, _LANE.as_pointer()))
        new.align = 8


def _meet_planes(
    _: Any, height: Any, width: Any, row: Any, columns: Any, stride: Any, words: Any, out: Any, out_stride: Any
) -> Any:
    """Add what planes (height of the row, width of the columns) share to the cells at `out`; addresses throughout."""

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        for k in range(1, _SIDE + 1):
            for m in range(1, _SIDE + 1):
                tall = builder.icmp_signed("==", args[0], ir.Constant(_I64, k))
                wide = builder.icmp_signed("==", args[1], ir.Constant(_I64, m))
                with builder.if_then(builder.and_(tall, wide)):
                    _block(builder, k, m, tuple(args[2:]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), code


def _says(_: Any, line: Any, label: Any) -> Any:
    """Which of the 64 labels (int8) at the address are this one, as the bits of a word."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        held = _load(builder, args[0], ir.VectorType(_I8, _WORD), 1)
        asked = _spread(builder, builder.trunc(args[1], _I8), _WORD)
        return builder.bitcast(builder.icmp_signed("==", held, asked), _I64)

    return types.uint64(types.int64, types.int64), code


def _ones(_: Any, word: Any) -> Any:
    """How many bits of the word are set."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _popcount(builder, args[0], "i64")

    return types.int64(types.uint64), code


meet_planes: Any = intrinsic(_meet_planes)
says: Any = intrinsic(_says)
ones: Any = intrinsic(_ones)


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
        starts = np.concatenate([[0], np.cumsum(-(-sizes // _WORD))])
        if part is None:
            return cls(np.empty(0, np.int32), starts, sizes, np.empty(0, np.int64))
        order = np.full(starts[-1] * _WORD, -1, dtype=np.int32)
        before = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        order[np.arange(tasks) + np.repeat(starts[:-1] * _WORD - before, sizes)] = np.argsort(part, kind="stable")
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
    height, width, words, stride = x.shape[1], y.shape[1], x.shape[2], cells.shape[4] // 8
    step, tall, broad = max(8, 320 // width), (height + 2) // 3, (width + 2) // 3
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
                                below - k, after - m, row + 8 * (k * words + first), columns + 64 * (m * words + first),
                                words, count, out + 64 * (k * stride + m), stride,
                            )  # fmt: skip


@compiled
def _complete(cells, rows, columns, sizes, dense, skipped):  # type: ignore[no-untyped-def]
    """The last label's cells from the margins: the agents' own where reports are dense, else met by the last plane."""
    last = cells.shape[3] - 1
    for r in range(cells.shape[0]):
        for g in range(skipped[r], cells.shape[1]):
            for h in range(cells.shape[2]):
                c = cells[r, g, h]
                if dense:
                    for k in range(last):
                        for t in range(8):
                            c[k, 8 * last + t] = rows[r, 0, h, k]
                            c[last, 8 * k + t] = columns[g, t, h, k]
                    for t in range(8):
                        c[last, 8 * last + t] = sizes[h]
                for k in range(last):
                    for t in range(8):
                        c[last, 8 * last + t] -= c[k, 8 * last + t]
                    for m in range(last):
                        for t in range(8):
                            c[k, 8 * last + t] -= c[k, 8 * m + t]
                            c[last, 8 * m + t] -= c[k, 8 * m + t]
                for m in range(last):
                    for t in range(8):
                        c[last, 8 * last + t] -= c[last, 8 * m + t]


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


@dataclass(frozen=True)
class Counter:
    """How the pairs of some tasks are counted, and the columns they are counted with."""

    tasks: Tasks
    classes: int
    said: Words  # what each plane says; none: histograms count
    mirror: bool  # the columns are the rows: pairs below the diagonal are not counted

    @classmethod
    def of(cls, rows: Labels, columns: Labels, classes: int, part: Ints | None, parts: int) -> Counter:
        """The quicker way for these reports; both give the same."""
        tasks = Tasks.of(part, parts, rows.shape[1])
        left_out = bool(rows.min(initial=0) < 0 or columns.min(initial=0) < 0)
        said = np.zeros((classes - 1 + left_out, classes + 1), dtype=np.uint64)
        said[np.arange(classes - 1), np.arange(1, classes)] = _ALL
        if left_out:
            said[-1, 1:] = _ALL
        if not _by_planes(len(columns), classes, len(said), tasks):
            said = said[:0]
        return cls(tasks, classes, said, rows is columns)

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
        narrow: Labels = np.ascontiguousarray(labels, dtype=np.int8 if self.classes <= _MOST_NARROW else np.int32)
        return Side.of(narrow, first, self.tasks, self.said, lanes)

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
        if lanes == 1:
            _histograms(side.labels, tile.labels[g:end], self.tasks.part, skipped, cells)
        else:
            _meet(side.planes, tile.planes[g:end], self.tasks.starts, skipped, cells)
            dense = len(self.said) < self.classes
            _complete(cells, side.margins, tile.margins[g:end], self.tasks.sizes, dense, skipped)
        return cells, first, skipped


def _by_planes(columns: int, classes: int, planes: int, tasks: Tasks) -> bool:
    """Whether planes are quicker than histograms; nanoseconds a pair as measured on a Zen 4 core."""
    if not 2 <= classes <= _MOST_NARROW:
        return False
    lanes, parts = -(-columns // LANES) * LANES / max(columns, 1), len(tasks.sizes)
    by_planes = lanes * (0.058 * int(tasks.starts[-1]) * planes**2 + 0.3 * parts * classes**2)
    return bool(by_planes < 0.45 * int(tasks.sizes.sum()) + 0.5 * parts * (classes + 1) ** 2)


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
                a, b = i + r, j + g * lanes + t
                for h in range(parts):
                    for k in range(classes):
                        for m in range(classes):
                            met = cells[r, g, h, k, m * lanes + t]
                            if way == 0 or (way == 1 and a <= b):
                                found[a, b, h, k, m] += met
                            if way == 2 or (way == 1 and a < b):
                                found[b, a, h, m, k] += met


def counts(rows: Labels, columns: Labels, classes: int, part: Ints | None, parts: int, engine: Engine) -> Ints:
    """How often row i says k while column j says l on a part's tasks: (I, J, parts, L, L).

    >>> labels = np.array([[0, 1, 1, -1], [0, 1, 0, 1]])
    >>> counts(labels[:1], labels[1:], 2, None, 1, Engine())[0, 0, 0].tolist()
    [[1, 0], [1, 1]]
    """
    found = np.zeros((len(rows), len(columns), parts, classes, classes), dtype=np.int64)
    way = _MIRROR if rows is columns else _TURNED if len(rows) > len(columns) else _PLAIN
    if way == _TURNED:
        rows, columns = columns, rows
    for chunk in _chunks(rows.shape[1], engine):
        x = rows[:, chunk]
        y = x if way == _MIRROR else columns[:, chunk]
        counter = Counter.of(x, y, classes, None if part is None else part[chunk], parts)
        for tile in counter.tiles(y, engine):

            def add(side: Side, cells: Cells, j: int, skipped: Ints, end: int = tile.first + len(tile.labels)) -> None:
                _add_counts(cells, side.first, j, end - j, skipped, way, found)

            counter.batches(x, tile, engine, add)
    return found


def _chunks(tasks: int, engine: Engine) -> Iterator[slice]:
    """Runs of tasks."""
    size = max(_WORD**2, min(_CHUNK, engine.max_bytes // 64))
    return (slice(start, min(tasks, start + size)) for start in range(0, tasks, size))


def totals(
    rows: Labels, columns: Labels, classes: int, sign: Sign, half: Ints | None, engine: Engine
) -> tuple[Ints, Ints]:
    """sum_kl S(k, l) (n C(k, l) - a(k) b(l)) and n, for every pair and half: (I, J, H) each."""
    return _numpy.totals(rows, columns, classes, sign, half, engine, counts)


def phi(
    rows: Labels, columns: Labels, classes: int, sign: Sign, half: Ints | None, skip: Ints | None, engine: Engine
) -> Floats:
    """For each row and task the sum over columns of (psi - mean psi) / N: (I, N)."""
    return _numpy.phi(rows, columns, classes, sign, half, skip, engine, counts, sums)


def sums(rows: Labels, columns: Labels, tables: Floats, part: Ints | None, engine: Engine) -> Floats:
    """Sum over the columns j of tables[i, j, part(n), row_i(n), column_j(n)], for every row and task: (I, N)."""
    return _numpy.sums(rows, columns, tables, part, engine)
