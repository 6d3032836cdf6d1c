"""The service's face: which address asks what of `Rounds`, who may, and what is answered. Every error is a sentence."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread
import msgspec
from fastapi import Depends, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException

from verax import __version__, wire
from verax.errors import ConflictError, InputError, NotFoundError, VeraxError
from verax.ledger import Entry, Head, Ledger
from verax.log import NoteKey
from verax.rounds import Admission, Admitted, Receipt, Rounds, Settlement, Spec, Submission
from verax.service import views
from verax.service.access import Guard
from verax.service.follow import Follower, Progress
from verax.service.gate import Gate, Limits, Meters
from verax.service.queue import SETTLE, VERIFY, Job, Queue, Worker

OPERATOR_TOKEN = "token"
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_MOST_ENTRIES, _MOST_ENTRY_BYTES = 1000, 4 * 2**20
_MOST_INVITATIONS = 1000
_READERS = 24
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """Which database is served, for whom, and within which limits."""

    url: str = "verax.db"
    keys: str | None = None
    operators: tuple[str, ...] = ()  # public keys, beside the one in the folder of keys
    limits: Limits = field(default_factory=Limits)
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


class Service:
    """What the handlers share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        ledger = Ledger.open(settings.url, keys=settings.keys)
        self.rounds, self.queue, self.follower = Rounds(ledger), Queue(ledger), Follower(ledger)
        token = ledger.keys.keep(OPERATOR_TOKEN, _new_token())
        self.guard = Guard({ledger.keys.key("operator").public, *settings.operators}, token.strip())
        self.meters = Meters()
        self.worker = Worker(settings.url, settings.keys, self.queue) if settings.works else None
        self._writers, self._readers = anyio.CapacityLimiter(1), anyio.CapacityLimiter(_READERS)
        self._shown: dict[str, tuple[Head, bytes]] = {}

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

    def shown(self, round: str) -> bytes:
        """A round as everybody may know it, kept until the journal goes on."""
        head = self.rounds.ledger.head()
        known = self._shown.get(round)
        if known is None or known[0] != head:
            while len(self._shown) > 100:
                self._shown.pop(next(iter(self._shown)), None)
            known = self._shown[round] = head, _bytes_of(self.rounds.show(round))
        return known[1]

    def settling(self, round: str) -> dict[str, Any]:
        """How far a settlement is, and what it gave."""
        if self.rounds.state(round) == "settled":
            return {"round": round, "state": "settled", "settlement": self.rounds.settle(round).to_json()}
        return self.job(SETTLE, round)

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


def make_app(settings: Settings) -> FastAPI:
    """The service on one database.

    >>> app = make_app(Settings("sqlite://", works=False))
    >>> "/rounds/{round}/submissions" in app.openapi()["paths"]
    True
    """
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if service.worker is not None:
            service.worker.start()
        yield
        if service.worker is not None:
            await anyio.to_thread.run_sync(service.worker.stop)

    app = FastAPI(title="verax", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
                  redirect_slashes=False, summary="Rounds: reports sealed and signed, settled once, paid.")  # fmt: skip
    app.state.service = service
    _public_routes(app, service)
    _agent_routes(app, service)
    _operator_routes(app, service)
    _own_routes(app, service)
    app.openapi = partial(_described, app)  # type: ignore[method-assign]
    app.add_middleware(Gate, limits=settings.limits, meters=service.meters, refusal=problem)
    app.add_exception_handler(VeraxError, problem)
    app.add_exception_handler(RequestValidationError, problem)
    app.add_exception_handler(HTTPException, problem)
    app.add_exception_handler(Exception, problem)
    return app


def _named(text: str, what: str) -> str:
    """A name out of a path, as it was meant."""
    try:
        name = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InputError(f"the {what}'s name is no UTF-8; write it so, percent-encoded") from None
    if _CONTROL.search(name) or len(name) > 500:
        raise InputError(f"{name[:40]!r} is no {what}'s name; it has control characters, or more than 500")
    return name


def _round_of(round: str) -> str:
    return _named(round, "round")


def _agent_of(agent: str) -> str:
    return _named(agent, "agent")


_Round = Annotated[str, Depends(_round_of)]
_Agent = Annotated[str, Depends(_agent_of)]
_Again = Annotated[str | None, Header(max_length=200, description="The same again is answered as before.")]
_bearer = HTTPBearer(auto_error=False, description="The operator's token.")


async def _read_body(request: Request, kind: type[T]) -> T:
    """A request's body as a document; strictly, and with nothing that a database cannot keep."""
    body = await request.body()
    if b"\\u0000" in body:
        raise InputError("the body has a NUL character in a text, which no database keeps; leave it out")
    document = wire.parsed(body, "the body")
    reading: Callable[[Any], T] = kind.from_json  # type: ignore[attr-defined]
    return reading(document)


def _bytes_of(document: Any) -> bytes:
    return wire.canonical(document).encode() + b"\n"


def _answer(document: Any, status: int = 200) -> Response:
    content = document if isinstance(document, bytes) else _bytes_of(document)
    return Response(content, status, media_type="application/json", headers={"Cache-Control": "no-store"})


def _kept(request: Request, content: bytes) -> Response:
    """An answer with a tag, so that whoever has it need not be sent it again."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="application/json", headers=headers)


def problem(request: Request, error: Exception) -> Response:
    """An error as RFC 9457 has it: a status, and a sentence with a remedy."""
    headers = {"Cache-Control": "no-store"}
    if isinstance(error, VeraxError):
        status, detail = error.status, str(error)
    elif isinstance(error, HTTPException):
        status = error.status_code
        detail = f"{request.method} {request.url.path} is not offered here; /openapi.json says what is"
        headers |= error.headers or {}
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        status, detail = 422, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg'].lower()}; ask again with another"
    else:
        status, detail = 500, "a mistake in verax itself; its log says more, and nothing was recorded by halves"
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="verax"'
    if status in (429, 503):
        headers["Retry-After"] = "1"
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return Response(_bytes_of(body), status, headers, "application/problem+json")


def _json_of(kind: str | None = None, description: str = "As asked.") -> dict[str, Any]:
    """What a response is, in the words of OpenAPI."""
    schema = {"$ref": f"#/components/schemas/{kind}"} if kind else {"type": "object"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _text_of(description: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": description, "content": {"text/plain": {}}}}


def _text(found: object) -> Response:
    return Response(str(found), media_type="text/plain; charset=utf-8", headers={"Cache-Control": "no-store"})


def _takes(kind: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{kind}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


_KINDS = (Spec, Submission, Admission, Admitted, Funding, Inviting, Cosignature, Receipt, Entry, Settlement, Progress)


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description, with the documents as `wire` has them."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        kinds = (
            Spec,
            Submission,
            Admission,
            Admitted,
            Funding,
            Inviting,
            Cosignature,
            Receipt,
            Entry,
            Settlement,
            Progress,
        )
        _, parts = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
        problem = {"type": "object", "required": ["status", "detail"], "properties": {
            "type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"},
            "detail": {"type": "string"}}}  # fmt: skip
        found.setdefault("components", {}).setdefault("schemas", {}).update(parts, Problem=problem)
        refused = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
        for path in found["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                operation["responses"]["4XX"] = {"description": "Refused, with a sentence that says why."} | refused
        app.openapi_schema = found
    return app.openapi_schema


def _public_routes(app: FastAPI, service: Service) -> None:
    """What anybody may know."""

    @app.get("/rounds.json", responses={200: _json_of()})
    async def rounds() -> Response:
        """All rounds, the latest first."""
        return _answer({"rounds": await service.read(service.follower.rounds)})

    @app.get("/rounds/{round}.json", responses={200: _json_of()})
    async def show(request: Request, round: _Round) -> Response:
        """A round, as far as anybody may know it now."""
        return _kept(request, await service.read(service.shown, round))

    @app.get("/rounds/{round}/opening.json", responses={200: _json_of()})
    async def opening(request: Request, round: _Round) -> Response:
        """The record of a round's opening: all that is needed to seal and sign a report for it."""
        return _kept(request, _bytes_of(await service.read(service.rounds.public_record, round)))

    @app.get("/rounds/{round}/settlement.json", responses={200: _json_of()})
    async def settlement(round: _Round) -> Response:
        """How far the settlement is; when it is done, all of it."""
        return _answer(await service.read(service.settling, round))

    @app.get("/rounds/{round}/verification.json", responses={200: _json_of()})
    async def verification(round: _Round) -> Response:
        """What came of the last verification that an operator asked for; your own is `verax remote verify`."""
        return _answer(await service.read(service.job, VERIFY, round))

    @app.get("/rounds/{round}/agents/{agent}.receipt", responses=_text_of("A receipt: docs/receipts.md says of what."))
    async def receipt(
        round: _Round, agent: _Agent, entry: Annotated[int | None, Query(ge=1, lt=2**63)] = None
    ) -> Response:
        """The receipt of an agent's submission, its last if none is named; what was handed in is not in it."""
        return _text(await service.read(service.rounds.receipt, round, agent, entry))

    @app.get("/log/checkpoint", responses=_text_of("A signed note, or after `old N` a proof and that."))
    async def checkpoint(since: Annotated[int | None, Query(ge=0, lt=2**63)] = None) -> Response:
        """What the log is now, signed by its operator; with the proof that it continues its first so many entries."""
        ledger = service.rounds.ledger
        ask = ledger.checkpoint if since is None else partial(ledger.continuation, since)
        return _text(await service.write(ask))

    @app.get("/journal.json", responses={200: _json_of()})
    async def journal(
        after: Annotated[int, Query(ge=0, lt=2**63)] = 0,
        most: Annotated[int, Query(ge=1, le=_MOST_ENTRIES)] = 100,
    ) -> Response:
        """Entries of the journal, in order: what verifies everything."""
        return _answer(await service.read(service.entries, after, most))


def _agent_routes(app: FastAPI, service: Service) -> None:
    """What agents do."""

    @app.post("/rounds/{round}/submissions", status_code=201, openapi_extra=_takes("Submission"),
              responses={201: _json_of("Receipt", "Taken; the same again is answered the same.")})  # fmt: skip
    async def submit(request: Request, round: _Round, idempotency_key: _Again = None) -> Response:
        """Hand in a report that was sealed and signed where it was made."""
        made = await _read_body(request, Submission)
        _of_this_round(made.round, round)
        return _answer(await service.write(service.rounds.take, made, key=idempotency_key), 201)

    @app.post("/rounds/{round}/admissions", openapi_extra=_takes("Admission"), responses={200: _json_of("Admitted")})
    async def admit(request: Request, round: _Round) -> Response:
        """Use an invitation: from then on this name is this key's."""
        given = await _read_body(request, Admission)
        _of_this_round(given.round, round)
        return _answer(await service.write(service.rounds.admit, given))

    @app.get("/rounds/{round}/agents/{agent}.json", responses={200: _json_of()})
    async def agent(round: _Round, agent: _Agent) -> Response:
        """What an agent has handed in, and what became of it: a state and a reason for each."""
        return _answer(await service.read(service.of_agent, round, agent))

    @app.get("/rounds/{round}/agents/{agent}/balance.json", responses={200: _json_of()})
    async def balance(request: Request, round: _Round, agent: _Agent) -> Response:
        """What is on an agent's account: for whoever signs with the agent's key in this round, or an operator."""
        who = service.guard.signer(*_asked(request), await request.body())
        held = await service.read(service.rounds.handed_in, round, agent)
        if who not in {*service.guard.operators, *(each["key"] for each in held)}:
            raise NotFoundError(f"that key has handed in nothing as {agent!r}; sign with the one that did")
        amount = await service.read(service.rounds.balance, round, agent)
        currency = (await service.read(service.rounds.spec, round)).currency
        return _answer({"round": round, "agent": agent, "amount": amount, "currency": currency})


def _of_this_round(said: str, round: str) -> None:
    if said != round:
        raise InputError(f"what was sent is for round {said!r}, not {round!r}; send it there")


def _asked(request: Request) -> tuple[str, Any, Any]:
    """What of a request is signed: method, address and headers."""
    path = request.scope["path"]
    query = request.scope["query_string"].decode("latin-1")
    url = urlsplit("")._replace(
        scheme=request.url.scheme, netloc=request.headers.get("host", ""), path=path, query=query
    )
    return request.method, url, request.headers


def _operator_routes(app: FastAPI, service: Service) -> None:
    """What operators do."""

    async def operator(request: Request, _: Annotated[Any, Depends(_bearer)]) -> str:
        who = service.guard.operator(*_asked(request), await request.body())
        request.state.who = who[:16]
        return who

    only = [Depends(operator)]
    entry: dict[int | str, dict[str, Any]] = {200: _json_of("Entry", "Done, now or before.")}

    @app.post("/rounds", dependencies=only, openapi_extra=_takes("Spec"), responses=entry)
    async def open_round(request: Request) -> Response:
        """Open a round: what it asks is hashed and fixed."""
        spec = await _read_body(request, Spec)
        if ":" in spec.rule:
            raise InputError(f"rule {spec.rule!r} is code; open such a round where it is installed: verax round open")
        if _named(spec.round, "round") in (".", ".."):
            raise InputError("a round called . or .. has no address; choose another name")
        return _answer(vars(await service.write(service.rounds.open, spec)))

    @app.post("/rounds/{round}/fund", dependencies=only, openapi_extra=_takes("Funding"), responses=entry)
    async def fund(request: Request, round: _Round) -> Response:
        """Set the budget aside, or put money on an agent's account."""
        given = await _read_body(request, Funding)
        fund = partial(service.rounds.fund, round, given.amount, agent=given.agent, key=given.key)
        return _answer(vars(await service.write(fund)))

    @app.post("/rounds/{round}/invitations", dependencies=only, openapi_extra=_takes("Inviting"),
              responses={200: _json_of(None, "Tokens, which are shown this once.")})  # fmt: skip
    async def invite(request: Request, round: _Round) -> Response:
        """Make invitations, each for one agent, once."""
        given = await _read_body(request, Inviting)
        invite = partial(service.rounds.invite, round, given.count, organisation=given.organisation)
        return _answer({"round": round, "invitations": await service.write(invite)})

    @app.post("/rounds/{round}/seal", dependencies=only, responses=entry)
    async def seal(round: _Round) -> Response:
        """Take nothing more: fix the root of all submissions."""
        return _answer(vars(await service.write(service.rounds.seal, round)))

    @app.post("/rounds/{round}/void", dependencies=only, responses=entry)
    async def void(round: _Round) -> Response:
        """Call the round off: stakes are let go and the budget goes back."""
        return _answer(vars(await service.write(service.rounds.void, round)))

    @app.post("/rounds/{round}/settle", status_code=202, dependencies=only, responses={202: _json_of()})
    async def settle(round: _Round) -> Response:
        """Have the round settled, once; settlement.json says how far it is."""
        return _answer(await service.write(service.ask_to_settle, round), 202)

    @app.post("/rounds/{round}/verify", status_code=202, dependencies=only, responses={202: _json_of()})
    async def verify(round: _Round) -> Response:
        """Have the whole journal and the settlement computed again; verification.json says what came of it."""
        return _answer(await service.write(service.ask_to_verify, round), 202)

    @app.post("/log/cosignatures", dependencies=only, openapi_extra=_takes("Cosignature"), responses={200: _json_of()})
    async def cosign(request: Request) -> Response:
        """Keep a witness's signature of a checkpoint, for the receipts to come."""
        given = await _read_body(request, Cosignature)
        keep = partial(service.rounds.ledger.keep_cosignature, NoteKey.of(given.witness), given.lines)
        return _answer({"entries": await service.write(keep)})

    @app.get("/rounds/{round}/payouts.csv", dependencies=only,
             responses={200: {"description": "A row an agent.", "content": {"text/csv": {}}}})  # fmt: skip
    async def payouts(round: _Round) -> Response:
        """Who is to be paid what, of a settled round."""
        shown = await service.read(service.rounds.show, round)
        if shown["state"] != "settled":
            raise ConflictError(f"round {round!r} is {shown['state']}; there are payouts when it is settled")
        return Response(views.payouts(shown), media_type="text/csv; charset=utf-8")


def _own_routes(app: FastAPI, service: Service) -> None:
    """What is asked of the service itself."""

    @app.get("/health", responses={200: _json_of()})
    async def health() -> Response:
        """Whether the database answers, and where its journal ends."""
        head = await service.read(service.rounds.ledger.head)
        worker = service.worker is None or service.worker.is_alive
        return _answer({"ok": worker, "entries": head.count, "worker": worker}, 200 if worker else 503)

    @app.get("/metrics", responses={200: {"description": "Prometheus text.", "content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Requests, times, journal and jobs, for Prometheus."""
        return Response(await service.read(service.measured), media_type="text/plain; version=0.0.4; charset=utf-8")


def _new_token() -> str:
    import secrets

    return secrets.token_urlsafe(32) + "\n"
