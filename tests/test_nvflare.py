"""An exchange of NVFlare's simulator, played again; what no site should send; the simulator itself where it is."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from verax.federation import Payroll, Referee
from verax.ledger import Ledger
from verax.notices import told_in
from verax.rounds import Rounds

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "nvflare-quickstart"
PAID = {"site-1": 1668, "site-2": 1716, "site-3": 1743, "site-4": 0}  # as the simulator's run of the example paid


class FLModel(SimpleNamespace):
    """As much of NVFlare's as the adapter looks at."""

    def __init__(self, params=None, params_type="FULL", meta=None, current_round=None, **_):
        super().__init__(
            params=params, params_type=ParamsType(params_type), meta=meta or {}, current_round=current_round
        )


class ParamsType(StrEnum):
    FULL, DIFF = "FULL", "DIFF"


PARTS = {
    "nvflare.apis.dxo": {"MetaKey": SimpleNamespace(NUM_STEPS_CURRENT_ROUND="NUM_STEPS_CURRENT_ROUND")},
    "nvflare.app_common.abstract.fl_model": {"FLModel": FLModel, "ParamsType": ParamsType},
    "nvflare.app_common.app_constant": {"AppConstants": SimpleNamespace(TASK_TRAIN="train")},
}


@pytest.fixture
def adapter(monkeypatch):
    """The adapter with NVFlare, or with the few names of it that it uses where that is not installed."""
    if importlib.util.find_spec("nvflare") is None:
        for name, held in PARTS.items():
            for end in range(1, name.count(".") + 2):
                monkeypatch.setitem(sys.modules, part := ".".join(name.split(".")[:end]), ModuleType(part))
            vars(sys.modules[name]).update(held)
    monkeypatch.delitem(sys.modules, "verax.adapters.nvflare", raising=False)
    yield importlib.import_module("verax.adapters.nvflare")
    del sys.modules["verax.adapters.nvflare"]


@pytest.fixture
def flowers(monkeypatch):
    """The example's data and model."""
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.delitem(sys.modules, "flowers", raising=False)
    yield importlib.import_module("flowers")
    del sys.modules["flowers"]


def controller(adapter, flowers, answer, **terms):
    """A paid controller of which `answer(model, sites)` is all that goes over the wire."""

    class Wire:
        def send_model_and_wait(self, *, data, targets, **_):
            return answer(data.params, targets)

        def info(self, text):
            pass

        warning = info

    class Workflow(adapter.Paid, Wire):
        def make_referee(self):
            pool = flowers.measured(99, 600)[0]
            return Referee(
                pool, lambda model, x: flowers.shares(model["weights"], x).argmax(1), flowers.KINDS,
                name="flowers", **terms,
            )  # fmt: skip

    return Workflow()


def average(replies, broadcast):
    """As NVFlare's averaging does it: by the weight in the meta, differences put on the broadcast."""
    weights = [reply.meta["NUM_STEPS_CURRENT_ROUND"] for reply in replies]
    mean = sum(w * reply.params["weights"] for w, reply in zip(weights, replies, strict=True)) / sum(weights)
    return mean + (broadcast["weights"] if replies[0].params_type == "DIFF" else 0)


@pytest.mark.parametrize("kind", ["FULL", "DIFF"])
def test_a_recorded_exchange_is_paid_and_averaged_as_it_was_in_the_simulator(adapter, flowers, tmp_path, kind):
    recorded = json.loads((HERE / "recorded" / "nvflare.json").read_text())
    left = iter(recorded)

    def answer(model, sites):
        for reply in next(left)["replies"]:
            params = {name: np.array(array) for name, array in reply["params"].items()}
            if kind == "DIFF":
                params = {name: array - model[name] for name, array in params.items()}
            yield adapter.FLModel(params=params, params_type=kind, meta=dict(reply["meta"]))

    payroll = Payroll(str(tmp_path / "rounds.db"), budget="100.00")
    paid = controller(adapter, flowers, lambda *sent: list(answer(*sent)), payroll=payroll)
    model = {"weights": np.zeros((30, 4))}
    for told in recorded:
        assert model["weights"] == pytest.approx(np.array(told["sent"]["weights"]), abs=1e-12)
        replies = paid.send_model_and_wait(data=adapter.FLModel(params=model), targets=told["asked"])
        model = {"weights": average(replies, model)}
    (outcome,) = paid.referee.outcomes
    assert outcome.amounts == PAID and payroll.rounds.verify("flowers-1") == []


def test_what_no_site_should_send_is_dropped_with_a_reason_and_the_others_are_averaged(adapter, flowers):
    good = {f"site-{n}": flowers.trained(np.zeros((30, 4)), *flowers.measured(n, 300)) for n in (1, 2, 3)}
    bad = {
        "list": [1, 2],
        "none": {},
        "nan": {"weights": np.full((30, 4), np.nan)},
        "shape": {"weights": np.zeros((4, 30))},
        "name": {"other": np.zeros((30, 4))},
        "text": {"weights": "no"},
        "object": {"weights": np.full((30, 4), None)},
    }
    made = {site: {"weights": weights} for site, weights in good.items()}
    replies = [adapter.FLModel(params=p, params_type="FULL" if n in made else "DIFF", meta={"client_name": n})
               for n, p in (bad | made).items()]  # fmt: skip
    paid = controller(adapter, flowers, lambda *_: replies)
    sent = {"weights": np.zeros((30, 4))}
    kept = paid.send_model_and_wait(data=adapter.FLModel(params=sent), targets=[*good, *bad, "silent"])
    assert set(paid.referee.outcomes[0].dropped) == {*bad, "silent"}
    assert average(kept, sent) == pytest.approx(np.mean(list(good.values()), 0))


@pytest.mark.slow
def test_the_example_is_paid_in_nvflares_simulator(tmp_path):
    pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'verax[nvflare]'")
    own = {"PAID_LEDGER": str(tmp_path / "rounds.db"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "job.py", str(tmp_path / "simulated")],
        cwd=EXAMPLE, env=os.environ | own, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    rounds = Rounds(Ledger.open(own["PAID_LEDGER"]))
    assert rounds.verify("flowers-1") == []
    assert {site: rounds.payment("flowers-1", site)[1] for site in PAID} == PAID


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
