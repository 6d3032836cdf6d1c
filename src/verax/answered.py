"""What models said of a round's hidden inputs: each is run once, at settlement, and its answers are its report.

The record holds the reports, so that anybody can compute the payments again; the models, which only their agents and the
operator have, are run again by whoever is given model and inputs.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import metadata
from typing import Any

from verax.errors import ConflictError, InputError, ModelError
from verax.labels import Array
from verax.models.asked import digest_of_inputs
from verax.models.jail import Jail, checked_jail, walls
from verax.models.predict import checked_model, predict, refuse_if_none_can_run
from verax.transcript import Content, Spec, content_of, nonce_of

Answers = dict[str, Any]


def content_of_model(model: Any, spec: Spec) -> dict[str, Any]:
    """A model in the form that is committed to; refused where it could not be run."""
    assert spec.asks is not None
    if not isinstance(model, bytes | bytearray | memoryview | str | os.PathLike):
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
    spec: Spec, models: Iterable[tuple[str, str, Content | None]], inputs: Mapping[str, Array], jail: Jail = "strong"
) -> Answers:
    """Run every (agent, commitment, content): what each says, or why it says nothing. No model harms another."""
    refuse_if_none_can_run(checked_jail(jail))
    said = [{"agent": agent, "commitment": bound} | _answer(spec, content, inputs, jail) for agent, bound, content in models]
    return {"answers": said, "walls": [*walls().walls], "jail": jail, "runtime": metadata.version("onnxruntime")}


def _answer(spec: Spec, content: Content | None, inputs: Mapping[str, Array], jail: Jail) -> dict[str, Any]:
    try:
        return {"content": report_of(spec, _model_in(content), inputs, jail)}
    except InputError as error:
        return {"problem": str(error)}


def _model_in(content: Content | None) -> bytes:
    try:
        return base64.b64decode((content or {})["onnx"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise ModelError("what was handed in cannot be opened, or is no model") from None


def report_of(spec: Spec, model: bytes, inputs: Mapping[str, Array], jail: Jail) -> Content:
    """What a model says, as the report that it stands for; rows of numbers only where the round's rule needs them."""
    assert spec.asks is not None
    found = predict(model, inputs, spec.classes, tasks=spec.tasks, limits=spec.asks.limits, jail=jail)
    if spec.chosen.needs_rows and found.probabilities is None:
        raise ModelError(f"the rule {spec.rule} needs probabilities and it gives none; end it with a softmax")
    return content_of(found if spec.chosen.needs_rows else replace(found, probabilities=None), spec)


def recorded_answer(answers: Answers, agent: str, bound: str) -> tuple[Content | None, str | None]:
    """What was recorded for a submission: its report, or why there is none."""
    for said in answers["answers"]:
        if said["agent"] == agent and said["commitment"] == bound:
            return said.get("content"), said.get("problem")
    return None, None


def problems_of(answers: Answers) -> dict[str, str]:
    """Whose models said nothing, and why."""
    return {said["agent"]: said["problem"] for said in answers["answers"] if "problem" in said}
