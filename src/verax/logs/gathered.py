"""Gathered: the runs of many logs become sets of tasks, each with its reports. Two logs must mean the same tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

from verax.errors import InputError, OptionError
from verax.logs import crowd_kit, every_eval_ever, harness, helm, inspect_ai, label_studio
from verax.logs.answer import RULES
from verax.logs.run import Run
from verax.reports import Reports, class_order, some

READERS: tuple[ModuleType, ...] = (every_eval_ever, harness, inspect_ai, helm, label_studio, crowd_kit)
_START = 2**16  # bytes by which a log is known


@dataclass(frozen=True, eq=False)
class TaskSet:
    """One set of tasks: its reports, truth among them where the logs hold it, and what else the logs say.

    `unreadable`, `silent`: an agent's answers that are no label, and tasks without any; `logged`: the share right by
    the log's own verdicts, NaN where it has none. `how`: what was taken for what.
    """

    name: str
    reports: Reports
    unreadable: npt.NDArray[np.int64]
    silent: npt.NDArray[np.int64]
    logged: npt.NDArray[np.float64]
    how: tuple[str, ...] = ()
    unreadable_at: npt.NDArray[np.bool_] | None = None  # (agents, tasks)


@dataclass(frozen=True)
class Chosen:
    """What is read where a log holds several: a `filter`, a `scorer`; whether `rows` of probabilities are kept."""

    filter: str | None = None
    scorer: str | None = None
    rows: bool = False


def is_log(path: Path) -> bool:
    """Whether a file, or a file below a folder, is a log of a known tool."""
    return any(True for _ in found_below(path))


def found_below(path: Path) -> Iterator[tuple[Path, ModuleType]]:
    """The logs below a folder, or the file itself, in order of name."""
    if not path.is_dir():
        if (reader := reader_of(path)) is not None:
            yield path, reader
        return
    for folder, below, files in os.walk(path):
        below.sort()
        for name in sorted(files):
            each = Path(folder) / name
            if not name.startswith(".") and (reader := reader_of(each)) is not None:
                yield each, reader


def reader_of(path: Path) -> ModuleType | None:
    """What reads a file, by its name and first bytes."""
    if not path.name.lower().endswith((".jsonl", ".jsonl.gz", ".json", ".eval", ".csv")) or not path.is_file():
        return None  # a pipe or a device would be waited for
    try:
        with path.open("rb") as file:
            start = file.read(_START)
    except OSError:
        return None
    return next((reader for reader in READERS if reader.knows(path, start)), None)


def runs_of(path: Path, chosen: Chosen) -> list[Run]:
    """The runs of one log."""
    reader = reader_of(path)
    if reader is None:
        raise InputError(f"{path}: no log of a tool known here; name a log or a folder of logs")
    given = {"filter": chosen.filter, "rows": chosen.rows} if reader is harness else {}
    if reader is inspect_ai:
        given = {"scorer": chosen.scorer}
    return [*reader.read(path, **given)]


@dataclass
class _Packed:
    """A run as numbers: small to send, and to keep."""

    run: Run  # without its answers
    said: npt.NDArray[np.int32]  # places among `labels`; -1 no answer, -2 no label
    labels: list[str]


def packed_runs_of(path: Path, chosen: Chosen) -> list[_Packed]:
    """The runs of one log, packed."""
    from dataclasses import replace

    found = []
    for run in runs_of(path, chosen):
        index: dict[str, int] = {}
        codes = [-1 if s is None else -2 if s == "" else index.setdefault(s, len(index)) for s in run.said]
        found.append(_Packed(replace(run, said=()), np.array(codes, dtype=np.int32), [*index]))
    return found


@dataclass
class _Gathering:
    """One set of tasks while it grows."""

    name: str
    source: str
    index: dict[str, int] = field(default_factory=dict)
    truth: dict[str, str] = field(default_factory=dict)
    truth_from: dict[str, str] = field(default_factory=dict)
    marks: dict[str, tuple[str, str]] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    agents: dict[str, tuple[Run, npt.NDArray[np.int64], npt.NDArray[np.int32]]] = field(default_factory=dict)
    how: dict[str, None] = field(default_factory=dict)
    known: tuple[Sequence[str], Sequence[str], Sequence[str | None]] | None = None
    places: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, packed: _Packed) -> None:
        """Another agent's run, if it means the same tasks."""
        run = packed.run
        before = self.agents.get(run.agent)
        if before is not None:
            self._choose(before[0], run)
            if before[0].date > run.date:
                return
        same = run.tasks, run.hashes, run.truth
        if self.known is None or self.known[0] != same[0] or self.known[1] != same[1] or self.known[2] != same[2]:
            self._check(run)
            self.places = np.array([self.index.setdefault(t, len(self.index)) for t in run.tasks], dtype=np.int64)
            self.known = same
        table = np.array([self.classes.setdefault(label, len(self.classes)) for label in packed.labels] + [-2, -1])
        self.agents[run.agent] = run, self.places, table[packed.said].astype(np.int32)
        self.how |= dict.fromkeys(f"{run.tool}: {how}" for how in run.how)

    def _choose(self, before: Run, run: Run) -> None:
        """Say which of two runs of one agent is read, or refuse where nothing says which."""
        where = [str(Path(each.source).parent) for each in (before, run)]
        if before.date == run.date or (where[0] != where[1] and run.tool == harness.TOOL):
            raise InputError(
                f"{run.source}: agent {run.agent!r} answers {self.name!r} here and in {before.source}; "
                "leave one out, or rename a folder"
            )
        old, new = sorted((before, run), key=lambda each: each.date)
        self.how[f"{run.tool}: {run.agent}: the later of two runs is read, {new.source}, and not {old.source}"] = None

    def _check(self, run: Run) -> None:
        """Refuse a run that means other tasks, or other truth, than those before."""
        for task, mark in zip(run.tasks, run.hashes, strict=bool(run.hashes)):
            seen = self.marks.setdefault(task, (mark, run.source))
            if seen[0] != mark:
                raise InputError(
                    f"{run.source}: document {task} of {self.name!r} is another than in {seen[1]} (their hashes "
                    "differ); evaluate all agents on one version of the task, or read them apart"
                )
        for task, label in zip(run.tasks, run.truth, strict=True):
            if label is None:
                continue
            known = self.truth.setdefault(task, label)
            if known != label:
                raise InputError(
                    f"{run.source}: the truth of task {task} of {self.name!r} is {label!r}, and {known!r} in "
                    f"{self.truth_from.get(task, self.source)}; evaluate all agents on one version of the task"
                )
            self.truth_from.setdefault(task, run.source)

    def finished(self, rows: bool) -> TaskSet:
        """The set as reports."""
        agents = sorted(self.agents)
        offered = {label for run, *_ in self.agents.values() for label in run.offered}
        order = class_order({*self.classes, *self.truth.values(), *offered})
        place = {label: i for i, label in enumerate(order)}
        table = np.array([place[label] for label in self.classes] + [-2, -1], dtype=np.int32)
        held = np.full((len(agents), len(self.index)), -1, dtype=np.int32)
        for i, agent in enumerate(agents):
            _, places, said = self.agents[agent]
            held[i, places] = table[said]
        truth = np.array([place.get(self.truth.get(task, ""), -1) for task in self.index], dtype=np.int64)
        labels = np.where(held >= 0, held, -1)
        reports = Reports.of(
            labels, self._rows(agents, labels, order) if rows else None, agents=agents, tasks=[*self.index],
            classes=order, truth=truth if (truth >= 0).any() else None, source=self.name,
        ) if order else _nothing(agents, [*self.index])  # fmt: skip
        asked = np.zeros_like(held, dtype=bool)
        for i, agent in enumerate(agents):
            asked[i, self.agents[agent][1]] = True
        logged = [[r for r in self.agents[agent][0].right if r is not None] for agent in agents]
        return TaskSet(
            self.name, reports, (held == -2).sum(1), (asked & (held == -1)).sum(1),
            np.array([np.mean(each) if each else np.nan for each in logged]), (*self.how,), held == -2,
        )  # fmt: skip

    def _rows(
        self, agents: Sequence[str], labels: npt.NDArray[np.int32], classes: Sequence[str]
    ) -> npt.NDArray[np.float64] | None:
        """Everybody's rows, where everybody's log has them and the classes count its choices."""
        size = len(classes)
        if size < 2 or any(not self.agents[a][0].rows for a in agents) or [*classes] != [*map(str, range(size))]:
            return None
        found = np.zeros((*labels.shape, size))
        found[..., 0] = 1.0
        for i, agent in enumerate(agents):
            run, places, _ = self.agents[agent]
            for place, row in zip(places.tolist(), run.rows, strict=True):
                if row is not None:
                    found[i, place] = [*row, *[0.0] * (size - len(row))]
        return found


def _nothing(agents: Sequence[str], tasks: Sequence[str]) -> Reports:
    """Reports in which no answer is a label."""
    return Reports(np.full((len(agents), len(tasks)), -1, dtype=np.int8), tuple(agents), tuple(tasks), ())


def task_sets(
    *paths: str | os.PathLike[str],
    chosen: Chosen | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[TaskSet]:
    """The sets of tasks that logs hold, folders read with all below them.

    >>> import tempfile, json; folder = Path(tempfile.mkdtemp())
    >>> for name, said in (("ann", "[-1, false], [-2, false]"), ("bob", "[-3, false], [-1, false]")):
    ...     (folder / name).mkdir()
    ...     line = '{"doc_id": %d, "target": 0, "filtered_resps": [' + said + ']}'
    ...     text = "\\n".join(line % i for i in range(3))
    ...     _ = (folder / name / "samples_quiz_2026-01-01T00-00-00.jsonl").write_text(text)
    >>> [(found.name, found.reports) for found in task_sets(folder)]
    [('quiz', Reports(2 agents, 3 tasks, 2 classes, 0 abstentions))]
    """
    asked = chosen or Chosen()
    files: dict[Path, None] = {}
    for given in paths:
        path = Path(given)
        if not path.exists():
            raise InputError(f"{path}: no such file or folder; check the path")
        below = dict.fromkeys(each for each, _ in found_below(path))
        if not below:
            raise InputError(f"{path}: no log of {', '.join(r.TOOL for r in READERS)} in it; name a log or its folder")
        files |= below
    if not files:
        raise OptionError("no log is named; name a log or a folder of logs")
    growing: dict[str, _Gathering] = {}
    for done, runs in enumerate(_read_all([*files], asked, executor), start=1):
        for packed in runs:
            name = packed.run.tasks_of
            growing.setdefault(name, _Gathering(name, packed.run.source)).add(packed)
        if progress is not None:
            progress(done, len(files))
    if not any(each.index for each in growing.values()):
        raise InputError(f"{some([str(file) for file in files])}: no answer in these logs; run the evaluation again")
    return [growing[name].finished(asked.rows) for name in sorted(growing) if growing[name].index]


def _read_all(files: Sequence[Path], chosen: Chosen, executor: Executor | None) -> Iterable[list[_Packed]]:
    if executor is None:
        return (packed_runs_of(file, chosen) for file in files)
    return executor.map(packed_runs_of, files, [chosen] * len(files))


def explanation(sets: Iterable[TaskSet]) -> list[str]:
    """How the logs were read, a sentence a line."""
    return [*(f"{one.name}: {how}" for one in sets for how in one.how), *(f"rule: {rule}" for rule in RULES)]
