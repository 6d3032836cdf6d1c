"""The whole story on bundled data: ten real classifiers and four that cheat, with labels and without."""

from __future__ import annotations

from importlib.resources import as_file, files

from rich import box
from rich.console import Console
from rich.table import Table

from verax.files import read, read_truth
from verax.mechanisms import Scores, score
from verax.render import bar, plus_minus
from verax.reports import Reports

_CHEATS = {
    "liar-30%": "lies on 30 %",
    "copycat": "copies tree-80",
    "random": "any digit",
    "always-7": "always says 7",
}


def bundled() -> Reports:
    """Fourteen agents' labels of 897 handwritten digits, with the truth.

    >>> bundled()
    Reports(14 agents, 897 tasks, 10 classes, 0 abstentions)
    """
    with as_file(files("verax") / "data") as folder:
        return read_truth(folder / "digits-truth.csv", read(folder / "digits.csv"))


def run(console: Console) -> None:
    """Score the bundled reports three ways and say what the reader sees."""
    reports = bundled()
    truth = reports.truth
    accuracy = score(reports, truth, rule="accuracy")
    with_labels, without = score(reports, truth), score(reports)
    console.print(
        "\n[bold]Fourteen agents say which digit is on each of 897 images.[/bold] Ten trained a model "
        "(its name ends in the number of images it learned from); four did no honest work.\n"
    )
    console.print(_table(accuracy, with_labels, without))
    console.print(
        "[bold]What you see.[/bold] The last column of scores used [bold]no labels[/bold]: each agent is scored "
        f"only against the other agents' reports, and {_agreement(accuracy, without)}.\n"
        "The same digit every time earns exactly 0, however often it happens to be right; random digits earn 0 within "
        f"their error; lying on 30 % of the images costs {_cost(without, 'knn-400', 'liar-30%')}. "
        "Saying what one's model says pays best.\n"
        "The copycat earns what it copied: a score alone cannot tell a copy from its original.\n"
    )
    console.print(
        "Your own reports: [bold]verax score reports.csv[/bold], columns task,agent,label or task and one an agent."
    )


def _table(accuracy: Scores, with_labels: Scores, without: Scores) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("agent", no_wrap=True)
    table.add_column("accuracy", justify="right", no_wrap=True, min_width=8)
    table.add_column("with labels", justify="right", no_wrap=True)
    table.add_column("without labels", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    best = without.ranked()[0].score or 1.0
    for s in without.ranked():
        known = with_labels[s.agent]
        table.add_row(
            s.agent,
            f"{accuracy[s.agent].score:.3f}",
            plus_minus(known.score, known.stderr),
            plus_minus(s.score, s.stderr),
            f"[dim]{_CHEATS[s.agent]}[/dim]" if s.agent in _CHEATS else bar(s.score, best)[::2],
            style="yellow" if s.agent in _CHEATS else None,
        )
    return table


def _cost(scores: Scores, honest: str, liar: str) -> str:
    return f"{1 - (scores[liar].score or 0.0) / (scores[honest].score or 1.0):.0%}"


def _agreement(accuracy: Scores, without: Scores) -> str:
    honest = [s.agent for s in accuracy.ranked() if s.agent not in _CHEATS]
    ranked = [s.agent for s in without.ranked() if s.agent not in _CHEATS]
    rank = {agent: place for place, agent in enumerate(ranked)}
    moved = sum(abs(place - rank[agent]) for place, agent in enumerate(honest))
    spearman = 1 - 6 * sum((p - rank[a]) ** 2 for p, a in enumerate(honest)) / (len(honest) * (len(honest) ** 2 - 1))
    if not moved:
        return "the honest agents come out in the order of their true accuracies"
    return f"the order of the honest agents agrees with their true accuracies (rank correlation {spearman:.2f})"
