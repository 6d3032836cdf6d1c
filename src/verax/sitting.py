"""A federation's exam: whose held-back examples its replies are examined on, and which models count as public there.

What an answer is worth, `exam` decides; when replies are examined, `federation`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from verax.audit.copies import copies
from verax.echo import Weights, perturbed, stepped
from verax.errors import InputError, OptionError
from verax.exam import Exam, ExamRecord, HeldBack
from verax.examiners import Over
from verax.innovations import public_moves
from verax.payments import clusters_of
from verax.received import Model, Question, Work
from verax.reports import Reports
from verax.score import Scores

_STEPS, _NOISE = (0.5, 1.0, 2.0), (0.05, 0.15, 0.4, 1.0)


@dataclass(frozen=True, eq=False)
class Sitting:
    """The labelled examples that a federation's replies are examined on, held back from training.

    They come from members, as dues that each hands to the server and is not examined on itself, or are the server's
    own (`holder` None). `promised`: what each holder committed to before the first round, and its salt; examples that
    are others than promised are refused. `over` and `own_past` are those of `exam.Exam`. `copies`: how many noised
    copies of the broadcast count as public at each level.

    >>> held = HeldBack(np.zeros((2, 3)), [0, 1], "ann")
    >>> sitting = Sitting([held], promised={"ann": (held.commitment("salt"), "salt")})
    >>> sitting.exam(["no", "yes"]).scores().scores
    ()
    """

    held: Sequence[HeldBack]
    _: KW_ONLY
    over: Over = "trusted"
    own_past: Literal["public"] | None = None
    promised: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    copies: int = 8

    def __post_init__(self) -> None:
        if not self.held:
            raise InputError("no examples are held back; give some of the members', or some of the server's own")
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

    def exam(self, classes: Sequence[str]) -> Exam:
        """An exam on these labels, that nobody has sat yet."""
        labels = np.concatenate([np.asarray(examples.labels) for examples in self.held])
        holders = [examples.holder for examples in self.held for _ in range(len(examples.inputs))]
        return Exam(labels, holders, classes, over=self.over, own_past=self.own_past)

    def asked_beside(self, question: Question) -> Question:
        """The question put to every model, with the held-back inputs asked after the pool, as one table."""
        inputs = (question.pool, *(examples.inputs for examples in self.held))

        def predict(model: Model, inputs: Any) -> npt.NDArray[Any]:
            return np.concatenate([np.asarray(question.predict(model, part)) for part in inputs])

        return Question(inputs, predict, question.tasks + self.size, question.classes)

    def public_models(
        self, broadcasts: Sequence[Weights], still: Collection[int], seed: int
    ) -> list[Sequence[Weights]]:
        """What anybody can make of the broadcasts: those before the last, steps on from them, noised copies of it."""
        *_, now = broadcasts
        earlier, rng = list(broadcasts[:-1][:-3:-1]), np.random.default_rng(seed)
        steps = [[stepped(now, earlier[0], step, still)] for step in _STEPS] if earlier else []
        noised = [[perturbed(now, level, rng, still) for _ in range(self.copies)] for level in _NOISE]
        return [*([model] for model in earlier), *steps, *noised]


class Examination:
    """One federation's exam as it goes on: round by round it is sat, and at its end it is paid for."""

    def __init__(self, sitting: Sitting, question: Question, classes: Sequence[str]) -> None:
        self.sitting, self.question = sitting, question
        self.exam, self.last = sitting.exam(classes), list[Work]()

    def sit(
        self,
        broadcasts: Sequence[Model],
        works: Sequence[Work],
        imitations: Sequence[Sequence[Model]],
        still: Collection[int],
        seed: int,
    ) -> Scores:
        """Everybody's scores so far, these replies to the last of the broadcasts examined too."""
        names = list(broadcasts[-1])
        made = self.sitting.public_models([list(model.values()) for model in broadcasts], still, seed)
        groups = [*([dict(zip(names, w, strict=True)) for w in group] for group in made), *imitations]
        now = self.question.tried_on(broadcasts[-1])
        if now.ndim == 1:
            raise OptionError("an exam needs probabilities; predict gives labels only")
        public = [np.asarray(sum(map(self.question.tried_on, group)) / len(group)) for group in groups if group]
        self.exam.sit(now, public_moves(now, public), {work.agent: work.said for work in works})
        self.last = list(works)
        return self.exam.scores()

    def record(
        self, name: str, reports_of: Callable[[Sequence[Work]], Reports], budget: str, full_marks: str, **terms: Any
    ) -> ExamRecord:
        """All that the payments of the rounds so far follow from; copies in the last of them are paid as one."""
        twins = copies(reports_of(self.last), 0.95) if len(self.last) > 1 else []
        alike = [c for c in twins if c.verdict == "fails"]
        groups = tuple(tuple(sorted(group)) for group in clusters_of(alike)) if alike else ()
        promises = {holder: promise for holder, (promise, _) in self.sitting.promised.items()}
        asked = {"budget": budget, "full_marks": full_marks, "clusters": groups, "commitments": promises, **terms}
        return ExamRecord.of(self.exam, name, **asked)


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
