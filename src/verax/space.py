"""Space: what would not fit is refused in a sentence before it is taken, by one function for all large arrays."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from verax.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")
_GROUP = Path("/sys/fs/cgroup")
_UNBOUNDED = 2**62


def spare_bytes() -> int:
    """How much more memory this process may take, as far as the system says.

    >>> spare_bytes() > 0
    True
    """
    found = [_UNBOUNDED]
    with suppress(OSError, ValueError, AttributeError):
        found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):
        text = Path("/proc/meminfo").read_text()
        found[1:] = [int(text.partition("MemAvailable:")[2].split()[0]) * 1024]
    with suppress(OSError, ValueError):  # a container's, where there is one
        found.append(int((_GROUP / "memory.max").read_text()) - int((_GROUP / "memory.current").read_text()))
    with suppress(ImportError, OSError, ValueError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        found.append(most - taken if most != resource.RLIM_INFINITY else _UNBOUNDED)
    return max(1, min(found))


def check_memory(what: str, remedy: str, *shape: int, each: int = 8, most: int | None = None) -> None:
    """Refuse an array of this shape that would take more memory than there is, or than `most` bytes.

    >>> check_memory("tables", "ask less", 32_000, 32_000, most=2**20)
    Traceback (most recent call last):
    verax.errors.InputError: tables, 32,000 x 32,000, would take 7.6 GiB of memory, and 1 MiB may be taken; ask less
    """
    needed = each * math.prod(shape)
    if needed <= min(_SMALL, _SMALL if most is None else most):
        return
    allowed = spare_bytes() if most is None else min(most, spare_bytes())
    if needed > allowed:
        sizes = " x ".join(f"{n:,}" for n in shape)
        raise InputError(
            f"{what}, {sizes}, would take {needed / 2**30:,.1f} GiB of memory, and {allowed // 2**20:,} MiB "
            f"{'are left' if most is None else 'may be taken'}; {remedy}"
        )


_SMALL = 2**26


def said_of_memory(remedy: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """What a function raises for want of memory, as a sentence with a remedy.

    >>> @said_of_memory("score fewer tasks")
    ... def large():
    ...     raise MemoryError
    >>> large()
    Traceback (most recent call last):
    verax.errors.InputError: there is not enough memory for this; score fewer tasks
    """

    def guarded(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except MemoryError as error:
                why = f" ({error})" if str(error) else ""
                raise InputError(f"there is not enough memory for this{why}; {remedy}") from None

        return called

    return guarded
