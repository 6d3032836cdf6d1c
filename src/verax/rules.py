"""A rule scores one pair: Joint -> number, higher is better. A mechanism decides which pairs.

In the paper's order: the calibrated losses of Theorem 1 (against truth, no penalty), Correlated
Agreement of Algorithm 1, its 0-1 form, the calibrated forms of Theorems 8 and 9, and `pmi`, ours.
Any function Joint -> float is a rule too; verax then finds its standard error by jackknife.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import numpy.typing as npt

from verax.errors import InputError, OptionError, is_number
from verax.joint import Estimate, Joint
from verax.kernels import Floats, Ints
from verax.public import Public
from verax.topk import Entries

FLOOR = 1e-6
RuleFunction = Callable[[Joint], Estimate | float]


def accuracy(joint: Joint) -> Estimate:
    """The share of tasks on which report and truth agree: minus the 0-1 loss. (Theorem 1)

    >>> accuracy(Joint.of_counts([[40, 10], [20, 30]]))
    Estimate(value=0.7, stderr=0.04582575695)
    """
    agree = int(np.trace(joint.counts, axis1=1, axis2=2).sum())
    psi = np.broadcast_to(np.eye(joint.classes), joint.counts.shape)
    return Estimate.of_cells(agree / joint.tasks, psi, joint.counts)


def log(joint: Joint, floor: float = FLOOR) -> Estimate:
    """The mean of log p(y): minus the cross-entropy loss. (Theorem 1)

    >>> round(log(Joint.of([[0.5, 0.5], [0.5, 0.5]], [0, 1])).value, 6)
    -0.693147
    """
    paired = joint.logs(floor).tasks_paired
    psi = paired.rows[np.arange(len(paired.rows)), paired.reference]
    return Estimate.of_tasks(float(psi.mean()), psi)


def quadratic(joint: Joint) -> Estimate:
    """The mean of -sum_l (p_l - 1[l = y])^2: minus the squared loss. (Theorem 1)

    >>> quadratic(Joint.of([[1.0, 0.0], [0.5, 0.5]], [0, 1]))
    Estimate(value=-0.25, stderr=0.1767766953)
    """
    paired = joint.tasks_paired
    psi = -((paired.rows - np.eye(joint.classes)[paired.reference]) ** 2).sum(1)
    return Estimate.of_tasks(float(psi.mean()), psi)


def ca(joint: Joint, sign: npt.ArrayLike | None = None) -> Estimate:
    """Correlated Agreement: <S, delta> with S = `sign`. (Algorithm 1, Theorems 2 and 4)

    Without `sign`, S = Sgn(delta) of these very tasks, which pays noise: learn it elsewhere to pay.

    >>> ca(Joint.of_counts([[40, 10], [20, 30]]))
    Estimate(value=0.202020202, stderr=0.04472135955)
    """
    return joint.score(joint.sign if sign is None else sign)


def zero_one(joint: Joint) -> Estimate:
    """Correlated Agreement when Sgn(Delta*) is the identity: trace(delta). (section 5, "0-1 score")

    >>> zero_one(Joint.of([1, 1, 1], [0, 1, 1])).value  # a constant report earns exactly nothing
    0.0
    """
    return joint.score()


def ce(joint: Joint, floor: float = FLOOR) -> Estimate:
    """Calibrated CA with cross-entropy: trace(delta(log p, G)). (Theorems 8 and 9, "CE score")

    >>> round(ce(Joint.of([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 0])).value, 6)
    0.89588
    """
    return joint.logs(floor).score()


def brier(joint: Joint) -> Estimate:
    """Calibrated CA with squared loss: trace(delta(2p, G)); the squared norms cancel. (Theorems 8 and 9)

    >>> round(brier(Joint.of([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 0])).value, 6)
    0.733333
    """
    return joint.doubled().score()


def pmi(joint: Joint, floor: float = FLOOR) -> Estimate:
    """Mean of log p(n, g_n) - log pbar(g_n), pbar the mean row (of the stratum). (beyond the paper)

    Its best row is the agent's belief about the reference's label: it does not pay overconfidence.

    >>> pmi(Joint.of([[0.7, 0.3], [0.7, 0.3]], [0, 1])).value  # says the same of every task
    0.0
    """
    paired = joint.tasks_paired
    if paired.public.features is not None:
        raise OptionError("pmi takes a public signal as strata only; give labels, or use zero-one, ca, ce or brier")
    p = np.maximum(paired.rows, floor)
    mean = p - paired.public.residual(p)  # exact where the stratum's rows are all equal
    one_hot = np.eye(joint.classes)[paired.reference]
    share = one_hot - paired.public.residual(one_hot)
    at = np.arange(len(p)), paired.reference
    gained = np.log(p[at]) - np.log(mean[at])
    psi = gained - (share * (p / mean - 1.0)).sum(1)
    return Estimate.of_tasks(float(gained.mean()), psi)


def accuracy_of_entries(said: Entries, reference: Ints, public: Public, floor: float) -> tuple[float, Floats]:
    """accuracy, of labels among very many: its value and what each task adds.

    >>> accuracy_of_entries(Entries.of_labels(np.array([4, 5]), 9), np.array([4, 6]), Public(2), 0.0)[0]
    0.5
    """
    psi = said.at(reference)
    return float(psi.mean()), psi


def log_of_entries(rows: Entries, reference: Ints, public: Public, floor: float) -> tuple[float, Floats]:
    """log, of rows that list the likeliest of very many labels.

    >>> log_of_entries(Entries.of_labels(np.array([4, 5]), 9), np.array([4, 5]), Public(2), 1e-6)[0]
    0.0
    """
    psi = np.log(np.maximum(rows.at(reference), floor))
    return float(psi.mean()), psi


def quadratic_of_entries(rows: Entries, reference: Ints, public: Public, floor: float) -> tuple[float, Floats]:
    """quadratic, of rows that list the likeliest of very many labels.

    >>> quadratic_of_entries(Entries.of_labels(np.array([4, 5]), 9), np.array([4, 6]), Public(2), 0.0)[0]
    -1.0
    """
    psi = 2.0 * rows.at(reference) - 1.0 - rows.each(np.square).dot(np.ones(rows.classes))
    return float(psi.mean()), psi


def pmi_of_entries(rows: Entries, reference: Ints, public: Public, floor: float) -> tuple[float, Floats]:
    """pmi, of rows that list the likeliest of very many labels.

    >>> pmi_of_entries(Entries.of_labels(np.array([4, 5]), 9), np.array([4, 5]), Public(2), 1e-6)[0].__round__(6)
    0.693146
    """
    p = rows.each(lambda x: np.maximum(x, floor))
    gained, psi = np.empty(len(p)), np.empty(len(p))
    for chosen in public.parts:
        own, said = p[chosen], reference[chosen]
        mean = own.sums() / len(own)
        share = np.bincount(said, minlength=rows.classes) / len(own)
        gained[chosen] = np.log(own.at(said)) - np.log(mean[said])
        psi[chosen] = gained[chosen] - own.dot(share / mean) + 1.0
    return float(gained.mean()), psi


OfEntries = Callable[[Entries, Ints, Public, float], tuple[float, Floats]]
Rows = Callable[[Floats, float], Floats]
Mixture = Callable[[Floats, Floats, Public, float], tuple[float, Floats]]


@dataclass(frozen=True)
class Rule:
    """A rule, with all that anybody must know of it; whoever asks, asks here.

    `function` scores a Joint. A *linear* rule is <S, delta> on rows as `rows` makes them of probabilities and the floor
    (one-hot labels where there is none), and needs no function. A *separable* one changes under a relabelling as the
    sum over tasks of rows times what each entry is worth. `by_entry`: a linear rule's rows are made of each probability
    by itself, so that few listed ones do; `of_entries` says the same of a rule that is not linear. `low` and `high`,
    what a score can be at least and at most, are what pay and markets need; with `in_logs` they count in -log floor.
    `penalised`: a report that says nothing earns 0. `takes` are the kinds of public signal that can be taken out.
    `mixture` gives the value of rows beside a mixture of references, and each task's share, for a rule that is linear
    in its reference only. `best_row` says why relabelling such a rule's report is no question. `population` names, as
    module:function, what scores everybody at once.

    >>> half = Rule("half", lambda joint: 0.5 * float(joint.bonus.trace()), low=0.0, high=0.5)
    >>> half.bounds, half.needs_rows
    ((0.0, 0.5), False)
    >>> spherical = Rule("spherical", rows=lambda p, _: p / np.linalg.norm(p, axis=1, keepdims=True), linear=True)
    >>> spherical(Joint.of([[1.0, 0.0], [0.0, 1.0]], [0, 1]))
    Estimate(value=1, stderr=0)
    """

    name: str
    function: Callable[..., Estimate | float] | None = None
    says: str = ""
    rows: Rows | None = None
    needs_rows: bool = False
    linear: bool = False
    separable: bool = False
    by_entry: bool = False
    of_entries: OfEntries | None = None
    learns_sign: bool = False
    truth_only: bool = False
    penalised: bool = True
    takes: tuple[str, ...] = ("strata", "features")
    low: float | None = None
    high: float | None = None
    in_logs: bool = False
    floor: float | None = None
    mixture: Mixture | None = None
    best_row: str | None = None
    population: str | None = None
    own: bool = False
    counts_only: bool = field(init=False, repr=False)  # <S, delta> on labels, so that counts suffice

    def __post_init__(self) -> None:
        if self.function is None and not self.linear and self.population is None:
            raise OptionError(f"rule {self.name!r} has no function; give one that takes a Joint, or say linear=True")
        if self.rows is not None and not self.needs_rows:
            object.__setattr__(self, "needs_rows", True)
        if self.linear:
            object.__setattr__(self, "separable", True)
        if self.in_logs and self.floor is None:
            object.__setattr__(self, "floor", FLOOR)
        object.__setattr__(self, "counts_only", self.linear and not self.needs_rows)

    def __call__(self, joint: Joint, matrix: npt.ArrayLike | None = None) -> Estimate | float:
        """What the pair scores; a linear rule's S is the identity unless it is given."""
        if self.function is None or matrix is not None:
            return (joint if self.rows is None else joint.with_rows(self.scored)).score(matrix)
        return self.function(joint) if self.floor is None else self.function(joint, self.floor)

    def __reduce__(self) -> tuple[object, ...]:
        """Sent by name: whoever receives it has the same verax, or the same module."""
        return _received, (self.name, self.floor)

    def scored(self, probabilities: Floats) -> Floats:
        """Rows as the rule scores them."""
        return probabilities if self.rows is None else self.rows(probabilities, self.floor or 0.0)

    def takes_public(self, kind: str) -> bool:
        """Whether a public signal of this kind can be taken out."""
        return kind in self.takes

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Between which numbers every score lies; None where nobody has said."""
        if self.low is None or self.high is None:
            return None
        unit = -math.log(self.floor) if self.in_logs and self.floor is not None else 1.0
        return self.low * unit, self.high * unit

    @property
    def loses_only(self) -> bool:
        """Whether no score is above 0, so that a task left out is a gain."""
        return self.high is not None and self.high <= 0

    def with_floor(self, floor: float | None) -> Rule:
        """The same rule, counting no probability as smaller."""
        if floor is None:
            return self
        if self.floor is None:
            able = names_of(lambda rule: rule.floor is not None)
            if self.own:
                raise OptionError(f"a floor goes with {able.replace(' or ', ' and ')}; let your own rule keep its own")
            raise OptionError(f"rule {self.name} has no floor; leave floor= out, or use {able}")
        if not is_number(floor, 5e-324, 0.5 - 1e-16):
            raise OptionError(f"the floor is {floor!r}; give a number above 0 and below 0.5, such as 1e-6")
        return replace(self, floor=float(floor))


def _received(name: str, floor: float | None) -> Rule:
    return (load(name) if ":" in name else resolve(name)).with_floor(floor)


def _log_rows(p: Floats, floor: float) -> Floats:
    return np.log(np.maximum(p, floor))


def _doubled_rows(p: Floats, _: float) -> Floats:
    return 2.0 * p


def _pmi_of_mixture(p: Floats, shares: Floats, public: Public, floor: float) -> tuple[float, Floats]:
    """pmi beside references that say label l of task n with weight shares[n, l], and each task's part in it."""
    p = np.maximum(p, floor)
    mean = p - public.residual(p)
    gained = (shares * (np.log(p) - np.log(mean))).sum(1)
    psi = gained - ((shares - public.residual(shares)) * (p / mean - 1.0)).sum(1)
    return float(gained.sum()), np.asarray(psi - psi.mean())


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("zero-one", None, "agreement on the same label, beyond chance", linear=True, by_entry=True,
             low=-1.0, high=1.0),
        Rule("ca", None, "correlated agreement: labels that go together, beyond chance", linear=True,
             learns_sign=True, low=-1.0, high=1.0),
        Rule("ce", None, "the log-probability given to the reference's label, beyond chance", rows=_log_rows,
             linear=True, by_entry=True, low=-1.0, high=1.0, in_logs=True),
        Rule("brier", None, "the probability given to the reference's label, beyond chance",
             rows=_doubled_rows, linear=True, by_entry=True, low=-2.0, high=2.0),
        Rule("pmi", pmi, "what the probabilities tell about the reference's label", needs_rows=True, takes=("strata",),
             low=-1.0, high=1.0, in_logs=True, mixture=_pmi_of_mixture, of_entries=pmi_of_entries,
             best_row="its best row is one's belief about the reference"),
        Rule("accuracy", accuracy, "the share of tasks answered right", takes=(), separable=True, truth_only=True,
             penalised=False, low=0.0, high=1.0, of_entries=accuracy_of_entries),
        Rule("log", log, "the logarithm of the probability given to the right label", rows=_log_rows, takes=(),
             separable=True, truth_only=True, penalised=False, low=-1.0, high=0.0, in_logs=True,
             of_entries=log_of_entries),
        Rule("quadratic", quadratic, "minus the squared distance of the probabilities from the right label",
             rows=_doubled_rows, takes=(), separable=True, truth_only=True, penalised=False, low=-2.0, high=0.0,
             of_entries=quadratic_of_entries),
        Rule("innovation", None, "what its probabilities add to the public ones, as the others' do", needs_rows=True,
             population="verax.mechanisms.innovation:parts", takes=("features",), low=-2.0, high=2.0),
        Rule("dmi", None, "the determinant of how its labels go with each peer's, on two halves of the tasks",
             population="verax.mechanisms.dmi:parts", takes=(), low=-1.0, high=1.0),
    )
}  # fmt: skip
DEFAULT = next(iter(RULES))
INNOVATION = "innovation"  # of replies that are held against what is public, row by row


def names_of(able: Callable[[Rule], bool]) -> str:
    """The rules of which something is true, as a sentence has them.

    >>> names_of(lambda rule: rule.floor is not None)
    'ce, pmi or log'
    """
    *most, last = [rule.name for rule in RULES.values() if able(rule)]
    return f"{', '.join(most)} or {last}" if most else last


_OF_NUMBERS = ("squared", "mse", "rmse", "mae", "l2", "l1", "regression")
_OWN: dict[str, Rule] = {}  # by module:function, those that somebody passed in this process


def resolve(rule: str | Rule | RuleFunction, floor: float | None = None) -> Rule:
    """The rule of a name, or of a user's own function or Rule, known from then on as module:function.

    A function may say what it gives at least and at most: `agreement.bounds = (0.0, 1.0)`.

    >>> resolve("ce", floor=1e-3).floor
    0.001
    >>> resolve(lambda joint: float(joint.counts.max())).own
    True
    """
    if isinstance(rule, str):
        found = RULES.get(rule) or _OWN.get(rule)
        if rule in _OF_NUMBERS:
            raise OptionError(
                f"no rule scores numbers as {rule!r}: beside peers such a loss pays who shrinks them to the middle; "
                "put numbers in bins and use rule ca (docs/regression.md)"
            )
        if found is None:
            hint = "load it first: verax.rules.load" if ":" in rule else f"choose one of {', '.join(RULES)}"
            raise OptionError(f"no rule is called {rule!r}; {hint}, or pass a function")
    elif isinstance(rule, Rule) and (rule.own or rule.name in RULES):
        found = rule
    elif callable(rule):
        found = _own_rule(rule)
    else:
        raise OptionError(f"rule is a {type(rule).__name__}; give a name, a Rule, or a function of a Joint")
    return found.with_floor(floor)


def _own_rule(rule: Rule | RuleFunction, name: str | None = None) -> Rule:
    """A rule of somebody's own, remembered by its name; two of one name are told apart."""
    if isinstance(rule, Rule):
        called = name or rule.name
        made = replace(rule, name=called, own=True, says=rule.says or f"the value of the rule {called}")
    else:
        called = name or f"{getattr(rule, '__module__', '')}:{getattr(rule, '__qualname__', type(rule).__name__)}"
        low, high = getattr(rule, "bounds", (None, None))
        says = f"the value of the rule {called}"
        made = Rule(called, rule, says, penalised=False, low=low, high=high, own=True)
    if name is None:
        names = (called if n == 1 else f"{called} ({n})" for n in count(1))
        called = next(x for x in names if x not in _OWN or _OWN[x] == replace(made, name=x, says=_OWN[x].says))
    _OWN[called] = replace(made, name=called)
    return _OWN[called]


def load(name: str) -> Rule:
    """The rule of a name, or of module:function, imported from here.

    >>> load("zero-one").name
    'zero-one'
    """
    if ":" not in name:
        return resolve(name)
    module, attribute = name.rsplit(":", 1)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever importing a user's own code may raise
        reason = f"{type(error).__name__}: {error}"
        raise OptionError(
            f"rule {name!r} cannot be loaded ({reason}); give module:function, importable from here"
        ) from None
    if not callable(found):
        raise OptionError(f"rule {name!r} is not a function; give one that takes a Joint and returns a number")
    return _own_rule(found, name)


def check_matrix(matrix: npt.ArrayLike, classes: int) -> npt.NDArray[np.generic]:
    """A user's S: L x L, entries in [0, 1]."""
    s = np.asarray(matrix)
    if s.shape != (classes, classes):
        raise InputError(
            f"the sign matrix has shape {s.shape}; with {classes} classes it must be {classes} x {classes}"
        )
    if s.dtype == bool:
        return s.astype(np.int64)
    s = s.astype(np.float64)
    if not (np.isfinite(s).all() and s.min() >= 0 and s.max() <= 1):
        raise InputError("the sign matrix has an entry outside [0, 1]; clip or rescale it")
    return s
