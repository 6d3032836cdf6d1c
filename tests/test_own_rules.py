"""A rule has one home: added to `rules.RULES`, or in a module of somebody's own, it has the same standing everywhere.

Three rules that verax does not know. `spherical` looks at probabilities and is linear in p / |p|; `half` is linear in
labels; `surprise`, the mutual information of labels, is linear in nothing.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng
from typer.testing import CliRunner

import oracle
import verax
from verax import Reports, rules
from verax.cli import app
from verax.joint import Joint

LABELS_ONLY = """
import numpy as np

def surprise(joint):
    p = joint.counts.sum(0) / joint.tasks
    alone = np.outer(p.sum(1), p.sum(0))
    there = p > 0
    return float((p[there] * np.log(p[there] / alone[there])).sum())

surprise.bounds = (0.0, 2.0)
"""
SPHERICAL = """
import numpy as np
from verax.rules import Rule

spherical = Rule("spherical", rows=lambda p, _: p / np.linalg.norm(p, axis=1, keepdims=True), linear=True,
                 low=-1.0, high=1.0, says="the probability given to the reference's label, over the row's length")

def plain_spherical(joint):
    rows = joint.tasks_paired.rows
    return joint.with_rows(lambda p: p / np.linalg.norm(p, axis=1, keepdims=True)).score().value
"""


def world(seed=0, agents=4, tasks=90, size=3):
    rng = default_rng(seed)
    truth = rng.integers(0, size, tasks)
    rows = rng.dirichlet(np.ones(size), (agents, tasks)) + 1.5 * np.eye(size)[truth]
    rows = rows / rows.sum(2, keepdims=True)
    names = [f"c{k}" for k in range(size)]
    return Reports.of(rows.argmax(2), rows, classes=names), truth


def surprise(joint):
    p = joint.counts.sum(0) / joint.tasks
    alone = np.outer(p.sum(1), p.sum(0))
    return float((p[p > 0] * np.log(p[p > 0] / alone[p > 0])).sum())


@pytest.fixture
def spherical(monkeypatch):
    rule = rules.Rule(
        "spherical", rows=lambda p, _: p / np.linalg.norm(p, axis=1, keepdims=True), linear=True, low=-1.0, high=1.0
    )
    monkeypatch.setitem(rules.RULES, "spherical", rule)
    return rule


@pytest.fixture
def modules(tmp_path, monkeypatch):
    (tmp_path / "their_rules.py").write_text(LABELS_ONLY)
    (tmp_path / "their_spherical.py").write_text(SPHERICAL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def by_definition(reports, i, references):
    """The mean over references of Algorithm 1 on rows of length 1, by its literal triple loop."""
    rows = reports.probabilities[i] / np.linalg.norm(reports.probabilities[i], axis=1, keepdims=True)
    return np.mean([oracle.all_triples(rows, g.astype(np.int64)) for g in references])


def relabelled(reports, i, order):
    """Agent i's report as a relabelling has it: labels mapped, and the two entries of its rows swapped."""
    labels, rows, every = reports.labels.copy(), reports.probabilities, np.arange(len(reports.tasks))
    held, said = labels[i].astype(int), np.array(order)[labels[i]]
    labels[i] = said
    if rows is not None:
        rows = rows.copy()
        swapped = reports.probabilities[i].copy()
        swapped[every, held] = reports.probabilities[i][every, said]
        swapped[every, said] = reports.probabilities[i][every, held]
        rows[i] = swapped
    return replace(reports, held=labels, probabilities=rows)


def brute_gain(reports, i, given=None, **options):
    """By how much the best of all relabellings beats the truth, scoring each of them."""
    maps = itertools.product(range(len(reports.classes)), repeat=len(reports.classes))
    scores = [verax.score(relabelled(reports, i, m), given, **options).scores[i].score for m in maps]
    honest = verax.score(reports, given, **options).scores[i].score
    return max(0.0, max(scores) - honest)


def truthful(found, agent):
    return next(c for c in found if c.code == "TRUTHFUL" and c.agent == agent)


def test_a_rule_added_in_one_file_scores_as_its_definition(spherical):
    reports, truth = world(tasks=40)
    against_truth = verax.score(reports, truth, rule="spherical")
    against_peers = verax.score(reports, rule="spherical")
    assert against_peers.mechanism.rule == "spherical"
    for i, agent in enumerate(reports.agents):
        assert against_truth[agent].score == pytest.approx(by_definition(reports, i, truth[None]), abs=1e-12)
        others = np.delete(reports.labels, i, axis=0)
        assert against_peers[agent].score == pytest.approx(by_definition(reports, i, others), abs=1e-12)


def test_its_audit_believes_its_own_score_and_its_gain_is_brute_force(spherical):
    reports, truth = world(1, tasks=60)
    for given in (None, truth):
        found = verax.audit(reports, given, rule="spherical")
        for i, agent in enumerate(reports.agents):
            gain = brute_gain(reports, i, given, rule="spherical")
            assert truthful(found, agent).gain == pytest.approx(gain, abs=1e-12)
        informative = [c for c in found if c.code == "INFORMATIVE"]
        assert len(informative) == 4
        assert {c.verdict for c in found if c.code == "OVERCONFIDENT"} <= {"holds", "fails", "undecided"}


@pytest.mark.parametrize(
    "name",
    [
        "their_rules:surprise",
        "their_spherical:spherical",
        pytest.param("their_spherical:plain_spherical", marks=pytest.mark.slow),
    ],
)
def test_a_rule_of_somebodys_module_is_audited_by_brute_force(modules, name):
    reports, truth = world(2, tasks=60)
    if "surprise" in name:
        reports = replace(reports, probabilities=None)
    rule = rules.load(name)
    for given in (None, truth):
        found = verax.audit(reports, given, rule=rule)
        for i, agent in enumerate(reports.agents):
            gain = brute_gain(reports, i, given, rule=rule)
            assert truthful(found, agent).gain == pytest.approx(gain, abs=1e-10)


def test_a_function_of_rows_is_what_the_same_rule_as_a_value_gives(modules):
    reports, truth = world(3)
    for given in (None, truth):
        value = verax.score(reports, given, rule=rules.load("their_spherical:spherical"))
        plain = verax.score(reports, given, rule=rules.load("their_spherical:plain_spherical"))
        for one, other in zip(value, plain, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-12)
            assert one.stderr == pytest.approx(other.stderr, rel=0.35)


def test_a_search_too_large_for_all_relabellings_tries_every_change_of_one_label():
    labels = default_rng(5).integers(0, 6, (3, 400))
    labels[1:] = np.where(default_rng(6).random((2, 400)) < 0.6, labels[0], labels[1:])
    reports = Reports.of(labels, classes=list("abcdef"))
    found = truthful(verax.audit(reports, rule=surprise), "0")
    assert "every change of one label was tried" in found.why
    single = [tuple(r if j == k else j for j in range(6)) for k in range(6) for r in range(6) if r != k]
    reports = replace(reports, probabilities=None)
    best = max(verax.score(relabelled(reports, 0, m), rule=surprise).scores[0].score for m in single)
    assert found.gain == pytest.approx(max(0.0, best - verax.score(reports, rule=surprise)["0"].score), abs=1e-12)


def test_a_rule_that_pays_for_a_lie_is_caught_with_the_lie():
    def likes_b(joint):
        return float(joint.counts.sum(0)[1].sum() / joint.tasks)

    labels = default_rng(7).integers(0, 2, (3, 400))
    found = truthful(verax.audit(Reports.of(labels, classes=["a", "b"]), rule=likes_b), "0")
    assert found.verdict == "fails"
    assert found.deviation == {"a": "b"}
    assert found.gain == pytest.approx((labels[0] == 0).mean())
    assert found.interval[0] > 0


def test_it_pays_within_its_bounds_and_a_market_stakes_them(modules, spherical):
    reports, truth = world(4)
    paid = verax.pay(verax.score(reports, truth, rule="spherical"), budget="100.00")
    scores = verax.score(reports, truth, rule="spherical")
    assert [p.amount for p in paid.payments] == [math.floor(2500 * max(0.0, s.score)) for s in scores]
    labels = replace(reports, probabilities=None)
    theirs = verax.score(labels, truth, rule=rules.load("their_rules:surprise"))
    paid = verax.pay(theirs, budget="100.00")
    assert [p.amount for p in paid.payments] == [math.floor(2500 * s.score / 2) for s in theirs]


def test_shards_give_what_the_whole_gives(modules, spherical):
    reports, _ = world(8, agents=5, tasks=240)
    folder = modules / "shards"
    folder.mkdir()
    for n, chosen in enumerate(np.array_split(np.arange(240), 4)):
        verax.write(reports.take(np.isin(np.arange(240), chosen)), folder / f"{n}.npz")
    labels = replace(reports, probabilities=None)
    plain = modules / "labels"
    plain.mkdir()
    for n, chosen in enumerate(np.array_split(np.arange(240), 4)):
        verax.write(labels.take(np.isin(np.arange(240), chosen)), plain / f"{n}.csv")
    for pattern, rule, whole in (
        (folder / "*.npz", "their_spherical:spherical", reports),
        (plain / "*.csv", "their_rules:surprise", labels),
    ):
        result = CliRunner().invoke(app, ["score", str(pattern), "--rule", rule, "--workers", "1", "--json"])
        assert result.exit_code == 0, result.stderr
        here = verax.score(whole, rule=rules.load(rule))
        for one, other in zip(json.loads(result.stdout)["scores"], here, strict=True):
            assert one["score"] == pytest.approx(other.score, abs=1e-12)
            assert one["stderr"] == pytest.approx(other.stderr, abs=1e-12)


def test_the_error_of_a_function_is_the_spread_over_worlds():
    """The jackknife's error beside the standard deviation of the score over drawn worlds."""
    rng, table = default_rng(9), np.array([[0.4, 0.1], [0.15, 0.35]])
    scores, errors = [], []
    for _ in range(120):
        cells = rng.choice(4, 300, p=table.ravel())
        found = verax.score(Reports.of([cells // 2, cells % 2], classes=["a", "b"]), rule=surprise)
        scores.append(found["0"].score)
        errors.append(found["0"].stderr)
    assert np.mean(errors) == pytest.approx(np.std(scores), rel=0.15)


def test_two_functions_of_one_name_are_told_apart():
    def made(value):
        def rule(joint):
            return value * joint.tasks

        return rule

    reports, _ = world(10, tasks=20)
    one, two = made(1.0), made(2.0)
    first = verax.score(reports, rule=one)
    second = verax.score(reports, rule=two)
    assert (first["0"].score, second["0"].score) == (20.0, 40.0)
    assert first.mechanism.rule != second.mechanism.rule
    assert verax.score(reports, rule=one)["0"].score == 20.0


def test_a_joint_scored_by_a_linear_rule_is_delta_on_its_rows(spherical):
    reports, truth = world(11)
    joint = Joint.of(reports.probabilities[0], truth)
    rows = reports.probabilities[0] / np.linalg.norm(reports.probabilities[0], axis=1, keepdims=True)
    one_hot = np.eye(3)[truth]
    centred = rows - rows.mean(0)
    assert spherical(joint).value == pytest.approx((centred * one_hot).sum() / (len(truth) - 1), abs=1e-12)


WORDS_THAT_ARE_NO_RULES = {
    "vocabulary.py": {"accuracy"},  # what a row of sums may be called
    "design.py": {"accuracy"},  # what labels are to tell of
    "accuracies.py": {"accuracy"},  # what they have told
    "spotchecks.py": {"accuracy"},
    "leaderboard.py": {"accuracy"},  # what a log with its truth tells
    "boards.py": {"accuracy"},
}


def literals(path):
    """The strings of a module, but for docstrings."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    first = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and node.body]
    docstrings = {id(each.value) for each in first if isinstance(each, ast.Expr)}
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [node.value for node in found if id(node) not in docstrings]


def named_in(text):
    """The rules that a text names: `log` and `accuracy` are words too, and name a rule where they stand alone."""
    words = {*re.findall(r"[\w-]+", text)} - {"log", "accuracy"}
    return (words | {text}) & {*rules.RULES}


def test_no_module_but_one_knows_the_name_of_a_rule():
    source = Path(verax.__file__).parent
    for path in source.rglob("*.py"):
        named = {name for text in literals(path) for name in named_in(text)}
        if path.name == "rules.py":
            assert named == {*rules.RULES}
        else:
            assert named == WORDS_THAT_ARE_NO_RULES.get(path.name, set()), path
    for path in (source / "show" / "templates").iterdir():
        assert not named_in(path.read_text()), path
