"""A round's transcript, and what follows from it: pure functions, so that anybody can compute a settlement again.

What is asked (a Spec), what was submitted (as it is committed to) and what becomes of it (a Settlement): one object
from one computation, with the scores that were paid by. How it is hidden until then is decided in `sealed`, where it is
kept, and in what order, in `rounds`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from verax import wire
from verax.audit.certificate import Certificate
from verax.audit.copies import copies
from verax.audit.independence import independence
from verax.copies import CONFIDENCE
from verax.errors import InputError
from verax.groups import clusters_of, joined
from verax.keys import checked_public
from verax.market import Market, Submissions, bounds, market
from verax.money import major_text, minor_units, scale_of
from verax.payments import Payment, Payments, pay
from verax.plan import Mechanism
from verax.public import Public
from verax.reports import Reports, some
from verax.rules import DEFAULT, Rule, load
from verax.score import Score, Scores, score

Content = Mapping[str, Any]
FIRST, CLUSTERS = "first", "clusters"
_LISTS = ("tasks", "classes", "truth", "public", "unpaid", "references")


@dataclass(frozen=True)
class Spec(wire.Document):
    """What a round asks and promises: fixed, and hashed, when it opens.

    `kind` is batch or market. `rule` is a name, or your own as module:function, importable where the round is run.
    `truth` (a class number a task, -1 unknown) and `public` (a stratum, or a list of numbers, a task) are optional;
    `scale` is what a market pays for one unit of score, in major units, the budget if not given. Agents that are copies
    of one another are paid once: by `copies` the "first" to commit and the others nothing, or with True in equal parts;
    with "clusters" so is whoever shares errors (`verax.independence`); with False each is paid, as in a market, which
    pays for what each adds. `unpaid` names agents that handed in a report and take no part: not paid,
    and no reference; `references` names those whose reports others are scored beside, and who, as their
    copies, were paid for them before; `significance` pays only scores that many standard errors above 0. `admitted` are
    the public keys of the only agents that may take part, by name, `organisations` whose they are; with `invited` so
    may whoever brings an invitation; without both whoever comes first with a name has it. `per_organisation` is how
    many names one organisation may have (1), `quota` how often one agent may hand in.

    >>> Spec("r1", ("t1", "t2"), ("cat", "dog"), "100.00", copies=False).digest[:8]
    'fe24af23'
    """

    round: str
    tasks: tuple[str, ...]
    classes: tuple[str, ...]
    budget: str
    kind: str = "batch"
    currency: str = "EUR"
    rule: str = DEFAULT
    over: str | None = None
    sign: str | None = None
    floor: float | None = None
    scheme: str = "clipped"
    min_tasks: int = 30
    scale: str | None = None
    deadline: str | None = None
    truth: tuple[int, ...] | None = None
    public: tuple[Any, ...] | None = None
    copies: Literal["first", "clusters"] | bool = wire.if_given("first")
    unpaid: tuple[str, ...] = wire.if_given(())
    significance: float | None = wire.if_given(None)
    references: tuple[str, ...] = wire.if_given(())
    admitted: dict[str, str] | None = wire.if_given(None)
    organisations: dict[str, str] | None = wire.if_given(None)
    invited: bool = wire.if_given(False)
    per_organisation: int | None = wire.if_given(None)
    quota: int | None = wire.if_given(None)

    def __post_init__(self) -> None:
        for name in _LISTS:
            if isinstance(given := getattr(self, name), list):
                object.__setattr__(self, name, tuple(given))
        if self.kind == "market":
            object.__setattr__(self, "copies", False)

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """A spec from its JSON form; rounds of before said nothing of copies, and paid each of them."""
        return super().from_json({"copies": False, **document} if isinstance(document, Mapping) else document)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical bytes."""
        return digest_of(self.to_json())

    @property
    def places_each(self) -> int:
        """How many names one organisation may have."""
        return 1 if self.per_organisation is None else self.per_organisation

    @cached_property
    def chosen(self) -> Rule:
        """The rule, imported from here if it is one's own."""
        return load(self.rule).with_floor(self.floor)

    @cached_property
    def signal(self) -> npt.NDArray[Any] | None:
        """The public signal as an array."""
        return None if self.public is None else np.array(self.public)

    @property
    def mechanism(self) -> Mechanism:
        """A market's mechanism, as far as what it can pay and cost depends on it."""
        return Mechanism(self.rule, "truth", None, None, self.public is not None, self.chosen.floor)

    def minor(self, amount: str | None = None, what: str = "budget") -> int:
        """An amount, the budget if none is given, in minor units.

        >>> Spec("r1", ("t1", "t2"), ("cat", "dog"), "100.00").minor()
        10000
        """
        return minor_units(self.budget if amount is None else amount, scale_of(self.currency), self.currency, what)

    @property
    def unit(self) -> int:
        """Minor units that a market pays for one unit of score."""
        return self.minor(self.scale or self.budget, "scale")

    def is_closed(self, now: datetime) -> bool:
        """Whether the deadline, if there is one, has passed."""
        return self.deadline is not None and now >= _time_of(self.deadline)


@dataclass(frozen=True)
class Settlement(wire.Document):
    """Who is paid what, in minor units (negative: lost in a market), and all that everybody is shown of it.

    `scores` are those that were paid by: Scores, in a market a Market, None where too few took part. Copies of one
    another stand there with one score; what is not significant, where the spec asks for that, has none. `copies`
    are the certificates that made copies one participant; `payments` is None in a market.

    >>> spec = Spec("r1", ("t1", "t2", "t3"), ("cat", "dog"), "9.00", scheme="proportional", min_tasks=2)
    >>> found = settlement(spec, [("ann", {"labels": [0, 1, 0]}), ("bob", {"labels": [0, 1, 1]})], "", "")
    >>> found.amounts, found.scores["ann"].score, found.payments["bob"].amount
    ({'ann': 450, 'bob': 450}, 0.3333333333333333, 450)
    >>> Settlement.from_json(found.to_json()).scores == found.scores
    True
    """

    amounts: dict[str, int]
    scores: Any
    secret: str
    root: str
    copies: tuple[Certificate, ...] = wire.if_given(())
    notes: tuple[str, ...] = wire.if_given(())
    payments: Payments | None = wire.unwritten(None)

    def __post_init__(self) -> None:
        if isinstance(self.scores, Mapping):
            kind = Market if self.scores.get("format") == wire.MARKET else Scores
            object.__setattr__(self, "scores", kind.from_json(self.scores))

    @classmethod
    def recorded(cls, spec: Spec, document: Any) -> Settlement:
        """A settlement as a ledger keeps it, of a round that asked this."""
        found = cls.from_json(document)
        return replace(found, payments=_payments_of(spec, found.amounts, found.notes))


def _payments_of(spec: Spec, amounts: Mapping[str, int], notes: tuple[str, ...] = ()) -> Payments | None:
    """The amounts of a batch as payments out of its budget."""
    if spec.kind == "market":
        return None
    budget, each = spec.minor(), tuple(Payment(agent, amount) for agent, amount in amounts.items())
    rest = budget - sum(amounts.values())
    return Payments(spec.scheme, spec.currency, scale_of(spec.currency), budget, rest, each, notes)


def digest_of(document: Any) -> str:
    """SHA-256 of a document's canonical bytes.

    >>> digest_of(["r1"])[:8]
    '38edd8d1'
    """
    return hashlib.sha256(wire.canonical(document).encode("ascii")).hexdigest()


def commitment(round: str, agent: str, content: Content, nonce: str) -> str:
    """Binds round, agent and content: SHA-256 over their canonical form, with a nonce so that it cannot be guessed.

    >>> commitment("r1", "ann", {"labels": [0, 1]}, "n") != commitment("r1", "bob", {"labels": [0, 1]}, "n")
    True
    """
    return digest_of([round, agent, content, nonce])


def nonce_of(secret: str, round: str, agent: str, content: Content) -> str:
    """The same for the same submission, so that a repeated request is the same; secret until settlement."""
    return hmac.new(secret.encode(), digest_of([round, agent, content]).encode(), hashlib.sha256).hexdigest()


def nothing_said(spec: Spec) -> Content:
    """A submission that answers no task: what stands for one that cannot be opened."""
    found: dict[str, Any] = {"labels": [-1] * len(spec.tasks)}
    if spec.chosen.needs_rows:
        found["probabilities"] = _packed_rows(np.full((len(spec.tasks), len(spec.classes)), np.nan))
    return found


def content_of(report: Reports, spec: Spec) -> dict[str, Any]:
    """One agent's report in the canonical form that is committed to: labels in the order of the tasks."""
    if not isinstance(report, Reports):
        raise InputError(f"a report is a {type(report).__name__}; give Reports of one agent, as verax.read makes them")
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
    if report.probabilities is None:
        if spec.chosen.needs_rows:
            raise InputError(f"the round's rule {spec.rule} needs probabilities; add p:<class> columns")
        return {"labels": labels}
    rows = np.where((np.array(order) >= 0)[:, None], report.probabilities[0][order], np.nan)
    return {"labels": labels, "probabilities": _packed_rows(rows)}


def reports_of(spec: Spec, rows: Sequence[tuple[str, Content]]) -> Reports:
    """The reports of (name, content) pairs; refuses what could not be settled."""
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
    return reports if spec.public is None else replace(reports, public=spec.signal)


def settlement(spec: Spec, submissions: Sequence[tuple[str, Content]], secret: str, root: str) -> Settlement:
    """Scores and payments of a sealed transcript: a pure function, so that anybody can compute it again."""
    if spec.kind == "market":
        return _market_settlement(spec, submissions, secret, root)
    seed = hashlib.sha256(f"{root}:{secret}".encode()).hexdigest() if spec.over == "one" else None
    truth = None if spec.truth is None else np.array(spec.truth)
    everybody = reports_of(spec, sorted(submissions, key=lambda taken: taken[0]))
    nothing = dict.fromkeys(everybody.agents, 0)
    reports = everybody.only(*(i for i, agent in enumerate(everybody.agents) if agent not in spec.unpaid))
    if spec.unpaid and len(reports.agents) < (2 if truth is None else 1):
        return Settlement(nothing, None, secret, root, payments=_payments_of(spec, nothing))
    twins = [c for c in copies(reports, CONFIDENCE) if c.verdict == "fails"] if spec.copies else []
    alike = [*(clusters_of(twins) if twins else ()), *(_clusters(reports, truth) if spec.copies == CLUSTERS else ())]
    groups = _in_order([agent for agent, _ in submissions if agent in reports.agents], joined(alike))
    # numpy: what is not label against label is then summed in one order wherever it is computed again
    found = score(
        reports, truth, rule=spec.chosen, over=spec.over, sign=spec.sign, seed=seed, copies=groups, backend="numpy"
    )
    told = _scores_of(found, {*reports.agents} - {*spec.references})
    scores = _payable_scores(_of_the_first(told) if spec.copies == FIRST else told, spec)
    before = {agent for group in groups if {*group} & {*spec.references} for agent in group}
    payable = _scores_of(scores, {*reports.agents} - before)
    paid = pay(
        payable, budget=_budget_for(spec, payable, len(scores.scores)), currency=spec.currency, scheme=spec.scheme,
        min_tasks=spec.min_tasks, rule=spec.chosen,
    )  # fmt: skip
    amounts = nothing | {p.agent: p.amount for p in paid}
    due = replace(paid, payments=tuple(map(Payment, amounts, amounts.values())))
    return Settlement(amounts, scores, secret, root, tuple(twins), paid.notes, due)


def _scores_of(scores: Scores, agents: Collection[str]) -> Scores:
    """The scores of some agents only."""
    groups = (tuple(name for name in group if name in agents) for group in scores.copies)
    kept = tuple(s for s in scores if s.agent in agents)
    return replace(scores, scores=kept, copies=tuple(group for group in groups if len(group) > 1))


def _budget_for(spec: Spec, payable: Scores, asked: int) -> str:
    """The budget; beside references, that part of it which is for as many as are left when copies are one."""
    if not spec.references:
        return spec.budget
    alike = sum(len(group) - 1 for group in payable.copies)
    places = scale_of(spec.currency)
    return major_text(spec.minor() * (len(payable.scores) - alike) // asked, places)


def _clusters(reports: Reports, truth: npt.NDArray[Any] | None) -> list[tuple[str, ...]]:
    """Who shares errors; nobody where there is too little to judge it by."""
    try:
        return [cluster.agents for cluster in independence(reports, truth).clusters]
    except InputError:
        return []


def _in_order(agents: Sequence[str], groups: Iterable[Collection[str]]) -> list[list[str]]:
    """Each group of copies in the order in which they committed; the first is the original."""
    place = {agent: n for n, agent in enumerate(agents)}
    found = [sorted(group, key=place.__getitem__) for group in groups]
    return found if len(agents) - sum(len(group) - 1 for group in found) > 1 else []  # else nobody is left to compare


def _of_the_first(scores: Scores) -> Scores:
    """The scores without those of later copies: they committed to what somebody else had committed to."""
    original = {name: group[0] for group in scores.copies for name in group[1:]}
    kept = tuple(replace(s, score=None, stderr=None) if s.agent in original else s for s in scores)
    said = [f"no score for {name!r}: a copy of {first!r}, who committed first" for name, first in original.items()]
    return replace(scores, scores=kept, warnings=(*scores.warnings, *said))


def _payable_scores(scores: Scores, spec: Spec) -> Scores:
    """The scores with those taken away that are not significant enough for the spec, so that no scheme pays them."""
    if spec.significance is None:
        return scores
    least = spec.significance * _lost_dimensions(spec)

    def unsure(s: Score) -> bool:
        return s.score is not None and s.stderr is not None and s.score < least * s.stderr

    lost = [f"{s.agent} ({s.score:.4f} ± {s.stderr:.4f})" for s in scores.scores if unsure(s)]
    if not lost:
        return scores
    said = f"no score for {some(lost)}: not {least:.3g} standard errors above 0"
    kept = tuple(replace(s, score=None, stderr=None) if unsure(s) else s for s in scores.scores)
    return replace(scores, scores=kept, warnings=(*scores.warnings, said))


def _lost_dimensions(spec: Spec) -> float:
    """By how much features that take out many dimensions make a standard error too small: tasks over what is left."""
    signal = Public.of(spec.signal, len(spec.tasks))
    return len(spec.tasks) / max(len(spec.tasks) - signal.rank, 1) if signal.features is not None else 1.0


def _market_settlement(spec: Spec, submissions: Sequence[tuple[str, Content]], secret: str, root: str) -> Settlement:
    steps = [(str(n), content) for n, (_, content) in enumerate(submissions, start=1)]
    path = Submissions(reports_of(spec, steps), tuple(agent for agent, _ in submissions))
    found = market(path, truth=np.array(spec.truth), rule=spec.chosen, sign=spec.sign)
    return Settlement(found.money(spec.unit).totals, found, secret, root)


def check_spec(spec: Spec) -> None:
    """Refuse what could not be settled later, by settling it now on reports that say nothing."""
    if not isinstance(spec, Spec):
        raise InputError(f"spec is a {type(spec).__name__}; give verax.rounds.Spec")
    Spec.from_json(spec.to_json())
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
        _time_of(spec.deadline)
    for name, key in (spec.admitted or {}).items():
        checked_public(key, f"the agent {name!r}")
    if spec.kind == "market":
        _check_loss(spec)
    nothing: dict[str, Any] = {"labels": [0] * len(spec.tasks)}
    if spec.chosen.needs_rows:
        nothing["probabilities"] = _packed_rows(np.full((len(spec.tasks), len(spec.classes)), 1 / len(spec.classes)))
    settlement(spec, [("one", nothing), ("other", nothing)], "", "")


def _check_loss(spec: Spec) -> None:
    if spec.truth is None or min(spec.truth) < 0:
        raise InputError(
            "a market round is closed by the truth of every task; give it (it is not shown before settlement)"
        )
    loss = math.ceil(max(bounds(spec.mechanism)[1], 0.0) * spec.unit)
    if loss > spec.minor():
        raise InputError(
            f"the house can lose {loss} minor units and the budget is {spec.minor()}; lower scale= or raise budget="
        )


def _packed_rows(rows: Any) -> str:
    return base64.b64encode(rows.astype("<f8").tobytes()).decode("ascii")


def _time_of(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"deadline {text!r} is no time; write it as 2026-12-31T18:00:00+00:00") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
