"""Documents: a dataclass and its JSON form, by type. The one place that knows what the formats are called.

A field is written under its name, unless it is declared `unwritten`, or `if_given` and empty. Reading is strict: what
is not of its type, not finite, too deep, too long, unknown, or inconsistent (a dataclass says so in `__post_init__`) is
refused in a sentence that says where it stands.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from verax.errors import InputError

SCORES, AUDIT, PAYMENTS = "verax.scores/1", "verax.audit/1", "verax.payments/1"
MARKET, ROUND, CURVES = "verax.market/1", "verax.round/1", "verax.curves/1"
COMPARISONS = "verax.comparisons/1"
_MADE_BY = {
    SCORES: "verax score REPORTS --json",
    AUDIT: "verax audit REPORTS --json",
    COMPARISONS: "verax compare REPORTS --json",
    PAYMENTS: "verax pay SCORES.json --budget B --json",
    MARKET: "verax market SUBMISSIONS --json",
    ROUND: "verax round show ROUND",
}
MOST_CHARACTERS = 2**30
MOST_DEEP = 64
_PLAIN = {int, str, bool, type(None)}  # a list of these is JSON as it is, and may be long
_NESTED = {dict, list}
T = TypeVar("T")


def unwritten(default: Any = dataclasses.MISSING, default_factory: Any = dataclasses.MISSING, **how: Any) -> Any:
    """A field that its document does not hold."""
    return dataclasses.field(default=default, default_factory=default_factory, metadata={"written": False}, **how)


def if_given(default: Any) -> Any:
    """A field that its document holds only where it is not empty, so that older documents stay what they are."""
    return dataclasses.field(default=default, metadata={"written": "if given"})


class Document:
    """A dataclass with one JSON form, the same in the command line and wherever it is kept.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Point(Document, format="example/1"):
    ...     x: float
    ...     tags: tuple[str, ...] = ()
    >>> Point(0.5).to_json()
    {'format': 'example/1', 'x': 0.5, 'tags': []}
    >>> Point.from_json({"format": "example/1", "x": 1, "tags": ["a"]})
    Point(x=1.0, tags=('a',))
    >>> Point.from_json({"format": "example/1", "x": "1", "tags": []})
    Traceback (most recent call last):
    verax.errors.InputError: the example/1 document: expected `float`, got `str` at `$.x`; make it again
    """

    format: ClassVar[str | None] = None

    def __init_subclass__(cls, format: str | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if format is not None:
            cls.format = format

    def to_json(self) -> dict[str, Any]:
        """The JSON form, as plain dicts and lists."""
        head = {} if self.format is None else {"format": self.format}
        return {**head, **_fields(self)}

    def check(self) -> None:
        """Refuse what is of the right types and cannot be; asked of whatever is read."""

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """The value that a JSON form stands for, checked."""
        if cls.format is None:
            return decoded(cls, document, f"the {cls.__name__.lower()}")
        remedy = f"make one with: {_MADE_BY[cls.format]}" if cls.format in _MADE_BY else "give one of that format"
        if not isinstance(document, Mapping) or document.get("format") != cls.format:
            raise InputError(f"not a document of format {cls.format}; {remedy}")
        return decoded(cls, document, f"the {cls.format} document")


def plain(value: Any) -> Any:
    """Dataclasses, tuples and NumPy's numbers as JSON has them; what is not finite is refused.

    >>> plain({"a": (1, 2.5)})
    {'a': [1, 2.5]}
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{value} is no number that a document can hold; leave it out")
        return float(value)
    if isinstance(value, list | tuple) and {*map(type, value)} <= _PLAIN:
        return list(value)
    if dataclasses.is_dataclass(value):
        # a document inside another one keeps its format
        return value.to_json() if hasattr(value, "to_json") else _fields(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return [plain(each) for each in value]


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: plain(held) for f in dataclasses.fields(value) if _written(f, held := getattr(value, f.name))}


def _written(field: dataclasses.Field[Any], held: Any) -> bool:
    how = field.metadata.get("written", True)
    return bool(held) if how == "if given" else bool(how)


def decoded(kind: type[T], document: Any, what: str = "the document") -> T:
    """A value of this type from plain dicts and lists; `what` it is goes into the refusal."""
    try:
        found = msgspec.convert(document, kind)
        again = plain(found)
    except msgspec.ValidationError as error:
        seen = str(error).replace(" - at ", " at ")
        raise InputError(f"{what}: {seen[:1].lower()}{seen[1:]}; make it again") from None
    except (RecursionError, OverflowError):
        raise InputError(f"{what} is nested too deeply, or has a number too large; make it again") from None
    strange = _difference(document, again)
    if strange is not None:
        raise InputError(f"{what} has {strange}; make it again")
    if isinstance(found, Document):
        found.check()
    return found


def _difference(given: Any, understood: Any, path: str = "$") -> str | None:
    """Where a document says what was not understood, or leaves out what it must say; empty is as good as nothing."""
    if isinstance(given, Mapping) and isinstance(understood, Mapping):
        strange = [f"something unknown at `{path}.{name}`" for name in given if given[name] and name not in understood]
        strange += [f"object missing required field `{name}` at `{path}`" for name in understood if name not in given]
        known = [(f"{path}.{name}", held, understood[name]) for name, held in given.items() if name in understood]
    elif isinstance(given, list | tuple) and isinstance(understood, list) and len(given) == len(understood):
        strange, pairs = [], zip(given, understood, strict=True)
        known = [(f"{path}[{i}]", held, mine) for i, (held, mine) in enumerate(pairs) if held is not mine]
    else:
        return None if given == understood else f"something unknown at `{path}`"
    places = (_difference(held, mine, where) for where, held, mine in known)
    return next((found for found in (*strange, *places) if found is not None), None)


def text_of(value: Any, **how: Any) -> str:
    """A document, or anything `plain` takes, as JSON text.

    >>> text_of({"a": 1})
    '{\\n "a": 1\\n}\\n'
    """
    document = value.to_json() if isinstance(value, Document) else plain(value)
    return json.dumps(document, allow_nan=False, **({"indent": 1} | how)) + "\n"


# the one text that is hashed: ASCII, keys in order, no blanks
canonical = functools.partial(
    json.dumps, default=plain, ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False
)


def parsed(text: str | bytes, source: str = "the text", most: int = MOST_CHARACTERS) -> Any:
    """JSON text as plain dicts and lists.

    >>> parsed("[1, NaN]", "file.json")
    Traceback (most recent call last):
    verax.errors.InputError: file.json: not JSON (invalid character (byte 4)); make it again
    """
    if len(text) > most:
        raise InputError(f"{source}: longer than {most:,} characters; give a document that verax wrote")
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise InputError(f"{source}: not JSON ({reason}); make it again") from None
    except RecursionError:
        raise InputError(f"{source}: nested too deeply; give a document that verax wrote") from None
    if _deeper(found, MOST_DEEP):
        raise InputError(f"{source}: nested more than {MOST_DEEP} deep; give a document that verax wrote")
    return found


def _deeper(value: Any, most: int) -> bool:
    level = [value] if type(value) in _NESTED else []
    for _ in range(most):
        level = [inner for each in level for inner in (each.values() if type(each) is dict else each)
                 if type(inner) in _NESTED]  # fmt: skip
        if not level:
            return False
    return True
