"""A rule scores one pair: Joint -> number, higher is better. A mechanism decides which pairs.

In the paper's order: the calibrated losses of Theorem 1 (against truth, no penalty), Correlated
Agreement of Algorithm 1, its 0-1 form, the calibrated forms of Theorems 8 and 9, and `pmi`, ours.
Any function Joint -> float is a rule too; verax then finds its standard error by jackknife.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from verax.errors import InputError, OptionError
from verax.joint import Estimate, Joint

FLOOR = 1e-6
RuleFunction = Callable[[Joint], Estimate | float]


def accuracy(joint: Joint) -> Estimate:
    """The share of tasks on which report and truth agree: minus the 0-1 loss. (Theorem 1)

    >>> accuracy(Joint.of_counts([[40, 10], [20, 30]]))
    Estimate(value=0.7, stderr=0.04582575695)
    """
    agree = int(np.trace(joint.counts, axis1=1, axis2=2).sum())
    psi = np.broadcast_to(np.eye(joint.classes), joint.counts.shape)
    return Estimate.of_cells(agree / joint.tasks, psi, joint.counts)


def log(joint: Joint, floor: float = FLOOR) -> Estimate:
    """The mean of log p(y): minus the cross-entropy loss. (Theorem 1)

    >>> round(log(Joint.of([[0.5, 0.5], [0.5, 0.5]], [0, 1])).value, 6)
    -0.693147
    """
    paired = joint.logs(floor).tasks_paired
    psi = paired.rows[np.arange(len(paired.rows)), paired.reference]
    return Estimate.of_tasks(float(psi.mean()), psi)


def quadratic(joint: Joint) -> Estimate:
    """The mean of -sum_l (p_l - 1[l = y])^2: minus the squared loss. (Theorem 1)

    >>> quadratic(Joint.of([[1.0, 0.0], [0.5, 0.5]], [0, 1]))
    Estimate(value=-0.25, stderr=0.1767766953)
    """
    paired = joint.tasks_paired
    psi = -((paired.rows - np.eye(joint.classes)[paired.reference]) ** 2).sum(1)
    return Estimate.of_tasks(float(psi.mean()), psi)


def ca(joint: Joint, sign: npt.ArrayLike | None = None) -> Estimate:
    """Correlated Agreement: <S, delta> with S = `sign`. (Algorithm 1, Theorems 2 and 4)

    Without `sign`, S = Sgn(delta) of these very tasks, which pays noise: learn it elsewhere to pay.

    >>> ca(Joint.of_counts([[40, 10], [20, 30]]))
    Estimate(value=0.202020202, stderr=0.04472135955)
    """
    return joint.score(joint.sign if sign is None else sign)


def zero_one(joint: Joint) -> Estimate:
    """Correlated Agreement when Sgn(Delta*) is the identity: trace(delta). (section 5, "0-1 score")

    >>> zero_one(Joint.of([1, 1, 1], [0, 1, 1])).value  # a constant report earns exactly nothing
    0.0
    """
    return joint.score()


def ce(joint: Joint, floor: float = FLOOR) -> Estimate:
    """Calibrated CA with cross-entropy: trace(delta(log p, G)). (Theorems 8 and 9, "CE score")

    >>> round(ce(Joint.of([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 0])).value, 6)
    0.89588
    """
    return joint.logs(floor).score()


def brier(joint: Joint) -> Estimate:
    """Calibrated CA with squared loss: trace(delta(2p, G)); the squared norms cancel. (Theorems 8 and 9)

    >>> round(brier(Joint.of([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 0])).value, 6)
    0.733333
    """
    return joint.doubled().score()


def pmi(joint: Joint, floor: float = FLOOR) -> Estimate:
    """Mean of log p(n, g_n) - log pbar(g_n), pbar the mean row (of the stratum). (beyond the paper)

    Its best row is the agent's belief about the reference's label: it does not pay overconfidence.

    >>> pmi(Joint.of([[0.7, 0.3], [0.7, 0.3]], [0, 1])).value  # says the same of every task
    0.0
    """
    paired = joint.tasks_paired
    if paired.public.features is not None:
        raise OptionError("pmi takes a public signal as strata only; give labels, or use zero-one, ca, ce or brier")
    p = np.maximum(paired.rows, floor)
    mean = p - paired.public.residual(p)  # exact where the stratum's rows are all equal
    one_hot = np.eye(joint.classes)[paired.reference]
    share = one_hot - paired.public.residual(one_hot)
    at = np.arange(len(p)), paired.reference
    gained = np.log(p[at]) - np.log(mean[at])
    psi = gained - (share * (p / mean - 1.0)).sum(1)
    return Estimate.of_tasks(float(gained.mean()), psi)


@dataclass(frozen=True)
class Rule:
    """A rule with what a mechanism must know of it."""

    name: str
    estimate: RuleFunction
    needs_rows: bool = False
    truth_only: bool = False
    floor: float | None = None
    own: bool = False

    @property
    def counts_only(self) -> bool:
        """Whether it is <S, delta> on labels, so that counts suffice."""
        return self.name in ("ca", "zero-one") and not self.own


_NAMED: dict[str, tuple[Callable[..., Estimate], bool, bool, bool]] = {
    # name: function, needs rows, truth only, floored
    "accuracy": (accuracy, False, True, False),
    "log": (log, True, True, True),
    "quadratic": (quadratic, True, True, False),
    "ca": (ca, False, False, False),
    "zero-one": (zero_one, False, False, False),
    "ce": (ce, True, False, True),
    "brier": (brier, True, False, False),
    "pmi": (pmi, True, False, True),
}
NAMES = tuple(_NAMED)


def resolve(rule: str | RuleFunction, floor: float | None = None) -> Rule:
    """The rule of a name, or of a user's own function.

    >>> resolve("ce", floor=1e-3).floor
    0.001
    >>> resolve(lambda joint: float(joint.counts.max())).own
    True
    """
    if callable(rule):
        if floor is not None:
            raise OptionError("a floor goes with ce, pmi and log; let your own rule keep its own")
        return Rule(f"own:{getattr(rule, '__name__', type(rule).__name__)}", rule, own=True)
    if rule not in _NAMED:
        raise OptionError(f"no rule is called {rule!r}; choose one of {', '.join(NAMES)}, or pass a function")
    function, rows, truth_only, floored = _NAMED[rule]
    if not floored:
        if floor is not None:
            raise OptionError(f"rule {rule} has no floor; leave --floor out, or use ce, pmi or log")
        return Rule(rule, function, rows, truth_only)
    level = FLOOR if floor is None else float(floor)
    if not 0.0 < level < 0.5:
        raise OptionError(f"the floor is {level:g}; give a number above 0 and below 0.5, such as 1e-6")
    return Rule(rule, partial(function, floor=level), rows, truth_only, level)


def check_matrix(matrix: npt.ArrayLike, classes: int) -> npt.NDArray[np.generic]:
    """A user's S: L x L, entries in [0, 1]."""
    s = np.asarray(matrix)
    if s.shape != (classes, classes):
        raise InputError(
            f"the sign matrix has shape {s.shape}; with {classes} classes it must be {classes} x {classes}"
        )
    if s.dtype == bool:
        return s.astype(np.int64)
    s = s.astype(np.float64)
    if not (np.isfinite(s).all() and s.min() >= 0 and s.max() <= 1):
        raise InputError("the sign matrix has an entry outside [0, 1]; clip or rescale it")
    return s
