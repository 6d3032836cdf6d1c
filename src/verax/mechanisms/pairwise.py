"""Pairs: each agent beside each of its references, by the cheapest way that the mechanism and the reports allow."""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.errors import OptionError
from verax.joint import Estimate, Joint
from verax.kernels import Floats, Labels
from verax.mechanisms.many import parts_of_entries
from verax.mechanisms.meetings import parts_of_meetings
from verax.mechanisms.soft import Mixtures
from verax.pairs import Counts, Pairs, all_pairs, evaluated, jackknifed, mean_error, of_counts, values_of_all
from verax.plan import Plan
from verax.public import Public
from verax.reports import Reports
from verax.statistic import Part, Side, groups, halves
from verax.tallies import mean_over_peers

_MOST_CELLS = 2**24  # of the counts kept at a time
Report = npt.NDArray[Any]  # labels (N,) or rows (N, L)


def parts(side: Side, plan: Plan, only: int | None = None) -> Sequence[Part | None]:
    """What every agent scores on these tasks, all of them at hand; of a whole population's mechanism, `only` one."""
    if plan.rule.population is not None:
        found: list[Part | None] = _named(plan.rule.population)(side, plan, only)
        return found
    if plan.many:
        return [parts_of_entries(side, plan, references_of(side, plan, i), i) for i in range(len(side.reports.agents))]
    mixed = mixtures_of(side, plan)
    if mixed is not None:
        return mixed.parts(only)
    ways: tuple[Callable[[Side, Plan], Sequence[Part | None] | None], ...]
    ways = mean_over_peers, parts_of_meetings, all_pairs, parts_of_counts
    for way in ways:
        cheap = way(side, plan)
        if cheap is not None:
            return cheap
    return pair_by_pair(side, plan)


def mixtures_of(side: Side, plan: Plan) -> Mixtures | None:
    """What puts the peers together before they are references; None where each pair is scored by itself."""
    if plan.mixture is None or side.references is not None:
        return None
    made: Mixtures = _named(plan.mixture)(side, plan)
    return made


def _named(name: str) -> Any:
    module, attribute = name.split(":")
    return getattr(importlib.import_module(module), attribute)


def counts_suffice(side: Side, plan: Plan) -> bool:
    """Whether labels are all that the rule looks at."""
    if plan.rule.needs_rows or plan.mechanism.draws is not None or side.signal.features is not None:
        return False
    return plan.rule.population is None and not sees_rows(side.reports, plan)


def parts_of_counts(side: Side, plan: Plan) -> list[Part | None] | None:
    """Everybody from the counts of pairs, some agents at a time; None where counts do not tell."""
    step = agents_at_once(side, plan)
    if step is None or (plan.over == "one" and side.references is None):
        return None
    found: list[Part | None] = []
    for first in range(0, len(side.reports.agents), step):
        rows = slice(first, first + step)
        counts = Counts.of(side, plan, rows, bounded=False)
        look = counts.look(plan)
        found += counts.parts(plan, side.answered[rows], None if look is None else look.squares(side))
    return found


def agents_at_once(side: Side, plan: Plan) -> int | None:
    """Of how many agents the counts of all pairs may be kept; None where counts do not tell, or are too many."""
    if not counts_suffice(side, plan):
        return None
    levels = 1 if side.signal.strata is None else int(side.signal.strata.max(initial=0)) + 1
    each = len(side.columns) * levels * len(side.reports.classes) ** 2 * (2 if plan.rule.linear else 50)
    return None if each > 8 * _MOST_CELLS else max(1, _MOST_CELLS // max(each, 1))


def pair_by_pair(side: Side, plan: Plan) -> list[Part | None]:
    """Everybody beside each reference in turn: any rule, any public signal."""
    return [beside(side, plan, i) for i in range(len(side.reports.agents))]


def references_of(side: Side, plan: Plan, i: int) -> npt.NDArray[np.bool_]:
    """Which columns agent i is scored against: the others, the one drawn for it, or the truth."""
    if side.references is not None:
        return np.ones(len(side.references), dtype=bool)
    if plan.over == "one" and plan.mechanism.seed is not None:
        return one_peer(side.reports, i, plan.mechanism.seed)
    return np.asarray(np.arange(len(side.reports.agents)) != i)


def one_peer(reports: Reports, i: int, seed: str) -> npt.NDArray[np.bool_]:
    """The paper's random reference: drawn by SHA-256, among peers in the order of their names."""
    common = ((reports.labels >= 0) & (reports.labels[i] >= 0)).sum(1)
    able = sorted(a for j, a in enumerate(reports.agents) if j != i and common[j] >= 2)
    number = int.from_bytes(hashlib.sha256(f"{seed}:{reports.agents[i]}".encode()).digest(), "big")
    drawn = able[number % len(able)] if able else None
    return np.array([a == drawn for a in reports.agents])


def beside(side: Side, plan: Plan, i: int, *, errors: bool = True, weights: Floats | None = None) -> Part | None:
    """Agent i, put together over its references (by `weights`); None if no pair has enough tasks."""
    report = _report_of(side.reports, plan, i)
    chosen = references_of(side, plan, i)
    if weights is not None:
        chosen &= weights > 0
    able = _enough_in_common(report, side.signal, plan, side.columns[chosen])
    references = side.columns[chosen][able]
    if not len(references):
        return None
    over = plan.over if side.references is None else None
    share = None if weights is None else weights[chosen][able] / math.fsum(weights[chosen][able].tolist())
    value, stderr = _pairs_of(side, plan, report, references, share).over(over)
    if math.isnan(stderr) and errors:
        stderr = _left_out_in_turn(side, plan, report, references, over, share)
    return Part(value, stderr, int(_answered(report).sum()), len(references))


def pairs_with(side: Side, plan: Plan, i: int, references: Labels) -> Pairs:
    """What agent i scores beside each reference; NaN where they share too few tasks."""
    report = _report_of(side.reports, plan, i)
    able = _enough_in_common(report, side.signal, plan, references)
    value, stderr = (np.full(len(references), math.nan) for _ in range(2))
    if able.any():
        found = _pairs_of(side, plan, report, references[able])
        value[able], stderr[able] = found.value, found.stderr
    return Pairs(value, stderr, math.nan)


def sees_rows(reports: Reports, plan: Plan) -> bool:
    """Whether the rule is given rows: if it needs them, or may use them as a function of somebody's own may."""
    able = plan.rule.needs_rows or (plan.rule.own and not plan.rule.linear)
    return able and reports.probabilities is not None


def _report_of(reports: Reports, plan: Plan, i: int) -> Report:
    rows = reports.rows if sees_rows(reports, plan) else None
    return np.asarray(reports.labels[i] if rows is None else rows[i])


def _answered(report: Report) -> npt.NDArray[np.bool_]:
    return report >= 0 if report.ndim == 1 else ~np.isnan(report[:, 0])


def _enough_in_common(report: Report, signal: Public, plan: Plan, references: Labels) -> npt.NDArray[np.bool_]:
    """Which references share enough tasks: two, three to draw pairs, more than features take out."""
    common = (references >= 0) & _answered(report)
    able = np.asarray(common.sum(1) >= (2 if plan.mechanism.draws is None else 3))
    if signal.features is not None:
        able &= np.array([signal.take(c).rank < c.sum() for c in common], dtype=bool)
    return able


def _pairs_of(side: Side, plan: Plan, report: Report, references: Labels, share: Floats | None = None) -> Pairs:
    """One report beside references that share enough tasks with it."""
    classes, half = len(side.reports.classes), halves(side.reports.tasks) if plan.sign == "split" else None
    found = _joined(report, references, classes, side.signal, half, plan, share)
    return found if plan.mechanism.draws is None else _sampled(report, references, classes, found, plan)


def _joined(
    report: Report, references: Labels, classes: int, signal: Public, half: npt.NDArray[Any] | None, plan: Plan,
    weights: Floats | None = None,
) -> Pairs:  # fmt: skip
    """Any rule, pair by pair, from the reports themselves."""
    answered = _answered(report)
    value, stderr, phi = [], [], np.zeros(len(report))
    counted = np.full(len(references), 1 / len(references)) if weights is None else weights
    for reference, weight in zip(references, counted, strict=True):
        common = answered & (reference >= 0)
        chosen = [common] if half is None else [common & (half == h) for h in (0, 1)]
        joints = [Joint.of(report[c], reference[c], classes, signal.take(c)) for c in chosen]
        found = [_estimate_of(joint, joints[h - 1], plan) for h, joint in enumerate(joints)]
        share = [joint.tasks / common.sum() for joint in joints]
        value.append(math.fsum(w * e.value for w, e in zip(share, found, strict=True)))
        stderr.append(math.fsum(w * e.stderr for w, e in zip(share, found, strict=True)))
        for c, e in zip(chosen, found, strict=True):
            psi = influence_by_task(e.influence, report[c], reference[c], signal.take(c))
            phi[c] += weight * (psi - psi.sum() / max(len(psi), 1)) / common.sum()
    return Pairs(np.array(value), np.array(stderr), mean_error(phi, half), weights)


def _estimate_of(joint: Joint, other_half: Joint, plan: Plan) -> Estimate:
    if plan.rule.counts_only:
        s = plan.matrix if plan.matrix is not None else joint.sign if plan.sign == "plugin" else other_half.sign
        return joint.score(s) if joint.enough else Estimate(0.0, 0.0, np.zeros(joint.tasks))
    return evaluated(plan.rule, joint)


def influence_by_task(influence: Floats, report: Report, reference: Labels, signal: Public) -> Floats:
    """psi for every task, where an estimate gives it for every cell of its counts."""
    if influence.ndim == 1:
        return influence
    held = report if report.ndim == 1 else report.argmax(1)
    return np.asarray(influence[0 if signal.strata is None else signal.strata, held, reference])


def _left_out_in_turn(
    side: Side, plan: Plan, report: Report, references: Labels, over: str | None, share: Floats | None = None
) -> float:
    """The error of a user's own rule: score again without each group of tasks."""
    group, found = groups(side.reports.tasks), []
    for g in np.unique(group):
        keep, classes = group != g, len(side.reports.classes)
        able = _enough_in_common(report[keep], side.signal.take(keep), plan, references[:, keep])
        if able.any():
            left = None if share is None else share[able] / share[able].sum()
            pairs = _joined(report[keep], references[able][:, keep], classes, side.signal.take(keep), None, plan, left)
            found.append(pairs.over(over)[0])
    return jackknifed(found)


def _sampled(report: Report, references: Labels, classes: int, exact: Pairs, plan: Plan) -> Pairs:
    """Algorithm 1 as printed: for each task n, `draws` random pairs p1 != p2 != n."""
    if plan.mechanism.draws is None or plan.rng is None:
        raise OptionError("draws need rng=, a generator that draws them")
    value, noise = [], []
    for reference in references:
        common = _answered(report) & (reference >= 0)
        paid, g = _paid_beside(report[common], reference[common], classes, plan), reference[common].astype(np.int64)
        n, every = len(g), np.arange(len(g))
        penalty = []
        for _ in range(plan.mechanism.draws):
            p1 = (every + plan.rng.integers(1, n, n)) % n
            p2 = plan.rng.integers(0, n - 2, n)
            for taken in (np.minimum(every, p1), np.maximum(every, p1)):
                p2 += p2 >= taken
            penalty.append(paid[p1, g[p2]])
        value.append(float(paid[every, g].mean() - np.mean(penalty)))
        share = np.bincount(g, minlength=classes) / n
        spread = ((paid**2) @ share).mean() - (paid @ share).mean() ** 2
        noise.append(max(float(spread), 0.0) / (n * plan.mechanism.draws))
    drawn = np.array(noise)
    mean_stderr = math.hypot(exact.mean_stderr, math.sqrt(drawn.sum()) / len(drawn))
    return Pairs(np.array(value), np.hypot(exact.stderr, np.sqrt(drawn)), mean_stderr)


def _paid_beside(report: Report, reference: Labels, classes: int, plan: Plan) -> Floats:
    """What Algorithm 1 pays for each task's report beside each reference label: X S."""
    if report.ndim == 2:
        return plan.rule.scored(report)
    s = plan.matrix if plan.matrix is not None else Joint.of(report, reference, classes).sign
    return np.asarray(s.astype(np.float64)[report])


def every_pair(side: Side, plan: Plan) -> Floats:
    """What every agent (row) scores beside every other (column): (K, K), NaN where they share too few tasks."""
    labels = side.reports.labels
    if not counts_suffice(side, plan) or not plan.rule.linear:
        return np.stack([pairs_with(side, plan, i, labels).value for i in range(len(labels))])
    if (at_once := values_of_all(side, plan)) is not None:
        return at_once
    found = np.full((len(labels), len(labels)), math.nan)
    for i in range(len(labels)):
        counts = Counts.of(side, plan, slice(i, i + 1), bounded=False).counts[0]
        able = counts.sum((1, 2, 3, 4)) >= 2
        if able.any():
            found[i, able] = of_counts(counts[able], plan)[0]
    return found
