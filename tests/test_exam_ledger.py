"""An exam in the ledger: what is shown is paid, anybody computes it again, a kill loses and repeats nothing."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import riders

from exam_blobs import CLASSES, MEMBERS, named, rows, world
from verax.errors import ConflictError, InputError, OptionError
from verax.exam import HeldBack
from verax.federation import Payroll, Referee, Sitting
from verax.keys import Key
from verax.ledger import Ledger
from verax.notices import told_in
from verax.rounds import Rounds, Submission
from verax.show.rounds import round_words
from verax.transcript import settlement

EXAM = "federation-exam"
PLAYED, POOL, HELD = world()


def payroll(tmp_path, **terms):
    return Payroll(str(tmp_path / "r.db"), **({"budget": "100.00", "full_marks": "0.05"} | terms))


def referee(pay, sitting=None, **terms):
    return Referee(POOL, rows, CLASSES, protocol="exam", exam=sitting or Sitting(HELD, copies=1), payroll=pay, **terms)


def replies(r, more=()):
    rng = np.random.default_rng(1)
    return {f"m{i}": named(w) for i, w in enumerate(r.replies)} | {
        name: named(ride(r.history, rng)) for name, ride in dict(more).items()
    }


def played(judge, rounds=PLAYED, more=()):
    outcomes = [judge.pay_round(named(r.broadcast), replies(r, more)) for r in rounds]
    assert not any(o.problem for o in outcomes), outcomes
    return outcomes


def ledger(tmp_path):
    return Rounds(Ledger.open(str(tmp_path / "r.db"), create=False))


def test_what_an_exam_shows_is_what_the_ledger_paid_and_anybody_computes_again(tmp_path):
    judge = referee(payroll(tmp_path))
    outcome = played(judge, more={"echo": riders.echo})[-1]
    paid = judge.pay_exam()
    rounds = ledger(tmp_path)
    assert rounds.verify(EXAM) == []
    assert {p.agent: p.amount for p in paid} == {a: rounds.payment(EXAM, a)[0] for a in [p.agent for p in paid]}
    with rounds.ledger.reading() as journal:
        for p in paid:
            assert journal.available(f"agent:{p.agent}", "EUR") == p.amount == rounds.payment(EXAM, p.agent)[1]
    assert paid["echo"].amount == 0 < paid["m0"].amount
    settled = rounds.show(EXAM)["settlement"]
    assert [s["score"] for s in settled["scores"]["scores"]] == [s.score for s in outcome.scores]
    unrecorded = Referee(POOL, rows, CLASSES, protocol="exam", exam=Sitting(HELD, copies=1))
    played(unrecorded, more={"echo": riders.echo})
    assert [*unrecorded.pay_exam("100.00", "0.05")] == [*paid]
    assert judge.pay_exam() == paid == referee(payroll(tmp_path)).pay_exam()
    words = "an exam, 4 classes (a, b, c, d): a gate of 3 standard errors, 0.05 full marks, trusted of examiners"
    assert round_words(rounds.show(EXAM))[0] == words
    with rounds.ledger.reading() as journal:
        told = [n for round in (EXAM, "federation-1") for n in told_in(journal, round) if n.agent == "m0"]
    assert [(n.amount, n.score is None) for n in told] == [(paid["m0"].amount, False), (None, True)]
    with pytest.raises(OptionError, match="terms are in the ledger since it was opened"):
        judge.pay_exam("100.00", "0.05")


def test_an_operator_who_pays_otherwise_than_the_record_says_is_found(tmp_path, monkeypatch):
    """It settles, signs and posts by amounts of its own."""
    judge = referee(payroll(tmp_path))
    played(judge)

    def favour(*transcript):
        found = settlement(*transcript)
        return replace(found, amounts=dict.fromkeys(found.amounts, 7))

    monkeypatch.setattr("verax.rounds.settlement", favour)
    judge.pay_exam()
    monkeypatch.undo()
    problems = ledger(tmp_path).verify(EXAM)
    assert any("'m0'" in problem and "7" in problem for problem in problems) and len(problems) >= MEMBERS


def test_the_examples_are_committed_to_before_the_first_round(tmp_path):
    referee(payroll(tmp_path))
    promised = ledger(tmp_path).show(EXAM)["spec"]["exam"]["commitments"]
    assert [*promised] == [f"m{i}" for i in range(MEMBERS)] and ledger(tmp_path).state(EXAM) == "open"
    assert HELD[0].commitment("m0") not in promised.values()  # salted by what only the operator knows
    other = [HeldBack(HELD[0].inputs, (np.asarray(HELD[0].labels) + 1) % 4, "m0"), *HELD[1:]]
    with pytest.raises(ConflictError, match="open with another spec"):
        referee(payroll(tmp_path), Sitting(other, copies=1))
    with pytest.raises(ConflictError, match="open with another spec"):
        referee(payroll(tmp_path, full_marks="0.01"))


def test_nobody_reads_the_marks_before_settlement_and_nobody_else_writes_them(tmp_path):
    judge = referee(payroll(tmp_path))
    played(judge, PLAYED[:1])
    rounds = ledger(tmp_path)
    with rounds.ledger.reading() as journal:
        (entry,) = journal.entries(EXAM, "submit")
        opened = journal.get(f"{EXAM}:open").said
    assert "means" not in entry.body and entry.said["commitment"]
    (sat,) = rounds.sat(EXAM)
    forged = Submission.of(opened, "round 2", 1, sat.to_json() | {"number": 2}, Key.new())
    with pytest.raises(ConflictError, match="is an exam, which its operator records"):
        rounds.take(forged)


def funded(tmp_path, **accounts):
    rounds = ledger(tmp_path)
    for agent, amount in accounts.items():
        rounds.fund(EXAM, amount, agent=agent, key=f"for {agent}")
    return rounds


def test_signed_pay_is_out_of_stakes_and_a_short_one_is_refused(tmp_path):
    judge = referee(payroll(tmp_path, signed=True))
    members = {f"m{i}": 40_000 for i in range(MEMBERS)}
    rounds = funded(tmp_path, **members, noise=40_000, poor=100)
    outcome = played(judge, more={"noise": riders.noised(0.3), "poor": riders.noised(0.3)})[-1]
    assert set(outcome.unpaid) == {"poor"}
    assert "its stake is short: bad luck with 400 labels can take" in outcome.unpaid["poor"]
    needed = outcome.stakes
    assert 0 < needed["m0"] < 40_000 and f"at most {max(needed.values())} (" in outcome.table()
    paid = judge.pay_exam()
    assert rounds.verify(EXAM) == []
    stakes = rounds.show(EXAM)["settlement"]["stakes"]
    assert stakes.keys() == {*members, "noise"} and all(stakes[a] >= needed[a] for a in stakes)
    balances = rounds.ledger.balances()
    for agent, stake in stakes.items():
        assert balances[f"agent:{agent}"] == 40_000 - stake + paid[agent].amount
    assert balances["agent:poor"] == 100 and balances.get(f"escrow:{EXAM}", 0) == 0
    assert sum(p.amount for p in paid) + paid.residue == paid.budget == 10_000 + sum(stakes.values())


def test_a_loss_is_never_more_than_the_stake(tmp_path):
    def away(history, rng):
        """Unlearns what the last rounds taught, by more than they did."""
        return [now - 3 * (now - before) + rng.normal(0, 0.05, now.shape).astype(now.dtype)
                for now, before in zip(history[-1], history[0], strict=True)]  # fmt: skip

    judge = referee(payroll(tmp_path, signed=True, full_marks="0.001"))
    rounds = funded(tmp_path, **{f"m{i}": 10**8 for i in range(MEMBERS)}, away=10**8)
    played(judge, more={"away": away})
    paid = judge.pay_exam()
    stakes = rounds.show(EXAM)["settlement"]["stakes"]
    assert paid["away"].amount >= 0 and rounds.verify(EXAM) == []
    assert rounds.payment(EXAM, "away")[0] >= -stakes["away"]


def test_an_exam_that_is_begun_again_goes_on_and_its_errors_are_never_too_small(tmp_path):
    whole = referee(payroll(tmp_path), name="whole")
    before = played(whole)[-1].scores
    for n, r in enumerate(PLAYED):  # another process each time
        judge = referee(payroll(tmp_path))
        outcome = judge.pay_round(named(r.broadcast), replies(r))
        assert judge.number == n + 1
    judge = referee(payroll(tmp_path))
    again = judge.pay_round(named(PLAYED[1].broadcast), replies(PLAYED[2]))  # sent again: what was recorded stands
    assert judge.number == 2 and again.scores == outcome.scores and len(ledger(tmp_path).sat(EXAM)) == 3
    for s in outcome.scores:
        assert s.score == pytest.approx(before[s.agent].score, rel=1e-9)
        assert s.stderr >= before[s.agent].stderr
    judge.pay_exam()
    assert ledger(tmp_path).verify(EXAM) == []
    late = referee(payroll(tmp_path)).pay_round(named(PLAYED[0].replies[0]), replies(PLAYED[0]))
    assert "is settled; another federation needs another name" in late.problem


def test_a_round_or_a_report_of_another_kind_is_refused(tmp_path):
    judge = referee(payroll(tmp_path))
    rounds = ledger(tmp_path)
    from verax.reports import Reports

    with pytest.raises(InputError, match="is an exam, which a federation records"):
        rounds.submit(EXAM, "m0", Reports.of([[0, 1]], agents=["m0"], classes=CLASSES))
    with pytest.raises(ConflictError, match="no submissions"):
        judge.pay_exam()
    with pytest.raises(OptionError, match="own_past needs moves that a process begun anew has not seen"):
        referee(payroll(tmp_path), Sitting(HELD, own_past="public"))


def run(folder, world_file, kill_after=None):
    """The federation's process from its beginning; killed with SIGKILL so many seconds after it is ready."""
    script = Path(__file__).with_name("exam_process.py")
    process = subprocess.Popen([sys.executable, str(script), str(folder), str(world_file)], stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"ready\n"
        if kill_after is not None:
            time.sleep(kill_after)
            process.kill()
        return process.wait(timeout=120)


@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_killed_with_sigkill_an_exam_is_sat_once_and_paid_once(tmp_path, kills):
    world_file, whole, killed = tmp_path / "world.pickle", tmp_path / "whole", tmp_path / "killed"
    world_file.write_bytes(pickle.dumps((PLAYED, POOL, HELD)))
    whole.mkdir(), killed.mkdir()
    began = time.monotonic()
    assert run(whole, world_file) == 0
    longest, rng = time.monotonic() - began, np.random.default_rng(kills)
    ends = [run(killed, world_file, kill_after=rng.uniform(0, longest / 2)) for _ in range(kills)]
    assert run(killed, world_file) == 0 and -9 in ends
    rounds, other = (Rounds(Ledger.open(str(folder / "r.db"), create=False)) for folder in (killed, whole))
    assert rounds.verify(EXAM) == [] and [sat.number for sat in rounds.sat(EXAM)] == [1, 2, 3]
    paid = json.loads((killed / "paid.json").read_text())
    settled = rounds.show(EXAM)["settlement"]
    for agent, stake in settled["stakes"].items():
        assert settled["amounts"][agent] + stake == paid[agent]
        assert rounds.ledger.balances()[f"agent:{agent}"] == 50_000 + settled["amounts"][agent]
    again, before = (each.show(EXAM)["settlement"]["scores"]["scores"] for each in (rounds, other))
    for s, t in zip(again, before, strict=True):
        assert s["score"] == pytest.approx(t["score"], rel=1e-9) and s["stderr"] >= t["stderr"] * (1 - 1e-9)


def test_an_exam_that_is_called_off_gives_every_stake_back(tmp_path):
    judge = referee(payroll(tmp_path, signed=True))
    rounds = funded(tmp_path, **{f"m{i}": 40_000 for i in range(MEMBERS)})
    played(judge, PLAYED[:1])
    rounds.void(EXAM)
    with rounds.ledger.reading() as journal:
        assert [journal.available(f"agent:m{i}", "EUR") for i in range(MEMBERS)] == [40_000] * MEMBERS
        assert journal.available("house", "EUR") == -40_000 * MEMBERS
    assert rounds.verify(EXAM) == []
    late = judge.pay_round(named(PLAYED[1].broadcast), replies(PLAYED[1]))
    assert "is void; another federation needs another name" in late.problem


def test_the_service_says_in_words_what_an_exam_pays(tmp_path):
    pytest.importorskip("fastapi", reason="the service's extra is not installed")
    from verax.service.views import rules_in_words

    for signed, said in ((False, "below 3 standard errors above 0 earns nothing"), (True, "below 0 loses, out")):
        judge = referee(payroll(tmp_path, signed=signed), name=f"signed {signed}")
        assert judge.exam is not None
        spec = ledger(tmp_path).spec(f"signed {signed}-exam")
        words = rules_in_words(spec, False, "open", datetime(2026, 1, 1))
        assert "5 holders have committed" in words[1] and said in words[2]
