"""Pages: what the API says, for people. Rendered here, escaped by the templates, no script needed but for verifying."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.responses import RedirectResponse, Response
from python_multipart.exceptions import FormParserError
from starlette.exceptions import HTTPException

from verax import tables
from verax.errors import AccessError, ConflictError, IdentityError, InputError, VeraxError
from verax.market import Market
from verax.money import major_text, scale_of
from verax.reports import Reports
from verax.rounds import Settlement, Spec
from verax.rules import DEFAULT, RULES
from verax.score import Scores
from verax.service import views
from verax.service.api import Agent, Round, table
from verax.service.queue import SETTLE
from verax.service.shared import Service
from verax.show.page import sections, style_sheet, template_engine
from verax.show.report import market_curves
from verax.show.text import Listing, market_listings

_WAY = {"void": ("open", "void"), "scored": ("open", "sealed", "scored", "settled")}
_STATIC = {"service.css": "text/css", "live.js": "text/javascript", "verify.js": "text/javascript"}
_MOST_ROWS, _ENTRIES, _LONGEST_BODY = 200, 50, 4000
_SEEN = {
    "open": "opened", "submit": "report handed in", "seal": "sealed", "score": "scored", "settle": "settled",
    "void-round": "called off", "posted": "paid", "pending": "stake held", "post": "stake taken",
    "void": "stake let go", "admit": "admitted", "invite": "invited",
}  # fmt: skip
_COOKIE = "verax"
Form = Mapping[str, str | bytes]


def add_pages(app: FastAPI, service: Service) -> None:
    """All of them."""
    for add in (_public_pages, _ledger_pages, _desk_pages, _desk_steps):
        add(app, service)


def _page(request: Request, template: str, status: int = 200, **given: Any) -> Response:
    engine = template_engine("verax.service")
    given = {"here": "", "data": None, "server": str(request.base_url).rstrip("/"), "address": views.address} | given
    text = engine.get_template(template).render(**given)
    return Response(text, status, {"Cache-Control": "no-store"}, "text/html; charset=utf-8")


def error_page(request: Request, status: int, title: str, detail: str) -> Response:
    """A refusal for somebody who looks at it."""
    if request.scope["path"].startswith("/desk") and status == 401:
        return _page(request, "login.html", status, title="Operator's desk", detail=detail, here="/desk")
    return _page(request, "error.html", status, title=title, detail=detail)


def _public_pages(app: FastAPI, service: Service) -> None:
    """Rounds, and what became of submissions."""
    get = partial(app.get, include_in_schema=False)

    @get("/")
    async def start() -> Response:
        return RedirectResponse("/rounds", 307)

    @get("/rounds")
    async def rounds(request: Request) -> Response:
        known = await service.read(service.snapshot)
        return _page(
            request, "rounds.html", title="Rounds", here="/rounds", rounds=[*known.values()], data="/rounds.json"
        )

    @get("/rounds/{round}")
    async def round_page(request: Request, round: Round) -> Response:
        return _page(request, "round.html", **await service.read(_round_told, service, round))

    @get("/rounds/{round}/agents/{agent}")
    async def agent_page(request: Request, round: Round, agent: Agent) -> Response:
        known = await service.read(service.of_agent, round, agent)
        return _page(request, "agent.html", title=agent, data=f"{views.address(round, agent)}.json", **known)

    @get("/verify")
    async def verify(request: Request) -> Response:
        return _page(request, "verify.html", title="Verify a receipt", here="/verify")

    @get("/static/{name}")
    async def static(request: Request, name: str) -> Response:
        if name != "page.css" and name not in _STATIC:
            raise InputError(f"{name!r} is no file of these pages; look at /rounds")
        text = style_sheet() if name == "page.css" else (files("verax.service") / "static" / name).read_text("utf-8")
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(text, media_type=_STATIC.get(name, "text/css"), headers=headers)


def _round_told(service: Service, round: str) -> dict[str, Any]:
    """All that a round's page says."""
    shown, spec = service.rounds.show(round), service.rounds.spec(round)
    state, job = shown["state"], service.queue.get(SETTLE, round)
    now = datetime.now(UTC)
    found: dict[str, Any] = {
        "title": round, "round": round, "shown": shown, "spec": shown["spec"], "here": "/rounds",
        "rules": views.rules_in_words(spec, shown["spec"].get("truth") is not None, state, now),
        "way": _WAY.get(state, ("open", "sealed", "settled")), "live": state not in ("settled", "void"),
        "agents": len({each["agent"] for each in shown["submissions"]}), "quoted": views.shell_word(round),
        "job": _job_told(job) if state != "settled" else "", "data": f"{views.address(round)}.json",
        "most_rows": _MOST_ROWS, "notes": (),
    }  # fmt: skip
    return found | (_settlement_told(spec, service.rounds.settle(round)) if state == "settled" else {})


def _job_told(job: Any) -> str:
    if job is None or job.state == "done":
        return ""
    return f"{job.state}{': ' if job.reason else ''}{job.reason}."


def _settlement_told(spec: Spec, found: Settlement) -> dict[str, Any]:
    """Scores with errors, certificates, payments, a market's path: as on the page of an audit."""
    closed = found.scores if isinstance(found.scores, Market) else None
    scores = found.scores if isinstance(found.scores, Scores) else None
    amounts = sorted(found.amounts.items(), key=lambda each: (-each[1], each[0]))
    rows = tuple((agent, major_text(amount, scale_of(spec.currency))) for agent, amount in amounts)
    listings = (
        *(market_listings(closed) if closed else ()),
        *(() if found.payments else (Listing(("agent", f"paid, {spec.currency}"), rows, "Payments"),)),
    )
    drawn = sections(
        scores=scores, certificates=found.copies, payments=found.payments, listings=listings,
        curves=market_curves(closed) if closed else (),
    )  # fmt: skip
    return drawn | {"notes": scores.warnings if scores else ()}


def _ledger_pages(app: FastAPI, service: Service) -> None:
    """The journal, entry by entry."""

    @app.get("/journal", include_in_schema=False)
    async def journal(request: Request, after: int = Query(0, ge=0, lt=2**63), round: str = "") -> Response:
        entries, head = await service.read(_entries_of, service, after, round or None)
        return _page(
            request, "journal.html", title="Ledger", here="/journal", after=after, round=round, head=head,
            entries=entries, kinds=_SEEN, lines=_lines, data=f"/journal.json?after={after}&most={_ENTRIES}",
        )  # fmt: skip


def _entries_of(service: Service, after: int, round: str | None) -> tuple[list[dict[str, Any]], Any]:
    with service.rounds.ledger.reading() as journal:
        found = list(journal.entries(round, after=after, most=_ENTRIES))
        return [vars(entry) | {"money": _money(entry), "agent": _agent_in(entry)} for entry in found], journal.head()


def _money(entry: Any) -> str:
    if entry.amount is None or not entry.currency:
        return str(entry.amount or "")
    return f"{major_text(entry.amount, scale_of(entry.currency))} {entry.currency}"


def _agent_in(entry: Any) -> str | None:
    said = entry.said if entry.kind in ("submit", "admit") else {}
    return str(said["agent"]) if "agent" in said else None


def _lines(body: str) -> list[str]:
    """What an entry says, for reading; of a long one the beginning."""
    text = json.dumps(json.loads(body), indent=1, ensure_ascii=False) if len(body) < 10 * _LONGEST_BODY else body
    more = f"\n… and {len(text) - _LONGEST_BODY:,} more characters" if len(text) > _LONGEST_BODY else ""
    return (text[:_LONGEST_BODY] + more).splitlines()


def _is_operator(service: Service, request: Request) -> bool:
    return service.sessions.knows(request.cookies.get(_COOKIE))


async def _form_of(service: Service, request: Request, *, anybody: bool = False) -> Form:
    """What a form says; only from these pages, and but for the token only from an operator."""
    if not _is_from_here(request):
        raise AccessError("this form was not sent from here; open the desk at its own address")
    if not anybody and not _is_operator(service, request):
        raise IdentityError("show the token first; a session lasts eight hours, and ends with the service")
    request.state.who = "token"
    try:
        async with request.form(max_files=4, max_fields=40) as form:
            return {
                name: value.strip() if isinstance(value, str) else await value.read() for name, value in form.items()
            }
    except (HTTPException, FormParserError, UnicodeError, LookupError):
        raise InputError("what was sent is no form; send it again from the desk's own page") from None


def _is_from_here(request: Request) -> bool:
    try:
        return urlsplit(request.headers.get("origin", "")).netloc == request.headers.get("host")
    except ValueError:
        return False


def _text(form: Form, name: str, default: str = "") -> str:
    found = form.get(name)
    return found or default if isinstance(found, str) else default


def _file(form: Form, name: str) -> bytes | None:
    found = form.get(name)
    return found or None if isinstance(found, bytes) else None


async def _desk(service: Service, request: Request, status: int = 200, **given: Any) -> Response:
    """The desk, with what came of a step."""
    known = await service.read(service.snapshot)
    jobs = await service.read(service.queue.all, SETTLE)
    rounds = [each | {"job": _job_told(jobs.get(name))} for name, each in known.items()]
    found = {
        "title": "Operator's desk", "here": "/desk", "rounds": rounds, "rule_names": [*RULES], "default_rule": DEFAULT,
        "detail": "", "said": "", "invitations": (), "fresh": secrets.token_hex(16),
    }  # fmt: skip
    return _page(request, "desk.html", status, **(found | given))


def _desk_pages(app: FastAPI, service: Service) -> None:
    """The operator's desk: who may be there, and what is there."""

    @app.get("/desk", include_in_schema=False)
    async def desk(request: Request, said: str = Query("", max_length=300)) -> Response:
        if not _is_operator(service, request):
            return _page(request, "login.html", title="Operator's desk", detail="", here="/desk")
        return await _desk(service, request, said=_SAID.get(said, ""))

    @app.post("/desk/session", include_in_schema=False)
    async def begin(request: Request) -> Response:
        form = await _form_of(service, request, anybody=True)
        if not service.guard.is_token(_text(form, "token")):
            raise IdentityError("this is not the operator's token; it is in the file that verax serve names")
        found = RedirectResponse("/desk", 303)
        found.set_cookie(
            _COOKIE, service.sessions.begin(), max_age=int(service.sessions.seconds), httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return found

    @app.post("/desk/end", include_in_schema=False)
    async def end(request: Request) -> Response:
        await _form_of(service, request)
        service.sessions.end(request.cookies.get(_COOKIE))
        found = RedirectResponse("/desk", 303)
        found.delete_cookie(_COOKIE)
        return found

    @app.get("/desk/rounds/{round}/payouts.csv", include_in_schema=False)
    async def payouts(request: Request, round: Round) -> Response:
        if not _is_operator(service, request):
            raise IdentityError("show the token first; a session lasts eight hours, and ends with the service")
        return table(await service.read(service.payouts, round))


_SAID = {
    "open": "The round is open.", "fund": "The budget is set aside.", "seal": "The round is sealed.",
    "settle": "The settlement is asked for; the round's page shows how far it is.", "void": "The round is called off.",
    "deposit": "The deposit is made.",
}  # fmt: skip


def _desk_steps(app: FastAPI, service: Service) -> None:
    """What the operator does at the desk: the same as by the API."""

    @app.post("/desk/open", include_in_schema=False)
    async def open_round(request: Request) -> Response:
        form = await _form_of(service, request)
        await service.write(service.open, await service.read(_spec_of, form))
        return RedirectResponse("/desk?said=open", 303)

    @app.post("/desk/rounds/{round}/{step}", include_in_schema=False)
    async def take(request: Request, round: Round, step: str) -> Response:
        form = await _form_of(service, request)
        try:
            if step == "invite":
                count, whose = _text(form, "count", "1"), _text(form, "organisation") or None
                if not count.isdecimal() or not 0 < int(count) <= 1000:
                    raise InputError(f"{count!r} invitations; ask for 1 to 1000 at a time")
                tokens = await service.write(service.rounds.invite, round, int(count), organisation=whose)
                return await _desk(service, request, invitations=tokens)
            await _step(service, round, step, form)
        except VeraxError as error:
            return await _desk(service, request, error.status, detail=str(error))
        return RedirectResponse(f"/desk?said={step}", 303)


async def _step(service: Service, round: str, step: str, form: Form) -> None:
    rounds = service.rounds
    if step == "deposit":
        spec = await service.read(rounds.spec, round)
        amount, agent = spec.minor(_text(form, "amount"), "amount"), _text(form, "agent")
        await service.write(rounds.fund, round, amount, agent=agent, key=_text(form, "key") or secrets.token_hex(16))
        return
    known = {"fund": rounds.fund, "seal": rounds.seal, "void": rounds.void, "settle": service.ask_to_settle}
    if step not in known:
        raise ConflictError(f"{step!r} is no step of a round; it can be {', '.join(known)}")
    await service.write(known[step], round)


def _spec_of(form: Form) -> Spec:
    """What the form for a new round asks."""
    tasks, truth, agents = (_file(form, name) for name in ("tasks", "truth", "agents"))
    if tasks is None:
        raise InputError("a round has tasks; give a CSV file with a column task")
    numbered = tables.read_tasks(tasks)
    names = tuple(name.strip() for name in _text(form, "classes").split(","))
    asked = Reports.of(np.zeros((1, len(numbered)), dtype=np.int64), tasks=numbered, classes=names, source="tasks")
    known = None if truth is None else tables.read_truth(truth, asked).truth
    admitted, organisations = (None, {}) if agents is None else tables.read_agents(agents)
    least = _text(form, "min_tasks", "30")
    if not least.isdecimal():
        raise InputError(f"{least!r} tasks at least; give a whole number")
    return Spec(
        _text(form, "round"), numbered, names, _text(form, "budget"), _text(form, "kind", "batch"),
        _text(form, "currency", "EUR"), _text(form, "rule", DEFAULT), scheme=_text(form, "scheme", "clipped"),
        min_tasks=int(least), deadline=_text(form, "deadline") or None,
        truth=None if known is None else tuple(known.tolist()), admitted=admitted,
        organisations=organisations or None, invited=_text(form, "invited") == "yes",
    )  # fmt: skip
