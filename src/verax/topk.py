"""TopK: rows of probabilities over very many labels, by the few likeliest of each row and what is left for the others.

What is left is spread evenly over the labels that are not listed, so a row in this form is one row and no other: every
rule means on it what it means on the row written out. Whatever labels are listed, the row nearest to a belief, by a
logarithmic or a squared loss, gives them the belief's own probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.errors import InputError
from verax.space import check_memory

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_MISS_OF_ONE = 2e-3
_EXACT = 1e-9
WORTH_LISTING = 2**22  # cells of rows, up to which listed ones are written out


@dataclass(frozen=True, eq=False)
class TopK:
    """Rows by their likeliest labels: `labels` (..., k), their `shares` (..., k), of so many `classes`.

    A label of -1 lists nothing there, and a row that lists nothing is an abstention.

    >>> rows = TopK.of([[2, 0], [1, 3]], [[0.7, 0.2], [0.5, 0.3]], classes=4)
    >>> rows.dense().round(3).tolist()
    [[0.2, 0.05, 0.7, 0.05], [0.1, 0.5, 0.1, 0.3]]
    """

    labels: npt.NDArray[np.int32]
    shares: Floats
    classes: int

    @classmethod
    def of(cls, labels: npt.ArrayLike, shares: npt.ArrayLike, classes: int, rest: npt.ArrayLike | None = None) -> TopK:
        """Checked rows; `rest`, where it is given, is what the shares leave of 1."""
        places: npt.NDArray[Any] = np.asarray(labels)
        listed: npt.NDArray[Any] = np.asarray(shares)
        if places.shape != listed.shape or places.ndim < 2 or places.dtype.kind not in "iu":
            raise InputError(
                f"top labels have shape {places.shape} and type {places.dtype}, their probabilities {listed.shape}; "
                "give integers and numbers of one shape (tasks, k) or (agents, tasks, k)"
            )
        if listed.dtype.kind not in "fiu":
            raise InputError(f"the probabilities of top labels are {listed.dtype}; give numbers")
        if not isinstance(classes, int | np.integer) or classes < 2 or not 0 < places.shape[-1] <= classes:
            raise InputError(f"{places.shape[-1]} labels listed of {classes} classes; list 1 at least, and no more")
        places, listed = places.astype(np.int64), np.where(places < 0, 0.0, listed.astype(np.float64))
        _refuse_labels(places, int(classes))
        return cls(places.astype(np.int32), _checked_shares(places, listed, rest, int(classes)), int(classes))

    @classmethod
    def of_rows(cls, rows: npt.ArrayLike, k: int) -> TopK:
        """The k likeliest labels of every row (..., L).

        >>> TopK.of_rows([[0.2, 0.05, 0.7, 0.05]], 2).labels.tolist()
        [[2, 0]]
        """
        array = np.asarray(rows)
        if array.ndim < 2 or array.dtype.kind not in "fiu" or not 0 < k <= array.shape[-1]:
            raise InputError(f"rows have shape {array.shape}, of which the {k} likeliest are asked; give rows (..., L)")
        flat = array.reshape(-1, array.shape[-1])
        found = np.empty((len(flat), k), np.int64)
        for n, row in enumerate(flat):
            likely = np.argpartition(-row, k - 1)[:k]
            found[n] = likely[np.lexsort((likely, -row[likely]))]
        shares = np.take_along_axis(flat, found, axis=1).astype(np.float64)
        absent = np.asarray(np.isnan(shares).any(1))
        found[absent] = -1
        shape = (*array.shape[:-1], k)
        return cls.of(found.reshape(shape), np.where(absent[:, None], 0.0, shares).reshape(shape), array.shape[-1])

    @classmethod
    def stack(cls, rows: list[TopK]) -> TopK:
        """Several agents' rows as one, each listing as many labels as the longest."""
        k = max(r.labels.shape[-1] for r in rows)
        pads = [((0, 0),) * (r.labels.ndim - 1) + ((0, k - r.labels.shape[-1]),) for r in rows]
        labels = np.stack([np.pad(r.labels, p, constant_values=-1) for r, p in zip(rows, pads, strict=True)])
        return cls(labels, np.stack([np.pad(r.shares, p) for r, p in zip(rows, pads, strict=True)]), rows[0].classes)

    def __getitem__(self, at: Any) -> TopK:
        return TopK(self.labels[at], self.shares[at], self.classes)

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[TopK]:
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self.dense(), dtype=dtype)

    @property
    def ndim(self) -> int:
        """That of the rows written out."""
        return self.labels.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the rows written out."""
        return (*self.labels.shape[:-1], self.classes)

    @property
    def nbytes(self) -> int:
        """What it takes of memory."""
        return self.labels.nbytes + self.shares.nbytes

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Which rows list anything."""
        return np.asarray((self.labels >= 0).any(-1))

    @property
    def likeliest(self) -> Ints:
        """The likeliest label of every row, the lowest of equals, -1 where nothing is listed.

        >>> TopK.of([[2, 0], [-1, -1]], [[0.45, 0.45], [0.0, 0.0]], classes=4).likeliest.tolist()
        [0, -1]
        """
        most = self.shares.max(-1, keepdims=True)
        best = np.where((self.shares == most) & (self.labels >= 0), self.labels, self.classes).min(-1)
        above = most[..., 0] < self.others  # a label that is not listed is likelier than any that is
        return np.where(self.answered, np.where(above, self._lowest_unlisted, best), -1)

    @property
    def _lowest_unlisted(self) -> Ints:
        listed = np.sort(np.where(self.labels < 0, self.classes, self.labels), axis=-1)
        return np.asarray((listed == np.arange(listed.shape[-1])).cumprod(-1).sum(-1))

    @property
    def others(self) -> Floats:
        """The probability of each label that is not listed."""
        left = self.classes - (self.labels >= 0).sum(-1)
        return np.asarray(np.maximum(1.0 - self.shares.sum(-1), 0.0) / np.maximum(left, 1))

    def dense(self) -> Floats:
        """The rows written out, NaN where nothing is listed, if they fit."""
        check_memory("rows of probabilities", "keep the k likeliest labels of each (verax.TopK)", *self.shape)
        full = np.repeat(self.others[..., None], self.classes, axis=-1)
        flat, labels, shares = full.reshape(-1, self.classes), *(a.reshape(-1, a.shape[-1]) for a in self._arrays)
        row, place = np.nonzero(labels >= 0)
        flat[row, labels[row, place]] = shares[row, place]
        flat[~self.answered.ravel()] = np.nan
        return full

    def entries(self) -> Entries:
        """One agent's rows (N, k), to be scored by their entries.

        >>> TopK.of([[2, 0]], [[0.7, 0.2]], classes=4).entries().at(np.array([1])).round(3).tolist()
        [0.05]
        """
        listed = self.labels >= 0
        others = self.others
        return Entries(
            np.where(listed, self.labels, 0), np.where(listed, self.shares, others[:, None]), others, self.classes
        )

    @property
    def _arrays(self) -> tuple[npt.NDArray[np.int32], Floats]:
        return self.labels, self.shares


@dataclass(frozen=True, eq=False)
class Entries:
    """Numbers by task and label (N, L), of which all are `others` but a few a task: `listed` at `labels` (N, k).

    >>> Entries.of_labels(np.array([1, 0]), 3).sums().tolist()
    [1.0, 1.0, 0.0]
    """

    labels: npt.NDArray[Any]
    listed: Floats
    others: Floats
    classes: int

    @classmethod
    def of_labels(cls, labels: npt.NDArray[Any], classes: int) -> Entries:
        """Labels as one-hot rows."""
        return cls(labels[:, None], np.ones((len(labels), 1)), np.zeros(len(labels)), classes)

    def __len__(self) -> int:
        return len(self.others)

    def __getitem__(self, chosen: Any) -> Entries:
        return Entries(self.labels[chosen], self.listed[chosen], self.others[chosen], self.classes)

    def each(self, function: Callable[[Floats], Floats]) -> Entries:
        """A function of every entry.

        >>> Entries.of_labels(np.array([1]), 3).each(lambda x: 2 * x).at(np.array([1])).tolist()
        [2.0]
        """
        return Entries(self.labels, function(self.listed), function(self.others), self.classes)

    @cached_property
    def _beyond(self) -> Floats:
        return np.asarray(self.listed - self.others[:, None])

    def at(self, labels: npt.NDArray[Any]) -> Floats:
        """The entry of one label of each task."""
        return np.asarray(self.others + np.where(self.labels == labels[:, None], self._beyond, 0.0).sum(1))

    def sums(self) -> Floats:
        """The sum over tasks, for every label."""
        found = np.bincount(self.labels.ravel(), self._beyond.ravel(), self.classes)
        return np.asarray(found + self.others.sum())

    def dot(self, weights: Floats) -> Floats:
        """Of every task the sum over labels, each counting for its weight.

        >>> Entries.of_labels(np.array([1, 0]), 3).dot(np.array([5.0, 6.0, 7.0])).tolist()
        [6.0, 5.0]
        """
        return np.asarray(self.others * weights.sum() + (self._beyond * weights[self.labels]).sum(1))


def labels_of_rows(rows: npt.NDArray[Any] | TopK) -> Ints:
    """The likeliest label of every row, the lowest of equals.

    >>> labels_of_rows(np.array([[0.2, 0.4, 0.4]])).tolist()
    [1]
    """
    return rows.likeliest if isinstance(rows, TopK) else np.asarray(rows.argmax(-1))


def one_hot(labels: npt.NDArray[Any], classes: int, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Labels (N,) as rows (N, L), if they fit.

    >>> one_hot(np.array([1, 0]), 3).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    check_memory("labels as rows", "take fewer classes, or fewer tasks", len(labels), classes)
    found = np.zeros((len(labels), classes), dtype)
    found[np.arange(len(labels)), labels] = 1
    return found


def _refuse_labels(labels: Ints, classes: int) -> None:
    flat = labels.reshape(-1, labels.shape[-1])
    for n, place in np.argwhere((flat < -1) | (flat >= classes))[:1]:
        raise InputError(f"row {n} lists label {flat[n, place]}; expected 0 to {classes - 1}, or -1 for none")
    ordered = np.sort(flat, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    for n, place in np.argwhere(twice)[:1]:
        raise InputError(f"row {n} lists label {ordered[n, place]} twice; list each label once")


def _checked_shares(labels: Ints, shares: Floats, rest: npt.ArrayLike | None, classes: int) -> Floats:
    """Shares that with the rest make 1, where anything is listed."""
    with np.errstate(invalid="ignore"):
        wrong = ~(np.isfinite(shares) & (shares >= 0))
    for bad in np.argwhere(wrong)[:1]:
        raise InputError(f"row {bad[:-1].tolist()} has the probability {shares[tuple(bad)]}; give numbers from 0 to 1")
    total, listed = shares.sum(-1), (labels >= 0).sum(-1)
    left = 1.0 - total if rest is None else np.asarray(rest, dtype=np.float64)
    if left.shape != total.shape:
        raise InputError(f"the rest has shape {left.shape} for rows {total.shape}; give one number a row")
    off = np.abs(total + left - 1.0) if rest is not None else np.maximum(-left, 0.0)
    off = np.where(listed == classes, np.abs(total - 1.0), off)  # nothing is left for the rest to go to
    whole = (listed > 0) & ~((off <= _MISS_OF_ONE) & (left >= -_MISS_OF_ONE))
    for bad in np.argwhere(whole)[:1]:
        raise InputError(
            f"row {bad.tolist()} has probabilities that sum to {total[tuple(bad)]:.6g}"
            f"{'' if rest is None else f', and {left[tuple(bad)]:.6g} for the rest'}; make each row sum to 1"
        )
    sums = np.where(listed == classes, total, total + np.maximum(left, 0.0))
    return np.asarray(shares / np.where((np.abs(sums - 1.0) > _EXACT) & (listed > 0), sums, 1.0)[..., None])
