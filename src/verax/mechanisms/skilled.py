"""Skilled references: peers count by how well they agree with everybody but the agent that is scored.

The mean over peers is truthful and a weak ruler: whoever guesses is as much a reference as whoever knows, and pairs
with few common tasks count as much as those with many. With S_jk what j scores beside k on N_jk common tasks,

    skill_j(-i) = max(0, sum_k N_jk S_jk / sum_k N_jk)        over k other than i and j
    w_ij        = N_ij skill_j(-i)^4
    score_i     = sum_j w_ij S_ij / sum_j w_ij

Nothing that i reports enters its own weights, to the last bit, so its score is Correlated Agreement against a mixture
of references and truthful when each of them is (Theorem 4). skill^2 is the share of what j says that it has in common
with the rest; the weight is its square, between the best weights where errors are chance, J / (1 - J^2), and where they
are shared, J / (1 - J)^2.

Where pairs share so few tasks that a pair's own penalty is mostly noise, the references of a task are put together
before the penalty is taken: agent i is scored beside the votes of the others, each counted skill_j(-i)^4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from verax import kernels
from verax.errors import InputError
from verax.kernels import Engine, Floats, Ints, Labels
from verax.mechanisms import pairwise
from verax.mechanisms.soft import Mixture, Mixtures, normal, part_beside
from verax.pairs import Counts, Tables, of_counts
from verax.plan import Plan
from verax.reports import Reports
from verax.statistic import Part, Side

POWER = 4
_THIN = 15  # common tasks off the commonest label, below which a pair's penalty is noise
UNIT = 2.0**28  # N S is summed in whole numbers of 1 / this, so that a term is taken out again without a trace


def skilled(values: npt.ArrayLike, common: npt.ArrayLike) -> Floats:
    """Scores over skilled references, from what agents score beside one another and on how many tasks, (K, K) each.

    >>> values = [[0, 0.4, 0.3, 0.0], [0.4, 0, 0.35, 0.05], [0.3, 0.35, 0, 0.0], [0.0, 0.05, 0.0, 0]]
    >>> skilled(values, np.full((4, 4), 100)).round(3).tolist()
    [0.363, 0.375, 0.331, 0.022]
    """
    s, n = np.asarray(values, dtype=np.float64), np.asarray(common)
    if s.ndim != 2 or s.shape[0] != s.shape[1] or n.shape != s.shape:
        raise InputError(f"values of shape {s.shape} and common tasks {n.shape}; give two square arrays of one size")
    weights = skilled_weights(s, n)
    paid = np.where(weights > 0, s, 0.0)
    whole = np.array([math.fsum(row) for row in weights.tolist()])
    scores = np.array([math.fsum(row) for row in (weights * paid).tolist()])
    return np.asarray(np.divide(scores, whole, out=np.full(len(s), math.nan), where=whole > 0))


def skilled_weights(values: Floats, common: npt.NDArray[np.generic]) -> Floats:
    """w_ij, row i without anything that agent i reported; where nobody is skilled without i, the common tasks."""
    n, units = pair_sums(values, common)
    weights = n * _skill_without_each(n, units) ** POWER
    return np.asarray(np.where((weights > 0).any(1, keepdims=True), weights, n), dtype=np.float64)


def pair_sums(values: Floats, common: npt.NDArray[np.generic]) -> tuple[Ints, Ints]:
    """N_ij, and N_ij S_ij in whole units; 0 for pairs that cannot be scored."""
    n = np.array(common, dtype=np.int64)
    np.fill_diagonal(n, 0)
    n[(n < 2) | ~np.isfinite(values)] = 0
    return n, pair_units(np.where(n > 0, values, 0.0), n)


def pair_units(values: Floats, common: Ints) -> Ints:
    """N S in whole units."""
    return np.asarray(np.rint(values * common * UNIT).astype(np.int64))


def weights_without(n: Ints, units: Ints, *left_out: int) -> Floats:
    """What each agent's word weighs, of nothing that these agents reported or that is beside them; none for them."""
    kept = np.setdiff1d(np.arange(len(n)), left_out)
    tasks, total = n[:, kept].sum(1), units[:, kept].sum(1)
    skill = np.divide(total, tasks * UNIT, out=np.zeros(len(n)), where=tasks > 0)
    weights = np.maximum(skill, 0.0) ** POWER
    weights[list(left_out)] = 0.0
    return np.asarray(weights)


def _skill_without_each(n: Ints, units: Ints) -> Floats:
    """skill_j(-i) for every i (row) and j: j's mean beside the others, its pair with i taken out."""
    tasks = n.sum(1) - n
    total = units.sum(1) - units
    return np.asarray(np.maximum(np.divide(total, tasks * UNIT, out=np.zeros(n.shape), where=tasks > 0), 0.0))


class Skilled(Mixtures):
    """Everybody's skilled references: weights of peers, or votes where pairs are thin."""

    def __init__(self, side: Side, plan: Plan) -> None:
        super().__init__(side, plan)
        labels, classes = self.side.reports.labels, len(self.side.reports.classes)
        values, common = label_pairs(labels, classes, plan.engine)
        self.weights = skilled_weights(values, common)
        n, units = pair_sums(values, common)
        self.votes = _skill_without_each(n, units) ** POWER
        self.references = (n > 0).sum(1)
        able = plan.rule.counts_only and plan.matrix is not None and side.signal.kind != "features"
        held = np.stack([(labels == k).sum(1) for k in range(classes)], axis=1)
        self.thin = thin_without_each(held, _middle_of(common)) & able

    def ordered(self, i: int) -> Mixture:
        if not self.thin[i]:
            return Mixture(self.weights[i], None, int(self.references[i]))
        return Mixture(None, _votes_on(self.side.reports, i, self.votes[i]), int(self.references[i]))

    def parts_of(self, wanted: Ints) -> dict[int, Part | None]:
        thin = self.thin[wanted]
        found = dict(_over_pairs(self.side, self.plan, self.weights, wanted[~thin]))
        for i in wanted[thin].tolist():
            found[i] = part_beside(self.side, self.plan, i, self.ordered(i))
        return found


def label_pairs(labels: Labels, classes: int, engine: Engine) -> tuple[Floats, Ints]:
    """What agents score beside one another by their labels, and on how many common tasks: (K, K) each.

    >>> label_pairs(np.array([[0, 1, 0, 1], [0, 1, 0, 0]]), 2, Engine())[0].round(3).tolist()
    [[0.667, 0.333], [0.333, 0.5]]
    """
    total, n = kernels.totals(labels, labels, classes, np.eye(classes, dtype=np.int64), None, engine)
    shared = n[..., 0]
    return np.asarray(total[..., 0] / np.maximum(shared * (shared - 1), 1)), shared


def _middle_of(common: Ints) -> int:
    """How many tasks the pair shares in which the middle one of all answers lies."""
    pair = np.sort(common[np.triu_indices(len(common), 1)])
    answers = np.cumsum(pair)
    return int(pair[np.searchsorted(answers, answers[-1] / 2)]) if len(pair) and answers[-1] else 0


def thin_without_each(held: Ints, middle: int) -> npt.NDArray[np.bool_]:
    """Whether a pair of so many tasks has few that tell anything; of what i says (held, K x L) nothing enters for i."""
    others = held.sum(0) - held
    commonest = others.max(1) / np.maximum(others.sum(1), 1)
    return np.asarray(middle * (1 - commonest) < _THIN)


def _over_pairs(side: Side, plan: Plan, weights: Floats, wanted: Ints) -> Iterator[tuple[int, Part | None]]:
    """The wanted agents pair by pair, each reference counted by its weight."""
    step = pairwise.agents_at_once(side, plan)
    if step is None:
        for i in wanted.tolist():
            yield i, pairwise.beside(side, plan, i, weights=weights[i])
        return
    for first in sorted({int(i) // step * step for i in wanted}):
        rows = slice(first, first + step)
        yield from ((i, part) for i, part in enumerate(_parts_of_rows(side, plan, weights, rows), first) if i in wanted)


def _parts_of_rows(side: Side, plan: Plan, weights: Floats, rows: slice) -> list[Part | None]:
    """Some agents from the counts of their pairs."""
    counts = Counts.of(side, plan, rows, bounded=False)
    tables, found = np.zeros(counts.counts.shape), list[Part | None]()
    answered = side.answered[rows].tolist()
    for i, tasks in enumerate(answered):
        able = counts.able(i) & (weights[counts.first + i] > 0)
        if not able.any():
            found.append(None)
            continue
        value, _, centred = of_counts(counts.counts[i, able], plan)
        weight = weights[counts.first + i, able]
        weight = weight / math.fsum(weight.tolist())
        tables[i, able] = weight[:, None, None, None, None] * centred
        found.append(Part(math.fsum((weight * value).tolist()), math.nan, tasks, int(counts.able(i).sum())))
    squares = Tables(tables, counts.first, plan).squares(side)
    return [
        None if part is None else part._replace(stderr=math.fsum(np.sqrt(each).tolist()))
        for part, each in zip(found, squares, strict=True)
    ]


def _votes_on(reports: Reports, i: int, votes: Floats) -> Floats:
    """The others' votes on agent i's tasks, put together task by task: shares (N, L)."""
    labels, classes = reports.labels, len(reports.classes)
    mine, others = np.nonzero(labels[i] >= 0)[0], np.arange(len(labels)) != i
    counted = np.where(others, votes if (votes[others] > 0).any() else 1.0, 0.0)
    soft = np.zeros((labels.shape[1], classes))
    for k in range(classes):
        soft[mine, k] = counted @ (labels[:, mine] == k)
    return normal(soft)
