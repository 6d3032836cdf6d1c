"""Where a federation's rounds are paid and recorded: what was begun, what was settled, and what everybody was told.

    begun     a round's number, what was broadcast, who was asked, dropped or not paid and why: before it is opened
    asked     who was sent an informative broadcast for the first time, before it was sent
    told      everybody's notice, signed: what it is paid, and why

All else of a round is `rounds`'. Started again, a federation has from these what it must not do twice or forget.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from verax import wire
from verax.errors import ConflictError, OptionError
from verax.examined import Terms
from verax.examiners import Over
from verax.judgements import SURE
from verax.kept import KeptModels
from verax.keys import OPERATOR
from verax.money import major_text, minor_units, scale_of
from verax.notices import TOLD, Notice
from verax.outcome import Outcome
from verax.received import Received
from verax.reports import Reports
from verax.rounds import Rounds, Settlement, Spec, transcript_of
from verax.schemes import MARKS
from verax.transcript import reports_of

_BEGUN, _ASKED = "begun", "asked"
_NOT_OF_A_ROUND = ("db", "full_marks", "signed", "riding")


@dataclass(frozen=True)
class Payroll:
    """Where payments are recorded, and how much each scored round pays.

    `db` is an SQLite file or a database URL; `copies` pays clients that are copies of one another as one;
    `significance` pays only scores that many standard errors above 0. `full_marks` is what score earns a full share: a
    price for what a reply adds, whose scores are far below what the rule can give at most. Protocol `exam`, which
    pays the budget once, needs it; with `signed` scores are paid as they are, also below 0, out of
    stakes that are held of clients' accounts; `riding` is the part of an examiner's pay that rides on agreeing.

    >>> Payroll("rounds.db", budget="100.00").currency
    'EUR'
    """

    db: str = field(repr=False)  # which may hold a password
    budget: str
    currency: str = "EUR"
    scheme: str = "clipped"
    min_tasks: int = 30
    copies: bool = True
    significance: float | None = 3.0
    full_marks: str | None = None
    signed: bool = False
    riding: str = "0.2"

    def __post_init__(self) -> None:
        minor_units(self.budget, scale_of(self.currency), self.currency)  # refused before anybody trains for it

    def spec(self, name: str, **asked: Any) -> Spec:
        """The round of that name which this payroll pays for."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_OF_A_ROUND}
        if self.full_marks is not None:
            own |= {"scheme": MARKS, "full_marks": self.full_marks}
        return Spec(name, **(own | asked))

    def exam_terms(self, over: Over, commitments: dict[str, str]) -> Terms:
        """What an exam is opened with.

        >>> Payroll("rounds.db", budget="100.00", full_marks="0.05").exam_terms("mean", {}).sure
        3.0
        """
        if self.full_marks is None:
            raise OptionError("an exam needs a price: give Payroll(..., full_marks=) the score that earns a full share")
        sure = SURE if self.significance is None and self.signed else self.significance or 0.0
        terms = Terms(self.full_marks, self.signed, over, sure, self.riding, commitments)
        terms.check()
        return terms

    @cached_property
    def rounds(self) -> Rounds:
        """The rounds in the payroll's database, which is made if it is not there."""
        from verax.ledger import Ledger

        return Rounds(Ledger.open(self.db, create=True))

    def models_of(self, name: str) -> KeptModels:
        """Where models of a federation are kept: beside an SQLite file, else beside the keys; nowhere beside memory.

        >>> import tempfile
        >>> payroll = Payroll(f"{tempfile.mkdtemp()}/rounds.db", budget="100.00")
        >>> payroll.models_of("plants").folder.parts[-2:]
        ('rounds.db.models', 'plants')
        """
        keys = self.rounds.ledger.keys.folder
        if keys is None:
            return KeptModels(None)
        beside = str(keys).removesuffix(".keys") if "://" in self.db else self.db
        return KeptModels(Path(f"{beside}.models") / quote(name, safe=""))

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

    def begin(
        self, name: str, number: int, broadcast: str, received: Received, unpaid: Mapping[str, str], known: set[str]
    ) -> Begun:
        """A federation's round, recorded with its name in the ledger, what was broadcast in it, and what came back.

        A round that was called off is begun again under another name. `known`: all that this process has taken up or
        begun, to which the new one is added; where there is another, somebody else runs under the same name.
        """
        with self.rounds.ledger.writing() as journal:
            before = journal.said(name, _BEGUN)
            if others := sorted({begun["round"] for begun in before} - known):
                raise ConflictError(
                    f"another process has begun {others[0]!r} of federation {name!r} meanwhile; let one of them end, "
                    "or give this one another name"
                )
            tries = sum(begun["number"] == number for begun in before)
            round = f"{name}-{number}" + (f".{tries + 1}" if tries else "")
            found = Begun(number, round, broadcast, received.asked, received.dropped, dict(unpaid), received.digests)
            journal.record(f"{name}:{_BEGUN}:{round}", _BEGUN, name, found.to_json())
        known.add(round)
        return found

    def resumed(self, name: str) -> list[Begun]:
        """The rounds that a federation of this name has begun, brought to an end wherever it was killed.

        What was sealed is settled, as all replies are in it; what was still open is called off, and its budget goes
        back, for who replied will be asked again.
        """
        with self.rounds.ledger.reading() as journal:
            begun = [_begun(record) for record in journal.said(name, _BEGUN)]
            opened = {b.round for b in begun if journal.get(f"{b.round}:open") is not None}
        return [self._ended(b) if b.round in opened else b for b in begun]

    def _ended(self, begun: Begun) -> Begun:
        state = self.rounds.state(begun.round)
        if state == "open":
            self.rounds.void(begun.round)
        return begun if state in ("open", "void") else replace(begun, settled=self.rounds.settle(begun.round))

    def note_asked(self, name: str, number: int, agents: Collection[str]) -> None:
        """Record who is about to be sent an informative broadcast for the first time."""
        with self.rounds.ledger.writing() as journal:
            count = journal.count(name, _ASKED)
            body = {"number": number, "agents": sorted(agents)}
            journal.record(f"{name}:{_ASKED}:{count + 1}", _ASKED, name, body)

    def asked(self, name: str) -> set[str]:
        """Who was ever sent an informative broadcast of this federation."""
        with self.rounds.ledger.reading() as journal:
            return {agent for record in journal.said(name, _ASKED) for agent in record["agents"]}

    def tell(self, round: str, notices: Iterable[Notice], *, settled: bool) -> dict[str, Notice]:
        """Everybody's notice of a round, with what the ledger has of it, signed by the operator and recorded.

        Of a settled round there is one record, which stands.
        """
        with self.rounds.ledger.reading() as journal:
            known = journal.get(f"{round}:{TOLD}") if settled else None
            submitted = {body["agent"] for body in journal.said(round, "submit")} if settled else set()
        if known is not None:
            return {notice.agent: notice for notice in map(Notice.from_json, known.said["notices"])}
        receipts = {agent: self._receipt(round, agent) for agent in submitted}
        with self.rounds.ledger.writing() as journal:
            key = self.rounds.ledger.keys.key(OPERATOR)
            signed = [replace(notice, receipt=receipts.get(notice.agent)).signed_by(key) for notice in notices]
            again = "" if settled else f":{journal.count(round, TOLD) + 1}"
            journal.record(f"{round}:{TOLD}{again}", TOLD, round, {"notices": [n.to_json() for n in signed]})
        self.rounds.forget(round)
        return {notice.agent: notice for notice in signed}

    def _receipt(self, round: str, agent: str) -> str:
        """The proof of an agent's entry, without the pool's tasks, of which there may be very many."""
        proof = self.rounds.receipt(round, agent)
        return str(replace(proof, beside={name: said for name, said in proof.beside.items() if name != "asked"}))

    def reports_in(self, round: str) -> Reports:
        """The reports that a settled round of the ledger was paid by, without those that had no part in it."""
        with self.rounds.ledger.reading() as journal:
            spec, taken, *_ = transcript_of(journal, round, self.rounds.ledger.keys)
        left_out = {*spec.unpaid, *spec.references}
        return reports_of(spec, [(agent, content) for agent, content in taken if agent not in left_out])


def settled_outcome(begun: Begun, before: Collection[str] = ()) -> Outcome:
    """What a settled round's records say of it; those `before` were paid for the same reports before."""
    settled = begun.settled
    assert settled is not None
    twins = tuple(c for c in settled.copies if c.verdict == "fails" and c.agent not in before)
    amounts = {agent: amount for agent, amount in settled.amounts.items() if agent not in before}
    return Outcome(
        begun.number, settled.scores, amounts, dict(begun.dropped), dict(begun.unpaid), begun.round, twins,
        settled.payments, models=dict(begun.models), before=tuple(before)
    )  # fmt: skip


@dataclass(frozen=True)
class Begun(wire.Document):
    """A round that a federation began: its number and its name in the ledger, what was broadcast, and what came back.

    `models` are the digests of the replies. `settled` is how it ended, if it did.
    """

    number: int
    round: str
    broadcast: str
    asked: tuple[str, ...] = ()
    dropped: dict[str, str] = field(default_factory=dict)
    unpaid: dict[str, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    settled: Settlement | None = wire.unwritten(None)


def _begun(record: dict[str, Any]) -> Begun:
    """Of a first version's record there is no more than number, round and broadcast."""
    empty = Begun(record["number"], record["round"], record["broadcast"])
    return Begun.from_json(empty.to_json() | record)
