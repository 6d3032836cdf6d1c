"""A tally adds up what scores are made of, batch by batch, so that reports may lie in many places and exceed memory.

The tally of some tasks merged with the tally of others is the tally of all: labels are summed as integers, so their
scores are those of the whole to the last bit. `score_shards` tallies shards wherever an executor runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import islice

import numpy as np

from verax.arrays import lost_notes, refuse_strangers
from verax.errors import InputError, OptionError, VeraxError
from verax.executors import each_of
from verax.kernels import Engine, Floats, Ints
from verax.moments import Moments
from verax.pairs import Counts
from verax.plan import Mechanism, Plan
from verax.public import Public
from verax.reports import Reports, Shape, class_order, narrow, some
from verax.score import Scores, finished
from verax.statistic import Look, Side, Statistic, combined, sides_of
from verax.tables import Digests, Shard, Truth, blocks, digests, stamps, task_of
from verax.tallies import Together

NO_ERRORS = "the error of a mean over peers needs a second look at the reports: give them again for standard errors"
_KEPT_BYTES = 2**25  # of shards that are not read again
_TASK_BYTES = 100  # that a task's name takes, about
_MOST_NOTES = 50  # of all shards
_WORTH_COMPILING = 8.0  # seconds that NumPy would take for all shards

Squares = tuple[Floats | None, Floats | None]


class Abstained(VeraxError):  # noqa: N818
    """Somebody left out a task, so that peers must be looked at pair by pair; `score_shards` does so by itself."""


@dataclass
class _Held:
    """What a tally holds: agents and classes (reports of no task), who answered how much, and the sums."""

    frame: Reports
    first: str
    tasks: int
    known: int
    by_peers: int
    answered: Ints  # (3, K): of all tasks, of those that truth scores, of those that peers do
    sources: list[tuple[str, Digests]]
    sums: tuple[Statistic | None, Statistic | None]  # beside the truth, beside peers
    said: frozenset[str]  # labels, by agents

    def merge(self, other: _Held) -> None:
        """Add what was tallied of other tasks."""
        frame = self.frame if _alike(self.frame, other.frame) else self.frame + other.frame
        notes = dict.fromkeys((*self.frame.notes, *other.frame.notes))
        frame = replace(frame, notes=tuple(islice(notes, _MOST_NOTES)))
        mine, theirs = self._widened(frame), other._widened(frame)
        answered, by_peers = mine.answered + theirs.answered, self.by_peers + other.by_peers
        together = any(s is not None and s.together for s in (mine.sums[1], theirs.sums[1]))
        if together and (answered[2] < by_peers).any():
            raise Abstained("somebody left out a task: tally with pairs=True")
        self.frame, self.answered, self.by_peers = frame, answered, by_peers
        self.sums = _sum_of(mine.sums[0], theirs.sums[0]), _sum_of(mine.sums[1], theirs.sums[1])
        self.tasks, self.known = self.tasks + other.tasks, self.known + other.known
        self.sources, self.said = self.sources + other.sources, self.said | other.said

    def _widened(self, frame: Reports) -> _Held:
        """The same over the agents and classes of a larger frame."""
        if _alike(self.frame, frame):
            return self
        agents, classes = (
            np.array([{name: i for i, name in enumerate(new)}[name] for name in old], dtype=np.int64)
            for new, old in ((frame.agents, self.frame.agents), (frame.classes, self.frame.classes))
        )
        size = len(frame.agents), len(frame.classes)
        answered = np.zeros((3, size[0]), dtype=np.int64)
        answered[:, agents] = self.answered
        truth, peers = (None if s is None else s.moved(agents, classes, size) for s in self.sums)
        return replace(self, frame=frame, sums=(truth, peers), answered=answered)

    def tallied_twice(self) -> Iterator[tuple[str, str, int]]:
        """Tasks that were tallied twice: the two sources and the task's digest."""
        every = np.concatenate([marks for _, marks in self.sources])
        order = np.argsort(every, kind="stable")
        source = np.repeat(np.arange(len(self.sources)), [len(marks) for _, marks in self.sources])
        for place in np.nonzero(every[order][1:] == every[order][:-1])[0].tolist():
            first, second = source[order[place : place + 2]].tolist()
            yield self.sources[first][0], self.sources[second][0], int(every[order[place]])


def _sum_of(own: Statistic | None, more: Statistic | None) -> Statistic | None:
    if own is None:
        return deepcopy(more)
    if more is not None:
        own.add(more)
    return own


def _alike(one: Reports, other: Reports) -> bool:
    same = one.agents == other.agents and one.classes == other.classes and one.classes_given == other.classes_given
    return same and (one.probabilities is None) == (other.probabilities is None)


def _statistic_of(side: Side, plan: Plan, *, pairs: bool) -> Statistic:
    """The sums of a batch of tasks, of which others lie elsewhere; `pairs` where somebody may abstain."""
    if plan.rule.needs_rows:
        return Moments.of(side, plan, pairs=pairs)
    return Together.of(side, plan) if side.references is None and not pairs else Counts.of(side, plan)


def _why_no_sum(mechanism: Mechanism, *, rows: bool) -> str | None:
    """Why scores are no sum over tasks, so that all of them must be at hand; None if they are one."""
    rule = mechanism.meant
    if rule.population is not None or (rule.needs_rows and not rule.linear):
        return f"by rule {rule.name}"
    if rule.own and rows and not rule.linear:
        return "by a rule of your own that sees rows"
    if mechanism.over == "skilled" or mechanism.against == "consensus":
        return "over skilled references" if mechanism.over == "skilled" else "against the consensus"
    return "against one drawn peer" if mechanism.over == "one" else "with draws" if mechanism.draws else None


class Tally:
    """Scores from reports that come in batches, each with all reports on its tasks.

    `truth` maps tasks to labels. `pairs` must be asked for where somebody abstains and a mean over peers
    with a fixed sign would otherwise do without pairs.

    >>> one = Reports.of(labels=[[0, 1, 0], [0, 1, 1]], tasks=["a", "b", "c"])
    >>> two = Reports.of(labels=[[1, 0], [1, 0]], tasks=["d", "e"])
    >>> scores = Tally().update(one).update(two).scores(again=[one, two])
    >>> scores["0"].score, scores.tasks
    (0.4, 5)
    """

    def __init__(
        self,
        mechanism: Mechanism | None = None,
        truth: Truth | Mapping[str, str] | None = None,
        *,
        pairs: bool = False,
        engine: Engine | None = None,
    ) -> None:
        self.mechanism, self.engine = mechanism or Mechanism(), engine or Engine()
        self.truth = Truth.of(truth) if isinstance(truth, Mapping) else truth
        self._asks_truth = self.mechanism.against in ("truth", "hybrid")
        self._plans: dict[Shape, Plan] = {}
        self._held: _Held | None = None
        size = 2 if self.mechanism.matrix is None or not self.mechanism.matrix.ndim else len(self.mechanism.matrix)
        first = Shape(2, 0, size, True, known=int(self.truth is not None or self._asks_truth))
        self.pairs = pairs or not self._planned(first).pools_peers

    def _planned(self, shape: Shape) -> Plan:
        """The mechanism for reports of this shape, if it is a sum over tasks."""
        if shape not in self._plans:
            wrong = _why_no_sum(self.mechanism, rows=shape.rows and shape.tasks > 0)
            if wrong is not None:
                raise OptionError(f"reports cannot be scored shard by shard {wrong}; score the files whole")
            given = self.truth is not None
            self._plans[shape] = self.mechanism.plan(shape, truth_given=given, engine=self.engine)
        return self._plans[shape]

    def update(self, reports: Reports, source: str = "the reports") -> Tally:
        """This tally with one more batch of tasks."""
        return self.merge(self._tallied(reports, source))

    def merge(self, other: Tally | _Held) -> Tally:
        """This tally with another's tasks; the other is left as it was.

        >>> one, two = (Tally().update(Reports.of(labels=[[0, 1], [0, 1]], tasks=t)) for t in ("ab", "cd"))
        >>> one.merge(two).scores().tasks
        4
        """
        if isinstance(other, Tally) and other._asked != self._asked:
            raise OptionError("these tallies were made for different mechanisms; make both with the same options")
        held = other._held if isinstance(other, Tally) else other
        if held is not None and self._held is None:
            self._held = deepcopy(held)
        elif held is not None and self._held is not None:
            try:
                self._held.merge(held)
            except InputError as error:
                raise InputError(f"{held.sources[0][0]}: {error}") from None
        return self

    @property
    def _asked(self) -> tuple[object, ...]:
        """What decides which sums a tally keeps."""
        matrix = None if self.mechanism.matrix is None else self.mechanism.matrix.tolist()
        return self.mechanism, matrix, self.truth is None, self.pairs

    def bare(self) -> Tally:
        """A tally of the same kind, of nothing."""
        found = copy(self)
        found._held = None
        return found

    def _tallied(self, reports: Reports, source: str) -> _Held:
        """The sums of one batch."""
        if reports.public is not None:
            raise OptionError(f"{source}: a public signal cannot be taken out shard by shard; score the files whole")
        if self.mechanism.matrix is not None and not reports.classes_given:
            raise OptionError("a sign matrix over shards needs all classes beforehand; name them with classes=")
        marks, said = digests(reports.tasks), frozenset(reports.classes)
        reports, plan, sides = self._parted(reports, marks)
        if not self.pairs and sides[1] is not None and (sides[1].reports.labels < 0).any():
            raise Abstained("somebody left out a task: tally with pairs=True")
        truth, peers = (
            None if side is None or not side.reports.tasks or not reports.agents
            else _statistic_of(side, plan, pairs=self.pairs)
            for side in sides
        )  # fmt: skip
        seen = (reports, *(None if side is None else side.reports for side in sides))
        nobody = np.zeros(len(reports.agents), dtype=np.int64)
        return _Held(
            frame=replace(reports.take(np.zeros(len(marks), dtype=bool)), truth=None, public=None),
            first=reports.tasks[0] if reports.tasks else "",
            tasks=len(reports.tasks),
            known=0 if reports.truth is None else int((reports.truth >= 0).sum()),
            by_peers=0 if sides[1] is None else len(sides[1].reports.tasks),
            answered=np.stack([nobody if some is None else (some.labels >= 0).sum(1) for some in seen]),
            sources=[(source, marks)],
            sums=(truth, peers),
            said=said,
        )

    def _parted(
        self, reports: Reports, marks: Digests | None = None
    ) -> tuple[Reports, Plan, tuple[Side | None, Side | None]]:
        """A batch with its truth, how it is counted, and its tasks where they belong, whatever is known elsewhere."""
        reports = _with_truth(reports, self.truth, self._asks_truth, marks)
        known = reports.truth is not None
        plan = self._planned(Shape(2, 2, len(reports.classes), reports.probabilities is not None, known=int(known)))
        by_truth, by_peers = known and self.mechanism.against != "peers", self.mechanism.against != "truth"
        sides = sides_of(reports, Public(len(reports.tasks)), by_truth, by_peers and not plan.rule.truth_only)
        return reports, plan, sides

    def _ready(self) -> tuple[_Held, Plan]:
        """The mechanism, planned for all that was tallied."""
        held = self._held
        if held is None:
            raise InputError("nothing was tallied; give at least one batch of reports")
        if self.truth is not None and not held.known:
            raise InputError(
                f"{self.truth.source}: none of its {len(self.truth.tasks)} tasks is in the reports "
                f"(such as {self.truth.first[0]!r} against {held.first!r}); check the task names"
            )
        if self.truth is not None and not held.frame.classes_given and held.said.isdisjoint(self.truth.classes):
            refuse_strangers(self.truth.source, self.truth.classes, sorted(held.said))
        shape = replace(held.frame.shape, tasks=held.tasks, known=held.known)
        shape.check()
        return held, self._planned(shape)

    def check_tasks(self, name: Callable[[str, int], str | None] | None = None) -> None:
        """Refuse a task that was tallied twice; `name` finds a source's task by its digest."""
        if self._held is None:
            return
        for one, other, digest in self._held.tallied_twice():
            found = None if name is None else name(one, digest)
            if name is not None and found != name(other, digest):
                continue  # two tasks that share a digest
            what = "a task" if found is None else f"task {found!r}"
            where = f"twice in {one}" if one == other else f"in {one} and again in {other}"
            raise InputError(f"{what} is {where}; a task belongs to one shard, with all agents' reports on it")

    def second(self) -> Second | None:
        """What a second look at the reports must know, or None if the scores are complete without."""
        held, plan = self._ready()
        truth, peers = (None if s is None else s.look(plan) for s in _used(held, plan))
        return None if truth is None and peers is None else Second(self, held.frame, truth, peers)

    def scores(self, again: Iterable[Reports] | None = None) -> Scores:
        """Everybody's scores; with the same reports once more, also their standard errors."""
        self.check_tasks()
        second, squares = self.second(), None
        if second is not None and again is not None:
            squares = added(second.squares(reports) for reports in again)
        return self.scored(squares)

    def scored(self, squares: Squares | None = None) -> Scores:
        """Everybody's scores, with what a second look added up."""
        held, plan = self._ready()
        agents = held.frame.agents
        truth, peers = (
            None if s is None else s.parts(plan, answered, square)
            for s, answered, square in zip(_used(held, plan), held.answered[1:], squares or (None, None), strict=True)
        )
        found, lost = combined(plan, agents, truth, peers)
        notes = [*held.frame.with_one_spelling().notes, *self._lost_beside(held), *lost]
        scores = finished(agents, held.frame.classes, held.tasks, plan, found, held.answered[0].tolist(), notes)
        if squares is None and self.second() is not None:
            return replace(scores, warnings=(*scores.warnings, NO_ERRORS))
        return scores

    def _lost_beside(self, held: _Held) -> Iterator[str]:
        """What truth and reports do not share."""
        if self.truth is None:
            return iter(())
        size, there = len(self.truth.tasks), {*held.frame.classes}
        unsaid = [c for c in self.truth.classes if c in there - held.said and not held.frame.classes_given]
        return lost_notes(self.truth.source, size, size - held.known, held.tasks - held.known, unsaid)


def _used(held: _Held, plan: Plan) -> tuple[Statistic | None, Statistic | None]:
    """The sums that the mechanism turned out to need: beside the truth, and beside peers."""
    return held.sums[0] if plan.by_truth else None, held.sums[1] if plan.by_peers else None


def _with_truth(reports: Reports, truth: Truth | None, asked: bool, marks: Digests | None = None) -> Reports:
    """The reports with the truth of those of their tasks that it covers."""
    if truth is None:
        return reports if asked else replace(reports, truth=None)  # labels that came along unasked are not looked at
    if reports.classes_given:
        for label in truth.classes:
            if label not in reports.classes:
                raise InputError(
                    f"{truth.source}: unknown label {label!r} in the truth; the classes are {some(reports.classes)}"
                )
    codes = truth.codes_of(digests(reports.tasks) if marks is None else marks)
    seen = {truth.classes[k] for k in np.nonzero(np.bincount(codes[codes >= 0]))[0].tolist()}
    reports = reports.over_classes(class_order({*reports.classes, *seen}))
    place = np.array([*({c: i for i, c in enumerate(reports.classes)}.get(c, -1) for c in truth.classes), -1])
    return replace(reports, truth=narrow(place[codes], len(reports.classes)))


@dataclass(frozen=True)
class Second:
    """A second look at reports whose sums are known: the squares that standard errors are made of."""

    tally: Tally
    frame: Reports
    truth_look: Look | None
    peers_look: Look | None

    def squares(self, reports: Reports) -> Squares:
        """Sums over the tasks of one batch."""
        _, _, sides = self.tally._parted(_aligned(reports, self.frame))
        truth, peers = (
            None if look is None or side is None or not side.reports.tasks else look.squares(side)
            for look, side in zip((self.truth_look, self.peers_look), sides, strict=True)
        )
        return truth, peers

    def __getstate__(self) -> dict[str, object]:
        """What is sent to whoever looks: not the sums themselves."""
        return {**vars(self), "tally": self.tally.bare()}


def _aligned(reports: Reports, frame: Reports) -> Reports:
    """The same reports with the agents and classes of a frame, which has all of theirs."""
    if _alike(reports, frame):
        return reports
    moved = frame + replace(reports, truth=None, public=None)
    if reports.truth is None:
        return moved
    place = np.array([*(moved.classes.index(c) for c in reports.classes), -1])
    return replace(moved, truth=narrow(place[reports.truth], len(moved.classes)))


def added(squares: Iterable[Squares]) -> Squares:
    """The sum of what second looks found, in their order."""
    total: list[Floats | None] = [None, None]
    for found in squares:
        for i, more in enumerate(found):
            own = total[i]
            total[i] = more if own is None else own if more is None else own + more
    return total[0], total[1]


# Shards


def score_shards(
    shards: Sequence[Shard],
    mechanism: Mechanism | None = None,
    truth: Truth | Mapping[str, str] | None = None,
    *,
    engine: Engine | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Scores:
    """Score reports that lie in shards, in constant memory; what `verax.score` gives for all of them at once.

    Shards are read in this process, or wherever the executor runs them; their sums are put together in order,
    so that nothing depends on which is ready first. `progress` is told how many looks are done, out of how many.

    >>> import tempfile; from pathlib import Path; from verax.tables import find
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "1.csv").write_text("task,ann,bob\\nt1,cat,cat\\nt2,dog,dog\\n")
    >>> _ = (folder / "2.csv").write_text("task,ann,bob\\nt3,cat,cat\\nt4,dog,cat\\n")
    >>> print(score_shards(find(folder / "*.csv")))
    zero-one against peers (mean), identity sign, 4 tasks
    agent    score  stderr  tasks  references
    ann     0.3333  0.1768      4           1
    bob     0.3333  0.1768      4           1
    """
    if not shards:
        raise InputError("no shards to score; name at least one file")
    told = progress or (lambda done, total: None)
    kept = _AtHand() if executor is None else None
    before = stamps(shards)
    tally = Tally(mechanism, truth, engine=engine)
    try:
        _tally_shards(tally, shards, executor, kept, told)
    except Abstained:
        tally = Tally(mechanism, tally.truth, pairs=True, engine=engine)
        _tally_shards(tally, shards, executor, kept, told)
    by_name = {shard.name: shard for shard in shards}
    tally.check_tasks(lambda source, digest: task_of(by_name[source], digest))
    second = tally.second()
    if second is None:
        told(2 * len(shards), 2 * len(shards))
        return tally.scored()
    total: Squares = None, None
    work = partial(_squares_of, second, kept)
    for done, found in enumerate(each_of(work, shards, executor, also=Abstained), start=1):
        total = added([total, found])
        told(len(shards) + done, 2 * len(shards))
    for path, stamp in stamps(shards).items():
        if stamp != before.get(path):
            raise InputError(f"{path}: it changed between two looks at it; let nobody write to it and start again")
    return tally.scored(total)


class _AtHand:
    """Shards as they are read here; the first, as many as take little memory, stay for the second look."""

    def __init__(self) -> None:
        self.room = _KEPT_BYTES
        self.kept: dict[str, list[Reports]] = {}

    def blocks(self, shard: Shard) -> Iterator[Reports]:
        """A shard's reports, from memory or read."""
        if shard.name in self.kept:
            yield from self.kept[shard.name]
            return
        found, room = list[Reports](), self.room
        for block in blocks(shard):
            room -= block.labels.nbytes + _TASK_BYTES * len(block.tasks)
            room -= 0 if block.probabilities is None else block.probabilities.nbytes
            found = [*found, block] if room >= 0 else []
            yield block
        if room >= 0:
            self.kept[shard.name], self.room = found, room


def _tally_shards(
    tally: Tally, shards: Sequence[Shard], executor: Executor | None, kept: _AtHand | None,
    told: Callable[[int, int], object],
) -> None:  # fmt: skip
    tally.engine = _engine_for(tally, shards, executor)
    told(0, 2 * len(shards))
    work = partial(_held_of, tally.bare(), kept)
    for done, found in enumerate(each_of(work, shards, executor, also=Abstained), start=1):
        tally.merge(found)
        told(done, 2 * len(shards))


def _engine_for(tally: Tally, shards: Sequence[Shard], executor: Executor | None) -> Engine:
    """One thread where an executor has several; numba where NumPy would take long, for a block never seems long.

    How many read the shards must not matter: numba and NumPy agree on errors to rounding only.
    """
    engine = tally.engine
    cost = (agents * tasks * (agents * 2.5e-9 if tally.pairs else 6e-8) for agents, tasks in (s.size for s in shards))
    if engine.backend == "auto" and sum(cost) > _WORTH_COMPILING and find_spec("numba") is not None:
        engine = replace(engine, backend="numba")
    return engine if executor is None else replace(engine, threads=1)


def _held_of(tally: Tally, kept: _AtHand | None, shard: Shard) -> _Held:
    """A shard's sums."""
    held: _Held | None = None
    for block in blocks(shard) if kept is None else kept.blocks(shard):
        more = tally._tallied(block, shard.name)
        if held is None:
            held = more
        else:
            held.merge(more)
    assert held is not None
    held.sources = [(shard.name, np.concatenate([marks for _, marks in held.sources]))]
    return held


def _squares_of(second: Second, kept: _AtHand | None, shard: Shard) -> Squares:
    """A shard's squares."""
    return added(second.squares(block) for block in (blocks(shard) if kept is None else kept.blocks(shard)))
