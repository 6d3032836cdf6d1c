"""COPIES: near-duplicates, judged where an agent departs from what everybody else says. Found in `verax.copies`.

Two good agents agree almost everywhere, so overall agreement tells nothing. Where one departs from
the clear plurality of everybody outside the pair, an honest other seldom follows; a copy does.
"""

from __future__ import annotations

import math

from verax.audit.certificate import Certificate
from verax.copies import FEWEST, SHARED, Found, Side, Twin, find_copies
from verax.reports import Reports


def copies(reports: Reports, confidence: float) -> list[Certificate]:
    """COPIES: one certificate an agent; `fails` names the agents it duplicates."""
    if len(reports.agents) < 4:
        why = (
            f"{len(reports.agents)} agents: telling a copy from a good agent takes the plurality of two others at least"
        )
        return [Certificate("COPIES", agent, "not-applicable", None, None, None, why) for agent in reports.agents]
    found = find_copies(reports, confidence)
    return [_certificate(reports, i, found) for i in range(len(reports.agents))]


def _certificate(reports: Reports, i: int, found: Found) -> Certificate:
    """What was found of one agent: its group; else those that say the same; else its nearest."""
    agent, voice = reports.agents[i], int(found.voice[i])
    group = [j for j in found.members(i) if j != i]
    if group:
        names = [reports.agents[j] for j in group]
        side, why = _shared_of(reports, i, group, found)
        why = f"{why}: a near-duplicate of {', '.join(map(repr, names))}; pay the group once"
        return Certificate("COPIES", agent, "fails", None, (side.low, side.high), _witness(agent, names), why)
    if voice in found.same:
        return _same_by_chance(reports, i, found)
    mine = [(t, t.other(voice)) for t in found.twins if voice in (t.sides[0].voice, t.sides[1].voice)]
    if not mine:
        why = "everybody says the same: there is nobody to depart from"
        return Certificate("COPIES", agent, "undecided", None, None, None, why)
    t, j = max(mine, key=lambda x: (not x[0].apart, x[0].closest.share))
    side, own = t.closest, next(s for s in t.sides if s.voice == voice)
    interval = (side.low, side.high)
    if t.apart and own.departures >= FEWEST:
        why = f"no twin: at most {side.share:.2f} of departures from everybody else shared, with {reports.agents[j]!r}"
        return Certificate("COPIES", agent, "holds", None, interval, None, why)
    return Certificate("COPIES", agent, "undecided", None, interval, None, _too_few(reports, t, own, j))


def _shared_of(reports: Reports, i: int, group: list[int], found: Found) -> tuple[Side, str]:
    """The departures that an agent shares most with another of its group."""
    voice = int(found.voice[i])
    same = [j for j in group if found.voice[j] == voice]
    if same:
        side = found.same[voice]
        answered = int((reports.labels[i] >= 0).sum())
        said = f"the same as {reports.agents[same[0]]!r} on all {answered:,} tasks"
        return side, f"{said}, {side.departures} of them departures from everybody else"
    voices = {int(found.voice[j]) for j in group}
    near = [(t, t.other(voice)) for t in found.twins if voice in {s.voice for s in t.sides}]
    t, j = max(((t, j) for t, j in near if j in voices), key=lambda x: x[0].closest.share)
    side = t.closest
    shared = f"{side.share:.2f} of {side.departures} departures from everybody else are shared"
    return side, f"{shared} with {reports.agents[j]!r}"


def _same_by_chance(reports: Reports, i: int, found: Found) -> Certificate:
    """Equal reports that depart so seldom that a good agent might have given the other."""
    side = found.same[int(found.voice[i])]
    other = next(j for j in range(len(found.voice)) if j != i and found.voice[j] == found.voice[i])
    need = _tasks_for(reports, side, SHARED)
    why = (
        f"the same as {reports.agents[other]!r} on every task, but departs from everybody else on "
        f"{side.departures} only, as a good agent might: about {need:,} tasks would decide"
    )
    return Certificate("COPIES", reports.agents[i], "undecided", None, (side.low, side.high), None, why)


def _tasks_for(reports: Reports, side: Side, share: float) -> int:
    """How many tasks would bring the departures that decide, where all are shared."""
    if not side.departures or not side.low:
        return len(reports.tasks) * FEWEST
    needed = side.departures * math.log(side.low) / math.log(share)  # low ** departures is the same whatever they are
    return math.ceil(len(reports.tasks) * max(needed / side.departures, 1.0))


def _witness(agent: str, names: list[str]) -> dict[str, str]:
    """A chain from the agent through its near-duplicates."""
    return dict(zip([agent, *names[:-1]], names, strict=True))


def _too_few(reports: Reports, t: Twin, own: Side, j: int) -> str:
    """What is missing: departures of its own, or of the twin it cannot be told from."""
    tasks = len(reports.tasks)
    side = own if t.apart else max(t.sides, key=lambda s: s.high)
    who = "it" if side is own else repr(reports.agents[j])
    seen = (
        f"{who} departs from everybody else on {side.departures} tasks beside {reports.agents[t.other(side.voice)]!r}"
    )
    if side.departures < FEWEST:
        need = math.ceil(tasks * FEWEST / max(side.departures, 1))
        return f"{seen}, sharing {side.share:.2f}: {FEWEST} are needed, about {need:,} tasks would decide"
    if side.copied:
        return f"{seen}, sharing {side.share:.2f}; but so many agree so closely that they may be the honest ones"
    distance = max(abs(side.share - SHARED), 0.01)
    need = math.ceil(tasks * ((side.high - side.low) / 2 / distance) ** 2)
    return f"{seen}, sharing {side.share:.2f}, too near {SHARED} to call; about {need:,} tasks would decide"
