"""Innovations: what a reply's answers hold beyond all that anybody can make of the public models. No label is used.

    move        d = f - p            a reply's probabilities minus the broadcast's, on the same inputs
    public      V                    moves towards other public models, and those that p alone suggests (`public_moves`)
    innovation  u = d - V beta       least squares, for every answer of the broadcast apart (`fitted`)

Arrays have one row an input and one column a class; what an innovation is worth, `exam` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verax.errors import InputError
from verax.space import check_memory

Floats = npt.NDArray[np.float64]
_LEAST = 20  # inputs with an answer of the broadcast, at and below which a fit would explain anything
_NEARLY_ZERO = 1e-7  # singular values below this share of the largest are directions said twice
_ROUNDING = 1e-6  # of a move's length: what arithmetic leaves of one that is public


def local_moves(rows: npt.ArrayLike) -> Floats:
    """Moves that need no model but the broadcast, (n, L, 3 + L): a temperature, more of each row's first and of its
    second answer, more of each class everywhere.

    >>> local_moves([[0.7, 0.3]])[0].round(2).tolist()
    [[0.18, 0.3, -0.21, 0.21, -0.21], [-0.18, -0.3, 0.21, -0.21, 0.21]]
    """
    p = _checked_rows(rows)
    check_memory("moves that are public", "let predict give labels, or take fewer classes or inputs",
                 *p.shape, p.shape[1] + 3, each=32)  # fmt: skip
    one_hot, logs, order = np.eye(p.shape[1]), np.log(np.maximum(p, 1e-4)), p.argsort(1)
    first, second = one_hot[order[:, -1]], one_hot[order[:, -2]]
    more_of = [_tilted(p, np.broadcast_to(label, p.shape)) for label in one_hot]
    return np.stack([_tilted(p, logs), first - p, _tilted(p, second), *more_of], axis=2)


def _tilted(p: Floats, direction: Floats) -> Floats:
    """How rows move when every logit is raised along a direction: p (direction - its mean under p)."""
    return np.asarray(p * (direction - (p * direction).sum(1, keepdims=True)))


def public_moves(rows: npt.ArrayLike, models: Sequence[npt.ArrayLike] = ()) -> Floats:
    """Moves anybody can make, (n, L, k): the local ones, and from the broadcast's rows to each public model's.

    `models`: rows on the same inputs of earlier broadcasts, steps on from them, noised copies (a mean of several), and
    models that the server trained itself without anybody's labels.

    >>> public_moves([[0.7, 0.3], [0.2, 0.8]], [[[0.5, 0.5], [0.5, 0.5]]]).shape
    (2, 2, 6)
    """
    p = _checked_rows(rows)
    towards = [_checked_rows(model, p.shape) - p for model in models]
    return np.concatenate([local_moves(p), *(move[:, :, None] for move in towards)], axis=2)


def _checked_rows(given: npt.ArrayLike, shape: tuple[int, ...] | None = None) -> Floats:
    found = np.asarray(given, dtype=np.float64)
    if found.ndim != 2 or found.shape[1] < 2 or (shape is not None and found.shape != shape):
        wanted = "(inputs, classes)" if shape is None else f"the broadcast's {shape}"
        raise InputError(f"rows have shape {found.shape}; give probabilities of shape {wanted}")
    if not np.isfinite(found).all():
        raise InputError("rows are not finite everywhere; give probabilities")
    return found


@dataclass(frozen=True, eq=False)
class Fit:
    """How public moves explain moves: one matrix for every answer of the broadcast, from moves to coefficients.

    `places[c]` are the inputs that the broadcast answers c, `solve[c]` (k, inputs x L) their pseudo-inverse. An answer
    that is too rare for a fit has none, and there every innovation is 0: what cannot be told from public is not paid.
    """

    public: Floats
    answers: npt.NDArray[np.int64]
    places: tuple[npt.NDArray[np.int64], ...]
    solve: tuple[Floats | None, ...]

    def coefficients(self, move: npt.ArrayLike) -> Floats:
        """beta, (L, k), of one move (n, L); nan where an answer is too rare.

        >>> p = np.random.default_rng(0).dirichlet([1, 1], 200)
        >>> fitted(p, public_moves(p)).coefficients(np.zeros((200, 2))).shape
        (2, 5)
        """
        d = _checked_move(move, self.public)
        return np.stack([
            np.full(self.public.shape[2], np.nan) if matrix is None else matrix @ d[places].ravel()
            for places, matrix in zip(self.places, self.solve, strict=True)
        ])  # fmt: skip

    def innovation(self, move: npt.ArrayLike) -> Floats:
        """What is left of one move (n, L) once the public ones are taken out.

        Each move on its own, so that nobody's depends, even by a bit, on who else replied.

        >>> p = np.random.default_rng(0).dirichlet([1, 1, 1], 200)
        >>> V = public_moves(p)
        >>> bool((fitted(p, V).innovation(V[:, :, 0]) == 0).all())
        True
        """
        return left_of(move, self.public, self.answers, self.coefficients(move))


def fitted(rows: npt.ArrayLike, public: Floats, on: npt.NDArray[np.bool_] | None = None) -> Fit:
    """The fit of public moves (n, L, k) around the broadcast's rows (n, L).

    `on`: the inputs that it rests on; all if not given. The others only have their innovations from it, as few labelled
    inputs must: on as many inputs as moves everything could be explained.

    >>> p = np.random.default_rng(0).dirichlet([1, 1], 100)
    >>> fit = fitted(p, public_moves(p), on=np.arange(100) < 80)
    >>> fit.innovation(np.random.default_rng(1).normal(size=(100, 2))).shape
    (100, 2)
    """
    p = _checked_rows(rows)
    if public.shape[:2] != p.shape:
        raise InputError(f"public moves have shape {public.shape} and the broadcast's rows {p.shape}; give both alike")
    answers = p.argmax(1)
    usable: npt.NDArray[np.bool_] = np.ones(len(p), np.bool_) if on is None else on
    places = tuple(np.nonzero((answers == c) & usable)[0] for c in range(p.shape[1]))
    return Fit(
        public, answers, places, tuple(_pseudo_inverse(public[at]) if len(at) > _LEAST else None for at in places)
    )


def _pseudo_inverse(moves: Floats) -> Floats:
    """(k, inputs x L): columns are brought to one length first, so that a small move counts as much as a large one."""
    table = moves.reshape(-1, moves.shape[2])
    lengths = np.maximum(np.linalg.norm(table, axis=0), 1e-9)
    u, s, v = np.linalg.svd(table / lengths, full_matrices=False)
    keep = s > _NEARLY_ZERO * s[0]
    return np.asarray((v[keep].T / s[keep]) @ u[:, keep].T / lengths[:, None])


def left_of(move: npt.ArrayLike, public: Floats, answers: npt.NDArray[np.int64], beta: Floats) -> Floats:
    """d - V beta on any inputs, of which `answers` are the broadcast's: with coefficients from elsewhere, a client
    can take the public moves out of a reply on inputs that only the client has.

    >>> p = np.random.default_rng(0).dirichlet([1, 1], 100)
    >>> V, d = public_moves(p), np.random.default_rng(1).normal(size=(100, 2))
    >>> fit = fitted(p, V)
    >>> bool((left_of(d, V, p.argmax(1), fit.coefficients(d)) == fit.innovation(d)).all())
    True
    """
    d = _checked_move(move, public)
    rest = d - (public @ np.nan_to_num(beta)[answers][:, :, None])[:, :, 0]
    rest[np.isnan(beta[answers]).any(axis=1)] = 0.0
    return np.zeros_like(rest) if np.linalg.norm(rest) <= _ROUNDING * np.linalg.norm(d) else rest


def _checked_move(move: npt.ArrayLike, public: Floats) -> Floats:
    d = np.asarray(move, dtype=np.float64)
    if d.shape != public.shape[:2] or not np.isfinite(d).all():
        raise InputError(f"a move has shape {d.shape}; give finite numbers of shape {public.shape[:2]}")
    return d


def clipped(innovations: Sequence[Floats], most: float = 1.0) -> list[Floats]:
    """Innovations of one round, none longer than `most` times the middle one: those that are, are shortened.

    >>> [float(np.linalg.norm(u)) for u in clipped([np.full((1, 4), x) for x in (0.0, 1.0, 1.0, 5.0)], 2.0)]
    [0.0, 2.0, 2.0, 4.0]
    """
    lengths = [float(np.linalg.norm(u)) for u in innovations]
    limit = most * float(np.median([length for length in lengths if length > 0] or [0.0]))
    return [u * (limit / length) if length > limit else u for u, length in zip(innovations, lengths, strict=True)]


def beside_peers(innovations: Sequence[Floats]) -> Floats:
    """Label-free: psi (K, n), each reply's innovation times the mean of the others'; its mean over inputs is a score.

    What others' training drifts to counts as if it were knowledge, so this is a meter for members who all work, and no
    guard against those who imitate work.

    >>> beside_peers([np.eye(2), np.eye(2), -np.eye(2)]).tolist()
    [[0.0, 0.0], [0.0, 0.0], [-1.0, -1.0]]
    """
    if len(innovations) < 2:
        raise InputError(f"{len(innovations)} innovations have no peers; give two at least")
    table = np.stack(innovations)
    together = np.sort(table, axis=0).sum(0)  # in no order of names
    return np.stack([(u * (together - u)).sum(1) / (len(table) - 1) for u in table])
