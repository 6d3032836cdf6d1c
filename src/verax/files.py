"""Files: the door through which all outside data comes in. CSV, Parquet, NPZ and NPY, in and out.

Every way a file can be wrong has its sentence: what was seen, where, what was expected, what to do.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from verax.errors import ExtraMissing, InputError
from verax.reports import Array, Floats, Reports, checked_names, class_order, some

_LONGEST_CELL = 10_000
_REPORTS = "task,agent,label (long) or task and one column an agent (wide)"
_SUBMISSIONS = "step,task,agent,label"
_TRUTH = "task,label"
_PUBLIC = "task,label or task and columns of numbers"
_MATRIX = "a header of classes and one row a class"


@dataclass(frozen=True)
class _Table:
    """Columns of text by name, and where each row stands in its file."""

    source: str
    columns: dict[str, list[str]]
    first_row: int
    blank: Sequence[int] = ()

    def refuse(self, row: int, what: str) -> NoReturn:
        number = row + self.first_row
        for blank in self.blank:
            number += blank <= number
        raise InputError(f"{self.source}, row {number}: {what}")

    def numbers(self, name: str) -> Floats:
        column = self.columns[name]
        try:
            return np.array(column, dtype=np.float64)
        except ValueError:
            row = next(i for i, cell in enumerate(column) if not _is_number(cell))
            seen = f"has {column[row]!r}" if column[row] else "is empty"
            self.refuse(row, f"column {name!r} {seen}; expected a number")

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


def _read_table(path: Path, expected: str) -> _Table:
    if path.suffix.lower() == ".npz":
        raise InputError(f"{path}: an NPZ is for reports; expected {expected} as CSV or Parquet, or one array as NPY")
    parquet = path.suffix.lower() in (".parquet", ".pq")
    table = _read_parquet(path) if parquet else _read_csv(path, expected)
    if "task" not in table.columns:
        raise InputError(f"{path}: no column 'task' among {some(table.columns) or 'no columns'}; expected {expected}")
    if not table.columns["task"]:
        raise InputError(f"{path}: a header and no rows; expected one row a report or a task")
    return table


def _read_csv(path: Path, expected: str) -> _Table:
    records = _csv_records(path)
    blank = [number for number, record in enumerate(records, start=1) if not "".join(record).strip()]
    rows = [record for record in records if "".join(record).strip()] if blank else records
    if not rows:
        raise InputError(f"{path}: the file is empty; expected {expected}")
    header = _checked_header([name.strip() for name in rows[0]], str(path))
    width = len(header)
    for i, row in enumerate(rows[1:]):
        if len(row) != width:
            _Table(str(path), {}, 2, blank).refuse(
                i, f"the number of cells is {len(row)}, but the header has {width}; quote commas inside a cell"
            )
    columns = zip(*rows[1:], strict=True) if len(rows) > 1 else iter([()] * width)
    cells = {name: [*map(str.strip, column)] for name, column in zip(header, columns, strict=True)}
    return _Table(str(path), cells, 2, blank)


def _csv_records(path: Path) -> list[list[str]]:
    limit = csv.field_size_limit(_LONGEST_CELL)
    try:
        with _opened(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            try:
                return list(reader)
            except csv.Error as error:
                long = "field larger" in str(error)
                reason = f"a cell is longer than {_LONGEST_CELL} characters" if long else str(error)
                raise InputError(
                    f"{path}, line {reader.line_num}: {reason}; "
                    "expected comma-separated text, a quoted cell closed by its quote"
                ) from None
    except UnicodeDecodeError:
        raise InputError(
            f"{path}, line {_line_not_utf8(path)}: not UTF-8 text; "
            "save the file as CSV in UTF-8, or name it .npz or .parquet if it is one"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the file and its device") from None
    finally:
        csv.field_size_limit(limit)


def _line_not_utf8(path: Path) -> int:
    """The line to look at; the decoder itself only knows its place in a buffer."""
    with _opened(path, mode="rb") as file:
        text = (line.decode(errors="replace").encode() == line for line in file)
        return next((number for number, good in enumerate(text, start=1) if not good), 1)


def _checked_header(header: list[str], source: str) -> list[str]:
    seen = set()
    for i, name in enumerate(header):
        if not name:
            raise InputError(f"{source}: column {i + 1} has no name; give every column a header")
        if name in seen:
            raise InputError(f"{source}: column {name!r} appears twice; names must differ")
        seen.add(name)
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
        import pyarrow.parquet as pq
    except ImportError:
        raise ExtraMissing("Parquet files", "parquet") from None
    with _opened(path, mode="rb") as file:
        try:
            table = pq.read_table(file)
            columns = [_text_column(column.to_pylist()) for column in table.columns]
        except Exception as error:  # what a parser of foreign bytes can raise is not a closed list
            reason = _reason(error).removeprefix("Could not open Parquet input source '<Buffer>': ")
            raise InputError(f"{path}: cannot be read as Parquet ({reason}); write it again") from None
    names = [str(name).strip() for name in table.column_names]
    # pandas stores the row numbers of a filtered table, which would pass for an agent
    kept = [i for i, name in enumerate(names) if not name.startswith("__index_level_")]
    header = _checked_header([names[i] for i in kept], str(path))
    return _Table(str(path), dict(zip(header, (columns[i] for i in kept), strict=True)), 1)


def _reason(error: Exception) -> str:
    """The first sentence of what another library has to say."""
    return (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0]


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
    return reports


def _given(classes: Sequence[str] | None) -> Sequence[str] | None:
    if classes is None:
        return None
    if not classes:
        raise InputError("classes= names no class; give all of them, comma-separated, or leave it out")
    return checked_names([c.strip() for c in classes], len(classes), "class", "classes=")


def _read_one(path: Path, classes: Sequence[str] | None) -> Reports:
    classes = _given(classes)
    if path.suffix.lower() == ".npz":
        return _from_npz(path, classes)
    if path.suffix.lower() == ".npy":
        raise InputError(
            f"{path}: reports need names for their arrays; save them with np.savez as labels or probabilities (.npz)"
        )
    table = _read_table(path, _REPORTS)
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
    if rows is not None:
        best = np.where(np.isnan(rows[where]).any(1), 0, rows[where].argmax(1))
        labels[where] = np.where(labels[where] < 0, best, labels[where])
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
    with _opened(path, mode="rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of headers that Python 2 wrote, and reads them
        try:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.lib.npyio.NpzFile):
                return {name: np.asarray(loaded[name]) for name in loaded.files}
            return loaded
        except MemoryError as error:
            raise InputError(f"{path}: too large for this machine ({_reason(error)}); split it") from None
        except Exception as error:  # what a parser of foreign bytes can raise is not a closed list
            pickled = "pickle" in str(error)  # numpy takes all it does not know for a pickle, and advises to load it
            reason = "unknown bytes, or Python objects" if pickled else _reason(error)
            raise InputError(
                f"{path}: not a NumPy file of plain arrays ({reason}); write it again with np.savez"
            ) from None


def _names(array: Array | None, name: str, path: Path) -> list[str] | None:
    if array is None:
        return None
    if array.ndim != 1:
        raise InputError(f"{path}: array {name!r} has shape {array.shape}; give a list of names")
    try:
        return [x.decode() if isinstance(x, bytes) else str(x) for x in array.tolist()]
    except ValueError:
        raise InputError(f"{path}: array {name!r} has a name that is not text; write it again from strings") from None


def _from_npz(path: Path, classes: Sequence[str] | None) -> Reports:
    return _from_arrays(_load_arrays(path), path, classes)


def _from_arrays(arrays: Any, path: Path, classes: Sequence[str] | None) -> Reports:
    known = ("labels", "probabilities", "agents", "classes", "tasks", "truth", "public")
    if not isinstance(arrays, dict):
        raise InputError(f"{path}: a single array; save it with np.savez as labels (agents, tasks) or probabilities")
    strange = [name for name in arrays if name not in known]
    if strange:
        raise InputError(f"{path}: array {strange[0]!r} is not understood; expected some of {', '.join(known)}")
    agents, tasks, stored = (_names(arrays.get(name), name, path) for name in ("agents", "tasks", "classes"))
    if classes is not None and stored is not None and [*classes] != stored:
        raise InputError(f"{path}: its classes are {some(stored)}; leave classes= out, or give the same")
    return Reports.of(
        arrays.get("labels"), arrays.get("probabilities"), agents=agents, tasks=tasks,
        classes=classes if classes is not None else stored,
        truth=arrays.get("truth"), public=arrays.get("public"), source=str(path),
    )  # fmt: skip


def read_truth(path: str | os.PathLike[str], reports: Reports) -> Reports:
    """The reports with the truth of a file: CSV or Parquet `task,label`, or NPY (N,) beside an NPZ."""
    source = Path(path)
    if source.suffix.lower() == ".npy":
        return reports.with_truth(_one_array(source), str(source))
    return reports.with_truth(_label_map(_read_table(source, _TRUTH)), str(source))


def _one_array(path: Path) -> Array:
    array = _load_arrays(path)
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: several arrays (an NPZ) under the name of one; save one with np.save")
    return array


def _label_map(table: _Table) -> dict[str, str]:
    if set(table.columns) != {"task", "label"}:
        raise InputError(f"{table.source}: columns {some(table.columns)}; expected {_TRUTH} for truth")
    place = _row_of_task(table)
    labels = {task: label for task, label in zip(place, table.columns["label"], strict=True) if label}
    if not labels:
        raise InputError(f"{table.source}: column 'label' is empty in every row; give the label of some tasks")
    return labels


def _row_of_task(table: _Table) -> dict[str, int]:
    """Where each task stands, in the order of the rows; a task may stand once."""
    place: dict[str, int] = {}
    for row, task in enumerate(table.require_tasks()):
        if place.setdefault(task, row) != row:
            table.refuse(row, f"task {task!r} appears a second time; keep one row a task")
    return place


def read_public(path: str | os.PathLike[str], reports: Reports) -> Reports:
    """The reports with a public signal: `task,label` gives strata, `task,x1,x2,...` features; or NPY."""
    source = Path(path)
    if source.suffix.lower() == ".npy":
        array = _one_array(source)
        if array.ndim not in (1, 2) or len(array) != len(reports.tasks):
            raise InputError(f"{source}: shape {array.shape} for {len(reports.tasks)} tasks; give (N,) or (N, m)")
        return replace(reports, public=array)
    table = _read_table(source, _PUBLIC)
    place = _row_of_task(table)
    lost = [task for task in reports.tasks if task not in place]
    if lost:
        raise InputError(f"{source}: task {lost[0]!r} ({len(lost)} in all) has no public signal; every task needs one")
    rows = [place[task] for task in reports.tasks]
    strata = set(table.columns) == {"task", "label"}
    return replace(reports, public=_strata(table, rows) if strata else _features(table, rows))


def _strata(table: _Table, rows: Sequence[int]) -> Array:
    cells = table.columns["label"]
    for row in rows:
        if not cells[row]:
            table.refuse(row, "column 'label' is empty; every task needs a public signal")
    code = {name: i for i, name in enumerate(sorted(set(cells)))}
    return np.array([code[cells[row]] for row in rows], dtype=np.int64)


def _features(table: _Table, rows: Sequence[int]) -> Floats:
    names = [name for name in table.columns if name != "task"]
    if not names:
        raise InputError(f"{table.source}: only a column 'task'; expected {_PUBLIC}")
    features = np.stack([table.numbers(name)[rows] for name in names], axis=1)
    for n, m in np.argwhere(~np.isfinite(features))[:1]:
        table.refuse(rows[n], f"column {names[m]!r} has {features[n, m]}; expected a finite number, fill or drop it")
    return features


def read_tasks(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The tasks that a CSV or Parquet file names in its column `task`, in order; other columns are not looked at."""
    return tuple(_row_of_task(_read_table(Path(path), "a column task")))


def read_prediction(path: str | os.PathLike[str], classes: Sequence[str]) -> Reports:
    """One agent's report: `task,label` (and p:<class> columns), or any file of reports with one agent."""
    source = Path(path)
    if source.suffix.lower() in (".npz", ".npy"):
        reports = _read_one(source, classes)
    else:
        table = _read_table(source, "task,label")
        if not {"agent", "worker"} & set(table.columns) and any(c == "label" or c[:2] == "p:" for c in table.columns):
            table = replace(table, columns={**table.columns, "agent": ["it"] * len(table.columns["task"])})
        long = bool({"agent", "worker"} & set(table.columns))
        reports = _from_long(table, classes) if long else _from_wide(table, classes)
    if len(reports.agents) != 1:
        raise InputError(f"{path}: {len(reports.agents)} agents; a submission is one agent's report: task,label")
    return reports


def read_matrix(path: str | os.PathLike[str], classes: Sequence[str]) -> Floats:
    """A matrix over the classes: CSV with a class header, one row a class of the agent."""
    table = _read_csv(Path(path), _MATRIX)
    if sorted(table.columns) != sorted(classes):
        raise InputError(f"{path}: header {some(table.columns)}; expected the classes {some(classes)}")
    matrix = np.stack([table.numbers(c) for c in classes], axis=1)
    if len(matrix) != len(classes):
        raise InputError(
            f"{path}: {len(matrix)} rows for {len(classes)} classes; give one row a class, in the header's order"
        )
    return matrix[[list(table.columns).index(c) for c in classes]]


def read_text(path: str | os.PathLike[str]) -> str:
    """A UTF-8 text file, or the sentence that says why not."""
    with _opened(Path(path), encoding="utf-8-sig") as file:
        try:
            return str(file.read())
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: byte {error.start} is not UTF-8 text; save it in UTF-8") from None


def read_submissions(
    path: str | os.PathLike[str], classes: Sequence[str] | None = None
) -> tuple[Reports, tuple[str, ...]]:
    """A market's submissions: reports whose agents are the steps, in order of arrival, and whose each step is.

    CSV or Parquet `step,task,agent,label` and p:<class> columns, or an NPZ with a row a step.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "s.csv").write_text("step,task,agent,label\\n7,a,bob,1\\n7,b,bob,0\\n2,a,ann,1\\n")
    >>> read_submissions(folder / "s.csv")
    (Reports(2 agents, 2 tasks, 2 classes, 1 abstention), ('ann', 'bob'))
    """
    source = Path(path)
    if source.suffix.lower() == ".npz":
        return _steps_of_arrays(source, _given(classes))
    if source.suffix.lower() == ".npy":
        raise InputError(f"{path}: submissions need names for their arrays; save them with np.savez (.npz)")
    table = _read_table(source, _SUBMISSIONS)
    key = "agent" if "agent" in table.columns else "worker"
    if not {"step", key} <= table.columns.keys():
        raise InputError(f"{path}: columns {some(table.columns)}; expected {_SUBMISSIONS}")
    owners: dict[int, str] = {}
    steps = []
    for row, (step, agent) in enumerate(zip(table.columns["step"], table.columns[key], strict=True)):
        if not re.fullmatch("-?[0-9]{1,18}", step):
            table.refuse(row, f"column 'step' has {step!r}; number the submissions in order of arrival")
        steps.append(int(step))
        if not agent or owners.setdefault(steps[-1], agent) != agent:
            seen = f"is of {agent!r} here and of {owners[steps[-1]]!r} above" if agent else "is of nobody"
            table.refuse(row, f"step {step} {seen}; a step has one agent")
    kept = {name: cells for name, cells in table.columns.items() if name not in ("step", key)}
    reports = _from_long(replace(table, columns={**kept, "agent": [f"step {n}" for n in steps]}), _given(classes))
    rank = np.argsort([*owners])  # both in order of first appearance
    rows = None if reports.probabilities is None else reports.probabilities[rank]
    arrived = replace(reports, labels=reports.labels[rank], probabilities=rows, agents=tuple(map(str, sorted(owners))))
    return arrived, tuple(owners[n] for n in sorted(owners))


def _steps_of_arrays(path: Path, classes: Sequence[str] | None) -> tuple[Reports, tuple[str, ...]]:
    """An NPZ's rows as steps 1, 2, ...; its `agents` are whose they are, and may repeat."""
    arrays = _load_arrays(path)
    if not isinstance(arrays, dict):
        raise InputError(f"{path}: a single array; save it with np.savez as labels (steps, tasks) or probabilities")
    owners = _names(arrays.get("agents"), "agents", path)
    held = next((arrays[name] for name in ("labels", "probabilities") if name in arrays), np.empty(0))
    count = len(np.atleast_1d(held))
    numbers = range(1, count + 1)
    reports = _from_arrays({**arrays, "agents": np.array([f"step {n}" for n in numbers])}, path, classes)
    if owners is not None and len(owners) != count:
        raise InputError(f"{path}: {len(owners)} agents for {count} steps; say who submitted each")
    named = tuple(map(str, range(count))) if owners is None else tuple(owners)
    return replace(reports, agents=tuple(map(str, numbers))), named


# Writing


def write_atomically(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object]) -> None:
    """Write a whole file or nothing: to a temporary file beside it, then renamed; to a pipe or device, plainly."""
    target = Path(path)
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            with open(target, "wb") as file:
                write(file)
        else:
            _replace(Path(os.path.realpath(target)), write)
    except OSError as error:
        reason = error.strerror or _reason(error)
        raise InputError(f"{path}: cannot be written ({reason}); check the folder, its space and permissions") from None


def _replace(target: Path, write: Callable[[IO[bytes]], object]) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write(reports: Reports, path: str | os.PathLike[str], *, wide: bool = False) -> None:
    """Write reports so that `read` gives them back: .csv or .parquet (long, or wide without rows), .npz.

    A long file holds the agents, tasks and classes that some row mentions; an NPZ holds them all.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "reports.npz"
    >>> write(Reports.of(labels=[[0, 1, -1]]), path); read(path)
    Reports(1 agents, 3 tasks, 2 classes, 1 abstention)
    """
    target = Path(path)
    if target.suffix.lower() == ".npz":
        write_atomically(target, lambda file: np.savez_compressed(file, **_arrays(reports)))
        return
    if target.suffix.lower() == ".npy":
        raise InputError(f"{path}: an NPY has room for one array only; name the file .npz, .parquet or .csv")
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
    for agent in reports.agents:
        if agent in ("task", "agent", "worker") or agent.startswith("p:") or reports.agents == ("label",):
            raise InputError(f"a column {agent!r} of a wide file would not be read as an agent; write long or NPZ")
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
