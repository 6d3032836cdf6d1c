"""INDEPENDENT: how many independent agents a panel is worth, and who shares errors with whom. Numbers: `kinship`.

With truth, what agents say is compared within each true label, so that whatever two have in common is shared error.
Hard tasks make all agents err together; clusters are those who share more than that. Without truth, what all have in
common is taken to be the truth: errors that all share cannot be seen, the effective number is an upper bound, and of a
cluster it cannot be told whether it is a family or a tier of skill, unless outsiders stand between its members.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from verax import wire
from verax.audit.certificate import Certificate, Interval, tasks_needed
from verax.audit.kinship import FEWEST, Kinship, Worth, interval_of, jackknifed, kinship_of, products_of, worth_of
from verax.errors import InputError, OptionError
from verax.intervals import quantile
from verax.kernels import Floats, Ints, Labels, engine
from verax.mechanisms.skilled import label_pairs
from verax.public import Public
from verax.reports import Reports, as_reports, some
from verax.shape import check_table
from verax.space import said_of_memory

MOST_AGENTS = 1000  # whose pairs are judged beside one another
_APART = 0.3  # excess that no pair may have where agents are said to be independent
_ENOUGH = 0.8  # of their number, that agents must be worth where they are said to be independent
_WANTED = 0.1  # of the effective number: the error that labelled tasks should come to


@dataclass(frozen=True)
class Cluster(wire.Document):
    """Agents that share more than all agents do, and how many independent ones they are worth.

    `correlation` of their errors, the mean over pairs, and what of it is `beyond` what all share; without truth both
    are what skill does not explain. `identical`: their reports do not differ. `certain`: no tier of skill explains it.
    """

    agents: tuple[str, ...]
    effective: float
    interval: tuple[float, float]
    correlation: float
    beyond: float
    identical: bool
    certain: bool


@dataclass(frozen=True)
class Closest(wire.Document):
    """The two agents outside any common cluster that may share most beyond what all share."""

    a: str
    b: str
    beyond: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Member(wire.Document):
    """One agent: its cluster's place, its score over all peers, and that with each cluster counted once."""

    agent: str
    cluster: int | None
    score: float | None
    once: float | None


@dataclass(frozen=True, eq=False)
class Excess:
    """What pairs of agents share beyond what all do, clusters first: for drawing."""

    agents: tuple[str, ...]
    values: Floats
    clusters: tuple[tuple[int, ...], ...]
    by_truth: bool


@dataclass(frozen=True)
class Independence(wire.Document, format=wire.INDEPENDENCE):
    """How many independent agents a panel is worth, and its clusters.

    `given`: seen by truth or by reports alone, of the `judged` agents. `effective`: in a plain vote, K / (1 + (K - 1)
    mean correlation); `once`: with each cluster counted once. `labels`: without truth, about how many labelled tasks
    would give the effective number to a tenth.

    >>> import verax
    >>> from verax.demo import bundled
    >>> found = verax.independence(bundled())
    >>> [c.agents for c in found.clusters], found.labels
    ([('tree-80', 'copycat')], 770)
    """

    given: str
    tasks: int
    judged: int
    confidence: float
    effective: float
    interval: tuple[float, float]
    once: float
    once_interval: tuple[float, float]
    shared: float
    clusters: tuple[Cluster, ...]
    closest: Closest | None
    agents: tuple[Member, ...]
    labels: int | None
    warnings: tuple[str, ...] = ()
    excess: Excess | None = wire.unwritten(None, compare=False, repr=False)

    @property
    def by_truth(self) -> bool:
        """Whether the truth was known of the tasks that entered."""
        return self.given == "truth"

    def order(self, once: bool = True) -> list[str]:
        """The agents, best first, with each cluster counted once or as they are; those without a score last."""
        value = {m.agent: m.once if once else m.score for m in self.agents}
        return sorted(value, key=lambda agent: (value[agent] is None, -(value[agent] or 0.0), agent))


@said_of_memory("take fewer agents or tasks")
def independence(
    reports: Any, truth: Any = None, public: npt.ArrayLike | None = None, *, confidence: float = 0.95
) -> Independence:
    """How many independent agents these are worth, and which share errors: by truth where given, else by reports alone.

    `public` strata are taken out too: known difficulty, say, which else counts as shared by all.

    >>> panel = [[0, 1] * 20, [0, 1] * 20, [1, 1, 0, 0] * 10, [1, 0, 0, 1] * 10]
    >>> found = independence(panel, truth=[0, 1, 1, 0] * 10)
    >>> found.effective < 3, found.clusters[0].agents
    (True, ('0', '1'))
    """
    found = as_reports(reports)
    found = replace(found, truth=None) if truth is None else found.with_truth(truth)
    found = found if public is None else found.with_public(public)
    return independence_of(found.scorable(), confidence)


def independence_of(reports: Reports, confidence: float = 0.95) -> Independence:
    """The same of checked reports, by whatever truth and strata they carry."""
    if not 0.5 <= confidence < 1:
        raise OptionError(f"the confidence is {confidence:g}; give a number from 0.5 to below 1, such as 0.95")
    if len(reports.agents) > MOST_AGENTS:
        raise InputError(
            f"{len(reports.agents):,} agents: shared errors are judged for {MOST_AGENTS:,} at most; ask of some of them"
        )
    whole, notes = reports, list[str]()
    if reports.truth is not None:
        known = reports.truth >= 0
        if known.sum() < FEWEST:
            notes.append(f"the truth of {known.sum()} tasks is too little for shared errors: {FEWEST} are needed")
        reports = replace(reports, truth=None) if known.sum() < FEWEST else reports.take(known)
    check_table(len(reports.classes))
    strata = _strata_of(reports)
    chosen, lost = _judged(reports, strata)
    if lost:
        notes.append(f"not judged, for want of answers or of any difference between them: {some(lost)}")
    if len(chosen) < 2:
        raise InputError(
            f"no two agents share {FEWEST} tasks on which both differ from a constant answer; give more tasks"
        )
    return _found(whole, reports.only(*chosen), chosen, strata, confidence, tuple(notes))


def _strata_of(reports: Reports) -> Ints:
    """The tasks by true label and public stratum, as far as either is known."""
    signal = Public.of(reports.public, len(reports.tasks))
    strata = np.zeros(len(reports.tasks), dtype=np.int64) if signal.strata is None else signal.strata.astype(np.int64)
    if reports.truth is not None:
        strata = strata * len(reports.classes) + reports.truth
    return np.asarray(np.unique(strata, return_inverse=True)[1].reshape(-1), dtype=np.int64)


def _judged(reports: Reports, strata: Ints) -> tuple[list[int], list[str]]:
    """Agents whose labels differ within a stratum and who share enough tasks with somebody, and the names of others."""
    answered = reports.labels >= 0
    varies = np.zeros(len(reports.agents), dtype=bool)
    for z in np.unique(strata).tolist():
        labels = reports.labels[:, strata == z]
        seen = np.where(labels < 0, labels.max(1, initial=-1)[:, None], labels)
        varies |= (seen != seen.max(1, initial=-1)[:, None]).any(1)
    answered = answered[varies].astype(np.float32)
    common = answered @ answered.T
    np.fill_diagonal(common, 0)
    able = np.zeros(len(varies), dtype=bool)
    able[np.nonzero(varies)[0]] = (common >= FEWEST).any(1)
    lost = [agent for agent, kept in zip(reports.agents, able.tolist(), strict=True) if not kept]
    return np.nonzero(able)[0].tolist(), lost


def _found(
    whole: Reports, judged: Reports, chosen: Sequence[int], strata: Ints, confidence: float, notes: tuple[str, ...]
) -> Independence:
    by_truth = judged.truth is not None
    products = products_of(judged.labels, strata, len(judged.classes), judged.tasks)
    same = np.unique(judged.labels, axis=0, return_inverse=True)[1].reshape(-1)
    kin = kinship_of(products, same, by_truth, confidence)
    worth = worth_of(kin.rho, kin.weights, kin.clusters)
    without = jackknifed(products, kin, same, by_truth)
    plain, once = (
        interval_of(value, without, confidence, number)
        for value, number in ((worth.plain, lambda w: w.plain), (worth.once, lambda w: w.once))
    )
    if not by_truth:  # what all share is not seen, and may be everything
        most = float(len(chosen))
        worth = replace(worth, plain=min(worth.plain, most), once=min(worth.once, most))
        plain = once = (1.0, min(max(plain[1], once[1]), most))
    clusters = tuple(
        _cluster(judged, kin, worth, without, c, same, by_truth, confidence) for c in range(len(kin.clusters))
    )
    return Independence(
        "truth" if by_truth else "reports", len(judged.tasks), len(chosen), confidence, worth.plain, plain, worth.once,
        once, worth.shared, clusters, _closest(judged, kin), _members(whole, chosen, kin),
        None if by_truth else _labels_needed(judged.labels, len(judged.classes), confidence), notes,
        _in_order(judged, kin),
    )  # fmt: skip


def _cluster(
    judged: Reports, kin: Kinship, worth: Worth, without: Sequence[Worth], c: int, same: Ints, by_truth: bool,
    confidence: float,
) -> Cluster:  # fmt: skip
    members = kin.clusters[c]
    inside = np.ix_(members, members)
    weights = kin.weights[inside]
    identical = len({*same[list(members)].tolist()}) == 1
    return Cluster(
        tuple(judged.agents[i] for i in members),
        worth.each[c],
        interval_of(worth.each[c], without, confidence, lambda w: w.each[c]),
        worth.within[c],
        float((kin.excess[inside] * weights).sum() / weights.sum()),
        identical,
        by_truth or identical or _no_tier(kin, members),
    )


def _no_tier(kin: Kinship, members: Sequence[int]) -> bool:
    """Whether a cluster seen without truth can be no tier of skill: a few, with outsiders' skill between theirs."""
    agents, groups = len(kin.loadings), len(kin.loadings) - sum(len(c) - 1 for c in kin.clusters)
    outside = np.delete(kin.loadings, list(members))
    own = kin.loadings[list(members)]
    return groups >= 3 and 3 * len(members) <= agents and bool(((outside > own.min()) & (outside < own.max())).any())


def _closest(judged: Reports, kin: Kinship) -> Closest | None:
    """The pair of different clusters whose excess may be largest."""
    open_ = kin.weights > 0
    for cluster in kin.clusters:
        open_[np.ix_(cluster, cluster)] = False
    if not open_.any():
        return None
    reach = kin.quantile * kin.stderr
    i, j = sorted(divmod(int(np.where(open_, kin.excess + reach, -np.inf).argmax()), len(open_)))
    value, error = float(kin.excess[i, j]), float(reach[i, j])
    return Closest(judged.agents[i], judged.agents[j], value, (max(value - error, -1.0), min(value + error, 1.0)))


def _members(whole: Reports, chosen: Sequence[int], kin: Kinship) -> tuple[Member, ...]:
    """Every agent's score by its labels over all peers, and over the others' clusters, each counted once."""
    place = np.full(len(whole.agents), -1)
    for c, cluster in enumerate(kin.clusters):
        place[[chosen[i] for i in cluster]] = c
    values, common = label_pairs(whole.labels, len(whole.classes), engine())
    able = common >= 2
    np.fill_diagonal(able, False)
    size = np.where(place < 0, 1, np.bincount(place + 1)[place + 1])
    counted = np.where((place[:, None] == place) & (place >= 0), 0.0, able / size)
    rows = zip(
        whole.agents,
        place.tolist(),
        _weighted(values, able.astype(np.float64)),
        _weighted(values, counted),
        strict=True,
    )
    return tuple(Member(agent, None if c < 0 else c, score, once) for agent, c, score, once in rows)


def _weighted(values: Floats, weights: Floats) -> list[float | None]:
    found = []
    for value, weight in zip(values, weights, strict=True):
        total = math.fsum(weight.tolist())
        found.append(math.fsum((value * weight).tolist()) / total if total else None)
    return found


def _labels_needed(labels: Labels, classes: int, confidence: float) -> int:
    """About how many labelled tasks give the effective number to a tenth; rare errors take more.

    The square of errors that have a variance of 1 varies by 1 / (e (1 - e)) - 4 where all err together, at a rate e,
    and by 2 where many err apart.
    """
    votes = np.stack([(labels == k).sum(0) for k in range(classes)])
    departs = (labels != votes.argmax(0)) & (labels >= 0)
    rate = min(max(float(departs.sum() / max((labels >= 0).sum(), 1)), 0.005), 0.5)
    need = max(2.0, 1 / (rate * (1 - rate)) - 4) * (quantile(confidence) / _WANTED) ** 2
    digits: int = 10 ** max(0, math.floor(math.log10(need)) - 1)
    return math.ceil(need / digits) * digits


def _in_order(judged: Reports, kin: Kinship) -> Excess:
    """The matrix with clusters first, and the others by what they have in common with all."""
    inside = [i for cluster in kin.clusters for i in cluster]
    rest = sorted({*range(len(judged.agents))} - {*inside}, key=lambda i: -kin.loadings[i])
    order = [*inside, *rest]
    place = {i: k for k, i in enumerate(order)}
    values = np.where(kin.weights > 0, kin.excess, np.nan)[np.ix_(order, order)]
    clusters = tuple(tuple(place[i] for i in cluster) for cluster in kin.clusters)
    return Excess(tuple(judged.agents[i] for i in order), values, clusters, judged.truth is not None)


def independent(reports: Reports, confidence: float, copied: Collection[str] = ()) -> list[Certificate]:
    """INDEPENDENT: one certificate for all agents, and one for each that shares more than all do.

    `copied`: agents that COPIES names, which are said to be.
    """
    try:
        found = independence_of(reports, confidence)
    except InputError as error:
        return [Certificate("INDEPENDENT", None, "not-applicable", None, None, None, str(error))]
    return [_of_all(found), *(_of_member(found, c, agent, copied) for c in found.clusters for agent in c.agents)]


def _of_all(found: Independence) -> Certificate:
    verdict, why = _verdict(found)
    chains = [_chain(c.agents) for c in found.clusters] if verdict == "fails" else []
    witness = {held: said for chain in chains for held, said in chain.items()} or None
    return Certificate("INDEPENDENT", None, verdict, found.effective, found.interval, witness, why)


def _chain(agents: Sequence[str]) -> dict[str, str]:
    return dict(itertools.pairwise(agents))


def _verdict(found: Independence) -> tuple[str, str]:
    """The verdict of all agents, and why."""
    most = "" if found.by_truth else "at most "
    worth = f"{found.judged} agents are worth {most}{_number(found.effective, found.interval)} in a plain vote"
    if found.clusters:
        worth += f", {most}{found.once:.1f} with each cluster counted once"
        named = f"{len(found.clusters)} cluster{'s' * (len(found.clusters) > 1)} of agents that share more than all do"
        if any(c.certain for c in found.clusters):
            return "fails", f"{worth}: {named}{'' if found.by_truth else _unseen(found)}"
        return "undecided", f"{worth}: {named}, by kinship or by like skill at hard tasks{_unseen(found)}"
    if not found.by_truth:
        return "undecided", f"{worth}: nobody agrees more than skill explains{_unseen(found)}"
    return _verdict_without_clusters(found, worth)


def _unseen(found: Independence) -> str:
    return (
        f"; errors that all share cannot be seen without truth: about {found.labels:,} labelled tasks drawn at random "
        "would tell"
    )


def _verdict_without_clusters(found: Independence, worth: str) -> tuple[str, str]:
    """With truth, and nobody kin: independent, all sharing alike, or not told yet."""
    enough, (low, high) = _ENOUGH * found.judged, found.interval
    if high < enough:
        return "undecided", (
            f"{worth}: all share errors alike, as hard tasks make them and as one source behind all would; more tasks "
            "do not tell which, strata of known difficulty do"
        )
    nearest, top = (found.closest.beyond, found.closest.interval[1]) if found.closest else (0.0, 0.0)
    if low >= enough and top < _APART:
        return "holds", f"{worth}: no two share more than {top:.2f} of their errors beyond what all share"
    ratio = max(
        (top - nearest) / max(_APART - nearest, 1e-9) if top >= _APART else 0.0,
        (found.effective - low) / max(abs(found.effective - enough), 1e-9) if low < enough else 0.0,
    )
    return "undecided", f"{worth}, and two may share as much as {top:.2f}; {tasks_needed(found.tasks, ratio)}"


def _number(value: float, interval: Interval) -> str:
    return f"{value:.1f} independent ones ({interval[0]:.1f} to {interval[1]:.1f})"


def _of_member(found: Independence, cluster: Cluster, agent: str, copied: Collection[str]) -> Certificate:
    others = [other for other in cluster.agents if other != agent]
    together = f"the {len(cluster.agents)} are worth {_number(cluster.effective, cluster.interval)}"
    twins = [other for other in cluster.agents if other in copied]
    near = "" if not twins else "; COPIES names " + ("them too" if len(twins) > len(others) else some(twins))
    if cluster.identical:
        why = f"says the same as {some(others)} on every task; {together}{near}"
    elif found.by_truth:
        why = (
            f"its errors go with those of {some(others)}: correlation {cluster.correlation:.2f}, {cluster.beyond:.2f} "
            f"beyond what all share; {together}{near}"
        )
    else:
        why = f"agrees with {some(others)} {cluster.beyond:.2f} more than skill explains; {together}{near}"
    if not cluster.certain:
        why += f"; kin, or of like skill at hard tasks: about {found.labels:,} labelled tasks would tell"
    verdict = "fails" if cluster.certain else "undecided"
    witness = _chain([agent, *others]) if cluster.certain else None
    return Certificate("INDEPENDENT", agent, verdict, cluster.effective, cluster.interval, witness, why)
