"""A client: trains what it was sent on its own digits, or only pretends to, and examines others on some it keeps."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import CLASSES, partition, probabilities, trained
from verax.adapters.flower_exam import examined
from verax.adapters.flower_told import told
from verax.exam import HeldBack

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Reply with a model."""
    for notice in told(message):
        print(notice)
    number, of = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    x, y = partition(number, of)
    if context.run_config["protocol"] == "exam":
        x, y = x[number_held(y) :], y[number_held(y) :]
    if str(number) not in str(context.run_config["riders"]).split(","):
        model = trained(model, x, y)
    record = ArrayRecord({name: Array(values) for name, values in model.items()})
    metrics = MetricRecord({"num-examples": len(y)})  # a claim: the server decides what it counts for
    return Message(content=RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)


@app.train("report")
def report(message: Message, context: Context) -> Message:
    """The same on request, for protocol `report`."""
    return train(message, context)


def number_held(labels) -> int:
    """A fifth of a client's examples is kept from training, for others to be examined on."""
    return len(labels) // 5


@app.evaluate("exam")
def exam(message: Message, context: Context) -> Message:
    """Say what the examples that were kept say of others' models, for protocol `exam`."""
    number, of = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    x, y = partition(number, of)
    held = HeldBack(x[: number_held(y)], y[: number_held(y)])
    # A real client keeps a salt of its own, and keeps it to itself.
    return examined(message, context, held, probabilities, classes=len(CLASSES), salt=f"client {number}")


@app.query()
def number(message: Message, context: Context) -> Message:
    """Say which partition this client has, so that the server's table can be read."""
    me = ConfigRecord({"number": int(context.node_config["partition-id"])})
    return Message(content=RecordDict({"me": me}), reply_to=message)
