"""The PyTorch examples on Flower's grid in this process: their files as they are, and what their READMEs show.

`test_flower_real.py` runs the same apps as users do.
"""

from __future__ import annotations

import importlib
import logging
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")
pytest.importorskip("torch", reason="torch is not installed: pip install 'verax[torch]'")

from flwr.app import Context, Message, RecordDict

from flower_grid import Here
from verax.ledger import Ledger
from verax.rounds import Rounds

EXAMPLES = Path(__file__).parents[1] / "examples"
PYTORCH = EXAMPLES / "flower-pytorch"


@pytest.fixture
def app(tmp_path, monkeypatch):
    """A copy of an example to run, forgotten afterwards; its settings are those of its pyproject.toml."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    packages = []

    def started(example, settings, nodes=5, diff=None, riders=()):
        folder = tmp_path / f"{example}-{len(packages)}"
        shutil.copytree(EXAMPLES / example, folder, ignore=shutil.ignore_patterns(".flwr", "paid", "rounds.db*"))
        if diff is not None:
            subprocess.run(["patch", "-p1", "-i", str(diff)], cwd=folder, check=True, capture_output=True)
        about = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
        monkeypatch.syspath_prepend(folder)
        monkeypatch.chdir(folder)
        parts = {side: place.split(":")[0] for side, place in about["components"].items()}
        packages.append(parts["serverapp"].split(".")[0])
        forget(packages)
        server, client = (importlib.import_module(parts[side]).app for side in ("serverapp", "clientapp"))
        run = about["config"] | settings
        travelled = set()
        answers = {n + 1: node(client, n, nodes, run, n in riders, travelled) for n in range(nodes)}
        server(Here(answers), context(0, {}, run))
        return folder, travelled

    yield started
    forget(packages)


def forget(packages):
    for name in [name for name in sys.modules if name.split(".")[0] in packages]:
        del sys.modules[name]


def context(node_id, node_config, run_config):
    return Context(run_id=1, node_id=node_id, node_config=node_config, state=RecordDict(), run_config=run_config)


def node(client, number, of, run, rides, travelled):
    """A client of the example's own, or one that sends back what it is sent."""

    def answer(message: Message) -> Message:
        reply = client(message, context(number + 1, {"partition-id": number, "num-partitions": of}, run))
        travelled.update(name for record in reply.content.array_records.values() for name in record)
        if rides and "arrays" in reply.content:
            reply.content["arrays"] = message.content["arrays"]
        return reply

    return answer


def earned(ledger, agents, name="federation-1"):
    """What each was paid, once everything in the ledger is computed again."""
    rounds = Rounds(Ledger.open(str(ledger)))
    assert rounds.verify(name) == []
    return [rounds.payment(name, str(agent))[1] for agent in agents]


def test_the_diff_is_what_the_readme_shows_and_changes_twelve_lines_at_most():
    diff = (PYTORCH / "paid.diff").read_text()
    assert f"```diff\n{diff}```" in (PYTORCH / "README.md").read_text()
    changed = [line for line in diff.splitlines() if re.match(r"[+-](?![+-])|[+-]$", line)]
    assert 0 < len(changed) <= 12


def test_a_network_with_batchnorm_ends_paid_with_the_diff_and_nothing_else(app):
    plain, _ = app("flower-pytorch", {"num-server-rounds": 1, "local-epochs": 1}, nodes=2)
    assert (plain / "final_model.pt").exists() and not (plain / "rounds.db").exists()
    paid, travelled = app("flower-pytorch", {"num-server-rounds": 2}, nodes=4, diff=PYTORCH / "paid.diff", riders=(3,))
    *worked, rode = earned(paid / "rounds.db", range(1, 5))
    assert rode == 0 and min(worked) > 200
    assert "norm1.num_batches_tracked" in travelled
    assert (paid / "final_model.pt").exists() and (paid / "paid" / "round-1.html").exists()


@pytest.mark.parametrize("answers", [pytest.param("label", marks=pytest.mark.slow), "rows"])
def test_adapters_of_a_language_model_are_paid_by_label_or_by_rows_and_nothing_else_travels(app, answers):
    settings = {"clients": 4, "riders": "3", "num-server-rounds": 1, "answers": answers}
    folder, travelled = app("flower-lora", settings, nodes=4)
    assert travelled and all(name.endswith((".up", ".down")) for name in travelled)
    *worked, rode = earned(folder / "paid" / "rounds.db", range(1, 5))
    assert rode == 0 and min(worked) > 200
