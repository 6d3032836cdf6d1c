"""Layout: which column of a table is what, and the arrays that its rows then make.

A table is long (task, agent, label and p:<class> columns) or wide (task and one column an agent). A column that could
be two things is asked about, one that is no agent is never taken for one, and whatever was decided is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from verax.answers import Answers, Ints, second_time, stays_sparse
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
)
from verax.vocabulary import (
    AGENT,
    LABEL,
    TASK,
    TRUE,
    called,
    is_about_tasks,
    is_nameless,
    names_a_task,
    says_labels,
    sums_up,
)

REPORTS = "task,agent,label (long) or task and one column an agent (wide)"
TRUTH = "task,label"
PUBLIC = "task,label or task and columns of numbers"
SUBMISSIONS = "step,task,agent,label"

_ENOUGH = 20  # rows, below which how often a text occurs says nothing
_UNKNOWN = -2  # the code of a text that is no class


# Roles


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are, and what there is to say of that."""

    task: str
    agent: str | None = None
    label: str | None = None
    truth: str | None = None
    rows: Mapping[str, str] = field(default_factory=dict)  # class -> column of its probabilities
    agents: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def roles_of(table: Table, reading: Reading, agent: str | None = None) -> Roles:
    """What the columns of reports are; `agent` is whose they are where no column says."""
    kept, notes = kept_columns(table, reading)
    notes += [f"no column {name!r} to leave out" for name in reading.drop if name not in table.columns]
    task = task_column(table.source, kept, reading, REPORTS if agent is None else TRUTH)
    truth = None if reading.truth_col is None else _chosen(reading.truth_col, "truth_col", kept, table.source)
    rest = [name for name in kept if name not in (task, truth)]
    rows = [name for name in rest if name.startswith("p:")]
    label = column_called(table.source, rest, reading.label_col, "label_col", ("label",), LABEL)
    who = column_called(table.source, rest, reading.agent_col, "agent_col", ("agent", "worker"), AGENT)
    if who is not None and label is None and not rows:
        if reading.agent_col is None and not called([who], {"agent", "worker"}):
            raise InputError(
                f"{table.source}: column {who!r} may name the agents or be one, and no column is the label; "
                f"name both with agent_col= and label_col=, rename it, or leave it out with drop={who!r}"
            )
        raise InputError(
            f"{table.source}: no column 'label' and no p:<class> columns; expected task,agent,label, or label_col="
        )
    taken = {"task": task, "agent": who, "label": label, "truth": truth}
    if who is None and not (agent is not None and (label or rows)):
        if reading.label_col is not None:
            raise InputError(
                f"{table.source}: label_col= is of a long file, and no column names the agents; give agent_col="
            )
        _refuse_no_agents(table, rest)
        strangers = _check_agents(table, rest, reading)
        taken |= {"agent": None, "label": None}
        return Roles(task, truth=truth, agents=tuple(rest), notes=(*notes, *_naming_note(taken), *strangers))
    classes = checked_names([name[2:].strip() for name in rows], len(rows), "class", table.source)
    strange = [name for name in rest if name not in (who, label, *rows)]
    if strange:
        remedy = f"name it with truth_col={strange[0]!r}, or " if called(strange[:1], TRUE) else ""
        raise InputError(
            f"{table.source}: column {strange[0]!r} is not understood; expected task,agent,label and p:<class> "
            f"columns; {remedy}leave it out with drop={strange[0]!r}"
        )
    named = dict(zip(classes, rows, strict=True))
    return Roles(task, who, label, truth, named, notes=(*notes, *_naming_note(taken)))


def kept_columns(table: Table, reading: Reading) -> tuple[list[str], list[str]]:
    """The columns that are not to be left out, and a word on those that nobody asked to leave out."""
    chosen = {reading.task_col, reading.agent_col, reading.label_col, reading.truth_col}
    if not names_a_task([name for name in table.columns if name not in reading.drop], reading.task_col):
        chosen.update([name for name in table.columns if is_nameless(name)][:1])  # an index that names the tasks
    kept, notes, empty = [], [], 0
    for name, column in table.columns.items():
        if name in reading.drop:
            continue
        nameless = is_nameless(name) and name not in chosen
        if nameless and (name.startswith("__index_level_") or _counts_rows(column)):
            notes.append(f"{table.source}: column {name!r} counts the rows, as pandas writes them, and is left out")
        elif nameless and not len(column.texts) and column.values is None:
            empty += 1
        elif nameless:
            raise InputError(
                f"{table.source}: column {int(name[9:]) + 1 if name[9:].isdigit() else name!r} has no name; "
                f"give every column a header, or leave it out with drop={name!r}"
            )
        else:
            kept.append(name)
    left = [f"{table.source}: {empty} column{'s' * (empty > 1)} without a name and a cell left out"] if empty else []
    return kept, notes + left


def _counts_rows(column: Column) -> bool:
    """Whether every cell is another whole number, as rows keep theirs when some are left out or moved."""
    if column.values is not None:
        return len({*column.values.tolist()}) == len(column.values) and bool((column.values % 1 == 0).all())
    return len(column.texts) == len(column.codes) and all(map(str.isdigit, column.texts))


def task_column(source: str, names: Sequence[str], reading: Reading, expected: str) -> str:
    """The column of tasks, without which nothing is understood."""
    task = column_called(source, names, reading.task_col, "task_col", ("task",), TASK)
    task = task or next((name for name in names if is_nameless(name)), None)
    if task is None:
        raise InputError(
            f"{source}: no column 'task' among {some(names) or 'no columns'}; expected {expected}, or task_col="
        )
    return task


def _chosen(chosen: str, option: str, names: Sequence[str], source: str) -> str:
    if chosen not in names:
        raise InputError(f"{source}: no column {chosen!r} among {some(names)}; {option}= is to name one of them")
    return chosen


def column_called(
    source: str, names: Sequence[str], chosen: str | None, option: str, exact: tuple[str, ...], others: frozenset[str]
) -> str | None:
    """The column that is chosen, that has the very name, or that alone has a name of the kind."""
    if chosen is not None:
        return _chosen(chosen, option, names, source)
    very = [name for name in exact if name in names]
    found = very[:1] or called(names, {*exact}) or called(names, others)
    if len(found) > 1:
        raise InputError(
            f"{source}: columns {some(found)} could each be the {exact[0]}; say which with {option}=, "
            "and leave the others out with drop="
        )
    return found[0] if found else None


def _naming_note(taken: Mapping[str, str | None]) -> list[str]:
    """Which columns were taken for what, where they are not called so."""
    other = [f"{name!r} as the {what}" for what, name in taken.items() if name not in (None, what, "worker")]
    return [f"read column {', '.join(other)}"] if other else []


def _refuse_no_agents(table: Table, names: Sequence[str]) -> None:
    """Refuse a wide table's columns that are no agents by their names."""
    if names == ["label"] or not names:
        raise InputError(
            f"{table.source}: columns {some(table.columns)} name no agent; "
            "expected task,agent,label or task and one column an agent"
            + ", or a folder of files of one agent each, named itself"
            * bool(names)
        )
    wrong = {*is_about_tasks(names)}
    for name in names:
        if name.startswith("p:"):
            raise InputError(
                f"{table.source}: column {name!r} has probabilities but there is no column 'agent'; "
                "write task,agent,label,p:<class>"
            )
        if name in wrong:
            true = says_labels(name)
            raise InputError(
                f"{table.source}: column {name!r} is {'a label or the truth' if true else 'about the tasks'} by its "
                f"name, and no agent; {f'name the truth with truth_col={name!r}, ' if true else ''}"
                f"leave it out with drop={name!r}, or rename it"
            )


def _check_agents(table: Table, names: Sequence[str], reading: Reading) -> list[str]:
    """Refuse columns in which nearly every cell is another, which nobody else says: ids, times, scores, prose.

    A word on columns that share no label with any other.
    """
    columns = dict(zip(names, table.texts_of(names), strict=True))
    rows = len(columns[names[0]].codes)
    if rows < _ENOUGH:
        return []
    spelled = {text: number(text) or text for text in {*chain.from_iterable(c.texts for c in columns.values())}}
    said = {name: {*map(spelled.__getitem__, column.texts)} for name, column in columns.items()}
    everywhere = Counter(chain.from_iterable(said.values()))
    strange = [
        name for name, column in columns.items()
        if reading.classes is None and _is_unique(column)
        and 2 * sum(everywhere[text] > 1 for text in said[name]) < len(said[name])
    ]  # fmt: skip
    if strange and len(strange) == len(names):
        _refuse_classes(table.source, len(everywhere), rows, strange[0], reading)
    if strange:
        texts = columns[strange[0]].texts
        raise InputError(
            f"{table.source}: column {strange[0]!r} has {len(texts):,} different texts in "
            f"{rows:,} rows, such as {texts[0][:40]!r}, and is no agent; leave it out with drop={strange[0]!r}"
        )
    return [
        f"column {name!r} shares no label with the others ({some(column.texts, 3)}): if it is no agent, drop={name!r}"
        for name, column in columns.items()
        if len(names) > 2 and column.texts and max(map(everywhere.__getitem__, said[name])) == 1
    ]


def _is_unique(column: Column) -> bool:
    """Whether nearly every cell is another, and cells are enough to tell."""
    texts = len(column.texts)
    return texts >= _ENOUGH and texts >= 0.9 * int((column.codes >= 0).sum())


def _refuse_classes(source: str, count: int, tasks: int, column: str, reading: Reading) -> None:
    """Refuse labels that are not a few."""
    raise InputError(
        f"{source}: too many classes: {count:,} distinct labels on {tasks:,} tasks; is `{column}` a number rather than "
        f"a label? leave it out with drop=, name the labels with classes=, or raise max_classes="
    )


# Reports


@dataclass(frozen=True)
class Laid:
    """What a table says, as arrays: the arguments of Reports.of, with what there is to say of them."""

    labels: Labels | Answers
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
    return _of_long(table, reading, roles, agent) if not roles.agents else _of_wide(table, reading, roles)


def _names_in_order(table: Table, name: str, what: str) -> tuple[list[str], Codes]:
    """What a column names in order of first appearance, and which of them each row is about."""
    [column] = table.texts_of([name])
    if not len(column.codes):
        raise InputError(f"{table.source}: a header and no rows; expected one row a report or a task")
    for row in np.nonzero(column.codes < 0)[0][:1].tolist():
        table.refuse(row, f"column {name!r} is empty; every row needs {what}")
    if name in column.texts:
        _refuse_header(table, np.nonzero(column.codes == [*column.texts].index(name))[0].tolist())
    codes = column.codes
    most = np.maximum.accumulate(codes)
    if most[0] == 0 and (np.diff(most) <= 1).all() and most[-1] == len(column.texts) - 1:
        return table.plain(column.texts), codes
    rows = np.arange(len(codes))
    first = np.empty(len(column.texts), dtype=np.int64)
    first[codes[::-1]] = rows[::-1]  # of those that share a code, the first stays
    order = np.argsort(first)
    return table.plain(column.texts[code] for code in order.tolist()), np.argsort(order)[codes]


def _refuse_header(table: Table, rows: Sequence[int]) -> None:
    """Refuse a row that says the names of the columns over again, as files put one after the other do."""
    for row in rows:
        cells = {name: column.texts[column.codes[row]] for name, column in table.columns.items() if len(column.texts)}
        if all(name == cell for name, cell in cells.items()):
            table.refuse(row, "the header a second time; leave it out, or give the files one by one")


def one_row_a_task(table: Table, column: str) -> list[str]:
    """The tasks, row by row; a task may stand once."""
    names, place = _names_in_order(table, column, "a task")
    if len(names) < len(place):
        row = int((place != np.arange(len(place))).argmax())
        table.refuse(row, f"task {names[place[row]]!r} appears a second time; keep one row a task")
    return names


def _of_wide(table: Table, reading: Reading, roles: Roles) -> Laid:
    tasks = one_row_a_task(table, roles.task)
    reading.refuse_cells(table.source, len(roles.agents), len(tasks))
    columns, agents = table.texts_of(roles.agents), tuple(table.plain(roles.agents))
    names, code, notes = _classes_of(table, columns, roles.agents[0], len(tasks), reading)
    notes += _look_at_last(table, tasks, columns)
    labels = np.empty((len(agents), len(tasks)), dtype=label_type(len(names)))
    for row, column in zip(labels, columns, strict=True):
        row[:] = np.array([*map(code.__getitem__, column.texts), -1], dtype=labels.dtype)[column.codes]
    for k, n in np.argwhere(labels == _UNKNOWN)[:1] if _UNKNOWN in code.values() else ():
        _refuse_label(table, columns[k], n, agents[k], names)
    return Laid(
        labels, None, agents, tuple(tasks), names, reading.classes is not None,
        _truth_beside(table, reading, roles, tasks, np.arange(len(tasks))), (*table.notes, *roles.notes, *notes),
    )  # fmt: skip


def _look_at_last(table: Table, tasks: Sequence[str], columns: Sequence[Column]) -> list[str]:
    """Refuse a last row that sums the others up, as its name and its cells say; a word on one as its name says."""
    if not sums_up(tasks[-1]):
        return []
    cells = Counter(text for column in columns for text in column.texts)
    last = [column for column in columns if column.codes[-1] >= 0]
    if any((c.codes == c.codes[-1]).sum() == 1 and cells[c.texts[c.codes[-1]]] == 1 for c in last):
        row = len(tasks) - 1
        table.refuse(row, f"task {tasks[-1]!r} sums up the others, it seems; leave the row out, or rename it")
    return [f"the last task is called {tasks[-1]!r}: if it sums up the others, leave it out"]


def _of_long(table: Table, reading: Reading, roles: Roles, agent: str | None) -> Laid:
    tasks, task = _names_in_order(table, roles.task, "a task")
    agents, who = [agent or ""], np.zeros_like(task)
    if roles.agent is not None:
        agents, who = _names_in_order(table, roles.agent, "an agent")
    shape = len(agents), len(tasks)
    few = not roles.rows and stays_sparse(*shape, len(task))
    if few:
        reading.refuse_answers(table.source, len(task))
    else:
        reading.refuse_cells(table.source, *shape, *[len(roles.rows)] * bool(roles.rows))
    place = who.astype(np.int64) * len(tasks) + task
    order = _order_of(place, shape, few)
    _refuse_twice(table, place, order, agents, tasks)
    given = _row_classes(table, reading, roles) if roles.rows else reading.classes
    columns = table.texts_of([] if roles.label is None else [roles.label])
    names, code, notes = _classes_of(table, columns, roles.label or "", len(tasks), replace(reading, classes=given))
    cells = np.full(len(place), -1, dtype=label_type(len(names)))
    for column in columns:
        if given is None and len(agents) > 1 and _is_unique(column):
            _refuse_classes(table.source, len(column.texts), len(tasks), roles.label or "", reading)
        cells = np.array([*map(code.__getitem__, column.texts), -1], dtype=cells.dtype)[column.codes]
        for row in np.nonzero(cells == _UNKNOWN)[0][:1].tolist():
            _refuse_label(table, column, row, agents[who[row]], names)
    rows = None
    if roles.rows:
        index = class_index(roles.rows, names)
        found = np.stack([table.numbers(roles.rows[name]) for name in sorted(index, key=index.__getitem__)], axis=1)
        found = softmax(found) if reading.logits else found
        best = np.where(np.isnan(found).any(1), 0, found.argmax(1))
        other = int(((cells >= 0) & (cells != best)).sum())
        if 2 * other > (cells >= 0).sum():
            notes.append(
                f"in {other:,} of {len(cells):,} rows the label is not the most probable one: label rules use it"
            )
        cells = np.where(cells < 0, best, cells).astype(cells.dtype)
        rows = np.full((*shape, len(names)), np.nan)
        rows.reshape(-1, len(names))[place] = found
    return Laid(
        _held_of(place, order, cells, shape), rows, tuple(agents), tuple(tasks), names, given is not None,
        _truth_beside(table, reading, roles, tasks, task), (*table.notes, *roles.notes, *notes),
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


def _row_classes(table: Table, reading: Reading, roles: Roles) -> tuple[str, ...]:
    """The classes that are given, or that the columns of probabilities name."""
    named = (*roles.rows,)
    classes = reading.classes or named
    if len(class_index(named, classes)) < len(classes) or len(named) != len(classes):
        raise InputError(
            f"{table.source}: p: columns {some(named)} are not the classes given, {some(classes)}; name the same"
        )
    return classes


def _order_of(place: Ints, shape: tuple[int, int], few: bool) -> Ints | None:
    """What sorts the places of the answers, where they are few or two are the same; None where that is not needed."""
    if not few:
        there = np.zeros(shape[0] * shape[1], dtype=bool)
        there[place] = True
        if there.sum() == len(place):
            return None
    return np.argsort(place, kind="stable")


def _held_of(place: Ints, order: Ints | None, cells: Labels, shape: tuple[int, int]) -> Labels | Answers:
    """Labels as an array of that shape, or one by one where they were sorted for it."""
    if order is not None:
        return Answers.of_places(place, order, cells, shape)
    labels = np.full(shape, -1, dtype=cells.dtype)
    labels.reshape(-1)[place] = cells
    return labels


def _refuse_twice(table: Table, place: Ints, order: Ints | None, agents: Sequence[str], tasks: Sequence[str]) -> None:
    row = None if order is None else second_time(place, order)
    if row is not None:
        agent, task = agents[int(place[row]) // len(tasks)], tasks[int(place[row]) % len(tasks)]
        table.refuse(row, f"agent {agent!r} reports task {task!r} a second time; keep one row")


def _classes_of(
    table: Table, columns: Sequence[Column], name: str, tasks: int, reading: Reading
) -> tuple[tuple[str, ...], dict[str, int], list[str]]:
    """The classes of some columns, which of them each text that occurs is (-1 an abstention), and notes."""
    seen = [*dict.fromkeys(chain.from_iterable(column.texts for column in columns))]
    given = reading.classes
    missing = [] if table.literal else [text for text in seen if text in MISSING and text not in (given or ())]
    labels = dict(zip(seen, table.plain(seen), strict=True))
    for text in missing:
        del labels[text]
    classes = given or class_order({*labels.values()})
    if given is None and len(classes) > reading.max_classes:
        _refuse_classes(table.source, len(classes), tasks, name, reading)
    index = class_index({*labels.values()}, classes)
    code = {text: index.get(label, _UNKNOWN) for text, label in labels.items()} | dict.fromkeys(missing, -1)
    notes = [*_missing_notes(columns, missing)]
    if given is None and "-1" in classes and "-2" not in classes and all(map(number, classes)):
        notes.append("-1 is a label here: leave a cell empty where an agent says nothing")
    return classes, code, notes


def _missing_notes(columns: Sequence[Column], missing: Sequence[str]) -> Iterator[str]:
    for text in missing:
        count = sum(int((c.codes == [*c.texts].index(text)).sum()) for c in columns if text in c.texts)
        yield (
            f"{count:,} cell{'s' * (count != 1)} that say{'s' * (count == 1)} {text!r} "
            f"{'are abstentions' if count != 1 else 'is an abstention'}: if it is a label, name it with classes="
        )


def _refuse_label(table: Table, column: Column, row: int, agent: str, names: Sequence[str]) -> None:
    text = column.texts[int(column.codes[row])]
    table.refuse(row, f"agent {agent!r} has the unknown label {text!r}; the classes are {some(names)}")


def _truth_beside(
    table: Table, reading: Reading, roles: Roles, tasks: Sequence[str], task: Array
) -> dict[str, str] | None:
    """The truth in a column of the reports, the same in every row of a task."""
    if roles.truth is None:
        return None
    found: dict[str, str] = {}
    for row, (at, label) in enumerate(zip(task.tolist(), label_texts(table, roles.truth, reading), strict=True)):
        if label and found.setdefault(tasks[at], label) != label:
            table.refuse(
                row, f"task {tasks[at]!r} has the truth {label!r} here and {found[tasks[at]]!r} above; keep one"
            )
    return found


def label_texts(table: Table, name: str, reading: Reading) -> list[str]:
    """The labels of a column, cell by cell; what is missing is empty."""
    [column] = table.texts_of([name])
    missing = frozenset() if table.literal else MISSING.difference(reading.classes or ())
    texts = ["" if raw in missing else text for raw, text in zip(column.texts, table.plain(column.texts), strict=True)]
    return [*map([*texts, ""].__getitem__, column.codes.tolist())]
