"""The market: payments telescope to the unit, stakes cover every loss, draws are fair and the same everywhere."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from fractions import Fraction
from itertools import groupby

import numpy as np
import pytest
from numpy.random import default_rng
from scipy import stats
from typer.testing import CliRunner

import verax
from oracle import score as literal_score
from verax import InputError, Mechanism, OptionError, Reports, tables
from verax.cli import app
from verax.market import (
    Market,
    Submissions,
    bounds,
    deviation_bound,
    draw,
    increments,
    informativeness,
    market,
    settle,
    stake,
)
from worlds import agents_given_truth, binary, conditionally_independent, counts, even_prior, listed, youden

ZERO_ONE = Mechanism("zero-one", "truth", None, "identity", False, None)
RULES = {
    "zero-one": {},
    "ca, identity": {"rule": "ca", "sign": "identity"},
    "ca, matrix": {"rule": "ca", "sign": [[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]]},
    "ca, split": {"rule": "ca"},
    "ce": {"rule": "ce", "floor": 1e-3},
    "brier": {"rule": "brier"},
    "pmi": {"rule": "pmi"},
    "accuracy": {"rule": "accuracy"},
    "log": {"rule": "log"},
    "quadratic": {"rule": "quadratic"},
}
LOSSES = ("log", "quadratic")


def money(level, scale, unit):
    """A level in money, as the contract has it."""
    return round(Fraction(scale * level) * unit)


def hypotheses(rng, number, tasks, abstain):
    """Rows over three classes, some of them extreme, and their labels; a fifth of the tasks may be left out."""
    rows = rng.dirichlet(np.ones(3), (number, tasks))
    rows = np.where(rng.random((number, tasks, 1)) < 0.3, np.eye(3)[rows.argmax(2)], rows)
    labels = np.where(abstain & (rng.random((number, tasks)) < 0.2), -1, rows.argmax(2))
    return labels, rows


def separately(labels, rows, truth, options):
    """A hypothesis's level when it is scored alone, by the door that everybody else uses."""
    found = verax.score(Reports.of([labels], [rows], classes="abc"), truth, **options).scores[0]
    return (found.score or 0.0) * (found.tasks / len(truth))


@pytest.mark.parametrize("name", RULES)
def test_a_thousand_random_paths_telescope(name):
    options = RULES[name]
    rng = default_rng(list(RULES).index(name))
    for k in range(1_000):
        steps, tasks = int(rng.integers(1, 5)), int(rng.integers(6, 12))
        scale, unit = float(rng.choice([0.3, 1.0, 7.77, 1e-3])), int(rng.choice([1, 100, 10_000]))
        labels, rows = hypotheses(rng, steps + 1, tasks, name not in LOSSES)
        truth = rng.integers(0, 3, tasks)
        labels[:, :2], truth[:2] = truth[:2], (0, 1)
        first = None if k % 2 else Reports.of(labels[:1], rows[:1], classes="abc")
        path = Submissions.of(labels[1:], rows[1:], owners=["ann", "bob", "ann", "cy"][:steps], classes="abc")
        closed = market(path, truth=truth, initial=first, scale=scale, **options)

        start = 0.0 if first is None else separately(labels[0], rows[0], truth, options)
        end = separately(labels[-1], rows[-1], truth, options)
        assert closed.initial == pytest.approx(start, abs=1e-12) and closed.final == pytest.approx(end, abs=1e-12)
        assert sum(p.score for p in closed.payments) == pytest.approx(scale * (end - start), abs=1e-12)
        low, high = bounds(closed.mechanism)
        assert all(low <= p.level <= high for p in closed.payments)
        assert closed.worst_case_loss == scale * (high - closed.initial)

        paid = closed.money(unit)
        assert sum(paid.amounts) == money(closed.final, scale, unit) - money(closed.initial, scale, unit)
        assert sum(paid.amounts) == sum(paid.totals.values()) <= paid.worst_case_loss
        assert min(paid.amounts) >= -paid.stake
        assert set(paid.totals) == set(closed.totals()) == set(path.owners)


@pytest.mark.parametrize("name", RULES)
def test_levels_are_what_verax_score_gives_times_coverage(name):
    rng = default_rng(5)
    labels, rows = hypotheses(rng, 6, 40, name not in LOSSES)
    truth = rng.integers(0, 3, 40)
    path = Submissions.of(labels, rows, owners="ababab", classes="abc")
    found = verax.score(Reports.of(labels, rows, classes="abc"), truth, **RULES[name])
    coverage = (labels >= 0).mean(1)
    closed = market(path, truth=truth, **RULES[name])
    assert [p.level for p in closed.payments] == [s.score * c for s, c in zip(found.scores, coverage, strict=True)]
    assert closed.mechanism == found.mechanism


@pytest.mark.parametrize("rule", ["zero-one", "ce", "brier", "pmi"])
def test_levels_are_the_literal_definition(rule):
    rng = default_rng(6)
    labels, rows = hypotheses(rng, 3, 9, abstain=False)
    truth = rng.integers(0, 3, 9)
    closed = market(Submissions.of(labels, rows, owners="abc", classes="abc"), truth=truth, rule=rule)
    for p, held, row in zip(closed.payments, labels, rows, strict=True):
        report = np.eye(3)[held] if rule == "zero-one" else row
        assert p.level == pytest.approx(literal_score(report, truth, rule, None, 1e-6), abs=1e-12)


def test_differences_rounded_one_by_one_would_drift():
    rng = default_rng(1)
    drifts = []
    for _ in range(200):
        levels = np.clip(np.cumsum(rng.normal(0, 0.03, 50)), -1, 1).tolist()
        due = money(levels[-1], 1.0, 100) - money(0.0, 1.0, 100)
        assert sum(settle(levels, unit=100)) == due
        drifts.append(abs(sum(round(Fraction(x) * 100) for x in increments(levels)) - due))
    assert np.mean(np.array(drifts) > 0) > 0.7
    assert max(drifts) >= 4


@pytest.mark.parametrize("name", RULES)
def test_a_copy_of_the_current_hypothesis_earns_exactly_nothing(name):
    rng = default_rng(7)
    for _ in range(30):
        labels, rows = hypotheses(rng, 3, 17, name not in LOSSES)
        order = [0, 0, 1, 1, 1, 2]
        truth = rng.integers(0, 3, 17)
        path = Submissions.of(labels[order], rows[order], owners="abcabc", classes="abc")
        first = Reports.of(labels[:1], rows[:1], classes="abc")
        closed = market(path, truth=truth, initial=first, scale=0.7, **RULES[name])
        copies = [0, 1, 3, 4]
        assert [closed.payments[k].score for k in copies] == [0.0] * 4
        assert [closed.money(100).amounts[k] for k in copies] == [0] * 4


# --- coalitions ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool():
    """Sixty hypotheses, from reversed to perfect, with their levels."""
    rng = default_rng(11)
    truth = rng.integers(0, 2, 40)
    wrong = rng.random((60, 40)) < np.linspace(0, 1, 60)[:, None]
    labels = np.where(wrong, 1 - truth, truth)
    closed = market(Submissions.of(labels, owners=["x"] * 60), truth=truth)
    return labels, truth, [p.level for p in closed.payments]


def intrigue(rng, levels):
    """Who submits what: two identities of one coalition sabotage, restore, copy, resubmit; outsiders come between."""
    owners, path, own, before = [], [int(rng.integers(len(levels)))], [], []
    for _ in range(int(rng.integers(2, 12))):
        current = path[-1]
        if rng.random() < 0.3:
            owners.append(str(rng.choice(["x", "y"])))
            path.append(int(rng.integers(len(levels))))
            continue
        owners.append(str(rng.choice(["a", "b"])))
        deed = rng.choice(["sabotage", "restore", "copy", "resubmit"])
        if deed == "sabotage":
            before.append(current)
            worse = [k for k, level in enumerate(levels) if level <= levels[current]]
            path.append(int(rng.choice(worse)))
        elif deed == "restore" and before:
            path.append(before.pop())
        elif deed == "resubmit" and own:
            path.append(int(rng.choice(own)))
        else:
            path.append(current)
        own.append(path[-1])
    return owners, path


def by_runs(owners, marks):
    """What a coalition makes of a path: over each run of its steps, the level after it less the level before it."""
    total, at = 0, 0
    for ours, run in groupby(owners, key=lambda agent: agent in "ab"):
        length = len(list(run))
        total += (marks[at + length] - marks[at]) * ours
        at += length
    return total


def test_in_ten_thousand_intrigues_a_coalition_earns_its_level_changes_and_nobody_is_overdrawn(pool):
    labels, truth, levels = pool
    rng = default_rng(12)
    locked = stake(ZERO_ONE, unit=100)
    restored = lost = 0
    for k in range(10_000):
        owners, path = intrigue(rng, levels)
        start, *rest = (levels[n] for n in path)
        amounts = settle(rest, unit=100, initial=start)
        marks = [money(levels[n], 1.0, 100) for n in path]
        assert sum(a for a, agent in zip(amounts, owners, strict=True) if agent in "ab") == by_runs(owners, marks)
        assert min(amounts) >= -locked
        lost += min(amounts) < 0
        balance = {agent: locked * owners.count(agent) for agent in owners}
        for agent, amount in zip(owners, amounts, strict=True):
            balance[agent] += amount
            assert balance[agent] >= 0
        earned = increments(rest, start)
        for t in range(1, len(rest)):
            if path[t + 1] == path[t - 1]:  # step t undid step t - 1, and nobody was between
                assert amounts[t] + amounts[t - 1] == 0
                assert earned[t] + earned[t - 1] == 0.0
                restored += 1
        if k % 100 == 0:
            closed = market(Submissions.of(labels[path[1:]], owners=owners), truth=truth, initial=labels[path[0]])
            assert closed.money(100).amounts == tuple(amounts)
            assert [p.score for p in closed.payments] == earned
    assert restored > 5_000 and lost > 5_000


def sabotage_then_restore(share, levels):
    """Two identities' profit, as a share of the score's scale, if one's loss is collected from a part of the stake."""
    locked = int(share * stake(ZERO_ONE, unit=1_000))
    profits = []
    for before in levels:
        for after in (level for level in levels if level < before):
            down, up = settle([after, before], unit=1_000, initial=before)
            profits.append((max(down, -locked) + up) / 1_000)
    return np.array(profits)


def test_a_tenth_of_the_stake_makes_sabotage_pay_and_the_whole_does_not(pool):
    *_, levels = pool
    assert sabotage_then_restore(0.1, levels).mean() > 0.1
    assert (sabotage_then_restore(0.1, levels) > 0).mean() > 0.5
    assert (sabotage_then_restore(1.0, levels) == 0).all()


def test_the_stake_covers_rounding_too():
    # half a unit at both ends: 1.5 becomes 2 and -1.5 becomes -2
    assert settle([-1.0], unit=4, initial=1.0, scale=0.375) == [-4]
    assert stake(ZERO_ONE, unit=4, scale=0.375) == 4
    rng = default_rng(13)
    for scale in rng.random(2_000):
        for rule in ("zero-one", "brier", "accuracy", "quadratic"):
            mechanism = Mechanism(rule, "truth", None, None, False, None)
            low, high = bounds(mechanism)
            locked = stake(mechanism, unit=100, scale=scale)
            assert locked >= -settle([low], unit=100, initial=high, scale=scale)[0]
            assert locked >= 100 * Fraction(scale) * Fraction(high - low) - Fraction(1, 10**9)


def test_bounds_are_reached_and_not_passed():
    every, opposite = np.arange(5), [1, 0]
    best = market(Submissions.of([every], owners=["a"]), truth=every)
    assert (best.final, best.worst_case_loss, best.stake) == (1.0, 1.0, 2.0)
    assert market(Submissions.of([opposite], owners=["a"]), truth=[0, 1]).final == -1.0
    sure = Submissions.of(probabilities=[np.eye(5)], owners=["a"])
    assert market(sure, truth=every, rule="brier").final == 2.0
    assert market(sure, truth=every, rule="ce", floor=1e-4).final == pytest.approx(-math.log(1e-4), rel=1e-15)
    assert market(sure, truth=every, rule="ce", floor=1e-4).stake == -2 * math.log(1e-4)
    assert market(sure, truth=every[::-1], rule="quadratic").final == pytest.approx(-1.6)


def test_leaving_hard_tasks_out_does_not_pay():
    rng = default_rng(14)
    truth = rng.integers(0, 2, 400)
    held = np.where(rng.random(400) < 0.3, 1 - truth, truth)
    sure = np.where(held == truth, held, -1)  # it knows where it is right, and answers a few of those only
    sure[np.flatnonzero(sure >= 0)[20:]] = -1
    few, honest = (market(Submissions.of([row], owners=["a"]), truth=truth).final for row in (sure, held))
    assert few < 0.1 < honest
    path = Submissions.of(probabilities=[np.full((400, 2), 0.5)], labels=[sure], owners=["a"])
    for rule in LOSSES:
        with pytest.raises(InputError, match=r"step 1 leaves out task '\d+', and rule \w+, never above 0, would pay"):
            market(path, truth=truth, rule=rule)


# --- survey, draw, exclusion, Theorem 10 -----------------------------------------------------------------------------


def test_the_draw_is_the_one_that_any_machine_makes():
    # (printf 00c0ffee | xxd -r -p; head -c 8 /dev/zero) | sha256sum, as a number, modulo 2, 3 and 10
    expected = {"00c0ffee": (0, 1, 6), "00": (1, 2, 7), "ff": (1, 0, 3), "0123456789abcdef": (0, 1, 0)}
    for seed, drawn in expected.items():
        assert tuple(draw(seed, below) for below in (2, 3, 10)) == drawn
        number = int(hashlib.sha256(bytes.fromhex(seed) + bytes(8)).hexdigest(), 16)
        assert tuple(number % below for below in (2, 3, 10)) == drawn
    assert draw("00C0FFEE", 10) == draw("00c0ffee", 10)


def test_the_draw_is_fair():
    for below in (2, 3, 7, 10):
        seen = np.bincount([draw(f"{n:08x}", below) for n in range(20_000)], minlength=below)
        assert len(seen) == below
        assert stats.chisquare(seen).pvalue > 1e-3


def test_a_number_from_the_incomplete_last_round_is_drawn_again():
    below = 2**255 + 1  # one whole round fits into 2**256, and about every second number is beyond it
    again = 0
    for n in range(40):
        numbers = [int(hashlib.sha256(bytes([n]) + k.to_bytes(8, "big")).hexdigest(), 16) for k in range(20)]
        assert draw(f"{n:02x}", below) == next(number for number in numbers if number < below)
        again += numbers[0] >= below
    assert 5 < again < 35


def world(surveys=10, tasks=60, seed=21):
    """A path of two steps by `ann` and `bob`, surveys s0, s1, ... of accuracy .9 at an even prior, and the truth."""
    rates = [binary(0.4, 0.4), binary(0.2, 0.2)] + [binary(0.1, 0.1)] * surveys
    labels, truth = agents_given_truth([0.5, 0.5], rates, tasks, default_rng(seed))
    names = [f"s{k}" for k in range(surveys)]
    return Submissions.of(labels[:2], owners=["ann", "bob"]), Reports.of(labels[2:], agents=names), truth


def test_a_survey_of_one_closes_without_a_draw():
    path, surveys, _ = world(surveys=1)
    closed = market(path, survey=surveys, scale=2.0)
    assert closed.survey.drawn == "s0" and closed.survey.seed is None and closed.survey.agents == 1
    assert [(s.agent, s.score) for s in closed.survey.scores] == [("s0", None)]
    by_truth = market(path, truth=surveys.labels[0], scale=2.0)
    assert closed.payments == by_truth.payments
    assert (closed.mechanism.against, closed.mechanism.over) == ("peers", "one")


def test_one_of_several_is_drawn_by_name_and_all_are_paid_against_each_other():
    path, surveys, _ = world()
    order = default_rng(3).permutation(10)
    shuffled = Reports.of(surveys.labels[order], agents=[surveys.agents[k] for k in order])
    closed = market(path, survey=surveys, seed="00c0ffee")
    assert closed.survey.drawn == sorted(surveys.agents)[6]
    assert market(path, survey=shuffled, seed="00c0ffee").payments == closed.payments
    assert closed.payments == market(path, truth=surveys.labels[6]).payments
    assert closed.survey.scores == verax.score(surveys).scores
    drawn = {market(path, survey=surveys, seed=f"{n:02x}").survey.drawn for n in range(60)}
    assert drawn == set(surveys.agents)


def test_who_holds_a_market_position_is_not_drawn_unless_kept():
    path, surveys, _ = world(surveys=4)
    both = Reports.of(surveys.labels, agents=["ann", "bob", "cy", "di"])
    seeds = [f"{n:02x}" for n in range(40)]
    left = [market(path, survey=both, seed=s).survey for s in seeds]
    assert {s.drawn for s in left} == {"cy", "di"}
    assert all(s.excluded == ("ann", "bob") and s.bound is None and s.agents == 4 for s in left)
    assert [s.drawn for s in left] == [("cy", "di")[draw(s, 2)] for s in seeds]
    kept = [market(path, survey=both, seed=s, keep_both=True).survey for s in seeds]
    assert {s.drawn for s in kept} == {"ann", "bob", "cy", "di"}
    assert all(s.excluded == () and s.bound is not None for s in kept)
    only = Reports.of(surveys.labels[:2], agents=["ann", "bob"])
    with pytest.raises(InputError, match=r"everybody in the survey also holds a market position \('ann', 'bob'\)"):
        market(path, survey=only, seed="00")


def test_the_bound_of_theorem_10_has_its_value():
    assert deviation_bound(1.0, 1 - 0.1 - 0.1, 10) == pytest.approx(0.0657894737, abs=1e-10)
    path, surveys, truth = world(tasks=4_000)
    known = market(path, survey=surveys.with_truth(truth), seed="00", keep_both=True).survey.bound
    found = market(path, survey=surveys, seed="00", keep_both=True).survey.bound
    assert known == pytest.approx(0.0657894737, rel=0.02)
    assert found == pytest.approx(known, rel=0.02)
    double = market(path, survey=surveys, seed="00", keep_both=True, scale=2.0).survey.bound
    assert double == pytest.approx(2.0 / 28 * 19 * found)


def test_the_surveys_tell_their_own_informativeness():
    rates = [binary(0.1, 0.1), binary(0.2, 0.1), binary(0.3, 0.2), binary(0.25, 0.25), binary(0.5, 0.5)]
    for number in (3, 4):
        labels = listed(counts(conditionally_independent(even_prior(2), *rates[:number])))[:-1]
        tasks = labels.shape[1]
        mean = float(sum(map(youden, rates[:number])) / number)
        # on tasks with exactly the world's probabilities every S_ij is N / (N - 1) of the population's
        assert informativeness(Reports.of(labels)) == pytest.approx(mean * math.sqrt(tasks / (tasks - 1)), rel=1e-12)
    labels, truth = agents_given_truth([0.5, 0.5], rates, 20_000, default_rng(31))
    for number in (3, 5):
        mean = float(sum(map(youden, rates[:number])) / number)
        assert informativeness(Reports.of(labels[:number])) == pytest.approx(mean, abs=0.02)
        assert informativeness(Reports.of(labels[:number], truth=truth)) == pytest.approx(mean, abs=0.01)
    labels, _ = agents_given_truth([0.8, 0.2], rates[:3], 20_000, default_rng(32))
    assert informativeness(Reports.of(labels)) < 0.9 * float(sum(map(youden, rates[:3])) / 3)


def test_informativeness_is_null_where_it_cannot_be_told():
    path, surveys, truth = world(surveys=3)
    assert informativeness(Reports.of(surveys.labels[:2])) is None
    assert informativeness(Reports.of(surveys.labels, classes="abc")) is None
    assert informativeness(Reports.of([truth, 1 - truth, truth])) is None  # together they say nothing
    assert informativeness(surveys.with_truth(np.zeros(60, dtype=int))) is None
    two = Reports.of(surveys.labels[:2], agents=["cy", "di"])
    assert market(path, survey=two, seed="00", keep_both=True).survey.bound is None
    by_matrix = market(path, survey=surveys, seed="00", keep_both=True, rule="ca", sign=np.ones((2, 2)))
    assert by_matrix.survey.bound is None


# --- the initial hypothesis ------------------------------------------------------------------------------------------


def test_the_initial_hypothesis_has_several_forms_and_one_level():
    rng = default_rng(41)
    labels, rows = hypotheses(rng, 3, 30, abstain=False)
    truth, tasks = rng.integers(0, 3, 30), [f"t{n}" for n in range(30)]
    path = Submissions.of(labels[1:], rows[1:], owners="ab", classes="abc", tasks=tasks)
    mixed = rng.permutation(30)
    elsewhere = Reports.of(
        [[*labels[0][mixed], 1]], [[*rows[0][mixed], [0.2, 0.5, 0.3]]],
        tasks=[*(tasks[n] for n in mixed), "other"], classes="abc",
    )  # fmt: skip
    for rule, forms in {"zero-one": (labels[0], rows[0], elsewhere), "pmi": (rows[0], elsewhere)}.items():
        found = [market(path, truth=truth, initial=form, rule=rule) for form in forms]
        assert all(one == found[0] for one in found)
        assert found[0].initial == pytest.approx(separately(labels[0], rows[0], truth, {"rule": rule}), abs=1e-12)
        assert found[0].initial != 0
    with pytest.raises(InputError, match="the initial hypothesis: some reports have probabilities and some only"):
        market(path, truth=truth, initial=labels[0], rule="pmi")
    with pytest.raises(InputError, match="the initial hypothesis is of 2 agents; give the reports of one"):
        market(path, truth=truth, initial=Reports.of(labels[:2], tasks=tasks))
    with pytest.raises(InputError, match="the initial hypothesis"):
        market(path, truth=truth, initial=labels[0][:5])


# --- what is refused -------------------------------------------------------------------------------------------------

OTHER = Reports.of([[0, 1, 1, 0]] * 2, agents=["cy", "di"], tasks=["w", "x", "y", "z"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "neither truth nor a survey to close the market by; give one of them"),
        ({"truth": "real", "survey": "real"}, "both truth and a survey to close the market by; give one of them"),
        ({"survey": "real"}, "one of 3 surveys is to be drawn; give a seed of hexadecimal digits"),
        ({"survey": "real", "seed": "xyz"}, "the seed is 'xyz'; give hexadecimal digits, two a byte, such as 00c0ffee"),
        ({"survey": "real", "seed": "abc"}, "the seed is 'abc'; give hexadecimal digits"),
        ({"survey": "real", "seed": ""}, "the seed is ''; give hexadecimal digits"),
        ({"truth": "real", "seed": "00"}, "a seed and keeping both are for surveys, and the truth closes this"),
        ({"truth": "real", "keep_both": True}, "a seed and keeping both are for surveys, and the truth closes this"),
        ({"survey": "real", "seed": 7}, "the seed is 7; give hexadecimal digits"),
        ({"survey": [[0, 1]], "seed": "00"}, "survey is a list; give Reports"),
        ({"truth": "real", "scale": "1"}, "the scale is '1'; give a finite number above 0"),
        ({"truth": "real", "rule": 7}, "rule is a int; give a name, a Rule, or a function of a Joint"),
        ({"truth": "real", "scale": 0.0}, "the scale is 0.0; give a finite number above 0, such as 1.0"),
        ({"truth": "real", "scale": -1}, "the scale is -1; give a finite number above 0"),
        ({"truth": "real", "scale": math.inf}, "the scale is inf; give a finite number above 0"),
        ({"truth": "real", "scale": math.nan}, "the scale is nan; give a finite number above 0"),
        ({"truth": "real", "rule": "best"}, "rule 'best' has no bounds that verax knows; choose one of zero-one"),
        ({"truth": "real", "rule": "ca", "sign": "plugin"}, "sign plugin is learned on the tasks it scores"),
        ({"truth": "real", "rule": "ce"}, "rule ce needs probabilities and these reports have labels only"),
        (
            {"survey": "real", "seed": "00", "rule": "accuracy"},
            "rule accuracy needs the truth; close by it, or use",
        ),
        ({"survey": OTHER, "seed": "00"}, r"the survey: 'cy' answers 0 of the market's tasks \(such as '0'\); two are"),
        ({"survey": Reports.of(np.empty((0, 60), dtype=int))}, "the survey: has no agent for any of the market's"),
        ({"truth": {"0": "1", "9": "0"}, "rule": "zero-one", "floor": 0.1}, "rule zero-one has no floor"),
        ({"truth": {"3": "1"}}, "the truth covers 1 of 60 tasks; closing a market needs at least two"),
        ({"truth": {"nine": "1"}}, "the truth: none of its 1 tasks is in the reports"),
    ],
)
def test_what_does_not_go_together_is_refused(options, sentence):
    path, surveys, truth = world(surveys=3)
    real = {"truth": truth, "survey": surveys}
    given = {key: real[key] if isinstance(value, str) and value == "real" else value for key, value in options.items()}
    with pytest.raises(verax.VeraxError, match=sentence):
        market(path, **given)


def test_submissions_of_another_type_get_a_sentence():
    for wrong in (None, "path", Reports.of([[0, 1], [1, 0]])):
        with pytest.raises(InputError, match=r"submissions is a \w+; give verax.market.Submissions"):
            market(wrong, truth=[0, 1])


def test_a_scale_that_no_short_number_is_survives_its_document():
    path, _, truth = world(surveys=1)
    closed = market(path, truth=truth, scale=1 / 3)
    again = Market.from_json(json.loads(json.dumps(closed.to_json())))
    assert again == closed and closed.scale == 1 / 3 and again.scale == pytest.approx(1 / 3, rel=1e-14)
    with pytest.raises(InputError, match="do not follow from its levels"):
        replace(closed, payments=(replace(closed.payments[0], level=1.5), *closed.payments[1:]))


def test_a_survey_must_fit_the_rule_and_the_classes():
    path, surveys, _ = world(surveys=3)
    rows = np.eye(2)[path.reports.labels] * 0.8 + 0.1
    probable = Submissions.of(probabilities=rows, owners=["ann", "bob"])
    with pytest.raises(OptionError, match="the survey: rule ce needs probabilities and these reports have labels only"):
        market(probable, survey=surveys, seed="00", rule="ce")
    strange = Reports.of(surveys.labels, classes=["0", "one"])
    with pytest.raises(InputError, match="the survey's classes are '0', 'one', the market's '0', '1'; give the same"):
        market(probable, survey=strange, seed="00")
    # a survey with rows and no labels is one: its labels are the likeliest
    sure = Reports.of(probabilities=np.eye(2)[surveys.labels], agents=surveys.agents)
    closed = market(probable, survey=sure, seed="00", rule="brier")
    assert closed.survey.scores == verax.score(sure, rule="brier").scores
    assert market(path, survey=sure, seed="00").payments == market(path, survey=surveys, seed="00").payments


@pytest.mark.parametrize(
    ("labels", "owners", "sentence"),
    [
        (np.empty((0, 3), dtype=int), [], "no submission; a market needs at least one step"),
        ([[0, 1, 1]], ["ann", "bob"], "2 agent names for 1"),
        ([[0, 1, 1]], [" ann"], "agent name ' ann' is empty, or has blanks around it"),
        ([[0, 1, -2]], ["ann"], "agent 'step 1', task '2' has label -2"),
    ],
)
def test_submissions_from_arrays_are_checked(labels, owners, sentence):
    with pytest.raises(InputError, match=sentence):
        Submissions.of(labels, owners=owners)


def test_steps_are_numbers_that_go_up():
    for names in (["1", "b"], ["2", "1"], ["1", "1.5"]):
        with pytest.raises(InputError, match="number the submissions upwards, in order of arrival"):
            Submissions(Reports.of([[0, 1], [1, 0]], agents=names), ("ann", "bob"))
    with pytest.raises(InputError, match="1 owners for 2 steps; say who submitted each"):
        Submissions(Reports.of([[0, 1], [1, 0]], agents=["1", "2"]), ("ann",))
    with pytest.raises(OptionError, match=r"the unit is 0\.5; give a whole number of minor units, such as 100"):
        settle([0.5], unit=0.5)


# --- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 0.3, 100, 1e-4, 12345.6789])
@pytest.mark.parametrize("name", RULES)
def test_the_document_has_the_fields_of_the_contract_and_is_read_back(name, scale):
    rng = default_rng(51)
    labels, rows = hypotheses(rng, 4, 20, abstain=False)
    path, truth = Submissions.of(labels[1:], rows[1:], owners="aba", classes="abc"), rng.integers(0, 3, 20)
    for first in (None, rows[0]):
        closed = market(path, truth=truth, initial=first, scale=scale, **RULES[name])
        document = json.loads(json.dumps(closed.to_json(), allow_nan=False))
        fields = ["format", "mechanism", "initial", "final", "worst_case_loss", "survey", "payments"]
        assert list(document) == fields and document["format"] == "verax.market/1" and document["survey"] is None
        assert list(document["mechanism"]) == ["rule", "against", "over", "sign", "public", "floor"]
        assert [list(p) for p in document["payments"]] == [["step", "agent", "level", "score"]] * 3
        back = Market.from_json(document)
        assert back == closed
        assert back.money(100) == closed.money(100) and back.stake == closed.stake


def test_a_survey_is_an_object_in_the_document():
    path, surveys, _ = world(surveys=3)
    closed = market(path, survey=surveys, seed="00c0ffee", keep_both=True)
    document = json.loads(json.dumps(closed.to_json()))
    assert list(document["survey"]) == ["drawn", "seed", "agents", "excluded", "scores", "bound"]
    assert document == closed.to_json()
    assert Market.from_json(document) == closed


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": "verax.scores/1"}, "not a document of format verax.market/1; make one with: verax market"),
        ({"payments": []}, "do not follow from its levels"),
        ({"final": 0.99}, "do not follow from its levels"),
        ({"worst_case_loss": 0.5}, "do not follow from its levels"),
        ({"payments": [{"step": 1, "agent": "ann"}]}, r"missing required field `level` at `\$.payments\[0\]`"),
        ({"initial": "0"}, r"expected `float`, got `str` at `\$.initial`"),
        ({"mechanism": {}}, r"missing required field `rule` at `\$.mechanism`"),
        ({"survey": {"drawn": "x"}}, r"missing required field `seed` at `\$.survey`"),
        ({"scale": 2.0}, "do not follow from its levels"),
    ],
)
def test_a_document_that_is_no_market_is_refused(change, sentence):
    path, _, truth = world(surveys=1)
    with pytest.raises(InputError, match=sentence):
        Market.from_json(market(path, truth=truth).to_json() | change)
    with pytest.raises(InputError, match="not a document"):
        Market.from_json([])


# --- files and the command -------------------------------------------------------------------------------------------

LONG = "step,task,agent,label\n"
PATH = LONG + "".join(
    f"{step},{task},{agent},{label}\n"
    for step, agent, said in [(3, "ann", "aab-"), (10, "bob", "abab"), (11, "ann", "abbb")]
    for task, label in zip(["t1", "t2", "t3", "t4"], said, strict=True)
    if label != "-"
)
TRUTH = "task,label\nt1,a\nt2,b\nt3,a\nt4,b\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "path.csv").write_text(PATH)
    (tmp_path / "truth.csv").write_text(TRUTH)
    (tmp_path / "survey.csv").write_text("task,cy,bob,ed\nt1,a,a,a\nt2,b,b,b\nt3,a,b,a\nt4,b,b,a\n")
    return tmp_path


def run(*args, code=0):
    result = CliRunner().invoke(app, ["market", *map(str, args)], env={"COLUMNS": "120"})
    assert result.exit_code == code, result.stderr
    return result


def document(*args):
    result = run(*args, "--json")
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_every_form_of_file_gives_the_same_market(folder):
    expected = document(folder / "path.csv", "--truth", folder / "truth.csv")
    assert [(p["step"], p["agent"]) for p in expected["payments"]] == [(3, "ann"), (10, "bob"), (11, "ann")]
    # step 3 answers 3 of 4 tasks: C = [[1, 1], [1, 0]], (3 x 1 - 2 x 2 - 1 x 1) / (3 x 2) x 3/4
    assert [p["level"] for p in expected["payments"]] == pytest.approx([-0.25, 2 / 3, 1 / 3])
    head, *rows = PATH.splitlines()
    mixed = default_rng(1).permutation(len(rows))
    (folder / "mixed.csv").write_text("\n".join([head.replace("agent", "worker"), *(rows[k] for k in mixed)]))
    assert document(folder / "mixed.csv", "--truth", folder / "truth.csv") == expected

    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = dict(zip(head.split(","), zip(*(row.split(",") for row in rows), strict=True), strict=True))
    columns["step"] = [int(step) for step in columns["step"]]
    pq.write_table(pa.table({k: list(v) for k, v in columns.items()}), folder / "path.parquet")
    assert document(folder / "path.parquet", "--truth", folder / "truth.csv") == expected

    labels = np.array([[0, 0, 1, -1], [0, 1, 0, 1], [0, 1, 1, 1]])
    np.savez(folder / "path.npz", labels=labels, agents=["ann", "bob", "ann"], classes=["a", "b"])
    np.save(folder / "truth.npy", np.array([0, 1, 0, 1]))
    found = document(folder / "path.npz", "--truth", folder / "truth.npy")
    assert [p["step"] for p in found["payments"]] == [1, 2, 3]
    for ours, theirs in zip(found["payments"], expected["payments"], strict=True):
        assert ours | {"step": 0} == theirs | {"step": 0}
    np.savez(folder / "nobody.npz", labels=labels)
    found = document(folder / "nobody.npz", "--truth", folder / "truth.npy")
    assert [p["agent"] for p in found["payments"]] == ["0", "1", "2"]


def test_probabilities_come_in_p_columns_and_arrays(folder):
    rows = default_rng(2).dirichlet(np.ones(2), (2, 4))
    lines = [
        f"{k + 1},t{n + 1},{'ann' if k else 'bob'},{rows[k, n, 0]},{rows[k, n, 1]}" for k in (1, 0) for n in range(4)
    ]
    (folder / "rows.csv").write_text("\n".join(["step,task,agent,p:a,p:b", *lines]))
    np.savez(folder / "rows.npz", probabilities=rows, agents=["bob", "ann"], classes=["a", "b"])
    np.save(folder / "truth.npy", np.array([0, 1, 0, 1]))
    found = document(folder / "rows.csv", "--truth", folder / "truth.csv", "--rule", "pmi", "--floor", "1e-4")
    assert found == document(folder / "rows.npz", "--truth", folder / "truth.npy", "--rule", "pmi", "--floor", "1e-4")
    assert found["worst_case_loss"] == -math.log(1e-4)
    for k, p in enumerate(found["payments"]):
        assert p["level"] == pytest.approx(literal_score(rows[k], np.array([0, 1, 0, 1]), "pmi", None, 1e-4))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the file is empty; expected step,task,agent,label"),
        ("task,agent,label\nt1,ann,a\n", "columns 'task', 'agent', 'label'; expected step,task,agent,label"),
        ("step,task,label\n1,t1,a\n", "columns 'step', 'task', 'label'; expected step,task,agent,label"),
        (LONG, "a header and no rows"),
        (LONG + "1,t1,ann,a\none,t2,ann,b\n", "row 3: column 'step' has 'one'; number the submissions in order"),
        (LONG + "1.5,t1,ann,a\n", "row 2: column 'step' has '1.5'"),
        (LONG + "9999999999999999999,t1,ann,a\n", "row 2: column 'step' has '9999999999999999999'"),
        (LONG + "1,t1,ann,a\n1,t2,bob,b\n", "row 3: step 1 is of 'bob' here and of 'ann' above; a step has one agent"),
        (LONG + "1,t1,,a\n", "row 2: step 1 is of nobody; a step has one agent"),
        (LONG + "1,,ann,a\n", "row 2: column 'task' is empty; every row needs a task"),
        (LONG + "1,t1,ann,a\n1,t1,ann,b\n", "row 3: agent 'step 1' reports task 't1' a second time; keep one row"),
        ("step,task,agent,label,mood\n1,t1,ann,a,good\n", "column 'mood' is not understood"),
        ("step,task,agent,p:a,p:b\n1,t1,ann,0.5,0.6\n", "agent 'step 1', task 't1' has probabilities that sum to 1.1"),
        ("step,task,agent\n1,t1,ann\n", "no column 'label' and no p:<class> columns"),
    ],
)
def test_a_wrong_file_of_submissions_gets_its_sentence(folder, text, sentence):
    (folder / "wrong.csv").write_text(text)
    result = run(folder / "wrong.csv", "--truth", folder / "truth.csv", "-o", folder / "out.json", code=2)
    assert sentence in result.stderr and result.stderr.count("\n") == 1 and result.stdout == ""
    assert not (folder / "out.json").exists()


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"labels": [[0, 1]], "agents": ["ann", "bob"]}, "2 agents for 1 steps; say who submitted each"),
        ({"labels": [0, 1], "agents": ["ann", "bob"]}, "labels have shape (2,)"),
        ({"agents": ["ann"]}, "neither labels nor probabilities"),
        ({"labels": [[0, 1]], "steps": [1]}, "array 'steps' is not understood"),
        ({"labels": [[0, 1], [0, 5]], "classes": ["a", "b"]}, "agent 'step 2', task '1' has label 5"),
        ({"labels": [[0, 1]], "agents": [" "], "tasks": ["t1", "t2"]}, "agent name ' ' is empty"),
    ],
)
def test_wrong_arrays_of_submissions_get_their_sentence(folder, arrays, sentence):
    np.savez(folder / "wrong.npz", **arrays)
    assert sentence in run(folder / "wrong.npz", "--truth", folder / "truth.csv", code=2).stderr


def test_other_wrong_files_and_options_of_the_command(folder):
    np.save(folder / "one.npy", np.array([0, 1, 0, 1]))
    path, truth, survey = (folder / f"{name}.csv" for name in ("path", "truth", "survey"))
    for args, sentence in [
        ((folder / "none.csv", "--truth", truth), "no such file"),
        ((folder / "one.npy", "--truth", truth), "submissions need names for their arrays"),
        ((path,), "neither truth nor a survey"),
        ((path, "--truth", truth, "--survey", survey, "--seed", "00"), "both truth and a survey"),
        ((path, "--survey", survey), "one of 3 surveys is to be drawn"),
        ((path, "--survey", survey, "--seed", "seed"), "the seed is 'seed'; give hexadecimal digits"),
        ((path, "--truth", folder / "one.npy"), "an NPY file goes in the task order of an NPZ"),
        ((path, "--truth", truth, "--scale", "nan"), "the scale is nan"),
        ((path, "--truth", truth, "--rule", "math:sqrt"), "rule 'math:sqrt' has no bounds that verax knows"),
        ((path, "--truth", truth, "--sign", "split"), "--sign goes with rule ca only"),
        ((path, "--truth", truth, "--initial", survey), "3 agents"),
        ((path, "--truth", truth, "--classes", "a"), "unknown label 'b'"),
    ]:
        result = run(*args, code=2)
        assert sentence in result.stderr and result.stdout == ""


def test_the_command_closes_by_a_drawn_survey_and_takes_all_its_options(folder):
    path, survey, first = folder / "path.csv", folder / "survey.csv", folder / "first.csv"
    first.write_text("task,label\nt1,a\nt2,a\nt3,b\nt4,b\n")
    (folder / "sign.csv").write_text("a,b\n1,0\n0,1\n")
    found = document(path, "--survey", survey, "--seed", "00c0ffee", "--initial", first, "--classes", "a,b",
                     "--rule", "ca", "--sign", folder / "sign.csv", "--scale", "2.5")  # fmt: skip
    assert found["survey"]["excluded"] == ["bob"]
    assert found["survey"]["drawn"] == ["cy", "ed"][draw("00c0ffee", 2)]
    assert found["mechanism"]["sign"] == "matrix"
    before = [found["initial"], *(p["level"] for p in found["payments"])]
    assert [p["score"] for p in found["payments"]] == increments(before[1:], before[0], 2.5)
    assert found["worst_case_loss"] == 2.5 * (1 - found["initial"])
    kept = document(path, "--survey", survey, "--seed", "00", "--keep-both")["survey"]
    assert kept["excluded"] == [] and kept["drawn"] == ["bob", "cy", "ed"][draw("00", 3)]


def test_people_get_a_table_and_a_page_with_the_price_path(folder):
    page, out = folder / "page.html", folder / "out.json"
    path, survey = folder / "path.csv", folder / "survey.csv"
    shown = run(path, "--survey", survey, "--seed", "00", "--html", page, "-o", out).stdout
    closed = Market.from_json(json.loads(out.read_text()))
    for text in ("closed by the survey of", "level", "total", "survey", "by the seed 00", "one step 2: its stake"):
        assert text in shown
    assert "not drawn from, for they hold market positions: bob" in shown
    for p in closed.payments:
        assert f"{p.level:.4f}" in shown and f"{p.score:+.4f}" in shown
    html = page.read_text()
    assert "<h3>Price path</h3>" in html and "Price path: level against step" in html
    assert "<h3>What each agent earned</h3>" in html
    assert all(f"{agent} {total:+.4f}" in html for agent, total in closed.totals().items())
    with_loss = Submissions(*tables.read_submissions(path))
    assert with_loss.owners == ("ann", "bob", "ann") and with_loss.steps == (3, 10, 11)
    (folder / "full.csv").write_text(
        "step,task,agent,p:a,p:b\n" + "".join(f"1,t{n},ann,0.9,0.1\n" for n in range(1, 5))
    )
    shown = run(folder / "full.csv", "--truth", folder / "truth.csv", "--rule", "log").stdout
    assert "rule log is at most 0, where this began: nobody can gain; give --initial" in shown
