"""A small federation to be examined: blobs of numbers, members who hold a part back, three rounds as played."""

from __future__ import annotations

from functools import cache

import numpy as np
from simulated import Client, clients, federate, initial, predict

from verax.exam import HeldBack

CLASSES = tuple("abcd")
MEMBERS, HELD = 5, 80


def blobs(rng, n, width=30):
    labels = rng.integers(0, len(CLASSES), n)
    centres = np.random.default_rng(5).standard_normal((len(CLASSES), width)) * 0.5
    return (centres[labels] + rng.standard_normal((n, width))).astype(np.float32), labels


@cache
def world():
    """Three rounds of members who keep a part of what they have, a pool, and what they keep."""
    rng = np.random.default_rng(0)
    inputs, labels = blobs(rng, 3000)
    members = clients(inputs[:1400], labels[:1400], [250] * MEMBERS, rng)
    orders = [rng.permutation(len(m.labels)) for m in members]  # they come class by class
    members = [Client(m.inputs[order], m.labels[order]) for m, order in zip(members, orders, strict=True)]
    held = [HeldBack(m.inputs[:HELD], m.labels[:HELD], f"m{i}") for i, m in enumerate(members)]
    working = [Client(m.inputs[HELD:], m.labels[HELD:]) for m in members]
    played = list(federate(initial((30, 12, 4), rng), working, 4, rng, epochs=1))
    return played[1:], inputs[1400:], held


def named(weights):
    return {str(n): a for n, a in enumerate(weights)}


def rows(model, pool):
    return predict(list(model.values()), pool).astype(np.float64)
