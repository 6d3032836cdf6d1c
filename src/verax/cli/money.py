"""`verax pay` and `verax market`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verax.cli.options import (
    OutputOptions,
    PayingOptions,
    ReadingOptions,
    ScoringOptions,
    grouped,
    print_notes,
    read_document,
    read_sign,
    refuse_array_beside_tables,
)

if TYPE_CHECKING:
    from rich.console import Console


@grouped
def pay(
    scores: Annotated[Path, typer.Argument(help="What verax score wrote with -o or --json.", metavar="SCORES.json")],
    budget: Annotated[str, typer.Option(help="In major units, such as 1000.00.")],
    paying: PayingOptions,
    output: OutputOptions,
    scale: Annotated[int | None, typer.Option(help="Digits of the minor unit, if not the currency's own.")] = None,
    base: Annotated[str | None, typer.Option(help="With affine: what a score of 0 is paid, as a share.")] = None,
    rate: Annotated[str | None, typer.Option(help="With affine: what the best score adds, as a share.")] = None,
    cap: Annotated[str | None, typer.Option(help="The most one participant is paid, in major units.")] = None,
    clusters: Annotated[Path | None, typer.Option(help="An audit's JSON: groups of copies are paid once.")] = None,
    rule: Annotated[
        str | None, typer.Option(help="Your own rule that made these scores, as module:function; it says its bounds.")
    ] = None,
) -> None:
    """Turn scores into payments, in whole cents, never above the budget."""
    from verax import payments
    from verax.errors import OptionError
    from verax.rules import load
    from verax.score import Scores
    from verax.show.page import page
    from verax.show.text import payments_listing, table

    output.spare(scores, clusters)
    scored = Scores.from_json(read_document(scores))
    if rule is not None and load(rule).name != scored.mechanism.rule:
        raise OptionError(
            f"{scores}: scored by rule {scored.mechanism.rule}, not {rule}; leave rule= out, or name that"
        )
    paid = payments.pay(
        scored, budget=budget, currency=paying.currency, scale=scale, scheme=paying.scheme, base=base, rate=rate,
        cap=cap, min_tasks=paying.min_tasks, full_marks=paying.full_marks,
        clusters=None if clusters is None else read_document(clusters),
    )  # fmt: skip

    def show(console: Console) -> None:
        console.print(table(payments_listing(paid)))
        print_notes(console, paid.notes)

    output.write(paid.to_json(), show, lambda: page("Payments", scores=scored, payments=paid))


@grouped
def market(
    submissions: Annotated[
        Path, typer.Argument(help="CSV or Parquet step,task,agent,label, or NPZ, a row a step.", metavar="SUBMISSIONS")
    ],
    scoring: ScoringOptions,
    reading: ReadingOptions,
    output: OutputOptions,
    truth: Annotated[Path | None, typer.Option(help="True labels that close it: task,label, or NPY.")] = None,
    survey: Annotated[
        Path | None, typer.Option(help="Reports that close it without truth: one agent's, or one drawn from --seed.")
    ] = None,
    seed: Annotated[str | None, typer.Option(help="Hexadecimal digits; the same ones draw the same survey.")] = None,
    initial: Annotated[
        Path | None, typer.Option(help="The hypothesis the path begins at: task,label or one agent's reports.")
    ] = None,
    scale: Annotated[float, typer.Option(help="What a step earns for one unit of score.")] = 1.0,
    keep_both: Annotated[
        bool, typer.Option("--keep-both", help="Let the survey of an agent with a market position be drawn too.")
    ] = False,
    hybrid: Annotated[
        bool, typer.Option("--hybrid", help="Close the tasks of --truth by it, and the others by the survey.")
    ] = False,
) -> None:
    """Pay submissions in order, each for what it adds to the one before; closed by truth or by a survey."""
    from verax import market as markets
    from verax import tables
    from verax.rules import load
    from verax.show import text

    output.spare(submissions, truth, survey, initial, scoring.sign)
    refuse_array_beside_tables(truth, submissions)
    loaded, owners = tables.read_submissions(submissions, **reading.given())
    loaded = loaded if truth is None else tables.read_truth(truth, loaded, **reading.given_beside())
    closed = markets.market(
        markets.Submissions(loaded, owners),
        truth=None if truth is None else loaded.truth,
        survey=None if survey is None else tables.read(survey, **reading.given()),
        seed=seed,
        initial=None if initial is None else tables.read_prediction(initial, loaded.classes, **reading.given_beside()),
        rule=load(scoring.rule).name,
        sign=read_sign(scoring.sign, loaded.classes),
        floor=scoring.floor,
        scale=scale,
        keep_both=keep_both,
        hybrid=hybrid,
    )

    def show(console: Console) -> None:
        for line in text.market_summary(closed).splitlines():
            text.print_line(console, line, "italic")
        for listing in text.market_listings(closed):
            console.print(text.table(listing))
        print_notes(console, text.market_notes(closed))

    def page() -> str:
        from verax.show.report import market_page

        return market_page(closed)

    output.write(closed.to_json(), show, page)
