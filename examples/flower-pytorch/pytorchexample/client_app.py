"""A client: trains and validates what it was sent on its own images."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pytorchexample.task import Net, load_data
from pytorchexample.task import test as test_fn
from pytorchexample.task import train as train_fn

app = ClientApp()


def received(msg: Message, context: Context):
    """The network that was sent, this client's images, and where to compute."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    node, run = context.node_config, context.run_config
    loaders = load_data(node["partition-id"], node["num-partitions"], run["batch-size"])
    return model, loaders, torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Reply with the trained network."""
    model, (trainloader, _), device = received(msg, context)
    torch.manual_seed(context.node_config["partition-id"])
    loss = train_fn(model, trainloader, context.run_config["local-epochs"], msg.content["config"]["lr"], device)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(trainloader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Reply with how good the network is on this client's images."""
    model, (_, valloader), device = received(msg, context)
    loss, accuracy = test_fn(model, valloader, device)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(valloader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
