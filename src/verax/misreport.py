"""Misreports: T(k, r) is the chance to report r while holding k. How lies are drawn, and what they cost.

`apply` draws; `expected` needs no drawing: a fixed-S score is linear in T (section 5, "misreport
transition matrix").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from verax.errors import InputError, OptionError
from verax.joint import Joint, Paired
from verax.kernels import Floats, Ints


def truthful(classes: int) -> Floats:
    """Report what is held.

    >>> truthful(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return np.eye(classes)


def uniform(classes: int, rate: float) -> Floats:
    """Flip with probability `rate`, to any other label alike. (section 5, uniform matrix)

    >>> uniform(3, 0.5).tolist()
    [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]
    """
    _check_rate(rate)
    off = rate / (classes - 1)
    return np.full((classes, classes), off) + np.eye(classes) * (1.0 - rate - off)


def sparse(classes: int, pairs: Iterable[tuple[int, int]], rate: float) -> Floats:
    """Flip inside each of the disjoint pairs with probability `rate`. (section 5, sparse matrix)

    >>> sparse(3, [(0, 2)], 0.25).tolist()
    [[0.75, 0.0, 0.25], [0.0, 1.0, 0.0], [0.25, 0.0, 0.75]]
    """
    _check_rate(rate)
    matrix = np.eye(classes)
    for i, j in pairs:
        if i == j or min(i, j) < 0 or max(i, j) >= classes or matrix[i, i] != 1 or matrix[j, j] != 1:
            raise OptionError(f"pair ({i}, {j}) repeats a label or is outside 0..{classes - 1}; give disjoint pairs")
        matrix[[i, j], [i, j]], matrix[[i, j], [j, i]] = 1.0 - rate, rate
    return matrix


def permuted(order: Sequence[int]) -> Floats:
    """Report order[k] while holding k.

    >>> permuted([1, 0]).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    if sorted(order) != list(range(len(order))):
        raise OptionError(f"{list(order)} is not a permutation; name every label from 0 once")
    return np.asarray(np.eye(len(order))[list(order)])


def constant(classes: int, label: int) -> Floats:
    """Report the same label whatever is held.

    >>> constant(2, 1).tolist()
    [[0.0, 1.0], [0.0, 1.0]]
    """
    if not 0 <= label < classes:
        raise OptionError(f"label {label} is outside 0..{classes - 1}")
    return np.asarray(np.eye(classes)[np.full(classes, label)])


def _check_rate(rate: float) -> None:
    if not 0.0 <= rate <= 1.0:
        raise OptionError(f"the rate is {rate:g}; give a probability between 0 and 1")


def check(matrix: npt.ArrayLike) -> Floats:
    """A row-stochastic matrix, or an error that says why not.

    >>> check([[1, 0], [0.5, 0.5]]).shape
    (2, 2)
    """
    t = np.asarray(matrix, dtype=np.float64)
    if t.ndim != 2 or t.shape[0] != t.shape[1]:
        raise InputError(f"a misreport matrix has shape {t.shape}; it must be square")
    if not np.isfinite(t).all() or t.min() < 0 or np.abs(t.sum(1) - 1).max() > 1e-9:
        raise InputError("a misreport matrix needs rows of probabilities that sum to 1")
    return t


def apply(matrix: npt.ArrayLike, report: npt.ArrayLike, *, rng: np.random.Generator) -> npt.NDArray[np.generic]:
    """Draw a misreport of labels (N,), or of probability rows (N, L) by swapping two entries.

    The held label of a row is its argmax, lowest index on ties; abstentions stay.

    >>> rng = np.random.default_rng(0)
    >>> apply(permuted([1, 0]), [0, 1, -1], rng=rng).tolist()
    [1, 0, -1]
    >>> apply(permuted([1, 0]), [[0.9, 0.1]], rng=rng).tolist()
    [[0.1, 0.9]]
    """
    t, x = check(matrix), np.asarray(report)
    rows = x if x.ndim == 2 else None
    held = np.where(np.isnan(x[:, 0]), -1, x.argmax(1)) if rows is not None else x.astype(np.int64)
    drawn = _draw(t, held, rng)
    if rows is None:
        return drawn.astype(x.dtype)
    answered = np.nonzero(held >= 0)[0]
    swapped = rows.copy()
    swapped[answered, held[answered]] = rows[answered, drawn[answered]]
    swapped[answered, drawn[answered]] = rows[answered, held[answered]]
    return swapped


def _draw(t: Floats, held: Ints, rng: np.random.Generator) -> Ints:
    edges = t.cumsum(1)
    edges[:, -1] = 1.0
    chance = rng.random(len(held))
    return np.where(held < 0, -1, (chance[:, None] >= edges[held]).sum(1))


class Expectation(NamedTuple):
    """The mean of a score over all draws of a misreport, and the standard deviation of one draw."""

    score: float
    draw_error: float


def expected(joint: Joint, matrix: npt.ArrayLike, sign: npt.ArrayLike | None = None) -> Expectation:
    """The score of a misreport without drawing it: <S, T^T delta>, S the identity if not given.

    For `ce` and `brier` pass `joint.logs(floor)` or `joint.doubled()`.

    >>> joint = Joint.of_counts([[40, 10], [20, 30]])
    >>> expected(joint, uniform(2, 0.25)).score / joint.score().value
    0.5
    """
    t = check(matrix)
    s = np.eye(joint.classes) if sign is None else np.asarray(sign, dtype=np.float64)
    if len(t) != joint.classes:
        raise InputError(f"the misreport matrix has {len(t)} classes, the report {joint.classes}; give one row a class")
    return _expected_of_counts(joint.counts, t, s) if joint.paired is None else _expected_of_rows(joint.paired, t, s)


def _expected_of_counts(counts: Ints, t: Floats, s: Floats) -> Expectation:
    n = counts.sum((-2, -1))
    b = counts.sum(-2) / np.maximum(n, 1)[:, None]
    # what reporting r is worth on a task of stratum z whose reference says l
    worth = s - (s @ b.T).T[:, :, None]
    mean = np.einsum("kr,zrl->zkl", t, worth)
    spread = np.einsum("kr,zrl->zkl", t, worth**2) - mean**2
    weight = np.where(n > 1, n / np.maximum(n - 1, 1), 0.0)[:, None, None] / max(int(n.sum()), 1)
    variance = (counts * weight**2 * np.maximum(spread, 0.0)).sum()
    return Expectation(float((counts * weight * mean).sum()), math.sqrt(variance))


def _expected_of_rows(paired: Paired, t: Floats, s: Floats) -> Expectation:
    rows = paired.rows
    # what each entry of the row is worth, given the reference: the score is linear in the row
    worth = paired.residuals[1] @ s.T * paired.public.weights[:, None]
    held, every = rows.argmax(1), np.arange(len(rows))
    top, top_worth = rows[every, held][:, None], worth[every, held][:, None]
    # swapping the held entry with entry r changes the task's payment by this much
    change = (top - rows) * (worth - top_worth)
    chance = t[held]
    mean = (chance * change).sum(1)
    variance = (chance * change**2).sum(1) - mean**2
    return Expectation(float((rows * worth).sum() + mean.sum()), math.sqrt(np.maximum(variance, 0.0).sum()))
