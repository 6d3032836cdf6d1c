"""Advice: whether other references would order these agents better than the mean over peers does.

Shown to people, never acted upon. The evidence is in docs/ranking.md.
"""

from __future__ import annotations

import numpy as np

from verax.kernels import Floats
from verax.mechanisms import pairwise
from verax.plan import Mechanism
from verax.score import Prepared, Scores, prepare

_FEWEST_AGENTS = 5
_MOST_AGENTS, _MOST_CELLS = 500, 3_000_000  # beyond, advice would cost more than the scores
_ALIKE, _APART = 0.97, 0.9  # rank agreements of two orders: the same for any purpose; another order


def advice(ready: Prepared, scores: Scores) -> list[str]:
    """What to try where the mean over peers may order badly; nothing where it would change little.

    >>> from verax.demo import bundled
    >>> from verax.score import scored
    >>> ready = prepare(bundled())
    >>> advice(ready, scored(ready))
    []
    """
    reports, plan = ready.reports, ready.plan
    cells = len(reports.agents) * len(reports.tasks) * len(reports.classes)
    if plan.over != "mean" or not plan.rule.counts_only or plan.matrix is None or ready.signal.kind or plan.by_truth:
        return []
    if not _FEWEST_AGENTS <= len(reports.agents) <= _MOST_AGENTS or cells > _MOST_CELLS:
        return []
    mean = _values_of([s.score for s in scores])
    believed = rank_agreement(mean, _scores_by(ready, Mechanism(against="consensus")))
    if believed < _APART:
        return [
            f"against='consensus' gives another order (rank agreement {believed:.2f}): labels are uneven, or some "
            "agents agree for another reason than being right"
        ]
    weighed = rank_agreement(mean, _scores_by(ready, Mechanism(over="skilled")))
    if weighed < _ALIKE:
        return [
            f"over='skilled' gives another order (rank agreement {weighed:.2f}): peers differ much in skill or in tasks"
        ]
    return []


def _scores_by(ready: Prepared, mechanism: Mechanism) -> Floats:
    asked = prepare(ready.reports, mechanism=mechanism, counted=ready.plan.engine)
    side = asked.sides[1]
    assert side is not None
    return _values_of([None if part is None else part.score for part in pairwise.parts(side, asked.plan)])


def _values_of(scores: list[float | None]) -> Floats:
    return np.array([np.nan if score is None else score for score in scores], dtype=np.float64)


def rank_agreement(one: Floats, other: Floats) -> float:
    """Spearman's rank correlation, of those that both know; 1 where there is no order to differ about.

    >>> rank_agreement(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    0.5
    """
    known = ~(np.isnan(one) | np.isnan(other))
    ranks = [_middle_ranks(values[known]) for values in (one, other)]
    spread = [float(r.std()) for r in ranks]
    if min(spread, default=0.0) == 0.0:
        return 1.0
    return float(np.mean((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())) / (spread[0] * spread[1]))


def _middle_ranks(values: Floats) -> Floats:
    """Ranks, equal values sharing the middle of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place])
