"""What a round asks of models: what they are given, how much they may take, and which inputs it hides until the end."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from verax import wire
from verax.columns import Reading
from verax.errors import InputError, OptionError
from verax.labels import Array
from verax.models.jail import Limits
from verax.models.prediction import input_arrays
from verax.tables import arrays
from verax.tables.source import Source


@dataclass(frozen=True)
class Given(wire.Document):
    """One input of a model: the type of its numbers, and the shape of what there is for each task."""

    type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Asks(wire.Document):
    """That agents hand in models, not reports, and what these are given: `digest` stands for the inputs themselves.

    >>> Asks.of([[0.0, 1.0], [2.0, 3.0]]).inputs
    {'x': Given(type='float64', shape=(2,))}
    """

    inputs: dict[str, Given]
    limits: Limits = field(default_factory=Limits)
    digest: str = wire.if_given("")
    kind: str = "onnx"

    @classmethod
    def of(cls, inputs: Any, limits: Limits | None = None) -> Self:
        """What is asked of models that are run on these inputs."""
        named = input_arrays(inputs)
        given = {name: Given(str(array.dtype), array.shape[1:]) for name, array in sorted(named.items())}
        return cls(given, limits or Limits(), digest_of_inputs(named))

    @property
    def shown(self) -> Self:
        """What everybody may know: the digest of the inputs would help to guess them."""
        return replace(self, digest="")


def digest_of_inputs(inputs: Mapping[str, Array]) -> str:
    """SHA-256 over names, types, shapes and numbers; the order of names does not matter."""
    found = hashlib.sha256()
    for name, array in sorted(inputs.items()):
        plain = array.astype(array.dtype.newbyteorder("<"), order="C")
        found.update(wire.canonical([name, plain.dtype.str, [*plain.shape]]).encode() + b"\n")
        found.update(plain.tobytes())
    return found.hexdigest()


def read_inputs(given: Any, tasks: Sequence[str]) -> dict[str, Array]:
    """The inputs of a file for these tasks: NPZ of arrays with one row a task, in the order of its `tasks` if there.

    >>> import io, numpy as np
    >>> np.savez(file := io.BytesIO(), x=[[1.0], [2.0]], tasks=["b", "a"])
    >>> read_inputs(file.getvalue(), ["a", "b"])["x"].tolist()
    [[2.0], [1.0]]
    """
    source = Source.of(given, Reading())
    found = arrays.load(source, Reading())
    if not isinstance(found, dict):
        found = {"x": found}
    named = input_arrays({name: array for name, array in found.items() if name != "tasks"})
    count = len(next(iter(named.values())))
    if count != len(tasks):
        raise InputError(f"{source.name}: {count} rows for {len(tasks)} tasks; give one row a task")
    if "tasks" not in found:
        return named
    place = {task: n for n, task in enumerate(arrays.names_in(found, "tasks", source) or ())}
    if {*place} != {*tasks}:
        raise InputError(f"{source.name}: its tasks are not those of the round; give one row for each of them")
    order = [place[task] for task in tasks]
    return {name: array[order] for name, array in named.items()}


def limits_of(text: str | None) -> Limits:
    """Limits as an option writes them.

    >>> limits_of("seconds=5,batch=32").batch
    32
    """
    names = Limits.__dataclass_fields__
    found: dict[str, int] = {}
    for part in (text or "").split(",") if text else ():
        name, _, value = (each.strip() for each in part.partition("="))
        if name not in names or not value.isdigit():
            raise OptionError(f"limits= has {part!r}; write {', '.join(f'{n}=NUMBER' for n in names)}")
        found[name] = int(value)
    return Limits(**found)
