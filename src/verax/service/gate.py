"""What stands before every request: how much, how often, how long; what is logged, counted, forbidden to browsers.

A body is refused before it is parsed: by its length, by how slowly it comes, by how much is held for others already.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verax.errors import LimitError, VeraxError

_log = logging.getLogger("verax.service")
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # not less: forms say by it where they come from
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_MOST_ADDRESSES = 20_000
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_STEP_COST = 4.0  # of a request that may write, in those that only read


class SizeError(LimitError):
    """A body is longer than anybody may send."""

    status = 413


class SlowError(LimitError):
    """A body does not come."""

    status = 408


@dataclass(frozen=True)
class Limits:
    """What one address may ask for, and all together; a rate of 0 is none."""

    rate: float = 50.0  # requests a second
    body: int = 16 * 2**20
    bodies: int = 256 * 2**20
    seconds: float = 60.0  # in which a body must have come


class Buckets:
    """Requests by address: `rate` a second, and four seconds' worth at once.

    >>> buckets = Buckets(1.0, clock=lambda: 0.0)
    >>> [buckets.wait("192.0.2.1", 2.0) for _ in range(3)]
    [0.0, 0.0, 2.0]
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, address: str, cost: float = 1.0) -> float:
        """How many seconds too early this request is; 0 if it may be made."""
        if self._rate <= 0:
            return 0.0
        now, most = self._clock(), max(4 * self._rate, cost)
        left, before = self._left.pop(address, (most, now))
        left = min(most, left + (now - before) * self._rate)
        enough = left >= cost
        self._left[address] = (left - cost if enough else left, now)
        if len(self._left) > _MOST_ADDRESSES:
            self._left.popitem(last=False)
        return 0.0 if enough else (cost - left) / self._rate


class Meters:
    """What /metrics shows."""

    def __init__(self) -> None:
        self.registry = here = CollectorRegistry()
        self.requests = Counter("verax_requests", "Requests answered.", ["method", "route", "status"], registry=here)
        self.seconds = Histogram("verax_request_seconds", "How long answers took.", ["route"], registry=here)
        self.held = Gauge("verax_body_bytes", "Bytes of request bodies held now.", registry=here)
        self.entries = Gauge("verax_journal_entries", "Entries in the journal.", registry=here)
        self.jobs = Gauge("verax_jobs", "Settlements and verifications by state.", ["state"], registry=here)


def network(address: str) -> str:
    """Whom a limit is for: an address, or of the sixth version the network that one household has.

    >>> network("192.0.2.7"), network("2001:db8::7"), network("::ffff:192.0.2.7"), network("somebody")
    ('192.0.2.7', '2001:db8::/64', '192.0.2.7', 'somebody')
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)  # which a socket for both versions makes of it
    return address if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))


class Gate:
    """The middleware around the whole service; `refusal` makes an answer of an error."""

    def __init__(
        self, app: ASGIApp, limits: Limits, meters: Meters, refusal: Callable[[Request, Exception], Response]
    ) -> None:
        self._app, self._limits, self._meters, self._refusal = app, limits, meters, refusal
        self._buckets, self._held = Buckets(limits.rate), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, from the outside."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # names of users are in the path: what they hold is not to be taken for what divides it
        scope["path"] = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
        started, address = time.perf_counter(), network((scope.get("client") or ("nobody", 0))[0])
        answered = {"status": 500, "bytes": 0, "started": 0}

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered.update(status=message["status"], started=1)
                there = {name.lower() for name, _ in message["headers"]}
                more = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in there)]
            else:
                answered["bytes"] += len(message.get("body", b""))
            await send(message)

        body = _Body(self, receive)
        try:
            refused = self._refused(scope, address)
            if refused is not None:
                await self._refusal(Request(scope), refused)(scope, receive, sent)
            else:
                await self._app(scope, body.receive, sent)
        except Exception as error:
            if answered["started"]:
                raise
            _log.exception("a request failed by a mistake of verax's own")
            await self._refusal(Request(scope), error)(scope, receive, sent)
        finally:
            self.hold(-body.size)
            self._tell(scope, address, answered, time.perf_counter() - started)

    def _refused(self, scope: Scope, address: str) -> VeraxError | None:
        wait = self._buckets.wait(address, 1.0 if scope["method"] in ("GET", "HEAD") else _STEP_COST)
        if wait:
            return LimitError(f"too many requests from {address}; try again in {wait:.1f} s")
        length = dict(scope["headers"]).get(b"content-length", b"0")
        try:
            self.check_size(int(length))
        except LimitError as error:
            return error
        except ValueError:
            return VeraxError("the Content-Length is no number; leave it to your client")
        return None

    @property
    def seconds(self) -> float:
        """In which a body must have come."""
        return self._limits.seconds

    def check_size(self, size: int) -> None:
        """Refuse a body that is too long, or for which there is no room now."""
        if size > self._limits.body:
            raise SizeError(f"the body is longer than {self._limits.body:,} bytes, which is the most; send less")
        if self._held + size > self._limits.bodies:
            raise LimitError("too much is sent at a time by all together; try again in a few seconds")

    def hold(self, size: int) -> None:
        """Count bytes that are held, or let go."""
        self._held += size
        self._meters.held.set(self._held)

    def _tell(self, scope: Scope, address: str, answered: dict[str, int], took: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._meters.requests.labels(method, route, answered["status"]).inc()
        self._meters.seconds.labels(route).observe(took)
        said = {"method": scope["method"], "path": scope["path"], "route": route, "address": address}
        said |= {"status": answered["status"], "bytes": answered["bytes"]}
        who = scope.get("state", {}).get("who")
        _log.info("request", extra={"said": {**said, "seconds": round(took, 4), **({"who": who} if who else {})}})


class _Body:
    """A body as it comes, counted."""

    def __init__(self, gate: Gate, receive: Receive) -> None:
        self._gate, self._receive, self.size, self._ended = gate, receive, 0, False
        self._until = time.monotonic() + gate.seconds

    async def receive(self) -> Message:
        if self._ended:
            return await self._receive()  # which tells when whoever asked is gone
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._until - time.monotonic()))
        except TimeoutError:
            raise SlowError(f"the body has not come in {self._gate.seconds:.0f} s; send it again, faster") from None
        if message["type"] == "http.disconnect":
            raise VeraxError("whoever asked was gone before all of it had come; send it again")
        self._ended = message["type"] != "http.request" or not message.get("more_body", False)
        more = len(message.get("body", b""))
        self._gate.hold(more)
        self.size += more
        self._gate.check_size(self.size)
        return message


class Lines(logging.Formatter):
    """A log of JSON, a line an event."""

    def format(self, record: logging.LogRecord) -> str:
        """One event; nothing that a user sent is in it but methods, paths and addresses."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found: dict[str, Any] = {"at": at, "level": record.levelname.lower(), "event": record.getMessage()}
        found |= getattr(record, "said", {})
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found)
