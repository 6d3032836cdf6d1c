"""The commands. Each reads, calls one function of the library, and shows the result.

Heavy imports stay inside the command that needs them.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from verax import round_cli
from verax.errors import InputError, OptionError, VeraxError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from rich.console import Console
    from rich.table import Table

    from verax.kernels import Engine
    from verax.market import Market
    from verax.mechanisms import Options, Prepared, Scores
    from verax.page import Curve
    from verax.reports import Reports


class _Refusals(TyperGroup):
    """Turns what a user can put right into one sentence and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            if sys.stdout is None:
                raise OSError("it is closed")
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(errors="backslashreplace")  # a name the terminal lacks is no failure
            result = super().invoke(ctx)
            sys.stdout.flush()
        except VeraxError as error:
            _refuse(str(error))
        except OSError as error:
            _abandon_output()
            reason = error.strerror or str(error)
            _refuse(f"standard output cannot be written ({reason}); write to a file with -o")
        except MemoryError:
            _refuse("not enough memory for these reports; score fewer tasks or agents at a time")
        return result


def _refuse(sentence: str) -> NoReturn:
    print(f"verax: {' '.join(sentence.splitlines())}", file=sys.stderr)
    raise typer.Exit(2) from None


def _abandon_output() -> None:
    """Point standard output nowhere, so that nothing is written, or refused, a second time at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=_Refusals,
    name="verax",
    help="Score and pay the models that self-interested agents report, with labels or with none.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


app.add_typer(round_cli.app, name="round")


def _version(asked: bool) -> None:
    if asked:
        from verax import __version__

        print(f"verax {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


_Reports = Annotated[list[Path], typer.Argument(help="CSV, Parquet or NPZ files of reports.", metavar="REPORTS...")]
_Truth = Annotated[Path | None, typer.Option(help="True labels of some or all tasks: task,label, or NPY.")]
_Against = Annotated[
    str | None, typer.Option(help="truth, peers or hybrid; chosen by what the truth covers if not given.")
]
_Public = Annotated[
    Path | None, typer.Option(help="What everybody knows: task,label (strata), task,x1,x2,... (features), or NPY.")
]
_Rule = Annotated[
    str, typer.Option(help="zero-one, ca, ce, brier, pmi, accuracy, log, quadratic, or your own as module:function.")
]
_Sign = Annotated[str | None, typer.Option(help="With rule ca: identity, split, plugin, or a CSV file of a matrix.")]
_Over = Annotated[str | None, typer.Option(help="mean or median over peers, or one peer drawn from --seed.")]
_Seed = Annotated[str | None, typer.Option(help="With --over one: any text; the same text draws the same peers.")]
_Floor = Annotated[float | None, typer.Option(help="Smallest probability that ce, pmi and log count (default 1e-6).")]
_Classes = Annotated[str | None, typer.Option(help="All classes, comma-separated, if not all are in the file.")]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, nothing else there.")]
_Output = Annotated[Path | None, typer.Option("-o", help="Write the JSON document to this file.")]
_Html = Annotated[Path | None, typer.Option(help="Write a self-contained page to this file.")]
_Backend = Annotated[str, typer.Option(help="What counts: auto, numpy, numba or torch. It never changes a score.")]
_Threads = Annotated[int | None, typer.Option(help="How many threads count; every core if not given.", metavar="N")]
_LARGE = 2**30  # bytes of reports beyond which they are read shard by shard


@app.command()
def score(
    reports: _Reports,
    truth: _Truth = None,
    against: _Against = None,
    public: _Public = None,
    rule: _Rule = "zero-one",
    sign: _Sign = None,
    over: _Over = None,
    seed: _Seed = None,
    floor: _Floor = None,
    classes: _Classes = None,
    as_json: _Json = False,
    html: _Html = None,
    output: _Output = None,
    workers: Annotated[
        int | None, typer.Option(help="Read the reports shard by shard, in so many processes.", metavar="N")
    ] = None,
    dask: Annotated[
        str | None, typer.Option(help="Read the reports shard by shard, on this Dask cluster.", metavar="ADDRESS")
    ] = None,
    backend: _Backend = "auto",
    threads: _Threads = None,
) -> None:
    """Score every agent's reports, against truth or against the other agents' reports."""
    from verax import mechanisms
    from verax.kernels import engine
    from verax.rules import load

    counted = engine(backend, threads)

    if workers is not None or dask is not None or _in_shards(reports, rule, over, floor, public, html):
        if html is not None:
            raise OptionError("--html needs the reports whole, and these are read shard by shard; leave it out")
        if public is not None:
            raise OptionError("a public signal cannot be taken out shard by shard; score the files whole")
        matrix = _sign_of_classes(sign, classes)
        options = mechanisms.Options(load(rule), against, over, matrix, floor, seed, engine=counted)
        found = _score_shards(reports, truth, options, classes, workers, dask)
        _show(found.to_json(), as_json, output, lambda console: _print_scores(console, found))
        return
    ready = _prepare(reports, truth, against, public, rule, sign, over, seed, floor, classes, counted)
    scores = mechanisms.scored(ready)
    if html is not None:
        from verax.render import report

        _write(html, report("Scores", ready, scores))
    _show(scores.to_json(), as_json, output, lambda console: _print_scores(console, scores))


def _in_shards(
    reports: list[Path], rule: str, over: str | None, floor: float | None, public: Path | None, html: Path | None
) -> bool:
    """Whether a pattern stands for shards, or files are so large that they had better be read as such."""
    from verax.tables import is_pattern

    if any(is_pattern(str(path)) for path in reports):
        return True
    if (
        sum(os.path.getsize(path) for path in reports if os.path.isfile(path)) <= _LARGE
        or public is not None
        or html is not None
    ):
        return False
    from verax.mechanisms import Options
    from verax.rules import load
    from verax.tally import refuse_unless_additive

    try:
        refuse_unless_additive(Options(load(rule), over=over, floor=floor))
    except VeraxError:
        return False
    return True


def _sign_of_classes(sign: str | None, classes: str | None) -> Any:
    """The sign of shards, whose classes are not known before all are read."""
    from verax import tables
    from verax.mechanisms import SIGNS

    if sign is None or sign in SIGNS or not os.path.exists(sign):
        return sign
    if classes is None:
        raise OptionError("a sign matrix over shards needs all classes beforehand; name them with --classes")
    return tables.read_matrix(sign, _listed(classes))


def _score_shards(
    reports: list[Path],
    truth: Path | None,
    options: Options,
    classes: str | None,
    workers: int | None,
    dask: str | None,
) -> Scores:
    """Scores of reports that are read shard by shard, with a bar on standard error while a person waits."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from verax import executors, tally
    from verax.tables import find, truth_of

    if workers is not None and dask is not None:
        raise OptionError("--workers and --dask say two places to read shards; give one")
    tally.refuse_unless_additive(options)
    # a cluster's workers are elsewhere, where a path means something only from its root
    shards = find(*([path.absolute() for path in reports] if dask else reports), classes=_given_classes(classes))
    known = None if truth is None else truth_of(truth)
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with ExitStack() as stack:
        executor: Executor | None = None
        if dask is not None:
            executor = stack.enter_context(executors.cluster(dask))
        elif workers != 1 and workers is not None:
            executor = stack.enter_context(executors.Processes(workers))
        bar = stack.enter_context(Progress(*columns, console=console, transient=True, disable=not console.is_terminal))
        task = bar.add_task(f"reading {len(shards)} shards, twice", total=None)
        return tally.score_shards(
            shards, options, known, executor=executor,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip


def _given_classes(classes: str | None) -> list[str] | None:
    return None if classes is None else _listed(classes)


@app.command()
def audit(
    reports: _Reports,
    truth: _Truth = None,
    against: _Against = None,
    public: _Public = None,
    rule: _Rule = "zero-one",
    sign: _Sign = None,
    over: _Over = None,
    seed: _Seed = None,
    floor: _Floor = None,
    classes: _Classes = None,
    confidence: Annotated[float, typer.Option(help="Of every interval and verdict.")] = 0.95,
    colluders: Annotated[
        float, typer.Option(help="The fraction of colluding references that ROBUST asks about.")
    ] = 0.3,
    wanted: Annotated[float, typer.Option(help="The standard error that ENOUGH asks for.")] = 0.01,
    as_json: _Json = False,
    html: _Html = None,
    output: _Output = None,
    backend: _Backend = "auto",
    threads: _Threads = None,
) -> None:
    """Can these scores be trusted? Certificates, each with its reason and its witness."""
    from verax import render
    from verax.audit import examine, to_json
    from verax.kernels import engine

    counted = engine(backend, threads)
    ready = _prepare(reports, truth, against, public, rule, sign, over, seed, floor, classes, counted)
    scores, found = examine(ready, confidence, colluders, wanted)
    if html is not None:
        _write(html, render.report("Audit", ready, scores, found))

    def show(console: Console) -> None:
        _print_scores(console, scores)
        console.print(render.certificates_table(found))

    _show(to_json(found), as_json, output, show)


@app.command()
def pay(
    scores: Annotated[Path, typer.Argument(help="What verax score wrote with -o or --json.", metavar="SCORES.json")],
    budget: Annotated[str, typer.Option(help="In major units, such as 1000.00.")],
    currency: Annotated[str, typer.Option(help="Its code.")] = "EUR",
    scale: Annotated[int | None, typer.Option(help="Digits of the minor unit, if not the currency's own.")] = None,
    scheme: Annotated[str, typer.Option(help="clipped, affine or proportional.")] = "clipped",
    base: Annotated[str | None, typer.Option(help="With affine: what a score of 0 is paid, as a share.")] = None,
    rate: Annotated[str | None, typer.Option(help="With affine: what the best score adds, as a share.")] = None,
    cap: Annotated[str | None, typer.Option(help="The most one participant is paid, in major units.")] = None,
    min_tasks: Annotated[int, typer.Option(help="Fewer tasks than this are not paid.")] = 30,
    clusters: Annotated[Path | None, typer.Option(help="An audit's JSON: groups of copies are paid once.")] = None,
    as_json: _Json = False,
    html: _Html = None,
    output: _Output = None,
) -> None:
    """Turn scores into payments, in whole cents, never above the budget."""
    from verax import payments, render
    from verax.mechanisms import Scores
    from verax.page import page

    scored = Scores.from_json(_document(scores))
    groups = [] if clusters is None else payments.clusters_of(_document(clusters))
    paid = payments.pay(
        scored, budget=budget, currency=currency, scale=scale, scheme=scheme, base=base, rate=rate, cap=cap,
        min_tasks=min_tasks, clusters=groups,
    )  # fmt: skip
    if html is not None:
        _write(html, page("Payments", scores=scored, payments=paid))

    def show(console: Console) -> None:
        console.print(render.payments_table(paid))
        _print_notes(console, paid.notes)

    _show(paid.to_json(), as_json, output, show)


@app.command()
def market(
    submissions: Annotated[
        Path, typer.Argument(help="CSV or Parquet step,task,agent,label, or NPZ, a row a step.", metavar="SUBMISSIONS")
    ],
    truth: _Truth = None,
    survey: Annotated[
        Path | None, typer.Option(help="Reports that close it without truth: one agent's, or one drawn from --seed.")
    ] = None,
    seed: Annotated[str | None, typer.Option(help="Hexadecimal digits; the same ones draw the same survey.")] = None,
    initial: Annotated[
        Path | None, typer.Option(help="The hypothesis the path begins at: task,label or one agent's reports.")
    ] = None,
    rule: Annotated[
        str, typer.Option(help="zero-one, ca, ce, brier, pmi, or with truth accuracy, log, quadratic.")
    ] = "zero-one",
    sign: Annotated[str | None, typer.Option(help="With rule ca: identity, split, or a CSV file of a matrix.")] = None,
    floor: _Floor = None,
    scale: Annotated[float, typer.Option(help="What a step earns for one unit of score.")] = 1.0,
    keep_both: Annotated[
        bool, typer.Option("--keep-both", help="Let the survey of an agent with a market position be drawn too.")
    ] = False,
    classes: _Classes = None,
    as_json: _Json = False,
    html: _Html = None,
    output: _Output = None,
) -> None:
    """Pay submissions in order, each for what it adds to the one before; closed by truth or by a survey."""
    from verax import market as markets
    from verax import tables

    names = None if classes is None else _listed(classes)
    loaded, owners = _load_submissions(submissions, truth, names)
    closed = markets.market(
        markets.Submissions(loaded, owners),
        truth=None if truth is None else loaded.truth,
        survey=None if survey is None else tables.read(survey, classes=names),
        seed=seed,
        initial=None if initial is None else tables.read_prediction(initial, loaded.classes),
        rule=rule,
        sign=_sign(sign, loaded),
        floor=floor,
        scale=scale,
        keep_both=keep_both,
    )
    if html is not None:
        from verax.page import page

        _write(html, page("Market", curves=_market_curves(closed)))
    _show(closed.to_json(), as_json, output, lambda console: _print_market(console, closed))


def _load_submissions(path: Path, truth: Path | None, classes: list[str] | None) -> tuple[Reports, tuple[str, ...]]:
    from verax import tables

    loaded, owners = tables.read_submissions(path, classes=classes)
    if truth is None:
        return loaded, owners
    if truth.suffix.lower() == ".npy" and path.suffix.lower() != ".npz":
        raise OptionError(f"{truth}: an NPY file goes in the task order of an NPZ; beside CSV give task,label")
    return tables.read_truth(truth, loaded), owners


def _print_market(console: Console, closed: Market) -> None:
    """Every step, every agent's total, and what was at stake."""
    steps = [(str(p.step), p.agent, f"{p.level:.4f}", f"{p.score:+.4f}") for p in closed.payments]
    by = "truth" if closed.survey is None else f"the survey of {closed.survey.drawn}"
    title = f"{closed.mechanism.rule}, closed by {by}, level {closed.initial:.4f} to {closed.final:.4f}"
    console.print(title, style="italic", markup=False)
    console.print(_columns(("step", "agent", "level", "score"), steps))
    totals = [(agent, f"{total:+.4f}") for agent, total in closed.totals().items()]
    console.print(_columns(("agent", "total"), totals))
    if closed.survey is not None:
        scores = [(s.agent, "none" if s.score is None else f"{s.score:.4f}") for s in closed.survey.scores]
        console.print(_columns(("survey", "score"), scores))
    console.print(f"The house can lose {closed.worst_case_loss:.4g} at most, one step {closed.stake:.4g}: its stake.")
    _print_notes(console, _market_notes(closed))


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in head:
        table.add_column(name, justify="left" if name in ("agent", "survey") else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _market_notes(closed: Market) -> list[str]:
    notes = []
    if closed.mechanism.rule in ("log", "quadratic") and closed.initial == 0:
        notes.append(f"rule {closed.mechanism.rule} is at most 0, where this began: nobody can gain; give --initial")
    if (s := closed.survey) is not None:
        if s.seed is not None:
            notes.append(f"{s.drawn} was drawn from {s.agents - len(s.excluded)} by the seed {s.seed}")
        if s.excluded:
            notes.append(f"not drawn from, for they hold market positions: {', '.join(s.excluded)}")
        if s.bound is not None:
            notes.append(f"who is in both gains by no report that is {s.bound:.4g} less accurate (Theorem 10)")
    return notes


def _market_curves(closed: Market) -> list[Curve]:
    """The price path, and how what each agent earned adds up; as many agents as lines can be told apart."""
    from itertools import accumulate

    from verax.page import Curve, Line

    steps, levels = ([getattr(p, name) for p in closed.payments] for name in ("step", "level"))
    start = steps[0] - 1
    path = Line("level", [start, *steps], [closed.initial, *levels])
    totals = closed.totals()
    most = sorted(totals, key=lambda agent: -abs(totals[agent]))[:6]
    earned = {a: accumulate((p.score if p.agent == a else 0.0 for p in closed.payments), initial=0.0) for a in most}
    told = "; ".join(f"{agent} {total:+.4f}" for agent, total in list(totals.items())[:12])
    return [
        Curve("Price path", "step", "level", (path,),
              f"From {closed.initial:.4f} to {closed.final:.4f}; the house can lose {closed.worst_case_loss:.4g}."),
        Curve("What each agent earned", "step", "total score",
              tuple(Line(agent, [start, *steps], list(sums)) for agent, sums in earned.items()),
              f"In all: {told}{f' and {len(totals) - 12} more' if len(totals) > 12 else ''}."),
    ]  # fmt: skip


@app.command()
def reproduce(
    figure: Annotated[list[int] | None, typer.Option(help="1, 2 or 3, repeated for more; all if not given.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="The folder of mnist and cifar-10-batches-bin, for what needs true labels.")
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Train the agents from scratch instead; fetches data that is not there.")
    ] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="With --train: 2 epochs on 500 images, a smoke test.")] = False,
    seed: Annotated[int, typer.Option(help="Of the agents and of what is drawn; 0, 1 and 2 are recorded.")] = 0,
    runs: Annotated[int, typer.Option(help="How often each point is drawn.")] = 5,
    reference_misreports: Annotated[
        bool, typer.Option("--reference-misreports", help="Let the reference agent misreport at the same rate.")
    ] = False,
    mixture: Annotated[str, typer.Option(help="What the attack mixes: probabilities or logits.")] = "probabilities",
    centre: Annotated[str, typer.Option(help="Of the drawn runs: mean or median.")] = "mean",
    out: Annotated[Path, typer.Option(help="The folder for the figures and their numbers.")] = Path("reproduced"),
) -> None:
    """Draw the paper's figures again, from recorded predictions of its agents or from agents trained anew."""
    from verax.lab import experiments, figures

    chosen = sorted(set(figure or experiments.FIGURES))
    options = experiments.Options(seed, runs, reference_misreports, mixture, centre)
    experiments.check(chosen, train, tiny)
    figures.require()
    data = experiments.data_of(chosen)
    _make_folder(out)
    console = _console()
    if train:
        folder = out / "data" if data_dir is None else data_dir
        predictions, labels = experiments.trained(
            data, folder, out, seed=seed, tiny=tiny, progress=lambda line: console.print(line, markup=False)
        )
    else:
        predictions, labels = experiments.load(seed), experiments.read_labels(data, data_dir)
    found = {n: experiments.curves(n, predictions, labels, options) for n in chosen}
    every = [curve for curves in found.values() for curve in curves]
    for curves in found.values():
        figures.write(curves, out)
    _write(out / "curves.csv", experiments.to_csv(every))
    _write(out / "curves.json", json.dumps(experiments.to_json(every, options), indent=1) + "\n")
    rows = [
        (f"{c.figure}{c.panel}", c.name, f"{c.exact[0]:z.4f}", f"{c.exact[-1]:z.4f}", "yes" if c.decreasing else "no")
        for c in every
    ]
    console.print(_columns(("figure", "agent", "at 0 %", "at 50 %", "falls"), rows))
    _print_notes(console, experiments.left_out(chosen, labels))
    console.print(f"Figures and numbers are in {out}.", markup=False)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be made a folder ({error.strerror}); give another with --out") from None


@app.command()
def demo(
    html: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("verax-demo.html"),
) -> None:
    """The whole story on bundled data: real classifiers and cheats, scored, audited and paid, with a page."""
    from verax import demo as story

    story.run(_console(), html)


def _prepare(
    reports: list[Path],
    truth: Path | None,
    against: str | None,
    public: Path | None,
    rule: str,
    sign: str | None,
    over: str | None,
    seed: str | None,
    floor: float | None,
    classes: str | None,
    counted: Engine,
) -> Prepared:
    from verax.mechanisms import Options, prepare
    from verax.rules import load

    loaded = _load(reports, truth, public, classes)
    options = Options(load(rule), against, over, _sign(sign, loaded), floor, seed, engine=counted)
    return prepare(loaded, None if truth is None else loaded.truth, None, options)


def _load(reports: list[Path], truth: Path | None, public: Path | None, classes: str | None) -> Reports:
    from verax import tables
    from verax.tables import is_pattern

    for path in reports:
        if is_pattern(str(path)):
            raise OptionError(f"{path}: only verax score takes a pattern, without --html; name the files themselves")
    loaded = tables.read(*reports, classes=_given_classes(classes))
    for extra in (truth, public):
        if extra is not None and extra.suffix.lower() == ".npy" and any(r.suffix.lower() != ".npz" for r in reports):
            raise OptionError(
                f"{extra}: an NPY file goes in the task order of an NPZ; beside CSV or Parquet give task,label"
            )
    if truth is not None:
        loaded = tables.read_truth(truth, loaded)
    loaded.scorable(str(reports[0]) if len(reports) == 1 else "these files")
    return loaded if public is None else tables.read_public(public, loaded)


def _listed(classes: str) -> list[str]:
    """Class names, comma-separated; a name with a comma in quotes."""
    try:
        return [name.strip() for row in csv.reader([classes]) for name in row]
    except csv.Error as error:
        raise OptionError(
            f"--classes cannot be read ({error}); separate names by commas, quote one that has a comma"
        ) from None


def _sign(sign: str | None, reports: Reports) -> Any:
    from verax import tables
    from verax.mechanisms import SIGNS

    if sign is None or sign in SIGNS:
        return sign
    if not Path(sign).exists():
        raise OptionError(f"sign is {sign!r}, neither one of {', '.join(SIGNS)} nor a file; give one of them")
    return tables.read_matrix(sign, reports.classes)


def _console() -> Console:
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError("the pipe was closed")

    return Piped(highlight=False)


def _document(path: Path) -> Any:
    """A JSON file, or the sentence that says why not."""
    from verax.tables import read_text

    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); make it again with -o") from None


def _write(path: Path, text: str) -> None:
    from verax.tables import write_atomically

    write_atomically(path, lambda file: file.write(text.encode()))


def _show(document: dict[str, Any], as_json: bool, output: Path | None, show: Callable[[Console], None]) -> None:
    """One result, three ways: JSON on standard output, JSON in a file, or a table for people."""
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    if output is not None:
        _write(output, text)
    if as_json:
        sys.stdout.write(text)
    else:
        show(_console())


def _print_scores(console: Console, scores: Scores) -> None:
    from verax.render import scores_table

    console.print(scores_table(scores))
    _print_notes(console, scores.warnings)


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(f"note: {note}", style="yellow", markup=False)


def main() -> None:
    """The `verax` command."""
    app()
