"""NVFlare: a controller whose every round of training is checked, scored and paid.

    class PaidFedAvg(Paid, FedAvg):
        def make_referee(self):
            return Referee(pool, predict, classes, payroll=Payroll("rounds.db", budget="100.00"))

`Paid` stands before any `ModelController` among a class's bases. What that sends as its task of training is a
broadcast, and what comes back is handed on as it was checked, weighed by the referee and not by the client's claim,
once all of the round are in. Everything is decided in `verax.federation`; arrays are NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from verax.errors import ExtraMissing, OptionError
from verax.federation import Outcome, Payroll, Received, Referee, Reply
from verax.received import Model

try:
    from nvflare.apis.dxo import MetaKey
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_common.app_constant import AppConstants
except ImportError:
    raise ExtraMissing("NVFlare controllers", "nvflare") from None

__all__ = ["Outcome", "Paid", "Payroll", "Referee"]

_Base: Any = object  # so that it stands before the controller in a class's bases
_WEIGHT = MetaKey.NUM_STEPS_CURRENT_ROUND
_CLIENT = "client_name"


class Paid(_Base):  # type: ignore[misc]
    """Any controller of models, with every client's model scored and paid: give it `make_referee`.

    Clients are called as NVFlare calls them, by the names in their certificates. `paid_task` is the task in which they
    train. What everybody is to be told is in `referee.outcomes[-1].notices`, and in the ledger.
    """

    paid_task = AppConstants.TASK_TRAIN
    _referee: Referee | None = None
    _open: tuple[FLModel, list[str], Callable[[FLModel], Any], list[FLModel]] | None = None

    def make_referee(self) -> Referee:
        """The referee of this federation; asked for once, on the server, before anything is sent."""
        raise OptionError(f"{type(self).__name__} has no referee; define make_referee in it")

    @property
    def referee(self) -> Referee:
        """The referee that was made."""
        if self._referee is None:
            self._referee = self.make_referee()
        return self._referee

    def send_model(
        self, task_name: str = AppConstants.TASK_TRAIN, data: FLModel = None, targets: Sequence[str] | None = None,
        min_responses: int | None = None, timeout: int = 0, callback: Callable[[FLModel], Any] | None = None,
    ) -> None:  # fmt: skip
        """As the controller does; replies of training are kept until all are in."""
        how = {"targets": targets, "min_responses": min_responses, "timeout": timeout}
        if task_name == self.paid_task and callback is not None:
            kept: list[FLModel] = []
            self._open, callback = (data, self._begin(data, targets, timeout), callback, kept), kept.append
        super().send_model(task_name=task_name, data=data, callback=callback, **how)

    def get_num_standing_tasks(self) -> int:
        """As the controller does; when none is left, what training has brought is settled and handed on."""
        left = super().get_num_standing_tasks()
        if not left and self._open is not None:
            (data, asked, callback, kept), self._open = self._open, None
            for reply in self._settled(data, asked, kept):
                callback(reply)
        return left  # type: ignore[no-any-return]

    def send_model_and_wait(
        self, task_name: str = AppConstants.TASK_TRAIN, data: FLModel = None, targets: Sequence[str] | None = None,
        min_responses: int | None = None, timeout: int = 0,
    ) -> list[FLModel]:  # fmt: skip
        """As the controller does; replies of training are settled before they are handed on."""
        how = {"targets": targets, "min_responses": min_responses, "timeout": timeout}
        asked = self._begin(data, targets, timeout) if task_name == self.paid_task else None
        replies = super().send_model_and_wait(task_name=task_name, data=data, **how)
        return replies if asked is None else self._settled(data, asked, replies)

    def _begin(self, data: FLModel, targets: Sequence[str] | None, timeout: int) -> list[str]:
        """Note what is broadcast and to whom, and ask for first models what must be asked before it is sent."""
        asked = [*targets] if targets else [client.name for client in self.engine.get_clients()]
        referee = self.referee
        referee.broadcast(_arrays_of(data))
        if referee.wants_reports:
            self._said(referee.settle_round(self._asked_first(data, asked, timeout)))
        elif new := referee.newcomers(asked):
            self._said(referee.settle_newcomers(self._asked_first(data, new, timeout)))
        referee.sends_to(asked)
        return asked

    def _asked_first(self, data: FLModel, clients: list[str], timeout: int) -> Received:
        """Models that are trained from the first broadcast, for being scored alone."""
        first = FLModel(params=self.referee.first_model, current_round=data.current_round, meta=dict(data.meta or {}))
        found = super().send_model_and_wait(task_name=self.paid_task, data=first, targets=clients, timeout=timeout)
        return self.referee.receive(
            [_reply_of(model, self.referee.first_model) for model in found], clients, alone=False
        )

    def _settled(self, data: FLModel, asked: list[str], replies: Sequence[FLModel]) -> list[FLModel]:
        """The replies that count, by name, each as it was checked and with its weight."""
        broadcast = _arrays_of(data)
        received = self.referee.receive([_reply_of(reply, broadcast) for reply in replies], asked)
        outcome = self.referee.settle_round(received) if self.referee.due else None
        if outcome is not None or received.dropped:
            outcome = self._said(outcome or self.referee.leave_unscored(received))
        if not received.works:
            return [*replies]  # on_all_dropped="plain"
        counted = [(work, share) for work, share in self.referee.weigh(received.works, outcome) if share > 0]
        differs = all(work.origin.params_type == ParamsType.DIFF for work, _ in counted)
        for work, share in counted:  # NVFlare reads one type for all, and takes a weight of 0 for 1
            work.origin.params = _difference(work.model, broadcast) if differs else work.model
            work.origin.params_type = ParamsType.DIFF if differs else ParamsType.FULL
            work.origin.meta[_WEIGHT] = share
        return [work.origin for work, _ in counted]

    def _said(self, outcome: Outcome) -> Outcome:
        if outcome.problem:
            self.warning(f"round {outcome.server_round} is not paid: {outcome.problem}")
        self.info(f"scores of round {outcome.server_round}:\n{outcome.table()}")
        return outcome


def _arrays_of(data: FLModel) -> Model:
    strange = [name for name, array in data.params.items() if not isinstance(array, np.ndarray | np.generic)]
    if strange:
        kind = type(data.params[strange[0]]).__name__
        raise OptionError(
            f"parameter {strange[0]!r} is a {kind}; exchange NumPy arrays (server_expected_format='numpy')"
        )
    return {name: np.asarray(array) for name, array in data.params.items()}


def _reply_of(model: FLModel, broadcast: Mapping[str, Any]) -> Reply:
    """What a client sent, its difference put on the broadcast where it sent one; or why it is not looked at."""
    agent, claim = str(model.meta.get(_CLIENT, "")), model.meta.get(_WEIGHT)
    if not isinstance(model.params, dict) or not model.params:
        return Reply(agent, refused="no model", origin=model)
    arrays = {name: np.asarray(array) for name, array in model.params.items()}
    if model.params_type == ParamsType.DIFF:
        arrays = {name: _moved(array, broadcast.get(name)) for name, array in arrays.items()}
    number = isinstance(claim, int | float) and not isinstance(claim, bool)
    return Reply(agent, arrays, origin=model, claim=float(claim) if number else None)


def _moved(difference: Any, now: Any) -> Any:
    fits = now is not None and now.shape == difference.shape and difference.dtype.kind in "biuf"
    return now + difference if fits else difference


def _difference(model: Model, broadcast: Model) -> Model:
    return {name: array - broadcast[name] for name, array in model.items()}
