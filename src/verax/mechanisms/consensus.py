"""Against the others' consensus: what everybody else together believes of each task's label, as a soft reference.

The belief is that of Dawid and Skene: every agent has a table of what it says where the label is k, labels have shares,
and both are fitted with the labels themselves unknown. Tables of few answers are guesses, and a herd can buy itself any
table: so the fit begins with one number an agent, how often it is right whatever the label, and each table stays half
of that number. Errors that agents share are in no table: so each word counts in the belief by how far it is from
chance, J (the mean chance of being right, over labels, scaled to 0 for guesses and 1 for certainty).

An agent is held against the belief of everybody else. Tables are fitted to the belief of agents that are not of its
fold, its own fold's too, and its own word is never added: nothing it says is in its own reference, so its score is
linear in its report, and it is truthful where the belief is right about more tasks of each label than chance, given the
label (Theorem 4 with the belief for the peer). Up to `_ALONE` agents a fold is one agent.

Dawid & Skene, "Maximum likelihood estimation of observer error-rates using the EM algorithm", 1979.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from verax.kernels import Floats, Ints, Labels
from verax.mechanisms.soft import Mixture, Mixtures, check_soft, normal, part_beside
from verax.plan import Plan
from verax.statistic import Part, Side

_ALONE = 16  # agents, up to which each is left out alone
_FOLDS = 8
_MOST_PASSES, _STILL = 50, 1e-4  # of the fit, and the change of a belief at which it ends
_PRIOR, _ROW_PRIOR, _RIGHT_PRIOR = 0.01, 0.01, 0.1  # answers that are taken as given before any is counted
BY_ONE_NUMBER = (1.0, 0.5)  # how much of a table is one number: at first, and then
_CELLS = 2**22  # of one-hot labels at a time
UNIT = 2.0**32  # log-odds are added in whole numbers of 1 / this, so that one is taken out again without a trace


class Consensus(Mixtures):
    """Everybody's belief but one's own, fitted fold by fold when it is first asked for."""

    def __init__(self, side: Side, plan: Plan) -> None:
        check_soft(plan, "the consensus")
        super().__init__(side, plan)
        self.fold = folds_of(self.side.reports.agents)
        self.beliefs: dict[int, FoldsBelief] = {}

    def ordered(self, i: int) -> Mixture:
        fold, reports = int(self.fold[i]), self.side.reports
        if fold not in self.beliefs:
            self.beliefs[fold] = FoldsBelief.of(reports.labels, np.nonzero(self.fold == fold)[0], len(reports.classes))
        return Mixture(None, self.beliefs[fold].without(i), len(self.fold) - 1)

    def parts_of(self, wanted: Ints) -> dict[int, Part | None]:
        by_fold = wanted[np.argsort(self.fold[wanted], kind="stable")]
        found: dict[int, Part | None] = {}
        for i in by_fold.tolist():
            found[i] = part_beside(self.side, self.plan, i, self.ordered(i))
        return found


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


@dataclass(frozen=True, eq=False)
class FoldsBelief:
    """What all agents but one of a fold believe, whichever of the fold that is."""

    labels: Labels  # of everybody, numbered by `place`
    place: Ints  # of each label in an order that does not depend on names
    outside: Floats  # log-odds (N, L) that agents outside the fold make
    words: dict[int, Ints]  # what each agent of the fold adds by saying a label, (L, L + 1); nothing by none
    inside: Ints  # what they add together
    answers: Ints  # how many answered each task

    @classmethod
    def of(cls, labels: Labels, fold: Ints, classes: int) -> FoldsBelief:
        """Fitted to the reports of agents outside the fold alone."""
        others = np.delete(np.arange(len(labels)), fold)
        place = places_by_appearance(labels[others], classes)
        labels = np.append(place, -1)[labels]
        belief = consensus(labels[others], classes)
        prior, tables = tables_of(Said(labels[others], classes), belief, BY_ONE_NUMBER[-1])
        outside = log_odds(Said(labels[others], classes), prior, worth_of_words(tables))
        _, tables = tables_of(Said(labels[fold], classes), belief, BY_ONE_NUMBER[-1])
        units = np.rint(worth_of_words(tables) * UNIT).astype(np.int64)
        words = dict(zip(fold.tolist(), np.pad(units, ((0, 0), (0, 0), (0, 1))), strict=True))
        inside = np.zeros((labels.shape[1], classes), dtype=np.int64)
        for i, word in words.items():
            inside += word[:, labels[i]].T
        return cls(labels, place, outside, words, inside, (labels >= 0).sum(0))

    def without(self, i: int) -> Floats:
        """What everybody but agent i believes: rows (N, L), of zeros where nobody else answered."""
        logs = self.outside + (self.inside - self.words[i][:, self.labels[i]].T) / UNIT
        heard = self.answers > (self.labels[i] >= 0)
        belief = normal(np.exp(logs - logs.max(1, keepdims=True)))
        return np.where(heard[:, None], belief, 0.0)[:, self.place]


def places_by_appearance(labels: Labels, classes: int) -> Ints:
    """Each label's place in the order in which labels are first said, so that their names change no sum."""
    seen, first = np.unique(labels, return_index=True)
    at = np.full(classes, labels.size)
    at[seen[seen >= 0]] = first[seen >= 0]
    return np.argsort(np.argsort(at, kind="stable"), kind="stable")


@dataclass(frozen=True, eq=False)
class Said:
    """Who says each label on some tasks at a time: (K, tasks) of 0 and 1 a label."""

    labels: Labels
    classes: int
    held: list[tuple[slice, list[Floats]]] = field(default_factory=list, init=False)  # where all tasks go at once

    def __iter__(self) -> Iterator[tuple[slice, list[Floats]]]:
        if self.held:
            yield from self.held
            return
        step = max(1, _CELLS // max(len(self.labels) * self.classes, 1))
        for first in range(0, self.labels.shape[1], step):
            some = slice(first, first + step)
            block = some, [(self.labels[:, some] == k).astype(np.float64) for k in range(self.classes)]
            if step >= self.labels.shape[1]:
                self.held.append(block)
            yield block

    def votes(self) -> Floats:
        """How often each label is said on each task: (N, L)."""
        return np.stack([(self.labels == k).sum(0) for k in range(self.classes)], axis=1).astype(np.float64)

    def counted(self, belief: Floats) -> Floats:
        """How often each agent says one label where another is believed, as far as it is: (K, L, L)."""
        counts = np.zeros((len(self.labels), self.classes, self.classes))
        for some, hot in self:
            for k in range(self.classes):
                counts[:, :, k] += hot[k] @ belief[some]
        return counts

    def added(self, worth: Floats) -> Floats:
        """What is worth (K, L, L) is said on each task, all agents together: (N, L)."""
        found = np.zeros((self.labels.shape[1], self.classes))
        for some, hot in self:
            for k in range(self.classes):
                found[some] += hot[k].T @ worth[:, :, k]
        return found


class Voices(Protocol):
    """Who says what, as far as a fit goes: labels in an array, or one by one."""

    @property
    def classes(self) -> int:
        """How many labels there are."""

    def votes(self) -> Floats:
        """How often each label is said on each task."""

    def counted(self, belief: Floats) -> Floats:
        """How often each agent says one label where another is believed."""

    def added(self, worth: Floats) -> Floats:
        """What is worth is said on each task."""


def consensus(labels: Labels, classes: int) -> Floats:
    """The labels' chances that tables of these agents and what they said make of each other: rows (N, L).

    Of zeros where nobody answered.

    >>> labels = np.array([[0, 1, 1, 0, 1, -1], [0, 1, 1, 0, 0, -1], [0, 1, 0, 0, 1, -1]])
    >>> consensus(labels, 2).argmax(1).tolist(), float(consensus(labels, 2)[5].sum())
    ([0, 1, 1, 0, 1, 0], 0.0)
    """
    return fitted(Said(labels, classes))


def fitted(said: Voices) -> Floats:
    """The chances of the labels and the tables of those who said them, each made of the other until both stay."""
    belief = normal(said.votes())
    heard = belief.sum(1, keepdims=True) > 0
    for share in BY_ONE_NUMBER:
        for _ in range(_MOST_PASSES):
            prior, tables = tables_of(said, belief, share)
            logs = log_odds(said, prior, np.log(tables))
            again = np.where(heard, normal(np.exp(logs - logs.max(1, keepdims=True))), 0.0)
            moved, belief = float(np.abs(again - belief).max(initial=0.0)), again
            if moved < _STILL:
                break
    return belief


def tables_of(said: Voices, belief: Floats, share: float) -> tuple[Floats, Floats]:
    """The shares of labels (L,), and what each agent says of each, a share of it by one number: (K, L, L)."""
    classes, counts = said.classes, said.counted(belief)
    whole = counts.sum((1, 2)) + _RIGHT_PRIOR * classes
    right = ((np.trace(counts, axis1=1, axis2=2) + _RIGHT_PRIOR) / whole)[:, None, None]
    even = np.where(np.eye(classes, dtype=bool), right, (1 - right) / (classes - 1))
    counted = (counts + _ROW_PRIOR) / (counts.sum(2, keepdims=True) + _ROW_PRIOR * classes)
    prior = belief.sum(0) + _PRIOR
    return prior / prior.sum(), share * even + (1 - share) * counted


def worth_of_words(tables: Floats) -> Floats:
    """What saying a label adds to the log-odds of each, counted by how far the agent is from chance: (K, L, L)."""
    classes = tables.shape[1]
    right = np.trace(tables, axis1=1, axis2=2) / classes
    return np.asarray(np.maximum((right * classes - 1) / (classes - 1), 0.0)[:, None, None] * np.log(tables))


def log_odds(said: Voices, prior: Floats, worth: Floats) -> Floats:
    """The prior and all that was said put together: (N, L), up to what is the same for all labels."""
    return np.asarray(np.log(prior) + said.added(worth))
