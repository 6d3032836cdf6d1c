"""Intervals: how far what was seen may be from what is, for many comparisons at once."""

from __future__ import annotations

import functools
import math
from statistics import NormalDist


@functools.cache
def quantile(confidence: float, comparisons: int = 1) -> float:
    """How many standard errors hold `comparisons` two-sided intervals together (Bonferroni).

    >>> round(quantile(0.95), 3), round(quantile(0.95, 10), 3)
    (1.96, 2.807)
    """
    return NormalDist().inv_cdf(1 - (1 - confidence) / (2 * max(comparisons, 1)))


def wilson(share: float, count: int, z: float) -> tuple[float, float]:
    """The Wilson interval of a share.

    >>> [round(x, 3) for x in wilson(0.9, 100, 1.96)]
    [0.826, 0.945]
    """
    if not count:
        return 0.0, 1.0
    centre = share + z**2 / (2 * count)
    reach = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return (centre - reach) / (1 + z**2 / count), (centre + reach) / (1 + z**2 / count)


def least_share(count: int, confidence: float, comparisons: int = 1) -> float:
    """The least share that may give `count` out of `count`, exactly: the lower end of Clopper and Pearson's interval.

    >>> round(least_share(100, 0.95), 3), least_share(0, 0.95)
    (0.964, 0.0)
    """
    return ((1 - confidence) / (2 * max(comparisons, 1))) ** (1 / count) if count else 0.0
