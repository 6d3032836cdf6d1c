"""One reference a task that many agents make together: rows (N, L) in place of labels, which may be unsure.

With g(n, .) such a row, an agent is scored by <S, delta(X, g)>, delta = X^T M g / (N - 1): linear in what it reports,
so that it is Correlated Agreement against a mixture of references, truthful when each of them is, whatever made g, as
long as nothing the agent itself reports is in it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.answers import Answers
from verax.errors import OptionError
from verax.kernels import Floats, Ints, exact_sums
from verax.plan import Plan
from verax.public import Public
from verax.reports import Reports
from verax.rules import names_of
from verax.statistic import Part, Side

Places = npt.NDArray[np.signedinteger[Any]]


def part_beside(side: Side, plan: Plan, i: int, mixture: Mixture) -> Part | None:
    """Agent i beside a soft reference, a row of zeros where it says nothing; None on too few tasks."""
    assert mixture.soft is not None
    tasks = side.reports.of_agent(i)[0]
    return _part_on(side, plan, i, tasks, mixture.soft[tasks], mixture.references)


def _part_on(side: Side, plan: Plan, i: int, tasks: Places, soft: Floats, references: int) -> Part | None:
    """The same from the rows on the tasks that the agent answered."""
    heard = soft.sum(1) > 0
    common = tasks[heard]
    signal = side.signal if len(common) == side.signal.tasks else _signal_on(side.signal, common)
    if len(common) <= signal.rank:
        return None
    value, psi = _score_beside(side.reports, plan, i, common, soft[heard], signal)
    error = math.sqrt(math.fsum(((psi - psi.mean()) ** 2).tolist())) / len(psi)
    return Part(value, error, len(tasks), references)


def parts_on_answers(side: Side, plan: Plan, rows: slice, soft: Floats, references: Ints) -> list[Part | None]:
    """Some agents, whose labels suffice, beside a soft reference that has a row for each of their answers."""
    answers, start = side.reports.answers, side.reports.answers.start[rows.start : rows.stop + 1]
    own = slice(int(start[0]), int(start[-1]))
    if side.signal.kind is not None:
        ends = (start - start[0]).tolist()
        return [
            _part_on(side, plan, i, answers.of_agent(i)[0], soft[a:b], int(each))
            for i, (a, b), each in zip(range(rows.start, rows.stop), pairwise(ends), references, strict=True)
        ]
    assert plan.matrix is not None
    heard = soft.sum(1) > 0
    agent = answers.agent[own][heard].astype(np.int64) - rows.start
    n = np.bincount(agent, minlength=rows.stop - rows.start)
    start = np.concatenate([[0], np.cumsum(n)])
    paid = plan.matrix.astype(np.float64)[answers.label[own][heard]]
    psi = _sums_of_rows(_centred(paid, agent, start) * _centred(soft[heard], agent, start))
    value = exact_sums(psi / np.maximum(n - 1, 1)[agent], start, plan.engine)
    apart = psi - (np.bincount(agent, psi, len(n)) / np.maximum(n, 1))[agent]
    error = np.sqrt(exact_sums(apart**2, start, plan.engine)) / np.maximum(n, 1)
    each = zip(value.tolist(), error.tolist(), answers.answered[rows].tolist(), references.tolist(), strict=True)
    return [Part(*found) if common > 1 else None for common, found in zip(n.tolist(), each, strict=True)]


def _centred(columns: Floats, agent: Ints, start: Ints) -> Floats:
    """Columns less their means, agent by agent; exactly 0 where a column is constant."""
    shifted = columns - columns[start[agent]]
    sums = np.stack([np.bincount(agent, column, len(start) - 1) for column in shifted.T], axis=1)
    return np.asarray(shifted - (sums / np.maximum(np.diff(start), 1)[:, None])[agent])


def _score_beside(
    reports: Reports, plan: Plan, i: int, common: Places, soft: Floats, signal: Public
) -> tuple[float, Floats]:
    rule = plan.rule
    if rule.linear:
        if rule.needs_rows:
            assert reports.rows is not None
            paid = rule.scored(reports.rows[i, common])
        else:
            assert plan.matrix is not None
            tasks, labels = reports.of_agent(i)
            paid = plan.matrix.astype(np.float64)[labels[np.searchsorted(tasks, common)]]
        psi = _sums_of_rows(signal.residual(paid) * signal.residual(soft))
        return math.fsum((signal.weights * psi).tolist()), psi
    assert rule.mixture is not None and reports.rows is not None
    value, psi = rule.mixture(reports.rows[i, common], soft, signal, rule.floor or 0.0)
    return value / len(soft), psi


def check_soft(plan: Plan, what: str) -> None:
    """Refuse rules that a mixture of references has no score for."""
    rule = plan.rule
    if rule.population is not None or (rule.linear and rule.counts_only and plan.matrix is None):
        remedy = "give sign='identity' or a matrix" if rule.learns_sign else f"use {names_of(lambda r: r.linear)}"
        raise OptionError(f"{what} is a mixture of references, beside which rule {rule.name} is not known; {remedy}")
    if not rule.linear and rule.mixture is None:
        able = names_of(lambda r: r.linear or r.mixture is not None)
        raise OptionError(f"{what} is a mixture of references, beside which rule {rule.name} has no score; use {able}")


def normal(votes: Floats) -> Floats:
    """Votes as shares; a task without votes stays empty.

    >>> normal(np.array([[3.0, 1.0], [0.0, 0.0]])).tolist()
    [[0.75, 0.25], [0.0, 0.0]]
    """
    whole = _sums_of_rows(votes)[:, None]
    return np.asarray(np.divide(votes, whole, out=np.zeros_like(votes), where=whole > 0))


def _sums_of_rows(rows: Floats) -> Floats:
    """Sums over labels, from the least up, so that the names of labels change no bit."""
    return np.asarray(np.sort(rows, axis=1).sum(1))


@dataclass(frozen=True, eq=False)
class Mixture:
    """The references of one agent, put together: weights (K,) of its peers, or a soft reference (N, L) at once."""

    weights: Floats | None
    soft: Floats | None
    references: int


class Mixtures(ABC):
    """Everybody's references among the agents of a side; what is needed for all of them is found once.

    All is found in the order of names, so that it is the same to the last bit in whatever order reports came.
    """

    def __init__(self, side: Side, plan: Plan) -> None:
        self.side, self.agent_place, self.task_place = in_order(side)
        self.plan = plan

    @abstractmethod
    def ordered(self, i: int) -> Mixture:
        """The references of the i-th agent in the order of names, its tasks in that order too."""

    @abstractmethod
    def parts_of(self, wanted: Ints) -> dict[int, Part | None]:
        """What the wanted agents score, by their places in the order of names."""

    def parts(self, only: int | None = None) -> list[Part | None]:
        """What everybody scores, or `only` one."""
        places = self.agent_place
        found = self.parts_of(np.sort(places if only is None else places[[only]]))
        return [found.get(place) for place in places.tolist()]

    def of(self, i: int) -> Mixture:
        """The references of agent i of the side as it was given."""
        found = self.ordered(int(self.agent_place[i]))
        weights = None if found.weights is None else found.weights[self.agent_place]
        return Mixture(weights, None if found.soft is None else found.soft[self.task_place], found.references)


def in_order(side: Side) -> tuple[Side, Ints, Ints]:
    """The side with agents and tasks in the order of their names, and where each agent and task stands in it."""
    reports = side.reports
    agents, tasks = (sorted(range(len(names)), key=names.__getitem__) for names in (reports.agents, reports.tasks))
    agent_place, task_place = (np.argsort(order, kind="stable") for order in (agents, tasks))
    if agents == sorted(agents) and tasks == sorted(tasks):
        return side, agent_place, task_place
    moved = replace(
        reports,
        held=reports.held.in_order(np.array(agents), np.array(tasks))
        if isinstance(reports.held, Answers)
        else np.ascontiguousarray(reports.held[np.ix_(agents, tasks)]),
        agents=tuple(reports.agents[k] for k in agents),
        tasks=tuple(reports.tasks[n] for n in tasks),
        probabilities=None if (rows := reports.rows) is None else rows[np.ix_(agents, tasks)],
        truth=None if reports.truth is None else reports.truth[tasks],
        public=None if reports.public is None else reports.public[tasks],
    )
    return Side(moved, _signal_on(side.signal, tasks), side.references), agent_place, task_place


def _signal_on(signal: Public, tasks: Any) -> Public:
    return Public(
        len(tasks),
        None if signal.strata is None else signal.strata[tasks],
        None if signal.features is None else signal.features[tasks],
    )
