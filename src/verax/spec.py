"""What a round asks and promises: the one document that everything else about a round follows from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from verax import wire
from verax.beacon import beacon_time
from verax.errors import InputError
from verax.examined import Terms
from verax.market import bounds, stake
from verax.models.asked import Asks
from verax.money import is_finite, minor_units, scale_of
from verax.plan import Mechanism
from verax.rules import DEFAULT, Rule, load

FIRST, CLUSTERS = "first", "clusters"
KINDS = ("survey", "hybrid", "exam", "batch", "market")
SURVEYED = ("survey", "hybrid")
_MOST_HOURS = 24.0 * 366
_LISTS = ("tasks", "classes", "truth", "public", "unpaid", "references")


@dataclass(frozen=True)
class Spec(wire.Document):
    """What a round asks and promises: fixed, and hashed, when it opens.

    `kind` is batch, market (closed by the truth), survey (a market closed by one drawn of those surveyed beside it, at
    most `places`, who are paid for their scores beside each other; Algorithm 2) or hybrid (closed by the truth where it
    is known, and by that survey elsewhere), or exam, which a federation opens with terms in `exam` and no tasks.
    `weight` is Algorithm 2's lambda: what the market pays for a unit of score, in what the survey pays for it; with
    `keep_both` who is in both is drawn from too. `rule` is a name, or your own as module:function, importable where the
    round is run. `truth` (a class number a task, -1 unknown) and `public` (a stratum, or a list of numbers, a task) are
    optional; `scale` is what a market, or a survey, pays for one unit of score, in major units: the budget, with a
    survey as much as the budget covers, if not given.

    Agents that are copies of one another are paid once: by `copies` the "first" to commit and the others nothing, or
    with True in equal parts; with "clusters" so is whoever shares errors (`verax.independence`); with False each is
    paid, as in a market, which pays for what each adds. `unpaid` names agents that handed in a report and take no part:
    not paid, and no reference; `references` names those whose reports others are scored beside, and who, as their
    copies, were paid for them before; `significance` pays only scores that many standard errors above 0.

    `sealing` None has reports sealed to the round's key, which the operator holds; "commit" has them committed to, and
    shown within `reveal_hours` of the sealing. `deposit`, in major units, is held from everybody who hands in a report,
    and forfeited by who does not show it to those who do; the stake of a step likewise. `beacon` is the number of
    drand's quicknet whose value enters every draw: it must come after the `deadline`.

    `admitted` are the public keys of the only agents that may take part, by name, `organisations` whose they are; with
    `invited` so may whoever brings an invitation; without both whoever comes first with a name has it.
    `per_organisation` is how many names one organisation may have (1), `quota` how often one agent may hand in.
    With scheme marks a score of `full_marks` earns a full share. With `asks` agents hand in models, which are run on
    inputs of the operator's (`verax.models`).

    >>> Spec("r1", ("t1", "t2"), ("cat", "dog"), "100.00", copies=False).digest[:8]
    'fe24af23'
    """

    round: str
    tasks: tuple[str, ...]
    classes: tuple[str, ...]
    budget: str
    kind: str = "batch"
    currency: str = "EUR"
    rule: str = DEFAULT
    over: str | None = None
    sign: str | None = None
    floor: float | None = None
    scheme: str = "clipped"
    min_tasks: int = 30
    scale: str | None = None
    deadline: str | None = None
    truth: tuple[int, ...] | None = None
    public: tuple[Any, ...] | None = None
    copies: Literal["first", "clusters"] | bool = wire.if_given("first")
    unpaid: tuple[str, ...] = wire.if_given(())
    significance: float | None = wire.if_given(None)
    references: tuple[str, ...] = wire.if_given(())
    admitted: dict[str, str] | None = wire.if_given(None)
    organisations: dict[str, str] | None = wire.if_given(None)
    invited: bool = wire.if_given(False)
    per_organisation: int | None = wire.if_given(None)
    quota: int | None = wire.if_given(None)
    places: int | None = wire.if_given(None)
    weight: float | None = wire.if_given(None)
    keep_both: bool = wire.if_given(False)
    asks: Asks | None = wire.if_given(None)
    exam: Terms | None = wire.if_given(None)
    sealing: Literal["commit"] | None = wire.if_given(None)
    reveal_hours: float | None = wire.if_given(None)
    deposit: str | None = wire.if_given(None)
    beacon: int | None = wire.if_given(None)
    full_marks: str | None = wire.if_given(None)

    def __post_init__(self) -> None:
        for name in _LISTS:
            if isinstance(given := getattr(self, name), list):
                object.__setattr__(self, name, tuple(given))
        if self.kind == "market":  # which pays for what each step adds; a survey beside it is a batch
            object.__setattr__(self, "copies", False)

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """A spec from its JSON form; rounds of before said nothing of copies, and paid each of them."""
        return super().from_json({"copies": False, **document} if isinstance(document, Mapping) else document)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical bytes."""
        return digest_of(self.to_json())

    @property
    def places_each(self) -> int:
        """How many names one organisation may have."""
        return 1 if self.per_organisation is None else self.per_organisation

    @cached_property
    def chosen(self) -> Rule:
        """The rule, imported from here if it is one's own."""
        return load(self.rule).with_floor(self.floor)

    @cached_property
    def signal(self) -> npt.NDArray[Any] | None:
        """The public signal as an array."""
        try:
            return None if self.public is None else np.array(self.public)
        except ValueError:
            raise InputError("the public signal's rows differ in length; give each task as many numbers") from None

    @property
    def mechanism(self) -> Mechanism:
        """A market's mechanism, as far as what it can pay and cost depends on it."""
        return Mechanism(self.rule, "truth", None, None, self.public is not None, self.chosen.floor)

    def minor(self, amount: str | None = None, what: str = "budget") -> int:
        """An amount, the budget if none is given, in minor units.

        >>> Spec("r1", ("t1", "t2"), ("cat", "dog"), "100.00").minor()
        10000
        """
        return minor_units(self.budget if amount is None else amount, scale_of(self.currency), self.currency, what)

    @property
    def is_market(self) -> bool:
        """Whether submissions come in order, each paid for what it adds."""
        return self.kind not in ("batch", "exam")

    @property
    def is_surveyed(self) -> bool:
        """Whether a survey closes it, or part of it."""
        return self.kind in SURVEYED

    @property
    def draws(self) -> bool:
        """Whether something is drawn that decides money."""
        return self.over == "one" or self.is_surveyed

    @property
    def held(self) -> int:
        """The deposit, in minor units."""
        return 0 if self.deposit is None else self.minor(self.deposit, "deposit")

    @property
    def unit(self) -> int:
        """Minor units that one unit of score is paid; where there is a survey, by the survey."""
        if self.scale is None and self.is_surveyed:
            return math.floor(self.minor() / (self.top * (self.steepness + (self.places or 0))))
        return self.minor(self.scale or self.budget, "scale")

    @property
    def steepness(self) -> float:
        """What a market pays for a unit of score, in units: lambda. (Algorithm 2)"""
        return 1.0 if self.weight is None else self.weight

    @property
    def top(self) -> float:
        """The most that the rule gives."""
        return bounds(self.mechanism)[1]

    @property
    def stake(self) -> int:
        """What a step in a market must have locked before it is taken, in minor units."""
        return stake(self.mechanism, unit=self.unit, scale=self.steepness)

    def is_closed(self, now: datetime) -> bool:
        """Whether the deadline, if there is one, has passed."""
        return self.deadline is not None and now >= time_of(self.deadline)

    def check_times(self) -> None:
        """Refuse what is no time, and a beacon that could be known before the last report."""
        deadline = None if self.deadline is None else time_of(self.deadline)
        if self.beacon is not None and (deadline is None or deadline >= beacon_time(self.beacon)):
            raise InputError(
                f"beacon {self.beacon} comes at {beacon_time(self.beacon)}, and the deadline is {self.deadline}; "
                "give a deadline before it, or who waits could choose what is drawn"
            )

    def check_draws(self) -> None:
        """Refuse terms of sealing that do not go together, and draws that somebody could choose."""
        committed = self.sealing is not None
        if not committed and (self.reveal_hours is not None or self.deposit is not None):
            raise InputError("reveal_hours= and deposit= are for commitments; give sealing='commit', or leave them out")
        if committed and not (is_finite(self.reveal_hours) and 0 < (self.reveal_hours or 0) <= _MOST_HOURS):
            raise InputError(f"reveal_hours is {self.reveal_hours}; say how long commitments may be shown, such as 24")
        if self.deposit is not None and self.held < 1:
            raise InputError(f"the deposit is {self.deposit}; give an amount above 0, or none")
        if self.beacon is not None and not self.draws:
            raise InputError("this round draws nothing that a beacon could decide; leave beacon= out")
        if self.draws and self.beacon is None and not (committed and self.held):
            raise InputError(
                "this round draws, and who holds its secret could choose what: give beacon=, or sealing='commit' and a "
                "deposit=; or draw nothing, over='mean'"
            )


def digest_of(document: Any) -> str:
    """SHA-256 of a document's canonical bytes.

    >>> digest_of(["r1"])[:8]
    '38edd8d1'
    """
    return hashlib.sha256(wire.canonical(document).encode("ascii")).hexdigest()


def time_of(text: str, what: str = "deadline") -> datetime:
    """A time as people write it, of Greenwich if it does not say.

    >>> time_of("2026-12-31").isoformat()
    '2026-12-31T00:00:00+00:00'
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{what} {text!r} is no time; write it as 2026-12-31T18:00:00+00:00") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
