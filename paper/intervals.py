"""Do 95 % intervals of scores hold? Over skilled references and against the consensus, in a grid of sizes.

Every agent knows the label of a task or guesses among all, some often and some rarely; where `left out` is a half,
every agent leaves out half of the tasks. What an interval is to hold is the score that an agent would have on very
many tasks beside the references it had here: the weights, or the tables behind the belief, as these reports made them.
Over skilled references it is r_i (1 - 1/L) times the weighted mean of r_j, where r is how often an agent knows; against
the consensus r_i times how far the belief in the true label is from 1/L, on new tasks. Beside it stands how often they
hold the mean score of many worlds, where references too come out otherwise each time.

    python paper/intervals.py
"""

import math
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy as np
from drawing import BLUE, RED, labelled, leave, options, panels

import verax
from verax.mechanisms.consensus import consensus, folds_of
from verax.mechanisms.skilled import label_pairs, skilled_weights

SIZES, CLASSES, AGENTS, LEFT_OUT, NEW = (200, 1000, 5000), (2, 10), (5, 20), (0.0, 0.5), 5
INTERVALS = {"skilled": 2000, "consensus": 600}  # of all agents together, a case
WAYS = {"skilled": {"over": "skilled"}, "consensus": {"against": "consensus"}}


def drawn_labels(rng, knows, tasks, classes, left_out):
    """Labels of agents that know or guess, and the truth."""
    truth = rng.integers(0, classes, tasks)
    labels = np.where(
        rng.random((len(knows), tasks)) < knows[:, None], truth, rng.integers(0, classes, (len(knows), tasks))
    )
    labels[rng.random(labels.shape) < left_out] = -1
    return labels, truth


def in_the_long_run(way, rng, labels, knows, classes, left_out):
    """Everybody's score on very many tasks beside the references that these reports make."""
    if way == "skilled":
        weights = skilled_weights(*label_pairs(labels, classes, verax.kernels.Engine()))
        return knows * (1 - 1 / classes) * (weights @ knows / weights.sum(1))
    new, truth = drawn_labels(rng, knows, NEW * labels.shape[1], classes, left_out)
    return knows * [share - 1 / classes for share in shares_of_truth(labels, new, truth, classes)]


def shares_of_truth(labels, new, truth, classes):
    """For every agent, how sure of the truth all others are on new tasks, by the tables of their reports here."""
    order = np.argsort([str(k) for k in range(len(labels))])
    fold = folds_of([str(k) for k in range(len(labels))])
    beliefs = {f: consensus(labels[order][fold[order] != f], classes) for f in set(fold.tolist())}
    heard = (new >= 0).sum(0)
    for i in range(len(labels)):
        belief = beliefs[int(fold[i])]
        prior = belief.sum(0) + 0.01
        logs = np.tile(np.log(prior / prior.sum()), (new.shape[1], 1))
        for said, again in zip(np.delete(labels, i, 0), np.delete(new, i, 0), strict=True):
            table = table_of(said, belief, classes)
            worth = max(0.0, (np.trace(table) - 1) / (classes - 1)) * np.log(table)
            logs += np.pad(worth, ((0, 0), (0, 1))).T[again]
        rows = np.exp(logs - logs.max(1, keepdims=True))
        answered = (new[i] >= 0) & (heard > (new[i] >= 0))
        yield (rows[np.arange(len(rows)), truth] / rows.sum(1))[answered].mean()


def table_of(said, belief, classes):
    """What an agent says where the label is k: half counted, half by how often it is right."""
    counts = np.stack([belief[said == k].sum(0) for k in range(classes)], axis=1)
    right = (np.trace(counts) + 0.1) / (counts.sum() + 0.1 * classes)
    even = np.where(np.eye(classes) == 1, right, (1 - right) / (classes - 1))
    return (even + (counts + 0.01) / (counts.sum(1, keepdims=True) + 0.01 * classes)) / 2


def coverage(way, tasks, classes, agents, left_out, intervals=None):
    """The shares of intervals, everybody's in many worlds, that hold the score of the long run and the mean score."""
    knows, found, errors, true = np.linspace(0.35, 0.9, agents), [], [], []
    for seed in range((intervals or INTERVALS[way]) // agents):
        rng = np.random.default_rng([seed, tasks, classes, agents])
        labels, _ = drawn_labels(rng, knows, tasks, classes, left_out)
        reports = verax.Reports.of(labels, classes=[str(k) for k in range(classes)])
        scores = verax.score(reports, **WAYS[way])
        found.append([s.score for s in scores])
        errors.append([1.96 * s.stderr for s in scores])
        true.append(in_the_long_run(way, rng, reports.labels, knows, classes, left_out))
    return tuple(float(np.mean(np.abs(np.array(found) - t) <= errors)) for t in (true, np.mean(found, axis=0)))


def drawn(rows):
    figure, (panel,) = panels("95 % intervals, held by the score of the long run", 1, size=(7, 3.4))
    for way, colour, marker in zip(WAYS, (BLUE, RED), "os", strict=True):
        panel.plot([row[way] for row in rows], marker, color=colour, label=way)
    panel.axhspan(0.92, 0.97, alpha=0.15)
    panel.legend()
    labelled(panel, "the band that was asked for: 0.92 to 0.97", "case, in the order of the table", "share held")
    return figure


def main():
    args = options(__doc__)
    cases = list(product(SIZES, CLASSES, AGENTS, LEFT_OUT))
    asked = [(way, *case) for case in cases for way in WAYS]
    with ProcessPoolExecutor() as pool:
        held = dict(zip(asked, pool.map(coverage, *zip(*asked, strict=True)), strict=True))
    rows = [
        {"tasks": n, "classes": classes, "agents": agents, "left_out": left_out}
        | {way: held[way, n, classes, agents, left_out][0] for way in WAYS}
        | {f"{way}, mean score": held[way, n, classes, agents, left_out][1] for way in WAYS}
        for n, classes, agents, left_out in cases
    ]
    for row in rows:
        print("  ".join(f"{key} {value:g}" for key, value in row.items()))
    error = {way: math.sqrt(0.95 * 0.05 / count) for way, count in INTERVALS.items()}
    leave(args.out, "intervals", {"intervals": INTERVALS, "simulation_error": error, "rows": rows}, drawn(rows))
    for row in rows:  # in the band, up to what so many intervals leave open
        assert 0.92 - 2 * error["skilled"] <= row["skilled"] <= 0.97 + 2 * error["skilled"], row
        few = row["tasks"] < 20 * row["classes"] ** 2 / 5 and row["agents"] < 10
        assert few or 0.92 - 2 * error["consensus"] <= row["consensus"] <= 0.97 + 2 * error["consensus"], row


if __name__ == "__main__":
    main()
