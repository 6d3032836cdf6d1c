"""Shards: where reports that outgrow memory are, and how some of them are read, a block of tasks at a time.

A shard holds all agents' reports on some tasks: row groups of a wide Parquet file, a slice of an array, or a
whole file. Nothing here scores.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.arrays import truth_map
from verax.columns import Reading, is_frame
from verax.columns import table_of as table_of_frame
from verax.errors import InputError, OptionError
from verax.labels import Labels, class_order, narrow, numbers_of
from verax.layout import TRUTH
from verax.reports import Reports, joined
from verax.tables.formats import Format, Shard, agent_of, format_of, is_known, table_of, tables_of
from verax.tables.source import Source

Digests = npt.NDArray[np.uint64]
_SMALL = 2**18  # bytes of a file that stays at hand between two looks


def read(*sources: Any, reading: Reading | None = None, **fields: Any) -> Reports:
    """Reports from paths, bytes, open files, data frames, or `-`, standard input; several are put together.

    CSV, TSV, JSON, xlsx, Parquet or Arrow, long or wide; NPZ; a folder or several NPY with one file an agent. `fields`
    are those of `Reading`: which column is what, the classes, how much is too much.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "r.csv").write_text("task,ann,bob\\nt1,cat,cat\\nt2,dog,cat\\nt3,dog,\\n")
    >>> read(folder / "r.csv")
    Reports(2 agents, 3 tasks, 2 classes, 1 abstention)
    >>> read(b"id;model;answer\\nt1;ann;cat\\nt2;ann;dog\\n").notes
    ("read column 'id' as the task, 'model' as the agent, 'answer' as the label",)
    """
    how = Reading.of(reading, **fields)
    if not sources:
        raise InputError("no file of reports; name at least one")
    parts, names = [], []
    for given in sources:
        if is_frame(given):
            parts.append(Reports.of_table(table_of_frame(given, "the data frame", how), how))
            names.append("the data frame")
            continue
        source = Source.of(given, how)
        for part in _scan_folder(source, how) if source.is_folder else _scan_source(source, how):
            parts.append(part)
            names.append(source.name)
    return joined(parts, names, how).with_one_spelling()


def _scan_source(source: Source, reading: Reading, agent: str | None = None) -> Iterator[Reports]:
    return format_of(source, reading).blocks(source, Shard(source.name, reading=reading), agent)


def _scan_folder(folder: Source, reading: Reading) -> Iterator[Reports]:
    """The reports of a folder that holds a file an agent, called by its name."""
    try:
        paths = sorted(path for path in Path(folder.name).iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder.name}: is a folder that cannot be read ({error.strerror}); name files") from None
    if not paths:
        raise InputError(f"{folder.name}: is a folder with no file in it; name files of reports")
    for path in paths:
        source = Source.of(path, reading)
        if source.is_folder or not is_known(source):
            raise InputError(f"{folder.name}: is a folder, and its {path.name} is no file of reports; name the files")
        for part in _scan_source(source, reading, agent_of(source)):
            if part.agents != (agent_of(source),):
                raise InputError(
                    f"{folder.name}: is a folder, and its {path.name} is no report of one agent, task,label; "
                    "name the files themselves"
                )
            yield part


def find(*patterns: str | os.PathLike[str], reading: Reading | None = None, **fields: Any) -> list[Shard]:
    """The shards of some files, or of all files that match a pattern such as 'shards/*.parquet', in order of name.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "labels.npy", np.zeros((1000, 20_000), dtype=np.int8))
    >>> [(shard.start, shard.stop) for shard in find(folder / "*.npy")]
    [(0, 8388), (8388, 16776), (16776, 20000)]
    """
    how = Reading.of(reading, **fields)
    if not patterns:
        raise InputError("no file of reports; name at least one")
    paths = dict.fromkeys(path for pattern in patterns for path in matches(pattern))
    alone = [path for path in paths if Path(path).suffix.lower() == ".npy"]
    if alone and len(paths) > 1:
        raise InputError(
            f"{alone[0]}: an NPY file has no names, so it must be the only file; save several with np.savez (.npz)"
        )
    return [shard for path in paths for shard in _shards_of(Source.of(Path(path), how), how)]


def _shards_of(source: Source, reading: Reading) -> Iterator[Shard]:
    if source.is_folder:
        next(_scan_folder(source, reading))
        return iter([Shard(source.name, reading=reading)])
    return format_of(source, reading).shards(source, reading)


def matches(pattern: str | os.PathLike[str]) -> list[str]:
    """The file of that name, or the files that match it as a pattern.

    >>> matches("no-such-file.csv")
    ['no-such-file.csv']
    """
    text = os.fspath(pattern)
    if not is_pattern(text):
        return [text]
    found = sorted(path for path in glob.glob(text, recursive=True) if not os.path.isdir(path))
    if not found:
        raise InputError(f"{text}: no file matches this pattern; check the folder and the ending")
    return found


def is_pattern(text: str) -> bool:
    """Whether it stands for files rather than names one.

    >>> is_pattern("shards/*.parquet"), is_pattern("reports.csv")
    (True, False)
    """
    return glob.has_magic(text) and not os.path.exists(text)


def blocks(shard: Shard) -> Iterator[Reports]:
    """A shard's reports, a block of tasks at a time.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "reports.csv"
    >>> _ = path.write_text("task,ann,bob\\nt1,cat,cat\\nt2,dog,cat\\n")
    >>> [*blocks(Shard(str(path)))]
    [Reports(2 agents, 2 tasks, 2 classes, 0 abstentions)]
    """
    source = Source.of(Path(shard.path), shard.reading)
    if source.is_folder:
        yield read(source, reading=shard.reading)
        return
    format = format_of(source, shard.reading)
    if format.scan is None and len(content := source.begins(_SMALL + 1)) <= _SMALL:
        yield _small(format, Source(source.name, content), shard.reading)
        return
    for part in format.blocks(source, shard):
        yield replace(part, notes=(*shard.notes, *part.notes)).with_one_spelling()


@lru_cache(maxsize=64)
def _small(format: Format, source: Source, reading: Reading) -> Reports:
    """The reports of a small file, which are at hand when its bytes are looked at again."""
    [reports] = format.blocks(source, Shard(source.name, reading=reading))
    return reports.with_one_spelling()


# Tasks by digest, and their truth


def digests(tasks: Iterable[str]) -> Digests:
    """Eight bytes a task, by which tasks are told apart without keeping their names.

    >>> digests(["a", "b"]).dtype
    dtype('uint64')
    """
    found = b"".join(hashlib.blake2b(task.encode(), digest_size=8).digest() for task in tasks)
    return np.frombuffer(found, dtype="<u8").astype(np.uint64)


def task_of(shard: Shard, digest: int) -> str | None:
    """The first task of a shard that has this digest."""
    for block in blocks(shard):
        for place in np.nonzero(digests(block.tasks) == np.uint64(digest))[0].tolist():
            return block.tasks[place]
    return None


@dataclass(frozen=True, eq=False)
class Truth:
    """The truth of many tasks, a few bytes each.

    >>> Truth.of({"t1": "dog", "t2": "cat"}).codes_of(digests(["t2", "t3"])).tolist()
    [0, -1]
    """

    tasks: Digests
    labels: Labels
    classes: tuple[str, ...]
    first: tuple[str, str]
    source: str

    @classmethod
    def of(cls, truth: Mapping[str, str], source: str = "the truth") -> Truth:
        """From a mapping of tasks to labels; numbers are spelled in one way, where all labels are."""
        return cls._of_parts([(digests(truth), [*truth.values()])], next(iter(truth.items()), ("", "")), source)

    @classmethod
    def _of_parts(cls, parts: Iterable[tuple[Digests, Sequence[str]]], first: tuple[str, str], source: str) -> Truth:
        index: dict[str, int] = {}
        coded = [(marks, [index.setdefault(text, len(index)) for text in texts]) for marks, texts in parts]
        spelled = numbers_of(index) or {label: label for label in index}
        classes = class_order({*spelled.values()})
        rank = np.array([classes.index(spelled[label]) for label in index], dtype=np.int64)
        marks = np.concatenate([np.empty(0, np.uint64), *(marks for marks, _ in coded)])
        order = np.argsort(marks)
        codes = rank[np.concatenate([np.empty(0, np.int64), *(np.array(c, np.int64) for _, c in coded)])[order]]
        return cls(marks[order], narrow(codes, len(classes)), classes, first, source)

    def codes_of(self, tasks: Digests) -> Labels:
        """The truth of these tasks, -1 where it is not known."""
        if not len(self.tasks):
            return np.full(len(tasks), -1, dtype=np.int8)
        place = np.minimum(np.searchsorted(self.tasks, tasks), len(self.tasks) - 1)
        return np.where(self.tasks[place] == tasks, self.labels[place], self.labels.dtype.type(-1))


def truth_of(path: str | os.PathLike[str], reading: Reading | None = None, **fields: Any) -> Truth:
    """The truth of a file `task,label`.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "truth.csv"
    >>> _ = path.write_text("task,label\\nt1,cat\\nt2,dog\\n")
    >>> truth_of(path).classes
    ('cat', 'dog')
    """
    how = Reading.of(reading, **fields)
    source = Source.of(path, how)
    if source.endings[:1] == [".npy"]:
        raise OptionError(f"{path}: an NPY file goes in the task order of one NPZ; give task,label with shards")
    parts, first = [], None
    for table in tables_of(source, how, TRUTH):
        known = truth_map(table, how)
        first = first or next(iter(known.items()), None)
        parts.append((digests(known), [*known.values()]))
    found = Truth._of_parts(parts, first or ("", ""), source.name)
    if first is None or (found.tasks[1:] == found.tasks[:-1]).any():
        truth_map(table_of(source, how, TRUTH), how, some_known=True)  # which says what is wrong
    return found
