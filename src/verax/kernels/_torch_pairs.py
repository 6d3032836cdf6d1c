"""Counting pairs as matrix products with torch: on a GPU where there is one, else on the CPU.

Each label is a *plane*, 1 on the tasks where the agent says it and 0 elsewhere. How often i says k while j says l
is the product of two planes, so the counts of many pairs are one matrix product, and every sum is an exact
integer: int8 planes with int32 sums on a GPU, float32 planes with sums under 2^24 elsewhere.

Pairs come in tiles. The table of a tile is turned into totals where it was made, so K x K x L x L counts are never
stored. Three savings: agents beside themselves need half the tiles; a learned sign needs no plane for the last
label, because the rows and columns of n C - a b^T sum to 0; a given sign needs no counts at all, only
sum_n S(f_i(n), f_j(n)), which costs L times less.

Triton, which comes with torch for CUDA, fuses the steps between the products. Without it torch does them one by one
and the results are the same. Device memory is bounded by `_DEVICE_BYTES`, host memory by the engine's `max_bytes`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from verax.kernels import Engine, Ints, Labels

_triton: Any = importlib.import_module("triton") if importlib.util.find_spec("triton") else None
tl: Any = importlib.import_module("triton.language") if _triton else None
if TYPE_CHECKING:
    constexpr = Any
else:
    constexpr = tl.constexpr if _triton else None

Table = npt.NDArray[np.int8]

_DEVICE_BYTES = 3 * 2**29
_CELLS = 4608  # rows of a product on a GPU: many waves of blocks, and few agents beside themselves
_MOST_SUMMED = 2**23  # float32 holds every integer up to 2^24
_WIDEST = 512  # labels that a fused total takes


def counts(rows: Labels, columns: Labels, classes: int, part: Ints | None, parts: int, engine: Engine) -> Ints:
    """How often row i says k while column j says l on a part's tasks: (I, J, parts, L, L).

    >>> counts(np.array([[0, 1, 1, -1]]), np.array([[0, 1, 0, 1]]), 2, None, 1, Engine())[0, 0, 0].tolist()
    [[1, 0], [1, 1]]
    """
    found = torch.zeros((len(rows), len(columns), parts, classes, classes), dtype=torch.int64)
    with _threads(engine):
        left, right = _sides(rows, columns, part, parts)
        same, budget = left is right, _budget(engine, left[0].device)
        agents, span = _sizes(left[0], right[0], _agents(classes, budget), classes, budget)
        x = _cut(left, _one_hot(classes), span)
        y = _cut(right, _one_hot(classes), span)
        for i, j in _tiles(left[0], right[0], agents, same):
            for p in range(parts):
                tile = _by_label(x[p], x[p] if same and i == j else y[p], i, j)
                found[i, j, p] = tile.permute(1, 3, 0, 2).cpu().long()
                if same and i != j:
                    found[j, i, p] = found[i, j, p].permute(1, 0, 3, 2)
    return np.asarray(found.numpy())


def totals(
    rows: Labels,
    columns: Labels,
    classes: int,
    sign: str | npt.NDArray[np.generic],
    half: Ints | None,
    engine: Engine,
) -> tuple[Ints, Ints]:
    """sum_kl S(k, l) (n C(k, l) - a(k) b(l)) and n, for every pair and half: (I, J, H) each.

    `sign` is S itself (0/1), "plugin" (learned on the same tasks) or "split" (learned on the other half).

    >>> labels = np.array([[0, 1, 1, 0], [0, 1, 1, 1]])
    >>> totals(labels, labels, 2, "plugin", None, Engine())[0][:, :, 0].tolist()
    [[8, 4], [4, 6]]
    """
    with _threads(engine):
        left, right = _sides(rows, columns, half if _splits(sign) else None, 2 if _splits(sign) else 1)
        budget = _budget(engine, left[0].device)
        total, tasks = _totals(left, right, classes, sign, budget)
    return np.asarray(total.cpu().numpy()), np.asarray(tasks.cpu().numpy())


def device_totals(
    rows: Tensor,
    columns: Tensor,
    classes: int,
    sign: str | npt.NDArray[np.generic],
    half: Ints | None = None,
    budget: int = _DEVICE_BYTES,
) -> tuple[Tensor, Tensor]:
    """`totals` of labels that are tensors, as tensors where the labels are.

    >>> labels = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]])
    >>> device_totals(labels, labels, 2, np.eye(2, dtype=int))[0][:, :, 0].tolist()
    [[8, 4], [4, 6]]
    """
    part, parts = (half, 2) if _splits(sign) else (None, 1)
    left = _split(rows, part, parts)
    return _totals(left, left if rows is columns else _split(columns, part, parts), classes, sign, budget)


def linear(labels: Labels | Tensor, classes: int, sign: npt.NDArray[np.generic]) -> tuple[Ints, Ints, Ints]:
    """What the mean over peers needs, without pairs, for reports with no abstention: own (K,), a (K, L), M (N, L).

    M[n, l] agents say l on task n, agent i says k a_i(k) times, and own_i = sum_n W[n, f_i(n)] with W = M S^T.

    >>> own, a, m = linear(np.array([[0, 1], [0, 0], [1, 1]], dtype=np.int8), 2, np.eye(2, dtype=int))
    >>> own.tolist(), a.tolist(), m.tolist()
    ([4, 3, 3], [[1, 1], [2, 0], [0, 2]], [[2, 1], [1, 2]])
    """
    found = _linear(_panels(labels), classes, sign)
    return tuple(np.asarray(x.cpu().numpy()) for x in found)  # type: ignore[return-value]


def device_linear(labels: Tensor, classes: int, sign: npt.NDArray[np.generic]) -> tuple[Tensor, Tensor, Tensor]:
    """`linear` of labels that are a tensor, as tensors where the labels are.

    >>> device_linear(torch.tensor([[0, 1], [0, 0]]), 2, np.eye(2, dtype=int))[0].tolist()
    [3, 3]
    """
    return _linear([labels], classes, sign)


# Where the work is done, and how much of it at a time.


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _budget(engine: Engine, device: torch.device) -> int:
    return engine.max_bytes if device.type == "cpu" else _DEVICE_BYTES


@contextmanager
def _threads(engine: Engine) -> Iterator[None]:
    """torch's threads as the engine wants them, and as they were afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(engine.threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _int8(device: str) -> bool:
    """Whether int8 products run here; the CPU's float32 products are faster."""
    if device == "cpu":
        return False
    ones = torch.ones((32, 32), dtype=torch.int8, device=device)
    try:
        return bool((torch._int_mm(ones, ones.T) == 32).all())
    except RuntimeError:  # a device or library without them
        return False


@functools.cache
def _fused(device: str) -> bool:
    """Whether Triton's kernels run here: it needs a GPU, and a C compiler for the first launch."""
    if device == "cpu" or _triton is None:
        return False
    try:
        _tally_fused(torch.zeros((1, 1), dtype=torch.int8, device=device), 2)
    except Exception:  # whatever Triton lacks, torch alone gives the same integers
        return False
    return True


def _sides(rows: Labels, columns: Labels, part: Ints | None, parts: int) -> tuple[list[Tensor], list[Tensor]]:
    """Both sides on the device, cut into their parts; one object where they are one."""
    left = _split(_moved(rows), part, parts)
    return left, left if rows is columns else _split(_moved(columns), part, parts)


def _moved(labels: Labels | Tensor) -> Tensor:
    if isinstance(labels, Tensor):
        return labels if labels.device.type != "cpu" else labels.to(_device())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")  # nothing here writes to it
        return torch.from_numpy(np.ascontiguousarray(labels)).to(_device())


def _split(labels: Tensor, part: Ints | None, parts: int) -> list[Tensor]:
    if part is None:
        return [labels]
    which = torch.from_numpy(np.asarray(part, dtype=np.int64)).to(labels.device)
    return [labels[:, (which == p).nonzero()[:, 0]] for p in range(parts)]


def _dense(labels: Tensor) -> bool:
    return labels.numel() == 0 or bool(labels.min() >= 0)


def _splits(sign: str | npt.NDArray[np.generic]) -> bool:
    return isinstance(sign, str) and sign == "split"


def _agents(planes: int, budget: int) -> int:
    """Agents on one side of a tile: their tables take an eighth of the budget, with room for what is made of them."""
    cells = min(_CELLS, math.isqrt(budget // 64))
    agents = max(1, cells // planes)
    return agents // 32 * 32 or agents


def _tiles(left: Tensor, right: Tensor, size: int, same: bool) -> Iterator[tuple[slice, slice]]:
    """Which rows beside which columns; only one of two mirrored tiles where both sides are the same."""
    for i in range(0, len(left), size):
        for j in range(i if same else 0, len(right), size):
            yield slice(i, min(i + size, len(left))), slice(j, min(j + size, len(right)))


# Planes, and their products.


def _one_hot(classes: int) -> Table:
    """Plane by label, (L, L + 1): column 0 is an abstention, which is on no plane."""
    return np.eye(classes, classes + 1, k=1, dtype=np.int8)


def _answered(classes: int) -> Table:
    """One plane: every label, and no abstention."""
    return np.array([[0] + [1] * classes], dtype=np.int8)


@dataclass
class _Planes:
    """The planes of one side's agents, a span of agents and of tasks at a time; the last ones made are kept."""

    labels: Tensor
    table: Tensor
    span: int
    by_agent: bool
    kept: tuple[Any, Tensor] | None = field(default=None)

    def chunks(self) -> Iterator[slice]:
        tasks = self.labels.shape[1]
        return (slice(n, min(n + self.span, tasks)) for n in range(0, tasks, self.span))

    def of(self, agents: slice, tasks: slice) -> Tensor:
        """(P, agents, tasks) by label or (agents, P, tasks) by agent, padded with zeros to what a product takes."""
        if self.kept is None or self.kept[0] != (agents, tasks):
            self.kept = None
            self.kept = (agents, tasks), _made(self.labels[agents, tasks], self.table, self.by_agent)
        return self.kept[1]


def _sizes(left: Tensor, right: Tensor, most: int, planes: int, budget: int) -> tuple[int, int]:
    """Agents on one side of a tile, and tasks in a chunk: the planes of two sides take a quarter of the budget."""
    agents = max(1, min(most, max(len(left), len(right))))
    entry, step = (1, 32) if _int8(left.device.type) else (5, 1)
    return agents, min(_MOST_SUMMED, max(64, budget // (8 * entry * _up(agents, step) * planes)))


def _cut(sides: list[Tensor], table: Table, span: int, *, by_agent: bool = False) -> list[_Planes]:
    """The planes of one side, one object a part."""
    onto = torch.from_numpy(table).to(sides[0].device)
    return [_Planes(labels, onto, span, by_agent) for labels in sides]


def _made(labels: Tensor, table: Tensor, by_agent: bool) -> Tensor:
    """plane[p](i, n) = table[p, label + 1]."""
    device, planes = labels.device.type, len(table)
    agents, tasks = (_up(labels.shape[0], 32), _up(labels.shape[1], 16)) if _int8(device) else labels.shape
    shape = (agents, planes, tasks) if by_agent else (planes, agents, tasks)
    if _fused(device):
        made = torch.empty(shape, dtype=torch.int8, device=labels.device)
        _made_fused(made if not by_agent else made.transpose(0, 1), labels, table)
        return made
    made = torch.zeros(shape, dtype=torch.int8, device=labels.device)
    index = labels.long() + 1
    for p in range(planes):
        (made[:, p] if by_agent else made[p])[: labels.shape[0], : labels.shape[1]] = table[p][index]
    return made


def _up(size: int, step: int) -> int:
    return max(1, -(-size // step)) * step


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left right^T of zeros and ones, exactly: no entry exceeds the tasks of a chunk."""
    if _int8(left.device.type):
        return torch._int_mm(left, right.T)
    return (left.float() @ right.float().T).int()


def _summed(tasks: int, found: Iterator[Tensor], shape: tuple[int, int], device: torch.device) -> Tensor:
    """The sum over chunks of tasks; int32 as long as it holds them all."""
    total = next(found, None)
    if total is None:
        return torch.zeros(shape, dtype=torch.int32, device=device)
    total = total if tasks < 2**31 else total.long()
    for more in found:
        total += more
    return total


def _by_label(left: _Planes, right: _Planes, i: slice, j: slice) -> Tensor:
    """How often i's plane p meets j's plane q: (P, I, Q, J)."""
    height, width = i.stop - i.start, j.stop - j.start
    p, q = len(left.table), len(right.table)
    found = (_product(left.of(i, n).flatten(0, 1), right.of(j, n).flatten(0, 1)) for n in left.chunks())
    table = _summed(left.labels.shape[1], found, (p * height, q * width), left.labels.device)
    return table.view(p, -1, q, table.shape[1] // q)[:, :height, :, :width]


# Totals.


def _totals(
    left: list[Tensor], right: list[Tensor], classes: int, sign: str | npt.NDArray[np.generic], budget: int
) -> tuple[Tensor, Tensor]:
    """Totals and tasks, kept on the device if both fit there."""
    device, shape = left[0].device, (len(left[0]), len(right[0]), len(left))
    fits = device.type == "cpu" or 16 * math.prod(shape) < 0.8 * torch.cuda.mem_get_info()[0]
    total, tasks = torch.empty((2, *shape), dtype=torch.int64, device=device if fits else "cpu")
    same = left is right
    if isinstance(sign, str):
        found, mirrored = _learned(left, right, max(classes, 2), budget), True
    else:
        mirrored = bool((sign == sign.T).all())
        found = _given(left[0], right[0], sign.astype(np.int8), budget, same and mirrored)
    for i, j, tile, n in found:
        total[i, j], tasks[i, j] = tile, n
        if same and mirrored and i != j:
            total[j, i], tasks[j, i] = tile.transpose(0, 1), n.transpose(0, 1)
    return total, tasks


Found = Iterator[tuple[slice, slice, Tensor, Tensor]]


@dataclass(frozen=True)
class _Table:
    """One part of a tile: cells (k, i, l, j) without the last label, and a (k, i, j), b (l, i, j), n (i, j)."""

    cells: Tensor
    a: Tensor
    b: Tensor
    n: Tensor

    @classmethod
    def dense(cls, cells: Tensor, a: Tensor, b: Tensor, tasks: int) -> _Table:
        """Without abstentions a (I, k) is the row's, b (J, l) the column's, and n the same for all."""
        labels, height, _, width = cells.shape
        size = torch.full((1, 1), tasks, dtype=a.dtype, device=a.device)
        return cls(
            cells,
            a.T[:, :, None].expand(labels, height, width),
            b.T[:, None, :].expand(labels, height, width),
            size.expand(height, width),
        )

    @classmethod
    def bordered(cls, cells: Tensor) -> _Table:
        """With abstentions the plane of all labels, the last, counts a, b and n of the pair."""
        return cls(cells[:-1, :, :-1], cells[:-1, :, -1], cells[-1, :, :-1].transpose(0, 1), cells[-1, :, -1])

    def excess(self) -> Iterator[Tensor]:
        """n C - a b^T by rows k, each (I, L, J); the last label from rows and columns that sum to 0."""
        column: Tensor | None = None
        n, b = self.n.long()[:, None], self.b.long().transpose(0, 1)
        for cells, a in zip(self.cells, self.a, strict=True):
            inner = n * cells.long() - a.long()[:, None] * b
            row = torch.cat([inner, -inner.sum(1, keepdim=True)], 1)
            column = row if column is None else column + row
            yield row
        assert column is not None
        yield -column


def _learned(left: list[Tensor], right: list[Tensor], classes: int, budget: int) -> Found:
    """Tile by tile, S learned from the pair itself: on the only part, or on the other one of two."""
    same = left is right
    dense = all(map(_dense, left if same else left + right))
    table = _one_hot(classes)[:-1]
    if not dense:
        table = np.concatenate([table, _answered(classes)])
    a = [_tally(x, classes)[:, :-1] for x in left] if dense else []
    b = a if same else [_tally(x, classes)[:, :-1] for x in right] if dense else []
    agents, span = _sizes(left[0], right[0], _agents(len(table), budget), len(table), budget)
    x, y = _cut(left, table, span), _cut(right, table, span)
    for i, j in _tiles(left[0], right[0], agents, same):
        cells = [_by_label(p, p if same and i == j else q, i, j) for p, q in zip(x, y, strict=True)]
        if dense:
            parts = [_Table.dense(c, a[h][i], b[h][j], left[h].shape[1]) for h, c in enumerate(cells)]
        else:
            parts = [_Table.bordered(c) for c in cells]
        yield i, j, _folded(parts, max(x.shape[1] for x in left)), torch.stack([t.n for t in parts], -1)


def _folded(parts: list[_Table], tasks: int) -> Tensor:
    """sum_kl [E'(k, l) > 0] E(k, l) with E = n C - a b^T here and E' where the sign is learned: (I, J, H).

    Where n < 2 there is no sign, and E' is 0 by itself.
    """
    if _fused(parts[0].cells.device.type) and len(parts[0].cells) <= _WIDEST:
        return _folded_fused(parts, tasks)
    total = torch.zeros((*parts[0].n.shape, len(parts)), dtype=torch.int64, device=parts[0].n.device)
    for rows in zip(*(t.excess() for t in parts), strict=True):
        for h, (row, learned) in enumerate(zip(rows, rows[::-1], strict=True)):
            total[..., h] += torch.where(learned > 0, row, 0).sum(1)
    return total


def _given(left: Tensor, right: Tensor, sign: Table, budget: int, half: bool) -> Found:
    """Tile by tile, S given: n sum_n S(f_i(n), f_j(n)) - sum_k a(k) (S b)(k), on the common tasks."""
    classes, one_hot, paying = len(sign), _one_hot(len(sign)), np.pad(sign, ((0, 0), (1, 0)))
    most = max(1, min(_CELLS // 2, math.isqrt(budget // (32 * classes))))
    agents, span = _sizes(left, right, most, 2 * classes, budget)
    x, y = _cut([left], one_hot, span, by_agent=True)[0], _cut([right], paying, span, by_agent=True)[0]
    margins = _dense_margins if _dense(left) and _dense(right) else _pair_margins
    common = margins(left, right, one_hot, paying, span)
    for i, j in _tiles(left, right, agents, half):
        total = _by_agent(x, y, i, j).long()
        n, terms = common(i, j)
        total *= n
        for a, b in terms:
            total.addcmul_(a, b, value=-1)
        yield i, j, total[..., None], n.expand_as(total)[..., None]


Margins = Callable[[slice, slice], tuple[Tensor, Iterator[tuple[Tensor, Tensor]]]]


def _dense_margins(left: Tensor, right: Tensor, one_hot: Table, paying: Table, span: int) -> Margins:
    """n, and a(k) with (S b)(k) for every k, where nobody abstains: each agent's own."""
    a, b = _tally(left, len(one_hot)), _paid(_tally(right, len(one_hot)), paying[:, 1:])
    n = torch.full((1, 1), left.shape[1], device=left.device)
    return lambda i, j: (n, ((a[i, k, None], b[None, j, k]) for k in range(len(one_hot))))


def _pair_margins(left: Tensor, right: Tensor, one_hot: Table, paying: Table, span: int) -> Margins:
    """The same where somebody abstains: each pair's own, counted."""
    answered = _answered(len(one_hot))
    x, v = (_cut([left], table, span)[0] for table in (one_hot, answered))
    y, w = (_cut([right], table, span)[0] for table in (paying, answered))

    def common(i: slice, j: slice) -> tuple[Tensor, Iterator[tuple[Tensor, Tensor]]]:
        a, b = _by_label(x, w, i, j)[:, :, 0].long(), _by_label(v, y, i, j)[0].long()
        return _by_label(v, w, i, j)[0, :, 0].long(), ((a[k], b[:, k]) for k in range(len(one_hot)))

    return common


def _by_agent(left: _Planes, right: _Planes, i: slice, j: slice) -> Tensor:
    """On how many of the planes' tasks i and j meet, all planes together: (I, J)."""
    height, width = i.stop - i.start, j.stop - j.start
    found = (_product(left.of(i, n).flatten(1), right.of(j, n).flatten(1)) for n in left.chunks())
    return _summed(left.labels.shape[1], found, (height, width), left.labels.device)[:height, :width]


# The mean over peers without pairs.


def _panels(labels: Labels | Tensor) -> list[Labels] | list[Tensor]:
    """The labels on the device; in panels that are moved twice where they do not fit."""
    if isinstance(labels, Tensor) or not torch.cuda.is_available():
        return [_moved(labels)]
    free = torch.cuda.mem_get_info()[0] // 4
    if labels.nbytes <= free:
        return [_moved(labels)]
    step = max(1, free // max(1, labels[:1].nbytes))
    return [labels[i : i + step] for i in range(0, len(labels), step)]


def _linear(
    panels: list[Labels] | list[Tensor], classes: int, sign: npt.NDArray[np.generic]
) -> tuple[Tensor, Tensor, Tensor]:
    a, m = [], None
    for panel in panels:
        labels = _moved(panel)
        a.append(_tally(labels, classes))
        here = _tally(labels.T, classes)
        m = here if m is None else m + here
    assert m is not None
    w = _paid(m, sign)
    own = [_earned(_moved(panel), w) for panel in panels]
    return torch.cat(own), torch.cat(a), m


def _paid(tallies: Tensor, sign: npt.NDArray[np.generic]) -> Tensor:
    """(S b)(k) for every row b of the tallies."""
    s = torch.from_numpy(sign.astype(np.int64)).to(tallies.device)
    return torch.stack([(tallies * row).sum(1) for row in s], 1)


def _tally(labels: Tensor, classes: int) -> Tensor:
    """How often each row says each label: (rows, L)."""
    if _fused(labels.device.type) and classes <= _WIDEST:
        return _tally_fused(labels, classes)
    found = torch.empty((len(labels), classes), dtype=torch.int64, device=labels.device)
    step = max(1, 2**24 // max(1, labels.shape[1]))
    for i in range(0, len(labels), step):
        for k in range(classes):
            found[i : i + step, k] = (labels[i : i + step] == k).sum(1)
    return found


def _earned(labels: Tensor, w: Tensor) -> Tensor:
    """sum_n W[n, f_i(n)] for every agent; an abstention earns 0."""
    bordered = torch.nn.functional.pad(w, (1, 0))
    if _fused(labels.device.type):
        return _earned_fused(labels, bordered.int())  # no more than the agents there are
    first = torch.arange(len(w), device=w.device) * bordered.shape[1] + 1
    step = max(1, 2**22 // max(1, labels.shape[1]))
    found = [torch.take(bordered, first + labels[i : i + step]).sum(1) for i in range(0, len(labels), step)]
    return torch.cat(found) if found else w.new_zeros(0)


# The same steps as single kernels. Triton compiles what follows for the GPU; on the CPU it is never run.
# fmt: off


def _jit(*plain: str) -> Callable[[Any], Any]:
    """Compile with Triton, once for all values of the plain arguments."""
    return lambda kernel: _triton.jit(kernel, do_not_specialize=plain) if _triton else kernel


def _power(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


def _made_fused(made: Tensor, labels: Tensor, table: Tensor) -> None:
    """Fill made (P, agents, tasks), any strides, padding included."""
    planes, agents, tasks = made.shape
    _made_kernel[agents, -(-tasks // 1024)](
        made, labels, table, *labels.shape, tasks, *made.stride()[:2], *labels.stride(), table.shape[1],
        planes, block=1024,
    )


@_jit("agents", "tasks", "padded", "by_plane", "by_row", "by_agent", "width", "planes")
def _made_kernel(  # type: ignore[no-untyped-def]
    made, labels, table, agents, tasks, padded, by_plane, by_row, by_agent, by_task, width, planes, block: constexpr
) -> None:
    i = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * block + tl.arange(0, block)
    index = tl.load(labels + i * by_agent + n * by_task, (i < agents) & (n < tasks), -1).to(tl.int32) + 1
    for p in range(planes):
        tl.store(made + p * by_plane + i * by_row + n, tl.load(table + p * width + index), n < padded)


def _folded_fused(parts: list[_Table], tasks: int) -> Tensor:
    one, two = parts[0], parts[-1]
    labels, height, _, width = one.cells.shape
    total = torch.empty((height, width, len(parts)), dtype=torch.int64, device=one.n.device)
    wide = max(2, _power(labels))
    word = tl.int32 if tasks**2 < 2**31 else tl.int64  # nothing summed here exceeds n^2
    strides = (*one.cells.stride(), *one.a.stride(), *one.b.stride(), *one.n.stride())
    _folded_kernel[height, -(-width // 32)](
        total, one.cells, one.a, one.b, one.n, two.cells, two.a, two.b, two.n, width, *strides, labels,
        word=word, wide=wide, block=32, split=len(parts) == 2, num_warps=max(1, wide // 16),
    )
    return total


@_jit()
def _excess(cells, a, b, n, mask, inside, word: constexpr):  # type: ignore[no-untyped-def]
    c = tl.load(cells, mask, 0).to(word)
    return n[None, :] * c - a * tl.load(b, inside, 0).to(word)[None, :]


@_jit("width", "ck", "ci", "cl", "ak", "ai", "bl", "bi", "ni", "labels")
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
        e0 = _excess(c0 + cell + m * cl, left0, b0 + m * bl + i * bi + j * bj, size0, mask, inside, word)
        under0 = -tl.sum(e0, 0)
        row0 -= e0
        if split:
            e1 = _excess(c1 + cell + m * cl, left1, b1 + m * bl + i * bi + j * bj, size1, mask, inside, word)
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


def _tally_fused(labels: Tensor, classes: int) -> Tensor:
    rows, columns = labels.shape
    found = torch.zeros((rows, classes), dtype=torch.int64, device=labels.device)
    wide, each = max(2, _power(classes)), min(4096, columns)
    area = max(32, 8192 // wide)
    down = min(32, area) if labels.stride(1) != 1 else max(1, area // 128)
    if rows and columns:
        _tally_kernel[-(-rows // down), -(-columns // each)](
            found, labels, rows, columns, *labels.stride(), each, classes, wide=wide, down=down,
            across=max(1, area // down),
        )
    return found


@_jit("rows", "columns", "each", "classes")
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


def _earned_fused(labels: Tensor, bordered: Tensor) -> Tensor:
    agents, tasks = labels.shape
    found = torch.empty(agents, dtype=torch.int64, device=labels.device)
    if agents:
        _earned_kernel[-(-agents // 16),](
            found, labels, bordered, agents, tasks, *labels.stride(), bordered.shape[1], down=16, across=128
        )
    return found


@_jit("agents", "tasks", "by_agent", "width")
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
