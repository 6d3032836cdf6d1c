"""Copies: which agents hand in one report under several names. What they are paid is decided elsewhere.

Reports that are the same to the last label are one voice before anything is counted. Two good agents agree almost
everywhere, so between voices overall agreement tells nothing; but where one departs from the clear plurality of
everybody outside the pair, an honest other seldom follows, and a copy does. In rounds, until nothing changes:

    votes      each group that seemed to be one in the round before has one vote a task, and so has each other voice
    nearest    of each voice, those that seem to share most of its departures, by one blocked product
    judged     these pairs, exactly, beside the votes of everybody outside them; every round from single voices again
    groups     who seems to share may be a ring; more than a third of all voices is none, but perhaps the honest ones
    copies     of a ring, those that surely share

Where rounds return to what they found before without coming to rest, only what all of them say is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from verax.intervals import least_share, quantile, wilson
from verax.kernels import Ints, Labels
from verax.reports import Reports

FEWEST = 50  # departures below which nothing is decided between reports that differ
# Of 30 public CIFAR-10 models the two most alike share 0.63 of their departures; a copy with a tenth of
# its labels changed shares 0.9.
SHARED = 0.75
# Where three quarters of all others say otherwise, at least now and then, so do two good agents.
AGREED = 0.9
CONFIDENCE = 0.95
_FEW = 10  # departures from which one seems to be a copy
_NEAREST = 3  # others that each voice is judged beside
_AGAINST = 3  # votes that a plurality has at least where two reports differ; where they do not, 2
_ROUNDS = 20
_CELLS = 2**27  # departures kept at a time
_ROWS = 1024
Mask = npt.NDArray[np.bool_]
Votes = npt.NDArray[np.int32]
Groups = tuple[tuple[str, ...], ...]  # of names


@dataclass(frozen=True)
class Side:
    """One voice's departures from everybody outside the pair, and the share of them its twin follows."""

    voice: int
    departures: int
    share: float
    low: float
    high: float

    @property
    def copied(self) -> bool:
        """Whether the twin surely follows."""
        return self.departures >= FEWEST and self.low > SHARED


@dataclass(frozen=True)
class Twin:
    """Two voices, each seen from its own departures."""

    sides: tuple[Side, Side]

    def other(self, voice: int) -> int:
        """The one that is not `voice`."""
        return self.sides[self.sides[0].voice == voice].voice

    @property
    def closest(self) -> Side:
        """The side that shares most, counted sides first."""
        return max(self.sides, key=lambda s: (s.departures >= FEWEST, s.share))

    @property
    def copied(self) -> bool:
        """Whether either side surely follows the other."""
        return any(s.copied for s in self.sides)

    @property
    def seems_copied(self) -> bool:
        """Whether either side follows the other as copies do, surely or not."""
        return self.copied or any(s.departures >= _FEW and s.share > SHARED for s in self.sides)

    @property
    def apart(self) -> bool:
        """Whether neither side can be a copy."""
        return all(s.high < SHARED for s in self.sides)


@dataclass(frozen=True)
class Found:
    """Who is a copy of whom, and what was seen: agents by their places in the reports, voices by their first agent.

    `group` holds the first agent of each one's group, `voice` the first that says the same; `twins` are the pairs of
    voices that were judged, `same` what voices of several agents depart in.
    """

    agents: tuple[str, ...]
    group: Ints
    voice: Ints
    twins: tuple[Twin, ...]
    same: Mapping[int, Side]

    def members(self, agent: int) -> list[int]:
        """The agents of its group."""
        return np.nonzero(self.group == self.group[agent])[0].tolist()

    @property
    def groups(self) -> Groups:
        """The groups of copies, by name."""
        found = (self.members(i) for i in np.unique(self.group).tolist())
        return tuple(sorted(tuple(sorted(self.agents[i] for i in group)) for group in found if len(group) > 1))


def find_copies(reports: Reports, confidence: float = CONFIDENCE) -> Found:
    """Which agents hand in one report under several names.

    >>> rng = np.random.default_rng(0)
    >>> honest = np.where(rng.random((5, 400)) < 0.7, 1, rng.integers(0, 4, (5, 400)))
    >>> find_copies(Reports.of(np.vstack([honest, honest[:1], honest[:1]]), agents=[*"abcdefg"])).groups
    (('a', 'f', 'g'),)
    """
    crowd = _Crowd(reports, confidence)
    voted, sure = [np.arange(len(crowd.places))], list[Ints]()
    while len(sure) < _ROUNDS:
        twins = crowd.judged(voted[-1])
        seeming = crowd.seeming(twins)
        sure.append(crowd.sure(twins, seeming))
        if before := [n for n, known in enumerate(voted) if np.array_equal(known, seeming)]:
            sure = sure[before[0] :]
            break
        voted.append(seeming)
    return crowd.found(_in_all(sure), twins)


class _Crowd:
    """The voices of some reports, and everything that is judged of them."""

    def __init__(self, reports: Reports, confidence: float) -> None:
        voice = voices(reports.labels)
        self.places, self.voice_of = np.unique(voice, return_inverse=True)
        self.labels = reports.labels if len(self.places) == len(voice) else reports.labels[self.places]
        self.reports, self.voice_of_agents, self.confidence = reports, voice, confidence
        self.pairs = len(voice) * (len(voice) - 1) // 2  # all that could have been looked at
        self.z = quantile(confidence, self.pairs)

    @cached_property
    def _sampled(self) -> tuple[Ints, npt.NDArray[np.int8]]:
        """The tasks that pairs are looked for on, all that fit, and +1 or -1 for each label of each, by its name."""
        joined = b"".join(hashlib.sha256(task.encode()).digest() for task in self.reports.tasks)
        digests = np.frombuffer(joined, dtype=np.uint8).reshape(-1, 32)
        tasks = np.arange(len(digests))
        if self.labels.size > _CELLS:
            tasks = np.argsort(np.ascontiguousarray(digests[:, :8]).view(">u8")[:, 0])
            tasks = tasks[: max(_ROWS, _CELLS // len(self.labels))]
        bits = np.unpackbits(digests[tasks], axis=1)
        return tasks, 2 * bits.astype(np.int8) - 1

    @cached_property
    def by_task(self) -> Labels:
        """The labels by numbers of their task alone, where that makes fewer."""
        return numbered_by_task(self.labels) if len(self.reports.classes) > len(self.labels) else self.labels

    def judged(self, group: Ints) -> list[Twin]:
        """Every voice beside its nearest, judged by the votes of the groups that neither belongs to."""
        votes = _Votes(self.by_task, group)
        return [self._twin(i, j, votes) for i, j in self._nearest(votes)]

    def _nearest(self, votes: _Votes) -> list[tuple[int, int]]:
        """Pairs that may share most departures: one sign a departure, and a product of signs for all pairs at once."""
        signed = self._signed_departures(votes)
        count = np.abs(signed).sum(1)
        found: set[tuple[int, int]] = set()
        for first in range(0, len(signed), _ROWS):
            rows = slice(first, first + _ROWS)
            fewer = np.maximum(np.minimum(count[rows, None], count), FEWEST)
            share = (signed[rows] @ signed.T) / fewer
            share[np.arange(len(share)), np.arange(first, first + len(share))] = -np.inf
            most = np.argsort(-share, axis=1, kind="stable")[:, : min(_NEAREST, len(signed) - 1)]
            found |= {(min(i, j), max(i, j)) for i, row in enumerate(most.tolist(), first) for j in row}
        return sorted(found)

    def _signed_departures(self, votes: _Votes) -> npt.NDArray[np.float32]:
        """Of every voice the signs of what it says where it departs: (V, N), or as many tasks as fit."""
        tasks, signs = self._sampled
        found = np.zeros((len(self.labels), len(tasks)), dtype=np.float32)
        for i, said in enumerate(self.labels[:, tasks]):
            departs = np.nonzero(votes.may_depart(self.by_task[i, tasks], tasks))[0]
            found[i, departs] = signs[departs, said[departs].astype(np.int64) % 256]
        return found

    def _twin(self, i: int, j: int, votes: _Votes) -> Twin:
        sides = (self._side(i, j, votes), self._side(j, i, votes))
        return Twin(sides)

    def _side(self, i: int, j: int, votes: _Votes) -> Side:
        """Voice i's departures from everybody but the two, where both answered, and the share that j follows."""
        tasks = votes.departures(i)
        tasks = tasks[self.labels[j, tasks] >= 0]
        mine, theirs = self.by_task[i, tasks], self.by_task[j, tasks]
        departs = _departs(votes.outside(tasks, i, j), mine, _AGAINST)
        count = int(departs.sum())
        share = float((mine == theirs)[departs].mean()) if count else 0.0
        return Side(i, count, share, *wilson(share, count, self.z))

    def seeming(self, twins: Sequence[Twin]) -> Ints:
        """The groups of voices that may be one ring's: neither too large for one, nor two that are not sure."""
        group = self._joined(t for t in twins if t.seems_copied)
        size = np.bincount(group, minlength=len(group))[group]
        ring = (size > 2) & (3 * size <= len(size))
        pair = (size == 2) & (len(size) >= 5)
        return self._joined(
            t for t in twins if (t.copied and pair[t.sides[0].voice]) or (t.seems_copied and ring[t.sides[0].voice])
        )

    def sure(self, twins: Sequence[Twin], seeming: Ints) -> Ints:
        """The groups within these that twins surely make."""
        return self._joined(t for t in twins if t.copied and len({*seeming[[s.voice for s in t.sides]].tolist()}) == 1)

    def _joined(self, twins: Iterable[Twin]) -> Ints:
        """Of each voice the first that twins link it with."""
        group = np.arange(len(self.places))
        for t in twins:
            one, other = sorted(group[[s.voice for s in t.sides]].tolist())
            group[group == other] = one
        return group

    def same(self, group: Ints) -> dict[int, Side]:
        """What each voice of several agents departs in; all of them follow, to the last label."""
        votes = _Votes(self.by_task, group)
        found = {}
        for v in np.nonzero(np.bincount(self.voice_of) > 1)[0].tolist():
            answered = np.nonzero(self.labels[v] >= 0)[0]
            departs = _departs(votes.outside(answered, v), self.by_task[v, answered], 2)
            count = int(departs.sum())
            found[v] = Side(v, count, 1.0, least_share(count, self.confidence, self.pairs), 1.0)
        return found

    def stands_out(self, voice: int) -> bool:
        """Whether equal reports are no chance even if they depart seldom: most others say otherwise too often."""
        mine = self.labels[voice]
        differ = (self.labels != mine) & (self.labels >= 0) & (mine >= 0)
        others = np.sort(np.delete(np.count_nonzero(differ, axis=1), voice))
        return len(others) > 1 and least_share(int(others[len(others) // 4]), self.confidence, self.pairs) > AGREED

    def found(self, group: Ints, twins: Iterable[Twin]) -> Found:
        """The same of agents; equal reports that a good agent may give stay apart."""
        same, size = self.same(group), np.bincount(group, minlength=len(group))[group]
        one = size > 1
        one[[v for v, side in same.items() if side.low > SHARED or self.stands_out(v)]] = True
        mine = np.where(one[self.voice_of], self.places[group][self.voice_of], np.arange(len(self.voice_of)))
        known = {int(self.places[v]): self._called(side) for v, side in same.items()}
        twins = (Twin((self._called(t.sides[0]), self._called(t.sides[1]))) for t in twins)
        return Found(self.reports.agents, mine, self.voice_of_agents, tuple(twins), known)

    def _called(self, side: Side) -> Side:
        return replace(side, voice=int(self.places[side.voice]))


class _Votes:
    """One vote a task for each group of voices: the label most of its voices give."""

    def __init__(self, labels: Labels, group: Ints) -> None:
        classes = int(labels.max(initial=0)) + 1
        self.labels, self.votes, self.group = labels, labels, group
        for g in np.nonzero(np.bincount(group) > 1)[0].tolist():
            members = np.nonzero(group == g)[0]
            said = _tallied(labels[members], classes)
            self.votes = self.votes.copy() if self.votes is labels else self.votes
            self.votes[members] = np.where(said.any(1), said.argmax(1), -1)
        self.total = _tallied(self.votes[np.unique(group)], classes)
        self.top = self.total.max(1, initial=0)
        self._departures: dict[int, Ints] = {}

    def outside(self, tasks: Ints, *voices: int) -> Votes:
        """How many votes each label has on these tasks, without those of these voices' groups: (tasks, L)."""
        left = self.total[tasks]
        for g in {int(self.group[v]) for v in voices}:
            said = self.votes[g, tasks]
            voted = np.nonzero(said >= 0)[0]
            left[voted, said[voted]] -= 1
        return left

    def may_depart(self, said: Labels, tasks: Ints) -> Mask:
        """Where what is said on these tasks may be a departure, whichever two groups' votes are left out."""
        own = np.where(said >= 0, self.total[tasks, said], self.top[tasks]) - 2
        return np.asarray((2 * own < self.top[tasks]) & (self.top[tasks] >= _AGAINST) & (said >= 0))

    def departures(self, voice: int) -> Ints:
        """The tasks on which a voice may depart."""
        if voice not in self._departures:
            every = np.arange(self.labels.shape[1])
            self._departures[voice] = np.nonzero(self.may_depart(self.labels[voice], every))[0]
        return self._departures[voice]


def voices(labels: Labels) -> Ints:
    """Of each agent the first that says the same of every task; who says nothing is alone.

    >>> voices(np.array([[0, 1], [1, 1], [0, 1], [-1, -1], [-1, -1]])).tolist()
    [0, 1, 0, 3, 4]
    """
    first: dict[bytes, int] = {}
    found = np.arange(len(labels))
    for i, row in enumerate(labels):
        if row.max(initial=-1) >= 0:
            found[i] = first.setdefault(hashlib.sha256(row.tobytes()).digest(), i)
    return found


def numbered_by_task(labels: Labels) -> Labels:
    """Labels (K, N) renumbered task by task, in their order: what is told within a task stays, and few numbers do.

    >>> numbered_by_task(np.array([[900, 7], [900, -1], [12, 5]])).tolist()
    [[1, 1], [1, -1], [0, 0]]
    """
    order = np.argsort(labels, axis=0, kind="stable")
    ordered = np.take_along_axis(labels, order, axis=0)
    steps = np.zeros(ordered.shape, np.int64)
    steps[1:] = (ordered[1:] != ordered[:-1]) & (ordered[:-1] >= 0)
    found = np.empty_like(steps)
    np.put_along_axis(found, order, steps.cumsum(0), axis=0)
    return np.where(labels < 0, -1, found).astype(labels.dtype)


def _departs(outside: Votes, said: Labels, fewest: int) -> Mask:
    """Where what is said has less than half the votes of the commonest label, which has so many at least."""
    most = outside.max(1, initial=0)
    return np.asarray((2 * outside[np.arange(len(outside)), said] < most) & (most >= fewest))


def _tallied(labels: Labels, classes: int) -> Votes:
    return np.stack([np.count_nonzero(labels == k, axis=0) for k in range(classes)], axis=1).astype(np.int32)


def _in_all(rounds: Sequence[Ints]) -> Ints:
    """Who is in one group in every round, called by the first."""
    pairs = np.unique(np.stack(rounds), axis=1, return_index=True, return_inverse=True)
    return np.asarray(pairs[1][pairs[2].reshape(-1)])
