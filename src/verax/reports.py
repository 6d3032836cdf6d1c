"""Reports: what agents say about tasks. Here arrays are checked; nothing here reads files or scores.

Every refusal is one sentence: what was seen, where, what was expected, what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from verax import arrays
from verax.answers import Answers
from verax.columns import Reading, Table, is_frame, table_of, text_of
from verax.errors import InputError
from verax.frames import to_frame
from verax.joining import side_by_side
from verax.labels import (
    MOST_CLASSES,
    Array,
    Floats,
    Labels,
    alike_note,
    class_index,
    clean,
    number,
    numbers_of,
    spelling_note,
)
from verax.labels import checked_names as checked_names
from verax.labels import class_order as class_order
from verax.labels import narrow as narrow
from verax.labels import some as some
from verax.layout import Laid, Roles, laid_out
from verax.shape import Shape as Shape
from verax.topk import TopK


@dataclass(frozen=True, eq=False)
class Reports:
    """K agents' labels on N tasks, -1 an abstention, and their probability rows where they gave them.

    `held` are the labels as an array (K, N), or one by one where they are few among very many cells: `labels` is the
    array in either case, `answers` the list. `notes` say what was decided in reading, where it could have been meant
    otherwise.

    >>> reports = Reports.of(labels=[[0, 1, 1], [0, 1, -1]], agents=["ann", "bob"], classes=["cat", "dog"])
    >>> reports
    Reports(2 agents, 3 tasks, 2 classes, 1 abstention)
    """

    held: Labels | Answers
    agents: tuple[str, ...]
    tasks: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: Floats | TopK | None = None
    truth: Labels | None = None
    public: Array | None = None
    classes_given: bool = field(default=True, repr=False)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        labels: Any = None,
        probabilities: npt.ArrayLike | TopK | None = None,
        *,
        agents: Sequence[str] | None = None,
        tasks: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        truth: Any = None,
        public: Any = None,
        source: str = "the reports",
        **reading: Any,
    ) -> Reports:
        """Checked reports from labels, or from probabilities (K, N, L), or the likeliest labels of each row (`TopK`).

        Labels are integers (K, N) that index `classes`, -1 or NaN an abstention; or texts (K, N), None or empty an
        abstention; or {agent: labels}; or a data frame, long or wide, read as a file is, by the fields of `reading`.

        >>> Reports.of(probabilities=[[[0.9, 0.1], [0.2, 0.8]]], agents=["ann"]).labels.tolist()
        [[0, 1]]
        >>> Reports.of({"ann": ["cat", "dog", None], "bob": ["cat", "cat", "dog"]}).classes
        ('cat', 'dog')
        """
        if is_frame(labels):
            how = Reading.of(None, classes=classes, **reading)
            found = cls._of_laid(laid_out(table_of(labels, source, how), how), source).with_one_spelling()
            return found._with_signals(truth, public, source)
        if reading:
            raise InputError(f"{source}: {min(reading)}= is for data frames and files; give names with agents=, tasks=")
        if isinstance(labels, Mapping):
            agents, tasks, labels = arrays.rows_of_agents(labels, agents, tasks, source)
        rows = None if probabilities is None else arrays.rows_given(probabilities, source)
        held: Any = None if labels is None else arrays.label_array(labels, source)
        if held is None and rows is None:
            raise InputError(
                f"{source}: neither labels nor probabilities; give labels (K, N) or probabilities (K, N, L)"
            )
        given = classes is not None or rows is not None
        notes: tuple[str, ...] = ()
        if held is None:
            assert rows is not None
            held = rows.likeliest if isinstance(rows, TopK) else rows.argmax(2)
        elif held.dtype.kind not in "iu":
            laid = arrays.laid_texts(held, agents, tasks, classes, source)
            held, classes, notes = laid.labels, laid.classes, laid.notes
        size = (
            len(classes)
            if classes is not None
            else rows.shape[2]
            if rows is not None
            else arrays.class_count(held, source)
        )
        class_names = checked_names(classes, size, "class", source)
        agent_names = checked_names(agents, held.shape[0], "agent", source)
        task_names = checked_names(tasks, held.shape[1], "task", source)
        if rows is not None:
            if rows.shape != (*held.shape, size):
                raise InputError(
                    f"{source}: probabilities have shape {rows.shape}, labels {held.shape}, "
                    f"and there are {size} classes; give probabilities of shape (agents, tasks, classes)"
                )
            given_by = held, agent_names, task_names, source
            rows = (
                arrays.checked_listed(rows, *given_by)
                if isinstance(rows, TopK)
                else arrays.checked_rows(rows, *given_by)
            )
        outside = held.size and (held.min() < -1 or held.max() >= size)
        for bad in np.argwhere((held < -1) | (held >= size))[:1] if outside else ():
            raise InputError(
                f"{source}: agent {agent_names[bad[0]]!r}, task {task_names[bad[1]]!r} has label {held[tuple(bad)]}; "
                f"expected 0 to {size - 1}, or -1 for an abstention"
            )
        reports = cls(narrow(held, size), agent_names, task_names, class_names, rows, classes_given=given, notes=notes)
        return reports.with_one_spelling()._with_signals(truth, public, source)

    @classmethod
    def of_answers(
        cls,
        agent: npt.ArrayLike,
        task: npt.ArrayLike,
        label: npt.ArrayLike,
        *,
        agents: Sequence[str] | None = None,
        tasks: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        truth: Any = None,
        public: Any = None,
        source: str = "the reports",
    ) -> Reports:
        """Checked reports from one row an answer, held as such: whose it is, on which task, and which class.

        All are integers from 0 up that index `agents`, `tasks` and `classes`, or count them where no names are given.

        >>> Reports.of_answers([0, 1, 1], [0, 0, 2], [1, 1, 0], agents=["ann", "bob"])
        Reports(2 agents, 3 tasks, 2 classes, 3 abstentions)
        """
        named = ("agent", agent, agents), ("task", task, tasks), ("class", label, classes)
        held, (who, about, said) = arrays.answers_and_names(named, source)
        found = cls(held, who, about, said, classes_given=classes is not None)
        return found.with_one_spelling()._with_signals(truth, public, source)

    @classmethod
    def of_table(cls, table: Table, reading: Reading, roles: Roles | None = None, agent: str | None = None) -> Reports:
        """Checked reports from a table; labels keep their spelling, for other tables may go with it."""
        return cls._of_laid(laid_out(table, reading, roles, agent), table.source)

    @classmethod
    def _of_laid(cls, laid: Laid, source: str) -> Reports:
        """Reports from arrays whose codes are known to be right."""
        agents = checked_names(laid.agents, len(laid.agents), "agent", source)
        tasks = laid.tasks
        if len({*tasks}) < len(tasks) or not "".join(tasks).isprintable():
            checked_names(tasks, len(tasks), "task", source)
        classes = checked_names(laid.classes, len(laid.classes), "class", source)
        rows = None
        if laid.rows is not None and not isinstance(laid.labels, Answers):
            rows = arrays.checked_rows(laid.rows, laid.labels, agents, tasks, source)
        found = cls(laid.labels, agents, tasks, classes, rows, classes_given=laid.classes_given, notes=laid.notes)
        return found if laid.truth is None else found.with_truth(laid.truth, source)

    def _with_signals(self, truth: Any, public: Any, source: str) -> Reports:
        found = self if truth is None else self.with_truth(truth, source)
        return found if public is None else found.with_public(public, source)

    @property
    def shape(self) -> Shape:
        """How much there is to score."""
        known = 0 if self.truth is None else int((self.truth >= 0).sum())
        sizes = len(self.agents), len(self.tasks), len(self.classes)
        return Shape(
            *sizes, self.probabilities is not None, self.sparse, known, listed=isinstance(self.probabilities, TopK)
        )

    @cached_property
    def rows(self) -> Floats | None:
        """The probabilities as whole rows (K, N, L), written out where the likeliest are listed, if they fit."""
        return self.probabilities.dense() if isinstance(self.probabilities, TopK) else self.probabilities

    @property
    def sparse(self) -> bool:
        """Whether the labels are held one by one, and no array of agents x tasks was made.

        >>> Reports.of([[0, 1]]).sparse, Reports.of_answers([0], [1], [1]).sparse
        (False, True)
        """
        return isinstance(self.held, Answers)

    @property
    def labels(self) -> Labels:
        """The labels as an array (K, N), -1 an abstention; of answers held one by one it is made, where it fits."""
        return self._array if isinstance(self.held, Answers) else self.held

    @cached_property
    def _array(self) -> Labels:
        assert isinstance(self.held, Answers)
        return self.held.dense()

    @cached_property
    def answers(self) -> Answers:
        """The labels one by one: whose, on which task, and what."""
        return self.held if isinstance(self.held, Answers) else Answers.of_array(self.held)

    @cached_property
    def answered(self) -> npt.NDArray[np.int64]:
        """How many tasks each agent answered.

        >>> Reports.of([[0, 1, -1], [0, 1, 1]]).answered.tolist()
        [2, 3]
        """
        return self.held.answered if isinstance(self.held, Answers) else np.asarray((self.held >= 0).sum(1))

    def of_agent(self, i: int) -> tuple[npt.NDArray[np.signedinteger[Any]], Labels]:
        """Which tasks agent i answered, and what it said.

        >>> Reports.of([[0, 1, -1], [-1, 1, 0]]).of_agent(1)[0].tolist()
        [1, 2]
        """
        if isinstance(self.held, Answers):
            return self.held.of_agent(i)
        tasks = np.nonzero(self.held[i] >= 0)[0]
        return tasks, self.held[i, tasks]

    def scorable(self, source: str = "the reports") -> Reports:
        """These reports, if there is anything to score: an agent, two classes and two tasks.

        >>> Reports.of(labels=[[0, 1, 1]]).scorable().classes
        ('0', '1')
        """
        self.shape.check(source)
        return self

    def __repr__(self) -> str:
        left_out = len(self.agents) * len(self.tasks) - int(self.answered.sum())
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
            held=self.held.take(chosen) if isinstance(self.held, Answers) else self.held[:, chosen],
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
            held=self.held.only(np.array(chosen, dtype=np.int64))
            if isinstance(self.held, Answers)
            else self.held[chosen],
            agents=tuple(self.agents[i] for i in chosen),
            probabilities=None if self.probabilities is None else self.probabilities[chosen],
        )

    def with_public(self, public: Any, source: str = "the public signal") -> Reports:
        """The reports with what everybody knows of the tasks: strata (N,), features (N, m), or a frame of them.

        >>> Reports.of(labels=[[0, 1]]).with_public([3, 5]).public.tolist()
        [3, 5]
        """
        if is_frame(public):
            return replace(self, public=arrays.public_array(table_of(public, source, Reading()), self.tasks, Reading()))
        return replace(self, public=arrays.signal_array(public, len(self.tasks), source))

    def with_truth(self, truth: Any, source: str = "the truth") -> Reports:
        """The reports with the truth of some or all tasks.

        {task: label}, a frame of task and label, texts (N,), or integers (N,), -1 unknown. Labels that no report
        uses are added to the classes, unless the classes were given.

        >>> Reports.of(labels=[[0, 1]], classes=["cat", "dog"]).with_truth({"1": "dog"}).truth.tolist()
        [-1, 1]
        """
        if truth is not None and truth is self.truth:
            return self  # whose numbers are places among the classes
        if is_frame(truth):
            return self._with_truth_of(
                arrays.truth_map(table_of(truth, source, Reading()), Reading(), some_known=True), source
            )
        if arrays.is_indexed(truth):
            truth = dict(truth.items())
        if isinstance(truth, Mapping):
            return self._with_truth_of(arrays.texts_by_task(truth, source), source)
        arrays.refuse_other_than_array(truth, source, "{task: label} or a label a task, or read a file", "read_truth")
        array = arrays.whole_numbers(arrays.array_of(truth, source), source)
        if array.shape == (len(self.tasks),) and array.dtype.kind in "OUSTb":
            texts = [clean(text_of(value, source)) for value in array.tolist()]
            return self._with_truth_of(dict(zip(self.tasks, texts, strict=True)), source)
        if array.shape != (len(self.tasks),) or array.dtype.kind not in "iu":
            raise InputError(
                f"{source}: truth of shape {array.shape} and type {array.dtype}; "
                f"give one integer for each of {len(self.tasks)} tasks"
            )
        if not self.classes_given and (names := arrays.labels_spelled(array, self.tasks, self.classes)) is not None:
            return self._with_truth_of(names, source)
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        if low < -1 or high >= (len(self.classes) if self.classes_given else MOST_CLASSES):
            raise InputError(
                f"{source}: unknown label {low if low < -1 else high} in the truth; "
                f"give 0 to {len(self.classes) - 1}, or -1 where it is not known"
            )
        classes = (*self.classes, *map(str, range(len(self.classes), high + 1)))
        said = () if all(map(number, classes)) else (f"{source}: whole numbers are places among {some(classes)}",)
        notes = self.notes if self.classes_given else (*self.notes, *said)
        return replace(self, truth=narrow(array, len(classes)), classes=classes, notes=notes)

    def _with_truth_of(self, truth: Mapping[str, str], source: str) -> Reports:
        known = [truth.get(task) or None for task in self.tasks]
        if all(label is None for label in known):
            raise InputError(
                f"{source}: none of its {len(truth)} tasks is in the reports "
                f"(such as {next(iter(truth), '')!r} against {self.tasks[0]!r}); check the task names"
            )
        index = class_index({*truth.values()}, self.classes)
        for task, label in truth.items():
            if self.classes_given and label and label not in index:
                raise InputError(
                    f"{source}: task {task!r} has the unknown label {label!r}; the classes are {some(self.classes)}"
                )
        seen = {label for label in known if label is not None}
        if self.classes and not self.classes_given and not any(label in index for label in seen):
            arrays.refuse_strangers(source, seen, self.classes)
        numeric = numbers_of(self.classes) is not None
        names = {x: self.classes[index[x]] if x in index else (numeric and number(x)) or x for x in seen}
        reports = self.over_classes(class_order({*self.classes, *names.values()}))
        place = {c: i for i, c in enumerate(reports.classes)}
        codes = np.array([-1 if x is None else place[names[x]] for x in known])
        held, bare, unsaid = sum(map(bool, truth.values())), known.count(None), [x for x in seen if x not in index]
        said = spelling_note({x: name for x, name in names.items() if x != name}, "the truth: ")
        said += arrays.lost_notes(source, held, held - len(known) + bare, bare, unsaid)
        return replace(reports, truth=narrow(codes, len(place)), notes=(*self.notes, *said))

    def over_classes(self, classes: tuple[str, ...]) -> Reports:
        """The same reports over a larger set of classes, unless theirs were given."""
        if classes == self.classes or self.classes_given:
            return self
        return replace(self._with_names({c: c for c in self.classes}, classes), classes=classes)

    def with_one_spelling(self) -> Reports:
        """The same reports, each label spelled in one way where all are numbers, and a note of what was changed.

        >>> Reports.of([["4.0", "01", "4"]]).classes
        ('1', '4')
        """
        if self.classes_given:
            return self
        found = {label: number(label) for label in self.classes}
        spelled = {label: text for label, text in found.items() if text is not None}
        changed = {label: text for label, text in spelled.items() if label != text}
        if changed and len(spelled) == len(found):
            classes = class_order({*spelled.values()})
            notes = (*self.notes, *spelling_note(changed, "labels are numbers: "))
            return replace(self._with_names(spelled, classes), classes=classes, notes=notes)
        twice = sorted(label for label in changed if [*spelled.values()].count(spelled[label]) > 1)
        said = [f"labels {some(twice)} stay apart, for other labels are no numbers"] if twice else []
        said += alike_note("labels", self.classes) + alike_note("agents", self.agents)
        return replace(self, notes=(*self.notes, *said)) if said else self

    def _with_names(self, names: Mapping[str, str], classes: Sequence[str]) -> Reports:
        index = {c: i for i, c in enumerate(classes)}
        new = narrow(np.array([*(index[names[c]] for c in self.classes), -1]), len(classes))
        held = self.held.relabelled(new) if isinstance(self.held, Answers) else new[self.held]
        return replace(self, held=held, truth=None if self.truth is None else new[self.truth])

    def to_frame(self, backend: str | None = None) -> Any:
        """The reports in long form, task, agent, label and p:<class>: a pandas, polars or pyarrow table.

        >>> Reports.of(labels=[[0, 1]], agents=["ann"]).to_frame("pyarrow").column_names
        ['task', 'agent', 'label']
        """
        return to_frame(self.long_columns(), backend)

    def long_columns(self) -> dict[str, Sequence[Any]]:
        """The columns of a long file: one row an answer.

        >>> Reports.of(labels=[[0, -1]], agents=["ann"]).long_columns()
        {'task': ['0'], 'agent': ['ann'], 'label': ['0']}
        """
        said = self.answers
        columns: dict[str, Sequence[Any]] = {
            "task": [self.tasks[i] for i in said.task.tolist()],
            "agent": [self.agents[i] for i in said.agent.tolist()],
            "label": [self.classes[i] for i in said.label.tolist()],
        }
        if isinstance(self.probabilities, TopK):
            raise InputError(f"a column for each of {len(self.classes):,} classes is too much; write an NPZ")
        if (whole := self.probabilities) is not None:
            rows = whole[said.agent, said.task]
            columns |= {f"p:{c}": rows[:, i].tolist() for i, c in enumerate(self.classes)}
        return columns

    def __add__(self, other: Reports) -> Reports:
        """Reports of other agents, or on other tasks, side by side; what neither says is an abstention.

        >>> Reports.of(labels=[[0, 1]], agents=["ann"]) + Reports.of(labels=[[1, 1]], agents=["bob"])
        Reports(2 agents, 2 tasks, 2 classes, 0 abstentions)
        """
        return joined([self, other])


def as_reports(given: Any) -> Reports:
    """Reports, or whatever Reports.of takes: a data frame, {agent: labels}, an array.

    >>> as_reports({"ann": ["cat", "dog"], "bob": ["cat", "cat"]})
    Reports(2 agents, 2 tasks, 2 classes, 0 abstentions)
    """
    return given if isinstance(given, Reports) else Reports.of(given)


def joined(parts: Sequence[Reports], sources: Sequence[str] | None = None, reading: Reading | None = None) -> Reports:
    """Reports of different agents, or on different tasks, as one; what nobody says is an abstention.

    >>> joined([Reports.of([[0]], tasks=["a"]), Reports.of([[1]], tasks=["b"])]).labels.tolist()
    [[0, 1]]
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    where = [f"{source}: " for source in sources] if sources is not None else [""] * len(parts)
    classes = next((part.classes for part in parts if part.classes_given), None)
    given = classes is not None
    if classes is None:
        classes = class_order({label for part in parts for label in part.classes})
    index = class_index({label for part in parts for label in part.classes}, classes)
    for i, part in enumerate(parts):
        if (first.probabilities is None) != (part.probabilities is None):
            raise InputError(f"{where[i]}some reports have probabilities and some only labels; give all of one kind")
        if part.classes_given and part.classes != classes:
            raise InputError(
                f"{where[i]}the reports have different classes, {some(classes)} and {some(part.classes)}; "
                "write all with the same classes"
            )
        strange = [label for label in part.classes if label not in index]
        if strange:
            raise InputError(
                f"{where[max(i, 1)]}the label {strange[0]!r} is outside the classes {some(classes)} of another file; "
                "write all with the same classes"
            )
        if part.public is not None:
            raise InputError(
                f"{where[i]}a public signal inside one of several files is of its tasks only; give it with public="
            )
    return _side_by_side(parts, where, classes, given, index, reading or Reading())


def _side_by_side(
    parts: Sequence[Reports], where: Sequence[str], classes: tuple[str, ...], given: bool, index: Mapping[str, int],
    reading: Reading,
) -> Reports:  # fmt: skip
    found = side_by_side(parts, where, classes, index, reading)
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return Reports(
        found.held, found.agents, found.tasks, classes, found.rows, found.truth, classes_given=given, notes=notes
    )
