"""Certificate: a verdict as a value, with its reason and its witness."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

VERDICTS = ("holds", "fails", "undecided", "not-applicable")
Interval = tuple[float, float]


@dataclass(frozen=True)
class Certificate:
    """One verdict about one agent, or about all of them (`agent` None).

    >>> Certificate("TRUTHFUL", "ann", "fails", 0.02, (0.01, 0.03), {"cat": "dog"}, "dog for cat gains").verdict
    'fails'
    """

    code: str
    agent: str | None
    verdict: str
    gain: float | None
    interval: Interval | None
    deviation: dict[str, str] | None
    why: str

    def to_json(self) -> dict[str, Any]:
        """The one JSON form."""
        return asdict(self) | {"interval": None if self.interval is None else list(self.interval)}


def quantile(confidence: float, comparisons: int = 1) -> float:
    """How many standard errors hold `comparisons` two-sided intervals together (Bonferroni).

    >>> round(quantile(0.95), 3), round(quantile(0.95, 10), 3)
    (1.96, 2.807)
    """
    return NormalDist().inv_cdf(1 - (1 - confidence) / (2 * max(comparisons, 1)))


def tasks_needed(tasks: float, ratio: float) -> str:
    """The number of tasks at which an error `ratio` times too large would be small enough, in words.

    >>> tasks_needed(1000, 2.0)
    'about 4,000 tasks would decide'
    """
    if not math.isfinite(ratio) or tasks * ratio**2 > 1e7:
        return "more than 10,000,000 tasks would be needed to decide"
    wanted = max(tasks * ratio**2, tasks + 1)
    digits = 10 ** max(0, math.floor(math.log10(wanted)) - 1)
    return f"about {math.ceil(wanted / digits) * digits:,} tasks would decide"
