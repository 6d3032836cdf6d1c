"""Measure 10^8 reports in Parquet shards, scored by the command line: time and memory, beside only reading them.

    python benchmarks/shards.py [--runs 5] [--out benchmarks/results/shards.json]

100 agents x 10^6 tasks, 10 classes, ten wide files of text labels. Every figure is the median of the runs with the
least and the most, each in a fresh process. Processor seconds are of all processes but a cluster's, and say more than
the clock where others use the machine. Memory is the most that any process held resident. The Dask cluster is one of
two processes on this machine, begun before the clock starts.
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
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

AGENTS, TASKS, CLASSES, FILES = 100, 10**6, 10, 10
QUIET = 1.5  # load above which a time says little

# A fresh process that runs what it is given and says how long that took and how much memory it and its children held.
RUN = """
import json, resource, sys, time
begun = time.perf_counter()
try:
    {what}
finally:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found = {{
        "seconds": time.perf_counter() - begun,
        "processor": sum(each.ru_utime + each.ru_stime for each in used),
        "megabytes": max(each.ru_maxrss for each in used) / 1024,
    }}
    print(json.dumps(found), file=sys.stderr)
"""
SCORE = RUN.format(what="from verax.cli import app; app()")
READ = RUN.format(
    what="import pyarrow.parquet as pq; [pq.read_table(f, use_threads=False, read_dictionary=[f'agent-{k}' "
    "for k in range(100)]) for f in sys.argv[1:]]"
)


def write(folder: Path) -> None:
    """Agents that are right from half the time to nine times in ten."""
    rng, each = np.random.default_rng(0), TASKS // FILES
    names = pa.array([f"class-{i}" for i in range(CLASSES)])
    for part in range(FILES):
        truth = rng.integers(0, CLASSES, each, dtype=np.int8)
        columns = {"task": pa.array([f"task-{part * each + i}" for i in range(each)])}
        for k in range(AGENTS):
            right = rng.random(each, dtype=np.float32) < 0.5 + 0.4 * k / AGENTS
            labels = pa.array(np.where(right, truth, rng.integers(0, CLASSES, each, dtype=np.int8)))
            columns[f"agent-{k}"] = pa.DictionaryArray.from_arrays(labels, names).cast(pa.string())
        pq.write_table(pa.table(columns), folder / f"part-{part:02}.parquet", row_group_size=50_000)


def measured(program: str, arguments: list[str], runs: int) -> tuple[dict[str, Any], str]:
    """Seconds and megabytes of a program in fresh processes, and what it printed."""
    found, printed = [], set()
    for _ in range(runs):
        done = subprocess.run([sys.executable, "-c", program, *arguments], check=True, capture_output=True, text=True)
        found.append(json.loads(done.stderr.splitlines()[-1]))
        printed.add(done.stdout)
    if len(printed) > 1:
        raise SystemExit("the same command printed two different things")
    held = max(each["megabytes"] for each in found)
    return {
        **{kind: spread(each[kind] for each in found) for kind in ("seconds", "processor")},
        "megabytes": held,
    }, printed.pop()


def spread(figures: Iterable[float]) -> dict[str, float]:
    """The median, the least and the most."""
    each = [round(figure, 3) for figure in figures]
    return {"median": statistics.median(each), "least": min(each), "most": max(each)}


def on_dask(arguments: list[str], runs: int) -> tuple[dict[str, Any], str]:
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        found, printed = measured(SCORE, [*arguments, "--dask", cluster.scheduler_address], runs)
        with Client(cluster.scheduler_address, set_as_default=False) as client:
            held = client.run(lambda: __import__("resource").getrusage(0).ru_maxrss / 1024)
    return {**found, "megabytes": max(found["megabytes"], *held.values())}, printed


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        load = os.getloadavg()[0]
        files = sorted(map(str, Path(folder).iterdir()))
        stored = sum(Path(file).stat().st_size for file in files)
        score = ["score", f"{folder}/*.parquet", "--json"]
        found = {
            "reading alone, once": measured(READ, files, asked.runs),
            "--workers 1": measured(SCORE, [*score, "--workers", "1"], asked.runs),
            "--workers 2": measured(SCORE, [*score, "--workers", "2"], asked.runs),
            "--dask, 2 workers": on_dask(score, asked.runs),
            "--rule ca --workers 2": measured(SCORE, [*score, "--rule", "ca", "--workers", "2"], asked.runs),
        }
    same = {printed for name, (_, printed) in found.items() if "ca" not in name and "reading" not in name}
    names = ("verax", "numpy", "pyarrow", "distributed")
    document = {
        "command": f"python benchmarks/shards.py --runs {asked.runs}",
        "machine": {"processor": platform.processor() or platform.machine(), "cores": len(os.sched_getaffinity(0)),
                    "python": platform.python_version(), **{name: version(name) for name in names}},
        "load before": load, "quiet": load < QUIET,
        "agents": AGENTS, "tasks": TASKS, "classes": CLASSES, "reports": AGENTS * TASKS, "bytes on disk": stored,
        "runs": asked.runs, "identical": len(same) == 1,
        "seconds": {name: each["seconds"] for name, (each, _) in found.items()},
        "processor seconds": {name: each["processor"] for name, (each, _) in found.items()},
        "megabytes": {name: round(each["megabytes"]) for name, (each, _) in found.items()},
    }  # fmt: skip
    for name, seconds in document["seconds"].items():
        used = document["processor seconds"][name]["median"]
        print(f"{name:24}{seconds['median']:8.2f} s{used:8.2f} s of processors {document['megabytes'][name]:6} MB")
    print("identical documents" if document["identical"] else "DIFFERENT documents", f"load {load:.1f} before")
    if asked.out is not None:
        asked.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
