"""The command that serves rounds over HTTP."""

from __future__ import annotations

import logging
import math
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verax.errors import ExtraMissing, InputError, OptionError

if TYPE_CHECKING:
    from verax.service.shared import Settings

_MIB = 2**20
_SECONDS_OF_CONNECTIONS = 10  # an address may have as many as it may make requests in that time


def serve(
    db: Annotated[
        str, typer.Option("--db", help="An SQLite file, or postgresql+psycopg://...", envvar="VERAX_DB")
    ] = "verax.db",
    keys: Annotated[
        str | None, typer.Option("--keys", help="The folder of keys, if not beside the database.", metavar="DIR")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 for any that is free.")] = 8000,
    operators: Annotated[
        Path | None, typer.Option(help="A file agent,key of further operators, by public key.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Requests a second from one address; 0 for as many as come.")] = 50.0,
    max_body: Annotated[float, typer.Option(help="MiB that one request may bring.")] = 16.0,
    private_webhooks: Annotated[
        bool, typer.Option("--private-webhooks", help="Let webhooks be told within private networks, and by http.")
    ] = False,
    certificate: Annotated[Path | None, typer.Option(help="A TLS certificate in PEM, to serve https.")] = None,
    certificate_key: Annotated[Path | None, typer.Option(help="The certificate's private key.")] = None,
    behind: Annotated[
        str | None, typer.Option(help="Addresses of proxies that say for whom they ask, comma-separated.")
    ] = None,
) -> None:
    """Serve rounds over HTTP: an API, pages, and a process that settles."""
    try:
        from verax.service.shared import Settings
    except ModuleNotFoundError:
        raise ExtraMissing("Services", "service") from None
    from verax import tables
    from verax.service.gate import Limits

    if (certificate is None) != (certificate_key is None):
        raise OptionError("https needs both: give certificate= and certificate_key=")
    if not (rate >= 0 and max_body > 0):
        raise OptionError(f"rate={rate} and max_body={max_body}: a rate of 0 is none, and a body has a size above 0")
    if not 0 <= port < 2**16:
        raise OptionError(f"port is {port}; give one from 0 to 65535")
    named = () if operators is None else tuple(tables.read_agents(operators)[0].values())
    settings = Settings(db, keys, named, Limits(rate=rate, body=int(max_body * _MIB)), private_webhooks)
    _run(settings, host, port, behind, ssl_certfile=certificate, ssl_keyfile=certificate_key)


def _run(settings: Settings, host: str, port: int, behind: str | None, **tls: Any) -> None:
    import uvicorn

    from verax.service.app import make_app
    from verax.service.connections import limited
    from verax.service.gate import Lines

    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(Lines())
    for name in ("verax.service", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).addHandler(shown)
        logging.getLogger(name).propagate = False
    how: dict[str, Any] = {name: str(path) for name, path in tls.items() if path is not None}
    app = make_app(settings)
    most = 0 if behind is not None else math.ceil(_SECONDS_OF_CONNECTIONS * settings.limits.rate)
    config = uvicorn.Config(
        app, host=host, port=port, log_config=None, access_log=False, server_header=False, ws="none",
        http=limited(most), proxy_headers=behind is not None, forwarded_allow_ips=behind, timeout_graceful_shutdown=5,
        limit_concurrency=2000, **how,
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"the certificate cannot be used ({reason}); give it and its own key, each in PEM") from None
    try:
        socket = config.bind_socket()
        socket.listen(1024)  # whoever reads the line below may ask at once
    except (OSError, SystemExit):
        raise InputError(f"{host}:{port} cannot be listened on; name another port, or see what has it") from None
    address, bound = socket.getsockname()[:2]
    scheme = "https" if how else "http"
    print(f"verax serves on {scheme}://{address}:{bound}; the operator's token is in {app.state.service.token_file}",
          flush=True)  # fmt: skip
    with suppress(KeyboardInterrupt):  # which has ended it in order
        uvicorn.Server(config).run(sockets=[socket])
