"""The examples run, and make what is bundled."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

import verax
from verax.demo import bundled

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_script_makes_the_bundled_reports(tmp_path, monkeypatch):
    """Other versions of scikit-learn may change a few labels of a model, not its worth."""
    script = EXAMPLES / "digits" / "make_reports.py"
    monkeypatch.setattr("sys.argv", [str(script), str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    made = verax.read_truth(tmp_path / "digits-truth.csv", verax.read(tmp_path / "digits.csv"))
    kept = bundled()
    assert (made.agents, made.tasks, made.classes) == (kept.agents, kept.tasks, kept.classes)
    assert (made.truth == kept.truth).all()
    accuracy = [(r.labels == r.truth).mean(1) for r in (made, kept)]
    assert accuracy[0] == pytest.approx(accuracy[1], abs=0.03)
    assert np.mean(made.labels == kept.labels) > 0.95
