"""Money: whole units, never negative, never more than the budget, and the same whoever computes it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from scipy import integrate, stats

import verax
from verax import InputError, Mechanism, OptionError, Reports, Score, Scores, frames
from verax.payments import Payment, Payments, clusters_of, pay
from verax.schemes import SCHEMES, clipping_bias

ZERO_ONE = Mechanism("zero-one", "peers", "mean", "identity", False, None)
CA = Mechanism("ca", "peers", "mean", "split", False, None)
ACCURACY = Mechanism("accuracy", "truth", None, None, False, None)
BRIER = Mechanism("brier", "peers", "mean", None, False, None)
CE = Mechanism("ce", "peers", "mean", None, False, 1e-6)
PMI = Mechanism("pmi", "truth", None, None, False, 1e-3)
LOG = Mechanism("log", "truth", None, None, False, 1e-6)
QUADRATIC = Mechanism("quadratic", "truth", None, None, False, None)
OWN = Mechanism("my_rule", "peers", "mean", None, False, None)
TOP = {ZERO_ONE: 1.0, CA: 1.0, ACCURACY: 1.0, BRIER: 2.0, QUADRATIC: 2.0}
TOP |= {m: -math.log(m.floor) for m in (CE, PMI, LOG)}
LOW = {ACCURACY: 0}
HIGH = {LOG: 0, QUADRATIC: 0}
ABOVE_ZERO = [m for m in TOP if m not in HIGH]
PAYABLE = [(m, scheme) for m in ABOVE_ZERO for scheme in SCHEMES]
PAYABLE += [(LOG, "affine"), (QUADRATIC, "affine"), (OWN, "proportional")]


def scores_of(values, mechanism=ZERO_ONE, tasks=100, stderr=0.01, total=None):
    """Scores of agents a, b, c, ... who answered `tasks` tasks each, or as many as a list says."""
    each = tasks if isinstance(tasks, list) else [tasks] * len(values)
    rows = zip("abcdefghijklmnop", values, each, strict=False)
    made = tuple(Score(a, s, None if s is None else stderr, n, 1) for a, s, n in rows)
    return Scores(mechanism, total or max(each), ("0", "1"), made)


def amounts(paid):
    return {p.agent: p.amount for p in paid.payments}


def in_major_units(minor, scale):
    """Exactly, whatever the number of digits: Decimal's own arithmetic would round at 28."""
    return Decimal((0, tuple(map(int, str(minor))), -scale))


VALUES = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.5, 1.0, -0.5]), st.floats(-1.5, 1.5))
ANSWERED = st.sampled_from([100, 100, 100, 100, 97, 60, 31, 30, 29, 1, 0])
MONEY = st.one_of(st.integers(1, 20), st.integers(1, 10**9))
HOMES = [None, *range(3)]


def settlements(payable=PAYABLE, values=VALUES, most_scale=18):
    """Scores, and the options to pay them by."""
    return st.builds(
        settlement,
        st.sampled_from(payable),
        st.lists(st.tuples(values, ANSWERED, st.sampled_from(HOMES)), min_size=1, max_size=6),
        st.integers(0, most_scale),
        MONEY,
        st.none() | MONEY,
        st.sampled_from([30, 2]),
    )


def settlement(payable, rows, scale, budget, cap, min_tasks):
    mechanism, scheme = payable
    values, answered, homes = (list(column) for column in zip(*rows, strict=True))
    found = scores_of(values, mechanism, answered, total=100)
    groups = [{s.agent for s, h in zip(found.scores, homes, strict=True) if h == home} for home in HOMES[1:]]
    return found, {
        "scheme": scheme,
        "scale": scale,
        "budget": in_major_units(budget, scale),
        "cap": None if cap is None else in_major_units(cap, scale),
        "min_tasks": min_tasks,
        "clusters": [group for group in groups if len(group) > 1],
    }


def many(examples=600):
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def literal(found, options):
    """The contract, word by word, in major units that no rounding has touched, for agents without copies."""
    low, high = LOW.get(found.mechanism, -1), HIGH.get(found.mechanism, 1)
    values = {
        s.agent: None
        if s.score is None or s.tasks < max(1, options["min_tasks"])
        else Fraction(s.score) * s.tasks / found.tasks
        for s in found.scores
    }
    positive = {agent: max(Fraction(0), v or Fraction(0)) for agent, v in values.items()}
    if options["scheme"] == "proportional":
        pot = sum(positive.values())
        return {agent: Fraction(options["budget"]) * v / (pot or 1) for agent, v in positive.items()}
    each, top = Fraction(options["budget"]) / len(values), Fraction(TOP[found.mechanism])
    if options["scheme"] == "clipped":
        return {agent: each * min(Fraction(1), v / top) for agent, v in positive.items()}
    line = {agent: v and min(max(v / top, Fraction(low)), Fraction(high)) for agent, v in values.items()}
    return {agent: Fraction(0) if v is None else each * (1 + v) / 2 for agent, v in line.items()}


@many(2_000)
@given(settlements())
def test_the_books_balance_in_whole_units(case):
    found, options = case
    paid = pay(found, **options)
    assert paid.budget == Fraction(options["budget"]) * 10 ** options["scale"]
    assert all(type(x) is int and x >= 0 for x in [paid.budget, paid.residue, *amounts(paid).values()])
    assert sum(amounts(paid).values()) + paid.residue == paid.budget
    assert [p.agent for p in paid.payments] == [s.agent for s in found.scores]
    for s in found.scores:
        assert paid[s.agent].amount == 0 or (s.score is not None and s.tasks >= options["min_tasks"])
    if options["cap"] is not None:
        groups = options["clusters"] + [{s.agent} for s in found.scores]
        cap = Fraction(options["cap"]) * 10 ** options["scale"]
        assert all(sum(paid[agent].amount for agent in group) <= cap for group in groups)
    assert Payments.from_json(json.loads(json.dumps(paid.to_json()))) == paid
    assert set(paid.bias) == set(amounts(paid)) and all(map(math.isfinite, paid.bias.values()))


@many()
@given(settlements())
def test_pay_is_the_contracts_formula_and_rounds_it_by_less_than_a_unit(case):
    found, options = case
    options |= {"clusters": [], "cap": None}
    paid = pay(found, **options)
    for agent, exact in literal(found, options).items():
        exact *= 10 ** options["scale"]
        if options["scheme"] == "proportional":
            assert abs(paid[agent].amount - exact) < 1
        else:
            assert paid[agent].amount == math.floor(exact)


@many()
@given(settlements([(m, "proportional") for m in [*ABOVE_ZERO, OWN]]))
def test_proportional_meets_the_budget_to_the_unit(case):
    found, options = case
    paid = pay(found, **options | {"cap": None})
    able = [s.score for s in found.scores if s.score is not None and s.tasks >= options["min_tasks"]]
    assert paid.residue == (0 if any(x > 0 for x in able) else paid.budget)


@many(1_000)
@given(settlements([(m, s) for m in ABOVE_ZERO for s in ("clipped", "proportional")], st.none() | st.floats(-1.5, 0)))
def test_scores_at_or_below_zero_are_paid_nothing(case):
    found, options = case
    assert pay(found, **options).residue == pay(found, **options).budget


@many()
@given(settlements(), st.integers(0, 10**6))
def test_permuting_the_agents_permutes_the_payments(case, seed):
    (found, options), rng = case, Random(seed)
    shuffled = replace(found, scores=tuple(rng.sample(found.scores, len(found.scores))))
    clusters = [rng.sample(sorted(c), len(c)) for c in options["clusters"]][::-1]
    again = pay(shuffled, **options | {"clusters": clusters})
    assert amounts(again) == amounts(pay(found, **options))
    assert [p.agent for p in again.payments] == [s.agent for s in shuffled.scores]


@many(1_500)
@given(settlements(), st.integers(0, 6), st.floats(0, 2), ANSWERED)
def test_more_score_times_tasks_never_pays_less(case, which, better, answered):
    found, options = case
    able = [s for s in found.scores if s.score is not None and s.tasks >= options["min_tasks"]]
    assume(able)
    s = able[which % len(able)]
    raised = replace(s, score=s.score + better, tasks=max(s.tasks, answered))
    assume(Fraction(raised.score) * raised.tasks >= Fraction(s.score) * s.tasks)
    after = replace(found, scores=tuple(raised if t is s else t for t in found.scores))
    assert pay(after, **options)[s.agent].amount >= pay(found, **options)[s.agent].amount


@many()
@given(settlements())
def test_copies_are_paid_as_the_best_of_them_alone(case):
    found, options = case
    able = {s.agent: s for s in found.scores if s.score is not None and s.tasks >= options["min_tasks"]}
    alone = {s.agent: s for s in found.scores}
    for cluster in options["clusters"]:
        best = max((able[a] for a in cluster & able.keys()), key=lambda s: Fraction(s.score) * s.tasks, default=None)
        first, *others = sorted(cluster)
        alone[first] = alone[first] if best is None else replace(best, agent=first)
        for other in others:
            del alone[other]
    together = amounts(pay(found, **options))
    apart = amounts(pay(replace(found, scores=tuple(alone.values())), **options | {"clusters": []}))
    for cluster in options["clusters"]:
        parts = [together.pop(agent) for agent in sorted(cluster) if agent in able]
        assert sum(parts) == apart.pop(min(cluster))
        assert parts == sorted(parts, reverse=True) and (not parts or parts[0] - parts[-1] <= 1)
        assert not any(together.pop(agent) for agent in cluster - able.keys())
    assert together == apart


@many()
@given(settlements(most_scale=9), st.integers(1, 9))
def test_a_finer_minor_unit_moves_nobody_by_a_coarse_one(case, finer):
    found, options = case
    options |= {"clusters": []}
    coarse = pay(found, **options)
    fine = pay(found, **options | {"scale": options["scale"] + finer})
    for p in coarse.payments:
        assert abs(fine[p.agent].amount - p.amount * 10**finer) < 10**finer


def test_clipped_by_hand():
    """90.00 for three, so 30.00 each: half of it for a, 0.375 * 80/100 of it for b, nothing for c."""
    paid = pay(scores_of([0.5, 0.375, -0.25], tasks=[100, 80, 100]), budget="90.00")
    assert amounts(paid) == {"a": 1500, "b": 900, "c": 0}
    assert (paid.scheme, paid.currency, paid.scale, paid.budget, paid.residue) == ("clipped", "EUR", 2, 9000, 6600)


def test_clipped_rounds_down_and_gives_the_rest_back():
    paid = pay(scores_of([1.0, 1.0, 1.0]), budget="100.00")
    assert amounts(paid) == {"a": 3333, "b": 3333, "c": 3333}
    assert paid.residue == 1


def test_affine_by_hand():
    """90.00 for three: 15.00 for a score of 0, and 15.00 more or less for the best or the worst."""
    paid = pay(scores_of([0.5, 0.0, -1.0]), budget="90.00", scheme="affine")
    assert amounts(paid) == {"a": 2250, "b": 1500, "c": 0}
    steep = pay(scores_of([0.5, 0.0, 1.0], ACCURACY), budget="90.00", scheme="affine", base=0, rate=1)
    assert amounts(steep) == {"a": 1500, "b": 0, "c": 3000}


def test_proportional_by_hand():
    """0.10 in shares of 4 : 2 : 1 is 5.71, 2.86, 1.43 cents: 5 + 2 + 1, and the two left go to .86 and .71."""
    assert amounts(pay(scores_of([0.5, 0.25, 0.125, -1.0]), budget="0.10", scheme="proportional")) == {
        "a": 6,
        "b": 3,
        "c": 1,
        "d": 0,
    }


def test_equal_remainders_go_by_name():
    found = scores_of([0.5, 0.5, 0.5])
    assert amounts(pay(found, budget="1.00", scheme="proportional")) == {"a": 34, "b": 33, "c": 33}


def test_rounding_shares_one_by_one_would_miss_the_budget():
    """Why largest remainder: over random pots, rounding each share to the nearest unit misses most budgets."""
    rng, missed = default_rng(1), 0
    for _ in range(200):
        found = scores_of(rng.random(10).tolist())
        pot = sum(Fraction(s.score) for s in found.scores)
        one_by_one = sum(round(10_000 * Fraction(s.score) / pot) for s in found.scores)
        missed += one_by_one != 10_000
        assert pay(found, budget=100, scheme="proportional").residue == 0
    assert missed > 100


@pytest.mark.parametrize(
    ("mechanism", "half"),
    [(ZERO_ONE, 0.5), (CA, 0.5), (ACCURACY, 0.5), (BRIER, 1.0), (CE, -math.log(1e-6) / 2), (PMI, -math.log(1e-3) / 2)],
)
def test_half_of_what_a_rule_can_give_is_paid_half(mechanism, half):
    paid = pay(scores_of([half, half / 2], mechanism), budget=20)
    assert amounts(paid) == {"a": 500, "b": 250}


@pytest.mark.parametrize(("mechanism", "worst"), [(LOG, math.log(1e-6)), (QUADRATIC, -2.0)])
def test_losses_are_paid_on_a_line_from_their_worst_to_zero(mechanism, worst):
    found = scores_of([0.0, worst / 2, worst], mechanism)
    assert amounts(pay(found, budget=30, scheme="affine")) == {"a": 500, "b": 250, "c": 0}
    assert amounts(pay(found, budget=30, scheme="affine", base=1, rate="1")) == {"a": 1000, "b": 500, "c": 0}


def test_a_score_above_what_the_rule_allows_is_paid_as_the_most():
    found = scores_of([1.25, 1.0])
    assert amounts(pay(found, budget=20)) == {"a": 1000, "b": 1000}
    assert amounts(pay(found, budget=20, scheme="affine")) == {"a": 1000, "b": 1000}
    assert any("above the most the rule allows" in note and "'a'" in note for note in pay(found, budget=20).notes)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_too_few_tasks_or_no_score_is_paid_nothing_and_said(scheme):
    found = scores_of([0.5, 0.5, None], tasks=[100, 29, 0])
    paid = pay(found, budget=30, scheme=scheme)
    assert [p.amount > 0 for p in paid.payments] == [True, False, False]
    assert "Paid nothing for fewer than 30 tasks: 'b'." in paid.notes
    assert "Paid nothing for want of a score: 'c'." in paid.notes
    assert pay(found, budget=30, scheme=scheme, min_tasks=29)["b"].amount > 0


def test_who_answered_nothing_is_paid_nothing_whatever_the_minimum():
    assert pay(scores_of([0.5, 0.0], tasks=[100, 0]), budget=30, scheme="affine", min_tasks=0)["b"].amount == 0


def test_agents_who_are_not_paid_still_count_as_participants():
    """Else one agent's silence would raise another's price after the reports are opened."""
    assert pay(scores_of([1.0, None], tasks=[100, 0]), budget=10)["a"].amount == 500


def test_the_cap_goes_back_to_the_payer_in_every_scheme():
    found = scores_of([1.0, 0.25])
    for scheme, second in {"clipped": 125, "affine": 300, "proportional": 200}.items():
        paid = pay(found, budget=10, scheme=scheme, cap="3.00")
        assert amounts(paid) == {"a": 300, "b": second}
        assert paid.residue == 1000 - 300 - second
        assert any(note.startswith("The cap of 3.00 EUR keeps") for note in paid.notes)
    assert pay(found, budget=10, cap=0).residue == 1000


def test_copies_count_once_and_share_what_the_best_of_them_earns():
    """Two participants of 5.00: the copies earn 0.75 of it, 3.75 in three parts of 1.25."""
    found = scores_of([0.5, 0.75, 0.0, 1.0])
    paid = pay(found, budget=10, clusters=[["a", "b", "c"]])
    assert amounts(paid) == {"a": 125, "b": 125, "c": 125, "d": 500}
    assert "Copies of one another, paid once and in equal parts: 'a', 'b', 'c'." in paid.notes
    assert amounts(pay(found, budget="0.06", clusters=[{"c", "a", "b"}, set()])) == {"a": 1, "b": 1, "c": 0, "d": 3}


def test_clusters_are_what_an_audit_links_together():
    def certificate(agent, deviation, code="COPIES", verdict="fails"):
        return {"code": code, "agent": agent, "verdict": verdict, "deviation": deviation}

    linked = [certificate("d", {"d": "e"}), certificate("a", {"a": "b"}), certificate("c", {"c": "b", "b": "f"})]
    others = [
        certificate("g", {"g": "a"}, verdict="holds"),
        certificate("g", {"cat": "dog"}, code="TRUTHFUL"),
        certificate(None, None, verdict="not-applicable"),
    ]
    document = {"format": "verax.audit/1", "certificates": linked + others}
    assert clusters_of(document) == [{"a", "b", "c", "f"}, {"d", "e"}]
    assert clusters_of({"format": "verax.audit/1", "certificates": others}) == []


@pytest.mark.parametrize(
    ("currency", "scale"), [("EUR", 2), ("USD", 2), ("JPY", 0), ("KRW", 0), ("KWD", 3), ("TND", 3), ("POINTS", 2)]
)
def test_the_minor_unit_is_the_currencys(currency, scale):
    paid = pay(scores_of([1.0]), budget=7, currency=currency)
    assert (paid.scale, paid.budget) == (scale, 7 * 10**scale)


def test_amounts_are_written_in_major_units():
    assert pay(scores_of([1.0]), budget="1.23").text(5) == "0.05"
    assert pay(scores_of([1.0]), budget=1, currency="ETH", scale=18).text(10**18 + 1) == "1.000000000000000001"
    assert pay(scores_of([1.0]), budget=1, currency="JPY").text(1200) == "1200"


@pytest.mark.parametrize("budget", ["1000.00", "1000", "1000.0", " 1000 ", 1000, np.int64(1000), Decimal("1E3")])
def test_a_budget_may_be_text_a_whole_number_or_a_decimal(budget):
    assert pay(scores_of([1.0]), budget=budget).budget == 100_000


@pytest.mark.parametrize("share", ["0.3", "3/10", 0.3, Decimal("0.3"), Fraction(3, 10)])
def test_base_and_rate_mean_what_is_written(share):
    """The double nearest to 0.3 is below it, and rounding down would then pay 5.99."""
    paid = pay(scores_of([1.0, -1.0]), budget=20, scheme="affine", base=share, rate=share)
    assert amounts(paid) == {"a": 600, "b": 0}


@pytest.mark.parametrize("score", [-0.3, -0.01, 0.0, 0.004, 0.05, 0.2])
@pytest.mark.parametrize("stderr", [0.003, 0.02, 0.1])
def test_the_clipping_bias_is_the_integral_it_claims_to_be(score, stderr):
    low, high = max(0.0, score - 12 * stderr), max(0.0, score + 12 * stderr)
    mean, _ = integrate.quad(lambda x: x * stats.norm.pdf(x, score, stderr), low, high, epsabs=1e-13)
    assert clipping_bias(score, stderr) == pytest.approx(mean - max(0.0, score), abs=1e-10)
    assert clipping_bias(score, stderr) <= 0.3989423 * stderr


def test_the_bias_is_told_in_money():
    """At score 0 and stderr 0.01, clipping adds 0.00399 of 50.00 on all tasks, half of it on half of them."""
    paid = pay(scores_of([0.0, 0.0], tasks=[100, 50]), budget=100)
    expected = 5000 * 0.01 / math.sqrt(2 * math.pi)
    assert paid.bias == pytest.approx({"a": expected, "b": expected / 2})
    assert paid.notes == (
        "Clipping at 0 pays for noise: it adds about 0.30 EUR in all in expectation, "
        "for each agent at most 0.4 standard errors of its score.",
    )
    assert paid.bias == pytest.approx(pay(scores_of([0.0, 0.0], BRIER, [100, 50], 0.02), budget=100).bias)


def test_affine_and_accuracy_have_no_clipping_bias():
    assert set(pay(scores_of([0.0, 0.1]), budget=100, scheme="affine").bias.values()) == {0.0}
    paid = pay(scores_of([0.0, 0.1], ACCURACY), budget=100)
    assert (set(paid.bias.values()), paid.notes) == ({0.0}, ())


def test_the_bias_is_what_a_simulation_finds():
    """The same agents scored 20,000 times: the mean of what is paid, above what the true scores would be paid."""
    rng, true, stderr, budget = default_rng(5), np.array([0.0, 0.0025, 0.6]), 0.005, 10**6
    drawn = np.clip(rng.normal(true, stderr, (20_000, 3)), 0, 1)
    added = budget / 3 * (drawn.mean(0) - true)
    moved = budget * ((drawn / drawn.sum(1, keepdims=True)).mean(0) - true / true.sum())
    clipped, shared = (
        pay(scores_of(true.tolist(), stderr=stderr), budget=budget // 100, scheme=scheme)
        for scheme in ("clipped", "proportional")
    )
    error = budget * stderr / math.sqrt(20_000)  # of the simulation, with a price of 1 a unit of score
    assert list(clipped.bias.values()) == pytest.approx(added.tolist(), abs=4 * error / 3)
    assert list(shared.bias.values()) == pytest.approx(moved.tolist(), abs=4 * error / 0.6)
    assert sum(shared.bias.values()) == pytest.approx(0, abs=1e-6)


def test_a_shared_pot_says_how_much_of_the_incentive_is_left():
    """Who holds 3/4 of the pot keeps 1/4 of a fixed price; checked against the slope of what is paid."""
    before, after = scores_of([0.6, 0.2]), scores_of([0.6001, 0.2])
    paid = pay(before, budget=10**6, scheme="proportional")
    gained = pay(after, budget=10**6, scheme="proportional")["a"].amount - paid["a"].amount
    assert gained / (10**8 * 0.0001 / 0.8) == pytest.approx(0.25, rel=1e-3)
    assert "here as little as 0.25 ('a')" in paid.notes[0]
    nobody = pay(scores_of([0.0, -0.2]), budget=10, scheme="proportional")
    assert nobody.notes == ("No score is above 0: nothing is paid and the whole budget goes back to the payer.",)


def test_affine_says_what_it_pays_for_nothing():
    notes = pay(scores_of([0.5, 0.0]), budget=100, scheme="affine", base="0.4", rate="0.2").notes
    assert "from 10.00 EUR to 30.00 EUR" in notes[0] and "at 0.2 of the strength of paying the score itself" in notes[0]
    assert notes[1] == "A report that says nothing (score 0) is paid 20.00 EUR."


def test_a_loss_with_tasks_left_out_is_paid_too_much_and_says_so():
    """Quadratic -1 on half of the tasks counts -1/2: an eighth of 50.00 more than -1 on all of them."""
    whole = pay(scores_of([-1.0, -1.0], QUADRATIC), budget=100, scheme="affine")
    part = pay(scores_of([-1.0, -1.0], QUADRATIC, [100, 50]), budget=100, scheme="affine")
    assert part["b"].amount - whole["b"].amount == 625
    assert not any("abstaining pays" in note for note in whole.notes)
    assert any("abstaining pays: 6.25 EUR in all to 'b'" in note for note in part.notes)


@pytest.mark.parametrize("against", ["truth", "peers"])
def test_leaving_out_the_hardest_tasks_raises_the_score_and_lowers_the_pay(against):
    """The agent knows how sure it is of every task and answers only the surest.

    Ten labels, and a confidence of 0.1 + 0.9 Beta(1.35, 2.25): on all tasks the score against truth is
    0.9 * 1.35 / 3.6 = 0.337, on the surest 3 % it is 0.793, and paid by the mean that would be 2.3 times as much.
    """
    rng, shares, worlds, tasks = default_rng(7), [1.0, 0.6, 0.3, 0.1, 0.03], 6, 6_000
    score, paid = np.zeros(5), np.zeros(5)
    for _ in range(worlds):
        truth = rng.integers(0, 10, tasks)
        sure = 0.1 + 0.9 * rng.beta(1.35, 2.25, tasks)
        right = np.vstack([sure, np.full((3, tasks), 0.8)])
        wrong = (truth + rng.integers(1, 10, (4, tasks))) % 10
        labels = np.where(rng.random((4, tasks)) < right, truth, wrong)
        for i, share in enumerate(shares):
            answered = labels.copy()
            answered[0, np.argsort(-sure)[round(share * tasks) :]] = -1
            reports = Reports.of(labels=answered, agents=["shy", "x", "y", "z"])
            scores = verax.score(reports, truth) if against == "truth" else verax.score(reports)
            score[i] += scores["shy"].score / worlds
            paid[i] += pay(scores, budget="1000.00")["shy"].amount / worlds
    assert (np.diff(score) > 0).all()
    assert (np.diff(paid) < 0).all()
    assert paid[-1] < paid[0] / 10
    if against == "truth":
        assert score[[0, -1]] == pytest.approx([0.337, 0.793], abs=0.04)


def test_the_document_has_exactly_the_fields_of_the_contract_in_their_order():
    paid = pay(scores_of([0.5, 0.25]), budget="1000.00")
    assert json.dumps(paid.to_json()) == (
        '{"format": "verax.payments/1", "scheme": "clipped", "currency": "EUR", "scale": 2, "budget": 100000, '
        '"residue": 62500, "payments": [{"agent": "a", "amount": 25000}, {"agent": "b", "amount": 12500}]}'
    )
    again = Payments.from_json(json.loads(json.dumps(paid.to_json())))
    assert again == paid and hash(again) == hash(paid)
    assert paid.notes and (again.notes, again.bias) == ((), {})


def test_scores_from_a_file_are_paid_as_the_scores_themselves():
    rng = default_rng(3)
    truth = rng.integers(0, 3, 200)
    labels = np.where(rng.random((4, 200)) < 0.7, truth, rng.integers(0, 3, (4, 200)))
    scores = verax.score(Reports.of(labels=labels))
    again = Scores.from_json(json.loads(json.dumps(scores.to_json())))
    assert pay(again, budget="100.00") == pay(scores, budget="100.00")


def test_payments_print_as_a_table():
    assert str(pay(scores_of([0.5, 1.0]), budget="1000.00")).splitlines() == [
        "clipped, budget 1000.00 EUR",
        "agent   amount",
        "a       250.00",
        "b       500.00",
        "(back)  250.00",
    ]


def test_an_agent_that_was_not_scored_has_no_payment():
    with pytest.raises(KeyError, match="nobody"):
        pay(scores_of([0.5]), budget=1)["nobody"]


GOOD = scores_of([0.5, 0.25])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"budget": 1000.0}, "the budget is the float 1000.0, which cannot hold cents exactly; write it as text"),
        ({"budget": np.float64(10)}, "cannot hold cents exactly"),
        ({"cap": 0.5}, "the cap is the float 0.5"),
        ({"budget": "a lot"}, "the budget is 'a lot', not a number"),
        ({"budget": "1,000.00"}, "the budget is '1,000.00', not a number; give one such as 0.50, with a point"),
        ({"budget": ""}, "not a number"),
        ({"budget": None}, "the budget is None, not a number"),
        ({"budget": True}, "the budget is True, not a number"),
        ({"budget": "NaN"}, "the budget is NaN, not a finite number"),
        ({"budget": "Infinity"}, "not a finite number"),
        ({"budget": "1e999999999"}, "the budget has more than 40 digits"),
        ({"budget": "1e-999999999"}, "the budget has more than 40 digits"),
        ({"budget": 10**5000}, "the budget has more than 40 digits"),
        ({"budget": "0.00"}, "the budget is 0.00; give an amount above 0"),
        ({"budget": -5}, "the budget is -5; give an amount above 0"),
        ({"budget": "10.001"}, "EUR has 2 digits after the point here: drop the others"),
        ({"budget": "1.000"}, "drop the others"),  # a thousand, to half of Europe
        ({"budget": "10.5", "currency": "JPY"}, "JPY has 0 digits after the point"),
        ({"cap": "0.001"}, "the cap is 0.001; EUR has 2 digits"),
        ({"cap": "-1"}, "the cap is -1; give 0 or more"),
        ({"scheme": "lottery"}, "scheme is 'lottery'; choose one of clipped, affine, proportional"),
        ({"base": 0.5}, "base and rate go with scheme affine only; leave them out with clipped"),
        ({"rate": "0.5", "scheme": "proportional"}, "leave them out with proportional"),
        ({"scheme": "affine", "base": "half"}, "the base is 'half', not a number"),
        ({"scheme": "affine", "rate": float("nan")}, "the rate is nan, not a finite number"),
        ({"scheme": "affine", "rate": "1/0"}, "rate is 1/0, a division by 0"),
        ({"scheme": "affine", "rate": []}, "the rate is [], not a number"),
        ({"scheme": "affine", "rate": 0}, "rate is 0; give a number above 0"),
        ({"scheme": "affine", "rate": "-0.1"}, "rate is -1/10; give a number above 0"),
        ({"scheme": "affine", "base": "0.2"}, "could pay from -3/10 to 7/10 of each share of the budget"),
        ({"scheme": "affine", "base": 1}, "could pay from 1/2 to 3/2"),
        ({"scheme": "affine", "rate": 1}, "such as base 1/2 and rate 1/2"),
        ({"currency": "eur"}, "currency is 'eur'; give a code of 3 to 12 capital letters or digits"),
        ({"currency": "€"}, "currency is '€'"),
        ({"currency": "EU"}, "currency is 'EU'"),
        ({"currency": None}, "currency is None"),
        ({"scale": 19}, "scale is 19; give the digits of the minor unit, 0 to 18"),
        ({"scale": -1}, "scale is -1"),
        ({"scale": "2"}, "scale is '2'"),
        ({"min_tasks": -1}, "min_tasks is -1; give a whole number, 0 or more"),
        ({"min_tasks": 2.5}, "min_tasks is 2.5"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_a_sentence(options, sentence):
    with pytest.raises(OptionError) as refused:
        pay(GOOD, **{"budget": "10.00"} | options)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("clusters", "sentence"),
    [
        ([["a", "zoe"]], "a cluster names 'zoe', without a score here"),
        ([["a", "b"], ["b"]], "in two clusters: 'b'; join clusters that share an agent"),
        (["ab"], "a cluster is the text 'ab'; give a list"),
    ],
)
def test_clusters_that_do_not_fit_the_scores_are_refused(clusters, sentence):
    with pytest.raises(InputError) as refused:
        pay(GOOD, budget=10, clusters=clusters)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("mechanism", "scheme", "sentence"),
    [
        (replace(CA, sign="plugin"), "clipped", "pays noise; score with sign='split'"),
        (replace(CA, sign=None), "proportional", "pays noise"),  # the function rules.ca, passed as one's own rule
        (OWN, "clipped", "rule 'my_rule' has no bounds that verax knows"),
        (OWN, "affine", "use scheme proportional, or one of verax's rules"),
        (replace(CE, floor=None), "clipped", "rule 'ce' has no bounds"),  # the function rules.ce, passed as one's own
        (LOG, "clipped", "rule log never scores above 0, so clipped pays nobody; use scheme affine"),
        (QUADRATIC, "proportional", "use scheme affine"),
    ],
)
def test_scores_that_a_scheme_cannot_pay_by_are_refused(mechanism, scheme, sentence):
    with pytest.raises(OptionError) as refused:
        pay(scores_of([0.5, 0.25], mechanism), budget=10, scheme=scheme)
    assert sentence in str(refused.value)


def test_an_affine_line_is_held_to_the_bounds_of_its_rule():
    with pytest.raises(OptionError, match="such as base 1 and rate 1"):
        pay(scores_of([-1.0], LOG), budget=10, scheme="affine", base=2, rate=1)
    with pytest.raises(OptionError, match="such as base 0 and rate 1"):
        pay(scores_of([0.5], ACCURACY), budget=10, scheme="affine", base=1, rate=1)


def test_sampled_scores_and_learned_signs_are_never_paid():
    """As verax itself makes them; an agent that calls itself sampled cannot stop the others' pay."""
    labels = default_rng(0).integers(0, 2, (3, 40))
    reports = Reports.of(labels=labels, agents=["x", "y", "sampled"])
    with pytest.raises(OptionError, match="these scores are sampled, which pays luck"):
        pay(verax.score(reports, draws=1, rng=default_rng(0)), budget=10)
    with pytest.raises(OptionError, match="pays noise"):
        pay(verax.score(reports, rule="ca", sign="plugin"), budget=10)
    labels[2, 5:] = -1
    scores = verax.score(Reports.of(labels=labels, agents=["x", "y", "sampled"]))
    assert any("sampled" in warning for warning in scores.warnings)
    assert pay(scores, budget=10).budget == 1000


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        (replace(GOOD, scores=()), "there are no agents to pay"),
        (scores_of([0.5, math.nan]), "the score of 'b' is nan, not a number; score the reports again"),
        (scores_of([math.inf]), "the score of 'a' is inf"),
        (scores_of(["0.5"]), "the score of 'a' is '0.5', not a number"),
        (scores_of([True]), "the score of 'a' is True"),
        (scores_of([10**400]), "not a number"),
        (scores_of([0.5], stderr=math.nan), "the stderr of 'a' is nan"),
        (scores_of([0.5], stderr=-0.1), "the stderr of 'a' is -0.1, not 0 or more"),
        (scores_of([0.5], tasks=101, total=100), "'a' answered 101 of 100 tasks, which cannot be"),
        (scores_of([0.5], tasks=-1, total=100), "'a' answered -1 of 100 tasks"),
        (scores_of([0.5], tasks=40.0, total=100), "'a' answered 40.0 of 100 tasks"),
        (replace(GOOD, tasks=0), "the scores rest on 0 tasks"),
        (replace(GOOD, scores=GOOD.scores * 2), "an agent has two scores"),
        (replace(GOOD, scores=(replace(GOOD.scores[0], agent=7),)), "an agent's name is not text"),
        (replace(GOOD, mechanism=replace(ZERO_ONE, rule=["ca"])), "the scores' rule is ['ca'], not a name"),
        (scores_of([0.5], replace(CE, floor=0.0)), "the scores' floor is 0.0, not between 0 and 1"),
        (scores_of([0.5], replace(PMI, floor="tiny")), "the scores' floor is 'tiny'"),
    ],
)
def test_a_document_that_is_not_of_scores_is_refused(scores, sentence):
    with pytest.raises(InputError) as refused:
        pay(scores, budget=10)
    assert sentence in str(refused.value)


def test_payments_that_do_not_add_up_cannot_be_made_or_read():
    good = pay(GOOD, budget=10).to_json()
    for change, sentence in [
        ({"residue": good["residue"] + 1}, "payments and residue sum to"),
        ({"residue": float(good["residue"])}, r"expected `int`, got `float` at `\$.residue`"),
        ({"payments": [{"agent": "a", "amount": -1}], "residue": 1001}, "not a whole number of minor units"),
        ({"payments": [{"agent": "a", "amount": True}], "residue": 999}, "expected `int`, got `bool`"),
        ({"payments": [{"agent": "a", "amount": 0}] * 2, "residue": 1000}, "an agent is paid twice"),
        ({"payments": [{"agent": "a"}]}, r"missing required field `amount` at `\$.payments\[0\]`"),
        ({"notes": ["a note"]}, r"something unknown at `\$.notes`"),
        ({"scale": 10**9}, "at most 18 can be"),
        ({"format": "verax.scores/1"}, "not a document of format verax.payments/1"),
    ]:
        with pytest.raises(InputError, match=sentence):
            Payments.from_json(good | change)
    with pytest.raises(InputError, match="not a document"):
        Payments.from_json([])
    with pytest.raises(InputError, match="missing required field `scale`"):
        Payments.from_json({name: good[name] for name in good if name != "scale"})
    with pytest.raises(InputError, match="payments and residue sum to 3 and the budget is 4"):
        Payments("clipped", "EUR", 2, 4, 1, (Payment("a", 2),))


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ([], "not a document of format verax.audit/1"),
        ({"format": "verax.scores/1"}, "make one with: verax audit REPORTS --json"),
        ({"format": "verax.audit/1"}, "the audit has no list of certificates"),
        ({"format": "verax.audit/1", "certificates": ["COPIES"]}, "no list of certificates"),
    ],
)
def test_a_document_that_is_no_audit_is_refused(document, sentence):
    with pytest.raises(InputError, match=sentence):
        clusters_of(document)


@pytest.mark.parametrize("deviation", [None, {}, {"a": None}, ["a", "b"]])
def test_a_finding_of_copies_without_names_is_refused_rather_than_paid_twice(deviation):
    found = {"code": "COPIES", "agent": "a", "verdict": "fails", "deviation": deviation}
    with pytest.raises(InputError, match="the COPIES certificate of 'a' does not say whose copy it is"):
        clusters_of({"format": "verax.audit/1", "certificates": [found]})


# in Python


@pytest.mark.parametrize(
    ("scores", "options", "sentence"),
    [
        ("x", {}, "scores is a str; give what verax.score returns"),
        (None, {}, "scores is a NoneType"),
        ([0.5], {}, "scores is a list"),
        (GOOD.to_json(), {}, "scores is a dict"),
        (GOOD, {"clusters": "ab"}, "clusters is 'ab'; give an audit, or lists of the names of agents"),
        (GOOD, {"clusters": 7}, "clusters is 7"),
        (GOOD, {"clusters": {"format": "verax.scores/1"}}, "not a document of format verax.audit/1"),
        (GOOD, {"clusters": [["a", 7]]}, "a cluster names '7', without a score here"),
        (GOOD, {"clusters": [7]}, "a cluster is the text 7; give a list"),
    ],
)
def test_a_wrong_type_gets_a_sentence(scores, options, sentence):
    with pytest.raises(InputError) as refused:
        pay(scores, budget=10, **options)
    assert sentence in str(refused.value) and str(refused.value).count("\n") == 0


def test_an_audit_is_taken_as_it_is():
    """Certificates, their document, and the names they link are the same clusters."""
    rng = default_rng(0)
    truth = rng.integers(0, 3, 900)
    labels = np.where(rng.random((5, 900)) < 0.7, truth, rng.integers(0, 3, (5, 900)))
    reports = Reports.of(np.vstack([labels, labels[:1]]), agents=list("abcdef"))
    scores, found = verax.score(reports), verax.audit(reports)
    paid = pay(scores, budget=600, clusters=found)
    assert clusters_of(found) == [{"a", "f"}]
    apart = verax.score(reports, copies="apart")
    assert apart.copies == (("a", "f"),)
    assert paid == pay(apart, budget=600) == pay(apart, budget=600, clusters=found)
    assert any("as references of one another gave or took" in note for note in paid.notes)
    named = pay(scores, budget=600, clusters=[{"a", "f"}])  # names alone do not say what copies gained
    assert sum(amounts(named)[a] for a in "af") > sum(amounts(paid)[a] for a in "af")
    assert any("score with copies='apart'" in note for note in named.notes)
    document = json.loads(json.dumps({"format": "verax.audit/1", "certificates": [c.to_json() for c in found]}))
    assert paid == pay(scores, budget=600, clusters=document) == pay(scores, budget=600, clusters=tuple(found))
    assert any("'a', 'f'" in note for note in paid.notes)
    assert pay(scores, budget=600, clusters=[]) == pay(scores, budget=600)


def test_payments_are_a_sequence_and_a_frame():
    paid = pay(scores_of([0.5, 1.0]), budget="1000.00")
    assert [(p.agent, p.amount) for p in paid] == [("a", 25_000), ("b", 50_000)] and len(paid) == 2
    frame = paid.to_frame()
    assert list(frame.columns) == ["agent", "amount", "paid"]
    assert frame["amount"].tolist() == [25_000, 50_000] and frame["paid"].tolist() == ["250.00", "500.00"]


def test_a_frame_is_of_the_library_that_is_there(monkeypatch):
    paid, absent, import_module = pay(scores_of([0.5, 1.0]), budget="1000.00"), set(), frames.importlib.import_module

    def installed(name):
        if name in absent:
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr(frames.importlib, "import_module", installed)
    for kind in ("pandas", "polars", "pyarrow"):
        assert type(paid.to_frame()).__module__.startswith(kind)
        absent.add(kind)
    with pytest.raises(verax.OptionError, match="install pandas, polars or pyarrow"):
        paid.to_frame()


def test_a_notebook_shows_payments_with_every_name_escaped():
    nasty = "<script>alert(1)</script>"
    shown = Payments(nasty, "EUR", 2, 100, 40, (Payment(nasty, 60),))._repr_html_()
    assert "<script" not in shown and shown.count("&lt;script&gt;") == 2
    assert "0.60" in shown and "(back)" in shown and " style" not in shown
