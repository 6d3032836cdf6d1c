"""Scores are expectations, computed: equal to the literal definitions, to closed forms, to known values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.random import default_rng

import oracle
import verax
from verax import Joint, Reports, misreport, rules

RULES = ("zero-one", "ce", "brier", "pmi")
WORLDS_A_BATCH = 50


def random_world(rng, rule):
    """A few agents of any quality, with abstentions; sometimes strata, some of a single task."""
    classes, tasks, agents = int(rng.integers(2, 13)), int(rng.integers(3, 61)), int(rng.integers(2, 5))
    truth = rng.integers(0, classes, tasks)
    hit = rng.random((agents, tasks)) < rng.random((agents, 1))
    labels = np.where(hit, truth, rng.integers(0, classes, (agents, tasks)))
    labels[rng.random(labels.shape) < rng.choice([0.0, 0.2])] = -1
    strata = rng.integers(0, rng.integers(1, 6), tasks) if rng.random() < 0.5 else None
    if rule == "zero-one":
        return labels, None, strata
    rows = rng.dirichlet(np.ones(classes), (agents, tasks))
    rows[rng.random((agents, tasks)) < 0.1] = np.eye(classes)[0]  # zeros meet the floor
    labels = np.where(labels < 0, -1, rows.argmax(2))
    return labels, np.where((labels < 0)[..., None], np.nan, rows), strata


@pytest.mark.parametrize("batch", range(1000 // WORLDS_A_BATCH))
def test_every_score_equals_the_average_over_all_triples(batch):
    scored = 0
    for seed in range(batch * WORLDS_A_BATCH, (batch + 1) * WORLDS_A_BATCH):
        rng, rule = default_rng(seed), RULES[seed % len(RULES)]
        labels, rows, strata = random_world(rng, rule)
        classes = labels.max() + 1 if rows is None else rows.shape[2]
        reports = Reports.of(labels, rows, classes=[str(c) for c in range(max(2, classes))])
        floor = {"floor": 1e-3} if rule in ("ce", "pmi") else {}
        try:
            scores = verax.score(reports, public=strata, rule=rule, **floor).scores
        except verax.InputError:
            assert ((labels >= 0).sum(0) > 1).sum() < 3  # nobody shares enough tasks
            continue
        for i, found in enumerate(scores):
            peers = [j for j in range(len(labels)) if j != i and ((labels[i] >= 0) & (labels[j] >= 0)).sum() >= 2]
            assert found.references == len(peers)
            if not peers:
                assert found.score is None
                continue
            report = labels[i] if rows is None else rows[i]
            literal = [oracle.score(report, labels[j], rule, strata, 1e-3) for j in peers]
            assert found.score == pytest.approx(np.mean(literal), abs=1e-12)
            scored += 1
    assert scored > WORLDS_A_BATCH


def test_a_constant_as_feature_gives_the_plain_score_back():
    rng = default_rng(3)
    for _ in range(50):
        labels = rng.integers(0, 4, (3, 40))
        labels[rng.random(labels.shape) < 0.1] = -1
        reports = Reports.of(labels, classes=list("abcd"))
        plain, constant = verax.score(reports), verax.score(reports, public=np.full((40, 1), 2.5))
        for a, b in zip(plain.scores, constant.scores, strict=True):
            assert b.score == pytest.approx(a.score, abs=1e-12)
            assert b.stderr == pytest.approx(a.stderr, abs=1e-12)


@pytest.mark.parametrize("rule", ["zero-one", "ca", "brier", "ce"])
def test_a_report_in_the_span_of_the_features_earns_nothing_from_anybody(rule):
    rng = default_rng(4)
    for _ in range(20):
        truth = rng.integers(0, 3, 80)
        others = np.where(rng.random((4, 80)) < 0.7, truth, rng.integers(0, 3, (4, 80)))
        public = rng.dirichlet(np.ones(3), 80)
        echo = public.argmax(1)
        rows = np.concatenate([np.eye(3)[others] * 0.8 + 0.2 / 3, public[None]])
        transformed = {"ce": np.log(np.maximum(public, 1e-6)), "brier": public}.get(rule, np.eye(3)[echo])
        features = np.concatenate([transformed, rng.normal(size=(80, 2))], axis=1)
        reports = Reports.of(np.concatenate([others, echo[None]]), rows)
        for against in ({"truth": truth}, {}):
            scores = verax.score(reports, public=features, rule=rule, **against)
            assert abs(scores["4"].score) < 1e-12
            assert max(abs(s.score) for s in scores.scores[:4]) > 0.05


def test_a_report_that_follows_the_stratum_earns_exactly_nothing():
    rng = default_rng(5)
    public = rng.integers(0, 4, 200)
    others = rng.integers(0, 3, (3, 200))
    echo = np.array([2, 0, 1, 0])[public]
    scores = verax.score(Reports.of(np.concatenate([others, echo[None]])), public=public)
    assert (scores["3"].score, scores["3"].stderr) == (0.0, 0.0)


@pytest.mark.parametrize("rule", ["zero-one", "ca", "ce", "brier", "pmi"])
@pytest.mark.parametrize("public", [None, "strata"])
def test_a_constant_report_earns_exactly_nothing_against_anything(rule, public):
    rng = default_rng(6)
    row = rng.dirichlet(np.ones(5))
    rows = np.concatenate([np.tile(row, (1, 97, 1)), rng.dirichlet(np.ones(5), (3, 97))])
    signal = rng.integers(0, 3, 97) if public else None
    for truth in (None, rng.integers(0, 5, 97)):
        assert verax.score(Reports.of(probabilities=rows), truth, signal, rule=rule)["0"].score == 0.0


def test_the_values_of_the_two_by_two_table():
    joint = Joint.of_counts([[40, 10], [20, 30]])
    for estimate in (rules.zero_one(joint), rules.ca(joint)):
        assert estimate.value == pytest.approx(20 / 99, abs=1e-15)
        assert estimate.stderr == pytest.approx(0.0447213595, abs=1e-10)
    many = Joint.of_counts(np.array([[40, 10], [20, 30]]) * 10**7)
    assert many.score().value == pytest.approx(0.2, abs=1e-9)
    p = many.bonus
    assert (p * np.log(p / np.outer(p.sum(1), p.sum(0)))).sum() == pytest.approx(0.0863046, abs=1e-7)
    assert abs(np.linalg.det(p)) == pytest.approx(0.1, abs=1e-12)


@pytest.mark.parametrize(("tasks", "classes"), [(10, 2), (12, 3), (100, 10)])
def test_perfect_agreement_on_even_labels_scores_its_closed_form(tasks, classes):
    labels = np.arange(tasks) % classes
    assert rules.zero_one(Joint.of(labels, labels)).value == pytest.approx(tasks / (tasks - 1) * (1 - 1 / classes))


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 0.9])
def test_a_uniform_misreport_scales_the_truthful_score(rate):
    rng = default_rng(7)
    for classes in (2, 3, 10):
        joint = Joint.of(rng.integers(0, classes, 200), rng.integers(0, classes, 200), classes)
        lied = misreport.expected(joint, misreport.uniform(classes, rate)).score
        assert lied == pytest.approx((1 - rate * classes / (classes - 1)) * joint.score().value, abs=1e-14)


def lying_worlds():
    rng = default_rng(8)
    truth = rng.integers(0, 4, 300)
    peer = np.where(rng.random(300) < 0.8, truth, rng.integers(0, 4, 300))
    rows = rng.dirichlet(np.ones(4) * 0.5, 300) * 0.4 + np.eye(4)[peer] * 0.6
    strata, features = rng.integers(0, 3, 300), rng.normal(size=(300, 2))
    matrices = (
        misreport.uniform(4, 0.3),
        misreport.sparse(4, [(0, 1)], 0.4),
        misreport.permuted([1, 2, 3, 0]),
        rng.dirichlet(np.ones(4), 4),
    )
    for t in matrices:
        for public in (None, strata, features):
            yield peer, truth, public, t, lambda joint: joint
            yield rows, truth, public, t, lambda joint: joint.logs(1e-3)
            yield rows, truth, public, t, lambda joint: joint.doubled()


def test_the_closed_form_of_a_misreport_is_the_mean_and_spread_of_its_draws():
    rng = default_rng(9)
    draws = 400
    for report, truth, public, t, transformed in lying_worlds():
        exact = misreport.expected(transformed(Joint.of(report, truth, 4, public)), t)
        drawn = [
            transformed(Joint.of(misreport.apply(t, report, rng=rng), truth, 4, public)).score().value
            for _ in range(draws)
        ]
        # 5 standard errors of a mean, and of a standard deviation, over 400 draws
        assert abs(np.mean(drawn) - exact.score) <= 5 * exact.draw_error / math.sqrt(draws) + 1e-12
        assert abs(np.std(drawn) - exact.draw_error) <= 5 * exact.draw_error / math.sqrt(2 * draws) + 1e-12


def test_truthful_constant_and_permuted_misreports_do_what_they_say():
    labels = np.array([0, 1, 2, -1, 2])
    rng = default_rng(0)
    assert (misreport.apply(misreport.truthful(3), labels, rng=rng) == labels).all()
    assert misreport.apply(misreport.constant(3, 1), labels, rng=rng).tolist() == [1, 1, 1, -1, 1]
    assert misreport.apply(misreport.permuted([2, 0, 1]), labels, rng=rng).tolist() == [2, 0, 1, -1, 1]
    flipped = misreport.apply(misreport.uniform(3, 0.3), np.zeros(100_000, int), rng=rng)
    assert np.bincount(flipped) / 100_000 == pytest.approx([0.7, 0.15, 0.15], abs=0.01)


@pytest.mark.parametrize("rule", ["zero-one", "ca", "ce", "brier"])
def test_algorithm_1_as_printed_scatters_around_the_exact_score(rule):
    rng = default_rng(10)
    truth = rng.integers(0, 3, 100)
    rows = rng.dirichlet(np.ones(3), (2, 100)) * 0.5 + np.eye(3)[truth] * 0.5
    reports = Reports.of(probabilities=rows)
    sign = {"sign": "plugin"} if rule == "ca" else {}
    exact = verax.score(reports, truth, rule=rule, **sign)["0"]
    sampled = [verax.score(reports, truth, rule=rule, **sign, draws=1, rng=rng)["0"] for _ in range(300)]
    values = np.array([s.score for s in sampled])
    # what sampling adds to the error, as the sampled score states it
    added = math.sqrt(sampled[0].stderr ** 2 - exact.stderr**2)
    assert abs(values.mean() - exact.score) < 5 * added / math.sqrt(300)
    assert values.std() == pytest.approx(added, rel=0.2)
    many = verax.score(reports, truth, rule=rule, **sign, draws=400, rng=rng)["0"]
    assert abs(many.score - exact.score) < 5 * added / 20


def test_merging_shards_of_any_kind_equals_one_pass():
    rng = default_rng(11)
    report, reference = rng.integers(-1, 4, 90), rng.integers(-1, 4, 90)
    rows = np.where((report < 0)[:, None], np.nan, rng.dirichlet(np.ones(4), 90))
    strata, features = rng.integers(0, 3, 90), rng.normal(size=(90, 2))
    cut = [(slice(0, 20)), slice(20, 50), slice(50, 90)]
    for x in (report, rows):
        for public in (None, strata, features):
            whole = Joint.of(x, reference, 4, public)
            parts = [Joint.of(x[c], reference[c], 4, None if public is None else public[c]) for c in cut]
            merged = parts[2].merge(parts[0]).merge(parts[1])
            grown = parts[0].update(x[20:], reference[20:], None if public is None else public[20:])
            for joint in (merged, grown):
                assert (joint.counts == whole.counts).all()
                if x.ndim == 1 and public is not features:
                    assert joint.score().value == whole.score().value
                else:
                    assert joint.score().value == pytest.approx(whole.score().value, abs=1e-12)
                    assert joint.score().stderr == pytest.approx(whole.score().stderr, abs=1e-12)


def test_more_tasks_than_exact_counts_can_hold_are_refused():
    with pytest.raises(verax.InputError, match="64-bit"):
        Joint.of_counts(np.array([[4, 1], [2, 3]]) * 4 * 10**8).score()
