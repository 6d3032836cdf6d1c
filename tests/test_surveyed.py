"""Rounds that a survey closes, wholly or in part: Algorithm 2 as a kind of round, beside the paper and the command."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verax
from oracle import score as literal_score
from test_trust import command
from verax.errors import ConflictError, InputError, LedgerError
from verax.keys import Key
from verax.ledger import Ledger
from verax.market import draw, market
from verax.rounds import Reveal, Rounds, Spec, Submission, settlement, transcript_of

N = 60
TASKS = tuple(f"t{n:02}" for n in range(N))
TRUTH = np.random.default_rng(1).integers(0, 2, N)
SPEC = Spec("r", TASKS, ("no", "yes"), "100.00", kind="survey", places=5, weight=2.0,
            sealing="commit", reveal_hours=1.0, deposit="1.00")  # fmt: skip
HYBRID = dataclasses.replace(SPEC, kind="hybrid", truth=tuple(int(y) if n < 20 else -1 for n, y in enumerate(TRUTH)))
SECRET = "5ec2e7" * 8
STEPS = ("ann", 0.6), ("bob", 0.75), ("ann", 0.9)
SURVEYED = ("ann", 0.9), ("cy", 0.85), ("di", 0.8), ("eve", 0.9)


def labels_of(name, accuracy):
    rng = np.random.default_rng([*name.encode(), int(100 * accuracy)])
    return np.where(rng.random(N) < accuracy, TRUTH, 1 - TRUTH)


def report(labels):
    return verax.Reports.of([list(labels)], tasks=TASKS, classes=("no", "yes"))


@pytest.fixture
def rounds():
    ledger = Ledger.open("sqlite://")
    yield Rounds(ledger)
    ledger.close()


def played(rounds, spec=SPEC, steps=STEPS, surveyed=SURVEYED):
    rounds.open(spec, secret=SECRET)
    rounds.fund("r")
    for name, accuracy in steps:
        rounds.fund("r", spec.stake, agent=name)
        rounds.submit("r", name, report(labels_of(name, accuracy)))
    for name, accuracy in surveyed:
        rounds.fund("r", spec.held, agent=name)
        rounds.submit("r", name, report(labels_of("s" + name, accuracy)), survey=True)
    rounds.seal("r")
    for name, accuracy in steps:
        rounds.reveal("r", name, report(labels_of(name, accuracy)))
    for name, accuracy in surveyed:
        rounds.reveal("r", name, report(labels_of("s" + name, accuracy)))
    return rounds.settle("r")


def survey_of(surveyed=SURVEYED):
    return verax.Reports.of(
        [labels_of("s" + name, accuracy) for name, accuracy in surveyed], agents=[name for name, _ in surveyed],
        tasks=TASKS, classes=("no", "yes"),
    )  # fmt: skip


def literal_level(labels, reference, tasks):
    return literal_score(np.eye(2)[labels[tasks]], reference[tasks], "zero-one", None, 1e-6)


def in_cents(level):
    """Levels are rounded, half to even, and then differenced."""
    return round(Fraction(SPEC.weight * level) * SPEC.unit)


def seed_of(rounds):
    """By hand: the root, the secret and all that was shown, each of which somebody else knew first."""
    with rounds.ledger.reading() as journal:
        nonces = sorted(shown["nonce"] for shown in journal.said("r", "reveal"))
    chance = hashlib.sha256(json.dumps(nonces, separators=(",", ":")).encode()).hexdigest()
    return hashlib.sha256(f"{rounds.show('r')['root']}:{SECRET}:{chance}".encode()).hexdigest()


def test_a_survey_round_pays_what_algorithm_2_says(rounds):
    """Step by step from the definition: slow loops for S, the draw by hand, lambda, and who is in both left out."""
    found = played(rounds)
    drawn = ["cy", "di", "eve"][draw(seed_of(rounds), 3)]
    reference = labels_of("s" + drawn, dict(SURVEYED)[drawn])
    levels = [literal_level(labels_of(*step), reference, np.arange(N)) for step in STEPS]
    marks = [0, *map(in_cents, levels)]
    due = {"ann": marks[1] - marks[0] + marks[3] - marks[2], "bob": marks[2] - marks[1]}
    answers = {name: labels_of("s" + name, accuracy) for name, accuracy in SURVEYED}
    for name, mine in answers.items():
        peers = [literal_level(mine, other, np.arange(N)) for who, other in answers.items() if who != name]
        due[name] = due.get(name, 0) + math.floor(SPEC.unit * max(0.0, math.fsum(peers) / 3))
    assert found.amounts == due
    assert found.scores.survey.drawn == drawn and found.scores.survey.excluded == ("ann",)
    assert rounds.verify("r") == [] and rounds.payment("r", "ann") == (due["ann"],) * 2


def test_a_survey_round_is_what_the_command_makes_of_the_same_files(rounds, tmp_path):
    found = played(rounds)
    steps = [f"{n},{t},{name},{('no', 'yes')[k]}\n" for n, (name, accuracy) in enumerate(STEPS, 1)
             for t, k in zip(TASKS, labels_of(name, accuracy), strict=True)]  # fmt: skip
    (tmp_path / "steps.csv").write_text("step,task,agent,label\n" + "".join(steps))
    rows = [f"{t},{name},{('no', 'yes')[k]}\n" for name, accuracy in SURVEYED
            for t, k in zip(TASKS, labels_of("s" + name, accuracy), strict=True)]  # fmt: skip
    (tmp_path / "survey.csv").write_text("task,agent,label\n" + "".join(rows))
    said = command("market", tmp_path / "steps.csv", "--survey", tmp_path / "survey.csv", "--seed", seed_of(rounds),
                   "--scale", "2.0", "--json")  # fmt: skip
    assert said.exit_code == 0, said.stderr
    assert json.loads(said.stdout) == found.scores.to_json()


def test_a_hybrid_round_closes_each_task_by_what_is_known_of_it(rounds):
    found = played(rounds, HYBRID)
    drawn = ["cy", "di", "eve"][draw(seed_of(rounds), 3)]
    reference = labels_of("s" + drawn, dict(SURVEYED)[drawn])
    known, other = np.arange(20), np.arange(20, N)
    levels = [
        (20 * literal_level(labels_of(*step), TRUTH, known) + 40 * literal_level(labels_of(*step), reference, other))
        / N
        for step in STEPS
    ]
    assert [step.level for step in found.scores.payments] == pytest.approx(levels, abs=1e-12)
    assert (found.scores.mechanism.against, found.scores.mechanism.over) == ("hybrid", "one")
    scored = verax.score(survey_of(), truth=np.array(HYBRID.truth))
    assert found.scores.survey.scores == scored.scores  # the surveyed by the truth where it is known, too
    assert rounds.verify("r") == []
    assert rounds.show("r")["settlement"]["scores"]["mechanism"]["against"] == "hybrid"


def test_with_the_truth_of_every_task_a_hybrid_is_closed_by_the_truth():
    path = verax.market.Submissions.of([labels_of(*step) for step in STEPS], owners=["ann", "bob", "ann"], tasks=TASKS,
                                         classes=("no", "yes"))  # fmt: skip
    options = {"survey": survey_of(), "seed": "00"}
    by_truth = market(path, truth=TRUTH)
    assert market(path, truth=TRUTH, hybrid=True, **options).payments == by_truth.payments
    nothing_known = market(path, truth=np.full(N, -1), hybrid=True, **options)
    assert nothing_known.payments == market(path, **options).payments
    one_known = np.where(np.arange(N) == 7, TRUTH, -1)  # a part below two tasks is left out
    assert market(path, truth=one_known, hybrid=True, **options).payments != nothing_known.payments
    for missing in ({"truth": TRUTH}, options):
        with pytest.raises(verax.OptionError, match="hybrid= closes by truth and survey"):
            market(path, hybrid=True, **missing)


def test_a_part_that_no_step_answers_counts_nothing_in_a_hybrid():
    unknown = np.arange(N) >= 20
    labels = np.where(unknown, labels_of("ann", 0.8), -1)
    path = verax.market.Submissions.of([labels], owners=["ann"], tasks=TASKS, classes=("no", "yes"))
    eve = survey_of(SURVEYED[3:])
    half = market(path, truth=np.where(unknown, -1, TRUTH), survey=eve, hybrid=True)
    alone = market(path, truth=np.where(unknown, eve.labels[0], -1))
    assert half.final == pytest.approx(alone.final * 40 / N, abs=1e-12)


def test_the_command_closes_a_hybrid_market(tmp_path):
    labels = {name: labels_of(name, 0.8) for name in ("ann", "bob")}
    steps = [f"{n},{t},{name},{k}\n" for n, name in enumerate(labels) for t, k in zip(TASKS, labels[name], strict=True)]
    (tmp_path / "steps.csv").write_text("step,task,agent,label\n" + "".join(steps))
    for file, known in (("survey", labels_of("s", 0.9)), ("truth", TRUTH[:9])):
        rows = "".join(f"{t},{k}\n" for t, k in zip(TASKS, known, strict=False))
        (tmp_path / f"{file}.csv").write_text(f"task,{'cy' if file == 'survey' else 'label'}\n" + rows)
    options = "--truth", tmp_path / "truth.csv", "--survey", tmp_path / "survey.csv"
    said = command("market", tmp_path / "steps.csv", *options, "--hybrid")
    assert said.exit_code == 0 and "closed by truth where known, else the survey of" in said.stdout, said.stderr
    assert "both truth and a survey" in command("market", tmp_path / "steps.csv", *options).stderr


def test_lambda_is_what_the_market_pays_for_what_the_survey_pays_one_for(rounds):
    assert SPEC.unit == math.floor(10_000 / (2.0 + 5)) and SPEC.stake == 2 * 2 * SPEC.unit
    flat = dataclasses.replace(SPEC, weight=None, scale="10.00")
    assert (flat.steepness, flat.unit, flat.stake) == (1.0, 1000, 2000)
    found = played(rounds, flat)
    assert found.scores.scale == 1.0
    assert sum(found.amounts.values()) <= 10_000


def test_who_is_in_both_is_drawn_from_only_where_the_round_says_so():
    steps = [(name, {"labels": labels_of(name, accuracy).tolist()}) for name, accuracy in STEPS]
    answers = [(name, {"labels": labels_of("s" + name, x).tolist(), "survey": True}) for name, x in SURVEYED]
    for spec in (SPEC, dataclasses.replace(SPEC, keep_both=True)):
        found = [settlement(spec, [*steps, *answers], SECRET, root).scores.survey for root in map(str, range(40))]
        names = [name for name, _ in SURVEYED if spec.keep_both or name != "ann"]
        assert [s.drawn for s in found] == [names[draw(s.seed, len(names))] for s in found]
        assert {s.drawn for s in found} == {*names}
        assert all((s.bound is not None) == spec.keep_both for s in found)
        assert all(s.excluded == (() if spec.keep_both else ("ann",)) for s in found)


def test_a_later_copy_of_a_survey_is_neither_paid_nor_drawn():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 400)
    honest = [np.where(rng.random(400) < 0.8, truth, 1 - truth).tolist() for _ in range(7)]
    tasks = tuple(f"t{n}" for n in range(400))
    spec = dataclasses.replace(SPEC, tasks=tasks, places=10)
    names = [*"bcdefg", "z1", "z2", "z3"]  # of g's answers, which would be drawn in four of nine cases
    surveyed = [(name, {"labels": honest[min(n, 5)], "survey": True}) for n, name in enumerate(names)]
    drawn = set()
    for root in map(str, range(40)):
        found = settlement(spec, [("a", {"labels": honest[6]}), *surveyed], SECRET, root)
        drawn.add(found.scores.survey.drawn)
        assert [found.amounts[name] for name in ("z1", "z2", "z3")] == [0, 0, 0] and found.amounts["g"] > 0
    assert drawn == {*"bcdefg"} and found.scores.survey.agents == 9


def test_the_survey_has_so_many_places_and_its_last_answer_counts(rounds):
    rounds.open(SPEC)
    for n in range(5):
        rounds.fund("r", 100, agent=f"a{n}")
        rounds.submit("r", f"a{n}", report(labels_of("a", 0.8)), survey=True)
    with pytest.raises(ConflictError, match="the 5 places of the survey"):
        rounds.submit("r", "late", report(labels_of("l", 0.8)), survey=True)
    first = rounds.submit("r", "a0", report(labels_of("b", 0.8)), survey=True)
    assert rounds.submit("r", "a0", report(labels_of("b", 0.8)), survey=True) == first
    with pytest.raises(LedgerError, match="'agent:a0' has 0 EUR to spend"):  # its deposit is held once
        rounds.submit("r", "a0", report(labels_of("b", 0.8)))  # a step of the market has its stake
    assert rounds.ledger.verify() == []
    rounds.open(dataclasses.replace(SPEC, round="batch", kind="batch", places=None, weight=None, deposit=None))
    with pytest.raises(ConflictError, match="'batch' is a batch round and has no survey"):
        rounds.submit("batch", "ann", report(labels_of("a", 0.8)), survey=True)


def test_an_answer_to_the_survey_is_no_step_of_the_market(rounds):
    ann = Key.new()
    rounds.open(SPEC)
    made = Submission.of(rounds.public_record("r"), "ann", 1, {"labels": [0] * N}, ann, survey=True)
    with pytest.raises(ConflictError, match="is not signed by its key"):
        rounds.take(dataclasses.replace(made, survey=False))


@pytest.mark.parametrize(
    ("steps", "surveyed", "says"),
    [
        ((), (), "no submissions"),
        (STEPS, SURVEYED[:1], "1 of the survey's answers, and two score each other"),
        ((), SURVEYED, "no step in the market"),
        ((*STEPS, ("cy", 0.7)), SURVEYED[:2], "nobody in the survey without a step in the market"),
    ],
)
def test_what_cannot_be_settled_is_not_sealed(rounds, steps, surveyed, says):
    with pytest.raises(ConflictError, match=says):
        played(rounds, steps=steps, surveyed=surveyed)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"places": None}, "places is None; say how many"),
        ({"places": 1}, "places is 1; say how many"),
        ({"weight": -1.0}, "lambda"),
        ({"truth": tuple(TRUTH.tolist())}, "make it hybrid, or leave the truth out"),
        ({"kind": "hybrid"}, "closed by the truth where it is known; give it"),
        ({"scheme": "proportional"}, "a fixed price"),
        ({"over": "one"}, "a fixed price"),
        ({"scale": "50.00"}, "the house can lose 35000 minor units, 25000 of it to the surveyed,"),
        ({"budget": "0.05"}, "does not cover one minor unit"),
        ({"min_tasks": 61}, "nobody can be drawn"),
        ({"rule": "log"}, "never above 0|needs the truth"),
        ({"rule": "accuracy"}, "needs the truth"),
        ({"kind": "batch"}, "are of a survey, and this is a batch round"),
        ({"kind": "market", "truth": tuple(TRUTH.tolist())}, "are of a survey, and this is a market round"),
    ],
)
def test_a_survey_round_that_could_not_be_settled_is_not_opened(rounds, change, says):
    with pytest.raises(InputError if "needs the truth" not in says else verax.VeraxError, match=says):
        rounds.open(dataclasses.replace(SPEC, **change))


@pytest.mark.parametrize("spec", [SPEC, HYBRID], ids=["survey", "hybrid"])
@pytest.mark.parametrize("content", [{"labels": "none"}, {"labels": [9] * N}, {}, {"labels": [0, 1]}])
def test_answers_that_say_nothing_do_not_keep_anybody_from_being_paid(rounds, spec, content):
    """A survey of which nothing can be read is not drawn; where none can be, the market pays nothing and ends."""
    rounds.open(spec, secret=SECRET)
    rounds.fund("r"), rounds.fund("r", spec.stake, agent="ann")
    rounds.submit("r", "ann", report(labels_of("ann", 0.8)))
    keys = {name: Key.new() for name in ("eve", "mal")}
    for name, key in keys.items():
        rounds.fund("r", spec.held, agent=name)
        rounds.take(Submission.of(rounds.public_record("r"), name, 1, content, key, survey=True))
    rounds.seal("r")
    rounds.reveal("r", "ann", report(labels_of("ann", 0.8)))
    for name, key in keys.items():
        rounds.take_reveal(Reveal.of(rounds.public_record("r"), name, content, key))
    assert rounds.settle("r").amounts == {"ann": 0, "eve": 0, "mal": 0} and rounds.verify("r") == []


def test_a_step_is_no_answer_to_the_survey_by_what_is_sealed_in_it(rounds):
    """Content that calls itself an answer would be paid as one, beyond the places that the budget covers."""
    rounds.open(SPEC, secret=SECRET)
    eve, content = Key.new(), {"labels": labels_of("eve", 0.9).tolist(), "survey": True}
    rounds.fund("r"), rounds.fund("r", SPEC.stake, agent="eve")
    for name in ("cy", "di"):
        rounds.fund("r", SPEC.held, agent=name)
        rounds.submit("r", name, report(labels_of("s" + name, 0.8)), survey=True)
    rounds.take(Submission.of(rounds.public_record("r"), "eve", 1, content, eve))
    rounds.seal("r")
    for name in ("cy", "di"):
        rounds.reveal("r", name, report(labels_of("s" + name, 0.8)))
    rounds.take_reveal(Reveal.of(rounds.public_record("r"), "eve", content, eve))
    found = rounds.settle("r")
    assert [step.agent for step in found.scores.payments] == ["eve"] and found.scores.survey.agents == 2


answers = st.lists(st.sampled_from([-1, 0, 1]), min_size=12, max_size=12)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), answers, st.booleans()), max_size=7),
    st.sampled_from([("zero-one", None), ("ca", "split"), ("ca", "identity")]),
    st.sampled_from(["survey", "hybrid", "market"]), st.integers(2, 12), st.booleans(),
)  # fmt: skip
def test_whatever_is_handed_in_is_settled_within_the_budget(handed, rule, kind, known, keep_both):
    """Nothing that can be handed in, in any market, keeps a settlement from being made or exceeds its money."""
    truth = tuple(int(n % 2) if n < known or kind == "market" else -1 for n in range(12))
    surveyed = kind in ("survey", "hybrid")
    spec = Spec("r", TASKS[:12], ("no", "yes"), "10.00", kind=kind, rule=rule[0], sign=rule[1], min_tasks=2,
                places=3 if surveyed else None, sealing="commit", reveal_hours=1.0,
                deposit="0.01", keep_both=keep_both and surveyed,
                truth=truth if kind != "survey" else None)  # fmt: skip
    standing = {}
    steps = []
    for agent, labels, of_survey in handed:
        if surveyed and of_survey:
            standing[agent] = (agent, {"labels": labels, "survey": True})
        else:
            steps.append((agent, {"labels": labels}))
    transcript = [*steps, *standing.values()]
    if transcript:
        found = settlement(spec, transcript, SECRET, "root")
        assert sum(found.amounts.values()) <= 1000
        owned = {a: spec.stake * sum(s == a for s, _ in steps) for a in found.amounts} if spec.is_market else {}
        assert all(amount >= -owned.get(agent, 0) for agent, amount in found.amounts.items())
        assert settlement(spec, transcript, SECRET, "root") == found


def test_the_commands_run_a_survey_round(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tasks.csv").write_text("task\n" + "".join(f"{t}\n" for t in TASKS))
    for name in ("ann", "cy", "di"):
        rows = "".join(f"{t},{('no', 'yes')[k]}\n" for t, k in zip(TASKS, labels_of(name, 0.85), strict=True))
        Path(f"{name}.csv").write_text("task,label\n" + rows)
    asked = "--tasks", "tasks.csv", "--classes", "no,yes", "--budget", "100.00", "--kind", "survey", "--places", "4"
    drawn = "--sealing", "commit", "--reveal-hours", "1", "--deposit", "1.00"
    opened = command("round", "open", "r", *asked, "--lambda", "0.5", "--scale", "10.00", *drawn)
    assert opened.exit_code == 0, opened.stderr
    assert command("round", "fund", "r").exit_code == 0
    assert command("round", "fund", "r", "--agent", "ann", "--amount", "10.00").exit_code == 0
    assert command("round", "submit", "r", "ann.csv", "--agent", "ann").exit_code == 0
    for name in ("cy", "di"):
        assert command("round", "fund", "r", "--agent", name, "--amount", "1.00").exit_code == 0
        assert command("round", "submit", "r", f"{name}.csv", "--agent", name, "--survey").exit_code == 0
    assert command("round", "seal", "r").exit_code == 0
    assert "may show what they committed to until" in command("round", "settle", "r").stderr
    for name in ("ann", "cy", "di"):
        assert command("round", "reveal", "r", f"{name}.csv", "--agent", name).exit_code == 0
    settled = json.loads(command("round", "settle", "r").stdout)
    assert settled["scores"]["survey"]["drawn"] in ("cy", "di") and settled["amounts"]["cy"] > 0
    assert command("round", "verify", "r", "--agent", "ann").stdout.strip().endswith("equal")


def test_a_survey_round_rewritten_does_not_verify(tmp_path):
    from test_trust import rewritten, with_body

    stored = Rounds(Ledger.open(str(tmp_path / "verax.db")))
    played(stored)
    with stored.ledger.reading() as journal:
        assert len(transcript_of(journal, "r")[1]) == 7
    assert rewritten(stored, lambda entries: entries) == []
    assert rewritten(stored, lambda es: [with_body(e, survey=False) if e.said.get("survey") else e for e in es]) != []
    stored.ledger.close()
