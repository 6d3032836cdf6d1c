"""Results as one HTML page that stands alone: it decides how a result looks. Nothing here computes a result.

No script, no network, no font of its own: text, tables, and drawings made of strings. A verdict is told by a
symbol and a word, a cell by a number or a ramp that the colour-blind can read; colour is never alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

import numpy as np
import numpy.typing as npt

from verax.audit import Certificate
from verax.score import Score, Scores

Numbers = Sequence[float] | npt.NDArray[np.float64]

_DRAWN = 40  # agents or classes in a heat map: beyond, cells are too small to read
_WRITTEN = 16  # up to here a cell has room for its number
_LISTED = 12  # names or pairs in a sentence
_FOLDED = 3  # certificates with one verdict that are shown without folding
_STEPS = 10
_SIDES = 6

_RULES = {
    "accuracy": "the share of tasks answered right",
    "log": "the logarithm of the probability given to the right label",
    "quadratic": "minus the squared distance of the probabilities from the right label",
    "ca": "correlated agreement: labels that go together, beyond chance",
    "zero-one": "agreement on the same label, beyond chance",
    "ce": "the log-probability given to the reference's label, beyond chance",
    "brier": "the probability given to the reference's label, beyond chance",
    "pmi": "what the probabilities tell about the reference's label",
}
_PENALISED = ("ca", "zero-one", "ce", "brier", "pmi")  # rules under which saying nothing earns 0
_AGAINST = {
    "truth": "measured against the truth",
    "peers": "measured against the other agents' reports, without labels",
    "hybrid": "measured against the truth where it is known, and against the other agents elsewhere",
}
_ASKED = {
    "TRUTHFUL": "Does reporting what one holds earn at least as much as any relabelling of it?",
    "CATEGORICAL": "Do equal labels, and only equal labels, go together more often than chance?",
    "INFORMATIVE": "Is the score above 0: do the reports tell something about the references?",
    "ACCURACY": "Does a higher score mean a more accurate agent?",
    "ROBUST": "Does honesty still pay best when some of the references collude?",
    "OVERCONFIDENT": "Does the rule pay best for rows that are one's belief, and not for sharper ones?",
    "COPIES": "Is the agent no near-duplicate of another?",
    "ENOUGH": "Were there enough tasks for a small error, and to tell the agent from the next below?",
}
# what a certificate's gain and interval measure, where it is not a gain
_MEASURED = {
    "INFORMATIVE": "score",
    "ACCURACY": "rank correlation",
    "ROBUST": "colluding share at which honesty stops paying",
    "COPIES": "share of departures in common",
    "ENOUGH": "score",
}
# worst first: symbol, word, and how one and several are counted
_VERDICTS = {
    "fails": ("✗", "fails", "fails", "fail"),
    "undecided": ("?", "undecided", "undecided", "undecided"),
    "holds": ("✓", "holds", "holds", "hold"),
    "not-applicable": ("–", "not applicable", "not applicable", "not applicable"),
}


@dataclass(frozen=True, eq=False)
class Pairwise:
    """Each agent's score (row) against each other as reference (column); NaN where there is none.

    >>> Pairwise(("a", "b"), np.array([[np.nan, 0.5], [0.4, np.nan]])).values.shape
    (2, 2)
    """

    agents: tuple[str, ...]
    values: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DeltaMap:
    """Delta: report (row) by reference (column); `confusable` names the cells (report, reference) to mark.

    >>> DeltaMap(("cat", "dog"), np.array([[0.2, -0.2], [-0.2, 0.2]]), ()).confusable
    ()
    """

    classes: tuple[str, ...]
    values: npt.NDArray[np.float64]
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


class PaymentLike(Protocol):
    """What one agent is paid, in minor units."""

    @property
    def agent(self) -> str: ...
    @property
    def amount(self) -> int: ...


class PaymentsLike(Protocol):
    """Who is paid what, in minor units of `currency`, with `scale` digits after the point."""

    @property
    def scheme(self) -> str: ...
    @property
    def currency(self) -> str: ...
    @property
    def scale(self) -> int: ...
    @property
    def budget(self) -> int: ...
    @property
    def residue(self) -> int: ...
    @property
    def payments(self) -> Sequence[PaymentLike]: ...
    @property
    def notes(self) -> Sequence[str]: ...


def page(
    title: str,
    *,
    scores: Scores | None = None,
    pairwise: Pairwise | None = None,
    delta: DeltaMap | None = None,
    certificates: Sequence[Certificate] = (),
    payments: PaymentsLike | None = None,
    curves: Sequence[Curve] = (),
) -> str:
    """One self-contained HTML page of whatever is given; a section without data is left out.

    >>> from verax import Reports, score
    >>> text = page("Round <7>", scores=score(Reports.of(labels=[[0, 1, 0], [0, 1, 1]])))
    >>> "<h1>Round &lt;7&gt;</h1>" in text, "<h2>Scores</h2>" in text, "<h2>Payments</h2>" in text
    (True, True, False)
    """
    parts = [
        _header(title, scores, certificates),
        _scores(scores, payments) if scores else "",
        _pairwise(pairwise, scores) if pairwise else "",
        _delta(delta) if delta else "",
        _certificates(certificates) if certificates else "",
        _payments(payments) if payments else "",
        _section("Curves", *map(_curve, curves)) if curves else "",
    ]
    body = "\n".join(part for part in parts if part)
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{_css()}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def _section(heading: str, *content: str) -> str:
    return f"<section><h2>{heading}</h2>\n" + "\n".join(content) + "\n</section>"


def _name(text: str) -> str:
    """A user's name: where it is too long the style sheet cuts it, before its end, and its title has it whole."""
    if len(text) <= 10:
        return f'<bdi class="n">{escape(text)}</bdi>'
    return f'<bdi class="n" title="{escape(text)}"><span>{escape(text[:-5])}</span>{escape(text[-5:])}</bdi>'


def _some(items: Sequence[str]) -> str:
    more = f" and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return ", ".join(items[:_LISTED]) + more


def _notes(notes: Iterable[str]) -> str:
    items = "".join(f"<li><strong>Note.</strong> {escape(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def _count(n: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"<strong>{n:,}</strong> {noun if n == 1 else plural}"


def _decimal(value: float, digits: int) -> str:
    """A number with a true minus sign, and no minus before a zero."""
    text = f"{value:.{digits}f}"
    return text.replace("-", "−") if float(text) else text.lstrip("-")


def _header(title: str, scores: Scores | None, certificates: Sequence[Certificate]) -> str:
    lines = [f"<h1>{escape(title)}</h1>"]
    if scores:
        m = scores.mechanism
        rule, against = _RULES.get(m.rule, f"the value of the rule {m.rule}"), _AGAINST[m.against or "peers"]
        lines.append(f'<p class="lead">Each agent earns {escape(rule)}, {escape(against)}.</p>')
        counts = [(scores.tasks, "task"), (len(scores.scores), "agent"), (len(scores.classes), "class")]
        facts = " · ".join(_count(n, noun) for n, noun in counts)
        lines.append(f'<p class="facts">{facts} · <code>{escape(scores.describe())}</code></p>')
        lines.append(_notes(scores.warnings))
    if certificates:
        lines.append(_summary(certificates))
    return "<header>" + "\n".join(lines) + "</header>"


def _scores(scores: Scores, payments: PaymentsLike | None) -> str:
    ranked = scores.ranked()
    low, high = _span([0.0, *(x for s in ranked for x in _interval(s))], margin=0.03)
    ticks = [t for t in _ticks(low, high) if low <= t <= high]
    grid = "".join(_rule_at(_share(t, low, high), "zero" if t == 0 else "grid") for t in ticks)
    labels = "".join(f'<text x="{_share(t, low, high)}%" y="13">{_tick(t)}</text>' for t in ticks)
    axis = f'<svg class="axis" role="img"><title>axis of the score</title>{labels}</svg>'
    paid = {p.agent: p.amount for p in payments.payments} if payments else {}
    rows = "".join(_score_row(s, low, high, grid, payments, paid.get(s.agent)) for s in ranked)
    head = (
        '<tr><th scope="col">agent</th><th scope="col" class="num">score ± standard error</th>'
        f'<th scope="col" class="plot">{axis}</th><th scope="col" class="num">tasks</th>'
        '<th scope="col" class="num">references</th>'
        + (f'<th scope="col" class="num">paid, {escape(payments.currency)}</th>' if payments else "")
        + "</tr>"
    )
    nothing = ", what a report earns that tells nothing" if scores.mechanism.rule in _PENALISED else ""
    return _section(
        "Scores",
        "<figure><figcaption>Best first. The dot is the score, a mean per task; the bar its 95 % interval, "
        f"1.96 standard errors to each side; the strong line is zero{nothing}.</figcaption>"
        f'<table class="scores"><thead>{head}</thead><tbody>{rows}</tbody></table></figure>',
    )


def _interval(s: Score) -> tuple[float, ...]:
    if s.score is None:
        return ()
    return s.score - 1.96 * (s.stderr or 0.0), s.score + 1.96 * (s.stderr or 0.0)


def _score_row(s: Score, low: float, high: float, grid: str, payments: PaymentsLike | None, amount: int | None) -> str:
    drawn, told, number = grid, "no score", '<span class="none">none</span>'
    if s.score is not None:
        left, right = _interval(s)
        at, start, end = (_share(x, low, high) for x in (s.score, left, right))
        drawn += f'<line class="bar" x1="{start}%" x2="{end}%" y1="50%" y2="50%"/><circle cx="{at}%" cy="50%" r="4.5"/>'
        told = f"{_decimal(s.score, 4)}, 95 % interval {_decimal(left, 4)} to {_decimal(right, 4)}"
        error = "" if s.stderr is None else f" <small>± {s.stderr:.4f}</small>"
        number = f"{_decimal(s.score, 4)}{error}"
    plot = f'<svg class="dot" role="img"><title>{escape(s.agent)}: {told}</title>{drawn}</svg>'
    paid = ""
    if payments:
        paid = f'<td class="num paid">{"nothing" if amount is None else _money(amount, payments.scale)}</td>'
    return (
        f'<tr><th scope="row">{_name(s.agent)}</th><td class="num score">{number}</td><td class="plot">{plot}</td>'
        f'<td class="num tasks">{s.tasks}</td><td class="num refs">{s.references}</td>{paid}</tr>\n'
    )


def _span(values: Sequence[float], margin: float) -> tuple[float, float]:
    """From the least to the greatest, with a margin, and never empty."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low == high:
        low, high = (low, low + 1.0) if low == 0 else (low - abs(low) / 2, low + abs(low) / 2)
    room = margin * (high - low)
    return low - room, high + room


def _ticks(low: float, high: float, about: int = 5) -> list[float]:
    size = 10.0 ** math.floor(math.log10((high - low) / about))
    step = next(m * size for m in (1, 2, 2.5, 5, 10, 20) if m * size >= (high - low) / about)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _tick(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")


def _share(value: float, low: float, high: float) -> float:
    return round(100 * (value - low) / (high - low), 2)


def _rule_at(share: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{share}%" x2="{share}%" y1="0" y2="100%"/>'


def _pairwise(pairwise: Pairwise, scores: Scores | None) -> str:
    values = np.asarray(pairwise.values, dtype=np.float64)
    order = _rank(pairwise, scores)
    chosen = order[:_DRAWN]
    part = values[np.ix_(chosen, chosen)]
    finite = part[np.isfinite(part)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    digits = 2 if high - low >= 0.05 else 3

    def level(i: int, j: int) -> str:
        share = (part[i, j] - low) / (high - low) if high > low else 0.5
        return f"s{min(_STEPS - 1, int(share * _STEPS))}" if np.isfinite(share) else "none"

    cut = f" Of {len(order)} agents, the first {_DRAWN} are drawn." if len(order) > _DRAWN else ""
    caption = f"Row: the agent scored; column: the agent it is scored against; in rank order.{cut}"
    key = _key([f"s{i}" for i in range(_STEPS)], [_decimal(low, digits), _decimal(high, digits)])
    return _section("Pairwise scores", _heat([pairwise.agents[i] for i in chosen], part, level, digits, caption + key))


def _rank(pairwise: Pairwise, scores: Scores | None) -> list[int]:
    """In the order of the scores; without them, of the rows' means."""
    if scores:
        place = {s.agent: i for i, s in enumerate(scores.ranked())}
        return sorted(range(len(pairwise.agents)), key=lambda i: place.get(pairwise.agents[i], len(place)))
    rows = np.asarray(pairwise.values, dtype=np.float64)
    known = np.isfinite(rows)
    means = np.where(known, rows, 0.0).sum(1) / np.maximum(known.sum(1), 1)
    return sorted(range(len(means)), key=lambda i: -means[i])


def _delta(delta: DeltaMap) -> str:
    values = np.asarray(delta.values, dtype=np.float64)
    chosen = _most_confused(values, delta.confusable)
    part = values[np.ix_(chosen, chosen)]
    marked = {(chosen.index(i), chosen.index(j)) for i, j in delta.confusable if i in chosen and j in chosen}
    most = float(np.nanmax(np.abs(part), initial=0.0)) or 1.0

    def level(i: int, j: int) -> str:
        if not np.isfinite(part[i, j]):
            return "none"
        # square root: beside the diagonal, the entries that matter are small
        side = round(math.copysign(math.sqrt(abs(part[i, j]) / most) * _SIDES, part[i, j]))
        return f"d{side + _SIDES}" + (" mark" if (i, j) in marked else "")

    cut = f" Of {len(values)} classes, the {_DRAWN} most confused are drawn." if len(values) > _DRAWN else ""
    caption = (
        "Row: the label reported; column: the label of the reference. Positive (blue): together more often "
        "than chance; negative (orange): less often. Colour grows with the square root; "
        f"◆ marks confusable labels.{cut}"
    )
    digits = 3 if most >= 0.1 else 4
    ends = [_decimal(x, digits) for x in (-most, -most / 4, 0.0, most / 4, most)]
    key = _key([f"d{i}" for i in range(2 * _SIDES + 1)], ends)
    heat = _heat([delta.classes[i] for i in chosen], part, level, digits, caption + key)
    return _section("Delta: which labels go together", heat, _confusable(delta, values))


def _most_confused(values: npt.NDArray[np.float64], confusable: Iterable[tuple[int, int]]) -> list[int]:
    """The classes to draw, in their own order: where not all fit, those with most to say beside the diagonal."""
    off = np.where(np.eye(len(values), dtype=bool) | ~np.isfinite(values), -np.inf, values)
    named = {i for pair in confusable for i in pair}
    peak = np.maximum(off.max(0, initial=-np.inf), off.max(1, initial=-np.inf))
    ranked = sorted(range(len(values)), key=lambda i: (i not in named, -peak[i]))
    return sorted(ranked[:_DRAWN])


def _confusable(delta: DeltaMap, values: npt.NDArray[np.float64]) -> str:
    if not delta.confusable:
        return "<p>No two labels are marked as confusable.</p>"
    pairs = sorted(delta.confusable, key=lambda pair: -values[pair])
    items = "".join(
        f"<li>◆ {_name(delta.classes[i])} where the reference says {_name(delta.classes[j])}: "
        f"{_decimal(float(values[i, j]), 4)}</li>"
        for i, j in pairs[:_LISTED]
    )
    more = f"<li>and {len(pairs) - _LISTED} more</li>" if len(pairs) > _LISTED else ""
    return f'<h3>Confusable labels</h3><ul class="pairs">{items}{more}</ul>'


class _Level(Protocol):
    def __call__(self, i: int, j: int) -> str: ...


def _heat(names: Sequence[str], values: npt.NDArray[np.float64], level: _Level, digits: int, caption: str) -> str:
    """A square table of coloured cells; a cell without room for its number has it in its title."""
    written = len(names) <= _WRITTEN
    size = ((" fine" if digits > 2 else "") if written else " dense") + (
        " short" if max(map(len, names), default=0) <= 3 else ""
    )
    head = "".join(f'<th scope="col">{_name(name)}</th>' for name in names)
    rows = []
    for i, name in enumerate(names):
        cells = "".join(_cell(float(x), level(i, j), digits, written) for j, x in enumerate(values[i]))
        rows.append(f'<tr><th scope="row">{_name(name)}</th>{cells}</tr>\n')
    return (
        f'<figure class="map"><figcaption>{caption}</figcaption>'
        f'<div class="wide" tabindex="0" role="region" aria-label="matrix"><table class="heat{size}">'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></figure>"
    )


def _cell(value: float, level: str, digits: int, written: bool) -> str:
    number = _decimal(value, digits) if math.isfinite(value) else ""
    mark = "<i>◆</i>" if level.endswith("mark") else ""
    if written:
        if digits > 2 and abs(value) < 1:
            number = number.replace("0.", ".", 1)  # so that four digits and a sign fit
        return f'<td class="{level}">{mark}{number}</td>'
    return f'<td class="{level}" title="{number}">{mark}</td>' if number else f'<td class="{level}"></td>'


def _key(levels: Sequence[str], labels: Sequence[str]) -> str:
    swatches = "".join(f'<i class="{level}"></i>' for level in levels)
    texts = "".join(f"<span>{label}</span>" for label in labels)
    return f'<span class="key"><span class="ramp">{swatches}</span><span class="ends">{texts}</span></span>'


def _badge(verdict: str, text: str = "") -> str:
    symbol, word, *_ = _VERDICTS[verdict]
    return f'<span class="badge {verdict}"><span aria-hidden="true">{symbol}</span> {text or word}</span>'


def _by_code(certificates: Sequence[Certificate]) -> list[tuple[str, list[Certificate]]]:
    """Each code with its certificates, the worst verdict first in both."""
    worst, known = list(_VERDICTS), list(_ASKED)
    groups: dict[str, list[Certificate]] = {}
    for c in sorted(certificates, key=lambda c: worst.index(c.verdict)):
        groups.setdefault(c.code, []).append(c)
    place = {code: known.index(code) if code in known else len(known) for code in groups}
    return sorted(groups.items(), key=lambda item: (worst.index(item[1][0].verdict), place[item[0]]))


def _summary(certificates: Sequence[Certificate]) -> str:
    counts = {v: sum(c.verdict == v for c in certificates) for v in _VERDICTS}
    badges = " ".join(_badge(v, f"{n} {_VERDICTS[v][2 if n == 1 else 3]}") for v, n in counts.items() if n)
    links = " ".join(
        f'<a href="#code-{i}">{_VERDICTS[group[0].verdict][0]} {escape(code)} {_VERDICTS[group[0].verdict][1]}</a>'
        for i, (code, group) in enumerate(_by_code(certificates))
    )
    return f'<p class="summary">{_count(len(certificates), "certificate")}: {badges}</p><p class="codes">{links}</p>'


def _certificates(certificates: Sequence[Certificate]) -> str:
    return _section("Certificates", *(_code(i, *item) for i, item in enumerate(_by_code(certificates))))


def _code(number: int, code: str, group: Sequence[Certificate]) -> str:
    blocks = [[c for c in group if c.verdict == verdict] for verdict in _VERDICTS]
    asked = f"<p>{_ASKED[code]}</p>" if code in _ASKED else ""
    return (
        f'<section class="code" id="code-{number}"><h3>{escape(code)}</h3>{asked}'
        + "".join(_verdict(block) for block in blocks if block)
        + "</section>"
    )


def _verdict(block: Sequence[Certificate]) -> str:
    """Certificates with one verdict; many are folded under a line that names them, failures unfolded."""
    items = f'<ul class="certificates">{"".join(map(_certificate, block))}</ul>'
    if len(block) <= _FOLDED:
        return items
    verdict = block[0].verdict
    names = _some(["all agents" if c.agent is None else _name(c.agent) for c in block])
    state = " open" if verdict == "fails" else ""
    return f"<details{state}><summary>{_badge(verdict)} for {len(block)}: {names}</summary>{items}</details>"


def _certificate(c: Certificate) -> str:
    about = "all agents" if c.agent is None else _name(c.agent)
    small = "; ".join(_witness(c))
    detail = f" <small>{small}</small>" if small else ""
    return f"<li>{_badge(c.verdict)} <strong>{about}</strong> <span>{escape(c.why)}{detail}</span></li>"


def _witness(c: Certificate) -> Iterator[str]:
    numbers = [_decimal(c.gain, 4)] if c.gain is not None else []
    if c.interval is not None:
        numbers.append(f"interval {_decimal(c.interval[0], 4)} to {_decimal(c.interval[1], 4)}")
    if numbers:
        yield f"{_MEASURED.get(c.code, 'gain')}: {', '.join(numbers)}"
    if c.deviation:
        steps = [f"{_name(held)} → {_name(said)}" for held, said in c.deviation.items()]
        yield f"{'twins' if c.code == 'COPIES' else 'deviation'}: {_some(steps)}"


def _money(amount: int, scale: int) -> str:
    """Minor units as major ones, by integers alone."""
    major, minor = divmod(abs(amount), 10**scale)
    return f"{'−' if amount < 0 else ''}{major}" + (f".{minor:0{scale}d}" if scale else "")


def _payments(payments: PaymentsLike) -> str:
    ranked = sorted(payments.payments, key=lambda p: (-p.amount, p.agent))
    rows = "".join(
        f'<tr><th scope="row">{_name(p.agent)}</th><td class="num">{_money(p.amount, payments.scale)}</td></tr>\n'
        for p in ranked
    )
    total = sum(p.amount for p in ranked)
    sums = [("total paid", total), ("residue, back to the payer", payments.residue), ("budget", payments.budget)]
    foot = "".join(
        f'<tr><th scope="row">{label}</th><td class="num">{_money(amount, payments.scale)}</td></tr>'
        for label, amount in sums
    )
    return _section(
        "Payments",
        f"<p>Scheme: {escape(payments.scheme)}. Amounts in {escape(payments.currency)}.</p>",
        '<table class="money"><thead><tr><th scope="col">agent</th><th scope="col" class="num">amount</th></tr></thead>'
        f"<tbody>{rows}</tbody><tfoot>{foot}</tfoot></table>",
        _notes(payments.notes),
    )


def _curve(curve: Curve) -> str:
    xs, ys = _reach(curve)
    x_low, x_high = _span(xs, margin=0.0)
    y_low, y_high = _span(ys, margin=0.05)
    grid = "".join(
        f'<line class="{"zero" if t == 0 else "grid"}" x1="0" x2="100%" y1="{y}%" y2="{y}%"/>'
        f'<text class="y" x="-8" y="{y}%">{_tick(t)}</text>'
        for t in _ticks(y_low, y_high)
        for y in [_share(t, y_high, y_low)]
    ) + "".join(
        f'{_rule_at(x, "grid")}<text x="{x}%" y="100%" dy="18">{_tick(t)}</text>'
        for t in _ticks(x_low, x_high)
        for x in [_share(t, x_low, x_high)]
    )
    scaled = [_scaled(line, (x_low, x_high), (y_high, y_low)) for line in curve.lines]
    drawn = "".join(_drawn(k % 6, points, band) for k, (points, band) in enumerate(scaled))
    keys = "".join(
        f'<li><svg class="swatch" role="img"><title>line {k + 1}</title>'
        f'<line class="l{k % 6}" x1="0" x2="100%" y1="50%" y2="50%"/></svg>{_name(line.name)}</li>'
        for k, line in enumerate(curve.lines)
    )
    title = escape(f"{curve.title}: {curve.y_label} against {curve.x_label}")
    # the inner drawing stretches with the page; text and strokes do not
    return (
        f'<figure class="curve"><h3>{escape(curve.title)}</h3><ul class="keys">{keys}</ul>'
        f'<p class="axis-y">{escape(curve.y_label)}</p><svg class="chart" role="img"><title>{title}</title>{grid}'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg></svg>'
        f'<p class="axis-x">{escape(curve.x_label)}</p><figcaption>{escape(curve.caption)}</figcaption></figure>'
    )


def _reach(curve: Curve) -> tuple[list[float], list[float]]:
    xs = [float(x) for line in curve.lines for x in line.x if math.isfinite(x)]
    columns = (c for line in curve.lines for c in (line.y, line.low, line.high) if c is not None)
    return xs, [float(y) for column in columns for y in column if math.isfinite(y)]


def _scaled(line: Line, x: tuple[float, float], y: tuple[float, float]) -> tuple[str, str]:
    """The points of the line and of its band, in percent, without what is not finite."""

    def points(column: Numbers) -> list[str]:
        found = zip(line.x, column, strict=True)
        seen = [f"{_share(a, *x)},{_share(b, *y)}" for a, b in found if math.isfinite(a) and math.isfinite(b)]
        return seen * 2 if len(seen) == 1 else seen  # one point alone would not be drawn

    if line.low is None or line.high is None:
        return " ".join(points(line.y)), ""
    return " ".join(points(line.y)), " ".join(points(line.low) + points(line.high)[::-1])


def _drawn(style: int, points: str, band: str) -> str:
    area = f'<polygon class="band l{style}" points="{band}"/>' if band else ""
    return f'{area}<polyline class="l{style}" points="{points}"/>'


_PAPER = {
    "bg": "#ffffff", "fg": "#1c2128", "muted": "#59636e", "line": "#d9dee4", "soft": "#f5f7f9", "zero": "#6e7781",
    "dot": "#0072b2", "holds": "#00639b", "fails": "#ae4400", "undecided": "#6d5a00", "on": "#ffffff",
    "l0": "#0072b2", "l1": "#d55e00", "l2": "#009e73", "l3": "#b0578a", "l4": "#b07a00", "l5": "#444c56",
}  # fmt: skip
_NIGHT = {
    "bg": "#14181d", "fg": "#e3e7eb", "muted": "#9da7b1", "line": "#30363d", "soft": "#1c2128", "zero": "#8b949e",
    "dot": "#56b4e9", "holds": "#6cbdeb", "fails": "#ff9d5c", "undecided": "#e8d44d", "on": "#14181d",
    "l0": "#56b4e9", "l1": "#ff8a3d", "l2": "#2cc295", "l3": "#dd93b8", "l4": "#f0c04a", "l5": "#b5bec8",
}  # fmt: skip
# few to many: pale to dark on paper, dark to pale at night, so that little always stays near the ground
_SEQUENTIAL = (
    ("#f6f8e3", "#b7dfc6", "#4fa9c0", "#22539c", "#0c2054"),
    ("#1b2440", "#23508a", "#3a97b8", "#a2d6c0", "#f3f6d2"),
)
_DIVERGING = (
    ("#8c3d00", "#e08a3c", "#fbe0c3", "#f4f5f6", "#cadff1", "#4a90c8", "#08467f"),
    ("#ffb570", "#b8651f", "#4d331c", "#20252b", "#183751", "#2f7fbf", "#a4d3ff"),
)


def _blend(anchors: Sequence[str], share: float) -> tuple[int, int, int]:
    place = share * (len(anchors) - 1)
    i = min(int(place), len(anchors) - 2)
    a, b = ([int(anchors[k][c : c + 2], 16) for c in (1, 3, 5)] for k in (i, i + 1))
    red, green, blue = (round(p + (q - p) * (place - i)) for p, q in zip(a, b, strict=True))
    return red, green, blue


def _levels(prefix: str, anchors: Sequence[str], count: int) -> str:
    """One class a level: its ground, and black or white on it, whichever reads better."""
    rules = []
    for k in range(count):
        rgb = _blend(anchors, k / (count - 1))
        linear = [(c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4) for c in rgb]
        light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        ink = "#000" if light > 0.18 else "#fff"
        rules.append(f".{prefix}{k}{{background:#{bytes(rgb).hex()};color:{ink}}}")
    return "".join(rules)


def _css() -> str:
    schemes = []
    for k, names in enumerate((_PAPER, _NIGHT)):
        root = ":root{" + "".join(f"--{name}:{colour};" for name, colour in names.items()) + "}"
        ramps = _levels("s", _SEQUENTIAL[k], _STEPS) + _levels("d", _DIVERGING[k], 2 * _SIDES + 1)
        schemes.append(root + ramps)
    strokes = "".join(
        f".l{k}{{stroke:var(--l{k});fill:none;stroke-width:2;stroke-dasharray:{dash}}}.band.l{k}{{fill:var(--l{k})}}"
        for k, dash in enumerate(("none", "7 5", "1 4", "9 4 1 4", "14 5", "4 4"))
    )
    return schemes[0] + f"@media screen and (prefers-color-scheme:dark){{{schemes[1]}}}" + strokes + _SHEET


_SHEET = """
:root{color-scheme:light dark}*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
 overflow-wrap:anywhere;-webkit-text-size-adjust:100%}
main{max-width:1000px;margin:0 auto;padding:2rem 1.25rem 4rem}h1{font-size:1.75rem;line-height:1.2;margin:0 0 .5rem}
h2{font-size:1.25rem;margin:2.75rem 0 .5rem;padding-top:1rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.5rem 0 .25rem}p{margin:.25rem 0 .75rem}
small,figcaption,.facts,.code>p,.axis-x,.axis-y{color:var(--muted);font-size:.85rem}code{font-size:.95em}
figure{margin:0}figcaption{margin:0 0 1rem;max-width:46rem}.lead{font-size:1.06rem}
.n{display:inline-flex;max-width:14rem;white-space:pre;vertical-align:bottom}
.n span{min-width:0;min-height:0;overflow:hidden;text-overflow:ellipsis}
.notes{list-style:none;margin:1rem 0;padding:.6rem .9rem;border-left:3px solid var(--undecided);background:var(--soft);
 font-size:.9rem}
.summary{margin-top:1.25rem}.codes{display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;font-size:.85rem}
.codes a{color:inherit;text-decoration-color:var(--line);text-underline-offset:.2em}
.badge{display:inline-block;white-space:nowrap;border:1px solid currentColor;border-radius:1em;padding:0 .6em;
 font-size:.8rem;font-weight:600;line-height:1.5;color:var(--muted)}
.badge.holds{color:var(--holds)}.badge.undecided{color:var(--undecided);border-style:dashed}
.badge.fails{background:var(--fails);border-color:var(--fails);color:var(--on)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}th{font-weight:inherit;text-align:left}
thead th{color:var(--muted);font-size:.8rem;vertical-align:bottom}.num{text-align:right;white-space:nowrap}
thead .num{white-space:normal;overflow-wrap:normal}.scores{width:100%;font-size:.92rem}
.scores tbody tr,.money tbody tr{border-top:1px solid var(--line)}
.scores th,.scores td{padding:0 .5rem;line-height:1.9rem}.scores thead th{line-height:1.25;padding-bottom:.3rem}
.scores th:first-child{padding-left:0}.scores .num:last-child{padding-right:0}.scores .plot{width:44%;padding:0 1rem}
.scores .plot svg{display:block;width:100%;overflow:visible}.none{color:var(--muted)}.axis{height:1.1rem}
.dot{height:1.9rem}text{font-size:12px;fill:var(--muted);text-anchor:middle;font-variant-numeric:tabular-nums}
text.y{text-anchor:end;dominant-baseline:middle}.grid{stroke:var(--line)}.zero{stroke:var(--zero);stroke-width:1.5}
.bar{stroke:var(--dot);stroke-width:2.5;stroke-opacity:.6}circle{fill:var(--dot)}
.wide{overflow-x:auto;padding-bottom:.25rem}.heat{border-collapse:separate;border-spacing:1px;font-size:.72rem}
.heat td{position:relative;width:3.1rem;min-width:3.1rem;height:1.9rem;padding:0;text-align:center}
.heat thead td{background:none}
.heat tbody th{position:sticky;left:0;z-index:1;background:var(--bg);padding-right:.5rem;text-align:right;line-height:1}
.heat th .n{max-width:8rem;line-height:1.3;vertical-align:middle}
.heat thead th{padding:0 0 .3rem;text-align:center;color:inherit;font-size:inherit}
.heat thead .n{writing-mode:vertical-rl;transform:rotate(180deg);max-width:none;max-height:7rem;vertical-align:bottom}
.heat.fine td{width:3.5rem;min-width:3.5rem}.heat.short thead .n{writing-mode:horizontal-tb;transform:none}
.heat.dense td{width:1.05rem;min-width:1.05rem;height:1.05rem;font-size:.6rem}.heat.dense th{font-size:.68rem}
.heat .none{background:repeating-linear-gradient(135deg,var(--line) 0 1px,var(--bg) 1px 5px)}
.heat .mark{outline:2px solid var(--fg);outline-offset:-2px}
.heat .mark i{position:absolute;top:1px;right:4px;font:.55rem/1.3 system-ui,sans-serif}
.heat.dense .mark i{position:static;font-size:.5rem}
.key{display:block;width:20rem;max-width:100%;margin-top:.6rem;font-variant-numeric:tabular-nums;font-size:.75rem}
.ramp{display:flex;border:1px solid var(--line)}.ramp i{flex:1;height:.7rem}
.ends{display:flex;justify-content:space-between}
.pairs,.keys{list-style:none;margin:.25rem 0;padding:0;font-size:.9rem}.code p{margin-bottom:.5rem}
.certificates{list-style:none;margin:0;padding:0;font-size:.92rem}
.certificates li{display:grid;grid-template-columns:8.5rem minmax(6rem,9rem) minmax(0,1fr);gap:0 .75rem;
 align-items:baseline;padding:.4rem 0;border-top:1px solid var(--line)}
.certificates .badge{justify-self:start}.certificates .n{max-width:100%}.certificates small{display:block}
.certificates small .n{max-width:8rem}details{border-top:1px solid var(--line)}
summary{padding:.4rem 0;cursor:pointer;font-size:.92rem}details .certificates{padding-left:1rem}
.money{min-width:min(24rem,100%);font-size:.92rem}.money th,.money td{padding:.25rem 0}
.money th[scope=row]{padding-right:1rem}.money tfoot tr:first-child{border-top:2px solid var(--zero);font-weight:600}
.keys .n{max-width:24rem}.keys{display:flex;flex-wrap:wrap;gap:.1rem 1.25rem}
.swatch{width:2rem;height:.8rem;margin-right:.4rem;vertical-align:middle}.axis-y{margin:.75rem 0 .25rem}
.axis-x{margin:0 0 .5rem;text-align:center}
.chart{display:block;width:calc(100% - 4.25rem);height:17rem;margin:.5rem .75rem 1.75rem 3.5rem;overflow:visible}
.chart polyline{vector-effect:non-scaling-stroke;stroke-linejoin:round}polyline,.swatch line{stroke-linecap:round}
.chart .band{stroke:none;fill-opacity:.16}
@media(max-width:640px){
 main{padding:1.25rem 1rem 3rem}h1{font-size:1.4rem}.n{max-width:9.5rem}
 .scores,.scores thead,.scores tbody{display:block}
 .scores tr{display:grid;grid-template-columns:auto auto 1fr;padding:.35rem 0 .15rem}
 .scores thead .num,.scores thead th:first-child{display:none}.scores th,.scores td{padding:0;line-height:1.4}
 .scores tbody th{grid-column:1/3}.scores .plot{grid-column:1/4;order:1;width:auto;padding:0 .5rem}.dot{height:1.4rem}
 .tasks,.refs,.paid{order:2;color:var(--muted);font-size:.8rem}.tasks::after{content:" tasks,\\a0"}
 .refs::after{content:" references"}.paid::before{content:"paid "}.scores .num.paid{color:inherit}
 .heat th .n{max-width:5.5rem}.heat:not(.fine,.dense) td{width:2.7rem;min-width:2.7rem}
 .money .num{white-space:normal}details .certificates{padding-left:.5rem}.keys .n{max-width:calc(100vw - 5rem)}
 .certificates li{grid-template-columns:auto minmax(0,1fr)}.certificates li>span:last-child{grid-column:1/3}
 .chart{height:14rem}
}
@media print{
 :root{color-scheme:light}body{font-size:10.5pt}main{max-width:none;padding:0}
 h2,h3,figcaption,.code>p,summary{break-after:avoid}tr,li,.curve,.map,.notes{break-inside:avoid}.heat{font-size:6.5pt}
 .wide{overflow:visible}.heat td,.heat.fine td{width:2.3rem;min-width:0}
 .heat.dense td{width:.8rem;height:.8rem;font-size:4pt}.heat.dense th{font-size:5.5pt}
 .heat td,.ramp i,.badge{-webkit-print-color-adjust:exact;print-color-adjust:exact}.codes{display:none}
}
@media print{details::details-content{content-visibility:visible;block-size:auto}}
"""
