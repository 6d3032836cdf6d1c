"""Standard errors are honest: (score - true) / stderr has a standard deviation near 1.

Worlds are finite: each task is of one of a few types; a type has a probability row for the agent and
chances of the references' labels, so the true score is computed from the population, not simulated.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import default_rng

import verax
from verax import Reports

WORLDS, TASKS, TYPES, CLASSES, AGENTS, FLOOR = 200, 400, 12, 3, 4, 1e-3


def population(informative, seed=0):
    """Rows (AGENTS, TYPES, CLASSES) by task type, and the truth's chances (TYPES, CLASSES)."""
    rng = default_rng(seed)
    chance = rng.dirichlet(np.ones(CLASSES) * 0.4, TYPES) if informative else np.tile([0.5, 0.3, 0.2], (TYPES, 1))
    noise = rng.dirichlet(np.ones(CLASSES), (AGENTS, TYPES))
    return (0.6 * chance + 0.4 * noise if informative else noise), chance


def draw(rng, rows, chance, tasks, informative):
    """Types of tasks, and every agent's row and label on each; null agents see types of their own."""
    kinds = (
        rng.integers(0, TYPES, (AGENTS, tasks))
        if not informative
        else np.tile(rng.integers(0, TYPES, tasks), (AGENTS, 1))
    )
    given = rows[np.arange(AGENTS)[:, None], kinds]
    labels = (rng.random((AGENTS, tasks, 1)) > given.cumsum(2)[..., :-1]).sum(2)
    truth = (rng.random((tasks, 1)) > chance[kinds[0]].cumsum(1)[:, :-1]).sum(1)
    return kinds, given, labels, truth


def expected(paid, reference, kinds_shared):
    """E of paid(type, label) on one task minus on two, types even: the population score.

    paid (TYPES, CLASSES) is what the agent's type earns beside a label, reference (TYPES, CLASSES) the
    reference's chances of labels given the type.
    """
    if not kinds_shared:
        return 0.0
    return (paid * reference).sum(1).mean() - paid.mean(0) @ reference.mean(0)


def true_score(rule, i, rows, references, informative, sign=None):
    """The population score of agent i, mean over the references' label chances."""
    found = []
    for reference in references:
        if rule == "pmi":
            p = np.maximum(rows[i], FLOOR)
            joint = reference if informative else np.tile(reference.mean(0), (TYPES, 1))
            found.append((joint * (np.log(p) - np.log(p.mean(0)))).sum(1).mean())
            continue
        paid = {
            "ce": lambda: np.log(np.maximum(rows[i], FLOOR)),
            "brier": lambda: 2 * rows[i],
            "zero-one": lambda: rows[i],
            "ca": lambda: rows[i] @ sign,
        }[rule]()
        found.append(expected(paid, reference, informative))
    return float(np.mean(found))


def population_sign(i, rows, reference):
    """Sgn(Delta*) of agent i's labels beside the reference's."""
    delta = rows[i].T @ reference / TYPES - np.outer(rows[i].mean(0), reference.mean(0))
    return (delta > 0).astype(float)


def deviations(rule, against, informative, tasks=TASKS, **options):
    """(score - true) / stderr of agent 0 in many worlds."""
    rows, chance = population(informative)
    peers = [rows[j] for j in range(1, AGENTS)]
    references = {"truth": [chance], "peers": peers}
    found = []
    for seed in range(WORLDS):
        rng = default_rng([seed, 77])
        _, given, labels, truth = draw(rng, rows, chance, tasks, informative)
        truth = truth if informative else rng.permutation(truth)
        reports = Reports.of(labels, given)
        if against == "hybrid":
            truth = np.where(np.arange(tasks) < tasks // 4, truth, -1)
        floor = FLOOR if rule in ("ce", "pmi") else None
        given_truth = None if against == "peers" else truth
        s = verax.score(reports, given_truth, rule=rule, against=against, floor=floor, **options)["0"]
        if against == "hybrid":
            true = 0.25 * true_score(rule, 0, rows, [chance], informative) + 0.75 * true_score(
                rule, 0, rows, peers, informative
            )
        elif rule == "ca":
            signs = [
                np.eye(CLASSES) if options["sign"] == "identity" else population_sign(0, rows, r)
                for r in references[against]
            ]
            each = [
                true_score("ca", 0, rows, [r], informative, m) for r, m in zip(references[against], signs, strict=True)
            ]
            true = float(np.mean(each))
        else:
            true = true_score(rule, 0, rows, references[against], informative)
        found.append((s.score - true) / s.stderr)
    return np.array(found)


@pytest.mark.parametrize("against", ["truth", "peers", "hybrid"])
@pytest.mark.parametrize("rule", ["zero-one", "ce", "brier", "pmi"])
@pytest.mark.parametrize("informative", [True, False], ids=["informative", "null"])
def test_the_error_of_every_rule_is_honest_against_every_reference(rule, against, informative):
    z = deviations(rule, against, informative)
    assert 0.85 < z.std() < 1.15
    assert abs(z.mean()) < 0.35  # five standard errors of a mean over 200 worlds


@pytest.mark.parametrize("against", ["truth", "peers"])
@pytest.mark.parametrize(
    ("sign", "informative", "low"),
    [
        ("identity", True, 0.85),
        ("identity", False, 0.85),
        # the two halves' errors are added, not their variances: see the test of certain signs
        ("split", True, 0.65),
        ("split", False, 0.8),
        ("plugin", True, 0.85),
        # at the null the plugin's score is a sum of positive parts, whose spread is below that of a
        # fixed sign: the error is too large there, never too small
        ("plugin", False, 0.5),
    ],
)
def test_the_error_of_every_sign_is_honest(sign, informative, low, against):
    """Enough tasks that an informative world's signs are learned: the error holds the sign fixed."""
    z = deviations("ca", against, informative, tasks=4 * TASKS, sign=sign)
    assert low < z.std() < 1.15


def test_the_error_of_split_is_root_two_too_large_when_signs_are_certain():
    """With signs that no half mistakes, the halves are independent and sqrt(1/2) of the stated error is left."""
    z = []
    for seed in range(WORLDS):
        rng = default_rng([seed, 82])
        truth = rng.integers(0, 2, TASKS)
        labels = np.where(rng.random(TASKS) < 0.8, truth, 1 - truth)
        s = verax.score(Reports.of(labels[None]), truth, rule="ca", sign="split")["0"]
        z.append((s.score - 0.3) / s.stderr)  # accuracy 0.8 at an even prior: 0.8 - 1/2
    assert np.std(z) == pytest.approx(0.5**0.5, abs=0.1)


@pytest.mark.parametrize("rule", ["accuracy", "log", "quadratic"])
def test_the_error_of_the_calibrated_losses_is_honest(rule):
    rows, chance = population(True)
    p = rows[0]
    worth = {
        "accuracy": p,
        "log": np.log(p),
        "quadratic": -((p[:, None, :] - np.eye(CLASSES)) ** 2).sum(2),
    }[rule]
    true = (worth * chance).sum(1).mean()
    z = []
    for seed in range(WORLDS):
        rng = default_rng([seed, 78])
        _, given, labels, truth = draw(rng, rows, chance, TASKS, True)
        s = verax.score(Reports.of(labels, given), truth, rule=rule)["0"]
        z.append((s.score - true) / s.stderr)
    assert 0.85 < np.std(z) < 1.15


@pytest.mark.parametrize("informative", [True, False], ids=["informative", "null"])
def test_the_error_of_the_median_is_never_too_small(informative):
    """The middle peer's error: the median of several peers is steadier than one, so it may be large."""
    rows, _ = population(informative)
    centre = np.median([true_score("zero-one", 0, rows, [rows[j]], informative) for j in range(1, AGENTS)])
    z = []
    for seed in range(WORLDS):
        rng = default_rng([seed, 79])
        _, given, labels, _ = draw(rng, rows, population(informative)[1], TASKS, informative)
        s = verax.score(Reports.of(labels, given), over="median")["0"]
        z.append((s.score - centre) / s.stderr)
    assert 0.4 < np.std(z) < 1.15


def test_the_error_of_a_users_own_rule_is_honest():
    rows, chance = population(True)
    true = true_score("zero-one", 0, rows, [chance], True)
    z = []
    for seed in range(WORLDS):
        rng = default_rng([seed, 80])
        _, _, labels, truth = draw(rng, rows, chance, TASKS, True)
        s = verax.score(Reports.of(labels[:1]), truth, rule=lambda joint: float(joint.delta.trace()))["0"]
        z.append((s.score - true) / s.stderr)
    assert 0.85 < np.std(z) < 1.15


def test_the_error_with_a_public_signal_is_honest():
    """Strata and features both: the agent knows more than the public type, the truth follows its own."""
    rows, chance = population(True)
    group = np.arange(TYPES) % 3
    true_strata = np.mean(
        [
            (rows[0][t] * chance[t]).sum() - rows[0][group == group[t]].mean(0) @ chance[group == group[t]].mean(0)
            for t in range(TYPES)
        ]
    )
    for kind in ("strata", "features"):
        z = []
        for seed in range(WORLDS):
            rng = default_rng([seed, 81])
            kinds, _, labels, truth = draw(rng, rows, chance, TASKS, True)
            public = group[kinds[0]] if kind == "strata" else np.eye(3)[group[kinds[0]]]
            s = verax.score(Reports.of(labels[:1], classes=list("abc")), truth, public)["0"]
            z.append((s.score - true_strata) / s.stderr)
        assert 0.85 < np.std(z) < 1.15
        assert abs(np.mean(z)) < 0.35
