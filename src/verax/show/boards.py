"""Leaderboards as tables, as Markdown and CSV, and as a page that sorts and searches without any network."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from importlib.resources import files

from verax.leaderboard import Board, Boards, Standing
from verax.show.page import page
from verax.show.text import Listing, plus_minus, rank_text

_COLUMNS = ("rank", "agent", "accuracy ± stderr", "label-free score ± stderr", "log's accuracy", "answers", "no label")
_NAMED = 12  # agents of a group or family


def boards_listings(found: Boards) -> list[Listing]:
    """The order of each set, the overall one first, and what is known of it.

    >>> import verax
    >>> boards = verax.eval({"ann": [*"abab"], "bob": [*"abaa"], "cat": [*"abab"]})
    >>> [listing.title for listing in boards_listings(boards)]
    ['set 1: 3 agents, 4 tasks, by score', 'set 1: neighbours']
    """
    listings = []
    for board in ([found.overall] if found.overall else []) + [*found.sets]:
        rows = tuple(_row(s) for s in board.standings)
        about = f"{len(rows)} agent{'s' if len(rows) != 1 else ''}, {board.tasks:,} tasks, by {board.by}"
        listings.append(Listing(_COLUMNS, rows, f"{board.name}: {about}"))
        if board.neighbours:
            listings.append(_neighbours(board))
    return listings


def _row(s: Standing) -> tuple[str, ...]:
    rank = "" if s.low is None or s.high is None else rank_text(s.low, s.high)
    logged = "" if s.logged is None else f"{s.logged:.4f}"
    measured = plus_minus(s.accuracy, s.accuracy_stderr), plus_minus(s.score, s.score_stderr)
    return rank, s.agent, *measured, logged, f"{s.answered:,}", f"{s.unreadable:,}"


def _neighbours(board: Board) -> Listing:
    rows = tuple(
        (f"{n.a} - {n.b}", f"{n.difference:+.4f} ± {n.stderr:.4f}", f"{n.p_value:.4f}", n.a if n.decided else "open")
        for n in board.neighbours
    )
    return Listing(("agents", "difference ± stderr", "p (Holm)", "better"), rows, f"{board.name}: neighbours")


def _details(board: Board) -> Iterator[Listing]:
    """One row an agent: where it stands alone, and how it does by class."""
    if any(s.alone_count for s in board.standings):
        rows = tuple(
            (s.agent, f"{s.alone_count:,}", "" if s.alone_right is None else f"{s.alone_right:,}", ", ".join(s.alone))
            for s in board.standings
        )
        columns = ("agent", "alone on", "right alone on", "why")
        yield Listing((*columns[:3], ""), rows, f"{board.name}: questions on which an agent stands alone")
    if any(s.by_class for s in board.standings):
        shares = tuple(
            (s.agent, *("" if x is None else f"{x:.3f}" for x in s.by_class)) for s in board.standings if s.by_class
        )
        what = "share right of each true class" if board.by == "accuracy" else "share of answers by class"
        yield Listing(("agent", *board.classes), shares, f"{board.name}: {what}")


def boards_notes(found: Boards) -> list[str]:
    """What else should be known: copies, families, what the panel is worth, and what could not be told.

    >>> import verax
    >>> boards_notes(verax.eval({"ann": [*"abab"], "bob": [*"abaa"]}))[0][:27]
    'set 1: no effective number:'
    """
    notes = []
    for board in found.sets:
        if board.effective is not None:
            notes.append(
                f"{board.name}: {len(board.standings)} agents are worth {board.effective:.1f} independent ones"
            )
        for group in board.copies:
            notes.append(f"{board.name}: copies of one another: {_named(group)}")
        for family in board.families:
            notes.append(f"{board.name}: share errors, worth {family.effective:.1f}: {_named(family.agents)}")
        notes += [f"{board.name}: {note}" for note in board.notes]
    return notes + [f"overall: {note}" for note in (found.overall.notes if found.overall else ())]


def _named(agents: tuple[str, ...]) -> str:
    more = f" and {len(agents) - _NAMED} more" if len(agents) > _NAMED else ""
    return ", ".join(agents[:_NAMED]) + more


def boards_csv(found: Boards) -> str:
    """A row a standing.

    >>> import verax
    >>> boards_csv(verax.eval({"ann": [*"abab"], "bob": [*"abaa"]})).splitlines()[0][:14]
    'set,agent,rank'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    fields = ("low", "high", "accuracy", "accuracy_stderr", "logged", "score", "score_stderr", "answered", "unreadable")
    writer.writerow(("set", "agent", *(f"rank_{name}" if name in ("low", "high") else name for name in fields)))
    for board in ([found.overall] if found.overall else []) + [*found.sets]:
        for s in board.standings:
            agent = f"'{s.agent}" if s.agent[:1] in "=+-@" else s.agent
            writer.writerow((board.name, agent, *(getattr(s, name) for name in fields)))
    return out.getvalue()


def boards_markdown(found: Boards) -> str:
    """A table a set, as Markdown has it.

    >>> import verax
    >>> boards_markdown(verax.eval({"ann": [*"abab"], "bob": [*"abaa"]})).splitlines()[2][:15]
    '| rank | agent '
    """
    lines = []
    for listing in boards_listings(found):
        lines += [f"**{_escaped(listing.title)}**", "", f"| {' | '.join(listing.columns)} |"]
        lines.append(f"|{'|'.join(' ---: ' if numeric else ' --- ' for numeric in listing.numeric)}|")
        lines += [f"| {' | '.join(map(_escaped, row))} |" for row in listing.rows] + [""]
    return "\n".join(lines)


def _escaped(cell: str) -> str:
    return " ".join(cell.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def boards_page(found: Boards) -> str:
    """The page."""
    script = (files("verax.show") / "templates" / "sort.js").read_text(encoding="utf-8")
    details = [listing for board in found.sets for listing in _details(board)]
    names = ", ".join(board.name for board in found.sets)
    return page(
        "Leaderboard", lead=f"{names}; ranks are what paired differences over tasks leave open, all together",
        notes=boards_notes(found), listings=boards_listings(found) + details, script=script,
    )  # fmt: skip
