"""The kernels beside the definitions: counts and totals integer for integer, sums over tasks to rounding."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest

from oracle import Case, counted, paid, signs
from verax import kernels
from verax.errors import ExtraMissing, InputError, OptionError
from verax.kernels import Engine, _numpy_pairs

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BACKENDS = ["numpy", *(["numba"] if importlib.util.find_spec("numba") else [])]
ENGINES = [Engine(b, threads, size) for b in BACKENDS for threads, size in ((1, 2**26), (2, 1))]
TORCH = [Engine("torch", threads=1)] if importlib.util.find_spec("torch") else []


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


def influence(c: Case, sign: str | Ints, half: Ints, counts: Ints, skip: Ints) -> Floats:
    """phi from one-hot matrices: psi(n) = (x(n) - mean x)^T S (g(n) - mean g) on the common tasks of each half."""
    found = np.zeros(c.rows.shape)
    for i, j in np.ndindex(counts.shape[:2]):
        common, s = (c.rows[i] >= 0) & (c.columns[j] >= 0), signs(counts[i, j], sign)
        for h in range(len(s)):
            chosen = common & (half == h)
            if common.sum() >= 2 and chosen.sum() >= 2 and j != skip[i]:
                x, g = np.eye(c.classes)[c.rows[i][chosen]], np.eye(c.classes)[c.columns[j][chosen]]
                psi = (((x - x.mean(0)) @ s[h]) * (g - g.mean(0))).sum(1)
                found[i, chosen] += (psi - psi.mean()) / common.sum()
    return found


def looked_up(c: Case, tables: Floats) -> Floats:
    found = np.zeros(c.rows.shape)
    for i, j in np.ndindex(tables.shape[:2]):
        common = (c.rows[i] >= 0) & (c.columns[j] >= 0)
        found[i, common] += tables[i, j, c.part[common], c.rows[i][common], c.columns[j][common]]
    return found


def close(found: Floats, expected: Floats) -> bool:
    """To rounding; the definitions round where the kernels give 0 exactly."""
    return bool(np.abs(found - expected).max(initial=0.0) <= 1e-12 * np.abs(expected).max(initial=0.0) + 1e-15)


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
    for seed, engine in itertools.product(range(6), ENGINES + TORCH):
        c = case(seed, tasks)
        found = kernels.counts(c.rows, c.columns, c.classes, c.part, c.parts, engine)
        assert np.array_equal(found, counted(c, c.part, c.parts)), (seed, engine)


@pytest.mark.parametrize("classes", [2, 9, 10, 15, 16])
@pytest.mark.parametrize("tasks", [2**17 - 1, 2**17, 2**17 + 4097, 2**20 + 1])
def test_counts_of_few_agents_on_many_tasks(classes, tasks):
    """Two tasks are one number: the last may have no partner, on one side or the other of a run."""
    rng = np.random.default_rng(tasks)
    truth = rng.integers(0, classes, tasks)
    labels = np.where(rng.random((3, tasks)) < 0.6, truth, rng.integers(-1, classes, (3, tasks))).astype(np.int8)
    labels[0, -1] = labels[1, -1] = classes - 1
    width = classes + 1
    expected = [
        [np.bincount((row + 1) * width + column + 1, minlength=width**2) for column in labels[1:].astype(np.int64)]
        for row in labels[:2].astype(np.int64)
    ]
    for engine in ENGINES:
        found = kernels.counts(labels[:2], labels[1:], classes, engine=engine)[:, :, 0]
        assert np.array_equal(found, np.reshape(expected, (2, 2, width, width))[..., 1:, 1:]), engine


@pytest.mark.parametrize("block", range(5))
def test_totals_are_the_definition_for_a_sign_given_learned_here_or_on_the_other_half(block):
    for seed in range(40 * block, 40 * block + 40):
        c = case(seed)
        one = np.zeros_like(c.half)
        for sign, half in ((c.sign, None), ("plugin", None), ("split", c.half)):
            expected = paid(counted(c, one if half is None else half, 1 if half is None else 2), sign)
            for engine in ENGINES + TORCH:
                found = kernels.totals(c.rows, c.columns, c.classes, sign, half, engine)
                assert np.array_equal(found, expected), (seed, sign, engine)


@pytest.mark.parametrize("block", range(5))
def test_phi_is_the_definition_to_rounding(block):
    for seed in range(18 * block, 18 * block + 18):
        c = case(seed)
        one, skip = np.zeros_like(c.half), np.arange(len(c.rows)) % len(c.columns) - seed % 2
        for sign, half in ((c.sign, None), ("plugin", None), ("split", c.half)):
            part = one if half is None else half
            expected = influence(c, sign, part, counted(c, part, 1 if half is None else 2), skip)
            for engine in ENGINES + TORCH:
                *both, found = kernels.phi(c.rows, c.columns, c.classes, sign, half, skip, engine)
                assert close(found, expected), (seed, sign, engine)
                same = kernels.totals(c.rows, c.columns, c.classes, sign, half, engine)
                assert np.array_equal(both, same), (seed, sign, engine)


def test_phi_of_many_columns_on_many_tasks_folds_their_tables():
    """Enough tasks for two, and four, columns to share a table."""
    for classes, tasks, low in ((2, 700, 0), (3, 3000, -1), (10, 3000, 0), (9, 3000, -1)):
        rng = np.random.default_rng(classes)
        labels = rng.integers(low, classes, (21, tasks)).astype(np.int8)
        half = rng.integers(0, 2, tasks)
        c = Case(labels[:3], labels, classes, half, 2, half, np.eye(classes, dtype=np.int64))
        expected = influence(c, "split", half, counted(c, half, 2), skip := np.arange(3))
        for engine in ENGINES + TORCH:
            assert close(kernels.phi(c.rows, c.columns, classes, "split", half, skip, engine)[2], expected), engine


@pytest.mark.parametrize(("right", "others"), [(0.95, 0), (0.9, 3), (0.8, 5), (0.2, 0)])
def test_phi_where_most_pairs_share_one_sign(right, others, monkeypatch):
    """All pairs, none, or some have the usual sign; the others say a permutation of the labels."""
    used = []
    if "numba" in BACKENDS:
        from verax.kernels import _numba_phi

        usual = _numba_phi._usual_sign

        def seen(*given):
            used.append(usual(*given))
            return used[-1]

        monkeypatch.setattr(_numba_phi, "_usual_sign", seen)
    for classes, tasks in ((3, 300), (10, 1500)):
        rng = np.random.default_rng(classes)
        truth, guess = rng.integers(0, classes, tasks), rng.integers(0, classes, (24, tasks))
        labels = np.where(rng.random(guess.shape) < right, truth, guess)
        labels[:others] = (labels[:others] + 1) % classes
        labels = rng.permutation(labels).astype(np.int8)
        labels[5] = 1
        half, skip = rng.integers(0, 2, tasks), np.arange(10) - 1
        one = np.zeros_like(half)
        c = Case(labels[:10], labels, classes, half, 2, half, np.eye(classes, dtype=np.int64))
        for sign, part in (("plugin", one), ("split", half)):
            given = half if sign == "split" else None
            expected = influence(c, sign, part, counted(c, part, 1 + (sign == "split")), skip)
            for engine in ENGINES + TORCH:
                *both, found = kernels.phi(c.rows, c.columns, classes, sign, given, skip, engine)
                assert close(found, expected), (classes, sign, engine)
                assert not found[5].any(), "a report that says one thing moves nothing"
                assert np.array_equal(both, kernels.totals(c.rows, c.columns, classes, sign, given, engine))
    assert any(found[0] is not None for found in used) == (right > 0.5 and bool(used))


def test_phi_is_exactly_0_for_a_report_that_says_one_thing():
    labels = np.random.default_rng(0).integers(0, 5, (9, 301)).astype(np.int8)
    labels[0] = 3
    for engine in ENGINES + TORCH:
        assert not kernels.phi(labels[:1], labels, 5, np.ones((5, 5), dtype=int), engine=engine)[2].any()
        assert not kernels.phi(labels[:1], labels, 5, "plugin", engine=engine)[2].any()


def test_sums_look_every_table_up():
    for seed, tasks in itertools.product(range(30), (None, 2000)):
        c = case(seed, tasks)
        shape = (len(c.rows), len(c.columns), c.parts, c.classes, c.classes)
        tables = np.random.default_rng(seed).normal(size=shape)
        for engine in ENGINES + TORCH:
            assert close(kernels.sums(c.rows, c.columns, tables, c.part, engine), looked_up(c, tables)), (seed, engine)


def test_more_tasks_than_a_chunk_are_counted_in_chunks():
    rng = np.random.default_rng(5)
    for low, classes in ((0, 3), (-1, 3), (0, 30)):
        labels = rng.integers(low, classes, (3, 140_001)).astype(np.int8)
        half = rng.integers(0, 2, labels.shape[1])
        c = Case(labels, labels, classes, half, 2, half, np.eye(classes, dtype=np.int64))
        expected = counted(c, half, 2)
        for engine in ENGINES[::2]:
            assert np.array_equal(kernels.counts(labels, labels, classes, half, 2, engine), expected)
            found = kernels.totals(labels, labels, classes, "split", half, engine)
            assert np.array_equal(found, paid(expected, "split"))
            found = kernels.phi(labels[:1], labels, classes, "split", half, skip=np.array([0]), engine=engine)[2]
            assert close(found, influence(c, "split", half, expected[:1], np.array([0]))[:1])


def test_more_labels_than_a_byte_holds():
    rng = np.random.default_rng(7)
    labels = rng.integers(-1, 200, (3, 500)).astype(np.int16)
    c = Case(labels, labels, 200, zero := np.zeros(500, dtype=np.int64), 1, zero, rng.integers(0, 2, (200, 200)))
    expected, skip = counted(c, zero, 1), np.arange(3)
    for engine in ENGINES + TORCH:
        assert np.array_equal(kernels.counts(labels, labels, 200, engine=engine), expected)
        for sign in ("plugin", c.sign):
            found = kernels.totals(labels, labels, 200, sign, engine=engine)
            assert np.array_equal(found, paid(expected, sign))
        found = kernels.phi(labels, labels, 200, "plugin", skip=skip, engine=engine)[2]
        assert close(found, influence(c, "plugin", zero, expected, skip))


def test_few_agents_on_very_many_tasks_are_counted_in_runs():
    rng = np.random.default_rng(6)
    labels = rng.integers(-1, 4, (2, 2**20 + 77)).astype(np.int8)
    part = rng.integers(0, 3, labels.shape[1])
    c = Case(labels[:1], labels[1:], 4, part, 3, part, np.eye(4, dtype=np.int64))
    expected = counted(c, part, 3)
    for engine in (Engine(b, threads) for b in BACKENDS for threads in (1, 2)):
        assert np.array_equal(kernels.counts(c.rows, c.columns, 4, part, 3, engine), expected), engine


def test_every_way_of_counting_with_numpy_gives_the_same():
    for seed in range(40):
        c = case(seed, 97)
        left_out = bool(c.rows.min() < 0 or c.columns.min() < 0)
        expected = counted(c, np.zeros_like(c.part), 1)
        ways = [_numpy_pairs._Products(left_out), _numpy_pairs._Folded(left_out, 1, 1)]
        if (c.classes + left_out) ** 2 < 2**8:
            ways += [
                _numpy_pairs._Twofold(left_out),
                *(_numpy_pairs._Folded(left_out, r, k) for r in (1, 2) for k in (1, 2)),
            ]
        for way in ways:
            found = np.full(expected.shape, -1)
            way.count(c.rows, c.columns, None, found, Engine())
            assert np.array_equal(found, expected), (seed, way)


def test_no_agents_no_columns_and_no_tasks_are_empty_answers():
    some, none = np.zeros((2, 5), dtype=np.int8), np.zeros((0, 5), dtype=np.int8)
    for engine in ENGINES + TORCH:
        assert kernels.counts(none, some, 3, engine=engine).shape == (0, 2, 1, 3, 3)
        assert kernels.counts(some, none, 3, engine=engine).shape == (2, 0, 1, 3, 3)
        assert not kernels.counts(some[:, :0], some[:, :0], 3, engine=engine).any()
        for sign in ("plugin", np.eye(3, dtype=int)):
            assert [x.shape for x in kernels.totals(none, some, 3, sign, engine=engine)] == [(0, 2, 1)] * 2
            assert [x.any() for x in kernels.totals(some[:, :0], some[:, :0], 3, sign, engine=engine)] == [False] * 2
            assert kernels.phi(some, none, 3, sign, engine=engine)[2].tolist() == np.zeros((2, 5)).tolist()
            assert kernels.phi(some[:, :0], some[:, :0], 3, sign, engine=engine)[2].shape == (2, 0)
        assert kernels.sums(some, none, np.zeros((2, 0, 1, 3, 3)), engine=engine).shape == (2, 5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_extra_memory_stays_within_what_is_allowed(backend):
    """What Python allocates besides the result; compiled loops take a few hundred kilobytes more."""
    labels = np.random.default_rng(0).integers(0, 10, (150, 5000)).astype(np.int8)
    for allowed in (2**22, 2**24):
        engine = Engine(backend, 1, allowed)
        kernels.totals(labels[:20], labels[:20], 10, "plugin", engine=engine)
        tracemalloc.start()
        found = kernels.totals(labels, labels, 10, "plugin", engine=engine)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak - sum(x.nbytes for x in found) < allowed, (backend, allowed, peak)


def test_bad_input_is_refused_with_a_remedy():
    labels = np.array([[0, 1, 2]], dtype=np.int8)
    eye = np.eye(3, dtype=int)
    for error, call in (
        (InputError, lambda: kernels.counts(labels, labels, 2)),
        (InputError, lambda: kernels.counts(labels - 2, labels, 3)),
        (InputError, lambda: kernels.counts(labels, labels[:, :2], 3)),
        (InputError, lambda: kernels.counts(labels[0], labels, 3)),
        (InputError, lambda: kernels.counts(labels, labels, 3, np.array([0, 1, 2]), 2)),
        (InputError, lambda: kernels.counts(labels, labels, 3, np.array([0, 1]), 2)),
        (InputError, lambda: kernels.totals(labels, labels, 3, eye[:2])),
        (InputError, lambda: kernels.totals(labels, labels, 3, 2 * eye)),
        (OptionError, lambda: kernels.totals(labels, labels, 3, "split")),
        (OptionError, lambda: kernels.totals(labels, labels, 3, "plugin", np.array([0, 1, 1]))),
        (OptionError, lambda: kernels.totals(labels, labels, 3, "guess")),
        (OptionError, lambda: kernels.counts(labels, labels, 3, engine=Engine("fortran"))),
    ):
        with pytest.raises(error, match=";"):
            call()


@pytest.mark.parametrize(("backend", "extra"), [("numba", "fast"), ("torch", "torch")])
def test_a_backend_that_is_not_installed_names_its_extra(monkeypatch, backend, extra):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    labels = np.array([[0, 1, 1]], dtype=np.int8)
    with pytest.raises(ExtraMissing, match=rf"pip install 'verax\[{extra}\]'"):
        kernels.counts(labels, labels, 2, engine=Engine(backend))
    assert kernels.counts(labels, labels, 2, engine=Engine()).sum() == 3


def test_auto_takes_numba_where_it_saves_more_than_it_costs_to_load(monkeypatch):
    monkeypatch.delitem(sys.modules, "verax.kernels._numba_pairs", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    small, large = 10 * 10 * 100 / 2, 2000 * 2000 * 10_000 / 2
    assert kernels._LEARNED.quickest(Engine(), small, 10) == "numpy"
    assert kernels._LEARNED.quickest(Engine(), large, 10) == "numba"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert kernels._LEARNED.quickest(Engine(), large, 10) == "numpy"


def test_auto_compiles_only_where_that_saves_more_than_compiling_takes(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "verax.kernels._numba_phi", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for kept in (False, True):
        kernels._is_compiled.cache_clear()
        found = [kernels._PHI.quickest(Engine(threads=1), agents**2 * 10_000, 10) for agents in (50, 200, 1000)]
        assert found == ["numpy", "numba" if kept else "numpy", "numba"]
        (tmp_path / "kernels_0").mkdir(exist_ok=True)
        (tmp_path / "kernels_0" / "_numba_phi._look_up.py311.nbi").touch()
    kernels._is_compiled.cache_clear()


def test_who_waits_for_a_compiler_is_told_so_and_only_once_a_machine(tmp_path):
    pytest.importorskip("numba")
    code = "import numpy as np; from verax import kernels as k; "
    code += "x = np.array([[0, 1, 1]], np.int8); k.counts(x, x, 2, engine=k.Engine('numba'))"
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    said = [subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True) for _ in range(2)]
    assert [one.stderr for one in said] == ["fast kernels are being compiled, once on this machine: about 6 s\n", ""]


def test_auto_decides_what_is_counted_task_by_task_as_it_decides_pairs(monkeypatch):
    monkeypatch.delitem(sys.modules, "verax.kernels._numba_tasks", raising=False)
    for operation in (kernels._TALLIES, kernels._WEIGHED, kernels._SPREAD):
        assert operation.quickest(Engine(), 10**5, 10) == "numpy"
        assert operation.quickest(Engine(), 10**9, 10) == BACKENDS[-1]
    assert kernels._INFLUENCE.quickest(Engine(), 10**9, 10) == "numpy", "numba has no form of its own"


def test_auto_takes_a_gpu_for_what_would_take_long(monkeypatch):
    pairs = 20_000**2 * 10_000 / 2
    monkeypatch.setattr(kernels, "_has_gpu", lambda: True)
    assert kernels._LEARNED.quickest(Engine(threads=1), pairs, 10) == "torch"
    assert kernels._PHI.quickest(Engine(threads=1), pairs, 10) != "torch"
    monkeypatch.setattr(kernels, "_has_gpu", lambda: False)
    assert kernels._LEARNED.quickest(Engine(threads=1), pairs, 10) != "torch"


def test_counting_with_numpy_imports_no_numba():
    code = "import numpy as n, sys, verax.kernels as k; x = n.eye(3, dtype=n.int8); k.phi(x, x, 2, 'plugin')"
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}; print('numba' in sys.modules)"], capture_output=True, text=True
    )
    assert ran.stdout.strip() == "False", ran.stderr
