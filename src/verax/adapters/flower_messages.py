"""Flower's messages as replies, and back: where the model is, what replies must share, what the strategy is handed.

A strategy puts replies together record by record, and one reply with a record too many, a metric too few or one that
is no number ends the round for all. So what most replies hold is what each must hold, and who does not is dropped
alone. Records beside the model's travel as they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from verax.errors import ExtraMissing
from verax.received import Encoded, Refused, Reply, Work, decoded_array

try:
    from flwr.app import Array, ArrayRecord, Message, MetricRecord
except ImportError:
    raise ExtraMissing("Flower strategies", "flower") from None

Form = tuple[tuple[Any, ...], ...]
Metrics = dict[tuple[str, str], int | None]


def key_sent(message: Message, arrays: ArrayRecord) -> str:
    """The name of the record that carries the model to clients; a strategy may send more records beside it."""
    records = message.content.array_records
    same = (name for name, record in records.items() if record is arrays or list(record) == list(arrays))
    return next(same, next(iter(records), "arrays"))


def key_replied(messages: Sequence[Message], sent: str) -> str:
    """The name of the record that carries the model back: that under which it was sent, unless most have another."""
    counted = Counter(name for m in messages if m.has_content() for name in m.content.array_records)
    return max(counted, key=lambda name: (counted[name], name == sent), default=sent)


def replies_of(
    messages: Sequence[Message], key: str, weight_key: str, name_of: Callable[[int], str], needed: Collection[str] = ()
) -> list[Reply]:
    """One reply a message: the arrays of its model as they were sent, or why they are not looked at."""
    faults = form_faults(messages, key, weight_key, needed)
    return [
        _reply_of(m, key, weight_key, name_of(m.metadata.src_node_id), why)
        for m, why in zip(messages, faults, strict=True)
    ]


def _reply_of(message: Message, key: str, weight_key: str, agent: str, fault: str) -> Reply:
    if message.has_error():
        why = f"an error in place of a model ({message.error.reason or 'no reason given'})"
        return Reply(agent, refused=why, origin=message, failed=True)
    if fault:
        return Reply(agent, refused=fault, origin=message)
    record = message.content.array_records[key]
    arrays = {name: Encoded(tuple(a.shape), len(a.data), a.numpy) for name, a in record.items()}
    return Reply(agent, arrays, origin=message, claim=_claim_in(message, weight_key))


def _claim_in(message: Message, weight_key: str) -> float | None:
    """What a reply says it counts for: NaN where that is no number, None where it says nothing."""
    for record in message.content.metric_records.values():
        if weight_key in record:
            value = record[weight_key]
            return math.nan if isinstance(value, list) else float(value)
    return None


def form_faults(
    messages: Sequence[Message], key: str | None, weight_key: str, needed: Collection[str] = ()
) -> list[str]:
    """Why each message cannot be put together with the others; '' where it can, or is an error.

    `key` names the model's record, None where there is no model; `needed` are metrics that the strategy computes with.
    """
    faults = [_own_fault(m, key, needed) for m in messages]
    sound = [m for m, why in zip(messages, faults, strict=True) if not why and m.has_content()]
    if not sound:
        return faults
    form = _most_common([_form_of(m, key) for m in sound])
    metrics = _metrics_of_most([m for m in sound if _form_of(m, key) == form], weight_key)
    return [
        why or (_misfit(m, key, form, metrics) if m.has_content() else "")
        for m, why in zip(messages, faults, strict=True)
    ]


def _own_fault(message: Message, key: str | None, needed: Collection[str]) -> str:
    """What is wrong with a message whatever the others hold: no model, or further records that are no numbers."""
    if message.has_error():
        return ""
    if not message.has_content() or (key is not None and key not in message.content.array_records):
        return f"no model under {key!r}" if key else "no content"
    for name, record in message.content.array_records.items():
        if name != key and (why := _array_fault(name, record)):
            return why
    for metrics in message.content.metric_records.values():
        for name in sorted(set(needed) & set(metrics)):
            if isinstance(value := metrics[name], list) or not 0 <= value < math.inf:
                return f"its {name!r} is {value}; the strategy computes with it and needs a number from 0 up"
    return ""


def _array_fault(name: str, record: ArrayRecord) -> str:
    for part, array in record.items():
        try:
            values = decoded_array(f"{name}/{part}", Encoded(tuple(array.shape), len(array.data), array.numpy))
        except Refused as why:
            return str(why)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            return f"array '{name}/{part}' is not finite everywhere"
    return ""


def _form_of(message: Message, key: str | None) -> Form:
    """What records it has beside the model's: names and shapes of arrays, names of metrics."""
    records = message.content.array_records
    arrays = [(n, part, tuple(a.shape)) for n, record in records.items() if n != key for part, a in record.items()]
    return tuple(sorted(arrays)), tuple((name,) for name in sorted(message.content.metric_records))


def _most_common(forms: Sequence[Form]) -> Form:
    """The form that most have; of equally many, the one with the least in it."""
    counted = Counter(forms)
    return min(counted, key=lambda form: (-counted[form], sum(map(len, form)), repr(form)))


def _metrics_of_most(messages: Sequence[Message], weight_key: str) -> Metrics:
    """The metrics that more than half have in one form, by record and name: a list's length, None for a number."""
    counted = Counter(
        (name, metric, _length(value))
        for m in messages
        for name, record in m.content.metric_records.items()
        for metric, value in record.items()
        if metric != weight_key
    )
    return {(name, metric): length for (name, metric, length), n in counted.items() if 2 * n > len(messages)}


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def _misfit(message: Message, key: str | None, form: Form, metrics: Metrics) -> str:
    """How it differs from what most others hold; '' if it does not."""
    own = _form_of(message, key)
    if own != form:
        strange = sorted({n for n, *_ in sum(own, ())} ^ {n for n, *_ in sum(form, ())})
        return f"its records are not those of most replies ({', '.join(strange) or 'they hold other arrays'})"
    for (name, metric), length in sorted(metrics.items(), key=lambda item: item[0]):
        record = message.content.metric_records[name]
        if metric not in record:
            return f"it has no metric {metric!r}, which most replies have"
        if _length(record[metric]) != length:
            return f"its metric {metric!r} has another form than in most replies"
    return ""


def handed_on(works: Sequence[tuple[Work, float]], key: str, weight_key: str, *, as_sent: bool) -> list[Message]:
    """The messages of works for the strategy: the model as it was checked, and `weighed`."""
    for work, _ in works:
        work.origin.content[key] = ArrayRecord({name: Array(array) for name, array in work.model.items()})
    return weighed([work.origin for work, _ in works], [share for _, share in works], weight_key, as_sent=as_sent)


def weighed(
    messages: Sequence[Message], weights: Sequence[float], weight_key: str, *, as_sent: bool = False
) -> list[Message]:
    """The messages with the metrics that they share, and the weights given here.

    A metric that is not finite somewhere is left out everywhere, unless metrics go on `as_sent`.
    """
    shared = _metrics_of_most(messages, weight_key)
    kept = [metric for metric in shared if as_sent or all(_finite(m.content[metric[0]][metric[1]]) for m in messages)]
    for message, weight in zip(messages, weights, strict=True):
        records: Mapping[str, MetricRecord] = message.content.metric_records or {"metrics": MetricRecord()}
        for name in list(records):
            found = {metric: records[name][metric] for record, metric in kept if record == name}
            message.content[name] = MetricRecord(found | {weight_key: weight})
    return list(messages)


def _finite(value: Any) -> bool:
    return bool(np.isfinite(value).all())
