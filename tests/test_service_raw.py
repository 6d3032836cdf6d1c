"""Bytes that no client means, on the service's own socket: none is answered by a mistake of ours, none makes it wait.

A request is drawn by a seed; what it says of itself (paths, headers, lengths, types, fields) is wrong in some way.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from test_service import SAID, SPEC, Place, Served, here, played, report, settled
from verax.keys import Key
from verax.rounds import Submission, content_of
from verax.service.client import Remote
from verax.service.gate import Limits

__all__ = ["here"]  # a fixture
Made = tuple[bytes, bool]  # what is sent, and whether it is whole, so that an answer must come

PATIENCE = 20.0
PATHS = (
    "/",
    "/rounds",
    "/rounds.json",
    "/rounds/r",
    "/rounds/r.json",
    "/rounds/r/opening.json",
    "/rounds/r/settlement.json",
    "/rounds/r/verification.json",
    "/rounds/r/agents/ann.json",
    "/rounds/r/agents/ann",
    "/rounds/r/agents/ann.receipt",
    "/rounds/r/agents/ann/balance.json",
    "/journal.json",
    "/journal",
    "/log/checkpoint",
    "/health",
    "/metrics",
    "/verify",
    "/openapi.json",
    "/desk",
    "/webhooks.json",
    "/rounds/r/payouts.csv",
    "/static/verax.css",
    "/webhooks/x",
)
STEPS = (
    "/rounds",
    "/rounds/r/submissions",
    "/rounds/r/admissions",
    "/rounds/r/reveals",
    "/rounds/r/beacon",
    "/rounds/r/fund",
    "/rounds/r/invitations",
    "/rounds/r/seal",
    "/rounds/r/settle",
    "/rounds/r/void",
    "/rounds/r/verify",
    "/webhooks",
    "/log/cosignatures",
    "/desk/session",
    "/desk/open",
    "/desk/rounds/r2/invite",
    "/desk/end",
)
SQL = (
    "' OR '1'='1",
    "'; DROP TABLE journal; --",
    '" UNION SELECT * FROM journal --',
    "%' ESCAPE '!",
    "1); VACUUM; --",
    "r' || pg_sleep(9) || '",
    "\\'; SELECT 1; --",
)
ODD = (
    "../../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/",
    "....//",
    "%00",
    "%0d%0aSet-Cookie:x=1",
    "%ff%fe",
    "%C0%AF",
    "~root",
    "\u202e",
    "%F0%9F%98%80",
    "a" * 600,
    "%",
    "%2",
    "%zz",
    ".json",
    "..json",
    "{round}",
    "${7*7}",
    "{{7*7}}",
    "<script>alert(1)</script>",
    "//evil.test/",
    "r%2Fagents%2Fann",
    "*",
    "?",
    "#",
    ";",
    "|ls",
    "`id`",
    "\x7f",
)
VALUES = (
    "null",
    "true",
    "-1",
    "0",
    "1e400",
    "-1e400",
    "1" * 5000,
    "0." + "1" * 5000,
    "9223372036854775808",
    "18446744073709551616",
    "NaN",
    "Infinity",
    '""',
    '"\\u0000"',
    '"\\ud800"',
    '"\\ud83d\\ude00"',
    "[]",
    "{}",
    "[" * 200 + "]" * 200,
    '{"a":' * 80 + "1" + "}" * 80,
    '"' + "x" * 70_000 + '"',
    "[null]",
    '[["a"]]',
    '"\u0301"',
    *(json.dumps(each) for each in SQL),
)
TYPES = (
    "application/json",
    "text/plain",
    "application/xml",
    "multipart/form-data; boundary=x",
    "multipart/form-data; boundary=x; charset=unicode_escape",
    "multipart/form-data",
    "",
    "application/x-www-form-urlencoded",
    "application/json; charset=utf-16",
    "\xff\xfe",
    "image/png",
)


class Maker:
    """Draws requests; `documents` are bodies that would be in order."""

    def __init__(self, seed: int, host: str, token: str, documents: list[str]) -> None:
        self.rng, self._host, self._token, self._documents = random.Random(seed), host, token, documents
        self._ways: tuple[Callable[[], Made], ...] = (
            self.noise,
            self.path,
            self.query,
            self.headers,
            self.body,
            self.body,
            self.field,
            self.field,
            self.chunked,
            self.length,
            self.cut,
            self.framing,
            self.form,
            self.credentials,
        )

    def draw(self) -> Made:
        """One request."""
        return self.rng.choice(self._ways)()

    def request(self, method: str, path: str, body: bytes = b"", more: list[str] | None = None) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", "Connection: close", *(more or [])]
        if body and not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in lines):
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body

    @property
    def bearer(self) -> list[str]:
        return [f"Authorization: Bearer {self._token}"] if self.rng.random() < 0.7 else []

    def noise(self) -> Made:
        return self.rng.randbytes(self.rng.randint(1, 300)) + b"\r\n\r\n", False

    def path(self) -> Made:
        parts = self.rng.choice(PATHS).split("/")
        parts[self.rng.randrange(1, len(parts))] = self.rng.choice([*ODD, *SQL]).replace(" ", "%20")
        return self.request(
            self.rng.choice(["GET", "HEAD", "POST", "DELETE"]), "/".join(parts), more=self.bearer
        ), False

    def query(self) -> Made:
        value = self.rng.choice(["-1", "9223372036854775808", "1e5", "", "%00", "a" * 3000, "1&after=2", *SQL])
        name = self.rng.choice(["after", "most", "since", "entry", "x" * 200, "after[]"])
        return self.request(
            "GET", f"{self.rng.choice(PATHS)}?{name}={value.replace(' ', '%20')}", more=self.bearer
        ), True

    def headers(self) -> Made:
        big = "x" * self.rng.choice([10, 8_000, 60_000, 200_000])
        many = [f"X-{n}: {n}" for n in range(self.rng.choice([1, 100, 2000]))]
        odd = [
            "Cookie: session=" + big,
            "Accept: text/html, " + big,
            "If-None-Match: " + big,
            "Range: bytes=9-1",
            "Expect: 100-continue",
            "Upgrade: websocket",
            "Host: evil.test",
            "X-Forwarded-For: ' OR 1=1",
            "X-Forwarded-Proto: \x01",
            "Origin: null",
            "Accept: text/html",
            "Idempotency-Key: " + big[:300],
            "Last-Event-ID: -1",
            ": empty",
            "No colon",
            "Bad\x00Name: x",
        ]
        chosen = [*self.rng.sample(odd, 3), *(many if self.rng.random() < 0.2 else [])]
        return self.request("GET", self.rng.choice(PATHS), more=chosen), False

    def body(self) -> Made:
        kind = f"Content-Type: {self.rng.choice(TYPES)}"
        value = self.rng.choice(
            [*VALUES, "[" * 100_000, '{"a":1,"a":2}', "\ufeff{}", "{", '{"round":', "'", ""]
        ).encode()
        value = value if self.rng.random() < 0.8 else self.rng.randbytes(200)
        return self.request(
            self.rng.choice(["POST", "PUT", "PATCH"]), self.rng.choice(STEPS), value, [kind, *self.bearer]
        ), True

    def field(self) -> Made:
        """A document that would be in order, with one value of it another."""
        path, text = self.rng.choice(self._documents).split(" ", 1)
        document = json.loads(text)
        at = self.rng.choice([*document])
        whole = json.dumps({**document, at: "\u0007"}).replace('"\\u0007"', self.rng.choice(VALUES), 1)
        return self.request("POST", path, whole.encode("utf-8", "surrogatepass"), self.bearer), True

    def chunked(self) -> Made:
        part = self.rng.choice(
            [
                b'5\r\n{"a":\r\n',
                b"zz\r\nx\r\n",
                b"ffffffffffffffffff\r\nx\r\n",
                b"-1\r\n",
                b"5;ext=1\r\n12345\r\n",
                b"1000000\r\nabc",
            ]
        )
        end = self.rng.choice([b"0\r\n\r\n", b"", b"0\r\nTrailer: x\r\n\r\n"])
        more = ["Transfer-Encoding: " + self.rng.choice(["chunked", "gzip, chunked", "chunked, chunked", "xchunked"])]
        return self.request("POST", self.rng.choice(STEPS), part * self.rng.randint(1, 5) + end, more), False

    def length(self) -> Made:
        said = self.rng.choice(["-1", "1e3", "99999999999999999999", "16777217", "0x10", "", "5, 6", "\u0663"])
        more = [f"Content-Length: {said}", *(["Content-Length: 3"] if self.rng.random() < 0.3 else [])]
        return self.request("POST", self.rng.choice(STEPS), b"{}" * self.rng.randint(0, 3), more), False

    def cut(self) -> Made:
        made = self.request("POST", self.rng.choice(STEPS), self._documents[0].split(" ", 1)[1].encode(), self.bearer)
        return made[: self.rng.randrange(1, len(made))], False

    def framing(self) -> Made:
        path = self.rng.choice(PATHS)
        return self.rng.choice(
            [
                f"GET {path}\r\n\r\n",
                f"GET {path} HTTP/9.9\r\n\r\n",
                "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                "CONNECT a:1 HTTP/1.1\r\n\r\n",
                f"GET http://evil.test{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
                f"get {path} HTTP/1.1\r\n\r\n",
                "\r\n\r\n",
                f"GET {path} HTTP/1.1\r\n\r\n" * 20,
                f"BREW {path} HTTP/1.1\r\nHost: a\r\n\r\n",
                "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
                f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
                "0\r\n\r\nGET /x HTTP/1.1\r\n\r\n",
                f"GET {path} HTTP/1.0\r\n\r\n",
                "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            ]
        ).encode("latin-1"), False

    def form(self) -> Made:
        body = self.rng.choice(
            [
                "token=" + "x" * 5000,
                "token=%ff",
                "a=b&" * 3000,
                "--x\r\nContent-Disposition: form-data\r\n\r\n",
                '--x\r\nContent-Disposition: form-data; name="token"\r\n\r\n\\ud800\r\n--x--\r\n',
                "--x--",
                '--x\r\nContent-Disposition: form-data; name="token"; filename="../x"\r\n\r\nb\r\n--x--\r\n',
            ]
        )
        kind = self.rng.choice([each for each in TYPES if "form" in each])
        more = [f"Content-Type: {kind}", f"Origin: http://{self._host}", "Accept: text/html"]
        return self.request(
            "POST",
            self.rng.choice(["/desk/session", "/desk/open", "/desk/rounds/r2/seal", *STEPS]),
            body.encode(),
            more,
        ), True

    def credentials(self) -> Made:
        odd = self.rng.choice(
            [
                "Authorization: Bearer \xff\xfe",
                "Authorization: Bearer",
                "Authorization: Basic !!",
                "Signature: v=::",
                'Signature-Input: v=("@method");created=1',
                "Signature: v=:" + "A" * 9000 + ":",
                "Content-Digest: x",
            ]
        )
        path = self.rng.choice(["/webhooks.json", "/rounds/r/payouts.csv", "/rounds/r/agents/ann/balance.json"])
        return self.request("GET", path, more=[odd, "Signature-Input: v=x"]), True


def answered(address: tuple[str, int], made: Made) -> bytes:
    """What comes back; of what is not whole as much as comes in a moment."""
    sent, whole = made
    found = b""
    with socket.create_connection(address, PATIENCE) as line:
        try:
            half = len(sent) // 2 if len(sent) % 7 == 0 else len(sent)  # now and then it comes in two parts
            line.sendall(sent[:half])
            line.sendall(sent[half:])
            line.settimeout(PATIENCE if whole else 0.02)
            while part := line.recv(65536):
                found += part
        except (ConnectionError, BrokenPipeError):
            pass  # refused before all of it was sent
        except TimeoutError:
            if whole:
                raise AssertionError(f"no answer in {PATIENCE:.0f} s to {sent[:500]!r}") from None
    return found


def fuzz(address: str, make: Maker, number: int) -> Counter[int]:
    """So many requests, each on a connection of its own; the statuses of the answers."""
    where, count = urlsplit(address), Counter[int]()
    assert where.hostname and where.port
    for _ in range(number):
        made = make.draw()
        found = answered((where.hostname, where.port), made)
        statuses = [int(status) for status in re.findall(rb"^HTTP/1\.[01] (\d{3})", found, re.M)]
        assert all(status < 500 for status in statuses), f"{made[0][:800]!r}: {found[:300]!r}"
        assert statuses or not made[1], f"no answer to {made[0][:800]!r}"
        count.update(statuses or [0])
    return count


def documents_of(remote: Remote, round: str) -> list[str]:
    """Bodies that would be in order, each behind its address."""
    record = remote.public_record(round)
    made = Submission.of(record, "dan", 1, content_of(report(SAID["ann"]), remote.spec(round)), Key.new()).to_json()
    spec = SPEC.to_json() | {"round": "fuzzed"}
    funding, inviting = {"amount": 5, "agent": "ann", "key": "k"}, {"count": 1, "organisation": None}
    pairs = [
        (f"/rounds/{round}/submissions", made),
        ("/rounds", spec),
        (f"/rounds/{round}/fund", funding),
        (f"/rounds/{round}/invitations", inviting),
        (f"/rounds/{round}/beacon", {"text": "x"}),
        ("/log/cosignatures", {"witness": "w", "lines": ["x"]}),
        ("/webhooks", {"url": "x"}),
    ]
    return [f"{path} {json.dumps(document)}" for path, document in pairs]


def test_bytes_that_nobody_means_are_never_answered_by_a_mistake_of_ours(tmp_path):
    place = Place(str(tmp_path / "verax.db"), tmp_path, Limits(rate=0))
    try:
        played(place)
        settled(place)
        place.operator.open(type(SPEC)("r2", SPEC.tasks, SPEC.classes, "100.00", min_tasks=2))
        token = Path(place.service.token_file).read_text().strip()
        make = Maker(0, urlsplit(place.address).netloc, token, documents_of(place.remote(), "r2"))
        found = fuzz(place.address, make, 500)
        assert {200, 400, 401, 404, 422} <= {*found}, found
        assert place.service.rounds.verify() == []
    finally:
        place.close()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data; boundary=x", b"a=b&a=b"),
        (
            "multipart/form-data; boundary=x; charset=unicode_escape",
            b'--x\r\nContent-Disposition: form-data; name="token"\r\n\r\n\\ud800\r\n--x--\r\n',
        ),
    ],
)
def test_a_form_that_is_none_is_refused(here, kind, body):
    found = here.http.post("/desk/session", content=body, headers={"content-type": kind, "origin": here.address})
    assert found.status_code in (401, 422) and found.json()["detail"]


def test_who_goes_away_in_the_middle_is_no_mistake_of_ours(here):
    where = urlsplit(here.address)
    head = f"POST /rounds HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: 500\r\n\r\nabc"
    with socket.create_connection((where.hostname, where.port)) as line:
        line.sendall(head.encode())
        time.sleep(0.05)
    time.sleep(0.1)
    assert (
        'status="500"' not in here.http.get("/metrics").text
        and 'route="/rounds",status="4' in here.http.get("/metrics").text
    )


def megabytes(pid: int) -> float:
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


@pytest.mark.slow
def test_a_hundred_thousand_such_requests_neither_break_nor_fill_it(tmp_path):
    served, number = Served(tmp_path, "verax serve --port 0 --rate 0"), int(os.environ.get("VERAX_RAW", "100000"))
    operator = served.operator()
    for name in ("r", "r2"):
        operator.open(type(SPEC)(name, SPEC.tasks, SPEC.classes, "100.00", min_tasks=2))
    token, host = (tmp_path / "verax.db.keys" / "token.key").read_text().strip(), urlsplit(served.address).netloc
    documents, found, broken = documents_of(operator, "r2"), Counter[int](), []

    def work(seed: int, share: int) -> None:
        try:
            found.update(fuzz(served.address, Maker(seed, host, token, documents), share))
        except Exception as error:
            broken.append(error)

    def all_of(seeds: range, share: int) -> float:
        threads = [threading.Thread(target=work, args=(seed, share)) for seed in seeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return megabytes(served.process.pid)

    begun, start = all_of(range(8), number // 32), time.monotonic()
    ended = all_of(range(8, 16), number * 3 // 32)
    print(dict(found), f"{begun:.0f} MB after a quarter, {ended:.0f} MB in the end, {time.monotonic() - start:.0f} s")
    assert not broken, broken[0]
    assert ended < begun + 40
    assert operator.verify() == []
    assert served.end() == 0
    log = (tmp_path / "log").read_text()
    assert '"status": 5' not in log and "exception" not in log
