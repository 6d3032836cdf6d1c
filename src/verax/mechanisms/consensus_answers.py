"""The others' consensus where most agents left most tasks out: the belief of `consensus`, fitted answer by answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from verax.answers import Answers
from verax.kernels import Floats, Ints
from verax.mechanisms.consensus import (
    BY_ONE_NUMBER,
    UNIT,
    Consensus,
    fitted,
    folds_of,
    log_odds,
    places_by_appearance,
    tables_of,
    worth_of_words,
)
from verax.mechanisms.soft import Mixture, Mixtures, check_soft, normal, parts_on_answers
from verax.plan import Plan
from verax.statistic import Part, Side


def consensus_references(side: Side, plan: Plan) -> Mixtures:
    """Everybody's belief but one's own: from an array, or from answers that are held one by one."""
    return ConsensusAnswers(side, plan) if side.reports.sparse else Consensus(side, plan)


@dataclass(frozen=True, eq=False)
class Spoken:
    """Who says what, answer by answer."""

    answers: Answers
    classes: int

    @property
    def cell(self) -> Ints:
        """Who said which label, as one number an answer."""
        return np.asarray(self.answers.agent * np.int64(self.classes) + self.answers.label)

    def votes(self) -> Floats:
        """How often each label is said on each task: (N, L)."""
        cell = self.answers.task * np.int64(self.classes) + self.answers.label
        found = np.bincount(cell, minlength=self.answers.shape[1] * self.classes)
        return found.reshape(-1, self.classes).astype(np.float64)

    def counted(self, belief: Floats) -> Floats:
        """How often each agent says one label where another is believed, as far as it is: (K, L, L)."""
        cell, size = self.cell, self.answers.shape[0] * self.classes
        found = [np.bincount(cell, column[self.answers.task], size).reshape(-1, self.classes) for column in belief.T]
        return np.stack(found, axis=1)

    def added(self, worth: Floats) -> Floats:
        """What is worth (K, L, L) is said on each task, all agents together: (N, L)."""
        cell, tasks = self.cell, self.answers.shape[1]
        each = (np.ascontiguousarray(worth[:, k]).reshape(-1)[cell] for k in range(self.classes))
        return np.stack([np.bincount(self.answers.task, column, tasks) for column in each], axis=1)


class ConsensusAnswers(Mixtures):
    """Everybody's belief but one's own, fitted fold by fold."""

    def __init__(self, side: Side, plan: Plan) -> None:
        check_soft(plan, "the consensus")
        super().__init__(side, plan)
        self.fold = folds_of(self.side.reports.agents)

    def _beliefs(self, agents: Ints) -> Iterator[tuple[Ints, Answers, Floats]]:
        """Some agents of a fold at a time, their answers, and what everybody else believes on each: (answers, L)."""
        for fold in np.unique(self.fold[agents]):
            belief = _FoldsBelief.of(self.side.reports.answers, np.nonzero(self.fold == fold)[0],
                                     len(self.side.reports.classes))  # fmt: skip
            chosen = agents[self.fold[agents] == fold]
            own = self.side.reports.answers.only(chosen)
            yield chosen, own, belief.without(chosen, own)

    def ordered(self, i: int) -> Mixture:
        [(_, own, belief)] = self._beliefs(np.array([i]))
        soft = np.zeros((len(self.side.reports.tasks), belief.shape[1]))
        soft[own.task] = belief
        return Mixture(None, soft, len(self.fold) - 1)

    def parts_of(self, wanted: Ints) -> dict[int, Part | None]:
        found: dict[int, Part | None] = {}
        for agents, _, belief in self._beliefs(wanted):
            theirs = Side(self.side.reports.only(*agents.tolist()), self.side.signal, None)
            references = np.full(len(agents), len(self.fold) - 1)
            parts = parts_on_answers(theirs, self.plan, slice(0, len(agents)), belief, references)
            found |= zip(agents.tolist(), parts, strict=True)
        return found


@dataclass(frozen=True, eq=False)
class _FoldsBelief:
    """What all agents but one of a fold believe, whichever of the fold that is; labels are numbered by `place`."""

    place: Ints
    members: Ints
    outside: Floats  # log-odds (N, L) that agents outside the fold make
    words: Ints  # what each agent of the fold adds by saying a label, (members, L, L)
    inside: Ints  # what they add together, (N, L)
    answers: Ints  # how many answered each task

    @classmethod
    def of(cls, answers: Answers, members: Ints, classes: int) -> _FoldsBelief:
        """Fitted to the reports of agents outside the fold alone."""
        others = answers.only(np.delete(np.arange(answers.shape[0]), members))
        place = places_by_appearance(others.label, classes)
        outside, fold = (Spoken(some.relabelled(place), classes) for some in (others, answers.only(members)))
        belief = fitted(outside)
        prior, tables = tables_of(outside, belief, BY_ONE_NUMBER[-1])
        words = np.rint(worth_of_words(tables_of(fold, belief, BY_ONE_NUMBER[-1])[1]) * UNIT)
        return cls(
            place, members, log_odds(outside, prior, worth_of_words(tables)), words.astype(np.int64),
            fold.added(words).astype(np.int64), np.bincount(answers.task, minlength=answers.shape[1]),
        )  # fmt: skip

    def without(self, agents: Ints, own: Answers) -> Floats:
        """What everybody but its own agent believes on each of these answers: rows of zeros where nobody else did."""
        word = self.words[np.searchsorted(self.members, agents)[own.agent], :, self.place[own.label]]
        logs = self.outside[own.task] + (self.inside[own.task] - word) / UNIT
        belief = normal(np.exp(logs - logs.max(1, keepdims=True)))
        return np.where(self.answers[own.task][:, None] > 1, belief, 0.0)[:, self.place]
