"""The commands together: score, audit, pay, demo; what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import verax
from verax.cli import app
from verax.demo import bundled

GOLDEN = Path(__file__).parent / "golden"


def run(*args, code=0):
    result = CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "100"})
    assert result.exit_code == code, result.stderr
    return result


@pytest.fixture
def digits(tmp_path):
    path = tmp_path / "digits.csv"
    verax.write(bundled(), path, wide=True)
    return path


def test_score_audit_and_pay_follow_one_another(digits, tmp_path):
    scores, audit, paid = (tmp_path / f"{name}.json" for name in ("scores", "audit", "paid"))
    run("score", digits, "-o", scores)
    run("audit", digits, "-o", audit)
    run("pay", scores, "--budget", "1000.00", "--clusters", audit, "-o", paid)
    document = json.loads(paid.read_text())
    assert list(document) == ["format", "scheme", "currency", "scale", "budget", "residue", "payments"]
    amounts = {p["agent"]: p["amount"] for p in document["payments"]}
    assert sum(amounts.values()) + document["residue"] == document["budget"] == 100_000
    assert amounts["always-7"] == 0
    # 13 participants: a copy and its original are one, and no references of one another
    apart = tmp_path / "apart.json"
    run("score", digits, "--copies", "apart", "-o", apart)
    run("pay", apart, "--budget", "1000.00", "-o", paid)
    assert json.loads(paid.read_text()) == document
    assert json.loads(apart.read_text())["copies"] == [["copycat", "tree-80"]]
    run("score", digits, "--copies", audit, "-o", scores)
    assert scores.read_text() == apart.read_text()
    score = json.loads(scores.read_text())["scores"]
    best = next(s["score"] for s in score if s["agent"] == "svm-800")
    assert amounts["svm-800"] == int(100_000 / 13 * best)
    shared = next(s["score"] for s in score if s["agent"] == "tree-80")
    assert amounts["tree-80"] + amounts["copycat"] == int(100_000 / 13 * shared)


def test_an_audit_of_other_scores_is_refused(digits, tmp_path):
    """The same agents, tasks and classes, and other labels: whose copies these are says nothing of the scores paid."""
    scores, apart, audit, other = (tmp_path / f"{name}.json" for name in ("scores", "apart", "audit", "other"))
    run("score", digits, "-o", scores), run("score", digits, "--copies", "apart", "-o", apart)
    run("audit", digits, "-o", audit)
    header, *rows = digits.read_text().splitlines()
    task_of = [row.split(",", 1)[0] for row in rows]
    shuffled = [f"{task},{row.split(',', 1)[1]}" for task, row in zip(task_of, rows[7:] + rows[:7], strict=True)]
    names = header.split(",")
    swapped = tmp_path / "swapped.csv"
    swapped.write_text("\n".join([",".join([names[0], *names[2:], names[1]]), *shuffled]) + "\n")
    run("audit", swapped, "-o", other)
    for paid in (scores, apart):  # of the same reports, whether copies were scored as one or not
        run("pay", paid, "--budget", "100.00", "--clusters", audit)
    for paid in (scores, apart):
        said = run("pay", paid, "--budget", "100.00", "--clusters", other, code=2).stderr
        assert "the audit in --clusters is of other scores" in said and "Traceback" not in said
    run("audit", digits, "--rule", "ca", "-o", other)
    assert "is of other scores" in run("pay", scores, "--budget", "100.00", "--clusters", other, code=2).stderr


def test_audit_prints_one_document_with_the_fields_of_the_contract(digits):
    document = json.loads(run("audit", digits, "--json").stdout)
    assert list(document) == ["format", "certificates"]
    assert document["format"] == "verax.audit/1"
    for c in document["certificates"]:
        assert list(c) == ["code", "agent", "verdict", "gain", "interval", "deviation", "why"]
        assert c["verdict"] in ("holds", "fails", "undecided", "not-applicable")
    assert "near-duplicate" in next(
        c["why"] for c in document["certificates"] if c["agent"] == "copycat" and c["code"] == "COPIES"
    )


def test_people_get_tables_that_show_failures_and_count_the_rest(digits, tmp_path):
    shown = run("audit", digits).stdout
    assert "✗ fails" in shown
    assert "11 holds" in shown or "holds" in shown
    assert "more undecided" in shown
    scores = tmp_path / "s.json"
    run("score", digits, "-o", scores)
    shown = run("pay", scores, "--budget", "1000.00", "--currency", "JPY", "--scheme", "proportional", code=2)
    assert "JPY" in shown.stderr
    shown = run("pay", scores, "--budget", "1000", "--currency", "JPY", "--scheme", "proportional").stdout
    assert "back to the payer" in shown
    assert "note:" in shown


@pytest.mark.parametrize("command", ["score", "audit"])
def test_a_page_is_written_beside_any_result(digits, tmp_path, command):
    page = tmp_path / "page.html"
    run(command, digits, "--html", page, "--json")
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "svm-800" in text
    assert ("Certificates" in text) == (command == "audit")


def test_a_page_of_payments_has_scores_and_amounts(digits, tmp_path):
    scores, page = tmp_path / "s.json", tmp_path / "page.html"
    run("score", digits, "-o", scores)
    run("pay", scores, "--budget", "1000.00", "--html", page)
    assert "Payments" in page.read_text()
    assert "43.68" in page.read_text()  # 1000 / 14 of svm-800's 0.6116


@pytest.mark.parametrize("options", [("--rule", "ce"), ("--rule", "pmi"), ("--rule", "brier", "--public", "strata")])
def test_pages_and_audits_of_probabilities_work_too(tmp_path, options):
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 200)
    rows = 0.6 * np.eye(3)[truth] + 0.4 * rng.dirichlet(np.ones(3), (5, 200))
    verax.write(verax.Reports.of(probabilities=rows), tmp_path / "rows.npz")
    (tmp_path / "strata.csv").write_text("task,label\n" + "".join(f"{i},{i % 2}\n" for i in range(200)))
    options = [str(tmp_path / "strata.csv") if o == "strata" else o for o in options]
    document = json.loads(run("audit", tmp_path / "rows.npz", *options, "--json", "--html", tmp_path / "p.html").stdout)
    assert any(c["code"] == "OVERCONFIDENT" and c["verdict"] != "not-applicable" for c in document["certificates"])
    assert "temperature" in (tmp_path / "p.html").read_text()


def test_labels_that_came_along_unasked_are_not_looked_at(tmp_path):
    reports = bundled()
    verax.write(reports, tmp_path / "all.npz")  # truth inside
    document = json.loads(run("audit", tmp_path / "all.npz", "--json").stdout)
    accuracy = next(c for c in document["certificates"] if c["code"] == "ACCURACY")
    assert accuracy["verdict"] == "undecided"


def test_demo_tells_the_story_and_writes_its_page(tmp_path):
    page = tmp_path / "demo.html"
    shown = run("demo", "--html", page).stdout
    for word in ("without labels", "paid, EUR", "Scores.", "Audit.", "Pay.", "always-7"):
        assert word in shown
    assert "<h2>Payments</h2>" in page.read_text()


@pytest.mark.parametrize(
    ("args", "fragment"),
    [
        (["audit", GOLDEN / "wide.csv", "--confidence", "2"], "confidence"),
        (["audit", GOLDEN / "wide.csv", "--colluders", "1"], "colluding fraction"),
        (["audit", GOLDEN / "wide.csv", "--rule", "json:dumps"], "your rule 'json:dumps' failed (TypeError"),
        (["score", GOLDEN / "wide.csv", "--rule", "json:dumps"], "your rule 'json:dumps' failed (TypeError"),
        (["score", GOLDEN / "wide.csv", "--rule", "json:JSONDecodeError"], "failed"),
        (["audit", GOLDEN / "wide.csv", "--html", "/nowhere/page.html"], "cannot be written"),
        (["pay", GOLDEN / "wide.csv", "--budget", "10"], "not JSON"),
        (["pay", GOLDEN / "cases.json", "--budget", "10"], "verax.scores/1"),
        (["pay", GOLDEN / "missing.json", "--budget", "10"], "no such file"),
        (["pay", "SCORES", "--budget", "ten"], "budget"),
        (["pay", "SCORES", "--budget", "-5"], "budget"),
        (["pay", "SCORES", "--budget", "10.001"], "budget"),
        (["pay", "SCORES", "--budget", "10", "--scheme", "lottery"], "lottery"),
        (["pay", "SCORES", "--budget", "10", "--base", "1"], "affine"),
        (["pay", "SCORES", "--budget", "10", "--scheme", "affine", "--base", "0.1", "--rate", "0.9"], "base"),
        (["pay", "SCORES", "--budget", "10", "--cap", "-1"], "cap"),
        (["pay", "SCORES", "--budget", "10", "--clusters", "SCORES"], "verax.audit/1"),
        (["pay", "SCORES", "--budget", "10", "--min-tasks", "-3"], "tasks"),
        (["pay", "PLUGIN", "--budget", "10"], "noise"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_sentence(args, fragment, tmp_path):
    run("score", GOLDEN / "dense.csv", "-o", tmp_path / "SCORES")
    run("score", GOLDEN / "dense.csv", "--rule", "ca", "--sign", "plugin", "-o", tmp_path / "PLUGIN")
    before = {p.name for p in tmp_path.iterdir()}
    args = [tmp_path / a if a in ("SCORES", "PLUGIN") else a for a in args]
    result = run(*args, "-o", tmp_path / "out.json", code=2)
    assert fragment in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert {p.name for p in tmp_path.iterdir()} == before
