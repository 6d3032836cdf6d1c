"""A round retraced, entry by entry: whether each could come when it came, and who ordered each movement of money.

    step          allowed by the table of transitions, in that order, each once
    posted        ordered by the operator, whose signature it bears, while the round is not over
    pending       an agent's own, for a submission that follows it, or in an exam for the rounds that it is in
    released      when the round is scored or voided, not before
    after the end nothing of these

And a settlement beside the one that is computed again: amounts, what was moved, scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from verax.entries import HOUSE, TRANSFERS, Entry
from verax.keys import is_signed
from verax.recorded import LATEST_FIRST, TRANSITIONS, RecordedRound
from verax.transcript import Settlement

_ENDS = ("settled", "void")
_EXACT = 1e-9  # to which a score is computed again on another machine


@dataclass
class _Way:
    """How far a round has come, and whose money it holds."""

    state: str = "none"
    holders: set[str] = field(default_factory=set)
    agents: set[str] = field(default_factory=set)
    given_back: list[Entry] = field(default_factory=list)


def course_problems(this: RecordedRound) -> Iterator[str]:
    """Every entry of a round that could not come when it came, or that nobody ordered who may have."""
    way = _Way()
    for entry in this.journal.entries(this.name):
        if way.state in _ENDS and (entry.kind in TRANSFERS or _step_of(this, entry)):
            yield f"entry {entry.seq} ({entry.id!r}) came after round {this.name!r} was {way.state}"
        elif entry.kind == "posted":
            yield from _order_problems(this, way, entry)
        elif entry.kind in TRANSFERS:
            yield from _stake_problems(this, way, entry)
        else:
            yield from _step_problems(this, way, entry)
    yield from _problems_at_the_end(this, way)


def _step_problems(this: RecordedRound, way: _Way, entry: Entry) -> Iterator[str]:
    step = _step_of(this, entry)
    if step is None and entry.kind in (*LATEST_FIRST, "void-round"):
        yield f"entry {entry.seq} ({entry.id!r}) records a step of round {this.name!r} under another name"
    if step == "submit" and isinstance(entry.said, dict):
        way.agents.add(f"agent:{entry.said.get('agent')}")
    if step is not None:
        following = TRANSITIONS.get((way.state, step))
        if following is None:
            yield f"entry {entry.seq}, {step}, came when round {this.name!r} was {way.state}"
        way.state = following or way.state


def _step_of(this: RecordedRound, entry: Entry) -> str | None:
    """The step that an entry records, if it does."""
    step = "submit" if entry.kind == "submit" else entry.id.removeprefix(f"{this.name}:")
    return step if step in ("submit", *LATEST_FIRST) else None


def _order_problems(this: RecordedRound, way: _Way, entry: Entry) -> Iterator[str]:
    """What is wrong with money that was moved at once."""
    code, agent = entry.said.get("code"), "agent:" in (str(entry.debit)[:6], str(entry.credit)[:6])
    in_order = {
        "fund": way.state == "open" and entry.debit == HOUSE and (agent or entry.credit == this.escrow),
        "pay": way.state == "scored" and agent and this.escrow in (entry.debit, entry.credit),
        "residue": (entry.debit, entry.credit) == (this.escrow, HOUSE),
    }.get(str(code), True)
    if not in_order:
        yield f"entry {entry.seq} ({entry.id!r}) moves money as {code!r} when round {this.name!r} was {way.state}"
    signature = str(entry.said.get("signature", ""))
    if "moves" in this.opened and not is_signed(this.ordered(entry), str(this.opened["operator"]), signature):
        yield f"entry {entry.seq} ({entry.id!r}) moves money, and the operator of {this.name!r} has not signed it"
    if code == "residue" and way.state != "scored":
        way.given_back.append(entry)


def _stake_problems(this: RecordedRound, way: _Way, entry: Entry) -> Iterator[str]:
    """What is wrong with money that was held, or let go."""
    if entry.kind == "pending":
        way.holders.add(str(entry.debit))
        if entry.credit != this.escrow:
            yield f"entry {entry.seq} ({entry.id!r}) holds money for {entry.credit!r}, which is not this round's"
    elif way.state != "scored":
        way.given_back.append(entry)


def _problems_at_the_end(this: RecordedRound, way: _Way) -> Iterator[str]:
    if way.state != "void":
        for entry in way.given_back:
            yield f"entry {entry.seq} ({entry.id!r}) gives money back before round {this.name!r} was scored"
    if way.state in _ENDS and (left := this.available(this.escrow)):
        yield f"{left} minor units are left in round {this.name!r}, which is {way.state}"
    if this.spec.exam is not None:  # what was sat names them, and is sealed until all is paid
        stakes = (this.settlement_document.get("stakes") or {}) if way.state == "settled" else {}
        short = [agent for agent, stake in sorted(stakes.items()) if this.staked(agent) < stake]
        yield from (f"the stake of {agent!r} in exam {this.name!r} is more than was held of it" for agent in short)
        return
    for account in sorted(way.holders - way.agents):
        yield f"money of {account!r} is held in round {this.name!r}, in which it has handed in nothing"


def settlement_problems(recorded: Settlement, due: Settlement, paid: Mapping[str, int]) -> list[str]:
    """Where what was paid, or was said to be paid and for which score, is not what the transcript gives."""
    found = [
        f"agent {a!r} was paid {paid.get(a, 0)} and the transcript gives {due.due.get(a, 0)}"
        for a in sorted({*due.due, *paid}) if paid.get(a, 0) != due.due.get(a, 0)
    ]  # fmt: skip
    if (recorded.amounts, recorded.forfeits) != (due.amounts, due.forfeits) and not found:
        found.append("the settlement says other amounts than the transcript gives")
    if (recorded.secret, recorded.root, recorded.chance) != (due.secret, due.root, due.chance):
        found.append("the settlement names another secret, root or chance than the round's")
    said, again = _numbers(recorded.scores), _numbers(due.scores)
    close = (math.isclose(said[k], again.get(k, math.nan), rel_tol=_EXACT, abs_tol=_EXACT) for k in said)
    if said.keys() != again.keys() or not all(close):
        found.append("the settlement says other scores than the transcript gives")
    return found


def _numbers(scores: Any) -> dict[tuple[Any, ...], float]:
    """Every number of scores or of a market, by whose it is."""
    rows = [] if scores is None else scores.payments if hasattr(scores, "payments") else scores.scores
    found = [((n, row.agent, name), held) for n, row in enumerate(rows) for name, held in vars(row).items()]
    return {key: float(held) for key, held in found if isinstance(held, int | float)}
