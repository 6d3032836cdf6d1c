"""The commands of a receipt: get, verify, checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verax.cli.options import refuse_overwriting
from verax.errors import InputError, VeraxError
from verax.wire import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verax.log import Checkpoint, Continuation, Proof
    from verax.receipts import Finding

app = typer.Typer(
    help="What an agent keeps of a submission: one text file, checked without the database.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Db = Annotated[str, typer.Option("--db", help="An SQLite file, or postgresql+psycopg://...", envvar="VERAX_DB")]
_Keys = Annotated[
    str | None, typer.Option("--keys", help="The operator's folder of keys, if not beside the database.", metavar="DIR")
]
_Out = Annotated[Path | None, typer.Option("-o", help="Write to this file, not to the screen.", metavar="FILE")]
_LONGEST_WAIT = 30  # seconds
_LONGEST_ANSWER, _LONGEST_REFUSAL = 2**20, 1000


@app.command()
def get(
    round: Annotated[str, typer.Argument(help="The round's name.", metavar="ROUND")],
    agent: Annotated[str, typer.Option(help="Whose submission.")],
    entry: Annotated[int | None, typer.Option(help="Its number, where the agent has several; else the last.")] = None,
    output: _Out = None,
    db: _Db = "verax.db",
    keys: _Keys = None,
) -> None:
    """Write the receipt of an agent's last submission; before settlement it is for the agent alone."""
    from verax.ledger import Ledger
    from verax.rounds import Rounds

    refuse_overwriting(output, db)
    found = Rounds(Ledger.open(db, create=False, keys=keys)).receipt(round, agent, entry, opened=True)
    write_text(output, str(found))


@app.command()
def checkpoint(
    since: Annotated[
        int | None, typer.Option(help="With the proof that the log continues what it was at so many entries.")
    ] = None,
    output: _Out = None,
    db: _Db = "verax.db",
    keys: _Keys = None,
) -> None:
    """Write what the log is now, signed by its operator: for a witness, or to compare a receipt with."""
    from verax.ledger import Ledger

    refuse_overwriting(output, db)
    ledger = Ledger.open(db, create=False, keys=keys)
    write_text(output, str(ledger.checkpoint() if since is None else ledger.continuation(since)))


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="A receipt, as verax receipt get wrote it.", metavar="FILE")],
    report: Annotated[Path | None, typer.Option(help="The report that was handed in: task,label.")] = None,
    operator: Annotated[str | None, typer.Option(help="The operator's public key, known from elsewhere.")] = None,
    witness: Annotated[
        list[str] | None, typer.Option(help="A witness that must have signed: name+id+base64.", metavar="KEY")
    ] = None,
    sign: Annotated[Path | None, typer.Option(help="The agent's own key, if the receipt has no nonce.")] = None,
    against: Annotated[
        str | None, typer.Option(help="A later checkpoint or receipt, a database, or the address of a service.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document of what was checked.")] = False,
) -> None:
    """Check everything that a receipt says, and say what it shows; exit code 2 if anything does not hold."""
    from verax.log import NoteKey, Proof
    from verax.receipts import findings
    from verax.show.text import shown
    from verax.tables import read_text

    proof = Proof.parsed(read_text(file), str(file))
    known = None if operator is None else _operator_key(operator)
    found = [*findings(proof, known, [NoteKey.of(text) for text in witness or []])]
    if report is not None:
        found.append(_report_finding(proof, report, sign))
    if against is not None:
        found += _findings_against(proof, against, known)
    if json:
        told = [{"holds": each.holds, "said": each.said} for each in found]
        sys.stdout.write(text_of({"receipt": str(file), "findings": told}))
    else:
        for each in found:
            print(f"{_HOW[each.holds]:12}{shown(each.said)}")
        if any(each.holds is None for each in found):
            print("What is marked with ? cannot be told from the receipt alone.")
    if problems := [each.said for each in found if each.holds is False]:
        raise VeraxError(f"{file}: does not hold: {'; '.join(problems)}; keep the file, it is evidence")


_HOW = {True: "holds", False: "DOES NOT", None: "?"}


def _operator_key(text: str) -> str:
    from verax.keys import checked_public
    from verax.log import NoteKey

    return NoteKey.of(text).public if "+" in text else checked_public(text.strip(), "operator=")


def _report_finding(proof: Proof, report: Path, sign: Path | None) -> Finding:
    from verax import tables
    from verax.cli.key import read_key
    from verax.receipts import asked_by, report_finding

    prediction = tables.read_prediction(report, asked_by(proof).classes)
    return report_finding(proof, prediction, None if sign is None else read_key(sign))


def _findings_against(proof: Proof, against: str, operator: str | None) -> Iterator[Finding]:
    from verax.receipts import Finding, later_finding

    mine = proof.checkpoint
    if against.startswith(("https://", "http://")):
        yield later_finding(mine, _later(_fetched(against, mine.size), against), operator)
    elif (text := _text_in(against)) is not None:
        yield later_finding(mine, _later(text, against), operator)
    else:
        from verax.ledger import Ledger
        from verax.rounds import Rounds

        problems = Rounds(Ledger.open(against, create=False)).verify(proof.said["round"], mine)
        yield Finding(not problems, "; ".join(problems) or "the database holds all that the receipt says, unchanged")


def _text_in(against: str) -> str | None:
    """The text of a file; None of a database."""
    from verax.tables import read_text

    path = Path(against)
    if "://" in against or not path.is_file():
        return None
    with path.open("rb") as file:
        return None if file.read(15) == b"SQLite format 3" else read_text(path)


def _fetched(address: str, size: int) -> str:
    """What a service says that its log is now, and that it continues what the receipt has seen."""
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    try:
        with urlopen(f"{address.rstrip('/')}/log/checkpoint?since={size}", timeout=_LONGEST_WAIT) as answer:  # nosec B310
            return str(answer.read(_LONGEST_ANSWER).decode())
    except HTTPError as error:
        with error:
            said = error.read(_LONGEST_REFUSAL).decode(errors="replace").strip()
        raise InputError(f"{address}: no checkpoint could be had there ({error}: {said}); check the address") from None
    except (URLError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{address}: no checkpoint could be had there ({error}); check the address") from None


def _later(text: str, source: str) -> Checkpoint | Continuation:
    from verax.log import Checkpoint, Continuation, Proof
    from verax.log.proof import FIRST_LINE

    if text.startswith(FIRST_LINE):
        return Proof.parsed(text, source).checkpoint
    return (Continuation if text.startswith("old ") else Checkpoint).parsed(text, source)


def write_text(output: Path | None, text: str) -> None:
    """To a file that only its owner may read, or to the screen."""
    if output is None:
        sys.stdout.write(text)
        return
    from verax.keys import write_private

    try:
        if output.exists() and not output.is_file():  # a device, a pipe
            output.write_text(text)
        else:
            write_private(output.resolve(), text, over=True)
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror}); name another place") from None
