"""Many classes: scores from the few entries that anybody lists, where a table of labels beside labels would not fit.

A score sums entries of the reports at the references' labels, less what two different tasks would give, which sums over
labels can tell: no array of tasks x labels is made. The same numbers as elsewhere, pair by pair.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from verax.errors import OptionError
from verax.joint import Estimate
from verax.kernels import Floats, Ints
from verax.pairs import Pairs, mean_error
from verax.plan import Plan
from verax.public import Public
from verax.reports import Reports
from verax.rules import Rule
from verax.statistic import Part, Side
from verax.topk import Entries, TopK


def parts_of_entries(side: Side, plan: Plan, references: npt.NDArray[np.bool_], i: int) -> Part | None:
    """What agent i scores over these references, by the entries that it lists."""
    answered = side.reports.labels[i] >= 0
    columns = side.columns[references]
    common = (columns >= 0) & answered
    able = common.sum(1) >= 2
    if not able.any():
        return None
    report, found = entries_of(side.reports, plan.rule, i), []
    phi = np.zeros(len(answered))
    for column, both in zip(columns[able], common[able], strict=True):
        one = estimate_of_entries(plan.rule, report[both], column[both].astype(np.int64), side.signal.take(both))
        found.append(one)
        phi[both] += (one.influence - one.influence.mean()) / (both.sum() * able.sum())
    value, stderr = (np.array([getattr(one, name) for one in found]) for name in ("value", "stderr"))
    over = plan.over if side.references is None else None
    return Part(*Pairs(value, stderr, mean_error(phi, None)).over(over), int(answered.sum()), len(found))


def entries_of(reports: Reports, rule: Rule, i: int) -> Entries:
    """Agent i's report as the entries that it lists, 1 at its label where that is all."""
    rows, classes = reports.probabilities, len(reports.classes)
    if not rule.needs_rows:
        return Entries.of_labels(reports.labels[i].astype(np.int64), classes)
    if not isinstance(rows, TopK):
        raise OptionError(
            f"rows of {classes:,} labels are scored by the few likeliest of each: give verax.TopK.of_rows(rows, k)"
        )
    return rows[i].entries()


def estimate_of_entries(rule: Rule, report: Entries, reference: Ints, signal: Public) -> Estimate:
    """What a report scores beside labels, by the entries that it lists.

    >>> from verax.rules import RULES
    >>> said = Entries.of_labels(np.array([0, 1, 1, 2]), 9)
    >>> round(estimate_of_entries(RULES["zero-one"], said, np.array([0, 1, 1, 1]), Public(4)).value, 6)
    0.416667
    """
    if rule.of_entries is not None:
        return Estimate.of_tasks(*rule.of_entries(report, reference, signal, rule.floor or 0.0))
    scored = report.each(rule.scored)
    psi = np.zeros(len(report))
    for chosen in signal.parts:
        psi[chosen] = _beyond_chance(scored[chosen], reference[chosen])
    if signal.strata is not None:
        return Estimate.of_tasks(float(signal.weights @ psi), psi)
    own, n = math.fsum(scored.at(reference).tolist()), len(report)
    held, said = scored.sums(), np.bincount(reference, minlength=report.classes)
    return Estimate.of_tasks((n * own - math.fsum((held * said).tolist())) / max(n - 1, 1) / n, psi)


def _beyond_chance(rows: Entries, reference: Ints) -> Floats:
    """psi: each task's entry at the reference's label, both sides with their means taken out."""
    n = len(rows)
    if n < 2:
        return np.zeros(n)
    mean, share = rows.sums() / n, np.bincount(reference, minlength=rows.classes) / n
    return np.asarray(rows.at(reference) - mean[reference] - rows.dot(share) + mean @ share)
