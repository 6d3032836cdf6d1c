"""The server: FedAvg weighted by score, every round's models scored on 2,000 unlabelled images and paid."""

import time
from logging import INFO
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.supercore import log

from handwriting.task import CLASSES, arrays, mnist, network, probabilities, scaled
from verax.adapters.flower import PaidStrategy, Payroll

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds; leave a ledger, a page for each round, and a table of all of them."""
    config = context.run_config
    data = mnist(str(config["data"]), bool(config["fetch"]))
    pool, test, truth = scaled(data.test_images[:2000]), scaled(data.test_images[2000:]), data.test_labels[2000:]
    out = Path(str(config["out"])).resolve()
    out.mkdir(parents=True, exist_ok=True)
    log(INFO, "The ledger and the pages go to %s", out)
    clients = int(config["clients"])
    strategy = PaidStrategy(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients),
        pool,
        probabilities,
        CLASSES,
        protocol=str(config["protocol"]),
        options={"rule": "zero-one"},
        payroll=Payroll(str(out / "rounds.db"), budget=str(config["budget"])),
        weights=str(config["weights"]),
        identity=numbered(grid, clients),
        name="mnist",
        pages=out,
    )

    def accuracy(server_round: int, record: ArrayRecord) -> MetricRecord:
        model = {name: array.numpy() for name, array in record.items()}
        return MetricRecord({"accuracy": float((probabilities(model, test).argmax(1) == truth).mean())})

    strategy.start(
        grid,
        ArrayRecord({name: Array(values) for name, values in arrays(network()).items()}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=accuracy,
    )
    tables = [f"round {outcome.server_round}\n{outcome.table()}" for outcome in strategy.outcomes]
    (out / "paid.txt").write_text("\n\n".join([*tables, totals(strategy.outcomes)]) + "\n")
    log(INFO, "paid, in cents:\n%s", totals(strategy.outcomes))


def totals(outcomes):
    """What every client was paid, a column a round."""
    clients = sorted({client for outcome in outcomes for client in outcome.amounts})
    lines = [f"{'round':>10}" + "".join(f"{outcome.server_round:>7}" for outcome in outcomes) + f"{'total':>8}"]
    for client in clients:
        paid = [outcome.amounts.get(client, 0) for outcome in outcomes]
        lines.append(f"{client:>10}" + "".join(f"{amount:>7}" for amount in paid) + f"{sum(paid):>8}")
    return "\n".join(lines)


def numbered(grid: Grid, clients: int):
    """Clients named by their partition numbers, which they are asked for: only so that the tables can be read.

    What a client says of itself proves nothing. Where money is real, leave `identity` out: a client is then its key.
    """
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(1)
    asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    replies = [reply for reply in grid.send_and_receive(asked, timeout=60) if not reply.has_error()]
    names = {reply.metadata.src_node_id: f"client {reply.content['me']['number']}" for reply in replies}
    return lambda node: names.get(node.node_id, str(node.node_id))
