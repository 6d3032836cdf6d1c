"""The commands of a key: new, show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verax.errors import ConflictError, InputError
from verax.wire import text_of

if TYPE_CHECKING:
    from verax.keys import Key

app = typer.Typer(
    help="An agent's key: who holds it is the agent, in every round where it is used.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_File = Annotated[Path, typer.Argument(help="The file that holds the key; whoever can read it is you.", metavar="FILE")]


@app.command()
def new(file: _File) -> None:
    """Make a key, in a file that only you can read; what is printed is its public half."""
    from verax.keys import Key, write_private

    key = Key.new()
    try:
        write_private(file, key.pem)
    except FileExistsError:
        raise ConflictError(
            f"{file}: there already; a key that is lost cannot be had again, so name another file"
        ) from None
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror}); name another place") from None
    sys.stdout.write(text_of({"key": key.public}))


@app.command()
def show(file: _File) -> None:
    """The public half of a key: what an operator admits you by."""
    sys.stdout.write(text_of({"key": read_key(file).public}))


def read_key(file: Path) -> Key:
    """The key in a file, or the sentence that says why not."""
    from verax.keys import Key
    from verax.tables import read_text

    return Key.of(read_text(file), str(file))
