"""The server's workflow: NVFlare's averaging, with every site's model scored on 600 unlabelled flowers, and paid."""

import os

import numpy as np
from flowers import KINDS, measured, shares
from nvflare.app_common.workflows.fedavg import FedAvg

from verax.adapters.nvflare import Paid, Payroll, Referee


def predict(model, pool):
    """The kind that a model holds likeliest."""
    return shares(model["weights"], pool).argmax(1)


class PaidFlowers(Paid, FedAvg):
    """Pays from 100.00 EUR; the ledger is where PAID_LEDGER says."""

    def __init__(self, num_clients=4, num_rounds=2):
        super().__init__(
            num_clients=num_clients, num_rounds=num_rounds, model={"weights": np.zeros((30, 4))}, persistor_id=""
        )

    def make_referee(self):
        payroll = Payroll(os.environ.get("PAID_LEDGER", "rounds.db"), budget="100.00", currency="EUR")
        return Referee(measured(99, 600)[0], predict, KINDS, payroll=payroll, name="flowers")
