"""Advice: whether other references would order these agents better than the mean over peers does.

Shown to people, never acted upon. The evidence is in docs/ranking.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verax.copies import voices
from verax.kernels import Floats
from verax.plan import Mechanism
from verax.reports import Reports, some
from verax.score import Prepared, Scores, prepare, scored

_MOST_NAMED = 3  # groups of the same report
_FEWEST_AGENTS = 5
_MOST_AGENTS, _MOST_CELLS = 500, 3_000_000  # beyond, advice would cost more than the scores
_ALIKE = 0.99  # rank agreement of two orders that are the same for any purpose
_FEW_ANSWERS = 10  # for each entry of an agent's table, below which a crowd's tables are mostly guesses


@dataclass(frozen=True)
class Advised:
    """Other references, and how far their order agrees with that of the mean over peers."""

    mechanism: Mechanism
    agreement: float


def advice(ready: Prepared, scores: Scores) -> list[str]:
    """What to try where reports are the same, or the mean over peers may order badly; nothing where it changes little.

    >>> from verax.demo import bundled
    >>> ready = prepare(bundled())
    >>> advice(ready, scored(ready))
    ["the same report, and references of one another: 'tree-80', 'copycat'; copies='apart' scores copies as one"]
    """
    return [*_on_the_same(ready), *_on_the_order(advised(ready, scores))]


def _on_the_same(ready: Prepared) -> list[str]:
    """Agents that hand in one report, where they were scored as references of one another."""
    if ready.copies or ready.reports.sparse or not ready.plan.by_peers:
        return []
    agents, voice = ready.reports.agents, voices(ready.reports.labels)
    groups = [[agents[i] for i in np.nonzero(voice == v)[0]] for v in np.nonzero(np.bincount(voice) > 1)[0]]
    return [
        f"the same report, and references of one another: {some(group)}; copies='apart' scores copies as one"
        for group in groups[:_MOST_NAMED]
    ]


def _on_the_order(other: Advised | None) -> list[str]:
    if other is None:
        return []
    if other.mechanism.over is not None:
        return [
            f"over={other.mechanism.over!r} gives another order (rank agreement {other.agreement:.2f}), and is advised "
            "here: peers differ in skill and in tasks, and most answered few"
        ]
    return [
        f"against={other.mechanism.against!r} gives another order (rank agreement {other.agreement:.2f}), and is "
        "advised here: it resists uneven labels and agents that agree for another reason than being right"
    ]


def advised(ready: Prepared, scores: Scores) -> Advised | None:
    """The references to use in place of the mean over peers, if they give another order."""
    if not _could_be_advised(ready):
        return None
    mechanism = Mechanism(over="skilled") if _answers_are_few(ready.reports) else Mechanism(against="consensus")
    agreement = rank_agreement(_values_of([s.score for s in scores]), _scores_by(ready, mechanism))
    return Advised(mechanism, agreement) if agreement < _ALIKE else None


def _could_be_advised(ready: Prepared) -> bool:
    reports, plan = ready.reports, ready.plan
    by_labels = plan.rule.counts_only and plan.matrix is not None and not ready.signal.kind
    agents, cells = len(reports.agents), len(reports.agents) * len(reports.tasks) * len(reports.classes)
    small = _FEWEST_AGENTS <= agents <= _MOST_AGENTS and cells <= _MOST_CELLS
    return plan.over == "mean" and by_labels and not plan.by_truth and small


def _answers_are_few(reports: Reports) -> bool:
    """Whether the middle agent left out most tasks, and answered too few to say how it errs on each label."""
    middle = float(np.median((reports.labels >= 0).sum(1)))
    return middle < len(reports.tasks) / 2 and middle < _FEW_ANSWERS * len(reports.classes) ** 2


def _scores_by(ready: Prepared, mechanism: Mechanism) -> Floats:
    asked = prepare(ready.reports, mechanism=mechanism, counted=ready.plan.engine)
    return _values_of([s.score for s in scored(asked)])


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
