"""Logs: what other tools wrote becomes reports. One file a tool; who is the agent, what is a task, is found by itself.

lm-evaluation-harness, Inspect, HELM, Every Eval Ever, Label Studio, crowd-kit. `verax.read` takes these too, through
the formats that are registered here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from verax.columns import Reading
from verax.errors import InputError
from verax.logs import crowd_kit
from verax.logs.answer import RULES, label_of
from verax.logs.gathered import READERS, Chosen, TaskSet, explanation, found_below, reader_of, task_sets
from verax.reports import Reports
from verax.tables.formats import Format, Shard, register
from verax.tables.source import Source

__all__ = ["READERS", "RULES", "Chosen", "TaskSet", "explanation", "label_of", "task_sets"]


def _is_log(source: Source, reading: Reading) -> bool:
    """Whether a path is a log, or a folder that holds one; CSV is for the tables to read."""
    if not isinstance(source.content, Path):
        return False
    if source.is_folder:
        return any(reader is not crowd_kit for _, reader in found_below(source.content))
    return reader_of(source.content) not in (None, crowd_kit)


def _scan(source: Source, shard: Shard, agent: str | None = None) -> Iterator[Reports]:
    """The reports of logs on one set of tasks."""
    sets = task_sets(source.name, chosen=Chosen(rows=True))
    if len(sets) > 1:
        names = ", ".join(repr(one.name) for one in sets[:5])
        raise InputError(
            f"{source.name}: logs of {len(sets)} sets of tasks ({names}); name the files of one, or use verax eval"
        )
    yield sets[0].reports


register(Format("a log of another tool", (), scan=_scan, knows=_is_log))
