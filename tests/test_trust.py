"""Attacks that worked once: whoever tries is an agent, a stranger with the file, or the operator. Each must fail."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
import os
import stat
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import sqlalchemy as sa
from click.testing import Result
from typer.testing import CliRunner

import verax
from verax import wire
from verax.cli import app
from verax.errors import ConflictError, InputError, LedgerError
from verax.keys import Key, checked_public, seal, sealing_key, verifies
from verax.ledger import Entry, Journal, Ledger, Transfer
from verax.payroll import Payroll
from verax.recorded import secret_name
from verax.rounds import Rounds, Spec, Submission, commitment, content_of
from verax.service.shared import Settings

TASKS = tuple(f"t{n}" for n in range(6))
SPEC = Spec("r", TASKS, ("no", "yes"), "100.00", min_tasks=2)
MARKET = dataclasses.replace(SPEC, kind="market", truth=(0, 1, 1, 0, 1, 0))


def report(labels) -> verax.Reports:
    return verax.Reports.of([list(labels)], tasks=TASKS, classes=SPEC.classes)


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


def played(rounds: Rounds, spec: Spec = SPEC) -> Rounds:
    rounds.open(spec)
    rounds.fund(spec.round)
    for agent, labels in (("ann", (0, 1, 0, 1, 1, 0)), ("bob", (0, 1, 0, 1, 0, 0)), ("cy", (1, 1, 0, 1, 1, 0))):
        rounds.submit(spec.round, agent, report(labels))
    rounds.seal(spec.round)
    return rounds


def everything(rounds: Rounds) -> list[Entry]:
    with rounds.ledger.reading() as journal:
        return list(journal.entries())


# names and keys of requests


@pytest.mark.parametrize("first", ["k", "k:stake", "k:stake:release", "k:stake:release:x:stake"])
@pytest.mark.parametrize("second", ["k:stake:release:x", "k%3Astake", "stake:k"])
def test_no_key_of_a_request_stands_in_the_way_of_another(rounds, first, second):
    rounds.open(MARKET)
    rounds.fund("r")
    rounds.fund("r", 50_000, agent="eve")
    rounds.submit("r", "eve", report((0, 1, 1, 0, 1, 0)), key=first)
    rounds.submit("r", "eve", report((0, 1, 1, 0, 1, 1)), key=second)
    rounds.seal("r")
    rounds.settle("r")
    assert rounds.verify("r") == []


@pytest.mark.parametrize("name", ["ann:b", "residue", "a%3Ab", "ann/../bob", "ann' OR 1=1 --", "%", "_"])
def test_no_name_of_an_agent_stands_in_the_way_of_another(rounds, name):
    rounds.open(SPEC)
    rounds.fund("r")
    for agent in ("ann", name):
        rounds.submit("r", agent, report((0, 1, 0, 1, 1, 0)))
    rounds.seal("r")
    assert {*rounds.settle("r").amounts} == {"ann", name} and rounds.verify("r") == []


def test_a_name_that_is_written_like_another_is_refused(rounds):
    rounds.open(SPEC)
    rounds.submit("r", "Zoë", report((0, 1, 0, 1, 1, 0)))
    for alike in ("ZOË", "zoe\u0308", "Ｚoë"):
        with pytest.raises(ConflictError, match="is written like 'Zoë'"):
            rounds.submit("r", alike, report((0, 1, 0, 1, 0, 0)))
    assert len(rounds.show("r")["submissions"]) == 1


def test_capitals_in_a_name_are_told_apart_where_a_report_is_replaced(rounds):
    """LIKE in SQLite takes Ann for ann: what stands for one must never be found for the other."""
    with rounds.ledger.writing() as journal:
        journal.record("r:submit:Ann:1", "submit", "r", {})
        assert journal.last("r", "submit", "r:submit:ann:") is None
        assert journal.count("r", "submit", "r:submit:Ann:") == 1


# who is who


def test_nobody_hands_in_as_somebody_else(rounds):
    ann, eve = Key.new(), Key.new()
    rounds.open(SPEC)
    rounds.submit("r", "ann", report((0, 1, 0, 1, 1, 0)), signer=ann)
    for signer in (eve, None):  # nor does the operator
        with pytest.raises(ConflictError, match="'ann' is another key's"):
            rounds.submit("r", "ann", report((1, 0, 1, 0, 0, 1)), signer=signer)
    rounds.submit("r", "ann", report((0, 1, 0, 1, 1, 1)), signer=ann)
    assert [s["agent"] for s in rounds.show("r")["submissions"]] == ["ann", "ann"]


def test_one_key_has_one_name_in_a_round(rounds):
    key = Key.new()
    rounds.open(SPEC)
    rounds.submit("r", "ann", report((0, 1, 0, 1, 1, 0)), signer=key)
    with pytest.raises(ConflictError, match="this key is already 'ann'"):
        rounds.submit("r", "bob", report((0, 1, 0, 1, 1, 0)), signer=key)


# the points of small order, as every list of them has them, and the two that are not written canonically
SMALL = [
    "01" + 31 * "00", "01" + 30 * "00" + "80", "ec" + 30 * "ff" + "7f", 32 * "00", 31 * "00" + "80",
    "ee" + 30 * "ff" + "7f", "ed" + 30 * "ff" + "7f",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
]  # fmt: skip


@pytest.mark.parametrize("point", SMALL)
def test_a_key_by_which_anybody_can_sign_is_no_key(point):
    forged = [bytes.fromhex(each) + bytes(32) for each in SMALL]
    assert not any(verifies(point, signature, b"%d" % n) for signature in forged for n in range(16))
    with pytest.raises(InputError, match="is no public key"):
        checked_public(point, "ann")


def test_a_list_admits_its_keys_and_nobody_else(rounds):
    ann, eve = Key.new(), Key.new()
    rounds.open(dataclasses.replace(SPEC, admitted={"ann": ann.public, "bob": Key.new().public}))
    with pytest.raises(ConflictError, match="'eve' is not among the 2 that round 'r' admits"):
        rounds.submit("r", "eve", report((0, 1, 0, 1, 1, 0)), signer=eve)
    with pytest.raises(ConflictError, match="'ann' of round 'r' is another key"):
        rounds.submit("r", "ann", report((0, 1, 0, 1, 1, 0)), signer=eve)
    rounds.submit("r", "ann", report((0, 1, 0, 1, 1, 0)), signer=ann)
    with pytest.raises(InputError, match="the agent 'bob': 'xyz' is no public key"):
        rounds.open(dataclasses.replace(SPEC, round="r2", admitted={"bob": "xyz"}))


def made_elsewhere(rounds: Rounds, round: str, agent: str, number: int, labels, key: Key) -> Submission:
    """What an agent makes on a machine of its own, from what everybody may know of a round."""
    with rounds.ledger.reading() as journal:
        opened = journal.get(f"{round}:open").said
    return Submission.of(opened, agent, number, content_of(report(labels), SPEC), key)


def test_a_report_sealed_elsewhere_is_taken_and_counts(rounds):
    keys = {name: Key.new() for name in ("ann", "bob", "cy")}
    rounds.open(SPEC)
    rounds.fund("r")
    for n, (name, key) in enumerate(keys.items()):
        rounds.take(made_elsewhere(rounds, "r", name, 1, np.roll((0, 1, 0, 1, 1, 0), n // 2), key))
    rounds.seal("r")
    assert {*rounds.settle("r").amounts} == {*keys} and rounds.verify("r") == []


def test_a_signature_is_for_one_round_one_agent_one_content_and_one_place(rounds):
    ann, eve = Key.new(), Key.new()
    rounds.open(SPEC)
    rounds.open(dataclasses.replace(SPEC, round="r2"))
    made = made_elsewhere(rounds, "r", "ann", 1, (0, 1, 0, 1, 1, 0), ann)
    other = made_elsewhere(rounds, "r", "ann", 1, (0, 1, 0, 1, 1, 1), ann)
    for change in ({"round": "r2"}, {"agent": "eve"}, {"number": 2}, {"commitment": other.commitment},
                   {"sealed": other.sealed}, {"key": eve.public}, {"signature": other.signature}):  # fmt: skip
        with pytest.raises(ConflictError, match="is not signed by its key"):
            rounds.take(dataclasses.replace(made, **change))
    rounds.take(made)
    rounds.take(made_elsewhere(rounds, "r", "ann", 2, (1, 1, 0, 1, 1, 0), ann))
    with pytest.raises(ConflictError, match="'ann' has handed in 2 times and this is its number 1"):
        rounds.take(made)  # an old report, handed in again by whoever saw it pass


def test_the_same_name_elsewhere_is_another_round(tmp_path):
    """A round of the same name and spec in another ledger has another secret, and so other signatures."""
    one, other = (Rounds(Ledger.open("sqlite://")) for _ in range(2))
    for rounds in (one, other):
        rounds.open(SPEC)
    made = made_elsewhere(one, "r", "ann", 1, (0, 1, 0, 1, 1, 0), Key.new())
    with pytest.raises(ConflictError, match="is not signed by its key for this round"):
        other.take(made)
    one.ledger.close(), other.ledger.close()


def test_only_who_opened_a_round_seals_settles_and_voids_it(tmp_path):
    path = str(tmp_path / "verax.db")
    played(Rounds(Ledger.open(path)))
    stranger = Rounds(Ledger.open(path, keys=tmp_path / "other"))
    for step in (stranger.settle, stranger.void):
        with pytest.raises((ConflictError, LedgerError), match=r"another operator|the secret of round 'r' is not in"):
            step("r")
    with pytest.raises(ConflictError, match="another operator"):
        stranger.submit("r", "dan", report((0, 1, 0, 1, 1, 0)))
    Rounds(Ledger.open(path)).open(dataclasses.replace(SPEC, round="r2"))
    before = stranger.ledger.head()
    for step in (stranger.fund, stranger.void):
        with pytest.raises(ConflictError, match="another operator"):
            step("r2")
    assert stranger.ledger.head() == before  # what began was taken back
    assert Rounds(Ledger.open(path)).settle("r").amounts


def test_a_submission_that_cannot_be_opened_harms_its_agent_alone(rounds):
    eve = Key.new()
    rounds.open(SPEC)
    rounds.fund("r")
    for agent, labels in (("ann", (0, 1, 0, 1, 1, 0)), ("bob", (0, 1, 0, 1, 0, 0)), ("cy", (1, 1, 0, 1, 1, 0))):
        rounds.submit("r", agent, report(labels))
    made = made_elsewhere(rounds, "r", "eve", 1, (0, 1, 0, 1, 1, 0), eve)
    with rounds.ledger.reading() as journal:
        opened = journal.get("r:open").said
    broken = dataclasses.replace(made, sealed="bm90aGluZw==", signature="")
    rounds.take(dataclasses.replace(broken, signature=eve.sign(broken.signed_part(opened))))
    rounds.seal("r")
    amounts = rounds.settle("r").amounts
    assert amounts["eve"] == 0 and amounts["ann"] > 0 and rounds.verify("r") == []


# what is hidden


def test_the_truth_cannot_be_guessed_from_what_is_shown(rounds):
    spec = dataclasses.replace(SPEC, truth=(0, 1, 1, 0, 1, 0))
    rounds.open(spec)
    shown = json.dumps(rounds.show("r"))
    for guess in itertools.product((0, 1), repeat=6):
        whole = spec.to_json() | {"truth": list(guess)}
        for form in (whole, list(guess), ["truth", list(guess)]):
            assert hashlib.sha256(wire.canonical(form).encode()).hexdigest() not in shown


def test_neither_reports_nor_truth_nor_secret_are_in_the_database_before_settlement(stored, tmp_path):
    spec = dataclasses.replace(SPEC, truth=(0, 1, 1, 0, 1, 0))
    played(stored, spec)
    secret_hash = stored.show("r")["secret_hash"]
    secret = stored.ledger.keys.get(secret_name("r", secret_hash))
    held = (tmp_path / "verax.db").read_bytes()
    assert secret is not None and secret.encode() not in held
    for hidden in (b"[0,1,1,0,1,0]", b"[0,1,0,1,1,0]", b"[0, 1, 1, 0, 1, 0]"):
        assert hidden not in held
    stored.settle("r")
    assert secret in json.dumps(stored.show("r"))  # and then everybody may check
    assert sealing_key(secret) == everything(stored)[0].said["seal_to"]


def test_a_report_cannot_be_guessed_from_the_heads_of_the_journal(rounds):
    """Who knows the entry before and the hash after might try every report of few tasks, were it not sealed."""
    rounds.open(SPEC)
    before = rounds.ledger.head()
    rounds.submit("r", "ann", report((0, 1, 0, 1, 1, 0)))
    entry = everything(rounds)[-1]
    for guess in itertools.product((0, 1), repeat=6):
        body = wire.canonical({"agent": "ann", "commitment": entry.said["commitment"], "content": {"labels": guess}})
        assert dataclasses.replace(entry, body=body).sealed_by(before.hash) != entry.hash


@pytest.mark.skipif(os.name != "posix", reason="files have no owner here")
def test_files_are_their_owners_alone(stored, tmp_path):
    played(stored)
    for path in [tmp_path / "verax.db", *(tmp_path / "verax.db.keys").iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((tmp_path / "verax.db.keys").stat().st_mode) == 0o700


def test_without_its_secret_a_round_is_not_settled_and_says_so(stored, tmp_path):
    played(stored)
    for path in (tmp_path / "verax.db.keys").glob("r.*"):
        path.unlink()
    with pytest.raises(LedgerError, match=r"the secret of round 'r' is not in .*keys; give the folder with keys="):
        stored.settle("r")


# rewriting


def rewritten(rounds: Rounds, change) -> list[str]:
    """What verify says once an operator with every right has changed entries and made every hash fit again."""
    entries = change(everything(rounds))
    fresh = Ledger.open("sqlite://", keys=rounds.ledger.keys.folder)
    previous = "0" * 64
    with fresh._engine.begin() as connection:
        for seq, entry in enumerate(entries, start=1):
            made = dataclasses.replace(entry, seq=seq)
            made = dataclasses.replace(made, hash=made.sealed_by(previous))
            previous = made.hash
            columns = ", ".join(vars(made))
            values = ", ".join(f":{name}" for name in vars(made))
            connection.execute(sa.text(f"INSERT INTO journal ({columns}) VALUES ({values})"), vars(made))
    found = Rounds(fresh).verify("r")
    fresh.close()
    return found


def with_body(entry: Entry, **change) -> Entry:
    return dataclasses.replace(entry, body=wire.canonical(entry.said | change))


def another_agents_report(entries):
    ann, bob = (e for e in entries if e.kind == "submit" and e.said["agent"] in ("ann", "bob"))
    swapped = with_body(ann, sealed=bob.said["sealed"], commitment=bob.said["commitment"])
    return [swapped if e is ann else e for e in entries]


def a_sock_puppet(entries):
    place = next(n for n, e in enumerate(entries) if e.kind == "submit")
    puppet = with_body(entries[place], agent="puppet")
    return [*entries[:place], dataclasses.replace(puppet, id="r:submit:puppet:1"), *entries[place:]]


def other_scores(entries):
    return [
        with_body(e, settlement=e.said["settlement"] | {"amounts": {"ann": 9_000, "bob": 0, "cy": 0}})
        if e.kind == "score" else e
        for e in entries
    ]  # fmt: skip


def an_appended_payment(entries):
    paid = next(e for e in entries if e.kind == "posted" and e.said["code"] == "pay")
    return [*entries, dataclasses.replace(paid, id="r:pay:again")]


REWRITES = {
    "another root": lambda es: [with_body(e, root="0" * 64) if e.kind == "seal" else e for e in es],
    "another agent's report": another_agents_report,
    "a sock puppet": a_sock_puppet,
    "a submission left out": lambda es: [e for e in es if not (e.kind == "submit" and e.said["agent"] == "cy")],
    "falsified scores": other_scores,
    "an appended payment": an_appended_payment,
    "another budget": lambda es: [
        with_body(e, spec=e.said["spec"] | {"budget": "900.00"}) if e.kind == "open" else e for e in es
    ],
    "another secret": lambda es: [with_body(e, secret_hash="0" * 64) if e.kind == "open" else e for e in es],
    "times that go back": lambda es: [dataclasses.replace(e, at="1999") if e.kind == "seal" else e for e in es],
    "another number": lambda es: [with_body(e, number=7) if e.kind == "submit" else e for e in es],
}  # fmt: skip


@pytest.mark.parametrize("name", REWRITES)
def test_a_rewritten_round_does_not_verify_even_where_all_hashes_fit(stored, name):
    played(stored).settle("r")
    assert rewritten(stored, lambda entries: entries) == []
    assert rewritten(stored, REWRITES[name]) != [], name


def test_a_journal_without_its_guards_is_not_opened(stored, tmp_path):
    played(stored)
    path = tmp_path / "verax.db"
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER journal_no_delete")
    engine.dispose()
    with pytest.raises(LedgerError, match="has lost its guards journal_no_delete"):
        Ledger.open(str(path))


# time


def test_a_clock_that_is_set_back_takes_no_late_submission(rounds, monkeypatch):
    now = datetime.now(UTC)
    rounds.open(dataclasses.replace(SPEC, deadline=(now + timedelta(hours=1)).isoformat()))
    monkeypatch.setattr("verax.ledger.clock", lambda: now + timedelta(hours=2))
    rounds.open(dataclasses.replace(SPEC, round="other"))
    for back in (now, now + timedelta(minutes=59)):
        monkeypatch.setattr("verax.ledger.clock", lambda back=back: back)
        with pytest.raises(LedgerError, match="no deadline can be judged"):
            rounds.submit("r", "eve", report((0, 1, 0, 1, 1, 0)))


def test_times_of_entries_never_go_back(rounds, monkeypatch):
    now = datetime.now(UTC)
    for minutes in (0, 5, -5, 3):
        monkeypatch.setattr("verax.ledger.clock", lambda m=minutes: now + timedelta(minutes=m))
        rounds.open(dataclasses.replace(SPEC, round=f"r{minutes}"))
    times = [entry.at for entry in everything(rounds)]
    assert times == sorted(times) and len({*times}) == 2 and rounds.ledger.verify() == []


# money


def test_money_of_one_currency_is_no_stake_in_another(rounds):
    rounds.open(dataclasses.replace(MARKET, round="idr", currency="IDR"))
    rounds.open(MARKET)
    rounds.fund("idr", 2_000_000_00, agent="eve")
    with pytest.raises(LedgerError, match="'agent:eve' has 0 EUR to spend"):
        rounds.submit("r", "eve", report((0, 1, 1, 0, 1, 0)))
    with pytest.raises(LedgerError, match="this ledger holds 'EUR' and 'IDR'; name one"):
        rounds.fund("r") and rounds.ledger.balances()
    assert rounds.ledger.balances("IDR")["agent:eve"] == 2_000_000_00


def test_a_second_deposit_is_a_second_deposit_unless_its_key_says_otherwise(rounds):
    rounds.open(SPEC)
    for key in (None, None, "once", "once"):
        rounds.fund("r", 100, agent="ann", key=key)
    rounds.fund("r"), rounds.fund("r")  # the budget is set aside once
    assert rounds.ledger.balances()["agent:ann"] == 300
    assert rounds.ledger.balances()["escrow:r"] == 10_000


def test_more_money_than_can_be_counted_is_refused(rounds):
    rounds.open(SPEC)
    rounds.fund("r", 2**63 - 1, agent="ann")
    with pytest.raises(LedgerError, match="the house would have given out more than"):
        rounds.fund("r", 1, agent="bob")
    assert rounds.verify("r") == []


def test_a_budget_that_no_ledger_can_count_is_not_opened(rounds):
    with pytest.raises(InputError, match="more than can be counted"):
        rounds.open(dataclasses.replace(SPEC, budget="92233720368547758.08"))
    rounds.open(dataclasses.replace(SPEC, budget="92233720368547758.07"))


def test_a_transfer_again_in_another_currency_is_another_transfer(rounds):
    with rounds.ledger.writing() as journal:
        asked = Transfer("t", "house", "agent:ann", 5, "fund", "r", "EUR")
        assert journal.transfer(asked) == journal.transfer(asked)
        with pytest.raises(ConflictError, match="other content"):
            journal.transfer(dataclasses.replace(asked, currency="USD"))


# an older ledger


def test_a_table_of_the_first_version_is_brought_up_to_date(tmp_path):
    path = tmp_path / "verax.db"
    Ledger.open(str(path)).close()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        for name in ("at", "currency"):
            connection.exec_driver_sql(f"ALTER TABLE journal DROP COLUMN {name}")
    with Ledger.open(str(path)).writing() as journal:
        assert isinstance(journal, Journal) and journal.record("x", "note", "r", {}).at
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE journal ADD COLUMN mood TEXT")
    engine.dispose()
    with pytest.raises(LedgerError, match="has columns mood: a later version wrote it"):
        Ledger.open(str(path))


# the commands


def command(*words) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_agents_with_keys_of_their_own_take_part_by_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 40)
    (tmp_path / "tasks.csv").write_text("task\n" + "".join(f"t{n}\n" for n in range(40)))
    rows = ["agent,key"]
    for agent in ("ann", "bob", "cy"):
        made = command("key", "new", f"{agent}.pem")
        assert made.exit_code == 0, made.stderr
        assert command("key", "show", f"{agent}.pem").stdout == made.stdout
        rows.append(f"{agent},{json.loads(made.stdout)['key']}")
        labels = np.where(rng.random(40) < 0.8, truth, 1 - truth)
        lines = "".join(f"t{n},{('no', 'yes')[k]}\n" for n, k in enumerate(labels))
        (tmp_path / f"{agent}.csv").write_text("task,label\n" + lines)
    (tmp_path / "agents.csv").write_text("\n".join(rows) + "\n")
    asked = "--tasks", "tasks.csv", "--classes", "no,yes", "--budget", "10.00", "--agents", "agents.csv"
    opened = command("round", "open", "r", *asked)
    assert opened.exit_code == 0 and len(json.loads(opened.stdout)["seal_to"]) == 64
    assert command("round", "fund", "r").exit_code == 0
    wrong = command("round", "submit", "r", "ann.csv", "--agent", "ann", "--sign", "bob.pem")
    assert wrong.exit_code == 2 and "another key" in wrong.stderr
    for agent in ("ann", "bob", "cy"):
        taken = command("round", "submit", "r", f"{agent}.csv", "--agent", agent, "--sign", f"{agent}.pem")
        assert taken.exit_code == 0, taken.stderr
    for step in ("seal", "settle", "verify"):
        done = command("round", step, "r")
        assert done.exit_code == 0, done.stderr
    assert command("key", "new", "ann.pem").exit_code == 2
    assert "no Ed25519 key" in command("key", "show", "ann.csv").stderr


# passwords


@pytest.mark.parametrize(
    "address",
    [
        "postgresql+psycopg://bob:hunter2@127.0.0.1:1/x", "postgresql+psycopg://bob:hunter2@127.0.0.1:port/x",
        "postgresql+psycopg://127.0.0.1:1/x?user=bob&password=hunter2", "mysql://bob:hunter2@host/x",
        "postgresql+none://bob:hunter2@host/x", "postgresql+psycopg:/bob:hunter2@host/x", "bob:hunter2@host/x",
        "postgresql+psycopg://bob:hunt@hunter2@127.0.0.1:1/x?sslmode=none", "sqlite:/bob:hunter2@host",
        "postgresql:bob:hunter2@host/x",
    ],
)  # fmt: skip
def test_a_password_of_a_database_is_never_shown(address, tmp_path, monkeypatch):
    """Neither in a refusal, nor by way of the environment, nor as help, nor in what an exception holds."""
    monkeypatch.chdir(tmp_path)
    for asked in (("--db", address), ()):
        monkeypatch.setenv("VERAX_DB", address)
        for words in (("round", "show", "r", *asked), ("round", "show", "--help")):
            found = command(*words)
            assert found.exit_code == (0 if words[-1] == "--help" else 2), found.output
            chain, error = [], found.exception
            while error is not None:
                chain.append(repr(error))
                error = error.__cause__
            assert "hunter2" not in found.output + found.stderr + " ".join(chain)
    assert [*tmp_path.iterdir()] == []  # nor is a file made that is called by it


def test_what_holds_an_address_does_not_show_it():
    secret = "postgresql+psycopg://bob:hunter2@host/x"
    assert "hunter2" not in repr(Payroll(secret, budget="1.00")) + repr(Settings(secret))


# a report that nobody sees before it is sealed, and that no settlement should stumble over

_BYTES = base64.b64encode(bytes(24)).decode(), base64.b64encode(np.full(6, 0.5).tobytes()).decode()
HOSTILE = [
    {"labels": [2**63] * 6}, {"labels": [10**400] * 6}, {"labels": [[0]] * 6}, {"labels": [True] * 6},
    {"labels": [2] * 6},
    {"labels": "000000"}, {"labels": [0] * 5}, {"labels": [0] * 6, "probabilities": 5}, {"labels": None}, {},
    {"labels": [0, 1] * 3, "listed": _BYTES[0], "shares": _BYTES[1]},
]  # fmt: skip


@pytest.mark.parametrize("rule", ["zero-one", "ce"])
@pytest.mark.parametrize("content", HOSTILE)
def test_a_hostile_report_harms_nobody_but_whoever_signed_it(rounds, content, rule):
    spec = dataclasses.replace(SPEC, rule=rule)
    rounds.open(spec)
    rounds.fund("r")
    for agent, labels in (("ann", (0, 1, 0, 1, 1, 0)), ("bob", (0, 1, 0, 1, 0, 0)), ("cy", (1, 1, 0, 1, 1, 0))):
        rows = np.where(np.array(labels)[:, None] == np.arange(2), 0.9, 0.1)[None] if rule == "ce" else None
        rounds.submit("r", agent, verax.Reports.of([list(labels)], rows, tasks=TASKS, classes=SPEC.classes))
    rounds.take(sealed_by(Key.new(), rounds.public_record("r"), content))
    rounds.seal("r")
    amounts = rounds.settle("r").amounts
    assert amounts["ann"] > 0 and rounds.verify("r") == []
    assert amounts["eve"] == 0 or (rule == "zero-one" and "listed" in content)  # whose labels are in order


def test_labels_alone_freeze_no_round_that_asks_for_probabilities(rounds):
    rounds.open(dataclasses.replace(SPEC, rule="ce"))
    rounds.fund("r")
    for agent in ("ann", "bob"):
        rows = np.full((1, 6, 2), 0.5)
        rounds.submit("r", agent, verax.Reports.of([[0, 1] * 3], rows, tasks=TASKS, classes=SPEC.classes))
    rounds.take(sealed_by(Key.new(), rounds.public_record("r"), {"labels": [0, 1] * 3}))
    rounds.seal("r")
    assert rounds.settle("r").amounts["eve"] == 0 and rounds.verify("r") == []


def sealed_by(key: Key, opened: dict, content) -> Submission:
    """What an agent that keeps to no form seals, commits to and signs."""
    bound = commitment("r", "eve", content, "n")
    hidden = seal({"content": content, "nonce": "n"}, opened["seal_to"], ["r", "eve"])
    made = dataclasses.replace(Submission.of(opened, "eve", 1, {}, key), commitment=bound, sealed=hidden, signature="")
    return dataclasses.replace(made, signature=key.sign(made.signed_part(opened)))
