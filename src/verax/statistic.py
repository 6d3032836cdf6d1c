"""Statistics: what scores are made of, added up over one batch of tasks or over many.

    Together   tallies.py   labels beside all peers at once: a mean over peers with a fixed S, nobody abstaining
    Counts     pairs.py     labels otherwise: how often each pair (or each agent and the truth) says k and l
    Moments    moments.py   rows: covariances with the labels of all peers together, of each peer, or of the truth

The statistic of some tasks and that of others add up to that of all. `parts` makes scores of it; the error of a mean
over peers needs each task's sum over the peers, hence a second look at the reports once the sums are known: `look`
gives what that has to know. Reports in memory are one batch; shards are many.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from verax.errors import InputError
from verax.kernels import Floats, Ints, Labels
from verax.plan import Plan
from verax.public import Public
from verax.reports import Reports, some

GROUPS = 50  # of tasks, that a jackknife leaves out in turn
_MOST_BYTES = 2**28  # of the sums of all pairs; a few copies exist at a time


class Part(NamedTuple):
    """What an agent scores on one kind of reference."""

    score: float
    stderr: float
    tasks: int
    references: int


@dataclass(frozen=True, eq=False)
class Alike(Sequence[Part]):
    """The parts of agents who all rest on the same, as columns: a million are made only where they are looked at.

    >>> Alike(np.array([0.5, 0.25]), np.array([0.1, 0.2]), 100, 1)[1]
    Part(score=0.25, stderr=0.2, tasks=100, references=1)
    """

    score: Floats
    stderr: Floats
    tasks: int
    references: int

    def __len__(self) -> int:
        return len(self.score)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[n] for n in range(*i.indices(len(self)))]
        return Part(float(self.score[i]), float(self.stderr[i]), self.tasks, self.references)

    def __iter__(self) -> Iterator[Part]:
        both = zip(self.score.tolist(), self.stderr.tolist(), strict=True)
        return (Part(score, error, self.tasks, self.references) for score, error in both)


@dataclass(frozen=True, eq=False)
class Side:
    """Tasks scored against one kind of reference: labels (R, N), or, where that is None, the agents themselves."""

    reports: Reports
    signal: Public
    references: Labels | None

    @property
    def columns(self) -> Labels:
        """The labels that agents are held against."""
        return self.reports.labels if self.references is None else self.references

    @property
    def answered(self) -> Ints:
        """How many of these tasks each agent answered."""
        return self.reports.answered


def sides_of(reports: Reports, signal: Public, by_truth: bool, by_peers: bool) -> tuple[Side | None, Side | None]:
    """The tasks that the truth scores, where it is known, and those that peers do; None where a side is not asked."""
    truth = peers = None
    known = np.zeros(len(reports.tasks), dtype=bool)
    if by_truth and reports.truth is not None:
        known = np.asarray(reports.truth >= 0)
        chosen = reports if known.all() else reports.take(known)
        assert chosen.truth is not None
        truth = Side(chosen, signal.take(known), chosen.truth[None])
    if by_peers:
        some = known.any()
        peers = Side(reports.take(~known) if some else reports, signal.take(~known) if some else signal, None)
    return truth, peers


class Statistic(ABC):
    """Sums over tasks. `axes` names those of each array: k agents, r references, l labels, others as they are."""

    axes: ClassVar[dict[str, str]]
    peers: bool  # whether the references are the agents

    @abstractmethod
    def add(self, other: Self) -> None:
        """Add the sums of other tasks, over the same agents and classes."""

    @abstractmethod
    def parts(self, plan: Plan, answered: Ints, squares: Floats | None) -> Sequence[Part | None]:
        """What every agent scores; its error is NaN where that takes the squares of a second look."""

    @abstractmethod
    def look(self, plan: Plan) -> Look | None:
        """What a second look must know, None if it is not needed."""

    @property
    def together(self) -> bool:
        """Whether peers are summed up, which is right only where nobody abstains."""
        return False

    def moved(self, agents: Ints, classes: Ints, size: tuple[int, int]) -> Self:
        """The same sums over more agents and classes, these at the given places."""
        place = {"k": agents, "r": agents, "l": classes} if self.peers else {"k": agents, "l": classes}
        sizes = {"k": size[0], "r": size[0], "l": size[1]}
        larger = copy(self)
        for name, axes in self.axes.items():
            held: npt.NDArray[Any] | None = getattr(self, name)
            if held is None:
                continue
            shape = [sizes[a] if a in place else n for a, n in zip(axes, held.shape, strict=True)]
            where = [place.get(a, np.arange(n)) for a, n in zip(axes, held.shape, strict=True)]
            check_size(shape, *size)
            wider = np.zeros(shape, dtype=held.dtype)
            wider[np.ix_(*where)] = held
            setattr(larger, name, wider)
        return larger


class Look(ABC):
    """A second look at some tasks, of reports with the agents and classes of all."""

    @abstractmethod
    def squares(self, side: Side) -> Floats:
        """The sums over these tasks of the squares that errors are made of."""


def check_size(shape: Sequence[int], agents: int, classes: int) -> None:
    """Refuse sums of pairs that would not fit, before they are made."""
    needed = 8 * math.prod(shape)
    if needed > _MOST_BYTES:
        raise InputError(
            f"sums over all pairs of {agents} agents with {classes} classes take {needed / 2**30:.1f} GiB, "
            f"and {_MOST_BYTES / 2**30:g} GiB are allowed; score a linear rule over the mean of peers on tasks "
            "that all answered, score against truth, or score fewer agents"
        )


def digest_bytes(tasks: Sequence[str], place: int) -> Ints:
    """One byte of each task's SHA-256 sum: what sorts tasks into halves and groups, wherever they are counted.

    >>> (digest_bytes(["a", "b"], 0) & 1).tolist()
    [0, 0]
    """
    return np.array([hashlib.sha256(task.encode()).digest()[place] for task in tasks], dtype=np.int64)


def halves(tasks: Sequence[str]) -> Ints:
    """Which half each task falls in when a sign is learned on one and used on the other."""
    return digest_bytes(tasks, 0) & 1


def groups(tasks: Sequence[str]) -> Ints:
    """Which group each task falls in when groups are left out in turn: its own, where tasks are few."""
    if len(tasks) <= GROUPS:
        return np.arange(len(tasks))
    return (digest_bytes(tasks, 1) * 256 + digest_bytes(tasks, 2)) % GROUPS


def combined(
    plan: Plan, agents: Sequence[str], truth: Sequence[Part | None] | None, peers: Sequence[Part | None] | None
) -> tuple[Sequence[Part | None], list[str]]:
    """What everybody scores on both sides together, and who lost a part for want of tasks."""
    nobody: list[Part | None] = [None] * len(agents)
    if not (plan.by_truth and plan.by_peers):
        return (truth if plan.by_truth else peers) or nobody, []
    lost = [
        f"fewer than 2 {kind} tasks to score: that part is dropped for {some(unscored)}"
        for kind, parts in (("labelled", truth), ("unlabelled", peers))
        if (unscored := [agent for agent, part in zip(agents, parts or nobody, strict=True) if part is None])
    ]
    return [_weighted(t, p) for t, p in zip(truth or nobody, peers or nobody, strict=True)], lost


def _weighted(truth: Part | None, peers: Part | None) -> Part | None:
    """Both parts, weighted by tasks answered; they sit on disjoint tasks, so variances add."""
    if truth is None or peers is None:
        return truth or peers
    n = truth.tasks + peers.tasks
    return Part(
        math.fsum((truth.tasks * truth.score, peers.tasks * peers.score)) / n,
        math.hypot(truth.tasks * truth.stderr, peers.tasks * peers.stderr) / n,
        n,
        truth.references + peers.references,
    )
