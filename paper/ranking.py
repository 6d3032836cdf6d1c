"""Which order, without labels? Every way to rank on real reports and on worlds of many kinds, beside what others use.

Columns: majority (agreement with the plurality), plain (agreement with a peer), Dawid-Skene and one-coin (their fitted
chance of being right), MACE and GLAD (where crowd-kit is installed), mean, skilled and consensus (verax, zero-one).
Rows: data nobody here made, and families of worlds: classes even or uneven; everybody independent, a poor majority, a
herd of a third that follows one model on 60 % of the tasks (good or bad), both; errors on any label or an agent's own.
A figure is Spearman's rank correlation with the order that the truth gives: its own zero-one score, and accuracy.

    python paper/ranking.py
"""

import json
import warnings
from pathlib import Path

import numpy as np
from drawing import options, population
from scipy.stats import norm

import verax
from verax.advice import advice, rank_agreement
from verax.score import prepare, scored

SHARED = Path(__file__).parents[2] / "shared" / "data"
AGENTS, TASKS, SEEDS, LEAST, FOLLOWED = 20, 600, 6, 20, 0.6
PRIORS = {(2, "even"): [0.5, 0.5], (2, "uneven"): [0.85, 0.15], (5, "even"): [0.2] * 5,
          (5, "uneven"): [0.6, 0.2, 0.1, 0.06, 0.04]}  # fmt: skip
KINDS = ("independent", "poor majority", "herd", "bad herd", "poor majority and herd", "own confusions",
         "own confusions and herd", "sparse")  # fmt: skip


# Worlds


def world(classes, prior, kind, rng):
    """Labels of agents of many skills, and the truth."""
    shares = np.array(PRIORS[classes, prior])
    agents, answered = (60, 0.15) if kind == "sparse" else (AGENTS, 1.0)
    truth = rng.choice(classes, TASKS, p=shares)
    right = rng.uniform(1 / classes + 0.05, 0.95, agents)
    if "poor majority" in kind:
        poor = int(0.7 * agents)
        right[:poor] = rng.uniform(1 / classes - 0.02, 1 / classes + 0.15, poor)
        right[poor:] = rng.uniform(0.6, 0.95, agents - poor)
    own = "own" in kind
    labels = np.stack([said(table(classes, r, own, rng), truth, rng) for r in right])
    if "herd" in kind:
        best = 0.15 if kind == "bad herd" else 0.8 - 1 / classes
        leader = said(table(classes, 1 / classes + rng.uniform(0 if best == 0.15 else 0.1, best), own, rng), truth, rng)
        for follower in rng.choice(agents, agents // 3, replace=False):
            labels[follower] = np.where(rng.random(TASKS) < FOLLOWED, leader, labels[follower])
    labels[rng.random(labels.shape) >= answered] = -1
    return labels, truth


def table(classes, right, own, rng):
    """What is said where the label is k: errors on all others alike, or on an agent's own favourites."""
    chances = np.empty((classes, classes))
    for k in range(classes):
        share = rng.dirichlet(np.ones(classes)) if own else np.ones(classes)
        kept = np.clip(right + rng.normal() * 0.08, 0.02, 0.98) if own else right
        share[k] = 0
        chances[k] = share / share.sum() * (1 - kept)
        chances[k, k] = kept
    return chances


def said(chances, truth, rng):
    return (rng.random((len(truth), 1)) > chances[truth].cumsum(1)[:, :-1]).sum(1)


def panel(rng, agents=40, classes=4, families=5):
    """Like language models on multiple choice: hard tasks are hard for all, wrong options lure, families share luck."""
    ability, hard, slope = (
        np.sort(rng.normal(0, 1.1, agents)),
        rng.normal(0, 1.3, TASKS),
        np.exp(rng.normal(0, 0.3, TASKS)),
    )
    family = np.where(rng.random(agents) < 0.5, rng.integers(0, families, agents), families + np.arange(agents))
    shared = rng.normal(size=(families + agents, TASKS))[family]
    kin = np.where(family < families, 0.6, 0.0)[:, None]
    luck = np.sqrt(kin) * shared + np.sqrt(1 - kin) * rng.normal(size=(agents, TASKS))
    chance = 0.2 + 0.8 / (1 + np.exp(-1.3 * slope * (ability[:, None] - hard)))
    knows = luck < norm.ppf(chance)
    truth, lure = rng.integers(0, classes, TASKS), rng.dirichlet(np.full(classes - 1, 0.7), TASKS)
    draw = np.where(
        family[:, None] < families, rng.random((families + agents, TASKS))[family], rng.random((agents, TASKS))
    )
    wrong = (draw[..., None] > lure.cumsum(1)[None, :, :-1]).sum(2)
    return np.where(knows, truth, wrong + (wrong >= truth)), truth


def classifiers(which, rng):
    """Twenty models of scikit-learn's, of few and many images, some on wrong labels."""
    from sklearn import datasets, ensemble, linear_model, naive_bayes, neighbors, tree

    x, y = getattr(datasets, f"load_{which}")(return_X_y=True)
    order, tested = rng.permutation(len(y)), 600 if which == "digits" else 380
    x, y = (x[order] - x.mean(0)) / (x.std(0) + 1e-9), y[order]
    labels = []
    while len(labels) < AGENTS:
        model = [
            naive_bayes.GaussianNB(),
            tree.DecisionTreeClassifier(max_depth=rng.integers(1, 9), random_state=0),
            linear_model.LogisticRegression(max_iter=300),
            neighbors.KNeighborsClassifier(rng.integers(1, 9)),
            ensemble.RandomForestClassifier(10, max_depth=5, random_state=1),
        ][len(labels) % 5]
        size = int(np.exp(rng.uniform(np.log(40 if which == "digits" else 12), np.log(len(y) - tested))))
        chosen = tested + rng.choice(len(y) - tested, size, replace=False)
        taught, wrong = y[chosen].copy(), rng.random(size) < rng.choice([0, 0.1, 0.3])
        taught[wrong] = rng.integers(0, y.max() + 1, wrong.sum())
        columns = rng.choice(x.shape[1], max(3, int(x.shape[1] * rng.uniform(0.2, 1))), replace=False)
        if len(set(taught)) > 1 and size >= 12:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                labels.append(model.fit(x[chosen][:, columns], taught).predict(x[:tested][:, columns]))
    return np.array(labels), y[:tested]


# Real reports


def crowd(name):
    reports = verax.read(SHARED / "crowd" / f"{name}.csv")
    known = verax.read_truth(SHARED / "crowd" / f"{name}-truth.csv", reports)
    return known.labels, known.truth


def public_models():
    held = np.load(SHARED / "cifar10_30_models.npz")
    return held["labels"], held["truth"]


def recorded_networks():
    """The networks that were trained for the paper's figures: their labels of the CIFAR-10 test set."""
    return np.stack([rows.argmax(1) for rows in population().values()]), public_models()[1]


def sets():
    """Every row: its name and its reports, several worlds of a family."""
    if SHARED.is_dir():
        yield "dog (crowd, 109 workers)", [crowd("dog")]
        yield "product (crowd, 176 workers)", [crowd("product")]
        yield "30 public CIFAR-10 models", [public_models()]
        yield "24 networks", [recorded_networks()]
    for which in ("digits", "breast_cancer"):
        yield f"{which}, 20 classifiers", [classifiers(which, np.random.default_rng([s, 1])) for s in range(SEEDS)]
    yield "panel like language models", [panel(np.random.default_rng([s, 2])) for s in range(SEEDS)]
    for classes, prior in PRIORS:
        for kind in KINDS:
            made = [world(classes, prior, kind, np.random.default_rng([s, 3])) for s in range(SEEDS)]
            yield f"{classes} classes, {prior}, {kind}", made


# Ways to rank


def skills(labels, classes):
    """What every way makes of every agent, larger is better."""
    votes = np.stack([(labels == k).sum(0) for k in range(classes)], axis=1)
    common = (labels >= 0).astype(float) @ (labels >= 0).T
    agree = sum((labels == k).astype(float) @ (labels == k).T for k in range(classes))
    with np.errstate(all="ignore"):
        plain = np.where(common > 0, agree / common, np.nan)
    np.fill_diagonal(plain, np.nan)
    reports = verax.Reports.of(labels, classes=[str(k) for k in range(classes)])
    found = {
        "majority": [np.mean(r[r >= 0] == votes.argmax(1)[r >= 0]) if (r >= 0).any() else np.nan for r in labels],
        "plain": np.nanmean(np.where(np.isnan(plain).all(1, keepdims=True), 0, plain), 1),
        "Dawid-Skene": fitted(labels, classes, one_coin=False), "one-coin": fitted(labels, classes, one_coin=True),
        **others(labels),
    }  # fmt: skip
    for name, how in (("mean", {}), ("skilled", {"over": "skilled"}), ("consensus", {"against": "consensus"})):
        found[name] = [np.nan if s.score is None else s.score for s in verax.score(reports, **how)]
    return found


def fitted(labels, classes, *, one_coin, passes=100):
    """Dawid and Skene's chance of being right, by EM from the plurality; one coin: errors on all labels alike."""
    hot = (labels[..., None] == np.arange(classes)).astype(float)
    belief = hot.sum(0) / np.maximum(hot.sum((0, 2))[:, None], 1)
    for _ in range(passes):
        prior = (belief.sum(0) + 0.01) / (belief.sum() + 0.01 * classes)
        counts = np.einsum("nt,kns->kts", belief, hot) + 0.01
        if one_coin:
            right = np.trace(counts, axis1=1, axis2=2) / counts.sum((1, 2))
            tables = np.where(np.eye(classes) == 1, right[:, None, None], (1 - right[:, None, None]) / (classes - 1))
        else:
            tables = counts / counts.sum(2, keepdims=True)
        logs = np.log(prior) + np.einsum("kns,kts->nt", hot, np.log(np.maximum(tables, 1e-12)))
        belief = np.exp(logs - logs.max(1, keepdims=True))
        belief /= belief.sum(1, keepdims=True)
    return np.einsum("t,ktt->k", prior, tables)


def others(labels):
    """MACE and GLAD of crowd-kit, if it is installed."""
    try:
        from crowdkit.aggregation.classification import GLAD, MACE
    except ImportError:
        return {}
    import pandas as pd

    agents, tasks = np.nonzero(labels >= 0)
    frame = pd.DataFrame({"task": tasks, "worker": agents, "label": labels[agents, tasks]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mace, glad = MACE(n_restarts=3, random_state=0).fit(frame), GLAD(n_iter=20).fit(frame)
    names = pd.unique(frame["worker"])
    known = dict(zip(names, mace.spamming_[:, 1], strict=False))
    return {"MACE": [known.get(k, np.nan) for k in range(len(labels))],
            "GLAD": [glad.alphas_.get(k, np.nan) for k in range(len(labels))]}  # fmt: skip


# The study


def agreements(labels, truth):
    """Spearman of every way with both orders that the truth gives, and what verax advises."""
    classes = int(max(labels.max(), truth.max())) + 1
    reports = verax.Reports.of(labels, classes=[str(k) for k in range(classes)])
    known = verax.score(reports, truth, against="truth"), verax.score(reports, truth, rule="accuracy", against="truth")
    able = np.array([s.tasks >= LEAST and s.score is not None for s in known[0]])
    orders = [np.array([np.nan if s.score is None else s.score for s in scores])[able] for scores in known]
    ready = prepare(reports)
    said_to_user = " ".join(advice(ready, scored(ready)))
    advised = "consensus" if "consensus" in said_to_user else "skilled" if "skilled" in said_to_user else "mean"
    ways = {
        name: np.nan_to_num(np.asarray(x, dtype=float), nan=-9.0)[able] for name, x in skills(labels, classes).items()
    }
    apart = [rank_agreement(ways["mean"], ways[name]) for name in ("skilled", "consensus")]
    return [{name: rank_agreement(order, x) for name, x in ways.items()} for order in orders], advised, apart


def main():
    given = options(__doc__)
    rows = []
    for name, made in sets():
        found = [agreements(labels, truth) for labels, truth in made]
        mean = [{way: float(np.mean([f[0][t][way] for f in found])) for way in found[0][0][t]} for t in (0, 1)]
        rows.append({"set": name, "worlds": len(made), "score": mean[0], "accuracy": mean[1],
                     "advised": [f[1] for f in found], "apart": [f[2] for f in found]})  # fmt: skip
        shown = "  ".join(f"{way} {x:.3f}" for way, x in mean[0].items())
        print(f"{name:45} {shown}  advised {rows[-1]['advised']} {np.round(rows[-1]['apart'], 2).tolist()}", flush=True)
    (given.out / "ranking.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
