"""What clients of a Flower federation are told of their pay, and that no host breaks by it."""

from __future__ import annotations

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg

from flower_grid import Here, replied, sent
from test_flower_host import CLASSES, START, TASKS, crash, honest, rows, taught
from verax.adapters.flower import PaidStrategy, Payroll
from verax.adapters.flower_told import told
from verax.keys import Key
from verax.ledger import Ledger
from verax.notices import notices_in
from verax.received import digest_of


class Listening:
    """A client that keeps what it is told, by the type and round of the message that said it."""

    def __init__(self, answer):
        self.answer, self.heard, self.contents, self.sent = answer, [], [], None

    def __call__(self, message):
        notices = told(message)
        self.contents.append(sorted(message.content))
        self.heard += [(message.metadata.message_type, notice) for notice in notices]
        if message.metadata.message_type != "train":
            return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)
        reply = self.answer(message)
        self.sent = self.sent or {n: a.numpy() for n, a in reply.content["arrays"].items()}
        return reply


def run(clients, rounds=2, strategy=None, **terms):
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    paid = PaidStrategy(strategy or FedAvg(fraction_evaluate=0.0), range(TASKS), rows, CLASSES, **terms)
    grid = Here(clients)
    start = ArrayRecord({name: Array(a) for name, a in START.items()})
    return paid, grid, paid.start(grid, start, num_rounds=rounds)


def four(broken_in=1):
    def sometimes(message):
        number = int(message.content["config"]["server-round"])
        model = {**taught(sent(message), 9), **({"seen": np.zeros(3)} if number == broken_in else {})}
        return replied(message, model)

    return {n: Listening(honest(n)) for n in (1, 2, 3)} | {4: Listening(sometimes)}


def operator_of(payroll):
    return Ledger.open(payroll.db).keys.key("operator").public


def test_every_client_is_told_its_own_pay_and_why_with_a_signature_over_what_it_sent(tmp_path):
    payroll, clients = Payroll(str(tmp_path / "r.db"), budget="100.00"), four()
    paid, _, _ = run(clients, payroll=payroll)
    amounts = paid.outcomes[0].amounts
    for number, client in clients.items():
        ((kind, notice),) = client.heard
        assert (kind, notice.agent, notice.number) == ("train", str(number), 1)
        assert not notice.fault(operator=operator_of(payroll))
        assert client.contents == [["arrays", "config"], ["arrays", "config", "verax"]]
        if number == 4:
            assert notice.amount is None and notice.why.startswith("dropped: array 'seen' has shape (3,)")
        else:
            assert notice.amount == amounts[str(number)] > 500 and notice.why.startswith("score 0.")
            assert notice.model == digest_of(client.sent)


def test_the_last_rounds_word_comes_with_evaluation_or_in_a_message_of_its_own_where_that_is_asked():
    clients = four(broken_in=3)
    run(clients, rounds=3, strategy=FedAvg())
    assert [(kind, n.number) for kind, n in clients[4].heard] == [("evaluate", 1), ("evaluate", 3)]
    for last_word, heard in ((True, [("train", 1), ("query.verax", 3)]), (False, [("train", 1)])):
        clients = four(broken_in=3)
        _, grid, _ = run(clients, rounds=3, last_word=last_word)
        assert [(kind, n.number) for kind, n in clients[4].heard] == heard
        assert [(kind, n.number) for kind, n in clients[1].heard] == [("train", 1)]
        assert grid.sent.count("query.verax") == last_word


def test_who_does_not_answer_is_told_again():
    deaf = Listening(honest(4))

    def breaks(message):
        if int(message.content["config"]["server-round"]) == 2:
            deaf(message)
            return crash(message)
        return deaf(message)

    run({n: honest(n) for n in (1, 2, 3)} | {4: breaks}, rounds=4)
    assert [n.number for _, n in deaf.heard] == [1, 1, 2]  # twice the first, and once why it was dropped in the second


def test_clipping_on_clients_wants_one_configuration_and_has_one(tmp_path):
    payroll, heard = Payroll(str(tmp_path / "r.db"), budget="100.00"), {}

    def clipped(number):
        def app(message, context):
            heard.setdefault(number, []).extend(told(message, operator=operator_of(payroll)))
            assert len(message.content.config_records) == 1
            return honest(number)(message)

        return lambda message: fixedclipping_mod(message, None, app)

    strategy = DifferentialPrivacyClientSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), noise_multiplier=0.0, clipping_norm=50.0, num_sampled_clients=3
    )
    start = {"table": START["table"]}
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    paid = PaidStrategy(strategy, range(TASKS), table_rows, CLASSES, payroll=payroll)
    grid = Here({n: lambda m, n=n: only_table(clipped(n), m) for n in (1, 2, 3)})
    paid.start(grid, ArrayRecord({n: Array(a) for n, a in start.items()}), num_rounds=2)
    assert not paid.outcomes[0].dropped and {n: len(notices) for n, notices in heard.items()} == {1: 1, 2: 1, 3: 1}


def table_rows(model, pool):
    return rows(model | {"seen": np.array(0)}, pool)


def only_table(answer, message):
    """The host's model has a counter, which Flower's clipping cannot put together."""
    message.content["arrays"]["seen"] = Array(np.array(0))
    reply = answer(message)
    del message.content["arrays"]["seen"]
    if reply.has_content():
        del reply.content["arrays"]["seen"]
    return reply


def test_a_client_that_sends_all_that_it_was_sent_back_is_as_welcome_as_before():
    def whole(seed):
        def answer(message):
            model = ArrayRecord({n: Array(a) for n, a in taught(sent(message), seed).items()})
            content = RecordDict({**message.content, "arrays": model, "metrics": MetricRecord({"num-examples": 1})})
            return Message(content, reply_to=message)

        return answer

    paid, _, result = run({n: whole(n) for n in (1, 2, 3)} | {4: honest(4)}, rounds=3, predict_always=True)
    assert not paid.outcomes[0].dropped and result.arrays is not None


def test_a_forged_notice_is_left_out_with_a_warning(tmp_path, caplog):
    payroll, clients = Payroll(str(tmp_path / "r.db"), budget="100.00"), four()
    messages = []
    clients[1] = lambda message: messages.append(message) or honest(1)(message)
    run(clients, payroll=payroll)
    notice = told(messages[1], operator=operator_of(payroll))[0]
    assert told(messages[1], operator=Key.new().public) == []
    text = messages[1].content["verax"]["verax"]
    messages[1].content["verax"]["verax"] = text.replace(f'"amount":{notice.amount}', '"amount":999999')
    assert notices_in(messages[1].content["verax"]["verax"])[0].amount == 999999
    assert told(messages[1]) == told(messages[1], operator=operator_of(payroll)) == []
    assert "it is not what the operator signed" in caplog.text


def test_started_again_clients_are_told_of_the_round_that_was_paid_before(tmp_path):
    terms = {"payroll": Payroll(str(tmp_path / "r.db"), budget="100.00")}
    paid, _, _ = run(four(), rounds=1, **terms)
    clients = four()
    run(clients, rounds=1, payroll=Payroll(terms["payroll"].db, budget="100.00"))
    assert [notice for _, notice in clients[2].heard] == [paid.outcomes[0].notices["2"]]


@pytest.mark.parametrize(
    "text", ["good morning", "null", "3", "[1]", '{"notices": []}', '[{"format": "other/1"}]', 1, [2]]
)
def test_what_is_no_notice_harms_no_client(text, caplog):
    """A record may be called verax by whoever likes, and a client that stops over it earns nothing."""

    class Sent:
        content = RecordDict({"config": ConfigRecord({"verax": text, "lr": 0.1})})

    assert told(Sent()) == []
    assert "left out, what is no notice" in caplog.text
