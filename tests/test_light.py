"""The core stays light: numpy alone, no extra, and no slow import."""

from __future__ import annotations

import subprocess
import sys

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
