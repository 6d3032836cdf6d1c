"""What every task adds to a sum over pairs, in machine code: tables made of counts in cache, and looked up."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from verax.kernels import Engine, Floats, Ints, Labels, Sign, _numpy_phi, centre, cores, influence, tallies, times
from verax.kernels import _numba_pairs as pairs
from verax.kernels._cells import excess
from verax.kernels._compiled import compiled, narrow
from verax.kernels._numba_pairs import GIVEN, PLUGIN
from verax.kernels._numba_planes import LANES, Side

_WORTH_USUAL = 16  # columns
_FEW_DIFFER = 0.3  # share of the pairs for which single look-ups are quicker than folded ones

Codes = npt.NDArray[np.uint8]


@compiled
def _repeat_lanes(values, out):  # type: ignore[no-untyped-def]
    """The lanes' values, for every label again."""
    wide = values.size > 1
    for m in range(out.size):
        out[m] = values[m % LANES if wide else 0]


@compiled
def _sum_labels(row, out):  # type: ignore[no-untyped-def]
    """Sums over the labels, lane by lane."""
    for t in range(out.size):
        held = 0
        for m in range(t, row.size, out.size):
            held += row[m]
        out[t] = held


@compiled
def _centre_tables(over, n, a, b, j, skip, learned, sign, border, tables):  # type: ignore[no-untyped-def]
    """(psi - mean psi) / N of every cell, as `_cells.centred`, in tables (rows, columns, parts, L, L) with a border."""
    rows, groups, parts, classes, width = over.shape
    lanes, across = width // classes, np.empty((classes, width // classes), np.int64)
    expected, total = np.empty(lanes, np.int64), np.empty(lanes, np.int64)
    own, down, kept = np.empty(width, np.int64), np.empty(width, np.int64), np.empty(width, np.int64)
    held, whole = np.empty(width, np.int64), np.empty(width, np.int64)
    for r in range(rows):
        for g in range(groups):
            for h in range(parts):
                source = sign[h] if learned == GIVEN else over[r, g, h if learned == PLUGIN else 1 - h]
                size = n[r, g, h]
                for m in range(width):
                    down[m] = held[m] = 0
                for t in range(lanes):
                    expected[t] = 0
                for k in range(classes):
                    _repeat_lanes(a[r, g, h, k], own)
                    for m in range(width):
                        paid = source[k, m] > 0
                        down[m] += own[m] if paid else 0
                        held[m] += over[r, g, h, k, m] if paid else 0
                        kept[m] = b[r, g, h, m] if paid else 0
                    _sum_labels(kept, across[k])
                    for t in range(lanes):
                        expected[t] += a[r, g, h, k, t] * across[k, t]
                _sum_labels(held, total)
                _repeat_lanes(size, whole)
                for k in range(classes):
                    for t in range(lanes):
                        across[k, t] = expected[t] - total[t] - size[t] * across[k, t]
                    _repeat_lanes(across[k], own)
                    for m in range(width):
                        one = whole[m] if source[k, m] > 0 else 0
                        kept[m] = own[m] + whole[m] * (one - down[m])
                    for t in range(min(lanes, tables.shape[1] - g * lanes)):
                        both = 0
                        for other in range(parts):
                            both += n[r, g, other, t]
                        if size[t] >= 2 and j + g * lanes + t != skip[r]:
                            share = 1.0 / (float(size[t]) * float(size[t]) * float(both))
                            for m in range(classes):
                                tables[r, g * lanes + t, h, k + border, m + border] = kept[m * lanes + t] * share


@compiled
def _differing_pairs(over, j, skip, learned, usual, found):  # type: ignore[no-untyped-def]
    """Which pairs (rows, columns) have another sign than the usual one, or are not to be counted at all."""
    rows, groups, parts, classes, width = over.shape
    lanes, other = width // classes, np.empty(width, np.int64)
    for r in range(rows):
        for g in range(groups):
            for m in range(width):
                other[m] = 0
            for h in range(parts):
                source = over[r, g, h if learned == PLUGIN else 1 - h]
                for k in range(classes):
                    for m in range(width):
                        other[m] |= np.int64(source[k, m] > 0) ^ usual[h, k, m]
            for t in range(min(lanes, found.shape[1] - g * lanes)):
                differs = j + g * lanes + t == skip[r]
                for m in range(t, width, lanes):
                    differs |= other[m] != 0
                found[r, g * lanes + t] = differs


@compiled
def _table_starts(labels, part, border, width, deep, base):  # type: ignore[no-untyped-def]
    """Where a row's part of a table starts, for what it says on each task; a table has `deep` entries a label."""
    for n in range(labels.size):
        base[n] = (labels[n] + border) * deep
    for n in range(part.size):
        base[n] += part[n] * width * deep


@compiled
def _look_up(rows, columns, chosen, part, border, tables, found):  # type: ignore[no-untyped-def]
    """Add tables[r, c, part(n), row_r(n), column_c(n)] of the chosen pairs; a label is moved by the border."""
    tasks, width = rows.shape[1], tables.shape[-1]
    base = np.empty(tasks, np.uint32)
    for r in range(len(rows)):
        _table_starts(rows[r], part, border, width, width, base)
        for n in range(tasks):
            base[n] += border
        held, some = found[r], np.nonzero(chosen[r])[0]
        for c in range(0, some.size - 1, 2):
            t0, t1 = tables[r, some[c]].ravel(), tables[r, some[c + 1]].ravel()
            c0, c1 = columns[some[c]], columns[some[c + 1]]
            for n in range(tasks):
                held[n] += t0[np.uint64(base[n] + c0[n])] + t1[np.uint64(base[n] + c1[n])]
        if some.size % 2:
            t0, c0 = tables[r, some[-1]].ravel(), columns[some[-1]]
            for n in range(tasks):
                held[n] += t0[np.uint64(base[n] + c0[n])]


@compiled
def _sum_tables(one, two, out):  # type: ignore[no-untyped-def]
    """Tables of what two columns say (Q, W), as one table of what both say (Q, W * W)."""
    width = one.shape[1]
    for q in range(len(one)):
        for m in range(width):
            for k in range(width):
                out[q, m * width + k] = one[q, m] + two[q, k]


@compiled
def _look_up_folded(rows, codes, part, border, fold, tables, found):  # type: ignore[no-untyped-def]
    """As `_look_up`, where a byte stands for what two or four columns say: one table of all, fewer look-ups."""
    tasks, (deep, width) = rows.shape[1], tables.shape[2:]
    few = width if fold == 2 else width * width
    base, pair, every = np.empty(tasks, np.uint32), np.empty((2, deep, few)), np.empty((4, deep, few * few))
    t0, t1, t2, t3 = every[0].ravel(), every[1].ravel(), every[2].ravel(), every[3].ravel()
    for r in range(len(rows)):
        _table_starts(rows[r], part, border, width, few * few, base)
        held = found[r]
        for c in range(0, len(codes), 4):
            for d in range(4):
                each = tables[r, (c + d) * fold : (c + d + 1) * fold]
                if fold == 2:
                    _sum_tables(each[0], each[1], every[d])
                else:
                    _sum_tables(each[0], each[1], pair[0])
                    _sum_tables(each[2], each[3], pair[1])
                    _sum_tables(pair[0], pair[1], every[d])
            c0, c1, c2, c3 = codes[c], codes[c + 1], codes[c + 2], codes[c + 3]
            for n in range(tasks):
                at = np.uint64(base[n])
                low = t0[at + np.uint64(c0[n])] + t1[at + np.uint64(c1[n])]
                held[n] += low + (t2[at + np.uint64(c2[n])] + t3[at + np.uint64(c3[n])])


def phi(
    rows: Labels, columns: Labels, classes: int, sign: Sign, half: Ints | None, skip: Ints | None, engine: Engine
) -> tuple[Ints, Ints, Floats]:
    """See `verax.kernels.phi`."""
    if not 0 < rows.shape[1] <= pairs.CHUNK:
        return _numpy_phi.phi(rows, columns, classes, sign, half, skip, engine, pairs.counts, sums)
    parts = 1 if half is None else 2
    skip = np.full(len(rows), -1) if skip is None else skip.astype(np.int64)
    counter = pairs.Counter.of(rows, columns, classes, half, parts)
    learned, matrix = pairs.sign_source(sign, counter)
    total = np.zeros((len(rows), len(columns), parts), dtype=np.int64)
    tasks = np.zeros_like(total)
    border = int(counter.left_out)
    width = classes + border
    fold = _fold_size(rows.shape[1], width, parts) if counter.lanes > 1 else 1
    usual, found = None, np.zeros(rows.shape)
    if learned != GIVEN and not counter.left_out and len(columns) >= _WORTH_USUAL:
        usual, found = _usual_sign(rows, columns, classes, learned == PLUGIN, half, engine)
    same = None if usual is None else np.repeat(usual, counter.lanes, axis=2)
    for tile in counter.tiles(columns, engine):
        codes = _folded_codes(tile.labels, fold, width, border)

        def add(side: Side, cells: Ints, j: int, skipped: Ints, tile: Side = tile, codes: Codes = codes) -> None:
            start, end = j - tile.first, min(len(tile.labels), j - tile.first + cells.shape[1] * counter.lanes)
            who, most = slice(side.first, side.first + len(side.labels)), -(-(end - start) // (4 * fold)) * 4 * fold
            n, a, b = pairs.turned_to_excess(cells, skipped, counter.lanes)
            stop = tile.first + end - j
            pairs.add_totals(cells, n, side.first, j, stop, skipped, pairs.PLAIN, learned, matrix, total, tasks)
            few = np.ones((len(side.labels), end - start), dtype=np.bool_)
            if same is not None:
                _differing_pairs(cells, j, skip[who], learned, same, few)
                if not few.any():
                    return
            tables = np.zeros((len(side.labels), most, parts, width, width))
            _centre_tables(cells, n, a, b, j, skip[who], learned, matrix[None], border, tables[:, : end - start])
            if same is not None:
                counted = np.zeros_like(tables)
                nobody = np.full_like(skip[who], -1)
                _centre_tables(cells, n, a, b, j, nobody, GIVEN, same, border, counted[:, : end - start])
                tables -= counted
            if fold == 1 or few.mean() < _FEW_DIFFER:
                _look_up(side.labels, tile.labels[start:end], few, counter.tasks.part, border, tables, found[who])
            else:
                some, flat = codes[start // fold : (start + most) // fold], tables.reshape(len(tables), most, -1, width)
                _look_up_folded(side.labels, some, counter.tasks.part, border, fold, flat, found[who])

        counter.batches(rows, tile, engine, add)
    return total, tasks, found


def _usual_sign(
    rows: Labels, columns: Labels, classes: int, here: bool, half: Ints | None, engine: Engine
) -> tuple[Ints | None, Floats]:
    """The sign that all pairs together have in each half, and phi if every pair had it; none where few of them do.

    Classifiers that are right more often than not mostly share one sign, and a sum over columns with one sign needs
    only how many said what. What is left to look up are the pairs that have another.
    """
    parts = [np.arange(rows.shape[1])] if half is None else [np.nonzero(half == h)[0] for h in (0, 1)]
    every = [tallies(columns[:, at], classes, engine)[0].astype(np.float64) for at in parts]
    pooled = np.stack([_pooled_sign(said) for said in every])
    usual = pooled if here else np.ascontiguousarray(pooled[::-1])
    some, beside = rows[:: max(1, len(rows) // 8)], columns[:: max(1, len(columns) // 64)]
    over = excess(pairs.counts(some, beside, classes, half, len(parts), engine)) > 0
    if (over == pooled).all((2, 3, 4)).mean() < 0.5:
        return None, np.zeros(rows.shape)
    found = np.zeros(rows.shape)
    for at, said, matrix in zip(parts, every, usual, strict=True):
        if len(at) < 2:
            continue
        weight = times(said, matrix.T)
        for i in range(0, len(rows), step := max(1, engine.max_bytes // (64 * len(at)))):
            labels = rows[i : i + step, at]
            held = tallies(labels, classes, engine)[1]
            rest = np.broadcast_to(said.sum(0), held.shape)
            terms = centre(len(at), held, rest, matrix, False)
            psi = influence(labels, weight, said, *terms)
            psi -= psi[:, :1].copy()  # a psi that never changes has no spread, whatever its size
            found[i : i + step, at] = (psi - psi.mean(1, keepdims=True)) / rows.shape[1]
    return usual, found


def _pooled_sign(said: Floats) -> Ints:
    """Where the excess of all pairs together is above 0; any sign would do, this one is likely."""
    held = said.sum(0)
    return (len(said) * (said.T @ said) > np.outer(held, held)).astype(np.int64)


def _fold_size(tasks: int, width: int, parts: int) -> int:
    """How many columns one byte stands for: as many as keep the tables small beside the tasks."""
    return next((f for f in (4, 2) if width**f <= 2**8 and parts * width ** (f + 1) <= min(2**12, tasks // 2)), 1)


def _folded_codes(labels: Labels, fold: int, width: int, border: int) -> Codes:
    """What every so many columns say, as one byte; four more at the end, so that four can be read at any."""
    if fold == 1:
        return np.empty((0, labels.shape[1]), dtype=np.uint8)
    codes = np.zeros((-(-len(labels) // fold) + 4, labels.shape[1]), dtype=np.uint8)
    for k in range(fold):
        said = labels[k::fold]
        codes *= np.uint8(width)
        codes[: len(said)] += (said + border).astype(np.uint8)
    return codes


def sums(rows: Labels, columns: Labels, tables: Floats, part: Ints | None, engine: Engine) -> Floats:
    """See `verax.kernels.sums`."""
    found = np.zeros(rows.shape)
    parts = np.empty(0, dtype=np.int64) if part is None else np.ascontiguousarray(part, dtype=np.int64)
    x, y = narrow(rows, tables.shape[-1]), narrow(columns, tables.shape[-1])
    every = np.ones((1, len(columns)), dtype=np.bool_)
    step = max(1, min(len(columns), int(engine.max_bytes // 2 // max(1, tables[:1, :1].nbytes))))

    def add(i: int) -> None:
        for j in range(0, len(columns), step):
            bordered = np.pad(tables[i : i + 1, j : j + step], ((0, 0), (0, 0), (0, 0), (1, 0), (1, 0)))
            _look_up(x[i : i + 1], y[j : j + step], every[:, j : j + step], parts, 1, bordered, found[i : i + 1])

    pairs.each_in_threads(add, range(len(rows)), engine.threads or cores())
    return found
