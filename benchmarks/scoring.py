"""Measure scoring beside what people use today and beside what the machine can do, in one run.

    python benchmarks/scoring.py [--case NAME ...] [--runs 5] [--patience 600] [--out benchmarks/results/scoring.json]

One thread everywhere, and two for numba in rows of their own. Every figure is the median of the runs with the least
and the most, after a run that is not counted; short calls are repeated to fill a tenth of a second. What would take
longer than 20 seconds in today's ways is timed on some of the pairs and scaled up in proportion, and marked `~`. Totals
are checked against np.bincount before they are timed. Beside each figure stands how many cores other processes used
meanwhile; with --patience a figure that they disturbed is taken again, for so many seconds at most. With --case and a
file that is there, the other cases in the file stay as they are.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.update({f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")})

import ceilings
import numpy as np
import today

import verax
from verax import kernels
from verax.kernels import Engine

HERE = Path(__file__).parent
LIMIT, SUBSET = 20.0, 2.0  # seconds: beyond the one a way of today is timed on the other's worth of pairs
READ_PASSES = 20
QUIET = 0.1  # cores that other processes may use
Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """So many agents, tasks and classes, and what is asked of them."""

    name: str
    kind: str  # pairs: every pair, learned sign; linear: mean over peers, identity sign; rows: the rule ce
    agents: int
    tasks: int
    classes: int

    @property
    def pairs(self) -> int:
        return self.agents * (self.agents - 1) // 2


CASES = (
    Case("two", "pairs", 2, 10**7, 10),
    Case("fifty", "pairs", 50, 10**4, 10),
    Case("thousand", "pairs", 1000, 10**4, 10),
    Case("binary", "pairs", 200, 10**5, 2),
    Case("many-labels", "pairs", 100, 10**4, 100),
    Case("million", "linear", 10**6, 10**3, 10),
    Case("ce", "rows", 200, 10**4, 10),
)
GROWTH = {  # by what: one case, and the sizes it takes
    "agents": (Case("growth", "pairs", 0, 1000, 10), (100, 300, 1000, 3000, 10_000)),
    "tasks": (Case("growth", "pairs", 100, 0, 10), (100, 1000, 10_000, 100_000, 1_000_000)),
    "classes": (Case("growth", "pairs", 100, 10_000, 0), (2, 4, 8, 10, 16, 32, 64, 100, 200)),
    "agents, mean over peers": (Case("growth", "linear", 0, 1000, 10), (10**3, 10**4, 10**5, 10**6)),
}
MEMORY = (
    ("thousand", "totals", "numba"), ("thousand", "totals", "numpy"), ("thousand", "score", "numba"),
    ("thousand", "score", "numpy"), ("two", "totals", "numba"), ("two", "totals", "numpy"),
    ("many-labels", "totals", "numba"), ("many-labels", "totals", "numpy"), ("million", "scores", "numba"),
    ("million", "scores", "numpy"), ("million", "with errors", "numba"), ("million", "with errors", "numpy"),
)  # fmt: skip


@dataclass
class Timing:
    """One way of doing one case."""

    way: str
    gives: str
    threads: int = 1
    median_s: float | None = None
    least_s: float | None = None
    most_s: float | None = None
    runs: int = 0
    scaled: bool = False
    missing: str | None = None
    ceiling: str | None = None
    delivered: float | None = None  # fraction of the ceiling, by what the caller asked for
    done: float | None = None  # the same by what was done for it
    others: float | None = None  # cores that other processes used meanwhile

    def took(self, taken: list[float], others: float, scaled: bool = False) -> Timing:
        middle, runs = statistics.median(taken), len(taken)
        return replace(
            self, median_s=middle, least_s=min(taken), most_s=max(taken), runs=runs, scaled=scaled, others=others
        )


@dataclass
class Found:
    """Everything one run measured, as it stands in the JSON."""

    machine: dict[str, Any]
    versions: dict[str, str]
    runs: int
    ceilings: dict[str, float] = field(default_factory=dict)
    compiling: dict[str, float] = field(default_factory=dict)
    cases: list[dict[str, Any]] = field(default_factory=list)
    growth: list[dict[str, Any]] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)


# The reports.


def reports_of(case: Case) -> np.ndarray[Any, Any]:
    """Labels (K, N) of agents that are right five times in six, made a few agents at a time."""
    rng = np.random.default_rng(0)
    kind = np.int8 if case.classes <= 127 else np.int16
    truth = rng.integers(0, case.classes, case.tasks, dtype=kind)
    labels = np.empty((case.agents, case.tasks), dtype=kind)
    for i in range(0, case.agents, step := max(1, 10**7 // case.tasks)):
        size = labels[i : i + step].shape
        guess = rng.integers(0, case.classes, size, dtype=kind)
        labels[i : i + step] = np.where(rng.integers(0, 6, size, dtype=np.uint8) > 0, truth, guess)
    return labels


def rows_of(case: Case) -> np.ndarray[Any, Any]:
    """Probability rows (K, N, L) that lean to those labels."""
    labels = reports_of(case)
    rows = np.full((*labels.shape, case.classes), 0.2 / (case.classes - 1))
    np.put_along_axis(rows, labels.astype(np.int64)[..., None], 0.8, 2)
    return rows


# Timing.


def busy() -> tuple[float, float, float]:
    """Seconds on the clock, of work on all cores (and of cores lent to other machines), and of our own."""
    ticks = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    used = resource.getrusage(resource.RUSAGE_SELF)
    own = used.ru_utime + used.ru_stime
    return time.perf_counter(), (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK"), own


def others(before: tuple[float, float, float]) -> float:
    """How many cores other processes have used since."""
    wall, work, own = (now - then for now, then in zip(busy(), before, strict=True))
    return max(0.0, (work - own) / wall)


@dataclass
class Clock:
    """Takes figures, and takes them again while other processes disturb them."""

    runs: int
    patience: float = 0.0

    def take(self, run: Callable[[], float], runs: int | None = None) -> tuple[list[float], float]:
        """What so many runs took, and how many cores others used: the least disturbed of several tries."""
        best, end = ([0.0], np.inf), time.perf_counter() + self.patience
        while best[1] > QUIET:
            self.wait(end)
            before = busy()
            taken = [run() for _ in range(runs or self.runs)]
            best = min(best, (taken, others(before)), key=lambda found: found[1])
            if time.perf_counter() >= end:
                break
        return best

    def wait(self, end: float) -> None:
        """Until other processes are idle, or the time is up."""
        while time.perf_counter() < end:
            before = busy()
            time.sleep(1)
            if others(before) <= QUIET:
                return


def seconds(call: Call, times: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def timed(timing: Timing, call: Call, clock: Clock, check: Callable[[Any], None] | None = None) -> Timing:
    """A way of ours: the whole work, checked once and timed so many times; once only where it is long."""
    start = time.perf_counter()
    try:
        result = call()
    except Exception as error:
        return replace(timing, missing=f"{type(error).__name__}: {error}")
    if check is not None:
        check(result)
    del result
    if time.perf_counter() - start > LIMIT:
        return timing.took(*clock.take(lambda: seconds(call), 1))
    times = max(1, int(0.1 / seconds(call)))
    return timing.took(*clock.take(lambda: seconds(call, times)))


def scaled(timing: Timing, work: today.Work, total: int, clock: Clock, limit: float = LIMIT) -> Timing:
    """A way of today: all of the work where it fits the limit, else some of it and in proportion."""

    def each(units: int) -> tuple[float, int]:
        start = time.perf_counter()
        done = work(units)
        return time.perf_counter() - start, done

    units, spent, done = 1, 0.0, 0
    while spent < 0.2 and units <= total:
        spent, done = each(units)
        units *= 2 if spent > 0.02 else 8
    units = total if spent / done * total <= limit else max(1, int(min(limit, SUBSET) / spent * done))
    done = each(units)[1]

    def run() -> float:
        spent, done = each(units)
        return spent * total / done

    return timing.took(*clock.take(run), done < total)


# The ways.


def totals(labels: Any, classes: int, backend: str, threads: int = 1) -> Call:
    """Labels to the totals of every pair; two agents are one pair."""
    rows, columns = (labels[:1], labels[1:]) if len(labels) == 2 else (labels, labels)
    engine = Engine(backend, threads)
    return lambda: kernels.totals(rows, columns, classes, "plugin", None, engine)


def counts(labels: Any, classes: int, backend: str) -> Call:
    """The tables of every pair, a block of rows at a time where all of them would be more than 8 MB."""
    height, engine = max(1, 2**23 // (len(labels) * classes**2 * 8)), Engine(backend, 1)
    if len(labels) == 2:
        return lambda: kernels.counts(labels[:1], labels[1:], classes, None, 1, engine)
    if height >= len(labels):
        return lambda: kernels.counts(labels, labels, classes, None, 1, engine)

    def call() -> None:
        for i in range(0, len(labels), height):
            kernels.counts(labels[i : i + height], labels[i:], classes, None, 1, engine)

    return call


def score(reports: verax.Reports, backend: str, threads: int = 1, **options: Any) -> Call:
    """What a user calls: checks, totals, medians and standard errors, and the objects that hold them."""
    return lambda: verax.score(reports, backend=backend, threads=threads, **options)


def linear(labels: Any, classes: int, backend: str, errors: bool) -> Call:
    """Scores of the mean over peers, identity sign, as arrays; with their standard errors or without."""
    engine, sign, (agents, tasks) = Engine(backend, 1), np.eye(classes), labels.shape

    def call() -> tuple[Any, Any]:
        said, held = kernels.tallies(labels, classes, engine)
        rest = held.sum(0) - held
        own = kernels.weighed(labels, said, engine) - tasks
        scores = (tasks * own - (held * rest).sum(1)) / (tasks * (tasks - 1) * (agents - 1))
        if not errors:
            return scores, None
        weight = said.astype(np.float64)
        _, square = kernels.spread(labels, weight, weight, *kernels.centre(tasks, held, rest, sign, True), engine)
        return scores, np.sqrt(square) / (tasks * (agents - 1))

    return call


def as_counted(labels: Any, classes: int) -> Callable[[Any], None]:
    """Twenty pairs of the totals as np.bincount has them, or no figure at all."""

    def check(found: tuple[Any, Any]) -> None:
        total, tasks = found
        rng = np.random.default_rng(1)
        for _ in range(20):
            i, j = rng.integers(0, total.shape[0]), rng.integers(0, total.shape[1])
            expected = today.excess(today.counted(labels[i], labels[j + (len(labels) == 2)], classes))
            if (int(total[i, j, 0]), int(tasks[i, j, 0])) != (expected, labels.shape[1]):
                raise SystemExit(f"the total of {i} beside {j} is {total[i, j, 0]}, and np.bincount gives {expected}")

    return check


# A case: its reports, and every way in turn.


def pairs(case: Case, clock: Clock) -> Iterator[Timing]:
    """Every pair with a learned sign: totals, tables alone, end to end, and today's ways."""
    labels, size = reports_of(case), case.classes
    check = as_counted(labels, size)
    for backend, threads in (("numba", 1), ("numba", 2), ("numpy", 1), ("torch", 1)):
        call = totals(labels, size, backend, threads)
        yield timed(Timing(f"verax {backend}", "totals", threads), call, clock, check)
    for backend in ("numba", "numpy"):
        yield timed(Timing(f"verax {backend}", "tables"), counts(labels, size, backend), clock)
    for gives, way in (("tables", today.bincount_counts), ("tables, dropped", today.bincount_dropped)):
        yield scaled(Timing("np.bincount a pair", gives), way(labels, size), case.pairs, clock)
    for name, way in today.PAIRS.items():
        yield scaled(Timing(name, "totals"), way(labels, size), case.pairs, clock)
    total = case.pairs * case.tasks
    yield scaled(Timing("Algorithm 1 in Python", "totals"), today.literal(labels, size), total, clock)
    reports, options = verax.Reports.of(labels), {"rule": "ca", "sign": "plugin", "over": "median"}
    for backend, threads in (("numba", 1), ("numba", 2), ("numpy", 1)):
        yield timed(Timing(f"verax {backend}", "score", threads), score(reports, backend, threads, **options), clock)
        call = score(reports, backend, threads, rule="ca")
        yield timed(Timing(f"verax {backend}", "mean", threads), call, clock)


def mean_over_peers(case: Case, clock: Clock) -> Iterator[Timing]:
    """A mean over peers: arrays, end to end, and all pairs in today's ways."""
    labels, size = reports_of(case), case.classes
    for errors in (False, True):
        for backend in ("numba", "numpy"):
            gives = "with errors" if errors else "scores"
            yield timed(Timing(f"verax {backend}", gives), linear(labels, size, backend, errors), clock)
    few = labels[: min(200, len(labels))]
    for name, way in today.PAIRS.items():
        yield scaled(Timing(name, "scores"), way(few, size), case.pairs, clock)
    total = case.pairs * case.tasks
    yield scaled(Timing("Algorithm 1 in Python", "scores"), today.literal(few, size), total, clock)
    reports = verax.Reports.of(labels)
    del labels
    for backend in ("numba", "numpy"):
        yield timed(Timing(f"verax {backend}", "score"), score(reports, backend), clock)


def rows(case: Case, clock: Clock) -> Iterator[Timing]:
    """Probability rows scored by `ce`, mean over peers: end to end, and today's ways."""
    given = rows_of(case)
    reports = verax.Reports.of(probabilities=given)
    for backend in ("numba", "numpy"):
        yield timed(Timing(f"verax {backend}", "score"), score(reports, backend, rule="ce"), clock)
    for name, way in today.ROWS.items():
        yield scaled(Timing(name, "scores"), way(given, reports.labels), 2 * case.pairs, clock)


KINDS = {"pairs": pairs, "linear": mean_over_peers, "rows": rows}


def bounded(case: Case, timing: Timing, top: dict[str, float]) -> Timing:
    """The timing beside the ceiling that bounds it, by what was asked for and by what was done."""
    product = case.kind == "pairs" and "torch" in timing.way
    if timing.median_s is None or not (timing.way.startswith("verax") or product):
        return timing
    products = case.pairs * case.tasks
    asked, done = products * case.classes**2, products * (case.classes - 1) ** 2
    if case.kind != "pairs" or case.agents == 2:
        asked = done = case.agents * case.tasks * (8 * case.classes if case.kind == "rows" else 1)
        name = "read_labels_bytes_per_s"
    elif "numba" in timing.way and case.classes <= 20:
        name = "popcount_bit_mac_per_s"
    elif "one-hot" not in timing.way and timing.way != "verax torch" and case.classes > 20:
        name, asked, done = "increments_per_s", products, products
    else:
        name, asked, done = "float32_flop_per_s", 2 * asked, 2 * done
    spent = timing.median_s * top[name] * timing.threads
    return replace(timing, ceiling=name, delivered=asked / spent, done=done / spent)


def measure(case: Case, clock: Clock, top: dict[str, float]) -> Iterator[dict[str, Any]]:
    """One case, told as it goes: what is known of it after every way."""
    load, when = os.getloadavg()[0], time.strftime("%Y-%m-%d %H:%M:%S")
    print(f"\n{case.name}: {case.agents:,} agents x {case.tasks:,} tasks x {case.classes} classes (load {load:.2f})")
    here = asdict(case) | {"when": when, "load": load, "ways": []}
    if case.kind == "linear" or case.agents == 2:
        here["read_pass_s"], here["read_words_pass_s"] = ceilings.pass_over(reports_of(case))
        print(f"  one read pass {here['read_pass_s']:.4g} s, as 64-bit words {here['read_words_pass_s']:.4g} s")
    for timing in KINDS[case.kind](case, clock):
        found = bounded(case, timing, top)
        here["ways"].append(asdict(found))
        print(line(found), flush=True)
        gc.collect()
        yield here


def joined(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """A case with its new figures, and the old ones of ways that were not measured again yet."""

    def key(way: dict[str, Any]) -> tuple[Any, ...]:
        return way["way"], way["gives"], way["threads"]

    again = {key(way) for way in new["ways"]}
    rest = [way for way in old["ways"] if key(way) not in again] if old else []
    return new | {"ways": [*new["ways"], *rest]}


def line(t: Timing) -> str:
    name = f"  {t.way}, {t.gives}" + (f", {t.threads} threads" if t.threads > 1 else "")
    if t.median_s is None:
        return f"{name:50}{'-':>11}   {t.missing}"
    bound = f"{t.delivered:8.2f} of {t.ceiling}" if t.delivered is not None else ""
    disturbed = f"  (others used {t.others:.1f} cores)" if (t.others or 0) > QUIET else ""
    figures = f"{'~' if t.scaled else '':>1}{t.median_s:10.4g} s  {t.least_s:9.4g}..{t.most_s:<9.4g}"
    return f"{name:50}{figures}{bound}{disturbed}"


# Growth, memory, compiling.


def growth(clock: Clock, names: list[str]) -> Iterator[dict[str, Any]]:
    """Time against agents, tasks and classes: every series, or those named."""
    for by, (case, sizes) in GROWTH.items():
        if names and "growth" not in names and _series(by) not in names:
            continue
        print(f"\ngrowth by {by}")
        what = by.split(",")[0]
        lines: dict[str, list[dict[str, Any]]] = {}
        for size in sizes:
            at = replace(case, **{what: size})
            labels = reports_of(at)
            for timing in _growing(at, labels, replace(clock, runs=3)):
                lines.setdefault(timing.way, []).append({"at": size} | asdict(timing))
                print(f"{size:>9,}{line(timing)}", flush=True)
            del labels
        yield {"by": by, "case": asdict(case), "lines": lines}


def _series(by: str) -> str:
    """What a series is called on the command line."""
    return "growth-" + by.split()[-1]


def _growing(case: Case, labels: Any, clock: Clock) -> Iterator[Timing]:
    if case.kind == "linear":
        for backend in ("numba", "numpy"):
            for errors in (False, True):
                way = Timing(f"verax {backend}{', with errors' if errors else ''}", "scores")
                yield timed(way, linear(labels, case.classes, backend, errors), clock)
        return
    for backend in ("numba", "numpy") if case.agents <= 3000 else ("numba",):
        yield timed(Timing(f"verax {backend}", "totals"), totals(labels, case.classes, backend), clock)
    for name in ("np.bincount a pair", "sklearn confusion_matrix a pair"):
        yield scaled(Timing(name, "totals"), today.PAIRS[name](labels, case.classes), case.pairs, clock, 2.0)


def child(*words: str, **environment: str) -> Any:
    """The JSON that a fresh process of this program prints."""
    command = [sys.executable, __file__, "--child", *words]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {"missing": done.stderr.strip().splitlines()[-1]}


def memory() -> Iterator[dict[str, Any]]:
    """How far resident memory rises during a call, in a fresh process."""
    print("\nextra memory, the result counted with it")
    for case, gives, backend in MEMORY:
        found = {"case": case, "gives": gives, "way": f"verax {backend}"} | child("memory", case, gives, backend)
        print(f"  {case:12}{gives:12}{backend:8}" + (found.get("missing") or f"{found['extra_bytes'] / 1e6:9.1f} MB"))
        yield found


def risen(case: Case, gives: str, backend: str) -> dict[str, int]:
    """Peak resident memory during a call above what it was before; the first call of the process is not counted."""
    labels = reports_of(case)
    if gives == "totals":
        call = totals(labels, case.classes, backend)
    elif gives == "score":
        call = score(verax.Reports.of(labels), backend, rule="ca", sign="plugin", over="median")
    else:
        call = linear(labels, case.classes, backend, gives == "with errors")
    call()
    gc.collect()
    _give_back()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    result = call()
    size = sum(x.nbytes for x in result if x is not None) if isinstance(result, tuple) else 0
    return {"extra_bytes": _status("VmHWM") - before, "result_bytes": size}


def _give_back() -> None:
    """Free memory that the allocator keeps, so that the next call has to ask for its own."""
    import ctypes

    ctypes.CDLL(None).malloc_trim(0)


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(x for x in text.splitlines() if x.startswith(name)).split()[1])


def compiling() -> dict[str, float]:
    """Seconds of the first call of a process: never compiled before, and compiled in an earlier process."""
    command = "import numpy, time; s = time.perf_counter(); import numba; print(time.perf_counter() - s)"
    found = {"import numba": float(subprocess.check_output([sys.executable, "-c", command]))}
    with tempfile.TemporaryDirectory() as folder:
        for when in ("first process", "later process"):
            for what, taken in child("first-call", NUMBA_CACHE_DIR=folder).items():
                found[f"{what}, {when}"] = taken
    for what, taken in found.items():
        print(f"  {what}: {taken if isinstance(taken, str) else f'{taken:.2f} s'}")
    return found


def first_call() -> dict[str, float]:
    """The first call of what is compiled, on next to no data."""
    found = {}
    labels = reports_of(Case("small", "pairs", 20, 1000, 10))
    calls = {"all pairs": totals(labels, 10, "numba"), "mean over peers": linear(labels, 10, "numba", True)}
    for name, call in calls.items():
        try:
            found[name] = seconds(call)
        except Exception as error:
            print(f"{name}: {error}", file=sys.stderr)
    return found


# What was to be shown.


def checks(found: Found) -> Iterator[dict[str, Any]]:
    """The figures that matter, each beside its target."""

    def at(case: str, way: str, gives: str) -> dict[str, Any]:
        ways = next((c["ways"] for c in found.cases if c["name"] == case), [])
        return next((w for w in ways if (w["way"], w["gives"], w["threads"]) == (way, gives, 1)), {})

    def told(what: str, target: str, value: float | None, reached: bool, form: str = ".2f") -> dict[str, Any]:
        return {"what": what, "target": target, "found": value, "reached": reached, "form": form}

    def ratio(above: dict[str, Any], below: dict[str, Any]) -> float | None:
        a, b = above.get("median_s"), below.get("median_s")
        return a / b if a and b else None

    fast, whole = at("thousand", "verax numba", "totals"), at("thousand", "verax numba", "score")
    for name, way in (("totals", fast), ("verax.score", whole)):
        share = way.get("delivered")
        yield told(f"1,000 agents, numba, {name}: share of the popcount ceiling", ">= 0.5", share, (share or 0) >= 0.5)
        times = ratio(at("thousand", "sklearn confusion_matrix a pair", "totals"), way)
        reached = (times or 0) >= 300
        yield told(f"1,000 agents, numba, {name}: times as fast as sklearn", ">= 300", times, reached, ".0f")
    for m in found.memory:
        if m["case"] == "thousand" and m["way"] == "verax numba":
            mb = m["extra_bytes"] / 2**20 if "extra_bytes" in m else None
            what = f"1,000 agents, numba, {m['gives']}: extra memory in MiB"
            yield told(what, "< 64", mb, mb is not None and mb < 64, ".1f")
    for case in found.cases:
        if case["kind"] == "pairs":
            for gives in ("totals", "tables"):
                ours = at(case["name"], "verax numpy", gives)
                times = ratio(at(case["name"], "np.bincount a pair", gives), ours)
                what = f"{case['name']}, NumPy, {gives}: times as fast as np.bincount a pair"
                target = 2.5 if case["name"] == "two" else 1.0
                yield told(what, f">= {target}", times, (times or 0) >= target)
        if "read_pass_s" in case:
            for gives in ("totals",) if case["kind"] == "pairs" else ("scores", "with errors"):
                taken = at(case["name"], "verax numba", gives).get("median_s")
                for name, unit in (("read passes", "read_pass_s"), ("passes as 64-bit words", "read_words_pass_s")):
                    passes = taken / case[unit] if taken else None
                    what = f"{case['name']}, numba, {gives}: {name}"
                    reached = passes is not None and passes <= READ_PASSES
                    yield told(what, f"<= {READ_PASSES}", passes, reached, ".1f")
    for g in found.growth:
        for way, points in g["lines"].items() if "mean over peers" in g["by"] else ():
            each = [p["median_s"] / p["at"] for p in points if p["median_s"]]
            spread = max(each) / min(each) if each else None
            what = f"mean over peers, {way}: dearest agent over cheapest, 10^3 to 10^6 agents"
            yield told(what, "<= 1.5", spread, spread is not None and spread <= 1.5)


def machine() -> dict[str, Any]:
    """Where this is measured, and how busy the machine was before."""
    about = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((x.split(":")[1].strip() for x in about if x.startswith("model name")), platform.machine())
    return {
        "cpu": model, "cores": os.cpu_count(), "load_at_start": os.getloadavg()[0], "system": platform.platform(),
        "when": time.strftime("%Y-%m-%d %H:%M:%S"), "command": "python benchmarks/scoring.py " + " ".join(sys.argv[1:]),
    }  # fmt: skip


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "verax": verax.__version__}
    for name in ("numpy", "numba", "scipy", "scikit-learn", "torch"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def kept(path: Path | None, names: list[str]) -> dict[str, Any]:
    """What a file holds already, where only some cases are measured again."""
    return json.loads(path.read_text()) if names and path is not None and path.exists() else {}


def highest(clock: Clock, before: dict[str, float]) -> dict[str, float]:
    """The ceilings, never lower than they were found before; told as they are."""
    clock.wait(time.perf_counter() + clock.patience)
    found = {name: max(value, before.get(name, 0.0)) for name, value in ceilings.measured().items()}
    for name, value in found.items():
        print(f"{name:28}{value / 1e9:10.1f} G")
    return found


def run(names: list[str], clock: Clock, out: Path | None) -> Found:
    """The cases asked for, or all of them with growth and memory; written as it goes."""
    found = Found(**kept(out, names) | {"machine": machine(), "versions": versions(), "runs": clock.runs})
    print(json.dumps(found.machine | found.versions, indent=1))
    found.ceilings = highest(clock, found.ceilings)

    def keep() -> None:
        found.checks = list(checks(found))
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(asdict(found), indent=1) + "\n")

    if not names or "compiling" in names:
        found.compiling = compiling()
    for case in CASES:
        if not names or case.name in names:
            before = {c["name"]: c for c in found.cases}
            for here in measure(case, clock, found.ceilings):
                there = before | {case.name: joined(before.get(case.name), here)}
                found.cases = [there[c.name] for c in CASES if c.name in there]
                keep()
    for grown in growth(clock, names):
        there = {g["by"]: g for g in found.growth} | {grown["by"]: grown}
        found.growth = [there[by] for by in GROWTH if by in there]
        keep()
    if not names or "memory" in names:
        found.memory = list(memory())
    found.machine["load_at_end"] = os.getloadavg()[0]
    keep()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*(c.name for c in CASES), "growth", *map(_series, GROWTH), "memory", "compiling"]
    parser.add_argument("--case", nargs="*", default=[], choices=known, help="only these")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--patience", type=float, default=0.0, help="seconds a figure may wait for a quiet machine")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        what, *words = given.child
        cases = {c.name: c for c in CASES}
        print(json.dumps(first_call() if what == "first-call" else risen(cases[words[0]], *words[1:])))
        return
    found = run(given.case, Clock(given.runs, given.patience), given.out)
    print("\nwhat was to be shown")
    for check in found.checks:
        value = "-" if check["found"] is None else format(check["found"], check["form"])
        verdict = "not measured" if check["found"] is None else "PASS" if check["reached"] else "not reached"
        print(f"  {check['what']:76}{value:>9}  {check['target']:>8}  {verdict}")


if __name__ == "__main__":
    main()
