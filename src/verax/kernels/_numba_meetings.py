"""Who meets whom, compiled: each agent's tasks walked twice, first to count its peers, then to note where they meet.

What is summed here is summed as written: no flag lets the compiler take floats in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from verax.answers import Answers
from verax.kernels import Engine, Floats, Ints, Labels, Meetings

_PARTIALS = 64  # that an exact sum of doubles may need: their exponents span 2,100 bits, 53 a part


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in machine code, kept on disk where a folder can be written."""
    try:
        made: Callable[..., Any] = njit(nogil=True, cache=True)(function)
    except RuntimeError:
        made = njit(nogil=True)(function)
    return made


def meetings(answers: Answers, first: int, last: int, least: int, engine: Engine) -> Meetings:
    """See `verax.kernels.meetings`."""
    view = answers.by_task
    most = int(answers.meetings[first:last].sum() - answers.answered[first:last].sum())
    row, peer = (np.empty(most // least, dtype=np.int32) for _ in range(2))
    start = np.empty(most // least + 1, dtype=np.int64)
    mine, said = np.empty(most, dtype=np.int32), np.empty(most, dtype=view.label.dtype)
    of_agent, of_task = (answers.start, answers.task), (view.start, view.agent, view.label)
    pairs = _meet(first, last, least, *of_agent, *of_task, row, peer, start, mine, said)
    met = int(start[pairs])
    return Meetings(row[:pairs], peer[:pairs], start[: pairs + 1], mine[:met], said[:met])


@_compiled
def _meet(first, last, least, start, task, begin, agent, label, row, peer, place, mine, said):  # type: ignore[no-untyped-def]
    agents = len(start) - 1
    times, into, seen = np.zeros(agents, np.int32), np.zeros(agents, np.int64), np.empty(agents + 1, np.int32)
    pairs, met = 0, 0
    for i in range(first, last):
        many = 0
        for a in range(start[i], start[i + 1]):
            for q in range(begin[task[a]], begin[task[a] + 1]):
                j = agent[q]
                seen[many] = j
                many += times[j] == 0
                times[j] += 1
        times[i] = 0
        kept = pairs
        for s in range(many):
            j = seen[s]
            if times[j] >= least and j != i:
                row[pairs], peer[pairs], place[pairs], into[j] = i, j, met, met
                met += times[j]
                pairs += 1
                times[j] = -1
            else:
                times[j] = 0
        if pairs > kept:
            for a in range(start[i], start[i + 1]):
                for q in range(begin[task[a]], begin[task[a] + 1]):
                    j = agent[q]
                    if times[j] < 0:
                        mine[into[j]], said[into[j]] = a, label[q]
                        into[j] += 1
            for s in range(many):
                times[seen[s]] = 0
    place[pairs] = met
    return pairs


def agreement(met: Meetings, labels: Labels, classes: int, engine: Engine) -> Ints:
    """See `verax.kernels.agreement`."""
    found = np.empty(len(met.row), dtype=np.int64)
    _agree(met.start, met.mine, met.said, labels, classes, found)
    return found


@_compiled
def _agree(start, mine, said, labels, classes, found):  # type: ignore[no-untyped-def]
    theirs = np.zeros(classes, np.int64)
    for p in range(len(found)):
        same, expected, n = 0, 0, start[p + 1] - start[p]
        for e in range(start[p], start[p + 1]):
            theirs[said[e]] += 1
            same += labels[mine[e]] == said[e]
        for e in range(start[p], start[p + 1]):
            expected += theirs[labels[mine[e]]]
        for e in range(start[p], start[p + 1]):
            theirs[said[e]] = 0
        found[p] = n * same - expected


def agreed(
    met: Meetings, labels: Labels, classes: int, weight: Floats, into: Floats, first: int, engine: Engine
) -> None:
    """See `verax.kernels.agreed`."""
    _add_agreed(met.start, met.mine, met.said, labels, classes, weight, into, first)


@_compiled
def _add_agreed(start, mine, said, labels, classes, weight, into, first):  # type: ignore[no-untyped-def]
    own, theirs = np.zeros(classes, np.int64), np.zeros(classes, np.int64)
    for p in range(len(weight)):
        same, expected, n = 0, 0, start[p + 1] - start[p]
        for e in range(start[p], start[p + 1]):
            own[labels[mine[e]]] += 1
            theirs[said[e]] += 1
            same += labels[mine[e]] == said[e]
        for e in range(start[p], start[p + 1]):
            expected += theirs[labels[mine[e]]]
        whole = np.float64(n) ** 3 / weight[p]
        for e in range(start[p], start[p + 1]):
            k, m = labels[mine[e]], said[e]
            top = n * (n * (k == m) - theirs[k] - own[m] - same) + 2 * expected
            into[mine[e] - first] += top / whole
        for e in range(start[p], start[p + 1]):
            own[labels[mine[e]]] = 0
            theirs[said[e]] = 0


def exact_sums(values: Floats, start: Ints, engine: Engine) -> Floats:
    """See `verax.kernels.exact_sums`."""
    found = np.zeros(len(start) - 1)
    _sum_exactly(values, start, found)
    return found


@_compiled
def _sum_exactly(values, start, found):  # type: ignore[no-untyped-def]
    """Parts that do not overlap, the smallest first, add up to the sum so far; in the end they are rounded once."""
    parts = np.empty(_PARTIALS)
    for i in range(len(found)):
        count = 0
        for v in range(start[i], start[i + 1]):
            large, kept = values[v], 0
            for c in range(count):
                small = parts[c]
                if abs(large) < abs(small):
                    large, small = small, large
                whole = large + small
                rest = small - (whole - large)
                if rest != 0.0:
                    parts[kept] = rest
                    kept += 1
                large = whole
            parts[kept] = large
            count = kept + 1
        whole, rest = 0.0, 0.0
        while count and rest == 0.0:
            count -= 1
            before = whole
            whole = before + parts[count]
            rest = parts[count] - (whole - before)
        if count and (rest > 0.0) == (parts[count - 1] > 0.0) and rest != 0.0:  # a tie is decided by what is below it
            once_more = whole + 2.0 * rest
            if once_more - whole == 2.0 * rest:
                whole = once_more
        found[i] = whole
