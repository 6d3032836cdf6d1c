"""Innovations beside peers': what everybody's rows add to what is public, and whether the others' add the same.

    u_i    agent i's rows less the public ones' (`verax.innovations`), none longer than twice the middle one
    score  s_i = mean over tasks of <u_i, mean of the others' u>, or of <u_i, e_y - p> where the truth is known

The public signal is features (N, L (1 + m)): the rows of the model that everybody was sent, p, then those of m models
that anybody could make of it. Without one the mean row is what is public.

Linear in u_i: no label is looked at, and what others' training drifts to counts as if it were knowledge. So this is a
meter for agents who all work, and no guard against those who imitate work.
"""

from __future__ import annotations

import math

import numpy as np

from verax.errors import InputError
from verax.innovations import Floats, beside_peers, clipped, fitted, public_moves
from verax.plan import Plan
from verax.public import Public
from verax.statistic import Part, Side

MOST = 2.0  # times the middle innovation's length


def parts(side: Side, plan: Plan, only: int | None = None) -> list[Part | None]:
    """Everybody's score, or that of `only` one; a task that is left out counts for nothing."""
    rows = side.reports.rows
    assert rows is not None
    answered = ~np.isnan(rows[:, :, 0])
    p, left = _innovations(np.where(answered[:, :, None], rows, 0.0), answered, side.signal)
    if side.references is None:
        psi, beside = beside_peers(left), len(rows) - 1
    else:
        truth = np.eye(rows.shape[2])[side.references[0]] - p
        psi, beside = np.stack([(u * truth).sum(1) for u in left]), 1
    found = [_part(values[on], beside) for values, on in zip(psi, answered, strict=True)]
    return [part if only in (None, i) else None for i, part in enumerate(found)]


def _part(psi: Floats, beside: int) -> Part | None:
    if len(psi) < 2:
        return None
    mean = math.fsum(psi.tolist()) / len(psi)
    error = math.sqrt(math.fsum(((psi - mean) ** 2).tolist())) / len(psi)
    return Part(mean, error, len(psi), beside)


def _innovations(rows: Floats, answered: Floats, signal: Public) -> tuple[Floats, list[Floats]]:
    """The rows that everybody starts from, and what is left of each agent's once the public is taken out."""
    if signal.features is None:
        means = rows.sum(1, keepdims=True) / np.maximum(answered.sum(1), 1)[:, None, None]
        return np.asarray(means.mean(0)), clipped(list((rows - means) * answered[:, :, None]), MOST)
    p, models = _public_rows(signal.features, rows.shape[2])
    fit = fitted(p, public_moves(p, models))
    left = [fit.innovation((row - p) * on[:, None]) * on[:, None] for row, on in zip(rows, answered, strict=True)]
    return p, clipped(left, MOST)


def _public_rows(features: Floats, classes: int) -> tuple[Floats, list[Floats]]:
    if features.shape[1] % classes:
        raise InputError(
            f"this rule takes the rows of public models side by side, {classes} columns each, and the public "
            f"signal has {features.shape[1]} columns; begin with the rows of the model that everybody was sent"
        )
    p, *models = np.split(features, features.shape[1] // classes, axis=1)
    return p, models
