"""The short version of chaos.py: nothing is lost or doubled, and planted mistakes are noticed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from postgres import shared

HARNESS = Path(__file__).with_name("chaos.py")
HTTP = Path(__file__).with_name("chaos_http.py")


@pytest.fixture(params=["sqlite", "postgres"])
def db(request: pytest.FixtureRequest) -> str:
    return "sqlite" if request.param == "sqlite" else shared().database()


def chaos(db: str, kills: int, bug: str = "none", seed: int = 0, harness: Path = HARNESS) -> dict[str, Any]:
    """A run in a process of its own: it forks, which a process with threads must not."""
    command = [sys.executable, str(harness), "--db", db, "--kills", str(kills), "--bug", bug, "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if found["problems"] else 0), done.stderr
    return found


def test_a_process_killed_at_random_moments_loses_nothing_and_doubles_nothing(db: str) -> None:
    found = chaos(db, kills=40 if db == "sqlite" else 15)
    assert found["problems"] == 0, found["first"]
    # the run was no idle one: requests were cut short, failed half-way and were repeated
    assert found["rounds"] > 10 and found["faults"] > 0 and found["lost_replies"] > 0


BUGS = [pytest.param("commit-per-posting", marks=pytest.mark.slow), "no-unique-key", "no-rollback"]


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_mistake_is_noticed(bug: str) -> None:
    # where the kills land is chance: one run misses a mistake now and then, five in a row do not
    assert any(chaos("sqlite", 15, bug, seed)["problems"] for seed in range(5))


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["commit-per-posting", "no-unique-key", "no-rollback"])
def test_a_planted_mistake_is_noticed_on_postgresql(bug: str) -> None:
    assert any(chaos(shared().database(), 12, bug, seed)["problems"] for seed in range(5))


@pytest.mark.slow
@pytest.mark.parametrize(("db", "kills"), [("sqlite", 1000), ("postgres", 200)], indirect=["db"])
def test_a_thousand_kills_lose_nothing_and_double_nothing(db: str, kills: int) -> None:
    found = chaos(db, kills)
    assert found["problems"] == 0, found["first"]


def test_a_server_killed_under_load_loses_nothing_and_doubles_nothing() -> None:
    found = chaos("sqlite", kills=1, harness=HTTP)
    assert found["problems"] == 0, found["first"]
    assert found["rounds"] >= 1 and found["unanswered"] > 0 and found["receipts"] == 4 * found["rounds"]


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["forgets", "doubles"])
def test_a_mistake_planted_in_the_server_is_noticed(bug: str) -> None:
    assert any(chaos("sqlite", 3, bug, seed, HTTP)["problems"] for seed in range(3))


@pytest.mark.slow
@pytest.mark.parametrize("db", ["sqlite", "postgres"])
def test_two_hundred_kills_of_a_server_lose_nothing_and_double_nothing(db: str) -> None:
    found = chaos(db, 200, harness=HTTP)  # which starts a PostgreSQL of its own that syncs to disk
    assert found["problems"] == 0, found["first"]
