"""Attacks on networks and on federations: plain functions; what they cost an agent is scored elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy


def pgd(
    logits: Callable[[torch.Tensor], torch.Tensor],
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    generator: torch.Generator | None = None,
    radius: float = 0.15,
    steps: int = 40,
    step: float = 0.01,
    start: torch.Tensor | None = None,
) -> torch.Tensor:
    """Images moved within an L-infinity ball so that the network errs: projected gradient descent, untargeted.

    Random start in the ball (or `start`), `steps` steps of `step` up the loss of `labels`, always clipped to
    the ball and to 0..1. (section 5.2, LinfPGDAttack)
    """
    if start is None:
        noise = torch.rand(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        start = (images + (2 * noise - 1) * radius).clamp(0, 1)
    moved = start.clone()
    for _ in range(steps):
        moved.requires_grad_(True)
        loss = cross_entropy(logits(moved), labels, reduction="sum")
        (slope,) = torch.autograd.grad(loss, moved)
        with torch.no_grad():
            moved = moved + step * slope.sign()
            moved = torch.minimum(torch.maximum(moved, images - radius), images + radius).clamp(0, 1)
    return moved.detach()
