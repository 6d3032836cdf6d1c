"""A paid round in NVFlare's simulator, and a sentence where NVFlare is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from verax.ledger import Ledger
from verax.notices import told_in
from verax.rounds import Rounds

HERE = Path(__file__).parent


def test_without_nvflare_a_sentence_says_what_is_missing():
    program = "import sys; sys.modules['nvflare'] = None; import verax.adapters.nvflare"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "NVFlare controllers need an extra: pip install 'verax[nvflare]'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["first", "every"])
def test_five_clients_of_the_simulator_are_paid_and_training_goes_on(tmp_path, protocol):
    pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'verax[nvflare]'")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, HERE / "nvflare_job.py", tmp_path, protocol],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert (tmp_path / "model-2.npz").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    rounds = Rounds(Ledger.open(str(tmp_path / "rounds.db")))
    shown = rounds.show("federation-1")["settlement"]
    amounts = [shown["amounts"][f"site-{n}"] for n in (1, 2, 3, 4)]
    assert rounds.verify("federation-1") == [] and amounts == sorted(amounts, reverse=True) and amounts[-1] > 300
    with rounds.ledger.reading() as journal:
        for name in ("federation-1", "federation-3"):
            why = {notice.agent: notice.why for notice in told_in(journal, name)}
            assert why["site-5"] == "dropped: array 'table' is not finite everywhere as float32"
    assert rounds.state("federation-3") == ("settled" if protocol == "every" else "none")
    import nvflare_job as job

    moved = [job.moved(n) for n in (1, 2, 3, 4)]  # all count alike, whatever they claim
    with np.load(tmp_path / "model-2.npz") as last:
        assert last["table"] == pytest.approx(3 * np.mean(moved, axis=0), abs=1e-5)
