"""Certificate: a verdict as a value, with its reason and its witness."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from verax import wire
from verax.errors import InputError

VERDICTS = ("holds", "fails", "undecided", "not-applicable")
Interval = tuple[float, float]


@dataclass(frozen=True)
class Certificate(wire.Document):
    """One verdict about one agent, or about all of them (`agent` None).

    >>> Certificate("TRUTHFUL", "ann", "fails", 0.02, (0.01, 0.03), {"cat": "dog"}, "dog for cat gains").verdict
    'fails'
    """

    code: str
    agent: str | None
    verdict: str
    gain: float | None
    interval: Interval | None
    deviation: dict[str, str] | None
    why: str

    def check(self) -> None:
        """Refuse what is no verdict."""
        if self.verdict not in VERDICTS:
            raise InputError(f"a verdict is {self.verdict!r}; give one of {', '.join(VERDICTS)}")


@dataclass(frozen=True)
class Audit(wire.Document, format=wire.AUDIT):
    """An audit as a document.

    >>> Audit((Certificate("COPIES", "a", "holds", None, None, None, "no twin"),)).to_json()["format"]
    'verax.audit/1'
    """

    certificates: tuple[Certificate, ...]

    def check(self) -> None:
        """Refuse what is no verdict."""
        for certificate in self.certificates:
            certificate.check()


class Certificates(list[Certificate]):
    """Certificates of one audit: a list that goes out as a document, a data frame, or a table in a notebook."""

    def to_json(self) -> dict[str, Any]:
        """The one JSON form."""
        return Audit(tuple(self)).to_json()

    @classmethod
    def from_json(cls, document: Any) -> Certificates:
        """Certificates from their JSON form.

        >>> found = Certificates([Certificate("COPIES", "a", "fails", None, (0.8, 1.0), {"a": "b"}, "a copy")])
        >>> Certificates.from_json(found.to_json()) == found
        True
        """
        return cls(Audit.from_json(document).certificates)

    def _repr_html_(self) -> str:
        from verax.frames import html_table

        names = ("code", "agent", "verdict", "why")
        return html_table("certificates", names, ([getattr(c, name) for name in names] for c in self))

    def to_frame(self, backend: str | None = None) -> Any:
        """A row a certificate, of whatever frame library is installed."""
        from verax.frames import to_frame

        names = ("code", "agent", "verdict", "gain", "why")
        columns: dict[str, list[Any]] = {name: [getattr(c, name) for c in self] for name in names}
        low, high = ([None if c.interval is None else c.interval[side] for c in self] for side in (0, 1))
        return to_frame({**columns, "low": low, "high": high}, backend)


def tasks_needed(tasks: float, ratio: float) -> str:
    """The number of tasks at which an error `ratio` times too large would be small enough, in words.

    >>> tasks_needed(1000, 2.0)
    'about 4,000 tasks would decide'
    """
    if not math.isfinite(ratio) or tasks * ratio**2 > 1e7:
        return "more than 10,000,000 tasks would be needed to decide"
    wanted = max(tasks * ratio**2, tasks + 1)
    digits = 10 ** max(0, math.floor(math.log10(wanted)) - 1)
    return f"about {math.ceil(wanted / digits) * digits:,} tasks would decide"
