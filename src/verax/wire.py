"""Documents: a dataclass and its JSON form, by type. The one place that knows what the formats are called.

A field is written under its name, unless it is declared `unwritten`, or `if_given` and empty. Reading is strict: what
is not of its type, not finite, too deep, too long, unknown, or inconsistent (a dataclass says so in `__post_init__`) is
refused in a sentence that says where it stands.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

from verax.errors import InputError

SCORES, AUDIT, PAYMENTS = "verax.scores/1", "verax.audit/1", "verax.payments/1"
MARKET, ROUND, CURVES = "verax.market/1", "verax.round/1", "verax.curves/1"
COMPARISONS, INDEPENDENCE = "verax.comparisons/1", "verax.independence/1"
SPOTCHECK, ACCURACIES = "verax.spotcheck/1", "verax.accuracies/1"
EXAM, NOTICE, EVALUATION = "verax.exam/1", "verax.notice/1", "verax.eval/1"
_MADE_BY = {
    SCORES: "verax score REPORTS --json",
    AUDIT: "verax audit REPORTS --json",
    COMPARISONS: "verax compare REPORTS --json",
    SPOTCHECK: "verax plan REPORTS --label K -o PLAN.json",
    ACCURACIES: "verax plan REPORTS --truth FILE --json",
    PAYMENTS: "verax pay SCORES.json --budget B --json",
    MARKET: "verax market SUBMISSIONS --json",
    ROUND: "verax round show ROUND --json",
}
MOST_CHARACTERS = 2**30
MOST_DEEP = 64
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
        found: dict[str, Any] = plain(self)
        return found

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
    return json.loads(json.dumps(value, default=_opened), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise InputError(f"{float(name)} is no number that a document can hold; leave it out")


def _opened(value: Any) -> Any:
    """What JSON does not know, one level of it: the writer asks again for what stands inside."""
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        head, always, if_held = _form_of(kind)
        found = head | {name: getattr(value, name) for name in always}
        return found | {name: held for name in if_held if (held := getattr(value, name))} if if_held else found
    if isinstance(value, Mapping):
        return dict(value)
    return value.tolist() if hasattr(value, "tolist") else [*value]


@functools.cache
def _form_of(kind: Any) -> tuple[dict[str, Any], list[str], list[str]]:
    """A dataclass's head, which it keeps inside another one too, and its fields: always written, and if given."""
    name = kind.format if issubclass(kind, Document) else None
    how = {f.name: f.metadata.get("written", True) for f in dataclasses.fields(kind)}
    always, if_held = ([n for n, written in how.items() if written == asked] for asked in (True, "if given"))
    return {} if name is None else {"format": name}, always, if_held


def decoded(kind: type[T], document: Any, what: str = "the document") -> T:
    """A value of this type from plain dicts and lists; `what` it is goes into the refusal."""
    import msgspec  # by whoever reads a document: most of its import is its own

    try:
        found = msgspec.convert(document, kind)
        again = plain(found)
        strange = None if again == document else _difference(document, again)
    except msgspec.ValidationError as error:
        seen = str(error).replace(" - at ", " at ")
        raise InputError(f"{what}: {seen[:1].lower()}{seen[1:]}; make it again") from None
    except (RecursionError, OverflowError):
        raise InputError(f"{what} is nested too deeply, or has a number too large; make it again") from None
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
        strange, known = [], [(f"{path}[{i}]", *both) for i, both in enumerate(zip(given, understood, strict=True))]
    else:
        return None if given == understood else f"something unknown at `{path}`"
    places = (_difference(held, mine, where) for where, held, mine in known if held != mine)
    return next((found for found in (*strange, *places) if found is not None), None)


def text_of(value: Any) -> str:
    """A document, or anything `plain` takes, as JSON text.

    >>> text_of({"a": 1})
    '{\\n "a": 1\\n}\\n'
    """
    try:
        return json.dumps(value, default=_opened, indent=1, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(plain(value), indent=1) + "\n"  # which names what is not finite, and refuses it


# the one text that is hashed: ASCII, keys in order, no blanks
canonical = functools.partial(
    json.dumps, default=_opened, ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False
)


def parsed(text: str | bytes, source: str = "the text") -> Any:
    """JSON text as plain dicts and lists.

    >>> parsed("[1, NaN]", "file.json")
    Traceback (most recent call last):
    verax.errors.InputError: file.json: not JSON (invalid character (byte 4)); make it again
    """
    import msgspec

    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{source}: longer than {MOST_CHARACTERS:,} characters; give a document that verax wrote")
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise InputError(f"{source}: not JSON ({reason}); make it again") from None
    except RecursionError:
        raise InputError(f"{source}: nested too deeply; give a document that verax wrote") from None
    level, depth = [found], 0
    while level := [each for each in level if type(each) in _NESTED]:
        depth += 1
        if depth > MOST_DEEP:
            raise InputError(f"{source}: nested more than {MOST_DEEP} deep; give a document that verax wrote")
        level = [inner for each in level for inner in (each.values() if type(each) is dict else each)]
    return found
