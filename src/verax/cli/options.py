"""The options that commands share, each declared once, in groups that a command takes as one argument."""
# ruff: noqa: RUF009 (a group's fields are declared by a call, and never changed)

from __future__ import annotations

import csv
import functools
import glob
import importlib
import operator
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from verax.errors import InputError, OptionError
from verax.rules import DEFAULT, RULES

# typer stands on click, or on a copy of it that it brings along: what it stands on, its own classes say
_CLICK: Any = importlib.import_module(typer.Context.__mro__[1].__module__.rpartition(".")[0] + ".globals")
WRONG_USE: Any = typer.BadParameter.__mro__[1]  # click's UsageError
REFUSED: Any = typer.BadParameter.__mro__[2]  # its ClickException

if TYPE_CHECKING:
    from rich.console import Console

    from verax.kernels import Engine
    from verax.plan import Mechanism
    from verax.spotcheck import SpotCheck


def _rules_that(asked: Callable[[Any], Any]) -> str:
    return ", ".join(name for name, rule in RULES.items() if asked(rule))


_RULE_HELP = (
    f"{_rules_that(lambda r: not r.truth_only)}; with truth {_rules_that(lambda r: r.truth_only)}; "
    "or your own as module:function."
)
_SIGN_HELP = f"With rule {_rules_that(lambda r: r.learns_sign)}: identity, split, plugin (no market), or a CSV file."
_FLOOR_HELP = f"Smallest probability that {_rules_that(lambda r: r.floor)} count (default 1e-6)."

ReportFiles = Annotated[
    list[Path], typer.Argument(help="Files or folders of reports, or - for standard input.", metavar="REPORTS...")
]


def _asked(help: str, default: Any = None, name: str | None = None, metavar: str | None = None) -> Any:
    """A field of a group that is an option of its commands."""
    names = () if name is None else (name,)
    return field(default=default, metadata={"option": typer.Option(*names, help=help, metavar=metavar)})


@dataclass(frozen=True)
class ScoringOptions:
    """What one hypothesis earns."""

    rule: str = _asked(_RULE_HELP, DEFAULT)
    sign: str | None = _asked(_SIGN_HELP)
    floor: float | None = _asked(_FLOOR_HELP)


@dataclass(frozen=True)
class AgainstOptions(ScoringOptions):
    """What an agent earns, beside whom."""

    against: str | None = _asked(
        "truth, peers, hybrid, or consensus (what all others together believe); chosen by the truth if not given."
    )


@dataclass(frozen=True)
class MechanismOptions(AgainstOptions):
    """What every agent earns, and how references are put together."""

    over: str | None = _asked(
        "mean or median over peers, skilled (each counted by its skill), or one drawn from --seed."
    )
    seed: str | None = _asked("With --over one: any text; the same text draws the same peers.")


@dataclass(frozen=True)
class KnownOptions:
    """What is known beside the reports."""

    truth: Path | None = _asked("True labels of some or all tasks: task,label, or NPY.")
    public: Path | None = _asked("What everybody knows: task,label (strata), task,x1,x2,... (features), or NPY.")


@dataclass(frozen=True)
class ReadingOptions:
    """How files of reports are read: the fields of `tables.Reading`."""

    classes: str | None = _asked("All classes, comma-separated, if not all are in the file.")
    task_col: str | None = _asked("The column of tasks.", metavar="NAME")
    agent_col: str | None = _asked("The column of agents, in a long file.", metavar="NAME")
    label_col: str | None = _asked("The column of labels, in a long file.", metavar="NAME")
    truth_col: str | None = _asked("The column of true labels.", metavar="NAME")
    drop: list[str] | None = _asked("Columns to leave out, comma-separated or repeated.", metavar="NAMES")
    logits: bool = _asked("Rows are logits, not probabilities.", False, "--logits")
    max_bytes: int | None = _asked("Of memory that one file may ask for.", metavar="N")
    max_ratio: int | None = _asked("Of a file's content to its size.", metavar="N")
    max_cells: int | None = _asked("Of agents times tasks (times classes).", metavar="N")
    max_columns: int | None = _asked("Of one file.", metavar="N")
    max_classes: int | None = _asked("Of different labels.", metavar="N")

    @property
    def listed_classes(self) -> list[str] | None:
        """The classes, if they were named."""
        return None if self.classes is None else listed(self.classes, "classes")

    def given(self) -> dict[str, Any]:
        """What was asked for, as `read` takes it; what was not is left to the reader's own defaults."""
        drop = tuple(name for text in self.drop or () for name in listed(text, "drop")) or None
        asked = vars(self) | {"classes": self.listed_classes, "drop": drop, "logits": self.logits or None}
        return {f.name: asked[f.name] for f in fields(ReadingOptions) if asked[f.name] is not None}

    def given_beside(self) -> dict[str, Any]:
        """The same for what is read beside reports, whose classes it takes."""
        return {name: value for name, value in self.given().items() if name != "classes"}


@dataclass(frozen=True)
class PairedOptions(ReadingOptions, KnownOptions, AgainstOptions):
    """All that is asked of reports that are scored beside one another."""

    backend: str = _asked("What counts: auto, numpy, numba or torch. It never changes a score.", "auto")
    threads: int | None = _asked("How many threads count; every core if not given.", metavar="N")

    def mechanism(self, classes: Iterable[str] | None) -> Mechanism:
        """The mechanism asked for, with the rule loaded and the sign read."""
        from verax.plan import Mechanism
        from verax.rules import load

        sign = read_sign(self.sign, classes)
        more = {name: getattr(self, name) for name in ("over", "seed") if hasattr(self, name)}
        return Mechanism.of(load(self.rule), against=self.against, sign=sign, floor=self.floor, **more)

    @property
    def engine(self) -> Engine:
        """How it is counted."""
        from verax.kernels import engine

        return engine(self.backend, self.threads)

    @property
    def files(self) -> tuple[str | Path | None, ...]:
        """What is read beside the reports."""
        return self.truth, self.public, self.sign


@dataclass(frozen=True)
class QuestionOptions(PairedOptions, MechanismOptions):
    """All that `verax score` and `verax audit` are asked alike."""


@dataclass(frozen=True)
class SpotCheckOptions(ReadingOptions):
    """Which tasks to label, and the labels there are."""

    label: int | None = _asked("How many tasks to label.", metavar="K")
    wanted: float | None = _asked("In place of a number: label until every expected standard error is this small.")
    about: str | None = _asked("order (default) or accuracy: what the labels are to tell.")
    seed: str | None = _asked("Any text; the same text draws the same tasks. A fresh one if not given.")
    truth: Path | None = _asked("The labels there are: task,label, or NPY; an empty label is none.")
    since: Path | None = _asked("The plan that asked for these labels, or that more labels are to go on from.", None,
                                "--from", "PLAN.json")  # fmt: skip
    csv: Path | None = _asked("Write the tasks to label to this file: task,label, the labels empty.")

    def drawing(self, before: SpotCheck | None) -> dict[str, Any]:
        """How tasks are drawn: as was asked, or as the plan before did, so that its tasks come first again."""
        if before is None:
            return {"about": self.about or "order", "seed": self.seed}
        if self.about not in (None, before.about) or self.seed not in (None, before.seed):
            raise OptionError("more labels are drawn as the plan before drew them; leave about= and seed= out")
        return {"about": before.about, "seed": before.seed}

    def refuse_planning(self) -> None:
        """Refuse what says how to draw where nothing is drawn."""
        for name in ("about", "seed", "csv"):
            if getattr(self, name) is not None:
                raise OptionError(
                    f"{name}= is for planning, and these labels are there; give label= too, or leave it out"
                )


@dataclass(frozen=True)
class PayingOptions:
    """How money is shared out, whoever asks."""

    currency: str = _asked("Its code.", "EUR")
    scheme: str = _asked("clipped, affine, proportional or marks.", "clipped")
    full_marks: str | None = _asked("Scheme marks: the score that earns a full share.", None)
    min_tasks: int = _asked("Fewer tasks than this are not paid.", 30)


@dataclass(frozen=True)
class OutputOptions:
    """One result, four ways: a table for people, JSON on standard output, JSON in a file, and a page."""

    as_json: bool = _asked("One JSON document on standard output, nothing else there.", False, "--json")
    output: Path | None = _asked("Write the JSON document to this file.", None, "-o")
    html: Path | None = _asked("Write a self-contained page to this file.")

    def spare(self, *inputs: str | Path | None) -> None:
        """Refuse, before anything is computed, to write over what is read."""
        for target in (self.output, self.html):
            if str(target) == "-":
                raise OptionError("- is no file to write to; --json writes the document to standard output")
            refuse_overwriting(target, *inputs)
        if self.output is not None and self.html is not None and _same_file(self.output, self.html):
            raise OptionError(f"{self.html}: named for the document and for the page; give two names")

    def write(self, document: Any, show: Callable[[Console], None], page: Callable[[], str] | None = None) -> None:
        """The result, wherever it was asked for."""
        from verax.show.text import console
        from verax.wire import text_of

        text = text_of(document)
        if self.html is not None and page is not None:
            write_text(self.html, page())
        if self.output is not None:
            write_text(self.output, text)
        if self.as_json:
            sys.stdout.write(text)
        else:
            show(console())


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose arguments that are groups of options become these options, for typer to read."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _options_of(groups[parameter.name])
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        whole = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        command(**given, **whole)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options_of(group: Any) -> Iterator[Parameter]:
    hints = get_type_hints(group)
    for one in fields(group):
        kind = operator.getitem(Annotated, (hints[one.name], one.metadata["option"]))
        yield Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=kind)


def as_options(sentence: str, options: Mapping[str, str]) -> str:
    """The library's `over=` as the command line's `--over`; what stands in quotes, or is no option, stays.

    >>> as_options("leave over= out, or give over='one', not 'over='", {"over": "--over"})
    "leave --over out, or give --over one, not 'over='"
    """

    def spelled(found: re.Match[str]) -> str:
        if found["name"] not in options:
            return found[0]
        return options[found["name"]] + (f" {shlex.quote(found['value'])}" if found["value"] else "")

    return _QUOTED_OR_ARGUMENT.sub(spelled, sentence)


_QUOTED_OR_ARGUMENT = re.compile(
    r"""(?<!\w)'(?:[^'\\]|\\.)*'(?!\w) | "(?:[^"\\]|\\.)*"            # quoted: taken whole, and left
      | (?<![\w-])(?P<name>[a-z_]+)=(?:'(?P<value>[\w .:/?()-]+)'|(?=[\s,;:.)]|$))""",
    re.VERBOSE,
)


def print_notes(out: Console, notes: Iterable[str]) -> None:
    """What should be known beside a result."""
    from verax.show.text import print_line

    options = option_names(_CLICK.get_current_context().find_root().command)
    for note in notes:
        print_line(out, f"note: {as_options(note, options)}", "yellow")


def option_names(command: Any) -> dict[str, str]:
    """The options of a command and all below it, by the names that the library has for them."""
    found: dict[str, str] = {}
    for parameter in command.params:
        for option in parameter.opts:
            if option.startswith("--"):
                found[option[2:].replace("-", "_")] = option
    for below in getattr(command, "commands", {}).values():
        found |= option_names(below)
    return found


def listed(text: str, option: str) -> list[str]:
    """Names, comma-separated; a name with a comma in quotes.

    >>> listed('cat, "a,b"', "classes")
    ['cat', 'a,b']
    """
    try:
        rows = csv.reader([text], skipinitialspace=True)
        return [name.strip() for row in rows for name in row]
    except csv.Error as error:
        raise OptionError(
            f"{option}= cannot be read ({error}); separate names by commas, quote one that has a comma"
        ) from None


def refuse_overwriting(target: Path | None, *inputs: str | Path | None) -> None:
    """Refuse to write over a file that is read: by its path, by a link to it, in a folder, or by a pattern."""
    if target is None or not target.is_file():
        return
    for given in inputs:
        if given is not None and any(_same_file(target, path) for path in _files_named(given)):
            raise OptionError(f"{target}: is read here as {given}; write to another file")


def _files_named(given: str | Path) -> Iterable[str | int]:
    name = str(given)
    if name == "-":
        return [0]
    if os.path.isdir(name):
        return glob.iglob(os.path.join(glob.escape(name), "**"), recursive=True)
    return [name] if os.path.exists(name) else glob.iglob(name, recursive=True)


def _same_file(one: Path, other: Path | str | int) -> bool:
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return not isinstance(other, int) and os.path.abspath(one) == os.path.abspath(other)


def write_text(path: Path, text: str) -> None:
    """A whole text file, or nothing."""
    from verax.tables import write_atomically

    write_atomically(path, lambda file: file.write(text.encode()))


def write_empty_labels(path: Path, tasks: Sequence[str]) -> None:
    """A file of tasks, with a column for their labels."""
    from verax.tables.writing import write_atomically, write_csv

    write_atomically(path, lambda file: write_csv({"task": tasks, "label": [""] * len(tasks)}, file))


def read_document(path: Path) -> Any:
    """The JSON document of a file, as plain dicts and lists."""
    from verax.tables import read_text
    from verax.wire import parsed

    return parsed(read_text(path), str(path))


def read_sign(sign: str | None, classes: Iterable[str] | None) -> Any:
    """A sign by its name, or a matrix over the classes from a file."""
    from verax import tables
    from verax.plan import SIGNS

    if sign is None or sign in SIGNS:
        return sign
    if not Path(sign).exists():
        raise OptionError(f"sign is {sign!r}, neither one of {', '.join(SIGNS)} nor a file; give one of them")
    if classes is None:
        raise OptionError("a sign matrix over shards needs all classes beforehand; name them with classes=")
    return tables.read_matrix(sign, list(classes))


def refuse_array_beside_tables(array: Path | None, *tables: Path) -> None:
    """An NPY holds no names of tasks, so it goes beside arrays only."""
    files = [file for path in tables for file in (sorted(path.glob("[!.]*")) if path.is_dir() else [path])]
    if array is not None and array.suffix.lower() == ".npy" and any(f.suffix.lower() not in _ARRAYS for f in files):
        raise InputError(
            f"{array}: an NPY file goes in the task order of an NPZ or NPY; beside CSV or Parquet give task,label"
        )


_ARRAYS = (".npz", ".npy")
