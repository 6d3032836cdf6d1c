"""The service: what it answers to whom, what it refuses and how, what survives a kill."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import uvicorn
from typer.testing import CliRunner

import verax
from postgres import shared
from verax.cli import app
from verax.errors import ConflictError, IdentityError, InputError, LedgerError, NotFoundError
from verax.keys import Key, verifies
from verax.ledger import Ledger
from verax.log import Continuation
from verax.receipts import later_finding, report_finding
from verax.rounds import Admission, Rounds, Spec, commitment, content_of
from verax.service.access import signature_base
from verax.service.app import make_app
from verax.service.client import Remote
from verax.service.gate import Limits
from verax.service.queue import LEASE, SETTLE, TRIES, Queue, perform
from verax.service.shared import Settings
from verax.service.views import address

DOCS = Path(__file__).parents[1] / "docs" / "service.md"
TASKS = tuple(f"t{n}" for n in range(6))
SPEC = Spec("r", TASKS, ("no", "yes"), "100.00", min_tasks=2)
SAID = {"ann": (0, 1, 0, 1, 1, 0), "bob": (0, 1, 0, 1, 0, 0), "cy": (1, 1, 0, 1, 1, 0)}


def report(labels) -> verax.Reports:
    return verax.Reports.of([list(labels)], tasks=TASKS, classes=SPEC.classes)


class Place:
    """A service in a thread of this process, and clients of it."""

    def __init__(self, url: str, folder: Path, limits: Limits | None = None) -> None:
        self.app = make_app(Settings(url, str(folder / "keys"), (), limits or Limits(rate=0), works=False))
        self.service = self.app.state.service
        config = uvicorn.Config(self.app, port=0, log_config=None, ws="none")
        self._socket = config.bind_socket()
        self._socket.listen(100)
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([self._socket],))
        self.thread.start()
        self.http = httpx.Client(base_url=self.address, verify=False)
        self.clients: list[Remote] = []

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.http.close()
        self.server.should_exit = True
        self.thread.join()
        self._socket.close()
        self.service.rounds.ledger.close()

    def remote(self, credential: str | None = None) -> Remote:
        self.clients.append(Remote(self.address, credential, wait=0.0))
        return self.clients[-1]

    @property
    def operator(self) -> Remote:
        return self.remote(self.service.token_file)

    def work(self) -> None:
        """What the worker's process does."""
        while (job := self.service.queue.take("w")) is not None:
            perform(self.service.rounds, self.service.queue, job, "w")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path):
    url = str(tmp_path / "verax.db") if request.param == "sqlite" else shared().schema()
    found = Place(url, tmp_path)
    yield found
    found.close()


@pytest.fixture
def here(tmp_path):
    found = Place(str(tmp_path / "verax.db"), tmp_path)
    yield found
    found.close()


@pytest.fixture
def limited(tmp_path):
    found = []

    def make(limits: Limits) -> Place:
        found.append(Place(str(tmp_path / "verax.db"), tmp_path, limits))
        return found[-1]

    yield make
    for place in found:
        place.close()


def played(place: Place, spec: Spec = SPEC) -> dict[str, Key]:
    keys = {agent: Key.new() for agent in SAID}
    place.operator.open(spec)
    place.operator.fund(spec.round)
    for agent, labels in SAID.items():
        place.remote().submit(spec.round, agent, report(labels), signer=keys[agent])
    return keys


def settled(place: Place, round: str = "r"):
    place.operator.seal(round)
    place.operator.ask("POST", f"{address(round)}/settle")
    place.work()
    return place.operator.settle(round)


def test_a_round_from_afar_pays_what_it_pays_beside_the_database(place, tmp_path):
    keys = played(place)
    found = settled(place)
    local = Rounds(Ledger.open(str(tmp_path / "local.db")))
    local.open(SPEC)
    local.fund("r")
    for agent, labels in SAID.items():
        local.submit("r", agent, report(labels), signer=keys[agent])
    local.seal("r")
    there = local.settle("r")
    assert found.amounts == there.amounts and found.scores == there.scores and sum(found.amounts.values()) > 0
    assert place.remote().show("r") == place.service.rounds.show("r")
    stranger = place.remote()
    assert stranger.verify("r") == [] and stranger.payment("r", "ann") == (found.amounts["ann"],) * 2
    assert stranger.balance("r", "ann", keys["ann"])["amount"] == found.amounts["ann"]
    rows = place.operator.payouts("r").splitlines()
    assert rows[0] == "agent,amount,currency,minor_units" and len(rows) == 4
    local.ledger.close()


def test_the_same_request_twice_is_the_same(here):
    keys = played(here)
    remote, operator = here.remote(), here.operator
    first = remote.submit("r", "bob", report(SAID["cy"]), signer=keys["bob"])
    assert remote.submit("r", "bob", report(SAID["cy"]), signer=keys["bob"]) == first
    assert operator.open(SPEC) == operator.open(SPEC)
    assert operator.fund("r") == operator.fund("r")
    assert operator.fund("r", 500, agent="ann", key="k") == operator.fund("r", 500, agent="ann", key="k")
    assert operator.seal("r") == operator.seal("r")
    assert settled(here) == settled(here)
    assert here.service.rounds.ledger.balances()["agent:ann"] == 500 + operator.settle("r").amounts["ann"]


def test_an_answer_that_was_lost_is_had_by_asking_again(here):
    """In a market the last step of all stands: what was lost is no longer the last."""
    operator, ann, bob = here.operator, Key.new(), Key.new()
    market = dataclasses.replace(SPEC, kind="market", truth=(0, 1, 1, 0, 1, 0))
    operator.open(market)
    for agent in ("ann", "bob"):
        operator.fund("r", 50_000, agent=agent)
    lossy, lost = here.remote(), []
    real = lossy._http.request

    def losing(method, url, **how):
        found = real(method, url, **how)
        if method == "POST" and not lost:
            lost.append(found)
            here.remote().submit("r", "bob", report(SAID["bob"]), signer=bob)
            raise httpx.ReadError("the line is cut")
        return found

    lossy._http.request = losing
    receipt = lossy.submit("r", "ann", report(SAID["ann"]), signer=ann)
    assert lost and receipt.entry == lost[0].json()["entry"]
    assert [s["agent"] for s in here.remote().show("r")["submissions"]] == ["ann", "bob"]


def test_every_submission_ends_in_a_state_with_a_reason(here):
    keys = played(here)
    remote = here.remote()
    remote.submit("r", "ann", report([0] * 6), signer=keys["ann"])

    def states(agent, round="r"):
        return [(s["state"], s["reason"]) for s in remote.of_agent(round, agent)["submissions"]]

    assert [s for s, _ in states("ann")] == ["replaced", "standing"] and "stands in its place" in states("ann")[0][1]
    here.operator.seal("r")
    assert [s for s, _ in states("ann")] == ["replaced", "sealed"]
    found = settled(here)
    assert states("cy")[-1] == ("paid", f"its score earned {found.amounts['cy'] / 100:.2f} EUR")
    assert states("ann")[-1] == ("unpaid", "its score of 0.0000 earns nothing by the scheme clipped")
    played(here, dataclasses.replace(SPEC, round="r2"))
    here.operator.void("r2")
    assert {s for s, _ in states("bob", "r2")} == {"void"}
    assert remote.of_agent("r", "nobody")["submissions"] == []


def test_invitations_work_from_afar_and_stay_where_they_are(here):
    operator, ann = here.operator, Key.new()
    operator.open(dataclasses.replace(SPEC, invited=True))
    (token,) = operator.invite("r")
    sent = []
    remote = here.remote()
    real = remote._http.request
    remote._http.request = lambda *a, **k: sent.append(k.get("content")) or real(*a, **k)
    admitted = remote.admit(Admission.of(remote.public_record("r"), "ann", ann, token))
    assert admitted.agent == "ann" and not any(token.encode() in (each or b"") for each in sent)
    remote.submit("r", "ann", report(SAID["ann"]), signer=ann)
    with pytest.raises(ConflictError, match="not admitted"):
        remote.submit("r", "eve", report(SAID["ann"]), signer=Key.new())


def test_what_was_committed_to_is_shown_from_afar(here):
    spec = dataclasses.replace(SPEC, sealing="commit", reveal_hours=1.0)
    agents = here.remote()
    here.operator.open(spec), here.operator.fund("r")
    keys = {name: Key.new() for name in ("ann", "bob", "cy")}
    for name, key in keys.items():
        receipt = agents.submit("r", name, report(SAID[name]), signer=key)
        assert receipt.commitment == commitment("r", name, content_of(report(SAID[name]), spec), receipt.nonce)
    here.operator.seal("r")
    assert agents.of_agent("r", "ann")["submissions"][0]["reason"].startswith("show it by ")
    for name, key in keys.items():
        entry = agents.reveal("r", name, report(SAID[name]), signer=key)
        assert agents.reveal("r", name, report(SAID[name]), signer=key) == entry
    with pytest.raises(ConflictError, match="has committed to nothing like this"):
        agents.reveal("r", "ann", report(SAID["ann"]), signer=keys["bob"])
    with pytest.raises(ConflictError, match="waits for no beacon"):
        agents.give_beacon("r", "00" * 48)
    here.operator.ask("POST", f"{address('r')}/settle"), here.work()
    assert {*here.operator.settle("r").amounts} == {*keys} and agents.verify("r") == []
    for asked in (["r"], ["r", "--agent", "ann"]):
        words = [sys.executable, "-c", "from verax.cli import main; main()", "remote", "show", *asked]
        shown = subprocess.run([*words, "--server", here.address], env=environment(), capture_output=True, text=True)
        assert shown.returncode == 0 and ("commitment" if "--agent" in asked else "ann") in shown.stdout, shown.stderr


def test_a_name_of_any_kind_is_an_address(here):
    for name in ("a/b", "../r", "a.json", "ü?x=1", "100%", "a b", "r#1", "%2F"):
        here.operator.open(dataclasses.replace(SPEC, round=name))
        key = Key.new()
        here.remote().submit(name, name, report(SAID["cy"]), signer=key)
        assert here.remote().show(name)["round"] == name
        assert len(here.remote().of_agent(name, name)["submissions"]) == 1
        assert here.remote().balance(name, name, key)["amount"] == 0
        assert here.operator.void(name).round == name


REFUSED = [
    ("GET", "/rounds/none.json", None, 404, "no round is called 'none'"),
    ("GET", "/rounds/none/agents/ann.json", None, 404, "no round is called 'none'"),
    ("GET", "/rounds/none/settlement.json", None, 404, "no round is called 'none'"),
    ("GET", "/nothing", None, 404, "not offered here"),
    ("DELETE", "/rounds/r.json", None, 405, "not offered here"),
    ("GET", "/rounds/%00.json", None, 422, "control characters"),
    ("GET", "/rounds/%ff.json", None, 422, "no UTF-8"),
    ("GET", "/journal.json?after=-1", None, 422, "after"),
    ("GET", "/journal.json?most=1000000", None, 422, "most"),
    ("POST", "/rounds", b"{}", 401, "nobody has signed"),
    ("POST", "/rounds/r/seal", b"", 401, "nobody has signed"),
    ("GET", "/rounds/r/payouts.csv", None, 401, "nobody has signed"),
    ("POST", "/rounds/r/submissions", b"{", 422, "not JSON"),
    ("POST", "/rounds/r/submissions", b"[]", 422, "submission"),
    ("POST", "/rounds/r/submissions", b"[" * 100_000, 422, "nested"),
    ("POST", "/rounds/r/submissions", b'{"round": "\\u0000"}', 422, "NUL"),
    ("POST", "/rounds/r/submissions", b'{"round": "\\ud800"}', 422, "not JSON"),
]


def test_a_refusal_is_a_sentence_with_a_fitting_status(here):
    here.operator.open(SPEC)
    for method, path, body, status, said in REFUSED:
        found = here.http.request(method, path, content=body)
        assert found.status_code == status and found.headers["content-type"] == "application/problem+json", path
        document = found.json()
        assert document["status"] == status and said in document["detail"] and document["title"], path


def test_what_comes_out_of_turn_is_refused_with_the_sentence_of_the_round(here):
    keys = played(here)
    operator, remote = here.operator, here.remote()
    with pytest.raises(ConflictError, match="only a sealed round can be settled"):
        operator.settle("r")
    with pytest.raises(ConflictError, match="there are payouts when it is settled"):
        operator.payouts("r")
    operator.seal("r")
    with pytest.raises(ConflictError, match="is sealed and cannot submit"):
        remote.submit("r", "ann", report(SAID["cy"]), signer=keys["ann"])
    with pytest.raises(NotFoundError, match="no round is called 'none'"):
        operator.settle("none")
    with pytest.raises(InputError, match="is code"):
        operator.open(dataclasses.replace(SPEC, round="own", rule="verax.rules:load"))
    with pytest.raises(InputError, match="a report is signed here"):
        remote.submit("r", "ann", report(SAID["cy"]))


# signatures


def test_what_is_signed_is_what_the_rfc_says():
    """RFC 9421, B.2.6, with the key of B.1.4."""
    parts = [
        ("date", "Tue, 20 Apr 2021 02:07:55 GMT"), ("@method", "POST"), ("@path", "/foo"),
        ("@authority", "example.com"), ("content-type", "application/json"), ("content-length", "18"),
    ]  # fmt: skip
    names = " ".join(f'"{name}"' for name, _ in parts)
    base = signature_base(parts, f'({names});created=1618884473;keyid="test-key-ed25519"')
    public = base64.b64decode("JrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs=").hex()
    signature = "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw=="
    assert verifies(public, base64.b64decode(signature), base.encode())


def test_an_operator_may_sign_in_place_of_the_token(here, tmp_path):
    key = Key.new()
    (tmp_path / "op.pem").write_text(key.pem)
    here.service.guard.operators |= {key.public}
    signing = here.remote(str(tmp_path / "op.pem"))
    assert signing.open(SPEC).kind == "open" and signing.fund("r").amount == 10_000
    (tmp_path / "token").write_text("nonsense")
    with pytest.raises(IdentityError, match="not the operator's token"):
        here.remote(str(tmp_path / "token")).seal("r")


# receipts, and the log


def test_a_receipt_from_afar_is_whole_and_its_nonce_was_sent_to_nobody(here):
    keys = played(here)
    ann = here.remote()
    kept = ann.submit("r", "ann", report((1, 1, 1, 0, 0, 0)), signer=keys["ann"])
    proof = ann.receipt("r", "ann", kept.entry, nonce=kept.nonce)
    assert proof.is_included and report_finding(proof, report((1, 1, 1, 0, 0, 0))).holds
    assert not report_finding(proof, report((1, 1, 1, 0, 0, 1))).holds
    assert "nonce" not in ann.receipt("r", "ann").beside
    settled(here)
    assert here.remote().verify("r", proof.checkpoint) == []
    later = Continuation.parsed(here.http.get(f"/log/checkpoint?since={proof.checkpoint.size}").text)
    assert later_finding(proof.checkpoint, later, here.service.rounds.public_record("r")["operator"]).holds
    assert here.http.get("/log/checkpoint?since=100000").status_code == 422
    assert here.http.get("/rounds/r/agents/nobody.receipt").status_code == 422


# what takes long


def test_a_settlement_whose_worker_was_killed_is_taken_up_by_another(here):
    played(here)
    here.operator.seal("r")
    now = [1000.0]
    queue = Queue(here.service.rounds.ledger, clock=lambda: now[0])
    queue.ask(SETTLE, "r")
    assert queue.take("dead").round == "r" and queue.take("other") is None
    assert here.remote().ask("GET", "/rounds/r/settlement.json").json()["state"] == "running"
    now[0] += LEASE / 2
    queue.go_on(SETTLE, "r", "dead")
    now[0] += LEASE / 2 + 1
    assert queue.take("other") is None
    now[0] += LEASE
    job = queue.take("other")
    queue.end(SETTLE, "r", "dead", "too late")  # whoever lost it has no say any more
    perform(here.service.rounds, queue, job, "other")
    assert queue.get(SETTLE, "r").state == "done" and here.operator.settle("r").amounts


def test_what_breaks_every_worker_ends_with_a_reason_and_may_be_asked_for_again(here):
    played(here)
    queue = here.service.queue
    here.operator.seal("r")
    queue.ask(SETTLE, "r")
    for n in range(TRIES):
        assert queue.take(f"w{n}") is not None
        queue.free(f"w{n}")
    assert queue.take("w") is None
    found = here.remote().ask("GET", "/rounds/r/settlement.json").json()
    assert found["state"] == "failed" and "3 workers died at it" in found["reason"]
    assert settled(here).amounts


def test_a_settlement_that_the_round_refuses_fails_with_its_sentence(here):
    played(here)
    here.service.queue.ask(SETTLE, "r")
    here.work()
    assert "is open and cannot score" in here.service.queue.get(SETTLE, "r").reason


def test_a_verification_by_the_service_says_what_it_found(here):
    played(here)
    settled(here)
    here.operator.ask("POST", "/rounds/r/verify")
    here.work()
    assert here.remote().ask("GET", "/rounds/r/verification.json").json()["state"] == "done"


def test_a_tampered_journal_is_seen_by_whoever_copies_it(here):
    played(here)
    settled(here)
    stranger = here.remote()
    real = stranger._document

    def lying(method, path, *rest, **how):
        found = real(method, path, *rest, **how)
        for entry in found.get("entries", []) if path == "/journal.json" else []:
            entry["amount"] = entry["amount"] and entry["amount"] + 1
        return found

    stranger._document = lying
    assert "is not what was recorded" in stranger.verify("r")[0]


# limits


def test_a_body_is_refused_by_its_length_before_it_is_read(limited):
    place = limited(Limits(rate=0, body=1000))
    said = place.http.post("/rounds/r/submissions", content=b"x" * 1001)
    assert said.status_code == 413 and "longer than 1,000 bytes" in said.json()["detail"]
    read = []

    def without_length():
        for _ in range(100):
            read.append(1)
            yield b"x" * 100

    assert place.http.post("/rounds/r/submissions", content=without_length()).status_code == 413


def test_an_address_that_asks_too_often_waits(limited):
    place = limited(Limits(rate=1.0))
    statuses = [place.http.get("/health").status_code for _ in range(6)]
    assert statuses[:4] == [200] * 4 and statuses[-1] == 429
    assert "too many requests" in place.http.get("/health").json()["detail"]


def test_reading_says_when_nothing_is_new(here):
    here.operator.open(SPEC)
    first = here.http.get("/rounds/r.json")
    again = here.http.get("/rounds/r.json", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304 and not again.content
    here.operator.fund("r")
    assert here.http.get("/rounds/r.json", headers={"If-None-Match": first.headers["etag"]}).status_code == 200


def test_health_and_metrics_answer(here):
    played(here)
    assert here.http.get("/health").json() == {"entries": here.service.rounds.head().count, "ok": True, "worker": True}
    text = here.http.get("/metrics").text
    assert 'verax_requests_total{method="POST",route="/rounds/{round}/submissions",status="201"} 3.0' in text
    assert 'verax_jobs{state="queued"} 0.0' in text


# from afar


@pytest.mark.parametrize("server", ["verax.test", "ftp://verax.test", "http://", "https://verax.test/?x=1"])
def test_what_is_no_address_is_refused(server):
    with pytest.raises(InputError, match="is no server"):
        Remote(server)


def test_truth_and_token_go_nowhere_where_others_can_read_them(tmp_path):
    (tmp_path / "token").write_text("a-token\n")
    with pytest.raises(InputError, match="for everybody to read"):
        Remote("http://192.0.2.1", tmp_path / "token")
    (tmp_path / "op.pem").write_text(Key.new().pem)
    with pytest.raises(InputError, match="the truth would go"):
        Remote("http://192.0.2.1", tmp_path / "op.pem").open(dataclasses.replace(SPEC, truth=(0, 1, 1, 0, 1, 0)))
    Remote("http://[::1]:1", tmp_path / "token").close()


def test_a_server_that_is_not_there_is_a_sentence():
    with pytest.raises(LedgerError, match="no answer"):
        Remote("http://127.0.0.1:9", wait=0.0).show("r")


def test_a_server_that_is_something_else_is_a_sentence(here):
    stranger = here.remote()
    stranger._http = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(418, text="short and stout")))
    with pytest.raises(verax.VeraxError, match="answered 418, and not as a verax service does"):
        stranger.show("r")


# how it is run


def test_what_is_deployed_asks_for_options_that_there_are():
    folder = DOCS.parents[1] / "deploy"
    commands = re.findall(
        r"verax serve[^\n]*", (folder / "verax.service").read_text() + (folder / "compose.yaml").read_text()
    )
    said = CliRunner().invoke(app, ["serve", "--help"]).stdout
    assert len(commands) > 2
    for option in re.findall(r"--[a-z-]+", " ".join(commands)):
        assert option in said


# the first five minutes, and kills: a real server


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return {"PATH": path, "PYTHONPATH": str(Path(verax.__file__).parents[1]), "LANG": "C.UTF-8"}


class Served:
    """`verax serve` in a process of its own."""

    def __init__(self, folder: Path, command: str = "verax serve --port 0") -> None:
        self.folder, self.clients = folder, []
        with (folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=folder, env=environment(), text=True, stdout=subprocess.PIPE,
                stderr=log,
            )  # fmt: skip
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.address = re.search(r"http://[\d.]+:\d+", self.line)[0]

    def operator(self) -> Remote:
        self.clients.append(Remote(self.address, self.folder / "verax.db.keys" / "token.key"))
        return self.clients[-1]

    def end(self, how: int = signal.SIGINT) -> int:
        for client in self.clients:
            client.close()
        self.process.send_signal(how)
        code = self.process.wait(20)
        self.process.stdout.close()
        return code


def five_minutes() -> tuple[str, list[str]]:
    section = DOCS.read_text().split("## Five minutes\n")[1].split("\n## ")[0]
    first, *rest = (line.strip() for line in section.splitlines() if line.startswith("    "))
    return first, rest


@pytest.mark.slow
def test_the_first_five_minutes_are_as_the_docs_say(tmp_path):
    serve, commands = five_minutes()
    served = Served(tmp_path, serve.replace("8000", "0"))
    script = "\n".join(commands).replace("http://127.0.0.1:8000", served.address)
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "equal" in done.stdout and '"state": "paid"' in done.stdout
    assert "\nann," in done.stdout
    assert "DOES NOT" not in done.stdout and "the report is what was handed in" in done.stdout
    assert served.end() == 0
    log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert any(line.get("route") == "/rounds/{round}/seal" and line["who"] == "token" for line in log)
    assert (tmp_path / "verax.db.keys" / "token.key").read_text().strip() not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_worker_and_a_server_that_are_killed_settle_once(tmp_path):
    served = Served(tmp_path)
    rounds = [dataclasses.replace(SPEC, round=f"r{n}") for n in range(8)]
    operator = served.operator()
    keys = {agent: Key.new() for agent in SAID}
    for spec in rounds:
        operator.open(spec)
        operator.fund(spec.round)
        for agent, labels in SAID.items():
            operator.submit(spec.round, agent, report(labels), signer=keys[agent])
        operator.seal(spec.round)
    for n, spec in enumerate(rounds):
        operator.ask("POST", f"/rounds/{spec.round}/settle")
        children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
        workers = [int(c) for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        if n % 3 == 2:
            served.end(signal.SIGKILL)
            served = Served(tmp_path)
            operator = served.operator()
    found = [operator.settle(spec.round).amounts for spec in rounds]
    assert all(amounts == found[0] for amounts in found)
    assert operator.verify("r0") == [] and served.end() == 0
    ledger = Ledger.open(str(tmp_path / "verax.db"))
    balances = ledger.balances()
    assert {a: balances[f"agent:{a}"] for a in SAID} == {a: 8 * m for a, m in found[0].items()}
    ledger.close()


@pytest.mark.slow
def test_reading_does_not_wait_for_a_settlement(tmp_path):
    """Six hundred agents and 2,000 tasks settle for seconds; a round is read all the while."""
    served = Served(tmp_path, "verax serve --port 0 --rate 0")
    operator = served.operator()
    tasks = tuple(f"t{n}" for n in range(2000))
    operator.open(Spec("big", tasks, ("a", "b", "c"), "1000.00", rule="zero-one"))
    operator.fund("big")
    rng = np.random.default_rng(0)
    for n in range(150):
        said = verax.Reports.of([rng.integers(0, 3, 2000).tolist()], tasks=tasks, classes=("a", "b", "c"))
        operator.submit("big", f"a{n}", said, signer=Key.new())
    operator.seal("big")
    operator.ask("POST", "/rounds/big/settle")
    waits, state = [], "queued"
    while state in ("queued", "running"):
        start = time.perf_counter()
        operator.show("big")
        waits.append(time.perf_counter() - start)
        state = operator.ask("GET", "/rounds/big/settlement.json").json()["state"]
    assert state == "settled" and served.end() == 0
    assert max(waits) < 1.0, max(waits)
