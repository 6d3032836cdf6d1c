"""What models said of a round's hidden inputs: each is run once, at settlement, and its answers are its report.

The record holds the reports, so that anybody can compute the payments again; the models, which only their agents and
the operator have, are run again by whoever is given model and inputs.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import metadata
from typing import Any

from verax.errors import ConflictError, InputError, ModelError
from verax.labels import Array
from verax.models.asked import digest_of_inputs
from verax.models.jail import walls
from verax.models.prediction import MODEL_TYPES, checked_model, predict, refuse_if_none_can_run
from verax.spec import Spec
from verax.transcript import Content, content_of, nonce_of, nothing_said

Answers = dict[str, Any]


def content_to_take(given: Any, spec: Spec) -> dict[str, Any]:
    """What is handed in, a report or where it is asked for a model, in the form that is committed to."""
    return content_of(given, spec) if spec.asks is None else content_of_model(given, spec)


def content_of_model(model: Any, spec: Spec) -> dict[str, Any]:
    """A model in the form that is committed to; refused where it could not be run."""
    assert spec.asks is not None
    if not isinstance(model, MODEL_TYPES):
        raise InputError(f"round {spec.round!r} asks for models; hand in an .onnx file, or its bytes")
    try:
        found = checked_model(model, spec.asks.limits)
    except ModelError as error:
        raise ModelError(f"the model cannot be handed in: {error}") from None
    return {"onnx": base64.b64encode(found).decode("ascii")}


def refuse_other_inputs(spec: Spec, opened: Mapping[str, Any], secret: str, inputs: Mapping[str, Array]) -> None:
    """Refuse inputs that are not those which the round committed to when it opened."""
    if opened.get("inputs") != nonce_of(secret, spec.round, "inputs", {"digest": digest_of_inputs(inputs)}):
        raise ConflictError(f"these are not the inputs that round {spec.round!r} was opened with; give those")


def answers_of(
    spec: Spec, models: Iterable[tuple[str, str, Content | None]], inputs: Mapping[str, Array], jail: str = "strong"
) -> Answers:
    """Run every (agent, commitment, content): what each says, or why it says nothing. No model harms another."""
    refuse_if_none_can_run(jail)
    said = [
        {"agent": agent, "commitment": bound} | _answer(spec, content, inputs, jail) for agent, bound, content in models
    ]
    return {"answers": said, "walls": [*walls().walls], "jail": jail, "runtime": metadata.version("onnxruntime")}


def _answer(spec: Spec, content: Content | None, inputs: Mapping[str, Array], jail: str) -> dict[str, Any]:
    try:
        return {"content": report_of(spec, _model_in(content), inputs, jail)}
    except InputError as error:
        return {"problem": str(error)}


def _model_in(content: Content | None) -> bytes:
    try:
        return base64.b64decode((content or {})["onnx"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise ModelError("what was handed in cannot be opened, or is no model") from None


def report_of(spec: Spec, model: bytes, inputs: Mapping[str, Array], jail: str) -> Content:
    """What a model says, as the report that it stands for; rows of numbers only where the round's rule needs them."""
    assert spec.asks is not None
    found = predict(model, inputs, spec.classes, tasks=spec.tasks, limits=spec.asks.limits, jail=jail)
    if spec.chosen.needs_rows and found.probabilities is None:
        raise ModelError(f"the rule {spec.rule} needs probabilities and it gives none; end it with a softmax")
    return content_of(found if spec.chosen.needs_rows else replace(found, probabilities=None), spec)


def content_said(spec: Spec, answers: Answers, agent: str, bound: str) -> Content | None:
    """The report that was recorded for a submission; None where nothing was, which cannot be."""
    for said in answers["answers"]:
        if said["agent"] == agent and said["commitment"] == bound:
            found: Content = nothing_said(spec) if "problem" in said else said["content"]
            return found
    return None


def is_said_again(spec: Spec, answers: Answers, agent: str, model: Any, inputs: Mapping[str, Array], jail: str) -> bool:
    """Whether a model, run again, gives the answer that was recorded for its agent."""
    recorded = [said for said in answers["answers"] if said["agent"] == agent]
    if not recorded:
        raise InputError(f"agent {agent!r} has no submission in round {spec.round!r}")
    refuse_if_none_can_run(jail)
    again = _answer(spec, content_of_model(model, spec), inputs, jail)
    return all(recorded[0].get(name) == again.get(name) for name in ("content", "problem"))


def notes_of(answers: Answers) -> list[str]:
    """What there is to say of models that said nothing."""
    return [f"{agent!r} says nothing and is paid nothing: {problem}" for agent, problem in problems_of(answers).items()]


def problems_of(answers: Answers) -> dict[str, str]:
    """Whose models said nothing, and why."""
    return {said["agent"]: said["problem"] for said in answers["answers"] if "problem" in said}
