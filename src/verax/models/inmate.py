"""What runs inside the jail: prepare, raise the walls, say which stand, and only then touch what a stranger made."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import IO

from verax.models.confine import REQUIRED, open_doors, raise_walls

# What is done in a jail: it prepares before the walls stand, and returns what is to be done behind them.
Work = Callable[[IO[bytes]], Callable[[], Iterable[bytes]]]


def main(work: str, memory: int, seconds: int, weak: bool) -> None:
    """Do `work`, a module:function, on standard input; the first line of standard output says which walls stand."""
    module, _, name = work.partition(":")
    prepare: Work = getattr(importlib.import_module(module), name)
    answer = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints is no answer
    with open(0, "rb") as request:
        ready = prepare(request)
    walls = raise_walls(memory, seconds)
    doors = open_doors()
    strong = not doors and {*REQUIRED} <= {*walls}
    _write(answer, json.dumps({"walls": walls, "doors": doors, "strong": strong}).encode() + b"\n")
    if strong or weak:
        for block in ready():
            _write(answer, block)
    os._exit(0)  # no library has a word after that


def _write(to: int, block: bytes) -> None:
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(to, rest) :]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "weak")
