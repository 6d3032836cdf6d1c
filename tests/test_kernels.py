"""The kernels beside the definitions: counts and totals integer for integer, sums over tasks to rounding."""

from __future__ import annotations

import importlib.util
import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from verax import kernels
from verax.kernels import Engine

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BACKENDS = ["numpy", *(["numba"] if importlib.util.find_spec("numba") else [])]
ENGINES = [Engine(b, threads, size) for b in BACKENDS for threads, size in ((1, 2**26), (2, 1))]


@dataclass(frozen=True)
class Case:
    """Reports of two sides, a part and a half for every task, and a sign that is given."""

    rows: npt.NDArray[np.signedinteger]
    columns: npt.NDArray[np.signedinteger]
    classes: int
    part: Ints
    parts: int
    half: Ints
    sign: Ints


def case(seed: int, tasks: int | None = None) -> Case:
    """Every second case answers everything; every third puts the agents beside themselves."""
    rng = np.random.default_rng(seed)
    classes, parts = int(rng.integers(2, 41 if seed % 2 else 13)), int(rng.integers(1, 5))
    tasks = int(rng.integers(0, 301)) if tasks is None else tasks
    kind = (np.int8, np.int16, np.int32)[seed // 2 % 3]

    def side() -> npt.NDArray[np.signedinteger]:
        truth = rng.integers(0, classes, tasks)
        labels = rng.integers(0, classes, (int(rng.integers(1, 7)), tasks))
        labels = np.where(rng.random(labels.shape) < 0.4, truth, labels)
        return np.where(rng.random(labels.shape) < 0.3 * (seed // 6 % 2), -1, labels).astype(kind)

    rows = side()
    columns = rows if seed % 3 == 0 else side()
    part, half = rng.integers(0, parts, tasks), rng.integers(0, 2, tasks)
    sign = np.eye(classes, dtype=np.int64) if seed % 5 == 0 else rng.integers(0, 2, (classes, classes))
    return Case(rows, columns, classes, part, parts, half, sign)


def counted(c: Case, part: Ints, parts: int) -> Ints:
    """Task by task, the definition of the counts."""
    found = np.zeros((len(c.rows), len(c.columns), parts, c.classes, c.classes), dtype=np.int64)
    for i, j in np.ndindex(found.shape[:2]):
        both = (c.rows[i] >= 0) & (c.columns[j] >= 0)
        np.add.at(found[i, j], (part[both], c.rows[i][both], c.columns[j][both]), 1)
    return found


@pytest.mark.parametrize("block", range(10))
def test_counts_are_the_definition_whatever_the_backend_the_threads_and_the_memory(block):
    for seed in range(50 * block, 50 * block + 50):
        c = case(seed)
        expected = counted(c, c.part, c.parts)
        for engine in ENGINES:
            found = kernels.counts(c.rows, c.columns, c.classes, c.part, c.parts, engine)
            assert found.dtype == np.int64
            assert np.array_equal(found, expected), (seed, engine)
        whole = kernels.counts(c.rows, c.columns, c.classes, engine=ENGINES[seed % len(ENGINES)])
        assert np.array_equal(whole[:, :, 0], expected.sum(2)), seed


@pytest.mark.parametrize("tasks", [0, 1, 2, 63, 64, 65, 127, 128, 129, 512, 4096, 4097])
def test_counts_at_the_edges_of_words_and_chunks(tasks):
    for seed, engine in itertools.product(range(6), ENGINES):
        c = case(seed, tasks)
        found = kernels.counts(c.rows, c.columns, c.classes, c.part, c.parts, engine)
        assert np.array_equal(found, counted(c, c.part, c.parts)), (seed, engine)
