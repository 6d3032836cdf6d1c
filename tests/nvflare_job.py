"""A job of NVFlare's simulator: five clients that learn a table of labels, one of which sends nonsense."""

from __future__ import annotations

import os
import sys

import numpy as np
from nvflare.apis.executor import Executor
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.job_config.api import FedJob

from verax.adapters.nvflare import Paid, Payroll, Referee

TASKS, CLASSES = 300, tuple("abc")
TRUTH = np.random.default_rng(0).integers(0, len(CLASSES), TASKS)


def labels(model, pool):
    return model["table"].argmax(1)


def moved(me):
    """What a client adds to the table in every round: the higher its number, the less it knows."""
    rng = np.random.default_rng(me)
    said = np.where(rng.random(TASKS) < 0.15 * me, rng.integers(0, len(CLASSES), TASKS), TRUTH)
    return (np.eye(len(CLASSES))[said] + 0.2 * rng.standard_normal((TASKS, len(CLASSES)))).astype(np.float32)


class PaidFedAvg(Paid, FedAvg):
    """Federated averaging, paid for by protocol `every` or `first`."""

    def __init__(self, out="", protocol="first", num_clients=5, num_rounds=3):
        table = np.zeros((TASKS, len(CLASSES)), np.float32)
        super().__init__(num_clients=num_clients, num_rounds=num_rounds, model={"table": table}, persistor_id="")
        self.out, self.protocol = out, protocol

    def make_referee(self):
        payroll = Payroll(os.path.join(self.out, "rounds.db"), budget="100.00")
        features = {"copies": 1, "noise": ()}
        return Referee(range(TASKS), labels, CLASSES, payroll=payroll, protocol=self.protocol, features=features)

    def save_model(self, model):
        np.savez(os.path.join(self.out, f"model-{self.current_round}.npz"), **model.params)


class Trainer(Executor):
    """A client: right as often as its number lets it be; the last sends numbers that are none."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        model, me = FLModelUtils.from_shareable(shareable), int(fl_ctx.get_identity_name().rpartition("-")[2])
        change = moved(me)
        if me == 5:
            change[:] = np.nan
        full = me % 2 == 0  # some send their model, some its difference
        kind = ParamsType.FULL if full else ParamsType.DIFF
        params = {"table": model.params["table"] + change if full else change}
        return FLModelUtils.to_shareable(
            FLModel(params=params, params_type=kind, meta={"NUM_STEPS_CURRENT_ROUND": 10**me})
        )


def main(out, protocol):
    job = FedJob(name="paid")
    job.to(PaidFedAvg(out, protocol), "server")
    job.to_clients(Trainer(), tasks=["train"])
    job.simulator_run(os.path.join(out, "workspace"), n_clients=5, threads=5)


if __name__ == "__main__":
    main(*sys.argv[1:])
