"""Records: rows as JSON objects, one a line or in a list, and the cells of a spreadsheet."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from verax import wire
from verax.columns import Column, Reading, Table, header_of
from verax.errors import ExtraMissing, InputError
from verax.tables.source import Source

_CELL = 8  # bytes that a cell takes in memory, at least
_ROWS = ("p", "probabilities", "probs")  # under which a record may hold its whole row


def read_json(source: Source, reading: Reading, expected: str) -> Table:
    """The table of a list of JSON objects, or of one object a line."""
    with source.text(reading) as file:
        try:
            text = file.read()
        except UnicodeDecodeError as error:
            raise InputError(f"{source.name}: byte {error.start} is not UTF-8 text; save it in UTF-8") from None
    if text.lstrip()[:1] == "[":
        records = wire.parsed(text, source.name)
    else:
        lines = enumerate(text.split("\n"), start=1)
        records = [wire.parsed(line, f"{source.name}, line {n}") for n, line in lines if line.strip()]
    if not records:
        raise InputError(f"{source.name}: the file is empty; expected {expected}")
    if len(records) == 1 and isinstance(records[0], dict) and _holds_columns(records[0]):
        raise InputError(
            f"{source.name}: one object of columns; write one object a row, as pandas does with orient='records'"
        )
    flat = [_flat_record(record, f"{source.name}, record {i}", reading) for i, record in enumerate(records, start=1)]
    header = [*dict.fromkeys(name for record in flat for name in record)]
    _refuse_wide(source, len(flat), len(header), reading)
    return _table_of_rows(source, header, ([record.get(name) for name in header] for record in flat), reading)


def _holds_columns(record: dict[str, Any]) -> bool:
    return any(isinstance(value, dict | list) for name, value in record.items() if name not in _ROWS)


def _flat_record(record: Any, where: str, reading: Reading) -> dict[str, Any]:
    """A record whose row of probabilities, if it holds one, stands in columns p:<class>."""
    if not isinstance(record, dict):
        raise InputError(f"{where}: a {type(record).__name__}; expected an object such as {{task, agent, label}}")
    found = {}
    for name, value in record.items():
        if name in _ROWS and isinstance(value, list):
            names = reading.classes or [*map(str, range(len(value)))]
            if len(names) != len(value):
                raise InputError(f"{where}: {len(value)} probabilities for {len(names)} classes; give one each")
            value = dict(zip(names, value, strict=True))
        if name in _ROWS and isinstance(value, dict):
            found.update({f"p:{label}": number for label, number in value.items()})
        else:
            found[name] = value
    return found


def read_xlsx(source: Source, reading: Reading, expected: str) -> Table:
    """The table on the first sheet of a workbook."""
    try:
        import openpyxl
    except ImportError:
        raise ExtraMissing("spreadsheets", "xlsx") from None
    with source.open() as file, source.refused("cannot be read as xlsx"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # openpyxl warns of styles that it does not know
        with zipfile.ZipFile(file) as archive:
            held = sum(entry.file_size for entry in archive.infolist())
        reading.refuse_large(source.name, held, source.size, "packed sheets")
        book = openpyxl.load_workbook(file, read_only=True, data_only=True)
        sheet = book.worksheets[0]
        sheet.reset_dimensions()  # which the file claims: rows are as long as they are
        rows = [row for row in sheet.iter_rows(values_only=True) if any(cell is not None for cell in row)]
        others = book.sheetnames[1:]
        book.close()
    if not rows:
        raise InputError(f"{source.name}: the file is empty; expected {expected}")
    notes = (f"{source.name}: sheet {book.sheetnames[0]!r} is read, and not {others[0]!r}",) if others else ()
    width = max(map(len, rows))
    _refuse_wide(source, len(rows), width, reading)
    names, *cells = [[*row, *[None] * (width - len(row))] for row in rows]
    return _table_of_rows(source, ["" if name is None else name for name in names], cells, reading, notes)


def _refuse_wide(source: Source, rows: int, columns: int, reading: Reading) -> None:
    """Refuse a few cells that are far apart, which make a table of many."""
    what = f"{rows:,} rows of {columns:,} columns"
    reading.refuse_large(source.name, _CELL * rows * columns, source.size, what)


def _table_of_rows(
    source: Source,
    names: Sequence[object],
    rows: Iterable[Sequence[Any]],
    reading: Reading,
    notes: tuple[str, ...] = (),
) -> Table:
    header = header_of(names, source.name, reading)
    columns: Iterator[Sequence[Any]] = zip(*rows, strict=False)
    cells = dict(zip(header, columns, strict=False))
    if len(cells) < len(header):
        cells = dict.fromkeys(header, ())
    held = {name: Column.of(column, f"{source.name}: column {name!r}") for name, column in cells.items()}
    return Table(source.name, held, 2, notes=notes)
