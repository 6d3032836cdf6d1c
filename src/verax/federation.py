"""A federation's pay: what a reply must be, what it is scored on and paid by, what it counts for. No framework in here.

    referee = Referee(pool, predict, classes, payroll=Payroll("rounds.db", budget="100.00"))
    referee.broadcast(model)                               everybody is sent a model, a dict of arrays
    received = referee.receive(replies, asked)             what came back: models, and what is dropped and why
    outcome = referee.pay_round(1, received)               scored once, looked through for copies once, settled once
    shares = referee.weigh(received.works, outcome)        what each reply counts for in the average

Every reply is checked first: what is not the broadcast model's names, shapes and finite numbers is dropped and
named. When a model is scored:

    first    in the first round, before anything informative was broadcast (the default)
    every    in every round, with what everybody knows taken out: the broadcast, its predecessors and their variations
    report   once, on a model that each client trains from the initial one for this purpose

Payments go through `rounds`: what an `Outcome` shows is what that settlement paid by, and anybody can compute it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from verax.audit import Certificate
from verax.echo import KINSHIP, Weights, echo_test, public_features
from verax.errors import InputError, OptionError, VeraxError
from verax.money import minor_units, scale_of
from verax.payments import Payments
from verax.reports import Reports, some
from verax.rounds import Rounds, Settlement, Spec
from verax.rules import resolve
from verax.score import Scores, score
from verax.tables import write_atomically

Model = dict[str, npt.NDArray[Any]]
Predict = Callable[[Model, Any], npt.ArrayLike]
Protocol = Literal["first", "every", "report"]
PROTOCOLS = ("first", "every", "report")
WEIGHTS = ("equal", "score")
PAID_OPTIONS = ("rule", "over", "sign", "floor")
_SLACK = 1024  # bytes that an array's encoding may take beyond the broadcast's


@dataclass(frozen=True)
class Payroll:
    """Where payments are recorded, and how much each scored round pays.

    `db` is an SQLite file or a database URL; `copies` pays clients that are copies of one another as one;
    `significance` pays only scores that many standard errors above 0.

    >>> Payroll("rounds.db", budget="100.00").currency
    'EUR'
    """

    db: str
    budget: str
    currency: str = "EUR"
    scheme: str = "clipped"
    min_tasks: int = 30
    copies: bool = True
    significance: float | None = 3.0

    def __post_init__(self) -> None:
        minor_units(self.budget, scale_of(self.currency), self.currency)  # refused before anybody trains for it

    def spec(self, name: str, **asked: Any) -> Spec:
        """The round of that name which this payroll pays for."""
        return Spec(
            name, budget=self.budget, currency=self.currency, scheme=self.scheme, min_tasks=self.min_tasks,
            copies=self.copies, significance=self.significance, **asked,
        )  # fmt: skip

    def settle(self, spec: Spec, reports: Reports) -> Settlement:
        """The round opened, funded, filled, sealed and settled; each step is idempotent."""
        from verax.ledger import Ledger

        rounds = Rounds(Ledger.open(self.db, create=True))
        rounds.open(spec)
        rounds.fund(spec.round)
        for i, agent in enumerate(reports.agents):
            rounds.submit(spec.round, agent, reports.only(i), key="1")
        rounds.seal(spec.round)
        return rounds.settle(spec.round)


class Encoded(NamedTuple):
    """An array as it was sent: what it claims to be is looked at before anything is decoded."""

    shape: tuple[int, ...]
    size: int
    decode: Callable[[], npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Reply:
    """What a client sent: arrays by name, or why they are not looked at. `origin` is its carrier's own message."""

    agent: str
    arrays: Mapping[str, Encoded | npt.NDArray[Any]] = field(default_factory=dict)
    refused: str = ""
    origin: Any = None


@dataclass(frozen=True, eq=False)
class Work:
    """A reply that is a model, and what it says of the pool."""

    agent: str
    model: Model
    said: npt.NDArray[Any]
    origin: Any = None


@dataclass(frozen=True, eq=False)
class Received:
    """A round's replies: those that are models, one a client, by name; the others with the reason."""

    works: tuple[Work, ...]
    dropped: dict[str, str]


@dataclass(frozen=True)
class Outcome:
    """What became of one scored round: who was scored, paid, dropped, or not paid, and why.

    Where there is a payroll, scores, payments and copies are those of the round's settlement.
    """

    server_round: int
    scores: Scores | None
    amounts: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    unpaid: dict[str, str] = field(default_factory=dict)
    round: str | None = None
    copies: tuple[Certificate, ...] = ()
    payments: Payments | None = None
    problem: str = ""

    def table(self) -> str:
        """The round as text, one line a client."""
        notes = {c.agent: c.why for c in self.copies if c.agent} | self.unpaid
        lines = [f"{'client':>22}  {'score':>8}  {'stderr':>7}  {'paid':>8}  note"]
        ranked = self.scores.ranked() if self.scores else []
        for s in ranked:
            number, error = ("-" if x is None else f"{x:.4f}" for x in (s.score, s.stderr))
            lines.append(self._line(s.agent, notes.get(s.agent, ""), number, error))
        left = dict.fromkeys(self.amounts, "there is nobody to score it against") | notes
        left = {agent: why for agent, why in left.items() if agent not in {s.agent for s in ranked}}
        left |= {agent: f"dropped: {why}" for agent, why in self.dropped.items()}
        lines += [self._line(agent, why) for agent, why in left.items()]
        return "\n".join([*lines, *(self.scores.warnings if self.scores else ())])

    def _line(self, agent: str, note: str, number: str = "-", error: str = "-") -> str:
        return f"{agent[:22]:>22}  {number:>8}  {error:>7}  {self.amounts.get(agent, '-'):>8}  {note}"

    def certificates(self) -> list[Certificate]:
        """The same reasons as certificates, for a page."""
        found = [("REPLY", agent, why) for agent, why in self.dropped.items()]
        found += [("OWN-WORK", agent, why) for agent, why in self.unpaid.items()]
        return [Certificate(code, agent, "fails", None, None, None, why) for code, agent, why in found] + [*self.copies]


class _Refused(Exception):  # noqa: N818
    """Why a reply is dropped; never leaves this module."""


@dataclass(eq=False)
class Referee:
    """Every round of one federation: its broadcasts, what is paid for them, and what no client's claim changes.

    `predict(model, pool)` gives labels (N,) or probabilities (N, L) of the pool for a model, a dict of arrays by
    name. `gold`: the true labels of some of the pool, -1 elsewhere, or {place in the pool: label}. `weights`:
    "equal", or "score" for what `weigh` says; `sizes` says what each client (by its name in the scores) counts
    for if the server knows. `bar` leaves replies out of the average whose score is below that share of the
    median. `pages`: a folder for one page a scored round. `options` go to `verax.score`: rule, over, sign, floor;
    `features` to `echo.public_features`. `kinship` is what `echo.echo_test` asks of an update before it is paid; None
    leaves that out. `imitate(broadcasts)` gives groups of models that the server makes itself without anybody's
    labels, such as the broadcast trained on the pool with random labels; what they hold is public too.

    >>> def predict(model, pool):
    ...     return (pool > model["at"]).astype(int)
    >>> referee = Referee(np.linspace(0, 1, 50), predict, ["low", "high"], kinship=None)
    >>> referee.broadcast({"at": np.array([0.5])})
    >>> replies = [Reply("ann", {"at": np.array([0.4])}), Reply("bob", {"at": np.array([0.6])}), Reply("eve", {})]
    >>> received = referee.receive(replies, ["ann", "bob", "eve", "dan"])
    >>> received.dropped
    {'eve': "the arrays' names are not the broadcast's ('at')", 'dan': 'no reply'}
    >>> round(referee.pay_round(1, received).scores["ann"].score, 2)
    0.33
    """

    pool: Any
    predict: Predict
    classes: Sequence[str]
    _: KW_ONLY
    protocol: Protocol = "first"
    payroll: Payroll | None = None
    gold: npt.ArrayLike | Mapping[int, int] | None = None
    weights: str = "equal"
    sizes: Mapping[str, float] | None = None
    bar: float | None = None
    name: str = "federation"
    pages: str | Path | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    features: Mapping[str, Any] = field(default_factory=dict)
    kinship: float | None = KINSHIP
    imitate: Callable[[Sequence[Model]], Sequence[Sequence[Model]]] | None = None
    outcomes: list[Outcome] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Refuse, before anybody trains, what no round could be scored or paid by."""
        if self.protocol not in PROTOCOLS:
            raise OptionError(f"protocol is {self.protocol!r}; choose one of {', '.join(PROTOCOLS)}")
        if self.weights not in WEIGHTS:
            raise OptionError(f"weights is {self.weights!r}; choose one of {', '.join(WEIGHTS)}")
        if self.weights == "score" and self.sizes is not None:
            raise OptionError("sizes go with equal weights; leave sizes out to weigh by score")
        strange = [name for name in self.options if name not in PAID_OPTIONS]
        if self.payroll is not None and strange:
            raise OptionError(f"a paid round cannot be asked for {some(strange)}; give {', '.join(PAID_OPTIONS)} only")
        rule = resolve(self.options["rule"], self.options.get("floor")) if "rule" in self.options else None
        if self.payroll is not None and rule is not None:
            self.options = {**self.options, "rule": rule.name}
        self.classes, self.tasks = tuple(map(str, self.classes)), tuple(map(str, range(len(self.pool))))
        self._gold = _gold_labels(self.gold, len(self.tasks), len(self.classes))
        self._loses_only = rule is not None and rule.loses_only
        self._history: list[Model] = []

    @property
    def due(self) -> bool:
        """Whether the protocol scores the replies of the round that is being played."""
        return self.protocol == "every" or (self.protocol == "first" and not self.outcomes)

    @property
    def wants_reports(self) -> bool:
        """Whether models are still to be asked for that are trained for being scored alone."""
        return self.protocol == "report" and not self.outcomes

    def broadcast(self, model: Model) -> None:
        """Remember what everybody is sent in this round."""
        self._history.append(model)

    def receive(self, replies: Iterable[Reply], asked: Collection[str] = ()) -> Received:
        """Replies that are models of the right form and can predict, one a client; the others with the reason."""
        works: dict[str, Work] = {}
        dropped: dict[str, str] = {}
        for reply in replies:
            try:
                if reply.refused or reply.agent in works:
                    raise _Refused(reply.refused or "it replied twice")
                model = _checked_model(reply.arrays, self._history[-1])
                works[reply.agent] = Work(reply.agent, model, self._predict_pool(model), reply.origin)
            except _Refused as why:
                dropped[reply.agent] = str(why)
        silent = sorted(set(asked) - set(works) - set(dropped))
        return Received(tuple(works[agent] for agent in sorted(works)), dropped | dict.fromkeys(silent, "no reply"))

    def _predict_pool(self, model: Model) -> npt.NDArray[Any]:
        """Labels or rows of the pool; a model on which `predict` fails is no model."""
        try:
            said = np.asarray(self.predict(model, self.pool))
        except VeraxError:
            raise
        except Exception as error:  # whatever a user's own code may raise on a strange model
            raise _Refused(f"the pool cannot be predicted with it ({type(error).__name__})") from None
        rows = said.ndim == 2 and said.dtype.kind == "f"
        if said.shape[:1] != (len(self.tasks),) or not (rows or (said.ndim == 1 and said.dtype.kind in "iu")):
            raise InputError(
                f"predict gives shape {said.shape} and type {said.dtype}; "
                f"give labels ({len(self.tasks)},) or probabilities ({len(self.tasks)}, {len(self.classes)})"
            )
        if rows and not np.isfinite(said).all():
            raise _Refused("its predictions are not finite numbers")
        return said

    def pay_round(self, server_round: int, received: Received) -> Outcome:
        """Score the replies and settle a round of that name; what goes wrong is said in the outcome."""
        try:
            outcome = self._scored_round(server_round, received)
        except VeraxError as error:
            outcome = Outcome(server_round, None, dropped=received.dropped, problem=str(error))
        self.outcomes.append(outcome)
        if self.pages is not None:
            self._write_page(Path(self.pages), outcome)
        return outcome

    def _scored_round(self, server_round: int, received: Received) -> Outcome:
        works, dropped = received.works, received.dropped
        if len(works) < 2:
            raise InputError(f"{len(works)} replies can be scored; two at least are needed")
        reports = self._reports_of(works)
        everything = self.protocol == "every"
        imitations = self.imitate(self._history) if everything and self.imitate is not None else ()
        public = self._public_features(imitations) if everything else None
        unpaid = self._echoes_among(works, imitations)
        if self.payroll is None:
            payable = reports.only(*(i for i, agent in enumerate(reports.agents) if agent not in unpaid))
            scores = score(payable, self._gold, public, **self.options) if len(payable.agents) > 1 else None
            return Outcome(server_round, scores, dropped=dropped, unpaid=unpaid)
        spec = self.payroll.spec(
            f"{self.name}-{server_round}", tasks=self.tasks, classes=self.classes, unpaid=tuple(sorted(unpaid)),
            truth=None if self._gold is None else tuple(self._gold.tolist()),
            public=None if public is None else tuple(map(tuple, public.tolist())), **self.options,
        )  # fmt: skip
        settled = self.payroll.settle(spec, reports)
        twins = tuple(c for c in settled.copies if c.verdict == "fails")
        return Outcome(
            server_round, settled.scores, settled.amounts, dropped, unpaid, spec.round, twins, settled.payments
        )

    def _reports_of(self, works: Sequence[Work]) -> Reports:
        said, names = [w.said for w in works], [w.agent for w in works]
        if all(s.ndim == 1 for s in said):
            return Reports.of(np.stack(said), agents=names, tasks=self.tasks, classes=self.classes)
        rows = np.stack(said).astype(np.float64)
        return Reports.of(
            probabilities=rows / rows.sum(2, keepdims=True), agents=names, tasks=self.tasks, classes=self.classes
        )

    def _public_features(self, imitations: Sequence[Sequence[Model]]) -> npt.NDArray[np.float64]:
        """What the broadcasts so far, and imitations of work, say about the pool."""
        names = list(self._history[-1])

        def rows(weights: Weights, pool: Any) -> npt.NDArray[Any]:
            said = np.asarray(self.predict(dict(zip(names, weights, strict=True)), pool))
            return said if said.ndim == 2 else np.eye(len(self.classes))[said]

        *before, now = map(_arrays_of, self._history)
        groups = [[*map(_arrays_of, group)] for group in imitations]
        return public_features(rows, now, before, self.pool, self.seed, imitations=groups, **self.features)

    def _echoes_among(self, works: Sequence[Work], imitations: Sequence[Sequence[Model]]) -> dict[str, str]:
        """Who sent nothing of its own, by what its update shares with the others'."""
        if len(works) < 3 or self.kinship is None:
            return {}
        *before, now = map(_arrays_of, self._history)
        made = [_arrays_of(model) for group in imitations for model in group]
        found = echo_test([_arrays_of(w.model) for w in works], now, before, imitations=made, least=self.kinship)
        return {
            w.agent: f"no work of its own can be seen: its update shares {kin.ratio:.1f} with the others', "
            f"where noise shares 1 and {kin.least:g} is asked"
            for w, kin in zip(works, found, strict=True)
            if not kin.worked
        }

    def weigh(self, works: Sequence[Work], outcome: Outcome | None = None) -> list[tuple[Work, float]]:
        """The replies that count in the average, each with what it counts for.

        By the scores these replies were paid by in this round, where there are some; who has none counts for nothing.
        In rounds that are not scored, under `every` (which takes out what is shared, and that is most of what makes a
        model good) and under rules whose scores are never above 0, by one plain score: agreement beyond chance.
        """
        scores = self._weighing_scores(works, outcome)
        least = -math.inf
        if self.bar is not None and scores:
            least = self.bar * float(np.median(list(scores.values())))
        kept = [w for w in works if scores.get(w.agent, math.inf) >= least]
        shares = [1.0 if self.sizes is None else float(self.sizes.get(w.agent, 1.0)) for w in kept]
        if self.weights == "score" and scores:
            shares = [max(scores[w.agent], 0.0) for w in kept]
            shares = shares if sum(shares) > 0 else [1.0] * len(kept)
        return list(zip(kept, shares, strict=True))

    def _weighing_scores(self, works: Sequence[Work], outcome: Outcome | None) -> dict[str, float]:
        if len(works) < 2 or (self.weights != "score" and self.bar is None):
            return {}
        paid_by = None if outcome is None or self.protocol == "every" or self._loses_only else outcome.scores
        found = paid_by or score(self._reports_of(works), self._gold)
        return dict.fromkeys((w.agent for w in works), 0.0) | {s.agent: s.score or 0.0 for s in found.scores}

    def _write_page(self, folder: Path, outcome: Outcome) -> None:
        from verax.show.page import page

        folder.mkdir(parents=True, exist_ok=True)
        title = f"{self.name}, round {outcome.server_round}"
        text = page(title, scores=outcome.scores, certificates=outcome.certificates(), payments=outcome.payments)
        write_atomically(folder / f"round-{outcome.server_round}.html", lambda file: file.write(text.encode()))


def _arrays_of(model: Model) -> Weights:
    return list(model.values())


def _gold_labels(
    gold: npt.ArrayLike | Mapping[int, int] | None, tasks: int, classes: int
) -> npt.NDArray[np.int64] | None:
    """True labels of some of the pool as an array, -1 where not known."""
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


def _checked_model(sent: Mapping[str, Encoded | npt.NDArray[Any]], broadcast: Model) -> Model:
    """The model that was sent, if it has the broadcast's names, shapes, types and finite numbers, and no more bytes."""
    if set(sent) != set(broadcast):
        strange = [name for name in sent if name not in broadcast] or sorted(set(broadcast) - set(sent))
        raise _Refused(f"the arrays' names are not the broadcast's ({some(strange)})")
    return {name: _checked_array(name, sent[name], expected) for name, expected in broadcast.items()}


def _checked_array(name: str, array: Encoded | npt.NDArray[Any], expected: npt.NDArray[Any]) -> npt.NDArray[Any]:
    values = array
    if isinstance(array, Encoded):
        if array.shape != expected.shape or array.size > expected.nbytes + _SLACK:
            raise _Refused(f"array {name!r} has shape {array.shape} in {array.size} bytes, not {expected.shape}")
        try:
            values = array.decode()
        except Exception as error:  # bytes from a stranger: whatever a decoder may raise
            raise _Refused(f"array {name!r} cannot be decoded ({type(error).__name__})") from None
    if not isinstance(values, np.ndarray):
        raise _Refused(f"{name!r} is a {type(values).__name__}, not an array")
    if values.shape != expected.shape or values.dtype != expected.dtype:
        raise _Refused(f"array {name!r} is {values.dtype} {values.shape}, not {expected.dtype} {expected.shape}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise _Refused(f"array {name!r} is not finite everywhere")
    return values
