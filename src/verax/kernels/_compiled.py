"""How a function is compiled: without the interpreter's lock, kept on disk where a folder can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

_SUMS_MAY_BE_REORDERED = {"reassoc", "contract", "nsz"}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in machine code; sums of floats may be taken in any order."""
    try:
        made: Callable[..., Any] = njit(nogil=True, cache=True, fastmath=_SUMS_MAY_BE_REORDERED)(function)
    except RuntimeError:  # nowhere to keep it
        made = njit(nogil=True, fastmath=_SUMS_MAY_BE_REORDERED)(function)
    return made
