"""OVERCONFIDENT: does the rule pay for rows sharper than one's belief?"""

from __future__ import annotations

import math

import numpy as np

from verax.audit.certificate import Certificate, quantile, tasks_needed
from verax.audit.worth import Worth, scored_rows, worth
from verax.kernels import Floats
from verax.mechanisms import Prepared

TEMPERATURES = 2.0 ** (np.arange(-20, 13) / 4)  # 1/32 to 8, in steps of a quarter of an octave
_HONEST = 20
_TINY = 1e-300


def tempered(rows: Floats, temperature: float) -> Floats:
    """Rows p^(1/T), normalised: below 1 sharper, above 1 flatter.

    >>> tempered(np.array([[0.8, 0.2]]), 0.5).round(4).tolist()
    [[0.9412, 0.0588]]
    """
    logs = np.log(np.maximum(rows, _TINY)) / temperature
    powers = np.exp(logs - logs.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def overconfident(ready: Prepared, i: int, confidence: float) -> Certificate:
    """OVERCONFIDENT holds when the rule's best temperature is the plain log score's. (Theorems 8 and 9)"""
    agent, rule = ready.reports.agents[i], ready.plan.rule
    assert ready.reports.probabilities is not None
    paid, plain = worth(ready, i), worth(ready, i, centred=False)
    if paid is None or plain is None:
        return Certificate("OVERCONFIDENT", agent, "not-applicable", None, None, None, "no reference to score against")
    rows = ready.reports.probabilities[i][paid.tasks]
    values, psi = zip(*(_paid(ready, i, paid, plain, tempered(rows, t)) for t in TEMPERATURES), strict=True)
    log = [float((np.log(np.maximum(tempered(rows, t), _floor(ready))) * plain.value).sum()) for t in TEMPERATURES]
    best, honest = int(np.argmax(values)), int(np.argmax(log))
    gain = values[best] - values[_HONEST]
    error = math.sqrt(((psi[best] - psi[_HONEST]) ** 2).sum())
    z = quantile(confidence)
    interval = (gain - z * error, gain + z * error)
    edge = " (the edge of the grid)" if best in (0, len(TEMPERATURES) - 1) else ""
    seen = (
        f"{rule.name} pays best at temperature {TEMPERATURES[best]:.3g}{edge}, "
        f"the log score at {TEMPERATURES[honest]:.3g}"
    )
    if abs(best - honest) <= 1:
        return Certificate("OVERCONFIDENT", agent, "holds", gain, interval, None, f"{seen}: the same within a step")
    lead = values[best] - values[honest]
    doubt = math.sqrt(((psi[best] - psi[honest]) ** 2).sum())
    if lead > z * doubt:
        deviation = {f"temperature {TEMPERATURES[honest]:.3g}": f"temperature {TEMPERATURES[best]:.3g}"}
        why = f"{seen}: {'sharper' if best < honest else 'flatter'} rows than one's belief earn {lead:.4f} more"
        return Certificate("OVERCONFIDENT", agent, "fails", gain, interval, deviation, why)
    needed = tasks_needed(len(rows), z * doubt / lead if lead > 0 else math.inf)
    why = f"{seen}, but the difference is within its error ({lead:.4f} ± {doubt:.4f}); {needed}"
    return Certificate("OVERCONFIDENT", agent, "undecided", gain, interval, None, why)


def _floor(ready: Prepared) -> float:
    return ready.plan.rule.floor or 1e-6


def _paid(ready: Prepared, i: int, paid: Worth, plain: Worth, rows: Floats) -> tuple[float, Floats]:
    """What the rule pays for these rows, and what each task adds to it."""
    if ready.plan.rule.name == "pmi":
        return _pmi(ready, plain, np.maximum(rows, _floor(ready)))
    whole = np.full((len(ready.reports.tasks), rows.shape[1]), np.nan)
    whole[paid.tasks] = rows
    scored = scored_rows(ready, i, probabilities=whole)[paid.tasks]
    psi = (paid.centred(scored) * paid.value).sum(1)
    return float((scored * paid.value).sum()), paid.deviations(psi)


def _pmi(ready: Prepared, plain: Worth, p: Floats) -> tuple[float, Floats]:
    """pmi from the references' mean one-hot matrix: the rows' logs against those of their mean."""
    signal = ready.signal.take(np.isin(np.arange(len(ready.reports.tasks)), plain.tasks))
    mean = p - signal.residual(p)
    gained = (plain.value * (np.log(p) - np.log(mean))).sum(1)
    share = plain.value - signal.residual(plain.value)
    psi = gained - (share * (p / mean - 1.0)).sum(1)
    return float(gained.sum()), np.asarray(psi - psi.mean())
