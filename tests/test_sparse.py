"""Reports of few answers: held one by one, scored by where agents meet, equal to the array; refused by name."""

import doctest
import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng
from typer.testing import CliRunner

from verax import InputError, Mechanism, Reports, audit, compare, kernels, read, score, tables
from verax.answers import Answers
from verax.cli import app
from verax.kernels import Engine
from verax.score import prepare

DATA = Path(__file__).parents[2] / "shared" / "data" / "crowd"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the public data sets are not here")
BACKENDS = ("numpy", "numba")


def world(seed):
    """Labels of a few agents who left out most tasks, in an array and one by one in no order; truth and strata."""
    rng = default_rng(seed)
    agents, tasks, classes = (int(rng.integers(*ends)) for ends in ((3, 14), (4, 40), (2, 5)))
    labels = rng.integers(0, classes, (agents, tasks))
    labels[rng.random(labels.shape) < rng.uniform(0.2, 0.9)] = -1
    labels[0, :2], labels[1, :2] = 0, (0, 1)
    return both(labels, classes, rng), rng.integers(0, classes, tasks), rng.integers(0, 2, tasks)


def both(labels, classes, rng):
    """The same reports as an array and as answers in no order."""
    k, n = np.nonzero(labels >= 0)
    order = rng.permutation(len(k))
    k, n = k[order], n[order]
    names = {
        what: [f"{what}{i:02}" for i in range(count)]
        for what, count in (("agents", len(labels)), ("tasks", labels.shape[1]), ("classes", classes))
    }
    return Reports.of(labels, **names), Reports.of_answers(k, n, labels[k, n], **names)


@pytest.fixture
def by_cells(monkeypatch):
    """Arrays scored as arrays, however few answers they hold."""
    monkeypatch.setattr(kernels, "quicker_by_meetings", lambda *_: False)


def alike(dense, sparse):
    """Whether scores are equal to the last bit, and errors to rounding."""
    assert dense.warnings == sparse.warnings
    for one, other in zip(dense, sparse, strict=True):
        assert (one.agent, one.score, one.tasks, one.references) == (
            other.agent, other.score, other.tasks, other.references,
        )  # fmt: skip
        assert (one.stderr is None) == (other.stderr is None)
        assert one.stderr is None or math.isclose(one.stderr, other.stderr, abs_tol=1e-12)


def close(dense, sparse):
    """Whether scores and errors are equal to 1e-12."""
    assert dense.warnings == sparse.warnings
    for one, other in zip(dense, sparse, strict=True):
        assert (one.agent, one.tasks, one.references) == (other.agent, other.tasks, other.references)
        for a, b in ((one.score, other.score), (one.stderr, other.stderr)):
            assert (a is None) == (b is None) and (a is None or math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12))


def mechanisms(seed, truth, strata):
    """Two mechanisms of many, in turn."""
    size, rng = int(truth.max()) + 1, default_rng(seed)
    some = np.where(rng.random(len(truth)) < 0.5, truth, -1)
    every = [
        {}, {"over": "median"}, {"rule": "ca"}, {"rule": "ca", "sign": "plugin"}, {"rule": "ca", "over": "median"},
        {"truth": truth}, {"truth": truth, "rule": "accuracy"}, {"truth": some}, {"truth": truth, "rule": "ca"},
        {"public": strata}, {"public": strata, "rule": "ca", "sign": "plugin"}, {"public": strata, "truth": truth},
        {"rule": "ca", "sign": rng.random((size, size))}, {"rule": "ca", "sign": np.triu(np.ones((size, size)))},
    ]  # fmt: skip
    return [{}, every[seed % len(every)]]


def test_three_hundred_worlds_score_as_their_arrays_do(by_cells):
    for seed in range(300):
        (dense, sparse), truth, strata = world(seed)
        assert repr(dense) == repr(sparse)
        for asked in mechanisms(seed, truth, strata):
            if asked.get("rule") == "ca" and isinstance(asked.get("sign"), np.ndarray):
                asked["sign"] = default_rng(seed).random((len(dense.classes),) * 2)
            alike(score(dense, **asked), score(sparse, backend=BACKENDS[seed % 2], **asked))


def test_an_array_of_few_answers_is_scored_as_any_array(monkeypatch):
    rng = default_rng(5)
    labels = rng.integers(0, 3, (60, 400))
    labels[rng.random(labels.shape) < 0.97] = -1
    asked = []
    plain = kernels.quicker_by_meetings
    monkeypatch.setattr(kernels, "quicker_by_meetings", lambda *given: asked.append(plain(*given)) or asked[-1])
    quick = score(Reports.of(labels))
    assert asked == [True]
    monkeypatch.setattr(kernels, "quicker_by_meetings", lambda *_: False)
    alike(score(Reports.of(labels)), quick)


def test_arrays_without_gaps_are_not_looked_at_one_by_one():
    assert not kernels.quicker_by_meetings(10**8, 1000, 10**5, lambda: pytest.fail("counted"), 2, Engine())


def test_every_order_of_answers_gives_the_same_bits():
    rng = default_rng(3)
    labels = rng.integers(0, 2, (40, 80))
    labels[rng.random(labels.shape) < 0.7] = -1
    k, n = np.nonzero(labels >= 0)
    first = None
    for _ in range(5):
        agents, tasks, rows = rng.permutation(40), rng.permutation(80), rng.permutation(len(k))
        names = {"agents": [f"a{i}" for i in np.argsort(agents)], "tasks": [f"t{i}" for i in np.argsort(tasks)]}
        found = score(Reports.of_answers(agents[k[rows]], tasks[n[rows]], labels[k, n][rows], **names))
        seen = {s.agent: (s.score, s.references) for s in found}
        first = first or seen
        assert seen == first


@pytest.mark.parametrize("least", [1, 2])
def test_both_kernels_find_the_same_meetings_to_the_last_integer(least):
    for seed in range(60):
        rng = default_rng(seed)
        labels = rng.integers(0, 4, (int(rng.integers(2, 12)), int(rng.integers(1, 20)))).astype(np.int8)
        labels[rng.random(labels.shape) < rng.random()] = -1
        said = Answers.of_array(labels)
        first = int(rng.integers(0, len(labels)))
        one, other = (kernels.meetings(said, first, len(labels), least, Engine(b)) for b in BACKENDS)
        for name in ("row", "peer", "start", "mine", "said"):
            a, b = getattr(one, name), getattr(other, name)
            assert a.dtype == b.dtype
            assert a.tolist() == b.tolist()
        counts = kernels.counts(labels, labels, 4)[:, :, 0]
        assert one.common.tolist() == counts.sum((2, 3))[one.row, one.peer].tolist()
        total = kernels.totals(labels, labels, 4, np.eye(4))[0][one.row, one.peer, 0]
        into = []
        for b in BACKENDS:
            assert kernels.agreement(one, said.label, 4, Engine(b)).tolist() == total.tolist()
            into.append(np.zeros(len(said) - said.start[first]))
            weight = default_rng(seed).random(len(one.row)) + 0.1
            kernels.agreed(one, said.label, 4, weight, into[-1], int(said.start[first]), Engine(b))
        assert np.allclose(*into, rtol=0, atol=1e-13)


def test_exact_sums_are_rounded_once_whatever_the_order():
    rng = default_rng(0)
    cases = [[1.0, 2**-53, 2**-106], [1.0, 2**-53, -(2**-106)], [-1.0, -(2**-53)], [1e16, 1.0, 1e-16], []]
    cases += [(rng.standard_normal(50) * 10.0 ** rng.integers(-20, 20, 50)).tolist() for _ in range(100)]
    start = np.concatenate([[0], np.cumsum([len(case) for case in cases])])
    values = np.array([x for case in cases for x in case])
    for backend in BACKENDS:
        assert kernels.exact_sums(values, start, Engine(backend)).tolist() == [math.fsum(case) for case in cases]


def test_answers_keep_what_is_taken_chosen_and_reordered():
    for seed in range(20):
        (dense, sparse), truth, _ = world(seed)
        rng = default_rng(seed)
        chosen, few = rng.random(len(truth)) < 0.5, rng.permutation(len(dense.agents))[:2].tolist()
        for one, other in (
            (dense, sparse),
            (dense.take(chosen), sparse.take(chosen)),
            (dense.only(*few), sparse.only(*few)),
            (dense.with_truth(truth).take(chosen), sparse.with_truth(truth).take(chosen)),
        ):
            assert other.sparse
            assert one.labels.tolist() == other.labels.tolist()
            assert one.answered.tolist() == other.answered.tolist()
            assert one.long_columns() == other.long_columns()
            assert (one.agents, one.tasks) == (other.agents, other.tasks)


def test_labels_of_one_number_are_spelled_alike_and_truth_adds_its_classes():
    found = Reports.of_answers([0, 1], [0, 0], [0, 1], classes=None).with_truth([3])
    assert found.classes == ("0", "1", "2", "3")
    assert found.sparse


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (([0, 0], [1, 1], [0, 1]), "agent 'ann' reports task '1' a second time"),
        (([0, 2], [1, 0], [0, 1]), "answer 1 has the agent 2; expected 0 to 1"),
        (([0, 1], [1], [0, 1]), "2 agents, 1 tasks and 2 labels"),
        (([0.5, 1], [1, 0], [0, 1]), "give one integer an answer"),
        (([0, 1], [-1, 0], [0, 1]), "answer 0 has the task -1"),
        (([0, 1], [0, 1], [0, -2]), "answer 1 has the class -2"),
    ],
)
def test_answers_that_cannot_be_are_refused_by_name(given, said):
    with pytest.raises(InputError, match=said):
        Reports.of_answers(*given, agents=["ann", "bob"])


def few_of_many(path, agents=6000, tasks=6000, each=6, last=()):
    """A long CSV that is read as answers: cells enough, answers few; every agent is right seven times in eight."""
    rng = default_rng(1)
    who = np.repeat(np.arange(agents), each)
    about = (who // 4 * 4 + np.tile(np.arange(each), agents)) % tasks
    right = np.where(rng.random(len(who)) < 0.875, about % 2, 1 - about % 2)
    rows = [f"t{n},w{k},{'yes' if x else 'no'}" for k, n, x in zip(who, about, right, strict=True)]
    path.write_text("\n".join(["task,worker,label", *rows, *last, ""]))
    return path


def test_a_long_file_of_few_answers_is_scored_without_its_array(tmp_path):
    path = few_of_many(tmp_path / "few.csv")
    reports = read(path)
    assert reports.sparse
    assert repr(reports).startswith("Reports(6000 agents, 6000 tasks, 2 classes, 35964000 abst")
    again = tmp_path / "again.csv"
    tables.write(reports, again)
    assert read(again).long_columns() == reports.long_columns()
    found = json.loads(CliRunner().invoke(app, ["score", str(path), "--json"]).stdout)
    assert found["scores"][0]["references"] >= 3
    halves = reports.only(*range(3000)), reports.only(*range(3000, 6000))
    assert (halves[0] + halves[1]).sparse
    assert score(halves[0] + halves[1]).scores == score(reports).scores


def test_a_second_answer_in_a_long_file_is_refused_with_its_row(tmp_path):
    path = few_of_many(tmp_path / "few.csv", last=["t3,w2,yes"])
    with pytest.raises(InputError, match=r"row 36002: agent 'w2' reports task 't3' a second time"):
        read(path)


def test_limits_count_answers_where_these_are_held(tmp_path):
    path = few_of_many(tmp_path / "few.csv")
    assert len(read(path, max_cells=36_000).answers) == 36_000
    with pytest.raises(InputError, match=r"36,000 answers are more than 35,999 cells"):
        read(path, max_cells=35_999)


def test_what_needs_the_array_is_refused_in_a_sentence_where_it_would_not_fit():
    reports = Reports.of_answers([0, 0, 0, 0], [0, 1, 2, 3], [0, 1, 0, 1], agents=[f"w{i}" for i in range(50_000)],
                                 tasks=[f"t{i}" for i in range(50_000)])  # fmt: skip
    with pytest.raises(InputError, match=r"4 answers of 50,000 agents on 50,000 tasks .* 2,500,000,000 cells"):
        _ = reports.labels
    with pytest.raises(InputError, match="held one by one"):
        audit(reports, truth={"t0": "0", "t1": "1", "t2": "0"})


def test_an_agent_with_one_answer_has_no_score_and_is_named():
    found = score(Reports.of_answers([0, 0, 1, 1, 2], [0, 1, 0, 1, 0], [0, 1, 0, 1, 1], agents=["a", "b", "lone"]))
    assert found["lone"].score is None
    assert "no score for 'lone'" in found.warnings[-1]


@needs_data
@pytest.mark.parametrize("name", ["dog", "product"])
def test_real_crowds_score_as_their_arrays_do(name, by_cells):
    dense = read(DATA / f"{name}.csv")
    said, names = dense.answers, {"agents": dense.agents, "tasks": dense.tasks, "classes": dense.classes}
    sparse = Reports.of_answers(said.agent, said.task, said.label, **names)
    for asked in ({}, {"over": "median"}, {"rule": "ca"}):
        alike(score(dense, **asked), score(sparse, **asked))


def test_skilled_references_are_those_of_the_array(by_cells):
    for seed in range(80):
        rng = default_rng(seed)
        agents, tasks, classes = (int(rng.integers(*ends)) for ends in ((3, 14), (8, 200), (2, 5)))
        truth = rng.integers(0, classes, tasks)
        right = rng.random((agents, tasks)) < rng.uniform(0.2, 1.0, agents)[:, None]
        labels = np.where(right, truth, rng.integers(0, classes, right.shape))
        labels[rng.random(labels.shape) < rng.uniform(0.1, 0.8)] = -1
        labels[:2, :2] = 0, 1
        dense, sparse = both(labels, classes, rng)
        known, strata = np.where(rng.random(tasks) < 0.4, truth, -1), rng.integers(0, 2, tasks)
        known[0] = 0
        asked = ({}, {"rule": "ca", "sign": "split"}, {"public": strata}, {"truth": known})[seed % 4]
        close(score(dense, over="skilled", **asked), score(sparse, over="skilled", backend=BACKENDS[seed % 2], **asked))
        one, other = (prepare(reports, mechanism=Mechanism(over="skilled")).mixtures for reports in (dense, sparse))
        assert type(one) is not type(other)
        for i in range(agents):
            a, b = one.of(i), other.of(i)
            for x, y in ((a.weights, b.weights), (a.soft, b.soft)):
                assert (x is None) == (y is None)
                assert x is None or np.allclose(x, y, rtol=0, atol=1e-12)


@needs_data
@pytest.mark.parametrize("name", ["dog", "product"])
def test_real_crowds_have_the_skilled_references_of_their_arrays(name, by_cells):
    dense = read(DATA / f"{name}.csv")
    said, names = dense.answers, {"agents": dense.agents, "tasks": dense.tasks, "classes": dense.classes}
    sparse = Reports.of_answers(said.agent, said.task, said.label, **names)
    close(score(dense, over="skilled"), score(sparse, over="skilled"))


def test_the_consensus_is_that_of_the_array():
    for seed in range(40):
        rng = default_rng(seed)
        agents, tasks, classes = (int(rng.integers(*ends)) for ends in ((3, 30), (8, 120), (2, 5)))
        truth = rng.integers(0, classes, tasks)
        right = rng.random((agents, tasks)) < rng.uniform(0.2, 1.0, agents)[:, None]
        labels = np.where(right, truth, rng.integers(0, classes, right.shape))
        labels[rng.random(labels.shape) < rng.uniform(0.1, 0.8)] = -1
        labels[:2, :2] = 0, 1
        dense, sparse = both(labels, classes, rng)
        asked = ({}, {"public": rng.integers(0, 2, tasks)})[seed % 2]
        one, other = (score(reports, against="consensus", **asked) for reports in (dense, sparse))
        assert one.warnings == other.warnings
        for a, b in zip(one, other, strict=True):
            assert (a.agent, a.tasks, a.references) == (b.agent, b.tasks, b.references)
            assert (a.score is None) == (b.score is None)
            # weights of words are whole units of 2^-32, which a last bit may turn into the next
            assert a.score is None or np.allclose((a.score, a.stderr), (b.score, b.stderr), rtol=0, atol=1e-9)
        mixed = [prepare(reports, mechanism=Mechanism(against="consensus")).mixtures for reports in (dense, sparse)]
        i = int(rng.integers(agents))
        said = labels[i] >= 0
        assert np.allclose(*(each.of(i).soft[said] for each in mixed), rtol=0, atol=1e-8)


def test_what_needs_the_array_gets_it_where_it_fits(by_cells):
    (dense, sparse), truth, _ = world(7)
    for asked in ({}, {"truth": truth}):
        one, other = ([(c.code, c.agent, c.verdict) for c in audit(reports, **asked)] for reports in (dense, sparse))
        assert one == other
        assert compare(dense, **asked).to_json() == compare(sparse, **asked).to_json()


def test_the_pages_example_prints_what_it_shows():
    page = Path(__file__).parents[1] / "docs" / "scoring.md"
    assert doctest.testfile(str(page), module_relative=False).failed == 0
