"""Every Eval Ever: `*_samples.jsonl`, one instance a line, by its schema 0.3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from verax.logs.answer import folded, label_of
from verax.logs.run import Answered, Run, check_version, lines_of, run_of

TOOL = "Every Eval Ever"


class _Input(msgspec.Struct):
    reference: list[str]
    choices: list[str] | None = None


class _Output(msgspec.Struct):
    raw: list[str]


class _Attribution(msgspec.Struct):
    extracted_value: str
    is_terminal: bool


class _Evaluation(msgspec.Struct):
    score: float
    is_correct: bool


class _Instance(msgspec.Struct):
    schema_version: str
    model_id: str
    evaluation_name: str
    sample_id: str
    input: _Input
    answer_attribution: list[_Attribution]
    evaluation: _Evaluation
    output: _Output | None = None
    evaluation_result_id: str | None = None
    sample_hash: str | None = None
    error: str | None = None


def knows(path: Path, start: bytes) -> bool:
    """Whether a file is one of these."""
    return path.name.endswith(".jsonl") and b'"schema_version"' in start and b'"evaluation_id"' in start


def read(path: Path) -> Iterator[Run]:
    """The runs of a file: one a model and evaluation."""
    by_run: dict[tuple[str, str], dict[str | None, list[_Instance]]] = {}
    for one in lines_of(path, _Instance):
        check_version(path, one.schema_version, "version 0.1 to 0.3", r"0\.[123](\..*)?")
        by_run.setdefault((one.model_id, one.evaluation_name), {}).setdefault(one.evaluation_result_id, []).append(one)
    for (model, name), results in by_run.items():
        first, *others = results
        how = ["agent: model_id; label: the last terminal answer_attribution; truth: input.reference"]
        if others:
            how.append(f"result {first!r} is read, and not {', '.join(map(repr, others))}")
        yield run_of(
            map(_answered, results[first]), source=str(path), tool=TOOL, agent=model, tasks_of=name, how=tuple(how)
        )


def _answered(one: _Instance) -> Answered:
    choices = {folded(text): chr(ord("A") + i) for i, text in enumerate(one.input.choices or ())}
    references = one.input.reference
    truth = (label_of(references[0], choices) or None) if references else None
    mark = (one.sample_hash or "")[:16]
    if one.error:
        return Answered(one.sample_id, None, truth, None, mark)
    terminal = [each.extracted_value for each in one.answer_attribution if each.is_terminal]
    text = terminal[-1] if terminal else one.output.raw[0] if one.output and one.output.raw else None
    said = None if text is None else label_of(text, choices)
    return Answered(one.sample_id, said, truth, float(one.evaluation.is_correct), mark)
