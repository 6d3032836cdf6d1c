"""`verax eval`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verax.cli.options import OutputOptions, grouped, print_notes, refuse_overwriting, write_text

if TYPE_CHECKING:
    from rich.console import Console

_MANY = 16  # logs, from which processes share the reading


@grouped
def evaluate(
    logs: Annotated[list[Path], typer.Argument(help="Logs, or folders of logs with all below.", metavar="LOGS...")],
    output: OutputOptions,
    truth: Annotated[
        bool, typer.Option("--truth-from-logs/--no-truth", help="Whether the truth that logs hold is used.")
    ] = True,
    filter: Annotated[str | None, typer.Option(help="Of lm-evaluation-harness: which filter's answers.")] = None,
    scorer: Annotated[str | None, typer.Option(help="Of Inspect: which scorer's answers.")] = None,
    confidence: Annotated[float, typer.Option(help="Of every interval and verdict.")] = 0.95,
    csv: Annotated[Path | None, typer.Option(help="Write the standings to this file.")] = None,
    md: Annotated[Path | None, typer.Option(help="Write the tables as Markdown to this file.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say what was taken for what, and by what rules.")] = False,
) -> None:
    """A leaderboard from the logs people already have, with labels or with none."""
    from contextlib import ExitStack

    from verax.executors import Processes
    from verax.leaderboard import evaluate as evaluated
    from verax.show.boards import boards_csv, boards_listings, boards_markdown, boards_notes, boards_page
    from verax.show.text import counting_up, table

    output.spare(*logs)
    for target in (csv, md):
        refuse_overwriting(target, *logs)
    many = sum(len(files) for log in logs if log.is_dir() for _, _, files in os.walk(log)) >= _MANY
    with ExitStack() as stack:
        workers = min(os.cpu_count() or 1, 4)
        executor = stack.enter_context(Processes(workers)) if many and workers > 1 else None
        progress = stack.enter_context(counting_up("reading logs"))
        found = evaluated(
            logs[0], *logs[1:], truth=truth, filter=filter, scorer=scorer, confidence=confidence, executor=executor,
            progress=progress,
        )  # fmt: skip

    def show(console: Console) -> None:
        for listing in boards_listings(found):
            console.print(table(listing))
        print_notes(console, boards_notes(found))
        if explain:
            for line in found.explained:
                console.print(line, markup=False, highlight=False)

    for target, text in ((csv, boards_csv), (md, boards_markdown)):
        if target is not None:
            write_text(target, text(found))
    output.write(found.to_json(), show, lambda: boards_page(found))
