"""The paper's figures drawn: four panels in a row, exact curves as lines, drawn runs as markers with bars.

It draws what `experiments` found and computes nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from verax.errors import ExtraMissing, OptionError
from verax.reproduce.experiments import Curve
from verax.tables import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
_AS_WRITTEN: Any = {"svg.fonttype": "none", "svg.hashsalt": "verax", "font.size": 9.0}


class _Look(NamedTuple):
    """How a curve is told from its neighbours, by any one of colour, dashes and marker."""

    colour: str
    dashes: Any
    marker: str
    size: float


# Okabe and Ito's colours, from dark to light, so that they differ in grey too; where curves meet,
# the larger hollow marker is seen around the smaller one
_LOOKS = (
    _Look("#0072B2", "-", "o", 9.0),
    _Look("#D55E00", (0, (5, 2)), "s", 6.5),
    _Look("#009E73", (0, (1, 1)), "D", 4.0),
    _Look("#E69F00", (0, (5, 1.5, 1, 1.5)), "x", 4.0),
)
_PLACES = {
    (who, kind): 2 * pair + (kind == "sparse")
    for pair, whos in enumerate((("truth", "W"), ("peer", "S")))
    for who in whos
    for kind in ("uniform", "sparse")
}


def caption(curves: Sequence[Curve]) -> str:
    """What a figure shows and what to see in it.

    >>> falling = Curve(3, "a", "mnist", "W", "0-1", "uniform", "attacked peer", (0.0, 0.5), (0.9, 0.4), (0, 0), (), ())
    >>> print(caption([falling]).splitlines()[0])
    Figure 3. Scores by misreport rate, against the other agent with 0.3 of it under attack.
    """
    figure = curves[0].figure
    data = " and ".join(dict.fromkeys(_DATA[curve.data] for curve in curves))
    shown = f"on {data}" if figure < 3 else "against the other agent with 0.3 of it under attack"
    falling = sum(curve.decreasing for curve in curves)
    told = f"{falling} of {len(curves)} curves fall at every step"
    if falling == len(curves):
        told = "Every curve falls at every step: the more an agent misreports, the less it scores"
    if figure < 3 and len({curve.reference for curve in curves}) == 2:
        told += ", with ground truth or without"
    elif figure < 3:
        told += "; the curves with ground truth are left out, for the labels are not there"
    if _any_coincide(curves):
        who = "reference" if figure < 3 else "agent"
        told += f". Where curves lie on each other, neither the {who} nor the kind of misreport matters"
    return (
        f"Figure {figure}. Scores by misreport rate, {shown}.\n"
        f"{told}. Lines are exact expectations, markers the centre of the drawn runs, bars their largest "
        "deviation from it. Below: how far the runs are from the lines, side by side."
    )


def _panels_of(curves: Sequence[Curve]) -> list[list[Curve]]:
    return [list(members) for _, members in groupby(curves, key=lambda curve: curve.panel)]


def _any_coincide(curves: Sequence[Curve]) -> bool:
    """Whether some panel has several curves that stay within 2 % of its height of each other."""
    return any(
        max(max(at) - min(at) for at in zip(*(c.exact for c in members), strict=True)) < 0.02 * members[0].exact[0]
        for members in _panels_of(curves)
        if len(members) > 1
    )


def require() -> None:
    """Refuse where matplotlib is not installed, before any work is done."""
    if find_spec("matplotlib") is None:
        raise ExtraMissing("The paper's figures", "report")


def draw(curves: Sequence[Curve]) -> Figure:
    """One figure of the paper from its curves."""
    if not curves:
        raise OptionError("a figure needs a curve; give the labels or another figure")
    require()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    panels = _panels_of(curves)
    with rc_context(_AS_WRITTEN):
        figure = Figure(figsize=(12.5, 5.2))
        axes = figure.subplots(2, len(panels), sharex="col", squeeze=False, height_ratios=(3.2, 1))
        for column, members in enumerate(panels):
            _draw_panel(axes[0, column], axes[1, column], members)
        axes[0, 0].set_ylabel("score per task")
        axes[1, 0].set_ylabel("drawn - exact")
        handles, names = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="upper center", ncols=len(names), frameon=False, handlelength=4.5)
        lines = [line for part in caption(curves).splitlines() for line in textwrap.wrap(part, 175)]
        figure.text(0.06, 0.015, "\n".join(lines), va="bottom", linespacing=1.35)
        figure.subplots_adjust(left=0.065, right=0.99, top=0.88, bottom=0.245, wspace=0.2, hspace=0.1)
        for ax in axes[:, 0]:
            ax.yaxis.set_label_coords(-0.2, 0.5)
    return figure


def _draw_panel(score: Axes, drawn: Axes, curves: Sequence[Curve]) -> None:
    for place, curve in enumerate(curves):
        look = _LOOKS[_PLACES[curve.reference if curve.figure < 3 else curve.agent, curve.misreport]]
        _draw_curve(score, curve, look, 2.0 + 0.1 * place)
        _draw_runs(drawn, curve, look, (place - (len(curves) - 1) / 2) * 0.9)
    first = curves[0]
    where = f"agent {first.agent}" if first.figure < 3 else _DATA[first.data]
    score.set_title(f"({first.panel}) {first.score} score, {where}", fontsize=10)
    score.set_ylim(bottom=min(0.0, score.get_ylim()[0]))
    drawn.axhline(0, color="0.4", linewidth=0.7)
    drawn.set_xlabel("misreport rate (%)")
    drawn.set_xticks(range(0, 51, 10))
    for ax in (score, drawn):
        ax.grid(color="0.9", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)


def _draw_curve(ax: Axes, curve: Curve, look: _Look, above: float) -> None:
    rates = [100 * rate for rate in curve.rates]
    line: dict[str, Any] = {"color": look.colour, "linestyle": look.dashes, "linewidth": 1.0}
    marker: dict[str, Any] = {"marker": look.marker, "markersize": look.size, "markerfacecolor": "none"}
    ax.plot(rates, curve.exact, **line, zorder=above)
    bars: dict[str, Any] = {"color": look.colour, "linestyle": "none", "elinewidth": 0.9}
    ax.errorbar(rates, curve.centre, curve.deviation, **bars, **marker, zorder=above)
    ax.plot([], [], **line, **marker, label=_legend_label(curve))  # the legend shows line and marker as one


def _draw_runs(ax: Axes, curve: Curve, look: _Look, shift: float) -> None:
    """How far the runs are from what is expected of them; set side by side, or they would hide each other."""
    rates = [100 * rate + shift for rate in curve.rates]
    apart = [centre - exact for centre, exact in zip(curve.centre, curve.exact, strict=True)]
    marker: dict[str, Any] = {"marker": look.marker, "markersize": look.size / 2, "markerfacecolor": "none"}
    ax.errorbar(rates, apart, curve.deviation, color=look.colour, linestyle="none", elinewidth=0.9, **marker)


def _legend_label(curve: Curve) -> str:
    if curve.figure == 3:
        return f"agent {curve.agent}, {curve.misreport}"
    with_truth = "with ground truth" if curve.reference == "truth" else "without ground truth"
    return f"{curve.misreport}, {with_truth}"


def write(curves: Sequence[Curve], folder: Path) -> None:
    """The figure as folder/figure-<n>.svg, its text as text, and as folder/figure-<n>.png."""
    figure = draw(curves)
    from matplotlib import rc_context

    with rc_context(_AS_WRITTEN):
        for kind, metadata in (("svg", {"Date": None}), ("png", {})):
            save = partial(figure.savefig, format=kind, dpi=150, metadata=metadata)
            write_atomically(folder / f"figure-{curves[0].figure}.{kind}", save)
