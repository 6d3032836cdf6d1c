"""Measure whole programs, from the start of a process to its end, beside what they cannot avoid.

    python benchmarks/whole.py [--runs 3] [--cases CASE...] [--out benchmarks/results/whole.json]

Processor seconds of a fresh process, imports and files included, and the most memory it held resident: the median of
the runs, with the least and the most. Beside it, in the same run, another fresh process: one that reads the same file
with pyarrow or NumPy and does nothing else, or what people would write with pandas or scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

LAUNCH = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024])
"""
VERAX = str(Path(sys.executable).parent / "verax")
READ = {
    "csv": "from pyarrow import csv; csv.read_csv(sys.argv[1], csv.ReadOptions(use_threads=False))",
    "parquet": "from pyarrow import parquet; parquet.read_table(sys.argv[1], use_threads=False)",
    "npz": "import numpy as np; x = np.load(sys.argv[1])['labels']; [np.bincount(r, minlength=10) for r in x]",
}
PANDAS = """
import numpy as np, pandas as pd
held = pd.read_csv(sys.argv[1]).pivot(index="agent", columns="task", values="label").to_numpy()
same = np.array([[np.mean(a == b) for b in held] for a in held])
chance = np.array([[sum(np.mean(a == k) * np.mean(b == k) for k in np.unique(held)) for b in held] for a in held])
print(((same - chance).sum(1) - np.diag(same - chance)) / (len(held) - 1))
"""
SKLEARN = """
import numpy as np
from sklearn.metrics import confusion_matrix
x = np.load(sys.argv[1])["labels"][:{some}]
for i in range(len(x)):
    for j in range(i + 1, len(x)):
        table = confusion_matrix(x[i], x[j], labels=range(10)) / x.shape[1]
        excess = table - np.outer(table.sum(1), table.sum(0))
        excess[excess > 0].sum()
"""


def labels_of(agents: int, tasks: int, classes: int) -> np.ndarray:
    """Agents who are right half the time to nine times in ten, beside one truth."""
    rng = np.random.default_rng(0)
    truth, right = rng.integers(0, classes, tasks), rng.uniform(0.5, 0.9, agents)
    drawn = rng.random((agents, tasks)) < right[:, None]
    return np.where(drawn, truth, rng.integers(0, classes, (agents, tasks))).astype(np.int8)


def files_of(folder: Path, agents: int, tasks: int) -> dict[str, Path]:
    """The same reports, in every form that a file may have."""
    labels, stem = labels_of(agents, tasks, 10), f"{agents}x{tasks}"
    text, names = labels.astype("U1"), [f"a{k}" for k in range(agents)]
    wide = pa.table({"task": [f"t{n}" for n in range(tasks)], **dict(zip(names, map(pa.array, text), strict=True))})
    ids = pa.array([f"t{n}" for n in range(tasks)]), pa.array(names)
    task = ids[0].take(pa.array(np.repeat(np.arange(tasks), agents)))
    agent = ids[1].take(pa.array(np.tile(np.arange(agents), tasks)))
    long = pa.table({"task": task, "agent": agent, "label": pa.array(text.T.ravel())})
    paths = {"npz": folder / f"{stem}.npz"}
    np.savez(paths["npz"], labels=labels)
    for form, table in (("wide", wide), ("long", long)):
        paths[f"{form} csv"], paths[f"{form} parquet"] = (folder / f"{stem}-{form}.{e}" for e in ("csv", "parquet"))
        pc.write_csv(table, paths[f"{form} csv"], pc.WriteOptions(quoting_style="none"))
        pq.write_table(table, paths[f"{form} parquet"])
    return paths


def measured(command: list[str], runs: int) -> dict[str, Any]:
    """Processor seconds and the most memory of a command in fresh processes, begun by a small one."""
    seconds, held = [], []
    for _ in range(runs):
        done = subprocess.run([sys.executable, "-S", "-c", LAUNCH, *command], check=True, capture_output=True)
        used, most = json.loads(done.stdout)
        seconds.append(round(used, 3))
        held.append(most)
    return {"seconds": {"median": statistics.median(seconds), "least": min(seconds), "most": max(seconds)},
            "megabytes": round(max(held))}  # fmt: skip


def python(code: str, *given: object) -> list[str]:
    """A fresh process that runs some lines."""
    return [sys.executable, "-c", f"import sys\n{code}", *map(str, given)]


def cases(folder: Path) -> dict[str, Callable[[], dict[str, list[str]]]]:
    """What is measured: its own command, and what stands beside it; files are made when their case comes."""
    made: dict[int, dict[str, Path]] = {}

    def files(agents: int) -> dict[str, Path]:
        if agents not in made:
            made[agents] = files_of(folder, agents, 10_000)
        return made[agents]

    def score(form: str, agents: int = 1000, *options: str) -> dict[str, list[str]]:
        path = files(agents)[form]
        return {"verax": [VERAX, "score", str(path), "--json", *options],
                "the file read by itself": python(READ[path.suffix[1:]], path)}  # fmt: skip

    million = "import numpy as np, verax; x = (np.random.default_rng(0).random((10**6, 100)) < 0.7).astype(np.int8)"
    page = str(folder / "page.html")
    return {
        "import": lambda: {"verax": python("import verax"), "import numpy": python("import numpy")},
        "score, 30 x 10^4, wide CSV": lambda: score("wide csv", 30),
        "score, 30 x 10^4, wide CSV, rule ca": lambda: score("wide csv", 30, "--rule", "ca"),
        **{f"score, 1,000 x 10^4, {form}": lambda form=form: score(form)  # type: ignore[misc]
           for form in ("npz", "wide csv", "long csv", "wide parquet", "long parquet")},
        "score, 50 x 10^4, long CSV, beside pandas": lambda: {
            "verax": [VERAX, "score", str(files(50)["long csv"]), "--json"],
            "pandas and a loop": python(PANDAS, files(50)["long csv"]),
        },
        "score, 200 x 10^4, rule ca, beside scikit-learn": lambda: {
            "verax": [VERAX, "score", str(files(200)["npz"]), "--rule", "ca", "--json"],
            "scikit-learn, 20 of the 200": python(SKLEARN.format(some=20), files(200)["npz"]),
        },
        "a million agents x 100, with errors": lambda: {
            "verax": python(f"{million}; verax.score(verax.Reports.of(x))"), "making the labels": python(million),
        },
        "audit, 200 x 10^4": lambda: {"verax": [VERAX, "audit", str(files(200)["npz"]), "--json"]},
        "audit, 1,000 x 10^4": lambda: {"verax": [VERAX, "audit", str(files(1000)["npz"]), "--json"]},
        "page of 1,000 agents": lambda: {"verax": [VERAX, "score", str(files(1000)["npz"]), "--html", page]},
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    with tempfile.TemporaryDirectory() as folder:
        known = cases(Path(folder))
        options.add_argument("--runs", type=int, default=3)
        options.add_argument("--cases", nargs="+", default=[*known], choices=[*known], metavar="CASE")
        options.add_argument("--out", type=Path)
        asked = options.parse_args()
        packages = ("verax", "numpy", "numba", "pyarrow", "pandas", "scikit-learn")
        document: dict[str, Any] = {
            "command": f"python benchmarks/whole.py --runs {asked.runs}", "runs": asked.runs,
            "load before": round(os.getloadavg()[0], 2),
            "machine": {"processor": platform.processor() or platform.machine(), "cores": len(os.sched_getaffinity(0)),
                        "python": platform.python_version(), **{name: version(name) for name in packages}},
            "cases": {},
        }  # fmt: skip
        for name in asked.cases:
            found = {way: measured(command, asked.runs) for way, command in known[name]().items()}
            document["cases"][name] = found
            told = "; ".join(f"{w} {f['seconds']['median']:.2f} s, {f['megabytes']} MB" for w, f in found.items())
            print(f"{name:50}{told}", flush=True)
            if asked.out is not None:
                asked.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
