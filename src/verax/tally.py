"""A tally adds up what scores are made of, task by task, so that reports may lie in many places and exceed memory.

The tally of some tasks merged with the tally of others is the tally of all: labels are summed as integers, so their
scores are those of the whole to the last bit. `score_shards` tallies shards wherever an executor runs them.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from verax import linear, sums
from verax.errors import InputError, OptionError, VeraxError
from verax.joint import Public
from verax.kernels import Engine, Floats, Ints
from verax.mechanisms import (
    Options,
    Prepared,
    Scores,
    _check_rule,
    _dropped,
    _hybrid,
    _sign,
    abstentions,
    finished,
    prepare,
)
from verax.pairs import Part, Plan
from verax.reports import Reports, class_order, narrow, some
from verax.rules import resolve
from verax.tables import Digests, Shard, Truth, blocks, digests, task_of

RULES = ("zero-one", "ca", "accuracy", "ce", "brier")
NO_ERRORS = "the error of a mean over peers needs a second look at the reports: give them again for standard errors"
_SHIPPED = 2**30  # bytes of what is known already that a second look may send about, all shards together
_WORTH_COMPILING = 8.0  # seconds that NumPy would take for all shards

Squares = tuple[Floats | None, Floats | None]


def refuse_unless_additive(options: Options) -> None:
    """Refuse a mechanism that is no sum over tasks.

    >>> refuse_unless_additive(Options(rule="ca", over="median"))
    """
    wrong = None
    rule = resolve(options.rule, options.floor)
    if rule.own:
        wrong = "a rule of your own"
    elif rule.name not in RULES:
        wrong = f"rule {rule.name}"
    elif options.over == "one":
        wrong = "against one drawn peer"
    elif options.draws is not None:
        wrong = "with draws"
    if wrong:
        raise OptionError(f"reports cannot be scored shard by shard {_by(wrong)}; score the files whole")


def _by(wrong: str) -> str:
    return wrong if wrong.startswith(("against", "with")) else f"by {wrong}"


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
    truth: sums.Sums | None
    peers: sums.Sums | None

    def merge(self, other: _Held) -> None:
        """Add what was tallied of other tasks."""
        frame = self.frame if _same(self.frame, other.frame) else self.frame + other.frame
        mine, theirs = self._moved(frame), other._moved(frame)
        answered, by_peers = mine.answered + theirs.answered, self.by_peers + other.by_peers
        together = any(s is not None and s.together for s in (mine.peers, theirs.peers))
        if together and (answered[2] < by_peers).any():
            raise Abstained("somebody left out a task: tally with pairs=True")
        self.frame, self.answered, self.by_peers = frame, answered, by_peers
        self.truth, self.peers = _sum(mine.truth, theirs.truth), _sum(mine.peers, theirs.peers)
        self.tasks, self.known = self.tasks + other.tasks, self.known + other.known
        self.sources = self.sources + other.sources

    def _moved(self, frame: Reports) -> _Held:
        """The same over the agents and classes of a larger frame."""
        if _same(self.frame, frame):
            return self
        agents, classes = (
            np.array([{name: i for i, name in enumerate(new)}[name] for name in old], dtype=np.int64)
            for new, old in ((frame.agents, self.frame.agents), (frame.classes, self.frame.classes))
        )
        size = len(frame.agents), len(frame.classes)
        answered = np.zeros((3, size[0]), dtype=np.int64)
        answered[:, agents] = self.answered
        truth, peers = (None if s is None else s.moved(agents, classes, size) for s in (self.truth, self.peers))
        return replace(self, frame=frame, truth=truth, peers=peers, answered=answered)

    def twice(self) -> Iterator[tuple[str, str, int]]:
        """Tasks that were tallied twice: the two sources and the task's digest."""
        every = np.concatenate([marks for _, marks in self.sources])
        order = np.argsort(every, kind="stable")
        source = np.repeat(np.arange(len(self.sources)), [len(marks) for _, marks in self.sources])
        for place in np.nonzero(every[order][1:] == every[order][:-1])[0].tolist():
            first, second = source[order[place : place + 2]].tolist()
            yield self.sources[first][0], self.sources[second][0], int(every[order[place]])


def _sum(own: sums.Sums | None, more: sums.Sums | None) -> sums.Sums | None:
    if own is None:
        return deepcopy(more)
    if more is not None:
        own.add(more)
    return own


def _same(one: Reports, other: Reports) -> bool:
    alike = one.agents == other.agents and one.classes == other.classes and one.classes_given == other.classes_given
    return alike and (one.probabilities is None) == (other.probabilities is None)


def _frame(reports: Reports) -> Reports:
    """Who reports and with which classes: the same reports, of no task."""
    agents, classes = len(reports.agents), len(reports.classes)
    rows = None if reports.probabilities is None else np.zeros((agents, 0, classes))
    return replace(
        reports, labels=np.zeros((agents, 0), dtype=np.int8), tasks=(), probabilities=rows, truth=None, public=None
    )


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
        self, options: Options | None = None, truth: Truth | Mapping[str, str] | None = None, *, pairs: bool = False
    ) -> None:
        self.options = Options() if options is None else options
        refuse_unless_additive(self.options)
        self.truth = Truth.of(truth) if isinstance(truth, Mapping) else truth
        plan = _rehearsed(self.options, self.truth is not None)
        self.pairs = pairs or not linear.applies(plan)
        self._held: _Held | None = None

    def update(self, reports: Reports, source: str = "the reports") -> Tally:
        """This tally with one more batch of tasks."""
        return self.merge(self._tallied(reports, source))

    def merge(self, other: Tally | _Held) -> Tally:
        """This tally with another's tasks; the other is left as it was.

        >>> one, two = (Tally().update(Reports.of(labels=[[0, 1], [0, 1]], tasks=t)) for t in ("ab", "cd"))
        >>> one.merge(two).scores().tasks
        4
        """
        if isinstance(other, Tally) and (other.pairs, *_asked(other)) != (self.pairs, *_asked(self)):
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

    def _tallied(self, reports: Reports, source: str) -> _Held:
        """The sums of one batch."""
        if reports.public is not None:
            raise OptionError(f"{source}: a public signal cannot be taken out shard by shard; score the files whole")
        marks = digests(reports.tasks)
        reports = _with_truth(reports, self.truth, self.options, marks)
        rule = resolve(self.options.rule, self.options.floor)
        _check_rule(rule, reports, Public(len(reports.tasks)), "hybrid")
        if not (self.options.sign is None or isinstance(self.options.sign, str) or reports.classes_given):
            raise OptionError("a sign matrix over shards needs all classes beforehand; name them with --classes")
        early = sums.Early(rule, *_sign(rule, self.options.sign, len(reports.classes)), self.pairs, self.options.engine)
        by_truth, by_peers = _parted(reports, self.options.against, rule.truth_only)
        held = _Held(
            frame=_frame(reports),
            first=reports.tasks[0] if reports.tasks else "",
            tasks=len(reports.tasks),
            known=0 if reports.truth is None else int((reports.truth >= 0).sum()),
            by_peers=len(by_peers.tasks),
            answered=np.stack([(each.labels >= 0).sum(1) for each in (reports, by_truth, by_peers)]),
            sources=[(source, marks)],
            truth=None,
            peers=None,
        )
        if by_truth.tasks and reports.agents:
            assert by_truth.truth is not None
            held.truth = sums.of(by_truth, by_truth.truth[None], early)
        if by_peers.tasks and reports.agents:
            if not self.pairs and (by_peers.labels < 0).any():
                raise Abstained("somebody left out a task: tally with pairs=True")
            held.peers = sums.of(by_peers, None, early)
        return held

    def _ready(self) -> tuple[_Held, Prepared]:
        """The mechanism, checked against all that was tallied."""
        held = self._held
        if held is None:
            raise InputError("nothing was tallied; give at least one batch of reports")
        if self.truth is not None and not held.known:
            raise InputError(
                f"{self.truth.source}: none of its {len(self.truth.tasks)} tasks is in the reports "
                f"(such as {self.truth.first[0]!r} against {held.first!r}); check the task names"
            )
        return held, _rehearsal(held, self.options, self.truth is not None)

    def check_tasks(self, name: Callable[[str, int], str | None] | None = None) -> None:
        """Refuse a task that was tallied twice; `name` finds a source's task by its digest."""
        if self._held is None:
            return
        for one, other, digest in self._held.twice():
            found = None if name is None else name(one, digest)
            if name is not None and found != name(other, digest):
                continue  # two tasks that share a digest
            what = "a task" if found is None else f"task {found!r}"
            where = f"twice in {one}" if one == other else f"in {one} and again in {other}"
            raise InputError(f"{what} is {where}; a task belongs to one shard, with all agents' reports on it")

    def second(self) -> Second | None:
        """What a second look at the reports must know, or None if the scores are complete without."""
        held, ready = self._ready()
        truth, peers = _used(held, ready)
        looks = (None if s is None else s.second(ready.plan) for s in (truth, peers))
        found = Second(held.frame, self.options, self.truth, *looks)
        return None if found.truth_look is None and found.peers_look is None else found

    def scores(self, again: Iterable[Reports] | None = None) -> Scores:
        """Everybody's scores; with the same reports once more, also their standard errors."""
        self.check_tasks()
        second, squares = self.second(), None
        if second is not None and again is not None:
            squares = added(second.squares(reports) for reports in again)
        return self.scored(squares)

    def scored(self, squares: Squares | None = None) -> Scores:
        """Everybody's scores, with what a second look added up."""
        held, ready = self._ready()
        found, warnings = _found(held, ready, (None, None) if squares is None else squares)
        scores = finished(held.frame.agents, held.frame.classes, held.tasks, ready, found, warnings)
        if squares is None and self.second() is not None:
            return replace(scores, warnings=(*scores.warnings, NO_ERRORS))
        return scores


def _asked(tally: Tally) -> tuple[object, ...]:
    """What decides which sums a tally keeps."""
    o = tally.options
    sign = o.sign if o.sign is None or isinstance(o.sign, str) else np.asarray(o.sign).tolist()
    return o.rule, o.against, o.over, sign, o.floor, tally.truth is None


def _rehearsed(options: Options, truth_given: bool) -> Plan:
    """The mechanism checked as far as can be before any report is read."""
    matrix = None if options.sign is None or isinstance(options.sign, str) else np.asarray(options.sign)
    classes = 2 if matrix is None or not matrix.ndim else len(matrix)
    rows = np.full((2, 0, classes), 1.0)
    frame = Reports(np.zeros((2, 0), dtype=np.int8), ("0", "1"), (), tuple(map(str, range(classes))), rows)
    known = int(truth_given or options.against in ("truth", "hybrid"))
    held = _Held(frame, "", 2, known, 2, np.zeros((3, 2), dtype=np.int64), [], None, None)
    return _rehearsal(held, options, truth_given).plan


def _rehearsal(held: _Held, options: Options, truth_given: bool) -> Prepared:
    """The mechanism for these agents and classes, on two tasks that stand for all."""
    tasks, known = min(held.tasks, 2), 2 if held.known == held.tasks else min(held.known, 1)
    truth = np.array([0] * known + [-1] * 2, dtype=np.int8)[:tasks]
    rows = held.frame.probabilities
    stand_in = replace(
        held.frame,
        labels=np.zeros((len(held.frame.agents), tasks), dtype=np.int8),
        tasks=tuple(map(str, range(tasks))),
        probabilities=None if rows is None else np.zeros((len(rows), tasks, rows.shape[2])),
        truth=truth if known else None,
    )
    return prepare(stand_in, truth if truth_given else None, None, options)


def _with_truth(reports: Reports, truth: Truth | None, options: Options, marks: Digests | None = None) -> Reports:
    """The reports with the truth of those of their tasks that it covers."""
    if truth is None:
        asked = options.against in ("truth", "hybrid")
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


def _parted(reports: Reports, against: str | None, truth_only: bool) -> tuple[Reports, Reports]:
    """The reports that truth scores, and those that peers do."""
    every = np.ones(len(reports.tasks), dtype=bool)
    known = ~every if reports.truth is None or against == "peers" else np.asarray(reports.truth >= 0)
    peers = ~every if against == "truth" or truth_only else ~known
    return tuple(reports if chosen.all() else reports.take(chosen) for chosen in (known, peers))  # type: ignore[return-value]


def _used(held: _Held, ready: Prepared) -> tuple[sums.Sums | None, sums.Sums | None]:
    """The sums that the mechanism turned out to need: beside the truth, and beside peers."""
    return (
        None if ready.against == "peers" else held.truth,
        None if ready.against == "truth" or ready.plan.rule.truth_only else held.peers,
    )


def _found(held: _Held, ready: Prepared, squares: Squares) -> tuple[list[Part | None], list[str]]:
    """What everybody scores beside the truth and beside peers, put together."""
    agents = held.frame.agents
    warnings = abstentions(agents, held.answered[0].tolist(), held.tasks)
    nobody: list[Part | None] = [None] * len(agents)
    truth, peers = (
        nobody if s is None else s.parts(ready.plan, answered, square)
        for s, answered, square in zip(_used(held, ready), held.answered[1:], squares, strict=True)
    )
    if ready.against == "hybrid" and not ready.plan.rule.truth_only:
        warnings += _dropped(agents, truth, "labelled") + _dropped(agents, peers, "unlabelled")
        return [_hybrid(t, p) for t, p in zip(truth, peers, strict=True)], warnings
    return peers if ready.against == "peers" else truth, warnings


@dataclass(frozen=True)
class Second:
    """A second look at reports whose sums are known: the squares that standard errors are made of."""

    frame: Reports
    options: Options
    truth: Truth | None
    truth_look: sums.Look | None
    peers_look: sums.Look | None

    def squares(self, reports: Reports) -> Squares:
        """Sums over the tasks of one batch."""
        reports = _with_truth(_aligned(reports, self.frame), self.truth, self.options)
        rule = resolve(self.options.rule, self.options.floor)
        by_truth, by_peers = _parted(reports, self.options.against, rule.truth_only)
        truth = None if by_truth.truth is None else by_truth.truth[None]
        return (
            self.truth_look.squares(by_truth, truth) if self.truth_look is not None and by_truth.tasks else None,
            self.peers_look.squares(by_peers, None) if self.peers_look is not None and by_peers.tasks else None,
        )


def _aligned(reports: Reports, frame: Reports) -> Reports:
    """The same reports with the agents and classes of a frame, which has all of theirs."""
    if _same(reports, frame):
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
    options: Options | None = None,
    truth: Truth | Mapping[str, str] | None = None,
    *,
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
    before = _stamps(shards)
    first = Tally(options, truth)
    try:
        tally = _tallied(first, shards, executor, told)
    except Abstained:
        tally = _tallied(Tally(first.options, first.truth, pairs=True), shards, executor, told)
    by_name = {shard.name: shard for shard in shards}
    tally.check_tasks(lambda source, digest: task_of(by_name[source], digest))
    second = tally.second()
    if second is None:
        told(2 * len(shards), 2 * len(shards))
        return tally.scored()
    total: Squares = None, None
    for done, found in enumerate(_each(partial(_looked, second), shards, executor), start=1):
        total = added([total, found])
        told(len(shards) + done, 2 * len(shards))
    for path, stamp in _stamps(shards).items():
        if stamp != before.get(path):
            raise InputError(f"{path}: it changed between two looks at it; let nobody write to it and start again")
    return tally.scored(total)


def _stamps(shards: Sequence[Shard]) -> dict[str, object]:
    """By which a file that changes is noticed; a file that only others can see is theirs to mind."""
    found: dict[str, object] = {}
    for path in {shard.path for shard in shards}:
        with suppress(OSError):
            found[path] = os.stat(path).st_size, os.stat(path).st_mtime_ns
    return found


def _tallied(
    tally: Tally, shards: Sequence[Shard], executor: Executor | None, told: Callable[[int, int], object]
) -> Tally:
    tally.options = replace(tally.options, engine=_engine(tally, shards, executor))
    work = partial(_tally_of, tally.options, tally.truth, tally.pairs)
    told(0, 2 * len(shards))
    for done, found in enumerate(_each(work, shards, executor), start=1):
        tally.merge(found)
        told(done, 2 * len(shards))
    return tally


def _engine(tally: Tally, shards: Sequence[Shard], executor: Executor | None) -> Engine:
    """One thread where an executor has several; numba where NumPy would take long, for a block never seems long.

    How many read the shards must not matter: numba and NumPy agree on errors to rounding only.
    """
    engine = tally.options.engine
    cost = (agents * tasks * (agents * 2.5e-9 if tally.pairs else 6e-8) for agents, tasks in (s.size for s in shards))
    if engine.backend == "auto" and sum(cost) > _WORTH_COMPILING and find_spec("numba") is not None:
        engine = replace(engine, backend="numba")
    return engine if executor is None else replace(engine, threads=1)


def _workers(executor: Executor) -> int:
    """How many shards it reads at a time, where it says so."""
    return int(getattr(executor, "_max_workers", 4))


def _tally_of(options: Options, truth: Truth | None, pairs: bool, shard: Shard) -> _Held:
    """A shard's sums."""
    tally = Tally(options, truth, pairs=pairs)
    for block in blocks(shard):
        tally.update(block, shard.name)
    assert tally._held is not None
    held = tally._held
    held.sources = [(shard.name, np.concatenate([marks for _, marks in held.sources]))]
    return held


def _looked(second: Second, shard: Shard) -> Squares:
    """A shard's squares."""
    return added(second.squares(block) for block in blocks(shard))


@dataclass
class _Asked:
    """Shards that were asked for, and how often."""

    shards: Sequence[Shard]
    future: Future[Any]
    times: int = 1


@dataclass(frozen=True)
class _Refusal:
    """A refusal on its way home; not every exception survives being sent."""

    kind: type[VeraxError]
    sentence: str


def _each(work: Callable[[Shard], Any], shards: Sequence[Shard], executor: Executor | None) -> Iterator[Any]:
    """What the work finds in every shard, in their order."""
    if executor is None:
        yield from map(work, shards)
        return
    packed = pickle.dumps(work)
    size = -(-len(shards) // max(1, min(len(shards), _SHIPPED // len(packed))))
    waiting: deque[_Asked] = deque()
    todo = iter([shards[i : i + size] for i in range(0, len(shards), size)])
    ahead = 2 * _workers(executor)
    try:
        while True:
            while len(waiting) < ahead and (more := next(todo, None)) is not None:
                waiting.append(_Asked(more, _submit(executor, packed, more)))
            if not waiting:
                return
            try:
                found = waiting[0].future.result()
            except BaseException as error:
                if _unlike(error):
                    raise VeraxError(
                        f"{waiting[0].shards[0].name}: whoever was to read it cannot ({_why(error)}); "
                        "install the same verax there, with its extras"
                    ) from error
                if not _lost(error):
                    raise
                _ask_again(waiting, executor, packed, error)
                continue
            waiting.popleft()
            for each in found:
                if isinstance(each, _Refusal):
                    raise each.kind(each.sentence)
                yield each
    finally:
        for asked in waiting:
            asked.future.cancel()


def _submit(executor: Executor, packed: bytes, shards: Sequence[Shard]) -> Future[Any]:
    try:
        return executor.submit(_do, packed, shards)
    except (BrokenExecutor, RuntimeError) as error:
        raise VeraxError(
            f"{shards[0].name}: no worker is left to read it ({_why(error)}); nothing was scored, start again"
        ) from None


def _do(packed: bytes, shards: Sequence[Shard]) -> list[Any]:
    """The work on some shards, done wherever this runs; a refusal ends it."""
    found: list[Any] = []
    try:
        for shard in shards:
            found.append(_unpacked(packed)(shard))
    except VeraxError as error:
        kind = next(k for k in (InputError, OptionError, Abstained, VeraxError) if isinstance(error, k))
        found.append(_Refusal(kind, str(error)))
    return found


@lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> Callable[[Shard], Any]:
    return pickle.loads(packed)  # type: ignore[no-any-return]


def _lost(error: BaseException) -> bool:
    """Whether it says that a worker is gone, not that its work went wrong."""
    return isinstance(error, BrokenExecutor | CancelledError) or type(error).__module__.startswith("distributed")


def _unlike(error: BaseException) -> bool:
    """Whether it says that things are installed here which are not there."""
    return isinstance(error, ImportError | pickle.PickleError) or "deserializ" in str(error)


def _ask_again(waiting: Iterable[_Asked], executor: Executor, packed: bytes, error: BaseException) -> None:
    """Ask once more, in order, for all that went down with a worker."""
    for asked in waiting:
        future = asked.future
        if not future.done() or (not future.cancelled() and future.exception() is None):
            continue
        if asked.times > 1:
            raise VeraxError(
                f"{asked.shards[0].name}: whoever read it was lost twice ({_why(error)}); nothing was scored: "
                "look for too little memory, or a shard that ends its reader, and start again"
            )
        asked.future, asked.times = _submit(executor, packed, asked.shards), asked.times + 1


def _why(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
