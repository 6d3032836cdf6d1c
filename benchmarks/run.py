"""Measure the command line against what it cannot avoid, as ratios in one run.

    make bench

Each figure is the median of 7 runs of a fresh process, beside `python -c "import numpy"` in the same run.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import verax

RUNS = 7


def seconds(command: list[str]) -> float:
    """The median time of a fresh process."""
    taken = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def wide_file(folder: Path, agents: int = 30, tasks: int = 10_000, classes: int = 10) -> Path:
    """A wide CSV of agents that are right four times in five."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, classes, tasks)
    labels = np.where(rng.random((agents, tasks)) < 0.8, truth, rng.integers(0, classes, (agents, tasks)))
    path = folder / "wide.csv"
    verax.write(verax.Reports.of(labels), path, wide=True)
    return path


def main() -> None:
    command = str(Path(sys.executable).parent / "verax")
    with tempfile.TemporaryDirectory() as folder:
        path = str(wide_file(Path(folder)))
        numpy = seconds([sys.executable, "-c", "import numpy"])
        cases = {
            "import verax": [sys.executable, "-c", "import verax"],
            "verax --help": [command, "--help"],
            "verax score, 30 agents x 10,000 tasks, wide CSV, peers": [command, "score", path, "--json"],
            "the same with rule ca (split)": [command, "score", path, "--json", "--rule", "ca"],
        }
        found = {name: seconds(run) for name, run in cases.items()}
    print(f"{'import numpy':56}{numpy:8.3f} s")
    for name, taken in found.items():
        print(f"{name:56}{taken:8.3f} s{taken / numpy:8.1f} x import numpy")
    machine = {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()}
    print(json.dumps({"machine": machine, "import numpy": numpy, "seconds": found}))


if __name__ == "__main__":
    main()
