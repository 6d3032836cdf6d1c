"""Commit-reveal: a round takes commitments only, and once it is sealed everybody shows what it committed to.

Until then nobody else can read a report, the operator included. A commitment is bound to round, agent, key and content
by a nonce of its agent's, so that a copy of it can be opened by nobody. What is not shown within the time that the spec
gives, counted from the sealing, says nothing, and forfeits what was held for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from verax import wire
from verax.errors import ConflictError
from verax.keys import Key
from verax.ledger import Entry
from verax.recorded import RecordedRound
from verax.sealed import hidden_nonce, shown_content
from verax.transcript import Content


@dataclass(frozen=True)
class Reveal(wire.Document):
    """What was committed to, shown: whoever brings it, only the agent can have made it."""

    round: str
    agent: str
    content: dict[str, Any]
    nonce: str

    @classmethod
    def of(cls, opened: Mapping[str, Any], agent: str, content: Content, key: Key) -> Reveal:
        """The same report and key that were committed with give it again; nothing has to be kept."""
        return cls(opened["spec"]["round"], agent, dict(content), hidden_nonce(opened, agent, content, key))


def reveal(this: RecordedRound, given: Reveal) -> Entry:
    """Record what an agent shows of what it committed to; the same again is answered as before."""
    if this.spec.sealing is None:
        raise ConflictError(f"round {this.name!r} has its reports sealed to it already; there is nothing to reveal")
    for agent, body in this.taken():
        if agent == given.agent and shown_content(this.opened, body, given.to_json()) is not None:
            break
    else:
        raise ConflictError(
            f"agent {given.agent!r} has committed to nothing like this in round {this.name!r}; "
            "reveal with the report and the key that were handed in"
        )
    step = f"reveal:{body['commitment']}"
    if (known := this.journal.get(f"{this.name}:{step}")) is not None:
        return known
    this.require("reveal")
    if this.journal.now() >= (until := reveal_deadline(this)):
        raise ConflictError(f"commitments of round {this.name!r} could be shown until {until}; it is too late")
    return this.record(step, given.to_json(), "reveal")


def reveal_deadline(this: RecordedRound) -> datetime:
    """Until when commitments may be shown: so long after the sealing that nobody can shorten it."""
    sealed = this.steps["seal"]
    return datetime.fromisoformat(str(sealed.at)) + timedelta(hours=this.spec.reveal_hours or 0.0)


def shown(this: RecordedRound) -> dict[str, Any]:
    """Who has shown what it committed to, and until when others may; nothing where nothing is to be shown."""
    if this.spec.sealing is None:
        return {}
    until = reveal_deadline(this).isoformat() if "seal" in this.steps else None
    return {"revealed": sorted({said["agent"] for said in this.revealed().values()}), "reveal_until": until}


def check_revealed(this: RecordedRound) -> None:
    """Refuse to settle while something may still be shown."""
    if this.spec.sealing is None or this.state != "sealed":
        return
    shown = this.revealed()
    missing = {agent for agent, body in this.taken() if body["commitment"] not in shown}
    if missing and this.journal.now() < reveal_deadline(this):
        raise ConflictError(
            f"{len(missing)} of round {this.name!r} may show what they committed to until {reveal_deadline(this)}; "
            "settle it after that, or when all have"
        )


def reveal_problems(this: RecordedRound) -> Iterator[str]:
    """What was recorded as shown and should not have been."""
    if this.spec.sealing is None or "seal" not in this.steps:
        return
    for entry in this.journal.entries(this.name, "reveal"):
        if datetime.fromisoformat(str(entry.at)) >= reveal_deadline(this) or entry.seq < this.steps["seal"].seq:
            yield f"entry {entry.seq} shows what {entry.said['agent']!r} committed to, out of time"
