"""Sides against the short oracle, against every cut there is, and in crowds whose ring is known."""

from __future__ import annotations

import importlib.util
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from verax.errors import InputError
from verax.sides import agreement, cut, sides

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


def literal_agreement(labels, classes, sure=3.0):
    """Pair by pair: psi of the identity score, as a whole and by label, in standard errors."""
    agents, tasks = labels.shape
    found = np.zeros((agents, agents), int)
    for i, j in product(range(agents), repeat=2):
        if i == j:
            continue
        psi = np.zeros((tasks, classes))
        for c in range(classes):
            x, g = (labels[i] == c).astype(float), (labels[j] == c).astype(float)
            psi[:, c] = (x - x.mean()) * (g - g.mean())
        z = psi.sum(1).mean() / max(psi.sum(1).std() / tasks**0.5, 1e-9)
        by_label = [psi[:, c].mean() / max(psi[:, c].std() / tasks**0.5, 1e-9) for c in range(classes)]
        found[i, j] = -1 if z < -sure or min(by_label) < -sure else 1 if z > sure else 0
    return found


def test_agreement_is_its_definition():
    labels, _ = crowd(0)
    found = agreement(labels, 5)
    assert (found == literal_agreement(labels, 5)).all()
    assert (found[:6, :6].sum(1) == 5).all() and (found[:6, 6:] == -1).all()


@pytest.mark.parametrize("seed", range(8))
def test_the_paid_side_is_the_oracles(oracle, seed):
    labels, truth = crowd(seed, honest=6 if seed % 2 else 4, ring=5, turned=3 if seed > 5 else None)
    known = {n: int(truth[n]) for n in range(10)}
    assert (agreement(labels, 5) == oracle.meanings(labels, 5)).all()
    assert sorted(sides(labels, 5, known).paid) == sorted(oracle.side(labels, 5, known))


def test_a_cut_breaks_as_few_ties_as_any():
    rng = np.random.default_rng(1)
    for _ in range(40):
        upper = np.triu(rng.choice([-1, 0, 1], (8, 8)), 1)
        graph = upper + upper.T
        larger, smaller, neither = cut(graph)
        x = np.zeros(8, int)
        x[larger], x[smaller] = 1, -1
        best = max(int(np.array(s) @ graph @ np.array(s)) for s in product([-1, 1], repeat=8))
        assert x @ graph @ x == best
        assert sorted(larger + smaller + neither) == list(range(8)) and len(larger) >= len(smaller)


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
