"""Layout: the arrays that the rows of a table make, once it is known which column is what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from verax.columns import Codes, Column, Reading, Table
from verax.errors import InputError
from verax.labels import (
    MISSING,
    Array,
    Floats,
    Labels,
    checked_names,
    class_index,
    class_order,
    label_type,
    number,
    some,
    unguarded,
)  # fmt: skip
from verax.roles import PUBLIC, Roles, is_unique, kept_columns, refuse_classes, roles_of, task_column, truth_columns


@dataclass(frozen=True)
class Laid:
    """What a table says, as arrays: the arguments of Reports.of, with what there is to say of them."""

    labels: Labels
    rows: Floats | None
    agents: tuple[str, ...]
    tasks: tuple[str, ...]
    classes: tuple[str, ...]
    classes_given: bool
    truth: Mapping[str, str] | None
    notes: tuple[str, ...]


def laid_out(table: Table, reading: Reading, roles: Roles | None = None, agent: str | None = None) -> Laid:
    """The arrays that a table of reports makes."""
    roles = roles or roles_of(table, reading, agent)
    if not len(table):
        raise InputError(f"{table.source}: a header and no rows; expected one row a report or a task")
    return _of_long(table, reading, roles, agent) if not roles.agents else _of_wide(table, reading, roles)


def task_names(table: Table, column: str) -> tuple[list[str], Codes]:
    """The tasks in order of first appearance, and which of them each row is about."""
    codes = table.columns[column].codes
    for row in np.nonzero(codes < 0)[0][:1].tolist():
        table.refuse(row, f"column {column!r} is empty; every row needs a task")
    return _by_first_appearance(table, column)


def one_row_a_task(table: Table, column: str) -> list[str]:
    """The tasks, row by row; a task may stand once."""
    names, place = task_names(table, column)
    if len(names) < len(place):
        row = int((place != np.arange(len(place))).argmax())
        table.refuse(row, f"task {names[place[row]]!r} appears a second time; keep one row a task")
    return names


def _by_first_appearance(table: Table, name: str) -> tuple[list[str], Codes]:
    """Texts in order of first appearance, and which of them each cell has."""
    column = table.columns[name]
    if np.array_equal(column.codes, np.arange(len(column.texts))):
        return [*map(unguarded, column.texts)] if table.guarded else [*column.texts], column.codes
    first = np.full(len(column.texts) + 1, len(column))
    first[column.codes[::-1]] = np.arange(len(column))[::-1]  # of those that share a code, the first stays
    order = np.argsort(first, kind="stable")[: int((first < len(column)).sum())]
    rank = np.empty(len(first), dtype=np.int64)
    rank[order] = np.arange(len(order))
    texts = [column.texts[code] for code in order.tolist()]
    return [*map(unguarded, texts)] if table.guarded else texts, rank[column.codes]


def _of_wide(table: Table, reading: Reading, roles: Roles) -> Laid:
    tasks = one_row_a_task(table, roles.task)
    reading.refuse_cells(table.source, len(roles.agents), len(tasks))
    names, code, notes = _classes_of(table, roles.agents, len(tasks), reading)
    labels = np.empty((len(roles.agents), len(tasks)), dtype=label_type(len(names)))
    agents = tuple(map(unguarded, roles.agents)) if table.guarded else roles.agents
    for k, agent in enumerate(agents):
        labels[k] = _as_classes(table, table.columns[roles.agents[k]], code, names, [agent])
    return Laid(
        labels, None, agents, tuple(tasks), names, reading.classes is not None,
        _truth_beside(table, roles, tasks, np.arange(len(tasks))), (*table.notes, *roles.notes, *notes),
    )  # fmt: skip


def _of_long(table: Table, reading: Reading, roles: Roles, agent: str | None) -> Laid:
    task_list, task = task_names(table, roles.task)
    if roles.agent is None:
        agent_list, who = [agent or ""], np.zeros_like(task)
    else:
        for row in np.nonzero(table.columns[roles.agent].codes < 0)[0][:1].tolist():
            table.refuse(row, f"column {roles.agent!r} is empty; every row needs an agent")
        agent_list, who = _by_first_appearance(table, roles.agent)
    shape = len(agent_list), len(task_list)
    reading.refuse_cells(table.source, *shape, *[len(roles.rows)] * bool(roles.rows))
    place = who.astype(np.int64) * len(task_list) + task
    _refuse_twice(table, place, agent_list, task_list)
    classes = _row_classes(table, reading, roles)
    labelled = [] if roles.label is None else [roles.label]
    names, code, notes = _classes_of(table, labelled, len(task_list), replace(reading, classes=classes))
    cells = np.full(len(place), -1, dtype=label_type(len(names)))
    for column in map(table.columns.__getitem__, labelled):
        if classes is None and len(agent_list) > 1 and is_unique(column):
            refuse_classes(table.source, len(column.texts), len(task_list), labelled[0], reading)
        cells = _as_classes(table, column, code, names, agent_list, who)
    rows = None
    if roles.rows:
        found = np.stack([table.numbers(roles.rows[name]) for name in _in_order(roles.rows, names)], axis=1)
        found = softmax(found) if reading.logits else found
        best = np.where(np.isnan(found).any(1), 0, found.argmax(1))
        cells = np.where(cells < 0, best, cells).astype(cells.dtype)
        rows = np.full((*shape, len(names)), np.nan)
        rows.reshape(-1, len(names))[place] = found
    labels = np.full(shape, -1, dtype=cells.dtype)
    labels.reshape(-1)[place] = cells
    return Laid(
        labels, rows, tuple(agent_list), tuple(task_list), names, classes is not None,
        _truth_beside(table, roles, task_list, task), (*table.notes, *roles.notes, *notes),
    )  # fmt: skip


def softmax(logits: Floats) -> Floats:
    """Probabilities from logits, row by row; what is not finite stays so, to be refused.

    >>> softmax(np.log([[1.0, 3.0]])).tolist()
    [[0.25, 0.75]]
    """
    with np.errstate(invalid="ignore"):
        raised = np.exp(logits - logits.max(-1, keepdims=True))
    found: Floats = raised / raised.sum(-1, keepdims=True)
    return found


def _in_order(rows: Mapping[str, str], names: Sequence[str]) -> list[str]:
    index = class_index(rows, names)
    return sorted(rows, key=lambda name: index[name])


def _row_classes(table: Table, reading: Reading, roles: Roles) -> tuple[str, ...] | None:
    """The classes that are given, or that the columns of probabilities name."""
    if not roles.rows:
        return reading.classes
    named = checked_names([*roles.rows], len(roles.rows), "class", table.source)
    classes = reading.classes or named
    if len(class_index(named, classes)) < len(classes) or len(named) != len(classes):
        raise InputError(
            f"{table.source}: p: columns {some(named)} are not the classes given, {some(classes)}; name the same"
        )
    return classes


def _refuse_twice(table: Table, place: Array, agents: Sequence[str], tasks: Sequence[str]) -> None:
    there = np.zeros(len(agents) * len(tasks), dtype=bool)
    there[place] = True
    if there.sum() == len(place):
        return
    order = np.argsort(place, kind="stable")
    row = int(order[1:][place[order[1:]] == place[order[:-1]]].min())
    agent, task = agents[int(place[row]) // len(tasks)], tasks[int(place[row]) % len(tasks)]
    table.refuse(row, f"agent {agent!r} reports task {task!r} a second time; keep one row")


def _classes_of(
    table: Table, names: Sequence[str], tasks: int, reading: Reading
) -> tuple[tuple[str, ...], dict[str, int], list[str]]:
    """The classes of some columns, what each text that occurs is among them (-1 an abstention), and notes."""
    columns = [table.columns[name] for name in names]
    seen = [*dict.fromkeys(text for column in columns for text in _texts_used(column))]
    known = {*(reading.classes or ())}
    missing = [text for text in seen if text in MISSING and text not in known and not table.literal]
    labels = {text: unguarded(text) if table.guarded else text for text in seen if text not in missing}
    classes = reading.classes if reading.classes is not None else class_order({*labels.values()})
    if len(classes) > reading.max_classes and reading.classes is None:
        refuse_classes(table.source, len(classes), tasks, names[0], reading)
    index = class_index({*labels.values()}, classes)
    code = {text: index[label] for text, label in labels.items() if label in index} | dict.fromkeys(missing, -1)
    return classes, code, [*_missing_notes(columns, missing), *_minus_one(classes, known)]


def _texts_used(column: Column) -> Iterable[str]:
    return (text for text, used in zip(column.texts, column.used, strict=True) if used)


def _missing_notes(columns: Sequence[Column], missing: Sequence[str]) -> Iterator[str]:
    for text in missing:
        places = ((column, [*column.texts].index(text)) for column in columns if text in column.texts)
        count = sum(int((column.codes == code).sum()) for column, code in places)
        yield (
            f"{count:,} cell{'s' * (count != 1)} that say{'s' * (count == 1)} {text!r} "
            f"{'are abstentions' if count != 1 else 'is an abstention'}: if it is a label, name it with classes="
        )


def _minus_one(names: Sequence[str], known: set[str]) -> Iterator[str]:
    if "-1" in names and "-1" not in known and all(number(name) for name in names) and "-2" not in names:
        yield "-1 is a label here: leave a cell empty where an agent says nothing"


def _as_classes(
    table: Table, column: Column, code: Mapping[str, int], names: Sequence[str], agents: Sequence[str],
    who: Array | None = None,
) -> Labels:  # fmt: skip
    """The cells as classes; a text that is none is refused, by the first row that has it."""
    lost = [
        i for i, (text, used) in enumerate(zip(column.texts, column.used, strict=True)) if used and text not in code
    ]
    if lost:
        row = int(np.isin(column.codes, lost).argmax())
        agent, text = agents[0 if who is None else int(who[row])], column.texts[int(column.codes[row])]
        table.refuse(row, f"agent {agent!r} has the unknown label {text!r}; the classes are {some(names)}")
    new = np.array([*(code.get(text, -1) for text in column.texts), -1], dtype=label_type(len(names)))
    return np.asarray(new[column.codes])


def _truth_beside(table: Table, roles: Roles, tasks: Sequence[str], task: Array) -> dict[str, str] | None:
    """The truth in a column of the reports, the same in every row of a task."""
    if roles.truth is None:
        return None
    found: dict[str, str] = {}
    for row, (at, label) in enumerate(zip(task.tolist(), label_texts(table, roles.truth), strict=True)):
        if label and found.setdefault(tasks[at], label) != label:
            table.refuse(
                row, f"task {tasks[at]!r} has the truth {label!r} here and {found[tasks[at]]!r} above; keep one"
            )
    return found


def label_texts(table: Table, name: str) -> list[str]:
    """The labels of a column, cell by cell; what is missing is empty."""
    column = table.columns[name]
    texts = ["" if text in MISSING and not table.literal else unguarded(text) if table.guarded else text
             for text in column.texts]  # fmt: skip
    return Column(column.codes, texts).cells()


# What is known of the tasks: their truth, and the public signal


def truth_map(table: Table, reading: Reading, some_known: bool = False) -> dict[str, str]:
    """The label of each task of which it is known; where `some_known`, there must be one."""
    task, label = truth_columns(table, reading)
    if not len(table):
        raise InputError(f"{table.source}: a header and no rows; expected one row a report or a task")
    names = one_row_a_task(table, task)
    labels = {name: text for name, text in zip(names, label_texts(table, label), strict=True) if text}
    if some_known and not labels:
        raise InputError(f"{table.source}: column {label!r} is empty in every row; give the label of some tasks")
    return labels


def public_array(table: Table, tasks: Sequence[str], reading: Reading) -> Array:
    """The public signal of these tasks: strata of `task,label`, or features of `task,x1,x2,...`."""
    kept, _ = kept_columns(table, replace(reading, agent_col=None, label_col=None, truth_col=None))
    task = task_column(table.source, kept, reading, PUBLIC)
    place = {name: row for row, name in enumerate(one_row_a_task(table, task))}
    lost = [name for name in tasks if name not in place]
    if lost:
        raise InputError(
            f"{table.source}: task {lost[0]!r} ({len(lost)} in all) has no public signal; every task needs one"
        )
    rows = np.array([place[name] for name in tasks], dtype=np.int64)
    names = [name for name in kept if name != task]
    return _strata_of(table, rows) if names == ["label"] else _features_of(table, names, rows)


def _strata_of(table: Table, rows: Array) -> Array:
    column = table.columns["label"]
    codes = column.codes[rows]
    for row in rows[codes < 0][:1].tolist():
        table.refuse(row, "column 'label' is empty; every task needs a public signal")
    rank = np.argsort(np.argsort(np.array(column.texts)))
    return np.asarray(rank[codes], dtype=np.int64)


def _features_of(table: Table, names: Sequence[str], rows: Array) -> Floats:
    if not names:
        raise InputError(f"{table.source}: only a column 'task'; expected {PUBLIC}")
    features = np.stack([table.numbers(name)[rows] for name in names], axis=1)
    for n, m in np.argwhere(~np.isfinite(features))[:1]:
        table.refuse(
            int(rows[n]), f"column {names[m]!r} has {features[n, m]}; expected a finite number, fill or drop it"
        )
    return features
