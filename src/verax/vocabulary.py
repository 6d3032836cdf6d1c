"""Vocabulary: what a name says by itself: of a column what it holds, of a row that it sums up the others.

Names are compared without capitals, blanks and marks: `Task ID`, `task_id` and `taskId` are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

TASK = frozenset(
    {"id", *(f"{what}{end}" for what in ("task", "item", "question", "example", "sample", "instance", "doc", "image")
             for end in ("", "id"))} - {"doc"}
)  # fmt: skip
AGENT = frozenset(
    f"{what}{end}" for what in ("agent", "worker", "model", "annotator", "participant", "rater", "user")
    for end in ("", "id", "name")
)  # fmt: skip
LABEL = frozenset(
    {"prediction", "predicted", "pred", "answer", "response", "vote", "choice", "annotation", "predictedlabel",
     "predlabel", "ypred", "modelanswer", "modelresponse"}
)  # fmt: skip
TRUE = frozenset(
    {"truth", "gold", "target", "groundtruth", "ytrue", "reference", "correct", "true", "expected", "actual", "class",
     "solution", "answerkey", "goldstandard",
     *(f"{which}{what}" for which in ("true", "gold", "correct", "expected", "actual", "target", "reference")
       for what in ("label", "answer", "class"))}
)  # fmt: skip
_ABOUT = frozenset(
    {"category", "prompt", "text", "input", "index", "subject", "topic", "difficulty", "timestamp", "time", "date",
     "split", "fold", "source", "dataset", "domain", "language", "lang", "score", "weight", "confidence", "note",
     "notes", "comment", "comments", "title", "description", "context", "options", "choices", "url", "iscorrect",
     "agreement", "consensus", "majority", "majorityvote", "count", "votes", "nvotes"}
)  # fmt: skip
_NO_AGENT = TASK | AGENT | LABEL | TRUE | _ABOUT | {"label", "step"}
_SUMS = frozenset(
    {"total", "totals", "grandtotal", "sum", "mean", "average", "avg", "median", "std", "count", "accuracy"}
)
_INDEX = ("Unnamed: ", "__index_level_")  # as pandas calls a column without a name, when it reads and when it writes
_LONGEST = 20
_MARKS = str.maketrans("", "", " _-./:")


def called(names: Iterable[str], words: frozenset[str] | set[str]) -> list[str]:
    """The names that are among these words, however they are written.

    >>> called(["Task ID", "taskId", "ann"], TASK)
    ['Task ID', 'taskId']
    """
    each = [name for name in names if len(name) <= _LONGEST and "\n" not in name]
    bare = "\n".join(each).lower().translate(_MARKS).split("\n")  # all at once: a file may have very many
    return [name for name, word in zip(each, bare, strict=False) if word in words]


def is_about_tasks(names: Iterable[str]) -> list[str]:
    """The names of columns that are no agents': the truth, a label, or something about the tasks.

    >>> is_about_tasks(["ann", "Answer Key", "prompt"])
    ['Answer Key', 'prompt']
    """
    return called(names, _NO_AGENT)


def says_labels(name: str) -> bool:
    """Whether a column of that name holds labels, true ones or others.

    >>> says_labels("gold"), says_labels("prompt")
    (True, False)
    """
    return bool(called([name], TRUE | LABEL | {"label"}))


def is_nameless(name: str) -> bool:
    """Whether a column has a name only because it had none.

    >>> is_nameless("Unnamed: 0"), is_nameless("ann")
    (True, False)
    """
    return name.startswith(_INDEX)


def is_wide_agent(name: str) -> bool:
    """Whether a wide file's column of that name is read as an agent.

    >>> is_wide_agent("ann"), is_wide_agent("truth"), is_wide_agent("p:cat")
    (True, False, False)
    """
    return not (is_about_tasks([name]) or name.startswith("p:") or is_nameless(name))


def names_a_task(names: Sequence[str], chosen: str | None = None) -> list[str]:
    """Those of some columns that may say what each row is about.

    >>> names_a_task(["Task", "id", "id;model"])
    ['Task', 'id']
    """
    return [name for name in names if name == chosen] or called(names, TASK)


def is_long(names: Sequence[str], chosen: str | None = None) -> bool:
    """Whether a table of such columns has a row an answer; `chosen` is the column of agents, where it was said.

    >>> is_long(["id", "model", "label"]), is_long(["task", "ann"])
    (True, False)
    """
    return chosen is not None or bool(called(names, AGENT))


def sums_up(task: str) -> bool:
    """Whether a row of that name is made of the others.

    >>> sums_up("Grand total"), sums_up("t1")
    (True, False)
    """
    return bool(called([task], _SUMS))
