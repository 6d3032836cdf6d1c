"""Rule `innovation`, the protocol that pays by it, and the price that it is paid at."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import Client, initial, predict, train

import verax
from verax.errors import InputError, OptionError
from verax.federation import Payroll, Referee
from verax.innovations import clipped, fitted, public_moves
from verax.ledger import Ledger
from verax.rounds import Rounds
from verax.rules import resolve

CLASSES = tuple("abcd")


def rows_of(seed, agents=5, tasks=400):
    """A broadcast's rows, a public model's, and agents who each know something of the truth."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 4, tasks)
    p, q = rng.dirichlet([2, 2, 2, 2], (2, tasks))
    moves = [0.3 * (np.eye(4)[truth] - p) * (rng.random(tasks) < 0.5)[:, None] + 0.1 * (q - p) for _ in range(agents)]
    return truth, p, q, np.array([p + d for d in moves])


def scored(rows, public=None, **terms):
    return verax.score(verax.Reports.of(probabilities=rows, classes=CLASSES, **terms), public=public, rule="innovation")


def literal(rows, p, q):
    """Slow: the definition, agent by agent."""
    fit = fitted(p, public_moves(p, [q]))
    u = clipped([fit.innovation(f - p) for f in rows], 2.0)
    return [np.mean([(u[i] * u[j]).sum(1).mean() for j in range(len(u)) if j != i]) for i in range(len(u))]


def test_the_rule_is_its_definition_and_its_error_that_of_a_mean():
    _, p, q, rows = rows_of(0)
    found = verax.score(
        verax.Reports.of(probabilities=rows, classes=CLASSES), public=np.hstack([p, q]), rule="innovation"
    )
    assert [s.score for s in found] == pytest.approx(literal(rows, p, q), abs=1e-12)
    assert all(0 < s.stderr < s.score / 3 and s.references == 4 for s in found)
    assert found.mechanism.describe() == "innovation against peers (mean), public signal taken out"


def test_what_is_public_earns_nothing_and_lengthens_nobody():
    _, p, q, rows = rows_of(1)
    idle = np.array([p, q, p**2 / (p**2).sum(1, keepdims=True)])
    reports = verax.Reports.of(probabilities=np.concatenate([rows, idle]), classes=CLASSES)
    found = verax.score(reports, public=np.hstack([p, q]), rule="innovation")
    assert [s.score for s in found][5:7] == [0.0, 0.0] and abs(found["7"].score) < 0.1 * found["0"].score
    louder = p + 50 * (rows[0] - p)
    twice = verax.Reports.of(probabilities=np.concatenate([rows, p[None] + 2 * (rows[:1] - p)]), classes=CLASSES)
    assert louder.min() < 0  # no probabilities: a reply cannot say so
    louder_score = verax.score(twice, public=np.hstack([p, q]), rule="innovation")
    assert louder_score["5"].score <= 2.2 * louder_score["1"].score


def test_beside_the_truth_it_is_what_the_innovation_says_of_labels():
    truth, p, q, rows = rows_of(2)
    reports = verax.Reports.of(probabilities=rows, classes=CLASSES)
    found = verax.score(reports, truth, np.hstack([p, q]), rule="innovation")
    fit = fitted(p, public_moves(p, [q]))
    u = clipped([fit.innovation(f - p) for f in rows], 2.0)
    assert [s.score for s in found] == pytest.approx([((np.eye(4)[truth] - p) * x).sum(1).mean() for x in u], abs=1e-12)


def test_without_a_public_signal_the_mean_row_is_taken_out_and_who_says_nothing_earns_nothing():
    _, _, _, rows = rows_of(3)
    same = np.broadcast_to(rows[0].mean(0), rows[:1].shape)
    found = verax.score(
        verax.Reports.of(probabilities=np.concatenate([rows, same]), classes=CLASSES), rule="innovation"
    )
    assert found["0"].score > 0 and found["5"].score == pytest.approx(0, abs=1e-15)


def test_the_order_of_agents_changes_nothing():
    _, p, q, rows = rows_of(4)
    names, public = list("vwxyz"), np.hstack([p, q])
    found = scored(rows, public, agents=names)
    back = verax.score(
        verax.Reports.of(probabilities=rows[::-1], agents=names[::-1], classes=CLASSES),
        public=public,
        rule="innovation",
    )
    assert {s.agent: s.score for s in found} == {s.agent: s.score for s in back}


def test_columns_that_are_no_rows_are_refused():
    _, p, _, rows = rows_of(5)
    with pytest.raises(InputError, match="4 columns each, and the public signal has 3 columns"):
        scored(rows, p[:, :3])
    with pytest.raises(OptionError, match="rule innovation needs probabilities"):
        verax.score(verax.Reports.of(rows.argmax(2), classes=CLASSES), rule="innovation")


def test_marks_are_a_price_that_nobody_else_moves():
    _, p, q, rows = rows_of(6)
    found = verax.score(
        verax.Reports.of(probabilities=rows, classes=CLASSES), public=np.hstack([p, q]), rule="innovation"
    )
    top = max(s.score for s in found)
    paid = verax.pay(found, budget="50.00", scheme="marks", full_marks=2 * top)
    assert [p.amount for p in paid] == [int(1000 * s.score / (2 * top)) for s in found]
    capped = verax.pay(found, budget="50.00", scheme="marks", full_marks=top / 2)
    assert max(p.amount for p in capped) == 1000 and any("Scored above full marks" in note for note in capped.notes)
    for terms in ({"scheme": "marks"}, {"full_marks": "0.1"}, {"scheme": "marks", "full_marks": "0"},
                  {"scheme": "marks", "full_marks": "2.5"}):  # fmt: skip
        with pytest.raises(OptionError, match="full_marks"):
            verax.pay(found, budget="50.00", **terms)
    assert resolve("innovation").bounds == (-2.0, 2.0)


class Federation:
    """Six clients with data, on a network of one hidden layer; models as dicts, as a referee has them."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.centres = rng.normal(0, 1, (4, 12))
        self.pool, _ = self.drawn(rng, 500)
        self.clients = [Client(*self.drawn(rng, 60 + 30 * i)) for i in range(6)]
        self.start = initial((12, 16, 4), rng)

    def drawn(self, rng, n):
        y = rng.integers(0, 4, n)
        return (self.centres[y] + 1.5 * rng.normal(size=(n, 12))).astype(np.float32), y

    def predict(self, model, pool):
        return predict([*model.values()], pool)

    def train(self, model, inputs, labels):
        return named(train([*model.values()], inputs, labels, np.random.default_rng(len(labels)), epochs=2))

    def replies(self, model, number):
        rngs = [np.random.default_rng([number, i]) for i in range(6)]
        return {f"c{i}": named(c.reply(model, rngs[i], 2)) for i, c in enumerate(self.clients)}


def named(weights):
    return {f"layer {i}": array for i, array in enumerate(weights)}


def plays(world, rounds=3, riders=None, **terms):
    referee = Referee(world.pool, world.predict, CLASSES, protocol="every", **terms)
    model = world.start
    for number in range(rounds):
        sent = world.replies(model, number)
        more = {} if riders is None else riders(model, number)
        referee.pay_round(named(model), sent | more)
        model = [np.mean([m[name] for m in sent.values()], 0) for name in named(model)]
    return referee


def test_every_pays_by_innovations_at_a_price_and_the_ledger_pays_again(tmp_path):
    world, before = Federation(), []

    def riders(model, number):
        before.append(named(model))
        return {"echo": named(model), "stale": before[-2] if number else named(model)}

    payroll = Payroll(str(tmp_path / "r.db"), budget="80.00", full_marks="0.05")
    referee = plays(world, riders=riders, payroll=payroll, train=world.train)
    rounds = Rounds(Ledger.open(payroll.db))
    for outcome in referee.outcomes:
        each = 8000 / (7 if outcome.server_round == 1 else 8)  # at first the echo and the stale reply are copies
        assert not outcome.problem and outcome.scores.mechanism.rule == "innovation"
        assert outcome.amounts["echo"] == outcome.amounts["stale"] == 0 and not outcome.unpaid
        for s in outcome.scores:
            if s.score is not None:
                assert outcome.amounts[s.agent] == int(each * min(1, max(0, s.score) / 0.05))
        assert rounds.verify(outcome.round) == []
        assert outcome.imitated > 0 and "imitations of work, which are public too, took the server" in outcome.table()
    earned = [sum(o.amounts[f"c{i}"] for o in referee.outcomes) for i in range(6)]
    assert earned[5] > earned[0] > 0


def test_what_the_servers_own_training_drifts_to_is_public():
    world = Federation(1)

    def student(model, number):
        own = world.predict(named(model), world.pool).argmax(1)
        return {"student": world.train(named(model), world.pool, own)}

    bare, taught = (plays(world, rounds=4, riders=student, **terms) for terms in ({}, {"train": world.train}))
    paid = [sum(o.scores["student"].score for o in found.outcomes[1:]) for found in (bare, taught)]
    honest = [
        np.mean([sum(o.scores[f"c{i}"].score for o in found.outcomes[1:]) for i in range(6)])
        for found in (bare, taught)
    ]
    assert paid[1] / honest[1] < 0.5 * paid[0] / honest[0]
    assert all(not o.imitated for o in bare.outcomes)


def test_labels_alone_or_options_leave_the_older_way_with_its_echo_test():
    world = Federation(2)
    world.labels = lambda model, pool: world.predict(model, pool).argmax(1)
    found = Referee(world.pool, world.labels, CLASSES, protocol="every")
    outcome = found.pay_round(named(world.start), world.replies(world.start, 0) | {"echo": named(world.start)})
    assert outcome.scores.mechanism.rule == "zero-one" and "no work of its own" in outcome.unpaid["echo"]
    asked = Referee(world.pool, world.predict, CLASSES, protocol="every", options={"rule": "zero-one"})
    outcome = asked.pay_round(named(world.start), world.replies(world.start, 0) | {"echo": named(world.start)})
    assert outcome.scores.mechanism.rule == "zero-one" and "echo" in outcome.unpaid
    wished = Referee(world.pool, world.predict, CLASSES, protocol="every", kinship=6.0)
    outcome = wished.pay_round(named(world.start), world.replies(world.start, 0) | {"echo": named(world.start)})
    assert outcome.scores.mechanism.rule == "innovation" and "echo" in outcome.unpaid
    plain = Referee(world.pool, world.labels, CLASSES, protocol="every", train=world.train)
    outcome = plain.pay_round(named(world.start), world.replies(world.start, 0))
    assert "imitations are made of probabilities, which predict does not give" in outcome.problem
