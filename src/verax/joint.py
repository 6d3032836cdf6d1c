"""Joint: what one report and one reference say together. It measures; a rule makes the number.

On the N tasks that both answered, let C(k, l) count how often the report says k while the
reference says l, with row sums a and column sums b. Then

    bonus   = C / N                          how often they meet on the same task
    penalty = (a b^T - C) / (N (N - 1))      how often they would meet on two different tasks
    delta   = bonus - penalty                the unbiased estimate of the paper's Delta*

and <S, delta> is exactly the mean of Algorithm 1's payment over all its random pairings. For a
report that is a matrix X (one row a task: one-hot labels, log p, 2p) and G the reference's one-hot
matrix, delta = X^T M G / (N - 1) with M the projector that removes the mean. A public signal
changes M and nothing else: see `Public`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from verax.errors import InputError
from verax.kernels import Floats, Ints
from verax.kernels import counts as pair_counts
from verax.public import Public
from verax.space import check_memory

_NEAR_TIE = 1e-9
_ROUNDING = 1e-14
_MOST_TASKS = 3_000_000_000


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error over tasks; `influence` is each task's (or cell's) psi.

    >>> Estimate(0.5, 0.01, np.zeros(3))
    Estimate(value=0.5, stderr=0.01)
    """

    value: float
    stderr: float
    influence: Floats

    def __repr__(self) -> str:
        return f"Estimate(value={self.value:.10g}, stderr={self.stderr:.10g})"

    @classmethod
    def of_tasks(cls, value: float, psi: Floats) -> Estimate:
        """The estimate whose influence is psi(n), one entry a task."""
        return cls(value, float(psi.std() / math.sqrt(len(psi))), psi)

    @classmethod
    def of_cells(cls, value: float, psi: Floats, counts: Ints) -> Estimate:
        """The estimate whose influence is psi(z, k, l), one entry a cell of the counts."""
        return cls(value, float(stderrs(counts, psi)), psi)


# Stacks of counts, shape (..., Z, L, L): strata are summed over, leading axes are pairs.


def excess(counts: Ints) -> Ints:
    """n C - a b^T in every stratum: delta without its denominator, still an integer."""
    n = counts.sum((-2, -1), keepdims=True)
    if n.max(initial=0) > _MOST_TASKS:
        raise InputError(f"more than {_MOST_TASKS:,} tasks do not fit exact 64-bit counts; score a part of them")
    return np.asarray(n * counts - counts.sum(-1, keepdims=True) * counts.sum(-2, keepdims=True))


def values(counts: Ints, matrix: npt.NDArray[np.generic]) -> Floats:
    """<S, delta> for every pair of a stack; one rounding a stratum, whatever the order of anything."""
    n = counts.sum((-2, -1))
    if np.isin(matrix, (0, 1)).all():
        total = (excess(counts) * matrix.astype(np.int64)[..., None, :, :]).sum((-2, -1))
    else:
        terms = excess(counts) * matrix.astype(np.float64)[..., None, :, :]
        total = np.apply_along_axis(math.fsum, -1, terms.reshape(*terms.shape[:-2], -1))
    if counts.shape[-3] == 1:
        return np.asarray((total / np.maximum(n * (n - 1), 1))[..., 0])
    per_stratum = total / np.maximum(n - 1, 1)
    whole = np.maximum(n.sum(-1), 1)
    return np.asarray(np.apply_along_axis(math.fsum, -1, per_stratum) / whole)


def influences(counts: Ints, matrix: npt.NDArray[np.generic]) -> Floats:
    """psi(z, k, l) = (e_k - a/n)^T S (e_l - b/n), 0 in strata of fewer than two tasks."""
    n = counts.sum((-2, -1), keepdims=True)
    size = np.maximum(n, 1)
    s = matrix.astype(np.float64)[..., None, :, :]
    a = counts.sum(-1, keepdims=True) / size
    b = counts.sum(-2, keepdims=True) / size
    rows, columns = (s * b).sum(-1, keepdims=True), (s * a).sum(-2, keepdims=True)
    psi = (s - columns) - (rows - (a * rows).sum(-2, keepdims=True))  # exactly 0 for a constant
    return np.where(n < 2, 0.0, psi)


def means(counts: Ints, psi: Floats) -> Floats:
    """The mean of psi over the tasks behind the counts, for every pair."""
    n = np.maximum(counts.sum((-3, -2, -1)), 1)
    return np.asarray((counts * psi).sum((-3, -2, -1)) / n)


def stderrs(counts: Ints, psi: Floats) -> Floats:
    """sd_n(psi) / sqrt(N) for every pair."""
    n = np.maximum(counts.sum((-3, -2, -1)), 1)
    centred = psi - means(counts, psi)[..., None, None, None]
    return np.asarray(np.sqrt((counts * centred**2).sum((-3, -2, -1))) / n)


def signs(counts: Ints) -> npt.NDArray[np.bool_]:
    """Sgn(delta), Sgn(x) = 1 if x > 0 else 0, decided on integers: n C(k, l) > a(k) b(l)."""
    n = counts.sum((-2, -1), keepdims=True)
    if counts.shape[-3] == 1:
        return np.asarray((excess(counts) > 0)[..., 0, :, :] & (n[..., 0, :, :] > 1))
    terms = np.where(n < 2, 0.0, excess(counts) / np.maximum(n - 1, 1))
    total, size = terms.sum(-3), np.abs(terms).sum(-3)
    positive = total > 0
    for cell in zip(*np.nonzero((np.abs(total) <= _NEAR_TIE * size) & (size > 0)), strict=True):
        where = (*cell[:-2], slice(None), *cell[-2:])
        sizes = n[(*cell[:-2], slice(None), 0, 0)].tolist()
        exact = zip(excess(counts)[where].tolist(), sizes, strict=True)
        positive[cell] = sum((Fraction(x, m - 1) for x, m in exact if m > 1), Fraction()) > 0
    return np.asarray(positive)


@dataclass(frozen=True, eq=False)
class Paired:
    """Two reports task by task, where their counts do not suffice: rows (N, L) beside labels (N,)."""

    rows: Floats
    reference: Ints
    public: Public

    @cached_property
    def residuals(self) -> tuple[Floats, Floats]:
        """M X and M G: both sides with the public signal taken out."""
        one_hot = np.eye(self.rows.shape[1])[self.reference]
        return self.public.residual(self.rows), self.public.residual(one_hot)


@dataclass(frozen=True, eq=False)
class Joint:
    """Two reports on their common tasks: `counts` (Z, L, L), and `paired` for rows or features.

    >>> joint = Joint.of_counts([[40, 10], [20, 30]])
    >>> joint.tasks, joint.delta.round(6).tolist()
    (100, [[0.10101, -0.10101], [-0.10101, 0.10101]])
    >>> joint.score()
    Estimate(value=0.202020202, stderr=0.04472135955)
    """

    counts: Ints
    paired: Paired | None = None

    @classmethod
    def of_counts(cls, counts: npt.ArrayLike) -> Joint:
        """From a table of counts (L, L), rows the report's labels, or (Z, L, L) with strata."""
        table = np.asarray(counts)
        if table.ndim == 2:
            table = table[None]
        if table.ndim != 3 or table.shape[1] != table.shape[2] or table.dtype.kind not in "iu":
            raise InputError(
                f"counts have shape {table.shape} and type {table.dtype}; give integers (L, L) or (Z, L, L)"
            )
        return cls(table.astype(np.int64))

    @classmethod
    def of(
        cls,
        report: npt.ArrayLike,
        reference: npt.ArrayLike,
        classes: int | None = None,
        public: npt.ArrayLike | Public | None = None,
    ) -> Joint:
        """From labels (N,) or probability rows (N, L), and a reference's labels (N,).

        -1, or a row of NaN, is an abstention; only tasks that both answered count.

        >>> Joint.of([0, 1, 1, -1], [0, 1, 0, 1]).bonus.round(3).tolist()
        [[0.333, 0.0], [0.333, 0.333]]
        """
        x, g = np.asarray(report), np.asarray(reference).astype(np.int64)
        if x.shape[:1] != g.shape or g.ndim != 1:
            raise InputError(f"the report has shape {x.shape}, the reference {g.shape}; give both one entry a task")
        signal = Public.of(public, len(g))
        if x.ndim == 1:
            labels, rows = x.astype(np.int64), None
            size = classes or int(max(labels.max(initial=0), g.max(initial=0))) + 1
        else:
            rows, size = x.astype(np.float64), x.shape[1]
            labels = np.where(np.isnan(rows[:, 0]), -1, rows.argmax(1))
        if max(labels.max(initial=0), g.max(initial=0)) >= size:
            raise InputError(f"a label is outside 0..{size - 1}; give classes= the number of classes")
        check_memory("a table of labels beside labels", "leave out the classes that nobody says", size, size)
        common = (labels >= 0) & (g >= 0)
        labels, g, signal = labels[common], g[common], signal.take(common)
        parts = 1 if signal.strata is None else int(signal.strata.max(initial=0)) + 1
        counts = pair_counts(labels[None], g[None], size, signal.strata, parts)[0, 0]
        if rows is None and signal.features is None:
            return cls(counts)
        return cls(counts, Paired(np.eye(size)[labels] if rows is None else rows[common], g, signal))

    @property
    def classes(self) -> int:
        """How many labels there are, L."""
        return int(self.counts.shape[-1])

    @property
    def tasks(self) -> int:
        """How many tasks both answered, N."""
        return int(self.counts.sum())

    @property
    def enough(self) -> bool:
        """Whether anything is left to score: two tasks, and more tasks than the public signal takes out."""
        return self.tasks > (1 if self.paired is None else self.paired.public.rank)

    @property
    def bonus(self) -> Floats:
        """How often the two meet on the same task; strata of a single task count 0."""
        if self.paired is None:
            met = np.where(self.counts.sum((-2, -1), keepdims=True) > 1, self.counts, 0)
            return np.asarray(met.sum(0) / max(self.tasks, 1))
        kept = (self.paired.public.weights > 0)[:, None]
        one_hot = np.eye(self.classes)[self.paired.reference]
        return np.asarray((self.paired.rows * kept).T @ one_hot / max(self.tasks, 1))

    @property
    def penalty(self) -> Floats:
        """How often the two would meet on two different tasks (of one stratum, given the features)."""
        return self.bonus - self.delta

    @property
    def delta(self) -> Floats:
        """bonus - penalty: the unbiased estimate of the paper's Delta*."""
        if self.paired is None:
            unit = np.eye(self.classes**2, dtype=np.int64).reshape(-1, self.classes, self.classes)
            return values(self.counts[None], unit).reshape(self.classes, self.classes)
        own, reference = self.paired.residuals
        return np.asarray((own * self.paired.public.weights[:, None]).T @ reference)

    @property
    def sign(self) -> npt.NDArray[np.bool_]:
        """Sgn(delta) on these very tasks: for study, it pays noise when it scores them too."""
        return signs(self.counts) if self.paired is None else np.asarray(self.delta > _ROUNDING)

    def score(self, matrix: npt.ArrayLike | None = None) -> Estimate:
        """<S, delta> with S = `matrix`, the identity if not given, and its standard error."""
        s = np.eye(self.classes, dtype=np.int64) if matrix is None else np.asarray(matrix)
        if self.paired is None:
            value = float(values(self.counts, s))
            return Estimate.of_cells(value, influences(self.counts, s), self.counts)
        own, reference = self.paired.residuals
        psi = ((own @ s) * reference).sum(1)
        return Estimate.of_tasks(float(self.paired.public.weights @ psi), psi)

    @property
    def tasks_paired(self) -> Paired:
        """The two reports task by task, which a probability rule needs."""
        if self.paired is None:
            raise InputError(
                "this report has labels only; a probability rule needs rows: "
                "add p:<class> columns, or use a rule that counts labels"
            )
        return self.paired

    def with_rows(self, scored: Callable[[Floats], Floats]) -> Joint:
        """The same tasks with the rows as a rule scores them in place of the probabilities."""
        paired = self.tasks_paired
        return replace(self, paired=replace(paired, rows=scored(paired.rows)))

    def logs(self, floor: float) -> Joint:
        """The same tasks with log p, p at least `floor`, in place of p."""
        return self.with_rows(lambda p: np.log(np.maximum(p, floor)))

    def doubled(self) -> Joint:
        """The same tasks with 2p in place of p."""
        return self.with_rows(lambda p: 2.0 * p)

    def update(
        self, report: npt.ArrayLike, reference: npt.ArrayLike, public: npt.ArrayLike | Public | None = None
    ) -> Joint:
        """This joint with one more batch of tasks.

        >>> Joint.of([0, 1], [0, 1]).update([1, 0], [1, 1]).counts[0].tolist()
        [[1, 1], [0, 2]]
        """
        return self.merge(Joint.of(report, reference, self.classes, public))

    def merge(self, other: Joint) -> Joint:
        """This joint and another on different tasks, as if counted in one pass."""
        if self.classes != other.classes or (self.paired is None) != (other.paired is None):
            raise InputError("two joints differ in their classes or in having rows; build both the same way")
        counts = np.zeros((max(len(self.counts), len(other.counts)), self.classes, self.classes), dtype=np.int64)
        for joint in (self, other):
            counts[: len(joint.counts)] += joint.counts
        if self.paired is None or other.paired is None:
            return Joint(counts)
        mine, theirs = self.paired, other.paired
        return Joint(
            counts,
            Paired(
                np.concatenate([mine.rows, theirs.rows]),
                np.concatenate([mine.reference, theirs.reference]),
                mine.public.concat(theirs.public),
            ),
        )
