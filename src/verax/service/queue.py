"""What takes long, by a process of its own: settlements and verifications wait in a table beside the journal.

    state     becomes            when
    queued    running            a worker takes it, for as long as it says every few seconds that it is at it
    running   done, failed       it ends; `reason` says why it failed, and it may be asked for again
    running   running, failed    its worker fell silent: another takes it, three times at most

Settling is itself done once whoever asks, so that nothing here has to be.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event as Stop
from threading import Event, Thread
from typing import Any

import sqlalchemy as sa

from verax.errors import ConflictError, LedgerError, VeraxError
from verax.ledger import Ledger
from verax.rounds import Rounds
from verax.service.webhooks import Hooks, refusing_database

LEASE, POLL, TRIES = 20.0, 0.2, 3
SETTLE, VERIFY = "settle", "verify"
_table = sa.Table(
    "service_jobs",
    sa.MetaData(),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("round", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("until", sa.Float, nullable=False),
    sa.Column("asked", sa.Float, nullable=False),
)
_log = logging.getLogger("verax.service")


@dataclass(frozen=True)
class Job:
    """Something asked for, and how far it is: queued, running, done or failed, and then why."""

    kind: str
    round: str
    state: str
    reason: str = ""


class Queue:
    """The jobs in one database.

    >>> queue = Queue(Ledger.open("sqlite://"))
    >>> queue.ask(SETTLE, "r1").state, queue.take("w1").round, queue.take("w2")
    ('queued', 'r1', None)
    >>> queue.end(SETTLE, "r1", "w1")
    >>> queue.get(SETTLE, "r1").state
    'done'
    """

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.time) -> None:
        postgres = ledger.engine.dialect.name == "postgresql"
        how: dict[str, Any] = {"isolation_level": "READ COMMITTED"} if postgres else {}
        self._engine, self._clock = ledger.engine.execution_options(**how), clock
        with self._writing() as connection:
            if postgres:
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(762179)"))
            _table.metadata.create_all(connection)

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with refusing_database(), self._engine.begin() as connection:
            yield connection

    def get(self, kind: str, round: str) -> Job | None:
        """How far something is that was asked for."""
        t = _table.c
        query = sa.select(t.kind, t.round, t.state, t.reason).where(t.kind == kind, t.round == round)
        with refusing_database(), self._engine.execution_options(reading=True).connect() as connection:
            row = connection.execute(query).first()
        return None if row is None else Job(*row)

    def all(self, kind: str) -> dict[str, Job]:
        """Every job of a kind, by its round."""
        t = _table.c
        query = sa.select(t.kind, t.round, t.state, t.reason).where(t.kind == kind)
        with refusing_database(), self._engine.execution_options(reading=True).connect() as connection:
            return {row.round: Job(*row) for row in connection.execute(query)}

    def counted(self) -> dict[str, int]:
        """How many jobs are in each state."""
        query = sa.select(_table.c.state, sa.func.count()).group_by(_table.c.state)
        with refusing_database(), self._engine.execution_options(reading=True).connect() as connection:
            there = {state: int(count) for state, count in connection.execute(query)}
        return dict.fromkeys(("queued", "running", "done", "failed"), 0) | there

    def ask(self, kind: str, round: str) -> Job:
        """Ask for it; what waits or runs is asked for already, what has ended is done again."""
        t = _table.c
        new = {"state": "queued", "reason": "", "tries": 0, "worker": "", "until": 0.0, "asked": self._clock()}
        here = t.kind == kind, t.round == round
        with self._writing() as connection:
            state = connection.scalar(sa.select(t.state).where(*here).with_for_update())
            if state is None:
                connection.execute(_table.insert().values(kind=kind, round=round, **new))
            elif state in ("done", "failed"):
                connection.execute(_table.update().where(*here).values(**new))
        return self.get(kind, round) or Job(kind, round, "queued")

    def take(self, worker: str) -> Job | None:
        """The oldest job that nobody is at, for this worker; one that broke too many workers fails."""
        t, now = _table.c, self._clock()
        free = sa.or_(t.state == "queued", sa.and_(t.state == "running", t.until < now))
        with refusing_database(), self._engine.execution_options(reading=True).connect() as connection:
            if connection.execute(sa.select(t.kind).where(free, t.until < now).limit(1)).first() is None:
                return None  # without a turn at writing, which others may need
        query = sa.select(t.kind, t.round, t.tries).where(free, t.until < now).order_by(t.asked).limit(1)
        with self._writing() as connection:
            row = connection.execute(query.with_for_update(skip_locked=True)).first()
            if row is None:
                return None
            here = _table.update().where(t.kind == row.kind, t.round == row.round)
            if row.tries >= TRIES:
                why = f"{TRIES} workers died at it; see whether there is memory enough, and ask again"
                connection.execute(here.values(state="failed", reason=why))
                return None
            values = {"state": "running", "tries": row.tries + 1, "worker": worker, "until": now + LEASE}
            connection.execute(here.values(**values))
        return Job(row.kind, row.round, "running")

    def go_on(self, kind: str, round: str, worker: str) -> None:
        """Say that this worker is still at it."""
        self._update(kind, round, worker, until=self._clock() + LEASE)

    def end(self, kind: str, round: str, worker: str, failed: str | None = None) -> None:
        """It is done, or has failed for a reason."""
        self._update(kind, round, worker, state="done" if failed is None else "failed", reason=failed or "")

    def leave(self, kind: str, round: str, worker: str, wait: float) -> None:
        """Put it back, for later: what it needs is not there now."""
        self._update(kind, round, worker, state="queued", until=self._clock() + wait)

    def free(self, worker: str) -> None:
        """What a worker that has died was at is anybody's, at once."""
        t = _table.c
        with self._writing() as connection:
            dead = _table.update().where(t.worker == worker, t.state == "running")
            connection.execute(dead.values(until=0.0))

    def _update(self, kind: str, round: str, worker: str, **values: Any) -> None:
        t = _table.c
        mine = t.kind == kind, t.round == round, t.worker == worker, t.state == "running"
        with self._writing() as connection:
            connection.execute(_table.update().where(*mine).values(**values))


def _settle(rounds: Rounds, round: str) -> list[str]:
    rounds.settle(round)
    return []


_DONE_BY: dict[str, Callable[[Rounds, str], list[str]]] = {SETTLE: _settle, VERIFY: Rounds.verify}


def perform(rounds: Rounds, queue: Queue, job: Job, worker: str) -> None:
    """Do what was asked for; whatever comes of it, it ends with a reason or waits for its next try."""
    ended = Event()

    def go_on() -> None:
        while not ended.wait(LEASE / 4):
            try:
                queue.go_on(job.kind, job.round, worker)
            except LedgerError as error:
                _log.warning("a job's lease was not renewed: %s", error)

    Thread(target=go_on, daemon=True).start()
    try:
        problems = _DONE_BY[job.kind](rounds, job.round)
    except LedgerError as error:
        ended.set()
        if isinstance(error, ConflictError):
            queue.end(job.kind, job.round, worker, str(error))
        else:
            queue.leave(job.kind, job.round, worker, 5.0)
        return
    except VeraxError as error:
        problems = [str(error)]
    except Exception as error:
        _log.exception("a job failed by a mistake of verax's own")
        problems = [f"{type(error).__name__}, which is a mistake in verax; the log has more"]
    ended.set()
    queue.end(job.kind, job.round, worker, "; ".join(problems) or None)


def work(url: str, keys: str | None, private: bool, worker: str, stop: Stop, parent: int) -> None:
    """A worker's life: take what waits, and tell webhooks what is new, until told to stop or left alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it says when to stop
    rounds = Rounds(Ledger.open(url, create=False, keys=keys))
    queue = Queue(rounds.ledger)
    Thread(target=_tell, args=(Hooks(rounds.ledger, private=private), stop), daemon=True).start()
    while not stop.wait(POLL) and os.getppid() == parent:
        try:
            while (job := queue.take(worker)) is not None:
                perform(rounds, queue, job, worker)
        except LedgerError as error:
            _log.warning("a worker waits for its database: %s", error)
            time.sleep(1.0)


def _tell(hooks: Hooks, stop: Stop) -> None:
    """Beside the jobs: an address that answers slowly keeps nobody waiting but itself and other addresses."""
    while not stop.wait(POLL):
        try:
            hooks.tell()
        except LedgerError as error:
            _log.warning("webhooks wait for the database: %s", error)


class Worker:
    """The process that does the jobs, started again whenever it dies."""

    def __init__(self, url: str, keys: str | None, private: bool, queue: Queue) -> None:
        self._place, self._queue = (url, keys, private), queue
        self._context = multiprocessing.get_context("spawn")
        self._stop, self._name = self._context.Event(), ""
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self.process: multiprocessing.process.BaseProcess | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it runs now; it is started again if not."""
        return self.process is not None and self.process.is_alive()

    def start(self) -> None:
        """Start it, and go on starting it."""
        self._thread.start()

    def stop(self) -> None:
        """Let it end what it is at, for a moment, and then end it: another will take that up."""
        self._over.set()
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set():
            self._name = secrets.token_hex(8)
            arguments = *self._place, self._name, self._stop, os.getpid()
            self.process = self._context.Process(target=work, args=arguments, daemon=True)
            self.process.start()
            while self.process.is_alive() and not self._over.wait(POLL):
                pass
            self.process.join(3.0 if self._over.is_set() else 0)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()
            try:
                self._queue.free(self._name)
            except LedgerError as error:
                _log.warning("what a dead worker was at waits for its lease to end: %s", error)
            if not self._over.wait(POLL):
                _log.error("the worker ended with %s; another starts", self.process.exitcode)
