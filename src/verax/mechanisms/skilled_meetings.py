"""Skilled references where most agents left most tasks out: weights and votes as in `skilled`, found by who meets whom.

Two walks: the first adds up what each agent scores beside everybody it meets, the second takes each pair out again as
it is weighed, so that nothing is kept of a pair.
"""

from __future__ import annotations

import numpy as np

from verax import kernels
from verax.kernels import Floats, Ints, Meetings
from verax.mechanisms.meetings import (
    blocks_of,
    counted_at_once,
    found_by_meetings,
    labels_suffice,
    parts_beside,
    starts_of,
)
from verax.mechanisms.skilled import POWER, UNIT, Skilled, pair_units, thin_without_each
from verax.mechanisms.soft import Mixture, Mixtures, normal, parts_on_answers
from verax.plan import Plan
from verax.statistic import Part, Side


def skilled_references(side: Side, plan: Plan) -> Mixtures:
    """Everybody's skilled references: by where agents meet, where that is less work, else by all pairs."""
    by_meetings = labels_suffice(side, plan) and found_by_meetings(side.reports, plan)
    return SkilledMeetings(side, plan) if by_meetings else Skilled(side, plan)


class SkilledMeetings(Mixtures):
    """Everybody's skilled references: what each agent scores beside all others is all that is kept."""

    def __init__(self, side: Side, plan: Plan) -> None:
        super().__init__(side, counted_at_once(side, plan))
        reports = self.side.reports
        self.answers, size = reports.answers, len(reports.agents)
        self.tasks, self.units, self.references = (np.zeros(size, dtype=np.int64) for _ in range(3))
        times = np.zeros(len(reports.tasks) + 1, dtype=np.int64)  # how many pairs share so many tasks
        for rows in blocks_of(self.answers, self.plan):
            met = kernels.meetings(self.answers, rows.start, rows.stop, 2, self.plan.engine)
            start, n = starts_of(met, rows), met.common
            self.references[rows] = np.diff(start)
            self.tasks[rows], self.units[rows] = _sums_of(n, start), _sums_of(self._units(met), start)
            times += np.bincount(n, minlength=len(times))
        times[1] = int(self.answers.meetings.sum()) - len(self.answers) - int(self.tasks.sum())
        held = np.bincount(self.answers.agent * np.int64(len(reports.classes)) + self.answers.label,
                           minlength=size * len(reports.classes))  # fmt: skip
        able = plan.matrix is not None
        self.thin = thin_without_each(held.reshape(size, -1), _middle_of(times)) & able

    def _units(self, met: Meetings) -> Ints:
        total = kernels.agreement(met, self.answers.label, len(self.side.reports.classes), self.plan.engine)
        return pair_units(total / np.maximum(met.common * (met.common - 1), 1), met.common)

    def _trust(self, met: Meetings) -> Floats:
        """skill_j(-i)^p of every pair that meets: j's mean beside the others, its pair with i taken out."""
        n = np.where(met.common >= 2, met.common, 0)
        tasks, units = self.tasks[met.peer] - n, self.units[met.peer] - np.where(n > 0, self._units(met), 0)
        return _trust_of(tasks, units)

    def _weights(self, met: Meetings) -> Floats:
        """What each pair counts; where nobody is skilled without the agent, the common tasks."""
        weights = met.common * self._trust(met)
        told = np.bincount(met.row, weights > 0, len(self.tasks)) > 0
        return np.where(told[met.row], weights, met.common).astype(np.float64)

    def _votes(self, rows: slice) -> Floats:
        """The others' votes on each of these agents' answers, shares: (answers, L)."""
        met = kernels.meetings(self.answers, rows.start, rows.stop, 1, self.plan.engine)
        classes = len(self.side.reports.classes)
        trust, alone = self._trust(met), _trust_of(self.tasks, self.units)
        met_trusted = np.bincount(met.row, alone[met.peer] > 0, len(alone))[rows]
        elsewhere = (alone > 0).sum() - (alone[rows] > 0) - met_trusted > 0
        told = (np.bincount(met.row, trust > 0, len(alone))[rows] > 0) | elsewhere
        votes = np.where(told[met.row - rows.start], trust, 1.0)
        first, last = self.answers.start[[rows.start, rows.stop]].tolist()
        at = (met.mine - first).astype(np.int64) * classes + met.said
        counted = np.bincount(at, np.repeat(votes, met.common), (last - first) * classes)
        return normal(np.asarray(counted, dtype=np.float64).reshape(-1, classes))

    def ordered(self, i: int) -> Mixture:
        rows, reports = slice(i, i + 1), self.side.reports
        if self.thin[i]:
            soft = np.zeros((len(reports.tasks), len(reports.classes)))
            soft[self.answers.of_agent(i)[0]] = self._votes(rows)
            return Mixture(None, soft, int(self.references[i]))
        met, weights = kernels.meetings(self.answers, i, i + 1, 2, self.plan.engine), np.zeros(len(reports.agents))
        weights[met.peer] = self._weights(met)
        return Mixture(weights, None, int(self.references[i]))

    def parts_of(self, wanted: Ints) -> dict[int, Part | None]:
        every = len(wanted) == len(self.thin)
        blocks = [*blocks_of(self.answers, self.plan)] if every else [slice(i, i + 1) for i in wanted.tolist()]
        found: dict[int, Part | None] = {}
        for rows in blocks:
            thin = self.thin[rows]
            if not thin.all():
                found |= zip(_numbers_of(rows), parts_beside(self.side, self.plan, self._weights, rows), strict=True)
            if thin.any():
                voted = parts_on_answers(self.side, self.plan, rows, self._votes(rows), self.references[rows])
                found |= {i: part for i, part, few in zip(_numbers_of(rows), voted, thin.tolist(), strict=True) if few}
        return found


def _numbers_of(rows: slice) -> range:
    return range(rows.start, rows.stop)


def _sums_of(values: Ints, start: Ints) -> Ints:
    """The sum of each agent's pairs."""
    whole = np.concatenate([[0], np.cumsum(values)])
    return np.asarray(np.diff(whole[start]))


def _trust_of(tasks: Ints, units: Ints) -> Floats:
    """skill^p, skill the mean of what was summed in whole units."""
    skill = np.divide(units, tasks * UNIT, out=np.zeros(len(tasks)), where=tasks > 0)
    return np.asarray(np.maximum(skill, 0.0) ** POWER)


def _middle_of(times: Ints) -> int:
    """How many tasks the pair shares in which the middle one of all meetings lies."""
    meetings = np.cumsum(times * np.arange(len(times)))
    return int(np.searchsorted(meetings, meetings[-1] / 2)) if meetings[-1] else 0
