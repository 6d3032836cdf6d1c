"""Marking: how a member examines others' replies on examples that only it has. No framework, and no server, in here.

    paper = Paper(...)                        what the server sends: models, and how to take out what is public
    judgement = Marking(held, predict, L).judgement(paper)        what the member sends back: no example, and no label

The server fits on its pool what is public in each reply; the examiner takes that out on its own inputs, so that a score
is what it would be if the examples had been handed in. Replies come under other names, so that nobody marks a friend.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from verax.echo import Weights, perturbed, stepped
from verax.errors import InputError
from verax.exam import HeldBack
from verax.examiners import worths
from verax.innovations import Floats, left_of, public_moves
from verax.judgements import Judgement
from verax.received import Model, Predict

_STEPS, _NOISE = (0.5, 1.0, 2.0), (0.05, 0.15, 0.4, 1.0)


@dataclass(frozen=True, eq=False)
class Entry:
    """One reply as an examiner gets it: its model, what the server found to be public in it, and how it is clipped."""

    model: Model
    coefficients: Floats
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class Paper:
    """One round as an examiner gets it: `replies` by other names than the agents', `broadcasts` up to the present one.

    `imitated`: groups of models that the server made itself. `still`: places of arrays that no optimiser moves.
    """

    session: str
    number: int
    broadcasts: Sequence[Model]
    replies: Mapping[str, Entry]
    imitated: Sequence[Sequence[Model]] = ()
    still: tuple[int, ...] = ()
    seed: int = 0
    copies: int = 8

    def public_models(self) -> list[Sequence[Model]]:
        """Groups of models that anybody can make."""
        names = list(self.broadcasts[-1])
        made = public_models([[*m.values()] for m in self.broadcasts], self.still, self.seed, self.copies)
        return [*([dict(zip(names, w, strict=True)) for w in group] for group in made), *self.imitated]


def public_models(
    broadcasts: Sequence[Weights],
    still: Collection[int],
    seed: int,
    copies: int = 8,
    steps: Sequence[float] = _STEPS,
    noise: Sequence[float] = _NOISE,
) -> list[Sequence[Weights]]:
    """What anybody can make of the broadcasts: those before the last, steps on from them, noised copies of it.

    >>> len(public_models([[np.zeros(3)], [np.ones(3)]], (), seed=0, copies=2))
    8
    """
    *_, now = broadcasts
    earlier, rng = list(broadcasts[:-1][:-3:-1]), np.random.default_rng(seed)
    moved = [[stepped(now, earlier[0], step, still)] for step in steps] if earlier else []
    noised = [[perturbed(now, level, rng, still) for _ in range(copies)] for level in noise]
    return [*([model] for model in earlier), *moved, *noised]


@dataclass(eq=False)
class Marking:
    """One examiner: its examples, and what they have said of every reply in this session.

    The same round again replaces what was said of it, so that a server that asks twice is answered once. `state` is all
    that has to be kept between rounds: arrays by name, of what was said up to the last round and before it.

    >>> p = np.tile([0.5, 0.5], (4, 1))
    >>> held = HeldBack(np.arange(4.0), [0, 1, 0, 1])
    >>> def predict(model, inputs):
    ...     return p + model["at"] * (np.eye(2)[np.asarray(held.labels)] - p)
    >>> paper = Paper("s", 1, [{"at": np.array(0.0)}], {"x": Entry({"at": np.array(0.1)}, np.zeros((2, 9)))}, copies=1)
    >>> judgement = Marking(held, predict, 2).judgement(paper)
    >>> judgement.counts, [round(x, 3) for x in judgement.means["x"]]
    ((2, 2), [0.05, 0.05])
    """

    held: HeldBack
    predict: Predict
    classes: int
    state: dict[str, Any] = field(default_factory=dict)

    def judgement(self, paper: Paper) -> Judgement:
        """What its examples say of everybody since the session began, these replies included."""
        if self.state.get("session") != paper.session:
            self.state = {"session": paper.session, "number": 0, "now": {}, "before": {}}
        before = self.state["before" if self.state["number"] == paper.number else "now"]
        found = {name: said + before.get(name, 0.0) for name, said in self._worths(paper).items()}
        self.state |= {"number": paper.number, "before": before, "now": before | found}
        return Judgement.of(None, np.asarray(self.held.labels), self.classes, self.state["now"])

    def _worths(self, paper: Paper) -> dict[str, Floats]:
        p = self._rows(paper.broadcasts[-1])
        groups = [np.mean([self._rows(m) for m in group], axis=0) for group in paper.public_models() if group]
        public = public_moves(p, groups)
        found = {}
        for name, entry in paper.replies.items():
            innovation = left_of(self._rows(entry.model) - p, public, p.argmax(1), entry.coefficients) * entry.scale
            found[name] = worths(innovation, p)
        return found

    def _rows(self, model: Model) -> Floats:
        said = np.asarray(self.predict(model, self.held.inputs), dtype=np.float64)
        if said.shape != (len(self.held.inputs), self.classes) or not np.isfinite(said).all():
            raise InputError(
                f"predict gives shape {said.shape} on {len(self.held.inputs)} held-back inputs; give finite "
                f"probabilities of {self.classes} classes"
            )
        return said
