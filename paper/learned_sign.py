"""A sign learned on the tasks it scores pays noise; one learned elsewhere, or the identity, does not.

Agents answer uniformly at random and know nothing of each other. Each entry of their delta is then normal with
standard deviation (1/L)(1 - 1/L)/sqrt(N), and `plugin` keeps the positive ones: L^2 of them at 0.399 standard
deviations each, which is 0.399 (L - 1)/sqrt(N). That needs cells with a few tasks in them, N of 5 L^2 or more;
below, noise earns nearly the most that anything can.

    python paper/learned_sign.py
"""

import math
from itertools import product

import numpy as np
from drawing import BLACK, COLOURS, DASHES, MARKERS, labelled, leave, options, panels

import verax

TASKS = (250, 1000, 4000, 16000)
LABELS = (2, 5, 10, 30, 100)
SIGNS = ("plugin", "split", "identity")
WORLDS, AGENTS = 24, 5
SEED = 7


def predicted(tasks, labels):
    """What independent agents earn by `plugin`."""
    return (labels - 1) / math.sqrt(2 * math.pi * tasks)


def earned(tasks, labels):
    """The mean score of agents that know nothing and its error over worlds, by where the sign comes from."""
    rng = np.random.default_rng([SEED, tasks, labels])
    found = {sign: [] for sign in SIGNS}
    for _ in range(WORLDS):
        reports = verax.Reports.of(labels=rng.integers(labels, size=(AGENTS, tasks)), classes=range(labels))
        for sign in SIGNS:
            scores = verax.score(reports, rule="ca", sign=sign).scores
            found[sign].append(np.mean([s.score for s in scores]))
    return {sign: (np.mean(v), np.std(v, ddof=1) / math.sqrt(WORLDS)) for sign, v in found.items()}


def drawn(found):
    title = "Learned on the tasks it scores, the sign pays noise 0.399 (L - 1)/√N; learned elsewhere it pays nothing"
    figure, (left, right) = panels(title, 2, size=(10.5, 4))
    grid = np.geomspace(TASKS[0], TASKS[-1])
    for labels, colour, marker in zip(LABELS, COLOURS, MARKERS, strict=False):
        line = [min(predicted(n, labels), 1) for n in grid]
        left.plot(grid, line, color=colour, lw=1)
        values = [found[n, labels]["plugin"][0] for n in TASKS]
        left.plot(TASKS, values, marker, color=colour, label=f"L = {labels}")
    left.axhline(1, color=BLACK, lw=0.8, ls=":")
    left.set(xscale="log", yscale="log", ylim=(1e-3, 2))
    left.legend(loc="lower left", ncols=5, columnspacing=0.8, handletextpad=0.1)
    labelled(
        left,
        "plugin: points measured, lines 0.399 (L - 1)/√N, at most 1",
        "tasks N",
        "mean score of agents that know nothing",
    )
    for n, (sign, colour) in enumerate(zip(SIGNS[1:], COLOURS, strict=False)):
        for m, labels in enumerate(LABELS):
            x = np.array(TASKS) * 1.07 ** (m - 2 + 0.4 * n)
            y, error = np.transpose([found[t, labels][sign] for t in TASKS])
            shown = {"color": colour, "marker": MARKERS[n], "ls": "", "label": sign if m == 0 else None}
            right.errorbar(x, y, 2 * error, elinewidth=1, **shown)
    right.axhline(0, color=BLACK, lw=0.8, ls=DASHES[0])
    right.set(xscale="log")
    right.legend()
    labelled(right, "split and identity, L = 2 to 100 from left to right", "tasks N", "mean score, two errors each way")
    return figure


def main():
    args = options(__doc__)
    found = {case: earned(*case) for case in product(TASKS, LABELS)}
    rows = []
    print("    N    L  predicted  plugin    split (error)       identity (error)")
    for (tasks, labels), by in found.items():
        rows.append({"tasks": tasks, "labels": labels, "predicted": predicted(tasks, labels), **by})
        (p, _), (s, s_error), (i, i_error) = by.values()
        print(f"{tasks:6} {labels:3}  {predicted(tasks, labels):.4f}    {p:.4f}   {s:+.5f} ({s_error:.5f})"
              f"  {i:+.5f} ({i_error:.5f})")  # fmt: skip
    dense = [r for r in rows if r["tasks"] >= 5 * r["labels"] ** 2]
    ratios = [r["plugin"][0] / r["predicted"] for r in dense]
    errors = [r[sign][0] / r[sign][1] for r in rows for sign in SIGNS[1:]]
    numbers = {"seed": SEED, "worlds": WORLDS, "agents": AGENTS, "rows": rows, "ratio": [min(ratios), max(ratios)],
               "errors_from_0": max(map(abs, errors))}  # fmt: skip
    print(f"plugin / predicted, N >= 5 L^2: {min(ratios):.3f} to {max(ratios):.3f}")
    print(f"split and identity: at most {numbers['errors_from_0']:.1f} standard errors from 0, of {len(errors)} cases")
    leave(args.out, "learned_sign", numbers, drawn(found))

    assert min(ratios) > 0.9 and max(ratios) < 1.1
    # Of 40 means the furthest is beyond 4 errors once in 45 tries: t with 23 degrees of freedom.
    assert numbers["errors_from_0"] < 4
    # Where labels are many, noise earns more than two agents of accuracy 0.9, who agree on 0.81 of the tasks.
    assert found[1000, 100]["plugin"][0] > 0.81


if __name__ == "__main__":
    main()
