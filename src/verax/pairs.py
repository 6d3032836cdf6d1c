"""Pairs of labels: what each agent scores beside each of its references, from counts alone.

`Counts` keeps the table of every pair, and adds up. `all_pairs` scores without keeping any, where there is one batch,
no public signal, and S holds 0 and 1 or is learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from verax import kernels, tallies
from verax.errors import OptionError, VeraxError
from verax.joint import Estimate, Joint, influences, means, signs, stderrs, values
from verax.kernels import Floats, Ints, Labels
from verax.plan import Plan
from verax.rules import Rule
from verax.statistic import GROUPS, Look, Part, Side, Statistic, check_size, groups, halves


class Pairs(NamedTuple):
    """Values and errors, one a reference, and the error of their mean, by `share` where they do not count alike."""

    value: Floats
    stderr: Floats
    mean_stderr: float
    share: Floats | None = None

    @property
    def middle(self) -> Ints:
        """The one or two references in the middle; of equal values those with middle errors."""
        order = np.lexsort((self.stderr, self.value))
        return order[[(len(order) - 1) // 2, len(order) // 2]]

    def over(self, how: str | None) -> tuple[float, float]:
        """Mean or median over the references; the median's error is its middle reference's."""
        if self.share is not None:
            return math.fsum((self.share * self.value).tolist()), self.mean_stderr
        if how != "median":
            return math.fsum(self.value) / len(self.value), self.mean_stderr
        return float(self.value[self.middle].sum() / 2), float(self.stderr[self.middle].sum() / 2)


def mean_error(phi: Floats, half: Ints | None) -> float:
    """sqrt(sum of phi^2); with two halves, which are positively correlated, the sum over both."""
    if half is None:
        return math.sqrt((phi**2).sum())
    return math.fsum(math.sqrt((phi[half == h] ** 2).sum()) for h in (0, 1))


@dataclass(frozen=True)
class Cut:
    """How tasks are parted before they are counted: into halves or groups, each into strata."""

    part: Ints | None
    kinds: int
    strata: int
    kind: Ints | None

    @classmethod
    def of(cls, side: Side, plan: Plan, *, grouped: bool = False) -> Cut:
        """Halves where a sign is learned on the other, groups for a rule whose error is a jackknife."""
        strata = side.signal.strata
        levels = 1 if strata is None else int(strata.max(initial=0)) + 1
        if grouped or (plan.rule.own and not plan.rule.linear):
            kind, kinds = groups(side.reports.tasks), GROUPS
        elif plan.sign == "split":
            kind, kinds = halves(side.reports.tasks), 2
        else:
            return cls(strata, 1, levels, None)
        return cls(kind if strata is None else kind * levels + strata, kinds, levels, kind)


@dataclass
class Counts(Statistic):
    """How often agent k says one label and reference r another, in each half or group and stratum: (K, R, H, Z, L, L).

    The agents are references `first`, `first` + 1, ... where the references are agents. `by_gaps`: agents with the same
    gaps are put together, as `tallies` puts them, so that shards give its last bit.
    """

    axes: ClassVar[dict[str, str]] = {"counts": "krhzll"}
    counts: Ints
    peers: bool
    first: int = 0
    by_gaps: bool = True

    @classmethod
    def of(
        cls, side: Side, plan: Plan, rows: slice = slice(None), *, bounded: bool = True, grouped: bool = False
    ) -> Counts:
        """The counts of one batch, of some of its agents; `bounded` refuses what would take too much memory."""
        classes, cut = len(side.reports.classes), Cut.of(side, plan, grouped=grouped)
        if side.reports.sparse and side.references is not None:
            return cls(_beside_references(side, cut, rows), False, rows.start or 0, bounded)
        labels, columns = side.reports.labels, side.columns
        mine = labels if rows == slice(None) else labels[rows]
        shape = len(mine), len(columns), cut.kinds, cut.strata, classes, classes
        if bounded:
            check_size(shape, len(labels), classes)
        first, peers = rows.start or 0, side.references is None
        if not math.prod(shape) or not labels.shape[1]:
            return cls(np.zeros(shape, dtype=np.int64), peers, first, bounded)
        found = kernels.counts(mine, columns, classes, cut.part, cut.kinds * cut.strata, plan.engine)
        return cls(found.reshape(shape), peers, first, bounded)

    def add(self, other: Self) -> None:
        self.counts += other.counts

    def able(self, i: int) -> npt.NDArray[np.bool_]:
        """Which references share two tasks with agent i."""
        shared = self.counts[i].sum((1, 2, 3, 4)) >= 2
        if self.peers:
            shared[self.first + i] = False
        return np.asarray(shared)

    def parts(self, plan: Plan, answered: Ints, squares: Floats | None) -> list[Part | None]:
        if self.peers and plan.pools_peers and self.by_gaps:
            group = self._groups_of_gaps()
            if group.max(initial=0) < tallies.groups_worth(len(group)):
                return self._grouped(plan, group, answered, squares)
        return [self._part(plan, i, int(n), squares) for i, n in enumerate(answered.tolist())]

    def _part(self, plan: Plan, i: int, answered: int, squares: Floats | None) -> Part | None:
        counts = self.counts[i, self.able(i)]
        if not len(counts):
            return None
        over = plan.over if self.peers else None
        if not plan.rule.linear:
            score, error = over_function(counts, plan.rule, over)
            return Part(score, error, answered, len(counts))
        value, stderr, _ = of_counts(counts, plan)
        together = float(stderr[0]) if not self.peers else math.nan
        if squares is not None:
            together = math.fsum(np.sqrt(squares[i])) / len(value)
        score, error = Pairs(value, stderr, together).over(over)
        return Part(score, error, answered, len(value))

    def _groups_of_gaps(self) -> Ints:
        """Which agents left out the same tasks: those that share with each other all that either answered."""
        common = self.counts.sum((2, 3, 4, 5))
        alone = np.diagonal(common)
        same = (common == alone) & (common == alone[:, None])
        return np.asarray(np.unique(same.argmax(1), return_inverse=True)[1], dtype=np.int64)

    def _grouped(self, plan: Plan, group: Ints, answered: Ints, squares: Floats | None) -> list[Part | None]:
        """A mean over peers as `tallies` takes it, group by group, so that the last bit is the same."""
        found: list[Part | None] = []
        for i in range(len(group)):
            terms, references = [], 0
            for h in range(int(group.max()) + 1):
                peers = np.nonzero((group == h) & (np.arange(len(group)) != i))[0]
                counts = self.counts[i, peers, 0, 0]
                if len(peers) and counts[0].sum() >= 2:
                    terms.append(tallies.beside_group(counts, plan))
                    references += len(peers)
            error = math.nan if squares is None else math.sqrt(squares[i, 0])
            whole = int(answered[i])
            found.append(
                Part(math.fsum(terms) / references, error / references, whole, references) if references else None
            )
        return found

    def look(self, plan: Plan) -> Look | None:
        if not self.peers or plan.over != "mean" or not plan.rule.linear:
            return None
        tables = np.zeros(self.counts.shape)
        for i in range(len(tables)):
            able = self.able(i)
            if able.any():
                tables[i, able] = of_counts(self.counts[i, able], plan)[2]
        return Tables(tables, self.first, plan)


def _beside_references(side: Side, cut: Cut, rows: slice) -> Ints:
    """The counts of some agents, whose answers are held one by one, beside references (I, R, H, Z, L, L)."""
    said, classes = side.reports.answers.only(np.arange(len(side.reports.agents))[rows]), len(side.reports.classes)
    shape = said.shape[0], cut.kinds, cut.strata, classes, classes
    cell = said.agent.astype(np.int64)
    if cut.part is not None:
        cell = cell * (cut.kinds * cut.strata) + cut.part[said.task]
    found = []
    for reference in side.columns:
        theirs = reference[said.task]
        met = theirs >= 0
        at = (cell[met] * classes + said.label[met]) * classes + theirs[met]
        found.append(np.bincount(at, minlength=math.prod(shape)).reshape(shape))
    return np.stack(found, axis=1).astype(np.int64)


@dataclass(frozen=True)
class Tables(Look):
    """Each pair's centred influence, cell by cell; phi of a task is its sum over the peers."""

    tables: Floats
    first: int
    plan: Plan

    def squares(self, side: Side) -> Floats:
        cut, shape = Cut.of(side, self.plan), self.tables.shape
        rows = side.reports.labels[self.first : self.first + shape[0]]
        tables = self.tables.reshape(*shape[:2], cut.kinds * cut.strata, *shape[4:])
        phi = kernels.sums(rows, side.columns, tables, cut.part, self.plan.engine)
        apart = [phi] if cut.kind is None else [phi[:, cut.kind == h] for h in range(cut.kinds)]
        return np.stack([np.einsum("in,in->i", part, part) for part in apart], axis=1)


def of_counts(counts: Ints, plan: Plan) -> tuple[Floats, Floats, Floats]:
    """Values and errors from counts (J, H, Z, L, L), and each cell's centred share of the influence on the value."""
    s = _sign_matrices(counts, plan)
    n = counts.sum((-3, -2, -1))
    whole = n.sum(1)
    value, psi = values(counts, s), influences(counts, s)
    stderr = (n * stderrs(counts, psi)).sum(1) / whole
    centred = (psi - means(counts, psi)[..., None, None, None]) / whole[:, None, None, None, None]
    return value[:, 0] if counts.shape[1] == 1 else (n * value).sum(1) / whole, stderr, centred


def _sign_matrices(counts: Ints, plan: Plan) -> npt.NDArray[np.generic]:
    """S for every (reference, half): given, or learned here, or learned on the other half."""
    if plan.matrix is not None:
        return np.broadcast_to(plan.matrix, (*counts.shape[:2], *plan.matrix.shape))
    learned = signs(counts)
    return learned if plan.sign == "plugin" else learned[:, ::-1]


def over_function(counts: Ints, rule: Rule, over: str | None, *, errors: bool = True) -> tuple[float, float]:
    """The score of a rule that is no <S, delta>, from counts (J, H, Z, L, L); its error by leaving groups out."""

    def scored(tables: Ints) -> tuple[float, float]:
        found = [evaluated(rule, Joint(table)) for table in tables if table.sum() >= 2]
        if not found:
            return math.nan, math.nan
        value, stderr = (np.array([getattr(e, name) for e in found]) for name in ("value", "stderr"))
        return Pairs(value, stderr, float(stderr[0]) if len(found) == 1 else math.nan).over(over)

    whole = counts.sum(1)
    score, error = scored(whole)
    if math.isnan(error) and errors:
        left = [h for h in range(counts.shape[1]) if counts[:, h].any()]
        error = jackknifed([scored(whole - counts[:, h])[0] for h in left])
    return score, error


def jackknifed(found: Sequence[float]) -> float:
    """The standard error of a score from what it was with each group of tasks left out."""
    told = np.array([x for x in found if not math.isnan(x)])
    return float(np.std(told) * math.sqrt(max(len(told) - 1, 0))) if len(told) else math.nan


def evaluated(rule: Rule, joint: Joint) -> Estimate:
    """What a rule says of a pair; what goes wrong in a user's own is told in a sentence."""
    try:
        found = rule(joint)
        value = found.value if isinstance(found, Estimate) else float(found)
    except VeraxError:
        raise
    except Exception as error:  # whatever a user's own code may raise
        if not rule.own:
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise OptionError(
            f"your rule {rule.name!r} failed ({reason}); it must take a Joint and return a number"
        ) from error
    if not math.isfinite(value):
        raise OptionError(f"your rule gave {value}; it must give a finite number for every pair")
    return found if isinstance(found, Estimate) else Estimate(value, math.nan, np.full(joint.tasks, math.nan))


# All pairs at once


def all_pairs(side: Side, plan: Plan) -> list[Part | None] | None:
    """Every agent against every other from counts that are never kept; None where they must be."""
    if (sign := _sign_of_all(side, plan)) is None or plan.over not in ("mean", "median"):
        return None
    labels, half = side.reports.labels, halves(side.reports.tasks) if plan.sign == "split" else None
    found: list[Part | None] = []
    for first in range(0, len(labels), step := _rows_at_once(labels, half, plan)):
        rows = labels[first : first + step] if step < len(labels) else labels
        found += _rows_beside_all(rows, first, side, sign, half, plan)
    return found


def values_of_all(side: Side, plan: Plan) -> Floats | None:
    """What every agent scores beside every other, NaN where they share too few tasks, as `all_pairs` finds it."""
    if (sign := _sign_of_all(side, plan)) is None:
        return None
    labels, half = side.reports.labels, halves(side.reports.tasks) if plan.sign == "split" else None
    value, able = _values_of_totals(*kernels.totals(labels, labels, len(side.reports.classes), sign, half, plan.engine))
    return np.where(able, value, math.nan)


def _sign_of_all(side: Side, plan: Plan) -> Any | None:
    """S, or how it is learned, where all pairs can be scored from counts that are never kept."""
    sign = plan.sign if plan.matrix is None else plan.matrix.astype(np.int64) if plan.binary_matrix else None
    counted = plan.rule.counts_only and side.signal.kind is None and plan.mechanism.draws is None
    return sign if counted and side.references is None else None


def _rows_beside_all(
    rows: Labels, first: int, side: Side, sign: Any, half: Ints | None, plan: Plan
) -> list[Part | None]:
    labels, classes, who = side.reports.labels, len(side.reports.classes), np.arange(first, first + len(rows))
    if plan.over == "median":
        total, n = kernels.totals(rows, labels, classes, sign, half, plan.engine)
    else:
        total, n, phi = kernels.phi(rows, labels, classes, sign, half, who, plan.engine)
    value, able = _values_of_totals(total, n)
    able[np.arange(len(rows)), who] = False
    if plan.over == "median":
        stderr = _median_stderrs(rows, labels, half, plan, value, able, classes)
    else:
        stderr = [mean_error(p / max(a.sum(), 1), half) for p, a in zip(phi, able, strict=True)]
    return [
        Part(centre_of(v[a], plan.over), error, tasks, int(a.sum())) if a.any() else None
        for v, a, error, tasks in zip(value, able, stderr, side.answered[who].tolist(), strict=True)
    ]


def _rows_at_once(labels: Labels, half: Ints | None, plan: Plan) -> int:
    """As many agents as leave what is kept a pair, and a task, within the memory allowed."""
    each = len(labels) * (1 if half is None else 2) * 48 + (0 if plan.over == "median" else labels.shape[1] * 16)
    return max(1, min(len(labels), plan.engine.max_bytes // max(each, 1)))


def _values_of_totals(total: Ints, n: Ints) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """What every row scores beside every column, and whether they share enough tasks; from (I, J, halves) each."""
    whole, value = n.sum(2), total / np.maximum(n * (n - 1), 1)
    value = value[..., 0] if n.shape[2] == 1 else (n * value).sum(2) / np.maximum(whole, 1)
    return value, np.asarray(whole >= 2)


def centre_of(values: Floats, over: str | None) -> float:
    """The mean or the median of some values, in whatever order they stand."""
    if over != "median":
        return math.fsum(values) / len(values)
    ordered = np.sort(values)
    return float((ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2)


@dataclass(frozen=True)
class Middle:
    """An agent's peers that may be in the middle, and which of them are: the values and ranks of the two places."""

    peers: Ints
    held: Floats
    values: tuple[float, float]
    ranks: tuple[int, int]  # among the peers of the same value

    @classmethod
    def of(cls, value: Floats, able: npt.NDArray[np.bool_]) -> Middle:
        peers = np.nonzero(able)[0]
        held, places = value[peers], ((len(peers) - 1) // 2, len(peers) // 2)
        ordered = np.sort(held)
        middle = ordered[[*places]]
        ranks = np.array(places) - np.searchsorted(ordered, middle)
        near = (held == middle[0]) | (held == middle[1])
        return cls(peers[near], held[near], tuple(middle.tolist()), tuple(ranks.tolist()))

    def stderr(self, stderr: Floats) -> float:
        """The middle peer's error, the mean of two; equal values stand in the order of their errors."""
        found = [np.sort(stderr[self.held == v])[r] for v, r in zip(self.values, self.ranks, strict=True)]
        return float((found[0] + found[1]) / 2)


def _median_stderrs(
    rows: Labels, labels: Labels, half: Ints | None, plan: Plan, value: Floats, able: npt.NDArray[np.bool_],
    classes: int,
) -> list[float]:  # fmt: skip
    """Every agent's middle peer's error; only the peers that may be in the middle are looked at again."""
    parts, few = 1 if half is None else 2, plan.engine.for_few()
    found, most = np.full(len(rows), math.nan), max(1, plan.engine.max_bytes // (64 * parts * classes**2))
    chosen = np.nonzero(able.any(1))[0]
    middles = [Middle.of(value[r], able[r]) for r in chosen]
    batch = np.cumsum([len(middle.peers) for middle in middles]) // most
    for some in np.split(np.arange(len(chosen)), np.nonzero(np.diff(batch))[0] + 1) if len(chosen) else ():
        each = [
            kernels.counts(rows[r : r + 1], labels[middles[q].peers], classes, half, parts, few)[0]
            for q, r in zip(some, chosen[some], strict=True)
        ]
        stderr = of_counts(np.concatenate(each)[:, :, None], plan)[1]
        ends = np.cumsum([len(counts) for counts in each])
        for q, its in zip(some.tolist(), np.split(stderr, ends[:-1]), strict=True):
            found[chosen[q]] = middles[q].stderr(its)
    return found.tolist()
