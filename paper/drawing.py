"""How every study of this folder reads its options, draws its figure and leaves its numbers."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

HERE = Path(__file__).parent
RECORDED = HERE.parent / "src" / "verax" / "reproduce" / "recorded"

# Okabe and Ito's colours, told apart by colour-blind readers too; markers and dashes say the same in grey.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)))

STYLE = {
    "font.size": 9, "axes.titlesize": 9.5, "figure.titlesize": 11, "legend.fontsize": 8, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "lines.markersize": 5,
    "svg.fonttype": "none", "svg.hashsalt": "verax",  # the same picture gives the same file
}  # fmt: skip


def options(about: str | None, *, labels: bool = False) -> argparse.Namespace:
    """The command line: where results go and, for a study that needs labels, where they are."""
    first = (about or "").strip().splitlines()[0]
    parser = argparse.ArgumentParser(description=first)
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for the numbers and the figure")
    if labels:
        parser.add_argument("--data-dir", type=Path, required=True, help="folder that holds cifar-10-batches-bin")
    return parser.parse_args()


def panels(title: str, columns: int, *, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure whose title states the finding, with its panels in one row."""
    mpl.rcParams.update(STYLE)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontweight="bold")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def labelled(axes: Axes, title: str, x: str, y: str) -> None:
    """A panel's title and its axes."""
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def leave(out: Path, name: str, numbers: dict[str, Any], figure: Figure) -> None:
    """The numbers as JSON, the figure as PNG and SVG."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(_plain(numbers), indent=1) + "\n")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150)
    with Image.open(drawn) as picture:  # few colours are needed, and a third of the bytes
        picture.convert("RGB").quantize(96).save(out / f"{name}.png", optimize=True)
    figure.savefig(out / f"{name}.svg", metadata={"Date": None})


def _plain(value: Any) -> Any:
    """Built-in types, numbers to ten digits: beyond them machines differ."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(v) for v in value]
    if isinstance(value, float | np.floating):
        return float(f"{float(value):.10g}")
    return value.item() if isinstance(value, np.generic) else value


def recorded(*files: Path) -> dict[str, np.ndarray]:
    """The clean predictions in some recorded files, by agent: (tasks, classes)."""
    found = {}
    for file in files:
        with np.load(file) as stored:
            clean = [key for key in stored.files if key.endswith("/clean")]
            found |= {key.removesuffix("/clean"): stored[key].astype(float) for key in clean}
    return found


def population() -> dict[str, np.ndarray]:
    """The 24 small CIFAR-10 networks that `train.py --population` recorded."""
    return recorded(*sorted((HERE / "recorded").glob("population-*.npz")))
