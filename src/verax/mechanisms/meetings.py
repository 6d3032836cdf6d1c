"""Pairs by where they meet: agents who left out most tasks, beside those peers only with whom they share some.

For agent i, every answer on a task that i answered is put to the account of whoever gave it: what it costs is the
answers that meet, however many agents and tasks there are, and a pair without a common task costs nothing
(Gustavson, "Two fast algorithms for sparse matrices", 1978). Scores are those of `pairs.all_pairs`, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from verax import kernels
from verax.answers import Answers
from verax.kernels import Floats, Ints, Meetings
from verax.pairs import Cut, Middle, centre_of, of_counts
from verax.plan import Plan
from verax.reports import Reports
from verax.statistic import Part, Side

_BYTES_A_MEETING = 128  # of the memory allowed, with what is made of it
_MOST_CELLS = 2**18  # of the tables of pairs that are kept at a time
Mask = npt.NDArray[np.bool_]
Weigh = Callable[[Meetings], Floats]


def parts_of_meetings(side: Side, plan: Plan) -> list[Part | None] | None:
    """Everybody beside all peers; None where pairs are better found another way, or the rule needs more than labels."""
    if side.references is not None or plan.over not in ("mean", "median") or not labels_suffice(side, plan):
        return None
    if not found_by_meetings(side.reports, plan):
        return None
    plan, cut = counted_at_once(side, plan), Cut.of(side, plan)
    return [
        part for rows in blocks_of(side.reports.answers, plan) for part in parts_beside(side, plan, None, rows, cut)
    ]


def labels_suffice(side: Side, plan: Plan) -> bool:
    """Whether the rule is <S, delta> of two agents' labels."""
    return plan.rule.counts_only and plan.mechanism.draws is None and side.signal.features is None


def found_by_meetings(reports: Reports, plan: Plan) -> bool:
    """Whether pairs are found by where they meet: reports of few answers, or so held."""
    if reports.sparse:
        return True
    size = len(reports.agents), len(reports.tasks)
    few = kernels.quicker_by_meetings
    answered = int(reports.answered.sum())
    return few(answered, *size, lambda: int(reports.answers.meetings.sum()), len(reports.classes), plan.engine)


def counted_at_once(side: Side, plan: Plan) -> Plan:
    """The plan with one way to count all blocks of agents, none of which is much work by itself."""
    return replace(plan, engine=kernels.for_meetings(plan.engine, int(side.reports.answers.meetings.sum())))


def blocks_of(answers: Answers, plan: Plan) -> Iterator[slice]:
    """Agents at a time whose meetings fit the memory allowed."""
    ends = np.cumsum(answers.meetings)
    most, first = max(1, plan.engine.max_bytes // _BYTES_A_MEETING), 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, "right")))
        yield slice(first, last)
        first = last


def parts_beside(side: Side, plan: Plan, weigh: Weigh | None, rows: slice, cut: Cut | None = None) -> list[Part | None]:
    """Some agents beside the peers they meet, each counted by its weight; a peer of weight 0 is no reference."""
    met = kernels.meetings(side.reports.answers, rows.start, rows.stop, 2, plan.engine)
    references, share = np.diff(starts_of(met, rows)), np.ones(len(met.row))
    if weigh is not None:
        weight = weigh(met)
        met, weight = some_pairs(met, weight > 0), weight[weight > 0]
        start = starts_of(met, rows)
        share = weight / np.repeat(kernels.exact_sums(weight, start, plan.engine), np.diff(start))
    return _Block(side, plan, cut or Cut.of(side, plan), rows, met, share, references).parts()


def starts_of(met: Meetings, rows: slice) -> Ints:
    """Where the pairs of each of these agents begin, and where the last end."""
    return np.asarray(np.searchsorted(met.row, np.arange(rows.start, rows.stop + 1)), dtype=np.int64)


def some_pairs(met: Meetings, kept: Mask) -> Meetings:
    """The chosen pairs only."""
    if kept.all():
        return met
    at, ends = np.repeat(kept, met.common), np.concatenate([[0], np.cumsum(met.common[kept])])
    return Meetings(met.row[kept], met.peer[kept], ends, met.mine[at], met.said[at])


@dataclass(frozen=True, eq=False)
class _Block:
    """Some agents beside the peers they meet: what each pair counts, and with how many each agent shares enough."""

    side: Side
    plan: Plan
    cut: Cut
    rows: slice
    met: Meetings
    share: Floats
    references: Ints

    @cached_property
    def answers(self) -> Answers:
        """Everybody's."""
        return self.side.reports.answers

    @cached_property
    def first(self) -> int:
        """The first answer of these agents."""
        return int(self.answers.start[self.rows.start])

    @cached_property
    def nothing(self) -> Floats:
        """A zero for each answer of these agents."""
        return np.zeros(int(self.answers.start[self.rows.stop]) - self.first)

    def parts(self) -> list[Part | None]:
        """What these agents score."""
        start = starts_of(self.met, self.rows)
        value, phi = self._of_labels() if self.plan.equal_labels and self.cut.part is None else self._of_tables()
        if self.plan.over == "median":
            score, error = self._medians(value, start)
        else:
            whole = np.maximum(np.diff(start), 1) if self.plan.over == "mean" else 1
            score = kernels.exact_sums(self.share * value, start, self.plan.engine) / whole
            error = self._errors(phi) / whole
        answered = self.answers.answered[self.rows].tolist()
        each = zip(score.tolist(), error.tolist(), answered, self.references.tolist(), strict=True)
        return [Part(*found) if met else None for met, found in zip(np.diff(start).tolist(), each, strict=True)]

    def _of_labels(self) -> tuple[Floats, Floats]:
        """The value of each pair, and the sum over pairs of what each answer adds, where S is the identity."""
        labels, classes, n = self.answers.label, len(self.side.reports.classes), self.met.common
        value = kernels.agreement(self.met, labels, classes, self.plan.engine) / (n * (n - 1))
        phi = self.nothing
        if self.plan.over != "median":
            kernels.agreed(self.met, labels, classes, self.share, phi, self.first, self.plan.engine)
        return value, phi

    def _of_tables(self) -> tuple[Floats, Floats]:
        """The same for any S, given or learned, and any strata: from the counts of each pair."""
        value, phi = np.zeros(len(self.met.row)), self.nothing
        for pairs, cells, counts in self._tables_of(self.met):
            value[pairs], _, centred = of_counts(counts, self.plan)
            worth = (centred * self.share[pairs, None, None, None, None]).reshape(-1)[cells]
            at = slice(int(self.met.start[pairs.start]), int(self.met.start[pairs.stop]))
            phi += np.bincount(self.met.mine[at] - self.first, worth, len(phi))
        return value, phi

    def _tables_of(self, met: Meetings) -> Iterator[tuple[slice, Ints, Ints]]:
        """Some pairs at a time: which cell of their counts each meeting is in, and the counts (P, H, Z, L, L)."""
        cut, classes = self.cut, len(self.side.reports.classes)
        shape = cut.kinds, cut.strata, classes, classes
        step = max(1, _MOST_CELLS // math.prod(shape))
        for first in range(0, len(met.row), step):
            pairs = slice(first, min(first + step, len(met.row)))
            at = slice(int(met.start[pairs.start]), int(met.start[pairs.stop]))
            mine, count = met.mine[at], pairs.stop - pairs.start
            cells = np.repeat(np.arange(count), met.common[pairs])
            if cut.part is not None:
                cells = cells * (cut.kinds * cut.strata) + cut.part[self.answers.task[mine]]
            cells = (cells * classes + self.answers.label[mine]) * classes + met.said[at]
            yield pairs, cells, np.bincount(cells, minlength=count * math.prod(shape)).reshape(count, *shape)

    def _errors(self, phi: Floats) -> Floats:
        """sqrt of the sum of squares, agent by agent; halves, which are positively correlated, one after the other."""
        at = slice(self.first, self.first + len(phi))
        kinds = 1 if self.cut.kind is None else self.cut.kinds
        cell = (self.answers.agent[at].astype(np.int64) - self.rows.start) * kinds
        if self.cut.kind is not None:
            cell += self.cut.kind[self.answers.task[at]]
        size = (self.rows.stop - self.rows.start) * kinds
        return np.asarray(np.sqrt(np.bincount(cell, phi**2, size)).reshape(-1, kinds).sum(1))

    def _medians(self, value: Floats, start: Ints) -> tuple[Floats, Floats]:
        """The middle of each agent's pairs, and the error of the pair in the middle."""
        ends = [(a, b) for a, b in pairwise(start.tolist())]
        middles = [Middle.of(value[a:b], np.ones(b - a, dtype=bool)) if b > a else None for a, b in ends]
        score, error = np.zeros(len(ends)), np.zeros(len(ends))
        near = [
            middle.peers + a if middle else np.empty(0, np.int64) for middle, (a, _) in zip(middles, ends, strict=True)
        ]
        kept = np.zeros(len(value), dtype=bool)
        kept[np.concatenate(near)] = True
        stderr = np.zeros(len(value))
        found = [of_counts(counts, self.plan)[1] for _, _, counts in self._tables_of(some_pairs(self.met, kept))]
        stderr[kept] = np.concatenate([np.empty(0), *found])
        for i, middle in enumerate(middles):
            if middle is not None:
                a, b = ends[i]
                score[i], error[i] = centre_of(value[a:b], "median"), middle.stderr(stderr[near[i]])
        return score, error
