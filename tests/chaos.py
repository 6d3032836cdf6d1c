"""Kill a process that works on rounds at random moments, restart it, and look for anything lost or doubled.

    python tests/chaos.py --kills 1000 --db sqlite        or postgres, or a database URL

A worker opens, funds, fills, seals and settles small rounds one after another, and says so after each call
has returned: what it has said is acknowledged. It meets three kinds of trouble: SIGKILL at a moment drawn
uniformly over its work; a failure between two insertions of one transaction (it tries again); and a lost
reply (it asks again). Afterwards the journal must hold exactly what a quiet run would have put there.

`--bug` plants a mistake that the harness must notice; without it nothing may be found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the worker is forked from this process: let it inherit no threads
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import sqlalchemy as sa

import verax
from verax.errors import VeraxError
from verax.ledger import HOUSE, Entry, Head, Journal, Ledger, Transfer
from verax.rounds import Rounds, Settlement, Spec, settlement, transcript_of

TASKS = tuple("abcdef")
CLASSES = ("no", "yes")
AGENTS = ("ann", "bob", "cat")
BUDGET = 100_00
STEPS = ("open", "fund", "submit ann v1", "submit bob v1", "submit cat v1", "submit ann v2", "seal", "settle")
FAULTS = 0.02  # of all insertions fail
LOST = 0.1  # of all replies are lost, and the request is made again


class Fault(Exception):  # noqa: N818
    """Something broke in the middle of a transaction."""


def spec_of(number: int) -> Spec:
    """What round `number` asks: affine, so that everybody is paid something."""
    return Spec(f"r{number}", TASKS, CLASSES, f"{BUDGET // 100}.00", scheme="affine", min_tasks=2)


def report_of(number: int, agent: str, version: str) -> verax.Reports:
    """What an agent says in a round: the same whenever it is asked again."""
    truth = np.random.default_rng(number).integers(0, 2, len(TASKS))
    rng = np.random.default_rng([number, AGENTS.index(agent), int(version[1:])])
    labels = np.where(rng.random(len(TASKS)) < 0.9, truth, 1 - truth)
    return verax.Reports.of(labels[None], agents=[agent], tasks=TASKS, classes=CLASSES)


def due(number: int) -> dict[str, int]:
    """What round `number` must pay, computed without ledger or rounds."""
    last = {"ann": "v2", "bob": "v1", "cat": "v1"}
    labels = np.concatenate([report_of(number, agent, last[agent]).labels for agent in AGENTS])
    reports = verax.Reports.of(labels, agents=AGENTS, tasks=TASKS, classes=CLASSES)
    paid = verax.pay(verax.score(reports), budget=f"{BUDGET // 100}.00", scheme="affine", min_tasks=2)
    return {p.agent: p.amount for p in paid.payments}


def perform(rounds: Rounds, number: int) -> dict[str, Any]:
    """Make request `number`, and give back what its reply says."""
    round, (verb, *who) = number // len(STEPS), STEPS[number % len(STEPS)].split()
    if verb == "open":
        return _said(rounds.open(spec_of(round)))
    if verb == "fund":
        return _said(rounds.fund(f"r{round}"))
    if verb == "submit":
        receipt = rounds.submit(f"r{round}", who[0], report_of(round, *who), key=who[1])
        return {"head": asdict(receipt.head), "entry": receipt.entry, "commitment": receipt.commitment}
    if verb == "seal":
        return _said(rounds.seal(f"r{round}"))
    return {"amounts": rounds.settle(f"r{round}").amounts}


def _said(entry: Entry) -> dict[str, Any]:
    return {"head": {"count": entry.seq, "hash": entry.hash}}


class HastyJournal(Journal):
    """Commits after every entry."""

    def _append(self, *args: Any, **kwargs: Any) -> Entry:
        entry = super()._append(*args, **kwargs)
        self._connection.commit()
        return entry


class CommitPerPosting(Ledger):
    """Planted: a settlement is many transactions instead of one."""

    @contextmanager
    def writing(self) -> Iterator[Journal]:
        with self._failing_closed(), self._engine.connect() as connection:
            yield HastyJournal(connection)
            connection.commit()


class NoRollback(Ledger):
    """Planted: what a failed transaction had done so far is kept."""

    @contextmanager
    def writing(self) -> Iterator[Journal]:
        with self._failing_closed(), self._engine.connect() as connection:
            try:
                yield Journal(connection)
            finally:
                connection.commit()


class NoUniqueKey(Rounds):
    """Planted: a settlement is known by a fresh key each time, so asking again settles again."""

    def settle(self, round: str) -> Settlement:
        token, escrow = secrets.token_hex(4), f"escrow:{round}"
        with self.ledger.reading() as journal:
            found = settlement(*transcript_of(journal, round, self.ledger.keys))
        with self.ledger.writing() as journal:
            journal.record(f"{round}:score:{token}", "score", round, found.to_json())
            for agent, amount in found.amounts.items():
                # the second time the escrow is empty, and only the house can pay
                payer = escrow if journal.available(escrow, "EUR") >= amount else HOUSE
                journal.transfer(
                    Transfer(f"{round}:pay:{agent}:{token}", payer, f"agent:{agent}", amount, "pay", round, "EUR")
                )
            if rest := journal.available(escrow, "EUR"):
                journal.transfer(Transfer(f"{round}:residue:{token}", escrow, HOUSE, rest, "residue", round, "EUR"))
            journal.record(f"{round}:settle:{token}", "settle", round, {"paid": sum(found.amounts.values())})
        return found


@dataclass(frozen=True)
class Variant:
    """What the worker runs, and how often its insertions fail."""

    ledger: type[Ledger] = Ledger
    rounds: type[Rounds] = Rounds
    faults: float = FAULTS


# without faults the first bug can only be found by killing, and the second only by asking again
VARIANTS = {
    "none": Variant(),
    "commit-per-posting": Variant(ledger=CommitPerPosting, faults=0.0),
    "no-unique-key": Variant(rounds=NoUniqueKey, faults=0.0),
    "no-rollback": Variant(ledger=NoRollback),
}


def work(url: str, first: int, last: int | None, say: Callable[[dict[str, Any]], None], seed: int, v: Variant) -> None:
    """Make every request from `first` on; say each reply after it came."""
    rng = random.Random(seed)
    ledger = v.ledger.open(url)

    def fail(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT") and rng.random() < v.faults:
            raise Fault

    sa.event.listen(ledger._engine, "before_cursor_execute", fail)
    rounds = v.rounds(ledger)
    number = first
    while last is None or number < last:
        try:
            reply = perform(rounds, number)
        except Fault:
            say({"fault": number})
            continue
        except VeraxError as error:
            reply = {"error": str(error)}
        if rng.random() < LOST:
            say({"lost": number})
            continue
        say({"step": number, "reply": reply})
        number += 1


class Worker:
    """A forked process at work, and what it has said."""

    def __init__(self, url: str, first: int, last: int | None, seed: int, variant: Variant) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read)
            code = 1
            try:
                work(url, first, last, lambda line: _write(write, line), seed, variant)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write)

    def kill(self) -> None:
        """Now, without warning."""
        os.kill(self.pid, signal.SIGKILL)

    def said(self) -> tuple[int, list[dict[str, Any]]]:
        """Its exit status and all its lines, once it has ended; one cut short by the kill does not count."""
        with open(self._read, "rb") as pipe:
            text = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        whole = text[: text.rfind(b"\n") + 1]
        return status, [json.loads(line) for line in whole.splitlines()]


def _write(pipe: int, line: dict[str, Any]) -> None:
    os.write(pipe, json.dumps(line).encode() + b"\n")


class Chaos:
    """One run: what was acknowledged, what went wrong."""

    def __init__(self, url: str, seed: int, variant: Variant) -> None:
        self.url, self.variant, self.rng = url, variant, random.Random(seed)
        self.ledger = Ledger.open(url)
        self.acknowledged: dict[int, dict[str, Any]] = {}
        self.counts: Counter[str] = Counter()
        self.during: Counter[str] = Counter()
        self.found: list[str] = []

    def run(self, kills: int) -> None:
        """Kill `kills` times, then let the last round come to its end."""
        window = self._quietly(4 * len(STEPS))
        for _ in range(kills):
            # the last acknowledged request is made again: its reply must be the same
            worker = Worker(self.url, max(self._next() - 1, 0), None, self.rng.getrandbits(64), self.variant)
            time.sleep(self.rng.uniform(0, window))
            worker.kill()
            status, lines = worker.said()
            if not os.WIFSIGNALED(status):
                self.found.append("the worker stopped by itself")
            self._hear(lines)
            self.during[STEPS[self._next() % len(STEPS)].split()[0]] += 1
            self._check_last()
        # the next request may have been carried out without a word: whoever made it asks again
        self._quietly((self._next() // len(STEPS) + 1) * len(STEPS))
        self._check()

    def _next(self) -> int:
        return max(self.acknowledged, default=-1) + 1

    def _quietly(self, last: int) -> float:
        """Work up to `last` without a kill; how long that took."""
        start = time.perf_counter()
        status, lines = Worker(self.url, self._next(), last, self.rng.getrandbits(64), self.variant).said()
        if status:
            self.found.append("the worker stopped by itself")
        self._hear(lines)
        return time.perf_counter() - start

    def _hear(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if "step" not in line:
                self.counts.update(line.keys())
                continue
            number, reply = line["step"], line["reply"]
            self.counts["acknowledged"] += 1
            if "error" in reply:
                self.found.append(f"{self._name(number)} was refused: {reply['error']}")
            if self.acknowledged.setdefault(number, reply) != reply:
                self.found.append(f"{self._name(number)} was answered in two ways")

    def _name(self, number: int) -> str:
        return f"round {number // len(STEPS)}, {STEPS[number % len(STEPS)]}"

    def _check_last(self) -> None:
        """What was acknowledged last is there before anything is made again."""
        heads = [Head(**reply["head"]) for reply in list(self.acknowledged.values())[-3:] if "head" in reply]
        with self.ledger.reading() as journal:
            end = journal.head()
            for head in heads:
                if end.count < head.count:
                    self.found.append(f"entry {head.count} was acknowledged and the journal ends at {end.count}")
        self.ledger.close()

    def _check(self) -> None:
        """The journal holds what a quiet run would have put there: no more, no less."""
        heads = [Head(**reply["head"]) for reply in self.acknowledged.values() if "head" in reply]
        self.found += self.ledger.verify(*heads)
        there = rows_of(self.ledger)
        self.counts["entries"] = sum(sum(facts.values()) for facts in there.values())
        rounds, paid = self._next() // len(STEPS), Counter[str]()
        for number in range(rounds):
            amounts = due(number)
            paid.update(amounts)
            self.found += uneven(number, there.pop(f"r{number}", Counter()), expected(number, amounts))
            settled = self.acknowledged[number * len(STEPS) + len(STEPS) - 1]
            if settled.get("amounts") != amounts:
                self.found.append(f"round {number} was acknowledged with {settled}, and {amounts} are due")
        self.found += [f"nobody asked for round {name}" for name in there]
        self.found += money_problems(self.ledger, paid, range(rounds))
        self._check_recomputed(rounds)
        self.counts["rounds"] = rounds
        self.ledger.close()

    def _check_recomputed(self, rounds: int) -> None:
        """What the library itself computes again from its transcript, for the last rounds."""
        for number in range(max(0, rounds - 20), rounds):
            try:
                for agent in AGENTS:
                    was, again = Rounds(self.ledger).payment(f"r{number}", agent)
                    if was != again:
                        self.found.append(f"round {number} paid {agent} {was}, computed again {again}")
            except VeraxError as error:
                self.found.append(f"round {number} cannot be computed again: {error}")


def rows_of(ledger: Ledger) -> dict[str, Counter[tuple[Any, ...]]]:
    """Everything in the journal, ids aside, by round: kind, agent, debit, credit, amount."""
    there: dict[str, Counter[tuple[Any, ...]]] = {}
    with ledger.reading() as journal:
        for e in journal.entries():
            who = json.loads(e.body)["agent"] if e.kind == "submit" else None
            there.setdefault(e.round, Counter())[e.kind, who, e.debit, e.credit, e.amount] += 1
    return there


def uneven(number: int, there: Counter[tuple[Any, ...]], expected: Counter[tuple[Any, ...]]) -> Iterator[str]:
    """What of a round is there too often, or not often enough."""
    for fact in sorted({*there, *expected}, key=str):
        if there[fact] != expected[fact]:
            kind, *rest = (part for part in fact if part is not None)
            yield f"round {number}: {kind} {rest} is there {there[fact]} times, not {expected[fact]}"


def money_problems(ledger: Ledger, paid: Counter[str], rounds: Iterable[int]) -> Iterator[str]:
    """Which accounts have not what they should when those rounds are settled."""
    wanted = {f"agent:{agent}": amount for agent, amount in paid.items()} | {HOUSE: -sum(paid.values())}
    wanted |= {f"escrow:r{number}": 0 for number in rounds}
    balances = ledger.balances()
    if sum(balances.values()) != 0:
        yield f"all balances sum to {sum(balances.values())}, not 0"
    for account in sorted({*wanted, *balances}):
        if balances.get(account, 0) != wanted.get(account, 0):
            yield f"{account} has {balances.get(account, 0)}, not {wanted.get(account, 0)}"


def expected(number: int, amounts: dict[str, int], admissions: int = len(AGENTS)) -> Counter[tuple[Any, ...]]:
    """Everything a settled round leaves in the journal, ids aside: kind, agent, debit, credit, amount."""
    escrow = f"escrow:r{number}"
    facts: Counter[tuple[Any, ...]] = Counter()
    for kind in ("open", "seal", "score", "settle"):
        facts[kind, None, None, None, None] += 1
    for step in STEPS:
        if step.startswith("submit"):
            facts["submit", step.split()[1], None, None, None] += 1
    facts["admit", None, None, None, None] += admissions
    facts["posted", None, HOUSE, escrow, BUDGET] += 1
    for agent, amount in amounts.items():
        facts["posted", None, escrow, f"agent:{agent}", amount] += 1
    facts["posted", None, escrow, HOUSE, BUDGET - sum(amounts.values())] += 1
    return facts


def run(url: str, kills: int, *, bug: str = "none", seed: int = 0) -> dict[str, Any]:
    """One whole run on a fresh database, in figures; `problems` is how many were found."""
    start = time.perf_counter()
    chaos = Chaos(url, seed, VARIANTS[bug])
    chaos.run(kills)
    return {
        "db": url.partition(":")[0] if "://" in url else "sqlite", "bug": bug, "kills": kills,
        "rounds": chaos.counts["rounds"], "acknowledged": chaos.counts["acknowledged"],
        "entries": chaos.counts["entries"], "faults": chaos.counts["fault"], "lost_replies": chaos.counts["lost"],
        "killed_during": dict(chaos.during.most_common()), "problems": len(chaos.found), "first": chaos.found[:3],
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--db", default="sqlite", help="sqlite, postgres (one is started), or a database URL")
    parser.add_argument("--bug", choices=VARIANTS, default="none")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with ExitStack() as stack:
        url = asked.db
        if asked.db == "postgres":
            from postgres import server

            url = stack.enter_context(server(durable=True)).database()
        elif asked.db == "sqlite":
            url = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "chaos.db")
        found = run(url, asked.kills, bug=asked.bug, seed=asked.seed)
    print(json.dumps(found))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
