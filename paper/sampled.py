"""What drawing Algorithm 1's penalty tasks, as the paper prints it, adds to the error of the exact score."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from verax import Joint
from verax.kernels import Floats, Ints


@dataclass(frozen=True)
class SampledCost:
    """What drawing Algorithm 1's penalty tasks once a task adds to the exact score's own standard error.

    `repeats` is how often all tasks must be drawn for the drawing's error to be `share` of `stderr`.
    """

    score: float
    stderr: float
    extra: float
    share: float
    repeats: int


def sampled(rows: Floats, reference: Ints, *, rng: np.random.Generator) -> float:
    """Algorithm 1 as written: for each task n, two others p1 and p2, drawn once; `rows` one-hot labels or log p.

    >>> sampled(np.eye(2)[[0, 0, 0]], np.array([0, 1, 1]), rng=np.random.default_rng(0)) <= 1 / 3
    True
    """
    n = np.arange(len(rows))
    first = rng.integers(0, len(n) - 1, len(n))
    first += first >= n
    second = rng.integers(0, len(n) - 2, len(n))
    second += second >= np.minimum(n, first)
    second += second >= np.maximum(n, first)
    return float((rows[n, reference] - rows[first, reference[second]]).mean())


def sampled_cost(rows: Floats, reference: Ints, *, share: float = 0.01) -> SampledCost:
    """The extra standard error of `sampled`, exactly, beside that of the score it estimates.

    >>> cost = sampled_cost(np.eye(2)[[0, 0, 1, 1] * 25], np.array([0, 1, 1, 1] * 25))
    >>> round(cost.score, 4), round(cost.stderr, 4), round(cost.extra, 4), cost.repeats
    (0.2525, 0.0354, 0.05, 19999)
    """
    exact = Joint.of(rows, reference).score()
    first, second = _penalty_moments(rows, reference), _penalty_moments(rows**2, reference)
    extra = math.sqrt(float(np.maximum(second - first**2, 0.0).sum())) / len(rows)
    repeats = math.ceil((extra / (share * exact.stderr)) ** 2 - 1e-9) if exact.stderr else 0
    return SampledCost(exact.value, exact.stderr, extra, share, repeats)


def _penalty_moments(rows: Floats, reference: Ints) -> Floats:
    """For each task n, the mean of rows(p1, reference(p2)) over all p1 != p2, both other than n."""
    size = len(rows)
    own, sums = rows[np.arange(size), reference], rows.sum(0)
    counts = np.bincount(reference, minlength=rows.shape[1])
    total = float(sums @ counts) - own.sum()
    here = (rows @ counts - own) + (sums[reference] - own)
    return np.asarray((total - here) / ((size - 1) * (size - 2)))
