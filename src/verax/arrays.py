"""Arrays: labels, rows of probabilities and signals as NumPy and Python hold them, checked."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from verax import layout
from verax.answers import Answers, second_time
from verax.columns import Column, Reading, Table, text_of
from verax.errors import InputError
from verax.labels import MOST_CLASSES, Array, Floats, checked_names, clean, narrow, number, some
from verax.layout import Laid, Roles, laid_out
from verax.space import check_memory
from verax.topk import WORTH_LISTING, TopK
from verax.vocabulary import LABEL, TRUE

_MISS_OF_ONE = 2e-3  # float16 rows miss 1 by 5e-4
_EXACT = 1e-9
_COPIES = 3  # of the rows, that checking them makes
_FEWER = "give labels, or the k likeliest of each row (verax.TopK.of_rows)"


def label_array(labels: Any, source: str) -> npt.NDArray[Any]:
    """Labels (K, N): integers, -1 an abstention, or an array of texts."""
    refuse_other_than_array(labels, source, "labels (K, N), {agent: labels} or a data frame, or read a file", "read")
    array = whole_numbers(array_of(labels, source), source)
    if array.ndim != 2 or array.dtype.kind not in "iuOUSTb" or (array.size == 0 and array.dtype.kind not in "iu"):
        raise InputError(
            f"{source}: labels have shape {array.shape} and type {array.dtype}; "
            "give integers or texts of shape (agents, tasks), {agent: labels}, or a data frame"
        )
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise InputError(
            f"{source}: label {array.max()} is no label; give 0 up, and -1 for an abstention in signed integers"
        )
    return array


def refuse_other_than_array(value: Any, source: str, instead: str, reader: str) -> None:
    """Refuse what NumPy would take for one thing by itself: a path, a generator, a number."""
    held = " " + repr(os.fspath(value)) if isinstance(value, str | os.PathLike) else ""
    if held or isinstance(value, bytes | set | Iterator) or not hasattr(value, "__len__"):
        raise InputError(f"{source}: a {type(value).__name__}{held}; give {instead} with verax.{reader}")


def array_of(value: Any, source: str) -> npt.NDArray[Any]:
    """A value as NumPy's array; masked entries are None, and a tensor is taken from wherever it is."""
    if isinstance(value, np.ma.MaskedArray):
        value, hidden = np.asarray(value).astype(object), np.ma.getmaskarray(value)
        value[hidden] = None
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = value.double() if value.is_floating_point() else value
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        if "inhomogeneous" in str(error):
            what = "rows differ in length; give each as many entries, None where there is nothing to say"
        else:
            what = f"a {type(value).__name__} is no array ({str(error).split('. ')[0]}); give numbers or texts"
        raise InputError(f"{source}: {what}") from None


def whole_numbers(array: npt.NDArray[Any], source: str) -> npt.NDArray[Any]:
    """Whole floats as integers, NaN and None as -1; other arrays as they are."""
    if (
        array.dtype.kind == "O"
        and array.size
        and all(
            x is None or (isinstance(x, int | float | np.integer | np.floating) and not isinstance(x, bool))
            for x in array.ravel().tolist()
        )
    ):
        array = np.array([math.nan if x is None else x for x in array.ravel().tolist()], float).reshape(array.shape)
    if array.dtype.kind != "f" or not array.size:
        return array
    known = ~np.isnan(array)
    bad = known & ((array != np.round(array)) | (np.abs(array) > 2.0**62))
    if bad.any():
        raise InputError(
            f"{source}: label {array[bad][0]:g} is no whole number; give labels as text or whole numbers, "
            "and numbers that are measured in bins (docs/regression.md)"
        )
    return np.where(known, array, -1).astype(np.int64)


def rows_given(probabilities: Any, source: str) -> Floats | TopK:
    """Rows (K, N, L), or what lists the likeliest of each; that is written out where it is small."""
    if not isinstance(probabilities, TopK):
        return probability_array(probabilities, source)
    if probabilities.labels.ndim != 3:
        raise InputError(
            f"{source}: top labels have shape {probabilities.labels.shape}; give (agents, tasks, labels listed)"
        )
    return probabilities if math.prod(probabilities.shape) > WORTH_LISTING else probabilities.dense()


def probability_array(probabilities: npt.ArrayLike, source: str) -> Floats:
    array = array_of(probabilities, source)
    if array.ndim != 3 or array.dtype.kind not in "fiu" or not array.shape[2]:
        raise InputError(
            f"{source}: probabilities have shape {array.shape} and type {array.dtype}; "
            "give numbers of shape (agents, tasks, classes)"
        )
    check_memory(f"{source}: rows of probabilities", _FEWER, *array.shape, each=8 * _COPIES)
    return array.astype(np.float64)


def checked_rows(
    rows: Floats, labels: npt.NDArray[Any], agents: Sequence[str], tasks: Sequence[str], source: str
) -> Floats:
    """Rows that are probabilities: finite, not negative, summing to 1; abstentions become NaN."""
    answered = labels >= 0

    def refuse(wrong: Any, what: Callable[[Floats], str], remedy: str) -> None:
        for k, n in np.argwhere(wrong & answered)[:1]:
            raise InputError(f"{source}: agent {agents[k]!r}, task {tasks[n]!r} has {what(rows[k, n])}; {remedy}")

    finite = np.isfinite(rows)
    refuse(~finite.all(2), lambda row: f"the probability {row[~np.isfinite(row)][0]}", "give finite numbers")
    rows = np.where(finite, rows, 1.0)
    refuse(
        rows.min(2) < 0,
        lambda row: f"the negative probability {row.min():g}",
        "give numbers from 0 to 1, or read logits with logits=",
    )
    with np.errstate(over="ignore"):
        total = rows.sum(2)
        miss = np.abs(total - 1)
        refuse(
            miss > _MISS_OF_ONE,
            lambda row: f"probabilities that sum to {row.sum():.6g}",
            "make each row sum to 1, or read logits with logits=",
        )
    total[~answered | (miss <= _EXACT)] = 1.0
    return np.where(answered[..., None], rows / total[..., None], np.nan)


def checked_listed(
    rows: TopK, labels: npt.NDArray[Any], agents: Sequence[str], tasks: Sequence[str], source: str
) -> TopK:
    """Rows that list their likeliest labels, wherever there is a label; abstentions list none."""
    answered = labels >= 0
    for k, n in np.argwhere(answered & ~rows.answered)[:1]:
        raise InputError(f"{source}: agent {agents[k]!r}, task {tasks[n]!r} has a label and lists none; list some")
    return TopK(np.where(answered[..., None], rows.labels, -1).astype(np.int32), rows.shares, rows.classes)


def class_count(labels: Array, source: str) -> int:
    """How many classes labels without names make."""
    size = int(labels.max(initial=0)) + 1
    if size > MOST_CLASSES:
        raise InputError(
            f"{source}: label {size - 1} without named classes; give classes, or labels below {MOST_CLASSES}"
        )
    return size


Named = tuple[str, Any, Sequence[str] | None]


def answers_and_names(named: Sequence[Named], source: str) -> tuple[Answers, list[tuple[str, ...]]]:
    """Answers from whose each is, on which task, and which label, and the names of all of them."""
    (who, agents), (about, tasks), (said, classes) = (
        _places_and_names(given, names, what, source) for what, given, names in named
    )
    if not len(who) == len(about) == len(said):
        raise InputError(
            f"{source}: {len(who)} agents, {len(about)} tasks and {len(said)} labels; give one each an answer"
        )
    place = who * len(tasks) + about
    order = np.argsort(place, kind="stable")
    twice = second_time(place, order)
    if twice is not None:
        raise InputError(
            f"{source}: agent {agents[who[twice]]!r} reports task {tasks[about[twice]]!r} a second time; "
            "keep one answer"
        )
    held = Answers.of_places(place, order, narrow(said, len(classes)), (len(agents), len(tasks)))
    return held, [agents, tasks, classes]


def _places_and_names(
    given: Any, names: Sequence[str] | None, what: str, source: str
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Which agent, task or class each answer is of, from 0 up, and what all of them are called."""
    found = array_of(given, source)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise InputError(
            f"{source}: the {what} of each answer has shape {found.shape} and type {found.dtype}; "
            f"give one integer an answer, and names, if there are any, apart"
        )
    found = found.astype(np.int64)
    most = int(found.max(initial=-1)) + 1 if what != "class" else class_count(found, source)
    named = checked_names(names, most if names is None else len(names), what, source)
    for row in np.nonzero((found < (-1 if what == "class" else 0)) | (found >= len(named)))[0][:1].tolist():
        raise InputError(f"{source}: answer {row} has the {what} {found[row]}; expected 0 to {len(named) - 1}")
    return found, named


def rows_of_agents(
    labels: Mapping[Any, Any], agents: Sequence[str] | None, tasks: Sequence[str] | None, source: str
) -> tuple[Sequence[str], Sequence[str] | None, list[Any]]:
    """The agents, tasks and labels of {agent: labels} or {agent: {task: label}}."""
    if agents is not None:
        raise InputError(f"{source}: agents are named twice, in the mapping and by agents=; leave agents= out")
    held = [dict(each.items()) if is_indexed(each) else each for each in labels.values()]
    if held and all(isinstance(each, Mapping) for each in held):
        tasks = tasks if tasks is not None else [*dict.fromkeys(task for each in held for task in each)]
        held = [[each.get(task) for task in tasks] for each in held]
        tasks = [clean(text_of(task, source)) for task in tasks]
    return (
        [clean(text_of(agent, source)) for agent in labels],
        tasks,
        [array_of(each, source).tolist() for each in held],
    )


def laid_texts(
    held: npt.NDArray[Any], agents: Sequence[str] | None, tasks: Sequence[str] | None, classes: Sequence[str] | None,
    source: str,
) -> Laid:  # fmt: skip
    """The arrays that texts make, as those of a wide table."""
    who = checked_names(agents, held.shape[0], "agent", source)
    places = Column(np.arange(held.shape[1]), checked_names(tasks, held.shape[1], "task", source))
    columns = {a: Column.of(row, f"{source}: agent {a!r}") for a, row in zip(who, held.tolist(), strict=True)}
    roles = Roles("", agents=who)
    return laid_out(Table(source, {"": places, **columns}), Reading.of(None, classes=classes), roles)


def is_indexed(truth: Any) -> bool:
    """Whether it is a pandas Series that says which task each label is of."""
    series = type(truth).__module__.startswith("pandas") and type(truth).__name__ == "Series"
    return series and type(truth.index).__name__ != "RangeIndex"


def texts_by_task(truth: Mapping[Any, Any], source: str) -> dict[str, str]:
    found = {clean(text_of(task, source)): clean(text_of(label, source)) for task, label in truth.items()}
    if len(found) < len(truth):
        twice = next(task for task in map(str, truth) if task not in found)
        raise InputError(f"{source}: two names of tasks become one, such as {twice!r}; keep one")
    return found


def labels_spelled(truth: Array, tasks: Sequence[str], classes: Sequence[str]) -> dict[str, str] | None:
    """Whole numbers as the labels they spell, where labels are other numbers than their places among the classes.

    >>> labels_spelled(np.array([2, -1]), ["a", "b"], ["1", "2"]), labels_spelled(np.array([1]), ["a"], ["cat", "dog"])
    ({'a': '2'}, None)
    """
    if [*classes] == [*map(str, range(len(classes)))] or not all(map(number, classes)):
        return None
    unknown = () if "-1" in classes else (-1,)
    return {task: str(label) for task, label in zip(tasks, truth.tolist(), strict=True) if label not in unknown}


def refuse_strangers(source: str, truth: Collection[str], classes: Collection[str]) -> None:
    """Refuse labels of which no report has one, beside which everybody would be wrong everywhere."""
    raise InputError(
        f"{source}: the truth and the reports share no label: {some(sorted(truth))} against "
        f"{some(classes)}; write both alike, or name all labels with classes="
    )


def lost_notes(source: str, tasks: int, lost: int, bare: int, unsaid: Collection[str]) -> Iterator[str]:
    """A word on what truth and reports do not share, tasks and labels, where it may be a slip of the pen.

    >>> [*lost_notes("t.csv", 2, 1, 1, ["Cat"])]
    ['t.csv: of its 2 tasks 1 not in the reports, and of theirs 1 not in it: check their names',
     "t.csv: no agent says 'Cat', which is the truth of some tasks"]
    """
    if lost and bare:
        both = f"of its {tasks:,} tasks {lost:,} not in the reports, and of theirs {bare:,} not in it"
        yield f"{source}: {both}: check their names"
    if unsaid:
        yield f"{source}: no agent says {some(sorted(unsaid), 3)}, which is the truth of some tasks"


def signal_array(public: npt.ArrayLike, tasks: int, source: str) -> Array:
    refuse_other_than_array(public, source, "an entry a task, or read a file", "read_public")
    array = array_of(public, source)
    if array.ndim not in (1, 2) or len(array) != tasks:
        raise InputError(
            f"{source}: public has shape {array.shape} for {tasks} tasks; give (N,) or (N, m), one entry a task"
        )
    return array


# What is known of the tasks, in a table


def truth_map(table: Table, reading: Reading, some_known: bool = False) -> dict[str, str]:
    """The label of each task of which it is known; where `some_known`, there must be one."""
    task, label = _truth_columns(table, reading)
    names = layout.one_row_a_task(table, task)
    labels = {name: text for name, text in zip(names, layout.label_texts(table, label, reading), strict=True) if text}
    if some_known and not labels:
        raise InputError(f"{table.source}: column {label!r} is empty in every row; give the label of some tasks")
    return labels


def _truth_columns(table: Table, reading: Reading) -> tuple[str, str]:
    """The columns of task and label of a truth file; those chosen for the reports count where it has them."""
    task, label = (
        name if name in table.columns else None for name in (reading.task_col, reading.truth_col or reading.label_col)
    )
    here = replace(reading, task_col=task, label_col=label, agent_col=None, truth_col=None)
    kept, _ = layout.kept_columns(table, here)
    task = layout.task_column(table.source, kept, here, layout.TRUTH)
    rest = [name for name in kept if name != task]
    label = layout.column_called(table.source, rest, label, "truth_col", ("label",), TRUE | LABEL)
    if label is None or len(rest) > 1:
        raise InputError(
            f"{table.source}: columns {some(table.columns)}; expected {layout.TRUTH} for truth: "
            "name the label with truth_col=, leave others out with drop="
        )
    return task, label


def public_array(table: Table, tasks: Sequence[str], reading: Reading) -> Array:
    """The public signal of these tasks: strata of `task,label`, or features of `task,x1,x2,...`."""
    kept, _ = layout.kept_columns(table, replace(reading, agent_col=None, label_col=None, truth_col=None))
    task = layout.task_column(table.source, kept, reading, layout.PUBLIC)
    place = {name: row for row, name in enumerate(layout.one_row_a_task(table, task))}
    lost = [name for name in tasks if name not in place]
    if lost:
        raise InputError(
            f"{table.source}: task {lost[0]!r} ({len(lost)} in all) has no public signal; every task needs one"
        )
    rows = np.array([place[name] for name in tasks], dtype=np.int64)
    names = [name for name in kept if name != task]
    if not names:
        raise InputError(f"{table.source}: only a column 'task'; expected {layout.PUBLIC}")
    return _strata_of(table, rows) if names == ["label"] else _features_of(table, names, rows)


def _strata_of(table: Table, rows: Array) -> Array:
    [column] = table.texts_of(["label"])
    codes = column.codes[rows]
    for row in rows[codes < 0][:1].tolist():
        table.refuse(row, "column 'label' is empty; every task needs a public signal")
    rank = np.argsort(np.argsort(np.array(column.texts)))
    return np.asarray(rank[codes], dtype=np.int64)


def _features_of(table: Table, names: Sequence[str], rows: Array) -> Floats:
    features = np.stack([table.numbers(name)[rows] for name in names], axis=1)
    for n, m in np.argwhere(~np.isfinite(features))[:1]:
        table.refuse(
            int(rows[n]), f"column {names[m]!r} has {features[n, m]}; expected a finite number, fill or drop it"
        )
    return features
