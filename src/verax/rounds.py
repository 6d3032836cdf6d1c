"""Rounds: open -> sealed -> scored -> settled, or void: score, pay, post, once.

    state     step      becomes   who
    open      fund      open      the operator sets the budget aside
    open      submit    open      an agent hands in a report; the last one before sealing counts
                                  in an exam the operator records the rounds that were sat
    open      seal      sealed    nothing more is taken; the root of all commitments is fixed
    sealed    score     scored    scores and payments, a pure function of the sealed transcript
    scored    settle    settled   one transaction posts every payment and returns the residue
    open      void      void      everything goes back
    sealed    void      void

Everything is in the ledger's journal, so that every step is immutable, idempotent by its key, and
verifiable: `verify` computes every payment again from the transcript. What is asked (rule, classes,
tasks, public signal, truth, budget, deadline) is hashed when the round opens and cannot change.
Randomness comes from SHA-256 of the sealed root and a secret that was committed to at opening and is
published at settlement: no agent can choose it. The operator knows the secret, and could hand in reports of its own
until a draw suits it (docs/trust.md).

Reports are sealed to the round where they are made, and signed by their agents' keys; the operator signs every step.
The round's secret, which opens them, is a file of the ledger's keyring and never in the journal before settlement. In
what follows an id is made of words of ours and of texts of users, which are quoted, so that none can be another.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from verax import admission, revealing, wire
from verax.admission import Admission, Admitted
from verax.answered import (
    Answers,
    answers_of,
    content_to_take,
    is_said_again,
    refuse_other_inputs,
)
from verax.beacon import beacon_time, signature_in
from verax.entries import MOST
from verax.errors import ConflictError, InputError, LedgerError
from verax.examined import Sat
from verax.keys import Key, Keyring
from verax.ledger import HOUSE, Entry, Head, Journal, Ledger
from verax.log import Checkpoint, Proof
from verax.models.prediction import Model, input_arrays
from verax.receipts import receipt_of
from verax.recorded import TRANSITIONS, RecordedRound, check_content, opener_of_models, secret_name
from verax.reports import Reports
from verax.retraced import course_problems, settlement_problems
from verax.revealing import Reveal
from verax.sealed import Submission, nonce_by, opened_record, opening_problems, spec_of
from verax.spec import Spec, digest_of
from verax.taking import take
from verax.transcript import Settlement, Transcript, check_spec, commitment, content_of, settlement

__all__ = [
    "TRANSITIONS",
    "Admission",
    "Admitted",
    "Receipt",
    "Reveal",
    "Rounds",
    "Settlement",
    "Spec",
    "Submission",
    "commitment",
    "content_of",
    "settlement",
    "transcript_of",
]


@dataclass(frozen=True)
class Receipt(wire.Document):
    """What an agent keeps: what was taken, when, and how long the journal was then."""

    round: str
    agent: str
    commitment: str
    nonce: str
    entry: int
    head: Head
    warnings: tuple[str, ...] = wire.if_given(())


class Rounds:
    """Every step of every round on one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._asked: dict[str, Spec] = {}  # specs may be large, and cannot change once a round is open
        self._openings: dict[str, dict[str, Any]] = {}
        self._taken: dict[str, tuple[dict[str, Any], ...]] = {}  # what was taken stays taken: only what is new is read

    @contextmanager
    def _reading(self, round: str) -> Iterator[RecordedRound]:
        with self.ledger.reading() as journal:
            yield RecordedRound(journal, round, self.ledger.keys, self._asked, self._openings)

    @contextmanager
    def _writing(self, round: str) -> Iterator[RecordedRound]:
        with self.ledger.writing() as journal:
            yield RecordedRound(journal, round, self.ledger.keys, self._asked, self._openings)

    def forget(self, round: str) -> None:
        """Let go of what is remembered of a round that is over; where it is asked for again it is read again."""
        for known in (self._asked, self._openings, self._taken):
            known.pop(round, None)

    def spec(self, round: str) -> Spec:
        """What a round asks."""
        with self._reading(round) as this:
            return this.spec

    def state(self, round: str) -> str:
        """none, open, sealed, scored, settled or void."""
        with self._reading(round) as this:
            return this.state

    def open(self, spec: Spec, *, secret: str | None = None) -> Entry:
        """Open a round: its spec is hashed and fixed, and a secret is committed to and kept in the keyring.

        Opening the same round again, unchanged, answers as before.
        """
        try:
            check_spec(spec)
        except OverflowError:
            raise InputError(f"what round {spec.round!r} asks has a number too large to count with") from None
        if spec.minor() > MOST:
            raise InputError(
                f"a budget of {spec.budget} {spec.currency} is more than can be counted; give a smaller one"
            )
        admission.check_admission(spec)
        with self._writing(spec.round) as this:
            if (known := this.journal.get(f"{spec.round}:open")) is not None:
                hidden = "" if spec.truth is None and spec.asks is None else this.secret
                if known.said["digest"] not in (opened_record(spec, hidden)["digest"], spec.digest):
                    raise ConflictError(f"round {spec.round!r} is open with another spec; choose another name")
                return known
            if spec.deadline is not None and spec.is_closed(this.journal.now()):
                raise InputError(f"the deadline {spec.deadline} has passed; give one to come, or none")
            drawn = secret or secrets.token_hex(32)
            opened = opened_record(spec, drawn)
            if spec.asks is not None:
                opened = opened_record(spec, drawn, opener_of_models(this.operator, spec.round, opened))
            this.keys.keep(secret_name(spec.round, opened["secret_hash"]), drawn)
            entry = this.record_signed("open", opened)
        self._asked[spec.round] = replace(spec, truth=None, asks=spec.asks and spec.asks.shown)
        return entry

    def fund(self, round: str, amount: int | None = None, *, agent: str | None = None, key: str | None = None) -> Entry:
        """Set the budget (or `amount`, in minor units) aside for the round, or give it to an agent's account.

        The budget is set aside once. An amount is a deposit of its own each time, unless a key says it is the same.
        """
        with self._writing(round) as this:
            given = this.spec.minor() if amount is None else amount
            credit = f"agent:{agent}" if agent else this.escrow
            again = f"key:{quote(key, safe='')}" if key else "budget" if amount is None and agent is None else None
            step = f"fund:{again or this.journal.head().count + 1}"
            if this.journal.get(f"{round}:{step}") is None:
                this.require("fund")
            _ = this.operator
            return this.move(step, HOUSE, credit, given)

    def public_record(self, round: str) -> dict[str, Any]:
        """What everybody may know of a round from its opening on: `Submission.of` and `Admission.of` ask for it."""
        with self._reading(round) as this:
            return this.opened

    def invite(self, round: str, count: int = 1, *, organisation: str | None = None) -> list[str]:
        """New invitations to a round that asks for them, each for one agent, once; they are kept nowhere else."""
        with self._writing(round) as this:
            return admission.invite(this, count, organisation)

    def admit(self, given: Admission) -> Admitted:
        """Admit a key under a name, by an invitation; the same again is answered as before."""
        with self._writing(given.round) as this:
            return admission.redeem(this, given)

    def submit(
        self, round: str, agent: str, report: Reports | Model, *, key: str | None = None, signer: Key | None = None,
        survey: bool = False,
    ) -> Receipt:  # fmt: skip
        """Take an agent's report, sealed and signed here; in a market its stake is held first, or it is not taken.

        Where models are asked for, it is an ONNX file or its bytes.

        `signer` is the agent's key; without one the operator signs for it. `survey`: it answers the survey that closes
        a market. The same report as the one that stands is the same request; to be sure over a bad line, give a key.
        """
        with self._writing(round) as this:
            content = content_to_take(report, this.spec)
            if this.spec.asks is None:
                check_content(this.spec, agent, content)  # what could not be settled is refused now
            signed_by = signer or this.operator
            number = this.handed_in(agent) + 1
            made = Submission.of(this.opened, agent, number, content, signed_by, survey=survey)
            return self._take(this, made, key, nonce_by(this.opened, agent, content, signed_by))

    def stake(self, round: str, needed: Mapping[str, int]) -> dict[str, int]:
        """In an exam with signed pay, hold of every agent's account what is needed in all and not held yet.

        What each account has left where that is too little; of those nothing more is held.
        """
        short = {}
        with self._writing(round) as this:
            this.require("submit")
            for agent, amount in sorted(needed.items()):
                missing, left = amount - this.staked(agent), this.available(f"agent:{agent}")
                if missing > left:
                    short[agent] = left
                elif missing > 0:
                    this.hold_stake(agent, missing)
        return short

    def sit(self, round: str, sat: Sat) -> Receipt:
        """Record a round of an exam, sealed as reports are; stakes are those that are held. The first record stands."""
        with self._writing(round) as this:
            if this.spec.exam is None:
                raise ConflictError(f"round {round!r} is no exam; hand in reports")
            name, key = f"round {sat.number}", this.operator
            if (known := this.journal.get(f"{round}:submit:{quote(name, safe='')}:1")) is not None:
                return self._receipt(this, Submission.from_json(known.said), "", known)
            agents = sorted({*sat.deviations})
            held = {agent: this.staked(agent) for agent in agents} if this.spec.exam.signed else {}
            content = replace(sat, stakes=held).to_json()
            check_content(this.spec, name, content)
            made = Submission.of(this.opened, name, 1, content, key)
            return self._take(this, made, "1", key.mark([this.opened["digest"], name, content]))

    def sat(self, round: str) -> list[Sat]:
        """The rounds of an exam that are recorded, for the operator who holds the secret."""
        with self._reading(round) as this:
            return [Sat.from_json(content) for _, content in this.contents()]

    def take(self, submission: Submission, *, key: str | None = None) -> Receipt:
        """Take a report that was sealed and signed elsewhere; what is in it nobody sees before the round is sealed."""
        with self._writing(submission.round) as this:
            return self._take(this, submission, key, "")

    def _take(self, this: RecordedRound, made: Submission, key: str | None, nonce: str) -> Receipt:
        return self._receipt(this, made, nonce, take(this, made, key))

    @staticmethod
    def _receipt(this: RecordedRound, made: Submission, nonce: str, entry: Entry) -> Receipt:
        head, warnings = Head(entry.seq, entry.hash), admission.warnings_of(this, made.agent)
        return Receipt(made.round, made.agent, made.commitment, nonce, entry.seq, head, warnings)

    def seal(self, round: str) -> Entry:
        """Take nothing more: fix the root of all commitments. The budget must be set aside by then."""
        with self._writing(round) as this:
            if (known := this.steps.get("seal")) is not None:
                return known
            spec = this.spec
            this.require("seal")
            if spec.deadline is not None and not spec.is_closed(this.journal.now()):
                raise ConflictError(f"round {round!r} takes submissions until {spec.deadline}; seal it after that")
            if spec.beacon is not None and this.journal.now() >= beacon_time(spec.beacon):
                raise ConflictError(
                    f"beacon {spec.beacon} of round {round!r} came at {beacon_time(spec.beacon)}: what is sealed now "
                    "could have been chosen by it; void the round"
                )
            taken = this.taken()
            if missing := this.missing(taken):
                raise ConflictError(f"round {round!r} has {missing}; wait, or void it")
            needed, held = spec.minor(), this.available(this.escrow)
            if held < needed:
                raise ConflictError(f"round {round!r} has {held} of {needed} minor units set aside; fund it first")
            root = digest_of([body["commitment"] for _, body in taken])
            entry = this.record_signed("seal", {"root": root, "submissions": len(taken)})
            this.journal.keep_checkpoint(this.operator)
            return entry

    def reveal(self, round: str, agent: str, report: Reports, *, signer: Key | None = None) -> Entry:
        """Show what an agent committed to, by the same report and key; where reports are sealed there is no need to."""
        with self._writing(round) as this:
            content = content_of(report, this.spec)
            return revealing.reveal(this, Reveal.of(this.opened, agent, content, signer or this.operator))

    def take_reveal(self, given: Reveal) -> Entry:
        """The same, made elsewhere."""
        with self._writing(given.round) as this:
            return revealing.reveal(this, given)

    def give_beacon(self, round: str, text: str) -> Entry:
        """Record the beacon that a round waits for, as drand publishes it; what is not that one's is refused."""
        with self._writing(round) as this:
            number = this.spec.beacon
            if number is None:
                raise ConflictError(f"round {round!r} waits for no beacon; settle it without")
            signature = signature_in(text, number)
            if this.steps.get("beacon") is None:
                this.require("score")
            return this.record("beacon", {"number": number, "signature": signature})

    def settle(self, round: str, *, inputs: Any = None, jail: str = "strong") -> Settlement:
        """Score, pay and post, once; every later call gives the same answer.

        Where models were asked for they are run first, each once, on the `inputs` that the round was opened with.
        """
        answers = self._answers(round, inputs, jail)
        with self._reading(round) as this:
            if (known := this.settled()) is not None:
                return known
            this.require("score")
            revealing.check_revealed(this)
            if (number := this.spec.beacon) is not None and "beacon" not in this.steps:
                raise ConflictError(f"{round!r} waits for beacon {number}, of {beacon_time(number)}; give beacon=")
            transcript = this.transcript(answers)
        found = settlement(*transcript)  # after reading: it may take long, and an SQLite reader keeps writers waiting
        if answers is not None:
            found = replace(found, notes=(*found.notes, *answers.notes))
        with self._writing(round) as this:
            if (known := this.settled()) is not None:
                return known
            this.require("score")
            if answers is not None:
                this.record_signed("answers", answers.to_json())
            this.record_signed("score", {"settlement": found.to_json()})
            this.release_stakes()
            for agent, amount in sorted(found.due.items(), key=lambda x: x[1]):  # losses come in, gains go out
                if amount:
                    sides = this.escrow, f"agent:{agent}"
                    this.move(f"pay:{quote(agent, safe='')}", *(sides if amount > 0 else sides[::-1]), abs(amount))
            this.give_back()
            this.record_signed("settle", {"paid": sum(found.due.values())})
            this.journal.keep_checkpoint(this.operator)
        return found

    def _answers(self, round: str, inputs: Any, jail: str) -> Answers | None:
        """What a round's models say of its inputs, outside any transaction; None where there is nothing to run."""
        with self._reading(round) as this:
            if this.settled() is not None or this.spec.asks is None:
                return None
            this.require("score")
            if inputs is None:
                raise InputError(f"round {round!r} asks for models; give the inputs they are run on: inputs=")
            spec, arrays = this.spec, input_arrays(inputs)
            models = this.models(arrays)
        return answers_of(spec, models, arrays, jail)

    def ask_again(self, round: str, agent: str, model: Model, inputs: Any, *, jail: str = "strong") -> bool:
        """Whether a model says again what was recorded for its agent: for whoever has both model and inputs."""
        with self._reading(round) as this:
            spec, arrays, answers = this.spec, input_arrays(inputs), this.answers
            refuse_other_inputs(spec, this.opened, this.secret, arrays)
        return is_said_again(spec, answers, agent, model, arrays, jail)

    def void(self, round: str) -> Entry:
        """Call the round off: stakes are let go and the budget goes back."""
        with self._writing(round) as this:
            if (known := this.steps.get("void")) is not None:
                return known
            this.said("open")
            this.require("void")
            this.release_stakes()
            this.give_back()
            entry = this.record_signed("void", {}, "void-round")
            this.journal.keep_checkpoint(this.operator)
            return entry

    def show(self, round: str) -> dict[str, Any]:
        """What may be known now, as a document: before settlement nobody's report, nor the truth, nor the secret."""
        with self._reading(round) as this:
            opened, state, sealed = this.opened, this.state, this.steps.get("seal")
            settled = this.settlement_document if state == "settled" else None
            spec = opened["spec"] if settled is None else spec_of(opened, this.secret).to_json()
            if settled is None and this.has_truth:
                spec = spec | {"truth": "not shown before settlement"}
            return {
                "format": wire.ROUND, "round": round, "state": state,
                "digest": opened["digest"], "secret_hash": opened["secret_hash"], "spec": spec,
                "submissions": self._submissions(this),
                "escrow": this.available(this.escrow), "root": sealed.said["root"] if sealed else None,
                "settlement": settled, "head": this.journal.head().to_json(), **revealing.shown(this),
            }  # fmt: skip

    def head(self) -> Head:
        """Where the journal ends."""
        return self.ledger.head()

    def handed_in(self, round: str, agent: str) -> list[dict[str, Any]]:
        """What an agent has handed in, in order: commitment, entry and key; all that an outsider may know of it."""
        with self._reading(round) as this:
            _ = this.opened
            mine, survey = this.prefix_of(agent, False), this.prefix_of(agent, True)
            taken = [e for e in this.journal.entries(round, "submit") if e.id.startswith((mine, survey))]
            return [
                {"entry": e.seq, "at": e.at, "hash": e.hash, "survey": e.id.startswith(survey)}
                | {name: e.said[name] for name in ("commitment", "key", "number")}
                for e in taken
            ]

    def balance(self, round: str, agent: str) -> int:
        """What an agent may still stake or be paid out, in minor units of the round's currency."""
        with self._reading(round) as this:
            return this.available(f"agent:{agent}")

    def _submissions(self, this: RecordedRound) -> list[dict[str, Any]]:
        known = self._taken.get(this.name, ())
        new = this.journal.entries(this.name, "submit", after=known[-1]["entry"] if known else 0)
        found = [(e.seq, e.said) for e in new]
        known += tuple({"agent": s["agent"], "commitment": s["commitment"], "entry": n} for n, s in found)
        self._taken[this.name] = known
        return [*known]

    def receipt(
        self, round: str, agent: str, entry: int | None = None, *, nonce: str | None = None, opened: bool = False
    ) -> Proof:
        """What an agent keeps of a submission, its last if not said: the entry, and that it is in the log, as one text.

        With the nonce that `submit` gave, or that `opened` takes from the operator's files, its holder can show what
        was handed in; before settlement it is for the agent alone.
        """
        self.ledger.catch_up()
        with self._reading(round) as this:
            return receipt_of(this, agent, entry, nonce=nonce, opened=opened)

    def verify(self, round: str | None = None, *kept: Head | Checkpoint) -> list[str]:
        """Every problem of the journal, and of a round's settlement computed again; [] if there is none.

        `kept` are heads and checkpoints that somebody has kept: the journal must still begin as they say.
        """
        problems = self.ledger.verify(*kept)
        if problems:
            return problems
        with self.ledger.reading() as journal:
            if round is None:
                return [problem for name in journal.rounds() for problem in self._course_problems(journal, name)]
            this = RecordedRound(journal, round, self.ledger.keys, {})  # what is recorded, not what is remembered
            if problems := self._problems_of(this):
                return problems
            if (recorded := this.settled()) is None:
                return []
            try:
                paid, transcript = this.paid(), this.transcript()
            except (InputError, LedgerError) as error:
                return [str(error)]
        return settlement_problems(recorded, settlement(*transcript), paid)

    @staticmethod
    def _problems_of(this: RecordedRound) -> list[str]:
        published = this.settlement_document["secret"] if this.state == "settled" else None
        problems = opening_problems(this.opened, published)
        return problems or [
            *this.signature_problems(), *admission.admission_problems(this), *revealing.reveal_problems(this),
            *course_problems(this),
        ]  # fmt: skip

    def _course_problems(self, journal: Journal, round: str) -> list[str]:
        """What is wrong with any round, but for what it pays; without an opening there is none, and no money in it."""
        if journal.get(f"{round}:open") is not None:
            return self._problems_of(RecordedRound(journal, round, self.ledger.keys, {}))
        return [f"entry {e.seq} ({e.id!r}) moves money in round {round!r}, which was never opened"
                for e in journal.entries(round) if e.amount is not None]  # fmt: skip

    def payment(self, round: str, agent: str) -> tuple[int, int]:
        """What an agent was paid, and what the transcript gives when computed again."""
        with self.ledger.reading() as journal:
            this = RecordedRound(journal, round, self.ledger.keys, {})
            if this.state != "settled":
                raise ConflictError(f"round {round!r} is not settled; there is no payment to verify yet")
            posted, transcript = this.paid(), this.transcript()
        due = settlement(*transcript).due
        if agent not in due:
            raise InputError(f"agent {agent!r} has no submission in round {round!r}")
        return posted.get(agent, 0), due[agent]


def transcript_of(journal: Journal, round: str, keys: Keyring | None = None) -> Transcript:
    """What was sealed, and nothing else that a settlement rests on: spec (as recorded), submissions, secret, root."""
    return RecordedRound(journal, round, keys or Keyring(), {}).transcript()
