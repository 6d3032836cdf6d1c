"""Files: the door through which all outside data comes in. CSV, Parquet, NPZ and NPY, in and out.

Every way a file can be wrong has its sentence: what was seen, where, what was expected, what to do.
"""

from __future__ import annotations

import csv
import io
import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from verax.errors import ExtraMissing, InputError
from verax.reports import Array, Floats, Reports, checked_names, class_order, some

_LONGEST_CELL = 10_000


@dataclass(frozen=True)
class _Table:
    """Columns of text by name, and where each row stands in its file."""

    source: str
    columns: dict[str, list[str]]
    first_row: int

    def refuse(self, row: int, what: str) -> NoReturn:
        raise InputError(f"{self.source}, row {row + self.first_row}: {what}")

    def numbers(self, name: str) -> Floats:
        column = self.columns[name]
        try:
            return np.array(column, dtype=np.float64)
        except ValueError:
            row = next(i for i, cell in enumerate(column) if not _is_number(cell))
            self.refuse(row, f"column {name!r} has {column[row]!r}; expected a number")

    def require_tasks(self) -> list[str]:
        tasks = self.columns["task"]
        for row, task in enumerate(tasks):
            if not task:
                self.refuse(row, "column 'task' is empty; every row needs a task")
        return tasks


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_table(path: Path) -> _Table:
    table = _read_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _read_csv(path)
    if "task" not in table.columns:
        raise InputError(
            f"{path}: no column 'task' among {some(table.columns) or 'no columns'}; "
            "expected task,agent,label (long) or task and one column an agent (wide)"
        )
    if not table.columns["task"]:
        raise InputError(f"{path}: a header and no rows; expected one row a report or a task")
    return table


def _read_csv(path: Path) -> _Table:
    try:
        with _opened(path, newline="", encoding="utf-8-sig") as file:
            csv.field_size_limit(_LONGEST_CELL)
            reader = csv.reader(file, strict=True)
            rows = []
            try:
                rows = [row for row in reader if row]
            except csv.Error as error:
                if "field larger" in str(error):
                    error = csv.Error(f"a cell is longer than {_LONGEST_CELL} characters")
                raise InputError(
                    f"{path}, line {reader.line_num}: {error}; "
                    "expected comma-separated text, a quoted cell closed by its quote"
                ) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: byte {error.start} is not UTF-8 text; "
            "save the file as CSV in UTF-8, or name it .npz or .parquet if it is one"
        ) from None
    if not rows:
        raise InputError(f"{path}: the file is empty; expected a header and rows of reports")
    header = _checked_header([name.strip() for name in rows[0]], str(path))
    width = len(header)
    for number, row in enumerate(rows, start=1):
        if len(row) != width:
            raise InputError(
                f"{path}, row {number}: {len(row)} cells, but the header has {width}; quote commas inside a cell"
            )
    columns = zip(*rows[1:], strict=True) if len(rows) > 1 else iter([()] * width)
    return _Table(str(path), {name: [*map(str.strip, c)] for name, c in zip(header, columns, strict=True)}, 2)


def _checked_header(header: list[str], source: str) -> list[str]:
    for i, name in enumerate(header):
        if not name:
            raise InputError(f"{source}: column {i + 1} has no name; give every column a header")
        if name in header[:i]:
            raise InputError(f"{source}: column {name!r} appears twice; names must differ")
    return header


def _opened(path: Path, **how: Any) -> IO[Any]:
    try:
        file: IO[Any] = open(path, **how)  # noqa: SIM115
        return file
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; name a file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot be read ({reason}); check the path and its permissions") from None


def _read_parquet(path: Path) -> _Table:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ExtraMissing("Parquet files", "parquet") from None
    with _opened(path, mode="rb") as file:
        try:
            table = pq.read_table(file)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: not a Parquet file ({str(error).splitlines()[0]}); write it again") from None
    header = _checked_header([str(name).strip() for name in table.column_names], str(path))
    columns = (_text_column(column.to_pylist()) for column in table.columns)
    return _Table(str(path), dict(zip(header, columns, strict=True)), 1)


def _text_column(column: list[Any]) -> list[str]:
    """Cells as CSV would show them; a column of whole floats (integers with gaps) as integers."""
    column = [None if isinstance(x, float) and math.isnan(x) else x for x in column]
    present = [x for x in column if x is not None]
    whole = bool(present) and all(isinstance(x, float) and x.is_integer() for x in present)
    return ["" if x is None else str(int(x)) if whole else str(x).strip() for x in column]


def read(*paths: str | os.PathLike[str], classes: Sequence[str] | None = None) -> Reports:
    """Reports from files: CSV or Parquet, long or wide, or NPZ; several files are put together.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "r.csv").write_text("task,ann,bob\\nt1,cat,cat\\nt2,dog,cat\\nt3,dog,\\n")
    >>> read(folder / "r.csv")
    Reports(2 agents, 3 tasks, 2 classes, 1 abstention)
    """
    if not paths:
        raise InputError("no file of reports; name at least one")
    reports = _read_one(Path(paths[0]), classes)
    for path in paths[1:]:
        more = _read_one(Path(path), classes)
        try:
            reports = reports + more
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    return reports._checked(str(paths[0]) if len(paths) == 1 else "these files")


def _read_one(path: Path, classes: Sequence[str] | None) -> Reports:
    if classes is not None:
        classes = checked_names([c.strip() for c in classes], len(classes), "class", "--classes")
    if path.suffix.lower() == ".npz":
        return _from_npz(path, classes)
    if path.suffix.lower() == ".npy":
        raise InputError(
            f"{path}: reports need names for their arrays; save them with np.savez as labels or probabilities (.npz)"
        )
    table = _read_table(path)
    if "agent" in table.columns or "worker" in table.columns:
        return _from_long(table, classes)
    return _from_wide(table, classes)


def _codes(names: Iterable[str]) -> tuple[dict[str, int], list[int]]:
    index: dict[str, int] = {}
    return index, [index.setdefault(name, len(index)) for name in names]


def _class_codes(cells: Iterable[str], classes: Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, int]]:
    names = tuple(classes) if classes is not None else class_order({*cells} - {""})
    return names, {"": -1, **{c: i for i, c in enumerate(names)}}


def _from_wide(table: _Table, classes: Sequence[str] | None) -> Reports:
    agents = [name for name in table.columns if name != "task"]
    if agents == ["label"] or not agents:
        raise InputError(
            f"{table.source}: columns {some(table.columns)} name no agent; "
            "expected task,agent,label or task and one column an agent"
        )
    for name in agents:
        if name.startswith("p:"):
            raise InputError(
                f"{table.source}: column {name!r} has probabilities but there is no column 'agent'; "
                "write task,agent,label,p:<class>"
            )
    tasks = table.require_tasks()
    index, places = _codes(tasks)
    if len(index) < len(tasks):
        row = next(i for i, place in enumerate(places) if place != i)
        table.refuse(row, f"task {tasks[row]!r} appears a second time; keep one row a task")
    names, code = _class_codes((cell for a in agents for cell in table.columns[a]), classes)
    labels = np.empty((len(agents), len(tasks)), dtype=np.int64)
    for k, agent in enumerate(agents):
        try:
            labels[k] = [code[cell] for cell in table.columns[agent]]
        except KeyError as error:
            table.refuse(table.columns[agent].index(error.args[0]), _unknown(agent, error.args[0], names))
    reports = Reports.of(labels, agents=agents, tasks=tasks, classes=names, source=table.source)
    return replace(reports, classes_given=classes is not None)


def _unknown(agent: str, label: str, classes: Sequence[str]) -> str:
    return f"agent {agent!r} has the unknown label {label!r}; the classes are {some(classes)}"


def _from_long(table: _Table, classes: Sequence[str] | None) -> Reports:
    key = "agent" if "agent" in table.columns else "worker"
    given = [name for name in table.columns if name.startswith("p:")]
    strange = [n for n in table.columns if n not in ("task", key, "label", *given)]
    if strange:
        raise InputError(
            f"{table.source}: column {strange[0]!r} is not understood; expected task,agent,label and p:<class> columns"
        )
    if "label" not in table.columns and not given:
        raise InputError(f"{table.source}: no column 'label' and no p:<class> columns; expected task,agent,label")
    agents = table.columns[key]
    for row, agent in enumerate(agents):
        if not agent:
            table.refuse(row, f"column {key!r} is empty; every row needs an agent")
    task_index, task_of = _codes(table.require_tasks())
    agent_index, agent_of = _codes(agents)
    where = np.array(agent_of), np.array(task_of)
    _refuse_twice(table, where, agents)
    if given:
        named = [name[2:].strip() for name in given]
        if classes is not None and sorted(classes) != sorted(named):
            raise InputError(
                f"{table.source}: p: columns {some(named)} are not the classes given, {some(classes)}; name the same"
            )
        classes = classes or checked_names(named, len(named), "class", table.source)
    cells = table.columns.get("label", [])
    names, code = _class_codes(cells, classes)
    shape = len(agent_index), len(task_index)
    labels, rows = np.full(shape, -1), None
    if given:
        rows = np.full((*shape, len(names)), np.nan)
        for c, name in enumerate(names):
            rows[(*where, np.full(len(agents), c))] = table.numbers(given[named.index(name)])
    if cells:
        try:
            labels[where] = [code[cell] for cell in cells]
        except KeyError as error:
            row = cells.index(error.args[0])
            table.refuse(row, _unknown(agents[row], error.args[0], names))
    elif rows is not None:
        labels[where] = np.where(np.isnan(rows[where]).any(1), 0, rows[where].argmax(1))
    reports = Reports.of(labels, rows, agents=[*agent_index], tasks=[*task_index], classes=names, source=table.source)
    return replace(reports, classes_given=classes is not None)


def _refuse_twice(table: _Table, where: tuple[Array, Array], agents: Sequence[str]) -> None:
    pairs = np.stack(where)
    _, first = np.unique(pairs, axis=1, return_index=True)
    if len(first) < pairs.shape[1]:
        row = int(np.setdiff1d(np.arange(pairs.shape[1]), first)[0])
        table.refuse(
            row, f"agent {agents[row]!r} reports task {table.columns['task'][row]!r} a second time; keep one row"
        )


def _load_arrays(path: Path) -> Any:
    """An NPY array or an NPZ's arrays, never a pickled object."""
    with _opened(path, mode="rb") as file:
        try:
            loaded = np.load(file, allow_pickle=False)
            return {name: loaded[name] for name in loaded.files} if isinstance(loaded, np.lib.npyio.NpzFile) else loaded
        except (ValueError, EOFError, OSError, zipfile.BadZipFile, KeyError, NotImplementedError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(
                f"{path}: not a NumPy file of plain arrays ({reason}); write it again with np.savez"
            ) from None


def _from_npz(path: Path, classes: Sequence[str] | None) -> Reports:
    arrays = _load_arrays(path)
    known = ("labels", "probabilities", "agents", "classes", "tasks", "truth", "public")
    if not isinstance(arrays, dict):
        raise InputError(f"{path}: a single array; save it with np.savez as labels (agents, tasks) or probabilities")
    strange = [name for name in arrays if name not in known]
    if strange:
        raise InputError(f"{path}: array {strange[0]!r} is not understood; expected some of {', '.join(known)}")
    for name in ("agents", "classes", "tasks"):
        if name in arrays and arrays[name].ndim != 1:
            raise InputError(f"{path}: array {name!r} has shape {arrays[name].shape}; give a list of names")
    stored = arrays.get("classes")
    if classes is not None and stored is not None and tuple(classes) != tuple(map(str, stored.tolist())):
        raise InputError(
            f"{path}: its classes are {some(map(str, stored.tolist()))}; leave --classes out, or give the same"
        )
    return Reports.of(
        arrays.get("labels"), arrays.get("probabilities"), agents=arrays.get("agents"), tasks=arrays.get("tasks"),
        classes=classes if classes is not None else stored,
        truth=arrays.get("truth"), public=arrays.get("public"), source=str(path),
    )  # fmt: skip


def read_truth(path: str | os.PathLike[str], reports: Reports) -> Reports:
    """The reports with the truth of a file: CSV or Parquet `task,label`, or NPY (N,) beside an NPZ."""
    source = Path(path)
    if source.suffix.lower() == ".npy":
        return reports.with_truth(_load_arrays(source), str(source))
    return reports.with_truth(_label_map(_read_table(source), "truth"), str(source))


def _label_map(table: _Table, what: str) -> dict[str, str]:
    if set(table.columns) != {"task", "label"}:
        raise InputError(f"{table.source}: columns {some(table.columns)}; expected task,label for {what}")
    labels: dict[str, str] = {}
    for row, (task, label) in enumerate(zip(table.require_tasks(), table.columns["label"], strict=True)):
        if task in labels:
            table.refuse(row, f"task {task!r} appears a second time; keep one row a task")
        if label:
            labels[task] = label
    return labels


def read_public(path: str | os.PathLike[str], reports: Reports) -> Reports:
    """The reports with a public signal: `task,label` gives strata, `task,x1,x2,...` features; or NPY."""
    source = Path(path)
    if source.suffix.lower() == ".npy":
        array = _load_arrays(source)
        if not isinstance(array, np.ndarray) or array.ndim not in (1, 2) or len(array) != len(reports.tasks):
            raise InputError(
                f"{source}: shape {getattr(array, 'shape', '?')} for {len(reports.tasks)} tasks; give (N,) or (N, m)"
            )
        return replace(reports, public=array)
    table = _read_table(source)
    place = {task: row for row, task in enumerate(table.require_tasks())}
    if len(place) < len(table.columns["task"]):
        raise InputError(f"{source}: a task appears twice; keep one row a task")
    lost = [task for task in reports.tasks if task not in place]
    if lost:
        raise InputError(f"{source}: task {lost[0]!r} ({len(lost)} in all) has no public signal; every task needs one")
    order = [place[task] for task in reports.tasks]
    if set(table.columns) == {"task", "label"}:
        cells = table.columns["label"]
        strata = {name: i for i, name in enumerate(sorted(set(cells)))}
        return replace(reports, public=np.array([strata[cells[row]] for row in order], dtype=np.int64))
    columns = [table.numbers(name)[order] for name in table.columns if name != "task"]
    if not columns:
        raise InputError(f"{source}: only a column 'task'; expected task,label or task and columns of numbers")
    return replace(reports, public=np.stack(columns, axis=1))


def read_matrix(path: str | os.PathLike[str], classes: Sequence[str]) -> Floats:
    """A matrix over the classes: CSV with a class header, one row a class of the agent."""
    table = _read_csv(Path(path))
    if sorted(table.columns) != sorted(classes):
        raise InputError(f"{path}: header {some(table.columns)}; expected the classes {some(classes)}")
    matrix = np.stack([table.numbers(c) for c in classes], axis=1)
    if len(matrix) != len(classes):
        raise InputError(
            f"{path}: {len(matrix)} rows for {len(classes)} classes; give one row a class, in the header's order"
        )
    return matrix[[list(table.columns).index(c) for c in classes]]


# Writing


def write_atomically(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object]) -> None:
    """Write a whole file or nothing: to a temporary file beside it, then renamed."""
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); check the folder and its permissions"
        ) from None
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written ({error.strerror}); check the space and permissions") from None
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write(reports: Reports, path: str | os.PathLike[str], *, wide: bool = False) -> None:
    """Write reports so that `read` gives them back: .csv or .parquet (long, or wide without rows), .npz.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "reports.npz"
    >>> write(Reports.of(labels=[[0, 1, -1]]), path); read(path)
    Reports(1 agents, 3 tasks, 2 classes, 1 abstention)
    """
    target = Path(path)
    if target.suffix.lower() == ".npz":
        write_atomically(target, lambda file: np.savez_compressed(file, **_arrays(reports)))
        return
    columns = _wide_columns(reports) if wide else _long_columns(reports)
    if target.suffix.lower() in (".parquet", ".pq"):
        write_atomically(target, lambda file: _write_parquet(columns, file))
    else:
        write_atomically(target, lambda file: _write_csv(columns, file))


def _arrays(reports: Reports) -> dict[str, Any]:
    arrays = {
        "labels": reports.labels,
        "probabilities": reports.probabilities,
        "truth": reports.truth,
        "public": reports.public,
        "agents": np.array(reports.agents),
        "tasks": np.array(reports.tasks),
        "classes": np.array(reports.classes),
    }
    return {name: array for name, array in arrays.items() if array is not None}


def _wide_columns(reports: Reports) -> dict[str, Sequence[Any]]:
    if reports.probabilities is not None:
        raise InputError("a wide file has no room for probabilities; write long CSV, Parquet or NPZ")
    cell = [*reports.classes, ""]
    rows = ([cell[i] for i in row] for row in reports.labels.tolist())
    return {"task": reports.tasks, **dict(zip(reports.agents, rows, strict=True))}


def _long_columns(reports: Reports) -> dict[str, Sequence[Any]]:
    k, n = np.nonzero(reports.labels >= 0)
    columns: dict[str, Sequence[Any]] = {
        "task": [reports.tasks[i] for i in n.tolist()],
        "agent": [reports.agents[i] for i in k.tolist()],
        "label": [reports.classes[i] for i in reports.labels[k, n].tolist()],
    }
    if reports.probabilities is not None:
        rows = reports.probabilities[k, n]
        columns |= {f"p:{c}": rows[:, i].tolist() for i, c in enumerate(reports.classes)}
    return columns


def _write_csv(columns: Mapping[str, Sequence[Any]], file: IO[bytes]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    text.detach()


def _write_parquet(columns: Mapping[str, Sequence[Any]], file: IO[bytes]) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ExtraMissing("Parquet files", "parquet") from None
    pq.write_table(pa.table(dict(columns)), file)
