"""Reports in shards score as they do whole: to the last bit for labels, whoever reads them, or not at all."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pytest
from numpy.random import default_rng

import verax
from verax import Reports
from verax.mechanisms import Options
from verax.tally import Tally

MECHANISMS = [
    {},
    {"rule": "ca"},
    {"rule": "ca", "sign": "plugin"},
    {"rule": "ca", "sign": "identity", "over": "median"},
    {"rule": "ca", "over": "median"},
    {"over": "median"},
    {"rule": "ce"},
    {"rule": "brier"},
    {"rule": "ce", "over": "median", "floor": 1e-3},
    {"rule": "ca", "sign": "matrix"},
    {"rule": "ca", "sign": "zeros and ones"},
]  # fmt: skip


def world(case):
    """A random case: reports, options, and the truth as a mapping or None."""
    rng = default_rng(case)
    agents, tasks, size = (int(rng.integers(*limits)) for limits in ((2, 9), (6, 120), (2, 6)))
    options = dict(MECHANISMS[case % len(MECHANISMS)])
    right = rng.integers(0, size, tasks)
    labels = np.where(rng.random((agents, tasks)) < 0.6, right, rng.integers(0, size, (agents, tasks)))
    if case % 3 == 1:
        labels[rng.random(labels.shape) < 0.2] = -1
    if case % 3 == 2:  # the same gaps in several agents, as `linear` groups them
        labels = np.where((rng.random((2, tasks)) < 0.8)[rng.integers(0, 2, agents)], labels, -1)
    rows = None
    if options.get("rule") in ("ce", "brier"):
        rows = rng.random((agents, tasks, size)) + 3 * np.eye(size)[np.maximum(labels, 0)]
        rows = np.where((labels < 0)[..., None], np.nan, rows / rows.sum(2, keepdims=True))
    names = [f"c{i}" for i in range(size)]
    match options.get("sign"):
        case "matrix":
            options["sign"] = rng.random((size, size))
        case "zeros and ones":
            options["sign"] = (rng.random((size, size)) < 0.5).astype(int)
    reports = Reports.of(labels, rows, agents=[f"a{i}" for i in range(agents)], classes=names,
                         tasks=[f"t{i}" for i in rng.permutation(tasks)])  # fmt: skip
    truth = None
    if case // len(MECHANISMS) % 3:
        covered = rng.random(tasks) < (1.0 if case // len(MECHANISMS) % 3 == 1 else 0.4)
        covered[:2] = True
        truth = {
            t: names[k] for t, k, known in zip(reports.tasks, right.tolist(), covered.tolist(), strict=True) if known
        }
        if len(truth) == tasks:
            options.pop("over", None)
    return reports, options, truth


def cut(reports, rng, pieces, named=False):
    """The reports in batches of tasks; labels alone name only the agents and classes that occur there, as files do."""
    place = rng.integers(0, pieces, len(reports.tasks))
    batches = [reports.take(place == piece) for piece in range(pieces) if (place == piece).any()]
    given = reports.probabilities is not None or named or rng.random() < 0.3
    return batches if given else [bare(batch) for batch in batches]


def bare(batch):
    who = np.nonzero((batch.labels >= 0).any(1))[0]
    used = np.unique(batch.labels[batch.labels >= 0])
    labels = np.where(batch.labels[who] < 0, -1, np.searchsorted(used, batch.labels[who]))
    names = [batch.classes[k] for k in used]
    named = Reports.of(labels, agents=[batch.agents[i] for i in who], tasks=batch.tasks, classes=names)
    return replace(named, classes_given=False)


def alike(one, other):
    """The same document; labels to the last bit, errors and rows to rounding."""
    assert (one.mechanism, one.tasks, one.classes, one.warnings) == (
        other.mechanism, other.tasks, other.classes, other.warnings,
    )  # fmt: skip
    exact = one.mechanism.rule not in ("ce", "brier")
    for a, b in zip(one.scores, other.scores, strict=True):
        assert (a.agent, a.tasks, a.references) == (b.agent, b.tasks, b.references)
        assert (
            a.score == b.score
            if exact or b.score is None
            else math.isclose(a.score, b.score, rel_tol=1e-11, abs_tol=1e-13)
        )
        assert (a.stderr is None) == (b.stderr is None)
        assert a.stderr is None or math.isclose(a.stderr, b.stderr, rel_tol=1e-12, abs_tol=1e-14)


def tallied(batches, options, truth, pairs=False):
    tally = Tally(Options(**options), truth, pairs=pairs)
    for batch in batches:
        tally.update(batch)
    return tally


@pytest.mark.parametrize("case", range(len(MECHANISMS) * 3))
def test_batches_of_tasks_score_as_the_whole(case):
    for seed in (case, case + 99, case + 198, case + 297):
        reports, options, truth = world(seed)
        given = "sign" in options and not isinstance(options["sign"], str)
        batches = cut(reports, default_rng(seed), 1 + case % 5, given)
        whole = verax.score(reduce(add, batches), truth, **options)
        try:
            scores = tallied(batches, options, truth).scores(again=batches)
        except verax.tally.Abstained:
            scores = tallied(batches, options, truth, pairs=True).scores(again=batches)
        alike(scores, whole)
