"""An exam as a ledger has it: the terms it was opened with, what was recorded of each round, and what that pays.

    Terms       fixed before the first round: the price, gate or signed pay, whose labels were committed to
    Sat         one round as it was recorded: what examiners say since the session began, stakes, who replied alike
    results     everybody's scores and payments: a pure function of the two, so that anybody can compute them again

A session is what one process saw. Who is killed and goes on begins another, which knows nothing of what single examples
said before: errors of sessions are added, which is the most that they can be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from verax import wire
from verax.errors import InputError, OptionError
from verax.examiners import OVERS, Over
from verax.groups import joined
from verax.judgements import SURE, Judgement, Sheet, all_rounds
from verax.money import exact, major_text, scale_of
from verax.payments import Payments, pay_marks
from verax.score import Scores


@dataclass(frozen=True)
class Terms(wire.Document):
    """What an exam pays by: a score of `full_marks` earns budget/K, and more earns no more (`payments.pay_marks`).

    `signed` pays scores as they are, also below 0, out of stakes; otherwise one gate of `sure` errors stands before
    all. `commitments` (by holder; "" the server) were made before the first round.

    >>> Terms("0.05").signed
    False
    """

    full_marks: str
    signed: bool = False
    over: Over = "trusted"
    sure: float = SURE
    riding: str = "0.2"
    commitments: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse what no exam could be paid by."""
        if exact(self.full_marks, "full_marks") <= 0:
            raise OptionError(f"full_marks is {self.full_marks}; give the score above 0 that earns a full share")
        if self.over not in OVERS:
            raise OptionError(f"over is {self.over!r}; choose one of {', '.join(OVERS)}")
        if not 0 <= exact(self.riding, "riding") <= 1 or not 0 <= self.sure < math.inf:
            raise OptionError(f"riding {self.riding}, sure {self.sure}; give a part from 0 to 1, and 0 or more errors")


@dataclass(frozen=True)
class Sat(wire.Document):
    """One round of an exam, as it is recorded; judgements, deviations and stakes are sums up to this round.

    `deviations`: by how much one label's mark of each agent varies, by rows alone; `alike`: who said the same.

    >>> Sat(1, "s", "0" * 64, (0.5, 0.5), (), ("ann",), {"ann": 0.1}).number
    1
    """

    number: int
    session: str
    broadcast: str
    prior: tuple[float, ...]
    judgements: tuple[Judgement, ...]
    replied: tuple[str, ...]
    deviations: dict[str, float]
    alike: tuple[tuple[str, ...], ...] = ()
    stakes: dict[str, int] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse what no round can have come to."""
        for judgement in self.judgements:
            judgement.check()
            if len(judgement.counts) != len(self.prior):
                raise InputError(f"a judgement of round {self.number} has other labels than the round; take it anew")


def _sessions(sats: Sequence[Sat]) -> list[list[Sat]]:
    """The rounds by session, each in order."""
    found: dict[str, list[Sat]] = {}
    for sat in sorted(sats, key=lambda sat: sat.number):
        found.setdefault(sat.session, []).append(sat)
    return [*found.values()]


def sheet_of(classes: Sequence[str], over: Over, sats: Sequence[Sat]) -> Sheet:
    """What all recorded rounds come to; an examiner that was silent in the last one is heard as it spoke last.

    >>> sheet_of(["no", "yes"], "mean", []).agents
    ()
    """
    last = [{j.holder: j for sat in session for j in sat.judgements} for session in _sessions(sats)]
    found = all_rounds([[*session.values()] for session in last])
    prior = np.mean([sat.prior for sat in sats], axis=0) if sats else np.full(len(classes), 1 / len(classes))
    agents = sorted({agent for sat in sats for agent in sat.replied})
    return Sheet(tuple(agents), tuple(classes), prior, found, over)


def deviations_of(sats: Sequence[Sat]) -> dict[str, float]:
    """By how much one label's mark of each agent varies at most, over all sessions.

    >>> deviations_of([Sat(n, session, "", (1.0,), (), ("a",), {"a": 0.25}) for n, session in enumerate("stt")])
    {'a': 0.5}
    """
    total: Counter[str] = Counter()
    for session in _sessions(sats):
        for agent, deviation in {a: d for sat in session for a, d in sat.deviations.items()}.items():
            total[agent] += deviation  # type: ignore[assignment]
    return dict(total)


def stake_needed(terms: Terms, budget: int, agents: int, labels: int, deviation: float) -> int:
    """What bad luck with so many labels can take of a score that should be 0, in minor units.

    >>> stake_needed(Terms("0.04", signed=True), 2000, agents=2, labels=400, deviation=0.2)
    750
    """
    share = budget / max(agents, 1) / float(exact(terms.full_marks, "full_marks"))
    return math.ceil(share * terms.sure * deviation / math.sqrt(max(labels, 1)))


def copies_among(sats: Sequence[Sat]) -> list[list[str]]:
    """Who said the same in more than half of the rounds that they were both in.

    >>> one = Sat(1, "s", "", (1.0,), (), ("a", "b", "c"), {}, alike=(("a", "b"),))
    >>> copies_among([one])
    [['a', 'b']]
    """
    together = Counter(pair for sat in sats for pair in combinations(sorted(sat.replied), 2))
    same = Counter(pair for sat in sats for group in sat.alike for pair in combinations(sorted(group), 2))
    return [sorted(group) for group in joined([pair for pair, n in same.items() if 2 * n > together[pair]])]


def results(
    terms: Terms, budget: str, currency: str, classes: Sequence[str], sats: Sequence[Sat]
) -> tuple[Scores, Payments] | None:
    """Everybody's scores over all rounds and what is paid for them; None where there is nobody, or nothing to be on.

    Where pay is signed a payment contains the agent's stake.
    """
    sheet = sheet_of(classes, terms.over, sats)
    if not sheet.agents or not sheet.judgements:
        return None
    scores, groups = sheet.scores(), copies_among(sats)
    paid = pay_marks(
        scores, budget=budget, full_marks=terms.full_marks, currency=currency, sure=terms.sure, riding=terms.riding,
        deposit=_major(stakes_of(sats), currency) if terms.signed else None, agreement=sheet.agreement(),
        clusters=groups or None,
    )  # fmt: skip
    return scores, paid


def stakes_of(sats: Sequence[Sat]) -> dict[str, int]:
    """What is held of everybody at the end, in minor units.

    >>> stakes_of([Sat(1, "s", "", (1.0,), (), ("a",), {}, stakes={"a": 5})])
    {'a': 5}
    """
    return {agent: held for sat in sorted(sats, key=lambda sat: sat.number) for agent, held in sat.stakes.items()}


def _major(amounts: Mapping[str, int], currency: str) -> dict[str, str | int]:
    return {agent: major_text(amount, scale_of(currency)) for agent, amount in amounts.items()}
