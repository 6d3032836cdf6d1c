"""Public: what everybody knows about each task, taken out before anything is scored. It decides M, and nothing else.

With M the projector that removes a public signal, delta = X^T M G / (N - rank): the mean (the paper's penalty), the
mean inside each stratum, or everything linear in some features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from verax.errors import InputError
from verax.kernels import Floats, Ints


@dataclass(frozen=True, eq=False)
class Public:
    """What everybody knows about each task, taken out before anything is scored.

    Neither: the mean is taken out (the paper's penalty). `strata` (N,): the mean inside each
    stratum. `features` (N, m): everything linear in the features and a constant.
    """

    tasks: int
    strata: Ints | None = None
    features: Floats | None = None

    @classmethod
    def of(cls, signal: npt.ArrayLike | Public | None, tasks: int) -> Public:
        """Integers (N,) are strata, numbers (N, m) are features.

        >>> Public.of([0, 1, 1], tasks=3).strata
        array([0, 1, 1])
        >>> Public.of([[0.5], [1.0], [2.0]], tasks=3).features.shape
        (3, 1)
        """
        if signal is None or isinstance(signal, Public):
            public = cls(tasks) if signal is None else signal
        else:
            public = cls._of_array(np.asarray(signal), tasks)
        if public.tasks != tasks:
            raise InputError(f"the public signal has {public.tasks} entries for {tasks} tasks; give one entry a task")
        return public

    @classmethod
    def _of_array(cls, array: npt.NDArray[np.generic], tasks: int) -> Public:
        if array.ndim == 1 and np.issubdtype(array.dtype, np.integer):
            levels, place = np.unique(array, return_inverse=True)  # only which tasks share a stratum matters
            if levels.size and levels[0] < 0:
                raise InputError("a public signal of strata has a negative number; every task needs one from 0 up")
            return cls(len(array), strata=place.astype(np.int64))
        if array.ndim not in (1, 2) or array.dtype.kind not in "fiub":
            raise InputError(
                f"the public signal has shape {array.shape} and type {array.dtype}; "
                "give integers (N,) for strata or numbers (N, m) for features"
            )
        features = array.reshape(len(array), -1).astype(np.float64)
        if not np.isfinite(features).all():
            raise InputError(
                f"the public signal is not a finite number at task {int(np.nonzero(~np.isfinite(features))[0][0])}; "
                "fill or drop it"
            )
        return cls(len(features), features=features)

    @cached_property
    def kind(self) -> str | None:
        """Strata, features, or None where there is no signal."""
        return "strata" if self.strata is not None else None if self.features is None else "features"

    def take(self, chosen: npt.NDArray[np.bool_]) -> Public:
        """The signal on the chosen tasks only."""
        if chosen.all():
            return self
        return Public(
            int(chosen.sum()),
            None if self.strata is None else self.strata[chosen],
            None if self.features is None else self.features[chosen],
        )

    def concat(self, other: Public) -> Public:
        """The signal on these tasks, then on the other's."""
        pairs = ((self.strata, other.strata), (self.features, other.features))
        if any((mine is None) != (theirs is None) for mine, theirs in pairs):
            raise InputError("shards differ in their public signal; give every shard the same kind")
        joined = [None if m is None or t is None else np.concatenate([m, t]) for m, t in pairs]
        return Public(self.tasks + other.tasks, joined[0], joined[1])

    @cached_property
    def _basis(self) -> Floats:
        """Orthonormal columns that span what the features say beyond a constant."""
        assert self.features is not None
        centred = self.features - self.features.mean(0)
        centred = centred / np.where((norm := np.linalg.norm(centred, axis=0)) > 0, norm, 1.0)
        u, s, _ = np.linalg.svd(centred, full_matrices=False)
        tiny = max(centred.shape) * np.finfo(float).eps
        return np.asarray(u[:, s > 10 * tiny * max(1.0, s.max(initial=0.0))])

    @property
    def rank(self) -> int:
        """How many dimensions of the reports the signal takes out, its constant included."""
        return 1 + self._basis.shape[1] if self.features is not None else 1

    @cached_property
    def weights(self) -> Floats:
        """What each task's psi counts for: delta is their weighted sum."""
        if self.strata is None:
            return np.full(self.tasks, 1.0 / max(self.tasks - self.rank, 1))
        size = np.bincount(self.strata)[self.strata]
        return np.asarray(np.where(size > 1, size / np.maximum(size - 1, 1), 0.0) / max(self.tasks, 1))

    @property
    def parts(self) -> list[Ints]:
        """The tasks inside which the mean is taken out: those of each stratum, or all.

        >>> [part.tolist() for part in Public.of([1, 0, 1], tasks=3).parts]
        [[1], [0, 2]]
        """
        if self.strata is None:
            return [np.arange(self.tasks)]
        order = np.argsort(self.strata, kind="stable")
        return [*np.split(order, np.nonzero(np.diff(self.strata[order]))[0] + 1)]

    def residual(self, matrix: Floats) -> Floats:
        """M X: what is left of each column once the public signal is taken out.

        A column that is constant (in each stratum) leaves exactly 0.
        """
        if self.strata is not None:
            names, first, group = np.unique(self.strata, return_index=True, return_inverse=True)
            shifted = matrix - matrix[first][group]
            sums = np.stack([np.bincount(group, c, len(names)) for c in shifted.T], axis=1)
            return np.asarray(shifted - (sums / np.bincount(group)[:, None])[group])
        shifted = matrix - matrix[:1]
        shifted = shifted - shifted.mean(0)
        if self.features is None:
            return np.asarray(shifted)
        for _ in range(2):  # the second pass takes out what rounding left of the first
            shifted = shifted - self._basis @ (self._basis.T @ shifted)
        return np.asarray(shifted)

    def residuals(self, tables: Floats) -> Floats:
        """The residuals of tables (I, N, L), all of their columns in one product."""
        agents, tasks, classes = tables.shape
        side_by_side = tables.transpose(1, 0, 2).reshape(tasks, agents * classes)
        return self.residual(side_by_side).reshape(tasks, agents, classes).transpose(1, 0, 2)
