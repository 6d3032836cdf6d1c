"""The service as one ASGI application: its addresses, what stands before them, and how it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

import anyio.to_thread
import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from verax import __version__
from verax.errors import VeraxError
from verax.ledger import Entry
from verax.rounds import Admission, Admitted, Receipt, Reveal, Settlement, Spec, Submission
from verax.service.api import add_api
from verax.service.follow import Progress
from verax.service.gate import Gate
from verax.service.pages import add_pages, error_page
from verax.service.shared import Beacon, Cosignature, Funding, Inviting, Service, Settings, Told, bytes_of

__all__ = ["Settings", "make_app"]

_KINDS = (
    Spec, Submission, Admission, Admitted, Reveal, Beacon, Funding, Inviting, Cosignature, Told, Receipt, Entry,
    Settlement, Progress,
)  # fmt: skip


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
    add_api(app, service)
    add_pages(app, service)
    app.openapi = partial(_described, app)  # type: ignore[method-assign]
    app.add_middleware(Gate, limits=settings.limits, meters=service.meters, refusal=problem)
    app.add_exception_handler(VeraxError, problem)
    app.add_exception_handler(RequestValidationError, problem)
    app.add_exception_handler(HTTPException, problem)
    app.add_exception_handler(Exception, problem)
    return app


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
    looks = "text/html" in request.headers.get("accept", "") and not request.scope["path"].endswith(".json")
    if looks:
        return error_page(request, status, HTTPStatus(status).phrase, detail)
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return Response(bytes_of(body), status, headers, "application/problem+json")


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description, with the documents as `wire` has them."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        _, parts = msgspec.json.schema_components(_KINDS, ref_template="#/components/schemas/{name}")
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
