"""Commit-reveal and draws: nobody reads a report before the seal, and nobody chooses what is drawn."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from test_trust import SPEC, TASKS, command, everything, report, rewritten, with_body
from verax.beacon import beacon_after, beacon_time, randomness_of, signature_in
from verax.errors import ConflictError, InputError, LedgerError
from verax.keys import Key, unseal
from verax.ledger import Ledger, Transfer
from verax.market import draw
from verax.receipts import report_finding
from verax.recorded import secret_name
from verax.rounds import Reveal, Rounds, Submission, content_of

COMMIT = dataclasses.replace(SPEC, sealing="commit", reveal_hours=24.0)
FORFEIT = dataclasses.replace(COMMIT, deposit="5.00")
ANSWERS = {"ann": (0, 1, 0, 1, 1, 0), "bob": (0, 1, 0, 1, 0, 0), "cy": (1, 1, 0, 1, 1, 0), "eve": (0, 0, 0, 1, 1, 0)}

# of drand's quicknet, as published: https://api.drand.sh/v2/beacons/quicknet/rounds/1000, and 657413
PUBLISHED = {
    1000: ("b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39",
           "fe290beca10872ef2fb164d2aa4442de4566183ec51c56ff3cd603d930e54fdd"),
    657413: ("b713718a38ae728dfd477991af2822e08d2f305e47718cef9f7848ce4050e7be41076862b98fad56e91a6b85b89cd97b",
             "fc1873a13f3545aeade8401532ef5519920652eee6b0d2b19ca12643b87b3587"),
}  # fmt: skip


@pytest.fixture
def rounds():
    ledger = Ledger.open("sqlite://")
    yield Rounds(ledger)
    ledger.close()


@pytest.fixture
def stored(tmp_path):
    ledger = Ledger.open(str(tmp_path / "verax.db"))
    yield Rounds(ledger)
    ledger.close()


def at(monkeypatch, moment):
    monkeypatch.setattr("verax.ledger.clock", lambda: moment)


def sealed(rounds, spec=COMMIT, agents=("ann", "bob", "cy"), keys=None):
    rounds.open(spec)
    rounds.fund("r")
    for agent in agents:
        if spec.held:
            rounds.fund("r", spec.held, agent=agent)
        rounds.submit("r", agent, report(ANSWERS[agent]), signer=(keys or {}).get(agent))
    rounds.seal("r")
    return rounds


# what nobody can read


def test_nobody_can_read_a_commitment_the_operator_included(stored, tmp_path):
    """Neither report nor nonce is in any file, and the round's secret opens nothing."""
    keys = {name: Key.new() for name in ("ann", "bob", "cy")}
    sealed(stored, keys=keys)
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    secret = stored.ledger.keys.get(secret_name("r", stored.show("r")["secret_hash"]))
    for name, key in keys.items():
        content = content_of(report(ANSWERS[name]), SPEC)
        made = Reveal.of(stored.public_record("r"), name, content, key)
        assert made.nonce.encode() not in files
        for form in (json.dumps(content["labels"]), json.dumps(content["labels"], separators=(",", ":"))):
            assert form.encode() not in files
    for entry in everything(stored):
        if entry.kind == "submit":
            assert entry.said["sealed"] == "" and unseal(entry.said["sealed"], secret, ["r", "ann"]) is None


def test_what_was_committed_to_is_shown_and_paid(rounds):
    sealed(rounds)
    plain = dataclasses.replace(SPEC, round="plain")
    rounds.open(plain), rounds.fund("plain")
    for name in ("ann", "bob", "cy"):
        entry = rounds.reveal("r", name, report(ANSWERS[name]))
        assert rounds.reveal("r", name, report(ANSWERS[name])) == entry
        rounds.submit("plain", name, report(ANSWERS[name]))
    rounds.seal("plain")
    assert rounds.show("r")["revealed"] == ["ann", "bob", "cy"] and rounds.show("r")["reveal_until"]
    assert "revealed" not in rounds.show("plain")
    found = rounds.settle("r")  # all have shown theirs, so that nobody need wait
    assert found.amounts == rounds.settle("plain").amounts and found.forfeits is None
    assert rounds.verify("r") == []


# copies, replays, and reveals that are not one's own


def test_a_copied_commitment_can_be_opened_by_nobody_else(rounds):
    """Eve hands in what ann handed in, under her own key, and shows what ann shows: it is not hers."""
    ann, eve = Key.new(), Key.new()
    rounds.open(COMMIT), rounds.fund("r")
    opened, content = rounds.public_record("r"), content_of(report(ANSWERS["ann"]), SPEC)
    mine = Submission.of(opened, "ann", 1, content, ann)
    rounds.take(mine)
    stolen = dataclasses.replace(mine, agent="eve", key=eve.public, signature="")
    rounds.take(dataclasses.replace(stolen, signature=eve.sign(stolen.signed_part(opened))))
    rounds.submit("r", "bob", report(ANSWERS["bob"]))
    rounds.seal("r")
    shown = Reveal.of(opened, "ann", content, ann)
    rounds.take_reveal(shown), rounds.reveal("r", "bob", report(ANSWERS["bob"]))
    for guess in (shown, Reveal.of(opened, "eve", content, eve)):
        with pytest.raises(ConflictError, match="'eve' has committed to nothing like this"):
            rounds.take_reveal(dataclasses.replace(guess, agent="eve"))


def test_a_commitment_of_another_ledger_or_key_is_worth_nothing(rounds):
    """The same name in a round of the same name elsewhere, by another's key: what is shown there opens nothing here."""
    there, ann, eve = Rounds(Ledger.open("sqlite://")), Key.new(), Key.new()
    content = content_of(report(ANSWERS["ann"]), SPEC)
    for each in (rounds, there):
        each.open(COMMIT), each.fund("r")
    mine = Submission.of(there.public_record("r"), "ann", 1, content, ann)
    stolen = dataclasses.replace(mine, key=eve.public, signature="")
    rounds.take(dataclasses.replace(stolen, signature=eve.sign(stolen.signed_part(rounds.public_record("r")))))
    rounds.submit("r", "bob", report(ANSWERS["bob"])), rounds.seal("r")
    mine, theirs = rounds.public_record("r"), there.public_record("r")
    for opened, key in ((theirs, ann), (mine, ann), (mine, eve)):
        with pytest.raises(ConflictError, match="'ann' has committed to nothing like this"):
            rounds.take_reveal(Reveal.of(opened, "ann", content, key))
    there.ledger.close()


def test_nothing_else_than_what_was_committed_to_can_be_shown(rounds):
    ann = Key.new()
    sealed(rounds, keys={"ann": ann})
    content = content_of(report(ANSWERS["ann"]), SPEC)
    true = Reveal.of(rounds.public_record("r"), "ann", content, ann)
    for change in ({"content": content_of(report(ANSWERS["bob"]), SPEC)}, {"nonce": "00" * 32},
                   {"agent": "bob"}, {"content": {**content, "more": 1}}):  # fmt: skip
        with pytest.raises(ConflictError, match="has committed to nothing like this"):
            rounds.take_reveal(dataclasses.replace(true, **change))
    rounds.take_reveal(true)


def test_a_report_that_was_replaced_cannot_be_shown(rounds):
    rounds.open(COMMIT), rounds.fund("r")
    for answers in (ANSWERS["ann"], ANSWERS["eve"]):
        rounds.submit("r", "ann", report(answers))
    rounds.submit("r", "bob", report(ANSWERS["bob"])), rounds.seal("r")
    with pytest.raises(ConflictError, match="'ann' has committed to nothing like this"):
        rounds.reveal("r", "ann", report(ANSWERS["ann"]))
    rounds.reveal("r", "ann", report(ANSWERS["eve"]))


# the phase and its end


def test_showing_has_its_time_and_settling_waits_for_it(rounds, monkeypatch):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    at(monkeypatch, now)
    rounds.open(COMMIT), rounds.fund("r")
    for name in ("ann", "bob", "cy"):
        rounds.submit("r", name, report(ANSWERS[name]))
    with pytest.raises(ConflictError, match="is open and cannot reveal"):
        rounds.reveal("r", "ann", report(ANSWERS["ann"]))
    at(monkeypatch, now + timedelta(days=9))  # sealed late, and the time to show is what it was
    rounds.seal("r")
    for name in ("ann", "bob"):
        rounds.reveal("r", name, report(ANSWERS[name]))
    with pytest.raises(ConflictError, match=r"1 of round 'r' may show what they committed to until 2026-01-11"):
        rounds.settle("r")
    at(monkeypatch, now + timedelta(days=10))
    with pytest.raises(ConflictError, match="it is too late"):
        rounds.reveal("r", "cy", report(ANSWERS["cy"]))
    found = rounds.settle("r")
    assert found.forfeits == {"cy": 0} and "cy" not in found.amounts and rounds.verify("r") == []


def test_who_shows_nothing_loses_its_deposit_to_those_who_do(rounds, monkeypatch):
    """Not to the operator: who runs the round would else be paid for what it keeps others from showing."""
    now = datetime.now(UTC)
    sealed(rounds, FORFEIT, tuple(ANSWERS))
    with pytest.raises(LedgerError, match="'agent:ann' has 0 EUR to spend"), rounds.ledger.writing() as journal:
        journal.transfer(Transfer("t", "agent:ann", "agent:bob", 1, "x", "r", "EUR"))
    for name in ("ann", "bob", "cy"):
        rounds.reveal("r", name, report(ANSWERS[name]))
    at(monkeypatch, now + timedelta(hours=25))
    found = rounds.settle("r")
    assert found.forfeits == {"eve": -500, "ann": 166, "bob": 166, "cy": 166}
    balances = rounds.ledger.balances()
    assert balances["agent:eve"] == 0 and balances["escrow:r"] == 0
    assert balances["agent:ann"] == 500 + 166 + found.amounts["ann"] == 500 + found.due["ann"]
    assert rounds.payment("r", "eve") == (-500, -500) and rounds.verify("r") == []
    assert sum(balances.values()) == 0


def test_a_deposit_is_held_once_and_let_go_of_where_the_round_is_void(rounds):
    rounds.open(FORFEIT), rounds.fund("r"), rounds.fund("r", 500, agent="ann")
    for answers in (ANSWERS["ann"], ANSWERS["eve"]):
        rounds.submit("r", "ann", report(answers))
    with pytest.raises(LedgerError, match="'agent:bob' has 0 EUR to spend and 500 are asked"):
        rounds.submit("r", "bob", report(ANSWERS["bob"]))
    rounds.void("r")
    assert rounds.ledger.balances()["agent:ann"] == 500


def test_a_step_that_is_not_shown_forfeits_its_stake_and_moves_no_level(rounds, monkeypatch):
    """Who sees from others' reports that its step would lose, and keeps it to itself, loses the most there is."""
    now = datetime.now(UTC)
    spec = dataclasses.replace(COMMIT, kind="market", truth=(0, 1, 0, 1, 1, 0))
    rounds.open(spec), rounds.fund("r")
    for name in ("ann", "eve", "bob"):
        rounds.fund("r", spec.stake, agent=name)
        rounds.submit("r", name, report(ANSWERS[name]))
    rounds.seal("r")
    for name in ("ann", "bob"):
        rounds.reveal("r", name, report(ANSWERS[name]))
    at(monkeypatch, now + timedelta(hours=25))
    found = rounds.settle("r")
    assert [step.agent for step in found.scores.payments] == ["ann", "bob"]
    assert found.forfeits == {"eve": -spec.stake, "ann": spec.stake // 2, "bob": spec.stake // 2}
    assert rounds.ledger.balances()["agent:eve"] == 0 and rounds.verify("r") == []


def test_who_shows_one_step_and_not_another_has_no_part_in_what_is_forfeited(rounds, monkeypatch):
    now = datetime.now(UTC)
    spec = dataclasses.replace(COMMIT, kind="market", truth=(0, 1, 0, 1, 1, 0))
    rounds.open(spec), rounds.fund("r"), rounds.fund("r", spec.stake, agent="ann")
    rounds.fund("r", 2 * spec.stake, agent="eve")
    for name, answers in (("eve", ANSWERS["cy"]), ("ann", ANSWERS["ann"]), ("eve", ANSWERS["eve"])):
        rounds.submit("r", name, report(answers))
    rounds.seal("r")
    for name, answers in (("ann", ANSWERS["ann"]), ("eve", ANSWERS["cy"])):
        rounds.reveal("r", name, report(answers))
    at(monkeypatch, now + timedelta(hours=25))
    assert rounds.settle("r").forfeits == {"eve": -spec.stake, "ann": spec.stake}
    assert rounds.verify("r") == []


def test_of_a_round_that_nobody_shows_anything_of_nothing_is_paid(rounds, monkeypatch):
    now = datetime.now(UTC)
    sealed(rounds, FORFEIT)
    at(monkeypatch, now + timedelta(hours=25))
    found = rounds.settle("r")
    assert not any(found.amounts.values()) and found.forfeits == {"ann": -500, "bob": -500, "cy": -500}
    assert rounds.verify("r") == []


REWRITES = {
    "shown by the operator for another": lambda es: [
        with_body(e, content={"labels": [1] * 6}) if e.kind == "reveal" else e for e in es
    ],
    "what was shown left out": lambda es: [e for e in es if not (e.kind == "reveal" and e.said["agent"] == "cy")],
    "forfeits for the operator": lambda es: [
        with_body(e, settlement=e.said["settlement"] | {"forfeits": {"cy": -500}}) if e.kind == "score" else e
        for e in es
    ],
}


@pytest.mark.parametrize("name", REWRITES)
def test_what_was_shown_cannot_be_rewritten(stored, name):
    sealed(stored, FORFEIT)
    for agent in ("ann", "bob", "cy"):
        stored.reveal("r", agent, report(ANSWERS[agent]))
    stored.settle("r")
    assert rewritten(stored, lambda entries: entries) == []
    assert rewritten(stored, REWRITES[name]) != []


# draws that nobody can grind


DRAWN = dataclasses.replace(FORFEIT, over="one")


@pytest.mark.parametrize(
    "change",
    [{"over": "one"}, {"over": "one", "sealing": "commit", "reveal_hours": 1.0}, {"kind": "survey", "places": 3}],
)
def test_a_round_whose_draw_somebody_could_choose_is_not_opened(rounds, change):
    with pytest.raises(InputError, match="this round draws, and who holds its secret could choose what"):
        rounds.open(dataclasses.replace(SPEC, **change))


def test_the_operator_could_grind_the_draw_of_a_sealed_round_and_cannot_of_a_committed_one(rounds):
    """The attack: who has the secret and all reports tries reports of its own until the draw suits, before the seal.

    Where reports are sealed to it, it finds the root that draws whom it wants, and gets it. Where they are committed
    to, the same search, by all that it knows then, gets it no oftener than no search.
    """
    rounds.open(DRAWN)
    opened, puppet = rounds.public_record("r"), Key.new()

    def seed(root, chance):
        return hashlib.sha256(f"{root}:secret{chance and ':'}{chance}".encode()).hexdigest()

    def chance_of(nonces):
        return hashlib.sha256(json.dumps(sorted(nonces), separators=(",", ":")).encode()).hexdigest()

    def nonce(labels, key):
        return Reveal.of(opened, "x", {"labels": labels}, key).nonce

    own = [nonce([n], puppet) for n in range(200)]
    ground, committed = [], []
    for world in range(60):
        roots = [f"root {world} {n}" for n in range(200)]
        ground.append(draw(seed(next(r for r in roots if draw(seed(r, ""), 5) == 0), ""), 5) == 0)
        root, mine = next(
            each for each in zip(roots, own, strict=True) if draw(seed(each[0], chance_of([each[1]])), 5) == 0
        )
        others = [nonce([0, 1], Key.new()) for _ in range(3)]
        committed.append(draw(seed(root, chance_of([mine, *others])), 5) == 0)
    assert all(ground) and sum(committed) < 30  # 12 of 60 by luck, and that is six errors above


def test_every_nonce_that_is_shown_enters_the_draw(rounds):
    sealed(rounds, DRAWN)
    for name in ("ann", "bob", "cy"):
        rounds.reveal("r", name, report(ANSWERS[name]))
    found = rounds.settle("r")
    with rounds.ledger.reading() as journal:
        nonces = sorted(shown["nonce"] for shown in journal.said("r", "reveal"))
    assert len({*nonces}) == 3
    assert found.chance == hashlib.sha256(json.dumps(nonces, separators=(",", ":")).encode()).hexdigest()
    assert rounds.verify("r") == []


# a beacon


@pytest.mark.parametrize("number", PUBLISHED)
def test_published_beacons_are_told_from_all_others(number):
    signature, randomness = PUBLISHED[number]
    assert randomness_of(number, signature) == randomness
    document = json.dumps({"round": number, "randomness": randomness, "signature": signature})
    assert signature_in(document, number) == signature
    flipped = f"{signature[:-1]}{'0' if signature[-1] != '0' else '1'}"
    other = PUBLISHED[1000 if number != 1000 else 657413][0]
    identity = "c0" + "00" * 47
    for wrong in (other, flipped, identity, "", "zz", "{}", document.replace(str(number), "7"), "[1]"):
        with pytest.raises(InputError, match=r"not the signature of beacon|not JSON"):
            signature_in(wrong, number)
    with pytest.raises(InputError, match="not the signature of beacon"):
        signature_in(signature, number + 1)


def test_a_beacon_comes_every_three_seconds():
    assert beacon_time(1) == datetime(2023, 8, 23, 15, 9, 27, tzinfo=UTC)
    assert [beacon_after(beacon_time(9) + timedelta(seconds=s)) for s in (-3, -1, 0, 1, 3)] == [8, 9, 9, 10, 10]
    for wrong in (0, -1, 2**60):
        with pytest.raises(InputError, match="give the number of a beacon to come"):
            beacon_time(wrong)


BEACON = dataclasses.replace(
    SPEC, over="one", beacon=1000, deadline=(beacon_time(1000) - timedelta(minutes=10)).isoformat()
)


def played_with_beacon(rounds, monkeypatch, before=timedelta(minutes=5)):
    at(monkeypatch, beacon_time(1000) - timedelta(hours=1))
    rounds.open(BEACON), rounds.fund("r")
    for name in ("ann", "bob", "cy"):
        rounds.submit("r", name, report(ANSWERS[name]))
    at(monkeypatch, beacon_time(1000) - before)
    rounds.seal("r")
    at(monkeypatch, beacon_time(1000) + timedelta(seconds=2))


def test_a_beacon_decides_what_is_drawn_and_everybody_can_check_it(stored, monkeypatch):
    played_with_beacon(stored, monkeypatch)
    with pytest.raises(ConflictError, match="waits for beacon 1000, of 2023-08-23 15:59:24"):
        stored.settle("r")
    with pytest.raises(InputError, match="not the signature of beacon 1000"):
        stored.give_beacon("r", PUBLISHED[657413][0])
    entry = stored.give_beacon("r", PUBLISHED[1000][0])
    assert stored.give_beacon("r", json.dumps({"round": 1000, "signature": PUBLISHED[1000][0]})) == entry
    found = stored.settle("r")
    assert found.chance == hashlib.sha256(json.dumps([PUBLISHED[1000][1]]).encode()).hexdigest()
    assert stored.verify("r") == []
    forged = rewritten(stored, lambda es: [
        with_body(e, signature=PUBLISHED[657413][0]) if e.kind == "beacon" else e for e in es
    ])  # fmt: skip
    assert "not the signature of beacon 1000" in " ".join(forged)


def test_a_beacon_draws_the_survey_that_closes_a_market_of_sealed_reports(rounds, monkeypatch):
    at(monkeypatch, beacon_time(1000) - timedelta(hours=1))
    spec = dataclasses.replace(BEACON, kind="survey", over=None, places=3)
    rounds.open(spec, secret="5ec2e7"), rounds.fund("r"), rounds.fund("r", spec.stake, agent="ann")
    rounds.submit("r", "ann", report(ANSWERS["ann"]))
    for name in ("bob", "cy", "eve"):
        rounds.submit("r", name, report(ANSWERS[name]), survey=True)
    at(monkeypatch, beacon_time(1000) - timedelta(minutes=5))
    root = rounds.seal("r").said["root"]
    at(monkeypatch, beacon_time(1000) + timedelta(seconds=2))
    rounds.give_beacon("r", PUBLISHED[1000][0])
    found = rounds.settle("r").scores.survey
    chance = hashlib.sha256(json.dumps([PUBLISHED[1000][1]]).encode()).hexdigest()
    assert found.seed == hashlib.sha256(f"{root}:5ec2e7:{chance}".encode()).hexdigest()
    assert found.drawn == ["bob", "cy", "eve"][draw(found.seed, 3)] and rounds.verify("r") == []


def test_a_receipt_of_a_commitment_shows_what_was_committed_to(rounds):
    """By the nonce that its holder keeps, or by the key that makes it again; by nothing else."""
    keys = {name: Key.new() for name in ("ann", "bob", "cy")}
    rounds.open(COMMIT)
    taken = rounds.submit("r", "ann", report(ANSWERS["ann"]), signer=keys["ann"])
    bare, kept = rounds.receipt("r", "ann"), rounds.receipt("r", "ann", nonce=taken.nonce)
    assert report_finding(kept, report(ANSWERS["ann"])).holds
    assert report_finding(bare, report(ANSWERS["ann"]), keys["ann"]).holds
    assert not report_finding(kept, report(ANSWERS["bob"])).holds
    assert not report_finding(bare, report(ANSWERS["ann"]), keys["bob"]).holds


def test_what_is_sealed_once_the_beacon_is_known_is_refused(rounds, monkeypatch):
    with pytest.raises(ConflictError, match="could have been chosen by it; void the round"):
        played_with_beacon(rounds, monkeypatch, before=timedelta(0))
    rounds.void("r")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"deadline": None}, "give a deadline before it"),
        ({"deadline": beacon_time(1000).isoformat()}, "give a deadline before it"),
        ({"beacon": 0}, "give the number of a beacon to come"),
        ({"over": None}, "draws nothing that a beacon could decide"),
        ({"deposit": "1.00"}, "are for commitments"),
        ({"reveal_hours": 1.0}, "are for commitments"),
        ({"sealing": "commit"}, "say how long commitments may be shown"),
        ({"sealing": "commit", "reveal_hours": 0.0}, "say how long commitments may be shown"),
        ({"sealing": "commit", "reveal_hours": 1.0, "deposit": "0.00"}, "the deposit is 0.00"),
        ({"sealing": "box"}, "box"),
    ],
)
def test_terms_of_sealing_that_do_not_go_together_are_refused(rounds, monkeypatch, change, says):
    at(monkeypatch, beacon_time(1000) - timedelta(hours=1))
    with pytest.raises(InputError, match=says):
        rounds.open(dataclasses.replace(BEACON, **change))


def test_a_sealed_round_has_nothing_to_show(rounds):
    rounds.open(SPEC), rounds.submit("r", "ann", report(ANSWERS["ann"]))
    with pytest.raises(ConflictError, match="there is nothing to reveal"):
        rounds.reveal("r", "ann", report(ANSWERS["ann"]))
    with pytest.raises(ConflictError, match="waits for no beacon"):
        rounds.give_beacon("r", PUBLISHED[1000][0])


def test_commitments_by_command(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tasks.csv").write_text("task\n" + "".join(f"{t}\n" for t in TASKS))
    asked = "--tasks", "tasks.csv", "--classes", "no,yes", "--budget", "10.00", "--min-tasks", "2"
    secretly = "--sealing", "commit", "--reveal-hours", "24", "--deposit", "1.00", "--over", "one"
    opened = command("round", "open", "r", *asked, *secretly)
    assert opened.exit_code == 0, opened.stderr
    command("round", "fund", "r")
    for name in ("ann", "bob", "cy"):
        rows = "".join(f"{t},{('no', 'yes')[k]}\n" for t, k in zip(TASKS, ANSWERS[name], strict=True))
        Path(f"{name}.csv").write_text("task,label\n" + rows)
        command("key", "new", f"{name}.pem"), command("round", "fund", "r", "--agent", name, "--amount", "1.00")
        mine = f"{name}.csv", "--agent", name, "--sign", f"{name}.pem"
        assert command("round", "submit", "r", *mine).exit_code == 0
    assert command("round", "seal", "r").exit_code == 0
    waiting = command("round", "settle", "r")
    assert waiting.exit_code == 2 and "3 of round 'r' may show" in waiting.stderr
    for name in ("ann", "bob", "cy"):
        wrong = command("round", "reveal", "r", f"{name}.csv", "--agent", name)
        assert wrong.exit_code == 2 and "the key that were handed in" in wrong.stderr
        shown = command("round", "reveal", "r", f"{name}.csv", "--agent", name, "--sign", f"{name}.pem")
        assert shown.exit_code == 0 and json.loads(shown.stdout)["agent"] == name
    assert command("round", "settle", "r").exit_code == 0
    assert command("round", "verify", "r").exit_code == 0
    late = command("round", "open", "b", *asked, "--over", "one", "--beacon", "2126-01-02", "--deadline", "2126-01-01")
    shown = json.loads(late.stdout)
    assert shown["beacon_at"] == "2126-01-02T00:00:00+00:00" and beacon_time(shown["beacon"]).year == 2126
    assert "could choose what" in command("round", "open", "c", *asked, "--over", "one").stderr
    assert "choose one of key, commit" in command("round", "open", "c", *asked, "--sealing", "box").stderr
