"""Sides: a crowd that is split over what its labels mean, told from one that agrees; nobody is scored here.

Renaming labels together is a symmetry: no score on agreement tells a ring of more than half from the others. What can
be told is that there are two sides, and which of them a few known labels favour. That side is paid, each of it beside
the others of that side. Without known labels a split crowd is reported, and its round is for somebody to decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verax.errors import InputError

Floats = npt.NDArray[np.float64]
SURE = 3.0  # standard errors
_CROWD = 0.2  # of all who take a side: from here on, and from two agents on, a second side is no outlier


@dataclass(frozen=True)
class Sides:
    """A crowd cut in two, as places in the order of the reports; `neither` agree and disagree with nobody.

    `paid` is the side that known labels favour, or the only one; empty where the crowd is split and nothing favours
    either: then `held` is true and `why` says so.
    """

    larger: tuple[int, ...]
    smaller: tuple[int, ...]
    neither: tuple[int, ...]
    paid: tuple[int, ...]
    why: str

    @property
    def held(self) -> bool:
        """Whether nobody can be paid before somebody decides."""
        return not self.paid


def agreement(labels: npt.ArrayLike, classes: int, sure: float = SURE) -> npt.NDArray[np.int64]:
    """(K, K): 1 where two agents agree beyond chance, -1 where they disagree as a whole or on what one label means.

    0 where neither shows by `sure` standard errors, and with oneself.

    >>> said = np.arange(60) % 3
    >>> agreement([said, said, (said + 1) % 3], 3).tolist()
    [[0, 1, -1], [1, 0, -1], [-1, -1, 0]]
    """
    table = _checked_labels(labels, classes)
    one_hot = np.eye(classes)[table]
    left = one_hot - one_hot.mean(1, keepdims=True)
    return np.stack([_beside_each(left, i, sure) for i in range(len(left))])


def _checked_labels(labels: npt.ArrayLike, classes: int) -> npt.NDArray[np.int64]:
    table = np.asarray(labels)
    if table.ndim != 2 or table.dtype.kind not in "iu" or table.shape[1] < 2:
        raise InputError(f"labels have shape {table.shape} and type {table.dtype}; give whole numbers (agents, tasks)")
    if table.min() < 0 or table.max() >= classes:
        raise InputError(f"a label is not from 0 to {classes - 1}; sides are told where everybody answers every task")
    return table.astype(np.int64)


def _beside_each(left: Floats, i: int, sure: float) -> npt.NDArray[np.int64]:
    psi = left[i] * left
    as_a_whole, by_label = _errors_above(psi.sum(2)), _errors_above(psi)
    apart = (as_a_whole < -sure) | (by_label < -sure).any(1)
    found = np.where(apart, -1, np.where(as_a_whole > sure, 1, 0))
    found[i] = 0
    return found


def _errors_above(psi: Floats) -> Floats:
    """Means over tasks (axis 1), in standard errors."""
    error = psi.std(1) / math.sqrt(psi.shape[1])
    return np.asarray(psi.mean(1) / np.maximum(error, 1e-9))


def cut(ties: npt.ArrayLike) -> tuple[list[int], list[int], list[int]]:
    """The two sides of a signed graph that break the fewest ties, the larger first, and those without a tie.

    A local search from the four leading eigenvectors and from everybody together; of equals the first.

    >>> cut([[0, 1, -1, 0], [1, 0, -1, 0], [-1, -1, 0, 0], [0, 0, 0, 0]])
    ([0, 1], [2], [3])
    """
    graph = np.asarray(ties, dtype=np.int64)
    vectors = np.linalg.eigh(graph.astype(np.float64))[1][:, -4:].T
    starts = [*np.where(vectors >= 0, 1, -1), np.ones(len(graph), dtype=np.int64)]
    best = max((_settled(graph, start) for start in starts), key=lambda x: int(x @ graph @ x))
    tied = np.abs(graph).sum(1) > 0
    sides = sorted((np.nonzero((best == s) & tied)[0].tolist() for s in (1, -1)), key=len, reverse=True)
    return sides[0], sides[1], np.nonzero(~tied)[0].tolist()


def _settled(graph: npt.NDArray[np.int64], start: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Whoever has more ties to the other side goes over, the one with most first, until nobody has."""
    x = start.astype(np.int64)
    while (gain := -x * (graph @ x)).max() > 0:
        x[gain.argmax()] *= -1
    return x


def sides(labels: npt.ArrayLike, classes: int, gold: Mapping[int, int] | None = None, sure: float = SURE) -> Sides:
    """Whom to pay in a crowd that may be split over what labels mean; `gold`: {task: true label}, ten or more.

    >>> rng = np.random.default_rng(0)
    >>> truth = rng.integers(0, 3, 300)
    >>> said = [np.where(rng.random(300) < 0.8, truth, 0) for _ in range(9)]
    >>> crowd = said[:4] + [(row + 1) % 3 for row in said[4:]]
    >>> sides(crowd, 3).why
    'split 5 to 4 over what labels mean; known labels, ten or more, would tell which side to pay'
    >>> sides(crowd, 3, gold={n: int(truth[n]) for n in range(10)}).paid
    (0, 1, 2, 3)
    """
    table = _checked_labels(labels, classes)
    graph = agreement(table, classes, sure)
    larger, smaller, neither = cut(graph)
    favoured = larger
    split = len(smaller) >= 2 and len(smaller) >= _CROWD * (len(larger) + len(smaller))
    why = f"{len(larger)} agree, {len(smaller)} do not"
    if gold:
        worth = [_beside_gold(table, side, classes, gold) for side in (larger, smaller)]
        favoured = larger if worth[0] >= worth[1] else smaller
        other = smaller if favoured is larger else larger
        why = f"{len(gold)} known labels favour the side of {len(favoured)} against {len(other)}"
    elif split:
        why = (
            f"split {len(larger)} to {len(smaller)} over what labels mean; "
            "known labels, ten or more, would tell which side to pay"
        )
    paid = [] if split and not gold else _joined(graph, favoured)
    return Sides(tuple(larger), tuple(smaller), tuple(neither), tuple(paid), why)


def _beside_gold(table: npt.NDArray[np.int64], side: Sequence[int], classes: int, gold: Mapping[int, int]) -> float:
    """How far the votes of a side go with known labels beyond chance."""
    if not side:
        return -math.inf
    one_hot = np.eye(classes)
    known = one_hot[list(gold.values())]
    votes = one_hot[table[np.ix_(side, list(gold))]].mean(0)
    return float(((votes - votes.mean(0)) * (known - known.mean(0))).sum())


def _joined(graph: npt.NDArray[np.int64], side: Sequence[int]) -> list[int]:
    """Everybody with more agreement than disagreement with the others of the side; a few steps settle it."""
    found = list(side)
    for _ in range(3):
        found = [i for i in range(len(graph)) if sum(graph[i, j] for j in found if j != i) > 0] or found
    return found


def outsiders(
    labels: npt.ArrayLike, agents: Sequence[str], classes: int, gold: Mapping[int, int] | None = None
) -> dict[str, str]:
    """Who is not on the side to pay, and why; a split crowd of which nothing favours either side is refused.

    >>> said = np.arange(60) % 3
    >>> outsiders([said, said, said, (said + 1) % 3], ["ann", "bob", "cy", "dan"], 3)
    {'dan': 'it disagrees over what labels mean with the side that is paid (3 agree, 1 do not)'}
    """
    found = sides(labels, classes, gold)
    if found.held:
        raise InputError(f"{found.why}; the round is held, and nobody is paid before somebody decides")
    no_tie = "it neither agrees nor disagrees with anybody: nothing can be seen in its labels"
    apart = f"it disagrees over what labels mean with the side that is paid ({found.why})"
    return {agent: no_tie if i in found.neither else apart for i, agent in enumerate(agents) if i not in found.paid}
