"""Flower: a strategy that wraps any other, so that every client's model is scored and paid.

    strategy = PaidStrategy(FedAvg(), pool, predict, classes, payroll=Payroll("rounds.db", budget="100.00"))
    strategy.start(grid, initial_arrays, num_rounds=3)

Messages become replies, and replies messages again; what is checked, scored, paid and averaged is decided in
`verax.federation`, never by a client's own claim. Protocol `report` asks for its models with message `train.report`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from logging import INFO, WARNING
from typing import Any

from verax.errors import ExtraMissing
from verax.federation import Encoded, Outcome, Payroll, Predict, Received, Referee, Reply

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
    from flwr.supercore import log
except ImportError:
    raise ExtraMissing("Flower strategies", "flower") from None

__all__ = ["REPORT", "Outcome", "PaidStrategy", "Payroll"]

REPORT = "train.report"


class PaidStrategy(Strategy):
    """Any Flower strategy, with every client's model scored and paid, and no client's claim believed.

    `pool`, `predict`, `classes` and `terms` (protocol, payroll, gold, weights, sizes, bar, name, pages, seed, options,
    features, kinship, imitate) are those of `verax.federation.Referee`. `identity` names a client by its node; left
    out, by the SHA-256 sum of its public key, or by its id if it has none.
    """

    def __init__(
        self,
        strategy: Strategy,
        pool: Any,
        predict: Predict,
        classes: Sequence[str],
        *,
        identity: Callable[[Any], str] | None = None,
        report_timeout: float = 3600.0,
        **terms: Any,
    ) -> None:
        self.strategy, self.identity, self.report_timeout = strategy, identity, report_timeout
        self.referee = Referee(pool, predict, classes, **terms)
        self._asked: set[int] = set()
        self._names: dict[int, str] = {}
        self._key = "arrays"

    @property
    def outcomes(self) -> list[Outcome]:
        """What became of every scored round so far."""
        return self.referee.outcomes

    def summary(self) -> None:
        """Say what is paid for, then what the wrapped strategy says."""
        tasks, protocol, payroll = len(self.referee.tasks), self.referee.protocol, self.referee.payroll
        budget = f"{payroll.budget} {payroll.currency} a scored round" if payroll else "nothing is paid"
        log(INFO, "\t├──> Scored on %s inputs, protocol %s, %s", tasks, protocol, budget)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember what is broadcast and to whom; with protocol `report`, ask for reports first."""
        self.referee.broadcast({name: array.numpy() for name, array in arrays.items()})
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        # Only now: the wrapped strategy may have waited for clients to connect.
        self._names |= {node.node_id: self._name_of(node) for node in grid.get_nodes()}
        self._asked = {m.metadata.dst_node_id for m in messages}
        for message in messages[:1]:
            self._key = next(iter(message.content.array_records), self._key)
        if self.referee.wants_reports and messages:
            self._ask_reports(server_round, arrays, config, grid)
        return messages

    def _ask_reports(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> None:
        """A message of its own, before training: a model from the initial one, on the client's own data alone."""
        content = RecordDict({self._key: arrays, "config": ConfigRecord({**config, "server-round": server_round})})
        messages = [Message(content=content, message_type=REPORT, dst_node_id=node) for node in sorted(self._asked)]
        self._pay_round(server_round, self._receive(grid.send_and_receive(messages, timeout=self.report_timeout)))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check, score and pay the replies, weigh them, and let the wrapped strategy put them together."""
        received, outcome = self._receive(replies), None
        if self.referee.due:
            outcome = self._pay_round(server_round, received)
        elif received.dropped:
            log(WARNING, "dropped: %s", "; ".join(f"{agent}: {why}" for agent, why in received.dropped.items()))
        counted = self.referee.weigh(received.works, outcome)
        if not counted:
            log(WARNING, "round %s: no reply is left to average; the model stays as it is", server_round)
            return None, None
        messages, shares = [work.origin for work, _ in counted], [share for _, share in counted]
        return self.strategy.aggregate_train(server_round, _reweighed(messages, shares, self._weight_key))

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

    def _name_of(self, node: Any) -> str:
        if self.identity is not None:
            return self.identity(node)
        return hashlib.sha256(node.public_key).hexdigest() if node.public_key else str(node.node_id)

    def _receive(self, messages: Iterable[Message]) -> Received:
        asked = [self._names.get(node, str(node)) for node in self._asked]
        return self.referee.receive(map(self._reply_of, messages), asked)

    def _reply_of(self, message: Message) -> Reply:
        node = message.metadata.src_node_id
        record = message.content.array_records.get(self._key) if message.has_content() else None
        arrays, refused = {}, ""
        if node not in self._asked:
            refused = "it was not asked"
        elif message.has_error():
            refused = f"an error in place of a model ({message.error.reason or 'no reason given'})"
        elif record is None:
            refused = f"no model under {self._key!r}"
        else:
            arrays = {name: Encoded(tuple(a.shape), len(a.data), a.numpy) for name, a in record.items()}
        return Reply(self._names.get(node, str(node)), arrays, refused, message)

    def _pay_round(self, server_round: int, received: Received) -> Outcome:
        outcome = self.referee.pay_round(server_round, received)
        if outcome.problem:
            log(WARNING, "round %s is not paid: %s", server_round, outcome.problem)
        log(INFO, "scores of round %s:\n%s", server_round, outcome.table())
        return outcome


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
