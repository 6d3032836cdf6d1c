"""A federation's exam: whose held-back examples its replies are examined on, and which models count as public there.

What an answer is worth, `exam` decides; when replies are examined, `federation`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from verax.echo import Weights
from verax.errors import InputError, OptionError
from verax.exam import Exam, HeldBack
from verax.examiners import Over
from verax.judgements import Judgement
from verax.marking import Paper, public_models
from verax.received import Model, Question


@dataclass(frozen=True)
class Promise:
    """What a member commits to before the first round: the hash of its examples (`exam.HeldBack`), and how many.

    >>> Promise("ab" * 32, 190).examples
    190
    """

    commitment: str
    examples: int


class Members(Protocol):
    """How members are reached who examine others on labels that they keep; an adapter is one."""

    def promises(self) -> Mapping[str, Promise]:
        """What each commits to, by name, before the first round."""

    def judgements(self, papers: Mapping[str, Paper]) -> Mapping[str, Judgement]:
        """What each says of the paper made for it; who does not answer is left out."""


@dataclass(frozen=True, eq=False)
class Sitting:
    """The labelled examples that a federation's replies are examined on, held back from training.

    They come from members, as dues that each hands to the server and is not examined on itself, or are the server's own
    (`holder` None). With `members` they keep theirs and mark each other: a way to reach them, or True where an adapter
    has one. `promised`: what each holder committed to before the first round, and its salt; examples that are others
    than promised are refused. `over` and `own_past` are those of `exam.Exam`; by default "median" where members mark,
    who may lie about marks too, and else "trusted". `copies`: how many noised copies of the broadcast count as public
    at each level.

    >>> held = HeldBack(np.zeros((2, 3)), [0, 1], "ann")
    >>> sitting = Sitting([held], promised={"ann": (held.commitment("salt"), "salt")})
    >>> sitting.exam(["no", "yes"]).scores().scores
    ()
    """

    held: Sequence[HeldBack] = ()
    _: KW_ONLY
    members: bool | Members = False
    over: Over | None = None
    own_past: Literal["public"] | None = None
    promised: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    copies: int = 8

    def __post_init__(self) -> None:
        if not self.held and not self.members:
            raise InputError("no examples are held back; give some of the members', or some of the server's own")
        if self.members and self.own_past is not None:
            raise OptionError("members have not seen a client's own past, and cannot take it out; leave own_past out")
        for examples in self.held:
            promise, salt = self.promised.get(examples.holder or "", ("", ""))
            if promise and not examples.keeps(promise, salt):
                raise InputError(
                    f"{examples.holder!r} has handed in other examples than it committed to; go on without it"
                )

    @property
    def size(self) -> int:
        """How many examples are held back in all."""
        return sum(len(examples.inputs) for examples in self.held)

    @property
    def together(self) -> Over:
        """How examiners are put together: those who are trusted; the median of all where they send marks."""
        return self.over or ("median" if self.members else "trusted")

    def commitments(self, salt_of: Callable[[str], str]) -> dict[str, str]:
        """What each holder of the examples at hand has committed to, "" the server; who has not, is committed here."""
        found: dict[str, str] = {}
        for examples in self.held:
            holder = examples.holder or ""
            promise, _ = self.promised.get(holder, ("", ""))
            said = promise or examples.commitment(salt_of(holder))
            found[holder] = f"{found[holder]} {said}" if holder in found else said
        return found

    def exam(self, classes: Sequence[str]) -> Exam:
        """An exam on these labels, that nobody has sat yet."""
        labels = np.concatenate([np.zeros(0, np.int64), *(np.asarray(examples.labels) for examples in self.held)])
        holders = [examples.holder for examples in self.held for _ in range(len(examples.inputs))]
        return Exam(labels, holders, classes, over=self.together, own_past=self.own_past)

    def asked_beside(self, question: Question) -> Question:
        """The question put to every model, with the held-back inputs asked after the pool, as one table."""
        inputs = (question.pool, *(examples.inputs for examples in self.held))

        def predict(model: Model, inputs: Any) -> npt.NDArray[Any]:
            return np.concatenate([np.asarray(question.predict(model, part)) for part in inputs])

        return Question(inputs, predict, question.tasks + self.size, question.classes)

    def public_models(
        self, broadcasts: Sequence[Weights], still: Collection[int], seed: int
    ) -> list[Sequence[Weights]]:
        """What anybody can make of the broadcasts (`marking.public_models`)."""
        return public_models(broadcasts, still, seed, self.copies)


def gold_labels(
    gold: npt.ArrayLike | Mapping[int, int] | None, tasks: int, classes: int
) -> npt.NDArray[np.int64] | None:
    """True labels of some of the pool as an array, -1 where not known; None where none is.

    >>> gold_labels({1: 0}, tasks=3, classes=2).tolist()
    [-1, 0, -1]
    """
    if gold is None:
        return None
    if isinstance(gold, Mapping):
        known = np.full(tasks, -1)
        for place, label in gold.items():
            if not 0 <= place < tasks:
                raise InputError(f"a gold label is at place {place} of a pool of {tasks}; give places from 0 up")
            known[place] = label
    else:
        known = np.asarray(gold)
    if known.shape != (tasks,) or known.dtype.kind not in "iu" or known.min() < -1 or known.max() >= classes:
        raise InputError(f"gold labels must be {tasks} integers from -1 to {classes - 1}; -1 where not known")
    return known.astype(np.int64) if (known >= 0).any() else None
