"""One agent beside each of its references: what every pair scores, and what they score together.

`_counted` needs counts only and serves <S, delta> on labels; `_joined` takes any rule, task by task.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from verax import kernels
from verax.errors import OptionError, VeraxError
from verax.joint import Estimate, Joint, Public, influences, means, signs, stderrs, values
from verax.kernels import Engine, Floats, Ints, Labels
from verax.reports import Reports
from verax.rules import Rule

_GROUPS = 50


@dataclass(frozen=True)
class Plan:
    """A checked choice of rule, sign and aggregation."""

    rule: Rule
    sign: str | None
    matrix: npt.NDArray[np.generic] | None
    over: str | None
    seed: str | None
    draws: int | None
    rng: np.random.Generator | None
    engine: Engine = field(default_factory=Engine)


class Part(NamedTuple):
    """What an agent scores on one kind of reference."""

    score: float
    stderr: float
    tasks: int
    references: int


@dataclass(frozen=True)
class _Pairs:
    """Values and errors, one a reference, and the error of their mean."""

    value: Floats
    stderr: Floats
    mean_stderr: float


def beside(reports: Reports, signal: Public, plan: Plan, i: int, references: Labels, over: str | None) -> Part | None:
    """Agent i scored against each reference, put together over them; None if no pair has enough tasks."""
    references = references[_able(reports.labels[i], signal, plan, references)]
    if not len(references):
        return None
    pairs = _pairs(reports, signal, plan, i, references)
    value, stderr = _over(pairs, over)
    if math.isnan(stderr):
        stderr = _jackknife(_report(reports, plan, i), references, len(reports.classes), signal, plan, over)
    return Part(value, stderr, int((reports.labels[i] >= 0).sum()), len(references))


def all_pairs(reports: Reports, signal: Public, plan: Plan) -> list[Part | None] | None:
    """Every agent against every other from counts alone; None where a pair must be looked at by itself.

    >>> from verax.mechanisms import Options, prepare
    >>> ready = prepare(Reports.of(labels=[[0, 1, 0, 1], [0, 1, 1, 1], [0, 0, 0, 0]]), None, None, Options("ca"))
    >>> [part.references for part in all_pairs(ready.reports, ready.signal, ready.plan)]
    [2, 2, 2]
    """
    sign = _counted_sign(plan)
    if sign is None or signal or plan.draws is not None or plan.over == "one":
        return None
    labels, classes = reports.labels, len(reports.classes)
    half = halves(reports.tasks) if plan.sign == "split" else None
    found: list[Part | None] = []
    for first in range(0, len(labels), step := _rows_at_once(labels, half, plan)):
        rows = labels[first : first + step] if step < len(labels) else labels
        who = np.arange(first, first + len(rows))
        if plan.over == "median":
            total, n = kernels.totals(rows, labels, classes, sign, half, plan.engine)
        else:
            total, n, phi = kernels.phi(rows, labels, classes, sign, half, who, plan.engine)
        value, able = _values(total, n)
        able[np.arange(len(rows)), who] = False
        if plan.over == "median":
            stderr = _median_stderrs(rows, labels, half, plan, value, able, classes)
        else:
            stderr = [_mean_stderr(p / max(a.sum(), 1), half) for p, a in zip(phi, able, strict=True)]
        answered = (rows >= 0).sum(1)
        for v, a, error, tasks in zip(value, able, stderr, answered.tolist(), strict=True):
            found.append(Part(_centre(v[a], plan.over), error, tasks, int(a.sum())) if a.any() else None)
    return found


def _counted_sign(plan: Plan) -> str | Ints | None:
    """S as the kernels take it: the name of how it is learned, or a matrix of 0 and 1."""
    if not plan.rule.counts_only:
        return None
    if plan.matrix is None:
        return plan.sign
    return plan.matrix.astype(np.int64) if np.isin(plan.matrix, (0, 1)).all() else None


def _rows_at_once(labels: Labels, half: Ints | None, plan: Plan) -> int:
    """As many agents as leave what is kept a pair, and a task, within the memory allowed."""
    each = len(labels) * (1 if half is None else 2) * 48 + (0 if plan.over == "median" else labels.shape[1] * 16)
    return max(1, min(len(labels), plan.engine.max_bytes // max(each, 1)))


def _values(total: Ints, n: Ints) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """What every row scores beside every column, and whether they share enough tasks; from (I, J, halves) each."""
    whole, value = n.sum(2), total / np.maximum(n * (n - 1), 1)
    value = value[..., 0] if n.shape[2] == 1 else (n * value).sum(2) / np.maximum(whole, 1)
    return value, np.asarray(whole >= 2)


def _centre(values: Floats, over: str | None) -> float:
    if over != "median":
        return math.fsum(values) / len(values)
    ordered = np.sort(values)
    return float((ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2)


@dataclass(frozen=True)
class _Middle:
    """An agent's peers that may be in the middle, and which of them are: the values and ranks of the two places."""

    peers: Ints
    held: Floats
    values: tuple[float, float]
    ranks: tuple[int, int]  # among the peers of the same value

    @classmethod
    def of(cls, value: Floats, able: npt.NDArray[np.bool_]) -> _Middle:
        peers = np.nonzero(able)[0]
        held, places = value[peers], ((len(peers) - 1) // 2, len(peers) // 2)
        ordered = np.sort(held)
        middle = ordered[[*places]]
        ranks = np.array(places) - np.searchsorted(ordered, middle)
        near = (held == middle[0]) | (held == middle[1])
        return cls(peers[near], held[near], tuple(middle.tolist()), tuple(ranks.tolist()))

    def stderr(self, stderr: Floats) -> float:
        """The middle peer's error, the mean of two; equal values stand in the order of their errors."""
        found = [np.sort(stderr[self.held == v])[r] for v, r in zip(self.values, self.ranks, strict=True)]
        return float((found[0] + found[1]) / 2)


def _median_stderrs(
    rows: Labels, labels: Labels, half: Ints | None, plan: Plan, value: Floats, able: npt.NDArray[np.bool_],
    classes: int,
) -> list[float]:  # fmt: skip
    """Every agent's middle peer's error; only the peers that may be in the middle are looked at again."""
    parts, few = 1 if half is None else 2, plan.engine.for_few()
    found, most = np.full(len(rows), math.nan), max(1, plan.engine.max_bytes // (64 * parts * classes**2))
    chosen = np.nonzero(able.any(1))[0]
    middles = [_Middle.of(value[r], able[r]) for r in chosen]
    batch = np.cumsum([len(middle.peers) for middle in middles]) // most
    for some in np.split(np.arange(len(chosen)), np.nonzero(np.diff(batch))[0] + 1) if len(chosen) else ():
        each = [
            kernels.counts(rows[r : r + 1], labels[middles[q].peers], classes, half, parts, few)[0]
            for q, r in zip(some, chosen[some], strict=True)
        ]
        stderr = of_counts(np.concatenate(each)[:, :, None], plan)[1]
        ends = np.cumsum([len(counts) for counts in each])
        for q, its in zip(some.tolist(), np.split(stderr, ends[:-1]), strict=True):
            found[chosen[q]] = middles[q].stderr(its)
    return found.tolist()


def pair_values(reports: Reports, signal: Public, plan: Plan, i: int, references: Labels) -> Floats:
    """What agent i scores beside each reference; NaN where they share too few tasks."""
    able = _able(reports.labels[i], signal, plan, references)
    found = np.full(len(references), math.nan)
    if able.any():
        found[able] = _pairs(reports, signal, plan, i, references[able]).value
    return found


def _able(own: Labels, signal: Public, plan: Plan, references: Labels) -> npt.NDArray[np.bool_]:
    """Which references share enough tasks: two, three to draw pairs, more than features take out."""
    common = (references >= 0) & (own >= 0)
    able = np.asarray(common.sum(1) >= (2 if plan.draws is None else 3))
    if signal.features is not None:
        able &= np.array([signal.take(c).rank < c.sum() for c in common], dtype=bool)
    return able


def _report(reports: Reports, plan: Plan, i: int) -> npt.NDArray[Any]:
    """Agent i's labels, or its rows if the rule may use them."""
    rows = reports.probabilities if plan.rule.needs_rows or plan.rule.own else None
    return np.asarray(reports.labels[i] if rows is None else rows[i])


def _pairs(reports: Reports, signal: Public, plan: Plan, i: int, references: Labels) -> _Pairs:
    """Agent i beside each reference, by the cheapest way its rule allows."""
    report, classes = _report(reports, plan, i), len(reports.classes)
    half = halves(reports.tasks) if plan.sign == "split" else None
    way = _counted if plan.rule.counts_only and signal.features is None else _joined
    pairs = way(report, references, classes, signal, half, plan)
    return pairs if plan.draws is None else _sampled(report, references, classes, pairs, plan)


def one_peer(reports: Reports, i: int, seed: str) -> npt.NDArray[np.bool_]:
    """The paper's random reference: drawn by SHA-256, among peers in the order of their names."""
    common = ((reports.labels >= 0) & (reports.labels[i] >= 0)).sum(1)
    able = sorted(a for j, a in enumerate(reports.agents) if j != i and common[j] >= 2)
    number = int.from_bytes(hashlib.sha256(f"{seed}:{reports.agents[i]}".encode()).digest(), "big")
    drawn = able[number % len(able)] if able else None
    return np.array([a == drawn for a in reports.agents])


def median_peers(reports: Reports, signal: Public, plan: Plan, i: int, references: Labels, whole: Labels) -> Labels:
    """The rows of `whole` whose reference is in the middle, the one or two that make the median."""
    pairs = _pairs(reports, signal, plan, i, references)
    return np.asarray(whole[np.unique(_middle(pairs))])


def _over(pairs: _Pairs, over: str | None) -> tuple[float, float]:
    """Mean or median over the references; the median's error is its middle reference's."""
    if over != "median":
        return math.fsum(pairs.value) / len(pairs.value), pairs.mean_stderr
    middle = _middle(pairs)
    return float(pairs.value[middle].sum() / 2), float(pairs.stderr[middle].sum() / 2)


def _middle(pairs: _Pairs) -> Ints:
    order = np.lexsort((pairs.stderr, pairs.value))
    return order[[(len(order) - 1) // 2, len(order) // 2]]


def halves(tasks: Sequence[str]) -> Ints:
    """Which half each task falls in when a sign is learned on one and used on the other."""
    return np.array([hashlib.sha256(task.encode()).digest()[0] & 1 for task in tasks], dtype=np.int64)


def _mean_stderr(phi: Floats, half: Ints | None) -> float:
    """sqrt(sum of phi^2); with two halves, which are positively correlated, the sum over both."""
    if half is None:
        return math.sqrt((phi**2).sum())
    return math.fsum(math.sqrt((phi[half == h] ** 2).sum()) for h in (0, 1))


def _counted(own: Labels, references: Labels, classes: int, signal: Public, half: Ints | None, plan: Plan) -> _Pairs:
    """<S, delta> from counts alone, for every reference at once."""
    strata = 1 if signal.strata is None else int(signal.strata.max(initial=0)) + 1
    halves = 1 if half is None else 2
    part = signal.strata if half is None else half * strata if signal.strata is None else half * strata + signal.strata
    counts = kernels.counts(own[None], references, classes, part, halves * strata, plan.engine)
    counts = counts.reshape(len(references), halves, strata, classes, classes)
    value, stderr, centred = of_counts(counts, plan)
    tables = centred.reshape(1, len(references), halves * strata, classes, classes)
    phi = kernels.sums(own[None], references, tables, part, plan.engine)[0]
    return _Pairs(value, stderr, _mean_stderr(phi / len(references), half))


def of_counts(counts: Ints, plan: Plan) -> tuple[Floats, Floats, Floats]:
    """Values and errors from counts (J, H, Z, L, L), and each cell's centred share of the influence on the value."""
    s = _sign_matrices(counts, plan)
    n = counts.sum((-3, -2, -1))
    whole = n.sum(1)
    value, psi = values(counts, s), influences(counts, s)
    stderr = (n * stderrs(counts, psi)).sum(1) / whole
    centred = (psi - means(counts, psi)[..., None, None, None]) / whole[:, None, None, None, None]
    return value[:, 0] if counts.shape[1] == 1 else (n * value).sum(1) / whole, stderr, centred


def _sign_matrices(counts: Ints, plan: Plan) -> npt.NDArray[np.generic]:
    """S for every (reference, half): given, or learned here, or learned on the other half."""
    if plan.matrix is not None:
        return np.broadcast_to(plan.matrix, (*counts.shape[:2], *plan.matrix.shape))
    learned = signs(counts)
    return learned if plan.sign == "plugin" else learned[:, ::-1]


def _joined(
    report: npt.NDArray[Any], references: Labels, classes: int, signal: Public, half: Ints | None, plan: Plan
) -> _Pairs:
    """Any rule, pair by pair, from the reports themselves."""
    answered = _answered(report)
    value, stderr, phi = [], [], np.zeros(len(report))
    for reference in references:
        common = answered & (reference >= 0)
        chosen = [common] if half is None else [common & (half == h) for h in (0, 1)]
        joints = [Joint.of(report[c], reference[c], classes, signal.take(c)) for c in chosen]
        found = [_estimate(joint, joints[h - 1], plan) for h, joint in enumerate(joints)]
        share = [joint.tasks / common.sum() for joint in joints]
        value.append(math.fsum(w * e.value for w, e in zip(share, found, strict=True)))
        stderr.append(math.fsum(w * e.stderr for w, e in zip(share, found, strict=True)))
        for c, e in zip(chosen, found, strict=True):
            psi = _per_task(e.influence, report[c], reference[c], signal.take(c))
            phi[c] += (psi - psi.sum() / max(len(psi), 1)) / common.sum()
    return _Pairs(np.array(value), np.array(stderr), _mean_stderr(phi / len(references), half))


def _answered(report: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return report >= 0 if report.ndim == 1 else ~np.isnan(report[:, 0])


def _estimate(joint: Joint, other_half: Joint, plan: Plan) -> Estimate:
    if plan.rule.counts_only:
        s = plan.matrix if plan.matrix is not None else joint.sign if plan.sign == "plugin" else other_half.sign
        return joint.score(s) if joint.enough else Estimate(0.0, 0.0, np.zeros(joint.tasks))
    if not plan.rule.own:
        return _as_estimate(plan.rule(joint), joint)
    try:
        return _as_estimate(plan.rule(joint), joint)
    except VeraxError:
        raise
    except Exception as error:  # whatever a user's own code may raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise OptionError(
            f"your rule {plan.rule.name!r} failed ({reason}); it must take a Joint and return a number"
        ) from error


def _as_estimate(found: Estimate | float, joint: Joint) -> Estimate:
    """An estimate as it is; a plain number without an error, which a jackknife will find."""
    value = found.value if isinstance(found, Estimate) else float(found)
    if not math.isfinite(value):
        raise OptionError(f"your rule gave {value}; it must give a finite number for every pair")
    if isinstance(found, Estimate):
        return found
    return Estimate(value, math.nan, np.full(joint.tasks, math.nan))


def _per_task(influence: Floats, report: npt.NDArray[Any], reference: Labels, signal: Public) -> Floats:
    """psi for every task, where an estimate gives it for every cell of its counts."""
    if influence.ndim == 1:
        return influence
    held = report if report.ndim == 1 else report.argmax(1)
    return np.asarray(influence[0 if signal.strata is None else signal.strata, held, reference])


def _jackknife(
    report: npt.NDArray[Any], references: Labels, classes: int, signal: Public, plan: Plan, over: str | None
) -> float:
    """The error of a user's own rule: score again without each of up to 50 groups of tasks."""
    groups = min(_GROUPS, len(report))
    found = []
    for g in range(groups):
        keep = np.arange(len(report)) % groups != g
        pairs = _joined(report[keep], references[:, keep], classes, signal.take(keep), None, plan)
        found.append(_over(pairs, over)[0])
    return float(np.std(found) * math.sqrt(groups - 1))


def _sampled(report: npt.NDArray[Any], references: Labels, classes: int, exact: _Pairs, plan: Plan) -> _Pairs:
    """Algorithm 1 as printed: for each task n, `draws` random pairs p1 != p2 != n."""
    assert plan.draws is not None and plan.rng is not None
    value, noise = [], []
    for reference in references:
        common = _answered(report) & (reference >= 0)
        paid, g = _paid(report[common], reference[common], classes, plan), reference[common].astype(np.int64)
        n, every = len(g), np.arange(len(g))
        penalty = []
        for _ in range(plan.draws):
            p1 = (every + plan.rng.integers(1, n, n)) % n
            p2 = plan.rng.integers(0, n - 2, n)
            for taken in (np.minimum(every, p1), np.maximum(every, p1)):
                p2 += p2 >= taken
            penalty.append(paid[p1, g[p2]])
        value.append(float(paid[every, g].mean() - np.mean(penalty)))
        share = np.bincount(g, minlength=classes) / n
        spread = ((paid**2) @ share).mean() - (paid @ share).mean() ** 2
        noise.append(max(float(spread), 0.0) / (n * plan.draws))
    drawn = np.array(noise)
    mean_stderr = math.hypot(exact.mean_stderr, math.sqrt(drawn.sum()) / len(drawn))
    return _Pairs(np.array(value), np.hypot(exact.stderr, np.sqrt(drawn)), mean_stderr)


def _paid(report: npt.NDArray[Any], reference: Labels, classes: int, plan: Plan) -> Floats:
    """What Algorithm 1 pays for each task's report beside each reference label: X S."""
    if report.ndim == 2:
        return 2.0 * report if plan.rule.name == "brier" else np.log(np.maximum(report, plan.rule.floor or 0.0))
    s = plan.matrix if plan.matrix is not None else Joint.of(report, reference, classes).sign
    return np.asarray(s.astype(np.float64)[report])
