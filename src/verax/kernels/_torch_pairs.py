"""Counting pairs as matrix products with torch: on a GPU where there is one, else on the CPU.

Each label is a *plane*, 1 on the tasks where the agent says it and 0 elsewhere. How often i says k while j says l
is the product of two planes, so the counts of many pairs are one matrix product, and every sum is an exact
integer: int8 planes with int32 sums on a GPU, float32 planes with sums under 2^24 elsewhere.

Pairs come in tiles. The table of a tile is turned into totals where it was made, so K x K x L x L counts are never
stored. Three savings: agents beside themselves need half the tiles; a learned sign needs no plane for the last
label, because the rows and columns of n C - a b^T sum to 0; a given sign needs no counts at all, only
sum_n S(f_i(n), f_j(n)), which costs L times less.

On a GPU `_torch_fused` takes several steps at once. Device memory is bounded by `_torch_device.DEVICE_BYTES`, host
memory by the engine's `max_bytes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from verax.kernels import Engine, Ints, Labels, Sign, _torch_fused
from verax.kernels._torch_device import (
    DEVICE_BYTES,
    as_array,
    budget_of,
    by_part,
    multiplies_int8,
    on_device,
    threads_of,
)
from verax.kernels._torch_tasks import tally_rows

Table = npt.NDArray[np.int8]

_CELLS = 4608  # rows of a product on a GPU: many waves of blocks, and few agents beside themselves
_MOST_SUMMED = 2**23  # float32 holds every integer up to 2^24


def counts(rows: Labels, columns: Labels, classes: int, part: Ints | None, parts: int, engine: Engine) -> Ints:
    """See `verax.kernels.counts`."""
    found = torch.zeros((len(rows), len(columns), parts, classes, classes), dtype=torch.int64)
    with threads_of(engine):
        left = by_part(on_device(rows), part, parts)
        right = left if rows is columns else by_part(on_device(columns), part, parts)
        for i, j, tile in tiles_of_counts(left, right, classes, budget_of(engine), left is right):
            found[i, j] = tile.cpu()
            if left is right and i != j:
                found[j, i] = found[i, j].permute(1, 0, 2, 4, 3)
    return as_array(found)


def tiles_of_counts(
    left: list[Tensor], right: list[Tensor], classes: int, budget: int, half: bool
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Which rows beside which columns, and their counts (I, J, parts, L, L); `half`: not those below the diagonal."""
    agents, span = _tile_sizes(left[0], right[0], _agents_of_tile(classes, budget), classes, budget)
    x, y = (_planes_of_parts(side, _one_hot(classes), span) for side in (left, right))
    for i, j in _square_tiles(left[0], right[0], agents, half):
        beside = x if left is right and i == j else y
        each = [_met_by_label(p, q, i, j).permute(1, 3, 0, 2).long() for p, q in zip(x, beside, strict=True)]
        yield i, j, torch.stack(each, 2)


def totals(
    rows: Labels, columns: Labels, classes: int, sign: Sign, half: Ints | None, engine: Engine
) -> tuple[Ints, Ints]:
    """See `verax.kernels.totals`."""
    with threads_of(engine):
        x = on_device(rows)
        y = x if rows is columns else on_device(columns)
        total, tasks = device_totals(x, y, classes, sign, half, budget_of(engine))
    return as_array(total), as_array(tasks)


def device_totals(
    rows: Tensor, columns: Tensor, classes: int, sign: Sign, half: Ints | None = None, budget: int = DEVICE_BYTES
) -> tuple[Tensor, Tensor]:
    """`totals` of labels that are tensors, as tensors where the labels are, if both fit there.

    >>> labels = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]])
    >>> device_totals(labels, labels, 2, np.eye(2, dtype=int))[0][:, :, 0].tolist()
    [[8, 4], [4, 6]]
    """
    part, parts = (half, 2) if isinstance(sign, str) and sign == "split" else (None, 1)
    left = by_part(rows, part, parts)
    right = left if rows is columns else by_part(columns, part, parts)
    device, shape = rows.device, (len(rows), len(columns), parts)
    fits = device.type == "cpu" or 16 * math.prod(shape) < 0.8 * torch.cuda.mem_get_info()[0]
    total, tasks = torch.empty((2, *shape), dtype=torch.int64, device=device if fits else "cpu")
    same = left is right
    if isinstance(sign, str):
        found, mirrored = _totals_of_learned_sign(left, right, max(classes, 2), budget), True
    else:
        mirrored = bool((sign == sign.T).all())
        found = _totals_of_given_sign(left[0], right[0], sign.astype(np.int8), budget, same and mirrored)
    for i, j, tile, n in found:
        total[i, j], tasks[i, j] = tile, n
        if same and mirrored and i != j:
            total[j, i], tasks[j, i] = tile.transpose(0, 1), n.transpose(0, 1)
    return total, tasks


def _all_answered(labels: Tensor) -> bool:
    return labels.numel() == 0 or bool(labels.min() >= 0)


def _agents_of_tile(planes: int, budget: int) -> int:
    """Agents on one side of a tile: their tables take an eighth of the budget, with room for what is made of them."""
    cells = min(_CELLS, math.isqrt(budget // 64))
    agents = max(1, cells // planes)
    return agents // 32 * 32 or agents


def _square_tiles(left: Tensor, right: Tensor, size: int, same: bool) -> Iterator[tuple[slice, slice]]:
    """Which rows beside which columns; only one of two mirrored tiles where both sides are the same."""
    for i in range(0, len(left), size):
        for j in range(i if same else 0, len(right), size):
            yield slice(i, min(i + size, len(left))), slice(j, min(j + size, len(right)))


def _one_hot(classes: int) -> Table:
    """Plane by label, (L, L + 1): column 0 is an abstention, which is on no plane."""
    return np.eye(classes, classes + 1, k=1, dtype=np.int8)


def _any_label(classes: int) -> Table:
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
            self.kept = (agents, tasks), _make_planes(self.labels[agents, tasks], self.table, self.by_agent)
        return self.kept[1]


def _tile_sizes(left: Tensor, right: Tensor, most: int, planes: int, budget: int) -> tuple[int, int]:
    """Agents on one side of a tile, and tasks in a chunk: the planes of two sides take a quarter of the budget."""
    agents = max(1, min(most, max(len(left), len(right))))
    entry, step = (1, 32) if multiplies_int8(left.device.type) else (5, 1)
    return agents, min(_MOST_SUMMED, max(64, budget // (8 * entry * _rounded_up(agents, step) * planes)))


def _planes_of_parts(sides: list[Tensor], table: Table, span: int, *, by_agent: bool = False) -> list[_Planes]:
    """The planes of one side, one object a part."""
    onto = torch.from_numpy(table).to(sides[0].device)
    return [_Planes(labels, onto, span, by_agent) for labels in sides]


def _make_planes(labels: Tensor, table: Tensor, by_agent: bool) -> Tensor:
    """plane[p](i, n) = table[p, label + 1]."""
    device, planes = labels.device.type, len(table)
    agents, tasks = (
        (_rounded_up(labels.shape[0], 32), _rounded_up(labels.shape[1], 16))
        if multiplies_int8(device)
        else labels.shape
    )
    shape = (agents, planes, tasks) if by_agent else (planes, agents, tasks)
    if _torch_fused.run_on(device):
        made = torch.empty(shape, dtype=torch.int8, device=labels.device)
        _torch_fused.make_planes(made if not by_agent else made.transpose(0, 1), labels, table)
        return made
    made = torch.zeros(shape, dtype=torch.int8, device=labels.device)
    index = labels.long() + 1
    for p in range(planes):
        (made[:, p] if by_agent else made[p])[: labels.shape[0], : labels.shape[1]] = table[p][index]
    return made


def _rounded_up(size: int, step: int) -> int:
    return max(1, -(-size // step)) * step


def _exact_product(left: Tensor, right: Tensor) -> Tensor:
    """left right^T of zeros and ones, exactly: no entry exceeds the tasks of a chunk."""
    if multiplies_int8(left.device.type):
        return torch._int_mm(left, right.T)
    return (left.float() @ right.float().T).int()


def _sum_of_chunks(tasks: int, found: Iterator[Tensor], shape: tuple[int, int], device: torch.device) -> Tensor:
    """The sum over chunks of tasks; int32 as long as it holds them all."""
    total = next(found, None)
    if total is None:
        return torch.zeros(shape, dtype=torch.int32, device=device)
    total = total if tasks < 2**31 else total.long()
    for more in found:
        total += more
    return total


def _met_by_label(left: _Planes, right: _Planes, i: slice, j: slice) -> Tensor:
    """How often i's plane p meets j's plane q: (P, I, Q, J)."""
    height, width = i.stop - i.start, j.stop - j.start
    p, q = len(left.table), len(right.table)
    found = (_exact_product(left.of(i, n).flatten(0, 1), right.of(j, n).flatten(0, 1)) for n in left.chunks())
    table = _sum_of_chunks(left.labels.shape[1], found, (p * height, q * width), left.labels.device)
    return table.view(p, -1, q, table.shape[1] // q)[:, :height, :, :width]


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


def _totals_of_learned_sign(left: list[Tensor], right: list[Tensor], classes: int, budget: int) -> Found:
    """Tile by tile, S learned from the pair itself: on the only part, or on the other one of two."""
    same = left is right
    dense = all(map(_all_answered, left if same else left + right))
    table = _one_hot(classes)[:-1]
    if not dense:
        table = np.concatenate([table, _any_label(classes)])
    a = [tally_rows(x, classes)[:, :-1] for x in left] if dense else []
    b = a if same else [tally_rows(x, classes)[:, :-1] for x in right] if dense else []
    agents, span = _tile_sizes(left[0], right[0], _agents_of_tile(len(table), budget), len(table), budget)
    x, y = _planes_of_parts(left, table, span), _planes_of_parts(right, table, span)
    for i, j in _square_tiles(left[0], right[0], agents, same):
        cells = [_met_by_label(p, p if same and i == j else q, i, j) for p, q in zip(x, y, strict=True)]
        if dense:
            parts = [_Table.dense(c, a[h][i], b[h][j], left[h].shape[1]) for h, c in enumerate(cells)]
        else:
            parts = [_Table.bordered(c) for c in cells]
        yield i, j, _add_where_positive(parts, max(x.shape[1] for x in left)), torch.stack([t.n for t in parts], -1)


def _add_where_positive(parts: list[_Table], tasks: int) -> Tensor:
    """sum_kl [E'(k, l) > 0] E(k, l) with E = n C - a b^T here and E' where the sign is learned: (I, J, H).

    Where n < 2 there is no sign, and E' is 0 by itself.
    """
    if _torch_fused.run_on(parts[0].cells.device.type) and len(parts[0].cells) <= _torch_fused.WIDEST:
        return _torch_fused.fold_signs(parts, tasks)
    total = torch.zeros((*parts[0].n.shape, len(parts)), dtype=torch.int64, device=parts[0].n.device)
    for rows in zip(*(t.excess() for t in parts), strict=True):
        for h, (row, learned) in enumerate(zip(rows, rows[::-1], strict=True)):
            total[..., h] += torch.where(learned > 0, row, 0).sum(1)
    return total


def _totals_of_given_sign(left: Tensor, right: Tensor, sign: Table, budget: int, half: bool) -> Found:
    """Tile by tile, S given: n sum_n S(f_i(n), f_j(n)) - sum_k a(k) (S b)(k), on the common tasks."""
    classes, one_hot, paying = len(sign), _one_hot(len(sign)), np.pad(sign, ((0, 0), (1, 0)))
    most = max(1, min(_CELLS // 2, math.isqrt(budget // (32 * classes))))
    agents, span = _tile_sizes(left, right, most, 2 * classes, budget)
    x, y = (
        _planes_of_parts([left], one_hot, span, by_agent=True)[0],
        _planes_of_parts([right], paying, span, by_agent=True)[0],
    )
    margins = _dense_margins if _all_answered(left) and _all_answered(right) else _pair_margins
    common = margins(left, right, one_hot, paying, span)
    for i, j in _square_tiles(left, right, agents, half):
        total = _met_by_agent(x, y, i, j).long()
        n, terms = common(i, j)
        total *= n
        for a, b in terms:
            total.addcmul_(a, b, value=-1)
        yield i, j, total[..., None], n.expand_as(total)[..., None]


Margins = Callable[[slice, slice], tuple[Tensor, Iterator[tuple[Tensor, Tensor]]]]


def _dense_margins(left: Tensor, right: Tensor, one_hot: Table, paying: Table, span: int) -> Margins:
    """n, and a(k) with (S b)(k) for every k, where nobody abstains: each agent's own."""
    a, b = tally_rows(left, len(one_hot)), _paid_by_label(tally_rows(right, len(one_hot)), paying[:, 1:])
    n = torch.full((1, 1), left.shape[1], device=left.device)
    return lambda i, j: (n, ((a[i, k, None], b[None, j, k]) for k in range(len(one_hot))))


def _pair_margins(left: Tensor, right: Tensor, one_hot: Table, paying: Table, span: int) -> Margins:
    """The same where somebody abstains: each pair's own, counted."""
    answered = _any_label(len(one_hot))
    x, v = (_planes_of_parts([left], table, span)[0] for table in (one_hot, answered))
    y, w = (_planes_of_parts([right], table, span)[0] for table in (paying, answered))

    def common(i: slice, j: slice) -> tuple[Tensor, Iterator[tuple[Tensor, Tensor]]]:
        a, b = _met_by_label(x, w, i, j)[:, :, 0].long(), _met_by_label(v, y, i, j)[0].long()
        return _met_by_label(v, w, i, j)[0, :, 0].long(), ((a[k], b[:, k]) for k in range(len(one_hot)))

    return common


def _met_by_agent(left: _Planes, right: _Planes, i: slice, j: slice) -> Tensor:
    """On how many of the planes' tasks i and j meet, all planes together: (I, J)."""
    height, width = i.stop - i.start, j.stop - j.start
    found = (_exact_product(left.of(i, n).flatten(1), right.of(j, n).flatten(1)) for n in left.chunks())
    return _sum_of_chunks(left.labels.shape[1], found, (height, width), left.labels.device)[:height, :width]


def _paid_by_label(tallies: Tensor, sign: npt.NDArray[np.generic]) -> Tensor:
    """(S b)(k) for every row b of the tallies."""
    s = torch.from_numpy(sign.astype(np.int64)).to(tallies.device)
    return torch.stack([(tallies * row).sum(1) for row in s], 1)
