"""The exam: a reply is worth what its innovation says about labels that others hold back.

    score   s = mean over held-back (x, y) of w(y) <u(x), e_y - p(x)>

u is the reply's innovation (`innovations`), p the broadcast's rows, w gives labels the shares that the broadcast sees
in the pool. To first order s is how much a squared loss falls if p moves by u. A reply that knows of y nothing beyond
x, p and the public moves has mean 0 whatever it did, and s is linear in the reply; nobody's habits of training enter.

Labels come from one of three: members who examine one another (nobody on its own examples), dues handed to the server,
or the server's own (gold). Whoever holds them commits to them before the first round (`HeldBack.commitment`). What a
score is worth in money, `payments` decides.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from statistics import median
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from verax import wire
from verax.audit.certificate import Certificate, tasks_needed
from verax.errors import InputError, OptionError
from verax.innovations import Floats, clipped, fitted
from verax.plan import Mechanism
from verax.reports import some
from verax.score import Score, Scores

Ints = npt.NDArray[np.int64]
Over = Literal["mean", "median", "trusted"]
OVERS = ("mean", "median", "trusted")
SURE = 3.0  # standard errors
_HEAVIEST = 5.0  # times the middle weight, so that one label of a rare kind decides nothing
_AGREES = 0.5  # of the middle examiner's agreement


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


def balanced(labels: npt.ArrayLike, prior: npt.ArrayLike) -> Floats:
    """Weights, 1 in the mean, that give labels the shares of `prior`; none above five times the middle one.

    >>> balanced([0, 0, 0, 1], [0.5, 0.5]).tolist()
    [0.6666666666666666, 0.6666666666666666, 0.6666666666666666, 2.0]
    """
    y, shares = np.asarray(labels), np.asarray(prior, dtype=np.float64)
    counts = np.bincount(y, minlength=len(shares))
    weight = np.where(counts > 0, shares / np.maximum(counts, 1), 0.0)[y]
    weight = np.minimum(weight, _HEAVIEST * np.median(weight))
    total = math.fsum(weight)
    return np.asarray(weight * (len(y) / total) if total > 0 else np.zeros(len(y)))


def marks(innovation: Floats, rows: npt.ArrayLike, labels: npt.ArrayLike, weights: npt.ArrayLike = 1.0) -> Floats:
    """psi (n,): w(y) <u(x), e_y - p(x)> of every example; its mean is the score.

    >>> marks(np.array([[0.1, -0.1]]), [[0.5, 0.5]], [0]).tolist()
    [0.1]
    """
    p = np.asarray(rows, dtype=np.float64)
    missing = np.eye(p.shape[1])[np.asarray(labels)] - p
    return np.asarray((innovation * missing).sum(1) * np.asarray(weights))


@dataclass(frozen=True)
class Mark:
    """A score with its standard error, and on how many examples of how many examiners it rests."""

    score: float
    stderr: float
    examples: int
    examiners: int


def mean_mark(psi: Floats, examiners: int = 1) -> Mark:
    """The mean over examples, in a sum that knows no order.

    >>> mean_mark(np.array([0.0, 0.2])).score
    0.1
    """
    n = len(psi)
    mean = math.fsum(psi) / n
    spread = math.sqrt(math.fsum((psi - mean) ** 2) / n)
    return Mark(mean, spread / math.sqrt(n), n, examiners)


def median_mark(parts: Sequence[Floats]) -> Mark:
    """The middle of the examiners' means: below one half, those who lie cannot move it beyond what honest ones say.

    Examiners have different examples, so the error is that of a median of independent numbers: sqrt(pi / 2 m) times
    the middle error, where m examiners judge.

    >>> median_mark([np.array([0.1, 0.3]), np.array([0.2, 0.2]), np.array([9.0, 9.0])]).score
    0.2
    """
    each = [mean_mark(psi) for psi in parts]
    error = median(m.stderr for m in each) * (math.sqrt(math.pi / 2 / len(each)) if len(each) > 2 else 1.0)
    return Mark(median(m.score for m in each), error, sum(m.examples for m in each), len(each))


@dataclass(eq=False)
class Exam:
    """Every round of one exam: innovations are marked as they come, and one look is taken at the sum over rounds.

    `labels` (n,) of the held-back examples and `holders`, whose each is (None: nobody's who replies), follow the order
    of the inputs. `over` puts examiners together: "mean" over their examples, "median" of their means, or "trusted",
    the mean over those who agree with what the median of the others pays. `own_past="public"` takes a member's
    earlier moves out of its later ones, so that an update sent again earns nothing. No innovation counts for more
    than one `most` times as long as the round's middle one.

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
        """Refuse labels that nobody could be examined on."""
        self._labels, self.classes = np.asarray(self.labels), tuple(map(str, self.classes))
        if self.over not in OVERS:
            raise OptionError(f"over is {self.over!r}; choose one of {', '.join(OVERS)}")
        if self.own_past not in (None, "public"):
            raise OptionError(f"own_past is {self.own_past!r}; give 'public' or leave it out")
        if len(self._labels) != len(self.holders) or self._labels.dtype.kind not in "iu" or not len(self._labels):
            raise InputError(f"{len(self._labels)} labels have {len(self.holders)} holders; give one for each")
        if self._labels.min() < 0 or self._labels.max() >= len(self.classes):
            raise InputError(
                f"a held-back label is not from 0 to {len(self.classes) - 1}; give a class number for each"
            )
        self._examiners = {h: np.array([g == h for g in self.holders]) for h in sorted({*self.holders}, key=str)}
        self._psi: dict[str, Floats] = {}
        self._together: dict[str, Floats] = {}
        self._past: dict[str, list[Floats]] = {}
        self._rows = np.zeros((0, len(self.classes)))

    def sit(self, rows: npt.ArrayLike, public: Floats, replies: Mapping[str, npt.ArrayLike]) -> None:
        """One round: the broadcast's rows, the public moves, and each reply's rows, on pool and held-back inputs.

        The held-back inputs come last. All inputs serve to take out what is public, for that needs no label.
        """
        p = np.asarray(rows, dtype=np.float64)
        if len(p) < len(self._labels) or p.shape[1:] != (len(self.classes),):
            raise InputError(
                f"rows have shape {p.shape}; give {len(self.classes)} classes on the pool and then on the "
                f"{len(self._labels)} held-back inputs"
            )
        moves = {agent: np.asarray(replies[agent], dtype=np.float64) - p for agent in sorted(replies)}
        innovations = clipped([*self._innovations(p, public, moves).values()], self.most)
        pool = p[: -len(self._labels)] if len(p) > len(self._labels) else p
        prior = pool.mean(0)
        for agent, u in zip(moves, innovations, strict=True):
            self._together[agent] = u + self._together.get(agent, 0.0)
            self._psi[agent] = self._marked(agent, u, p, prior) + self._psi.get(agent, 0.0)
            if self.own_past == "public":
                self._past.setdefault(agent, []).append(moves[agent])
        self._rows, self.rounds = p, self.rounds + 1

    def _innovations(self, p: Floats, public: Floats, moves: Mapping[str, Floats]) -> dict[str, Floats]:
        shared = fitted(p, public)
        found = {}
        for agent, move in moves.items():
            past = self._past.get(agent, [])
            fit = fitted(p, np.concatenate([public, np.stack(past, 2)], 2)) if past else shared
            found[agent] = fit.innovation(move)
        return found

    def _marked(self, agent: str, u: Floats, p: Floats, prior: Floats) -> Floats:
        """psi of every example, 0 on the agent's own, which it is not examined on."""
        n, others = len(self._labels), self._others(agent)
        psi = np.zeros(n)
        if others.any():
            weights = balanced(self._labels[others], prior)
            psi[others] = marks(u[-n:][others], p[-n:][others], self._labels[others], weights)
        return psi

    def _others(self, agent: str) -> npt.NDArray[np.bool_]:
        return ~self._examiners.get(agent, np.zeros(len(self._labels), dtype=bool))

    def scores(self) -> Scores:
        """Everybody's sum over rounds, by name, with its standard error; who has no examiner has none."""
        found = [(agent, self._mark(agent)) for agent in sorted(self._psi)]
        each = tuple(
            Score(agent, None, None, 0, 0) if m is None else Score(agent, m.score, m.stderr, m.examples, m.examiners)
            for agent, m in found
        )
        mechanism = Mechanism("exam", "truth", self.over, None, True, None)
        unexamined = [agent for agent, m in found if m is None]
        warnings = (f"nobody else holds labels to examine {some(unexamined)} on",) if unexamined else ()
        return Scores(mechanism, len(self._labels), tuple(self.classes), each, warnings)

    def _mark(self, agent: str) -> Mark | None:
        judges = [h for h in self._examiners if h is None or h != agent]
        if self.over == "trusted" and len(judges) > 2:
            judges = self._trusted(judges, agent) or judges
        parts = [self._psi[agent][self._examiners[h]] for h in judges]
        if not parts:
            return None
        return median_mark(parts) if self.over == "median" else mean_mark(np.concatenate(parts), len(parts))

    def _trusted(self, judges: Sequence[str | None], examined: str) -> list[str | None]:
        """The judges whose labels agree with what the others' pay, none of it told by the one who is examined."""
        agreed = {h: self._agreement(h, without=examined) for h in judges}
        middle = median(agreed.values())
        return [h for h, a in agreed.items() if h is None or a > _AGREES * middle]

    def _agreement(self, judge: str | None, without: str | None = None) -> float:
        """How much a judge's labels pay the innovations that the median of the other judges pays."""
        others = [h for h in self._examiners if h != judge]
        found = []
        for agent, psi in self._psi.items():
            rest = [mean_mark(psi[self._examiners[h]]).score for h in others if h is None or h != agent]
            if agent not in (judge, without) and rest:
                found.append(max(median(rest), 0.0) * mean_mark(psi[self._examiners[judge]]).score)
        return math.fsum(found)

    def agreement(self) -> dict[str, float]:
        """Of every member who examines, how far its labels agree with the others': 1 as the middle one's, 0 not at all.

        A share of an examiner's pay rides on it (`payments.pay_marks`).
        """
        found = {h: self._agreement(h) for h in self._examiners if h is not None}
        middle = median(found.values()) if found else 0.0
        return {h: min(max(a / middle, 0.0), 1.0) if middle > 0 else 1.0 for h, a in found.items()}

    def exposure(self, labels: int | None = None, sure: float = SURE) -> float:
        """What bad luck with so many labels can take from a score that should be 0: `sure` errors of the widest reply.

        No label is looked at: y is taken to follow the broadcast's rows. So it is known before labels are, and is what
        a deposit must cover. An overconfident broadcast makes it too small.
        """
        if not self._together:
            raise InputError("nobody has replied yet; what is at stake is known once a round was sat")
        n = len(self._labels) if labels is None else labels
        p = self._rows
        spreads = [
            float(((p * u**2).sum(1) - (p * u).sum(1) ** 2).mean()) for u in self._together.values()
        ]  # fmt: skip
        return sure * math.sqrt(max(spreads) / n)

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
