"""What a jail is for: a model's answers to inputs. This runs behind the walls; `prediction` asks from outside.

A request is an NPZ: the model's bytes, the inputs, and what is asked. An answer is a line, {"problem": null or why
there are no answers}, then a label a task (int64) and, where the model gives rows of numbers, a row a task (float64).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any

import numpy as np

from verax.errors import ModelError
from verax.labels import Array
from verax.models.onnxfile import check_model

_LOUD = 4  # only what is fatal is said
_SEED = 1
# softmax of x, rows of numbers: run once before the walls stand, so that whatever is read late is read
EXAMPLE = (
    b'\x08\x08:O\n\x1c\n\x01x\x12\x01p"\x07Softmax*\x0b\n\x04axis\x18\x01\xa0\x01\x02\x12\x01gZ\x15\n\x01x\x12\x10\n\x0e'
    b"\x08\x01\x12\n\n\x03\x12\x01n\n\x03\x12\x01lb\x15\n\x01p\x12\x10\n\x0e\x08\x01\x12\n\n\x03\x12\x01n\n\x03\x12"
    b"\x01lB\x04\n\x00\x10\r"
)


def request_of(model: bytes, inputs: dict[str, Array], classes: Sequence[str], batch: int) -> dict[str, Array]:
    """A request as the arrays of an NPZ."""
    asked = json.dumps({"inputs": [*inputs], "classes": [*classes], "batch": batch})
    arrays = {f"input{n}": array for n, array in enumerate(inputs.values())}
    return {"asked": np.array(asked), "model": np.frombuffer(model, dtype=np.uint8), **arrays}


def answering(request: IO[bytes]) -> Callable[[], Iterable[bytes]]:
    """The work of a jail: everything is imported and read before the walls stand."""
    import onnxruntime

    onnxruntime.set_seed(_SEED)
    onnxruntime.set_default_logger_severity(_LOUD)
    session_of(EXAMPLE).run(None, {"x": np.zeros((1, 2), dtype=np.float32)})
    with np.load(request, allow_pickle=False) as held:
        arrays = {name: held[name] for name in held.files}
    asked = json.loads(arrays["asked"].item())
    inputs = {name: arrays[f"input{n}"] for n, name in enumerate(asked["inputs"])}
    model = arrays["model"].tobytes()
    return lambda: _answer_in_bytes(model, inputs, asked["classes"], asked["batch"])


def _answer_in_bytes(model: bytes, inputs: dict[str, Array], classes: list[str], batch: int) -> Iterable[bytes]:
    try:
        labels, rows = answers(model, inputs, classes, batch)
    except Exception as error:  # whatever it is, it is the model's, and the agent is told
        return [json.dumps({"problem": str(error)[:2000] or type(error).__name__}).encode() + b"\n"]
    head = json.dumps({"problem": None}).encode() + b"\n"
    return [head, labels.tobytes(), *([] if rows is None else [rows.tobytes()])]


def session_of(model: bytes) -> Any:
    """A model ready to run: on the processor, one thread, memory taken when it is needed."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = _LOUD
    options.add_session_config_entry("session.load_model_format", "ONNX")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def answers(model: bytes, inputs: dict[str, Array], classes: list[str], batch: int) -> tuple[Array, Array | None]:
    """Labels (N,) as places among the classes, -1 an abstention, and rows (N, L) of numbers if the model gives any."""
    check_model(model)
    session = session_of(model)
    feeds = _feeds(session.get_inputs(), inputs)
    label, row = _outputs(session.get_outputs())
    wanted = [name for name in (label, row) if name is not None]
    total = len(next(iter(inputs.values())))
    step = _rows_at_a_time(session.get_inputs(), batch)
    parts: dict[str, list[Array]] = {name: [] for name in wanted}
    for start in range(0, total, step.size):
        taken = {name: step.padded(array[start : start + step.size]) for name, array in feeds.items()}
        count = min(step.size, total - start)
        for name, value in zip(wanted, session.run(wanted, taken), strict=True):
            width = 1 if name == label else len(classes)
            parts[name].append(_shaped(name, value, step.asked or count, width)[:count])
    rows = None if row is None else np.concatenate(parts[row]).astype(np.float64)
    if rows is not None and not np.isfinite(rows).all():
        raise ModelError(f"its output {row!r} has numbers that are not finite")
    if label is not None:
        return _places(label, np.concatenate(parts[label])[:, 0], classes), rows
    assert rows is not None
    return rows.argmax(1).astype(np.int64), rows


class _Step:
    """How many rows are given at a time; some models were made for one number of rows only."""

    def __init__(self, asked: int | None, batch: int) -> None:
        self.asked, self.size = asked, asked or batch

    def padded(self, rows: Array) -> Array:
        """The rows, the last one repeated up to the number that the model was made for."""
        lacks = 0 if self.asked is None else self.asked - len(rows)
        return np.concatenate([rows, rows[-1:].repeat(lacks, axis=0)]) if lacks else rows


def _rows_at_a_time(asked: Sequence[Any], batch: int) -> _Step:
    fixed = {value.shape[0] for value in asked if value.shape and isinstance(value.shape[0], int)}
    if len(fixed) > 1 or any(count < 1 for count in fixed):
        raise ModelError(f"its inputs have {sorted(fixed)} rows; give each the same number, or any")
    return _Step(fixed.pop() if fixed else None, batch)


def _feeds(asked: Sequence[Any], inputs: dict[str, Array]) -> dict[str, Array]:
    """The inputs under the names and in the types that the model asks for; the only one is that, whatever its name."""
    given = {asked[0].name: next(iter(inputs.values()))} if len(asked) == len(inputs) == 1 else inputs
    names = [value.name for value in asked]
    if strange := [name for name in names if name not in given]:
        raise ModelError(f"it asks for the input {strange[0]!r}; there is {', '.join(map(repr, given))}")
    return {value.name: _typed(value.name, given[value.name], value.type) for value in asked}


_TYPES: dict[str, tuple[Any, str]] = {  # of a tensor: NumPy's, and which kinds of arrays can be given for it
    "float": (np.float32, "fiub"), "double": (np.float64, "fiub"), "float16": (np.float16, "fiub"),
    "bool": (np.bool_, "b"), "string": (np.object_, "U"),
    **{f"{sign}int{bits}": (np.dtype(f"{sign}int{bits}"), "iub") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip


def _typed(name: str, array: Array, asked: str) -> Array:
    kind, takes = _TYPES.get(asked.removeprefix("tensor(").removesuffix(")"), (None, ""))
    if kind is None or array.dtype.kind not in takes:
        raise ModelError(f"it asks for {asked} as the input {name!r}; that is {array.dtype}")
    typed = array.astype(kind)
    if "f" not in takes and typed.dtype.kind in "iu" and not np.array_equal(typed, array):
        raise ModelError(f"it asks for {asked} as the input {name!r}; that has numbers which are too large for it")
    return typed


def _outputs(found: Sequence[Any]) -> tuple[str | None, str | None]:
    """Which output is the labels and which the rows of numbers: there is one of its type, or it is called so."""
    kinds = {value.name: value.type.removeprefix("tensor(").removesuffix(")") for value in found}
    fractions = [name for name, kind in kinds.items() if kind in ("float", "double", "float16")]
    whole = [name for name, kind in kinds.items() if kind in _TYPES and name not in fractions]
    label = _chosen(whole, ("label", "labels", "output_label"))
    row = _chosen(fractions, ("probabilities", "output_probability"))
    if label is None and row is None:
        raise ModelError("it has no output that is labels, or a row of numbers for each task")
    return label, row


def _chosen(names: list[str], known: Sequence[str]) -> str | None:
    named = [name for name in names if name in known]
    if len(names) > 1 and len(named) != 1:
        raise ModelError(f"its outputs {', '.join(map(repr, names))} could each be meant; call one {known[0]!r}")
    found = named or names
    return found[0] if found else None


def _shaped(name: str, value: Any, count: int, width: int) -> Array:
    """An output as (count, width)."""
    array = np.asarray(value)
    if array.shape == (count,) and width == 1:
        return array[:, None]
    if array.shape != (count, width):
        wanted = f"[{count}]" if width == 1 else f"[{count}, {width}]"
        raise ModelError(f"its output {name!r} has the shape {[*array.shape]}, not {wanted}")
    return array


def _places(name: str, labels: Array, classes: list[str]) -> Array:
    """Labels as places among the classes: texts and, where all classes are numbers, numbers are names; else places."""
    numbered = all(c.lstrip("-").isdigit() for c in classes)
    if labels.dtype.kind in "OUS" or numbered:
        place = {c: n for n, c in enumerate(classes)}
        said = [str(label) for label in labels.tolist()]
        if strange := [label for label in said if label not in place]:
            raise ModelError(f"its output {name!r} has {strange[0]!r}, which is no class")
        return np.array([place[label] for label in said], dtype=np.int64)
    found: Array = labels.astype(np.int64)
    if found.size and not (found.min() >= -1 and found.max() < len(classes)):
        raise ModelError(f"its output {name!r} has numbers other than 0 to {len(classes) - 1}, and -1 for no answer")
    return found
