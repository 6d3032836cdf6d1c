"""`verax plan`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from verax.cli.options import (
    OutputOptions,
    ReportFiles,
    SpotCheckOptions,
    grouped,
    print_notes,
    read_document,
    refuse_array_beside_tables,
    refuse_overwriting,
    write_empty_labels,
)
from verax.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from verax.show.text import Listing


@grouped
def plan(
    reports: ReportFiles,
    asked: SpotCheckOptions,
    output: OutputOptions,
    confidence: Annotated[float, typer.Option(help="Of every interval and verdict.")] = 0.95,
) -> None:
    """Which tasks to label, and what that buys; with their labels in --truth, everybody's accuracy and what is open."""
    from verax import tables
    from verax.show import spotchecks as shown
    from verax.spotcheck import SpotCheck, estimate_accuracies, plan_labels

    output.spare(*reports, asked.truth, asked.since)
    refuse_overwriting(asked.csv, *reports, asked.truth, asked.since)
    refuse_array_beside_tables(asked.truth, *reports)
    held = tables.read(*reports, **asked.given())
    before = None if asked.since is None else SpotCheck.from_json(read_document(asked.since))
    known = held if asked.truth is None else tables.read_truth(asked.truth, held, **asked.given_beside())
    truth = None if asked.truth is None else known.truth
    if asked.label is None and asked.wanted is None:
        if truth is None:
            raise OptionError("nothing to plan or to estimate; give label=, wanted= or truth=")
        asked.refuse_planning()
        found = estimate_accuracies(known, truth, before, confidence=confidence)
        output.write(
            found.to_json(),
            lambda out: _show(out, shown.accuracies_listings(found), shown.accuracies_words(found), found.warnings),
            lambda: shown.accuracies_page(found),
        )
        return
    made = plan_labels(known, asked.label, wanted=asked.wanted, truth=truth, **asked.drawing(before))
    if asked.csv is not None:
        write_empty_labels(asked.csv, [a.task for a in made.ask])
    output.write(
        made.to_json(),
        lambda out: _show(out, shown.plan_listings(made), shown.plan_words(made), made.warnings),
        lambda: shown.plan_page(made),
    )


def _show(console: Console, listings: Iterable[Listing], words: Iterable[str], warnings: Sequence[str]) -> None:
    from verax.show.text import print_line, table

    for listing in listings:
        console.print(table(listing))
    for line in words:
        print_line(console, line)
    print_notes(console, warnings)
