"""Measure what scoring adds to a round of a federation: 100 clients, a pool of 10,000 inputs, 10 classes.

    python benchmarks/federation.py [--runs 5] [--patience 600] [--only WORDS]
                                    [--out benchmarks/results/federation.json]

A server that scores must predict the pool with every reply's model: that is the yardstick, once for a network of one
hidden layer (784-64-10, NumPy) and once for a small convolutional one (torch, where it is installed; timed on some of
the models and scaled up, marked `~`). Beside it: scoring, the public features and the echo test of protocol `every`,
and recording a paid round. One thread everywhere; medians with the least and the most, after a run that is not counted;
what takes longer than 20 seconds is run once. With --patience it waits so many seconds at most, before each figure, for
a load below 1.5; beside each figure stands the load when it began. With --only what has these words in its name is
measured, and the rest of --out stays.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "paper"))
os.environ.update({f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")})

import numpy as np
from simulated import Client, average, initial, predict

import verax
from verax.echo import echo_test, public_features

CLIENTS, POOL, WIDTH, CLASSES = 100, 10_000, 784, 10
QUIET = 1.5  # load above which a time says little
LONG = 20.0  # seconds: what takes longer is run once
Call = Callable[[], Any]


@dataclass(frozen=True)
class Asked:
    """How often, and how long to wait for a quiet machine."""

    runs: int
    patience: float


class World:
    """Three broadcasts, and a hundred clients' replies to the last one."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.centres = self.rng.standard_normal((CLASSES, WIDTH)) * 0.15
        self.history = [initial((WIDTH, 64, CLASSES), self.rng)]
        for _ in range(2):
            replies = [self.client(600).reply(self.history[-1], self.rng) for _ in range(5)]
            self.history.append(average(replies, np.ones(5)))
        self.replies = [self.client(300).reply(self.history[-1], self.rng) for _ in range(CLIENTS)]
        self.pool = self.inputs(POOL)[0]
        self.reports = verax.Reports.of([predict(m, self.pool).argmax(1) for m in self.replies], classes=range(CLASSES))
        self.features = public_features(predict, self.history[-1], self.history[:-1], self.pool, 0)

    def inputs(self, n: int) -> tuple[Any, Any]:
        labels = self.rng.integers(0, CLASSES, n)
        return (self.centres[labels] + self.rng.standard_normal((n, WIDTH))).astype(np.float32), labels

    def client(self, n: int) -> Client:
        return Client(*self.inputs(n))


def seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def timed(call: Call, asked: Asked, times: float = 1.0) -> dict[str, Any]:
    """Median, least and most of the runs, each in proportion where only a part of the work is done."""
    load = waited(asked.patience)
    first = seconds(call)
    taken = [first] if first > LONG else [seconds(call) for _ in range(asked.runs)]
    found = {"median": statistics.median(taken) * times, "least": min(taken) * times, "most": max(taken) * times}
    return found | {"runs": len(taken), "scaled": times != 1.0, "load": load}


def waited(patience: float) -> float:
    """The load, once it is low or the time is up."""
    end = time.perf_counter() + patience
    while (load := os.getloadavg()[0]) >= QUIET and time.perf_counter() < end:
        time.sleep(5)
    return load


def convolutional(world: World, models: int) -> Call | None:
    """The pool predicted with so many small convolutional networks, 28 x 28 inputs; None where torch is missing."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    networks = [
        nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 7 * 7, CLASSES),
        ).eval()
        for _ in range(models)
    ]  # fmt: skip
    batches = torch.from_numpy(world.pool).reshape(-1, 1, 28, 28).split(500)

    def call() -> None:
        with torch.inference_mode():
            for network in networks:
                torch.cat([network(batch).softmax(1) for batch in batches]).numpy()

    return call


def settled(world: World, public: Any, size: list[int]) -> Call:
    """A round opened, funded, filled, sealed and settled in a new SQLite file, as the Flower strategy does."""
    from verax.ledger import Ledger
    from verax.rounds import Rounds, Spec

    spec = Spec(
        "round", world.reports.tasks, world.reports.classes, "100.00", copies=True, significance=3.0,
        public=None if public is None else tuple(map(tuple, public.tolist())),
    )  # fmt: skip

    def call() -> None:
        with tempfile.TemporaryDirectory() as folder:
            rounds = Rounds(Ledger.open(f"{folder}/rounds.db", create=True))
            rounds.open(spec)
            rounds.fund("round")
            for i, agent in enumerate(world.reports.agents):
                rounds.submit("round", agent, world.reports.only(i), key="1")
            rounds.seal("round")
            rounds.settle("round")
            size.append((Path(folder) / "rounds.db").stat().st_size)

    return call


def figures(world: World, asked: Asked) -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
    """What can be measured, in which part of a round, and what does it."""
    reports, features, now, earlier = world.reports, world.features, world.history[-1], world.history[:-1]

    def inference() -> None:
        for model in world.replies:
            predict(model, world.pool)

    def scored(reports: verax.Reports, **options: Any) -> Call:
        return lambda: verax.score(reports, threads=1, **options)

    def of(call: Call, times: float = 1.0) -> Callable[[], dict[str, Any]]:
        return lambda: timed(call, asked, times)

    yield "inference", "the pool predicted, 784-64-10 (NumPy)", of(inference)
    some = CLIENTS // 20
    if (call := convolutional(world, some)) is not None:
        yield "inference", "the pool predicted, small CNN (torch)", of(call, CLIENTS / some)
    yield "scoring", "mean over peers", of(scored(reports))
    yield "scoring", "median over peers", of(scored(reports, over="median"))
    yield "scoring", "mean, public features taken out", of(scored(reports, public=features))
    few, pairs = reports.only(*range(10)), CLIENTS * (CLIENTS - 1) / (10 * 9)
    yield "scoring", "median, public features taken out", of(scored(few, public=features, over="median"), pairs)
    made = of(lambda: public_features(predict, now, earlier, world.pool, 0))
    yield "every", "public features made (784-64-10)", made
    yield "every", "echo test", of(lambda: echo_test(world.replies, now, earlier))
    if importlib.util.find_spec("sqlalchemy") is not None:
        for name, public in (("first", None), ("every", features)):
            size: list[int] = []
            call = settled(world, public, size)
            paying = lambda call=call, size=size: timed(call, asked) | {"bytes": size[-1]}  # noqa: E731
            yield "paying", f"recorded and settled, protocol {name}", paying


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--patience", type=float, default=0.0)
    options.add_argument("--only", default="", metavar="WORDS")
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    world, found = World(), []
    before = json.loads(asked.out.read_text())["times"] if asked.only else []
    for part, what, measure in figures(world, Asked(asked.runs, asked.patience)):
        if asked.only not in what:
            found += [each for each in before if each["what"] == what]
            continue
        times = measure()
        found.append({"part": part, "what": what, **times})
        about = "~" if times["scaled"] else ""
        stored = f"  {times['bytes'] / 1e6:.1f} MB on disk" if "bytes" in times else ""
        spread = f"({times['least']:.3f} to {times['most']:.3f}), load {times['load']:.1f}"
        print(f"{what:48}{about:>1}{times['median']:8.3f} s {spread}{stored}", flush=True)
    installed = [n for n in ("verax", "numpy", "numba", "torch") if importlib.util.find_spec(n)]
    document = {
        "command": f"python benchmarks/federation.py --runs {asked.runs}",
        "machine": {"cpu": cpu(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(),
                    **{name: importlib.metadata.version(name) for name in installed}},
        "quiet": all(each["load"] < QUIET for each in found),
        "clients": CLIENTS, "pool": POOL, "classes": CLASSES, "weights": sum(a.size for a in world.history[0]),
        "feature columns": world.features.shape[1], "times": found,
    }  # fmt: skip
    print("measured on a quiet machine" if document["quiet"] else "others were using the machine")
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
