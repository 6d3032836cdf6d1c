"""NumPy's files: NPZ of reports, NPY of one agent's rows, whole or in slices mapped into memory."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from verax.columns import Reading
from verax.errors import InputError, OptionError
from verax.labels import Array, some
from verax.layout import softmax
from verax.reports import Reports
from verax.tables.source import Source
from verax.topk import TopK

_KNOWN = ("labels", "probabilities", "agents", "classes", "tasks", "truth", "public", "top_labels", "top_probabilities")
_NAME = 100  # bytes that a name takes in memory, about
_MAGIC = b"\x93NUMPY"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def load(source: Source, reading: Reading) -> Any:
    """The array of an NPY or the arrays of an NPZ by name, never a pickled object, nor more than its bytes hold."""
    with source.open() as file, _plain_arrays(source):
        if source.begins(len(_MAGIC)) == _MAGIC:
            heads = {"labels": _Header.of(file, source.size)}
        else:
            heads = {}
            with zipfile.ZipFile(file) as archive:
                for entry in archive.infolist():
                    with archive.open(entry) as member:
                        heads[entry.filename.removesuffix(".npy")] = _Header.of(member, entry.file_size)
        _refuse_large(source, reading, heads)
        file.seek(0)
        found = np.load(file, allow_pickle=False)
        return found if isinstance(found, np.ndarray) else {**found}


@dataclass(frozen=True)
class _Header:
    """What the beginning of an NPY says: which is not believed beyond the bytes that follow."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: npt.DTypeLike
    held: int

    @classmethod
    def of(cls, file: IO[bytes], size: int) -> _Header:
        shape, fortran, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        if dtype.hasobject:
            raise ValueError("unknown bytes, or Python objects")
        held = math.prod(shape) * dtype.itemsize
        if held > size - file.tell():
            raise ValueError(f"{shape} of {dtype} are {held:,} bytes, and {size - file.tell():,} are there")
        return cls(shape, fortran, dtype, held)


def _refuse_large(source: Source, reading: Reading, heads: Mapping[str, _Header]) -> None:
    shapes = [heads[name].shape for name in ("labels", "probabilities", "top_labels") if name in heads]
    named = max((_NAME * sum(shape[:2]) for shape in shapes), default=0)
    what = " and ".join(f"arrays of shape {shape}" for shape in shapes) or "arrays"
    reading.refuse_large(source.name, named + sum(head.held for head in heads.values()), source.size, what)


@contextmanager
def _plain_arrays(source: Source, kind: str = "plain arrays", how: str = "np.savez") -> Iterator[None]:
    with source.refused(f"not a NumPy file of {kind}", f"write it again with {how}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of headers that Python 2 wrote, and reads them
        yield


def load_one(source: Source, reading: Reading) -> Array:
    """The array of an NPY."""
    array = load(source, reading)
    if not isinstance(array, np.ndarray):
        raise InputError(f"{source.name}: several arrays (an NPZ) under the name of one; save one with np.save")
    return array


def reports_of(arrays: Any, source: Source, reading: Reading) -> Reports:
    """The reports in the arrays of an NPZ."""
    if not isinstance(arrays, dict):
        raise InputError(
            f"{source.name}: a single array; save it with np.savez as labels (agents, tasks) or probabilities"
        )
    strange = [name for name in arrays if name not in _KNOWN]
    if strange:
        raise InputError(f"{source.name}: array {strange[0]!r} is not understood; expected some of {', '.join(_KNOWN)}")
    agents, tasks, stored = (names_in(arrays, name, source) for name in ("agents", "tasks", "classes"))
    if reading.classes is not None and stored is not None and [*reading.classes] != stored:
        raise InputError(f"{source.name}: its classes are {some(stored)}; leave classes= out, or give the same")
    labels, rows = arrays.get("labels"), arrays.get("probabilities")
    if labels is not None and (labels.ndim != 2 or labels.dtype.kind not in "iu"):
        raise InputError(
            f"{source.name}: labels have shape {labels.shape} and type {labels.dtype}; "
            "give integers of shape (agents, tasks)"
        )
    if reading.logits and rows is not None and rows.dtype.kind in "fiu" and rows.ndim == 3:
        rows = softmax(rows.astype(np.float64))
    for array in (labels, rows):
        if array is not None:
            reading.refuse_cells(source.name, *array.shape)
    if listed := [name for name in ("top_labels", "top_probabilities") if name in arrays]:
        names = reading.classes if reading.classes is not None else stored
        if len(listed) < 2 or rows is not None or names is None:
            raise InputError(
                f"{source.name}: the likeliest labels of each row are top_labels and top_probabilities (agents, tasks, "
                "k) with classes, and no probabilities beside them; write them so"
            )
        rows = TopK.of(arrays["top_labels"], arrays["top_probabilities"], len(names))
    return Reports.of(
        labels, rows, agents=agents, tasks=tasks, classes=reading.classes if reading.classes is not None else stored,
        truth=truth_in(arrays.get("truth"), source), public=arrays.get("public"), source=source.name,
    )  # fmt: skip


def truth_in(array: Array | None, source: Source) -> Array | None:
    """The truth in an array, which indexes classes."""
    if array is not None and array.dtype.kind not in "iu":
        raise InputError(
            f"{source.name}: truth of shape {array.shape} and type {array.dtype}; give one integer for each task"
        )
    return array


def names_in(arrays: Mapping[str, Array], name: str, source: Source) -> list[str] | None:
    """The names that an array of an NPZ holds."""
    if name not in arrays:
        return None
    if arrays[name].ndim != 1:
        raise InputError(f"{source.name}: array {name!r} has shape {arrays[name].shape}; give a list of names")
    try:
        return [x.decode() if isinstance(x, bytes) else str(x) for x in arrays[name].tolist()]
    except ValueError:
        raise InputError(
            f"{source.name}: array {name!r} has a name that is not text; write it again from strings"
        ) from None


def one_agent(source: Source, agent: str, reading: Reading) -> Reports:
    """One agent's report in an NPY: probabilities or logits (N, L), or labels (N,)."""
    array = load_one(source, reading)
    if array.ndim == 2 and array.dtype.kind == "f":
        rows = softmax(array.astype(np.float64)) if reading.logits else array
        return Reports.of(probabilities=rows[None], agents=[agent], classes=reading.classes, source=source.name)
    if array.ndim == 1 and array.dtype.kind in "iu":
        return Reports.of(array[None], agents=[agent], classes=reading.classes, source=source.name)
    raise InputError(
        f"{source.name}: reports need names for their arrays; save them with np.savez as labels or probabilities "
        "(.npz), or one agent's probabilities (tasks, classes) as NPY"
    )


# Slices of what can be mapped into memory


def slices(source: Source, most: int, least: int) -> Iterator[tuple[int, int, int]]:
    """Where tasks begin and end in slices of so many cells, and how many agents; nothing where they cannot be had."""
    mapped = _map_arrays(source)
    sliced = None if mapped is None else _slice_sizes(mapped)
    if mapped is None or sliced is None:
        return
    tasks, each = sliced
    agents = len(mapped["labels" if "labels" in mapped else "probabilities"])
    step = max(4 * (1 if "probabilities" in mapped else least), most // max(each, 1))
    for start in range(0, max(tasks, 1), step):
        yield start, min(start + step, tasks), agents


def scan_slice(
    source: Source, reading: Reading, start: int, stop: int, at_once: int, least: int, most: int
) -> Iterator[Reports]:
    """The reports from one task to another, a block at a time."""
    mapped = _map_arrays(source)
    if mapped is None or (sliced := _slice_sizes(mapped)) is None:
        raise InputError(f"{source.name}: it changed since it was found; start again")
    if start == 0:
        _check_sums(source)
    if "public" in mapped:
        raise OptionError(f"{source.name}: a public signal cannot be taken out shard by shard; score the file whole")
    if "top_labels" in mapped:
        raise OptionError(f"{source.name}: likeliest labels cannot be scored shard by shard; score the file whole")
    step = max(1 if "probabilities" in mapped else least, min(most, at_once // max(sliced[1], 1)))
    for first in range(start, max(stop, 1), step):
        yield reports_of(_slice_of(mapped, slice(first, min(first + step, stop))), source, reading)


def _slice_of(arrays: Mapping[str, Array], at: slice) -> dict[str, Array]:
    part = {name: array[at] if name in ("tasks", "truth") else array for name, array in arrays.items()}
    part |= {name: np.asarray(arrays[name][:, at]) for name in ("labels", "probabilities") if name in arrays}
    return {"tasks": np.arange(at.start, at.stop)} | part


def _slice_sizes(arrays: Mapping[str, Array]) -> tuple[int, int] | None:
    """How many tasks arrays of reports have, and how many cells each; None if they are no such arrays."""
    held = [arrays[name] for name in ("labels", "probabilities") if name in arrays]
    kinds = {"labels": (2, "iu"), "probabilities": (3, "fiu")}
    if not held or any(
        arrays[name].ndim != n or arrays[name].dtype.kind not in kind
        for name, (n, kind) in kinds.items()
        if name in arrays
    ):
        return None
    tasks = held[0].shape[1]
    beside = [arrays[name] for name in ("tasks", "truth") if name in arrays]
    if any(array.shape[1] != tasks for array in held) or any(array.shape != (tasks,) for array in beside):
        return None
    return tasks, max(array.size // max(tasks, 1) for array in held)


def _map_arrays(source: Source) -> dict[str, Array] | None:
    """An NPY's labels, or an NPZ's arrays, mapped rather than read; None if an NPZ is compressed or strange."""
    with source.open() as file:
        if source.endings[:1] == (".npy",):
            with _plain_arrays(source, "one plain array", "np.save"):
                return {"labels": np.lib.format.open_memmap(source.name, mode="r")}
        try:
            with zipfile.ZipFile(file) as archive:
                return {
                    entry.filename.removesuffix(".npy"): _map_member(file, source, entry)
                    for entry in archive.infolist()
                }
        except Exception:  # what a parser of foreign bytes can raise is not a closed list
            return None


def _map_member(file: IO[bytes], source: Source, entry: zipfile.ZipInfo) -> Array:
    """One stored array, from where its bytes lie in the archive."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
        raise ValueError("compressed")
    file.seek(entry.header_offset + 26)
    name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    file.seek(entry.header_offset + 30 + name + extra)
    head = _Header.of(file, source.size)
    if not head.held:
        return np.empty(head.shape, head.dtype)
    return np.memmap(source.name, head.dtype, "r", file.tell(), head.shape, "F" if head.fortran else "C")


def _check_sums(source: Source) -> None:
    """Refuse an NPZ whose bytes are not those that were written; mapping alone would not see it."""
    if source.endings[:1] == (".npy",):
        return
    with _plain_arrays(source), zipfile.ZipFile(source.name) as archive:
        broken = archive.testzip()
        if broken is not None:
            raise ValueError(f"bad bytes in {broken}")
