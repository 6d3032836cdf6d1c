"""Against the others' consensus: what everybody else together believes of each task's label, as a soft reference.

The belief is that of Dawid and Skene: every agent has a table of what it says where the label is k, labels have shares,
and both are fitted with the labels themselves unknown. Tables of few answers are guesses, and a herd can buy itself any
table, so each is half what was counted and half of one number, how often the agent is right whatever the label. An
agent is held against the belief of agents that are not of its fold, found from their reports alone: nothing it says is
in its own reference, so its score is linear in its report, and it is truthful where the belief is right about more
tasks of each label than chance, given the label (Theorem 4 with the belief for the peer). Whoever shares its fold is
left out with it: up to `_ALONE` agents a fold is one agent.

Dawid & Skene, "Maximum likelihood estimation of observer error-rates using the EM algorithm", 1979.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from verax.kernels import Floats, Ints, Labels
from verax.mechanisms.soft import Mixture, Mixtures, check_soft, normal, part_beside
from verax.plan import Plan
from verax.statistic import Part, Side

_ALONE = 16  # agents, up to which each is left out alone
_FOLDS = 8
_MOST_PASSES, _STILL = 50, 1e-4  # of the fit, and the change of a belief at which it ends
_PRIOR, _ROW_PRIOR, _RIGHT_PRIOR = 0.01, 0.01, 0.1  # answers that are taken as given before any is counted
_CELLS = 2**22  # of one-hot labels at a time


class Consensus(Mixtures):
    """Everybody's belief but one's own fold's, fitted when it is first asked for."""

    def __init__(self, side: Side, plan: Plan) -> None:
        check_soft(plan, "the consensus")
        super().__init__(side, plan)
        self.fold = folds_of(self.side.reports.agents)
        self.beliefs: dict[int, Floats] = {}

    def ordered(self, i: int) -> Mixture:
        fold, reports = int(self.fold[i]), self.side.reports
        if fold not in self.beliefs:
            self.beliefs[fold] = consensus(reports.labels[self.fold != fold], len(reports.classes))
        return Mixture(None, self.beliefs[fold], int((self.fold != fold).sum()))

    def parts_of(self, wanted: Ints) -> dict[int, Part | None]:
        mixtures = ((i, self.ordered(i)) for i in wanted.tolist())
        return {i: part_beside(self.side, self.plan, i, m) for i, m in mixtures}


def folds_of(agents: Sequence[str]) -> Ints:
    """The fold of each agent: alone where there are few, else dealt out in the order of their names' SHA-256.

    >>> folds_of(["ann", "bob", "cat"]).tolist()
    [0, 1, 2]
    """
    if len(agents) <= _ALONE:
        return np.arange(len(agents))
    order = sorted(range(len(agents)), key=lambda k: hashlib.sha256(agents[k].encode()).digest())
    fold = np.empty(len(agents), dtype=np.int64)
    fold[order] = np.arange(len(agents)) % _FOLDS
    return fold


def consensus(labels: Labels, classes: int) -> Floats:
    """What the agents together believe of each task: rows (N, L), of zeros where nobody answered.

    >>> labels = np.array([[0, 1, 1, 0, 1, -1], [0, 1, 1, 0, 0, -1], [0, 1, 0, 0, 1, -1]])
    >>> consensus(labels, 2).argmax(1).tolist(), float(consensus(labels, 2)[5].sum())
    ([0, 1, 1, 0, 1, 0], 0.0)
    """
    belief = normal(np.stack([(labels == k).sum(0) for k in range(classes)], axis=1).astype(np.float64))
    seen = belief.sum(1) > 0
    for _ in range(_MOST_PASSES):
        prior, tables = _tables_of(labels, belief)
        again = _belief_of(labels, prior, tables, seen)
        moved, belief = float(np.abs(again - belief).max(initial=0.0)), again
        if moved < _STILL:
            break
    return belief


def _tables_of(labels: Labels, belief: Floats) -> tuple[Floats, Floats]:
    """The shares of labels (L,), and what each agent says of each, half of it by one number: (K, L, L)."""
    classes = belief.shape[1]
    counts = np.zeros((len(labels), classes, classes))
    for some, said in _each_label_said(labels, classes):
        for k, hot in enumerate(said):
            counts[:, :, k] += hot @ belief[some]
    whole = counts.sum((1, 2)) + _RIGHT_PRIOR * classes
    right = ((np.trace(counts, axis1=1, axis2=2) + _RIGHT_PRIOR) / whole)[:, None, None]
    even = np.where(np.eye(classes, dtype=bool), right, (1 - right) / (classes - 1))
    counted = (counts + _ROW_PRIOR) / (counts.sum(2, keepdims=True) + _ROW_PRIOR * classes)
    prior = belief.sum(0) + _PRIOR
    return prior / prior.sum(), (even + counted) / 2


def _belief_of(labels: Labels, prior: Floats, tables: Floats, seen: npt.NDArray[np.bool_]) -> Floats:
    """What the tables make of what was said: (N, L)."""
    logs, found = np.log(tables), np.tile(np.log(prior), (labels.shape[1], 1))
    for some, said in _each_label_said(labels, len(prior)):
        for k, hot in enumerate(said):
            found[some] += hot.T @ logs[:, :, k]
    found = np.exp(found - found.max(1, keepdims=True))
    return np.where(seen[:, None], found / found.sum(1, keepdims=True), 0.0)


def _each_label_said(labels: Labels, classes: int) -> Iterator[tuple[slice, list[Floats]]]:
    """Some tasks at a time, who says each label on them: (K, tasks) of 0 and 1."""
    step = max(1, _CELLS // max(len(labels) * classes, 1))
    for first in range(0, labels.shape[1], step):
        some = slice(first, first + step)
        yield some, [(labels[:, some] == k).astype(np.float64) for k in range(classes)]
