"""Reports: what agents say about tasks. Here arrays are checked; nothing here reads files or scores.

Every refusal is one sentence: what was seen, where, what was expected, what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.errors import InputError

Labels = npt.NDArray[np.signedinteger]
Floats = npt.NDArray[np.float64]
Array = npt.NDArray[np.generic]

_MISS_OF_ONE = 2e-3  # float16 rows miss 1 by 5e-4
_EXACT = 1e-9
MOST_CLASSES = 10_000  # that labels without names may count up to: beyond, a label is a mistake


@dataclass(frozen=True)
class Shape:
    """How much there is to score: all that a mechanism must know of reports to be planned.

    `known` counts the tasks with a truth; `public` is the kind of public signal, strata or features.

    >>> Shape(agents=3, tasks=100, classes=2).rows
    False
    """

    agents: int
    tasks: int
    classes: int
    rows: bool = False
    sparse: bool = False
    known: int = 0
    public: str | None = None

    def check(self, source: str = "the reports") -> None:
        """Refuse what is too little to score."""
        if not self.agents:
            raise InputError(f"{source}: no agent; give at least one column or row of reports")
        if self.tasks < 2:
            raise InputError(f"{source}: only {self.tasks} task; scoring needs at least two tasks")
        if self.classes < 2:
            raise InputError(
                f"{source}: only {self.classes} class seen; scoring needs two: name all classes with classes="
            )


@dataclass(frozen=True, eq=False)
class Reports:
    """K agents' labels on N tasks, -1 an abstention, and their probability rows where they gave them.

    >>> reports = Reports.of(labels=[[0, 1, 1], [0, 1, -1]], agents=["ann", "bob"], classes=["cat", "dog"])
    >>> reports
    Reports(2 agents, 3 tasks, 2 classes, 1 abstention)
    """

    labels: Labels
    agents: tuple[str, ...]
    tasks: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: Floats | None = None
    truth: Labels | None = None
    public: Array | None = None
    classes_given: bool = field(default=True, repr=False)

    @classmethod
    def of(
        cls,
        labels: npt.ArrayLike | None = None,
        probabilities: npt.ArrayLike | None = None,
        *,
        agents: Sequence[str] | None = None,
        tasks: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        truth: npt.ArrayLike | Mapping[str, str] | None = None,
        public: npt.ArrayLike | None = None,
        source: str = "the reports",
    ) -> Reports:
        """Checked reports from arrays: labels (K, N) that index `classes`, or probabilities (K, N, L).

        >>> Reports.of(probabilities=[[[0.9, 0.1], [0.2, 0.8]]], agents=["ann"]).labels.tolist()
        [[0, 1]]
        """
        rows = None if probabilities is None else _probability_array(probabilities, source)
        if labels is not None:
            held = _label_array(labels, source)
        elif rows is not None:
            held = rows.argmax(2)
        else:
            raise InputError(
                f"{source}: neither labels nor probabilities; give labels (K, N) or probabilities (K, N, L)"
            )
        size = len(classes) if classes is not None else rows.shape[2] if rows is not None else _counted(held, source)
        class_names = checked_names(classes, size, "class", source)
        agent_names = checked_names(agents, held.shape[0], "agent", source)
        task_names = checked_names(tasks, held.shape[1], "task", source)
        if rows is not None:
            if rows.shape != (*held.shape, size):
                raise InputError(
                    f"{source}: probabilities have shape {rows.shape}, labels {held.shape}, "
                    f"and there are {size} classes; give probabilities of shape (agents, tasks, classes)"
                )
            rows = _checked_rows(rows, held, agent_names, task_names, source)
        outside = held.size and (held.min() < -1 or held.max() >= size)
        for bad in np.argwhere((held < -1) | (held >= size))[:1] if outside else ():
            raise InputError(
                f"{source}: agent {agent_names[bad[0]]!r}, task {task_names[bad[1]]!r} has label {held[tuple(bad)]}; "
                f"expected 0 to {size - 1}, or -1 for an abstention"
            )
        reports = cls(
            narrow(held, size), agent_names, task_names, class_names, rows,
            classes_given=classes is not None or rows is not None,
        )  # fmt: skip
        if truth is not None:
            reports = reports.with_truth(truth, source)
        return reports if public is None else replace(reports, public=_public_array(public, len(task_names), source))

    def scorable(self, source: str = "the reports") -> Reports:
        """These reports, if there is anything to score: an agent, two classes and two tasks.

        >>> Reports.of(labels=[[0, 1, 1]]).scorable().classes
        ('0', '1')
        """
        self.shape.check(source)
        return self

    @property
    def shape(self) -> Shape:
        """How much there is to score."""
        known = 0 if self.truth is None else int((self.truth >= 0).sum())
        return Shape(len(self.agents), len(self.tasks), len(self.classes), self.probabilities is not None, known=known)

    def __repr__(self) -> str:
        left_out = int((self.labels < 0).sum())
        kind = ", with probabilities" if self.probabilities is not None else ""
        plural = "" if left_out == 1 else "s"
        return (
            f"Reports({len(self.agents)} agents, {len(self.tasks)} tasks, {len(self.classes)} classes, "
            f"{left_out} abstention{plural}{kind})"
        )

    def take(self, chosen: npt.NDArray[np.bool_]) -> Reports:
        """The reports on the chosen tasks only.

        >>> Reports.of(labels=[[0, 1, 1]]).take(np.array([True, False, True])).tasks
        ('0', '2')
        """
        return replace(
            self,
            labels=self.labels[:, chosen],
            tasks=tuple(t for t, keep in zip(self.tasks, chosen.tolist(), strict=True) if keep),
            probabilities=None if self.probabilities is None else self.probabilities[:, chosen],
            truth=None if self.truth is None else self.truth[chosen],
            public=None if self.public is None else self.public[chosen],
        )

    def only(self, *agents: int) -> Reports:
        """The reports of some agents, by their places.

        >>> Reports.of(labels=[[0, 1], [1, 1]], agents=["ann", "bob"]).only(1).agents
        ('bob',)
        """
        chosen = list(agents)
        return replace(
            self,
            labels=self.labels[chosen],
            agents=tuple(self.agents[i] for i in chosen),
            probabilities=None if self.probabilities is None else self.probabilities[chosen],
        )

    def with_truth(self, truth: npt.ArrayLike | Mapping[str, str], source: str = "the truth") -> Reports:
        """The reports with the truth of some or all tasks: {task: label}, or integers (N,), -1 unknown.

        Labels that no report uses are added to the classes, unless the classes were given.

        >>> Reports.of(labels=[[0, 1]], classes=["cat", "dog"]).with_truth({"1": "dog"}).truth.tolist()
        [-1, 1]
        """
        if isinstance(truth, Mapping):
            return self._with_truth_of(truth, source)
        array = np.asarray(truth)
        if array.shape != (len(self.tasks),) or array.dtype.kind not in "iu":
            raise InputError(
                f"{source}: truth of shape {array.shape} and type {array.dtype}; "
                f"give one integer for each of {len(self.tasks)} tasks"
            )
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        if low < -1 or high >= (len(self.classes) if self.classes_given else MOST_CLASSES):
            raise InputError(
                f"{source}: unknown label {low if low < -1 else high} in the truth; "
                f"give 0 to {len(self.classes) - 1}, or -1 where it is not known"
            )
        more = tuple(str(i) for i in range(len(self.classes), high + 1))
        classes = self.classes + more
        return replace(self, truth=narrow(array, len(classes)), classes=classes)

    def _with_truth_of(self, truth: Mapping[str, str], source: str) -> Reports:
        known = [truth.get(task) for task in self.tasks]
        if all(label is None for label in known):
            raise InputError(
                f"{source}: none of its {len(truth)} tasks is in the reports "
                f"(such as {next(iter(truth), '')!r} against {self.tasks[0]!r}); check the task names"
            )
        for task, label in truth.items():
            if self.classes_given and label not in self.classes:
                raise InputError(
                    f"{source}: task {task!r} has the unknown label {label!r}; the classes are {some(self.classes)}"
                )
        reports = self._relabelled(class_order({*self.classes, *(x for x in known if x is not None)}))
        index = {c: i for i, c in enumerate(reports.classes)}
        codes = np.array([-1 if x is None else index[x] for x in known])
        return replace(reports, truth=narrow(codes, len(index)))

    def _relabelled(self, classes: tuple[str, ...]) -> Reports:
        """The same reports over a larger set of classes."""
        if classes == self.classes or self.classes_given:
            return self
        index = {c: i for i, c in enumerate(classes)}
        new = np.array([*(index[c] for c in self.classes), -1])
        return replace(self, labels=narrow(new[self.labels], len(classes)), classes=classes)

    def __add__(self, other: Reports) -> Reports:
        """Reports of other agents, or on other tasks, side by side; what neither says is an abstention.

        >>> Reports.of(labels=[[0, 1]], agents=["ann"]) + Reports.of(labels=[[1, 1]], agents=["bob"])
        Reports(2 agents, 2 tasks, 2 classes, 0 abstentions)
        """
        return _combined(self, other)


def narrow(labels: npt.NDArray[Any], classes: int) -> Labels:
    """The smallest signed integers that hold the labels: memory is what bounds large rounds."""
    return labels.astype(next(t for t in (np.int8, np.int16, np.int32, np.int64) if classes <= np.iinfo(t).max))


def some(names: Iterable[str], most: int = 8) -> str:
    shown = list(names)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(repr(n) for n in shown[:most]) + more


def class_order(classes: Iterable[str]) -> tuple[str, ...]:
    """Numeric order if all are integers, else sorted."""
    try:
        return tuple(sorted(classes, key=lambda c: (int(c), c)))
    except ValueError:
        return tuple(sorted(classes))


def checked_names(given: Sequence[str] | Array | None, count: int, what: str, source: str) -> tuple[str, ...]:
    if given is None:
        return tuple(map(str, range(count)))
    names = (
        tuple(str(name) for name in np.asarray(given).tolist())
        if isinstance(given, np.ndarray)
        else tuple(map(str, given))
    )
    if len(names) != count:
        raise InputError(f"{source}: {len(names)} {what} names for {count}; give one name each")
    if len(set(names)) < count:
        twice = Counter(names).most_common(1)[0][0]
        raise InputError(f"{source}: {what} {twice!r} appears twice; names must differ")
    for name in names:
        # labels are only ever shown quoted, so a line break in one does no harm
        if not name or name != name.strip() or not (what == "class" or name.isprintable()):
            raise InputError(
                f"{source}: {what} name {name!r} is empty, or has blanks around it or unprintable characters; rename it"
            )
    return names


def _counted(labels: Array, source: str) -> int:
    """How many classes labels without names make."""
    size = int(labels.max(initial=0)) + 1
    if size > MOST_CLASSES:
        raise InputError(
            f"{source}: label {size - 1} without named classes; give classes, or labels below {MOST_CLASSES}"
        )
    return size


def _public_array(public: npt.ArrayLike, tasks: int, source: str) -> Array:
    array = np.asarray(public)
    if array.ndim not in (1, 2) or len(array) != tasks:
        raise InputError(
            f"{source}: public has shape {array.shape} for {tasks} tasks; give (N,) or (N, m), one entry a task"
        )
    return array


def _label_array(labels: npt.ArrayLike, source: str) -> npt.NDArray[Any]:
    array = np.asarray(labels)
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise InputError(
            f"{source}: labels have shape {array.shape} and type {array.dtype}; give integers of shape (agents, tasks)"
        )
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise InputError(
            f"{source}: label {array.max()} is no label; give 0 up, and -1 for an abstention in signed integers"
        )
    return array


def _probability_array(probabilities: npt.ArrayLike, source: str) -> Floats:
    array = np.asarray(probabilities)
    if array.ndim != 3 or array.dtype.kind not in "fiu" or not array.shape[2]:
        raise InputError(
            f"{source}: probabilities have shape {array.shape} and type {array.dtype}; "
            "give numbers of shape (agents, tasks, classes)"
        )
    return array.astype(np.float64)


def _checked_rows(
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
    refuse(rows.min(2) < 0, lambda row: f"the negative probability {row.min():g}", "give numbers from 0 to 1")
    with np.errstate(over="ignore"):
        total = rows.sum(2)
        miss = np.abs(total - 1)
        refuse(miss > _MISS_OF_ONE, lambda row: f"probabilities that sum to {row.sum():.6g}", "make each row sum to 1")
    total[~answered | (miss <= _EXACT)] = 1.0
    return np.where(answered[..., None], rows / total[..., None], np.nan)


def _combined(first: Reports, second: Reports) -> Reports:
    if (first.probabilities is None) != (second.probabilities is None):
        raise InputError("some reports have probabilities and some only labels; give all of one kind")
    if first.classes_given and second.classes_given and first.classes != second.classes:
        raise InputError(
            f"the reports have different classes, {some(first.classes)} and {some(second.classes)}; "
            "write all with the same classes"
        )
    classes = next(
        (r.classes for r in (first, second) if r.classes_given), class_order({*first.classes, *second.classes})
    )
    strange = [c for c in (*first.classes, *second.classes) if c not in classes]
    if strange:
        raise InputError(
            f"the label {strange[0]!r} is outside the classes {some(classes)} of another file; "
            "write all with the same classes"
        )
    if first.public is not None or second.public is not None:
        raise InputError("a public signal inside one of several files is of its tasks only; give it with public=")
    first, second = first._relabelled(classes), second._relabelled(classes)
    agents = tuple(dict.fromkeys((*first.agents, *second.agents)))
    tasks = tuple(dict.fromkeys((*first.tasks, *second.tasks)))
    row, column = ({name: i for i, name in enumerate(names)} for names in (agents, tasks))
    labels = np.full((len(agents), len(tasks)), -1)
    rows = None if first.probabilities is None else np.full((*labels.shape, len(classes)), np.nan)
    for part in (first, second):
        where = np.ix_([row[a] for a in part.agents], [column[t] for t in part.tasks])
        twice = np.argwhere((labels[where] >= 0) & (part.labels >= 0))
        for k, n in twice[:1]:
            raise InputError(f"agent {part.agents[k]!r} reports task {part.tasks[n]!r} in two files; keep one")
        labels[where] = np.where(part.labels >= 0, part.labels, labels[where])
        if rows is not None and part.probabilities is not None:
            rows[where] = np.where((part.labels >= 0)[..., None], part.probabilities, rows[where])
    return Reports(
        narrow(labels, len(classes)), agents, tasks, classes, rows,
        classes_given=first.classes_given or second.classes_given,
    )  # fmt: skip
