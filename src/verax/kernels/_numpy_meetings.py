"""Who meets whom where most agents left most tasks out, with NumPy alone: the answers of a task, sorted by pair."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from verax.answers import Answers
from verax.kernels import Engine, Floats, Ints, Labels, Meetings

_CELLS_AN_ANSWER = 8  # of a table that is quicker than sorting


def meetings(answers: Answers, first: int, last: int, least: int, engine: Engine) -> Meetings:
    """See `verax.kernels.meetings`."""
    view, agents = answers.by_task, answers.shape[0]
    own = np.arange(answers.start[first], answers.start[last])
    task = answers.task[own]
    begin, each = view.start[task], view.start[task + 1] - view.start[task]
    mine = np.repeat(own, each)
    theirs = ranges(begin, each)
    row, peer = answers.agent[mine].astype(np.int64), view.agent[theirs].astype(np.int64)
    pair = (row - first) * agents + peer
    order = np.argsort(pair, kind="stable")
    order = order[row[order] != peer[order]]
    sizes, starts = _runs(pair[order])
    sizes, starts = sizes[sizes >= least], starts[sizes >= least]
    met_first = np.argsort(order[starts], kind="stable")
    sizes, starts = sizes[met_first], starts[met_first]
    chosen = order[ranges(starts, sizes)]
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return Meetings(
        row[order[starts]].astype(np.int32), peer[order[starts]].astype(np.int32), ends,
        mine[chosen].astype(np.int32), view.label[theirs[chosen]],
    )  # fmt: skip


def ranges(begin: Ints, each: Ints) -> Ints:
    """The numbers from each beginning on, so many of each.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(each)
    return np.asarray(np.repeat(begin - ends + each, each) + np.arange(ends[-1] if len(ends) else 0))


def _runs(ordered: Ints) -> tuple[Ints, Ints]:
    """How long each run of equal numbers is, and where it starts."""
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    return np.diff(np.append(starts, len(ordered))), starts


def agreement(met: Meetings, labels: Labels, classes: int, engine: Engine) -> Ints:
    """See `verax.kernels.agreement`."""
    mine = labels[met.mine]
    bonus, penalty, _ = _met_and_expected(met, mine, classes)
    return np.asarray(met.common * bonus - penalty)


def agreed(
    met: Meetings, labels: Labels, classes: int, weight: Floats, into: Floats, first: int, engine: Engine
) -> None:
    """See `verax.kernels.agreed`."""
    mine, n = labels[met.mine], met.common
    bonus, penalty, said = _met_and_expected(met, mine, classes)
    own = _times_in_pair(met, mine, met.said, classes)
    each, same = np.repeat(n, n), (mine == met.said).astype(np.int64)
    top = each * (each * same - said - own - np.repeat(bonus, n)) + 2 * np.repeat(penalty, n)
    worth = top / (np.repeat(n.astype(np.float64) ** 3 / weight, n))
    into += np.bincount(met.mine - first, worth, len(into))


def _met_and_expected(met: Meetings, mine: Labels, classes: int) -> tuple[Ints, Ints, Ints]:
    """Of every pair how often it agrees, and over pairs of tasks; how often the peer says the label of a meeting."""
    if not len(met.row):
        return (np.zeros(0, dtype=np.int64),) * 3
    said = _times_in_pair(met, met.said, mine, classes)
    same = (mine == met.said).astype(np.int64)
    return np.add.reduceat(same, met.start[:-1]), np.add.reduceat(said, met.start[:-1]), said


def _times_in_pair(met: Meetings, held: Labels, asked: Labels, classes: int) -> Ints:
    """How often the label asked at each meeting is held at the pair's meetings."""
    pair = np.repeat(np.arange(len(met.row)) * classes, met.common)
    if len(met.row) * classes <= _CELLS_AN_ANSWER * len(held):
        return np.asarray(np.bincount(pair + held, minlength=len(met.row) * classes)[pair + asked])
    kinds, times = np.unique(pair + held, return_counts=True)
    place = np.minimum(np.searchsorted(kinds, pair + asked), len(kinds) - 1)
    return np.asarray(np.where(kinds[place] == pair + asked, times[place], 0))


def exact_sums(values: Floats, start: Ints, engine: Engine) -> Floats:
    """See `verax.kernels.exact_sums`."""
    held, ends = values.tolist(), start.tolist()
    return np.array([math.fsum(held[a:b]) for a, b in pairwise(ends)], dtype=np.float64)
