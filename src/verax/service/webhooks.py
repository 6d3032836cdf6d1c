"""Webhooks: what happens in rounds, told to addresses that the operator names, signed as Standard Webhooks asks.

Each hook has a place in the journal that it has been told up to; entries are told one by one, in order, and again until
they are taken. An address that many tries did not reach is left behind an entry, so that the later ones are told.
Addresses within private networks are refused where they are reached, whatever their name said before.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from socket import SOCK_STREAM, getaddrinfo
from typing import Any
from urllib.parse import urlsplit

import httpx
import sqlalchemy as sa
from sqlalchemy import exc

from verax import wire
from verax.entries import Entry
from verax.errors import ConflictError, InputError, LedgerError, NotFoundError
from verax.ledger import Ledger
from verax.service.follow import agent_of

WAITS = (5, 60, 300, 1800, 7200, 18000, 36000, 50400)  # seconds before each try after the first; a day in all
_TOLD = {"open": "round.opened", "submit": "submission.taken", "seal": "round.sealed", "settle": "round.settled",
         "void-round": "round.void"}  # fmt: skip
_SECONDS = 10.0
_MOST_HOOKS = 20
_AT_ONCE = 100
# IPv6 networks whose addresses end in one of IPv4: NAT64 (RFC 6052), and IPv4-compatible (RFC 4291)
_TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::/96")))
_log = logging.getLogger("verax.service")
_table = sa.Table(
    "service_webhooks",
    sa.MetaData(),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("after", sa.BigInteger, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("due", sa.Float, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
)


@dataclass(frozen=True)
class Hook(wire.Document):
    """An address that is told, up to which entry it has been, and how the last telling went."""

    id: str
    url: str
    after: int
    tries: int
    due: float
    state: str = "fine"
    reason: str = ""


def signed(secret: str, id: str, at: int, body: bytes) -> str:
    """The signature of a message, as Standard Webhooks has it: the secret is what stands behind whsec_.

    >>> signed("whsec_" + base64.b64encode(b"k" * 24).decode(), "msg_1", 1, b"{}")[:3]
    'v1,'
    """
    key = base64.b64decode(secret.removeprefix("whsec_"))
    return f"v1,{base64.b64encode(hmac.digest(key, f'{id}.{at}.'.encode() + body, hashlib.sha256)).decode()}"


def checked_address(url: str, *, private: bool) -> str:
    """The address that a hook would reach, as numbers; refused if it is none, or within a private network.

    >>> checked_address("https://127.0.0.1/x", private=False)
    Traceback (most recent call last):
    verax.errors.InputError: 127.0.0.1 is within a private network; name an address that everybody can reach
    """
    where = urlsplit(url)
    try:
        port = where.port
    except ValueError:
        port = 0
    if where.scheme not in ("https", "http") or not where.hostname or where.username or port == 0:
        raise InputError(f"{url!r} is no address of a webhook; give https://host/path")
    if where.scheme == "http" and not private:
        raise InputError(f"{url!r} is read by whoever listens; give https://")
    try:
        there = {info[4][0] for info in getaddrinfo(where.hostname, port or 443, type=SOCK_STREAM)}
    except (OSError, UnicodeError):
        raise InputError(f"{where.hostname} cannot be found; see how it is written") from None
    for each in sorted(map(str, there)):
        if not private and not _is_public(ipaddress.ip_address(each.partition("%")[0])):
            raise InputError(f"{where.hostname} is within a private network; name an address that everybody can reach")
    return sorted(map(str, there))[0]


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether everybody can reach an address; one that stands for another, which a router may reach, is as that one.

    >>> [_is_public(ipaddress.ip_address(a)) for a in ("2606:4700::1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::")]
    [True, False, False]
    """
    if address.is_multicast or getattr(address, "is_site_local", False):
        return False
    if isinstance(address, ipaddress.IPv6Address):
        last = ipaddress.IPv4Address(int(address) % 2**32)
        translated = last if any(address in network for network in _TRANSLATED) else None
        inner = address.ipv4_mapped or address.sixtofour or translated
        if inner is not None:
            return _is_public(inner)
    return address.is_global


class Hooks:
    """The webhooks of one service, and their telling; secrets are kept beside the operator's key.

    >>> hooks = Hooks(Ledger.open("sqlite://"), private=True)
    >>> hook, secret = hooks.add("http://127.0.0.1:9/told")
    >>> secret[:6], [each.url for each in hooks.all()]
    ('whsec_', ['http://127.0.0.1:9/told'])
    """

    def __init__(self, ledger: Ledger, *, private: bool, clock: Callable[[], float] = time.time) -> None:
        postgres = ledger.engine.dialect.name == "postgresql"
        how: dict[str, Any] = {"isolation_level": "READ COMMITTED"} if postgres else {}
        self._ledger, self._engine = ledger, ledger.engine.execution_options(**how)
        self._private, self._clock = private, clock
        with self._writing() as connection:
            if postgres:
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(762180)"))
            _table.metadata.create_all(connection)

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with refusing_database(), self._engine.begin() as connection:
            yield connection

    def add(self, url: str) -> tuple[Hook, str]:
        """Tell an address from now on; the secret is shown this once."""
        checked_address(url, private=self._private)
        there = self.all()
        if url in (hook.url for hook in there):
            raise ConflictError(f"{url!r} is told already; to have a new secret, remove it and add it again")
        if len(there) >= _MOST_HOOKS:
            raise InputError(f"there are {_MOST_HOOKS} webhooks; remove one first")
        id = secrets.token_hex(8)
        secret = self._ledger.keys.keep(_kept_as(id), f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}")
        hook = Hook(id, url, self._ledger.head().count, 0, 0.0)
        with self._writing() as connection:
            connection.execute(_table.insert().values(**vars(hook)))
        return hook, secret

    def all(self) -> list[Hook]:
        """Every one, with how its last telling went."""
        with refusing_database(), self._engine.execution_options(reading=True).connect() as connection:
            return [Hook(*row) for row in connection.execute(sa.select(_table).order_by(_table.c.id))]

    def remove(self, id: str) -> None:
        """Tell it no more."""
        with self._writing() as connection:
            if not connection.execute(_table.delete().where(_table.c.id == id)).rowcount:
                raise NotFoundError(f"no webhook is called {id!r}; see which there are")

    def tell(self) -> int:
        """Tell every hook what is new and due; how many messages were taken."""
        return sum(self._tell_one(hook) for hook in self.all() if hook.due <= self._clock())

    def _tell_one(self, hook: Hook) -> int:
        taken = 0
        with self._ledger.reading() as journal:
            new = [(entry, _TOLD.get(entry.kind)) for entry in journal.entries(after=hook.after, most=_AT_ONCE)]
        for entry, kind in new:
            why = None if kind is None else self._send(hook, entry, kind)
            if why is not None and hook.tries < len(WAITS):
                due = self._clock() + WAITS[hook.tries]
                self._note(hook.id, tries=hook.tries + 1, due=due, state="trying", reason=why)
                return taken
            state = {"state": "fine", "reason": ""} if why is None else {"state": "missed", "reason": why}
            self._note(hook.id, after=entry.seq, tries=0, **state)
            hook = Hook(hook.id, hook.url, entry.seq, 0, 0.0)
            taken += kind is not None and why is None
        return taken

    def _note(self, id: str, **values: Any) -> None:
        with self._writing() as connection:
            connection.execute(_table.update().where(_table.c.id == id).values(**values))

    def _send(self, hook: Hook, entry: Entry, kind: str) -> str | None:
        """Send one message; why it was not taken, None if it was."""
        secret = self._ledger.keys.get(_kept_as(hook.id))
        if secret is None:
            return "its secret is not in the folder of keys"
        body, at, id = wire.canonical(message_of(entry, kind)).encode(), int(time.time()), f"msg_{hook.id}_{entry.seq}"
        headers = {
            "content-type": "application/json", "webhook-id": id, "webhook-timestamp": str(at),
            "webhook-signature": signed(secret, id, at, body), "user-agent": "verax",
        }  # fmt: skip
        try:
            number, where = checked_address(hook.url, private=self._private), urlsplit(hook.url)
            assert where.hostname is not None
            host = f"[{number}]" if ":" in number else number
            # to the number that was checked, so that the name cannot mean another place in the meantime
            there = where._replace(netloc=f"{host}:{where.port}" if where.port else host).geturl()
            extensions = {"sni_hostname": where.hostname}
            with httpx.Client(timeout=_SECONDS, follow_redirects=False, trust_env=False) as client:
                request = client.build_request(
                    "POST", there, content=body, headers=headers | {"host": where.netloc}, extensions=extensions
                )
                answer = client.send(request, stream=True)  # of which nothing but the status is read
                answer.close()
        except (httpx.HTTPError, InputError) as error:
            return f"{type(error).__name__}: {error}"[:300]
        return None if answer.is_success else f"it answered {answer.status_code}"


def message_of(entry: Entry, kind: str) -> dict[str, Any]:
    """What is told of an entry: what happened to which round, and where to ask for more."""
    data: dict[str, Any] = {"round": entry.round, "entry": entry.seq, "hash": entry.hash}
    if entry.kind == "submit":
        data["agent"] = agent_of(entry)
    return {"type": kind, "timestamp": entry.at, "data": data}


def _kept_as(id: str) -> str:
    return f"webhook-{id}"


@contextmanager
def refusing_database() -> Iterator[None]:
    """A database that cannot be used is a sentence."""
    try:
        yield
    except (exc.DBAPIError, exc.TimeoutError) as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0].strip()
        raise LedgerError(f"the database refused ({reason}); nothing was recorded, mend it and try again") from error
