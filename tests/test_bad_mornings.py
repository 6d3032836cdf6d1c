"""Files and values of a bad morning: read as they are meant, refused in one sentence, or said, never wrong unseen."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import zipfile
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pytest
from typer.testing import CliRunner

import verax
from verax import OptionError, Reports
from verax.cli import app

RNG = np.random.default_rng(1)
TASKS = [f"t{i}" for i in range(40)]
AGENTS = ["ann", "bob", "cy"]
WORDS = np.array(["cat", "cow", "dog"])
TRUE = RNG.integers(0, 3, 40)
SAID = np.array([np.where(RNG.random(40) < q, TRUE, RNG.integers(0, 3, 40)) for q in (0.9, 0.8, 0.6)])
ROWS = RNG.dirichlet([1, 1, 1], (3, 40))
WIDE = pd.DataFrame({"task": TASKS, **dict(zip(AGENTS, WORDS[SAID], strict=True))})
NUMBERS = pd.DataFrame({"task": TASKS, **dict(zip(AGENTS, SAID, strict=True))})
LONG = WIDE.melt("task", var_name="agent", value_name="label")
TRUTH = pd.DataFrame({"task": TASKS, "label": WORDS[TRUE]})
PROBABILITIES = pd.DataFrame(
    [(t, a, *ROWS[k, n]) for k, a in enumerate(AGENTS) for n, t in enumerate(TASKS)],
    columns=["task", "agent", "p:cat", "p:cow", "p:dog"],
)


def csv(frame, **how):
    return frame.to_csv(**({"index": False} | how)).encode()


def text(frame=WIDE):
    return csv(frame).decode()


def changed(**columns):
    return csv(WIDE.assign(**columns))


def zipped(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("r.csv", content)
    return file.getvalue()


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def arrow_stream(frame):
    table, file = pa.Table.from_pandas(frame), io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return file.getvalue()


def parquet(frame):
    file = io.BytesIO()
    frame.to_parquet(file)
    return file.getvalue()


def each_agent(ending, content):
    """A folder with a file an agent."""
    return {f"r/{agent}{ending}": content(agent) for agent in AGENTS}


@cache
def clean_scores(*options):
    files = {"r.csv": csv(WIDE), "p.csv": csv(PROBABILITIES), "t.csv": csv(TRUTH)}
    with CliRunner().isolated_filesystem():
        for name, content in files.items():
            with open(name, "wb") as file:
                file.write(content)
        return scores_of(score(*options))


def score(*arguments):
    done = CliRunner().invoke(app, ["score", *arguments, "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def scores_of(done):
    return sorted(s["score"] for s in json.loads(done.stdout)["scores"])


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


# Read as it is meant: the same scores as from a plain file


@dataclass(frozen=True)
class Meant:
    """Files that mean what a plain file does, and what is said of it."""

    name: str
    files: dict
    arguments: str = "r.csv"
    plain: str = "r.csv"
    says: str = ""


MEANT = [
    Meant("a moved pandas index", {"r.csv": csv(WIDE.sample(frac=1, random_state=0), index=True)}, says="counts the"),
    Meant("a moved index in Parquet", {"r.pq": parquet(WIDE.sample(frac=1, random_state=0))}, "r.pq", says="counts"),
    Meant(
        "the tasks as a nameless index",
        {"r.csv": csv(WIDE.set_index("task").rename_axis(None), index=True)},
        says="'Unnamed: 0' as the task",
    ),
    Meant(
        "the tasks as a nameless index in Parquet",
        {"r.pq": parquet(WIDE.set_index("task").rename_axis(None))},
        "r.pq",
        says="'__index_level_0__' as the task",
    ),
    Meant(
        "truth with its tasks as a nameless index",
        {"r.csv": csv(WIDE), "t.csv": csv(TRUTH.set_index("task").rename_axis(None), index=True)},
        "r.csv --truth t.csv",
        "r.csv --truth t.csv",
    ),
    Meant("bars for commas", {"r.csv": text().replace(",", "|")}),
    Meant("a spreadsheet's sep= line", {"r.csv": "sep=;\n" + text().replace(",", ";")}),
    Meant("CR line ends", {"r.csv": text().replace("\n", "\r")}),
    Meant(
        "a trailing delimiter",
        {"r.csv": text().replace("\n", ",\n")},
        says="1 column without a name and a cell left out",
    ),
    Meant("an empty last row", {"r.csv": text() + ",,,\n"}),
    Meant(
        "Task ID, Agent, LABEL",
        {"r.csv": text(LONG).replace("task,agent,label", "Task ID, Agent ,LABEL")},
        says="'Task ID' as the task",
    ),
    Meant("taskId, agentName", {"r.csv": text(LONG).replace("task,agent", "taskId,agentName")}, says="'agentName'"),
    Meant("crowd-kit's names", {"r.csv": csv(LONG.rename(columns={"agent": "worker"}))}),
    Meant("dates for tasks", {"r.csv": changed(task=pd.date_range("2024-01-01", periods=40))}),
    Meant("a bzip-free gzip under another name", {"r.csv": gzip.compress(csv(WIDE))}),
    Meant("an Arrow stream", {"r.arrow": arrow_stream(WIDE)}, "r.arrow"),
    Meant(
        "decimal commas and semicolons",
        {"r.csv": csv(PROBABILITIES, sep=";", decimal=",")},
        "r.csv --rule ce",
        "p.csv --rule ce",
    ),
    Meant(
        "a truth of correct_answer",
        {"r.csv": csv(WIDE), "t.csv": csv(TRUTH.set_axis(["task", "correct_answer"], axis=1))},
        "r.csv --truth t.csv",
        "r.csv --truth t.csv",
    ),
    Meant(
        "a file an agent, its index beside it",
        each_agent(".csv", lambda a: csv(WIDE[["task", a]].rename(columns={a: "prediction"}), index=True)),
        "r",
    ),
    Meant(
        "an NPY of logits an agent, and truth as NPY",
        each_agent(".npy", lambda a: npy(np.eye(3)[SAID[AGENTS.index(a)]] * 4)) | {"t.npy": npy(TRUE)},
        "r --logits --truth t.npy",
        "r.csv --truth t.csv",
    ),
    Meant(
        "numbers as floats, truth as integers",
        {"r.csv": csv(NUMBERS.astype(dict.fromkeys(AGENTS, float))), "t.csv": csv(TRUTH.assign(label=TRUE))},
        "r.csv --truth t.csv",
        "r.csv --truth t.csv",
        "'0.0' is read as 0",
    ),
]


@pytest.mark.parametrize("case", MEANT, ids=lambda case: case.name)
def test_what_means_the_same_scores_the_same(case, tmp_path, monkeypatch):
    wanted = clean_scores(*case.plain.split())
    monkeypatch.chdir(tmp_path)
    write(tmp_path, case.files)
    done = score(*case.arguments.split())
    assert done.exit_code == 0, done.stderr
    assert scores_of(done) == wanted
    assert case.says in " ".join(json.loads(done.stdout)["warnings"])


# Refused, with a remedy that fits


@dataclass(frozen=True)
class Refused:
    """Files that cannot be meant, and what is said of them."""

    name: str
    files: dict
    says: str
    arguments: str = "r.csv"


SUMS = text() + "total,20,15,12\n"
TWICE = text() + text(WIDE.assign(task=[f"u{i}" for i in range(40)]))
REFUSED = [
    Refused("a document for -", {"r.csv": text()}, "--json writes the document to standard output", "r.csv -o -"),
    Refused("a page for -", {"r.csv": text()}, "--json writes the document to standard output", "r.csv --html -"),
    Refused("a row of totals", {"r.csv": SUMS}, "row 42: task 'total' sums up the others"),
    Refused("a file after the other, header and all", {"r.csv": TWICE}, "row 42: the header a second time"),
    Refused("the same in long form", {"r.csv": text(LONG) + text(LONG).replace("\nt", "\nu")}, "the header a second"),
    Refused("a title above the header", {"r.csv": "Results of 2024\n" + text()}, "begin the file with the names"),
    Refused(
        "a truth among the files of a folder",
        each_agent(".csv", lambda a: csv(WIDE[["task", a]].rename(columns={a: "label"}))) | {"r/truth.csv": csv(TRUTH)},
        "truth.csv: by its name no agent's report; give the truth with --truth",
        "r",
    ),
    Refused(
        "a truth among NPY files",
        {"ann.npy": npy(SAID[0]), "labels.npy": npy(SAID[1]), "truth.npy": npy(TRUE)},
        "truth.npy: by its name no agent's report",
        "ann.npy truth.npy",
    ),
    Refused("bzip2", {"r.csv.bz2": bz2.compress(csv(WIDE))}, "packed by bzip2; unpack it", "r.csv.bz2"),
    Refused("xz", {"r.csv.xz": lzma.compress(csv(WIDE))}, "packed by xz; unpack it", "r.csv.xz"),
    Refused("zip", {"r.csv.zip": zipped(csv(WIDE))}, "packed by zip; unpack it", "r.csv.zip"),
    Refused("pandas' JSON of columns", {"r.json": WIDE.to_json()}, "pandas does with orient='records'", "r.json"),
    Refused("pandas' JSON, split", {"r.json": WIDE.to_json(orient="split")}, "orient='records'", "r.json"),
    Refused("Windows-1252", {"r.csv": text().replace("ann", "Zoë").encode("cp1252")}, "line 1: not UTF-8 text"),
    Refused(
        "Mac Roman, and later", {"r.csv": (text() + "Zoë,cat,cat,cat\n").encode("mac-roman")}, "line 42: not UTF-8"
    ),
    Refused(
        "truth of another spelling of tasks",
        {"r.csv": text(), "t.csv": csv(TRUTH.assign(task=[f"0{t}" for t in TASKS]))},
        "none of its 40 tasks is in the reports (such as '0t0' against 't0')",
        "r.csv --truth t.csv",
    ),
    Refused(
        "a truth that is all the reports",
        {"r.csv": text(), "t.csv": text()},
        "expected task,label for truth",
        "r.csv --truth t.csv",
    ),
    Refused(
        "an extra column to type as it is",
        {"r.csv": text(WIDE.assign(**{"Answer Key": "cat"}))},
        "--truth-col 'Answer Key', leave it out with --drop 'Answer Key'",
    ),
    Refused(
        "percent signs",
        {"r.csv": csv(PROBABILITIES.assign(**{"p:cat": [f"{x:.1%}" for x in ROWS[..., 0].ravel()]}))},
        "expected a number",
        "r.csv --rule ce",
    ),
]
NO_AGENTS = [
    "correct_answer",
    "Expected",
    "gold answer",
    "solution",
    "class",
    "language",
    "confidence",
    "majority_vote",
]
REFUSED += [Refused(f"a column {name}", {"r.csv": text(WIDE.assign(**{name: "cat"}))}, name) for name in NO_AGENTS]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_cannot_be_meant_is_refused_in_one_sentence(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, case.files)
    done = score(*case.arguments.split())
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert case.says in done.stderr
    assert done.stdout == ""


# Said, where it may be meant


NOTED = [
    Refused(
        "truth whose tasks match here and there",
        {
            "r.csv": csv(NUMBERS.assign(task=range(40))),
            "t.csv": csv(TRUTH.assign(task=[f"{i:02}" for i in range(40)], label=TRUE)),
        },
        "t.csv: of its 40 tasks 10 not in the reports, and of theirs 10 not in it: check their names",
        "r.csv --truth t.csv",
    ),
    Refused(
        "a label of the truth in other capitals",
        {"r.csv": csv(WIDE), "t.csv": csv(TRUTH.replace("cat", "Cat"))},
        "no agent says 'Cat'",
        "r.csv --truth t.csv",
    ),
    Refused(
        "a mark for what is not known",
        {
            "r.csv": csv(WIDE),
            "t.csv": csv(TRUTH.assign(label=["?" if i % 2 else x for i, x in enumerate(TRUTH.label)])),
        },
        "no agent says '?'",
        "r.csv --truth t.csv",
    ),
    Refused(
        "a point behind a label", {"r.csv": changed(ann=WIDE.ann.replace("cat", "cat."))}, "'cat', 'cat.' differ in"
    ),
    Refused("a blank that cannot be seen", {"r.csv": changed(ann=WIDE.ann.replace("cat", "cat\u200b"))}, "differ in"),
    Refused(
        "a digit as wide as a letter", {"r.csv": csv(NUMBERS).replace(b",1,", ",１,".encode())}, "'1', '１' differ in"
    ),
    Refused(
        "an agent in two spellings", {"r.csv": text().replace("bob", "Ann")}, "agents 'ann', 'Ann' differ in capitals"
    ),
    Refused(
        "a table turned round",
        {"r.csv": csv(WIDE.set_index("task").T.rename_axis("task").reset_index())},
        "only 3 tasks for 40 agents",
    ),
    Refused("an array turned round", {"r.npz": npz(labels=SAID.T)}, "only 3 tasks for 40 agents", "r.npz"),
    Refused(
        "a column to drop that is not there",
        {"r.csv": csv(WIDE)},
        "no column 'lable' to leave out",
        "r.csv --drop lable",
    ),
    Refused("a last task called total", {"r.csv": text() + "Total,cat,cat,cat\n"}, "the last task is called 'Total'"),
    Refused(
        "labels beside rows that say others",
        {"r.csv": csv(PROBABILITIES.assign(label=WORDS[(ROWS.argmax(2).ravel() + 1) % 3]))},
        "in 120 of 120 rows the label is not the most probable one",
    ),
    Refused("a column of another language", {"r.csv": changed(nation="fr")}, "'nation' shares no label"),
    Refused(
        "true and True",
        {"r.csv": changed(ann=np.where(SAID[0] > 0, "true", "false"), bob=SAID[1] > 0, cy=SAID[2] > 0)},
        "'False', 'True', 'false', 'true' differ in capitals",
    ),
]


@pytest.mark.parametrize("case", NOTED, ids=lambda case: case.name)
def test_what_may_be_meant_is_said(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, case.files)
    done = score(*case.arguments.split())
    assert done.exit_code == 0, done.stderr
    assert case.says in " ".join(json.loads(done.stdout)["warnings"])


def test_a_plain_file_says_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"r.csv": csv(WIDE), "t.csv": csv(TRUTH), "p.csv": csv(PROBABILITIES)})
    for arguments in ("r.csv", "r.csv --truth t.csv", "p.csv --rule ce"):
        assert json.loads(score(*arguments.split()).stdout)["warnings"] == []


# Values in Python


SCORES = verax.score(Reports.of(WIDE))
BY_TASK = WIDE.set_index("task")
STRANGE = {
    "numbers for names of columns": lambda: BY_TASK.set_axis([1, 2, 3], axis=1).rename_axis(columns="agent"),
    "tasks in a nameless index": lambda: BY_TASK.rename_axis(None),
    "a long frame by its index": lambda: LONG.set_index(["task", "agent"]),
    "pandas categories": lambda: WIDE.astype(dict.fromkeys(AGENTS, "category")),
    "pandas strings": lambda: WIDE.astype("string"),
    "polars categories": lambda: pl.from_pandas(WIDE).with_columns(pl.col(AGENTS).cast(pl.Categorical)),
    "a polars enum": lambda: pl.from_pandas(WIDE).with_columns(pl.col(AGENTS).cast(pl.Enum([*WORDS]))),
    "nullable integers": lambda: NUMBERS.astype(dict.fromkeys(AGENTS, "Int64")),
    "nullable floats": lambda: NUMBERS.astype(dict.fromkeys(AGENTS, "Float64")),
    "integers of Arrow": lambda: NUMBERS.astype(dict.fromkeys(AGENTS, "int64[pyarrow]")),
    "numbers and text in a column": lambda: NUMBERS.assign(ann=[str(x) if i % 2 else x for i, x in enumerate(SAID[0])]),
    "floats as text beside integers": lambda: NUMBERS.assign(bob=[f"{x}.0" for x in SAID[1]]),
    "an array of bytes": lambda: WORDS[SAID].astype("S"),
    "an array of objects": lambda: SAID.astype(object),
    "an array of floats": lambda: SAID.astype(float),
    "an array of NumPy's strings": lambda: WORDS[SAID].astype(np.dtypes.StringDType()),
    "series in other orders": lambda: {a: BY_TASK[a].sample(frac=1, random_state=k) for k, a in enumerate(AGENTS)},
    "series of one frame": lambda: {a: WIDE[a] for a in AGENTS},
}


@pytest.mark.parametrize("kind", STRANGE)
def test_frames_arrays_and_series_of_any_kind_score_the_same(kind):
    found = verax.score(STRANGE[kind]())
    assert [s.score for s in found] == [s.score for s in SCORES]


@pytest.mark.parametrize("nothing", [None, np.nan, pd.NA, pd.NaT])
def test_nothing_in_a_frame_is_an_abstention(nothing):
    frame = WIDE.astype(object)
    frame.loc[3, "ann"] = nothing
    assert (Reports.of(frame).labels < 0).sum() == 1


def test_a_masked_entry_is_an_abstention():
    labels = np.ma.masked_array(SAID, mask=SAID == 0)
    assert ((Reports.of(labels).labels < 0) == (SAID == 0)).all()
    with pytest.raises(verax.InputError, match="probabilities have shape"):
        Reports.of(probabilities=np.ma.masked_array(ROWS, mask=ROWS < 0.1))


def test_tensors_are_taken_whether_they_have_gradients_or_few_bits():
    torch = pytest.importorskip("torch")
    rows = torch.tensor(ROWS, requires_grad=True)
    np.testing.assert_allclose(Reports.of(probabilities=rows).probabilities, ROWS)
    assert Reports.of(probabilities=torch.tensor([[[0.25, 0.75]] * 2]).bfloat16()).labels.tolist() == [[1, 1]]
    assert [s.score for s in verax.score(torch.tensor(SAID))] == [s.score for s in SCORES]


@pytest.mark.parametrize(("factor", "shift"), [(1, 1), (2, 0), (2, 3), (10, -10)])
@pytest.mark.parametrize("form", [list, np.array, pd.Series, pl.Series], ids=["list", "array", "pandas", "polars"])
def test_whole_numbers_are_the_labels_that_they_spell(form, factor, shift):
    """Reports that say 1, 2, 3 beside a truth of 1, 2, 3: the places among the classes are nobody's business."""
    frame = NUMBERS.assign(**{a: NUMBERS[a] * factor + shift for a in AGENTS})
    found = verax.score(frame, truth=form((TRUE * factor + shift).tolist()), rule="accuracy")
    assert [s.score for s in found] == [np.mean(said == TRUE) for said in SAID]


def test_a_label_that_no_agent_says_is_still_itself():
    frame = pd.DataFrame({"task": ["a", "b", "c"], "ann": [0, 2, 2], "bob": [0, 0, 2]})
    assert [s.score for s in verax.score(frame, truth=[0, 1, 2], rule="accuracy")] == [2 / 3, 2 / 3]


def test_whole_numbers_beside_words_are_places_and_it_is_said():
    found = verax.score(WIDE, truth=TRUE, rule="accuracy")
    assert [s.score for s in found] == [np.mean(said == TRUE) for said in SAID]
    assert found.warnings == ("the truth: whole numbers are places among 'cat', 'cow', 'dog'",)


PAIRED = Reports.of(WIDE)
WRONG = {
    "a generator": (lambda: Reports.of(row for row in SAID), "the reports: a generator; give labels"),
    "generators": (lambda: Reports.of([iter(row) for row in SAID]), "integers or texts of shape"),
    "bytes": (lambda: verax.score(b"task,ann\n"), "the reports: a bytes; .*verax.read"),
    "a path": (lambda: verax.score("r.csv"), "a str 'r.csv'; .*verax.read$"),
    "a set": (lambda: verax.score({1, 2}), "the reports: a set"),
    "lists of unequal length": (lambda: Reports.of({"ann": ["a", "b"], "bob": ["a"]}), "differ in length"),
    "frames of frames": (lambda: Reports.of(pd.concat({"x": BY_TASK}, axis=1)), "no column 'task' among"),
    "truth by its path": (lambda: PAIRED.with_truth("t.csv"), "a str 't.csv'; .*verax.read_truth"),
    "truth of a generator": (lambda: PAIRED.with_truth(x for x in TRUE), "the truth: a generator"),
    "a public signal by its path": (lambda: PAIRED.with_public("p.csv"), "verax.read_public"),
    "a series to read": (lambda: verax.read(WIDE["ann"]), "a source of reports is a Series"),
    "the text of a file": (lambda: verax.read(text()), "a text that begins 'task,ann,bob,cy"),
    "no path": (lambda: verax.read(""), "an empty path"),
    "a floor of text": (lambda: verax.score(PAIRED, rule="ce", floor="small"), "the floor is 'small'"),
    "threads of text": (lambda: verax.score(PAIRED, threads="all"), "threads is 'all'; give 1 or more"),
    "half a thread": (lambda: verax.score(PAIRED, threads=1.5), "threads is 1.5"),
    "bytes of text": (lambda: verax.score(PAIRED, max_bytes="1G"), "max_bytes is '1G'"),
    "a confidence of text": (lambda: verax.audit(PAIRED, confidence="high"), "the confidence is 'high'"),
    "no confidence": (lambda: verax.audit(PAIRED, confidence=None), "the confidence is None"),
    "colluders of text": (lambda: verax.audit(PAIRED, colluders="few"), "give a colluding fraction"),
    "a number of classes": (lambda: verax.read(csv(WIDE), classes=3), "classes is 3; give a list of names"),
    "a number to drop": (lambda: verax.read(csv(WIDE), drop=3), "drop is 3; give the names"),
    "numbers to drop": (lambda: verax.read(csv(WIDE), drop=[3]), r"drop is \[3\]; give the names"),
    "logits of text": (lambda: verax.read(csv(WIDE), logits="no"), "logits is 'no'; give True or False"),
    "a limit of True": (lambda: verax.read(csv(WIDE), max_cells=True), "max_cells is True"),
    "scores to write": (lambda: verax.write(SCORES, "r.csv"), "a Scores to 'r.csv': give the reports"),
    "a number to write to": (lambda: verax.write(PAIRED, 5), "to 5: give the reports"),
    "an ending that is not written": (lambda: verax.write(PAIRED, "r.json"), "r.json: reports are written as .csv"),
    "a frame of nobody": (lambda: SCORES.to_frame("excel"), "no data frame of 'excel'"),
    "a frame of a number": (lambda: SCORES.to_frame(5), "no data frame of '?5'?"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_value_gets_a_sentence_that_names_arguments(kind):
    use, says = WRONG[kind]
    with pytest.raises(verax.VeraxError, match=says) as refused:
        use()
    assert len(str(refused.value).splitlines()) == 1
    assert not re.search(r"--\w", str(refused.value))


def test_nothing_is_written_where_writing_is_refused(tmp_path):
    for name in ("r.json", "r.xlsx", "r.tsv", "r.csv.gz"):
        with pytest.raises(OptionError, match="reports are written as"):
            verax.write(PAIRED, tmp_path / name)
    assert not [*tmp_path.iterdir()]


def test_results_go_out_in_the_frame_that_is_asked_for():
    for backend, kind in {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.Table}.items():
        paid = verax.pay(SCORES, budget="10", clusters=verax.audit(PAIRED))
        for result in (SCORES, paid, verax.audit(PAIRED), PAIRED):
            assert isinstance(result.to_frame(backend), kind)


def test_an_agent_without_a_score_is_named():
    with pytest.raises(KeyError, match=r"no agent 'dan' was scored; there are 'ann', 'bob', 'cy'"):
        SCORES["dan"]


def test_truth_and_public_signals_are_read_from_frames():
    assert verax.read_truth(TRUTH, PAIRED).truth.tolist() == TRUE.tolist()
    assert verax.read_truth(TRUTH.assign(note=1), PAIRED, drop="note").truth.tolist() == TRUE.tolist()
    public = pd.DataFrame({"task": TASKS, "x": np.arange(40.0)})
    assert verax.read_public(public, PAIRED).public.tolist() == [[float(i)] for i in range(40)]


def test_a_market_of_numbers_is_one_of_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    steps = LONG.assign(step=LONG.agent.map({"ann": 1, "bob": 2, "cy": 3}))
    number = dict(zip(WORDS, (1, 3, 5), strict=True))
    paid = []
    for files in (
        {"m.csv": csv(steps), "t.csv": csv(TRUTH)},
        {"m.csv": csv(steps.replace(number)), "t.csv": csv(TRUTH.replace(number))},
        {"m.csv": csv(steps.replace(number).astype({"step": float})), "t.csv": csv(TRUTH.replace(number), index=True)},
    ):
        write(tmp_path, files)
        done = CliRunner().invoke(app, ["market", "m.csv", "--truth", "t.csv", "--json"])
        paid.append([(step["agent"], step["level"]) for step in json.loads(done.stdout)["payments"]])
    assert paid[0] == paid[1] == paid[2]


def in_shards(frame, **others):
    """Four files of ten tasks each, the last of them another where that is given."""
    parts = {f"s{i}.csv": csv(frame.iloc[10 * i : 10 * i + 10]) for i in range(4)}
    return parts | {name.replace("_", "."): content for name, content in others.items()}


TITLES = TRUTH.assign(label=TRUTH.label.str.title())
MISNAMED = TRUTH.assign(task=[t.upper() if i < 10 else t for i, t in enumerate(TASKS)])
IN_SHARDS = [
    Refused("another label", in_shards(WIDE, s3_csv=csv(WIDE.iloc[30:].replace("cat", "Cat"))), "'Cat', 'cat' differ"),
    Refused("another agent", in_shards(WIDE.rename(columns={"bob": "Ann"})), "agents 'ann', 'Ann' differ in capitals"),
    Refused("an index", in_shards(WIDE, s3_csv=csv(WIDE.iloc[30:], index=True)), "s3.csv: column 'Unnamed: 0' counts"),
    Refused(
        "a truth of other names", in_shards(WIDE, t_csv=csv(MISNAMED)), "of its 40 tasks 10 not in the reports, and"
    ),
    Refused("a truth of other labels", in_shards(WIDE, t_csv=csv(TRUTH.replace("cat", "Cat"))), "no agent says 'Cat'"),
]


@pytest.mark.parametrize("case", IN_SHARDS, ids=lambda case: case.name)
def test_what_may_be_meant_is_said_of_shards_too(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, case.files)
    done = score("s*.csv", *["--truth", "t.csv"] * ("t.csv" in case.files))
    assert done.exit_code == 0, done.stderr
    assert case.says in " ".join(json.loads(done.stdout)["warnings"])


def test_truth_that_shares_no_label_with_any_shard_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, in_shards(WIDE, t_csv=csv(TITLES)))
    done = score("s*.csv", "--truth", "t.csv")
    assert done.exit_code == 2
    assert "share no label: 'Cat', 'Cow', 'Dog' against 'cat', 'cow', 'dog'" in done.stderr


def test_plain_shards_say_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, in_shards(WIDE, t_csv=csv(TRUTH)))
    for more in ([], ["--truth", "t.csv"]):
        done = score("s*.csv", *more)
        assert json.loads(done.stdout)["warnings"] == []
        assert scores_of(done) == clean_scores("r.csv", *more)


def test_an_empty_corner_of_a_spreadsheet_is_no_table(tmp_path):
    """Two cells, one of them where the sheet ends: rows and columns between them are nobody's."""
    import openpyxl

    book = openpyxl.Workbook()
    for line in [["task", "ann", "bob"], ["t1", "cat", "dog"], ["t2", "dog", "dog"]]:
        book.active.append(line)
    book.active["H1048576"] = None
    book.active["J2"] = " "
    book.save(tmp_path / "r.xlsx")
    found = verax.read(tmp_path / "r.xlsx")
    assert (found.agents, found.labels.tolist()) == (("ann", "bob"), [[0, 1], [1, 1]])
    assert found.notes == (f"{tmp_path}/r.xlsx: 7 columns without a name and a cell left out",)


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
def test_an_arrow_file_is_read_whatever_it_is_packed_by(compression, tmp_path):
    frame = WIDE.astype(dict.fromkeys(AGENTS, "category"))
    pa.feather.write_feather(
        pa.Table.from_pandas(frame), tmp_path / "r.feather", compression=compression or "uncompressed"
    )
    assert [s.score for s in verax.score(verax.read(tmp_path / "r.feather"))] == [s.score for s in SCORES]
    with pytest.raises(verax.InputError, match="bytes hold 169 cells"):
        verax.read(tmp_path / "r.feather", max_bytes=600)
