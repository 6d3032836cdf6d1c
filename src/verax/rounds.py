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
from collections.abc import Mapping
from dataclasses import dataclass
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


class Rounds:
    """Every step of every round on one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._asked: dict[str, Spec] = {}  # specs may be large, and cannot change once a round is open

    def spec(self, round: str) -> Spec:
        """What a round asks."""
        with self.ledger.reading() as journal:
            return self._spec(journal, round)

    def _spec(self, journal: Journal, round: str) -> Spec:
        if round not in self._asked:
            self._asked[round] = _recorded_spec(journal, round)
        return self._asked[round]

    def classes(self, round: str) -> tuple[str, ...]:
        """The classes of a round."""
        return self.spec(round).classes

    def minor(self, round: str, amount: str) -> int:
        """An amount in the round's currency, in minor units."""
        return self.spec(round).minor(amount, "amount")

    def open(self, spec: Spec, *, secret: str | None = None) -> Entry:
        """Open a round: its spec is hashed and fixed, and a secret is committed to.

        Opening the same round again, unchanged, answers as before.
        """
        check_spec(spec)
        key = f"{spec.round}:open"
        with self.ledger.writing() as journal:
            known = journal.get(key)
            if known is not None:
                if known.said["digest"] != spec.digest:
                    raise ConflictError(f"round {spec.round!r} is open with another spec; choose another name")
                return known
            drawn = secret or secrets.token_hex(32)
            journal.record(f"{spec.round}:secret", "secret", spec.round, {"secret": drawn})
            promise = hashlib.sha256(drawn.encode()).hexdigest()
            body = {"spec": spec.to_json(), "digest": spec.digest, "secret_hash": promise}
            entry = journal.record(key, "open", spec.round, body)
        self._asked[spec.round] = spec
        return entry

    def fund(self, round: str, amount: int | None = None, *, agent: str | None = None, key: str | None = None) -> Entry:
        """Set the budget (or `amount`, in minor units) aside for the round, or give it to an agent's account.

        The same amount again is the same request, unless it has its own key.
        """
        with self.ledger.writing() as journal:
            spec = self._spec(journal, round)
            credit = f"agent:{agent}" if agent else f"escrow:{round}"
            sum_ = amount if amount is not None else spec.minor()
            id = f"{round}:fund:{key or f'{credit}:{sum_}'}"
            if journal.get(id) is None:
                _require_step(journal, round, "fund")
            return journal.transfer(Transfer(id, HOUSE, credit, sum_, "fund", round))

    def submit(self, round: str, agent: str, report: Reports, *, key: str | None = None) -> Receipt:
        """Take an agent's report; in a market its stake is held first, or it is not taken.

        The same report as the one that stands is the same request; to be sure over a bad line, give a key.
        """
        with self.ledger.writing() as journal:
            spec = self._spec(journal, round)
            content = content_of(report, spec)
            reports_of(spec, [(agent, content)])  # what could not be settled is refused now, not for everybody later
            nonce = nonce_of(_secret_of(journal, round), round, agent, content)
            bound = commitment(round, agent, content, nonce)
            mine = f"{round}:submit:{quote(agent, safe='')}:"
            id = mine + (key or _next_key(journal, spec, mine, bound))
            if journal.get(id) is None:
                _require_step(journal, round, "submit")
                if spec.closed:
                    raise ConflictError(f"the deadline of round {round!r} has passed; nothing is taken any more")
                if spec.kind == "market":
                    most = stake(spec.mechanism, unit=spec.unit)
                    journal.hold(Transfer(f"{id}:stake", f"agent:{agent}", f"escrow:{round}", most, "stake", round))
            entry = journal.record(id, "submit", round, {"agent": agent, "commitment": bound, "content": content})
            return Receipt(round, agent, bound, nonce, entry.seq, Head(entry.seq, entry.hash))

    def seal(self, round: str) -> Entry:
        """Take nothing more: fix the root of all commitments. The budget must be set aside by then."""
        with self.ledger.writing() as journal:
            known = journal.get(f"{round}:seal")
            if known is not None:
                return known
            spec = self._spec(journal, round)
            _require_step(journal, round, "seal")
            if spec.deadline is not None and not spec.closed:
                raise ConflictError(f"round {round!r} takes submissions until {spec.deadline}; seal it after that")
            taken = _live_submissions(journal, spec)
            if not taken:
                raise ConflictError(f"round {round!r} has no submissions; wait, or void it")
            needed, held = spec.minor(), journal.available(f"escrow:{round}")
            if held < needed:
                raise ConflictError(f"round {round!r} has {held} of {needed} minor units set aside; fund it first")
            root = root_of(taken, round, _secret_of(journal, round))
            return journal.record(f"{round}:seal", "seal", round, {"root": root, "submissions": len(taken)})

    def settle(self, round: str) -> Settlement:
        """Score, pay and post, once; every later call gives the same answer."""
        with self.ledger.reading() as journal:
            if journal.get(f"{round}:settle") is not None:
                return _recorded_settlement(journal, self._spec(journal, round))
            _require_step(journal, round, "score")
            transcript = transcript_of(journal, round, self._spec(journal, round))
        found = settlement(*transcript)  # after reading: it may take long, and an SQLite reader keeps writers waiting
        with self.ledger.writing() as journal:
            if journal.get(f"{round}:settle") is not None:
                return _recorded_settlement(journal, self._spec(journal, round))
            _require_step(journal, round, "score")
            journal.record(f"{round}:score", "score", round, found.to_json())
            self._post(journal, transcript[0], found)
            journal.record(f"{round}:settle", "settle", round, {"paid": sum(found.amounts.values())})
        return found

    def _post(self, journal: Journal, spec: Spec, found: Settlement) -> None:
        """Let go of stakes, move what was won and lost, and give the rest back."""
        round, escrow = spec.round, f"escrow:{spec.round}"
        _release_stakes(journal, round)
        for agent, amount in sorted(found.amounts.items(), key=lambda x: x[1]):  # losses come in before gains go out
            if amount:
                sides = (escrow, f"agent:{agent}") if amount > 0 else (f"agent:{agent}", escrow)
                journal.transfer(Transfer(f"{round}:pay:{agent}", *sides, abs(amount), "pay", round))
        _give_back(journal, round)

    def void(self, round: str) -> Entry:
        """Call the round off: stakes are let go and the budget goes back."""
        with self.ledger.writing() as journal:
            known = journal.get(f"{round}:void")
            if known is not None:
                return known
            _opening_of(journal, round)
            _require_step(journal, round, "void")
            _release_stakes(journal, round)
            _give_back(journal, round)
            return journal.record(f"{round}:void", "void-round", round, {})

    def show(self, round: str) -> dict[str, Any]:
        """What may be known now, as a document: before settlement nobody's report, nor the truth, nor the secret."""
        with self.ledger.reading() as journal:
            opened, state = _opening_of(journal, round).said, _state_of(journal, round)
            spec, sealed = opened["spec"], journal.get(f"{round}:seal")
            settled = journal.get(f"{round}:score") if state == "settled" else None
            if settled is None and spec["truth"] is not None:
                spec = spec | {"truth": "not shown before settlement"}
            taken = [(e.seq, e.said) for e in journal.entries(round, "submit")]
            return {
                "format": wire.ROUND, "round": round, "state": state,
                "digest": opened["digest"], "secret_hash": opened["secret_hash"], "spec": spec,
                "submissions": [
                    {"agent": said["agent"], "commitment": said["commitment"], "entry": seq} for seq, said in taken
                ],
                "escrow": journal.available(f"escrow:{round}"), "root": sealed.said["root"] if sealed else None,
                "settlement": settled.said if settled else None, "head": journal.head().to_json(),
            }  # fmt: skip

    def verify(self, round: str | None = None, *heads: Head) -> list[str]:
        """Every problem of the journal, and of a round's settlement computed again; [] if there is none."""
        problems = self.ledger.verify(*heads)
        if problems or round is None:
            return problems
        with self.ledger.reading() as journal:
            opened = _opening_of(journal, round).said
            if digest_of(opened["spec"]) != opened["digest"]:
                return ["the round's spec is not the one that was hashed at opening"]
            settled = journal.get(f"{round}:score") if _state_of(journal, round) == "settled" else None
            if settled is None:
                return []
            if hashlib.sha256(settled.said["secret"].encode()).hexdigest() != opened["secret_hash"]:
                return ["the published secret is not the one committed to at opening"]
            posted, transcript = _posted_amounts(journal, round), transcript_of(journal, round)
        due = settlement(*transcript).amounts
        return [
            f"agent {a!r} was paid {posted.get(a, 0)} and the transcript gives {due.get(a, 0)}"
            for a in sorted({*due, *posted}) if posted.get(a, 0) != due.get(a, 0)
        ]  # fmt: skip

    def payment(self, round: str, agent: str) -> tuple[int, int]:
        """What an agent was paid, and what the transcript gives when computed again."""
        with self.ledger.reading() as journal:
            if _state_of(journal, round) != "settled":
                raise ConflictError(f"round {round!r} is not settled; there is no payment to verify yet")
            posted, transcript = _posted_amounts(journal, round), transcript_of(journal, round)
        due = settlement(*transcript).amounts
        if agent not in due:
            raise InputError(f"agent {agent!r} has no submission in round {round!r}")
        return posted.get(agent, 0), due[agent]


def _opening_of(journal: Journal, round: str, record: str = "open") -> Entry:
    entry = journal.get(f"{round}:{record}")
    if entry is None:
        raise LedgerError(f"no round is called {round!r}; open it first, or check db=")
    return entry


def _recorded_spec(journal: Journal, round: str) -> Spec:
    return Spec.from_json(_opening_of(journal, round).said["spec"])


def _secret_of(journal: Journal, round: str) -> str:
    return str(_opening_of(journal, round, "secret").said["secret"])


def _state_of(journal: Journal, round: str) -> str:
    there = journal.among(*(f"{round}:{step}" for step in _LATEST_FIRST))
    latest = next((step for step in _LATEST_FIRST if f"{round}:{step}" in there), None)
    return next((state for (_, step), state in TRANSITIONS.items() if step == latest), "none")


def _next_key(journal: Journal, spec: Spec, mine: str, bound: str) -> str:
    """The key of a submission without one: that of the report that stands if it is the same, else a new one.

    In a market the last step of all stands, so that an agent may restore what another changed.
    """
    standing = journal.last(spec.round, "submit", "" if spec.kind == "market" else mine)
    if standing is not None and standing.id.startswith(mine) and standing.said["commitment"] == bound:
        return standing.id.removeprefix(mine)
    return f"{bound}:{0 if standing is None else standing.seq}"


def _require_step(journal: Journal, round: str, step: str) -> None:
    """Refuse a step that the table of transitions does not have."""
    state = _state_of(journal, round)
    if (state, step) not in TRANSITIONS:
        allowed = [name for (before, name) in TRANSITIONS if before == state]
        raise ConflictError(
            f"round {round!r} is {state} and cannot {step}; it can only {' or '.join(allowed) or 'be shown'}"
        )


def _live_submissions(journal: Journal, spec: Spec) -> list[tuple[str, Mapping[str, Any]]]:
    """The submissions that count: in a batch each agent's last, by name; in a market all, in order."""
    bodies = [e.said for e in journal.entries(spec.round, "submit")]
    taken = [(body["agent"], body["content"]) for body in bodies]
    return taken if spec.kind == "market" else sorted(dict(taken).items())


def transcript_of(
    journal: Journal, round: str, spec: Spec | None = None
) -> tuple[Spec, list[tuple[str, Mapping[str, Any]]], str, str]:
    """What was sealed, and nothing else that a settlement rests on: spec (as recorded), submissions, secret, root."""
    spec = spec or _recorded_spec(journal, round)
    sealed, secret = journal.get(f"{round}:seal"), _secret_of(journal, round)
    if sealed is None:
        raise ConflictError(f"round {round!r} is not sealed; seal it first")
    taken = _live_submissions(journal, spec)
    root = root_of(taken, round, secret)
    if root != sealed.said["root"]:
        raise LedgerError(f"the submissions of round {round!r} are not those that were sealed; nothing is paid")
    return spec, taken, secret, root


def _recorded_settlement(journal: Journal, spec: Spec) -> Settlement:
    entry = journal.get(f"{spec.round}:score")
    assert entry is not None
    _ = spec.chosen  # a market's document is checked against what its rule can give
    return Settlement.recorded(spec, entry.said)


def _posted_amounts(journal: Journal, round: str) -> dict[str, int]:
    """What was really moved to (or from) each agent when the round was settled."""
    found: dict[str, int] = {}
    for e in journal.entries(round, "posted"):
        if e.said["code"] == "pay" and e.debit and e.credit and e.amount:
            gained = e.credit.startswith("agent:")
            agent = (e.credit if gained else e.debit).removeprefix("agent:")
            found[agent] = found.get(agent, 0) + (e.amount if gained else -e.amount)
    return found


def _release_stakes(journal: Journal, round: str) -> None:
    for e in list(journal.entries(round, "pending")):
        journal.void(f"{e.id}:release", e.id)


def _give_back(journal: Journal, round: str) -> None:
    rest = journal.available(f"escrow:{round}")
    if rest:
        journal.transfer(Transfer(f"{round}:residue", f"escrow:{round}", HOUSE, rest, "residue", round))
