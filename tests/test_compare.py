"""Comparisons: differences beside rescored reports, p-values beside permutations and scipy, ranks beside the truth."""

import json

import numpy as np
import pytest
from numpy.random import default_rng
from scipy import stats

import verax
from verax import InputError, OptionError, Reports, compare, score
from verax.compare import holm, swap_p_value


def world(seed, accuracies, tasks, classes=3, gaps=0.0):
    """Labels of agents that are right so often, and the truth."""
    rng = default_rng(seed)
    truth = rng.integers(0, classes, tasks)
    right = rng.random((len(accuracies), tasks)) < np.array(accuracies)[:, None]
    labels = np.where(right, truth, rng.integers(0, classes, right.shape))
    labels[rng.random(labels.shape) < gaps] = -1
    return labels, truth


def rows_of(labels, classes, rng):
    """Probability rows whose largest entry is the label."""
    rows = rng.dirichlet(np.ones(classes), labels.shape)
    at = np.indices(labels.shape)
    top = rows.argmax(2)
    held = rows[(*at, labels)].copy()
    rows[(*at, labels)] = rows[(*at, top)]
    rows[(*at, top)] = held
    return rows


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rule", ["zero-one", "ce", "brier"])
@pytest.mark.parametrize("known", [0, 20, 60])
def test_a_difference_is_that_of_two_scores_beside_the_same_references(seed, rule, known):
    labels, truth = world(seed, [0.9, 0.7, 0.6, 0.5], 60)
    rows = rows_of(labels, 3, default_rng(seed))
    reports = Reports.of(probabilities=rows)
    truth = np.where(np.arange(60) < known, truth, -1) if known else None
    one = compare(reports, "0", "1", truth, rule=rule).comparisons[0]
    beside = [score(reports.only(i, 2, 3), truth, rule=rule)["01"[i]] for i in (0, 1)]
    assert known or one.tasks == 60
    if known == 60:
        assert one.difference == pytest.approx(beside[0].score - beside[1].score, abs=1e-12)
    elif not known:  # each beside agents 2 and 3 alone, not beside each other's
        alone = [np.mean([score(reports.only(i, r), rule=rule)["01"[i]].score for r in (2, 3)]) for i in (0, 1)]
        assert one.difference == pytest.approx(alone[0] - alone[1], abs=1e-12)


@pytest.mark.parametrize("gaps", [0.0, 0.4])
@pytest.mark.parametrize("against", ["truth", "peers", "hybrid"])
def test_swapping_the_reports_turns_every_term(gaps, against):
    labels, truth = world(3, [0.9, 0.6, 0.7, 0.8], 40, gaps=gaps)
    if against == "hybrid":
        truth = np.where(np.arange(40) < 15, truth, -1)
    swap = default_rng(0).random(40) < 0.5
    swapped = labels.copy()
    swapped[:2, swap] = labels[1::-1, swap]
    given = None if against == "peers" else truth
    both = (labels[:2] >= 0).all(0)  # who alone answered a task gains nothing by a swap
    labels[:2, ~both] = swapped[:2, ~both] = -1
    there, back = (compare(Reports.of(x), "0", "1", given).comparisons[0] for x in (labels, swapped))
    again = compare(Reports.of(labels), "1", "0", given).comparisons[0]
    assert again.difference == pytest.approx(-there.difference, abs=1e-12)
    assert again.p_value == pytest.approx(there.p_value, abs=1e-12)
    assert back.stderr == pytest.approx(there.stderr, rel=0.5) and back.differ == there.differ


@pytest.mark.parametrize("against", ["truth", "peers"])
@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_the_p_value_is_that_of_a_permutation_test(against, gaps):
    """Beside scipy's: all swaps of two reports, rescored."""
    for seed in range(3):
        labels, truth = world(seed, [0.8, 0.5, 0.7], 11, classes=2, gaps=gaps)
        labels[:2, (labels[:2] < 0).any(0)] = -1
        both = (labels[0] >= 0).nonzero()[0]

        def difference(a, b, axis=-1, labels=labels, truth=truth, both=both):
            mine = labels.copy()
            mine[0, both], mine[1, both] = a, b
            return compare(Reports.of(mine), "0", "1", truth if against == "truth" else None).comparisons[0].difference

        exact = stats.permutation_test(
            (labels[0, both], labels[1, both]), difference, permutation_type="samples", vectorized=False,
            n_resamples=np.inf, alternative="two-sided",
        )  # fmt: skip
        seen = compare(Reports.of(labels), "0", "1", truth if against == "truth" else None).comparisons[0]
        assert seen.difference == pytest.approx(exact.statistic, abs=1e-12)
        assert seen.p_value == pytest.approx(min(1.0, exact.pvalue), abs=0.02)


@pytest.mark.parametrize("seed", range(6))
def test_many_swaps_agree_with_drawn_ones(seed):
    rng = default_rng(seed)
    terms = [
        rng.normal(0.05, 1, 40), rng.choice([-1.0, 1.0], 300, p=[0.45, 0.55]), rng.exponential(1, 25) - 0.7,
        rng.normal(0.02, 1, 900), rng.choice([-3.0, -1.0, 0.0, 2.0], 120), rng.choice([0.1, -0.3, 0.7], 17) - 0.2,
    ][seed]  # fmt: skip
    drawn = rng.choice([-1.0, 1.0], (100_000, len(terms))) @ terms
    share = (np.abs(drawn) >= abs(terms.sum()) - 1e-9 * np.abs(terms).sum()).mean()
    assert swap_p_value(terms) == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 1e5) + 2e-4)


@pytest.mark.parametrize(("wins", "losses"), [(9, 1), (30, 14), (200, 150), (5, 5), (1, 0), (3000, 2800), (400, 0)])
def test_accuracies_are_compared_by_the_exact_sign_test(wins, losses):
    truth = np.zeros(wins + losses + 20, dtype=int)
    truth[-10:] = 1
    a, b = truth.copy(), truth.copy()
    b[:wins] = 1 - b[:wins]
    a[wins : wins + losses] = 1 - a[wins : wins + losses]
    seen = compare(Reports.of([a, b]), "0", "1", truth, rule="accuracy").comparisons[0]
    exact = stats.binomtest(wins, wins + losses).pvalue
    assert seen.p_value == pytest.approx(exact, rel=1e-9, abs=1e-14)
    assert seen.differ == wins + losses and seen.difference == pytest.approx((wins - losses) / len(truth))


def test_no_difference_is_no_evidence():
    labels, truth = world(1, [0.9, 0.5, 0.6], 50)
    labels[1] = labels[0]
    for against in (None, truth):
        seen = compare(Reports.of(labels), "0", "1", against).comparisons[0]
        assert (seen.difference, seen.p_value, seen.differ, seen.decide) == (0.0, 1.0, 0, None)


def test_p_values_are_even_where_nothing_differs():
    found = []
    for seed in range(400):
        labels, _ = world(seed, [0.7, 0.7, 0.8, 0.6], 80, classes=2, gaps=0.2)
        found.append(compare(Reports.of(labels), "0", "1").comparisons[0].p_value)
    for level in (0.05, 0.2, 0.5):
        assert np.mean(np.array(found) <= level) <= level + 3 * np.sqrt(level * (1 - level) / 400)
    assert np.mean(np.array(found) <= 0.5) > 0.4


def test_intervals_hold_the_difference():
    inside = 0
    for seed in range(300):
        labels, truth = world(seed, [0.8, 0.6, 0.7], 400, classes=4)
        low, high = compare(Reports.of(labels), "0", "1", truth).comparisons[0].interval
        inside += low <= (0.8 - 0.6) * 0.75 <= high  # right by knowing, else one of four
    assert 0.92 <= inside / 300 <= 0.975


def test_the_named_number_of_tasks_decides():
    labels, truth = world(5, [0.8, 0.7, 0.7], 300, classes=2)
    one = compare(Reports.of(labels), "0", "1", truth).comparisons[0]
    assert not one.decided() and one.decide is not None
    times = -(-one.decide * 11 // 3000)
    again = compare(Reports.of(np.tile(labels, times)), "0", "1", np.tile(truth, times)).comparisons[0]
    before = compare(Reports.of(np.tile(labels, max(times // 2, 1))), "0", "1", np.tile(truth, max(times // 2, 1)))
    assert again.decided() and not before.comparisons[0].decided()


def test_ranks_hold_together():
    """All agents' true ranks lie in their intervals in nearly all worlds; and they say something."""
    accuracies, together, width = [0.9, 0.85, 0.7, 0.69, 0.5], 0, []
    for seed in range(100):
        labels, truth = world(seed, accuracies, 400, classes=2)
        ranks = {r.agent: (r.low, r.high) for r in compare(Reports.of(labels), truth=truth).ranks}
        together += all(ranks[str(k)][0] <= k + 1 <= ranks[str(k)][1] for k in range(5))
        width.append(np.mean([high - low for low, high in ranks.values()]))
    assert together >= 95 and np.mean(width) < 1.2


@pytest.mark.parametrize("how", [{}, {"over": "skilled"}], ids=str)
def test_ranks_of_equals_stay_open_together(how):
    """Six agents alike, beside three that are better: any claim about the six is wrong, and few worlds make one."""
    wrong = 0
    for seed in range(120):
        labels, _ = world(seed, [0.6] * 6 + [0.8] * 3, 150, gaps=0.2)
        ranks = compare(Reports.of(labels), **how).ranks
        wrong += any(r.low > 4 or r.high < 9 for r in ranks if int(r.agent) < 6)
    assert wrong <= 12  # 5 % of 120, and three of its standard deviations


def test_holm_is_statsmodels_textbook_example():
    assert holm([0.01, 0.02, 0.03, 0.005]) == pytest.approx([0.03, 0.04, 0.04, 0.02])
    assert holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]


def test_the_order_of_tasks_and_agents_changes_no_document():
    labels, truth = world(2, [0.9, 0.8, 0.5], 60)
    names, tasks = ["a", "b", "c"], [f"t{n}" for n in range(60)]
    mixed = default_rng(0).permutation(60)
    one = compare(Reports.of(labels, agents=names, tasks=tasks), truth=truth).to_json()
    two = compare(
        Reports.of(labels[::-1, mixed], agents=names[::-1], tasks=[tasks[n] for n in mixed]), truth=truth[mixed]
    ).to_json()
    for mine, other in zip(one["comparisons"], two["comparisons"], strict=True):
        assert (mine["a"], mine["b"], mine["differ"]) == (other["a"], other["b"], other["differ"])
        assert mine["p_value"] == pytest.approx(other["p_value"], abs=1e-12)
    assert one["ranks"] == two["ranks"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"a": "0"}, "one agent alone is given"),
        ({"a": "0", "b": "0"}, "compared with itself"),
        ({"a": "0", "b": "zed"}, "no agent is called 'zed'"),
        ({"rule": "ca"}, "sign='identity'"),
        ({"rule": "dmi"}, "no task-by-task difference"),
        ({"confidence": 1.0}, "from 0.5 to below 1"),
        ({"rule": lambda joint: float(joint.delta.trace())}, "does not say what each task adds"),
    ],
)
def test_what_cannot_be_compared_is_refused(options, says):
    labels, _ = world(0, [0.9, 0.8, 0.7], 30)
    with pytest.raises(OptionError, match=says):
        compare(Reports.of(labels), **options)


def test_agents_that_share_no_task_are_named():
    labels = np.full((3, 8), -1)
    labels[0, :4] = labels[1, 4:] = 0
    labels[2] = [0, 1] * 4
    found = compare(Reports.of(labels, agents=["ann", "bob", "cat"], classes=["x", "y"]), truth=[0, 1] * 4)
    assert {(c.a, c.b) for c in found} == {("cat", "ann"), ("cat", "bob")}
    assert "'ann' and 'bob'" in found.warnings[-1]
    with pytest.raises(InputError, match="no two agents share"):
        compare(Reports.of(labels[:2], classes=["x", "y"]), truth=[0, 1] * 4)


def test_comparisons_come_back_from_json():
    labels, truth = world(0, [0.9, 0.8, 0.7], 30)
    found = compare(Reports.of(labels), truth=truth)
    assert verax.Comparisons.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert list(found.to_frame().columns)[:3] == ["a", "b", "difference"] and len(found.to_frame()) == 3


def test_the_fast_way_is_the_slow_way_where_nobody_abstains():
    from verax.compare import Paired
    from verax.score import prepare

    labels, truth = world(7, [0.9, 0.7, 0.6, 0.8], 80)
    for given in (None, truth):
        ready = prepare(Reports.of(labels), given)
        side = next(side for side in ready.sides if side is not None)
        fast, slow = Paired.of(side, ready.plan), Paired(side, ready.plan, None)
        assert fast.worth is not None
        one, two = fast.difference(0, 2), slow.difference(0, 2)
        assert one.value == pytest.approx(two.value, abs=1e-14)
        assert np.abs(one.terms - two.terms).max() < 1e-14 and np.abs(one.influence - two.influence).max() < 1e-14


@pytest.mark.parametrize("how", [{}, {"over": "skilled"}], ids=str)
def test_the_p_value_is_that_of_100_000_drawn_swaps_that_are_rescored(how):
    """A paired permutation test of two agents' scores beside the references that both have, with gaps."""
    from verax.mechanisms.skilled import label_pairs, pair_sums, weights_without

    labels, _ = world(11, [0.75, 0.6, 0.8, 0.5, 0.7], 40, gaps=0.25)
    labels[:2, (labels[:2] < 0).any(0)] = -1
    seen = compare(Reports.of(labels), "0", "1", **how).comparisons[0]
    sums = pair_sums(*label_pairs(Reports.of(labels).labels, 3, verax.kernels.Engine()))
    rng, differences = default_rng(0), []
    swaps = np.vstack([np.zeros((1, 40)), rng.random((100_000, 40)) < 0.5]).astype(bool)
    total, whole = np.zeros(len(swaps)), 0.0
    for j in range(2, 5):
        both = (labels[:2] >= 0).all(0) & (labels[j] >= 0)
        n, g = both.sum(), np.eye(3)[labels[j, both]]
        weight = n * weights_without(*sums, 0, 1)[j] if how else 1.0
        a, b = (np.eye(3)[labels[k, both]] for k in (0, 1))
        sign = np.where(swaps[:, both], -1.0, 1.0)
        total += weight * (sign @ ((a - b) * (g - g.mean(0))).sum(1)) / (n - 1)
        whole += weight
    differences = total / whole
    assert differences[0] == pytest.approx(seen.difference, abs=1e-12)
    share = float((np.abs(differences[1:]) >= abs(differences[0]) - 1e-12).mean())
    assert seen.p_value == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 1e5) + 1e-3)


def test_skilled_references_compare_by_a_skill_that_neither_is_in():
    labels, _ = world(7, [0.9, 0.6, 0.8, 0.7, 0.2], 400, gaps=0.2)
    seen = compare(Reports.of(labels), "0", "1", over="skilled").comparisons[0]
    again = labels.copy()
    again[:2] = labels[1::-1]
    back = compare(Reports.of(again), "0", "1", over="skilled").comparisons[0]
    assert seen.difference == pytest.approx(-back.difference, abs=1e-12) and seen.decided()
    noise = compare(Reports.of(labels), "0", "1").comparisons[0]  # with a guesser among the references
    assert seen.difference > noise.difference


def test_ranks_go_with_scores():
    labels, _ = world(0, [0.9, 0.8, 0.4], 300)
    found = verax.score(Reports.of(labels))
    from dataclasses import replace

    from verax.compare import compared
    from verax.score import prepare

    ranked = replace(found, ranks=compared(prepare(Reports.of(labels))).ranks)
    assert verax.Scores.from_json(ranked.to_json()) == ranked
    from verax.show.page import page

    told = page("Scores", scores=ranked)
    assert ">rank</th>" in told and all(f'rank">{r.low}' in told for r in ranked.ranks)
    assert ">rank</th>" not in page("Scores", scores=found)
    assert "ranks" not in found.to_json() and ranked.to_json()["ranks"][0]["agent"] == "0"
