"""COPIES: near-duplicates, judged where an agent departs from what everybody else says.

Two good agents agree almost everywhere, so overall agreement tells nothing. Where one departs from
the plurality of everybody outside the pair, an honest other seldom follows; a copy does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from verax.audit.certificate import Certificate, quantile
from verax.kernels import Ints
from verax.reports import Reports

FEWEST = 50  # departures below which nothing is decided
# Of 30 public CIFAR-10 models the two most alike share 0.63 of their departures; a copy with a tenth of
# its labels changed shares 0.9.
SHARED = 0.75
_ROUNDS = 5


@dataclass(frozen=True)
class Side:
    """One agent's departures from everybody outside the pair, and the share of them its twin follows."""

    agent: int
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
    """Two agents, each seen from its own departures."""

    sides: tuple[Side, Side]

    def other(self, agent: int) -> int:
        """The one that is not `agent`."""
        return self.sides[self.sides[0].agent == agent].agent

    @property
    def closest(self) -> Side:
        """The side that shares most, counted sides first."""
        return max(self.sides, key=lambda s: (s.departures >= FEWEST, s.share))

    @property
    def copied(self) -> bool:
        """Whether either side surely follows the other."""
        return any(s.copied for s in self.sides)

    @property
    def apart(self) -> bool:
        """Whether neither side can be a copy."""
        return all(s.high < SHARED for s in self.sides)


def wilson(share: float, count: int, z: float) -> tuple[float, float]:
    """The Wilson interval of a share.

    >>> [round(x, 3) for x in wilson(0.9, 100, 1.96)]
    [0.826, 0.945]
    """
    if not count:
        return 0.0, 1.0
    centre = share + z**2 / (2 * count)
    reach = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return (centre - reach) / (1 + z**2 / count), (centre + reach) / (1 + z**2 / count)


def copies(reports: Reports, confidence: float) -> list[Certificate]:
    """COPIES: one certificate an agent; `fails` names the agents it duplicates."""
    if len(reports.agents) < 4:
        why = (
            f"{len(reports.agents)} agents: telling a copy from a good agent takes the plurality of two others at least"
        )
        return [Certificate("COPIES", agent, "not-applicable", None, None, None, why) for agent in reports.agents]
    group = np.arange(len(reports.agents))
    for _ in range(
        _ROUNDS
    ):  # found copies vote once in the next round, so that a ring cannot hide in its own plurality
        twins = _twins(reports, group, confidence)
        merged = _merged(group, twins)
        if (merged == group).all():
            break
        group = merged
    return [_certificate(reports, i, group, twins) for i in range(len(reports.agents))]


def _merged(group: Ints, twins: list[Twin]) -> Ints:
    merged = group.copy()
    for t in twins:
        if t.copied:
            merged[merged == merged[t.sides[1].agent]] = merged[t.sides[0].agent]
    return merged


def _twins(reports: Reports, group: Ints, confidence: float) -> list[Twin]:
    """Every pair, judged beside the plurality of the groups that neither belongs to."""
    labels = reports.labels.astype(np.int64)
    votes = {g: _votes(labels[group == g], len(reports.classes)) for g in np.unique(group).tolist()}
    total = sum(votes.values())
    agents = range(len(labels))
    z = quantile(confidence, len(labels) * (len(labels) - 1) // 2)
    found = []
    for i, j in combinations(agents, 2):
        outside = total - votes[group[i]] - (votes[group[j]] if group[i] != group[j] else 0.0)
        common = (labels[i] >= 0) & (labels[j] >= 0) & (outside.sum(1) > 0)
        found.append(_twin(i, j, labels[:, common], outside[common], z))
    return found


def _votes(labels: Ints, classes: int) -> Ints:
    """One vote a task for a group of copies: the label most of them give, 0 if nobody answers."""
    counts = np.zeros((labels.shape[1], classes), dtype=np.int64)
    for row in labels:
        counts[np.nonzero(row >= 0)[0], row[row >= 0]] += 1
    vote = np.zeros_like(counts)
    answered = counts.any(1)
    vote[answered, counts.argmax(1)[answered]] = 1
    return vote


def _twin(i: int, j: int, labels: Ints, outside: Ints, z: float) -> Twin:
    every, most, agree = np.arange(len(outside)), outside.max(1), labels[i] == labels[j]
    sides = []
    for a in (i, j):
        departs = outside[every, labels[a]] < most
        count = int(departs.sum())
        share = float(agree[departs].mean()) if count else 0.0
        sides.append(Side(a, count, share, *wilson(share, count, z)))
    return Twin((sides[0], sides[1]))


def _certificate(reports: Reports, i: int, group: Ints, twins: list[Twin]) -> Certificate:
    agent = reports.agents[i]
    mine = [(t, t.other(i)) for t in twins if i in (t.sides[0].agent, t.sides[1].agent)]
    same = [(t, j) for t, j in mine if group[i] == group[j]]
    if same:
        t, j = max(same, key=lambda x: x[0].closest.share)
        side, names = t.closest, [reports.agents[j] for _, j in same]
        why = (
            f"{side.share:.2f} of {side.departures} departures from everybody else are shared "
            f"with {reports.agents[j]!r}: a near-duplicate of {', '.join(map(repr, names))}; pay the group once"
        )
        return Certificate("COPIES", agent, "fails", None, (side.low, side.high), _witness(agent, names), why)
    t, j = max(mine, key=lambda x: (not x[0].apart, x[0].closest.share))
    side = t.closest
    interval = (side.low, side.high)
    own = next(s for s in t.sides if s.agent == i)
    if t.apart and own.departures >= FEWEST:
        why = f"no twin: at most {side.share:.2f} of departures from everybody else shared, with {reports.agents[j]!r}"
        return Certificate("COPIES", agent, "holds", None, interval, None, why)
    return Certificate("COPIES", agent, "undecided", None, interval, None, _too_few(reports, t, own, j))


def _witness(agent: str, names: list[str]) -> dict[str, str]:
    """A chain from the agent through its near-duplicates."""
    return dict(zip([agent, *names[:-1]], names, strict=True))


def _too_few(reports: Reports, t: Twin, own: Side, j: int) -> str:
    """What is missing: departures of its own, or of the twin it cannot be told from."""
    tasks = len(reports.tasks)
    side = own if t.apart else max(t.sides, key=lambda s: s.high)
    who = "it" if side is own else repr(reports.agents[j])
    seen = (
        f"{who} departs from everybody else on {side.departures} tasks beside {reports.agents[t.other(side.agent)]!r}"
    )
    if side.departures < FEWEST:
        need = math.ceil(tasks * FEWEST / max(side.departures, 1))
        return f"{seen}, sharing {side.share:.2f}: {FEWEST} are needed, about {need:,} tasks would decide"
    distance = max(abs(side.share - SHARED), 0.01)
    need = math.ceil(tasks * ((side.high - side.low) / 2 / distance) ** 2)
    return f"{seen}, sharing {side.share:.2f}, too near {SHARED} to call; about {need:,} tasks would decide"
