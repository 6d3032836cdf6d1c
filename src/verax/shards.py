"""Shards: where reports that outgrow memory are, and how some of them are read, a block of tasks at a time.

A shard holds all agents' reports on some tasks: row groups of a wide Parquet file, a slice of an array, or a
whole file. The readers here take plain files fast, without an object a cell; what is not plain goes to
`files`, which has a sentence for every way a file can be wrong. Nothing here scores.
"""

from __future__ import annotations

import glob
import hashlib
import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from verax import files
from verax.errors import ExtraMissing, InputError, OptionError
from verax.reports import Array, Floats, Labels, Reports, checked_names, class_order, narrow, some

Digests = npt.NDArray[np.uint64]

_BLOCK = 2**22  # cells read at once: what bounds memory
_SHARD = 2**23  # cells that make a shard of small row groups or of an array: what is handed to one worker at a time
_MOST_TASKS = 2**16  # names in memory at once
_LEAST_TASKS = 128  # of labels in arrays, however many agents there are, for these are named with every block


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
    classes: tuple[str, ...] | None = None
    size: tuple[int, int] = (0, 0)  # agents and tasks, where that is known before it is read

    @property
    def name(self) -> str:
        """What a refusal calls it."""
        if self.stop is None:
            return self.path
        what = "row group" if _is_parquet(self.path) else "task"
        last = f" {self.start}" if self.stop == self.start + 1 else f"s {self.start} to {self.stop - 1}"
        return f"{self.path} ({what}{last})"


def _is_parquet(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix.lower() in (".parquet", ".pq")


def find(*patterns: str | os.PathLike[str], classes: Sequence[str] | None = None) -> list[Shard]:
    """The shards of some files, or of all files that match a pattern such as 'shards/*.parquet', in order of name.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "labels.npy", np.zeros((1000, 20_000), dtype=np.int8))
    >>> [(shard.start, shard.stop) for shard in find(folder / "*.npy")]
    [(0, 8388), (8388, 16776), (16776, 20000)]
    """
    if not patterns:
        raise InputError("no file of reports; name at least one")
    given = None if classes is None else tuple(files._given(classes) or ())
    paths = dict.fromkeys(path for pattern in patterns for path in matches(pattern))
    arrays = [path for path in paths if Path(path).suffix.lower() == ".npy"]
    if arrays and len(paths) > 1:
        raise InputError(
            f"{arrays[0]}: an NPY file has no names, so it must be the only file; save several with np.savez (.npz)"
        )
    return [shard for path in paths for shard in _shards(path, given)]


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


def _shards(path: str, classes: tuple[str, ...] | None) -> Iterator[Shard]:
    ending = Path(path).suffix.lower()
    if _is_parquet(path):
        yield from _of_parquet(path, classes)
    elif ending in (".npz", ".npy"):
        yield from _of_arrays(path, classes)
    else:
        if not os.path.exists(path) or os.path.isdir(path):
            files.read(path)  # which says so
        yield Shard(path, classes=classes)


def read(shard: Shard) -> Iterator[Reports]:
    """A shard's reports, a block of tasks at a time.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "reports.csv"
    >>> _ = path.write_text("task,ann,bob\\nt1,cat,cat\\nt2,dog,cat\\n")
    >>> [*read(Shard(str(path)))]
    [Reports(2 agents, 2 tasks, 2 classes, 0 abstentions)]
    """
    ending = Path(shard.path).suffix.lower()
    if _is_parquet(shard.path):
        return _read_parquet(shard)
    if ending in (".npz", ".npy"):
        return _read_arrays(shard)
    return iter([files.read(shard.path, classes=shard.classes)])


def _rows_at_once(each: int, least: int = 1) -> int:
    """Tasks of a block, where each has so many cells."""
    return max(least, min(_MOST_TASKS, _BLOCK // max(each, 1)))


def _least(arrays: Mapping[str, Array]) -> int:
    return 1 if "probabilities" in arrays else _LEAST_TASKS


# Parquet


class _Parquet:
    """An open Parquet file: what it holds, and its columns in blocks."""

    def __init__(self, path: str, coded: Sequence[str] | None = None, expected: str = files._REPORTS) -> None:
        try:
            import pyarrow.parquet as pq
        except ImportError:
            raise ExtraMissing("Parquet files", "parquet") from None
        self.path = path
        with files._opened(Path(path), mode="rb"):
            pass
        with _refused(path):
            self.file = pq.ParquetFile(path, read_dictionary=coded)
            stored = [str(name) for name in self.file.schema_arrow.names]
        names = {raw: raw.strip() for raw in stored if not raw.strip().startswith("__index_level_")}
        files._checked_header([raw.strip() for raw in stored if raw in names], path)
        self.names = names
        self.long = bool({"agent", "worker"} & {*names.values()})
        if "task" not in names.values():
            raise InputError(
                f"{path}: no column 'task' among {some(names.values()) or 'no columns'}; expected {expected}"
            )
        if not self.file.metadata.num_rows:
            raise InputError(f"{path}: a header and no rows; expected one row a report or a task")

    def blocks(self, groups: Sequence[int], rows: int) -> Iterator[dict[str, Any]]:
        """Arrow arrays by the name of their column, so many rows at a time."""
        with _refused(self.path):
            batches = self.file.iter_batches(rows, row_groups=groups, columns=[*self.names], use_threads=False)
        while True:
            with _refused(self.path):
                batch = next(batches, None)
            if batch is None:
                return
            yield {self.names[raw]: batch.column(i) for i, raw in enumerate(batch.schema.names)}


class _refused:  # noqa: N801
    """Whatever a parser of foreign bytes raises inside, as a refusal of the file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, InputError):
            reason = files._reason(error)
            raise InputError(f"{self.path}: cannot be read as Parquet ({reason}); write it again") from None


def _of_parquet(path: str, classes: tuple[str, ...] | None) -> Iterator[Shard]:
    """A shard a row group of a wide file, or several small ones; a long file as a whole, for tasks may lie anywhere."""
    parquet = _Parquet(path)
    if parquet.long:
        yield Shard(path, classes=classes)
        return
    metadata, each = parquet.file.metadata, len(parquet.names)
    first, row, held = 0, 0, 0
    for group in range(metadata.num_row_groups):
        held += metadata.row_group(group).num_rows
        if held * each >= _SHARD or group == metadata.num_row_groups - 1:
            yield Shard(path, first, group + 1, row, classes, (each - 1, held))
            first, row, held = group + 1, row + held, 0


def _read_parquet(shard: Shard) -> Iterator[Reports]:
    parquet = _Parquet(shard.path)
    if parquet.long or shard.stop is None:
        yield _read_long(shard, parquet)
        return
    groups, row = range(shard.start, shard.stop), shard.row
    labels = [raw for raw, name in parquet.names.items() if name != "task"]
    for block in _Parquet(shard.path, _texts(parquet, labels)).blocks(groups, _rows_at_once(len(labels))):
        yield _wide(block, shard, row)
        row += len(block["task"])


def _texts(parquet: _Parquet, columns: Iterable[str]) -> list[str]:
    """The columns of text, which Arrow can read as codes without making a string a cell."""
    import pyarrow as pa

    schema = parquet.file.schema_arrow
    kinds = {name: schema.field(name).type for name in columns}
    return [name for name, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_large_string(kind)]


@dataclass(frozen=True)
class _Column:
    """Cells as codes of the few texts that occur; -1 an empty cell."""

    codes: npt.NDArray[np.integer]
    texts: list[str]

    @classmethod
    def of(cls, array: Any, where: str) -> _Column | None:
        """From an Arrow array, or None if it is not of a kind that can be coded."""
        import pyarrow as pa

        try:
            coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        indices = coded.indices
        codes = np.asarray((indices.fill_null(-1) if indices.null_count else indices).to_numpy(zero_copy_only=False))
        values = coded.dictionary.to_pylist()
        there = np.bincount(codes + 1, minlength=len(values) + 1)[1:] > 0
        present = [value if used else None for value, used in zip(values, there.tolist(), strict=True)]
        for value in present:
            if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
                raise InputError(f"{where} has {value}; write labels and tasks as text or whole numbers")
        return cls(codes, files._text_column(present))

    def recoded(self, code: Mapping[str, int]) -> Labels:
        """The same cells under other codes."""
        table = np.array([*(code[text] for text in self.texts), -1], dtype=np.int64)
        return np.asarray(narrow(table, max(code.values(), default=0) + 1)[self.codes])


def _wide(block: dict[str, Any], shard: Shard, row: int) -> Reports:
    """A block of a wide file; what is not plain is left to the reader that can say what is wrong."""
    agents = [name for name in block if name != "task"]
    found = None
    if agents and agents != ["label"] and not any(name.startswith("p:") for name in agents):
        found = _plain(block, agents, shard)
    if found is None:
        cells = {name: files._text_column(array.to_pylist()) for name, array in block.items()}
        return files._from_wide(files._Table(shard.path, cells, row + 1), shard.classes)
    return found


def _plain(block: dict[str, Any], agents: Sequence[str], shard: Shard) -> Reports | None:
    """The reports of a block in which nothing is wrong, or None."""
    columns = [_Column.of(block[name], f"{shard.path}: column {name!r}") for name in agents]
    held = [column for column in columns if column is not None]
    seen = {text for column in held for text in column.texts} - {""}
    known = shard.classes is None or seen <= {*shard.classes}
    tasks = _task_names(block["task"], shard.path)
    if len(held) < len(agents) or not known or len({*tasks} - {""}) < len(tasks):
        return None
    names, code = files._class_codes(seen, shard.classes)
    labels = np.empty((len(agents), len(tasks)), dtype=narrow(np.empty(0, dtype=np.int64), len(names)).dtype)
    for k, column in enumerate(held):
        labels[k] = column.recoded(code)
    return _reports(labels, agents, tasks, names, shard)


def _task_names(array: Any, path: str) -> list[str]:
    import pyarrow as pa

    if pa.types.is_floating(array.type):
        column = _Column.of(array, f"{path}: column 'task'")
        assert column is not None
        return [*np.array([*column.texts, ""], dtype=object)[column.codes]]
    if pa.types.is_string(array.type) and not array.null_count:
        return [text.strip() for text in array.to_pylist()]
    return files._text_column(array.to_pylist())


def _reports(
    labels: Labels, agents: Sequence[str], tasks: Sequence[str], names: Sequence[str], shard: Shard
) -> Reports:
    """Reports whose codes are known to be right, and whose tasks are known to differ, to be stripped and not empty."""
    return Reports(
        labels,
        checked_names(agents, len(agents), "agent", shard.path),
        tuple(tasks) if "".join(tasks).isprintable() else checked_names(tasks, len(tasks), "task", shard.path),
        checked_names(names, len(names), "class", shard.path),
        classes_given=shard.classes is not None,
    )


def _read_long(shard: Shard, parquet: _Parquet) -> Reports:
    """A long file at once; what is not plain is left to the reader that can say what is wrong."""
    import pyarrow as pa

    with _refused(shard.path):
        columns = _Parquet(shard.path, _texts(parquet, parquet.names)).file.read(use_threads=False)
        arrays = {name: columns[raw].unify_dictionaries().combine_chunks() for raw, name in parquet.names.items()}
        arrays = {n: pa.concat_arrays(a.chunks) if isinstance(a, pa.ChunkedArray) else a for n, a in arrays.items()}
    found = _long(arrays, shard)
    return files.read(shard.path, classes=shard.classes) if found is None else found


def _long(arrays: dict[str, Any], shard: Shard) -> Reports | None:
    """The reports of a plain long file, or None."""
    key = "agent" if "agent" in arrays else "worker"
    rows = [name for name in arrays if name.startswith("p:")]
    texts = [name for name in arrays if name not in rows]
    if {*texts} - {"label"} != {"task", key} or not ("label" in texts or rows):
        return None
    columns = {name: _Column.of(arrays[name], f"{shard.path}: column {name!r}") for name in texts}
    tasks, agents, labels = (columns.get(name) for name in ("task", key, "label"))
    if tasks is None or agents is None or (labels is None and "label" in texts):
        return None
    task_names, task = _ranked(tasks)
    agent_names, agent = _ranked(agents)
    place = agent * len(task_names) + task
    shape = len(agent_names), len(task_names)
    there = np.zeros(math.prod(shape), dtype=bool)
    there[place] = True
    if "" in task_names or "" in agent_names or there.sum() < len(place):
        return None
    given = shard.classes if shard.classes is not None else tuple(name[2:].strip() for name in rows) or None
    seen = set() if labels is None else {*labels.texts} - {""}
    if not (given is None or seen <= {*given}):
        return None
    names, code = files._class_codes(seen, given)
    cells = np.full(len(place), -1, dtype=np.int8) if labels is None else labels.recoded(code)
    if not rows:
        return _reports(_laid(cells, place, shape), agent_names, task_names, names, shard)
    table = _numbers([arrays.get(f"p:{name}") for name in names]) if len(rows) == len(names) else None
    if table is None:
        return None
    cells = np.where(cells < 0, table.argmax(1), cells)
    held = np.full((math.prod(shape), len(names)), np.nan)
    held[place] = table
    return Reports.of(
        _laid(cells, place, shape), held.reshape(*shape, -1), agents=agent_names, tasks=task_names, classes=names,
        source=shard.path,
    )  # fmt: skip


def _laid(cells: Labels, place: npt.NDArray[np.int64], shape: tuple[int, int]) -> Labels:
    """Cells where their agent and task say; -1 elsewhere."""
    held = np.full(math.prod(shape), -1, dtype=cells.dtype)
    held[place] = cells
    return held.reshape(shape)


def _numbers(arrays: Sequence[Any]) -> Floats | None:
    """Columns of numbers side by side, or None where one is missing, of text, or has gaps."""
    if any(array is None or array.null_count or array.type not in ("float", "double") for array in arrays):
        return None
    table = np.stack([array.to_numpy() for array in arrays], axis=1).astype(np.float64)
    return None if np.isnan(table).any() else table


def _ranked(column: _Column) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Names in order of first appearance, and which of them each cell has."""
    first = np.full(len(column.texts) + 1, -1)
    first[column.codes[::-1]] = np.arange(len(column.codes))[::-1]  # of those that share a code, the first stays
    used = np.nonzero(first >= 0)[0]
    index, texts = dict[str, int](), [*column.texts, ""]
    rank = np.empty(len(first), dtype=np.int64)
    for code in used[np.argsort(first[used])].tolist():
        rank[code] = index.setdefault(texts[code], len(index))
    return [*index], rank[column.codes]


# Arrays


def _of_arrays(path: str, classes: tuple[str, ...] | None) -> Iterator[Shard]:
    """Slices of what can be mapped into memory; a compressed NPZ as a whole."""
    mapped = _mapped(path)
    sliced = None if mapped is None else _sliced(mapped)
    if mapped is None or sliced is None:
        yield Shard(path, classes=classes)
        return
    tasks, each = sliced
    step, agents = (
        max(4 * _least(mapped), _SHARD // max(each, 1)),
        len(mapped["labels" if "labels" in mapped else "probabilities"]),
    )
    for start in range(0, max(tasks, 1), step):
        stop = min(start + step, tasks)
        yield Shard(path, start, stop, classes=classes, size=(agents, stop - start))


def _sliced(arrays: Mapping[str, Array]) -> tuple[int, int] | None:
    """How many tasks arrays of reports have, and how many cells each; None if they are no such arrays."""
    held = [arrays[name] for name in ("labels", "probabilities") if name in arrays]
    if not held or any(array.ndim != 2 + (array is arrays.get("probabilities")) for array in held):
        return None
    tasks = held[0].shape[1]
    beside = [arrays[name] for name in ("tasks", "truth") if name in arrays]
    if any(array.shape[1] != tasks for array in held) or any(array.shape != (tasks,) for array in beside):
        return None
    return tasks, max(array.size // max(tasks, 1) for array in held)


def _read_arrays(shard: Shard) -> Iterator[Reports]:
    path, mapped = Path(shard.path), _mapped(shard.path)
    if mapped is not None and shard.start == 0:
        _check_sums(shard.path)
    arrays = files._load_arrays(path) if mapped is None else mapped
    sliced = _sliced(arrays) if isinstance(arrays, dict) else None
    if sliced is None:
        yield files._from_arrays(arrays, path, shard.classes)
        return
    if "public" in arrays:
        raise OptionError(f"{path}: a public signal cannot be taken out shard by shard; score the file whole")
    tasks, each = sliced
    stop = tasks if shard.stop is None else shard.stop
    for start in range(shard.start, max(stop, 1), step := _rows_at_once(each, _least(arrays))):
        yield _slice(arrays, path, start, min(start + step, stop), shard.classes)


def _slice(arrays: Mapping[str, Array], path: Path, start: int, stop: int, classes: Sequence[str] | None) -> Reports:
    at = slice(start, stop)
    part = {name: array[at] if name in ("tasks", "truth") else array for name, array in arrays.items()}
    part |= {name: np.asarray(arrays[name][:, at]) for name in ("labels", "probabilities") if name in arrays}
    if "tasks" not in part:
        part["tasks"] = np.arange(start, stop)
    return files._from_arrays(part, path, classes)


def _mapped(path: str) -> dict[str, Array] | None:
    """An NPY's labels, or an NPZ's arrays, mapped rather than read; None if an NPZ is compressed or strange."""
    with files._opened(Path(path), mode="rb") as file:
        try:
            if Path(path).suffix.lower() == ".npy":
                return {"labels": np.lib.format.open_memmap(path, mode="r")}
            with zipfile.ZipFile(file) as archive:
                return {entry.filename.removesuffix(".npy"): _member(file, path, entry) for entry in archive.infolist()}
        except Exception as error:  # what a parser of foreign bytes can raise is not a closed list
            if Path(path).suffix.lower() == ".npy":
                raise InputError(
                    f"{path}: not a NumPy file of one plain array ({files._reason(error)}); write it again with np.save"
                ) from None
            return None


def _member(file: Any, path: str, entry: zipfile.ZipInfo) -> Array:
    """One stored array, from where its bytes lie in the archive."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
        raise ValueError("compressed")
    file.seek(entry.header_offset + 26)
    name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    file.seek(entry.header_offset + 30 + name + extra)
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("Python objects")
    if not math.prod(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")


def _check_sums(path: str) -> None:
    """Refuse an NPZ whose bytes are not those that were written; mapping alone would not see it."""
    if Path(path).suffix.lower() == ".npy":
        return
    with zipfile.ZipFile(path) as archive:
        try:
            broken = archive.testzip()
        except (zipfile.BadZipFile, zlib.error, OSError) as error:
            broken = files._reason(error)
    if broken is not None:
        raise InputError(
            f"{path}: not a NumPy file of plain arrays (bad bytes in {broken}); write it again with np.savez"
        )


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
    for block in read(shard):
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
        """From a mapping of tasks to labels."""
        classes = class_order({*truth.values()})
        code = {name: i for i, name in enumerate(classes)}
        labels = np.array([code[label] for label in truth.values()], dtype=np.int64)
        return cls._sorted(digests(truth), labels, classes, next(iter(truth.items()), ("", "")), source)

    @classmethod
    def _sorted(
        cls, tasks: Digests, labels: npt.NDArray[Any], classes: tuple[str, ...], first: tuple[str, str], source: str
    ) -> Truth:
        order = np.argsort(tasks)
        return cls(tasks[order], narrow(labels[order], len(classes)), classes, first, source)

    def codes_of(self, tasks: Digests) -> Labels:
        """The truth of these tasks, -1 where it is not known."""
        if not len(self.tasks):
            return np.full(len(tasks), -1, dtype=np.int8)
        place = np.minimum(np.searchsorted(self.tasks, tasks), len(self.tasks) - 1)
        return np.where(self.tasks[place] == tasks, self.labels[place], self.labels.dtype.type(-1))


def read_truth(path: str | os.PathLike[str]) -> Truth:
    """The truth of a CSV or Parquet file `task,label`.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "truth.csv"
    >>> _ = path.write_text("task,label\\nt1,cat\\nt2,dog\\n")
    >>> read_truth(path).classes
    ('cat', 'dog')
    """
    source = Path(path)
    if source.suffix.lower() == ".npy":
        raise OptionError(f"{path}: an NPY file goes in the task order of one NPZ; give task,label with shards")
    found = _parquet_truth(str(source)) if _is_parquet(source) else None
    return found or Truth.of(files._label_map(files._read_table(source, files._TRUTH)), str(source))


def _parquet_truth(path: str) -> Truth | None:
    """A plain file's truth, or None."""
    parquet = _Parquet(path, expected=files._TRUTH)
    if {*parquet.names.values()} != {"task", "label"}:
        return None
    index: dict[str, int] = {}
    tasks, codes, first = [], [], None
    parquet = _Parquet(path, _texts(parquet, [raw for raw, name in parquet.names.items() if name == "label"]))
    for block in parquet.blocks(range(parquet.file.metadata.num_row_groups), _MOST_TASKS):
        column, names = _Column.of(block["label"], f"{path}: column 'label'"), _task_names(block["task"], path)
        if column is None or "" in names:
            return None
        code = {text: index.setdefault(text, len(index)) if text else -1 for text in column.texts}
        tasks.append(digests(names))
        codes.append(column.recoded(code).astype(np.int64))
        there = zip(names, column.codes.tolist(), strict=True)
        first = first or next(((t, column.texts[c]) for t, c in there if c >= 0 and column.texts[c]), None)
    every, known = np.concatenate(tasks), np.concatenate(codes)
    ordered = np.sort(every)
    if first is None or (ordered[1:] == ordered[:-1]).any():
        return None
    classes = class_order(index)
    rank = np.array([classes.index(text) for text in index], dtype=np.int64)
    return Truth._sorted(every[known >= 0], rank[known[known >= 0]], classes, first, path)
