"""Spot checks: estimates beside ppi_py and literal sums, draws beside their chances, intervals beside the truth."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng
from scipy import stats
from typer.testing import CliRunner

import verax
import verax.demo
from verax import InputError, OptionError, Reports, estimate_accuracies, plan_labels
from verax.cli import app
from verax.spotcheck import SpotCheck
from verax.spotcheck.accuracies import Accuracies
from verax.spotcheck.belief import Belief
from verax.spotcheck.check import digest_of
from verax.spotcheck.design import Errors, drawn, expected_chances, fewest, shares, ticket
from verax.spotcheck.estimate import drawn_together, means, normal, student
from verax.spotcheck.order import differences

GOLDEN = Path(__file__).parent / "golden"


def world(seed, agents=5, tasks=200, kind="good", gaps=0.0, classes=3):
    """Reports whose consensus is good, or that of a herd that says anything, with the truth."""
    rng = default_rng(seed)
    truth = rng.integers(0, classes, tasks)
    right = rng.uniform(0.5, 0.9, agents)
    labels = np.where(rng.random((agents, tasks)) < right[:, None], truth, rng.integers(0, classes, (agents, tasks)))
    if kind == "herd":
        follows = rng.random(labels.shape) < 0.6
        follows[: agents // 4] = False
        labels = np.where(follows, rng.integers(0, classes, tasks), labels)
    labels[rng.random(labels.shape) < gaps] = -1
    return Reports.of(
        labels, classes=[str(k) for k in range(classes)], agents=[f"a{k:02}" for k in range(agents)]
    ), truth


def labels_of(truth, tasks):
    return {task: str(truth[int(task)]) for task in tasks}


def asked(plan, first=None):
    return [one.task for one in plan.ask[:first]]


def accuracy_of(reports, truth):
    answered = reports.labels >= 0
    right = ((reports.labels == truth) & answered).sum(1) / answered.sum(1)
    return dict(zip(reports.agents, right.tolist(), strict=True))


# The estimator


def drawn_values(seed, n=60, size=500):
    """Guesses of all tasks, and values and guesses of some, evenly drawn."""
    rng = default_rng(seed)
    guess = rng.beta(4, 1, size)
    value = (rng.random(size) < guess).astype(float)
    some = rng.choice(size, n, replace=False)
    return guess, value[some][None], guess[some][None], np.full(n, n / size)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("slope", [0.0, 0.6, 1.0])
def test_evenly_drawn_it_is_prediction_powered_inference(seed, slope):
    ppi = pytest.importorskip("ppi_py")
    guess, v, g, chances = drawn_values(seed)
    n, size = v.shape[1], len(guess)
    found = means(v, g, np.full(v.shape, True), chances, guess.mean(keepdims=True), np.array([size]), 0.0, slope)
    value = ppi.ppi_mean_pointestimate(v[0], g[0], guess, lam=slope)
    assert found.value[0] == pytest.approx(np.squeeze(value).item(), abs=1e-12)
    low, high = (np.squeeze(x).item() for x in ppi.ppi_mean_ci(v[0], g[0], guess, alpha=0.05, lam=slope))
    # theirs is of tasks like these: the guesses of all are a sample too, and nothing is taken off for those labelled
    rectifier = found.stderr[0] ** 2 * (n - 1) / n / (1 - n / size)
    assert (high - low) / 2 == pytest.approx(1.959964 * math.sqrt(rectifier + slope**2 * guess.var() / size), rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_slope_is_ppi_pys_up_to_what_it_samples(seed):
    ppi = pytest.importorskip("ppi_py")
    guess, v, g, chances = drawn_values(seed, n=2000, size=4000)
    n, size = v.shape[1], len(guess)
    found = means(v, g, np.full(v.shape, True), chances, guess.mean(keepdims=True), np.array([size]))
    value = np.squeeze(ppi.ppi_mean_pointestimate(v[0], g[0], guess)).item()
    theirs = (value - v.mean()) / (guess.mean() - g.mean())
    assert found.slope[0] == pytest.approx(min(1.0, theirs * (1 + n / size)), abs=0.06)


def test_a_weighted_mean_is_the_literal_sum():
    rng = default_rng(3)
    v, g, chances = rng.random(12), rng.random(12), rng.uniform(0.1, 1.0, 12)
    inside = rng.random(12) < 0.7
    found = means(v[None], g[None], inside[None], chances, np.array([0.4]), np.array([50]), 0.0, 0.7)
    total = weights = 0.0
    for n in range(12):
        if inside[n]:
            total += (v[n] - 0.7 * g[n]) / chances[n]
            weights += 1 / chances[n]
    assert found.value[0] == pytest.approx(0.7 * 0.4 + total / weights)
    spread = 0.0
    for n in range(12):
        if inside[n]:
            spread += (1 - chances[n]) / chances[n] ** 2 * (v[n] - 0.7 * g[n] - total / weights) ** 2
    m = inside.sum()
    assert found.stderr[0] ** 2 == pytest.approx(spread / weights**2 * m / (m - 1))


def test_guesses_that_are_no_good_are_left_out():
    rng = default_rng(0)
    v, g = rng.integers(0, 2, (1, 5000)).astype(float), rng.random((1, 5000))
    chances, size = np.full(5000, 0.1), np.array([50_000])
    found = means(v, g, np.full(v.shape, True), chances, np.array([0.5]), size)
    assert found.slope[0] < 0.05
    assert found.stderr[0] == pytest.approx(math.sqrt(0.9 * v.var() / 5000), rel=0.01)


def test_students_t_is_scipys():
    freedom = np.arange(6, 200)
    for z in (1.0, 1.96, 3.0, 4.0):
        wanted = stats.t.isf(stats.norm.sf(z), freedom)
        assert student(z, freedom) == pytest.approx(wanted, rel=0.05)
        assert student(z, freedom[7:]) == pytest.approx(wanted[7:], rel=0.01)
        assert normal(student(z, freedom), freedom) == pytest.approx(z)


def test_values_are_drawn_towards_guesses_as_far_as_they_scatter_by_chance():
    rng = default_rng(1)
    off = rng.normal(0.1, 0.03, 4000)
    guess, error = rng.uniform(0.5, 0.9, 4000), 0.04
    value = guess + off + rng.normal(0, error, 4000)
    found = drawn_together(guess, value, np.full(4000, error**2))
    kept = 0.03**2 / (0.03**2 + error**2)  # the best linear shrinkage
    best = guess + 0.1 + kept * (value - guess - 0.1)
    assert np.abs(found - best).max() < 0.01
    assert np.mean((found - guess - off) ** 2) < 0.45 * np.mean((value - guess - off) ** 2)


def test_what_is_known_is_not_drawn_anywhere_and_what_is_not_goes_with_its_guess():
    value, guess = np.array([0.9, 0.5, 0.1]), np.array([0.8, 0.7, 0.6])
    assert drawn_together(guess, value, np.zeros(3)) == pytest.approx(value)
    found = drawn_together(guess, np.nan_to_num(value), np.array([0.01, 0.01, np.inf]))
    assert found[2] == pytest.approx(0.6 + (0.1 - 0.2) / 2)
    assert drawn_together(guess, value, np.full(3, np.inf)).tolist() == guess.tolist()


# The draw


def test_a_ticket_is_the_sha_256_sum_over_the_share():
    import hashlib

    number = int(hashlib.sha256(b"spot:t1").hexdigest(), 16) + 1
    assert ticket("spot", "t1", 2.5) == pytest.approx(number / 2**256 / 2.5, rel=1e-15)


@pytest.mark.parametrize("first", [2, 4])
def test_dividing_by_the_chance_is_right_in_the_mean(first):
    tasks, share = [f"t{n}" for n in range(6)], np.array([0.6, 0.6, 0.8, 1.0, 1.0, 2.0])
    weights = []
    for seed in range(4000):
        order, tickets = drawn(tasks, share, str(seed))
        weights.append(np.zeros(6))
        chosen = order[:first]
        weights[-1][chosen] = 1 / np.minimum(1.0, share[chosen] * tickets[first])
    seen = np.array(weights)
    far = (seen.mean(0) - 1) / (seen.std(0) / math.sqrt(len(seen)))
    assert np.abs(far).max() < 4


def test_chances_sum_to_the_labels_and_follow_the_shares():
    share = default_rng(0).uniform(0.6, 3.0, 50)
    for labels in (5, 25, 45, 50):
        found = expected_chances(share, labels)
        assert found.sum() == pytest.approx(labels)
        free = found < 1
        assert np.ptp(found[free] / share[free]) < 1e-9 if free.any() else labels == 50


def test_no_chance_is_far_below_an_even_one():
    for kind in ("good", "herd"):
        reports, _ = world(1, agents=12, kind=kind)
        for about in ("order", "accuracy"):
            share = shares(reports.labels, Belief.of(reports.labels), about)
            assert share.min() >= 0.6 - 1e-12
            assert share.mean() == pytest.approx(1.0)


def test_a_task_on_which_all_agree_says_nothing_of_the_order():
    labels = np.array([[0, 1, 0, 1], [0, 1, 1, 0], [0, 1, 0, 0]])
    share = shares(labels, Belief.of(labels), "order")
    assert share[:2].tolist() == [0.6, 0.6]
    assert share[2:].min() > 1
    alike = np.array([[0, 1, 0, 1]] * 3)
    assert shares(alike, Belief.of(alike), "order").tolist() == [1.0] * 4


@pytest.mark.parametrize("agents", [6, 20])
def test_a_belief_of_an_answer_is_that_of_all_the_others(agents):
    reports, _ = world(2, agents=agents)
    right = Belief.of(reports.labels).right
    for i in range(3):
        alone = np.zeros(reports.labels.shape[1])
        others = np.delete(reports.labels, i, axis=0)
        rows = Belief.of(others).rows
        alone = rows[np.arange(len(alone)), reports.labels[i]]
        assert np.mean(np.abs(right[i] - alone)) < 0.05  # refitted without the agent: nearly the same


def test_fewest_is_the_first_that_is_enough():
    assert [fewest(lambda k, at=at: k >= at, 10) for at in (1, 5, 10, 99)] == [1, 5, 10, 10]


# A plan


def test_a_plan_asks_for_so_many_tasks_once_each_with_their_chances():
    reports, _ = world(0)
    plan = plan_labels(reports, 40, seed="s")
    assert len(set(asked(plan))) == 40
    assert all(0 < one.chance <= 1 for one in plan.ask)
    assert SpotCheck.from_json(plan.to_json()) == plan
    assert plan.to_json()["format"] == "verax.spotcheck/1"


def test_asking_for_more_begins_with_the_same():
    reports, _ = world(0)
    few, many = plan_labels(reports, 20, seed="s"), plan_labels(reports, 60, seed="s")
    assert asked(many, 20) == asked(few)
    assert asked(plan_labels(reports, 20, seed="other")) != asked(few)


def test_without_a_seed_a_fresh_one_stands_in_the_plan():
    reports, _ = world(0)
    one, other = plan_labels(reports, 20), plan_labels(reports, 20)
    assert one.seed != other.seed
    assert plan_labels(reports, 20, seed=one.seed) == one


@pytest.mark.parametrize("gaps", [0.0, 0.5])
@pytest.mark.parametrize("about", ["order", "accuracy"])
def test_the_order_of_names_changes_nothing(gaps, about):
    reports, truth = world(4, agents=7, gaps=gaps)
    rows, columns = default_rng(0).permutation(7), default_rng(1).permutation(200)
    moved = Reports.of(
        reports.labels[np.ix_(rows, columns)], classes=reports.classes,
        agents=[reports.agents[k] for k in rows], tasks=[reports.tasks[n] for n in columns],
    )  # fmt: skip
    plan = plan_labels(reports, 40, seed="s", about=about)
    assert plan_labels(moved, 40, seed="s", about=about) == plan
    known = labels_of(truth, asked(plan))
    assert estimate_accuracies(moved, known, plan) == estimate_accuracies(reports, known, plan)


def test_the_wanted_error_is_reached_with_as_few_labels_as_that_takes():
    reports, _ = world(0, tasks=400)
    for about in ("order", "accuracy"):
        plan = plan_labels(reports, wanted=0.03, about=about, seed="s")
        held = replace(reports)
        belief = Belief.of(held.labels)
        share = shares(held.labels, belief, about)
        errors = Errors.of_accuracies(held.labels, belief)
        if about == "order":
            ranked = np.argsort(-errors.value, kind="stable")
            errors = Errors.of_differences(held.labels, belief, ranked[:-1], ranked[1:])
        count = len(plan.ask)
        assert errors.stderrs(expected_chances(share, count)).max() <= 0.03
        assert errors.stderrs(expected_chances(share, count - 1)).max() > 0.03


def test_the_errors_that_a_plan_expects_are_about_those_that_come():
    reports, truth = world(5, agents=8, tasks=1000)
    plan = plan_labels(reports, 100, seed="s")
    found = estimate_accuracies(reports, labels_of(truth, asked(plan)), plan)
    for one in plan.agents:
        assert one.stderr / 3 < found[one.agent].stderr < one.stderr * 1.5
    assert plan.even > 100 and plan.alone > plan.even


# Estimates


def test_all_labels_leave_nothing_open():
    reports, truth = world(6, agents=6, gaps=0.2)
    found = estimate_accuracies(reports, labels_of(truth, reports.tasks))
    right = accuracy_of(reports, truth)
    for one in found:
        assert one.accuracy == pytest.approx(right[one.agent])
        assert one.likely == pytest.approx(right[one.agent])
        assert one.interval == pytest.approx((right[one.agent],) * 2)
    for c in found.neighbours:
        assert c.difference == pytest.approx(right[c.a] - right[c.b])
        assert (c.stderr, c.p_value) == (0, 0)
    assert [(r.agent, r.low, r.high) for r in found.ranks] == [
        (agent, k, k) for k, agent in enumerate(sorted(right, key=right.get, reverse=True), 1)
    ]
    assert found.warnings == ()


# 40 draws of each of four worlds; the intervals are of all agents, the deviation of a share of them about 0.02
@pytest.mark.parametrize(
    ("kind", "agents", "tasks", "labels"),
    [
        ("good", 5, 1000, 30),
        pytest.param("good", 20, 200, 100, marks=pytest.mark.slow),
        pytest.param("herd", 5, 1000, 100, marks=pytest.mark.slow),
        ("herd", 20, 200, 30),
        pytest.param("herd", 5, 200, 30, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("planned", [True, False])
def test_intervals_hold_whatever_the_answers_are_worth(kind, agents, tasks, labels, planned):
    held, pairs, wrong, worse = [], [], 0, []
    for seed in range(4):
        reports, truth = world(seed, agents, tasks, kind)
        right = accuracy_of(reports, truth)
        for draw in range(20):
            plan = plan_labels(reports, labels, seed=str(draw)) if planned else None
            some = asked(plan) if plan else default_rng(draw).choice(reports.tasks, labels, replace=False).tolist()
            found = estimate_accuracies(reports, labels_of(truth, some), plan)
            held += [one.interval[0] <= right[one.agent] <= one.interval[1] for one in found]
            gaps = [(c, right[c.a] - right[c.b]) for c in found.neighbours]
            pairs += [c.interval[0] - 1e-9 <= gap <= c.interval[1] + 1e-9 for c, gap in gaps]
            wrong += any(c.decided() and gap < 0 for c, gap in gaps)
            worse += [(one.accuracy - right[one.agent]) ** 2 for one in found]
    assert np.mean(held) >= 0.92
    assert np.mean(pairs) >= 0.92
    assert wrong <= 4  # of 80: all comparisons hold together 95 times in 100
    alone = np.mean([x * (1 - x) for x in right.values()]) / labels * (1 - labels / tasks)
    assert np.mean(worse) < alone * (0.5 if kind == "good" else 1.3)


def test_stopping_early_is_a_sample_too():
    reports, truth = world(7, tasks=300)
    plan = plan_labels(reports, 80, seed="s")
    few = plan_labels(reports, 30, seed="s")
    known = labels_of(truth, asked(plan, 30))
    assert estimate_accuracies(reports, known, plan) == estimate_accuracies(reports, known, few)


def test_tasks_skipped_are_said_and_taken_as_left_out_by_chance():
    reports, truth = world(7, tasks=300)
    plan = plan_labels(reports, 60, seed="s")
    known = labels_of(truth, [task for k, task in enumerate(asked(plan)) if k % 3])
    found = estimate_accuracies(reports, known, plan)
    assert found.labels == 40
    assert "without a label in between" in found.warnings[0]
    right = accuracy_of(reports, truth)
    assert all(one.interval[0] <= right[one.agent] <= one.interval[1] for one in found)


def test_labels_that_were_there_before_are_not_asked_for_and_count():
    reports, truth = world(8, tasks=300)
    before = labels_of(truth, reports.tasks[:100])
    plan = plan_labels(reports, 50, truth=before, seed="s")
    assert not set(asked(plan)) & set(before)
    assert set(plan.known) == set(before)
    found = estimate_accuracies(reports, before | labels_of(truth, asked(plan)), plan)
    assert found.labels == 150
    right = accuracy_of(reports, truth)
    assert all(one.interval[0] <= right[one.agent] <= one.interval[1] for one in found)
    with pytest.raises(InputError, match=r"took the labels of .* as known, and they are not given"):
        estimate_accuracies(reports, labels_of(truth, asked(plan)), plan)


def test_tasks_known_before_leave_only_the_others_open():
    held = []
    for seed in range(3):
        reports, truth = world(seed, tasks=300, kind="herd")
        before, right = labels_of(truth, reports.tasks[:280]), accuracy_of(reports, truth)
        for draw in range(15):
            plan = plan_labels(reports, 10, truth=before, seed=str(draw))
            found = estimate_accuracies(reports, before | labels_of(truth, asked(plan)), plan)
            held += [
                one.interval[0] <= right[one.agent] + 1e-12 and right[one.agent] <= one.interval[1] for one in found
            ]
            assert max(one.stderr for one in found) < 0.03  # ten labels of three hundred would leave 0.16
    assert np.mean(held) >= 0.92


def test_without_a_plan_the_assumption_is_said():
    reports, truth = world(0)
    found = estimate_accuracies(reports, labels_of(truth, reports.tasks[:30]))
    assert "taken as drawn evenly" in found.warnings[-1]


def test_an_agent_without_labelled_tasks_has_only_what_is_likely():
    reports, truth = world(9, agents=5)
    labels = reports.labels.copy()
    labels[0, :60] = -1
    reports = Reports.of(labels, classes=reports.classes, agents=reports.agents)
    found = estimate_accuracies(reports, labels_of(truth, reports.tasks[:60]))
    one = found["a00"]
    assert (one.accuracy, one.stderr, one.interval, one.labels) == (None, None, None, 0)
    assert abs(one.likely - accuracy_of(reports, truth)["a00"]) < 0.1
    assert "a00" in found.warnings[-1]
    assert not any(c.decided() for c in found.neighbours if "a00" in (c.a, c.b))
    assert Accuracies.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_equal_reports_differ_by_exactly_nothing():
    reports, truth = world(3)
    twice = Reports.of(np.vstack([reports.labels, reports.labels[:1]]), classes=reports.classes)
    found = estimate_accuracies(twice, labels_of(truth, reports.tasks[:50]))
    same = next(c for c in found.neighbours if {c.a, c.b} == {"0", "5"})
    assert (same.difference, same.p_value, same.differ, same.decide) == (0.0, 1.0, 0, None)


def test_one_agent_and_answers_of_one_only_can_be_checked_too():
    truth = default_rng(0).integers(0, 2, 100)
    alone = Reports.of(np.where(default_rng(1).random(100) < 0.8, truth, 1 - truth)[None], classes=["0", "1"])
    plan = plan_labels(alone, 30, seed="s")
    found = estimate_accuracies(alone, labels_of(truth, asked(plan)), plan)
    assert found.accuracies[0].interval[0] < accuracy_of(alone, truth)["0"] < found.accuracies[0].interval[1]
    assert (found.pairs, found.neighbours, found.ranks[0].high) == (0, (), 1)
    same = Reports.of(np.zeros((2, 10), dtype=int), classes=["0", "1"])
    assert estimate_accuracies(same, {"0": "1", "1": "0", "2": "0"}).labels == 3


def test_a_label_that_nobody_said_is_an_error_of_all_of_them():
    reports = Reports.of([["x", "y", "x", "y"], ["x", "y", "y", "y"]])
    found = estimate_accuracies(reports, {"0": "z", "1": "y", "2": "z", "3": "y"})
    assert [one.accuracy for one in found] == [0.5, 0.5]


@pytest.mark.parametrize("count", [301, 300])
def test_of_many_agents_only_neighbours_are_compared(count):
    reports, truth = world(0, agents=count, tasks=40)
    found = estimate_accuracies(reports, labels_of(truth, reports.tasks[:20]))
    assert len(found.neighbours) == count - 1
    assert found.pairs == (count - 1 if count > 300 else count * (count - 1) // 2)
    assert len(found.ranks) == (0 if count > 300 else count)


def test_a_digest_is_of_what_is_reported():
    one = Reports.of([["x", "y", "x"], ["y", "y", None]], agents=["a", "b"])
    moved = Reports.of([["y", "y", None], ["x", "y", "x"]], agents=["b", "a"], classes=["y", "x", "unused"])
    assert digest_of(one) == digest_of(moved)
    for other in ([["x", "y", "y"], ["y", "y", None]], [["x", "y", "x"], ["y", "y", "x"]]):
        assert digest_of(Reports.of(other, agents=["a", "b"])) != digest_of(one)
    assert digest_of(Reports.of([["x", "y", "x"], ["y", "y", None]], agents=["a", "c"])) != digest_of(one)


# How sure an order is


@pytest.mark.parametrize(("ups", "downs"), [(3, 0), (6, 0), (12, 0), (9, 1), (17, 3), (28, 2), (30, 10)])
def test_a_difference_of_few_tasks_is_no_surer_than_the_sign_test_makes_it(ups, downs):
    n, size = ups + downs, 1_000_000
    values = np.array([[1.0] * ups + [0.0] * downs, [0.0] * ups + [1.0] * downs])
    inside, chances = np.full((2, n), True), np.full(n, n / size)
    found = means(values, np.zeros((2, n)), inside, chances, np.zeros(2), np.full(2, size))
    one = differences(found, inside, chances, np.array([0]), np.array([1]), 1.96)
    exact = stats.binomtest(ups, n).pvalue
    assert one.value[0] == pytest.approx((ups - downs) / n)
    assert 0.8 * exact < one.p_value[0] < 4 * exact
    turned = differences(found, inside, chances, np.array([1]), np.array([0]), 1.96)
    assert turned.p_value == pytest.approx(one.p_value) and turned.value == -one.value


def test_no_order_is_decided_wrongly_where_agents_share_few_tasks():
    """Sixty agents on a sixth of the tasks each: 1,770 pairs, many of which differ on a handful."""
    wrong = decided = 0
    for seed in range(3):
        reports, truth = world(seed, agents=60, tasks=300, gaps=5 / 6)
        right = accuracy_of(reports, truth)
        rank = {agent: k for k, agent in enumerate(sorted(right, key=right.get, reverse=True), 1)}
        for draw in range(4):
            plan = plan_labels(reports, 150, seed=str(draw))
            found = estimate_accuracies(reports, labels_of(truth, asked(plan)), plan)
            wrong += not all(r.low <= rank[r.agent] <= r.high for r in found.ranks)
            decided += found.pairs - found.open
    assert wrong == 0
    assert decided > 0


# What is refused


@pytest.mark.parametrize(
    ("asked_for", "said"),
    [
        ({}, "neither a number of labels nor a wanted error; give one of label= and wanted="),
        ({"label": 5, "wanted": 0.1}, "both label= and wanted="),
        ({"label": 1}, "1 labels of 200 tasks without one; give a number from 2 to 200"),
        ({"label": 201}, "201 labels of 200 tasks"),
        ({"wanted": 0.0}, "the wanted error is 0"),
        ({"wanted": 2.0}, "the wanted error is 2"),
        ({"label": 5, "about": "rank"}, "about is 'rank'; give one of order, accuracy"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(asked_for, said):
    with pytest.raises(OptionError, match=said.replace("(", r"\(")):
        plan_labels(world(0)[0], **asked_for)


def test_labels_that_do_not_fit_are_refused():
    reports, truth = world(0)
    plan = plan_labels(reports, 20, seed="s")
    known = labels_of(truth, asked(plan))
    strange = next(task for task in reports.tasks if task not in known)
    with pytest.raises(InputError, match=f"labels of '{strange}', which the plan does not ask for"):
        estimate_accuracies(reports, known | labels_of(truth, [strange]), plan)
    with pytest.raises(InputError, match="has the unknown label 'dog'"):
        estimate_accuracies(reports, known | {plan.ask[0].task: "dog"}, plan)
    with pytest.raises(InputError, match="none of its 1 tasks is in the reports"):
        estimate_accuracies(reports, {"elsewhere": "1"}, plan)
    with pytest.raises(InputError, match="only 1 task has a label"):
        estimate_accuracies(reports, labels_of(truth, asked(plan, 1)), plan)
    with pytest.raises(InputError, match="made for other reports"):
        estimate_accuracies(world(1)[0], known, plan)
    with pytest.raises(OptionError, match="the confidence is 1"):
        estimate_accuracies(reports, known, plan, confidence=1.0)
    with pytest.raises(InputError, match="0 tasks are without a label"):
        plan_labels(reports, 5, truth=labels_of(truth, reports.tasks))


def test_what_would_not_fit_is_refused_before_it_is_made():
    wide = Reports.of_answers(
        [0, 1], [0, 1], [0, 1], agents=[str(k) for k in range(20_000)], tasks=[str(n) for n in range(20_000)]
    )
    for refused in (lambda: plan_labels(wide, 5), lambda: estimate_accuracies(wide, {"0": "0", "1": "1"})):
        with pytest.raises(InputError, match="20,000 agents x 20,000 tasks are more than a spot check holds"):
            refused()


def test_reports_held_answer_by_answer_give_the_same():
    reports, truth = world(4, agents=7, gaps=0.5)
    k, n = np.nonzero(reports.labels >= 0)
    listed = Reports.of_answers(
        k, n, reports.labels[k, n], agents=reports.agents, tasks=reports.tasks, classes=reports.classes
    )
    plan = plan_labels(reports, 40, seed="s")
    assert plan_labels(listed, 40, seed="s") == plan
    known = labels_of(truth, asked(plan))
    assert estimate_accuracies(listed, known, plan) == estimate_accuracies(reports, known, plan)


@pytest.mark.parametrize(
    "broken",
    [
        {"about": "luck"},
        {"ask": [{"task": "1", "chance": 0.0, "share": 1.0}]},
        {"ask": [{"task": "1", "chance": 0.5, "share": 0.0}]},
        {"ask": [{"task": "1", "chance": 0.5, "share": 1.0}] * 2},
        {"tasks": 3},
    ],
)
def test_a_plan_that_nobody_drew_is_refused(broken):
    document = plan_labels(world(0)[0], 5, seed="s").to_json() | broken
    with pytest.raises(InputError, match="plan the labels again"):
        SpotCheck.from_json(document)


# The command


def run(*args, code=0):
    result = CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "100"})
    assert result.exit_code == code, result.stderr
    return result


@pytest.fixture
def folder(tmp_path):
    reports, truth = world(0, tasks=120)
    verax.write(reports, tmp_path / "reports.csv")
    with open(tmp_path / "truth.csv", "w", newline="") as file:
        csv.writer(file).writerows([["task", "label"], *labels_of(truth, reports.tasks).items()])
    return tmp_path


def filled(folder, rows=None):
    """What a person makes of the file of tasks: its labels filled in."""
    truth = dict(csv.reader((folder / "truth.csv").read_text().splitlines()))
    lines = (folder / "ask.csv").read_text().splitlines()
    assert lines[0] == "task,label" and all(line.endswith(",") for line in lines[1:])
    done = [f"{line}{truth[line[:-1]]}" if rows is None or k <= rows else line for k, line in enumerate(lines) if k]
    (folder / "filled.csv").write_text("\n".join(["task,label", *done]) + "\n")


@pytest.mark.parametrize("rows", [None, 15])
def test_plan_label_and_estimate_follow_one_another(folder, rows):
    reports, plan = folder / "reports.csv", folder / "plan.json"
    shown = run("plan", reports, "--label", 30, "--seed", "s", "-o", plan, "--csv", folder / "ask.csv").stdout
    assert "30 of 120 tasks to label" in shown and "20 more" in shown
    filled(folder, rows)
    found = json.loads(run("plan", reports, "--truth", folder / "filled.csv", "--from", plan, "--json").stdout)
    assert found["format"] == "verax.accuracies/1"
    assert list(found) == ["format", "tasks", "labels", "confidence", "accuracies", "neighbours", "ranks", "pairs",
                           "open", "worth", "warnings"]  # fmt: skip
    assert (found["labels"], found["warnings"]) == (rows or 30, [])
    held = verax.read(reports)
    truth = verax.read_truth(folder / "filled.csv", held).truth
    made = SpotCheck.from_json(json.loads(plan.read_text()))
    assert estimate_accuracies(held, truth, made).to_json() == found


def test_more_labels_go_on_from_a_plan(folder):
    run("plan", folder / "reports.csv", "--label", 10, "-o", folder / "plan.json")
    more = run("plan", folder / "reports.csv", "--label", 25, "--from", folder / "plan.json", "--json").stdout
    first, then = json.loads((folder / "plan.json").read_text()), json.loads(more)
    assert [a["task"] for a in then["ask"]][:10] == [a["task"] for a in first["ask"]]
    said = run("plan", folder / "reports.csv", "--label", 25, "--from", folder / "plan.json", "--seed", "x", code=2)
    assert "leave --about and --seed out" in said.stderr


@pytest.mark.parametrize("kind", ["plan", "estimate"])
def test_a_page_has_every_row(folder, kind):
    page = folder / "page.html"
    how = ["--label", "60", "--seed", "s"] if kind == "plan" else ["--truth", folder / "truth.csv"]
    run("plan", folder / "reports.csv", *how, "--html", page)
    assert page.read_text().count("<tr>") >= (60 if kind == "plan" else 5)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "nothing to plan or to estimate; give --label, --wanted or --truth"),
        (["--label", "9999"], "9999 labels of 120 tasks"),
        (["--label", "5", "--about", "x"], "about is 'x'"),
        (["--truth", "truth.csv", "--csv", "new.csv"], "--csv is for planning"),
        (["--truth", "truth.csv", "--seed", "s"], "--seed is for planning"),
        (["--truth", "truth.csv", "--from", "truth.csv"], "not JSON"),
        (["--truth", "truth.csv", "--from", "scores.json"], "not a document of format verax.spotcheck/1"),
        (["--truth", "nowhere.csv"], "nowhere.csv"),
        (["--label", "5", "--csv", "reports.csv"], "write to another file"),
        (["--label", "5", "-o", "reports.csv"], "write to another file"),
    ],
)
def test_bad_input_gets_one_sentence_and_nothing_is_written(folder, monkeypatch, args, said):
    monkeypatch.chdir(folder)
    run("score", "reports.csv", "-o", "scores.json")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    refused = run("plan", "reports.csv", *args, code=2)
    assert said in refused.stderr and refused.stderr.count("\n") == 1
    assert refused.stdout == ""
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# What the docs say


def test_the_docs_table_is_what_the_study_left():
    root = Path(__file__).parents[1]
    rows = json.loads((root / "paper" / "results" / "spotcheck.json").read_text())
    page = (root / "docs" / "spotcheck.md").read_text()
    for row in rows:
        for count in (20, 50, 100, 200):
            alone, planned = row[f"alone {count}"], row[f"order {count}"]
            errors = (alone["error"], planned["error"], planned["likely"], planned["covered"])
            cells = [f"{x:.3f}" for x in errors] + [f"{x['tau']:.2f}" for x in (alone, planned)]
            cells += [f"{planned[f'alone for {key}']:,}" for key in ("error", "likely")]
            assert f"| {' | '.join([row['set'], str(count), *cells])} |" in page


def test_the_example_is_what_its_plan_asked_for():
    folder = Path(__file__).parents[1] / "examples" / "spotcheck"
    kept = SpotCheck.from_json(json.loads((folder / "plan.json").read_text()))
    assert kept.reports == digest_of(verax.demo.bundled())
    assert {line.split(",")[0] for line in (folder / "labelled.csv").read_text().split()[1:]} == {*asked(kept)}
