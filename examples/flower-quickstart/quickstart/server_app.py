"""The server: FedAvg, with every client's model scored on 300 unlabelled digits and paid."""

import time
from logging import INFO
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.supercore import log

from quickstart.task import CLASSES, digits, initial, probabilities
from verax.adapters.flower import PaidStrategy, Payroll
from verax.federation import Sitting

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds; leave a ledger, and a page for each round that was paid."""
    config = context.run_config
    x, y = digits()
    pool, (test, truth) = x[-500:-200], (x[-200:], y[-200:])
    out = Path(str(config["out"])).resolve()
    out.mkdir(parents=True, exist_ok=True)
    log(INFO, "The ledger and the pages go to %s", out)
    clients, examines = int(config["clients"]), config["protocol"] == "exam"
    strategy = PaidStrategy(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients),
        pool,
        probabilities,
        CLASSES,
        protocol=str(config["protocol"]),
        payroll=Payroll(
            str(out / "rounds.db"),
            budget=str(config["budget"]),
            full_marks=str(config["full-marks"]) if examines else None,
        ),
        exam=Sitting(members=True) if examines else None,
        identity=numbered(grid, clients) if config["names"] == "numbers" else None,
        pages=out,
    )

    def accuracy(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = {name: array.numpy() for name, array in arrays.items()}
        return MetricRecord({"accuracy": float((probabilities(model, test).argmax(1) == truth).mean())})

    strategy.start(
        grid,
        ArrayRecord({name: Array(values) for name, values in initial().items()}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=accuracy,
    )
    if examines:
        strategy.referee.pay_exam()
    (out / "paid.txt").write_text("\n\n".join(outcome.table() for outcome in strategy.outcomes) + "\n")


def numbered(grid: Grid, clients: int):
    """Clients named by their partition numbers, which they are asked for: only so that the table can be read.

    What a client says of itself proves nothing. Where money is real, let a client be its key (`names = "keys"`).
    """
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(1)
    asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    replies = [reply for reply in grid.send_and_receive(asked, timeout=60) if not reply.has_error()]
    names = {reply.metadata.src_node_id: f"client {reply.content['me']['number']}" for reply in replies}
    return lambda node: names.get(node.node_id, str(node.node_id))
