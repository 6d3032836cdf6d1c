"""Tables: the one door through which outside data comes in. Path, bytes, open file, frame or `-` -> reports.

Every way a file can be wrong has its sentence: what was seen, where, what was expected, what to do. A format is one
entry in `formats`; what columns mean is decided in `layout`, the same for every format and for data frames.
"""

from verax.columns import Column, Reading, Table
from verax.tables.beside import (
    Digests,
    Truth,
    digests,
    read_agents,
    read_matrix,
    read_prediction,
    read_public,
    read_submissions,
    read_tasks,
    read_truth,
    task_of,
    truth_of,
)
from verax.tables.formats import Format, Shard, blocks, find, is_pattern, matches, read, register, stamps
from verax.tables.source import Source, read_text
from verax.tables.writing import refuse_overwriting, write, write_atomically

__all__ = [
    "Column",
    "Digests",
    "Format",
    "Reading",
    "Shard",
    "Source",
    "Table",
    "Truth",
    "blocks",
    "digests",
    "find",
    "is_pattern",
    "matches",
    "read",
    "read_agents",
    "read_matrix",
    "read_prediction",
    "read_public",
    "read_submissions",
    "read_tasks",
    "read_text",
    "read_truth",
    "refuse_overwriting",
    "register",
    "stamps",
    "task_of",
    "truth_of",
    "write",
    "write_atomically",
]
