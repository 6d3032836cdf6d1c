"""Walls around a process that runs what a stranger made: raised from inside, before anything of the stranger's is read.

    limits      memory, processor time, no files, no processes, no core dumps (setrlimit)
    nobody      another user than root, where root starts it
    namespaces  users, network and the rest of its own, and an empty folder as its root, where the kernel allows it
    landlock    no files, no network, no signals to others, where the kernel knows it
    seccomp     of all calls of the kernel those only that computing needs

What counts is not what was raised but what is shut: `open_doors` tries each. Memory, files and calls are Linux's; on
another Unix only limits stand. Everything is imported before: behind the walls nothing can be.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress

REQUIRED = ("limits", "seccomp")
NOBODY = 65534
MOST_SAID = 2**16  # bytes of its error output that are kept

# calls of the kernel on x86_64 and on aarch64: reading and writing what is open already, memory, time, and the end
_ALLOWED: dict[str, tuple[int, int]] = {
    "read": (0, 63), "write": (1, 64), "writev": (20, 66), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216),
    "madvise": (28, 233), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132), "futex": (202, 98), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "getpid": (39, 172), "gettid": (186, 178), "clock_gettime": (228, 113), "clock_nanosleep": (230, 115),
    "gettimeofday": (96, 169), "getrandom": (318, 278), "getcpu": (309, 168), "exit": (60, 93),
    "exit_group": (231, 94), "restart_syscall": (219, 128), "rseq": (334, 293), "membarrier": (324, 283),
}  # fmt: skip
_MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}  # column, audit's name, seccomp's number
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # refuse: EPERM
_NUMBER, _MACHINE, _PROTECTION = 0, 4, 32  # where the kernel's record of a call has them
_EXECUTABLE = 4
_OTHER_NUMBERS = 0x40000000  # x86_64's second table of calls


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def raise_walls(memory: int, seconds: int) -> tuple[str, ...]:
    """Raise every wall that can be raised here; those that stand, by name.

    `memory` is in bytes and `seconds` of processor time, both beyond what is used already. There is no way back.
    """
    held = _memory_held()  # asked for while /proc can be seen
    _die_first()
    attempts: Mapping[str, Callable[[], object]] = {
        "nobody": _leave_root,
        "namespaces": _enter_namespaces,
        "landlock": _raise_landlock,
        "limits": lambda: _set_limits(held + memory, seconds),
        "seccomp": _raise_seccomp,
    }
    standing = []
    for name, attempt in attempts.items():
        with suppress(OSError, ImportError, ValueError, AttributeError, KeyError):
            if attempt() is not False:
                standing.append(name)
    return tuple(standing)


def open_doors() -> tuple[str, ...]:
    """What a process can do that must not be possible behind the walls: each is tried.

    >>> "files" in open_doors()
    True
    """

    def fork() -> None:
        if not (child := os.fork()):
            os._exit(0)
        with suppress(OSError):
            os.waitpid(child, 0)

    tries: Mapping[str, Callable[[], object]] = {
        "files": lambda: open("/etc/passwd", "rb").close(),
        "folders": lambda: os.listdir("/"),
        "writing": lambda: os.close(os.open(".verax", os.O_WRONLY | os.O_CREAT)),
        "network": lambda: socket.socket().close(),
        "processes": fork,
        "signals": lambda: os.kill(os.getppid(), 0),
    }
    found = []
    for name, attempt in tries.items():
        with suppress(OSError, AttributeError):
            attempt()
            found.append(name)
    with suppress(OSError):
        os.unlink(".verax")
    return tuple(found)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> int:
    """A function of the C library; OSError where it says -1."""
    result: int = getattr(_libc(), name)(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


def _leave_root() -> bool:
    if os.geteuid() != 0:
        return False
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    return True


def _enter_namespaces() -> None:
    user, files, names, talk, network, control = 0x10000000, 0x20000, 0x4000000, 0x8000000, 0x40000000, 0x2000000
    _call("unshare", ctypes.c_int(user | files | names | talk | network | control))
    os.chroot(".")
    os.chdir("/")


def _memory_held() -> int:
    with suppress(FileNotFoundError), open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _die_first() -> None:
    """Where the machine runs out of memory all the same, this process goes, and not who waits for it."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _set_limits(memory: int, seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime) + 1
    limits = {"AS": memory, "CPU": spent + seconds, "FSIZE": MOST_SAID, "NOFILE": 0, "NPROC": 0, "CORE": 0}
    for name, most in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, least))


def _raise_landlock() -> None:
    """Whatever its version can forbid, with no exception."""
    number = ctypes.c_long
    version = _call("syscall", number(444), None, number(0), number(1))
    files = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    rules = struct.pack("QQQ", files, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _call("syscall", number(444), rules, number(len(rules)), number(0))
    _promise_no_privileges()
    _call("syscall", number(446), number(ruleset), number(0))
    os.close(ruleset)


def _promise_no_privileges() -> None:
    number = ctypes.c_ulong
    for option, value in ((1, 9), (4, 0), (38, 1)):  # to die with the parent, not to be looked into, to gain nothing
        _call("prctl", ctypes.c_int(option), number(value), number(0), number(0), number(0))


def _raise_seccomp() -> None:
    column, machine, seccomp = _MACHINES[platform.machine()]
    code = _filter(column, machine)
    program = _Program(len(code) // 8, code)
    _promise_no_privileges()
    number = ctypes.c_long
    all_threads = 1
    if _call("syscall", number(seccomp), number(1), number(all_threads), ctypes.byref(program)):
        raise OSError("a thread stays outside")


def _filter(column: int, machine: int) -> bytes:
    """The calls that are allowed, as a program of the kernel's packet filter."""
    steps = [
        (_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, machine), (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _OTHER_NUMBERS), (_RETURN, 0, 0, _KILL),
    ]  # fmt: skip
    for name, numbers in _ALLOWED.items():
        if name in ("mmap", "mprotect"):  # memory, but none that can be run
            steps += [(_EQUAL, 0, 4, numbers[column]), (_LOAD, 0, 0, _PROTECTION), (_ANY_BIT, 0, 1, _EXECUTABLE),
                      (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]  # fmt: skip
        else:
            steps += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in [*steps, (_RETURN, 0, 0, _REFUSE)])
