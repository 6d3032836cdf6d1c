"""`verax compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verax.cli.options import OutputOptions, PairedOptions, grouped, print_notes
from verax.cli.score import read_and_plan

if TYPE_CHECKING:
    from rich.console import Console


@grouped
def compare(
    reports: Annotated[
        Path, typer.Argument(help="A file or folder of reports, or - for standard input.", metavar="REPORTS")
    ],
    asked: PairedOptions,
    output: OutputOptions,
    a: Annotated[str | None, typer.Argument(help="One agent.", metavar="A")] = None,
    b: Annotated[str | None, typer.Argument(help="The other; without both, all pairs.", metavar="B")] = None,
    confidence: Annotated[float, typer.Option(help="Of every interval and verdict.")] = 0.95,
) -> None:
    """Is one agent better than another? Paired on the tasks both answered; without A and B, all pairs and the ranks."""
    from verax.compare import compared
    from verax.show.comparisons import comparison_listings, comparisons_page
    from verax.show.text import print_line, table

    output.spare(reports, *asked.files)
    ready = read_and_plan([reports], asked)
    found = compared(ready, a, b, confidence)

    def show(console: Console) -> None:
        print_line(console, found.mechanism.describe(), "italic")
        for listing in comparison_listings(found)[::-1]:
            console.print(table(listing))
        print_notes(console, found.warnings)

    output.write(found.to_json(), show, lambda: comparisons_page(found))
