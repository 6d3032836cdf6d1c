"""The OWASP API Security Top 10 (2023) against the service, an attack or several each; docs/service.md lists them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.responses import Response

from test_service import DOCS, SAID, SPEC, Place, here, played, report, settled
from verax.errors import AccessError, ConflictError, IdentityError, InputError, LimitError
from verax.keys import Key
from verax.rounds import Admission, Submission, content_of
from verax.service.access import Guard, signed_headers
from verax.service.client import Remote
from verax.service.gate import Gate, Limits, Meters, SlowError
from verax.service.shared import Funding

__all__ = ["here"]


@pytest.fixture
def limited(tmp_path) -> Iterator[Place]:
    found = Place(str(tmp_path / "verax.db"), tmp_path, Limits(rate=1.0, body=2000))
    yield found
    found.close()


# API1: whose object it is


def test_owasp_1_nobody_reads_or_replaces_what_is_anothers(here):
    keys, eve = played(here), Key.new()
    with pytest.raises(Exception, match="that key has handed in nothing as 'ann'"):
        here.remote().balance("r", "ann", eve)
    with pytest.raises(IdentityError, match="nobody has signed"):
        here.remote().balance("r", "ann")
    with pytest.raises(ConflictError, match="'ann' is another key's"):
        here.remote().submit("r", "ann", report(SAID["cy"]), signer=eve)
    with pytest.raises(ConflictError, match="this key is already 'bob'"):
        here.remote().submit("r", "ann2", report(SAID["cy"]), signer=keys["bob"])
    record = here.remote().public_record("r")
    stolen = Submission.of(record, "ann", 2, content_of(report(SAID["cy"]), SPEC), eve)
    for change in ({"key": keys["ann"].public}, {"agent": "bob"}, {"number": 1}):
        forged = dataclasses.replace(stolen, **change).to_json()
        assert here.http.post("/rounds/r/submissions", json=forged).status_code == 409
    assert len(here.remote().of_agent("r", "ann")["submissions"]) == 1


def test_owasp_1_a_key_of_a_request_gives_nobody_anothers_receipt(here):
    here.operator.open(SPEC)
    ann, eve = Key.new(), Key.new()
    first = here.remote().submit("r", "ann", report(SAID["ann"]), key="k", signer=ann)
    second = here.remote().submit("r", "eve", report(SAID["bob"]), key="k", signer=eve)
    assert (first.agent, second.agent) == ("ann", "eve") and first.entry != second.entry


# API2: who asks


def forged(change: str, key: Key, url: str, body: bytes) -> tuple[str, str, dict[str, str], bytes]:
    """A signed request with one thing in it another."""
    where, method = urlsplit(url), "POST"
    headers = signed_headers(key, method, where, body)
    if change == "body":
        body += b" "
    if change == "body and digest":
        body += b" "
        headers |= {"Content-Digest": signed_headers(key, method, where, body)["Content-Digest"]}
    if change == "path":
        url = url.replace("/void", "/fund")
    if change == "query":
        url += "?x=1"
    if change == "method":
        method = "PUT"
    if change == "host":
        headers |= {"Host": "elsewhere.test"}
    if change == "key":
        headers["Signature-Input"] = headers["Signature-Input"].replace(key.public, Key.new().public)
    if change == "time":
        headers["Signature-Input"] = re.sub(
            r"created=\d+", f"created={int(time.time()) + 1}", headers["Signature-Input"]
        )
    if change == "fewer parts":
        headers["Signature-Input"] = headers["Signature-Input"].replace(' "content-digest"', "")
    if change == "algorithm":
        headers["Signature-Input"] = headers["Signature-Input"].replace("ed25519", "hmac-sha256")
    if change == "no signature":
        del headers["Signature"]
    if change == "empty signature":
        headers["Signature"] = "v=::"
    return method, url, headers, body


CHANGES = ["body", "body and digest", "path", "query", "method", "host", "key", "time", "fewer parts", "algorithm",
           "no signature", "empty signature"]  # fmt: skip


def test_owasp_2_a_signature_is_for_one_request_and_no_other(here):
    key = Key.new()
    here.service.guard.operators |= {key.public}
    here.operator.open(SPEC)
    for change in CHANGES:
        method, url, headers, body = forged(change, key, f"{here.address}/rounds/r/void", b"")
        found = here.http.request(method, url, headers=headers, content=body)
        assert found.status_code in (401, 405) and here.service.rounds.state("r") == "open", change
    headers = signed_headers(key, "POST", urlsplit(f"{here.address}/rounds/r/void"), b"")
    assert here.http.post("/rounds/r/void", headers=headers).status_code == 200


def test_owasp_2_a_signed_request_counts_once_and_soon(here):
    key, now = Key.new(), [1_000_000.0]
    url = urlsplit("https://verax.test/rounds/r/seal")
    guard = Guard([key.public], clock=lambda: now[0])

    def asked(created: float) -> dict[str, str]:
        import verax.service.access as access

        real, access.time.time = access.time.time, lambda: created
        try:
            return signed_headers(key, "POST", url, b"")
        finally:
            access.time.time = real

    once = asked(now[0])
    assert guard.operator("POST", url, once, b"") == key.public
    with pytest.raises(IdentityError, match="was made before"):
        guard.operator("POST", url, once, b"")
    for created in (now[0] - 61, now[0] + 61):
        with pytest.raises(IdentityError, match="sign it anew, in time"):
            guard.operator("POST", url, asked(created), b"")
    now[0] += 10
    again = Guard([key.public], clock=lambda: now[0])  # the service, started again: it has forgotten all nonces
    with pytest.raises(IdentityError, match="sign it anew, in time"):
        again.operator("POST", url, once, b"")


def test_owasp_2_a_token_is_whole_or_nothing(here):
    token = Path(here.service.token_file).read_text().strip()
    here.operator.open(SPEC)
    for given in ("x", token[:-1], token + "x", token.swapcase(), f"{token} {token}", "\xff" * 43):
        headers = {"Authorization": f"Bearer {given}".encode("latin-1")}
        assert here.http.post("/rounds/r/void", headers=headers).status_code == 401
    assert here.http.post("/rounds/r/void", headers={"Authorization": f"Basic {token}"}).status_code == 401
    assert here.service.rounds.state("r") == "open"
    assert stat.S_IMODE(Path(here.service.token_file).stat().st_mode) == 0o600


# API3: which of an object's properties


def test_owasp_3_nothing_hidden_is_shown_and_nothing_unasked_is_taken(here):
    truth = dataclasses.replace(SPEC, truth=(0, 1, 1, 0, 1, 0))
    played(here, truth)
    secret = here.service.rounds.ledger.keys.get(f"r.{here.service.rounds.public_record('r')['secret_hash'][:16]}")
    token = Path(here.service.token_file).read_text().strip()
    assert secret
    of_round = "", ".json", "/opening.json", "/agents/ann.json", "/agents/ann.receipt", "/settlement.json"
    for path in ("/rounds.json", "/journal.json", "/journal", "/metrics", *(f"/rounds/r{end}" for end in of_round)):
        text = here.http.get(path).text
        assert secret not in text and token not in text and "PRIVATE" not in text and "[0,1,1,0,1,0]" not in text
    for extra in ({"secret": "00" * 32}, {"state": "settled"}, {"operator": "me"}, {"digest": "x"}):
        document = {**SPEC.to_json(), "round": "r9", **extra}
        found = here.http.post("/rounds", json=document, headers={"Authorization": f"Bearer {token}"})
        assert found.status_code == 422 and "unknown" in found.json()["detail"]


def test_owasp_3_a_deposit_says_which_it_is():
    for wrong in ({"amount": 5}, {"agent": "ann"}, {"amount": 0, "key": "k"}, {"amount": 2**63, "key": "k"}):
        with pytest.raises(InputError):
            Funding.from_json({"amount": None, "agent": None, "key": None} | wrong)


# API4: how much


def test_owasp_4_bodies_rates_depth_and_pages_have_their_limits(limited, here):
    assert limited.http.post("/rounds/r/submissions", content=b"x" * 3000).status_code == 413
    time.sleep(1.1)
    assert {limited.http.get("/health").status_code for _ in range(8)} == {200, 429}
    deep = b'{"a":' * 100 + b"1" + b"}" * 100
    assert here.http.post("/rounds/r/submissions", content=deep).status_code == 422
    assert here.http.get("/journal.json?most=100000").status_code == 422


def test_owasp_4_a_body_that_does_not_come_is_given_up_and_bodies_together_are_bounded():
    async def nothing() -> dict:
        await asyncio.sleep(60)
        return {}

    async def reading(scope, receive, send):
        await receive()

    async def sent(message) -> None:
        pass

    refused: list[Exception] = []

    def refusal(_, error: Exception) -> Response:
        refused.append(error)
        return Response()

    gate = Gate(reading, Limits(rate=0, seconds=0.05, body=100, bodies=150), Meters(), refusal)
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "client": ("192.0.2.1", 1)}
    asyncio.run(gate(scope, nothing, sent))
    assert isinstance(refused[0], SlowError) and "has not come" in str(refused[0])
    gate.hold(100)
    with pytest.raises(LimitError, match="by all together"):
        gate.check_size(60)


def test_owasp_4_too_many_watchers_are_refused(here, monkeypatch):
    monkeypatch.setattr("verax.service.follow._MOST_WATCHING", 0)
    here.operator.open(SPEC)
    with pytest.raises(LimitError, match="too many look on"):
        asyncio.run(anext(here.service.watch.changes("r")))


# API5: which function


def test_owasp_5_what_only_operators_may_do_nobody_else_does(here):
    played(here)
    ann = Key.new()
    described = here.http.get("/openapi.json").json()["paths"]
    only = [(method, path) for path, each in described.items() for method, what in each.items() if "security" in what]
    assert len(only) >= 12
    for method, path in only:
        url = here.address + re.sub(r"\{\w+\}", "r", path)
        assert here.http.request(method, url).status_code == 401, path
        headers = signed_headers(ann, method.upper(), urlsplit(url), b"")
        assert here.http.request(method, url, headers=headers).status_code == 403, path
    assert here.service.rounds.state("r") == "open" and here.service.hooks.all() == []
    anybody = {(m, p) for p, each in described.items() for m in each} - set(only)
    assert {p.rpartition("/")[2] for m, p in anybody if m != "get"} == {
        "submissions",
        "admissions",
        "reveals",
        "beacon",
    }


# API6: what could be done by the thousand


def test_owasp_6_an_invitation_counts_once_and_a_quota_holds(here):
    here.operator.open(dataclasses.replace(SPEC, invited=True, quota=2))
    (token,) = here.operator.invite("r")
    record, ann, eve = here.remote().public_record("r"), Key.new(), Key.new()
    here.remote().admit(Admission.of(record, "ann", ann, token))
    with pytest.raises(ConflictError, match="has been used"):
        here.remote().admit(Admission.of(record, "eve", eve, token))
    with pytest.raises(ConflictError, match="no invitation"):
        here.remote().admit(Admission.of(record, "eve", eve, "guess"))
    for said in ("ann", "bob"):
        here.remote().submit("r", "ann", report(SAID[said]), signer=ann)
    with pytest.raises(ConflictError, match="which is all that"):
        here.remote().submit("r", "ann", report(SAID["cy"]), signer=ann)


# API7 is in test_service_webhooks: no address within a private network is ever told


# API8: how it is set up


def test_owasp_8_a_mistake_of_ours_tells_nothing_of_itself(here, monkeypatch):
    def broken(*_):
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(here.service.rounds, "public_record", broken)
    found = here.http.get("/rounds/r/opening.json")
    assert found.status_code == 500 and "hunter2" not in found.text and "Traceback" not in found.text
    assert here.http.get("/health").status_code == 200


def test_owasp_8_headers_are_strict_and_say_no_more_than_they_must(here):
    for path in ("/rounds", "/rounds.json", "/nothing", "/static/page.css"):
        headers = here.http.get(path, headers={"Origin": "https://evil.test"}).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers and "x-powered-by" not in headers
    assert here.http.request("TRACE", "/rounds").status_code == 405
    for path in ("/docs", "/redoc", "/.env", "/admin"):
        assert here.http.get(path).status_code == 404


def test_owasp_8_neither_pages_nor_events_are_kept_by_anybody(here):
    here.operator.open(SPEC)
    for path in ("/desk", "/rounds/r", "/rounds.json", "/health"):
        assert here.http.get(path).headers["cache-control"] == "no-store"


# API9: which addresses there are


def test_owasp_9_every_address_is_described_and_every_described_one_is_in_the_docs(here):
    described = here.http.get("/openapi.json").json()["paths"]
    pages = {"/", "/rounds/{round}", "/rounds/{round}/agents/{agent}", "/verify", "/static/{name}", "/journal"}
    there = {route.path for route in here.app.routes if hasattr(route, "path")}
    hidden = there - {*described} - {"/openapi.json"}
    assert {path for path in hidden if not path.startswith("/desk")} == pages
    docs = DOCS.read_text()
    for path in described:
        last = path.rpartition("/")[2].replace("{round}", "R").replace("{agent}", "A").replace("{id}", "ID")
        assert last.partition("?")[0] in docs, path


# API10: whom the client believes


def test_owasp_10_a_hostile_server_is_not_believed(here):
    played(here)
    found = settled(here)
    stranger = here.remote()
    real = stranger._document

    def lying(method, path, *rest, **how):
        answer = real(method, path, *rest, **how)
        if path.endswith("/opening.json"):
            answer = json.loads(json.dumps(answer).replace('"zero-one"', '"os:system"'))
        return answer

    stranger._document = lying
    with pytest.raises(InputError, match="is code that the server names"):
        stranger.submit("r", "ann", report(SAID["ann"]), signer=Key.new())
    assert found.amounts


def test_owasp_10_a_token_follows_no_redirect(here, tmp_path):
    asked: list[httpx.Request] = []

    def elsewhere(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(307, headers={"Location": "https://evil.test/rounds/r/seal"})

    remote = Remote(here.address, here.service.token_file)
    remote._http.close()
    remote._http = httpx.Client(transport=httpx.MockTransport(elsewhere), headers=dict(remote._http.headers))
    with pytest.raises((AccessError, Exception), match="answered 307"):
        remote.seal("r")
    assert [str(each.url) for each in asked] == [f"{here.address}/rounds/r/seal"]
    remote.close()


def test_every_risk_of_the_list_has_a_test_that_the_docs_name():
    section = DOCS.read_text().split("## Against the OWASP API Security Top 10\n")[1].split("\n## ")[0]
    here = Path(__file__).parent
    tests = "".join((here / name).read_text() for name in ("test_service_attacks.py", "test_service_webhooks.py"))
    rows = [line for line in section.splitlines() if re.match(r"\| \d", line)]
    assert [int(re.match(r"\| (\d+)", row)[1]) for row in rows] == [*range(1, 11)]
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named and all(f"def {name}(" in tests for name in named), row
