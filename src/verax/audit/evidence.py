"""Is there enough to go by? INFORMATIVE, ENOUGH and ACCURACY, from scores and their errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np

from verax.audit.certificate import Certificate, Interval, tasks_needed
from verax.intervals import quantile
from verax.kernels import Floats, Labels
from verax.score import Score, Scores


def informative(s: Score, confidence: float, rates: tuple[float, float] | None) -> Certificate:
    """INFORMATIVE: the score is above 0; with truth and two labels also FNR + FPR < 1. (Lemma 1)

    `rates`: FNR + FPR and its standard error, where they can be had.
    """
    if s.score is None or s.stderr is None:
        return Certificate("INFORMATIVE", s.agent, "not-applicable", None, None, None, "no score: too few common tasks")
    z = quantile(confidence)
    interval = (s.score - z * s.stderr, s.score + z * s.stderr)
    lemma = "" if rates is None else f"; FNR + FPR = {rates[0]:.3f} ± {rates[1]:.3f}, {_side(rates, z)} 1"
    seen = f"score {s.score:.4f} ± {s.stderr:.4f}"
    if s.stderr == 0 and s.score == 0:
        why = f"{seen}: the report says nothing about any task that the mean does not{lemma}"
        return Certificate("INFORMATIVE", s.agent, "fails", None, interval, None, why)
    if interval[0] > 0:
        return Certificate("INFORMATIVE", s.agent, "holds", None, interval, None, f"{seen} is above 0{lemma}")
    if interval[1] < 0:
        why = f"{seen} is below 0: the report says the opposite of its references{lemma}"
        return Certificate("INFORMATIVE", s.agent, "fails", None, interval, None, why)
    ratio = z * s.stderr / abs(s.score) if s.score else math.inf
    why = f"{seen} is within its error of 0, as a random report's is; {tasks_needed(s.tasks, ratio)}{lemma}"
    return Certificate("INFORMATIVE", s.agent, "undecided", None, interval, None, why)


def _side(rates: tuple[float, float], z: float) -> str:
    if rates[0] + z * rates[1] < 1:
        return "below"
    return "above" if rates[0] - z * rates[1] > 1 else "not told from"


def error_rates(labels: Labels, truth: Labels) -> tuple[float, float] | None:
    """FNR + FPR of two-label reports and its standard error; None if a class is missing.

    >>> round(error_rates(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 1]))[0], 3)
    0.333
    """
    known = (labels >= 0) & (truth >= 0)
    missed = [(labels[known & (truth == y)] != y).astype(float) for y in (0, 1)]
    if any(len(m) < 2 for m in missed):
        return None
    return float(sum(m.mean() for m in missed)), math.sqrt(sum(m.var() / len(m) for m in missed))


def enough(scores: Scores, influence: Mapping[str, Floats], confidence: float, wanted: float) -> list[Certificate]:
    """ENOUGH: the standard error is as small as wanted, and the next agent below is told apart."""
    ranked = [s for s in scores.ranked() if s.score is not None and s.stderr is not None]
    z = quantile(confidence, max(len(ranked) - 1, 1))
    found = []
    for s, below in zip_longest(ranked, ranked[1:]):
        assert s.score is not None and s.stderr is not None
        interval = (s.score - quantile(confidence) * s.stderr, s.score + quantile(confidence) * s.stderr)
        told, apart = _apart(s, below, influence, z)
        small = s.stderr <= wanted
        need = math.ceil(s.tasks * (s.stderr / wanted) ** 2)
        size = f"standard error {s.stderr:.4f}" + (
            f" is within the {wanted:g} wanted" if small else f"; {wanted:g} is wanted: about {need:,} tasks would do"
        )
        verdict = "holds" if small and told else "undecided"
        found.append(Certificate("ENOUGH", s.agent, verdict, None, interval, None, f"{size}; {apart}"))
    return found


def _apart(s: Score, below: Score | None, influence: Mapping[str, Floats], z: float) -> tuple[bool, str]:
    """Whether the next agent in the ranking is surely below; errors paired task by task where known."""
    if below is None:
        return True, "last in the ranking"
    assert s.score is not None and s.stderr is not None and below.score is not None and below.stderr is not None
    if s.agent in influence and below.agent in influence:
        error = math.sqrt(((influence[s.agent] - influence[below.agent]) ** 2).sum())
    else:
        error = math.hypot(s.stderr, below.stderr)
    gap = s.score - below.score
    if gap > z * error:
        return True, f"above {below.agent!r} by {gap:.4f} ± {error:.4f}"
    if gap <= 1e-12 and error <= 1e-9:
        return False, f"the same as {below.agent!r} on every task: no number of tasks would decide"
    ratio = z * error / gap if gap > 0 else math.inf
    return False, f"not told from {below.agent!r} ({gap:.4f} ± {error:.4f}): {tasks_needed(s.tasks, ratio)}"


def spearman(first: Sequence[float], second: Sequence[float], confidence: float) -> tuple[float, Interval | None]:
    """The rank correlation and its interval by Fisher's transform (Bonett and Wright's error).

    >>> round(spearman([1, 2, 3, 4, 5], [1, 2, 3, 5, 4], 0.95)[0], 3)
    0.9
    """
    a, b = (_ranks(np.asarray(x, dtype=float)) for x in (first, second))
    if a.std() == 0 or b.std() == 0:
        return 0.0, None
    rho = float(np.corrcoef(a, b)[0, 1])
    if len(a) < 4 or abs(rho) >= 1 - 1e-12:
        return rho, None
    reach = quantile(confidence) * math.sqrt((1 + rho**2 / 2) / (len(a) - 3))
    return rho, (math.tanh(math.atanh(rho) - reach), math.tanh(math.atanh(rho) + reach))


def _ranks(values: Floats) -> Floats:
    """Ranks from 1, ties sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse])


def accuracy(
    scores: Scores, labels: Labels, truth: Labels | None, beyond_truth: Scores | None, confidence: float
) -> Certificate:
    """ACCURACY: the conditions under which a higher score means a more accurate report. (Theorems 3 and 5)

    `beyond_truth`: scores against peers with the truth taken out as a public signal, which are 0 where
    agents are independent given the truth.
    """
    if truth is None or not (truth >= 0).any():
        why = (
            "without labels neither the prior nor the independence of the agents' errors can be seen; "
            "label a few hundred tasks drawn at random and audit again with the truth"
        )
        return Certificate("ACCURACY", None, "undecided", None, None, None, why)
    known = truth >= 0
    share = np.bincount(truth[known], minlength=len(scores.classes)) / known.sum()
    rank = {s.agent: s.score for s in scores.scores if s.score is not None}
    right = [float((row[known & (row >= 0)] == truth[known & (row >= 0)]).mean()) for row in labels]
    pairs = [(rank[s.agent], r) for s, r in zip(scores.scores, right, strict=True) if s.agent in rank]
    rho, interval = spearman([p[0] for p in pairs], [p[1] for p in pairs], confidence)
    uneven = _uneven(share, int(known.sum()), scores.classes, confidence)
    dependent = _dependent(beyond_truth, confidence)
    failing = [x for x in (uneven, dependent) if x]
    gap = float(np.abs(share - 1 / len(share)).max())
    by_truth = f"; against truth, accuracies more than {2 * gap:.3f} apart are ranked right even so" if uneven else ""
    tail = f"scores and accuracies of {len(pairs)} agents have rank correlation {rho:.3f}"
    if failing:
        why = f"{'; '.join(failing)}{by_truth}; {tail}"
        return Certificate("ACCURACY", None, "fails", rho, interval, None, why)
    if gap > 0.05:
        need = tasks_needed(float(known.sum()), gap / 0.05)
        return Certificate(
            "ACCURACY", None, "undecided", rho, interval, None, f"the prior is known too roughly; {need}; {tail}"
        )
    seen = "" if beyond_truth is None else ", no dependence seen"  # which is looked for among peers only
    why = f"an even prior within {gap:.3f}{seen}; {tail}"
    return Certificate("ACCURACY", None, "holds", rho, interval, None, why)


def _uneven(share: Floats, tasks: int, classes: Sequence[str], confidence: float) -> str | None:
    even = 1 / len(share)
    error = math.sqrt(even * (1 - even) / tasks)
    worst = int(np.abs(share - even).argmax())
    if abs(share[worst] - even) <= quantile(confidence, len(share)) * error:
        return None
    return f"the prior is not even: {classes[worst]!r} is {share[worst]:.3f} of the labels, not {even:.3f}"


def _dependent(beyond: Scores | None, confidence: float) -> str | None:
    if beyond is None:
        return None
    z = [(abs(s.score) / s.stderr, s.agent) for s in beyond.scores if s.score is not None and s.stderr]
    if not z or max(z)[0] <= quantile(confidence, len(z)):
        return None
    return (
        f"agents are not independent given the truth: {max(z)[1]!r} shares its errors with others (z = {max(z)[0]:.1f})"
    )
