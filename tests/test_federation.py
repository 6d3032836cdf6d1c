"""The federation in one process: training, the scores' fast form, public features, the echo test and the riders."""

from __future__ import annotations

import doctest
import importlib
import itertools
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import riders
import scipy.linalg
import simulated
from simulated import average, clients, federate, initial, pair_scores, predict, train

import verax
from verax import echo
from verax.echo import echo_test, kinships, perturbed, public_features, standing, stepped
from verax.errors import InputError, OptionError


@pytest.mark.parametrize("module", [riders, simulated])
def test_the_examples_of_the_simulated_federation_are_right(module):
    assert doctest.testmod(module).failed == 0


def blobs(rng, n, classes=4, width=100):
    """Classes around centres of their own."""
    labels = rng.integers(0, classes, n)
    centres = np.random.default_rng(5).standard_normal((classes, width)) * 0.3
    return (centres[labels] + rng.standard_normal((n, width))).astype(np.float32), labels


@pytest.fixture(scope="module")
def played():
    rng = np.random.default_rng(0)
    inputs, labels = blobs(rng, 4000)
    members = clients(inputs[:2400], labels[:2400], [300] * 6, rng)
    rounds = list(federate(initial((100, 32, 4), rng), members, 4, rng))
    return rounds, inputs[2400:], labels[2400:]


def said(model, pool):
    return predict(model, pool).argmax(1)


def test_training_learns_and_leaves_its_start_alone(played):
    rounds, pool, labels = played
    start = rounds[0].broadcast
    before = [a.copy() for a in start]
    assert (said(rounds[-1].replies[0], pool) == labels).mean() > (said(start, pool) == labels).mean() + 0.3
    train(start, pool[:64], labels[:64], np.random.default_rng(1))
    assert all((a == b).all() for a, b in zip(start, before, strict=True))


def test_a_training_step_follows_the_numerical_slope():
    rng = np.random.default_rng(3)
    weights = [a.astype(np.float64) + 0.1 for a in initial((5, 4, 3), rng)]
    inputs, labels = rng.random((7, 5)), rng.integers(0, 3, 7)

    def loss(w):
        return -np.log(predict(w, inputs)[np.arange(7), labels]).mean()

    after = train(weights, inputs, labels, rng, epochs=1, rate=1e-3, batch=7)
    for k, array in enumerate(weights):
        for at in np.ndindex(array.shape):
            moved = [[a.copy() for a in weights] for _ in range(2)]
            moved[0][k][at] += 1e-5
            moved[1][k][at] -= 1e-5
            slope = (loss(moved[0]) - loss(moved[1])) / 2e-5
            assert (array - after[k])[at] / 1e-3 == pytest.approx(slope, abs=1e-6)


def test_clients_get_disjoint_examples_of_the_sizes_asked():
    labels = np.arange(1000) % 10
    inputs = np.arange(1000)[:, None].astype(np.float32)
    rng = np.random.default_rng(0)
    members = clients(inputs, labels, [100, 200], rng, noise=[0, 1.0])
    rows = np.concatenate([c.inputs[:, 0] for c in members])
    assert len(set(rows)) == len(rows) == 300
    assert (members[0].labels == members[0].inputs[:, 0] % 10).all()
    assert (members[1].labels == members[1].inputs[:, 0] % 10).mean() < 0.3
    skewed = clients(inputs, labels, [60] * 8, rng, skew=0.1)
    assert max(np.bincount(c.labels).max() / len(c.labels) for c in skewed) > 0.5
    with pytest.raises(InputError, match="fewer"):
        clients(inputs, labels, [600, 600], rng)


def test_the_server_sets_the_weights(played):
    rounds, _, _ = played
    replies = rounds[0].replies
    assert all((a == b).all() for a, b in zip(average(replies, [0, 1, 0, 0, 0, 0]), replies[1], strict=True))
    assert all(
        np.allclose(a, b) for a, b in zip(average(replies, np.zeros(6)), average(replies, np.ones(6)), strict=True)
    )
    for shares in ([1] * 5, [-1, 2, 1, 1, 1, 1], [float("nan")] + [1] * 5):
        with pytest.raises(InputError, match="share"):
            average(replies, shares)


@pytest.mark.parametrize("public", [False, True])
def test_pair_scores_are_those_of_verax(played, public):
    rounds, pool, _ = played
    labels = np.array([said(m, pool[:300]) for m in rounds[2].replies])
    features = None
    if public:
        features = public_features(predict, rounds[2].broadcast, rounds[2].earlier, pool[:300], 7, copies=3)
    pairs, stderr = pair_scores(labels, 4, features)
    scored = verax.score(verax.Reports.of(labels=labels, classes=range(4)), public=features)
    for i, s in enumerate(scored.scores):
        assert np.delete(pairs[i], i).mean() == pytest.approx(s.score, abs=1e-12)
        assert stderr[i] == pytest.approx(s.stderr, rel=0.1)
    middle = verax.score(verax.Reports.of(labels=labels, classes=range(4)), public=features, over="median")
    for i, s in enumerate(middle.scores):
        assert np.median(np.delete(pairs[i], i)) == pytest.approx(s.score, abs=1e-12)


def test_public_riders_score_nothing_once_public_features_are_taken_out(played):
    rounds, pool, _ = played
    last = rounds[-1]
    rng = np.random.default_rng(2)
    rides = [riders.echo, riders.stale, *(riders.extrapolated(s) for s in (0.5, 1.0, 2.0))]
    models = [*last.replies, *(ride(last.history, rng) for ride in rides)]
    features = public_features(predict, last.broadcast, last.earlier, pool, 7, copies=4)
    labels = [said(m, pool) for m in models]
    pairs, _ = pair_scores(labels, 4, features)
    assert abs(pairs[6:]).max() < 1e-10
    plain, _ = pair_scores(labels, 4)
    assert plain[6, :6].mean() > 0.9 * plain[:6, :6].mean()


def test_public_features_are_the_same_for_the_same_seed_and_want_a_copy(played):
    rounds, pool, _ = played
    made = [public_features(predict, rounds[1].broadcast, rounds[1].earlier, pool[:50], s, copies=2) for s in (1, 1, 2)]
    assert (made[0] == made[1]).all()
    assert (made[0] != made[2]).any()
    with pytest.raises(OptionError, match="at least 1"):
        public_features(predict, rounds[1].broadcast, [], pool[:50], 1, copies=0)


def test_imitations_that_are_given_score_nothing(played):
    rounds, pool, _ = played
    last = rounds[-1]
    ride = riders.trained(lambda rng: pool[rng.permutation(len(pool))[:100]], "own")
    model = ride(last.history, np.random.default_rng(1))
    features = public_features(predict, last.broadcast, last.earlier, pool, 7, copies=4, imitations=[[model]])
    pairs, _ = pair_scores([said(m, pool) for m in (*last.replies, model)], 4, features)
    assert abs(pairs[6, :6]).max() < 1e-10
    kin = echo_test([*last.replies, model], last.broadcast, last.earlier, imitations=[model])
    assert kin[-1].ratio == 0


def test_the_echo_test_tells_work_from_what_is_public_or_noise(played):
    rounds, _, _ = played
    last, rng = rounds[-1], np.random.default_rng(4)
    now, before = last.broadcast, last.earlier[-1]
    rides = [now, before, last.earlier[0], stepped(now, before, 1.7), [2 * a for a in now],
             [a + c * (a - b) for c, a, b in zip((1, -2, 0, 3), now, before, strict=True)]]  # fmt: skip
    noisy = [perturbed(now, s, rng) for s in (0.01, 0.1, 0.3, 1.0, 3.0)] + [riders.shaped(2.0)(last.history, rng)]
    for model in rides:
        assert echo_test([*last.replies, model], now, last.earlier)[-1].ratio == 0
    for model in noisy:
        verdicts = echo_test([*last.replies, model], now, last.earlier)
        assert not verdicts[-1].worked
        assert sum(v.worked for v in verdicts[:-1]) == 6


def test_noise_shares_one_in_the_mean_whatever_its_shape():
    rng = np.random.default_rng(0)
    shape = np.exp(2 * rng.standard_normal(400))
    v = [rng.standard_normal(400) for _ in range(2)]
    zero = [np.zeros(400)]
    drawn = [echo_test([[shape * rng.choice([-1, 1], 400)], [v[0]], [v[1]]], zero, [])[0].ratio for _ in range(3000)]
    # The median of two is their mean, and each has mean 1.
    assert np.mean(drawn) == pytest.approx(1, abs=4 * np.std(drawn) / np.sqrt(3000))


def test_over_all_signs_noise_shares_exactly_one_and_much_no_more_often_than_proved():
    rng = np.random.default_rng(0)
    size, peer = np.exp(2 * rng.standard_normal(10)), [rng.standard_normal(10)]
    signs = 1 - 2 * (np.arange(1 << 10)[:, None] >> np.arange(10) & 1)
    shared = kinships([peer, *([size * row] for row in signs)], [np.zeros(10)], [])[0, 1:]
    assert shared.mean() == pytest.approx(1, abs=1e-12)
    for least in (2.0, 4.0, 6.0):  # Hoeffding's bound on a sum of independent signs
        assert (shared >= least).mean() <= 2 * np.exp(-least / 2)


def kinships_by_definition(replies, broadcast, earlier, imitations):
    """All of every update at once, in whole vectors: what a network of any size could not afford."""
    sent = [*earlier, broadcast]
    public = [broadcast, *([b - a for a, b in zip(x, y, strict=True)] for x, y in itertools.pairwise(sent))]

    def left(model):
        found = []
        for k, (array, now) in enumerate(zip(model, broadcast, strict=True)):
            span = scipy.linalg.orth(np.stack([p[k].ravel() for p in public], 1), rcond=1e-6)
            update = (array - now).ravel()
            found.append(update - span @ (span.T @ update))
        return np.concatenate(found)

    rest = np.stack([left(model) for model in replies])
    if imitations:
        made = scipy.linalg.orth(np.stack([left(model) for model in imitations], 1), rcond=1e-6)
        rest = rest - rest @ made @ made.T
    return (rest @ rest.T) ** 2 / (rest**2 @ (rest**2).T)


@pytest.mark.parametrize("block", [7, 1 << 15])
@pytest.mark.parametrize("made", [0, 2])
def test_kinships_found_block_by_block_are_those_of_the_definition(monkeypatch, block, made):
    monkeypatch.setattr(echo, "_BLOCK", block)
    rng = np.random.default_rng(3)

    def model():
        return [rng.standard_normal(shape) for shape in ((6, 5), (40,), (), (0, 3))]

    broadcast, earlier, imitations = model(), [model(), model()], [model() for _ in range(made)]
    taught = model()
    replies = [[b + t + n for b, t, n in zip(broadcast, taught, model(), strict=True)] for _ in range(4)]
    expected = kinships_by_definition(replies, broadcast, earlier, imitations)
    assert kinships(replies, broadcast, earlier, imitations=imitations) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_twenty_models_of_eleven_million_weights_are_looked_through_in_ten_seconds_and_little_room():
    """In a process of its own, whose largest size is that of the models and at most a tenth of a gigabyte more."""
    program = (
        "import resource, sys, time\nimport numpy as np\nfrom verax.echo import echo_test\n"
        "rng = np.random.default_rng(0)\n"
        "draw = lambda: [rng.standard_normal(2_200_000, np.float32) for _ in range(5)]\n"
        "now, models = draw(), [draw() for _ in range(20)]\n"
        "room = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before, start = room(), time.process_time()\n"
        "echo_test(models, now, [])\n"
        "print(time.process_time() - start, (room() - before) / 1e6)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    took, grew = map(float, done.stdout.split())
    assert took < 10 and grew < 0.1


def test_a_minority_that_shares_its_noise_does_not_pass(played):
    rounds, _, _ = played
    last = rounds[-1]
    noise = perturbed(last.broadcast, 0.5, np.random.default_rng(1))
    verdicts = echo_test([*last.replies, *[noise] * 4], last.broadcast, last.earlier)
    assert [v.worked for v in verdicts[6:]] == [False] * 4
    with pytest.raises(InputError, match="3 at least"):
        echo_test(last.replies[:2], last.broadcast, last.earlier)


def test_a_reply_of_nonsense_numbers_gets_nothing_and_harms_nobody(played):
    rounds, _, _ = played
    last = rounds[-1]
    broken = [np.full_like(a, np.nan) for a in last.broadcast]
    verdicts = echo_test([*last.replies, broken], last.broadcast, last.earlier)
    assert verdicts[-1].ratio == 0
    assert all(v.worked for v in verdicts[:-1])


def test_rounds_together_tell_noise_from_work_in_a_small_network():
    rng = np.random.default_rng(1)
    inputs, labels = blobs(rng, 2400, width=20)
    ratios = []
    for played in federate(initial((20, 16, 4), rng), clients(inputs, labels, [200] * 6, rng), 8, rng):
        replies = [*played.replies, perturbed(played.broadcast, 0.3, rng)]
        ratios.append([v.ratio for v in echo_test(replies, played.broadcast, played.earlier)])
    found = standing(ratios)
    assert found[:-1].min() > 2 > 1.5 > found[-1]


def test_riders_sit_among_the_replies_and_count_in_the_average():
    rng = np.random.default_rng(0)
    inputs, labels = blobs(rng, 400)
    start = initial((100, 8, 4), rng)
    first, second = federate(start, clients(inputs, labels, [100], rng), 2, rng, riders=[riders.echo])
    assert first.replies[1] is start
    middle = [(a + b) / 2 for a, b in zip(*first.replies, strict=True)]
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(second.broadcast, middle, strict=True))


def test_relabelling_and_constants_say_what_they_should(played):
    rounds, pool, _ = played
    model = rounds[-1].replies[0]
    names = np.array([2, 0, 3, 1])
    assert (said(riders.relabelled(model, names), pool) == names[said(model, pool)]).all()
    assert (said(riders.constant(3)(rounds[0].history, np.random.default_rng(0)), pool) == 3).all()
    lied = riders.misreported(said(model, pool), 0.3, 4, np.random.default_rng(0))
    assert (lied != said(model, pool)).mean() == pytest.approx(0.3, abs=0.05)
    assert riders.stale(rounds[0].history, np.random.default_rng(0)) is rounds[0].broadcast


def test_the_study_runs_from_end_to_end_on_small_worlds(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="the study draws with matplotlib")
    study = importlib.import_module("federation")

    def small(name, folder):
        rng = np.random.default_rng(1)
        return [(np.maximum(x, 0), y) for x, y in (blobs(rng, n, classes=10) for n in (3400, 700))]

    monkeypatch.setattr(study, "data", small)
    monkeypatch.setattr(study, "ROUNDS", 3)
    monkeypatch.setattr(study, "PRIVATE", (1.0,))
    monkeypatch.setattr(study, "SIZES", dict.fromkeys(("mnist", "digits"), (150, 300, 24, 500, 400, 60)))
    monkeypatch.setattr(study, "ProcessPoolExecutor", ThreadPoolExecutor)
    monkeypatch.setattr(study, "checked", dict)  # so small, it shows nothing
    study.main(["--data-dir", "nowhere", "--out", str(tmp_path), "--seeds", "1"])
    left = json.loads((tmp_path / "federation.json").read_text())
    recorded = json.loads((Path(study.HERE) / "results" / "federation.json").read_text())
    assert list(left) == list(recorded)
    for skew, riding in left["every"]["pay"].items():
        assert list(riding) == list(recorded["every"]["pay"][skew])
        assert riding["echo"]["every"]["max"] == riding["stale"]["every"]["max"] == 0
    assert (tmp_path / "federation.png").stat().st_size > 10_000
    assert "standing on digits" in capsys.readouterr().out

    again = []
    monkeypatch.setattr(study, "drawn", dict)
    monkeypatch.setattr(study, "leave", lambda out, name, numbers, figure: again.append(numbers))
    study.main(["--data-dir", "nowhere", "--out", str(tmp_path), "--seeds", "1", "--part", "small network"])
    assert json.loads(json.dumps(again[0]["every"])) == left["every"]
    assert again[0]["small network"]["IID"]["honest"]["min"] == pytest.approx(
        left["small network"]["IID"]["honest"]["min"]
    )
