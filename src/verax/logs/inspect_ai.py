"""Inspect: `.eval`, a zip of samples, and `.json`, the same as one document."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from verax.errors import ExtraMissing, InputError
from verax.logs.answer import folded, label_of
from verax.logs.run import UNREADABLE, Answered, Run, bytes_of, check_version, document_of, run_of

TOOL = "Inspect"
_ZSTD = 93
_MARKS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}


class _Score(msgspec.Struct):
    value: Any = None
    answer: Any = None


class _Sample(msgspec.Struct):
    id: int | str
    epoch: int = 1
    target: Any = None
    choices: list[str] | None = None
    scores: dict[str, _Score] | None = None
    error: Any = None


class _Eval(msgspec.Struct):
    model: str
    task: str
    created: str = ""


class _Header(msgspec.Struct):
    eval: _Eval
    version: int = 2
    status: str = "success"
    samples: list[_Sample] | None = None


def knows(path: Path, start: bytes) -> bool:
    """Whether a file is one of these."""
    if path.suffix == ".eval":
        return True
    return (
        path.suffix == ".json"
        and start.lstrip()[:1] == b"{"
        and all(name in start for name in (b'"eval"', b'"run_id"', b'"version"'))
    )


def read(path: Path, *, scorer: str | None = None) -> Iterator[Run]:
    """The run that a log holds, by one of its scorers."""
    header, samples = _unpacked(path) if path.suffix == ".eval" else _whole(path)
    check_version(path, str(header.version), "version 2", "2")
    scorers = [*dict.fromkeys(name for sample in samples for name in sample.scores or ())]
    chosen = scorer if scorer in scorers else scorers[0] if scorers else None
    how = [f"agent: eval.model; label: scores.{chosen}.answer, or its value; truth: target"]
    if len(scorers) > 1:
        how.append(f"scorer {chosen!r} is read, and not {', '.join(repr(name) for name in scorers if name != chosen)}")
    if header.status != "success":
        how.append(f"the run ended as {header.status!r}: what it holds is read")
    failed = sum(sample.error is not None for sample in samples)
    if failed:
        how.append(f"{failed} sample{'s' if failed > 1 else ''} ended in an error: no answer")
    answers = [_answered(sample, chosen) for sample in samples]
    yield run_of(
        answers, source=str(path), tool=TOOL, agent=header.eval.model, tasks_of=header.eval.task, how=tuple(how),
        date=header.eval.created,
    )  # fmt: skip


def _whole(path: Path) -> tuple[_Header, Sequence[_Sample]]:
    # events of a sample may hold NaN, which is no JSON but which this tool writes
    held = bytes_of(path)
    try:
        header = msgspec.json.decode(held, type=_Header)
    except msgspec.DecodeError:
        header = document_of(path, _Header, _without_nan(path, held))
    return header, header.samples or ()


def _without_nan(path: Path, held: bytes) -> bytes:
    import json

    try:
        return msgspec.json.encode(json.loads(held, parse_constant=lambda _: None))
    except (ValueError, RecursionError):
        return held


def _unpacked(path: Path) -> tuple[_Header, Sequence[_Sample]]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            head = next((name for name in ("header.json", "_journal/start.json") if name in names), None)
            if head is None:
                raise InputError(f"{path}: a zip without header.json, so no log of {TOOL}; leave it out")
            header = document_of(path, _Header, _member(archive, head))
            each = sorted(name for name in names if name.startswith("samples/") and name.endswith(".json"))
            samples = []
            for name in each:
                held = _member(archive, name)
                try:
                    samples.append(msgspec.json.decode(held, type=_Sample))
                except msgspec.DecodeError:
                    samples.append(document_of(path, _Sample, _without_nan(path, held)))
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise InputError(
            f"{path}: not a whole zip ({error}), so the run or its copy was cut short; copy it again, or log as JSON"
        ) from None
    return header if head == "header.json" else msgspec.structs.replace(header, status="started"), samples


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """What an entry holds, of zstd too, which newer logs are packed by and zipfile does not know."""
    entry = archive.getinfo(name)
    if entry.compress_type != _ZSTD:
        return archive.read(name)
    try:
        import pyarrow
    except ImportError:
        raise ExtraMissing("logs packed by zstd", "parquet") from None
    file = archive.fp
    assert file is not None
    file.seek(entry.header_offset + 26)
    lengths = [int.from_bytes(file.read(2), "little") for _ in range(2)]
    file.seek(sum(lengths), 1)
    held = pyarrow.decompress(file.read(entry.compress_size), entry.file_size, codec="zstd", asbytes=True)
    if zlib.crc32(held) != entry.CRC:
        raise zipfile.BadZipFile(f"bad bytes in {name}")
    return bytes(held)


def _answered(sample: _Sample, scorer: str | None) -> Answered:
    choices = {folded(text): chr(ord("A") + i) for i, text in enumerate(sample.choices or ())}
    target = sample.target[0] if isinstance(sample.target, list) and sample.target else sample.target
    truth = (label_of(str(target), choices) or None) if isinstance(target, str | int | float) else None
    found = (sample.scores or {}).get(scorer or "")
    if sample.error is not None or found is None:
        return Answered(str(sample.id), None, truth)
    return Answered(str(sample.id), _said(found, choices), truth, _right(found.value))


def _said(found: _Score, choices: Mapping[str, str]) -> str | None:
    if isinstance(found.answer, str | int | float) and str(found.answer).strip():
        return label_of(str(found.answer), choices)
    if isinstance(found.value, str) and found.value not in _MARKS:
        return label_of(found.value, choices)
    return UNREADABLE if found.answer is not None or found.value is not None else None


def _right(value: Any) -> float | None:
    if isinstance(value, str):
        return _MARKS.get(value)
    return float(value) if isinstance(value, int | float) and value == value else None
