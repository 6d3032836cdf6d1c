"""Submissions in order become payments by differences: each step is paid for how far it moves the level.

It decides what a step earns, what it must stake for that, and what the house can lose; what a hypothesis scores
is decided in `mechanisms`, and no money moves here. Bounds are the rule's own, known before the first submission.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise as neighbours

import numpy as np
import numpy.typing as npt

from verax import wire
from verax.closing import Survey as Survey
from verax.closing import check_closing, draw_survey, parts_to_close, with_all_answers
from verax.closing import draw as draw
from verax.errors import InputError, OptionError
from verax.money import is_finite
from verax.plan import Mechanism
from verax.reports import Reports, checked_names, some
from verax.rules import DEFAULT, RULES, Rule, RuleFunction, resolve
from verax.schemes import known_rule, rule_of, value_bounds
from verax.score import Scores, pairwise, prepare, scored
from verax.space import said_of_memory


@dataclass(frozen=True, eq=False)
class Submissions:
    """Hypotheses in order of arrival, the agents of `reports` being the steps; `owners` says whose each is.

    >>> Submissions.of(labels=[[0, 1, 1], [0, 1, 0], [0, 0, 1]], owners=["ann", "bob", "ann"])
    Submissions(3 steps by 2 agents, 3 tasks, 2 classes)
    """

    reports: Reports
    owners: tuple[str, ...]

    def __post_init__(self) -> None:
        names = self.reports.agents
        if not names:
            raise InputError("no submission; a market needs at least one step")
        whole = all(re.fullmatch("-?[0-9]{1,18}", name) for name in names)
        if not whole or any(a >= b for a, b in neighbours(self.steps)):
            raise InputError(f"the steps are {some(names)}; number the submissions upwards, in order of arrival")
        if len(self.owners) != len(names):
            raise InputError(f"{len(self.owners)} owners for {len(names)} steps; say who submitted each")
        different = [*dict.fromkeys(self.owners)]  # an agent may return
        checked_names(different, len(different), "agent", "the submissions")

    @classmethod
    def of(
        cls,
        labels: npt.ArrayLike | None = None,
        probabilities: npt.ArrayLike | None = None,
        *,
        owners: Sequence[str],
        tasks: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
    ) -> Submissions:
        """Submissions from arrays, a row a step: labels (T, N), or probabilities (T, N, L), as in `Reports.of`.

        >>> Submissions.of(labels=[[0, 1, 1], [0, 1, 0]], owners=["ann", "bob"]).steps
        (1, 2)
        """
        steps = range(1, len(owners) + 1)
        reports = Reports.of(
            labels, probabilities, agents=[f"step {n}" for n in steps], tasks=tasks, classes=classes,
            source="the submissions",
        )  # fmt: skip
        return cls(replace(reports, agents=tuple(map(str, steps))), tuple(owners))

    @property
    def steps(self) -> tuple[int, ...]:
        """The number of each step."""
        return tuple(map(int, self.reports.agents))

    def __repr__(self) -> str:
        steps, r = f"{len(self.owners)} steps by {len(set(self.owners))} agents", self.reports
        return f"Submissions({steps}, {len(r.tasks)} tasks, {len(r.classes)} classes)"


@dataclass(frozen=True)
class Step:
    """The level that one submission reached, and what that earns: scale * (level - the level before).

    >>> Step(2, "bob", 0.5, 0.25).agent
    'bob'
    """

    step: int
    agent: str
    level: float
    score: float


@dataclass(frozen=True)
class Money:
    """A market in minor units: what each step and each agent earned, what a step must stake, what the house can lose.

    >>> Money((33, 34), {"ann": 33, "bob": 34}, 200, 100).totals["bob"]
    34
    """

    amounts: tuple[int, ...]
    totals: dict[str, int]
    stake: int
    worst_case_loss: int


@dataclass(frozen=True)
class Market(wire.Document, format=wire.MARKET):
    """A closed market: what every step earned, between the initial and the final level.

    One whose scores do not follow from its levels cannot be made. The `scale` is no part of the JSON form, nor of
    equality: it is read off the scores.

    >>> path = Submissions.of(labels=[[0, 1, 0, 0], [0, 1, 0, 1], [1, 1, 0, 1]], owners=["ann", "bob", "ann"])
    >>> closed = market(path, truth=[0, 1, 0, 1])
    >>> [round(p.score, 3) for p in closed.payments], closed.totals()["ann"], closed.stake
    ([0.333, 0.333, -0.333], 0.0, 2.0)
    >>> closed.money(unit=100)
    Money(amounts=(33, 34, -34), totals={'ann': -1, 'bob': 34}, stake=200, worst_case_loss=100)
    >>> Market.from_json(closed.to_json()) == closed
    True
    """

    mechanism: Mechanism
    initial: float
    final: float
    worst_case_loss: float
    survey: Survey | None
    payments: tuple[Step, ...]
    scale: float = wire.unwritten(0.0, compare=False)

    def __post_init__(self) -> None:
        levels, (low, high) = [p.level for p in self.payments], bounds(self.mechanism)
        moves = [high - self.initial, *increments(levels, self.initial)]
        earned = [self.worst_case_loss, *(p.score for p in self.payments)]
        pairs = list(zip(earned, moves, strict=True))
        # fifteen digits undo the rounding of a product and a quotient
        scale = self.scale or next((float(f"{e / m:.15g}") for e, m in pairs if m), 1.0)
        follow = all(math.isclose(e, scale * m, rel_tol=1e-9, abs_tol=1e-300) for e, m in pairs)
        inside = all(low <= level <= high for level in (self.initial, *levels))
        if [self.final] != levels[-1:] or not follow or not inside or scale <= 0:
            raise InputError(f"the scores of a {wire.MARKET} document do not follow from its levels; make it again")
        object.__setattr__(self, "scale", scale)

    @property
    def stake(self) -> float:
        """The most that one step can lose."""
        low, high = bounds(self.mechanism)
        return self.scale * (high - low)

    def totals(self) -> dict[str, float]:
        """What each agent earned over all its steps, in order of first arrival."""
        agents = dict.fromkeys(p.agent for p in self.payments)
        return {agent: math.fsum(p.score for p in self.payments if p.agent == agent) for agent in agents}

    def money(self, unit: int) -> Money:
        """The market in money, `unit` minor units to a score of 1; see `settle`."""
        amounts = settle([p.level for p in self.payments], unit=unit, initial=self.initial, scale=self.scale)
        totals = dict.fromkeys((p.agent for p in self.payments), 0)
        for p, amount in zip(self.payments, amounts, strict=True):
            totals[p.agent] += amount
        loss = _most_lost(self.initial, bounds(self.mechanism)[1], self.scale, unit)
        return Money(tuple(amounts), totals, stake(self.mechanism, unit=unit, scale=self.scale), loss)


@said_of_memory("close it on fewer tasks")
def market(
    submissions: Submissions,
    *,
    truth: npt.ArrayLike | Mapping[str, str] | None = None,
    survey: Reports | None = None,
    seed: str | None = None,
    initial: npt.ArrayLike | Reports | None = None,
    rule: str | Rule | RuleFunction = DEFAULT,
    sign: str | npt.ArrayLike | None = None,
    floor: float | None = None,
    scale: float = 1.0,
    keep_both: bool = False,
    hybrid: bool = False,
) -> Market:
    """Close a market: each step earns scale * (its level - the level before). (Theorem 6, Algorithm 2)

    A level is a hypothesis's score against what closes the market, times the share of tasks it answers. The
    `truth` closes it, or the hypothesis of a `survey` of one, or one of several drawn from `seed` (hex text),
    those of market agents left out unless `keep_both`. With `hybrid` the truth closes the tasks it has and the survey
    the others, each level weighted by its tasks. `initial`, where the path begins: level 0, or a
    hypothesis as labels (N,), rows (N, L) or reports of one agent. `rule`, `sign` and `floor` as in `score`.

    >>> path = Submissions.of(labels=[[0, 1, 0, 0], [0, 1, 0, 1]], owners=["ann", "bob"])
    >>> surveys = Reports.of(labels=[[0, 1, 0, 1], [0, 1, 1, 1], [1, 1, 0, 1]], agents=["bob", "cy", "di"])
    >>> market(path, survey=surveys, seed="00ff").survey.excluded
    ('bob',)
    """
    if not isinstance(submissions, Submissions):
        raise InputError(f"submissions is a {type(submissions).__name__}; give verax.market.Submissions")
    if not isinstance(survey, Reports | None):
        raise InputError(f"survey is a {type(survey).__name__}; give Reports, of all that were surveyed")
    chosen = _priced_rule(rule, sign, floor, scale)
    check_closing(truth, survey, seed, keep_both, hybrid, chosen)
    asked, reports, closing = Mechanism.of(chosen, sign=sign), submissions.reports, None
    if not chosen.needs_rows and not chosen.own:  # one's own may look at rows where there are any
        reports = replace(reports, probabilities=None)
    if initial is not None:
        reports = _followed_by(reports, initial)
    if survey is not None:
        closing = draw_survey(survey, reports, submissions.owners, seed, keep_both, asked)
        bound = survey_bound(survey, scale, chosen, sign) if keep_both else None
        closing = replace(closing, bound=bound)
    parts = parts_to_close(reports, truth, survey, closing)
    said = [part for part in parts if (part.labels >= 0).sum(1).max() >= 2] or parts
    every = [scored(prepare(with_all_answers(part, chosen), part.truth, None, replace(asked, against="truth")))
             for part in said]  # fmt: skip
    levels, found = _covered_levels(every, sum(len(part.tasks) for part in parts)), every[0]
    start = 0.0 if initial is None else levels.pop()
    steps = map(Step, submissions.steps, submissions.owners, levels, increments(levels, start, scale))
    against = "hybrid" if hybrid else "peers"
    mechanism = found.mechanism if closing is None else replace(found.mechanism, against=against, over="one")
    loss = scale * (bounds(mechanism)[1] - start)
    return Market(mechanism, start, levels[-1], loss, closing, tuple(steps), float(scale))


def bounds(mechanism: Mechanism) -> tuple[float, float]:
    """Between which levels every hypothesis lies, by the rule and its floor alone.

    >>> bounds(Mechanism("zero-one", "truth", None, "identity", False, None))
    (-1.0, 1.0)
    """
    rule = rule_of(mechanism)
    found = None if rule is None else value_bounds(rule)
    if found is None:
        raise OptionError(_without_bounds(mechanism.rule))
    return found


def stake(mechanism: Mechanism, *, unit: int, scale: float = 1.0) -> int:
    """What a step must have locked before it is taken, in money: the most it can lose.

    With less, one identity sabotages, another restores, and what the first cannot pay is the second's profit.

    >>> stake(Mechanism("zero-one", "truth", None, "identity", False, None), unit=100)
    200
    """
    return _most_lost(*bounds(mechanism), scale, unit)


def increments(levels: Sequence[float], initial: float = 0.0, scale: float = 1.0) -> list[float]:
    """What each step earns: scale * (its level - the level before). (section 3, "A market implementation")

    >>> increments([0.25, 0.5, 0.25], scale=2.0)
    [0.5, 0.5, -0.5]
    """
    return [scale * (level - before) for before, level in neighbours((initial, *levels))]


def settle(levels: Sequence[float], *, unit: int, initial: float = 0.0, scale: float = 1.0) -> list[int]:
    """What each step earns in money: levels are rounded, half to even, and then differenced.

    So amounts sum to the last level in money minus the first, to the unit; differences rounded one by one drift.

    >>> settle([0.004, 0.008, 0.012], unit=100), [round(100 * x) for x in increments([0.004, 0.008, 0.012])]
    ([0, 1, 0], [0, 0, 0])
    """
    if isinstance(unit, bool) or not isinstance(unit, int) or unit < 1:
        raise OptionError(f"the unit is {unit!r}; give a whole number of minor units, such as 100")
    marks = [round(Fraction(scale * level) * unit) for level in (initial, *levels)]
    return [mark - before for before, mark in neighbours(marks)]


def deviation_bound(scale: float, youden: float, surveys: int) -> float:
    """How much less accurate a report may be and still gain one who is in market and survey. (Theorem 10)

    lambda / (J' (C + lambda (C - 1))): lambda the scale, J' = 1 - alpha' - beta' of a survey, C surveys.

    >>> round(deviation_bound(1.0, 0.8, 10), 10)
    0.0657894737
    """
    return scale / (youden * (surveys + scale * (surveys - 1)))


def informativeness(surveys: Reports) -> float | None:
    """J' = 1 - alpha' - beta', the mean over surveys, two labels; None where it cannot be told.

    From the surveys' own truth if they carry it. Else from three or more that are independent given the truth,
    at an even prior: S_ij = J_i J_j / 2, so J_i^2 = 2 S_ij S_ik / S_jk, here with sums over all pairs j, k. At
    another prior it comes out lower, and Theorem 10's bound higher.

    >>> informativeness(Reports.of(labels=[[0, 0, 0, 1, 1, 1, 1, 0]], truth=[0, 0, 0, 0, 1, 1, 1, 1]))
    0.5
    """
    if len(surveys.classes) != 2 or (surveys.truth is None and len(surveys.agents) < 3):
        return None
    if surveys.truth is not None:
        said = [[(surveys.labels[:, surveys.truth == y] == k).sum(1) for k in (0, 1)] for y in (0, 1)]
        answered = np.sum(said, axis=1)
        return float((said[0][0] / answered[0] - said[1][0] / answered[1]).mean()) if answered.all() else None
    s = pairwise(prepare(replace(surveys, probabilities=None)))
    np.fill_diagonal(s, 0.0)
    own = s.sum(1)
    with_two, without = own**2 - (s**2).sum(1), own.sum() - 2 * own
    if not (without > 0).all():  # uninformative together, or NaN where two share no tasks
        return None
    return min(1.0, float((np.sqrt(2 * np.maximum(with_two, 0) / without) * np.sign(own)).mean()))


def _without_bounds(name: str) -> str:
    return (
        f"a market must know what it can lose, and rule {name!r} has no bounds that verax knows; "
        f"choose one of {', '.join(RULES)}, or load your own with its bounds on it (agreement.bounds = (0.0, 1.0))"
    )


def _priced_rule(
    rule: str | Rule | RuleFunction, sign: str | npt.ArrayLike | None, floor: float | None, scale: float
) -> Rule:
    chosen = known_rule(rule) if isinstance(rule, str) else resolve(rule)
    if chosen is None or value_bounds(chosen) is None:
        raise OptionError(_without_bounds(str(rule) if chosen is None else chosen.name))
    if isinstance(sign, str) and sign == "plugin":
        raise OptionError("sign plugin is learned on the tasks it scores, which pays noise; use split, or a matrix")
    if not is_finite(scale) or scale <= 0:
        raise OptionError(f"the scale is {scale!r}; give a finite number above 0, such as 1.0")
    return chosen.with_floor(floor)


def survey_bound(survey: Reports, scale: float, rule: Rule, sign: str | npt.ArrayLike | None) -> float | None:
    """Theorem 10's bound: of agreement on equal labels, which is what a sign learned from the informed says too.

    >>> survey_bound(Reports.of(labels=[[0, 0, 1, 1]], truth=[0, 0, 1, 1]), 1.0, RULES["zero-one"], None)
    1.0
    """
    able = rule.counts_only and isinstance(sign, str | None)
    youden = informativeness(survey) if able else None
    return deviation_bound(scale, youden, len(survey.agents)) if youden is not None and youden > 0 else None


def _followed_by(reports: Reports, initial: npt.ArrayLike | Reports) -> Reports:
    """The reports with the initial hypothesis as one more, the last, over the same tasks."""
    if not isinstance(initial, Reports):
        given, source = np.asarray(initial), "the initial hypothesis"
        wider = reports if given.ndim == 2 else reports.with_truth(given, source)
        labels, rows = (None, given[None]) if given.ndim == 2 else (np.array([wider.truth]), None)
        initial = Reports.of(labels, rows, tasks=wider.tasks, classes=wider.classes, source=source)
        initial = replace(initial, classes_given=reports.classes_given)
    if len(initial.agents) != 1:
        raise InputError(f"the initial hypothesis is of {len(initial.agents)} agents; give the reports of one")
    rows = None if reports.probabilities is None else initial.rows
    try:
        both = replace(reports, public=None) + replace(initial, agents=("initial",), probabilities=rows, public=None)
    except InputError as error:
        raise InputError(f"the initial hypothesis: {error}") from None
    return replace(both.take(np.arange(len(both.tasks)) < len(reports.tasks)), public=reports.public)


def _covered_levels(parts: Sequence[Scores], tasks: int) -> list[float]:
    """Score times coverage, so that leaving a hard task out gains nothing; held to the bounds that stakes cover.

    Of several parts each counts by its tasks.
    """
    low, high = bounds(parts[0].mechanism)
    each = [
        math.fsum((s.score or 0.0) * (s.tasks / tasks) for s in of_one)
        for of_one in zip(*(part.scores for part in parts), strict=True)
    ]
    return [min(high, max(low, level)) for level in each]


def _most_lost(low: float, high: float, scale: float, unit: int) -> int:
    """What a move from one level to the other costs, rounded up; half units at both ends are rounded apart."""
    exact = (Fraction(scale * high) - Fraction(scale * low)) * unit
    return max(math.ceil(exact), *settle([high], unit=unit, initial=low, scale=scale))
