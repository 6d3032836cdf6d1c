"""The mean over peers without pairs, where S is fixed: a sum over peers needs only how many said what.

With M[n, l] the number of peers that say l on task n, the sum over peers of X^T M G is X^T M (sum of G): one
reference in place of K - 1. Agents that left out the same tasks form a group; two groups share one set of
common tasks, so the cost is agents x tasks x groups. Labels are scored on integers to the last division.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from verax import kernels
from verax.kernels import Engine, Floats, Ints, Labels
from verax.plan import Plan
from verax.public import Public
from verax.statistic import Alike, Look, Part, Side, Statistic

_LARGEST = 2**62
Mask = npt.NDArray[np.bool_]


@dataclass
class Together(Statistic):
    """Labels beside the labels of all peers together, on tasks that everybody answered.

    How often each agent says each label (`held`) and all peers together do (`every`), and what each agent's labels are
    worth beside them: `own`, <S, C> as an integer, or the counts themselves (`cells`) where S is not of 0 and 1.
    `same`: the agents are among the peers. `said` (N, L), how many say what on every task, is known in one batch only.
    """

    axes: ClassVar[dict[str, str]] = {"held": "kl", "every": "l", "own": "k", "cells": "kll"}
    tasks: int
    held: Ints
    every: Ints
    own: Ints
    cells: Ints | None
    same: bool = True
    said: Ints | None = field(default=None, repr=False)
    peers: bool = True

    @property
    def together(self) -> bool:
        return True

    @classmethod
    def of(cls, side: Side, plan: Plan, *, keep: bool = False) -> Together:
        """Everybody beside everybody, of one batch without abstentions; `keep` what a look at the batch needs again."""
        labels = side.reports.labels
        said, held = kernels.tallies(labels, len(side.reports.classes), plan.engine)
        found = cls._of_labels(labels, said, held.sum(0), held, plan, same=True)
        found.said = said if keep else None
        return found

    @classmethod
    def _of_labels(cls, labels: Labels, said: Ints, every: Ints, held: Ints, plan: Plan, *, same: bool) -> Together:
        matrix, size = plan.matrix, said.shape[1]
        assert matrix is not None
        own, cells = np.zeros(len(labels), dtype=np.int64), None
        if plan.binary_matrix:
            weight = said if plan.equal_labels else said @ matrix.T.astype(np.int64)
            own = kernels.weighed(labels, weight, plan.engine)
        else:
            columns = said.T.astype(np.float64)
            cells = np.array([[np.bincount(row, each, size) for each in columns] for row in labels])
            cells = cells.reshape(len(labels), size, size).transpose(0, 2, 1).astype(np.int64)
        return cls(len(said), held, every, own, cells, same)

    def add(self, other: Self) -> None:
        self.tasks += other.tasks
        self.held, self.every, self.own = self.held + other.held, self.every + other.every, self.own + other.own
        if self.cells is not None and other.cells is not None:
            self.cells = self.cells + other.cells

    @property
    def rest(self) -> Ints:
        """How often each agent's peers together say each label: (K, L)."""
        return np.asarray(self.every - self.held if self.same else np.broadcast_to(self.every, self.held.shape))

    def excess(self, plan: Plan) -> npt.NDArray[Any]:
        """<S, n C - a b^T> of every agent, summed over its peers; an integer where S has only 0 and 1."""
        n, matrix = self.tasks, plan.matrix
        assert matrix is not None
        if n < 2:
            return np.zeros(len(self.held))
        if self.cells is None:
            whole = matrix.astype(np.int64)
            own = self.own - self.held @ np.diagonal(whole) if self.same else self.own
            return _excess_of_sums(n, own, self.held if plan.equal_labels else self.held @ whole, self.rest)
        s, each = matrix.astype(np.float64), zip(self.cells, self.held, self.rest, strict=True)
        return np.array([_excess_of_cells(n, c - np.diag(a) if self.same else c, a, r, s) for c, a, r in each])

    def parts(self, plan: Plan, answered: Ints, squares: Floats | None) -> Sequence[Part | None]:
        n, peers = self.tasks, len(self.held) - 1
        if n < 2 or not peers:
            return [None] * len(self.held)
        value = np.asarray(self.excess(plan) / (n - 1) / n, dtype=np.float64)
        error = np.full(len(value), math.nan) if squares is None else np.sqrt(squares) / n
        return Alike(value / peers, error / peers, n, peers)

    def look(self, plan: Plan) -> Spread | None:
        if self.tasks < 2 or plan.matrix is None:
            return None
        share, shift = kernels.centre(self.tasks, self.held, self.rest, plan.matrix, self.same)
        mean = (self.excess(plan) / self.tasks).astype(np.float64) / self.tasks
        return Spread(share, shift, mean, plan, self.said)


@dataclass(frozen=True)
class Spread(Look):
    """psi = weight[n, k] + shift[k] - share . said[n], and its mean over all tasks."""

    share: Floats
    shift: Floats
    mean: Floats
    plan: Plan
    said: Ints | None = None

    def terms(self, labels: Labels) -> tuple[Labels, Floats, Floats, Floats, Floats]:
        """What psi is made of on these tasks."""
        matrix = self.plan.matrix
        assert matrix is not None
        said = kernels.tallies(labels, len(matrix), self.plan.engine)[0] if self.said is None else self.said
        counted = said.astype(np.float64)
        weight = counted if self.plan.equal_labels else counted @ matrix.astype(np.float64).T
        return labels, weight, counted, self.share, self.shift

    def squares(self, side: Side) -> Floats:
        labels = side.reports.labels
        total, square = kernels.spread(*self.terms(labels), self.plan.engine)
        n = labels.shape[1]
        return np.asarray(square if self.said is not None else square + n * (total / n - self.mean) ** 2)


def _excess_of_sums(n: int, own: Ints, paid: Ints, rest: Ints) -> npt.NDArray[np.generic]:
    """n <S, C> - (a S) b for every agent, C and b summed over its peers: integers, of any size they need."""
    if n * (n + int(rest.max(initial=0)) * rest.shape[1]) > _LARGEST:
        own, paid, rest = own.astype(object), paid.astype(object), rest.astype(object)
    return np.asarray(n * own - np.einsum("kl,kl->k", paid, rest))


def _excess_of_cells(n: int, counts: Ints, held: Ints, rest: Ints, matrix: npt.NDArray[Any]) -> float:
    """The same of one agent for any S, from its counts beside all peers together: one exact sum."""
    return math.fsum(((n * counts - np.outer(held, rest)) * matrix).ravel())


def beside_group(counts: Ints, plan: Plan) -> float:
    """The sum of what an agent scores beside peers who answered the same tasks, from counts (J, L, L)."""
    n, every = int(counts[0].sum()), counts.sum(0)
    one = Together(n, counts[0].sum(1)[None], every.sum(0), np.zeros(1, dtype=np.int64), every[None], same=False)
    if plan.binary_matrix and plan.matrix is not None:
        one.own, one.cells = (every * plan.matrix.astype(np.int64)).sum(keepdims=True)[0], None
    return float((one.excess(plan) / max(n - 1, 1) / n)[0])


# One batch, with abstentions or a public signal


def mean_over_peers(side: Side, plan: Plan) -> Sequence[Part | None] | None:
    """Every agent scored against all others; None where pairs must be looked at one by one."""
    if not plan.pools_peers or side.references is not None or (side.reports.sparse and plan.rule.counts_only):
        return None
    labels, tasks = side.reports.labels, len(side.reports.tasks)
    masks, group = _groups_of_gaps(labels)
    if len(masks) > groups_worth(len(labels)):
        return None
    if len(masks) == 1 and masks[0].all() and plan.rule.counts_only and side.signal.kind is None and tasks > 1:
        whole = Together.of(side, plan, keep=True)
        look = whole.look(plan)
        return whole.parts(plan, np.empty(0, dtype=np.int64), None if look is None else look.squares(side))
    found: list[Part | None] = [None] * len(labels)
    for g, mask in enumerate(masks):
        members, answered = np.nonzero(group == g)[0], int(mask.sum())
        beside = list(_beside_groups(side, plan, g, masks, group))
        references = sum(b.peers for b in beside)
        if not references:
            continue
        for chosen in _tiles_of(members, tasks, len(beside), plan.engine):
            values, stderr = _put_together(beside, chosen, tasks)
            for i, value, error in zip(chosen.tolist(), values, stderr.tolist(), strict=True):
                found[i] = Part(value / references, error / references, answered, references)
    return found


def groups_worth(agents: int) -> int:
    """As many groups as still cost less than all pairs."""
    return max(1, agents // 4)


def _groups_of_gaps(labels: Labels) -> tuple[Mask, Ints]:
    """The distinct sets of tasks that agents answered, and which one each agent has."""
    if not labels.size or labels.min() >= 0:
        return np.ones((1, labels.shape[1]), dtype=bool), np.zeros(len(labels), dtype=np.int64)
    packed, group = np.unique(np.packbits(labels >= 0, axis=1), axis=0, return_inverse=True)
    return np.unpackbits(packed, axis=1, count=labels.shape[1]).astype(bool), group.reshape(-1)


def _tiles_of(members: Ints, tasks: int, others: int, engine: Engine) -> Iterator[Ints]:
    """Agents by the handful, so that what is kept a task fits; all at once where nothing is."""
    step = len(members) if others == 1 else max(1, engine.max_bytes // (32 * max(tasks, 1)))
    return (members[i : i + step] for i in range(0, len(members), step))


def _beside_groups(side: Side, plan: Plan, g: int, masks: Mask, group: Ints) -> Iterator[_Labels | _Rows]:
    """What group g is scored against: each group's peers on the tasks that both answered."""
    for h, mask in enumerate(masks):
        common = masks[g] & mask
        peers = group == h
        if common.sum() < 2 or (g == h and peers.sum() < 2):
            continue
        signal = side.signal.take(common)
        if signal.rank >= common.sum():
            continue
        kind = _Labels if plan.rule.counts_only and signal.features is None else _Rows
        yield kind(side, signal, plan, common, peers, g == h)


def _put_together(beside: list[_Labels | _Rows], chosen: Ints, tasks: int) -> tuple[list[float], Floats]:
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


def _on_common(labels: npt.NDArray[Any], common: Mask) -> npt.NDArray[Any]:
    return labels if common.all() else labels[:, common]


class _Labels:
    """A group's labels beside peers' labels on common tasks, stratum by stratum."""

    def __init__(self, side: Side, signal: Public, plan: Plan, common: Mask, peers: Mask, same: bool) -> None:
        self.common, self.tasks, self.same, self.plan = common, int(common.sum()), same, plan
        self.peers = int(peers.sum()) - same
        self.labels = _on_common(side.reports.labels, common)
        theirs, size = self.labels if peers.all() else self.labels[peers], len(side.reports.classes)
        strata = [slice(None)] if signal.strata is None else _members_of_strata(signal.strata)
        self.strata = [(at, *kernels.tallies(theirs[:, at], size, plan.engine)) for at in strata]

    def _each_stratum(self, chosen: Ints) -> Iterator[tuple[Any, Labels, Together]]:
        """The chosen agents beside the peers, with who said what kept."""
        mine = self.labels if len(chosen) == len(self.labels) else self.labels[chosen]
        for at, said, by_peer in self.strata:
            labels = mine if isinstance(at, slice) else mine[:, at]
            all_of_them = self.same and len(by_peer) == len(labels)
            held = by_peer if all_of_them else kernels.tallies(labels, said.shape[1], self.plan.engine)[1]
            one = Together._of_labels(labels, said, by_peer.sum(0), held, self.plan, same=self.same)
            one.said = said
            yield at, labels, one

    def _values_of(self, terms: list[npt.NDArray[Any]]) -> list[float]:
        if len(terms) == 1:
            return [float(x) for x in terms[0] / self.tasks]
        return [math.fsum(column) / self.tasks for column in zip(*terms, strict=True)]

    def scored(self, chosen: Ints) -> tuple[list[float], Floats]:
        """The sum over the peers of every chosen agent's score, and over tasks of (psi - mean psi)^2."""
        total, square, parts, terms = np.zeros(len(chosen)), np.zeros(len(chosen)), [], []
        for _, labels, one in self._each_stratum(chosen):
            terms.append(one.excess(self.plan) / max(one.tasks - 1, 1))
            look = one.look(self.plan)
            if look is not None:
                part, within = kernels.spread(*look.terms(labels), self.plan.engine)
                parts.append((one.tasks, part))
                total += part
                square += within
        if len(self.strata) == 1:
            return self._values_of(terms), square
        mean, rest = total / self.tasks, self.tasks - sum(n for n, _ in parts)
        between = sum(n * (part / n - mean) ** 2 for n, part in parts) + rest * mean**2
        return self._values_of(terms), np.asarray(square + between)

    def influence(self, chosen: Ints) -> tuple[list[float], Floats]:
        """The same with psi of every common task, summed over the peers, in place of its squares."""
        psi, terms = np.zeros((len(chosen), self.tasks)), []
        for at, labels, one in self._each_stratum(chosen):
            terms.append(one.excess(self.plan) / max(one.tasks - 1, 1))
            look = one.look(self.plan)
            if look is not None:
                psi[:, at] = kernels.influence(*look.terms(labels), self.plan.engine)
        return self._values_of(terms), psi


def _members_of_strata(strata: Ints) -> list[Any]:
    order = np.argsort(strata, kind="stable")
    return [*np.split(order, np.nonzero(np.diff(strata[order]))[0] + 1)]


class _Rows:
    """A group's rows as scored (or one-hot labels beside features) beside the sum of peers' labels."""

    def __init__(self, side: Side, signal: Public, plan: Plan, common: Mask, peers: Mask, same: bool) -> None:
        self.common, self.tasks, self.same, self.signal, self.plan = common, int(common.sum()), same, signal, plan
        self.peers = int(peers.sum()) - same
        self.reports = side.reports
        theirs = _on_common(self.reports.labels[peers], common)
        self.identity = np.eye(len(self.reports.classes))
        said, _ = kernels.tallies(theirs, len(self.identity), plan.engine)
        self.rest = signal.residual(said.astype(np.float64))

    def _psi_of(self, chosen: Ints) -> Floats:
        """psi of some agents (I, N): what is public taken out of all their columns in one product."""
        labels = _on_common(self.reports.labels[chosen], self.common)
        own = self.identity[labels]
        plain = self.plan.rule.counts_only and self.plan.equal_labels
        said = self.signal.residuals(own) if self.same or plain else None
        mine = said if plain and said is not None else self.signal.residuals(self._rows_of(chosen, labels))
        theirs = self.rest if said is None or not self.same else self.rest - said
        return np.asarray((mine * theirs).sum(2))

    def _rows_of(self, chosen: Ints, labels: Labels) -> Floats:
        if self.plan.rule.counts_only:
            assert self.plan.matrix is not None
            return np.asarray(self.plan.matrix.astype(np.float64)[labels])
        assert self.reports.rows is not None
        p = _on_common(self.reports.rows[chosen], self.common)
        return self.plan.rule.scored(p.reshape(-1, p.shape[2])).reshape(p.shape)

    def scored(self, chosen: Ints) -> tuple[list[float], Floats]:
        """The sum over the peers of every chosen agent's score, and over tasks of (psi - mean psi)^2."""
        found = [(float(self.signal.weights @ psi), float(self.tasks * np.var(psi))) for psi in self._each_psi(chosen)]
        return [value for value, _ in found], np.array([square for _, square in found])

    def influence(self, chosen: Ints) -> tuple[list[float], Floats]:
        """The same with psi of every common task, summed over the peers, in place of its squares."""
        psi = np.stack(list(self._each_psi(chosen)))
        return (psi @ self.signal.weights).tolist(), psi

    def _each_psi(self, chosen: Ints) -> Iterator[Floats]:
        step = max(1, self.plan.engine.max_bytes // (64 * self.tasks * len(self.identity)))
        return (psi for i in range(0, len(chosen), step) for psi in self._psi_of(chosen[i : i + step]))
