"""Crowds: whether those who replied to a federation's round are split, and a round that is held until somebody knows.

How a crowd is told to be split, `sides` decides; here it is asked of replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verax.received import Received, Work
from verax.sides import Sides, sides
from verax.space import check_memory
from verax.topk import one_hot

Known = npt.NDArray[np.int64] | None  # true labels of the pool, -1 where not known


@dataclass(frozen=True, eq=False)
class Held:
    """A round as it stands: its number, what was broadcast in it, and the replies; with the sides it is held over."""

    number: int
    broadcast: str
    received: Received
    sides: Sides | None = None


@dataclass(frozen=True)
class Crowd:
    """Those who say something of a pool of so many tasks.

    >>> said = np.arange(60) % 3
    >>> works = [Work(name, {}, row) for name, row in zip("abcd", [said, said, said, (said + 1) % 3])]
    >>> sorted(Crowd(60, 3).outsiders(works, None))
    ['d']
    """

    tasks: int
    classes: int

    def known(self, gold: Known) -> dict[int, int]:
        """The true labels that there are, by task."""
        return {} if gold is None else {int(n): int(gold[n]) for n in np.nonzero(gold >= 0)[0]}

    def sides(self, works: Sequence[Work], gold: Known, trusted: int = 0) -> Sides:
        """Their sides, by probabilities where there are some; the first so many are trusted, where no label tells."""
        said = [w.said[: self.tasks] for w in works]
        check_memory("who says what", "leave sides out", len(said), self.tasks, self.classes, each=24)
        rows = np.stack([np.asarray(s) if s.ndim == 2 else one_hot(np.asarray(s), self.classes) for s in said])
        return sides(rows, self.classes, self.known(gold), trusted=range(trusted))

    def outsiders(self, works: Sequence[Work], gold: Known, trusted: int = 0) -> dict[str, str]:
        """Of those who are not trusted, who is not on the side to pay, and why."""
        found = self.sides(works, gold, trusted).outsiders([w.agent for w in works])
        return {w.agent: found[w.agent] for w in works[trusted:] if w.agent in found}
