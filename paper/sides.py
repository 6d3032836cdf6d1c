"""Rings that rename labels in a first round: their share of the pot, by the median and by the side that gold favours.

    python paper/sides.py --play FOLDER --data HALVED.npz --together 14       first models' rows, twenty clients a world
    python paper/sides.py --worlds FOLDER                                     table and checks

MNIST and CIFAR-10 at half their side (a small CNN, 300 to 2,000 images a client) and scikit-learn's digits (one hidden
layer, 40 to 100), IID and Dirichlet 0.3. `--data` is what `exam_worlds.py --prepare` leaves.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from drawing import BLUE, GREEN, HERE, labelled, leave, panels
from simulated import clients, initial, pair_scores, predict

from verax.sides import sides

CLIENTS, CLASSES = 20, 10
SHOWS = 0.05  # of a client's answers that its lie changes, from which on it shows
RINGS = {
    "nobody lies": (0.45, 0), "45% all renamed": (0.45, CLASSES), "60% all renamed": (0.6, CLASSES),
    "45% three turned": (0.45, 3), "60% three turned": (0.6, 3),
}  # fmt: skip
SKEWS = {"IID": None, "Dirichlet 0.3": 0.3}
DATA = ("mnist", "cifar10", "digits")


def played(job):
    """One world's first round: rows (clients, inputs, classes) of an unlabelled pool, and its labels."""
    file, folder, name, skew, seed = job
    rows, truth = (digits if name == "digits" else images)(file, name, skew, seed)
    place = Path(folder) / f"{name}-{skew[:3].lower()}-{seed}.npz"
    np.savez_compressed(place, rows=rows.astype(np.float16), truth=truth.astype(np.uint8))
    return place.name


def images(file, name, skew, seed):
    import torch
    from exam_worlds import World

    torch.set_num_threads(1)
    with np.load(file) as stored:
        world = World(stored, name, SKEWS[skew], seed)
    first, rng = world.trainer.initial(seed), np.random.default_rng([9, seed])
    models = [world.work(i, first, rng, epochs=6) for i in range(CLIENTS)]
    pool = world.inputs[: len(world.pool)]
    return np.stack([world.rows(model, pool) for model in models]), world.test_y[world.pool]


def digits(file, name, skew, seed):
    from sklearn.datasets import load_digits

    rng = np.random.default_rng([seed, 6])
    x, y = load_digits(return_X_y=True)
    order = rng.permutation(len(y))
    x, y = (x[order] / 16).astype(np.float32), y[order]
    sizes = np.exp(rng.uniform(np.log(40), np.log(100), CLIENTS))
    sizes = (sizes * min(1.0, (len(y) - 400) / sizes.sum())).astype(int)
    noise = rng.choice([0, 0, 0.1, 0.2], CLIENTS)
    held = clients(x[400:], y[400:], sizes.tolist(), rng, skew=SKEWS[skew], noise=noise.tolist())
    start = initial((64, 32, CLASSES), rng)
    return np.stack([predict(c.reply(start, rng, 40), x[:400]) for c in held]), y[:400]


def told(rows, truth, rng):
    """Of one world: each ring's share of the pot and what the honest keep, by how it is decided whom to pay."""
    honest, found = rows.argmax(2), {}
    for ring, (share, turned) in RINGS.items():
        start = CLIENTS - round(share * CLIENTS)
        names = np.arange(CLASSES)
        names[:turned] = np.roll(names[:turned], 1)
        said = rows.copy()
        said[start:] = said[start:][:, :, np.argsort(names)]
        labels = said.argmax(2)
        lied = (np.arange(CLIENTS) >= start) & ((labels != honest).mean(1) > SHOWS)
        alone = by_peers(labels, range(start))
        told = {rule: sides(said, CLASSES, {int(n): int(truth[n]) for n in gold}).paid
                for rule, gold in asked(said, truth, rng).items()}  # fmt: skip
        paid = {rule: by_peers(labels, who) for rule, who in told.items()}
        paid |= {"median": by_median(labels), "all": by_peers(labels, range(CLIENTS)),
                 "whose lie shows left out": by_peers(labels, np.nonzero(~lied)[0])}  # fmt: skip
        found[ring] = {rule: shares(got, start, lied, alone) for rule, got in paid.items()}
        found[ring]["held without gold"] = float(sides(said, CLASSES).held)
    return found


def asked(said, truth, rng):
    """Gold labels of ten and twenty tasks at random; of the ten asked for, and of ten more where those do not tell."""
    drawn = {f"{k} at random": rng.permutation(len(truth))[:k] for k in (10, 20)}
    first = sides(said, CLASSES).ask
    if not first:  # no split is seen
        return drawn | {"10 asked for": (), "20 asked for": ()}
    more = sides(said, CLASSES, {n: int(truth[n]) for n in first}).ask
    return drawn | {"10 asked for": first, "20 asked for": (*first, *more)}


def shares(got, start, lied, alone):
    """What a ring takes, of it those whose lie shows, and what the honest keep; nothing where the round is held."""
    pot = got.sum()
    if pot <= 0:
        return {"held": 1.0}
    return {"held": 0.0, "taken": float(got[start:].sum() / pot), "by whose lie shows": float(got[lied].sum() / pot),
            "kept": float(np.minimum(got[:start], alone[:start]).sum() / alone.sum())}  # fmt: skip


def by_peers(labels, who):
    """Everybody of `who` beside the others of it, never below 0."""
    who, got = list(who), np.zeros(len(labels))
    if len(who) > 1:
        pairs, _ = pair_scores(labels[who], CLASSES)
        got[who] = np.maximum((pairs.sum(1) - np.diag(pairs)) / (len(who) - 1), 0)
    return got


def by_median(labels):
    pairs, _ = pair_scores(labels, CLASSES)
    return np.maximum([np.median(np.delete(row, i)) for i, row in enumerate(pairs)], 0)


def judged(folder):
    """Every kind of world and ring: mean, worst and least over seeds."""
    found = {}
    for name in DATA:
        for skew in SKEWS:
            worlds = []
            for place in sorted(Path(folder).glob(f"{name}-{skew[:3].lower()}-*.npz")):
                with np.load(place) as kept:
                    rows, truth = kept["rows"].astype(np.float64), kept["truth"].astype(np.int64)
                worlds.append(told(rows, truth, np.random.default_rng(int(place.stem.split("-")[-1]))))
            for ring in RINGS if worlds else ():
                found[f"{name}, {skew}, {ring}"] = over_worlds([world[ring] for world in worlds])
    return found


def over_worlds(worlds):
    found = {"worlds": len(worlds), "held without gold": float(np.mean([w.pop("held without gold") for w in worlds]))}
    for rule in worlds[0]:
        settled = [w[rule] for w in worlds if not w[rule]["held"]]
        found[rule] = {"held": 1 - len(settled) / len(worlds)}
        for what in ("taken", "by whose lie shows", "kept") if settled else ():
            values = [s[what] for s in settled]
            found[rule][what] = {"mean": float(np.mean(values)), "max": max(values), "min": min(values)}
    return found


def drawn(numbers):
    title = (
        "Ten labels that are asked for cut off rings that rename labels; what is left is those whose lie does not show"
    )
    figure, axes = panels(title, 3, size=(13, 4.6))
    names = [ring for ring in RINGS if ring != "nobody lies"]
    for panel, name in zip(axes, DATA, strict=True):
        places = [(skew, ring) for skew in SKEWS for ring in names]
        for k, (rule, colour) in enumerate((("median", "0.7"), ("10 at random", GREEN), ("10 asked for", BLUE))):
            cells = [numbers["rings"][f"{name}, {skew}, {ring}"][rule].get("taken") for skew, ring in places]
            at = np.arange(len(places)) + 0.27 * (1 - k)
            means = [100 * c["mean"] if c else 0 for c in cells]
            panel.barh(at, means, 0.25, color=colour, label=rule)
            panel.plot([[100 * c["min"] if c else 0 for c in cells], [100 * c["max"] if c else 0 for c in cells]],
                       [at, at], color="black", lw=0.8)  # fmt: skip
        labels = [f"{skew}: {ring}" for skew, ring in places]
        panel.set_yticks(range(len(places)), labels if panel is axes[0] else [""] * len(places))
        labelled(panel, name, "ring's share of the pot, %", "")
    axes[2].legend(loc="lower right")
    return figure


def checked(numbers):
    """What the table must show."""
    for where, of in numbers["rings"].items():
        if "all renamed" in where and "cifar10" not in where:
            assert of["10 asked for"]["taken"]["mean"] <= 0.02 and of["10 asked for"]["kept"]["mean"] >= 0.95, where


def show(numbers):
    for where, of in numbers["rings"].items():
        print(f"{where}: held without gold {of['held without gold']:.0%}")
        for rule, cell in of.items():
            if isinstance(cell, dict):
                told = [
                    f"{what} {100 * x['mean']:.1f} [{100 * x['max']:.0f}]" for what, x in cell.items() if what != "held"
                ]
                print(f"    {rule:26} held {cell['held']:.0%}, {', '.join(told)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for the numbers and the figure")
    parser.add_argument("--worlds", type=Path, help="folder that --play left")
    parser.add_argument("--play", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[300, 301, 302, 303, 304])
    parser.add_argument("--sets", nargs="*", default=DATA)
    parser.add_argument("--together", type=int, default=1)
    args = parser.parse_args()
    if args.play:
        play(args)
    elif args.worlds:
        numbers = {"clients": CLIENTS, "rings": judged(args.worlds)}
        show(numbers)
        leave(args.out, "sides", numbers, drawn(numbers))
        checked(numbers)


def play(args):
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    args.play.mkdir(parents=True, exist_ok=True)
    jobs = [(args.data, args.play, d, s, seed) for seed in args.seeds for d in args.sets for s in SKEWS]
    with ProcessPoolExecutor(args.together, mp_context=get_context("spawn")) as workers:
        for done in as_completed([workers.submit(played, job) for job in jobs]):
            print(done.result(), flush=True)


if __name__ == "__main__":
    main()
