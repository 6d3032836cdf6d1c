"""Executors: where work is done, in processes of this machine or on a Dask cluster; what it is, others decide."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, InvalidStateError, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import connection, get_context, parent_process
from types import TracebackType
from typing import Any

from verax.errors import ExtraMissing, InputError, OptionError, VeraxError

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
_ANSWER = 10.0  # seconds within which a scheduler must answer
_SHIPPED = 2**30  # bytes that work may take to send, all items together
_PATIENCE = 30.0  # seconds that a cluster may be without anybody to do the work


class Processes(Executor):
    """So many processes of one thread each; after one was lost they are all begun again, and none outlives this one.

    >>> Processes(0)
    Traceback (most recent call last):
    verax.errors.OptionError: workers is 0; give 1 or more
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise OptionError(f"workers is {workers}; give 1 or more")
        self._max_workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As any executor's."""
        with _environment(_ONE_THREAD):
            try:
                return self._begun().submit(function, *args, **kwargs)
            except BrokenExecutor:
                self._end()
                return self._begun().submit(function, *args, **kwargs)

    def _begun(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self._max_workers, get_context("spawn"), _begin)
        return self._pool

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As any executor's."""
        if self._pool is not None:
            self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _end(self) -> None:
        """End the processes whatever they are at."""
        if self._pool is not None:
            running = [*(getattr(self._pool, "_processes", None) or {}).values()]
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.kill()
            for process in running:
                process.join()
            self._pool = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.shutdown()
        else:
            self._end()


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """These variables for processes begun meanwhile."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _begin() -> None:
    """In a new process: leave an interrupt to the parent, and end when the parent does, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None
    sentinel = parent.sentinel

    def follow() -> None:
        connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """The workers of a Dask scheduler at an address such as tcp://10.0.0.1:8786."""
    try:
        from distributed import Client
    except ImportError:
        raise ExtraMissing("Dask clusters", "dask") from None
    try:
        connect: Any = Client
        client = connect(address, timeout=_ANSWER, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise VeraxError(
            f"{address}: no Dask scheduler answers ({reason}); check that it runs and the address"
        ) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=_PATIENCE)
        except TimeoutError:
            raise VeraxError(f"{address}: the Dask scheduler has no workers; start some with: dask worker") from None
        watched = Watched(client.get_executor(pure=False), lambda: _manned(client), sum(client.nthreads().values()))
        with watched:
            yield watched


def _manned(client: Any) -> bool:
    return client.status == "running" and bool(client.scheduler_info()["workers"])


class Watched(Executor):
    """Another executor, whose work is given up as lost once nobody has been there to do it for a while.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with Watched(ThreadPoolExecutor(1), lambda: True, workers=1) as executor:
    ...     executor.submit(len, "four").result()
    4
    """

    def __init__(self, inner: Executor, manned: Callable[[], bool], workers: int, patience: float = _PATIENCE) -> None:
        self._inner, self._manned, self._max_workers, self._patience = inner, manned, workers, patience
        self._open: dict[Future[Any], Future[Any]] = {}
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As any executor's."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sending much at once, which is meant
            inner = self._inner.submit(function, *args, **kwargs)
        outer: Future[Any] = Future()
        self._open[inner] = outer
        outer.add_done_callback(lambda outer: inner.cancel() if outer.cancelled() else None)
        inner.add_done_callback(self._pass_on)
        return outer

    def _pass_on(self, inner: Future[Any]) -> None:
        outer = self._open.pop(inner, None)
        if outer is None:
            return
        with suppress(InvalidStateError):
            if inner.cancelled():
                outer.set_exception(BrokenExecutor("the work was cancelled"))
            elif (error := inner.exception()) is not None:
                outer.set_exception(error)
            else:
                outer.set_result(inner.result())

    def _watch(self) -> None:
        seen = time.monotonic()
        while not self._over.wait(self._patience / 10):
            if self._manned():
                seen = time.monotonic()
            elif time.monotonic() - seen > self._patience:
                for inner in [*self._open]:
                    outer = self._open.pop(inner, None)
                    if outer is not None:
                        with suppress(InvalidStateError):
                            outer.set_exception(BrokenExecutor(f"nobody did the work for {self._patience:g} seconds"))
                    inner.cancel()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As any executor's."""
        self._over.set()
        for inner in [*self._open] if cancel_futures else []:
            inner.cancel()
        self._inner.shutdown(wait)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown(wait=kind is None, cancel_futures=kind is not None)


# Work, item by item


@dataclass
class _Asked:
    """Items that were asked for, and how often."""

    items: Sequence[Any]
    future: Future[Any]
    times: int = 1


@dataclass(frozen=True)
class _Refusal:
    """A refusal on its way home; not every exception survives being sent."""

    kind: type[VeraxError]
    sentence: str


def each_of(
    work: Callable[[Any], Any], items: Sequence[Any], executor: Executor | None, also: type[VeraxError] = VeraxError
) -> Iterator[Any]:
    """What the work finds in every item, in their order; `also` is a refusal of its own that must come home as such.

    Work whose worker is lost is asked for once more. An item has a `name`.

    >>> [*each_of(len, ["a", "bb"], None)]
    [1, 2]
    """
    return map(work, items) if executor is None else _each_sent(work, items, executor, also)


def _each_sent(
    work: Callable[[Any], Any], items: Sequence[Any], executor: Executor, also: type[VeraxError]
) -> Iterator[Any]:
    packed = pickle.dumps(work)
    size = -(-len(items) // max(1, min(len(items), _SHIPPED // len(packed))))
    waiting: deque[_Asked] = deque()
    todo = iter([items[i : i + size] for i in range(0, len(items), size)])
    ahead = 2 * int(getattr(executor, "_max_workers", 4))
    try:
        while True:
            while len(waiting) < ahead and (more := next(todo, None)) is not None:
                waiting.append(_Asked(more, _submitted(executor, packed, more, also)))
            if not waiting:
                return
            try:
                found = waiting[0].future.result()
            except BaseException as error:
                if _installed_otherwise(error):
                    raise VeraxError(
                        f"{waiting[0].items[0].name}: whoever was to read it cannot ({_reason_of(error)}); "
                        "install the same verax there, with its extras"
                    ) from error
                if not _worker_lost(error):
                    raise
                _ask_again(waiting, executor, packed, also, error)
                continue
            waiting.popleft()
            for each in found:
                if isinstance(each, _Refusal):
                    raise each.kind(each.sentence)
                yield each
    finally:
        for asked in waiting:
            asked.future.cancel()


def _submitted(executor: Executor, packed: bytes, items: Sequence[Any], also: type[VeraxError]) -> Future[Any]:
    try:
        return executor.submit(_worked, packed, items, also)
    except (BrokenExecutor, RuntimeError) as error:
        raise VeraxError(
            f"{items[0].name}: no worker is left to read it ({_reason_of(error)}); nothing was scored, start again"
        ) from None


def _worked(packed: bytes, items: Sequence[Any], also: type[VeraxError]) -> list[Any]:
    """The work on some items, done wherever this runs; a refusal ends it."""
    found: list[Any] = []
    try:
        for item in items:
            found.append(_unpacked(packed)(item))
    except VeraxError as error:
        kind = next(k for k in (InputError, OptionError, also, VeraxError) if isinstance(error, k))
        found.append(_Refusal(kind, str(error)))
    return found


@lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> Callable[[Any], Any]:
    return pickle.loads(packed)  # type: ignore[no-any-return]  # packed by whoever calls  # nosec B301


def _worker_lost(error: BaseException) -> bool:
    """Whether it says that a worker is gone, not that its work went wrong."""
    return isinstance(error, BrokenExecutor | CancelledError) or type(error).__module__.startswith("distributed")


def _installed_otherwise(error: BaseException) -> bool:
    """Whether it says that things are installed here which are not there."""
    return isinstance(error, ImportError | pickle.PickleError) or "deserializ" in str(error)


def _ask_again(
    waiting: Iterable[_Asked], executor: Executor, packed: bytes, also: type[VeraxError], error: BaseException
) -> None:
    """Ask once more, in order, for all that went down with a worker."""
    for asked in waiting:
        future = asked.future
        if not future.done() or (not future.cancelled() and future.exception() is None):
            continue
        if asked.times > 1:
            raise VeraxError(
                f"{asked.items[0].name}: whoever read it was lost twice ({_reason_of(error)}); nothing was scored: "
                "look for too little memory, or a shard that ends its reader, and start again"
            )
        asked.future, asked.times = _submitted(executor, packed, asked.items, also), asked.times + 1


def _reason_of(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
