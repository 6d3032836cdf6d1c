"""Signed notes (C2SP signed-note): a text, an empty line, and a line for everybody who signed it.

    — name base64(key id || signature)

PLAIN signatures are of the text; TIMED ones (C2SP tlog-cosignature) say since when, too. A key is written as
`name+id+base64(kind || public half)`. Signatures of unknown keys say nothing and are passed over.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from verax.errors import InputError
from verax.keys import Key, checked_public, verifies

PLAIN, TIMED = 1, 4
MOST_CHARACTERS = 2**26
MOST_SIGNATURES = 100
_UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f]")
_SIGNED_TIME = 8


@dataclass(frozen=True)
class NoteKey:
    """Who signs notes: a name, and the public half of an Ed25519 key.

    >>> key = NoteKey.of("example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k")
    >>> key.name, key.id.hex(), str(key)[-6:]
    ('example.com/foo', '530d903a', 'Kv3U2k')
    """

    name: str
    public: str
    kind: int = PLAIN

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise InputError(f"{self.name!r} is no name of a note's key; give one without blanks and without +")

    @classmethod
    def of(cls, text: str) -> NoteKey:
        """The key that a text like `name+id+base64` names."""
        name, _, rest = text.strip().partition("+")
        id, _, material = rest.partition("+")
        held = base64_bytes(material)
        if held is None or len(held) != 33 or held[0] not in (PLAIN, TIMED):
            raise InputError(f"{text!r} is no key of a note; give name+id+base64, of an Ed25519 key")
        found = cls(name, checked_public(held[1:].hex(), name), held[0])
        if found.id.hex() != id:
            raise InputError(f"{text!r}: the id of this key is {found.id.hex()}, not {id}; copy it again")
        return found

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{base64_text(bytes([self.kind]) + bytes.fromhex(self.public))}"

    @property
    def id(self) -> bytes:
        """Four bytes that tell the key's lines from others."""
        material = bytes([self.kind]) + bytes.fromhex(self.public)
        return hashlib.sha256(self.name.encode() + b"\n" + material).digest()[:4]

    def of_kind(self, kind: int) -> NoteKey:
        """The same key for signatures of another kind."""
        return replace(self, kind=kind)


@dataclass(frozen=True)
class Signed:
    """A note: its text, which ends in a newline, and the lines of who signed it.

    >>> note = Signed("hello\\n").by("example.com/me", Key.new())
    >>> Signed.parsed(str(note)) == note
    True
    """

    text: str
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.text}\n" + "".join(f"{line}\n" for line in self.lines)

    @classmethod
    def parsed(cls, note: str, source: str = "the note") -> Signed:
        """The note that a text is; refused if it is none."""
        text, empty, below = note.rpartition("\n\n")
        lines = below.splitlines()
        whole = empty and below.endswith("\n") and len(note) <= MOST_CHARACTERS and not _UNPRINTABLE.search(note)
        if not whole or not 0 < len(lines) <= MOST_SIGNATURES or "\r" in note or any(_parts(x) is None for x in lines):
            raise InputError(
                f"{source}: no signed note (a text, an empty line, lines '— name signature'); get it again"
            )
        return cls(f"{text}\n", tuple(lines))

    def by(self, name: str, key: Key, at: int | None = None) -> Signed:
        """The same note with one more signature; with a time, in seconds, one that says since when."""
        signer = NoteKey(name, key.public, PLAIN if at is None else TIMED)
        time = b"" if at is None else at.to_bytes(_SIGNED_TIME, "big")
        signature = time + key.sign_bytes(_signed_bytes(self.text, at))
        return self.with_lines([f"— {name} {base64_text(signer.id + signature)}"])

    def with_lines(self, lines: Iterable[str]) -> Signed:
        """The same note with further lines, each once."""
        return replace(self, lines=tuple(dict.fromkeys([*self.lines, *lines])))

    def signed_at(self, key: NoteKey) -> int | None:
        """When the holder of a key signed this: seconds, 0 where the kind of signature says no time.

        None where there is no line of that key's, or one that is not right.
        """
        times = [_time_of(signature, self.text, key) for signature in self._signatures_of(key)]
        return None if None in times else max((time for time in times if time is not None), default=None)

    def is_signed_by(self, public: str) -> bool:
        """Whether that key signed this under any name, and rightly."""
        names = {parts[0] for line in self.lines if (parts := _parts(line)) is not None}
        return any(self.signed_at(NoteKey(name, public, kind)) is not None for name in names for kind in (PLAIN, TIMED))

    def _signatures_of(self, key: NoteKey) -> list[bytes]:
        parts = [found for line in self.lines if (found := _parts(line)) is not None]
        return [held[4:] for name, held in parts if name == key.name and held[:4] == key.id]


def is_name(text: str) -> bool:
    """Whether a note's key can be called so."""
    return bool(text) and "+" not in text and not any(c.isspace() for c in text) and not _UNPRINTABLE.search(text)


def _parts(line: str) -> tuple[str, bytes] | None:
    """A line's name and what is signed; None if it is no signature line."""
    dash, _, rest = line.partition(" ")
    name, _, text = rest.rpartition(" ")
    held = base64_bytes(text)
    return (name, held) if dash == "—" and name and " " not in name and held and len(held) > 4 else None


def _time_of(signature: bytes, text: str, key: NoteKey) -> int | None:
    at = None
    if key.kind == TIMED:
        at, signature = int.from_bytes(signature[:_SIGNED_TIME], "big"), signature[_SIGNED_TIME:]
    return (at or 0) if verifies(key.public, signature, _signed_bytes(text, at)) else None


def _signed_bytes(text: str, at: int | None) -> bytes:
    return (text if at is None else f"cosignature/v1\ntime {at}\n{text}").encode()


def base64_text(data: bytes) -> str:
    """Bytes as base64 has them."""
    return base64.b64encode(data).decode()


def base64_bytes(text: str) -> bytes | None:
    """What base64 stands for; None if it is not written as it must be."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return found if base64_text(found) == text else None
