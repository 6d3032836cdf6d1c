"""Rows that lie in shards: covariances of an agent's rows as scored with labels, which add up like counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from verax import kernels
from verax.kernels import Floats, Ints, Labels
from verax.pairs import Pairs
from verax.plan import Plan
from verax.reports import Reports
from verax.rules import Rule
from verax.statistic import Look, Part, Side, Statistic, check_size


@dataclass
class Moments(Statistic):
    """Rows x beside references g: tasks, sums of both (K, R, L), and sums of (x - mean x) . (g - mean g).

    The references are agents (`peers`), the truth, or all peers together (`pooled`).
    """

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
    def of(cls, side: Side, plan: Plan, *, pairs: bool) -> Moments:
        """The moments of one batch; unless `pairs`, beside all peers together, who answered every task."""
        reports, peers = side.reports, side.references is None
        if peers and not pairs:
            return cls._of_pooled(reports, plan)
        agents, classes = len(reports.agents), len(reports.classes)
        check_size((agents, len(side.columns), 2, classes), agents, classes)
        found = [_beside_columns(reports, i, side.columns, plan.rule) for i in range(agents)]
        n, both, x, g = (np.stack(each) for each in zip(*found, strict=True))
        return cls(n, both, x, g, peers, False)

    @classmethod
    def _of_pooled(cls, reports: Reports, plan: Plan) -> Moments:
        """Beside all peers together: g counts how many say each label."""
        agents, tasks, classes = *reports.labels.shape, len(reports.classes)
        said, held = kernels.tallies(reports.labels, classes, plan.engine)
        both, x = np.empty((agents, 1)), np.empty((agents, 1, classes))
        for i, labels in enumerate(reports.labels):
            row = _rows_as_scored(reports, i, plan.rule)
            x[i, 0] = row.sum(0)
            row = row - x[i, 0] / tasks
            both[i] = (row * said).sum() - row[np.arange(tasks), labels].sum()
        return cls(np.full((agents, 1), tasks), both, x, (held.sum(0) - held)[:, None].astype(np.float64), False, True)

    def add(self, other: Self) -> None:
        n = self.n + other.n
        apart = [a / np.maximum(self.n, 1)[..., None] - b / np.maximum(other.n, 1)[..., None]
                 for a, b in ((self.x, other.x), (self.g, other.g))]  # fmt: skip
        self.both = self.both + other.both + self.n * other.n / np.maximum(n, 1) * (apart[0] * apart[1]).sum(-1)
        self.n, self.x, self.g = n, self.x + other.x, self.g + other.g

    def parts(self, plan: Plan, answered: Ints, squares: Floats | None) -> list[Part | None]:
        value, found = self.both / np.maximum(self.n - 1, 1), list[Part | None]()
        for i, tasks in enumerate(answered.tolist()):
            able = self._able_references(i)
            references = len(self.n) - 1 if self.pooled else int(able.sum())
            if not able.any() or not references:
                found.append(None)
            elif plan.over == "median" and self.peers:
                stderr = np.full(references, math.nan)
                if squares is not None:
                    stderr = np.sqrt(squares[i, able]) / self.n[i, able]
                score, error = Pairs(value[i, able], stderr, math.nan).over("median")
                found.append(Part(score, error, int(tasks), references))
            else:
                error = math.nan if squares is None else math.sqrt(squares[i].sum())
                found.append(Part(math.fsum(value[i, able]) / references, error / references, int(tasks), references))
        return found

    def _able_references(self, i: int) -> npt.NDArray[np.bool_]:
        able = self.n[i] >= 2
        if self.peers:
            able[i] = False
        return np.asarray(able)

    def look(self, plan: Plan) -> Look:
        able = np.stack([self._able_references(i) for i in range(len(self.n))])
        n = np.maximum(self.n, 1)
        return Deviations(
            able, n, self.x / n[..., None], self.g / n[..., None], self.both / n, plan,
            apart=plan.over == "median" and self.peers, pooled=self.pooled,
        )  # fmt: skip


def _rows_as_scored(reports: Reports, i: int, rule: Rule) -> Floats:
    """An agent's rows as its rule scores them; 0 where it abstained."""
    assert reports.rows is not None
    answered = (reports.labels[i] >= 0)[:, None]
    return np.where(answered, rule.scored(np.where(answered, reports.rows[i], 1.0)), 0.0)


def _beside_columns(reports: Reports, i: int, columns: Labels, rule: Rule) -> tuple[Ints, Floats, Floats, Floats]:
    """Agent i's moments with each column: tasks, covariance, sums of rows and of labels."""
    answered = reports.labels[i] >= 0
    common = (columns >= 0) & answered
    rows = _rows_as_scored(reports, i, rule)
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
    plan: Plan
    apart: bool
    pooled: bool

    def squares(self, side: Side) -> Floats:
        reports, agents = side.reports, range(len(side.reports.agents))
        if self.pooled:
            said = kernels.tallies(reports.labels, len(reports.classes), self.plan.engine)[0].astype(np.float64)
            return np.array([self._of_pooled(reports, i, said) for i in agents])[:, None]
        return np.stack([self._of_references(reports, i, side.columns) for i in agents])

    def _of_pooled(self, reports: Reports, i: int, said: Floats) -> float:
        theirs = said - self.g[i, 0]
        theirs[np.arange(len(said)), reports.labels[i]] -= 1.0
        psi = ((_rows_as_scored(reports, i, self.plan.rule) - self.x[i, 0]) * theirs).sum(1)
        return float((((psi - self.mean[i, 0]) / self.n[i, 0]) ** 2).sum())

    def _of_references(self, reports: Reports, i: int, columns: Labels) -> Floats:
        rows = _rows_as_scored(reports, i, self.plan.rule)
        tasks, every = np.arange(len(rows)), np.arange(len(columns))[:, None]
        shifted = rows[tasks, columns] - self.x[i][every, columns]
        psi = shifted - self.g[i] @ rows.T + (self.x[i] * self.g[i]).sum(1, keepdims=True)
        common = (columns >= 0) & (reports.labels[i] >= 0) & self.able[i][:, None]
        apart = np.where(common, psi - self.mean[i][:, None], 0.0)
        if self.apart:
            return np.asarray((apart**2).sum(1))
        return np.asarray(((apart / self.n[i][:, None]).sum(0) ** 2).sum(keepdims=True))
