"""The service among strangers: connections that say nothing, forms that are none, servers that are something else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import threading
import time

import httpx
import pytest
import uvicorn
from typer.testing import CliRunner

from test_service import SPEC, Place
from verax.cli import app
from verax.errors import VeraxError
from verax.keys import Key
from verax.service.client import Remote
from verax.service.connections import limited
from verax.service.gate import network


async def greeting(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def late(scope, receive, send):
    await asyncio.sleep(1.0)
    await greeting(scope, receive, send)


@contextlib.contextmanager
def served(app):
    """A server on which one address may have five connections, and a head must come in 0.4 seconds."""
    config = uvicorn.Config(app, port=0, log_config=None, ws="none", lifespan="off", http=limited(5, 0.4))
    listening = config.bind_socket()
    listening.listen(100)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture
def port():
    with served(greeting) as found:
        yield found


@contextlib.contextmanager
def connections(port, count):
    there = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for each in there:
        each.settimeout(5)
    yield there
    for each in there:
        each.close()


def status(port):
    return httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).status_code


def test_one_address_takes_no_more_than_its_connections_and_gives_them_back(port):
    with connections(port, 5) as there:
        time.sleep(0.1)
        assert status(port) == 429
        assert all(each.recv(1) == b"" for each in there)  # closed, for nothing was asked
    assert [status(port) for _ in range(8)] == [200] * 8


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_a_head_that_comes_letter_by_letter_is_not_waited_for(port, first):
    with connections(port, 1) as (slow,):
        slow.sendall(first)
        assert not first or slow.recv(1000).endswith(b"ok")
        begun = time.monotonic()
        for letter in b"GET / HTTP/1.1\r\nX: " + b"x" * 60:
            with contextlib.suppress(OSError):  # which says that it was closed
                slow.sendall(bytes([letter]))
            if select.select([slow], [], [], 0.05)[0]:
                break
        assert time.monotonic() - begun < 2


def test_an_answer_that_takes_long_is_waited_for():
    with served(late) as port:
        assert status(port) == 200


def test_who_comes_by_the_fourth_version_has_a_limit_of_its_own():
    assert network("::ffff:192.0.2.7") == network("192.0.2.7") != network("::ffff:192.0.2.8")


FORMS = [
    ({"origin": "http://["}, b"token=x", 403),
    ({"origin": "null"}, b"token=x", 403),
    ({"content-type": "multipart/form-data"}, b"token=x", 422),
    ({"content-type": "multipart/form-data; boundary=x"}, b"--x\r\nzz\r\n", 422),
    ({}, b"token=%ff", 401),
]


@pytest.fixture
def here(tmp_path):
    found = Place(str(tmp_path / "verax.db"), tmp_path)
    yield found
    found.close()


def test_what_is_no_form_of_these_pages_is_refused_in_a_sentence(here):
    for headers, body, said in FORMS:
        usual = {"origin": here.address, "content-type": "application/x-www-form-urlencoded"}
        found = here.http.post("/desk/session", content=body, headers=usual | headers)
        assert found.status_code == said and ";" in found.json()["detail"], headers


ENTRY = dict.fromkeys(("at", "debit", "credit", "amount", "currency")) | {
    "seq": 1, "kind": "open", "id": "r:open", "round": "r", "body": "{}", "hash": "00",
}  # fmt: skip
ANSWERS = [
    "{}", "[]", "null", '"x"', '{"entries": 5}', '{"entries": [{"a": 1}], "head": {}}', '{"submissions": []}',
    json.dumps({"entries": 2 * [ENTRY]}),
]  # fmt: skip
ASKED = {
    "rounds": lambda remote: remote.rounds(),
    "state": lambda remote: remote.state("r"),
    "spec": lambda remote: remote.spec("r"),
    "invite": lambda remote: remote.invite("r"),
    "submit": lambda remote: remote.submit("r", "ann", None, signer=Key.new()),
    "settle": lambda remote: remote.settle("r"),
    "verify": lambda remote: remote.verify("r"),
    "webhooks": lambda remote: remote.webhooks(),
    "head": lambda remote: remote.head(),
    "open": lambda remote: remote.open(SPEC),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_server_that_answers_something_else_is_a_sentence(answer):
    for name, ask in ASKED.items():
        remote = Remote("http://127.0.0.1:9", wait=0.0)
        remote._http = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, text=answer)))
        with pytest.raises(VeraxError):
            print(name, ask(remote))
        remote.close()


def test_a_token_for_this_machine_goes_to_no_proxy(here, tmp_path, monkeypatch):
    heard = socket.create_server(("127.0.0.1", 0))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{heard.getsockname()[1]}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    remote = Remote(here.address, here.service.token_file, wait=0.0)
    assert remote.rounds() == []
    heard.settimeout(0.1)
    with pytest.raises(TimeoutError):
        heard.accept()
    remote.close()
    heard.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--port", "99999"], "from 0 to 65535"),
        (["--port", "0", "--certificate", "a.pem", "--certificate-key", "a.pem"], "the certificate cannot be used"),
    ],
)
def test_what_cannot_be_served_is_a_sentence(tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pem").write_text("no certificate")
    found = CliRunner().invoke(app, ["serve", *options])
    assert found.exit_code == 2 and says in found.stderr
