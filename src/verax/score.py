"""Reports become Scores: a mechanism is planned for them, and everybody's parts put together.

Which pairs are scored, `mechanisms` decides; what a score is worth in money, `payments`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

import numpy as np
import numpy.typing as npt

from verax import wire
from verax.copies import Groups
from verax.errors import InputError, UnscoredError
from verax.groups import groups_among
from verax.kernels import Engine, Floats, engine
from verax.mechanisms import pairwise as pairs
from verax.mechanisms.soft import Mixtures
from verax.plan import Mechanism, Plan
from verax.public import Public
from verax.reports import Reports, as_reports, some
from verax.rules import DEFAULT, Rule, RuleFunction
from verax.space import said_of_memory
from verax.statistic import Alike, Part, Side, combined, sides_of

__all__ = ["Mechanism", "Prepared", "Score", "Scores", "finished", "pairwise", "prepare", "score", "scored"]


@dataclass(frozen=True)
class Score:
    """One agent's score: a mean per task, its standard error, and what it rests on."""

    agent: str
    score: float | None
    stderr: float | None
    tasks: int
    references: int


class _Columns(Sequence[Score]):
    """Scores of agents who all rest on the same, made where they are looked at."""

    def __init__(self, agents: Sequence[str], parts: Alike) -> None:
        self.agents, self.parts = agents, parts

    @functools.cached_property
    def _all(self) -> tuple[Score, ...]:
        return tuple(starmap(_score_of, zip(self.agents, self.parts, strict=True)))

    def __len__(self) -> int:
        return len(self.agents)

    def __getitem__(self, i: Any) -> Any:
        return self._all[i] if isinstance(i, slice) else _score_of(self.agents[i], self.parts[i])

    def __iter__(self) -> Iterator[Score]:
        return iter(self._all)

    def __eq__(self, other: object) -> bool:
        return self._all == (other._all if isinstance(other, _Columns) else other)

    def __hash__(self) -> int:
        return hash(self._all)

    def __repr__(self) -> str:
        return repr(self._all)


def _score_of(agent: str, part: Part | None) -> Score:
    if part is None:
        return Score(agent, None, None, 0, 0)
    return Score(agent, part.score, None if math.isnan(part.stderr) else part.stderr, part.tasks, part.references)


@dataclass(frozen=True)
class RankInterval(wire.Document):
    """The ranks that an agent may have, 1 the best; all agents' intervals hold together."""

    agent: str
    low: int
    high: int


@dataclass(frozen=True)
class Scores(wire.Document, format=wire.SCORES):
    """Everybody's scores under one mechanism; `copies` were scored as one, each group by its first.

    >>> scores = score(Reports.of(labels=[[0, 1, 0, 1], [0, 1, 1, 1], [0, 0, 0, 0]], agents=["a", "b", "c"]))
    >>> print(scores)
    zero-one against peers (mean), identity sign, 4 tasks
    agent    score  stderr  tasks  references
    a       0.1667  0.0884      4           2
    b       0.1667  0.0884      4           2
    c       0.0000  0.0000      4           2
    >>> scores["a"].references, len(scores), [s.agent for s in scores]
    (2, 3, ['a', 'b', 'c'])
    """

    mechanism: Mechanism
    tasks: int
    classes: tuple[str, ...]
    scores: tuple[Score, ...]
    warnings: tuple[str, ...] = ()
    ranks: tuple[RankInterval, ...] = wire.if_given(())
    copies: Groups = wire.if_given(())

    def check(self) -> None:
        """Refuse what no scoring can have given."""
        if self.tasks < 1 or not self.mechanism.rule:
            raise InputError(f"scores on {self.tasks} tasks by rule {self.mechanism.rule!r}; score the reports again")
        if len({s.agent for s in self.scores}) < len(self.scores):
            raise InputError("an agent has two scores in one document; score the reports again")
        for s in self.scores:
            if not 0 <= s.tasks <= self.tasks or s.references < 0 or (s.stderr or 0.0) < 0:
                raise InputError(
                    f"{s.agent!r} answered {s.tasks} of {self.tasks} tasks beside {s.references} references, "
                    f"stderr {s.stderr}, which cannot be; score the reports again"
                )

        named = [name for group in self.copies for name in group]
        if len({*named}) < len(named) or {*named} - {s.agent for s in self.scores}:
            raise InputError("a group of copies names an agent twice, or one without a score; score the reports again")

    def __getitem__(self, agent: str) -> Score:
        if agent not in self._by_agent:
            raise KeyError(f"no agent {agent!r} was scored; there are {some(self._by_agent)}")
        return self._by_agent[agent]

    def __iter__(self) -> Iterator[Score]:
        return iter(self.scores)

    def __len__(self) -> int:
        return len(self.scores)

    @functools.cached_property
    def _by_agent(self) -> dict[str, Score]:
        return {s.agent: s for s in self.scores}

    def ranked(self) -> list[Score]:
        """Best first; agents without a score last."""
        return sorted(self.scores, key=lambda s: (s.score is None, -(s.score or 0.0), s.agent))

    def to_frame(self, backend: str | None = None) -> Any:
        """The scores as a data frame, a row an agent: of pandas, polars or pyarrow."""
        from verax.frames import to_frame

        names = ("agent", "score", "stderr", "tasks", "references")
        return to_frame({name: [getattr(s, name) for s in self.scores] for name in names}, backend)

    def _repr_html_(self) -> str:
        from verax.frames import html_table

        names = ("agent", "score", "stderr", "tasks", "references")
        return html_table(self.describe(), names, ([getattr(s, name) for name in names] for s in self.ranked()))

    def __str__(self) -> str:
        width = max(5, *(len(s.agent) for s in self.scores))
        lines = [f"{self.describe()}, {self.tasks} tasks", f"{'agent':{width}}    score  stderr  tasks  references"]
        for s in self.ranked():
            number, error = (" " * 5 + "-" if x is None else f"{x:6.4f}" for x in (s.score, s.stderr))
            lines.append(f"{s.agent:{width}}  {number:>7}  {error}  {s.tasks:5}  {s.references:10}")
        return "\n".join(lines)

    def describe(self) -> str:
        """The mechanism in a few words."""
        return self.mechanism.describe()


@said_of_memory("score fewer tasks or agents at a time")
def score(
    reports: Any,
    truth: Any = None,
    public: Any = None,
    *,
    rule: str | Rule | RuleFunction = DEFAULT,
    against: str | None = None,
    over: str | None = None,
    sign: str | npt.ArrayLike | None = None,
    floor: float | None = None,
    seed: str | None = None,
    draws: int | None = None,
    rng: np.random.Generator | None = None,
    copies: Any = None,
    backend: str = "auto",
    threads: int | None = None,
    max_bytes: int | None = None,
) -> Scores:
    """Score every agent, exactly: against truth where it is given, else against the other agents.

    `reports`, `truth` and `public` are what `Reports.of`, `with_truth` and `with_public` take: data frames too.

    `rule` is a name, a Rule, or a function of a Joint. `against`: truth, peers, or hybrid (truth on the tasks
    it covers, peers on the others); chosen by what the truth covers if not given. `over`: mean or
    median over peers, or one peer drawn from `seed`. `sign`, with rule "ca" only: identity, split,
    plugin, or a matrix. `draws` with `rng`: Algorithm 1 as the paper runs it, that many random
    pairings a task, for comparison. `copies`: groups of agents that hand in one report, each scored as one by its first
    and no references of one another; "apart" has them found, else an audit or lists of names. `backend` (auto, numpy,
    numba or torch), `threads` and `max_bytes` (of extra memory) say how it is counted; they never change a score.

    >>> reports = Reports.of(labels=[[0, 1, 0, 1, 1], [0, 1, 1, 1, 0], [1, 1, 0, 0, 1]])
    >>> score(reports, truth=[0, 1, 0, 1, 1])["0"].score
    0.6
    """
    asked = Mechanism.of(rule, against=against, over=over, sign=sign, floor=floor, seed=seed, draws=draws)
    ready = prepare(reports, truth, public, asked, engine(backend, threads, max_bytes), rng, by_entries=True)
    return scored(ready.with_copies(groups_among(ready.reports, copies)))


_FEW = 20  # tasks, below which many agents may be tasks


@dataclass(frozen=True)
class Prepared:
    """Reports with a mechanism planned for them: everything `scored` and an audit need to begin."""

    reports: Reports
    signal: Public
    plan: Plan
    copies: Groups = ()

    def with_copies(self, copies: Groups) -> Prepared:
        """The same with groups of copies, which are scored as one."""
        return replace(self, copies=copies)

    @functools.cached_property
    def apart(self) -> Prepared:
        """The same without the copies: each group's first stands for it."""
        later = {name for group in self.copies for name in group[1:]}
        kept = [i for i, agent in enumerate(self.reports.agents) if agent not in later]
        if self.plan.by_peers and len(kept) < 2 <= len(self.reports.agents):
            raise InputError("all agents are copies of one another, and there is nobody else to score them against")
        return Prepared(self.reports.only(*kept), self.signal, self.plan)

    @functools.cached_property
    def sides(self) -> tuple[Side | None, Side | None]:
        """The tasks that truth scores, and those that peers do."""
        return sides_of(self.reports, self.signal, self.plan.by_truth, self.plan.by_peers)

    @functools.cached_property
    def mixtures(self) -> Mixtures | None:
        """What puts the peers together before they are references; None where each pair is scored by itself."""
        return None if self.sides[1] is None else pairs.mixtures_of(self.sides[1], self.plan)

    def only(self, chosen: npt.NDArray[np.bool_]) -> Prepared:
        """The same mechanism on some of the tasks."""
        return Prepared(self.reports.take(chosen), self.signal.take(chosen), self.plan, self.copies)


def prepare(
    reports: Any,
    truth: Any = None,
    public: Any = None,
    mechanism: Mechanism | None = None,
    counted: Engine | None = None,
    rng: np.random.Generator | None = None,
    by_entries: bool = False,
) -> Prepared:
    """Plan a mechanism for reports, before anything is computed; `by_entries` as in `Mechanism.plan`."""
    reports = as_reports(reports)
    if truth is not None:
        reports = reports.with_truth(truth)
    if public is not None:
        reports = reports.with_public(public)
    reports.scorable()
    signal = Public.of(reports.public, len(reports.tasks))
    kind = signal.kind
    shape = replace(reports.shape, public=kind)
    plan = (mechanism or Mechanism()).plan(
        shape, truth_given=truth is not None, engine=counted, rng=rng, by_entries=by_entries
    )
    if truth is None and not plan.by_truth and reports.truth is not None:
        reports = replace(reports, truth=None)  # labels that came along unasked are not looked at
    return Prepared(reports, signal, plan)


def scored(ready: Prepared) -> Scores:
    """Scores of prepared reports: one batch, all of it at hand; a group of copies has the score of its first."""
    if ready.copies:
        return _shared_with_copies(scored(ready.apart), ready)
    reports = ready.reports
    by_truth, by_peers = ready.sides
    truth = None if by_truth is None else pairs.parts(by_truth, ready.plan)
    mixed = ready.mixtures
    peers = None if by_peers is None else pairs.parts(by_peers, ready.plan) if mixed is None else mixed.parts()
    found, lost = combined(ready.plan, reports.agents, truth, peers)
    answered = reports.answered.tolist()
    notes = (*reports.notes, *lost)
    return finished(reports.agents, reports.classes, len(reports.tasks), ready.plan, found, answered, notes)


def _shared_with_copies(found: Scores, ready: Prepared) -> Scores:
    stands = {name: group[0] for group in ready.copies for name in group}
    scores = tuple(replace(found[stands.get(agent, agent)], agent=agent) for agent in ready.reports.agents)
    said = [f"scored as one, and no references of one another: {some(group)}" for group in ready.copies]
    return replace(found, scores=scores, copies=ready.copies, warnings=(*found.warnings, *said))


def finished(
    agents: Sequence[str],
    classes: tuple[str, ...],
    tasks: int,
    plan: Plan,
    found: Sequence[Part | None],
    answered: Sequence[int],
    notes: Sequence[str],
) -> Scores:
    """Everybody's parts as scores, with what there is to say about them; a part's error may be NaN, not known."""
    lost = (
        [] if isinstance(found, Alike) else [agent for agent, part in zip(agents, found, strict=True) if part is None]
    )
    if len(lost) == len(agents):
        raise UnscoredError(
            "no agent can be scored: none shares two tasks with a reference; "
            "check that the agents answered the same tasks"
        )
    said = [*_abstentions(agents, answered, tasks), *notes]
    if tasks < _FEW < 2 * len(agents) and 2 * tasks < len(agents):
        said.append(f"only {tasks} tasks for {len(agents)} agents: if it is the other way round, turn the table")
    if lost:
        said.append(f"no score for {some(lost)}: fewer than 2 tasks shared with a reference")
    if plan.sign == "plugin":
        said.append("sign plugin is learned on the tasks it scores, which pays noise: study it, never pay by it")
    if plan.mechanism.draws is not None:
        said.append(
            f"scores are sampled with {plan.mechanism.draws} pairing(s) a task, not exact: "
            "compare them, never pay by them"
        )
    scores: Any = _Columns(agents, found) if isinstance(found, Alike) else tuple(map(_score_of, agents, found))
    return Scores(plan.mechanism, tasks, classes, scores, tuple(said))


def _abstentions(agents: Sequence[str], answered: Sequence[int], tasks: int) -> list[str]:
    """Who left tasks out, in a sentence if anybody did."""
    partly = [f"{agent} ({n})" for agent, n in zip(agents, answered, strict=True) if n < tasks]
    more = f" and {len(partly) - 8} more" if len(partly) > 8 else ""
    return [f"scored on the tasks they answered, out of {tasks}: {', '.join(partly[:8])}{more}"] if partly else []


def pairwise(ready: Prepared) -> Floats:
    """What every agent (row) scores beside every other (column): (K, K), NaN where they cannot be paired.

    >>> reports = Reports.of(labels=[[0, 1, 0, 1], [0, 1, 0, 0], [0, 1, 1, 1]])
    >>> pairwise(prepare(reports)).round(3)[0].tolist()
    [nan, 0.333, 0.333]
    """
    side = Side(ready.reports, ready.signal, None)
    matrix = pairs.every_pair(side, ready.plan)
    np.fill_diagonal(matrix, np.nan)
    return matrix
