"""Order and names carry no money: label scores are bit-equal however the same reports are written."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import default_rng

import verax
from verax import Reports

MECHANISMS = [
    {},
    {"over": "median"},
    {"rule": "ca", "sign": "split"},
    {"rule": "ca", "sign": "plugin"},
    {"rule": "ca", "sign": np.array([[1, 0.3, 0], [0.1, 1, 0.7], [0.2, 0, 1]])},
    {"rule": "accuracy"},
    {"against": "hybrid"},
    {"against": "truth"},
    {"over": "one", "seed": "00ff"},
    {"over": "skilled"},
    {"over": "skilled", "rule": "ca", "sign": "split"},
    {"against": "consensus"},
]
CASES = [
    (m, stratified) for m in MECHANISMS for stratified in (False, True) if not stratified or m.get("rule") != "accuracy"
]


def world(seed):
    rng = default_rng(seed)
    truth = rng.integers(0, 3, 60)
    labels = np.where(rng.random((5, 60)) < 0.6, truth, rng.integers(0, 3, (5, 60)))
    labels[rng.random(labels.shape) < 0.15] = -1
    return rng, labels, np.where(rng.random(60) < 0.7, truth, -1), rng.integers(0, 4, 60)


def scored(labels, agents, tasks, truth, public, mechanism):
    needs_truth = "against" in mechanism or mechanism.get("rule") == "accuracy"
    reports = Reports.of(labels, agents=agents, tasks=tasks, classes=list("abc"))
    scores = verax.score(reports, truth if needs_truth else None, public, **mechanism)
    return {s.agent: s.score for s in scores.scores}


@pytest.mark.parametrize(("mechanism", "stratified"), CASES)
def test_the_order_of_tasks_and_agents_changes_no_bit(mechanism, stratified):
    for seed in range(5):
        rng, labels, truth, strata = world(seed)
        agents, tasks = np.array(list("vwxyz")), np.array([f"t{i}" for i in range(60)])
        public = strata if stratified else None
        plain = scored(labels, agents, tasks, truth, public, mechanism)
        k, n = rng.permutation(5), rng.permutation(60)
        shuffled = scored(
            labels[k][:, n], agents[k], tasks[n], truth[n], None if public is None else public[n], mechanism
        )
        assert shuffled == plain


@pytest.mark.parametrize(("mechanism", "stratified"), CASES)
def test_the_names_of_labels_and_strata_change_no_bit(mechanism, stratified):
    for seed in range(5):
        rng, labels, truth, strata = world(seed)
        agents, tasks = list("vwxyz"), [f"t{i}" for i in range(60)]
        order, level = rng.permutation(3), rng.permutation(4)
        renamed = np.append(order, -1)
        sign = mechanism.get("sign")
        turned = {**mechanism}
        if isinstance(sign, np.ndarray):
            turned["sign"] = np.empty((3, 3))
            turned["sign"][np.ix_(order, order)] = sign
        public = strata if stratified else None
        plain = scored(labels, agents, tasks, truth, public, mechanism)
        named = scored(
            renamed[labels], agents, tasks, renamed[truth], None if public is None else level[public], turned
        )
        assert named == plain


def test_files_in_shards_score_as_one_file(tmp_path):
    _, labels, _, _ = world(1)
    whole = Reports.of(labels, agents=list("vwxyz"), classes=list("abc"))
    for name, chosen in {"first": np.arange(60) < 25, "second": np.arange(60) >= 25}.items():
        verax.write(whole.take(chosen), tmp_path / f"{name}.csv")
    shards = verax.read(tmp_path / "second.csv", tmp_path / "first.csv")
    plain = {s.agent: s.score for s in verax.score(whole).scores}
    assert {s.agent: s.score for s in verax.score(shards).scores} == plain


def test_one_peer_drawn_from_a_seed_is_the_score_beside_one_of_the_peers():
    _, labels, _, _ = world(2)
    reports = Reports.of(labels, agents=list("vwxyz"), classes=list("abc"))
    drawn = set()
    for seed in range(40):
        one = verax.score(reports, over="one", seed=f"{seed:02x}")["v"]
        beside = {
            other: verax.score(Reports.of(labels[[0, j]], agents=["v", other], classes=list("abc")))["v"].score
            for j, other in enumerate("wxyz", start=1)
        }
        assert one.references == 1
        drawn |= {other for other, value in beside.items() if value == one.score}
    assert drawn == set("wxyz")
