"""A mechanism says how agents are scored, before there are any reports: one record, which the JSON shows.

Planned against the shape of some reports it becomes a Plan: every choice is made, what does not go together refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.errors import InputError, OptionError
from verax.kernels import Engine
from verax.reports import Shape
from verax.rules import DEFAULT, Rule, RuleFunction, check_matrix, names_of, resolve
from verax.shape import check_table
from verax.wire import Document, unwritten

AGAINST = ("truth", "peers", "hybrid", "consensus")
OVER = ("mean", "median", "one", "skilled")
_MIXTURES = {
    "skilled": "verax.mechanisms.skilled_meetings:skilled_references",
    "consensus": "verax.mechanisms.consensus_answers:consensus_references",
}
SIGNS = ("identity", "split", "plugin")


@dataclass(frozen=True)
class Mechanism(Document):
    """How agents are scored: the names that the JSON shows, and what they stand for.

    What is None is chosen by the reports: `against` by what the truth covers. `matrix` is S where the sign is "matrix",
    `seed` draws one peer, `draws` random pairings a task are Algorithm 1 as printed.

    >>> asked = Mechanism.of("ca", over="median")
    >>> asked.plan(Shape(agents=3, tasks=40, classes=2)).mechanism
    Mechanism(rule='ca', against='peers', over='median', sign='split', public=False, floor=None)
    """

    rule: str = DEFAULT
    against: str | None = None
    over: str | None = None
    sign: str | None = None
    public: bool = False
    floor: float | None = None
    matrix: Any = unwritten(None, repr=False, compare=False)
    seed: str | None = unwritten(None, repr=False, compare=False)
    draws: int | None = unwritten(None, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        rule: str | Rule | RuleFunction = DEFAULT,
        *,
        against: str | None = None,
        over: str | None = None,
        sign: str | npt.ArrayLike | None = None,
        floor: float | None = None,
        seed: str | None = None,
        draws: int | None = None,
    ) -> Mechanism:
        """The record of what was asked: a rule by name or value, a sign by name or matrix."""
        chosen = resolve(rule, floor)
        for name, given, kind in (("against", against, str), ("over", over, str), ("seed", seed, str)):
            if given is not None and not isinstance(given, kind):
                raise OptionError(f"{name} is {given!r}; give text")
        matrix = None if sign is None or isinstance(sign, str) else np.asarray(sign)
        made = cls(
            chosen.name, against, over, sign if matrix is None else "matrix", False, chosen.floor,  # type: ignore[arg-type]
            matrix, seed, draws,
        )  # fmt: skip
        vars(made)["meant"] = chosen
        return made

    @cached_property
    def meant(self) -> Rule:
        """The rule of that name and floor."""
        return resolve(self.rule, self.floor)

    def plan(
        self,
        shape: Shape,
        *,
        truth_given: bool = False,
        engine: Engine | None = None,
        rng: np.random.Generator | None = None,
        by_entries: bool = False,
    ) -> Plan:
        """Every choice made for reports of this shape; `truth_given`: labels came with the wish to use them.

        `by_entries`: whoever asks scores many classes by the few entries that anybody lists, without a table of them.
        """
        rule = self.meant
        against = self._against(shape, truth_given)
        _check_rule(rule, shape, against)
        over = self._over(rule, against)
        if not by_entries:
            check_table(shape.classes)
        fault = self._fault_of_entries(rule, shape, against, over)
        if shape.many_classes and fault:
            raise OptionError(fault)
        many = by_entries and not fault and (shape.many_classes or (shape.listed and rule.needs_rows))
        sign, matrix = self._sign(rule, shape.classes, many)
        planned = replace(
            self,
            against=against,
            over=over,
            sign=sign,
            public=shape.public is not None,
            floor=rule.floor,
            matrix=matrix,
        )
        plan = Plan(planned, rule, matrix, rng, engine or Engine(), many)
        if self.draws is not None:
            plan.check_draws(shape)
        return plan

    def _against(self, shape: Shape, truth_given: bool) -> str:
        if truth_given and not shape.known and self.against is None:
            raise InputError("the truth covers no task; give labels of some tasks, or leave it out")
        if self.against is None:
            return "peers" if not truth_given else "truth" if shape.known == shape.tasks else "hybrid"
        if self.against not in AGAINST:
            raise OptionError(f"against is {self.against!r}; choose one of {', '.join(AGAINST)}")
        if self.against in ("truth", "hybrid") and not shape.known:
            raise OptionError(
                f"scoring against {self.against} needs the truth of some tasks; "
                "give it with truth=, or score against peers"
            )
        return self.against

    def _over(self, rule: Rule, against: str) -> str | None:
        alone = against in ("truth", "consensus") or rule.truth_only
        if self.over is not None and self.over not in OVER:
            raise OptionError(f"over is {self.over!r}; choose one of {', '.join(OVER)}")
        if self.over is not None and alone:
            raise OptionError(
                f"over={self.over!r} chooses among peers, and this scores against "
                f"{'the consensus' if against == 'consensus' else 'truth'}; leave it out, or use against='peers'"
            )
        if (self.over == "one") != (self.seed is not None):
            raise OptionError("one peer is drawn from a seed: give over='one' and seed= together")
        if rule.population is not None and self.over not in (None, "mean"):
            raise OptionError(f"rule {rule.name} looks at all peers together; leave over= out")
        return None if alone else self.over or "mean"

    def _fault_of_entries(self, rule: Rule, shape: Shape, against: str, over: str | None) -> str:
        """Why it cannot be scored by the few entries that anybody lists of very many classes; '' if it can."""
        if not (rule.by_entry or rule.of_entries):
            able = names_of(lambda r: r.by_entry or r.of_entries is not None)
            return f"rule {rule.name} takes a table of labels beside labels, too large for so many classes; use {able}"
        whole = {
            "peers put together": over == "skilled" or against == "consensus",
            "public features": shape.public == "features",
            "drawn pairings": self.draws is not None,
            "rows written out": rule.needs_rows and not shape.listed,
        }
        remedy = (
            "give the k likeliest labels of each (verax.TopK)"
            if whole["rows written out"]
            else "score against truth, or over the mean or the median of peers, with strata if need be"
        )
        found = next((what for what, asked in whole.items() if asked), None)
        return f"{found} would be too large for so many classes; {remedy}" if found else ""

    def _sign(self, rule: Rule, classes: int, many: bool) -> tuple[str | None, npt.NDArray[np.generic] | None]:
        if many and self.sign is None:
            return ("identity" if rule.counts_only else None), None
        identity = np.eye(classes, dtype=np.int64)
        if not rule.learns_sign:
            if self.sign is not None:
                able = names_of(lambda r: r.learns_sign)
                raise OptionError(f"sign= goes with rule {able} only; leave it out with rule {rule.name}")
            return ("identity", identity) if rule.counts_only else (None, None)
        if self.sign == "matrix" and self.matrix is not None:
            return "matrix", check_matrix(self.matrix, classes)
        sign = self.sign or "split"
        if sign not in SIGNS:
            raise OptionError(f"sign is {sign!r}; choose one of {', '.join(SIGNS)}, or give a matrix")
        return sign, identity if sign == "identity" else None

    def describe(self) -> str:
        """The mechanism in a few words.

        >>> Mechanism("ca", "peers", "mean", "split").describe()
        'ca against peers (mean), split sign'
        """
        over = f" ({self.over})" if self.over else ""
        sign = f", {self.sign} sign" if self.sign else ""
        return f"{self.rule} against {self.against}{over}{sign}{', public signal taken out' if self.public else ''}"


def _check_rule(rule: Rule, shape: Shape, against: str) -> None:
    if rule.needs_rows and not shape.rows:
        raise OptionError(
            f"rule {rule.name} needs probabilities and these reports have labels only; "
            f"add p:<class> columns, or use rule {names_of(lambda r: r.counts_only)}"
        )
    if rule.truth_only and against in ("peers", "consensus"):
        raise OptionError(
            f"rule {rule.name} needs the truth; give it with truth=, or use a rule that scores against peers"
        )
    if shape.public is not None and not rule.takes_public(shape.public):
        what = "public features, only strata" if rule.takes_public("strata") else "a public signal"
        raise OptionError(
            f"rule {rule.name} cannot take out {what}; leave public= out, or use {names_of(lambda r: r.linear)}"
        )
    if against in ("peers", "consensus") and shape.agents < 2:
        raise InputError("only one agent, and no peers to score it against; add agents, or give the truth with truth=")
    if against == "consensus" and shape.agents < 3:
        raise InputError("a consensus takes two others, and there are 2 agents; score against peers")


@dataclass(frozen=True)
class Plan:
    """A mechanism with every choice made, and how it is counted."""

    mechanism: Mechanism
    rule: Rule
    matrix: npt.NDArray[np.generic] | None  # S, where it is not learned
    rng: np.random.Generator | None = None
    engine: Engine = field(default_factory=Engine)
    many: bool = False  # classes, so that scores are made of the entries that are listed
    against: str = field(init=False)  # truth, peers or hybrid
    over: str | None = field(init=False)
    sign: str | None = field(init=False)
    mixture: str | None = field(init=False)  # module:class of what puts peers together before they are references
    by_truth: bool = field(init=False)  # whether some tasks are scored against truth
    by_peers: bool = field(init=False)
    binary_matrix: bool = field(init=False)  # S is given, of 0 and 1: scores are integers to the last division
    equal_labels: bool = field(init=False)  # S is the identity
    pools_peers: bool = field(init=False)  # a mean over peers with a fixed S, which needs no pairs

    def __post_init__(self) -> None:
        mechanism, rule, matrix = self.mechanism, self.rule, self.matrix
        against = mechanism.against or "peers"
        fixed = matrix is not None or not rule.counts_only
        vars(self).update(
            against=against,
            over=mechanism.over,
            sign=mechanism.sign,
            mixture=_MIXTURES.get(against) or _MIXTURES.get(mechanism.over or ""),
            by_truth=against in ("truth", "hybrid"),
            by_peers=against != "truth" and not rule.truth_only,
            binary_matrix=matrix is not None and bool(np.isin(matrix, (0, 1)).all()),
            equal_labels=matrix is not None and np.array_equal(matrix, np.eye(len(matrix))),
            pools_peers=fixed and mechanism.over == "mean" and mechanism.draws is None and rule.linear,
        )

    def check_draws(self, shape: Shape) -> None:
        """Refuse what Algorithm 1 as printed does not say."""
        able = self.rule.linear and self.sign != "split" and shape.public is None
        if not able or self.rng is None or (self.mechanism.draws or 0) < 1:
            raise OptionError(
                "draws runs Algorithm 1 as printed: give draws of at least 1 and rng=, "
                f"a rule of {names_of(lambda r: r.linear)} (not a split sign), and no public signal"
            )
