"""The commands of a round, on one database: open, fund, submit, seal, settle, void, show, verify."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from verax.cli.options import KnownOptions, PayingOptions, ScoringOptions, grouped, listed
from verax.errors import InputError, OptionError, VeraxError
from verax.wire import decoded, parsed, text_of

if TYPE_CHECKING:
    from verax.ledger import Head
    from verax.log import Checkpoint
    from verax.models.asked import Asks
    from verax.rounds import Rounds

app = typer.Typer(
    help="Rounds on one ledger: sealed submissions, one settlement, every payment verifiable.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Round = Annotated[str, typer.Argument(help="The round's name.", metavar="ROUND")]
_Db = Annotated[str, typer.Option("--db", help="An SQLite file, or postgresql+psycopg://...", envvar="VERAX_DB")]
_Keys = Annotated[
    str | None, typer.Option("--keys", help="The operator's folder of keys, if not beside the database.", metavar="DIR")
]
_Inputs = Annotated[
    Path | None, typer.Option(help="NPZ: what models are given, one row a task; it stays with you.", metavar="FILE")
]
_Jail = Annotated[str, typer.Option(help="strong, or weak where its walls cannot stand: models run all the same.")]
_Again = Annotated[str | None, typer.Option("--key", help="Of a request: the same again is answered as before.")]


def _rounds_in(db: str, keys: str | None = None, *, create: bool = False) -> Rounds:
    """The rounds of a database, or of a service at an address: what is asked of them is the same."""
    if db.startswith(("http://", "https://")):
        from verax.service.client import Remote

        return cast("Rounds", Remote(db, keys))
    from verax.ledger import Ledger
    from verax.rounds import Rounds

    return Rounds(Ledger.open(db, create=create, keys=keys))


def _print_document(document: Any) -> None:
    sys.stdout.write(text_of(document))


@app.command("open")
@grouped
def open_(
    round: _Round,
    tasks: Annotated[Path, typer.Option(help="A CSV or Parquet file with a column task.")],
    classes: Annotated[str, typer.Option(help="The classes, comma-separated.")],
    budget: Annotated[str, typer.Option(help="In major units, such as 1000.00.")],
    scoring: ScoringOptions,
    known: KnownOptions,
    paying: PayingOptions,
    kind: Annotated[
        str, typer.Option(help="batch, or submissions in order, paid by improvement: market, survey, hybrid.")
    ] = "batch",
    over: Annotated[str | None, typer.Option(help="mean or median over peers, or one drawn at settlement.")] = None,
    scale: Annotated[
        str | None, typer.Option(help="Market, survey: what one unit of score pays, in major units.")
    ] = None,
    places: Annotated[int | None, typer.Option(help="Survey: how many may answer it.", metavar="N")] = None,
    weight: Annotated[
        float | None, typer.Option("--lambda", help="Survey: what the market pays for what the survey pays 1 for.")
    ] = None,
    keep_both: Annotated[
        bool, typer.Option("--keep-both", help="Survey: let who has a market position be drawn too.")
    ] = False,
    deadline: Annotated[
        str | None, typer.Option(help="Until when submissions are taken: 2026-12-31T18:00:00Z.")
    ] = None,
    agents: Annotated[
        Path | None,
        typer.Option(help="A file agent,key[,organisation]: the only ones that may take part, by public key."),
    ] = None,
    invitation: Annotated[
        bool, typer.Option("--invitation", help="Who is not listed needs an invitation: verax round invite.")
    ] = False,
    per_organisation: Annotated[
        int | None, typer.Option(help="How many names one organisation may have (1).", metavar="N")
    ] = None,
    quota: Annotated[int | None, typer.Option(help="How often one agent may hand in.", metavar="N")] = None,
    asks: Annotated[
        str, typer.Option(help="report, or onnx: models, which are run on --inputs at settlement.")
    ] = "report",
    inputs: _Inputs = None,
    limits: Annotated[
        str | None,
        typer.Option(
            help="What a model may take: file=, memory= (bytes), seconds=, clock=, batch= (rows).", metavar="L"
        ),
    ] = None,
    sealing: Annotated[
        str, typer.Option(help="key: reports are sealed to the operator's; commit: none can read them before the seal.")
    ] = "key",
    reveal_hours: Annotated[
        float | None, typer.Option(help="Commit: for how long after the seal reports may be shown.", metavar="H")
    ] = None,
    deposit: Annotated[
        str | None, typer.Option(help="Commit: what is held from everybody, and lost by who shows nothing.")
    ] = None,
    beacon: Annotated[
        str | None, typer.Option(help="What draws come from: a number of drand's quicknet, or a time to come.")
    ] = None,
    copies: Annotated[
        str,
        typer.Option(
            help="Of agents that hand in one report: pay first, equal (parts), each; clusters: see docs/copies.md."
        ),
    ] = "first",
    db: _Db = "verax.db",
    keys: _Keys = None,
) -> None:
    """Open a round: what it asks is hashed and fixed."""
    import numpy as np

    from verax import tables
    from verax.admission import list_warnings
    from verax.beacon import beacon_time
    from verax.reports import Reports
    from verax.rounds import Spec

    names = listed(classes, "classes")
    numbered = tables.read_tasks(tasks)
    asked = Reports.of(np.zeros((1, len(numbered)), dtype=np.int64), tasks=numbered, classes=names, source=str(tasks))
    asked = asked if known.truth is None else tables.read_truth(known.truth, asked)
    asked = asked if known.public is None else tables.read_public(known.public, asked)
    listed_keys, organisations = (None, {}) if agents is None else tables.read_agents(agents)
    spec = Spec(
        round, numbered, tuple(names), budget, kind, paying.currency,
        scoring.rule, over, scoring.sign, scoring.floor, paying.scheme, paying.min_tasks, scale, deadline,
        None if asked.truth is None else tuple(asked.truth.tolist()),
        None if asked.public is None else tuple(asked.public.tolist()),
        _who_is_paid(copies),
        admitted=listed_keys, organisations=organisations or None, invited=invitation,
        per_organisation=per_organisation, quota=quota, places=places, weight=weight, keep_both=keep_both,
        asks=_asked_of_models(asks, inputs, limits, numbered), full_marks=paying.full_marks,
        sealing=_sealing_of(sealing), reveal_hours=reveal_hours, deposit=deposit, beacon=_beacon_of(beacon),
    )  # fmt: skip
    opened = parsed(_rounds_in(db, keys, create=True).open(spec).body)
    shown = {name: opened[name] for name in ("digest", "secret_hash", "seal_to", "operator")}
    when = {} if spec.beacon is None else {"beacon": spec.beacon, "beacon_at": beacon_time(spec.beacon).isoformat()}
    _print_document({"round": round, "state": "open", **shown, **when})
    few = spec.kind == "batch" and spec.min_tasks > len(spec.tasks)
    _warn([*list_warnings(spec), *([f"fewer than {spec.min_tasks} tasks are not paid, and there are {len(spec.tasks)}: "
                                    "nobody will be; open another with --min-tasks"] if few else [])])  # fmt: skip


def _warn(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        typer.echo(f"warning: {sentence}", err=True)


def _asked_of_models(asks: str, inputs: Path | None, limits: str | None, tasks: tuple[str, ...]) -> Asks | None:
    """What a round asks of models, if it asks for any."""
    from verax.models.asked import Asks, limits_of, read_inputs

    if asks not in ("report", "onnx"):
        raise OptionError(f"asks is {asks!r}; choose report or onnx")
    if asks == "report" and (inputs is not None or limits is not None):
        raise OptionError("inputs= and limits= are of models; ask for them with asks=onnx")
    if asks == "report":
        return None
    if inputs is None:
        raise OptionError("asks=onnx needs the inputs that models are run on: inputs=FILE.npz")
    return Asks.of(read_inputs(inputs, tasks), limits_of(limits))


def _sealing_of(sealing: str) -> Literal["commit"] | None:
    if sealing not in ("key", "commit"):
        raise OptionError(f"sealing is {sealing!r}; choose one of key, commit")
    return "commit" if sealing == "commit" else None


def _beacon_of(given: str | None) -> int | None:
    """A beacon by its number, or the first at or after a time."""
    from verax.beacon import beacon_after
    from verax.spec import time_of

    if given is None or given.isdecimal():
        return None if given is None else int(given)
    return beacon_after(time_of(given, "beacon"))


def _who_is_paid(copies: str) -> Literal["first", "clusters"] | bool:
    """What a spec calls it."""
    known: dict[str, Literal["first", "clusters"] | bool] = {
        "first": "first", "equal": True, "clusters": "clusters", "each": False,
    }  # fmt: skip
    if copies not in known:
        raise OptionError(f"copies is {copies!r}; choose one of {', '.join(known)}")
    return known[copies]


@app.command()
def fund(
    round: _Round,
    amount: Annotated[str | None, typer.Option(help="In major units; the round's budget if not given.")] = None,
    agent: Annotated[str | None, typer.Option(help="Give it to this agent's account, for stakes.")] = None,
    key: _Again = None,
    db: _Db = "verax.db",
    keys: _Keys = None,
) -> None:
    """Set the budget aside, or put money on an agent's account."""
    rounds = _rounds_in(db, keys)
    entry = rounds.fund(
        round, rounds.spec(round).minor(amount, "amount") if amount is not None else None, agent=agent, key=key
    )
    _print_document(
        {"round": round, "entry": entry.seq, "debit": entry.debit, "credit": entry.credit, "amount": entry.amount}
    )


@app.command()
def invite(
    round: _Round,
    count: Annotated[int, typer.Option(help="How many, each for one agent.")] = 1,
    organisation: Annotated[str | None, typer.Option(help="Whom they are for; it may have so many names.")] = None,
    db: _Db = "verax.db",
    keys: _Keys = None,
) -> None:
    """Make invitations: hand each to one agent, by a way that nobody else reads; they are shown this once."""
    tokens = _rounds_in(db, keys).invite(round, count, organisation=organisation)
    _print_document({"round": round, "organisation": organisation, "invitations": tokens})


@app.command()
def admit(
    round: _Round,
    agent: Annotated[str, typer.Option(help="The name to take part under.")],
    sign: Annotated[Path, typer.Option(help="The agent's own key, made by verax key new.")],
    invitation: Annotated[str, typer.Option(help="What the operator gave you.", envvar="VERAX_INVITATION")],
    db: _Db = "verax.db",
) -> None:
    """Use an invitation: from then on this name is this key's, and the invitation nobody's."""
    from verax.cli.key import read_key
    from verax.rounds import Admission

    rounds = _rounds_in(db)
    admitted = rounds.admit(Admission.of(rounds.public_record(round), agent, read_key(sign), invitation.strip()))
    _print_document(admitted.to_json())
    _warn(admitted.warnings)


@app.command()
def submit(
    round: _Round,
    report: Annotated[
        Path,
        typer.Argument(help="task,label (and p:<class>), or a file with one agent; or an .onnx file if asked for."),
    ],
    agent: Annotated[str, typer.Option(help="Who submits.")],
    sign: Annotated[
        Path | None, typer.Option(help="The agent's own key, made by verax key new; else the operator signs for it.")
    ] = None,
    survey: Annotated[
        bool, typer.Option("--survey", help="It answers the survey that closes a market, and is no step of it.")
    ] = False,
    key: _Again = None,
    receipt: Annotated[
        Path | None, typer.Option(help="Write a receipt that can be checked anywhere to a file.")
    ] = None,
    db: _Db = "verax.db",
    keys: _Keys = None,
) -> None:
    """Seal and sign a report here, and hand it in; keep the receipt that is printed."""
    from verax import tables
    from verax.cli.key import read_key
    from verax.cli.receipt import write_text

    signer = None if sign is None else read_key(sign)
    rounds = _rounds_in(db, keys)
    spec = rounds.spec(round)
    prediction = report if spec.asks is not None else tables.read_prediction(report, spec.classes)
    taken = rounds.submit(round, agent, prediction, key=key, signer=signer, survey=survey)
    if receipt is not None:
        write_text(receipt, str(rounds.receipt(round, agent, taken.entry, nonce=taken.nonce)))
    _print_document(taken.to_json())
    _warn(taken.warnings)


@app.command()
def seal(round: _Round, db: _Db = "verax.db", keys: _Keys = None) -> None:
    """Take nothing more: fix the root of all submissions."""
    entry = _rounds_in(db, keys).seal(round)
    sealed = parsed(entry.body)
    shown = {name: sealed[name] for name in ("root", "submissions")}
    _print_document({"round": round, "state": "sealed", "entry": entry.seq, **shown})


@app.command()
def reveal(
    round: _Round,
    report: Annotated[Path, typer.Argument(help="The same report that was handed in.")],
    agent: Annotated[str, typer.Option(help="Whose it is.")],
    sign: Annotated[Path | None, typer.Option(help="The key that it was handed in with.")] = None,
    db: _Db = "verax.db",
    keys: _Keys = None,
) -> None:
    """Show what was committed to, once the round is sealed; what is not shown in time says nothing."""
    from verax import tables
    from verax.cli.key import read_key

    signer = None if sign is None else read_key(sign)
    rounds = _rounds_in(db, keys)
    entry = rounds.reveal(round, agent, tables.read_prediction(report, rounds.spec(round).classes), signer=signer)
    _print_document({"round": round, "agent": agent, "entry": entry.seq})


@app.command()
def settle(
    round: _Round,
    inputs: _Inputs = None,
    jail: _Jail = "strong",
    beacon: Annotated[
        str | None, typer.Option(help="The beacon that was asked for: its JSON, its signature, or a file of either.")
    ] = None,
    db: _Db = "verax.db",
    keys: _Keys = None,
) -> None:
    """Score, pay and post, once; every later call gives the same answer. Models are run on --inputs first."""
    from verax.tables import read_text

    rounds = _rounds_in(db, keys)
    if beacon is not None:
        given = beacon.strip()
        rounds.give_beacon(round, given if given[:1] == "{" or len(given) == 96 else read_text(Path(beacon)))
    arrays = None if inputs is None else _read_inputs(rounds, round, inputs, jail)
    found = rounds.settle(round, inputs=arrays, jail=jail)
    _print_document({"round": round, "state": "settled", **found.to_json()})


def _read_inputs(rounds: Rounds, round: str, inputs: Path, jail: str) -> dict[str, Any]:
    """The inputs of a round's models; says which walls they run behind."""
    from verax.models import walls
    from verax.models.asked import read_inputs

    typer.echo(f"models run in a {jail} jail; {walls()}", err=True)
    return read_inputs(inputs, rounds.spec(round).tasks)


@app.command()
def void(round: _Round, db: _Db = "verax.db", keys: _Keys = None) -> None:
    """Call the round off: stakes are let go and the budget goes back."""
    _rounds_in(db, keys).void(round)
    _print_document({"round": round, "state": "void"})


@app.command()
def show(
    round: _Round,
    agent: Annotated[str | None, typer.Option(help="What this agent was told of its pay, and has handed in.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    db: _Db = "verax.db",
) -> None:
    """What may be known now: before settlement nobody's report, nor the truth, nor the secret."""
    from verax.notices import told_in
    from verax.show.rounds import agent_words, round_listing, round_words
    from verax.show.text import console, print_line, table

    rounds = _rounds_in(db)
    told: list[Any] = []
    if (ledger := getattr(rounds, "ledger", None)) is not None:  # what agents were told is beside the database
        with ledger.reading() as journal:
            told = told_in(journal, round)
    if agent is None:
        known = rounds.show(round)
        if as_json:
            _print_document(known)
            return
        latest = {notice.agent: notice for notice in told}
        out, words = console(), round_words(known)
        out.print(table(round_listing(known, latest)))
    else:
        mine = [notice for notice in told if notice.agent == agent]
        handed_in = [] if mine and rounds.state(round) == "none" else rounds.handed_in(round, agent)
        if not mine and not handed_in:
            raise InputError(f"agent {agent!r} has handed in nothing to round {round!r}, and was told nothing of it")
        if as_json:
            _print_document({"round": round, "agent": agent, "notices": mine, "handed_in": handed_in})
            return
        out, words = console(), agent_words(agent, mine, handed_in)
    for line in words:
        print_line(out, line)


@app.command()
def verify(
    round: Annotated[
        str | None, typer.Argument(help="A round whose settlement is computed again.", metavar="[ROUND]")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Compute this agent's payment again.")] = None,
    receipt: Annotated[list[Path] | None, typer.Option(help="Receipts whose entries must still be there.")] = None,
    model: Annotated[Path | None, typer.Option(help="Run this agent's model again, on --inputs.")] = None,
    inputs: _Inputs = None,
    jail: _Jail = "strong",
    db: _Db = "verax.db",
) -> None:
    """Fold the whole journal again, and a round's settlement; exit code 2 if anything is not as recorded."""
    from verax.show.text import shown

    rounds = _rounds_in(db)
    problems = rounds.verify(round, *(_kept_by(path) for path in receipt or []))
    if problems:
        raise VeraxError("; ".join(problems) + "; do not pay by this ledger before it is explained")
    if agent is not None:
        if round is None:
            raise OptionError("agent= needs the round; name it first")
        paid, again = rounds.payment(round, agent)
        print(f"{shown(agent)}: paid {paid}, computed again {again}: {'equal' if paid == again else 'not equal'}")
        if model is not None:
            if inputs is None:
                raise OptionError("model= needs the inputs it was run on: inputs=FILE.npz")
            same = rounds.ask_again(round, agent, model, _read_inputs(rounds, round, inputs, jail), jail=jail)
            print(f"{shown(agent)}: the model says {'what' if same else 'something else than'} was recorded")
        return
    head = rounds.head()
    print(f"verified: {head.count} entries, head {head.hash}")


@app.command()
def grant(
    role: Annotated[str, typer.Argument(help="A PostgreSQL role, made if there is none.", metavar="ROLE")],
    db: _Db = "verax.db",
) -> None:
    """Let a role of the database read and hand in, and nothing else."""
    ledger = _rounds_in(db).ledger
    ledger.grant(role)
    ledger.close()
    _print_document({"role": role, "may": ["read", "hand in"]})


def _kept_by(path: Path) -> Head | Checkpoint:
    """What a receipt says of the journal: its checkpoint, or the head that submit printed."""
    from verax.ledger import Head
    from verax.log import Proof
    from verax.log.proof import FIRST_LINE
    from verax.tables import read_text

    text = read_text(path)
    if text.startswith(FIRST_LINE):
        return Proof.parsed(text, str(path)).checkpoint
    try:
        return decoded(Head, parsed(text, str(path))["head"])
    except (InputError, KeyError, TypeError, IndexError):
        raise InputError(f"{path}: not a receipt; give what verax round submit printed") from None
