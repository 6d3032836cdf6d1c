"""README and docs are run: what they show is what the program prints."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import verax
from verax.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()
VERAX = Path(sys.executable).parent / "verax"


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.S)


def shell(command, folder=ROOT):
    """A command of the docs, run from the project's root by the verax of this environment."""
    path = f"{VERAX.parent}:/usr/bin:/bin"
    environment = {"PATH": path, "COLUMNS": "80", "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8"}
    environment["PYTHONPATH"] = str(Path(verax.__file__).parents[1])  # this tree's, whichever is installed
    found = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
    return found.stdout


def tidy(text):
    return [line.rstrip() for line in text.strip().splitlines()]


def console_cases():
    for page in PAGES:
        for block in blocks(page.read_text(), "console"):
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                command, _, shown = part.partition("\n")
                if shown.strip():
                    yield pytest.param(command, shown, id=f"{page.name}: {command}")


@pytest.mark.parametrize(("command", "shown"), list(console_cases()))
def test_a_command_in_the_docs_prints_what_they_show(command, shown):
    assert tidy(shell(command)) == tidy(shown)


def test_the_readmes_demo_is_what_make_demo_prints(tmp_path):
    assert tidy(shell("verax demo", tmp_path)) == tidy(blocks(README, "text")[0])


def test_the_readmes_python_prints_what_it_shows():
    shown = blocks(README, "text")[1:]
    programs = blocks(README, "python")
    assert len(programs) == len(shown)
    for program, output in zip(programs, shown, strict=True):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program, "README.md", "exec"), {})
        assert tidy(printed.getvalue()) == tidy(output)


def test_every_command_and_option_is_documented():
    docs = "\n".join(page.read_text() for page in PAGES)
    commands = [[c.name or c.callback.__name__] for c in app.registered_commands]
    for group in app.registered_groups:
        commands += [[group.name, c.name or c.callback.__name__] for c in group.typer_instance.registered_commands]
    for words in commands:
        name = " ".join(words)
        assert f"verax {name}" in docs
        help_text = CliRunner().invoke(app, [*words, "--help"]).stdout
        for option in set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", help_text)) - {"--help"}:
            assert option in docs, f"{name} {option}"


def test_every_link_between_pages_leads_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_public_name_has_a_docstring_with_an_example():
    import inspect

    from verax import misreport, rules

    named = [getattr(verax, n) for n in verax.__all__] + [getattr(rules, n) for n in dir(rules)] + [
        getattr(misreport, n) for n in dir(misreport)
    ]  # fmt: skip
    public = {x for x in named if inspect.isfunction(x) or inspect.isclass(x) if not x.__name__.startswith("_")}
    for thing in public:
        if thing.__module__.startswith("verax"):
            assert thing.__doc__, thing


def test_the_make_targets_of_the_readme_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.M))
    assert set(re.findall(r"`?make (\w+)", README)) <= targets


def test_the_changelog_names_the_version():
    assert verax.__version__ in (ROOT / "CHANGELOG.md").read_text()
    assert shlex.split(shell("verax --version")) == ["verax", verax.__version__]
