"""A federation with an exam, in a process that may be killed: python exam_process.py FOLDER WORLD.pickle.

It goes on from its own checkpoint, as a trainer does, and when all rounds are played it is paid.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "paper"))  # where the worlds of the studies are
from exam_blobs import CLASSES, named, rows
from verax.federation import Payroll, Referee, Sitting


def main(folder, world):
    played, pool, held = pickle.loads(world.read_bytes())
    checkpoint, done = folder / "checkpoint", folder / "paid.json"
    print("ready", flush=True)
    pay = Payroll(str(folder / "r.db"), budget="100.00", full_marks="0.05", signed=True)
    referee = Referee(pool, rows, CLASSES, protocol="exam", exam=Sitting(held, copies=1), payroll=pay)
    for i in range(len(held)):
        pay.rounds.fund("federation-exam", 50_000, agent=f"m{i}", key=f"for m{i}")
    first = int(checkpoint.read_text()) if checkpoint.exists() else 0
    for n, r in enumerate(played[first:], start=first):
        outcome = referee.pay_round(named(r.broadcast), {f"m{i}": named(w) for i, w in enumerate(r.replies)})
        assert not outcome.problem and not outcome.unpaid, outcome
        checkpoint.with_suffix(".part").write_text(str(n + 1))
        checkpoint.with_suffix(".part").replace(checkpoint)
    paid = {p.agent: p.amount for p in referee.pay_exam()}
    done.write_text(json.dumps(paid))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
