"""Keeping up with the journal: which rounds there are and how far each is, read entry by entry, each entry once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any
from urllib.parse import unquote

from verax import wire
from verax.errors import LimitError
from verax.ledger import Entry, Ledger
from verax.recorded import TRANSITIONS

_STEP_OF = {"void-round": "void"}
_STATE_AFTER = {step: state for (_, step), state in TRANSITIONS.items() if step not in ("fund", "submit")}
_AT_ONCE = 200
_EVERY, _HEARTBEAT = 0.5, 15.0  # seconds
_MOST_WATCHING = 500


@dataclass(frozen=True)
class Progress(wire.Document):
    """How far a round is; `entry` is the last that concerns it."""

    round: str
    state: str
    opened: str | None
    changed: str | None
    agents: int
    submissions: int
    entry: int


class Watch:
    """What has changed of a round, for as many as look on: the database is asked once for all of them."""

    def __init__(self, snapshot: Callable[[], Awaitable[dict[str, dict[str, Any]]]]) -> None:
        self._snapshot, self._lock, self._at = snapshot, asyncio.Lock(), -_EVERY
        self._known: dict[str, dict[str, Any]] = {}
        self._watching = 0

    async def changes(self, round: str) -> AsyncIterator[dict[str, Any] | None]:
        """How far a round is, now and whenever that changes; None when nothing has for a while."""
        if self._watching >= _MOST_WATCHING:
            raise LimitError("too many look on at once; load the page again later")
        self._watching += 1
        seen, waited = None, 0.0
        try:
            while True:
                known = (await self._latest()).get(round)
                if known != seen:
                    seen, waited = known, 0.0
                    yield known
                elif waited >= _HEARTBEAT:
                    waited = 0.0
                    yield None
                await asyncio.sleep(_EVERY)
                waited += _EVERY
        finally:
            self._watching -= 1

    async def _latest(self) -> dict[str, dict[str, Any]]:
        async with self._lock:
            if time.monotonic() - self._at >= _EVERY:
                self._known = await self._snapshot()
                self._at = time.monotonic()
            return self._known


class Follower:
    """All rounds of a ledger, as far as its journal was read.

    >>> Follower(Ledger.open("sqlite://")).rounds()
    []
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._lock, self._last = ledger, Lock(), 0
        self._rounds: dict[str, Progress] = {}
        self._agents: dict[str, set[str]] = {}

    def rounds(self) -> list[Progress]:
        """Every round, the latest first."""
        with self._lock:
            self._catch_up()
            return sorted(self._rounds.values(), key=lambda known: known.entry, reverse=True)

    def _catch_up(self) -> None:
        more = True
        while more:
            with self._ledger.reading() as journal:
                new = list(journal.entries(after=self._last, most=_AT_ONCE))
            for entry in new:
                self._see(entry)
            more = len(new) == _AT_ONCE

    def _see(self, entry: Entry) -> None:
        self._last = entry.seq
        if entry.kind == "open":
            self._rounds[entry.round] = Progress(entry.round, "open", entry.at, entry.at, 0, 0, entry.seq)
        known = self._rounds.get(entry.round)
        if known is None:
            return
        state = _STATE_AFTER.get(_STEP_OF.get(entry.kind, entry.kind), known.state)
        submitted = entry.kind == "submit"
        agents = self._agents.setdefault(entry.round, set())
        if submitted:
            agents.add(agent_of(entry))
        self._rounds[entry.round] = replace(
            known, state=state, changed=entry.at, agents=len(agents), submissions=known.submissions + submitted,
            entry=entry.seq,
        )  # fmt: skip


def agent_of(entry: Entry) -> str:
    """Whose submission an entry is, by its id."""
    return unquote(entry.id.removeprefix(f"{entry.round}:").split(":")[1])
