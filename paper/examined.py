"""What a federation's exam pays riders and workers, as % of mean honest pay: a few worlds of MNIST, no claim beyond.

    python paper/examined.py --data-dir /tmp/datasets        two minutes on one core

Ten members with 300 to 2,000 images each hold back a fifth; a rider replies beside them and is not averaged in. Rounds
2 to 5 together, protocol `exam` as `verax.federation.Referee` plays it: the middle of the examiners' means, or the mean
over their examples; one gate, z > 3.
"""

from __future__ import annotations

import argparse

import numpy as np
import riders
from simulated import Client, clients, federate, initial, predict

from verax.exam import HeldBack
from verax.federation import Referee, Sitting
from verax.reproduce.datasets import load

MEMBERS, ROUNDS, POOL = 10, 5, 2000
TRAIN, SIZES = 50_000, (300, 2000)
SKEWS = {"IID": None, "Dirichlet 0.3": 0.3}


def world(folder, skew, seed):
    """Members who work, what each holds back, the rounds they play, a pool, and images that riders have."""
    rng = np.random.default_rng(seed)
    found = load("mnist", folder, fetch=False)
    inputs, test = ((x.reshape(len(x), -1) / 255).astype(np.float32) for x in (found.train_images, found.test_images))
    sizes = np.exp(rng.uniform(np.log(SIZES[0]), np.log(SIZES[1]), MEMBERS)).astype(int)
    dealt = clients(inputs[:TRAIN], found.train_labels[:TRAIN], sizes.tolist(), rng, skew=SKEWS[skew])
    members, held = [], []
    for i, member in enumerate(dealt):
        order, cut = rng.permutation(len(member.labels)), len(member.labels) // 5
        held.append(HeldBack(member.inputs[order[:cut]], member.labels[order[:cut]], f"member {i}"))
        members.append(Client(member.inputs[order[cut:]], member.labels[order[cut:]]))
    played = list(federate(initial((784, 32, 10), rng), members, ROUNDS, rng))
    return played, held, test[:POOL], Client(inputs[TRAIN:], found.train_labels[TRAIN:])


def ridden(played, spare):
    """Who has nothing of its own, who trains itself without labels, and who has a little."""
    few = Client(spare.inputs[:80], spare.labels[:80])

    def images(rng):
        return spare.inputs[rng.permutation(len(spare.inputs))[:600]]

    def little(history, rng):
        return few.reply(history[-1], rng)

    update = [a - b for a, b in zip(played[0].replies[0], played[0].broadcast, strict=True)]
    return {
        "echo": riders.echo, "stale": riders.stale, "step 1": riders.extrapolated(1.0),
        "noise 5%": riders.noised(0.05), "noise 30%": riders.noised(0.3), "random model": riders.random_model,
        "last change, units mixed": riders.mixed(2.0),
        "real images, random labels": riders.trained(images, "random"),
        "random pixels, own answers": riders.trained(lambda r: r.random((600, 784), np.float32), "own", 2),
        "real images, own answers": riders.trained(images, "own", 2),
        "eighty images of its own": little, "a member's first update again": riders.replayed(update),
    }  # fmt: skip


def named(weights):
    return {str(n): array for n, array in enumerate(weights)}


def paid(folder, skew, seed, over):
    """Pay of each rider and of the members by their place, in % of the mean member's; and how many have none."""
    played, held, pool, spare = world(folder, skew, seed)
    rides = ridden(played, spare)
    referee = Referee(
        pool, lambda model, x: predict(list(model.values()), x).astype(np.float64), map(str, range(10)),
        protocol="exam", exam=Sitting(held, over=over),
    )  # fmt: skip
    referee.broadcast(named(played[0].broadcast))
    for n, r in enumerate(played[1:]):
        replies = {f"member {i}": named(w) for i, w in enumerate(r.replies)}
        replies |= {name: named(ride(r.history, np.random.default_rng([seed, n]))) for name, ride in rides.items()}
        outcome = referee.pay_round(named(r.broadcast), replies)
    worth = {s.agent: s.score if s.score > 3 * s.stderr else 0.0 for s in outcome.scores}
    honest = [worth[f"member {i}"] for i in range(MEMBERS)]
    raw = [max(outcome.scores[f"member {i}"].score, 0.0) for i in range(MEMBERS)]
    mean = float(np.mean(honest))
    shares = {name: 100 * worth[name] / mean for name in rides}
    return shares, sum(h == 0 for h in honest) / MEMBERS, sum(honest) / sum(raw)


def main():
    """Print the table of docs/federation.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    for over in ("median", "mean"):
        found = [paid(asked.data_dir, skew, seed, over) for skew in SKEWS for seed in range(asked.seeds)]
        print(f"\nover the examiners: {over}, {len(found)} worlds")
        for name in found[0][0]:
            each = [shares[name] for shares, _, _ in found]
            print(f"| {name} | {np.mean(each):.0f} ({max(each):.0f}) |")
        print(f"| members paid nothing | {100 * np.mean([none for _, none, _ in found]):.0f} % |")
        print(f"| members' pay left by the gate | {100 * np.mean([kept for _, _, kept in found]):.0f} % |")


if __name__ == "__main__":
    main()
