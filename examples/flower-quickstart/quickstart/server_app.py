"""The server: FedAvg, with every client's model scored on 300 unlabelled digits and paid."""

from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import CLASSES, digits, initial, probabilities
from verax.flower import PaidStrategy, Payroll

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds; leave a ledger and a page for each round that was paid."""
    x, y = digits()
    pool, (test, truth) = x[-500:-200], (x[-200:], y[-200:])
    out = Path(str(context.run_config["out"]))
    out.mkdir(parents=True, exist_ok=True)
    strategy = PaidStrategy(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=10, min_available_nodes=10),
        pool,
        probabilities,
        CLASSES,
        protocol=str(context.run_config["protocol"]),
        payroll=Payroll(str(out / "rounds.db"), budget=str(context.run_config["budget"])),
        pages=out,
    )

    def accuracy(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = {name: array.numpy() for name, array in arrays.items()}
        return MetricRecord({"accuracy": float((probabilities(model, test).argmax(1) == truth).mean())})

    strategy.start(
        grid,
        ArrayRecord({name: Array(values) for name, values in initial().items()}),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=accuracy,
    )
    (out / "paid.txt").write_text("\n\n".join(outcome.table() for outcome in strategy.outcomes) + "\n")
