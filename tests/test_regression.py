"""Numbers as answers: why no rule scores them by squared loss, and that bins with `ca` do; by brute force."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import verax
from verax.errors import InputError, OptionError
from verax.received import Question
from verax.reports import Reports

PAGE = (Path(__file__).parents[1] / "docs" / "regression.md").read_text()


@pytest.fixture
def world():
    """P(s, t, y) of two agents' signals and the truth: y of 0 or 1, signals right three times in four."""
    right = np.array([0.75, 0.25])
    return np.array([[[0.5 * right[abs(s - y)] * right[abs(t - y)] for y in (0, 1)] for t in (0, 1)] for s in (0, 1)])


def paid(report, reference, joint):
    """Q = 2 cov(x, g) - var(x), which is var(g) less the squared loss of x once both means are taken out."""
    x, g = report - joint.sum(1) @ report, reference - joint.sum(0) @ reference
    return 2 * x @ joint @ g - joint.sum(1) @ x**2


def best_reply(reference, joint):
    """Of all reports on a grid, the one that is paid best; moved so that it is 0 for the first signal."""
    grid = np.linspace(-1, 1, 81)
    found = max(product(grid, repeat=len(joint)), key=lambda x: paid(np.array(x), reference, joint) - 1e-9 * abs(x[0]))
    return np.array(found) - found[0]


def test_a_covariance_pays_whoever_exaggerates(world):
    joint, y = world.sum(1), np.array([0.0, 1.0])
    belief = joint @ y / joint.sum(1)
    covariance = [c * (belief - belief @ joint.sum(1)) @ joint @ (y - joint.sum(0) @ y) for c in (1, 10)]
    assert covariance[1] == pytest.approx(10 * covariance[0])


def test_beside_truth_the_best_reply_to_a_squared_loss_is_ones_belief(world):
    joint, y = world.sum(1), np.array([0.0, 1.0])
    belief = joint @ y / joint.sum(1)
    assert best_reply(y, joint) == pytest.approx(belief - belief[0])
    assert paid(np.full(2, 0.3), y, joint) == pytest.approx(0)


def test_beside_an_honest_peer_it_is_a_quarter_of_it_and_beside_that_a_quarter_again(world):
    joint, y = world.sum(2), np.array([0.0, 1.0])
    belief = world.sum(1) @ y / world.sum((1, 2))
    replies = [belief - belief[0]]
    for _ in range(3):
        replies.append(best_reply(replies[-1], joint))
    assert [reply[1] for reply in replies] == pytest.approx([0.5, 0.125, 0.025, 0.0], abs=0.03)


def test_what_no_scale_changes_pays_noise():
    """The mean of cov^2 / var(x) over worlds in which nothing is known is var(g) / (N - 1), not 0."""
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(2, 4000, 20))
    x, g = (a - a.mean(1, keepdims=True) for a in (x, g))
    assert np.mean((x * g).sum(1) ** 2 / (x**2).sum(1) / 19) == pytest.approx(1 / 19, rel=0.06)


def gaussian_bins(correlation, bins, agents=2, tasks=200_000):
    rng = np.random.default_rng(1)
    common = rng.normal(size=tasks)
    numbers = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * rng.normal(size=(agents, tasks))
    return np.digitize(numbers, np.quantile(rng.normal(size=100_000), np.arange(1, bins) / bins))


def every_relabelling(own, reference, sign):
    """What an agent earns by every map of its bins, the honest one first."""
    maps = sorted(product(range(len(sign)), repeat=len(sign)), key=lambda m: m != tuple(range(len(sign))))
    for chosen in maps:
        yield verax.Joint.of(np.array(chosen)[own], reference, len(sign)).score(sign).value


@pytest.mark.parametrize(("rule", "gains"), [("ca", False), ("zero-one", True)])
def test_bins_finer_than_agents_agree_are_truthful_under_ca_and_not_under_zero_one(rule, gains):
    sign = (gaussian_delta(0.2, 4) > 0).astype(int) if rule == "ca" else np.eye(4, dtype=int)
    honest, *others = every_relabelling(*gaussian_bins(0.2, 4, tasks=50_000), sign)
    assert (max(others) > 1.04 * honest) == gains


def test_a_constant_or_noise_earns_nothing_in_bins():
    labels = gaussian_bins(0.6, 7, agents=4, tasks=5_000)
    labels[2], labels[3] = 3, np.random.default_rng(0).integers(0, 7, 5_000)
    found = verax.score(Reports.of(labels, classes=[*map(str, range(7))]), rule="ca")
    assert found["2"].score == 0 and abs(found["3"].score) < 4 * found["3"].stderr
    assert min(found["0"].score, found["1"].score) > 10 * found["0"].stderr


def test_what_is_asked_for_numbers_is_refused_with_the_reason_and_the_page():
    for name in ("squared", "mse", "mae"):
        with pytest.raises(OptionError, match=r"beside peers.*shrink.*bins.*rule ca.*docs/regression\.md"):
            verax.score(Reports.of([[0, 1], [0, 1]]), rule=name)
    with pytest.raises(InputError, match=r"label 0\.5 is no whole number.*bins.*docs/regression\.md"):
        Reports.of([[0.5, 1.2], [0.1, 0.7]])
    question = Question(np.zeros(3), lambda model, pool: np.array([0.1, 2.0, 3.0]), 3, 4)
    with pytest.raises(InputError, match=r"numbers.*bins.*docs/regression\.md"):
        question.tried_on({})


def test_the_pages_program_prints_what_it_shows(capsys):
    program, shown = (re.search(rf"```{kind}\n(.*?)```", PAGE, re.S)[1] for kind in ("python", "text"))
    exec(compile(program, "regression.md", "exec"), {})
    assert capsys.readouterr().out.split() == shown.split()


def test_the_pages_table_is_what_the_formula_gives():
    for correlation, *cells in re.findall(r"^\| (0\.\d) \|(.*)\|$", PAGE, re.M):
        for bins, cell in zip((2, 3, 5, 10), cells[0].split("|"), strict=True):
            gain, worth = (float(x) for x in re.findall(r"[\d.]+", cell))
            delta = gaussian_delta(float(correlation), bins)
            assert 100 * (delta.max(1).sum() / np.trace(delta) - 1) == pytest.approx(gain, abs=0.5)
            assert delta[delta > 0].sum() == pytest.approx(worth, abs=0.0051)


def gaussian_delta(correlation, bins):
    """Delta of two agents' equally filled bins, from the normal distribution."""
    norm = pytest.importorskip("scipy.stats").norm
    z = np.linspace(-8, 8, 4001)
    weight = norm.pdf(z) / norm.pdf(z).sum()
    cuts = norm.ppf(np.linspace(0, 1, bins + 1))
    over = norm.cdf((cuts - correlation * z[:, None]) / np.sqrt(1 - correlation**2))
    own = np.searchsorted(cuts[1:-1], z)
    joint = np.array([(weight[own == k, None] * np.diff(over, axis=1)[own == k]).sum(0) for k in range(bins)])
    return joint - np.outer(joint.sum(1), joint.sum(0))
