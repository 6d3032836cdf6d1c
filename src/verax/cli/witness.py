"""The commands of a witness: key, cosign, add."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from verax.errors import InputError, OptionError

app = typer.Typer(
    help="A witness signs the checkpoints that it sees, and never two that cannot both be true.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Sign = Annotated[Path, typer.Option(help="The witness's own key, made by verax key new.", metavar="KEYFILE")]
_Name = Annotated[str, typer.Option(help="By what others know the witness, such as witness.example/w1.")]


@app.command()
def key(sign: _Sign, name: _Name) -> None:
    """Print by what others know this witness's signatures: name+id+base64."""
    from verax.cli.key import read_key
    from verax.log.notes import TIMED, NoteKey

    print(NoteKey(name, read_key(sign).public, TIMED))


@app.command()
def cosign(
    request: Annotated[str, typer.Argument(help="What verax receipt checkpoint --since wrote; - is standard input.")],
    sign: _Sign,
    name: _Name,
    state: Annotated[Path, typer.Option(help="The file of what was signed last, of each log.")],
    log: Annotated[
        list[str], typer.Option(help="A log that is signed, and its operator's public key.", metavar="ORIGIN=KEY")
    ],
    evidence: Annotated[
        Path | None, typer.Option(help="Where both checkpoints go if one does not continue the other.")
    ] = None,
) -> None:
    """Sign a checkpoint that continues what was seen; print the line, or refuse a fork or a rollback."""
    from verax.cli.key import read_key
    from verax.cli.receipt import write_text
    from verax.log import Continuation, Witness
    from verax.log.witness import ForkError, RollbackError
    from verax.tables import read_text

    text = sys.stdin.read() if request == "-" else read_text(Path(request))
    asked = Continuation.parsed(text, request)
    witness = Witness(name, read_key(sign), _logs_of(log), state)
    try:
        lines = witness.cosign(asked)
    except (ForkError, RollbackError) as refusal:
        write_text(evidence or Path(f"{state}.evidence"), refusal.evidence)
        raise
    sys.stdout.write("".join(f"{line}\n" for line in lines))


@app.command()
def add(
    lines: Annotated[str, typer.Argument(help="What verax witness cosign printed; - is standard input.")],
    witness: Annotated[str, typer.Option(help="The witness's key: name+id+base64.", metavar="KEY")],
    db: Annotated[
        str, typer.Option("--db", help="An SQLite file, or postgresql+psycopg://...", envvar="VERAX_DB")
    ] = "verax.db",
) -> None:
    """Keep a witness's signature with the checkpoint it has signed, for the receipts to come."""
    from verax.ledger import Ledger
    from verax.log import NoteKey
    from verax.tables import read_text

    text = sys.stdin.read() if lines == "-" else read_text(Path(lines))
    size = Ledger.open(db, create=False).keep_cosignature(NoteKey.of(witness), text.splitlines())
    print(f"kept: the log of {size} entries, as its witness has seen it")


def _logs_of(given: list[str]) -> dict[str, tuple[str, ...]]:
    from verax.keys import checked_public

    found: dict[str, tuple[str, ...]] = {}
    for each in given:
        origin, equal, public = each.rpartition("=")
        if not equal:
            raise OptionError(f"log={each!r}; give ORIGIN=KEY, the first line of a checkpoint and the operator's key")
        found[origin] = (*found.get(origin, ()), checked_public(public, "log="))
    if not found:
        raise InputError("no log is named; give one with log=ORIGIN=KEY")
    return found
