"""What are a few labels worth beside many answers? Accuracies and orders from 20 to 200 labels, the truth hidden.

Rows: public crowds, the 30 public CIFAR-10 models, and two made ones whose consensus is a herd's, which knows little.
Ways: *alone*, the share right among evenly drawn labels; *even*, the same labels and all answers; *order* and
*accuracy*, labels drawn by a plan. A figure is the mean over draws: the error of accuracies (root of the mean square
over agents that answered 20 tasks or more), unbiased and *likely*; how often 95 % intervals hold; Kendall's tau of the
order with the true one; and how many evenly drawn labels alone would have had the same error.

    python paper/spotcheck.py
"""

import json

import numpy as np
from drawing import options
from ranking import LEAST, SHARED, crowd, public_models
from scipy.stats import kendalltau

import verax
from verax.spotcheck.accuracies import Sample
from verax.spotcheck.belief import Belief
from verax.spotcheck.check import by_name
from verax.spotcheck.design import Errors, drawn, expected_chances, labels_alone, shares

LABELS, DRAWS = (20, 50, 100, 200), 24


def herd(seed, agents=12, tasks=2000, classes=4, followed=0.6):
    """Nine of twelve say on most tasks what one says, who knows nothing."""
    rng = np.random.default_rng(seed)
    truth, leader = rng.integers(0, classes, (2, tasks))
    right = rng.uniform(0.5, 0.95, agents)[:, None]
    labels = np.where(rng.random((agents, tasks)) < right, truth, rng.integers(0, classes, (agents, tasks)))
    follows = rng.random((agents, tasks)) < followed
    follows[: agents // 4] = False
    return np.where(follows, leader, labels), truth


def sets():
    if SHARED.is_dir():
        yield "dog (crowd)", crowd("dog")
        yield "product (crowd)", crowd("product")
        yield "30 CIFAR-10 models", public_models()
    yield "herd", herd(0)
    yield "herd, half left out", gappy(*herd(1))


def gappy(labels, truth):
    return np.where(np.random.default_rng(9).random(labels.shape) < 0.5, -1, labels), truth


def reports_of(labels, truth):
    """Agents and tasks of which enough is known to be judged."""
    able = ((labels >= 0) & (truth >= 0)).sum(1) >= LEAST
    classes = int(max(labels.max(), truth.max())) + 1
    known = truth >= 0
    return by_name(
        verax.Reports.of(labels[able][:, known], classes=[str(k) for k in range(classes)], truth=truth[known])
    )


def one_draw(reports, belief, share, right, labels, seed):
    """Errors, intervals that hold, and the order, from one draw; `share` None: evenly, from all alike."""
    tasks = len(reports.tasks)
    if share is None:
        places = np.sort(np.random.default_rng([seed, labels]).choice(tasks, labels, replace=False))
        chances = np.full(labels, labels / tasks)
    else:
        order, tickets = drawn(reports.tasks, share, f"{seed}")
        places = np.sort(order[:labels])
        chances = np.minimum(1.0, share[places] * tickets[labels])
    sample = Sample(reports, belief, places, chances)
    found, rights = sample.accuracies(), dict(zip(reports.agents, right.tolist(), strict=True))
    of = [(a, rights[a.agent]) for a in found]
    told = [(a, r) for a, r in of if a.accuracy is not None]
    wrong = any(c.decided() and rights[c.a] < rights[c.b] for c in found.neighbours)
    rank = {agent: k for k, agent in enumerate(sorted(rights, key=rights.get, reverse=True), 1)}
    result = {
        "error": np.mean([(a.accuracy - r) ** 2 for a, r in told]),
        "likely": np.mean([(a.likely - r) ** 2 for a, r in of]),
        "covered": np.mean([a.interval[0] - 1e-12 <= r <= a.interval[1] + 1e-12 for a, r in told]),
        "tau": kendalltau([a.likely for a, _ in of], [r for _, r in of])[0],
        "wrong": wrong or not all(r.low <= rank[r.agent] <= r.high for r in found.ranks),
        "open": found.open / max(found.pairs, 1), "stderr": np.mean([a.stderr**2 for a, _ in told]),
    }  # fmt: skip
    alone = np.where(sample.inside, reports.labels[:, places] == reports.truth[places], 0).sum(1)
    alone = alone / np.maximum(sample.inside.sum(1), 1)
    answered = sample.inside.sum(1)
    alone[answered == 0] = alone[answered > 0].mean()
    labelled = {"error": np.mean((alone - right)[answered > 1] ** 2), "tau": kendalltau(alone, right)[0]}
    return result, labelled


def study(reports):
    """All figures of a set."""
    answered = reports.labels >= 0
    size, tasks = answered.sum(1), len(reports.tasks)
    right = ((reports.labels == reports.truth) & answered).sum(1) / size
    spread = float((right * (1 - right) / size).mean()) * tasks
    belief = Belief.of(reports.labels)
    guess = belief.right.sum(1) / size
    expected = Errors.of_accuracies(reports.labels, belief)
    row = {
        "agents": len(size),
        "tasks": tasks,
        "believed": {"error": float(np.sqrt(np.mean((guess - right) ** 2))), "tau": kendalltau(guess, right)[0]},
    }
    share_by = {"even": None} | {about: shares(reports.labels, belief, about) for about in ("order", "accuracy")}
    for count in LABELS:
        for way, share in share_by.items():
            drawn_by = [one_draw(reports, belief, share, right, count, seed) for seed in range(DRAWS)]
            row[f"{way} {count}"] = mean_of([d for d, _ in drawn_by], spread, tasks)
            if share is None:
                row[f"alone {count}"] = mean_of([d for _, d in drawn_by], spread, tasks)
            else:
                chances = expected_chances(share, count)
                row[f"{way} {count}"]["expected"] = float(np.sqrt(expected.variance(chances)))
    return row


def mean_of(results, spread, tasks):
    """The means over draws, roots of those that are squares, and what labels alone it would have taken."""
    mean = {key: float(np.mean([r[key] for r in results])) for key in results[0]}
    mean |= {key: mean[key] ** 0.5 for key in ("error", "likely", "stderr") if key in mean}
    mean |= {
        f"alone for {key}": labels_alone(spread, mean[key] ** 2, tasks) for key in ("error", "likely") if key in mean
    }
    return mean


def main():
    given, rows = options(__doc__), []
    for name, (labels, truth) in sets():
        rows.append({"set": name} | study(reports_of(labels, truth)))
        for key, figures in rows[-1].items():
            shown = {k: round(float(x), 4) for k, x in figures.items()} if isinstance(figures, dict) else figures
            print(f"  {key:13} {shown}", flush=True)
    (given.out / "spotcheck.json").write_text(json.dumps(rounded(rows), indent=1) + "\n")
    checked(rows)


def rounded(value):
    """Numbers to six digits behind the point."""
    if isinstance(value, dict):
        return {key: rounded(x) for key, x in value.items()}
    if isinstance(value, list):
        return [rounded(x) for x in value]
    return round(float(value), 6) if isinstance(value, float) else value


def checked(rows):
    """What the study shows."""
    for row in rows:
        for count in LABELS:
            alone, even, order = (row[f"{way} {count}"] for way in ("alone", "even", "order"))
            if "crowd" not in row["set"]:
                assert min(order["covered"], even["covered"]) >= 0.9, row["set"]  # agents share a draw's luck
                assert order["error"] < alone["error"] * 1.15, row["set"]
            assert even["error"] < alone["error"] * 1.05, row["set"]
            assert even["likely"] < alone["error"] * 1.05, row["set"]
            assert max(order["wrong"], even["wrong"]) <= 0.05, row["set"]


if __name__ == "__main__":
    main()
