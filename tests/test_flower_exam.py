"""Members examine one another through Flower's client-side evaluation, on a grid in this process."""

from __future__ import annotations

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from simulated import train

from exam_blobs import CLASSES, HELD, MEMBERS, blobs, named, rows, world
from flower_grid import Here, replied, sent
from verax.adapters.flower import PaidStrategy
from verax.adapters.flower_exam import content_of, examined, judgement_in, paper_in
from verax.errors import InputError
from verax.exam import HeldBack
from verax.examiners import balanced, marks
from verax.federation import Payroll, Sitting
from verax.innovations import clipped, fitted, public_moves
from verax.ledger import Ledger
from verax.marking import Marking, public_models
from verax.rounds import Rounds

PLAYED, POOL, DUES = world()
NODES = range(1, MEMBERS + 1)


class Member:
    """A client that trains on what it does not hold back, examines others on the rest, and evaluates as ever."""

    def __init__(self, number, *, trains=True, renamed=0, salt="s", tampers=None, examines=True):
        held = DUES[number - 1]
        self.number, self.trains, self.salt, self.tampers = number, trains, salt, tampers
        self.examines, self.asked, self.context = examines, [], fresh()
        self.held = HeldBack(held.inputs, (np.asarray(held.labels) + renamed) % len(CLASSES))
        self.inputs, self.labels = blobs(np.random.default_rng(100 + number), 170)

    def __call__(self, message):
        self.asked.append(message.metadata.message_type)
        if message.metadata.message_type == "evaluate.exam":
            if not self.examines:
                return None
            answer = examined(message, self.context, self.held, rows, len(CLASSES), self.salt)
            if self.tampers is not None and "judgement" in answer.content:
                self.tampers(answer.content)
            return answer
        model = sent(message)
        if message.metadata.message_type == "evaluate":
            right = (rows(model, self.inputs).argmax(1) == self.labels).mean()
            metrics = MetricRecord({"num-examples": 170, "accuracy": float(right)})
            return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
        weights = [model[str(n)] for n in range(len(model))]
        if not self.trains:
            return replied(message, model)
        return replied(message, named(train(weights, self.inputs, self.labels, rng_of(self.number), epochs=2)))


def rng_of(number):
    return np.random.default_rng(number)


def fresh():
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


def played(members, rounds=2, sitting=None, **terms):
    logging.getLogger("flwr").setLevel(logging.ERROR)
    exam = {"protocol": "exam", "exam": sitting or Sitting(members=True, copies=1)}
    paid = PaidStrategy(FedAvg(), POOL, rows, CLASSES, **(exam | terms))
    grid = Here({m.number: m for m in members})
    start = ArrayRecord({name: Array(a) for name, a in named(PLAYED[0].history[0]).items()})
    return paid, grid, paid.start(grid, start, num_rounds=rounds)


def members(**odd):
    """Five members, of whom the last sends back what it was sent; `odd` are terms of the second."""
    return [Member(n, trains=n < MEMBERS, **(odd if n == 2 else {})) for n in NODES]


def test_members_examine_one_another_and_the_wrapped_strategys_evaluation_stays_as_it_is(tmp_path):
    pay = Payroll(str(tmp_path / "r.db"), budget="100.00", full_marks="0.5")
    paid, grid, result = played(members(), payroll=pay)
    plain, _, as_ever = played(members(), protocol="first", exam=None)
    assert [paid.outcomes[-1].problem, plain.outcomes[-1].problem] == ["", ""]
    for n in (1, 2):
        metrics, before = (dict(r.evaluate_metrics_clientapp[n]) for r in (result, as_ever))
        assert metrics == pytest.approx(before, rel=1e-12) and metrics.keys() == {"accuracy"}
    for name, array in result.arrays.items():
        np.testing.assert_array_equal(array.numpy(), as_ever.arrays[name].numpy())
    assert grid.sent.count("evaluate.exam") == 3 * MEMBERS  # a promise, and two rounds
    assert grid.sent.index("evaluate.exam") < grid.sent.index("train")
    amounts = {p.agent: p.amount for p in paid.referee.pay_exam()}
    assert amounts["5"] == 0 < min(amounts[str(n)] for n in range(1, MEMBERS))
    rounds = Rounds(Ledger.open(pay.db))
    assert rounds.verify("federation-exam") == []
    shown = rounds.show("federation-exam")
    promised = shown["spec"]["exam"]["commitments"]
    assert promised["1"] == HeldBack(DUES[0].inputs, DUES[0].labels).commitment("s") and len(promised) == MEMBERS
    assert shown["spec"]["exam"]["over"] == "median"


def test_what_members_say_comes_to_what_their_examples_say_at_one_place():
    """Beside the definition on the dues of everybody, innovations fitted on the pool alone; one round, mean."""
    paid, _, _ = played(members(), rounds=1, sitting=Sitting(members=True, over="mean", copies=1))
    scores = paid.outcomes[-1].scores
    now = PLAYED[0].history[0]
    everything = np.concatenate([POOL, *(h.inputs for h in DUES)])
    groups = public_models([now], (), 0, 1)
    p = rows(named(now), everything)
    public = public_moves(p, [np.mean([rows(named(w), everything) for w in group], axis=0) for group in groups])
    fit = fitted(p, public, on=np.arange(len(p)) < len(POOL))
    replies = [train(now, m.inputs, m.labels, np.random.default_rng(m.number), epochs=2) for m in members()[:-1]]
    found = [fit.innovation(rows(named(w), everything) - p) for w in [*replies, now]]
    scales = clipped([u[: len(POOL)] for u in found], 2.0)
    labels, holders = np.concatenate([h.labels for h in DUES]), np.repeat(NODES, HELD)
    for n, (u, c) in enumerate(zip(found, scales, strict=True), start=1):
        short = np.linalg.norm(c) / max(np.linalg.norm(u[: len(POOL)]), 1e-300)
        others = holders != n
        w = balanced(labels[others], p[: len(POOL)].mean(0))
        said = marks(u[len(POOL) :][others] * short, p[len(POOL) :][others], labels[others], w)
        assert scores[str(n)].score == pytest.approx(said.mean(), abs=1e-8)
        assert scores[str(n)].stderr == pytest.approx(said.std() / np.sqrt(len(said)), rel=1e-5, abs=1e-12)


def doubled(content):
    content.config_records["verax.exam"]["names"] = ["x", "x", "x", "x"]


def unfinite(content):
    content["judgement"] = ArrayRecord({
        name: Array(a.numpy() * (np.nan if name == "means" else 1)) for name, a in content["judgement"].items()
    })  # fmt: skip


def cut(content):
    content["judgement"] = ArrayRecord({name: Array(a.numpy().ravel()[:2]) for name, a in content["judgement"].items()})


def emptied(content):
    del content["judgement"]


def other_counts(content):
    content["judgement"]["counts"] = Array(np.array([HELD * 9.0, 0, 0, 0]))


def enormous(content):
    for name in ("means", "spreads"):
        content["judgement"][name] = Array(np.full_like(content["judgement"][name].numpy(), 1e200))


@pytest.mark.parametrize("tampers", [doubled, unfinite, cut, emptied, other_counts])
def test_an_examiner_that_answers_nonsense_is_left_out_alone(tampers):
    paid, _, _ = played(members(tampers=tampers), rounds=1)
    scores = paid.outcomes[-1].scores
    assert scores["1"].references == MEMBERS - 2 and scores["2"].references == MEMBERS - 1
    assert scores["1"].score > 3 * scores["1"].stderr


def test_an_examiner_that_answers_on_other_examples_than_it_promised_is_left_out():
    class Switches(Member):
        def __call__(self, message):
            answer = super().__call__(message)
            self.held = HeldBack(self.held.inputs, (np.asarray(self.held.labels) + 1) % len(CLASSES))
            return answer

    scores = played([Member(1), Switches(2), *members()[2:]], rounds=1)[0].outcomes[-1].scores
    assert scores["1"].references == MEMBERS - 2 and scores["2"].references == MEMBERS - 1


def test_an_examiner_cannot_say_more_than_its_examples_could():
    honest, lied = (played(members(tampers=t), rounds=1)[0].outcomes[-1].scores for t in (None, enormous))
    widest = max(abs(s.score) for s in honest)
    for n in ("1", "3", "4"):
        assert abs(lied[n].score) < 3 * widest
    mean = Sitting(members=True, over="mean", copies=1)
    broken = played(members(tampers=enormous), rounds=1, sitting=mean)[0].outcomes[-1].scores
    assert max(s.score for s in broken) < 1  # a mean falls for it, as far as one example of five can go


def test_examples_are_promised_before_the_first_round_and_kept_to(tmp_path):
    pay = Payroll(str(tmp_path / "r.db"), budget="100.00", full_marks="0.5")
    played(members(), rounds=1, payroll=pay)
    crowd = members(renamed=1)  # another run, with other labels than were promised
    paid, _, _ = played(crowd, rounds=2, payroll=Payroll(pay.db, budget="100.00", full_marks="0.5"))
    assert paid.referee.number == 2 and not paid.outcomes[-1].problem
    assert [kind for kind in crowd[1].asked if kind == "evaluate.exam"] == ["evaluate.exam"]  # its promise, no paper
    assert Rounds(Ledger.open(pay.db)).verify("federation-exam") == []


def test_who_is_not_there_or_has_no_answer_examines_nobody():
    paid, _, _ = played([*members()[:3], Member(4, examines=False), Member(5, examines=False)], rounds=1)
    scores = paid.outcomes[-1].scores
    assert scores["1"].references == 2 and scores["4"].references == 3
    nobody, _, _ = played([Member(n, examines=False) for n in NODES], rounds=1)
    assert "nobody holds labels back to examine on" in nobody.outcomes[-1].problem


def test_replies_come_under_other_names_and_nobody_has_its_own():
    seen = {}

    class Curious(Member):
        def __call__(self, message):
            if "broadcast-0" in message.content:
                seen[self.number] = paper_in(message.content)
            return super().__call__(message)

    played([Curious(n) for n in NODES], rounds=1)
    first = PLAYED[0].history[0]
    own = {n: train(first, *blobs(rng_of(100 + n), 170), rng_of(n), epochs=2) for n in NODES}
    for n, paper in seen.items():
        assert len(paper.replies) == MEMBERS - 1 and not {*map(str, NODES)} & {*paper.replies}
        for entry in paper.replies.values():
            assert not np.array_equal(entry.model["0"], own[n][0])


def test_a_round_that_is_asked_again_is_counted_once_and_a_new_session_begins_anew():
    captured = []

    class Keeps(Member):
        def __call__(self, message):
            if "broadcast-0" in message.content:
                captured.append(paper_in(message.content))
            return super().__call__(message)

    played([Keeps(1), *members()[1:]], rounds=2)
    first, second = captured
    held = HeldBack(DUES[0].inputs, DUES[0].labels)
    marking = Marking(held, rows, len(CLASSES))
    marking.judgement(first)
    once, again = marking.judgement(second), marking.judgement(second)
    assert once == again
    kept = Marking(held, rows, len(CLASSES), marking.state).judgement(second)
    assert kept == once != Marking(held, rows, len(CLASSES)).judgement(second)
    over_the_wire = paper_in(content_of(second))
    assert Marking(held, rows, len(CLASSES), marking.state).judgement(over_the_wire) == once


def test_a_member_names_no_holder_and_keeps_its_inputs_and_labels_to_itself():
    asked = RecordDict({"verax.exam": ConfigRecord({"ask": "promise"})})
    message = Message(content=asked, message_type="evaluate.exam", dst_node_id=1)
    with pytest.raises(InputError, match="leave the holder out"):
        examined(message, fresh(), DUES[0], rows, 4, "s")
    answers = []

    class Leaks(Member):
        def __call__(self, message):
            answer = super().__call__(message)
            if message.metadata.message_type == "evaluate.exam":
                answers.append(answer.content)
            return answer

    played([Leaks(1), *members()[1:]], rounds=1)
    promise, judgement = answers
    assert {*promise} == {"verax.exam"} and {*promise["verax.exam"]} == {"commitment", "examples"}
    assert {*judgement["verax.exam"]} == {"commitment", "examples", "names"}
    assert [a.numpy().shape for a in judgement["judgement"].values()] == [(4,), (4, 4), (4, 4)]
    assert judgement_in(judgement).counts == tuple(np.bincount(DUES[0].labels, minlength=4))
