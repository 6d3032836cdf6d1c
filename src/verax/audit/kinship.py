"""What agents' errors have in common, in numbers. What to make of it is decided in `independence`.

    u_i(n)   agent i's one-hot label less the mean of its labels on tasks of the same stratum
    C_ij     mean over common tasks of <u_i(n), u_j(n)>: what i and j say together beyond chance
    rho_ij   C_ij / sqrt(C_ii C_jj)

Where the strata are the true labels, C is the covariance of errors: 0 for agents who are independent given the truth.
Without truth it is the pair score, c J_i J_j off the diagonal for independent agents. Either way one factor, b_i b_j,
is what all have in common: hard tasks in the first case, the truth in the second. What a pair has in common beyond that
is its *excess*, (C_ij - b_i b_j) / sqrt((C_ii - b_i^2) (C_jj - b_j^2)), and agents whose excess is large are a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verax.intervals import quantile
from verax.kernels import Floats, Ints, Labels
from verax.statistic import groups

FEWEST = 30  # common tasks below which a pair tells nothing
# Excess of kin, at least. Independent agents of unlike skill on hard tasks stay below 0.1 where the truth is taken out,
# and below 0.13 with two labels where it is not.
LEAST = 0.2
_GROUPS = 25  # of tasks, left out in turn
_STEPS, _ROUNDS = 500, 8
_CLOSEST = 0.02  # of a variance that is left to errors, at least, whatever the factor takes
_BYTES = 2**27  # of deviations that are held at a time

Mask = npt.NDArray[np.bool_]
Cluster = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Products:
    """Sums over groups of tasks of <u_i(n), u_j(n)>, and of common tasks: (G, K, K) each.

    `free` (K, K): the share of its tasks that a pair's sum is over, once the means of strata are taken out.
    """

    sums: Floats
    common: Floats
    free: Floats

    @property
    def tasks(self) -> Floats:
        """How many tasks each pair shares."""
        return np.asarray(self.common.sum(0))

    def covariance(self, without: int | None = None) -> Floats:
        """C, of all tasks or without a group of them."""
        total, n = self.sums.sum(0), self.tasks
        if without is not None:
            total, n = total - self.sums[without], n - self.common[without]
        return np.asarray(total / np.maximum(n * self.free, 1.0))

    def spread(self) -> Floats:
        """The variance of each pair's C, from how much it differs between groups of tasks."""
        n, count = np.maximum(self.tasks, 1.0), len(self.sums)
        mean, squares = self.sums.sum(0) / n, np.zeros(n.shape)
        for total, here in zip(self.sums, self.common, strict=True):
            squares += (total - here * mean) ** 2
        return np.asarray(squares / n**2 * count / max(count - 1, 1))


def products_of(labels: Labels, strata: Ints, classes: int, tasks: Sequence[str]) -> Products:
    """The products of every pair of agents, by groups of tasks that do not depend on their order.

    >>> labels = np.array([[0, 1, 0, 1], [0, 1, 0, 1]])
    >>> products_of(labels, np.zeros(4, dtype=int), 2, "abcd").covariance().round(3).tolist()
    [[0.667, 0.667], [0.667, 0.667]]
    """
    group = groups(tasks) % _GROUPS
    answered = labels >= 0
    levels = int(strata.max(initial=0)) + 1
    means, held = _means_by_stratum(labels, strata, levels, classes)
    sums, common = [], []
    for g in np.unique(group).tolist():
        chosen = np.nonzero(group == g)[0]
        sums.append(_summed_products(labels[:, chosen], strata[chosen], means))
        here = answered[:, chosen].astype(np.float32)
        common.append((here @ here.T).astype(np.float64))
    total, n = np.sum(common, axis=0), np.maximum(answered.sum(1), 1.0)
    used = (held > 0).sum(1)  # strata that each agent's means were taken of
    taken = (used / n)[:, None] + (used / n)[None] - np.minimum.outer(used, used) * total / np.outer(n, n)
    return Products(np.array(sums), np.array(common), np.clip(1 - taken, 1e-3, 1.0))


def _means_by_stratum(labels: Labels, strata: Ints, levels: int, classes: int) -> tuple[Floats, Ints]:
    """The share of each label in each stratum, (K, Z, L), and how many tasks of it each agent answered, (K, Z)."""
    counts = np.zeros((len(labels), levels * classes))
    for row, count in zip(labels, counts, strict=True):
        seen = row >= 0
        count[:] = np.bincount(strata[seen] * classes + row[seen], minlength=levels * classes)
    table = counts.reshape(len(labels), levels, classes)
    held = table.sum(2)
    return table / np.maximum(held, 1.0)[..., None], held.astype(np.int64)


def _summed_products(labels: Labels, strata: Ints, means: Floats) -> Floats:
    """Sum over these tasks of <u_i(n), u_j(n)>."""
    agents, classes = len(labels), means.shape[2]
    step = max(1, _BYTES // (4 * agents * classes))
    total = np.zeros((agents, agents))
    for first in range(0, labels.shape[1], step):
        part, z = labels[:, first : first + step], strata[first : first + step]
        apart = (part[..., None] == np.arange(classes)).astype(np.float32) - means[:, z].astype(np.float32)
        apart[part < 0] = 0.0
        flat = apart.reshape(agents, -1)
        total += flat @ flat.T
    return total


@dataclass(frozen=True, eq=False)
class Kinship:
    """What pairs have in common, and the clusters of those who have more than the factor of all explains.

    `weights` are common tasks, 0 for pairs that are not judged; `rho` what errors share in all, `excess` beyond the
    factor, `stderr` the standard error of the excess, `quantile` how many of them an interval of all pairs takes.
    """

    weights: Floats
    loadings: Floats
    rho: Floats
    excess: Floats
    stderr: Floats
    quantile: float
    clusters: tuple[Cluster, ...]


def kinship_of(products: Products, same: Ints, by_truth: bool, confidence: float) -> Kinship:
    """The clusters that remain once their own pairs no longer enter the factor of all.

    `same` numbers the different reports from 0: the excess of identical ones is 1.
    Without truth, what more than half of the agents have in common is the factor, not a cluster.
    """
    covariance, n = products.covariance(), products.tasks
    own = np.diag(covariance)
    weights = np.where((n >= FEWEST) & (own > 0)[:, None] & (own > 0), n, 0.0)
    np.fill_diagonal(weights, 0.0)
    identical = (same[:, None] == same) & (weights > 0)
    chance = (np.outer(own, own) + covariance**2) / np.maximum(n, 1.0)
    judged = weights > 0
    spread = products.spread()
    if judged.any():  # where errors are few, what groups of tasks happen to show may be too small, or too large
        spread = np.maximum(spread, float(np.median(spread[judged] / chance[judged])) * chance)
    z = quantile(confidence, max(int(judged.sum()) // 2, 1))
    one = np.ix_(*[np.unique(same, return_index=True)[1]] * 2)  # of identical reports, one speaks
    loadings, seen = least_shared(covariance[one], weights[one])[same], list[tuple[Cluster, ...]]()
    if not (by_truth or loadings.any()):  # without truth there is a factor, however thin the pairs
        alike = math.sqrt(max(_mean_over(covariance, weights), 0.0))
        loadings = fitted(covariance, np.where(identical, 0.0, weights), np.full(len(own), alike))
    while True:
        excess, left = excess_over(covariance, loadings, identical)
        stderr = np.where(identical, 0.0, np.sqrt(spread) / np.outer(left, left))
        found = linked(excess, stderr, weights, 0.0 if by_truth else LEAST, z)
        if not by_truth:
            found = tuple(
                c for c in found if 2 * (distinct := len({*same[list(c)]})) <= same.max() + 1 or distinct == 1
            )
        if found in seen or len(seen) == _ROUNDS:
            break
        seen.append(found)
        masked = identical | _within(found, len(own))
        loadings = fitted(covariance, np.where(masked, 0.0, weights), loadings)
    rho = correlation_of(covariance) if by_truth else excess
    return Kinship(weights, loadings, rho, excess, stderr, z, found)


def least_shared(covariance: Floats, weights: Floats) -> Floats:
    """A first guess of the factor, from the quarter of the others that each agent has least in common with.

    Kin, which have more in common, do not enter it while they are no more than three quarters of all.

    >>> b = np.array([0.8, 0.8, 0.6, 0.6, 0.6])
    >>> least_shared(np.outer(b, b) + np.diag(1 - b**2), 1 - np.eye(5)).round(2).tolist()
    [0.8, 0.8, 0.6, 0.6, 0.6]
    """
    scale = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    rho = np.sort(np.where(weights > 0, correlation_of(covariance), np.inf), axis=1)
    count = (weights > 0).sum(1)
    low = rho[np.arange(len(rho)), np.maximum((count - 1) // 4, 0)]
    low = np.where(count > 0, low, 0.0)
    level = np.sort(low[count > 0])[max((int((count > 0).sum()) - 1) // 4, 0)] if (count > 0).any() else 0.0
    if level <= 0:
        return np.zeros(len(low))
    return np.asarray(np.clip(low / math.sqrt(level), 0.0, 0.98) * scale)


def correlation_of(covariance: Floats) -> Floats:
    """The correlations, between -1 and 1 also where a pair's few common tasks say otherwise.

    >>> correlation_of(np.array([[4.0, 1.0], [1.0, 1.0]])).tolist()
    [[1.0, 0.5], [0.5, 1.0]]
    """
    scale = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    return np.asarray(np.clip(covariance / np.outer(scale, scale), -1.0, 1.0))


def fitted(covariance: Floats, weights: Floats, start: Floats, steps: int = _STEPS) -> Floats:
    """b with b_i b_j nearest to C_ij in weighted squares off the diagonal, from a start other than 0.

    >>> b = np.array([0.9, 0.8, 0.7, 0.6])
    >>> fitted(np.outer(b, b), 1 - np.eye(4), np.ones(4)).round(6).tolist()
    [0.9, 0.8, 0.7, 0.6]
    """
    weighted, b = weights * covariance, start
    for _ in range(steps):
        square = weights @ (b * b)
        new = np.divide(weighted @ b, square, out=np.zeros_like(b), where=square > 1e-12)
        b, old = (b + new) / 2, b
        if np.abs(b - old).max(initial=0.0) < 1e-8:
            break
    return b


def excess_over(covariance: Floats, loadings: Floats, identical: Mask) -> tuple[Floats, Floats]:
    """What each pair has in common beyond the factor, and the standard deviation of what it leaves of each agent."""
    own = np.diag(covariance)
    left = np.sqrt(np.maximum(own - loadings**2, _CLOSEST * own + 1e-300))
    excess = (covariance - np.outer(loadings, loadings)) / np.outer(left, left)
    excess = np.where(identical, 1.0, np.clip(excess, -1.0, 1.0))
    np.fill_diagonal(excess, 1.0)
    return np.asarray(excess), np.asarray(left)


def linked(excess: Floats, stderr: Floats, weights: Floats, surely: float, z: float) -> tuple[Cluster, ...]:
    """Clusters by average linkage, largest first: joined while the mean excess is 0.2, and surely above a bound.

    Two groups that have less than half as much in common as one of them has within stay apart.

    >>> excess = np.array([[1, 0.9, 0], [0.9, 1, 0], [0, 0, 1]])
    >>> linked(excess, np.full((3, 3), 0.05), 1 - np.eye(3), 0.0, 3.0)
    ((0, 1),)
    """
    members = [[i] for i in range(len(excess))]
    total, error, weight = weights * excess, weights * stderr, weights.copy()
    sure = _above(total, error, weight, surely, z)
    while sure.size:
        i, j = divmod(int(sure.argmax()), len(sure))
        if sure[i, j] <= 0:
            break
        for table in (total, error, weight):
            table[i] += table[j]
            table[:, i] += table[:, j]
            table[j] = table[:, j] = 0.0
        members[i] += members[j]
        members[j] = []
        sure[j] = sure[:, j] = -np.inf
        sure[i] = sure[:, i] = _above(total[i], error[i], weight[i], surely, z)
        inside = np.divide(np.diag(total), np.diag(weight), out=np.zeros(len(sure)), where=np.diag(weight) > 0)
        between = np.divide(total[i], weight[i], out=np.zeros(len(sure)), where=weight[i] > 0)
        loose = between < np.maximum(inside, inside[i]) / 2
        loose[i] = True
        sure[i, loose] = sure[loose, i] = -np.inf
    found = [tuple(sorted(group)) for group in members if len(group) > 1]
    return tuple(sorted(found, key=lambda group: (-len(group), group)))


def _above(total: Floats, error: Floats, weight: Floats, surely: float, z: float) -> Floats:
    """By how much means of excess pass the least, and, their errors taken off, the bound; of no pair nothing does."""
    n = np.where(weight > 0, weight, 1.0)
    passed = np.minimum(total - LEAST * weight, total - z * error - surely * weight) / n
    return np.asarray(np.where(weight > 0, passed, -np.inf))


def _within(clusters: Sequence[Cluster], agents: int) -> Mask:
    """The pairs inside clusters."""
    mask = np.zeros((agents, agents), dtype=bool)
    for cluster in clusters:
        mask[np.ix_(cluster, cluster)] = True
    return mask


@dataclass(frozen=True)
class Worth:
    """How many independent agents a panel is worth: in a plain vote, with each cluster counted once, and each cluster.

    `shared`: the mean correlation of errors between agents of different clusters; `within` that inside each.
    """

    plain: float
    once: float
    each: tuple[float, ...]
    shared: float
    within: tuple[float, ...]


def worth_of(rho: Floats, weights: Floats, clusters: Sequence[Cluster]) -> Worth:
    """K / (1 + (K - 1) mean rho), Kish's effective sample size; and the same of clusters, weighted as they are worth.

    A cluster of a agents whose errors correlate by r has the mean error of 1 / v independent ones, v = (1 + (a-1) r)/a.
    With correlation s between clusters, the best weights are as 1 / (v - s), and all together are worth
    A / (1 + s A), A = sum 1 / (v - s).

    >>> two = np.kron(np.eye(2), np.ones((3, 3)))  # six agents, two families of copies
    >>> worth_of(two, 1 - np.eye(6), [(0, 1, 2), (3, 4, 5)]).plain
    2.0
    """
    agents, inside = len(rho), _within(clusters, len(rho))
    mean = _mean_over(rho, weights)
    shared = _mean_over(rho, np.where(inside, 0.0, weights))
    within = [_mean_over(rho[np.ix_(c, c)], weights[np.ix_(c, c)]) for c in clusters]
    variance = [(1 + (len(c) - 1) * r) / len(c) for c, r in zip(clusters, within, strict=True)]
    alone = agents - sum(map(len, clusters))
    if len(clusters) == 1 and not alone:
        once = 1 / variance[0]
    else:
        parts = [1 / max(v - shared, 1e-6) for v in [*variance, *[1.0] * alone]]
        once = math.fsum(parts) / max(1 + shared * math.fsum(parts), 1e-6)
    plain = agents / max(1 + (agents - 1) * mean, 1 / agents)
    return Worth(plain, once, tuple(1 / v for v in variance), shared, tuple(within))


def _mean_over(values: Floats, weights: Floats) -> float:
    total = float(weights.sum())
    return float((values * weights).sum()) / total if total else 0.0


def jackknifed(products: Products, kin: Kinship, same: Ints, by_truth: bool) -> list[Worth]:
    """What the panel is worth without each group of tasks in turn, its clusters kept."""
    identical = (same[:, None] == same) & (kin.weights > 0)
    apart = np.where(identical | _within(kin.clusters, len(same)), 0.0, kin.weights)
    found = []
    for g in range(len(products.sums)):
        covariance = products.covariance(without=g)
        if by_truth:
            rho = correlation_of(covariance)
        else:
            rho, _ = excess_over(covariance, fitted(covariance, apart, kin.loadings, 50), identical)
        found.append(worth_of(rho, kin.weights, kin.clusters))
    return found


def interval_of(
    value: float, without: Sequence[Worth], confidence: float, number: Callable[[Worth], float]
) -> tuple[float, float]:
    """The jackknife's interval of a positive number, on the scale of its logarithm."""
    logs = np.log([max(number(w), 1e-9) for w in without])
    count = len(logs)
    error = math.sqrt((count - 1) / count * float(((logs - logs.mean()) ** 2).sum()))
    reach = math.exp(student(confidence, count - 1) * error)
    return value / reach, value * reach


def student(confidence: float, freedom: int) -> float:
    """The two-sided quantile of Student's t, by its expansion about the normal one.

    >>> round(student(0.95, 24), 3)
    2.064
    """
    z, n = quantile(confidence), max(freedom, 1)
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
