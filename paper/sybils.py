"""Sybils: what several names earn with one piece of work, where they copy, add noise, mix, or steal.

    python paper/sybils.py after            as verax is
    PYTHONPATH=OLD/src python paper/sybils.py before     the same worlds, settled by an earlier verax

Ten honest agents of unlike worth, and an attacker who has done the work of one. Gain: what its names are paid together
in a round, over what it would be paid under one name; 1 is no gain. Each attack is tried with each share of labels
changed, so that the attacker's best is in the table. Results go to paper/results/sybils.json.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from verax.rounds import Spec, settlement

RESULTS = Path(__file__).parent / "results" / "sybils.json"
TASKS, WORLDS, HONEST = 1000, 10, np.linspace(0.6, 0.9, 10)
NAMES, NOISE = (5, 10), (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)
QUALITY = 0.75


class World:
    """Tasks that are hard or not, ten honest reports, and what the attacker knows."""

    def __init__(self, kind, seed):
        self.rng = np.random.default_rng([seed, sorted(KINDS).index(kind)])
        self.classes, self.hard = KINDS[kind]
        self.truth = self.rng.integers(0, self.classes, TASKS)
        self.hardness = self.rng.random(TASKS) if self.hard else np.full(TASKS, 0.5)
        self.lure = self._other(self.truth)
        self.honest = np.array([self.work(q) for q in HONEST])
        self.own, self.second = self.work(QUALITY), self.work(QUALITY)
        counts = np.stack([(self.honest == k).sum(0) for k in range(self.classes)])
        self.plurality = counts.argmax(0)

    def _other(self, labels):
        return (labels + self.rng.integers(1, self.classes, labels.shape)) % self.classes

    def work(self, quality):
        """One honest agent's labels; on hard tasks it errs more, often as others do."""
        wrong = self.rng.random(TASKS) < 2 * (1 - quality) * self.hardness
        lured = self.rng.random(TASKS) < (0.4 if self.hard else 0.0)
        return np.where(wrong, np.where(lured, self.lure, self._other(self.truth)), self.truth)

    def changed(self, labels, rate, where=None):
        """The labels with a share of them changed: anywhere, or only among the tasks where the attacker is unsure."""
        odds = np.full(TASKS, rate) if where is None else np.minimum(rate * where / where.mean(), 1.0)
        return np.where(self.rng.random(TASKS) < odds, self._other(labels), labels)


KINDS = {"4 labels": (4, False), "2 labels": (2, False), "10 labels, hard tasks": (10, True)}


def of_own(world, names, rate):
    """The own report, and copies of it with noise."""
    return [world.own, *(world.changed(world.own, rate) for _ in range(names - 1))]


def all_noisy(world, names, rate):
    """Copies with noise only."""
    return [world.changed(world.own, rate) for _ in range(names)]


def where_unsure(world, names, rate):
    """Copies with their noise where the attacker knows that it may be wrong anyhow."""
    return [world.changed(world.own, rate, world.hardness**2) for _ in range(names)]


def of_plurality(world, names, rate):
    """What most of the others say, were it known before sealing."""
    return [world.changed(world.plurality, rate) for _ in range(names)]


def of_victim(world, names, rate):
    """The best honest report, were it known before sealing."""
    return [world.changed(world.honest[-1], rate) for _ in range(names)]


def mixed(world, names, rate):
    """Each name takes each label from one of two own pieces of work, and changes some."""
    both = np.where(world.rng.random((names, TASKS)) < 0.5, world.own, world.second)
    return [world.changed(row, rate) for row in both]


ATTACKS = {
    "own report and noisy copies": of_own, "noisy copies only": all_noisy, "noise where unsure": where_unsure,
    "mixtures of two own models": mixed, "the crowd's plurality": of_plurality, "the best honest report": of_victim,
}  # fmt: skip


WAYS = {"each name paid": False, "copies paid once": True, "clusters paid once": "clusters"}


def paid(world, rows, copies):
    """What each is paid by a round, honest agents first: they also commit first."""
    spec = Spec("r", tuple(map(str, range(TASKS))), tuple(map(str, range(world.classes))), "10000.00", copies=copies)
    taken = [(f"a{i:03}", {"labels": np.asarray(row).tolist()}) for i, row in enumerate(rows)]
    amounts = settlement(spec, taken, "", "").amounts
    return np.array([amounts[name] for name, _ in taken], dtype=float)


def gains(kind, attack, after):
    """Mean gain over worlds by names, noise and way of paying, and what the honest ten keep of their pay."""
    found = {}
    for seed in range(WORLDS):
        for way, copies in WAYS.items() if after else list(WAYS.items())[:2]:
            world = World(kind, seed)
            one = paid(world, [*world.honest, world.own], copies)
            for names in NAMES:
                for rate in NOISE:
                    many = paid(world, [*world.honest, *ATTACKS[attack](world, names, rate)], copies)
                    row = many[10:].sum() / one[10], many[:10].sum() / one[:10].sum()
                    found.setdefault(way, {}).setdefault(str(names), {}).setdefault(str(rate), []).append(row)
    return {
        way: {k: {r: np.mean(rows, 0).round(3).tolist() for r, rows in of.items()} for k, of in by_names.items()}
        for way, by_names in found.items()
    }


COLUMNS = (("before", "copies paid once"), ("after", "copies paid once"), ("after", "clusters paid once"))


def row(of, names, rate):
    """Gains of one attack with so much noise: before, now, and with clusters counted once."""
    return [of[when][way][str(names)][str(rate)][0] for when, way in COLUMNS]


def tables(results):
    """The tables of docs/copies.md: the noise of one attack, and each attack at its best."""
    head = "| 5 names: before | copies | clusters | 10 names: before | copies | clusters |"
    lines = [f"| labels changed {head}", "|---|---|---|---|---|---|---|"]
    for rate in NOISE:
        of = {when: results[when]["4 labels"]["noisy copies only"] for when in ("before", "after")}
        cells = [f"{x:.2f}" for names in NAMES for x in row(of, names, rate)]
        lines.append(f"| {rate:.0%} | {' | '.join(cells)} |")
    lines += ["", f"| best noise of each attack {head}", "|---|---|---|---|---|---|---|"]
    for attack in ATTACKS:
        cells = []
        for names in NAMES:
            found = [
                row({when: results[when][kind][attack] for when in ("before", "after")}, names, rate)
                for kind in KINDS for rate in NOISE
            ]  # fmt: skip
            cells += [f"{x:.1f}" for x in np.max(found, 0)]
        lines.append(f"| {attack} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    when = sys.argv[1]
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    jobs = [(kind, attack) for kind in KINDS for attack in ATTACKS]
    with ProcessPoolExecutor(2) as pool:
        rows = pool.map(gains, *zip(*jobs, strict=True), [when == "after"] * len(jobs))
        table[when] = {kind: {} for kind in KINDS}
        for (kind, attack), found in zip(jobs, rows, strict=True):
            table[when][kind][attack] = found
            print(kind, attack, found, flush=True)
    RESULTS.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
