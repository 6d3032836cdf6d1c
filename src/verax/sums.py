"""Sums over tasks that scores can be made of; which ones, a mechanism decides, and `tally` adds them up.

    together   labels, a mean over peers with a fixed S, nobody abstains: who said what, and along with how many
    counts     labels otherwise: how often each pair (or each agent and the truth) says k and l
    moments    rows: covariances with the labels of all peers together, of each peer, or of the truth

Sums of some tasks and sums of others make the sums of all. The error of a mean over peers needs each task's sum
over the peers, hence a second look at the reports once the sums are known: `Look` is what it has to know.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from verax import kernels, linear, pairs
from verax.errors import InputError
from verax.joint import Joint
from verax.kernels import Engine, Floats, Ints, Labels
from verax.pairs import Part, Plan
from verax.reports import Reports
from verax.rules import Rule

_MOST_BYTES = 2**28  # of the sums of all pairs; a few copies exist at a time


@dataclass(frozen=True)
class Early:
    """What must be known of a mechanism while there is nothing but one batch of reports."""

    rule: Rule
    sign: str | None
    matrix: npt.NDArray[np.generic] | None
    pairs: bool
    engine: Engine


def of(reports: Reports, references: Labels | None, plan: Early) -> Sums:
    """The sums of a batch: beside references (R, N), or, where there are none, beside the agents themselves.

    >>> from verax.rules import resolve
    >>> plan = Early(resolve("zero-one"), "identity", np.eye(2, dtype=np.int64), pairs=False, engine=Engine())
    >>> of(Reports.of(labels=[[0, 1], [0, 0]]), None, plan).held.tolist()
    [[1, 1], [2, 0]]
    """
    if plan.rule.needs_rows:
        return Moments.of(reports, references, plan)
    if references is None and not plan.pairs:
        return Together.of(reports.labels, plan)
    half = pairs.halves(reports.tasks) if plan.sign == "split" else None
    return Counts.of(reports.labels, references, len(reports.classes), half, plan.engine)


class Sums(ABC):
    """Sums over tasks. `axes` names those of each array: k agents, r references, l labels, others as they are."""

    axes: ClassVar[dict[str, str]]
    peers: bool  # whether the references are the agents

    @abstractmethod
    def add(self, other: Self) -> None:
        """Add the sums of other tasks, over the same agents and classes."""

    @abstractmethod
    def parts(self, plan: Plan, answered: Ints, squares: Floats | None) -> list[Part | None]:
        """What every agent scores; its error is NaN where that takes the squares of a second look."""

    @property
    def together(self) -> bool:
        """Whether peers are summed up, which is right only where nobody abstains."""
        return False

    def second(self, plan: Plan) -> Look | None:
        """What a second look must know, None if it is not needed."""
        return None

    def moved(self, agents: Ints, classes: Ints, size: tuple[int, int]) -> Self:
        """The same sums over more agents and classes, these at the given places."""
        place = {"k": agents, "r": agents, "l": classes} if self.peers else {"k": agents, "l": classes}
        sizes = {"k": size[0], "r": size[0], "l": size[1]}
        changed: dict[str, npt.NDArray[Any]] = {}
        for name, axes in self.axes.items():
            held: npt.NDArray[Any] | None = getattr(self, name)
            if held is None:
                continue
            shape = [sizes[a] if a in place else n for a, n in zip(axes, held.shape, strict=True)]
            where = [place.get(a, np.arange(n)) for a, n in zip(axes, held.shape, strict=True)]
            _check_size(shape, *size)
            changed[name] = np.zeros(shape, dtype=held.dtype)
            changed[name][np.ix_(*where)] = held
        larger = copy(self)
        vars(larger).update(changed)
        return larger


class Look(ABC):
    """A second look at some tasks, of reports with the agents and classes of all."""

    @abstractmethod
    def squares(self, reports: Reports, references: Labels | None) -> Floats:
        """The sums over these tasks of the squares that errors are made of; None: the references are the agents."""


@dataclass
class Counts(Sums):
    """How often agent k says one label and reference r another, in each half: (K, R, H, L, L)."""

    axes: ClassVar[dict[str, str]] = {"counts": "krhll"}
    counts: Ints
    peers: bool

    @classmethod
    def of(cls, labels: Labels, references: Labels | None, classes: int, half: Ints | None, engine: Engine) -> Counts:
        columns = labels if references is None else references
        parts = 1 if half is None else 2
        shape = len(labels), len(columns), parts, classes, classes
        _check_size(shape, len(labels), classes)
        if not math.prod(shape):  # everybody abstained
            return cls(np.zeros(shape, dtype=np.int64), references is None)
        return cls(kernels.counts(labels, columns, classes, half, parts, engine), references is None)

    def add(self, other: Self) -> None:
        self.counts += other.counts

    def parts(self, plan: Plan, answered: Ints, squares: Floats | None) -> list[Part | None]:
        if self.peers and linear.applies(plan):
            group = self._groups()
            if group.max(initial=0) < linear._groups_worth(len(group)):
                return self._grouped(plan, group, answered, squares)
        return [self._part(plan, i, int(n), squares) for i, n in enumerate(answered.tolist())]

    def _able(self, i: int) -> npt.NDArray[np.bool_]:
        able = self.counts[i].sum((1, 2, 3)) >= 2
        if self.peers:
            able[i] = False
        return np.asarray(able)

    def _part(self, plan: Plan, i: int, answered: int, squares: Floats | None) -> Part | None:
        counts = self.counts[i, self._able(i)][:, :, None]
        if not len(counts):
            return None
        if not plan.rule.counts_only:
            found = plan.rule(Joint(counts[0, 0]))
            assert not isinstance(found, float)
            return Part(found.value, found.stderr, answered, 1)
        value, stderr, _ = pairs.of_counts(counts, plan)
        over = plan.over if self.peers else None
        together = float(stderr[0]) if not self.peers else math.nan
        if squares is not None:
            together = math.fsum(np.sqrt(squares[i])) / len(value)
        score, error = pairs._over(pairs._Pairs(value, stderr, together), over)
        return Part(score, error, answered, len(value))

    def _groups(self) -> Ints:
        """Which agents left out the same tasks: those that share with each other all that either answered."""
        common = self.counts.sum((2, 3, 4))
        alone = np.diagonal(common)
        same = (common == alone) & (common == alone[:, None])
        return np.asarray(np.unique(same.argmax(1), return_inverse=True)[1], dtype=np.int64)

    def _grouped(self, plan: Plan, group: Ints, answered: Ints, squares: Floats | None) -> list[Part | None]:
        """A mean over peers as `linear` takes it, group by group, so that the last bit is the same."""
        found: list[Part | None] = []
        for i in range(len(group)):
            terms, references = [], 0
            for h in range(int(group.max()) + 1):
                peers = np.nonzero((group == h) & (np.arange(len(group)) != i))[0]
                counts = self.counts[i, peers, 0]
                if len(peers) and counts[0].sum() >= 2:
                    terms.append(_beside_group(counts, plan))
                    references += len(peers)
            error = math.nan if squares is None else math.sqrt(squares[i, 0])
            score = math.fsum(terms)
            found.append(
                Part(score / references, error / references, int(answered[i]), references) if references else None
            )
        return found

    def second(self, plan: Plan) -> Look | None:
        if not self.peers or plan.over != "mean":
            return None
        tables = np.zeros(self.counts.shape)
        for i in range(len(tables)):
            able = self._able(i)
            if able.any():
                tables[i, able] = pairs.of_counts(self.counts[i, able][:, :, None], plan)[2][:, :, 0]
        return Tables(tables, plan.sign == "split", plan.engine)


def _check_size(shape: Sequence[int], agents: int, classes: int) -> None:
    """Refuse sums of pairs that would not fit, before they are made."""
    needed = 8 * math.prod(shape)
    if needed > _MOST_BYTES:
        raise InputError(
            f"sums over all pairs of {agents} agents with {classes} classes take {needed / 2**30:.1f} GiB, "
            f"and {_MOST_BYTES / 2**30:g} GiB are allowed; score zero-one, ce or brier over the mean of peers on tasks "
            "that all answered, score against truth, or score fewer agents"
        )


def _beside_group(counts: Ints, plan: Plan) -> float:
    """The sum of what an agent scores beside peers who answered the same tasks, from counts (J, L, L)."""
    assert plan.matrix is not None
    n, every = int(counts[0].sum()), counts.sum(0)
    held, rest = counts[0].sum(1), every.sum(0)
    if np.isin(plan.matrix, (0, 1)).all():
        matrix = plan.matrix.astype(np.int64)
        found: Any = linear.excess(n, (every * matrix).sum(keepdims=True)[0], held[None], rest[None], matrix)
        return float((found / max(n - 1, 1) / n)[0])
    return linear.excess_of_cells(n, every, held, rest, plan.matrix.astype(np.float64)) / max(n - 1, 1) / n


@dataclass(frozen=True)
class Tables(Look):
    """Each pair's centred influence, cell by cell; phi of a task is its sum over the peers."""

    tables: Floats
    split: bool
    engine: Engine

    def squares(self, reports: Reports, references: Labels | None) -> Floats:
        half = pairs.halves(reports.tasks) if self.split else None
        phi = kernels.sums(reports.labels, reports.labels, self.tables, half, self.engine)
        parts = [phi] if half is None else [phi[:, half == h] for h in (0, 1)]
        return np.stack([np.einsum("in,in->i", part, part) for part in parts], axis=1)


@dataclass
class Together(Sums):
    """Labels that all agents gave on all tasks: how often each says each label, and <S, C> with all of them."""

    axes: ClassVar[dict[str, str]] = {"held": "kl", "own": "k", "cells": "kll"}
    tasks: int
    held: Ints
    own: Ints
    cells: Ints | None
    peers: bool = True

    @property
    def together(self) -> bool:
        return True

    @classmethod
    def of(cls, labels: Labels, plan: Early) -> Together:
        matrix = plan.matrix
        assert matrix is not None
        said, held = kernels.tallies(labels, len(matrix), plan.engine)
        if np.isin(matrix, (0, 1)).all():
            weight = kernels.times(said, matrix.T.astype(np.int64))
            return cls(labels.shape[1], held, kernels.weighed(labels, weight, plan.engine), None)
        cells = np.stack([_cells(row, said, len(matrix)) for row in labels])
        return cls(labels.shape[1], held, np.zeros(len(labels), dtype=np.int64), cells)

    def add(self, other: Self) -> None:
        self.tasks += other.tasks
        self.held += other.held
        self.own += other.own
        if self.cells is not None and other.cells is not None:
            self.cells += other.cells

    def _rest(self) -> Ints:
        return np.asarray(self.held.sum(0) - self.held)

    def _excess(self, plan: Plan) -> npt.NDArray[Any]:
        """<S, n C - a b^T> of every agent, summed over its peers."""
        assert plan.matrix is not None
        n, rest = self.tasks, self._rest()
        if self.cells is None:
            matrix = plan.matrix.astype(np.int64)
            return linear.excess(n, self.own - self.held @ np.diagonal(matrix), self.held, rest, matrix)
        s = plan.matrix.astype(np.float64)
        each = zip(self.cells, self.held, rest, strict=True)
        return np.array([linear.excess_of_cells(n, counts - np.diag(a), a, r, s) for counts, a, r in each])

    def parts(self, plan: Plan, answered: Ints, squares: Floats | None) -> list[Part | None]:
        n, peers = self.tasks, len(self.held) - 1
        if n < 2 or not peers:
            return [None] * len(self.held)
        value = [float(x) for x in self._excess(plan) / max(n - 1, 1) / n]
        error = np.full(len(value), math.nan) if squares is None else np.sqrt(squares) / n
        return [Part(v / peers, e / peers, n, peers) for v, e in zip(value, error.tolist(), strict=True)]

    def second(self, plan: Plan) -> Look | None:
        if self.tasks < 2 or plan.matrix is None:
            return None
        share, shift = kernels.centre(self.tasks, self.held, self._rest(), plan.matrix, same=True)
        mean = (self._excess(plan) / self.tasks).astype(np.float64) / self.tasks
        return Spread(share, shift, mean, plan.matrix, plan.engine)


def _cells(row: Labels, said: Ints, classes: int) -> Ints:
    """How often a row says k where all agents together say l."""
    return np.stack([np.bincount(row, each, classes) for each in said.T.astype(np.float64)], 1).astype(np.int64)


@dataclass(frozen=True)
class Spread(Look):
    """psi = weight[n, k] + shift[k] - share . said[n], and its mean over all tasks."""

    share: Floats
    shift: Floats
    mean: Floats
    matrix: npt.NDArray[np.generic]
    engine: Engine

    def squares(self, reports: Reports, references: Labels | None) -> Floats:
        labels, matrix = reports.labels, self.matrix.astype(np.float64)
        said = kernels.tallies(labels, len(matrix), self.engine)[0].astype(np.float64)
        weight = kernels.times(said, matrix.T)
        total, square = kernels.spread(labels, weight, said, self.share, self.shift, self.engine)
        n = labels.shape[1]
        return np.asarray(square + n * (total / n - self.mean) ** 2)


@dataclass
class Moments(Sums):
    """Rows x beside references g: tasks, sums of both (K, R, L), and sums of (x - mean x) . (g - mean g)."""

    axes: ClassVar[dict[str, str]] = {"n": "kr", "both": "kr", "x": "krl", "g": "krl"}
    n: Ints
    both: Floats
    x: Floats
    g: Floats
    peers: bool
    pooled: bool

    @property
    def together(self) -> bool:
        return self.pooled

    @classmethod
    def of(cls, reports: Reports, references: Labels | None, plan: Early) -> Moments:
        if references is None and not plan.pairs:
            return cls._of_pooled(reports, plan)
        columns, classes = reports.labels if references is None else references, len(reports.classes)
        _check_size((len(reports.agents), len(columns), 2, classes), len(reports.agents), classes)
        found = [_beside(reports, i, columns, plan.rule) for i in range(len(reports.agents))]
        n, both, x, g = (np.stack(each) for each in zip(*found, strict=True))
        return cls(n, both, x, g, references is None, False)

    @classmethod
    def _of_pooled(cls, reports: Reports, plan: Early) -> Moments:
        """Beside all peers together, who answered every task: g counts how many say each label."""
        agents, tasks, classes = *reports.labels.shape, len(reports.classes)
        said, held = kernels.tallies(reports.labels, classes, plan.engine)
        both, x = np.empty((agents, 1)), np.empty((agents, 1, classes))
        for i, labels in enumerate(reports.labels):
            row = _rows(reports, i, plan.rule)
            x[i, 0] = row.sum(0)
            row = row - x[i, 0] / tasks
            both[i] = (row * said).sum() - row[np.arange(tasks), labels].sum()
        return cls(np.full((agents, 1), tasks), both, x, (held.sum(0) - held)[:, None].astype(np.float64), False, True)

    def add(self, other: Self) -> None:
        n = self.n + other.n
        apart = [a / np.maximum(self.n, 1)[..., None] - b / np.maximum(other.n, 1)[..., None]
                 for a, b in ((self.x, other.x), (self.g, other.g))]  # fmt: skip
        self.both += other.both + self.n * other.n / np.maximum(n, 1) * (apart[0] * apart[1]).sum(-1)
        self.n, self.x, self.g = n, self.x + other.x, self.g + other.g

    def parts(self, plan: Plan, answered: Ints, squares: Floats | None) -> list[Part | None]:
        value, found = self.both / np.maximum(self.n - 1, 1), list[Part | None]()
        for i, tasks in enumerate(answered.tolist()):
            able = self._able(i)
            references = len(self.n) - 1 if self.pooled else int(able.sum())
            if not able.any() or not references:
                found.append(None)
            elif plan.over == "median" and self.peers:
                stderr = np.full(references, math.nan)
                if squares is not None:
                    stderr = np.sqrt(squares[i, able]) / self.n[i, able]
                score, error = pairs._over(pairs._Pairs(value[i, able], stderr, math.nan), "median")
                found.append(Part(score, error, int(tasks), references))
            else:
                error = math.nan if squares is None else math.sqrt(squares[i].sum())
                found.append(Part(math.fsum(value[i, able]) / references, error / references, int(tasks), references))
        return found

    def _able(self, i: int) -> npt.NDArray[np.bool_]:
        able = self.n[i] >= 2
        if self.peers:
            able[i] = False
        return np.asarray(able)

    def second(self, plan: Plan) -> Look:
        able = np.stack([self._able(i) for i in range(len(self.n))])
        n = np.maximum(self.n, 1)
        return Deviations(
            able, n, self.x / n[..., None], self.g / n[..., None], self.both / n, plan.rule, plan.engine,
            apart=plan.over == "median" and self.peers, pooled=self.pooled,
        )  # fmt: skip


def _rows(reports: Reports, i: int, rule: Rule) -> Floats:
    """An agent's log p or 2p; 0 where it abstained."""
    assert reports.probabilities is not None
    p = np.where((reports.labels[i] >= 0)[:, None], reports.probabilities[i], 1.0)
    rows = 2.0 * p if rule.name == "brier" else np.log(np.maximum(p, rule.floor or 0.0))
    return np.where((reports.labels[i] >= 0)[:, None], rows, 0.0)


def _beside(reports: Reports, i: int, columns: Labels, rule: Rule) -> tuple[Ints, Floats, Floats, Floats]:
    """Agent i's moments with each column: tasks, covariance, sums of rows and of labels."""
    answered = reports.labels[i] >= 0
    common = (columns >= 0) & answered
    rows = _rows(reports, i, rule)
    mean = rows.sum(0) / max(int(answered.sum()), 1)
    rows = np.where(answered[:, None], rows - mean, 0.0)
    n = common.sum(1)
    x = common.astype(np.float64) @ rows
    g = np.stack([np.bincount(c[k], minlength=rows.shape[1]) for c, k in zip(columns, common, strict=True)])
    own = np.where(common, rows[np.arange(len(rows)), columns], 0.0).sum(1)
    return n, own - (x * g).sum(1) / np.maximum(n, 1), x + n[:, None] * mean, g.astype(np.float64)


@dataclass(frozen=True)
class Deviations(Look):
    """psi = (x - mean x) . (g - mean g) less its mean, for each reference apart or for all together."""

    able: npt.NDArray[np.bool_]
    n: Ints
    x: Floats
    g: Floats
    mean: Floats
    rule: Rule
    engine: Engine
    apart: bool
    pooled: bool

    def squares(self, reports: Reports, references: Labels | None) -> Floats:
        columns = reports.labels if references is None else references
        if self.pooled:
            said = kernels.tallies(reports.labels, len(reports.classes), self.engine)[0].astype(np.float64)
            return np.array([self._pooled(reports, i, said) for i in range(len(reports.agents))])[:, None]
        return np.stack([self._beside(reports, i, columns) for i in range(len(reports.agents))])

    def _pooled(self, reports: Reports, i: int, said: Floats) -> float:
        theirs = said - self.g[i, 0]
        theirs[np.arange(len(said)), reports.labels[i]] -= 1.0
        psi = ((_rows(reports, i, self.rule) - self.x[i, 0]) * theirs).sum(1)
        return float((((psi - self.mean[i, 0]) / self.n[i, 0]) ** 2).sum())

    def _beside(self, reports: Reports, i: int, columns: Labels) -> Floats:
        rows = _rows(reports, i, self.rule)
        tasks, every = np.arange(len(rows)), np.arange(len(columns))[:, None]
        shifted = rows[tasks, columns] - self.x[i][every, columns]
        psi = shifted - self.g[i] @ rows.T + (self.x[i] * self.g[i]).sum(1, keepdims=True)
        common = (columns >= 0) & (reports.labels[i] >= 0) & self.able[i][:, None]
        apart = np.where(common, psi - self.mean[i][:, None], 0.0)
        if self.apart:
            return np.asarray((apart**2).sum(1))
        return np.asarray(((apart / self.n[i][:, None]).sum(0) ** 2).sum(keepdims=True))
