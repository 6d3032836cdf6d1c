"""Examiners: marks that examples give, how the marks of several examiners become one, and whose labels are trusted.

What is marked is a number for each example (psi); whose innovation it came from and what it is paid, `exam` knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Literal

import numpy as np
import numpy.typing as npt

from verax.errors import OptionError
from verax.innovations import Floats

Over = Literal["mean", "median", "trusted", "trusted median"]
OVERS = ("mean", "median", "trusted", "trusted median")
_HEAVIEST = 5.0  # times the middle weight, so that one label of a rare kind decides nothing
_TRUSTED = 0.5  # of how far the middle examiner's labels go with the others'


def balanced(labels: npt.ArrayLike, prior: npt.ArrayLike) -> Floats:
    """Weights, 1 in the mean, that give labels the shares of `prior`; none above five times the middle one.

    >>> balanced([0, 0, 0, 1], [0.5, 0.5]).tolist()
    [0.6666666666666666, 0.6666666666666666, 0.6666666666666666, 2.0]
    """
    y, shares = np.asarray(labels), np.asarray(prior, dtype=np.float64)
    return np.asarray(label_weights(np.bincount(y, minlength=len(shares)), shares)[y])


def label_weights(counts: npt.ArrayLike, prior: npt.ArrayLike) -> Floats:
    """The same by label, of which there are so many examples each.

    >>> label_weights([3, 1], [0.5, 0.5]).tolist()
    [0.6666666666666666, 2.0]
    """
    n, shares = np.asarray(counts), np.asarray(prior, dtype=np.float64)
    weight = np.where(n > 0, shares / np.maximum(n, 1), 0.0)
    weight = np.minimum(weight, _HEAVIEST * np.median(np.repeat(weight, n)))
    total = math.fsum(n * weight)
    return np.asarray(weight * (n.sum() / total) if total > 0 else np.zeros(len(n)))


def worths(innovation: Floats, rows: npt.ArrayLike) -> Floats:
    """(n, L): <u(x), e_l - p(x)>, what every example would say of an innovation if its label were l. No label is used.

    >>> worths(np.array([[0.25, -0.25]]), [[0.5, 0.5]]).tolist()
    [[0.25, -0.25]]
    """
    p = np.asarray(rows, dtype=np.float64)
    return np.asarray(innovation - (innovation * p).sum(1, keepdims=True))


def marks(innovation: Floats, rows: npt.ArrayLike, labels: npt.ArrayLike, weights: npt.ArrayLike = 1.0) -> Floats:
    """psi (n,): w(y) <u(x), e_y - p(x)> of every example; its mean is the score.

    >>> marks(np.array([[0.1, -0.1]]), [[0.5, 0.5]], [0]).tolist()
    [0.1]
    """
    found = worths(innovation, rows)
    return np.asarray(found[np.arange(len(found)), np.asarray(labels)] * np.asarray(weights))


@dataclass(frozen=True)
class Mark:
    """A score with its standard error, and on how many examples of how many examiners it rests."""

    score: float
    stderr: float
    examples: int
    examiners: int = 1


Table = Mapping[str, Mapping[str | None, Mark]]  # of everybody examined, by examiner


def mean_mark(psi: npt.ArrayLike) -> Mark:
    """The mean over examples, in a sum that knows no order.

    >>> mean_mark([0.0, 0.0, 4.0, 4.0])
    Mark(score=2.0, stderr=1.0, examples=4, examiners=1)
    """
    values = np.asarray(psi, dtype=np.float64)
    n = len(values)
    mean = math.fsum(values) / n
    return Mark(mean, math.sqrt(math.fsum((values - mean) ** 2)) / n, n)


def pooled(parts: Sequence[Mark]) -> Mark:
    """The mean over all examples of several examiners.

    >>> pooled([mean_mark([0.0, 0.0]), mean_mark([0.3])]).score == mean_mark([0.0, 0.0, 0.3]).score
    True
    """
    n = sum(m.examples for m in parts)
    mean = math.fsum(m.examples * m.score for m in parts) / n
    within = math.fsum(m.examples * (m.examples * m.stderr**2 + (m.score - mean) ** 2) for m in parts)
    return Mark(mean, math.sqrt(within) / n, n, len(parts))


def middle(parts: Sequence[Mark]) -> Mark:
    """The median of examiners' means: below one half, liars cannot move it beyond what honest ones say.

    Examiners have different examples, so the error is that of a median of independent numbers: sqrt(pi / 2 m) times
    the middle error, where m examiners judge.

    >>> middle([mean_mark([0.1, 0.3]), mean_mark([0.2, 0.2]), mean_mark([9.0, 9.0])]).score
    0.2
    """
    error = median(m.stderr for m in parts) * (math.sqrt(math.pi / 2 / len(parts)) if len(parts) > 2 else 1.0)
    return Mark(median(m.score for m in parts), error, sum(m.examples for m in parts), len(parts))


def loadings(table: Table, judges: Sequence[str | None], without: str | None = None) -> dict[str | None, float]:
    """How far each judge's labels go with the others', 1 as the middle one of those who do; below 0 they go against.

    Where labels mean the same, judges find the same replies good, so the leading eigenvector of what their marks (in
    standard errors) have in common has one sign; who labels at random is near 0, and a ring that renames labels has the
    other sign, even though its own replies please it. The larger side counts as right, or the one with labels of
    nobody who replies. `without`: the one who is examined has no part in it.

    >>> say = {"ann": (3, 4, -3), "bob": (5, 4, -4), "cy": (0.1, 0, 0), "dan": (4, 5, -5)}
    >>> table = {agent: dict(zip("xyz", (Mark(m, 1.0, 9) for m in marks))) for agent, marks in say.items()}
    >>> {judge: round(x, 2) for judge, x in loadings(table, [*"xyz"]).items()}
    {'x': 0.99, 'y': 1.01, 'z': -0.99}
    """
    seats = [agent for agent in sorted(table) if agent != without]
    z = np.array([[_errors_from_0(table[agent].get(judge)) for judge in judges] for agent in seats])
    common = z.T @ z
    np.fill_diagonal(common, 0.0)
    counts = [max(table[agent][judge].examples for agent in seats if judge in table[agent]) for judge in judges]
    leading = np.linalg.eigh(common)[1][:, -1] / np.sqrt(counts)
    votes = [leading[list(judges).index(None)]] if None in judges else np.sign(leading)
    leading = -leading if sum(votes) < 0 else leading
    usual = float(np.median(leading[leading > 0])) if (leading > 0).any() else 1.0
    return {judge: float(x) / usual for judge, x in zip(judges, leading, strict=True)}


def _errors_from_0(mark: Mark | None) -> float:
    """A mark in its standard errors, within 10, so that one clear reply is not all that counts."""
    return 0.0 if mark is None or not mark.stderr else min(max(mark.score / mark.stderr, -10.0), 10.0)


@dataclass(frozen=True, eq=False)
class Examiners:
    """Whose each held-back example is (None: nobody's who replies), and how their marks are put together.

    `over`: "mean" over their examples, "median" of their means, "trusted", the mean over those whose labels go with the
    others' (`loadings`), or "trusted median", the median of their means. Nobody is examined on its own examples, nor
    has a part in who is trusted to examine it.

    >>> judges = Examiners(("ann", "bob", "bob"), "mean")
    >>> judges.mark("ann", judges.table({"ann": np.array([9.0, 0.5, 1.0])})).score
    0.75
    """

    holders: tuple[str | None, ...]
    over: Over = "mean"

    def __post_init__(self) -> None:
        """Refuse what is no way to put marks together."""
        if self.over not in OVERS:
            raise OptionError(f"over is {self.over!r}; choose one of {', '.join(OVERS)}")

    @cached_property
    def places(self) -> dict[str | None, npt.NDArray[np.bool_]]:
        """Which examples are whose, by name."""
        return {h: np.array([g == h for g in self.holders]) for h in sorted({*self.holders}, key=str)}

    def others_examples(self, agent: str) -> npt.NDArray[np.bool_]:
        """Those that an agent can be examined on."""
        return np.array([h is None or h != agent for h in self.holders])

    def table(self, psi: Mapping[str, Floats]) -> Table:
        """Everybody's mark by every other examiner, of what each example says (n,)."""
        return {
            agent: {h: mean_mark(said[at]) for h, at in self.places.items() if h is None or h != agent}
            for agent, said in psi.items()
        }

    def mark(self, agent: str, table: Table) -> Mark | None:
        """An agent's mark; None where nobody else has examples."""
        by = table[agent]
        if not by:
            return None
        if self.over == "median":
            return middle([*by.values()])
        put_together = middle if self.over == "trusted median" else pooled
        return put_together([by[h] for h in self._trusted(agent, table)])

    def _trusted(self, agent: str, table: Table) -> list[str | None]:
        judges = [*table[agent]]
        if self.over == "mean" or len(judges) < 3 or len(table) < 3:
            return judges
        return [h for h, x in loadings(table, judges, without=agent).items() if h is None or x > _TRUSTED] or judges

    def agreement(self, table: Table) -> dict[str, float]:
        """Of every member who examines, how far its labels go with the others': 1 as the middle one's, 0 not at all."""
        members = [h for h in self.places if h is not None]
        found = loadings(table, [*self.places]) if len(self.places) > 2 and len(table) > 1 else {}
        return {h: round(min(max(found.get(h, 1.0), 0.0), 1.0), 6) for h in members}
