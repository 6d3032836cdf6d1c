"""`verax score` and `verax audit`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verax.cli.options import (
    OutputOptions,
    PairedOptions,
    QuestionOptions,
    ReportFiles,
    grouped,
    print_notes,
    read_document,
    refuse_array_beside_tables,
)
from verax.errors import OptionError, VeraxError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from rich.console import Console

    from verax.audit import Certificate
    from verax.reports import Reports
    from verax.score import Prepared, Scores

_LARGE = 2**30  # bytes of reports beyond which they are read shard by shard


@grouped
def score(
    reports: ReportFiles,
    asked: QuestionOptions,
    output: OutputOptions,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="The ranks that the paired differences leave open, which hold together.")
    ] = False,
    copies: Annotated[
        str | None,
        typer.Option(help="Score agents that hand in one report as one: apart to find them, or an audit's JSON."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Read the reports shard by shard, in so many processes.", metavar="N")
    ] = None,
    dask: Annotated[
        str | None, typer.Option(help="Read the reports shard by shard, on this Dask cluster.", metavar="ADDRESS")
    ] = None,
) -> None:
    """Score every agent's reports, against truth or against the other agents' reports."""
    from verax.score import scored

    output.spare(*reports, *asked.files)
    if workers is not None or dask is not None or _better_in_shards(reports, asked, output):
        if output.html is not None:
            raise OptionError("html= needs the reports whole, and these are read shard by shard; leave it out")
        for name, given in (("ranks", ranks), ("copies", copies is not None)):
            if given:
                raise OptionError(f"{name}= needs the reports whole, and these are read shard by shard; leave it out")
        if asked.public is not None:
            raise OptionError("a public signal cannot be taken out shard by shard; score the files whole")
        found = _score_shards(reports, asked, workers, dask)
        output.write(found.to_json(), lambda console: _print_scores(console, found))
        return
    ready = read_and_plan(reports, asked, by_entries=not ranks and output.html is None)
    if copies is not None:
        ready = _with_copies(ready, copies)
    scores = scored(ready)
    if ranks:
        from verax.compare import compared

        scores = replace(scores, ranks=compared(ready.apart if ready.copies else ready).ranks)

    def show(console: Console) -> None:
        from verax.advice import advice

        _print_scores(console, scores)
        print_notes(console, advice(ready, scores))

    output.write(scores.to_json(), show, lambda: _page_of("Scores", ready, scores))


@grouped
def audit(
    reports: ReportFiles,
    asked: QuestionOptions,
    output: OutputOptions,
    confidence: Annotated[float, typer.Option(help="Of every interval and verdict.")] = 0.95,
    colluders: Annotated[
        float, typer.Option(help="The fraction of colluding references that ROBUST asks about.")
    ] = 0.3,
    wanted: Annotated[float, typer.Option(help="The standard error that ENOUGH asks for.")] = 0.01,
) -> None:
    """Can these scores be trusted? Certificates, each with its reason and its witness."""
    from verax.audit import examine
    from verax.show.text import certificates_table, counting_up

    output.spare(*reports, *asked.files)
    ready = read_and_plan(reports, asked)
    with counting_up(f"auditing {len(ready.reports.agents)} agents"):
        scores, found = examine(ready, confidence, colluders, wanted)

    def show(console: Console) -> None:
        _print_scores(console, scores)
        console.print(certificates_table(found))

    output.write(found.to_json(), show, lambda: _page_of("Audit", ready, scores, found))


def _page_of(title: str, ready: Prepared, scores: Scores, found: Sequence[Certificate] = ()) -> str:
    from verax.show.report import report

    return report(title, ready, scores, found)


def _print_scores(console: Console, scores: Scores) -> None:
    from verax.show.text import scores_listing, table

    console.print(table(scores_listing(scores)))
    print_notes(console, scores.warnings)


def _with_copies(ready: Prepared, copies: str) -> Prepared:
    """The same with the groups of copies that are found, or that an audit's file names."""
    from verax.groups import APART, groups_among

    return ready.with_copies(groups_among(ready.reports, copies if copies == APART else read_document(Path(copies))))


def read_and_plan(reports: list[Path], asked: PairedOptions, *, by_entries: bool = False) -> Prepared:
    """The files read, and the mechanism planned on them; `by_entries` as in `Mechanism.plan`."""
    from verax.score import prepare

    loaded = _read_reports(reports, asked)
    wanted = asked.truth is not None or asked.truth_col is not None
    truth, mechanism = loaded.truth if wanted else None, asked.mechanism(loaded.classes)
    return prepare(loaded, truth, None, mechanism, asked.engine, by_entries=by_entries)


def _read_reports(reports: list[Path], asked: PairedOptions) -> Reports:
    from verax import tables
    from verax.tables import is_pattern

    for path in reports:
        if is_pattern(str(path)):
            raise OptionError(f"{path}: only verax score takes a pattern, without --html; name the files themselves")
    loaded = tables.read(*reports, **asked.given())
    for extra in (asked.truth, asked.public):
        refuse_array_beside_tables(extra, *reports)
    if asked.truth is not None:
        loaded = tables.read_truth(asked.truth, loaded, **asked.given_beside())
    loaded.scorable(str(reports[0]) if len(reports) == 1 else "these files")
    return loaded if asked.public is None else tables.read_public(asked.public, loaded, **asked.given_beside())


def _better_in_shards(reports: list[Path], asked: QuestionOptions, output: OutputOptions) -> bool:
    """Whether a pattern stands for shards, or files are so large that they had better be read as such."""
    from verax.plan import Mechanism
    from verax.rules import load
    from verax.tables import is_pattern

    if any(is_pattern(str(path)) for path in reports):
        return True
    large = sum(os.path.getsize(path) for path in reports if os.path.isfile(path)) > _LARGE
    if not large or asked.public is not None or output.html is not None:
        return False
    from verax.tally import Tally

    try:
        Tally(Mechanism.of(load(asked.rule), over=asked.over, floor=asked.floor))
    except VeraxError:
        return False
    return True


def _score_shards(reports: list[Path], asked: QuestionOptions, workers: int | None, dask: str | None) -> Scores:
    """Scores of reports that are read shard by shard, with a bar on standard error while a person waits."""
    from verax import executors, tally
    from verax.show.text import counting_up
    from verax.tables import find, truth_of

    if workers is not None and dask is not None:
        raise OptionError("workers= and dask= say two places to read shards; give one")
    mechanism = asked.mechanism(asked.listed_classes)
    labels = None if asked.truth is None else truth_of(asked.truth, **asked.given_beside())
    tally.Tally(mechanism, labels)  # which refuses what is no sum over tasks, before any report is read
    # a cluster's workers are elsewhere, where a path means something only from its root
    shards = find(*([path.absolute() for path in reports] if dask else reports), **asked.given())
    with ExitStack() as stack:
        executor: Executor | None = None
        if dask is not None:
            executor = stack.enter_context(executors.cluster(dask))
        elif workers != 1 and workers is not None:
            executor = stack.enter_context(executors.Processes(workers))
        progress = stack.enter_context(counting_up(f"reading {len(shards)} shards, twice"))
        return tally.score_shards(shards, mechanism, labels, engine=asked.engine, executor=executor, progress=progress)
