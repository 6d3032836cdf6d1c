"""Shape: how much there is to score, which is all that a mechanism must know of reports to be planned."""

from __future__ import annotations

from dataclasses import dataclass

from verax.errors import InputError


@dataclass(frozen=True)
class Shape:
    """How much there is to score: all that a mechanism must know of reports to be planned.

    `known` counts the tasks with a truth; `public` is the kind of public signal, strata or features.

    >>> Shape(agents=3, tasks=100, classes=2).rows
    False
    """

    agents: int
    tasks: int
    classes: int
    rows: bool = False
    sparse: bool = False
    known: int = 0
    public: str | None = None

    def check(self, source: str = "the reports") -> None:
        """Refuse what is too little to score."""
        if not self.agents:
            raise InputError(f"{source}: no agent; give at least one column or row of reports")
        if self.tasks < 2:
            raise InputError(f"{source}: only {self.tasks} task; scoring needs at least two tasks")
        if self.classes < 2:
            raise InputError(
                f"{source}: only {self.classes} class seen; scoring needs two: name all classes with classes="
            )
