"""What goes beside reports: truth, public signals, lists of tasks, matrices; and reports of one agent, or in steps."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.arrays import public_array, truth_map
from verax.columns import Column, Reading, is_frame
from verax.columns import table_of as table_of_frame
from verax.errors import InputError, OptionError
from verax.labels import Array, Floats, Labels, checked_names, class_order, narrow, number, numbers_of, some
from verax.layout import PUBLIC, SUBMISSIONS, TRUTH, kept_columns, one_row_a_task, task_column
from verax.reports import Reports
from verax.tables import arrays
from verax.tables.formats import Shard, blocks, format_of, table_of, tables_of
from verax.tables.source import Source
from verax.tables.text import read_csv

Digests = npt.NDArray[np.uint64]
_MATRIX = "a header of classes and one row a class"


def read_truth(given: Any, reports: Reports, reading: Reading | None = None, **fields: Any) -> Reports:
    """The reports with the truth of a file: `task,label` in any format of tables, or NPY (N,) beside an NPZ.

    Columns that were chosen for the reports count here too where the file has them; `truth_col` is the label.

    >>> read_truth(b"id,gold\\n0,1\\n", Reports.of([[0, 1]])).truth.tolist()
    [1, -1]
    """
    how = Reading.of(reading, **fields)
    if is_frame(given):
        known = truth_map(table_of_frame(given, "the truth", how), how, some_known=True)
        return reports.with_truth(known)
    source = Source.of(given, how)
    if source.endings[:1] == (".npy",):
        return reports.with_truth(arrays.truth_in(arrays.load_one(source, how), source), source.name)
    return reports.with_truth(truth_map(table_of(source, how, TRUTH), how, some_known=True), source.name)


def read_public(given: Any, reports: Reports, reading: Reading | None = None, **fields: Any) -> Reports:
    """The reports with a public signal: `task,label` gives strata, `task,x1,x2,...` features; or NPY."""
    how = Reading.of(reading, **fields)
    if is_frame(given):
        table = table_of_frame(given, "the public signal", how)
        return reports.with_public(public_array(table, reports.tasks, how))
    source = Source.of(given, how)
    if source.endings[:1] == (".npy",):
        return reports.with_public(arrays.load_one(source, how), source.name)
    return reports.with_public(public_array(table_of(source, how, PUBLIC), reports.tasks, how), source.name)


def read_tasks(given: Any, reading: Reading | None = None, **fields: Any) -> tuple[str, ...]:
    """The tasks that a file names in its column `task`, in order; other columns are not looked at.

    >>> read_tasks(b"task,note\\nt1,x\\nt2,y\\n")
    ('t1', 't2')
    """
    how = Reading.of(reading, **fields)
    source = Source.of(given, how)
    table = table_of(source, how, "a column task")
    return tuple(one_row_a_task(table, task_column(source.name, [*table.columns], how, "a column task")))


def read_prediction(
    given: Any, classes: Sequence[str] | None = None, reading: Reading | None = None, **fields: Any
) -> Reports:
    """One agent's report: `task,label` (and p:<class> columns), or any file of reports with one agent.

    >>> read_prediction(b"task,label\\nt1,cat\\nt2,dog\\n", ["cat", "dog"]).labels.tolist()
    [[0, 1]]
    """
    how = Reading.of(reading, **fields, **({} if classes is None else {"classes": classes}))
    source = Source.of(given, how)
    format = format_of(source, how)
    if format.table is None:
        [reports] = format.blocks(source, Shard(source.name, reading=how))
    else:
        reports = Reports.of_table(format.table(source, how, TRUTH), how, agent="it").with_one_spelling()
    if len(reports.agents) != 1:
        raise InputError(f"{source.name}: {len(reports.agents)} agents; a submission is one agent's report: task,label")
    return reports


def read_matrix(path: str | os.PathLike[str], classes: Sequence[str]) -> Floats:
    """A matrix over the classes: CSV with a class header, one row a class of the agent."""
    table = read_csv(Source.of(path, Reading()), Reading(), _MATRIX)
    if sorted(table.columns) != sorted(classes):
        raise InputError(f"{path}: header {some(table.columns)}; expected the classes {some(classes)}")
    matrix = np.stack([table.numbers(c) for c in classes], axis=1)
    if len(matrix) != len(classes):
        raise InputError(
            f"{path}: {len(matrix)} rows for {len(classes)} classes; give one row a class, in the header's order"
        )
    return matrix[[list(table.columns).index(c) for c in classes]]


def read_agents(given: Any, **fields: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Whose public key is whose, and of which organisation who has one is: columns `agent,key[,organisation]`.

    >>> read_agents(b"agent,key,organisation\\nann,11,Acme\\nbob,22,\\n")
    ({'ann': '11', 'bob': '22'}, {'ann': 'Acme'})
    """
    how = Reading.of(None, **fields)
    table = table_of(Source.of(given, how), how, "columns agent,key")
    if not {"agent", "key"} <= {*table.columns}:
        raise InputError(f"{table.source}: columns {some(table.columns)}; expected agent,key or agent,key,organisation")
    known = table.cells("organisation") if "organisation" in table.columns else [""] * len(table.cells("agent"))
    found: dict[str, str] = {}
    organisations: dict[str, str] = {}
    for row, (agent, key, of) in enumerate(zip(table.cells("agent"), table.cells("key"), known, strict=True)):
        if not agent or not key or agent in found or key in found.values():
            table.refuse(row, f"agent {agent!r} with key {key!r}; name each agent once, with a key of its own")
        found[agent] = key
        organisations |= {agent: of} if of else {}
    return found, organisations


def read_submissions(
    given: Any, classes: Sequence[str] | None = None, reading: Reading | None = None, **fields: Any
) -> tuple[Reports, tuple[str, ...]]:
    """A market's submissions: reports whose agents are the steps, in order of arrival, and whose each step is.

    CSV or Parquet `step,task,agent,label` and p:<class> columns, or an NPZ with a row a step.

    >>> read_submissions(b"step,task,agent,label\\n7,a,bob,1\\n7,b,bob,0\\n2,a,ann,1\\n")
    (Reports(2 agents, 2 tasks, 2 classes, 1 abstention), ('ann', 'bob'))
    """
    how = Reading.of(reading, **fields, **({} if classes is None else {"classes": classes}))
    source = Source.of(given, how)
    format = format_of(source, how).name
    if format == "NPZ":
        return _steps_of_arrays(arrays.load(source, how), source, how)
    if format == "NPY":
        raise InputError(f"{source.name}: submissions need names for their arrays; save them with np.savez (.npz)")
    table = table_of(source, how, SUBMISSIONS)
    kept, _ = kept_columns(table, how)
    task_column(source.name, kept, how, SUBMISSIONS)
    key = how.agent_col or ("agent" if "agent" in kept else "worker")
    if not {"step", key} <= {*kept}:
        raise InputError(f"{source.name}: columns {some(table.columns)}; expected {SUBMISSIONS}")
    owners: dict[int, str] = {}
    steps = []
    for row, (step, agent) in enumerate(zip(table.cells("step"), table.cells(key), strict=True)):
        whole = number(step) or ""
        if not re.fullmatch("-?[0-9]{1,18}", whole):
            table.refuse(row, f"column 'step' has {step!r}; number the submissions in order of arrival")
        steps.append(int(whole))
        if not agent or owners.setdefault(steps[-1], agent) != agent:
            seen = f"is of {agent!r} here and of {owners[steps[-1]]!r} above" if agent else "is of nobody"
            table.refuse(row, f"step {step} {seen}; a step has one agent")
    columns = {name: table.columns[name] for name in kept if name not in ("step", key)}
    table = replace(table, columns={**columns, "agent": Column.of([f"step {n}" for n in steps])})
    reports = Reports.of_table(table, replace(how, agent_col=None)).with_one_spelling()
    rank = np.argsort([*owners])  # both in order of first appearance
    rows = None if reports.probabilities is None else reports.probabilities[rank]
    arrived = replace(reports, held=reports.labels[rank], probabilities=rows, agents=tuple(map(str, sorted(owners))))
    return arrived, tuple(owners[n] for n in sorted(owners))


def _steps_of_arrays(held: Any, source: Source, reading: Reading) -> tuple[Reports, tuple[str, ...]]:
    """An NPZ's rows as steps 1, 2, ...; its `agents` are whose they are, and may repeat."""
    if not isinstance(held, dict):
        raise InputError(
            f"{source.name}: a single array; save it with np.savez as labels (steps, tasks) or probabilities"
        )
    owners = arrays.names_in(held, "agents", source)
    first: Array = next((held[name] for name in ("labels", "probabilities") if name in held), np.empty(0))
    if owners is not None:
        checked_names(dict.fromkeys(owners), len({*owners}), "agent", source.name)
    numbers = range(1, len(np.atleast_1d(first)) + 1)
    reports = arrays.reports_of(held | {"agents": np.array([f"step {n}" for n in numbers])}, source, reading)
    if owners is not None and len(owners) != len(numbers):
        raise InputError(f"{source.name}: {len(owners)} agents for {len(numbers)} steps; say who submitted each")
    named = tuple(map(str, range(len(numbers)))) if owners is None else tuple(owners)
    return replace(reports, agents=tuple(map(str, numbers))), named


# Tasks by digest, and their truth


def digests(tasks: Iterable[str]) -> Digests:
    """Eight bytes a task, by which tasks are told apart without keeping their names.

    >>> digests(["a", "b"]).dtype
    dtype('uint64')
    """
    found = b"".join(hashlib.blake2b(task.encode(), digest_size=8).digest() for task in tasks)
    return np.frombuffer(found, dtype="<u8").astype(np.uint64)


def task_of(shard: Shard, digest: int) -> str | None:
    """The first task of a shard that has this digest."""
    for block in blocks(shard):
        for place in np.nonzero(digests(block.tasks) == np.uint64(digest))[0].tolist():
            return block.tasks[place]
    return None


@dataclass(frozen=True, eq=False)
class Truth:
    """The truth of many tasks, a few bytes each.

    >>> Truth.of({"t1": "dog", "t2": "cat"}).codes_of(digests(["t2", "t3"])).tolist()
    [0, -1]
    """

    tasks: Digests
    labels: Labels
    classes: tuple[str, ...]
    first: tuple[str, str]
    source: str

    @classmethod
    def of(cls, truth: Mapping[str, str], source: str = "the truth") -> Truth:
        """From a mapping of tasks to labels; numbers are spelled in one way, where all labels are."""
        return cls._of_parts([(digests(truth), [*truth.values()])], next(iter(truth.items()), ("", "")), source)

    @classmethod
    def _of_parts(cls, parts: Iterable[tuple[Digests, Sequence[str]]], first: tuple[str, str], source: str) -> Truth:
        index: dict[str, int] = {}
        coded = [(marks, [index.setdefault(text, len(index)) for text in texts]) for marks, texts in parts]
        spelled = numbers_of(index) or {label: label for label in index}
        classes = class_order({*spelled.values()})
        rank = np.array([classes.index(spelled[label]) for label in index], dtype=np.int64)
        marks = np.concatenate([np.empty(0, np.uint64), *(marks for marks, _ in coded)])
        order = np.argsort(marks)
        codes = rank[np.concatenate([np.empty(0, np.int64), *(np.array(c, np.int64) for _, c in coded)])[order]]
        return cls(marks[order], narrow(codes, len(classes)), classes, first, source)

    def codes_of(self, tasks: Digests) -> Labels:
        """The truth of these tasks, -1 where it is not known."""
        if not len(self.tasks):
            return np.full(len(tasks), -1, dtype=np.int8)
        place = np.minimum(np.searchsorted(self.tasks, tasks), len(self.tasks) - 1)
        return np.where(self.tasks[place] == tasks, self.labels[place], self.labels.dtype.type(-1))


def truth_of(path: str | os.PathLike[str], reading: Reading | None = None, **fields: Any) -> Truth:
    """The truth of a file `task,label`.

    >>> import tempfile; from pathlib import Path; path = Path(tempfile.mkdtemp()) / "truth.csv"
    >>> _ = path.write_text("task,label\\nt1,cat\\nt2,dog\\n")
    >>> truth_of(path).classes
    ('cat', 'dog')
    """
    how = Reading.of(reading, **fields)
    source = Source.of(path, how)
    if source.endings[:1] == (".npy",):
        raise OptionError(f"{path}: an NPY file goes in the task order of one NPZ; give task,label with shards")
    parts, first = [], None
    for table in tables_of(source, how, TRUTH):
        known = truth_map(table, how)
        first = first or next(iter(known.items()), None)
        parts.append((digests(known), [*known.values()]))
    found = Truth._of_parts(parts, first or ("", ""), source.name)
    if first is None or (found.tasks[1:] == found.tasks[:-1]).any():
        truth_map(table_of(source, how, TRUTH), how, some_known=True)  # which says what is wrong
    return found
