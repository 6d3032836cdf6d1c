"""The per-task sums compiled: vertical counters packed in words, and one fused pass for the spread."""

from __future__ import annotations

import numpy as np

from verax.kernels import Floats, Ints, Labels
from verax.kernels._compiled import compiled

_BLOCK, _BATCH = 256, 64


def tallies(labels: Labels, classes: int) -> tuple[Ints, Ints]:
    """As `per_task.tallies`."""
    if classes <= 10:
        return _packed(labels, classes), _held(labels, classes)
    said = np.zeros((labels.shape[1], classes), dtype=np.int64)
    held = np.zeros((labels.shape[0], classes), dtype=np.int64)
    _counted(labels, said, held)
    return said, held


@compiled
def _packed(labels, classes):  # type: ignore[no-untyped-def]
    """Ten counters of six bits in a word a task; emptied before any can run over."""
    agents, tasks = labels.shape
    said = np.zeros((tasks, classes), np.int64)
    word = np.zeros(tasks, np.uint64)
    one, low = np.uint64(1), np.uint64(63)
    for i in range(agents):
        row = labels[i]
        for n in range(tasks):
            word[n] += one << np.uint64(np.uint8(6) * np.uint8(row[n]))
        if i % 63 == 62 or i == agents - 1:
            for n in range(tasks):
                for k in range(classes):
                    said[n, k] += np.int64((word[n] >> np.uint64(6 * k)) & low)
                word[n] = 0
    return said


@compiled
def _held(labels, classes):  # type: ignore[no-untyped-def]
    """How often each agent said each label: the same counters, over 63 tasks at a time."""
    agents, tasks = labels.shape
    held = np.zeros((agents, classes), np.int64)
    one, low = np.uint64(1), np.uint64(63)
    for i in range(agents):
        for start in range(0, tasks, 63):
            row = labels[i, start : min(tasks, start + 63)]
            word = np.uint64(0)
            for n in range(row.size):
                word += one << np.uint64(np.uint8(6) * np.uint8(row[n]))
            for k in range(classes):
                held[i, k] += np.int64((word >> np.uint64(6 * k)) & low)
    return held


@compiled
def _counted(labels, said, held):  # type: ignore[no-untyped-def]
    agents, tasks = labels.shape
    for i in range(agents):
        for n in range(tasks):
            k = labels[i, n]
            said[n, k] += 1
            held[i, k] += 1


def weighed(labels: Labels, table: Ints) -> Ints:
    """As `per_task.weighed`."""
    found = np.zeros(len(labels), dtype=np.int64)
    _weighed(labels, table.ravel(), table.shape[1], found)
    return found


@compiled
def _weighed(labels, flat, classes, found):  # type: ignore[no-untyped-def]
    agents, tasks = labels.shape
    for i in range(agents):
        row, total = labels[i], 0
        for n in range(tasks):
            total += flat[np.uint32(n) * np.uint32(classes) + np.uint32(row[n])]
        found[i] = total


def spread(labels: Labels, weight: Floats, said: Floats, share: Floats, shift: Floats) -> tuple[Floats, Floats]:
    """As `per_task.spread`."""
    total, square = np.zeros(len(labels)), np.zeros(len(labels))
    if labels.shape[1]:
        columns = np.ascontiguousarray(said.T)
        _spread(labels, np.ascontiguousarray(weight).ravel(), columns, share, shift, total, square)
    return total, square


@compiled
def _spread(labels, weight, said, share, shift, total, square):  # type: ignore[no-untyped-def]
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
