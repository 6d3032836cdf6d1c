"""Known: what is public in a round of a federation, besides the broadcasts, and how it is taken out of scores.

What anybody could make of the broadcasts is in `marking` and `echo`, what the server makes by training in `imitations`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.broadcasts import Broadcasts
from verax.errors import OptionError
from verax.imitations import Train, imitations
from verax.received import Model, Question, Said

Groups = Sequence[Sequence[Model]]


def is_rows(said: Said) -> bool:
    """Whether probabilities of all classes were said, and not labels, or a few likeliest ones.

    >>> is_rows(np.full((3, 2), 0.5)), is_rows(np.zeros(3, int))
    (True, False)
    """
    return isinstance(said, np.ndarray) and said.ndim == 2


@dataclass(eq=False)
class Known:
    """What a server makes public: by `imitate` as its caller does, or else by its own training, `train`.

    `features` go to what makes the public signal; `seconds` is what the last imitations took.
    """

    question: Question
    pool: Any
    seed: int
    train: Train | None
    imitate: Callable[[Sequence[Model]], Groups] | None
    features: Mapping[str, Any]
    seconds: float = field(init=False, default=0.0)

    def imitated(self, sent: Broadcasts, number: int) -> Groups:
        """Groups of models that the server makes itself in a round, without anybody's labels."""
        began = time.perf_counter()
        made = self._made(sent, number)
        self.seconds = time.perf_counter() - began if made else 0.0
        return made

    def _made(self, sent: Broadcasts, number: int) -> Groups:
        if self.imitate is not None or self.train is None:
            return () if self.imitate is None else self.imitate(sent.models)
        said = self.question.tried_on(sent.now)
        if not is_rows(said):
            raise OptionError("imitations are made of probabilities, which predict does not give; leave train out")
        rng = np.random.default_rng([self.seed, number])
        return imitations(sent.now, self.pool, np.asarray(said)[: len(self.pool)], self.train, rng)

    def signal(self, sent: Broadcasts, imitated: Groups, *, rows: bool) -> npt.NDArray[np.float64]:
        """The public signal: public models' rows side by side, or else features of labels and rows."""
        if rows:
            said = np.asarray(self.question.tried_on(sent.now))
            return sent.public_rows(self.question, said, imitated, self.seed, **self.features)
        return sent.features(self.question, imitated, self.seed, **self.features)
