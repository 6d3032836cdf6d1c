"""Steps of the torch kernels as single kernels for a GPU. Triton, which comes with torch for CUDA, compiles them.

Without it torch does them one by one, and the results are the same; on the CPU nothing here is run.
"""
# fmt: off

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

triton: Any = importlib.import_module("triton") if importlib.util.find_spec("triton") else None
tl: Any = importlib.import_module("triton.language") if triton else None
if TYPE_CHECKING:
    constexpr = Any
else:
    constexpr = tl.constexpr if triton else None

WIDEST = 512  # labels that a fused total takes


@functools.cache
def run_on(device: str) -> bool:
    """Whether these kernels run here: it needs a GPU, and a C compiler for the first launch."""
    if device == "cpu" or triton is None:
        return False
    try:
        tally_rows(torch.zeros((1, 1), dtype=torch.int8, device=device), 2)
    except Exception:  # whatever Triton lacks, torch alone gives the same integers
        return False
    return True


def _compiled_once(*plain: str) -> Callable[[Any], Any]:
    """Compile with Triton, once for all values of the plain arguments."""
    return lambda kernel: triton.jit(kernel, do_not_specialize=plain) if triton else kernel


def _next_power(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


def make_planes(made: Tensor, labels: Tensor, table: Tensor) -> None:
    """Fill made (P, agents, tasks), any strides, padding included."""
    planes, agents, tasks = made.shape
    _made_kernel[agents, -(-tasks // 1024)](
        made, labels, table, *labels.shape, tasks, *made.stride()[:2], *labels.stride(), table.shape[1],
        planes, block=1024,
    )


@_compiled_once("agents", "tasks", "padded", "by_plane", "by_row", "by_agent", "width", "planes")
def _made_kernel(  # type: ignore[no-untyped-def]
    made, labels, table, agents, tasks, padded, by_plane, by_row, by_agent, by_task, width, planes, block: constexpr
) -> None:
    i = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * block + tl.arange(0, block)
    index = tl.load(labels + i * by_agent + n * by_task, (i < agents) & (n < tasks), -1).to(tl.int32) + 1
    for p in range(planes):
        tl.store(made + p * by_plane + i * by_row + n, tl.load(table + p * width + index), n < padded)


def fold_signs(parts: Sequence[Any], tasks: int) -> Tensor:
    """`_torch_pairs._add_where_positive`, every pair in one go."""
    one, two = parts[0], parts[-1]
    labels, height, _, width = one.cells.shape
    total = torch.empty((height, width, len(parts)), dtype=torch.int64, device=one.n.device)
    wide = max(2, _next_power(labels))
    word = tl.int32 if tasks**2 < 2**31 else tl.int64  # nothing summed here exceeds n^2
    strides = (*one.cells.stride(), *one.a.stride(), *one.b.stride(), *one.n.stride())
    _folded_kernel[height, -(-width // 32)](
        total, one.cells, one.a, one.b, one.n, two.cells, two.a, two.b, two.n, width, *strides, labels,
        word=word, wide=wide, block=32, split=len(parts) == 2, num_warps=max(1, wide // 16),
    )
    return total


@_compiled_once()
def _excess_of_row(cells, a, b, n, mask, inside, word: constexpr):  # type: ignore[no-untyped-def]
    c = tl.load(cells, mask, 0).to(word)
    return n[None, :] * c - a * tl.load(b, inside, 0).to(word)[None, :]


@_compiled_once("width", "ck", "ci", "cl", "ak", "ai", "bl", "bi", "ni", "labels")
def _folded_kernel(  # type: ignore[no-untyped-def]
    total, c0, a0, b0, n0, c1, a1, b1, n1, width, ck, ci, cl, cj, ak, ai, aj, bl, bi, bj, ni, nj, labels,
    word: constexpr, wide: constexpr, block: constexpr, split: constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * block + tl.arange(0, block)
    k = tl.arange(0, wide)
    inside = j < width
    mask = (k < labels)[:, None] & inside[None, :]
    cell = k[:, None] * ck + i * ci + j[None, :] * cj
    side = k[:, None] * ak + i * ai + j[None, :] * aj
    size0 = tl.load(n0 + i * ni + j * nj, inside, 0).to(word)
    left0 = tl.load(a0 + side, mask, 0).to(word)
    row0 = tl.zeros((wide, block), word)
    sum0 = tl.zeros((wide, block), word)
    last0 = tl.zeros((block,), word)
    if split:
        size1 = tl.load(n1 + i * ni + j * nj, inside, 0).to(word)
        left1 = tl.load(a1 + side, mask, 0).to(word)
        row1 = tl.zeros((wide, block), word)
        sum1 = tl.zeros((wide, block), word)
        last1 = tl.zeros((block,), word)
    for m in range(labels):
        e0 = _excess_of_row(c0 + cell + m * cl, left0, b0 + m * bl + i * bi + j * bj, size0, mask, inside, word)
        under0 = -tl.sum(e0, 0)
        row0 -= e0
        if split:
            e1 = _excess_of_row(c1 + cell + m * cl, left1, b1 + m * bl + i * bi + j * bj, size1, mask, inside, word)
            under1 = -tl.sum(e1, 0)
            row1 -= e1
            sum0 += tl.where(e1 > 0, e0, 0)
            sum1 += tl.where(e0 > 0, e1, 0)
            last0 += tl.where(under1 > 0, under0, 0)
            last1 += tl.where(under0 > 0, under1, 0)
        else:
            sum0 += tl.where(e0 > 0, e0, 0)
            last0 += tl.where(under0 > 0, under0, 0)
    corner0 = -tl.sum(row0, 0)
    if split:
        corner1 = -tl.sum(row1, 0)
        sum0 += tl.where(row1 > 0, row0, 0)
        sum1 += tl.where(row0 > 0, row1, 0)
        last0 += tl.where(corner1 > 0, corner0, 0)
        last1 += tl.where(corner0 > 0, corner1, 0)
        tl.store(total + (i * width + j) * 2, tl.sum(sum0, 0) + last0, inside)
        tl.store(total + (i * width + j) * 2 + 1, tl.sum(sum1, 0) + last1, inside)
    else:
        sum0 += tl.where(row0 > 0, row0, 0)
        last0 += tl.where(corner0 > 0, corner0, 0)
        tl.store(total + i * width + j, tl.sum(sum0, 0) + last0, inside)


def tally_rows(labels: Tensor, classes: int) -> Tensor:
    """How often each row says each label: (rows, L)."""
    rows, columns = labels.shape
    found = torch.zeros((rows, classes), dtype=torch.int64, device=labels.device)
    wide, each = max(2, _next_power(classes)), min(4096, columns)
    area = max(32, 8192 // wide)
    down = min(32, area) if labels.stride(1) != 1 else max(1, area // 128)
    if rows and columns:
        _tally_kernel[-(-rows // down), -(-columns // each)](
            found, labels, rows, columns, *labels.stride(), each, classes, wide=wide, down=down,
            across=max(1, area // down),
        )
    return found


@_compiled_once("rows", "columns", "each", "classes")
def _tally_kernel(  # type: ignore[no-untyped-def]
    found, labels, rows, columns, by_row, by_column, each, classes, wide: constexpr, down: constexpr, across: constexpr
) -> None:
    x = tl.program_id(0) * down + tl.arange(0, down)
    k = tl.arange(0, wide)
    start = tl.program_id(1) * each
    many = tl.zeros((down, across, wide), tl.int32)
    for at in range(0, each, across):
        y = start + at + tl.arange(0, across)
        where = x.to(tl.int64)[:, None] * by_row + y.to(tl.int64)[None, :] * by_column
        said = tl.load(labels + where, (x < rows)[:, None] & (y < columns)[None, :], -1).to(tl.int32)
        many += (said[:, :, None] == k[None, None, :]).to(tl.int32)
    tally = tl.sum(many, 1).to(tl.int64)
    mask = (x < rows)[:, None] & (k < classes)[None, :]
    tl.atomic_add(found + x.to(tl.int64)[:, None] * classes + k[None, :], tally, mask)


def sum_chosen(labels: Tensor, bordered: Tensor) -> Tensor:
    """sum_n table[n, f_i(n) + 1] for every agent."""
    agents, tasks = labels.shape
    found = torch.empty(agents, dtype=torch.int64, device=labels.device)
    if agents:
        _earned_kernel[-(-agents // 16),](
            found, labels, bordered, agents, tasks, *labels.stride(), bordered.shape[1], down=16, across=128
        )
    return found


@_compiled_once("agents", "tasks", "by_agent", "width")
def _earned_kernel(  # type: ignore[no-untyped-def]
    found, labels, bordered, agents, tasks, by_agent, by_task, width, down: constexpr, across: constexpr
) -> None:
    i = tl.program_id(0) * down + tl.arange(0, down)
    total = tl.zeros((down, across), tl.int64)
    for start in range(0, tasks, across):
        n = start + tl.arange(0, across)
        mask = (i < agents)[:, None] & (n < tasks)[None, :]
        said = tl.load(labels + i.to(tl.int64)[:, None] * by_agent + n[None, :] * by_task, mask, -1).to(tl.int32)
        total += tl.load(bordered + n[None, :] * width + said + 1, mask, 0).to(tl.int64)
    tl.store(found + i, tl.sum(total, 1), i < agents)
