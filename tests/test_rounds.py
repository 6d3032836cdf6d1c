"""Rounds: sealed submissions, one settlement, nothing seen too early, every payment computed again."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from numpy.random import default_rng
from typer.testing import CliRunner

import verax
from verax import ConflictError, InputError, LedgerError, Reports
from verax.cli import app
from verax.errors import NotFoundError
from verax.ledger import HOUSE, Entry, Head, Ledger
from verax.recorded import RecordedRound
from verax.rounds import TRANSITIONS, Receipt, Rounds, Settlement, Spec, commitment, content_of, settlement

TASKS = tuple(f"t{i}" for i in range(60))
CLASSES = ("cat", "dog", "eel")


def labels_of(seed, accuracy=0.8):
    rng = default_rng([seed, 1])
    truth = default_rng(0).integers(0, 3, 60)
    return np.where(rng.random(60) < accuracy, truth, rng.integers(0, 3, 60))


def report(labels, rows=None):
    return Reports.of(np.asarray(labels)[None], rows, tasks=TASKS, classes=CLASSES)


TRUTH = tuple(default_rng(0).integers(0, 3, 60).tolist())
BATCH = Spec("r1", TASKS, CLASSES, "100.00")
MARKET = Spec("m1", TASKS, CLASSES, "100.00", kind="market", truth=TRUTH)


@pytest.fixture
def rounds():
    ledger = Ledger.open("sqlite://")
    yield Rounds(ledger)
    ledger.close()


def sealed(rounds, spec=BATCH, agents=4):
    rounds.open(spec, secret="5ec2e7")
    rounds.fund(spec.round)
    for i in range(agents):
        rounds.submit(spec.round, f"a{i}", report(labels_of(i)))
    rounds.seal(spec.round)
    return rounds


def test_a_batch_round_pays_what_scoring_and_paying_its_reports_gives(rounds):
    found = sealed(rounds).settle("r1")
    reports = Reports.of(
        np.stack([labels_of(i) for i in range(4)]), agents=[f"a{i}" for i in range(4)], tasks=TASKS, classes=CLASSES
    )
    paid = verax.pay(verax.score(reports), budget="100.00")
    assert found.amounts == {p.agent: p.amount for p in paid.payments}
    balances = rounds.ledger.balances()
    assert {a: balances.get(f"agent:{a}", 0) for a in found.amounts} == found.amounts
    assert balances["escrow:r1"] == 0
    assert balances[HOUSE] == -sum(found.amounts.values())
    assert rounds.verify("r1") == []
    assert rounds.payment("r1", "a0") == (found.amounts["a0"],) * 2


def test_settling_again_gives_the_same_answer_and_moves_nothing(rounds):
    found = sealed(rounds).settle("r1")
    head = rounds.ledger.head()
    assert rounds.settle("r1") == found
    assert rounds.ledger.head() == head


def test_the_table_of_transitions_is_the_only_way(rounds):
    """Every step in every state: those of the table go through, all others are refused and record nothing."""
    steps = {
        "fund": lambda r: r.fund("r1", 7, key=f"again:{r.ledger.head().count}"),
        "submit": lambda r: r.submit("r1", "zoe", report(labels_of(9))),
        "seal": lambda r: r.seal("r1"),
        "score": lambda r: r.settle("r1"),
        "void": lambda r: r.void("r1"),
    }
    ways = {
        "open": lambda r: (
            r.open(BATCH),
            r.fund("r1"),
            *(r.submit("r1", f"a{i}", report(labels_of(i))) for i in (0, 1)),
        ),
        "sealed": sealed,
        "settled": lambda r: sealed(r).settle("r1"),
        "void": lambda r: (r.open(BATCH), r.void("r1")),
    }
    done = {"seal": ("sealed", "settled"), "score": ("settled",), "void": ("void",)}
    for state, way in ways.items():
        for step, take in steps.items():
            ledger = Ledger.open("sqlite://")
            fresh = Rounds(ledger)
            way(fresh)
            before = ledger.head()
            if (state, step) in TRANSITIONS or state in done.get(step, ()):
                take(fresh)
            else:
                with pytest.raises(ConflictError, match=f"is {state}"):
                    take(fresh)
                assert ledger.head() == before
            ledger.close()


def test_only_the_last_submission_of_an_agent_counts_in_a_batch(rounds):
    rounds.open(BATCH, secret="5ec2e7")
    rounds.fund("r1")
    for seed in (7, 8, 0):
        rounds.submit("r1", "a0", report(labels_of(seed)))
    for i in range(1, 4):
        rounds.submit("r1", f"a{i}", report(labels_of(i)))
    rounds.seal("r1")
    other = Rounds(Ledger.open("sqlite://"))
    assert rounds.settle("r1").amounts == sealed(other).settle("r1").amounts
    other.ledger.close()


def test_a_repeated_submission_gets_the_same_receipt_and_another_under_its_key_is_refused(rounds):
    rounds.open(BATCH)
    first = rounds.submit("r1", "a0", report(labels_of(0)), key="k")
    again = rounds.submit("r1", "a0", report(labels_of(0)), key="k")
    assert first == again
    with pytest.raises(ConflictError, match="other content"):
        rounds.submit("r1", "a0", report(labels_of(1)), key="k")
    # a retry is answered even after sealing: the agent may have missed the first answer
    rounds.submit("r1", "a1", report(labels_of(1)))
    rounds.fund("r1")
    rounds.seal("r1")
    assert rounds.submit("r1", "a0", report(labels_of(0)), key="k").commitment == first.commitment


def test_going_back_to_an_earlier_report_makes_it_count_again(rounds):
    """A, then B, then A: the receipt is for A, and A is what is scored."""
    rounds.open(BATCH, secret="5ec2e7")
    rounds.fund("r1")
    for i in range(1, 4):
        rounds.submit("r1", f"a{i}", report(labels_of(i)))
    first = rounds.submit("r1", "a0", report(labels_of(0)))
    rounds.submit("r1", "a0", report(labels_of(8)))
    back = rounds.submit("r1", "a0", report(labels_of(0)))
    assert rounds.submit("r1", "a0", report(labels_of(0))) == back
    assert (back.commitment, back.entry > first.entry) == (first.commitment, True)
    rounds.seal("r1")
    other = Rounds(Ledger.open("sqlite://"))
    assert rounds.settle("r1").amounts == sealed(other).settle("r1").amounts
    other.ledger.close()


def test_an_agent_may_restore_its_hypothesis_in_a_market(rounds):
    rounds.open(MARKET)
    rounds.fund("m1")
    for agent in ("ann", "eve"):
        rounds.fund("m1", 90_000, agent=agent)
    entries = [
        rounds.submit("m1", agent, report(labels)).entry
        for agent, labels in (("ann", TRUTH), ("ann", TRUTH), ("eve", labels_of(5, 0.1)), ("ann", TRUTH))
    ]
    assert entries[0] == entries[1]
    assert len(set(entries)) == 3
    rounds.seal("m1")
    amounts = rounds.settle("m1").amounts
    assert amounts["eve"] < 0
    assert amounts["ann"] > 6_000
    assert rounds.verify("m1") == []


def test_a_receipt_commits_to_round_agent_and_content(rounds):
    rounds.open(BATCH)
    taken = rounds.submit("r1", "a0", report(labels_of(0)))
    content = content_of(report(labels_of(0)), BATCH)
    assert taken.commitment == commitment("r1", "a0", content, taken.nonce)
    changed = {
        commitment("r2", "a0", content, taken.nonce),
        commitment("r1", "a1", content, taken.nonce),
        commitment("r1", "a0", content | {"labels": content["labels"][::-1]}, taken.nonce),
        commitment("r1", "a0", content, "0"),
    }
    assert len(changed | {taken.commitment}) == 5


def test_nothing_secret_is_shown_before_settlement(rounds):
    spec = dataclasses.replace(BATCH, truth=TRUTH)
    rounds.open(spec, secret="5ec2e7c0de")
    rounds.fund("r1")
    for i in range(4):
        rounds.submit("r1", f"a{i}", report(labels_of(i)))
    labels = json.dumps(content_of(report(labels_of(0)), spec)["labels"])
    truth = json.dumps(list(TRUTH))
    for step in (lambda: None, lambda: rounds.seal("r1")):
        step()
        shown = json.dumps(rounds.show("r1"))
        for hidden in (labels, truth, "5ec2e7c0de", json.loads(json.dumps(labels)).replace(" ", "")):
            assert hidden not in shown
    rounds.settle("r1")
    shown = json.dumps(rounds.show("r1"))
    assert "5ec2e7c0de" in shown
    assert truth in shown


def test_what_a_round_asks_cannot_change_after_it_opened(rounds):
    opened = rounds.open(BATCH)
    assert rounds.open(BATCH) == opened
    with pytest.raises(ConflictError, match="another spec"):
        rounds.open(dataclasses.replace(BATCH, budget="200.00"))


def test_a_round_is_not_sealed_without_its_budget_or_before_its_deadline(rounds, monkeypatch):
    soon = datetime.now(UTC) + timedelta(hours=1)
    rounds.open(dataclasses.replace(BATCH, deadline=soon.isoformat()))
    rounds.submit("r1", "a0", report(labels_of(0)))
    with pytest.raises(ConflictError, match="seal it after"):
        rounds.seal("r1")
    rounds.open(dataclasses.replace(BATCH, round="r3"))
    with pytest.raises(ConflictError, match="no submissions"):
        rounds.seal("r3")
    rounds.submit("r3", "a0", report(labels_of(0)))
    with pytest.raises(ConflictError, match="one submission and no truth"):
        rounds.seal("r3")
    rounds.submit("r3", "a1", report(labels_of(1)))
    rounds.fund("r3", 9_999)
    with pytest.raises(ConflictError, match="9999 of 10000"):
        rounds.seal("r3")
    monkeypatch.setattr("verax.ledger.clock", lambda: soon + timedelta(hours=1))
    with pytest.raises(ConflictError, match="deadline"):
        rounds.submit("r1", "a1", report(labels_of(1)))
    with pytest.raises(InputError, match="has passed; give one to come"):
        rounds.open(dataclasses.replace(BATCH, round="r2", deadline=soon.isoformat()))


def test_voiding_gives_everything_back(rounds):
    rounds.open(MARKET)
    rounds.fund("m1")
    rounds.fund("m1", 50_000, agent="ann")
    rounds.submit("m1", "ann", report(labels_of(0)))
    rounds.void("m1")
    with rounds.ledger.reading() as journal:
        assert journal.available("agent:ann", "EUR") == 50_000
        assert journal.available("escrow:m1", "EUR") == 0
    assert rounds.verify("m1") == []


def test_a_market_round_pays_improvements_and_takes_losses_from_stakes(rounds):
    rounds.open(MARKET)
    rounds.fund("m1")
    with pytest.raises(LedgerError, match="fund it first"):
        rounds.submit("m1", "ann", report(labels_of(0)))
    for agent in ("ann", "bob"):
        rounds.fund("m1", 50_000, agent=agent)
    rounds.submit("m1", "ann", report(labels_of(0, 0.6)))
    rounds.submit("m1", "bob", report(TRUTH))
    rounds.submit("m1", "ann", report(labels_of(5, 0.2)))  # sabotage: it pays for it
    rounds.seal("m1")
    found = rounds.settle("m1")
    levels = [
        verax.score(report(labels), np.array(TRUTH))["0"].score
        for labels in (labels_of(0, 0.6), TRUTH, labels_of(5, 0.2))
    ]
    marks = [0, *(round(level * 10_000) for level in levels)]
    steps = np.diff(marks)
    assert found.amounts == {"ann": steps[0] + steps[2], "bob": steps[1]}
    assert found.amounts["ann"] < 0
    balances = rounds.ledger.balances()
    assert balances["agent:ann"] == 50_000 + found.amounts["ann"]
    assert balances["agent:bob"] == 50_000 + found.amounts["bob"]
    assert balances["escrow:m1"] == 0
    assert rounds.verify("m1") == []


def test_the_paid_randomness_needs_both_the_sealed_root_and_the_secret():
    """One peer drawn at settlement: another secret, or another root, draws other peers."""
    spec = dataclasses.replace(BATCH, over="one")
    taken = [(f"a{i}", content_of(report(labels_of(i)), spec)) for i in range(6)]
    plain = settlement(spec, taken, "s", "root")
    assert settlement(spec, taken, "s", "root") == plain
    others = [settlement(spec, taken, f"s{i}", "root").amounts for i in range(5)]
    others += [settlement(spec, taken, "s", f"root{i}").amounts for i in range(5)]
    assert any(o != plain.amounts for o in others[:5])
    assert any(o != plain.amounts for o in others[5:])


def test_probabilities_survive_submission_bit_by_bit(rounds):
    rng = default_rng(3)
    spec = dataclasses.replace(BATCH, rule="ce")
    rounds.open(spec)
    rounds.fund("r1")
    rows = 0.6 * np.eye(3)[np.array(TRUTH)] + 0.4 * rng.dirichlet(np.ones(3), (4, 60))
    for i in range(4):
        rounds.submit("r1", f"a{i}", Reports.of(probabilities=rows[i][None], tasks=TASKS, classes=CLASSES))
    rounds.seal("r1")
    whole = Reports.of(probabilities=rows, agents=[f"a{i}" for i in range(4)], tasks=TASKS, classes=CLASSES)
    assert rounds.settle("r1").scores.scores == verax.score(whole, rule="ce").scores


def test_a_forged_payment_is_not_equal_when_computed_again(tmp_path, monkeypatch):
    """Even an operator who rewrites the whole chain cannot make a wrong payment follow from the transcript."""
    path = tmp_path / "verax.db"
    ledger = Ledger.open(str(path))
    rounds = sealed(Rounds(ledger))
    honest = RecordedRound.move

    def favour(this, step, debit, credit, amount):
        return honest(this, step, debit, credit, amount + 100 * (step == "pay:a0"))

    monkeypatch.setattr(RecordedRound, "move", favour)
    rounds.settle("r1")
    assert ledger.verify() == []
    problems = rounds.verify("r1")
    assert len(problems) == 1
    assert "'a0' was paid" in problems[0]
    ledger.close()
    result = CliRunner().invoke(app, ["round", "verify", "r1", "--agent", "a0", "--db", str(path)])
    assert result.exit_code == 2
    assert "'a0' was paid" in result.stderr


def test_changed_submissions_are_not_settled(tmp_path):
    path = tmp_path / "verax.db"
    ledger = Ledger.open(str(path))
    rounds = sealed(Rounds(ledger))
    ledger.close()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TRIGGER journal_no_UPDATE"))
        body = connection.execute(sa.text("SELECT body FROM journal WHERE kind = 'submit' LIMIT 1")).scalar_one()
        document = json.loads(body)
        document["sealed"] = document["sealed"].swapcase()
        connection.execute(
            sa.text("UPDATE journal SET body = :new WHERE body = :old"), {"new": json.dumps(document), "old": body}
        )
    engine.dispose()
    with pytest.raises(LedgerError, match="not those that were sealed"):
        rounds.settle("r1")
    assert "is not what was recorded" in rounds.verify("r1")[0]
    ledger.close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "lottery"}, "batch or market"),
        ({"round": "a:b"}, "colons"),
        ({"tasks": ("t",)}, "two different tasks"),
        ({"classes": ("cat", "cat")}, "two different classes"),
        ({"kind": "market"}, "closed by the truth"),
        ({"kind": "market", "truth": TRUTH, "scale": "200.00"}, "house can lose"),
        ({"deadline": "tomorrow"}, "no time"),
        ({"budget": "ten"}, "budget"),
        ({"scheme": "gift"}, "scheme"),
        ({"truth": (0, 1)}, "one a task"),
        ({"rule": "magic"}, "magic"),
        ({"rule": "accuracy"}, "needs the truth"),
        ({"over": "best"}, "over"),
    ],
)
def test_a_round_that_could_not_be_settled_is_not_opened(rounds, change, says):
    with pytest.raises(verax.VeraxError, match=says):
        rounds.open(dataclasses.replace(BATCH, **change))
    assert rounds.ledger.head().count == 0


def test_reports_that_do_not_fit_the_round_are_refused(rounds):
    rounds.open(BATCH)
    for wrong in (
        Reports.of(np.zeros((1, 3), int), tasks=["t0", "t1", "zebra"], classes=CLASSES),
        Reports.of(np.zeros((1, 60), int), tasks=TASKS, classes=("a", "b", "c")),
        Reports.of(np.zeros((2, 60), int), tasks=TASKS, classes=CLASSES),
        Reports.of(np.full((1, 60), -1), tasks=TASKS, classes=CLASSES),
    ):
        with pytest.raises(InputError):
            rounds.submit("r1", "a0", wrong)


def test_the_commands_run_a_round_from_opening_to_verification(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*args, code=0):
        result = CliRunner().invoke(app, ["round", *args])
        assert result.exit_code == code, result.stderr
        return result.stderr if code else result.stdout

    (tmp_path / "tasks.csv").write_text("task\n" + "\n".join(TASKS) + "\n")
    (tmp_path / "truth.csv").write_text(
        "task,label\n" + "".join(f"{t},{CLASSES[y]}\n" for t, y in zip(TASKS, TRUTH, strict=True))
    )
    assert "no such ledger" in run("show", "r1", code=2)
    opening = (
        "open",
        "r1",
        "--tasks",
        "tasks.csv",
        "--classes",
        ",".join(CLASSES),
        "--budget",
        "100.00",
        "--truth",
        "truth.csv",
    )
    assert json.loads(run(*opening)) == json.loads(run(*opening))
    run("fund", "r1")
    for i in range(3):
        rows = "".join(f"{t},{CLASSES[y]}\n" for t, y in zip(TASKS, labels_of(i), strict=True))
        (tmp_path / f"a{i}.csv").write_text("task,label\n" + rows)
        (tmp_path / f"a{i}.receipt").write_text(run("submit", "r1", f"a{i}.csv", "--agent", f"a{i}"))
    assert json.loads(run("seal", "r1"))["submissions"] == 3
    settled = json.loads(run("settle", "r1"))
    assert settled["scores"]["mechanism"]["against"] == "truth"
    assert settled["amounts"]["a0"] > 0
    assert run("verify", "r1", "--agent", "a0", "--receipt", "a0.receipt").strip().endswith("equal")
    assert "not equal" not in run("verify", "r1", "--agent", "a0")
    assert run("verify").startswith("verified: ")
    assert json.loads(run("show", "r1", "--json"))["state"] == "settled"
    assert "is settled and cannot submit" in run("submit", "r1", "a1.csv", "--agent", "eve", code=2)
    assert "no submission" in run("verify", "r1", "--agent", "eve", code=2)
    assert "not a receipt" in run("verify", "r1", "--receipt", "a0.csv", code=2)
    assert "no database address" in run("show", "r1", "--db", "mysql:/x://", code=2)
    assert "use SQLite or PostgreSQL" in run("show", "r1", "--db", "mysql://host/x", code=2)


def test_a_key_makes_funding_happen_once(rounds):
    rounds.open(BATCH)
    rounds.fund("r1", 500, key="k")
    rounds.fund("r1", 500, key="k")
    with pytest.raises(ConflictError):
        rounds.fund("r1", 600, key="k")
    assert rounds.ledger.balances()["escrow:r1"] == 500


def test_a_copied_agent_and_its_copy_are_paid_as_one_and_are_no_peers_of_each_other(tmp_path):
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 900)
    labels = np.where(rng.random((5, 900)) < 0.7, truth, rng.integers(0, 3, (5, 900)))
    copied = np.vstack([labels, labels[:1]])

    def paid(rows, **options):
        spec = Spec("r", tuple(map(str, range(900))), ("a", "b", "c"), "600.00", **options)
        content = [(f"a{i}", {"labels": row.tolist()}) for i, row in enumerate(rows)]
        return settlement(spec, content, "", "")

    plain, alone, together = paid(copied, copies=False), paid(labels, copies=True), paid(copied, copies=True)
    one = alone.amounts["a0"]
    assert together.amounts["a0"] + together.amounts["a5"] == one
    assert plain.amounts["a0"] + plain.amounts["a5"] > 1.5 * one
    assert {a: together.amounts[a] for a in ("a1", "a2")} == {a: alone.amounts[a] for a in ("a1", "a2")}
    gone = paid(copied, copies=True, unpaid=("a0", "a1"))
    without = paid(copied[2:], copies=True)  # who takes no part is no peer and no participant either
    assert gone.amounts == {"a0": 0, "a1": 0} | {f"a{i + 2}": x for i, x in enumerate(without.amounts.values())}
    assert set(paid(copied[:2], unpaid=("a0",)).amounts.values()) == {0}
    same = paid(np.repeat(labels[:1], 3, 0), copies=True)
    assert set(same.amounts) == {"a0", "a1", "a2"}


def test_only_significant_scores_are_paid_where_the_spec_says_so():
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 3, 400)
    labels = np.where(rng.random((4, 400)) < 0.7, truth, rng.integers(0, 3, (4, 400)))
    labels[3] = rng.integers(0, 3, 400)
    content = [(f"a{i}", {"labels": row.tolist()}) for i, row in enumerate(labels)]
    spec = Spec("r", tuple(map(str, range(400))), ("a", "b", "c"), "400.00")
    sure = settlement(dataclasses.replace(spec, significance=3.0), content, "", "").amounts
    assert sure["a3"] == 0 and sure["a0"] == settlement(spec, content, "", "").amounts["a0"] > 0
    unsure = settlement(dataclasses.replace(spec, significance=1000.0), content, "", "").amounts
    assert set(unsure.values()) == {0}


def test_a_spec_that_asks_for_nothing_more_has_the_digest_it_always_had():
    plain = Spec("r1", ("t1", "t2"), ("cat", "dog"), "100.00", copies=False)
    assert plain.digest.startswith("fe24af23")
    asked = dataclasses.replace(plain, copies=True, unpaid=("ann",), significance=2.0)
    assert Spec.from_json(asked.to_json()) == asked and asked.digest != plain.digest


# what is shown is what was paid


def a_world_of_copies_and_noise():
    """Six honest agents of falling accuracy, a copy of the third, one that guesses, and one that takes no part."""
    rng = default_rng(4)
    truth = rng.integers(0, 3, 900)
    sure = np.array([0.9, 0.85, 0.8, 0.75, 0.7, 0.65])
    honest = np.where(rng.random((6, 900)) < sure[:, None], truth, rng.integers(0, 3, (6, 900)))
    labels = np.vstack([honest, honest[2:3], rng.integers(0, 3, (2, 900))])
    names = [*(f"a{i}" for i in range(6)), "copy", "guess", "out"]
    spec = Spec(
        "r", tuple(map(str, range(900))), ("a", "b", "c"), "600.00", copies=True, unpaid=("out",), significance=3.0
    )
    return spec, sorted((name, {"labels": row.tolist()}) for name, row in zip(names, labels, strict=True))


def test_the_scores_of_a_settlement_are_those_that_were_paid_by():
    """One object: its table is in the order of what pay rests on, and paying its scores again gives its amounts."""
    spec, taken = a_world_of_copies_and_noise()
    found = settlement(spec, taken, "", "")
    plain = verax.score(Reports.of([c["labels"] for _, c in taken], agents=[a for a, _ in taken], classes="abc"))
    assert [s.agent for s in plain.ranked()] != [s.agent for s in found.scores.ranked()]  # what a second scoring shows

    (linked,) = [{c.agent, *c.deviation.values()} for c in found.copies if c.agent == "a2"]
    assert linked == {"a2", "copy"} and {c.verdict for c in found.copies} == {"fails"}
    again = verax.pay(found.scores, budget="600.00", clusters=found.copies)
    assert found.amounts == {"out": 0} | {p.agent: p.amount for p in again}
    assert found.amounts == {p.agent: p.amount for p in found.payments} and found.payments.budget == 60_000
    assert found.notes == again.notes == found.payments.notes

    each = dict(found.amounts)
    each["a2"] = each["copy"] = each["a2"] + each["copy"]  # one participant, paid in equal parts
    shown = [s for s in found.scores.ranked() if s.score is not None]
    basis = [each[s.agent] for s in shown]
    assert basis == sorted(basis, reverse=True)
    for s in shown:
        assert each[s.agent] == int(60_000 * s.score / 7)  # a seventh of the budget each, by the score that is shown
    assert found.scores["a2"].score == found.scores["copy"].score
    assert found.scores["guess"].score is None and found.amounts["guess"] == 0
    assert any("no score for 'guess (" in said and "3 standard errors" in said for said in found.scores.warnings)
    assert "out" not in [s.agent for s in found.scores.scores]


def test_a_settlement_is_the_same_object_whoever_asks_and_whenever(rounds):
    spec, taken = a_world_of_copies_and_noise()
    rounds.open(spec)
    rounds.fund("r")
    for agent, content in taken:
        rounds.submit("r", agent, Reports.of([content["labels"]], tasks=spec.tasks, classes=spec.classes))
    rounds.seal("r")
    found = rounds.settle("r")
    again = rounds.settle("r")
    assert again == found and again.payments.notes == found.payments.notes and again.to_json() == found.to_json()
    assert rounds.show("r")["settlement"] == found.to_json()
    assert Settlement.from_json(json.loads(json.dumps(found.to_json()))).scores == found.scores


def test_a_market_settlement_carries_the_market(rounds):
    rounds.open(MARKET)
    rounds.fund("m1")
    rounds.fund("m1", 50_000, agent="ann")
    rounds.submit("m1", "ann", report(TRUTH))
    rounds.seal("m1")
    found = rounds.settle("m1")
    assert found.scores.money(10_000).totals == found.amounts and found.payments is None and found.copies == ()
    assert rounds.settle("m1") == found


def test_settling_scores_once_looks_for_copies_once_and_reads_the_spec_once(rounds, monkeypatch):
    from verax import transcript

    spec, taken = a_world_of_copies_and_noise()
    rounds.open(spec)
    rounds.fund("r")
    for agent, content in taken:
        rounds.submit("r", agent, Reports.of([content["labels"]], tasks=spec.tasks, classes=spec.classes))
    rounds.seal("r")
    calls = []

    def counted(name, function):
        return lambda *args, **options: calls.append(name) or function(*args, **options)

    for name in ("score", "copies", "pay", "reports_of"):
        monkeypatch.setattr(transcript, name, counted(name, getattr(transcript, name)))
    read = Spec.from_json.__func__
    monkeypatch.setattr(Spec, "from_json", classmethod(counted("spec", read)))
    Rounds(rounds.ledger).settle("r")  # one that did not open it, and so has the spec to read
    assert sorted(calls) == ["copies", "pay", "reports_of", "score", "spec"]


# documents


def a_journal_of_before():
    """The journal that an earlier version wrote: a batch with features and one who takes no part, and a market."""
    lines = (Path(__file__).parent / "journals" / "two_rounds.jsonl").read_text().splitlines()
    return [Entry(**json.loads(line)) for line in lines]


def test_a_ledger_of_an_earlier_version_is_read_and_verified():
    entries = a_journal_of_before()
    ledger = Ledger.open("sqlite://")
    with ledger._engine.begin() as connection:
        columns = ", ".join(vars(entries[0]))
        values = ", ".join(f":{name}" for name in vars(entries[0]))
        connection.execute(sa.text(f"INSERT INTO journal ({columns}) VALUES ({values})"), [vars(e) for e in entries])
    rounds = Rounds(ledger)
    assert rounds.verify("b", Head(len(entries), entries[-1].hash)) == [] == rounds.verify("m")
    assert rounds.verify() == [] and ledger.checkpoint().size == 0
    ledger.keys.key("operator")
    kept = ledger.checkpoint()  # whoever keeps it now can sign what there is
    assert kept.size == len(entries) and rounds.verify(None, kept) == [] and rounds.receipt("b", "ann").is_included
    batch, market = rounds.settle("b"), rounds.settle("m")
    assert batch.amounts == {"ann": 104, "bob": 111, "cy": 61, "di": 0}
    assert batch.payments["bob"].amount == 111 and batch.scores["bob"].score == pytest.approx(0.33559577677224733)
    assert market.amounts == market.scores.money(300).totals == {"ann": -42, "bob": 85}
    assert rounds.payment("b", "ann") == (104, 104)
    ledger.close()


def test_a_round_of_an_earlier_version_played_again_settles_to_the_same_scores_and_payments(rounds):
    before = [e for e in a_journal_of_before() if e.round == "b"]
    labels = {e.said["agent"]: e.said["content"]["labels"] for e in before if e.kind == "submit"}
    spec = Spec(
        "b", tuple(f"t{n}" for n in range(8)), ("cat", "dog"), "10.00", min_tasks=2, significance=1,
        public=tuple((float(n % 3) / 2,) for n in range(8)), unpaid=("di",), copies=False,
    )  # fmt: skip
    opened = rounds.open(spec, secret="5ec2e7")
    rounds.fund("b")
    for agent, said in labels.items():
        rounds.submit("b", agent, Reports.of([said], tasks=spec.tasks, classes=spec.classes))
    rounds.seal("b")
    first = next(e.said for e in before if e.kind == "open")
    assert {name: opened.said[name] for name in first} == first  # the spec and its digest have the bytes they had
    then = next(e.said for e in before if e.kind == "score")
    found = rounds.settle("b").to_json()
    assert found["amounts"] == then["amounts"]


def test_documents_of_rounds_are_read_by_type(rounds):
    rounds.open(BATCH)
    taken = rounds.submit("r1", "a0", report(labels_of(0)))
    document = json.loads(json.dumps(taken.to_json()))
    assert list(document) == ["round", "agent", "commitment", "nonce", "entry", "head"]
    assert Receipt.from_json(document) == taken
    for change, says in (
        ({"entry": "3"}, r"the receipt: expected `int`, got `str` at `\$.entry`"),
        ({"head": {"count": 1}}, r"missing required field `hash` at `\$.head`"),
        ({"mood": "good"}, r"something unknown at `\$.mood`"),
    ):
        with pytest.raises(InputError, match=says):
            Receipt.from_json(document | change)
    with pytest.raises(InputError, match=r"the spec: expected `str`, got `int` at `\$.tasks"):
        Spec.from_json(BATCH.to_json() | {"tasks": [1, 2]})
    with pytest.raises(InputError, match="inf is no number"):
        Spec.from_json(BATCH.to_json() | {"significance": float("inf")})
    with pytest.raises(InputError, match="nan is no number that a document can hold"):
        _ = dataclasses.replace(BATCH, floor=float("nan")).digest
    assert list(rounds.show("r1")) == [
        "format", "round", "state", "digest", "secret_hash", "spec", "submissions", "escrow", "root", "settlement",
        "head",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tasks": [1, 2]}, "expected `str`, got `int`"),
        ({"tasks": "abc"}, "expected `array`, got `str`"),
        ({"min_tasks": 2.5}, "expected `int`, got `float`"),
        ({"budget": 100.0}, "expected `str`, got `float`"),
        ({"truth": ("cat",) * 60}, "expected `int`, got `str`"),
        ({"significance": float("nan")}, "nan is no number"),
    ],
)
def test_a_spec_of_wrong_types_is_refused_in_a_sentence(rounds, change, says):
    with pytest.raises(InputError, match=says):
        rounds.open(dataclasses.replace(BATCH, **change))
    with pytest.raises(InputError, match="spec is a dict"):
        rounds.open({"round": "r1"})
    assert rounds.ledger.head().count == 0


def test_a_spec_may_be_given_lists(rounds):
    opened = rounds.open(dataclasses.replace(BATCH, tasks=list(TASKS), classes=list(CLASSES)))
    assert rounds.open(BATCH) == opened
    assert rounds.submit("r1", "a0", report(labels_of(0))).agent == "a0"
    with pytest.raises(InputError, match="a report is a list"):
        rounds.submit("r1", "a0", labels_of(0).tolist())


def test_what_is_shown_keeps_up_with_whoever_writes(tmp_path):
    here, there = (Rounds(Ledger.open(str(tmp_path / "verax.db"))) for _ in range(2))
    here.open(BATCH)
    for n, agent in enumerate(("ann", "bob", "ann"), start=1):
        there.submit(BATCH.round, agent, report([n - 1, *[0] * (len(TASKS) - 1)]))
        assert [s["agent"] for s in here.show(BATCH.round)["submissions"]] == ["ann", "bob", "ann"][:n]
        assert here.show(BATCH.round)["submissions"] == there.show(BATCH.round)["submissions"]
    assert [s["number"] for s in here.handed_in(BATCH.round, "ann")] == [1, 2]
    assert here.handed_in(BATCH.round, "an") == [] and here.balance(BATCH.round, "ann") == 0


def test_a_round_that_is_not_there_is_not_found(rounds):
    for ask in (rounds.show, rounds.public_record, rounds.seal, rounds.void, rounds.settle):
        with pytest.raises(NotFoundError, match="no round is called 'none'"):
            ask("none")
