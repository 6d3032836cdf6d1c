"""What goes on a page of scored reports, or of a closed market; how it looks is decided in `page`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from verax.audit import Certificate, lying, mean_delta
from verax.audit.independence import Excess, independence_of
from verax.errors import InputError
from verax.payments import Payments
from verax.reports import Reports
from verax.score import Prepared, Scores, pairwise
from verax.show.page import Curve, DeltaMap, Line, Pairwise, page
from verax.show.text import market_listings, market_notes, market_summary

if TYPE_CHECKING:
    from verax.market import Market

_RATES = tuple(r / 20 for r in range(11))
_LINES = 6  # as many as can be told apart
_TOLD = 12


def report(
    title: str,
    ready: Prepared,
    scores: Scores,
    certificates: Sequence[Certificate] = (),
    payments: Payments | None = None,
) -> str:
    """The page of scored reports: scores, pairs, labels that go together, lies, and what else is given.

    >>> from verax.demo import bundled
    >>> from verax.score import prepare, scored
    >>> ready = prepare(bundled())
    >>> report("Digits", ready, scored(ready)).startswith("<!doctype html>")
    True
    """
    reports = ready.reports
    beside = Pairwise(reports.agents, pairwise(ready)) if ready.plan.against != "truth" else None
    return page(
        title,
        scores=scores,
        pairwise=beside,
        delta=DeltaMap(reports.classes, mean_delta(ready), _confusable_classes(certificates, reports.classes)),
        certificates=certificates,
        kin=_shared_errors(reports) if certificates else None,
        payments=payments,
        curves=_cost_of_lying(ready, scores),
    )


def _shared_errors(reports: Reports) -> Excess | None:
    """What pairs share beyond all, where that can be judged."""
    try:
        return independence_of(reports).excess
    except InputError:
        return None


def _confusable_classes(certificates: Sequence[Certificate], classes: Sequence[str]) -> tuple[tuple[int, int], ...]:
    place = {name: i for i, name in enumerate(classes)}
    named = [c.deviation.items() for c in certificates if c.code == "CATEGORICAL" and c.deviation]
    return tuple(sorted({(place[k], place[m]) for pairs in named for k, m in pairs if k != m}))


def _cost_of_lying(ready: Prepared, scores: Scores) -> tuple[Curve, ...]:
    """What the best, the middle and the last informative agent would score if they lied, in closed form."""
    ranked = [s.agent for s in scores.ranked() if (s.score or 0.0) > 2 * (s.stderr or 0.0)]
    told = dict.fromkeys((ranked[0], ranked[len(ranked) // 2], ranked[-1]) if ranked else ())
    place = {agent: i for i, agent in enumerate(ready.reports.agents)}
    curves = {agent: lying(ready, place[agent], _RATES) for agent in told}
    # where a lie of rate 0 does not come to the score itself, the rule has no such closed form
    lines = tuple(
        Line(agent, np.array(_RATES), np.array(found))
        for agent, found in curves.items()
        if found and math.isclose(found[0], scores[agent].score or 0.0, abs_tol=1e-9)
    )
    if not lines:
        return ()
    caption = "The score each agent would have had, in expectation over its lies; computed, not simulated."
    return (
        Curve("What a lie costs", "share of labels changed to another at random", "expected score", lines, caption),
    )


def market_page(closed: Market) -> str:
    """The page of a market: its price path, every step, and how what each agent earned adds up.

    >>> from verax.market import Submissions, market
    >>> closed = market(Submissions.of(labels=[[0, 1, 0], [0, 1, 1]], owners=["ann", "bob"]), truth=[0, 1, 1])
    >>> "<h2>Steps</h2>" in market_page(closed)
    True
    """
    lead, notes = " ".join(market_summary(closed).splitlines()), market_notes(closed)
    return page("Market", lead=lead, notes=notes, listings=market_listings(closed), curves=market_curves(closed))


def market_curves(closed: Market) -> tuple[Curve, Curve]:
    """The price path, and how what each agent earned adds up; as many agents as lines can be told apart.

    >>> from verax.market import Submissions, market
    >>> closed = market(Submissions.of(labels=[[0, 1, 0], [0, 1, 1]], owners=["ann", "bob"]), truth=[0, 1, 1])
    >>> [[round(y, 3) for y in line.y] for line in market_curves(closed)[1].lines]
    [[0.0, 0.333, 0.333], [0.0, 0.0, 0.333]]
    """
    steps, totals = [p.step for p in closed.payments], closed.totals()
    steps.insert(0, steps[0] - 1)
    path = Line("level", steps, [closed.initial, *(p.level for p in closed.payments)])
    most = sorted(totals, key=lambda agent: -abs(totals[agent]))[:_LINES]
    told = "; ".join(f"{agent} {total:+.4f}" for agent, total in list(totals.items())[:_TOLD])
    more = f" and {len(totals) - _TOLD} more" if len(totals) > _TOLD else ""
    between = f"From {closed.initial:.4f} to {closed.final:.4f}; the house can lose {closed.worst_case_loss:.4g}."
    earned = tuple(Line(agent, steps, _running_total(closed, agent)) for agent in most)
    return (
        Curve("Price path", "step", "level", (path,), between),
        Curve("What each agent earned", "step", "total score", earned, f"In all: {told}{more}."),
    )


def _running_total(closed: Market, agent: str) -> list[float]:
    return list(accumulate((p.score if p.agent == agent else 0.0 for p in closed.payments), initial=0.0))
