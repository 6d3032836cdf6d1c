"""`verax eval`: logs to a leaderboard, with labels or with none, in a terminal, a document and a page."""

from __future__ import annotations

import csv
import json
import re
import shutil
from html import unescape

import numpy as np
import pytest
from typer.testing import CliRunner

import verax
from test_logs import SAMPLES, eee_line, inspect_log, real, write_lm_eval
from verax.cli import app
from verax.compare import compare

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def run(*words):
    return CliRunner().invoke(app, ["eval", *map(str, words)])


def panel(rng, agents, tasks, classes=4):
    truth = rng.integers(0, classes, tasks)
    skill = np.linspace(0.3, 0.8, agents)
    labels = np.where(rng.random((agents, tasks)) < skill[:, None], truth, rng.integers(0, classes, (agents, tasks)))
    return verax.Reports.of(labels, classes=[*map(str, range(classes))]).with_truth(truth)


@real
@pytest.mark.parametrize("folder", ["lm_eval", "inspect", "helm"])
def test_every_sample_folder_is_evaluated_by_its_name_alone(folder):
    found = run(SAMPLES / folder, "--json")
    assert found.exit_code == 0
    document = json.loads(found.stdout)
    assert document["format"] == "verax.eval/1"
    for board in document["sets"]:
        for standing in board["standings"]:
            assert standing["accuracy"] == pytest.approx(standing["logged"])


def test_accuracy_and_its_error_are_those_of_a_share():
    reports = panel(np.random.default_rng(0), 5, 300)
    for s in verax.eval(reports).sets[0].standings:
        right = reports.labels[reports.agents.index(s.agent)] == reports.truth
        assert s.accuracy == pytest.approx(right.mean()) and s.accuracy_stderr == pytest.approx(right.std() / 300**0.5)


def test_the_label_free_score_is_that_of_verax_score_and_no_truth_changes_nothing_of_it():
    reports = panel(np.random.default_rng(1), 6, 200)
    scores = verax.score(reports, against="peers")
    with_truth, without = verax.eval(reports).sets[0], verax.eval(reports, truth=False).sets[0]
    assert (with_truth.by, without.by) == ("accuracy", "score")
    for board in (with_truth, without):
        for s in board.standings:
            assert (s.score, s.score_stderr) == pytest.approx((scores[s.agent].score, scores[s.agent].stderr), rel=1e-9)
    assert all(s.accuracy is None and s.logged is None and s.alone_right is None for s in without.standings)


def test_ranks_without_truth_are_nearly_those_of_compare():
    reports = panel(np.random.default_rng(2), 8, 800)
    mine = {s.agent: (s.low, s.high) for s in verax.eval(reports, truth=False).sets[0].standings}
    theirs = {r.agent: (r.low, r.high) for r in compare(reports, against="peers").ranks}
    assert all(abs(a - b) <= 1 for agent in mine for a, b in zip(mine[agent], theirs[agent], strict=True))


def test_many_agents_are_ranked_by_the_normal_law_as_few_are_exactly(monkeypatch):
    reports = panel(np.random.default_rng(3), 10, 500)
    exact = [(s.low, s.high) for s in verax.eval(reports).sets[0].standings]
    monkeypatch.setattr("verax.leaderboard._EXACT", 1)
    assert [(s.low, s.high) for s in verax.eval(reports).sets[0].standings] == exact


def test_copies_and_what_the_panel_is_worth_are_said():
    reports = panel(np.random.default_rng(4), 6, 600)
    both = np.vstack([reports.labels, reports.labels[:1]])
    twice = verax.Reports.of(both, agents=[*"abcdef", "copy"], classes=reports.classes).with_truth(reports.truth)
    board = verax.eval(twice).sets[0]
    assert board.copies == (("a", "copy"),) and 1 < board.effective < 7


def test_over_several_sets_agents_count_by_tasks(tmp_path):
    for model, one, two in (("ann", [0] * 30, [0] * 10), ("bob", [0] * 15 + [1] * 15, [1] * 10)):
        write_lm_eval(tmp_path, model, one, task="one")
        write_lm_eval(tmp_path, model, two, task="two")
    write_lm_eval(tmp_path, "cat", [0] * 30, task="one")
    overall = verax.eval(tmp_path).overall
    assert [(s.agent, s.accuracy) for s in overall.standings] == [("ann", 1.0), ("bob", 0.375)]
    assert overall.tasks == 40 and overall.notes == ("1 agent not in every set left out",)


def test_an_answer_that_is_no_label_is_wrong_and_an_error_is_no_answer(tmp_path):
    log = inspect_log(answers=("A", "A", "A", "A"))
    log["samples"][1]["scores"]["choice"]["answer"] = "I would rather not say which of these two it might be, for " * 2
    log["samples"][2]["error"] = {"message": "boom"}
    (tmp_path / "a.json").write_text(json.dumps(log))
    (s,) = verax.eval(tmp_path).sets[0].standings
    assert (s.answered, s.unreadable, s.silent, s.accuracy) == (2, 1, 1, pytest.approx(2 / 3))


def test_where_the_log_judges_otherwise_a_note_says_so(tmp_path):
    lines = [eee_line("m", str(i), "A", evaluation={"score": 1.0, "is_correct": True}) for i in range(3)]
    (tmp_path / "q_samples.jsonl").write_text("\n".join(lines))
    found = run(tmp_path)
    assert found.exit_code == 0 and "the log's own verdicts" in " ".join(found.stdout.split())


def test_the_questions_on_which_an_agent_stands_alone():
    labels = np.zeros((4, 40), dtype=int)
    labels[0, [3, 5]], labels[1, 7] = 1, 1
    truth = np.zeros(40, dtype=int)
    truth[5] = 1
    board = verax.eval(verax.Reports.of(labels, agents=[*"abcd"]).with_truth(truth)).sets[0]
    found = {s.agent: (s.alone, s.alone_count, s.alone_right) for s in board.standings}
    assert found["a"] == (("5", "3"), 2, 1) and found["b"] == (("7",), 1, 0) and found["c"] == ((), 0, 0)


def test_what_is_written_agrees_with_the_document(tmp_path):
    write_lm_eval(tmp_path / "logs", "=ann|x", [0, 1, 0, 2])
    write_lm_eval(tmp_path / "logs", "bob<b>", [0, 0, 0, 2])
    table, text, html = (tmp_path / name for name in ("b.csv", "b.md", "b.html"))
    found = run(tmp_path / "logs", "--json", "--csv", table, "--md", text, "--html", html)
    assert found.exit_code == 0, found.output
    board = json.loads(found.stdout)["sets"][0]
    rows = [*csv.DictReader(table.read_text().splitlines())]
    assert [float(row["accuracy"]) for row in rows] == [s["accuracy"] for s in board["standings"]] == [0.75, 0.5]
    assert rows[1]["agent"] == "'=ann|x" and "=ann\\|x" in text.read_text() and "bob<b>" not in html.read_text()
    page = unescape(html.read_text())
    assert "script-src 'sha256-" in page and not re.search(r"https?://", page)


def test_explain_says_what_was_taken_for_what(tmp_path):
    write_lm_eval(tmp_path, "ann", [0, 1])
    found = " ".join(run(tmp_path, "--explain").stdout.split())
    assert "agent: the folder's name" in found and "rule: one letter" in found


@pytest.mark.parametrize("given", ["nowhere", "."])
def test_what_is_no_log_is_refused_in_a_sentence(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    found = run(given)
    assert found.exit_code == 2 and len(found.stderr.strip().splitlines()) == 1 and "Traceback" not in found.output


@pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed")
@pytest.mark.slow
def test_the_page_sorts_and_searches_in_a_browser(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    from verax.show.boards import boards_page

    path = tmp_path / "board.html"
    path.write_text(boards_page(verax.eval(panel(np.random.default_rng(5), 12, 100))))
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(path.as_uri())
        first = page.locator("table.listing").first
        first.locator("th button").nth(1).click()
        names = first.locator("tbody tr td:nth-child(2)").all_text_contents()
        assert names == sorted(names, key=float)
        page.locator("input[type=search]").first.fill("11")
        assert first.locator("tbody tr:visible").count() < 12
        browser.close()
