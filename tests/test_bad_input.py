"""Every wrong file and option gets one sentence and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from verax.cli import app

VERAX = str(Path(sys.executable).parent / "verax")

LONG = "task,agent,label\nt1,ann,cat\nt2,ann,dog\nt3,ann,cat\nt1,bob,cat\nt2,bob,dog\nt3,bob,dog\n"
ANN = "task,agent,label\nt1,ann,cat\nt2,ann,dog\nt3,ann,cat\n"
BOB = "task,agent,label\nt1,bob,cat\nt2,bob,dog\nt3,bob,dog\n"
WIDE = "task,ann,bob\nt1,cat,cat\nt2,dog,dog\nt3,cat,dog\n"
ROWS = (
    "task,agent,p:cat,p:dog\n"
    "t1,ann,0.9,0.1\nt2,ann,0.2,0.8\nt3,ann,0.6,0.4\nt1,bob,0.7,0.3\nt2,bob,0.1,0.9\nt3,bob,0.3,0.7\n"
)
BOTH = "task,agent,label,p:cat,p:dog\nt1,ann,cat,0.9,0.1\nt2,ann,dog,0.2,0.8\nt1,bob,cat,0.7,0.3\nt2,bob,dog,0.1,0.9\n"
TRUTH = "task,label\nt1,cat\nt2,dog\nt3,cat\n"
LABELS = [[0, 1, 0], [0, 1, 1]]
PROBABILITIES = [[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [[0.7, 0.3], [0.1, 0.9], [0.3, 0.7]]]


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **{name: np.asarray(array) for name, array in arrays.items()})
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


def parquet(**columns):
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def rows_npz(first):
    """Probabilities as an NPZ, with this as their first row."""
    rows = np.array(PROBABILITIES)
    rows[0, 0] = first
    return npz(probabilities=rows)


def parquet_of_bytes():
    """A Parquet file whose text is not UTF-8, which its reader finds out late."""
    buffers = pa.array([b"t1", b"t\xff", b"t3"], pa.binary()).buffers()
    return parquet(task=pa.Array.from_buffers(pa.string(), 3, buffers), ann=["cat", "dog", "cat"])


@dataclass(frozen=True)
class Case:
    """Arguments of `verax score`, the files they need beside the good ones, and what the sentence must say."""

    name: str
    arguments: str
    says: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)


def beside(option, file, name, content, says, rest="r.csv"):
    """A case of one wrong file, given to an option."""
    return Case(name, f"{rest} {option} {file}", says, {file: content})


def csv(name, content, says, options=""):
    return Case(f"CSV: {name}", f"bad.csv {options}", says, {"bad.csv": content})


def array(name, says, options="", **arrays):
    return Case(f"NPZ: {name}", f"bad.npz {options}", says, {"bad.npz": npz(**arrays)})


GOOD = {"r.csv": LONG, "rows.csv": ROWS, "r.npz": npz(labels=LABELS), "truth.csv": TRUTH}

TEXT = [
    csv("empty file", "", "bad.csv: the file is empty"),
    csv("nothing but blank lines", "\n\n  \n", "bad.csv: the file is empty"),
    csv("header only", "task,agent,label\n", "bad.csv: a header and no rows"),
    csv("binary junk", bytes(range(256)) * 4, "bad.csv, line 2: not UTF-8 text"),
    csv("NUL bytes only", b"\0" * 100, "bad.csv, line 1: a NUL byte"),
    csv("NUL byte in a name", LONG.replace("ann", "a\0nn"), "bad.csv, line 2: a NUL byte"),
    csv("NUL byte in a label", LONG.replace("dog", "d\0g"), "bad.csv, line 3: a NUL byte"),
    csv("control character in a name", LONG.replace("ann", "a\x07nn"), "agent name 'a\\x07nn'"),
    csv("latin-1", LONG.replace("ann", "Zoë").encode("latin-1"), "bad.csv, line 2: not UTF-8 text"),
    csv(
        "latin-1 far down",
        b"task,agent,label\n" + b"".join(b"t%d,ann,cat\n" % i for i in range(9000)) + b"t,Zo\xeb,dog\n",
        "bad.csv, line 9002: not UTF-8 text",
    ),
    csv("UTF-16", LONG.encode("utf-16"), "bad.csv, line 1: not UTF-8 text"),
    csv("wrong columns", "name,user,answer\n1,ann,cat\n", "no column 'task' among 'name', 'user', 'answer'"),
    csv("two columns for the task", "id,question,ann\n1,a,cat\n", "'id', 'question' could each be the task"),
    csv("stars for commas", LONG.replace(",", "*"), "no column 'task' among 'task*agent*label'"),
    csv("no task column", "agent,label\nann,cat\n", "bad.csv: no column 'task' among 'agent', 'label'"),
    csv("a task column only", "task\nt1\nt2\n", "bad.csv: columns 'task' name no agent"),
    csv("no agent column", TRUTH, "bad.csv: columns 'task', 'label' name no agent"),
    csv("no label column", "task,agent\nt1,ann\n", "bad.csv: no column 'label'"),
    csv("a column too many", "task,agent,label,time\nt1,ann,cat,5\n", "column 'time' is not understood"),
    csv("agent and worker", "task,agent,worker,label\nt1,a,w,cat\n", "column 'worker' is not understood"),
    csv("duplicate column", "task,ann,ann\nt1,cat,cat\n", "bad.csv: column 'ann' appears twice"),
    csv("nameless column", ",task,ann\nx,t1,cat\n", "bad.csv: column 1 has no name"),
    csv("ragged row", WIDE + "t4,cat\n", "bad.csv, row 5: the number of cells is 2, but the header has 3"),
    csv("ragged row after blank lines", "\n" + WIDE + "\n\nt4,cat\n", "bad.csv, row 8: the number of cells is 2"),
    csv("unquoted comma in a label", WIDE + "t4,cat,small,dog\n", "quote commas inside a cell"),
    csv("empty task", LONG + ",ann,cat\n", "bad.csv, row 8: column 'task' is empty"),
    csv("empty agent", LONG + "t4,,cat\n", "bad.csv, row 8: column 'agent' is empty"),
    csv("duplicate (task, agent)", LONG + "t2,ann,cat\n", "bad.csv, row 8: agent 'ann' reports task 't2' a second"),
    csv("duplicate task", WIDE + "\nt2,cat,cat\n", "bad.csv, row 6: task 't2' appears a second time"),
    csv("huge cell", f"{LONG}t4,ann,{'x' * 20_000}\n", "bad.csv, line 8: a cell is longer than 10000 characters"),
    csv("unclosed quote", LONG + 't4,ann,"cat\n', "bad.csv, line 8: unexpected end of data"),
    csv("text after a quote", LONG + 't4,ann,"cat"s\n', "bad.csv, line 8: ',' expected after '\"'"),
    csv("one class", "task,ann,bob\nt1,cat,cat\nt2,cat,cat\n", "only 1 class"),
    csv("no label at all", "task,ann,bob\nt1,,\nt2,,\n", "only 0 class"),
    csv("one task", "task,ann,bob\nt1,cat,dog\n", "bad.csv: only 1 task"),
    csv("one agent and no truth", ANN, "only one agent"),
    csv("no common tasks", "task,ann,bob\nt1,cat,\nt2,dog,\nt3,,cat\nt4,,dog\n", "no agent can be scored"),
    csv("one common task", "task,ann,bob\nt1,cat,cat\nt2,dog,\nt3,,cat\n", "no agent can be scored"),
    csv(
        "p: columns and no agent", "task,p:cat,p:dog\nt1,0.5,0.5\n", "'p:cat' has probabilities but there is no column"
    ),
    csv("p: column of no class", ROWS.replace("p:cat", "p:"), "bad.csv: class name ''"),
    csv("two p: columns of a class", ROWS.replace("p:cat", "p: dog"), "bad.csv: class 'dog' appears twice"),
    csv("label of no p: column", BOTH.replace("ann,cat", "ann,cow"), "row 2: agent 'ann' has the unknown label 'cow'"),
    csv(
        "label and blank probabilities",
        BOTH.replace("0.9,0.1", ","),
        "bad.csv, row 2: column 'p:cat' is empty; expected a number",
    ),
    csv(
        "probability of text",
        ROWS.replace("0.9,0.1", "high,low"),
        "row 2: column 'p:cat' has 'high'; expected a number",
    ),
    csv("NaN", ROWS.replace("0.9,0.1", "nan,nan"), "bad.csv: agent 'ann', task 't1' has the probability nan"),
    csv("infinity", ROWS.replace("0.9,0.1", "0.9,inf"), "bad.csv: agent 'ann', task 't1' has the probability inf"),
    csv("negative", ROWS.replace("0.9,0.1", "1.1,-0.1"), "agent 'ann', task 't1' has the negative probability -0.1"),
    csv("sum above 1", ROWS.replace("0.9,0.1", "0.9,0.3"), "'ann', task 't1' has probabilities that sum to 1.2"),
    csv("percentages", ROWS.replace("0.9,0.1", "90,10"), "'ann', task 't1' has probabilities that sum to 100"),
    csv("sum overflows", ROWS.replace("0.9,0.1", "1e308,1e308"), "'ann', task 't1' has probabilities that sum to inf"),
    csv("unknown label", LONG, "bad.csv, row 3: agent 'ann' has the unknown label 'dog'", "--classes cat,cow"),
    csv("unknown label in wide", WIDE, "bad.csv, row 3: agent 'ann' has the unknown label 'dog'", "--classes cat,cow"),
    csv("classes that are not the p: columns", ROWS, "bad.csv: p: columns 'cat', 'dog'", "--classes cat,cow"),
]

ARRAYS = [
    Case("NPZ: not a zip", "bad.npz", "bad.npz: not a NumPy file of plain arrays", {"bad.npz": LONG}),
    Case("NPZ: empty file", "bad.npz", "bad.npz: not a NumPy file of plain arrays", {"bad.npz": b""}),
    Case("NPZ: half a file", "bad.npz", "bad.npz: not a NumPy file", {"bad.npz": npz(labels=LABELS)[:150]}),
    Case("NPZ: a single array", "bad.npz", "bad.npz: a single array", {"bad.npz": npy(LABELS)}),
    array("pickled objects", "bad.npz: not a NumPy file of plain arrays", labels=np.array([[0, "a"]], dtype=object)),
    array("unknown array", "bad.npz: array 'votes' is not understood", votes=LABELS),
    array("no reports", "bad.npz: neither labels nor probabilities", agents=["ann"]),
    array("labels of one dimension", "bad.npz: labels have shape (3,)", labels=[0, 1, 0]),
    array("float labels", "bad.npz: labels have shape (2, 3) and type float64", labels=np.array(LABELS, float)),
    array("text labels", "bad.npz: labels have shape (1, 2) and type <U3", labels=[["cat", "dog"]]),
    array("no agents", "bad.npz: no agent", labels=np.zeros((0, 3), int), classes=["cat", "dog"]),
    array("no tasks", "bad.npz: only 0 task", labels=np.zeros((2, 0), int), classes=["cat", "dog"]),
    array("label out of range", "agent '0', task '1' has label 1; expected 0", labels=LABELS, classes=["cat"]),
    array("label below -1", "agent '0', task '1' has label -2", labels=[[0, -2, 1], [0, 1, 1]]),
    array("agent names that do not match", "bad.npz: 3 agent names for 2", labels=LABELS, agents=["a", "b", "c"]),
    array("task names that do not match", "bad.npz: 2 task names for 3", labels=LABELS, tasks=["s", "t"]),
    array("class names that do not match", "bad.npz: ", probabilities=PROBABILITIES, classes=["cat"]),
    array("duplicate agent", "bad.npz: agent 'ann' appears twice", labels=LABELS, agents=["ann", "ann"]),
    array("nameless task", "bad.npz: task name ''", labels=LABELS, tasks=["s", "", "t"]),
    array("names in a matrix", "bad.npz: array 'agents' has shape (1, 2)", labels=LABELS, agents=[["a", "b"]]),
    array("a name in place of names", "bad.npz: array 'agents' has shape ()", labels=LABELS, agents="ann"),
    array("names of bytes not UTF-8", "bad.npz: array 'agents' has a name", labels=LABELS, agents=[b"\xff", b"b"]),
    array(
        "other classes than given",
        "bad.npz: its classes are 'x', 'y'",
        "--classes a,b",
        labels=LABELS,
        classes=["x", "y"],
    ),
    array(
        "probabilities of two dimensions", "bad.npz: probabilities have shape (3, 2)", probabilities=PROBABILITIES[0]
    ),
    array("probabilities of text", "bad.npz: probabilities have shape (1, 1, 2)", probabilities=[[["high", "low"]]]),
    array("probabilities of no class", "bad.npz: ", probabilities=np.zeros((2, 3, 0))),
    array("labels beside other probabilities", "bad.npz: ", labels=[[0, 1]], probabilities=PROBABILITIES),
    Case("NPZ: NaN", "bad.npz", "agent '0', task '0' has the probability nan", {"bad.npz": rows_npz([np.nan, 1])}),
    Case("NPZ: infinity", "bad.npz", "agent '0', task '0' has the probability inf", {"bad.npz": rows_npz([np.inf, 0])}),
    Case("NPZ: negative", "bad.npz", "task '0' has the negative probability -1", {"bad.npz": rows_npz([2, -1])}),
    Case("NPZ: sum above 1", "bad.npz", "task '0' has probabilities that sum to 1.5", {"bad.npz": rows_npz([1, 0.5])}),
    Case("NPZ: sum of 0", "bad.npz", "task '0' has probabilities that sum to 0", {"bad.npz": rows_npz([0, 0])}),
    Case("NPZ: sum overflows", "bad.npz", "probabilities that sum to inf", {"bad.npz": rows_npz([1e308, 1e308])}),
    array("truth of wrong length", "bad.npz", labels=LABELS, truth=[0, 1]),
    array("truth of text", "bad.npz", labels=LABELS, truth=["a", "b", "a"]),
    array("truth out of range", "bad.npz", labels=LABELS, truth=[0, 1, 2], classes=["a", "b"]),
    array("public signal of wrong length", "bad.npz: public has ", labels=LABELS, public=[0, 1]),
    array("public signal of no length", "bad.npz: public has ", labels=LABELS, public=1),
    array("public signal of text", "public signal", labels=LABELS, public=["a", "b", "a"]),
    Case("NPY as reports", "bad.npy", "bad.npy: reports need names for their arrays", {"bad.npy": npy(LABELS)}),
]

TABLES = [
    Case("Parquet: junk", "bad.parquet", "bad.parquet: cannot be read as Parquet", {"bad.parquet": b"PAR1" * 9}),
    Case("Parquet: a CSV", "bad.parquet", "bad.parquet: cannot be read as Parquet", {"bad.parquet": LONG}),
    Case("Parquet: empty file", "bad.parquet", "bad.parquet: cannot be read as Parquet", {"bad.parquet": b""}),
    Case("Parquet: not UTF-8", "bad.parquet", "bad.parquet: cannot be read", {"bad.parquet": parquet_of_bytes()}),
    Case("Parquet: no rows", "bad.parquet", "a header and no rows", {"bad.parquet": parquet(task=[], ann=[])}),
    Case("Parquet: no task", "bad.pq", "bad.pq: no column 'task' among 'ann'", {"bad.pq": parquet(ann=["cat"])}),
    Case(
        "Parquet: duplicate (task, agent)",
        "bad.parquet",
        "bad.parquet, row 3: agent 'ann' reports task '1' a second time",
        {"bad.parquet": parquet(task=[1, 2, 1], agent=["ann"] * 3, label=["cat", "dog", "cat"])},
    ),
]

TRUTHS = [
    beside("--truth", "bad.csv", "truth: empty file", "", "bad.csv: the file is empty; expected task,label"),
    beside(
        "--truth",
        "bad.csv",
        "truth: wrong columns",
        "name,label\nt1,cat\n",
        "bad.csv: no column 'task' among 'name', 'label'; expected task,label",
    ),
    beside(
        "--truth",
        "bad.csv",
        "truth: columns too many",
        LONG,
        "bad.csv: columns 'task', 'agent', 'label'; expected task,label",
    ),
    beside(
        "--truth",
        "bad.csv",
        "truth: no common tasks",
        "task,label\nu1,cat\nu2,dog\n",
        "bad.csv: none of its 2 tasks is in the reports",
    ),
    beside(
        "--truth",
        "bad.csv",
        "truth: no label",
        "task,label\nt1,\nt2,\n",
        "bad.csv: column 'label' is empty in every row",
    ),
    beside(
        "--truth",
        "bad.csv",
        "truth: duplicate task",
        TRUTH + "t2,dog\n",
        "bad.csv, row 5: task 't2' appears a second time",
    ),
    beside(
        "--truth",
        "bad.csv",
        "truth: duplicate task, first unknown",
        "task,label\nt1,\nt1,cat\n",
        "bad.csv, row 3: task 't1' appears a second time",
    ),
    beside(
        "--truth",
        "bad.csv",
        "truth: unknown label",
        TRUTH.replace("dog", "cow"),
        "bad.csv: task 't2' has the unknown label 'cow'",
        "r.csv --classes cat,dog",
    ),
    beside(
        "--truth",
        "bad.csv",
        "truth: label of no p: column",
        TRUTH.replace("dog", "cow"),
        "bad.csv: task 't2' has the unknown label 'cow'",
        "rows.csv",
    ),
    beside(
        "--truth",
        "bad.npy",
        "truth: NPY beside CSV",
        npy([0, 1, 0]),
        "bad.npy: an NPY file goes in the task order of an NPZ",
    ),
    beside("--truth", "bad.npy", "truth: NPY of wrong length", npy([0, 1]), "bad.npy: truth of shape (2,)", "r.npz"),
    beside(
        "--truth",
        "bad.npy",
        "truth: NPY of floats",
        npy([0.0, 1.0, 0.0]),
        "bad.npy: truth of shape (3,) and type float64",
        "r.npz",
    ),
    beside("--truth", "bad.npy", "truth: NPY below -1", npy([0, 1, -2]), "bad.npy: unknown label -2", "r.npz"),
    beside(
        "--truth",
        "bad.npy",
        "truth: NPY below -1 and with a new class",
        npy([0, 5, -2]),
        "bad.npy: unknown label -2",
        "r.npz",
    ),
    beside("--truth", "bad.npy", "truth: NPY that is no NPY", "t1,cat", "bad.npy: not a NumPy file", "r.npz"),
    beside("--truth", "bad.npy", "truth: NPY that is an NPZ", npz(truth=[0, 1, 0]), "bad.npy: several arrays", "r.npz"),
    beside(
        "--truth",
        "bad.npz",
        "truth: NPZ",
        npz(truth=[0, 1, 0]),
        "bad.npz: an NPZ is for reports; expected task,label",
        "r.npz",
    ),
    Case(
        "truth: one task with a truth",
        "ann.csv --truth bad.csv",
        "no agent can be scored",
        {"ann.csv": ANN, "bad.csv": "task,label\nt1,cat\n"},
    ),
]

PUBLIC = [
    beside("--public", "bad.csv", "public: empty file", "", "bad.csv: the file is empty"),
    beside("--public", "bad.csv", "public: task column only", "task\nt1\nt2\nt3\n", "bad.csv: only a column 'task'"),
    beside(
        "--public",
        "bad.csv",
        "public: a task is missing",
        "task,label\nt1,a\nt2,b\n",
        "bad.csv: task 't3' (1 in all) has no public signal",
    ),
    beside(
        "--public",
        "bad.csv",
        "public: blank stratum",
        "task,label\nt1,a\nt2,\nt3,a\n",
        "bad.csv, row 3: column 'label' is empty",
    ),
    beside(
        "--public",
        "bad.csv",
        "public: duplicate task",
        "task,label\nt1,a\nt1,b\nt2,b\nt3,a\n",
        "bad.csv, row 3: task 't1' appears a second time",
    ),
    beside(
        "--public",
        "bad.csv",
        "public: no number",
        "task,x\nt1,1\nt2,red\nt3,2\n",
        "bad.csv, row 3: column 'x' has 'red'; expected a number",
    ),
    beside(
        "--public",
        "bad.csv",
        "public: NaN",
        "task,x\nt3,1\nt2,nan\nt1,2\n",
        "bad.csv, row 3: column 'x' has nan; expected a finite number",
    ),
    beside(
        "--public",
        "bad.csv",
        "public: infinity",
        "task,x,y\nt1,1,2\nt2,2,inf\nt3,2,2\n",
        "bad.csv, row 3: column 'y' has inf",
    ),
    beside(
        "--public", "bad.npy", "public: NPY beside CSV", npy([0, 1, 0]), "bad.npy: an NPY file goes in the task order"
    ),
    beside(
        "--public",
        "bad.npy",
        "public: NPY of wrong length",
        npy([0, 1]),
        "bad.npy: public has shape (2,) for 3 tasks",
        "r.npz",
    ),
    beside(
        "--public", "bad.npy", "public: NPY of no length", npy(1), "bad.npy: public has shape () for 3 tasks", "r.npz"
    ),
    beside(
        "--public",
        "bad.npy",
        "public: negative strata",
        npy([0, -1, 0]),
        "public signal of strata has a negative number",
        "r.npz",
    ),
    beside(
        "--public",
        "bad.npy",
        "public: NPY with NaN",
        npy([0.5, np.nan, 0]),
        "public signal is not a finite number",
        "r.npz",
    ),
    beside(
        "--public",
        "bad.npy",
        "public: NPY of text",
        npy(["a", "b", "a"]),
        "public signal has shape (3,) and type <U1",
        "r.npz",
    ),
    beside(
        "--public", "bad.npy", "public: NPY that is an NPZ", npz(public=[0, 1, 0]), "bad.npy: several arrays", "r.npz"
    ),
    beside("--public", "bad.npz", "public: NPZ", npz(public=[0, 1, 0]), "bad.npz: an NPZ is for reports", "r.npz"),
    beside(
        "--public",
        "x.csv",
        "pmi with features",
        "task,x\nt1,1\nt2,2\nt3,5\n",
        "rule pmi cannot take out public features",
        "rows.csv --rule pmi",
    ),
    beside(
        "--public",
        "s.csv",
        "accuracy with a public signal",
        TRUTH,
        "rule accuracy cannot take out a public signal",
        "r.csv --truth truth.csv --rule accuracy",
    ),
]

SEVERAL = [
    Case(
        "the same agent and task in two files",
        "r.csv b.csv",
        "b.csv: agent 'bob' reports task 't1' in two files",
        {"b.csv": BOB},
    ),
    Case("a file twice", "r.csv r.csv", "r.csv: agent 'ann' reports task 't1' in two files"),
    Case(
        "probabilities beside labels",
        "rows.csv ann.csv",
        "ann.csv: some reports have probabilities and some only labels",
        {"ann.csv": ANN},
    ),
    Case(
        "different p: columns",
        "rows.csv b.csv",
        "b.csv: the reports have different classes",
        {"b.csv": "task,agent,p:cat,p:cow\nt1,cid,1,0\nt2,cid,0,1\n"},
    ),
    Case(
        "different classes in two NPZ",
        "x.npz y.npz",
        "y.npz: the reports have different classes",
        {
            "x.npz": npz(labels=LABELS, classes=["cat", "dog"]),
            "y.npz": npz(labels=LABELS, classes=["cat", "cow"], agents=["c", "d"]),
        },
    ),
    Case(
        "labels outside the classes of an NPZ",
        "r.csv y.npz",
        "y.npz: the label 'dog' is outside the classes 'cat', 'cow'",
        {"y.npz": npz(labels=LABELS, classes=["cat", "cow"], agents=["c", "d"])},
    ),
    Case(
        "an NPZ of other classes, first",
        "y.npz r.csv",
        "r.csv: the label 'dog' is outside the classes 'cat', 'cow'",
        {"y.npz": npz(labels=LABELS, classes=["cat", "cow"], agents=["c", "d"])},
    ),
    Case("the second file is missing", "r.csv b.csv", "b.csv: no such file"),
]

PATHS = [
    Case("missing path", "nowhere.csv", "nowhere.csv: no such file"),
    Case("missing NPZ", "nowhere.npz", "nowhere.npz: no such file"),
    Case("missing Parquet", "nowhere.parquet", "nowhere.parquet: no such file"),
    Case("missing truth", "r.csv --truth nowhere.csv", "nowhere.csv: no such file"),
    Case("missing public signal", "r.csv --public nowhere.csv", "nowhere.csv: no such file"),
    Case("a folder", ".", ".: is a folder"),
    Case("a path through a file", "r.csv/x.csv", "r.csv/x.csv: cannot be read (Not a directory)"),
    Case("a name too long", "x" * 300, "cannot be read (File name too long)"),
    Case("a name of two lines", "'two\nlines.csv'", "no such file"),
    Case("output into a missing folder", "r.csv -o nowhere/s.json", "nowhere/s.json: cannot be written (No such file"),
    Case("output through a file", "r.csv -o r.csv/s.json", "r.csv/s.json: cannot be written (Not a directory)"),
    Case("output over a folder", "r.csv -o .", ".: cannot be written"),
]

LINUX = [
    Case("a file that opens and cannot be read", "/proc/self/mem", "/proc/self/mem: cannot be read"),
    Case("output to a full device", "r.csv -o /dev/full", "/dev/full: cannot be written (No space left on device)"),
]

OPTIONS = [
    Case("ce on labels", "r.csv --rule ce", "rule ce needs probabilities and these reports have labels only"),
    Case("brier on labels", "r.csv --rule brier", "rule brier needs probabilities"),
    Case("no such rule", "r.csv --rule nonsense", "no rule is called 'nonsense'"),
    Case("own rule of no module", "r.csv --rule nowhere:rule", "rule 'nowhere:rule' cannot be loaded"),
    Case("own rule of no function", "r.csv --rule math:nowhere", "rule 'math:nowhere' cannot be loaded"),
    Case("own rule that is no function", "r.csv --rule math:pi", "rule 'math:pi' is not a function"),
    Case("own rule, module not named", "r.csv --rule :rule", "rule ':rule' cannot be loaded"),
    Case("own rule, relative module", "r.csv --rule .near:rule", "rule '.near:rule' cannot be loaded"),
    Case(
        "own rule of broken code",
        "r.csv --rule broken:rule",
        "rule 'broken:rule' cannot be loaded",
        {"broken.py": "def rule(:\n"},
    ),
    Case(
        "own rule whose module fails",
        "r.csv --rule fails:rule",
        "rule 'fails:rule' cannot be loaded",
        {"fails.py": "raise ImportError('one\\ntwo')\n"},
    ),
    Case(
        "own rule that returns no number",
        "r.csv --rule mine:rule",
        "number",
        {"mine.py": "def rule(joint):\n    return 'high'\n"},
    ),
    Case("own rule with a floor", "r.csv --rule math:sqrt --floor 0.1", "a floor goes with ce, pmi and log"),
    Case("accuracy without truth", "r.csv --rule accuracy", "rule accuracy needs the truth"),
    Case("log without truth", "rows.csv --rule log", "rule log needs the truth"),
    Case(
        "accuracy against peers",
        "r.csv --truth truth.csv --rule accuracy --against peers",
        "rule accuracy needs the truth",
    ),
    Case("against truth without truth", "r.csv --against truth", "scoring against truth needs the truth of some tasks"),
    Case("hybrid without truth", "r.csv --against hybrid", "scoring against hybrid needs the truth of some tasks"),
    Case("no such reference", "r.csv --against nonsense", "against is 'nonsense'; choose one of truth, peers, hybrid"),
    Case("median over truth", "r.csv --truth truth.csv --over median", "--over median chooses among peers"),
    Case("no such aggregate", "r.csv --over nonsense", "over is 'nonsense'"),
    Case("one peer without a seed", "r.csv --over one", "seed"),
    Case("a seed without one peer", "r.csv --seed 7", "seed"),
    Case("sign with zero-one", "r.csv --sign split", "--sign goes with rule ca only"),
    Case("no such sign", "r.csv --rule ca --sign nonsense", "sign is 'nonsense', neither one of"),
    Case("a folder as sign", "r.csv --rule ca --sign .", ".: is a folder"),
    beside("--sign", "s.csv", "sign of no rows", "cat,dog\n", "s.csv: 0 rows for 2 classes", "r.csv --rule ca"),
    beside("--sign", "s.csv", "sign of nothing", "", "s.csv: the file is empty", "r.csv --rule ca"),
    beside(
        "--sign", "s.csv", "sign of wrong shape", "cat,dog\n1,0\n", "s.csv: 1 rows for 2 classes", "r.csv --rule ca"
    ),
    beside(
        "--sign",
        "s.csv",
        "sign of wrong header",
        "cat,cow\n1,0\n0,1\n",
        "s.csv: header 'cat', 'cow'; expected the classes 'cat', 'dog'",
        "r.csv --rule ca",
    ),
    beside(
        "--sign",
        "s.csv",
        "sign above 1",
        "cat,dog\n2,0\n0,1\n",
        "sign matrix has an entry outside [0, 1]",
        "r.csv --rule ca",
    ),
    beside(
        "--sign",
        "s.csv",
        "sign below 0",
        "cat,dog\n1,-1\n0,1\n",
        "sign matrix has an entry outside [0, 1]",
        "r.csv --rule ca",
    ),
    beside(
        "--sign",
        "s.csv",
        "sign of NaN",
        "cat,dog\n1,nan\n0,1\n",
        "sign matrix has an entry outside [0, 1]",
        "r.csv --rule ca",
    ),
    beside(
        "--sign",
        "s.csv",
        "sign of text",
        "cat,dog\nyes,no\nno,yes\n",
        "s.csv, row 2: column 'cat' has 'yes'; expected a number",
        "r.csv --rule ca",
    ),
    Case("floor with zero-one", "r.csv --floor 0.01", "rule zero-one has no floor"),
    Case("floor of 0", "rows.csv --rule ce --floor 0", "the floor is 0.0; give a number above 0 and below 0.5"),
    Case("floor of 0.5", "rows.csv --rule ce --floor 0.5", "the floor is 0.5"),
    Case("negative floor", "rows.csv --rule pmi --floor -1", "the floor is -1"),
    Case("floor of NaN", "rows.csv --rule ce --floor nan", "the floor is nan"),
    Case("no classes", "r.csv --classes ''", "--classes names no class"),
    Case("classes with a gap", "r.csv --classes cat,,dog", "--classes: class name ''"),
    Case("classes named twice", "r.csv --classes cat,dog,cat", "--classes: class 'cat' appears twice"),
    Case("a single class", "r.csv --classes cat", "unknown label 'dog'"),
    Case("classes on two lines", "r.csv --classes 'cat\rdog'", "--classes"),
]

CASES = TEXT + ARRAYS + TABLES + TRUTHS + PUBLIC + SEVERAL + PATHS + OPTIONS + LINUX * (sys.platform == "linux")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    fill(tmp_path, GOOD)
    return tmp_path


def fill(folder, files):
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def in_process(arguments):
    result = CliRunner().invoke(app, ["score", *arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def as_command(arguments, **how):
    done = subprocess.run([VERAX, "score", *arguments], capture_output=True, text=True, timeout=60, **how)
    return done.returncode, done.stdout, done.stderr


def assert_refuses(run, case, folder, *options):
    fill(folder, case.files)
    before = contents(folder)
    arguments = shlex.split(case.arguments)
    for more in options or [""]:
        code, stdout, stderr = run(arguments + shlex.split(more))
        assert "Traceback" not in stderr
        assert len(stderr.splitlines()) == 1, stderr
        assert case.says in stderr
        assert stderr.startswith("verax: ")
        assert code == 2
        assert stdout == ""
        assert contents(folder) == before


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_wrong_input_gets_one_sentence_and_leaves_nothing_behind(case, folder):
    assert_refuses(in_process, case, folder, "", "--json", *["-o new.json"] * ("-o" not in case.arguments))


REAL = ("CSV: empty file", "NPZ: sum overflows", "Parquet: junk", "a name of two lines", "ce on labels", "floor of 0")


@pytest.mark.parametrize("case", [case for case in CASES if case.name in REAL], ids=lambda case: case.name)
def test_the_installed_command_refuses_in_the_same_way(case, folder):
    assert_refuses(as_command, case, folder, "-o new.json")


def test_the_table_holds_every_case_once():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names)) >= 60
    assert set(REAL) <= set(names)


def test_a_refusal_leaves_an_older_result_as_it_was(folder):
    (folder / "old.json").write_text("old")
    code, _, _ = in_process(["r.csv", "--rule", "ce", "-o", "old.json"])
    assert code == 2
    assert (folder / "old.json").read_text() == "old"


def test_parquet_without_its_extra_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    case = Case("", "r.parquet", "pip install 'verax[parquet]'", {"r.parquet": parquet(task=["t1"], ann=["cat"])})
    assert_refuses(in_process, case, folder)


@pytest.mark.parametrize("arguments", ["", "r.csv --nonsense", "r.csv --floor high", "r.csv --truth"])
def test_a_command_line_that_cannot_be_parsed_is_a_usage_error(arguments, folder):
    before = contents(folder)
    code, stdout, stderr = in_process(shlex.split(arguments))
    assert code == 2
    assert stdout == ""
    assert "Traceback" not in stderr
    assert contents(folder) == before


@pytest.mark.parametrize("format", [[], ["--json"]], ids=["table", "json"])
def test_a_closed_pipe_is_said_in_one_sentence(format, folder):
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "wb") as closed:
        done = subprocess.run([VERAX, "score", "r.csv", *format], stdout=closed, stderr=subprocess.PIPE, text=True)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "standard output" in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("target", ["&-", "/dev/full"])
@pytest.mark.parametrize("format", ["", "--json"], ids=["table", "json"])
def test_an_output_that_cannot_be_written_is_said_in_one_sentence(format, target, folder):
    if target == "/dev/full" and not Path(target).exists():
        pytest.skip("this system has no /dev/full")
    command = f"{shlex.quote(VERAX)} score r.csv {format} >{target}"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode == 2


def within_1_gib():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


@pytest.mark.parametrize(
    "case",
    [
        array("huge label", "bad.npz: ", labels=[[0, 10**12, 1], [0, 1, 1]]),
        beside("--truth", "bad.npy", "truth: huge label", npy([0, 10**12, 1]), "bad.npy: ", "r.npz"),
    ],
    ids=lambda case: case.name,
)
def test_a_huge_label_is_refused_by_name_and_not_counted_up_to(case, folder):
    fill(folder, case.files)
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # each thread reserves address space
    code, stdout, stderr = as_command(shlex.split(case.arguments), preexec_fn=within_1_gib, env=one_thread)
    assert (code, stdout, len(stderr.splitlines())) == (2, "", 1)
    assert case.says in stderr
    assert str(10**12) in stderr


def document(*arguments):
    code, stdout, stderr = in_process([*arguments, "--json"])
    assert (code, stderr) == (0, "")
    return json.loads(stdout)


SAME = {
    "BOM": "\ufeff" + LONG,
    "CRLF": LONG.replace("\n", "\r\n"),
    "CR": LONG.replace("\n", "\r"),
    "no newline at the end": LONG.rstrip("\n"),
    "blank lines": "\n" + LONG.replace("t3", "\nt3") + "\n  \n,,\n\n",
    "blanks around cells": LONG.replace(",", " ,\t "),
    "every cell quoted": "".join(",".join(f'"{cell}"' for cell in row.split(",")) + "\n" for row in LONG.split()),
    "worker in place of agent": LONG.replace("agent", "worker"),
    "other order of columns": "".join(",".join(reversed(row.split(","))) + "\n" for row in LONG.split()),
    "wide": WIDE,
    "semicolons": LONG.replace(",", ";"),
    "tabs": LONG.replace(",", "\t"),
    "other names of columns": LONG.replace("task,agent,label", "item_id,Model,Prediction"),
    "pandas's index": "".join(f"{i - 1 if i else ''},{row}\n" for i, row in enumerate(LONG.split())),
    "blank label for an abstention": LONG + "t1,cid,\n",
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_these_ways_to_write_a_file_make_no_difference(text, folder):
    (folder / "other.csv").write_bytes(text.encode())
    plain, other = document("r.csv"), document("other.csv")
    same = [score for score in other["scores"] if score["agent"] != "cid"]
    for one, two in zip(same, plain["scores"], strict=True):
        assert one == two | {"stderr": pytest.approx(two["stderr"], rel=1e-12)}
    assert (other["tasks"], other["classes"]) == (plain["tasks"], plain["classes"])


def test_labels_beside_probabilities_score_as_labels_alone(folder):
    header, *rows = LONG.split()
    both = [f"{header},p:cat,p:dog", *(f"{row},{'0.4,0.6' if 'cat' in row else '0.5,0.5'}" for row in rows)]
    (folder / "both.csv").write_text("\n".join(both))
    both, alone = document("both.csv"), document("r.csv")
    assert both.pop("warnings") == ["in 6 of 6 rows the label is not the most probable one: label rules use it"]
    assert alone.pop("warnings") == []
    assert both == alone


def test_a_blank_label_beside_probabilities_is_their_largest(folder):
    (folder / "both.csv").write_text(BOTH)
    (folder / "blank.csv").write_text(BOTH.replace("ann,dog", "ann,"))
    assert document("blank.csv") == document("both.csv")


@pytest.mark.parametrize("label", ["cat, small", 'the "cat"', "cat\nsmall", "cat\r\nsmall", "猫", "p:cat"])
def test_a_quoted_label_may_hold_anything(label, folder):
    quoted = '"' + label.replace('"', '""') + '"'
    (folder / "quoted.csv").write_bytes(LONG.replace("cat", quoted).encode())
    plain, found = document("r.csv"), document("quoted.csv")
    assert sorted(found["classes"]) == sorted(["dog", label])
    assert found["scores"] == plain["scores"]


def test_labels_that_are_integers_stand_in_numeric_order(folder):
    (folder / "digits.csv").write_text(LONG.replace("cat", "10").replace("dog", "9"))
    found = document("digits.csv")
    assert found["classes"] == ["9", "10"]
    assert found["scores"] == document("r.csv")["scores"]


def test_classes_may_be_quoted_to_hold_a_comma(folder):
    (folder / "comma.csv").write_text(LONG.replace("cat", '"a,b"').replace("dog", "c"))
    found = document("comma.csv", "--classes", ' "a,b" , c, d'.strip())
    assert found["classes"] == ["a,b", "c", "d"]
    assert found["scores"] == document("r.csv")["scores"]


def test_files_side_by_side_score_as_one(folder):
    fill(folder, {"ann.csv": ANN, "bob.csv": BOB})
    assert document("ann.csv", "bob.csv") == document("r.csv")


def test_a_file_of_one_task_is_enough_among_others(folder):
    fill(folder, {"t1.csv": "task,ann,bob\nt1,cat,cat\n", "rest.csv": "task,ann,bob\nt2,dog,dog\nt3,cat,dog\n"})
    assert document("t1.csv", "rest.csv") == document("r.csv")


def test_a_file_of_one_class_is_enough_among_others(folder):
    fill(folder, {"cid.csv": "task,agent,label\nt1,cid,cat\nt2,cid,cat\nt3,cid,cat\n"})
    found = document("cid.csv", "r.csv")
    assert found["classes"] == ["cat", "dog"]
    assert found["scores"][0]["score"] == 0.0


def test_the_truth_may_bring_the_second_class(folder):
    fill(folder, {"cid.csv": "task,agent,label\nt1,cid,cat\nt2,cid,cat\nt3,cid,cat\n"})
    found = document("cid.csv", "--truth", "truth.csv")
    assert found["classes"] == ["cat", "dog"]
    assert found["scores"][0]["score"] == 0.0


def test_strata_may_be_any_integers(folder):
    fill(folder, {"small.npy": npy([0, 1, 0]), "large.npy": npy([7, 10**15, 7])})
    assert document("r.npz", "--public", "large.npy") == document("r.npz", "--public", "small.npy")


def test_a_name_that_the_terminal_cannot_show_is_no_failure(folder):
    fill(folder, {"zoe.csv": LONG.replace("ann", "Zoë")})
    code, stdout, stderr = as_command(["zoe.csv"], env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (code, stderr) == (0, "")
    assert "bob" in stdout
