"""Compare: is one agent's score above another's? Paired, on the tasks that both answered, beside the same references.

Two scores are usually compared by their own errors, as if they came from different tasks. They come from the same:
what is hard for one is hard for the other, and the error of the difference is often a third of what the two errors
make it. Here the difference is taken task by task. Where the score is linear in the report (every rule but pmi, and
with one S for both), D = sum_n d(n), and d(n) changes its sign if the two agents swap their reports on task n. Under
the hypothesis that they are alike all 2^N swaps are equally likely, which makes the p-value exact: the share of swaps
whose D is as far from 0 as the one seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from verax import kernels, wire
from verax.errors import InputError, OptionError
from verax.intervals import quantile
from verax.joint import Joint
from verax.kernels import Floats, Ints, Labels
from verax.mechanisms.pairwise import influence_by_task, sees_rows
from verax.mechanisms.skilled import label_pairs, pair_sums, weights_without
from verax.pairs import evaluated
from verax.plan import Mechanism, Plan
from verax.public import Public
from verax.reports import some
from verax.rules import DEFAULT, Rule, RuleFunction, names_of
from verax.score import Prepared, RankInterval, prepare
from verax.space import said_of_memory
from verax.statistic import Side

_FEW_MAGNITUDES = 48  # of d(n), for which all swaps are summed up exactly
_FEW_TIMES = 16  # of one magnitude, which are added one by one
_SPREAD = 6.5  # standard deviations that the sum over swaps is followed on either side
_MOST_STEPS = 2**18
_MOST_TASKS = 10_000_000  # more are no advice
_ROUNDING = 1e-9  # of the standard deviation: closer sums are the same sum

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Comparison(wire.Document):
    """How two agents differ: `a`'s score less `b`'s on the tasks that both answered.

    `differ` counts the tasks that tell them apart. `adjusted` is the p-value among all comparisons made (Holm).
    `decide`: about how many tasks like these would tell which is better; None where they already do, or where nothing
    speaks for either.
    """

    a: str
    b: str
    difference: float
    stderr: float
    interval: tuple[float, float]
    p_value: float
    adjusted: float
    tasks: int
    differ: int
    decide: int | None

    def decided(self, confidence: float = 0.95) -> bool:
        """Whether one of the two is better at this confidence, among all comparisons made."""
        return self.adjusted <= 1 - confidence


@dataclass(frozen=True)
class Comparisons(wire.Document, format=wire.COMPARISONS):
    """Comparisons of one pair, or of all pairs with the ranks that these leave open.

    >>> import verax
    >>> labels = [[0, 1] * 20, [0, 1] * 15 + [1, 0] * 5, [0, 0, 1, 1] * 10]
    >>> found = verax.compare(verax.Reports.of(labels, agents=["ann", "bob", "cat"]), truth=[0, 1] * 20)
    >>> [(c.a, c.b, round(c.difference, 3), round(c.p_value, 4)) for c in found][0]
    ('ann', 'bob', 0.256, 0.002)
    >>> [(r.agent, r.low, r.high) for r in found.ranks]
    [('ann', 1, 1), ('bob', 2, 2), ('cat', 3, 3)]
    """

    mechanism: Mechanism
    confidence: float
    comparisons: tuple[Comparison, ...]
    ranks: tuple[RankInterval, ...] = wire.if_given(())
    warnings: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.comparisons)

    def __len__(self) -> int:
        return len(self.comparisons)

    def to_frame(self, backend: str | None = None) -> Any:
        """A row a comparison, of whatever frame library is installed."""
        from verax.frames import to_frame

        names = ("a", "b", "difference", "stderr", "p_value", "adjusted", "tasks", "differ", "decide")
        return to_frame({name: [getattr(c, name) for c in self] for name in names}, backend)


@said_of_memory("compare fewer agents or tasks")
def compare(
    reports: Any,
    a: str | None = None,
    b: str | None = None,
    truth: Any = None,
    *,
    rule: str | Rule | RuleFunction = DEFAULT,
    against: str | None = None,
    over: str | None = None,
    sign: str | npt.ArrayLike | None = None,
    floor: float | None = None,
    public: Any = None,
    confidence: float = 0.95,
) -> Comparisons:
    """Agents a and b beside each other; without them every pair, best first, with the ranks left open.

    Against peers, both are held against everybody but the two; over="skilled", by a skill that neither is in.

    >>> import verax
    >>> reports = verax.Reports.of([[0, 1] * 9, [0, 0, 1, 1] * 4 + [0, 1]], agents=["ann", "bob"])
    >>> found = compare(reports, truth=[0, 1] * 9)
    >>> found.comparisons[0].differ
    8
    """
    mechanism = Mechanism.of(rule, against=against, over=over, sign=sign, floor=floor)
    return compared(prepare(reports, truth, public, mechanism), a, b, confidence)


def compared(ready: Prepared, a: str | None = None, b: str | None = None, confidence: float = 0.95) -> Comparisons:
    """The comparisons of prepared reports."""
    agents = ready.reports.agents
    if not 0.5 <= confidence < 1:
        raise OptionError(f"the confidence is {confidence:g}; give a number from 0.5 to below 1, such as 0.95")
    if (a is None) != (b is None):
        raise OptionError("one agent alone is given; name two, or none for all pairs")
    for name in (a, b):
        if name is not None and name not in agents:
            raise OptionError(f"no agent is called {name!r}; the agents are {some(agents)}")
    if a is not None and a == b:
        raise OptionError(f"{a!r} is compared with itself; name two agents")
    _check_paired(ready)
    pairs = combinations(range(len(agents)), 2) if a is None or b is None else [(agents.index(a), agents.index(b))]
    sides = [Paired.of(side, ready.plan) for side in ready.sides if side is not None]
    between = {(i, j): difference_of(sides, i, j) for i, j in pairs}
    seen = [_seen(one, agents[i], agents[j], confidence, upright=a is None)
            for (i, j), one in between.items() if one is not None]  # fmt: skip
    if not seen:
        raise InputError("no two agents share two tasks with a reference; check that they answered the same tasks")
    comparisons = _adjusted(seen, confidence)
    lost = [f"{agents[i]!r} and {agents[j]!r}" for (i, j), one in between.items() if one is None]
    notes = [f"not compared, for they share too few tasks: {', '.join(lost[:8])}"] if lost else []
    ranks = rank_intervals(comparisons, agents, confidence) if a is None else ()
    place = {r.agent: k for k, r in enumerate(ranks)}
    comparisons.sort(key=lambda c: (place.get(c.a, 0), place.get(c.b, 0)))
    return Comparisons(ready.plan.mechanism, confidence, tuple(comparisons), ranks, (*ready.reports.notes, *notes))


def _check_paired(ready: Prepared) -> None:
    rule, plan = ready.plan.rule, ready.plan
    if rule.population is not None:
        raise OptionError(f"rule {rule.name} has no task-by-task difference; use {names_of(lambda r: r.linear)}")
    if rule.counts_only and plan.matrix is None:
        raise OptionError(
            "two agents are compared by one S, and a learned one is each agent's own; give sign='identity'"
        )
    if plan.over not in (None, "mean", "skilled") or plan.against == "consensus":
        raise OptionError(
            "agents are compared by the mean over references that both have: over='mean' or over='skilled', "
            "against truth or peers"
        )


@dataclass(frozen=True)
class Difference:
    """The difference of two scores, `terms` d(n) that it is the sum of, and what each task adds to its error.

    `swaps`: whether a swap of the two reports on a task turns d(n) into -d(n).
    """

    value: float
    terms: Floats
    influence: Floats
    tasks: int
    swaps: bool

    @property
    def stderr(self) -> float:
        """The standard error over tasks."""
        return math.sqrt(float((self.influence**2).sum()))

    @property
    def p_value(self) -> float:
        """How likely so large a difference is if the two are alike."""
        if self.swaps:
            return swap_p_value(self.terms)
        return 1.0 if self.value == 0 else _two_tails(abs(self.value) / max(self.stderr, 1e-300))

    @property
    def differ(self) -> int:
        """How many tasks tell the two apart."""
        return int((np.abs(self.terms) > _ROUNDING * np.abs(self.terms).max(initial=0.0)).sum())


def difference_of(sides: Sequence[Paired], i: int, j: int) -> Difference | None:
    """Agent i's score less agent j's on the tasks both answered; None where they share too few with a reference."""
    parts = [part for side in sides if (part := side.difference(i, j)) is not None]
    if not parts:
        return None
    tasks = sum(part.tasks for part in parts)
    share = [part.tasks / tasks for part in parts]
    return Difference(
        math.fsum(w * part.value for w, part in zip(share, parts, strict=True)),
        np.concatenate([w * part.terms for w, part in zip(share, parts, strict=True)]),
        np.concatenate([w * part.influence for w, part in zip(share, parts, strict=True)]),
        tasks,
        all(part.swaps for part in parts),
    )


@dataclass(frozen=True, eq=False)
class Paired:
    """The tasks of one kind of reference, and what every label is worth on each beside all references together.

    `worth` (N, L) is M G S^T, G summed over the references: known where all answered and only labels count.
    """

    side: Side
    plan: Plan
    worth: Floats | None
    sums: tuple[Ints, Ints] | None = None  # of pairs, where references count by their skill

    @classmethod
    def of(cls, side: Side, plan: Plan) -> Paired:
        """A side made ready for all its pairs."""
        if plan.over == "skilled" and side.references is None:
            beside = label_pairs(side.reports.labels, len(side.reports.classes), plan.engine)
            return cls(side, plan, None, pair_sums(*beside))
        answered = side.reports.labels.min(initial=0) >= 0 and side.columns.min(initial=0) >= 0
        if not (answered and plan.rule.counts_only and side.signal.kind is None and side.columns.shape[1] > 1):
            return cls(side, plan, None)
        assert plan.matrix is not None
        said = kernels.tallies(side.columns, len(side.reports.classes), plan.engine)[0].astype(np.float64)
        return cls(side, plan, side.signal.residual(said) @ plan.matrix.astype(np.float64).T)

    def difference(self, i: int, j: int) -> Difference | None:
        """Agent i's score less agent j's; None where they share too few tasks with every reference."""
        references = len(self.side.columns) - 2 * (self.side.references is None)
        if self.worth is not None and references > 0:
            value, terms, influence = (each / references for each in self._dense_terms(i, j, self.worth))
            return Difference(float(value), terms, influence, len(terms), True)
        both = (self.side.reports.labels[i] >= 0) & (self.side.reports.labels[j] >= 0)
        return self._difference_on(both, i, j)

    def _dense_terms(self, i: int, j: int, worth: Floats) -> tuple[Floats, Floats, Floats]:
        """The sum over references of <X, M G> task by task, from what labels are worth less what the two add to it."""
        labels, tasks = self.side.reports.labels, np.arange(worth.shape[0])
        a, b = labels[i], labels[j]
        share = [np.bincount(x, minlength=worth.shape[1]) / len(x) for x in (a, b)]
        terms, mean = worth[tasks, a] - worth[tasks, b], worth @ (share[0] - share[1])
        if self.side.references is None:
            assert self.plan.matrix is not None
            s = self.plan.matrix.astype(np.float64)
            for own, p in zip((a, b), share, strict=True):
                beside = s - (s @ p)[:, None]  # what label k is worth beside own label m
                terms = terms - (beside[a, own] - beside[b, own])
                mean = mean - ((share[0] - share[1]) @ beside)[own]
        psi, n = terms - mean, len(tasks)
        return np.asarray(terms.sum() / (n - 1)), terms / (n - 1), (psi - psi.mean()) / n

    def _difference_on(self, both: Mask, i: int, j: int) -> Difference | None:
        """The same on tasks that both answered, whatever else is left out or taken out."""
        side, plan = self.side, self.plan
        others = np.ones(len(side.columns), dtype=bool)
        if side.references is None:
            others[[i, j]] = False
        references, signal = side.columns[others][:, both], side.signal.take(both)
        common = references >= 0
        able = common.sum(1) >= 2
        if signal.features is not None:
            able &= np.array([signal.take(c).rank < c.sum() for c in common], dtype=bool)
        if not able.any():
            return None
        weights = np.ones(len(able))
        if self.sums is not None:
            weights = common.sum(1) * weights_without(*self.sums, i, j)[others]
            able &= weights > 0
            if not able.any():
                return None
        references, common, weights = references[able], common[able], weights[able] / weights[able].sum()
        mine, theirs = (_report_on(side, plan, k, both) for k in (i, j))
        if plan.rule.linear:
            paid = _paid_beside(plan, mine) - _paid_beside(plan, theirs)
            value, terms, influence = _linear_terms(paid, references, weights, common, signal)
        else:
            classes = len(side.reports.classes)
            value, terms, influence = _terms_by_rule(plan, (mine, theirs), references, weights, common, signal, classes)
        swaps = plan.rule.separable and math.isclose(value, float(terms.sum()), rel_tol=1e-9, abs_tol=1e-12)
        return Difference(value, terms, influence, int(both.sum()), swaps)


def _report_on(side: Side, plan: Plan, k: int, chosen: Mask) -> npt.NDArray[Any]:
    rows = side.reports.rows if sees_rows(side.reports, plan) else None
    return np.asarray(side.reports.labels[k] if rows is None else rows[k])[chosen]


def _paid_beside(plan: Plan, report: npt.NDArray[Any]) -> Floats:
    """X S: what each task's report is paid beside each reference label."""
    if report.ndim == 2:
        return plan.rule.scored(report)
    assert plan.matrix is not None
    return np.asarray(plan.matrix.astype(np.float64)[report])


def _linear_terms(
    paid: Floats, references: Labels, weights: Floats, common: Mask, signal: Public
) -> tuple[float, Floats, Floats]:
    """The mean over references of <X, M G> task by task, X the difference of what two reports are paid."""
    if common.all():
        said = np.stack([weights @ (references == k) for k in range(paid.shape[1])], axis=1)
        return _centred_terms(paid, signal.residual(said), signal)
    value, terms, influence = 0.0, np.zeros(len(paid)), np.zeros(len(paid))
    identity = np.eye(paid.shape[1])
    for reference, weight, shared in zip(references, weights.tolist(), common, strict=True):
        within = signal.take(shared)
        one, d, phi = _centred_terms(paid[shared], weight * within.residual(identity[reference[shared]]), within)
        value, terms[shared], influence[shared] = value + one, terms[shared] + d, influence[shared] + phi
    return value, terms, influence


def _centred_terms(paid: Floats, reference: Floats, signal: Public) -> tuple[float, Floats, Floats]:
    psi = (signal.residual(paid) * reference).sum(1)
    return float(signal.weights @ psi), signal.weights * (paid * reference).sum(1), (psi - psi.mean()) / len(psi)


def _terms_by_rule(
    plan: Plan, reports: tuple[npt.NDArray[Any], ...], references: Labels, weights: Floats, common: Mask,
    signal: Public, classes: int,
) -> tuple[float, Floats, Floats]:  # fmt: skip
    """The same for a rule that is not linear, from what it says of each report beside each reference."""
    value, terms, influence = 0.0, np.zeros(common.shape[1]), np.zeros(common.shape[1])
    for reference, weight, shared in zip(references, weights.tolist(), common, strict=True):
        g, within = reference[shared], signal.take(shared)
        found = [evaluated(plan.rule, Joint.of(report[shared], g, classes, within)) for report in reports]
        psi = [influence_by_task(e.influence, r[shared], g, within) for e, r in zip(found, reports, strict=True)]
        d = (psi[0] - psi[1]) / len(g)
        if np.isnan(d).any():
            raise OptionError(
                f"rule {plan.rule.name} does not say what each task adds to it, so agents cannot be compared task by "
                f"task; return an Estimate, or use {names_of(lambda r: r.linear)}"
            )
        value += weight * (found[0].value - found[1].value)
        terms[shared] += weight * d
        influence[shared] += weight * (d - d.mean())
    return value, terms, influence


def _seen(found: Difference, a: str, b: str, confidence: float, upright: bool) -> Comparison:
    """A comparison by itself; `upright`: the better of the two first."""
    value, error, z = found.value, found.stderr, quantile(confidence)
    if upright and value < 0:
        a, b, value = b, a, -value
    interval = value - z * error, value + z * error
    return Comparison(a, b, value, error, interval, p := found.p_value, p, found.tasks, found.differ, None)


def _adjusted(seen: Sequence[Comparison], confidence: float) -> list[Comparison]:
    """The comparisons with p-values that count all of them, and how many tasks would decide."""
    made, wanted = [], quantile(confidence, len(seen))
    for one, p in zip(seen, holm([c.p_value for c in seen]), strict=True):
        reached = abs(one.difference) / one.stderr if one.stderr else 0.0
        if reached >= wanted:  # few tasks: the exact p-value says less than the error does
            reached = quantile(1 - max(one.p_value, 1e-15))
        tasks = max(one.tasks * (wanted / max(reached, 1e-9)) ** 2, one.tasks + 1.0)
        decide = None if p <= 1 - confidence or tasks > _MOST_TASKS else math.ceil(tasks)
        made.append(replace(one, adjusted=p, decide=decide))
    return made


def swap_p_value(terms: Floats) -> float:
    """The share of all swaps of two reports, task by task, that give a difference as far from 0 as sum(terms).

    >>> round(swap_p_value(np.array([1.0] * 9 + [-1.0])), 12), 22 / 1024
    (0.021484375, 0.021484375)
    """
    size = np.abs(terms)
    kept = size > _ROUNDING * size.max(initial=0.0)
    size, sign = size[kept], np.sign(terms[kept])
    spread = math.sqrt(float((size**2).sum()))
    if not len(size):
        return 1.0
    z = abs(float((sign * size).sum())) / spread
    magnitudes, place = np.unique(np.round(size / size.max() / _ROUNDING), return_inverse=True)
    if len(magnitudes) > _FEW_MAGNITUDES or z > _SPREAD - 1.5:
        return _smooth_p_value(z, float((size**4).sum()) / spread**4)
    steps, slack = _steps_of(magnitudes, len(size))
    each = np.bincount(place)
    reach = min(float(each @ steps), _SPREAD * math.sqrt(float(each @ steps**2)))
    points = 1 << max(8, math.ceil(math.log2(2 * reach + 2)))
    chance = _chances(steps, each, points)
    far = math.ceil(abs(float(sign @ steps[place])) - slack)
    p = 1.0 if far <= 0 else 2 * float(chance[far : points // 2 + 1].sum())
    return min(1.0, max(p, 2.0 ** (1 - len(size)), 0.0))


def _chances(steps: Floats, each: Ints, points: int) -> Floats:
    """How likely each sum is of so many of each step, up or down, on a circle of points.

    >>> _chances(np.array([1.0, 2.0]), np.array([1, 1]), 8)
    array([0.  , 0.25, 0.  , 0.25, 0.  , 0.25, 0.  , 0.25])
    """
    often, chance = each > _FEW_TIMES, np.zeros(points)
    chance[0] = 1.0
    if often.any():
        angle = np.arange(points // 2 + 1) * (2 * math.pi / points)
        transform = np.ones(len(angle))
        for step, times in zip(steps[often].tolist(), each[often].tolist(), strict=True):
            transform *= np.cos(angle * step) ** times
        chance = np.fft.irfft(transform, points)
    singly = np.repeat(steps, np.where(often | (steps == 0), 0, each)).astype(np.int64).tolist()
    for step in singly:
        around = np.concatenate([chance[-step:], chance, chance[:step]])
        chance = around[: -2 * step] + around[2 * step :]  # halved at the end: so many powers of 2 lose nothing
    return np.asarray(np.ldexp(chance, -len(singly)))


def _steps_of(magnitudes: Floats, tasks: int) -> tuple[Floats, float]:
    """Magnitudes as whole numbers of steps, and by how many steps two equal sums may come to differ."""
    exact = magnitudes / magnitudes[0]
    if np.abs(exact - np.round(exact)).max() < 1e-6 and exact[-1] * tasks < _MOST_STEPS / 2:
        return np.round(exact), 0.0
    slack = 2.0 * math.sqrt(tasks / 12)
    fine = min(_MOST_STEPS / (2 * _SPREAD), slack / 0.003)  # steps a standard deviation
    return np.round(magnitudes / np.sqrt((magnitudes**2).mean() * tasks) * fine), slack


def _smooth_p_value(z: float, fourth: float) -> float:
    """The same where the sums lie densely: the normal law and the first term beyond it."""
    beyond = -fourth / 6 * (z**3 - 3 * z) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return min(1.0, max(_two_tails(z) + beyond, 0.0)) if z < 4 else _two_tails(z)


def _two_tails(z: float) -> float:
    return math.erfc(z / math.sqrt(2))


def holm(p_values: list[float]) -> list[float]:
    """p-values that count all comparisons made: below 0.05 together means wrong once in 20 times. (Holm 1979)

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, p[order] * np.arange(len(p), 0, -1)))
    return [float(x) for x in adjusted]


def rank_intervals(
    comparisons: Sequence[Comparison], agents: Sequence[str], confidence: float
) -> tuple[RankInterval, ...]:
    """For every agent the ranks that the comparisons leave open, best first; all hold together."""
    better, worse, wins = (dict.fromkeys(agents, 0) for _ in range(3))
    for c in comparisons:
        up, down = (c.a, c.b) if c.difference > 0 else (c.b, c.a)
        wins[up] += c.difference != 0
        if c.decided(confidence):
            better[down] += 1
            worse[up] += 1
    order = sorted(agents, key=lambda agent: (better[agent], -worse[agent], -wins[agent], agent))
    return tuple(RankInterval(agent, 1 + better[agent], len(agents) - worse[agent]) for agent in order)
