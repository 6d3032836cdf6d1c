"""Who counts: the choice a caller makes, and what "auto" makes of it. What is counted stands in `verax.kernels`.

Every operation is declared here once: the modules that do it, `_numpy_<family>`, `_numba_<family>` and
`_torch_<family>`, each with a function of its name, and about what it takes them.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from verax.errors import ExtraMissing, OptionError

Labels = npt.NDArray[np.signedinteger]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Sign = npt.NDArray[np.generic] | str
BACKENDS = ("auto", "numpy", "numba", "torch")
_EXTRAS = {"numba": "fast", "torch": "torch"}

# Seconds. Measured on one core of an AMD EPYC (Zen 4) with NumPy 2.4 and numba 0.68: importing numba and loading
# its kernels takes 0.7 s, compiling them, once a machine, 8 s more; importing torch takes 2 s.
_WORTH_CALLING, _WORTH_LOADING, _WORTH_A_DEVICE = 0.05, 1.5, 5.0


@dataclass(frozen=True)
class Engine:
    """How the counting is done, never what it gives.

    >>> Engine(backend="numpy").threads is None  # every core this process may use
    True
    """

    backend: str = "auto"
    threads: int | None = None
    max_bytes: int = 64 * 2**20

    def for_few(self) -> Engine:
        """The same where a pair or two is counted at a time: nothing to load, or to spread over threads.

        >>> Engine().for_few().backend
        'numpy'
        """
        return self if self.backend == "torch" else replace(self, backend="numpy", threads=1)


def engine(backend: str = "auto", threads: int | None = None, max_bytes: int | None = None) -> Engine:
    """A checked choice of how to count.

    >>> engine("numpy", threads=1)
    Engine(backend='numpy', threads=1, max_bytes=67108864)
    """
    _check_backend(backend)
    if threads is not None and threads < 1:
        raise OptionError(f"threads is {threads}; give 1 or more, or leave it out for every core")
    if max_bytes is not None and max_bytes < 2**20:
        raise OptionError(f"max_bytes is {max_bytes}; give at least {2**20}, a mebibyte")
    return Engine(backend, threads, Engine.max_bytes if max_bytes is None else max_bytes)


def cores() -> int:
    """How many cores this process may use.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_backend(backend: str) -> None:
    """Refuse a backend that does not exist, or is not here."""
    if backend not in BACKENDS:
        raise OptionError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend in _EXTRAS and not _is_installed(backend):
        raise ExtraMissing(f"Counts by {backend}", _EXTRAS[backend])


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _has_gpu() -> bool:
    """Whether torch is here, and a GPU that it can use; importing it takes seconds."""
    return _is_installed("torch") and bool(importlib.import_module("torch").cuda.is_available())


@dataclass(frozen=True)
class Operation:
    """What every backend does alike; costs are nanoseconds a label met, by how many labels there are."""

    name: str
    family: str
    numpy: Callable[[int], float]
    numba: Callable[[int], float]
    threaded: bool = True  # numba spreads it over the threads
    device: bool = True  # a GPU was measured to be quicker at much of it

    def run(self, engine: Engine, size: float, classes: int, *given: Any) -> Any:
        """Do it on so many labels met, by the backend that was asked for or the one that is done first."""
        _check_backend(engine.backend)
        backend = self.quickest(engine, size, classes) if engine.backend == "auto" else engine.backend
        return getattr(importlib.import_module(self.module(backend)), self.name)(*given, engine)

    def module(self, backend: str) -> str:
        """Where a backend's function of this name stands."""
        return f"verax.kernels._{backend}_{self.family}"

    def quickest(self, engine: Engine, size: float, classes: int) -> str:
        """The backend that will be done first, counting what it takes to load."""
        by_numpy, by_numba = size * self.numpy(classes) * 1e-9, size * self.numba(classes) * 1e-9
        by_numba /= (engine.threads or cores()) if self.threaded else 1
        saved = by_numpy - by_numba
        if saved < _WORTH_CALLING:
            return "numpy"
        fast = _is_installed("numba")
        if self.device and (by_numba if fast else by_numpy) > _WORTH_A_DEVICE and _has_gpu():
            return "torch"
        loaded = self.module("numba") in sys.modules
        return "numba" if fast and (loaded or saved > _WORTH_LOADING) else "numpy"


def _numpy_pair(classes: int) -> float:
    return min(0.013 * (classes - 1) * classes, 0.5 + 0.04 * classes, 2.0)


def _numba_pair(classes: int) -> float:
    return min(0.001 * (classes - 1) ** 2, 0.5)


COUNTS = Operation("counts", "pairs", _numpy_pair, _numba_pair)
LEARNED = Operation("totals", "pairs", _numpy_pair, _numba_pair)
GIVEN = replace(LEARNED, numba=lambda classes: min(_numba_pair(classes), 0.002 * classes))
PHI = Operation("phi", "phi", lambda n: _numpy_pair(n) + 2.5, lambda n: _numba_pair(n) + 0.3, device=False)
SUMS = Operation("sums", "phi", lambda _: 2.5, lambda _: 0.3, device=False)
TALLIES = Operation("tallies", "tasks", lambda n: 0.35 * n, lambda n: 0.2 + 0.04 * n, threaded=False)
WEIGHED = Operation("weighed", "tasks", lambda _: 3.0, lambda _: 0.4, threaded=False)
SPREAD = Operation("spread", "tasks", lambda n: 8.0 + 0.3 * n, lambda n: 0.2 * n, threaded=False, device=False)
INFLUENCE = replace(SPREAD, name="influence", numba=SPREAD.numpy)  # numba has none of its own
