"""`verax score` and `verax audit`."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verax.cli.options import (
    EngineOptions,
    KnownOptions,
    MechanismOptions,
    OutputOptions,
    ReadingOptions,
    ReportFiles,
    grouped,
    read_sign,
    refuse_array_beside_tables,
)
from verax.errors import OptionError, VeraxError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from rich.console import Console

    from verax.mechanisms import Options, Prepared, Scores
    from verax.reports import Reports

_LARGE = 2**30  # bytes of reports beyond which they are read shard by shard


@grouped
def score(
    reports: ReportFiles,
    known: KnownOptions,
    asked: MechanismOptions,
    reading: ReadingOptions,
    output: OutputOptions,
    counting: EngineOptions,
    workers: Annotated[
        int | None, typer.Option(help="Read the reports shard by shard, in so many processes.", metavar="N")
    ] = None,
    dask: Annotated[
        str | None, typer.Option(help="Read the reports shard by shard, on this Dask cluster.", metavar="ADDRESS")
    ] = None,
) -> None:
    """Score every agent's reports, against truth or against the other agents' reports."""
    from verax import mechanisms

    output.spare(*reports, known.truth, known.public, asked.sign)
    if workers is not None or dask is not None or _better_in_shards(reports, asked, known, output):
        if output.html is not None:
            raise OptionError("html= needs the reports whole, and these are read shard by shard; leave it out")
        if known.public is not None:
            raise OptionError("a public signal cannot be taken out shard by shard; score the files whole")
        options = asked.chosen(counting.chosen(), read_sign(asked.sign, reading.listed_classes))
        found = _score_shards(reports, known.truth, options, reading, workers, dask)
        output.write(found.to_json(), lambda console: _print_scores(console, found))
        return
    ready = _prepare(reports, known, asked, reading, counting)
    scores = mechanisms.scored(ready)

    def page() -> str:
        from verax.show.report import report

        return report("Scores", ready, scores)

    output.write(scores.to_json(), lambda console: _print_scores(console, scores), page)


@grouped
def audit(
    reports: ReportFiles,
    known: KnownOptions,
    asked: MechanismOptions,
    reading: ReadingOptions,
    output: OutputOptions,
    counting: EngineOptions,
    confidence: Annotated[float, typer.Option(help="Of every interval and verdict.")] = 0.95,
    colluders: Annotated[
        float, typer.Option(help="The fraction of colluding references that ROBUST asks about.")
    ] = 0.3,
    wanted: Annotated[float, typer.Option(help="The standard error that ENOUGH asks for.")] = 0.01,
) -> None:
    """Can these scores be trusted? Certificates, each with its reason and its witness."""
    from verax.audit import examine, to_json
    from verax.show.text import certificates_table, waiting

    output.spare(*reports, known.truth, known.public, asked.sign)
    ready = _prepare(reports, known, asked, reading, counting)
    with waiting(f"auditing {len(ready.reports.agents)} agents"):
        scores, found = examine(ready, confidence, colluders, wanted)

    def page() -> str:
        from verax.show.report import report

        return report("Audit", ready, scores, found)

    def show(console: Console) -> None:
        _print_scores(console, scores)
        console.print(certificates_table(found))

    output.write(to_json(found), show, page)


def _print_scores(console: Console, scores: Scores) -> None:
    from verax.show.text import print_notes, scores_listing, table

    console.print(table(scores_listing(scores)))
    print_notes(console, scores.warnings)


def _prepare(
    reports: list[Path],
    known: KnownOptions,
    asked: MechanismOptions,
    reading: ReadingOptions,
    counting: EngineOptions,
) -> Prepared:
    """The files read, and the mechanism planned on them."""
    from verax.mechanisms import prepare

    engine = counting.chosen()
    loaded = _load(reports, known, reading)
    options = asked.chosen(engine, read_sign(asked.sign, loaded.classes))
    return prepare(loaded, None if known.truth is None else loaded.truth, None, options)


def _load(reports: list[Path], known: KnownOptions, reading: ReadingOptions) -> Reports:
    from verax import files
    from verax.shards import is_pattern

    for path in reports:
        if is_pattern(str(path)):
            raise OptionError(f"{path}: only verax score takes a pattern, without --html; name the files themselves")
    loaded = reading.read(*reports)
    for extra in (known.truth, known.public):
        refuse_array_beside_tables(extra, *reports)
    if known.truth is not None:
        loaded = files.read_truth(known.truth, loaded)
    loaded.scorable(str(reports[0]) if len(reports) == 1 else "these files")
    return loaded if known.public is None else files.read_public(known.public, loaded)


def _better_in_shards(reports: list[Path], asked: MechanismOptions, known: KnownOptions, output: OutputOptions) -> bool:
    """Whether a pattern stands for shards, or files are so large that they had better be read as such."""
    from verax.mechanisms import Options
    from verax.rules import load
    from verax.shards import is_pattern
    from verax.tally import refuse_unless_additive

    if any(is_pattern(str(path)) for path in reports):
        return True
    large = sum(os.path.getsize(path) for path in reports if os.path.isfile(path)) > _LARGE
    if not large or known.public is not None or output.html is not None:
        return False
    try:
        refuse_unless_additive(Options(load(asked.rule), over=asked.over, floor=asked.floor))
    except VeraxError:
        return False
    return True


def _score_shards(
    reports: list[Path],
    truth: Path | None,
    options: Options,
    reading: ReadingOptions,
    workers: int | None,
    dask: str | None,
) -> Scores:
    """Scores of reports that are read shard by shard, with a bar on standard error while a person waits."""
    from verax import executors, tally
    from verax.shards import find, read_truth
    from verax.show.text import counting_up

    if workers is not None and dask is not None:
        raise OptionError("workers= and dask= say two places to read shards; give one")
    tally.refuse_unless_additive(options)
    # a cluster's workers are elsewhere, where a path means something only from its root
    shards = find(*([path.absolute() for path in reports] if dask else reports), **reading.given())
    labels = None if truth is None else read_truth(truth)
    with ExitStack() as stack:
        executor: Executor | None = None
        if dask is not None:
            executor = stack.enter_context(executors.cluster(dask))
        elif workers != 1 and workers is not None:
            executor = stack.enter_context(executors.Processes(workers))
        progress = stack.enter_context(counting_up(f"reading {len(shards)} shards, twice"))
        return tally.score_shards(shards, options, labels, executor=executor, progress=progress)
