"""Sources: bytes from a path, from memory, from an open file or from standard input, never more than may be."""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from verax.columns import Reading
from verax.errors import InputError, OptionError, VeraxError

STANDARD_INPUT = "-"
_PACKERS = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}


@dataclass(frozen=True)
class Source:
    """Where bytes are, and what a refusal calls it.

    >>> source = Source.of(b"task,ann\\n", Reading())
    >>> source.name, source.begins(4)
    ('the bytes', b'task')
    """

    name: str
    content: Path | bytes
    endings: tuple[str, ...] = field(init=False)  # what its name ends in, in lower case, the last first

    def __post_init__(self) -> None:
        object.__setattr__(self, "endings", tuple(suffix.lower() for suffix in reversed(Path(self.name).suffixes)))

    @classmethod
    def of(cls, given: Any, reading: Reading) -> Source:
        """From a path, bytes, an open file, or `-` for standard input."""
        if isinstance(given, Source):
            return given
        if isinstance(given, bytes | bytearray | memoryview):
            return cls("the bytes", bytes(given))
        if isinstance(given, str) and (not given or "\n" in given):
            what = "an empty path" if not given else f"a text that begins {given[:20]!r}"
            raise OptionError(f"a source of reports is {what}; give a path, or what a file holds as bytes")
        if isinstance(given, str | Path) and str(given) == STANDARD_INPUT:
            return cls("standard input", _all_of(sys.stdin.buffer, "standard input", reading))
        if hasattr(given, "read"):
            name = getattr(given, "name", None)
            name = name if isinstance(name, str) else "the open file"
            return cls(name, _all_of(given, name, reading))
        if not isinstance(given, str | os.PathLike):
            raise OptionError(f"a source of reports is a {type(given).__name__}; give a path, bytes, a file or a frame")
        return cls(os.fspath(given), Path(given))

    @property
    def size(self) -> int:
        """How many bytes, compressed as they are."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of files."""
        return isinstance(self.content, Path) and os.path.isdir(self.content)

    def open(self) -> IO[bytes]:
        """The bytes as they are; what is not a file to be read from its beginning is refused."""
        if isinstance(self.content, bytes):
            return io.BytesIO(self.content)
        try:
            if not stat.S_ISREG(os.stat(self.content).st_mode) and not self.is_folder:
                raise InputError(f"{self.name}: is a pipe or a device; name a file, or pipe it in and name -")
            return open(self.content, "rb")
        except FileNotFoundError:
            raise InputError(f"{self.name}: no such file; check the path") from None
        except IsADirectoryError:
            raise InputError(f"{self.name}: is a folder; name a file in it") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"{self.name}: cannot be read ({reason}); check the path and its permissions") from None

    def begins(self, count: int) -> bytes:
        """Its first bytes."""
        with self.open() as file, self.refused("cannot be read as file"):
            return file.read(count)

    @contextmanager
    def text(self, reading: Reading) -> Iterator[io.TextIOWrapper]:
        """Its text, unpacked where it is gzip, in UTF-8."""
        with self.open() as file:
            head, raw = file.read(64), file
            file.seek(0)
            if head[:2] == b"\x1f\x8b":
                # unpacking is fast beside reading: whether it is too much is seen first
                deque(iter(partial(_Unpacked(file, self, reading).read, 2**20), b""), maxlen=0)
                file.seek(0)
                raw = io.BufferedReader(_Unpacked(file, self, reading))
                head = raw.peek(64)[:64]
            else:
                reading.refuse_large(self.name, self.size, self.size, "text")
            packer = next((name for magic, name in _PACKERS.items() if head.startswith(magic)), None)
            if packer is not None:
                raise InputError(f"{self.name}: packed by {packer}; unpack it, or pack it with gzip")
            halves = head[::2], head[1::2]
            wide = any(any(a) and b and not any(b) for a, b in (halves, halves[::-1]))
            if wide or head[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise InputError(f"{self.name}, line 1: not UTF-8 text but UTF-16, it seems; save the file in UTF-8")
            with io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
                yield text

    @contextmanager
    def refused(self, what: str, remedy: str = "write it again") -> Iterator[None]:
        """Whatever a parser of foreign bytes raises inside, as a refusal; what it can raise is not a closed list."""
        try:
            yield
        except VeraxError:
            raise
        except MemoryError as error:
            raise InputError(f"{self.name}: too large for this machine ({reason_of(error)}); split it") from None
        except Exception as error:
            reason = reason_of(error).removeprefix("Could not open Parquet input source '<Buffer>': ")
            raise InputError(f"{self.name}: {what} ({reason}); {remedy}") from None


class _Unpacked(io.RawIOBase):
    """A gzip file unpacked, up to what it may hold."""

    def __init__(self, raw: IO[bytes], source: Source, reading: Reading) -> None:
        self._file = gzip.GzipFile(fileobj=raw)
        self._source, self._reading, self._held = source, reading, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            found = self._file.read(len(buffer))
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{self._source.name}: cannot be unpacked ({reason_of(error)}); pack it again") from None
        self._held += len(found)
        self._reading.refuse_large(self._source.name, self._held, self._source.size, "packed text")
        buffer[: len(found)] = found
        return len(found)


def _all_of(file: Any, name: str, reading: Reading) -> bytes:
    """What an open file still holds."""
    try:
        found = file.read(reading.max_bytes + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: cannot be read ({reason_of(error)}); check what it comes from") from None
    found = found.encode() if isinstance(found, str) else bytes(found)
    reading.refuse_large(name, len(found), len(found), "more than may be read")
    return found


def reason_of(error: BaseException) -> str:
    """The first sentence of what another library has to say."""
    strerror = getattr(error, "strerror", None)
    return strerror or (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0]


def read_text(path: str | os.PathLike[str]) -> str:
    """A UTF-8 text file, or the sentence that says why not."""
    source = Source.of(path, Reading())
    with source.text(Reading()) as file:
        try:
            return file.read()
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: byte {error.start} is not UTF-8 text; save it in UTF-8") from None
