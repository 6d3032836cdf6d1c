"""Agents that are networks: the paper's architectures, trained as its appendix says; tensors stay in here.

LeNet and ResNet34 are the weak agents (MNIST, CIFAR-10), the 13-layer CNN the strong one on both. Each is
trained on 25,000 images drawn uniformly by its seed: SGD with momentum 0.9 and weight decay 1e-4, learning
rate 0.1 times 0.1 every 20 of 100 epochs (MNIST) or every 40 of 180 (CIFAR-10), batches of 128, no
augmentation. On a GPU in bfloat16, channels last.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from verax.errors import InputError
from verax.reproduce.datasets import Dataset

Rows = npt.NDArray[np.float32]
Progress = Callable[[int, int, float], None]


def lenet(channels: int = 1, classes: int = 10, size: int = 28) -> nn.Module:
    """LeNet-5: two convolutions, three full layers; the weak agent on MNIST."""
    left = ((size - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * left * left, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, classes),
    )  # fmt: skip


class _Residual(nn.Module):
    """Two 3x3 convolutions around which the input is added."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.short: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.short = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet34(channels: int = 3, classes: int = 10, width: int = 1) -> nn.Module:
    """ResNet34 with a 3x3 stem for small images; the weak agent on CIFAR-10.

    `width` divides every layer, for small versions.
    """
    before = 64 // width
    layers: list[nn.Module] = [nn.Conv2d(channels, before, 3, 1, 1, bias=False), nn.BatchNorm2d(before), nn.ReLU()]
    for maps, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for b in range(blocks):
            layers.append(_Residual(before, maps // width, 2 if b == 0 and maps > 64 else 1))
            before = maps // width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def cnn13(channels: int = 3, classes: int = 10, size: int = 32, width: int = 1) -> nn.Module:
    """The 13-layer CNN, the strong agent: three pairs of convolutions, then three full layers.

    `width` divides every layer, for small versions.
    """
    layers: list[nn.Module] = []
    before = channels
    for first, second in ((32, 64), (128, 128), (256, 256)):
        a, b = first // width, second // width
        layers += [nn.Conv2d(before, a, 3, padding=1), nn.BatchNorm2d(a), nn.ReLU(),
                   nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]  # fmt: skip
        before = b
    left = size // 8
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Dropout(0.1),
        nn.Linear(before * left * left, 1024 // width), nn.ReLU(), nn.Linear(1024 // width, 512 // width), nn.ReLU(),
        nn.Dropout(0.1), nn.Linear(512 // width, classes),
    )  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """How an agent is made: its network, its data and its training."""

    data: str
    network: str
    seed: int
    images: int = 25_000
    epochs: int = 100
    every: int = 20
    rate: float = 0.1
    batch: int = 128
    width: int = 1
    noise: float = 0.0
    rebuilt: bool = False  # a new optimiser every epoch, so momentum starts from nothing
    frozen: bool = False  # left in evaluation mode after the first epoch: batch statistics stay as they were

    @property
    def name(self) -> str:
        """What its recorded predictions are called."""
        return f"{self.data}-{self.network}-{self.seed}"

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Epochs trained alike, first to last but one: at one learning rate, in one mode.

        >>> Recipe("mnist", "lenet", 0, epochs=50, every=20, frozen=True).spans
        [(0, 1), (1, 20), (20, 40), (40, 50)]
        """
        starts = sorted({*range(0, self.epochs, self.every), *([1] if self.frozen and self.epochs > 1 else [])})
        return list(zip(starts, [*starts[1:], self.epochs], strict=True))


def paper_recipes(seed: int) -> list[Recipe]:
    """The paper's four agents: weak and strong, on both data sets."""
    mnist, cifar = Recipe("mnist", "lenet", 2 * seed), Recipe("cifar10", "resnet34", 2 * seed, epochs=180, every=40)
    return [agent for weak in (mnist, cifar) for agent in (weak, replace(weak, network="cnn13", seed=2 * seed + 1))]


def build(recipe: Recipe) -> nn.Module:
    """The untrained network of a recipe, seeded."""
    torch.manual_seed(recipe.seed)
    channels, size = (1, 28) if recipe.data == "mnist" else (3, 32)
    makers: dict[str, Callable[[], nn.Module]] = {
        "lenet": lambda: lenet(channels, 10, size),
        "resnet34": lambda: resnet34(channels, 10, recipe.width),
        "cnn13": lambda: cnn13(channels, 10, size, recipe.width),
    }
    return nn.Sequential(_Centred(recipe.data), makers[recipe.network]())


class _Centred(nn.Module):
    """Takes images in 0..1, so that an attack may too, and centres them."""

    mean: torch.Tensor
    spread: torch.Tensor

    def __init__(self, data: str) -> None:
        super().__init__()
        mean, spread = ([0.1307], [0.3081]) if data == "mnist" else ([0.491, 0.482, 0.447], [0.247, 0.243, 0.262])
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("spread", torch.tensor(spread)[:, None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / self.spread


def train(
    recipe: Recipe, dataset: Dataset, *, folder: Path | None = None, progress: Progress | None = None
) -> nn.Module:
    """The trained network of a recipe; resumed from `folder` if an earlier run stopped half-way."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net: nn.Module = build(recipe).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    images, labels = _own_data(recipe, dataset, device)
    shuffle = torch.Generator(device="cpu").manual_seed(recipe.seed)
    kept = None if folder is None else folder / f"{recipe.name}.pt"
    first, momentum = _resume_run(kept, recipe, net, shuffle)
    for start, end in recipe.spans:
        if start < first:
            continue
        net.train(not recipe.frozen or start == 0)
        rate = recipe.rate * 0.1 ** (start // recipe.every)
        optimiser = _descent(net, rate, momentum)
        for epoch in range(start, end):
            if recipe.rebuilt:
                _reset_momentum(optimiser)
            order = torch.randperm(len(images), generator=shuffle).to(device)
            loss = torch.zeros((), device=device)
            for batch in torch.split(order, recipe.batch):
                if len(batch) == recipe.batch or len(images) < recipe.batch:
                    optimiser.zero_grad(set_to_none=True)
                    with torch.autocast("cuda", torch.bfloat16) if images.is_cuda else nullcontext():
                        loss = cross_entropy(net(images[batch]), labels[batch])
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
            if progress is not None:
                progress(epoch + 1, recipe.epochs, float(loss.detach()))
        momentum = optimiser.state_dict()
        if kept is not None:
            _save_run(kept, recipe, net, shuffle, momentum, end)
    return net.eval()


def _own_data(recipe: Recipe, dataset: Dataset, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The images a recipe draws, in 0..1, and their labels, some of them noised if it says so."""
    rng = np.random.default_rng(recipe.seed)
    chosen = rng.choice(len(dataset.train_labels), min(recipe.images, len(dataset.train_labels)), replace=False)
    labels, images = dataset.train_labels[chosen], torch.from_numpy(dataset.train_images[chosen])
    wrong = rng.random(len(labels)) < recipe.noise
    labels[wrong] = rng.integers(0, 10, int(wrong.sum()))
    images = images.to(device).float() / 255
    return images.contiguous(memory_format=torch.channels_last), torch.from_numpy(labels).to(device)


def _descent(net: nn.Module, rate: float, momentum: Any) -> torch.optim.Optimizer:
    """SGD at a learning rate, with the momentum that an earlier one has left."""
    optimiser = torch.optim.SGD(net.parameters(), rate, momentum=0.9, weight_decay=1e-4)
    if momentum is not None:
        optimiser.load_state_dict(momentum)
        for group in optimiser.param_groups:
            group["lr"] = rate
    return optimiser


def _reset_momentum(optimiser: torch.optim.Optimizer) -> None:
    """As if the optimiser were new: its momentum is nothing again."""
    for state in optimiser.state.values():
        if state.get("momentum_buffer") is not None:
            state["momentum_buffer"].zero_()


def _resume_run(kept: Path | None, recipe: Recipe, net: nn.Module, shuffle: torch.Generator) -> tuple[int, Any]:
    if kept is None or not kept.exists():
        return 0, None
    state = torch.load(kept, weights_only=True, map_location=next(net.parameters()).device)
    if state.get("recipe") != asdict(recipe):
        raise InputError(f"{kept}: another recipe's training is kept there; move it away, or use another folder")
    net.load_state_dict(state["net"])
    shuffle.set_state(state["shuffle"].cpu())
    torch.set_rng_state(state["dropout"][0].cpu())
    if torch.cuda.is_available() and len(state["dropout"]) > 1:
        torch.cuda.set_rng_state(state["dropout"][1].cpu())
    return int(state["epoch"]), state["momentum"]


def _save_run(kept: Path, recipe: Recipe, net: nn.Module, shuffle: torch.Generator, momentum: Any, epoch: int) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    beside = kept.with_suffix(".new")
    dropout = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])]
    state = {"recipe": asdict(recipe), "net": net.state_dict(), "shuffle": shuffle.get_state(), "dropout": dropout}
    torch.save(state | {"momentum": momentum, "epoch": epoch}, beside)
    beside.replace(kept)


def predict(
    net: nn.Module,
    images: npt.NDArray[np.uint8],
    *,
    attacked: npt.NDArray[np.int64] | None = None,
    seed: int = 0,
    batch: int = 1000,
) -> Rows:
    """Probabilities (N, L) of images given as bytes; with their labels as `attacked`, of these after an attack."""
    device = next(net.parameters()).device
    generator = torch.Generator(device=device).manual_seed(seed)
    found = []
    for part in np.array_split(np.arange(len(images)), max(1, len(images) // batch)):
        x = torch.from_numpy(images[part]).to(device).float() / 255
        if attacked is not None:
            x = pgd(net, x, torch.from_numpy(attacked[part]).to(device), generator=generator)
        with torch.no_grad():
            found.append(net(x).softmax(1).cpu().numpy())
    return np.concatenate(found).astype(np.float32)


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
