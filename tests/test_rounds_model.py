"""Rounds against a model of them in memory: any requests in any order, the same states, balances and replies."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import verax
from verax.errors import VeraxError
from verax.ledger import Head, Ledger
from verax.rounds import Receipt, Rounds, Settlement, Spec

TASKS = tuple("abcdef")
CLASSES = ("no", "yes")
AGENTS = ("ann", "bob", "cat")
# two that agree, one that does not, one that says little, one that always says the same
ANSWERS = ((0, 1, 0, 1, 1, 0), (0, 1, 0, 1, 0, 0), (1, 0, 0, 1, 1, 1), (0, -1, -1, -1, -1, -1), (1, 1, 1, 1, 1, 1))
BUDGETS = {"affine": 1000, "clipped": 700, "proportional": 7}

rounds_ = st.sampled_from(["r1", "r2"])
agents = st.sampled_from(AGENTS)
answers = st.sampled_from(ANSWERS)
keys = st.sampled_from([None, None, "k1", "k2"])
Request = tuple[Any, ...]


def spec_of(round: str, scheme: str) -> Spec:
    units, cents = divmod(BUDGETS[scheme], 100)
    return Spec(round, TASKS, CLASSES, f"{units}.{cents:02}", scheme=scheme, min_tasks=2)


class Refused(Exception):  # noqa: N818
    """The model says no; nothing changes."""


@dataclass
class Round:
    """What the model knows of a round."""

    scheme: str
    state: str = "open"
    sealed: bool = False
    funded: dict[str, Any] = field(default_factory=dict)
    taken: dict[Any, Any] = field(default_factory=dict)
    live: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def due(self) -> dict[str, int]:
        """Payments by scoring and paying, without rounds."""
        names = sorted(self.live)
        reports = verax.Reports.of([self.live[a] for a in names], agents=names, tasks=TASKS, classes=CLASSES)
        budget = spec_of("any", self.scheme).budget
        paid = verax.pay(verax.score(reports), budget=budget, scheme=self.scheme, min_tasks=2)
        return {p.agent: p.amount for p in paid.payments}


class Model:
    """Rounds as anybody would describe them: a state, a purse for each account, the last report of each agent."""

    def __init__(self) -> None:
        self.rounds: dict[str, Round] = {}
        self.has: Counter[str] = Counter()

    def do(self, step: str, round: str, *rest: Any) -> None:
        if step == "open":
            if self.rounds.setdefault(round, Round(*rest)).scheme != rest[0]:
                raise Refused
            return
        if round not in self.rounds:
            raise Refused
        getattr(self, step)(round, self.rounds[round], *rest)

    def fund(self, name: str, r: Round, amount: int | None, agent: str | None, key: str | None) -> None:
        account = f"agent:{agent}" if agent else f"escrow:{name}"
        what = (account, amount or BUDGETS[r.scheme])
        deposit = amount is not None or agent is not None  # of its own each time, unless its key says otherwise
        if self._new(r, r.funded, key or (len(r.funded) if deposit else "budget"), what):
            self._move("house", *what)

    def submit(self, name: str, r: Round, agent: str, answer: tuple[int, ...], key: str | None) -> None:
        if key is None and r.live.get(agent) == answer:
            return  # what stands already
        if self._new(r, r.taken, (agent, key or len(r.taken)), answer):
            r.live[agent] = answer

    def seal(self, name: str, r: Round) -> None:
        if r.sealed:
            return
        if r.state != "open" or len(r.live) < 2 or self.has[f"escrow:{name}"] < BUDGETS[r.scheme]:
            raise Refused
        r.state, r.sealed = "sealed", True

    def settle(self, name: str, r: Round) -> None:
        if r.state == "settled":
            return
        if r.state != "sealed":
            raise Refused
        try:
            due = r.due()
        except VeraxError:
            raise Refused from None
        for agent, amount in due.items():
            self._move(f"escrow:{name}", f"agent:{agent}", amount)
        self._close(name, r, "settled")

    def void(self, name: str, r: Round) -> None:
        if r.state == "settled":
            raise Refused
        self._close(name, r, "void")

    def _new(self, r: Round, known: dict[Any, Any], key: Any, what: Any) -> bool:
        """Whether it is a new request; the same key with another content, or one too late, is refused."""
        new = key not in known
        if (new and r.state != "open") or known.get(key, what) != what:
            raise Refused
        known[key] = what
        return new

    def _close(self, name: str, r: Round, state: str) -> None:
        self._move(f"escrow:{name}", "house", self.has[f"escrow:{name}"])
        r.state = state

    def _move(self, debit: str, credit: str, amount: int) -> None:
        self.has[debit] -= amount
        self.has[credit] += amount


class Machine(RuleBasedStateMachine):
    """The same requests to both."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger.open("sqlite://")
        self.rounds = Rounds(self.ledger)
        self.model = Model()
        self.replies: dict[Request, Any] = {}
        self.receipts: list[Head] = []

    def teardown(self) -> None:
        self.ledger.close()

    def ask(self, *request: Any) -> None:
        """Make a request: both do it, or both refuse and nothing changes; an answered one is answered the same."""
        before = self.ledger.head()
        returning = request[0] == "submit" and request[-1] is None and not self.stands(*request[1:4])
        returning |= request[0] == "fund" and request[-1] is None and request[2:] != (None, None, None)
        try:
            self.model.do(*request)
        except Refused:
            with pytest.raises(VeraxError):
                self.make(*request)
            assert self.ledger.head() == before
            return
        reply = self.make(*request)
        if request in self.replies and not returning:
            assert self.ledger.head() == before
            # the same report may stand under a key that was given for it since: then that entry is the answer
            keyless = request[0] == "submit" and request[-1] is None
            same = (lambda r: r.commitment) if keyless else (lambda r: r)
            assert same(reply) == same(self.replies[request])
        self.replies[request] = reply
        if isinstance(reply, Receipt):
            self.receipts.append(reply.head)

    def stands(self, round: str, agent: str, answer: tuple[int, ...]) -> bool:
        """Whether this is the report that counts now: without a key, only that one again is the same request."""
        return round in self.model.rounds and self.model.rounds[round].live.get(agent) == answer

    def make(self, step: str, round: str, *rest: Any) -> Any:
        if step == "open":
            return self.rounds.open(spec_of(round, *rest))
        if step == "fund":
            amount, agent, key = rest
            return self.rounds.fund(round, amount, agent=agent, key=key)
        if step == "submit":
            agent, answer, key = rest
            report = verax.Reports.of(np.array([answer]), agents=[agent], tasks=TASKS, classes=CLASSES)
            return self.rounds.submit(round, agent, report, key=key)
        return getattr(self.rounds, step)(round)

    @initialize(scheme=st.sampled_from(sorted(BUDGETS)), steps=st.integers(0, 7))
    def begin(self, scheme: str, steps: int) -> None:
        """Start anywhere in the life of a round, or late states are hardly ever reached."""
        self.ask("open", "r1", scheme)
        for step in range(steps):
            self.proceed("r1", ANSWERS[step % 3])

    @rule(round=rounds_, scheme=st.sampled_from(sorted(BUDGETS)))
    def open(self, round: str, scheme: str) -> None:
        self.ask("open", round, scheme)

    @rule(round=rounds_, amount=st.sampled_from([None, None, 1, 999]), agent=st.none() | agents, key=keys)
    def fund(self, round: str, amount: int | None, agent: str | None, key: str | None) -> None:
        self.ask("fund", round, amount, agent, key)

    @rule(round=rounds_, agent=agents, answer=answers, key=keys)
    def submit(self, round: str, agent: str, answer: tuple[int, ...], key: str | None) -> None:
        self.ask("submit", round, agent, answer, key)

    @rule(round=rounds_, step=st.sampled_from(["seal", "settle", "void"]))
    def close(self, round: str, step: str) -> None:
        self.ask(step, round)

    @rule(which=st.integers(0, 100))
    def repeat(self, which: int) -> None:
        known = list(self.replies)
        self.ask(*known[which % len(known)])

    @rule(round=rounds_, answer=answers)
    def proceed(self, round: str, answer: tuple[int, ...]) -> None:
        """What a round needs next, so that many come to their end."""
        known = self.model.rounds.get(round)
        if known is None:
            self.ask("open", round, "affine")
        elif known.state != "open":
            self.ask("settle", round)
        elif self.model.has[f"escrow:{round}"] < BUDGETS[known.scheme]:
            self.ask("fund", round, None, None, None)
        elif len(known.live) < len(AGENTS):
            self.ask("submit", round, AGENTS[len(known.live)], answer, None)
        else:
            self.ask("seal", round)

    @invariant()
    def both_agree(self) -> None:
        balances = self.ledger.balances()
        assert {a: n for a, n in balances.items() if n} == {a: n for a, n in self.model.has.items() if n}
        for name, known in self.model.rounds.items():
            shown = self.rounds.show(name)
            assert shown["state"] == known.state
            assert shown["escrow"] == self.model.has[f"escrow:{name}"]
            assert len(shown["submissions"]) == len(known.taken)
            if known.state == "settled":
                settled = self.replies["settle", name]
                assert isinstance(settled, Settlement) and settled.amounts == known.due()
        assert self.rounds.verify(None, *self.receipts) == []
        settled = [name for name, known in self.model.rounds.items() if known.state == "settled"]
        assert [problem for name in settled for problem in self.rounds.verify(name)] == []


QUICK = settings(
    max_examples=60, stateful_step_count=14, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def test_any_requests_in_any_order_do_what_the_model_does() -> None:
    run_state_machine_as_test(Machine, settings=QUICK)


@pytest.mark.slow
def test_any_requests_in_any_order_do_what_the_model_does_a_thousand_times() -> None:
    run_state_machine_as_test(Machine, settings=settings(QUICK, max_examples=1000, derandomize=False))
