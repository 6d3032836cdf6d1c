"""One rule, one number: at every door a rule that verax does not know scores as its definition, written out here.

`spherical` pays the probability given to the reference's label over the row's length. `surprise`, the mutual
information of two agents' labels, looks at labels only. Each is added to `rules.RULES`, and in a user's own module.
"""

from __future__ import annotations

import html
import itertools
import json
import math
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from numpy.random import default_rng
from typer.testing import CliRunner

import oracle
import verax
from verax import Reports, rules
from verax.cli import app
from verax.ledger import Ledger
from verax.market import Submissions, market
from verax.rounds import Rounds, Spec
from verax.tables import write

MODULE = """
import numpy as np
from verax.rules import Rule

def information(joint):
    p = joint.counts.sum(0) / joint.tasks
    there = p > 0
    return float((p[there] * np.log(p[there] / np.outer(p.sum(1), p.sum(0))[there])).sum())

surprise = Rule("surprise", information, low=0.0, high=2.0)
spherical = Rule("spherical", rows=lambda p, _: p / np.linalg.norm(p, axis=1, keepdims=True), linear=True,
                 low=-1.0, high=1.0)
"""
AGENTS = ("ann", "bob", "cy")
TASKS = tuple(f"t{n}" for n in range(40))
CLASSES = ("cat", "dog")
TRUTH = default_rng(0).integers(0, 2, 40)
ROWS = 0.6 * np.eye(2)[TRUTH] + 0.4 * default_rng(1).dirichlet(np.ones(2), (3, 40))
ROWS[2, ::4] = ROWS[2, ::4, ::-1]


def with_rows(rows=ROWS):
    return Reports.of(probabilities=rows, agents=AGENTS, tasks=TASKS, classes=CLASSES)


def labels_only(rows=ROWS):
    return Reports.of(rows.argmax(2), agents=AGENTS, tasks=TASKS, classes=CLASSES)


def spherical_by_definition(rows, reference):
    lengths = [math.sqrt(sum(p * p for p in row)) for row in rows.tolist()]
    return oracle.all_triples(rows / np.array(lengths)[:, None], reference)


def surprise_by_definition(rows, reference):
    said, n, total = rows.argmax(1).tolist(), len(rows), 0.0
    pairs = [*zip(said, reference.tolist(), strict=True)]
    for own, other in itertools.product(range(2), repeat=2):
        both = pairs.count((own, other)) / n
        if both:
            total += both * math.log(both / (said.count(own) / n) / (reference.tolist().count(other) / n))
    return total


DEFINED = {"spherical": (with_rows, spherical_by_definition), "surprise": (labels_only, surprise_by_definition)}


@pytest.fixture(params=["spherical", "surprise", "their_rules:spherical", "their_rules:surprise"])
def rule(request, tmp_path, monkeypatch):
    """The name of a rule, where files can be written."""
    name = request.param
    (tmp_path / "their_rules.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(rules, "_OWN", {})
    monkeypatch.delitem(__import__("sys").modules, "their_rules", raising=False)
    if ":" not in name:
        made = replace(rules.load(f"their_rules:{name}"), name=name, own=False)
        monkeypatch.setitem(rules.RULES, name, made)
        monkeypatch.setattr(rules, "_OWN", {})
    return name


def of_rule(name):
    """The reports that a rule is asked about, and what each agent scores beside a reference, by definition."""
    reports_of, definition = DEFINED[name.rpartition(":")[2]]
    return reports_of, definition


def run(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def by_command(document):
    return [s["score"] for s in json.loads(document)["scores"]]


def write_truth(name):
    pd.DataFrame({"task": TASKS, "label": np.array(CLASSES)[TRUTH]}).to_csv(name, index=False)


def by_score(name, reports):
    return [s.score for s in verax.score(reports, TRUTH, rule=rules.load(name))]


def by_verax_score(name, reports):
    write(reports, "r.parquet")
    return by_command(run("score", "r.parquet", "--truth", "t.csv", "--rule", name, "--json"))


def by_shards(name, reports):
    for part, chosen in enumerate(np.array_split(np.arange(40), 3)):
        write(reports.take(np.isin(np.arange(40), chosen)), f"part-{part}.npz")
    return by_command(run("score", "part-*.npz", "--truth", "t.csv", "--rule", name, "--workers", 1, "--json"))


def by_verax_market(name, reports):
    steps = reports.to_frame("pandas").assign(step=lambda frame: frame.agent.map(AGENTS.index))
    steps.to_csv("steps.csv", index=False)
    closed = json.loads(run("market", "steps.csv", "--truth", "t.csv", "--rule", name, "--json"))
    return [step["level"] for step in closed["payments"]]


def by_market(name, reports):
    rows = reports.probabilities
    held = {"labels": reports.labels} if rows is None else {"probabilities": rows}
    closed = market(Submissions.of(**held, owners=AGENTS), truth=TRUTH, rule=rules.load(name))
    assert closed.worst_case_loss == max(0.0, rules.load(name).high)
    return [step.level for step in closed.payments]


def by_round(name, reports):
    rounds = Rounds(Ledger.open("sqlite://"))
    rounds.open(Spec("r", TASKS, CLASSES, "100.00", rule=name, truth=tuple(TRUTH.tolist())), secret="5ec2e7")
    rounds.fund("r")
    for i, agent in enumerate(AGENTS):
        rounds.submit("r", agent, replace(reports.only(i), agents=("it",)))
    rounds.seal("r")
    settled = rounds.settle("r")
    top = rules.load(name).high
    assert [*settled.amounts.values()] == [
        math.floor(Fraction(10_000, 3) * min(Fraction(1), max(Fraction(0), Fraction(s.score) / Fraction(top))))
        for s in settled.scores
    ]
    assert rounds.verify("r") == []
    rounds.ledger.close()
    return [s.score for s in settled.scores]


DOORS = [by_score, by_verax_score, by_shards, by_market, by_verax_market, by_round]


def test_every_door_gives_the_score_that_the_rules_definition_gives(rule):
    reports_of, definition = of_rule(rule)
    write_truth("t.csv")
    wanted = [definition(rows, TRUTH) for rows in ROWS]
    for door in DOORS:
        np.testing.assert_allclose(door(rule, reports_of()), wanted, rtol=0, atol=1e-12, err_msg=door.__name__)


def test_beside_peers_it_is_the_mean_over_them_whole_and_in_shards(rule):
    reports_of, definition = of_rule(rule)
    said = ROWS.argmax(2)
    wanted = [np.mean([definition(ROWS[i], said[j]) for j in range(3) if j != i]) for i in range(3)]
    found = verax.score(reports_of(), rule=rules.load(rule))
    np.testing.assert_allclose([s.score for s in found], wanted, rtol=0, atol=1e-12)
    for part, chosen in enumerate(np.array_split(np.arange(40), 3)):
        write(reports_of().take(np.isin(np.arange(40), chosen)), f"part-{part}.npz")
    shards = by_command(run("score", "part-*.npz", "--rule", rule, "--workers", 1, "--json"))
    np.testing.assert_allclose(shards, wanted, rtol=0, atol=1e-12)


def test_the_audit_finds_the_gain_of_the_best_relabelling_and_the_page_shows_it(rule):
    """Of all four maps of two labels; a map to one label leaves rows nothing to swap, and is tried on labels only."""
    reports_of, definition = of_rule(rule)
    write(reports_of(), "r.parquet")
    write_truth("t.csv")
    document = run("audit", "r.parquet", "--truth", "t.csv", "--rule", rule, "--json", "--html", "page.html")
    found = {c["agent"]: c for c in json.loads(document)["certificates"] if c["code"] == "TRUTHFUL"}
    with open("page.html", encoding="utf-8") as file:
        shown = html.unescape(re.sub("<[^>]+>", " ", file.read()))
    for i, agent in enumerate(AGENTS):
        honest = definition(ROWS[i], TRUTH)
        maps = [ROWS[i], ROWS[i][:, ::-1]]
        if reports_of is labels_only:
            maps += [np.tile(np.eye(2)[k], (40, 1)) for k in range(2)]
        best = max(definition(rows, TRUTH) for rows in maps)
        assert found[agent]["gain"] == pytest.approx(max(0.0, best - honest), abs=1e-10)
        assert f"{honest:.4f}" in shown
    assert rule in shown
    assert run("score", "r.parquet", "--truth", "t.csv", "--rule", rule).count(f"{definition(ROWS[0], TRUTH):.4f}")


def test_it_is_paid_by_its_bounds_from_the_command_line(rule):
    reports_of, definition = of_rule(rule)
    write(reports_of(), "r.parquet")
    write_truth("t.csv")
    run("score", "r.parquet", "--truth", "t.csv", "--rule", rule, "-o", "s.json")
    named = ["--rule", rule] if ":" in rule else []
    paid = json.loads(run("pay", "s.json", "--budget", "90.00", "--min-tasks", 2, "--json", *named))
    top = rules.load(rule).high
    wanted = [math.floor(3000 * max(0.0, definition(rows, TRUTH)) / top) for rows in ROWS]
    assert [p["amount"] for p in paid["payments"]] == wanted
