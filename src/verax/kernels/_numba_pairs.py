"""Pairs counted in machine code, and what is made of the counts before they leave the core's cache: sums, totals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from verax.kernels import Engine, Ints, Labels, Sign, _numpy_pairs, cores
from verax.kernels import _numba_planes as planes
from verax.kernels._compiled import MOST_NARROW, WORD, compiled, narrow
from verax.kernels._numba_planes import LANES, Side, Tasks, Words, take_from_last

CHUNK = 2**17  # tasks whose planes are made at once
_ROWS = 8  # met with a group before the next group comes
_CACHE = 2**19  # bytes of counts made at once
_WORTH_TWO = 2**17  # tasks for which a table of 65,536 numbers is little
_LONG = 2**20  # tasks of a histogram, and enough for a thread of their own
_ALL = np.uint64(2**64 - 1)
GIVEN, PLUGIN, SPLIT = 0, 1, 2
PLAIN, MIRROR, TURNED = 0, 1, 2

Work = Callable[[Side, Ints, int, Ints], None]


@dataclass(frozen=True)
class Counter:
    """How the pairs of some tasks are counted, and the columns they are counted with."""

    tasks: Tasks
    classes: int
    said: Words  # what each plane says; none: histograms count
    left_out: bool  # whether any task was left out
    mirror: bool  # the columns are the rows: pairs below the diagonal are not counted

    @classmethod
    def of(
        cls, rows: Labels, columns: Labels, classes: int, part: Ints | None, parts: int, mirror: bool = False
    ) -> Counter:
        """The quicker way for these reports; both give the same."""
        tasks = Tasks.of(part, parts, rows.shape[1])
        left_out = bool(rows.min(initial=0) < 0 or columns.min(initial=0) < 0)
        said = np.zeros((classes - 1 + left_out, classes + 1), dtype=np.uint64)
        said[np.arange(classes - 1), np.arange(1, classes)] = _ALL
        if left_out:
            said[-1, 1:] = _ALL
        if not _by_planes(len(rows), len(columns), classes, len(said), tasks):
            said = said[:0]
        return cls(tasks, classes, said, left_out, mirror)

    @property
    def lanes(self) -> int:
        """How many columns stand side by side in a group."""
        return LANES if len(self.said) else 1

    @property
    def pair_bytes(self) -> int:
        """What the counts of one pair take."""
        return 8 * len(self.tasks.sizes) * self.classes**2

    def tiles(self, columns: Labels, engine: Engine) -> Iterator[Side]:
        """The columns, as many at a time as fit the memory."""
        each = len(self.said) * (8 * self.tasks.starts[-1] + 8 * len(self.tasks.sizes)) + columns.shape[1]
        step = self.lanes * max(1, int(engine.max_bytes // 2 // max(each * self.lanes, 1)))
        for first in range(0, len(columns), step):
            yield self.side(columns[first : first + step], first, self.lanes)

    def side(self, labels: Labels, first: int, lanes: int) -> Side:
        """Agents with their planes, in lanes."""
        return Side.of(narrow(labels, self.classes), first, self.tasks, self.said, lanes)

    def batches(self, rows: Labels, tile: Side, engine: Engine, work: Work) -> None:
        """Count the pairs of all rows and a tile, as many at a time as stay in cache, and give them to `work`."""
        threads = engine.threads or cores()
        run = max(1, min(_ROWS, -(-len(rows) // threads)))

        def count(first: int) -> None:
            side = self.side(rows[first : first + run], first, 1)
            groups = -(-len(tile.labels) // self.lanes)
            step = max(1, _CACHE // max(1, self.pair_bytes * self.lanes * len(side.labels)))
            start = (first - tile.first) // self.lanes if self.mirror else 0
            for g in range(max(0, start), groups, step):
                work(side, *self._counted_cells(side, tile, g, min(groups, g + step)))

        each_in_threads(count, range(0, len(rows), run), threads)

    def _counted_cells(self, side: Side, tile: Side, g: int, end: int) -> tuple[Ints, int, Ints]:
        """Cells of these rows and groups, the number of the first column, and the groups to skip in each row."""
        parts, lanes = len(self.tasks.sizes), self.lanes
        cells = np.empty((len(side.labels), end - g, parts, self.classes, self.classes * lanes), dtype=np.int64)
        first = tile.first + g * lanes
        behind = (side.first + np.arange(len(side.labels)) - first) // lanes
        skipped = np.clip(behind, 0, end - g) if self.mirror else np.zeros_like(behind)
        if lanes == 1 and parts == 1 and self.classes < 2**4 and side.labels.shape[1] >= _WORTH_TWO:
            planes.histograms_of_two(side.labels, tile.labels[g:end], skipped, cells)
        elif lanes == 1:
            planes.histograms(side.labels, tile.labels[g:end], self.tasks.part, skipped, cells)
        else:
            planes.meet(side.planes, tile.planes[g:end], self.tasks.starts, skipped, cells)
            if not self.left_out:
                planes.put_margins(cells, side.margins, tile.margins[g:end], self.tasks.sizes, skipped)
        return cells, first, skipped


def _by_planes(rows: int, columns: int, classes: int, planes: int, tasks: Tasks) -> bool:
    """Whether planes are quicker than histograms; nanoseconds a pair as measured on a Zen 4 core."""
    if not 2 <= classes <= MOST_NARROW:
        return False
    lanes, parts, size = -(-columns // LANES) * LANES / max(columns, 1), len(tasks.sizes), int(tasks.sizes.sum())
    made = (1 / max(rows, 1) + 1 / max(columns, 1)) * (0.25 + 0.045 * classes) * size
    by_planes = made + lanes * (0.058 * int(tasks.starts[-1]) * planes**2 + 0.3 * parts * classes**2)
    one = 0.3 if parts == 1 and classes < 2**4 and size >= _WORTH_TWO else 0.45
    return bool(by_planes < one * size + 0.5 * parts * (classes + 1) ** 2)


def each_in_threads(work: Callable[[int], None], items: Iterable[int], threads: int) -> None:
    """Do the work on every item, in so many threads."""
    if threads == 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, items):
            pass


@compiled
def _add_counts(cells, i, j, columns, skipped, way, found):  # type: ignore[no-untyped-def]
    """Add to found (I, J, parts, L, L): the rows as rows, as columns, or on both sides of the diagonal."""
    rows, groups, parts, classes, width = cells.shape
    lanes = width // classes
    for r in range(rows):
        for g in range(skipped[r], groups):
            for t in range(min(lanes, columns - g * lanes)):
                p, q = i + r, j + g * lanes + t
                for h in range(parts):
                    for k in range(classes):
                        if way == PLAIN or (way == MIRROR and p <= q):
                            for m in range(classes):
                                found[p, q, h, k, m] += cells[r, g, h, k, m * lanes + t]
                        if way == TURNED or (way == MIRROR and p < q):
                            for m in range(classes):
                                found[q, p, h, m, k] += cells[r, g, h, k, m * lanes + t]


def counts(rows: Labels, columns: Labels, classes: int, part: Ints | None, parts: int, engine: Engine) -> Ints:
    """See `verax.kernels.counts`."""
    shape, threads = (len(rows), len(columns), parts, classes, classes), engine.threads or cores()
    if min(shape[:2]) < threads and rows.shape[1] > _LONG and 16 * threads * math.prod(shape) < engine.max_bytes:
        return _counts_of_runs(rows, columns, classes, part, parts, replace(engine, threads=threads))
    found = np.zeros(shape, dtype=np.int64)
    way = MIRROR if rows is columns else TURNED if len(rows) > len(columns) else PLAIN
    if way == TURNED:
        rows, columns = columns, rows
    for chunk in _task_chunks(rows.shape[1], len(columns), engine):
        x = rows[:, chunk]
        y = x if way == MIRROR else columns[:, chunk]
        counter = Counter.of(x, y, classes, None if part is None else part[chunk], parts, way == MIRROR)
        for tile in counter.tiles(y, engine):

            def add(side: Side, cells: Ints, j: int, skipped: Ints, end: int = tile.first + len(tile.labels)) -> None:
                if cells.shape[4] > classes:
                    planes.complete_cells(cells, skipped)
                _add_counts(cells, side.first, j, end - j, skipped, way, found)

            counter.batches(x, tile, engine, add)
    return found


def _counts_of_runs(rows: Labels, columns: Labels, classes: int, part: Ints | None, parts: int, engine: Engine) -> Ints:
    """Few pairs on many tasks: each thread counts a run of the tasks, and the counts add up."""
    threads, tasks = engine.threads or 1, rows.shape[1]
    found: list[Ints] = [np.empty(0, dtype=np.int64)] * threads

    def count(k: int) -> None:
        run = slice(tasks * k // threads, tasks * (k + 1) // threads)
        x = rows[:, run]
        y = x if rows is columns else columns[:, run]
        share = replace(engine, threads=1, max_bytes=engine.max_bytes // threads)
        found[k] = counts(x, y, classes, None if part is None else part[run], parts, share)

    each_in_threads(count, range(threads), threads)
    return np.asarray(sum(found[1:], found[0]))


def _task_chunks(tasks: int, columns: int, engine: Engine) -> Iterator[slice]:
    """Runs of tasks: as many as stay in cache with the planes of eight columns, more where there are no planes."""
    size = max(WORD**2, min(CHUNK if columns >= LANES else _LONG, engine.max_bytes // 64))
    return (slice(start, min(tasks, start + size)) for start in range(0, tasks, size))


@compiled
def _to_excess(cells, skipped, n, a, b):  # type: ignore[no-untyped-def]
    """Turn the counts into n C - a b^T in place; n (.., lanes), a (.., L, lanes), b (.., L * lanes) are their margins.

    In eight lanes the last row and column hold margins still; those of the result follow, because they sum to 0.
    """
    rows, groups, parts, classes, width = cells.shape
    for r in range(rows):
        for g in range(skipped[r], groups):
            for h in range(parts):
                c, size, own, other = cells[r, g, h], n[r, g, h], a[r, g, h], b[r, g, h]
                if width > classes:
                    _to_excess_from_margins(c, size, own, other)
                    continue
                size[0] = 0
                for m in range(width):
                    other[m] = 0
                for k in range(classes):
                    held = 0
                    for m in range(width):
                        held += c[k, m]
                        other[m] += c[k, m]
                    own[k, 0] = held
                    size[0] += held
                for k in range(classes):
                    for m in range(width):
                        c[k, m] = size[0] * c[k, m] - own[k, 0] * other[m]


@compiled
def _to_excess_from_margins(c, n, a, b):  # type: ignore[no-untyped-def]
    last = c.shape[0] - 1
    for t in range(LANES):
        n[t] = a[last, t] = b[LANES * last + t] = c[last, LANES * last + t]
        c[last, LANES * last + t] = 0
    for k in range(last):
        for t in range(LANES):
            a[k, t], b[LANES * k + t] = c[k, LANES * last + t], c[last, LANES * k + t]
            a[last, t] -= a[k, t]
            b[LANES * last + t] -= b[LANES * k + t]
            c[k, LANES * last + t] = c[last, LANES * k + t] = 0
    for k in range(last):
        for m in range(last):
            for t in range(LANES):
                c[k, LANES * m + t] = n[t] * c[k, LANES * m + t] - a[k, t] * b[LANES * m + t]
    take_from_last(c)


def turned_to_excess(cells: Ints, skipped: Ints, lanes: int) -> tuple[Ints, Ints, Ints]:
    """The cells become n C - a b^T; n, a and b are returned."""
    shape, classes = cells.shape[:3], cells.shape[3]
    n, a = np.empty((*shape, lanes), dtype=np.int64), np.empty((*shape, classes, lanes), dtype=np.int64)
    b = np.empty((*shape, classes * lanes), dtype=np.int64)
    _to_excess(cells, skipped, n, a, b)
    return n, a, b


@compiled
def add_totals(over, n, i, j, columns, skipped, way, learned, sign, total, tasks):  # type: ignore[no-untyped-def]
    """Put <S, n C - a b^T> and n at (i, j), at (j, i), or at both. S is 1 where its source is positive."""
    rows, groups, parts, classes, width = over.shape
    lanes, held = width // classes, np.empty(width, np.int64)
    for r in range(rows):
        for g in range(skipped[r], groups):
            for h in range(parts):
                source = sign if learned == GIVEN else over[r, g, h if learned == PLUGIN else 1 - h]
                for m in range(width):
                    held[m] = 0
                for k in range(classes):
                    for m in range(width):
                        held[m] += over[r, g, h, k, m] if source[k, m] > 0 else 0
                for t in range(min(lanes, columns - g * lanes)):
                    summed = 0
                    for m in range(classes):
                        summed += held[m * lanes + t]
                    p, q = i + r, j + g * lanes + t
                    if way != TURNED:
                        total[p, q, h], tasks[p, q, h] = summed, n[r, g, h, t]
                    if way != PLAIN:
                        total[q, p, h], tasks[q, p, h] = summed, n[r, g, h, t]


def totals(
    rows: Labels, columns: Labels, classes: int, sign: Sign, half: Ints | None, engine: Engine
) -> tuple[Ints, Ints]:
    """See `verax.kernels.totals`."""
    if not 0 < rows.shape[1] <= CHUNK:
        return _numpy_pairs.totals(rows, columns, classes, sign, half, engine, counts)
    parts, same = 1 if half is None else 2, rows is columns
    total = np.zeros((len(rows), len(columns), parts), dtype=np.int64)
    tasks = np.zeros_like(total)
    way = TURNED if len(rows) > len(columns) else PLAIN
    if same and (isinstance(sign, str) or bool((sign == sign.T).all())):
        way = MIRROR
    if way == TURNED:
        rows, columns = columns, rows
        sign = sign if isinstance(sign, str) else sign.T
    counter = Counter.of(rows, columns, classes, half, parts, way == MIRROR)
    if not isinstance(sign, str) and not counter.left_out and len(columns) > LANES // 2 and classes <= MOST_NARROW:
        tasks[:] = rows.shape[1]
        into = total[:, :, 0].T if way == TURNED else total[:, :, 0]
        _totals_of_given_sign(counter, rows, columns, sign, into, engine)
        return total, tasks
    learned, matrix = sign_source(sign, counter)
    for tile in counter.tiles(columns, engine):

        def put(side: Side, cells: Ints, j: int, skipped: Ints, end: int = tile.first + len(tile.labels)) -> None:
            n, _, _ = turned_to_excess(cells, skipped, counter.lanes)
            add_totals(cells, n, side.first, j, end - j, skipped, way, learned, matrix, total, tasks)

        counter.batches(rows, tile, engine, put)
    return total, tasks


def _totals_of_given_sign(
    counter: Counter, rows: Labels, columns: Labels, sign: npt.NDArray[np.generic], total: Ints, engine: Engine
) -> None:
    """With S given and dense reports no cell is needed: the planes of k, all in a row, meet those of S(k, l) = 1.

    What they share is sum_n S(f_i(n), f_j(n)), and n times that less a^T S b is the total.
    """
    said = np.zeros((2, counter.classes, counter.classes + 1), dtype=np.uint64)
    said[0, :, 1:][np.eye(counter.classes, dtype=bool)] = said[1, :, 1:][sign.astype(bool)] = _ALL
    asked = replace(counter, said=said[1])
    size, n = counter.classes * counter.tasks.starts[-1], rows.shape[1]
    for tile in asked.tiles(columns, engine):
        y, paid = tile.planes.reshape(-1, 1, size, LANES), tile.margins.reshape(-1, counter.classes)[: len(tile.labels)]

        def meet(first: int, tile: Side = tile, y: Words = y, paid: Ints = paid) -> None:
            side = replace(counter, said=said[0]).side(rows[first : first + 3 * LANES], first, 1)
            start = max(0, (first - tile.first) // LANES) if counter.mirror else 0
            if start >= len(y):
                return
            met = np.empty((1, len(y) - start, 1, len(side.labels), LANES), dtype=np.int64)
            x = side.planes.reshape(1, -1, size, 1)
            planes.meet(x, y[start:], np.array([0, size]), np.zeros(1, np.int64), met)
            held = paid[start * LANES :]
            shared = met[0, :, 0].swapaxes(0, 1).reshape(len(side.labels), -1)[:, : len(held)]
            found = n * shared - side.margins.reshape(-1, counter.classes) @ held.T
            i, j = slice(first, first + len(found)), tile.first + start * LANES
            total[i, j : j + len(held)] = found
            if counter.mirror:
                total[j : j + len(held), i] = found.T

        each_in_threads(meet, range(0, len(rows), 3 * LANES), engine.threads or cores())


def sign_source(sign: Sign, counter: Counter) -> tuple[int, Ints]:
    """How S is found, and S itself in every lane where it is given."""
    if isinstance(sign, str):
        return PLUGIN if sign == "plugin" else SPLIT, np.empty((0, 0), dtype=np.int64)
    return GIVEN, np.repeat(sign.astype(np.int64), counter.lanes, axis=1)
