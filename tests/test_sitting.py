"""Protocol `exam`: replies are examined on labels that others hold back, round by round, and paid once."""

from __future__ import annotations

import json

import numpy as np
import pytest
import riders
from simulated import predict, train

from exam_blobs import CLASSES, HELD, MEMBERS, blobs, named, rows, world
from verax.errors import InputError, OptionError
from verax.exam import ExamRecord, HeldBack
from verax.federation import Payroll, Referee, Reply, Sitting
from verax.innovations import public_moves


@pytest.fixture(scope="module", name="world")
def _world():
    return world()


def sat(world, more=(), **terms):
    """A referee that saw all rounds, with riders beside the members."""
    played, pool, held = world
    terms = {"exam": Sitting(held, copies=2)} | terms
    referee = Referee(pool, rows, CLASSES, protocol="exam", **terms)
    referee.broadcast(named(played[0].earlier[-1]))
    for r in played:
        replies = {f"m{i}": named(w) for i, w in enumerate(r.replies)}
        rng = np.random.default_rng(1)
        replies |= {name: named(ride(r.history, rng)) for name, ride in dict(more).items()}
        outcome = referee.pay_round(named(r.broadcast), replies)
        assert not outcome.problem and not outcome.amounts
    return referee, outcome


RIDERS = {"echo": riders.echo, "stale": riders.stale, "step": riders.extrapolated(1.0), "noise": riders.noised(0.3)}


def test_who_works_is_paid_and_who_has_nothing_of_its_own_is_not(world):
    referee, outcome = sat(world, RIDERS)
    assert outcome.scores.mechanism.over == "trusted" and referee.due
    for rider in ("echo", "stale", "step"):  # what is public, exactly
        assert abs(outcome.scores[rider].score) < 1e-9
    paid = referee.pay_exam("100.00", full_marks="0.05")
    amounts = {p.agent: p.amount for p in paid.payments}
    assert all(amounts[rider] == 0 for rider in RIDERS)
    assert sum(amounts[f"m{i}"] > 0 for i in range(MEMBERS)) >= 4
    assert sum(amounts.values()) + paid.residue == 10_000


def test_scores_are_those_of_an_exam_on_the_same_tables(world):
    """Beside the tables made by hand: pool and held-back inputs, models before, steps, noised copies."""
    _, outcome = sat(world)
    played, pool, held = world
    sitting = Sitting(held, copies=2)
    exam = sitting.exam(CLASSES)
    inputs = np.concatenate([pool, *(h.inputs for h in held)])
    history = [played[0].earlier[-1]]
    for r in played:
        history.append(r.broadcast)
        models = sitting.public_models(history, (), 0)
        assert len(models) == min(len(history) - 1, 2) + 3 + 4
        tables = [np.mean([predict(w, inputs) for w in group], axis=0) for group in models]
        now = predict(r.broadcast, inputs)
        exam.sit(now, public_moves(now, tables), {f"m{i}": predict(w, inputs) for i, w in enumerate(r.replies)})
    for s in exam.scores():
        assert outcome.scores[s.agent].score == pytest.approx(s.score, abs=1e-7)
        assert outcome.scores[s.agent].stderr == pytest.approx(s.stderr, rel=1e-4)


def test_nobody_is_examined_on_its_own_examples(world):
    """Labels of one member that are all wrong cannot touch its own score."""
    _, _, held = world
    lying = [HeldBack(held[0].inputs, (np.asarray(held[0].labels) + 1) % 4, "m0"), *held[1:]]
    _, honest = sat(world)
    _, lied = sat(world, exam=Sitting(lying, copies=2))
    assert lied.scores["m0"] == honest.scores["m0"]
    assert lied.scores["m1"].score < honest.scores["m1"].score


def test_the_servers_own_labels_examine_everybody(world):
    inputs, labels = blobs(np.random.default_rng(7), 300)
    referee, outcome = sat(world, RIDERS, exam=Sitting([HeldBack(inputs, labels)], copies=2))
    assert outcome.scores["m0"].references == 1 and outcome.scores["m0"].tasks == 300
    assert outcome.scores["m0"].score > 3 * outcome.scores["m0"].stderr
    with pytest.raises(OptionError, match=r"the deposit is 1\.00 and bad luck can take"):
        referee.pay_exam("100.00", full_marks="0.05", deposit="1.00")
    signed = referee.pay_exam("100.00", full_marks="0.05", deposit="50.00")
    assert {p.agent: p.amount for p in signed.payments}["echo"] == 5000  # its deposit, and nothing with it


def test_examples_are_promised_before_the_first_round(world):
    _, _, held = world
    promised = {h.holder: (h.commitment("salt"), "salt") for h in held}
    assert Sitting(held, promised=promised).size == MEMBERS * HELD
    other = HeldBack(held[0].inputs, held[1].labels, "m0")
    with pytest.raises(InputError, match="'m0' has handed in other examples than it committed to"):
        Sitting([other, *held[1:]], promised=promised)
    with pytest.raises(InputError, match="no examples are held back"):
        Sitting([])


def test_an_exam_and_its_terms_go_together(world, tmp_path):
    _, pool, held = world
    with pytest.raises(OptionError, match="go together"):
        Referee(pool, rows, CLASSES, protocol="exam")
    with pytest.raises(OptionError, match="go together"):
        Referee(pool, rows, CLASSES, exam=Sitting(held))
    payroll = Payroll(str(tmp_path / "r.db"), budget="1.00")
    with pytest.raises(OptionError, match="an exam's payroll has full_marks=, its price"):
        Referee(pool, rows, CLASSES, protocol="exam", exam=Sitting(held), payroll=payroll)
    with pytest.raises(OptionError, match="members have not seen a client's own past"):
        Sitting(members=True, own_past="public")
    with pytest.raises(OptionError, match="needs an adapter that reaches members"):
        Referee(pool, rows, CLASSES, protocol="exam", exam=Sitting(members=True)).begin_exam()
    with pytest.raises(OptionError, match="there is no exam"):
        Referee(pool, rows, CLASSES).pay_exam("1.00", "0.1")


def test_labels_alone_cannot_be_examined(world):
    played, pool, held = world
    referee = Referee(pool, lambda m, x: rows(m, x).argmax(1), CLASSES, protocol="exam", exam=Sitting(held))
    outcome = referee.pay_round(named(played[0].broadcast), {"a": named(played[0].replies[0])})
    assert "an exam needs probabilities" in outcome.problem


def test_a_model_that_cannot_answer_for_held_back_inputs_is_dropped_alone(world):
    played, pool, held = world

    def predict_most(model, inputs):
        if len(inputs) == HELD and np.array_equal(model["1"], played[0].replies[2][1]):
            raise ZeroDivisionError
        return rows(model, inputs)

    referee = Referee(pool, predict_most, CLASSES, protocol="exam", exam=Sitting(held, copies=1))
    sent = [Reply(f"m{i}", named(w)) for i, w in enumerate(played[0].replies)]
    outcome = referee.pay_round(named(played[0].broadcast), sent)
    assert list(outcome.dropped) == ["m2"] and "m0" in {s.agent for s in outcome.scores}


def test_a_flower_app_may_ask_for_it(world):
    """Three clients on a grid in this process, one of whom sends back what it was sent."""
    pytest.importorskip("flwr", reason="flwr is not installed")
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    from flower_grid import Here, replied, sent
    from verax.adapters.flower import PaidStrategy

    played, pool, held = world

    def works(number):
        def answer(message):
            model = [sent(message)[str(n)] for n in range(4)]
            x, y = held[number].inputs, np.asarray(held[number].labels)
            return replied(message, named(train(model, x, y, np.random.default_rng(number), epochs=3)))

        return answer

    found = PaidStrategy(
        FedAvg(fraction_evaluate=0.0), pool, rows, CLASSES, protocol="exam", exam=Sitting(held[2:], copies=1)
    )
    clients = {1: works(0), 2: works(1), 3: lambda message: replied(message, sent(message))}
    start = ArrayRecord({name: Array(a) for name, a in named(played[0].history[0]).items()})
    found.start(Here(clients), start, num_rounds=2)
    amounts = {p.agent: p.amount for p in found.referee.pay_exam("90.00", full_marks="0.5").payments}
    assert amounts["3"] == 0 < min(amounts["1"], amounts["2"])


def test_what_an_exam_pays_is_computed_again_from_its_record(world):
    referee, _ = sat(world, RIDERS)
    record = referee.exam_record("100.00", full_marks="0.05", deposit="90.00")
    again = ExamRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert again.payments() == referee.pay_exam("100.00", full_marks="0.05", deposit="90.00")
