"""Files as strangers bring them: what could be meant two ways is asked or said, and nothing is taken for an agent."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import subprocess
import sys
import unicodedata
import zipfile
from functools import cache

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verax
from verax import InputError, OptionError, Reports, tables

LONG = "task,agent,label\nt1,ann,cat\nt2,ann,dog\nt3,ann,cat\nt1,bob,cat\nt2,bob,dog\nt3,bob,dog\n"
WIDE = "task,ann,bob\nt1,cat,cat\nt2,dog,dog\nt3,cat,dog\n"
ROWS = "task,agent,p:cat,p:dog\nt1,ann,0.9,0.1\nt2,ann,0.2,0.8\nt1,bob,0.7,0.3\nt2,bob,0.1,0.9\n"


def labels_of(reports):
    return {
        (agent, task): reports.classes[reports.labels[k, n]]
        for k, agent in enumerate(reports.agents)
        for n, task in enumerate(reports.tasks)
        if reports.labels[k, n] >= 0
    }


def same(one, other):
    assert labels_of(one) == labels_of(other)
    assert one.classes == other.classes


# Labels


def digits(*cells):
    return "task,ann,bob\n" + "".join(f"t{i},{cell},4\n" for i, cell in enumerate([*cells, "1"]))


@pytest.mark.parametrize("spelled", ["4.0", "04", " 4", "+4", "4.00", "4e0", ".4e1"])
def test_a_number_is_one_label_however_it_is_written(spelled):
    found = verax.read(digits(spelled, "4", "1").encode())
    assert found.classes == ("1", "4")
    scores = verax.score(found, truth={f"t{i}": "4" for i in range(4)}, rule="accuracy")
    assert scores["ann"].score == 0.5
    assert scores["bob"].score == 1.0


def test_numbers_that_were_respelled_are_said_and_plain_ones_are_not():
    assert "'4.0' is read as 4" in " ".join(verax.read(digits("4.0").encode()).notes)
    assert verax.read(digits("4").encode()).notes == ()


def test_large_and_negative_numbers_and_powers_keep_their_value():
    found = verax.read(b"task,ann,bob\nt1,1e1,10\nt2,-0,0\nt3,123456789012345678901234567890,-7\nt4,2.50,2.5\n")
    assert found.classes == ("-7", "0", "10", "123456789012345678901234567890", "2.5")


def test_words_that_look_like_numbers_are_left_alone_among_words():
    found = verax.read(b"task,ann,bob\nt1,007,bond\nt2,7,007\nt3,1_000,bond\n")
    assert found.classes == ("007", "1_000", "7", "bond")
    assert "'007'" in found.notes[0] and "stay apart" in found.notes[0]


def test_truth_spelled_otherwise_is_the_same_number_and_it_is_said(tmp_path):
    (tmp_path / "truth.csv").write_text("task,label\nt0,4.0\nt1,01\n")
    found = verax.read_truth(tmp_path / "truth.csv", verax.read(digits("4").encode()))
    assert found.truth.tolist() == [1, 0]
    assert any("truth" in note for note in found.notes)


def test_truth_of_words_beside_numbers_matches_the_numbers_still():
    found = verax.read(b"task,ann,bob\nt1,007,008\nt2,008,008\n").with_truth({"t1": "007", "t2": "none"})
    assert found.classes[found.truth[0]] == "7"
    assert found.classes[found.truth[1]] == "none"


def test_classes_that_are_given_match_by_number_and_keep_their_names():
    text = b"task,ann,bob\nt1,4.0,5\nt2,5.0,4\n"
    assert verax.read(text, classes=["4", "5"]).labels.tolist() == [[0, 1], [1, 0]]
    assert verax.read(text, classes=["4.00", "05"]).classes == ("4.00", "05")


def test_two_classes_given_by_name_are_never_one():
    found = verax.read(b"task,ann,bob\nt1,1,01\nt2,01,1\n", classes=["1", "01"])
    assert found.labels.tolist() == [[0, 1], [1, 0]]


def test_files_that_spell_numbers_differently_are_put_together():
    one, two = b"task,agent,label\nt1,ann,1.0\nt2,ann,2.0\n", b"task,agent,label\nt1,bob,1\nt2,bob,02\n"
    assert verax.read(one, two).labels.tolist() == [[0, 1], [0, 1]]


def test_truth_that_shares_no_label_is_refused_with_both_sets():
    reports = verax.read(WIDE.encode())
    with pytest.raises(InputError, match=r"share no label: 'a', 'b' against 'cat', 'dog'.*classes="):
        reports.with_truth({"t1": "a", "t2": "b"})
    with pytest.raises(InputError, match="share no label"):
        verax.score(reports, truth=["Cat", "Dog", "Cat"])


NFD, NFC = (unicodedata.normalize(form, "Zoë") for form in ("NFD", "NFC"))


def test_letters_are_composed_in_every_name(tmp_path):
    text = f"task,{NFD},bob\n{NFD},{NFD},{NFC}\nt2,x,x\n"
    found = verax.read(text.encode())
    assert (found.agents[0], found.tasks[0], found.classes) == (NFC, NFC, (NFC, "x"))
    assert found.with_truth({NFD: NFD}).truth[0] == 0
    assert verax.read(text.encode(), classes=[NFD, "x"]).classes == (NFC, "x")
    assert Reports.of([[0, 1]], agents=[NFD], tasks=[NFD, "b"], classes=[NFD, "x"]).agents == (NFC,)
    frame = pd.DataFrame({"task": [NFD, "t2"], "bob": [NFD, "x"], "ann": ["x", NFC]})
    assert Reports.of(frame).classes == (NFC, "x")


def test_two_names_that_become_one_are_refused():
    with pytest.raises(InputError, match="appears twice"):
        verax.read(f"task,{NFD},{NFC}\nt1,x,y\nt2,x,x\n".encode())
    with pytest.raises(InputError, match="appears twice"):
        Reports.of([[0, 1], [1, 1]], agents=[NFD, NFC])
    with pytest.raises(InputError, match="become one"):
        Reports.of([[0, 1]], tasks=[NFC, "b"]).with_truth({NFD: "0", NFC: "1"})


@pytest.mark.parametrize("word", ["NaN", "nan", "NA", "N/A", "None", "null", "NULL", "-"])
def test_words_for_nothing_are_abstentions_and_it_is_said(word):
    text = f"task,ann,bob\nt1,cat,cat\nt2,{word},dog\nt3,dog,{word}\n".encode()
    found = verax.read(text)
    assert found.classes == ("cat", "dog")
    assert (found.labels < 0).sum() == 2
    assert found.notes[0].startswith(f"2 cells that say {word!r} are abstentions")
    named = verax.read(text, classes=["cat", "dog", word])
    assert (named.labels < 0).sum() == 0
    assert named.notes == ()


def test_empty_cells_are_abstentions_without_a_word():
    assert verax.read(b"task,ann,bob\nt1,cat,\nt2,dog,cat\n").notes == ()


def test_minus_one_among_labels_is_said():
    assert any("-1 is a label here" in note for note in verax.read(b"task,ann,bob\nt1,0,-1\nt2,1,0\n").notes)


def test_utf_16_and_latin_1_are_said_with_their_line():
    for text in (WIDE.encode("utf-16"), WIDE.encode("utf-16-le"), WIDE.encode("utf-16-be")):
        with pytest.raises(InputError, match="line 1: not UTF-8 text but UTF-16"):
            verax.read(text)
    with pytest.raises(InputError, match="line 2: not UTF-8 text"):
        verax.read(LONG.replace("ann", "Zoë").encode("latin-1"))


# Columns


def test_other_names_of_columns_are_understood_and_said():
    found = verax.read(b"ID,Model,Prediction\nt1,ann,cat\nt2,ann,dog\n")
    assert labels_of(found) == {("ann", "t1"): "cat", ("ann", "t2"): "dog"}
    assert found.notes == ("read column 'ID' as the task, 'Model' as the agent, 'Prediction' as the label",)


@pytest.mark.parametrize(
    ("header", "what", "option"),
    [
        ("id,question,ann,bob", "task", "task_col="),
        ("task,model,annotator,label", "agent", "agent_col="),
        ("task,agent,prediction,answer", "label", "label_col="),
    ],
)
def test_two_columns_that_could_be_one_thing_are_asked_about(header, what, option):
    with pytest.raises(InputError, match=f"could each be the {what}.*{option}"):
        verax.read(f"{header}\na,b,c,d\ne,f,g,h\n".encode())


def test_columns_may_be_named():
    text = b"when,who,what,why\nt1,ann,cat,x\nt2,ann,dog,y\n"
    found = verax.read(text, task_col="when", agent_col="who", label_col="what", drop=["why"])
    assert labels_of(found) == {("ann", "t1"): "cat", ("ann", "t2"): "dog"}
    with pytest.raises(InputError, match=r"no column 'nowhere' among .*task_col="):
        verax.read(text, task_col="nowhere")
    with pytest.raises(OptionError, match="'colour' says nothing about reading"):
        verax.read(text, colour="red")


SUSPECTS = ["label", "truth", "Gold", "target", "category", "prompt", "id", "model", "score", "timestamp"]


@pytest.mark.parametrize("name", SUSPECTS)
def test_a_column_that_is_no_agent_by_its_name_is_refused_and_may_be_dropped(name):
    text = WIDE.replace("bob", f"bob,{name}").replace(",cat\n", ",cat,x\n").replace(",dog\n", ",dog,y\n").encode()
    with pytest.raises(InputError, match=f"column '{name}'.*drop='{name}'"):
        verax.read(text)
    same(verax.read(text, drop=[name]), verax.read(WIDE.encode()))


def test_a_column_of_truth_is_the_truth_where_it_is_named():
    text = WIDE.replace("bob", "bob,gold").replace(",cat\n", ",cat,cat\n").replace(",dog\n", ",dog,dog\n").encode()
    found = verax.read(text, truth_col="gold")
    assert found.agents == ("ann", "bob")
    assert [found.classes[i] for i in found.truth] == ["cat", "dog", "dog"]
    long = LONG.replace("label", "label,gold").replace(",cat\n", ",cat,cat\n").replace(",dog\n", ",dog,cat\n").encode()
    with pytest.raises(InputError, match=r"row 7: task 't3' has the truth 'cat' here and|keep one|column 'gold'"):
        verax.read(long)
    assert verax.read(long.replace(b"t2,ann,dog,cat", b"t2,ann,dog,dog").replace(b"t2,bob,dog,cat", b"t2,bob,dog,dog"),
                      truth_col="gold").truth is not None  # fmt: skip


def test_truth_that_contradicts_itself_is_refused_by_its_row():
    with pytest.raises(InputError, match="row 3: task 't1' has the truth 'dog' here and 'cat' above"):
        verax.read(b"task,agent,label,gold\nt1,ann,cat,cat\nt1,bob,cat,dog\n", truth_col="gold")


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_the_index_column_of_pandas_is_left_out_and_it_is_said(name):
    rows = [f"{i - 1 if i else name},{row}\n" for i, row in enumerate(WIDE.split())]
    found = verax.read("".join(rows).encode())
    same(found, verax.read(WIDE.encode()))
    assert "'Unnamed: 0' counts the rows" in found.notes[0]
    with pytest.raises(InputError, match="has no name"):
        verax.read("".join(rows).replace("\n2,", "\n1,").encode())


def test_a_column_of_ids_times_or_prose_is_refused_by_name():
    rng = np.random.default_rng(0)
    right = rng.integers(0, 3, 40)
    for cells in (
        range(100, 140),
        rng.random(40).round(9),
        [f"What is the answer to question {i}?" for i in range(40)],
    ):
        rows = [f"t{i},{right[i]},{rng.integers(0, 3)},{cell}" for i, cell in enumerate(cells)]
        with pytest.raises(InputError, match=r"column 'extra' has 40 different texts in 40 rows.*drop='extra'"):
            verax.read("\n".join(["task,ann,bob,extra", *rows]).encode())


def test_agents_who_say_the_same_new_word_every_time_are_agents():
    rows = [f"t{i},word {i},word {i}" for i in range(40)]
    assert len(verax.read("\n".join(["task,ann,bob", *rows]).encode()).classes) == 40


def test_a_column_that_shares_no_label_with_the_others_is_said():
    rows = [f"t{i},{i % 2},{i % 3 % 2},{'en' if i % 2 else 'fr'}" for i in range(40)]
    found = verax.read("\n".join(["task,ann,bob,nation", *rows]).encode())
    assert any("'nation' shares no label with the others" in note for note in found.notes)


def test_distinct_numbers_for_labels_are_too_many_classes():
    scores = np.random.default_rng(0).integers(0, 10**6, (8, 2000))
    frame = pd.DataFrame(scores.T, columns=[f"agent {k}" for k in range(8)])
    frame.insert(0, "task", [f"t{i}" for i in range(2000)])
    many = len(np.unique(scores))
    with pytest.raises(InputError, match=f"too many classes: {many:,} distinct labels on 2,000 tasks; is `agent 0` a"):
        Reports.of(frame)
    long = frame.melt("task", var_name="agent", value_name="label")
    with pytest.raises(InputError, match=r"too many classes: .* distinct labels on 2,000 tasks; is `label` a number"):
        verax.read(long)


def test_a_truth_file_may_have_other_names_but_no_other_columns():
    reports = verax.read(WIDE.encode())
    assert verax.read_truth(b"id,gold\nt1,cat\n", reports).truth.tolist() == [0, -1, -1]
    assert verax.read_truth(b",task,answer\n0,t1,cat\n1,t2,dog\n", reports).truth.tolist() == [0, 1, -1]
    with pytest.raises(InputError, match="expected task,label for truth"):
        verax.read_truth(b"task,label,note\nt1,cat,x\n", reports)
    assert verax.read_truth(b"task,label,note\nt1,cat,x\n", reports, drop="note").truth.tolist() == [0, -1, -1]


# Formats


def as_tsv(text):
    return text.replace(",", "\t").encode()


def as_records(text):
    header, *rows = (line.split(",") for line in text.split())
    return [dict(zip(header, row, strict=True)) for row in rows]


def as_xlsx(text):
    import openpyxl

    book, file = openpyxl.Workbook(), io.BytesIO()
    for line in text.split():
        book.active.append(line.split(","))
    book.save(file)
    return file.getvalue()


def as_feather(text):
    file = io.BytesIO()
    pa.feather.write_feather(pa.Table.from_pylist(as_records(text)), file)
    return file.getvalue()


FORMS = {
    ".tsv": as_tsv,
    ".csv": lambda text: text.replace(",", ";").encode(),
    ".csv.gz": lambda text: gzip.compress(text.encode()),
    ".tsv.gz": lambda text: gzip.compress(as_tsv(text)),
    ".json": lambda text: json.dumps(as_records(text)).encode(),
    ".jsonl": lambda text: "\n".join(map(json.dumps, as_records(text))).encode(),
    ".jsonl.gz": lambda text: gzip.compress("\n".join(map(json.dumps, as_records(text))).encode()),
    ".xlsx": as_xlsx,
    ".feather": as_feather,
}


@pytest.mark.parametrize("ending", FORMS)
@pytest.mark.parametrize("text", [LONG, WIDE], ids=["long", "wide"])
def test_formats_are_known_by_their_ending_and_by_their_bytes(ending, text, tmp_path):
    content, path = FORMS[ending](text), tmp_path / f"reports{ending}"
    path.write_bytes(content)
    wanted = verax.read(text.encode())
    for form in (path, str(path), content, io.BytesIO(content)):
        same(verax.read(form), wanted)
    with path.open("rb") as file:
        same(verax.read(file), wanted)
    same(next(tables.blocks(tables.find(path)[0])), wanted)


def test_standard_input_is_read_whatever_it_is():
    for content in (LONG.encode(), FORMS[".jsonl"](LONG), FORMS[".feather"](LONG), FORMS[".csv.gz"](LONG)):
        script = "import verax; print(sorted(verax.read('-').agents))"
        done = subprocess.run([sys.executable, "-c", script], input=content, capture_output=True)
        assert done.stdout.split() == [b"['ann',", b"'bob']"], done.stderr


def test_records_may_hold_their_rows_of_probabilities():
    wanted = verax.read(ROWS.encode())
    records = [{"task": r["task"], "agent": r["agent"], "p": {"cat": float(r["p:cat"]), "dog": float(r["p:dog"])}}
               for r in as_records(ROWS)]  # fmt: skip
    found = verax.read(json.dumps(records).encode())
    np.testing.assert_array_equal(found.probabilities, wanted.probabilities)
    lists = [record | {"p": [*record["p"].values()]} for record in records]
    found = verax.read(json.dumps(lists).encode(), classes=["cat", "dog"])
    np.testing.assert_array_equal(found.probabilities, wanted.probabilities)
    assert verax.read(json.dumps(lists).encode()).classes == ("0", "1")


def test_a_header_that_could_be_separated_in_two_ways_is_refused():
    with pytest.raises(InputError, match="may be separated by"):
        verax.read(b"id;x,task\n1;2,3\n")


def test_a_folder_holds_one_file_an_agent(tmp_path):
    for agent, content in {
        "ann.csv": "task,label\nt1,cat\nt2,dog\nt3,cat\n",
        "bob.tsv": "id\tanswer\nt1\tcat\n",
    }.items():
        (tmp_path / agent).write_text(content)
    found = verax.read(tmp_path)
    assert found.agents == ("ann", "bob")
    assert labels_of(found)["bob", "t1"] == "cat"
    (tmp_path / "README.md").write_text("hello")
    with pytest.raises(InputError, match=r"is a folder, and its README.md is no file of reports"):
        verax.read(tmp_path)
    (tmp_path / "README.md").unlink()
    (tmp_path / "two.csv").write_text(LONG)
    with pytest.raises(InputError, match=r"is a folder, and its two.csv is no report of one agent"):
        verax.read(tmp_path)


def test_probabilities_and_logits_of_a_model_may_be_an_npy_each(tmp_path):
    logits = np.random.default_rng(0).normal(size=(2, 5, 3))
    rows = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    for name, array in zip(("ann", "bob"), rows, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    found = verax.read(tmp_path / "ann.npy", tmp_path / "bob.npy")
    assert found.agents == ("ann", "bob")
    np.testing.assert_allclose(found.probabilities, rows)
    np.testing.assert_allclose(verax.read(tmp_path).probabilities, rows)
    np.save(tmp_path / "ann.npy", logits[0])
    with pytest.raises(InputError, match="logits="):
        verax.read(tmp_path / "ann.npy")
    np.testing.assert_allclose(verax.read(tmp_path / "ann.npy", logits=True).probabilities[0], rows[0])


def test_logits_are_understood_in_columns_and_in_npz(tmp_path):
    found = verax.read(b"task,agent,p:a,p:b\nt1,ann,3,1\nt2,ann,-5,2\n", logits=True)
    assert found.labels.tolist() == [[0, 1]]
    np.testing.assert_allclose(found.probabilities[0, 0, 0], 1 / (1 + np.exp(-2)))
    np.savez(tmp_path / "r.npz", probabilities=[[[3.0, 1.0], [-5.0, 2.0]]])
    np.testing.assert_allclose(verax.read(tmp_path / "r.npz", logits=True).probabilities, found.probabilities)


def test_only_the_first_sheet_is_read_and_it_is_said(tmp_path):
    import openpyxl

    book = openpyxl.Workbook()
    for line in WIDE.split():
        book.active.append(line.split(","))
    book.create_sheet("notes").append(["hello"])
    book.save(tmp_path / "r.xlsx")
    assert "and not 'notes'" in verax.read(tmp_path / "r.xlsx").notes[0]


def test_a_format_of_another_tool_is_one_entry(monkeypatch):
    from verax.tables import formats

    def table(source, reading, expected):
        with source.text(reading) as file:
            rows = [line.split("|") for line in file.read().split()]
        names = ("task", "agent", "label")
        columns = {n: tables.Column.of(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)}
        return tables.Table(source.name, columns)

    monkeypatch.setattr(formats, "_FORMATS", [*formats._FORMATS])
    tables.register(tables.Format("bars", (".bars",), (b"|",), table))
    lines = "\n".join(line.replace(",", "|") for line in LONG.split()[1:])
    named = io.BytesIO(lines.encode())
    named.name = "x.bars"
    same(verax.read(named), verax.read(LONG.encode()))


# What is said is what can be typed, and what was meant


def test_a_remedy_names_its_column_as_it_is_typed(tmp_path):
    for extra, remedy in {"truth": "--truth-col truth", "prompt": "--drop prompt", "note": "--drop note"}.items():
        (tmp_path / "r.csv").write_text(WIDE.replace("bob", extra))
        done = subprocess.run(
            [sys.executable, "-c", "from verax.cli import main; main()", "score", "r.csv"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert remedy in done.stderr


def test_labels_that_differ_in_capitals_only_stay_apart_and_it_is_said():
    found = verax.read(WIDE.replace("cat\n", "Cat\n").encode())
    assert found.classes == ("Cat", "cat", "dog")
    assert found.notes == (
        "labels 'Cat', 'cat' differ in capitals or marks only and stay apart: write them alike if they are one",
    )
    assert verax.read(WIDE.encode()).notes == ()
    assert verax.read(WIDE.replace("cat\n", "Cat\n").encode(), classes=["cat", "Cat", "dog"]).notes == ()


def test_a_refusal_of_bytes_does_not_print_them():
    for use in (tables.read_prediction, tables.read_submissions):
        with pytest.raises(InputError, match=r"^the bytes: "):
            use(LONG.encode())


def test_a_file_of_one_agent_is_told_of_folders():
    with pytest.raises(InputError, match="or a folder of files of one agent each"):
        verax.read(b"task,label\nt1,cat\nt2,dog\n")


def test_a_class_that_is_called_as_a_missing_word_is_known_in_the_truth_too():
    reports = verax.read(b"task,ann,bob\nt1,NA,cat\nt2,cat,NA\n", classes=["NA", "cat"])
    assert reports.labels.tolist() == [[0, 1], [1, 0]]
    assert verax.read_truth(b"task,label\nt1,NA\nt2,cat\n", reports, classes=["NA", "cat"]).truth.tolist() == [0, 1]


@pytest.mark.parametrize("text", ['""\n', '"",""\n""\n', '\n"  "\n'])
def test_a_file_of_quotes_is_an_empty_file(text):
    with pytest.raises(InputError, match="the file is empty"):
        verax.read(text.encode())


# Size: refused before it is read

BOMBS = {
    "a Parquet of 10^9 rows": "parquet",
    "an NPZ of no agents and many tasks": "npz",
    "an NPZ that claims what it does not hold": "lie",
    "a zip bomb": "zip",
    "a gzip bomb": "gzip",
    "a spreadsheet bomb": "xlsx",
    "an NPY that claims what it does not hold": "npy",
    "a CSV of a million columns": "csv",
    "a Feather of 10^8 rows": "feather",
    "records that share no field": "jsonl",
    "a spreadsheet of cells far apart": "xlsx.far",
}


def header_npy(shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|i1", "fortran_order": False, "shape": shape})
    return file.getvalue()


def zipped(name, parts):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as member:
        for part in parts:
            member.write(part)
    return file.getvalue()


def far_apart():
    import openpyxl

    book, file = openpyxl.Workbook(), io.BytesIO()
    for row in range(1, 2001):
        book.active.cell(row, 1, "x")
    book.active["XFD1048576"] = "y"
    book.save(file)
    return file.getvalue()


def bomb(kind, path):
    if kind == "parquet":
        one = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10**7, np.int8)), ["x"])
        table = pa.table({"task": one, "ann": one})
        with pq.ParquetWriter(path, table.schema) as writer:
            for _ in range(20):
                writer.write_table(table, row_group_size=10**7)
        return
    if kind == "feather":
        zeros = pa.table({"task": np.zeros(10**8, np.int8), "ann": np.zeros(10**8, np.int8)})
        pa.feather.write_feather(zeros, path, compression="zstd", chunksize=10**8)
        return
    content = {
        "jsonl": lambda: b"".join(b'{"task": "t%d", "k%d": "x"}\n' % (i, i) for i in range(20_000)),
        "xlsx.far": far_apart,
        "npz": lambda: zipped("labels.npy", [header_npy((0, 10**8))]),
        "lie": lambda: zipped("labels.npy", [header_npy((3, 10**9))]),
        "zip": lambda: zipped("labels.npy", [header_npy((10, 10**8)), *[bytes(10**7)] * 100]),
        "gzip": lambda: gzip.compress(b"task,ann\n" + b"t,x\n" * 10**8),
        "xlsx": lambda: zipped("xl/worksheets/sheet1.xml", [bytes(10**7)] * 100),
        "npy": lambda: header_npy((10, 10**9)),
        "csv": lambda: b"task," + b",".join(b"a%d" % i for i in range(10**6)) + b"\n" + b"x," * 10**6,
    }[kind]()
    path.write_bytes(content)


@pytest.mark.parametrize("kind", BOMBS.values(), ids=BOMBS)
def test_a_file_that_would_take_far_more_memory_than_its_size_is_refused_before_it_does(kind, tmp_path):
    ending = {"lie": "npz", "zip": "npz", "gzip": "csv.gz", "xlsx.far": "xlsx"}.get(kind, kind)
    path = tmp_path / f"bomb.{ending}"
    bomb(kind, path)
    script = (
        "import sys, verax\n"
        "try:\n    verax.read(sys.argv[1])\n"
        "except verax.InputError as error:\n    print(error)\n"
        "held = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(int(held.split()[1]) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60)
    sentence, megabytes = done.stdout.splitlines()
    assert "bomb" in sentence
    assert int(megabytes) < 300, sentence


def test_the_sentence_names_the_option_that_raises_the_limit(tmp_path):
    for option, text in {"max_cells": WIDE, "max_columns": WIDE, "max_classes": WIDE, "max_bytes": WIDE}.items():
        with pytest.raises(InputError, match=f"{option}="):
            verax.read(text.encode(), **{option: 1})
    with pytest.raises(OptionError, match="max_bytes is 0"):
        verax.read(WIDE.encode(), max_bytes=0)


def test_pipes_devices_and_folders_that_cannot_be_read_answer_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    for path in (tmp_path / "pipe.csv", "/dev/zero", "/dev/null"):
        with pytest.raises(InputError, match="is a pipe or a device"):
            verax.read(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is a folder with no file"):
        verax.read(tmp_path / "empty")


# Frames and arrays


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
@pytest.mark.parametrize("text", [LONG, WIDE, ROWS], ids=["long", "wide", "rows"])
def test_data_frames_are_read_as_files_are(kind, text, tmp_path):
    frame = pd.read_csv(io.StringIO(text))
    frame = {"pandas": frame, "polars": pl.from_pandas(frame), "pyarrow": pa.Table.from_pandas(frame)}[kind]
    wanted = verax.read(text.encode())
    for found in (Reports.of(frame), verax.read(frame), verax.reports.as_reports(frame)):
        same(found, wanted)
        if wanted.probabilities is not None:
            np.testing.assert_array_equal(found.probabilities, wanted.probabilities)


def test_whole_numbers_that_pandas_made_floats_are_whole_numbers():
    frame = pd.DataFrame({"task": [1, 2, 3], "ann": [4.0, None, 5.0], "bob": [4, 5, 5]})
    found = Reports.of(frame)
    assert (found.tasks, found.classes) == (("1", "2", "3"), ("4", "5"))
    assert found.labels.tolist() == [[0, -1, 1], [0, 1, 1]]
    assert found.notes == ()
    with pytest.raises(InputError, match=r"column 'ann' has 0.5; write labels and tasks as text or whole numbers"):
        Reports.of(pd.DataFrame({"task": [1, 2], "ann": [0.5, 1.0]}))


def test_a_pivoted_frame_keeps_its_tasks():
    frame = pd.read_csv(io.StringIO(LONG)).pivot(index="task", columns="agent", values="label")
    same(Reports.of(frame), verax.read(WIDE.encode()))


def test_frames_take_the_same_words_as_files():
    frame = pd.DataFrame({"x": ["t1", "t2"], "who": ["a", "a"], "said": ["cat", "dog"]})
    assert Reports.of(frame, task_col="x", agent_col="who", label_col="said").agents == ("a",)


def test_arrays_and_mappings_of_labels_are_reports():
    wanted = {("0", "0"): "cat", ("0", "1"): "dog", ("1", "0"): "dog"}
    for form in ([["cat", "dog"], ["dog", None]], np.array([["cat", "dog"], ["dog", None]], dtype=object),
                  np.array([["cat", "dog"], ["dog", ""]])):  # fmt: skip
        assert labels_of(Reports.of(form)) == wanted
    assert Reports.of(np.array([[0.0, 1.0], [np.nan, 0.0]])).labels.tolist() == [[0, 1], [-1, 0]]
    assert Reports.of([[0, None], [1, 1]]).labels.tolist() == [[0, -1], [1, 1]]
    assert labels_of(Reports.of({"ann": ["cat", "dog"]}, tasks=["s", "t"])) == {
        ("ann", "s"): "cat",
        ("ann", "t"): "dog",
    }
    assert labels_of(Reports.of({"ann": {"s": "cat"}, "bob": {"t": "dog"}})) == {
        ("ann", "s"): "cat", ("bob", "t"): "dog",
    }  # fmt: skip
    assert Reports.of([["cat", "dog"]], classes=["dog", "cat"]).labels.tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("truth", "wanted"),
    [
        (["cat", "dog", None], [0, 1, -1]),
        (np.array(["cat", "dog", "cat"]), [0, 1, 0]),
        (pd.Series(["cat", "dog", "cat"]), [0, 1, 0]),
        (pd.Series({"t3": "dog", "t1": "cat"}), [0, -1, 1]),
        (pl.Series(["cat", "dog", "cat"]), [0, 1, 0]),
        ({"t1": "cat"}, [0, -1, -1]),
        (pd.DataFrame({"task": ["t2"], "label": ["dog"]}), [-1, 1, -1]),
        (np.array([0.0, np.nan, 1.0]), [0, -1, 1]),
    ],
    ids=["list", "array", "series", "series by task", "polars", "mapping", "frame", "floats"],
)
def test_truth_may_be_anything_that_says_labels(truth, wanted):
    assert verax.read(WIDE.encode()).with_truth(truth).truth.tolist() == wanted


def test_a_public_signal_may_be_a_frame():
    found = verax.read(WIDE.encode()).with_public(pd.DataFrame({"task": ["t3", "t1", "t2"], "x": [3.0, 1.0, 2.0]}))
    assert found.public.tolist() == [[1.0], [2.0], [3.0]]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("reports.csv", "a str 'reports.csv'.*read a file with verax.read"),
        (5, "a int; give labels"),
        ([[0, 1], [1]], "differ in length"),
        ([["cat"], ["dog", "cat"]], "differ in length"),
        ([[0.5, 1.0]], "label 0.5 is no whole number"),
        ({"ann": ["cat"], "bob": ["cat", "dog"]}, "differ in length"),
        ([[["cat"]]], "give integers or texts of shape"),
        (None, "neither labels nor probabilities"),
    ],
)
def test_wrong_types_get_a_sentence(given, says):
    with pytest.raises(InputError, match=says) as refused:
        verax.reports.as_reports(given)
    assert len(str(refused.value).splitlines()) == 1


def test_reports_go_out_as_a_frame_and_come_back():
    reports = verax.read(ROWS.encode())
    for backend in ("pandas", "polars", "pyarrow"):
        found = Reports.of(reports.to_frame(backend))
        assert labels_of(found) == labels_of(reports)
        np.testing.assert_array_equal(found.probabilities, reports.probabilities)


def test_a_shape_says_how_much_there_is():
    assert verax.read(ROWS.encode()).shape == verax.reports.Shape(2, 2, 2, rows=True, sparse=False)


# Written files


def test_cells_that_a_spreadsheet_would_compute_are_guarded_and_come_back(tmp_path):
    names = ["=1+1", "+x", "@SUM(A1)", "-", "-cmd", "'=x", "it's", "NA", "-1", "'quoted'"]
    reports = Reports.of(
        [[*range(10)], [*range(9, -1, -1)]], agents=["=ann", "@bob"], tasks=names, classes=sorted(names)
    )
    for wide in (False, True):
        verax.write(reports, tmp_path / "r.csv", wide=wide)
        found = verax.read(tmp_path / "r.csv")
        assert (found.agents, found.tasks) == (reports.agents, reports.tasks)
        assert labels_of(found) == labels_of(reports)
        cells = {cell for line in (tmp_path / "r.csv").read_text().splitlines() for cell in line.split(",")}
        assert {cell for cell in cells if cell.startswith(("=", "+", "-", "@"))} == {"-1"}
        verax.write(reports, tmp_path / "r.parquet", wide=wide)
        assert labels_of(verax.read(tmp_path / "r.parquet")) == labels_of(reports)


def test_an_output_that_is_an_input_is_refused(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text(WIDE)
    (tmp_path / "link").symlink_to(path)
    os.link(path, tmp_path / "hard")
    for target in (path, tmp_path / "link", tmp_path / "hard", f"{tmp_path}/../{tmp_path.name}/r.csv"):
        with pytest.raises(OptionError, match="it is read"):
            tables.refuse_overwriting(target, tmp_path / "other.csv", path)
    tables.refuse_overwriting(tmp_path / "new.json", path, None)


# Whatever is given


def read_or_refused(use, thing):
    """What came of it, or nothing where it was refused in one sentence."""
    with contextlib.suppress(verax.VeraxError):
        try:
            return use(thing)
        except verax.VeraxError as error:
            one_line = len(str(error).splitlines()) == 1
            raise error if one_line else AssertionError(error) from None
    return None


@cache
def whole_form(ending):
    """Written once: a workbook says when it was."""
    return FORMS[ending](LONG)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(FORMS)), st.data())
def test_any_damage_to_any_format_gives_reports_or_one_sentence(ending, data):
    content = bytearray(whole_form(ending))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    named = io.BytesIO(bytes(content))
    named.name = f"damaged{ending}"
    for form in (named, bytes(content)):
        found = read_or_refused(verax.read, form)
        assert found is None or found.labels.shape == (len(found.agents), len(found.tasks))


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=2)


def nested(inner):
    return st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.recursive(LEAVES, nested))
def test_anything_given_for_reports_or_truth_gives_reports_or_one_sentence(thing):
    read_or_refused(Reports.of, thing)
    read_or_refused(Reports.of([["a", "b"]]).with_truth, thing)
