"""Worth: what each label would earn an agent on each task, given its references.

A score that is linear in the report is sum_n <X(n, .), W(n, .)>, with X the agent's rows as scored
(one-hot labels, log p, 2p) and W = M G S^T, averaged over the references. So what any other report
would have earned needs no scoring again: it is W that decides which deviation pays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from verax import kernels
from verax.joint import Joint, signs
from verax.kernels import Floats, Ints, Labels
from verax.mechanisms.pairwise import pairs_with, references_of
from verax.public import Public
from verax.score import Prepared
from verax.statistic import Side, halves

Mask = npt.NDArray[np.bool_]
Parts = tuple[tuple[Mask, Public], ...]


@dataclass(frozen=True, eq=False)
class Worth:
    """One agent's tasks: the label it holds, its rows as scored, and what each entry is worth.

    `own` are the rows with the mean (or the public signal) of each part of the tasks taken out; `one_hot`: they are
    labels.
    """

    tasks: Ints
    held: Ints
    rows: Floats
    value: Floats
    parts: Parts
    own: Floats
    one_hot: bool

    def centred(self, columns: Floats) -> Floats:
        """The columns with the mean (or the public signal) of each part of the tasks taken out."""
        return np.asarray(_residuals(columns[None], self.parts)[0])

    def deviations(self, phi: Floats) -> Floats:
        """What each task adds, apart from the mean of its part: the parts are on different tasks."""
        result = phi - phi.mean(0)
        for mask, _ in self.parts if len(self.parts) > 1 else ():
            result[mask] = phi[mask] - phi[mask].mean(0)
        return np.asarray(result)

    @property
    def score(self) -> float:
        """The score these rows earn."""
        return float((self.rows * self.value).sum())

    @property
    def influence(self) -> Floats:
        """What each task adds to the score, apart from its mean."""
        return self.deviations((self.own * self.value).sum(1))

    def gains(self) -> tuple[Floats, Floats, Ints, int]:
        """What saying r while holding k would add, exactly, and its errors: (L, L); how often k is held; tasks."""
        size = self.value.shape[1]
        gain, stderr = np.zeros((size, size)), np.zeros((size, size))
        for k in np.unique(self.held):
            # a misreport swaps the held entry with another: this is what the swap is worth
            moved = np.where((self.held == k)[:, None], self.rows[:, [k]] - self.rows, 0.0)
            better = self.value - self.value[:, [k]]
            gain[k] = (moved * better).sum(0)
            apart = self.own[:, [k]] if self.one_hot else self.centred(moved)
            stderr[k] = np.sqrt((self.deviations(apart * better) ** 2).sum(0))
        return gain, stderr, np.bincount(self.held, minlength=size), len(self.held)

    def deltas(self) -> tuple[Floats, Floats, Ints, int]:
        """From one-hot worth, delta(k, l): the worth of l summed where k is held; its errors, and as `gains`."""
        size = self.value.shape[1]
        stderr = [np.sqrt((self.deviations(self.own[:, [k]] * self.value) ** 2).sum(0)) for k in range(size)]
        return self.own.T @ self.value, np.stack(stderr), np.bincount(self.held, minlength=size), len(self.held)


def _residuals(tables: Floats, parts: Parts) -> Floats:
    """What is left of tables (I, N, L) once each part's mean or public signal is taken out."""
    result = tables
    for mask, public in parts:
        if mask.all():
            return public.residuals(tables)
        result = tables.copy() if result is tables else result
        result[:, mask] = public.residuals(tables[:, mask])
    return result


@dataclass(frozen=True)
class _Block:
    """Tasks scored against one kind of reference, and their share of the score."""

    mask: Mask
    references: Labels  # none where they are put together in `soft`
    share: float
    weights: Floats  # of the references, 1 together
    soft: Floats | None = None


def worths(ready: Prepared, *, labels: bool = False) -> Iterator[Worth | None]:
    """What `worth` gives of every agent, as many of them at a time as fit the memory."""
    alike = _Alike.of(ready, labels=labels)
    size = len(ready.reports.tasks) * len(ready.reports.classes)
    step = max(1, ready.plan.engine.max_bytes // (64 * max(size, 1)))
    every = range(len(ready.reports.agents))
    for first in range(0, len(every), step):
        agents = every[first : first + step]
        if alike is not None:
            yield from alike.worths(slice(agents.start, agents.stop))
        else:
            yield from [worth(ready, i, labels=labels) for i in agents]


@dataclass(frozen=True, eq=False)
class _Alike:
    """Agents who answered every task, and whose S is known: what they differ in is their own labels.

    `sides`: tasks, what the references say of them (n, L), how many references, and whether each agent is among them.
    """

    ready: Prepared
    labels: bool
    sides: tuple[tuple[Mask, Floats, int, bool], ...]

    @classmethod
    def of(cls, ready: Prepared, *, labels: bool) -> _Alike | None:
        """What is the same for all of them; None where agents differ in more."""
        reports, plan = ready.reports, ready.plan
        learned = not labels and plan.rule.counts_only and plan.matrix is None
        gaps = bool((reports.labels < 0).any())
        if learned or gaps or plan.over not in (None, "mean") or ready.mixtures is not None:
            return None
        known = (
            reports.truth >= 0 if plan.by_truth and reports.truth is not None else np.zeros(len(reports.tasks), bool)
        )
        sides = []
        if reports.truth is not None and known.sum() >= 2:
            sides.append((known, _said_on(ready, reports.truth[None, known]), 1, False))
        if plan.by_peers and len(reports.agents) > 1 and (~known).sum() >= 2:
            said = _said_on(ready, reports.labels[:, ~known])
            sides.append((~known, said, len(reports.agents) - 1, True))
        return cls(ready, labels, tuple(sides))

    def worths(self, agents: slice) -> list[Worth | None]:
        """What `worth` gives of some of them."""
        ready, plan, held = self.ready, self.ready.plan, self.ready.reports.labels[agents]
        plain = not (self.labels or plan.rule.penalised)
        matrix = None if self.labels or plan.rule.needs_rows else plan.matrix
        identity, entered = np.eye(len(ready.reports.classes)), np.zeros(held.shape[1], dtype=bool)
        value, parts = np.zeros((*held.shape, len(identity))), []
        for mask, said, references, among in self.sides:
            signal, n = ready.signal.take(mask), mask.sum()
            total = np.broadcast_to(said, (len(held), *said.shape))
            total = total - identity[held[:, mask]] if among else total
            total = total if matrix is None else total @ matrix.astype(np.float64).T
            share = self._share(mask) / references
            value[:, mask] = share * total / n if plain else share * signal.residuals(total) * signal.weights[:, None]
            entered |= mask
            parts.append((mask, signal))
        return _made(ready, agents, entered, value, () if plain else tuple(parts), labels=self.labels)

    def _share(self, mask: Mask) -> float:
        return int(mask.sum()) / sum(int(m.sum()) for m, *_ in self.sides)

    def mean_delta(self) -> Floats:
        """The mean over agents of delta, from how often each label was said: nobody is looked at alone."""
        held, found = self.ready.reports.labels, np.zeros((len(self.ready.reports.classes),) * 2)
        for mask, said, references, among in self.sides:
            n = int(mask.sum())
            mine, each = kernels.tallies(np.ascontiguousarray(held[:, mask]), len(found), self.ready.plan.engine)
            sums = each.sum(0).astype(np.float64)
            delta = mine.T.astype(np.float64) @ said - np.outer(sums, said.sum(0)) / n
            if among:  # beside oneself, diag(h) - h h^T / n
                delta -= np.diag(sums) - each.T.astype(np.float64) @ each / n
            found += self._share(mask) / references / (n - 1) / len(held) * delta
        return found


def mean_delta(ready: Prepared) -> Floats:
    """delta, averaged over all agents beside their references: which labels go together. (L, L)"""
    alike = _Alike.of(ready, labels=True)
    if alike is not None and alike.sides and ready.signal.kind is None:
        return alike.mean_delta()
    found = [w for w in worths(ready, labels=True) if w is not None]
    return np.asarray(np.mean([np.eye(w.value.shape[1])[w.held].T @ w.value for w in found], axis=0))


def _made(
    ready: Prepared, agents: slice, entered: Mask, value: Floats, parts: Parts, *, labels: bool
) -> list[Worth | None]:
    """The worth of agents who answered the same of the tasks entered; None if there are none."""
    chosen = np.nonzero(entered)[0]
    if not len(chosen):
        return [None] * len(value)
    kept = tuple((mask[chosen], public) for mask, public in parts)
    rows, hot = _scored_rows(ready, agents, labels=labels)[:, chosen], labels or not ready.plan.rule.needs_rows
    own, held = _residuals(rows, kept), ready.reports.labels[agents, chosen].astype(np.int64)
    each = zip(held, rows, value[:, chosen], own, strict=True)
    return [Worth(chosen, h, r, v, kept, o, hot) for h, r, v, o in each]


def worth(ready: Prepared, i: int, *, labels: bool = False, centred: bool = True) -> Worth | None:
    """What each label is worth to agent i; None if it has no reference.

    `labels`: as if the rule were zero-one, whatever it is. Not `centred`: without the penalty, so
    that W is the references' mean one-hot matrix over N.
    """
    reports, rule = ready.reports, ready.plan.rule
    centred = centred and (labels or rule.penalised)
    answered = reports.labels[i] >= 0
    half = None if labels or ready.plan.matrix is not None or not rule.counts_only else halves(reports.tasks)
    value, entered = np.zeros((len(reports.tasks), len(reports.classes))), np.zeros(len(reports.tasks), dtype=bool)
    parts = []
    for block in _blocks_of(ready, i):
        if block.soft is not None:
            parts += _add_soft(value, ready, block, plain=not centred, labels=labels)
            entered |= block.mask
            continue
        for mask in [block.mask] if half is None else [block.mask & (half == h) for h in (0, 1)]:
            _add_block(value, ready, i, block, mask, half, plain=not centred, labels=labels)
            if mask.any():
                parts.append((mask, ready.signal.take(mask)))
        entered |= block.mask
    kept, agents = tuple(parts) if centred else (), slice(i, i + 1)
    return _made(ready, agents, entered & answered, value[None], kept, labels=labels)[0]


def _scored_rows(ready: Prepared, agents: slice, *, labels: bool) -> Floats:
    """Some agents' reports as their rule scores them: one-hot labels, or rows made of their probabilities."""
    reports, rule = ready.reports, ready.plan.rule
    if labels or not rule.needs_rows or reports.rows is None:
        return np.asarray(np.eye(len(reports.classes))[reports.labels[agents]])
    return np.stack([rule.scored(rows) for rows in reports.rows[agents]])


def _blocks_of(ready: Prepared, i: int) -> Iterator[_Block]:
    """The tasks scored against truth and those scored against peers, with their shares."""
    reports, plan = ready.reports, ready.plan
    answered = reports.labels[i] >= 0
    known = reports.truth >= 0 if plan.by_truth and reports.truth is not None else np.zeros(len(answered), dtype=bool)
    found = []
    if plan.by_truth and reports.truth is not None:
        found.append(_Block(answered & known, reports.truth[None], 1.0, np.ones(1)))
    if plan.by_peers:
        mask = answered & ~known
        mixture = None if ready.mixtures is None else ready.mixtures.of(i)
        if mixture is not None and mixture.soft is not None:
            soft = np.zeros((len(mask), len(reports.classes)))
            soft[~known] = mixture.soft
            found.append(_Block(mask & (soft.sum(1) > 0), reports.labels[:1], 1.0, np.ones(1), soft))
        else:
            found.append(_peers_of(ready, i, mask, None if mixture is None else mixture.weights))
    found = [block for block in found if len(block.references) and block.mask.sum() >= 2]
    total = sum(block.mask.sum() for block in found)
    for block in found:
        yield replace(block, share=block.mask.sum() / total)


def _peers_of(ready: Prepared, i: int, mask: Mask, weights: Floats | None) -> _Block:
    whole = Side(ready.reports, ready.signal, None)
    chosen = references_of(whole, ready.plan, i)
    chosen &= (mask & (ready.reports.labels >= 0)).sum(1) >= 2
    if weights is not None:
        chosen &= weights > 0
    references: Labels = ready.reports.labels[chosen]
    if ready.plan.over == "median" and len(references):
        part = Side(ready.reports.take(mask), ready.signal.take(mask), None)
        references = references[np.unique(pairs_with(part, ready.plan, i, references[:, mask]).middle)]
    counted = np.ones(len(references)) if weights is None else weights[chosen]
    return _Block(mask, references, 1.0, counted / max(counted.sum(), 1e-300))


def _add_soft(value: Floats, ready: Prepared, block: _Block, *, plain: bool, labels: bool) -> list[tuple[Mask, Public]]:
    """Add what labels are worth beside references that were put together task by task."""
    assert block.soft is not None
    signal, matrix = ready.signal.take(block.mask), None if labels else ready.plan.matrix
    total = block.soft[block.mask] if matrix is None else block.soft[block.mask] @ matrix.astype(np.float64).T
    n = int(block.mask.sum())
    value[block.mask] += block.share * (total / n if plain else signal.residual(total) * signal.weights[:, None])
    return [(block.mask, signal)]


def _add_block(
    value: Floats, ready: Prepared, i: int, block: _Block, mask: Mask, half: Ints | None, *, plain: bool, labels: bool
) -> None:
    """Add the block's worth to `value`; references that share their tasks are centred together."""
    for common, members, weights in _groups_of_gaps(block):
        here = common & mask
        if here.sum() < 2:
            continue
        if labels or not ready.plan.rule.counts_only:
            total = _said_on(ready, members[:, here], weights)
        elif ready.plan.matrix is not None:
            total = _said_on(ready, members[:, here], weights) @ ready.plan.matrix.astype(np.float64).T
        else:
            learned = _signs_elsewhere(ready, ready.reports.labels[i], members, common & ~here)
            each = zip(weights.tolist(), learned, members, strict=True)
            total = sum((w * s.T[reference[here]] for w, s, reference in each), np.zeros(1))
        share = block.share * here.sum() / common.sum()
        signal = ready.signal.take(here)
        if plain:
            value[here] += share * total / here.sum()
        else:
            value[here] += share * signal.residual(total) * signal.weights[:, None]


def _groups_of_gaps(block: _Block) -> Iterator[tuple[Mask, Labels, Floats]]:
    """The references that answered the same of the block's tasks, which those are, and their weights."""
    there = block.mask & (block.references >= 0)
    if (there == there[0]).all():
        yield there[0], block.references, block.weights
        return
    _, first, group = np.unique(np.packbits(there, axis=1), axis=0, return_index=True, return_inverse=True)
    for g, place in enumerate(first.tolist()):
        members = group.reshape(-1) == g
        yield there[place], block.references[members], block.weights[members]


def _said_on(ready: Prepared, labels: Labels, weights: Floats | None = None) -> Floats:
    """How many references say each label of each task, or what they weigh."""
    classes = len(ready.reports.classes)
    if weights is not None and len(weights) and (weights != weights[0]).any():
        return np.stack([weights @ (labels == k) for k in range(classes)], axis=1)
    if weights is not None:
        return (weights[0] if len(weights) else 1.0) * _said_on(ready, labels)
    return kernels.tallies(np.ascontiguousarray(labels), classes, ready.plan.engine)[0].astype(np.float64)


def _signs_elsewhere(ready: Prepared, own: Labels, members: Labels, other: Mask) -> Floats:
    """S for each reference, learned on the tasks of the other half: never on those it is judged on."""
    classes, signal = len(ready.reports.classes), ready.signal.take(other)
    if signal.features is not None:
        joints = [Joint.of(own[other], reference[other], classes, signal) for reference in members]
        return np.stack([joint.sign for joint in joints]).astype(np.float64)
    levels = 1 if signal.strata is None else int(signal.strata.max(initial=0)) + 1
    counts = kernels.counts(own[None, other], members[:, other], classes, signal.strata, levels, ready.plan.engine)[0]
    return signs(counts).astype(np.float64)
