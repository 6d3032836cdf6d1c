"""The mean over peers without pairs gives what all pairs give, and does so where it is meant to."""

from __future__ import annotations

import importlib.util
import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.random import default_rng

import verax
from verax import Reports, kernels, tallies
from verax.errors import OptionError, VeraxError
from verax.kernels import Engine
from verax.mechanisms.pairwise import pair_by_pair, parts_of_counts
from verax.pairs import all_pairs
from verax.plan import Mechanism
from verax.score import prepare

numba_there = importlib.util.find_spec("numba") is not None
BACKENDS = ["numpy", pytest.param("numba", marks=pytest.mark.skipif(not numba_there, reason="numba is not installed"))]


def prepared(case, backend):
    """A random world: labels or rows, a fixed S of some kind, groups of agents with the same gaps, a public signal."""
    rng = default_rng(case)
    agents, tasks, size = (int(rng.integers(*limits)) for limits in ((2, 9), (2, 90), (2, 13)))
    truth = rng.integers(0, size, tasks)
    labels = np.where(rng.random((agents, tasks)) < 0.6, truth, rng.integers(0, size, (agents, tasks)))
    if case % 3 == 0:
        labels = np.where((rng.random((3, tasks)) < 0.8)[rng.integers(0, 3, agents)], labels, -1)
    options, rows = {}, None
    match case % 5:
        case 1:
            options = {"rule": "ca", "sign": (rng.random((size, size)) < 0.5).astype(int)}
        case 2:
            options = {"rule": "ca", "sign": rng.random((size, size))}
        case 3 | 4:
            options = {"rule": ["ce", "brier"][case % 2]}
            rows = rng.random((agents, tasks, size)) + 3 * np.eye(size)[np.maximum(labels, 0)]
            rows = np.where((labels < 0)[..., None], np.nan, rows / rows.sum(2, keepdims=True))
    public = [None, None, rng.integers(0, 4, tasks), rng.random((tasks, 2))][case // 5 % 4]
    reports = Reports.of(labels, rows, classes=[f"c{i}" for i in range(size)])
    return prepare(reports, None, public, Mechanism.of(**options), Engine(backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mean_over_peers_is_what_all_pairs_give(backend, monkeypatch):
    monkeypatch.setattr(tallies, "groups_worth", lambda agents: agents)
    compared = 0
    for case in range(240):
        try:
            ready = prepared(case, backend)
        except VeraxError:
            continue
        side = ready.sides[1]
        for one, other in zip(tallies.mean_over_peers(side, ready.plan), pair_by_pair(side, ready.plan), strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert (one.tasks, one.references) == (other.tasks, other.references)
                assert one.score == pytest.approx(other.score, abs=1e-12)
                assert one.stderr == pytest.approx(other.stderr, abs=1e-12)
                compared += 1
    assert compared > 700


WAYS = [
    {},
    {"over": "median"},
    {"rule": "ca"},
    {"rule": "ca", "sign": "plugin"},
    {"rule": "ca", "over": "median"},
    {"rule": "ca", "sign": "plugin", "over": "median"},
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_all_pairs_at_once_are_what_each_pair_gives(options, backend):
    """Bit-equal scores whatever counts them, and errors to rounding; some agents share too few tasks."""
    for seed in range(15):
        rng = default_rng(seed)
        agents, tasks, size = (int(rng.integers(*limits)) for limits in ((2, 9), (2, 120), (2, 13)))
        truth = rng.integers(0, size, tasks)
        labels = np.where(rng.random((agents, tasks)) < 0.6, truth, rng.integers(0, size, (agents, tasks)))
        labels = np.where(rng.random((agents, tasks)) < rng.choice([1.0, 0.9, 0.3]), labels, -1)
        reports = Reports.of(labels, classes=[f"c{i}" for i in range(size)])
        small = Engine(backend, threads=1 + seed % 2, max_bytes=2**20 if seed % 3 else 2**10)
        ready = prepare(reports, None, None, Mechanism.of(**options), small)
        side = ready.sides[1]
        for one, other in zip(all_pairs(side, ready.plan), parts_of_counts(side, ready.plan), strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert (one.score, one.tasks, one.references) == (other.score, other.tasks, other.references)
                assert one.stderr == pytest.approx(other.stderr, abs=1e-12)


def test_agents_with_gaps_of_their_own_are_scored_pair_by_pair():
    rng = default_rng(0)
    labels = np.where(rng.random((8, 60)) < 0.8, rng.integers(0, 3, (8, 60)), -1)
    ready = prepare(Reports.of(labels))
    assert tallies.mean_over_peers(ready.sides[1], ready.plan) is None


@pytest.mark.parametrize("options", [{"over": "median"}, {"rule": "ca"}, {"rule": "ca", "sign": "plugin"}])
def test_what_no_sum_over_peers_can_give_is_scored_pair_by_pair(options):
    ready = prepare(Reports.of(default_rng(0).integers(0, 3, (5, 50))), None, None, Mechanism.of(**options))
    assert not ready.plan.pools_peers


def test_a_thousand_agents_are_scored_on_integers():
    """Against the definition in Python's own integers, one division at the end."""
    labels = default_rng(1).integers(0, 4, (1000, 30))
    scores = verax.score(Reports.of(labels))
    said = np.stack([np.bincount(column, minlength=4) for column in labels.T])
    held = np.stack([np.bincount(row, minlength=4) for row in labels])
    for i in (0, 499, 999):
        own = int(said[np.arange(30), labels[i]].sum()) - 30
        excess = 30 * own - int(held[i] @ (held.sum(0) - held[i]))
        assert scores[str(i)].score == pytest.approx(excess / (30 * 29 * 999), rel=1e-15)


def test_products_beyond_64_bits_are_still_exact(monkeypatch):
    labels = default_rng(2).integers(0, 3, (6, 40))
    plain = verax.score(Reports.of(labels))
    monkeypatch.setattr(tallies, "_LARGEST", 1)
    assert verax.score(Reports.of(labels)) == plain


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("agents", "tasks", "classes", "most"),
    [
        (1, 1, 2, 10**12),
        (130, 300, 10, 2**26),
        (70, 257, 11, 10**12),
        (3, 600, 2, 2**26 + 1),
        (5, 2100, 24, 2**26),  # the most labels that masks count, and more tasks than are counted at once
        (5, 100, 25, 2**26),
        (4, 70, 130, 1000),  # more than a byte holds
    ],
)
def test_tallies_and_sums_are_the_literal_ones(agents, tasks, classes, most, backend):
    rng = default_rng(agents)
    labels = rng.integers(0, classes, (agents, tasks)).astype(np.int8 if classes < 128 else np.int16)
    engine = Engine(backend)
    said, held = kernels.tallies(labels, classes, engine)
    assert said.tolist() == [[int((column == k).sum()) for k in range(classes)] for column in labels.T]
    assert held.tolist() == [[int((row == k).sum()) for k in range(classes)] for row in labels]
    table = rng.integers(0, most, (tasks, classes))
    table[:, 0] = most - 1
    labels[0] = 0  # the largest sum there can be
    said, held = kernels.tallies(labels, classes, engine)
    assert kernels.weighed(labels, table, engine).tolist() == [
        sum(int(table[n, k]) for n, k in enumerate(row)) for row in labels.tolist()
    ]
    terms = table / most, said.astype(float), rng.random((agents, classes)), rng.random((agents, classes))
    psi = kernels.influence(labels, *terms)
    total, square = kernels.spread(labels, *terms, engine)
    assert total == pytest.approx(psi.sum(1), rel=1e-12)
    assert square == pytest.approx(tasks * psi.var(1), rel=1e-9, abs=1e-9)


def test_how_it_is_counted_changes_no_score_and_wrong_ways_are_refused():
    reports = Reports.of(default_rng(3).integers(0, 3, (6, 40)))
    plain = verax.score(reports)
    assert verax.score(reports, backend="numpy", threads=1, max_bytes=2**20).scores == plain.scores
    for wrong in ({"backend": "cuda"}, {"threads": 0}, {"max_bytes": 1}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} is"):
            verax.score(reports, **wrong)


def test_scores_of_agents_who_rest_on_the_same_are_columns_that_nobody_can_tell_from_a_tuple():
    labels = default_rng(0).integers(0, 3, (40, 60))
    found = verax.score(Reports.of(labels))
    again = verax.Scores.from_json(found.to_json())
    assert isinstance(again.scores, tuple) and not isinstance(found.scores, tuple)
    assert found == again and again == found and hash(found) == hash(again)
    assert (found.scores[3], found.scores[-1], found.scores[1:3]) == (again["3"], again["39"], again.scores[1:3])
    assert pickle.loads(pickle.dumps(found)) == again and repr(found.scores) == repr(again.scores)
    assert replace(found, warnings=("x",)).scores is found.scores
