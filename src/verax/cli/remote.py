"""The commands of a round, asked of a service: those of `verax round`, with an address in place of a database."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from verax.cli import rounds
from verax.wire import text_of

if TYPE_CHECKING:
    from verax.service.client import Remote

app = typer.Typer(
    help="Rounds of a service, from afar: reports are sealed and signed here, and settlements verified here.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Round = Annotated[str, typer.Argument(help="The round's name.", metavar="ROUND")]
_Server = Annotated[str, typer.Option("--server", help="The service's address.", envvar="VERAX_SERVER")]
_Operator = Annotated[
    str | None,
    typer.Option("--operator", help="Operators: the file of your key, or of the token.", envvar="VERAX_OPERATOR"),
]
_ONLY_HERE = ("grant",)  # what is asked of the database itself
_NOT_FROM_AFAR = ("submit", "reveal")  # where the operator, asked locally, signs for the agent


def _from_afar(command: Callable[..., None]) -> Callable[..., None]:
    """A command of `verax round` whose database is a service, and whose folder of keys an operator's credential."""
    hints = get_type_hints(command, include_extras=True)
    name = command.__name__
    kept = [p.replace(annotation=hints[p.name], kind=Parameter.KEYWORD_ONLY)
            for p in signature(command).parameters.values() if p.name not in ("db", "keys")]  # fmt: skip
    there = "keys" in signature(command).parameters and name not in _NOT_FROM_AFAR
    added = [Parameter("server", Parameter.KEYWORD_ONLY, default="http://127.0.0.1:8000", annotation=_Server)]
    added += [Parameter("operator", Parameter.KEYWORD_ONLY, default=None, annotation=_Operator)] if there else []

    @functools.wraps(command)
    def run(*, server: str, operator: str | None = None, **given: Any) -> None:
        command(**given, db=server, **({"keys": operator} if there else {}))

    run.__signature__ = Signature([*kept, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*kept, *added)}
    return run


for one in rounds.app.registered_commands:
    assert one.callback is not None
    if one.callback.__name__ not in _ONLY_HERE:
        app.command(one.name)(_from_afar(one.callback))


def _remote(server: str, operator: str | None) -> Remote:
    from verax.service.client import Remote

    return Remote(server, operator)


@app.command("list")
def list_(server: _Server = "http://127.0.0.1:8000") -> None:
    """All rounds of the service, the latest first."""
    sys.stdout.write(text_of({"rounds": _remote(server, None).rounds()}))


@app.command()
def agent(
    round: _Round,
    agent: Annotated[str, typer.Option(help="Who handed in.")],
    server: _Server = "http://127.0.0.1:8000",
) -> None:
    """What an agent has handed in, and what became of it: a state and a reason for each."""
    sys.stdout.write(text_of(_remote(server, None).of_agent(round, agent)))


@app.command()
def balance(
    round: _Round,
    agent: Annotated[str, typer.Option(help="Whose account.")],
    sign: Annotated[Path | None, typer.Option(help="The agent's own key; or ask as operator.")] = None,
    server: _Server = "http://127.0.0.1:8000",
    operator: _Operator = None,
) -> None:
    """What is on an agent's account, for the agent itself or an operator."""
    from verax.cli.key import read_key

    signer = None if sign is None else read_key(sign)
    sys.stdout.write(text_of(_remote(server, operator).balance(round, agent, signer)))


@app.command()
def payouts(round: _Round, server: _Server = "http://127.0.0.1:8000", operator: _Operator = None) -> None:
    """Who is to be paid what, as CSV, of a settled round."""
    sys.stdout.write(_remote(server, operator).payouts(round))


@app.command()
def webhooks(
    add: Annotated[
        str | None, typer.Option(help="Tell this address from now on; keep the secret.", metavar="URL")
    ] = None,
    remove: Annotated[str | None, typer.Option(help="Tell this one no more.", metavar="ID")] = None,
    server: _Server = "http://127.0.0.1:8000",
    operator: _Operator = None,
) -> None:
    """Whom the service tells what happens in its rounds, and how the last telling went."""
    remote = _remote(server, operator)
    if remove is not None:
        remote.remove_webhook(remove)
    added = None if add is None else remote.add_webhook(add)
    sys.stdout.write(text_of({"webhooks": remote.webhooks()} if added is None else added))
