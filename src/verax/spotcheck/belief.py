"""What all answers together make of every task and every answer, before there is any label."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verax.kernels import Floats, Ints, Labels
from verax.mechanisms.consensus import FoldsBelief
from verax.mechanisms.soft import normal

_ALONE = 16  # agents, up to which tables are fitted without each; of more, in halves


@dataclass(frozen=True, eq=False)
class Belief:
    """`rows` (N, L): how likely each label is. `right` (K, N): each answer's chance of being right, by the others.

    >>> labels = np.array([[0, 1, 1, 0, 1, 0], [0, 1, 1, 0, 0, -1], [0, 1, 0, 0, 1, -1]])
    >>> Belief.of(labels).right.round(1).tolist()[1]
    [1.0, 1.0, 0.1, 1.0, 0.0, 0.0]
    """

    rows: Floats
    right: Floats

    @classmethod
    def of(cls, labels: Labels) -> Belief:
        """By the consensus of everybody else; where nobody else answered, the agent's mean elsewhere stands in."""
        agents, tasks = labels.shape
        classes, fold = max(2, int(labels.max(initial=0)) + 1), _folds(agents)
        rows, right = np.zeros((tasks, classes)), np.zeros(labels.shape)
        for members in (np.nonzero(fold == f)[0] for f in np.unique(fold)):
            together = FoldsBelief.of(labels, members, classes)
            for i in members.tolist():
                others = together.without(i)
                rows += others
                right[i] = _chances_of(labels[i], others)
        return cls(normal(rows), right)


def _folds(agents: int) -> Ints:
    places = np.arange(agents)
    return places if agents <= _ALONE else places % 2


def _chances_of(said: Labels, others: Floats) -> Floats:
    heard, answered = others.sum(1) > 0, said >= 0
    found = np.where(answered & heard, others[np.arange(len(said)), np.maximum(said, 0)], 0.0)
    mean = found[answered & heard].mean() if (answered & heard).any() else 0.5
    return np.where(answered & ~heard, mean, found)
