"""`verax pay`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verax.cli.options import OutputOptions, PayingOptions, grouped, print_notes, read_document

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
    groups = [] if clusters is None else payments.clusters_of(read_document(clusters))
    paid = payments.pay(
        scored, budget=budget, currency=paying.currency, scale=scale, scheme=paying.scheme, base=base, rate=rate,
        cap=cap, min_tasks=paying.min_tasks, clusters=groups,
    )  # fmt: skip

    def show(console: Console) -> None:
        console.print(table(payments_listing(paid)))
        print_notes(console, paid.notes)

    output.write(paid.to_json(), show, lambda: page("Payments", scores=scored, payments=paid))
