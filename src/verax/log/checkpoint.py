"""Checkpoints (C2SP tlog-checkpoint): which log, how many entries, what root; signed by who keeps it.

A log's own signature comes twice: plain, as any reader of checkpoints expects it, and with the time. `Continuation` is
a checkpoint and the proof that it continues an earlier one, in the form in which witnesses take it (C2SP tlog-witness).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from verax.errors import InputError
from verax.keys import Key
from verax.log.merkle import EMPTY, continues
from verax.log.notes import PLAIN, TIMED, NoteKey, Signed, base64_bytes, base64_text, is_name

HASH_BYTES = 32
_LONGEST_PROOF = 63


@dataclass(frozen=True)
class Checkpoint:
    """What a log was at some size.

    >>> found = Checkpoint.of("example.com/log", 0, EMPTY).signed(key := Key.new(), 1_700_000_000)
    >>> Checkpoint.parsed(str(found)) == found, found.signed_at(key.public)
    (True, 1700000000)
    """

    origin: str
    size: int
    root: bytes
    note: Signed

    @classmethod
    def of(cls, origin: str, size: int, root: bytes, lines: Sequence[str] = ()) -> Checkpoint:
        """A checkpoint of these, with the lines of who signed it."""
        return cls(origin, size, root, Signed(f"{origin}\n{size}\n{base64_text(root)}\n", tuple(lines)))

    @classmethod
    def parsed(cls, text: str, source: str = "the checkpoint") -> Checkpoint:
        """The checkpoint that a signed note is."""
        note = Signed.parsed(text, source)
        lines = note.text[:-1].split("\n")
        held = base64_bytes(lines[2]) if len(lines) > 2 and "" not in lines and is_decimal(lines[1]) else None
        if held is None or len(held) != HASH_BYTES or not is_name(lines[0]):
            raise InputError(f"{source}: no checkpoint (its log, how many entries, the root; signed); get it again")
        return cls(lines[0], int(lines[1]), held, note)

    def __str__(self) -> str:
        return str(self.note)

    def signed(self, key: Key, at: int) -> Checkpoint:
        """The same, signed by who keeps the log, at a time in seconds."""
        return replace(self, note=self.note.by(self.origin, key).by(self.origin, key, at))

    def signed_at(self, public: str) -> int | None:
        """When the log's own key signed this; None where it has not signed both ways, or not rightly."""
        plain, timed = (self.note.signed_at(NoteKey(self.origin, public, kind)) for kind in (PLAIN, TIMED))
        return None if plain is None else timed

    def problem_beside(self, other: Checkpoint) -> str | None:
        """Why this and another cannot be of one log, as far as that shows without a proof."""
        if self.origin != other.origin:
            return (
                f"one is of {self.origin}, the other of {other.origin}: two logs, or one whose beginning was rewritten"
            )
        if self.size == other.size and self.root != other.root:
            return f"two checkpoints of {self.origin} at {self.size} entries have other roots: the log was rewritten"
        return None


@dataclass(frozen=True)
class Continuation:
    """A checkpoint, and the proof that it continues the log's first `since` entries.

    >>> first = Checkpoint.of("example.com/log", 0, EMPTY).signed(Key.new(), 0)
    >>> Continuation.parsed(str(Continuation(0, (), first))).since
    0
    """

    since: int
    proof: tuple[bytes, ...]
    checkpoint: Checkpoint

    @classmethod
    def parsed(cls, text: str, source: str = "the request") -> Continuation:
        """What `old SIZE`, lines of hashes, an empty line and a checkpoint say."""
        above, empty, below = text.partition("\n\n")
        first, *hashes = above.split("\n")
        since, proof = first.removeprefix("old "), tuple(base64_bytes(line) for line in hashes)
        whole = empty and first.startswith("old ") and is_decimal(since) and len(proof) <= _LONGEST_PROOF
        if not whole or any(held is None or len(held) != HASH_BYTES for held in proof):
            raise InputError(f"{source}: no request to a witness (old SIZE, hashes, a checkpoint); get it again")
        return cls(int(since), tuple(held for held in proof if held), Checkpoint.parsed(below, source))

    def __str__(self) -> str:
        hashes = "".join(f"{base64_text(held)}\n" for held in self.proof)
        return f"old {self.since}\n{hashes}\n{self.checkpoint}"

    def continues(self, earlier_root: bytes = EMPTY) -> bool:
        """Whether the checkpoint continues the tree of `since` entries with this root."""
        now = self.checkpoint
        return continues(self.since, now.size, self.proof, earlier_root, now.root)


def is_decimal(text: str) -> bool:
    """Whether it is a number as checkpoints write sizes: digits alone, no zero before others."""
    return text.isascii() and text.isdigit() and len(text) < 20 and (text == "0" or text[0] != "0")
