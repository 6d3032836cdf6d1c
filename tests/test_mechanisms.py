"""Which pairs are scored, and how they are put together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng
from scipy.stats import spearmanr

import verax
from verax import InputError, Joint, OptionError, Reports, rules

MODELS = Path(__file__).parents[2] / "shared" / "data" / "cifar10_30_models.npz"


def crowd(seed=0, agents=6, tasks=300, classes=3, accuracy=0.8):
    rng = default_rng(seed)
    truth = rng.integers(0, classes, tasks)
    wrong = rng.integers(1, classes, (agents, tasks))
    return np.where(rng.random((agents, tasks)) < accuracy, truth, (truth + wrong) % classes), truth


def test_mean_and_median_over_peers_are_those_of_the_pairs():
    labels, _ = crowd()
    reports = Reports.of(labels)
    pairs = [rules.zero_one(Joint.of(labels[0], labels[j], 3)).value for j in range(1, 6)]
    assert verax.score(reports)["0"].score == pytest.approx(np.mean(pairs), abs=1e-15)
    assert verax.score(reports, over="median")["0"].score == np.median(pairs)


def test_hybrid_is_both_parts_weighted_by_tasks_answered():
    labels, truth = crowd()
    labels[0, :20] = -1
    known = np.arange(300) < 100
    reports = Reports.of(labels)
    hybrid = verax.score(reports, np.where(known, truth, -1))
    assert hybrid.mechanism.against == "hybrid"
    first = verax.score(reports.take(known), truth[known])["0"]
    second = verax.score(reports.take(~known))["0"]
    assert (first.tasks, second.tasks) == (80, 200)
    assert hybrid["0"].score == pytest.approx((80 * first.score + 200 * second.score) / 280, abs=1e-15)
    assert hybrid["0"].stderr == pytest.approx(np.hypot(80 * first.stderr, 200 * second.stderr) / 280, abs=1e-15)
    assert (hybrid["0"].tasks, hybrid["0"].references) == (280, 6)


def test_hybrid_has_less_variance_than_the_few_labelled_tasks_alone():
    labels, truth = crowd()
    some = np.where(np.arange(300) < 30, truth, -1)
    reports = Reports.of(labels)
    alone = verax.score(reports, some, against="truth")["0"].stderr
    assert verax.score(reports, some)["0"].stderr < alone / 2


def test_a_part_of_fewer_than_two_tasks_is_dropped_and_said():
    labels, truth = crowd()
    one = np.where(np.arange(300) < 1, truth, -1)
    scores = verax.score(Reports.of(labels), one)
    assert any("fewer than 2 labelled tasks" in w for w in scores.warnings)
    rest = verax.score(Reports.of(labels).take(np.arange(300) >= 1))
    assert [s.score for s in scores.scores] == [s.score for s in rest.scores]


def test_accuracy_in_a_hybrid_uses_the_labelled_tasks_only():
    labels, truth = crowd()
    some = np.where(np.arange(300) < 50, truth, -1)
    scores = verax.score(Reports.of(labels), some, rule="accuracy")
    assert scores.mechanism.against == "hybrid"
    assert scores["0"].score == (labels[0, :50] == truth[:50]).mean()
    assert (scores["0"].tasks, scores["0"].references) == (50, 1)


def test_an_agent_that_answers_nothing_has_no_score_and_is_named():
    labels, _ = crowd()
    labels[2] = -1
    scores = verax.score(Reports.of(labels))
    assert (scores["2"].score, scores["2"].stderr, scores["2"].references) == (None, None, 0)
    assert scores["0"].references == 4
    assert any("no score for '2'" in w for w in scores.warnings)
    assert any("2 (0)" in w for w in scores.warnings)


def test_nobody_can_be_scored_without_common_tasks():
    labels = np.array([[0, 1, -1, -1], [-1, -1, 0, 1]])
    with pytest.raises(InputError, match="no agent can be scored"):
        verax.score(Reports.of(labels))


def test_split_learns_a_permutation_that_identity_does_not_pay():
    labels, truth = crowd(tasks=2000, accuracy=0.85)
    permuted = np.array([1, 2, 0])[labels[:1]]
    reports = Reports.of(np.concatenate([labels, permuted]))
    honest, turned = (verax.score(reports, truth, rule="ca", sign="split")[a].score for a in ("0", "6"))
    assert turned == pytest.approx(honest, rel=1e-9)
    assert verax.score(reports, truth)["6"].score < 0


def test_plugin_pays_noise_as_the_theory_says():
    """Independent agents earn about 0.399 (L - 1) / sqrt(N) under plugin, nothing under split or identity."""
    rng = default_rng(1)
    plugin, split, identity = [], [], []
    for _ in range(60):
        reports = Reports.of(rng.integers(0, 10, (2, 1000)), classes=[str(i) for i in range(10)])
        plugin.append(verax.score(reports, rule="ca", sign="plugin")["0"].score)
        split.append(verax.score(reports, rule="ca", sign="split")["0"].score)
        identity.append(verax.score(reports)["0"].score)
    assert np.mean(plugin) == pytest.approx(0.399 * 9 / 1000**0.5, rel=0.05)
    assert abs(np.mean(split)) < 0.01
    assert abs(np.mean(identity)) < 0.01


def test_a_plugin_sign_is_never_silent():
    labels, _ = crowd()
    assert any("never pay" in w for w in verax.score(Reports.of(labels), rule="ca", sign="plugin").warnings)


def test_a_users_own_rule_works_against_truth_peers_and_both():
    labels, truth = crowd()
    reports = Reports.of(labels)

    def mine(joint):
        return float(joint.delta.trace())

    for options in ({"truth": truth}, {}, {"over": "median"}, {"truth": np.where(truth == 0, truth, -1)}):
        own, named = (verax.score(reports, **options, rule=r)["0"] for r in (mine, "zero-one"))
        assert own.score == pytest.approx(named.score, abs=1e-12)
        assert own.stderr == pytest.approx(named.stderr, rel=0.45)  # 50 groups, and the median's is a jackknife


def test_a_users_own_rule_may_bring_its_own_error_and_use_rows():
    rng = default_rng(2)
    rows = rng.dirichlet(np.ones(3), (3, 50))
    reports = Reports.of(probabilities=rows)
    own = verax.score(reports, rule=lambda joint: rules.brier(joint))
    named = verax.score(reports, rule="brier")
    for mine, theirs in zip(own.scores, named.scores, strict=True):
        assert (mine.score, mine.stderr) == pytest.approx((theirs.score, theirs.stderr), rel=1e-12)


def test_a_sybil_ring_takes_from_the_mean_and_nothing_from_the_median():
    """10 honest agents of accuracy 0.8 and a ring of 5: 24.5 % of a pot under the mean, 0 under the median."""
    labels, _ = crowd(seed=3, agents=10, tasks=5000, classes=10)
    ring = np.tile(default_rng(4).integers(0, 10, 5000), (5, 1))
    reports = Reports.of(np.concatenate([labels, ring]))

    def share(over):
        pay = np.maximum([s.score for s in verax.score(reports, over=over).scores], 0)
        return pay[10:].sum() / pay.sum()

    assert share("mean") == pytest.approx(0.245, abs=0.03)
    assert share("median") < 0.01


def test_scores_survive_their_json():
    labels, truth = crowd()
    scores = verax.score(Reports.of(labels), truth, rule="ca", sign="split")
    assert verax.Scores.from_json(scores.to_json()) == scores
    with pytest.raises(InputError, match=r"verax\.scores/1"):
        verax.Scores.from_json({"format": "other"})


def test_python_options_are_refused_with_a_sentence():
    reports = Reports.of(crowd()[0])
    for options in (
        {"over": "one"},
        {"seed": "00"},
        {"draws": 3},
        {"draws": 0, "rng": default_rng(0)},
        {"rule": "ca", "draws": 1, "rng": default_rng(0)},
        {"rule": "ca", "sign": np.eye(2)},
        {"rule": lambda joint: 1.0, "floor": 0.1},
    ):
        with pytest.raises((OptionError, InputError)):
            verax.score(reports, **options)


@pytest.mark.skipif(not MODELS.exists(), reason="labels of 30 public CIFAR-10 models are not on this machine")
def test_thirty_public_models_are_ranked_without_labels():
    with np.load(MODELS) as stored:
        arrays = {name: stored[name] for name in stored.files}
    labels, truth = (arrays[n] for n in ("labels", "truth"))
    reports = Reports.of(labels.astype(int))
    accuracy = (labels == truth).mean(1)
    for options, wanted in (({}, 0.9702), ({"rule": "ca", "sign": "plugin"}, 0.9706)):
        scores = [s.score for s in verax.score(reports, **options).scores]
        assert spearmanr(scores, accuracy).statistic == pytest.approx(wanted, abs=5e-5)


@pytest.mark.skipif(not MODELS.exists(), reason="labels of 30 public CIFAR-10 models are not on this machine")
def test_thirty_copies_of_the_worst_model_rise_above_the_best():
    with np.load(MODELS) as stored:
        labels, truth = stored["labels"].astype(int), stored["truth"]
    worst = (labels == truth).mean(1).argmin()
    before = [s.score for s in verax.score(Reports.of(labels)).scores]
    copies = np.tile(labels[worst], (30, 1))
    after = [s.score for s in verax.score(Reports.of(np.concatenate([labels, copies]))).scores][:30]
    assert before[worst] == min(before)
    assert after[worst] == max(after) > sorted(after)[-2] + 0.02
