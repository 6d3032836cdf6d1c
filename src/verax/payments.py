"""Scores and a budget become Payments: the only place where a float becomes money; a score is not made here.

A scheme is a map from score times coverage to money that is fixed before the reports are opened: its
scale is the most a rule can give, never the most that was seen. Arithmetic is exact, on fractions of the
scores as they stand, so every machine pays the same; what rounding leaves goes back to the payer.
Nothing here moves money either: it says what is due, and a ledger records it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Integral
from typing import Any

from verax.errors import InputError, OptionError
from verax.mechanisms import Mechanism, Score, Scores

FORMAT = "verax.payments/1"
SCHEMES = ("clipped", "affine", "proportional")
MOST_DIGITS = 40

Number = str | int | float | Decimal | Fraction

_NO_MINOR_UNIT = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"
_THOUSANDTHS = "BHD IQD JOD KWD LYD OMR TND"


@dataclass(frozen=True)
class Payment:
    """What one agent is paid, in minor units.

    >>> Payment("ann", 4310).amount
    4310
    """

    agent: str
    amount: int


@dataclass(frozen=True)
class Payments:
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
    >>> paid["ann"].amount
    4310
    """

    scheme: str
    currency: str
    scale: int
    budget: int
    residue: int
    payments: tuple[Payment, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)
    bias: Mapping[str, float] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        amounts = [self.budget, self.residue, *(p.amount for p in self.payments)]
        if not all(_whole(amount) for amount in [self.scale, *amounts]):
            raise InputError("an amount is not a whole number of minor units, 0 or more; make the payments again")
        if sum(amounts[1:]) != self.budget:
            raise InputError(
                f"payments and residue sum to {sum(amounts[1:])} and the budget is {self.budget}; make them again"
            )
        if len({p.agent for p in self.payments}) < len(self.payments):
            raise InputError("an agent is paid twice in one document; make the payments again")

    def __getitem__(self, agent: str) -> Payment:
        for payment in self.payments:
            if payment.agent == agent:
                return payment
        raise KeyError(agent)

    def text(self, amount: int) -> str:
        """An amount of minor units as people write it, in major units.

        >>> Payments("clipped", "EUR", 2, 5, 5, ()).text(4310), Payments("clipped", "JPY", 0, 5, 5, ()).text(4310)
        ('43.10', '4310')
        """
        return _text(amount, self.scale)

    def __str__(self) -> str:
        rows = [(p.agent, self.text(p.amount)) for p in self.payments] + [("(back)", self.text(self.residue))]
        left, right = (max(6, *(len(row[side]) for row in rows)) for side in (0, 1))
        table = [f"{agent:{left}}  {amount:>{right}}" for agent, amount in [("agent", "amount"), *rows]]
        return "\n".join([f"{self.scheme}, budget {self.text(self.budget)} {self.currency}", *table])

    def to_json(self) -> dict[str, Any]:
        """The one JSON form, the same in the command line and wherever payments are stored.

        >>> list(Payments("clipped", "EUR", 2, 5, 5, ()).to_json())
        ['format', 'scheme', 'currency', 'scale', 'budget', 'residue', 'payments']
        """
        return {
            "format": FORMAT,
            "scheme": self.scheme,
            "currency": self.currency,
            "scale": self.scale,
            "budget": self.budget,
            "residue": self.residue,
            "payments": [asdict(p) for p in self.payments],
        }

    @classmethod
    def from_json(cls, document: Any) -> Payments:
        """Payments from their JSON form, if they add up; without notes and bias, which it does not hold.

        >>> paid = Payments("clipped", "EUR", 2, 5, 1, (Payment("ann", 4),))
        >>> Payments.from_json(paid.to_json()) == paid
        True
        """
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError(f"not a document of format {FORMAT}; make one with: verax pay SCORES.json --budget B")
        try:
            return cls(
                document["scheme"],
                document["currency"],
                document["scale"],
                document["budget"],
                document["residue"],
                tuple(Payment(**p) for p in document["payments"]),
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"a {FORMAT} document lacks or misnames a field ({error}); make it again") from None


def pay(
    scores: Scores,
    *,
    budget: str | int | Decimal,
    currency: str = "EUR",
    scale: int | None = None,
    scheme: str = "clipped",
    base: Number | None = None,
    rate: Number | None = None,
    cap: str | int | Decimal | None = None,
    min_tasks: int = 30,
    clusters: Sequence[Collection[str]] = (),
) -> Payments:
    """Turn scores into payments of at most the budget, by score x tasks answered / tasks.

    `budget` and `cap` (the most one participant gets) are in major units, as text, int or Decimal, never
    a float; `scale` is the digits of the minor unit, by the currency if not given. `scheme`: clipped,
    affine (with `base` and `rate`) or proportional. Nobody is paid without a score or below `min_tasks`
    tasks. Each of the `clusters`, agents that are copies of one another, is paid as one participant.

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
    places = scale_of(currency, scale)
    total = minor_units(budget, places, currency)
    if total <= 0:
        raise OptionError(f"the budget is {budget}; give an amount above 0, such as 1000.00")
    limit = total if cap is None else minor_units(cap, places, currency, "cap")
    if limit < 0:
        raise OptionError(f"the cap is {cap}; give 0 or more, or leave it out")
    line = _line(scheme, scores.mechanism, base, rate)
    least = _least_tasks(min_tasks)
    participants = [_participant(scores, group, least) for group in _groups(scores, clusters)]
    uncapped = _proportional(total, participants) if line is None else _by_line(total, participants, line)
    amounts = [min(amount, limit) for amount in uncapped]
    paid = {agent: amount for p, a in zip(participants, amounts, strict=True) for agent, amount in _split(p, a)}
    bias = _bias(scheme, total, participants, line)
    settled = _Settled(scores, participants, total, uncapped, limit, least, places, currency, bias)
    return Payments(
        scheme,
        currency,
        places,
        total,
        total - sum(amounts),
        tuple(Payment(s.agent, paid.get(s.agent, 0)) for s in scores.scores),
        tuple(settled.notes(scheme, line)),
        {s.agent: bias.get(s.agent, 0.0) for s in scores.scores},
    )


def clusters_of(document: Any) -> list[set[str]]:
    """The groups of copies that an audit found: agents linked by COPIES certificates that fail.

    >>> link = {"code": "COPIES", "verdict": "fails"}
    >>> found = [link | {"agent": "a", "deviation": {"a": "b"}}, link | {"agent": "c", "deviation": {"c": "b"}}]
    >>> [sorted(group) for group in clusters_of({"format": "verax.audit/1", "certificates": found})]
    [['a', 'b', 'c']]
    """
    if not isinstance(document, dict) or document.get("format") != "verax.audit/1":
        raise InputError("not a document of format verax.audit/1; make one with: verax audit REPORTS --json")
    group_of: dict[str, set[str]] = {}
    for one, other in _copies(document.get("certificates")):
        mine, theirs = group_of.setdefault(one, {one}), group_of.setdefault(other, {other})
        if mine is not theirs:
            mine |= theirs
            group_of.update(dict.fromkeys(theirs, mine))
    return sorted({id(group): group for group in group_of.values()}.values(), key=min)


def clipping_bias(score: float, stderr: float) -> float:
    """What paying max(0, score) adds in expectation to a normal score: E[max(0, N(s, se))] - max(0, s).

    With z = s/se it is se (phi(z) - |z| Phi(-|z|)): largest at score 0, where it is 0.399 se.

    >>> round(clipping_bias(0.0, 1.0), 6), clipping_bias(0.5, 0.0), clipping_bias(0.5, 0.004)
    (0.398942, 0.0, 0.0)
    """
    z = abs(score) / stderr if stderr > 0 else math.inf
    if z > 37:  # phi is below the smallest float there
        return 0.0
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return stderr * max(0.0, density - z * math.erfc(z / math.sqrt(2)) / 2)


def scale_of(currency: str, scale: int | None = None) -> int:
    """The digits of the minor unit: as asked, or the currency's own.

    A code has 3 to 12 capital letters or digits, for a token's is longer than a currency's.

    >>> scale_of("EUR"), scale_of("JPY"), scale_of("KWD"), scale_of("ETH", 18)
    (2, 0, 3, 18)
    """
    if not re.fullmatch(r"[A-Z][A-Z0-9]{2,11}", str(currency)):
        raise OptionError(f"currency is {currency!r}; give a code of 3 to 12 capital letters or digits, such as EUR")
    if scale is None:
        return 0 if currency in _NO_MINOR_UNIT.split() else 3 if currency in _THOUSANDTHS.split() else 2
    if not _whole(scale) or scale > 18:
        raise OptionError(f"scale is {scale!r}; give the digits of the minor unit, 0 to 18: 2 for cents")
    return scale


def minor_units(amount: str | int | Decimal, scale: int, currency: str, what: str = "budget") -> int:
    """An amount of major units, as it is written, in minor units; `what` it is goes into the refusals.

    >>> minor_units("43.10", 2, "EUR")
    4310
    """
    if isinstance(amount, float):
        raise OptionError(f"the {what} is the float {amount!r}, which cannot hold cents exactly; write it as text")
    number = _decimal(amount, what)
    if int(number.as_tuple().exponent) < -scale:
        raise OptionError(
            f"the {what} is {amount}; {currency} has {scale} digits after the point here: drop the others"
        )
    return int(Fraction(number) * 10**scale)


@dataclass(frozen=True)
class _Bounds:
    """Where a rule's score over `top` lies: the most it can be is known before any report is."""

    top: Fraction
    low: int
    high: int

    def within(self, value: Fraction) -> Fraction:
        """Public features can lift a score above what the rule's own terms allow; pay does not follow."""
        return min(Fraction(self.high), max(Fraction(self.low), value / self.top))


@dataclass(frozen=True)
class _Line:
    """Pay per participant as a share of budget/K: base + rate * value, value held within its bounds."""

    base: Fraction
    rate: Fraction
    bounds: _Bounds

    def share(self, value: Fraction) -> Fraction:
        return max(Fraction(0), self.base + self.rate * self.bounds.within(value))


@dataclass(frozen=True)
class _Participant:
    """One agent, or a group of copies: the members who can be paid, by name, and the best one's value."""

    name: str
    members: tuple[str, ...]
    copies: tuple[str, ...]
    value: Fraction | None
    noise: float

    @property
    def positive(self) -> Fraction:
        return max(Fraction(0), self.value or Fraction(0))


_FIXED = {
    "zero-one": _Bounds(Fraction(1), -1, 1),
    "ca": _Bounds(Fraction(1), -1, 1),
    "brier": _Bounds(Fraction(2), -1, 1),
    "accuracy": _Bounds(Fraction(1), 0, 1),
    "quadratic": _Bounds(Fraction(2), -1, 0),
}
_FLOORED = {"ce": (-1, 1), "pmi": (-1, 1), "log": (-1, 0)}
_LOSSES = ("log", "quadratic")


def _bounds(mechanism: Mechanism) -> _Bounds | None:
    """A rule's bounds by its name; None for a user's own, which only it knows."""
    if mechanism.rule not in _FLOORED or mechanism.floor is None:
        return _FIXED.get(mechanism.rule)
    if not (isinstance(mechanism.floor, float) and 0 < mechanism.floor < 1):
        raise InputError(f"the scores' floor is {mechanism.floor!r}, not between 0 and 1; score the reports again")
    return _Bounds(Fraction(-math.log(mechanism.floor)), *_FLOORED[mechanism.rule])


def _line(scheme: str, mechanism: Mechanism, base: Number | None, rate: Number | None) -> _Line | None:
    """The map from value to pay that a scheme fixes beforehand; None for a pot, which fixes none."""
    if scheme not in SCHEMES:
        raise OptionError(f"scheme is {scheme!r}; choose one of {', '.join(SCHEMES)}")
    if scheme != "affine" and (base is not None or rate is not None):
        raise OptionError(f"base and rate go with scheme affine only; leave them out with {scheme}")
    bounds = _bounds(mechanism)
    if bounds is None and scheme != "proportional":
        raise OptionError(
            f"rule {mechanism.rule!r} has no bounds that verax knows, so scheme {scheme} cannot fix a price; "
            "use scheme proportional, or one of verax's rules"
        )
    if mechanism.rule in _LOSSES and scheme != "affine" and bounds is not None:
        raise OptionError(f"rule {mechanism.rule} never scores above 0, so {scheme} pays nobody; use scheme affine")
    if scheme == "proportional" or bounds is None:
        return None
    if scheme == "clipped":
        return _Line(Fraction(0), Fraction(1), bounds)
    return _affine(mechanism.rule, bounds, base, rate)


def _affine(rule: str, bounds: _Bounds, base: Number | None, rate: Number | None) -> _Line:
    half = Fraction(1, 2)
    intercept = half if base is None else _ratio(base, "base")
    slope = half if rate is None else _ratio(rate, "rate")
    if slope <= 0:
        raise OptionError(f"rate is {slope}; give a number above 0, or a better score is not paid better")
    worst, best = intercept + slope * bounds.low, intercept + slope * bounds.high
    if worst < 0 or best > 1:
        safe = Fraction(1, bounds.high - bounds.low)
        raise OptionError(
            f"with base {intercept} and rate {slope} rule {rule} could pay from {worst} to {best} of each share of "
            f"the budget; keep that within 0 and 1, such as base {-safe * bounds.low} and rate {safe}"
        )
    return _Line(intercept, slope, bounds)


def _by_line(total: int, participants: Sequence[_Participant], line: _Line) -> list[int]:
    """Each participant's own budget/K, times its share of it, rounded down."""
    each = Fraction(total, len(participants))
    return [0 if p.value is None else math.floor(each * line.share(p.value)) for p in participants]


def _proportional(total: int, participants: Sequence[_Participant]) -> list[int]:
    """Shares of the positive values by largest remainder, which meets the budget to the unit.

    Equal remainders go by name, so that the order of agents carries no money.
    """
    denominator = math.lcm(*(p.positive.denominator for p in participants))
    weights = [int(p.positive * denominator) for p in participants]
    pot = sum(weights)
    if not pot:
        return weights
    amounts, remainders = (list(part) for part in zip(*(divmod(total * w, pot) for w in weights), strict=True))
    by_remainder = sorted(range(len(weights)), key=lambda i: (-remainders[i], participants[i].name))
    for i in by_remainder[: total - sum(amounts)]:
        amounts[i] += 1
    return amounts


def _split(participant: _Participant, amount: int) -> Iterator[tuple[str, int]]:
    """Equal shares among the members; the units left over go in the order of names."""
    if participant.members:
        part, left = divmod(amount, len(participant.members))
        yield from ((agent, part + (i < left)) for i, agent in enumerate(participant.members))


def _bias(scheme: str, total: int, participants: Sequence[_Participant], line: _Line | None) -> dict[str, float]:
    """What clipping at 0 adds to each agent's pay, in minor units: a statement about money, never money."""
    if scheme == "affine":
        return {}
    added = _moved(total, participants) if line is None else _added(total, participants, line)
    return {a: float(x / len(p.members)) for p, x in zip(participants, added, strict=True) for a in p.members}


def _added(total: int, participants: Sequence[_Participant], line: _Line) -> list[Fraction]:
    each = Fraction(total, len(participants))
    return [min(each, Fraction(p.noise) * each / line.bounds.top) for p in participants]


def _moved(total: int, participants: Sequence[_Participant]) -> list[Fraction]:
    """A pot has no money to add: what clipping gives to some it takes from all by their shares. To first order."""
    pot = sum(p.positive for p in participants)
    if not pot:
        return [Fraction(0)] * len(participants)
    noise = sum(Fraction(p.noise) for p in participants)
    moved = (total * (Fraction(p.noise) - noise * p.positive / pot) / pot for p in participants)
    return [max(Fraction(-total), min(Fraction(total), x)) for x in moved]


def _groups(scores: Scores, clusters: Sequence[Collection[str]]) -> list[list[Score]]:
    """Every agent once: alone, or with the copies it is paid with."""
    score_of = {s.agent: s for s in scores.scores}
    seen: set[str] = set()
    groups = []
    for names in map(_names, clusters):
        if unknown := names - score_of.keys():
            raise InputError(f"a cluster names {_some(unknown)}, without a score here; audit the reports you scored")
        if twice := names & seen:
            raise InputError(f"in two clusters: {_some(twice)}; join clusters that share an agent")
        seen |= names
        groups += [[score_of[name] for name in sorted(names)]] if names else []
    return groups + [[s] for s in scores.scores if s.agent not in seen]


def _names(cluster: Collection[str]) -> set[str]:
    if isinstance(cluster, str):
        raise InputError(f"a cluster is the text {cluster!r}; give a list of the names of agents")
    return set(cluster)


def _participant(scores: Scores, group: Sequence[Score], least: int) -> _Participant:
    names = tuple(s.agent for s in group)
    able = [s for s in group if s.score is not None and s.tasks >= least]
    if not able:
        return _Participant(names[0], (), names, None, 0.0)
    best = max(able, key=lambda s: _value(scores, s))
    return _Participant(names[0], tuple(s.agent for s in able), names, _value(scores, best), _noise(scores, best))


def _value(scores: Scores, s: Score) -> Fraction:
    """Score times coverage: the sum over all tasks with 0 for an abstention, so a hard task left out gains nothing."""
    return Fraction(s.score or 0) * s.tasks / scores.tasks


def _noise(scores: Scores, s: Score) -> float:
    """The clipping bias of a value; `accuracy` has none, for it is never below 0."""
    if scores.mechanism.rule == "accuracy":
        return 0.0
    return clipping_bias(s.score or 0.0, s.stderr or 0.0) * s.tasks / scores.tasks


@dataclass(frozen=True)
class _Settled:
    """What is to be told to people about a settlement: every way in which it departs from paying the score."""

    scores: Scores
    participants: Sequence[_Participant]
    total: int
    uncapped: Sequence[int]
    limit: int
    least: int
    places: int
    currency: str
    bias: Mapping[str, float]

    def money(self, amount: float | Fraction) -> str:
        return f"{_text(round(amount), self.places)} {self.currency}"

    def notes(self, scheme: str, line: _Line | None) -> Iterator[str]:
        if line is None:
            yield from self._on_the_pot()
        else:
            yield from self._on_clipping() if scheme == "clipped" else self._on_the_line(line)
            yield from self._on_bounds(line)
        yield from self._on_the_cap()
        yield from self._on_the_unpaid()
        copies = [p.copies for p in self.participants if len(p.copies) > 1]
        yield from (f"Copies of one another, paid once and in equal parts: {_some(names)}." for names in copies)

    def _on_clipping(self) -> Iterator[str]:
        if self.scores.mechanism.rule == "accuracy":
            return
        yield (
            f"Clipping at 0 pays for noise: it adds about {self.money(sum(self.bias.values()))} in all in expectation, "
            "for each agent at most 0.4 standard errors of its score."
        )

    def _on_the_line(self, line: _Line) -> Iterator[str]:
        each = Fraction(self.total, len(self.participants))
        worst, best = (each * (line.base + line.rate * end) for end in (line.bounds.low, line.bounds.high))
        yield (
            f"Affine pays each participant from {self.money(worst)} to {self.money(best)} on a straight line: every "
            f"incentive stays, at {float(line.rate):g} of the strength of paying the score itself."
        )
        if line.bounds.low < 0 < line.bounds.high:
            yield f"A report that says nothing (score 0) is paid {self.money(each * line.base)}."
        if self.scores.mechanism.rule in _LOSSES:
            yield from self._on_abstaining(each * line.rate / line.bounds.top)

    def _on_abstaining(self, price: Fraction) -> Iterator[str]:
        """A loss is at most 0, which is also what a task left out counts: here abstaining pays even the honest."""
        part = [s for s in self.scores.scores if (s.score or 0) < 0 and self.least <= s.tasks < self.scores.tasks]
        if part:
            gained = price * sum(Fraction(s.score or 0) * (s.tasks - self.scores.tasks) for s in part)
            yield (
                f"Rule {self.scores.mechanism.rule} is never above 0 and a task left out counts 0, so abstaining pays: "
                f"{self.money(gained / self.scores.tasks)} in all to {_some(s.agent for s in part)}; "
                "pay by it only where everybody answers every task."
            )

    def _on_the_pot(self) -> Iterator[str]:
        pot = sum(p.positive for p in self.participants)
        if not pot:
            yield "No score is above 0: nothing is paid and the whole budget goes back to the payer."
            return
        first = max(self.participants, key=lambda p: p.positive)
        share = float(first.positive / pot)
        yield (
            "Sharing a pot weakens the incentive: whoever holds a share s of it gets 1 - s of what a fixed price would "
            f"pay for more score, here as little as {1 - share:.2f} ({first.name!r}), and gains when others score less."
        )
        if self.scores.mechanism.rule == "accuracy":
            return
        moved = sum(x for x in self.bias.values() if x > 0)
        yield (
            f"Clipping at 0 pays for noise: it moves about {self.money(moved)} of the pot in expectation to agents "
            "whose score is uncertain, for each at most 0.4 standard errors of its score."
        )

    def _on_bounds(self, line: _Line) -> Iterator[str]:
        above = [p.name for p in self.participants if p.value is not None and p.value > line.bounds.top]
        if above:
            yield f"Scored above the most the rule allows, and paid that most: {_some(above)}."

    def _on_the_cap(self) -> Iterator[str]:
        over = [
            (p.name, a - self.limit) for p, a in zip(self.participants, self.uncapped, strict=True) if a > self.limit
        ]
        if over:
            yield (
                f"The cap of {self.money(self.limit)} keeps {self.money(sum(excess for _, excess in over))} back from "
                f"{_some(name for name, _ in over)}: above it a better score is paid no better."
            )

    def _on_the_unpaid(self) -> Iterator[str]:
        lost = [s.agent for s in self.scores.scores if s.score is None]
        few = [s.agent for s in self.scores.scores if s.score is not None and s.tasks < self.least]
        if lost:
            yield f"Paid nothing for want of a score: {_some(lost)}."
        if few:
            yield f"Paid nothing for fewer than {self.least} tasks: {_some(few)}."


def _check_scores(scores: Scores) -> None:
    """Refuses what must not be paid by: noise by construction, samples, and documents that are not scores."""
    mechanism = scores.mechanism
    if mechanism.sign == "plugin" or (mechanism.rule == "ca" and mechanism.sign is None):
        raise OptionError(
            "these scores learned their sign on the tasks they score, which pays noise; score with sign='split'"
        )
    if any(str(warning).startswith("scores are sampled") for warning in scores.warnings):
        raise OptionError("these scores are sampled, which pays luck; score again without draws")
    if not isinstance(mechanism.rule, str):
        raise InputError(f"the scores' rule is {mechanism.rule!r}, not a name; score the reports again")
    if not scores.scores:
        raise InputError("there are no agents to pay; score some reports first")
    if not _whole(scores.tasks) or scores.tasks < 1:
        raise InputError(f"the scores rest on {scores.tasks!r} tasks; give a whole number above 0, or score again")
    if not all(isinstance(s.agent, str) for s in scores.scores):
        raise InputError("an agent's name is not text; score the reports again")
    if len({s.agent for s in scores.scores}) < len(scores.scores):
        raise InputError("an agent has two scores in one document; score the reports again")
    for s in scores.scores:
        _check_score(s, scores.tasks)


def _check_score(s: Score, tasks: int) -> None:
    if s.score is not None and not _finite(s.score):
        raise InputError(f"the score of {s.agent!r} is {s.score!r}, not a number; score the reports again")
    if s.stderr is not None and not (_finite(s.stderr) and s.stderr >= 0):
        raise InputError(f"the stderr of {s.agent!r} is {s.stderr!r}, not 0 or more; score the reports again")
    if not _whole(s.tasks) or s.tasks > tasks:
        raise InputError(f"{s.agent!r} answered {s.tasks!r} of {tasks} tasks, which cannot be; score the reports again")


def _least_tasks(min_tasks: int) -> int:
    """At least one, whatever is asked: who answered nothing is paid nothing."""
    if not _whole(min_tasks):
        raise OptionError(f"min_tasks is {min_tasks!r}; give a whole number, 0 or more")
    return max(1, min_tasks)


def _ratio(number: Number, what: str) -> Fraction:
    """0.1 is one tenth, not the float nearest to it."""
    if isinstance(number, Fraction):
        return number
    if isinstance(number, float):
        return Fraction(_decimal(str(number), what))
    above, slash, below = number.partition("/") if isinstance(number, str) else (number, "", "")
    under = Fraction(_decimal(below, what)) if slash else Fraction(1)
    if not under:
        raise OptionError(f"{what} is {number}, a division by 0; give a number such as 0.5")
    return Fraction(_decimal(above, what)) / under


def _decimal(number: str | int | Decimal, what: str) -> Decimal:
    """A number as it is written; the bound on digits keeps 1e999999999 from filling the memory."""
    if isinstance(number, bool) or not isinstance(number, str | Integral | Decimal):
        raise OptionError(f"the {what} is {number!r}, not a number; give one such as 0.50")
    try:
        found = Decimal(int(number) if isinstance(number, Integral) else number)
    except InvalidOperation:
        raise OptionError(f"the {what} is {number!r}, not a number; give one such as 0.50, with a point") from None
    if not found.is_finite():
        raise OptionError(f"the {what} is {number}, not a finite number; give one such as 0.50")
    if found.adjusted() > MOST_DIGITS or int(found.as_tuple().exponent) < -MOST_DIGITS:
        raise OptionError(f"the {what} has more than {MOST_DIGITS} digits; give a smaller number, or a shorter one")
    return found


def _copies(certificates: Any) -> Iterator[tuple[str, str]]:
    """Who copies whom; a finding that cannot be read is refused, or a copy would be paid twice."""
    if not isinstance(certificates, list) or not all(isinstance(c, dict) for c in certificates):
        raise InputError("the audit has no list of certificates; make it again with: verax audit REPORTS --json")
    for c in certificates:
        if c.get("code") != "COPIES" or c.get("verdict") != "fails":
            continue
        agent, witness = c.get("agent"), c.get("deviation")
        if not isinstance(agent, str) or not isinstance(witness, dict) or not _all_text(witness):
            raise InputError(f"the COPIES certificate of {agent!r} does not say whose copy it is; make the audit again")
        for one, other in witness.items():
            yield from ((agent, one), (one, other))


def _all_text(witness: dict[Any, Any]) -> bool:
    return bool(witness) and all(isinstance(name, str) for name in [*witness, *witness.values()])


def _text(amount: int, places: int) -> str:
    major, minor = divmod(amount, 10**places)
    return f"{major}.{minor:0{places}}" if places else str(major)


def _whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _finite(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and -1e300 < number < 1e300


def _some(names: Iterable[str], most: int = 8) -> str:
    shown = sorted(names, key=str)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(repr(name) for name in shown[:most]) + more
