"""What data is worth, by six ways: Shapley values exact and sampled, leave-one-out, GTG-Shapley, and verax's protocols.

    python paper/contribution.py --play RUNS.json.gz --data HALVED.npz --together 16       10 minutes on 16 cores
    python paper/contribution.py                                                           table, figure and checks

Ten clients with 300 to 4,000 images of MNIST at half its side, or 25 to 160 of scikit-learn's digits, some with wrong
labels; one hidden layer, four rounds. Exact Shapley values train a federation for each of the 1,024 coalitions, and
judge it by accuracy on labels that the server has; so do all but `first` and `every`, which see no label.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from math import comb
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import riders
from drawing import BLUE, HERE, ORANGE, labelled, leave, panels
from federation import privately
from scipy.stats import spearmanr
from simulated import Client, average, clients, initial, pair_scores, predict, train

import verax
from verax.exam import Exam
from verax.examiners import balanced, marks
from verax.imitations import imitations
from verax.innovations import clipped, fitted, public_moves
from verax.marking import public_models

RUNS = HERE / "recorded" / "contribution-runs.json.gz"
K, ROUNDS, CLASSES, SURE = 10, 4, 10, 3.0
SKEWS = {"IID": None, "Dirichlet 0.3": 0.3}
# The smallest and the largest client, epochs a round; inputs of the pool, those with labels that judge, those apart.
SIZES = {"mnist": (300, 4000, 2, 2000, 1000, 2000), "digits": (25, 160, 8, 300, 250, 240)}
VARIANTS = {"as it is": ("mean", 0), "another seed": ("mean", 1), "by sizes": ("sized", 0), "median": ("median", 0)}
SCALES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
PARTS = (0.1, 0.25, 0.5, 1.0)
RIDERS = {
    "echo": riders.echo, "stale": riders.stale,
    **{f"noise {share:.0%}": riders.noised(share) for share in (0.05, 0.3, 1.0)},
    "step 1": riders.extrapolated(1.0), "random model": riders.random_model, "constant": riders.constant(0),
    "noise shaped as the last change": riders.shaped(3.0), "last change, a factor a unit": riders.unitwise(2.0),
    "last change, units mixed": riders.mixed(2.0),
}  # fmt: skip


class World:
    """Ten clients, an eleventh, and what the server has: a pool, labels to judge by, and labels apart."""

    def __init__(self, file, data, skew, seed):
        rng = np.random.default_rng([seed, len(data)])
        low, high, self.epochs, pool, judges, apart = SIZES[data]
        x, y = loaded(file, data, rng)
        held = pool + judges + apart
        self.pool, self.judges, self.apart = (
            x[a:b] for a, b in ((0, pool), (pool, pool + judges), (held - apart, held))
        )
        self.truth, self.truth_apart = y[pool : pool + judges], y[held - apart : held]
        sizes = np.exp(rng.uniform(np.log(low), np.log(high), K + 1))
        sizes = (sizes * min(1.0, (len(y) - held - 200) / sizes.sum())).astype(int)
        self.spare = x[-200:] if data == "digits" else x[-600:]
        noise = rng.choice([0, 0, 0.1, 0.2], K + 1)
        left = x[held : -len(self.spare)], y[held : -len(self.spare)]
        self.members = clients(*left, sizes.tolist(), rng, skew=SKEWS[skew], noise=noise.tolist())
        self.worth = [float(len(c.labels) * (1 - wrong)) for c, wrong in zip(self.members, noise, strict=True)]
        self.start = {s: initial((x.shape[1], 32, CLASSES), np.random.default_rng([seed, s])) for s in (0, 1)}
        self.seed = seed

    def accuracy(self, model):
        return float((predict(model, self.judges).argmax(1) == self.truth).mean())


def loaded(file, data, rng):
    if data == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        order = rng.permutation(len(y))
        return (x[order] / 16).astype(np.float32), y[order]
    with np.load(file) as stored:
        x = np.concatenate([stored["mnist-test"], stored["mnist-train"]])
        y = np.concatenate([stored["mnist-test-labels"], stored["mnist-train-labels"]])
    return (x.reshape(len(x), -1) / 255).astype(np.float32), y.astype(int)


def put_together(models, how, sizes):
    if how == "median":
        return [np.median(arrays, 0).astype(np.float32) for arrays in zip(*models, strict=True)]
    return average(models, sizes if how == "sized" else np.ones(len(models)))


def federated(world, who, variant, rider=None):
    """The models of every round: (history, replies) and the last average; `rider` sits in the last seat."""
    how, run = VARIANTS[variant]
    history, rounds = [world.start[run]], []
    for number in range(ROUNDS):
        replies = []
        for i in who:
            rng = np.random.default_rng([world.seed, run, number, i])
            if rider is not None and i == K - 1:
                replies.append(rider(history, rng))
            else:
                replies.append(world.members[i].reply(history[-1], rng, world.epochs))
        rounds.append((list(history), replies))
        history.append(put_together(replies, how, [len(world.members[i].labels) for i in who]))
    return rounds, history[-1]


def coalitions(world, variant, rider=None, only=None):
    """Accuracy after training, for every coalition (a bit a client), or those that have one client."""
    found = {0: world.accuracy(world.start[VARIANTS[variant][1]])}
    for mask in range(1, 1 << K):
        if only is None or mask >> only & 1:
            who = [i for i in range(K) if mask >> i & 1]
            found[mask] = world.accuracy(federated(world, who, variant, rider)[1])
    return found


def shapley(value, player_count=K):
    """Exact: of every coalition without i what i adds, weighted by the chance to come after just those."""
    found = np.zeros(player_count)
    for mask in range(1 << player_count):
        size = mask.bit_count()
        for i in range(player_count):
            if not mask >> i & 1:
                weight = 1 / (player_count * comb(player_count - 1, size))
                found[i] += weight * (value(mask | 1 << i) - value(mask))
    return found


def permutations(value, orders, close):
    """Sampled: what each adds in turn, until it is within `close` of what all have; and how many it takes."""
    seen, found, full = {}, [], value((1 << K) - 1)

    def known(mask):
        if mask not in seen:
            seen[mask] = value(mask)
        return seen[mask]

    for order in orders:
        gains, mask, last = np.zeros(K), 0, known(0)
        for i in order:
            if abs(full - last) < close:
                break
            mask |= 1 << int(i)
            gains[i] = known(mask) - last
            last = known(mask)
        found.append(gains)
    return np.mean(found, 0), len(seen)


def guided(rng, passes):
    """Orders in which everybody comes first once a pass (GTG-Shapley)."""
    others = [[j for j in range(K) if j != i] for i in range(K)]
    return [np.array([i, *rng.permutation(others[i])]) for _ in range(passes) for i in range(K)]


def gtg(world, rounds, last, rng, close=0.005, passes=2):
    """GTG-Shapley: round by round, of averages of the replies that came, no training again. (Liu et al., 2022)"""
    total, seen = np.zeros(K), 0
    ends = [history[-1] for history, _ in rounds[1:]] + [last]
    for (history, replies), after in zip(rounds, ends, strict=True):
        before = world.accuracy(history[-1])
        if abs(world.accuracy(after) - before) < close:
            continue

        def value(mask, replies=replies, before=before):
            who = [replies[i] for i in range(K) if mask >> i & 1]
            return world.accuracy(put_together(who, "mean", ())) if who else before

        gained, count = permutations(value, guided(rng, passes), close)
        total, seen = total + gained, seen + count
    return total, seen


def known_to_all(world, history, rng):
    """Rows of public models on all the server's inputs: broadcasts, steps, noised copies, the server's own students."""
    inputs = np.concatenate([world.pool, world.judges, world.apart])
    p = predict(history[-1], inputs)
    groups = public_models(history[-4:], (), int(rng.integers(1e9)))

    def taught(model, x, labels):
        return dict(enumerate(train([*model.values()], x, labels, rng, epochs=world.epochs)))

    made = imitations(dict(enumerate(history[-1])), world.pool, p[: len(world.pool)], taught, rng)
    groups += [[[*model.values()] for model in group] for group in made]
    return p, [np.mean([predict(model, inputs) for model in group], 0) for group in groups], inputs


class Paid:
    """What verax's protocols pay for a federation's replies, seat by seat, and what replies add on labels apart."""

    def __init__(self, world, seed):
        self.world, self.rng = world, np.random.default_rng([41, seed])
        self.n, self.m = len(world.pool), len(world.judges)
        self.exam = self.first = None
        self.every, self.split, self.adds, self.exact = 0.0, 0.0, 0.0, []
        self.seconds = dict.fromkeys(("first", "every", "exam", "split"), 0.0)

    def take(self, history, replies):
        world, names = self.world, [str(i) for i in range(len(replies))]
        if self.first is None:
            began = time.process_time()
            labels = np.array([predict(m, world.pool).argmax(1) for m in replies])
            pairs, error = pair_scores(labels, CLASSES)
            score = (pairs.sum(1) - np.diag(pairs)) / (len(pairs) - 1)
            self.first = np.where(score > SURE * error, score, 0.0)
            self.seconds["first"] += time.process_time() - began
            self.exam = Exam(world.truth, [None] * self.m, [str(c) for c in range(CLASSES)])
        began = time.process_time()
        p, public, inputs = known_to_all(world, history, self.rng)
        made = time.process_time() - began
        rows = [predict(m, inputs) for m in replies]
        both = slice(0, self.n + self.m)
        if len(history) > 1:
            began = time.process_time()
            table = np.concatenate([p, *public], 1)[: self.n]
            reports = verax.Reports.of(
                probabilities=unit(np.stack(rows)[:, : self.n]), agents=names, classes=range(CLASSES)
            )
            found = verax.score(reports, public=table, rule="innovation")
            got = np.array([found[a].score if found[a].score > SURE * found[a].stderr else 0.0 for a in names])
            self.every = self.every + got
            self.seconds["every"] += time.process_time() - began + made
        began = time.process_time()
        moves = public_moves(p[both], [q[both] for q in public])
        self.exam.sit(p[both], moves, {a: f[both] for a, f in zip(names, rows, strict=True)})
        self.seconds["exam"] += time.process_time() - began + made
        self.divide(p, public, rows)

    def divide(self, p, public, rows):
        """The average's fall in squared loss, divided as a game of fixed shares has it: (1/K) <u_i, 2r - u>."""
        began, world = time.process_time(), self.world
        fit = fitted(p, public_moves(p, public))
        left = clipped([fit.innovation(f - p) for f in rows], 2.0)
        judges, apart = slice(self.n, self.n + self.m), slice(self.n + self.m, None)
        r = np.eye(CLASSES)[world.truth] - p[judges]
        w = balanced(world.truth, p[: self.n].mean(0))[:, None]
        mean = np.mean([u[judges] for u in left], 0)
        self.split = self.split + np.array([(w * u[judges] * (2 * r - mean)).sum(1).mean() / K for u in left])
        self.seconds["split"] += time.process_time() - began
        weights = balanced(world.truth_apart, p[: self.n].mean(0))
        self.adds = self.adds + np.array([marks(u[apart], p[apart], world.truth_apart, weights).mean() for u in left])

    def told(self):
        scores = self.exam.scores()
        marked = [scores[str(i)] for i in range(len(self.first))]
        exam = [s.score if s.score > SURE * s.stderr else 0.0 for s in marked]
        return {"first": self.first, "every": self.every, "exam": np.array(exam), "split": np.maximum(self.split, 0.0),
                "adds": self.adds}  # fmt: skip


def unit(rows):
    return rows / rows.sum(-1, keepdims=True)


def protocols(file, data, skew, seed, variant):
    """What the protocols and GTG-Shapley say of the ten."""
    world = World(file, data, skew, seed)
    rounds, last = federated(world, range(K), variant)
    paid = Paid(world, seed)
    for history, replies in rounds:
        paid.take(history, replies)
    found = paid.told()
    began = time.process_time()
    found["GTG-Shapley"], seen = gtg(world, rounds, last, np.random.default_rng([43, seed]))
    seconds = paid.seconds | {"GTG-Shapley": time.process_time() - began}
    return {"values": {k: v.tolist() for k, v in found.items()}, "seconds": seconds, "evaluations": seen,
            "worth": world.worth[:K], "sizes": [len(c.labels) for c in world.members[:K]]}  # fmt: skip


def games(file, data, skew, seed, variant):
    """Accuracy of every coalition, trained anew."""
    world, began = World(file, data, skew, seed), time.process_time()
    found = coalitions(world, variant)
    return {"coalitions": [found[mask] for mask in range(1 << K)], "seconds": time.process_time() - began}


def more_riders(world, run=0):
    """Riders that have inputs without labels, little of their data, or an old update."""
    shape, eleventh = (600, world.pool.shape[1]), world.members[K]
    few = max(10, len(eleventh.labels) // 10)
    lazy = Client(eleventh.inputs[:few], eleventh.labels[:few])
    worked = eleventh.reply(world.start[run], np.random.default_rng(0), world.epochs)
    update = [a - b for a, b in zip(worked, world.start[run], strict=True)]
    return {
        "random pixels, random labels": riders.trained(
            lambda rng: rng.random(shape, np.float32), "random", world.epochs
        ),
        "real images, random labels": riders.trained(lambda rng: world.spare, "random", world.epochs),
        "real images, own answers": riders.trained(lambda rng: world.spare, "own", world.epochs),
        "a tenth of its data": lambda history, rng: lazy.reply(history[-1], rng, world.epochs),
        "its first update again": riders.replayed(update),
        "honest": lambda history, rng: eleventh.reply(history[-1], rng, world.epochs),
    }


def ridden(file, data, skew, seed, name):
    """A rider in the last seat, averaged in: what every protocol pays it, as a part of the nine others' mean."""
    world = World(file, data, skew, seed)
    ride = (RIDERS | more_riders(world))[name]
    rounds, last = federated(world, range(K), "as it is", ride)
    paid = Paid(world, seed)
    for history, replies in rounds:
        paid.take(history, replies)
    found = paid.told()
    found["GTG-Shapley"], _ = gtg(world, rounds, last, np.random.default_rng([43, seed]))
    without = world.accuracy(federated(world, range(K - 1), "as it is")[1])
    return {"values": {k: np.asarray(v).tolist() for k, v in found.items()},
            "leave-one-out": world.accuracy(last) - without}  # fmt: skip


def ridden_exactly(file, data, skew, seed, name):
    """A rider in the last seat, and every coalition that it is in trained anew."""
    world = World(file, data, skew, seed)
    found = coalitions(world, "as it is", (RIDERS | more_riders(world))[name], only=K - 1)
    return {"coalitions": {str(mask): v for mask, v in found.items()}}


def changed(file, data, skew, seed):
    """One client alone sends its update larger or smaller, or uses a part of its data: its pay, and what it does."""
    world = World(file, data, skew, seed)
    rounds, _ = federated(world, range(K), "as it is")
    focal = int(np.argsort(world.worth[:K])[K // 2])
    mine = world.members[focal]
    found = {}
    for kind, value in [*(("update times", c) for c in SCALES), *(("part of its data", c) for c in PARTS)]:
        paid, gain = Paid(world, seed), 0.0
        for number, (history, replies) in enumerate(rounds):
            now, sent = history[-1], list(replies)
            if kind == "update times":
                sent[focal] = [b + np.float32(value) * (a - b) for a, b in zip(replies[focal], now, strict=True)]
            else:
                few = max(5, round(value * len(mine.labels)))
                part = Client(mine.inputs[:few], mine.labels[:few])
                sent[focal] = part.reply(now, np.random.default_rng([world.seed, 0, number, focal]), world.epochs)
            paid.take(history, sent)
            gain += loss(world, now) - loss(world, average(sent, np.ones(K)))
        got = {k: float(v[focal]) for k, v in paid.told().items()}
        found[f"{kind} {value:g}"] = got | {"fall of the average's loss": gain}
    return found


def loss(world, model):
    rows = predict(model, world.apart)
    return float(((np.eye(CLASSES)[world.truth_apart] - rows) ** 2).sum(1).mean())


def private(file, data, skew, seed):
    """The eleventh with differential privacy beside the ten: what `first` and `exam` pay, and what it teaches."""
    world, found = World(file, data, skew, seed), {}
    rounds, _ = federated(world, range(K), "as it is")
    start, eleventh = world.start[0], world.members[K]
    early = [
        c.reply(start, np.random.default_rng([seed, i]), 3 * world.epochs) for i, c in enumerate(world.members[:K])
    ]
    for noise in (None, 0.3, 1.0):

        def work(now, epochs, number, noise=noise):
            rng = np.random.default_rng([47, seed, number])
            if noise is None:
                return eleventh.reply(now, rng, epochs)
            return privately(now, eleventh, noise, rng, epochs=epochs)

        began = Paid(world, seed)
        own = work(start, 3 * world.epochs, 9)
        began.take([start], [*early, own])
        paid = Paid(world, seed)
        for number, (history, replies) in enumerate(rounds):
            paid.take(history, [*replies, work(history[-1], world.epochs, number)])
        right = float((predict(own, world.apart).argmax(1) == world.truth_apart).mean())
        got = paid.told()
        found["none" if noise is None else f"{noise:g}"] = {
            "first": float(began.first[-1]), "accuracy": right, "exam": float(got["exam"][-1]),
            "exam, not gated": float(paid.exam.scores()[str(K)].score), "adds": float(got["adds"][-1]),
        }  # fmt: skip
    return found


KINDS = {"games": games, "protocols": protocols, "ridden": ridden, "ridden exactly": ridden_exactly,
         "changed": changed, "private": private}  # fmt: skip


def done(job):
    kind, file, *asked = job
    return [kind, *asked], KINDS[kind](file, *asked)


def jobs(file, seeds):
    """The longest and the most needed first."""
    names = [*RIDERS, "random pixels, random labels", "real images, random labels", "real images, own answers",
             "a tenth of its data", "its first update again", "honest"]  # fmt: skip
    worlds = [(d, s, seed) for seed in seeds for d in ("mnist", "digits") for s in SKEWS]
    yield from (("games", file, *w, "as it is") for w in worlds)
    yield from (("protocols", file, *w, v) for w in worlds for v in VARIANTS)
    yield from (("changed", file, *w) for w in worlds)
    yield from (("private", file, *w) for w in worlds)
    yield from (("ridden", file, *w, name) for w in worlds for name in names)
    yield from (("games", file, *w, v) for w in worlds for v in list(VARIANTS)[1:])
    first = [w for w in worlds if w[0] == "mnist" and w[2] == seeds[0]]
    yield from (("ridden exactly", file, *w, name) for w in first for name in names)


def play(args):
    seeds, runs = list(range(400, 400 + args.seeds)), []
    began = written = time.time()
    with ProcessPoolExecutor(args.together, mp_context=get_context("spawn")) as workers:
        waiting = [workers.submit(done, job) for job in jobs(args.data, seeds)]
        for finished in as_completed(waiting):
            runs.append(finished.result())
            if time.time() - written > 20 or len(runs) == len(waiting):
                written = time.time()
                args.play.write_bytes(packed(runs))
                print(len(runs), "of", len(waiting), f"{time.time() - began:.0f} s", flush=True)


def packed(runs):
    def short(value):
        if isinstance(value, dict):
            return {k: short(v) for k, v in value.items()}
        if isinstance(value, list):
            return [short(v) for v in value]
        return float(f"{value:.5g}") if isinstance(value, float) else value

    text = json.dumps(short(sorted(runs, key=lambda run: json.dumps(run[0]))), separators=(",", ":"))
    return gzip.compress(text.encode(), 9, mtime=0)


WAYS = {"exact": "exact Shapley", "sampled": "sampled Shapley, 20 orders", "leave-one-out": "leave-one-out",
        "GTG-Shapley": "GTG-Shapley", "first": "`first`", "every": "`every`", "exam": "`exam`",
        "split": "the average's fall in loss, divided"}  # fmt: skip


def read(file=RUNS):
    return {tuple(key): found for key, found in json.loads(gzip.decompress(Path(file).read_bytes()))}


def valued(runs, data, skew, seed, variant):
    """What every way says of the ten, and what it took."""
    game, other = runs["games", data, skew, seed, variant], runs["protocols", data, skew, seed, variant]
    v, full = game["coalitions"], (1 << K) - 1
    each, rng = game["seconds"] / full, np.random.default_rng([51, seed])
    sampled, seen = permutations(v.__getitem__, [rng.permutation(K) for _ in range(20)], 0.005)
    values = {"exact": shapley(v.__getitem__), "sampled": sampled,
              "leave-one-out": np.array([v[full] - v[full & ~(1 << i)] for i in range(K)])}  # fmt: skip
    values |= {k: np.array(x) for k, x in other["values"].items()}
    seconds = other["seconds"] | {"exact": each * full, "sampled": each * seen, "leave-one-out": each * (K + 1)}
    return values, seconds, np.array(other["worth"])


def spread(values):
    values = np.array([x for x in values if np.isfinite(x)], dtype=float)
    return {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}


def rank(a, b):
    return float(spearmanr(a, b).statistic) if np.std(a) > 0 and np.std(b) > 0 else 0.0


def compared(runs, data):
    """Rank agreement with worth and with exact values, stability, steepness and cost, over IID and Dirichlet worlds."""
    worlds = sorted({key[1:4] for key in runs if key[0] == "games" and key[1] == data})
    found = {}
    for way in WAYS:
        rows = {"with worth": [], "with exact Shapley": [], "another seed": [], "by sizes": [], "median": [],
                "best over worst three": [], "seconds": []}  # fmt: skip
        for world in worlds:
            values, seconds, worth = valued(runs, *world, "as it is")
            own = values[way]
            rows["with worth"].append(rank(own, worth))
            rows["with exact Shapley"].append(rank(own, values["exact"]))
            for variant in list(VARIANTS)[1:]:
                rows[variant].append(rank(own, valued(runs, *world, variant)[0][way]))
            order, paid = np.argsort(worth), np.maximum(own, 0)
            rows["best over worst three"].append(paid[order[-3:]].sum() / max(paid[order[:3]].sum(), 1e-9 * paid.sum()))
            rows["seconds"].append(seconds[way])
        found[way] = {k: spread(v) for k, v in rows.items()}
        found[way]["best over worst three"]["mean"] = float(np.median(rows["best over worst three"]))
    return found


def rode(runs, data):
    """Riders in the last seat, averaged in, as % of the nine others' mean; what is below 0 counts as 0."""
    found = {}
    for key, run in runs.items():
        if key[0] == "ridden" and key[1] == data:
            cell = found.setdefault(key[4], {})
            for way, values in run["values"].items():
                paid = np.maximum(values, 0)
                cell.setdefault(way, []).append(100 * paid[-1] / max(paid[:-1].mean(), 1e-12))
        if key[0] == "ridden exactly" and key[1] == data:
            whole = runs["games", *key[1:4], "as it is"]["coalitions"]
            v = {mask: run["coalitions"].get(str(mask), whole[mask]) for mask in range(1 << K)}
            paid = np.maximum(shapley(v.__getitem__), 0)
            found.setdefault(key[4], {}).setdefault("exact", []).append(100 * paid[-1] / paid[:-1].mean())
    return {name: {way: spread(values) for way, values in cell.items()} for name, cell in found.items()}


def incentives(runs, data):
    """What one client earns that sends more or less of its update, or uses a part of its data, over what it has now."""
    found = {}
    for key, run in runs.items():
        if key[0] == "changed" and key[1] == data:
            for what, cell in run.items():
                usual = run["update times 1"]
                for way in ("first", "every", "exam", "split", "fall of the average's loss"):
                    if usual[way] > 0:
                        found.setdefault(what, {}).setdefault(way, []).append(cell[way] / usual[way])
    return {
        what: {way: spread(v) | {"mean": float(np.median(v))} for way, v in cell.items()}
        for what, cell in found.items()
    }


def private_ones(runs, data):
    """The eleventh with differential privacy: pay over that without, and what it teaches over that without."""
    mine = [run for key, run in runs.items() if key[0] == "private" and key[1] == data]
    found = {}
    for noise in ("0.3", "1"):

        def ratio(what, less=0.0, noise=noise):
            return sum(run[noise][what] - less for run in mine) / sum(run["none"][what] - less for run in mine)

        found[noise] = {what: ratio(what) for what in ("first", "exam", "exam, not gated", "adds")}
        found[noise]["accuracy above chance"] = ratio("accuracy", 1 / CLASSES)
    return found


def drawn(numbers):
    figure, axes = panels(
        "An exam ranks clients about as exact Shapley values do, at a hundredth of the cost", 3, size=(13, 4.4)
    )
    ways = list(WAYS)
    for k, (data, colour) in enumerate((("mnist", BLUE), ("digits", ORANGE))):
        of, at = numbers[data]["compared"], np.arange(len(ways)) + 0.38 * k
        axes[0].barh(at, [of[w]["with exact Shapley"]["mean"] for w in ways], 0.36, color=colour, label=data)
        axes[1].barh(at, [of[w]["seconds"]["mean"] for w in ways], 0.36, color=colour)
        steep = [min(of[w]["best over worst three"]["mean"], 12) for w in ways]
        axes[2].barh(at, steep, 0.36, color=colour)
    for panel in axes:
        panel.set_yticks(np.arange(len(ways)) + 0.19, ways if panel is axes[0] else [""] * len(ways))
        panel.invert_yaxis()
    axes[1].set_xscale("log")
    axes[2].legend(axes[1].patches[:: len(ways)], ("MNIST", "digits"), loc="lower right")
    labelled(axes[0], "Rank agreement with exact Shapley values", "Spearman, mean of ten worlds", "")
    labelled(axes[1], "Cost", "CPU seconds", "")
    labelled(axes[2], "Steepness: the best three's pay", "over that of the worst three, median", "")
    return figure


def checked(numbers):
    """What the table must show."""
    for data in ("mnist", "digits"):
        of = numbers[data]["compared"]
        assert of["exact"]["with exact Shapley"]["min"] > 0.999
        assert of["first"]["seconds"]["mean"] < of["exact"]["seconds"]["mean"] / 100
        assert of["first"]["best over worst three"]["mean"] < of["exam"]["best over worst three"]["mean"]
        for name in ("echo", "stale"):
            assert numbers[data]["riders"][name]["exam"]["max"] == numbers[data]["riders"][name]["every"]["max"] == 0
    assert numbers["mnist"]["compared"]["exam"]["with worth"]["mean"] > 0.8


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for the numbers and the figure")
    parser.add_argument("--play", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--together", type=int, default=2)
    args = parser.parse_args()
    if args.play:
        play(args)
        return
    runs = read()
    parts = {"compared": compared, "riders": rode, "incentives": incentives, "private": private_ones}
    numbers = {data: {name: part(runs, data) for name, part in parts.items()} for data in ("mnist", "digits")}
    for data, of in numbers.items():
        for part, rows in of.items():
            for name, cell in rows.items():
                print(
                    data,
                    part,
                    name,
                    {k: f"{x['mean']:.3g}" if isinstance(x, dict) else f"{x:.3g}" for k, x in cell.items()},
                )
    leave(args.out, "contribution", numbers, drawn(numbers))
    checked(numbers)


if __name__ == "__main__":
    main()
