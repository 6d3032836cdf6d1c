"""Time two source trees beside each other: is any case slower in the new one?

    python benchmarks/side_by_side.py OLD [--new NEW] [--case NAME ...] [--rounds 5] [--out FILE.json]

OLD and NEW are checkouts (NEW: the one this file is in), whose `src` is put on the path of fresh processes. In every
round each case runs in both trees, the old and the new one taking turns to be first, so that whatever else the
machine does meets both. A figure is processor seconds, of all threads, of a case's work alone: reports are made and
the case is run once before the clock starts, then it is repeated for a fifth of a second and the least is taken. The
import and the command are whole processes. The median ratio new / old of the rounds stands with the least and the
most; `slower` marks a case whose median is above 1.05, and `slower for sure` one whose least is too. What is compiled
is kept in a folder of its own and nothing is written in the trees; that takes the first round two minutes more than
the others, of a minute each.

Only what users call is called: `verax.score`, `read`, `audit`, `pay` and the command line, whose insides may differ.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ENOUGH = 0.2  # seconds that one figure is the least of
SLOWER = 1.05
Work = Callable[[], Any]
Labels = np.ndarray[Any, Any]


def labels_of(agents: int, tasks: int, classes: int, gaps: float = 0.0) -> Labels:
    """Agents that are right five times in six; -1 where one left a task out."""
    rng = np.random.default_rng(0)
    truth, guess = rng.integers(0, classes, tasks), rng.integers(0, classes, (agents, tasks))
    labels = np.where(rng.random(guess.shape) < 5 / 6, truth, guess)
    return np.where(rng.random(labels.shape) < gaps, -1, labels).astype(np.int8 if classes < 128 else np.int16)


def scored(agents: int, tasks: int, classes: int, gaps: float = 0.0, **options: Any) -> Work:
    """`verax.score` of labels."""
    import verax

    reports = verax.Reports.of(labels_of(agents, tasks, classes, gaps))
    return lambda: verax.score(reports, threads=1, **options)


def rows_scored() -> Work:
    """`verax.score` of probability rows by the rule ce."""
    import verax

    labels = labels_of(50, 5000, 10).astype(np.int64)
    rows = np.full((*labels.shape, 10), 0.2 / 9)
    np.put_along_axis(rows, labels[..., None], 0.8, 2)
    reports = verax.Reports.of(probabilities=rows)
    return lambda: verax.score(reports, rule="ce", threads=1)


def file_of(name: str, agents: int = 30, tasks: int = 10_000) -> Path:
    """A file of reports, wide or long, in the folder that the process was started in."""
    path, labels = Path(name), labels_of(agents, tasks, 10)
    names = [f"agent{i}" for i in range(agents)]
    if path.name.startswith("long"):
        lines = [f"t{n},{a},c{k}" for a, row in zip(names, labels.tolist(), strict=True) for n, k in enumerate(row)]
        path.write_text("\n".join(["task,agent,label", *lines]) + "\n")
    elif name.endswith(".csv"):
        lines = [f"t{n}," + ",".join(f"c{k}" for k in column) for n, column in enumerate(labels.T.tolist())]
        path.write_text("\n".join(["task," + ",".join(names), *lines]) + "\n")
    else:
        import pyarrow
        from pyarrow import parquet

        columns = {a: [f"c{k}" for k in row] for a, row in zip(names, labels.tolist(), strict=True)}
        parquet.write_table(pyarrow.table({"task": [f"t{n}" for n in range(tasks)], **columns}), path)
    return path


def read(name: str, **size: int) -> Work:
    """`verax.read` of such a file."""
    import verax

    path = file_of(name, **size)
    return lambda: verax.read(path)


def audited() -> Work:
    """`verax.audit` of 30 agents on 2,000 tasks."""
    import verax

    reports = verax.Reports.of(labels_of(30, 2000, 10))
    return lambda: verax.audit(reports)


def paid() -> Work:
    """`verax.pay` of 1,000 agents."""
    import verax

    scores = verax.score(verax.Reports.of(labels_of(1000, 100, 5)))
    return lambda: verax.pay(scores, budget="100000.00")


def command(*words: str) -> str:
    """What the `verax` command prints, run here."""
    from verax.cli import main

    before, sys.argv = sys.argv, ["verax", *words]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
            main()
    finally:
        sys.argv = before
    return said.getvalue()


def settled() -> Work:
    """`verax round settle` of 20 agents on 500 tasks, each time on a copy of the sealed round."""
    labels = labels_of(20, 500, 5)
    Path("tasks.csv").write_text("\n".join(["task", *(f"t{n}" for n in range(500))]) + "\n")
    os.environ["VERAX_KEYS"] = "keys"  # of the sealed round and of all its copies
    there = ("--db", "sealed.db")
    command("round", "open", "r", "--tasks", "tasks.csv", "--classes", "0,1,2,3,4", "--budget", "1000.00", *there)
    command("round", "fund", "r", *there)
    for i, row in enumerate(labels.tolist()):
        Path("one.csv").write_text("\n".join(["task,label", *(f"t{n},{k}" for n, k in enumerate(row))]) + "\n")
        command("round", "submit", "r", "one.csv", "--agent", f"a{i}", *there)
    command("round", "seal", "r", *there)

    def settle() -> None:
        shutil.copy("sealed.db", "copy.db")
        if "settled" not in command("round", "settle", "r", "--db", "copy.db"):
            raise RuntimeError("the round was not settled")

    return settle


NUMPY, NUMBA = {"backend": "numpy"}, {"backend": "numba"}
PLUGIN = {"rule": "ca", "sign": "plugin", "over": "median"}
CASES: dict[str, Callable[[], Work]] = {
    "two, all pairs, numpy": lambda: scored(2, 10**6, 10, **PLUGIN, **NUMPY),
    "two, all pairs, numba": lambda: scored(2, 10**6, 10, **PLUGIN, **NUMBA),
    "fifty, all pairs, numpy": lambda: scored(50, 10**4, 10, **PLUGIN, **NUMPY),
    "fifty, all pairs, numba": lambda: scored(50, 10**4, 10, **PLUGIN, **NUMBA),
    "fifty, mean, split sign, numpy": lambda: scored(50, 10**4, 10, rule="ca", **NUMPY),
    "fifty, mean, split sign, numba": lambda: scored(50, 10**4, 10, rule="ca", **NUMBA),
    "fifty, mean with gaps, numpy": lambda: scored(50, 3000, 10, 0.2, **NUMPY),
    "fifty, mean with gaps, numba": lambda: scored(50, 3000, 10, 0.2, **NUMBA),
    "hundreds, all pairs, numba": lambda: scored(300, 10**4, 10, **PLUGIN, **NUMBA),
    "hundreds, mean, split sign, numba": lambda: scored(300, 5000, 10, rule="ca", **NUMBA),
    "hundreds, zero-one median, numba": lambda: scored(300, 10**4, 10, over="median", **NUMBA),
    "binary, all pairs, numpy": lambda: scored(60, 20_000, 2, **PLUGIN, **NUMPY),
    "binary, all pairs, numba": lambda: scored(200, 50_000, 2, **PLUGIN, **NUMBA),
    "many-labels, all pairs, numpy": lambda: scored(30, 4000, 100, **PLUGIN, **NUMPY),
    "many-labels, all pairs, numba": lambda: scored(100, 5000, 100, **PLUGIN, **NUMBA),
    "many-labels, mean over peers, numba": lambda: scored(200, 5000, 100, **NUMBA),
    "thousands, mean over peers, numpy": lambda: scored(10_000, 1000, 10, **NUMPY),
    "thousands, mean over peers, numba": lambda: scored(20_000, 1000, 10, **NUMBA),
    "ten, mean over peers, auto": lambda: scored(10, 500, 4),
    "ce, mean over peers": rows_scored,
    "read a wide CSV": lambda: read("wide.csv"),
    "read a long CSV": lambda: read("long.csv", tasks=3000),
    "read a wide Parquet": lambda: read("wide.parquet"),
    "audit, 30 x 2,000": audited,
    "pay, 1,000 agents": paid,
    "settle a round of 20": settled,
}
WHOLE = {  # what Python is started with; wide.csv is there
    "import verax": ("-c", "import verax"),
    "command verax score": ("-c", "from verax.cli import main; main()", "score", "wide.csv", "--json"),
}


def measured(name: str) -> float:
    """Processor seconds of a case in this process: the least of the calls, which others disturbed least."""
    work = CASES[name]()
    work()
    taken: list[float] = []
    while sum(taken) < ENOUGH:
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def whole(name: str, environment: dict[str, str], folder: str, times: int = 3) -> float:
    """Processor seconds of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(times):
        subprocess.run(
            [sys.executable, *WHOLE[name]], env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / times


class Tree:
    """One checkout, and a folder of its own for what Python and numba compile, so that nothing is written there."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path.resolve(), folder
        if not (self.path / "src" / "verax").is_dir():
            raise SystemExit(f"{path} has no src/verax; give a checkout of verax")
        folder.mkdir()
        threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
        self.environment = os.environ | threads | {
            "PYTHONPATH": str(self.path / "src"),
            "PYTHONPYCACHEPREFIX": str(folder / "python"),
            "PYTHONDONTWRITEBYTECODE": "",  # whoever runs this may have forbidden it: users import what is compiled
            "NUMBA_CACHE_DIR": str(folder / "numba"),
        }  # fmt: skip

    def seconds(self, name: str) -> float:
        """What a case takes here."""
        with tempfile.TemporaryDirectory() as folder:
            if name in WHOLE:
                os.symlink(self.folder.parent / "wide.csv", Path(folder) / "wide.csv")
                whole(name, self.environment, folder, 1)
                return whole(name, self.environment, folder)
            command = [sys.executable, str(Path(__file__).resolve()), "--child", name]
            done = subprocess.run(command, env=self.environment, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name} fails in {self.path}: {done.stderr.strip().splitlines()[-1]}")
        return float(done.stdout.split()[-1])


def compared(old: Tree, new: Tree, names: list[str], rounds: int) -> Iterator[dict[str, dict[str, Any]]]:
    """What is known of every case after each round, the trees taking turns to be first."""
    taken: dict[str, dict[str, list[float]]] = {name: {"old": [], "new": []} for name in names}
    for turn in range(rounds):
        for name in names:
            both = {"old": old, "new": new} if turn % 2 == 0 else {"new": new, "old": old}
            for which, tree in both.items():
                taken[name][which].append(tree.seconds(name))
            print(f"  round {turn + 1} of {rounds}: {line(name, told(**taken[name]))}", file=sys.stderr, flush=True)
        yield {name: told(**each) for name, each in taken.items()}


def line(name: str, found: dict[str, Any]) -> str:
    """A case, as it is told."""
    figures = f"{found['old_s']:10.4f}{found['new_s']:10.4f}{found['ratio']:9.2f}"
    return f"{name:40}{figures}   {found['least']:.2f}..{found['most']:.2f}  {found['verdict']}".rstrip()


def told(old: list[float], new: list[float]) -> dict[str, Any]:
    """Medians of both, and the ratios of the rounds."""
    ratios = [n / o for o, n in zip(old, new, strict=True)]
    middle, least = statistics.median(ratios), min(ratios)
    verdict = "slower for sure" if least > SLOWER else "slower" if middle > SLOWER else ""
    figures = {"old_s": statistics.median(old), "new_s": statistics.median(new), "ratio": middle}
    return figures | {"least": least, "most": max(ratios), "verdict": verdict, "old": old, "new": new}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?", help="the checkout to compare with")
    parser.add_argument("--new", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--case", nargs="*", default=[], help="only cases whose name begins so")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write everything as JSON too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(measured(given.child))
        return
    if given.old is None:
        parser.error("give the checkout to compare with")
    fast = importlib.util.find_spec("numba") is not None
    known = [name for name in (*CASES, *WHOLE) if fast or "numba" not in name]
    names = [name for name in known if not given.case or name.startswith(tuple(given.case))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file_of(str(folder / "wide.csv"), tasks=2000)
        old, new = Tree(given.old, folder / "old"), Tree(given.new, folder / "new")
        machine = {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()}
        document = {"old": str(old.path), "new": str(new.path), "machine": machine}
        for found in compared(old, new, names, given.rounds):
            if given.out is not None:
                given.out.write_text(json.dumps(document | {"cases": found}, indent=1) + "\n")
    print(f"{'processor seconds':40}{'old':>10}{'new':>10}{'new/old':>9}   least..most")
    for case, each in found.items():
        print(line(case, each))


if __name__ == "__main__":
    main()
