"""Measure the ledger: requests a second, and what a settlement costs beside the scoring inside it, in one run.

    python benchmarks/ledger.py [--full] [--entries 1000000] [--growth]

Both databases sync to disk before they answer. PostgreSQL is started for the run if its server is installed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import verax
from verax.database import journal_table
from verax.ledger import GENESIS, Entry, Head, Ledger, Transfer
from verax.rounds import Rounds, Spec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from postgres import Absent, server

CLASSES = tuple(f"c{n}" for n in range(10))


def seconds(task: Callable[[], Any]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def reports_of(agents: int, tasks: int) -> verax.Reports:
    """Agents that are right four times in five."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, len(CLASSES), tasks)
    labels = np.where(rng.random((agents, tasks)) < 0.8, truth, rng.integers(0, len(CLASSES), (agents, tasks)))
    names = [f"a{n}" for n in range(agents)]
    return verax.Reports.of(labels, agents=names, tasks=[f"t{n}" for n in range(tasks)], classes=CLASSES)


def single(reports: verax.Reports) -> Iterator[tuple[str, verax.Reports]]:
    """Each agent's own report, as it would be submitted."""
    for name, labels in zip(reports.agents, reports.labels, strict=True):
        yield name, verax.Reports.of(labels[None], agents=[name], tasks=reports.tasks, classes=CLASSES)


def filled(rounds: Rounds, round: str, reports: verax.Reports) -> list[float]:
    """Open, fund, fill and seal a round: how long each submission took."""
    rounds.open(Spec(round, tuple(reports.tasks), CLASSES, "1000.00", min_tasks=2))
    rounds.fund(round)
    taken = [seconds(lambda r=r: rounds.submit(round, *r)) for r in single(reports)]  # type: ignore[misc]
    rounds.seal(round)
    return taken


def small(rounds: Rounds) -> dict[str, float]:
    """Rates with small rounds of 5 agents and 100 tasks, one request after another."""
    reports = reports_of(5, 100)
    names = [f"small {n}" for n in range(40)]
    submitted = [s for name in names for s in filled(rounds, name, reports)]
    settled = [seconds(lambda name=name: rounds.settle(name)) for name in names]  # type: ignore[misc]
    return {"submissions_per_s": len(submitted) / sum(submitted), "settlements_per_s": len(settled) / sum(settled)}


def large(rounds: Rounds, agents: int, tasks: int, times: int) -> dict[str, float]:
    """A large round: settling it, beside scoring the same reports, the median of several."""
    reports = reports_of(agents, tasks)
    names = [f"large {agents} {n}" for n in range(times)]
    submitted = [s for name in names for s in filled(rounds, name, reports)]
    scoring, settling = [], []
    for name in names:
        scoring.append(seconds(lambda: verax.score(reports)))
        settling.append(seconds(lambda name=name: rounds.settle(name)))  # type: ignore[misc]
    score, settle = statistics.median(scoring), statistics.median(settling)
    return {
        "agents": agents, "tasks": tasks, "submit_s": statistics.median(submitted),
        "score_s": score, "settle_s": settle, "ratio": settle / score,
        "verify_s": seconds(lambda: rounds.verify(names[-1])),
    }  # fmt: skip


def long(entries: int) -> dict[str, float]:
    """A log of many entries in an SQLite file: what its tree costs, and what each answer costs then."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.open(str(Path(folder) / "long.db"))
        head, rows = Head(0, GENESIS), []
        with ledger.writing() as journal:
            for n in range(entries):
                entry = Entry(n + 1, f"t{n}", "posted", "r", "house", f"agent:{n % 100}", 1, None, '{"code":"x"}', "")
                head = Head(n + 1, entry.sealed_by(head.hash))
                rows.append(vars(replace(entry, hash=head.hash)))
                if len(rows) == 10_000 or n + 1 == entries:
                    journal._connection.execute(journal_table.insert(), rows)
                    rows.clear()
        without = Path(folder, "long.db").stat().st_size
        found = {"entries": float(entries), "tree_of_all_s": seconds(ledger.catch_up)}
        found["tree_bytes_per_entry"] = (Path(folder, "long.db").stat().st_size - without) / entries
        rng = np.random.default_rng(0)
        with ledger.reading() as journal:
            size = journal.tree.size
            for name, task in {
                "root": lambda: journal.tree.at(int(rng.integers(1, size))).root,
                "inclusion": lambda: journal.tree.at(size).inclusion(int(rng.integers(size))),
                "consistency": lambda: journal.tree.at(size).consistency(int(rng.integers(1, size))),
            }.items():
                found[f"{name}_ms"] = 1000 * statistics.median(seconds(task) for _ in range(200))

        def append(n: int) -> None:
            with ledger.writing() as journal:
                journal.record(f"n{n}", "note", "r", {})

        found["append_ms"] = 1000 * statistics.median(seconds(lambda n=n: append(n)) for n in range(50))  # type: ignore[misc]
        ledger.keys.key("operator")
        found["checkpoint_ms"] = 1000 * seconds(ledger.checkpoint)
        found["verify_s"] = seconds(ledger.verify)
        ledger.close()
        return found


def cpu(task: Callable[[], Any]) -> float:
    start = time.process_time()
    task()
    return time.process_time() - start


def crowded(others: int) -> dict[str, float]:
    """Processor time of what a round of very many submissions asks for, in an SQLite file that holds them already."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.open(str(Path(folder) / "crowded.db"))
        rounds, reports = Rounds(ledger), reports_of(20, 10)
        rounds.open(Spec("r", tuple(reports.tasks), CLASSES, "1000.00", min_tasks=2))
        rounds.fund("r")
        rows = []
        with ledger.writing() as journal:
            head, at = journal.head(), str(journal.now().isoformat())
            for n in range(others):
                body = json.dumps({"agent": f"x{n}", "commitment": "0" * 64, "sealed": "0" * 900})
                entry = Entry(head.count + 1, f"r:submit:x{n}:1", "submit", "r", *(None,) * 4, body, "", at)  # type: ignore[arg-type]
                head = Head(entry.seq, entry.sealed_by(head.hash))
                rows.append(vars(replace(entry, hash=head.hash)))
                if len(rows) == 10_000 or n + 1 == others:
                    journal._connection.execute(journal_table.insert(), rows)
                    rows.clear()
        ledger.catch_up()
        submitted = statistics.median(cpu(lambda r=r: rounds.submit("r", *r)) for r in single(reports))  # type: ignore[misc]
        with ledger.writing() as journal:
            moves = [Transfer(f"p{n}", "escrow:r", f"agent:x{n}", 1, "pay", "r", "EUR") for n in range(2_000)]
            moved = cpu(lambda: [*map(journal.transfer, moves)]) / len(moves)
        verified = cpu(ledger.verify)
        entries = ledger.head().count
        ledger.close()
    return {"entries": entries, "submit_ms": 1e3 * submitted, "transfer_ms": 1e3 * moved, "verify_s": verified}


def growth(sizes: Sequence[int]) -> dict[str, Any]:
    """The same at several sizes, and between the least and the most of them the slope of logarithms."""
    rows = [crowded(size) for size in sizes]
    first, last = rows[0], rows[-1]
    wider = np.log(last["entries"] / first["entries"])
    slopes = {name: float(np.log(last[name] / first[name]) / wider) for name in first if name != "entries"}
    return {"sizes": rows, "slopes": slopes}


@contextmanager
def ledgers() -> Iterator[dict[str, Callable[[], Ledger]]]:
    """How to open a ledger on each kind of database there is."""
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Callable[[], Ledger]] = {"sqlite": lambda: Ledger.open(str(Path(folder) / "ledger.db"))}
        try:
            with server(durable=True) as postgres:
                yield found | {"postgresql": lambda: Ledger.open(postgres.database())}
        except Absent as absent:
            print(f"without PostgreSQL: {absent}", file=sys.stderr)
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="1,000 agents x 10,000 tasks too")
    parser.add_argument("--entries", type=int, default=0, help="only a log of so many entries")
    parser.add_argument("--growth", type=int, nargs="*", help="only how costs grow with the entries of a round")
    asked = parser.parse_args()
    if asked.growth is not None:
        print(json.dumps(growth(asked.growth or [10_000, 100_000, 1_000_000]), indent=1))
        return
    if asked.entries:
        print(json.dumps(long(asked.entries), indent=1))
        return
    full, found = asked.full, {}
    with ledgers() as databases:
        print(
            f"{'':12}{'round':>16}{'submit/s':>10}{'settle/s':>10}{'score':>10}{'settle':>10}{'ratio':>8}{'verify':>10}"
        )
        for name, opened in databases.items():
            ledger = opened()
            rounds = Rounds(ledger)
            rates = small(rounds)
            print(f"{name:12}{'5 x 100':>16}{rates['submissions_per_s']:10.0f}{rates['settlements_per_s']:10.0f}")
            sizes = [(200, 10_000, 3), *([(1000, 10_000, 1)] if full else [])]
            rows = [large(rounds, *size) for size in sizes]
            for row in rows:
                print(
                    f"{name:12}{row['agents']:>7} x {row['tasks']:<6}"
                    f"{1 / row['submit_s']:10.0f}{1 / row['settle_s']:10.2f}"
                    f"{row['score_s']:8.3f} s{row['settle_s']:8.3f} s{row['ratio']:8.2f}{row['verify_s']:8.2f} s"
                )
            found[name] = {"small": rates, "large": rows}
            ledger.close()
    machine = {"python": platform.python_version(), "numpy": np.__version__, "sqlite": sqlite3.sqlite_version}
    print(json.dumps({"machine": machine | {"machine": platform.machine()}, "found": found}))


if __name__ == "__main__":
    main()
