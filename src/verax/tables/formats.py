"""Formats: the one door, where each kind of file is one entry, and is read in one way, whole or shard by shard.

A format gives a table, whose columns `layout` understands, or reports themselves, block by block. A shard holds all
agents' reports on some tasks: row groups of a wide Parquet file, a slice of an array, or a whole file.
"""

from __future__ import annotations

import glob
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from verax.columns import Reading, Table, is_frame
from verax.columns import table_of as table_of_frame
from verax.errors import InputError
from verax.layout import REPORTS, Roles, roles_of
from verax.reports import Reports, joined
from verax.tables import arrays
from verax.tables.arrow import Arrow, read_arrow
from verax.tables.records import read_json, read_xlsx
from verax.tables.source import Source
from verax.tables.text import read_csv
from verax.vocabulary import is_wide_agent

BLOCK = 2**22  # cells read at once: what bounds memory
SHARD = 2**23  # cells that make a shard of small row groups or of an array: what is handed to one worker at a time
MOST_TASKS = 2**16  # names in memory at once
LEAST_TASKS = 128  # of labels in arrays, however many agents there are, for these are named with every block
_SAMPLE = 4096  # rows by which it is decided what columns are
_SMALL = 2**18  # bytes of a file that stays at hand between two looks


@dataclass(frozen=True)
class Shard:
    """Some tasks of one file: its row groups or tasks from `start` to `stop`, or all it holds; small, to be sent.

    >>> Shard("reports.parquet", 0, 4).name
    'reports.parquet (row groups 0 to 3)'
    """

    path: str
    start: int = 0
    stop: int | None = None
    row: int = 0  # of the file, where its first row group begins
    reading: Reading = field(default_factory=Reading)
    size: tuple[int, int] = (0, 0)  # agents and tasks, where that is known before it is read
    roles: Roles | None = None  # of its columns, where that was decided for the whole file
    notes: tuple[str, ...] = ()
    name: str = field(init=False)  # what a refusal calls it

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self._named())

    def _named(self) -> str:
        if self.stop is None:
            return self.path
        what = "row group" if Path(self.path).suffix.lower() in (".parquet", ".pq") else "task"
        last = f" {self.start}" if self.stop == self.start + 1 else f"s {self.start} to {self.stop - 1}"
        return f"{self.path} ({what}{last})"


@dataclass(frozen=True)
class Format:
    """How files of one kind are known, by their ending or first bytes, and how they are read.

    Or by what `knows` says of it. `table` gives all rows as columns. `scan` gives a shard's reports in blocks, of one
    agent where no column says whose they are; `split` says what shards a file has. Of tables only the first is needed.
    """

    name: str
    endings: tuple[str, ...]
    begins: tuple[bytes, ...] = ()
    table: Callable[[Source, Reading, str], Table] | None = None
    scan: Callable[[Source, Shard, str | None], Iterator[Reports]] | None = None
    split: Callable[[Source, Reading], Iterator[Shard]] | None = None
    knows: Callable[[Source, Reading], bool] | None = None  # asked before endings, of folders too

    def blocks(self, source: Source, shard: Shard, agent: str | None = None) -> Iterator[Reports]:
        """A shard's reports."""
        if self.scan is not None:
            yield from self.scan(source, shard, agent)
        elif self.table is not None:
            yield Reports.of_table(self.table(source, shard.reading, REPORTS), shard.reading, agent=agent)

    def shards(self, source: Source, reading: Reading) -> Iterator[Shard]:
        """The shards of a file."""
        found = iter(()) if self.split is None else self.split(source, reading)
        first = next(found, None)
        if first is None:
            source.open().close()
            first = Shard(source.name, reading=reading)
        yield first
        yield from found


def _parquet_table(source: Source, reading: Reading, expected: str) -> Table:
    return Arrow.of(source, reading).whole()


def _scan_parquet(source: Source, shard: Shard, agent: str | None) -> Iterator[Reports]:
    """A wide file in blocks; a long one at once, for its tasks may lie anywhere."""
    file, roles, seen = Arrow.of(source, shard.reading), shard.roles, dict[str, int]()
    if file.long or agent is not None or not file.rows:
        yield Reports.of_table(file.whole(), shard.reading, agent=agent)
        return
    groups = None if shard.stop is None else range(shard.start, shard.stop)
    if groups is None:
        file.refuse_large(long=False)
    for table in file.tables(_rows_at_once(len(file.names) - 1), groups, shard.row):
        roles = roles or roles_of(table, shard.reading)
        found = Reports.of_table(table, shard.reading, roles)
        if groups is None:
            for task in seen.keys() & {*found.tasks}:
                row = found.tasks.index(task)
                table.refuse(row, f"task {task!r} appears a second time; keep one row a task")
            seen |= dict.fromkeys(found.tasks, 0)
        yield found


def _rows_at_once(each: int) -> int:
    """Tasks of a block, where each has so many cells."""
    return max(1, min(MOST_TASKS, BLOCK // max(each, 1)))


def _split_parquet(source: Source, reading: Reading) -> Iterator[Shard]:
    """A shard a row group of a wide file, or several small ones; what columns are is decided once for all."""
    file = Arrow.of(source, reading)
    if file.long or not file.rows:
        file.whole() if not file.rows else None
        return
    roles = roles_of(next(file.tables(_SAMPLE)), reading)
    silent = replace(roles, notes=())
    metadata, each = file.metadata, len(roles.agents)
    first, row, held, notes = 0, 0, 0, roles.notes
    for group in range(metadata.num_row_groups):
        held += metadata.row_group(group).num_rows
        if held * (each + 1) >= SHARD or group == metadata.num_row_groups - 1:
            yield Shard(source.name, first, group + 1, row, reading, (each, held), silent, notes)
            first, row, held, notes = group + 1, row + held, 0, ()


def _scan_arrays(source: Source, shard: Shard, agent: str | None) -> Iterator[Reports]:
    if shard.stop is not None:
        yield from arrays.scan_slice(source, shard.reading, shard.start, shard.stop, BLOCK, LEAST_TASKS, MOST_TASKS)
    elif format_of(source, shard.reading).name == "NPY":
        yield arrays.one_agent(source, agent or _agent_named_by(source), shard.reading)
    else:
        yield arrays.reports_of(arrays.load(source, shard.reading), source, shard.reading)


def _split_arrays(source: Source, reading: Reading) -> Iterator[Shard]:
    for start, stop, agents in arrays.slices(source, SHARD, LEAST_TASKS):
        yield Shard(source.name, start, stop, reading=reading, size=(agents, stop - start))


_FORMATS = [
    Format("CSV", (".csv", ".tsv", ".txt"), table=read_csv),
    Format("JSON", (".json", ".jsonl", ".ndjson"), (b"[", b"{"), read_json),
    Format("xlsx", (".xlsx", ".xlsm"), table=read_xlsx),
    Format("Parquet", (".parquet", ".pq"), (b"PAR1",), _parquet_table, _scan_parquet, _split_parquet),
    Format("Arrow", (".feather", ".arrow", ".ipc"), (b"ARROW1",), read_arrow),
    Format("NPZ", (".npz",), scan=_scan_arrays, split=_split_arrays),
    Format("NPY", (".npy",), (b"\x93NUMPY",), scan=_scan_arrays, split=_split_arrays),
]


def register(format: Format) -> None:
    """Take a format in, before those that are known.

    >>> register(Format("the log of a tool", (".tool-log",)))
    """
    _FORMATS.insert(0, format)


def format_of(source: Source, reading: Reading) -> Format:
    """The format of a source: by its ending, else by its first bytes, else CSV."""
    if (claimed := _claimed(source, reading)) is not None:
        return claimed
    known = {ending: format for format in reversed(_FORMATS) for ending in format.endings}
    ending = next((ending for ending in source.endings if ending != ".gz"), "")
    if ending in known:
        return known[ending]
    start = source.begins(8)
    if start[:4] == b"PK\x03\x04":
        with source.open() as file, source.refused("cannot be read as zip"), zipfile.ZipFile(file) as archive:
            names = archive.namelist()
        if any(name.endswith(".npy") for name in names):
            return known[".npz"]
        return known[".xlsx" if "[Content_Types].xml" in names else ".csv"]  # CSV says that it is packed
    if start[:2] == b"\x1f\x8b":
        with source.text(reading) as text, source.refused("cannot be read as text"):
            start = text.read(8).encode(errors="replace")
    start = start.removeprefix(b"\xef\xbb\xbf")
    return next((f for f in _FORMATS if any(start.lstrip().startswith(b) for b in f.begins)), known[".csv"])


def _claimed(source: Source, reading: Reading) -> Format | None:
    """The format that knows a source by more than its ending."""
    return next((format for format in _FORMATS if format.knows is not None and format.knows(source, reading)), None)


def is_known(source: Source) -> bool:
    """Whether its ending says what it is."""
    return any(ending in format.endings for format in _FORMATS for ending in source.endings[:2])


def agent_of(source: Source) -> str:
    """Whose report a file is, by its name."""
    name = Path(source.name).name
    for ending in source.endings if is_known(source) else ():
        name = name[: -len(ending)] if name.lower().endswith(ending) else name
    return name


def _agent_named_by(source: Source) -> str:
    """Whose report a file is, if its name can be an agent's."""
    name = agent_of(source)
    if not is_wide_agent(name):
        raise InputError(
            f"{source.name}: by its name no agent's report; give the truth with truth=, leave it out, or rename it"
        )
    return name


def table_of(source: Source, reading: Reading, expected: str) -> Table:
    """All rows of a source, where its format has rows."""
    found = format_of(source, reading)
    if found.table is None:
        raise InputError(
            f"{source.name}: an {found.name} is for reports; expected {expected} as CSV or Parquet, or one array as NPY"
        )
    return found.table(source, reading, expected)


def tables_of(source: Source, reading: Reading, expected: str) -> Iterator[Table]:
    """The same rows, some at a time where the format allows it."""
    if format_of(source, reading).table is _parquet_table:
        yield from Arrow.of(source, reading).tables(MOST_TASKS)
    else:
        yield table_of(source, reading, expected)


# The door


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
        plain = source.is_folder and _claimed(source, how) is None
        for part in _scan_folder(source, how) if plain else _scan_source(source, how):
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
        agent = _agent_named_by(source)
        for part in _scan_source(source, reading, agent):
            if part.agents != (agent,):
                raise InputError(
                    f"{folder.name}: is a folder, and its {path.name} is no report of one agent, task,label; "
                    "name the files themselves"
                )
            yield part


def find(*patterns: str | os.PathLike[str], reading: Reading | None = None, **fields: Any) -> list[Shard]:
    """The shards of some files, or of all files that match a pattern such as 'shards/*.parquet', in order of name.

    >>> import tempfile; import numpy as np; folder = Path(tempfile.mkdtemp())
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


def stamps(shards: Sequence[Shard]) -> dict[str, object]:
    """By which a file that changes is noticed; a file that only others can see is theirs to mind.

    >>> stamps([Shard("no-such-file.csv")])
    {}
    """
    found: dict[str, object] = {}
    for path in {shard.path for shard in shards}:
        with suppress(OSError):
            found[path] = os.stat(path).st_size, os.stat(path).st_mtime_ns
    return found


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
