"""Text: CSV with commas, semicolons or tabs, read as codes, a few thousand rows at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from verax.columns import Column, Reading, Table, header_of
from verax.errors import InputError
from verax.roles import names_a_task
from verax.tables.source import Source, reason_of

_LONGEST_CELL = 10_000
_LONGEST_LINE = 2**24
_MOST_BLANK = 10**6  # lines
_ROWS, _CELLS = 2**12, 2**18  # taken at once


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
    lines = _lines_of(source, file)
    first: list[str] = []
    for line in islice(lines, _MOST_BLANK):
        first.append(line)
        if line.strip(", \t;\r\n"):
            break
    else:
        raise InputError(f"{source.name}: the file is empty; expected {expected}")
    reader = csv.reader(chain(first, lines), strict=True, delimiter=_delimiter(source, first[-1], reading))
    blank: list[int] = []
    number, header = 0, list[str]()
    while not header:
        record = _next_records(source, reader, 1)
        header = header_of(record[0], source.name, reading) if _rows_not_blank(source, record, 0, number, blank) else []
        number += 1
    index: list[dict[str, int]] = [{} for _ in header]
    numeric = {i for i, name in enumerate(header) if name.startswith("p:")}
    codes: list[list[npt.NDArray[Any]]] = [[np.empty(0, np.int32)] for _ in header]
    at_once = max(1, min(_ROWS, _CELLS // len(header)))
    while records := _next_records(source, reader, at_once):
        rows = _rows_not_blank(source, records, len(header), number, blank)
        number += len(records)
        for i, cells in enumerate(zip(*rows, strict=True)):
            if i in numeric:
                try:
                    codes[i].append(np.array(cells, dtype=np.float64))
                    continue
                except ValueError:  # codes will say where: 0 for all above, which were numbers
                    numeric.remove(i)
                    index[i], codes[i] = {"0": 0}, [np.zeros(len(above), np.int32) for above in codes[i]]
            known = index[i]
            for cell in dict.fromkeys(cells):
                known.setdefault(cell, len(known))
            codes[i].append(np.fromiter(map(known.__getitem__, cells), np.int32, len(cells)))
    columns = {
        name: Column.of_floats(np.concatenate(codes[i]))
        if i in numeric
        else Column.of_codes(np.concatenate(codes[i]), index[i], f"{source.name}: column {name!r}")
        for i, name in enumerate(header)
    }
    return Table(source.name, columns, 2, blank, guarded=True)


def _lines_of(source: Source, file: IO[str]) -> Iterator[str]:
    """The lines of a text, none longer than may be, nor with a NUL byte."""
    for number, line in enumerate(iter(partial(file.readline, _LONGEST_LINE), ""), start=1):
        if "\0" in line:
            raise InputError(f"{source.name}, line {number}: a NUL byte, which no text has; write the file again")
        yield line


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
                f"{source.name}, row {at}: the number of cells is {len(record)}, but the header has "
                f"{width}; quote commas inside a cell"
            )
        else:
            rows.append(record)
    if len(blank) > _MOST_BLANK:
        raise InputError(f"{source.name}: more than {_MOST_BLANK:,} blank lines; leave them out")
    return rows


def _delimiter(source: Source, header: str, reading: Reading) -> str:
    """What separates the columns: what makes a header that names the tasks, or that has columns at all."""
    if source.endings[:1] == [".tsv"] or source.endings[:2] == [".gz", ".tsv"]:
        return "\t"
    found = {}
    for mark in ",;\t":
        try:
            found[mark] = [name.strip() for name in next(csv.reader([header], delimiter=mark))]
        except csv.Error:
            found[mark] = []
    named = [mark for mark, names in found.items() if any(names_a_task(name, reading) for name in names)]
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
