"""A throw-away PostgreSQL for tests: made in a temporary folder, reached over a Unix socket, gone at the end.

    with server() as postgres:
        url = postgres.schema()         an empty place for one test
        url = postgres.database()       a whole database, which takes longer to make

It never listens on a network. PostgreSQL refuses to run as root, so root runs it as `postgres` or `nobody`.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

ABSENT = "no PostgreSQL server is installed; install it (apt-get install postgresql) or put initdb on the PATH"
_PR_SET_PDEATHSIG = 1


class Absent(Exception):  # noqa: N818
    """There is no server to start on this machine."""


class Server:
    """One running server: `schema()` gives the URL of an empty place, `stop` and `start` are for outages."""

    def __init__(self, folder: Path, binaries: Path, account: dict[str, Any], durable: bool) -> None:
        self.folder = folder
        self._account = account
        self._numbers = count(1)
        self._process: subprocess.Popen[bytes] | None = None
        # a crash of the machine is not what tests stage, and syncing a thousand small databases is slow
        speed = [] if durable else ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
        self._command = [
            str(binaries / "postgres"), "-D", str(folder / "data"), "-k", str(folder),
            "-c", "listen_addresses=", "-c", "max_connections=120", *speed,
        ]  # fmt: skip

    def url(self, database: str) -> str:
        """The address of a database for SQLAlchemy."""
        return f"postgresql+psycopg://postgres@/{database}?host={self.folder}"

    def schema(self) -> str:
        """The URL of a new, empty schema."""
        name = f"verax_{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{self.url('postgres')}&options=-csearch_path%3D{name}"

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"verax_{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """A plain connection, past the ledger."""
        return psycopg.connect(host=str(self.folder), user="postgres", dbname=database, autocommit=True)

    def start(self, largest_file: int = resource.RLIM_INFINITY) -> None:
        """Start, and wait until it answers; a file that would grow beyond `largest_file` meets a full disk."""

        def in_child() -> None:
            if largest_file != resource.RLIM_INFINITY:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
            _die_with_parent()

        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                preexec_fn=in_child, **self._account,
            )  # fmt: skip
        for _ in range(600):
            try:
                self.connect().close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.02)
        said = (self.folder / "log").read_text(errors="replace")
        self.stop()
        raise RuntimeError(f"PostgreSQL did not start: {said[-500:]}")

    def stop(self) -> None:
        """Stop at once: open connections are cut, what was not committed is rolled back."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait(20)
            self._process = None


@contextmanager
def server(*, durable: bool = False) -> Iterator[Server]:
    """A server for a while; `durable` makes it sync to disk as in production."""
    binaries, account = _binaries(), _account()
    # Unix sockets have short names, and the server's account must be able to reach the folder
    folder = Path(tempfile.mkdtemp(prefix="verax-pg-", dir="/tmp" if Path("/tmp").is_dir() else None))
    running = Server(folder, binaries, account, durable)
    try:
        if account:
            os.chown(folder, account["user"], account["group"])
        subprocess.run(
            [binaries / "initdb", "-D", folder / "data", "--username=postgres", "--auth=trust", "--no-sync",
             "--encoding=UTF8", "--locale=C", "--no-instructions"],
            check=True, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, **account,
        )  # fmt: skip
        running.start()
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)


@cache
def shared() -> Server:
    """The one server of this process, started when a test first needs it and stopped when the process ends."""
    context = server()
    try:
        running = context.__enter__()
    except Absent as absent:
        if os.environ.get("CI"):
            pytest.fail(f"{absent}; on CI these tests must run")
        pytest.skip(str(absent))
    atexit.register(context.__exit__, None, None, None)
    return running


def _binaries() -> Path:
    """The folder of initdb and postgres, the newest where there are several."""
    on_path = shutil.which("initdb")
    places = [Path(on_path).resolve().parent] if on_path else []
    installed = (p.parent for p in Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    places += sorted(installed, key=lambda p: int("".join(filter(str.isdigit, p.parent.name)) or 0), reverse=True)
    for place in places:
        if (place / "postgres").exists():
            return place
    raise Absent(ABSENT)


def _account() -> dict[str, Any]:
    """As whom the server runs, in the words of subprocess: as ourselves, unless we are root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise Absent("PostgreSQL refuses to run as root and there is no account postgres or nobody; add one")


def _die_with_parent() -> None:
    """Shut the server down even if the tests are killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
