"""A proof: one entry of a log, that it is in it, and a signed checkpoint, in one text file. Receipts are such.

The form is C2SP tlog-proof; its line `extra` holds a JSON document with the entry as it was hashed (`leaf`) and what
else its holder needs. Nothing of that is believed but what the hashes say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verax import wire
from verax.errors import InputError
from verax.log.checkpoint import HASH_BYTES, Checkpoint, is_decimal
from verax.log.merkle import includes, leaf_hash
from verax.log.notes import base64_bytes, base64_text

FIRST_LINE = "c2sp.org/tlog-proof@v1"


@dataclass(frozen=True)
class Proof:
    """A leaf, where it is in the log, and the proof; `beside` is what else is told, unproved.

    >>> from verax.keys import Key
    >>> top = leaf_hash(b'{"id":"a"}')
    >>> kept = Proof('{"id":"a"}', 0, (), Checkpoint.of("example.com/log", 1, top).signed(Key.new(), 0))
    >>> Proof.parsed(str(kept)) == kept, kept.is_included, kept.said
    (True, True, {'id': 'a'})
    """

    leaf: str
    index: int
    proof: tuple[bytes, ...]
    checkpoint: Checkpoint
    beside: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parsed(cls, text: str, source: str = "the receipt") -> Proof:
        """The receipt that a text is; refused if it is none."""
        above, _, below = text.partition("\n\n")
        lines = above.split("\n")
        refused = InputError(f"{source}: not a receipt; give what verax receipt get wrote")
        if len(lines) < 3 or lines[0] != FIRST_LINE or not lines[1].startswith("extra "):
            raise refused
        extra, index = base64_bytes(lines[1].removeprefix("extra ")), lines[2].removeprefix("index ")
        proof = [base64_bytes(line) for line in lines[3:]]
        whole = extra is not None and lines[2].startswith("index ") and is_decimal(index)
        if not whole or any(held is None or len(held) != HASH_BYTES for held in proof):
            raise refused
        beside = wire.parsed(extra or b"", source)
        if not isinstance(beside, dict) or not isinstance(leaf := beside.pop("leaf", None), str):
            raise refused
        return cls(leaf, int(index), tuple(held for held in proof if held), Checkpoint.parsed(below, source), beside)

    def __str__(self) -> str:
        extra = base64_text(wire.canonical({**self.beside, "leaf": self.leaf}).encode())
        return f"{FIRST_LINE}\nextra {extra}\nindex {self.index}\n{_lines(self.proof)}\n{self.checkpoint}"

    @property
    def said(self) -> Any:
        """What the leaf says."""
        return wire.parsed(self.leaf, "the receipt's entry")

    @property
    def is_included(self) -> bool:
        """Whether the proof leads from the leaf to the checkpoint's root."""
        top = self.checkpoint
        return includes(leaf_hash(self.leaf.encode()), self.index, top.size, self.proof, top.root)


def _lines(hashes: Iterable[bytes]) -> str:
    return "".join(f"{base64_text(held)}\n" for held in hashes)
