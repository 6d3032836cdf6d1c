"""Answers: who said what on which task, where most agents left most tasks out. Memory goes by what was said.

The answers stand agent by agent and, of each agent, in the order of the tasks; `by_task` has them the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from verax.errors import InputError
from verax.labels import Labels

Ints = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]

MOST_DENSE = 2**30  # cells of an array that may be made of answers
_WORTH_SPARSE = 2**24  # cells, up to which an array is no burden
_CELLS_AN_ANSWER = 8  # an answer takes as much memory as so many cells


def stays_sparse(agents: int, tasks: int, answers: int) -> bool:
    """Whether so many answers had better be held one by one than as an array of agents x tasks.

    >>> stays_sparse(100_000, 100_000, 4_000_000), stays_sparse(100, 1000, 500)
    (True, False)
    """
    cells = agents * tasks
    return cells > _WORTH_SPARSE and cells > _CELLS_AN_ANSWER * answers


def second_time(place: Ints, order: Ints) -> int | None:
    """The first of some rows that is about what an earlier row is about; `order` sorts their places.

    >>> second_time(np.array([7, 3, 7, 3]), np.array([1, 3, 0, 2]))
    2
    """
    again = order[1:][place[order[1:]] == place[order[:-1]]]
    return int(again.min()) if len(again) else None


@dataclass(frozen=True, eq=False)
class ByTask:
    """The same answers task by task, those of a task in the order of the agents."""

    start: Ints
    agent: Places
    label: Labels


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of each agent, from `start[i]` to `start[i + 1]`: which task, and the label said.

    >>> said = Answers.of(np.array([1, 0, 1]), np.array([2, 2, 0]), np.array([5, 6, 7]), shape=(2, 3))
    >>> said.start.tolist(), said.task.tolist(), said.label.tolist()
    ([0, 1, 3], [2, 0, 2], [6, 7, 5])
    """

    shape: tuple[int, int]
    start: Ints
    task: Places
    label: Labels

    @classmethod
    def of(cls, agent: npt.NDArray[np.integer], task: npt.NDArray[np.integer], label: Labels,
           shape: tuple[int, int]) -> Answers:  # fmt: skip
        """From one row an answer, in any order; a label below 0 is none."""
        place = agent.astype(np.int64) * shape[1] + task
        return cls.of_places(place, np.argsort(place, kind="stable"), label, shape)

    @classmethod
    def of_places(cls, place: Ints, order: Ints, label: Labels, shape: tuple[int, int]) -> Answers:
        """From places in an array of that shape, and what sorts them; a label below 0 is none."""
        label = label[order]
        kept = label >= 0
        if not kept.all():
            order, label = order[kept], label[kept]
        agent, task = np.divmod(place[order], max(shape[1], 1))
        start = np.zeros(shape[0] + 1, dtype=np.int64)
        np.cumsum(np.bincount(agent, minlength=shape[0]), out=start[1:])
        return cls(shape, start, task.astype(np.int32), label)

    @classmethod
    def of_array(cls, labels: Labels) -> Answers:
        """The answers in an array (K, N), -1 an abstention."""
        flat = np.flatnonzero(labels >= 0)
        agent, task = np.divmod(flat, max(labels.shape[1], 1))
        start = np.searchsorted(agent, np.arange(len(labels) + 1)).astype(np.int64)
        return cls((labels.shape[0], labels.shape[1]), start, task.astype(np.int32), labels.reshape(-1)[flat])

    def __len__(self) -> int:
        return len(self.task)

    @cached_property
    def agent(self) -> Places:
        """Whose each answer is."""
        return np.repeat(np.arange(self.shape[0], dtype=np.int32), self.answered)

    @property
    def answered(self) -> Ints:
        """How many tasks each agent answered."""
        return np.diff(self.start)

    @cached_property
    def by_task(self) -> ByTask:
        """The answers task by task, made when it is first asked for."""
        order, start = np.argsort(self.task, kind="stable"), np.zeros(self.shape[1] + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.task, minlength=self.shape[1]), out=start[1:])
        return ByTask(start, self.agent[order], self.label[order])

    @cached_property
    def meetings(self) -> Ints:
        """With how many answers those of each agent meet, its own among them."""
        each = np.diff(self.by_task.start)[self.task]
        whole = np.concatenate([[0], np.cumsum(each)])
        return np.asarray(np.diff(whole[self.start]))

    def of_agent(self, i: int) -> tuple[Places, Labels]:
        """Which tasks an agent answered, and what it said.

        >>> Answers.of_array(np.array([[-1, 1], [0, -1]])).of_agent(0)
        (array([1], dtype=int32), array([1]))
        """
        some = slice(self.start[i], self.start[i + 1])
        return self.task[some], self.label[some]

    def take(self, chosen: npt.NDArray[np.bool_]) -> Answers:
        """The answers on the chosen tasks only, which are counted anew."""
        kept = chosen[self.task]
        start = np.concatenate([[0], np.cumsum(kept)])[self.start]
        place = (np.cumsum(chosen) - 1).astype(np.int32)
        return Answers((self.shape[0], int(chosen.sum())), start, place[self.task[kept]], self.label[kept])

    def only(self, agents: npt.NDArray[np.integer]) -> Answers:
        """The answers of some agents, in that order."""
        each = self.answered[agents]
        start = np.concatenate([[0], np.cumsum(each)])
        at = np.repeat(self.start[agents] - start[:-1], each) + np.arange(start[-1])
        return Answers((len(agents), self.shape[1]), start, self.task[at], self.label[at])

    def in_order(self, agents: npt.NDArray[np.integer], tasks: npt.NDArray[np.integer]) -> Answers:
        """The same answers, agents and tasks in another order.

        >>> said = Answers.of_array(np.array([[0, -1], [1, 0]])).in_order(np.array([1, 0]), np.array([1, 0]))
        >>> said.dense().tolist()
        [[0, 1], [-1, 0]]
        """
        moved, place = self.only(agents), np.argsort(tasks)
        return Answers.of(moved.agent, place[moved.task], moved.label, self.shape)

    def relabelled(self, codes: Labels) -> Answers:
        """Every label by another code."""
        return replace(self, label=codes[self.label])

    def dense(self) -> Labels:
        """The array (K, N) of these answers, -1 an abstention; refused where it would not fit."""
        cells = self.shape[0] * self.shape[1]
        if cells > MOST_DENSE:
            raise InputError(
                f"{len(self):,} answers of {self.shape[0]:,} agents on {self.shape[1]:,} tasks are held one by one, "
                f"and what was asked needs all {cells:,} cells, more than {MOST_DENSE:,}; score by a rule of labels "
                "against peers, truth or the consensus, or give fewer agents or tasks"
            )
        found = np.full(self.shape, -1, dtype=self.label.dtype)
        found[self.agent, self.task] = self.label
        return found
