"""What a round takes: whose it is, whether it may be now, and what is held for it."""

from __future__ import annotations

from urllib.parse import quote

from verax.admission import admit
from verax.errors import ConflictError
from verax.ledger import Entry, Transfer
from verax.recorded import RecordedRound
from verax.sealed import Submission


def take(this: RecordedRound, made: Submission, key: str | None = None) -> Entry:
    """Record what was handed in, once it is known whose it is and that it may be; the same again is answered as before.

    What it may cost its agent is held before: in a market the stake, else the deposit, once.
    """
    round, agent = made.round, made.agent
    made.check_signature(this.opened)
    mine = this.prefix_of(agent, made.survey).removeprefix(f"{round}:")
    step = mine + (quote(key, safe="") if key else this.key_of(made))
    known = this.journal.get(f"{round}:{step}")
    if known is not None:
        if known.said["commitment"] != made.commitment:
            raise ConflictError(f"{step!r} was recorded before with other content; use another key")
        return known
    this.require("submit")
    if this.spec.deadline is not None and this.spec.is_closed(this.journal.now()):
        raise ConflictError(f"the deadline of round {round!r} has passed; nothing is taken any more")
    count = this.handed_in(agent)
    if made.number != count + 1:
        seen = f"{agent!r} has handed in {count} times and this is its number {made.number}"
        raise ConflictError(f"{seen}; sign it anew as number {count + 1}")
    if this.spec.quota is not None and count >= this.spec.quota:
        raise ConflictError(f"{agent!r} has handed in {count} times, which is all that round {round!r} takes")
    if this.spec.exam is None:
        admit(this, agent, made.key)
    elif made.key != this.opened["operator"]:
        raise ConflictError(f"round {round!r} is an exam, which its operator records; reply to the federation")
    if made.survey:
        _take_place(this, agent)
    elif this.spec.is_market:
        hidden = f"agent:{agent}", this.escrow, this.spec.stake
        this.journal.hold(Transfer(f"{round}:stake:{step}", *hidden, "stake", round, this.spec.currency))
    if this.spec.held and (made.survey or not this.spec.is_market):
        hidden = f"agent:{agent}", this.escrow, this.spec.held
        held = f"{round}:deposit:{quote(agent, safe='')}"
        this.journal.hold(Transfer(held, *hidden, "deposit", round, this.spec.currency))
    return this.record(step, made.to_json(), "submit")


def _take_place(this: RecordedRound, agent: str) -> None:
    """One of the places of a survey, of which the budget covers so many."""
    if not this.spec.is_surveyed:
        raise ConflictError(
            f"round {this.name!r} is a {this.spec.kind} round and has no survey; hand in without survey="
        )
    if this.journal.count(this.name, "submit", this.prefix_of(agent, True)):
        return
    taken, places = this.journal.count(this.name, "surveyed"), this.spec.places or 0
    if taken >= places:
        raise ConflictError(f"the {places} places of the survey of round {this.name!r} are taken")
    this.record(f"surveyed:{quote(agent, safe='')}", {"agent": agent}, "surveyed")
