"""Echoes: what a reply in a federation holds beyond what everybody was sent.

A round broadcasts a model and gets models back. Two things keep a reply that holds nothing private from being paid:

    public_features   what the broadcast, earlier broadcasts and their variations say about every task of the pool,
                      to be taken out of the scores (`verax.score(..., public=features)`)
    echo_test         whether the update has anything in common with the other updates that is not public

The first works on predictions and is exact for echoes, earlier broadcasts and extrapolations. The second works on
weights and is for noise, which the first cannot take out: one draw of heavy noise moves thousands of predictions at
once, and the pay of the lucky draws does not average out. Everything is plain arrays; a model is a list of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.errors import InputError, OptionError
from verax.space import check_memory
from verax.topk import one_hot

Floats = npt.NDArray[np.floating]
Weights = list[Floats]
Predict = Callable[[Weights, Any], Floats]

# Of 630 replies of honest clients on MNIST 3 fall below; of 630 noised models none has more than 3.6.
KINSHIP = 6.0
_BLOCK = 2**15  # weights of every model that are looked at at a time
_ROUNDING = 1e-5  # of the broadcast's norm: what float32 leaves of an echo or a step
# What frameworks call the arrays that layers keep beside their weights; the last part of a name decides.
BUFFERS = ("num_batches_tracked", "running_mean", "running_var", "moving_mean", "moving_variance")


def buffers_among(
    broadcast: Mapping[str, npt.NDArray[Any]],
    replies: Sequence[Mapping[str, npt.NDArray[Any]]] = (),
    names: Collection[str] = BUFFERS,
) -> list[int]:
    """The places of the arrays that no optimiser moves: by their type, their names, or as most replies move them.

    A counter may be held as a float: one number that most replies move by whole steps. What is not finite, such as an
    attention's mask, and what is empty cannot be moved.

    >>> model = {"weight": np.ones(2), "bn.running_var": np.ones(2), "seen": np.array(0), "steps": np.array(0.0)}
    >>> buffers_among(model, [model | {"steps": np.array(3.0)}])
    [1, 2, 3]
    """
    found = []
    for place, (name, now) in enumerate(broadcast.items()):
        named = name.rpartition(".")[2] in names or name.rpartition("/")[2] in names
        trained = now.dtype.kind == "f" and now.size > 0 and not named and np.isfinite(now).all()
        if not trained or (now.size == 1 and _counts([r[name] for r in replies], now)):
            found.append(place)
    return found


def _counts(values: Sequence[npt.NDArray[Any]], now: npt.NDArray[Any]) -> bool:
    moved = np.array([float(v.item()) - float(now.item()) for v in values])
    whole = (np.abs(moved - np.rint(moved)) <= 1e-6 * np.maximum(1, np.abs(moved))) & (np.abs(moved) >= 1)
    return bool(2 * whole.sum() > len(moved))


def perturbed(weights: Weights, share: float, rng: np.random.Generator, still: Collection[int] = ()) -> Weights:
    """The model with Gaussian noise of `share` times each array's standard deviation; arrays at `still` stay.

    >>> perturbed([np.zeros(2), np.array([1, 2])], 0.3, np.random.default_rng(0), still=[1])
    [array([0., 0.]), array([1, 2])]
    """
    return [a if place in still else
            a + a.dtype.type(share * a.std()) * rng.standard_normal(a.shape, np.float32).astype(a.dtype)
            for place, a in enumerate(weights)]  # fmt: skip


def stepped(weights: Weights, previous: Weights, step: float, still: Collection[int] = ()) -> Weights:
    """The model moved on by `step` times what it moved since the previous one; arrays at `still` stay.

    >>> stepped([np.array([3.0])], [np.array([1.0])], 0.5)
    [array([4.])]
    """
    return [a if place in still else a + a.dtype.type(step) * (a - b)
            for place, (a, b) in enumerate(zip(weights, previous, strict=True))]  # fmt: skip


def public_features(
    predict: Predict,
    broadcast: Weights,
    earlier: Sequence[Weights],
    pool: Any,
    rng_seed: int,
    *,
    noise: Sequence[float] = (0.05, 0.15, 0.4, 1.0),
    copies: int = 16,
    steps: Sequence[float] = (0.5, 1.0, 2.0),
    imitations: Sequence[Sequence[Weights]] = (),
    still: Collection[int] = (),
) -> npt.NDArray[np.float64]:
    """What can be said about every task of the pool without private data, (N, m): the features of a public signal.

    Labels and probabilities of the broadcast, of the two broadcasts before it (`earlier`, oldest first) and of steps
    on from the last to this one; the mean labels of `copies` noised copies at each level of `noise`, and of fewer
    around the previous broadcast and the full step. `imitations`: groups of models the server made itself without
    anybody's labels, say by training on the pool; each group gives its mean labels and probabilities. `still`: places
    of arrays that no optimiser moves, which get no noise and take no steps (a variance moved on may be negative).
    A reply that predicts as one of the first kind does scores exactly 0 once these are taken out.

    >>> rng = np.random.default_rng(0)
    >>> old, now = [rng.random((4, 2))], [rng.random((4, 2))]
    >>> def predict(weights, pool):
    ...     return np.exp(pool @ weights[0]) / np.exp(pool @ weights[0]).sum(1, keepdims=True)
    >>> public_features(predict, now, [old], rng.random((50, 4)), 1, noise=[0.1], copies=2, steps=[1.0]).shape
    (50, 14)
    """
    if copies < 1:
        raise OptionError(f"{copies} noised copies; take at least 1")
    rng = np.random.default_rng(rng_seed)
    previous = list(earlier[:-3:-1])
    moved = [stepped(broadcast, previous[0], step, still) for step in steps] if previous else []
    first = predict(broadcast, pool)
    columns = 2 * (1 + len(previous) + len(moved)) + len(noise) + (4 if previous else 0) + 2 * len(imitations)
    check_memory(
        "public features", "take out less, or score the first round alone", len(first), columns, first.shape[1]
    )
    said = [_labels_and_rows(first), *(_labels_and_rows(predict(model, pool)) for model in (*previous, *moved))]
    found = [column for rows in said for column in rows]
    around = [(broadcast, copies, noise)]
    if previous:
        few = max(1, copies * 3 // 8)
        around += [(model, few, noise[1:3]) for model in (previous[0], stepped(broadcast, previous[0], 1.0, still))]
    for model, number, levels in around:
        for level in levels:
            noised = (perturbed(model, level, rng, still) for _ in range(number))
            found.append(_mean_table([_labels_and_rows(predict(copy, pool))[0] for copy in noised]))
    for group in imitations:
        labels, rows = zip(*(_labels_and_rows(predict(model, pool)) for model in group), strict=True)
        found += [_mean_table(labels), _mean_table(rows)]
    return np.concatenate(found, axis=1).astype(np.float64)


def _labels_and_rows(rows: Floats) -> tuple[Floats, Floats]:
    """Labels, one-hot, and probabilities."""
    return one_hot(rows.argmax(1), rows.shape[1], rows.dtype), rows


def _mean_table(tables: Sequence[Floats]) -> Floats:
    return np.asarray(sum(tables) / len(tables))


@dataclass(frozen=True)
class Kinship:
    """What an update shares with the middle one of the others, in units of what noise would share by chance (1)."""

    ratio: float
    least: float

    @property
    def worked(self) -> bool:
        """Whether the update cannot be noise added to something public."""
        return self.ratio >= self.least


def echo_test(
    replies: Sequence[Weights],
    broadcast: Weights,
    earlier: Sequence[Weights],
    *,
    imitations: Sequence[Weights] = (),
    least: float = KINSHIP,
) -> list[Kinship]:
    """Whether each reply's update has something in common with the others' that is not public; one verdict a reply.

    A reply's ratio is the median of its `kinships`, which colluders below one half cannot move. The median asks for
    work that shows beside most others: in small or settled networks honest updates may have nothing in common once
    the broadcasts' own movement is out, and then nobody passes; `standing` puts rounds together.

    >>> rng = np.random.default_rng(0)
    >>> taught = rng.standard_normal(500)
    >>> worked = [[taught + rng.standard_normal(500)] for _ in range(3)]
    >>> [kin.worked for kin in echo_test([*worked, [np.zeros(500)], [rng.standard_normal(500)]], [np.zeros(500)], [])]
    [True, True, True, False, False]
    """
    if len(replies) < 3:
        raise InputError(f"{len(replies)} replies; the test needs 3 at least, so that one colluder is not the median")
    table = kinships(replies, broadcast, earlier, imitations=imitations)
    return [Kinship(float(np.median(np.delete(row, i))), least) for i, row in enumerate(table)]


def standing(ratios: npt.ArrayLike, cap: float = KINSHIP) -> npt.NDArray[np.float64]:
    """Each client's mean over rounds of its kinship ratio, no round counting more than `cap`: ratios (T, K) to (K,).

    Where one round does not tell, as in small networks, several do: noise stays near 0.6, work above 2.

    >>> standing([[0.5, 3.0, 200.0], [0.75, 5.0, 0.5]]).tolist()
    [0.625, 4.0, 3.25]
    """
    return np.asarray(np.minimum(np.asarray(ratios, dtype=np.float64), cap).mean(0))


def kinships(
    replies: Sequence[Weights], broadcast: Weights, earlier: Sequence[Weights], *, imitations: Sequence[Weights] = ()
) -> npt.NDArray[np.float64]:
    """What every two updates share beyond what is public, (K, K), in units of what noise shares by chance.

    From every update the public directions are taken out, array by array: the broadcast itself and each difference
    of successive broadcasts; then the updates of `imitations`, models the server made without anybody's labels.
    With u, v what is left of two updates, their kinship is (sum_k u_k v_k)^2 / sum_k (u_k v_k)^2. If the signs of u
    are independent coin flips, as noise has them whatever its size and shape, its mean is exactly 1. Two that
    trained on data have much more, with either sign: they use the same inputs in the same units of the network.
    A reply with nothing left, or with numbers that are not finite, has kinship 0.

    >>> start = [np.zeros(4)]
    >>> kinships([[np.array([1.0, 1, 1, 1])], [np.array([2.0, 2, 2, 2])], [np.array([1.0, -1, 1, -1])]], start, [])
    array([[4., 4., 0.],
           [4., 4., 0.],
           [0., 0., 4.]])
    """
    models = [*replies, *imitations]
    layers = [_Layer([m[k] for m in (*earlier, broadcast)], [m[k] for m in models]) for k in range(len(broadcast))]
    size = math.sqrt(sum(float(np.sum(a.astype(np.float64) ** 2)) for a in broadcast))
    with np.errstate(invalid="ignore", over="ignore"):  # of numbers that are not finite, or are too large to square
        norms = np.sqrt(sum((layer.squares for layer in layers), np.zeros(len(models))))
        scale = np.where((norms > 0) & (norms < math.inf), 1 / np.where(norms > 0, norms, 1.0), 0.0)
        shared, chance = _products(layers, len(replies), scale)
        left = np.sqrt(np.diagonal(shared)) * norms[: len(replies)]
        table = np.where(chance > 0, shared**2 / np.where(chance > 0, chance, 1.0), 0.0)
    there = (left > _ROUNDING * size) & (scale[: len(replies)] > 0)
    return np.asarray(np.where(np.outer(there, there), table, 0.0))


def _products(layers: Sequence[_Layer], replies: int, scale: Floats) -> tuple[Floats, Floats]:
    """For every two updates the sums of u v and of (u v)^2, what imitations span taken out too."""
    made, inside = _made_by_imitations(layers, replies, scale)
    shared, chance = np.zeros((replies, replies)), np.zeros((replies, replies))
    for left in _left_of(layers, scale):
        rest = left[:replies] - inside @ (made @ left[replies:])
        shared += rest @ rest.T
        np.square(rest, out=rest)
        chance += rest @ rest.T
    return shared, chance


def _made_by_imitations(layers: Sequence[_Layer], replies: int, scale: Floats) -> tuple[Floats, Floats]:
    """Orthonormal combinations (r, m) of what is left of the imitations, and what each reply has along them (K, r)."""
    if len(scale) == replies:
        return np.zeros((0, 0)), np.zeros((replies, 0))
    made = _orthonormal(left[replies:] for left in _left_of(layers, scale))
    inside = sum((left[:replies] @ (made @ left[replies:]).T for left in _left_of(layers, scale)), np.float64(0))
    return made, np.asarray(inside)


def _left_of(layers: Sequence[_Layer], scale: Floats) -> Iterator[Floats]:
    for layer in layers:
        for left in layer.left():
            left *= scale[:, None]
            yield left


class _Layer:
    """One array of all models, a block of its weights at a time: updates, and their public directions taken out."""

    def __init__(self, broadcasts: Sequence[Floats], models: Sequence[Floats]) -> None:
        self.broadcasts, self.models = [a.ravel() for a in broadcasts], [a.ravel() for a in models]
        blocks = range(0, self.broadcasts[-1].size, _BLOCK)
        self.blocks = [slice(first, first + _BLOCK) for first in blocks]
        self.directions = _orthonormal(map(self._public, self.blocks))
        self.squares, self.inside = np.zeros(len(models)), np.zeros((len(models), len(self.directions)))
        for block in self.blocks:
            updates = self._updates(block)
            with np.errstate(invalid="ignore", over="ignore"):
                self.squares += np.einsum("ij,ij->i", updates, updates)
                self.inside += updates @ (self.directions @ self._public(block)).T

    def _public(self, block: slice) -> Floats:
        """The broadcast, and what each differs by from the one before it, (p, b)."""
        sent = np.array([a[block] for a in self.broadcasts], dtype=np.float64)
        return np.concatenate([sent[-1:], np.diff(sent, axis=0)])

    def _updates(self, block: slice) -> Floats:
        return np.array([a[block] for a in self.models], dtype=np.float64) - self.broadcasts[-1][block]

    def left(self) -> Iterator[Floats]:
        """What is left of every update, (models, b), block by block."""
        for block in self.blocks:
            updates = self._updates(block)
            with np.errstate(invalid="ignore", over="ignore"):
                updates -= self.inside @ (self.directions @ self._public(block))
            yield updates


def _orthonormal(blocks: Iterable[Floats]) -> Floats:
    """Combinations (r, p) of p long rows, given in blocks (p, b), that are orthonormal and span what the rows span.

    Of the rows only the triangle of their QR decomposition is kept: what is added below it is decomposed anew.
    """
    triangle: Floats | None = None
    for block in blocks:
        below = block.T if triangle is None else np.vstack([triangle, block.T])
        triangle = np.asarray(np.linalg.qr(below, mode="r"))
    if triangle is None:  # an array without weights
        return np.zeros((0, 0))
    norms = np.linalg.norm(triangle, axis=0)
    scale = np.where(norms > 0, norms, 1.0)
    _, s, rows = np.linalg.svd(triangle / scale, full_matrices=False)
    kept = s > 1e-6
    return np.asarray(rows[kept] / s[kept, None] / scale)
