"""A federation killed by SIGKILL anywhere and started again: nobody is paid twice or never, and training goes on.

A child process plays a federation from its last checkpoint, as an app would; it is killed at random moments and begun
again until it has finished. Then everything must be as in a federation that nobody killed: the model, every
balance, what everybody was told, and how much is kept on disk.
"""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
import warnings
from collections import Counter

import numpy as np
import pytest

from verax.federation import Payroll, Referee, Reply
from verax.ledger import Ledger
from verax.notices import told_in
from verax.received import digest_of
from verax.rounds import Rounds

TASKS, CLASSES, LATE = 200, tuple("abc"), 2  # the last client comes when so many rounds are over
TRUTH = np.random.default_rng(0).integers(0, len(CLASSES), TASKS)
START = {"table": np.zeros((TASKS, len(CLASSES)), np.float32), "seen": np.array(0)}
EVERYBODY = ("1", "2", "3", "4", "5")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="children are forked")


def labels(model, pool):
    return model["table"].argmax(1)


def trained(model, client):
    """What a client makes of a model: drawn anew for every model, the same whenever it is asked again."""
    drawn = hashlib.sha256(f"{digest_of(model)} {client}".encode()).digest()
    rng = np.random.default_rng([*drawn])
    share = 0.2 + 0.1 * int(client)
    said = np.where(rng.random(TASKS) < share, rng.integers(0, len(CLASSES), TASKS), TRUTH)
    moved = model["table"] + np.eye(len(CLASSES))[said] + 0.2 * rng.standard_normal(model["table"].shape)
    return {"table": moved.astype(np.float32), "seen": np.asarray(model["seen"] + 10)}


def there_in(done):
    """Who is in the federation when so many rounds are over."""
    return EVERYBODY if done >= LATE else EVERYBODY[:-1]


def saved(folder, done, model):
    """A checkpoint, whole or not at all."""
    np.savez(folder / "part.npz", done=done, **model)
    (folder / "part.npz").replace(folder / "checkpoint.npz")


def resumed(folder):
    """How many rounds are over, and the model after them."""
    if not (folder / "checkpoint.npz").exists():
        return 0, START
    with np.load(folder / "checkpoint.npz") as held:
        return int(held["done"]), {"table": held["table"], "seen": held["seen"]}


def terms(folder, protocol):
    return {
        "protocol": protocol, "kinship": None, "features": {"copies": 1, "noise": ()},
        "payroll": Payroll(str(folder / "r.db"), budget="100.00", significance=None),
    }  # fmt: skip


def plain(folder, protocol, rounds):
    """The loop that somebody without a framework has."""
    referee = Referee(range(TASKS), labels, CLASSES, **terms(folder, protocol))
    done, model = resumed(folder)
    for number in range(done, rounds):
        referee.broadcast(model)
        if new := referee.newcomers(there_in(number)):
            firsts = [Reply(name, trained(referee.first_model, name)) for name in new]
            referee.settle_newcomers(referee.receive(firsts, new, alone=False))
        referee.sends_to(there_in(number))
        received = referee.receive([Reply(name, trained(model, name)) for name in there_in(number)], there_in(number))
        if referee.due:
            referee.settle_round(received)
        weighed = referee.weigh(received.works)
        model = {n: np.mean([w.model[n] for w, _ in weighed], axis=0).astype(START[n].dtype) for n in START}
        saved(folder, number + 1, model)


def flower(folder, protocol, rounds):
    """An app of Flower's, its clients functions in this process."""
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    from flower_grid import Here, replied, sent
    from verax.adapters.flower import PaidStrategy

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    done, model = resumed(folder)

    class Checkpoints(FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            averaged = {n: arrays[n].numpy().astype(START[n].dtype) for n in START}
            saved(folder, done + server_round, averaged)
            grid.done = done + server_round
            return ArrayRecord({n: Array(a) for n, a in averaged.items()}), metrics

    class Growing(Here):
        def get_node_ids(self):
            return [int(name) for name in there_in(self.done)]

        def get_nodes(self):
            return [node for node in super().get_nodes() if str(node.node_id) in there_in(self.done)]

    answers = {int(n): lambda m, n=n: replied(m, trained(sent(m), n)) for n in EVERYBODY}
    grid = Growing(answers)
    grid.done = done
    paid = PaidStrategy(Checkpoints(fraction_evaluate=0.0), range(TASKS), labels, CLASSES, **terms(folder, protocol))
    if done < rounds:
        paid.start(grid, ArrayRecord({n: Array(a) for n, a in model.items()}), num_rounds=rounds - done)


def child(play, *asked):
    """A process that plays; with it how it ended is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking where there are threads
        made = multiprocessing.get_context("fork").Process(target=play, args=asked)
        made.start()
    return made


def ended(folder):
    """All that must be the same whether it was killed or not."""
    ledger = Ledger.open(str(folder / "r.db"))
    assert ledger.verify() == []
    balances = ledger.balances()
    assert not [a for a, left in balances.items() if a.startswith("escrow:") and left]
    paid, told = Counter(), Counter()
    with ledger.reading() as journal:
        begun = [body["round"] for body in journal.said("federation", "begun")]
        rounds = Rounds(ledger)
        for name in begun:
            assert rounds.state(name) in ("settled", "void", "none")
            if rounds.state(name) == "settled":
                assert rounds.verify(name) == []
                notices = told_in(journal, name)
                assert max(Counter(notice.agent for notice in notices).values()) == 1  # once each
                told.update({n.agent: n.amount or 0 for n in notices})
                paid.update(rounds.show(name)["settlement"]["amounts"])
    earned = {a.removeprefix("agent:"): left for a, left in balances.items() if a.startswith("agent:")}
    assert +told == +paid == Counter(earned)  # what was told, what was settled, what they have
    kept = [*(folder / "r.db.models" / "federation").iterdir()]
    assert len(kept) <= 6 and sum(path.stat().st_size for path in kept) < 6 * 5000
    return earned, digest_of(resumed(folder)[1])


def killed_and_ended(tmp_path, play, protocol, rounds, kills, seed):
    """A federation that nobody kills, and others that are killed so often in all, until each has finished."""
    (tmp_path / "whole").mkdir()
    start = time.monotonic()
    quiet = child(play, tmp_path / "whole", protocol, rounds)
    quiet.join()
    took = time.monotonic() - start
    assert quiet.exitcode == 0
    expected, rng, killed = ended(tmp_path / "whole"), random.Random(seed), 0
    for federation in range(kills):
        folder = tmp_path / str(federation)
        folder.mkdir()
        for _ in range(12 if federation + 1 < kills else kills):  # one federation is not killed for ever
            if killed == kills:
                break
            running = child(play, folder, protocol, rounds)
            running.join(rng.uniform(0, 0.7 * took))
            if running.exitcode is None:
                os.kill(running.pid, signal.SIGKILL)
                running.join()
                killed += running.exitcode == -signal.SIGKILL
            else:
                assert running.exitcode == 0
                break
        last = child(play, folder, protocol, rounds)
        last.join()
        assert last.exitcode == 0 and ended(folder) == expected
        if killed == kills:
            return killed
    return killed


@pytest.mark.parametrize(("play", "protocol"), [(plain, "first"), (flower, "every")])
def test_killed_twice_a_federation_ends_as_if_nobody_had(tmp_path, play, protocol):
    if play is flower:
        pytest.importorskip("flwr", reason="flwr is not installed")
    assert killed_and_ended(tmp_path, play, protocol, 3, kills=2, seed=1) == 2


@pytest.mark.slow
@pytest.mark.parametrize("play", [plain, flower])
@pytest.mark.parametrize("protocol", ["first", "every"])
def test_killed_anywhere_a_federation_ends_as_if_nobody_had(tmp_path, play, protocol):
    if play is flower:
        pytest.importorskip("flwr", reason="flwr is not installed")
    assert killed_and_ended(tmp_path, play, protocol, 5, kills=40, seed=2) == 40
