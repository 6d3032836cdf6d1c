"""Which tasks are worth a label, how they are drawn, and how large errors will be if the beliefs are right.

A task's *share* says how many times likelier than the mean it is to be drawn. Its *ticket* is a number between 0 and 1,
the SHA-256 of the seed and its name, divided by its share: tasks are labelled in the order of their tickets. Of the
first k, a task was in with chance min(1, share * the next ticket), given that ticket: dividing by it makes every sum
right in the mean, for every k. So whoever stops early has a sample too, and more labels are the next in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verax.kernels import Floats, Ints, Labels
from verax.spotcheck.belief import Belief

ABOUT = ("order", "accuracy")
_EVEN = 0.6  # of every share, whatever is believed: no chance is below it times that of an even draw
_DOUBT = 0.05  # of every belief, given to all labels alike: agreement is not as certain as it looks
SURPRISE = 0.5  # of a task, wholly unexpected, that is taken as seen before any is: no error is 0 by luck
SURPRISE_OF_TWO = 1.0  # the same where two agents differ, and either may be the one who is right

Mask = npt.NDArray[np.bool_]


def shares(labels: Labels, belief: Belief, about: str) -> Floats:
    """How many times likelier than the mean each task had best be drawn: (N,).

    By the spread of what is not known of it, after the beliefs: for `accuracy` of who is right; for `order` of who is
    right more than the others are, which is nothing where all say the same.

    >>> labels = np.array([[0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 0, 0]])
    >>> shares(labels, Belief.of(labels), "order").round(1).tolist()
    [0.6, 0.6, 2.2, 0.6]
    """
    answered = labels >= 0
    rows = _doubted(belief.rows, belief.rows.shape[1])
    weight = 1.0 / np.maximum(answered.sum(1), 1) ** 2
    said = [labels == k for k in range(rows.shape[1])]
    counted = np.stack([hot.sum(0) for hot in said], axis=1) / np.maximum(answered.sum(0), 1)[:, None]
    weighed = np.stack([weight @ hot for hot in said], axis=1)
    if about == "accuracy":
        spread = rows * (1 - rows)
    else:  # of 1[k = y] less the part of everybody who says y, for an agent that says k
        mean, square = (rows * counted).sum(1, keepdims=True), (rows * counted**2).sum(1, keepdims=True)
        spread = rows * (1 - 2 * counted) + square - (rows - mean) ** 2
    root = np.sqrt(np.maximum((weighed * spread).sum(1), 0.0))
    return _EVEN + (1 - _EVEN) * root / root.mean() if root.any() else np.ones(len(root))


def _doubted(chance: Floats, classes: int) -> Floats:
    return (1 - _DOUBT) * chance + _DOUBT / classes


def ticket(seed: str, task: str, share: float) -> float:
    """Where a task stands in the order of labelling.

    >>> round(ticket("spot", "t1", 1.0), 4), ticket("spot", "t1", 2.0) * 2 == ticket("spot", "t1", 1.0)
    (0.4669, True)
    """
    digest = hashlib.sha256(f"{seed}:{task}".encode()).digest()
    return (int.from_bytes(digest, "big") + 1) / 2**256 / share


def drawn(tasks: Sequence[str], share: Floats, seed: str) -> tuple[Ints, Floats]:
    """The places of all tasks in the order of their tickets, and these tickets."""
    tickets = [ticket(seed, task, s) for task, s in zip(tasks, share.tolist(), strict=True)]
    order = sorted(range(len(tasks)), key=lambda n: (tickets[n], tasks[n]))
    return np.array(order, dtype=np.int64), np.array([tickets[n] for n in order])


def expected_chances(share: Floats, labels: int) -> Floats:
    """The chances with which so many labels are drawn in the mean: proportional to the shares, up to 1.

    >>> expected_chances(np.array([1.0, 1.0, 6.0]), 2).tolist()
    [0.5, 0.5, 1.0]
    """
    certain = np.zeros(len(share), dtype=bool)
    while True:
        left = labels - certain.sum()
        chance = np.where(certain, 1.0, share * max(left, 0) / max(share[~certain].sum(), 1e-300))
        if (chance <= 1).all():
            return chance
        certain |= chance >= 1


@dataclass(frozen=True, eq=False)
class Errors:
    """How large the errors of some means will be: `spread` (P, N) of each task about its guess, over `size` (P,) tasks.

    `inside`: the tasks on which a mean's value is not known. `value` and `alone` (P,): what is expected of it, and the
    variance of one task's value, for those who know no guesses.
    """

    spread: Floats
    inside: Mask
    size: Floats
    value: Floats
    alone: Floats
    surprise: float = SURPRISE

    @classmethod
    def of_accuracies(cls, labels: Labels, belief: Belief) -> Errors:
        """Of every agent's accuracy."""
        inside = labels >= 0
        right = np.where(inside, _doubted(belief.right, belief.rows.shape[1]), 0.0)
        size = np.maximum(inside.sum(1), 1).astype(np.float64)
        value = right.sum(1) / size
        return cls(right * (1 - right), inside, size, value, value * (1 - value))

    @classmethod
    def of_differences(cls, labels: Labels, belief: Belief, a: Ints, b: Ints) -> Errors:
        """Of the accuracies of agents a less those of agents b, on the tasks that both answered."""
        common = (labels[a] >= 0) & (labels[b] >= 0)
        inside = common & (labels[a] != labels[b])
        p, q = (_doubted(belief.right[side], belief.rows.shape[1]) for side in (a, b))
        whole = np.maximum(p + q, 1.0)
        p, q = np.where(inside, p / whole, 0.0), np.where(inside, q / whole, 0.0)
        size = np.maximum(common.sum(1), 1).astype(np.float64)
        value = (p - q).sum(1) / size
        spread, alone = p + q - (p - q) ** 2, (p + q).sum(1) / size - value**2
        return cls(spread, inside, size, value, alone, SURPRISE_OF_TWO)

    def stderrs(self, chances: Floats) -> Floats:
        """The standard errors where tasks are drawn with these chances; none above that of knowing one label."""
        thin = 1 / np.maximum(chances, 1e-12) - 1
        seen = np.maximum(self.inside @ chances, 1e-12)
        found = np.sqrt(self.spread @ thin + self.surprise * (self.inside @ thin) / seen)
        return np.asarray(np.minimum(found / self.size, np.sqrt(self.alone)))

    def variance(self, chances: Floats) -> float:
        """The mean of their squares."""
        return float((self.stderrs(chances) ** 2).mean())

    def labels_alone(self, variance: float, tasks: int) -> int:
        """How many evenly drawn labels have this mean variance without any guess."""
        return labels_alone(float((self.alone / self.size).mean()) * tasks, variance, tasks)


def labels_alone(spread: float, variance: float, tasks: int) -> int:
    """How many of so many tasks, evenly drawn, give a mean this variance where one task's value has that `spread`.

    >>> labels_alone(0.25, 0.0025, 1_000_000), labels_alone(0.25, 0.0025, 100)
    (100, 50)
    """
    return tasks if variance <= 0 else max(1, round(1 / (1 / tasks + variance / max(spread, 1e-300))))


def fewest(enough: Callable[[int], bool], most: int) -> int:
    """The fewest labels that are enough, or all.

    >>> fewest(lambda labels: labels >= 17, 100)
    17
    """
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low
