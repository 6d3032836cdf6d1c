"""Shape: how much there is to score, which is all that a mechanism must know of reports to be planned."""

from __future__ import annotations

from dataclasses import dataclass

from verax.errors import InputError
from verax.space import check_memory

MOST_TABLED = 5_000  # classes of which a table of labels beside labels may be made: 200 MB
_FEWER = "verax.score does without it for most rules; or leave out the classes that nobody says"


def check_table(classes: int) -> None:
    """Refuse so many classes where a table of labels beside labels has to be made.

    >>> check_table(5_000)
    """
    if classes > MOST_TABLED:
        check_memory("a table of labels beside labels", _FEWER, classes, classes, most=8 * MOST_TABLED**2)


@dataclass(frozen=True)
class Shape:
    """How much there is to score: all that a mechanism must know of reports to be planned.

    `known` counts the tasks with a truth; `public` is the kind of public signal, strata or features; `listed`: rows are
    given by their likeliest labels.

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
    listed: bool = False

    @property
    def many_classes(self) -> bool:
        """Whether a table of labels beside labels is too large to be made.

        >>> Shape(agents=3, tasks=100, classes=32_000).many_classes
        True
        """
        return self.classes > MOST_TABLED

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
