"""What other programs rely on: the golden cases through the command line, and the JSON's fields."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from verax.cli import app

GOLDEN = Path(__file__).parent / "golden"
CASES = json.loads((GOLDEN / "cases.json").read_text())


def run(*args):
    result = CliRunner().invoke(app, ["score", *args, "--json"])
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def in_golden(args):
    return [str(GOLDEN / a) if (GOLDEN / a).is_file() else a for a in args]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case["args"]))
def test_the_command_line_gives_the_golden_scores(case):
    document = run(*in_golden(case["args"]))
    assert case["mechanism"].items() <= document["mechanism"].items()
    assert len(document["scores"]) == len(case["scores"])
    for found, wanted in zip(document["scores"], case["scores"], strict=True):
        assert found["score"] == pytest.approx(wanted["score"], abs=1e-9)
        assert found["stderr"] == pytest.approx(wanted["stderr"], abs=1e-6)
        for field in ("agent", "tasks", "references"):
            assert found[field] == wanted[field]


def test_the_document_has_exactly_the_fields_of_the_contract():
    document = run(str(GOLDEN / "rows.npz"), "--rule", "ce", "--floor", "1e-3")
    assert list(document) == ["format", "mechanism", "tasks", "classes", "scores", "warnings"]
    assert document["format"] == "verax.scores/1"
    assert document["mechanism"] == {
        "rule": "ce", "against": "peers", "over": "mean", "sign": None, "public": False, "floor": 1e-3,
    }  # fmt: skip
    assert document["tasks"] == 40
    assert document["classes"] == ["x", "y", "z"]
    assert list(document["scores"][0]) == ["agent", "score", "stderr", "tasks", "references"]
    assert document["warnings"] == []


def test_a_file_gets_the_same_document_and_people_a_table(tmp_path):
    target = tmp_path / "scores.json"
    result = CliRunner().invoke(app, ["score", str(GOLDEN / "wide.csv"), "-o", str(target)])
    assert result.exit_code == 0
    assert "zero-one against peers (mean)" in result.stdout
    assert "0.4480 ± 0.0513" in result.stdout
    assert "scored on the tasks they answered, out of 40: ann (33)" in " ".join(result.stdout.split())
    assert json.loads(target.read_text()) == run(str(GOLDEN / "wide.csv"))
    assert [p.name for p in tmp_path.iterdir()] == ["scores.json"]


def test_a_matrix_file_is_a_sign_and_the_identity_is_zero_one(tmp_path):
    path = tmp_path / "sign.csv"
    path.write_text("y,x,z\n1,0,0\n0,1,0\n0,0,1\n")
    document = run(str(GOLDEN / "wide.csv"), "--rule", "ca", "--sign", str(path))
    assert document["mechanism"]["sign"] == "matrix"
    plain = run(str(GOLDEN / "wide.csv"))
    assert document["scores"] == plain["scores"]


def test_a_users_own_rule_is_found_by_module_and_function(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text("def agreement(joint):\n    return joint.bonus.trace()\n")
    monkeypatch.chdir(tmp_path)
    document = run(str(GOLDEN / "dense.csv"), "--truth", str(GOLDEN / "truth.csv"), "--rule", "my_rules:agreement")
    assert document["mechanism"]["rule"] == "my_rules:agreement"
    accuracy = run(str(GOLDEN / "dense.csv"), "--truth", str(GOLDEN / "truth.csv"), "--rule", "accuracy")
    for own, named in zip(document["scores"], accuracy["scores"], strict=True):
        assert own["score"] == pytest.approx(named["score"])
        # 40 tasks: the jackknife divides by 39 where the named rule divides by 40
        assert own["stderr"] == pytest.approx(named["stderr"] * (40 / 39) ** 0.5, abs=1e-9)


def test_truth_inside_an_npz_is_used_only_when_asked(tmp_path):
    import numpy as np

    with np.load(GOLDEN / "labels.npz") as stored:
        arrays = dict(stored)
    path = tmp_path / "with-truth.npz"
    np.savez(path, **arrays, truth=arrays["labels"][0])
    assert run(str(path))["mechanism"]["against"] == "peers"
    document = run(str(path), "--against", "truth")
    assert document["mechanism"]["against"] == "truth"
    assert document["mechanism"]["over"] is None
    assert {s["references"] for s in document["scores"]} == {1}
