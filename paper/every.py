"""What `every` pays riders on three network shapes, by peers' innovations on probabilities and no labels.

    python paper/every.py --play WORLDS.json.gz --data HALVED.npz --together 14       torch, on a GPU if there is one
    python paper/every.py                                                             table, figure and checks

MNIST and CIFAR-10 at half their side (`exam_worlds.py --prepare`) and scikit-learn's digits; one hidden layer, a small
CNN, and one with group norms; IID and Dirichlet 0.3, five seeds. Ten members; a rider sits beside nine of them and is
not averaged in. Rounds 2 to 5 are paid, each by its own gate (z > 3), as the referee does.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path

import numpy as np
from drawing import BLUE, GREEN, HERE, ORANGE, labelled, leave, panels
from exam_worlds import (
    CLASSES,
    GOLD,
    MEMBERS,
    NOTHING,
    POOL,
    ROUNDS,
    SELF,
    SKEWS,
    SOME,
    Trainer,
    World,
    beside,
    middle,
    ridden,
    rounded,
    students,
    tensor,
    whole,
)  # fmt: skip  # isort: skip
from scipy.stats import spearmanr

from verax.echo import kinships, perturbed, public_features, stepped
from verax.examiners import balanced, marks, mean_mark
from verax.innovations import beside_peers, clipped, fitted, public_moves

WORLDS = HERE / "recorded" / "every-worlds.json.gz"
SHAPES = {"mlp": "one hidden layer", "cnn": "small CNN", "groupnorm": "GroupNorm CNN"}
DATA = ("mnist", "cifar10", "digits")
SURE, LEAST, COPIES, TANGENTS = 3.0, 6.0, 8, 32
RULES = ("bare", "drifts", "taught")


class Digits(World):
    """The same ten members and an eleventh on scikit-learn's digits: 40 to 100 images each, twenty epochs a round."""

    def __init__(self, name, skew, seed, shape):
        from sklearn.datasets import load_digits

        self.name, self.skew, self.seed = name, skew, seed
        rng = self.rng = np.random.default_rng([seed, 11, skew is None])
        x, y = load_digits(return_X_y=True)
        order = rng.permutation(len(y))
        x, y = (x[order].reshape(-1, 1, 8, 8) / 16 - 0.5).astype(np.float32), y[order]
        self.trainer = Longer(1, 8, shape)
        self.x, self.y = x[700:], y[700:]
        self.test_x, self.test_y = x[:700], y[:700]
        self.adam = rng.random(MEMBERS + 1) < 0.5
        free = [rng.permutation(np.nonzero(self.y[:-200] == c)[0]).tolist() for c in range(CLASSES)]
        self.data, self.held = [], []
        for size in np.exp(rng.uniform(np.log(40), np.log(100), MEMBERS + 1)).astype(int):
            share = np.full(CLASSES, 0.1) if skew is None else rng.dirichlet(np.full(CLASSES, skew))
            counts = rng.multinomial(size, share)
            mine = rng.permutation([pile.pop() for pile, n in zip(free, counts, strict=True)
                                    for _ in range(min(n, len(pile)))])  # fmt: skip
            own, wrong = self.y[mine].copy(), rng.random(len(mine)) < rng.choice([0, 0, 0.1, 0.2])
            own[wrong] = rng.integers(0, CLASSES, wrong.sum())
            cut = max(1, len(mine) // 5)
            self.held.append((mine[:cut], own[:cut]))
            self.data.append((tensor(self.x[mine[cut:]]), whole(own[cut:])))
        self.spare = tensor(self.x[-200:])
        inked = rng.random((150, 1, 8, 8)) < 0.3
        self.strange = tensor(inked - 0.5), whole(rng.integers(0, CLASSES, 150))
        self.pool, self.apart = np.arange(400), np.arange(400, 700)
        held_x = np.concatenate([self.x[at] for at, _ in self.held[:MEMBERS]])
        self.inputs = tensor(np.concatenate([self.test_x, held_x]))
        self.labels = np.concatenate([y for _, y in self.held[:MEMBERS]])
        self.holders = np.repeat(np.arange(MEMBERS), [len(y) for _, y in self.held[:MEMBERS]])


class Longer(Trainer):
    """Few images a client take more epochs a round."""

    def trained(self, model, images, labels, rng, *, epochs=2, **more):
        return super().trained(model, images, labels, rng, epochs=10 * epochs, **more)

    def private(self, model, images, labels, rng, multiplier, *, epochs=2, **more):
        return super().private(model, images, labels, rng, multiplier, epochs=10 * epochs, **more)


def drifts(p, copies):
    """Rows of where training without labels would move the broadcast, as far as slightly noised copies of it tell.

    To first order training towards targets moves rows by K (targets - rows), K the sum over weights of what each does
    to the rows; the copies estimate K. Targets: own answers, the sure ones, less entropy, random labels.
    """
    tangents = np.stack([(copy - p).ravel() for copy in copies])
    own, sure = np.eye(CLASSES)[p.argmax(1)] - p, p.max(1) >= np.median(p.max(1))
    logs = np.log(np.maximum(p, 1e-4))
    targets = (own, own * sure[:, None], p * (logs - (p * logs).sum(1, keepdims=True)), 1 / CLASSES - p)
    moved = [(tangents.T @ (tangents @ target.ravel())).reshape(p.shape) for target in targets]
    return [p + m * (np.linalg.norm(t) / max(np.linalg.norm(m), 1e-12)) for m, t in zip(moved, targets, strict=True)]


def play(file, name, skew, seed, shape):
    """One world: everybody's scores round by round, what they add on labels apart, and the first round's."""
    began = time.perf_counter()
    if name == "digits":
        world, pool, apart = Digits(name, SKEWS[skew], seed, shape), slice(0, 400), slice(400, 700)
    else:
        with np.load(file) as stored:
            world = World(stored, name, SKEWS[skew], seed, shape)
        pool, apart = slice(0, POOL), slice(POOL + GOLD, POOL + GOLD + len(world.apart))
    rng, history = np.random.default_rng([7, seed]), [world.trainer.initial(seed)]
    kept = Kept(world, pool, apart)
    for number in range(1, ROUNDS + 1):
        now = history[-1]
        replies = [world.work(i, now, rng) for i in range(MEMBERS)]
        if number == 1:
            worked = world.work(MEMBERS, now, rng)
            replay = [a - b for a, b in zip(worked, now, strict=True)]
        else:
            kept.take(history, replies, ridden(world, history, rng, replay), rng)
        history.append([np.mean(arrays, 0) for arrays in zip(*replies, strict=True)])
    found = {"data": name, "skew": skew, "seed": seed, "shape": shape} | kept.told()
    return found | {"seconds": round(time.perf_counter() - began, 1)}


class Kept:
    """Scores of every round, and what they come to in the end."""

    def __init__(self, world, pool, apart):
        self.world, self.pool, self.apart = world, pool, apart
        self.truth = world.test_y[world.apart]
        self.rounds, self.added, self.examined, self.accuracy = [], 0.0, 0.0, []
        self.seconds = dict.fromkeys((*RULES, "before"), 0.0)

    def take(self, history, replies, rides, rng):
        world, pool = self.world, self.pool
        self.names = [*(f"member {i}" for i in range(MEMBERS)), *rides]
        models = [*replies, *rides.values()]
        p, rows = world.rows(history[-1]), [world.rows(model) for model in models]
        public = self.public(history, p, rng)
        found = {rule: self.scored(rule, p[pool], [q[pool] for q in made], [f[pool] for f in rows])
                 for rule, made in public.items()}  # fmt: skip
        began = time.process_time()
        labels, images = np.array([f[pool].argmax(1) for f in rows]), world.inputs[pool]
        features = public_features(world.rows, history[-1], history[:-1][-3:], images, int(rng.integers(1e9)), copies=8)
        score, z = beside(labels, features)
        kin = middle(kinships(models, history[-1], history[:-1]))
        self.seconds["before"] += time.process_time() - began
        found["before"] = score.tolist(), np.where(kin >= LEAST, z, 0.0).tolist()
        plain = beside(labels, None)
        found["plain"] = plain[0].tolist(), plain[1].tolist()
        found["echo test"] = kin.tolist()
        self.rounds.append(found)
        self.examine(p, rows, public["drifts"] + public["taught"][len(public["bare"]) :])

    def public(self, history, p, rng):
        """Rows of public models by rule: broadcasts, steps and noised copies, and what the server makes itself."""
        world, now, old = self.world, history[-1], history[-2]
        began = time.process_time()
        bare = [world.rows(model) for model in (*history[-3:-1], *(stepped(now, old, s) for s in (0.5, 1.0, 2.0)))]
        for level in (0.05, 0.15, 0.4, 1.0):
            bare.append(np.mean([world.rows(perturbed(now, level, rng)) for _ in range(COPIES)], 0))
        made = time.process_time()
        drift = drifts(p, [world.rows(perturbed(now, 0.02, rng)) for _ in range(TANGENTS)])
        drifted = time.process_time()
        groups = [students(world, now, rng, world.inputs[self.pool]) for _ in range(2)]
        taught = [np.mean([world.rows(group[kind]) for group in groups], 0) for kind in groups[0]]
        ended = time.process_time()
        for rule, spent in (("bare", 0), ("drifts", drifted - made), ("taught", ended - drifted)):
            self.seconds[rule] += made - began + spent
        return {"bare": bare, "drifts": bare + drift, "taught": bare + taught}

    def scored(self, rule, p, public, rows):
        """Scores and z of everybody beside nine members, as rule `innovation` has them (`verax.score`)."""
        began = time.process_time()
        fit = fitted(p, public_moves(p, public))
        left = [fit.innovation(f - p) for f in rows]
        seats = [left[:MEMBERS]] + [[*left[: MEMBERS - 1], u] for u in left[MEMBERS:]]
        psi = [beside_peers(clipped(seat, 2.0)) for seat in seats]
        found = [mean_mark(row) for row in (*psi[0], *(table[-1] for table in psi[1:]))]
        self.seconds[rule] += time.process_time() - began
        return [m.score for m in found], [m.score / max(m.stderr, 1e-12) for m in found]

    def examine(self, p, rows, public):
        """What innovations say of labels apart, and of those that the members hold back."""
        fit, n = fitted(p, public_moves(p, public)), len(self.world.labels)
        left = [fit.innovation(f - p) for f in rows]
        members = left[:MEMBERS]
        left = [clipped([*members, u], 2.0)[-1] for u in left]
        prior, held = p[self.pool].mean(0), slice(-n, None)
        w = balanced(self.truth, prior)
        self.added = self.added + np.stack([marks(u[self.apart], p[self.apart], self.truth, w) for u in left])
        psi = np.full((len(rows), n), np.nan)
        for m, u in enumerate(left):
            on = self.world.holders != m if m < MEMBERS else np.full(n, True)
            y = self.world.labels[on]
            psi[m, on] = marks(u[held][on], p[held][on], y, balanced(y, prior))
        self.examined = self.examined + psi
        self.accuracy.append([float((f[self.apart].argmax(1) == self.truth).mean()) for f in rows])

    def told(self):
        exam = [mean_mark(row[~np.isnan(row)]) for row in self.examined]
        return {
            "names": self.names, "rounds": self.rounds, "seconds by rule": self.seconds,
            "adds": [mean_mark(psi).score for psi in self.added], "accuracy": np.mean(self.accuracy, 0).tolist(),
            "exam": {"score": [m.score for m in exam], "stderr": [m.stderr for m in exam]},
        }  # fmt: skip


def played(job):
    import torch

    torch.set_num_threads(1)
    return play(*job)


GROUPS = {"no information": NOTHING, "self-training": SELF, "a tenth, ten images": SOME[:2], "replay": SOME[2:]}
ROWS = {"before": "labels and features, echo test", "bare": "innovations, no imitations",
        "drifts": "and drifts that noised copies tell", "taught": "**innovations, the server's imitations**",
        "taught, echo test": "and the echo test"}  # fmt: skip


def pay(world, rule):
    """What everybody earns in all rounds, each by its own gate; and without gates."""
    rule, _, guarded = rule.partition(", ")
    score, z = (np.array([found[rule][k] for found in world["rounds"]]) for k in (0, 1))
    if guarded:
        z = np.where(np.array([found["echo test"] for found in world["rounds"]]) >= LEAST, z, 0.0)
    return np.where(z > SURE, np.maximum(score, 0), 0.0).sum(0), np.maximum(score, 0).sum(0)


def over(values):
    return {"mean": float(np.mean(values)), "max": float(np.max(values)), "min": float(np.min(values))}


def paid(worlds, rule):
    """Riders as % of the ten members' mean, what the gates leave members, and whom pay ranks as labels apart do."""
    named, found = worlds[0]["names"], {"kept": [], "unpaid": [], "everybody": [], "members": [], "accuracy": []}
    shares = []
    for world in worlds:
        got, ungated = pay(world, rule)
        mine, adds = got[:MEMBERS], np.array(world["adds"])
        shares.append(100 * got / max(mine.mean(), 1e-12))
        found["kept"].append(mine.sum() / ungated[:MEMBERS].sum())
        found["unpaid"].append(float((mine == 0).mean()))
        found["everybody"].append(ranked(got, adds))
        found["members"].append(ranked(mine, adds[:MEMBERS]))
        found["accuracy"].append(ranked(mine, np.array(world["accuracy"])[:MEMBERS]))
    riders = {name: over([s[named.index(name)] for s in shares]) for name in named[MEMBERS:]}
    groups = {g: over([s[named.index(n)] for s in shares for n in names]) for g, names in GROUPS.items()}
    return {"riders": riders, "groups": groups} | {k: float(np.nanmean(v)) for k, v in found.items()}


def ranked(a, b):
    return float(spearmanr(a, b).statistic) if np.std(a) > 0 and np.std(b) > 0 else np.nan


def drawn(numbers):
    figure, axes = panels("Peers' innovations: what riders without information earn, by network", 3, size=(13, 4.6))
    for panel, data in zip(axes, DATA, strict=True):
        for k, (rule, colour) in enumerate((("before", ORANGE), ("bare", GREEN), ("taught", BLUE))):
            cells = [numbers["worlds"][f"{data}, {shape}"][rule] for shape in SHAPES]
            for part, group in enumerate(("no information", "self-training")):
                at = np.arange(len(SHAPES)) + 0.3 * (k - 1) + 0.14 * part
                means = [c["groups"][group]["mean"] for c in cells]
                panel.bar(at, means, 0.13, color=colour, alpha=1 - 0.5 * part, label=f"{rule}: {group}")
        panel.set_xticks(range(len(SHAPES)), SHAPES.values())
        labelled(panel, data, "", "% of mean honest pay")
    axes[0].legend(fontsize=7)
    return figure


def checked(numbers):
    """What the table shows, and what it does not reach."""
    for where, of in numbers["worlds"].items():
        assert of["taught"]["groups"]["no information"]["mean"] < of["bare"]["groups"]["no information"]["mean"]
        assert max(of["taught"]["riders"][name]["max"] for name in ("echo", "stale", "step 1")) <= 1
        if "digits" not in where:
            assert of["taught"]["kept"] >= 0.97 and of["taught"]["groups"]["no information"]["mean"] <= 10
            assert of["taught"]["members"] > of["before"]["members"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for the numbers and the figure")
    parser.add_argument("--play", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[300, 301, 302, 303, 304])
    parser.add_argument("--sets", nargs="*", default=DATA)
    parser.add_argument("--shapes", nargs="*", default=[*SHAPES])
    parser.add_argument("--together", type=int, default=1)
    args = parser.parse_args()
    if args.play:
        record(args)
        return
    worlds = json.loads(gzip.decompress(WORLDS.read_bytes()))
    found = {}
    for data in DATA:
        for shape in SHAPES:
            mine = [w for w in worlds if (w["data"], w["shape"]) == (data, shape)]
            found[f"{data}, {shape}"] = {rule: paid(mine, rule) for rule in ("plain", *ROWS)}
    spent = [w["seconds by rule"] for w in worlds if w["data"] != "digits"]
    seconds = {rule: float(np.mean([s[rule] for s in spent])) / (ROUNDS - 1) for rule in spent[0]}
    numbers = {"worlds": found, "seconds a round": seconds}
    for where, of in found.items():
        for rule, cell in of.items():
            told = {g: f"{c['mean']:.1f} [{c['max']:.0f}]" for g, c in cell["groups"].items()}
            print(where, rule, told, {k: round(v, 2) for k, v in cell.items() if isinstance(v, float)})
    leave(args.out, "every", numbers, drawn(numbers))
    checked(numbers)


def record(args):
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    jobs = [(args.data, d, s, seed, shape)
            for seed in args.seeds for d in args.sets for shape in args.shapes for s in SKEWS]  # fmt: skip
    worlds = []
    with ProcessPoolExecutor(args.together, mp_context=get_context("spawn")) as workers:
        for done in as_completed([workers.submit(played, job) for job in jobs]):
            world = done.result()
            worlds.append(world)
            worlds.sort(key=lambda w: (w["data"], w["shape"], w["skew"], w["seed"]))
            print(world["data"], world["shape"], world["skew"], world["seed"], world["seconds"], flush=True)
            text = json.dumps(rounded(worlds), separators=(",", ":")).encode()
            args.play.write_bytes(gzip.compress(text, 9, mtime=0))


if __name__ == "__main__":
    main()
