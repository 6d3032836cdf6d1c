"""What every task adds to a sum over pairs, with torch: tables made of a tile's counts, and looked up."""

from __future__ import annotations

import torch
from torch import Tensor

from verax.kernels import Engine, Floats, Ints, Labels, Sign
from verax.kernels._cells import centred, excess, signs
from verax.kernels._torch_device import as_array, budget_of, by_part, on_device, threads_of
from verax.kernels._torch_pairs import tiles_of_counts

_TEMPORARIES = 8  # arrays like the counts of a tile, kept at once


def phi(
    rows: Labels, columns: Labels, classes: int, sign: Sign, half: Ints | None, skip: Ints | None, engine: Engine
) -> tuple[Ints, Ints, Floats]:
    """See `verax.kernels.phi`."""
    with threads_of(engine):
        x, budget, parts = on_device(rows), budget_of(engine), 1 if half is None else 2
        y = x if rows is columns else on_device(columns)
        part = None if half is None else on_device(half)
        given = sign if isinstance(sign, str) else on_device(sign.astype(bool))
        found = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        total, tasks = torch.zeros((2, len(x), len(y), parts), dtype=torch.int64, device=x.device)
        left = by_part(x, half, parts)
        right = left if x is y else by_part(y, half, parts)
        for i, j, met in tiles_of_counts(left, right, classes, budget // _TEMPORARIES, False):
            over = excess(met)
            s = signs(over, given)
            total[i, j], tasks[i, j] = (over * s).sum((-2, -1)), met.sum((-2, -1))
            tables = centred(met, s, Tensor.double)
            if skip is not None:
                tables[torch.arange(j.start, j.stop, device=x.device) == on_device(skip[i])[:, None]] = 0.0
            _add_looked_up(x[i], y[j], tables, part, budget, found[i])
    return as_array(total), as_array(tasks), as_array(found)


def sums(rows: Labels, columns: Labels, tables: Floats, part: Ints | None, engine: Engine) -> Floats:
    """See `verax.kernels.sums`."""
    with threads_of(engine):
        x, y, budget = on_device(rows), on_device(columns), budget_of(engine)
        found, where = (
            torch.zeros(x.shape, dtype=torch.float64, device=x.device),
            None if part is None else on_device(part),
        )
        step = max(1, budget // 2 // max(1, tables[:1, :1].nbytes))
        for i in range(len(x)):
            for j in range(0, len(y), step):
                some = on_device(tables[i : i + 1, j : j + step])
                _add_looked_up(x[i : i + 1], y[j : j + step], some, where, budget, found[i : i + 1])
    return as_array(found)


def _add_looked_up(
    rows: Tensor, columns: Tensor, tables: Tensor, part: Tensor | None, budget: int, found: Tensor
) -> None:
    """Add tables[i, j, part(n), row_i(n), column_j(n)] over the columns; a border of zeros is for tasks left out."""
    width, span = tables.shape[-1] + 1, max(1, budget // (32 * max(1, len(columns))))
    for row, its, into in zip(rows, tables, found, strict=True):
        flat = torch.nn.functional.pad(its, (1, 0, 1, 0)).flatten(1)
        start = (row.long() + 1) * width + 1 if part is None else (part * width + row + 1) * width + 1
        for n in range(0, len(start), span):
            into[n : n + span] += flat.gather(1, start[n : n + span] + columns[:, n : n + span]).sum(0)
