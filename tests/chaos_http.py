"""Kill a server of rounds at random moments under load, start it again, and look for anything lost or doubled.

    python tests/chaos_http.py --kills 200 --db sqlite        or postgres, or a database URL

`verax serve` runs as its users run it. Operators open rounds and settle them, agents with keys hand in, replace, send
the same bytes again and read what became of it, all at once; now and then the server, its worker or both are killed
(SIGKILL), also while they start. A client that gets no answer asks again, as it must. What was answered once is
acknowledged: it must be answered the same ever after. In the end the journal must hold what a quiet run puts there, the
money must balance, every submission must have ended, and every receipt that was handed out must still prove.

`--bug` plants a mistake in the server that the harness must notice; without it nothing may be found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import httpx

from chaos import AGENTS, due, expected, money_problems, report_of, rows_of, spec_of, uneven
from verax import wire
from verax.keys import Key
from verax.ledger import Head, Ledger
from verax.log import Continuation, Proof
from verax.receipts import later_finding, report_finding
from verax.rounds import Rounds, Submission, content_of
from verax.service.client import Remote

CLIENTS = 4  # operators, each with a round of its own at a time, and three agents
STARTING = 0.15  # of all kills come while the server starts
WINDOW = 4.0  # seconds within which the others come
AGAIN = 0.5  # of all submissions are sent again after they were answered
PATIENCE = 300.0  # seconds for which one request is made again
ENDS = {"replaced", "void", "paid", "unpaid", "lost"}
BUGS = ("none", "forgets", "doubles")


class Server:
    """`verax serve` on one port, started again after every kill."""

    def __init__(self, url: str, folder: Path, bug: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address, self._log = f"http://127.0.0.1:{self.port}", folder / "log"
        options = ["--db", url, "--keys", str(folder / "keys"), "--port", str(self.port), "--rate", "0"]
        first = [str(Path(sys.executable).with_name("verax"))] if bug == "none" else [__file__, "--serve", bug]
        self._command = [sys.executable, *first, "serve", *options]
        self.token = folder / "keys" / "token.key"

    def begin(self) -> None:
        """Start it, without waiting until it answers."""
        with self._log.open("a") as log:
            self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True)

    def wait(self) -> None:
        """Wait until it answers."""
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise RuntimeError(f"the server did not start: {self._log.read_text()[-800:]}")

    def kill(self, what: str) -> None:
        """Kill it, its worker or both, without warning."""
        for pid in [*([self.process.pid] if what != "worker" else []), *(self._workers() if what != "server" else [])]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if what != "worker":
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()

    def _workers(self) -> list[int]:
        found = []
        with suppress(OSError):
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                found += [int(pid) for pid in (task / "children").read_text().split()]
        return found

    @property
    def mistakes(self) -> list[str]:
        """What its log says of mistakes of its own."""
        lines = [line for line in self._log.read_text().splitlines() if line.startswith("{")]
        with_status = [json.loads(line) for line in lines if line.endswith("}")]
        return [str(line) for line in with_status if line.get("status") == 500 or "exception" in line]


class Unanswered(Exception):  # noqa: N818
    """Nobody answered for minutes, or a request was refused that is in order."""


class Client:
    """Makes each request until it is answered."""

    def __init__(self, address: str, counts: Counter[str]) -> None:
        self._http, self._counts = httpx.Client(base_url=address, timeout=20.0), counts

    def ask(self, method: str, path: str, content: bytes = b"", **headers: str) -> httpx.Response:
        """The answer; no answer, or that the database is busy, is a reason to ask again."""
        until, last = time.monotonic() + PATIENCE, ""
        while time.monotonic() < until:
            try:
                found = self._http.request(method, path, content=content, headers=headers)
                if found.status_code == 503:
                    last = found.text
                    self._counts["busy"] += 1
                elif found.is_success:
                    self._counts["acknowledged" if method == "POST" else "read"] += 1
                    return found
                else:
                    raise Unanswered(f"{method} {path}: {found.status_code} {found.text[:300]}")
            except httpx.HTTPError as error:
                last = repr(error)
                self._counts["unanswered"] += 1
            time.sleep(0.1)
        raise Unanswered(f"{method} {path} was not answered in {PATIENCE:.0f} s: {last[:300]}")


class Load:
    """Everybody who uses the server, what they were told, and what was wrong with it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._numbers, self._over = count(), threading.Event()
        self.counts: Counter[str] = Counter()
        self.found: list[str] = []
        self.heads: list[Head] = []
        self.receipts: list[tuple[int, str, str, str, Key]] = []
        self.played: list[int] = []
        self.keys = {agent: Key.new() for agent in AGENTS}
        self._threads = [threading.Thread(target=self._operate, args=(n,), daemon=True) for n in range(CLIENTS)]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let every round that was begun come to its end."""
        self._over.set()
        for thread in self._threads:
            thread.join(4 * PATIENCE)
        if any(thread.is_alive() for thread in self._threads):
            self.found.append("somebody waits for ever")

    def _operate(self, operator: int) -> None:
        client = Client(self.server.address, self.counts)
        token = {"authorization": f"Bearer {self.server.token.read_text().strip()}"}
        with ThreadPoolExecutor(len(AGENTS)) as agents:
            while not self._over.is_set():
                number = next(self._numbers)
                try:
                    self._play(client, token, number, agents)
                    self.played.append(number)
                except Exception as error:
                    self.found.append(f"round {number}: {error!r}")
                    return

    def _play(self, client: Client, token: dict[str, str], number: int, agents: ThreadPoolExecutor) -> None:
        path = f"/rounds/r{number}"
        self._same(client, "POST", "/rounds", wire.canonical(spec_of(number).to_json()).encode(), **token)
        self._same(client, "POST", f"{path}/fund", b'{"amount":null,"agent":null,"key":null}', **token)
        for _ in agents.map(lambda agent: self._take_part(number, agent), AGENTS):
            pass
        self._same(client, "POST", f"{path}/seal", **token)
        client.ask("POST", f"{path}/settle", **token)
        while (found := client.ask("GET", f"{path}/settlement.json").json())["state"] != "settled":
            if found["state"] == "failed":
                raise Unanswered(f"the settlement failed: {found['reason']}")
            time.sleep(0.05)
        if found["settlement"]["amounts"] != due(number):
            self.found.append(f"round {number} paid {found['settlement']['amounts']}, and {due(number)} are due")

    def _same(self, client: Client, method: str, path: str, content: bytes = b"", **headers: str) -> Any:
        """What is answered; sometimes it is asked for again, and must be answered the same."""
        first = client.ask(method, path, content, **headers).json()
        if random.random() < AGAIN and (again := client.ask(method, path, content, **headers).json()) != first:
            self.found.append(f"{method} {path} was answered in two ways: {first} and {again}")
        if "hash" in first:
            self.heads.append(Head(first["seq"], first["hash"]))
        return first

    def _take_part(self, number: int, agent: str) -> None:
        """Hand in a report, ann another in its place, and read after each what the server knows of it."""
        client, path = Client(self.server.address, self.counts), f"/rounds/r{number}"
        opened = client.ask("GET", f"{path}/opening.json").json()
        taken: list[dict[str, Any]] = []
        for turn, version in enumerate(("v1", "v2") if agent == "ann" else ("v1",), 1):
            content = content_of(report_of(number, agent, version), spec_of(number))
            made = Submission.of(opened, agent, turn, content, self.keys[agent]).to_json()
            key = {} if agent == "cat" else {"idempotency-key": version}  # ann's two may be the same
            body = wire.canonical(made).encode()
            receipt = self._same(client, "POST", f"{path}/submissions", body, **key)
            self.heads.append(Head(**receipt["head"]))
            taken.append({"entry": receipt["entry"], "commitment": made["commitment"]})
            there = client.ask("GET", f"{path}/agents/{agent}.json").json()["submissions"]
            if [{name: each[name] for name in taken[0]} for each in there] != taken:
                self.found.append(f"round {number}, {agent}: {taken} were acknowledged, and {there} are known")
            text = client.ask("GET", f"{path}/agents/{agent}.receipt?entry={receipt['entry']}").text
            self.receipts.append((number, agent, version, text, self.keys[agent]))


def ended_problems(address: str, played: list[int], receipts: list[tuple[int, str, str, str, Key]]) -> Iterator[str]:
    """What is wrong as anybody sees it afterwards: submissions without an end, receipts that do not prove."""
    client = Client(address, Counter())
    for number in played:
        for agent in AGENTS:
            for each in client.ask("GET", f"/rounds/r{number}/agents/{agent}.json").json()["submissions"]:
                if each["state"] not in ENDS or not each["reason"]:
                    yield f"round {number}: what {agent} handed in is {each['state']} in the end"
    for number, agent, version, text, key in receipts:
        proof = Proof.parsed(text)
        later = Continuation.parsed(client.ask("GET", f"/log/checkpoint?since={proof.checkpoint.size}").text)
        holds = proof.is_included, report_finding(proof, report_of(number, agent, version), key).holds
        if not all(holds) or not later_finding(proof.checkpoint, later, proof.beside["operator"]).holds:
            yield f"round {number}: the receipt of {agent} does not prove any more"


def journal_problems(url: str, keys: Path, load: Load) -> Iterator[str]:
    """What the journal holds that a quiet run would not have put there, or lacks."""
    ledger = Ledger.open(url, keys=keys)
    yield from ledger.verify(*load.heads)
    yield from Rounds(ledger).verify()
    there, paid = rows_of(ledger), Counter[str]()
    load.counts["entries"] = sum(sum(facts.values()) for facts in there.values())
    for number in load.played:
        amounts = due(number)
        paid.update(amounts)
        yield from uneven(number, there.pop(f"r{number}", Counter()), expected(number, amounts, 2 * len(AGENTS)))
    yield from (f"nobody was told of round {name}" for name in there)
    yield from money_problems(ledger, paid, load.played)
    for number in load.played[-10:]:
        yield from Rounds(ledger).verify(f"r{number}")
    ledger.close()


def run(url: str, kills: int, folder: Path, *, bug: str = "none", seed: int = 0) -> dict[str, Any]:
    """One whole run on a fresh database, in figures; `problems` is how many were found."""
    start, rng = time.perf_counter(), random.Random(seed)
    server = Server(url, folder, bug)
    server.begin()
    server.wait()
    load, killed = Load(server), Counter[str]()
    load.begin()
    time.sleep(rng.uniform(0, WINDOW))
    for _ in range(kills):
        while rng.random() < 0.2:
            server.kill("worker")
            killed["worker alone"] += 1
            time.sleep(rng.uniform(0, WINDOW))
        what = rng.choice(["server", "both"])
        server.kill(what)
        killed[what] += 1
        server.begin()
        if rng.random() < STARTING:
            time.sleep(rng.uniform(0, 3.0))
            server.kill("both")
            killed["while it starts"] += 1
            server.begin()
        server.wait()
        time.sleep(rng.uniform(0, WINDOW))
    load.end()
    found = [*load.found, *ended_problems(server.address, load.played, load.receipts)]
    stranger = Remote(server.address)
    found += stranger.verify()  # from a copy of the journal, as anybody may
    stranger.close()
    server.kill("both")
    found += [*journal_problems(url, folder / "keys", load), *server.mistakes]
    return {
        "db": url.partition(":")[0] if "://" in url else "sqlite", "bug": bug, "kills": sum(killed.values()),
        "killed": dict(killed), "rounds": len(load.played), "receipts": len(load.receipts), **load.counts,
        "problems": len(found), "first": found[:3], "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


def serve_with(bug: str) -> None:
    """The server with a mistake in it."""
    from verax import rounds
    from verax.cli import main as command

    rng, writing, take = random.Random(), Ledger.writing, rounds.take

    @contextmanager
    def forgetting(ledger: Ledger) -> Iterator[Any]:
        """Planted: now and then what was answered is not kept."""
        with writing(ledger) as journal:
            yield journal
            if rng.random() < 0.05:
                journal._connection.rollback()
                journal._connection.begin()

    def doubling(this: Any, made: Submission, key: str | None = None) -> Any:
        """Planted: now and then a report is taken twice."""
        entry = take(this, made, key)
        if rng.random() < 0.05:
            this.record(f"submit:{made.agent}:{rng.random()}", made.to_json(), "submit")
        return entry

    if bug == "forgets":
        Ledger.writing = forgetting  # type: ignore[method-assign, assignment]
    else:
        rounds.take = doubling
    command()


def main() -> int:
    if sys.argv[1:2] == ["--serve"]:
        bug = sys.argv[2]
        sys.argv[1:3] = []
        serve_with(bug)
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--db", default="sqlite", help="sqlite, postgres (one is started), or a database URL")
    parser.add_argument("--bug", choices=BUGS, default="none")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="verax-chaos-")))
        url = asked.db
        if asked.db == "postgres":
            from postgres import server

            url = stack.enter_context(server(durable=True)).database()
        elif asked.db == "sqlite":
            url = str(folder / "chaos.db")
        found = run(url, asked.kills, folder, bug=asked.bug, seed=asked.seed)
    print(json.dumps(found))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
