"""Writing: reports so that reading gives them back, and any file whole or not at all."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from verax.errors import ExtraMissing, InputError, OptionError
from verax.labels import guarded
from verax.reports import Reports
from verax.tables.arrow import WRITTEN
from verax.tables.source import reason_of
from verax.topk import TopK
from verax.vocabulary import is_wide_agent


def refuse_overwriting(target: str | os.PathLike[str] | None, *inputs: object) -> None:
    """Refuse to write to a file that is read: the same by its path, a link or a hard link.

    >>> refuse_overwriting("new.json", "reports.csv", None)
    """
    for given in inputs:
        try:
            if target is not None and isinstance(given, str | os.PathLike) and os.path.samefile(target, given):
                raise OptionError(f"{target}: it is read, as {os.fspath(given)}; write to another file")
        except OSError:
            continue


def write_atomically(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object]) -> None:
    """Write a whole file or nothing: to a temporary file beside it, then renamed; to a pipe or device, plainly."""
    target = Path(path)
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            with open(target, "wb") as file:
                write(file)
        else:
            _replace_whole(Path(os.path.realpath(target)), write)
    except OSError as error:
        reason = reason_of(error)
        raise InputError(f"{path}: cannot be written ({reason}); check the folder, its space and permissions") from None


def _replace_whole(target: Path, write: Callable[[IO[bytes]], object]) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write(reports: Reports, path: str | os.PathLike[str], *, wide: bool = False) -> None:
    """Write reports so that `read` gives them back: .csv or .parquet (long, or wide without rows), .npz.

    A long file holds the agents, tasks and classes that some row mentions; an NPZ holds them all. A cell of a CSV that
    a spreadsheet would compute, or that would be read as no label, has an apostrophe before it.

    >>> from verax import read
    >>> path = Path(tempfile.mkdtemp()) / "reports.npz"
    >>> write(Reports.of(labels=[[0, 1, -1]]), path); read(path)
    Reports(1 agents, 3 tasks, 2 classes, 1 abstention)
    """
    if not isinstance(reports, Reports) or not isinstance(path, str | os.PathLike):
        held = f"a {type(reports).__name__} to {path!r}"
        raise OptionError(f"{held}: give the reports, as verax.read returns them, and a path")
    target = Path(path)
    ending = target.suffix.lower()
    if ending == ".npz":
        write_atomically(target, lambda file: np.savez_compressed(file, **arrays_of(reports)))
        return
    if ending not in ("", ".csv", ".txt", ".parquet", ".pq"):
        raise OptionError(f"{path}: reports are written as .csv, .parquet or .npz; name the file so")
    columns = wide_columns(reports) if wide else reports.long_columns()
    if ending in (".parquet", ".pq"):
        write_atomically(target, lambda file: write_parquet(columns, file))
    else:
        write_atomically(target, lambda file: write_csv(columns, file))


def arrays_of(reports: Reports) -> dict[str, Any]:
    """The arrays of an NPZ."""
    rows = reports.probabilities
    arrays = {
        "labels": reports.labels,
        **(
            {"top_labels": rows.labels, "top_probabilities": rows.shares}
            if isinstance(rows, TopK)
            else {"probabilities": rows}
        ),
        "truth": reports.truth,
        "public": reports.public,
        "agents": np.array(reports.agents),
        "tasks": np.array(reports.tasks),
        "classes": np.array(reports.classes),
    }
    return {name: array for name, array in arrays.items() if array is not None}


def wide_columns(reports: Reports) -> dict[str, Sequence[Any]]:
    """The columns of a wide file: one an agent."""
    if reports.probabilities is not None:
        raise InputError("a wide file has no room for probabilities; write long CSV, Parquet or NPZ")
    for agent in reports.agents:
        if not is_wide_agent(agent):
            raise InputError(f"a column {agent!r} of a wide file would not be read as an agent; write long or NPZ")
    cell = [*reports.classes, ""]
    rows = ([cell[i] for i in row] for row in reports.labels.tolist())
    return {"task": reports.tasks, **dict(zip(reports.agents, rows, strict=True))}


def write_csv(columns: Mapping[str, Sequence[Any]], file: IO[bytes]) -> None:
    """Columns as CSV, nothing in it a formula."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(guarded, columns))
    cells = ([guarded(x) if isinstance(x, str) else x for x in column] for column in columns.values())
    writer.writerows(zip(*cells, strict=True))
    text.detach()


def write_parquet(columns: Mapping[str, Sequence[Any]], file: IO[bytes]) -> None:
    """Columns as Parquet, marked as written here."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ExtraMissing("Parquet files", "parquet") from None
    pq.write_table(pa.table(dict(columns)).replace_schema_metadata({WRITTEN: b"1"}), file)
