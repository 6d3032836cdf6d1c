"""Means over all tasks, from the values of a few that were drawn, and guesses of all.

With value v(n) of task n, guess g(n) and chance pi(n) of having been drawn, the mean is

    mean of lambda g over all tasks  +  weighted mean of v - lambda g over those drawn, weights 1 / pi

which is right whatever the guesses are; lambda, between 0 and 1, is the slope of v on g (PPI++), so that guesses that
are no good are left out of it. Its variance is the sum of (1 - pi) / pi^2 e^2 over those drawn, e what v - lambda g is
from its mean, over the square of the sum of the weights; (1 - pi) is what makes it 0 once all are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verax.kernels import Floats, Ints
from verax.spotcheck.design import SURPRISE, Mask

_POOLED = 10.0  # tasks' worth of the slope that all means together have, in each one's own
_TINY = 1e-150


@dataclass(frozen=True, eq=False)
class Means:
    """Some means, (P,) each: `value`, `stderr`, how many drawn tasks each rests on, how many of these by
    chance, and its slope; NaN without two.

    `parts` (P, n): what each drawn task adds to how far the value is off. `doubt`: what surprise adds to the variance.
    `fall` and `rise`: how far one more task could take the value down or up, were it the opposite of its guess.

    One task of two labelled right, of ten: 1/2, give or take.

    >>> found = means(np.array([[1.0, 0.0]]), np.zeros((1, 2)), np.full((1, 2), True), np.full(2, 0.2), np.zeros(1),
    ...     np.array([10]))
    >>> found.value.tolist(), found.stderr.round(2).tolist()
    ([0.5], [0.63])
    """

    value: Floats
    stderr: Floats
    drawn: Ints
    by_chance: Ints
    slope: Floats
    parts: Floats
    doubt: Floats
    fall: Floats
    rise: Floats

    def reach(self, z: float) -> Floats:
        """How far an interval goes where a normal one goes z standard errors: by Student's t."""
        return np.asarray(student(z, np.maximum(self.by_chance - 1, 1)) * self.stderr)


def means(
    values: Floats, guesses: Floats, inside: Mask, chances: Floats, mean_guess: Floats, size: Ints,
    surprise: float = SURPRISE, slope: float | None = None,
) -> Means:  # fmt: skip
    """Means of `values` (P, n) over `size` (P,) tasks, of which some are drawn and `inside`; guesses have that mean."""
    weight, thin = inside / chances, inside * ((1 - chances) / chances**2)
    by_chance = inside & (chances < 1)  # tasks that were certain to be in tell nothing of luck
    drawn, chanced, whole = inside.sum(1), by_chance.sum(1), np.maximum(weight.sum(1), _TINY)
    v_mean, g_mean = ((weight * x).sum(1) / whole for x in (values, guesses))
    v, g = (np.where(inside, x - mean[:, None], 0.0) for x, mean in ((values, v_mean), (guesses, g_mean)))
    slopes = _slopes(v, g, thin) if slope is None else np.full(len(v), slope)
    parts = weight * (v - slopes[:, None] * g) / whole[:, None]
    doubt = surprise * np.where(drawn < size, _typical(thin, chanced, chances), 0.0) / whole**2
    variance = (((1 - chances) * parts**2).sum(1) + doubt) * chanced / np.maximum(chanced - 1, 1)
    told = (chanced > 1) | (drawn == size)
    unit = (weight * by_chance).sum(1) / np.maximum(chanced, 1) / whole
    return Means(
        np.where(told, v_mean + slopes * (mean_guess - g_mean), np.nan),
        np.where(told, np.sqrt(variance), np.nan), drawn, chanced, slopes, parts, doubt,
        (v_mean + slopes * (1 - g_mean)) * unit, (1 - v_mean + slopes * g_mean) * unit,
    )  # fmt: skip


def _typical(thin: Floats, drawn: Ints, chances: Floats) -> Floats:
    """What one more task would weigh in each variance: the mean of those drawn, and one that is like all."""
    uncertain = chances[chances < 1]
    everywhere = float(((1 - uncertain) / uncertain**2).mean()) if len(uncertain) else 0.0
    return np.asarray((thin.sum(1) + everywhere) / (drawn + 1))


def _slopes(v: Floats, g: Floats, thin: Floats) -> Floats:
    """The slope of each v on g, some tasks of it by that of all together: (P,)."""
    whole = np.maximum(thin.sum(1), _TINY)
    together, square = (thin * v * g).sum(1) / whole, (thin * g * g).sum(1) / whole
    if not square.any():
        return np.zeros(len(v))
    pooled = np.clip(together.sum() / square.sum(), 0.0, 1.0)
    prior = _POOLED / np.maximum((thin > 0).sum(1), 1) * square.mean()
    return np.asarray(np.clip((together + prior * pooled) / (square + prior), 0.0, 1.0))


def student(z: float, freedom: Ints) -> Floats:
    """Student's t for a normal z, both cutting off the same tails. (Wallace, 1959)

    >>> student(1.96, np.array([4, 9, 1000])).round(2).tolist()
    [2.79, 2.26, 1.96]
    """
    v = freedom.astype(np.float64)
    return np.asarray(np.sqrt(v * np.expm1(np.minimum((z * (8 * v + 3) / (8 * v + 1)) ** 2 / v, 600.0))))


def normal(t: Floats, freedom: Ints) -> Floats:
    """The normal z for a Student's t: the inverse of `student`.

    >>> float(normal(student(3.0, np.array([5])), np.array([5]))[0].round(9))
    3.0
    """
    v = freedom.astype(np.float64)
    return np.asarray((8 * v + 1) / (8 * v + 3) * np.sqrt(v * np.log1p(t**2 / v)))


def drawn_together(guess: Floats, value: Floats, variance: Floats) -> Floats:
    """Values drawn towards guesses that are all off by much the same: what is likeliest from both. (P,)

    value - guess scatters by its variance and by how much guesses differ in being off. The latter is what the former
    leaves (DerSimonian & Laird); a value whose variance is infinite is its guess and the mean of what guesses are off.

    >>> drawn_together(np.array([0.9, 0.8, 0.7]), np.array([0.7, 0.8, 0.6]), np.full(3, 0.01)).round(3).tolist()
    [0.8, 0.7, 0.6]
    """
    off, told = np.where(np.isfinite(variance), value - guess, 0.0), np.isfinite(variance)
    if not told.any():
        return guess
    weight = np.where(told, 1 / np.maximum(variance, 1e-12), 0.0)
    mean = (weight * off).sum() / weight.sum()
    spare = weight.sum() - (weight**2).sum() / weight.sum()
    beyond = (weight * (off - mean) ** 2).sum() - (told.sum() - 1)
    between = max(0.0, float(beyond / spare)) if spare > 0 else 0.0
    weight = np.where(told, 1 / np.maximum(variance + between, 1e-12), 0.0)
    mean = (weight * off).sum() / weight.sum()
    kept = np.where(variance > 0, between / np.where(told, variance + between, 1.0).clip(1e-300), 1.0)
    return np.asarray(guess + mean + np.where(told, kept, 0.0) * (off - mean))
