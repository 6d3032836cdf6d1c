"""Judgements: what each examiner's examples say of everybody's replies, label by label, and the scores that follow.

No example stands in a judgement, so an examiner can send one and keep its examples, and a ledger can hold it. From the
judgements of all examiners everybody's score follows as it would from their examples: a pure function.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from verax import wire
from verax.audit.certificate import Certificate, tasks_needed
from verax.errors import InputError
from verax.examiners import Examiners, Mark, Over, Table, label_weights
from verax.innovations import Floats
from verax.plan import Mechanism
from verax.reports import some
from verax.score import Score, Scores

SURE = 3.0  # standard errors


@dataclass(frozen=True)
class Judgement(wire.Document):
    """One examiner's: of each label its `counts` of examples, and of each agent what these say.

    `means` of <u(x), e_y - p(x)>, summed over rounds, over the examples of a label, and `spreads`, the sums of squares
    about those means. `holder` None: labels of nobody who replies.

    >>> found = Judgement.of(None, [0, 1, 1], 2, {"ann": np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 4.0]])})
    >>> found.counts, found.means, found.spreads
    ((1, 2), {'ann': (1.0, 3.0)}, {'ann': (0.0, 2.0)})
    >>> found.mark("ann", [1.0, 1.0]).score
    2.3333333333333335
    """

    holder: str | None
    counts: tuple[int, ...]
    means: dict[str, tuple[float, ...]]
    spreads: dict[str, tuple[float, ...]]

    @classmethod
    def of(cls, holder: str | None, labels: npt.ArrayLike, classes: int, worth: Mapping[str, Floats]) -> Judgement:
        """From labels (n,) and what every example would say if its label were l, (n, L) of each agent."""
        y = np.asarray(labels)
        places = [np.flatnonzero(y == c) for c in range(classes)]
        found = {agent: [_mean_and_spread(said[at, c]) for c, at in enumerate(places)] for agent, said in worth.items()}
        means = {agent: tuple(mean for mean, _ in each) for agent, each in sorted(found.items())}
        spreads = {agent: tuple(spread for _, spread in each) for agent, each in sorted(found.items())}
        return cls(holder, tuple(map(len, places)), means, spreads)

    def check(self) -> None:
        """Refuse what no examiner's examples can have said."""
        classes, told = len(self.counts), [*self.means.values(), *self.spreads.values()]
        sound = min(self.counts, default=0) >= 0 < sum(self.counts) and self.means.keys() == self.spreads.keys()
        if not sound or any(len(each) != classes or not all(map(math.isfinite, each)) for each in told):
            raise InputError(f"the judgement of {self.holder!r} is no table of its labels; take it anew")
        if min((s for each in self.spreads.values() for s in each), default=0.0) < 0:
            raise InputError(f"the judgement of {self.holder!r} has a sum of squares below 0; take it anew")

    def mark(self, agent: str, weights: Sequence[float] | Floats) -> Mark:
        """The agent's mark by this examiner, where labels have these weights."""
        n, means, spreads = sum(self.counts), self.means[agent], self.spreads[agent]
        each = [w * m for w, m in zip(weights, means, strict=True)]
        mean = math.fsum(c * x for c, x in zip(self.counts, each, strict=True)) / n
        within = math.fsum(w**2 * s for w, s in zip(weights, spreads, strict=True))
        between = math.fsum(c * (x - mean) ** 2 for c, x in zip(self.counts, each, strict=True))
        return Mark(mean, math.sqrt(within + between) / n, n)

    def of_others(self, holder: str, names: Mapping[str, str]) -> Judgement:
        """The same as `holder`'s, of agents by their own names only, each with the name that stands here.

        >>> found = Judgement(None, (1,), {"x": (1.0,), "y": (2.0,)}, {"x": (0.0,), "y": (0.0,)})
        >>> found.of_others("ann", {"bob": "x"}).means
        {'bob': (1.0,)}
        """
        means = {agent: self.means[name] for agent, name in sorted(names.items())}
        return replace(self, holder=holder, means=means, spreads={a: self.spreads[n] for a, n in sorted(names.items())})

    def within(self, widest: Mapping[str, float]) -> Judgement:
        """The same where no example says more of an agent than `widest`, as none can that is like others.

        >>> Judgement("ann", (2,), {"bob": (7.0,)}, {"bob": (50.0,)}).within({"bob": 3.0})
        Judgement(holder='ann', counts=(2,), means={'bob': (3.0,)}, spreads={'bob': (18.0,)})
        """
        means = {a: tuple(min(max(m, -widest[a]), widest[a]) for m in each) for a, each in self.means.items()}
        spreads = {
            a: tuple(min(s, n * widest[a] ** 2) for s, n in zip(each, self.counts, strict=True))
            for a, each in self.spreads.items()
        }
        return replace(self, means=means, spreads=spreads)

    def and_later(self, later: Judgement) -> Judgement:
        """Of the same examples in more rounds, where what each example said is not known any more.

        Sums add up. Of spreads the most that can be is taken, so that errors are never too small.

        >>> one = Judgement("ann", (2,), {"bob": (1.0,)}, {"bob": (4.0,)})
        >>> one.and_later(one)
        Judgement(holder='ann', counts=(2,), means={'bob': (2.0,)}, spreads={'bob': (16.0,)})
        """
        agents, nothing = sorted({*self.means, *later.means}), (0.0,) * len(self.counts)
        both = {a: (self.means.get(a, nothing), later.means.get(a, nothing)) for a in agents}
        wide = {a: (self.spreads.get(a, nothing), later.spreads.get(a, nothing)) for a in agents}
        means = {a: tuple(x + y for x, y in zip(*pair, strict=True)) for a, pair in both.items()}
        spreads = {
            a: tuple((math.sqrt(x) + math.sqrt(y)) ** 2 for x, y in zip(*pair, strict=True)) for a, pair in wide.items()
        }
        return replace(self, means=means, spreads=spreads)


def _mean_and_spread(values: Floats) -> tuple[float, float]:
    """In sums that know no order."""
    mean = math.fsum(values) / max(len(values), 1)
    return mean, math.fsum((values - mean) ** 2)


def judged(
    labels: npt.NDArray[np.int64], holders: Sequence[str | None], classes: int, worth: Mapping[str, Floats]
) -> tuple[Judgement, ...]:
    """Every holder's judgement of everybody else, from all examples at one place.

    >>> [j.holder for j in judged(np.array([0, 1]), ["bob", None], 2, {"bob": np.eye(2)})]
    [None, 'bob']
    """
    found = []
    for holder in sorted({*holders}, key=lambda h: (h is not None, h)):
        at = np.array([h == holder for h in holders])
        others = {agent: said[at] for agent, said in worth.items() if holder is None or agent != holder}
        found.append(Judgement.of(holder, labels[at], classes, others))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Sheet:
    """What everybody's replies come to, by the judgements of all examiners: pure, so that anybody can compute it again.

    `prior`: the shares that the broadcast sees of labels in the pool.

    >>> sheet = Sheet(("ann",), ("no", "yes"), np.array([0.5, 0.5]), judged(np.array([0, 1]), ["bob"] * 2, 2,
    ...     {"ann": np.eye(2)}))
    >>> sheet.scores()["ann"].score
    1.0
    """

    agents: tuple[str, ...]
    classes: tuple[str, ...]
    prior: Floats
    judgements: tuple[Judgement, ...]
    over: Over = "mean"

    @cached_property
    def examiners(self) -> Examiners:
        """Whose judgements there are, and how they are put together."""
        return Examiners(tuple(j.holder for j in self.judgements), self.over)

    @cached_property
    def table(self) -> Table:
        """Everybody's mark by every other examiner, labels weighed as others' examples have them."""
        return {agent: self._marks_of(agent) for agent in sorted(self.agents)}

    def _marks_of(self, agent: str) -> dict[str | None, Mark]:
        others = [j for j in self.judgements if agent in j.means and (j.holder is None or j.holder != agent)]
        if not others:
            return {}
        weights = label_weights(np.sum([j.counts for j in others], axis=0), self.prior)
        return {j.holder: j.mark(agent, weights) for j in others}

    @property
    def examples(self) -> int:
        """How many examples all this rests on."""
        return sum(sum(j.counts) for j in self.judgements)

    def scores(self) -> Scores:
        """Everybody's score, by name, with its standard error; who has no examiner has none."""
        found = [(agent, self.examiners.mark(agent, self.table)) for agent in self.table]
        each = tuple(
            Score(agent, None, None, 0, 0) if m is None else Score(agent, m.score, m.stderr, m.examples, m.examiners)
            for agent, m in found
        )
        unexamined = [agent for agent, m in found if m is None]
        warnings = (f"nobody else holds labels to examine {some(unexamined)} on",) if unexamined else ()
        how = Mechanism("exam", "truth", self.over, None, True, None)
        return Scores(how, self.examples, self.classes, each, warnings)

    def agreement(self) -> dict[str, float]:
        """How far each examiner's labels go with the others'; a share of its pay rides on it (`payments.pay_marks`)."""
        return self.examiners.agreement(self.table)

    def certificates(self, sure: float = SURE) -> list[Certificate]:
        """Of everybody examined: whether its replies surely taught something (EXAM holds), or did harm (fails)."""
        return [_verdict(s, sure) for s in self.scores() if s.score is not None]


def _verdict(s: Score, sure: float) -> Certificate:
    score, error = s.score or 0.0, s.stderr or 0.0
    interval = (score - sure * error, score + sure * error)
    said = f"what it adds about {s.tasks} labels of others is {score:.4f} ± {error:.4f}"
    if score > sure * error:
        return Certificate("EXAM", s.agent, "holds", score, interval, None, f"{said}: above 0")
    if score < -sure * error:
        return Certificate("EXAM", s.agent, "fails", score, interval, None, f"{said}: below 0, so it misleads")
    if not error:
        return Certificate("EXAM", s.agent, "fails", score, interval, None, f"{said}: all of it was public")
    needed = tasks_needed(s.tasks, sure * error / abs(score) if score else math.inf)
    return Certificate("EXAM", s.agent, "undecided", score, interval, None, f"{said}; {needed}")


def all_rounds(sessions: Iterable[Sequence[Judgement]]) -> tuple[Judgement, ...]:
    """Every examiner's judgement over sessions, of which none knows what an example said in another.

    >>> [sum(j.counts) for j in all_rounds([[Judgement("a", (3,), {}, {})], [Judgement("a", (3,), {}, {})]])]
    [3]
    """
    found: dict[str | None, Judgement] = {}
    for session in sessions:
        for judgement in session:
            known = found.get(judgement.holder)
            found[judgement.holder] = judgement if known is None else known.and_later(judgement)
    return tuple(found[holder] for holder in sorted(found, key=lambda h: (h is not None, h or "")))
