"""What compiled kernels share: how a function is compiled, and instructions on vectors that Python has no words for.

LLVM turns the vectors into whatever the processor has: masks and vpopcntq, or look-ups in a byte shuffle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic

from verax.kernels import Labels

cgutils: Any = untyped_cgutils

WORD = 64
MOST_NARROW = 127  # labels that fit int8
I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_SUMS_MAY_BE_REORDERED = {"reassoc", "contract", "nsz"}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in machine code, without the interpreter's lock; sums of floats may be taken in any order.

    It is kept on disk where a folder can be written.
    """
    try:
        made: Callable[..., Any] = njit(nogil=True, cache=True, fastmath=_SUMS_MAY_BE_REORDERED)(function)
    except RuntimeError:  # nowhere to keep it
        made = njit(nogil=True, fastmath=_SUMS_MAY_BE_REORDERED)(function)
    return made


def narrow(labels: Labels, classes: int) -> Labels:
    """Labels as the kernels take them: int8 where they fit, else int32."""
    return np.ascontiguousarray(labels, dtype=np.int8 if classes <= MOST_NARROW else np.int32)


def whole(value: int) -> Any:
    """A 64-bit constant."""
    return ir.Constant(I64, value)


def load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    """What stands at the address."""
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = align
    return loaded


def in_all(builder: Any, value: Any, lanes: int) -> Any:
    """The value in every lane."""
    empty = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def popcount(builder: Any, value: Any, name: str) -> Any:
    """How many bits of each lane are set."""
    return call(builder, f"llvm.ctpop.{name}", value.type, value)


def call(builder: Any, name: str, kind: Any, *values: Any, **options: Any) -> Any:
    """One of LLVM's own functions."""
    function = ir.FunctionType(kind, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), values, **options)


def is_label(builder: Any, labels: Any, label: Any, lanes: int) -> Any:
    """Which of a vector of labels (int8) are this one, as a mask."""
    return builder.icmp_signed("==", labels, in_all(builder, builder.trunc(label, I8), lanes))


def _bits_of_label(_: Any, line: Any, label: Any) -> Any:
    """Which of the 64 labels (int8) at the address are this one, as the bits of a word."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        held = load(builder, args[0], ir.VectorType(I8, WORD), 1)
        return builder.bitcast(is_label(builder, held, args[1], WORD), I64)

    return types.uint64(types.int64, types.int64), code


def _count_of_ones(_: Any, word: Any) -> Any:
    """How many bits of the word are set."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return popcount(builder, args[0], "i64")

    return types.int64(types.uint64), code


says: Any = intrinsic(_bits_of_label)
ones: Any = intrinsic(_count_of_ones)
