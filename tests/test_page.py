"""The page stands alone: it parses, fetches nothing, escapes everything, and fits a phone and a desk."""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from html.parser import HTMLParser

import numpy as np
import pytest

from verax import Mechanism, Score, Scores
from verax.audit import Certificate
from verax.errors import InputError
from verax.market import Market, Step, Survey
from verax.payments import Payment, Payments
from verax.show.page import Curve, DeltaMap, Line, Pairwise, page
from verax.show.report import market_page
from verax.show.text import Listing

VOID = {"meta", "br", "hr", "img", "input", "link"}
WORDS = {"holds": "✓ holds", "fails": "✗ fails", "undecided": "? undecided", "not-applicable": "– not applicable"}
CODES = (
    "TRUTHFUL", "CATEGORICAL", "INFORMATIVE", "ACCURACY", "ROBUST", "OVERCONFIDENT", "COPIES", "INDEPENDENT", "ENOUGH",
)  # fmt: skip
SECTIONS = ("Scores", "Pairwise scores", "Delta: which labels go together", "Certificates", "Payments", "Curves")
NASTY = '<b>"x"&'
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Reader(HTMLParser):
    """What a page says, and whether every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words, self.closed = [], [], [], True
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag):
        self.closed &= bool(self.open) and self.open.pop() == tag
        if tag not in ("span", "bdi", "i"):
            self.words.append(" ")

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).split())

    def named(self, name):
        return [(attrs, within) for tag, attrs, within in self.tags if tag == name]


def read(text):
    found = Reader(text)
    assert found.closed and not found.open, found.open
    assert not re.search(r"\b(nan|inf)\b", text)
    return found


@dataclass
class Everything:
    """All that a page can show, for so many agents and classes."""

    agents: int = 14
    classes: int = 10
    name: str = "agent"

    @property
    def names(self):
        return tuple(f"{self.name}-{i}" for i in range(self.agents))

    @property
    def scores(self):
        found = tuple(Score(a, 0.6 - 0.05 * i, 0.01, 897, self.agents - 1) for i, a in enumerate(self.names))
        mechanism = Mechanism("zero-one", "peers", "mean", "identity", False, None)
        return Scores(mechanism, 897, tuple(f"c{i}" for i in range(self.classes)), found, ("agent-1 abstained",))

    @property
    def pairwise(self):
        values = np.random.default_rng(0).uniform(-0.2, 0.9, (self.agents, self.agents))
        np.fill_diagonal(values, np.nan)
        return Pairwise(self.names, values)

    @property
    def delta(self):
        values = np.random.default_rng(1).uniform(-0.01, 0.002, (self.classes, self.classes))
        np.fill_diagonal(values, 0.05)
        pairs = tuple((i, i + 1) for i in range(0, self.classes - 1, 2))
        return DeltaMap(tuple(f"c{i}" for i in range(self.classes)), values, pairs)

    @property
    def certificates(self):
        verdicts = itertools.cycle(WORDS)
        why = "saying c1 while holding c0 earns 0.0143 more (z = 3.1); about 2,900 tasks would decide"
        return [
            Certificate(code, a, next(verdicts), 0.0143, (0.0051, 0.0236), {"c0": "c1"}, why)
            for code in CODES
            for a in (*self.names, None)
        ]

    @property
    def payments(self):
        paid = tuple(Payment(a, 4310 - i) for i, a in enumerate(self.names))
        total = sum(p.amount for p in paid)
        return Payments("clipped", "EUR", 2, total + 105, 105, paid, ("Clipping at 0 pays for noise.",))

    @property
    def curves(self):
        x = np.linspace(0, 0.9, 19)
        lines = tuple(Line(f"line {k}", x, 0.6 - x * k / 9, 0.5 - x * k / 9, 0.7 - x * k / 9) for k in range(1, 4))
        return (Curve("What lying costs", "rate", "score", lines, "The band is one draw's error."),)

    def page(self, *sections):
        given = ("scores", "pairwise", "delta", "certificates", "payments", "curves")
        return page("Round 7", **{name: getattr(self, name) for name in sections or given})


def one(**changes):
    """Three agents' scores, some changed."""
    scores = Everything(agents=3).scores
    return replace(scores, scores=tuple(replace(s, **changes) for s in scores.scores))


@pytest.mark.parametrize("agents", [2, 14, 60])
@pytest.mark.parametrize("classes", [2, 10, 100])
def test_a_page_parses_whatever_the_size(agents, classes):
    found = read(Everything(agents, classes).page())
    assert [len(found.named(tag)) for tag in ("html", "h1", "main")] == [1, 1, 1]
    cells = [attrs for attrs, within in found.named("td") if within[-2:] == ("tbody", "tr")]
    drawn = min(agents, 40) ** 2 + min(classes, 40) ** 2
    assert sum(bool(re.match(r"[sd]\d|none", attrs.get("class", ""))) for attrs in cells) == drawn


def test_nothing_runs_and_nothing_is_fetched():
    text = Everything().page()
    found = read(text)
    assert not found.named("script") and not found.named("link") and not found.named("iframe")
    assert not re.search(r"https?:|//|@import|url\(|javascript:", text)
    for _, attrs, _ in found.tags:
        assert not {"src", "srcset", "style"} & set(attrs) and not any(name.startswith("on") for name in attrs)
        assert attrs.get("href", "#").startswith("#")


def test_the_head_forbids_all_but_inline_style_and_adapts_to_the_screen():
    metas = [attrs for attrs, _ in read(Everything().page()).named("meta")]
    policy = next(m["content"] for m in metas if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert {"viewport", "color-scheme"} <= {m.get("name") for m in metas}
    assert "@media print" in Everything().page() and "prefers-color-scheme:dark" in Everything().page()


def test_every_drawing_and_header_says_what_it_is():
    found = read(Everything().page())
    for attrs, within in found.named("svg"):
        assert "svg" in within or attrs["role"] == "img"
    outer = [1 for _, within in found.named("svg") if "svg" not in within]
    assert len([1 for _, within in found.named("title") if "svg" in within]) == len(outer)
    assert all(attrs.get("scope") in ("row", "col") for attrs, _ in found.named("th"))


def test_every_name_is_escaped():
    score = Score(NASTY, 0.5, 0.01, 10, 1)
    scores = replace(one(), classes=(NASTY, "c"), scores=(score, replace(score, agent="b")), warnings=(NASTY,))
    curve = Curve(NASTY, NASTY, NASTY, (Line(NASTY, [0, 1], [0, 1]),), NASTY)
    text = page(
        NASTY,
        scores=scores,
        pairwise=Pairwise((NASTY, "b"), np.array([[np.nan, 0.5], [0.5, np.nan]])),
        delta=DeltaMap((NASTY, "c"), np.eye(2) - 0.5, ((0, 1),)),
        certificates=[Certificate(NASTY, NASTY, "fails", None, None, {NASTY: NASTY}, NASTY)] * 5,
        payments=Payments(NASTY, NASTY, 2, 7, 0, (Payment(NASTY, 7),), (NASTY,)),
        curves=[curve],
    )
    assert NASTY not in text and "<b>" not in text and '"x"' not in text
    assert not read(text).named("b")
    assert read(text).text.count(NASTY) > 20


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='alert(1)",
    "</title></style></svg><b>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "\x1b[31m\u202e a name",
)


def everything_said_by(text):
    """The page of all sections, with this text wherever a document holds one; some where it should hold a number."""
    score = {"agent": text, "score": 0.5, "stderr": 0.01, "tasks": text, "references": text}
    survey_score = Score(text, 0.5, 0.1, 9, 2)
    mechanism = {"rule": text, "against": text, "over": text, "sign": text, "public": True, "floor": None}
    document = {
        "format": "verax.scores/1", "mechanism": mechanism, "tasks": 10, "classes": [text, f"{text}2"],
        "scores": [score, {**score, "agent": f"{text}2", "score": None, "stderr": None}], "warnings": [text],
    }  # fmt: skip
    try:
        scores = Scores.from_json(document)
    except InputError:  # read by type: what should be a number is one
        numbers = {"tasks": 10, "references": 1}
        scores = Scores.from_json(document | {"scores": [s | numbers for s in document["scores"]]})
    mechanism = replace(scores.mechanism, rule="zero-one")
    names = (text, f"{text}2")
    closed = Market(
        mechanism, 0.0, 0.5, 1.0, Survey(text, text, 3, names, (survey_score,), 0.5),
        tuple(Step(i, name, 0.25 * i, 0.25) for i, name in enumerate(names, 1)),
    )  # fmt: skip
    curve = Curve(text, text, text, (Line(text, [0, 1], [0, 1], [0, 0], [1, 2]), Line(text, [0, 1], [1, 1])), text)
    verdicts = [Certificate(text, text, v, 0.1, (0.0, 0.2), {text: text}, text) for v in WORDS for _ in range(4)]
    whole = page(
        text,
        lead=text,
        notes=(text,),
        scores=scores,
        pairwise=Pairwise(names, np.array([[np.nan, 0.5], [0.4, np.nan]])),
        delta=DeltaMap(names, np.eye(2) - 0.5, ((0, 1),)),
        certificates=verdicts,
        payments=Payments(text, text, 2, 12, 5, tuple(Payment(name, i) for i, name in enumerate((text, *names[1:]), 3)),
                          (text,)),
        listings=[Listing(names, (names, names), text)],
        curves=[curve],
    )  # fmt: skip
    return whole, market_page(closed)


def skeleton(text):
    """Every element with the names of its attributes, and the values of those that hold no name."""
    kept = {"class", "id", "href", "http-equiv", "role", "scope", "viewbox", "points"}
    sizes = re.compile(" short| fine| dense")  # a matrix is laid out by the length of its names
    return [
        (tag, [(k, sizes.sub("", v or "") if k in kept else "") for k, v in attrs.items()], within)
        for tag, attrs, within in read(text).tags
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_document_adds_an_element_or_an_attribute_to_a_page(text):
    for plain, hostile in zip(everything_said_by("an everyday name"), everything_said_by(text), strict=True):
        assert skeleton(hostile) == skeleton(plain)
        shown = text.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e")
        assert read(hostile).text.count(" ".join(shown.split())) >= 5
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", hostile)


def test_the_policy_allows_the_pages_own_style_sheet_and_no_other():
    text = Everything().page()
    sheet = re.search("<style>(.*?)</style>", text, flags=re.S)[1]
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = next(attrs["content"] for attrs, _ in read(text).named("meta") if attrs.get("http-equiv"))
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "style=" not in text and text.count("<style>") == 1


def test_every_cell_of_a_map_can_be_read_on_its_ground():
    """Contrast of at least 4.5 to 1 (WCAG) for text, on paper and at night."""

    def light(colour):
        shares = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        return np.dot([0.2126, 0.7152, 0.0722], linear)

    grounds = re.findall(r"\.[sd]\d+{background:(#\w{6});color:#(000|fff)}", Everything().page())
    assert len(grounds) == 2 * (10 + 13)
    for ground, ink in grounds:
        pair = sorted((light(ground), light(f"#{ink}{ink}")))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, ground


def test_a_long_name_is_whole_in_a_title_and_in_the_text():
    long = "laboratory & sons " * 6 + "no. 7"
    found = read(page("t", scores=replace(one(), scores=(Score(long, 0.5, 0.1, 9, 2),))))
    assert long in "".join(found.words)
    assert long in [attrs.get("title") for attrs, _ in found.named("bdi")]


@pytest.mark.parametrize(
    ("given", "heading"),
    list(zip(("scores", "pairwise", "delta", "certificates", "payments", "curves"), SECTIONS, strict=True)),
)
def test_a_section_appears_only_with_its_data(given, heading):
    assert re.findall("<h2>(.*?)</h2>", Everything().page(given)) == [heading]


def test_a_page_without_data_is_its_title():
    assert read(page("Nothing yet")).text == "Nothing yet Nothing yet"


@pytest.mark.parametrize("verdict", WORDS)
@pytest.mark.parametrize("count", [1, 9])
def test_a_verdict_is_told_by_a_symbol_and_a_word(verdict, count):
    certificates = [Certificate("TRUTHFUL", f"a{i}", verdict, None, None, None, "because") for i in range(count)]
    text = page("t", certificates=certificates)
    words = read(text).text
    assert words.count(f"{WORDS[verdict]} a") >= count
    assert words.count("because") == count
    badges = re.findall(r'class="badge [\w-]+">(.*?)</span> ([^<]+)<', text)
    assert badges and all(symbol and re.search("fail|hold|undecided|not applicable", word) for symbol, word in badges)


def test_failures_come_first_and_unfolded():
    def some(code, verdict):
        return [Certificate(code, f"{verdict}-{i}", verdict, None, None, None, "why") for i in range(5)]

    text = page("t", certificates=some("TRUTHFUL", "holds") + some("COPIES", "holds") + some("COPIES", "fails"))
    assert text.index("<h3>COPIES</h3>") < text.index("<h3>TRUTHFUL</h3>")
    assert re.findall(r'<details( open)?><summary><span class="badge (\w+)"', text) == [
        (" open", "fails"), ("", "holds"), ("", "holds"),
    ]  # fmt: skip
    assert "✗ 5 fail ✓ 10 hold" in read(text).text


def test_what_a_certificate_measures_is_named():
    certificates = [
        Certificate("TRUTHFUL", "a", "fails", 0.02, (0.01, 0.03), {"cat": "dog"}, "why"),
        Certificate("ACCURACY", None, "holds", 0.99, None, None, "why"),
        Certificate("MADE-UP", "a", "holds", None, None, None, "why"),
    ]
    words = read(page("t", certificates=certificates)).text
    assert "gain: 0.0200, interval 0.0100 to 0.0300; deviation: cat → dog" in words
    assert "all agents why rank correlation: 0.9900" in words
    assert "MADE-UP" in words


def test_scores_are_ranked_with_their_interval_and_payment():
    everything = Everything(agents=3)
    found = read(everything.page("scores", "payments"))
    rows = [attrs for attrs, within in found.named("th") if "tbody" in within]
    assert len(rows) == 6
    titles = re.findall("<title>(agent.*?)</title>", everything.page("scores"))
    assert titles[0] == "agent-0: 0.6000, 95 % interval 0.5804 to 0.6196"
    assert "agent-0 0.6000 ± 0.0100" in found.text
    assert "897 2 43.10" in found.text
    assert "total paid 129.27 residue, back to the payer 1.05 budget 130.32" in found.text


@pytest.mark.parametrize(
    ("amount", "scale", "text"), [(4310, 2, "43.10"), (5, 2, "0.05"), (4310, 0, "4310"), (1234567, 3, "1234.567")]
)
def test_money_is_written_in_major_units(amount, scale, text):
    found = read(page("t", payments=Payments("clipped", "EUR", scale, amount, 0, (Payment("a", amount),))))
    assert f" a {text} " in found.text


@pytest.mark.parametrize(
    "changes",
    [
        {"score": None, "stderr": None},
        {"score": 0.0, "stderr": 0.0},
        {"score": 0.5, "stderr": 0.0},
        {"score": 0.5, "stderr": None},
        {"score": -0.5, "stderr": 0.1},
        {"score": -1e-9, "stderr": 0.0},
        {"score": 1e6, "stderr": 1.0},
    ],
)
def test_any_score_can_be_drawn(changes):
    text = page("t", scores=one(**changes))
    shares = [float(x) for x in re.findall(r'(?:cx|x1|x2)="(-?[\d.]+)%"', text)]
    assert all(-0.1 <= share <= 100.1 for share in shares)
    assert ("none" in read(text).text) == (changes["score"] is None)


@pytest.mark.parametrize("value", [np.nan, 0.0, 0.3, -0.3])
def test_a_constant_matrix_can_be_drawn(value):
    values = np.full((3, 3), value)
    text = page("t", pairwise=Pairwise(("a", "b", "c"), values), delta=DeltaMap(("x", "y", "z"), values, ()))
    assert len(read(text).named("td")) == 20


def test_delta_tells_its_sign_and_its_confusable_labels():
    text = page("t", delta=DeltaMap(("cat", "dog"), np.array([[0.2, 0.05], [-0.1, -0.15]]), ((0, 1),)))
    classes = [attrs["class"] for attrs, _ in read(text).named("td") if attrs]
    # 6 is zero; square roots of 1, 1/4, 1/2 and 3/4 of the largest, in sixths
    assert classes == ["d12", "d9 mark", "d2", "d1"]
    assert "◆ cat where the reference says dog: 0.0500" in read(text).text
    assert "−.150" in text


def test_agents_beyond_forty_are_said_to_be_left_out():
    assert "Of 60 agents, the first 40 are drawn." in Everything(agents=60).page("pairwise")
    assert "Of 100 classes, the 40 most confused are drawn." in Everything(classes=100).page("delta")
    assert "are drawn" not in Everything(40, 40).page()


def test_confusable_classes_are_drawn_first_of_many():
    values = np.full((100, 100), -0.001)
    text = page("t", delta=DeltaMap(tuple(f"c{i}" for i in range(100)), values, ((98, 99),)))
    assert len(re.findall('class="d[0-9]+ mark"', text)) == 1


def test_the_matrix_is_in_rank_order():
    everything = Everything(agents=3)
    shuffled = Pairwise(("agent-2", "agent-0", "agent-1"), np.arange(9.0).reshape(3, 3))
    rows = re.findall(r'<th scope="row">.*?>(agent-\d)<', page("t", scores=everything.scores, pairwise=shuffled))
    assert rows[3:] == ["agent-0", "agent-1", "agent-2"]
    assert re.findall(r'<th scope="row">.*?>(agent-\d)<', page("t", pairwise=shuffled))[0] == "agent-1"


@pytest.mark.parametrize(
    "line",
    [
        Line("one point", [0.5], [0.2]),
        Line("flat", [0, 1, 2], [3, 3, 3]),
        Line("gap", [0, 1, 2], [1.0, np.nan, 2.0], [0.5, np.nan, 1.5], [1.5, np.inf, 2.5]),
        Line("empty", [], []),
        Line("negative", [-2, -1], [-5, -4]),
    ],
)
def test_any_line_can_be_drawn(line):
    found = read(page("t", curves=[Curve("c", "x", "y", (line,), "caption")]))
    drawn = found.named("polyline")[0][0]["points"].split()
    assert len(drawn) == {"one point": 2, "empty": 0, "flat": 3}.get(line.name, 2)
    assert all(0 <= float(x) <= 100 for point in drawn for x in point.split(","))


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 12, 13, 40, 1000])
def test_an_axis_of_steps_has_marks_at_whole_steps(steps):
    curve = Curve("c", "step", "level", (Line("level", range(steps + 1), np.linspace(0, 0.5, steps + 1)),), "caption")
    marks = re.findall('<text x="[^"]*%" y="100%" dy="18">([^<]*)</text>', page("t", curves=[curve]))
    assert 2 <= len(marks) <= 7
    assert marks == [str(int(mark)) for mark in marks]
    assert marks == sorted(marks, key=int) and marks[0] == "0"


def test_thirty_agents_and_ten_classes_weigh_less_than_300_kb():
    assert len(Everything(30, 10, "a-name-of-some-length").page().encode()) < 300_000


def overflow(text, width, tmp_path):
    """How many pixels the page is wider than a window of this width, as Chromium lays it out."""
    measure = "const d=f.contentDocument.documentElement;document.title=`over:${d.scrollWidth-d.clientWidth}:`"
    wrapper = tmp_path / f"{width}.html"
    wrapper.write_text(
        f'<iframe id="f" style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(text)}"></iframe>'
        f"<script>f.onload=()=>{{{measure}}}</script>",
        encoding="utf-8",
    )
    quiet = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    command = [CHROMIUM, *quiet.split(), "--disable-component-update", "--disable-sync", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000", "--dump-dom", wrapper.as_uri()]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    measured = re.search(r"<title>over:(-?\d+):", found.stdout)
    assert measured, found.stderr[-2000:]
    return int(measured[1])


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to lay the page out with")
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", ["a", "a-very-long-name-without-any-space-that-goes-on-and-on"])
def test_a_page_fits_its_window(width, name, tmp_path):
    text = Everything(20, 20, name).page()
    long = page(name * 3, payments=Payments("clipped", "TOKEN", 18, 10**24, 0, (Payment(name, 10**24),), (name * 3,)))
    assert overflow(text, width, tmp_path) <= 0
    assert overflow(long, width, tmp_path) <= 0


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to lay the page out with")
def test_this_test_would_see_a_page_that_does_not_fit(tmp_path):
    assert overflow("<!doctype html><div style='width:500px'>wide</div>", 360, tmp_path) > 100
