"""OVERCONFIDENT: does the rule pay for rows sharper than one's belief?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from verax.audit.certificate import Certificate, tasks_needed
from verax.audit.search import rescored
from verax.audit.worth import Worth, worth
from verax.intervals import quantile
from verax.kernels import Floats
from verax.pairs import jackknifed
from verax.reports import Reports
from verax.rules import FLOOR
from verax.score import Prepared
from verax.statistic import groups

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
    assert ready.reports.rows is not None
    plain = worth(ready, i, centred=False)
    if plain is None:
        return Certificate("OVERCONFIDENT", agent, "not-applicable", None, None, None, "no reference to score against")
    rows = ready.reports.rows[i][plain.tasks]
    closed = rule.linear or rule.mixture is not None
    paid = _Closed(ready, i, plain, rows) if closed else _Scored(ready, i)
    values = [paid.value(t) for t in TEMPERATURES]
    log = [float((np.log(np.maximum(tempered(rows, t), _floor_of(ready))) * plain.value).sum()) for t in TEMPERATURES]
    best, honest = int(np.argmax(values)), int(np.argmax(log))
    gain = values[best] - values[_HONEST]
    error = paid.doubt(TEMPERATURES[best], TEMPERATURES[_HONEST])
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
    doubt = paid.doubt(TEMPERATURES[best], TEMPERATURES[honest])
    if lead > z * doubt:
        deviation = {f"temperature {TEMPERATURES[honest]:.3g}": f"temperature {TEMPERATURES[best]:.3g}"}
        why = f"{seen}: {'sharper' if best < honest else 'flatter'} rows than one's belief earn {lead:.4f} more"
        return Certificate("OVERCONFIDENT", agent, "fails", gain, interval, deviation, why)
    needed = tasks_needed(len(rows), z * doubt / lead if lead > 0 else math.inf)
    why = f"{seen}, but the difference is within its error ({lead:.4f} ± {doubt:.4f}); {needed}"
    return Certificate("OVERCONFIDENT", agent, "undecided", gain, interval, None, why)


def _floor_of(ready: Prepared) -> float:
    return ready.plan.rule.floor or FLOOR


@dataclass(frozen=True, eq=False)
class _Closed:
    """What one agent's tempered rows are paid, from what each entry is worth."""

    ready: Prepared
    i: int
    plain: Worth
    rows: Floats

    def value(self, temperature: float) -> float:
        """What the rule pays for the rows at a temperature."""
        return self._paid_for(temperature)[0]

    def doubt(self, one: float, other: float) -> float:
        """The error of the difference between two temperatures."""
        return math.sqrt(((self._paid_for(one)[1] - self._paid_for(other)[1]) ** 2).sum())

    @cached_property
    def _paid(self) -> Worth:
        found = worth(self.ready, self.i)
        assert found is not None
        return found

    def _paid_for(self, temperature: float) -> tuple[float, Floats]:
        """The payment, and what each task adds to it."""
        rows, rule, tasks = tempered(self.rows, temperature), self.ready.plan.rule, len(self.ready.reports.tasks)
        if rule.mixture is not None:
            signal = self.ready.signal.take(np.isin(np.arange(tasks), self.plain.tasks))
            return rule.mixture(rows, self.plain.value, signal, _floor_of(self.ready))
        scored, paid = rule.scored(rows), self._paid
        psi = (paid.centred(scored) * paid.value).sum(1)
        return float((scored * paid.value).sum()), paid.deviations(psi)


@dataclass(frozen=True, eq=False)
class _Scored:
    """The same for a rule without a closed form, by scoring the tempered rows; errors by leaving tasks out."""

    ready: Prepared
    i: int

    def value(self, temperature: float) -> float:
        """What the rule pays for the rows at a temperature."""
        return _score_of_rows(self.ready, self.i, temperature)

    def doubt(self, one: float, other: float) -> float:
        """The error of the difference between two temperatures."""
        return jackknifed([a - b for a, b in zip(self._left_out(one), self._left_out(other), strict=True)])

    def _left_out(self, temperature: float) -> list[float]:
        group = groups(self.ready.reports.tasks)
        kept = (self.ready.only(group != g) for g in np.unique(group))
        return [_score_of_rows(ready, self.i, temperature) for ready in kept]


def _score_of_rows(ready: Prepared, i: int, temperature: float) -> float:
    def with_tempered_rows(reports: Reports) -> Reports:
        assert reports.rows is not None
        rows = reports.rows.copy()
        rows[i] = tempered(rows[i], temperature)
        return replace(reports, probabilities=rows)

    return rescored(ready, i, with_tempered_rows)
