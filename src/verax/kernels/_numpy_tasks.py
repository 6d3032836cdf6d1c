"""How many agents said what, task by task, with NumPy alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from verax.kernels import Engine, Floats, Ints, Labels

_BLOCK = 255  # agents whose hits a byte can count


def tallies(labels: Labels, classes: int, engine: Engine) -> tuple[Ints, Ints]:
    """See `verax.kernels.tallies`."""
    agents, tasks = labels.shape
    said = np.zeros((tasks, classes), dtype=np.int64)
    held = np.empty((agents, classes), dtype=np.int64)
    for i in range(0, agents, _BLOCK):
        block = labels[i : i + _BLOCK]
        for k in range(classes):
            hit = block == k
            said[:, k] += np.add.reduce(hit.view(np.uint8), axis=0, dtype=np.uint8)
            held[i : i + _BLOCK, k] = np.count_nonzero(hit, axis=1)
    return said, held


def weighed(labels: Labels, table: Ints, engine: Engine) -> Ints:
    """See `verax.kernels.weighed`."""
    tasks, classes = table.shape
    flat, first = np.ascontiguousarray(table).ravel(), np.arange(tasks) * classes
    found = np.empty(len(labels), dtype=np.int64)
    for i in _agent_blocks(labels, 2**21):
        found[i] = flat[first + labels[i]].sum(1)
    return found


def influence(labels: Labels, weight: Floats, said: Floats, share: Floats, shift: Floats, engine: Engine) -> Floats:
    """See `verax.kernels.influence`."""
    first = np.arange(len(weight)) * weight.shape[1]
    psi = np.ascontiguousarray(weight).ravel()[first + labels]
    psi -= share @ said.T
    psi += np.take_along_axis(shift, labels.astype(np.int64), 1)
    return np.asarray(psi)


def spread(
    labels: Labels, weight: Floats, said: Floats, share: Floats, shift: Floats, engine: Engine
) -> tuple[Floats, Floats]:
    """See `verax.kernels.spread`."""
    total, square = np.empty(len(labels)), np.empty(len(labels))
    for i in _agent_blocks(labels, 2**20):
        psi = influence(labels[i], weight, said, share[i], shift[i], engine)
        first = psi[:, :1].copy()
        psi -= first  # a psi that never changes has no spread, whatever its size
        moved = psi.mean(1)
        total[i] = (first[:, 0] + moved) * psi.shape[1]
        psi -= moved[:, None]
        square[i] = np.einsum("in,in->i", psi, psi)
    return total, square


def _agent_blocks(labels: Labels, most: int) -> Iterator[slice]:
    """Agents by the handful, of no more labels than that."""
    step = max(1, most // max(labels.shape[1], 1))
    return (slice(i, i + step) for i in range(0, len(labels), step))
