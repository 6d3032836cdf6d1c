"""Train the paper's four agents, attack them, and record what they say about the test images.

    python paper/train.py --data-dir DATA --out paper/recorded --seeds 0 1 2

Each seed gives one file paper/recorded/seed-<n>.npz: for each agent its probabilities of the test images, in
their original order, clean and under attack (float16), and its accuracies; and a line in training.json.
`--population` trains the small networks of paper/accuracy.py instead. No image and no label is recorded.
Agents of one seed train side by side, one process each.

    python paper/train.py --data-dir DATA --out paper/results --variants --seeds 0 1 2

trains the CIFAR-10 agents of those seeds again, on the same images from the same first weights, as the authors'
published code does where it differs from their appendix (`VARIANTS`; all of them, or those named). It leaves one
file, published.json: what is there already stays, and each run is added as soon as it ends.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from verax.reproduce.agents import Recipe, paper_recipes, predict, train
from verax.reproduce.datasets import load

VARIANTS: dict[str, dict[str, Any]] = {
    "rebuilt": {"rebuilt": True},
    "frozen": {"frozen": True},
    "published": {"rebuilt": True, "frozen": True, "epochs": 120, "every": 20},
}
CHANCE = 0.10  # a network of NaN says class 0 of every image; one in ten is


class DivergedError(Exception):
    """The loss of an epoch is not a number."""


def population() -> list[Recipe]:
    """Twenty-four small networks that differ in kind, data, noise and seed."""
    made = []
    for n, (images, noise, width) in enumerate(
        (images, noise, width) for images in (1000, 4000, 16000) for noise in (0.0, 0.3) for width in (2, 4, 8, 16)
    ):
        made.append(Recipe("cifar10", "cnn13", 100 + n, images, 24, 8, 0.05, 128, width, noise))
    return made


def variant_recipes(names: list[str], seeds: list[int]) -> list[tuple[str, Recipe]]:
    """The CIFAR-10 agents of the recorded seeds, trained otherwise; the strong one as published only."""
    return [
        (name, replace(recipe, **VARIANTS[name]))
        for seed in seeds
        for name in names
        for recipe in paper_recipes(seed)
        if recipe.data == "cifar10" and (recipe.network == "resnet34" or name == "published")
    ]


def teller(name: str) -> Callable[[int, int, float], None]:
    """Prints where the training stands, every tenth epoch."""
    start = time.perf_counter()

    def told(epoch: int, epochs: int, loss: float) -> None:
        if epoch % 10 == 0 or epoch == epochs:
            taken = time.perf_counter() - start
            print(f"{name}: epoch {epoch}/{epochs}, loss {loss:.4f}, {taken:.0f} s", flush=True)

    return told


def one(recipe: Recipe, data: Path, out: Path, attack: bool) -> None:
    """Train one agent in this process and leave its predictions in a file of its own."""
    dataset = load(recipe.data, data, fetch=False)
    start = time.perf_counter()
    net = train(recipe, dataset, folder=out / "checkpoints", progress=teller(recipe.name))
    taken = time.perf_counter() - start
    clean = predict(net, dataset.test_images)
    arrays = {"clean": clean.astype(np.float16)}
    figures = {"accuracy": float((clean.argmax(1) == dataset.test_labels).mean()), "seconds": round(taken, 1)}
    if attack:
        attacked = predict(net, dataset.test_images, attacked=dataset.test_labels, seed=recipe.seed)
        arrays["attacked"] = attacked.astype(np.float16)
        figures["attacked_accuracy"] = float((attacked.argmax(1) == dataset.test_labels).mean())
    np.savez_compressed(out / f"{recipe.name}.npz", **arrays)
    (out / f"{recipe.name}.json").write_text(json.dumps({"recipe": asdict(recipe), **figures}))
    print(recipe.name, figures, flush=True)


def accuracy_alone(recipe: Recipe, data: Path, out: Path) -> None:
    """Train one agent in this process and leave its accuracy; a diverged one is stopped and counts as chance."""
    dataset = load(recipe.data, data, fetch=False)
    start, told = time.perf_counter(), teller(out.name)
    seen: list[int] = []

    def watched(epoch: int, epochs: int, loss: float) -> None:
        told(epoch, epochs, loss)
        seen.append(epoch)
        if math.isnan(loss):
            raise DivergedError(epoch)

    figures: dict[str, Any] = {}
    try:
        net = train(recipe, dataset, folder=out / "checkpoints", progress=watched)
        figures["accuracy"] = float((predict(net, dataset.test_images).argmax(1) == dataset.test_labels).mean())
    except DivergedError as diverged:
        figures = {"accuracy": CHANCE, "diverged_in_epoch": diverged.args[0]}
    figures["seconds"] = round(time.perf_counter() - start, 1)
    if seen[:1] != [1]:  # a stopped run, gone on with: the seconds are those since then
        figures["resumed_after_epoch"] = seen[0] - 1 if seen else recipe.epochs
    (out / "run.json").write_text(json.dumps({"recipe": asdict(recipe), **figures}))


def train_variants(args: argparse.Namespace, out: Path) -> None:
    """Every variant of every seed, so many at a time; each written down as soon as it ends."""
    log = out / "published.json"
    known = json.loads(log.read_text()) if log.exists() else {"commands": [], "runs": []}
    here = {"device": device_name(), "torch": torch.__version__}
    if any(known.get(key, value) != value for key, value in here.items()):
        raise SystemExit(f"{log}: runs of another machine or torch are there; give another --out")
    names = args.variants or list(VARIANTS)
    command = f"paper/train.py --data-dir DATA --variants {' '.join(names)} --seeds {' '.join(map(str, args.seeds))}"
    commands = [*(c for c in known["commands"] if c != command), command]
    known = here | {"commands": commands, "runs": known["runs"]}
    chosen = [(n, tiny(r) if args.tiny else r) for n, r in variant_recipes(names, args.seeds)]
    with ThreadPoolExecutor(args.together) as pool:
        started = [pool.submit(in_a_process, name, recipe, args.data_dir, out) for name, recipe in chosen]
        for done in as_completed(started):
            if done.exception() is None:
                written_down(done.result(), known, log)
    failed = [f"{n} {r.name}: {f.exception()}" for (n, r), f in zip(chosen, started, strict=True) if f.exception()]
    if failed:
        raise SystemExit("training failed:\n" + "\n".join(failed))


def in_a_process(name: str, recipe: Recipe, data_dir: str, out: Path) -> dict[str, Any]:
    """One run; its folder, with what a stopped one resumes from, goes when it has ended."""
    work = out / f"{name}-{recipe.name}"
    told = ["--out", str(work), "--one", json.dumps(asdict(recipe)), "--accuracy-alone"]
    subprocess.run([sys.executable, __file__, "--data-dir", data_dir, *told], check=True)
    run = {"variant": name, **json.loads((work / "run.json").read_text())}
    shutil.rmtree(work)
    return run


def written_down(run: dict[str, Any], known: dict[str, Any], log: Path) -> None:
    """A run among those known, in the place of an earlier one of the same recipe."""
    others = [r for r in known["runs"] if (r["variant"], r["recipe"]) != (run["variant"], run["recipe"])]
    known["runs"] = sorted([*others, run], key=order)
    beside = log.with_suffix(".new")
    beside.write_text(json.dumps(known, indent=1) + "\n")
    beside.replace(log)
    print(run["variant"], run["recipe"]["network"], run["recipe"]["seed"], run["accuracy"], flush=True)


def order(run: dict[str, Any]) -> tuple[int, str, int]:
    """Where a run stands in published.json, whenever it ended."""
    return list(VARIANTS).index(run["variant"]), run["recipe"]["network"], run["recipe"]["seed"]


def tiny(recipe: Recipe) -> Recipe:
    """The same for a smoke test: 2 epochs on 500 images."""
    return replace(recipe, images=500, epochs=2, every=1, batch=64)


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()


def side_by_side(recipes: list[Recipe], args: argparse.Namespace, together: int) -> None:
    """Every recipe in a process of its own, so many at a time."""
    waiting, running = list(recipes), []
    while waiting or running:
        while waiting and len(running) < together:
            recipe = waiting.pop(0)
            told = json.dumps(asdict(recipe))
            command = [sys.executable, __file__, "--data-dir", args.data_dir, "--out", args.out, "--one", told]
            running.append(subprocess.Popen(command + ([] if args.population else ["--attack"])))
        if running[0].wait():
            raise SystemExit(f"training failed with code {running[0].returncode}")
        running.pop(0)


def gather(recipes: list[Recipe], out: Path, name: str) -> None:
    """The agents' files put together into one, and their figures into training.json."""
    arrays, figures = {}, []
    for recipe in recipes:
        with np.load(out / f"{recipe.name}.npz") as stored:
            arrays |= {f"{recipe.name}/{key}": stored[key] for key in stored.files}
        figures.append(json.loads((out / f"{recipe.name}.json").read_text()))
        (out / f"{recipe.name}.npz").unlink()
        (out / f"{recipe.name}.json").unlink()
    np.savez_compressed(out / f"{name}.npz", **arrays)
    log = out / "training.json"
    known = json.loads(log.read_text()) if log.exists() else {}
    here = {"device": device_name(), "torch": torch.__version__}
    known[name] = here | {"command": " ".join(sys.argv), "agents": figures}
    log.write_text(json.dumps(known, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--out", default="paper/recorded")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--population", action="store_true")
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, help="as the published code trains; none named: all")
    parser.add_argument("--together", type=int, default=4)
    parser.add_argument("--tiny", action="store_true", help="2 epochs on 500 images: a smoke test")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--attack", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--accuracy-alone", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    if args.one and args.accuracy_alone:
        accuracy_alone(Recipe(**json.loads(args.one)), Path(args.data_dir), out)
        return
    if args.one:
        one(Recipe(**json.loads(args.one)), Path(args.data_dir), out, args.attack)
        return
    if args.variants is not None:
        train_variants(args, out)
        return
    sets = {"population": population()} if args.population else {f"seed-{s}": paper_recipes(s) for s in args.seeds}
    for name, recipes in sets.items():
        if args.tiny:
            recipes = [tiny(r) for r in recipes[:4]]
        side_by_side(recipes, args, args.together)
        gather(recipes, out, name)


if __name__ == "__main__":
    main()
