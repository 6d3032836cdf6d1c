"""What a journal is made of: transfers, the entries that keep them, and its head. Nothing here knows a database."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from verax import wire
from verax.errors import InputError

HOUSE = "house"
TRANSFERS = ("posted", "pending", "post", "void")
GENESIS = "0" * 64
MOST = 2**63 - 1
_SHORT = 256  # characters


@dataclass(frozen=True)
class Transfer:
    """Money from one account to another: an integer above 0, immutable, known by its id; signed by who orders it.

    >>> Transfer("r1:fund", "house", "escrow:r1", 100_000, "fund", "r1").amount
    100000
    """

    id: str
    debit: str
    credit: str
    amount: int
    code: str
    round: str
    currency: str = ""
    signature: str = ""


@dataclass(frozen=True)
class Entry:
    """One row of the journal."""

    seq: int
    id: str
    kind: str
    round: str
    debit: str | None
    credit: str | None
    amount: int | None
    settles: str | None
    body: str
    hash: str
    at: str | None = None
    currency: str | None = None

    @property
    def said(self) -> Any:
        """What a record holds, or a transfer's code, as plain dicts and lists."""
        return wire.parsed(self.body, f"entry {self.seq}")

    @property
    def content(self) -> tuple[Any, ...]:
        """What two requests of the same id must share."""
        return (self.kind, self.round, self.debit, self.credit, self.amount, self.settles, self.body)

    def sealed_by(self, previous: str) -> str:
        """The hash this entry must have after `previous`: SHA-256 over one canonical byte string."""
        written = [previous, self.seq, self.id, *self.content]
        if (self.at, self.currency) != (None, None):  # as in every journal but those of the first version
            written += [self.at, self.currency]
        # a stored value of a kind that is never written (a blob, say) becomes a list, which no honest entry holds
        line = json.dumps(written, ensure_ascii=True, separators=(",", ":"), default=lambda odd: [repr(odd)])
        return sha256(line)

    @property
    def leaf(self) -> str:
        """What of this entry stands in the tree: all of it, and of what is long in a record its digest instead."""
        return wire.canonical(vars(self) | {"body": _shortened(self.body)})


def _shortened(body: str) -> Any:
    """What a record says, each long part of it by its digest, so that a receipt of it is short."""
    try:
        said = wire.parsed(body)
    except InputError:  # never written, but somebody may have put it there
        said = body
    parts = said.items() if isinstance(said, dict) else [("", said)]
    texts = {name: wire.canonical(part) for name, part in parts}
    return {name: part if len(texts[name]) <= _SHORT else {"sha256": sha256(texts[name])} for name, part in parts}


def sha256(text: str) -> str:
    """The digest of a text.

    >>> sha256("")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Head(wire.Document):
    """How long the journal is and what its last hash is: keep it, and a cut-off tail shows.

    >>> Head(0, GENESIS).count
    0
    """

    count: int
    hash: str
