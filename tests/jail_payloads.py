"""What a stranger would do who runs code of its own inside a jail; each is work for one (verax.models.inmate)."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import signal
import socket
import sys
import time
from pathlib import Path

HERE = os.path.dirname(os.path.abspath(__file__))
LIBC = ctypes.CDLL(None, use_errno=True)
NEVER = {  # calls of x86_64 that nobody behind the walls may make, whatever their arguments
    "open": 2, "stat": 4, "ioctl": 16, "socket": 41, "connect": 42, "clone": 56, "fork": 57, "vfork": 58, "execve": 59,
    "kill": 62, "ptrace": 101, "chroot": 161, "mount": 165, "setrlimit": 160, "tkill": 200, "io_setup": 206,
    "tgkill": 234, "openat": 257, "unshare": 272, "perf_event_open": 298, "prlimit64": 302, "open_by_handle_at": 304,
    "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "memfd_create": 319, "bpf": 321, "execveat": 322,
    "userfaultfd": 323, "io_uring_setup": 425, "pidfd_open": 434, "clone3": 435, "openat2": 437, "pidfd_getfd": 438,
}  # fmt: skip


def tried(attempt):
    try:
        return f"done: {str(attempt())[:40]}"
    except BaseException as error:
        return type(error).__name__


def called(number):
    ctypes.set_errno(0)
    return "done" if LIBC.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 5) != -1 else ctypes.get_errno()


def everything(request):
    """Each way out, tried; what comes of it."""
    held = request.read()
    victim = held.decode()
    unix, inet = (socket.AF_UNIX, socket.AF_INET)

    def fork():
        if not os.fork():
            os._exit(0)

    def tries():
        yield json.dumps({
            "the answer": held == victim.encode(),
            "read /etc/passwd": tried(lambda: Path("/etc/passwd").read_text()),
            "read itself": tried(lambda: Path("/proc/self/environ").read_text()),
            "list": tried(lambda: os.listdir(HERE)),
            "look": tried(lambda: os.stat("/etc/passwd").st_size),
            "write here": tried(lambda: Path("mine").write_text("x")),
            "write outside": tried(lambda: Path(victim).write_text("x")),
            "remove outside": tried(lambda: os.unlink(victim)),
            "socket": tried(lambda: socket.socket(inet)),
            "unix socket": tried(lambda: socket.socket(unix)),
            "pair": tried(socket.socketpair),
            "fork": tried(fork),
            "spawn": tried(lambda: os.posix_spawn("/bin/true", ["true"], {})),
            "exec": tried(lambda: os.execv("/bin/true", ["true"])),
            "kill the parent": tried(lambda: os.kill(os.getppid(), signal.SIGKILL)),
            "code in memory": tried(lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)),
            "be root again": tried(lambda: os.setuid(0)),
            "more memory than allowed": tried(lambda: len(bytearray(4 * 2**30))),
            **({name: called(number) for name, number in NEVER.items()} if platform.machine() == "x86_64" else {}),
        }).encode()  # fmt: skip

    return tries


def without_namespaces(request):
    """As in a container that may make none, on a kernel without Landlock: everything is tried there too."""
    from verax.models import confine as walls

    def refuse():
        raise PermissionError

    walls._enter_namespaces = walls._raise_landlock = walls._leave_root = refuse
    return everything(request)


def without_walls(request):
    from verax.models import inmate

    inmate.raise_walls = lambda *how: ()
    mark = Path(request.read().decode() or "reached")

    def reach():
        mark.write_text("reached")
        return [b"reached"]

    return reach


def forking(request):
    def bomb():
        found = [tried(os.fork) for _ in range(1000)]
        yield json.dumps(sorted(set(found))).encode()

    return bomb


def flooding(request):
    def flood():
        while True:
            yield b"x" * 2**16

    return flood


def printing(request):
    """Standard output and error, flooded: neither is the answer, and neither fills a disk."""

    def flood():
        for _ in range(2000):
            for to in (1, 2):
                tried(lambda to=to: os.write(to, b"x" * 2**16))
        yield b"done"

    return flood


def sleeping(request):
    return lambda: time.sleep(3600) or ()


def lingering(request):
    """It closes what it answers on, as if it had ended, and goes on."""

    def linger():
        os.closerange(3, 256)
        time.sleep(3600)
        return ()

    return linger


def spinning(request):
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)

    def spin():
        while True:
            pass

    return spin


def crashing(request):
    return lambda: ctypes.string_at(0)


def old_calls(request):
    """A call by the numbers of another kind of machine."""
    return lambda: LIBC.syscall(ctypes.c_long(0x40000000 + 57)) or ()


def failing(request):
    return lambda: sys.exit("\x1b[31mno\n" * 200)


def lying(request):
    """Whatever a stranger says in place of answers, with code of its own in the runtime: the request says which."""
    import numpy as np

    with np.load(request) as held:
        lie = bytes(held["model"].tobytes()).split(b"LIE:")[1]
    n = 8 * 3
    said = {
        b"nothing": [], b"no json": [b"\xff\xfe\n"], b"deep": [b"[" * 10000], b"list": [b"[]\n"],
        b"long": [b"x" * 2**20],
        b"no labels": [b'{"problem":null}\n'], b"some": [b'{"problem":null}\n', b"\0" * (n - 1)],
        b"no class": [b'{"problem":null}\n', b"\7" * n], b"silent": [b'{"problem":null}\n', b"\xff" * n],
        b"nan": [b'{"problem":null}\n', b"\0" * n, b"\xff" * (2 * n)],
        b"letters": [b'{"problem":"\\u001b[2J\\u202e"}\n'],
    }  # fmt: skip
    return lambda: said[lie]
