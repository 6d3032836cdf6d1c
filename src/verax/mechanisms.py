"""A mechanism decides which pairs are scored, and against what: Reports -> Scores.

Rule x reference (truth, peers, or both) x where the sign comes from x public signal. What a pair
earns is the rule's business; what a score is worth in money is decided in `payments`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.errors import InputError, OptionError
from verax.joint import Public
from verax.kernels import Engine, Floats, engine
from verax.linear import mean_over_peers
from verax.pairs import Part, Plan, all_pairs, beside, one_peer, pair_values
from verax.reports import Reports, some
from verax.rules import Rule, RuleFunction, check_matrix, resolve

FORMAT = "verax.scores/1"
AGAINST = ("truth", "peers", "hybrid")
OVER = ("mean", "median", "one")
SIGNS = ("identity", "split", "plugin")


@dataclass(frozen=True)
class Mechanism:
    """How scores were made: the names, as they stand in the JSON."""

    rule: str
    against: str
    over: str | None
    sign: str | None
    public: bool
    floor: float | None


@dataclass(frozen=True)
class Score:
    """One agent's score: a mean per task, its standard error, and what it rests on."""

    agent: str
    score: float | None
    stderr: float | None
    tasks: int
    references: int


@dataclass(frozen=True)
class Scores:
    """Everybody's scores under one mechanism.

    >>> scores = score(Reports.of(labels=[[0, 1, 0, 1], [0, 1, 1, 1], [0, 0, 0, 0]], agents=["a", "b", "c"]))
    >>> print(scores)
    zero-one against peers (mean), identity sign, 4 tasks
    agent    score  stderr  tasks  references
    a       0.1667  0.0884      4           2
    b       0.1667  0.0884      4           2
    c       0.0000  0.0000      4           2
    >>> scores["a"].references
    2
    """

    mechanism: Mechanism
    tasks: int
    classes: tuple[str, ...]
    scores: tuple[Score, ...]
    warnings: tuple[str, ...] = ()

    def __getitem__(self, agent: str) -> Score:
        return self._by_agent[agent]

    @functools.cached_property
    def _by_agent(self) -> dict[str, Score]:
        return {s.agent: s for s in self.scores}

    def ranked(self) -> list[Score]:
        """Best first; agents without a score last."""
        return sorted(self.scores, key=lambda s: (s.score is None, -(s.score or 0.0), s.agent))

    def __str__(self) -> str:
        width = max(5, *(len(s.agent) for s in self.scores))
        lines = [f"{self.describe()}, {self.tasks} tasks", f"{'agent':{width}}    score  stderr  tasks  references"]
        for s in self.ranked():
            number, error = (" " * 5 + "-" if x is None else f"{x:6.4f}" for x in (s.score, s.stderr))
            lines.append(f"{s.agent:{width}}  {number:>7}  {error}  {s.tasks:5}  {s.references:10}")
        return "\n".join(lines)

    def describe(self) -> str:
        """The mechanism in a few words."""
        m = self.mechanism
        over = f" ({m.over})" if m.over else ""
        sign = f", {m.sign} sign" if m.sign else ""
        return f"{m.rule} against {m.against}{over}{sign}{', public signal taken out' if m.public else ''}"

    def to_json(self) -> dict[str, Any]:
        """The one JSON form, the same in the command line and wherever scores are stored."""
        return {
            "format": FORMAT,
            "mechanism": asdict(self.mechanism),
            "tasks": self.tasks,
            "classes": list(self.classes),
            "scores": [dict(vars(s)) for s in self.scores],
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_json(cls, document: Any) -> Scores:
        """Scores from their JSON form.

        >>> scores = score(Reports.of(labels=[[0, 1, 0], [0, 1, 1]]))
        >>> Scores.from_json(scores.to_json()) == scores
        True
        """
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError(f"not a document of format {FORMAT}; make one with: verax score REPORTS --json")
        try:
            return cls(
                Mechanism(**document["mechanism"]),
                document["tasks"],
                tuple(document["classes"]),
                tuple(Score(**s) for s in document["scores"]),
                tuple(document["warnings"]),
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"a {FORMAT} document lacks or misnames a field ({error}); make it again") from None


def score(
    reports: Reports,
    truth: npt.ArrayLike | Mapping[str, str] | None = None,
    public: npt.ArrayLike | None = None,
    *,
    rule: str | RuleFunction = "zero-one",
    against: str | None = None,
    over: str | None = None,
    sign: str | npt.ArrayLike | None = None,
    floor: float | None = None,
    seed: str | None = None,
    draws: int | None = None,
    rng: np.random.Generator | None = None,
    backend: str = "auto",
    threads: int | None = None,
    max_bytes: int | None = None,
) -> Scores:
    """Score every agent, exactly: against truth where it is given, else against the other agents.

    `rule` is a name or a function of a Joint. `against`: truth, peers, or hybrid (truth on the tasks
    it covers, peers on the others); chosen by what the truth covers if not given. `over`: mean or
    median over peers, or one peer drawn from `seed`. `sign`, with rule "ca" only: identity, split,
    plugin, or a matrix. `draws` with `rng`: Algorithm 1 as the paper runs it, that many random
    pairings a task, for comparison. `backend` (auto, numpy, numba or torch), `threads` and `max_bytes`
    (of extra memory) say how it is counted; they never change a score.

    >>> reports = Reports.of(labels=[[0, 1, 0, 1, 1], [0, 1, 1, 1, 0], [1, 1, 0, 0, 1]])
    >>> score(reports, truth=[0, 1, 0, 1, 1])["0"].score
    0.6
    """
    options = Options(rule, against, over, sign, floor, seed, draws, rng, engine(backend, threads, max_bytes))
    return scored(prepare(reports, truth, public, options))


@dataclass(frozen=True)
class Options:
    """What `score` and `audit` may be asked for, not yet checked; see `score` for the words."""

    rule: str | RuleFunction = "zero-one"
    against: str | None = None
    over: str | None = None
    sign: str | npt.ArrayLike | None = None
    floor: float | None = None
    seed: str | None = None
    draws: int | None = None
    rng: np.random.Generator | None = None
    engine: Engine = field(default_factory=Engine)


@dataclass(frozen=True)
class Prepared:
    """Reports with a checked mechanism: everything `score` and `audit` need to begin."""

    reports: Reports
    signal: Public
    against: str
    plan: Plan


def prepare(
    reports: Reports,
    truth: npt.ArrayLike | Mapping[str, str] | None,
    public: npt.ArrayLike | None,
    options: Options,
) -> Prepared:
    """Check the options against the reports, before anything is computed."""
    if truth is not None:
        reports = reports.with_truth(truth)
    if public is not None:
        reports = replace(reports, public=np.asarray(public))
    reports.scorable()
    signal = Public.of(_renumbered(reports.public), len(reports.tasks))
    against = _against(reports, options.against, given=truth is not None)
    if truth is None and against == "peers":
        reports = replace(reports, truth=None)  # labels that came along unasked are not looked at
    return Prepared(reports, signal, against, _plan(reports, signal, against, options))


def _renumbered(public: npt.NDArray[np.generic] | None) -> npt.NDArray[np.generic] | None:
    """Strata may be any integers from 0 up: only which tasks share one matters."""
    if public is None or public.ndim != 1 or public.dtype.kind not in "iu":
        return public
    levels, place = np.unique(public, return_inverse=True)
    return np.asarray(place, dtype=np.int64) if int(levels[0]) >= 0 else public


def scored(ready: Prepared) -> Scores:
    """Scores of prepared reports."""
    reports, signal, where, plan = ready.reports, ready.signal, ready.against, ready.plan
    found, warnings = _score_all(reports, signal, where, plan)
    return finished(reports.agents, reports.classes, len(reports.tasks), ready, found, warnings)


def finished(
    agents: Sequence[str],
    classes: tuple[str, ...],
    tasks: int,
    ready: Prepared,
    found: Sequence[Part | None],
    warnings: list[str],
) -> Scores:
    """Everybody's parts as scores, with what there is to say about them; a part's error may be NaN, not known."""
    lost = [agent for agent, part in zip(agents, found, strict=True) if part is None]
    if len(lost) == len(agents):
        raise InputError(
            "no agent can be scored: none shares two tasks with a reference; "
            "check that the agents answered the same tasks"
        )
    plan, said = ready.plan, list(warnings)
    if lost:
        said.append(f"no score for {some(lost)}: fewer than 2 tasks shared with a reference")
    if plan.sign == "plugin":
        said.append("sign plugin is learned on the tasks it scores, which pays noise: study it, never pay by it")
    if plan.draws is not None:
        said.append(
            f"scores are sampled with {plan.draws} pairing(s) a task, not exact: compare them, never pay by them"
        )
    scores = tuple(
        Score(agent, None, None, 0, 0)
        if part is None
        else Score(agent, part.score, None if math.isnan(part.stderr) else part.stderr, part.tasks, part.references)
        for agent, part in zip(agents, found, strict=True)
    )
    mechanism = Mechanism(plan.rule.name, ready.against, plan.over, plan.sign, bool(ready.signal), plan.rule.floor)
    return Scores(mechanism, tasks, classes, scores, tuple(said))


def pairwise(ready: Prepared) -> Floats:
    """What every agent (row) scores beside every other (column): (K, K), NaN where they cannot be paired.

    >>> reports = Reports.of(labels=[[0, 1, 0, 1], [0, 1, 0, 0], [0, 1, 1, 1]])
    >>> pairwise(prepare(reports, None, None, Options())).round(3)[0].tolist()
    [nan, 0.333, 0.333]
    """
    reports, plan = ready.reports, ready.plan
    matrix = np.stack([pair_values(reports, ready.signal, plan, i, reports.labels) for i in range(len(reports.agents))])
    np.fill_diagonal(matrix, np.nan)
    return matrix


def _against(reports: Reports, against: str | None, *, given: bool) -> str:
    covered = 0 if reports.truth is None else int((reports.truth >= 0).sum())
    if given and not covered and against is None:
        raise InputError("the truth covers no task; give labels of some tasks, or leave it out")
    if against is None:
        return "peers" if not given else "truth" if covered == len(reports.tasks) else "hybrid"
    if against not in AGAINST:
        raise OptionError(f"against is {against!r}; choose one of {', '.join(AGAINST)}")
    if against != "peers" and not covered:
        raise OptionError(
            f"scoring against {against} needs the truth of some tasks; give it with truth=, or score against peers"
        )
    return against


def _plan(reports: Reports, signal: Public, against: str, options: Options) -> Plan:
    chosen, over = resolve(options.rule, options.floor), options.over
    _check_rule(chosen, reports, signal, against)
    if over is not None and over not in OVER:
        raise OptionError(f"over is {over!r}; choose mean, median or one")
    if over is not None and (against == "truth" or chosen.truth_only):
        raise OptionError(
            f"over={over!r} chooses among peers, and this scores against truth; leave it out, or use against='peers'"
        )
    if (over == "one") != (options.seed is not None):
        raise OptionError("one peer is drawn from a seed: give over='one' and seed= together")
    if against != "truth" and not chosen.truth_only:
        over = over or "mean"
    name, matrix = _sign(chosen, options.sign, len(reports.classes))
    if options.draws is not None:
        _check_draws(chosen, name, signal, options)
    return Plan(chosen, name, matrix, over, options.seed, options.draws, options.rng, options.engine)


def _check_draws(rule: Rule, sign: str | None, signal: Public, options: Options) -> None:
    able = rule.name in ("ca", "zero-one", "ce", "brier") and not rule.own and sign != "split"
    if not able or signal or options.rng is None or (options.draws or 0) < 1:
        raise OptionError(
            "draws runs Algorithm 1 as printed: give draws of at least 1 and rng=, "
            "a rule of ca (not split), zero-one, ce or brier, and no public signal"
        )


def _check_rule(chosen: Rule, reports: Reports, signal: Public, against: str) -> None:
    if chosen.needs_rows and reports.probabilities is None:
        raise OptionError(
            f"rule {chosen.name} needs probabilities and these reports have labels only; "
            "add p:<class> columns, or use rule zero-one or ca"
        )
    if chosen.truth_only and against == "peers":
        raise OptionError(
            f"rule {chosen.name} needs the truth; give it with truth=, or use a rule that scores against peers"
        )
    if signal and (chosen.truth_only or (chosen.name == "pmi" and signal.features is not None)):
        what = "a public signal" if chosen.truth_only else "public features, only strata"
        raise OptionError(
            f"rule {chosen.name} cannot take out {what}; leave public= out, or use zero-one, ca, ce or brier"
        )
    if against == "peers" and len(reports.agents) < 2:
        raise InputError("only one agent, and no peers to score it against; add agents, or give the truth with truth=")


def _sign(
    rule: Rule, sign: str | npt.ArrayLike | None, classes: int
) -> tuple[str | None, npt.NDArray[np.generic] | None]:
    if rule.name != "ca" or rule.own:
        if sign is not None:
            raise OptionError(f"sign= goes with rule ca only; leave it out with rule {rule.name}")
        return ("identity", np.eye(classes, dtype=np.int64)) if rule.counts_only else (None, None)
    if sign is None:
        sign = "split"
    if not isinstance(sign, str):
        return "matrix", check_matrix(sign, classes)
    if sign not in SIGNS:
        raise OptionError(f"sign is {sign!r}; choose one of {', '.join(SIGNS)}, or give a matrix")
    return sign, np.eye(classes, dtype=np.int64) if sign == "identity" else None


def _score_all(reports: Reports, signal: Public, against: str, plan: Plan) -> tuple[list[Part | None], list[str]]:
    warnings = abstentions(reports.agents, (reports.labels >= 0).sum(1).tolist(), len(reports.tasks))
    if against == "peers":
        found = _against_peers(reports, signal, plan)
    else:
        assert reports.truth is not None
        known = reports.truth >= 0
        found = _against_truth(reports.take(known), signal.take(known), plan)
        if against == "hybrid" and not plan.rule.truth_only:
            peers = _against_peers(reports.take(~known), signal.take(~known), plan)
            warnings += _dropped(reports.agents, found, "labelled") + _dropped(reports.agents, peers, "unlabelled")
            found = [_hybrid(t, p) for t, p in zip(found, peers, strict=True)]
    return found, warnings


def abstentions(agents: Sequence[str], answered: Sequence[int], tasks: int) -> list[str]:
    """Who left tasks out, in a sentence if anybody did."""
    partly = [f"{agent} ({n})" for agent, n in zip(agents, answered, strict=True) if n < tasks]
    more = f" and {len(partly) - 8} more" if len(partly) > 8 else ""
    return [f"scored on the tasks they answered, out of {tasks}: {', '.join(partly[:8])}{more}"] if partly else []


def _dropped(agents: Sequence[str], parts: Sequence[Part | None], kind: str) -> list[str]:
    lost = [agent for agent, part in zip(agents, parts, strict=True) if part is None]
    return [f"fewer than 2 {kind} tasks to score: that part is dropped for {some(lost)}"] if lost else []


def _hybrid(truth: Part | None, peers: Part | None) -> Part | None:
    """Both parts, weighted by tasks answered; they sit on disjoint tasks, so variances add."""
    if truth is None or peers is None:
        return truth or peers
    n = truth.tasks + peers.tasks
    return Part(
        math.fsum((truth.tasks * truth.score, peers.tasks * peers.score)) / n,
        math.hypot(truth.tasks * truth.stderr, peers.tasks * peers.stderr) / n,
        n,
        truth.references + peers.references,
    )


def _against_truth(reports: Reports, signal: Public, plan: Plan) -> list[Part | None]:
    assert reports.truth is not None
    return [beside(reports, signal, plan, i, reports.truth[None], None) for i in range(len(reports.agents))]


def _against_peers(reports: Reports, signal: Public, plan: Plan) -> list[Part | None]:
    """Every agent against the others, by the cheapest way that the mechanism and the reports allow."""
    for way in (mean_over_peers, all_pairs):
        parts = way(reports, signal, plan)
        if parts is not None:
            return parts
    return _pair_by_pair(reports, signal, plan)


def _pair_by_pair(reports: Reports, signal: Public, plan: Plan) -> list[Part | None]:
    parts = []
    for i in range(len(reports.agents)):
        chosen = np.arange(len(reports.agents)) != i
        if plan.over == "one" and plan.seed is not None:
            chosen = one_peer(reports, i, plan.seed)
        parts.append(beside(reports, signal, plan, i, reports.labels[chosen], plan.over))
    return parts
