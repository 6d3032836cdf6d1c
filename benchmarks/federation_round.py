"""Measure all that a paid round of 20 clients costs the server beside predicting the pool: 10,000 inputs, 10 classes.

    python benchmarks/federation_round.py [--out benchmarks/results/federation_round.json]

The yardstick is the pool predicted with 20 small convolutional networks (torch; two timed and scaled up, marked `~`).
Then a round of `verax.federation.Referee` whose `predict` costs nothing: replies checked, echo test, copies, the round
recorded, settled and told. The echo test of 20 models of 11 million weights runs in a process of its own, whose largest
size is read before and after. Seconds are of one core (CPU time), as others may be using the machine; each figure is
the median of three.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import federation as hundred
import numpy as np

import verax
from verax.copies import find_copies
from verax.federation import Payroll, Referee, Reply

CLIENTS, POOL, CLASSES, RUNS = 20, hundred.POOL, hundred.CLASSES, 3
LARGE = 11_000_000
Figure = dict[str, Any]


def cpu_seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def median(call: Callable[[], float]) -> float:
    return statistics.median(call() for _ in range(RUNS))


class World:
    """What 20 clients send in a round: small networks, and what each says of the pool."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.truth = self.rng.integers(0, CLASSES, POOL)
        self.taught = self.rng.standard_normal(20_000).astype(np.float32)
        self.rows = [self.drawn(i) for i in range(CLIENTS + 1)]
        self.models = [self.model(i) for i in range(CLIENTS + 1)]

    def drawn(self, i: int) -> Any:
        """Probabilities that are right in most places, and in the others of one's own."""
        said = np.where(self.rng.random(POOL) < 0.2 + 0.01 * i, self.rng.integers(0, CLASSES, POOL), self.truth)
        rows = 0.02 + 0.01 * self.rng.random((POOL, CLASSES), np.float32)
        rows[np.arange(POOL), said] += 0.8
        return rows

    def model(self, i: int) -> dict[str, Any]:
        own = self.rng.standard_normal(self.taught.shape).astype(np.float32)
        return {"which": np.array([i], np.float32), "weights": self.taught + own}

    def predict(self, model: dict[str, Any], _: Any) -> Any:
        return self.rows[round(float(model["which"][0])) % len(self.rows)]

    def round(self, protocol: str, folder: str, *, scored: bool = True) -> float:
        """The seconds of one round: what came in is checked, scored, recorded, paid and told, and weighed."""
        payroll = Payroll(f"{folder}/rounds.db", budget="100.00")
        classes = [*map(str, range(CLASSES))]
        referee = Referee(range(POOL), self.predict, classes, protocol=protocol, payroll=payroll)  # type: ignore[arg-type]
        start = {"which": np.array([CLIENTS], np.float32), "weights": np.zeros_like(self.taught)}
        replies = [Reply(f"client {i}", self.models[i]) for i in range(CLIENTS)]
        referee.broadcast(start)
        if not scored or protocol == "every":
            for step in (0.1, 0.2):
                referee.broadcast(start | {"weights": self.taught * np.float32(step)})

        def play() -> None:
            received = referee.receive(replies, [reply.agent for reply in replies])
            outcome = referee.settle_round(received) if referee.due else None
            assert (outcome is not None) == scored and not (outcome and outcome.problem), outcome
            referee.weigh(received.works, outcome)

        return cpu_seconds(play)


def echo() -> None:
    """In a process of its own: seconds, growth of its largest size, and that size, in GB."""
    from verax.echo import echo_test

    rng = np.random.default_rng(0)
    sizes = [LARGE // 5] * 5

    def drawn() -> list[Any]:
        return [rng.standard_normal(size, np.float32) for size in sizes]

    def most() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9

    now, models = drawn(), [drawn() for _ in range(CLIENTS)]
    before = most()
    took = cpu_seconds(lambda: echo_test(models, now, []))
    print(json.dumps([took, most() - before, most()]))


def measured(world: World) -> Iterator[Figure]:
    call = hundred.convolutional(hundred.World(), 2)
    if call is not None:
        call()
        yield {
            "what": "the pool predicted by 20 small CNNs (torch)",
            "seconds": cpu_seconds(call) * CLIENTS / 2,
            "scaled": True,
        }
    for protocol in ("first", "every"):
        sizes = []

        def played(protocol: str = protocol, sizes: list[int] = sizes) -> float:
            with tempfile.TemporaryDirectory() as folder:
                took = world.round(protocol, folder)
                sizes.append(sum(path.stat().st_size for path in Path(folder).glob("rounds.db*") if path.is_file()))
            return took

        yield {
            "what": f"all else of a scored round, protocol {protocol}",
            "seconds": median(played),
            "bytes": sizes[-1],
        }
    with tempfile.TemporaryDirectory() as folder:
        yield {"what": "all of a round that is not scored", "seconds": world.round("first", folder, scored=False)}
    many = hundred.World().rng.integers(0, CLASSES, (200, POOL))
    labels = np.where(np.random.default_rng(1).random((200, POOL)) < 0.4, many, world.truth)
    reports = verax.Reports.of(labels, classes=range(CLASSES))
    yield {
        "what": "copies looked for among 200 reports",
        "seconds": median(lambda: cpu_seconds(lambda: find_copies(reports))),
    }
    done = subprocess.run([sys.executable, __file__, "--echo"], capture_output=True, text=True, check=True)
    took, grown, whole = json.loads(done.stdout)
    yield {"what": "echo test of 20 models of 11,000,000 weights", "seconds": took, "grown": grown, "whole": whole}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path)
    options.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.echo:
        echo()
        return
    found = []
    for each in measured(World()):
        found.append({"scaled": False, **each})
        print(
            f"{each['what']:50}{each['seconds']:9.3f} s",
            {k: v for k, v in each.items() if k in ("bytes", "grown", "whole")},
            flush=True,
        )
    if asked.out is not None:
        machine = {"cpu": hundred.cpu(), "numpy": np.__version__}
        document = {
            "command": "python benchmarks/federation_round.py",
            "machine": machine,
            "clients": CLIENTS,
            "times": found,
        }
        asked.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
