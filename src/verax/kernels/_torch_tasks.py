"""How many agents said what, task by task, with torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from verax.kernels import Engine, Floats, Ints, Labels, _torch_fused
from verax.kernels._torch_device import as_array, budget_of, on_device, threads_of


def tallies(labels: Labels | Tensor, classes: int, engine: Engine) -> tuple[Ints, Ints]:
    """See `verax.kernels.tallies`."""
    with threads_of(engine):
        said, held = device_tallies(labels, classes)
    return as_array(said), as_array(held)


def device_tallies(labels: Labels | Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """`tallies` as tensors on the device.

    >>> [found.tolist() for found in device_tallies(torch.tensor([[0, 1, 1], [0, 0, 1]]), 2)]
    [[[2, 0], [1, 1], [0, 2]], [[1, 2], [2, 1]]]
    """
    said, held = torch.zeros((labels.shape[1], classes), dtype=torch.int64), []
    for panel in _panels_on_device(labels):
        held.append(tally_rows(panel, classes))
        said = said.to(panel.device) + tally_rows(panel.T, classes)
    return said, torch.cat(held)


def weighed(labels: Labels | Tensor, table: Ints, engine: Engine) -> Ints:
    """See `verax.kernels.weighed`."""
    with threads_of(engine):
        return as_array(device_weighed(labels, on_device(table)))


def device_weighed(labels: Labels | Tensor, table: Tensor) -> Tensor:
    """`weighed` as a tensor on the device.

    >>> device_weighed(torch.tensor([[0, 1], [1, 1]]), torch.tensor([[1, 10], [100, 1000]])).tolist()
    [1001, 1010]
    """
    bordered = torch.nn.functional.pad(table, (1, 0))
    if bordered.numel() and bordered.abs().max() < 2**31:
        bordered = bordered.int()
    return torch.cat([_chosen_sums(panel, bordered) for panel in _panels_on_device(labels)])


def influence(labels: Labels, weight: Floats, said: Floats, share: Floats, shift: Floats, engine: Engine) -> Floats:
    """See `verax.kernels.influence`."""
    with threads_of(engine):
        return as_array(_psi_of_agents(*map(on_device, (labels, weight, said, share, shift))))


def spread(
    labels: Labels, weight: Floats, said: Floats, share: Floats, shift: Floats, engine: Engine
) -> tuple[Floats, Floats]:
    """See `verax.kernels.spread`."""
    total, square, tasks = np.empty(len(labels)), np.empty(len(labels)), labels.shape[1]
    with threads_of(engine):
        table, every = on_device(weight), on_device(said)
        for i in range(0, len(labels), step := max(1, budget_of(engine) // (40 * max(tasks, 1)))):
            some = slice(i, i + step)
            psi = _psi_of_agents(on_device(labels[some]), table, every, on_device(share[some]), on_device(shift[some]))
            first = psi[:, :1].clone()
            psi -= first  # a psi that never changes has no spread, whatever its size
            moved = psi.mean(1)
            total[some] = as_array((first[:, 0] + moved) * tasks)
            square[some] = as_array((psi - moved[:, None]).square().sum(1))
    return total, square


def tally_rows(labels: Tensor, classes: int) -> Tensor:
    """How often each row says each label: (rows, L)."""
    if _torch_fused.run_on(labels.device.type) and classes <= _torch_fused.WIDEST:
        return _torch_fused.tally_rows(labels, classes)
    found = torch.empty((len(labels), classes), dtype=torch.int64, device=labels.device)
    step = max(1, 2**24 // max(1, labels.shape[1]))
    for i in range(0, len(labels), step):
        for k in range(classes):
            found[i : i + step, k] = (labels[i : i + step] == k).sum(1)
    return found


def _chosen_sums(labels: Tensor, bordered: Tensor) -> Tensor:
    """sum_n table[n, f_i(n)] for every agent, the table's columns after one of zeros."""
    if _torch_fused.run_on(labels.device.type):
        return _torch_fused.sum_chosen(labels, bordered)
    first = torch.arange(len(bordered), device=labels.device) * bordered.shape[1] + 1
    found = torch.empty(len(labels), dtype=torch.int64, device=labels.device)
    step = max(1, 2**22 // max(1, labels.shape[1]))
    for i in range(0, len(labels), step):
        found[i : i + step] = torch.take(bordered, first + labels[i : i + step]).sum(1)
    return found


def _psi_of_agents(labels: Tensor, weight: Tensor, said: Tensor, share: Tensor, shift: Tensor) -> Tensor:
    first = torch.arange(len(weight), device=labels.device) * weight.shape[1]
    psi = torch.take(weight, first + labels).addmm_(share, said.T, alpha=-1)
    return psi.add_(shift.gather(1, labels.long()))


def _panels_on_device(labels: Labels | Tensor) -> Iterator[Tensor]:
    """The labels on the device, as many agents at a time as fit there; once without any."""
    step = max(1, len(labels))
    if torch.cuda.is_available():
        step = max(1, int(torch.cuda.mem_get_info()[0]) // 4 // max(1, labels[:1].nbytes))
    return (on_device(labels[i : i + step]) for i in range(0, max(1, len(labels)), step))
