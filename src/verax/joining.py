"""Joining: the labels of several reports as one array, or one list of answers, over all their agents and tasks.

What goes together, and under which classes, `reports` decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from verax.answers import Answers, second_time, stays_sparse
from verax.columns import Reading
from verax.errors import InputError
from verax.labels import Floats, Labels, label_type

Places = Mapping[str, int]


class Part(Protocol):
    """Reports, as far as joining them goes."""

    @property
    def agents(self) -> tuple[str, ...]:
        """Their names."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Their names."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names."""

    @property
    def rows(self) -> Floats | None:
        """The rows, where there are any."""

    @property
    def truth(self) -> Labels | None:
        """The truth that came along."""

    @property
    def labels(self) -> Labels:
        """The labels as an array."""

    @property
    def answers(self) -> Answers:
        """The labels one by one."""

    @property
    def answered(self) -> npt.NDArray[np.int64]:
        """How many tasks each agent answered."""


@dataclass(frozen=True, eq=False)
class Joined:
    """What several reports say, over all their agents and tasks."""

    held: Labels | Answers
    agents: tuple[str, ...]
    tasks: tuple[str, ...]
    rows: Floats | None
    truth: Labels | None


def side_by_side(
    parts: Sequence[Part], where: Sequence[str], classes: Sequence[str], index: Places, reading: Reading
) -> Joined:
    """The parts put together; `index` says which of the classes each label of theirs is, `where` what they are called.

    Few answers among very many cells are held one by one.
    """
    agents = tuple(dict.fromkeys(agent for part in parts for agent in part.agents))
    tasks = tuple(dict.fromkeys(task for part in parts for task in part.tasks))
    row, column = ({name: i for i, name in enumerate(names)} for names in (agents, tasks))
    codes = [np.array([*(index[label] for label in part.classes), -1], dtype=label_type(len(classes)))
             for part in parts]  # fmt: skip
    truth = _truth_of(parts, where, column, codes)
    with_rows, answers = parts[0].rows is not None, sum(int(part.answered.sum()) for part in parts)
    if not with_rows and stays_sparse(len(row), len(column), answers):
        reading.refuse_answers("the reports", answers)
        return Joined(_answers_of(parts, where, row, column, codes), agents, tasks, None, truth)
    reading.refuse_cells("the reports", len(row), len(column), *[len(classes)] * with_rows)
    labels = np.full((len(row), len(column)), -1, dtype=codes[0].dtype)
    rows = np.full((*labels.shape, len(classes)), np.nan) if with_rows else None
    for part, source, new in zip(parts, where, codes, strict=True):
        _lay_in(part, source, new, (row, column), labels, rows)
    return Joined(labels, agents, tasks, rows, truth)


def _lay_in(
    part: Part, where: str, new: Labels, places: tuple[Places, Places], labels: Labels, rows: Floats | None
) -> None:
    """A part's labels and rows, put where its agents and tasks stand; nothing may stand there yet."""
    row, column = places
    who, about = _as_slice([row[a] for a in part.agents]), _as_slice([column[t] for t in part.tasks])
    at = np.ix_(who, about) if isinstance(who, list) and isinstance(about, list) else (who, about)
    held, said = labels[at], new[part.labels]
    for k, n in np.argwhere((held >= 0) & (said >= 0))[:1]:
        _refuse_twice(where, part.agents[k], part.tasks[n])
    labels[at] = np.where(said >= 0, said, held)
    if rows is not None and part.rows is not None:
        rows[at] = np.where((said >= 0)[..., None], part.rows, rows[at])


def _answers_of(
    parts: Sequence[Part], where: Sequence[str], row: Places, column: Places, codes: Sequence[Labels]
) -> Answers:
    """The answers of all parts in one list."""
    who = np.concatenate([np.array([row[a] for a in part.agents])[part.answers.agent] for part in parts])
    about = np.concatenate([np.array([column[t] for t in part.tasks])[part.answers.task] for part in parts])
    said = np.concatenate([new[part.answers.label] for part, new in zip(parts, codes, strict=True)])
    place = who * len(column) + about
    order = np.argsort(place, kind="stable")
    twice = second_time(place, order)
    if twice is not None:
        ends = np.cumsum([len(part.answers) for part in parts])
        _refuse_twice(where[int(np.searchsorted(ends, twice, "right"))], [*row][who[twice]], [*column][about[twice]])
    return Answers.of_places(place, order, said, (len(row), len(column)))


def _refuse_twice(where: str, agent: str, task: str) -> None:
    raise InputError(f"{where}agent {agent!r} reports task {task!r} in two files; keep one")


def _truth_of(parts: Sequence[Part], where: Sequence[str], column: Places, codes: Sequence[Labels]) -> Labels | None:
    """The truth that came with some parts; two of one task must be the same."""
    truth = np.full(len(column), -1, dtype=codes[0].dtype)
    for part, source, new in zip(parts, where, codes, strict=True):
        if part.truth is None:
            continue
        about = [column[t] for t in part.tasks]
        known, said = truth[about], new[part.truth]
        for n in np.nonzero((known >= 0) & (said >= 0) & (known != said))[0][:1]:
            raise InputError(f"{source}task {part.tasks[n]!r} has another truth in another file; keep one")
        truth[about] = np.where(said >= 0, said, known)
    return truth if any(part.truth is not None for part in parts) else None


def _as_slice(found: list[int]) -> list[int] | slice:
    """Places in an array, as a slice where they follow one another."""
    start = found[0] if found else 0
    return slice(start, start + len(found)) if found == [*range(start, start + len(found))] else found
