"""docs/architecture.md is right: every module is on its map, every way goes through what it names, in that order."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import verax
from verax.cli import app
from verax.federation import Payroll, Referee, Reply

HERE = Path(verax.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()


def walked(work):
    """module:function of every call into verax, in order."""
    met = []

    def see(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(HERE)):
            module = Path(code.co_filename).relative_to(HERE).with_suffix("")
            met.append(f"{'.'.join(module.parts)}:{code.co_qualname}")

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(before)
    return met


def command(*words):
    app([str(word) for word in words], standalone_mode=False)


@pytest.fixture
def reports(tmp_path):
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 60)
    labels = [np.where(rng.random(60) < 0.8, truth, 1 - truth) for _ in range(4)]
    rows = [f"t{n}," + ",".join(f"c{k}" for k in said) for n, said in enumerate(zip(*labels, strict=True))]
    (tmp_path / "reports.csv").write_text("task,a0,a1,a2,a3\n" + "\n".join(rows) + "\n")
    (tmp_path / "tasks.csv").write_text("task\n" + "".join(f"t{n}\n" for n in range(60)))
    for i, said in enumerate(labels):
        text = "".join(f"t{n},c{k}\n" for n, k in enumerate(said))
        (tmp_path / f"a{i}.csv").write_text("task,label\n" + text)
    return tmp_path


def to_a_table(folder):
    command("score", folder / "reports.csv")


def to_a_page(folder):
    command("audit", folder / "reports.csv", "--html", folder / "audit.html")


def to_a_ledger(folder):
    there = "--db", folder / "rounds.db"
    asked = "--tasks", folder / "tasks.csv", "--classes", "c0,c1", "--budget", "100.00"
    command("round", "open", "r", *asked, *there)
    command("round", "fund", "r", *there)
    for i in range(4):
        command("round", "submit", "r", folder / f"a{i}.csv", "--agent", f"a{i}", *there)
    command("round", "seal", "r", *there)
    command("round", "settle", "r", *there)


def to_a_federations_round(folder):
    rng = np.random.default_rng(0)
    pool, right = rng.normal(size=(300, 5)), rng.normal(size=(5, 3))
    payroll = Payroll(str(folder / "rounds.db"), budget="100.00")
    referee = Referee(pool, lambda model, pool: (pool @ model["w"]).argmax(1), ["a", "b", "c"], payroll=payroll)
    referee.broadcast({"w": np.zeros((5, 3))})
    sent = [Reply(f"c{i}", {"w": right + 0.3 * rng.normal(size=(5, 3))}) for i in range(5)]
    received = referee.receive(sent, [reply.agent for reply in sent])
    referee.weigh(received.works, referee.settle_round(received))


@pytest.mark.parametrize("way", [to_a_table, to_a_page, to_a_ledger, to_a_federations_round])
def test_the_way_goes_through_what_the_page_names_in_that_order(way, reports, capsys):
    title = way.__name__.replace("_", " ").replace("federations", "federation's")
    section = PAGE.split(f"### {title}\n")[1].split("\n### ")[0].split("\n## ")[0]
    named = re.findall(r"`([\w.]+:[\w.]+)`", section)
    met = walked(lambda: way(reports))
    assert len(named) > 3
    place = 0
    for name in named:
        assert name in met, f"{title}: nothing calls {name}"
        assert name in met[place:], f"{title}: {name} is called before what the page names before it"
        place = met.index(name, place)


def test_every_module_is_on_the_map():
    on_map = PAGE.split("## The map")[1].split("Imports go strictly downward")[0]
    for path in HERE.rglob("*.py"):
        parts = path.relative_to(HERE).with_suffix("").parts
        if parts[-1] != "__init__":
            names = parts[-1], re.sub(r"^_(numpy|numba|torch)(?=_)", "", parts[-1])  # a kernel stands for all three
            assert any(re.search(rf"\b{name}\b", on_map) for name in names), f"{'.'.join(parts)} is not on the map"


def test_no_layer_is_named_that_is_not():
    for line in re.findall(r"^      (\w+)(?:\.py|/)", PAGE, re.MULTILINE):
        assert (HERE / f"{line}.py").exists() or (HERE / line).is_dir(), line
