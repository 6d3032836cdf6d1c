"""Rounds as tables and words: what may be known of one now, and what one agent was told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verax.beacon import beacon_time
from verax.money import major_text, scale_of
from verax.notices import Notice
from verax.show.text import Listing, plus_minus

_DIGITS = 12  # of a hash, beside a name


def round_listing(shown: Mapping[str, Any], told: Mapping[str, Notice]) -> Listing:
    """Everybody in a round: score, pay, the entry of what stands, the beginning of its commitment, and why.

    >>> shown = {"round": "r1", "state": "open", "settlement": None, "spec": {"budget": "9.00", "currency": "EUR"},
    ...          "submissions": [{"agent": "ann", "commitment": "5ec2e7" * 9, "entry": 3}]}
    >>> listing = round_listing(shown, {})
    >>> listing.title, listing.rows
    ('r1, open, budget 9.00 EUR', (('ann', '-', '-', '3', '5ec2e75ec2e7', ''),))
    """
    spec, settled = shown["spec"], shown["settlement"] or {}
    currency, amounts = spec["currency"], settled.get("amounts") or {}
    scores = {s["agent"]: s for s in (settled.get("scores") or {}).get("scores", ())}
    entries = {s["agent"]: s for s in shown["submissions"]}

    def row(agent: str) -> tuple[str, ...]:
        score, entry = scores.get(agent, {}), entries.get(agent, {})
        return (
            agent,
            "-" if score.get("score") is None else plus_minus(score["score"], score["stderr"]),
            "-" if agent not in amounts else major_text(amounts[agent], scale_of(currency)),
            str(entry.get("entry", "-")),
            entry.get("commitment", "-")[:_DIGITS],
            _beside_the_score(told[agent].why) if agent in told else "",
        )

    agents = sorted({*entries, *amounts, *told}, key=lambda agent: (-amounts.get(agent, 0), agent))
    paid = f", {major_text(sum(amounts.values()), scale_of(currency))} paid" if settled else ""
    title = f"{shown['round']}, {shown['state']}, budget {spec['budget']} {currency}{paid}"
    columns = ("agent", "score ± stderr", currency, "entry", "commitment", "why")
    return Listing(columns, tuple(map(row, agents)), title)


def _beside_the_score(why: str) -> str:
    """A reason without the score that it begins with, which has a column of its own."""
    first, _, rest = why.partition("; ")
    return rest if first.startswith("score ") else why


def round_words(shown: Mapping[str, Any]) -> list[str]:
    """What the round asks, in a line, and what it is known by.

    >>> spec = {"tasks": ["a", "b"], "classes": ["x", "y"], "rule": "zero-one", "scheme": "clipped"}
    >>> found = {"spec": spec, "digest": "5e" * 32, "root": None, "head": {"count": 3, "hash": "c2" * 32}}
    >>> round_words(found)[0]
    '2 tasks, 2 classes (x, y), rule zero-one, scheme clipped'
    """
    spec, head = shown["spec"], shown["head"]
    classes = ", ".join(spec["classes"][:5]) + (", ..." if len(spec["classes"]) > 5 else "")
    tasks, many = len(spec["tasks"]), len(spec["classes"])
    known = [f"digest {shown['digest']}", *([f"root {shown['root']}"] if shown["root"] else [])]
    asked = f"{tasks:,} tasks, {many} classes ({classes}), rule {spec['rule']}, scheme {spec['scheme']}"
    if exam := spec.get("exam"):
        how = "signed pay out of stakes" if exam["signed"] else f"a gate of {exam['sure']:g} standard errors"
        asked = (
            f"an exam, {many} classes ({classes}): {how}, {exam['full_marks']} full marks, {exam['over']} of examiners"
        )
    return [
        asked,
        *_model_words(shown),
        *_sealing_words(shown),
        *known,
        f"journal of {head['count']:,} entries, head {head['hash']}",
    ]


def _sealing_words(shown: Mapping[str, Any]) -> list[str]:
    """Whose survey closes it, how reports are hidden, what draws come from, and what is waited for.

    >>> asked = {"kind": "survey", "places": 5, "sealing": "commit", "reveal_hours": 24.0, "deposit": "1.00"}
    >>> found = {"spec": asked, "state": "sealed", "revealed": ["ann"], "reveal_until": "2026-01-02T00:00:00+00:00"}
    >>> for line in _sealing_words(found):
    ...     print(line)
    a survey round: closed by one of at most 5 surveyed, lambda 1
    reports are committed to, and shown within 24 hours of the seal, or 1.00 is lost
    shown by ann; others may until 2026-01-02T00:00:00+00:00
    """
    spec, found = shown["spec"], []
    if spec.get("places"):
        steep = f"{spec.get('weight') or 1:g}"
        found.append(f"a {spec['kind']} round: closed by one of at most {spec['places']} surveyed, lambda {steep}")
    if spec.get("sealing"):
        lost = f", or {spec['deposit']} is lost" if spec.get("deposit") else ""
        found.append(f"reports are committed to, and shown within {spec['reveal_hours']:g} hours of the seal{lost}")
    if shown.get("reveal_until") and shown["state"] == "sealed":
        found.append(f"shown by {', '.join(shown['revealed']) or 'nobody'}; others may until {shown['reveal_until']}")
    if number := spec.get("beacon"):
        found.append(f"draws come from beacon {number} of drand, of {beacon_time(number).isoformat()}")
    return found


def _model_words(shown: Mapping[str, Any]) -> list[str]:
    """What models are given and may take, where they are asked for, and what there was to say of them."""
    if not (asks := shown["spec"].get("asks")):
        return []
    given = ", ".join(f"{name} {what['type']}{what['shape']}" for name, what in asks["inputs"].items())
    limits = ", ".join(f"{name} {most:,}" for name, most in asks["limits"].items())
    return [
        f"models in ONNX, given a row a task of {given}",
        f"at most: {limits}",
        *(shown["settlement"] or {}).get("notes", ()),
    ]


def agent_words(agent: str, notices: Sequence[Notice], handed_in: Sequence[Mapping[str, Any]]) -> list[str]:
    """What one agent was told, and what it has handed in.

    >>> print(*agent_words("ann", [Notice("plants", 2, "ann", "dropped: no reply")], []), sep="\\n")
    plants, round 2: ann is paid nothing: dropped: no reply
      nobody has signed it
    """
    found = []
    for notice in notices:
        known = {"name stands for": notice.identity, "model": notice.model}
        found.append(str(notice))
        found += [f"  {what} {digest}" for what, digest in known.items() if digest]
        found.append(f"  {notice.fault() or f'signed by {notice.operator}'}")
    for entry in handed_in:
        found.append(f"entry {entry['entry']} of {entry['at']}: commitment {entry['commitment']}, key {entry['key']}")
    return found
