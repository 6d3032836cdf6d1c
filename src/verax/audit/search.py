"""Relabellings tried one by one, for a rule whose best deviation has no closed form: what each would have earned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from verax.audit.certificate import Certificate, tasks_needed
from verax.intervals import quantile
from verax.kernels import Floats, Ints
from verax.mechanisms import pairwise
from verax.pairs import Counts, over_function
from verax.reports import Reports
from verax.score import Prepared
from verax.statistic import GROUPS, Part, Side, combined, groups

MOST_MAPS = 3125  # relabellings of all labels that are tried: 5^5
_FEWEST = 10  # tasks on which a label is held, below which nothing is decided about it
Map = tuple[int, ...]


@dataclass(frozen=True)
class _Tried:
    """What an agent scores under a relabelling, in all and with each group of tasks left out."""

    value: float
    left_out: Floats

    def above(self, other: _Tried) -> tuple[float, float]:
        """By how much it is above another, and the jackknife's error of that."""
        apart = self.left_out - other.left_out
        told = apart[~np.isnan(apart)]
        return self.value - other.value, float(np.std(told) * math.sqrt(max(len(told) - 1, 0)))


def searched(ready: Prepared, i: int, confidence: float) -> Certificate | None:
    """TRUTHFUL by trying relabellings: all of them where there are at most 3,125, else every change of one label."""
    agent, classes = ready.reports.agents[i], ready.reports.classes
    tried = _scorer_of(ready, i)
    if tried is None:
        return None
    held = np.bincount(ready.reports.labels[i][ready.reports.labels[i] >= 0], minlength=len(classes))
    maps = [*_maps_of(held)]
    honest = tried(tuple(range(len(classes))), True)
    values = np.array([tried(way, False).value for way in maps]) - honest.value
    scale = max(abs(honest.value), float(np.abs(values).max(initial=0.0)), 1e-300)
    tied = np.abs(values) <= 1e-12 * scale
    gain = float(max(values[~tied].max(initial=0.0), 0.0))
    why = "every relabelling of its labels was tried" if _whole(held) else "every change of one label was tried"
    if not (~tied).any():
        return Certificate("TRUTHFUL", agent, "holds", 0.0, (0.0, 0.0), None, f"{why}: all earn the same")
    best = int(np.where(tied, -np.inf, values).argmax())
    lead, error = tried(maps[best], True).above(honest)
    z = quantile(confidence, len(maps))
    said = {classes[k]: classes[r] for k, r in enumerate(maps[best]) if r != k}
    seen = f"{why}; the best says {', '.join(f'{r!r} for {k!r}' for k, r in said.items())}"
    interval = (max(0.0, lead - z * error), max(0.0, lead + z * error))
    rare = min(held[k] for k, r in enumerate(maps[best]) if r != k) < _FEWEST
    if lead - z * error > 0 and not rare:
        return Certificate("TRUTHFUL", agent, "fails", gain, interval, said, f"{seen} and earns {lead:.4f} more")
    if lead + z * error < 0 and not rare:
        informed = "informed: some relabelling earns the same, none more" if tied.any() else "strictly"
        return Certificate("TRUTHFUL", agent, "holds", gain, interval, None, f"{informed}; {seen} and earns less")
    needed = tasks_needed(int(held.sum()), z * error / abs(lead) if lead else math.inf)
    why = f"{seen}, within its error ({lead:+.4f} ± {error:.4f}); {needed}"
    return Certificate("TRUTHFUL", agent, "undecided", gain, interval, said if gain > 0 else None, why)


def _whole(held: Ints) -> bool:
    return bool(len(held) ** int((held > 0).sum()) <= MOST_MAPS)


def _maps_of(held: Ints) -> Iterator[Map]:
    """Relabellings of the labels that are held, the identity left out."""
    size, used = len(held), np.nonzero(held)[0].tolist()
    same = tuple(range(size))
    if _whole(held):
        for said in product(range(size), repeat=len(used)):
            way = {**dict(zip(same, same, strict=True)), **dict(zip(used, said, strict=True))}
            if tuple(way.values()) != same:
                yield tuple(way.values())
        return
    yield from (tuple(r if j == k else j for j in same) for k in used for r in same if r != k)


def _scorer_of(ready: Prepared, i: int) -> Callable[[Map, bool], _Tried] | None:
    """What agent i would score under a map of its labels; errors where asked. From counts where they suffice."""
    plan, sides = ready.plan, ready.sides
    if (
        plan.over != "one"
        and plan.mixture is None
        and all(side is None or pairwise.counts_suffice(side, plan) for side in sides)
    ):
        counted = [None if side is None else _Counted.of(side, ready, i) for side in sides]
        if not any(counted):
            return None
        return lambda way, errors: _of_counts(ready, counted, way, errors)
    if math.isnan(rescored(ready, i, lambda reports: reports)):
        return None

    def tried(way: Map, errors: bool) -> _Tried:
        group = groups(ready.reports.tasks)
        kept = [ready.only(group != g) for g in range(GROUPS)] if errors else []
        left = [rescored(some, i, lambda reports: _relabelled(reports, i, way)) for some in kept]
        return _Tried(rescored(ready, i, lambda reports: _relabelled(reports, i, way)), np.array(left))

    return tried


@dataclass(frozen=True)
class _Counted:
    """One agent's counts beside its references on one side, by groups of tasks: (J, G, Z, L, L)."""

    counts: Ints
    tasks: Ints  # answered, in each group

    @classmethod
    def of(cls, side: Side, ready: Prepared, i: int) -> _Counted | None:
        one = Counts.of(side, ready.plan, slice(i, i + 1), bounded=False, grouped=True)
        counts = one.counts[0, one.able(0)]
        if not len(counts):
            return None
        answered = side.reports.labels[i] >= 0
        return cls(counts, np.bincount(groups(side.reports.tasks)[answered], minlength=counts.shape[1]))


def _of_counts(ready: Prepared, counted: Sequence[_Counted | None], way: Map, errors: bool) -> _Tried:
    said = np.eye(len(way), dtype=np.int64)[list(way)]  # row k: what is said while k is held
    kept = [c if c is None or errors else replace(c, counts=c.counts.sum(1, keepdims=True)) for c in counted]
    turned = [None if c is None else replace(c, counts=np.einsum("kr,jgzkl->jgzrl", said, c.counts)) for c in kept]

    def scored(left_out: int | None) -> float:
        parts = [None if c is None else _part_of_counts(ready, c, left_out, peers=s == 1) for s, c in enumerate(turned)]
        found = combined(ready.plan, ["it"], [parts[0]], [parts[1]])[0][0]
        return math.nan if found is None else found.score

    groups = range(GROUPS) if errors else ()
    return _Tried(scored(None), np.array([scored(g) for g in groups]))


def _part_of_counts(ready: Prepared, c: _Counted, left_out: int | None, *, peers: bool) -> Part | None:
    whole = c.counts.sum(1, keepdims=True)
    if left_out is not None:
        if not c.counts[:, left_out].any():
            return None if not whole.any() else Part(math.nan, 0.0, 1, 1)
        whole = whole - c.counts[:, left_out : left_out + 1]
    tasks = int(c.tasks.sum() - (0 if left_out is None else c.tasks[left_out]))
    over = ready.plan.over if peers else None
    score, _ = over_function(whole, ready.plan.rule, over, errors=False)
    return None if math.isnan(score) else Part(score, 0.0, tasks, len(whole))


def rescored(ready: Prepared, i: int, changed: Callable[[Reports], Reports]) -> float:
    """What agent i scores once its report is changed; the others are scored again only as far as that needs."""
    found: list[Part | None] = []
    for side in ready.sides:
        if side is None or len(side.reports.tasks) < 2:
            found.append(None)
            continue
        other = replace(side, reports=changed(side.reports))
        if ready.plan.rule.population is not None or ready.plan.mixture is not None:
            found.append(pairwise.parts(other, ready.plan, only=i)[i])
        else:
            found.append(pairwise.beside(other, ready.plan, i, errors=False))
    part = combined(ready.plan, ["it"], [found[0]], [found[1]])[0][0]
    return math.nan if part is None else part.score


def _relabelled(reports: Reports, i: int, way: Map) -> Reports:
    """The reports with agent i's labels mapped, and in its rows the entries of held and said label swapped."""
    labels, rows, held = reports.labels.copy(), reports.rows, reports.labels[i]
    labels[i] = said = np.append(np.array(way), -1)[held]
    if rows is not None:
        at, before, rows = np.nonzero(held >= 0)[0], rows[i], rows.copy()
        rows[i, at, said[at]], rows[i, at, held[at]] = before[at, held[at]], before[at, said[at]]
    return replace(reports, held=labels, probabilities=rows)
