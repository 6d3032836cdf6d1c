"""A client: trains what it was sent on its own digits, or only pretends to."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import partition, trained
from verax.adapters.flower_told import told

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Reply with a model."""
    for notice in told(message):
        print(notice)
    number, of = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    x, y = partition(number, of)
    if str(number) not in str(context.run_config["riders"]).split(","):
        model = trained(model, x, y)
    record = ArrayRecord({name: Array(values) for name, values in model.items()})
    metrics = MetricRecord({"num-examples": len(y)})  # a claim: the server decides what it counts for
    return Message(content=RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)


@app.train("report")
def report(message: Message, context: Context) -> Message:
    """The same on request, for protocol `report`."""
    return train(message, context)


@app.query()
def number(message: Message, context: Context) -> Message:
    """Say which partition this client has, so that the server's table can be read."""
    me = ConfigRecord({"number": int(context.node_config["partition-id"])})
    return Message(content=RecordDict({"me": me}), reply_to=message)
