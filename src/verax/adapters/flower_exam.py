"""Members who examine one another by Flower's client-side evaluation: what travels, at the server and at the client.

A client answers messages of type `evaluate.exam`, apart from the strategy's own evaluation, in one function:

    @app.evaluate("exam")
    def exam(message, context):
        return examined(message, context, HeldBack(x_held, y_held), predict, classes=10, salt=SALT)

First it is asked for its promise, before anybody trains; then in every round it gets the broadcasts and everybody's
models but its own, under other names, and says by label what its examples say of each. What that is, `marking` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import WARNING
from typing import Any

import numpy as np

from verax.errors import ExtraMissing, InputError
from verax.exam import HeldBack
from verax.judgements import Judgement
from verax.marking import Entry, Marking, Paper
from verax.received import Model, Predict
from verax.sitting import Promise

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.supercore import log
except ImportError:
    raise ExtraMissing("Flower strategies", "flower") from None

EXAM = "evaluate.exam"
_HEAD, _STATE = "verax.exam", "verax.exam.{}"


class FlowerMembers:
    """A federation's members as the server reaches them: `nodes()` by name; `send` messages, and have the replies."""

    def __init__(
        self, nodes: Callable[[], Mapping[str, int]], send: Callable[[list[Message]], Sequence[Message]]
    ) -> None:
        self._nodes, self._send = nodes, send
        self._promised: dict[str, str] = {}

    def promises(self) -> dict[str, Promise]:
        """What each commits to; who has no examples, or no answer to this, is no examiner."""
        asked = {agent: RecordDict({_HEAD: ConfigRecord({"ask": "promise"})}) for agent in self._nodes()}
        found = {agent: _promise_in(content) for agent, content in self._answers(asked).items()}
        promises = {agent: promise for agent, promise in found.items() if promise is not None}
        self._promised = {agent: promise.commitment for agent, promise in promises.items()}
        return promises

    def judgements(self, papers: Mapping[str, Paper]) -> dict[str, Judgement]:
        """What each says of its paper; an answer that is none, or on other examples than promised, is left out."""
        there = self._nodes()
        asked = {agent: content_of(paper) for agent, paper in papers.items() if agent in there and paper.replies}
        found = {}
        for agent, content in self._answers(asked).items():
            promise = _promise_in(content)
            try:
                if promise is None or promise.commitment != self._promised.get(agent):
                    raise InputError("its examples are not those that it promised")
                found[agent] = judgement_in(content)
            except (InputError, KeyError, TypeError, ValueError) as why:
                log(WARNING, "%s does not examine in this round: %s", agent, why)
        return found

    def _answers(self, asked: Mapping[str, RecordDict]) -> dict[str, RecordDict]:
        names = {node: agent for agent, node in self._nodes().items()}
        nodes = {agent: node for node, agent in names.items()}
        messages = [
            Message(content=content, message_type=EXAM, dst_node_id=nodes[agent]) for agent, content in asked.items()
        ]
        found: dict[str, RecordDict] = {}
        for reply in self._send(messages) if messages else ():
            agent = names.get(reply.metadata.src_node_id, "")
            if agent in asked and reply.has_content():
                found.setdefault(agent, reply.content)
            elif agent in asked:
                log(WARNING, "%s does not examine in this round: %s", agent, reply.error.reason or "it failed")
        return found


def examined(message: Message, context: Context, held: HeldBack, predict: Predict, classes: int, salt: str) -> Message:
    """A client's answer to a message of type `evaluate.exam`: its promise, or its judgement of others' replies.

    `held` are examples that it never trains on, without a holder's name; `predict(model, inputs)` gives probabilities,
    as at the server. `salt` is a secret of the client's, the same in every round, without which its labels could be
    guessed from the promise. What its examples have said so far stays in the context's state, with this client.
    """
    if held.holder is not None:
        raise InputError(f"the examples are named {held.holder!r}; leave the holder out, for the server names clients")
    head: dict[str, Any] = {"commitment": held.commitment(salt), "examples": len(held.inputs)}
    if message.content.config_records[_HEAD]["ask"] == "promise":
        return Message(content=RecordDict({_HEAD: ConfigRecord(head)}), reply_to=message)
    marking = Marking(held, predict, classes, _state_in(context))
    found = marking.judgement(paper_in(message.content))
    _keep_state(context, marking.state)
    names = [*found.means]
    told = {"counts": found.counts, "means": [*found.means.values()], "spreads": [*found.spreads.values()]}
    arrays = ArrayRecord({name: Array(np.asarray(values, np.float64)) for name, values in told.items()})
    return Message(
        content=RecordDict({_HEAD: ConfigRecord({**head, "names": names}), "judgement": arrays}), reply_to=message
    )


def _promise_in(content: RecordDict) -> Promise | None:
    head: Mapping[str, Any] = content.config_records.get(_HEAD, {})
    commitment, examples = head.get("commitment"), head.get("examples")
    if not isinstance(commitment, str) or not isinstance(examples, int) or len(commitment) != 64:
        return None
    return Promise(commitment, examples)


def judgement_in(content: RecordDict) -> Judgement:
    """A member's judgement as it travelled, checked for what can be seen of it."""
    head, told = content.config_records[_HEAD], content.array_records["judgement"]
    names = head.get("names", [])
    if not isinstance(names, list) or len({*names}) < len(names):
        raise InputError("its judgement names somebody twice; take it anew")
    counts, means, spreads = (told[name].numpy() for name in ("counts", "means", "spreads"))
    classes = len(counts)
    if any(table.size != len(names) * classes for table in (means, spreads)) or not np.isfinite(counts).all():
        raise InputError("its judgement is no table of its labels; take it anew")
    rows = [table.reshape(len(names), classes).astype(np.float64).tolist() for table in (means, spreads)]
    by_name = [{str(name): tuple(row) for name, row in zip(names, table, strict=True)} for table in rows]
    found = Judgement(None, tuple(int(n) for n in counts), *by_name)
    found.check()
    return found


def content_of(paper: Paper) -> RecordDict:
    """A paper as it travels: models as records of arrays, the rest in one record of settings.

    >>> at = [{"w": np.array([float(n)])} for n in range(3)]
    >>> paper = Paper("s", 2, at[:2], {"x": Entry(at[2], np.zeros((2, 5)), 0.5)}, still=(), seed=7)
    >>> again = paper_in(content_of(paper))
    >>> again.replies["x"].model, again.replies["x"].scale, again.seed, len(again.broadcasts)
    ({'w': array([2.])}, 0.5, 7, 2)
    """
    names = [*paper.replies]
    settings = {
        "ask": "judgement", "session": paper.session, "number": paper.number, "seed": paper.seed,
        "copies": paper.copies, "broadcasts": len(paper.broadcasts), "names": names,
        "scales": [paper.replies[name].scale for name in names], "imitated": [len(group) for group in paper.imitated],
        "still": list(paper.still),
    }  # fmt: skip
    records: dict[str, Any] = {_HEAD: ConfigRecord(settings)}  # type: ignore[arg-type]
    records |= {f"broadcast-{n}": _record_of(model) for n, model in enumerate(paper.broadcasts)}
    for g, group in enumerate(paper.imitated):
        records |= {f"imitated-{g}-{n}": _record_of(model) for n, model in enumerate(group)}
    for n, entry in enumerate(paper.replies.values()):
        records |= {f"reply-{n}": _record_of(entry.model), f"public-{n}": _record_of({"beta": entry.coefficients})}
    return RecordDict(records)


def paper_in(content: RecordDict) -> Paper:
    """The paper that travelled."""
    said: Any = content.config_records[_HEAD]
    models = {name: _model_of(record) for name, record in content.array_records.items()}
    replies = {
        name: Entry(models[f"reply-{n}"], models[f"public-{n}"]["beta"], float(scale))
        for n, (name, scale) in enumerate(zip(said["names"], said["scales"], strict=True))
    }
    imitated = [[models[f"imitated-{g}-{n}"] for n in range(size)] for g, size in enumerate(said["imitated"])]
    broadcasts = [models[f"broadcast-{n}"] for n in range(said["broadcasts"])]
    return Paper(
        said["session"], said["number"], broadcasts, replies, imitated, tuple(said["still"]), said["seed"],
        said["copies"],
    )  # fmt: skip


def _record_of(model: Mapping[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def _model_of(record: ArrayRecord) -> Model:
    return {name: array.numpy() for name, array in record.items()}


def _state_in(context: Context) -> dict[str, Any]:
    """What this client's examples have said so far, from its own state."""
    if _HEAD not in context.state.config_records:
        return {}
    head, kept = context.state.config_records[_HEAD], context.state.array_records
    return dict(head) | {name: _model_of(kept[_STATE.format(name)]) for name in ("now", "before")}


def _keep_state(context: Context, state: Mapping[str, Any]) -> None:
    context.state[_HEAD] = ConfigRecord({"session": state["session"], "number": state["number"]})
    for name in ("now", "before"):
        context.state[_STATE.format(name)] = _record_of(state[name])
