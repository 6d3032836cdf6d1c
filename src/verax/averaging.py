"""What each reply of a federation counts for in the average: no client's own claim, unless that is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from verax.errors import OptionError
from verax.received import Work

WEIGHTS = ("equal", "score")
CLAIMED = "claimed"


@dataclass(frozen=True)
class Averaging:
    """How replies are weighed: all alike, by sizes or claims, or by scores; below a `bar` they are left out.

    `cap`: no claim counts for more than so many times the middle one. `bar`: a share of the median score.

    >>> works = [Work(name, {}, np.zeros(1), claim=claim) for name, claim in [("ann", 10), ("bob", 10), ("eve", 1e9)]]
    >>> [share for _, share in Averaging(sizes="claimed").weigh(works, {})]
    [10, 10, 30.0]
    """

    weights: str = "equal"
    sizes: Mapping[str, float] | Literal["claimed"] | None = None
    cap: float = 3.0
    bar: float | None = None

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise OptionError(f"weights is {self.weights!r}; choose one of {', '.join(WEIGHTS)}")
        if isinstance(self.sizes, str) and self.sizes != CLAIMED:
            raise OptionError(f"sizes is {self.sizes!r}; give a size for each client by name, or {CLAIMED!r}")
        if not self.cap >= 1:
            raise OptionError(f"cap is {self.cap}; a claim counts for at least the middle one, so give 1 or more")
        if self.weights == "score" and self.sizes is not None:
            raise OptionError("sizes go with equal weights; leave sizes out to weigh by score")

    @property
    def asks_for_scores(self) -> bool:
        """Whether anything depends on scores."""
        return self.weights == "score" or self.bar is not None

    def weigh(self, works: Sequence[Work], scores: Mapping[str, float]) -> list[tuple[Work, float]]:
        """The replies that count, each with what it counts for; without scores none is left out."""
        least = -math.inf
        if self.bar is not None and scores:
            least = self.bar * float(np.median(list(scores.values())))
        kept = [w for w in works if scores.get(w.agent, math.inf) >= least] or list(works)
        shares = self._by_size(kept)
        if self.weights == "score" and scores:
            shares = [max(scores[w.agent], 0.0) for w in kept]
            shares = shares if sum(shares) > 0 else [1.0] * len(kept)
        return list(zip(kept, shares, strict=True))

    def _by_size(self, works: Sequence[Work]) -> list[float]:
        """As far as sizes are known or believed."""
        if isinstance(self.sizes, Mapping):
            return [float(self.sizes.get(w.agent, 1.0)) for w in works]
        claims = [w.claim for w in works] if self.sizes == CLAIMED else []
        if not any(claims):
            return [1.0] * len(works)
        most = self.cap * float(np.median([c for c in claims if c]))
        return [min(c, most) for c in claims]
