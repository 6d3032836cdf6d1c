"""A rule written outside verax has the standing of a built-in one wherever money follows: pay, market, rounds."""

from __future__ import annotations

import dataclasses
import json
import sys
from fractions import Fraction

import numpy as np
import pytest
from numpy.random import default_rng

import verax
from verax import Mechanism, OptionError, Reports, Score, Scores, pay, rules
from verax.ledger import Ledger
from verax.market import Submissions, bounds, market, stake
from verax.rounds import Rounds, Spec
from verax.rules import Rule

TASKS = tuple(f"t{n}" for n in range(60))
CLASSES = ("cat", "dog", "eel")
TRUTH = default_rng(0).integers(0, 3, 60)
ROWS = 0.5 * np.eye(3)[TRUTH] + 0.5 * default_rng(1).dirichlet(np.ones(3), (3, 60))
AGREEMENT = "def agreement(joint):\n    return float(joint.bonus.trace())\n\n\nagreement.bounds = (0.0, 1.0)\n"


@pytest.fixture
def spherical(monkeypatch):
    """A rule of rows that is added in one place."""
    made = Rule(
        "spherical", rows=lambda p, _: p / np.linalg.norm(p, axis=1, keepdims=True), linear=True, low=-1.0, high=1.0
    )
    monkeypatch.setitem(rules.RULES, "spherical", made)
    return made


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A user's own module, importable from here, with a rule of labels only."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(rules, "_OWN", {})
    (tmp_path / "house_rules.py").write_text(AGREEMENT)
    yield "house_rules:agreement"
    sys.modules.pop("house_rules", None)


def reports(rows=ROWS, agents=("ann", "bob", "cy")):
    return Reports.of(probabilities=rows, agents=agents, tasks=TASKS, classes=CLASSES)


def scores_by(rule, *values, floor=None):
    made = tuple(Score(a, v, 0.01, 100, 1) for a, v in zip("abcdef", values, strict=False))
    return Scores(Mechanism(rule, "peers", "mean", None, False, floor), 100, ("0", "1"), made)


def amounts(paid):
    return [p.amount for p in paid]


def test_a_rule_added_in_one_place_pays_by_its_bounds_and_takes_features_and_truth(spherical):
    found = verax.score(reports(), rule="spherical")
    paid = pay(found, budget="100.00")
    assert amounts(paid) == [int(Fraction(10_000, 3) * Fraction(s.score)) for s in found.scores]
    assert min(amounts(paid)) > 0 and "Clipping at 0 pays for noise" in paid.notes[0]
    assert amounts(pay(scores_by("spherical", 1.0, 0.5, -1.0), budget=30, scheme="affine")) == [1000, 750, 0]
    closed = market(Submissions.of(probabilities=ROWS, owners=["a", "b", "c"]), truth=TRUTH, rule="spherical")
    levels = [s.score for s in verax.score(reports(), TRUTH, rule="spherical").scores]
    assert [p.level for p in closed.payments] == pytest.approx(levels, abs=1e-12)
    assert (bounds(closed.mechanism), closed.worst_case_loss, closed.stake) == ((-1.0, 1.0), 1.0, 2.0)
    assert stake(closed.mechanism, unit=100) == 200
    assert type(closed).from_json(json.loads(json.dumps(closed.to_json()))) == closed


def test_a_function_with_bounds_pays_clipped_affine_and_as_a_pot_and_makes_a_market():
    def agreement(joint):
        return float(joint.bonus.trace())

    agreement.bounds = (0.0, 1.0)
    labels = np.array([[0, 1, 1, 0], [0, 1, 0, 0], [1, 1, 1, 0]])
    found = verax.score(Reports.of(labels), [0, 1, 1, 0], rule=agreement)
    assert [s.score for s in found.scores] == [1.0, 0.75, 0.75]
    assert amounts(pay(found, budget=30, min_tasks=2)) == [1000, 750, 750]
    assert pay(found, budget=30, min_tasks=2).notes == ()  # never below 0: clipping there adds nothing
    assert amounts(pay(found, budget=30, min_tasks=2, scheme="affine", base=0, rate=1)) == [1000, 750, 750]
    assert sum(amounts(pay(found, budget=30, min_tasks=2, scheme="proportional"))) == 3000
    closed = market(Submissions.of(labels, owners=["a", "b", "a"]), truth=[0, 1, 1, 0], rule=agreement)
    assert [p.level for p in closed.payments] == [1.0, 0.75, 0.75]
    assert closed.money(100).amounts == (100, -25, 0) and closed.stake == 1.0


def test_bounds_are_of_score_times_coverage_so_that_0_is_always_among_them():
    """A rule that gives 0.5 to 2: half of the tasks at 0.5 count 0.25, and are paid that, not 0.5."""

    def generous(joint):
        return 0.5 + float(joint.bonus.trace())

    generous.bounds = (0.5, 2.0)
    name = rules.resolve(generous).name
    found = scores_by(name, 2.0, 0.5)
    assert amounts(pay(found, budget=20)) == [1000, 250]
    half = dataclasses.replace(found, scores=(found.scores[0], dataclasses.replace(found.scores[1], tasks=50)))
    assert amounts(pay(half, budget=20)) == [1000, 125]
    assert bounds(found.mechanism) == (0.0, 2.0)


def test_a_rule_that_only_loses_is_known_by_its_bounds():
    def loss(joint):
        return float(joint.bonus.trace()) - 1.0

    loss.bounds = (-1.0, 0.0)
    name = rules.resolve(loss).name
    with pytest.raises(OptionError, match="never scores above 0, so clipped pays nobody; use scheme affine"):
        pay(scores_by(name, -0.5), budget=10)
    assert amounts(pay(scores_by(name, -0.5, 0.0), budget=20, scheme="affine")) == [250, 500]
    shy = Submissions.of([[0, 1, -1, 1]], owners=["a"])
    with pytest.raises(verax.InputError, match=r"step 1 leaves out task '2', and rule .*, never above 0, would pay"):
        market(shy, truth=[0, 1, 1, 1], rule=loss)


def test_uneven_bounds_pay_clipped_by_their_top_and_say_what_line_would_be_safe():
    def uneven(joint):
        return 3.0 * float(joint.bonus.trace())

    uneven.bounds = (-5.0, 3.0)
    found = scores_by(rules.resolve(uneven).name, 1.5, 3.0, -5.0)
    assert amounts(pay(found, budget=30)) == [500, 1000, 0]
    with pytest.raises(OptionError, match="such as base 5/8 and rate 3/8"):
        pay(found, budget=30, scheme="affine")
    assert amounts(pay(found, budget=30, scheme="affine", base="5/8", rate="3/8")) == [812, 1000, 0]


@pytest.mark.parametrize("ends", [(1.0, 0.0), (0.0, 0.0), (0.0, float("inf")), ("low", "high")])
def test_bounds_that_are_none_are_refused(ends):
    def odd(joint):
        return 0.0

    odd.bounds = ends
    found = scores_by(rules.resolve(odd).name, 0.5)
    with pytest.raises(OptionError, match=r"has bounds .*; give two numbers, the lower first"):
        pay(found, budget=10)


def test_without_bounds_a_rule_of_ones_own_is_paid_as_a_pot_only_and_told_how_to_give_them():
    def mine(joint):
        return float(joint.bonus.trace())

    found = scores_by(rules.resolve(mine).name, 0.75, 0.25)
    with pytest.raises(OptionError, match=r"agreement.bounds = \(0.0, 1.0\)"):
        pay(found, budget=10)
    assert amounts(pay(found, budget=10, scheme="proportional")) == [750, 250]
    with pytest.raises(OptionError, match=r"has no bounds that verax knows; .* \(agreement.bounds = \(0.0, 1.0\)\)"):
        market(Submissions.of([[0, 1]], owners=["a"]), truth=[0, 1], rule=mine)


def test_a_document_imports_nobodys_module(module):
    found = Scores.from_json(json.loads(json.dumps(scores_by(module, 0.5, 1.0).to_json())))
    with pytest.raises(OptionError, match="give the rule itself with rule="):
        pay(found, budget=20)
    assert amounts(pay(found, budget="3.00", scheme="proportional")) == [100, 200]
    assert "house_rules" not in sys.modules
    with pytest.raises(OptionError, match="made by rule 'house_rules:agreement' and rule= is 'zero-one'"):
        pay(found, budget=20, rule="zero-one")
    assert amounts(pay(found, budget=20, rule=rules.load(module))) == [500, 1000]
    assert amounts(pay(found, budget=20)) == [500, 1000]  # this process knows it now


def held(rounds, spec, handed_in):
    """The round opened, funded, filled, sealed and settled."""
    rounds.open(spec, secret="5ec2e7")
    rounds.fund(spec.round)
    for agent, report in handed_in.items():
        rounds.fund(spec.round, 50_000, agent=agent)
        rounds.submit(spec.round, agent, report)
    rounds.seal(spec.round)
    return rounds.settle(spec.round)


def alone(i):
    return Reports.of(probabilities=ROWS[i][None], tasks=TASKS, classes=CLASSES)


@pytest.mark.parametrize("kind", ["batch", "market"])
def test_a_round_is_run_by_a_rule_added_in_one_place(spherical, kind):
    rounds = Rounds(Ledger.open("sqlite://"))
    truth = tuple(TRUTH.tolist()) if kind == "market" else None
    spec = Spec("r", TASKS, CLASSES, "100.00", kind, rule="spherical", truth=truth)
    found = held(rounds, spec, {a: alone(i) for i, a in enumerate(("ann", "bob", "cy"))})
    if kind == "batch":
        assert found.scores == verax.score(reports(), rule="spherical")
        assert found.amounts == {p.agent: p.amount for p in pay(found.scores, budget="100.00")}
    else:
        assert (found.scores.worst_case_loss, found.scores.stake) == (1.0, 2.0)
        assert found.amounts == found.scores.money(10_000).totals
    assert rounds.verify("r") == [] and rounds.settle("r") == found
    rounds.ledger.close()


@pytest.mark.parametrize("kind", ["batch", "market"])
def test_a_round_is_run_by_a_rule_of_a_users_module(module, kind):
    rounds = Rounds(Ledger.open("sqlite://"))
    spec = Spec("r", TASKS, CLASSES, "100.00", kind, rule=module, truth=tuple(TRUTH.tolist()))
    found = held(rounds, spec, {a: alone(i) for i, a in enumerate(("ann", "bob", "cy"))})
    levels = [s.score for s in verax.score(reports(), TRUTH, rule=rules.load(module)).scores]
    if kind == "batch":
        assert [s.score for s in found.scores.scores] == levels
        assert [*found.amounts.values()] == [int(Fraction(10_000, 3) * Fraction(level)) for level in levels]
    else:
        assert [p.level for p in found.scores.payments] == levels
    # another process of the operator's knows nothing of it yet, and its module is where it was
    rules._OWN.clear()
    assert Rounds(rounds.ledger).verify("r") == []
    rules._OWN.clear()
    assert Rounds(rounds.ledger).settle("r") == found
    assert Rounds(rounds.ledger).show("r")["settlement"]["amounts"] == found.amounts
    rounds.ledger.close()


def test_a_round_by_a_rule_that_cannot_be_loaded_is_not_opened(module):
    rounds = Rounds(Ledger.open("sqlite://"))
    for rule, says in (("nowhere:rule", "cannot be loaded"), ("house_rules:other", "cannot be loaded")):
        with pytest.raises(OptionError, match=says):
            rounds.open(Spec("r", TASKS, CLASSES, "100.00", rule=rule))
    assert rounds.ledger.head().count == 0
    rounds.ledger.close()
