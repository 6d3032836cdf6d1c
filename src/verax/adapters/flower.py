"""Flower: a strategy that wraps any other, so that every client's model is scored and paid.

    strategy = PaidStrategy(FedAvg(), pool, predict, classes, payroll=Payroll("rounds.db", budget="100.00"))
    strategy.start(grid, initial_arrays, num_rounds=3)

Messages become replies, and replies messages again; what is checked, scored, paid and averaged is decided in
`verax.federation`, never by a client's own claim. Protocol `report` asks for its models with message `train.report`.

The wrapped strategy's own `start` runs, with whatever checkpoints and loggers it has, and so do its other methods;
what a round asks and puts together goes through the paid strategy while it does.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from logging import ERROR, INFO, WARNING
from typing import Any

from verax.adapters.flower_exam import FlowerMembers
from verax.adapters.flower_messages import form_faults, handed_on, key_replied, key_sent, replies_of, weighed
from verax.adapters.flower_told import LAST_WORD, Telling
from verax.errors import ExtraMissing, OptionError
from verax.federation import Outcome, Payroll, Predict, Received, Referee
from verax.notices import DIGITS

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import (
        DifferentialPrivacyClientSideAdaptiveClipping,
        DifferentialPrivacyClientSideFixedClipping,
        FedXgbBagging,
        FedXgbCyclic,
        Strategy,
    )
    from flwr.serverapp.strategy.dp_adaptive_clipping import DifferentialPrivacyAdaptiveBase
    from flwr.serverapp.strategy.dp_fixed_clipping import DifferentialPrivacyFixedClippingBase
    from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
    from flwr.supercore import log
except ImportError:
    raise ExtraMissing("Flower strategies", "flower") from None

__all__ = ["REPORT", "Outcome", "PaidStrategy", "Payroll"]

REPORT = "train.report"
_LAST_WAIT = 30.0  # seconds
_HOOKS = ("summary", "configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
_CLIPPED_BY_CLIENTS = (DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyClientSideAdaptiveClipping)
_PRIVATE = (DifferentialPrivacyFixedClippingBase, DifferentialPrivacyAdaptiveBase)


class PaidStrategy(Strategy):
    """Any Flower strategy, with every client's model scored and paid, and no client's claim believed.

    `pool`, `predict`, `classes` and `terms` (protocol, payroll, gold, weights, sizes, cap, bar, on_all_dropped,
    buffers, name, pages, seed, options, features, kinship, train, imitate) are those of `verax.federation.Referee`.
    `identity` names a client by its node; left out, by the first 20 digits of the SHA-256 sum of its public key, or by
    its id if it has none. Every client is told what it is paid and why in the next message to it (`flower_told.told`);
    with `last_word` those whom no message has reached are sent one more at the end, of type `query.verax`.
    A strategy that cannot be paid for is refused here; whatever else the wrapped strategy has can be asked of this one.
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
        last_word: bool = False,
        **terms: Any,
    ) -> None:
        _refuse_what_cannot_be_paid_for(strategy)
        self.strategy, self.identity, self.report_timeout = strategy, identity, report_timeout
        self.last_word = last_word
        self.referee = Referee(pool, predict, classes, **terms)
        _refuse_unequal_weights(strategy, self.referee)
        self._own = {name: getattr(strategy, name) for name in _HOOKS}
        self._instructions: dict[int, Message] = {}
        self._names: dict[int, str] = {}
        self._key = "arrays"
        clipped = any(isinstance(part, _CLIPPED_BY_CLIENTS) for part in _wrapped_in(strategy))
        self._telling = Telling(one_configuration=clipped)
        self._grid: Grid | None = None
        if self.referee.exam is not None and self.referee.exam.members is True:
            self.referee.examined_by(FlowerMembers(self._nodes, self._sent_and_received))

    def __getattr__(self, name: str) -> Any:
        if name == "strategy":  # not there yet: it is being made, or copied
            raise AttributeError(name)
        return getattr(self.strategy, name)

    @property
    def outcomes(self) -> list[Outcome]:
        """What became of every scored round so far."""
        return self.referee.outcomes

    def start(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped strategy's own `start`, in which what it configures and aggregates goes through this one."""
        with self._standing_in():
            result = self.strategy.start(*args, **kwargs)
        if not self._instructions:
            log(ERROR, "no client was asked for a model through configure_train, so nothing was checked or paid")
        if self.last_word and self._grid is not None:
            self._say_last(self._grid)
        return result

    def _say_last(self, grid: Grid) -> None:
        """A message of its own to every client that is there and has not been told all."""
        nodes = [node for node in self._known_in(grid) if self._agent(node) in self._telling.waiting]
        messages = [Message(content=RecordDict(), message_type=LAST_WORD, dst_node_id=node) for node in nodes]
        list(grid.send_and_receive(self._telling.put_into(messages, self._agent), timeout=_LAST_WAIT))

    def _known_in(self, grid: Grid) -> list[int]:
        """The nodes that are there, their names known."""
        nodes = list(grid.get_nodes())
        self._names |= {node.node_id: self._name_of(node) for node in nodes}
        return [node.node_id for node in nodes]

    def _nodes(self) -> dict[str, int]:
        return {} if self._grid is None else {self._agent(node): node for node in self._known_in(self._grid)}

    def _sent_and_received(self, messages: list[Message]) -> list[Message]:
        return [] if self._grid is None else list(self._grid.send_and_receive(messages, timeout=self.report_timeout))

    @contextmanager
    def _standing_in(self) -> Iterator[None]:
        """For a while the wrapped strategy's own calls of its hooks come here first."""
        held = vars(self.strategy)
        before = {name: held[name] for name in _HOOKS if name in held}
        held.update({name: getattr(self, name) for name in _HOOKS})
        try:
            yield
        finally:
            for name in _HOOKS:
                del held[name]
            held.update(before)

    def summary(self) -> None:
        """Say what is paid for, then what the wrapped strategy says."""
        tasks, protocol, payroll = len(self.referee.tasks), self.referee.protocol, self.referee.payroll
        budget = f"{payroll.budget} {payroll.currency} a scored round" if payroll else "nothing is paid"
        log(INFO, "\t├──> Scored on %s inputs, protocol %s, %s", tasks, protocol, budget)
        self._own["summary"]()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember what is broadcast and to whom; ask for first models what must be asked before it is sent."""
        self.referee.broadcast({name: array.numpy() for name, array in arrays.items()})
        if self._grid is None and self.outcomes:  # of before it was started again
            self._telling.add(self.outcomes[-1])
        self._grid = grid
        messages = list(self._own["configure_train"](server_round, arrays, config, grid))
        # Only now: the wrapped strategy may have waited for clients to connect.
        self._known_in(grid)
        if self.referee.exam is not None:
            self.referee.begin_exam()
        self._instructions = {m.metadata.dst_node_id: m for m in messages}
        for message in messages[:1]:
            self._key = key_sent(message, arrays)
        if self.referee.wants_reports and messages:
            self._said(self.referee.settle_round(self._asked_first(grid, self._instructions)))
        elif new := self.referee.newcomers([self._agent(node) for node in self._instructions]):
            nodes = [node for node in self._instructions if self._agent(node) in new]
            self._said(self.referee.settle_newcomers(self._asked_first(grid, nodes)))
        self.referee.sends_to([self._agent(node) for node in self._instructions])
        return self._telling.put_into(messages, self._agent)

    def _asked_first(self, grid: Grid, nodes: Iterable[int]) -> Received:
        """A message of its own before training: a model from the initial one, on the client's own data alone."""
        first = ArrayRecord({name: Array(array) for name, array in self.referee.first_model.items()})
        kind = REPORT if self.referee.protocol == "report" else MessageType.TRAIN
        messages = []
        for node in sorted(nodes):
            content = RecordDict({**self._instructions[node].content, self._key: first})
            messages.append(Message(content=content, message_type=kind, dst_node_id=node))
        replies = self._asked_among(grid.send_and_receive(messages, timeout=self.report_timeout))
        key = key_replied(replies, self._key)
        found = replies_of(replies, key, self._weight_key, self._agent)
        return self.referee.receive(found, [self._agent(node) for node in nodes], alone=False)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check, score and pay the replies, weigh them, and let the wrapped strategy put them together.

        It is told of every client that failed or was dropped by an error in the reply's place.
        """
        messages = self._asked_among(replies)
        self._telling.answered([self._agent(m.metadata.src_node_id) for m in messages if m.has_content()])
        key = key_replied(messages, self._key)
        received, outcome = self._receive(messages, key), None
        if self.referee.due:
            outcome = self._said(self.referee.settle_round(received))
        elif received.dropped:
            self._telling.add(self.referee.leave_unscored(received))
            log(WARNING, "dropped: %s", "; ".join(f"{agent}: {why}" for agent, why in received.dropped.items()))
        if not received.works and any(m.has_content() for m in messages):
            log(ERROR, "round %s: all replies were dropped, and are averaged as they came", server_round)
            return self._aggregated(server_round, messages)
        kept = self.referee.weigh(received.works, outcome)  # in the order of names, which no sampling changes
        sound = {id(work.origin) for work in received.works}
        failed = [m if m.has_error() else self._told(m, received) for m in messages if id(m) not in sound]
        on = handed_on(kept, key, self._weight_key, as_sent=self._own_metrics("train_metrics_aggr_fn"))
        return self._aggregated(server_round, [*on, *failed])

    def _aggregated(self, server_round: int, messages: list[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = self._own["aggregate_train"](server_round, messages)
        if arrays is None and messages:
            lost = sum(m.has_error() for m in messages)
            log(ERROR, "round %s: %s made no model of %s replies and %s failures; the model stays as it is",
                server_round, type(self.strategy).__name__, len(messages) - lost, lost)  # fmt: skip
        return arrays, metrics

    def _told(self, message: Message, received: Received) -> Message:
        """An error in place of a reply that was dropped, so that a strategy that counts on every client knows."""
        node = message.metadata.src_node_id
        return Message(Error(0, received.dropped[self._agent(node)]), reply_to=self._instructions[node])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the wrapped strategy does, with what clients are still to be told."""
        messages = self._own["configure_evaluate"](server_round, arrays, config, grid)
        if self._telling.waiting:
            self._known_in(grid)
        return self._telling.put_into(messages, self._agent)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the wrapped strategy does, on replies that have what most have, each counting the same."""
        messages = list(replies)
        self._telling.answered([self._agent(m.metadata.src_node_id) for m in messages if m.has_content()])
        faults = form_faults(messages, None, self._weight_key)
        good = [m for m, why in zip(messages, faults, strict=True) if m.has_content() and not why]
        as_sent = self._own_metrics("evaluate_metrics_aggr_fn")
        on = weighed(good, [1.0] * len(good), self._weight_key, as_sent=as_sent)
        return self._own["aggregate_evaluate"](server_round, [*on, *(m for m in messages if m.has_error())])  # type: ignore[no-any-return]

    @property
    def _weight_key(self) -> str:
        return str(_of_any(self.strategy, "weighted_by_key", "num-examples"))

    def _own_metrics(self, name: str) -> bool:
        """Whether the strategy puts metrics together in a way of its own, which may want them all."""
        return _of_any(self.strategy, name, None) is not aggregate_metricrecords

    def _name_of(self, node: Any) -> str:
        if self.identity is not None:
            return self.identity(node)
        if not node.public_key:
            return str(node.node_id)
        known = hashlib.sha256(node.public_key).hexdigest()
        self.referee.identities[known[:DIGITS]] = known
        return known[:DIGITS]

    def _agent(self, node: int) -> str:
        return self._names.get(node, str(node))

    def _asked_among(self, messages: Iterable[Message]) -> list[Message]:
        """The first message of each client that was asked; what nobody asked for is said and left out."""
        found: dict[int, Message] = {}
        for message in messages:
            node = message.metadata.src_node_id
            if node not in self._instructions or node in found:
                log(WARNING, "left out: a reply of %s that was not asked for", self._agent(node))
            else:
                found[node] = message
        return list(found.values())

    def _receive(self, messages: Sequence[Message], key: str) -> Received:
        needed = [name for name in [_of_any(self.strategy, "train_loss_key", None)] if name]
        replies = replies_of(messages, key, self._weight_key, self._agent, needed)
        return self.referee.receive(replies, [self._agent(node) for node in self._instructions])

    def _said(self, outcome: Outcome) -> Outcome:
        self._telling.add(outcome)
        if outcome.problem:
            log(WARNING, "round %s is not paid: %s", outcome.server_round, outcome.problem)
        log(INFO, "scores of round %s:\n%s", outcome.server_round, outcome.table())
        return outcome


def _wrapped_in(strategy: Any) -> Iterator[Any]:
    """A strategy, the one it wraps, and so on."""
    while strategy is not None:
        yield strategy
        strategy = vars(strategy).get("strategy") if hasattr(strategy, "__dict__") else None


def _of_any(strategy: Strategy, name: str, otherwise: Any) -> Any:
    """What the strategy, or one that it wraps, has under a name."""
    return next((getattr(s, name) for s in _wrapped_in(strategy) if hasattr(s, name)), otherwise)


def _refuse_what_cannot_be_paid_for(strategy: Any) -> None:
    name = type(strategy).__name__
    for part in _wrapped_in(strategy):
        if not isinstance(part, Strategy):
            raise OptionError(
                f"{type(part).__module__}.{type(part).__name__} is no strategy of flwr.serverapp; give one of those"
            )
        if isinstance(part, (FedXgbBagging, FedXgbCyclic)):
            raise OptionError(
                f"{type(part).__name__} puts trees together, which are no arrays of one shape to check and cast; "
                "score its clients' models by their predictions with verax.score, and pay those with verax.pay"
            )
        if isinstance(part, PaidStrategy):
            raise OptionError(f"{name} is paid already; wrap a strategy once")
    if not hasattr(strategy, "__dict__"):
        raise OptionError(f"{name} has __slots__ only, so its start cannot be followed; leave __slots__ out")
    if not _asks_for_models(type(strategy), "start", set()):
        raise OptionError(
            f"{name}.start never calls configure_train, so what it asks of clients cannot be checked or paid; "
            "call self.configure_train and self.aggregate_train in it, or super().start"
        )


def _asks_for_models(kind: type, method: str, seen: set[str]) -> bool:
    """Whether a strategy's method, or one of its own that it calls, calls `configure_train` or another `start`."""
    seen.add(method)
    code = getattr(inspect.unwrap(getattr(kind, method, None)), "__code__", None)  # type: ignore[arg-type]
    if code is None:  # a start that is no plain function cannot be looked into
        return method == "start"
    called = set(code.co_names)
    if {"configure_train", "start"} & called:
        return True
    return any(_asks_for_models(kind, name, seen) for name in sorted(called) if name not in seen)


def _refuse_unequal_weights(strategy: Strategy, referee: Referee) -> None:
    """Noise for privacy is made for a plain mean of a set number of clients."""
    private = [type(s).__name__ for s in _wrapped_in(strategy) if isinstance(s, _PRIVATE)]
    if private and (referee.weights != "equal" or referee.sizes is not None or referee.bar is not None):
        raise OptionError(
            f"{private[0]} makes its noise for a plain mean; leave weights, sizes and bar out, so that all count alike"
        )
