"""The commands. Each reads, calls one function of the library, and shows the result.

Heavy imports stay inside the command that needs them. Here is what all share: where they hang, and how they refuse.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from verax.cli import compare, evals, key, money, plan, receipt, remote, reproduce, rounds, score, serve, witness
from verax.cli.options import REFUSED, WRONG_USE, as_options, option_names
from verax.errors import VeraxError


class _Refusals(TyperGroup):
    """Turns what a user can put right into one sentence and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        from verax.show.text import shown

        try:
            if sys.stdout is None:
                raise OSError("it is closed")
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(errors="backslashreplace")  # a name the terminal lacks is no failure
            result = super().invoke(ctx)
            sys.stdout.flush()
        except VeraxError as error:
            _refuse_in_one_sentence(as_options(str(error), option_names(self)))
        except REFUSED as error:
            raise WRONG_USE(shown(error.format_message()), getattr(error, "ctx", None)) from None
        except OSError as error:
            _abandon_output()
            reason = error.strerror or str(error)
            _refuse_in_one_sentence(f"standard output cannot be written ({reason}); write to a file with -o")
        except MemoryError:
            _refuse_in_one_sentence("not enough memory for these reports; score fewer tasks or agents at a time")
        return result


def _refuse_in_one_sentence(sentence: str) -> NoReturn:
    from verax.show.text import shown

    print(f"verax: {shown(' '.join(sentence.splitlines()))}", file=sys.stderr)
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
for command in (
    score.score, score.audit, compare.compare, plan.plan, money.pay, money.market, serve.serve, reproduce.reproduce,
    reproduce.demo,
):  # fmt: skip
    app.command()(command)
app.command("eval")(evals.evaluate)
app.add_typer(rounds.app, name="round")
app.add_typer(remote.app, name="remote")
app.add_typer(key.app, name="key")
app.add_typer(receipt.app, name="receipt")
app.add_typer(witness.app, name="witness")


def _print_version(asked: bool) -> None:
    if asked:
        from verax import __version__

        print(f"verax {__version__}")
        raise typer.Exit


@app.callback()
def _take_global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The `verax` command."""
    app()
