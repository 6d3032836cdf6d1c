"""Roles: which column of a table is what.

A table is long (task, agent, label and p:<class> columns) or wide (task and one column an agent). A column that could
be two things is asked about, one that is no agent is never taken for one, and whatever was decided is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from verax.columns import Column, Reading, Table
from verax.errors import InputError
from verax.labels import checked_names, some

REPORTS = "task,agent,label (long) or task and one column an agent (wide)"
TRUTH = "task,label"
PUBLIC = "task,label or task and columns of numbers"
SUBMISSIONS = "step,task,agent,label"

_TASK = {f"{what}{end}" for what in ("item", "question", "example", "sample", "instance") for end in ("", "_id")}
_TASK |= {"id", "task_id", "doc_id"}
_AGENT = {f"{what}{end}" for what in ("model", "annotator", "participant", "rater", "user") for end in ("", "_id")}
_AGENT |= {"agent_id", "worker_id", "model_name"}
_LABEL = {"prediction", "predicted", "pred", "answer", "response", "vote", "choice", "annotation"}
_TRUE = {"truth", "gold", "target", "ground_truth", "true_label", "gold_label", "y_true", "reference", "correct"}
_ABOUT = {"category", "prompt", "text", "input", "index", "subject", "topic", "difficulty", "timestamp", "time", "date",
          "split", "source", "score", "note", "comment", "url"}  # fmt: skip
_NO_AGENT = _TASK | _AGENT | _LABEL | _TRUE | _ABOUT | {"task", "agent", "worker", "label", "step"}
_ENOUGH = 20  # rows, below which how often a text occurs says nothing


def is_wide_agent(name: str) -> bool:
    """Whether a wide file's column of that name is read as an agent.

    >>> is_wide_agent("ann"), is_wide_agent("truth"), is_wide_agent("p:cat")
    (True, False, False)
    """
    return not (_plain_name(name) in _NO_AGENT or name.startswith(("p:", "Unnamed: ", "__index_level_")))


def names_a_task(name: str, reading: Reading) -> bool:
    """Whether a column of that name may say what each row is about.

    >>> names_a_task("Task", Reading()), names_a_task("id;model", Reading())
    (True, False)
    """
    return name == reading.task_col or _plain_name(name) in _TASK | {"task"}


def is_long(names: Sequence[str], reading: Reading) -> bool:
    """Whether a table of such columns has a row an answer.

    >>> is_long(["id", "model", "label"], Reading()), is_long(["task", "ann"], Reading())
    (True, False)
    """
    return reading.agent_col is not None or any(_plain_name(name) in _AGENT | {"agent", "worker"} for name in names)


def _plain_name(name: str) -> str:
    return name.lower().replace(" ", "_").replace("-", "_")


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are, and what there is to say of that."""

    task: str
    agent: str | None = None
    label: str | None = None
    truth: str | None = None
    rows: Mapping[str, str] = field(default_factory=dict)  # class -> column of its probabilities
    agents: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def roles_of(table: Table, reading: Reading, agent: str | None = None) -> Roles:
    """What the columns of reports are; `agent` is whose they are where no column says."""
    kept, notes = kept_columns(table, reading)
    task = task_column(table.source, kept, reading, REPORTS if agent is None else TRUTH)
    truth = _checked_choice(reading.truth_col, "truth_col", kept, table.source)
    rest = [name for name in kept if name not in (task, truth)]
    rows = {name[2:].strip(): name for name in rest if name.startswith("p:")}
    label = _column_called(table.source, rest, reading.label_col, "label_col", ("label",), _LABEL)
    who = _column_called(table.source, rest, reading.agent_col, "agent_col", ("agent", "worker"), _AGENT)
    long = who is not None or (agent is not None and bool(label or rows))
    if who is not None and label is None and not rows:
        if _plain_name(who) in _AGENT and reading.agent_col is None:
            raise InputError(
                f"{table.source}: column {who!r} may name the agents or be one, and no column is the label; "
                f"name both with agent_col= and label_col=, rename it, or leave it out with drop={who}"
            )
        raise InputError(
            f"{table.source}: no column 'label' and no p:<class> columns; expected task,agent,label, or label_col="
        )
    if not long:
        if reading.label_col is not None:
            raise InputError(
                f"{table.source}: label_col= is of a long file, and no column names the agents; give agent_col="
            )
        agents = _wide_agents(table, rest, reading)
        found = Roles(task, None, None, truth, {}, agents, notes)
        return replace(found, notes=(*notes, *_naming_notes(found), *_stranger_notes(table, agents)))
    named = [name[2:].strip() for name in rest if name.startswith("p:")]
    checked_names(named, len(named), "class", table.source)
    strange = [name for name in rest if name not in (who, label, *rows.values())]
    if strange:
        true = _plain_name(strange[0]) in _TRUE
        remedy = f"name it with truth_col={strange[0]}, or " if true else ""
        raise InputError(
            f"{table.source}: column {strange[0]!r} is not understood; expected task,agent,label and p:<class> "
            f"columns; {remedy}leave it out with drop={strange[0]}"
        )
    found = Roles(task, who, label, truth, rows, (), notes)
    return replace(found, notes=(*notes, *_naming_notes(found)))


def kept_columns(table: Table, reading: Reading) -> tuple[list[str], tuple[str, ...]]:
    """The columns that are not to be left out, and a word on those that nobody asked to leave out."""
    chosen = {reading.task_col, reading.agent_col, reading.label_col, reading.truth_col}
    kept, notes = [], []
    for name, column in table.columns.items():
        unnamed = name.startswith("Unnamed: ") and name not in chosen
        if name in reading.drop:
            continue
        if (name.startswith("__index_level_") and name not in chosen) or (unnamed and _counts_rows(column)):
            notes.append(f"{table.source}: column {name!r} counts the rows, as pandas writes them, and is left out")
        elif unnamed:
            raise InputError(
                f"{table.source}: column {int(name[9:]) + 1 if name[9:].isdigit() else name!r} has no name; "
                f"give every column a header, or leave it out with drop='{name}'"
            )
        else:
            kept.append(name)
    return kept, tuple(notes)


def _counts_rows(column: Column) -> bool:
    return [*column.texts] == [*map(str, range(len(column)))]


def task_column(source: str, names: Sequence[str], reading: Reading, expected: str) -> str:
    task = _column_called(source, names, reading.task_col, "task_col", ("task",), _TASK)
    if task is None:
        raise InputError(
            f"{source}: no column 'task' among {some(names) or 'no columns'}; expected {expected}, or task_col="
        )
    return task


def _checked_choice(chosen: str | None, option: str, names: Sequence[str], source: str) -> str | None:
    if chosen is not None and chosen not in names:
        raise InputError(f"{source}: no column {chosen!r} among {some(names)}; {option}= is to name one of them")
    return chosen


def _column_called(
    source: str, names: Sequence[str], chosen: str | None, option: str, exact: Sequence[str], others: set[str]
) -> str | None:
    """The column that is chosen, that has the very name, or that alone has a name of the kind."""
    if chosen is not None:
        return _checked_choice(chosen, option, names, source)
    for name in exact:
        if name in names:
            return name
    found = [name for name in names if _plain_name(name) in exact] or [
        name for name in names if _plain_name(name) in others
    ]
    if len(found) > 1:
        raise InputError(
            f"{source}: columns {some(found)} could each be the {exact[0]}; say which with {option}=, "
            "and leave the others out with drop="
        )
    return next(iter(found), None)


def _naming_notes(roles: Roles) -> list[str]:
    """Which columns were taken for what, where they are not called so."""
    taken = {"task": roles.task, "agent": roles.agent, "label": roles.label, "truth": roles.truth}
    other = [f"{name!r} as the {what}" for what, name in taken.items()
             if name is not None and name not in (what, "worker")]  # fmt: skip
    return [f"read column {', '.join(other)}"] if other else []


def _wide_agents(table: Table, names: Sequence[str], reading: Reading) -> tuple[str, ...]:
    if names == ["label"] or not names:
        raise InputError(
            f"{table.source}: columns {some(table.columns)} name no agent; "
            "expected task,agent,label or task and one column an agent"
        )
    for name in names:
        if name.startswith("p:"):
            raise InputError(
                f"{table.source}: column {name!r} has probabilities but there is no column 'agent'; "
                "write task,agent,label,p:<class>"
            )
        if _plain_name(name) in _NO_AGENT:
            true = _plain_name(name) in _TRUE | _LABEL | {"label"}
            raise InputError(
                f"{table.source}: column {name!r} is {'a label or the truth' if true else 'about the tasks'} by its "
                f"name, and no agent; {f'name the truth with truth_col={name}, ' if true else ''}"
                f"leave it out with drop={name}, or rename it"
            )
    _refuse_unique(table, names, reading)
    return tuple(names)


def _refuse_unique(table: Table, names: Sequence[str], reading: Reading) -> None:
    """Refuse columns in which nearly every cell is another, which nobody else says: ids, times, scores, prose."""
    held = {name: table.columns[name] for name in names}
    unique = [name for name, column in held.items() if is_unique(column)]
    if not unique or reading.classes is not None:
        return
    everywhere = Counter(chain.from_iterable(column.texts for column in held.values()))
    strange = [
        name for name in unique
        if 2 * sum(everywhere[text] > 1 for text in held[name].texts) < len(held[name].texts)
    ]  # fmt: skip
    if strange and len(strange) == len(names):
        refuse_classes(table.source, len(everywhere), len(table), strange[0], reading)
    if strange:
        shown = next(iter(held[strange[0]].texts))
        raise InputError(
            f"{table.source}: column {strange[0]!r} has {len(held[strange[0]].texts):,} different texts in "
            f"{len(table):,} rows, such as {shown[:40]!r}, and is no agent; leave it out with drop={strange[0]}"
        )


def is_unique(column: Column) -> bool:
    """Whether nearly every cell is another, and cells are enough to tell."""
    return len(column.texts) >= max(_ENOUGH, 0.9 * int((column.codes >= 0).sum()))


def refuse_classes(source: str, count: int, tasks: int, column: str, reading: Reading) -> None:
    """Refuse labels that are not a few."""
    raise InputError(
        f"{source}: too many classes: {count:,} distinct labels on {tasks:,} tasks; is `{column}` a number rather than "
        f"a label? leave it out with drop=, name the labels with classes=, or raise max_classes={reading.max_classes}"
    )


def _stranger_notes(table: Table, agents: Sequence[str]) -> Iterator[str]:
    """A word on columns that share no label with any other."""
    if len(agents) < 3 or len(table) < _ENOUGH:
        return
    everywhere = Counter(chain.from_iterable(table.columns[name].texts for name in agents))
    for name in agents:
        texts = table.columns[name].texts
        if texts and all(everywhere[text] == 1 for text in texts):
            yield f"column {name!r} shares no label with the others ({some(texts, 3)}): if it is no agent, drop={name}"


def truth_columns(table: Table, reading: Reading) -> tuple[str, str]:
    """The columns of task and label of a truth file; those chosen for the reports count where it has them."""
    chosen = [name if name in table.columns else None
              for name in (reading.task_col, reading.truth_col or reading.label_col)]  # fmt: skip
    here = replace(reading, task_col=chosen[0], label_col=chosen[1], agent_col=None, truth_col=None)
    kept, _ = kept_columns(table, here)
    task = task_column(table.source, kept, here, TRUTH)
    rest = [name for name in kept if name != task]
    label = _column_called(table.source, rest, chosen[1], "truth_col", ("label",), _TRUE | _LABEL)
    if label is None or len(rest) > 1:
        raise InputError(
            f"{table.source}: columns {some(table.columns)}; expected {TRUTH} for truth: "
            "name the label with truth_col=, leave others out with drop="
        )
    return task, label
