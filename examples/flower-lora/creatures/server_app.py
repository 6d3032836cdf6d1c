"""The server: FedAvg of adapters, with every client's scored on questions without answers, and paid."""

from logging import INFO
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.supercore import log

from creatures.task import HOMES, adapters_of, questions, reader, shares
from verax.adapters.flower import PaidStrategy, Payroll

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds; leave a ledger, and a page for each round that was paid."""
    config = context.run_config
    out = Path(str(config["out"])).resolve()
    out.mkdir(parents=True, exist_ok=True)
    log(INFO, "The ledger and the pages go to %s", out)
    asked, right = questions()
    terms = {
        "label": (lambda adapters, pool: shares(adapters, pool).argmax(1), {}),
        "rows": (shares, {"rule": "pmi", "floor": 0.05}),
    }
    predict, options = terms[str(config["answers"])]
    clients = int(config["clients"])
    strategy = PaidStrategy(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients),
        asked,
        predict,
        HOMES,
        options=options,
        payroll=Payroll(str(out / "rounds.db"), budget=str(config["budget"])),
        pages=out,
    )

    def accuracy(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        adapters = {name: array.numpy() for name, array in arrays.items()}
        return MetricRecord({"accuracy": float((shares(adapters, asked).argmax(1) == right).mean())})

    strategy.start(
        grid,
        ArrayRecord({name: Array(values) for name, values in adapters_of(reader()).items()}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=accuracy,
    )
    (out / "paid.txt").write_text("\n\n".join(outcome.table() for outcome in strategy.outcomes) + "\n")
