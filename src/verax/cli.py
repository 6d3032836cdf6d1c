"""The commands. Each reads, calls one function of the library, and shows the result.

Heavy imports stay inside the command that needs them.
"""

from __future__ import annotations

import csv
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from verax.errors import OptionError, VeraxError

if TYPE_CHECKING:
    from rich.console import Console

    from verax.reports import Reports


class _Refusals(TyperGroup):
    """Turns what a user can put right into one sentence and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except VeraxError as error:
            print(f"verax: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            print(
                "verax: standard output was closed before everything was written; write to a file with -o",
                file=sys.stderr,
            )
            raise typer.Exit(2) from None
        except MemoryError:
            print("verax: not enough memory for these reports; score fewer tasks or agents at a time", file=sys.stderr)
            raise typer.Exit(2) from None
        return result


app = typer.Typer(
    cls=_Refusals,
    name="verax",
    help="Score and pay the models that self-interested agents report, with labels or with none.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


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


@app.command()
def score(
    reports: Annotated[list[Path], typer.Argument(help="CSV, Parquet or NPZ files of reports.", metavar="REPORTS...")],
    truth: Annotated[Path | None, typer.Option(help="True labels of some or all tasks: task,label, or NPY.")] = None,
    against: Annotated[
        str | None, typer.Option(help="truth, peers or hybrid; chosen by what the truth covers if not given.")
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(help="What everybody knows: task,label (strata) or task,x1,x2,... (features), or NPY."),
    ] = None,
    rule: Annotated[
        str,
        typer.Option(help="zero-one, ca, ce, brier, pmi, accuracy, log, quadratic, or your own as module:function."),
    ] = "zero-one",
    sign: Annotated[
        str | None, typer.Option(help="With rule ca: identity, split, plugin, or a CSV file of a matrix.")
    ] = None,
    over: Annotated[str | None, typer.Option(help="mean or median over peers, or one peer drawn from --seed.")] = None,
    seed: Annotated[
        str | None, typer.Option(help="With --over one: any text; the same text draws the same peers.")
    ] = None,
    floor: Annotated[
        float | None, typer.Option(help="Smallest probability that ce, pmi and log count with (default 1e-6).")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="All classes, comma-separated, if not all are in the file.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on standard output, nothing else there.")
    ] = False,
    output: Annotated[Path | None, typer.Option("-o", help="Write the JSON document to this file.")] = None,
) -> None:
    """Score every agent's reports, against truth or against the other agents' reports."""
    from verax import mechanisms, render

    loaded = _load(reports, truth, public, classes)
    scores = mechanisms.score(
        loaded,
        truth=None if truth is None else loaded.truth,
        rule=_rule(rule),
        against=against,
        over=over,
        sign=_sign(sign, loaded),
        floor=floor,
        seed=seed,
    )
    _show(scores.to_json(), as_json, output, lambda console: console.print(render.scores_table(scores)))


@app.command()
def demo() -> None:
    """The whole story on bundled data: real classifiers and cheats, scored with and without labels."""
    from verax import demo as story

    story.run(_console())


def _load(reports: list[Path], truth: Path | None, public: Path | None, classes: str | None) -> Reports:
    from verax import files

    names = None if classes is None else [name.strip() for name in next(csv.reader([classes]))]
    loaded = files.read(*reports, classes=names)
    for extra in (truth, public):
        if extra is not None and extra.suffix.lower() == ".npy" and any(r.suffix.lower() != ".npz" for r in reports):
            raise OptionError(
                f"{extra}: an NPY file goes in the task order of an NPZ; beside CSV or Parquet give task,label"
            )
    if truth is not None:
        loaded = files.read_truth(truth, loaded)
    return loaded if public is None else files.read_public(public, loaded)


def _rule(name: str) -> str | Callable[..., Any]:
    """A rule's name as it is, or the user's own function of module:function."""
    if ":" not in name:
        return name
    module, function = name.rsplit(":", 1)
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"rule {name!r} cannot be loaded ({error}); give module:function, importable from here"
        ) from None
    if not callable(found):
        raise OptionError(f"rule {name!r} is not a function; give one that takes a Joint and returns a number")
    return found  # type: ignore[no-any-return]


def _sign(sign: str | None, reports: Reports) -> Any:
    from verax import files
    from verax.mechanisms import SIGNS

    if sign is None or sign in SIGNS:
        return sign
    if not Path(sign).exists():
        raise OptionError(f"sign is {sign!r}, neither one of {', '.join(SIGNS)} nor a file; give one of them")
    return files.read_matrix(sign, reports.classes)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def _show(document: dict[str, Any], as_json: bool, output: Path | None, show: Callable[[Console], None]) -> None:
    """One result, three ways: JSON on standard output, JSON in a file, or a table for people."""
    from verax.files import write_atomically

    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    if output is not None:
        write_atomically(output, lambda file: file.write(text.encode()))
    if as_json:
        sys.stdout.write(text)
        return
    console = _console()
    show(console)
    for warning in document.get("warnings", []):
        console.print(f"note: {warning}", style="yellow", markup=False)


def main() -> None:
    """The `verax` command."""
    app()
