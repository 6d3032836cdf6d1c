"""Sides: a crowd that is split over what its labels mean, told from one that agrees; nobody is scored here.

Renaming labels together is a symmetry: no score on agreement tells a ring of more than half from the others. What can
be told is that there are two camps, and which of them a few known labels favour. That one is paid, each of it beside
the others of it. Without known labels a split crowd is reported, and its round is for somebody to decide.

    u      (K, N, L)  what each agent says, less its mean, all of one length
    camps  (K,)       +1 and -1 so that, label by label, the camps go against each other most: the sum over labels of
                      max(0, -<sum of u in one, sum of u in the other>). Agents that hold different labels of a skewed
                      data set go with one another or not at all; only who renames goes against
    D      (N, L)     the mean u of one camp minus that of the other: where to look for who is right. An agent belongs
                      to a camp by <u, D>, and a known label y of task n speaks for D(n, y)

Whole camps are held against one another because pairs tell little: two agents who each say a label three times in a
hundred meet on it too seldom, ten beside ten do not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from verax.errors import InputError
from verax.space import check_memory
from verax.topk import one_hot

Floats = npt.NDArray[np.float64]
SURE = 3.0  # standard errors
ASKED = 10  # tasks that somebody is asked to label where a crowd is split
_CROWD = 0.2  # of all who take a side: from here on, and from two agents on, a second side is no outlier
# By how much renaming one camp's labels must make it more like the other. In honest crowds of twenty, on skewed MNIST
# and digits, it was 0.19 at most, and then the camp was two or three; rings that turned three of ten had 0.16 to 0.7.
_RENAMED = 0.15
_LEANS = 2.0  # standard errors to the other camp, from which on an agent counts as of it
_TELLS = 1.0  # standard errors that known labels must favour a camp by


@dataclass(frozen=True)
class Sides:
    """A crowd cut in two, as places in the order of the reports; `neither` agree and disagree with nobody.

    `paid` is the side that known labels favour, or the only one; empty where the crowd is split and nothing favours
    either: then `held` is true, `why` says so, and `ask` are the tasks whose labels would tell most.
    """

    larger: tuple[int, ...]
    smaller: tuple[int, ...]
    neither: tuple[int, ...]
    paid: tuple[int, ...]
    why: str
    ask: tuple[int, ...] = ()

    @property
    def held(self) -> bool:
        """Whether nobody can be paid before somebody decides."""
        return not self.paid

    def outsiders(self, agents: Sequence[str]) -> dict[str, str]:
        """Who is not on the side to pay, and why; a split crowd of which nothing favours either side is refused.

        >>> said = np.arange(60) % 3
        >>> sides([said, said, said, (said + 1) % 3], 3).outsiders(["ann", "bob", "cy", "dan"])
        {'dan': 'it disagrees over what labels mean with the side that is paid (3 agree, 1 do not)'}
        """
        if self.held:
            raise InputError(f"{self.why}; the round is held, and nobody is paid before somebody decides")
        no_tie = "it neither agrees nor disagrees with anybody: nothing can be seen in its labels"
        apart = f"it disagrees over what labels mean with the side that is paid ({self.why})"
        return {agent: no_tie if i in self.neither else apart for i, agent in enumerate(agents) if i not in self.paid}


def sides(
    said: npt.ArrayLike,
    classes: int,
    gold: Mapping[int, int] | None = None,
    sure: float = SURE,
    *,
    trusted: Sequence[int] = (),
) -> Sides:
    """Whom to pay in a crowd that may be split over what labels mean.

    `said`: labels (agents, tasks), or rows of probabilities (agents, tasks, classes), which tell more. `gold`: {task:
    true label}; the ten tasks of `ask` tell more than ten drawn at random. `trusted`: agents whose side is the right
    one, where there are no known labels, such as those who were paid before.

    >>> rng = np.random.default_rng(0)
    >>> truth = rng.integers(0, 3, 300)
    >>> answers = [np.where(rng.random(300) < 0.8, truth, 0) for _ in range(9)]
    >>> crowd = answers[:4] + [(row + 1) % 3 for row in answers[4:]]
    >>> found = sides(crowd, 3)
    >>> found.why
    'split 5 to 4 over what labels mean; known labels, ten or more, would tell which side to pay'
    >>> sides(crowd, 3, gold={n: int(truth[n]) for n in found.ask}).paid
    (0, 1, 2, 3)
    """
    return _Crowd(_centred(said, classes), sure).told(dict(gold or {}), trusted)


def _centred(said: npt.ArrayLike, classes: int) -> Floats:
    """u (K, N, L): one-hot labels or rows, less each agent's mean, all of one length; 0 of who always says the same."""
    given = np.asarray(said)
    check_memory("who says what", "leave sides out, or take fewer classes", *given.shape[:2], classes, each=24)
    rows = (
        np.stack([one_hot(row, classes) for row in _checked_labels(given, classes)])
        if given.ndim != 3
        else _checked_rows(given, classes)
    )
    left = rows - rows.mean(1, keepdims=True)
    length = np.sqrt((left**2).mean((1, 2), keepdims=True))
    return np.where(length > 1e-9, left / np.maximum(length, 1e-9), 0.0)


def _checked_labels(labels: npt.ArrayLike, classes: int) -> npt.NDArray[np.int64]:
    table = np.asarray(labels)
    if table.ndim != 2 or table.dtype.kind not in "iu" or table.shape[1] < 2:
        raise InputError(f"labels have shape {table.shape} and type {table.dtype}; give whole numbers (agents, tasks)")
    if table.min() < 0 or table.max() >= classes:
        raise InputError(f"a label is not from 0 to {classes - 1}; sides are told where everybody answers every task")
    return table.astype(np.int64)


def _checked_rows(rows: npt.NDArray[np.generic], classes: int) -> Floats:
    found = rows.astype(np.float64)
    if rows.shape[1] < 2 or rows.shape[2] != classes or not np.isfinite(found).all():
        raise InputError(
            f"rows have shape {rows.shape}; give finite probabilities (agents, tasks, {classes}) of every task"
        )
    return found


@dataclass(frozen=True, eq=False)
class _Crowd:
    """What everybody says, and the two camps in it."""

    u: Floats
    sure: float

    @cached_property
    def camps(self) -> Floats:
        """+1 and -1 of every agent; all +1 where renaming one camp's labels would make it no more like the other."""
        found = _opposed(self.u)
        one, other = (self.u[found == s].sum(0) for s in (1, -1))
        return found if _better_renamed(one.T @ other) >= _RENAMED else np.ones(len(found))

    @cached_property
    def disputed(self) -> npt.NDArray[np.bool_]:
        """The labels on which the camps go against each other."""
        one, other = (self.u[self.camps == s].sum(0) for s in (1, -1))
        return np.asarray((one * other).sum(0) < 0)

    @cached_property
    def apart(self) -> Floats:
        """D (N, L), 0 on labels that are not disputed."""
        one, other = (self.u[self.camps == s] for s in (1, -1))
        return (one.mean(0) - other.mean(0)) * self.disputed if len(one) and len(other) else np.zeros(self.u.shape[1:])

    @cached_property
    def leanings(self) -> Floats:
        """How many standard errors each agent leans to the first camp, on disputed labels, its own part left out."""
        sums = {s: self.u[self.camps == s].sum(0) for s in (1, -1)}
        sizes = {s: int((self.camps == s).sum()) for s in (1, -1)}
        found = []
        for u, camp in zip(self.u, self.camps, strict=True):
            one, other = ((sums[s] - u * (s == camp)) / max(sizes[s] - (s == camp), 1) for s in (1, -1))
            apart = (one - other)[:, self.disputed]
            found.append(_errors_above_0((u[:, self.disputed] * (apart - apart.mean(0))).sum(1)))
        return np.array(found)

    def agree_with(self, camp: int) -> npt.NDArray[np.bool_]:
        """Who agrees surely, over all labels, with those of a camp that are others."""
        total = self.u[self.camps == camp].sum(0)
        beside = [(u * (total - u * (camp == own))).sum(1) for u, own in zip(self.u, self.camps, strict=True)]
        return np.array([_errors_above_0(psi) > self.sure for psi in beside])

    def told(self, gold: Mapping[int, int], trusted: Sequence[int]) -> Sides:
        ties = {s: self.agree_with(s) for s in (1, -1)}
        tied = ties[1] | ties[-1] | (np.abs(self.leanings) > self.sure)
        one, other = (tuple(np.nonzero((self.camps == s) & tied)[0].tolist()) for s in (1, -1))
        larger, smaller = sorted((one, other), key=len, reverse=True)
        neither = tuple(np.nonzero(~tied)[0].tolist())
        of_the_larger = 1 if larger is one else -1
        split = len(smaller) >= 2 and len(smaller) >= _CROWD * (len(larger) + len(smaller))
        favoured, why = self._favoured(gold, trusted) if smaller else (of_the_larger, "")
        if not favoured and split:
            ask = tuple(self._telling(ASKED, gold))
            hint = f"those of tasks {', '.join(map(str, ask))} tell most" if gold else ""
            why = why or "known labels, ten or more, would tell which side to pay"
            why = f"split {len(larger)} to {len(smaller)} over what labels mean; {why}{hint}"
            return Sides(larger, smaller, neither, (), why, ask)
        favoured = favoured or of_the_larger
        with_it = (self.leanings * favoured > -_LEANS) & ties[favoured] if smaller else ties[favoured]
        side, rest = (one, other) if favoured == 1 else (other, one)
        why = f"{why} the side of {len(side)} against {len(rest)}" if why else f"{len(side)} agree, {len(rest)} do not"
        return Sides(larger, smaller, neither, tuple(np.nonzero(with_it)[0].tolist()), why)

    def _favoured(self, gold: Mapping[int, int], trusted: Sequence[int]) -> tuple[int, str]:
        """Which camp is right, +1 or -1, and who says so; 0 where nothing tells."""
        speaks = self.apart[list(gold), list(gold.values())]
        total, error = math.fsum(speaks), math.sqrt(math.fsum(speaks**2))
        if error and abs(total) >= _TELLS * error:
            return (1 if total > 0 else -1), f"{len(gold)} known labels favour"
        if before := math.fsum(self.camps[list(trusted)]):
            return (1 if before > 0 else -1), f"{len(trusted)} who were paid before are on"
        return 0, f"{len(gold)} known labels favour neither, " if gold else ""

    def _telling(self, wanted: int, known: Collection[int]) -> list[int]:
        """Tasks on which the camps differ most: in turn for every disputed label and either camp, none twice."""
        orders = [
            np.argsort(-s * self.apart[:, c], kind="stable") for c in np.nonzero(self.disputed)[0] for s in (1, -1)
        ]
        in_turn = np.stack(orders, axis=1).ravel().tolist()
        return [n for n in dict.fromkeys(in_turn) if n not in known][:wanted]


def _errors_above_0(psi: Floats) -> float:
    error = float(psi.std()) / math.sqrt(len(psi))
    return float(psi.mean()) / max(error, 1e-9)


def _opposed(u: Floats) -> Floats:
    """The two camps that go against each other most, by a local search from many cuts; all +1 where none do."""
    tables = np.einsum("inl,jnl->lij", u, u, optimize=True) / u.shape[1]
    tables[:, np.arange(len(u)), np.arange(len(u))] = 0.0
    best, most = np.ones(len(u)), 1e-9
    for start in _starts(tables):
        camps, found = _searched(tables, start)
        if found > most * (1 + 1e-9):
            best, most = camps, found
    return best


def _starts(tables: Floats) -> Iterator[Floats]:
    """Signs of the leading eigenvectors of each label's table and of their sum; each label is a cut of its own."""
    for table, leading in [*((table, 3) for table in tables), (tables.sum(0), 4)]:
        for vector in np.linalg.eigh(table)[1][:, ::-1][:, :leading].T:
            yield np.where(vector >= 0, 1.0, -1.0)


def _searched(tables: Floats, camps: Floats) -> tuple[Floats, float]:
    """Labels that a cut disputes and the best cut of those labels, in turn, until it disputes no more."""
    most = -math.inf
    while True:
        across = np.einsum("i,lij,j->l", camps > 0, tables, camps < 0)
        found = float(-across[across < 0].sum())
        if found <= most * (1 + 1e-9) or not found:
            return camps, max(found, most)
        best, most = camps, found
        camps = _settled(tables[across < 0].sum(0), best)


def _settled(table: Floats, start: Floats) -> Floats:
    """Whoever goes more with the other camp goes over, the one with most first, until nobody does."""
    x = start.copy()
    while (gain := -x * (table @ x)).max() > 1e-9:
        x[gain.argmax()] *= -1
    return x


def _better_renamed(shared: Floats) -> float:
    """By what share of it two camps have more in common once the second's labels are renamed: 0 where names fit.

    `shared` (L, L): what the first's labels have in common with the second's. Labels change names two by two, as long
    as that makes them fit better.

    >>> _better_renamed(np.eye(3)), _better_renamed(np.roll(np.eye(3), 1, axis=0) - 0.5)
    (0.0, 2.0)
    """
    names = np.arange(len(shared))
    while True:
        now = shared[names[:, None], np.arange(len(names))].diagonal()
        swapped = shared[names[:, None], np.arange(len(names))]
        gain = swapped + swapped.T - now[:, None] - now
        a, b = np.unravel_index(gain.argmax(), gain.shape)
        if gain[a, b] <= 1e-9 * np.abs(shared).max():
            best = float(now.sum())
            return max(0.0, (best - float(shared.trace())) / best) if best > 0 else 0.0
        names[[a, b]] = names[[b, a]]
