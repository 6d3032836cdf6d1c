"""Results for people: tables for a terminal. Nothing here computes a result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verax.mechanisms import Scores

if TYPE_CHECKING:
    from rich.table import Table

_BAR = 20


def scores_table(scores: Scores) -> Table:
    """Scores, best first, as a rich table.

    >>> from verax import Reports, score
    >>> scores_table(score(Reports.of(labels=[[0, 1, 0], [0, 1, 1]]))).row_count
    2
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=f"{scores.describe()}, {scores.tasks} tasks", title_justify="left")
    table.add_column("agent")
    table.add_column("score ± stderr", justify="right")
    table.add_column("", style="cyan")
    table.add_column("tasks", justify="right")
    table.add_column("references", justify="right")
    best = max((s.score for s in scores.scores if s.score is not None), default=0.0)
    for s in scores.ranked():
        table.add_row(
            _plain(s.agent), plus_minus(s.score, s.stderr), bar(s.score, best), str(s.tasks), str(s.references)
        )
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
