"""A jail: a process of its own that does one piece of work behind walls, and can be ended at any moment.

The parent believes nothing of what comes back, reads no more of it than may come, and ends whatever takes too long.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import IO, Any, Literal, get_args

from verax import wire
from verax.errors import InputError, ModelError, OptionError, VeraxError, is_number

Jail = Literal["strong", "weak"]
_TO_START, _TO_END = 120.0, 10.0  # seconds
_MOST_OF_A_LINE = 4096
_ENVIRONMENT = {
    "ORT_DISABLE_TELEMETRY": "1",  # else onnxruntime reports home, by a thread of its own
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}
_START = (
    "import sys; sys.path[:] = sys.argv[5:]; from verax.models.inmate import main; "
    "main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == 'weak')"
)


@dataclass(frozen=True)
class Limits(wire.Document):
    """What a model may take: bytes of its file and of memory, seconds of processor and of the clock, rows at a time.

    >>> Limits(seconds=5).memory == 2 * 2**30
    True
    """

    file: int = 32 * 2**20
    memory: int = 2 * 2**30
    seconds: int = 60
    clock: int = 120
    batch: int = 256

    def __post_init__(self) -> None:
        for name, most in (("file", 2**28), ("memory", 2**46), ("seconds", 10**6), ("clock", 10**6), ("batch", 2**30)):
            if not is_number(value := getattr(self, name), 1, most) or value != int(value):
                raise OptionError(f"the limit {name} is {value!r}; give a whole number from 1 to {most:,}")


@dataclass(frozen=True)
class Walls:
    """Which walls stand, and which doors are open in spite of them; strong if all that must be shut is."""

    walls: tuple[str, ...]
    doors: tuple[str, ...]
    strong: bool

    def __str__(self) -> str:
        shut = f"walls: {', '.join(self.walls) or 'none'}"
        return f"{shut}; open in spite of them: {', '.join(self.doors)}" if self.doors else shut


def checked_jail(jail: str) -> Jail:
    """The name of a jail; weak is asked for by name, never fallen back to."""
    if jail not in get_args(Jail):
        raise OptionError(f"jail is {jail!r}; choose strong, or weak where the walls of a strong one cannot stand")
    return "strong" if jail == "strong" else "weak"


@cache
def walls() -> Walls:
    """The walls that stand on this machine, tried once by a process that is behind them.

    >>> walls().strong, walls().doors
    (True, ())
    """
    with tempfile.TemporaryFile() as nothing, _inmate("verax.models.jail:nothing", nothing, Limits(), "weak") as inmate:
        return inmate.walls


def refuse_weak_walls(jail: Jail) -> Walls:
    """The walls that stand; refused where models could get through them and `jail` is not weak."""
    standing = walls()
    _refuse_unless_strong(standing, jail)
    return standing


def _refuse_unless_strong(standing: Walls, jail: Jail) -> None:
    if not standing.strong and jail != "weak":
        raise VeraxError(
            f"models of strangers cannot be run safely here ({standing}); use Linux on x86_64 or aarch64 with seccomp, "
            "or, if you trust every agent, say jail=weak"
        )


def nothing(request: IO[bytes]) -> Any:
    """Work that is none: for whoever wants to know the walls only."""
    return lambda: ()


def confined(work: str, request: IO[bytes], most: int, limits: Limits | None = None, jail: Jail = "strong") -> bytes:
    """What `work`, a module:function (see inmate.Work), answers to a request from inside a jail.

    Raises ModelError where it answers more than `most` bytes, takes more than it may or ends before its time: that is
    whose work it is to bear. Any other error is of this machine.
    """
    limits = limits or Limits()
    with _inmate(work, request, limits, jail) as inmate:
        _refuse_unless_strong(inmate.walls, jail)
        until = time.monotonic() + limits.clock
        answer = bytearray()
        while block := inmate.read(until):
            answer += block
            if len(answer) > most:
                raise ModelError(f"it answers more than {most:,} bytes")
        try:
            status = inmate.process.wait(timeout=_TO_END)
        except subprocess.TimeoutExpired:
            raise ModelError("it says that it has ended and goes on") from None
        if status:
            raise ModelError(inmate.reason(status))
        return bytes(answer)


@dataclass
class _Inmate:
    """A process behind walls, and what it has said."""

    process: subprocess.Popen[bytes]
    said: IO[bytes]
    limits: Limits
    walls: Walls

    def read(self, until: float, most: int = 2**16) -> bytes:
        """What comes next; b"" at the end."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, until - time.monotonic())):
                raise ModelError(f"it takes more than {self.limits.clock} seconds")
        return os.read(self.process.stdout.fileno(), most)

    def reason(self, status: int) -> str:
        """Why it ended without an answer."""
        if status in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"it takes more than {self.limits.seconds} seconds of processor time, or was ended from outside"
        if status < 0:
            return f"it crashes ({signal.Signals(-status).name})"
        self.said.seek(0)
        return f"it ends with status {status}: {printable(self.said.read()[-300:].decode(errors='replace'))}"


def printable(text: str) -> str:
    """A stranger's text in one line of letters, short enough to show.

    >>> printable("a\\x1b[31m\\nb")
    'a?[31m b'
    """
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= 300 else line[:297] + "..."


@contextmanager
def _inmate(work: str, request: IO[bytes], limits: Limits, jail: Jail) -> Iterator[_Inmate]:
    if os.name != "posix":
        raise VeraxError("models are run on Linux only; run them there")
    request.seek(0)
    with tempfile.TemporaryDirectory(prefix="verax-jail-") as folder, tempfile.TemporaryFile() as said:
        os.chmod(folder, 0o711)  # empty; it is the root of whoever is inside  # nosec B103
        words = [work, str(limits.memory), str(limits.seconds), jail]
        path = [os.path.abspath(p) for p in sys.path]
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, *words, *path], stdin=request, stdout=subprocess.PIPE, stderr=said,
            cwd=folder, env=_ENVIRONMENT, start_new_session=True,
        )  # fmt: skip
        try:
            yield _Inmate(process, said, limits, _walls_said(process, said))
        finally:
            if process.poll() is None:  # else its number may be another's already
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _walls_said(process: subprocess.Popen[bytes], said: IO[bytes]) -> Walls:
    """The first line of what it answers; nothing of a stranger's was read before that."""
    started = _Inmate(process, said, Limits(clock=int(_TO_START)), Walls((), (), False))
    until, line = time.monotonic() + _TO_START, b""
    with suppress(ModelError):
        while len(line) < _MOST_OF_A_LINE and (letter := started.read(until, 1)):
            line += letter
            if letter == b"\n":
                break
    try:
        return wire.decoded(Walls, wire.parsed(line))
    except InputError:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        status = process.returncode
        reason = started.reason(status) if status else "nothing comes of it"
        raise VeraxError(f"no jail can be made for models here ({reason}); see docs/models.md") from None
