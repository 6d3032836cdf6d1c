"""The core stays light: numpy alone, no extra, and no slow import."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXTRAS = ("pyarrow", "scipy", "sklearn", "torch", "numba", "matplotlib", "jinja2", "flwr", "sqlalchemy", "pandas")


def imported_by(statement):
    found = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*{{m.split('.')[0] for m in sys.modules}})"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(found.stdout.split())


def test_importing_verax_imports_numpy_and_no_extra():
    modules = imported_by("import verax")
    assert "numpy" in modules
    assert not modules & {*EXTRAS, "typer", "rich", "click"}


def test_the_command_line_needs_no_extra_to_score():
    modules = imported_by("from verax.cli import app\nimport verax.show.report, verax.demo")
    assert not modules & set(EXTRAS)


def test_this_test_would_see_an_extra():
    assert "pyarrow" in imported_by("import pyarrow")


@pytest.mark.parametrize("command", [["--help"], ["--version"], ["score", "--help"], ["demo", "--help"]])
def test_help_and_version_answer(command):
    from typer.testing import CliRunner

    from verax.cli import app

    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    assert result.stdout.strip()


ABSENT = ("sqlalchemy", "cryptography", "httpx", "fastapi", "uvicorn", "onnxruntime", "pyarrow", "numba",
          "matplotlib", "torch", "openpyxl", "pandas", "distributed", "flwr", "confusable_homoglyphs")  # fmt: skip


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("serve", "(service|rounds)"), ("remote show r1", "(service|rounds)"), ("remote list", "(service|rounds)"),
        ("round show r1", "rounds"), ("key new k.pem", "rounds"), ("receipt verify r.txt", "rounds"),
        ("score r.parquet", "parquet"), ("score r.xlsx", "xlsx"), ("score r.csv --backend numba", "fast"),
        ("score r.csv --backend torch", "torch"), ("score r.csv --dask localhost:1", "dask"), ("reproduce", "report"),
    ],
)  # fmt: skip
def test_a_command_that_needs_an_extra_says_which_in_one_sentence(command, extra, tmp_path):
    (tmp_path / "r.csv").write_text("task,ann,bob\nt1,cat,cat\nt2,dog,cat\nt3,dog,dog\n")
    for name in ("r.parquet", "r.xlsx", "r.txt"):
        (tmp_path / name).write_bytes(b"PAR1" + b"\0" * 60 + b"PAR1")
    code = f"import sys\nfor m in {ABSENT!r}: sys.modules[m] = None\nfrom verax.cli import main\nmain()"
    ran = subprocess.run(
        [sys.executable, "-c", code, *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 2 and "Traceback" not in ran.stderr, ran.stderr
    assert re.search(rf"pip install 'verax\[{extra}\]'", " ".join(ran.stderr.split())), ran.stderr


def test_the_command_line_imports_nothing_that_is_not_asked_for_by_name():
    """`click` came with an older typer and was imported unasked: with a newer one the command line did not start."""
    root = Path(__file__).parents[1]
    asked_for = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    named = {re.split(r"[^\w-]", line)[0] for line in asked_for} | {"verax"} | sys.stdlib_module_names
    for path in (root / "src" / "verax" / "cli").glob("*.py"):
        at_once = re.findall(r"^(?:import|from) (\w+)", path.read_text(), re.MULTILINE)
        assert {*at_once} <= named, path
