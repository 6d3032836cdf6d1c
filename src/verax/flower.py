"""Flower: a strategy that wraps any other, scores each client's model on a pool of inputs, and pays it.

    strategy = PaidStrategy(FedAvg(), pool, predict, classes, payroll=Payroll("rounds.db", budget="100.00"))
    strategy.start(grid, initial_arrays, num_rounds=3)

Every reply is checked first: what is not the broadcast model's names, shapes and finite numbers is dropped and
named, and the round goes on. What a reply counts for in the average is decided here, never by the client's own
claim. When a model is scored:

    first    in the first round, before anything informative was broadcast (the default)
    every    in every round, with what everybody knows taken out: the broadcast, its predecessors and their variations
    report   once, on a model that each client trains from the initial one for this purpose (message `train.report`)

Payments go through `rounds`, so that every client has a receipt and anybody can compute them again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from verax.audit import Certificate
from verax.audit.copies import copies
from verax.echo import KINSHIP, echo_test, public_features
from verax.errors import ExtraMissing, InputError, OptionError, VeraxError
from verax.mechanisms import Scores, score
from verax.page import page
from verax.payments import Payment, Payments, minor_units, scale_of
from verax.reports import Reports, some
from verax.tables import write_atomically

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
    from flwr.supercore import log
except ImportError:
    raise ExtraMissing("Flower strategies", "flower") from None

Model = dict[str, npt.NDArray[Any]]
Predict = Callable[[Model, Any], npt.ArrayLike]
Protocol = Literal["first", "every", "report"]
PROTOCOLS = ("first", "every", "report")
WEIGHTS = ("equal", "score")
REPORT = "train.report"
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


@dataclass(frozen=True)
class Outcome:
    """What became of one scored round: who was scored, paid, dropped, or not paid, and why."""

    server_round: int
    scores: Scores | None
    amounts: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    unpaid: dict[str, str] = field(default_factory=dict)
    round: str | None = None

    def table(self) -> str:
        """The round as text, one line a client."""
        lines = [f"{'client':>22}  {'score':>8}  {'stderr':>7}  {'paid':>8}  note"]
        for s in self.scores.ranked() if self.scores else ():
            number, error = ("-" if x is None else f"{x:.4f}" for x in (s.score, s.stderr))
            paid = str(self.amounts.get(s.agent, "-"))
            lines.append(f"{s.agent[:22]:>22}  {number:>8}  {error:>7}  {paid:>8}  {self.unpaid.get(s.agent, '')}")
        scored = {s.agent for s in self.scores.scores} if self.scores else set()
        left = dict.fromkeys(self.amounts, "there is nobody to score it against") | self.unpaid
        left = {agent: why for agent, why in left.items() if agent not in scored}
        left |= {agent: f"dropped: {why}" for agent, why in self.dropped.items()}
        for agent, why in left.items():
            lines.append(f"{agent[:22]:>22}  {'-':>8}  {'-':>7}  {self.amounts.get(agent, '-'):>8}  {why}")
        return "\n".join(lines)

    def certificates(self) -> list[Certificate]:
        """The same reasons as certificates, for a page."""
        found = [("REPLY", agent, why) for agent, why in self.dropped.items()]
        found += [("OWN-WORK", agent, why) for agent, why in self.unpaid.items()]
        return [Certificate(code, agent, "fails", None, None, None, why) for code, agent, why in found]


class _Refused(Exception):  # noqa: N818
    """Why a reply is dropped; never leaves this module."""


@dataclass(frozen=True)
class _Reply:
    agent: str
    message: Message
    model: Model
    said: npt.NDArray[Any] | None = None


class PaidStrategy(Strategy):
    """Any Flower strategy, with every client's model scored and paid, and no client's claim believed.

    `predict(model, pool)` gives labels (N,) or probabilities (N, L) of the pool for a model, a dict of arrays by
    name. `gold`: the true labels of some of the pool, -1 elsewhere, or {place in the pool: label}. `weights`:
    "equal", or "score" for each reply's plain score; `sizes` says what each client (by its name in the scores) counts
    for if the server knows. `bar` leaves replies out of the average whose plain score is below that share of the
    median. `identity` names a client by its node; left out, by the SHA-256 sum of its public key, or by its id if it
    has none. `pages`: a folder for one page a scored round. `options` go to `verax.score`: rule, over, sign, floor;
    `features` to `echo.public_features`. `kinship` is what `echo.echo_test` asks of an update before it is paid; None
    leaves that out. `imitate(broadcasts)` gives groups of models that the server makes itself without anybody's
    labels, such as the broadcast trained on the pool with random labels; what they hold is public too.
    """

    def __init__(
        self,
        strategy: Strategy,
        pool: Any,
        predict: Predict,
        classes: Sequence[str],
        *,
        protocol: Protocol = "first",
        payroll: Payroll | None = None,
        gold: npt.ArrayLike | Mapping[int, int] | None = None,
        weights: str = "equal",
        sizes: Mapping[str, float] | None = None,
        bar: float | None = None,
        name: str = "federation",
        identity: Callable[[Any], str] | None = None,
        pages: str | Path | None = None,
        report_timeout: float = 3600.0,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        features: Mapping[str, Any] | None = None,
        kinship: float | None = KINSHIP,
        imitate: Callable[[Sequence[Model]], Sequence[Sequence[Model]]] | None = None,
    ) -> None:
        if protocol not in PROTOCOLS:
            raise OptionError(f"protocol is {protocol!r}; choose one of {', '.join(PROTOCOLS)}")
        if weights not in WEIGHTS:
            raise OptionError(f"weights is {weights!r}; choose one of {', '.join(WEIGHTS)}")
        if weights == "score" and sizes is not None:
            raise OptionError("sizes go with equal weights; leave sizes out to weigh by score")
        self.strategy, self.pool, self.predict = strategy, pool, predict
        self.classes = tuple(map(str, classes))
        self.protocol, self.payroll = protocol, payroll
        self.tasks = tuple(str(n) for n in range(len(pool)))
        self.gold = _gold(gold, len(self.tasks), len(self.classes))
        self.weights, self.sizes, self.bar = weights, sizes, bar
        self.name, self.identity, self.pages = name, identity, None if pages is None else Path(pages)
        self.report_timeout, self.seed = report_timeout, seed
        self.options, self.features = dict(options or {}), dict(features or {})
        self.kinship, self.imitate = kinship, imitate
        self.outcomes: list[Outcome] = []
        self._history: list[Model] = []
        self._made: tuple[int, Sequence[Sequence[Model]]] | None = None
        self._asked: set[int] = set()
        self._names: dict[int, str] = {}
        self._key = "arrays"

    def summary(self) -> None:
        """Say what is paid for, then what the wrapped strategy says."""
        budget = f"{self.payroll.budget} {self.payroll.currency} a scored round" if self.payroll else "nothing is paid"
        log(INFO, "\t├──> Scored on %s inputs, protocol %s, %s", len(self.tasks), self.protocol, budget)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember what is broadcast and to whom; with protocol `report`, ask for reports first."""
        self._history.append(_model(arrays))
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        # Only now: the wrapped strategy may have waited for clients to connect.
        self._names |= {node.node_id: self._named(node) for node in grid.get_nodes()}
        self._asked = {m.metadata.dst_node_id for m in messages}
        for message in messages[:1]:
            self._key = next(iter(message.content.array_records), self._key)
        if self.protocol == "report" and not self.outcomes and messages:
            self._ask_reports(server_round, arrays, config, grid)
        return messages

    def _ask_reports(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> None:
        """A message of its own, before training: a model from the initial one, on the client's own data alone."""
        content = RecordDict({self._key: arrays, "config": ConfigRecord({**config, "server-round": server_round})})
        messages = [Message(content=content, message_type=REPORT, dst_node_id=node) for node in sorted(self._asked)]
        replies, dropped = self._checked(grid.send_and_receive(messages, timeout=self.report_timeout))
        self._score_and_pay(server_round, replies, dropped)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check, score and pay the replies, weigh them, and let the wrapped strategy put them together."""
        good, dropped = self._checked(replies)
        plain = self._plain_scores(good)
        if self.protocol == "every" or (self.protocol == "first" and not self.outcomes):
            self._score_and_pay(server_round, good, dropped)
        elif dropped:
            log(WARNING, "dropped: %s", "; ".join(f"{agent}: {why}" for agent, why in dropped.items()))
        counted = self._weighed(good, plain)
        if not counted:
            log(WARNING, "round %s: no reply is left to average; the model stays as it is", server_round)
            return None, None
        return self.strategy.aggregate_train(server_round, counted)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the wrapped strategy does."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the wrapped strategy does, on finite numbers that all replies share, each counting the same."""
        good = [m for m in replies if not m.has_error()]
        return self.strategy.aggregate_evaluate(server_round, _reweighed(good, [1.0] * len(good), self._weight_key))

    @property
    def _weight_key(self) -> str:
        return str(getattr(self.strategy, "weighted_by_key", "num-examples"))

    def _named(self, node: Any) -> str:
        if self.identity is not None:
            return self.identity(node)
        return hashlib.sha256(node.public_key).hexdigest() if node.public_key else str(node.node_id)

    def _checked(self, replies: Iterable[Message]) -> tuple[list[_Reply], dict[str, str]]:
        """Replies that are models of the right form and can predict, one a client; the others with the reason."""
        good: dict[str, _Reply] = {}
        dropped: dict[str, str] = {}
        for message in replies:
            node = message.metadata.src_node_id
            agent = self._names.get(node, str(node))
            try:
                if node not in self._asked or agent in good:
                    raise _Refused("it was not asked" if node not in self._asked else "it replied twice")
                if message.has_error():
                    raise _Refused(f"an error in place of a model ({message.error.reason or 'no reason given'})")
                model = _valid(message, self._key, self._history[-1])
                good[agent] = _Reply(agent, message, model, self._predicted(model))
            except _Refused as why:
                dropped[agent] = str(why)
        asked = {self._names.get(node, str(node)) for node in self._asked}
        silent = sorted(asked - set(good) - set(dropped))
        return [good[agent] for agent in sorted(good)], dropped | dict.fromkeys(silent, "no reply")

    def _predicted(self, model: Model) -> npt.NDArray[Any]:
        """Labels or rows of the pool; a model on which `predict` fails is no model."""
        try:
            said = np.asarray(self.predict(model, self.pool))
        except VeraxError:
            raise
        except Exception as error:  # whatever a user's own code may raise on a strange model
            raise _Refused(f"the pool cannot be predicted with it ({type(error).__name__})") from None
        rows = said.ndim == 2 and said.dtype.kind == "f"
        if said.shape[0] != len(self.tasks) or not (rows or (said.ndim == 1 and said.dtype.kind in "iu")):
            raise InputError(
                f"predict gives shape {said.shape} and type {said.dtype}; "
                f"give labels ({len(self.tasks)},) or probabilities ({len(self.tasks)}, {len(self.classes)})"
            )
        if rows and not np.isfinite(said).all():
            raise _Refused("its predictions are not finite numbers")
        return said

    def _reports(self, replies: Sequence[_Reply]) -> Reports:
        said = [r.said for r in replies]
        agents = [r.agent for r in replies]
        if all(s is not None and s.ndim == 1 for s in said):
            return Reports.of(
                np.stack([np.asarray(s) for s in said]), agents=agents, tasks=self.tasks, classes=self.classes
            )
        rows = np.stack([np.asarray(s, dtype=np.float64) for s in said])
        rows = rows / rows.sum(2, keepdims=True)
        return Reports.of(probabilities=rows, agents=agents, tasks=self.tasks, classes=self.classes)

    def _plain_scores(self, replies: Sequence[_Reply]) -> dict[str, float]:
        """What each reply agrees with the others, nothing taken out: for weights, not for pay."""
        if len(replies) < 2 or (self.weights != "score" and self.bar is None):
            return {}
        found = score(self._reports(replies), self.gold, rule="zero-one")
        return {s.agent: s.score or 0.0 for s in found.scores}

    def _weighed(self, replies: Sequence[_Reply], plain: Mapping[str, float]) -> list[Message]:
        """The replies that count, each with the weight that it is given here."""
        least = -math.inf
        if self.bar is not None and plain:
            least = self.bar * float(np.median(list(plain.values())))
        kept = [r for r in replies if plain.get(r.agent, math.inf) >= least]
        weight = [1.0 if self.sizes is None else float(self.sizes.get(r.agent, 1.0)) for r in kept]
        if self.weights == "score" and plain:
            weight = [max(plain[r.agent], 0.0) for r in kept]
            weight = weight if sum(weight) > 0 else [1.0] * len(kept)
        return _reweighed([r.message for r in kept], weight, self._weight_key)

    def _score_and_pay(self, server_round: int, replies: Sequence[_Reply], dropped: dict[str, str]) -> None:
        """Score the replies and settle a round of that name; what goes wrong is said, and training goes on."""
        outcome = Outcome(server_round, None, dropped=dropped)
        try:
            outcome = self._settled(server_round, replies, dropped)
        except VeraxError as error:
            log(WARNING, "round %s is not paid: %s", server_round, error)
        self.outcomes.append(outcome)
        log(INFO, "scores of round %s:\n%s", server_round, outcome.table())
        if self.pages is not None:
            self.pages.mkdir(parents=True, exist_ok=True)
            text = page(
                f"{self.name}, round {server_round}",
                scores=outcome.scores,
                certificates=outcome.certificates(),
                payments=self._payments(outcome),
            )
            write_atomically(self.pages / f"round-{server_round}.html", lambda file: file.write(text.encode()))

    def _payments(self, outcome: Outcome) -> Payments | None:
        """What the ledger paid, for a page."""
        if self.payroll is None or not outcome.amounts:
            return None
        p = self.payroll
        budget = minor_units(p.budget, scale_of(p.currency), p.currency)
        paid = tuple(Payment(agent, amount) for agent, amount in sorted(outcome.amounts.items()))
        back = budget - sum(outcome.amounts.values())
        notes = tuple(f"{agent}: {why}" for agent, why in outcome.unpaid.items())
        return Payments(p.scheme, p.currency, scale_of(p.currency), budget, back, paid, notes)

    def _settled(self, server_round: int, replies: Sequence[_Reply], dropped: dict[str, str]) -> Outcome:
        if len(replies) < 2:
            raise InputError(f"{len(replies)} replies can be scored; two at least are needed")
        reports = self._reports(replies)
        public = self._public() if self.protocol == "every" else None
        unpaid = self._echoes(replies)
        payable = reports.only(*(i for i, agent in enumerate(reports.agents) if agent not in unpaid))
        enough = len(payable.agents) > 1
        scores = score(payable, self.gold, public, **self.options) if enough else None
        if self.payroll is None:
            return Outcome(server_round, scores, dropped=dropped, unpaid=unpaid)
        name = f"{self.name}-{server_round}"
        amounts = self._paid(name, reports, public, tuple(sorted(unpaid)))
        twins = copies(payable, 0.95) if self.payroll.copies and enough else []
        shared = {c.agent: c.why for c in twins if c.verdict == "fails" and c.agent}
        return Outcome(server_round, scores, amounts, dropped, shared | unpaid, name)

    def _paid(
        self, name: str, reports: Reports, public: npt.NDArray[np.float64] | None, unpaid: tuple[str, ...]
    ) -> dict[str, int]:
        """The round opened, funded, filled, sealed and settled; each step is idempotent."""
        from verax.ledger import Ledger
        from verax.rounds import Rounds, Spec

        assert self.payroll is not None
        p = self.payroll
        spec = Spec(
            name, self.tasks, self.classes, p.budget, currency=p.currency, scheme=p.scheme, min_tasks=p.min_tasks,
            truth=None if self.gold is None else tuple(self.gold.tolist()),
            public=None if public is None else tuple(map(tuple, public.tolist())),
            copies=p.copies, unpaid=unpaid, significance=p.significance, **self.options,
        )  # fmt: skip
        rounds = Rounds(Ledger.open(p.db, create=True))
        rounds.open(spec)
        rounds.fund(name)
        for i, agent in enumerate(reports.agents):
            rounds.submit(name, agent, reports.only(i), key="1")
        rounds.seal(name)
        return rounds.settle(name).amounts

    def _public(self) -> npt.NDArray[np.float64]:
        """What the broadcasts so far, and imitations of work, say about the pool."""
        names = list(self._history[-1])

        def rows(weights: list[npt.NDArray[Any]], pool: Any) -> npt.NDArray[Any]:
            said = np.asarray(self.predict(dict(zip(names, weights, strict=True)), pool))
            return said if said.ndim == 2 else np.eye(len(self.classes))[said]

        *before, now = map(_weights, self._history)
        groups = [[_weights(model) for model in group] for group in self._imitated()]
        found: npt.NDArray[np.float64] = public_features(
            rows, now, before, self.pool, self.seed, imitations=groups, **self.features
        )
        return found

    def _echoes(self, replies: Sequence[_Reply]) -> dict[str, str]:
        """Who sent nothing of its own, by what its update shares with the others'."""
        if len(replies) < 3 or self.kinship is None:
            return {}
        *before, now = map(_weights, self._history)
        made = [_weights(model) for group in self._imitated() for model in group]
        found = echo_test([_weights(r.model) for r in replies], now, before, imitations=made, least=self.kinship)
        return {
            r.agent: f"no work of its own can be seen: its update shares {kin.ratio:.1f} with the others', "
            f"where noise shares 1 and {kin.least:g} is asked"
            for r, kin in zip(replies, found, strict=True)
            if not kin.worked
        }

    def _imitated(self) -> Sequence[Sequence[Model]]:
        """The groups of models that `imitate` makes in this round, made once; only where everybody knows something."""
        if self.imitate is None or self.protocol != "every":
            return ()
        if self._made is None or self._made[0] != len(self._history):
            self._made = len(self._history), self.imitate(self._history)
        return self._made[1]


def _weights(model: Model) -> list[npt.NDArray[Any]]:
    return list(model.values())


def _gold(gold: npt.ArrayLike | Mapping[int, int] | None, tasks: int, classes: int) -> npt.NDArray[np.int64] | None:
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


def _model(arrays: ArrayRecord) -> Model:
    return {name: array.numpy() for name, array in arrays.items()}


def _valid(message: Message, key: str, broadcast: Model) -> Model:
    """The reply's model, if it has the broadcast's names, shapes, types and finite numbers, and no more bytes."""
    record = message.content.array_records.get(key) if message.has_content() else None
    if record is None:
        raise _Refused(f"no model under {key!r}")
    if set(record) != set(broadcast):
        strange = [name for name in record if name not in broadcast] or sorted(set(broadcast) - set(record))
        raise _Refused(f"the arrays' names are not the broadcast's ({some(strange)})")
    model = {}
    for name, expected in broadcast.items():
        array = record[name]
        if tuple(array.shape) != expected.shape or len(array.data) > expected.nbytes + _SLACK:
            raise _Refused(
                f"array {name!r} has shape {tuple(array.shape)} in {len(array.data)} bytes, not {expected.shape}"
            )
        try:
            values = array.numpy()
        except Exception as error:  # bytes from a stranger: whatever a decoder may raise
            raise _Refused(f"array {name!r} cannot be decoded ({type(error).__name__})") from None
        if values.shape != expected.shape or values.dtype != expected.dtype:
            raise _Refused(f"array {name!r} is {values.dtype} {values.shape}, not {expected.dtype} {expected.shape}")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise _Refused(f"array {name!r} is not finite everywhere")
        model[name] = values
    return model


def _reweighed(messages: Sequence[Message], weights: Sequence[float], key: str) -> list[Message]:
    """The messages with the finite metrics that all of them share, and the weight given here."""
    records = [_finite_metrics(m) for m in messages]
    shared = set.intersection(*(set(r) for r in records)) if records else set()
    for message, record, weight in zip(messages, records, weights, strict=True):
        kept: dict[str, Any] = {name: record[name] for name in sorted(shared - {key})}
        for name in list(message.content.metric_records):
            del message.content[name]
        message.content["metrics"] = MetricRecord(kept | {key: weight})
    return list(messages)


def _finite_metrics(message: Message) -> dict[str, float]:
    found = {}
    for record in message.content.metric_records.values():
        for name, value in record.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                found[name] = float(value)
    return found
