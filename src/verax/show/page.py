"""Results as one HTML page that stands alone: it decides what stands where. Nothing here computes a result.

No script but what sorts and searches tables where that is asked for, no network, no font of its own: text, tables, and
drawings made of strings. The template escapes whatever it is given. A verdict is told by a symbol and a word, a cell by
a number or a ramp that the colour-blind can read; colour is never alone.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from verax.audit import CODES, Certificate
from verax.audit.independence import Excess
from verax.payments import Payments
from verax.schemes import known_rule
from verax.score import Score, Scores
from verax.show.text import MARKS, Listing, rank_text, shown

if TYPE_CHECKING:
    import jinja2

Numbers = Sequence[float] | npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

_DRAWN = 40  # agents or classes in a heat map: beyond, cells are too small to read
_WRITTEN = 16  # up to here a cell has room for its number
_NAMED = 12  # names or pairs in a sentence
_FOLDED = 3  # certificates with one verdict that are shown without folding
_LISTED = 1000  # rows of a table that only lists
_STEPS = 10
_SIDES = 6


@dataclass(frozen=True, eq=False)
class Pairwise:
    """Each agent's score (row) against each other as reference (column); NaN where there is none.

    >>> Pairwise(("a", "b"), np.array([[np.nan, 0.5], [0.4, np.nan]])).values.shape
    (2, 2)
    """

    agents: tuple[str, ...]
    values: Matrix


@dataclass(frozen=True, eq=False)
class DeltaMap:
    """Delta: report (row) by reference (column); `confusable` names the cells (report, reference) to mark.

    >>> DeltaMap(("cat", "dog"), np.array([[0.2, -0.2], [-0.2, 0.2]]), ()).confusable
    ()
    """

    classes: tuple[str, ...]
    values: Matrix
    confusable: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a chart, with a band from `low` to `high` if both are given.

    >>> Line("honest", [0.0, 0.5], [0.6, 0.3]).low is None
    True
    """

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None


@dataclass(frozen=True, eq=False)
class Curve:
    """A line chart: a market's price path, what a misreport costs, a score against temperature.

    >>> Curve("Cost", "rate", "score", (Line("a", [0, 1], [0.6, 0.0]),), "Lying costs.").lines[0].name
    'a'
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    caption: str


def page(
    title: str,
    *,
    lead: str = "",
    notes: Sequence[str] = (),
    scores: Scores | None = None,
    pairwise: Pairwise | None = None,
    delta: DeltaMap | None = None,
    certificates: Sequence[Certificate] = (),
    kin: Excess | None = None,
    payments: Payments | None = None,
    listings: Sequence[Listing] = (),
    curves: Sequence[Curve] = (),
    script: str = "",
) -> str:
    """One self-contained HTML page of whatever is given; a section without data is left out.

    >>> from verax import Reports, score
    >>> text = page("Round <7>", scores=score(Reports.of(labels=[[0, 1, 0], [0, 1, 1]])))
    >>> "<h1>Round &lt;7&gt;</h1>" in text, "<h2>Scores</h2>" in text, "<h2>Payments</h2>" in text
    (True, True, False)
    """
    from markupsafe import Markup

    sheet = style_sheet()
    return template_engine().get_template("page.html").render(
        title=title,
        sheet=Markup(sheet),  # our own  # nosec B704
        script=Markup(script),  # our own  # nosec B704
        policy=f"default-src 'none'; style-src {_digest(sheet)}; {f'script-src {_digest(script)}; ' if script else ''}"
        "base-uri 'none'; form-action 'none'",
        lead=lead,
        notes=[*notes, *(scores.warnings if scores else ())],
        **sections(
            scores=scores, pairwise=pairwise, delta=delta, certificates=certificates, kin=kin, payments=payments,
            listings=listings, curves=curves,
        ),
    )  # fmt: skip


def _digest(text: str) -> str:
    """What a policy allows a text by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def style_sheet() -> str:
    """How pages look.

    >>> style_sheet()[:6]
    ':root{'
    """
    return (files("verax.show") / "templates" / "page.css").read_text(encoding="utf-8")


def sections(
    *,
    scores: Scores | None = None,
    pairwise: Pairwise | None = None,
    delta: DeltaMap | None = None,
    certificates: Sequence[Certificate] = (),
    kin: Excess | None = None,
    payments: Payments | None = None,
    listings: Sequence[Listing] = (),
    curves: Sequence[Curve] = (),
) -> dict[str, Any]:
    """What sections.html is rendered from; a section without data is left out.

    >>> sections()["charts"]
    []
    """
    return {
        "scores": scores,
        "rule": scores and known_rule(scores.mechanism.rule),
        "axis": scores and _Axis.over([0.0, *(x for s in scores.scores for x in _confidence_interval(s))], margin=0.03),
        "ranks": {r.agent: rank_text(r.low, r.high) for r in scores.ranks} if scores else {},
        "paid": {p.agent: p.amount for p in payments.payments} if payments else {},
        "pairwise": pairwise and _pairwise_heat(pairwise, scores),
        "delta": delta and _delta_heat(delta),
        "confusable": delta and _confusable_pairs(delta),
        "certificates": certificates,
        "groups": _grouped_by_code(certificates),
        "kin": kin and _kin_heat(kin),
        "kin_by_truth": kin and kin.by_truth,
        "payments": payments,
        "ranked_payments": sorted(payments.payments, key=lambda p: (-p.amount, p.agent)) if payments else [],
        "listings": listings,
        "charts": [_Chart.of(curve) for curve in curves],
    }


@functools.cache
def template_engine(package: str | None = None) -> jinja2.Environment:
    """What renders pages, and escapes every text; the templates of another package come before these."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loaders = [PackageLoader(name) for name in (package, "verax.show") if name is not None]
    made = Environment(
        loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=lambda value: shown(value) if type(value) is str else value,
    )  # fmt: skip
    made.globals |= {
        "decimal": decimal, "tick": tick, "interval": _confidence_interval, "marks": MARKS,
        "most_named": _NAMED, "most_folded": _FOLDED, "most_listed": _LISTED,
    }  # fmt: skip
    return made


def decimal(value: float, digits: int) -> str:
    """A number with a true minus sign, and no minus before a zero.

    >>> decimal(-0.25, 2), decimal(-0.001, 2)
    ('−0.25', '0.00')
    """
    text = f"{value:.{digits}f}"
    return text.replace("-", "−") if float(text) else text.lstrip("-")


def tick(value: float) -> str:
    """The number at a mark of an axis.

    >>> tick(-0.5)
    '−0.5'
    """
    return f"{value:.6g}".replace("-", "−")


@dataclass(frozen=True)
class _Axis:
    """From `low` to `high`, in percent of a drawing's width; of its height, from above, if `falling`.

    An axis of `whole` numbers, as of steps, has marks at whole numbers only.
    """

    low: float
    high: float
    falling: bool = False
    whole: bool = False

    @classmethod
    def over(cls, values: Sequence[float], margin: float, falling: bool = False) -> _Axis:
        """From the least to the greatest, with a margin, and never empty."""
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if low == high:
            low, high = (low, low + 1.0) if low == 0 else (low - abs(low) / 2, low + abs(low) / 2)
        room = margin * (high - low)
        return cls(low - room, high + room, falling, all(float(value).is_integer() for value in values))

    def at(self, value: float) -> float:
        share = 100 * (value - self.low) / (self.high - self.low)
        return round(100 - share if self.falling else share, 2)

    @property
    def ticks(self) -> list[float]:
        about = 5
        size = 10.0 ** math.floor(math.log10((self.high - self.low) / about))
        multiples = (1, 2, 5, 10, 20) if self.whole else (1, 2, 2.5, 5, 10, 20)
        step = next(m * size for m in multiples if m * size >= (self.high - self.low) / about)
        step = max(step, 1.0) if self.whole else step
        places = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        return [k * step for k in places if self.low <= k * step <= self.high]


def _confidence_interval(s: Score) -> tuple[float, ...]:
    if s.score is None:
        return ()
    return s.score - 1.96 * (s.stderr or 0.0), s.score + 1.96 * (s.stderr or 0.0)


@dataclass(frozen=True)
class _Heat:
    """A square table of coloured cells, each a level, a number and whether it is marked; and its key."""

    names: list[str]
    cells: list[list[tuple[str, str, bool]]]
    shape: str
    written: bool
    left_out: int
    key_levels: list[str]
    key_ends: list[str]


def _heat_map(
    names: list[str], values: Matrix, level: Callable[[int, int], str], digits: int, key: tuple[list[str], list[str]],
    marked: Iterable[tuple[int, int]] = (), left_out: int = 0,
) -> _Heat:  # fmt: skip
    """A cell without room for its number has it in its title."""
    written, marks = len(names) <= _WRITTEN, set(marked)
    shape = ((" fine" if digits > 2 else "") if written else " dense") + (
        " short" if max(map(len, names), default=0) <= 3 else ""
    )

    def number(value: float) -> str:
        text = decimal(value, digits) if math.isfinite(value) else ""
        # without its 0, so that four digits and a sign fit
        return text.replace("0.", ".", 1) if written and digits > 2 and abs(value) < 1 else text

    cells = [
        [(level(i, j), number(float(x)), (i, j) in marks) for j, x in enumerate(row)] for i, row in enumerate(values)
    ]
    return _Heat(names, cells, shape, written, left_out, *key)


def _pairwise_heat(pairwise: Pairwise, scores: Scores | None) -> _Heat:
    values = np.asarray(pairwise.values, dtype=np.float64)
    order = _rank_order(pairwise, scores)
    chosen = order[:_DRAWN]
    part = values[np.ix_(chosen, chosen)]
    finite = part[np.isfinite(part)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    digits = 2 if high - low >= 0.05 else 3

    def level(i: int, j: int) -> str:
        share = (part[i, j] - low) / (high - low) if high > low else 0.5
        return f"s{min(_STEPS - 1, int(share * _STEPS))}" if np.isfinite(share) else "none"

    key = [f"s{i}" for i in range(_STEPS)], [decimal(low, digits), decimal(high, digits)]
    left_out = len(order) if len(order) > _DRAWN else 0
    return _heat_map([pairwise.agents[i] for i in chosen], part, level, digits, key, left_out=left_out)


def _rank_order(pairwise: Pairwise, scores: Scores | None) -> list[int]:
    """In the order of the scores; without them, of the rows' means."""
    if scores:
        place = {s.agent: i for i, s in enumerate(scores.ranked())}
        return sorted(range(len(pairwise.agents)), key=lambda i: place.get(pairwise.agents[i], len(place)))
    rows = np.asarray(pairwise.values, dtype=np.float64)
    known = np.isfinite(rows)
    means = np.where(known, rows, 0.0).sum(1) / np.maximum(known.sum(1), 1)
    return sorted(range(len(means)), key=lambda i: -means[i])


def _delta_heat(delta: DeltaMap) -> _Heat:
    values = np.asarray(delta.values, dtype=np.float64)
    chosen = _most_confused(values, delta.confusable)
    part = values[np.ix_(chosen, chosen)]
    marked = {(chosen.index(i), chosen.index(j)) for i, j in delta.confusable if i in chosen and j in chosen}
    most = float(np.nanmax(np.abs(part), initial=0.0)) or 1.0
    left_out = len(values) if len(values) > _DRAWN else 0
    return _signed_heat([delta.classes[i] for i in chosen], part, most, 3 if most >= 0.1 else 4, marked, left_out)


def _kin_heat(kin: Excess) -> _Heat:
    """What pairs share beyond all, clusters first and marked; of many agents those that come first."""
    part = np.array(kin.values[:_DRAWN, :_DRAWN])
    np.fill_diagonal(part, np.nan)
    marked = {(i, j) for cluster in kin.clusters for i in cluster for j in cluster if i != j and max(i, j) < _DRAWN}
    left_out = len(kin.agents) if len(kin.agents) > _DRAWN else 0
    return _signed_heat([*kin.agents[:_DRAWN]], part, 1.0, 2, marked, left_out)


def _signed_heat(
    names: list[str], values: Matrix, most: float, digits: int, marked: set[tuple[int, int]], left_out: int
) -> _Heat:
    """From -most to most, by the square root: beside the diagonal, the entries that matter are small."""

    def level(i: int, j: int) -> str:
        if not np.isfinite(values[i, j]):
            return "none"
        return f"d{round(math.copysign(math.sqrt(abs(values[i, j]) / most) * _SIDES, values[i, j])) + _SIDES}"

    ends = [decimal(x, digits) for x in (-most, -most / 4, 0.0, most / 4, most)]
    key = [f"d{i}" for i in range(2 * _SIDES + 1)], ends
    return _heat_map(names, values, level, digits, key, marked, left_out)


def _most_confused(values: Matrix, confusable: Iterable[tuple[int, int]]) -> list[int]:
    """The classes to draw, in their own order: where not all fit, those with most to say beside the diagonal."""
    off = np.where(np.eye(len(values), dtype=bool) | ~np.isfinite(values), -np.inf, values)
    named = {i for pair in confusable for i in pair}
    peak = np.maximum(off.max(0, initial=-np.inf), off.max(1, initial=-np.inf))
    ranked = sorted(range(len(values)), key=lambda i: (i not in named, -peak[i]))
    return sorted(ranked[:_DRAWN])


def _confusable_pairs(delta: DeltaMap) -> list[tuple[str, str, float]]:
    """Which label is said for which, and how far beyond chance; most first."""
    pairs = sorted(delta.confusable, key=lambda pair: -delta.values[pair])
    return [(delta.classes[i], delta.classes[j], float(delta.values[i, j])) for i, j in pairs]


def _grouped_by_code(certificates: Sequence[Certificate]) -> list[tuple[str, list[list[Certificate]]]]:
    """Each code with its certificates by verdict, the worst verdict first in both."""
    worst, found = list(MARKS), []
    for code in sorted({c.code for c in certificates}, key=lambda code: (*CODES, code).index(code)):
        blocks = [[c for c in certificates if (c.code, c.verdict) == (code, verdict)] for verdict in worst]
        found.append((code, [block for block in blocks if block]))
    return sorted(found, key=lambda group: worst.index(group[1][0][0].verdict))


@dataclass(frozen=True)
class _Chart:
    """A curve with its axes, and the points of its lines and bands."""

    curve: Curve
    x: _Axis
    y: _Axis
    drawn: list[tuple[str, str]]

    @classmethod
    def of(cls, curve: Curve) -> _Chart:
        columns = [c for line in curve.lines for c in (line.y, line.low, line.high) if c is not None]
        x = _Axis.over([float(v) for line in curve.lines for v in line.x if math.isfinite(v)], margin=0.0)
        y = _Axis.over([float(v) for c in columns for v in c if math.isfinite(v)], margin=0.05, falling=True)
        return cls(curve, x, y, [_percent_points(line, x, y) for line in curve.lines])


def _percent_points(line: Line, x: _Axis, y: _Axis) -> tuple[str, str]:
    """The points of the line and of its band, in percent, without what is not finite."""

    def along(column: Numbers) -> list[str]:
        pairs = zip(line.x, column, strict=True)
        seen = [f"{x.at(a)},{y.at(b)}" for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
        return seen * 2 if len(seen) == 1 else seen  # one point alone would not be drawn

    if line.low is None or line.high is None:
        return " ".join(along(line.y)), ""
    return " ".join(along(line.y)), " ".join(along(line.low) + along(line.high)[::-1])
