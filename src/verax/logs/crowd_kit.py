"""crowd-kit: CSV of `task,worker,label`, the truth beside it as `gt.csv`, `<name>-truth.csv` or `<name>_gt.csv`."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from verax.errors import InputError
from verax.labels import clean
from verax.logs.run import Answered, Run, run_of

TOOL = "crowd-kit"
_WANTED = {"task", "worker", "label"}


def knows(path: Path, start: bytes) -> bool:
    """Whether a file is one of these, by its header."""
    header = start.split(b"\n", 1)[0].decode("utf-8-sig", "replace")
    return path.suffix == ".csv" and {name.strip(' "\r') for name in header.split(",")} >= _WANTED


def read(path: Path) -> Iterator[Run]:
    """The runs of a file: one a worker."""
    beside = [path.with_name("gt.csv"), *(path.with_name(f"{path.stem}{end}.csv") for end in ("-truth", "_gt"))]
    found = next((each for each in beside if each.is_file()), None)
    truth = {} if found is None else {row["task"]: clean(row["label"]) for row in _rows(found, {"task", "label"})}
    answers: dict[str, list[Answered]] = {}
    for row in _rows(path, _WANTED):
        task = row["task"].strip()
        answers.setdefault(row["worker"].strip(), []).append(Answered(task, clean(row["label"]), truth.get(task)))
    how = "agent: worker" + (f"; truth: {found.name} beside it" if found else "; no truth beside it")
    name = path.parent.name if path.stem == "crowd_labels" else path.stem
    for agent, said in answers.items():
        yield run_of(said, source=str(path), tool=TOOL, agent=agent, tasks_of=name, how=(how,))


def _rows(path: Path, wanted: set[str]) -> Iterator[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if not wanted <= {*(reader.fieldnames or ())}:
                raise InputError(f"{path}: its columns are {reader.fieldnames}; expected {', '.join(sorted(wanted))}")
            for row in reader:
                if any(row[name] is None for name in wanted):
                    raise InputError(f"{path}, row {reader.line_num}: half a row; write the file again")
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as CSV ({error}); save it in UTF-8") from None
