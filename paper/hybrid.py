"""Hybrid pay: a few labels and many peers vary less than the few labels alone. (the paper's remark on few labels)

Agents of accuracy 0.7 on four equally likely labels, independent given the truth, answer N tasks; n of them are
labelled. `hybrid` scores the labelled ones against the truth and the others against peers; `truth` has the labelled
ones alone. A score against peers is smaller than one against the truth, so the standard deviation is shown
as a share of the mean too. Points are the variance over simulated worlds, lines the mean of the reported stderr^2.

    python paper/hybrid.py
"""

import numpy as np
from drawing import BLUE, RED, labelled, leave, options, panels

import verax

SEED, TASKS, AGENTS, LABELS, ACCURACY, WORLDS = 5, 1000, 5, 4, 0.7, 150
LABELLED = (0, 20, 50, 100, 200, 400, 600, 800, 1000)


def worlds():
    """Reports and truth, world after world: a wrong answer is any of the other labels."""
    rng = np.random.default_rng(SEED)
    for _ in range(WORLDS):
        truth = rng.integers(LABELS, size=TASKS)
        wrong = (truth + rng.integers(1, LABELS, size=(AGENTS, TASKS))) % LABELS
        labels = np.where(rng.random((AGENTS, TASKS)) < ACCURACY, truth, wrong)
        yield verax.Reports.of(labels=labels, classes=range(LABELS)), truth


def scored(reports, truth, n, alone):
    """Scores and standard errors (2, agents), with the truth of the first n tasks known."""
    if alone:
        reports = reports.take(np.arange(TASKS) < n)
    known = None if n == 0 else truth[:n] if alone else np.where(np.arange(TASKS) < n, truth, -1)
    return np.transpose([(s.score, s.stderr) for s in verax.score(reports, known).scores])


def summary(runs):
    """From (worlds, 2, agents): mean, variance over worlds, its relative error, and the reported variance."""
    scores, errors = np.array(runs).transpose(1, 0, 2)
    variances = scores.var(0, ddof=1)
    return {"mean": scores.mean(), "variance": variances.mean(), "reported": (errors**2).mean()}


def drawn(rows):
    title = "Peers on the unlabelled tasks steady the pay: hybrid varies less than the labelled tasks alone"
    figure, (left, right) = panels(title, 2, size=(10.5, 4))
    for way, colour, marker, dash in (("hybrid", BLUE, "o", "-"), ("truth", RED, "s", "--")):
        name = "hybrid: truth, and peers elsewhere" if way == "hybrid" else "truth on the labelled tasks alone"
        n = [row["labelled"] for row in rows if way in row]
        found = [row[way] for row in rows if way in row]
        reported = np.array([f["reported"] for f in found])
        simulated, mean = (np.array([f[key] for f in found]) for key in ("variance", "mean"))
        for panel, points, line in (
            (left, simulated, reported),
            (right, np.sqrt(simulated) / mean, np.sqrt(reported) / mean),
        ):
            panel.plot(n, line, color=colour, ls=dash)
            panel.plot(n, points, marker, color=colour, label=name)
    for panel in (left, right):
        panel.set_yscale("log")
        panel.legend()
    labelled(
        left, "points simulated, lines from the reported errors", f"labelled tasks of {TASKS:,}", "variance of pay"
    )
    labelled(right, "the same as a share of the mean", f"labelled tasks of {TASKS:,}", "standard deviation / mean")
    return figure


def main():
    args = options(__doc__)
    runs = {(n, way): [] for n in LABELLED for way in ("hybrid", "truth") if n or way == "hybrid"}
    for reports, truth in worlds():
        for (n, way), found in runs.items():
            found.append(scored(reports, truth, n, alone=way == "truth"))
    rows = [{"labelled": n} | {way: summary(runs[n, way]) for way in ("hybrid", "truth") if (n, way) in runs}
            for n in LABELLED]  # fmt: skip
    for row in rows:
        told = (f"{way}: mean {f['mean']:.4f}, variance {f['variance']:.2e} (reported {f['reported']:.2e})"
                for way, f in row.items() if way != "labelled")  # fmt: skip
        print(f"{row['labelled']:5} labelled; {'; '.join(told)}")
    many = [row for row in rows if row["labelled"] == 0 or row["labelled"] >= 100]
    ratios = [f["reported"] / f["variance"] for row in many for way, f in row.items() if way != "labelled"]
    numbers = {"seed": SEED, "worlds": WORLDS, "tasks": TASKS, "agents": AGENTS, "labels": LABELS,
               "accuracy": ACCURACY, "rows": rows, "reported_over_simulated": [min(ratios), max(ratios)]}  # fmt: skip
    print(f"reported variance / simulated, 100 tasks or more: {min(ratios):.2f} to {max(ratios):.2f}")
    leave(args.out, "hybrid", numbers, drawn(rows))

    for row in rows[1:-1]:
        assert row["hybrid"]["variance"] < row["truth"]["variance"]
        relative = {way: row[way]["variance"] ** 0.5 / row[way]["mean"] for way in ("hybrid", "truth")}
        assert relative["hybrid"] < relative["truth"]
    assert rows[1]["truth"]["variance"] > 20 * rows[1]["hybrid"]["variance"]
    # With every task labelled the two are one.
    assert rows[-1]["hybrid"] == rows[-1]["truth"]
    # At an even prior the score against the truth is accuracy - 1/L.
    assert abs(rows[-1]["truth"]["mean"] - (ACCURACY - 1 / LABELS)) < 0.005
    # A variance over 150 worlds and 5 agents, whose scores are correlated, is known to about a tenth.
    assert min(ratios) > 0.85 and max(ratios) < 1.15
    # On 20 tasks the reported error is too small, as any error learned from 20 tasks is.
    assert rows[1]["truth"]["reported"] < rows[1]["truth"]["variance"]


if __name__ == "__main__":
    main()
