"""What is made of counts (.., parts, L, L), arrays or tensors alike: integers up to one division."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def excess(counts: Any) -> Any:
    """n C - a b^T of every table."""
    found = counts * counts.sum((-2, -1), keepdims=True)
    found -= counts.sum(-1, keepdims=True) * counts.sum(-2, keepdims=True)
    return found


def signs(over: Any, sign: Any) -> Any:
    """S, given or learned where n C > a b^T: on the same half, or on the other."""
    if not isinstance(sign, str):
        return sign
    return over > 0 if sign == "plugin" else (over > 0)[..., [1, 0], :, :]


def centred(counts: Any, s: Any, real: Callable[[Any], Any]) -> Any:
    """(psi - mean psi) / N of every cell, 0 where n < 2: an exact integer over n^2 N; `real` makes floats of integers.

    psi(k, l) = (e_k - a/n)^T S (e_l - b/n), in each half with its own n; N is both halves together.
    """
    n, a, b = counts.sum((-2, -1), keepdims=True), counts.sum(-1, keepdims=True), counts.sum(-2, keepdims=True)
    across, down = (s * b).sum(-1, keepdims=True), (s * a).sum(-2, keepdims=True)
    met, expected = (s * counts).sum((-2, -1), keepdims=True), (a * across).sum((-2, -1), keepdims=True)
    top = n * (n * s - across - down - met) + 2 * expected
    return top * (n > 1) / (real(n) ** 2 * real(n.sum(-3, keepdims=True))).clip(1.0)
