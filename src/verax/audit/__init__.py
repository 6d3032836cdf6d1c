"""Certificates: what can be trusted about these scores, as values with a witness. Nothing here pays.

A verdict is `holds`, `fails`, `undecided` or `not-applicable`; `fails` comes with the deviation that
gains, `undecided` with the number of tasks that would decide. One code a question:

    TRUTHFUL       is honesty the best reply?                 replies.py
    CATEGORICAL    do only equal labels agree?                replies.py
    ROBUST         how many references may collude?           replies.py
    INFORMATIVE    is the score above 0?                      evidence.py
    ENOUGH         were there enough tasks?                   evidence.py
    ACCURACY       does a higher score mean more accurate?    evidence.py
    OVERCONFIDENT  does the rule pay for sharper rows?        confidence.py
    COPIES         is an agent a near-duplicate of another?   copies.py
    INDEPENDENT    do agents share errors, and who?           independence.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.audit.certificate import VERDICTS, Certificate, Certificates
from verax.audit.confidence import overconfident
from verax.audit.copies import copies
from verax.audit.evidence import accuracy, enough, error_rates, informative
from verax.audit.independence import independent
from verax.audit.replies import Deltas, Gains, categorical, flipping_fraction, gamma_star, robust, truthful
from verax.audit.search import searched
from verax.audit.worth import mean_delta, worth, worths
from verax.errors import InputError, OptionError, is_number
from verax.groups import clusters_of
from verax.intervals import quantile
from verax.kernels import Floats, engine
from verax.plan import Mechanism
from verax.rules import DEFAULT
from verax.score import Prepared, Scores, prepare, score, scored
from verax.space import said_of_memory

CODES = (
    "TRUTHFUL", "CATEGORICAL", "INFORMATIVE", "ACCURACY", "ROBUST", "OVERCONFIDENT", "COPIES", "INDEPENDENT", "ENOUGH",
)  # fmt: skip

__all__ = [
    "CODES",
    "VERDICTS",
    "Certificate",
    "Certificates",
    "audit",
    "examine",
    "flipping_fraction",
    "gamma_star",
    "lying",
    "mean_delta",
]


@said_of_memory("audit fewer agents or tasks")
def audit(
    reports: Any,
    truth: npt.ArrayLike | Mapping[str, str] | None = None,
    public: npt.ArrayLike | None = None,
    *,
    confidence: float = 0.95,
    colluders: float = 0.3,
    wanted: float = 0.01,
    backend: str = "auto",
    threads: int | None = None,
    max_bytes: int | None = None,
    **mechanism: Any,
) -> Certificates:
    """Certificates for every agent under the mechanism that `score` would use with the same options.

    `colluders`: the fraction of references that ROBUST asks about. `wanted`: the standard error that
    ENOUGH asks for.

    >>> from verax.demo import bundled
    >>> found = audit(bundled())
    >>> [c.verdict for c in found if c.code == "INFORMATIVE" and c.agent in ("svm-800", "always-7")]
    ['holds', 'fails']
    """
    counted = engine(backend, threads, max_bytes)
    ready = prepare(reports, truth, public, Mechanism.of(**mechanism), counted)
    return examine(ready, confidence, colluders, wanted)[1]


def examine(
    ready: Prepared, confidence: float = 0.95, colluders: float = 0.3, wanted: float = 0.01
) -> tuple[Scores, Certificates]:
    """Scores and certificates of prepared reports."""
    if not is_number(confidence, 0.5, 1 - 1e-16):
        raise OptionError(f"the confidence is {confidence!r}; give a number from 0.5 to below 1, such as 0.95")
    if not (is_number(colluders, 0, 1 - 1e-16) and is_number(wanted, 5e-324, math.inf)):
        raise OptionError("give a colluding fraction from 0 to below 1, and a wanted standard error above 0")
    scores, reports, rule = scored(ready), ready.reports, ready.plan.rule
    agents = range(len(reports.agents))
    found, influence = _about_replies(ready, confidence, colluders)
    if rule.needs_rows:
        found += [overconfident(ready, i, confidence) for i in agents]
    else:
        why = f"rule {rule.name} does not look at probabilities"
        found.append(Certificate("OVERCONFIDENT", None, "not-applicable", None, None, None, why))
    truth = reports.truth if len(reports.classes) == 2 else None
    rates = [None if truth is None else error_rates(labels, truth) for labels in reports.labels]
    found += [informative(s, confidence, r) for s, r in zip(scores.scores, rates, strict=True)]
    found.append(_accuracy_of(ready, scores, confidence))
    twins = _with_gains(copies(reports, confidence), ready, scores)
    found += twins
    found += independent(reports, confidence, {c.agent for c in twins if c.agent and c.verdict == "fails"})
    found += enough(scores, influence, confidence, wanted)
    return scores, Certificates(sorted(found, key=lambda c: CODES.index(c.code)))


def _with_gains(found: list[Certificate], ready: Prepared, scores: Scores) -> list[Certificate]:
    """COPIES, with what each agent's score gains where copies are references: none where nobody is a copy."""
    groups = tuple(tuple(sorted(group)) for group in clusters_of(found))
    if not groups or not ready.plan.by_peers or len(ready.with_copies(groups).apart.reports.agents) < 2:
        return found
    apart = scored(ready.with_copies(groups))
    return [replace(c, gain=_difference(scores[str(c.agent)].score, apart[str(c.agent)].score)) for c in found]


def _difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _about_replies(ready: Prepared, confidence: float, colluders: float) -> tuple[list[Certificate], dict[str, Floats]]:
    """What the worth of labels says about every agent, and what each task adds to its score, for ENOUGH."""
    agents, classes, rule = ready.reports.agents, ready.reports.classes, ready.plan.rule
    deltas, gains, influence = _sums_of_worth(ready)
    found = [
        Certificate(code, agent, "not-applicable", None, None, None, "no reference to score against")
        for code in ("TRUTHFUL", "CATEGORICAL", "ROBUST")
        for agent in agents
        if agent not in deltas
    ]
    found += [categorical(agent, d, classes, confidence) for agent, d in deltas.items()]
    if rule.separable:
        found += [truthful(agent, g, classes, confidence) for agent, g in gains.items()]
    else:
        found += [_best_reply(ready, i, confidence) for i, agent in enumerate(agents) if agent in deltas]
    why = _why_not_robust(ready)
    if why is not None:
        return found + [Certificate("ROBUST", a, "not-applicable", None, None, None, why) for a in deltas], influence
    bounds = _binary_bounds(ready, confidence) if len(classes) == 2 else [None] * len(agents)
    j = dict(zip(agents, bounds, strict=True))
    return found + [robust(a, d, classes, confidence, colluders, j[a]) for a, d in deltas.items()], influence


def _sums_of_worth(ready: Prepared) -> tuple[dict[str, Deltas], dict[str, Gains], dict[str, Floats]]:
    """What equal labels are worth together, what another reply would gain, and the influence of tasks, by agent."""
    agents, separable = ready.reports.agents, ready.plan.rule.separable
    deltas, gains, influence = dict[str, Deltas](), dict[str, Gains](), dict[str, Floats]()
    known = ready.plan.rule.counts_only and ready.plan.equal_labels  # what is paid is what equal labels are worth
    paid = worths(ready) if separable and not known else repeat(None)
    for agent, by_label, apart in zip(agents, worths(ready, labels=True), paid, strict=False):
        if by_label is None:
            continue
        deltas[agent] = Deltas(*by_label.deltas())
        if separable:
            each = apart or by_label
            gains[agent], influence[agent] = Gains(*each.gains()), np.zeros(len(ready.reports.tasks))
            influence[agent][each.tasks] = each.influence
    return deltas, gains, influence


def _best_reply(ready: Prepared, i: int, confidence: float) -> Certificate:
    """TRUTHFUL for a rule that is not linear in the report."""
    agent, rule = ready.reports.agents[i], ready.plan.rule
    found = None if rule.best_row else searched(ready, i, confidence)
    if found is not None:
        return found
    why = f"{rule.name} is not linear in the report: {rule.best_row} (see OVERCONFIDENT)"
    if rule.best_row is None:
        why = "no reference to score against"
    return Certificate("TRUTHFUL", agent, "not-applicable", None, None, None, why)


def _why_not_robust(ready: Prepared) -> str | None:
    """Why nothing can be said of colluders under this mechanism; None if something can."""
    plan = ready.plan
    if plan.against == "truth":
        return "references are the truth, which does not collude"
    if plan.rule.learns_sign and plan.sign not in ("identity", "matrix"):
        return f"a learned sign follows what the references say, colluders too: use rule {DEFAULT}, or give the sign"
    if plan.mixture is not None:
        return "how much references count follows what they say, colluders too: ask it of a mean over peers"
    if not plan.rule.linear and plan.rule.best_row is None:
        return f"what colluders turn under {plan.rule.name} has no closed form: it is not linear in the references"
    return None


def _binary_bounds(ready: Prepared, confidence: float) -> list[float | None]:
    """For each agent a lower bound of its references' mean J = 1 - alpha - beta, for two labels.

    With truth from their error rates. Without: the mean score of the others among themselves is at
    most J^2 / 2, whatever the prior (Maclaurin), so J is at least the root of twice that score.
    """
    reports, z, every = ready.reports, quantile(confidence), range(len(ready.reports.agents))
    known = [] if reports.truth is None else [error_rates(labels, reports.truth) for labels in reports.labels]
    found: list[float | None] = []
    for i in every:
        rates = [r for j, r in enumerate(known) if j != i and r is not None]
        if rates:
            error = math.sqrt(sum(e**2 for _, e in rates)) / len(rates)
            found.append(1 - sum(r for r, _ in rates) / len(rates) - z * error)
        else:
            among = _scores_without(ready, i) if len(every) > 2 else []
            low = sum(value for value, _ in among) / max(len(among), 1) - z * max((e for _, e in among), default=0.0)
            found.append(math.sqrt(2 * max(low, 0.0)) if among else None)
    return found


def _scores_without(ready: Prepared, i: int) -> list[tuple[float, float]]:
    """What the others score among themselves on two labels, and the errors."""
    reports, agents, tasks = ready.reports, len(ready.reports.agents) - 1, len(ready.reports.tasks)
    if ready.signal.kind is None and reports.labels.min(initial=0) >= 0:
        psi = np.delete(reports.labels, i, axis=0).astype(np.float64)  # twice the product of two labels' deviations
        psi -= psi.mean(1, keepdims=True)
        psi *= 2 * (psi.sum(0) - psi)
        value, error = psi.sum(1) / ((tasks - 1) * (agents - 1)), psi.std(1) / (math.sqrt(tasks) * (agents - 1))
        return [*zip(value.tolist(), error.tolist(), strict=True)]
    kept = np.arange(agents + 1) != i
    among = replace(reports, held=reports.labels[kept], agents=tuple(np.array(reports.agents, dtype=object)[kept]),
                    probabilities=None, truth=None)  # fmt: skip
    try:
        found = score(among).scores
    except InputError:
        return []
    return [(s.score, s.stderr) for s in found if s.score is not None and s.stderr is not None]


def _accuracy_of(ready: Prepared, scores: Scores, confidence: float) -> Certificate:
    reports, beyond = ready.reports, None
    if reports.truth is not None and ready.plan.against != "truth" and (reports.truth >= 0).sum() >= 2:
        known = reports.truth >= 0
        labelled = reports.take(known)
        try:
            beyond = score(replace(labelled, public=None, probabilities=None), public=labelled.truth, against="peers")
        except InputError:
            beyond = None
    return accuracy(scores, reports.labels, reports.truth, beyond, confidence)


def lying(ready: Prepared, i: int, rates: Sequence[float]) -> list[float]:
    """What agent i would score if it misreported at each rate, to any other label alike: in closed form.

    >>> from verax.demo import bundled
    >>> [round(x, 3) for x in lying(prepare(bundled()), 0, [0.0, 0.3])]
    [0.612, 0.408]
    """
    paid = worth(ready, i) if ready.plan.rule.separable else None
    if paid is None:
        return []
    size = paid.value.shape[1]
    top = paid.rows[np.arange(len(paid.held)), paid.held][:, None]
    worth_of_held = paid.value[np.arange(len(paid.held)), paid.held][:, None]
    swapped = float(((top - paid.rows) * (paid.value - worth_of_held)).sum())
    return [paid.score + rate / (size - 1) * swapped for rate in rates]
