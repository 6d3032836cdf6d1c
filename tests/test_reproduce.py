"""The paper's figures again: what their curves say, how exact they are, and what `verax reproduce` leaves behind."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sampled
from typer.testing import CliRunner

from verax import misreport, rules
from verax.cli import app
from verax.errors import ExtraMissing, InputError, OptionError
from verax.joint import Joint
from verax.reproduce import datasets, experiments, figures
from verax.reproduce.experiments import Options

SHARED = Path(__file__).parents[2] / "shared" / "data"
drawing = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")


def run(*args, code=0):
    result = CliRunner().invoke(app, ["reproduce", *(str(a) for a in args)], env={"COLUMNS": "100"})
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """The label files, laid out as the data sets have them; CIFAR-10's records without their pixels."""
    if not (SHARED / "cifar10.tar.xz").exists():
        pytest.skip("the data sets' labels are not in ../shared/data")
    folder = tmp_path_factory.mktemp("datasets")
    (folder / "mnist").mkdir()
    shutil.copy(SHARED / "t10k-labels-idx1-ubyte.gz", folder / "mnist")
    (folder / "cifar-10-batches-bin").mkdir()
    with tarfile.open(SHARED / "cifar10.tar.xz") as archive:
        told = [int(m.name.split("/")[1][6:-4]) for m in archive if m.name.startswith("test/")]
    records = np.zeros((len(told), 3073), np.uint8)
    records[:, 0] = told
    records.tofile(folder / "cifar-10-batches-bin" / "test_batch.bin")
    return folder


@pytest.fixture(scope="session")
def recorded():
    return experiments.load(0)


@pytest.fixture(scope="session")
def labels(data_dir):
    return experiments.read_labels(["mnist", "cifar10"], data_dir)


@pytest.fixture(scope="session")
def every(recorded, labels):
    return [curve for figure in (1, 2, 3) for curve in experiments.curves(figure, recorded, labels)]


def family(curve):
    return curve.data, curve.agent, curve.misreport, curve.reference


def test_all_24_families_strictly_decrease_for_both_scores(every):
    # 2 data sets x 2 agents x 2 misreports x 3 references, once for 0-1 and once for CE
    assert len({family(c) for c in every}) == 24
    assert Counter(c.score for c in every) == {"0-1": 24, "CE": 24}
    assert [c.name for c in every if not c.decreasing] == []
    assert all(c.rates == tuple(r / 100 for r in range(0, 51, 5)) for c in every)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_families_decrease_for_the_other_recorded_agents_too(seed, labels):
    recorded = experiments.load(seed)
    found = [c for f in (1, 2, 3) for c in experiments.curves(f, recorded, labels, Options(runs=1))]
    assert [c.name for c in found if not c.decreasing] == []


def test_the_drawn_means_are_where_the_closed_form_says(every):
    far = np.array(
        [
            abs(drawn - exact) / (error / math.sqrt(5))
            for c in every
            for drawn, exact, error in list(zip(c.centre, c.exact, c.draw_error, strict=True))[1:]
        ]
    )
    assert len(far) == 480
    assert (far < 4).mean() >= 0.99
    assert far.max() < 6
    # nor are the errors too large: of so many means a third is beyond one error
    assert 0.2 < (far > 1).mean() < 0.45


def test_at_rate_0_nothing_is_drawn_and_the_score_is_the_rules(every, recorded, labels):
    for c in every:
        assert c.draw_error[0] == 0 and c.deviation[0] < 1e-12
        assert c.centre[0] == pytest.approx(c.exact[0], abs=1e-12)
    first = next(c for c in every if family(c) == ("cifar10", "S", "uniform", "truth") and c.score == "CE")
    told = rules.ce(Joint.of(recorded["cifar10", "S"].clean, labels["cifar10"]))
    assert first.exact[0] == pytest.approx(told.value, abs=1e-12)


def test_the_drawn_ce_score_is_the_rules(recorded):
    rows = recorded["cifar10", "W"].clean
    reference = recorded["cifar10", "S"].labels
    matrix = misreport.uniform(10, 0.3)
    drawn = misreport.apply(matrix, rows, rng=np.random.default_rng(4))
    world = experiments._World(recorded["cifar10", "W"], reference, "CE", False)
    by_sums = world.drawn(matrix, np.random.default_rng(4))
    assert by_sums == pytest.approx(rules.ce(Joint.of(drawn, reference)).value, abs=1e-10)


def test_mnist_falls_linearly_from_0_89_to_0_40_whatever_the_reference(every):
    for c in [c for c in every if c.data == "mnist" and c.score == "0-1"]:
        assert c.exact[0] == pytest.approx(0.89, abs=0.006)
        assert c.exact[-1] == pytest.approx(0.40, abs=0.007)
        assert np.diff(c.exact, 2) == pytest.approx(0, abs=1e-12)


def test_a_uniform_misreport_costs_the_share_that_the_theory_says(every):
    for c in [c for c in every if c.misreport == "uniform" and c.score == "0-1"]:
        assert c.exact == pytest.approx([(1 - rate * 10 / 9) * c.exact[0] for rate in c.rates])


def test_the_pairs_are_disjoint_and_cover_every_class():
    for data, pairs in experiments.PAIRS.items():
        assert sorted(k for pair in pairs for k in pair) == list(range(10))
        assert len(experiments.CLASS_NAMES[data]) == 10


def test_without_labels_only_the_curves_against_truth_are_missing(recorded, every):
    found = [c for f in (1, 2, 3) for c in experiments.curves(f, recorded, None)]
    assert found == [c for c in every if c.reference != "truth"]


def test_the_number_of_labels_must_be_that_of_the_predictions(recorded):
    with pytest.raises(InputError, match="mnist has 3 labels for 10000 predictions; give the folder"):
        experiments.curves(1, recorded, {"mnist": np.zeros(3, np.int64)})


def test_a_reference_that_misreports_too_costs_more_and_is_as_exact(recorded, every):
    found = experiments.curves(2, recorded, None, Options(reference_misreports=True))
    told = {c.name: c for c in every}
    for c in found:
        alone = told[c.name]
        assert c.exact[0] == pytest.approx(alone.exact[0])
        assert all(both < one for both, one in zip(c.exact[1:-1], alone.exact[1:-1], strict=True))
        for drawn, exact, error in list(zip(c.centre, c.exact, c.draw_error, strict=True))[1:]:
            assert abs(drawn - exact) < 5 * error / math.sqrt(5)


def test_the_draw_error_of_both_is_the_spread_of_many_draws():
    rng = np.random.default_rng(8)
    rows = rng.dirichlet(np.full(10, 0.3), 400)
    report = experiments.Predictions(rows, rows)
    reference = np.where(rng.random(400) < 0.7, report.labels, rng.integers(0, 10, 400))
    for score in ("0-1", "CE"):
        world = experiments._World(report, reference, score, True)
        matrix = misreport.uniform(10, 0.4)
        exact = world.expected(matrix)
        draws = np.array([world.drawn(matrix, rng) for _ in range(2000)])
        # 2,000 draws know their mean to 1/45 and their spread to 1/63 of it: five such errors each
        assert draws.mean() == pytest.approx(exact.score, abs=5 * exact.draw_error / math.sqrt(2000))
        assert draws.std() == pytest.approx(exact.draw_error, rel=5 / math.sqrt(4000) + 1 / 400)


def test_mixing_logits_gives_the_attack_more_weight(recorded):
    agent = recorded["cifar10", "S"]
    moved = [(agent.mixed(mixture) != agent.labels).mean() for mixture in experiments.MIXTURES]
    assert 0 < moved[0] < moved[1]


def test_the_median_moves_the_centre_and_nothing_else(recorded):
    means, medians = (experiments.curves(3, recorded, None, Options(centre=c)) for c in ("mean", "median"))
    for mean, median in zip(means, medians, strict=True):
        assert mean.exact == median.exact and mean.centre != median.centre


def test_a_curve_does_not_depend_on_which_others_are_asked_for(recorded, labels):
    alone = experiments.curves(1, recorded, None, Options(runs=2))
    among = experiments.curves(1, recorded, labels, Options(runs=2))
    assert alone == [c for c in among if c.reference == "peer"]
    assert experiments.curves(1, recorded, None, Options(runs=2, seed=1))[0].centre != alone[0].centre


def test_sampling_algorithm_1_adds_the_error_that_is_said(recorded):
    rng = np.random.default_rng(2)
    rows, reference = np.eye(10)[recorded["cifar10", "W"].labels[:500]], recorded["cifar10", "S"].labels[:500]
    cost = sampled.sampled_cost(rows, reference)
    draws = np.array([sampled.sampled(rows, reference, rng=rng) for _ in range(2000)])
    assert draws.mean() == pytest.approx(cost.score, abs=5 * cost.extra / math.sqrt(2000))
    assert draws.std() == pytest.approx(cost.extra, rel=5 / math.sqrt(4000))
    assert cost.extra / math.sqrt(cost.repeats) <= 0.01 * cost.stderr < cost.extra / math.sqrt(cost.repeats - 1)


def test_penalty_moments_are_those_of_the_triple_loop():
    rng = np.random.default_rng(0)
    rows, g = rng.random((7, 3)), rng.integers(0, 3, 7)
    slow = [
        np.mean([rows[p, g[q]] for p in range(7) for q in range(7) if len({n, p, q}) == 3]) for n in range(7)
    ]  # fmt: skip
    assert sampled._penalty_moments(rows, g) == pytest.approx(slow)


@drawing
def test_reproduce_writes_every_figure_and_every_number(data_dir, every, tmp_path):
    result = run("--data-dir", data_dir, "--out", tmp_path / "new" / "out")
    out = tmp_path / "new" / "out"
    names = {f"figure-{n}.{kind}" for n in (1, 2, 3) for kind in ("svg", "png")}
    assert {p.name for p in out.iterdir()} == names | {"curves.csv", "curves.json"}
    document = json.loads((out / "curves.json").read_text())
    assert document["format"] == "verax.curves/1"
    assert [tuple(c["exact"]) for c in document["curves"]] == [c.exact for c in every]
    assert ["airplane", "bird"] in document["sparse_pairs"]["cifar10"]
    rows = list(csv.DictReader(io.StringIO((out / "curves.csv").read_text())))
    assert len(rows) == 48 * 11
    assert [float(r["exact"]) for r in rows[:11]] == list(every[0].exact)
    assert result.stdout.count("yes") == 48
    assert "note:" not in result.stdout


@drawing
def test_without_labels_the_rest_is_drawn_and_one_sentence_says_what_is_missing(tmp_path):
    result = run("--out", tmp_path, "--runs", 1)
    told = " ".join(result.stdout.split())
    assert "note: the curves against ground truth are left out for mnist and cifar10, for their labels" in told
    assert told.count("note:") == 1
    assert (tmp_path / "figure-3.svg").exists()
    document = json.loads((tmp_path / "curves.json").read_text())
    assert Counter(c["reference"] for c in document["curves"]) == {"peer": 16, "attacked peer": 16}
    assert "ground truth are left out, for the labels are not there" in " ".join(
        figures.caption(experiments.curves(1, experiments.load(0), None, Options(runs=1))).split()
    )


@drawing
def test_a_folder_without_the_files_is_like_none_and_a_broken_file_is_refused(tmp_path):
    result = run("--figure", 1, "--runs", 1, "--data-dir", tmp_path, "--out", tmp_path / "out")
    assert "left out for mnist, for its labels are not there" in " ".join(result.stdout.split())
    (tmp_path / "mnist").mkdir()
    datasets.label_file("mnist", tmp_path).write_bytes(b"no")
    broken = run("--figure", 1, "--data-dir", tmp_path, "--out", tmp_path / "out", code=2)
    assert "not a gzip file" in broken.stderr and len(broken.stderr.splitlines()) == 1


@drawing
def test_the_attacked_figure_alone_needs_no_labels(tmp_path):
    result = run("--figure", 3, "--runs", 1, "--mixture", "logits", "--centre", "median", "--out", tmp_path)
    assert "note:" not in result.stdout
    document = json.loads((tmp_path / "curves.json").read_text())
    assert document["options"] == {
        "seed": 0, "runs": 1, "reference_misreports": False, "mixture": "logits", "centre": "median",
    }  # fmt: skip
    assert not (tmp_path / "figure-1.svg").exists()


@drawing
def test_the_pictures_have_four_panels_their_labels_and_text_as_text(recorded, tmp_path):
    curves = experiments.curves(3, recorded, None, Options(runs=1))
    figure = figures.draw(curves)
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert titles == [
        "(a) 0-1 score, MNIST",
        "(b) CE score, MNIST",
        "(c) 0-1 score, CIFAR-10",
        "(d) CE score, CIFAR-10",
    ]
    assert len(figure.legends[0].get_texts()) == 4
    figures.write(curves, tmp_path)
    svg = (tmp_path / "figure-3.svg").read_text()
    assert "misreport rate (%)" in svg and "score per task" in svg and "Every curve falls at every step" in svg
    first = (tmp_path / "figure-3.svg").read_bytes()
    figures.write(curves, tmp_path)
    assert (tmp_path / "figure-3.svg").read_bytes() == first
    width = int.from_bytes((tmp_path / "figure-3.png").read_bytes()[16:20], "big")
    assert width == 150 * figure.get_figwidth()


@drawing
def test_no_text_of_a_figure_leaves_it_or_meets_another(recorded, labels):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for n in (1, 2, 3):
        figure = figures.draw(experiments.curves(n, recorded, labels, Options(runs=1)))
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
        whole = figure.bbox
        boxes = [figure.texts[0].get_window_extent(renderer), figure.legends[0].get_window_extent(renderer)]
        boxes += [ax.get_tightbbox(renderer) for ax in figure.axes]
        for box in boxes:
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= whole.x1 and box.y1 <= whole.y1
        assert not any(box.overlaps(other) for box in boxes[:2] for other in boxes[2:])


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--figure", "4"], "there is no figure 4; choose 1, 2 or 3"),
        (["--mixture", "labels"], "mixture is 'labels'; choose one of probabilities, logits"),
        (["--centre", "mode"], "centre is 'mode'; choose one of mean, median"),
        (["--runs", "0"], "runs is 0 and seed 0; give at least one run and a seed from 0 up"),
        (["--seed", "-1"], "runs is 5 and seed -1; give at least one run and a seed from 0 up"),
        (["--seed", "9"], "no predictions are recorded for seed 9; choose one of 0, 1, 2, or --train"),
        (["--tiny"], "--tiny says how to train; give --train too, or leave it out"),
    ],
)
@drawing
def test_wrong_options_get_one_sentence(args, sentence, tmp_path):
    assert run(*args, "--out", tmp_path, code=2).stderr == f"verax: {sentence}\n"


@drawing
def test_an_out_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    told = run("--out", tmp_path / "taken", code=2).stderr
    assert "cannot be made a folder" in told and "--out" in told


def test_without_matplotlib_or_torch_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    told = run("--figure", "3", "--out", tmp_path / "a", code=2).stderr
    assert told == "verax: The paper's figures need an extra: pip install 'verax[report]'\n"
    assert not (tmp_path / "a").exists()
    monkeypatch.setattr(experiments, "find_spec", lambda name: None)
    with pytest.raises(ExtraMissing, match=r"Training agents need an extra: pip install 'verax\[lab\]'"):
        experiments.trained(["mnist"], tmp_path, tmp_path)


def test_the_numbers_need_neither_torch_nor_matplotlib():
    code = (
        "import sys\n"
        "from verax.reproduce import experiments, figures, datasets\n"
        "experiments.curves(3, experiments.load(0), None, experiments.Options(runs=1))\n"
        "print([m for m in ('torch', 'matplotlib') if m in sys.modules])\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_an_empty_figure_is_refused():
    with pytest.raises(OptionError, match="a figure needs a curve"):
        figures.draw([])


def test_a_caption_claims_no_more_than_the_curves_show(recorded):
    curves = experiments.curves(3, recorded, None, Options(runs=1))
    assert "Every curve falls at every step: the more an agent misreports" in figures.caption(curves)
    rising = replace(curves[0], exact=curves[0].exact[::-1])
    told = figures.caption([rising, *curves[1:]])
    assert "15 of 16 curves fall at every step" in told and "the less it scores" not in told
