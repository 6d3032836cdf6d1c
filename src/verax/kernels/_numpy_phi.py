"""What every task adds to a sum over pairs, with NumPy alone: few counts at a time, then tables looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from verax.kernels import Engine, Floats, Ints, Labels, Sign
from verax.kernels._cells import centred, excess, signs
from verax.kernels._numpy_pairs import MOST_CELLS, Count, counts, fold_agents, reduced, side_of_tile, square_tiles

Add = Callable[[Labels, Labels, Floats, Ints | None, Engine], Floats]


def phi(
    rows: Labels,
    columns: Labels,
    classes: int,
    sign: Sign,
    half: Ints | None,
    skip: Ints | None,
    engine: Engine,
    count: Count = counts,
    add: Add | None = None,
) -> tuple[Ints, Ints, Floats]:
    """See `verax.kernels.phi`; what counts and what looks up may be another's."""
    found, parts = np.zeros(rows.shape), 1 if half is None else 2
    total = np.zeros((len(rows), len(columns), parts), dtype=np.int64)
    tasks = np.zeros_like(total)
    for i, j in square_tiles(len(rows), len(columns), side_of_tile(2 * parts * classes**2, engine), False):
        met = count(rows[i], columns[j], classes, half, parts, engine)
        total[i, j], tasks[i, j] = reduced(met, sign)
        tables = centred(met, signs(excess(met), sign), np.float64)
        if skip is not None:
            tables[np.arange(j.start, j.stop) == skip[i, None]] = 0.0
        found[i] += (add or sums)(rows[i], columns[j], tables, half, engine)
    return total, tasks, found


def sums(rows: Labels, columns: Labels, tables: Floats, part: Ints | None, engine: Engine) -> Floats:
    """See `verax.kernels.sums`; columns are folded into one number: fewer look-ups for small tables."""
    found = np.zeros(rows.shape)
    parts, width = tables.shape[2], tables.shape[-1] + 1
    most = min(MOST_CELLS, rows.shape[1] // 4)
    size = next((c for c in (3, 2) if parts * width ** (c + 1) <= most), 1)
    span = max(2**12, engine.max_bytes // 32)
    kind: Any = np.uint16 if parts * width ** (size + 1) <= MOST_CELLS else np.int64
    step = size * max(1, engine.max_bytes // 4 // (2 * max(1, min(span, rows.shape[1]))))
    for start in range(0, rows.shape[1], span):
        x, y = rows[:, start : start + span], columns[:, start : start + span]
        for j in range(0, len(columns), step):
            codes = fold_agents(y[j : j + step], size, width, kind, True)
            for i, row in enumerate(x):
                base = (row + 1).astype(kind) * kind(width**size)
                if part is not None:
                    base += (part[start : start + span] * width ** (size + 1)).astype(kind)
                bordered = np.pad(tables[i, j : j + step], ((0, 0), (0, 0), (1, 0), (1, 0)))
                into = found[i, start : start + span]
                for g, code in enumerate(codes):
                    into += _table_of_fold(bordered[g * size : (g + 1) * size], size)[base + code]
    return found


def _table_of_fold(tables: Floats, size: int) -> Floats:
    """One table of what several columns say together: the sum of their own; fewer at the end than elsewhere."""
    parts, width = tables.shape[1:3]
    table = np.zeros((parts, width, *(width,) * size))
    for k, each in enumerate(tables):
        table += each.reshape(parts, width, *(width if q == k else 1 for q in range(size)))
    return table.ravel()
