"""Measure a world of few answers: 100,000 agents x 100,000 tasks with 4,000,000 answers, beside a self-join in DuckDB.

    python benchmarks/sparse.py [--answers 4000000] [--agents 100000] [--tasks 100000] [--runs 3]
                                [--ways WAY...] [--out benchmarks/results/sparse.json]

Two worlds of two labels: `even`, where every agent and task is as likely as any other in an answer, and `skewed`,
where agents answer, and tasks are answered, as often as lognormal weights say (sigma 1.5 and 1). Agents are right half
the time to 95 %. Each figure is of a fresh process on one core: processor seconds from its start to its end, with
imports, and the most memory it held resident; the median of the runs with the least and the most. DuckDB joins the
answers with themselves by task, adds up what each pair's score is made of, and takes the mean over peers, in one
thread: the scores alone, without standard errors. Both give every score, which must be the same.
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
import pyarrow.csv as pc
import pyarrow.parquet as pq

# What a fresh process runs: it leaves its scores, NaN where there is none, in the file it is given last.
BEGIN = """
import json, os, resource, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import numpy as np
source, out = sys.argv[1:]
"""
END = """
np.save(out, found)
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"processor": used.ru_utime + used.ru_stime, "megabytes": used.ru_maxrss / 1024}))
"""
FILE = """
import verax
scores = verax.score(verax.read(source), {asked})
found = np.full({agents}, np.nan)
for s in scores:
    if s.score is not None:
        found[int(s.agent[1:])] = s.score
"""
ARRAYS = """
import verax
held = np.load(source)
scores = verax.score(verax.Reports.of_answers(held["agent"], held["task"], held["label"]), {asked})
found = np.full({agents}, np.nan)
for s in scores:
    if s.score is not None:
        found[int(s.agent)] = s.score
"""
JOIN = """
import duckdb
held = np.load(source)
db = duckdb.connect(config={{"threads": 1, "memory_limit": "{gigabytes}GB", "temp_directory": os.path.dirname(out)}})
import pyarrow as pa
db.register("held", pa.table({{name: held[name] for name in ("agent", "task", "label")}}))
db.execute("create table answers as select * from held")
rows = db.execute('''
    with pairs as (
        select x.agent i, y.agent j, count(*) n, sum((x.label = y.label)::int) met,
               sum(x.label) a, sum(y.label) b
        from answers x join answers y on x.task = y.task and x.agent <> y.agent
        group by all having count(*) >= 2)
    select i, avg((n * met - (a * b + (n - a) * (n - b))) / (n * (n - 1))) from pairs group by i
''').fetchnumpy()
found = np.full({agents}, np.nan)
found[rows["i"]] = list(rows.values())[1]
"""


def answers_of(skewed: bool, agents: int, tasks: int, answers: int) -> dict[str, np.ndarray]:
    """Who answers what with which label, no two rows about the same."""
    rng = np.random.default_rng(0)
    shares = [rng.lognormal(0, sigma * skewed, size) for sigma, size in ((1.5, agents), (1.0, tasks))]
    found = np.empty(0, dtype=np.int64)
    while len(found) < answers:
        more = int((answers - len(found)) * 1.2) + 1000
        who, about = (rng.choice(len(share), more, p=share / share.sum()) for share in shares)
        found = np.unique(np.concatenate([found, who * tasks + about]))
    found = rng.permutation(found)[:answers]
    agent, task = found // tasks, found % tasks
    truth, right = rng.integers(0, 2, tasks), rng.uniform(0.5, 0.95, agents)
    label = np.where(rng.random(answers) < right[agent], truth[task], 1 - truth[task])
    return {"agent": agent.astype(np.int32), "task": task.astype(np.int32), "label": label.astype(np.int32)}


def write(folder: Path, world: dict[str, np.ndarray]) -> dict[str, Path]:
    """The same answers as a long CSV, a long Parquet file and arrays."""
    names = {"task": ("task", "t"), "agent": ("worker", "w"), "label": ("label", "l")}
    columns = {
        column: pa.array(np.char.add(letter, world[what].astype("U8"))) for what, (column, letter) in names.items()
    }
    paths = {kind: folder / f"answers.{kind}" for kind in ("csv", "parquet", "npz")}
    pc.write_csv(pa.table(columns), paths["csv"], pc.WriteOptions(quoting_style="none"))
    pq.write_table(pa.table(columns), paths["parquet"])
    np.savez(paths["npz"], **world)
    return paths


def measured(program: str, source: Path, runs: int) -> tuple[dict[str, Any], np.ndarray]:
    """Processor seconds and megabytes of a program in fresh processes, and the scores it leaves."""
    found, out = [], source.parent / "scores.npy"
    for _ in range(runs):
        command = [sys.executable, "-c", BEGIN + program + END, str(source), str(out)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    used = spread(each["processor"] for each in found)
    return {"processor seconds": used, "megabytes": round(max(each["megabytes"] for each in found))}, np.load(out)


def spread(figures: Iterable[float]) -> dict[str, float]:
    """The median, the least and the most."""
    each = [round(figure, 2) for figure in figures]
    return {"median": statistics.median(each), "least": min(each), "most": max(each)}


WAYS = {
    "arrays, mean over peers": (ARRAYS, "npz", ""),
    "DuckDB self-join": (JOIN, "npz", ""),
    "Parquet, mean over peers": (FILE, "parquet", ""),
    "CSV, mean over peers": (FILE, "csv", ""),
    "arrays, skilled": (ARRAYS, "npz", "over='skilled'"),
    "arrays, consensus": (ARRAYS, "npz", "against='consensus'"),
}


def compared(scores: dict[str, np.ndarray]) -> dict[str, Any]:
    """Whether files give the bits that arrays do, and how far the self-join is from them."""
    first = scores["arrays, mean over peers"]
    files = [found for way, found in scores.items() if way in ("Parquet, mean over peers", "CSV, mean over peers")]
    found: dict[str, Any] = {"scored": int((~np.isnan(first)).sum())}
    if files:
        found["files give the same bits"] = all(np.array_equal(first, each, equal_nan=True) for each in files)
    if "DuckDB self-join" in scores:
        joined = scores["DuckDB self-join"]
        found["largest difference from DuckDB"] = float(np.nanmax(np.abs(first - joined)))
        found["scored by both"] = bool((np.isnan(first) == np.isnan(joined)).all())
    return found


def with_what_was_measured(document: dict[str, Any], path: Path) -> dict[str, Any]:
    """The figures with those of other ways that the file has of worlds of the same size."""
    before = json.loads(path.read_text()) if path.exists() else {}
    sizes = ("agents", "tasks", "answers")
    if [before.get(size) for size in sizes] != [document[size] for size in sizes]:
        return document
    worlds = {name: {**before["worlds"][name], **found, "ways": before["worlds"][name]["ways"] | found["ways"]}
              for name, found in document["worlds"].items()}  # fmt: skip
    return {**document, "worlds": worlds}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"agents": 100_000, "tasks": 100_000, "answers": 4_000_000, "runs": 3, "gigabytes": 8}
    for name, number in sizes.items():
        options.add_argument(f"--{name}", type=int, default=number)
    options.add_argument("--ways", nargs="+", default=[*WAYS], choices=[*WAYS], metavar="WAY")
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    names = ("verax", "numpy", "numba", "pyarrow", "duckdb")
    document: dict[str, Any] = {
        "command": f"python benchmarks/sparse.py --runs {asked.runs}",
        "machine": {"processor": platform.processor() or platform.machine(), "cores": len(os.sched_getaffinity(0)),
                    "python": platform.python_version(), **{name: version(name) for name in names}},
        "load before": round(os.getloadavg()[0], 2), "runs": asked.runs,
        "agents": asked.agents, "tasks": asked.tasks, "answers": asked.answers, "worlds": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        paths, scores = {}, dict[str, dict[str, np.ndarray]]()
        for name, skewed in (("even", False), ("skewed", True)):
            world = answers_of(skewed, asked.agents, asked.tasks, asked.answers)
            (Path(folder) / name).mkdir()
            paths[name], scores[name] = write(Path(folder) / name, world), {}
            each = np.bincount(world["task"], minlength=asked.tasks)
            document["worlds"][name] = {"meetings": int((each**2).sum()), "ways": {}}
        for way, (program, kind, option) in WAYS.items():
            if way not in {*asked.ways, next(iter(WAYS))}:
                continue
            filled = program.format(asked=option, agents=asked.agents, gigabytes=asked.gigabytes)
            for name, found in document["worlds"].items():
                found["ways"][way], scores[name][way] = measured(filled, paths[name][kind], asked.runs)
                found |= compared(scores[name])
                seconds, held = found["ways"][way]["processor seconds"]["median"], found["ways"][way]["megabytes"]
                print(f"{name:8}{way:28}{seconds:9.2f} s{held:7} MB", flush=True)
                if asked.out is not None:
                    asked.out.write_text(json.dumps(with_what_was_measured(document, asked.out), indent=1) + "\n")


if __name__ == "__main__":
    main()
