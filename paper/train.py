"""Train the paper's four agents, attack them, and record what they say about the test images.

    python paper/train.py --data-dir DATA --out paper/recorded --seeds 0 1 2

Each seed gives one file paper/recorded/seed-<n>.npz: for each agent its probabilities of the test images, in
their original order, clean and under attack (float16), and its accuracies; and a line in training.json.
`--population` trains the small networks of paper/accuracy.py instead. No image and no label is recorded.
Agents of one seed train side by side, one process each.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from verax.lab.agents import Recipe, paper_recipes, predict, predict_attacked, train
from verax.lab.datasets import load


def population() -> list[Recipe]:
    """Twenty-four small networks that differ in kind, data, noise and seed."""
    made = []
    for n, (images, noise, width) in enumerate(
        (images, noise, width) for images in (1000, 4000, 16000) for noise in (0.0, 0.3) for width in (2, 4, 8, 16)
    ):
        made.append(Recipe("cifar10", "cnn13", 100 + n, images, 24, 8, 0.05, 128, width, noise))
    return made


def one(recipe: Recipe, data: Path, out: Path, attack: bool) -> None:
    """Train one agent in this process and leave its predictions in a file of its own."""
    dataset = load(recipe.data, data, fetch=False)
    start = time.perf_counter()

    def told(epoch: int, epochs: int, loss: float) -> None:
        if epoch % 10 == 0 or epoch == epochs:
            print(
                f"{recipe.name}: epoch {epoch}/{epochs}, loss {loss:.4f}, {time.perf_counter() - start:.0f} s",
                flush=True,
            )

    net = train(recipe, dataset, folder=out / "checkpoints", progress=told)
    taken = time.perf_counter() - start
    clean = predict(net, dataset.test_images)
    arrays = {"clean": clean.astype(np.float16)}
    figures = {"accuracy": float((clean.argmax(1) == dataset.test_labels).mean()), "seconds": round(taken, 1)}
    if attack:
        attacked = predict_attacked(net, dataset.test_images, dataset.test_labels, seed=recipe.seed)
        arrays["attacked"] = attacked.astype(np.float16)
        figures["attacked_accuracy"] = float((attacked.argmax(1) == dataset.test_labels).mean())
    np.savez_compressed(out / f"{recipe.name}.npz", **arrays)
    (out / f"{recipe.name}.json").write_text(json.dumps({"recipe": asdict(recipe), **figures}))
    print(recipe.name, figures, flush=True)


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
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    known[name] = {"device": device, "torch": torch.__version__, "command": " ".join(sys.argv), "agents": figures}
    log.write_text(json.dumps(known, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--out", default="paper/recorded")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--population", action="store_true")
    parser.add_argument("--together", type=int, default=4)
    parser.add_argument("--tiny", action="store_true", help="2 epochs on 500 images: a smoke test")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--attack", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    if args.one:
        one(Recipe(**json.loads(args.one)), Path(args.data_dir), out, args.attack)
        return
    sets = {"population": population()} if args.population else {f"seed-{s}": paper_recipes(s) for s in args.seeds}
    for name, recipes in sets.items():
        if args.tiny:
            recipes = [replace(r, images=500, epochs=2, every=1, batch=64) for r in recipes[:4]]
        side_by_side(recipes, args, args.together)
        gather(recipes, out, name)


if __name__ == "__main__":
    main()
