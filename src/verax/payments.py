"""Scores and a budget become Payments: the only place where a float becomes money; a score is not made here.

What is not paid, by rounding or by the scheme, goes back to the payer, and every way in which a payment departs from
the score is told in a note. Nothing here moves money either: it says what is due, and a ledger records it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from verax import wire
from verax.copies import Groups
from verax.errors import InputError, OptionError
from verax.frames import html_table, to_frame
from verax.groups import are_certificates, certificates_of, joined, named_groups
from verax.groups import clusters_of as clusters_of
from verax.money import MOST_PLACES, Number, exact, is_finite, is_whole, major_text, minor_units, scale_of
from verax.reports import some
from verax.rules import Rule, RuleFunction
from verax.schemes import (
    MARKS,
    Line,
    Participant,
    bias_of_clipping,
    line_amounts,
    participants_of,
    pot_amounts,
    split_equally,
    terms_of,
)
from verax.score import Score, Scores

Amount = str | int | Decimal  # in major units


_SAME = 1e-6  # to which two documents name one score


@dataclass(frozen=True)
class Payment:
    """What one agent is paid, in minor units.

    >>> Payment("ann", 4310).amount
    4310
    """

    agent: str
    amount: int


@dataclass(frozen=True)
class Payments(wire.Document, format=wire.PAYMENTS):
    """Who is paid what, in integers of the minor unit; together with the residue they are the budget.

    Payments that do not add up cannot be made. `notes` (for people) and `bias` (what clipping at 0 adds
    to each agent's pay in expectation, in minor units) are not part of the JSON form, nor of equality.

    >>> paid = Payments("clipped", "EUR", 2, 10000, 5690, (Payment("ann", 4310), Payment("bob", 0)))
    >>> print(paid)
    clipped, budget 100.00 EUR
    agent   amount
    ann      43.10
    bob       0.00
    (back)   56.90
    >>> paid["ann"].amount, len(paid), [p.agent for p in paid]
    (4310, 2, ['ann', 'bob'])
    >>> Payments.from_json(paid.to_json()) == paid
    True
    """

    scheme: str
    currency: str
    scale: int
    budget: int
    residue: int
    payments: tuple[Payment, ...]
    notes: tuple[str, ...] = wire.unwritten((), compare=False)
    bias: Mapping[str, float] = wire.unwritten(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        amounts = [self.residue, *(p.amount for p in self.payments)]
        if not is_whole(self.scale, self.budget, *amounts):
            raise InputError("an amount is not a whole number of minor units, 0 or more; make the payments again")
        if self.scale > MOST_PLACES:
            raise InputError(f"a minor unit has {self.scale} digits; at most {MOST_PLACES} can be: make them again")
        if sum(amounts) != self.budget:
            raise InputError(
                f"payments and residue sum to {sum(amounts)} and the budget is {self.budget}; make them again"
            )
        if len({p.agent for p in self.payments}) < len(self.payments):
            raise InputError("an agent is paid twice in one document; make the payments again")

    def __getitem__(self, agent: str) -> Payment:
        for payment in self.payments:
            if payment.agent == agent:
                return payment
        raise KeyError(agent)

    def __iter__(self) -> Iterator[Payment]:
        return iter(self.payments)

    def __len__(self) -> int:
        return len(self.payments)

    def text(self, amount: int) -> str:
        """An amount of minor units as people write it, in major units.

        >>> Payments("clipped", "EUR", 2, 5, 5, ()).text(4310), Payments("clipped", "JPY", 0, 5, 5, ()).text(4310)
        ('43.10', '4310')
        """
        return major_text(amount, self.scale)

    def to_frame(self, backend: str | None = None) -> Any:
        """A data frame of pandas, polars or pyarrow: agent, amount (in minor units) and paid (as people write it).

        >>> Payments("clipped", "EUR", 2, 5, 1, (Payment("ann", 4),)).to_frame().shape
        (1, 3)
        """
        agents, amounts = [p.agent for p in self], [p.amount for p in self]
        return to_frame(
            {"agent": agents, "amount": amounts, "paid": [self.text(amount) for amount in amounts]}, backend
        )

    def __str__(self) -> str:
        left, right = (max(6, *(len(row[side]) for row in self._written_rows())) for side in (0, 1))
        table = [f"{agent:{left}}  {amount:>{right}}" for agent, amount in [("agent", "amount"), *self._written_rows()]]
        return "\n".join([self._table_caption(), *table])

    def _repr_html_(self) -> str:
        return html_table(self._table_caption(), ("agent", "amount"), self._written_rows())

    def _table_caption(self) -> str:
        return f"{self.scheme}, budget {self.text(self.budget)} {self.currency}"

    def _written_rows(self) -> list[tuple[str, str]]:
        return [*((p.agent, self.text(p.amount)) for p in self), ("(back)", self.text(self.residue))]


def pay(
    scores: Scores,
    *,
    budget: str | int | Decimal,
    currency: str = "EUR",
    scale: int | None = None,
    scheme: str = "clipped",
    base: Number | None = None,
    rate: Number | None = None,
    full_marks: Number | None = None,
    cap: str | int | Decimal | None = None,
    min_tasks: int = 30,
    clusters: Any = None,
    rule: str | Rule | RuleFunction | None = None,
) -> Payments:
    """Turn scores into payments of at most the budget, by score x tasks answered / tasks.

    `budget` and `cap` (the most one participant gets) are in major units, as text, int or Decimal, never
    a float; `scale` is the digits of the minor unit, by the currency if not given. `scheme`: clipped,
    affine (with `base` and `rate`), proportional, or marks (a score of `full_marks` earns budget/K). Nobody is
    paid without a score or below `min_tasks` tasks. Each of the `clusters`, agents that are copies of one another,
    is paid as one participant:
    certificates of `audit`, its document, or collections of names; besides those that were scored as one. By an
    audit, scores lose what copies gained as references of one another. `rule`: your own one that made the
    scores, where they come from a document and this process does not know it.

    >>> from verax import Reports, score
    >>> reports = Reports.of(labels=[[0, 1, 0, 1], [0, 1, 1, 1], [0, 0, 0, 0]], agents=["ann", "bob", "cy"])
    >>> print(pay(score(reports, truth=[0, 1, 0, 1]), budget="100.00", min_tasks=2))
    clipped, budget 100.00 EUR
    agent   amount
    ann      22.22
    bob      11.11
    cy        0.00
    (back)   66.67
    """
    _check_scores(scores)
    groups, given, scores = _groups_of(scores, clusters), scores, _without_gains(scores, clusters)
    lessened = [s.agent for s, was in zip(scores, given, strict=True) if s != was]
    places = scale_of(currency, scale)
    total = minor_units(budget, places, currency)
    if total <= 0:
        raise OptionError(f"the budget is {budget}; give an amount above 0, such as 1000.00")
    limit = total if cap is None else minor_units(cap, places, currency, "cap")
    if limit < 0:
        raise OptionError(f"the cap is {cap}; give 0 or more, or leave it out")
    bounds, line = terms_of(scheme, scores.mechanism, rule, base, rate, full_marks)
    clips = scheme != "affine" and (bounds is None or bounds.low < 0)
    least = _least_tasks(min_tasks)
    participants = participants_of(_paid_groups(scores, groups), scores.tasks, least, clips=clips)
    uncapped = pot_amounts(total, participants) if line is None else line_amounts(total, participants, line)
    amounts = [min(amount, limit) for amount in uncapped]
    paid = {agent: amount for p, a in zip(participants, amounts, strict=True) for agent, amount in split_equally(p, a)}
    bias = bias_of_clipping(total, participants, line) if scheme != "affine" else {}
    told = _Told(
        scores, participants, total, uncapped, limit, least, places, currency, bias if clips else None, lessened
    )
    agents, rest = [s.agent for s in scores.scores], total - sum(amounts)
    due = tuple(Payment(agent, paid.get(agent, 0)) for agent in agents)
    notes = tuple(told.notes(scheme, line))
    return Payments(
        scheme, currency, places, total, rest, due, notes, {agent: bias.get(agent, 0.0) for agent in agents}
    )


def pay_marks(
    scores: Scores,
    *,
    budget: str | int | Decimal,
    full_marks: Number,
    deposit: Amount | Mapping[str, Amount] | None = None,
    exposure: float = 0.0,
    sure: float = 3.0,
    currency: str = "EUR",
    agreement: Mapping[str, float] | None = None,
    riding: Number = "0.2",
    clusters: Any = None,
) -> Payments:
    """Pay the scores of an exam at a fixed price: `full_marks` of score earn budget/K, and more earns no more.

    Without `deposit` one gate stands before all: a score is paid if it is `sure` errors above 0. With it pay is signed:
    everybody has handed in `deposit` (one amount for all, or everybody's own by name), and gets it back with what the
    score earns added or taken off, so noise earns 0 in the mean however few labels there are; a deposit that does not
    cover `exposure` (`exam.Exam.exposure`, a score) is refused. Of a member who examines, the part `riding` of what it
    earns is paid as far as its labels agree with the others' (`agreement`, `exam.Exam.agreement`). Each of the
    `clusters` is paid as one participant.

    >>> from verax.plan import Mechanism
    >>> found = Scores(Mechanism("exam", "truth", "mean", None, True), 50, ("no", "yes"), (
    ...     Score("ann", 0.02, 0.004, 50, 1), Score("eve", -0.015625, 0.008, 50, 1)))
    >>> [p.amount for p in pay_marks(found, budget="20.00", full_marks="0.04")]
    [500, 0]
    >>> [p.amount - 800 for p in pay_marks(found, budget="20.00", full_marks="0.04", deposit="8.00", exposure=0.03)]
    [500, -391]
    >>> pay_marks(found, budget="20.00", full_marks="0.04", deposit="5.00", exposure=0.03)
    Traceback (most recent call last):
    verax.errors.OptionError: the deposit is 5.00 and bad luck can take 7.50; ask for 7.50, or examine on more labels
    """
    _check_scores(scores)
    places = scale_of(currency)
    total, top = minor_units(budget, places, currency), exact(full_marks, "full_marks")
    held = _held(scores, deposit, places, currency)
    if total <= 0 or top <= 0 or min(held.values()) < 0:
        raise OptionError(f"budget {budget}, full_marks {full_marks}, deposit {deposit}; give amounts above 0")
    groups = _paid_groups(scores, _groups_of(scores, clusters))
    each = Fraction(total, len(groups))
    least = min(held.values())
    if deposit is not None and (needed := math.ceil(each * Fraction(exposure) / top)) > least:
        raise OptionError(
            f"the deposit is {major_text(least, places)} and bad luck can take {major_text(needed, places)}; "
            f"ask for {major_text(needed, places)}, or examine on more labels"
        )
    gate = sure if deposit is None else None
    paid: dict[str, int] = {}
    for group in groups:
        alike = tuple(sorted(s.agent for s in group))
        value = max((_marked_value(s, gate) for s in group), default=Fraction(0))
        earned = each * min(Fraction(1), max(value / top, -min(held[agent] for agent in alike) / each))
        kept = min((Fraction((agreement or {}).get(agent, 1.0)) for agent in alike), default=Fraction(1))
        earned -= max(earned, Fraction(0)) * exact(riding, "riding") * (1 - kept)
        one = Participant(alike[0], alike, alike, value, 0.0)
        paid |= {agent: amount + held[agent] for agent, amount in split_equally(one, math.floor(earned))}
    pot = total + sum(held.values())
    due = tuple(Payment(s.agent, max(paid[s.agent], 0)) for s in scores.scores)
    rest = pot - sum(p.amount for p in due)
    notes = tuple(_told_of_marks(scores, paid, held, gate, places, currency))
    return Payments("marks" if deposit is None else "signed", currency, places, pot, rest, due, notes)


def _held(scores: Scores, deposit: Amount | Mapping[str, Amount] | None, places: int, currency: str) -> dict[str, int]:
    """Everybody's deposit in minor units."""
    if not isinstance(deposit, Mapping):
        deposit = dict.fromkeys((s.agent for s in scores.scores), 0 if deposit is None else deposit)
    return {s.agent: minor_units(deposit.get(s.agent, 0), places, currency, "deposit") for s in scores.scores}


def _marked_value(s: Score, gate: float | None) -> Fraction:
    """What counts of an exam's score: all of it, or what is surely above 0."""
    if s.score is None or (gate is not None and not s.score > gate * (s.stderr or 0.0)):
        return Fraction(0)
    return Fraction(s.score)


def _told_of_marks(
    scores: Scores, paid: Mapping[str, int], held: Mapping[str, int], gate: float | None, places: int, currency: str
) -> Iterator[str]:
    unsure = [s.agent for s in scores.scores if s.score is not None and not _marked_value(s, gate)]
    if gate is not None and unsure:
        yield f"Paid nothing, for not {gate:g} standard errors above 0: {some(unsure)}."
    if gate is None:
        lost = [agent for agent, amount in paid.items() if amount < held[agent]]
        amounts = sorted({*held.values()})
        said = " to ".join(major_text(amount, places) for amount in amounts[:1] + amounts[1:][-1:])
        yield f"Everybody's {said} {currency} of deposit is part of what is paid back."
        yield from [f"Paid less than their deposit: {some(lost)}."] if lost else []


def _paid_groups(scores: Scores, groups: Groups) -> list[list[Score]]:
    """Every agent once: alone, or with the copies it is paid with."""
    score_of = {s.agent: s for s in scores.scores}
    grouped = {name for names in groups for name in names}
    together = [[score_of[name] for name in sorted(names)] for names in groups]
    return together + [[s] for s in scores.scores if s.agent not in grouped]


def _groups_of(scores: Scores, clusters: Any) -> Groups:
    """The groups that are paid once: scored as one or given, joined where they meet."""
    if isinstance(clusters, Mapping) and clusters.get("format") == wire.AUDIT:
        _check_audited(scores, certificates_of(clusters))
    given = () if clusters is None else named_groups(clusters, [s.agent for s in scores.scores], "a score")
    return joined((*scores.copies, *given))


def _check_audited(scores: Scores, certificates: Sequence[Mapping[str, Any]]) -> None:
    """Refuse the document of an audit of other scores: it says of every agent around which score its interval lies.

    Where copies were scored as one, that is less by what they gained. A document without intervals cannot be told.
    """
    said = {c.get("agent"): c["interval"] for c in certificates if c.get("code") == "INFORMATIVE" and c.get("interval")}
    gain = {c.get("agent"): c["gain"] for c in certificates if c.get("code") == "COPIES" and is_finite(c.get("gain"))}
    if not said:
        return
    for s in (s for s in scores.scores if s.score is not None and (s.agent not in said or is_finite(*said[s.agent]))):
        low, high = said.get(s.agent, (math.nan, math.nan))
        near = [(low + high) / 2, (low + high) / 2 - gain.get(s.agent, 0.0)]
        if not any(math.isclose(s.score or 0.0, mid, rel_tol=_SAME, abs_tol=_SAME) for mid in near):
            raise InputError(
                f"the audit in clusters= is of other scores: it has not the {s.score:.6g} of {s.agent!r}; audit the "
                "reports that were scored, with the options they were scored with"
            )


def _without_gains(scores: Scores, clusters: Any) -> Scores:
    """Scores in which copies were references of one another, without what an audit says that this gave or took."""
    if scores.copies or not (isinstance(clusters, Mapping) or are_certificates(clusters)):
        return scores
    found = [c for c in certificates_of(clusters) if c.get("code") == "COPIES"]
    gain = {c.get("agent"): c["gain"] for c in found if is_finite(c.get("gain"))}
    less = [
        s if s.score is None else replace(s, score=s.score - gain.get(s.agent, 0.0)) for s in scores.scores
    ]  # where the audit is of these scores, to the last bit what they would have been
    return replace(scores, scores=tuple(less))


@dataclass(frozen=True)
class _Told:
    """What is to be told to people about payments: every way in which they depart from paying the score."""

    scores: Scores
    participants: Sequence[Participant]
    total: int
    uncapped: Sequence[int]
    limit: int
    least: int
    places: int
    currency: str
    bias: Mapping[str, float] | None
    lessened: Sequence[str]

    def money(self, amount: float | Fraction) -> str:
        return f"{major_text(round(amount), self.places)} {self.currency}"

    def notes(self, scheme: str, line: Line | None) -> Iterator[str]:
        if line is None:
            yield from self._on_the_pot()
        elif self.bias is not None:
            yield (
                f"Clipping at 0 pays for noise: it adds about {self.money(sum(self.bias.values()))} in all in "
                "expectation, for each agent at most 0.4 standard errors of its score."
            )
        if line is not None:
            yield from self._on_the_line(line) if scheme == "affine" else ()
            above = [p.name for p in self.participants if p.value is not None and p.value > line.bounds.top]
            if above:
                most = "full marks" if scheme == MARKS else "the most the rule allows"
                yield f"Scored above {most}, and paid that most: {some(above)}."
        yield from self._on_the_cap()
        yield from self._on_the_unpaid()
        yield from self._on_the_copies([p for p in self.participants if len(p.copies) > 1])

    def _on_the_copies(self, groups: Sequence[Participant]) -> Iterator[str]:
        for p in groups:
            how = "in equal parts" if len(p.members) != 1 else f"to {p.members[0]!r}"
            yield f"Copies of one another, paid once and {how}: {some(p.copies)}."
        if self.lessened:
            yield f"Without what copies as references of one another gave or took, by the audit: {some(self.lessened)}."
        elif groups and not self.scores.copies:
            yield "Scored with copies as references of one another, which may pay them more; score with copies='apart'."

    def _on_the_line(self, line: Line) -> Iterator[str]:
        each = Fraction(self.total, len(self.participants))
        worst, best = (each * (line.base + line.rate * end) for end in (line.bounds.low, line.bounds.high))
        yield (
            f"Affine pays each participant from {self.money(worst)} to {self.money(best)} on a straight line: every "
            f"incentive stays, at {float(line.rate):g} of the strength of paying the score itself."
        )
        if line.bounds.low < 0 < line.bounds.high:
            yield f"A report that says nothing (score 0) is paid {self.money(each * line.base)}."
        if line.bounds.high <= 0:
            yield from self._on_abstaining(each * line.rate / line.bounds.top)

    def _on_abstaining(self, price: Fraction) -> Iterator[str]:
        """A loss is at most 0, which is also what a task left out counts: here abstaining pays even the honest."""
        part = [s for s in self.scores.scores if (s.score or 0) < 0 and self.least <= s.tasks < self.scores.tasks]
        if part:
            gained = price * sum(Fraction(s.score or 0) * (s.tasks - self.scores.tasks) for s in part)
            yield (
                f"Rule {self.scores.mechanism.rule} is never above 0 and a task left out counts 0, so abstaining pays: "
                f"{self.money(gained / self.scores.tasks)} in all to {some(s.agent for s in part)}; "
                "pay by it only where everybody answers every task."
            )

    def _on_the_pot(self) -> Iterator[str]:
        pot = sum(p.positive for p in self.participants)
        if not pot:
            yield "No score is above 0: nothing is paid and the whole budget goes back to the payer."
            return
        first = max(self.participants, key=lambda p: p.positive)
        yield (
            "Sharing a pot weakens the incentive: whoever holds a share s of it gets 1 - s of what a fixed price would "
            f"pay for more score, here as little as {1 - float(first.positive / pot):.2f} ({first.name!r}), and gains "
            "when others score less."
        )
        if self.bias is not None:
            moved = sum(x for x in self.bias.values() if x > 0)
            yield (
                f"Clipping at 0 pays for noise: it moves about {self.money(moved)} of the pot in expectation to agents "
                "whose score is uncertain, for each at most 0.4 standard errors of its score."
            )

    def _on_the_cap(self) -> Iterator[str]:
        over = [
            (p.name, a - self.limit) for p, a in zip(self.participants, self.uncapped, strict=True) if a > self.limit
        ]
        if over:
            yield (
                f"The cap of {self.money(self.limit)} keeps {self.money(sum(excess for _, excess in over))} back from "
                f"{some(name for name, _ in over)}: above it a better score is paid no better."
            )

    def _on_the_unpaid(self) -> Iterator[str]:
        lost = [s.agent for s in self.scores.scores if s.score is None]
        few = [s.agent for s in self.scores.scores if s.score is not None and s.tasks < self.least]
        if lost:
            yield f"Paid nothing for want of a score: {some(lost)}."
        if few:
            yield f"Paid nothing for fewer than {self.least} tasks: {some(few)}."


def _check_scores(scores: Scores) -> None:
    """Refuses what must not be paid by: noise by construction, samples, and documents that are not scores."""
    if not isinstance(scores, Scores):
        raise InputError(f"scores is a {type(scores).__name__}; give what verax.score returns")
    mechanism = scores.mechanism
    if not isinstance(mechanism.rule, str):
        raise InputError(f"the scores' rule is {mechanism.rule!r}, not a name; score the reports again")
    if mechanism.floor is not None and not (is_finite(mechanism.floor) and 0 < mechanism.floor < 1):
        raise InputError(f"the scores' floor is {mechanism.floor!r}, not between 0 and 1; score the reports again")
    if any(str(warning).startswith("scores are sampled") for warning in scores.warnings):
        raise OptionError("these scores are sampled, which pays luck; score again without draws")
    if not scores.scores:
        raise InputError("there are no agents to pay; score some reports first")
    if not is_whole(scores.tasks) or scores.tasks < 1:
        raise InputError(f"the scores rest on {scores.tasks!r} tasks; give a whole number above 0, or score again")
    if not all(isinstance(s.agent, str) for s in scores.scores):
        raise InputError("an agent's name is not text; score the reports again")
    if len({s.agent for s in scores.scores}) < len(scores.scores):
        raise InputError("an agent has two scores in one document; score the reports again")
    told = [x for s in scores.scores for x in (s.score, s.stderr) if x is not None]
    if is_finite(*told) and is_whole(*(s.tasks for s in scores.scores)):
        wrong = [s for s in scores.scores if s.tasks > scores.tasks or (s.stderr or 0) < 0]
    else:
        wrong = list(scores.scores)
    for s in wrong:
        if s.score is not None and not is_finite(s.score):
            raise InputError(f"the score of {s.agent!r} is {s.score!r}, not a number; score the reports again")
        if s.stderr is not None and not (is_finite(s.stderr) and s.stderr >= 0):
            raise InputError(f"the stderr of {s.agent!r} is {s.stderr!r}, not 0 or more; score the reports again")
        if not is_whole(s.tasks) or s.tasks > scores.tasks:
            raise InputError(
                f"{s.agent!r} answered {s.tasks!r} of {scores.tasks} tasks, which cannot be; score the reports again"
            )


def _least_tasks(min_tasks: int) -> int:
    """At least one, whatever is asked: who answered nothing is paid nothing."""
    if not is_whole(min_tasks):
        raise OptionError(f"min_tasks is {min_tasks!r}; give a whole number, 0 or more")
    return max(1, min_tasks)
