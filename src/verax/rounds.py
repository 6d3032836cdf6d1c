"""Rounds: open -> sealed -> scored -> settled, or void: score, pay, post, once.

    state     step      becomes   who
    open      fund      open      the operator sets the budget aside
    open      submit    open      an agent hands in a report; the last one before sealing counts
    open      seal      sealed    nothing more is taken; the root of all commitments is fixed
    sealed    score     scored    scores and payments, a pure function of the sealed transcript
    scored    settle    settled   one transaction posts every payment and returns the residue
    open      void      void      everything goes back
    sealed    void      void

Everything is in the ledger's journal, so that every step is immutable, idempotent by its key, and
verifiable: `verify` computes every payment again from the transcript. What is asked (rule, classes,
tasks, public signal, truth, budget, deadline) is hashed when the round opens and cannot change.
Randomness comes from SHA-256 of the sealed root and a secret that was committed to at opening and is
published at settlement: neither the operator nor an agent can choose it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import numpy as np

from verax.audit import to_json
from verax.audit.copies import copies
from verax.errors import ConflictError, InputError, LedgerError
from verax.joint import Public
from verax.ledger import HOUSE, Entry, Head, Journal, Ledger, Transfer
from verax.market import Submissions, bounds, market, stake
from verax.mechanisms import Mechanism, Score, Scores, score
from verax.payments import clusters_of, minor_units, pay, scale_of
from verax.reports import Reports
from verax.rules import resolve

TRANSITIONS: dict[tuple[str, str], str] = {
    ("none", "open"): "open",
    ("open", "fund"): "open",
    ("open", "submit"): "open",
    ("open", "seal"): "sealed",
    ("sealed", "score"): "scored",
    ("scored", "settle"): "settled",
    ("open", "void"): "void",
    ("sealed", "void"): "void",
}
_IF_GIVEN = ("copies", "unpaid", "significance")  # of a spec: left out of its hash where nothing is asked
_STEPS = ("settle", "score", "void", "seal", "open")  # those that leave a record, latest first


@dataclass(frozen=True)
class Spec:
    """What a round asks and promises: fixed, and hashed, when it opens.

    `kind` is batch or market. `truth` (a class number a task, -1 unknown) and `public` (a stratum, or a
    list of numbers, a task) are optional; `scale` is what a market pays for one unit of score, in major
    units, the budget if not given. `copies` pays agents that are copies of one another as one; `unpaid`
    names agents that handed in a report and take no part: not paid, and no reference; `significance` pays only scores
    that many standard errors above 0.

    >>> Spec("r1", ("t1", "t2"), ("cat", "dog"), "100.00").digest[:8]
    'fe24af23'
    """

    round: str
    tasks: tuple[str, ...]
    classes: tuple[str, ...]
    budget: str
    kind: str = "batch"
    currency: str = "EUR"
    rule: str = "zero-one"
    over: str | None = None
    sign: str | None = None
    floor: float | None = None
    scheme: str = "clipped"
    min_tasks: int = 30
    scale: str | None = None
    deadline: str | None = None
    truth: tuple[int, ...] | None = None
    public: tuple[Any, ...] | None = None
    copies: bool = False
    unpaid: tuple[str, ...] = ()
    significance: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The one JSON form; its canonical bytes are what `digest` hashes."""
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {name: value for name, value in fields.items() if value or name not in _IF_GIVEN}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Spec:
        """A spec from its JSON form."""
        lists = ("tasks", "classes", "truth", "public", "unpaid")
        return cls(**{**document, **{name: tuple(document[name]) for name in lists if document.get(name) is not None}})

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical bytes."""
        return _digest(self.to_json())


@dataclass(frozen=True)
class Receipt:
    """What an agent keeps: what was taken, when, and how long the journal was then."""

    round: str
    agent: str
    commitment: str
    nonce: str
    entry: int
    head: Head

    def to_json(self) -> dict[str, Any]:
        """The one JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class Settlement:
    """Who is paid what, in minor units (negative: lost in a market), and the scores behind it."""

    amounts: dict[str, int]
    scores: Any
    secret: str
    root: str

    def to_json(self) -> dict[str, Any]:
        """The one JSON form."""
        return asdict(self)


def _digest(document: Any) -> str:
    text = json.dumps(document, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def commitment(round: str, agent: str, content: Mapping[str, Any], nonce: str) -> str:
    """Binds round, agent and content: SHA-256 over their canonical form, with a nonce so that it cannot be guessed.

    >>> commitment("r1", "ann", {"labels": [0, 1]}, "n") != commitment("r1", "bob", {"labels": [0, 1]}, "n")
    True
    """
    return _digest([round, agent, content, nonce])


def _nonce(secret: str, round: str, agent: str, content: Mapping[str, Any]) -> str:
    """The same for the same submission, so that a repeated request is the same; secret until settlement."""
    return hmac.new(secret.encode(), _digest([round, agent, content]).encode(), hashlib.sha256).hexdigest()


def content_of(report: Reports, spec: Spec) -> dict[str, Any]:
    """One agent's report in the canonical form that is committed to: labels in the order of the tasks."""
    if len(report.agents) != 1:
        raise InputError(f"a submission is one agent's report; this has {len(report.agents)}")
    place = {task: n for n, task in enumerate(report.tasks)}
    asked = set(spec.tasks)
    strange = [task for task in report.tasks if task not in asked]
    if strange:
        raise InputError(f"task {strange[0]!r} is not in the round; submit its {len(spec.tasks)} tasks only")
    if report.classes != spec.classes:
        raise InputError(f"the report's classes are {list(report.classes)}, the round's {list(spec.classes)}")
    order = [place.get(task, -1) for task in spec.tasks]
    labels = [int(report.labels[0, n]) if n >= 0 else -1 for n in order]
    if max(labels) < 0:
        raise InputError("the report answers none of the round's tasks")
    if report.probabilities is None and resolve(spec.rule, spec.floor).needs_rows:
        raise InputError(f"the round's rule {spec.rule} needs probabilities; add p:<class> columns")
    content: dict[str, Any] = {"labels": labels}
    if report.probabilities is not None:
        rows = np.where((np.array(order) >= 0)[:, None], report.probabilities[0][order], np.nan)
        content["probabilities"] = base64.b64encode(rows.astype("<f8").tobytes()).decode("ascii")
    return content


def _reports(spec: Spec, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Reports:
    """Reports of (name, content) pairs."""
    labels = np.array([content["labels"] for _, content in rows], dtype=np.int64).reshape(len(rows), len(spec.tasks))
    given = [content.get("probabilities") for _, content in rows]
    probabilities = None
    if given and all(given):
        shape = (len(rows), len(spec.tasks), len(spec.classes))
        probabilities = np.frombuffer(b"".join(base64.b64decode(g or "") for g in given), dtype="<f8").reshape(shape)
    names = [name for name, _ in rows]
    reports = Reports.of(
        labels, probabilities, agents=names, tasks=spec.tasks, classes=spec.classes, source="the round"
    )
    return reports if spec.public is None else replace(reports, public=np.array(spec.public))


def settlement(spec: Spec, submissions: Sequence[tuple[str, Mapping[str, Any]]], secret: str, root: str) -> Settlement:
    """Scores and payments of a sealed transcript: a pure function, so that anybody can compute it again."""
    if spec.kind == "market":
        return _settle_market(spec, submissions, secret, root)
    seed = hashlib.sha256(f"{root}:{secret}".encode()).hexdigest() if spec.over == "one" else None
    truth = None if spec.truth is None else np.array(spec.truth)
    reports = _reports(spec, submissions)
    nothing = dict.fromkeys(reports.agents, 0)
    reports = reports.only(*(i for i, agent in enumerate(reports.agents) if agent not in spec.unpaid))
    if spec.unpaid and len(reports.agents) < (2 if truth is None else 1):
        return Settlement(nothing, None, secret, root)
    groups = clusters_of(to_json(copies(reports, 0.95))) if spec.copies else []
    alike = _first_of_each(reports.agents, groups)
    scores = score(
        reports.only(*sorted({*alike.values()})), truth,
        rule=spec.rule, over=spec.over, sign=spec.sign, floor=spec.floor, seed=seed, backend="numpy",
    )  # fmt: skip
    # numpy: what is not label against label is then summed in one order wherever it is computed again
    scores = replace(
        scores, scores=tuple(replace(scores[reports.agents[i]], agent=agent) for agent, i in alike.items())
    )
    paid = pay(
        _payable(scores, spec), budget=spec.budget, currency=spec.currency, scheme=spec.scheme,
        min_tasks=spec.min_tasks, clusters=groups,
    )  # fmt: skip
    return Settlement(nothing | {p.agent: p.amount for p in paid.payments}, scores.to_json(), secret, root)


def _first_of_each(agents: Sequence[str], groups: Sequence[set[str]]) -> dict[str, int]:
    """The agent whose report stands for each one's: its own, or the first of its copies, which is no peer of theirs."""
    place = {agent: i for i, agent in enumerate(agents)}
    stands = place | {agent: place[min(group)] for group in groups for agent in group}
    return stands if len({*stands.values()}) > 1 else place  # all copies of one: there is nobody else to compare with


def _payable(scores: Scores, spec: Spec) -> Scores:
    """The scores with those taken away that are not significant enough for the spec, so that no scheme pays them."""
    if spec.significance is None:
        return scores
    least = spec.significance * _dimensions_left(spec)

    def paid(s: Score) -> bool:
        return s.score is None or s.stderr is None or s.score >= least * s.stderr

    return replace(scores, scores=tuple(s if paid(s) else replace(s, score=None) for s in scores.scores))


def _dimensions_left(spec: Spec) -> float:
    """By how much features that take out many dimensions make a standard error too small: tasks over what is left."""
    signal = Public.of(None if spec.public is None else np.array(spec.public), len(spec.tasks))
    return len(spec.tasks) / max(len(spec.tasks) - signal.rank, 1) if signal.features is not None else 1.0


def _settle_market(
    spec: Spec, submissions: Sequence[tuple[str, Mapping[str, Any]]], secret: str, root: str
) -> Settlement:
    steps = [(str(n), content) for n, (_, content) in enumerate(submissions, start=1)]
    owners = tuple(agent for agent, _ in submissions)
    found = market(
        Submissions(_reports(spec, steps), owners), truth=np.array(spec.truth),
        rule=spec.rule, sign=spec.sign, floor=spec.floor,
    )  # fmt: skip
    return Settlement(found.money(_unit(spec)).totals, found.to_json(), secret, root)


def _unit(spec: Spec) -> int:
    """Minor units that a market pays for one unit of score."""
    return minor_units(spec.scale or spec.budget, scale_of(spec.currency), spec.currency, "scale")


def _mechanism(spec: Spec) -> Mechanism:
    """The market's mechanism, as far as what it can pay and cost depends on it."""
    return Mechanism(spec.rule, "truth", None, None, spec.public is not None, resolve(spec.rule, spec.floor).floor)


class Rounds:
    """Every step of every round on one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def classes(self, round: str) -> tuple[str, ...]:
        """The classes of a round."""
        with self.ledger.reading() as journal:
            return _spec(journal, round).classes

    def minor(self, round: str, amount: str) -> int:
        """An amount in the round's currency, in minor units."""
        with self.ledger.reading() as journal:
            currency = _spec(journal, round).currency
        return minor_units(amount, scale_of(currency), currency, "amount")

    def open(self, spec: Spec, *, secret: str | None = None) -> Entry:
        """Open a round: its spec is hashed and fixed, and a secret is committed to.

        Opening the same round again, unchanged, answers as before.
        """
        _check(spec)
        key = f"{spec.round}:open"
        with self.ledger.writing() as journal:
            known = journal.get(key)
            if known is not None:
                if json.loads(known.body)["digest"] != spec.digest:
                    raise ConflictError(f"round {spec.round!r} is open with another spec; choose another name")
                return known
            drawn = secret or secrets.token_hex(32)
            journal.record(f"{spec.round}:secret", "secret", spec.round, {"secret": drawn})
            promise = hashlib.sha256(drawn.encode()).hexdigest()
            body = {"spec": spec.to_json(), "digest": spec.digest, "secret_hash": promise}
            return journal.record(key, "open", spec.round, body)

    def fund(self, round: str, amount: int | None = None, *, agent: str | None = None, key: str | None = None) -> Entry:
        """Set the budget (or `amount`, in minor units) aside for the round, or give it to an agent's account.

        The same amount again is the same request, unless it has its own key.
        """
        with self.ledger.writing() as journal:
            spec = _spec(journal, round)
            credit = f"agent:{agent}" if agent else f"escrow:{round}"
            sum_ = amount if amount is not None else minor_units(spec.budget, scale_of(spec.currency), spec.currency)
            id = f"{round}:fund:{key or f'{credit}:{sum_}'}"
            if journal.get(id) is None:
                _require(journal, round, "fund")
            return journal.transfer(Transfer(id, HOUSE, credit, sum_, "fund", round))

    def submit(self, round: str, agent: str, report: Reports, *, key: str | None = None) -> Receipt:
        """Take an agent's report; in a market its stake is held first, or it is not taken.

        The same report as the one that stands is the same request; to be sure over a bad line, give a key.
        """
        with self.ledger.writing() as journal:
            spec = _spec(journal, round)
            content = content_of(report, spec)
            _reports(spec, [(agent, content)])  # what could not be settled is refused now, not for everybody later
            nonce = _nonce(_secret(journal, round), round, agent, content)
            bound = commitment(round, agent, content, nonce)
            mine = f"{round}:submit:{quote(agent, safe='')}:"
            id = mine + (key or _turn(journal, spec, mine, bound))
            known = journal.get(id)
            if known is None:
                _require(journal, round, "submit")
                _before_deadline(spec)
                if spec.kind == "market":
                    most = stake(_mechanism(spec), unit=_unit(spec))
                    journal.hold(Transfer(f"{id}:stake", f"agent:{agent}", f"escrow:{round}", most, "stake", round))
            entry = journal.record(id, "submit", round, {"agent": agent, "commitment": bound, "content": content})
            return Receipt(round, agent, bound, nonce, entry.seq, Head(entry.seq, entry.hash))

    def seal(self, round: str) -> Entry:
        """Take nothing more: fix the root of all commitments. The budget must be set aside by then."""
        with self.ledger.writing() as journal:
            known = journal.get(f"{round}:seal")
            if known is not None:
                return known
            spec = _spec(journal, round)
            _require(journal, round, "seal")
            _after_deadline(spec)
            taken = _live(journal, spec)
            if not taken:
                raise ConflictError(f"round {round!r} has no submissions; wait, or void it")
            needed = minor_units(spec.budget, scale_of(spec.currency), spec.currency)
            held = journal.available(f"escrow:{round}")
            if held < needed:
                raise ConflictError(f"round {round!r} has {held} of {needed} minor units set aside; fund it first")
            root = _root(taken, round, _secret(journal, round))
            return journal.record(f"{round}:seal", "seal", round, {"root": root, "submissions": len(taken)})

    def settle(self, round: str) -> Settlement:
        """Score, pay and post, once; every later call gives the same answer."""
        with self.ledger.reading() as journal:
            known = journal.get(f"{round}:settle")
            if known is not None:
                return _settled(journal, round)
            _require(journal, round, "score")
            transcript = _transcript(journal, round)
        found = settlement(*transcript)  # after reading: it may take long, and an SQLite reader keeps writers waiting
        with self.ledger.writing() as journal:
            if journal.get(f"{round}:settle") is None:
                _require(journal, round, "score")
                journal.record(f"{round}:score", "score", round, found.to_json())
                self._post(journal, transcript[0], found)
                journal.record(f"{round}:settle", "settle", round, {"paid": sum(found.amounts.values())})
            return _settled(journal, round)

    def _post(self, journal: Journal, spec: Spec, found: Settlement) -> None:
        """Let go of stakes, move what was won and lost, and give the rest back."""
        round, escrow = spec.round, f"escrow:{spec.round}"
        _release(journal, round)
        for agent, amount in sorted(found.amounts.items(), key=lambda x: x[1]):  # losses come in before gains go out
            if amount:
                sides = (escrow, f"agent:{agent}") if amount > 0 else (f"agent:{agent}", escrow)
                journal.transfer(Transfer(f"{round}:pay:{agent}", *sides, abs(amount), "pay", round))
        _give_back(journal, round)

    def void(self, round: str) -> Entry:
        """Call the round off: stakes are let go and the budget goes back."""
        with self.ledger.writing() as journal:
            known = journal.get(f"{round}:void")
            if known is not None:
                return known
            _spec(journal, round)
            _require(journal, round, "void")
            _release(journal, round)
            _give_back(journal, round)
            return journal.record(f"{round}:void", "void-round", round, {})

    def show(self, round: str) -> dict[str, Any]:
        """What may be known now: before settlement nobody's report, nor the truth, nor the secret."""
        with self.ledger.reading() as journal:
            opened = json.loads(_opened(journal, round).body)
            state = _state(journal, round)
            spec = opened["spec"]
            if state != "settled":
                shown = None if spec["truth"] is None else "not shown before settlement"
                spec = spec | {"truth": shown}
            sealed = journal.get(f"{round}:seal")
            return {
                "format": "verax.round/1", "round": round, "state": state, "digest": opened["digest"],
                "secret_hash": opened["secret_hash"], "spec": spec,
                "submissions": [
                    {"agent": body["agent"], "commitment": body["commitment"], "entry": e.seq}
                    for e in journal.entries(round, "submit") if (body := json.loads(e.body))
                ],
                "escrow": journal.available(f"escrow:{round}"),
                "root": json.loads(sealed.body)["root"] if sealed else None,
                "settlement": _settled(journal, round).to_json() if state == "settled" else None,
                "head": asdict(journal.head()),
            }  # fmt: skip

    def verify(self, round: str | None = None, *heads: Head) -> list[str]:
        """Every problem of the journal, and of a round's settlement computed again; [] if there is none."""
        problems = self.ledger.verify(*heads)
        if problems or round is None:
            return problems
        with self.ledger.reading() as journal:
            opened = json.loads(_opened(journal, round).body)
            if Spec.from_json(opened["spec"]).digest != opened["digest"]:
                return ["the round's spec is not the one that was hashed at opening"]
            if _state(journal, round) != "settled":
                return []
            again = settlement(*_transcript(journal, round))
            recorded = _settled(journal, round)
            if hashlib.sha256(recorded.secret.encode()).hexdigest() != opened["secret_hash"]:
                return ["the published secret is not the one committed to at opening"]
            posted = _posted(journal, round)
            agents = {*again.amounts, *posted}
            return [
                f"agent {a!r} was paid {posted.get(a, 0)} and the transcript gives {again.amounts.get(a, 0)}"
                for a in sorted(agents) if posted.get(a, 0) != again.amounts.get(a, 0)
            ]  # fmt: skip

    def payment(self, round: str, agent: str) -> tuple[int, int]:
        """What an agent was paid, and what the transcript gives when computed again."""
        with self.ledger.reading() as journal:
            if _state(journal, round) != "settled":
                raise ConflictError(f"round {round!r} is not settled; there is no payment to verify yet")
            again = settlement(*_transcript(journal, round))
            if agent not in again.amounts:
                raise InputError(f"agent {agent!r} has no submission in round {round!r}")
            return _posted(journal, round).get(agent, 0), again.amounts[agent]


def _check(spec: Spec) -> None:
    """Refuse what could not be settled later, by settling it now on reports that say nothing."""
    if spec.kind not in ("batch", "market"):
        raise InputError(f"a round is batch or market, not {spec.kind!r}")
    if not spec.round or ":" in spec.round or spec.round != spec.round.strip():
        raise InputError(f"round name {spec.round!r}; give one without colons or blanks around it")
    if len(set(spec.tasks)) < max(2, len(spec.tasks)) or len(set(spec.classes)) < max(2, len(spec.classes)):
        raise InputError("a round needs two different tasks and two different classes at least, each named once")
    for name, given in (("truth", spec.truth), ("public signal", spec.public)):
        if given is not None and len(given) != len(spec.tasks):
            raise InputError(f"the {name} has {len(given)} entries for {len(spec.tasks)} tasks; give one a task")
    if spec.deadline is not None:
        _time(spec.deadline)
    if spec.kind == "market":
        _check_market(spec)
    nothing: dict[str, Any] = {"labels": [0] * len(spec.tasks)}
    if resolve(spec.rule, spec.floor).needs_rows:
        rows = np.full((len(spec.tasks), len(spec.classes)), 1 / len(spec.classes))
        nothing["probabilities"] = base64.b64encode(rows.astype("<f8").tobytes()).decode("ascii")
    settlement(spec, [("one", nothing), ("other", nothing)], "", "")


def _check_market(spec: Spec) -> None:
    if spec.truth is None or min(spec.truth) < 0:
        raise InputError(
            "a market round is closed by the truth of every task; give it (it is not shown before settlement)"
        )
    loss = math.ceil(max(bounds(_mechanism(spec))[1], 0.0) * _unit(spec))
    held = minor_units(spec.budget, scale_of(spec.currency), spec.currency)
    if loss > held:
        raise InputError(
            f"the house can lose {loss} minor units and the budget is {held}; lower --scale or raise --budget"
        )


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"deadline {text!r} is no time; write it as 2026-12-31T18:00:00+00:00") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _before_deadline(spec: Spec) -> None:
    if spec.deadline is not None and datetime.now(UTC) >= _time(spec.deadline):
        raise ConflictError(f"the deadline of round {spec.round!r} has passed; nothing is taken any more")


def _after_deadline(spec: Spec) -> None:
    if spec.deadline is not None and datetime.now(UTC) < _time(spec.deadline):
        raise ConflictError(f"round {spec.round!r} takes submissions until {spec.deadline}; seal it after that")


def _opened(journal: Journal, round: str) -> Entry:
    entry = journal.get(f"{round}:open")
    if entry is None:
        raise LedgerError(f"no round is called {round!r}; open it first, or check --db")
    return entry


def _spec(journal: Journal, round: str) -> Spec:
    return Spec.from_json(json.loads(_opened(journal, round).body)["spec"])


def _state(journal: Journal, round: str) -> str:
    for step in _STEPS:
        if journal.get(f"{round}:{step}") is not None:
            return next(state for (_, taken), state in TRANSITIONS.items() if taken == step)
    return "none"


def _turn(journal: Journal, spec: Spec, mine: str, bound: str) -> str:
    """The key of a submission without one: that of the report that stands if it is the same, else a new one.

    In a market the last step of all stands, so that an agent may restore what another changed.
    """
    standing = journal.last(spec.round, "submit", "" if spec.kind == "market" else mine)
    if standing is not None and standing.id.startswith(mine) and json.loads(standing.body)["commitment"] == bound:
        return standing.id.removeprefix(mine)
    return f"{bound}:{0 if standing is None else standing.seq}"


def _require(journal: Journal, round: str, step: str) -> None:
    """Refuse a step that the table of transitions does not have."""
    state = _state(journal, round)
    if (state, step) not in TRANSITIONS:
        allowed = [name for (before, name) in TRANSITIONS if before == state]
        raise ConflictError(
            f"round {round!r} is {state} and cannot {step}; it can only {' or '.join(allowed) or 'be shown'}"
        )


def _live(journal: Journal, spec: Spec) -> list[tuple[str, dict[str, Any]]]:
    """The submissions that count: in a batch each agent's last, by name; in a market all, in order."""
    bodies = [json.loads(e.body) for e in journal.entries(spec.round, "submit")]
    if spec.kind == "market":
        return [(b["agent"], b["content"]) for b in bodies]
    return sorted({b["agent"]: b["content"] for b in bodies}.items())


def _transcript(journal: Journal, round: str) -> tuple[Spec, list[tuple[str, dict[str, Any]]], str, str]:
    """What was sealed, and nothing else that a settlement rests on: spec, submissions, secret, root."""
    spec, sealed, secret = _spec(journal, round), journal.get(f"{round}:seal"), _secret(journal, round)
    if sealed is None:
        raise ConflictError(f"round {round!r} is not sealed")
    taken = _live(journal, spec)
    root = _root(taken, round, secret)
    if root != json.loads(sealed.body)["root"]:
        raise LedgerError(f"the submissions of round {round!r} are not those that were sealed; nothing is paid")
    return spec, taken, secret, root


def _root(taken: Sequence[tuple[str, Mapping[str, Any]]], round: str, secret: str) -> str:
    """One hash over all the commitments that count, in order."""
    return _digest([commitment(round, a, content, _nonce(secret, round, a, content)) for a, content in taken])


def _secret(journal: Journal, round: str) -> str:
    entry = journal.get(f"{round}:secret")
    if entry is None:
        raise LedgerError(f"no round is called {round!r}; open it first, or check --db")
    return str(json.loads(entry.body)["secret"])


def _settled(journal: Journal, round: str) -> Settlement:
    entry = journal.get(f"{round}:score")
    assert entry is not None
    return Settlement(**json.loads(entry.body))


def _posted(journal: Journal, round: str) -> dict[str, int]:
    """What was really moved to (or from) each agent when the round was settled."""
    found: dict[str, int] = {}
    for e in journal.entries(round, "posted"):
        if json.loads(e.body)["code"] == "pay" and e.debit and e.credit and e.amount:
            gained = e.credit.startswith("agent:")
            agent = (e.credit if gained else e.debit).removeprefix("agent:")
            found[agent] = found.get(agent, 0) + (e.amount if gained else -e.amount)
    return found


def _release(journal: Journal, round: str) -> None:
    for e in list(journal.entries(round, "pending")):
        journal.void(f"{e.id}:release", e.id)


def _give_back(journal: Journal, round: str) -> None:
    rest = journal.available(f"escrow:{round}")
    if rest:
        journal.transfer(Transfer(f"{round}:residue", f"escrow:{round}", HOUSE, rest, "residue", round))
