"""The exam against its definitions, against a short oracle where at hand, and against what theory says."""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from verax.errors import InputError, OptionError
from verax.exam import Exam, ExamRecord, HeldBack
from verax.examiners import Mark, balanced, loadings, marks, mean_mark, middle, pooled
from verax.innovations import beside_peers, clipped, fitted, left_of, local_moves, public_moves
from verax.payments import pay_marks
from verax.plan import Mechanism
from verax.score import Score, Scores

PROTOTYPE = Path(__file__).parents[2] / "shared" / "prototypes" / "exam_and_side.py"
CLASSES = 4


@pytest.fixture(scope="module")
def oracle():
    if not PROTOTYPE.exists():
        pytest.skip("the short prototype is not at hand (../shared/prototypes)")
    spec = importlib.util.spec_from_file_location("exam_and_side", PROTOTYPE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def world(seed, n=600, classes=CLASSES, models=3):
    """Rows of a broadcast and of public models, and labels drawn from those rows: the broadcast is calibrated."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(classes), n)
    others = [0.7 * p + 0.3 * rng.dirichlet(np.ones(classes), n) for _ in range(models)]
    y = (rng.random(n)[:, None] > p.cumsum(1)).sum(1)
    return rng, p, others, y


def informed(rng, p, y, share=0.3):
    """Rows that move towards the truth on some inputs."""
    knows = rng.random(len(y)) < share
    return p + 0.2 * knows[:, None] * (np.eye(p.shape[1])[y] - p)


def noised(rng, p, size=0.05):
    noise = rng.normal(0, size, p.shape)
    return p + noise - noise.mean(1, keepdims=True)


def slow_innovation(d, p, models):
    """The definition, answer by answer, by another solver."""
    n, classes = p.shape
    left = d.copy()
    for c in range(classes):
        at = [i for i in range(n) if p[i].argmax() == c]
        columns = []
        for k in range(3 + classes + len(models)):
            columns.append([_move(p[i], k, classes, [m[i] for m in models]) for i in at])
        table = np.array(columns).reshape(len(columns), -1).T
        beta, *_ = np.linalg.lstsq(table, d[at].ravel(), rcond=1e-6)
        left[at] -= (table @ beta).reshape(-1, classes)
    return left


def _move(p, k, classes, models):
    first, second = (np.eye(classes)[np.argsort(p)[-place]] for place in (1, 2))
    if k == 0:
        entropy = sum(a * math.log(max(a, 1e-4)) for a in p)
        return [a * (math.log(max(a, 1e-4)) - entropy) for a in p]
    if k == 1:
        return first - p
    if k < 3 + classes:
        towards = second if k == 2 else np.eye(classes)[k - 3]
        return p * towards - p * (p @ towards)
    return models[k - 3 - classes] - p


def test_an_innovation_is_what_the_definition_leaves():
    rng, p, models, y = world(1, n=240)
    d = informed(rng, p, y) - p
    found = fitted(p, public_moves(p, models)).innovation(d)
    np.testing.assert_allclose(found, slow_innovation(d, p, models), atol=1e-12)
    for k in range(public_moves(p, models).shape[2]):
        assert abs((found * public_moves(p, models)[:, :, k]).sum()) < 1e-10


@pytest.mark.parametrize("seed", range(6))
def test_innovations_marks_and_gates_are_the_oracles(oracle, seed):
    rng, p, models, y = world(seed, classes=2 + seed % 4)
    replies = np.stack([informed(rng, p, y), noised(rng, p), 0.5 * p + 0.5 * models[0], rng.dirichlet(p[0], len(p))])
    who, prior = rng.integers(0, 5, len(y)), p.mean(0)
    theirs = oracle.innovations(replies - p, oracle.public(p, models))
    fit = fitted(p, public_moves(p, models))
    ours = np.stack([fit.innovation(f - p) for f in replies])
    np.testing.assert_allclose(ours, theirs, atol=1e-12)
    np.testing.assert_allclose(balanced(y, prior), oracle.balanced(y, prior), atol=1e-12)
    psi = oracle.scores(theirs, p, y, prior, who)
    exam = Exam(y, [str(h) for h in who], range(p.shape[1]), most=math.inf)
    exam.sit(p, public_moves(p, models), {str(i): f for i, f in enumerate(replies)})
    for i, s in enumerate(exam.scores()):
        assert s.score == pytest.approx(np.nanmean(psi[i]), abs=1e-12)
        assert s.stderr == pytest.approx(np.nanstd(psi[i]) / math.sqrt((who != i).sum()), abs=1e-12)
        assert s.tasks == (who != i).sum() and s.references == 4
        assert (s.score if s.score > 3 * s.stderr else 0.0) == pytest.approx(oracle.settle([psi[i]]), abs=1e-12)
        assert s.score == pytest.approx(oracle.settle([psi[i]], None), abs=1e-12)


def test_rounds_are_added_up_before_anybody_is_judged(oracle):
    exam, tables, y = None, [], world(3)[3]
    prior = np.mean([world(seed)[1].mean(0) for seed in (3, 4, 5)], 0)
    for seed in (3, 4, 5):
        rng, p, models, _ = world(seed)
        replies = {"a": informed(rng, p, y), "b": noised(rng, p)}
        exam = exam or Exam(y, [None] * len(y), range(CLASSES), most=math.inf)
        exam.sit(p, public_moves(p, models), replies)
        u = oracle.innovations(np.stack([*replies.values()]) - p, oracle.public(p, models))
        tables.append(oracle.scores(u, p, y, prior))
    for i, s in enumerate(exam.scores()):
        assert s.score == pytest.approx(oracle.settle(np.stack(tables)[:, i], None), abs=1e-12)
    assert exam.rounds == 3


def test_what_is_public_has_no_innovation_and_no_mark():
    rng, p, models, y = world(2)
    public = public_moves(p, models)
    top = p.argmax(1)
    mixture = p + (public @ rng.normal(size=(CLASSES, public.shape[2]))[top][:, :, None])[:, :, 0]
    exam = Exam(y, [None] * len(y), range(CLASSES))
    exam.sit(p, public, {"echo": p, "stale": models[0], "mixture": mixture, "worked": informed(rng, p, y)})
    for agent in ("echo", "stale", "mixture"):
        assert exam.scores()[agent].score == 0.0 and exam.scores()[agent].stderr == 0.0
    verdicts = {c.agent: c.verdict for c in exam.sheet().certificates()}
    assert verdicts == {"echo": "fails", "stale": "fails", "mixture": "fails", "worked": "holds"}


def test_a_reply_without_information_scores_0_whatever_it_does_and_the_gate_errs_as_promised():
    """400 worlds, two replies: any function of inputs and public rows, with noise. z is a standard normal."""
    z = []
    for seed in range(400):
        rng, p, models, y = world(seed, n=200, classes=3)
        wild = np.sin(7 * p + 3 * models[0][:, ::-1]) * p
        replies = {"wild": p + 0.1 * wild, "noise": noised(rng, models[1])}
        exam = Exam(y, [None] * len(y), range(3))
        exam.sit(p, public_moves(p, models), replies)
        z += [s.score / s.stderr for s in exam.scores()]
    assert abs(np.mean(z)) < 4 / math.sqrt(len(z))
    assert 0.9 < np.std(z) < 1.1
    assert np.mean(np.abs(z) > 2) < 0.0455 + 4 * math.sqrt(0.0455 / len(z))
    assert sum(x > 3 for x in z) <= 6  # 1.1 expected; as many by chance in 1 of 2,000 runs


def test_a_mark_is_how_much_a_squared_loss_falls():
    rng, p, models, y = world(7)
    u = fitted(p, public_moves(p, models)).innovation(informed(rng, p, y) - p)
    one_hot, step = np.eye(CLASSES)[y], 1e-6
    loss = [((one_hot - p - move) ** 2).sum(1).mean() for move in (0, step * u)]
    assert marks(u, p, y).mean() == pytest.approx((loss[0] - loss[1]) / (2 * step), rel=1e-4)


def test_a_score_is_linear_in_the_reply():
    rng, p, models, y = world(8)
    one, other = informed(rng, p, y), noised(rng, p)
    public = public_moves(p, models)

    def score(f):
        exam = Exam(y, [None] * len(y), range(CLASSES))
        exam.sit(p, public, {"a": f})
        return exam.scores()["a"].score

    for share in (0.25, 0.5, 0.9):
        mixed = share * one + (1 - share) * other
        assert score(mixed) == pytest.approx(share * score(one) + (1 - share) * score(other), abs=1e-13)


@pytest.mark.parametrize("over", ["mean", "median", "trusted"])
def test_other_names_and_another_order_change_nothing_by_a_bit(over):
    rng, p, models, y = world(9)
    public, rng = public_moves(p, models), np.random.default_rng(5)
    replies = {name: informed(rng, p, y, 0.1 * (i + 1)) for i, name in enumerate("abcde")}
    holders = [*rng.choice([*"abcde"], len(y))]

    def found(names):
        exam = Exam(y, [names[h] for h in holders], range(CLASSES), over=over, own_past="public")
        for _ in range(2):
            exam.sit(p, public, {names[a]: replies[a] for a in reversed("abcde")})
        back = {new: old for old, new in names.items()}
        return {back[s.agent]: (s.score, s.stderr) for s in exam.scores()}, exam.exposure(100)

    assert found(dict(zip("abcde", "abcde", strict=True))) == found(dict(zip("abcde", "dbeca", strict=True)))


def test_nobody_is_examined_on_its_own_examples():
    rng, p, models, y = world(10)
    holders = ["a" if n % 3 == 0 else "b" for n in range(len(y))]
    lie = np.where([h == "a" for h in holders], (y + 1) % CLASSES, y)
    public, f = public_moves(p, models), informed(rng, p, y)
    scores = []
    for labels in (y, lie):
        exam = Exam(labels, holders, range(CLASSES))
        exam.sit(p, public, {"a": f, "b": f})
        scores.append(exam.scores())
    assert scores[0]["a"] == scores[1]["a"] and scores[0]["b"] != scores[1]["b"]
    alone = Exam(y, ["a"] * len(y), range(CLASSES))
    alone.sit(p, public, {"a": f})
    assert alone.scores()["a"].score is None
    assert alone.scores().warnings == ("nobody else holds labels to examine 'a' on",)


def test_a_replayed_move_is_worth_nothing_once_ones_own_past_is_public():
    rng, p, models, y = world(11)
    public, move = public_moves(p, models), informed(rng, p, y) - p

    def second_round(**terms):
        exam = Exam(y, [None] * len(y), range(CLASSES), **terms)
        exam.sit(p, public, {"a": p + move})
        before = exam.scores()["a"].score
        exam.sit(p, public, {"a": p + 0.8 * move})
        return (exam.scores()["a"].score - before) / before

    assert second_round() == pytest.approx(0.8)
    assert second_round(own_past="public") == 0.0


def test_a_rare_answer_and_a_rare_input_are_not_paid_for_what_cannot_be_told_from_public():
    rng, p, _, _ = world(12, n=300)
    p[5:] = p[5:][:, [1, 0, 2, 3]] if p[5:, 0].mean() > 0.5 else p[5:]
    p[:5] = np.array([0.01, 0.01, 0.01, 0.97])
    others = p[:, 3] < p[:, :3].max(1)
    p = np.concatenate([p[:5], p[others]])
    d = rng.normal(size=p.shape)
    u = fitted(p, public_moves(p)).innovation(d)
    assert (u[:5] == 0).all() and (np.abs(u[5:]).sum(1) > 0).all()


def test_coefficients_from_the_pool_do_on_inputs_that_only_a_member_has():
    """Client-side evaluation: the server fits on its pool, the examiner takes out what is public on its own inputs."""
    rng, p, models, y = world(13)
    public, pool = public_moves(p, models), np.arange(len(p)) < 450
    fit = fitted(p, public, on=pool)
    d = informed(rng, p, y) - p
    there = left_of(d[~pool], public[~pool], p[~pool].argmax(1), fit.coefficients(d))
    np.testing.assert_allclose(there, fit.innovation(d)[~pool], atol=1e-15)


def test_weights_give_labels_the_shares_of_the_pool_up_to_a_cap():
    y = np.array([0] * 80 + [1] * 20)
    w = balanced(y, [0.5, 0.5])
    assert w.mean() == pytest.approx(1) and w[y == 0].sum() == pytest.approx(w[y == 1].sum())
    rare = balanced(np.array([0] * 99 + [1]), [0.5, 0.5])
    assert rare[-1] == pytest.approx(5 * rare[0])


def test_the_error_of_a_median_of_examiners_is_right():
    rng = np.random.default_rng(0)
    found = [middle([mean_mark(rng.normal(0, 1, 50)) for _ in range(9)]) for _ in range(2000)]
    spread = statistics.stdev(m.score for m in found)
    assert statistics.mean(m.stderr for m in found) == pytest.approx(spread, rel=0.06)


def test_pooled_marks_are_the_mark_of_all_examples():
    rng = np.random.default_rng(3)
    parts = [rng.normal(i, 1 + i, 20 + 7 * i) for i in range(4)]
    found, whole = pooled([mean_mark(psi) for psi in parts]), mean_mark(np.concatenate(parts))
    assert found.score == pytest.approx(whole.score, abs=1e-13)
    assert found.stderr == pytest.approx(whole.stderr, abs=1e-13)
    assert (found.examples, found.examiners) == (whole.examples, 4)


def test_a_ring_that_pleases_itself_is_told_from_the_larger_side_and_known_labels_turn_the_verdict():
    """Two kinds of judge; each finds its own kind's replies good. Judges with more examples are no better for that."""
    kinds = {"a": 1, "b": 1, "c": 1, "d": -1, "e": -1}
    table = {
        agent: {judge: Mark(0.1 * k * j, 0.02, 100) for judge, j in kinds.items() if judge != agent}
        for agent, k in kinds.items()
    }
    found = loadings(table, [*kinds])
    assert [found[h] > 0.5 for h in kinds] == [True, True, True, False, False]
    known = {agent: by | {None: Mark(-0.1 * kinds[agent], 0.02, 10)} for agent, by in table.items()}
    turned = loadings(known, [*kinds, None])
    assert [turned[h] > 0.5 for h in kinds] == [False, False, False, True, True]


def crowd(liars, seed=0, over="mean", riders=("rider",)):
    """Ten members who examine one another, of whom some label at random what they hold back."""
    rng, p, models, y = world(seed, n=2000)
    names = [f"m{i}" for i in range(10)]
    holders = rng.choice(names, len(y))
    said = y.copy()
    for liar in names[:liars]:
        at = holders == liar
        said[at] = (y[at] + 1) % CLASSES
    exam = Exam(said, [*holders], range(CLASSES), over=over)
    replies = {name: informed(rng, p, y) for name in names} | {r: noised(rng, p) for r in riders}
    exam.sit(p, public_moves(p, models), replies)
    return exam


@pytest.mark.parametrize(
    ("liars", "over", "least"),
    [(2, "median", 0.7), (4, "median", 0.1), (4, "trusted", 0.9), (4, "trusted median", 0.8)],
)
def test_lying_examiners_below_one_half_cost_honest_members_little(liars, over, least):
    honest, lied = crowd(0, over=over).scores(), crowd(liars, over=over).scores()
    kept = [lied[f"m{i}"].score / honest[f"m{i}"].score for i in range(10)]
    assert np.mean(kept) > least
    assert abs(lied["rider"].score) < 0.1 * np.mean([honest[f"m{i}"].score for i in range(10)])
    broken = crowd(4).scores()
    assert np.mean([broken[f"m{i}"].score / honest[f"m{i}"].score for i in range(10)]) < 0.6


def test_an_examiner_who_lies_is_found_and_pays_for_it():
    exam = crowd(3)
    agreement = exam.sheet().agreement()
    assert [agreement[f"m{i}"] for i in range(3)] == [0, 0, 0]
    assert min(agreement[f"m{i}"] for i in range(3, 10)) > 0.5
    paid, whole = (
        pay_marks(crowd(3, over="trusted").scores(), budget="100.00", full_marks="0.05", agreement=a)
        for a in (agreement, None)
    )
    assert paid["m0"].amount == pytest.approx(0.8 * whole["m0"].amount, abs=1) and whole["m0"].amount > 0


def test_the_longest_innovation_counts_for_no_more_than_the_rest():
    u = clipped([np.full((2, 2), x) for x in (1.0, 2.0, 3.0, 50.0)], most=2.0)
    assert [float(v[0, 0]) for v in u] == [1.0, 2.0, 3.0, 5.0]
    assert clipped([np.zeros((1, 2))])[0].tolist() == [[0, 0]]


def test_peers_innovations_are_their_definition():
    rng = np.random.default_rng(0)
    u = rng.normal(size=(4, 30, 3))
    for i in range(4):
        mean = sum(u[j] for j in range(4) if j != i) / 3
        np.testing.assert_allclose(beside_peers([*u])[i], (u[i] * mean).sum(1), atol=1e-14)


def test_the_deposit_covers_bad_luck_as_often_as_it_says():
    """What is at stake is told from rows alone, and is what scores then vary by."""
    rows, z = [], []
    for seed in range(300):
        rng, p, models, y = world(seed, n=400, classes=3)
        exam = Exam(y, [None] * len(y), range(3))
        exam.sit(p, public_moves(p, models), {"noise": noised(rng, p)})
        rows.append(exam.exposure(sure=1.0))
        z.append(exam.scores()["noise"].score / rows[-1])
    assert 0.9 < np.std(z) < 1.15
    assert exam.exposure(100) == pytest.approx(2 * exam.exposure(400))


def listed(**found):
    return Scores(Mechanism("exam", "truth", "mean", None, True), 100, ("no", "yes"),
                  tuple(Score(agent, score, error, 100, 3) for agent, (score, error) in found.items()))  # fmt: skip


def test_signed_pay_gives_the_deposit_back_and_adds_up_to_the_unit():
    scores = listed(ann=(0.05, 0.01), bob=(0.02, 0.01), cy=(-0.02, 0.01), dan=(-0.9, 0.01))
    paid = pay_marks(scores, budget="40.00", full_marks="0.04", deposit="8.00", exposure=0.03)
    assert {p.agent: p.amount - 800 for p in paid} == {"ann": 1000, "bob": 500, "cy": -501, "dan": -800}
    assert sum(p.amount for p in paid) + paid.residue == paid.budget == 4000 + 4 * 800
    assert "Paid less than their deposit: 'cy', 'dan'." in paid.notes
    gated = pay_marks(scores, budget="40.00", full_marks="0.04")
    assert {p.agent: p.amount for p in gated} == {"ann": 1000, "bob": 0, "cy": 0, "dan": 0}
    twins = pay_marks(scores, budget="40.00", full_marks="0.04", clusters=[["ann", "bob"]])
    assert twins["ann"].amount + twins["bob"].amount == 1333


def test_a_short_stake_and_a_price_of_nothing_are_refused():
    with pytest.raises(OptionError, match=r"the deposit is 7\.49 and bad luck can take 7\.50; ask for 7\.50"):
        pay_marks(listed(a=(0.1, 0.1), b=(0.1, 0.1)), budget="20.00", full_marks="0.04", deposit="7.49", exposure=0.03)
    for terms in ({"full_marks": "0"}, {"full_marks": "0.1", "deposit": "-1"}):
        with pytest.raises(OptionError, match="give amounts above 0"):
            pay_marks(listed(a=(0.1, 0.1)), budget="20.00", **terms)


def test_an_exams_payments_are_computed_again_from_its_record_alone():
    exam = crowd(3, over="trusted")
    record = ExamRecord.of(exam, "mine", budget="100.00", full_marks="0.05", deposit="20.00", commitments={"m0": "abc"})
    text = json.dumps(record.to_json())
    again = ExamRecord.from_json(json.loads(text))
    assert again.sheet().scores() == exam.scores() and again.payments() == record.payments()
    agreement = exam.sheet().agreement()
    assert record.payments() == pay_marks(
        exam.scores(),
        budget="100.00",
        full_marks="0.05",
        deposit="20.00",
        exposure=exam.exposure(),
        agreement=agreement,
    )
    other = ExamRecord.from_json(record.to_json() | {"labels": [0] * len(record.labels)})
    assert other.payments() != record.payments()
    with pytest.raises(InputError, match="take the record anew"):
        ExamRecord.from_json(record.to_json() | {"worth": {"m0": "AAAA"}}).payments()


def test_held_back_examples_are_committed_to_byte_by_byte():
    held = HeldBack(np.arange(6, dtype=np.float32).reshape(3, 2), [0, 1, 1], "ann")
    promise = held.commitment("salt")
    changed = held.inputs.copy()
    changed[2, 1] += 1e-6
    for other in (
        HeldBack(held.inputs, [0, 1, 0], "ann"), HeldBack(held.inputs, [0, 1, 1], "bob"),
        HeldBack(changed, [0, 1, 1], "ann"), HeldBack(held.inputs.reshape(3, 1, 2), [0, 1, 1], "ann"),
        HeldBack(held.inputs.astype(np.float64), [0, 1, 1], "ann"),
    ):  # fmt: skip
        assert not other.keeps(promise, "salt")
    assert held.keeps(promise, "salt") and not held.keeps(promise, "pepper")
    big_endian = HeldBack(np.asfortranarray(held.inputs.astype(">f4")), np.array([0, 1, 1], np.int8), "ann")
    assert big_endian.keeps(promise, "salt")


def test_a_commitment_can_be_computed_with_nothing_but_hashlib():
    import hashlib

    held = HeldBack(np.array([[1, 2]], dtype=np.uint8), [1], "ann")
    head = json.dumps(["ann", "s", "|u1", [1, 2], [1]], separators=(",", ":"))
    assert held.commitment("s") == hashlib.sha256(head.encode() + b"\n" + bytes([1, 2])).hexdigest()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Exam([0, 5], [None, None], "ab"), "a held-back label is not from 0 to 1"),
        (lambda: Exam([0], [None, None], "ab"), "1 labels have 2 holders"),
        (
            lambda: Exam([0], [None], "ab", over="mode"),
            "over is 'mode'; choose one of mean, median, trusted, trusted median",
        ),
        (lambda: Exam([0], [None], "ab").sit(np.ones((3, 3)), np.ones((3, 3, 1)), {}), "give 2 classes on the pool"),
        (lambda: Exam([0], [None], "ab").exposure(), "nobody has replied yet"),
        (lambda: HeldBack([[1.0]], [0.5]), "give one class number for each"),
        (lambda: local_moves([[0.5, np.nan]]), "rows are not finite everywhere"),
        (lambda: public_moves([[0.5, 0.5]], [[[0.5, 0.5]] * 2]), "give probabilities of shape the broadcast's"),
        (lambda: beside_peers([np.eye(2)]), "no peers; give two at least"),
    ],
)
def test_what_cannot_be_examined_is_refused_in_a_sentence(call, said):
    with pytest.raises((InputError, OptionError), match=said):
        call()


def test_the_exam_needs_no_framework():
    code = "import sys, verax.exam, verax.sides; assert not {'flwr', 'torch', 'typer', 'rich'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_mean_knows_no_order():
    psi = np.random.default_rng(0).normal(size=1000) ** 3
    assert mean_mark(psi).score == mean_mark(psi[::-1]).score
