"""The per-task sums compiled: counters packed in words, masked sums for few labels, and one fused pass for the spread.

For few labels nothing is looked up: the column of each label is added where a mask says that it was chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from verax.kernels import Engine, Floats, Ints, Labels
from verax.kernels import _compiled as llvm
from verax.kernels._compiled import WORD, compiled, narrow, ones, says
from verax.kernels._numpy_tasks import influence as influence

_BLOCK, _BATCH = 256, 64
_LANES = 32  # tasks that masks are made for at once
_STAY = 1024  # tasks whose columns stay in the core's cache
_FEW = 24  # labels for which masks are quicker than look-ups
_LINE = 64  # bytes of a cache line
_DOUBLE = ir.DoubleType()


def tallies(labels: Labels, classes: int, engine: Engine) -> tuple[Ints, Ints]:
    """See `verax.kernels.tallies`."""
    labels = narrow(labels, classes)
    said = np.zeros((labels.shape[1], classes), dtype=np.int64)
    held = np.zeros((labels.shape[0], classes), dtype=np.int64)
    (_tally_in_words if classes <= 10 else _tally_one_by_one)(labels, said, held)
    return said, held


@compiled
def _tally_in_words(labels, said, held):  # type: ignore[no-untyped-def]
    """Ten counters of six bits in a word a task, emptied before any can run over; and the bits of 64 tasks an agent."""
    agents, tasks = labels.shape
    classes, words = held.shape[1], tasks // WORD
    counters, line = np.zeros(tasks, np.uint64), np.full(WORD, -1, np.int8)
    one, low = np.uint64(1), np.uint64(63)
    for i in range(agents):
        row, own = labels[i], held[i]
        for n in range(tasks):
            counters[n] += one << np.uint64(np.uint8(6) * np.uint8(row[n]))
        for w in range(words):
            for k in range(classes):
                own[k] += ones(says(row.ctypes.data + WORD * w, k))
        for n in range(tasks - WORD * words):
            line[n] = row[WORD * words + n]
        for k in range(classes):
            own[k] += ones(says(line.ctypes.data, k))
        if i % 63 == 62 or i == agents - 1:
            for n in range(tasks):
                for k in range(classes):
                    said[n, k] += np.int64((counters[n] >> np.uint64(6 * k)) & low)
                counters[n] = 0


@compiled
def _tally_one_by_one(labels, said, held):  # type: ignore[no-untyped-def]
    agents, tasks = labels.shape
    for i in range(agents):
        for n in range(tasks):
            k = labels[i, n]
            said[n, k] += 1
            held[i, k] += 1


def _aligned_columns(table: npt.NDArray[Any], kind: type[np.generic]) -> npt.NDArray[Any]:
    """The columns of a table (N, L) as rows, each from the start of a cache line; they may be longer than N."""
    tasks, classes = table.shape
    size = np.dtype(kind).itemsize
    width = -(-tasks // _LINE) * _LINE
    held = np.zeros(classes * width + _LINE // size, dtype=kind)
    first = -held.ctypes.data % _LINE // size
    found = held[first : first + classes * width].reshape(classes, width)
    found[:, :tasks] = table.T
    return found


def weighed(labels: Labels, table: Ints, engine: Engine) -> Ints:
    """See `verax.kernels.weighed`."""
    classes = table.shape[1]
    labels, found = narrow(labels, classes), np.zeros(len(labels) + 1, dtype=np.int64)
    if classes <= _FEW and table.min(initial=0) >= 0 and table.max(initial=0) < 2**31 // (_STAY // _LANES):
        _weighed_by_masks(labels, _aligned_columns(table, np.int32), found)
    else:
        _weighed_by_look_up(labels, np.ascontiguousarray(table).ravel(), classes, found)
    return found[:-1]


@compiled
def _weighed_by_look_up(labels, flat, classes, found):  # type: ignore[no-untyped-def]
    agents, tasks = labels.shape
    for i in range(agents):
        row, total = labels[i], 0
        for n in range(tasks):
            total += flat[np.uint32(n) * np.uint32(classes) + np.uint32(row[n])]
        found[i] = total


def _weigh_two_agents(
    _: Any, line: Any, step: Any, columns: Any, stride: Any, classes: Any, words: Any, found: Any
) -> Any:
    """Add up columns[label] (int32) of two agents, the second a step after the first; addresses throughout."""
    held, sums = ir.VectorType(llvm.I8, _LANES), ir.VectorType(llvm.I32, _LANES)

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        line, step, columns, stride, classes, words, found = args
        both = [llvm.cgutils.alloca_once(builder, sums) for _ in range(2)]
        for each in both:
            builder.store(ir.Constant(sums, [0] * _LANES), each)
        with llvm.cgutils.for_range(builder, words) as loop:
            at = builder.add(line, builder.mul(loop.index, llvm.whole(_LANES)))
            labels = [llvm.load(builder, start, held, 1) for start in (at, builder.add(at, step))]
            here = builder.add(columns, builder.mul(loop.index, llvm.whole(4 * _LANES)))
            with llvm.cgutils.for_range(builder, classes) as label:
                column = llvm.load(builder, builder.add(here, builder.mul(label.index, stride)), sums, 4)
                for chosen, each in zip(labels, both, strict=True):
                    old, mask = builder.load(each), llvm.is_label(builder, chosen, label.index, _LANES)
                    builder.store(builder.select(mask, builder.add(old, column), old), each)
        for q, each in enumerate(both):
            wide = builder.zext(builder.load(each), ir.VectorType(llvm.I64, _LANES))
            total = llvm.call(builder, f"llvm.vector.reduce.add.v{_LANES}i64", llvm.I64, wide)
            _add_at(builder, builder.add(found, llvm.whole(8 * q)), total, builder.add)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), code


def _add_at(builder: Any, address: Any, value: Any, add: Any) -> None:
    where = builder.inttoptr(address, value.type.as_pointer())
    builder.store(add(builder.load(where), value), where)


weigh: Any = intrinsic(_weigh_two_agents)


@compiled
def _weighed_by_masks(labels, columns, found):  # type: ignore[no-untyped-def]
    """Two agents at a time; `found` has a place more, for the second of the last."""
    (agents, tasks), (classes, width) = labels.shape, columns.shape
    for begin in range(0, tasks, _STAY):
        end = min(tasks, begin + _STAY)
        words = (end - begin) // _LANES
        for i in range(0, agents, 2):
            more = min(2, agents - i)
            line, step = labels.ctypes.data + i * tasks + begin, tasks * (more - 1)
            at = columns.ctypes.data + 4 * begin
            weigh(line, step, at, 4 * width, classes, words, found.ctypes.data + 8 * i)
            for b in range(more):
                total = 0
                for n in range(begin + _LANES * words, end):
                    total += columns[labels[i + b, n], n]
                found[i + b] += total


def spread(
    labels: Labels, weight: Floats, said: Floats, share: Floats, shift: Floats, engine: Engine
) -> tuple[Floats, Floats]:
    """See `verax.kernels.spread`."""
    labels, total, square = narrow(labels, weight.shape[1]), np.zeros(len(labels)), np.zeros(len(labels))
    if labels.shape[1]:
        columns = _aligned_columns(said, np.float64)
        if weight.shape[1] <= _FEW:
            own = columns if weight is said else _aligned_columns(weight, np.float64)
            share, shift = np.ascontiguousarray(share), np.ascontiguousarray(shift)
            _spread_by_masks(labels, own, columns, share, shift, total, square)
        else:
            _spread_by_look_up(labels, np.ascontiguousarray(weight).ravel(), columns, share, shift, total, square)
    return total, square


def _psi_of_words(
    _: Any, line: Any, weight: Any, said: Any, stride: Any, share: Any, shift: Any, classes: Any, words: Any,
    first: Any, found: Any,
) -> Any:  # fmt: skip
    """Add up psi less its first value, and its squares, over so many words of tasks of one agent; addresses."""
    held, lane = ir.VectorType(llvm.I8, _LANES), ir.VectorType(_DOUBLE, _LANES)
    none, fused = ir.Constant(lane, [0.0] * _LANES), {"flags": ("contract",)}

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        line, weight, said, stride, share, shift, classes, words, first, found = args
        one, two, psi = (llvm.cgutils.alloca_once(builder, lane) for _ in range(3))
        builder.store(none, one)
        builder.store(none, two)
        start = llvm.in_all(builder, builder.fneg(first), _LANES)
        with llvm.cgutils.for_range(builder, words) as loop:
            chosen = llvm.load(builder, builder.add(line, builder.mul(loop.index, llvm.whole(_LANES))), held, 1)
            task = builder.mul(loop.index, llvm.whole(8 * _LANES))
            builder.store(start, psi)
            with llvm.cgutils.for_range(builder, classes) as label:
                here = builder.add(task, builder.mul(label.index, stride))
                place = builder.mul(label.index, llvm.whole(8))
                q, t = (
                    llvm.in_all(builder, llvm.load(builder, builder.add(of, place), _DOUBLE, 8), _LANES)
                    for of in (share, shift)
                )
                all_said = llvm.load(builder, builder.add(said, here), lane, 8)
                less = builder.fsub(builder.load(psi), builder.fmul(q, all_said, **fused), **fused)
                own = builder.fadd(llvm.load(builder, builder.add(weight, here), lane, 8), t)
                mask = llvm.is_label(builder, chosen, label.index, _LANES)
                builder.store(builder.select(mask, builder.fadd(less, own), less), psi)
            value = builder.load(psi)
            builder.store(builder.fadd(builder.load(one), value), one)
            builder.store(builder.fadd(builder.load(two), builder.fmul(value, value, **fused), **fused), two)
        for q, each in enumerate((one, two)):
            zero, name = ir.Constant(_DOUBLE, -0.0), f"llvm.vector.reduce.fadd.v{_LANES}f64"
            total = llvm.call(builder, name, _DOUBLE, zero, builder.load(each), fastmath=("reassoc",))
            _add_at(builder, builder.add(found, llvm.whole(8 * q)), total, builder.fadd)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8, types.float64, types.int64), code


add_psi: Any = intrinsic(_psi_of_words)


@compiled
def _first_psi(label, weight, said, share, shift):  # type: ignore[no-untyped-def]
    """psi at the first task, from columns."""
    found = weight[label, 0] + shift[label]
    for m in range(share.size):
        found -= share[m] * said[m, 0]
    return found


@compiled
def _spread_by_masks(labels, weight, said, share, shift, total, square):  # type: ignore[no-untyped-def]
    """Blocks of tasks whose columns stay in cache; psi from its value at the first task."""
    (agents, tasks), (classes, width) = labels.shape, said.shape
    first, found = np.empty(_BATCH), np.empty((_BATCH, 2))
    for start in range(0, agents, _BATCH):
        size = min(_BATCH, agents - start)
        for b in range(size):
            first[b] = _first_psi(labels[start + b, 0], weight, said, share[start + b], shift[start + b])
            found[b, 0] = found[b, 1] = 0.0
        for begin in range(0, tasks, _STAY):
            end = min(tasks, begin + _STAY)
            words = (end - begin) // _LANES
            for b in range(size):
                row, q, t, sums = labels[start + b], share[start + b], shift[start + b], found[b]
                add_psi(
                    row.ctypes.data + begin, weight.ctypes.data + 8 * begin, said.ctypes.data + 8 * begin, 8 * width,
                    q.ctypes.data, t.ctypes.data, classes, words, first[b], sums.ctypes.data,
                )  # fmt: skip
                for n in range(begin + _LANES * words, end):
                    y = weight[row[n], n] + t[row[n]] - first[b]
                    for m in range(classes):
                        y -= q[m] * said[m, n]
                    sums[0] += y
                    sums[1] += y * y
        for b in range(size):
            total[start + b] = first[b] * tasks + found[b, 0]
            square[start + b] = max(0.0, found[b, 1] - found[b, 0] * found[b, 0] / tasks)


@compiled
def _spread_by_look_up(labels, weight, said, share, shift, total, square):  # type: ignore[no-untyped-def]
    """Agents in batches, tasks in blocks that stay in cache; psi from its value at the first task."""
    agents, tasks = labels.shape
    classes = said.shape[0]
    expected = np.empty(_BLOCK)
    first, one, two = np.empty(_BATCH), np.empty(_BATCH), np.empty(_BATCH)
    for start in range(0, agents, _BATCH):
        size = min(_BATCH, agents - start)
        for b in range(size):
            k = labels[start + b, 0]
            at = weight[k] + shift[start + b, k]
            for m in range(classes):
                at -= share[start + b, m] * said[m, 0]
            first[b], one[b], two[b] = at, 0.0, 0.0
        for begin in range(0, tasks, _BLOCK):
            width = min(_BLOCK, tasks - begin)
            for b in range(size):
                row, q, t = labels[start + b, begin : begin + width], share[start + b], shift[start + b]
                expected[:] = first[b]
                m = 0
                while m + 5 <= classes:
                    c0, c1, c2, c3, c4 = q[m], q[m + 1], q[m + 2], q[m + 3], q[m + 4]
                    m0, m1, m2 = said[m, begin:], said[m + 1, begin:], said[m + 2, begin:]
                    m3, m4 = said[m + 3, begin:], said[m + 4, begin:]
                    for n in range(width):
                        expected[n] += c0 * m0[n] + c1 * m1[n] + c2 * m2[n] + c3 * m3[n] + c4 * m4[n]
                    m += 5
                while m < classes:
                    c0, m0 = q[m], said[m, begin:]
                    for n in range(width):
                        expected[n] += c0 * m0[n]
                    m += 1
                s1, s2 = 0.0, 0.0
                for n in range(width):
                    k = np.uint32(row[n])
                    y = weight[np.uint32(begin + n) * np.uint32(classes) + k] + t[k] - expected[n]
                    s1 += y
                    s2 += y * y
                one[b] += s1
                two[b] += s2
        for b in range(size):
            total[start + b] = first[b] * tasks + one[b]
            square[start + b] = max(0.0, two[b] - one[b] * one[b] / tasks)
