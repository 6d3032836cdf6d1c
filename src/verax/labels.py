"""Names and labels: how they are spelled, in what order they stand, and which spellings mean one thing.

A number is one label however it is written, if all labels are numbers; a word is only ever itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.errors import InputError

Labels = npt.NDArray[np.signedinteger]
Floats = npt.NDArray[np.float64]
Array = npt.NDArray[np.generic]

MOST_CLASSES = 10_000  # that labels may count up to: beyond, a label is a mistake
MISSING = frozenset({"NaN", "nan", "NA", "N/A", "None", "null", "NULL", "-"})
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_AROUND = " .,;:!?'\"`*()[]{}<>"
_DIGITS = Context(prec=200)
_LONGEST_NUMBER = 80


def clean(text: str) -> str:
    """A name or label without blanks around it, its letters composed (NFC).

    >>> clean(" Zoe\\u0308 ") == "Zo\\u00eb"
    True
    """
    text = text.strip()
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def number(text: str) -> str | None:
    """The one spelling of a number; None for other text.

    >>> [number(text) for text in ("4.0", "01", "-0", "+4", "1e1", "0.50", "1_000", "cat")]
    ['4', '1', '0', '4', '10', '0.5', None, None]
    """
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        return None
    value = Decimal(text)
    return str(int(value)) if value == value.to_integral_value() else f"{value.normalize(_DIGITS):f}"


def guarded(text: str) -> str:
    """A text as a CSV holds it: with an apostrophe where a spreadsheet would compute it, or it would be no label.

    >>> [guarded(text) for text in ("=1+1", "-1", "NA", "'=x", "it's")]
    ["'=1+1", '-1', "'NA", "''=x", "it's"]
    """
    return f"'{text}" if _needs_guard(text.lstrip("'")) else text


def unguarded(text: str) -> str:
    """The text that was guarded.

    >>> unguarded("'=1+1"), unguarded("'tis")
    ('=1+1', "'tis")
    """
    return text[1:] if text[:1] == "'" and _needs_guard(text.lstrip("'")) else text


def _needs_guard(text: str) -> bool:
    return text in MISSING or (text.startswith(_FORMULA) and number(text) is None)


def numbers_of(labels: Collection[str]) -> dict[str, str] | None:
    """The one spelling of each label, where all are numbers; None where some are not.

    >>> numbers_of(["4.0", "4"]), numbers_of(["007", "bond"])
    ({'4.0': '4', '4': '4'}, None)
    """
    found = {}
    for label in labels:
        spelled = number(label)
        if spelled is None:
            return None
        found[label] = spelled
    return found or None


def class_index(labels: Iterable[str], classes: Sequence[str]) -> dict[str, int]:
    """Which class each label is, where it is one: by its spelling, or as a number where all classes are numbers.

    >>> class_index(["1.0", "x"], ["0", "1"]), class_index(["1.0"], ["1", "01"])
    ({'1.0': 1}, {})
    """
    index = {name: i for i, name in enumerate(classes)}
    spelled = numbers_of(classes) or {}
    if len({*spelled.values()}) < len(classes):
        spelled = {}
    by_number = {spelled[name]: i for name, i in index.items() if name in spelled}
    found = {label: index.get(label, by_number.get(number(label) or "") if by_number else None) for label in labels}
    return {label: place for label, place in found.items() if place is not None}


def class_order(classes: Iterable[str]) -> tuple[str, ...]:
    """Numeric order if all are integers, else sorted."""
    try:
        return tuple(sorted(classes, key=lambda c: (int(c), c)))
    except ValueError:
        return tuple(sorted(classes))


def checked_names(given: Iterable[object] | None, count: int, what: str, source: str) -> tuple[str, ...]:
    """One name each, composed, not empty, all different; 0, 1, ... where none are given."""
    if given is None:
        return tuple(map(str, range(count)))
    names = tuple(map(str, given.tolist() if isinstance(given, np.ndarray) else given))
    if not "".join(names).isascii():
        names = tuple(unicodedata.normalize("NFC", name) for name in names)
    if len(names) != count:
        raise InputError(f"{source}: {len(names)} {what} names for {count}; give one name each")
    if len(set(names)) < count:
        twice = Counter(names).most_common(1)[0][0]
        raise InputError(f"{source}: {what} {twice!r} appears twice; names must differ")
    if all(names) and (*map(str.strip, names),) == names and (what == "class" or "".join(names).isprintable()):
        return names
    for name in names:
        # labels are only ever shown quoted, so a line break in one does no harm
        if not name or name != name.strip() or not (what == "class" or name.isprintable()):
            raise InputError(
                f"{source}: {what} name {name!r} is empty, or has blanks around it or unprintable characters; rename it"
            )
    return names


def alike_note(what: str, names: Sequence[str]) -> list[str]:
    """A word on names that only capitals, marks around them, or what cannot be seen tell apart.

    >>> alike_note("labels", ["Cat", "cat.", "dog"])
    ["labels 'Cat', 'cat.' differ in capitals or marks only and stay apart: write them alike if they are one"]
    """
    if "".join(names).isascii() and len({name.strip(_AROUND).casefold() for name in names}) == len(names):
        return []
    bare = {name: name if number(name) else _seen(name) or name for name in names}
    count = Counter(bare.values())
    alike = [name for name in bare if count[bare[name]] > 1]
    told = "differ in capitals or marks only and stay apart: write them alike if they are one"
    return [f"{what} {some(alike)} {told}"] if alike else []


def _seen(name: str) -> str:
    text = name if name.isascii() else unicodedata.normalize("NFKC", name)
    return "".join(filter(str.isprintable, " ".join(text.split()))).strip(_AROUND).casefold()


def spelling_note(changed: Mapping[str, str], where: str) -> list[str]:
    """A word on labels that are read as others.

    >>> spelling_note({"4.0": "4"}, "the truth: ")
    ["the truth: '4.0' is read as 4"]
    """
    shown = ", ".join(f"{label!r} is read as {text}" for label, text in sorted(changed.items())[:3])
    return [f"{where}{shown}{' and so on' if len(changed) > 3 else ''}"] if changed else []


def some(names: Iterable[object], most: int = 8) -> str:
    """A few of them, quoted, and how many more there are."""
    shown = list(names)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(repr(n) for n in shown[:most]) + more


def narrow(labels: npt.NDArray[Any], classes: int) -> Labels:
    """The smallest signed integers that hold the labels: memory is what bounds large rounds."""
    return labels.astype(label_type(classes))


def label_type(classes: int) -> type[np.signedinteger[Any]]:
    """The smallest signed integers that count so many classes."""
    return next(t for t in (np.int8, np.int16, np.int32, np.int64) if classes <= np.iinfo(t).max)
