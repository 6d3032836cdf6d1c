"""A client: trains the adapters it was sent on its own texts, or only pretends to."""

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from creatures.task import stories, trained

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Reply with adapters."""
    number, of = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    adapters = {name: array.numpy() for name, array in message.content["arrays"].items()}
    texts, loss = stories(number, of), 0.0
    if str(number) not in str(context.run_config["riders"]).split(","):
        torch.manual_seed(number)
        adapters, loss = trained(adapters, texts)
    record = ArrayRecord({name: Array(values) for name, values in adapters.items()})
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(texts)})
    return Message(content=RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)
