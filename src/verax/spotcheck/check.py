"""The spot check: which tasks to label, with what chance each was drawn, and what that will buy."""

from __future__ import annotations

import functools
import hashlib
import math
import secrets
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from verax import wire
from verax.errors import InputError, OptionError
from verax.intervals import quantile
from verax.kernels import Floats, Labels
from verax.mechanisms.soft import in_order
from verax.public import Public
from verax.reports import Reports, as_reports
from verax.shape import check_table
from verax.space import said_of_memory
from verax.spotcheck.belief import Belief
from verax.spotcheck.design import ABOUT, Errors, Mask, drawn, expected_chances, fewest, shares
from verax.statistic import Side

_MOST_CELLS = 2**27  # of agents x tasks


@dataclass(frozen=True)
class Asked(wire.Document):
    """A task to be labelled: the chance that it was among those asked, and its share, from which its ticket follows."""

    task: str
    chance: float
    share: float


@dataclass(frozen=True)
class Expected(wire.Document):
    """What the others' answers make of an agent's accuracy on its tasks, and the error it will have after labelling."""

    agent: str
    accuracy: float
    stderr: float
    tasks: int


@dataclass(frozen=True)
class SpotCheck(wire.Document, format=wire.SPOTCHECK):
    """Tasks to label, in order, drawn from `tasks` of the reports whose digest is `reports`.

    `pairs`: neighbours in the expected order, of which `decides` would be told apart. `even` and `alone`: how many
    evenly drawn labels would do as much, with all answers and without. All of it if the beliefs are right; `known`
    tasks had labels before.

    >>> from verax.demo import bundled
    >>> found = plan_labels(bundled(), 100, seed="spot")
    >>> len(found.ask), found.pairs, 0 < found.ask[0].chance < 1
    (100, 13, True)
    """

    reports: str
    about: str
    seed: str
    tasks: int
    ask: tuple[Asked, ...]
    agents: tuple[Expected, ...]
    pairs: int
    decides: int
    even: int
    alone: int
    known: tuple[str, ...] = wire.if_given(())
    warnings: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what no draw can have given."""
        names = [asked.task for asked in self.ask]
        if len({*names, *self.known}) < len(names) + len(self.known) or len(names) + len(self.known) > self.tasks:
            raise InputError("the spot check asks for a task twice, or for more than there are; plan the labels again")
        if self.about not in ABOUT or not all(0 < a.chance <= 1 and 0 < a.share < math.inf for a in self.ask):
            raise InputError("the spot check has a chance that is none, or no purpose; plan the labels again")

    def to_frame(self) -> Any:
        """A row a task, with an empty label, of whatever frame library is installed."""
        from verax.frames import to_frame

        return to_frame({"task": [a.task for a in self.ask], "label": [""] * len(self.ask)})


@said_of_memory("plan for fewer agents or tasks")
def plan_labels(
    reports: Any,
    label: int | None = None,
    *,
    wanted: float | None = None,
    about: str = "order",
    truth: Any = None,
    seed: str | None = None,
) -> SpotCheck:
    """Which tasks to label: so many, or as many as bring every expected error down to `wanted`.

    `about`: "order", where the error is that of the difference of neighbours, or "accuracy", each agent's own. Tasks
    with a `truth` are not asked for. The same `seed`, any text, draws the same tasks, and asking for more begins with
    the same; without one a fresh one is drawn, and stands in the document.

    >>> import verax
    >>> labels = [[0, 1] * 9, [0, 0, 1, 1] * 4 + [0, 1], [0, 1] * 8 + [1, 0]]
    >>> few, more = (plan_labels(verax.Reports.of(labels), k, seed="spot").ask for k in (4, 9))
    >>> [asked.task for asked in few] == [asked.task for asked in more[:4]]
    True
    """
    if about not in ABOUT:
        raise OptionError(f"about is {about!r}; give one of {', '.join(ABOUT)}")
    given = as_reports(reports).scorable()
    check_size(given)
    held = by_name(given if truth is None else given.with_truth(truth))
    known = np.zeros(len(held.tasks), dtype=bool) if truth is None or held.truth is None else held.truth >= 0
    _check_wanted(label, wanted, int((~known).sum()))
    belief = Belief.of(held.labels)
    share = np.where(known, 1.0, shares(held.labels, belief, about))
    drafted = Draft(held, belief, known, share, about)
    count = label if label is not None else drafted.labels_for(wanted or 0.0)
    return drafted.spot_check(count, secrets.token_hex(8) if seed is None else str(seed))


def _check_wanted(label: int | None, wanted: float | None, left: int) -> None:
    if (label is None) == (wanted is None):
        seen = "neither a number of labels nor a wanted error" if label is None else "both label= and wanted="
        raise OptionError(f"{seen}; give one of label= and wanted=")
    if label is not None and left >= 2 and not 2 <= label <= left:
        raise OptionError(f"{label} labels of {left} tasks without one; give a number from 2 to {left}")
    if left < 2:
        raise InputError(f"{left} tasks are without a label; there is nothing to draw from")
    if wanted is not None and not 0 < wanted < 1:
        raise OptionError(f"the wanted error is {wanted:g}; give a standard error between 0 and 1, such as 0.02")


@dataclass(frozen=True, eq=False)
class Draft:
    """Reports in the order of names, what is believed of them, and how likely each task will be drawn."""

    reports: Reports
    belief: Belief
    known: Mask
    share: Floats
    about: str

    @functools.cached_property
    def accuracies(self) -> Errors:
        """Of every agent's accuracy."""
        return Errors.of_accuracies(self.reports.labels, self.belief)

    @functools.cached_property
    def differences(self) -> Errors:
        """Of neighbours in the expected order."""
        ranked = np.argsort(-self.accuracies.value, kind="stable")
        return Errors.of_differences(self.reports.labels, self.belief, ranked[:-1], ranked[1:])

    @property
    def asked_about(self) -> Errors:
        """The errors that are to be small."""
        return self.differences if self.about == "order" and len(self.reports.agents) > 1 else self.accuracies

    def chances(self, labels: int, share: Floats | None = None) -> Floats:
        """The chances of all tasks if so many more are labelled."""
        found = np.ones(len(self.known))
        found[~self.known] = expected_chances((self.share if share is None else share)[~self.known], labels)
        return found

    def labels_for(self, wanted: float) -> int:
        """How many labels bring every error down to the wanted one."""
        left = int((~self.known).sum())
        return max(2, fewest(lambda k: bool(self.asked_about.stderrs(self.chances(k)).max() <= wanted), left))

    def spot_check(self, labels: int, seed: str) -> SpotCheck:
        """The document: so many tasks drawn, and what they buy."""
        held, left = self.reports, np.nonzero(~self.known)[0]
        order, tickets = drawn([held.tasks[n] for n in left], self.share[left], seed)
        following = float(tickets[labels]) if labels < len(tickets) else math.inf
        ask = tuple(
            Asked(held.tasks[n], min(1.0, s * following), s)
            for n, s in ((n, float(self.share[n])) for n in left[order[:labels]].tolist())
        )
        chances = self.chances(labels)
        reached = self.asked_about.variance(chances)
        even = np.ones(len(self.known))
        apart = np.abs(self.differences.value) > quantile(0.95) * self.differences.stderrs(chances)
        agents = zip(
            held.agents, self.accuracies.value.tolist(), self.accuracies.stderrs(chances).tolist(),
            (held.labels >= 0).sum(1).tolist(), strict=True,
        )  # fmt: skip
        return SpotCheck(
            digest_of(held), self.about, seed, len(held.tasks), ask,
            tuple(sorted((Expected(*each) for each in agents), key=lambda e: (-e.accuracy, e.agent))),
            len(held.agents) - 1, int(apart.sum()),
            fewest(lambda k: self.asked_about.variance(self.chances(k, even)) <= reached, len(left)),
            self.asked_about.labels_alone(reached, len(left)),
            tuple(held.tasks[n] for n in np.nonzero(self.known)[0].tolist()),
        )  # fmt: skip


def check_size(reports: Reports) -> None:
    """Refuse what would not fit: everybody's chance of being right is held for every task.

    >>> check_size(Reports.of([["cat", "dog"]]))
    """
    check_table(len(reports.classes))
    agents, tasks = len(reports.agents), len(reports.tasks)
    if agents * tasks > _MOST_CELLS:
        raise InputError(
            f"{agents:,} agents x {tasks:,} tasks are more than a spot check holds; give the agents you ask about, or "
            "some of the tasks"
        )


def by_name(reports: Reports) -> Reports:
    """The same reports, agents and tasks in the order of their names: no draw depends on how they came."""
    plain = replace(reports, probabilities=None, public=None)
    return in_order(Side(plain, Public.of(None, len(reports.tasks)), None))[0].reports


def digest_of(reports: Reports) -> str:
    """What is reported, as a SHA-256 sum; the order of names and labels that nobody gave do not matter.

    >>> digest_of(Reports.of([["cat", "dog"]]))[:8]
    'f205d0c4'
    """
    held = by_name(reports)
    used = [k for k in range(len(held.classes)) if (held.labels == k).any()]
    used.sort(key=lambda k: held.classes[k])
    names = wire.canonical([held.agents, held.tasks, [held.classes[k] for k in used]])
    return hashlib.sha256(names.encode() + _renumbered(held.labels, used).tobytes()).hexdigest()


def _renumbered(labels: Labels, used: list[int]) -> npt.NDArray[np.int32]:
    place = np.full(int(labels.max(initial=0)) + 2, -1, dtype="<i4")
    place[used] = np.arange(len(used))
    return np.asarray(place[labels])
