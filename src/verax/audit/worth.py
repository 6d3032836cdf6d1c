"""Worth: what each label would earn an agent on each task, given its references.

A score that is linear in the report is sum_n <X(n, .), W(n, .)>, with X the agent's rows as scored
(one-hot labels, log p, 2p) and W = M G S^T, averaged over the references. So what any other report
would have earned needs no scoring again: it is W that decides which deviation pays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verax.joint import Joint, Public
from verax.kernels import Floats, Ints, Labels
from verax.mechanisms import Prepared
from verax.pairs import halves, median_peers, one_peer

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Worth:
    """One agent's tasks: the label it holds, its rows as scored, and what each entry is worth."""

    tasks: Ints
    held: Ints
    rows: Floats
    value: Floats
    parts: tuple[tuple[Mask, Public], ...]

    def centred(self, columns: Floats) -> Floats:
        """The columns with the mean (or the public signal) of each part of the tasks taken out."""
        result = columns.copy()
        for mask, public in self.parts:
            result[mask] = public.residual(columns[mask])
        return result

    def deviations(self, phi: Floats) -> Floats:
        """What each task adds, apart from the mean of its part: the parts are on different tasks."""
        result = phi - phi.mean(0)
        for mask, _ in self.parts:
            result[mask] = phi[mask] - phi[mask].mean(0)
        return np.asarray(result)

    @property
    def score(self) -> float:
        """The score these rows earn."""
        return float((self.rows * self.value).sum())

    @property
    def influence(self) -> Floats:
        """What each task adds to the score, apart from its mean."""
        return self.deviations((self.centred(self.rows) * self.value).sum(1))


@dataclass(frozen=True)
class _Block:
    """Tasks scored against one kind of reference, and their share of the score."""

    mask: Mask
    references: Labels
    share: float


def worth(ready: Prepared, i: int, *, labels: bool = False, centred: bool = True) -> Worth | None:
    """What each label is worth to agent i; None if it has no reference.

    `labels`: as if the rule were zero-one, whatever it is. Not `centred`: without the penalty, so
    that W is the references' mean one-hot matrix over N.
    """
    reports, rule = ready.reports, ready.plan.rule
    centred = centred and (labels or not rule.truth_only)
    answered = reports.labels[i] >= 0
    half = None if labels or ready.plan.matrix is not None or not rule.counts_only else halves(reports.tasks)
    value, entered = np.zeros((len(reports.tasks), len(reports.classes))), np.zeros(len(reports.tasks), dtype=bool)
    parts = []
    for block in _blocks(ready, i):
        for mask in [block.mask] if half is None else [block.mask & (half == h) for h in (0, 1)]:
            _add_block(value, ready, i, block, mask, half, plain=not centred, labels=labels)
            if mask.any():
                parts.append((mask, ready.signal.take(mask)))
        entered |= block.mask
    if not entered.any():
        return None
    chosen = np.nonzero(entered & answered)[0]
    kept = tuple((mask[chosen], public) for mask, public in parts) if centred else ()
    held = reports.labels[i][chosen].astype(np.int64)
    return Worth(chosen, held, scored_rows(ready, i, labels=labels)[chosen], value[chosen], kept)


def scored_rows(ready: Prepared, i: int, *, labels: bool = False, probabilities: Floats | None = None) -> Floats:
    """Agent i's report as its rule scores it: one-hot labels, log p or 2p."""
    reports, rule = ready.reports, ready.plan.rule
    rows = reports.probabilities[i] if reports.probabilities is not None else None
    rows = rows if probabilities is None else probabilities
    if labels or not rule.needs_rows or rows is None:
        return np.asarray(np.eye(len(reports.classes))[reports.labels[i]])
    return 2.0 * rows if rule.floor is None else np.log(np.maximum(rows, rule.floor))


def _blocks(ready: Prepared, i: int) -> Iterator[_Block]:
    """The tasks scored against truth and those scored against peers, with their shares."""
    reports = ready.reports
    answered = reports.labels[i] >= 0
    known = np.zeros(len(answered), dtype=bool) if reports.truth is None else reports.truth >= 0
    found = []
    if ready.against != "peers" and reports.truth is not None:
        found.append((answered & known, reports.truth[None]))
    if ready.against == "peers" or (ready.against == "hybrid" and not ready.plan.rule.truth_only):
        mask = answered & ~known if ready.against == "hybrid" else answered
        found.append((mask, _peers(ready, i, mask)))
    found = [(mask, references) for mask, references in found if len(references) and mask.sum() >= 2]
    total = sum(mask.sum() for mask, _ in found)
    for mask, references in found:
        yield _Block(mask, references, mask.sum() / total)


def _peers(ready: Prepared, i: int, mask: Mask) -> Labels:
    reports, plan = ready.reports, ready.plan
    others = np.arange(len(reports.agents)) != i
    if plan.over == "one" and plan.seed is not None:
        others = one_peer(reports, i, plan.seed)
    references: Labels = reports.labels[others]
    references = references[(mask & (references >= 0)).sum(1) >= 2]
    if plan.over == "median" and len(references):
        return median_peers(reports.take(mask), ready.signal.take(mask), plan, i, references[:, mask], references)
    return references


def _add_block(
    value: Floats, ready: Prepared, i: int, block: _Block, mask: Mask, half: Ints | None, *, plain: bool, labels: bool
) -> None:
    """Add the block's worth to `value`; references that share their tasks are centred together."""
    size, own = value.shape[1], ready.reports.labels[i]
    groups: dict[bytes, tuple[Mask, Floats]] = {}
    for reference in block.references:
        common = block.mask & (reference >= 0)
        here = common & mask
        if here.sum() < 2:
            continue
        s = (
            np.eye(size)
            if labels or not ready.plan.rule.counts_only
            else _sign(ready, own, reference, common, half, here)
        )
        share = block.share / len(block.references) * here.sum() / common.sum()
        _, total = groups.setdefault(here.tobytes(), (here, np.zeros((int(here.sum()), size))))
        total += share * np.eye(size)[reference[here]] @ s.T
    for here, total in groups.values():
        signal = ready.signal.take(here)
        if plain:
            value[here] += total / here.sum()
        else:
            value[here] += signal.residual(total) * signal.weights[:, None]


def _sign(ready: Prepared, own: Labels, reference: Labels, common: Mask, half: Ints | None, here: Mask) -> Floats:
    """S as given, or learned on the tasks of the other half: never on those it is judged on."""
    if ready.plan.matrix is not None or half is None:
        return np.asarray(ready.plan.matrix, dtype=np.float64)
    other = common & ~here
    joint = Joint.of(own[other], reference[other], len(ready.reports.classes), ready.signal.take(other))
    return joint.sign.astype(np.float64)
