"""A federation's referee: when replies are scored, on what, what they count for in the average. No framework in here.

    referee = Referee(pool, predict, classes, payroll=Payroll("rounds.db", budget="100.00"))
    outcome = referee.pay_round(model, replies, asked)     dicts of arrays by name: all of a round in one call, which is
    referee.broadcast(model)                               everybody is sent a model
    received = referee.receive(replies, asked)             what came back: models, and what is dropped and why
    outcome = referee.settle_round(received)               scored once, looked through for copies once, settled once
    shares = referee.weigh(received.works, outcome)        what each reply counts for in the average

The state is in the ledger: killed anywhere and started again under the same name, a federation goes on. What was
sealed is settled, what was not is called off and asked for again, and no round is paid twice.

Every reply is checked first (`received`): what is not the broadcast model's names, shapes and finite numbers is
dropped and named, and a round in which nothing is left stops loudly. When a model is scored:

    first    in the first round, before anything informative was broadcast (the default)
    every    in every round, with what everybody knows taken out: the broadcast, its predecessors and their variations
    report   once, on a model that each client trains from the initial one for this purpose
    exam     in every round, on labels that others hold back (`sitting`); paid once, at the end (`pay_exam`)

Payments go through `rounds`: what an `Outcome` shows is what that settlement paid by, and anybody can compute it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from verax.averaging import CLAIMED, Averaging
from verax.broadcasts import Broadcasts
from verax.crowds import Crowd, Held
from verax.echo import BUFFERS, KINSHIP
from verax.errors import InputError, OptionError, VeraxError
from verax.exam import ExamRecord
from verax.examination import Book, Examination
from verax.groups import APART
from verax.imitations import Train
from verax.known import Known, is_rows
from verax.memory import Memory
from verax.outcome import Outcome, notices_of
from verax.payments import Payments
from verax.payroll import Payroll, settled_outcome
from verax.received import (
    Encoded,
    Model,
    Predict,
    Question,
    Received,
    Refused,
    Reply,
    Said,
    Work,
    checked_model,
    digest_of,
    nothing_left,
    tasks_in,
)
from verax.reports import Reports, some
from verax.rules import DEFAULT, INNOVATION, resolve
from verax.score import score
from verax.sitting import Members, Sitting, gold_labels
from verax.space import check_memory, said_of_memory
from verax.topk import TopK, labels_of_rows

__all__ = [
    "PROTOCOLS", "Encoded", "Held", "Model", "Outcome", "Payroll", "Predict", "Received", "Referee", "Reply", "Sitting",
    "Work",
]  # fmt: skip

Protocol = Literal["first", "every", "report", "exam"]
PROTOCOLS = ("first", "every", "report", "exam")
ON_ALL_DROPPED = ("stop", "plain")
PAID_OPTIONS = ("rule", "over", "sign", "floor")
_NOTHING = np.zeros(0, np.int64)  # what is said of the pool by who was not asked
_EVERY_ROUND = ("every", "exam")
_UNTOLD = "examined; an exam is paid at its end, and tells no score before"
_FEWER = "let predict give labels, or the k likeliest of each row (verax.TopK.of_rows)"
_KEPT = {"first": 1, "every": 4, "report": 1, "exam": 4}  # how many broadcasts are remembered besides the very first


@dataclass(eq=False)
class Referee:
    """Every round of one federation: its broadcasts, what is paid for them, and what no client's claim changes.

    `predict(model, pool)` gives labels (N,) or probabilities (N, L) of the pool for a model, a dict of arrays by
    name with the types of the first broadcast; it is tried on that before anybody trains. `gold`: the true labels
    of some of the pool, -1 elsewhere, or {place in the pool: label}. `weights`: "equal", or "score" for what
    `weigh` says; `sizes` says what each client (by its name in the scores) counts for if the server knows, or
    "claimed" takes the clients' word, no claim counting for more than `cap` times the middle one. `bar` leaves
    replies out of the average whose score is below that share of the median. `on_all_dropped`: "stop" raises where
    no reply of a round can be used, "plain" leaves that round to the caller as it came. `buffers`: last parts of
    the names of arrays that no optimiser moves; they stay out of the echo test. `pages`: a folder for one page a
    scored round. `options` go to `verax.score`: rule, over, sign, floor. Under `every`, where `predict` gives
    probabilities and no options are given, the rule is `innovation`: what a reply adds to what is public.
    `train(model, inputs, labels)` is the server's own training, from which it then makes imitations of work without
    anybody's labels (`imitations`), which are public too; `imitate(broadcasts)` gives groups of such models instead.
    `features` go to `marking.public_models`, or by another rule to `echo.public_features`. `kinship` is what
    `echo.echo_test` asks of an update before it is paid, None nothing; "auto" asks, but not under rule `innovation`.
    `exam`: what protocol `exam` examines on. `sides`: in the first round, pay one side of a crowd that is split over
    what labels mean, the one that gold labels favour; without them a split round is held (`sides.sides`) until
    `settle_held` brings some. `predict_always`: predict the pool with the replies of rounds that are not scored too,
    and drop those on which that fails.

    >>> def predict(model, pool):
    ...     return (pool > model["at"]).astype(int)
    >>> referee = Referee(np.linspace(0, 1, 50), predict, ["low", "high"], kinship=None)
    >>> referee.broadcast({"at": np.array([0.5])})
    >>> replies = [Reply("ann", {"at": np.array([0.4])}), Reply("bob", {"at": np.array([0.6])}), Reply("eve", {})]
    >>> received = referee.receive(replies, ["ann", "bob", "eve", "dan"])
    >>> received.dropped
    {'eve': "the arrays' names are not the broadcast's ('at')", 'dan': 'no reply'}
    >>> round(referee.settle_round(received).scores["ann"].score, 2)
    0.33
    """

    pool: Any
    predict: Predict
    classes: Sequence[str]
    _: KW_ONLY
    protocol: Protocol = "first"
    payroll: Payroll | None = None
    exam: Sitting | None = None
    sides: bool = False
    gold: npt.ArrayLike | Mapping[int, int] | None = None
    weights: str = "equal"
    sizes: Mapping[str, float] | Literal["claimed"] | None = None
    cap: float = 3.0
    bar: float | None = None
    on_all_dropped: str = "stop"
    buffers: Collection[str] = BUFFERS
    name: str = "federation"
    pages: str | Path | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    features: Mapping[str, Any] = field(default_factory=dict)
    kinship: float | Literal["auto"] | None = "auto"
    train: Train | None = None
    imitate: Callable[[Sequence[Model]], Sequence[Sequence[Model]]] | None = None
    predict_always: bool = False
    outcomes: list[Outcome] = field(init=False, default_factory=list)
    identities: dict[str, str] = field(init=False, default_factory=dict)
    held: Held | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Refuse, before anybody trains, what no round could be scored or paid by."""
        if self.protocol not in PROTOCOLS:
            raise OptionError(f"protocol is {self.protocol!r}; choose one of {', '.join(PROTOCOLS)}")
        if (self.protocol == "exam") != (self.exam is not None):
            raise OptionError("protocol='exam' and exam=Sitting(...) go together; give both or neither")
        if self.sides and self.protocol in _EVERY_ROUND:
            raise OptionError(f"sides are told in a first round, not under {self.protocol!r}; leave sides out")
        if self.payroll is not None and self.exam is not None and self.payroll.full_marks is None:
            raise OptionError("an exam's payroll has full_marks=, its price; see docs/exam.md")
        if self.on_all_dropped not in ON_ALL_DROPPED:
            raise OptionError(f"on_all_dropped is {self.on_all_dropped!r}; choose one of {', '.join(ON_ALL_DROPPED)}")
        self._averaging = Averaging(self.weights, self.sizes, self.cap, self.bar)
        strange = [name for name in self.options if name not in PAID_OPTIONS]
        if self.payroll is not None and strange:
            raise OptionError(f"a paid round cannot be asked for {some(strange)}; give {', '.join(PAID_OPTIONS)} only")
        rule = resolve(self.options.get("rule", DEFAULT), self.options.get("floor"))
        if self.payroll is not None and "rule" in self.options:
            self.options = {**self.options, "rule": rule.name}
        self.classes, self.tasks = tuple(map(str, self.classes)), tasks_in(self.pool)
        self._gold = gold_labels(self.gold, len(self.tasks), len(self.classes))
        self._loses_only = rule.loses_only
        self._reads_rows = rule.needs_rows or (rule.own and not rule.counts_only)
        self._broadcasts = Broadcasts(_KEPT[self.protocol], self.buffers)
        self._answered: Said | None = None
        self._asked_kinship = KINSHIP if self.kinship == "auto" else self.kinship
        self._innovates = False  # whether replies are scored by what they add to what is public
        lasting = _KEPT[self.protocol] if self.protocol in _EVERY_ROUND else 0
        asked = None if self.protocol in _EVERY_ROUND else (self.tasks, self.classes)
        self._memory = Memory(self.name, self.payroll, lasting=lasting, asked=asked)
        self._played = self._ahead = 0  # rounds of this process, and those before it
        whole = self.protocol in _EVERY_ROUND
        self._question = Question(self.pool, self.predict, len(self.tasks), len(self.classes), whole)
        self._crowd = Crowd(len(self.tasks), len(self.classes))
        self._examination = None
        if self.exam is not None:
            book = None if self.payroll is None else Book(self.payroll, f"{self.name}-exam")
            self._question = self.exam.asked_beside(self._question)
            reach = None if isinstance(self.exam.members, bool) else self.exam.members
            self._examination = Examination(self.exam, self._question, self.classes, self._reports_of, book, reach)
            if not self.exam.members:
                self._examination.begin()
        self._known = Known(self._question, self.pool, self.seed, self.train, self.imitate, self.features)

    @property
    def due(self) -> bool:
        """Whether the protocol scores the replies of the round that is being played."""
        if self.protocol in _EVERY_ROUND:
            return True
        return self.protocol == "first" and not self._broadcasts.informed and all(o.problem for o in self.outcomes)

    @property
    def wants_reports(self) -> bool:
        """Whether models are still to be asked for that are trained for being scored alone."""
        return self.protocol == "report" and not self.outcomes

    @property
    def number(self) -> int:
        """The number of the round that is being played, counted on where this federation was begun before."""
        return self._played + self._ahead

    def broadcast(self, model: Model) -> None:
        """Remember what everybody is sent in this round; the first is what `predict` is tried on."""
        if not self._broadcasts.are_like(model):
            self._answered = self._question.tried_first(model)
            if self.protocol == "every" and not self.options and is_rows(self._answered):
                self.options, self._innovates, self._reads_rows = {"rule": INNOVATION}, True, True
                self._asked_kinship = None if self.kinship == "auto" else self.kinship
        self._broadcasts.add(model)
        self._played += 1
        with suppress(VeraxError):  # a ledger that cannot be read is said where it is written to
            self._resume()
            self._memory.remember_broadcast(self.number, self._broadcasts)

    def sends_to(self, agents: Collection[str]) -> None:
        """Note, before it is sent, to whom this broadcast goes: who has had an informative one is no newcomer again.

        `receive` does it too; who calls this first is right also if it is killed in between.
        """
        self._memory.send_to(agents, number=self.number, informed=self._broadcasts.informed)

    def receive(self, replies: Iterable[Reply], asked: Collection[str] = (), *, alone: bool = True) -> Received:
        """Replies that are models of the right form and can predict, one a client; the others with the reason.

        `alone`: they are all that the round's average is made of, so that it stops where none is left. The pool is
        predicted only where something depends on it: in rounds that are scored, or weighed by scores.
        """
        asks = not alone or self.due or self._averaging.asks_for_scores or self.predict_always
        works: dict[str, Work] = {}
        dropped: dict[str, str] = {}
        failed = set()
        for reply in replies:
            try:
                work = self._work_of(reply, {*works, *dropped}, asks)
            except Refused as why:
                dropped.setdefault(reply.agent, str(why))
                failed |= {reply.agent} if reply.failed else set()
            else:
                works[reply.agent] = work
        if alone and not works and set(dropped) - failed and self.on_all_dropped == "stop":
            raise InputError(nothing_left(dropped))
        silent = sorted(set(asked) - set(works) - set(dropped))
        if alone:
            self.sends_to({*asked, *works, *dropped})
        everybody = tuple(sorted({*asked, *works, *dropped}))
        dropped |= dict.fromkeys(silent, "no reply")
        return Received(tuple(works[agent] for agent in sorted(works)), dropped, everybody)

    def _work_of(self, reply: Reply, known: Collection[str], asks: bool) -> Work:
        if reply.refused or reply.agent in known:
            raise Refused(reply.refused or "it replied twice")
        claim = 1.0 if reply.claim is None else reply.claim
        if self.sizes == CLAIMED and not 0 <= claim < math.inf:
            raise Refused(f"it claims to count for {claim}, which is no number of examples")
        model = checked_model(reply.arrays, self._broadcasts.types)
        said = self._question.answer(model, self._answered) if asks else _NOTHING
        if said.ndim == 2 and not (self._reads_rows or self.sides or self.protocol in _EVERY_ROUND):
            said = labels_of_rows(said)
        return Work(reply.agent, model, said, reply.origin, claim)

    def pay_round(
        self, broadcast: Model, replies: Mapping[str, Model] | Iterable[Reply], asked: Collection[str] = ()
    ) -> Outcome:
        """A whole round: what was broadcast, who replied what, and who was asked; scored and paid where it is due.

        The outcome's `shares` are what each reply counts for in the average.
        """
        self.broadcast(broadcast)
        self.sends_to(asked)
        sent = [Reply(agent, model) for agent, model in replies.items()] if isinstance(replies, Mapping) else replies
        received = self.receive(sent, asked)
        outcome = self.settle_round(received) if self.due else None
        shares = {work.agent: share for work, share in self.weigh(received.works, outcome)}
        return replace(outcome or self.leave_unscored(received), shares=shares)

    def settle_round(self, received: Received) -> Outcome:
        """Score the replies and settle the round; what goes wrong is said in the outcome.

        A round that this federation was paid for before it was started again is not paid twice.
        """
        try:
            self._resume()
            if (known := self._memory.settled(self.number)) is not None:
                return known
            outcome = said_of_memory(_FEWER)(self._scored_round)(received)
        except VeraxError as error:
            outcome = Outcome(self.number, None, dropped=received.dropped, problem=str(error))
        return self._remembered(outcome, received)

    def settle_held(self, gold: Mapping[int, int]) -> Outcome:
        """Settle the round that is held over a split crowd, with true labels: best those of `held.sides.ask`.

        Labels that do not tell either leave it held, and ask for others.
        """
        if self.held is None:
            raise OptionError("no round is held; settle_held is for one whose crowd is split (sides=True)")
        held, self.held = self.held, None
        self._gold = gold_labels(self._crowd.known(self._gold) | dict(gold), len(self.tasks), len(self.classes))
        try:
            outcome = self._scored_round(held.received, held)
        except VeraxError as error:
            outcome = Outcome(held.number, None, dropped=held.received.dropped, problem=str(error))
        return self._remembered(outcome, held.received)

    def _remembered(self, outcome: Outcome, received: Received) -> Outcome:
        """The outcome with its notices, remembered, and written where pages are."""
        outcome = self._with_notices(replace(outcome, imitated=self._known.seconds), received.digests)
        self.outcomes.append(outcome)
        if self.protocol not in _EVERY_ROUND and not outcome.problem:
            said = {work.agent: work.said for work in received.works if work.agent not in outcome.unpaid}
            self._memory.remember_first(said, len(said))
        if self.pages is not None:
            outcome.write_page(Path(self.pages), self.name)
        return outcome

    def leave_unscored(self, received: Received) -> Outcome:
        """The outcome of a round that is not scored: who was dropped is told why."""
        return self._with_notices(Outcome(self.number, None, dropped=received.dropped), {})

    def _with_notices(self, outcome: Outcome, models: Mapping[str, str]) -> Outcome:
        """The outcome with a notice for everybody in it, signed and recorded where there is a ledger."""
        notices = notices_of(outcome, self.name, models, self.identities)
        if self.payroll is not None and notices:
            round = outcome.round or f"{self.name}-{outcome.server_round}"
            with suppress(VeraxError):  # a ledger that cannot be written to has been said, and nobody signs then
                notices = self.payroll.tell(round, notices.values(), settled=outcome.round is not None)
        return replace(outcome, notices=notices)

    def newcomers(self, asked: Collection[str]) -> list[str]:
        """Of those to be asked in this round, who is still to be asked for a first model, trained from `first_model`.

        Those who were never asked before, and so hold nothing informative as far as the referee knows. Under `every`
        there are none, as every round is paid.
        """
        if self.protocol in _EVERY_ROUND or not self._broadcasts.informed or not self._memory.can_ask_firsts:
            return []
        return sorted(set(asked) - self._memory.told)

    @property
    def first_model(self) -> Model:
        """What was broadcast before anything was informative."""
        return self._broadcasts.first

    def settle_newcomers(self, received: Received) -> Outcome:
        """Score newcomers' first models beside those of who came before, and pay them at the same rate."""
        try:
            outcome = said_of_memory(_FEWER)(self._scored_newcomers)(received)
        except VeraxError as error:
            outcome = Outcome(self.number, None, dropped=received.dropped, problem=str(error))
        self._memory.told |= set(received.asked)
        outcome = self._with_notices(outcome, received.digests)
        self.outcomes.append(outcome)
        return outcome

    def _scored_newcomers(self, received: Received) -> Outcome:
        memory = self._memory
        beside = [Work(agent, {}, said) for agent, said in sorted(memory.firsts.items())]
        workers = [Work("", model, _NOTHING) for model in memory.workers]
        echoes = self._broadcasts.echoes([*received.works, *workers], (), self._asked_kinship, first=True)
        unpaid = {w.agent: echoes[w.agent] for w in received.works if w.agent in echoes}
        if self.sides:  # those who were paid before say which side is right
            unpaid = self._crowd.outsiders([*beside, *received.works], self._gold, trusted=len(beside)) | unpaid
        new = [w for w in received.works if w.agent not in unpaid]
        if not new:
            return Outcome(self.number, None, dropped=received.dropped, unpaid=unpaid)
        reports, before = self._reports_of([*beside, *new]), tuple(w.agent for w in beside)
        if self.payroll is None:
            found = score(reports, self._gold, **{"copies": APART, **self.options})
            outcome = Outcome(self.number, replace(found, scores=tuple(s for s in found if s.agent not in before)))
        else:
            budget = self.payroll.at_the_rate_of(memory.paid_first, len(new))
            at = Held(self.number, digest_of(self._broadcasts.now), received)
            outcome = self._paid_round(reports, at, unpaid, references=before, budget=budget)
        memory.remember_first({w.agent: w.said for w in new}, len(new))
        return replace(outcome, dropped=received.dropped, unpaid=unpaid)

    def _resume(self) -> None:
        """Once, when the first model has been broadcast: take up the rounds that the ledger has of this name."""
        if not self._memory.resumed:
            sat = {} if self._examination is None else self._examination.recorded
            self._ahead = self._memory.resume(self._broadcasts, sat)
            self._memory.outcomes = [self._with_notices(o, o.models) for o in self._memory.outcomes]
            self.outcomes[:0] = self._memory.outcomes

    def _scored_round(self, received: Received, held: Held | None = None) -> Outcome:
        works, dropped = received.works, received.dropped
        if self._examination is not None:
            sent = self._broadcasts
            unpaid = self._examination.sit(
                sent.models, works, self._known.imitated(sent, self.number), sent.still, self.seed, self.number
            )
            found, stakes = self._examination.scores(), self._examination.stakes_needed()
            return Outcome(self.number, found, dropped=dropped, unpaid=unpaid, stakes=stakes, untold=_UNTOLD)
        if len(works) < 2:
            raise InputError(f"{len(works)} replies can be scored; two at least are needed")
        reports = self._reports_of(works)
        everything, sent = self.protocol == "every", self._broadcasts
        imitated = self._known.imitated(sent, self.number) if everything else ()
        public = self._known.signal(sent, imitated, rows=self._innovates) if everything else None
        unpaid = sent.echoes(works, imitated, self._asked_kinship, first=held is not None)
        if not everything:
            self._memory.remember_workers([work.model for work in works if work.agent not in unpaid])
        at = held or Held(self.number, digest_of(sent.now), received)
        if self.sides:
            camps = self._crowd.sides(works, self._gold)
            self.held = replace(at, sides=camps) if camps.held else None
            unpaid = camps.outsiders(reports.agents) | unpaid
        if self.payroll is None:
            payable = reports.only(*(i for i, agent in enumerate(reports.agents) if agent not in unpaid))
            asked = {"copies": APART, **self.options}
            scores = score(payable, self._gold, public, **asked) if len(payable.agents) > 1 else None
            return Outcome(at.number, scores, dropped=dropped, unpaid=unpaid)
        signal = None if public is None else tuple(map(tuple, public.tolist()))
        return self._paid_round(reports, at, unpaid, public=signal)

    def examined_by(self, members: Members) -> None:
        """How members are reached who examine one another (`Sitting(members=True)`): an adapter says so."""
        if self._examination is not None:
            self._examination.members = members

    def begin_exam(self) -> None:
        """Before anybody trains: members promise what they hold back, and the exam is opened in the ledger."""
        if self._examination is None:
            raise OptionError("there is no exam to be paid for; give protocol='exam' and exam=Sitting(...)")
        self._examination.begin()

    def pay_exam(
        self, budget: str | None = None, full_marks: str | None = None, *, deposit: str | None = None, **terms: Any
    ) -> Payments:
        """What the exam pays over all rounds so far: a score of `full_marks` earns budget/K, and more earns no more.

        One gate stands before all, or with a `deposit` pay is signed (`payments.pay_marks`). Copies are paid as one,
        and a share of what a member earns that examines rides on agreeing with the other examiners. With a payroll
        nothing is given here: its terms pay, out of the ledger, once.
        """
        self.begin_exam()
        assert self._examination is not None
        paid, settled = self._examination.settle(budget, full_marks, deposit=deposit, **terms)
        if settled is not None and all(o.payments is None for o in self.outcomes):
            told = Outcome(self.number, settled.scores, settled.amounts, round=f"{self.name}-exam", payments=paid)
            self.outcomes.append(self._with_notices(told, {}))
        return paid

    def exam_record(self, budget: str, full_marks: str, **terms: Any) -> ExamRecord:
        """The document that these payments follow from, for whoever wants to compute them again (`exam.ExamRecord`)."""
        if self._examination is None:
            raise OptionError("there is no exam to be paid for; give protocol='exam' and exam=Sitting(...)")
        return self._examination.record(self.name, budget, full_marks, **terms)

    def _paid_round(self, reports: Reports, at: Held, unpaid: Mapping[str, str], **asked: Any) -> Outcome:
        """The round of these reports in the ledger, from its beginning to its settlement."""
        assert self.payroll is not None
        begun = self.payroll.begin(self.name, at.number, at.broadcast, at.received, unpaid, self._memory.begun)
        truth = None if self._gold is None else tuple(self._gold.tolist())
        asked["unpaid"] = tuple(sorted(set(unpaid) & set(reports.agents)))
        spec = self.payroll.spec(
            begun.round, **{"tasks": self.tasks, "classes": self.classes, "truth": truth, **self.options, **asked}
        )
        return settled_outcome(replace(begun, settled=self.payroll.settle(spec, reports)), spec.references)

    def _reports_of(self, works: Sequence[Work]) -> Reports:
        said, names = [w.said[: len(self.tasks)] for w in works], [w.agent for w in works]
        if not self._reads_rows or all(s.ndim == 1 for s in said):  # rows are not kept where no rule looks at them
            labels = [np.asarray(s) if s.ndim == 1 else labels_of_rows(s) for s in said]
            return Reports.of(np.stack(labels), agents=names, tasks=self.tasks, classes=self.classes)
        if isinstance(said[0], TopK):
            listed = TopK.stack([rows for rows in said if isinstance(rows, TopK)])
            return Reports.of(probabilities=listed, agents=names, tasks=self.tasks, classes=self.classes)
        check_memory("everybody's rows of probabilities", _FEWER, len(said), *said[0].shape, each=8 * 4)
        rows = np.stack(said).astype(np.float64)
        return Reports.of(
            probabilities=rows / rows.sum(2, keepdims=True), agents=names, tasks=self.tasks, classes=self.classes
        )

    def weigh(self, works: Sequence[Work], outcome: Outcome | None = None) -> list[tuple[Work, float]]:
        """The replies that count in the average, each with what it counts for.

        By the scores these replies were paid by in this round, where there are some; who has none counts for nothing.
        In rounds that are not scored, under `every` (which takes out what is shared, and that is most of what makes a
        model good) and under rules whose scores are never above 0, by one plain score: agreement beyond chance.
        """
        return self._averaging.weigh(works, self._weighing_scores(works, outcome))

    def _weighing_scores(self, works: Sequence[Work], outcome: Outcome | None) -> dict[str, float]:
        if len(works) < 2 or not self._averaging.asks_for_scores:
            return {}
        paid_by = None if outcome is None or self.protocol in _EVERY_ROUND or self._loses_only else outcome.scores
        found = paid_by or score(self._reports_of(works), self._gold, copies=APART)
        return dict.fromkeys((w.agent for w in works), 0.0) | {s.agent: s.score or 0.0 for s in found.scores}
