"""The Flower strategy on a grid in this process: who is paid, and what no client can do to the others."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedMedian

from flower_grid import Here, replied, sent
from verax.adapters.flower import Outcome, PaidStrategy, Payroll
from verax.errors import InputError, OptionError
from verax.ledger import Ledger
from verax.rounds import Rounds

CLASSES = tuple("0123456789")


def _quickstart():
    """The example's model and data, so that what is tested is what is shown."""
    from pathlib import Path

    path = Path(__file__).parents[1] / "examples" / "flower-quickstart" / "quickstart" / "task.py"
    spec = importlib.util.spec_from_file_location("quickstart_task", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


task = _quickstart()


def honest(number, of=8, steps=100):
    x, y = task.partition(number, of)
    return lambda message: replied(message, task.trained(sent(message), x, y, steps=steps))


def echo(message):
    return replied(message, sent(message))


def strategy(inner=None, pool=300, **options):
    x, _ = task.digits()
    inner = inner or FedAvg(fraction_evaluate=0.0)
    return PaidStrategy(inner, x[-500:][:pool], task.probabilities, CLASSES, **options)


def run(paid, clients, rounds=1, **grid):
    logging.getLogger("flwr").setLevel(logging.ERROR)
    start = ArrayRecord({name: Array(values) for name, values in task.initial().items()})
    place = Here(clients, **grid)
    return place, paid.start(place, start, num_rounds=rounds)


def test_the_first_round_pays_work_and_pays_an_echo_nothing(tmp_path):
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00")
    paid = strategy(payroll=payroll, pages=tmp_path / "pages")
    run(paid, {1: honest(0), 2: honest(1), 3: honest(2), 4: echo, 5: echo}, rounds=3)
    (outcome,) = paid.outcomes  # later rounds are not scored
    assert outcome.server_round == 1 and outcome.round == "federation-1"
    assert outcome.amounts["4"] == outcome.amounts["5"] == 0
    assert min(outcome.amounts[a] for a in "123") > 500
    rounds = Rounds(Ledger.open(payroll.db))
    assert rounds.verify("federation-1") == []
    assert rounds.payment("federation-1", "1") == (outcome.amounts["1"],) * 2
    text = (tmp_path / "pages" / "round-1.html").read_text()
    assert "federation, round 1" in text and "<h2>Scores</h2>" in text and "<h2>Payments</h2>" in text


def distracted(number):
    """Learns from 20 images, so that it has errors of its own."""
    x, y = task.partition(number, 8)
    return lambda message: replied(message, task.trained(sent(message), x[:20], y[:20], steps=100))


def test_the_table_shows_the_scores_that_were_paid_by_where_clients_are_copies(tmp_path):
    """A client's copies are peers that agree with it: a plain score of theirs is not what the ledger pays by."""
    clients = {i + 1: distracted(i) for i in range(5)} | {i: distracted(4) for i in (6, 7)} | {8: echo}
    paid = strategy(pool=500, payroll=Payroll(str(tmp_path / "r.db"), budget="100.00"))
    run(paid, clients)
    (outcome,) = paid.outcomes
    assert outcome.unpaid.keys() == {"8"} and "near-duplicate" in outcome.table()
    settled = Rounds(Ledger.open(str(tmp_path / "r.db"))).show("federation-1")["settlement"]
    paid_by = {s["agent"]: s["score"] for s in settled["scores"]["scores"]}
    assert {s.agent: s.score for s in outcome.scores.scores} == paid_by
    by_amount = sorted("1234", key=lambda agent: -outcome.amounts[agent])
    assert [s.agent for s in outcome.scores.ranked() if s.agent in "1234"] == by_amount


def test_paying_twice_for_the_same_round_pays_once(tmp_path):
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00")
    for _ in range(2):
        paid = strategy(payroll=payroll)
        run(paid, {1: honest(0), 2: honest(1), 3: honest(2)})
    with Ledger.open(payroll.db).reading() as journal:
        assert journal.available("agent:1", "EUR") == paid.outcomes[0].amounts["1"] > 0


def wrong_shape(message):
    return replied(message, {"matrix": np.zeros((2, 2), np.float32), "bias": np.zeros(10, np.float32)})


def not_finite(message):
    model = sent(message)
    model["bias"] = np.full(10, np.nan, np.float32)
    return replied(message, model)


def renamed(message):
    model = sent(message)
    return replied(message, {"weights": model["matrix"], "bias": model["bias"]})


def too_large(message):
    """Says that it has the right shape, and sends more."""
    model = sent(message)
    model["bias"] = Array("float32", (10,), "numpy.ndarray", bytes(10_000_000))
    return replied(message, model)


def undecodable(message):
    model = sent(message)
    model["bias"] = Array("float32", (10,), "numpy.ndarray", b"not an array")
    return replied(message, model)


def no_numbers(message):
    model = sent(message)
    model["bias"] = model["bias"].astype(np.complex128)
    return replied(message, model)


def archive(message):
    """The bytes of an NPZ in place of an NPY."""
    model, file = sent(message), io.BytesIO()
    np.savez(file, bias=model["bias"])
    model["bias"] = Array("float32", (10,), "numpy.ndarray", file.getvalue())
    return replied(message, model)


def with_more(message, **records):
    reply = honest(3)(message)
    for name, record in records.items():
        reply.content[name] = record
    return reply


BAD = {
    wrong_shape: "has shape",
    not_finite: "not finite",
    renamed: "names are not the broadcast's",
    too_large: "in 10000000 bytes",
    undecodable: "cannot be decoded",
    no_numbers: "complex128",
    archive: "is a NpzFile",
    (lambda message: with_more(message, more=ArrayRecord([np.ones(3)]))): "not those of most replies (more)",
    (lambda message: with_more(message, more=ArrayRecord([np.full(3, np.nan)]))): "'more/0' is not finite",
    (lambda message: with_more(message, more=MetricRecord({"num-examples": 1}))): "not those of most replies (more)",
    (lambda message: Message(Error(2, "out of memory"), reply_to=message)): "in place of a model (out of memory)",
    (lambda message: None): "no reply",
    (lambda message: replied(message, sent(message), key="other")): "no model under",
    (lambda message: Message(content=RecordDict(), reply_to=message)): "no model under",
}


@pytest.mark.parametrize("bad", BAD, ids=[str(i) for i in range(len(BAD))])
def test_a_bad_reply_is_dropped_and_named_and_changes_nothing_else(bad):
    three = {1: honest(0), 2: honest(1), 3: honest(2)}
    alone, beside = strategy(), strategy()
    _, expected = run(alone, three)
    _, found = run(beside, {**three, 9: bad})
    assert BAD[bad] in beside.outcomes[0].dropped["9"]
    assert beside.outcomes[0].scores.scores == alone.outcomes[0].scores.scores
    for name in expected.arrays:
        assert np.array_equal(expected.arrays[name].numpy(), found.arrays[name].numpy())


@pytest.mark.parametrize("claim", [10**9, -5, 0, float("nan")])
def test_what_a_client_claims_to_count_for_counts_for_nothing(claim):
    def loud(message):
        return replied(message, sent(honest(3)(message)), claim=claim)

    _, quiet = run(strategy(), {1: honest(0), 2: honest(1), 3: honest(3)})
    _, found = run(strategy(), {1: honest(0), 2: honest(1), 3: loud})
    for name in quiet.arrays:
        assert np.array_equal(quiet.arrays[name].numpy(), found.arrays[name].numpy())


def test_metrics_that_not_all_share_or_that_are_not_finite_are_left_out():
    def chatty(message):
        return replied(message, sent(message), loss=float("inf"), secret=1.0)

    def plain(number):
        return lambda message: replied(message, sent(honest(number)(message)), loss=0.5)

    _, found = run(strategy(), {1: plain(0), 2: plain(1), 3: chatty})
    assert dict(found.train_metrics_clientapp[1]) == {}
    _, found = run(strategy(), {1: plain(0), 2: plain(1)})
    assert dict(found.train_metrics_clientapp[1]) == {"loss": 0.5}


def test_a_round_in_which_every_reply_is_dropped_stops_with_the_reason():
    paid = strategy()
    with pytest.raises(InputError, match=r"all 2 replies of the round were dropped \(1: array 'bias' is not finite"):
        run(paid, {1: not_finite, 2: not_finite}, rounds=2)
    place, found = run(strategy(on_all_dropped="plain"), {1: not_finite, 2: not_finite}, rounds=2)
    assert np.isnan(found.arrays["bias"].numpy()).all() and place.sent == ["train"] * 4  # as without payment


def flipped(number):
    x, y = task.partition(number, 8)
    return lambda message: replied(message, task.trained(sent(message), x, (y + 1) % 10, steps=100))


def accuracy(found):
    x, y = task.digits()
    model = {name: array.numpy() for name, array in found.arrays.items()}
    return float((task.probabilities(model, x[-200:]).argmax(1) == y[-200:]).mean())


def test_score_weights_keep_label_flippers_out_of_the_average():
    crowd = {i + 1: honest(i) for i in range(5)} | {i + 1: flipped(i) for i in range(5, 8)}
    plain, weighed, barred = (
        accuracy(run(strategy(weights=w, bar=b), crowd, rounds=2)[1])
        for w, b in (("equal", None), ("score", None), ("equal", 0.5))
    )
    assert weighed > plain and barred > plain
    assert weighed > 0.9


def test_any_flower_strategy_can_be_paid_and_is_given_the_servers_sizes():
    clients = {1: honest(0), 2: honest(1), 3: honest(2)}
    paid = strategy(FedMedian(fraction_evaluate=0.0))
    _, found = run(paid, clients)
    assert accuracy(found) > 0.8 and len(paid.outcomes[0].scores.scores) == 3
    _, even = run(strategy(), clients)
    _, uneven = run(strategy(sizes={"1": 1000.0}), clients)
    assert not np.array_equal(even.arrays["bias"].numpy(), uneven.arrays["bias"].numpy())


def test_report_asks_for_models_of_their_own_before_training():
    def two_faced(message):
        """Works when asked for a report, rides afterwards."""
        return (honest(3) if message.metadata.message_type == "train.report" else echo)(message)

    paid = strategy(protocol="report")
    place, _ = run(paid, {1: honest(0), 2: honest(1), 3: two_faced, 4: echo}, rounds=2)
    assert place.sent == ["train.report"] * 4 + ["train"] * 8
    (outcome,) = paid.outcomes
    assert outcome.scores["3"].score > 0.3 and "no work of its own" in outcome.unpaid["4"]
    unguarded = strategy(protocol="report", kinship=None)
    run(unguarded, {1: honest(0), 2: honest(1), 3: two_faced, 4: echo})
    assert unguarded.outcomes[0].scores["4"].score == 0


def test_every_round_pays_what_is_not_public(tmp_path):
    def stale_of(kept):
        def stale(message):
            kept.append(sent(message))
            return replied(message, kept[-2] if len(kept) > 1 else kept[-1])

        return stale

    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00")
    paid = strategy(protocol="every", payroll=payroll)
    clients = {i + 1: honest(i, steps=15) for i in range(6)} | {7: echo, 8: stale_of([])}
    run(paid, clients, rounds=3)
    assert len(paid.outcomes) == 3
    for outcome in paid.outcomes:
        assert outcome.amounts["7"] == outcome.amounts["8"] == 0
        assert outcome.scores.mechanism.rule == "innovation"
        assert Rounds(Ledger.open(payroll.db)).verify(outcome.round) == []
    assert sum(outcome.amounts[str(i)] for outcome in paid.outcomes for i in range(1, 7)) > 0


def test_what_the_server_can_imitate_is_public_too():
    """A rider that trains on the pool with its own answers is one of the server's imitations, and is told apart."""
    x, _ = task.digits()
    pool = x[-500:][:300]

    def student(model):
        return task.trained(model, pool, task.probabilities(model, pool).argmax(1), steps=30)

    def rider(message):
        return replied(message, student(sent(message)))

    asked = []

    def imitate(broadcasts):
        asked.append(len(broadcasts))
        return [[student(broadcasts[-1])]]

    clients = {i + 1: honest(i, steps=30) for i in range(5)} | {6: rider}
    paid = strategy(protocol="every", imitate=imitate)
    run(paid, clients, rounds=2)
    assert asked == [1, 2]
    assert all(outcome.scores["6"].score == 0 for outcome in paid.outcomes)
    assert all(outcome.scores["1"].score > 0 for outcome in paid.outcomes)


def test_gold_labels_take_part_in_the_score():
    _, y = task.digits()
    gold = {n: int(y[-500 + n]) for n in range(100)}
    clients = {1: honest(0), 2: honest(1), 3: flipped(2)}
    paid = strategy(gold=gold)
    run(paid, clients)
    assert paid.outcomes[0].scores.mechanism.against == "hybrid"
    assert paid.outcomes[0].scores["3"].score < 0.1


def test_a_client_is_its_key_where_nodes_are_authenticated():
    paid = strategy()
    run(paid, {1: honest(0), 2: honest(1), 2**63 + 5: honest(2)}, keys={1: b"\x01\xff"})
    key = hashlib.sha256(b"\x01\xff").hexdigest()[:20]
    assert [s.agent for s in paid.outcomes[0].scores.scores] == sorted([key, "2", str(2**63 + 5)])
    named = strategy(identity=lambda node: f"client {node.node_id}")
    run(named, {1: honest(0), 2: honest(1)})
    assert named.outcomes[0].scores["client 1"].references == 1


def test_a_table_has_a_line_for_who_is_left_alone():
    table = Outcome(2, None, {"a": 0, "b": 0}, {"c": "no reply"}, {"b": "no work"}).table()
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["a", "b", "c"]
    assert "nobody to score it against" in table


class Late(Here):
    """Nodes that connect while the server waits for them."""

    waited = False

    def get_node_ids(self):
        self.waited = True
        return super().get_node_ids()

    def get_nodes(self):
        return super().get_nodes() if self.waited else []


def test_a_client_that_connects_while_the_server_waits_has_its_name():
    paid = strategy(identity=lambda node: f"client {node.node_id}")
    start = ArrayRecord({name: Array(values) for name, values in task.initial().items()})
    paid.start(Late({1: honest(0), 2: honest(1)}), start, num_rounds=1)
    assert [s.agent for s in paid.outcomes[0].scores.scores] == ["client 1", "client 2"]


def test_what_cannot_be_paid_is_said_and_training_goes_on(tmp_path, caplog):
    paid = strategy(payroll=Payroll(str(tmp_path / "no" / "such" / "r.db"), budget="100.00"))
    _, found = run(paid, {1: honest(0), 2: honest(1)})
    assert accuracy(found) > 0.8 and paid.outcomes[0].amounts == {}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"protocol": "later"}, "protocol is 'later'; choose one of first, every, report"),
        ({"weights": "examples"}, "weights is 'examples'; choose one of equal, score"),
        ({"weights": "score", "sizes": {}}, "sizes go with equal weights"),
    ],
)
def test_wrong_options_are_refused(options, sentence):
    with pytest.raises(OptionError, match=sentence):
        strategy(**options)


@pytest.mark.parametrize("gold", [{300: 1}, {0: 10}, np.zeros(3, int), np.zeros(300)])
def test_wrong_gold_labels_are_refused(gold):
    with pytest.raises(InputError, match="gold label"):
        strategy(gold=gold)


def test_a_fault_in_predict_is_raised_as_it_is_before_anybody_is_asked():
    x, _ = task.digits()
    seen = []

    def predict(model, pool):
        return pool @ model["matirx"]

    clients = {1: seen.append, 2: seen.append}
    with pytest.raises(KeyError, match="matirx") as raised:
        run(PaidStrategy(FedAvg(fraction_evaluate=0.0), x[:50], predict, CLASSES), clients)
    assert raised.traceback[-1].name == "predict"
    assert "before anybody trained" in raised.value.__notes__[0]
    for fault, said in {"shape": np.zeros((50, 9)), "not finite": np.full((50, 10), np.nan), "-1": -np.ones((50, 10)),
                        "input 0 sum to 0": np.zeros((50, 10)), "label 10 of 10": np.full(50, 10)}.items():  # fmt: skip
        with pytest.raises(InputError, match=fault):
            run(PaidStrategy(FedAvg(), x[:50], lambda model, pool, said=said: said, CLASSES), clients)
    assert not seen


def test_a_predict_function_of_the_wrong_form_is_the_servers_own_error():
    x, _ = task.digits()
    paid = PaidStrategy(FedAvg(fraction_evaluate=0.0), x[:50], lambda model, pool: np.zeros(3), CLASSES)
    with pytest.raises(InputError, match="predict gives shape"):
        run(paid, {1: honest(0), 2: honest(1)})
