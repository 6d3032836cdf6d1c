"""`verax reproduce` and `verax demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verax.cli.options import print_notes, write_text
from verax.errors import InputError


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
    from verax.reproduce import experiments, figures
    from verax.show.text import Listing, console, print_line, table
    from verax.wire import text_of

    chosen = sorted(set(figure or experiments.FIGURES))
    options = experiments.Options(seed, runs, reference_misreports, mixture, centre)
    experiments.check(chosen, train, tiny)
    figures.require()
    data = experiments.data_of(chosen)
    _make_folder(out)
    terminal = console()
    if train:
        folder = out / "data" if data_dir is None else data_dir
        predictions, labels = experiments.trained(
            data, folder, out, seed=seed, tiny=tiny, progress=lambda line: print_line(terminal, line)
        )
    else:
        predictions, labels = experiments.load(seed), experiments.read_labels(data, data_dir)
    found = {n: experiments.curves(n, predictions, labels, options) for n in chosen}
    every = [curve for curves in found.values() for curve in curves]
    for curves in found.values():
        figures.write(curves, out)
    write_text(out / "curves.csv", experiments.to_csv(every))
    write_text(out / "curves.json", text_of(experiments.to_json(every, options)))
    rows = tuple(
        (f"{c.figure}{c.panel}", c.name, f"{c.exact[0]:z.4f}", f"{c.exact[-1]:z.4f}", "yes" if c.decreasing else "no")
        for c in every
    )
    terminal.print(table(Listing(("figure", "agent", "at 0 %", "at 50 %", "falls"), rows)))
    print_notes(terminal, experiments.left_out(chosen, labels))
    print_line(terminal, f"Figures and numbers are in {out}.")


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be made a folder ({error.strerror}); give another with out=") from None


def demo(
    html: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("verax-demo.html"),
) -> None:
    """The whole story on bundled data: real classifiers and cheats, scored, audited and paid, with a page."""
    from verax import demo as story
    from verax.show.text import console

    story.run(console(), html)
