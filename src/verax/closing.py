"""What closes a market: the truth, a hypothesis of a survey, or each on its own tasks; and how one of many is drawn."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from verax.errors import InputError, OptionError
from verax.plan import Mechanism
from verax.reports import Reports, some
from verax.rules import Rule, names_of
from verax.score import Score, prepare, scored


@dataclass(frozen=True)
class Survey:
    """How a survey closed a market: whose hypothesis was drawn, from how many, and what the surveyed score.

    `excluded` from the draw are those who hold a market position; if they were kept, `bound` is Theorem 10's.

    >>> Survey("cy", "00ff", 3, ("bob",), (), None).drawn
    'cy'
    """

    drawn: str
    seed: str | None
    agents: int
    excluded: tuple[str, ...]
    scores: tuple[Score, ...]
    bound: float | None


def check_closing(
    truth: object, survey: Reports | None, seed: str | None, keep_both: bool, hybrid: bool, rule: Rule
) -> None:
    if hybrid and (truth is None or survey is None):
        missing = "no truth" if truth is None else "no survey"
        raise OptionError(f"hybrid= closes by truth and survey, and there is {missing}; give it, or leave hybrid= out")
    if not hybrid and (truth is None) == (survey is None):
        seen = "neither truth nor a survey" if truth is None else "both truth and a survey"
        raise OptionError(f"{seen} to close the market by; give one of them")
    if survey is None and (seed is not None or keep_both):
        raise OptionError("a seed and keeping both are for surveys, and the truth closes this; leave them out")
    if survey is not None and rule.truth_only:
        able = names_of(lambda r: r.penalised and r.population is None)
        raise OptionError(f"rule {rule.name} needs the truth; close by it, or use {able}")
    if survey is not None and len(survey.agents) > 1 and seed is None:
        raise OptionError(f"one of {len(survey.agents)} surveys is to be drawn; give a seed of hexadecimal digits")


def draw_survey(
    survey: Reports, reports: Reports, owners: Sequence[str], seed: str | None, keep_both: bool, asked: Mechanism
) -> Survey:
    """Draws what closes the market; all that could speak against one survey is looked at before, for every one."""
    _check_survey(survey, reports, matrix=asked.matrix is not None)
    excluded = () if keep_both else tuple(sorted({*owners} & {*survey.agents}))
    able = sorted({*survey.agents} - {*excluded})
    if not able:
        raise InputError(
            f"everybody in the survey also holds a market position ({some(excluded)}), so nobody is left to close it; "
            "survey others, or keep both"
        )
    scores = tuple(Score(agent, None, None, 0, 0) for agent in survey.agents)
    if len(survey.agents) > 1:
        try:
            scores = scored(prepare(survey, None, None, asked)).scores
        except (InputError, OptionError) as error:
            raise type(error)(f"the survey: {error}") from None
    drawn = able[0 if seed is None else draw(seed, len(able))]
    return Survey(drawn, seed, len(survey.agents), excluded, scores, None)


def draw(seed: str, below: int) -> int:
    """An integer from 0 to `below` - 1, each equally likely, the same on every machine.

    SHA-256 of the seed's bytes and an eight-byte counter, as a number, modulo `below`; the few numbers that
    would make the first remainders likelier are passed over, and the counter goes up.

    >>> [draw(f"{n:02x}", 10) for n in range(8)]
    [7, 1, 5, 9, 9, 7, 2, 8]
    """
    if not isinstance(seed, str) or not re.fullmatch("([0-9a-fA-F]{2})+", seed):
        raise OptionError(f"the seed is {seed!r}; give hexadecimal digits, two a byte, such as 00c0ffee")
    fair = 2**256 - 2**256 % below
    digests = (hashlib.sha256(bytes.fromhex(seed) + n.to_bytes(8, "big")).hexdigest() for n in count())
    return next(number for digest in digests if (number := int(digest, 16)) < fair) % below


def _check_survey(survey: Reports, reports: Reports, *, matrix: bool) -> None:
    tasks = set(reports.tasks)
    shared = (survey.labels[:, [task in tasks for task in survey.tasks]] >= 0).sum(1)
    if not survey.agents or shared.min() < 2:
        who = f"{survey.agents[shared.argmin()]!r} answers {shared.min()}" if survey.agents else "has no agent for any"
        raise InputError(
            f"the survey: {who} of the market's tasks (such as {reports.tasks[0]!r}); two are needed: "
            "check the task names, or leave it out"
        )
    strange = {*survey.classes} - {*reports.classes}
    if (strange and reports.classes_given) or (matrix and survey.classes != reports.classes):
        raise InputError(
            f"the survey's classes are {some(survey.classes)}, the market's {some(reports.classes)}; give the same"
        )


def _labels_of(reports: Reports, agent: str) -> dict[str, str]:
    row = zip(reports.tasks, reports.labels[reports.agents.index(agent)].tolist(), strict=True)
    return {task: reports.classes[label] for task, label in row if label >= 0}


def parts_to_close(
    reports: Reports, truth: npt.ArrayLike | Mapping[str, str] | None, survey: Reports | None, closing: Survey | None
) -> list[Reports]:
    """The reports beside what closes the market, on the tasks that it answers: truth, survey, or each on its own."""
    known = [] if truth is None else [(reports.with_truth(truth, "the truth"), "the truth")]
    if survey is not None and closing is not None:
        source = f"survey {closing.drawn!r}"
        known.append((reports.with_truth(_labels_of(survey, closing.drawn), source), source))
    taken = np.zeros(len(reports.tasks), dtype=bool)
    parts, counts = [], []
    for beside, source in known:
        assert beside.truth is not None
        own = (beside.truth >= 0) & ~taken
        taken |= own
        counts.append(f"{source} covers {own.sum()} of {len(own)} tasks")
        parts += [beside.take(own)] if own.sum() >= 2 else []
    if not parts:
        raise InputError(f"{' and '.join(counts)}; closing a market needs at least two")
    return parts


def with_all_answers(closed: Reports, rule: Rule) -> Reports:
    """The same reports; where a rule only loses, a task left out would be the best there is."""
    if rule.loses_only and (closed.labels < 0).any():
        step, task = np.argwhere(closed.labels < 0)[0]
        raise InputError(
            f"step {closed.agents[step]} leaves out task {closed.tasks[task]!r}, and rule {rule.name}, never above 0, "
            "would pay for that; answer every task, or use another rule"
        )
    return closed
