"""The definitions, literally and slowly: what every fast answer is checked against.

A report is a matrix X (one row a task) whose entry (n, l) is what the agent is paid beside the
reference label l: S[f(n), l] for labels, log p or 2p for probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def all_triples(paid: Floats, reference: Ints) -> float:
    """Algorithm 1 averaged over every task n and every ordered pair p1 != p2, both other than n."""
    tasks = len(reference)
    beside = paid[:, reference]  # row p1, column p2: X(p1) beside the reference on p2
    total = 0.0
    for n in range(tasks):
        others = np.delete(np.delete(beside, n, axis=0), n, axis=1)
        pairs = (tasks - 1) * (tasks - 2)
        total += beside[n, n] - (others.sum() - np.trace(others)) / pairs
    return total / tasks


def same_stratum_pairs(paid: Floats, reference: Ints, strata: Ints) -> float:
    """Bonus minus penalty, penalty tasks an ordered pair of distinct tasks of one stratum."""
    tasks = len(reference)
    total = 0.0
    for z in np.unique(strata):
        members = np.nonzero(strata == z)[0]
        if len(members) < 2:
            continue
        bonus = sum(paid[n, reference[n]] for n in members)
        pairs = [paid[p1, reference[p2]] for p1 in members for p2 in members if p1 != p2]
        total += bonus - len(members) * sum(pairs) / len(pairs)
    return total / tasks


def pmi(rows: Floats, reference: Ints, strata: Ints, floor: float) -> float:
    """Mean of log p(n, g_n) minus the log of the stratum's mean row there."""
    p = np.maximum(rows, floor)
    return float(
        np.mean([np.log(p[n, g]) - np.log(p[strata == strata[n]][:, g].mean()) for n, g in enumerate(reference)])
    )


def score(report: npt.NDArray[np.generic], reference: Ints, rule: str, strata: Ints | None, floor: float) -> float:
    """The score of one pair, on the tasks both answered."""
    rows = report.astype(float) if report.ndim == 2 else np.eye(int(max(report.max(), reference.max())) + 1)[report]
    answered = ~np.isnan(report[:, 0].astype(float)) if report.ndim == 2 else report >= 0
    common = answered & (reference >= 0)
    rows, g = rows[common], reference[common]
    z = np.zeros(len(g), dtype=np.int64) if strata is None else strata[common]
    if rule == "pmi":
        return pmi(rows, g, z, floor)
    paid = {"zero-one": rows, "brier": 2 * rows, "ce": np.log(np.maximum(rows, floor))}[rule]
    return same_stratum_pairs(paid, g, z) if strata is not None or len(g) < 3 else all_triples(paid, g)


@dataclass(frozen=True)
class Case:
    """Reports of two sides, a part and a half for every task, and a sign that is given."""

    rows: npt.NDArray[np.signedinteger]
    columns: npt.NDArray[np.signedinteger]
    classes: int
    part: Ints
    parts: int
    half: Ints
    sign: Ints


def counted(c: Case, part: Ints, parts: int) -> Ints:
    """Task by task, the definition of the counts."""
    found = np.zeros((len(c.rows), len(c.columns), parts, c.classes, c.classes), dtype=np.int64)
    for i, j in np.ndindex(found.shape[:2]):
        both = (c.rows[i] >= 0) & (c.columns[j] >= 0)
        np.add.at(found[i, j], (part[both], c.rows[i][both], c.columns[j][both]), 1)
    return found


def excess(c: Ints) -> Ints:
    return c.sum() * c - np.outer(c.sum(1), c.sum(0))


def signs(counts: Ints, sign: str | Ints) -> Ints:
    """S of one pair for each half: given, learned on the same half, or learned on the other."""
    if not isinstance(sign, str):
        return np.broadcast_to(sign, counts.shape)
    learned = np.array([excess(c) > 0 for c in counts]).astype(np.int64)
    return learned if sign == "plugin" else learned[::-1]


def paid(counts: Ints, sign: str | Ints) -> tuple[Ints, Ints]:
    """sum_kl S(k, l) (n C(k, l) - a(k) b(l)) and n, pair by pair and half by half."""
    total = np.zeros(counts.shape[:3], dtype=np.int64)
    for i, j in np.ndindex(counts.shape[:2]):
        s = signs(counts[i, j], sign)
        total[i, j] = [(excess(c) * s[h]).sum() for h, c in enumerate(counts[i, j])]
    return total, counts.sum((-2, -1))
