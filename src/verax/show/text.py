"""Results as text for a terminal: it decides how a table looks, and that no name is ever obeyed."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verax.audit import CODES, Certificate
from verax.payments import Payments
from verax.rules import resolve
from verax.score import Scores

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from verax.market import Market

_BAR_LENGTH = 20
_OPEN_SHOWN = 2
MARKS = {"fails": "✗", "undecided": "?", "holds": "✓", "not-applicable": "–"}
_STYLE = {"holds": "cyan", "fails": "bold yellow", "undecided": "default", "not-applicable": "dim"}
_WORDS = ("agent", "survey", "why", "")  # columns of words; all others are of numbers


def shown(text: str) -> str:
    """Text whose control, bidirectional and invisible characters are written out: seen, not obeyed.

    >>> print(shown("a\\x1b[31m\\u202eb"))
    a\\x1b[31m\\u202eb
    """
    if text.isprintable():
        return text
    kept = (c.isprintable() or unicodedata.category(c) == "Zs" for c in text)
    return "".join(c if plain else c.encode("unicode_escape").decode() for c, plain in zip(text, kept, strict=True))


@dataclass(frozen=True)
class Listing:
    """A table of words and numbers, the same in a terminal and on a page.

    >>> Listing(("agent", "total"), (("ann", "0.5"),)).numeric
    (False, True)
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    foot: tuple[tuple[str, ...], ...] = ()

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns stand to the right."""
        return tuple(name not in _WORDS for name in self.columns)


def table(listing: Listing) -> Table:
    """A listing as a rich table.

    >>> table(Listing(("agent", "total"), (("ann", "0.5"),))).row_count
    1
    """
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=_plain_text(listing.title) if listing.title else None, title_justify="left")
    for name, numeric in zip(listing.columns, listing.numeric, strict=True):
        made.add_column(_plain_text(name), justify="right" if numeric else "left", style=None if name else "cyan")
    for k, row in enumerate((*listing.rows, *listing.foot)):
        if k == len(listing.rows):
            made.add_section()
        made.add_row(*map(_plain_text, row))
    return made


def _plain_text(text: str, style: str = "") -> Text:
    """Text that rich reads neither as markup nor as commands."""
    from rich.text import Text

    return Text(shown(text), style)


def scores_listing(scores: Scores) -> Listing:
    """Scores, best first.

    >>> from verax import Reports, score
    >>> scores_listing(score(Reports.of(labels=[[0, 1, 0], [0, 1, 1]]))).rows[0][0]
    '0'
    """
    best = max((s.score for s in scores.scores if s.score is not None), default=0.0)
    ranks = {r.agent: (rank_text(r.low, r.high),) for r in scores.ranks}
    rows = (
        (s.agent, plus_minus(s.score, s.stderr), bar(s.score, best), str(s.tasks), str(s.references),
         *ranks.get(s.agent, ()))
        for s in scores.ranked()
    )  # fmt: skip
    columns = ("agent", "score ± stderr", "", "tasks", "references", *(["rank"] if ranks else []))
    return Listing(columns, tuple(rows), f"{scores.describe()}, {scores.tasks} tasks")


def rank_text(low: int, high: int) -> str:
    """The ranks that are open, as people read them.

    >>> rank_text(2, 2), rank_text(1, 4)
    ('2', '1 to 4')
    """
    return str(low) if low == high else f"{low} to {high}"


def payments_listing(payments: Payments) -> Listing:
    """Payments, largest first.

    >>> from verax.payments import Payment
    >>> payments_listing(Payments("clipped", "EUR", 2, 100, 40, (Payment("ann", 60),))).foot
    (('back to the payer', '0.40'),)
    """
    ranked = sorted(payments.payments, key=lambda p: (-p.amount, p.agent))
    rows = tuple((p.agent, payments.text(p.amount)) for p in ranked)
    back = ("back to the payer", payments.text(payments.residue))
    title = f"{payments.scheme}, budget {payments.text(payments.budget)}"
    return Listing(("agent", payments.currency), rows, title, (back,))


def market_listings(closed: Market) -> list[Listing]:
    """Every step, every agent's total, and how the surveyed scored.

    >>> from verax.market import Submissions, market
    >>> path = Submissions.of(labels=[[0, 1, 0], [0, 1, 1]], owners=["ann", "bob"])
    >>> [listing.title for listing in market_listings(market(path, truth=[0, 1, 1]))]
    ['Steps', 'Totals']
    """
    steps = tuple((str(p.step), p.agent, f"{p.level:.4f}", f"{p.score:+.4f}") for p in closed.payments)
    totals = tuple((agent, f"{total:+.4f}") for agent, total in closed.totals().items())
    found = [
        Listing(("step", "agent", "level", "score"), steps, "Steps"),
        Listing(("agent", "total"), totals, "Totals"),
    ]
    if closed.survey is not None:
        scores = tuple((s.agent, "none" if s.score is None else f"{s.score:.4f}") for s in closed.survey.scores)
        found.append(Listing(("survey", "score"), scores, "Survey"))
    return found


def market_summary(closed: Market) -> str:
    """What closed the market, between which levels, and what can be lost.

    >>> from verax.market import Submissions, market
    >>> print(market_summary(market(Submissions.of(labels=[[0, 1, 0]], owners=["ann"]), truth=[0, 1, 1])))
    zero-one, closed by truth, level 0.0000 to 0.3333.
    The house can lose 1 at most, one step 2: its stake.
    """
    by = "truth" if closed.survey is None else f"the survey of {closed.survey.drawn}"
    by = f"truth where known, else {by}" if closed.mechanism.against == "hybrid" else by
    return (
        f"{closed.mechanism.rule}, closed by {by}, level {closed.initial:.4f} to {closed.final:.4f}.\n"
        f"The house can lose {closed.worst_case_loss:.4g} at most, one step {closed.stake:.4g}: its stake."
    )


def market_notes(closed: Market) -> list[str]:
    """What else should be known of a market."""
    mechanism, survey = closed.mechanism, closed.survey
    notes = []
    if resolve(mechanism.rule, mechanism.floor).loses_only and closed.initial == 0:
        notes.append(f"rule {mechanism.rule} is at most 0, where this began: nobody can gain; give initial=")
    if survey is not None:
        if survey.seed is not None:
            drawn_from = survey.agents - len(survey.excluded)
            notes.append(f"{survey.drawn} was drawn from {drawn_from} by the seed {survey.seed}")
        if survey.excluded:
            notes.append(f"not drawn from, for they hold market positions: {', '.join(survey.excluded)}")
        if survey.bound is not None:
            less = f"{survey.bound:.4g} less accurate"
            notes.append(f"who is in both gains by no report, the same in both, that is {less} (Theorem 10)")
    return notes


def certificates_table(certificates: Sequence[Certificate]) -> Table:
    """One section a question: the count of verdicts, everything that fails, and the first that are open.

    >>> certificates_table([Certificate("COPIES", "a", "fails", None, None, {"a": "b"}, "a near-duplicate")]).row_count
    2
    """
    made = table(Listing(("", "agent", "why"), (), "certificates"))
    for code in CODES:
        mine = [c for c in certificates if c.code == code]
        if not mine:
            continue
        counts = Counter(c.verdict for c in mine)
        told = ", ".join(f"{n} {verdict}" for verdict in MARKS if (n := counts[verdict]))
        made.add_section()
        made.add_row(_plain_text(code, "bold"), "", _plain_text(told, "dim"))
        failing = [c for c in mine if c.verdict == "fails"]
        unsure = [c for c in mine if c.verdict == "undecided" or (c.agent is None and c.verdict != "fails")]
        for c in failing + unsure[:_OPEN_SHOWN]:
            verdict = _plain_text(f"{MARKS[c.verdict]} {c.verdict}", _STYLE[c.verdict])
            made.add_row(verdict, _plain_text("everybody" if c.agent is None else c.agent), _plain_text(c.why))
        if len(unsure) > _OPEN_SHOWN:
            more = f"and {len(unsure) - _OPEN_SHOWN} more undecided: see --html or --json"
            made.add_row("", "", _plain_text(more, "dim"))
    return made


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
    return "█" * round(_BAR_LENGTH * max(0.0, value) / best)


def console() -> Console:
    """Standard output; a pipe that closes is an error that can be refused."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError("the pipe was closed")

    return Piped(highlight=False)


@contextmanager
def counting_up(what: str) -> Iterator[Callable[[int, int], None]]:
    """While a person waits, a bar on standard error; call it with how many are done, and of how many."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    err = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def print_line(out: Console, line: str, style: str = "") -> None:
    """One line of words, some of which may be somebody's names."""
    out.print(_plain_text(line, style))
