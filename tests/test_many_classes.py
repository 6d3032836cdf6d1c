"""Very many classes: rows by their likeliest labels score as the rows written out, in memory for what is listed."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import verax
from verax import arrays, shape, transcript
from verax.cli import app
from verax.errors import InputError, OptionError, VeraxError
from verax.federation import Payroll, Referee
from verax.reports import Reports
from verax.topk import TopK

ROWS = ("ce", "brier", "pmi")


def listed_rows(rng, agents, tasks, classes, k, sharp=4.0):
    """Rows that list k labels, the truth among them more often than not."""
    truth = rng.integers(0, classes, tasks)
    labels = np.argsort(rng.random((agents, tasks, classes)), axis=2)[..., :k]
    knows = rng.random((agents, tasks)) < 0.7
    labels[..., 0] = np.where(knows, truth, labels[..., 0])
    twice = (labels[..., 1:] == labels[..., :1]).any(2)
    labels[twice] = (labels[twice][:, :1] + np.arange(k)) % classes
    shares = rng.dirichlet([sharp, *[1.0] * k], (agents, tasks))[..., :k]
    return truth, TopK.of(labels, shares, classes)


@pytest.fixture
def listing(monkeypatch):
    """Nothing is small: listed rows stay listed, and scores are made of entries."""
    for module in (arrays, transcript):
        monkeypatch.setattr(module, "WORTH_LISTING", 0)


def same(found, wanted, rel=1e-9):
    for one, other in zip(found, wanted, strict=True):
        assert (one.agent, one.tasks, one.references) == (other.agent, other.tasks, other.references)
        assert one.score == pytest.approx(other.score, rel=rel, abs=1e-12)
        assert one.stderr == pytest.approx(other.stderr, rel=rel, abs=1e-12)


def mechanisms():
    """Rule, against what, over what, and whether strata are taken out."""
    for rule in ROWS:
        yield from ((rule, "truth", None, public) for public in (False, True))
        for against in ("peers", "hybrid"):
            yield from ((rule, against, over, public) for over in (None, "median", "one") for public in (False, True))
    yield from ((rule, "truth", None, False) for rule in ("log", "quadratic"))


@pytest.mark.parametrize(("rule", "against", "over", "public"), [*mechanisms()])
def test_listed_rows_score_as_the_rows_written_out(listing, rule, against, over, public):
    rng = np.random.default_rng(3)
    truth, rows = listed_rows(rng, 4, 60, 7, 3)
    absent = rng.random((4, 60)) < 0.15
    known = np.where(rng.random(60) < 0.6, truth, -1) if against == "hybrid" else truth
    labels = np.where(absent, -1, rows.likeliest)
    asked = {"rule": rule, "against": against, "over": over, "seed": "s" if over == "one" else None}
    asked |= {"truth": None if against == "peers" else known, "public": rng.integers(0, 3, 60) if public else None}
    listed = verax.Reports.of(labels, rows)
    assert isinstance(listed.probabilities, TopK)
    whole = replace(listed, probabilities=listed.rows)
    same(verax.score(listed, **asked), verax.score(whole, **asked))


@pytest.mark.parametrize("rule", ["zero-one", "accuracy"])
def test_labels_of_many_classes_score_as_those_of_few(monkeypatch, rule):
    rng = np.random.default_rng(5)
    truth = rng.integers(0, 40, 80)
    labels = np.where(rng.random((5, 80)) < 0.6, truth, rng.integers(0, 40, (5, 80)))
    labels[rng.random((5, 80)) < 0.1] = -1
    for asked in ({"truth": truth}, *([] if rule == "accuracy" else [{}, {"over": "median"}, {"public": truth % 3}])):
        reports = Reports.of(labels, classes=[str(i) for i in range(40)])
        wanted = verax.score(reports, rule=rule, **asked)
        with monkeypatch.context() as few:
            few.setattr(shape, "MOST_TABLED", 10)
            same(verax.score(reports, rule=rule, **asked), wanted)


def test_what_takes_whole_tables_is_refused_in_a_sentence(monkeypatch):
    rng = np.random.default_rng(0)
    reports = Reports.of(rng.integers(0, 9000, (3, 40)), classes=[str(i) for i in range(9000)])
    for asked in ({"rule": "ca"}, {"rule": "dmi"}, {"over": "skilled"}, {"against": "consensus"},
                  {"public": rng.random((40, 2))}, {"rule": lambda joint: 0.0}):  # fmt: skip
        with pytest.raises(OptionError, match="too large for so many classes"):
            verax.score(reports, **asked)
    for other in (verax.audit, verax.compare, verax.independence, lambda r: verax.plan_labels(r, 9)):
        with pytest.raises(VeraxError, match=r"labels beside labels.*verax\.score does without|too large for so many"):
            other(reports)


@pytest.mark.parametrize(
    ("labels", "shares", "more", "why"),
    [
        ([[0, 0]], [[0.5, 0.5]], {}, "lists label 0 twice"),
        ([[0, 9]], [[0.5, 0.5]], {}, "lists label 9"),
        ([[0, 1]], [[0.9, 0.9]], {}, "sum to 1.8"),
        ([[0, 1]], [[0.5, -0.1]], {}, "the probability -0.1"),
        ([[0, 1]], [[0.5, np.nan]], {}, "the probability nan"),
        ([[0, 1]], [[0.5, 0.2]], {"rest": [0.7]}, "0.7 for the rest"),
        ([[0, 1, 2, 3]], [[0.1, 0.1, 0.1, 0.1]], {}, "sum to 0.4"),
        ([[0.0, 1.0]], [[0.5, 0.5]], {}, "give integers"),
        ([[0, 1, 2, 3, -1]], [[0.25] * 4 + [0]], {}, "list 1 at least"),
        ([0, 1], [0.5, 0.5], {}, "one shape"),
        ([[0, 1]], [["a", "b"]], {}, "give numbers"),
    ],
)
def test_rows_that_cannot_be_are_refused(labels, shares, more, why):
    with pytest.raises(InputError, match=why):
        TopK.of(labels, shares, 4, **more)


def test_rows_that_miss_one_by_rounding_are_made_to_sum_to_it():
    for rows in (TopK.of([[0, 1]], [[0.6, 0.4006]], 4), TopK.of([[0, 1]], [[0.6, 0.3]], 4, rest=[0.1006])):
        assert rows.dense().sum(1) == pytest.approx(1, abs=1e-12)
        assert rows.shares[0, 0] == pytest.approx(0.6 / 1.0006)


def test_the_likeliest_label_may_be_one_that_is_not_listed():
    rows = TopK.of([[1, 0], [2, -1]], [[0.2, 0.1], [0.1, 0.0]], 4)
    assert rows.likeliest.tolist() == rows.dense().argmax(1).tolist() == [2, 0]


def test_whatever_is_listed_the_nearest_row_to_a_belief_gives_its_own_probabilities():
    """By both losses no other shares of the same labels are nearer."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        belief = rng.dirichlet(np.ones(6) / 2)
        labels = rng.choice(6, 2, replace=False)
        best = TopK.of(labels[None], belief[None, labels], 6).dense()[0]
        for _ in range(200):
            other = TopK.of(labels[None], rng.dirichlet(np.ones(3))[None, :2], 6).dense()[0]
            assert belief @ np.log(best) >= belief @ np.log(other) - 1e-12
            assert ((belief - best) ** 2).sum() <= ((belief - other) ** 2).sum() + 1e-12


def test_a_round_records_listed_rows_and_pays_them(listing, tmp_path):
    _, rows = listed_rows(np.random.default_rng(2), 4, 200, 9, 3)
    classes = [str(i) for i in range(9)]
    written = Reports.of(probabilities=rows.dense(), classes=classes)
    asked = {"min_tasks": 10, "significance": None}
    found = []
    for name, reports in (("listed", Reports.of(probabilities=rows, classes=classes)), ("whole", written)):
        payroll = Payroll(str(tmp_path / f"{name}.db"), budget="100.00", **asked)
        spec = payroll.spec(name, tasks=reports.tasks, classes=reports.classes, rule="pmi", floor=0.01)
        found.append(payroll.settle(spec, reports).amounts)
        assert payroll.rounds.verify(name) == []
    assert found[0] == found[1] and min(found[0].values()) > 0


def test_listed_rows_are_read_from_a_file_as_they_were_written(listing, tmp_path):
    _, rows = listed_rows(np.random.default_rng(2), 3, 30, 9, 3)
    reports = Reports.of(probabilities=rows, classes=[f"w{i}" for i in range(9)], agents=[*"abc"])
    verax.write(reports, tmp_path / "listed.npz")
    found = verax.read(tmp_path / "listed.npz")
    assert isinstance(found.probabilities, TopK)
    assert (found.rows == reports.rows).all() and (found.labels == reports.labels).all()
    with pytest.raises(InputError, match="write an NPZ"):
        verax.write(reports, tmp_path / "listed.csv")


def test_the_command_line_scores_many_classes_and_refuses_the_rest_in_a_sentence(tmp_path):
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 9000, 1000)
    labels = np.where(rng.random((3, 1000)) < 0.7, truth, rng.integers(0, 9000, (3, 1000)))
    rows = TopK.of((labels[..., None] + np.arange(2)) % 9000, np.broadcast_to([0.6, 0.2], (3, 1000, 2)), 9000)
    reports = Reports.of(probabilities=rows, classes=[f"w{i}" for i in range(9000)], agents=[*"abc"])
    verax.write(reports, tmp_path / "listed.npz")
    run = CliRunner().invoke
    found = run(app, ["score", str(tmp_path / "listed.npz"), "--rule", "pmi", "--json"])
    wanted = verax.score(reports, rule="pmi")
    assert found.exit_code == 0 and json.loads(found.stdout) == wanted.to_json()
    for words in (["audit"], ["compare"], ["score", "--ranks"], ["score", "--html", str(tmp_path / "x.html")]):
        refused = run(app, [words[0], str(tmp_path / "listed.npz"), *words[1:]])
        assert refused.exit_code == 2 and "a table of labels beside labels" in refused.stderr
    assert not (tmp_path / "x.html").exists()


def test_copies_among_many_classes_are_those_among_few():
    rng = np.random.default_rng(4)
    truth = rng.integers(0, 5, 400)
    labels = np.where(rng.random((7, 400)) < 0.7, truth, rng.integers(0, 5, (7, 400)))
    labels[6] = np.where(rng.random(400) < 0.95, labels[5], truth)
    few = verax.score(Reports.of(labels, classes=[*"abcde"]), copies="apart")
    spread = [str(i) for i in range(8000)]
    many = verax.score(Reports.of(labels * 1500, classes=spread), copies="apart")
    assert few.copies == many.copies == (("5", "6"),)
    same(many, few)


LARGE = """
    import sys
    import numpy as np
    import verax
    from verax.federation import Payroll, Referee

    K, N, L, k = 10, 2000, 32_000, 20
    rng = np.random.default_rng(0)
    truth = rng.integers(0, L, N)

    def predict(model, pool):
        mine = np.random.default_rng(int(model["seed"][0]))
        knows = mine.random(N) < 0.7
        labels = (truth[:, None] + np.arange(k) + np.where(knows, 0, 1 + mine.integers(0, 999, N))[:, None]) % L
        if sys.argv[2] == "labels":
            return labels[:, 0]
        return verax.TopK.of(labels, np.full((N, k), 0.9 / k) * np.linspace(1.5, 0.5, k), L)

    classes = [f"w{i}" for i in range(L)]
    options = {"labels": {}, "rows": {"rule": "pmi"}}[sys.argv[2]]
    payroll = Payroll(sys.argv[1], budget="100.00")
    referee = Referee(np.zeros(N), predict, classes, payroll=payroll, kinship=None, options=options)
    outcome = referee.pay_round({"seed": np.zeros(1)}, {f"c{i}": {"seed": np.full(1, float(i))} for i in range(K)})
    assert not outcome.problem, outcome.problem
    assert min(outcome.amounts.values()) > 0, outcome.amounts
    assert payroll.rounds.verify(outcome.round) == []
    held = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # getrusage: the parent's too
    print(int(held.split()[1]) // 1024)
"""


@pytest.mark.parametrize("kind", ["labels", pytest.param("rows", marks=pytest.mark.slow)])
def test_a_paid_round_of_a_large_vocabulary_takes_less_than_a_gigabyte(tmp_path, kind):
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LARGE), str(tmp_path / "rounds.db"), kind],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 1024


def test_what_does_not_fit_is_a_sentence_and_no_memory_error(monkeypatch):
    """The system has little to give: whatever grows large asks first."""
    monkeypatch.setattr("verax.space.spare_bytes", lambda: 2**27)
    with pytest.raises(InputError, match=r"rows of probabilities, 10 x 2,000 x 1,000, .* give labels, or the k like"):
        Reports.of(probabilities=np.broadcast_to(np.float32(0.001), (10, 2000, 1000)))
    with pytest.raises(InputError, match="a table of labels beside labels"):
        verax.Joint.of(np.arange(9000), np.arange(9000))
    rows = TopK.of(np.zeros((10, 2000, 1), int), np.ones((10, 2000, 1)), 1000)
    with pytest.raises(InputError, match="keep the k likeliest"):
        rows.dense()


def test_a_referee_says_what_does_not_fit(monkeypatch):
    monkeypatch.setattr("verax.space.spare_bytes", lambda: 2**27)
    classes, pool = [str(i) for i in range(2000)], np.zeros(2000)
    models = {name: {"at": np.array(float(n))} for n, name in enumerate("abcdef")}
    asked = {"first": {"rule": "pmi"}, "every": {"rule": "zero-one"}}
    for protocol, why in (("first", "everybody's rows of probabilities"), ("every", "public features")):
        referee = Referee(
            pool, lambda model, pool: np.full((2000, 2000), 5e-4, np.float32), classes,
            kinship=None, protocol=protocol, options=asked[protocol],
        )  # fmt: skip
        assert why in referee.pay_round({"at": np.array(0.0)}, models).problem


def test_innovations_among_many_classes_say_what_does_not_fit(monkeypatch):
    monkeypatch.setattr("verax.space.spare_bytes", lambda: 2**30)
    classes, pool = [str(i) for i in range(500)], np.zeros(2000)
    models = {name: {"at": np.array(float(n))} for n, name in enumerate("abcdef")}
    rows = np.random.default_rng(0).dirichlet(np.ones(500), 2000)
    referee = Referee(pool, lambda model, pool: rows, classes, protocol="every", features={"copies": 1})
    problem = referee.pay_round({"at": np.array(0.0)}, models).problem
    assert "moves that are public, 2,000 x 500 x 503" in problem and "take fewer classes" in problem


def test_want_of_memory_is_told_with_a_remedy(monkeypatch):
    def fail(*args):
        raise MemoryError("Unable to allocate 7.63 GiB")

    monkeypatch.setattr(sys.modules["verax.score"], "scored", fail)
    with pytest.raises(InputError, match=r"not enough memory.*7\.63 GiB.*; "):
        verax.score(Reports.of([[0, 1, 1], [0, 1, 0]]))
