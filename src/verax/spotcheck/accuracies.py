"""Everybody's accuracy on all tasks from the labels of a few, with what remains open of the order."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from itertools import pairwise as neighbours
from typing import Any

import numpy as np

from verax import wire
from verax.compare import Comparison, holm, rank_intervals
from verax.errors import InputError, OptionError
from verax.intervals import quantile
from verax.kernels import Floats, Ints
from verax.reports import Reports, as_reports, some
from verax.score import RankInterval
from verax.space import said_of_memory
from verax.spotcheck.belief import Belief
from verax.spotcheck.check import SpotCheck, by_name, check_size, digest_of
from verax.spotcheck.design import Mask, labels_alone, ticket
from verax.spotcheck.estimate import Means, drawn_together, means
from verax.spotcheck.order import differences

_MOST_PAIRED = 300  # agents, of which every two are compared; of more, only neighbours
_CELLS = 2**21  # of pairs x labels at a time


@dataclass(frozen=True)
class AgentAccuracy(wire.Document):
    """How often an agent is right on its `tasks`, of which `labels` are labelled; None where fewer than two are.

    `interval` holds at the confidence asked for, whatever the others' answers are worth. `likely`: what is likeliest
    from labels and answers together, without such a promise; the order is by it. `alone`: how many labels, evenly
    drawn, would have the same error without the others' answers.
    """

    agent: str
    accuracy: float | None
    stderr: float | None
    interval: tuple[float, float] | None
    likely: float | None
    labels: int
    tasks: int
    alone: int | None


@dataclass(frozen=True)
class Accuracies(wire.Document, format=wire.ACCURACIES):
    """Everybody's accuracy from `labels` of `tasks`, likeliest best first, and the differences of neighbours.

    A comparison's `tasks` are those that both answered, its `differ` those of them on which they differ, and its
    `decide` how many labels, drawn alike, would decide. Of `pairs` that were compared, `open` are undecided; `ranks`
    are what that leaves open, for all agents together. `worth`: how many evenly drawn labels the others' answers and
    the plan stand for, the median over agents.

    >>> from verax.demo import bundled
    >>> found = estimate_accuracies(bundled(), {"digit-0873": "1", "digit-0092": "5", "digit-1221": "7"})
    >>> found.labels, found.accuracies[0].agent
    (3, 'svm-800')
    """

    tasks: int
    labels: int
    confidence: float
    accuracies: tuple[AgentAccuracy, ...]
    neighbours: tuple[Comparison, ...]
    ranks: tuple[RankInterval, ...]
    pairs: int
    open: int
    worth: int | None
    warnings: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[AgentAccuracy]:
        return iter(self.accuracies)

    def __getitem__(self, agent: str) -> AgentAccuracy:
        return next(a for a in self if a.agent == agent)

    def to_frame(self) -> Any:
        """A row an agent, of whatever frame library is installed."""
        from verax.frames import to_frame

        names = ("agent", "accuracy", "stderr", "likely", "labels", "tasks", "alone")
        return to_frame({name: [getattr(a, name) for a in self] for name in names})


@said_of_memory("estimate fewer agents or tasks")
def estimate_accuracies(
    reports: Any, truth: Any, plan: SpotCheck | None = None, *, confidence: float = 0.95
) -> Accuracies:
    """Everybody's accuracy on all tasks, from the `truth` of those that a plan asked for.

    Without a plan the labelled tasks are taken as drawn evenly from all.

    >>> from verax import plan_labels
    >>> from verax.demo import bundled
    >>> reports = bundled()
    >>> plan = plan_labels(reports, 60, seed="spot")
    >>> right = dict(zip(reports.tasks, (reports.classes[k] for k in reports.truth), strict=True))
    >>> found = estimate_accuracies(reports, {asked.task: right[asked.task] for asked in plan.ask}, plan)
    >>> found["svm-800"].interval[0] < 0.95 < found["svm-800"].interval[1]
    True
    """
    if not 0.5 <= confidence < 1:
        raise OptionError(f"the confidence is {confidence:g}; give a number from 0.5 to below 1, such as 0.95")
    given = as_reports(reports).scorable()
    check_size(given)
    labelled = by_name(given.with_truth(truth))
    assert labelled.truth is not None
    if (labelled.truth >= 0).sum() < 2:
        raise InputError("only 1 task has a label; label two at least")
    if plan is None:
        places = np.nonzero(labelled.truth >= 0)[0]
        chances = np.full(len(places), len(places) / len(labelled.tasks))
        notes = ["labels are taken as drawn evenly from all tasks; if they were chosen otherwise, no error here holds"]
    else:
        if plan.reports != digest_of(given):
            raise InputError("the plan was made for other reports than these; give those, or plan the labels again")
        places, chances, notes = _drawn_by(plan, labelled)
    notes = [] if len(places) == len(labelled.tasks) else notes
    return Sample(labelled, Belief.of(labelled.labels), places, chances, confidence).accuracies(notes)


def _drawn_by(plan: SpotCheck, reports: Reports) -> tuple[Ints, Floats, list[str]]:
    """Where the labelled tasks stand, the chance that each had, and what there is to say about that."""
    assert reports.truth is not None
    place = {task: n for n, task in enumerate(reports.tasks)}
    labelled = {task for task, label in zip(reports.tasks, reports.truth.tolist(), strict=True) if label >= 0}
    strange = sorted(labelled - {a.task for a in plan.ask} - {*plan.known})
    if strange:
        raise InputError(
            f"labels of {some(strange)}, which the plan does not ask for: their chance is not known; leave them out, "
            "or give them when planning, as known"
        )
    lost = [task for task in plan.known if task not in labelled]
    if lost:
        raise InputError(f"the plan took the labels of {some(lost)} as known, and they are not given; give them too")
    done = [k for k, asked in enumerate(plan.ask) if asked.task in labelled]
    first, notes = plan.ask[: done[-1] + 1 if done else 0], []
    if len(done) < 2 and len(done) < reports.truth.size - len(plan.known):
        raise InputError(f"{len(done)} of {len(plan.ask)} tasks asked for are labelled; label two at least")
    chance = {asked.task: asked.chance for asked in first}
    if len(first) < len(plan.ask):
        after = plan.ask[len(first)]
        following = ticket(plan.seed, after.task, after.share)
        chance = {asked.task: min(1.0, asked.share * following) for asked in first}
    if len(done) < len(first):
        skipped = [asked.task for asked in first if asked.task not in labelled]
        notes.append(f"without a label in between: {some(skipped)}; taken as left out by chance")
        chance = {task: c * len(done) / len(first) for task, c in chance.items()}
    chance = {task: c for task, c in chance.items() if task in labelled} | dict.fromkeys(plan.known, 1.0)
    tasks = sorted(chance)
    return np.array([place[t] for t in tasks], dtype=np.int64), np.array([chance[t] for t in tasks]), notes


@dataclass(frozen=True, eq=False)
class Sample:
    """Reports with some tasks labelled, by chances that are known."""

    reports: Reports
    belief: Belief
    places: Ints
    chances: Floats
    confidence: float = 0.95

    @functools.cached_property
    def inside(self) -> Mask:
        """Who answered which labelled task: (K, n)."""
        return np.asarray(self.reports.labels[:, self.places] >= 0)

    @functools.cached_property
    def size(self) -> Ints:
        """How many tasks everybody answered: (K,)."""
        return np.asarray((self.reports.labels >= 0).sum(1))

    @functools.cached_property
    def guess(self) -> Floats:
        """What the others make of everybody's accuracy: (K,)."""
        return np.asarray(self.belief.right.sum(1) / np.maximum(self.size, 1))

    @functools.cached_property
    def found(self) -> Means:
        """Everybody's accuracy."""
        assert self.reports.truth is not None
        right = (self.reports.labels[:, self.places] == self.reports.truth[self.places]).astype(np.float64)
        guessed = self.belief.right[:, self.places]
        return means(right, guessed, self.inside, self.chances, self.guess, self.size)

    def accuracies(self, notes: Sequence[str] = ()) -> Accuracies:
        """The document."""
        found = self.found
        variance = np.where(np.isnan(found.stderr) | (self.size == 0), np.inf, found.stderr**2)
        likely = np.clip(drawn_together(self.guess, np.nan_to_num(found.value), variance), 0.0, 1.0)
        agents = [self._agent(k, float(likely[k]) if tasks else None) for k, tasks in enumerate(self.size)]
        agents.sort(key=lambda a: (a.likely is None, -(a.likely or 0.0), a.agent))
        untold = [a.agent for a in agents if a.accuracy is None]
        if untold:
            notes = [*notes, f"fewer than two labelled tasks of {some(untold)}: only what others' answers make likely"]
        names = [a.agent for a in agents]
        compared = self._compared(names)
        nearest = {frozenset(pair) for pair in neighbours(names)}
        spare = sorted(a.alone - a.labels for a in agents if a.alone is not None)
        return Accuracies(
            len(self.reports.tasks), len(self.places), self.confidence, tuple(agents),
            tuple(self._told_apart(c) for c in compared if {c.a, c.b} in nearest),
            rank_intervals(compared, names, self.confidence) if len(names) <= _MOST_PAIRED else (),
            len(compared), sum(not c.decided(self.confidence) for c in compared),
            spare[len(spare) // 2] if spare else None, (*self.reports.notes, *notes),
        )  # fmt: skip

    def _agent(self, k: int, likely: float | None) -> AgentAccuracy:
        agent, labels, tasks = self.reports.agents[k], int(self.found.drawn[k]), int(self.size[k])
        if math.isnan(self.found.value[k]) or not tasks:
            return AgentAccuracy(agent, None, None, None, likely, labels, tasks, None)
        value, error = min(1.0, max(0.0, float(self.found.value[k]))), float(self.found.stderr[k])
        reach = float(self.found.reach(quantile(self.confidence))[k])
        interval = max(0.0, value - reach), min(1.0, value + reach)
        spread = value * (1 - value) * tasks / max(tasks - 1, 1)
        alone = labels_alone(spread, error**2, tasks) if spread > 0 else None
        return AgentAccuracy(agent, value, error, interval, likely, labels, tasks, alone)

    def _compared(self, ranked: Sequence[str]) -> list[Comparison]:
        """The differences of all pairs, or of neighbours where agents are many; the better first."""
        place = {agent: k for k, agent in enumerate(self.reports.agents)}
        order = [place[agent] for agent in ranked]
        pairs = [*combinations(order, 2)] if len(order) <= _MOST_PAIRED else [*neighbours(order)]
        step = max(1, _CELLS // max(len(self.places), 1))
        seen = [c for k in range(0, len(pairs), step) for c in self._differences(np.array(pairs[k : k + step]))]
        z, made = quantile(self.confidence, len(seen)), []
        for one, p in zip(seen, holm([c.p_value for c in seen]), strict=True):
            decided = p <= 1 - self.confidence
            made.append(replace(one, adjusted=p, decide=None if decided else self._labels_to_decide(one, z)))
        return made

    def _labels_to_decide(self, one: Comparison, z: float) -> int | None:
        """As many as bring z errors down to the difference seen; all of them always would, were there any."""
        if not one.difference or not one.stderr:
            return None
        reached = min(abs(one.difference) / one.stderr, quantile(1 - max(one.p_value, 1e-15)))
        tasks = len(self.reports.tasks)
        here = len(self.places)
        return min(tasks, max(here + 1, math.ceil(tasks / (1 + (tasks / here - 1) * min(1.0, reached / z) ** 2))))

    def _differences(self, pairs: Ints) -> Iterator[Comparison]:
        """Comparisons of pairs (P, 2); how many tasks they share is not looked for yet."""
        agents, (a, b) = self.reports.agents, pairs.T
        found = differences(self.found, self.inside, self.chances, a, b, quantile(self.confidence))
        columns = (x.tolist() for x in (a, b, found.value, found.stderr, found.reach, found.p_value))
        for i, j, d, error, reach, p in zip(*columns, strict=True):
            if d < 0:
                i, j, d = j, i, -d
            interval = max(-1.0, d - reach), min(1.0, d + reach)
            yield Comparison(agents[i], agents[j], d, error, interval, float(p), float(p), 0, 0, None)

    def _told_apart(self, one: Comparison) -> Comparison:
        """The comparison with how many tasks both answered, and on how many of them they differ."""
        a, b = (self.reports.labels[self.reports.agents.index(name)] for name in (one.a, one.b))
        common = (a >= 0) & (b >= 0)
        return replace(one, tasks=int(common.sum()), differ=int((common & (a != b)).sum()))
