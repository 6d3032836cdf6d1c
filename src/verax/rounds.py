"""Rounds: open -> sealed -> scored -> settled, or void: score, pay, post, once.

    state     step      becomes   who
    open      fund      open      the operator sets the budget aside
    open      submit    open      an agent hands in a report; the last one before sealing counts
    open      seal      sealed    nothing more is taken; the root of all commitments is fixed
    sealed    score     scored    scores and payments, a pure function of the sealed transcript
    scored    settle    settled   one transaction posts every payment and returns the residue
    open      void      void      everything goes back
    sealed    void      void

Everything is in the ledger's journal, so that every step is immutable, idempotent by its key, and
verifiable: `verify` computes every payment again from the transcript. What is asked (rule, classes,
tasks, public signal, truth, budget, deadline) is hashed when the round opens and cannot change.
Randomness comes from SHA-256 of the sealed root and a secret that was committed to at opening and is
published at settlement: neither the operator nor an agent can choose it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

from verax import wire
from verax.errors import ConflictError, InputError, LedgerError
from verax.ledger import HOUSE, Entry, Head, Journal, Ledger, Transfer
from verax.market import stake
from verax.reports import Reports
from verax.transcript import (
    Settlement,
    Spec,
    check_spec,
    commitment,
    content_of,
    digest_of,
    nonce_of,
    reports_of,
    root_of,
    settlement,
)

__all__ = [
    "TRANSITIONS",
    "Receipt",
    "Rounds",
    "Settlement",
    "Spec",
    "commitment",
    "content_of",
    "settlement",
    "transcript_of",
]

TRANSITIONS: dict[tuple[str, str], str] = {
    ("none", "open"): "open",
    ("open", "fund"): "open",
    ("open", "submit"): "open",
    ("open", "seal"): "sealed",
    ("sealed", "score"): "scored",
    ("scored", "settle"): "settled",
    ("open", "void"): "void",
    ("sealed", "void"): "void",
}
Transcript = tuple[Spec, list[tuple[str, Mapping[str, Any]]], str, str]
_LATEST_FIRST = ("settle", "score", "void", "seal", "open")  # the steps that leave a record


@dataclass(frozen=True)
class Receipt(wire.Document):
    """What an agent keeps: what was taken, when, and how long the journal was then."""

    round: str
    agent: str
    commitment: str
    nonce: str
    entry: int
    head: Head


@dataclass(frozen=True)
class _Round:
    """One round inside one transaction: what is recorded of it, and what may come next."""

    journal: Journal
    name: str
    asked: dict[str, Spec]

    @cached_property
    def steps(self) -> dict[str, Entry]:
        """The records of its steps, by name, but what it asks where that is known: it may be large."""
        known = ("open",) if self.name in self.asked else ()
        ids = [f"{self.name}:{step}" for step in (*_LATEST_FIRST, "secret") if step not in known]
        return {e.id.removeprefix(f"{self.name}:"): e for e in self.journal.among(*ids)}

    def said(self, step: str) -> Any:
        """What a step has recorded that no round is without."""
        entry = self.steps.get(step) or self.journal.get(f"{self.name}:{step}")
        if entry is None:
            raise LedgerError(f"no round is called {self.name!r}; open it first, or check db=")
        return entry.said

    def record(self, step: str, body: Any, kind: str | None = None) -> Entry:
        return self.journal.record(f"{self.name}:{step}", kind or step, self.name, body)

    def move(self, step: str, debit: str, credit: str, amount: int) -> Entry:
        code = step.partition(":")[0]
        return self.journal.transfer(Transfer(f"{self.name}:{step}", debit, credit, amount, code, self.name))

    @property
    def escrow(self) -> str:
        return f"escrow:{self.name}"

    @property
    def spec(self) -> Spec:
        if self.name not in self.asked:
            self.asked[self.name] = Spec.from_json(self.said("open")["spec"])
        return self.asked[self.name]

    @property
    def secret(self) -> str:
        return str(self.said("secret")["secret"])

    @property
    def state(self) -> str:
        there = {*self.steps, *(["open"] if self.name in self.asked else [])}
        latest = next((step for step in _LATEST_FIRST if step in there), None)
        return next((state for (_, step), state in TRANSITIONS.items() if step == latest), "none")

    def require(self, step: str) -> None:
        """Refuse a step that the table of transitions does not have."""
        state = self.state
        if (state, step) not in TRANSITIONS:
            allowed = [name for (before, name) in TRANSITIONS if before == state]
            raise ConflictError(
                f"round {self.name!r} is {state} and cannot {step}; it can only {' or '.join(allowed) or 'be shown'}"
            )

    def submissions(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The submissions that count: in a batch each agent's last, by name; in a market all, in order."""
        taken = [(body["agent"], body["content"]) for body in self.journal.said(self.name, "submit")]
        return taken if self.spec.kind == "market" else sorted(dict(taken).items())

    def key_of(self, mine: str, bound: str) -> str:
        """The key of a submission without one: that of the report that stands if it is the same, else a new one.

        In a market the last step of all stands, so that an agent may restore what another changed.
        """
        standing = self.journal.last(self.name, "submit", "" if self.spec.kind == "market" else mine)
        if standing is not None and standing.id.startswith(mine) and standing.said["commitment"] == bound:
            return standing.id.removeprefix(mine)
        return f"{bound}:{0 if standing is None else standing.seq}"

    def transcript(self) -> Transcript:
        sealed, secret, taken = self.steps.get("seal"), self.secret, self.submissions()
        if sealed is None:
            raise ConflictError(f"round {self.name!r} is not sealed; seal it first")
        root = root_of(taken, self.name, secret)
        if root != sealed.said["root"]:
            raise LedgerError(f"the submissions of round {self.name!r} are not those that were sealed; nothing is paid")
        return self.spec, taken, secret, root

    def settled(self) -> Settlement | None:
        """What was settled, if it was."""
        if "settle" not in self.steps:
            return None
        _ = self.spec.chosen  # a market's document is checked against what its rule can give
        return Settlement.recorded(self.spec, self.said("score"))

    def paid(self) -> dict[str, int]:
        """What was really moved to (or from) each agent when the round was settled."""
        found: dict[str, int] = defaultdict(int)
        for e in self.journal.entries(self.name, "posted"):
            if e.said["code"] == "pay" and e.debit and e.credit and e.amount:
                gained = e.credit.startswith("agent:")
                found[(e.credit if gained else e.debit).removeprefix("agent:")] += e.amount if gained else -e.amount
        return found

    def release_stakes(self) -> None:
        for e in list(self.journal.entries(self.name, "pending")):
            self.journal.void(f"{e.id}:release", e.id)

    def give_back(self) -> None:
        if rest := self.journal.available(self.escrow):
            self.move("residue", self.escrow, HOUSE, rest)


class Rounds:
    """Every step of every round on one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._asked: dict[str, Spec] = {}  # specs may be large, and cannot change once a round is open

    @contextmanager
    def _reading(self, round: str) -> Iterator[_Round]:
        with self.ledger.reading() as journal:
            yield _Round(journal, round, self._asked)

    @contextmanager
    def _writing(self, round: str) -> Iterator[_Round]:
        with self.ledger.writing() as journal:
            yield _Round(journal, round, self._asked)

    def spec(self, round: str) -> Spec:
        """What a round asks."""
        with self._reading(round) as this:
            return this.spec

    def state(self, round: str) -> str:
        """none, open, sealed, scored, settled or void."""
        with self._reading(round) as this:
            return this.state

    def open(self, spec: Spec, *, secret: str | None = None) -> Entry:
        """Open a round: its spec is hashed and fixed, and a secret is committed to.

        Opening the same round again, unchanged, answers as before.
        """
        check_spec(spec)
        with self._writing(spec.round) as this:
            if (known := this.journal.get(f"{spec.round}:open")) is not None:
                if known.said["digest"] != spec.digest:
                    raise ConflictError(f"round {spec.round!r} is open with another spec; choose another name")
                return known
            drawn = secret or secrets.token_hex(32)
            this.record("secret", {"secret": drawn})
            promise = hashlib.sha256(drawn.encode()).hexdigest()
            entry = this.record("open", {"spec": spec.to_json(), "digest": spec.digest, "secret_hash": promise})
        self._asked[spec.round] = spec
        return entry

    def fund(self, round: str, amount: int | None = None, *, agent: str | None = None, key: str | None = None) -> Entry:
        """Set the budget (or `amount`, in minor units) aside for the round, or give it to an agent's account.

        The same amount again is the same request, unless it has its own key.
        """
        with self._writing(round) as this:
            given = this.spec.minor() if amount is None else amount
            credit = f"agent:{agent}" if agent else this.escrow
            step = f"fund:{key or f'{credit}:{given}'}"
            if this.journal.get(f"{round}:{step}") is None:
                this.require("fund")
            return this.move(step, HOUSE, credit, given)

    def submit(self, round: str, agent: str, report: Reports, *, key: str | None = None) -> Receipt:
        """Take an agent's report; in a market its stake is held first, or it is not taken.

        The same report as the one that stands is the same request; to be sure over a bad line, give a key.
        """
        with self._writing(round) as this:
            spec, content = this.spec, content_of(report, this.spec)
            reports_of(spec, [(agent, content)])  # what could not be settled is refused now, not for everybody later
            nonce = nonce_of(this.secret, round, agent, content)
            bound = commitment(round, agent, content, nonce)
            mine = f"submit:{quote(agent, safe='')}:"
            step = mine + (key or this.key_of(f"{round}:{mine}", bound))
            if this.journal.get(f"{round}:{step}") is None:
                this.require("submit")
                if spec.closed:
                    raise ConflictError(f"the deadline of round {round!r} has passed; nothing is taken any more")
                if spec.kind == "market":
                    sides = f"agent:{agent}", this.escrow, stake(spec.mechanism, unit=spec.unit)
                    this.journal.hold(Transfer(f"{round}:{step}:stake", *sides, "stake", round))
            entry = this.record(step, {"agent": agent, "commitment": bound, "content": content}, "submit")
            return Receipt(round, agent, bound, nonce, entry.seq, Head(entry.seq, entry.hash))

    def seal(self, round: str) -> Entry:
        """Take nothing more: fix the root of all commitments. The budget must be set aside by then."""
        with self._writing(round) as this:
            if (known := this.steps.get("seal")) is not None:
                return known
            spec = this.spec
            this.require("seal")
            if spec.deadline is not None and not spec.closed:
                raise ConflictError(f"round {round!r} takes submissions until {spec.deadline}; seal it after that")
            if not (taken := this.submissions()):
                raise ConflictError(f"round {round!r} has no submissions; wait, or void it")
            needed, held = spec.minor(), this.journal.available(this.escrow)
            if held < needed:
                raise ConflictError(f"round {round!r} has {held} of {needed} minor units set aside; fund it first")
            return this.record("seal", {"root": root_of(taken, round, this.secret), "submissions": len(taken)})

    def settle(self, round: str) -> Settlement:
        """Score, pay and post, once; every later call gives the same answer."""
        with self._reading(round) as this:
            if (known := this.settled()) is not None:
                return known
            this.require("score")
            transcript = this.transcript()
        found = settlement(*transcript)  # after reading: it may take long, and an SQLite reader keeps writers waiting
        with self._writing(round) as this:
            if (known := this.settled()) is not None:
                return known
            this.require("score")
            this.record("score", found.to_json())
            this.release_stakes()
            for agent, amount in sorted(found.amounts.items(), key=lambda x: x[1]):  # losses come in, gains go out
                if amount:
                    sides = this.escrow, f"agent:{agent}"
                    this.move(f"pay:{agent}", *(sides if amount > 0 else sides[::-1]), abs(amount))
            this.give_back()
            this.record("settle", {"paid": sum(found.amounts.values())})
        return found

    def void(self, round: str) -> Entry:
        """Call the round off: stakes are let go and the budget goes back."""
        with self._writing(round) as this:
            if (known := this.steps.get("void")) is not None:
                return known
            this.said("open")
            this.require("void")
            this.release_stakes()
            this.give_back()
            return this.record("void", {}, "void-round")

    def show(self, round: str) -> dict[str, Any]:
        """What may be known now, as a document: before settlement nobody's report, nor the truth, nor the secret."""
        with self._reading(round) as this:
            opened, state, sealed = this.said("open"), this.state, this.steps.get("seal")
            spec, settled = opened["spec"], this.said("score") if state == "settled" else None
            if settled is None and spec["truth"] is not None:
                spec = spec | {"truth": "not shown before settlement"}
            taken = [(e.seq, e.said) for e in this.journal.entries(round, "submit")]
            return {
                "format": wire.ROUND, "round": round, "state": state,
                "digest": opened["digest"], "secret_hash": opened["secret_hash"], "spec": spec,
                "submissions": [{"agent": s["agent"], "commitment": s["commitment"], "entry": n} for n, s in taken],
                "escrow": this.journal.available(this.escrow), "root": sealed.said["root"] if sealed else None,
                "settlement": settled, "head": this.journal.head().to_json(),
            }  # fmt: skip

    def verify(self, round: str | None = None, *heads: Head) -> list[str]:
        """Every problem of the journal, and of a round's settlement computed again; [] if there is none."""
        problems = self.ledger.verify(*heads)
        if problems or round is None:
            return problems
        with self.ledger.reading() as journal:
            this = _Round(journal, round, {})  # what is recorded, not what is remembered
            opened = this.said("open")
            if digest_of(opened["spec"]) != opened["digest"]:
                return ["the round's spec is not the one that was hashed at opening"]
            if this.state != "settled":
                return []
            if hashlib.sha256(this.said("score")["secret"].encode()).hexdigest() != opened["secret_hash"]:
                return ["the published secret is not the one committed to at opening"]
            posted, transcript = this.paid(), this.transcript()
        due = settlement(*transcript).amounts
        return [
            f"agent {a!r} was paid {posted.get(a, 0)} and the transcript gives {due.get(a, 0)}"
            for a in sorted({*due, *posted}) if posted.get(a, 0) != due.get(a, 0)
        ]  # fmt: skip

    def payment(self, round: str, agent: str) -> tuple[int, int]:
        """What an agent was paid, and what the transcript gives when computed again."""
        with self.ledger.reading() as journal:
            this = _Round(journal, round, {})
            if this.state != "settled":
                raise ConflictError(f"round {round!r} is not settled; there is no payment to verify yet")
            posted, transcript = this.paid(), this.transcript()
        due = settlement(*transcript).amounts
        if agent not in due:
            raise InputError(f"agent {agent!r} has no submission in round {round!r}")
        return posted.get(agent, 0), due[agent]


def transcript_of(journal: Journal, round: str) -> Transcript:
    """What was sealed, and nothing else that a settlement rests on: spec (as recorded), submissions, secret, root."""
    return _Round(journal, round, {}).transcript()
