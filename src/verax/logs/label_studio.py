"""Label Studio: its JSON export, a list of tasks with annotations, and with predictions of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from verax.logs.answer import plain_label
from verax.logs.run import UNREADABLE, Answered, Run, document_of, run_of

TOOL = "Label Studio"


class _Result(msgspec.Struct):
    type: str = ""
    from_name: str = "label"
    value: dict[str, Any] = {}


class _Annotation(msgspec.Struct):
    result: list[_Result] = []
    completed_by: Any = None
    model_version: str | None = None
    was_cancelled: bool = False
    ground_truth: bool = False


class _Task(msgspec.Struct):
    id: int | str
    annotations: list[_Annotation] = []
    predictions: list[_Annotation | int] = []


def knows(path: Path, start: bytes) -> bool:
    """Whether a file is one of these."""
    return path.suffix == ".json" and start.lstrip()[:1] == b"[" and b'"annotations"' in start


def read(path: Path) -> Iterator[Run]:
    """The runs of an export: one a person or model, and control."""
    truth: dict[tuple[str, str], str] = {}
    answers: dict[tuple[str, str], list[Answered]] = {}
    for task in document_of(path, list[_Task]):
        for each in (*task.annotations, *(p for p in task.predictions if isinstance(p, _Annotation))):
            whose = _agent_of(each)
            found = {} if each.was_cancelled else {one.from_name: _said(one) for one in each.result}
            for control, said in found.items():
                if each.ground_truth and said:
                    truth[control, str(task.id)] = said
                else:
                    answers.setdefault((control, whose), []).append(Answered(str(task.id), said, None))
    how = "agent: completed_by, or model_version; label: choices or rating; truth: ground_truth annotations"
    for (control, agent), each_said in answers.items():
        known = [Answered(one.task, one.said, truth.get((control, one.task))) for one in each_said]
        yield run_of(known, source=str(path), tool=TOOL, agent=agent, tasks_of=control, how=(how,))


def _agent_of(each: _Annotation) -> str:
    whose = each.completed_by
    if isinstance(whose, Mapping):
        whose = whose.get("email") or whose.get("username") or whose.get("id")
    return str(whose if whose is not None else each.model_version or "nobody named")


def _said(one: _Result) -> str:
    value = one.value.get(one.type, one.value.get("choices", one.value.get("rating")))
    if isinstance(value, list):
        value = " | ".join(sorted(map(str, value)))
    return plain_label(str(value)) if isinstance(value, str | int | float) else UNREADABLE
