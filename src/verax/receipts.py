"""Receipts: what an agent keeps of a submission, made from the journal, and checked without it.

A receipt holds the entry, the proof that it is in the log, and a checkpoint that the operator signed. Beside them stand
the round's tasks and classes and, where it may be told, the commitment's nonce, so that its holder can show what was
handed in. Nothing of these is believed: a report and a nonce either give the commitment that was recorded, or do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from verax.entries import Entry
from verax.errors import ConflictError, InputError
from verax.keys import OPERATOR, Key
from verax.log import Checkpoint, Continuation, NoteKey, Proof
from verax.recorded import RecordedRound
from verax.reports import Reports
from verax.sealed import Submission, nonce_by
from verax.spec import Spec
from verax.transcript import commitment, content_of


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: it holds, does not, or cannot be told from the receipt alone (None)."""

    holds: bool | None
    said: str


def receipt_of(
    this: RecordedRound, agent: str, number: int | None, *, nonce: str | None = None, opened: bool = False
) -> Proof:
    """The receipt of an agent's submission, that entry or its last one, under a checkpoint that covers all there is.

    The nonce is told where it is given, where the round is settled, and, if `opened`, where the operator's files have
    it: before settlement whoever has it can try reports until one fits.
    """
    entry = _submission_of(this, agent, number)
    spec = this.opened["spec"]
    asked = {name: spec[name] for name in ("round", "tasks", "classes", "rule", "sealing") if name in spec}
    beside: dict[str, Any] = {"asked": asked, "digest": this.opened["digest"], "operator": this.opened.get("operator")}
    if found := nonce or _nonce_in(this, entry, opened):
        beside["nonce"] = found
    top = _checkpoint_over(this, entry)
    proof = this.journal.tree.at(top.size).inclusion(entry.seq - 1)
    return Proof(entry.leaf, entry.seq - 1, tuple(proof), top, beside)


def _submission_of(this: RecordedRound, agent: str, number: int | None) -> Entry:
    _ = this.opened
    if number is None:
        there = (this.journal.last(this.name, "submit", this.prefix_of(agent, survey)) for survey in (False, True))
        mine = sorted((entry for entry in there if entry is not None), key=lambda entry: entry.seq)
    else:
        taken = this.journal.entries(this.name, "submit", after=number - 1, most=1)
        mine = [entry for entry in taken if entry.seq == number and entry.said["agent"] == agent]
    if not mine:
        which = "no submission" if number is None else f"no submission at entry {number}"
        raise InputError(f"agent {agent!r} has {which} in round {this.name!r}; see verax round show")
    return mine[-1]


def _nonce_in(this: RecordedRound, entry: Entry, opened: bool) -> str | None:
    secret = this.known_secret if opened or "settle" in this.steps else None
    if secret is None or "sealed" not in entry.said:
        return None
    found = Submission.from_json(entry.said).opened(secret)
    return None if found is None else found[1]


def _checkpoint_over(this: RecordedRound, entry: Entry) -> Checkpoint:
    """What the log is now where the round's operator can sign it, else as it has signed it last."""
    tree, public = this.journal.tree, this.opened.get("operator")
    text = this.keys.get(OPERATOR)
    if text is not None and (key := Key.of(text)).public == public and tree.size >= entry.seq:
        return this.journal.signed_checkpoint(key)
    sizes = [size for size in tree.signed_sizes(public) if size >= entry.seq]
    if not sizes:
        raise ConflictError(
            f"entry {entry.seq} is under no checkpoint yet; the operator makes one when the round is sealed"
        )
    return tree.checkpoint(sizes[-1])


def findings(proof: Proof, operator: str | None, witnesses: Sequence[NoteKey] = ()) -> Iterator[Finding]:
    """What a receipt shows by itself; `operator` is the key that is known to be the operator's."""
    top, said = proof.checkpoint, _submission_in(proof)
    whose = f"the submission of {said['body']['agent']!r} to round {said['round']!r}"
    yield Finding(
        said["seq"] == proof.index + 1,
        f"entry {said['seq']} of {top.origin} is {whose}, recorded at {said['at']}, "
        f"with the commitment {said['body']['commitment']}",
    )
    yield Finding(proof.is_included, f"the entry is in the log of {top.size} entries with the root {top.root.hex()}")
    key = operator or proof.beside.get("operator")
    when = top.signed_at(str(key))
    yield Finding(when is not None, f"the log was signed so by the operator's key {str(key)[:16]}{_at(when)}")
    if operator is None:
        yield Finding(None, "the key is as the receipt names it: compare it with the one that the operator is known by")
    for witness in witnesses:
        seen = top.note.signed_at(witness)
        yield Finding(seen is not None, f"{witness.name} has seen the log so{_at(seen)}")
    names = {line.split(" ")[1] for line in top.note.lines} - {top.origin, *(w.name for w in witnesses)}
    for name in sorted(names):
        yield Finding(None, f"{name} signed it too, by a key that is not known here")


def _at(when: int | None) -> str:
    return "" if not when else f" at {datetime.fromtimestamp(when, UTC).isoformat()}"


def _submission_in(proof: Proof) -> Any:
    said = proof.said
    body = said.get("body") if isinstance(said, dict) else None
    whole = isinstance(body, dict) and {"agent", "commitment"} <= {*body} and {"seq", "round", "at"} <= {*said}
    if not whole or said.get("kind") != "submit":
        raise InputError("the receipt's entry is no submission; give what verax receipt get wrote")
    return said


def report_finding(proof: Proof, report: Reports, signer: Key | None = None) -> Finding:
    """Whether a report is what was committed to; without a nonce in the receipt the signing key makes it again."""
    said, asked = _submission_in(proof), asked_by(proof)
    agent, content = said["body"]["agent"], content_of(report, asked)
    nonce = proof.beside.get("nonce")
    if signer is not None:
        nonce = nonce_by({"digest": proof.beside.get("digest"), "spec": proof.beside["asked"]}, agent, content, signer)
    if nonce is None:
        raise InputError("the receipt has no nonce, so that no report can be compared; give the agent's key with sign=")
    bound = commitment(said["round"], agent, content, str(nonce))
    return Finding(bound == said["body"]["commitment"], "the report is what was handed in and committed to")


def asked_by(proof: Proof) -> Spec:
    """As much of what the round asks as a report is read by."""
    try:
        asked = proof.beside["asked"]
        return Spec(asked["round"], tuple(asked["tasks"]), tuple(asked["classes"]), "1", rule=asked["rule"])
    except (KeyError, TypeError):
        raise InputError("the receipt does not say what its round asks; get it again with verax receipt get") from None


def later_finding(mine: Checkpoint, later: Checkpoint | Continuation, operator: str | None) -> Finding:
    """Whether a later checkpoint is of the same log, with nothing rewritten since."""
    now = later.checkpoint if isinstance(later, Continuation) else later
    if operator is not None and now.signed_at(operator) is None:
        return Finding(False, f"the other checkpoint, of {now.size} entries, is signed by the operator")
    if (why := mine.problem_beside(now)) is not None:
        return Finding(False, f"the two checkpoints are of one log: {why}")
    if now.size < mine.size:
        said = f"the other checkpoint has {now.size} entries, fewer than the receipt's {mine.size}"
        raise InputError(f"{said}; compare with a later one")
    if now.size > mine.size and not (isinstance(later, Continuation) and later.since == mine.size):
        said = f"the other checkpoint has {now.size} entries and shows nothing of the {mine.size} of the receipt"
        raise InputError(f"{said}; ask for it with since='{mine.size}'")
    same = now.size == mine.size or (isinstance(later, Continuation) and later.continues(mine.root))
    return Finding(same, f"the log of {now.size} entries begins with the {mine.size} of the receipt, unchanged")
