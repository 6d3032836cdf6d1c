"""Text: CSV with commas, semicolons or tabs, read as codes, a few thousand rows at a time."""

from __future__ import annotations

import csv
import io
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import IO, Any

import numpy as np

from verax.columns import Column, Reading, Table, header_of
from verax.errors import InputError
from verax.tables.arrow import read_plain_csv
from verax.tables.source import Source, reason_of
from verax.vocabulary import names_a_task

_LONGEST_CELL = 10_000
_LONGEST_LINE = 2**24
_MOST_BLANK = 10**6  # lines
_LARGE = 2**20  # bytes, from which Arrow, where it is there, reads sooner than it is loaded
_ROWS, _CELLS, _CHARACTERS = 2**12, 2**18, 2**20  # taken at once


def read_csv(source: Source, reading: Reading, expected: str) -> Table:
    """The table of a CSV file."""
    limit = csv.field_size_limit(_LONGEST_CELL)
    try:
        with source.text(reading) as file:
            return _table_of_lines(source, file, reading, expected)
    except UnicodeDecodeError:
        raise InputError(
            f"{source.name}, line {_line_not_utf8(source, reading)}: not UTF-8 text; "
            "save the file as CSV in UTF-8, or name it .npz or .parquet if it is one"
        ) from None
    except OSError as error:
        raise InputError(f"{source.name}: cannot be read ({reason_of(error)}); check the file and its device") from None
    finally:
        csv.field_size_limit(limit)


def _table_of_lines(source: Source, file: IO[str], reading: Reading, expected: str) -> Table:
    lines = chain.from_iterable(_pieces(source, file))
    first: list[str] = []
    for line in islice(lines, _MOST_BLANK):
        first.append("" if line.startswith("sep=") else line)  # which spreadsheets write above the header
        if first[-1].strip(", \t;|\r\n"):
            break
    mark = _delimiter(source, first[-1], reading) if first else ","
    reader = csv.reader(chain(first, lines), strict=True, delimiter=mark)
    blank: list[int] = []
    number, names = 0, list[list[str]]()
    while not names:
        if not (records := _next_records(source, reader, 1)):
            raise InputError(f"{source.name}: the file is empty; expected {expected}")
        names = _rows_not_blank(source, records, 0, number, blank)
        number += 1
    header = header_of(names[0], source.name, reading)
    large = source.size >= _LARGE and len(first) == reader.line_num == 1 < len(header)
    if large and (table := read_plain_csv(source, reading, header, mark, _LONGEST_CELL)):
        return replace(table, guarded=True, comma=mark == ";")
    index: list[defaultdict[str, int]] = [defaultdict() for _ in header]
    for each in index:
        each.default_factory = each.__len__
    found: list[array[Any]] = [array("d" if name.startswith("p:") else "i") for name in header]
    at_once = max(1, min(_ROWS, _CELLS // len(header)))
    while records := _next_records(source, reader, at_once):
        rows = _rows_not_blank(source, records, len(header), number, blank)
        number += len(records)
        for i, cells in enumerate(zip(*rows, strict=True)):
            if found[i].typecode == "d":
                try:
                    found[i].extend([*map(float, cells)])
                    continue
                except ValueError:  # codes will say where: of one text for all above, which were numbers
                    found[i] = array("i", [index[i]["0"]] * len(found[i]))
            found[i].extend(map(index[i].__getitem__, cells))
    columns = {
        name: Column.of_floats(np.asarray(cells)) if cells.typecode == "d" else Column.of_codes(np.asarray(cells), each)
        for name, cells, each in zip(header, found, index, strict=True)
    }
    return Table(source.name, columns, 2, blank, guarded=True, comma=mark == ";")


def _pieces(source: Source, file: IO[str]) -> Iterator[Iterable[str]]:
    """The lines of a text, many at a time, none longer than may be, nor with a NUL byte."""
    number = 1
    while piece := file.read(_CHARACTERS):
        piece += file.readline(_LONGEST_LINE)
        if "\0" in piece:
            number += piece[: piece.index("\0")].count("\n")
            raise InputError(f"{source.name}, line {number}: a NUL byte, which no text has; write the file again")
        number += piece.count("\n")
        yield io.StringIO(piece, newline="")


def _next_records(source: Source, reader: Any, count: int) -> list[list[str]]:
    try:
        return [*islice(reader, count)]
    except csv.Error as error:
        long = "field larger" in str(error)
        reason = f"a cell is longer than {_LONGEST_CELL} characters" if long else str(error)
        raise InputError(
            f"{source.name}, line {reader.line_num}: {reason}; "
            "expected comma-separated text, a quoted cell closed by its quote"
        ) from None


def _rows_not_blank(
    source: Source, records: list[list[str]], width: int, number: int, blank: list[int]
) -> list[list[str]]:
    """The records that are not blank, each of so many cells; where the blank ones stand is noted."""
    if width and {*map(len, records)} == {width} and all(record[0].strip() for record in records):
        return records
    rows = []
    for at, record in enumerate(records, start=number + 1):
        if not "".join(record).strip():
            blank.append(at)
        elif width and len(record) != width:
            raise InputError(
                f"{source.name}, row {at}: the number of cells is {len(record)}, but the header has {width}; "
                + ("quote commas inside a cell" if width > 1 else "begin the file with the names of its columns")
            )
        else:
            rows.append(record)
    if len(blank) > _MOST_BLANK:
        raise InputError(f"{source.name}: more than {_MOST_BLANK:,} blank lines; leave them out")
    return rows


def _delimiter(source: Source, header: str, reading: Reading) -> str:
    """What separates the columns: what makes a header that names the tasks, or that has columns at all."""
    if source.endings[:1] == (".tsv",) or source.endings[:2] == (".gz", ".tsv"):
        return "\t"
    found = {}
    for mark in ",;\t|":
        try:
            found[mark] = [name.strip() for name in next(csv.reader([header], delimiter=mark))]
        except csv.Error:
            found[mark] = []
    named = [mark for mark, names in found.items() if names_a_task(names, reading.task_col)]
    if sum(len(found[mark]) > 1 for mark in named) > 1:
        raise InputError(
            f"{source.name}: the header {header.strip()!r} may be separated by {' or by '.join(map(repr, named))}; "
            "separate all by commas, and quote a name that has one"
        )
    several = [mark for mark in named or found if len(found[mark]) > 1]
    return (several or named or [","])[0]


def _line_not_utf8(source: Source, reading: Reading) -> int:
    """The line to look at; the decoder itself only knows its place in a buffer."""
    with source.text(reading) as file:
        raw: Any = file.buffer
        text = (line.decode(errors="replace").encode() == line for line in raw)
        return next((number for number, good in enumerate(text, start=1) if not good), 1)
