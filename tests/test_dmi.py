"""Determinant mutual information: the definition, its theorem by brute force, and its error by drawn worlds."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng
from typer.testing import CliRunner

import verax
from verax import Reports
from verax.cli import app
from verax.statistic import halves

GOLDEN = Path(__file__).parent / "golden"


def crowd(seed, agents=4, tasks=80, size=3, gaps=0.1):
    rng = default_rng(seed)
    truth = rng.integers(0, size, tasks)
    labels = np.where(rng.random((agents, tasks)) < 0.7, truth, rng.integers(0, size, (agents, tasks)))
    labels[rng.random(labels.shape) < gaps] = -1
    return Reports.of(labels, classes=[f"c{k}" for k in range(size)])


def by_definition(reports, i, reference):
    """Two tables of counts, their determinants over the number of ways to draw L tasks in order."""
    size, product = len(reports.classes), 1.0
    group = halves(reports.tasks)
    for g in (0, 1):
        table = np.zeros((size, size))
        for n in range(len(reports.tasks)):
            if group[n] == g and reports.labels[i, n] >= 0 and reference[n] >= 0:
                table[reports.labels[i, n], reference[n]] += 1
        product *= size**size * np.linalg.det(table) / math.perm(int(table.sum()), size)
    return product


@pytest.mark.parametrize("seed", range(10))
def test_a_score_is_the_mean_over_peers_of_two_determinants(seed):
    reports = crowd(seed, size=2 + seed % 3)
    for i, s in enumerate(verax.score(reports, rule="dmi")):
        others = [j for j in range(4) if j != i]
        wanted = np.mean([by_definition(reports, i, reports.labels[j]) for j in others])
        assert s.score == pytest.approx(wanted, abs=1e-12)
        assert s.references == 3


def test_it_is_unbiased_for_the_squared_determinant_and_its_error_is_the_spread():
    rng = default_rng(1)
    law = np.array([[0.35, 0.05, 0.05], [0.03, 0.2, 0.07], [0.05, 0.05, 0.15]])
    scores, errors = [], []
    for _ in range(300):
        cells = rng.choice(9, 300, p=law.ravel())
        found = verax.score(Reports.of([cells // 3, cells % 3], classes=list("abc")), rule="dmi")["0"]
        scores.append(found.score)
        errors.append(found.stderr)
    population = (27 * np.linalg.det(law)) ** 2
    assert np.mean(scores) == pytest.approx(population, abs=3 * np.std(scores) / math.sqrt(300))
    assert np.mean(errors) == pytest.approx(np.std(scores), rel=0.15)


def test_what_says_nothing_earns_exactly_nothing_and_renaming_changes_nothing():
    reports = crowd(2)
    labels = np.vstack([reports.labels, np.zeros(80, dtype=int)])
    whole = verax.score(Reports.of(labels, classes=reports.classes), rule="dmi")
    assert whole["4"].score == 0.0
    renamed = np.where(labels >= 0, (labels + 1) % 3, -1)
    renamed[4] = 0
    again = verax.score(Reports.of(renamed, classes=reports.classes), rule="dmi")
    assert [s.score for s in again] == [s.score for s in whole]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_no_relabelling_earns_more_than_the_truth_where_the_law_is_exact(size):
    """Kong's theorem by brute force: on tasks that have exactly a law's shares, and the same in both halves."""
    rng = default_rng(size)
    table = rng.integers(1, 5, (size, size)) + 8 * np.eye(size, dtype=int)
    cells = [(k, m) for k in range(size) for m in range(size) for _ in range(int(table[k, m]))]
    names = [str(n) for n in range(100_000)]
    group = halves(names)
    tasks = [*np.array(names)[group == 0][: len(cells)], *np.array(names)[group == 1][: len(cells)]]
    own, other = np.array(cells + cells).T
    classes = [f"c{k}" for k in range(size)]

    def earned(report):
        return verax.score(Reports.of([report, other], tasks=tasks, classes=classes), rule="dmi")["0"].score

    honest = earned(own)
    assert honest > 0
    for order in itertools.product(range(size), repeat=size):
        assert earned(np.array(order)[own]) <= honest + 1e-15
    found = verax.audit(Reports.of([own, other], tasks=tasks, classes=classes), rule="dmi")
    verdict = next(c for c in found if c.code == "TRUTHFUL" and c.agent == "0")
    assert verdict.gain == 0.0
    assert verdict.verdict in ("holds", "undecided")


def test_order_changes_no_bit():
    reports = crowd(3)
    plain = {s.agent: s.score for s in verax.score(reports, rule="dmi")}
    k, n = default_rng(0).permutation(4), default_rng(1).permutation(80)
    turned = Reports.of(
        reports.labels[k][:, n], agents=[reports.agents[i] for i in k], tasks=[reports.tasks[i] for i in n],
        classes=reports.classes,
    )  # fmt: skip
    assert {s.agent: s.score for s in verax.score(turned, rule="dmi")} == plain


def test_the_command_knows_it_and_refuses_what_it_cannot_take():
    run = CliRunner().invoke(app, ["score", str(GOLDEN / "wide.csv"), "--rule", "dmi", "--json"])
    assert run.exit_code == 0, run.stderr
    document = json.loads(run.stdout)
    assert document["mechanism"] == {
        "rule": "dmi", "against": "peers", "over": "mean", "sign": None, "public": False, "floor": None,
    }  # fmt: skip
    for options in (["--over", "median"], ["--public", str(GOLDEN / "public.csv")], ["--sign", "split"]):
        refused = CliRunner().invoke(app, ["score", str(GOLDEN / "wide.csv"), "--rule", "dmi", *options])
        assert refused.exit_code == 2
        assert len(refused.stderr.splitlines()) == 1


def test_it_is_scored_against_truth_too_and_paid():
    reports = crowd(4, tasks=200, gaps=0.0)
    truth = verax.score(reports, reports.labels[0].astype(int), rule="dmi")
    assert truth["0"].score > truth["1"].score > 0
    paid = verax.pay(verax.score(reports, rule="dmi"), budget="100.00")
    assert sum(p.amount for p in paid.payments) + paid.residue == 10_000
