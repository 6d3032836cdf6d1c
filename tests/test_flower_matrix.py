"""Training under a paid strategy ends where it ends without: every strategy of Flower, four networks, four mishaps.

The default suite has a cross-section, each strategy once with another network and another mishap; `make slow` has all.
`python tests/test_flower_matrix.py` prints the table that is in docs/federation.md.
"""

from __future__ import annotations

import gc
import logging
import random
from collections import defaultdict

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")
pytest.importorskip("torch", reason="torch is not installed: pip install 'verax[torch]'")

from flwr.app import Array, ArrayRecord, Error, Message
from flwr.serverapp import strategy as flower

import flower_worlds as worlds
from flower_grid import Here, replied, sent
from verax.adapters.flower import PaidStrategy

CLIENTS, ROUNDS = 6, 3
FixedServer, FixedClient = (
    flower.DifferentialPrivacyServerSideFixedClipping,
    flower.DifferentialPrivacyClientSideFixedClipping,
)
AdaptiveServer, AdaptiveClient = (
    flower.DifferentialPrivacyServerSideAdaptiveClipping,
    flower.DifferentialPrivacyClientSideAdaptiveClipping,
)


@pytest.fixture(autouse=True, scope="module")
def _little_to_collect():
    """QFedAvg and Bulyan collect garbage for every array: let that be ours only."""
    gc.freeze()
    yield
    gc.unfreeze()


def private(kind, **terms):
    return lambda **how: kind(flower.FedAvg(**how), num_sampled_clients=asked_of(how["fraction_train"]), **terms)


def asked_of(fraction):
    return int(CLIENTS * fraction)


# Everywhere Flower's own defaults; what has none is given: a learning rate, a clipping norm, noise.
STRATEGIES = {
    "FedAvg": flower.FedAvg,
    "FedAvgM": flower.FedAvgM,
    "FedProx": flower.FedProx,
    "FedAdam": flower.FedAdam,
    "FedAdagrad": flower.FedAdagrad,
    "FedYogi": flower.FedYogi,
    "FedMedian": flower.FedMedian,
    "FedTrimmedAvg": flower.FedTrimmedAvg,
    "Krum": flower.Krum,
    "MultiKrum": flower.MultiKrum,
    "Bulyan": flower.Bulyan,
    "QFedAvg": lambda **how: flower.QFedAvg(client_learning_rate=0.1, **how),
    "DP fixed, server": private(FixedServer, noise_multiplier=0.02, clipping_norm=5.0),
    "DP fixed, client": private(FixedClient, noise_multiplier=0.02, clipping_norm=5.0),
    "DP adaptive, server": private(AdaptiveServer, noise_multiplier=0.02),
    "DP adaptive, client": private(AdaptiveClient, noise_multiplier=0.02),
}
# With the defaults FedAvgM and FedProx are FedAvg, MultiKrum is Krum, and clipping at a tenth hardly learns.
MORE = {
    "FedAvgM, momentum 0.9": lambda **how: flower.FedAvgM(server_momentum=0.9, **how),
    "MultiKrum, one malicious, two chosen": lambda **how: flower.MultiKrum(
        num_malicious_nodes=1, num_nodes_to_select=2, **how
    ),
    "DP adaptive, client, norm 5": private(AdaptiveClient, noise_multiplier=0.02, initial_clipping_norm=5.0),
}
MADE = STRATEGIES | MORE
MISHAPS = ("none", "four of six asked", "a crash", "a drop-out")
CASES = [(s, n, m) for s in MADE for n in worlds.NETS for m in MISHAPS]
SOME = [(s, list(worlds.NETS)[i % 4], MISHAPS[1 + i % 3]) for i, s in enumerate(STRATEGIES)] + [
    ("FedAvg", "BatchNorm", "none"),
    ("FedAdam", "BatchNorm", "four of six asked"),
    ("Krum", "BatchNorm", "a drop-out"),
    ("QFedAvg", "linear", "a crash"),
]


def client(net, number, mishap):
    """Trains what it was sent; clips where it is told to; the last one crashes or falls silent in round 2."""

    def answer(message):
        config = message.content["config"]
        server_round = int(config["server-round"])
        if number == CLIENTS - 1 and server_round == 2 and mishap in MISHAPS[2:]:
            return Message(Error(2, "it crashed"), reply_to=message) if mishap == "a crash" else None
        before = sent(message)
        model, loss = worlds.trained(net, before, number, CLIENTS, seed=100 * server_round + number)
        metrics = {"train_loss": loss}
        if "clipping_norm" in config:
            norm = np.sqrt(sum(((model[n] - before[n]).astype(float) ** 2).sum() for n in model))
            share = min(1.0, float(config["clipping_norm"]) / norm)
            model = {n: np.asarray(before[n] + share * (a - before[n])).astype(a.dtype) for n, a in model.items()}
            metrics["norm_bit"] = int(share < 1)
        return replied(message, model, claim=110, **metrics)

    return answer


def trained(strategy, net, mishap, wrapped):
    """The accuracy at the end, or the type of what stopped it; every draw of either run is the same."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - what Flower draws its noise from
    fraction = 0.67 if mishap == "four of six asked" else 1.0
    made = MADE[strategy](fraction_train=fraction, fraction_evaluate=0.0)
    run = PaidStrategy(made, worlds.pool(), worlds.predict(net), worlds.CLASSES) if wrapped else made
    start = ArrayRecord({name: Array(a) for name, a in worlds.arrays(worlds.network(net)).items()})
    grid = Here({n + 1: client(net, n, mishap) for n in range(CLIENTS)})
    try:
        found = run.start(grid, start, num_rounds=ROUNDS)
    except Exception as error:
        return type(error).__name__, []
    model = {name: array.numpy() for name, array in (found.arrays or start).items()}
    return worlds.accuracy(net, model), run.outcomes if wrapped else []


def both(strategy, net, mishap):
    """Without payment and with it, and what was paid for."""
    alone, _ = trained(strategy, net, mishap, wrapped=False)
    return alone, *trained(strategy, net, mishap, wrapped=True)


def check(strategy, net, mishap):
    alone, beside, outcomes = both(strategy, net, mishap)
    if isinstance(alone, str):  # Flower itself stops
        assert beside == alone
    else:
        assert beside == pytest.approx(alone, abs=0.01)
        assert outcomes[0].scores is not None and not any(o.problem or o.dropped for o in outcomes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("strategy", "net", "mishap"), SOME)
def test_training_ends_where_it_ends_without(strategy, net, mishap):
    check(strategy, net, mishap)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("strategy", "net", "mishap"), CASES)
def test_training_ends_where_it_ends_without_in_every_case(strategy, net, mishap):
    check(strategy, net, mishap)


def test_every_strategy_of_the_installed_flower_is_in_the_matrix():
    refused = {"FedXgbBagging", "FedXgbCyclic", "Strategy", "Result"}
    made = {type(make(fraction_train=1.0)).__name__ for make in STRATEGIES.values()}
    assert made == set(flower.__all__) - refused


def main():
    """Print the table: accuracy without and with payment, and the largest difference of each row."""
    gc.freeze()
    found = defaultdict(dict)
    for strategy, net, mishap in CASES:
        found[strategy, net][mishap] = both(strategy, net, mishap)[:2]
    print("| strategy | network |", " | ".join(MISHAPS), "| largest difference |")
    print("|", " | ".join(["---"] * (len(MISHAPS) + 3)), "|")
    for (strategy, net), row in found.items():
        pairs = [row[m] for m in MISHAPS]
        apart = max((abs(a - b) for a, b in pairs if not {str} & {type(a), type(b)}), default=float("nan"))
        cells = [" / ".join(x if isinstance(x, str) else f"{x:.3f}" for x in pair) for pair in pairs]
        print("|", " | ".join([strategy, net, *cells, f"{apart:.3f}"]), "|")


if __name__ == "__main__":
    main()
