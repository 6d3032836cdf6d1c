"""What a federation's rounds pay, and what became of each: where payments are recorded, who was paid, and why not."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from verax.audit import Certificate
from verax.money import major_text, minor_units, scale_of
from verax.payments import Payments
from verax.reports import Reports
from verax.rounds import Rounds, Settlement, Spec, transcript_of
from verax.score import Scores
from verax.transcript import reports_of

_BEGUN = "begun"


@dataclass(frozen=True)
class Payroll:
    """Where payments are recorded, and how much each scored round pays.

    `db` is an SQLite file or a database URL; `copies` pays clients that are copies of one another as one;
    `significance` pays only scores that many standard errors above 0.

    >>> Payroll("rounds.db", budget="100.00").currency
    'EUR'
    """

    db: str
    budget: str
    currency: str = "EUR"
    scheme: str = "clipped"
    min_tasks: int = 30
    copies: bool = True
    significance: float | None = 3.0

    def __post_init__(self) -> None:
        minor_units(self.budget, scale_of(self.currency), self.currency)  # refused before anybody trains for it

    def spec(self, name: str, **asked: Any) -> Spec:
        """The round of that name which this payroll pays for."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "db"}
        return Spec(name, **(own | asked))

    @cached_property
    def rounds(self) -> Rounds:
        """The rounds in the payroll's database, which is made if it is not there."""
        from verax.ledger import Ledger

        return Rounds(Ledger.open(self.db, create=True))

    def at_the_rate_of(self, paid: int, others: int) -> str:
        """The budget that pays others, however many, each by the same rate as a round of so many.

        >>> Payroll("rounds.db", budget="100.00").at_the_rate_of(3, 2)
        '66.66'
        """
        places = scale_of(self.currency)
        return major_text(minor_units(self.budget, places, self.currency) * others // max(paid, 1), places)

    def settle(self, spec: Spec, reports: Reports) -> Settlement:
        """The round opened, funded, filled, sealed and settled; each step is idempotent."""
        self.rounds.open(spec)
        self.rounds.fund(spec.round)
        for i, agent in enumerate(reports.agents):
            self.rounds.submit(spec.round, agent, reports.only(i), key="1")
        self.rounds.seal(spec.round)
        return self.rounds.settle(spec.round)

    def begin(self, name: str, number: int, broadcast: str) -> str:
        """The name of a federation's round in the ledger, recorded with its number and what was broadcast in it.

        A round that was called off is begun again under another name.
        """
        with self.rounds.ledger.writing() as journal:
            tries = sum(begun["number"] == number for begun in journal.said(name, _BEGUN))
            round = f"{name}-{number}" + (f".{tries + 1}" if tries else "")
            journal.record(f"{name}:{_BEGUN}:{round}", _BEGUN, name, {
                "number": number, "round": round, "broadcast": broadcast,
            })  # fmt: skip
        return round

    def resumed(self, name: str) -> list[Begun]:
        """The rounds that a federation of this name has begun, brought to an end wherever it was killed.

        What was sealed is settled, as all replies are in it; what was still open is called off, and its budget goes
        back, for who replied will be asked again.
        """
        with self.rounds.ledger.reading() as journal:
            begun = journal.said(name, _BEGUN)
            opened = {entry["round"] for entry in begun if journal.get(f"{entry['round']}:open") is not None}
        return [self._ended(entry, entry["round"] in opened) for entry in begun]

    def _ended(self, entry: dict[str, Any], opened: bool) -> Begun:
        name, settled = entry["round"], None
        if opened:
            state = self.rounds.state(name)
            if state == "open":
                self.rounds.void(name)
            elif state != "void":
                settled = self.rounds.settle(name)
        return Begun(entry["number"], name, entry["broadcast"], settled)

    def reports_in(self, round: str) -> Reports:
        """The reports that a settled round of the ledger was paid by, without those that had no part in it."""
        with self.rounds.ledger.reading() as journal:
            spec, taken, _, _ = transcript_of(journal, round, self.rounds.ledger.keys)
        left_out = {*spec.unpaid, *spec.references}
        return reports_of(spec, [(agent, content) for agent, content in taken if agent not in left_out])


@dataclass(frozen=True)
class Begun:
    """A round that a federation began: its number, its name in the ledger, what was broadcast, how it was settled."""

    number: int
    round: str
    broadcast: str
    settled: Settlement | None


@dataclass(frozen=True)
class Outcome:
    """What became of one scored round: who was scored, paid, dropped, or not paid, and why.

    Where there is a payroll, scores, payments and copies are those of the round's settlement. `shares`: what each
    reply counts for in the average, where that was asked for.
    """

    server_round: int
    scores: Scores | None
    amounts: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    unpaid: dict[str, str] = field(default_factory=dict)
    round: str | None = None
    copies: tuple[Certificate, ...] = ()
    payments: Payments | None = None
    problem: str = ""
    shares: dict[str, float] = field(default_factory=dict)

    def table(self) -> str:
        """The round as text, one line a client."""
        notes = {c.agent: c.why for c in self.copies if c.agent} | self.unpaid
        lines = [f"{'client':>22}  {'score':>8}  {'stderr':>7}  {'paid':>8}  note"]
        ranked = self.scores.ranked() if self.scores else []
        for s in ranked:
            number, error = ("-" if x is None else f"{x:.4f}" for x in (s.score, s.stderr))
            lines.append(self._line(s.agent, notes.get(s.agent, ""), number, error))
        left = dict.fromkeys(self.amounts, "there is nobody to score it against") | notes
        left = {agent: why for agent, why in left.items() if agent not in {s.agent for s in ranked}}
        left |= {agent: f"dropped: {why}" for agent, why in self.dropped.items()}
        lines += [self._line(agent, why) for agent, why in left.items()]
        return "\n".join([*lines, *(self.scores.warnings if self.scores else ())])

    def _line(self, agent: str, note: str, number: str = "-", error: str = "-") -> str:
        return f"{agent[:22]:>22}  {number:>8}  {error:>7}  {self.amounts.get(agent, '-'):>8}  {note}"

    def certificates(self) -> list[Certificate]:
        """The same reasons as certificates, for a page."""
        found = [("REPLY", agent, why) for agent, why in self.dropped.items()]
        found += [("OWN-WORK", agent, why) for agent, why in self.unpaid.items()]
        return [Certificate(code, agent, "fails", None, None, None, why) for code, agent, why in found] + [*self.copies]
