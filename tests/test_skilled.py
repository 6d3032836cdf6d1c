"""Skilled references and the consensus: beside slow definitions, truthful by brute force, on real crowds."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from intervals import coverage
from numpy.random import default_rng
from scipy.stats import spearmanr

import verax
from oracle import score as oracle_score
from verax import InputError, Mechanism, OptionError, Reports, audit, score
from verax.mechanisms.consensus import consensus, folds_of
from verax.mechanisms.skilled import label_pairs, skilled, skilled_weights
from verax.score import prepare

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the public data sets are not here")


def world(seed, agents, tasks, classes=3, gaps=0.0, prior=None):
    """Labels of agents of many skills, some tasks left out, and the truth."""
    rng = default_rng(seed)
    truth = rng.choice(classes, tasks, p=prior)
    right = rng.random((agents, tasks)) < np.linspace(0.2, 0.95, agents)[:, None]
    labels = np.where(right, truth, rng.integers(0, classes, right.shape))
    labels[rng.random(labels.shape) < gaps] = -1
    return labels, truth


def pair(f, g):
    """What f scores beside g, by the definition; None on fewer than two common tasks."""
    common = (f >= 0) & (g >= 0)
    if common.sum() < 2:
        return None, 0
    return oracle_score(f[common], g[common], "zero-one", None, 1e-6), int(common.sum())


def skill_without(labels, i, j):
    """skill_j(-i), by the definition."""
    each = [pair(labels[j], labels[k]) for k in range(len(labels)) if k not in (i, j)]
    tasks = sum(n for s, n in each if s is not None)
    return max(0.0, sum(s * n for s, n in each if s is not None) / tasks) if tasks else 0.0


def slow_skilled(labels, i):
    """The score over skilled references, by the definition."""
    found = [(j, *pair(labels[i], labels[j])) for j in range(len(labels)) if j != i]
    found = [(j, s, n) for j, s, n in found if s is not None]
    weights = [n * skill_without(labels, i, j) ** 4 for j, _, n in found]
    if not any(weights):
        weights = [n for _, _, n in found]
    return sum(w * s for w, (_, s, _) in zip(weights, found, strict=True)) / sum(weights)


def slow_beside_rows(report, rows):
    """Correlated Agreement beside a soft reference: every task beside itself, less every ordered pair of two."""
    tasks = [n for n in range(len(report)) if report[n] >= 0 and rows[n].sum() > 0]
    met = np.mean([rows[n, report[n]] for n in tasks])
    apart = np.mean([rows[m, report[n]] for n in tasks for m in tasks if m != n])
    return met - apart


@pytest.mark.parametrize("gaps", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(6))
def test_scores_over_skilled_references_are_the_definition(seed, gaps):
    labels, _ = world(seed, 6, 70, gaps=gaps)
    found = score(Reports.of(labels), over="skilled")
    assert found.mechanism.over == "skilled"
    for i, s in enumerate(found):
        assert s.score == pytest.approx(slow_skilled(labels, i), abs=1e-9)  # weights count in steps of 2^-28
        assert s.references == sum(pair(labels[i], labels[j])[1] >= 2 for j in range(6) if j != i)


@pytest.mark.parametrize("seed", range(6))
def test_thin_pairs_are_scored_beside_the_others_votes(seed):
    labels, _ = world(seed, 12, 60, gaps=0.7)
    found = score(Reports.of(labels), over="skilled")
    for i, s in enumerate(found):
        votes = np.zeros((60, 3))
        for j in range(12):
            if j != i:
                counted = skill_without(labels, i, j) ** 4
                for n in np.nonzero(labels[j] >= 0)[0]:
                    votes[n, labels[j, n]] += counted
        rows = np.divide(votes, votes.sum(1, keepdims=True), out=np.zeros_like(votes), where=votes.sum(1)[:, None] > 0)
        assert s.score == pytest.approx(slow_beside_rows(labels[i], rows), abs=1e-7)


def test_the_matrix_of_pairs_alone_gives_the_same():
    labels, _ = world(3, 20, 300)
    values, common = label_pairs(Reports.of(labels).labels, 3, verax.kernels.Engine())
    assert skilled(values, common).tolist() == pytest.approx(
        [s.score for s in score(Reports.of(labels), over="skilled")], abs=1e-12
    )
    with pytest.raises(InputError, match="square arrays"):
        skilled(values[:3], common)


@pytest.mark.parametrize("agents", [9, 20])  # each alone, and in folds
@pytest.mark.parametrize("gaps", [0.0, 0.7])
def test_nothing_an_agent_reports_enters_its_own_references(agents, gaps):
    """To the last bit: its weights, its votes and its consensus are the same whatever it says."""
    rng = default_rng(5)
    labels, _ = world(1, agents, 80, gaps=gaps)
    before = _references(labels)
    for i in range(agents):
        said = labels.copy()
        said[i] = np.where(labels[i] >= 0, rng.integers(0, 3, 80), -1)
        for mine, again in zip(before, _references(said), strict=True):
            assert np.array_equal(mine[i], again[i])


def _references(labels):
    """Everybody's weights, and what the two mechanisms hold everybody against."""
    reports = Reports.of(labels, classes=["a", "b", "c"])
    found = [skilled_weights(*label_pairs(reports.labels, 3, verax.kernels.Engine()))]
    for how in ({"over": "skilled"}, {"against": "consensus"}):
        mixtures = prepare(reports, mechanism=Mechanism.of(**how)).mixtures
        each = [mixtures.of(i) for i in range(len(labels))]
        found.append([m.weights if m.soft is None else m.soft for m in each])
    return found


@pytest.mark.parametrize("agents", [9, 20])
def test_nor_do_the_tasks_it_answers_enter_what_it_is_held_against(agents):
    """Beside one reference a task, votes or belief; over weights, common tasks count, and they are seen by all."""
    rng = default_rng(6)
    labels, _ = world(2, agents, 80, gaps=0.85)
    before = _references(labels)
    for i in (0, agents - 1):
        said = labels.copy()
        said[i] = np.where(rng.random(80) < 0.5, rng.integers(0, 3, 80), -1)
        votes, belief = (found[i] for found in _references(said)[1:])
        both = (said[i] >= 0) & (labels[i] >= 0)
        assert np.array_equal(votes[both], before[1][i][both]) and np.array_equal(belief, before[2][i])


def held_against(labels, i, classes, how):
    """What agent i is held against, whatever it says: a weight and rows (N, L) for each reference."""
    reports = Reports.of(labels, classes=[str(k) for k in range(classes)])
    found = prepare(reports, mechanism=Mechanism.of(**how)).mixtures.of(i)
    if found.soft is not None:
        return [(1.0, found.soft)]
    one_hot = (np.append(np.eye(classes), np.zeros((1, classes)), 0)[said] for said in labels)
    return list(zip((found.weights / found.weights.sum()).tolist(), one_hot, strict=True))


def score_beside(report, references):
    """Correlated Agreement of a report, in closed form: agreement on a task less agreement on two tasks."""
    total = 0.0
    for weight, rows in references:
        both = (report >= 0) & (rows.sum(1) > 0)
        x, g, n = report[both], rows[both], both.sum()
        agree = g[np.arange(n), x].sum()
        apart = (np.bincount(x, minlength=g.shape[1]) @ g.sum(0) - agree) / (n - 1)
        total += weight * (agree - apart) / n if weight else 0.0
    return total


def informed(labels, truth, i, how):
    """Whether an agent's references say each label more on its tasks than on any other label's: the condition."""
    classes = int(truth.max()) + 1
    weighed = sum(weight * rows for weight, rows in held_against(labels, i, classes, how)).T
    on_label = np.array([[np.mean(said[truth == k]) for said in weighed] for k in range(classes)])
    lift = on_label - np.mean(weighed, axis=1)
    return bool((lift.argmax(0) == np.arange(classes)).all() and (lift.argmax(1) == np.arange(classes)).all())


@pytest.mark.parametrize("how", [{"over": "skilled"}, {"against": "consensus"}], ids=str)
@pytest.mark.parametrize(
    ("classes", "gaps", "prior"),
    [(2, 0.0, [0.5, 0.5]), (2, 0.0, [0.85, 0.15]), (3, 0.0, [0.5, 0.3, 0.2]), (2, 0.9, [0.8, 0.2]),
     (3, 0.5, [0.6, 0.25, 0.15]), (4, 0.0, [0.4, 0.3, 0.2, 0.1])],
)  # fmt: skip
def test_no_relabelling_gains_beside_honest_others(how, classes, gaps, prior):
    """The best reply by brute force: every map of one's labels, the others honest and informative."""
    for seed in range(2):
        labels, truth = world(seed, 8, 3000, classes, gaps, prior)
        for i in (3, 7):
            assert informed(labels, truth, i, how)
            references = held_against(labels, i, classes, how)
            honest = score_beside(labels[i], references)
            scores = score(Reports.of(labels, classes=[str(k) for k in range(classes)]), **how)
            assert scores[str(i)].score == pytest.approx(honest, abs=1e-9)
            for way in product(range(classes), repeat=classes):
                assert score_beside(np.append(way, -1)[labels[i]], references) <= honest + 1e-12, (way, seed, i)


@pytest.mark.parametrize("how", [{"over": "skilled"}, {"against": "consensus"}], ids=str)
def test_where_all_others_swap_two_labels_the_same_lie_is_the_best_reply(how):
    """Truthful is an equilibrium: without the condition it is not, and nothing without labels could be."""
    labels, truth = world(0, 8, 3000)
    turned = np.array([1, 0, 2])[labels]
    turned[3] = labels[3]
    assert not informed(turned, truth, 3, how)
    references = held_against(turned, 3, 3, how)
    assert score_beside(np.array([1, 0, 2])[labels[3]], references) > score_beside(labels[3], references) + 0.05


@pytest.mark.parametrize("how", [{"over": "skilled"}, {"against": "consensus"}], ids=str)
@pytest.mark.parametrize("gaps", [0.0, 0.75])
@pytest.mark.parametrize("rule", ["zero-one", "brier"])
def test_the_audit_knows_what_a_relabelling_gains(how, gaps, rule):
    labels, _ = world(2, 7, 200, gaps=gaps)
    rows = default_rng(0).dirichlet(np.ones(3), labels.shape) + 0.5 * np.eye(3)[labels]
    rows /= rows.sum(2, keepdims=True)
    held = np.where(labels >= 0, rows.argmax(2), -1)
    reports = Reports.of(held, rows) if rule == "brier" else Reports.of(labels)
    found = {c.agent: c for c in audit(reports, rule=rule, **how) if c.code == "TRUTHFUL"}
    for i in (0, 6):
        before, best = score(reports, rule=rule, **how)[str(i)].score, 0.0
        for way in product(range(3), repeat=3):
            said = reports.labels.copy()
            held = reports.labels[i]
            said[i] = np.append(way, -1)[held]
            given = {"labels": said}
            if rule == "brier":
                swapped, at = rows.copy(), np.nonzero(held >= 0)[0]
                swapped[i, at, said[i, at]], swapped[i, at, held[at]] = rows[i, at, held[at]], rows[i, at, said[i, at]]
                given = {"labels": said, "probabilities": swapped}
            best = max(best, score(Reports.of(**given, classes=list("012")), rule=rule, **how)[str(i)].score - before)
        assert found[str(i)].gain == pytest.approx(best, abs=1e-7)


@pytest.mark.parametrize("options", [
    {"over": "skilled"}, {"over": "skilled", "rule": "ce"}, {"over": "skilled", "rule": "pmi"},
    {"over": "skilled", "rule": "ca"}, {"over": "skilled", "rule": "ca", "sign": "identity"},
    {"against": "consensus"}, {"against": "consensus", "rule": "ce"}, {"against": "consensus", "rule": "pmi"},
    {"against": "consensus", "rule": "ca", "sign": "identity"},
], ids=str)  # fmt: skip
def test_every_rule_ranks_and_pays_noise_nothing(options):
    labels, _ = world(4, 8, 1500)
    labels[0] = default_rng(9).integers(0, 3, 1500)
    sure = np.linspace(0.4, 0.9, 8)[:, None, None]
    rows = np.where(np.arange(3) == labels[..., None], sure, (1 - sure) / 2)
    found = score(Reports.of(labels, rows), **options)
    assert abs(found["0"].score) < 5 * found["0"].stderr + (0.15 if options.get("rule") == "ca" else 0.0)
    assert found["7"].score > found["3"].score > found["0"].score
    assert all(s.stderr > 0 for s in found)


@pytest.mark.parametrize("public", ["strata", "features"])
@pytest.mark.parametrize("how", [{"over": "skilled"}, {"against": "consensus"}], ids=str)
def test_what_everybody_knows_is_taken_out(public, how):
    labels, _ = world(6, 6, 400)
    signal = default_rng(0).integers(0, 3, 400)
    labels[0] = signal
    given = signal if public == "strata" else np.eye(3)[signal]
    assert score(Reports.of(labels), public=given, **how)["0"].score == pytest.approx(0.0, abs=1e-12)


def test_the_consensus_is_bayes_rule_with_the_tables_that_it_finds():
    """A fixed point: tables from beliefs and beliefs from tables, by slow loops."""
    labels, truth = world(0, 5, 60, gaps=0.2)
    belief = consensus(labels, 3)
    prior = belief.sum(0) + 0.01
    prior /= prior.sum()
    again = np.zeros((60, 3))
    for n in range(60):
        if (labels[:, n] < 0).all():
            continue
        chance = prior.copy()
        for k in np.nonzero(labels[:, n] >= 0)[0]:
            for true in range(3):
                chance[true] *= _table(labels[k], belief)[true, labels[k, n]]
        again[n] = chance / chance.sum()
    assert np.abs(again - belief).max() < 5e-4
    assert (belief.argmax(1) == truth).mean() > 0.85


def _table(said, belief):
    counts = np.zeros((3, 3))
    for n, label in enumerate(said):
        if label >= 0:
            counts[:, label] += belief[n]
    right = (np.trace(counts) + 0.1) / (counts.sum() + 0.3)
    even = np.where(np.eye(3) == 1, right, (1 - right) / 2)
    return (even + (counts + 0.01) / (counts.sum(1, keepdims=True) + 0.03)) / 2


@pytest.mark.parametrize("agents", [6, 20])
def test_an_agent_is_held_against_what_all_others_say_by_their_tables(agents):
    """Bayes' rule by slow loops: tables from the belief of those outside the fold, each word to the power J."""
    labels, _ = world(agents, agents, 70, gaps=0.4)
    ready = prepare(Reports.of(labels, classes=list("abc")), mechanism=Mechanism.of(against="consensus"))
    names = [str(k) for k in range(agents)]
    fold = folds_of(names)
    for i in (0, agents - 1):
        belief = consensus(labels[np.argsort(names)][fold[np.argsort(names)] != fold[i]], 3)
        chance = np.tile(np.log((belief.sum(0) + 0.01) / (belief.sum(0) + 0.01).sum()), (70, 1))
        for k in range(agents):
            table = _table(labels[k], belief)
            worth = max(0.0, (np.trace(table) - 1) / 2) * np.log(table)
            for n in np.nonzero(labels[k] >= 0)[0] if k != i else ():
                chance[n] += worth[:, labels[k, n]]
        rows = np.exp(chance - chance.max(1, keepdims=True))
        rows /= rows.sum(1, keepdims=True)
        rows[(np.delete(labels, i, 0) < 0).all(0)] = 0
        assert np.abs(ready.mixtures.of(i).soft - rows).max() < 1e-7


@pytest.mark.parametrize("how", [{"over": "skilled"}, {"against": "consensus"}], ids=str)
@pytest.mark.parametrize(("agents", "gaps"), [(12, 0.0), (12, 0.7), (25, 0.85)])
def test_no_bit_depends_on_names_or_order(how, agents, gaps):
    """Agents, tasks and labels called otherwise and written in another order: crowds of thin pairs too."""
    labels, _ = world(agents, agents, 90, gaps=gaps)
    names, tasks, classes = [f"a{k}" for k in range(agents)], [f"t{n}" for n in range(90)], list("xyz")
    plain = score(Reports.of(labels, agents=names, tasks=tasks, classes=classes), **how)
    for seed in range(3):
        rng = default_rng(seed)
        k, n, order = rng.permutation(agents), rng.permutation(90), rng.permutation(3)
        moved = Reports.of(
            np.append(order, -1)[labels][k][:, n], agents=[names[a] for a in k], tasks=[tasks[t] for t in n],
            classes=classes,
        )  # fmt: skip
        again = score(moved, **how)
        for s in plain:
            assert again[s.agent].score == s.score


def test_folds_are_the_same_whatever_is_reported_and_part_all_agents_alike():
    names = [f"agent {k}" for k in range(100)]
    fold = folds_of(names)
    assert set(np.bincount(fold).tolist()) <= {12, 13}
    assert folds_of(names[::-1])[::-1].tolist() == fold.tolist()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"over": "skilful"}, "choose one of mean, median, one, skilled"),
        ({"against": "consensus", "over": "mean"}, "scores against the consensus"),
        ({"against": "consensus", "rule": "ca"}, "sign='identity'"),
        ({"against": "consensus", "rule": "accuracy"}, "needs the truth"),
        ({"against": "consensus", "rule": "dmi"}, "mixture of references"),
        ({"against": "consensus", "rule": lambda joint: float(joint.delta.trace())}, "has no score"),
        ({"over": "skilled", "rule": "dmi"}, "leave over= out"),
    ],
)
def test_what_is_no_mixture_is_refused(options, says):
    labels, _ = world(0, 5, 40)
    with pytest.raises(OptionError, match=says):
        score(Reports.of(labels), **options)


def test_two_agents_have_no_consensus_and_nobody_skilled():
    labels, _ = world(0, 2, 40)
    with pytest.raises(InputError, match="takes two others"):
        score(Reports.of(labels), against="consensus")
    mean, over = (score(Reports.of(labels), over=o) for o in ("mean", "skilled"))
    assert [s.score for s in mean] == pytest.approx([s.score for s in over])


@pytest.mark.parametrize("way", ["skilled", "consensus"])
@pytest.mark.parametrize(("tasks", "classes", "agents", "left_out"), [(200, 2, 5, 0.0), (200, 2, 20, 0.5)])
def test_intervals_hold_the_score_of_the_long_run_beside_the_references_that_were_paid_by(
    way, tasks, classes, agents, left_out
):
    """A corner of the grid of paper/intervals.py, which has what they are to hold in closed form."""
    assert 0.9 <= coverage(way, tasks, classes, agents, left_out, intervals=300)[0] <= 0.98


def order_agreement(reports, truth, least=20, **how):
    """Spearman with the truth-scored order, over agents with so many truths."""
    by_truth, found = verax.score(reports, truth, against="truth"), verax.score(reports, **how)
    both = [(t, s) for t, s in zip(by_truth, found, strict=True) if t.tasks >= least and t.score is not None]
    return spearmanr([t.score for t, _ in both], [-9.0 if s.score is None else s.score for _, s in both])[0]


@needs_data
@pytest.mark.parametrize(
    ("name", "how", "least"),
    [
        ("dog", {"over": "skilled"}, 0.885),
        ("product", {"over": "skilled"}, 0.80),
        ("dog", {"against": "consensus"}, 0.86),
        ("product", {"against": "consensus"}, 0.79),
    ],
)
def test_real_crowds_are_ordered_better_than_by_the_mean(name, how, least):
    reports = verax.read(DATA / "crowd" / f"{name}.csv")
    known = verax.read_truth(DATA / "crowd" / f"{name}-truth.csv", reports)
    bare = Reports.of(known.labels, agents=known.agents, tasks=known.tasks, classes=known.classes)
    found = order_agreement(bare, known.truth, **how)
    assert found >= least and found > order_agreement(bare, known.truth)


@needs_data
def test_public_classifiers_are_ordered_right():
    reports = verax.read(DATA / "cifar10_30_models.npz")
    truth = np.load(DATA / "cifar10_30_models.npz")["truth"]
    assert order_agreement(reports, truth, over="skilled") >= 0.974
    assert order_agreement(reports, truth, against="consensus") >= 0.974


@needs_data
def test_networks_that_were_trained_for_the_paper_are_ordered_right():
    recorded = sorted((Path(__file__).parents[1] / "paper" / "recorded").glob("population-*.npz"))
    rows = {key: held[key] for held in map(np.load, recorded) for key in held.files if key.endswith("/clean")}
    reports = Reports.of(np.stack([each.argmax(1) for each in rows.values()]), classes=[str(k) for k in range(10)])
    truth = np.load(DATA / "cifar10_30_models.npz")["truth"]
    assert len(rows) == 24
    for how in ({"over": "skilled"}, {"against": "consensus"}):
        assert order_agreement(reports, truth, **how) >= 0.93


def test_a_herd_does_not_fool_the_consensus():
    """Six of eighteen follow one bad model on half the tasks, labels are uneven: the mean is fooled, the belief not."""
    found = []
    for seed in range(3):
        rng = default_rng(seed)
        truth = (rng.random(800) < 0.25).astype(int)
        right = np.r_[np.linspace(0.6, 0.95, 12), np.linspace(0.55, 0.9, 6)]
        labels = np.where(rng.random((18, 800)) < right[:, None], truth, 1 - truth)
        herd = np.where(rng.random(800) < 0.65, truth, 1 - truth)
        labels[12:] = np.where(rng.random((6, 800)) < 0.5, herd, labels[12:])
        reports = Reports.of(labels)
        found.append([order_agreement(reports, truth, **how) for how in ({}, {"against": "consensus"})])
    mean, belief = np.mean(found, axis=0)
    assert belief > 0.9 > mean
