"""Columns: a table as codes of the few texts that occur in it, wherever it comes from, and how it is to be read.

What a column means, `layout` decides; bytes are `tables`' business.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from verax.errors import InputError, OptionError
from verax.labels import MOST_CLASSES, Floats, checked_names, clean, unguarded
from verax.vocabulary import names_a_task

Codes = npt.NDArray[np.integer[Any]]
_FRAMES = ("pandas", "polars", "pyarrow", "narwhals")


@dataclass(frozen=True)
class Reading:
    """How files and tables are read: which column is what, and how much is too much.

    `classes`: all labels, where the reports may lack one. `task_col`, `agent_col`, `label_col`: columns under other
    names; `truth_col`: a column of the reports that holds the truth; `drop`: columns to leave out. `logits`: rows are
    logits, to be made probabilities. Beyond the limits a file is refused before it is read: `max_bytes` of memory,
    `max_ratio` times the size of its file, `max_cells` of agents x tasks (x classes;
    of answers, where these are few), `max_columns`, `max_classes`.

    >>> Reading.of(None, task_col="id", classes=["cat", " dog "]).classes
    ('cat', 'dog')
    """

    classes: tuple[str, ...] | None = None
    task_col: str | None = None
    agent_col: str | None = None
    label_col: str | None = None
    truth_col: str | None = None
    drop: tuple[str, ...] = ()
    logits: bool = False
    max_bytes: int = 2**32
    max_ratio: int = 200
    max_cells: int = 2**30
    max_columns: int = 100_000
    max_classes: int = MOST_CLASSES

    def __post_init__(self) -> None:
        if self.classes is not None:
            if isinstance(self.classes, str) or not isinstance(self.classes, Iterable):
                raise OptionError(f"classes is {self.classes!r}; give a list of names")
            named = [clean(str(c)) for c in self.classes]
            if not named:
                raise InputError("classes= names no class; give all of them, or leave it out")
            object.__setattr__(self, "classes", checked_names(named, len(named), "class", "classes="))
        dropped = (self.drop,) if isinstance(self.drop, str) else self.drop
        if not isinstance(dropped, Iterable) or not all(isinstance(name, str) for name in dropped):
            raise OptionError(f"drop is {self.drop!r}; give the names of columns")
        object.__setattr__(self, "drop", tuple(map(clean, dropped)))
        if not isinstance(self.logits, bool):
            raise OptionError(f"logits is {self.logits!r}; give True or False")
        for limit in ("max_bytes", "max_ratio", "max_cells", "max_columns", "max_classes"):
            if type(getattr(self, limit)) is not int or getattr(self, limit) < 1:
                raise OptionError(f"{limit} is {getattr(self, limit)!r}; give a whole number of at least 1")

    @classmethod
    def of(cls, reading: Reading | None, **given: Any) -> Reading:
        """A reading with some fields given by name."""
        unknown = given.keys() - {field.name for field in fields(cls)}
        if unknown:
            known = ", ".join(field.name for field in fields(cls))
            raise OptionError(f"{min(unknown)!r} says nothing about reading; give some of {known}")
        return replace(reading or cls(), **given)

    def refuse_large(self, source: str, held: int, size: int, what: str) -> None:
        """Refuse what would take far more memory than its file, or than there may be, before any is taken."""
        if held > self.max_bytes:
            most, option = self.max_bytes, "max_bytes"
        elif held > _SMALL and held > size * self.max_ratio:
            most, option = size * self.max_ratio, "max_ratio"
        else:
            return
        raise InputError(
            f"{source}: its {size:,} bytes hold {what}, about {held:,} bytes of memory, more than {most:,}; "
            f"give a smaller file, or raise {option}="
        )

    def refuse_cells(self, source: str, *shape: int) -> None:
        """Refuse an array larger than may be."""
        if math.prod(shape) > self.max_cells:
            raise InputError(
                f"{source}: {' x '.join(f'{n:,}' for n in shape)} (agents x tasks{' x classes' * (len(shape) > 2)}) "
                f"are more than {self.max_cells:,} cells; read fewer at a time, or raise max_cells="
            )

    def refuse_answers(self, source: str, answers: int) -> None:
        """Refuse more answers than there may be cells."""
        if answers > self.max_cells:
            raise InputError(
                f"{source}: {answers:,} answers are more than {self.max_cells:,} cells; read fewer at a time, "
                "or raise max_cells="
            )


_SMALL = 2**26  # bytes of memory that any file may take


@dataclass(frozen=True, eq=False)
class Column:
    """Cells as codes of the texts that occur, -1 an empty one; or `values`, numbers of which no text was asked for yet.

    >>> column = Column.of([" cat", "dog", None, "cat"])
    >>> column.codes.tolist(), column.texts
    ([0, 1, -1, 0], ['cat', 'dog'])
    """

    codes: Codes
    texts: Sequence[str]
    values: Floats | None = None  # NaN an empty cell

    @classmethod
    def of(cls, cells: Sequence[Any], where: str = "a column") -> Column:
        """From Python's values: text, numbers, None."""
        kinds = {*map(type, cells)}
        if float in kinds and kinds <= {float, int, type(None)}:
            return cls.of_floats(np.array([math.nan if x is None else x for x in cells], dtype=np.float64))
        index: defaultdict[str, int] = defaultdict()
        index.default_factory = index.__len__
        texts = cells if kinds == {str} else [text_of(cell, where) for cell in cells]
        return cls.of_codes(np.fromiter(map(index.__getitem__, texts), np.int32, len(texts)), index)

    @classmethod
    def of_codes(cls, codes: Codes, raw: Iterable[str]) -> Column:
        """From codes, -1 an empty cell, of texts as they were written: cleaned, they may be fewer."""
        texts = [*map(str.strip, raw)]
        if not "".join(texts).isascii():
            texts = [*map(clean, texts)]
        if "" in (distinct := {*texts}) or len(distinct) < len(texts):
            index: dict[str, int] = {}
            place = [index.setdefault(text, len(index)) if text else -1 for text in texts]
            codes, texts = np.array([*place, -1], dtype=np.int32)[codes], [*index]
        return cls(codes, texts)

    @classmethod
    def of_floats(cls, values: Floats) -> Column:
        """From numbers, NaN an empty cell."""
        return cls(np.full(len(values), -1, dtype=np.int8), (), values)

    def as_text(self, where: str) -> Column:
        """The same, its numbers as texts."""
        values, place = np.unique(np.asarray(self.values), return_inverse=True)
        return Column.of_codes(place, [text_of(value, where) for value in values.tolist()])


def text_of(value: Any, where: str = "a cell") -> str:
    """A value as CSV would show it; a whole number without its point, nothing for what is missing.

    >>> [text_of(value) for value in (4.0, None, float("nan"), b"cat", True)]
    ['4', '', '', 'cat', 'True']
    """
    if isinstance(value, str):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return ""
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        if math.isfinite(value) and not value.is_integer():
            raise InputError(f"{where} has {value}; write labels and tasks as text or whole numbers")
        return str(int(value)) if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, dict | list | tuple | set | np.ndarray):
        raise InputError(f"{where} has a {type(value).__name__}; give one text or number a cell")
    return str(value)


@dataclass(frozen=True)
class Table:
    """Columns by name, and where each row stands in its file.

    `literal`: what an abstention is, is not spelled out; `guarded`: cells that would be formulas have an apostrophe;
    `comma`: numbers may have a comma for their point, as where semicolons separate the columns.
    """

    source: str
    columns: dict[str, Column]
    first_row: int = 1
    blank: Sequence[int] = ()
    literal: bool = False
    guarded: bool = False
    comma: bool = False
    notes: tuple[str, ...] = ()

    def refuse(self, row: int, what: str) -> NoReturn:
        """Refuse a row by its number in the file."""
        number = row + self.first_row
        for blank in self.blank:
            number += blank <= number
        raise InputError(f"{self.source}, row {number}: {what}")

    def texts_of(self, names: Iterable[str]) -> list[Column]:
        """Some columns, as texts whatever they hold."""
        return [
            column if column.values is None else column.as_text(f"{self.source}: column {name!r}")
            for name, column in ((name, self.columns[name]) for name in names)
        ]

    def cells(self, name: str) -> list[str]:
        """The texts of a column, cell by cell."""
        [column] = self.texts_of([name])
        texts = [*self.plain(column.texts), ""]
        return [texts[code] for code in column.codes.tolist()]

    def plain(self, texts: Iterable[str]) -> list[str]:
        """Texts as they are meant, without what guards them in a CSV."""
        return [unguarded(text) if text[:1] == "'" else text for text in texts] if self.guarded else [*texts]

    def numbers(self, name: str) -> Floats:
        """A column of numbers; the first cell that is none is refused."""
        column = self.columns[name]
        if column.values is not None:
            return column.values
        found, bad = np.empty(len(column.texts) + 1), {-1}
        for i, text in enumerate(column.texts):
            try:
                found[i] = float(text.replace(",", ".") if self.comma else text)
            except ValueError:
                bad.add(i)
        for row in np.nonzero(np.isin(column.codes, [*bad]))[0][:1].tolist():
            code = int(column.codes[row])
            seen = f"has {column.texts[code]!r}" if code >= 0 else "is empty"
            self.refuse(row, f"column {name!r} {seen}; expected a number")
        return found[column.codes]


def header_of(names: Sequence[object], source: str, reading: Reading) -> list[str]:
    """The names of columns: cleaned, all different; a column without a name is called as pandas calls it."""
    if len(names) > reading.max_columns:
        raise InputError(
            f"{source}: {len(names):,} columns, more than {reading.max_columns:,}; write the long form "
            "task,agent,label, or raise max_columns="
        )
    header = [str(name).strip() or f"Unnamed: {i}" for i, name in enumerate(names)]
    if not "".join(header).isascii():
        header = [*map(clean, header)]
    if len({*header}) < len(header):
        twice = Counter(header).most_common(1)[0][0]
        raise InputError(f"{source}: column {twice!r} appears twice; names must differ")
    return header


def is_frame(value: object) -> bool:
    """Whether it is a table of pandas, polars or pyarrow."""
    return type(value).__module__.split(".")[0] in _FRAMES and hasattr(value, "columns")


def table_of(frame: Any, source: str, reading: Reading) -> Table:
    """A data frame as a table.

    >>> import pandas
    >>> table_of(pandas.DataFrame({"task": [1, 2], "ann": ["cat", None]}), "the frame", Reading()).columns["ann"].texts
    ['cat']
    """
    import narwhals as nw

    index = getattr(getattr(frame, "index", None), "names", None)
    if index is not None:
        frame = _with_index(frame, index)
    held: Any = nw.from_native(frame)
    held = held.collect() if isinstance(held, nw.LazyFrame) else held
    header = header_of(held.columns, source, reading)
    columns = {
        name: Column.of(column.to_list(), f"{source}: column {name!r}")
        for name, column in zip(header, held.iter_columns(), strict=True)
    }
    return Table(source, columns)


def _with_index(frame: Any, index: Sequence[object]) -> Any:
    """A pandas frame with its index as columns: where it has names, as after a pivot, or no column names the tasks."""
    if any(name is not None for name in index):
        return frame.reset_index()
    if len(index) == 1 and not names_a_task([*map(str, frame.columns)]):
        return frame.rename_axis(index="Unnamed: 0").reset_index()
    return frame
