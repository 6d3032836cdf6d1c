"""What a federation has sent everybody: the first model, the last few, what they make public, and who sent them back.

broadcasts = Broadcasts(kept=4)
broadcasts.add(model)
features = broadcasts.features(question, imitations=[], seed=0)        to be taken out of the scores
unpaid = broadcasts.echoes(works, imitations=[], least=6.0)             whose updates hold nothing of their own
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.echo import BUFFERS, Weights, buffers_among, echo_test, public_features
from verax.marking import public_models
from verax.received import Model, Question, Work, cast_model, digest_of, same_numbers, without_numbers
from verax.topk import one_hot


@dataclass(eq=False)
class Broadcasts:
    """The models that everybody was sent: the very first, and the last `kept`, with the types of the first.

    `buffers`: last parts of the names of arrays that no optimiser moves.

    >>> sent = Broadcasts(kept=2)
    >>> for n in range(5):
    ...     sent.add({"at": np.array([float(n)])})
    >>> [float(model["at"][0]) for model in sent.models], sent.informed
    ([0.0, 3.0, 4.0], True)
    """

    kept: int
    buffers: Collection[str] = BUFFERS
    types: Model = field(init=False, default_factory=dict)
    models: list[Model] = field(init=False, default_factory=list)
    informed: bool = field(init=False, default=False)  # whether anything but the first model has been sent
    first_digest: str = field(init=False, default="")

    @property
    def first(self) -> Model:
        """What was sent before anything was informative."""
        return self.models[0]

    @property
    def now(self) -> Model:
        """What was sent last."""
        return self.models[-1]

    def are_like(self, model: Model) -> bool:
        """Whether a model has the names and shapes of those that were sent."""
        return self.types.keys() == model.keys() and all(model[n].shape == a.shape for n, a in self.types.items())

    def add(self, model: Model) -> None:
        """Remember one more; a model of other names or shapes starts anew."""
        if not self.are_like(model):
            self.types, self.models = {name: without_numbers(array) for name, array in model.items()}, []
        if self.models and not self.informed:
            self.informed = any(not same_numbers(model[name], array) for name, array in self.first.items())
        recent = [*self.models[1:], cast_model(model, self.types)][-self.kept :]
        self.models = [*self.models[:1], *recent]
        self.first_digest = self.first_digest or digest_of(recent[-1])

    def restore(self, first: Model | None, earlier: Sequence[Model]) -> None:
        """Put what was sent before this process began, oldest first, before what it has sent; what does not fit is not.

        >>> sent = Broadcasts(kept=2)
        >>> sent.add({"at": np.array([3.0])})
        >>> sent.restore({"at": np.array([0.0])}, [{"at": np.array([1.0])}, {"at": np.array([2.0])}])
        >>> [float(model["at"][0]) for model in sent.models]
        [0.0, 2.0, 3.0]
        """
        before = [model for model in (*([] if first is None else [first]), *earlier) if self.are_like(model)]
        models = [*(cast_model(model, self.types) for model in before), *self.models]
        self.models = [models[0], *models[1:][-self.kept :]]

    @property
    def still(self) -> list[int]:
        """The places of the arrays that no optimiser moves, as far as names and types tell."""
        return buffers_among(self.types, names=self.buffers)

    def features(
        self, question: Question, imitations: Sequence[Sequence[Model]], seed: int, **terms: Any
    ) -> npt.NDArray[np.float64]:
        """What the broadcasts so far, and imitations of work, say about the pool (`echo.public_features`)."""
        names = list(self.now)

        def rows(weights: Weights, pool: Any) -> npt.NDArray[Any]:
            said = np.asarray(question.said_by(dict(zip(names, weights, strict=True))))
            return said if said.ndim == 2 else one_hot(said, question.classes)

        *before, now = ([*model.values()] for model in self.models)
        groups = [[[*model.values()] for model in group] for group in imitations]
        asked = {"imitations": groups, "still": self.still, **terms}
        return public_features(rows, now, before, question.pool, seed, **asked)

    def public_rows(
        self, question: Question, rows: npt.NDArray[Any], imitations: Sequence[Sequence[Model]], seed: int, **terms: Any
    ) -> npt.NDArray[np.float64]:
        """What the last broadcast says of the pool (`rows`), and beside it what models say that anybody could make.

        (N, L (1 + m)): the public signal of rule `innovation`. Groups of models give their mean.
        """
        names = list(self.now)
        made = public_models([[*model.values()] for model in self.models], self.still, seed, **terms)
        groups = [*([dict(zip(names, w, strict=True)) for w in group] for group in made), *imitations]
        said = [np.mean([question.tried_on(model) for model in group], axis=0) for group in groups if group]
        return np.concatenate([rows, *said], axis=1).astype(np.float64)

    def echoes(
        self, works: Sequence[Work], imitations: Sequence[Sequence[Model]], least: float | None, *, first: bool = False
    ) -> dict[str, str]:
        """Who sent nothing of its own, by what its update shares with the others'; `first`: to the first broadcast.

        `least` is what `echo.echo_test` asks of an update; with None nothing is asked.
        """
        if len(works) < 3 or least is None:
            return {}
        broadcasts = self.models[:1] if first else self.models
        still = buffers_among(broadcasts[-1], [w.model for w in works], self.buffers)
        if len(still) == len(self.types):  # whole numbers are all that there is to train
            still = []

        def trained(model: Mapping[str, npt.NDArray[Any]]) -> Weights:
            return [array for place, array in enumerate(model.values()) if place not in still]

        *before, now = map(trained, broadcasts)
        made = [trained(model) for group in imitations for model in group]
        found = echo_test([trained(w.model) for w in works], now, before, imitations=made, least=least)
        return {
            w.agent: f"no work of its own can be seen: its update shares {kin.ratio:.1f} with the others', "
            f"where noise shares 1 and {kin.least:g} is asked"
            for w, kin in zip(works, found, strict=True)
            if not kin.worked
        }
