"""Determinant mutual information: how two reports go together, as a determinant on each of two groups of tasks.

With C_1 and C_2 the tables of what agent and reference say on two disjoint groups of n_1 and n_2 tasks, and
(n)_L = n (n - 1) ... (n - L + 1), det C_g / (n_g)_L is the unbiased estimate of det P, P the joint law of a task's two
labels, and an agent's score is the mean over its references of L^2L det C_1 det C_2 / ((n_1)_L (n_2)_L): in expectation
(L^L det P)^2, which is 1 where two always agree and every label is equally likely, and 0 where the report says nothing.
Relabelling multiplies both determinants by det T, so no report earns more than the truth, whatever the prior and
however many labels there are.

Kong, "Dominantly truthful multi-task peer prediction with a constant number of tasks", SODA 2020.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from verax import kernels
from verax.kernels import Floats, Ints
from verax.plan import Plan
from verax.statistic import Part, Side, halves


def parts(side: Side, plan: Plan, only: int | None = None) -> list[Part | None]:
    """Everybody's score, or that of `only` one, looking at the whole population's labels at once."""
    reports, half = side.reports, halves(side.reports.tasks)
    labels, classes = reports.labels, len(reports.classes)
    found: list[Part | None] = [None] * len(labels)
    for i, own in enumerate(labels):
        if only not in (None, i):
            continue
        others = np.arange(len(side.columns)) != (i if side.references is None else -1)
        columns = side.columns[others]
        counts = kernels.counts(own[None], columns, classes, half, 2, plan.engine)[0]
        able = np.nonzero((counts.sum((2, 3)) >= classes).all(1))[0]
        if not len(able):
            continue
        values = [float(determinant_score(counts[j])) for j in able]
        phi = np.zeros(len(own))
        for j in able:
            common = (own >= 0) & (columns[j] >= 0)
            tables = _influence_tables(counts[j])
            phi[common] += tables[half[common], own[common], columns[j][common]] / len(able)
        score, error = math.fsum(values) / len(values), math.sqrt((phi**2).sum())
        found[i] = Part(score, error, int((own >= 0).sum()), len(able))
    return found


def determinant_score(counts: Ints) -> Fraction:
    """L^2L det C_1 det C_2 / ((n_1)_L (n_2)_L), exactly, from counts (2, L, L).

    >>> determinant_score(np.array([[[2, 0], [0, 2]], [[2, 0], [0, 2]]]))
    Fraction(16, 9)
    >>> determinant_score(np.array([[[2, 0], [2, 0]], [[2, 0], [0, 2]]]))
    Fraction(0, 1)
    """
    size = counts.shape[-1]
    product = Fraction(size ** (2 * size))
    for table in counts:
        product *= Fraction(exact_determinant(table.tolist()), math.perm(int(table.sum()), size))
    return product


def exact_determinant(table: list[list[int]]) -> int:
    """The determinant of integers, by elimination without fractions (Bareiss).

    >>> exact_determinant([[40, 10], [20, 30]])
    1000
    """
    rows, sign, before = [[*row] for row in table], 1, 1
    for k in range(len(rows) - 1):
        pivot = next((r for r in range(k, len(rows)) if rows[r][k]), None)
        if pivot is None:
            return 0
        if pivot != k:
            rows[k], rows[pivot], sign = rows[pivot], rows[k], -sign
        top = rows[k]
        for row in rows[k + 1 :]:
            row[k + 1 :] = [
                (top[k] * x - row[k] * t) // before for x, t in zip(row[k + 1 :], top[k + 1 :], strict=True)
            ]
        before = top[k]
    return sign * rows[-1][-1]


def _influence_tables(counts: Ints) -> Floats:
    """What a task of group g that the two answered with k and l adds to the score, apart from its mean: (2, L, L)."""
    n = counts.sum((1, 2)).astype(np.float64)
    size = counts.shape[-1]
    law = counts / n[:, None, None] * size  # L P, so that the determinants are near 1 and not near 0
    det = np.linalg.det(law)
    cofactor = np.stack([_cofactors(table) for table in law])
    centred = cofactor * size - size * det[:, None, None]
    return np.asarray(centred * det[::-1, None, None] / n[:, None, None])


def _cofactors(table: Floats) -> Floats:
    """The derivative of the determinant by each entry, of a singular table too."""
    u, s, v = np.linalg.svd(table)
    others = np.array([np.prod(np.delete(s, k)) for k in range(len(s))])
    return np.asarray(np.linalg.det(u) * np.linalg.det(v) * (u * others) @ v)
