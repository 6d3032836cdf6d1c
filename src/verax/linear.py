"""The mean over peers without pairs, where S is fixed: a sum over peers needs only how many said what.

With M[n, l] the number of peers that say l on task n, the sum over peers of X^T M G is X^T M (sum of G): one
reference in place of K - 1. Agents that left out the same tasks form a group; two groups share one set of
common tasks, so the cost is agents x tasks x groups. Labels are scored on integers to the last division.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from verax import kernels
from verax.joint import Public
from verax.kernels import Engine, Floats, Ints, Labels
from verax.pairs import Part, Plan
from verax.reports import Reports

_LARGEST = 2**62


def applies(plan: Plan) -> bool:
    """Whether a mechanism is a mean over peers with a fixed S."""
    if plan.over != "mean" or plan.draws is not None or plan.rule.own:
        return False
    return plan.matrix is not None if plan.rule.counts_only else plan.rule.name in ("ce", "brier")


def mean_over_peers(reports: Reports, signal: Public, plan: Plan) -> list[Part | None] | None:
    """Every agent scored against all others; None where pairs must be looked at one by one.

    >>> from verax.mechanisms import Options, prepare
    >>> ready = prepare(Reports.of(labels=[[0, 1, 0, 1], [0, 1, 1, 1], [0, 0, 0, 0]]), None, None, Options())
    >>> [round(part.score, 4) for part in mean_over_peers(ready.reports, ready.signal, ready.plan)]
    [0.1667, 0.1667, 0.0]
    """
    if not applies(plan):
        return None
    masks, group = _groups(reports.labels)
    if len(masks) > _groups_worth(len(reports.agents)):
        return None
    found: list[Part | None] = [None] * len(reports.agents)
    for g, mask in enumerate(masks):
        members, answered = np.nonzero(group == g)[0], int(mask.sum())
        beside = list(_beside(reports, signal, plan, g, masks, group))
        references = sum(b.peers for b in beside)
        if not references:
            continue
        for chosen in _tiles(members, len(reports.tasks), len(beside), plan.engine):
            values, stderr = _together(beside, chosen, len(reports.tasks))
            for i, value, error in zip(chosen.tolist(), values, stderr.tolist(), strict=True):
                found[i] = Part(value / references, error / references, answered, references)
    return found


def _groups_worth(agents: int) -> int:
    """As many groups as still cost less than all pairs."""
    return max(1, agents // 4)


def _groups(labels: Labels) -> tuple[npt.NDArray[np.bool_], Ints]:
    """The distinct sets of tasks that agents answered, and which one each agent has."""
    if not labels.size or labels.min() >= 0:
        return np.ones((1, labels.shape[1]), dtype=bool), np.zeros(len(labels), dtype=np.int64)
    packed, group = np.unique(np.packbits(labels >= 0, axis=1), axis=0, return_inverse=True)
    return np.unpackbits(packed, axis=1, count=labels.shape[1]).astype(bool), group.reshape(-1)


def _tiles(members: Ints, tasks: int, others: int, engine: Engine) -> Iterator[Ints]:
    """Agents by the handful, so that what is kept a task fits; all at once where nothing is."""
    step = len(members) if others == 1 else max(1, engine.max_bytes // (32 * max(tasks, 1)))
    return (members[i : i + step] for i in range(0, len(members), step))


def _beside(
    reports: Reports, signal: Public, plan: Plan, g: int, masks: npt.NDArray[np.bool_], group: Ints
) -> Iterator[_Labels | _Rows]:
    """What group g is scored against: each group's peers on the tasks that both answered."""
    for h, mask in enumerate(masks):
        common = masks[g] & mask
        peers = group == h
        if common.sum() < 2 or (g == h and peers.sum() < 2) or signal.take(common).rank >= common.sum():
            continue
        rows = not plan.rule.counts_only or signal.features is not None
        kind = _Rows if rows else _Labels
        yield kind(reports, signal.take(common), plan, common, peers, g == h)


def _together(beside: list[_Labels | _Rows], chosen: Ints, tasks: int) -> tuple[list[float], Floats]:
    """Sums over all peers of the scores, and sqrt of the sum over tasks of phi^2, phi over all groups."""
    if len(beside) == 1:
        values, squares = beside[0].scored(chosen)
        return values, np.sqrt(squares) / beside[0].tasks
    found, phi = [], np.zeros((len(chosen), tasks))
    for b in beside:
        values, psi = b.influence(chosen)
        found.append(values)
        phi[:, b.common] += (psi - psi.mean(1, keepdims=True)) / b.tasks
    return [math.fsum(column) for column in zip(*found, strict=True)], np.sqrt((phi**2).sum(1))


def _all(labels: npt.NDArray[np.generic], common: npt.NDArray[np.bool_]) -> npt.NDArray[np.generic]:
    return labels if common.all() else labels[:, common]


@dataclass
class _Stratum:
    """The tasks of one stratum: who said what on each, and how often each agent and all of them did."""

    at: slice | Ints
    said: Ints
    weight: npt.NDArray[np.generic]
    held: Ints
    all: Ints


class _Labels:
    """A group's labels beside peers' labels on common tasks, stratum by stratum."""

    def __init__(
        self, reports: Reports, signal: Public, plan: Plan, common: npt.NDArray[np.bool_],
        peers: npt.NDArray[np.bool_], same: bool,
    ) -> None:  # fmt: skip
        assert plan.matrix is not None
        self.common, self.tasks, self.same, self.engine = common, int(common.sum()), same, plan.engine
        self.peers = int(peers.sum()) - same
        self.exact = bool(np.isin(plan.matrix, (0, 1)).all())
        self.matrix = plan.matrix.astype(np.int64 if self.exact else np.float64)
        self.labels = np.asarray(_all(reports.labels, common))
        theirs = self.labels if peers.all() else self.labels[peers]
        self.strata = []
        for at in _strata(signal):
            said, by = kernels.tallies(theirs[:, at], len(self.matrix), self.engine)
            held = by if peers.all() else kernels.tallies(self.labels[:, at], len(self.matrix), self.engine)[1]
            self.strata.append(_Stratum(at, said, kernels.times(said, self.matrix.T), held, by.sum(0)))

    def _values(self, chosen: Ints) -> list[float]:
        """The sum over the peers of what each chosen agent scores beside them."""
        terms = [self._excess(s, chosen) / max(s.said.shape[0] - 1, 1) for s in self.strata]
        if len(terms) == 1:
            return [float(x) for x in terms[0] / self.tasks]
        return [math.fsum(column) / self.tasks for column in zip(*terms, strict=True)]

    def _excess(self, s: _Stratum, chosen: Ints) -> npt.NDArray[np.generic]:
        """<S, n C - a b^T> summed over the peers, an integer where S has only 0 and 1."""
        n, held = len(s.said), s.held[chosen]
        if n < 2:
            return np.zeros(len(chosen))
        rest = s.all - held if self.same else np.broadcast_to(s.all, held.shape)
        if not self.exact:
            return np.array([self._cells(s, i, a, r) for i, a, r in zip(chosen.tolist(), held, rest, strict=True)])
        own = kernels.weighed(self._of(s, chosen), np.asarray(s.weight, dtype=np.int64), self.engine)
        if self.same:
            own = own - held @ np.diagonal(self.matrix)
        return excess(n, own, held, rest, self.matrix)

    def _cells(self, s: _Stratum, i: int, held: Ints, rest: Ints) -> float:
        """The same for any S: the counts of all peers together, cell by cell, then one exact sum."""
        mine = self.labels[i, s.at]
        size = len(self.matrix)
        counts = np.stack([np.bincount(mine, said, size) for said in s.said.T.astype(np.float64)], 1).astype(np.int64)
        if self.same:
            counts -= np.diag(held)
        return excess_of_cells(len(s.said), counts, held, rest, self.matrix)

    def _of(self, s: _Stratum, chosen: Ints) -> Labels:
        mine = self.labels if len(chosen) == len(self.labels) else self.labels[chosen]
        return mine if isinstance(s.at, slice) else mine[:, s.at]

    def _terms(self, s: _Stratum, chosen: Ints) -> tuple[Labels, Floats, Floats, Floats, Floats]:
        """psi = weight[n, k] + shift[k] - share . said[n], with every mean over the stratum taken out."""
        held = s.held[chosen]
        rest = s.all - held if self.same else np.broadcast_to(s.all, held.shape)
        share, shift = kernels.centre(len(s.said), held, rest, self.matrix, self.same)
        said = s.said.astype(np.float64)
        weight = said if s.weight is s.said else s.weight.astype(np.float64)
        return self._of(s, chosen), weight, said, share, shift

    def scored(self, chosen: Ints) -> tuple[list[float], Floats]:
        """The sum over the peers of every chosen agent's score, and over tasks of (psi - mean psi)^2."""
        return self._values(chosen), self._squares(chosen)

    def _squares(self, chosen: Ints) -> Floats:
        total, square, parts = np.zeros(len(chosen)), np.zeros(len(chosen)), []
        for s in self.strata:
            if len(s.said) > 1:
                part, within = kernels.spread(*self._terms(s, chosen), self.engine)
                parts.append((len(s.said), part))
                total += part
                square += within
        if len(self.strata) == 1:
            return square
        mean, rest = total / self.tasks, self.tasks - sum(n for n, _ in parts)
        return np.asarray(square + sum(n * (part / n - mean) ** 2 for n, part in parts) + rest * mean**2)

    def influence(self, chosen: Ints) -> tuple[list[float], Floats]:
        """The same with psi of every common task, summed over the peers, in place of its squares."""
        psi = np.zeros((len(chosen), self.tasks))
        for s in self.strata:
            if len(s.said) > 1:
                psi[:, s.at] = kernels.influence(*self._terms(s, chosen), self.engine)
        return self._values(chosen), psi


def excess(n: int, own: Ints, held: Ints, rest: Ints, matrix: npt.NDArray[Any]) -> npt.NDArray[np.generic]:
    """<S, n C - a b^T> for every agent, C and b summed over its peers: integers, of any size they need."""
    if n * (n + int(rest.max(initial=0)) * len(matrix)) > _LARGEST:
        own, held, rest = own.astype(object), held.astype(object), rest.astype(object)
    return np.asarray(n * own - np.einsum("kl,kl->k", kernels.times(held, matrix), rest))


def excess_of_cells(n: int, counts: Ints, held: Ints, rest: Ints, matrix: npt.NDArray[Any]) -> float:
    """The same of one agent for any S, from its counts beside all peers together: one exact sum."""
    return math.fsum(((n * counts - np.outer(held, rest)) * matrix).ravel())


def _strata(signal: Public) -> list[slice | Ints]:
    if signal.strata is None:
        return [slice(None)]
    order = np.argsort(signal.strata, kind="stable")
    return [*np.split(order, np.nonzero(np.diff(signal.strata[order]))[0] + 1)]


class _Rows:
    """A group's rows (log p, 2p, or one-hot labels beside features) beside the sum of peers' labels."""

    def __init__(
        self, reports: Reports, signal: Public, plan: Plan, common: npt.NDArray[np.bool_],
        peers: npt.NDArray[np.bool_], same: bool,
    ) -> None:  # fmt: skip
        self.common, self.tasks, self.same, self.signal, self.plan = common, int(common.sum()), same, signal, plan
        self.peers = int(peers.sum()) - same
        self.reports = reports
        theirs = np.asarray(_all(reports.labels[peers], common))
        self.identity = np.eye(len(reports.classes))
        said, _ = kernels.tallies(theirs, len(reports.classes), plan.engine)
        self.rest = signal.residual(said.astype(np.float64))

    def _psi(self, chosen: Ints) -> Floats:
        """psi of some agents (I, N): what is public taken out of all their columns in one product."""
        labels = np.asarray(_all(self.reports.labels[chosen], self.common))
        own = self.identity[labels]
        plain = self.plan.rule.counts_only and np.array_equal(self.plan.matrix, self.identity)  # type: ignore[arg-type]
        said = self._left(own) if self.same or plain else None
        mine = said if plain and said is not None else self._left(self._rows(chosen, labels))
        theirs = self.rest if said is None or not self.same else self.rest - said
        return np.asarray((mine * theirs).sum(2))

    def _left(self, tables: Floats) -> Floats:
        """The residuals of tables (I, N, L)."""
        agents, tasks, classes = tables.shape
        side_by_side = tables.transpose(1, 0, 2).reshape(tasks, agents * classes)
        return self.signal.residual(side_by_side).reshape(tasks, agents, classes).transpose(1, 0, 2)

    def _rows(self, chosen: Ints, labels: Labels) -> Floats:
        if self.plan.rule.counts_only:
            assert self.plan.matrix is not None
            return np.asarray(self.plan.matrix.astype(np.float64)[labels])
        assert self.reports.probabilities is not None
        p = np.asarray(_all(self.reports.probabilities[chosen], self.common))
        if self.plan.rule.name == "brier":
            return np.asarray(2.0 * p)
        return np.asarray(np.log(np.maximum(p, self.plan.rule.floor or 0.0)))

    def scored(self, chosen: Ints) -> tuple[list[float], Floats]:
        """The sum over the peers of every chosen agent's score, and over tasks of (psi - mean psi)^2."""
        found = [(float(self.signal.weights @ psi), float(self.tasks * np.var(psi))) for psi in self._each(chosen)]
        return [value for value, _ in found], np.array([square for _, square in found])

    def influence(self, chosen: Ints) -> tuple[list[float], Floats]:
        """The same with psi of every common task, summed over the peers, in place of its squares."""
        psi = np.stack(list(self._each(chosen)))
        return (psi @ self.signal.weights).tolist(), psi

    def _each(self, chosen: Ints) -> Iterator[Floats]:
        step = max(1, self.plan.engine.max_bytes // (64 * self.tasks * len(self.identity)))
        return (psi for i in range(0, len(chosen), step) for psi in self._psi(chosen[i : i + step]))
