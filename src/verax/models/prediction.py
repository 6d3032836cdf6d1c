"""A model's report on inputs that it never gets hold of: ONNX in, `Reports` out, by way of a jail."""

from __future__ import annotations

import functools
import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from verax import wire
from verax.errors import ExtraMissing, InputError, ModelError
from verax.labels import Array
from verax.models.answering import EXAMPLE, request_of
from verax.models.jail import Limits, checked_jail, confined, printable, refuse_weak_walls
from verax.models.onnxfile import check_model
from verax.reports import Reports

WORK = "verax.models.answering:answering"

Model = bytes | bytearray | memoryview | str | os.PathLike[str]
MODEL_TYPES = (bytes, bytearray, memoryview, str, os.PathLike)

__all__ = [
    "EXAMPLE",
    "MODEL_TYPES",
    "WORK",
    "Model",
    "bytes_of_model",
    "checked_model",
    "input_arrays",
    "predict",
    "refuse_if_none_can_run",
]


def predict(
    model: Model,
    inputs: Any,
    classes: Sequence[str],
    *,
    tasks: Sequence[str] | None = None,
    agent: str = "it",
    limits: Limits | None = None,
    jail: str = "strong",
) -> Reports:
    """What a stranger's ONNX model says of some inputs, as a report; it runs in a jail and can do nothing else.

    `model` is the bytes of a file or its path; `inputs` an array (tasks, ...), or several by name. Rows of numbers that
    are probabilities are kept; of other rows, such as logits, the largest is the label. ModelError says why a model has
    no answers.

    >>> found = predict(EXAMPLE, [[2.0, 0.0], [0.0, 1.0]], ["cat", "dog"])
    >>> found.labels.tolist(), found.probabilities.round(3).tolist()
    ([[0, 1]], [[[0.881, 0.119], [0.269, 0.731]]])
    >>> predict(b"no model", [[2.0, 0.0]], ["cat", "dog"])
    Traceback (most recent call last):
    verax.errors.ModelError: it is no ONNX model (a field is of the unknown kind 6); export it again
    """
    limits = limits or Limits()
    content = bytes_of_model(model, limits)  # looked into behind the walls
    arrays = input_arrays(inputs)
    refuse_if_none_can_run(jail)
    count = len(next(iter(arrays.values())))
    labels, rows = _answers(content, arrays, count, classes, limits, jail)
    made = functools.partial(Reports.of, agents=[agent], tasks=tasks, classes=classes, source="the model")
    if rows is not None:
        with suppress(InputError):  # numbers, but no probabilities: the labels stand
            return made(labels[None], np.where(np.not_equal(labels, -1)[:, None], rows, np.nan)[None])
    return made(labels[None])


def checked_model(model: Model, limits: Limits) -> bytes:
    """A model's bytes, refused where it could not be run."""
    content = bytes_of_model(model, limits)
    check_model(content)
    return content


def bytes_of_model(model: Model, limits: Limits) -> bytes:
    """A model's bytes, refused where they are too many; a large file is not read."""
    if not isinstance(model, bytes | bytearray | memoryview):
        try:
            size = os.stat(model).st_size
            content = Path(model).read_bytes() if size <= limits.file else b""
        except OSError as error:
            raise InputError(f"{model}: cannot be read ({error.strerror}); name an .onnx file") from None
    else:
        size, content = len(model), bytes(model)
    if size > limits.file:
        raise ModelError(f"it has {size:,} bytes and the most that is taken is {limits.file:,}; make it smaller")
    return content


def input_arrays(inputs: Any) -> dict[str, Array]:
    """Inputs by name, one row a task in each; an array without a name is called x.

    >>> {name: array.shape for name, array in input_arrays([[0.0, 1.0]]).items()}
    {'x': (1, 2)}
    """
    named = inputs if isinstance(inputs, Mapping) else {"x": inputs}
    arrays = {str(name): np.asarray(array) for name, array in named.items()}
    counts = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
    if len(counts) != 1 or not min(counts):
        raise InputError(
            f"the inputs have {sorted(counts)} rows; give arrays with one row a task, the same tasks in each"
        )
    for name, array in arrays.items():
        if array.dtype.kind not in "fiubU":
            raise InputError(f"the input {name!r} is of type {array.dtype}; give numbers or texts")
    return arrays


def refuse_if_none_can_run(jail: str) -> None:
    """Refuse, before any model is looked at, where no model could be run: that is no agent's fault."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise ExtraMissing("Models", "models")
    refuse_weak_walls(checked_jail(jail))


def _answers(
    model: bytes, inputs: Mapping[str, Array], count: int, classes: Sequence[str], limits: Limits, jail: str
) -> tuple[Array, Array | None]:
    """Labels, and rows if there are any; whatever comes out of the jail is checked, for it is a stranger's."""
    sizes = 8 * count, 8 * count * len(classes)
    with tempfile.TemporaryFile() as request:
        np.savez(request, allow_pickle=False, **request_of(model, {**inputs}, classes, limits.batch))
        said = confined(WORK, request, sum(sizes) + 2**14, limits, checked_jail(jail))
    line, _, rest = said.partition(b"\n")
    try:
        head = wire.parsed(line)
        problem = head["problem"]
    except (InputError, KeyError, TypeError):
        raise ModelError("it breaks what it runs in, and says nothing that can be read") from None
    if problem is not None:
        raise ModelError(printable(str(problem)))
    if len(rest) not in (sizes[0], sum(sizes)):
        raise ModelError(f"it answers {len(rest):,} bytes for {count:,} tasks")
    labels = np.frombuffer(rest[: sizes[0]], dtype=np.int64)
    if labels.min() < -1 or labels.max() >= len(classes) or labels.max() < 0:
        raise ModelError("it answers none of the tasks" if labels.max() == -1 else "its labels are no classes")
    rows = np.frombuffer(rest[sizes[0] :], dtype=np.float64).reshape(count, -1) if rest[sizes[0] :] else None
    return labels, rows
