"""Options are declared once: what commands share they share, and the library's words become the command line's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import verax
from verax import tables
from verax.cli import app
from verax.cli.options import ReadingOptions, as_options, option_names
from verax.rules import RULES

GOLDEN = Path(__file__).parent / "golden"
COMMAND = typer.main.get_command(app)
NAMES = option_names(COMMAND)
SOURCES = [p for p in Path(verax.__file__).parent.rglob("*.py") if p.parent.name not in ("cli", "show")]


def run(*args, code=0, **how):
    result = CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "100"}, **how)
    assert result.exit_code == code, result.stderr
    return result


def options_of(name):
    return {option for parameter in COMMAND.commands[name].params for option in parameter.opts if option[0] == "-"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_option_is_said_as_the_command_line_has_it(name):
    said = as_options(f"leave {name}= out, or give {name}='one'; see ({name}=)", NAMES)
    assert said == f"leave {NAMES[name]} out, or give {NAMES[name]} one; see ({NAMES[name]})"
    assert NAMES[name] == "--" + name.replace("_", "-")


@pytest.mark.parametrize(
    "sentence",
    [
        "the label 'over= x' is unknown",
        "agent 'it\\'s over= ' and \"b's over= c\" are one",
        "draws= is no option, nor is my_over= or x-over= here",
        "the file over=1.csv is not there, nor is seed=x",
        "the agents' names, and one's own",
    ],
)
def test_what_is_quoted_or_no_option_is_left_as_it_is(sentence):
    assert as_options(sentence, NAMES) == sentence


def test_score_and_audit_take_the_same_options():
    assert options_of("score") - options_of("audit") == {"--workers", "--dask", "--ranks", "--copies"}
    assert options_of("audit") - options_of("score") == {"--confidence", "--colluders", "--wanted"}
    assert {"--task-col", "--agent-col", "--label-col", "--truth-col", "--drop", "--logits"} < options_of("audit")


def test_every_rule_is_in_the_help_of_every_command_that_takes_one():
    for command in (["score"], ["audit"], ["market"], ["round", "open"]):
        shown = run(*command, "--help").stdout
        assert all(name in shown for name in RULES), command


def test_how_files_are_read_is_passed_on_as_it_was_asked(monkeypatch):
    asked = {}
    whole = tables.read(GOLDEN / "wide.csv")
    monkeypatch.setattr(tables, "read", lambda *paths, **given: asked.update(given) or whole)
    run("score", GOLDEN / "wide.csv", "--task-col", "id", "--drop", 'a,"b,c"', "--drop", "d", "--logits")
    assert asked == {"task_col": "id", "drop": ("a", "b,c", "d"), "logits": True}
    asked.clear()
    run("score", GOLDEN / "wide.csv", "--max-classes", "7", "--classes", "x, y")
    assert asked == {"max_classes": 7, "classes": ["x", "y"]}
    asked.clear()
    run("score", GOLDEN / "wide.csv")
    assert asked == {}  # the reader's own defaults stand in the reader alone


def test_reading_options_are_the_fields_of_reading():
    tables = pytest.importorskip("verax.tables")
    assert set(vars(ReadingOptions())) == set(vars(tables.Reading()))


def test_nothing_in_the_library_speaks_of_options():
    """`verax score REPORTS --json` says a command; everything else names an argument."""
    for path in SOURCES:
        for line in path.read_text().splitlines():
            said = re.sub(r"verax \w+( \w+)?.*--\w+", "", line) if "verax " in line else line
            assert not re.search(r"""["' (]--[a-z][a-z-]+""", said), f"{path.name}: {line.strip()}"


# Output


@pytest.fixture
def inputs(tmp_path):
    """Every input that a command reads, and what it says."""
    (tmp_path / "reports").mkdir()
    texts = {
        "reports/r.csv": (GOLDEN / "wide.csv").read_text(),
        "sign.csv": "a,b\n1,0\n0,1\n",
        "path.csv": "step,task,agent,label\n1,a,ann,x\n1,b,ann,y\n1,c,ann,x\n2,a,bob,x\n2,b,bob,y\n2,c,bob,y\n",
        "truth.csv": "task,label\na,x\nb,y\nc,y\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    run("score", tmp_path / "reports/r.csv", "-o", tmp_path / "scores.json")
    run("audit", tmp_path / "reports/r.csv", "-o", tmp_path / "audit.json")
    return tmp_path


@pytest.mark.parametrize("how", ["-o", "--html"])
@pytest.mark.parametrize("link", ["itself", "dotted", "symbolic link", "hard link"])
@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("score reports/r.csv", "reports/r.csv"),
        ("audit reports/r.csv", "reports/r.csv"),
        ("score reports/r.csv --truth truth.csv", "truth.csv"),
        ("score reports/r.csv --public truth.csv", "truth.csv"),
        ("score reports/r.csv --rule ca --sign sign.csv", "sign.csv"),
        ("score reports", "reports/r.csv"),
        ("score reports/*.csv", "reports/r.csv"),
        ("pay scores.json --budget 10", "scores.json"),
        ("pay scores.json --budget 10 --clusters audit.json", "audit.json"),
        ("market path.csv --truth truth.csv", "path.csv"),
        ("market path.csv --truth truth.csv", "truth.csv"),
        ("market path.csv --survey truth.csv", "truth.csv"),
        ("market path.csv --truth truth.csv --initial sign.csv", "sign.csv"),
    ],
)
def test_nothing_is_written_over_what_is_read(inputs, monkeypatch, command, target, link, how):
    monkeypatch.chdir(inputs)
    name = {"dotted": f"./reports/../{target}", "itself": target}.get(link, "linked")
    if link == "symbolic link":
        os.symlink(target, name)
    elif link == "hard link":
        os.link(target, name)
    before = Path(target).read_bytes()
    said = run(*command.split(), how, name, code=2).stderr
    assert "write to another file" in said and said.count("\n") == 1
    assert Path(target).read_bytes() == before
    assert not list(inputs.rglob(".*"))


def test_standard_input_is_not_written_over_either(inputs):
    name = inputs / "scores.json"
    before = name.read_bytes()
    command = [sys.executable, "-c", "from verax.cli import main; main()", "score", "-", "-o", str(name)]
    with name.open("rb") as stdin:
        found = subprocess.run(command, stdin=stdin, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (2, "")
    assert "write to another file" in found.stderr
    assert name.read_bytes() == before


def test_a_document_and_its_page_have_two_names(inputs):
    said = run("score", inputs / "reports/r.csv", "-o", inputs / "x", "--html", inputs / "x", code=2).stderr
    assert "give two names" in said
    assert not (inputs / "x").exists()


ESCAPES = "\x1b[31m", "\x9b31m", "\u202e", "\u200b", "\ufeff", "\x07", "\r", "\u2028", "\u2066"


def hostile_scores(tmp_path, text):
    score = {"agent": text, "score": 0.5, "stderr": 0.1, "tasks": 40, "references": 1}
    document = {
        "format": "verax.scores/1",
        "mechanism": {"rule": "zero-one", "against": "peers", "over": "mean", "sign": "identity", "public": False,
                      "floor": None},
        "tasks": 40, "classes": ["a", "b"], "scores": [score, score | {"agent": "b", "tasks": 2}],
        "warnings": [f"this {text} that"],
    }  # fmt: skip
    (tmp_path / "s.json").write_text(json.dumps(document))
    return tmp_path / "s.json"


@pytest.mark.parametrize("text", ESCAPES)
def test_what_a_terminal_would_obey_is_shown(tmp_path, text):
    path = hostile_scores(tmp_path, f"ev{text}il")
    seen = run("pay", path, "--budget", "10").stdout
    written = text.encode("unicode_escape").decode()
    assert f"ev{written}il" in seen and text not in seen
    paid = json.loads(run("pay", path, "--budget", "10", "--json").stdout)
    assert paid["payments"][0]["agent"] == f"ev{text}il"  # the document says what it is
    refused = run("pay", tmp_path / f"no{text}where", "--budget", "10", code=2).stderr
    assert text not in refused and refused.count("\n") == 1
    if text not in ("\r", "\u2028"):  # these end a line, and a refusal is one
        assert f"no{written}where" in refused


def test_markup_in_names_and_notes_is_shown_and_not_obeyed(tmp_path):
    seen = run("pay", hostile_scores(tmp_path, "[bold]x[/bold] [/]\\"), "--budget", "10").stdout
    assert "[bold]x[/bold] [/]\\" in seen
    path = tmp_path / "r.csv"
    path.write_text((GOLDEN / "wide.csv").read_text().replace("ann", "[red]a[/]", 1))
    for command in ("score", "audit"):
        assert "[red]a[/]" in run(command, path).stdout
    said = run("score", path, "--classes", "[/red]", code=2).stderr
    assert "[/red]" in said or "[red]a[/]" in said


def test_wrong_usage_is_shown_too():
    for args in (["pay", "x.json", "--budget", "1", "--min-tasks", "\x1b[31m"], ["round", "fund", "r", "\x1b]0;x"]):
        seen = CliRunner().invoke(app, args)
        assert seen.exit_code == 2
        assert "\x1b" not in seen.stderr and "\\x1b" in seen.stderr


# Paying by one's own rule, and the market's page


def test_scores_of_ones_own_rule_are_paid_with_the_rule_at_hand(tmp_path, monkeypatch):
    (tmp_path / "halves.py").write_text(
        "def half(joint):\n    return 0.5 * float(joint.bonus.trace())\n\nhalf.bounds = (0.0, 0.5)\n"
    )
    monkeypatch.chdir(tmp_path)
    run("score", GOLDEN / "wide.csv", "--rule", "halves:half", "-o", "s.json")
    paid = run(
        "pay", "s.json", "--budget", "10", "--min-tasks", "2", "--scheme", "proportional", "--rule", "halves:half"
    )
    assert "back to the payer" in paid.stdout
    said = run("pay", "s.json", "--budget", "10", "--rule", "zero-one", code=2).stderr
    assert "scored by rule halves:half, not zero-one" in said


def test_a_market_page_has_every_agents_own_line_and_every_step(tmp_path):
    path, page, out = (tmp_path / name for name in ("path.csv", "market.html", "market.json"))
    rows = {"ann": "xyxyxyyy", "bob": "xyxyxyxy", "cat": "xxxxyyyy"}
    path.write_text(
        "step,task,agent,label\n"
        + "".join(
            f"{step},t{n},{agent},{label}\n"
            for step, (agent, said) in enumerate(rows.items(), 1)
            for n, label in enumerate(said)
        )
    )
    (tmp_path / "truth.csv").write_text("task,label\n" + "".join(f"t{n},{'xy'[n % 2]}\n" for n in range(8)))
    run("market", path, "--truth", tmp_path / "truth.csv", "--html", page, "-o", out)
    text = page.read_text()
    drawn = re.findall(r'<polyline class="l\d" points="([^"]+)"', text)[1:]  # the first is the price path
    assert len(drawn) == len(set(drawn)) == 3
    closed = json.loads(out.read_text())
    totals = {agent: sum(p["score"] for p in closed["payments"] if p["agent"] == agent) for agent in rows}
    assert len({round(total, 6) for total in totals.values()}) == 3
    ends = [float(points.split()[-1].split(",")[1]) for points in drawn]
    shown = sorted(totals.values(), key=lambda total: -abs(total))
    slope = {round((b - a) / (y - x), 1) for a, b, x, y in zip(ends, ends[1:], shown, shown[1:], strict=False)}
    assert len(slope) == 1  # each line ends at its agent's total, on one axis
    assert re.findall("<h2>(.*?)</h2>", text) == ["Curves", "Steps", "Totals"]
    for p in closed["payments"]:
        assert f">{p['agent']}</bdi>" in text and f"{p['level']:.4f}" in text and f"{p['score']:+.4f}" in text
