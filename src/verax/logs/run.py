"""A run: what one log says of one agent on one set of tasks. Readers give runs; nothing here knows a tool."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from verax.errors import InputError

T = TypeVar("T")
Said = str | None
UNREADABLE = ""  # an answer was given, and no label can be made of it


@dataclass(frozen=True, eq=False)
class Run:
    """One agent's answers to the tasks of one set: None where there is no answer, '' where it is no label.

    `right`: the log's own verdicts; `hashes`: what tells that two logs mean the same task; `rows`: probabilities.

    >>> Run("a.jsonl", "a tool", "ann", "quiz", ["1", "2"], ["A", ""], ["A", "B"]).unreadable
    1
    """

    source: str
    tool: str
    agent: str
    tasks_of: str
    tasks: Sequence[str]
    said: Sequence[Said]
    truth: Sequence[Said]
    right: Sequence[float | None] = ()
    hashes: Sequence[str] = ()
    rows: Sequence[Sequence[float] | None] = ()
    how: tuple[str, ...] = ()
    date: str = ""
    offered: tuple[str, ...] = ()  # all labels that could be said, where the log tells

    @property
    def unreadable(self) -> int:
        """How many answers are no label."""
        return sum(label == UNREADABLE for label in self.said)


@dataclass(frozen=True)
class Answered:
    """One answer to one task, before repeats are put together."""

    task: str
    said: Said
    truth: Said
    right: float | None = None
    mark: str = ""  # of the task itself


def run_of(answers: Iterable[Answered], **about: Any) -> Run:
    """A run of answers, in which repeats of a task become one: the most frequent label, the first on ties.

    >>> again = [Answered("1", "A", "A", 1.0), Answered("1", "B", "A", 0.0), Answered("1", "A", "A", 1.0)]
    >>> found = run_of(again, source="x", tool="t", agent="ann", tasks_of="quiz")
    >>> found.said, found.how
    (['A'], ('1 task answered 3 times at most: the most frequent answer counts',))
    """
    by_task: dict[str, list[Answered]] = {}
    for one in answers:
        by_task.setdefault(one.task, []).append(one)
    said, right = [], []
    for each in by_task.values():
        labels = Counter(one.said for one in each if one.said)
        said.append(max(labels, key=labels.__getitem__) if labels else _best_gap(each))
        verdicts = [one.right for one in each if one.right is not None]
        right.append(sum(verdicts) / len(verdicts) if verdicts else None)
    most = max(map(len, by_task.values()), default=0)
    several = sum(len(each) > 1 for each in by_task.values())
    how = tuple(about.pop("how", ()))
    if most > 1:
        times = f"{several} task{'s' if several > 1 else ''} answered {most} times at most"
        how += (f"{times}: the most frequent answer counts",)
    truth = [next((one.truth for one in each if one.truth is not None), None) for each in by_task.values()]
    marks = [each[0].mark for each in by_task.values()]
    return Run(
        tasks=[*by_task], said=said, truth=truth, right=right, hashes=marks if any(marks) else (), how=how, **about
    )


def _best_gap(each: Sequence[Answered]) -> Said:
    return UNREADABLE if any(one.said == UNREADABLE for one in each) else None


def bytes_of(path: Path) -> bytes:
    """What a file holds, unpacked where it is gzip."""
    try:
        held = path.read_bytes()
        return gzip.decompress(held) if held[:2] == b"\x1f\x8b" else held
    except (OSError, EOFError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"{path}: cannot be read ({reason}); check the file") from None


def lines_of(path: Path, kind: type[T]) -> list[T]:
    """The records of a file of one JSON object a line; half a line is refused by its number."""
    held = bytes_of(path)
    decoder = msgspec.json.Decoder(kind)
    try:
        return decoder.decode_lines(held)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [*_decoded_singly(path, held, decoder)]


def _decoded_singly(path: Path, held: bytes, decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
    lines = held.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield decoder.decode(line)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InputError(
                f"{path}, line {number}: not a record of this tool ({error}); write the log again, or leave it out"
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            last = not any(rest.strip() for rest in lines[number:])
            what = "half a JSON record, so the run was cut short" if last else "not JSON"
            raise InputError(f"{path}, line {number}: {what}; delete the line, or run the evaluation again") from None


def document_of(path: Path, kind: type[T], held: bytes | None = None) -> T:
    """A file of one JSON document."""
    try:
        return msgspec.json.decode(bytes_of(path) if held is None else held, type=kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: not a log of this tool as it is known here ({error}); write it again") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not whole JSON ({error}); the run may have been cut short; run it again") from None


def check_version(path: Path, seen: str, known: str, pattern: str) -> None:
    """Refuse a log of a version that is not known here."""
    if not re.fullmatch(pattern, seen):
        raise InputError(
            f"{path}: a log of version {seen}; expected {known}; write it by a release of the tool of that"
        )
