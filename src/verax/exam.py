"""The exam: a reply is worth what its innovation says about labels that others hold back.

    score   s = mean over held-back (x, y) of w(y) <u(x), e_y - p(x)>

u is the reply's innovation (`innovations`), p the broadcast's rows, w gives labels the shares that the broadcast sees
in the pool. To first order s is how much a squared loss falls if p moves by u. A reply that knows of y nothing beyond
x, p and the public moves has mean 0 whatever it did, and s is linear in the reply; nobody's habits of training enter.

Labels come from one of three: members who examine one another (nobody on its own examples), dues handed to the server,
or the server's own (gold). Whoever holds them commits to them before the first round (`HeldBack.commitment`). How
several examiners become one is in `examiners`; what a score is worth in money, `payments` decides.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from verax import wire
from verax.audit.certificate import Certificate, tasks_needed
from verax.errors import InputError, OptionError
from verax.examiners import Examiners, Over, balanced, worths
from verax.innovations import Floats, clipped, fitted
from verax.payments import Payments, pay_marks
from verax.plan import Mechanism
from verax.reports import some
from verax.score import Score, Scores

SURE = 3.0  # standard errors


@dataclass(frozen=True, eq=False)
class HeldBack:
    """Labelled examples that are kept from training: inputs (n, ...), labels (n,) and the member who holds them.

    `holder` None: nobody's who replies, as with the server's own.

    >>> held = HeldBack(np.zeros((2, 3)), np.array([0, 1]), "ann")
    >>> promise = held.commitment("a secret of ann's")
    >>> held.keeps(promise, "a secret of ann's"), HeldBack(held.inputs, [1, 1], "ann").keeps(promise, "...")
    (True, False)
    """

    inputs: Any
    labels: npt.ArrayLike
    holder: str | None = None

    def __post_init__(self) -> None:
        labels = np.asarray(self.labels)
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(self.inputs) or not len(labels):
            raise InputError(
                f"{len(self.inputs)} held-back inputs have labels of shape {labels.shape} and type {labels.dtype}; "
                "give one class number for each, and one at least"
            )
        object.__setattr__(self, "labels", labels.astype(np.int64))

    def commitment(self, salt: str) -> str:
        """SHA-256 over the canonical bytes of who holds what, and a salt, without which labels could be guessed."""
        inputs, labels = np.ascontiguousarray(self.inputs), np.asarray(self.labels)
        head = [self.holder, salt, inputs.dtype.newbyteorder("<").str, inputs.shape, labels]
        body = inputs.astype(inputs.dtype.newbyteorder("<")).tobytes()
        return hashlib.sha256(wire.canonical(head).encode("ascii") + b"\n" + body).hexdigest()

    def keeps(self, promise: str, salt: str) -> bool:
        """Whether these are the examples that were committed to."""
        return self.commitment(salt) == promise


@dataclass(frozen=True, eq=False)
class Sheet:
    """What everybody's replies come to once labels are known: pure, so that anybody can compute it again.

    `worth` (n, L) of everybody: the sum over rounds of what each example would say if its label were l (`worths`).

    >>> sheet = Sheet(np.array([0, 1]), ("bob", "bob"), ("no", "yes"), np.array([0.5, 0.5]), {"ann": np.eye(2)})
    >>> sheet.scores()["ann"].score
    1.0
    """

    labels: npt.NDArray[np.int64]
    holders: tuple[str | None, ...]
    classes: tuple[str, ...]
    prior: Floats
    worth: Mapping[str, Floats]
    over: Over = "mean"

    def __post_init__(self) -> None:
        """Refuse labels that nobody could be examined on."""
        if len(self.labels) != len(self.holders) or not len(self.labels):
            raise InputError(f"{len(self.labels)} labels have {len(self.holders)} holders; give one for each")
        if self.labels.dtype.kind not in "iu" or self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            raise InputError(
                f"a held-back label is not from 0 to {len(self.classes) - 1}; give a class number for each"
            )

    @cached_property
    def examiners(self) -> Examiners:
        """Who holds what, and how their marks are put together."""
        return Examiners(self.holders, self.over)

    @cached_property
    def table(self) -> Any:
        """Everybody's mark by every other examiner."""
        return self.examiners.table({agent: self._marked(agent) for agent in sorted(self.worth)})

    def _marked(self, agent: str) -> Floats:
        """psi of every example, 0 on the agent's own, which it is not examined on."""
        psi, others = np.zeros(len(self.labels)), self.examiners.others_examples(agent)
        y = self.labels[others]
        psi[others] = self.worth[agent][others, y] * (balanced(y, self.prior) if len(y) else 1.0)
        return psi

    def scores(self) -> Scores:
        """Everybody's score, by name, with its standard error; who has no examiner has none."""
        found = [(agent, self.examiners.mark(agent, self.table)) for agent in self.table]
        each = tuple(
            Score(agent, None, None, 0, 0) if m is None else Score(agent, m.score, m.stderr, m.examples, m.examiners)
            for agent, m in found
        )
        unexamined = [agent for agent, m in found if m is None]
        warnings = (f"nobody else holds labels to examine {some(unexamined)} on",) if unexamined else ()
        return Scores(
            Mechanism("exam", "truth", self.over, None, True, None), len(self.labels), self.classes, each, warnings
        )

    def agreement(self) -> dict[str, float]:
        """How far each examiner's labels go with the others'; a share of its pay rides on it (`payments.pay_marks`)."""
        return self.examiners.agreement(self.table)

    def certificates(self, sure: float = SURE) -> list[Certificate]:
        """Of everybody examined: whether its replies surely taught something (EXAM holds), or did harm (fails)."""
        return [_verdict(s, sure) for s in self.scores() if s.score is not None]


def _verdict(s: Score, sure: float) -> Certificate:
    score, error = s.score or 0.0, s.stderr or 0.0
    interval = (score - sure * error, score + sure * error)
    said = f"what it adds about {s.tasks} labels of others is {score:.4f} ± {error:.4f}"
    if score > sure * error:
        return Certificate("EXAM", s.agent, "holds", score, interval, None, f"{said}: above 0")
    if score < -sure * error:
        return Certificate("EXAM", s.agent, "fails", score, interval, None, f"{said}: below 0, so it misleads")
    if not error:
        return Certificate("EXAM", s.agent, "fails", score, interval, None, f"{said}: all of it was public")
    needed = tasks_needed(s.tasks, sure * error / abs(score) if score else math.inf)
    return Certificate("EXAM", s.agent, "undecided", score, interval, None, f"{said}; {needed}")


@dataclass(eq=False)
class Exam:
    """Every round of one exam: innovations are taken as they come, and one look is taken at the sum over rounds.

    `labels` (n,) of the held-back examples and `holders`, whose each is (None: nobody's who replies), follow the order
    of the inputs. `over` puts examiners together (`Examiners`). `own_past="public"` takes a member's earlier moves out
    of its later ones, so that an update sent again earns nothing. No innovation counts for more than one `most` times
    as long as the round's middle one.

    >>> from verax.innovations import public_moves
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 300)
    >>> p = np.full((300, 2), 0.5) + 0.1 * rng.uniform(-1, 1, 300)[:, None] * [1, -1]
    >>> knows = p + 0.2 * (np.eye(2)[y] - p) * (rng.random(300) < 0.5)[:, None]
    >>> exam = Exam(y, [None] * 300, ["no", "yes"])
    >>> exam.sit(p, public_moves(p), {"ann": knows, "eve": p})
    >>> [(s.agent, round(s.score, 2)) for s in exam.scores()]
    [('ann', 0.05), ('eve', 0.0)]
    """

    labels: npt.ArrayLike
    holders: Sequence[str | None]
    classes: Sequence[str]
    _: KW_ONLY
    over: Over = "mean"
    own_past: Literal["public"] | None = None
    most: float = 2.0
    rounds: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Refuse, before anybody is examined, what nobody could be."""
        self._labels, self.classes = np.asarray(self.labels), tuple(map(str, self.classes))
        if self.own_past not in (None, "public"):
            raise OptionError(f"own_past is {self.own_past!r}; give 'public' or leave it out")
        if not self.most > 0:
            raise OptionError(f"most is {self.most!r}; give a number above 0, such as 2")
        self._worth: dict[str, Floats] = {}
        self._past: dict[str, list[Floats]] = {}
        self._priors: list[Floats] = []
        self._rows = np.zeros((len(self._labels), len(self.classes)))
        _ = self.sheet().examiners

    def sit(self, rows: npt.ArrayLike, public: Floats, replies: Mapping[str, npt.ArrayLike]) -> None:
        """One round: the broadcast's rows, the public moves, and each reply's rows, on pool and held-back inputs.

        The held-back inputs come last. All inputs serve to take out what is public, for that needs no label.
        """
        p, moves = self._moves(rows, replies)
        innovations = clipped([*self._innovations(p, public, moves).values()], self.most)
        for agent, u in zip(moves, innovations, strict=True):
            self._worth[agent] = worths(u, p) + self._worth.get(agent, 0.0)
        self._remember(moves)
        self._priors.append((p[: -len(self._labels)] if len(p) > len(self._labels) else p).mean(0))
        self._rows, self.rounds = p, self.rounds + 1

    def remember(self, rows: npt.ArrayLike, replies: Mapping[str, npt.ArrayLike]) -> None:
        """A round that is not examined, such as the first: with `own_past` its moves are public when sent again."""
        self._remember(self._moves(rows, replies)[1])

    def _moves(self, rows: npt.ArrayLike, replies: Mapping[str, npt.ArrayLike]) -> tuple[Floats, dict[str, Floats]]:
        p = np.asarray(rows, dtype=np.float64)
        if len(p) < len(self._labels) or p.shape[1:] != (len(self.classes),):
            raise InputError(
                f"rows have shape {p.shape}; give {len(self.classes)} classes on the pool and then on the "
                f"{len(self._labels)} held-back inputs"
            )
        return p, {agent: np.asarray(replies[agent], dtype=np.float64) - p for agent in sorted(replies)}

    def _remember(self, moves: Mapping[str, Floats]) -> None:
        for agent, move in moves.items() if self.own_past == "public" else ():
            self._past.setdefault(agent, []).append(move)

    def _innovations(self, p: Floats, public: Floats, moves: Mapping[str, Floats]) -> dict[str, Floats]:
        shared = fitted(p, public)
        found = {}
        for agent, move in moves.items():
            past = self._past.get(agent, [])
            fit = fitted(p, np.concatenate([public, np.stack(past, 2)], 2)) if past else shared
            found[agent] = fit.innovation(move)
        return found

    def sheet(self) -> Sheet:
        """What it comes to so far."""
        n = len(self._labels)
        prior = np.mean(self._priors, 0) if self._priors else np.full(len(self.classes), 1 / len(self.classes))
        worth = {agent: found[-n:] for agent, found in self._worth.items()}
        return Sheet(self._labels, tuple(self.holders), tuple(self.classes), prior, worth, self.over)

    def scores(self) -> Scores:
        """Everybody's sum over rounds so far (`Sheet.scores`)."""
        return self.sheet().scores()

    def agreement(self) -> dict[str, float]:
        """How far each examiner's labels go with the others' so far (`Sheet.agreement`)."""
        return self.sheet().agreement()

    def exposure(self, labels: int | None = None, sure: float = SURE) -> float:
        """What bad luck with so many labels can take from a score that should be 0: `sure` errors of the widest reply.

        No label is looked at: y is taken to follow the broadcast's rows. So it is known before labels are, and is what
        a deposit must cover. An overconfident broadcast makes it too small.
        """
        if not self._worth:
            raise InputError("nobody has replied yet; what is at stake is known once a round was sat")
        n, p = len(self._labels) if labels is None else labels, self._rows
        spreads = [float(((p * b**2).sum(1) - (p * b).sum(1) ** 2).mean()) for b in self._worth.values()]
        return sure * math.sqrt(max(spreads) / n)


@dataclass(frozen=True)
class ExamRecord(wire.Document, format=wire.EXAM):
    """All that the payments of an exam follow from, as a document: `payments` computes them again, wherever it is kept.

    `worth` holds (n, L) numbers of everybody, little-endian doubles in base64: what each example would have said if its
    label were l, summed over rounds. `commitments`: what was promised before the first round, by holder. That `worth`
    is what the models said cannot be told from the record; it needs the models.

    >>> exam = Exam([0, 1, 1], [None] * 3, ["no", "yes"])
    >>> p = np.full((60, 2), 0.5) + 0.01 * np.random.default_rng(0).normal(size=(60, 1)) * [1, -1]
    >>> from verax.innovations import public_moves
    >>> exam.sit(p, public_moves(p), {"ann": np.roll(p, 1, axis=0)})
    >>> record = ExamRecord.of(exam, "mine", budget="10.00", full_marks="0.1")
    >>> ExamRecord.from_json(record.to_json()).payments() == record.payments()
    True
    """

    name: str
    labels: tuple[int, ...]
    holders: tuple[str | None, ...]
    classes: tuple[str, ...]
    prior: tuple[float, ...]
    worth: dict[str, str]
    over: str
    budget: str
    full_marks: str
    currency: str = "EUR"
    deposit: str | None = None
    exposure: float = 0.0
    sure: float = SURE
    riding: str = "0.2"
    clusters: tuple[tuple[str, ...], ...] = ()
    commitments: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, exam: Exam, name: str, *, budget: str, full_marks: str, **terms: Any) -> ExamRecord:
        """The record of an exam that is over, paid by these terms (`payments.pay_marks`)."""
        sheet = exam.sheet()
        worth = {a: base64.b64encode(w.astype("<f8").tobytes()).decode("ascii") for a, w in sheet.worth.items()}
        return cls(
            name, tuple(sheet.labels.tolist()), sheet.holders, sheet.classes, tuple(sheet.prior.tolist()), worth,
            sheet.over, budget, full_marks, exposure=exam.exposure(), **terms,
        )  # fmt: skip

    def sheet(self) -> Sheet:
        """What everybody's replies come to."""
        shape = len(self.labels), len(self.classes)
        try:
            worth = {a: np.frombuffer(base64.b64decode(w), "<f8").reshape(shape) for a, w in self.worth.items()}
        except ValueError:
            raise InputError(
                f"the worths of exam {self.name!r} are not {shape} numbers; take the record anew"
            ) from None
        over: Any = self.over
        return Sheet(np.array(self.labels), self.holders, self.classes, np.array(self.prior), worth, over)

    def payments(self) -> Payments:
        """Who is paid what, a deposit that comes back included."""
        sheet = self.sheet()
        return pay_marks(
            sheet.scores(), budget=self.budget, full_marks=self.full_marks, deposit=self.deposit,
            exposure=self.exposure, sure=self.sure, currency=self.currency, agreement=sheet.agreement(),
            riding=self.riding, clusters=self.clusters,
        )  # fmt: skip
