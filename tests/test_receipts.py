"""What an agent keeps: made from a ledger, on SQLite and PostgreSQL, and checked without one; by the commands too."""

from __future__ import annotations

import base64
import dataclasses
import json
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

import verax
from postgres import shared
from verax.cli import app
from verax.errors import InputError, LedgerError
from verax.keys import Key
from verax.ledger import Ledger, Transfer
from verax.log import Checkpoint, Continuation, NoteKey, Proof, Witness
from verax.receipts import findings, later_finding, report_finding
from verax.rounds import Rounds, Spec
from verax.wire import canonical

TASKS = tuple(f"t{n}" for n in range(6))
SPEC = Spec("r", TASKS, ("no", "yes"), "100.00", min_tasks=2)
LABELS = {"ann": (0, 1, 0, 1, 1, 0), "bob": (0, 1, 0, 1, 0, 0), "cy": (1, 1, 0, 1, 1, 0)}


def report(labels) -> verax.Reports:
    return verax.Reports.of([list(labels)], tasks=TASKS, classes=SPEC.classes)


@pytest.fixture(params=["sqlite", "postgres"])
def rounds(request, tmp_path):
    ledger = Ledger.open(str(tmp_path / "verax.db") if request.param == "sqlite" else shared().schema())
    yield Rounds(ledger)
    ledger.close()


@pytest.fixture
def keys():
    return {agent: Key.new() for agent in LABELS}


def filled(rounds: Rounds, keys) -> dict[str, Proof]:
    """A round in which everybody keeps a receipt from when it has handed in."""
    rounds.open(SPEC)
    rounds.fund("r")
    kept = {}
    for agent, labels in LABELS.items():
        taken = rounds.submit("r", agent, report(labels), signer=keys[agent])
        kept[agent] = Proof.parsed(str(rounds.receipt("r", agent, nonce=taken.nonce)))
    return kept


def operator_of(rounds: Rounds) -> str:
    return rounds.ledger.keys.key("operator").public


def holds(proof: Proof, operator: str, *witnesses: NoteKey) -> bool:
    return all(found.holds is not False for found in findings(proof, operator, witnesses))


def test_every_receipt_of_a_round_holds_and_later_ones_continue_it(rounds, keys):
    kept = filled(rounds, keys)
    rounds.seal("r"), rounds.settle("r")
    operator = operator_of(rounds)
    assert rounds.verify("r", *(proof.checkpoint for proof in kept.values())) == []
    for agent, proof in kept.items():
        assert holds(proof, operator) and not holds(proof, Key.new().public)
        assert proof.said["body"]["agent"] == agent and proof.said["body"]["key"] == keys[agent].public
        later = rounds.ledger.continuation(proof.checkpoint.size)
        assert later_finding(proof.checkpoint, Continuation.parsed(str(later)), operator).holds
        again = rounds.receipt("r", agent)
        assert (
            again.checkpoint.size == rounds.ledger.head().count and again.leaf == proof.leaf and holds(again, operator)
        )


def test_a_receipt_shows_what_was_handed_in_to_who_has_the_nonce(rounds, keys):
    kept = filled(rounds, keys)
    assert report_finding(kept["ann"], report(LABELS["ann"])).holds
    assert not report_finding(kept["ann"], report(LABELS["bob"])).holds
    bare = rounds.receipt("r", "ann")
    assert "nonce" not in bare.beside  # or whoever sees it might guess the report before the round is settled
    with pytest.raises(InputError, match="no nonce"):
        report_finding(bare, report(LABELS["ann"]))
    assert report_finding(bare, report(LABELS["ann"]), keys["ann"]).holds
    assert not report_finding(bare, report(LABELS["ann"]), keys["bob"]).holds
    assert rounds.receipt("r", "ann", opened=True).beside["nonce"] == kept["ann"].beside["nonce"]
    rounds.submit("r", "ann", report(LABELS["cy"]), signer=keys["ann"])
    assert rounds.receipt("r", "ann", kept["ann"].index + 1).leaf == kept["ann"].leaf != rounds.receipt("r", "ann").leaf
    for agent, number in (("ann", kept["bob"].index + 1), ("dan", None), ("ann", 99)):
        with pytest.raises(InputError, match=f"agent '{agent}' has no submission"):
            rounds.receipt("r", agent, number)
    rounds.submit("r", "ann", report(LABELS["ann"]), signer=keys["ann"])
    rounds.seal("r"), rounds.settle("r")
    assert rounds.receipt("r", "ann").beside["nonce"] == kept["ann"].beside["nonce"]


def forged(proof: Proof, **change) -> Proof:
    said = proof.said
    return dataclasses.replace(proof, leaf=canonical(said | {"body": said["body"] | change}))


@pytest.mark.parametrize("change", [{"agent": "eve"}, {"commitment": "0" * 64}, {"number": 2}, {"sealed": "other"}])
def test_a_receipt_for_anything_else_does_not_hold(rounds, keys, change):
    proof = filled(rounds, keys)["ann"]
    assert not holds(forged(proof, **change), operator_of(rounds))
    assert not holds(dataclasses.replace(proof, index=proof.index + 1), operator_of(rounds))
    another = rounds.receipt("r", "bob")
    assert not holds(dataclasses.replace(proof, checkpoint=another.checkpoint), operator_of(rounds))


def test_what_beside_the_proof_is_changed_shows_nothing_false(rounds, keys):
    proof = filled(rounds, keys)["ann"]
    eve = Key.new()
    named = dataclasses.replace(proof, beside=dict(proof.beside) | {"operator": eve.public})
    assert not holds(named, None) and holds(named, operator_of(rounds))
    asked = proof.beside["asked"] | {"classes": ["yes", "no"]}
    flipped = verax.Reports.of([[1 - k for k in LABELS["ann"]]], tasks=TASKS, classes=("yes", "no"))
    other = dataclasses.replace(proof, beside=dict(proof.beside) | {"asked": asked})
    assert not report_finding(other, flipped).holds
    for broken in ({}, {"asked": 5}, {"asked": {"round": "r"}}):
        with pytest.raises(InputError, match="does not say what its round asks"):
            report_finding(dataclasses.replace(proof, beside=broken), report(LABELS["ann"]))


def test_an_entry_that_is_no_submission_is_no_receipt(rounds, keys):
    proof = filled(rounds, keys)["ann"]
    for leaf in ("{}", "[]", '"x"', canonical(proof.said | {"kind": "open"}), canonical(proof.said | {"body": []})):
        with pytest.raises(InputError, match="is no submission"):
            holds(dataclasses.replace(proof, leaf=leaf), operator_of(rounds))


def test_a_witness_and_its_line_are_kept_for_receipts_to_come(rounds, keys, tmp_path):
    kept = filled(rounds, keys)
    rounds.seal("r")
    origin = kept["ann"].checkpoint.origin
    witness = Witness("witness.example/w1", Key.new(), {origin: (operator_of(rounds),)}, tmp_path / "seen.json")
    lines = witness.cosign(rounds.ledger.continuation(0))
    assert rounds.ledger.keep_cosignature(witness.note_key, lines) == rounds.ledger.head().count
    assert holds(rounds.receipt("r", "ann"), operator_of(rounds), witness.note_key)
    assert not holds(kept["ann"], operator_of(rounds), witness.note_key)
    other = Witness("witness.example/w2", Key.new(), {}, tmp_path / "no.json")
    with pytest.raises(InputError, match="has signed no checkpoint that is kept here"):
        rounds.ledger.keep_cosignature(other.note_key, lines)
    rounds.settle("r")
    assert witness.cosign(rounds.ledger.continuation(witness.last(origin).size))
    assert rounds.verify("r") == []


def test_a_journal_without_a_tree_is_given_one(rounds, keys):
    """As one that an older version has written, or to which another process has added entries by hand."""
    filled(rounds, keys)
    before = rounds.ledger.checkpoint()
    with rounds.ledger._engine.begin() as connection:
        for name in ("tree", "signatures"):
            connection.exec_driver_sql(f"DROP TABLE {name}")
    engine = rounds.ledger._engine
    address = engine.url.render_as_string(hide_password=False)
    again = Rounds(Ledger.open(address, keys=rounds.ledger.keys.folder))
    assert again.verify("r", before) == []
    assert again.ledger.checkpoint().root == before.root
    assert holds(again.receipt("r", "cy"), operator_of(rounds))
    again.ledger.close()


@pytest.mark.parametrize("table", ["tree", "signatures"])
def test_the_tree_and_its_signatures_are_guarded_as_the_journal_is(rounds, keys, table):
    filled(rounds, keys)
    rounds.seal("r")
    orders = [f"DELETE FROM {table}", f"UPDATE {table} SET " + ("seq = 99" if table == "tree" else "size = 1")]
    for order in orders:
        with pytest.raises(sa.exc.DBAPIError, match="append-only"), rounds.ledger._engine.begin() as connection:
            connection.exec_driver_sql(order)
    if rounds.ledger._engine.dialect.name == "sqlite":
        with rounds.ledger._engine.begin() as connection:
            connection.exec_driver_sql(f"DROP TRIGGER {table}_no_delete")
        with pytest.raises(LedgerError, match=f"the {table} has lost its guards {table}_no_delete"):
            Ledger.open(rounds.ledger._engine.url.database)


@pytest.mark.parametrize("order", [
    "UPDATE tree SET nodes = zeroblob(32) WHERE seq = 3", "DELETE FROM tree WHERE seq = 3",
    "INSERT INTO tree SELECT seq + 100, nodes FROM tree WHERE seq = 1", "UPDATE signatures SET size = size - 1",
    "INSERT INTO signatures SELECT line || '', size + 100, key FROM signatures LIMIT 0",
    "UPDATE signatures SET line = replace(line, 'verax/', 'verax/0')",
])  # fmt: skip
def test_a_tree_that_is_not_the_journals_is_found(tmp_path, keys, order):
    rounds = Rounds(Ledger.open(str(tmp_path / "verax.db")))
    filled(rounds, keys)
    rounds.seal("r")
    with rounds.ledger._engine.begin() as connection:
        for table in ("tree", "signatures"):
            for name in ("update", "delete"):
                connection.exec_driver_sql(f"DROP TRIGGER {table}_no_{name}")
        connection.exec_driver_sql(order)
    found = rounds.verify("r")
    assert bool(found) == ("LIMIT 0" not in order), found
    rounds.ledger.close()


def test_proofs_are_right_at_every_size_of_a_stored_tree(rounds):
    with rounds.ledger.writing() as journal:
        for n in range(70):
            journal.transfer(Transfer(f"t{n}", "house", "escrow:r", 1, "fund", "r"))
    with rounds.ledger.reading() as journal:
        leaves = [e.leaf.encode() for e in journal.entries()]
        for size in (1, 2, 31, 32, 33, 64, 70):
            tree = journal.tree.at(size)
            from verax.log.merkle import continues, includes, leaf_hash

            for index in range(size):
                assert includes(leaf_hash(leaves[index]), index, size, tree.inclusion(index), tree.root)
            assert continues(size, 70, journal.tree.at(70).consistency(size), tree.root, journal.tree.at(70).root)


# the commands


def command(*words, expect=0, input=None):
    found = CliRunner().invoke(app, [str(word) for word in words], input=input)
    assert found.exit_code == expect, found.output
    return found


def test_the_five_minutes_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 40)
    Path("tasks.csv").write_text("task\n" + "".join(f"t{n}\n" for n in range(40)))
    opened = command("round", "open", "r", "--tasks", "tasks.csv", "--classes", "no,yes", "--budget", "10.00")
    operator = json.loads(opened.stdout)["operator"]
    command("round", "fund", "r")
    for agent in LABELS:
        command("key", "new", f"{agent}.pem")
        labels = np.where(rng.random(40) < 0.8, truth, 1 - truth)
        rows = "".join(f"t{n},{('no', 'yes')[k]}\n" for n, k in enumerate(labels))
        Path(f"{agent}.csv").write_text("task,label\n" + rows)
        signed = "--sign", f"{agent}.pem", "--receipt", f"{agent}.receipt"
        command("round", "submit", "r", f"{agent}.csv", "--agent", agent, *signed)
    assert stat.S_IMODE(Path("ann.receipt").stat().st_mode) == 0o600
    known = "--operator", operator
    shown = command("receipt", "verify", "ann.receipt", "--report", "ann.csv", *known).stdout
    assert shown.count("holds") == 4 and "?" not in shown
    told = json.loads(command("receipt", "verify", "ann.receipt", "--json").stdout)["findings"]
    assert [each["holds"] for each in told] == [True, True, True, None]
    wrong = command("receipt", "verify", "ann.receipt", "--report", "bob.csv", *known, expect=2)
    assert "DOES NOT" in wrong.stdout and "keep the file, it is evidence" in wrong.stderr
    command("round", "seal", "r"), command("round", "settle", "r")
    Path("settled.receipt").write_text("of before")
    Path("link").symlink_to("settled.receipt")
    command("receipt", "get", "r", "--agent", "ann", "-o", "link")
    assert Path("link").is_symlink() and stat.S_IMODE(Path("settled.receipt").stat().st_mode) == 0o600
    command("receipt", "get", "r", "--agent", "ann", "-o", "/dev/null")
    assert not Path("/dev/null").is_file()
    command("receipt", "get", "r", "--agent", "ann", "-o", "no/such/folder", expect=2)
    assert "is read here" in command("receipt", "get", "r", "--agent", "ann", "-o", "verax.db", expect=2).stderr
    size = Proof.parsed(Path("ann.receipt").read_text()).checkpoint.size
    command("receipt", "checkpoint", "--since", size, "-o", "later.txt")
    command("receipt", "checkpoint", "-o", "now.txt")
    for against in ("verax.db", "later.txt"):
        assert "unchanged" in command("receipt", "verify", "ann.receipt", *known, "--against", against).stdout
    for against in ("now.txt", "bob.receipt"):
        asked = command("receipt", "verify", "ann.receipt", *known, "--against", against, expect=2)
        assert f"--since {size}" in asked.stderr
    command("receipt", "verify", "settled.receipt", *known, "--against", "now.txt")
    command("round", "verify", "r", "--receipt", "ann.receipt", "--receipt", "settled.receipt")
    older = command("receipt", "verify", "settled.receipt", "--against", "ann.receipt", expect=2)
    assert "compare with a later one" in older.stderr


def test_a_receipt_is_compared_with_what_a_service_says(tmp_path, keys):
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    rounds = Rounds(Ledger.open(str(tmp_path / "verax.db")))
    kept = filled(rounds, keys)["ann"]
    (tmp_path / "ann.receipt").write_text(str(kept))
    rounds.seal("r")
    told = {f"/log/checkpoint?since={kept.checkpoint.size}": str(rounds.ledger.continuation(kept.checkpoint.size))}

    class Service(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path in told else 404)
            self.end_headers()
            self.wfile.write(told.get(self.path, "").encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        there = f"http://127.0.0.1:{server.server_port}"
        asked = "receipt", "verify", tmp_path / "ann.receipt", "--operator", operator_of(rounds), "--against"
        assert "begins with the 5 of the receipt, unchanged" in command(*asked, there).stdout
        assert "no checkpoint could be had" in command(*asked, f"{there}/else", expect=2).stderr
        forged = Checkpoint.of(kept.checkpoint.origin, 7, b"0" * 32).signed(Key.new(), 0)
        told[f"/log/checkpoint?since={kept.checkpoint.size}"] = str(Continuation(kept.checkpoint.size, (), forged))
        assert "is signed by the operator" in command(*asked, there, expect=2).stderr
    finally:
        server.shutdown(), thread.join(), server.server_close(), rounds.ledger.close()


def test_a_witness_by_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rounds = Rounds(Ledger.open("verax.db"))
    rounds.open(SPEC)
    operator = operator_of(rounds)
    command("key", "new", "w.pem")
    who = "--sign", "w.pem", "--name", "witness.example/w1"
    key = command("witness", "key", *who).stdout.strip()
    text = command("receipt", "checkpoint", "--since", 0).stdout
    origin = text.split("\n")[2]
    asked = *who, "--state", "seen.json", "--log", f"{origin}={operator}"
    line = command("witness", "cosign", "-", *asked, input=text).stdout
    assert "kept" in command("witness", "add", "-", "--witness", key, input=line).stdout
    rounds.submit("r", "ann", report(LABELS["ann"]))
    later = command("receipt", "checkpoint", "--since", 0).stdout
    assert "ask for what came since 1" in command("witness", "cosign", "-", *asked, input=later, expect=2).stderr
    Path("later").write_text(command("receipt", "checkpoint", "--since", 1).stdout)
    command("witness", "cosign", "later", *asked)
    assert "goes back" in command("witness", "cosign", "-", *asked, input=text, expect=2).stderr
    assert Path("seen.json.evidence").read_text().count(origin) == 6
    assert "no request" in command("witness", "cosign", "-", *asked, input="old 1", expect=2).stderr
    assert "ORIGIN=KEY" in command("witness", "cosign", "later", *asked, "--log", "x", expect=2).stderr
    rounds.ledger.close()


@pytest.mark.parametrize("text", ["", "x", "c2sp.org/tlog-proof@v1\n", "c2sp.org/tlog-proof@v1\nextra !\nindex 0\n\n",
    "c2sp.org/tlog-proof@v1\nextra " + base64.b64encode(b"[]").decode() + "\nindex 0\n\nlog\n0\n\n", "\0\xff",
])  # fmt: skip
def test_a_file_that_is_no_receipt_is_refused_in_a_sentence(tmp_path, text):
    path = tmp_path / "x.receipt"
    path.write_text(text)
    refused = command("receipt", "verify", path, expect=2)
    assert "not a receipt" in refused.stderr and "Traceback" not in refused.stderr
    assert refused.stdout == ""
