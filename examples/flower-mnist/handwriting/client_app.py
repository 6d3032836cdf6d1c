"""A client: trains what it was sent on its own images, or sends it back, or noises it, or trains on wrong labels."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from handwriting.task import HELD, partition, trained
from verax.echo import perturbed

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Reply with a model."""
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    server_round = int(message.content["config"]["server-round"])
    record = ArrayRecord({name: Array(values) for name, values in reply(model, server_round, context).items()})
    metrics = MetricRecord({"num-examples": HELD})  # a claim: the server decides what it counts for
    return Message(content=RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)


def reply(model, server_round, context):
    """What a client of this number does with the model it was sent."""
    number, of = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    config, seed = context.run_config, 1000 * server_round + number
    echo, noised, flipper = (str(number) in str(config[key]).split(",") for key in ("echo", "noised", "flipper"))
    if echo:
        return model
    if noised:
        return dict(zip(model, perturbed(list(model.values()), 0.05, np.random.default_rng(seed)), strict=True))
    images, labels = partition(number, of, str(config["data"]), bool(config["fetch"]))
    return trained(model, images, 9 - labels if flipper else labels, seed)


@app.train("report")
def report(message: Message, context: Context) -> Message:
    """The same on request, for protocol `report`."""
    return train(message, context)


@app.query()
def number(message: Message, context: Context) -> Message:
    """Say which partition this client has, so that the server's table can be read."""
    me = ConfigRecord({"number": int(context.node_config["partition-id"])})
    return Message(content=RecordDict({"me": me}), reply_to=message)
