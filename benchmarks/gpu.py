"""Measure the torch kernels on a GPU, beside what the device can do at most, in one run.

    PYTHONPATH=src python3 benchmarks/gpu.py --out benchmarks/results/gpu.json

First the kernels are checked, integer for integer, against counts made one pair at a time with NumPy; nothing is
timed before. Every figure is the median of 5 runs after a warm-up, with the fastest and the slowest. "device" starts
with the labels in device memory and ends with the totals there; the copies from and to host memory stand apart.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import verax
from verax import kernels
from verax.kernels import Engine, _torch_device, _torch_fused, _torch_pairs, _torch_tasks

RUNS = 5
TORCH = Engine("torch")
TASKS, CLASSES = 10_000, 10
Ints = npt.NDArray[np.int64]
Sign = str | Ints


# The definitions, with NumPy.


def table(own: Ints, other: Ints, classes: int) -> Ints:
    """How often one says k while the other says l, where both answer."""
    both = (own >= 0) & (other >= 0)
    cells = own[both].astype(np.int64) * classes + other[both]
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def excess(counts: Ints) -> Ints:
    """n C - a b^T."""
    return counts.sum() * counts - np.outer(counts.sum(1), counts.sum(0))


def literal(own: Ints, other: Ints, classes: int, sign: Sign, half: Ints | None) -> list[list[int]]:
    """The totals of one pair, and its tasks, half by half."""
    split = isinstance(sign, str) and sign == "split"
    parts = [np.ones(len(own), dtype=bool)] if not split else [half == h for h in (0, 1)]
    counts = [table(own[p], other[p], classes) for p in parts]
    learned = counts[::-1]
    signs = [excess(c) > 0 for c in learned] if isinstance(sign, str) else [sign for _ in counts]
    return [[int((excess(c) * s).sum()) for c, s in zip(counts, signs, strict=True)], [int(c.sum()) for c in counts]]


def check(cases: int) -> int:
    """Random cases of every kind, each pair against its definition; how many pairs were compared."""
    compared, whole = 0, _torch_device.DEVICE_BYTES
    for seed in range(cases):
        rng = np.random.default_rng(seed)
        classes = (2, 3, 10, 40)[seed % 4]
        tasks = 50_000 if seed % 40 in (7, 10) else int(rng.integers(0, 400))
        away = (0.0, 0.2, 0.5)[seed % 3]
        rows, columns = (drawn(rng, int(rng.integers(1, 9)), tasks, classes, away) for _ in range(2))
        columns = rows if seed % 5 == 0 else columns
        half = rng.integers(0, 2, tasks)
        given = np.eye(classes, dtype=np.int64) if seed % 2 else rng.integers(0, 2, (classes, classes))
        _torch_device.DEVICE_BYTES = 2**18 if seed % 2 and tasks < 400 else whole  # tiles and chunks of few
        wanted = np.array([[table(own, other, classes) for other in columns] for own in rows])
        same(_torch_pairs.counts(rows, columns, classes, None, 1, Engine())[:, :, 0], wanted)
        for sign in (given, "plugin", "split"):
            found = np.stack(_torch_pairs.totals(rows, columns, classes, sign, half, Engine()), 2)
            same(found, [[literal(own, other, classes, sign, half) for other in columns] for own in rows])
            compared += len(rows) * len(columns)
        if tasks and not away:
            check_linear(rows, classes, given, np.arange(len(rows)))
    _torch_device.DEVICE_BYTES = whole
    return compared


def drawn(rng: np.random.Generator, agents: int, tasks: int, classes: int, away: float) -> npt.NDArray[np.int8]:
    """Agents that agree more often than chance, and leave out a share of the tasks."""
    labels = rng.integers(0, classes, (agents, tasks))
    labels = np.where(rng.random(labels.shape) < 0.4, rng.integers(0, classes, tasks), labels)
    return np.where(rng.random(labels.shape) < away, -1, labels).astype(np.int8)


def check_linear(labels: Any, classes: int, sign: Ints, agents: Ints) -> None:
    """M and a whole, own for some agents."""
    m, a = _torch_tasks.tallies(labels, classes, Engine())
    w = m @ sign.T
    own = _torch_tasks.weighed(labels, w, Engine())
    host = labels.cpu().numpy() if isinstance(labels, torch.Tensor) else labels
    same(m, np.stack([(host == k).sum(0) for k in range(classes)], 1))
    same(a[agents], np.stack([(host[agents] == k).sum(1) for k in range(classes)], 1))
    same(own[agents], [w[np.arange(len(w)), host[i]].sum() for i in agents])


def same(found: npt.ArrayLike, wanted: npt.ArrayLike) -> None:
    """Stop at the first integer that differs."""
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted).reshape(np.asarray(found).shape))


# Timing.


def seconds(work: Callable[[], object], repeat: int = 1) -> dict[str, float]:
    """Median, fastest and slowest time of one call; `repeat` calls a run where one is short."""
    work()
    taken = []
    for _ in range(RUNS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeat):
            work()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - start) / repeat)
    return {"median": statistics.median(taken), "min": min(taken), "max": max(taken)}


def peaks() -> dict[str, float]:
    """What the device does at most: products in Top/s, copies in GB/s."""
    sizes = (8192, 16384)
    found = {
        "int8 product, zeros and ones, Top/s": max(product_rate(n, "one-hot") for n in sizes),
        "int8 product, random bytes, Top/s": max(product_rate(n, "bytes") for n in sizes),
        "fp8 product, Top/s": max(product_rate(n, "fp8") for n in sizes),
    }
    block = torch.randint(0, 100, (2**31,), dtype=torch.int8, device="cuda")
    target = torch.empty_like(block)
    copied = seconds(lambda: target.copy_(block), 5)["median"]
    found["device copy, read and written, GB/s"] = 2e-9 * block.numel() / copied
    for name, pinned in (("pinned", True), ("pageable", False)):
        host = torch.ones(2**30, dtype=torch.int8).pin_memory() if pinned else torch.ones(2**30, dtype=torch.int8)
        moved = seconds(lambda host=host: target[: 2**30].copy_(host))["median"]
        found[f"host to device, {name}, GB/s"] = 1e-9 * 2**30 / moved
    return found


def product_rate(size: int, kind: str) -> float:
    """Operations a second, in Top/s, of one large square product; 0 where the device has no such product."""
    if kind == "bytes":
        x = torch.randint(-128, 128, (size, size), dtype=torch.int8, device="cuda")
    else:
        x = (torch.rand((size, size), device="cuda") < 0.1).to(torch.int8)
    one, eight = torch.ones((), device="cuda"), x.to(torch.float8_e4m3fn)
    work = {
        "fp8": lambda: torch._scaled_mm(eight, eight.T, one, one, out_dtype=torch.float32),
    }.get(kind, lambda: torch._int_mm(x, x.T))
    try:
        return 2e-12 * size**3 / seconds(work, 5)["median"]
    except RuntimeError:
        return 0.0


def reports(agents: int, tasks: int) -> torch.Tensor:
    """Agents that are right six times in ten, in device memory, made a panel at a time."""
    torch.manual_seed(agents)
    truth = torch.randint(0, CLASSES, (tasks,), dtype=torch.int8, device="cuda")
    labels = torch.empty((agents, tasks), dtype=torch.int8, device="cuda")
    for panel in labels.split(20_000):
        panel.random_(0, CLASSES)
        panel.copy_(torch.where(torch.rand(panel.shape, device="cuda") < 0.6, truth, panel))
    return labels


def all_pairs(agents: int, peak: float) -> dict[str, Any]:
    """Totals of all pairs of agents, by every kind of sign."""
    labels = reports(agents, TASKS)
    half = np.random.default_rng(0).integers(0, 2, TASKS)
    host = labels.cpu().numpy()
    found: dict[str, Any] = {"copy from host memory": seconds(lambda: torch.from_numpy(host).cuda())}
    cells = agents * (CLASSES - 1)
    for name, sign in (("plugin", "plugin"), ("split", "split"), ("identity", np.eye(CLASSES, dtype=np.int64))):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        total, tasks = _torch_pairs.device_totals(labels, labels, CLASSES, sign, half)
        extra = torch.cuda.max_memory_allocated() - before - total.nbytes - tasks.nbytes
        same_pairs(host, sign, half, total, tasks)
        del total, tasks
        taken = seconds(lambda sign=sign: _torch_pairs.device_totals(labels, labels, CLASSES, sign, half))
        found[name] = {"device": taken, "extra device memory, MB": extra / 1e6}
        if isinstance(sign, str):
            found[name]["share of the int8 peak"] = 1e-12 * cells**2 * TASKS / taken["median"] / peak
    given = verax.Reports.of(host)
    for name, options in (("median", {"over": "median"}), ("mean", {"rule": "ca"})):
        found[f"verax.score, {name}"] = seconds(lambda options=options: verax.score(given, backend="torch", **options))
    found["plugin"]["from host memory to totals in host memory"] = seconds(
        lambda: _torch_pairs.totals(host, host, CLASSES, "plugin", None, Engine())
    )
    return found


def same_pairs(host: Any, sign: Sign, half: Ints, total: torch.Tensor, tasks: torch.Tensor) -> None:
    """200 pairs of a large case against their definition."""
    rng = np.random.default_rng(1)
    for i, j in rng.integers(0, len(host), (200, 2)):
        same([total[i, j].tolist(), tasks[i, j].tolist()], literal(host[i], host[j], CLASSES, sign, half))


def linear(agents: int, tasks: int) -> dict[str, Any]:
    """The mean over peers of very many agents."""
    labels = reports(agents, tasks)
    check_linear(labels, CLASSES, np.eye(CLASSES, dtype=np.int64), np.random.default_rng(2).integers(0, agents, 200))
    host = labels.cpu().numpy()
    given = verax.Reports.of(host)
    return {
        "device": seconds(lambda: _torch_tasks.device_weighed(labels, _torch_tasks.device_tallies(labels, CLASSES)[0])),
        "copy from host memory": seconds(lambda: torch.from_numpy(host).cuda()),
        "from host memory to results in host memory": seconds(
            lambda: kernels.weighed(host, kernels.tallies(host, CLASSES, TORCH)[0], TORCH)
        ),
        "verax.score": seconds(lambda: verax.score(given, backend="torch")),
    }


def lines(name: str, found: Any) -> list[str]:
    """The figures of a nested table, one a line."""
    if isinstance(found, dict) and set(found) == {"median", "min", "max"}:
        return [f"{name:84}{1e3 * found['median']:10.2f} ms   ({1e3 * found['min']:.2f} to {1e3 * found['max']:.2f})"]
    if isinstance(found, dict):
        return [line for key, value in found.items() for line in lines(f"{name}, {key}" if name else key, value)]
    return [f"{name:84}{found:10.3f}" if isinstance(found, float) else f"{name:84}{found}"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=120)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device is here; run this where there is one")
    found: dict[str, Any] = {
        "command": " ".join(["python3", *sys.argv]),
        "machine": {
            "device": torch.cuda.get_device_name(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "triton": _torch_fused.triton.__version__ if _torch_fused.triton else None,
            "numpy": np.__version__,
            "int8 products": _torch_device.multiplies_int8("cuda"),
            "fused kernels": _torch_fused.run_on("cuda"),
        },
    }
    start = time.perf_counter()
    found["pairs checked"] = check(options.cases)
    fused, _torch_fused.run_on = _torch_fused.run_on, lambda device: False
    found["pairs checked without fused kernels"] = check(options.cases // 3)
    _torch_fused.run_on = fused
    found["checks, s"] = time.perf_counter() - start
    found["peaks"] = peaks()
    peak = max(v for k, v in found["peaks"].items() if k.startswith("int8"))
    found["all pairs, 1,000 agents x 10,000 tasks, 10 labels"] = all_pairs(1_000, peak)
    found["all pairs, 10,000 agents x 10,000 tasks, 10 labels"] = all_pairs(10_000, peak)
    found["mean over peers, 1,000,000 agents x 1,000 tasks, 10 labels"] = linear(1_000_000, 1_000)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(lines("", found)))


if __name__ == "__main__":
    main()
