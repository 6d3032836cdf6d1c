"""Is honesty the best reply? TRUTHFUL, CATEGORICAL and ROBUST, from what each label is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from verax.audit.certificate import Certificate, Interval, tasks_needed
from verax.audit.worth import Mask
from verax.intervals import quantile
from verax.kernels import Floats, Ints

_FEWEST = 10  # tasks on which a label is held, below which no normal approximation decides about it
_ROUNDING = 1e-13
_FACTORS = 1.1 ** np.arange(1, 80)  # by how much errors might shrink with more tasks


@dataclass(frozen=True, eq=False)
class Gains:
    """What saying r while holding k would add to the score: (L, L), with standard errors.

    `held` counts how often each label is held.
    """

    gain: Floats
    stderr: Floats
    held: Ints
    tasks: int

    @property
    def compared(self) -> Mask:
        """Which relabellings change anything: of a held label, to another."""
        return np.asarray((self.held > 0)[:, None] & ~np.eye(len(self.held), dtype=bool))

    @property
    def tied(self) -> Mask:
        """Relabellings that earn the same on every task, so that no number of tasks separates them."""
        return np.asarray(self.compared & (np.abs(self.gain) <= _ROUNDING) & (self.stderr <= _ROUNDING))

    @property
    def best(self) -> Ints:
        """For each held label, the label whose report would have earned most; itself on ties."""
        gain = np.where(self.gain > _ROUNDING, self.gain, 0.0)
        reply = np.where(gain.max(1) > 0, gain.argmax(1), np.arange(len(gain)))
        return np.asarray(np.where(self.held > 0, reply, np.arange(len(gain))))

    @property
    def total(self) -> float:
        """The gain of the best relabelling of all labels together."""
        return float(np.maximum(np.where(self.compared, self.gain, 0.0), 0.0).max(1).sum())


def truthful(agent: str, gains: Gains, classes: Sequence[str], confidence: float) -> Certificate:
    """TRUTHFUL: no relabelling of one's labels earns more, against these references. (Theorems 2 and 4)"""
    real = gains.compared & ~gains.tied
    z = quantile(confidence, int(real.sum()))
    low, high = gains.gain - z * gains.stderr, gains.gain + z * gains.stderr
    rare = (gains.held < _FEWEST)[:, None]
    sure_gain, sure_loss = real & (low > 0) & ~rare, real & (high < 0) & ~rare
    interval = (
        float(np.where(sure_gain, low, 0.0).max(1).sum()),
        float(np.where(real, np.maximum(high, 0.0), 0.0).max(1).sum()),
    )
    deviation = {classes[k]: classes[r] for k, r in enumerate(gains.best) if r != k}
    if sure_gain.any():
        k, r = _largest(np.where(sure_gain, low, -np.inf))
        why = (
            f"saying {classes[r]!r} while holding {classes[k]!r} earns {gains.gain[k, r]:.4f} more "
            f"(z = {gains.gain[k, r] / gains.stderr[k, r]:.1f})"
        )
        return Certificate("TRUTHFUL", agent, "fails", gains.total, interval, deviation, why)
    if not (real & ~sure_loss).any():
        return Certificate("TRUTHFUL", agent, "holds", gains.total, interval, None, _kept(gains, classes))
    why = _open_question(gains, real & ~sure_loss, z, classes)
    return Certificate("TRUTHFUL", agent, "undecided", gains.total, interval, deviation or None, why)


def _kept(gains: Gains, classes: Sequence[str]) -> str:
    if gains.tied.any():
        k, r = np.argwhere(gains.tied)[0]
        return f"informed: no relabelling earns more, but saying {classes[r]!r} for {classes[k]!r} earns the same"
    return "strictly: every relabelling of a label would have earned less"


def _open_question(gains: Gains, unsure: Mask, z: float, classes: Sequence[str]) -> str:
    """The relabelling that is hardest to judge, and the tasks that would judge it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(unsure, z * gains.stderr / np.abs(gains.gain), 0.0)
    scarce = np.sqrt(_FEWEST / np.maximum(gains.held, 1))[:, None]
    ratio = np.where(unsure, np.maximum(ratio, scarce), 0.0)
    k, r = _largest(ratio)
    needed = tasks_needed(gains.tasks, float(ratio[k, r]))
    return (
        f"whether saying {classes[r]!r} while holding {classes[k]!r} (held {gains.held[k]} times) earns more "
        f"is within its error ({gains.gain[k, r]:+.4f} ± {gains.stderr[k, r]:.4f}); {needed}"
    )


@dataclass(frozen=True, eq=False)
class Deltas:
    """The mean of delta over an agent's references, with standard errors: (L, L)."""

    delta: Floats
    stderr: Floats
    held: Ints
    tasks: int

    @property
    def z(self) -> Floats:
        """Each entry in standard errors."""
        return np.asarray(self.delta / np.where(self.stderr > 0, self.stderr, np.inf))

    def confusable(self, confidence: float) -> list[tuple[int, int]]:
        """Off-diagonal entries that are surely positive: label pairs that meet more than by chance."""
        limit = quantile(confidence, self.delta.size)
        off = ~np.eye(len(self.delta), dtype=bool)
        found = np.argwhere(off & (self.z > limit) & (self.held >= _FEWEST)[:, None])
        return sorted(((int(k), int(m)) for k, m in found), key=lambda c: -self.z[c])


def categorical(agent: str, d: Deltas, classes: Sequence[str], confidence: float) -> Certificate:
    """CATEGORICAL: Sgn(Delta*) is the identity, so that only equal labels agree. (Lemmas 1 and 2)"""
    if not np.abs(d.delta).max() > _ROUNDING:
        why = "the report is the same on every task, so that it has no correlation with any label"
        return Certificate("CATEGORICAL", agent, "not-applicable", None, None, None, why)
    limit, z, identity = quantile(confidence, d.delta.size), d.z, np.eye(len(d.delta), dtype=bool)
    exact = (d.stderr <= _ROUNDING) & (np.abs(d.delta) <= _ROUNDING)
    wrong = d.confusable(confidence) + [(int(k), int(k)) for k in np.nonzero(np.diag(z) < -limit)[0]]
    if wrong:
        pairs = ", ".join(f"{classes[k]!r} beside {classes[m]!r} (z = {z[k, m]:.1f})" for k, m in wrong[:4])
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        witness = {classes[k]: classes[m] for k, m in reversed(wrong)}
        return Certificate("CATEGORICAL", agent, "fails", None, None, witness, f"not the identity: {pairs}{more}")
    unsure = ~exact & np.where(identity, z < limit, z > -limit)
    if not unsure.any():
        return Certificate(
            "CATEGORICAL", agent, "holds", None, None, None, "equal labels agree, and no two different ones do"
        )
    with np.errstate(divide="ignore"):
        ratio = np.where(unsure, limit / np.abs(z), 0.0)
    k, m = _largest(ratio)
    why = (
        f"the sign of {classes[k]!r} beside {classes[m]!r} is open (z = {z[k, m]:.1f}), with {int(unsure.sum()) - 1} "
        f"others; {tasks_needed(d.tasks, float(ratio[k, m]))}"
    )
    return Certificate("CATEGORICAL", agent, "undecided", None, None, None, why)


def robust(
    agent: str, d: Deltas, classes: Sequence[str], confidence: float, colluders: float, binary: float | None
) -> Certificate:
    """ROBUST: how many of the references may collude before honesty stops paying. (Theorem 7, corrected)

    `binary`: J = 1 - alpha - beta of the references where it is known or bounded (two labels).
    """
    if not np.abs(d.delta).max() > _ROUNDING:
        why = "the report is the same on every task, so that no reply earns more than another"
        return Certificate("ROBUST", agent, "not-applicable", None, None, None, why)
    if len(d.delta) == 2 and binary is not None:
        return _robust_binary(agent, binary, colluders)
    z = quantile(confidence, d.delta.size)
    worst, turned = flipping_fraction(d.delta, "permuting"), flipping_fraction(d.delta, "reversing")
    interval = _fraction_interval(d, z)
    said, held = classes[worst.said], classes[worst.held]
    why = (
        f"honesty stops paying when {worst.fraction:.2f} of the references permute their labels ({said!r} for {held!r} "
        f"pays first), {turned.fraction:.2f} when they reverse them; constant colluders never turn it; "
        f"asked: {colluders:.2f}"
    )
    if worst.fraction <= 0:
        why = f"honesty does not pay best even without colluders: {said!r} for {held!r} earns as much or more"
    if interval[0] > colluders:
        return Certificate("ROBUST", agent, "holds", None, interval, None, why)
    if interval[1] <= colluders:
        return Certificate("ROBUST", agent, "fails", None, interval, {held: said}, why)
    more = next((f for f in _FACTORS if not _straddles(_fraction_interval(d, z / f), colluders)), math.inf)
    return Certificate("ROBUST", agent, "undecided", None, interval, None, f"{why}; {tasks_needed(d.tasks, more)}")


def _fraction_interval(d: Deltas, z: float) -> Interval:
    """The flipping fraction with every entry of delta at its worst, and at its best."""
    low, high = (flipping_fraction(_shifted_by(d, side * z), "permuting").fraction for side in (-1.0, 1.0))
    return max(0.0, low), min(1.0, high)


def _straddles(interval: Interval, colluders: float) -> bool:
    return interval[0] <= colluders < interval[1]


def _robust_binary(agent: str, j: float, colluders: float) -> Certificate:
    bound = gamma_star(j)
    why = (
        f"with J = 1 - alpha - beta of at least {j:.3f} the references bear any colluding fraction below "
        f"J / (1 + J) = {bound:.3f}, whatever the colluders know; asked: {colluders:.2f}"
    )
    if bound > colluders:
        return Certificate("ROBUST", agent, "holds", None, (bound, 1.0), None, why)
    needed = colluders / (1 - colluders)
    return Certificate(
        "ROBUST", agent, "undecided", None, (bound, 1.0), None,
        f"{why}; more tasks do not help: references of J above {needed:.2f} would, or labels",
    )  # fmt: skip


def gamma_star(j: float, best: float = 1.0) -> float:
    """The colluding fraction that any adversary needs, J / (J + J*). (Theorem 7, corrected)

    `best` is the largest 1 - alpha - beta that any adversary can reach; 1 if unknown.

    >>> round(gamma_star(0.6, 0.8), 6) == round(3 / 7, 6), gamma_star(0.8, 0.8)
    (True, 0.5)
    """
    return max(0.0, j) / (max(0.0, j) + best) if best > 0 else 1.0


@dataclass(frozen=True)
class Flip:
    """The smallest colluding fraction that makes `said` the better report for `held`."""

    fraction: float
    held: int
    said: int


def flipping_fraction(delta: Floats, way: str) -> Flip:
    """The smallest colluding fraction that turns the best reply under zero-one, in closed form.

    Colluders report a permutation (the worst one, or the reversal) of what an honest reference would,
    or a constant, which only dilutes. A row of (1 - g) delta + g delta' turns where it becomes linear
    in g: g = m / (m + m'), m the honest margin and m' what the colluders offer.

    >>> flipping_fraction(np.array([[0.2, -0.2], [-0.2, 0.2]]), "permuting").fraction
    0.5
    >>> flipping_fraction(np.array([[0.2, -0.2], [-0.2, 0.2]]), "constant").fraction
    1.0
    """
    size = len(delta)
    margin = np.diag(delta)[:, None] - delta
    if way == "constant":
        offered = np.zeros_like(delta)
    elif way == "reversing":
        turned = delta[:, ::-1]
        offered = turned - np.diag(turned)[:, None]
    else:
        # the colluders say r where an honest one says k, and k where it says k's least likely label
        offered = np.broadcast_to((np.diag(delta) - delta.min(1))[:, None], delta.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = np.where(margin <= 0, 0.0, np.where(offered > 0, margin / (margin + offered), 1.0))
    held = np.any(delta != 0, axis=1)[:, None]
    fraction = np.where(~np.eye(size, dtype=bool) & held, fraction, math.inf)
    k, r = _largest(-fraction)
    return Flip(float(min(fraction[k, r], 1.0)), k, r)


def _largest(matrix: Floats) -> tuple[int, int]:
    k, r = np.unravel_index(matrix.argmax(), matrix.shape)
    return int(k), int(r)


def _shifted_by(d: Deltas, errors: float) -> Floats:
    """delta with its diagonal moved by so many errors up, and all else down."""
    return np.asarray(d.delta + errors * np.where(np.eye(len(d.delta), dtype=bool), d.stderr, -d.stderr))
