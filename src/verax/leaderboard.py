"""Leaderboard: the agents of each set of tasks in order, with what is known of the order and of how much it is worth.

Where the truth is known agents stand by accuracy, the label-free score beside it; elsewhere by that score alone. Ranks
are what paired differences over tasks leave open, all together (Holm). What logs mean, `logs` decides.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from verax import wire
from verax.audit.independence import MOST_AGENTS, independence_of
from verax.audit.worth import worths
from verax.compare import holm, swap_p_value
from verax.copies import Groups, find_copies
from verax.errors import InputError, VeraxError
from verax.kernels import Floats
from verax.logs import Chosen, TaskSet, task_sets
from verax.plan import Mechanism
from verax.reports import Reports, as_reports
from verax.score import Scores, prepare, scored
from verax.space import said_of_memory

_EXACT = 40  # agents, whose pairs are each judged exactly
_ALONE = 8  # questions that are listed
_FEWEST = 3  # agents who must answer before one of them stands alone
_MOST_CLASSES = 12  # whose shares are kept for a picture


@dataclass(frozen=True)
class Standing(wire.Document):
    """One agent of one set: its accuracy and its label-free score, each with an error, and its rank interval.

    `accuracy` is of all answers, those that are no label counted as wrong; `logged` is the log's own. `alone`:
    questions where nobody else says what it says, with how many there are and, where the truth is known, in how many
    of them it is right. `by_class`: the share right of each true class, or without truth the share of its answers.
    """

    agent: str
    answered: int
    unreadable: int
    silent: int
    accuracy: float | None
    accuracy_stderr: float | None
    logged: float | None
    score: float | None
    score_stderr: float | None
    low: int | None
    high: int | None
    alone: tuple[str, ...] = ()
    alone_count: int = 0
    alone_right: int | None = None
    by_class: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Neighbours(wire.Document):
    """Two agents next to one another: the difference of what they stand by, paired, and its exact p-value (Holm)."""

    a: str
    b: str
    difference: float
    stderr: float
    p_value: float
    decided: bool


@dataclass(frozen=True)
class Family(wire.Document):
    """Agents that share errors, and how many independent ones they are worth."""

    agents: tuple[str, ...]
    effective: float


@dataclass(frozen=True)
class Board(wire.Document):
    """One set of tasks; `by`: accuracy or score. `effective`: how many independent agents all are worth."""

    name: str
    by: str
    tasks: int
    classes: tuple[str, ...]
    standings: tuple[Standing, ...]
    neighbours: tuple[Neighbours, ...]
    copies: Groups
    families: tuple[Family, ...]
    effective: float | None
    effective_interval: tuple[float, float] | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Boards(wire.Document, format=wire.EVALUATION):
    """All sets, and over them everybody who answered in each: `overall` weighs sets by their tasks.

    >>> import verax
    >>> panel = verax.Reports.of([[0, 1] * 20, [0, 1] * 15 + [1, 0] * 5, [0, 0, 1, 1] * 10], agents=[*"abc"])
    >>> [(s.agent, s.accuracy, s.low, s.high) for s in verax.eval(panel.with_truth([0, 1] * 20)).sets[0].standings]
    [('a', 1.0, 1, 1), ('b', 0.75, 2, 2), ('c', 0.5, 3, 3)]
    """

    sets: tuple[Board, ...]
    overall: Board | None
    confidence: float
    explained: tuple[str, ...] = ()

    def to_frame(self, backend: str | None = None) -> Any:
        """A row a standing, of whatever frame library is installed."""
        from verax.frames import to_frame

        names = ("agent", "accuracy", "accuracy_stderr", "logged", "score", "score_stderr", "low", "high", "answered")
        rows = [(board.name, standing) for board in self.sets for standing in board.standings]
        columns: dict[str, list[Any]] = {"set": [name for name, _ in rows]}
        return to_frame(columns | {name: [getattr(s, name) for _, s in rows] for name in names}, backend)

    def _repr_html_(self) -> str:
        from verax.frames import html_table

        return "".join(
            html_table(f"{b.name}, by {b.by}", ("agent", "rank", b.by), [
                (s.agent, f"{s.low} to {s.high}", s.accuracy if b.by == "accuracy" else s.score) for s in b.standings])
            for b in self.sets
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Measured:
    """Values of agents (K,), what each task adds to each apart from its mean, and with it (K, N): 0 where NaN."""

    values: Floats
    influence: Floats
    terms: Floats

    @property
    def errors(self) -> Floats:
        return np.asarray(np.sqrt((self.influence**2).sum(1)))


@said_of_memory("evaluate fewer agents or tasks")
def evaluate(
    logs: Any,
    *more: Any,
    truth: bool = True,
    filter: str | None = None,
    scorer: str | None = None,
    confidence: float = 0.95,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Boards:
    """The leaderboard of logs, folders of logs, data frames or reports; `truth=False` looks at no truth.

    >>> boards = evaluate({"ann": [*"abab"], "bob": [*"abaa"], "cat": [*"abab"]})
    >>> boards.sets[0].by, boards.sets[0].copies
    ('score', ())
    """
    if isinstance(logs, str | os.PathLike):
        sets = task_sets(logs, *more, chosen=Chosen(filter, scorer), executor=executor, progress=progress)
    else:
        sets = [_set_of(as_reports(each), k) for k, each in enumerate((logs, *more), start=1)]
    if not 0.5 <= confidence < 1:
        raise InputError(f"the confidence is {confidence:g}; give a number from 0.5 to below 1, such as 0.95")
    from verax.logs import explanation

    found = [_board_of(each, truth, confidence) for each in sets]
    overall = _overall(found, sets, confidence) if len(found) > 1 else None
    return Boards(tuple(board for board, _, _ in found), overall, confidence, tuple(explanation(sets)))


def _set_of(reports: Reports, k: int) -> TaskSet:
    none = np.zeros(len(reports.agents), dtype=np.int64)
    return TaskSet(f"set {k}", reports, none, none, np.full(len(none), np.nan))


def _board_of(one: TaskSet, truth: bool, confidence: float) -> tuple[Board, _Measured, _Measured]:
    """The board of one set, with its accuracies and scores for the overall one."""
    reports = one.reports
    known = truth and reports.truth is not None
    right = _accuracies(one) if known else _Measured(*_nothing(reports))
    alike, notes = _label_free(reports)
    by = right if known else alike
    ranks = rank_bounds(by.values, by.influence, by.terms, confidence)
    order = sorted(range(len(reports.agents)), key=lambda i: (-_number(by.values[i], -math.inf), reports.agents[i]))
    standings = tuple(_standing(one, i, right, alike, ranks[i], known) for i in order)
    neighbours = _neighbours(reports.agents, order, by, confidence)
    copies, families, effective, interval, more = _shared(reports if known else _without_truth(reports), confidence)
    unlike = [s.agent for s in standings if s.accuracy is not None and s.logged is not None
              and abs(s.accuracy - s.logged) > 5e-4]  # fmt: skip
    if unlike:
        more.append(
            f"the log's own verdicts give another accuracy for {len(unlike)} of {len(standings)} agents, such as "
            f"{unlike[0]!r}: their answers as text were judged otherwise, or could not be read"
        )
    board = Board(
        one.name, "accuracy" if known else "score", len(reports.tasks), reports.classes, standings, neighbours, copies,
        families, effective, interval, (*notes, *more),
    )  # fmt: skip
    return board, right, alike


def _without_truth(reports: Reports) -> Reports:
    from dataclasses import replace

    return replace(reports, truth=None)


def _nothing(reports: Reports) -> tuple[Floats, Floats, Floats]:
    nothing = np.zeros((len(reports.agents), len(reports.tasks)))
    return np.full(len(reports.agents), np.nan), nothing, nothing.copy()


def _accuracies(one: TaskSet) -> _Measured:
    """Shares right of all answers where the truth is known: an answer that is no label is wrong."""
    reports = one.reports
    assert reports.truth is not None
    asked = (reports.labels >= 0) | one.unreadable_at if one.unreadable_at is not None else reports.labels >= 0
    asked = asked & (reports.truth >= 0)
    right = (reports.labels == reports.truth) & asked
    counts = asked.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = right.sum(1) / counts
        influence = np.where(asked, (right - values[:, None]) / counts[:, None], 0.0)
        terms = np.where(asked, right / counts[:, None], 0.0)
    return _Measured(values, influence, terms)


def _label_free(reports: Reports) -> tuple[_Measured, list[str]]:
    """Scores against peers without a label, or why there are none."""
    try:
        ready = prepare(_without_truth(reports).scorable("the logs"), None, None, Mechanism.of())
        scores: Scores = scored(ready)
        values, influence, terms = _nothing(reports)
        for i, (score, worth) in enumerate(zip(scores.scores, worths(ready), strict=True)):
            if score.score is not None and worth is not None:
                own = float(np.sqrt((worth.influence**2).sum()))
                scale = score.stderr / own if score.stderr and own else 1.0  # the errors are those of verax score
                values[i], influence[i, worth.tasks] = score.score, worth.influence * scale
                terms[i, worth.tasks] = worth.influence + score.score / len(worth.tasks)
    except VeraxError as error:
        return _Measured(*_nothing(reports)), [f"no label-free score: {error}"]
    return _Measured(values, influence, terms), list(scores.warnings)


def rank_bounds(values: Floats, influence: Floats, terms: Floats, confidence: float) -> list[tuple[int, int] | None]:
    """The ranks that all paired differences leave open together, 1 the best; None without a value.

    p-values are exact, by swaps of the two agents' reports, up to 40 agents; of more, by the normal law.

    >>> influence = np.array([[0.01, -0.01], [0.01, 0.01]])
    >>> rank_bounds(np.array([0.9, 0.1]), influence, influence + [[0.45], [0.05]], 0.95)
    [(1, 2), (1, 2)]
    """
    able = np.nonzero(np.isfinite(values))[0]
    v, w = values[able], influence[able]
    products = w @ w.T
    own = np.diag(products)
    error = np.sqrt(np.maximum(own[:, None] + own[None, :] - 2 * products, 0.0))
    upper = np.triu_indices(len(able), 1)
    gap, sigma = np.abs(v[:, None] - v[None, :])[upper], error[upper]
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(sigma > 1e-12, gap / sigma, np.where(gap > 1e-12, np.inf, 0.0))
    if len(able) <= _EXACT:
        p = [swap_p_value(terms[able[i]] - terms[able[j]]) for i, j in zip(*upper, strict=True)]
    else:
        p = [math.erfc(x / math.sqrt(2)) for x in z.tolist()]
    decided = np.zeros(error.shape, dtype=bool)
    decided[upper] = np.array(holm(p)) <= 1 - confidence if p else False
    decided |= decided.T
    higher = v[None, :] > v[:, None]
    low, high = 1 + (decided & higher).sum(1), len(able) - (decided & higher.T).sum(1)
    found: list[tuple[int, int] | None] = [None] * len(values)
    for i, a, b in zip(able.tolist(), low.tolist(), high.tolist(), strict=True):
        found[i] = a, b
    return found


def _neighbours(
    agents: Sequence[str], order: Sequence[int], by: _Measured, confidence: float
) -> tuple[Neighbours, ...]:
    """Each agent beside the next, by the swaps of what tasks add to their difference."""
    able = [i for i in order if math.isfinite(by.values[i])]
    seen = []
    for i, j in itertools.pairwise(able):
        each = by.influence[i] - by.influence[j]
        value = float(by.values[i] - by.values[j])
        p = swap_p_value(by.terms[i] - by.terms[j])
        seen.append((agents[i], agents[j], value, float(np.sqrt((each**2).sum())), p))
    adjusted = holm([one[4] for one in seen])
    return tuple(Neighbours(*one[:4], p, p <= 1 - confidence) for one, p in zip(seen, adjusted, strict=True))


def _standing(
    one: TaskSet, i: int, right: _Measured, alike: _Measured, rank: tuple[int, int] | None, known: bool
) -> Standing:
    reports = one.reports
    count, places, hits = _alone(reports, i, known)
    return Standing(
        reports.agents[i], int((reports.labels[i] >= 0).sum()), int(one.unreadable[i]), int(one.silent[i]),
        _number(right.values[i]), _error(right, i), _number(one.logged[i]) if known else None,
        _number(alike.values[i]), _error(alike, i), *_ends(rank),
        tuple(reports.tasks[k] for k in places[:_ALONE]), count, hits, _by_class(reports, i, known),
    )  # fmt: skip


def _alone(reports: Reports, i: int, known: bool) -> tuple[int, list[int], int | None]:
    """On which tasks nobody else says what agent i says; where the truth is known, those it is right on first."""
    mine = reports.labels[i]
    others = (reports.labels == mine).sum(0)
    alone = np.nonzero((mine >= 0) & (others == 1) & ((reports.labels >= 0).sum(0) >= _FEWEST))[0]
    if not known or reports.truth is None:
        return len(alone), alone[:_ALONE].tolist(), None
    hit = mine[alone] == reports.truth[alone]
    return len(alone), [*alone[hit].tolist(), *alone[~hit].tolist()], int(hit.sum())


def _by_class(reports: Reports, i: int, known: bool) -> tuple[float | None, ...]:
    size, mine = len(reports.classes), reports.labels[i]
    if size > _MOST_CLASSES:
        return ()
    said = mine >= 0
    if known and reports.truth is not None:
        of = [said & (reports.truth == k) for k in range(size)]
        return tuple(float((mine[m] == k).mean()) if m.any() else None for k, m in enumerate(of))
    return tuple(float((mine[said] == k).mean()) if said.any() else None for k in range(size))


def _shared(
    reports: Reports, confidence: float
) -> tuple[Groups, tuple[Family, ...], float | None, tuple[float, float] | None, list[str]]:
    """Copies, families and the effective number of agents, or why these cannot be told."""
    notes = []
    try:
        copies = find_copies(reports).groups if len(reports.agents) > 1 and len(reports.classes) > 1 else ()
    except VeraxError as error:
        copies = ()
        notes.append(f"copies: {error}")
    if not 1 < len(reports.agents) <= MOST_AGENTS or len(reports.classes) < 2:
        return copies, (), None, None, notes
    try:
        found = independence_of(reports, confidence)
    except VeraxError as error:
        return copies, (), None, None, [*notes, f"no effective number: {error}"]
    families = tuple(Family(cluster.agents, cluster.effective) for cluster in found.clusters)
    return copies, families, found.effective, found.interval, notes


def _number(value: Any, otherwise: Any = None) -> Any:
    return float(value) if math.isfinite(value) else otherwise


def _error(measured: _Measured, i: int) -> float | None:
    return float(measured.errors[i]) if math.isfinite(measured.values[i]) else None


def _overall(
    found: Sequence[tuple[Board, _Measured, _Measured]], sets: Sequence[TaskSet], confidence: float
) -> Board | None:
    """Everybody who has a value in every set, sets weighed by their tasks."""
    by = "accuracy" if all(board.by == "accuracy" for board, _, _ in found) else "score"
    names = [dict(zip(one.reports.agents, range(len(one.reports.agents)), strict=True)) for one in sets]
    measures = [{"accuracy": right, "score": alike} for _, right, alike in found]
    common = sorted(set.intersection(*(set(each) for each in names)))
    if not common:
        return None
    total = sum(len(one.reports.tasks) for one in sets)
    share = [len(one.reports.tasks) / total for one in sets]
    whole = {}
    for kind in ("accuracy", "score"):
        rows = [(w, m[kind], [index[a] for a in common]) for w, m, index in zip(share, measures, names, strict=True)]
        whole[kind] = _Measured(
            np.sum([w * m.values[at] for w, m, at in rows], axis=0),
            np.concatenate([w * m.influence[at] for w, m, at in rows], axis=1),
            np.concatenate([w * m.terms[at] for w, m, at in rows], axis=1),
        )
    of_all = whole[by]
    ranks = rank_bounds(of_all.values, of_all.influence, of_all.terms, confidence)
    order = sorted(range(len(common)), key=lambda i: (-_number(whole[by].values[i], -math.inf), common[i]))
    of = [{s.agent: s for s in board.standings} for board, _, _ in found]
    standings = tuple(
        Standing(
            common[i], *_totals([each[common[i]] for each in of]),
            _number(whole["accuracy"].values[i]), _error(whole["accuracy"], i), None,
            _number(whole["score"].values[i]), _error(whole["score"], i), *_ends(ranks[i]),
        )
        for i in order
    )  # fmt: skip
    left = len({a for each in names for a in each}) - len(common)
    notes = (f"{left} agent{'s' if left > 1 else ''} not in every set left out",) if left else ()
    neighbours = _neighbours(common, order, whole[by], confidence)
    return Board("overall", by, total, (), standings, neighbours, (), (), None, None, notes)


def _ends(rank: tuple[int, int] | None) -> tuple[int | None, int | None]:
    return (None, None) if rank is None else rank


def _totals(standings: Sequence[Standing]) -> tuple[int, int, int]:
    return (
        sum(s.answered for s in standings), sum(s.unreadable for s in standings), sum(s.silent for s in standings),
    )  # fmt: skip
