"""The torch kernels beside the definitions, integer for integer."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from oracle import Case, counted, paid

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'verax[torch]'")

import verax  # noqa: E402
from verax import Reports, kernels  # noqa: E402
from verax.cli import app  # noqa: E402
from verax.kernels import Engine, _torch_pairs, _torch_tasks  # noqa: E402

Ints = npt.NDArray[np.int64]


def case(seed: int) -> Case:
    """Every third case answers everything; every fourth puts the agents beside themselves."""
    rng = np.random.default_rng(seed)
    classes, tasks, parts = int(rng.integers(1, 14)), int(rng.integers(0, 200)), int(rng.integers(1, 5))
    kind = (np.int8, np.int16, np.int32, np.int64)[seed % 4 if seed % 5 else 0]

    def side() -> npt.NDArray[np.signedinteger]:
        truth = rng.integers(0, classes, tasks)
        labels = rng.integers(0, classes, (int(rng.integers(1, 8)), tasks))
        labels = np.where(rng.random(labels.shape) < 0.4, truth, labels)
        return np.where(rng.random(labels.shape) < (seed % 3) * 0.2, -1, labels).astype(kind)

    rows = side()
    columns = rows if seed % 4 == 0 else side()
    part, half = rng.integers(0, parts, tasks), rng.integers(0, 2, tasks)
    sign = rng.integers(0, 2, (classes, classes))
    sign = np.eye(classes, dtype=np.int64) if seed % 7 == 0 else sign | sign.T if seed % 7 == 1 else sign
    return Case(rows, columns, classes, part, parts, half, sign)


ONE = Engine(threads=1)


@pytest.mark.parametrize("block", range(6))
def test_counts_and_totals_are_the_definitions_to_the_last_integer(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        c = case(seed)
        engine = Engine(threads=2 if seed % 25 == 4 else 1, max_bytes=(2**26, 1, 30_000)[seed % 3])
        whole, halves = np.zeros_like(c.part), counted(c, c.half, 2)
        once = counted(c, whole, 1)
        for part, parts in ((c.part, c.parts), (None, 1)):
            wanted = once if part is None else counted(c, part, parts)
            np.testing.assert_array_equal(
                _torch_pairs.counts(c.rows, c.columns, c.classes, part, parts, engine), wanted
            )
        for sign, half, counts in ((c.sign, None, once), ("plugin", None, once), ("split", c.half, halves)):
            found = _torch_pairs.totals(c.rows, c.columns, c.classes, sign, half, engine)
            for got, wanted in zip(found, paid(counts, sign), strict=True):
                assert got.dtype == np.int64
                np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("tasks", [63, 64, 65, 4097])
def test_chunks_of_tasks_and_tiles_of_agents_may_end_anywhere(tasks: int) -> None:
    rng = np.random.default_rng(tasks)
    labels = rng.integers(-1, 3, (9, tasks)).astype(np.int8)
    wanted = _torch_pairs.totals(labels, labels, 3, "plugin", None, ONE)
    for budget in (1, 5_000, 60_000, 10**6):
        for got, expected in zip(
            _torch_pairs.totals(labels, labels, 3, "plugin", None, Engine(threads=1, max_bytes=budget)),
            wanted,
            strict=True,
        ):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("shape", [(0, 5, 4), (3, 0, 4), (2, 3, 0)])
def test_nobody_beside_nobody_and_no_tasks_give_empty_answers(shape: tuple[int, int, int]) -> None:
    rows, columns = np.zeros((shape[0], shape[2]), dtype=np.int8), np.zeros((shape[1], shape[2]), dtype=np.int8)
    half = np.zeros(shape[2], dtype=np.int64)
    assert not _torch_pairs.counts(rows, columns, 3, half, 2, ONE).any()
    for sign in ("plugin", "split", np.eye(3, dtype=np.int64)):
        total, tasks = _torch_pairs.totals(rows, columns, 3, sign, half, ONE)
        assert total.shape == (shape[0], shape[1], 2 if isinstance(sign, str) and sign == "split" else 1)
        assert not total.any()
        assert tasks.sum() == shape[0] * shape[1] * shape[2]


def test_the_threads_of_torch_are_as_they_were() -> None:
    before = torch.get_num_threads()
    _torch_pairs.totals(
        np.zeros((2, 9), dtype=np.int8), np.zeros((2, 9), dtype=np.int8), 2, "plugin", None, Engine(threads=1)
    )
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("seed", range(12))
def test_the_linear_form_is_the_sum_over_all_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, agents, tasks = int(rng.integers(2, 12)), int(rng.integers(2, 15)), int(rng.integers(2, 80))
    labels = rng.integers(0, classes, (agents, tasks)).astype((np.int8, np.int16)[seed % 2])
    sign = rng.integers(0, 2, (classes, classes))
    m, a = _torch_tasks.tallies(torch.from_numpy(labels) if seed % 3 == 0 else labels, classes, ONE)
    own = _torch_tasks.weighed(labels, m @ sign.T, ONE)
    np.testing.assert_array_equal(a, [np.bincount(x, minlength=classes) for x in labels])
    np.testing.assert_array_equal(m, [np.bincount(x, minlength=classes) for x in labels.T])
    over_peers = tasks * (own - a @ np.diag(sign)) - ((a @ sign) * (a.sum(0) - a)).sum(1)
    pairs, _ = _torch_pairs.totals(labels, labels, classes, sign, None, ONE)
    np.testing.assert_array_equal(over_peers, pairs[:, :, 0].sum(1) - np.diag(pairs[:, :, 0]))


def test_tensors_give_what_arrays_give() -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(-1, 4, (6, 90)).astype(np.int8)
    half = rng.integers(0, 2, 90)
    tensor = torch.from_numpy(labels)
    for got, wanted in zip(
        _torch_pairs.device_totals(tensor, tensor, 4, "split", half),
        _torch_pairs.totals(labels, labels, 4, "split", half, ONE),
        strict=True,
    ):
        np.testing.assert_array_equal(got.numpy(), wanted)


def test_labels_that_may_not_be_written_are_read() -> None:
    labels = np.array([[0, 1, 1, 0], [0, 1, 1, 1]], dtype=np.int8)
    labels.flags.writeable = False
    assert _torch_pairs.totals(labels, labels, 2, "plugin", None, ONE)[0][:, :, 0].tolist() == [[8, 4], [4, 6]]
    assert _torch_tasks.tallies(labels, 2, ONE)[1].tolist() == [[2, 2], [1, 3]]
    assert _torch_tasks.weighed(labels, _torch_tasks.tallies(labels, 2, ONE)[0], ONE).tolist() == [7, 7]


def test_the_backend_torch_is_these_kernels_and_gives_what_numpy_gives() -> None:
    for seed in range(20):
        c = case(seed)
        torch_, numpy_ = (Engine(backend=name, threads=1) for name in ("torch", "numpy"))
        counts = [kernels.counts(c.rows, c.columns, c.classes, c.part, c.parts, e) for e in (torch_, numpy_)]
        np.testing.assert_array_equal(*counts)
        for sign, half in ((c.sign, None), ("plugin", None), ("split", c.half)):
            one, two = (kernels.totals(c.rows, c.columns, c.classes, sign, half, e) for e in (torch_, numpy_))
            for got, wanted in zip(one, two, strict=True):
                np.testing.assert_array_equal(got, wanted)


MECHANISMS = [
    {},
    {"rule": "ca"},
    {"rule": "ca", "sign": "plugin"},
    {"over": "median"},
    {"rule": "ca", "over": "median"},
    {"rule": "ca", "sign": [[1, 0, 1], [0, 1, 0], [0, 0, 1]]},
]
OPERATIONS = ("counts", "totals", "phi", "sums", "tallies", "weighed", "influence", "spread")


def world(gaps: str) -> Reports:
    """Seven agents that are mostly right, who answered everything, or in two groups, or each as they liked."""
    rng = np.random.default_rng(4)
    truth, guess = rng.integers(0, 3, 90), rng.integers(0, 3, (7, 90))
    labels = np.where(rng.random(guess.shape) < 0.6, truth, guess)
    if gaps == "groups":
        labels[:3, :20] = -1
    if gaps == "any":
        labels[rng.random(labels.shape) < 0.2] = -1
    return Reports.of(labels, classes=["a", "b", "c"])


@pytest.fixture
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel of NumPy and numba fails."""

    def fail(*given: object) -> None:
        raise AssertionError("a kernel of another backend was called")

    backends = ["numpy", *(["numba"] if importlib.util.find_spec("numba") else [])]
    names = [f"verax.kernels._{backend}_{family}" for backend in backends for family in ("pairs", "phi", "tasks")]
    for module in [importlib.import_module(name) for name in names]:  # all before any is changed: they share functions
        for name in OPERATIONS:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, fail)


@pytest.mark.parametrize("gaps", ["none", "groups", "any"])
@pytest.mark.parametrize("options", MECHANISMS, ids=str)
def test_scores_by_torch_are_counted_by_torch_alone(
    options: dict[str, object], gaps: str, request: pytest.FixtureRequest
) -> None:
    """The same scores to the last bit, errors to rounding; nothing falls back."""
    plain = verax.score(world(gaps), backend="numpy", **options)
    request.getfixturevalue("torch_alone")
    found = verax.score(world(gaps), backend="torch", **options)
    for one, other in zip(found.scores, plain.scores, strict=True):
        assert (one.score, one.tasks, one.references) == (other.score, other.tasks, other.references)
        assert one.stderr == pytest.approx(other.stderr, abs=1e-12)
    with pytest.raises(AssertionError, match="another backend"):
        verax.score(world(gaps), backend="numpy", **options)


@pytest.mark.usefixtures("torch_alone")
def test_the_command_line_reaches_torch(tmp_path: Path) -> None:
    path = tmp_path / "reports.csv"
    verax.write(world("none"), path, wide=True)
    for options in ([], ["--rule", "ca"], ["--over", "median"]):
        result = CliRunner().invoke(app, ["score", str(path), "--backend", "torch", "--json", *options])
        assert result.exit_code == 0, result.stderr
        assert len(json.loads(result.stdout)["scores"]) == 7
