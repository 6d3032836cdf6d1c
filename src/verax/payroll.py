"""What a federation's rounds pay, and what became of each: where payments are recorded, who was paid, and why not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from verax.audit import Certificate
from verax.money import minor_units, scale_of
from verax.payments import Payments
from verax.reports import Reports
from verax.rounds import Rounds, Settlement, Spec
from verax.score import Scores


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
        return Spec(
            name, budget=self.budget, currency=self.currency, scheme=self.scheme, min_tasks=self.min_tasks,
            copies=self.copies, significance=self.significance, **asked,
        )  # fmt: skip

    def settle(self, spec: Spec, reports: Reports) -> Settlement:
        """The round opened, funded, filled, sealed and settled; each step is idempotent."""
        from verax.ledger import Ledger

        rounds = Rounds(Ledger.open(self.db, create=True))
        rounds.open(spec)
        rounds.fund(spec.round)
        for i, agent in enumerate(reports.agents):
            rounds.submit(spec.round, agent, reports.only(i), key="1")
        rounds.seal(spec.round)
        return rounds.settle(spec.round)


@dataclass(frozen=True)
class Outcome:
    """What became of one scored round: who was scored, paid, dropped, or not paid, and why.

    Where there is a payroll, scores, payments and copies are those of the round's settlement.
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
