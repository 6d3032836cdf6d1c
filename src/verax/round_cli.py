"""The commands of a round, on one database: open, fund, submit, seal, settle, void, show, verify."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verax.errors import InputError, VeraxError

if TYPE_CHECKING:
    from verax.rounds import Rounds

app = typer.Typer(
    help="Rounds on one ledger: sealed submissions, one settlement, every payment verifiable.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Round = Annotated[str, typer.Argument(help="The round's name.", metavar="ROUND")]
_Db = Annotated[str, typer.Option("--db", help="An SQLite file, or postgresql+psycopg://...", envvar="VERAX_DB")]
_Key = Annotated[str | None, typer.Option(help="Your own key: the same request again is answered as before.")]


def _rounds(db: str, *, create: bool = False) -> Rounds:
    from verax.ledger import Ledger
    from verax.rounds import Rounds

    return Rounds(Ledger.open(db, create=create))


def _print(document: Any) -> None:
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


@app.command("open")
def open_(
    round: _Round,
    tasks: Annotated[Path, typer.Option(help="A CSV or Parquet file with a column task.")],
    classes: Annotated[str, typer.Option(help="The classes, comma-separated.")],
    budget: Annotated[str, typer.Option(help="In major units, such as 1000.00.")],
    currency: Annotated[str, typer.Option(help="Its code.")] = "EUR",
    kind: Annotated[str, typer.Option(help="batch, or market: submissions in order, paid by improvement.")] = "batch",
    rule: Annotated[str, typer.Option(help="As in verax score.")] = "zero-one",
    over: Annotated[str | None, typer.Option(help="mean or median over peers, or one drawn at settlement.")] = None,
    sign: Annotated[str | None, typer.Option(help="With rule ca: identity or split.")] = None,
    floor: Annotated[float | None, typer.Option(help="As in verax score.")] = None,
    scheme: Annotated[str, typer.Option(help="As in verax pay.")] = "clipped",
    min_tasks: Annotated[int, typer.Option(help="As in verax pay.")] = 30,
    scale: Annotated[str | None, typer.Option(help="Market: what one unit of score pays, in major units.")] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Until when submissions are taken: 2026-12-31T18:00:00Z.")
    ] = None,
    truth: Annotated[Path | None, typer.Option(help="True labels, not shown before settlement: task,label.")] = None,
    public: Annotated[Path | None, typer.Option(help="What everybody knows: as in verax score.")] = None,
    db: _Db = "verax.db",
) -> None:
    """Open a round: what it asks is hashed and fixed."""
    import numpy as np

    from verax import tables
    from verax.reports import Reports
    from verax.rounds import Spec

    names = [name.strip() for row in csv.reader([classes]) for name in row]
    listed = tables.read_tasks(tasks)
    asked = Reports.of(np.zeros((1, len(listed)), dtype=np.int64), tasks=listed, classes=names, source=str(tasks))
    asked = asked if truth is None else tables.read_truth(truth, asked)
    asked = asked if public is None else tables.read_public(public, asked)
    spec = Spec(
        round, listed, tuple(names), budget, kind, currency,
        rule, over, sign, floor, scheme, min_tasks, scale, deadline,
        None if asked.truth is None else tuple(asked.truth.tolist()),
        None if asked.public is None else tuple(asked.public.tolist()),
    )  # fmt: skip
    entry = _rounds(db, create=True).open(spec)
    body = json.loads(entry.body)
    _print({"round": round, "state": "open", "digest": body["digest"], "secret_hash": body["secret_hash"]})


@app.command()
def fund(
    round: _Round,
    amount: Annotated[str | None, typer.Option(help="In major units; the round's budget if not given.")] = None,
    agent: Annotated[str | None, typer.Option(help="Give it to this agent's account, for stakes.")] = None,
    key: _Key = None,
    db: _Db = "verax.db",
) -> None:
    """Set the budget aside, or put money on an agent's account."""
    rounds = _rounds(db)
    entry = rounds.fund(round, rounds.minor(round, amount) if amount is not None else None, agent=agent, key=key)
    _print({"round": round, "entry": entry.seq, "debit": entry.debit, "credit": entry.credit, "amount": entry.amount})


@app.command()
def submit(
    round: _Round,
    report: Annotated[Path, typer.Argument(help="task,label (and p:<class>), or a file with one agent.")],
    agent: Annotated[str, typer.Option(help="Who submits.")],
    key: _Key = None,
    db: _Db = "verax.db",
) -> None:
    """Hand in a report; keep the receipt that is printed."""
    from verax import tables

    rounds = _rounds(db)
    taken = rounds.submit(round, agent, tables.read_prediction(report, rounds.classes(round)), key=key)
    _print(taken.to_json())


@app.command()
def seal(round: _Round, db: _Db = "verax.db") -> None:
    """Take nothing more: fix the root of all submissions."""
    entry = _rounds(db).seal(round)
    _print({"round": round, "state": "sealed", "entry": entry.seq, **json.loads(entry.body)})


@app.command()
def settle(round: _Round, db: _Db = "verax.db") -> None:
    """Score, pay and post, once; every later call gives the same answer."""
    found = _rounds(db).settle(round)
    _print({"round": round, "state": "settled", **found.to_json()})


@app.command()
def void(round: _Round, db: _Db = "verax.db") -> None:
    """Call the round off: stakes are let go and the budget goes back."""
    _rounds(db).void(round)
    _print({"round": round, "state": "void"})


@app.command()
def show(round: _Round, db: _Db = "verax.db") -> None:
    """What may be known now: before settlement nobody's report, nor the truth, nor the secret."""
    _print(_rounds(db).show(round))


@app.command()
def verify(
    round: Annotated[
        str | None, typer.Argument(help="A round whose settlement is computed again.", metavar="[ROUND]")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Compute this agent's payment again.")] = None,
    receipt: Annotated[list[Path] | None, typer.Option(help="Receipts whose entries must still be there.")] = None,
    db: _Db = "verax.db",
) -> None:
    """Fold the whole journal again, and a round's settlement; exit code 2 if anything is not as recorded."""
    rounds = _rounds(db)
    problems = rounds.verify(round, *(_head(path) for path in receipt or []))
    if problems:
        raise VeraxError("; ".join(problems) + "; do not pay by this ledger before it is explained")
    if agent is not None:
        if round is None:
            raise InputError("--agent needs the round; name it first")
        paid, again = rounds.payment(round, agent)
        print(f"{agent}: paid {paid}, computed again {again}: {'equal' if paid == again else 'not equal'}")
        return
    head = rounds.ledger.head()
    print(f"verified: {head.count} entries, head {head.hash}")


def _head(path: Path) -> Any:
    from verax.ledger import Head
    from verax.tables import read_text

    try:
        return Head(**json.loads(read_text(path))["head"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: not a receipt ({type(error).__name__}); give what verax round submit printed"
        ) from None
