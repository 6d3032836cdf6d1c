"""The studies of paper/: each ends in asserts of its own, and leaves the numbers that are recorded beside it."""

import json
import lzma
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import pytest

PAPER = Path(__file__).parents[1] / "paper"
SHARED = Path(__file__).parents[2] / "shared" / "data"
LAID_OUT = Path("/tmp/datasets")
RECORD = 1 + 3 * 32 * 32

draws = pytest.mark.skipif(find_spec("matplotlib") is None, reason="the studies draw with matplotlib, not installed")


def labels_only(archive, folder):
    """The CIFAR-10 test batch with its labels, which stand in the file names, and black images."""
    with lzma.open(archive) as raw, tarfile.open(fileobj=raw, mode="r|") as tar:
        names = [Path(member.name).stem for member in tar if member.name.startswith("test/")]
    place = folder / "cifar-10-batches-bin"
    place.mkdir()
    records = (bytes([int(name[6:])]) + bytes(RECORD - 1) for name in names)
    (place / "test_batch.bin").write_bytes(b"".join(records))
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder that holds the labels of CIFAR-10's test images."""
    if (LAID_OUT / "cifar-10-batches-bin" / "test_batch.bin").exists():
        return LAID_OUT
    if not (SHARED / "cifar10.tar.xz").exists():
        pytest.skip(f"needs the labels of CIFAR-10, and neither {LAID_OUT} nor {SHARED} has them")
    return labels_only(SHARED / "cifar10.tar.xz", tmp_path_factory.mktemp("labels"))


def ran(*command):
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=300)


def same(found, recorded):
    """Equal, numbers up to what machines round differently."""
    if isinstance(recorded, dict):
        return found.keys() == recorded.keys() and all(same(found[k], recorded[k]) for k in recorded)
    if isinstance(recorded, list):
        return len(found) == len(recorded) and all(map(same, found, recorded))
    return found == (pytest.approx(recorded, rel=1e-5, abs=1e-8) if isinstance(recorded, float) else recorded)


def holds(study, out, *more):
    """Its asserts hold, its figure is small enough to show, and its numbers are those recorded."""
    done = ran(PAPER / f"{study}.py", "--out", out, *more)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert (out / f"{study}.svg").exists()
    assert 10_000 < (out / f"{study}.png").stat().st_size < 150_000
    found, recorded = (json.loads((folder / f"{study}.json").read_text()) for folder in (out, PAPER / "results"))
    assert same(found, recorded)


@draws
@pytest.mark.parametrize("study", ["accuracy", "market", "overconfidence"])
def test_a_study_of_recorded_networks_holds_and_repeats(study, tmp_path, data):
    holds(study, tmp_path, "--data-dir", data)


@draws
@pytest.mark.parametrize("study", ["hybrid", "collusion"])
def test_a_simulated_study_holds_and_repeats(study, tmp_path):
    holds(study, tmp_path)


@draws
@pytest.mark.slow
def test_the_long_study_of_learned_signs_holds_and_repeats(tmp_path):
    holds("learned_sign", tmp_path)


@draws
@pytest.mark.parametrize("broken", [False, True])
def test_the_recorded_federation_study_shows_what_it_says(broken, tmp_path):
    """It runs for many minutes; on small worlds it is run in test_federation."""
    pytest.importorskip("scipy", reason="the study ranks with scipy")
    numbers = json.loads((PAPER / "results" / "federation.json").read_text())
    if broken:
        numbers["every"]["pay"]["IID"]["echo"]["every"]["max"] = 0.01
    (tmp_path / "numbers.json").write_text(json.dumps(numbers))
    check = "import json, sys; sys.path.insert(0, sys.argv[1]); import federation; "
    done = ran("-c", check + "federation.checked(json.load(open(sys.argv[2])))", PAPER, tmp_path / "numbers.json")
    assert ("AssertionError" in done.stderr) if broken else done.returncode == 0, done.stderr


@pytest.mark.skipif(not (SHARED / "crowd").is_dir(), reason="the public crowds are not here")
@pytest.mark.parametrize(
    "name",
    [
        "dog (crowd, 109 workers)",
        pytest.param("24 networks", marks=pytest.mark.slow),
        "breast_cancer, 20 classifiers",
    ],
)
def test_a_slice_of_the_study_of_orders_repeats(name):
    """The whole of it runs for minutes: `python paper/ranking.py`."""
    ranking = pytest.importorskip("ranking", reason="the study needs scikit-learn and matplotlib")
    recorded = {row["set"]: row for row in json.loads((PAPER / "results" / "ranking.json").read_text())["rows"]}[name]
    made = next(made for row, made in ranking.sets() if row == name)
    found = ranking.summary([ranking.judged(name, *world) for world in made])
    for what in ("score", "accuracy"):
        for way in ("majority", "plain", "Dawid-Skene", "mean", "skilled", "consensus"):
            assert found[what][way] == pytest.approx(recorded[what][way], abs=0.005), (what, way)
    assert found["advised"] == recorded["advised"] and found["right"] == recorded["right"]


@draws
@pytest.mark.parametrize("broken", [False, True])
def test_the_recorded_exams_show_what_they_say(broken, tmp_path):
    """The worlds were played on a GPU; their table and figure are made again in the slow test."""
    pytest.importorskip("scipy", reason="the study ranks with scipy")
    numbers = json.loads((PAPER / "results" / "exam.json").read_text())
    if broken:
        numbers["pay"]["exam, most 2"]["groups"]["no information"]["max"] = 41
    (tmp_path / "numbers.json").write_text(json.dumps(numbers))
    check = "import json, sys; sys.path.insert(0, sys.argv[1]); import exam; "
    done = ran("-c", check + "exam.checked(json.load(open(sys.argv[2])))", PAPER, tmp_path / "numbers.json")
    assert ("AssertionError" in done.stderr) if broken else done.returncode == 0, done.stderr


@draws
@pytest.mark.slow
def test_the_study_of_exams_holds_and_repeats(tmp_path):
    holds("exam", tmp_path)


@draws
@pytest.mark.parametrize("broken", [False, True])
def test_the_recorded_studies_of_federations_show_what_they_say(broken, tmp_path):
    """Rings, networks and coalitions were played elsewhere; tables are made again in the slow tests."""
    pytest.importorskip("scipy", reason="the studies rank with scipy")
    numbers = {name: json.loads((PAPER / "results" / f"{name}.json").read_text())
               for name in ("sides", "every", "contribution")}  # fmt: skip
    if broken:
        numbers["contribution"]["mnist"]["riders"]["echo"]["every"]["max"] = 1
    (tmp_path / "numbers.json").write_text(json.dumps(numbers))
    check = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import contribution, every, sides; "
        "of = json.load(open(sys.argv[2])); sides.checked(of['sides']); every.checked(of['every']); "
        "contribution.checked(of['contribution'])"
    )
    done = ran("-c", check, PAPER, tmp_path / "numbers.json")
    assert ("AssertionError" in done.stderr) if broken else done.returncode == 0, done.stderr


@draws
@pytest.mark.slow
@pytest.mark.parametrize("study", ["every", "contribution"])
def test_a_study_of_recorded_federations_holds_and_repeats(study, tmp_path):
    holds(study, tmp_path)


def test_labels_laid_out_from_the_archive_are_the_data_sets(tmp_path, data):
    from verax.reproduce.datasets import test_labels

    if not (SHARED / "cifar10.tar.xz").exists():
        pytest.skip(f"{SHARED} is not there")
    laid_out = labels_only(SHARED / "cifar10.tar.xz", tmp_path)
    assert test_labels("cifar10", laid_out).tolist() == test_labels("cifar10", data).tolist()


def test_the_readme_says_what_the_results_say():
    done = ran(PAPER / "build_readme.py", "--check")
    assert done.returncode == 0, done.stderr


def test_a_changed_number_would_be_noticed():
    assert same({"a": [1.0, None]}, {"a": [1.0 + 1e-9, None]})
    assert not same({"a": [1.0, None]}, {"a": [1.01, None]})
    assert not same({"a": [1.0]}, {"a": [1.0, 2.0]})
