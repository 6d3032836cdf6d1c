"""Agents that stand ready to meet others, and the meeting: bit planes for few labels, histograms for many.

A label's *plane* has one bit a task, set where the agent says it. How often i says k while j says l is the number
of bits that two planes share: AND, then popcount. Eight columns stand side by side in the lanes of a vector, so one
word of the row meets eight columns at once and no sum ever crosses lanes. The last label needs no plane: its cells
follow from the margins. Where a task was left out, a plane of the tasks answered takes the last label's place and
gives the margins of the common tasks.

Both ways leave the counts of some rows and groups of columns in `cells` (rows, groups, parts, L, L * lanes), with
eight lanes or one, and in eight lanes with margins in the place of the last label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from verax.kernels import Ints, Labels
from verax.kernels._compiled import I64, WORD, cgutils, compiled, in_all, load, ones, popcount, says

LANES = 8
_SIDE = 3  # planes of a block: nine sums stay in registers
_L1_WORDS = 320  # of eight columns that stay in the innermost cache
_RUN = 2**12  # tasks of a histogram whose numbers stay in the innermost cache

Words = npt.NDArray[np.uint64]

_LANE = ir.VectorType(I64, LANES)


def _word_address(builder: Any, start: Any, stride: Any, plane: int, word: Any, size: int) -> Any:
    """The address of a word of a plane."""
    index = builder.add(builder.mul(stride, ir.Constant(I64, plane)), word)
    return builder.add(start, builder.mul(index, ir.Constant(I64, size)))


def _meet_block(builder: Any, height: int, width: int, args: tuple[Any, ...]) -> None:
    """Meet `height` planes of a row with `width` planes of eight columns; every sum stays in a register."""
    row, columns, stride, words, out, out_stride = args
    cells = [(k, m) for k in range(height) for m in range(width)]
    sums = {cell: cgutils.alloca_once(builder, _LANE) for cell in cells}
    for each in sums.values():
        builder.store(ir.Constant(_LANE, [0] * LANES), each)
    with cgutils.for_range(builder, words) as loop:
        eight = (_word_address(builder, columns, stride, m, loop.index, 8 * LANES) for m in range(width))
        y = [load(builder, address, _LANE, 8) for address in eight]
        for k in range(height):
            word = load(builder, _word_address(builder, row, stride, k, loop.index, 8), I64, 8)
            x = in_all(builder, word, LANES)
            for m in range(width):
                met = popcount(builder, builder.and_(x, y[m]), "v8i64")
                builder.store(builder.add(builder.load(sums[k, m]), met), sums[k, m])
    for k, m in cells:
        cell = _word_address(builder, out, out_stride, k, ir.Constant(I64, m), 8 * LANES)
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
                    _meet_block(builder, k, m, tuple(args[2:]))
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
            _make_planes(labels, said, tasks.order, tasks.starts, planes, margins)
        return cls(labels, first, planes, margins, lanes)


@compiled
def _make_planes(labels, said, order, starts, planes, margins):  # type: ignore[no-untyped-def]
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
def meet(x, y, starts, skipped, cells):  # type: ignore[no-untyped-def]
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
def put_margins(cells, rows, columns, sizes, skipped):  # type: ignore[no-untyped-def]
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
def complete_cells(cells, skipped):  # type: ignore[no-untyped-def]
    """Turn margins in the last row and column into the last label's counts."""
    last = cells.shape[3] - 1
    for r in range(cells.shape[0]):
        for g in range(skipped[r], cells.shape[1]):
            for h in range(cells.shape[2]):
                c = cells[r, g, h]
                for k in range(last):
                    for t in range(LANES):
                        c[last, LANES * last + t] -= c[k, LANES * last + t]
                take_from_last(c)


@compiled
def take_from_last(c):  # type: ignore[no-untyped-def]
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
def histograms(rows, columns, part, skipped, cells):  # type: ignore[no-untyped-def]
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
def histograms_of_two(rows, columns, skipped, cells):  # type: ignore[no-untyped-def]
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
