"""A scheme: a map from value, which is score times coverage, to a share of money, fixed before reports are opened.

Its scale is the most that a rule can give, never the most that was seen. Arithmetic is on fractions of the scores
as they stand, so every machine pays the same. What clipping at 0 adds is told beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from verax.errors import OptionError
from verax.money import Number, exact, is_finite
from verax.plan import Mechanism
from verax.rules import Rule, RuleFunction, resolve
from verax.score import Score

SCHEMES = ("clipped", "affine", "proportional")
MARKS = "marks"  # at a price of its own: what score earns a full share


@dataclass(frozen=True)
class Bounds:
    """Where value over `top` lies: the most it can be is known before any report is.

    >>> Bounds.of(resolve("quadratic"))
    Bounds(top=Fraction(2, 1), low=Fraction(-1, 1), high=Fraction(0, 1))
    """

    top: Fraction
    low: Fraction
    high: Fraction

    @classmethod
    def of(cls, rule: Rule) -> Bounds | None:
        """A rule's; None where nobody has said what it gives at most."""
        if (ends := value_bounds(rule)) is None:
            return None
        low, high = map(Fraction, ends)
        top = high or -low
        return cls(top, low / top, high / top)

    def within(self, value: Fraction) -> Fraction:
        """Public features can lift a score above what the rule's own terms allow; pay does not follow."""
        return min(self.high, max(self.low, value / self.top))


@dataclass(frozen=True)
class Line:
    """Pay per participant as a share of budget/K: base + rate * value over top, never below 0."""

    base: Fraction
    rate: Fraction
    bounds: Bounds

    def share(self, value: Fraction) -> Fraction:
        """What part of budget/K this value is paid."""
        return max(Fraction(0), self.base + self.rate * self.bounds.within(value))


@dataclass(frozen=True)
class Participant:
    """One agent, or a group of copies: the members who can be paid, by name, and the best one's value and its noise."""

    name: str
    members: tuple[str, ...]
    copies: tuple[str, ...]
    value: Fraction | None
    noise: float

    @property
    def positive(self) -> Fraction:
        """The value that a pot is shared by."""
        return max(Fraction(0), self.value or Fraction(0))


def rule_of(mechanism: Mechanism, given: str | Rule | RuleFunction | None = None) -> Rule | None:
    """The rule that scores were made by: the one that is given, or the one that this process knows by that name.

    A document's word is no reason to import somebody's module: what is not known here is None.

    >>> rule_of(Mechanism("os:system", "peers", "mean", None, False, None)) is None
    True
    """
    if given is not None:
        found = resolve(given, mechanism.floor)
        if found.name != mechanism.rule:
            raise OptionError(
                f"these scores were made by rule {mechanism.rule!r} and rule= is {found.name!r}; give their own"
            )
        return found
    known = known_rule(mechanism.rule)
    unsaid = known is not None and known.in_logs and mechanism.floor is None
    return None if known is None or unsaid else known.with_floor(mechanism.floor)


def known_rule(name: str) -> Rule | None:
    """The rule of a name, if this process knows it; nothing is imported.

    >>> known_rule("brier").bounds, known_rule("os:system")
    ((-2.0, 2.0), None)
    """
    try:
        return resolve(name)
    except OptionError:
        return None


def value_bounds(rule: Rule) -> tuple[float, float] | None:
    """Between which numbers score times coverage lies; 0 is among them, for that is what a task left out counts.

    >>> value_bounds(Rule("mine", float, low=0.5, high=2.0))
    (0.0, 2.0)
    """
    if rule.low is None or rule.high is None:
        return None
    if not is_finite(rule.low, rule.high) or rule.low >= rule.high:
        raise OptionError(
            f"rule {rule.name!r} has bounds {rule.low!r} and {rule.high!r}; give two numbers, the lower first"
        )
    low, high = rule.bounds or (0.0, 0.0)
    return min(0.0, low), max(0.0, high)


def terms_of(
    scheme: str,
    mechanism: Mechanism,
    given: str | Rule | RuleFunction | None,
    base: Number | None,
    rate: Number | None,
    full_marks: Number | None = None,
) -> tuple[Bounds | None, Line | None]:
    """The rule's bounds, and the line from value to pay that a scheme fixes beforehand: None for a pot."""
    if scheme not in (*SCHEMES, MARKS):
        raise OptionError(f"scheme is {scheme!r}; choose one of {', '.join((*SCHEMES, MARKS))}")
    if scheme != "affine" and (base is not None or rate is not None):
        raise OptionError(f"base and rate go with scheme affine only; leave them out with {scheme}")
    if (scheme == MARKS) != (full_marks is not None):
        raise OptionError("scheme marks and full_marks, the score that earns a full share, go together; give both")
    name, rule = mechanism.rule, rule_of(mechanism, given)
    if mechanism.sign == "plugin" or (rule is not None and rule.learns_sign and mechanism.sign is None):
        raise OptionError(
            "these scores learned their sign on the tasks they score, which pays noise; score with sign='split'"
        )
    bounds = None if rule is None else Bounds.of(rule)
    if bounds is None and scheme != "proportional":
        how = "give the rule itself with rule=" if rule is None else "write its lowest and highest score on it"
        raise OptionError(
            f"rule {name!r} has no bounds that verax knows, so scheme {scheme} cannot fix a price; "
            f"use scheme proportional, or one of verax's rules, or {how} (agreement.bounds = (0.0, 1.0))"
        )
    if full_marks is not None and bounds is not None:
        bounds = _up_to(exact(full_marks, "full_marks"), bounds)
    if bounds is not None and not bounds.high and scheme != "affine":
        raise OptionError(f"rule {name} never scores above 0, so {scheme} pays nobody; use scheme affine")
    if scheme == "affine" and bounds is not None:
        return bounds, _affine_line(name, bounds, base, rate)
    return bounds, None if scheme == "proportional" or bounds is None else Line(Fraction(0), Fraction(1), bounds)


def _up_to(full_marks: Fraction, bounds: Bounds) -> Bounds:
    """Where value lies over a score that earns a full share; more earns no more."""
    if not 0 < full_marks <= bounds.high * bounds.top:
        raise OptionError(
            f"full_marks is {float(full_marks):g}; give a score above 0 and at most "
            f"{float(bounds.high * bounds.top):g}, the most that the rule gives"
        )
    return Bounds(full_marks, bounds.low * bounds.top / full_marks, Fraction(1))


def _affine_line(rule: str, bounds: Bounds, base: Number | None, rate: Number | None) -> Line:
    """A straight line that pays nobody less than 0 or more than budget/K, whatever the score."""
    half = Fraction(1, 2)
    intercept = half if base is None else exact(base, "base")
    slope = half if rate is None else exact(rate, "rate")
    if slope <= 0:
        raise OptionError(f"rate is {slope}; give a number above 0, or a better score is not paid better")
    worst, best = intercept + slope * bounds.low, intercept + slope * bounds.high
    if worst < 0 or best > 1:
        safe = 1 / (bounds.high - bounds.low)
        raise OptionError(
            f"with base {intercept} and rate {slope} rule {rule} could pay from {worst} to {best} of each share of "
            f"the budget; keep that within 0 and 1, such as base {-safe * bounds.low} and rate {safe}"
        )
    return Line(intercept, slope, bounds)


def participants_of(groups: Iterable[Sequence[Score]], tasks: int, least: int, *, clips: bool) -> list[Participant]:
    """Each group of copies as one; only members with a score and the least number of tasks can be paid.

    Value is score times coverage: the sum over all tasks, 0 for an abstention, so a hard task left out gains nothing.
    """
    found = []
    for group in groups:
        names = tuple(s.agent for s in group)
        able = [(Fraction(s.score) * s.tasks / tasks, s) for s in group if s.score is not None and s.tasks >= least]
        if not able:
            found.append(Participant(names[0], (), names, None, 0.0))
            continue
        value, best = max(able, key=lambda x: x[0])
        noise = clipping_bias(best.score or 0.0, best.stderr or 0.0) * best.tasks / tasks if clips else 0.0
        found.append(Participant(names[0], tuple(s.agent for _, s in able), names, value, noise))
    return found


def line_amounts(total: int, participants: Sequence[Participant], line: Line) -> list[int]:
    """Each participant's own budget/K, times its share of it, rounded down."""
    each = Fraction(total, len(participants))
    return [0 if p.value is None else math.floor(each * line.share(p.value)) for p in participants]


def pot_amounts(total: int, participants: Sequence[Participant]) -> list[int]:
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


def split_equally(participant: Participant, amount: int) -> list[tuple[str, int]]:
    """Equal shares among the members; the units left over go in the order of names."""
    part, left = divmod(amount, max(1, len(participant.members)))
    return [(agent, part + (i < left)) for i, agent in enumerate(participant.members)]


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


def bias_of_clipping(total: int, participants: Sequence[Participant], line: Line | None) -> dict[str, float]:
    """What clipping at 0 adds to each agent's pay, in minor units: a statement about money, never money.

    A pot has no money to add: what clipping gives to some it takes from all by their shares. To first order.
    """
    each, noise = Fraction(total, len(participants)), [Fraction(p.noise) for p in participants]
    if line is not None:
        added = [min(each, x * each / line.bounds.top) for x in noise]
    else:
        pot = sum(p.positive for p in participants) or Fraction(1)  # where nothing is positive, nothing is shared out
        share = total / pot if any(p.positive for p in participants) else Fraction(0)
        moved = (share * (x - sum(noise) * p.positive / pot) for p, x in zip(participants, noise, strict=True))
        added = [max(Fraction(-total), min(Fraction(total), x)) for x in moved]
    return {a: float(x / len(p.members)) for p, x in zip(participants, added, strict=True) for a in p.members}
