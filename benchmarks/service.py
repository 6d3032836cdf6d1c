"""Measure the service on loopback beside the bare library, in one run; print a table, keep the figures.

    python benchmarks/service.py [--agents 1000] [--tasks 10000] [--out benchmarks/results/service.json]

Agents with keys hand reports in to one round: by `Rounds.take` here, and by HTTP to `verax serve`, the same bytes to
both. Then 200 read the live round at once while others hand in, and some read while it settles. Both databases sync to
disk before they answer. Seconds of a processor are those of the process that takes what is handed in.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from verax import wire
from verax.keys import Key
from verax.ledger import Ledger
from verax.rounds import Rounds, Spec, Submission

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from postgres import Absent, server

CLASSES = tuple(f"c{n}" for n in range(10))
FUND = {"amount": None, "agent": None, "key": None}
AT_ONCE, READERS, READING = 8, 200, 10.0
Asked = tuple[str, str, bytes, dict[str, str]]


class Line:
    """One connection that is kept, and asked one thing after another."""

    def __init__(self, address: str) -> None:
        self._where = urlsplit(address)

    async def __aenter__(self) -> Line:
        assert self._where.hostname
        self._reader, self._writer = await asyncio.open_connection(self._where.hostname, self._where.port, limit=2**24)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer."""
        lines = [f"{method} {path} HTTP/1.1", f"host: {self._where.netloc}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        told = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        return int(head[0].split()[1]), told, await self._reader.readexactly(int(told.get("content-length", 0)))


async def handed_in(address: str, asked: Iterable[Asked], at_once: int = AT_ONCE) -> list[float]:
    """Ask for all of it, so many at a time; how long each answer took."""
    waiting, took = iter(asked), []

    async def client() -> None:
        async with Line(address) as line:
            for each in waiting:
                start = time.perf_counter()
                status, _, body = await line.ask(*each)
                took.append(time.perf_counter() - start)
                assert status in (200, 201, 202), body[:300]

    await asyncio.gather(*(client() for _ in range(at_once)))
    return took


async def reading(address: str, path: str, readers: int, over: Callable[[], bool], pause: float) -> list[float]:
    """So many read the same, each again after a pause, until it is over; how long each answer took."""
    took: list[float] = []

    async def reader(n: int) -> None:
        await asyncio.sleep(pause * n / readers)
        async with Line(address) as line:
            tag = ""
            while not over():
                start = time.perf_counter()
                status, told, body = await line.ask("GET", path, b"", {"if-none-match": tag})
                took.append(time.perf_counter() - start)
                assert status in (200, 304), body[:300]
                tag = told["etag"]
                await asyncio.sleep(pause)

    await asyncio.gather(*(reader(n) for n in range(readers)))
    return took


def spread(took: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    return {"number": len(took), "p50_ms": 1e3 * cuts[49], "p99_ms": 1e3 * cuts[98], "most_ms": 1e3 * max(took)}


def spec_of(name: str, tasks: int) -> Spec:
    return Spec(name, tuple(f"t{n}" for n in range(tasks)), CLASSES, "1000.00", min_tasks=2)


def submissions(opened: dict[str, Any], agents: int, tasks: int) -> list[Submission]:
    """What agents hand in who are right four times in five."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, len(CLASSES), tasks)
    found = []
    for n in range(agents):
        labels = np.where(rng.random(tasks) < 0.8, truth, rng.integers(0, len(CLASSES), tasks))
        found.append(Submission.of(opened, f"a{n}", 1, {"labels": labels.tolist()}, Key.new()))
    return found


def bare(ledger: Ledger, agents: int, tasks: int) -> dict[str, Any]:
    """The same by the library, in this process."""
    rounds = Rounds(ledger)
    rounds.open(spec_of("bare", tasks))
    made = submissions(rounds.public_record("bare"), agents, tasks)
    took, start, cpu = [], time.perf_counter(), time.process_time()
    for each in made:
        before = time.perf_counter()
        rounds.take(each)
        took.append(time.perf_counter() - before)
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    ledger.close()
    return spread(took) | {"per_s": agents / wall, "cpu_ms": 1e3 * used / agents}


def cpu_seconds(pid: int) -> float:
    """What a process has used of processors so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(url: str, folder: Path) -> Iterator[tuple[str, str, int]]:
    """A server on a database: its address, its token, its process."""
    command = [str(Path(sys.executable).with_name("verax")), "serve", "--db", url, "--keys", str(folder / "keys"),
               "--port", "0", "--rate", "0"]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split(";")[0].split()[-1]
        yield address, (folder / "keys" / "token.key").read_text().strip(), process.pid
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


async def by_http(url: str, folder: Path, agents: int, tasks: int) -> dict[str, Any]:
    """Hand in, read while others hand in, read while it settles."""
    with served(url, folder) as (address, token, pid):
        operator = {"authorization": f"Bearer {token}"}
        opening = wire.canonical(spec_of("load", tasks).to_json()).encode()
        await handed_in(address, [("POST", "/rounds", opening, operator)], 1)
        await handed_in(address, [("POST", "/rounds/load/fund", wire.canonical(FUND).encode(), operator)], 1)
        async with Line(address) as line:
            opened = json.loads((await line.ask("GET", "/rounds/load/opening.json", b"", {}))[2])
        made = submissions(opened, agents + agents // 10, tasks)
        asked: list[Asked] = [
            ("POST", "/rounds/load/submissions", wire.canonical(each.to_json()).encode(), {}) for each in made
        ]
        start, cpu = time.perf_counter(), cpu_seconds(pid)
        took = await handed_in(address, asked[:agents])
        wall, used = time.perf_counter() - start, cpu_seconds(pid) - cpu
        found = {"submit": spread(took) | {"per_s": agents / wall, "cpu_ms": 1e3 * used / agents}}
        found |= await live(address, pid, asked[agents:])
        found["settling"] = await settling(address, operator)
    return found


async def live(address: str, pid: int, asked: list[Asked]) -> dict[str, Any]:
    """Read a round by 200 at once, each every second, while some hand in."""
    until, cpu = time.perf_counter() + READING, cpu_seconds(pid)
    readers = reading(address, "/rounds/load.json", READERS, lambda: time.perf_counter() > until, 1.0)
    read, submitted = await asyncio.gather(readers, handed_in(address, asked, 1))
    used = cpu_seconds(pid) - cpu
    return {"live": spread(read) | {"readers": READERS, "cpu_ms": 1e3 * used / (len(read) + len(submitted))},
            "submit beside readers": spread(submitted)}  # fmt: skip


async def settling(address: str, operator: dict[str, str]) -> dict[str, Any]:
    """Read a round while it settles."""
    await handed_in(address, [("POST", "/rounds/load/seal", b"", operator)], 1)
    alone_until = time.perf_counter() + 3.0
    alone = await reading(address, "/rounds/load.json", 20, lambda: time.perf_counter() > alone_until, 0.1)
    start, over = time.perf_counter(), False
    await handed_in(address, [("POST", "/rounds/load/settle", b"", operator)], 1)

    async def watch() -> str:
        nonlocal over
        async with Line(address) as line:
            state = "queued"
            while state in ("queued", "running"):
                await asyncio.sleep(0.1)
                state = str(json.loads((await line.ask("GET", "/rounds/load/settlement.json", b"", {}))[2])["state"])
        over = True
        return state

    read, state = await asyncio.gather(reading(address, "/rounds/load.json", 20, lambda: over, 0.1), watch())
    assert state == "settled", state
    return {"before": spread(alone), "during": spread(read), "seconds": time.perf_counter() - start}


def measured(url: Callable[[], str], agents: int, tasks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="verax-bench-") as name:
        folder = Path(name)
        found = {"library": bare(Ledger.open(url(), keys=folder / "bare-keys"), agents, tasks)}
        found |= asyncio.run(by_http(url(), folder, agents, tasks))
        found["times the library"] = {
            "cpu": found["submit"]["cpu_ms"] / found["library"]["cpu_ms"],
            "throughput": found["library"]["per_s"] / found["submit"]["per_s"],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="Where the figures are kept.")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="verax-bench-") as folder:
        files = (str(Path(folder) / f"{n}.db") for n in range(2))
        cases = {"SQLite": measured(lambda: next(files), asked.agents, asked.tasks)}
    try:
        with server(durable=True) as postgres:
            cases["PostgreSQL"] = measured(postgres.database, asked.agents, asked.tasks)
    except Absent as absent:
        print(f"without PostgreSQL: {absent}", file=sys.stderr)
    machine = {"cores": os.cpu_count(), "Python": platform.python_version(), "load before": round(load, 1)}
    found = {"agents": asked.agents, "tasks": asked.tasks, "at once": AT_ONCE, "machine": machine, "cases": cases}
    text = json.dumps(found, indent=1, default=lambda x: x) + "\n"
    if asked.out:
        asked.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
