"""Plans of what to label, and what the labels say, as tables, words and pages."""

from __future__ import annotations

from verax.compare import Comparison
from verax.show.comparisons import better_of, p_text
from verax.show.page import page
from verax.show.text import Listing, rank_text
from verax.spotcheck import Accuracies, AgentAccuracy, SpotCheck

_MOST_TASKS, _MOST_AGENTS = 10, 40  # rows shown in a terminal; a document or a page has them all


def plan_listings(made: SpotCheck, most: int | None = _MOST_TASKS) -> list[Listing]:
    """The tasks to label, the first of them, and the errors that are expected.

    >>> from verax.demo import bundled
    >>> from verax.spotcheck import plan_labels
    >>> plan_listings(plan_labels(bundled(), 50, seed="spot"))[0].title
    '50 of 897 tasks to label'
    """
    tasks = tuple((str(k), a.task, f"{a.chance:.3f}") for k, a in enumerate(made.ask[:most], 1))
    more = len(made.ask) - len(tasks)
    foot = ((f"{more:,} more", "", ""),) if more else ()
    title = f"{len(made.ask):,} of {made.tasks:,} tasks to label"
    agents = made.agents[: None if most is None else _MOST_AGENTS]
    rows = tuple((e.agent, f"{e.accuracy:.3f}", f"{e.stderr:.3f}", f"{e.tasks:,}") for e in agents)
    return [
        Listing(("", "task", "chance"), tasks, title, foot),
        Listing(("agent", "accuracy by the others", "error after labelling", "tasks"), rows, "Expected"),
    ]


def plan_words(made: SpotCheck) -> list[str]:
    """What a plan buys, if the answers are to be believed.

    >>> from verax.demo import bundled
    >>> from verax.spotcheck import plan_labels
    >>> print(plan_words(plan_labels(bundled(), 50, seed="spot"))[1])
    Drawn from the seed 'spot'; label in this order, and stop where you like.
    """
    of = "neighbours' differences" if made.about == "order" and made.pairs else "accuracies"
    return [
        f"Expected to tell apart {made.decides:,} of {made.pairs:,} neighbours. For the same errors of {of} it would "
        f"take {made.even:,} evenly drawn labels, or {made.alone:,} without the other agents' answers.",
        f"Drawn from the seed {made.seed!r}; label in this order, and stop where you like.",
    ]


def accuracies_listings(found: Accuracies, most: int | None = _MOST_AGENTS) -> list[Listing]:
    """Everybody's accuracy, likeliest best first, and neighbours' differences.

    >>> from verax.demo import bundled
    >>> from verax.spotcheck import estimate_accuracies
    >>> found = estimate_accuracies(bundled(), bundled().truth)
    >>> accuracies_listings(found)[0].rows[0]
    ('svm-800', '0.9889', '0.9889 to 0.9889', '0.989', '1', '897')
    """
    ranks = {r.agent: rank_text(r.low, r.high) for r in found.ranks}
    rows = tuple(
        (a.agent, "none" if a.accuracy is None else f"{a.accuracy:.4f}", _interval_text(a),
         "none" if a.likely is None else f"{a.likely:.3f}", ranks.get(a.agent, ""), f"{a.labels:,}")
        for a in found.accuracies[:most]
    )  # fmt: skip
    pairs = tuple(_row_of(c, found.confidence) for c in found.neighbours[:most])
    return [
        Listing(
            ("agent", "accuracy", f"{found.confidence:.0%} interval", "likely", "rank", "labels"),
            rows,
            f"Accuracies on {found.tasks:,} tasks, from {found.labels:,} labels",
        ),
        Listing(("agents", "difference ± stderr", "p (Holm)", "better", "labels to tell"), pairs, "Neighbours"),
    ]


def _interval_text(one: AgentAccuracy) -> str:
    return "" if one.interval is None else f"{one.interval[0]:.4f} to {one.interval[1]:.4f}"


def _row_of(c: Comparison, confidence: float) -> tuple[str, ...]:
    return (
        f"{c.a} - {c.b}", f"{c.difference:+.4f} ± {c.stderr:.4f}", p_text(c.adjusted), better_of(c, confidence),
        "" if c.decide is None else f"{c.decide:,}",
    )  # fmt: skip


def accuracies_words(found: Accuracies) -> list[str]:
    """What the labels leave open, and what the other agents' answers are worth.

    >>> from verax.demo import bundled
    >>> from verax.spotcheck import estimate_accuracies
    >>> accuracies_words(estimate_accuracies(bundled(), bundled().truth))[0]
    '1 of 91 pairs of agents are open.'
    """
    said = f"{found.open:,} of {found.pairs:,} pairs of agents are open."
    if found.worth is None or found.labels >= found.tasks:
        return [said]
    if found.worth <= 0:
        return [said, "The other agents' answers save no labels here: do not rely on them for what is right."]
    return [
        said,
        f"The other agents' answers are worth {found.worth:,} more labels, drawn evenly, to the median agent.",
    ]


def plan_page(made: SpotCheck) -> str:
    """The page of a plan."""
    return page("To label", lead=" ".join(plan_words(made)), notes=made.warnings, listings=plan_listings(made, None))


def accuracies_page(found: Accuracies) -> str:
    """The page of what the labels say."""
    lead = " ".join(accuracies_words(found))
    return page("Accuracies", lead=lead, notes=found.warnings, listings=accuracies_listings(found, None))
