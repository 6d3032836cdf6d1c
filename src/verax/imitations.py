"""Imitations: models that a server makes of its broadcast by its own training, without anybody's labels.

What training drifts to without labels is then public, and is not paid. Three kinds, each made twice: trained on the
pool with the broadcast's own answers, with the sure half of them, and with labels drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.errors import InputError
from verax.received import Model

Train = Callable[[Model, Any, npt.NDArray[np.int64]], Model]
_TIMES = 2
_SOME = 600  # inputs of the pool that an imitation is trained on, as many as a client has


def imitations(
    model: Model, pool: Any, rows: npt.ArrayLike, train: Train, rng: np.random.Generator
) -> list[list[Model]]:
    """Groups of imitations of a broadcast that says `rows` of the pool; `train(model, inputs, labels)` is the server's.

    The pool's inputs are taken by place, `pool[places]`, as arrays and tensors give them.

    >>> def train(model, inputs, labels):
    ...     return {"at": model["at"] + 0.1 * np.mean(labels)}
    >>> rows = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.7, 0.3]])
    >>> made = imitations({"at": np.zeros(1)}, np.arange(4), rows, train, np.random.default_rng(0))
    >>> [len(group) for group in made], made[0][0]["at"].tolist()
    ([2, 2, 2], [0.05])
    """
    table = np.asarray(rows)
    own, sure = table.argmax(1), table.max(1) >= np.median(table.max(1))
    return [
        [train(model, _taken(pool, places), labels) for places, labels in _lessons(own, sure, kind, table, rng)]
        for kind in ("own", "sure", "random")
    ]


def _lessons(
    own: npt.NDArray[np.int64], sure: npt.NDArray[np.bool_], kind: str, rows: npt.NDArray[Any], rng: np.random.Generator
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Which inputs, and the labels that are made up for them."""
    among = np.nonzero(sure)[0] if kind == "sure" else np.arange(len(own))
    for _ in range(_TIMES):
        places = np.sort(rng.permutation(among)[:_SOME])
        yield places, rng.integers(0, rows.shape[1], len(places)) if kind == "random" else own[places]


def _taken(pool: Any, places: npt.NDArray[np.int64]) -> Any:
    try:
        return pool[places]
    except TypeError:
        if isinstance(pool, Sequence):
            return [pool[n] for n in places.tolist()]
        raise InputError(
            f"the pool is a {type(pool).__name__}, of which inputs cannot be taken by place; give an array, a tensor "
            "or a list, or make imitations yourself with imitate="
        ) from None
