"""One reference a task that many agents make together: rows (N, L) in place of labels, which may be unsure.

With g(n, .) such a row, an agent is scored by <S, delta(X, g)>, delta = X^T M g / (N - 1): linear in what it reports,
so that it is Correlated Agreement against a mixture of references, truthful when each of them is, whatever made g, as
long as nothing the agent itself reports is in it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.errors import OptionError
from verax.kernels import Floats, Ints
from verax.plan import Plan
from verax.public import Public
from verax.reports import Reports
from verax.rules import names_of
from verax.statistic import Part, Side


def part_beside(side: Side, plan: Plan, i: int, soft: Floats, references: int) -> Part | None:
    """Agent i beside a soft reference (N, L), a row of zeros where it says nothing; None on too few tasks."""
    answered = side.reports.labels[i] >= 0
    common = answered & (soft.sum(1) > 0)
    signal = side.signal.take(common)
    if common.sum() <= signal.rank:
        return None
    value, psi = _score_beside(side.reports, plan, i, common, soft[common], signal)
    error = math.sqrt(math.fsum(((psi - psi.mean()) ** 2).tolist())) / len(psi)
    return Part(value, error, int(answered.sum()), references)


def _score_beside(
    reports: Reports, plan: Plan, i: int, common: npt.NDArray[np.bool_], soft: Floats, signal: Public
) -> tuple[float, Floats]:
    rule = plan.rule
    if rule.linear:
        if rule.needs_rows:
            assert reports.probabilities is not None
            paid = rule.scored(reports.probabilities[i, common])
        else:
            assert plan.matrix is not None
            paid = plan.matrix.astype(np.float64)[reports.labels[i, common]]
        psi = (signal.residual(paid) * signal.residual(soft)).sum(1)
        return math.fsum((signal.weights * psi).tolist()), psi
    assert rule.mixture is not None and reports.probabilities is not None
    value, psi = rule.mixture(reports.probabilities[i, common], soft, signal, rule.floor or 0.0)
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
    whole = votes.sum(1, keepdims=True)
    return np.asarray(np.divide(votes, whole, out=np.zeros_like(votes), where=whole > 0))


def in_order(side: Side) -> tuple[Side, Ints]:
    """The side with agents and tasks in the order of their names, and where each agent of the side stands in it.

    What adds floats over agents and tasks then gives the same to the last bit in whatever order they came.
    """
    reports = side.reports
    agents, tasks = (sorted(range(len(names)), key=names.__getitem__) for names in (reports.agents, reports.tasks))
    if agents == sorted(agents) and tasks == sorted(tasks):
        return side, np.arange(len(agents))
    moved = replace(
        reports,
        labels=np.ascontiguousarray(reports.labels[np.ix_(agents, tasks)]),
        agents=tuple(reports.agents[k] for k in agents),
        tasks=tuple(reports.tasks[n] for n in tasks),
        probabilities=None if reports.probabilities is None else reports.probabilities[np.ix_(agents, tasks)],
        truth=None if reports.truth is None else reports.truth[tasks],
        public=None if reports.public is None else reports.public[tasks],
    )
    place = np.empty(len(agents), dtype=np.int64)
    place[agents] = np.arange(len(agents))
    return Side(moved, _ordered(side.signal, tasks), side.references), place


def _ordered(signal: Public, tasks: Any) -> Public:
    return Public(
        signal.tasks,
        None if signal.strata is None else signal.strata[tasks],
        None if signal.features is None else signal.features[tasks],
    )
