"""Results for people: tables for a terminal, and what goes on a page. Nothing here decides a result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from verax.audit import CODES, Certificate, lying, mean_delta
from verax.page import Curve, DeltaMap, Line, Pairwise, page
from verax.payments import Payments
from verax.score import Prepared, Scores, pairwise

if TYPE_CHECKING:
    from rich.table import Table

_BAR = 20
_OPEN = 2
_MARK = {"fails": "✗", "undecided": "?", "holds": "✓", "not-applicable": "–"}
_STYLE = {"holds": "cyan", "fails": "bold yellow", "undecided": "default", "not-applicable": "dim"}
_RATES = tuple(r / 20 for r in range(11))


def scores_table(scores: Scores) -> Table:
    """Scores, best first, as a rich table.

    >>> from verax import Reports, score
    >>> scores_table(score(Reports.of(labels=[[0, 1, 0], [0, 1, 1]]))).row_count
    2
    """
    table = _table(
        "agent", "score ± stderr", "", "tasks", "references", title=f"{scores.describe()}, {scores.tasks} tasks"
    )
    best = max((s.score for s in scores.scores if s.score is not None), default=0.0)
    for s in scores.ranked():
        table.add_row(
            _plain(s.agent), plus_minus(s.score, s.stderr), bar(s.score, best), str(s.tasks), str(s.references)
        )
    return table


def certificates_table(certificates: Sequence[Certificate]) -> Table:
    """One section a question: the count of verdicts, everything that fails, and the first that are open.

    >>> certificates_table([Certificate("COPIES", "a", "fails", None, None, {"a": "b"}, "a near-duplicate")]).row_count
    2
    """
    table = _table("", "agent", "why", title="certificates")
    for code in CODES:
        mine = [c for c in certificates if c.code == code]
        if not mine:
            continue
        counts = Counter(c.verdict for c in mine)
        told = ", ".join(f"{n} {verdict}" for verdict in _MARK if (n := counts[verdict]))
        table.add_section()
        table.add_row(f"[bold]{code}[/bold]", "", f"[dim]{told}[/dim]")
        failing = [c for c in mine if c.verdict == "fails"]
        unsure = [c for c in mine if c.verdict == "undecided" or (c.agent is None and c.verdict != "fails")]
        for c in failing + unsure[:_OPEN]:
            who = "everybody" if c.agent is None else _plain(c.agent)
            table.add_row(f"[{_STYLE[c.verdict]}]{_MARK[c.verdict]} {c.verdict}[/]", who, _plain(c.why))
        if len(unsure) > _OPEN:
            table.add_row("", "", f"[dim]and {len(unsure) - _OPEN} more undecided: see --html or --json[/dim]")
    return table


def payments_table(payments: Payments) -> Table:
    """Payments, largest first, as a rich table.

    >>> from verax.payments import Payment
    >>> payments_table(Payments("clipped", "EUR", 2, 100, 40, (Payment("ann", 60),))).row_count
    2
    """
    table = _table("agent", payments.currency, title=f"{payments.scheme}, budget {payments.text(payments.budget)}")
    table.columns[1].justify = "right"
    for p in sorted(payments.payments, key=lambda p: (-p.amount, p.agent)):
        table.add_row(_plain(p.agent), payments.text(p.amount))
    table.add_section()
    table.add_row("back to the payer", payments.text(payments.residue))
    return table


def _table(*columns: str, title: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for name in columns:
        numeric = name in ("score ± stderr", "tasks", "references")
        table.add_column(name, justify="right" if numeric else "left", style="cyan" if not name else None)
    return table


def plus_minus(value: float | None, stderr: float | None) -> str:
    """A score as people read it.

    >>> plus_minus(0.61162, 0.00521), plus_minus(None, None)
    ('0.6116 ± 0.0052', 'none')
    """
    if value is None:
        return "none"
    return f"{value:.4f}" if stderr is None else f"{value:.4f} ± {stderr:.4f}"


def bar(value: float | None, best: float) -> str:
    """A bar as long as the value's share of the best.

    >>> bar(0.25, 0.5)
    '██████████'
    """
    if value is None or best <= 0:
        return ""
    return "█" * round(_BAR * max(0.0, value) / best)


def _plain(text: str) -> str:
    """Text that rich must not read as markup."""
    from rich.markup import escape

    return escape(text)


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
    beside = Pairwise(reports.agents, pairwise(ready)) if ready.against != "truth" else None
    return page(
        title,
        scores=scores,
        pairwise=beside,
        delta=DeltaMap(reports.classes, mean_delta(ready), _confusable(certificates, reports.classes)),
        certificates=certificates,
        payments=payments,
        curves=_cost_of_lying(ready, scores),
    )


def _confusable(certificates: Sequence[Certificate], classes: Sequence[str]) -> tuple[tuple[int, int], ...]:
    place = {name: i for i, name in enumerate(classes)}
    named = [c.deviation.items() for c in certificates if c.code == "CATEGORICAL" and c.deviation]
    return tuple(sorted({(place[k], place[m]) for pairs in named for k, m in pairs if k != m}))


def _cost_of_lying(ready: Prepared, scores: Scores) -> tuple[Curve, ...]:
    """What the best, the middle and the last informative agent would score if they lied, in closed form."""
    if not ready.plan.rule.linear:
        return ()
    ranked = [s.agent for s in scores.ranked() if (s.score or 0.0) > 2 * (s.stderr or 0.0)]
    if not ranked:
        return ()
    shown = dict.fromkeys((ranked[0], ranked[len(ranked) // 2], ranked[-1]))
    place = {agent: i for i, agent in enumerate(ready.reports.agents)}
    lines = tuple(Line(a, np.array(_RATES), np.array(lying(ready, place[a], _RATES))) for a in shown)
    return (
        Curve(
            "What a lie costs",
            "share of labels changed to another at random",
            "expected score",
            lines,
            "The score each agent would have had, in expectation over its lies; computed, not simulated.",
        ),
    )
