"""What a federation must not forget, killed or not: who was sent what, what first models said, which models were sent.

In the ledger is who was paid, dropped, asked and told; beside it, as files, the models that the next round needs: the
first broadcast and some who trained from it (`first`, `report`), and the last few broadcasts (`every`).
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from verax.broadcasts import Broadcasts
from verax.errors import VeraxError
from verax.kept import KeptModels
from verax.outcome import Outcome
from verax.payroll import Begun, Payroll, settled_outcome
from verax.received import Model, Said, digest_of

_FIRST, _WORKER = "first", "worker"
_WORKERS = 4  # first models that are kept
Asked = tuple[tuple[str, ...], tuple[str, ...]]  # the tasks and the classes of a pool


class Memory:
    """One federation's memory, in this process and beyond where there is a payroll.

    `lasting`: how many broadcasts besides the first a federation that is started again must know. `asked`: the tasks
    and the classes of the pool, where what first models say of it is asked for later.

    >>> memory = Memory("plants", None, lasting=0, asked=(("0", "1"), ("low", "high")))
    >>> memory.send_to(["ann"], number=2, informed=True)
    >>> sorted(memory.told)
    ['ann']
    """

    def __init__(self, name: str, payroll: Payroll | None, *, lasting: int, asked: Asked | None) -> None:
        self.name, self.payroll, self._lasting, self._asked = name, payroll, lasting, asked
        self.outcomes: list[Outcome] = []  # of an earlier process
        self.told: set[str] = set()  # who was sent anything, and so is no newcomer
        self.firsts: dict[str, Said] = {}  # what first models say of the pool
        self.paid_first = 0  # how many the first round paid
        self.workers: list[Model] = []  # some first models, for an echo to be told by
        self.resumed = payroll is None
        self.knows_first = True
        self.begun: set[str] = set()  # rounds of the ledger, taken up or begun here
        self._noted: set[str] = set()  # who is in the ledger as told
        self._kept = KeptModels(None)

    def resume(self, broadcasts: Broadcasts, sat: Mapping[str, int] = MappingProxyType({})) -> int:
        """Once, when the first model has been broadcast: take up what is of this name; how many rounds went before.

        A broadcast that is one of theirs begins that round again; any other begins the one after the last. `sat`: the
        rounds of an exam that are recorded, by what was broadcast in them.
        """
        if self.payroll is None or self.resumed:
            return 0
        begun, self._noted = self.payroll.resumed(self.name), self.payroll.asked(self.name)
        self._kept, self.resumed = self.payroll.models_of(self.name), True
        self.told |= self._noted
        self.begun = {b.round for b in begun}
        for b in begun:
            if b.settled is not None:
                self._take_up(b)
        known = {b.broadcast: b.number for b in reversed(begun)} | dict(sat)
        if not self.outcomes and not sat:
            self._kept.forget_all_but(())
            return 0
        played = [o.server_round for o in self.outcomes] + [*sat.values()]
        number = known.get(broadcasts.first_digest, max(played) + 1)
        begin = min(known, key=lambda digest: known[digest])
        broadcasts.informed |= broadcasts.first_digest != begin
        self.workers = self._models(name for name in self._kept.names if name.startswith(_WORKER))
        if number > 1:
            self._restore(broadcasts, number, begin if known[begin] == 1 else None)
        return number - 1

    def _restore(self, broadcasts: Broadcasts, number: int, begin: str | None) -> None:
        """What was sent before a round of this number; a first broadcast that is not `begin`, if known, is none."""
        first = self._kept.get(_FIRST)
        self.knows_first = first is not None and begin in (None, digest_of(first))
        if not self.knows_first:
            warnings.warn(
                f"the first broadcast of federation {self.name!r} is not in {self._kept.folder}, so that who comes "
                "late is not asked for a model that is trained from it, nor paid",
                stacklevel=2,
            )
        earlier = self._models(_numbered(n) for n in range(number - self._lasting, number))
        broadcasts.restore(first if self.knows_first else None, earlier)

    def _models(self, names: Any) -> list[Model]:
        return [model for name in names if (model := self._kept.get(name)) is not None]

    def _take_up(self, begun: Begun) -> None:
        assert self.payroll is not None and begun.settled is not None
        before = self.payroll.rounds.spec(begun.round).references
        self.told |= {*begun.asked, *begun.settled.amounts}
        self.outcomes.append(settled_outcome(begun, before))
        if self._asked is None:
            return
        reports = self.payroll.reports_in(begun.round)
        if (reports.tasks, reports.classes) == self._asked:
            said = reports.labels if reports.probabilities is None else reports.probabilities
            scores = begun.settled.scores
            self.remember_first(dict(zip(reports.agents, said, strict=True)), len(scores.scores if scores else ()))
        else:
            warnings.warn(
                f"round {begun.round!r} was scored on another pool ({len(reports.tasks)} inputs, "
                f"{len(reports.classes)} classes), so that who comes late is not scored beside those in it",
                stacklevel=2,
            )

    def settled(self, number: int) -> Outcome | None:
        """What an earlier process paid for a round of this number; what newcomers were paid in it is apart."""
        return next((o for o in self.outcomes if o.server_round == number and not o.before), None)

    @property
    def can_ask_firsts(self) -> bool:
        """Whether there is a first broadcast to train from, and first models to score beside."""
        return self.knows_first and bool(self.firsts)

    def remember_first(self, said: Mapping[str, Said], paid: int) -> None:
        """What those say who have handed in a first model; the first round sets the rate for who comes later."""
        self.paid_first = self.paid_first or paid
        self.firsts |= said

    def remember_workers(self, models: Sequence[Model]) -> None:
        """Some models that were trained from the first broadcast."""
        self.workers = [{name: a.copy() for name, a in model.items()} for model in models[:_WORKERS]]
        for n, model in enumerate(self.workers):
            self._keep(f"{_WORKER}-{n}", model)

    def remember_broadcast(self, number: int, broadcasts: Broadcasts) -> None:
        """What is sent in a round of this number."""
        if len(broadcasts.models) == 1:
            self._keep(_FIRST, broadcasts.first)
        last = [_numbered(n) for n in range(number - self._lasting + 1, number + 1)]
        if last:
            self._keep(last[-1], broadcasts.now)
        workers = (name for name in self._kept.names if name.startswith(_WORKER))
        self._kept.forget_all_but({_FIRST, *last, *workers})

    def _keep(self, name: str, model: Model) -> None:
        try:
            self._kept.keep(name, model)
        except OSError as error:  # training goes on
            warnings.warn(
                f"{self._kept.folder}: a model cannot be kept there ({error.strerror}); killed now, federation "
                f"{self.name!r} would not know it when it is started again",
                stacklevel=2,
            )

    def send_to(self, agents: Collection[str], *, number: int, informed: bool) -> None:
        """Note, before it is sent, to whom a broadcast goes; in the ledger, who has a first informative one."""
        self.told |= set(agents)
        new = self.told - self._noted
        if self.payroll is not None and informed and new:
            with suppress(VeraxError):  # a ledger that cannot be written to is said where a round is paid
                self.payroll.note_asked(self.name, number, new)
                self._noted |= new


def _numbered(number: int) -> str:
    return f"broadcast-{number:08}"
