"""Worlds for `exam.py`: federations of small networks, and what everybody scores; torch, on a GPU if there is one.

    python paper/exam_worlds.py --prepare HALVED.npz --data-dir DATA      MNIST and CIFAR-10 at half their side, once
    python paper/exam_worlds.py --play WORLDS.json.gz --data HALVED.npz --together 14

Ten members with 300 to 2,000 images, mixed optimisers and label noise, hold back a fifth. Rounds 2 to 5 are examined.
A rider sits beside the ten and is not averaged in. Innovations and marks are `verax`'s; only the networks are here.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from verax.echo import kinships, perturbed, public_features, stepped
from verax.examiners import Examiners, balanced, marks, mean_mark
from verax.innovations import beside_peers, clipped, fitted, public_moves
from verax.public import Public

MEMBERS, ROUNDS, CLASSES, SURE = 10, 5, 10, 3.0
SKEWS = {"IID": None, "Dirichlet 0.3": 0.3}
POOL, GOLD, APART, SPARE = 2000, 2000, 2000, 1500
GOLDS = (20, 50, 100, 500)
MOST = (1.0, 2.0, 1e9)

NOTHING = (
    "echo", "stale", "step 0.5", "step 1", "step 2", "noise 5%", "noise 30%", "noise 100%", "stale, noise 30%",
    "random model", "random labels", "random pixels, random labels", "another data set", "entropy", "quantised",
    "pruned", "shrunk", "mixture with stale", "last change, a factor an array",
)  # fmt: skip
SELF = ("own answers", "sure answers", "own answers, 5 epochs", "1,500 images, 5 epochs", "sharpened answers")
SOME = ("a tenth of its data", "ten images", "its last update again")
WORKED = ("honest, 30% noise", "honest, DP 0.3", "honest, DP 1", "honest eleventh")


def prepare(folder, file):
    """Both data sets at half their side, as bytes."""
    from verax.reproduce.datasets import load

    found = {}
    for name in ("mnist", "cifar10"):
        data = load(name, folder, fetch=False)
        for side, images, labels in (("train", data.train_images[:30000], data.train_labels[:30000]),
                                     ("test", data.test_images, data.test_labels)):  # fmt: skip
            n, c, h, w = images.shape
            small = images.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5)).round().astype(np.uint8)
            found |= {f"{name}-{side}": small, f"{name}-{side}-labels": labels}
    np.savez_compressed(file, **found)


# Networks: a model is a list of float32 arrays.


def device():
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def network(channels, side, shape="cnn"):
    """Two convolutions, with group norms or without, or one hidden layer of 64 units ("mlp")."""
    from torch import nn

    if shape == "mlp":
        layers = [nn.Flatten(), nn.Linear(channels * side * side, 64), nn.ReLU(), nn.Linear(64, CLASSES)]
    else:
        norm = (lambda n: [nn.GroupNorm(4, n)]) if shape == "groupnorm" else (lambda n: [])
        one, two = nn.Conv2d(channels, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        layers = [one, *norm(16), nn.ReLU(), nn.MaxPool2d(2), two, *norm(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                  nn.Linear(32 * (side // 2 // 2) ** 2, 64), nn.ReLU(), nn.Linear(64, CLASSES)]  # fmt: skip
    return nn.Sequential(*layers).to(device())


class Trainer:
    """One network on one device, filled with whichever model is asked about."""

    def __init__(self, channels, side, shape="cnn"):
        self.net = network(channels, side, shape)

    def fill(self, model):
        import torch

        with torch.no_grad():
            for own, given in zip(self.net.parameters(), model, strict=True):
                own.copy_(torch.from_numpy(np.ascontiguousarray(given)))

    def emptied(self):
        return [p.detach().cpu().numpy().copy() for p in self.net.parameters()]

    def initial(self, seed):
        import torch

        torch.manual_seed(seed)
        for layer in self.net:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        return self.emptied()

    def rows(self, model, images):
        import torch

        self.fill(model)
        with torch.no_grad():
            parts = [torch.softmax(self.net(part).double(), 1) for part in images.split(4000)]
        return torch.cat(parts).cpu().numpy()

    def trained(self, model, images, labels, rng, *, epochs=2, adam=False, batch=32, entropy=False):
        """The model after gradient descent on cross-entropy with labels (or rows), or on its own entropy."""
        import torch
        from torch.nn import functional

        self.fill(model)
        rate = 2e-3 if adam else 0.05
        kind = torch.optim.Adam if adam else torch.optim.SGD
        descent = kind(self.net.parameters(), lr=rate, **({} if adam else {"momentum": 0.9}))
        for _ in range(epochs):
            order = torch.from_numpy(rng.permutation(len(images))).to(images.device)
            for chosen in order.split(batch):
                out = self.net(images[chosen])
                if entropy:
                    loss = -(out.softmax(1) * out.log_softmax(1)).sum(1).mean()
                else:
                    loss = functional.cross_entropy(out, labels[chosen])
                descent.zero_grad()
                loss.backward()
                descent.step()
        return self.emptied()

    def private(self, model, images, labels, rng, multiplier, *, epochs=2, batch=32, rate=0.1):
        """The model after DP-SGD: every example's slope clipped at 1, noise of `multiplier` times that on their sum."""
        import torch
        from torch.func import functional_call, grad, vmap
        from torch.nn import functional

        self.fill(model)
        now = {name: p.detach().clone() for name, p in self.net.named_parameters()}
        torch.manual_seed(int(rng.integers(1e9)))

        def loss(weights, image, label):
            return functional.cross_entropy(functional_call(self.net, weights, (image[None],)), label[None])

        slopes = vmap(grad(loss), (None, 0, 0))
        for _ in range(epochs):
            order = torch.from_numpy(rng.permutation(len(images))).to(images.device)
            for chosen in order.split(batch):
                found = slopes(now, images[chosen], labels[chosen])
                sizes = sum(g.flatten(1).square().sum(1) for g in found.values()).sqrt()
                share = (1 / sizes.clamp(min=1e-9)).clamp(max=1)
                for name, g in found.items():
                    clipped_sum = torch.tensordot(share, g, dims=([0], [0]))
                    now[name] -= rate / len(chosen) * (clipped_sum + multiplier * torch.randn_like(now[name]))
        return [p.cpu().numpy() for p in now.values()]


def tensor(array, kind=None):
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(device(), kind or torch.float32)


def whole(labels):
    import torch

    return tensor(np.asarray(labels), torch.int64)


class World:
    """Members with data and a fifth held back, an eleventh who may work or ride, and inputs for the server."""

    def __init__(self, stored, name, skew, seed, shape="cnn"):
        self.name, self.skew, self.seed = name, skew, seed
        rng = self.rng = np.random.default_rng([seed, len(name), skew is None])
        self.x, self.y = stored[f"{name}-train"] / np.float32(255) - np.float32(0.5), stored[f"{name}-train-labels"]
        self.test_x = stored[f"{name}-test"] / np.float32(255) - np.float32(0.5)
        self.test_y = stored[f"{name}-test-labels"]
        self.trainer = Trainer(self.x.shape[1], self.x.shape[2], shape)
        sizes = np.exp(rng.uniform(np.log(300), np.log(2000), 2 * MEMBERS)).astype(int)
        flips = rng.choice([0, 0, 0.1, 0.2], 2 * MEMBERS)
        self.adam = rng.random(2 * MEMBERS) < 0.5
        free = [rng.permutation(np.nonzero(self.y[:-SPARE] == c)[0]).tolist() for c in range(CLASSES)]
        self.data, self.held = [], []
        for size, wrong in zip(sizes, flips, strict=True):
            share = np.full(CLASSES, 0.1) if skew is None else rng.dirichlet(np.full(CLASSES, skew))
            counts = rng.multinomial(size, share)
            mine = [pile.pop() for pile, n in zip(free, counts, strict=True) for _ in range(min(n, len(pile)))]
            mine = rng.permutation(np.array(mine))
            own = self.y[mine].copy()
            changed = rng.random(len(own)) < wrong
            own[changed] = rng.integers(0, CLASSES, changed.sum())
            cut = max(1, len(mine) // 5)
            self.held.append((mine[:cut], own[:cut]))
            self.data.append((tensor(self.x[mine[cut:]]), whole(own[cut:])))
        self.spare = tensor(self.x[-SPARE:])
        other = "mnist" if name == "cifar10" else "cifar10"
        self.strange = self._strange(stored, other)
        order = rng.permutation(len(self.test_y))
        self.pool = order[:POOL]
        self.gold = order[POOL : POOL + GOLD]
        self.apart = order[POOL + GOLD : POOL + GOLD + APART]
        # the inputs of an exam: pool, gold, apart, and last what the ten members hold back
        held_x = np.concatenate([self.x[at] for at, _ in self.held[:MEMBERS]])
        self.inputs = tensor(np.concatenate([self.test_x[np.concatenate([self.pool, self.gold, self.apart])], held_x]))
        self.labels = np.concatenate([y for _, y in self.held[:MEMBERS]])
        self.holders = np.repeat(np.arange(MEMBERS), [len(y) for _, y in self.held[:MEMBERS]])

    def _strange(self, stored, other):
        """600 images of the other data set, brought to this one's shape, with their labels."""
        images = stored[f"{other}-train"][:600] / np.float32(255) - np.float32(0.5)
        c, side = self.x.shape[1], self.x.shape[2]
        images = images.mean(1, keepdims=True).repeat(c, 1)
        at = np.linspace(0, images.shape[2] - 1, side).round().astype(int)
        return tensor(images[:, :, at][:, :, :, at]), whole(stored[f"{other}-train-labels"][:600])

    def work(self, i, model, rng, epochs=2):
        return self.trainer.trained(model, *self.data[i], rng, epochs=epochs, adam=bool(self.adam[i]))

    def rows(self, model, images=None):
        return self.trainer.rows(model, self.inputs if images is None else images)


def students(world, model, rng, images):
    """The broadcast trained without anybody's labels; riders do so on spare images, the server on the pool."""
    import torch

    rows = tensor(world.rows(model, images))
    own, some = rows.argmax(1), torch.from_numpy(rng.permutation(len(images))[:600]).to(images.device)
    sure = torch.nonzero(rows.max(1).values >= rows.max(1).values.median())[:, 0]
    train = world.trainer.trained
    return {
        "random labels": train(model, images[some], whole(rng.integers(0, CLASSES, len(some))), rng),
        "entropy": train(model, images[some], None, rng, entropy=True, epochs=1),
        "own answers": train(model, images[some], own[some], rng),
        "sure answers": train(model, images[sure], own[sure], rng),
        "sharpened answers": train(model, images[some], rows[some] ** 2 / (rows[some] ** 2).sum(1, keepdim=True), rng),
    }


def changed(model, ride):
    return [np.asarray(ride(a), np.float32) for a in model]


def ridden(world, history, rng, replay):
    """What every rider replies in this round."""
    import torch

    now, old = history[-1], history[-2]
    train, half = world.trainer.trained, [(a + b) / 2 for a, b in zip(now, old, strict=True)]
    pixels = tensor(rng.random((600, *world.spare.shape[1:]), np.float32) - 0.5)
    own = tensor(world.rows(now, world.spare)).argmax(1)
    x, y = world.data[MEMBERS]
    few = torch.from_numpy(rng.permutation(len(x))[: max(10, len(x) // 10)]).to(x.device)
    worked = world.work(MEMBERS, now, rng)
    found = {
        "echo": now, "stale": old,
        **{f"step {s:g}": stepped(now, old, s) for s in (0.5, 1.0, 2.0)},
        **{f"noise {s:.0%}": perturbed(now, s, rng) for s in (0.05, 0.3, 1.0)},
        "stale, noise 30%": perturbed(old, 0.3, rng),
        "random model": world.trainer.initial(int(rng.integers(1e9))),
        "random pixels, random labels": train(now, pixels, whole(rng.integers(0, CLASSES, 600)), rng),
        "another data set": train(now, *world.strange, rng),
        "quantised": changed(now, lambda a: np.round(a / (a.std() / 2 + 1e-9)) * (a.std() / 2 + 1e-9)),
        "pruned": changed(now, lambda a: np.where(np.abs(a) < np.median(np.abs(a)), 0, a)),
        "shrunk": changed(now, lambda a: 0.8 * a),
        "mixture with stale": half,
        "last change, a factor an array": [
            (a + rng.normal() * (a - b)).astype(np.float32) for a, b in zip(now, old, strict=True)
        ],
        **students(world, now, rng, world.spare),
        "own answers, 5 epochs": train(now, world.spare[:600], own[:600], rng, epochs=5),
        "1,500 images, 5 epochs": train(now, world.spare, own, rng, epochs=5),
        "a tenth of its data": train(now, x[few], y[few], rng),
        "ten images": train(now, x[few[:10]], y[few[:10]], rng),
        "its last update again": [(a + b).astype(np.float32) for a, b in zip(now, replay, strict=True)],
        "honest, 30% noise": perturbed(worked, 0.3, rng),
        **{f"honest, DP {m:g}": world.trainer.private(now, x, y, rng, m) for m in (0.3, 1.0)},
        "honest eleventh": worked,
    }  # fmt: skip
    return {name: found[name] for name in (*NOTHING, *SELF, *SOME, *WORKED)}


def public_rows(world, history, rng, copies=4):
    """What the server shows to be public: earlier broadcasts, steps, noised copies, its own students of the pool."""
    now, old = history[-1], history[-2]
    found = [world.rows(model) for model in (*history[-3:-1], *(stepped(now, old, s) for s in (0.5, 1.0, 2.0)))]
    around = [(now, s) for s in (0.05, 0.15, 0.4, 1.0)] + [(old, 0.3)]
    found += [np.mean([world.rows(perturbed(m, s, rng)) for _ in range(copies)], 0) for m, s in around]
    pool = world.inputs[:POOL]
    taught = [students(world, now, rng, pool) for _ in range(2)]
    found += [np.mean([world.rows(group[kind]) for group in taught], 0) for kind in taught[0]]
    return found


def play(file, name, skew, seed):
    """One world: the scores of everybody under every rule."""
    start = time.perf_counter()
    with np.load(file) as stored:
        world = World(stored, name, SKEWS[skew], seed)
    rng, first = np.random.default_rng([7, seed]), world.trainer.initial(seed)
    history, replay = [first], None
    kept = Kept(world)
    found = {"data": name, "skew": skew, "seed": seed}
    for number in range(1, ROUNDS + 1):
        now = history[-1]
        replies = [world.work(i, now, rng) for i in range(MEMBERS)]
        if number == 1:
            worked = world.work(MEMBERS, now, rng)
            replay = [a - b for a, b in zip(worked, now, strict=True)]
            kept.remember(now, replies, worked)
        else:
            kept.take(history, replies, ridden(world, history, rng, replay), rng)
        history.append([np.mean(arrays, 0) for arrays in zip(*replies, strict=True)])
    found |= kept.told()
    found["accuracy of the model"] = float(
        (world.rows(history[-1])[POOL + GOLD : POOL + GOLD + APART].argmax(1) == world.test_y[world.apart]).mean()
    )
    found["seconds"] = round(time.perf_counter() - start, 1)
    return found


class Kept:
    """Innovations of every round, and what they come to in the end."""

    def __init__(self, world):
        self.world, self.rows, self.u, self.fresh, self.past = world, [], [], [], {}
        self.every, self.plain, self.accuracy = [], [], []

    def remember(self, now, replies, worked):
        """The first round's moves, of those who worked in it: their own past."""
        p = self.world.rows(now)
        for i, model in enumerate(replies):
            self.past[f"member {i}"] = [self.world.rows(model) - p]
        for name in ("its last update again", "honest eleventh", "honest, 30% noise"):
            self.past[name] = [self.world.rows(worked) - p]

    def take(self, history, replies, rides, rng):
        world = self.world
        self.names = [*(f"member {i}" for i in range(MEMBERS)), *rides]
        models = [*replies, *rides.values()]
        p, rows = world.rows(history[-1]), [world.rows(model) for model in models]
        public = public_moves(p, public_rows(world, history, rng))
        fit = fitted(p, public)
        moves = [f - p for f in rows]
        self.rows.append(p)
        self.u.append([fit.innovation(d) for d in moves])
        own = [self.past.setdefault(name, []) for name in self.names]
        self.fresh.append([
            fitted(p, np.concatenate([public, np.stack(before, 2)], 2)).innovation(d) if before else u
            for d, u, before in zip(moves, self.u[-1], own, strict=True)
        ])  # fmt: skip
        for before, d in zip(own, moves, strict=True):
            before.append(d)
        truth = world.test_y[world.apart]
        apart = slice(POOL + GOLD, POOL + GOLD + APART)
        self.accuracy.append([float((f[apart].argmax(1) == truth).mean()) for f in rows])
        labels = np.array([f[:POOL].argmax(1) for f in rows])
        images = world.inputs[:POOL]
        features = public_features(world.rows, history[-1], history[:-1][-3:], images, int(rng.integers(1e9)), copies=8)
        kin = kinships(models, history[-1], history[:-1])
        self.plain.append(beside(labels, None))
        self.every.append([*beside(labels, features), middle(kin)])

    def told(self):
        """Scores, errors and more, by rule; `most` clips innovations to that many times the middle member's."""
        world, n = self.world, len(self.world.labels)
        held = slice(-n, None)
        found = {"names": self.names, "accuracy": np.mean(self.accuracy, 0).tolist()}
        exam = {most: self.examined(self.u, most) for most in MOST}
        u, rows = [self.clip(us, 2.0) for us in self.u], self.rows
        for most, table in exam.items():
            found[f"exam, most {most:g}"] = self.marked(table, world.labels, "mean")
        table = exam[2.0]
        found["no liars"] = self.judged(table, world.labels)
        found["spread"] = self.spread(u)
        found["fresh"] = self.marked(self.examined(self.fresh, 2.0), world.labels, "mean")
        gold, apart = (slice(a, a + GOLD) for a in (POOL, POOL + GOLD))
        found["adds"] = self.labelled(self.u, apart, world.test_y[world.apart])
        found["gold 500"] = self.labelled(u, slice(POOL, POOL + 500), world.test_y[world.gold[:500]])
        found["gold 2000"] = self.labelled(u, gold, world.test_y[world.gold])
        rng = np.random.default_rng([5, world.seed])
        found["signed"] = {}
        for k in GOLDS:
            draws = [POOL + rng.permutation(GOLD)[:k] for _ in range(8)]
            found["signed"][k] = [
                self.labelled(u, at, world.test_y[world.gold[at - POOL]])["score"] for at in draws
            ]  # fmt: skip
        found["peers"] = self.beside_peers(u)
        found["plain"] = summed([(s, z, np.full(len(s), 9.0)) for s, z in self.plain])
        found["every"] = summed(self.every)
        found["liars"] = self.lied(table, rows, held, rng)
        return found

    def clip(self, us, most):
        """Everybody's innovations, each clipped beside the ten members."""
        members = us[:MEMBERS]
        return [clipped([*members, u], most)[-1] for u in us]

    def examined(self, innovations, most):
        """psi before weights, of every reply, round and held-back example, for labels to come: (T, M, n, L)."""
        n = len(self.world.labels)
        return [[u[-n:] for u in self.clip(us, most)] for us in innovations]

    def psi(self, table, labels):
        """(M, n): summed over rounds; nobody is examined on its own."""
        n, world = len(labels), self.world
        out = np.zeros((len(self.names), n))
        for us, p in zip(table, self.rows, strict=True):
            prior = p[:POOL].mean(0)
            for m in range(len(self.names)):
                others = world.holders != m if m < MEMBERS else np.full(n, True)
                w = balanced(labels[others], prior)
                out[m, others] += marks(us[m][others], p[-n:][others], labels[others], w)
        return out

    def marked(self, table, labels, over):
        """Scores by the product's own exam, every rider beside the ten members."""
        psi = self.psi(table, labels)
        judges = Examiners(tuple(str(h) for h in self.world.holders), over)
        members = {str(i): psi[i] for i in range(MEMBERS)}
        seats = [members | {str(m): psi[m]} for m in range(len(self.names))]
        found = [judges.mark(str(m), judges.table(seat)) for m, seat in enumerate(seats)]
        return {"score": [x.score for x in found], "stderr": [x.stderr for x in found]}

    def judged(self, table, labels):
        """What every examiner's examples say of every reply: mean and error, and of how many."""
        psi, who = self.psi(table, labels), self.world.holders
        each = [[mean_mark(row[who == j]) for j in range(MEMBERS)] for row in psi]
        return {
            "mean": [[round(m.score, 7) for m in row] for row in each],
            "stderr": [[round(m.stderr, 7) for m in row] for row in each],
            "examples": [m.examples for m in each[-1]],
        }

    def labelled(self, innovations, at, labels):
        """Scores on labels that the server has."""
        total = 0.0
        for us, p in zip(innovations, self.rows, strict=True):
            w = balanced(labels, p[:POOL].mean(0))
            total = total + np.stack([marks(u[at], p[at], labels, w) for u in us])
        found = [mean_mark(psi) for psi in total]
        return {"score": [x.score for x in found], "stderr": [x.stderr for x in found]}

    def spread(self, innovations):
        """What one label's mark of every reply varies by if labels follow the broadcast: no label is looked at."""
        p = self.rows[-1][:POOL]
        total = [sum(us[m][:POOL] for us in innovations) for m in range(len(self.names))]
        return [float(np.sqrt(((p * u**2).sum(1) - (p * u).sum(1) ** 2).mean())) for u in total]

    def beside_peers(self, innovations):
        total = 0.0
        for us in innovations:
            pool = [u[:POOL] for u in us]
            rows = beside_peers(pool[:MEMBERS])
            more = [beside_peers([*pool[: MEMBERS - 1], u])[-1] for u in pool[MEMBERS:]]
            total = total + np.stack([*rows, *more])
        found = [mean_mark(psi) for psi in total]
        return {"score": [x.score for x in found], "stderr": [x.stderr for x in found]}

    def lied(self, table, rows, held, rng):
        """Two and four of ten examiners lie: label at random, rename, or rename their replies too."""
        world, found = self.world, {}
        for liars in (2, 4):
            lie = world.holders < liars
            anything = np.where(lie, rng.integers(0, CLASSES, len(lie)), world.labels)
            renamed = np.where(lie, (world.labels + 1) % CLASSES, world.labels)
            for kind, labels in (("random", anything), ("renamed", renamed)):
                found[f"{liars} {kind}"] = self.judged(table, labels)
            ring = [list(us) for us in table]
            for us, p in zip(ring, rows, strict=True):
                limit = np.median([np.linalg.norm(u) for u in us[:MEMBERS]])
                for i in range(liars):
                    f = np.roll(us[i] + p[held], 1, axis=1) - p[held]
                    us[i] = f * min(1.0, 2.0 * limit / max(np.linalg.norm(f), 1e-12))
            found[f"{liars} ring"] = self.judged(ring, renamed)
        return found


def beside(labels, features):
    """Zero-one of every model beside the members but one (itself, or the last), and z."""
    signal = Public.of(features, labels.shape[1])
    left = np.stack([signal.residual(np.eye(CLASSES)[row]) for row in labels])
    total = left[:MEMBERS].sum(0)
    free = max(labels.shape[1] - signal.rank, 1)
    score, z = [], []
    for m, rows in enumerate(left):
        psi = (rows * (total - left[m if m < MEMBERS else MEMBERS - 1])).sum(1) / (MEMBERS - 1)
        score.append(float(psi.sum() / free))
        z.append(float(psi.sum() / max(psi.std() * np.sqrt(len(psi)), 1e-9)))
    return np.array(score), np.array(z)


def middle(kin):
    """Of every model the median of what it shares with the members but one."""
    return np.array(
        [np.median(np.delete(row[:MEMBERS], m if m < MEMBERS else MEMBERS - 1)) for m, row in enumerate(kin)]
    )


def summed(rounds):
    """What rounds paid: the sum of scores that are sure and share enough."""
    paid = sum(np.where((z > SURE) & (kin >= 6), np.maximum(score, 0), 0) for score, z, kin in rounds)
    return {"paid": paid.tolist()}


def played(job):
    import torch

    torch.set_num_threads(1)
    return play(*job)


def rounded(value):
    """Numbers to five digits, all the way down."""
    if isinstance(value, dict):
        return {str(key): rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--play", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--sets", nargs="*", default=["mnist", "cifar10"])
    parser.add_argument("--together", type=int, default=1)
    args = parser.parse_args()
    if args.prepare:
        prepare(args.data_dir, args.prepare)
    elif args.play:
        from concurrent.futures import ProcessPoolExecutor, as_completed
        from multiprocessing import get_context

        jobs = [(args.data, d, s, seed) for seed in args.seeds for d in args.sets for s in SKEWS]
        worlds = []
        with ProcessPoolExecutor(args.together, mp_context=get_context("spawn")) as workers:
            for done in as_completed([workers.submit(played, job) for job in jobs]):
                world = done.result()
                worlds.append(world)
                worlds.sort(key=lambda w: (w["data"], w["skew"], w["seed"]))
                print(world["data"], world["skew"], world["seed"], world["seconds"], flush=True)
                text = json.dumps(rounded(worlds), separators=(",", ":")).encode()
                args.play.write_bytes(gzip.compress(text, 9, mtime=0))


if __name__ == "__main__":
    main()
