"""Webhooks: what is told is signed, in order, again until it is taken, and never to where nobody should reach."""

from __future__ import annotations

import base64
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from test_service import SPEC, here, played, settled
from verax.errors import ConflictError, InputError, NotFoundError
from verax.service.webhooks import WAITS, Hooks, checked_address, signed

__all__ = ["here"]


class Listener:
    """An address that takes what it is told, or answers as it is asked to."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = told.answers.pop(0) if told.answers else 204
                if status == 204:
                    told.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", f"http://127.0.0.1:{told.port}/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def listener():
    found = Listener()
    yield found
    found.close()


def test_a_signature_is_the_one_that_was_published():
    """The example of the Standard Webhooks documentation."""
    secret, id, at = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
    found = signed(secret, id, at, b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_what_happens_is_told_in_order_and_another_library_believes_it(here, listener):
    hooks = Hooks(here.service.rounds.ledger, private=True)
    _, secret = hooks.add(f"http://127.0.0.1:{listener.port}/told")
    played(here)
    settled(here)
    assert hooks.tell() == 6 and hooks.tell() == 0
    said = [json.loads(body) for _, body in listener.got]
    kinds = ["round.opened", *["submission.taken"] * 3, "round.sealed", "round.settled"]
    assert [each["type"] for each in said] == kinds and [each["data"].get("agent") for each in said][1:4] == [
        "ann", "bob", "cy",
    ]  # fmt: skip
    webhook = pytest.importorskip("standardwebhooks").Webhook(secret)
    for headers, body in listener.got:
        webhook.verify(body, headers)
    with pytest.raises(Exception, match="No matching signature"):
        webhook.verify(listener.got[0][1] + b" ", listener.got[0][0])
    token = (here.service.token_file, secret)
    assert base64.b64decode(secret[6:]) not in b"".join(body for _, body in listener.got) and token
    assert len({headers["webhook-id"] for headers, _ in listener.got}) == 6


def test_what_was_not_taken_is_told_again_later_and_what_never_is_keeps_nothing_back(here, listener):
    now = [0.0]
    hooks = Hooks(here.service.rounds.ledger, private=True, clock=lambda: now[0])
    hooks.add(f"http://127.0.0.1:{listener.port}/told")
    here.operator.open(SPEC)
    listener.answers = [500, 302, 404]
    for n, wait in enumerate(WAITS[:3]):
        assert hooks.tell() == 0 and hooks.all()[0].state == "trying" and hooks.all()[0].tries == n + 1
        assert hooks.tell() == 0  # not before it is due
        now[0] += wait
    assert hooks.tell() == 1 and hooks.all()[0].state == "fine"
    here.operator.void("r")
    listener.answers = [503] * (len(WAITS) + 1)
    for wait in (*WAITS, 0):
        assert hooks.tell() == 0
        now[0] += wait
    assert hooks.all()[0].state == "missed" and "503" in hooks.all()[0].reason
    here.operator.open(type(SPEC)("r2", SPEC.tasks, SPEC.classes, "1.00", min_tasks=2))
    assert hooks.tell() == 1
    assert [json.loads(body)["data"]["round"] for _, body in listener.got] == ["r", "r2"]


INSIDE = [
    "https://127.0.0.1/", "https://localhost/", "https://0.0.0.0/", "https://[::1]/", "https://10.1.2.3/",
    "https://192.168.0.1/", "https://169.254.169.254/latest/meta-data/", "https://[::ffff:127.0.0.1]/", "https://2130706433/",
    "https://0x7f.1/", "https://[fe80::1]/", "https://[fd00::1]/", "https://100.64.0.1/",
    "https://[64:ff9b::a9fe:a9fe]/", "https://[2002:7f00:1::1]/", "https://[::127.0.0.1]/", "https://[fec0::1]/",
    "https://224.0.0.1/", "https://[ff02::1]/",
]  # fmt: skip


@pytest.mark.parametrize("url", INSIDE)
def test_no_address_inside_a_private_network_is_told(url):
    with pytest.raises(InputError, match="within a private network"):
        checked_address(url, private=False)


@pytest.mark.parametrize(
    "url",
    ["http://example.com/", "file:///etc/passwd", "https://", "https://a:b@example.com/", "https://x:0/", "gopher://x"],
)
def test_what_is_no_address_of_a_webhook_is_refused(url):
    with pytest.raises(InputError):
        checked_address(url, private=False)


def test_a_name_that_means_another_place_by_the_time_it_is_told_is_not_told(here, listener, monkeypatch):
    meant = ["93.184.216.34"]
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", None)]
    monkeypatch.setattr("verax.service.webhooks.getaddrinfo", lambda *_, **__: [(*answer[0][:4], (meant[0], 443))])
    hooks = Hooks(here.service.rounds.ledger, private=False)
    hooks.add(f"https://rebound.test:{listener.port}/")
    meant[0] = "127.0.0.1"
    here.operator.open(SPEC)
    assert hooks.tell() == 0 and "within a private network" in hooks.all()[0].reason and not listener.got


def test_operators_name_webhooks_and_nobody_else(here):
    with pytest.raises(InputError, match="private network"):
        here.operator.add_webhook("https://127.0.0.1/")
    here.service.hooks._private = True
    added = here.operator.add_webhook("http://127.0.0.1:9/told")
    assert added["secret"].startswith("whsec_")
    with pytest.raises(ConflictError, match="is told already"):
        here.operator.add_webhook("http://127.0.0.1:9/told")
    (shown,) = here.operator.webhooks()
    assert shown["url"].endswith("/told") and "secret" not in shown
    for method, path in (("GET", "/webhooks.json"), ("POST", "/webhooks"), ("DELETE", f"/webhooks/{added['id']}")):
        assert here.http.request(method, path).status_code == 401
    here.operator.remove_webhook(added["id"])
    assert here.operator.webhooks() == []
    with pytest.raises(NotFoundError):
        here.operator.remove_webhook(added["id"])
