"""What an agent of a federation is told of a round: what it is paid, why, and what proves it, signed by the operator.

    for notice in notices_in(text):                 what the operator sent, from whatever carried it
        print(notice)
        assert not notice.fault(operator=KEY)       the key that the operator has published

A notice is checked on its own, offline: the signature covers every field. It shows what the operator has said; that it
is also what the ledger holds is seen by whoever has the ledger (`verax round verify`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from verax import wire
from verax.errors import InputError
from verax.money import major_text, scale_of

if TYPE_CHECKING:
    from verax.keys import Key
    from verax.ledger import Journal

TOLD = "told"  # the kind of a ledger's records of notices
DIGITS = 20  # of a hash, as a name: nobody finds a second key that begins with 80 given bits


@dataclass(frozen=True)
class Notice(wire.Document, format=wire.NOTICE):
    """What one agent is told of one round.

    `number` is the federation's count of rounds and `round` the ledger's name for it, if it is in one. `identity` is
    what its name stands for, `model` the SHA-256 sum of its reply (`received.digest_of`). `amount` is in minor units;
    null where nothing is paid in the round. `receipt` is the proof that what the reply said of the pool is in the
    operator's log (`verax receipt verify`).

    >>> notice = Notice("plants", 1, "ann", "score 0.9300 ± 0.0100 beside 4 others", amount=1167, currency="EUR")
    >>> print(notice)
    plants, round 1: ann is paid 11.67 EUR: score 0.9300 ± 0.0100 beside 4 others
    >>> notice.fault()
    'nobody has signed it'
    >>> from verax.keys import Key
    >>> key = Key.new()
    >>> signed = notice.signed_by(key)
    >>> signed.fault(operator=key.public), replace(signed, amount=9999).fault(operator=key.public)
    ('', 'it is not what the operator signed')
    """

    federation: str
    number: int
    agent: str
    why: str
    identity: str | None = None
    model: str | None = None
    round: str | None = None
    score: float | None = None
    stderr: float | None = None
    amount: int | None = None
    currency: str | None = None
    receipt: str | None = None
    operator: str | None = None
    signature: str | None = None

    def __str__(self) -> str:
        return f"{self.federation}, round {self.number}: {self.agent} is paid {self.pay}: {self.why}"

    @property
    def pay(self) -> str:
        """What is paid, in major units."""
        if self.amount is None or self.currency is None:
            return "nothing"
        return f"{major_text(self.amount, scale_of(self.currency))} {self.currency}"

    @property
    def signed_part(self) -> dict[str, Any]:
        """All but the signature."""
        return replace(self, signature=None).to_json()

    def signed_by(self, key: Key) -> Notice:
        """The same, signed."""
        unsigned = replace(self, operator=key.public, signature=None)
        return replace(unsigned, signature=key.sign(unsigned.signed_part))

    def fault(self, *, operator: str | None = None, model: str | None = None) -> str:
        """Why not to rely on it; '' if there is no reason.

        `operator` is the public key that must have signed it, and `model` the digest of what was sent; left out, any
        key will do, and any model.
        """
        from verax.keys import is_signed

        if self.operator is None or self.signature is None:
            return "nobody has signed it"
        if operator is not None and self.operator != operator:
            return f"it is signed by {self.operator[:16]} and not by the operator {operator[:16]}"
        if not is_signed(self.signed_part, self.operator, self.signature):
            return "it is not what the operator signed"
        if model is not None and self.model not in (None, model):
            return f"it is about model {(self.model or '')[:16]} and not {model[:16]}"
        return "" if self.receipt is None else self._receipt_fault(self.receipt, self.operator)

    def _receipt_fault(self, text: str, operator: str) -> str:
        from verax.log import Proof

        try:
            proof = Proof.parsed(text)
            entry = proof.said["round"], proof.said["body"]["agent"]
        except (InputError, KeyError, TypeError):
            return "its receipt is none"
        if entry != (self.round, self.agent):
            return "its receipt is of another's submission"
        if not proof.is_included or proof.checkpoint.signed_at(operator) is None:
            return "its receipt does not prove that its entry is in the operator's log"
        return ""


def text_of(notices: Iterable[Notice]) -> str:
    """Notices as one line of text, for whatever carries them.

    >>> notices_in(text_of([Notice("plants", 1, "ann", "dropped: no reply")]))[0].why
    'dropped: no reply'
    """
    return wire.canonical([notice.to_json() for notice in notices])


def notices_in(text: str) -> list[Notice]:
    """The notices that were sent."""
    documents = wire.parsed(text, "the notices")
    if not isinstance(documents, list):
        raise InputError("the notices: not a list; give the text that was sent")
    return [Notice.from_json(document) for document in documents]


def told_in(journal: Journal, round: str) -> list[Notice]:
    """What everybody was told of a federation's round, in order, from the ledger."""
    said = journal.said(round, TOLD)
    return [Notice.from_json(notice) for record in said for notice in record["notices"]]
