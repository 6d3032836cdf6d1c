"""The addresses of the API: which asks what of `Rounds`, who may, and what is answered."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, urlsplit

from fastapi import Depends, FastAPI, Header, Query, Request
from fastapi.responses import Response, StreamingResponse
from fastapi.security import HTTPBearer

from verax import wire
from verax.errors import InputError, NotFoundError
from verax.log import NoteKey
from verax.rounds import Admission, Reveal, Spec, Submission
from verax.service.queue import VERIFY
from verax.service.shared import Beacon, Cosignature, Funding, Inviting, Service, Told, bytes_of, checked_name

_MOST_ENTRIES = 1000
T = TypeVar("T")


def add_api(app: FastAPI, service: Service) -> None:
    """All of them."""
    for add in (_public_routes, _agent_routes, _log_routes, _own_routes):
        add(app, service)
    for add in (_operator_routes, _step_routes, _webhook_routes):
        add(app, service)


def _unquoted(text: str, what: str) -> str:
    try:
        return checked_name(unquote(text, errors="strict"), what)
    except UnicodeDecodeError:
        raise InputError(f"the {what}'s name is no UTF-8; write it so, percent-encoded") from None


def _round_of(round: str) -> str:
    return _unquoted(round, "round")


def _agent_of(agent: str) -> str:
    return _unquoted(agent, "agent")


Round = Annotated[str, Depends(_round_of)]
Agent = Annotated[str, Depends(_agent_of)]
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


def answer(document: Any, status: int = 200) -> Response:
    content = document if isinstance(document, bytes) else bytes_of(document)
    return Response(content, status, media_type="application/json", headers={"Cache-Control": "no-store"})


def table(content: str) -> Response:
    """CSV for whoever asked, and for no cache on the way."""
    return Response(content, media_type="text/csv; charset=utf-8", headers={"Cache-Control": "no-store"})


def _kept(request: Request, content: bytes) -> Response:
    """An answer with a tag, so that whoever has it need not be sent it again."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="application/json", headers=headers)


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


def _public_routes(app: FastAPI, service: Service) -> None:
    """What anybody may know."""

    @app.get("/rounds.json", responses={200: _json_of()})
    async def rounds() -> Response:
        """All rounds, the latest first."""
        return answer({"rounds": [*(await service.read(service.snapshot)).values()]})

    @app.get("/rounds/{round}.json", responses={200: _json_of()})
    async def show(request: Request, round: Round) -> Response:
        """A round, as far as anybody may know it now."""
        return _kept(request, await service.read(service.shown, round))

    @app.get("/rounds/{round}/opening.json", responses={200: _json_of()})
    async def opening(request: Request, round: Round) -> Response:
        """The record of a round's opening: all that is needed to seal and sign a report for it."""
        return _kept(request, bytes_of(await service.read(service.rounds.public_record, round)))

    @app.get("/rounds/{round}/events", responses={200: {"description": "Server-sent events.", "content": {
             "text/event-stream": {}}}})  # fmt: skip
    async def events(round: Round) -> StreamingResponse:
        """How far the round is, now and whenever that changes."""
        _ = await service.read(service.rounds.spec, round)

        async def lines() -> AsyncIterator[str]:
            async for known in service.watch.changes(round):
                said = "" if known is None else f"id: {known['entry']}\nevent: progress\ndata: {wire.canonical(known)}"
                yield f"{said or ': still here'}\n\n"

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)

    @app.get("/rounds/{round}/settlement.json", responses={200: _json_of()})
    async def settlement(round: Round) -> Response:
        """How far the settlement is; when it is done, all of it."""
        return answer(await service.read(service.settling, round))

    @app.get("/rounds/{round}/verification.json", responses={200: _json_of()})
    async def verification(round: Round) -> Response:
        """What came of the last verification that an operator asked for; your own is `verax remote verify`."""
        return answer(await service.read(service.job, VERIFY, round))


def _log_routes(app: FastAPI, service: Service) -> None:
    """The journal and the log over it, for whoever verifies."""

    @app.get("/rounds/{round}/agents/{agent}.receipt", responses=_text_of("A receipt: docs/receipts.md says of what."))
    async def receipt(
        round: Round, agent: Agent, entry: Annotated[int | None, Query(ge=1, lt=2**63)] = None
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
        return answer(await service.read(service.entries, after, most))


def _agent_routes(app: FastAPI, service: Service) -> None:
    """What agents do."""

    @app.post("/rounds/{round}/submissions", status_code=201, openapi_extra=_takes("Submission"),
              responses={201: _json_of("Receipt", "Taken; the same again is answered the same.")})  # fmt: skip
    async def submit(request: Request, round: Round, idempotency_key: _Again = None) -> Response:
        """Hand in a report that was sealed and signed where it was made."""
        made = await _read_body(request, Submission)
        _of_this_round(made.round, round)
        return answer(await service.write(service.rounds.take, made, key=idempotency_key), 201)

    @app.post("/rounds/{round}/admissions", openapi_extra=_takes("Admission"), responses={200: _json_of("Admitted")})
    async def admit(request: Request, round: Round) -> Response:
        """Use an invitation: from then on this name is this key's."""
        given = await _read_body(request, Admission)
        _of_this_round(given.round, round)
        return answer(await service.write(service.rounds.admit, given))

    @app.post("/rounds/{round}/reveals", openapi_extra=_takes("Reveal"), responses={200: _json_of("Entry")})
    async def reveal(request: Request, round: Round) -> Response:
        """Show what was committed to: whoever sends it, only its agent can have made it."""
        given = await _read_body(request, Reveal)
        _of_this_round(given.round, round)
        return answer(vars(await service.write(service.rounds.take_reveal, given)))

    @app.post("/rounds/{round}/beacon", openapi_extra=_takes("Beacon"), responses={200: _json_of("Entry")})
    async def beacon(request: Request, round: Round) -> Response:
        """Bring the beacon that a round waits for: whoever sends it, it is checked."""
        given = await _read_body(request, Beacon)
        return answer(vars(await service.write(service.rounds.give_beacon, round, given.text)))

    @app.get("/rounds/{round}/agents/{agent}.json", responses={200: _json_of()})
    async def agent(round: Round, agent: Agent) -> Response:
        """What an agent has handed in, and what became of it: a state and a reason for each."""
        return answer(await service.read(service.of_agent, round, agent))

    @app.get("/rounds/{round}/agents/{agent}/balance.json", responses={200: _json_of()})
    async def balance(request: Request, round: Round, agent: Agent) -> Response:
        """What is on an agent's account: for whoever signs with the agent's key in this round, or an operator."""
        who = service.guard.signer(*asked_by(request), await request.body())
        held = await service.read(service.rounds.handed_in, round, agent)
        if who not in {*service.guard.operators, *(each["key"] for each in held)}:
            raise NotFoundError(f"that key has handed in nothing as {agent!r}; sign with the one that did")
        amount = await service.read(service.rounds.balance, round, agent)
        currency = (await service.read(service.rounds.spec, round)).currency
        return answer({"round": round, "agent": agent, "amount": amount, "currency": currency})


def _of_this_round(said: str, round: str) -> None:
    if said != round:
        raise InputError(f"what was sent is for round {said!r}, not {round!r}; send it there")


def asked_by(request: Request) -> tuple[str, Any, Any]:
    """What of a request is signed: method, address and headers."""
    path = request.scope["path"]
    query = request.scope["query_string"].decode("latin-1")
    url = urlsplit("")._replace(
        scheme=request.url.scheme, netloc=request.headers.get("host", ""), path=path, query=query
    )
    return request.method, url, request.headers


def _only_operators(service: Service) -> list[Any]:
    """What refuses everybody else."""

    async def operator(request: Request, _: Annotated[Any, Depends(_bearer)]) -> str:
        who = service.guard.operator(*asked_by(request), await request.body())
        request.state.who = who[:16]
        return who

    return [Depends(operator)]


_ENTRY: dict[int | str, dict[str, Any]] = {200: _json_of("Entry", "Done, now or before.")}


def _operator_routes(app: FastAPI, service: Service) -> None:
    """What operators do, and say in a document."""
    only = _only_operators(service)

    @app.post("/rounds", dependencies=only, openapi_extra=_takes("Spec"), responses=_ENTRY)
    async def open_round(request: Request) -> Response:
        """Open a round: what it asks is hashed and fixed."""
        spec = await _read_body(request, Spec)
        return answer(vars(await service.write(service.open, spec)))

    @app.post("/rounds/{round}/fund", dependencies=only, openapi_extra=_takes("Funding"), responses=_ENTRY)
    async def fund(request: Request, round: Round) -> Response:
        """Set the budget aside, or put money on an agent's account."""
        given = await _read_body(request, Funding)
        fund = partial(service.rounds.fund, round, given.amount, agent=given.agent, key=given.key)
        return answer(vars(await service.write(fund)))

    @app.post("/rounds/{round}/invitations", dependencies=only, openapi_extra=_takes("Inviting"),
              responses={200: _json_of(None, "Tokens, which are shown this once.")})  # fmt: skip
    async def invite(request: Request, round: Round) -> Response:
        """Make invitations, each for one agent, once."""
        given = await _read_body(request, Inviting)
        invite = partial(service.rounds.invite, round, given.count, organisation=given.organisation)
        return answer({"round": round, "invitations": await service.write(invite)})

    @app.post("/log/cosignatures", dependencies=only, openapi_extra=_takes("Cosignature"), responses={200: _json_of()})
    async def cosign(request: Request) -> Response:
        """Keep a witness's signature of a checkpoint, for the receipts to come."""
        given = await _read_body(request, Cosignature)
        keep = partial(service.rounds.ledger.keep_cosignature, NoteKey.of(given.witness), given.lines)
        return answer({"entries": await service.write(keep)})

    @app.get("/rounds/{round}/payouts.csv", dependencies=only,
             responses={200: {"description": "A row an agent.", "content": {"text/csv": {}}}})  # fmt: skip
    async def payouts(round: Round) -> Response:
        """Who is to be paid what, of a settled round."""
        return table(await service.read(service.payouts, round))


def _step_routes(app: FastAPI, service: Service) -> None:
    """What operators do, and need say nothing about."""
    only = _only_operators(service)

    @app.post("/rounds/{round}/seal", dependencies=only, responses=_ENTRY)
    async def seal(round: Round) -> Response:
        """Take nothing more: fix the root of all submissions."""
        return answer(vars(await service.write(service.rounds.seal, round)))

    @app.post("/rounds/{round}/void", dependencies=only, responses=_ENTRY)
    async def void(round: Round) -> Response:
        """Call the round off: stakes are let go and the budget goes back."""
        return answer(vars(await service.write(service.rounds.void, round)))

    @app.post("/rounds/{round}/settle", status_code=202, dependencies=only, responses={202: _json_of()})
    async def settle(round: Round) -> Response:
        """Have the round settled, once; settlement.json says how far it is."""
        return answer(await service.write(service.ask_to_settle, round), 202)

    @app.post("/rounds/{round}/verify", status_code=202, dependencies=only, responses={202: _json_of()})
    async def verify(round: Round) -> Response:
        """Have the whole journal and the settlement computed again; verification.json says what came of it."""
        return answer(await service.write(service.ask_to_verify, round), 202)


def _webhook_routes(app: FastAPI, service: Service) -> None:
    """Whom the service tells what happens."""
    only = _only_operators(service)

    @app.get("/webhooks.json", dependencies=only, responses={200: _json_of()})
    async def webhooks() -> Response:
        """Every webhook, and how its last telling went."""
        return answer({"webhooks": [hook.to_json() for hook in await service.read(service.hooks.all)]})

    @app.post("/webhooks", status_code=201, dependencies=only, openapi_extra=_takes("Told"),
              responses={201: _json_of(None, "The webhook, and its secret, which is shown this once.")})  # fmt: skip
    async def add(request: Request) -> Response:
        """Tell an address what happens from now on, signed as Standard Webhooks asks."""
        given = await _read_body(request, Told)
        hook, secret = await service.write(service.hooks.add, given.url)
        return answer(hook.to_json() | {"secret": secret}, 201)

    @app.delete("/webhooks/{id}", dependencies=only, responses={200: _json_of()})
    async def remove(id: str) -> Response:
        """Tell it no more."""
        await service.write(service.hooks.remove, id)
        return answer({"removed": id})


def _own_routes(app: FastAPI, service: Service) -> None:
    """What is asked of the service itself."""

    @app.get("/health", responses={200: _json_of()})
    async def health() -> Response:
        """Whether the database answers, and where its journal ends."""
        head = await service.read(service.rounds.ledger.head)
        worker = service.worker is None or service.worker.is_alive
        return answer({"ok": worker, "entries": head.count, "worker": worker}, 200 if worker else 503)

    @app.get("/metrics", responses={200: {"description": "Prometheus text.", "content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Requests, times, journal and jobs, for Prometheus."""
        return Response(await service.read(service.measured), media_type="text/plain; version=0.0.4; charset=utf-8")
