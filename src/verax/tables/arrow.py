"""Parquet and Arrow files: a block of rows at a time, text as codes, without an object a cell."""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.columns import Column, Reading, Table, header_of, text_of
from verax.errors import ExtraMissing
from verax.tables.source import Source
from verax.vocabulary import is_long, names_a_task

WRITTEN = b"verax"  # in a file's metadata: its cells are literal, and only a null is an abstention
_NAME = 100  # bytes that the name of a task takes in memory, about
_CODE = 4
_STREAM = b"\xff\xff\xff\xff"  # with which Arrow's stream begins, as a file does not
_PIECE = 2**22  # bytes of text looked at at once
_MAGIC = 8  # bytes that come before the stream in a file


@dataclass(frozen=True)
class Arrow:
    """An open Parquet or Arrow file: its header, and its rows in tables."""

    source: Source
    schema: Any
    metadata: Any
    names: list[str]
    reading: Reading

    @classmethod
    def of(cls, source: Source, reading: Reading) -> Arrow:
        """The file, its header checked, and what it claims to hold held against its size."""
        try:
            import pyarrow.parquet as pq
        except ImportError:
            raise ExtraMissing("Parquet files", "parquet") from None
        with source.open() as opened, source.refused("cannot be read as Parquet"):
            file = pq.ParquetFile(opened)
            schema, metadata = file.schema_arrow, file.metadata
            stored = [str(name) for name in schema.names]
        return cls(source, schema, metadata, header_of(stored, source.name, reading), reading)

    @property
    def rows(self) -> int:
        """How many rows it says it has."""
        return int(self.metadata.num_rows)

    def refuse_large(self, long: bool) -> None:
        """Refuse a file that claims far more than it can hold."""
        each = _CODE * len(self.names) if long else _NAME + len(self.names)
        what = f"{self.rows:,} rows of {len(self.names):,} columns"
        self.reading.refuse_large(self.source.name, self.rows * each, self.source.size, what)

    @property
    def long(self) -> bool:
        """Whether it holds a row an answer."""
        return is_long(self.names, self.reading.agent_col)

    def whole(self) -> Table:
        """All its rows at once."""
        self.refuse_large(long=True)
        with self._read_coded(self.names) as file:
            return self._table_from(file.read(use_threads=False), 0)

    def tables(self, at_once: int, groups: Sequence[int] | None = None, row: int = 0) -> Iterator[Table]:
        """Its rows, or those of some row groups, so many at a time; `row` is how many come before."""
        # the names of tasks all differ, so that codes would only be longer
        with self._read_coded({*self.names} - {*names_a_task(self.names, self.reading.task_col)}) as file:
            for batch in file.iter_batches(at_once, row_groups=groups, use_threads=False):
                yield self._table_from(batch, row)
                row += len(batch)

    @contextmanager
    def _read_coded(self, columns: Collection[str]) -> Iterator[Any]:
        """The file opened to give codes for these columns, where they are text."""
        import pyarrow.parquet as pq

        texts = [
            field.name for field, name in zip(self.schema, self.names, strict=True)
            if name in columns and str(field.type) in ("string", "large_string")
        ]  # fmt: skip
        with self.source.open() as opened, self.source.refused("cannot be read as Parquet"):
            yield pq.ParquetFile(opened, read_dictionary=texts)

    def _table_from(self, held: Any, row: int) -> Table:
        literal = WRITTEN in (self.schema.metadata or {})
        return _table_of(self.source, held, self.names, row, literal)


def read_arrow(source: Source, reading: Reading, expected: str) -> Table:
    """The table of a Feather or Arrow IPC file."""
    try:
        import pyarrow as pa
    except ImportError:
        raise ExtraMissing("Arrow files", "parquet") from None
    with source.open() as file, source.refused("cannot be read as Arrow"):
        start = 0 if source.begins(4) == _STREAM else _MAGIC  # an Arrow file is a stream, with a table of contents
        file.seek(start)
        _refuse_claims(source, reading, pa.ipc.MessageReader.open_stream(file))
        file.seek(start)
        held = pa.ipc.open_stream(file).read_all()
        return _table_of(source, held, header_of(held.column_names, source.name, reading), 0, False)


def _plain_lines(raw: Any, mark: str) -> int | None:
    """How many lines a text has; None where it is not plain, or may be read in more ways than one.

    A plain text has no NUL and no carriage return of its own, and a quote only where a cell begins or ends.
    """
    lines, ends = 0, [ord(c) for c in (mark, "\n", "\r")]
    while piece := raw.read(_PIECE):
        piece += raw.readline()
        if b"\0" in piece or piece.count(b"\r") > piece.count(b"\r\n"):
            return None
        lines += piece.count(b"\n") + (piece[-1:] != b"\n")
        if b'"' in piece:
            text = np.frombuffer(b"\n" + piece + b"\n", np.uint8)
            quotes = np.flatnonzero(text == ord('"'))
            if len(quotes) % 2 or not (
                _all_in(text[quotes[::2] - 1], ends[:2]) and _all_in(text[quotes[1::2] + 1], ends)
            ):
                return None
    return lines


def _all_in(text: npt.NDArray[np.uint8], ends: Sequence[int]) -> bool:
    known = np.zeros(256, dtype=bool)
    known[[*ends]] = True
    return bool(known[text].all())


def read_plain_csv(source: Source, reading: Reading, header: Sequence[str], mark: str, longest: int) -> Table | None:
    """The rows of a plain CSV file below its header, a line; None where only another reader can tell.

    Its rows are as long as the header, none begins with an empty cell, no line ends inside quotes, p:<class> columns
    have numbers, no cell is longer than `longest`.
    """
    try:
        import pyarrow as pa
        from pyarrow import csv
    except ImportError:
        return None
    with source.text(reading) as file:
        if (lines := _plain_lines(file.buffer, mark)) is None:
            return None
    names, text = [str(i) for i in range(len(header))], pa.dictionary(pa.int32(), pa.string())
    kinds = [pa.float64() if name.startswith("p:") else text for name in header]
    with source.text(reading) as file:
        try:
            held = csv.read_csv(
                pa.PythonFile(file.buffer, mode="r"),
                read_options=csv.ReadOptions(use_threads=False, skip_rows=1, column_names=names),
                parse_options=csv.ParseOptions(delimiter=mark, ignore_empty_lines=False),
                convert_options=csv.ConvertOptions(
                    column_types=dict(zip(names, kinds, strict=True)), null_values=[], strings_can_be_null=False
                ),
            )
        except (pa.ArrowInvalid, ValueError, OverflowError):
            return None
    table = _table_of(source, held, header, 1, False)
    begins = table.columns[header[0]]
    blank = begins.values is None and bool((begins.codes < 0).any())
    long = any(len(cell) > longest for column in table.columns.values() for cell in column.texts)
    return None if blank or long or len(held) + 1 != lines else table


def _refuse_claims(source: Source, reading: Reading, messages: Iterable[Any]) -> None:
    """Refuse more rows than the bytes can hold, before any is unpacked."""
    import pyarrow as pa

    columns, cells = 1, 0
    for message in messages:
        if message.type == "schema":
            columns = len(pa.ipc.read_schema(message))
        else:
            words = message.type == "dictionary"
            cells += _rows_claimed(message.metadata.to_pybytes(), words) * (1 if words else columns)
            reading.refuse_large(source.name, _CODE * cells, source.size, f"{cells:,} cells")


def _rows_claimed(metadata: bytes, dictionary: bool) -> int:
    """How many rows the head of a message says it has: a flatbuffer, of Arrow's Message.fbs."""

    def field(table: int, index: int) -> int:
        """Where a field of a table lies: its place stands in the table's own list of places."""
        places = table - struct.unpack_from("<i", metadata, table)[0]
        return table + int(struct.unpack_from("<H", metadata, places + 4 + 2 * index)[0])

    def pointed(at: int) -> int:
        return at + int(struct.unpack_from("<I", metadata, at)[0])

    batch = pointed(field(pointed(0), 2))
    batch = pointed(field(batch, 1)) if dictionary else batch
    return int(struct.unpack_from("<q", metadata, field(batch, 0))[0])


def _table_of(source: Source, held: Any, header: Sequence[str], row: int, literal: bool) -> Table:
    columns = {
        name: _column_of(array, f"{source.name}: column {name!r}")
        for name, array in zip(header, held.columns, strict=True)
    }
    return Table(source.name, columns, row + 1, literal=literal)


def _column_of(array: Any, where: str) -> Column:
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        chunks = array.unify_dictionaries().chunks
        array = pa.concat_arrays(chunks) if chunks else pa.array([], array.type)
    if pa.types.is_floating(array.type):
        return Column.of_floats(_numbers_of(array.cast(pa.float64()).fill_null(math.nan)))
    try:
        coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return Column.of(array.to_pylist(), where)
    indices = coded.indices.fill_null(-1) if coded.indices.null_count else coded.indices
    codes, values = _numbers_of(indices), coded.dictionary.to_pylist()
    used = np.zeros(len(values) + 1, dtype=bool)
    used[codes] = True
    if not (used := used[:-1]).all():  # of a row group's texts, some rows have some
        codes = np.append(np.where(used, np.cumsum(used) - 1, -1), -1)[codes]
        values = [value for value, kept in zip(values, used.tolist(), strict=True) if kept]
    if {*map(type, values)} - {str}:
        values = [text_of(value, where) for value in values]
    return Column.of_codes(codes, values)


def _numbers_of(array: Any) -> npt.NDArray[Any]:
    """The numbers of an array without nulls; its own way to NumPy would load pandas."""
    kind = np.dtype(array.type.to_pandas_dtype())
    return np.frombuffer(array.buffers()[1] or b"", kind)[array.offset : array.offset + len(array)]
