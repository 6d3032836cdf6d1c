"""What this machine can do on one core, whatever the program: the ceilings that figures are held against.

Popcount: words ANDed and their bits counted, from a buffer that stays in the first-level cache.
Multiply-add: NumPy's own matrix product. Reading: every label of a gigabyte added up. Increments: a histogram
whose tables and input stay in the first-level cache. The best of several forms and runs is the ceiling.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

GIGABYTE = 10**9


def best(call: Callable[[], Any], runs: int = 7) -> float:
    """The shortest of several runs, after one that is not counted."""
    call()
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _ones(_: Any, word: Any) -> Any:
    """How many bits of a word are set, as the processor counts them."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(args[0].type, [args[0].type])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.ctpop.i64"), args)

    return types.uint64(types.uint64), code


ones = intrinsic(_ones)


@njit
def _three_by_three(a, b, times):  # type: ignore[no-untyped-def]
    """Three planes met with three, nine sums in registers."""
    total = np.uint64(0)
    x, y, z, u, v, w = a[0], a[1], a[2], b[0], b[1], b[2]
    for _ in range(times):
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = s8 = np.uint64(0)
        for n in range(u.size):
            s0 += ones(x[n] & u[n])
            s1 += ones(x[n] & v[n])
            s2 += ones(x[n] & w[n])
            s3 += ones(y[n] & u[n])
            s4 += ones(y[n] & v[n])
            s5 += ones(y[n] & w[n])
            s6 += ones(z[n] & u[n])
            s7 += ones(z[n] & v[n])
            s8 += ones(z[n] & w[n])
        total += s0 ^ s1 ^ s2 ^ s3 ^ s4 ^ s5 ^ s6 ^ s7 ^ s8
    return total


@njit
def _six_by_one(a, b, times):  # type: ignore[no-untyped-def]
    """Six words that stay in registers met with one plane: nothing but popcounts can hold it up."""
    total = np.uint64(0)
    u, v, w, x, y, z = a[0, :6]
    row = b.ravel()
    for _ in range(times):
        s0 = s1 = s2 = s3 = s4 = s5 = np.uint64(0)
        for n in range(row.size):
            s0 += ones(u & row[n])
            s1 += ones(v & row[n])
            s2 += ones(w & row[n])
            s3 += ones(x & row[n])
            s4 += ones(y & row[n])
            s5 += ones(z & row[n])
        total += s0 ^ s1 ^ s2 ^ s3 ^ s4 ^ s5
    return total


def popcount() -> float:
    """Bit multiply-adds a second: bits ANDed and counted."""
    rng = np.random.default_rng(0)
    found = []
    for words in (256, 512, 680):  # 3 planes and 3 planes: 12 to 32 KB
        a, b = (rng.integers(0, 2**63, (3, words), dtype=np.uint64) for _ in "ab")
        for form, planes in ((_three_by_three, 9), (_six_by_one, 18)):
            times = int(2e11 / (64 * words * planes))
            found.append(64 * words * planes * times / best(lambda f=form, x=a, y=b, t=times: f(x, y, t)))
    return max(found)


def multiply_add(kind: type[np.floating[Any]], size: int = 2048) -> float:
    """Floating-point operations a second of NumPy's matrix product, a multiply-add being two."""
    a = np.random.default_rng(0).random((size, size)).astype(kind)
    return 2 * size**3 / best(lambda: a @ a)


@njit
def _added(values):  # type: ignore[no-untyped-def]
    total = 0
    for n in range(values.size):
        total += values[n]
    return total


def pass_over(labels: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Seconds to read these labels once and add every one; and to add the same bytes as 64-bit words."""
    flat = labels.reshape(-1)
    words = flat[: flat.size // 8 * 8].view(np.int64)
    return best(lambda: _added(flat)), best(lambda: _added(words))


@njit
def _histogram(codes, tables, times):  # type: ignore[no-untyped-def]
    """Four tables in turn, so that equal neighbours need not wait for each other."""
    one = np.uint32(1)
    for _ in range(times):
        for n in range(0, codes.size, 4):
            tables[0, codes[n]] += one
            tables[1, codes[n + 1]] += one
            tables[2, codes[n + 2]] += one
            tables[3, codes[n + 3]] += one


def increments() -> float:
    """Cells counted up a second."""
    codes = np.random.default_rng(0).integers(0, 1024, 4096).astype(np.uint16)
    tables = np.zeros((4, 1024), dtype=np.uint32)
    return 4096 * 20_000 / best(lambda: _histogram(codes, tables, 20_000))


def measured() -> dict[str, float]:
    """Every ceiling, in operations or bytes a second."""
    gigabyte = np.ones(GIGABYTE, dtype=np.int8)
    labels, words = pass_over(gigabyte)
    return {
        "popcount_bit_mac_per_s": popcount(),
        "float32_flop_per_s": multiply_add(np.float32),
        "float64_flop_per_s": multiply_add(np.float64),
        "read_labels_bytes_per_s": GIGABYTE / labels,
        "read_words_bytes_per_s": GIGABYTE / words,
        "increments_per_s": increments(),
    }


if __name__ == "__main__":
    for name, value in measured().items():
        print(f"{name:28}{value / 1e9:12.2f} G")
