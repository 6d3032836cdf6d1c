"""Comparisons as tables and as a page."""

from __future__ import annotations

from verax.compare import Comparison, Comparisons
from verax.score import RankInterval
from verax.show.page import page
from verax.show.text import Listing, rank_text

_MOST_SHOWN = 40  # comparisons; of more, only those of neighbours


def comparison_listings(found: Comparisons) -> list[Listing]:
    """Every comparison, and the ranks that all of them leave open.

    >>> import verax
    >>> reports = verax.Reports.of([[0, 1] * 9, [0, 0, 1, 1] * 4 + [0, 1]], agents=["ann", "bob"])
    >>> for listing in comparison_listings(verax.compare(reports, truth=[0, 1] * 9)):
    ...     print(listing.title, listing.rows)
    Differences (('ann - bob', '+0.4706 ± 0.1171', '0.0078', '8 of 18', 'ann', ''),)
    Ranks (('ann', '1'), ('bob', '2'))
    """
    place = {r.agent: k for k, r in enumerate(found.ranks)}
    few = len(found) <= _MOST_SHOWN
    shown = [c for c in found if few or place[c.b] == place[c.a] + 1]
    rows = tuple(
        (f"{c.a} - {c.b}", f"{c.difference:+.4f} ± {c.stderr:.4f}", p_text(c.adjusted), f"{c.differ:,} of {c.tasks:,}",
         better_of(c, found.confidence), "" if c.decide is None else f"{c.decide:,}")
        for c in shown
    )  # fmt: skip
    p = "p" if len(found) == 1 else "p (Holm)"
    listings = [
        Listing(
            ("agents", "difference ± stderr", p, "differ", "better", "tasks to tell"),
            rows,
            "Differences" if few else "Differences of neighbours",
        )
    ]
    if found.ranks:
        listings.append(ranks_listing(found.ranks))
    return listings


def ranks_listing(ranks: tuple[RankInterval, ...]) -> Listing:
    """Every agent's ranks, best first."""
    shown = tuple((r.agent, rank_text(r.low, r.high)) for r in ranks)
    return Listing(("agent", "rank"), shown, "Ranks")


def better_of(comparison: Comparison, confidence: float) -> str:
    """Who is better, where that is decided."""
    if not comparison.decided(confidence):
        return "open"
    return comparison.a if comparison.difference > 0 else comparison.b


def p_text(p: float) -> str:
    """A p-value as people read it.

    >>> p_text(0.0213), p_text(3e-7)
    ('0.0213', '< 0.0001')
    """
    return f"{p:.4f}" if p >= 1e-4 else "< 0.0001"


def comparisons_page(found: Comparisons) -> str:
    """The page of comparisons."""
    lead = f"{found.mechanism.describe()}; differences are paired, on the tasks that both answered"
    return page("Compared", lead=lead, notes=found.warnings, listings=comparison_listings(found)[::-1])
