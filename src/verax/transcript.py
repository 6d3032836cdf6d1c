"""A round's transcript, and what follows from it: pure functions, so that anybody can compute a settlement again.

What was submitted (as it is committed to) and what becomes of it (a Settlement): one object
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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from verax import wire
from verax.audit.certificate import Certificate
from verax.audit.copies import copies
from verax.audit.independence import independence
from verax.copies import CONFIDENCE
from verax.errors import InputError, UnscoredError
from verax.examined import Sat, Terms, results, stakes_of
from verax.groups import clusters_of, joined
from verax.keys import checked_public
from verax.market import Market, Submissions, Survey, draw, market, survey_bound
from verax.money import is_finite, major_text, scale_of
from verax.payments import Payment, Payments, pay
from verax.public import Public
from verax.reports import Reports, some
from verax.score import Score, Scores, score
from verax.shape import check_table
from verax.spec import CLUSTERS, FIRST, KINDS, Spec, digest_of
from verax.topk import WORTH_LISTING, TopK

Content = Mapping[str, Any]


@dataclass(frozen=True)
class Settlement(wire.Document):
    """Who is paid what, in minor units (negative: lost in a market), and all that everybody is shown of it.

    `scores` are those that were paid by: Scores, in a market a Market, None where too few took part. Copies of one
    another stand there with one score; what is not significant, where the spec asks for that, has none. `copies`
    are the certificates that made copies one participant; `stakes` is what was held of everybody in an exam, which an
    amount is beside and a payment contains; `payments` is None in a market.

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
    stakes: dict[str, int] | None = wire.if_given(None)
    chance: str = wire.if_given("")
    forfeits: dict[str, int] | None = wire.if_given(None)

    def __post_init__(self) -> None:
        if isinstance(self.scores, Mapping):
            kind = Market if self.scores.get("format") == wire.MARKET else Scores
            object.__setattr__(self, "scores", kind.from_json(self.scores))

    @property
    def due(self) -> dict[str, int]:
        """What every agent gains or loses in all: its amount, and what it forfeits or is given of what others do."""
        forfeits = self.forfeits or {}
        agents = dict.fromkeys([*self.amounts, *forfeits])
        return {agent: self.amounts.get(agent, 0) + forfeits.get(agent, 0) for agent in agents}

    @classmethod
    def recorded(cls, spec: Spec, document: Any) -> Settlement:
        """A settlement as a ledger keeps it, of a round that asked this."""
        found = cls.from_json(document)
        return replace(found, payments=_payments_of(spec, found.amounts, found.notes, found.stakes))


def _payments_of(
    spec: Spec, amounts: Mapping[str, int], notes: tuple[str, ...] = (), stakes: Mapping[str, int] | None = None
) -> Payments | None:
    """The amounts of a batch as payments out of its budget, and of stakes where some were held."""
    if spec.is_market:
        return None
    held = stakes or {}
    each = tuple(Payment(agent, amount + held.get(agent, 0)) for agent, amount in amounts.items())
    budget, rest = spec.minor() + sum(held.values()), spec.minor() - sum(amounts.values())
    return Payments(spec.scheme, spec.currency, scale_of(spec.currency), budget, rest, each, notes)


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
    return _said_throughout(spec, -1, math.nan)


def _said_throughout(spec: Spec, label: int, share: float) -> dict[str, Any]:
    """A submission with one label for every task, and where rows are asked one share for every label."""
    found: dict[str, Any] = {"labels": [label] * len(spec.tasks)}
    if not spec.chosen.needs_rows:
        return found
    if len(spec.tasks) * len(spec.classes) <= WORTH_LISTING:
        return found | {"probabilities": _packed_rows(np.full((len(spec.tasks), len(spec.classes)), share))}
    listed, shares = np.full(len(spec.tasks), label), np.full(len(spec.tasks), 0.0 if label < 0 else share)
    return found | {"listed": _packed_labels(listed), "shares": _packed_rows(shares)}


def content_of(report: Reports, spec: Spec) -> dict[str, Any]:
    """One agent's report in the canonical form that is committed to: labels in the order of the tasks."""
    if spec.exam is not None:
        raise InputError(f"round {spec.round!r} is an exam, which a federation records; it takes no report")
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
    absent = np.array(order) < 0
    if isinstance(report.probabilities, TopK):
        listed = report.probabilities[0][order]
        shares = np.where(absent[:, None], 0.0, listed.shares)
        listed_labels = _packed_labels(np.where(absent[:, None], -1, listed.labels))
        return {"labels": labels, "listed": listed_labels, "shares": _packed_rows(shares)}
    rows = np.where(absent[:, None], np.nan, report.probabilities[0][order])
    return {"labels": labels, "probabilities": _packed_rows(rows)}


def reports_of(spec: Spec, rows: Sequence[tuple[str, Content]]) -> Reports:
    """The reports of (name, content) pairs; refuses what could not be settled."""
    labels = np.array([content["labels"] for _, content in rows], dtype=np.int64).reshape(len(rows), len(spec.tasks))
    given = [content.get("probabilities") for _, content in rows]
    probabilities: Any = None
    if given and all(given):
        shape = (len(rows), len(spec.tasks), len(spec.classes))
        probabilities = np.frombuffer(b"".join(base64.b64decode(g or "") for g in given), dtype="<f8").reshape(shape)
    elif given and all("listed" in content or "probabilities" in content for _, content in rows):
        probabilities = TopK.stack([_listed_of(content, spec) for _, content in rows])
    names = [name for name, _ in rows]
    reports = Reports.of(
        labels, probabilities, agents=names, tasks=spec.tasks, classes=spec.classes, source="the round"
    )
    return reports if spec.public is None else replace(reports, public=spec.signal)


def _listed_of(content: Content, spec: Spec) -> TopK:
    """The likeliest labels of each row as they were handed in; all of them where whole rows were."""
    if "listed" not in content:
        rows = np.frombuffer(base64.b64decode(content["probabilities"]), "<f8").reshape(len(spec.tasks), -1)
        return TopK.of_rows(rows, len(spec.classes))
    labels, shares = (
        np.frombuffer(base64.b64decode(content[name]), kind).reshape(len(spec.tasks), -1)
        for name, kind in (("listed", "<i4"), ("shares", "<f8"))
    )
    return TopK.of(labels, shares, len(spec.classes))


class Transcript(NamedTuple):
    """All that a settlement follows from: what was asked, what was submitted, and what draws are made from.

    `chance` is what nobody knew before the sealing: beacon and nonces. `withheld` has, for everything that was
    committed to and not shown, who and whether it was a step of the market.
    """

    spec: Spec
    submissions: Sequence[tuple[str, Content]]
    secret: str
    root: str
    chance: str = ""
    withheld: Sequence[tuple[str, bool]] = ()


def settlement(
    spec: Spec,
    submissions: Sequence[tuple[str, Content]],
    secret: str,
    root: str,
    chance: str = "",
    withheld: Sequence[tuple[str, bool]] = (),
) -> Settlement:
    """Scores and payments of a sealed transcript: a pure function, so that anybody can compute it again."""
    seed = hashlib.sha256(f"{root}:{secret}{chance and ':'}{chance}".encode()).hexdigest()
    if spec.is_surveyed:
        found = _surveyed_settlement(spec, submissions, seed)
    elif spec.kind == "market":
        found = _market_settlement(spec, submissions)
    elif spec.exam is not None:
        found = _exam_settlement(spec, spec.exam, submissions)
    else:
        found = _batch_settlement(spec, submissions, seed)
    forfeits = _forfeits(spec, {agent for agent, _ in submissions}, withheld)
    return replace(found, secret=secret, root=root, chance=chance, forfeits=forfeits or None)


def _forfeits(spec: Spec, showed: Collection[str], withheld: Sequence[tuple[str, bool]]) -> dict[str, int]:
    """What those lose who did not show what they committed to, in equal parts to those who did.

    So it is no use to whoever runs the round; what cannot be shared equally goes back to the payer.
    """
    found = dict.fromkeys(sorted({agent for agent, _ in withheld}), 0)
    others = sorted({*showed} - {*found})
    answers = {agent for agent, step in withheld if not step}
    for agent, step in withheld:
        found[agent] -= spec.stake if step else 0
    for agent in answers:
        found[agent] -= spec.held
    each = -sum(found.values()) // len(others) if others else 0
    return found | (dict.fromkeys(others, each) if each else {})


def _batch_settlement(
    spec: Spec, submissions: Sequence[tuple[str, Content]], seed: str, each: int | None = None
) -> Settlement:
    """A batch: everybody beside everybody else, out of the budget, or of `each` minor units a participant."""
    truth = None if spec.truth is None else np.array(spec.truth)
    everybody = reports_of(spec, sorted(submissions, key=lambda taken: taken[0]))
    nothing = dict.fromkeys(everybody.agents, 0)
    reports = everybody.only(*(i for i, agent in enumerate(everybody.agents) if agent not in spec.unpaid))
    if len(reports.agents) < (2 if truth is None else 1):
        return Settlement(nothing, None, "", "", payments=_payments_of(spec, nothing))
    twins = [c for c in copies(reports, CONFIDENCE) if c.verdict == "fails"] if spec.copies else []
    alike = [*(clusters_of(twins) if twins else ()), *(_clusters(reports, truth) if spec.copies == CLUSTERS else ())]
    groups = _in_order([agent for agent, _ in submissions if agent in reports.agents], joined(alike))
    # numpy: what is not label against label is then summed in one order wherever it is computed again
    drawn = seed if spec.over == "one" else None
    found = score(
        reports, truth, rule=spec.chosen, over=spec.over, sign=spec.sign, seed=drawn, copies=groups, backend="numpy"
    )
    told = _scores_of(found, {*reports.agents} - {*spec.references})
    scores = _payable_scores(_of_the_first(told) if spec.copies == FIRST else told, spec)
    before = {agent for group in groups if {*group} & {*spec.references} for agent in group}
    payable = _scores_of(scores, {*reports.agents} - before)
    budget = _budget_for(spec, payable, len(scores.scores), each)
    paid = pay(
        payable,
        budget=budget,
        currency=spec.currency,
        scheme=spec.scheme,
        min_tasks=spec.min_tasks,
        rule=spec.chosen,
        full_marks=spec.full_marks,
    )
    amounts = nothing | {p.agent: p.amount for p in paid}
    due = replace(paid, payments=tuple(map(Payment, amounts, amounts.values())))
    return Settlement(amounts, scores, "", "", tuple(twins), paid.notes, payments=due)


def _scores_of(scores: Scores, agents: Collection[str]) -> Scores:
    """The scores of some agents only."""
    groups = (tuple(name for name in group if name in agents) for group in scores.copies)
    kept = tuple(s for s in scores if s.agent in agents)
    return replace(scores, scores=kept, copies=tuple(group for group in groups if len(group) > 1))


def _budget_for(spec: Spec, payable: Scores, asked: int, each: int | None) -> str:
    """The budget; beside references, that part of it which is for as many as are left when copies are one."""
    if not spec.references and each is None:
        return spec.budget
    participants = len(payable.scores) - sum(len(group) - 1 for group in payable.copies)
    share = spec.minor() * participants // asked if each is None else each * participants
    return major_text(share, scale_of(spec.currency))


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


def _market_settlement(spec: Spec, submissions: Sequence[tuple[str, Content]]) -> Settlement:
    found = _closed(spec, submissions)
    amounts = dict.fromkeys([agent for agent, _ in submissions], 0) if found is None else found.money(spec.unit).totals
    return Settlement(amounts, found, "", "")


def _surveyed_settlement(spec: Spec, submissions: Sequence[tuple[str, Content]], seed: str) -> Settlement:
    """A market beside a survey. (Algorithm 2)

    1. The surveyed are paid for their scores beside each other. 2. One of them is drawn, of those who hold no market
    position. 3. By it the market is closed, lambda times as steep. Who answers fewer than the least tasks, or is a
    later copy of another, is not drawn.
    """
    surveyed = [(agent, content) for agent, content in submissions if content.get("survey")]
    steps = [(agent, content) for agent, content in submissions if not content.get("survey")]
    asked = replace(spec, kind="batch")
    paid = _answers_settlement(asked, surveyed, seed, math.floor(spec.top * spec.unit))
    survey = reports_of(asked, sorted(surveyed, key=lambda taken: taken[0]))
    later = {name for group in (paid.scores.copies if paid and paid.scores else ()) for name in group[1:]}
    both = {*()} if spec.keep_both else {*survey.agents} & {agent for agent, _ in steps}
    enough = (survey.labels >= 0).sum(1) >= max(2, spec.min_tasks)
    able = [i for i, agent in enumerate(survey.agents) if enough[i] and agent not in later | both]
    amounts = dict.fromkeys([agent for agent, _ in submissions], 0) | (paid.amounts if paid else {})
    scores: Any = paid.scores if paid else None
    one = survey.only(able[draw(seed, len(able))]) if able else None
    if one is not None and (found := _closed(spec, steps, survey=one, hybrid=spec.kind == "hybrid")) is not None:
        for agent, amount in found.money(spec.unit).totals.items():
            amounts[agent] += amount
        shown = () if scores is None else scores.scores  # as they were paid by
        bound = survey_bound(survey, spec.steepness, spec.chosen, spec.sign) if spec.keep_both else None
        drawn = Survey(one.agents[0], seed, len(surveyed), tuple(sorted(both)), shown, bound)
        scores = replace(found, survey=drawn)
    return Settlement(amounts, scores, "", "", paid.copies if paid else (), paid.notes if paid else ())


def _closed(spec: Spec, submissions: Sequence[tuple[str, Content]], **by: Any) -> Market | None:
    """A market closed; None where no step has said enough to be scored, which must not keep a round from its end."""
    if not submissions:
        return None
    truth = None if spec.truth is None else np.array(spec.truth)
    numbered = [(str(n), content) for n, (_, content) in enumerate(submissions, start=1)]
    path = Submissions(reports_of(spec, numbered), tuple(agent for agent, _ in submissions))
    options: dict[str, Any] = {"rule": spec.chosen, "sign": spec.sign, "keep_both": spec.keep_both}
    try:
        return market(path, truth=truth, scale=spec.steepness, **options, **by)
    except UnscoredError:
        return None


def _answers_settlement(spec: Spec, surveyed: Sequence[tuple[str, Content]], seed: str, each: int) -> Settlement | None:
    """What the surveyed are paid; None where nobody has said enough to be scored, which must not keep a market open."""
    try:
        return _batch_settlement(spec, surveyed, seed, each)
    except UnscoredError:
        return None


def _exam_settlement(spec: Spec, terms: Terms, submissions: Sequence[tuple[str, Content]]) -> Settlement:
    """What all rounds of an exam pay together; a loss is out of the agent's stake."""
    sats = [Sat.from_json(content) for _, content in submissions]
    found = results(terms, spec.budget, spec.currency, spec.classes, sats)
    stakes = stakes_of(sats) or None
    if found is None:
        nothing = dict.fromkeys(sorted({agent for sat in sats for agent in sat.replied}), 0)
        return Settlement(nothing, None, "", "", (), (), _payments_of(spec, nothing, (), stakes), stakes)
    scores, paid = found
    amounts = {p.agent: p.amount - (stakes or {}).get(p.agent, 0) for p in paid}
    due = _payments_of(spec, amounts, paid.notes, stakes)
    return Settlement(amounts, scores, "", "", (), paid.notes, due, stakes)


def check_spec(spec: Spec) -> None:
    """Refuse what could not be settled later, by settling it now on reports that say nothing."""
    if not isinstance(spec, Spec):
        raise InputError(f"spec is a {type(spec).__name__}; give verax.rounds.Spec")
    Spec.from_json(spec.to_json())
    if spec.kind not in KINDS:
        raise InputError(f"a round is {', '.join(KINDS[:-1])} or {KINDS[-1]}, not {spec.kind!r}")
    if spec.asks is not None and spec.kind != "batch":
        raise InputError(f"models are asked for in a batch, not in a {spec.kind}; leave asks= out, or kind=")
    if not spec.round or ":" in spec.round or spec.round != spec.round.strip():
        raise InputError(f"round name {spec.round!r}; give one without colons or blanks around it")
    tasks = len(spec.tasks) if spec.exam is not None else max(2, len(spec.tasks))
    if len(set(spec.tasks)) < tasks or len(set(spec.classes)) < max(2, len(spec.classes)):
        raise InputError("a round needs two different tasks and two different classes at least, each named once")
    if spec.copies == CLUSTERS:  # which looks for shared errors in tables of labels
        check_table(len(spec.classes))
    for name, given in (("truth", spec.truth), ("public signal", spec.public)):
        if given is not None and len(given) != len(spec.tasks):
            raise InputError(f"the {name} has {len(given)} entries for {len(spec.tasks)} tasks; give one a task")
    spec.check_times()
    if spec.sealing is not None and (spec.asks is not None or spec.exam is not None):
        raise InputError("commitments are to reports; models and exams are sealed to the round, so leave sealing= out")
    spec.check_draws()
    for name, key in (spec.admitted or {}).items():
        checked_public(key, f"the agent {name!r}")
    if spec.is_surveyed:
        _check_survey(spec)
    elif spec.places is not None or spec.weight is not None or spec.keep_both:
        raise InputError(f"places=, weight= and keep_both= are of a survey, and this is a {spec.kind} round")
    if spec.is_market:
        if spec.chosen.loses_only:
            raise InputError(f"rule {spec.rule} is never above 0, where a market begins; use one by which one can gain")
        _check_loss(spec)
    if spec.exam is not None:
        spec.exam.check()
        spec.minor()
        return
    nothing = _said_throughout(spec, 0, 1 / len(spec.classes))
    of_survey = {"survey": True} if spec.is_surveyed else {}
    settlement(spec, [("one", nothing | of_survey), ("other", nothing | of_survey), ("third", nothing)], "", "")


def _check_survey(spec: Spec) -> None:
    """Refuse what a survey could not close, or pay for at a price that is fixed beforehand."""
    if (max(spec.truth or (-1,)) >= 0) != (spec.kind == "hybrid"):
        raise InputError(
            "a hybrid round is closed by the truth where it is known; give it" if spec.kind == "hybrid"
            else "a survey round is closed by the survey, and there is a truth; make it hybrid, or leave the truth out"
        )  # fmt: skip
    if spec.places is None or spec.places < 2:
        raise InputError(f"places is {spec.places}; say how many may be surveyed, two at least: they score each other")
    if not is_finite(spec.steepness) or spec.steepness <= 0:
        raise InputError(f"weight (lambda) is {spec.weight}; give a finite number above 0, such as 1.0")
    if spec.scheme == "proportional" or spec.over == "one":
        raise InputError("the surveyed are paid a fixed price; use scheme clipped or affine, over mean or median")
    if spec.min_tasks > len(spec.tasks):
        raise InputError(f"min_tasks is {spec.min_tasks} of {len(spec.tasks)} tasks, so nobody can be drawn; lower it")


def _check_loss(spec: Spec) -> None:
    if spec.kind == "market" and (spec.truth is None or min(spec.truth) < 0):
        raise InputError(
            "a market round is closed by the truth of every task; give it (it is not shown before settlement)"
        )
    if spec.unit < 1:
        raise InputError("the budget does not cover one minor unit for a unit of score; raise budget=, or ask fewer")
    loss = math.ceil(max(spec.top, 0.0) * spec.unit * spec.steepness)
    surveyed = (spec.places or 0) * math.floor(spec.top * spec.unit)
    if loss + surveyed > spec.minor():
        beside = f", {surveyed} of it to the surveyed," if surveyed else ""
        raise InputError(
            f"the house can lose {loss + surveyed} minor units{beside} and the budget is {spec.minor()}; "
            "lower scale= or raise budget="
        )


def _packed_rows(rows: Any) -> str:
    return base64.b64encode(rows.astype("<f8").tobytes()).decode("ascii")


def _packed_labels(labels: Any) -> str:
    return base64.b64encode(labels.astype("<i4").tobytes()).decode("ascii")
