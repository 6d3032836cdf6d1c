"""What is somebody's own in a Flower app stays so under a paid strategy: start, records, metrics, sizes, privacy."""

from __future__ import annotations

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    QFedAvg,
)

from flower_grid import Here, replied, sent
from verax.adapters.flower import PaidStrategy
from verax.errors import OptionError

TASKS, CLASSES = 400, tuple("abcd")
TRUTH = np.random.default_rng(0).integers(0, len(CLASSES), TASKS)
START = {"table": np.zeros((TASKS, len(CLASSES)), np.float32), "seen": np.array(0)}


def rows(model, pool):
    """A model is a table of logits, and a count of batches."""
    assert model["table"].dtype == np.float32 and model["seen"].dtype in (np.int64, np.float32)
    powers = np.exp(model["table"])
    return powers / powers.sum(1, keepdims=True)


def taught(model, seed, wrong=0.2):
    """The table with the truth put in, or another label where the client knows no better, and some noise."""
    rng = np.random.default_rng(seed)
    label = np.where(rng.random(TASKS) < wrong, rng.integers(0, len(CLASSES), TASKS), TRUTH)
    table = model["table"] + np.eye(len(CLASSES), dtype=np.float32)[label] + 0.1 * rng.standard_normal((TASKS, 4))
    return {
        "table": table.astype(np.float32),
        "seen": np.asarray(model["seen"] + model["seen"].dtype.type(1000 + seed)),
    }


def honest(seed, **metrics):
    return lambda message: replied(message, taught(sent(message), seed), **metrics)


def echo(message):
    return replied(message, sent(message))


def crash(message):
    return Message(Error(2, "out of memory"), reply_to=message)


def broken(message):
    return replied(message, {**taught(sent(message), 9), "table": np.full((TASKS, 4), np.nan, np.float32)})


def paid(strategy=None, **terms):
    return PaidStrategy(strategy or FedAvg(fraction_evaluate=0.0), range(TASKS), rows, CLASSES, **terms)


def run(strategy, clients, rounds=1, first=START, **more):
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    start = ArrayRecord({name: Array(a) for name, a in first.items()})
    place = Here(clients)
    return place, strategy.start(place, start, num_rounds=rounds, **more)


THREE = {1: honest(1), 2: honest(2), 3: honest(3)}


def test_a_counter_that_comes_back_as_an_average_harms_nobody_and_is_no_part_of_the_echo_test():
    found = paid(protocol="every", kinship=6.0)
    _, result = run(found, THREE | {4: echo}, rounds=3)
    assert result.arrays["seen"].numpy().dtype == np.float64  # as Flower averages it
    for outcome in found.outcomes:
        assert not outcome.problem and not outcome.dropped
        assert list(outcome.unpaid) == ["4"]


def test_what_a_counter_alone_would_hide_is_seen():
    """An echo that only counts on is none the better for it, though its counter moves more than all weights."""

    def counting(message):
        return replied(message, sent(message) | {"seen": np.array(5000)})

    found = paid()
    run(found, THREE | {4: counting})
    assert list(found.outcomes[0].unpaid) == ["4"]


def test_statistics_that_a_layer_keeps_of_its_inputs_are_no_work_of_ones_own():
    """A rider that only lets inputs through the network has the same running variance as those who train it."""
    shared = np.random.default_rng(1).standard_normal(500).astype(np.float32) * 50

    def keeping(answer):
        def kept(message):
            reply = answer(message)
            reply.content["arrays"]["norm.running_var"] = Array(shared)
            return reply

        return kept

    found = paid()
    first = START | {"norm.running_var": np.zeros(500, np.float32)}
    run(found, {n: keeping(answer) for n, answer in (THREE | {4: echo}).items()}, first=first)
    assert list(found.outcomes[0].unpaid) == ["4"]


@pytest.mark.parametrize("protocol", ["first", "every"])
def test_a_mask_of_infinities_and_an_empty_array_are_carried_and_no_others_are(protocol, recwarn):
    """As attention and its optional layers keep them: no client can move them, and they are no fault of its."""
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)

    def unmasked(message):
        return replied(message, taught(sent(message), 9) | {"mask": -mask, "none": np.zeros((0, 3), np.float32)})

    def kept(answer):
        def whole(message):
            reply = answer(message)
            for name in ("mask", "none"):
                reply.content["arrays"][name] = message.content["arrays"][name]
            return reply

        return whole

    found = paid(protocol=protocol, kinship=6.0)
    clients = {n: kept(answer) for n, answer in THREE.items()} | {4: echo, 5: unmasked}
    _, result = run(found, clients, 2, START | {"mask": mask, "none": np.zeros((0, 3), np.float32)})
    assert np.array_equal(result.arrays["mask"].numpy(), mask)
    for outcome in found.outcomes:
        assert not outcome.problem and list(outcome.unpaid) == ["4"]
        assert outcome.dropped == {"5": "array 'mask' is not finite everywhere as float32"}
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


class Checkpoints(FedAvg):
    """Saves what it aggregated, and stops when it has seen enough."""

    def __init__(self, **how):
        super().__init__(**how)
        self.saved, self.said = [], []

    def start(self, grid, initial_arrays, num_rounds=3, patience=99, **more):
        self.said.append("started")
        result = super().start(grid, initial_arrays, min(num_rounds, patience), **more)
        self.said.append("finished")
        return result

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.saved.append(arrays)
        return arrays, metrics


def test_a_strategys_own_start_and_checkpoints_run_and_can_be_asked_for():
    found = paid(Checkpoints(fraction_evaluate=0.0))
    _, result = run(found, THREE, rounds=5, patience=2)
    assert found.said == ["started", "finished"] and len(found.saved) == 2
    assert result.arrays is found.saved[-1] and len(found.outcomes) == 1
    assert "aggregate_train" not in vars(found.strategy)  # as it was before
    with pytest.raises(AttributeError, match="nonsense"):
        _ = found.nonsense


class Divided(FedAvg):
    """Does what `start` does in a method of its own."""

    def start(self, grid, initial_arrays, num_rounds=3, **more):
        return self.play_all(grid, initial_arrays, num_rounds, **more)

    def play_all(self, grid, arrays, rounds, **more):
        return FedAvg.start(self, grid, arrays, rounds, **more)


def test_a_start_that_asks_for_models_in_another_method_is_followed_there():
    found = paid(Divided(fraction_evaluate=0.0))
    run(found, THREE, rounds=2)
    assert len(found.outcomes) == 1 and not found.outcomes[0].problem


def test_what_is_paid_can_be_wrapped_in_its_turn():
    inner = paid()
    run(DifferentialPrivacyServerSideFixedClipping(inner, 0.01, 100.0, 3), THREE)
    assert len(inner.outcomes[0].scores.scores) == 3


class Unfollowed(FedAvg):
    def start(self, grid, initial_arrays, num_rounds=3):
        return grid.send_and_receive([])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (FedXgbBagging, "FedXgbBagging puts trees together"),
        (FedXgbCyclic, "FedXgbCyclic puts trees together"),
        (lambda: DifferentialPrivacyServerSideFixedClipping(FedXgbBagging(), 1.0, 1.0, 3), "FedXgbBagging puts trees"),
        (Unfollowed, "Unfollowed.start never calls configure_train"),
        (LegacyFedAvg, "flwr.server.strategy.fedavg.FedAvg is no strategy of flwr.serverapp"),
        (paid, "PaidStrategy is paid already"),
    ],
)
def test_what_cannot_be_paid_for_is_refused_by_name(make, sentence):
    with pytest.raises(OptionError, match=sentence):
        paid(make())


class Controlled(FedAvg):
    """Sends a second record of arrays and one of settings, and puts the second records together itself."""

    def __init__(self):
        super().__init__(fraction_evaluate=0.0)
        self.control, self.got = np.zeros(3, np.float32), []

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.content["control"] = ArrayRecord({"c": Array(self.control)})
            message.content["settings"] = ConfigRecord({"round": server_round})
        return messages

    def aggregate_train(self, server_round, replies):
        good = [m for m in replies if m.has_content()]
        self.got = [(m.content["control"]["c"].numpy(), m.content["settings"]["round"]) for m in good]
        for message in good:
            del message.content["control"]
        return super().aggregate_train(server_round, good)


def test_further_records_travel_untouched():
    def controlled(number):
        def answer(message):
            reply = honest(number)(message)
            reply.content["control"] = ArrayRecord({"c": Array(message.content["control"]["c"].numpy() + number)})
            reply.content["settings"] = ConfigRecord({"round": message.content["settings"]["round"]})
            return reply

        return answer

    strategy = Controlled()
    found = paid(strategy)
    run(found, {n: controlled(n) for n in (1, 2, 3)} | {4: honest(4)})
    assert sorted((float(c[0]), n) for c, n in strategy.got) == [(1.0, 1), (2.0, 1), (3.0, 1)]
    assert "not those of most replies (control, settings)" in found.outcomes[0].dropped["4"] or (
        "not those of most replies (control)" in found.outcomes[0].dropped["4"]
    )


def test_an_app_may_call_its_records_what_it_likes():
    def named(number):
        return lambda message: replied(message, taught(sent(message), number), key="weights")

    found = paid()
    _, result = run(found, {n: named(n) for n in (1, 2, 3)})
    assert not found.outcomes[0].dropped and not np.array_equal(result.arrays["table"].numpy(), START["table"])


def test_metrics_reach_a_function_of_ones_own_and_who_lacks_one_is_dropped():
    seen = []

    def together(records, weight_key):
        seen.extend(dict(record["metrics"]) for record in records)
        return MetricRecord({"worst": max(record["metrics"]["loss"] for record in records)})

    strategy = FedAvg(fraction_evaluate=0.0, train_metrics_aggr_fn=together)
    clients = {n: honest(n, loss=0.5 * n, steps=[1, n], norm=float("inf")) for n in (1, 2, 3)}
    found = paid(strategy)
    _, result = run(found, clients | {4: honest(4), 5: honest(5, loss=[1.0], steps=[1, 2], norm=1.0)})
    assert dict(result.train_metrics_clientapp[1]) == {"worst": 1.5}
    assert [record["steps"] for record in seen] == [[1, 1], [1, 2], [1, 3]]
    assert found.outcomes[0].dropped == {
        "4": "it has no metric 'loss', which most replies have",
        "5": "its metric 'loss' has another form than in most replies",
    }


def test_a_loss_that_the_strategy_computes_with_must_be_a_number():
    strategy = QFedAvg(client_learning_rate=1.0, fraction_evaluate=0.0)
    clients = {n: honest(n, train_loss=1.0) for n in (1, 2, 3)} | {4: honest(4, train_loss=float("nan"))}
    found = paid(strategy)
    whole = START | {"seen": np.array(0.0, np.float32)}  # as Flower's QFedAvg cannot put integers together
    _, result = run(found, clients, first=whole)
    assert "needs a number from 0 up" in found.outcomes[0].dropped["4"]
    assert np.isfinite(result.arrays["table"].numpy()).all()


def average_of(shares):
    """The table that FedAvg makes of clients 1, 2 and 3 with these shares."""
    tables = [taught(START, n)["table"].astype(np.float64) for n in (1, 2, 3)]
    return sum(s * t for s, t in zip(shares, tables, strict=True)) / sum(shares)


@pytest.mark.parametrize(
    ("claims", "terms", "shares"),
    [
        ((10, 20, 40), {"sizes": "claimed"}, (10, 20, 40)),
        ((10, 20, 10**9), {"sizes": "claimed"}, (10, 20, 60)),  # three times the middle claim
        ((10, 20, 10**9), {"sizes": "claimed", "cap": 1.5}, (10, 20, 30)),
        ((0, 20, 20), {"sizes": "claimed"}, (0, 1, 1)),
        ((0, 0, 0), {"sizes": "claimed"}, (1, 1, 1)),
        ((10, 20, 10**9), {}, (1, 1, 1)),
    ],
)
def test_what_clients_claim_counts_where_it_is_believed_and_up_to_a_cap(claims, terms, shares):
    _, result = run(paid(**terms), {n: honest(n, claim=c) for n, c in zip((1, 2, 3), claims, strict=True)})
    assert result.arrays["table"].numpy() == pytest.approx(average_of(shares), abs=1e-6)


@pytest.mark.parametrize("claim", [-5, float("nan"), float("inf")])
def test_a_claim_that_is_no_number_of_examples_drops_the_reply(claim):
    found = paid(sizes="claimed")
    run(found, THREE | {4: honest(4, claim=claim)})
    assert "no number of examples" in found.outcomes[0].dropped["4"]


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        ({"sizes": "believed"}, "give a size for each client by name, or 'claimed'"),
        ({"sizes": "claimed", "cap": 0.5}, "cap is 0.5"),
        ({"on_all_dropped": "wait"}, "choose one of stop, plain"),
    ],
)
def test_wrong_terms_are_refused(terms, sentence):
    with pytest.raises(OptionError, match=sentence):
        paid(**terms)


def accounted(clients=3):
    from flwr.serverapp.strategy import dp_fixed_clipping as module

    class Accountant:
        """Counts what was released, in place of the library that Flower's own accountant needs."""

        released = 0

        class config:  # noqa: N801 - read so by Flower
            sampling_method = module.SamplingMethod.NO_AMPLIFICATION
            population_size, max_epsilon = clients, None

        def compose(self, event):
            assert event.sample_size == clients
            self.released += 1

        def get_privacy_spent(self):
            return module.PrivacySpent(float(self.released), 1e-5, self.released, "counted")

    accountant = Accountant()
    inner = FedAvg(fraction_evaluate=0.0)
    return DifferentialPrivacyServerSideFixedClipping(inner, 0.001, 50.0, clients, accountant=accountant), accountant


@pytest.mark.parametrize("failing", [crash, broken])
def test_privacy_is_spent_for_whole_rounds_only_and_a_client_that_is_dropped_is_known(failing):
    """The noise is for a mean of all: Flower holds a round in which a client failed, and so it does for a bad reply."""

    def sometimes(message):
        return (failing if message.content["config"]["server-round"] == 2 else honest(3))(message)

    strategy, accountant = accounted()
    found = paid(strategy)
    run(found, {1: honest(1), 2: honest(2), 3: sometimes}, rounds=3)
    assert accountant.released == 2
    assert found.privacy_spent().epsilon == 2.0


@pytest.mark.parametrize("failing", [crash, broken])
def test_a_round_in_which_a_client_is_dropped_is_held_where_noise_is_made_for_all(failing):
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(fraction_evaluate=0.0), 0.001, 50.0, 3)
    _, result = run(paid(strategy), {1: honest(1), 2: honest(2), 3: failing}, rounds=2)
    assert not result.arrays


@pytest.mark.parametrize("terms", [{"weights": "score"}, {"bar": 0.5}, {"sizes": {"1": 2.0}}, {"sizes": "claimed"}])
def test_noise_for_a_plain_mean_asks_for_a_plain_mean(terms):
    strategy, _ = accounted()
    with pytest.raises(OptionError, match="makes its noise for a plain mean"):
        paid(strategy, **terms)


def test_a_first_round_in_which_all_crash_is_not_the_one_that_is_paid():
    def late(number):
        return lambda message: (crash if message.content["config"]["server-round"] == 1 else honest(number))(message)

    found = paid()
    run(found, {n: late(n) for n in (1, 2, 3)}, rounds=3)
    first, second = found.outcomes
    assert "0 replies can be scored" in first.problem
    assert second.server_round == 2 and len(second.scores.scores) == 3


def test_nobody_is_asked_and_nothing_is_dropped():
    found = paid(FedAvg(fraction_train=0.0, fraction_evaluate=0.0))
    place, result = run(found, THREE, rounds=2)
    assert place.sent == [] and not result.arrays


def test_evaluation_goes_on_without_who_has_other_metrics():
    def evaluated(number, **metrics):
        def answer(message):
            if message.metadata.message_type == "train":
                return honest(number)(message)
            reply = replied(message, {}, **metrics)
            del reply.content["arrays"]
            return reply

        return answer

    clients = {n: evaluated(n, accuracy=0.1 * n) for n in (1, 2, 3)} | {4: evaluated(4, other=1.0)}
    _, result = run(paid(FedAvg()), clients)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(0.2)


class Joining(Here):
    """A grid on which a client connects when the first round is over."""

    def get_node_ids(self):
        return [n for n in self.clients if n != 4 or "train" in self.sent]


@pytest.mark.parametrize("protocol", ["first", "report"])
def test_who_joins_later_is_asked_once_for_a_model_of_the_first_one_and_trains_as_others_do(protocol):
    """It has its first score before it is sent anything informative; what it then trains goes into the average."""
    seen = []

    def late(message):
        seen.append((message.metadata.message_type, float(sent(message)["table"].std())))
        return honest(4)(message)

    found = paid(protocol=protocol)
    start = ArrayRecord({name: Array(a) for name, a in START.items()})
    result = found.start(Joining(THREE | {4: late}), start, num_rounds=3)
    first, second = found.outcomes
    assert {s.agent for s in first.scores} == {"1", "2", "3"} and {s.agent for s in second.scores} == {"4"}
    assert second.scores["4"].score == pytest.approx(first.scores["1"].score, abs=0.1)
    assert [kind for kind, _ in seen] == ["train.report" if protocol == "report" else "train", "train", "train"]
    assert seen[0][1] == 0 < seen[1][1] < seen[2][1]
    assert result.arrays["table"].numpy().std() > seen[2][1]


def test_who_joins_later_and_sends_back_what_it_was_sent_is_not_paid():
    found = paid()
    start = ArrayRecord({name: Array(a) for name, a in START.items()})
    found.start(Joining(THREE | {4: echo}), start, num_rounds=2)
    assert "no work of its own" in found.outcomes[1].unpaid["4"] and found.outcomes[1].scores is None
