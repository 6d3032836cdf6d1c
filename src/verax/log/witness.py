"""A witness: who signs checkpoints that continue what it has seen, and keeps the evidence when one does not.

Its rules are C2SP tlog-witness's. What it has signed last of each log is in one file, written before it answers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from verax import wire
from verax.errors import ConflictError, InputError
from verax.keys import Key, write_private
from verax.log.checkpoint import Checkpoint, Continuation
from verax.log.merkle import EMPTY
from verax.log.notes import TIMED, NoteKey

Seen = dict[str, Checkpoint]


class UnknownLogError(ConflictError):
    """The witness has not been told of that log, or not of that key."""

    status = 404


class UnsignedError(ConflictError):
    """A checkpoint that its log has not signed."""

    status = 403


class StaleError(ConflictError):
    """The request begins at another size than the one that was signed last, which is `size`."""

    def __init__(self, said: str, size: int, evidence: str = "") -> None:
        super().__init__(said)
        self.size, self.evidence = size, evidence


class RollbackError(StaleError):
    """A checkpoint of fewer entries than were signed before: `evidence` is the text of both."""


class ForkError(ConflictError):
    """A checkpoint that does not continue the one signed before: `evidence` is the text of both."""

    status = 422

    def __init__(self, said: str, evidence: str) -> None:
        super().__init__(said)
        self.evidence = evidence


@dataclass(frozen=True)
class Witness:
    """Signs, under a name, the checkpoints of the logs that it has been told of.

    `logs` are the public halves of each log's keys, by origin; `state` is the file of what was signed last.

    >>> import pathlib, tempfile
    >>> log, first = Key.new(), Checkpoint.of("example.com/log", 0, EMPTY)
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "seen.json"
    >>> witness = Witness("witness.example/w1", Key.new(), {"example.com/log": (log.public,)}, file)
    >>> [line] = witness.cosign(Continuation(0, (), first.signed(log, 0)), at=1_700_000_000)
    >>> first.note.with_lines([line]).signed_at(witness.note_key)
    1700000000
    """

    name: str
    key: Key
    logs: Mapping[str, tuple[str, ...]]
    state: Path

    @property
    def note_key(self) -> NoteKey:
        """By what others know its signatures."""
        return NoteKey(self.name, self.key.public, TIMED)

    def cosign(self, request: Continuation, at: int | None = None) -> list[str]:
        """The lines that sign a request's checkpoint; refuses what does not continue the last."""
        now = request.checkpoint
        self._check_signed(now)
        with _locked(self.state) as seen:
            _check_continues(request, seen.get(now.origin))
            seen[now.origin] = now
            _keep(self.state, seen)
        when = int(time.time()) if at is None else at
        return [*now.note.by(self.name, self.key, when).lines[-1:]]

    def last(self, origin: str) -> Checkpoint | None:
        """The last checkpoint of a log that was signed."""
        return _read(self.state).get(origin)

    def _check_signed(self, now: Checkpoint) -> None:
        if now.origin not in self.logs:
            raise UnknownLogError(f"{now.origin}: this witness has not been told of that log; name its key first")
        if all(now.signed_at(public) is None for public in self.logs[now.origin]):
            raise UnsignedError(
                f"the checkpoint of {now.origin} is not signed by the key known here; nothing is signed"
            )


def _check_continues(request: Continuation, last: Checkpoint | None) -> None:
    """Refuse what does not continue the last checkpoint, in the order of C2SP tlog-witness."""
    now, size = request.checkpoint, 0 if last is None else last.size
    evidence = f"{last}\n{now}" if last is not None else str(now)
    if request.since > now.size:
        raise InputError(f"the request begins at {request.since} entries and its checkpoint has {now.size}; ask anew")
    if now.size < size:
        said = f"{now.origin} goes back from {size} entries to {now.size}: a backup was restored, or it was rewritten"
        raise RollbackError(f"{said}; nothing is signed", size, evidence)
    if last is not None and last.size == now.size and last.root != now.root:
        raise ForkError(f"{last.problem_beside(now)}; nothing is signed", evidence)
    if request.since != size:
        raise StaleError(f"{now.origin} was signed at {size} entries; ask for what came since {size}", size)
    if not request.continues(EMPTY if last is None else last.root):
        raise ForkError(f"{now.origin} at {now.size} entries is not shown to continue what it was at {size}; "
                        "nothing is signed", evidence)  # fmt: skip


@contextmanager
def _locked(state: Path) -> Iterator[Seen]:
    """What was seen, while nobody else looks."""
    try:
        import fcntl
    except ImportError:
        raise InputError("a witness needs a system that locks files; run it on Linux or macOS") from None
    try:
        with open(f"{state}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield _read(state)
    except OSError as error:
        raise InputError(f"{state}: what was seen cannot be kept there ({error.strerror}); name another file") from None


def _read(state: Path) -> Seen:
    try:
        text = state.read_text()
    except FileNotFoundError:
        return {}
    kept = wire.parsed(text, str(state))
    if not isinstance(kept, dict):
        raise InputError(f"{state}: not what a witness has seen; name the file that it wrote, or a new one")
    return {origin: Checkpoint.parsed(str(note), str(state)) for origin, note in kept.items()}


def _keep(state: Path, seen: Seen) -> None:
    """The file anew, whole or not at all, and on the disk before anything is answered."""
    write_private(state, wire.text_of({origin: str(checkpoint) for origin, checkpoint in seen.items()}), over=True)
    folder = os.open(state.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
