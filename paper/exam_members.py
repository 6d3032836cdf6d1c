"""Members examine one another through Flower, and some of them lie: what the honest keep, what liars and riders have.

    python paper/exam_members.py --play LIES.json --data HALVED.npz      the runs, on what exam_worlds.py prepares
    python paper/exam_members.py                                         the table, from the runs that were recorded

MNIST at half its side, IID and Dirichlet 0.3, five seeds; ten members with 300 to 1,000 images and a network of one
hidden layer hold back a fifth and send judgements of type `evaluate.exam` on a grid in this process; four rounds after
the first. Four riders sit beside them. Liars and riders are not averaged in, so that all runs train alike.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

import numpy as np
import riders
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg
from simulated import Client, average, clients, initial, predict, train

from verax.adapters.flower import PaidStrategy
from verax.adapters.flower_exam import examined, paper_in
from verax.exam import HeldBack
from verax.examined import sheet_of
from verax.sitting import Sitting

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests"))
from flower_grid import Here, replied, sent  # noqa: E402

MEMBERS, CLASSES, ROUNDS, POOL, SURE = 10, tuple("0123456789"), 4, 1500, 3.0
SKEWS = {"IID": None, "Dirichlet 0.3": 0.3}
LIES = ("random", "renamed", "ring", "marks")
OVERS = ("mean", "median", "trusted", "trusted median")


def named(weights):
    return {str(n): np.asarray(a) for n, a in enumerate(weights)}


def rows(model, images):
    return predict([model[str(n)] for n in range(len(model))], images).astype(np.float64)


class Member:
    """A client of a federation; it examines by what it holds back, and lies if it is one of the liars."""

    def __init__(self, number, own, held, lie, crowd):
        self.number, self.own, self.lie, self.crowd = number, own, lie, crowd
        rng, labels = np.random.default_rng([7, number]), held.labels
        said = {"random": rng.integers(0, 10, len(labels)), "renamed": (labels + 1) % 10, "ring": (labels + 1) % 10}
        self.held = HeldBack(held.inputs, said.get(lie, labels))
        self.context = Context(run_id=1, node_id=number, node_config={}, state=RecordDict(), run_config={})
        self.round = 0

    def __call__(self, message):
        if message.metadata.message_type == "evaluate.exam":
            answer = examined(message, self.context, self.held, rows, len(CLASSES), salt="s")
            if self.lie == "marks" and "judgement" in answer.content:
                self.praise(answer.content, paper_in(message.content))
            return answer
        model, self.round = sent(message), self.round + 1
        rng = np.random.default_rng([self.number, self.round])
        found = train([model[str(n)] for n in range(len(model))], self.own.inputs, self.own.labels, rng, epochs=1)
        if self.lie == "ring":
            found[-2:] = [np.roll(a, 1, axis=-1) for a in found[-2:]]
        if self.lie:
            self.crowd[self.number] = found
        return replied(message, named(found))

    def praise(self, content, paper):
        """As much as can be for the other liars, as little as can be for everybody else."""
        alike = {name for name, entry in paper.replies.items() for friend in self.crowd.values()
                 if np.array_equal(entry.model["0"], friend[0])}  # fmt: skip
        names = content["verax.exam"]["names"]
        says = np.array([[1e3 if name in alike else -1e3] * len(CLASSES) for name in names])
        content["judgement"]["means"] = Array(says)
        content["judgement"]["spreads"] = Array(np.zeros_like(says))


def rider(ride, number):
    """Somebody who holds nothing back and did not work."""
    history = []

    def answer(message):
        if message.metadata.message_type == "evaluate.exam":
            return None
        model = sent(message)
        history.append([model[str(n)] for n in range(len(model))])
        return replied(message, named(ride(history, np.random.default_rng([number, len(history)]))))

    return answer


class OfTheHonest(FedAvg):
    """FedAvg of some of the clients."""

    def __init__(self, kept):
        super().__init__(fraction_evaluate=0.0)
        self.kept = kept

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, [m for m in replies if m.metadata.src_node_id in self.kept])


def world(file, skew, seed):
    """Everybody's data, the pool, and the model after a first round."""
    rng = np.random.default_rng([31, seed, SKEWS[skew] is None])
    with np.load(file) as stored:
        images, labels = stored["mnist-train"][:16000], stored["mnist-train-labels"][:16000].astype(np.int64)
        pool = stored["mnist-test"][:POOL].reshape(POOL, -1).astype(np.float32) / 255
    images = images.reshape(len(images), -1).astype(np.float32) / 255
    sizes = rng.integers(300, 1001, MEMBERS)
    everybody = clients(images, labels, sizes.tolist(), rng, skew=SKEWS[skew])
    orders = [rng.permutation(len(c.labels)) for c in everybody]
    cuts = [(order[: len(order) // 5], order[len(order) // 5 :]) for order in orders]
    held = [Client(c.inputs[kept], c.labels[kept]) for c, (kept, _) in zip(everybody, cuts, strict=True)]
    own = [Client(c.inputs[used], c.labels[used]) for c, (_, used) in zip(everybody, cuts, strict=True)]
    start = initial((images.shape[1], 32, 10), rng)
    first = average([c.reply(start, rng, epochs=1) for c in own], np.ones(MEMBERS))
    return own, held, pool, first


def run(found, liars, lie, watched):
    """Everybody's score and error at the end of one run, by how examiners are put together.

    Beside the same liars' replies: `watched` liars train and reply as ever and are not averaged in either way.
    """
    own, held, pool, first = found
    crowd = {}
    everybody = {n: Member(n, own[n], held[n], lie if n < liars else "", crowd) for n in range(MEMBERS)}
    idle = {"echo": riders.echo, "stale": riders.stale, "step": riders.extrapolated(1.0), "noise": riders.noised(0.3)}
    nodes = {n + 1: member for n, member in everybody.items()}
    nodes |= {101 + i: rider(ride, i) for i, ride in enumerate(idle.values())}
    averaged = {n + 1 for n in range(watched, MEMBERS)}
    paid = PaidStrategy(
        OfTheHonest(averaged), pool, rows, CLASSES, protocol="exam", exam=Sitting(members=True, copies=4)
    )
    paid.start(Here(nodes), ArrayRecord({n: Array(a) for n, a in named(first).items()}), num_rounds=ROUNDS)
    assert not any(o.problem or o.dropped for o in paid.outcomes)
    sats = paid.referee._examination.sats  # one run serves all three ways
    return {over: {s.agent: (s.score, s.stderr) for s in sheet_of(CLASSES, over, sats).scores()} for over in OVERS}


def gated(scores, names):
    found = [scores[str(n)] for n in names]
    return [score if score > SURE * error else 0.0 for score, error in found]


def lied(file, skew, seed, liars):
    """Of each lie: honest pay kept, what riders and liars have, beside honest pay by the mean where nobody lies."""
    found = world(file, skew, seed)
    honest, idle = range(liars + 1, MEMBERS + 1), range(101, 105)
    whole = np.mean(gated(run(found, 0, "", liars)["mean"], honest))
    cells = {}
    for lie in LIES:
        scores = run(found, liars, lie, liars)
        cells[lie] = {
            over: {
                "kept": float(np.mean(gated(of, honest)) / whole),
                "no information": float(np.mean(gated(of, idle)) / whole),
                "liars": float(np.mean(gated(of, range(1, liars + 1))) / whole),
            }
            for over, of in scores.items()
        }
    return {"skew": skew, "seed": seed, "liars": liars, "lies": cells}


def summed_up(runs):
    """Over worlds, in %: the mean and the worst of what the honest keep, the mean and the most of what others have."""
    table = {}
    for liars in (2, 4):
        for lie in LIES:
            for over in OVERS:
                of = [100 * np.array([r["lies"][lie][over][what] for r in runs if r["liars"] == liars])
                      for what in ("kept", "no information", "liars")]  # fmt: skip
                table[f"{liars} {lie}, {over}"] = {
                    "kept": {"mean": of[0].mean(), "min": of[0].min()},
                    "no information": {"mean": of[1].mean(), "max": of[1].max()},
                    "liars": {"mean": of[2].mean(), "max": of[2].max()},
                }
    return {"worlds": len(runs) // 2, "liars": table}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--play", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=HERE / "results")
    args = parser.parse_args()
    recorded = HERE / "recorded" / "exam-members.json"
    if args.play:
        logging.getLogger("flwr").setLevel(logging.ERROR)
        jobs = [(skew, seed, liars) for seed in args.seeds for skew in SKEWS for liars in (2, 4)]
        runs = []
        for job in jobs:
            runs.append(lied(args.data, *job))
            print(job, flush=True)
            args.play.write_text(json.dumps(runs, indent=1) + "\n")
        return
    numbers = summed_up(json.loads(recorded.read_text()))
    rounded = json.loads(json.dumps(numbers), parse_float=lambda text: round(float(text), 3))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "exam_members.json").write_text(json.dumps(rounded, indent=1) + "\n")
    for what, cell in rounded["liars"].items():
        print(f"{what:20}", cell)


if __name__ == "__main__":
    main()
