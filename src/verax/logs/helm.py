"""HELM: a run folder with `run_spec.json`, `scenario_state.json` and `per_instance_stats.json`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from verax.errors import InputError
from verax.logs.answer import folded, label_of
from verax.logs.run import UNREADABLE, Answered, Run, document_of, run_of

TOOL = "HELM"
STATE = "scenario_state.json"
_VERDICTS = ("exact_match", "quasi_exact_match")


class _Text(msgspec.Struct):
    text: str = ""


class _Reference(msgspec.Struct):
    output: _Text
    tags: list[str] = []


class _Instance(msgspec.Struct):
    references: list[_Reference] = []
    id: str | None = None
    perturbation: dict[str, Any] | None = None


class _Completion(msgspec.Struct):
    text: str = ""
    logprob: float | None = None


class _Result(msgspec.Struct):
    success: bool = True
    completions: list[_Completion] = []


class _State(msgspec.Struct):
    instance: _Instance
    train_trial_index: int = 0
    output_mapping: dict[str, str] | None = None
    reference_index: int | None = None
    request_mode: str | None = None
    result: _Result | None = None


class _Scenario(msgspec.Struct):
    request_states: list[_State]


class _Adapter(msgspec.Struct):
    model: str = ""
    method: str = ""


class _Spec(msgspec.Struct):
    name: str
    adapter_spec: _Adapter


class _Stat(msgspec.Struct):
    name: dict[str, Any]
    mean: float | None = None


class _Stats(msgspec.Struct):
    instance_id: str
    stats: list[_Stat]
    perturbation: dict[str, Any] | None = None


def knows(path: Path, start: bytes) -> bool:
    """Whether a file is the state of a run."""
    return path.name == STATE


def read(path: Path) -> Iterator[Run]:
    """The run that a folder holds."""
    beside = path.with_name("run_spec.json")
    if not beside.is_file():
        raise InputError(f"{path.parent}: {STATE} without run_spec.json beside it; copy the whole run folder")
    spec = document_of(beside, _Spec)
    scenario = document_of(path, _Scenario)
    verdicts = _verdicts(path.with_name("per_instance_stats.json"))
    states = [state for state in scenario.request_states if state.instance.perturbation is None]
    how = [f"agent: adapter_spec.model; method {spec.adapter_spec.method}; truth: the reference tagged correct"]
    if len(states) < len(scenario.request_states):
        how.append(f"{len(scenario.request_states) - len(states)} perturbed requests are left out")
    if any(state.reference_index is not None for state in states):
        answers = [*_separate(states, verdicts)]
        how.append("label: the reference of the greatest log-probability, less its calibration where there is one")
    else:
        answers = [_joint(state, k, verdicts) for k, state in enumerate(states)]
        how.append("label: the first completion")
    name = ",".join(part for part in re.split(",", spec.name) if not part.startswith(("model=", "model_deployment=")))
    yield run_of(answers, source=str(path), tool=TOOL, agent=spec.adapter_spec.model, tasks_of=name, how=tuple(how))


def _verdicts(path: Path) -> dict[str, float]:
    if not path.is_file():
        return {}
    found = {}
    for one in document_of(path, list[_Stats]):
        if one.perturbation is not None:
            continue
        means = {str(stat.name.get("name")): stat.mean for stat in one.stats if "perturbation" not in stat.name}
        mean = next((means[name] for name in _VERDICTS if means.get(name) is not None), None)
        if mean is not None:
            found[one.instance_id] = mean
    return found


def _task_of(state: _State, k: int) -> str:
    return state.instance.id or str(k)


def _joint(state: _State, k: int, verdicts: Mapping[str, float]) -> Answered:
    """One request, whose completion is the answer: a letter of the mapping, or text."""
    task, choices = _task_of(state, k), {folded(v): key for key, v in (state.output_mapping or {}).items()}
    right = [reference.output.text for reference in state.instance.references if "correct" in reference.tags]
    truth = (choices.get(folded(right[0])) or label_of(right[0], choices) or None) if right else None
    return Answered(task, _completed(state.result, choices), truth, verdicts.get(task))


def _completed(result: _Result | None, choices: Mapping[str, str]) -> str | None:
    if result is None or not result.success:
        return None
    text = result.completions[0].text if result.completions else ""
    label = label_of(text, choices)
    return UNREADABLE if choices and label not in choices.values() else label


def _separate(states: Sequence[_State], verdicts: Mapping[str, float]) -> Iterator[Answered]:
    """One request a reference: the likeliest is the answer."""
    by_task: dict[tuple[str, int], list[_State]] = {}
    for k, state in enumerate(states):
        by_task.setdefault((_task_of(state, k), state.train_trial_index), []).append(state)
    for (task, _), each in by_task.items():
        value: dict[int, float] = {}
        for state in each:
            if state.reference_index is None or state.result is None or not state.result.completions:
                continue
            sign = -1.0 if state.request_mode == "calibration" else 1.0
            log = state.result.completions[0].logprob
            value[state.reference_index] = value.get(state.reference_index, 0.0) + sign * (
                -math.inf if log is None else log
            )
        tags = [reference.tags for reference in each[0].instance.references]
        truth = next((str(i) for i, tag in enumerate(tags) if "correct" in tag), None)
        said = str(min(value, key=lambda i: (-value[i], i))) if value else None
        yield Answered(task, said, truth, verdicts.get(task))
