"""What models said of a round's hidden inputs: each is run once, at settlement, and its answers are its report.

The record holds the reports, so that anybody can compute the payments again; the models, which only their agents and
the operator have, are run again by whoever is given model and inputs.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from verax import wire
from verax.errors import ConflictError, InputError, ModelError
from verax.labels import Array
from verax.models.asked import digest_of_inputs
from verax.models.jail import walls
from verax.models.prediction import MODEL_TYPES, checked_model, predict, refuse_if_none_can_run
from verax.spec import Spec
from verax.transcript import Content, content_of, nonce_of, nothing_said, reports_of


@dataclass(frozen=True)
class Answer(wire.Document):
    """What one model says, as the report that is scored; or why it says nothing."""

    agent: str
    commitment: str
    content: dict[str, Any] | None = wire.if_given(None)
    problem: str | None = wire.if_given(None)


@dataclass(frozen=True)
class Answers(wire.Document):
    """What a round's models say, behind which walls they were run, and by which onnxruntime.

    >>> said = Answers((Answer("ann", "c0", {"labels": [0, 1]}), Answer("bob", "c1", problem="it crashes")))
    >>> said.problems, said.notes
    ({'bob': 'it crashes'}, ("'bob' says nothing and is paid nothing: it crashes",))
    """

    answers: tuple[Answer, ...]
    walls: tuple[str, ...] = ()
    jail: str = "strong"
    runtime: str = ""

    @classmethod
    def recorded(cls, document: Mapping[str, Any]) -> Answers:
        """The answers of a record, which says besides who signed it."""
        return cls.from_json({name: document[name] for name in cls.__dataclass_fields__ if name in document})

    @property
    def problems(self) -> dict[str, str]:
        """Whose models said nothing, and why."""
        return {said.agent: said.problem for said in self.answers if said.problem is not None}

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to say of models that said nothing."""
        return tuple(f"{agent!r} says nothing and is paid nothing: {why}" for agent, why in self.problems.items())

    def content(self, spec: Spec, agent: str, bound: str) -> Content | None:
        """The report that was recorded for a submission; None where there is none that could be."""
        said = next((a for a in self.answers if (a.agent, a.commitment) == (agent, bound)), None)
        if said is None or (said.content is None) == (said.problem is None):
            return None
        try:
            reports_of(spec, [(agent, content := said.content or nothing_said(spec))])
        except (InputError, KeyError, TypeError, ValueError):
            return None
        return content


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
    said = tuple(Answer(agent, bound, *_said(spec, content, inputs, jail)) for agent, bound, content in models)
    return Answers(said, walls().walls, jail, metadata.version("onnxruntime"))


def _said(
    spec: Spec, content: Content | None, inputs: Mapping[str, Array], jail: str
) -> tuple[dict[str, Any] | None, str | None]:
    try:
        return report_of(spec, _model_in(content), inputs, jail), None
    except InputError as error:
        return None, str(error)


def _model_in(content: Content | None) -> bytes:
    try:
        return base64.b64decode((content or {})["onnx"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise ModelError("what was handed in cannot be opened, or is no model") from None


def report_of(spec: Spec, model: bytes, inputs: Mapping[str, Array], jail: str) -> dict[str, Any]:
    """What a model says, as the report that it stands for; rows of numbers only where the round's rule needs them."""
    assert spec.asks is not None
    found = predict(model, inputs, spec.classes, tasks=spec.tasks, limits=spec.asks.limits, jail=jail)
    if spec.chosen.needs_rows and found.probabilities is None:
        raise ModelError(f"the rule {spec.rule} needs probabilities and it gives none; end it with a softmax")
    return content_of(found if spec.chosen.needs_rows else replace(found, probabilities=None), spec)


def is_said_again(spec: Spec, answers: Answers, agent: str, model: Any, inputs: Mapping[str, Array], jail: str) -> bool:
    """Whether a model, run again, gives the answer that was recorded for its agent."""
    recorded = next((said for said in answers.answers if said.agent == agent), None)
    if recorded is None:
        raise InputError(f"agent {agent!r} has no submission in round {spec.round!r}")
    refuse_if_none_can_run(jail)
    return (recorded.content, recorded.problem) == _said(spec, content_of_model(model, spec), inputs, jail)
