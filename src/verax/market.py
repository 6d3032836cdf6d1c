"""Submissions in order become payments by differences: a market pays each step for how far it moves the level.

It decides what a step earns, what it must stake for that, and what the house can lose. What a hypothesis scores
is decided in `mechanisms`; no money moves here. Every bound is the rule's own, so that it is known before the
first submission: Hanson's market scoring rule with the scores of this library.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import count, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.errors import InputError, OptionError
from verax.mechanisms import Mechanism, Options, Score, Scores, prepare, score
from verax.mechanisms import pairwise as pairwise_scores
from verax.reports import Reports, checked_names, some
from verax.rules import NAMES, Rule, resolve

FORMAT = "verax.market/1"

Hypothesis = npt.ArrayLike | Mapping[str, str] | Reports
_FIXED = {"zero-one": (-1.0, 1.0), "ca": (-1.0, 1.0), "brier": (-2.0, 2.0), "accuracy": (0.0, 1.0)}
_FIXED |= {"quadratic": (-2.0, 0.0)}
_FLOORED = {"ce": (-1.0, 1.0), "pmi": (-1.0, 1.0), "log": (-1.0, 0.0)}


@dataclass(frozen=True, eq=False)
class Submissions:
    """Hypotheses in order of arrival, the agents of `reports` being the steps; `owners` says whose each is.

    >>> Submissions.of(labels=[[0, 1, 1], [0, 1, 0], [0, 0, 1]], owners=["ann", "bob", "ann"])
    Submissions(3 steps by 2 agents, 3 tasks, 2 classes)
    """

    reports: Reports
    owners: tuple[str, ...]

    def __post_init__(self) -> None:
        steps = self.reports.agents
        if not steps:
            raise InputError("no submission; a market needs at least one step")
        if not all(re.fullmatch(r"-?[0-9]{1,18}", step) for step in steps):
            raise InputError(f"the steps are {some(steps)}; number them in order of arrival")
        if not all(a < b for a, b in pairwise(self.steps)):
            raise InputError(f"the steps {some(steps)} do not go up; give the submissions in order of arrival")
        if len(self.owners) != len(steps):
            raise InputError(f"{len(self.owners)} owners for {len(steps)} steps; say who submitted each")
        different = [*dict.fromkeys(self.owners)]
        checked_names(different, len(different), "agent", "the submissions")

    @classmethod
    def of(
        cls,
        labels: npt.ArrayLike | None = None,
        probabilities: npt.ArrayLike | None = None,
        *,
        owners: Sequence[str],
        steps: Sequence[int] | None = None,
        tasks: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
    ) -> Submissions:
        """Submissions from arrays, a row a step: labels (T, N), or probabilities (T, N, L), as in `Reports.of`.

        >>> Submissions.of(labels=[[0, 1, 1], [0, 1, 0]], owners=["ann", "bob"], steps=[3, 7]).steps
        (3, 7)
        """
        numbers = [str(step) for step in (range(1, len(owners) + 1) if steps is None else steps)]
        reports = Reports.of(
            labels, probabilities, agents=[f"step {n}" for n in numbers], tasks=tasks, classes=classes,
            source="the submissions",
        )  # fmt: skip
        return cls(replace(reports, agents=tuple(numbers)), tuple(owners))

    @property
    def steps(self) -> tuple[int, ...]:
        """The number of each step, in order of arrival."""
        return tuple(map(int, self.reports.agents))

    def __repr__(self) -> str:
        r = self.reports
        return (
            f"Submissions({len(r.agents)} steps by {len(set(self.owners))} agents, {len(r.tasks)} tasks, "
            f"{len(r.classes)} classes)"
        )


@dataclass(frozen=True)
class Step:
    """What one submission did: the level it reached and what that earns, scale * (level - the level before)."""

    step: int
    agent: str
    level: float
    score: float


@dataclass(frozen=True)
class Survey:
    """How a survey closed the market: whose hypothesis was drawn, from how many, and what surveys themselves earn.

    `excluded` are those who also hold a market position. `bound` is Theorem 10's, for those who were kept.
    """

    drawn: str
    seed: str | None
    agents: int
    excluded: tuple[str, ...]
    scores: tuple[Score, ...]
    bound: float | None


@dataclass(frozen=True)
class Money:
    """A market in integers of a minor unit: an amount a step, each agent's total, and what must be locked."""

    amounts: tuple[int, ...]
    totals: dict[str, int]
    stake: int
    worst_case_loss: int


@dataclass(frozen=True)
class Market:
    """A closed market: what every step earned, between the initial and the final level.

    >>> path = Submissions.of(labels=[[0, 1, 0, 0], [0, 1, 0, 1], [1, 1, 0, 1]], owners=["ann", "bob", "ann"])
    >>> closed = market(path, truth=[0, 1, 0, 1])
    >>> [round(p.score, 3) for p in closed.payments], round(closed.final, 3), closed.stake
    ([0.333, 0.333, -0.333], 0.333, 2.0)
    >>> closed.money(unit=100)
    Money(amounts=(33, 34, -34), totals={'ann': -1, 'bob': 34}, stake=200, worst_case_loss=100)
    """

    mechanism: Mechanism
    initial: float
    final: float
    worst_case_loss: float
    survey: Survey | None
    payments: tuple[Step, ...]
    scale: float = 1.0

    @property
    def stake(self) -> float:
        """The most that one step can lose: less than this locked, and two identities profit by sabotage."""
        low, high = bounds(self.mechanism)
        return self.scale * (high - low)

    def totals(self) -> dict[str, float]:
        """What each agent earned over all its steps, in order of first arrival."""
        agents = dict.fromkeys(p.agent for p in self.payments)
        return {agent: math.fsum(p.score for p in self.payments if p.agent == agent) for agent in agents}

    def money(self, unit: int) -> Money:
        """The market in money, `unit` minor units to a score of 1: levels are rounded, so that amounts telescope."""
        if isinstance(unit, bool) or not isinstance(unit, int) or unit < 1:
            raise OptionError(f"the unit is {unit!r}; give a whole number of minor units, such as 100")
        amounts = settle([p.level for p in self.payments], unit=unit, initial=self.initial, scale=self.scale)
        totals = dict.fromkeys((p.agent for p in self.payments), 0)
        for p, amount in zip(self.payments, amounts, strict=True):
            totals[p.agent] += amount
        low, high = bounds(self.mechanism)
        return Money(
            tuple(amounts),
            totals,
            _most(low, high, self.scale, unit),
            _most(self.initial, high, self.scale, unit),
        )

    def to_json(self) -> dict[str, Any]:
        """The one JSON form, the same in the command line and wherever markets are stored."""
        return {
            "format": FORMAT,
            "mechanism": asdict(self.mechanism),
            "initial": self.initial,
            "final": self.final,
            "worst_case_loss": self.worst_case_loss,
            "survey": None if self.survey is None else _lists(asdict(self.survey)),
            "payments": [asdict(p) for p in self.payments],
        }

    @classmethod
    def from_json(cls, document: Any) -> Market:
        """A market from its JSON form, if its scores follow from its levels; the scale is read off them.

        >>> path = Submissions.of(labels=[[0, 1, 0], [0, 1, 1]], owners=["ann", "bob"])
        >>> closed = market(path, truth=[0, 1, 1], scale=0.3)
        >>> Market.from_json(closed.to_json()) == closed
        True
        """
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError(f"not a document of format {FORMAT}; make one with: verax market SUBMISSIONS --json")
        try:
            return _from_json(document)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"a {FORMAT} document lacks or misnames a field ({error}); make it again") from None


def market(
    submissions: Submissions,
    *,
    truth: npt.ArrayLike | Mapping[str, str] | None = None,
    survey: Reports | None = None,
    seed: str | None = None,
    initial: Hypothesis | None = None,
    rule: str = "zero-one",
    sign: str | npt.ArrayLike | None = None,
    floor: float | None = None,
    scale: float = 1.0,
    keep_both: bool = False,
) -> Market:
    """Close a market: each step earns scale * (its level - the level before). (Theorem 6, Algorithm 2)

    A level is a hypothesis's score against what closes the market, times the share of tasks it answers. The
    `truth` closes it, or the one hypothesis of a `survey`, or one of several, drawn from `seed` (hex text), those
    of market agents left out unless `keep_both`. `initial`, where the path begins: level 0, or a hypothesis
    (labels, rows, {task: label}, or reports of one agent). `rule`, `sign` and `floor` as in `score`.

    >>> path = Submissions.of(labels=[[0, 1, 0, 0], [0, 1, 0, 1]], owners=["ann", "bob"])
    >>> surveys = Reports.of(labels=[[0, 1, 0, 1], [0, 1, 1, 1], [1, 1, 0, 1]], agents=["bob", "cy", "di"])
    >>> market(path, survey=surveys, seed="00ff").survey.excluded
    ('bob',)
    """
    chosen = _checked(rule, sign, floor, scale)
    _check_closing(truth, survey, seed, keep_both, chosen)
    reports = submissions.reports if chosen.needs_rows else replace(submissions.reports, probabilities=None)
    if initial is not None:
        reports = _preceded(reports, initial)
    surveyed = None
    if survey is not None:
        surveyed = _surveyed(survey, reports, submissions.owners, seed, keep_both, rule, sign, floor)
        if keep_both:
            surveyed = replace(surveyed, bound=_bound_of(survey, scale, chosen, sign))
        truth = _labels_of(survey, survey.agents.index(surveyed.drawn))
    closed = _closed(reports, truth, chosen, None if surveyed is None else surveyed.drawn)
    found = score(closed, closed.truth, rule=rule, against="truth", sign=sign, floor=floor)
    mechanism = found.mechanism if survey is None else replace(found.mechanism, against="peers", over="one")
    levels = _levels(found)
    start = 0.0 if initial is None else levels.pop(0)
    earned = increments(levels, start, scale)
    steps = tuple(map(Step, submissions.steps, submissions.owners, levels, earned))
    return Market(
        mechanism, start, levels[-1], scale * (bounds(mechanism)[1] - start), surveyed, steps, float(scale)
    )  # fmt: skip


def bounds(mechanism: Mechanism) -> tuple[float, float]:
    """Between what levels every hypothesis lies under a rule: known before there is any hypothesis.

    >>> bounds(Mechanism("zero-one", "truth", None, "identity", False, None))
    (-1.0, 1.0)
    """
    if mechanism.rule in _FLOORED and isinstance(mechanism.floor, float) and 0 < mechanism.floor < 1:
        low, high = _FLOORED[mechanism.rule]
        return low * -math.log(mechanism.floor), high * -math.log(mechanism.floor)
    if mechanism.rule not in _FIXED:
        raise InputError(f"rule {mechanism.rule!r} has no bounds that verax knows; use one of {', '.join(NAMES)}")
    return _FIXED[mechanism.rule]


def increments(levels: Sequence[float], initial: float = 0.0, scale: float = 1.0) -> list[float]:
    """What each step earns: scale * (its level - the level before). (equation 3)

    >>> increments([0.25, 0.5, 0.25], scale=2.0)
    [0.5, 0.5, -0.5]
    """
    return [scale * (level - before) for before, level in pairwise((initial, *levels))]


def settle(levels: Sequence[float], *, unit: int, initial: float = 0.0, scale: float = 1.0) -> list[int]:
    """What each step earns in money: levels are rounded, half to even, and then differenced.

    So amounts sum to the rounded last level minus the rounded first, whatever lies between; rounding the
    differences would drift.

    >>> settle([0.004, 0.008, 0.012], unit=100), [round(100 * x) for x in increments([0.004, 0.008, 0.012])]
    ([0, 1, 0], [0, 0, 0])
    """
    marks = [round(Fraction(scale * level) * unit) for level in (initial, *levels)]
    return [mark - before for before, mark in pairwise(marks)]


def draw(seed: str, below: int) -> int:
    """An integer from 0 up to but not including `below`, each equally likely, the same on every machine.

    SHA-256 of the seed's bytes and an eight-byte counter, as a number; one from the incomplete last round of
    `below` is thrown away and the counter goes up.

    >>> [draw(f"{n:02x}", 10) for n in range(8)]
    [4, 4, 6, 6, 6, 9, 9, 4]
    """
    if not re.fullmatch(r"([0-9a-fA-F]{2})+", seed):
        raise OptionError(f"the seed is {seed!r}; give hexadecimal digits, two a byte, such as 00c0ffee")
    whole = 2**256 - 2**256 % below
    numbers = (hashlib.sha256(bytes.fromhex(seed) + n.to_bytes(8, "big")).digest() for n in count())
    return next(number for digest in numbers if (number := int.from_bytes(digest, "big")) < whole) % below


def deviation_bound(scale: float, informativeness: float, surveys: int) -> float:
    """How much less accurate a report can gain one who is in the market and among C surveys. (Theorem 10)

    lambda / (J' (C + lambda (C - 1))), with lambda the scale and J' = 1 - alpha' - beta' of a survey.

    >>> round(deviation_bound(1.0, 0.8, 10), 10)
    0.0657894737
    """
    return scale / (informativeness * (surveys + scale * (surveys - 1)))


def informativeness(surveys: Reports) -> float | None:
    """J' = 1 - alpha' - beta' of a survey drawn at random, two labels; None where it cannot be told.

    From the surveys' own truth if they carry it. Else from three or more, independent given the truth and at an
    even prior: S_ij = J_i J_j / 2, so J_i^2 = 2 S_ij S_ik / S_jk, sums over all pairs j, k in place of one. At
    another prior it comes out lower, and Theorem 10's bound higher.

    >>> half = [[0, 0, 0, 1, 1, 1, 1, 0]] * 2
    >>> informativeness(Reports.of(labels=half, truth=[0, 0, 0, 0, 1, 1, 1, 1]))
    0.5
    """
    if len(surveys.classes) != 2:
        return None
    if surveys.truth is not None:
        given = [[(surveys.labels[:, surveys.truth == y] == k).sum(1) for k in (0, 1)] for y in (0, 1)]
        (right, wrong), (false, true) = (np.asarray(counts, dtype=float) for counts in given)
        if not ((right + wrong > 0) & (false + true > 0)).all():
            return None
        return float((right / (right + wrong) - false / (false + true)).mean())
    if len(surveys.agents) < 3:
        return None
    s = pairwise_scores(prepare(replace(surveys, probabilities=None), None, None, Options()))
    np.fill_diagonal(s, 0.0)
    row = s.sum(1)
    mine, others = row**2 - (s**2).sum(1), row.sum() - 2 * row
    if not (others > 0).all():  # NaN where two share no tasks
        return None
    each = np.sqrt(2 * np.maximum(mine, 0.0) / others) * np.sign(row)
    return min(1.0, float(each.mean()))


def _checked(rule: str, sign: str | npt.ArrayLike | None, floor: float | None, scale: float) -> Rule:
    if not isinstance(rule, str) or rule not in NAMES:
        raise OptionError(
            f"a market must know what it can lose, and rule {rule!r} has no bounds that verax knows; "
            f"choose one of {', '.join(NAMES)}"
        )
    if isinstance(sign, str) and sign == "plugin":
        raise OptionError("sign plugin is learned on the tasks it scores, which pays noise; use split, or a matrix")
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < 1e300:
        raise OptionError(f"the scale is {scale!r}; give a finite number above 0, such as 1.0")
    return resolve(rule, floor)


def _check_closing(truth: object, survey: Reports | None, seed: str | None, keep_both: bool, rule: Rule) -> None:
    if (truth is None) == (survey is None):
        seen = "neither truth nor a survey" if truth is None else "both truth and a survey"
        raise OptionError(f"{seen} to close the market by; give one of them")
    if survey is None:
        if seed is not None or keep_both:
            raise OptionError("a seed and keep_both are about surveys, and the truth closes this; leave them out")
        return
    if rule.truth_only:
        raise OptionError(f"rule {rule.name} needs the truth; close by it, or use zero-one, ca, ce, brier or pmi")
    if not survey.agents:
        raise InputError("the survey has no agent; give at least one hypothesis")
    if len(survey.agents) > 1 and seed is None:
        raise OptionError(f"one of {len(survey.agents)} surveys is to be drawn; give a seed of hexadecimal digits")


def _surveyed(
    survey: Reports, reports: Reports, owners: Sequence[str], seed: str | None, keep_both: bool, rule: str,
    sign: str | npt.ArrayLike | None, floor: float | None,
) -> Survey:  # fmt: skip
    """Draws the survey that closes the market, once; everything that could refuse it is looked at before."""
    _check_survey(survey, reports, matrix=sign is not None and not isinstance(sign, str))
    excluded = () if keep_both else tuple(sorted({*owners} & {*survey.agents}))
    able = sorted({*survey.agents} - {*excluded})
    if not able:
        raise InputError(
            f"everybody in the survey also holds a market position ({some(excluded)}), so nobody is left to close it; "
            "survey others, or keep both"
        )
    try:
        scores: tuple[Score, ...] = (Score(survey.agents[0], None, None, 0, 0),)
        if len(survey.agents) > 1:
            scores = score(survey, rule=rule, sign=sign, floor=floor).scores
    except (InputError, OptionError) as error:
        raise type(error)(f"the survey: {error}") from None
    drawn = able[0 if seed is None else draw(seed, len(able))]
    return Survey(drawn, seed, len(survey.agents), excluded, scores, None)


def _check_survey(survey: Reports, reports: Reports, *, matrix: bool) -> None:
    at = [task in set(reports.tasks) for task in survey.tasks]
    for agent, shared in zip(survey.agents, (survey.labels[:, at] >= 0).sum(1).tolist(), strict=True):
        if shared < 2:
            raise InputError(
                f"survey {agent!r} answers {shared} of the market's tasks (such as {reports.tasks[0]!r}); "
                "check the task names, or leave it out"
            )
    strange = [c for c in survey.classes if c not in reports.classes]
    if (strange and reports.classes_given) or (matrix and survey.classes != reports.classes):
        raise InputError(
            f"the survey's classes are {some(survey.classes)}, the market's {some(reports.classes)}; name the same"
        )


def _bound_of(survey: Reports, scale: float, rule: Rule, sign: str | npt.ArrayLike | None) -> float | None:
    """Theorem 10 is about agreement on equal labels: a learned sign is that too where surveys are informative."""
    if rule.name not in ("zero-one", "ca") or not (sign is None or isinstance(sign, str)):
        return None
    j = informativeness(survey)
    return deviation_bound(scale, j, len(survey.agents)) if j is not None and j > 0 else None


def _labels_of(reports: Reports, i: int) -> dict[str, str]:
    row = zip(reports.tasks, reports.labels[i].tolist(), strict=True)
    return {task: reports.classes[label] for task, label in row if label >= 0}


def _preceded(reports: Reports, initial: Hypothesis) -> Reports:
    """The reports with the initial hypothesis as their first row, over the same tasks."""
    source = "the initial hypothesis"
    if not isinstance(initial, Reports | Mapping) and np.ndim(initial) == 2:
        row = [np.asarray(initial)]
        initial = Reports.of(probabilities=row, tasks=reports.tasks, classes=reports.classes, source=source)
    if isinstance(initial, Reports) and len(initial.agents) != 1:
        raise InputError(f"{source} is {len(initial.agents)} hypotheses; give the reports of one agent")
    rows = None if reports.probabilities is None else _rows_of(initial, reports)[None]
    wider = reports.with_truth(_labels_of(initial, 0) if isinstance(initial, Reports) else initial, source)
    assert wider.truth is not None
    return replace(
        wider,
        labels=np.vstack([wider.truth[None], wider.labels]),
        agents=("initial", *wider.agents),
        probabilities=None if rows is None else np.concatenate([rows, wider.probabilities]),
        truth=None,
    )


def _rows_of(initial: Hypothesis, reports: Reports) -> npt.NDArray[np.float64]:
    """The initial hypothesis's rows on the reports' tasks, NaN where it has none."""
    if not isinstance(initial, Reports) or initial.probabilities is None:
        raise InputError("the initial hypothesis has labels only, and the rule scores probabilities; give its rows")
    if initial.classes != reports.classes:
        raise InputError(
            f"the initial hypothesis has classes {some(initial.classes)}, the submissions {some(reports.classes)}; "
            "give the same, in the same order"
        )
    place = {task: n for n, task in enumerate(initial.tasks)}
    none = np.full((1, len(reports.classes)), np.nan)
    return np.concatenate([initial.probabilities[0], none])[[place.get(task, -1) for task in reports.tasks]]


def _closed(
    reports: Reports, truth: npt.ArrayLike | Mapping[str, str] | None, rule: Rule, drawn: str | None
) -> Reports:
    """The reports beside what closes the market, on the tasks that it answers."""
    assert truth is not None
    source = "the truth" if drawn is None else f"survey {drawn!r}"
    closed = reports.with_truth(truth, source)
    assert closed.truth is not None
    known = closed.truth >= 0
    if known.sum() < 2:
        raise InputError(f"{source} covers {known.sum()} of {len(known)} tasks; closing a market needs at least two")
    closed = closed.take(known)
    missing = [(k, n) for k, n in np.argwhere(closed.labels < 0).tolist()]
    if rule.name in ("log", "quadratic") and missing:
        step, task = closed.agents[missing[0][0]], closed.tasks[missing[0][1]]
        raise InputError(
            f"step {step} leaves task {task!r} out, and under rule {rule.name}, which is never above 0, leaving tasks "
            "out would be paid; answer every task, or use another rule"
        )
    return closed


def _levels(found: Scores) -> list[float]:
    """Score times coverage, so that leaving a hard task out gains nothing; held to what stakes are made for."""
    low, high = bounds(found.mechanism)
    return [min(high, max(low, (s.score or 0.0) * (s.tasks / found.tasks))) for s in found.scores]


def _most(low: float, high: float, scale: float, unit: int) -> int:
    """The most that a move within these levels can cost in money, rounded up: half units at both ends round apart."""
    exact = (Fraction(scale * high) - Fraction(scale * low)) * unit
    return max(math.ceil(exact), *settle([high], unit=unit, initial=low, scale=scale))


def _lists(value: Any) -> Any:
    """What JSON would make of it, so that a document equals itself read back."""
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _from_json(document: dict[str, Any]) -> Market:
    mechanism, stored = Mechanism(**document["mechanism"]), document["survey"]
    steps = tuple(Step(**p) for p in document["payments"])
    survey = None
    if stored is not None:
        scores = tuple(Score(**s) for s in stored["scores"])
        survey = Survey(**{**stored, "excluded": tuple(stored["excluded"]), "scores": scores})
    initial, loss = float(document["initial"]), float(document["worst_case_loss"])
    levels = [p.level for p in steps]
    moves = [*zip([p.score for p in steps], increments(levels, initial), strict=True)]
    moves.insert(0, (loss, bounds(mechanism)[1] - initial))
    # fifteen digits undo the rounding of a product and a quotient
    scale = next((float(f"{earned / moved:.15g}") for earned, moved in moves if moved), 1.0)
    if not all(math.isclose(a, scale * b, rel_tol=1e-9, abs_tol=1e-12 * scale) for a, b in moves):
        raise InputError("the market's scores do not follow from its levels; make it again")
    final = float(document["final"])
    if not steps or final != steps[-1].level:
        raise InputError("the market's final level is not its last step's; make it again")
    return Market(mechanism, initial, final, loss, survey, steps, scale)
