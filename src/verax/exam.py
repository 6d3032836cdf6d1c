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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from verax import wire
from verax.errors import InputError, OptionError
from verax.examiners import Over, worths
from verax.innovations import Fit, Floats, clipped, fitted
from verax.judgements import SURE, Judgement, Sheet, judged
from verax.payments import Payments, pay_marks
from verax.score import Scores


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
    >>> _ = exam.sit(p, public_moves(p), {"ann": knows, "eve": p})
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
        self.classes = tuple(map(str, self.classes))
        self._labels = _checked_labels(self.labels, self.holders, self.classes)
        if self.own_past not in (None, "public"):
            raise OptionError(f"own_past is {self.own_past!r}; give 'public' or leave it out")
        if not self.most > 0:
            raise OptionError(f"most is {self.most!r}; give a number above 0, such as 2")
        self._worth: dict[str, Floats] = {}
        self._before: dict[str, Floats | None] = {}
        self._past: dict[str, list[Floats]] = {}
        self._priors: list[Floats] = []
        self._rows = np.zeros((len(self._labels), len(self.classes)))
        _ = self.sheet().examiners

    def sit(
        self, rows: npt.ArrayLike, public: Floats, replies: Mapping[str, npt.ArrayLike]
    ) -> dict[str, tuple[Floats, float]]:
        """One round: the broadcast's rows, the public moves, and each reply's rows, on pool and held-back inputs.

        The held-back inputs come last. All inputs serve to take out what is public, for that needs no label. What comes
        back is how each reply's innovation is had on other inputs: coefficients of public moves, and how it is clipped.
        """
        p, moves = self._moves(rows, replies)
        fits = self._fits(p, public, moves)
        whole = [fits[agent].innovation(move) for agent, move in moves.items()]
        innovations, self._before = clipped(whole, self.most), {}
        for agent, u in zip(moves, innovations, strict=True):
            self._before[agent] = self._worth.get(agent)
            self._worth[agent] = worths(u, p) + self._worth.get(agent, 0.0)
        self._remember(moves)
        self._priors.append((p[: len(p) - len(self._labels)] if len(p) > len(self._labels) else p).mean(0))
        self._rows, self.rounds = p, self.rounds + 1
        scales = [_length(u) / _length(w) if _length(w) else 1.0 for u, w in zip(innovations, whole, strict=True)]
        return {agent: (fits[agent].coefficients(moves[agent]), s) for agent, s in zip(moves, scales, strict=True)}

    def withdraw(self, agents: Iterable[str]) -> None:
        """Take their replies out of the last round again: whoever is not to be examined after all."""
        for agent in agents:
            before = self._before.pop(agent, None)
            self._worth.pop(agent, None)
            self._worth |= {} if before is None else {agent: before}

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

    def _fits(self, p: Floats, public: Floats, agents: Iterable[str]) -> dict[str, Fit]:
        """What is public for each: for all the same, and one's own past where that counts."""
        shared = fitted(p, public)
        pasts = {agent: self._past.get(agent, []) for agent in agents}
        return {
            agent: fitted(p, np.concatenate([public, np.stack(past, 2)], 2)) if past else shared
            for agent, past in pasts.items()
        }

    def sheet(self) -> Sheet:
        """What it comes to so far."""
        prior = np.mean(self._priors, 0) if self._priors else np.full(len(self.classes), 1 / len(self.classes))
        return Sheet(tuple(self._worth), tuple(self.classes), prior, self.judgements(), self.over)

    def judgements(self) -> tuple[Judgement, ...]:
        """What each holder's examples say of everybody so far."""
        return judged(self._labels, self.holders, len(self.classes), self.worth)

    @property
    def worth(self) -> dict[str, Floats]:
        """What every held-back example would have said so far of everybody if its label were l, (n, L)."""
        return {agent: found[len(found) - len(self._labels) :] for agent, found in self._worth.items()}

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
        n = len(self._labels) if labels is None else labels
        return sure * max(self.deviations().values()) / math.sqrt(n)

    def deviations(self) -> dict[str, float]:
        """By how much one label's mark of everybody varies so far, if labels follow the broadcast's rows."""
        p = self._rows
        spreads = {a: float(((p * b**2).sum(1) - (p * b).sum(1) ** 2).mean()) for a, b in self._worth.items()}
        return {agent: math.sqrt(max(spread, 0.0)) for agent, spread in spreads.items()}

    def widest(self) -> dict[str, float]:
        """The most that any input says of everybody so far, whatever its label is."""
        return {agent: float(np.abs(said).max(initial=0.0)) for agent, said in self._worth.items()}


def _length(innovation: Floats) -> float:
    return float(np.linalg.norm(innovation))


def _checked_labels(
    labels: npt.ArrayLike, holders: Sequence[str | None], classes: Sequence[str]
) -> npt.NDArray[np.int64]:
    """Labels that somebody can be examined on, one for each holder; none where members keep theirs."""
    found = np.asarray(labels) if len(holders) else np.zeros(np.shape(labels), np.int64)
    if len(found) != len(holders):
        raise InputError(f"{len(found)} labels have {len(holders)} holders; give one for each")
    if found.dtype.kind not in "iu" or found.min(initial=0) < 0 or found.max(initial=0) >= len(classes):
        raise InputError(f"a held-back label is not from 0 to {len(classes) - 1}; give a class number for each")
    return found.astype(np.int64)


@dataclass(frozen=True)
class ExamRecord(wire.Document, format=wire.EXAM):
    """All that the payments of an exam follow from, as a document: `payments` computes them again, wherever it is kept.

    `worth` holds (n, L) numbers of everybody, little-endian doubles in base64: what each example would have said if its
    label were l, summed over rounds. `commitments`: what was promised before the first round, by holder. That `worth`
    is what the models said cannot be told from the record; it needs the models.

    >>> exam = Exam([0, 1, 1], [None] * 3, ["no", "yes"])
    >>> p = np.full((60, 2), 0.5) + 0.01 * np.random.default_rng(0).normal(size=(60, 1)) * [1, -1]
    >>> from verax.innovations import public_moves
    >>> _ = exam.sit(p, public_moves(p), {"ann": np.roll(p, 1, axis=0)})
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
        sheet, labels = exam.sheet(), np.asarray(exam.labels).tolist()
        worth = {a: base64.b64encode(w.astype("<f8").tobytes()).decode("ascii") for a, w in exam.worth.items()}
        return cls(
            name, tuple(labels), tuple(exam.holders), sheet.classes, tuple(sheet.prior.tolist()), worth,
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
        found = judged(_checked_labels(self.labels, self.holders, self.classes), self.holders, len(self.classes), worth)
        return Sheet(tuple(worth), self.classes, np.array(self.prior), found, over)

    def payments(self) -> Payments:
        """Who is paid what, a deposit that comes back included."""
        sheet = self.sheet()
        return pay_marks(
            sheet.scores(), budget=self.budget, full_marks=self.full_marks, deposit=self.deposit,
            exposure=self.exposure, sure=self.sure, currency=self.currency, agreement=sheet.agreement(),
            riding=self.riding, clusters=self.clusters,
        )  # fmt: skip
