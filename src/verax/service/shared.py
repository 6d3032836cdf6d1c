"""What all addresses of the service share: the rounds, who asks, what waits, and how many may ask at a time."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from prometheus_client import generate_latest

from verax import wire
from verax.errors import ConflictError, InputError
from verax.ledger import Entry, Head, Ledger
from verax.rounds import Rounds, Spec
from verax.service import views
from verax.service.access import Guard, Sessions
from verax.service.follow import Follower, Watch
from verax.service.gate import Limits, Meters
from verax.service.queue import SETTLE, VERIFY, Job, Queue, Worker
from verax.service.webhooks import Hooks

OPERATOR_TOKEN = "token"
_MOST_INVITATIONS = 1000
_MOST_ENTRY_BYTES = 4 * 2**20
_MOST_SHOWN = 100
_MOST_IN_NAME = 500
_READERS = 24
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """Which database is served, for whom, and within which limits."""

    url: str = field(default="verax.db", repr=False)  # which may hold a password
    keys: str | None = None
    operators: tuple[str, ...] = ()  # public keys, beside the one in the folder of keys
    limits: Limits = field(default_factory=Limits)
    private_webhooks: bool = False  # whether webhooks may be told within private networks
    works: bool = True  # whether a process for what takes long is started


@dataclass(frozen=True)
class Funding(wire.Document):
    """What an operator sets aside: the budget, or an amount in minor units, then with a key of the request."""

    amount: int | None = None
    agent: str | None = None
    key: str | None = None

    def check(self) -> None:
        """Refuse a deposit that could not be told from a repetition, or is none."""
        if (self.amount is not None or self.agent) and not self.key:
            raise InputError("a deposit needs a key, so that the same request made twice is one; give key=")
        if self.amount is not None and not 0 < self.amount < 2**63:
            raise InputError(f"{self.amount} is no amount to deposit; give minor units, more than 0")


@dataclass(frozen=True)
class Beacon(wire.Document):
    """A beacon as drand publishes it, or its signature alone."""

    text: str


@dataclass(frozen=True)
class Inviting(wire.Document):
    """How many invitations an operator wants, and whom they are for."""

    count: int = 1
    organisation: str | None = None

    def check(self) -> None:
        """Refuse more than one answer should hold."""
        if not 0 < self.count <= _MOST_INVITATIONS:
            raise InputError(f"{self.count} invitations; ask for 1 to {_MOST_INVITATIONS} at a time")


@dataclass(frozen=True)
class Cosignature(wire.Document):
    """What a witness has signed, by the key that it is known by (name+id+base64)."""

    witness: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Told(wire.Document):
    """An address that is to be told what happens."""

    url: str


class Service:
    """What the handlers share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        ledger = Ledger.open(settings.url, keys=settings.keys)
        self.rounds, self.queue, self.follower = Rounds(ledger), Queue(ledger), Follower(ledger)
        token = ledger.keys.keep(OPERATOR_TOKEN, secrets.token_urlsafe(32) + "\n")
        self.guard = Guard({ledger.keys.key("operator").public, *settings.operators}, token.strip())
        self.meters = Meters()
        place = settings.url, settings.keys, settings.private_webhooks
        self.worker = Worker(*place, self.queue) if settings.works else None
        self.hooks = Hooks(ledger, private=settings.private_webhooks)
        self._writers, self._readers = anyio.CapacityLimiter(1), anyio.CapacityLimiter(_READERS)
        self._shown: dict[str, tuple[Head, bytes]] = {}
        self.sessions, self.watch = Sessions(), Watch(partial(self.read, self.snapshot))

    @property
    def token_file(self) -> str:
        """Where the operator's token is kept."""
        return self.rounds.ledger.keys.where(OPERATOR_TOKEN)

    async def read(self, ask: Callable[..., T], *args: Any) -> T:
        """An answer that changes nothing."""
        return await anyio.to_thread.run_sync(partial(ask, *args), limiter=self._readers)

    async def write(self, step: Callable[..., T], *args: Any, **how: Any) -> T:
        """A step, when those before it are done: a database has one writer, and threads that wait for it are lost."""
        return await anyio.to_thread.run_sync(partial(step, *args, **how), limiter=self._writers)

    def open(self, spec: Spec) -> Entry:
        """Open a round, for somebody who is not at this machine."""
        if ":" in spec.rule:
            raise InputError(f"rule {spec.rule!r} is code; open such a round where it is installed: verax round open")
        if checked_name(spec.round, "round") in (".", ".."):
            raise InputError("a round called . or .. has no address; choose another name")
        return self.rounds.open(spec)

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """How far every round is, the latest first, and its settlement."""
        jobs = self.queue.all(SETTLE)
        found = {known.round: known.to_json() for known in self.follower.rounds()}
        return {
            name: known | {"settlement": jobs[name].state if name in jobs else None} for name, known in found.items()
        }

    def shown(self, round: str) -> bytes:
        """A round as everybody may know it, kept until the journal goes on."""
        head = self.rounds.ledger.head()
        known = self._shown.get(round)
        if known is None or known[0] != head:
            while len(self._shown) > _MOST_SHOWN:
                self._shown.pop(next(iter(self._shown)), None)
            known = self._shown[round] = head, bytes_of(self.rounds.show(round))
        return known[1]

    def settling(self, round: str) -> dict[str, Any]:
        """How far a settlement is, and what it gave."""
        if self.rounds.state(round) == "settled":
            return {"round": round, "state": "settled", "settlement": self.rounds.settle(round).to_json()}
        return self.job(SETTLE, round)

    def payouts(self, round: str) -> str:
        """Who is to be paid what, of a settled round, as CSV."""
        shown = self.rounds.show(round)
        if shown["state"] != "settled":
            raise ConflictError(f"round {round!r} is {shown['state']}; there are payouts when it is settled")
        return views.payouts(shown)

    def job(self, kind: str, round: str) -> dict[str, Any]:
        """How far something is that a worker does; `none` where nobody has asked for it."""
        _ = self.rounds.public_record(round)
        found = self.queue.get(kind, round) or Job(kind, round, "none")
        return {"round": round, "state": found.state, "reason": found.reason}

    def ask_to_settle(self, round: str) -> dict[str, Any]:
        """Have a round settled by the worker, unless it is."""
        state = self.rounds.state(round)
        if state not in ("none", "sealed", "scored", "settled"):
            raise ConflictError(f"round {round!r} is {state}; only a sealed round can be settled")
        found = self.settling(round)
        if found["state"] in ("none", "failed"):
            self.queue.ask(SETTLE, round)
        return self.settling(round)

    def ask_to_verify(self, round: str) -> dict[str, Any]:
        """Have the journal and a round's settlement computed again by the worker."""
        _ = self.rounds.public_record(round)
        self.queue.ask(VERIFY, round)
        return self.job(VERIFY, round)

    def of_agent(self, round: str, agent: str) -> dict[str, Any]:
        """What an agent has handed in to a round, and what became of it."""
        taken = self.rounds.handed_in(round, agent)
        states = views.handed_in(self.rounds.show(round), agent, taken)
        key = taken[0]["key"] if taken else None
        return {"round": round, "agent": agent, "key": key, "next": len(taken) + 1, "submissions": states}

    def entries(self, after: int, most: int) -> dict[str, Any]:
        """Entries of the journal in order, as many as go into one answer, and where it ends."""
        found: list[dict[str, Any]] = []
        size = 0
        with self.rounds.ledger.reading() as journal:
            head = journal.head()
            for entry in journal.entries(after=after, most=most):
                size += len(entry.body)
                if found and size > _MOST_ENTRY_BYTES:
                    break
                found.append(vars(entry))
        return {"entries": found, "head": head.to_json()}

    def measured(self) -> bytes:
        """Everything that is counted, as Prometheus reads it."""
        self.meters.entries.set(self.rounds.ledger.head().count)
        for state, count in self.queue.counted().items():
            self.meters.jobs.labels(state).set(count)
        return generate_latest(self.meters.registry)


def checked_name(name: str, what: str) -> str:
    """A name that every database and address can hold.

    >>> checked_name("ann", "agent")
    'ann'
    """
    if _CONTROL.search(name) or len(name) > _MOST_IN_NAME:
        raise InputError(f"{name[:40]!r} is no {what}'s name; it has control characters, or more than {_MOST_IN_NAME}")
    return name


def bytes_of(document: Any) -> bytes:
    """A document as it is answered."""
    return wire.canonical(document).encode() + b"\n"
