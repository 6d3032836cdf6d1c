"""Which of two agents is right more often, from the same labels: differences of means, and how sure their signs are.

What is hard for one is hard for the other, so the error of a difference is that of the differences of what each task
adds. Few labels may show no task that speaks against the better one; a normal law then believes there is none. So the
p-value is never below that of empirical likelihood with one more task seen, the worst there could be: with +1 and -1
alone that is close to the sign test. (Owen 1988; Chen, Variyath & Abraham 2008)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from verax.kernels import Floats, Ints
from verax.spotcheck.design import Mask
from verax.spotcheck.estimate import Means, normal, student

_HALVINGS = 24
_WORTH_A_LOOK = 0.2  # p-values above it are not looked at again


@dataclass(frozen=True, eq=False)
class Differences:
    """Means a less means b, (P,) each; where one of them is not known, anything from -1 to 1."""

    value: Floats
    stderr: Floats
    reach: Floats
    p_value: Floats


def differences(found: Means, inside: Mask, chances: Floats, a: Ints, b: Ints, z: float) -> Differences:
    """The differences of means a and b, `reach` how far their intervals go."""
    told = ~np.isnan(found.value[a] - found.value[b])
    value = np.where(told, found.value[a] - found.value[b], 0.0)
    parts, either = found.parts[a] - found.parts[b], (inside[a] | inside[b]) & (chances < 1)
    count = either.sum(1)
    spread = ((1 - chances) * parts**2).sum(1)
    factor = count / np.maximum(count - 1, 1)
    error = np.where(told, np.sqrt((spread + found.doubt[a] + found.doubt[b]) * factor), 1.0)
    freedom = np.maximum(count - 1, 1)
    exact = told & (error == 0)
    far = normal(np.where(exact, 0.0, np.abs(value) / np.where(exact, 1.0, error)), freedom)
    p = np.where(exact, value == 0, [math.erfc(x / math.sqrt(2)) for x in far.tolist()])
    again = np.nonzero((p < _WORTH_A_LOOK) & ~exact)[0]
    sign = np.where(value[again] < 0, -1.0, 1.0)
    up, down = np.where(value[again] < 0, b[again], a[again]), np.where(value[again] < 0, a[again], b[again])
    apart = np.where(either[again], parts[again], 0.0)
    apart = np.where(either[again], apart - (apart.sum(1) / np.maximum(count[again], 1))[:, None], 0.0)
    known, unknown = (apart**2).sum(1), ((1 - chances) * apart**2).sum(1)
    p[again] = np.maximum(p[again], p_if_one_more_spoke_against(
        np.abs(value[again]), sign[:, None] * apart, either[again], found.fall[up] + found.rise[down],
        np.divide(known, unknown, out=np.ones_like(known), where=unknown > 0),
    ))  # fmt: skip
    return Differences(value, error, np.where(told, student(z, freedom) * error, 1.0), p)


def p_if_one_more_spoke_against(value: Floats, parts: Floats, seen: Mask, worst: Floats, census: Floats) -> Floats:
    """How likely means are above 0 by luck, from the `parts` (P, n) of tasks and of one more, the worst there could be.

    `census`: how many times more a task tells, for being one of finitely many. Six tasks that all say +1:

    >>> six = np.full((1, 6), True)
    >>> p_if_one_more_spoke_against(np.ones(1), np.zeros((1, 6)), six, np.array([2 / 6]), np.ones(1)).round(3).tolist()
    [0.047]
    >>> 2 * 0.5**6
    0.03125
    """
    count = seen.sum(1, keepdims=True)
    x = np.where(seen, value[:, None] + count * parts, 0.0)
    x = np.concatenate([x, value[:, None] - count * worst[:, None]], axis=1)
    low, high = np.zeros(len(x)), (1 - 1e-9) / np.maximum(-x.min(1), 1e-12)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        rising = (x / (1 + middle[:, None] * x)).sum(1) > 0
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    likelihood = np.log1p(low[:, None] * x).sum(1) * census
    return np.array([math.erfc(math.sqrt(max(each, 0.0))) for each in likelihood.tolist()])
