"""Answers as text become labels, by rules that are shown. What they make no label of is an abstention, and counted."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from verax.logs.run import UNREADABLE

RULES = (
    "what stands in the last \\boxed{...}, or else after the last 'answer is', 'answer:' or '####', is the answer",
    "one letter, alone or as (A), A. or A), is that choice, and so is the text of a choice where choices are known",
    "a number loses $, % and commas between thousands; 4, 4.0 and 04 are one",
    "LaTeX loses $, blanks, \\left, \\right, \\text{}; \\dfrac and \\tfrac are \\frac",
    "other text on one line of at most 60 characters counts in small letters, blanks as one, without a last full stop",
    "[invalid], and anything longer, is no label: an abstention",
)
_LONGEST = 60
_CHOICE = re.compile(r"[(\[]?([A-Za-z])[)\]]?[.:]?")
_LED_CHOICE = re.compile(r"[(\[]?([A-Z])[)\].:](?:\s|$)")
_SAID = re.compile(r"(?:answer\s+is|answer\s*:|####)\s*:?\s*\**\s*(.+)", re.IGNORECASE)
_NUMBER = re.compile(r"([-+]?)[$£€]?((?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?)%?")
_LATEX = re.compile(r"\\(?:left|right|,|!|;|\s)|\\text\{([^{}]*)\}|\\mathrm\{([^{}]*)\}|[$\s]")
_NONE = {"", "[invalid]", "none", "null", "n/a", "nan"}


def label_of(text: str, choices: Mapping[str, str] | None = None) -> str:
    r"""The label of a text, '' where it is none; `choices`: which label each text of a choice stands for.

    >>> [label_of(t) for t in ("(b)", "The answer is 1,204.0.", r"so $\boxed{\dfrac{1}{2}}$", "[invalid]")]
    ['B', '1204', '\\frac{1}{2}', '']
    >>> label_of(" Paris", {"rome": "A", "paris": "B"})
    'B'
    """
    text = unicodedata.normalize("NFC", text).strip()
    boxed = _last_boxed(text)
    if boxed is not None:
        text = boxed.strip()
    elif led := _SAID.findall(text):
        text = led[-1].splitlines()[0].strip().rstrip("*").strip()
    if choices:
        found = _among(text, choices)
        if found:
            return found
    return plain_label(text)


def plain_label(text: str) -> str:
    """The label of a text that is nothing but an answer."""
    if text.casefold() in _NONE:
        return UNREADABLE
    if choice := _CHOICE.fullmatch(text):
        return choice[1].upper()
    bare = text[:-1] if text.endswith(".") else text
    if (number := _NUMBER.fullmatch(bare)) and number[2]:
        return _plain_number(number[1], number[2])
    if "\\" in text or "$" in text:
        short = _LATEX.sub(lambda m: m[1] or m[2] or "", text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))
        short = short.rstrip(".")
        number = _NUMBER.fullmatch(short)
        if number and number[2]:
            return _plain_number(number[1], number[2])
        return short if len(short) <= _LONGEST else UNREADABLE
    if "\n" in text or len(text) > _LONGEST:
        return UNREADABLE
    return " ".join(bare.casefold().split())


def _plain_number(sign: str, digits: str) -> str:
    whole, _, part = digits.replace(",", "").partition(".")
    whole, part = whole.lstrip("0") or "0", part.rstrip("0")
    value = f"{whole}.{part}" if part else whole
    return f"-{value}" if sign == "-" and value != "0" else value


def _among(text: str, choices: Mapping[str, str]) -> str:
    """The choice that a text names, by its letter before its words, or by its words alone."""
    known = {*choices.values()}
    named = _CHOICE.fullmatch(text) or _LED_CHOICE.match(text)
    if named and named[1].upper() in known:
        return named[1].upper()
    return choices.get(folded(text), "")


def folded(text: str) -> str:
    """A text as choices are compared by.

    >>> folded("  The  Sun.")
    'the sun'
    """
    return " ".join(text.strip().rstrip(".").casefold().split())


def _last_boxed(text: str) -> str | None:
    """What stands in the last box, its braces balanced."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for i in range(start + 6, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[start + 7 : i]
    return None
