"""What the service is locked to: whole, hashed, without addresses, and what pyproject.toml asks for."""

from __future__ import annotations

import doctest
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "deploy" / "requirements.lock").read_text()
EXTRAS = ("service", "postgres", "rounds")


def locked() -> dict[str, Requirement]:
    lines = [line.partition("\\")[0].strip() for line in LOCK.splitlines() if line[:1].isalnum()]
    return {canonicalize_name(each.name): each for each in map(Requirement, lines)}


def asked() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    return [each for each in map(Requirement, lines) if each.name != "verax"]


@pytest.mark.parametrize("wanted", asked(), ids=lambda wanted: wanted.name)
def test_what_pyproject_asks_for_is_locked_to_a_version_that_it_allows(wanted):
    found = locked().get(canonicalize_name(wanted.name))
    assert found is not None, "run: make lock"
    [pin] = found.specifier
    assert pin.operator == "==" and wanted.specifier.contains(pin.version), "run: make lock"


def test_what_is_locked_needs_nothing_else():
    there = locked()
    for name, pinned in there.items():
        if pinned.marker is not None and not pinned.marker.evaluate():
            continue
        try:
            needs = map(Requirement, requires(name) or [])
        except PackageNotFoundError:
            continue
        for need in needs:
            here = need.marker is None or any(
                need.marker.evaluate({**default_environment(), "extra": extra}) for extra in ("", *_extras(name))
            )
            assert not here or canonicalize_name(need.name) in there, f"{name} needs {need.name}: run make lock"


def _extras(name: str) -> set[str]:
    return {extra for each in asked() if canonicalize_name(each.name) == name for extra in each.extras}


def test_every_package_is_known_by_its_hashes_and_no_address_is_named():
    blocks = re.split(r"\n(?=\w)", LOCK.strip())
    assert len(blocks) == len(locked()) > 20
    for block in blocks:
        first, *rest = block.splitlines()
        assert "==" in first and rest, first
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in rest), first
    assert "//" not in LOCK and "index" not in LOCK and "find-links" not in LOCK


def test_what_an_audit_says_is_read_as_it_is_meant():
    sys.path.insert(0, str(ROOT / "deploy"))
    try:
        import audit
    finally:
        sys.path.pop(0)
    assert doctest.testmod(audit).failed == 0
