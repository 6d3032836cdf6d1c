"""What may be in an ONNX file, read from its bytes without loading it: a stranger's file is data until it is known.

Refused: what is no ONNX model, weights in other files (they would be read from the operator's disk), operators of other
domains than ONNX's own (they are somebody's code), functions, and operators that draw at random.
The format is protobuf: a message is a row of fields, each a key, number << 3 | kind, and a value of that kind.
"""

from __future__ import annotations

from collections.abc import Iterator

from verax.errors import ModelError

DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_MOST_DEEP, _MOST_PARTS = 64, 500_000
_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _SPARSE, _TENSOR, _FUNCTION = (
    "model", "graph", "node", "attribute", "sparse", "tensor", "function"
)  # fmt: skip
# what stands in which field of onnx.proto; other fields hold nothing that is looked for
_INSIDE: dict[str, dict[int, str]] = {
    _MODEL: {7: _GRAPH, 25: _FUNCTION},
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
}
_OPERATOR, _DOMAIN = 4, 7  # of a node
_ELSEWHERE, _PLACE = 13, 14  # of a tensor
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


def check_model(model: bytes) -> None:
    """Refuse what a round cannot run; nothing of it is loaded.

    >>> check_model(b"PK")
    Traceback (most recent call last):
    verax.errors.ModelError: it is no ONNX model (it has no graph); export it again
    """
    try:
        kinds = set(_messages(memoryview(model)))
    except _Malformed as error:
        raise ModelError(f"it is no ONNX model ({error}); export it again") from None
    if _GRAPH not in kinds or model[4:8] == b"ORTM":
        raise ModelError("it is no ONNX model (it has no graph); export it again")


class _Malformed(Exception):  # noqa: N818
    pass


def _messages(model: memoryview) -> Iterator[str]:
    """The kind of every message that is looked into, each checked on the way."""
    waiting, count = [(_MODEL, model, 0)], 0
    while waiting:
        kind, message, depth = waiting.pop()
        if depth > _MOST_DEEP:
            raise _Malformed(f"it is nested more than {_MOST_DEEP} deep")
        yield kind
        if kind == _FUNCTION:
            raise ModelError("it has functions of its own; inline them (onnx.inliner.inline_local_functions)")
        said: dict[int, bytes] = {}
        for number, value in _fields(message):
            inner = _INSIDE.get(kind, {}).get(number)
            if inner is not None:
                if not isinstance(value, memoryview):
                    raise _Malformed(f"field {number} of a {kind} is no message")
                count += 1
                if count > _MOST_PARTS:
                    raise ModelError(f"it has more than {_MOST_PARTS:,} parts; make it smaller")
                waiting.append((inner, value, depth + 1))
            elif kind == _TENSOR and (number == _ELSEWHERE or (number == _PLACE and value != 0)):
                raise ModelError("its weights are in other files; save it as one file, without external data")
            elif kind == _NODE and number in (_OPERATOR, _DOMAIN) and isinstance(value, memoryview):
                said[number] = bytes(value[:100])
        if kind == _NODE:
            _check_operator(*(said.get(n, b"").decode(errors="replace") for n in (_OPERATOR, _DOMAIN)))


def _check_operator(name: str, domain: str) -> None:
    if domain not in DOMAINS:
        raise ModelError(f"it has the operator {name!r} of {domain!r}; only those of ONNX itself are run")
    if name in RANDOM:
        raise ModelError(f"it draws at random ({name}); an answer must be the same whenever it is asked for")


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """A message's fields: number, and its bytes or its whole number."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if not 0 < number < 2**29:
            raise _Malformed(f"a field has the number {number}")
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind not in (_EIGHT, _BYTES, _FOUR):
            raise _Malformed(f"a field is of the unknown kind {kind}")
        size, at = _varint(message, at) if kind == _BYTES else (8 if kind == _EIGHT else 4, at)
        if at + size > end:
            raise _Malformed("it ends too early")
        yield number, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A whole number in groups of seven bits, the lowest first; and where it ends."""
    if at < len(message) and message[at] < 128:  # most are small
        return message[at], at + 1
    found = 0
    for n, byte in enumerate(message[at : at + 10]):
        found |= (byte & 127) << 7 * n
        if byte < 128:
            return found, at + n + 1
    raise _Malformed("it ends too early")
