"""Count how far a reader walks who follows one command through the code: calls, functions, returns to a module.

    python benchmarks/walks.py [OLD] [--new NEW] [--out FILE.json]

Four commands run on 4 agents x 60 tasks x 2 classes: `score` and `audit` of one wide CSV, `score` of its two shards,
and `round settle` of a sealed round, each once before it is counted, so that imports are done. `sys.setprofile` sees
every call; counted are calls of named functions in `src/verax`, not of lambdas, comprehensions, generator expressions
or module bodies; a generator counts each time it is taken up again. A *return* is a call into a module that calls had
entered before and left for another since. With OLD, another checkout, both stand side by side.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

AGENTS, TASKS = 4, 60
CASES = ("score", "settle", "shards", "audit")


class Walk(NamedTuple):
    """What was met on the way."""

    calls: int
    functions: int
    returns: int


def walk_of(work: Callable[[], object], root: str) -> Walk:
    """The walk of one call, through files below the root."""
    met: list[tuple[str, str, int]] = []

    def see(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root) and not code.co_name.startswith("<"):
            met.append((code.co_filename, code.co_name, code.co_firstlineno))

    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
    files = [file for file, _, _ in met]
    entered = [file for file, before in zip(files, [None, *files], strict=False) if file != before]
    return Walk(len(met), len(set(met)), len(entered) - len(set(entered)))


def command(*words: str) -> None:
    """The `verax` command, run here; what it prints is dropped."""
    from verax.cli import app

    with contextlib.redirect_stdout(io.StringIO()):
        app(list(words), standalone_mode=False)


def write(path: str, rows: list[list[str]]) -> None:
    """A CSV."""
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("".join(",".join(row) + "\n" for row in rows))


def prepare() -> None:
    """The files of all cases, in the folder that the process was started in."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, TASKS)
    labels = np.where(rng.random((AGENTS, TASKS)) < 0.8, truth, rng.integers(0, 2, (AGENTS, TASKS)))
    head = ["task", *(f"a{i}" for i in range(AGENTS))]
    body = [[f"t{n}", *(f"c{k}" for k in column)] for n, column in enumerate(labels.T.tolist())]
    write("wide.csv", [head, *body])
    for i, some in enumerate((body[: TASKS // 2], body[TASKS // 2 :])):
        write(f"shards/{i}.csv", [head, *some])
    write("tasks.csv", [row[:1] for row in (head, *body)])
    os.environ["VERAX_KEYS"] = "keys"  # of the sealed round and of all its copies
    there = ("--db", "sealed.db")
    command("round", "open", "r", "--tasks", "tasks.csv", "--classes", "c0,c1", "--budget", "100.00", *there)
    command("round", "fund", "r", *there)
    for i, agent in enumerate(head[1:], 1):
        write("one.csv", [["task", "label"], *([row[0], row[i]] for row in body)])
        command("round", "submit", "r", "one.csv", "--agent", agent, *there)
    command("round", "seal", "r", *there)


def walks() -> dict[str, Walk]:
    """Every case's walk in the tree that is on the path."""
    import verax

    prepare()
    root, found = str(Path(verax.__file__).parent) + os.sep, {}
    words = {
        "score": ("score", "wide.csv", "--json"),
        "settle": ("round", "settle", "r", "--db", "copy.db"),
        "shards": ("score", "shards/*.csv", "--json"),
        "audit": ("audit", "wide.csv", "--json"),
    }
    for name in CASES:
        for counted in (False, True):
            shutil.copy("sealed.db", "copy.db")
            if counted:
                found[name] = walk_of(lambda name=name: command(*words[name]), root)
            else:
                command(*words[name])
    return found


def measured(tree: Path) -> dict[str, Walk]:
    """The walks in a checkout, taken by a fresh process."""
    environment = os.environ | {"PYTHONPATH": str(tree.resolve() / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, str(Path(__file__).resolve()), "--child"]
        done = subprocess.run(line, env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{tree}: {done.stderr.strip().splitlines()[-1]}")
    return {name: Walk(*walk) for name, walk in json.loads(done.stdout).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?", help="another checkout")
    parser.add_argument("--new", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--out", type=Path, help="write the counts as JSON too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(walks()))
        return
    trees = {"old": given.old, "new": given.new} if given.old else {"new": given.new}
    found = {which: measured(tree) for which, tree in trees.items()}
    print("calls / functions / returns".ljust(28) + "".join(which.rjust(18) for which in found))
    for name in CASES:
        print(f"{name:28}" + "".join(" / ".join(map(str, each[name])).rjust(18) for each in found.values()))
    if given.out is not None:
        document = {which: {name: walk._asdict() for name, walk in each.items()} for which, each in found.items()}
        given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
