"""Flower in this process: a grid whose nodes are functions, and messages as they read and write them."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class Here(Grid):
    """A grid whose nodes are functions in this process: a message in, a reply or nothing out."""

    def __init__(self, clients, keys=None):
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.clients, self.keys, self.sent = clients, keys or {}, []

    def set_run(self, run):
        pass

    @property
    def run(self):
        return None

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.clients)

    def get_nodes(self):
        return [NodeInfo(node_id=n, public_key=self.keys.get(n, b"")) for n in self.clients]

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.sent += [m.metadata.message_type for m in messages]
        return [r for m in messages if (r := self.clients[m.metadata.dst_node_id](m)) is not None]


def sent(message):
    return {name: array.numpy() for name, array in message.content["arrays"].items()}


def replied(message, model, claim=10, key="arrays", **metrics):
    record = ArrayRecord(
        {name: values if isinstance(values, Array) else Array(values) for name, values in model.items()}
    )
    content = RecordDict({key: record, "metrics": MetricRecord({"num-examples": claim, **metrics})})
    return Message(content=content, reply_to=message)
