"""Sides against the short oracle, against every cut there is, and in crowds whose ring is known."""

from __future__ import annotations

import importlib.util
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from verax.errors import InputError
from verax.sides import sides

PROTOTYPE = Path(__file__).parents[2] / "shared" / "prototypes" / "exam_and_side.py"


@pytest.fixture(scope="module")
def oracle():
    if not PROTOTYPE.exists():
        pytest.skip("the short prototype is not at hand (../shared/prototypes)")
    spec = importlib.util.spec_from_file_location("exam_and_side", PROTOTYPE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def crowd(seed, honest=6, ring=5, classes=5, tasks=400, turned=None):
    """Agents right on seven tasks of ten, and a ring that renames labels together: all, or the first `turned`."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, tasks)
    said = [np.where(rng.random(tasks) < 0.7, truth, rng.integers(0, classes, tasks)) for _ in range(honest + ring)]
    names = np.arange(classes)
    names[:turned] = np.roll(names[:turned], 1)
    return np.array(said[:honest] + [names[row] for row in said[honest:]]), truth


def against_each_other(labels, classes, camps):
    """Label by label and pair by pair: how much the camps go against each other, where they do."""
    agents, tasks = labels.shape
    u = np.zeros((agents, tasks, classes))
    for i, c in product(range(agents), range(classes)):
        u[i, :, c] = (labels[i] == c) - (labels[i] == c).mean()
    for i in range(agents):
        u[i] /= max((u[i] ** 2).mean() ** 0.5, 1e-9)
    found = 0.0
    for c in range(classes):
        across = sum((u[i, :, c] * u[j, :, c]).mean()
                     for i in range(agents) for j in range(agents) if camps[i] > 0 > camps[j])  # fmt: skip
        found += max(0.0, -across)
    return found


@pytest.mark.parametrize(("seed", "turned"), [(0, None), (1, 3), (2, 3), (3, None)])
def test_the_camps_are_those_of_all_cuts_that_go_against_each_other_most(seed, turned):
    labels, _ = crowd(seed, honest=5, ring=3, turned=turned)
    found = sides(labels, 5)
    cuts = [(1, *rest) for rest in product([-1, 1], repeat=7)]
    best = max(cuts, key=lambda camps: against_each_other(labels, 5, camps))
    camps = {tuple(i for i, c in enumerate(best) if c == s) for s in (1, -1)}
    assert {found.larger, found.smaller} == camps == {(0, 1, 2, 3, 4), (5, 6, 7)}


@pytest.mark.parametrize("seed", range(8))
def test_the_paid_side_is_the_oracles(oracle, seed):
    labels, truth = crowd(seed, honest=6 if seed % 2 else 4, ring=5, turned=None)
    known = {n: int(truth[n]) for n in range(10)}
    assert sorted(sides(labels, 5, known).paid) == sorted(oracle.side(labels, 5, known))


@pytest.mark.parametrize("seed", range(8))
def test_a_ring_that_turns_three_labels_is_cut_off_to_the_last(seed):
    """The oracle, which looks at pairs, lets one of them through at seeds 6 and 7."""
    labels, truth = crowd(seed, honest=6 if seed % 2 else 4, ring=5, turned=3)
    known = {n: int(truth[n]) for n in range(20)}
    assert sides(labels, 5, known).paid == tuple(range(6 if seed % 2 else 4))


@pytest.mark.parametrize("ring", [2, 5, 9])
def test_ten_known_labels_cut_off_a_ring_that_renames_even_beyond_half(ring):
    labels, truth = crowd(3, honest=6, ring=ring)
    found = sides(labels, 5, {n: int(truth[n]) for n in range(10)})
    assert found.paid == (0, 1, 2, 3, 4, 5) and not found.held


def test_without_known_labels_a_split_crowd_is_reported_and_held():
    labels, _ = crowd(4, honest=4, ring=6)
    found = sides(labels, 5)
    assert found.held and found.paid == () and "split 6 to 4 over what labels mean" in found.why
    assert found.larger == (4, 5, 6, 7, 8, 9)


def test_one_who_disagrees_with_all_is_no_split():
    labels, _ = crowd(5, honest=8, ring=1)
    found = sides(labels, 5)
    assert not found.held and found.paid == tuple(range(8)) and found.smaller == (8,)


def test_who_says_nothing_takes_no_side_and_is_not_paid():
    labels, _ = crowd(6, honest=6, ring=0)
    guess = np.random.default_rng(99).integers(0, 5, labels.shape[1])
    found = sides(np.vstack([labels, guess, np.zeros_like(guess)]), 5)
    assert found.neither == (6, 7) and found.paid == tuple(range(6))


def test_the_order_of_agents_changes_nothing():
    labels, truth = crowd(7)
    order = np.random.default_rng(0).permutation(len(labels))
    gold = {n: int(truth[n]) for n in range(10)}
    assert sorted(order[i] for i in sides(labels[order], 5, gold).paid) == list(sides(labels, 5, gold).paid)


def test_labels_that_are_none_are_refused():
    with pytest.raises(InputError, match="sides are told where everybody answers every task"):
        sides([[0, -1], [0, 1]], 2)
    with pytest.raises(InputError, match="give whole numbers"):
        sides([[0.5, 1.0]], 2)


def skewed(seed, honest=11, ring=9, classes=10, tasks=1000, known=4):
    """Agents who were taught a few labels each, as rows: they spread what they do not know over what they know."""
    rng = np.random.default_rng(seed)
    truth, names = rng.integers(0, classes, tasks), np.arange(classes)
    names[:3] = np.roll(names[:3], 1)
    rows = np.zeros((honest + ring, tasks, classes))
    for i in range(honest + ring):
        taught = rng.permutation(classes)[:known]
        logits = rng.normal(0, 1, (tasks, classes))
        logits[np.arange(tasks), truth] += 2.0
        logits[:, np.setdiff1d(np.arange(classes), taught)] -= 8.0
        rows[i] = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    said = rows.copy()
    said[honest:] = said[honest:][:, :, np.argsort(names)]
    lied = (said.argmax(2) != rows.argmax(2)).mean(1) > 0.05
    return said, truth, lied


@pytest.mark.parametrize("seed", range(4))
def test_turned_labels_are_found_among_agents_who_know_a_few_labels_each(seed):
    said, truth, lied = skewed(seed)
    found = sides(said, 10)
    assert found.held and len(found.ask) == 10
    told = sides(said, 10, {n: int(truth[n]) for n in found.ask})
    assert not {*np.nonzero(lied)[0].tolist()} & {*told.paid}
    assert len({*range(11)} - {*told.paid}) <= 1


def test_an_honest_crowd_of_few_labels_each_is_not_split():
    for seed in range(4):
        said, _, _ = skewed(seed, honest=20, ring=0)
        assert not sides(said, 10).held


def test_labels_that_no_side_disputes_tell_nothing_and_others_are_asked_for():
    said, truth, _ = skewed(1)
    undisputed = {int(n): int(truth[n]) for n in np.nonzero(truth == 9)[0][:10]}
    found = sides(said, 10, undisputed)
    assert found.held and "favour neither" in found.why and not {*found.ask} & {*undisputed}
    assert {*truth[list(found.ask)].tolist()} <= {0, 1, 2}


def test_those_who_were_paid_before_say_which_side_is_right():
    labels, _ = crowd(4, honest=4, ring=6)
    assert sides(labels, 5, trusted=[0, 1]).paid == (0, 1, 2, 3)
    assert sides(labels, 5, trusted=[4, 5, 6]).paid == (4, 5, 6, 7, 8, 9)


def test_probabilities_that_are_none_are_refused():
    with pytest.raises(InputError, match="finite probabilities"):
        sides(np.full((3, 9, 4), np.nan), 4)
    with pytest.raises(InputError, match="finite probabilities"):
        sides(np.zeros((3, 9, 4)), 5)
