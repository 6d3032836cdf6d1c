"""Flower: what clients are told of their pay travels in the next message to each, beside what the strategy sends.

On the server `Telling` puts notices into messages. On a client one line reads them:

    for notice in told(message, operator=KEY):
        print(notice)

They are one text in a configuration record of their own, `verax`. Flower's clipping on clients wants messages with one
configuration only: there the text is a line of that one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from verax.errors import ExtraMissing, InputError
from verax.notices import Notice, notices_in, text_of
from verax.outcome import Outcome

try:
    from flwr.app import ConfigRecord, RecordDict
except ImportError:
    raise ExtraMissing("Flower strategies", "flower") from None

if TYPE_CHECKING:
    from flwr.app import Message

__all__ = ["LAST_WORD", "Telling", "told"]

RECORD = "verax"
LAST_WORD = "query.verax"
_MOST = 8  # notices that wait for one client
_log = logging.getLogger("verax")


def told(message: Message, *, operator: str | None = None) -> list[Notice]:
    """What the federation's operator says of this client's pay in a message; [] where it says nothing.

    `operator` is the key that must have signed; what it has not signed is left out, with a warning in the log. Without
    it every notice is given that is what somebody signed, or that nobody signed: ask `notice.fault()`.

    >>> from flwr.app import Message, RecordDict
    >>> class Sent:
    ...     content = RecordDict({"verax": ConfigRecord({"verax": text_of([Notice("plants", 1, "ann", "no reply")])})})
    >>> [notice.why for notice in told(Sent())]
    ['no reply']
    """
    found = []
    for record in message.content.config_records.values():
        for notice in _sent_in(record[RECORD]) if RECORD in record else ():
            unsigned = operator is None and notice.signature is None
            if (fault := notice.fault(operator=operator)) and not unsigned:
                _log.warning("left out, a notice about round %s: %s", notice.number, fault)
            else:
                found.append(notice)
    return found


def _sent_in(text: Any) -> list[Notice]:
    """The notices of a text; none, with a warning, where it is something else, of whoever has put it there."""
    try:
        return notices_in(str(text))
    except InputError as error:
        _log.warning("left out, what is no notice: %s", error)
        return []


class Telling:
    """What clients are still to be told: each in the messages it gets, until it has answered one."""

    def __init__(self, *, one_configuration: bool) -> None:
        self.one_configuration = one_configuration
        self._waiting: dict[str, list[Notice]] = {}
        self._sent: dict[str, int] = {}

    def add(self, outcome: Outcome) -> None:
        """Tell everybody in a round what became of it."""
        for agent, notice in outcome.notices.items():
            held = self._waiting.setdefault(agent, [])
            held[:] = [*held, notice][-_MOST:]

    @property
    def waiting(self) -> list[str]:
        """Who is still to be told something."""
        return sorted(self._waiting)

    def put_into(self, messages: Iterable[Message], name_of: Callable[[int], str]) -> list[Message]:
        """The messages, each with what its client is still to be told."""
        found = list(messages)
        for message in found:
            agent = name_of(message.metadata.dst_node_id)
            if notices := self._waiting.get(agent):
                message.content = self._with_text(message.content, text_of(notices))
                self._sent[agent] = len(notices)
        return found

    def _with_text(self, content: RecordDict, text: str) -> RecordDict:
        records: dict[str, Any] = {**content}  # a strategy may send one content to all, so that it is not changed
        own: Sequence[str] = [*content.config_records] if self.one_configuration else []
        if len(own) == 1:
            return RecordDict({**records, own[0]: ConfigRecord({**content.config_records[own[0]], RECORD: text})})
        return RecordDict({**records, RECORD: ConfigRecord({RECORD: text})})

    def answered(self, agents: Collection[str]) -> None:
        """Forget what those have been told who have answered a message that said it."""
        for agent in set(agents) & set(self._sent):
            left = self._waiting.get(agent, [])[self._sent.pop(agent) :]
            self._waiting.pop(agent, None)
            if left:
                self._waiting[agent] = left
