"""Where torch works, a GPU where there is one, else the CPU; and how labels come there."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from verax.kernels import Engine, Ints

DEVICE_BYTES = 3 * 2**29  # of a GPU's memory, taken at once


def here() -> torch.device:
    """The device the work is done on."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def budget_of(engine: Engine) -> int:
    """Bytes that may be taken: the engine's on the CPU, a GPU's own elsewhere."""
    return engine.max_bytes if here().type == "cpu" else DEVICE_BYTES


@contextmanager
def threads_of(engine: Engine) -> Iterator[None]:
    """torch's threads as the engine wants them, and as they were afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(engine.threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def multiplies_int8(device: str) -> bool:
    """Whether int8 products run here; the CPU's float32 products are faster."""
    if device == "cpu":
        return False
    ones = torch.ones((32, 32), dtype=torch.int8, device=device)
    try:
        return bool((torch._int_mm(ones, ones.T) == 32).all())
    except RuntimeError:  # a device or library without them
        return False


def on_device(values: npt.NDArray[Any] | Tensor) -> Tensor:
    """An array on the device; a tensor that is on a device stays there."""
    if isinstance(values, Tensor):
        return values if values.device.type != "cpu" else values.to(here())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")  # nothing here writes to it
        return torch.from_numpy(np.ascontiguousarray(values)).to(here())


def by_part(labels: Tensor, part: Ints | None, parts: int) -> list[Tensor]:
    """The labels of each part's tasks."""
    if part is None:
        return [labels]
    which = torch.from_numpy(np.asarray(part, dtype=np.int64)).to(labels.device)
    return [labels[:, (which == p).nonzero()[:, 0]] for p in range(parts)]


def as_array(tensor: Tensor) -> npt.NDArray[Any]:
    """What a tensor holds, in host memory."""
    return np.asarray(tensor.cpu().numpy())
