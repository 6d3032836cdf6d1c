"""lm-evaluation-harness: `<model>/samples_<task>_<date>.jsonl`, one document a line.

The folder is the agent. Of several choices the likeliest is the label; of text it is `filtered_resps[0]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from verax.errors import InputError
from verax.logs.answer import folded, label_of
from verax.logs.run import UNREADABLE, Run, lines_of

TOOL = "lm-evaluation-harness"
_NAME = re.compile(r"samples_(?P<task>.+?)(?:_(?P<date>\d{4}-\d\d-\d\dT[\d:.+-]+))?\.jsonl(?:\.gz)?")


class _Sample(msgspec.Struct, gc=False):
    doc_id: int | str
    filtered_resps: list[Any]
    target: Any = None
    filter: str = "none"
    doc_hash: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"null")
    acc: Any = None
    exact_match: Any = None


def knows(path: Path, start: bytes) -> bool:
    """Whether a file is one of these, by its name."""
    return _NAME.fullmatch(path.name) is not None


def read(path: Path, *, filter: str | None = None, rows: bool = False) -> Iterator[Run]:
    """The run that a file of samples holds, by one of its filters."""
    named = _NAME.fullmatch(path.name)
    assert named is not None
    samples = lines_of(path, _Sample)
    filters = [*dict.fromkeys(sample.filter for sample in samples)]
    chosen = filters[0] if filter not in filters and filters else filter
    kept = [sample for sample in samples if sample.filter == chosen]
    tasks = [str(sample.doc_id) for sample in kept]
    if len({*tasks}) < len(tasks):
        twice = next(task for i, task in enumerate(tasks) if task in tasks[:i])
        raise InputError(f"{path}: document {twice} is there twice; two runs were written into one file; run it again")
    how = [f"agent: the folder's name; label: filtered_resps[0] by filter {chosen!r}; truth: target"]
    if len(filters) > 1:
        others = ", ".join(repr(name) for name in filters if name != chosen)
        how.append(f"filter {chosen!r} is read, and not {others}")
    offered: tuple[str, ...] = ()
    if kept and all(_is_choice(sample.filtered_resps) for sample in kept):
        try:
            said, truth, probabilities = _choices(kept, rows)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{path}: a log-probability that is no number ({error}); run the evaluation again"
            ) from None
        offered = tuple(map(str, range(max(len(sample.filtered_resps) for sample in kept))))
        how.append("label: the choice of the greatest log-probability, counted from 0; rows: their softmax")
    else:
        said, truth, probabilities = [_text_of(s) for s in kept], [_truth_text(s.target) for s in kept], ()
        how.append("answers are text")
    yield Run(
        str(path), TOOL, path.parent.name or "model", named["task"], tasks, said, truth, [*map(_verdict, kept)],
        [s.doc_hash[:16] for s in kept if s.doc_hash] if all(s.doc_hash for s in kept) else (), probabilities,
        tuple(how), named["date"] or "", offered,
    )  # fmt: skip


def _is_choice(responses: Sequence[Any]) -> bool:
    """Whether these are log-probabilities, each with whether it is the greedy one."""
    return len(responses) > 1 and all(type(each) is list and len(each) == 2 for each in responses)


def _choices(samples: Sequence[_Sample], rows: bool) -> tuple[list[str | None], list[str | None], Any]:
    """The likeliest choices, the true ones, and if asked the rows."""
    said: list[str | None] = [None] * len(samples)
    truth: list[str | None] = [None] * len(samples)
    probabilities: list[Any] = [None] * len(samples) if rows else []
    by_size: dict[int, list[int]] = {}
    for i, sample in enumerate(samples):
        texts = None
        size = len(sample.filtered_resps)
        target = _index(sample.target, size)
        if target is None:
            texts = _texts_of_choices(sample.arguments)
            target = _place(sample.target, texts)
        truth[i] = None if target is None else str(target)
        by_size.setdefault(size, []).append(i)
    for size, places in by_size.items():
        flat = [float(choice[0]) for i in places for choice in samples[i].filtered_resps]
        given = np.array(flat).reshape(-1, size)
        able = np.isfinite(given).any(1) & ~np.isnan(given).any(1)
        best = np.where(able, np.nan_to_num(given, nan=-np.inf).argmax(1), -1).tolist()
        for i, label in zip(places, best, strict=True):
            said[i] = str(label) if label >= 0 else None
        if rows:
            with np.errstate(invalid="ignore"):
                share = np.exp(given - given.max(1, keepdims=True))
                share /= share.sum(1, keepdims=True)
            for i, row, good in zip(places, share.tolist(), able.tolist(), strict=True):
                probabilities[i] = row if good else None
    return said, truth, probabilities


def _index(target: Any, size: int) -> int | None:
    """A target that counts the choices."""
    if isinstance(target, list) and len(target) == 1:
        target = target[0]
    if isinstance(target, str) and target.strip().isdecimal():
        target = int(target)
    return target if isinstance(target, int) and 0 <= target < size else None


def _texts_of_choices(arguments: msgspec.Raw) -> list[str]:
    """The continuations that were asked for, one a choice."""
    try:
        held = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return []
    each = held.values() if isinstance(held, dict) else held if isinstance(held, list) else ()
    found = [
        one.get("arg_1") if isinstance(one, dict) else one[-1] if isinstance(one, list) and one else "" for one in each
    ]
    return [folded(text) if isinstance(text, str) else "" for text in found]


def _place(target: Any, texts: Sequence[str]) -> int | None:
    text = folded(str(target)) if target is not None else ""
    if text in texts:
        return texts.index(text)
    letter = ord(text) - ord("a") if len(text) == 1 and text.isalpha() and text.isascii() else -1
    return letter if 0 <= letter < len(texts) else None


def _text_of(sample: _Sample) -> str | None:
    first = sample.filtered_resps[0] if sample.filtered_resps else None
    while isinstance(first, list) and first and not _is_choice(first):
        first = first[0]
    if first is None:
        return None
    return label_of(first) if isinstance(first, str) else UNREADABLE


def _truth_text(target: Any) -> str | None:
    while isinstance(target, list) and target:
        target = target[0]
    return (label_of(str(target)) or None) if target is not None and not isinstance(target, dict | list) else None


def _verdict(sample: _Sample) -> float | None:
    for value in (sample.acc, sample.exact_match):
        if isinstance(value, int | float):
            return float(value)
    return None
