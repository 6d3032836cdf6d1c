"""The whole story on bundled data: ten real classifiers and four that cheat, scored, audited and paid."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verax.audit import Certificate, examine
from verax.groups import groups_among
from verax.payments import Payments, pay
from verax.reports import Reports
from verax.score import Scores, prepare, score, scored
from verax.show.report import report
from verax.show.text import plus_minus, shown
from verax.tables import read, read_truth, write_atomically

_CHEATS = {
    "liar-30%": "lies on 30 %",
    "copycat": "is tree-80",
    "random": "any digit",
    "always-7": "always says 7",
}
_BUDGET = "1000.00"


def bundled() -> Reports:
    """Fourteen agents' labels of 897 handwritten digits, with the truth.

    >>> bundled()
    Reports(14 agents, 897 tasks, 10 classes, 0 abstentions)
    """
    with as_file(files("verax") / "data") as folder:
        return read_truth(folder / "digits-truth.csv", read(folder / "digits.csv"))


def run(console: Console, html: Path) -> None:
    """Score, audit and pay the bundled reports, say what the reader sees, and write the page."""
    reports = bundled()
    known = score(reports, reports.truth)
    ready = prepare(reports)
    _, found = examine(ready)
    without = scored(ready.with_copies(groups_among(reports, found)))
    paid = pay(without, budget=_BUDGET)
    text = report("Fourteen agents, 897 digits, no labels", ready, without, found, paid)
    write_atomically(html, lambda file: file.write(text.encode()))
    console.print(
        "\n[bold]Fourteen agents say which digit is on each of 897 images.[/bold] Ten trained a model (its name "
        "ends in the number of images it learned from); four did no honest work.\n"
    )
    console.print(_results_table(known, without, paid))
    console.print(_scores_told(reports, without))
    console.print(_audit_told(found))
    console.print(_pay_told(paid))
    console.print(f"The page with everything: [bold]{escape(shown(str(html)))}[/bold]")
    console.print("Your own reports: [bold]verax score reports.csv[/bold], then verax audit and verax pay.")


def _results_table(known: Scores, without: Scores, paid: Payments) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("agent", no_wrap=True)
    for heading in ("with labels", "without labels", f"paid, {paid.currency}"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for s in without.ranked():
        table.add_row(
            s.agent,
            plus_minus(known[s.agent].score, known[s.agent].stderr),
            plus_minus(s.score, s.stderr),
            paid.text(paid[s.agent].amount),
            _CHEATS.get(s.agent, ""),
            style="yellow" if s.agent in _CHEATS else None,
        )
    return table


def _scores_told(reports: Reports, without: Scores) -> str:
    lie = 1 - (without["liar-30%"].score or 0.0) / (without["knn-400"].score or 1.0)
    return (
        "[bold]Scores.[/bold] The second column used [bold]no labels[/bold]: each agent is scored only against "
        f"the others' reports (copies count once), and the honest come out {_rank_agreement(reports, without)}. "
        "The same digit every time earns exactly 0, "
        f"random digits 0 within their error; lying on 30 % of the images costs {lie:.0%}.\n"
    )


def _audit_told(found: list[Certificate]) -> str:
    honest = [c for c in found if c.code == "TRUTHFUL" and c.agent not in _CHEATS]
    kept = sum(c.verdict == "holds" for c in honest)
    copies = [c for c in found if c.code == "COPIES" and c.verdict == "fails"]
    noise = [c.agent for c in found if c.code == "INFORMATIVE" and c.verdict != "holds"]
    robust = [c.interval[0] for c in found if c.code == "ROBUST" and c.verdict == "holds" and c.interval]
    return (
        f"[bold]Audit.[/bold] For {kept} of the {len(honest)} honest agents no relabelling of their digits would have "
        f"earned more: honesty was the best reply (for the others more images are needed to say). Not told from noise: "
        f"{' and '.join(map(str, noise))}. Near-duplicates: {' and '.join(str(c.agent) for c in copies)}. "
        f"For {len(robust)} agents honesty still pays if {min(robust):.0%} of the others collude.\n"
    )


def _pay_told(paid: Payments) -> str:
    return (
        f"[bold]Pay.[/bold] Of {paid.text(paid.budget)} {paid.currency} each agent can earn an equal part, if "
        f"its score were the highest possible; the copy and its original are paid once, together; "
        f"{paid.text(paid.residue)} go back to the payer.\n"
    )


def _rank_agreement(reports: Reports, without: Scores) -> str:
    right = dict(zip(reports.agents, (reports.labels == reports.truth).mean(1).tolist(), strict=True))
    honest = sorted((agent for agent in right if agent not in _CHEATS), key=lambda agent: -right[agent])
    rank = {s.agent: place for place, s in enumerate(s for s in without.ranked() if s.agent not in _CHEATS)}
    moved = sum((place - rank[agent]) ** 2 for place, agent in enumerate(honest))
    rho = 1 - 6 * moved / (len(honest) * (len(honest) ** 2 - 1))
    return f"nearly in the order of their true accuracies (rank correlation {rho:.2f})"
