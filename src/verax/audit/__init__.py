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
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.audit.certificate import VERDICTS, Certificate, Certificates, quantile
from verax.audit.confidence import overconfident
from verax.audit.copies import copies
from verax.audit.evidence import accuracy, enough, error_rates, informative
from verax.audit.replies import Deltas, categorical, flipping_fraction, gamma_star, robust, truthful
from verax.audit.search import searched
from verax.audit.worth import worth
from verax.errors import InputError, OptionError
from verax.kernels import Floats, engine
from verax.plan import Mechanism
from verax.rules import DEFAULT
from verax.score import Prepared, Scores, prepare, score, scored

CODES = ("TRUTHFUL", "CATEGORICAL", "INFORMATIVE", "ACCURACY", "ROBUST", "OVERCONFIDENT", "COPIES", "ENOUGH")

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
    if not 0.5 <= confidence < 1:
        raise OptionError(f"the confidence is {confidence:g}; give a number from 0.5 to below 1, such as 0.95")
    if not (0 <= colluders < 1 and wanted > 0):
        raise OptionError("give a colluding fraction from 0 to below 1, and a wanted standard error above 0")
    scores = scored(ready)
    found: list[Certificate] = []
    influence: dict[str, Floats] = {}
    for i, s in enumerate(scores.scores):
        found += _about_agent(ready, i, confidence, colluders, influence)
        rates = None
        if ready.reports.truth is not None and len(ready.reports.classes) == 2:
            rates = error_rates(ready.reports.labels[i], ready.reports.truth)
        found.append(informative(s, confidence, rates))
    found.append(_accuracy_of(ready, scores, confidence))
    if not ready.plan.rule.needs_rows:
        why = f"rule {ready.plan.rule.name} does not look at probabilities"
        found.append(Certificate("OVERCONFIDENT", None, "not-applicable", None, None, None, why))
    found += copies(ready.reports, confidence)
    found += enough(scores, influence, confidence, wanted)
    return scores, Certificates(sorted(found, key=lambda c: CODES.index(c.code)))


def _about_agent(
    ready: Prepared, i: int, confidence: float, colluders: float, influence: dict[str, Floats]
) -> list[Certificate]:
    """What the worth of labels says about one agent; keeps its influence for ENOUGH."""
    reports, rule = ready.reports, ready.plan.rule
    agent, classes = reports.agents[i], reports.classes
    by_label = worth(ready, i, labels=True)
    if by_label is None:
        return [
            Certificate(code, agent, "not-applicable", None, None, None, "no reference to score against")
            for code in ("TRUTHFUL", "CATEGORICAL", "ROBUST")
        ]
    deltas = Deltas.of(by_label)
    found = [categorical(agent, deltas, classes, confidence)]
    if rule.needs_rows:
        found.append(overconfident(ready, i, confidence))
    if not rule.separable:
        found.append(_best_reply(ready, i, confidence))
    else:
        paid = by_label if _as_labels(ready) else worth(ready, i)
        assert paid is not None
        found.append(truthful(agent, paid, classes, confidence))
        influence[agent] = np.zeros(len(reports.tasks))
        influence[agent][paid.tasks] = paid.influence
    found.append(_robust_of(ready, i, deltas, confidence, colluders))
    return found


def _as_labels(ready: Prepared) -> bool:
    """Whether what is paid for is agreement on equal labels, whose worth is known already."""
    plan = ready.plan
    equal = plan.matrix is not None and np.array_equal(plan.matrix, np.eye(len(plan.matrix)))
    return plan.rule.counts_only and equal


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


def _robust_of(ready: Prepared, i: int, deltas: Deltas, confidence: float, colluders: float) -> Certificate:
    agent, plan = ready.reports.agents[i], ready.plan
    if ready.plan.against == "truth":
        why = "references are the truth, which does not collude"
    elif plan.rule.learns_sign and plan.sign not in ("identity", "matrix"):
        why = f"a learned sign follows what the references say, colluders too: use rule {DEFAULT}, or give the sign"
    elif not plan.rule.linear and plan.rule.best_row is None:
        why = f"what colluders turn under {plan.rule.name} has no closed form: it is not linear in the references"
    else:
        j = _binary_j(ready, i, confidence) if len(ready.reports.classes) == 2 else None
        return robust(agent, deltas, ready.reports.classes, confidence, colluders, j)
    return Certificate("ROBUST", agent, "not-applicable", None, None, None, why)


def _binary_j(ready: Prepared, i: int, confidence: float) -> float | None:
    """A lower bound of the references' mean J = 1 - alpha - beta, for two labels.

    With truth from their error rates. Without: the mean score of the others among themselves is at
    most J^2 / 2, whatever the prior (Maclaurin), so J is at least the root of twice that score.
    """
    reports, z = ready.reports, quantile(confidence)
    others = [j for j in range(len(reports.agents)) if j != i]
    if reports.truth is not None:
        rates = [r for j in others if (r := error_rates(reports.labels[j], reports.truth)) is not None]
        if rates:
            error = math.sqrt(sum(e**2 for _, e in rates)) / len(rates)
            return 1 - sum(r for r, _ in rates) / len(rates) - z * error
    if len(others) < 2:
        return None
    among = replace(reports, labels=reports.labels[others], agents=tuple(reports.agents[j] for j in others),
                    probabilities=None, truth=None)  # fmt: skip
    try:
        found = [s for s in score(among).scores if s.score is not None and s.stderr is not None]
    except InputError:
        return None
    low = sum((s.score or 0.0) for s in found) / len(found) - z * max((s.stderr or 0.0) for s in found)
    return math.sqrt(2 * max(low, 0.0))


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


def mean_delta(ready: Prepared) -> Floats:
    """delta, averaged over all agents beside their references: which labels go together. (L, L)"""
    found = [w for i in range(len(ready.reports.agents)) if (w := worth(ready, i, labels=True)) is not None]
    return np.asarray(np.mean([np.eye(w.value.shape[1])[w.held].T @ w.value for w in found], axis=0))


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
