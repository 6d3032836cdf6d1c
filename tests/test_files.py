"""What is written is read back, whole or not at all; what cannot be read is refused, never a surprise."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import verax
from verax import Reports, tables
from verax.labels import class_order, number
from verax.tables import writing
from verax.tables.arrow import read_plain_csv
from verax.vocabulary import AGENT, TASK, called, is_wide_agent

AWKWARD = ("a,b", 'say "hi"', "it's", "猫", "naïve", "two words", "-1", "nan", "None", "p:x", "=1+1", "🙂")
FORMATS = ["long.csv", "wide.csv", "long.parquet", "wide.parquet", "reports.npz"]
LONG_FORMATS = ["long.csv", "long.parquet"]
ROW_FORMATS = [*LONG_FORMATS, "reports.npz"]
PROBABILITIES = np.random.default_rng(5).dirichlet(np.ones(3), (3, 4))


def fuzz(examples):
    return settings(max_examples=examples, deadline=None, derandomize=True)


def through(reports, path):
    """The reports written to a file and read again."""
    tables.write(reports, path, wide=path.name.startswith("wide"))
    return verax.read(path)


def assert_same(found, wanted):
    assert (found.agents, found.tasks, found.classes) == (wanted.agents, wanted.tasks, wanted.classes)
    for name in ("labels", "probabilities", "truth", "public"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def said(reports):
    """What each agent says of each task: its label's name, and the bits of its row."""
    found = {}
    for k, n in np.argwhere(reports.labels >= 0).tolist():
        row = None if reports.probabilities is None else reports.probabilities[k, n].tobytes()
        found[reports.agents[k], reports.tasks[n]] = reports.classes[reports.labels[k, n]], row
    return found


def assert_sound(reports):
    """What every Reports promises, wherever it comes from."""
    k, n, size = len(reports.agents), len(reports.tasks), len(reports.classes)
    for names in (reports.agents, reports.tasks, reports.classes):
        assert len(set(names)) == len(names)
        assert all(isinstance(name, str) and name == name.strip() != "" for name in names)
    assert reports.labels.shape == (k, n)
    assert (reports.labels >= -1).all()
    assert (reports.labels < size).all()
    if reports.probabilities is not None:
        answered = reports.labels >= 0
        assert reports.probabilities.shape == (k, n, size)
        assert (reports.probabilities[answered] >= 0).all()
        np.testing.assert_allclose(reports.probabilities[answered].sum(-1), 1, atol=1e-9)
        assert np.isnan(reports.probabilities[~answered]).all()
    if reports.truth is not None:
        assert reports.truth.shape == (n,)
        assert (reports.truth >= -1).all()
        assert (reports.truth < size).all()
    if reports.public is not None:
        assert len(reports.public) == n


def awkward(labels, probabilities=None, **more):
    """Reports whose every name is hard to write."""
    k, n = np.shape(labels)
    size = 1 + np.max(labels) if probabilities is None else probabilities.shape[2]
    return Reports.of(
        labels, probabilities, agents=AWKWARD[:k], tasks=AWKWARD[-n:], classes=sorted(AWKWARD[3 : 3 + size]), **more
    )


@pytest.mark.parametrize("name", FORMATS)
def test_labels_come_back(name, tmp_path):
    reports = awkward([[0, 1, 2, 1], [2, 2, 0, 1], [1, 0, 0, 0]])
    assert_same(through(reports, tmp_path / name), reports)


@pytest.mark.parametrize("name", FORMATS)
def test_abstentions_come_back(name, tmp_path):
    reports = awkward([[0, 1, 2, 1], [-1, 2, -1, 1], [1, -1, -1, -1]])
    assert_same(through(reports, tmp_path / name), reports)


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_probabilities_come_back_to_the_bit(name, tmp_path):
    reports = awkward([[0, 1, 2, 1], [2, 2, 0, 1], [1, 0, 0, 0]], PROBABILITIES)
    assert_same(through(reports, tmp_path / name), reports)


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_probabilities_with_abstentions_come_back_to_the_bit(name, tmp_path):
    reports = awkward([[0, 1, 2, 1], [-1, 2, -1, 1], [1, -1, -1, -1]], PROBABILITIES)
    assert np.isnan(reports.probabilities).any()
    assert_same(through(reports, tmp_path / name), reports)


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_probabilities_that_were_rounded_are_normalised_once(name, tmp_path):
    reports = awkward([[0, 1, 2, 1], [2, 2, 0, 1], [1, 0, 0, 0]], PROBABILITIES.astype(np.float16))
    assert_same(through(reports, tmp_path / name), reports)


def test_truth_and_public_signal_come_back_from_npz(tmp_path):
    for public in ([0, 5, 0, 1], [0.5, 1.0, -2.0, 1e9], [[1.0, 2.0]] * 4):
        reports = awkward([[0, 1, 2, 1], [-1, 2, -1, 1]], truth=[0, -1, 2, 1], public=public)
        assert_same(through(reports, tmp_path / "reports.npz"), reports)


def test_npz_keeps_agents_tasks_and_classes_that_nobody_mentions(tmp_path):
    reports = Reports.of([[0, 1, -1], [-1, -1, -1]], classes=["b", "a", "never"])
    assert_same(through(reports, tmp_path / "reports.npz"), reports)


@pytest.mark.parametrize("name", ["wide.csv", "wide.parquet"])
def test_wide_files_keep_silent_agents_and_tasks_but_no_class_that_nobody_mentions(name, tmp_path):
    found = through(Reports.of([[0, 1, -1], [-1, -1, -1]], classes=["a", "b", "never"]), tmp_path / name)
    assert_same(found, Reports.of([[0, 1, -1], [-1, -1, -1]], classes=["a", "b"]))


@pytest.mark.parametrize("name", LONG_FORMATS)
def test_long_files_cannot_carry_agents_tasks_or_classes_that_no_row_mentions(name, tmp_path):
    found = through(Reports.of([[0, 1, -1], [-1, -1, -1]], classes=["a", "b", "never"]), tmp_path / name)
    assert_same(found, Reports.of([[0, 1]], classes=["a", "b"]))


@pytest.mark.parametrize("name", LONG_FORMATS)
def test_classes_can_be_given_to_a_file_that_does_not_mention_them(name, tmp_path):
    reports = Reports.of([[0, 1, 1], [1, 1, 0]], classes=["b", "a", "never"])
    tables.write(reports, tmp_path / name)
    assert_same(verax.read(tmp_path / name, classes=reports.classes), reports)


def test_a_wide_file_of_labels_with_gaps_from_pandas_keeps_its_integers(tmp_path):
    path = tmp_path / "gaps.parquet"
    columns = {"task": [7, 8, 9], "ann": [10.0, None, 9.0], "bob": [9, 10, 10], "__index_level_0__": [3, 4, 5]}
    pq.write_table(pa.table(columns), path)
    found = verax.read(path)
    assert (found.agents, found.tasks, found.classes) == (("ann", "bob"), ("7", "8", "9"), ("9", "10"))
    assert found.labels.tolist() == [[1, -1, 0], [0, 1, 1]]


def test_names_of_bytes_in_npz_are_text(tmp_path):
    np.savez(tmp_path / "bytes.npz", labels=[[0, 1]], agents=np.array(["Zoë".encode()]))
    assert verax.read(tmp_path / "bytes.npz").agents == ("Zoë",)


@pytest.mark.parametrize("agent", ["task", "agent", "worker", "p:x", "label"])
@pytest.mark.parametrize("name", ["wide.csv", "wide.parquet"])
def test_an_agent_whose_wide_column_would_be_misread_is_refused(name, agent, tmp_path):
    with pytest.raises(verax.InputError, match=f"column '{agent}'"):
        through(Reports.of([[0, 1]], agents=[agent]), tmp_path / name)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["wide.csv", "wide.parquet"])
def test_probabilities_do_not_go_into_a_wide_file(name, tmp_path):
    with pytest.raises(verax.InputError, match="no room for probabilities"):
        through(Reports.of(probabilities=PROBABILITIES), tmp_path / name)


def test_reports_do_not_go_into_an_npy(tmp_path):
    with pytest.raises(verax.OptionError, match=r"reports\.npy: reports are written as .csv, .parquet or .npz"):
        tables.write(Reports.of([[0, 1]]), tmp_path / "reports.npy")


def test_reading_a_csv_leaves_the_limits_of_the_csv_module_alone(tmp_path):
    before = csv.field_size_limit()
    through(awkward([[0, 1, 2, 1]]), tmp_path / "long.csv")
    assert csv.field_size_limit() == before


# Whole or not at all


class Killed(BaseException):
    """Not an Exception, as KeyboardInterrupt and SystemExit are not."""


@pytest.mark.parametrize("error", [Killed(), MemoryError(), RuntimeError("half-way")], ids=repr)
@pytest.mark.parametrize(
    ("name", "writer"),
    [
        ("long.csv", (writing, "write_csv")),
        ("long.parquet", (writing, "write_parquet")),
        ("reports.npz", (np, "savez_compressed")),
    ],
)
def test_a_kill_half_way_leaves_the_old_file_and_no_other(name, writer, error, tmp_path, monkeypatch):
    reports = awkward([[0, 1, 2, 1], [2, 2, 0, 1]])
    tables.write(reports, tmp_path / name)
    before = (tmp_path / name).read_bytes()

    def write_half(*arguments, **named):
        file = next(x for x in arguments if hasattr(x, "write"))
        file.write(before[: len(before) // 2])
        file.flush()
        raise error

    monkeypatch.setattr(*writer, write_half)
    with pytest.raises(type(error)):
        tables.write(Reports.of([[0, 1, 1]]), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == before
    assert_same(verax.read(tmp_path / name), reports)


def test_a_full_disk_half_way_is_said_in_a_sentence(tmp_path):
    (tmp_path / "old").write_text("old")

    def write(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(verax.InputError, match=r"old: cannot be written \(No space left on device\)"):
        tables.write_atomically(tmp_path / "old", write)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


def test_a_process_killed_outright_leaves_the_old_file_whole(tmp_path):
    (tmp_path / "old").write_text("old")
    script = (
        "import os, signal; from verax import tables\n"
        "def half(file): file.write(b'new'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "tables.write_atomically('old', half)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "old").read_text() == "old"


def test_a_link_stays_a_link_to_the_file_written(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "real")
    tables.write_atomically(tmp_path / "link", lambda file: file.write(b"new"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "real").read_bytes() == b"new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    tables.write_atomically(tmp_path / "pipe", lambda file: file.write(b"new"))
    assert os.read(reader, 100) == b"new"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_a_new_file_has_the_permissions_of_any_other(tmp_path):
    (tmp_path / "plain").write_text("")
    tables.write_atomically(tmp_path / "new", lambda file: file.write(b"new"))
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode


# Anything may be given to the readers

PRINTABLE = st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(' ,"')
NAMES = st.text(PRINTABLE, min_size=1, max_size=5).map(str.strip).filter(
    lambda name: name and is_wide_agent(name) and not called([name], AGENT | TASK | {"agent", "task", "worker"})
    and number(name) in (None, name)  # a number spelled in another way is that number when it is read
)  # fmt: skip
KNOWN = Reports.of([[0, 1, 0], [1, 1, 0]], tasks=["t1", "t2", "t3"], classes=["x", "y"])
CELLS = st.sampled_from(
    ["", "x", "y", "t1", "a", "0", "1", "0.5", "nan", "inf", "-1", "1e999", "é", " ", '"', "\n", "\0"]
)


@contextlib.contextmanager
def file_of(content, suffix):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"fuzz{suffix}"
        path.write_bytes(content)
        yield path


@contextlib.contextmanager
def refused_in_one_sentence():
    sentences = []
    try:
        yield
    except verax.VeraxError as error:
        sentences = str(error).splitlines()
    assert len(sentences) <= 1


def read_all_ways(content, suffix):
    """Every reader on one file: each gives sound reports or refuses in one sentence."""
    with file_of(content, suffix) as path:
        readers = (verax.read, lambda p: verax.read_truth(p, KNOWN), lambda p: verax.read_public(p, KNOWN))
        for reader in readers:
            with refused_in_one_sentence():
                assert_sound(reader(path))
        with refused_in_one_sentence():
            assert tables.read_matrix(path, KNOWN.classes).shape == (2, 2)


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def parquet(names, columns):
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array(c, pa.string()) for c in columns], names=names), file)
    return file.getvalue()


def csv_text(table):
    file = io.StringIO()
    csv.writer(file).writerows(table)
    return file.getvalue().encode()


LONG = [["task", "agent", "label"], *([t, a, c] for a in "ab" for t, c in (("t1", "x"), ("t2", "y"), ("t3", "x")))]
WIDE = [["task", "a", "b"], ["t1", "x", "x"], ["t2", "y", "x"], ["t3", "x", ""]]
ROWS = [[*row, *end] for row, end in zip(LONG, [["p:x", "p:y"], *[["0.25", "0.75"], ["1", "0"]] * 3], strict=True)]
TRUTH = [["task", "label"], ["t1", "x"], ["t2", "y"], ["t3", ""]]
FEATURES = [["task", "u", "v"], ["t1", "1", "2"], ["t2", "0.5", "3"], ["t3", "1", "1"]]
ARRAYS = {
    "labels": KNOWN.labels, "classes": np.array(["x", "y"]), "agents": np.array(["a", "b"]),
    "truth": np.array([0, 1, -1]), "public": np.array([0, 1, 0]),
}  # fmt: skip
WHOLE = [
    (csv_text(LONG), ".csv"),
    (parquet(ROWS[0], zip(*ROWS[1:], strict=True)), ".parquet"),
    (npz(**ARRAYS), ".npz"),
    (npy(np.array([0, 1, 0])), ".npy"),
]


@fuzz(150)
@given(st.binary(max_size=200), st.sampled_from([b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"PAR1", b"\xff\xfe"]))
def test_any_bytes_are_read_or_refused(content, start):
    for suffix in (".csv", ".npz", ".npy", ".parquet"):
        read_all_ways(start + content + start, suffix)


@fuzz(100)
@given(st.text(max_size=60), st.sampled_from(["", "task,", "task,agent,label\n", "task,label\n", "task,a,b\nt1,x,y\n"]))
def test_any_text_is_read_or_refused(text, start):
    for suffix in (".csv", ".npz", ".npy", ".parquet"):
        read_all_ways((start + text).encode(errors="replace"), suffix)


@fuzz(300)
@given(st.sampled_from(WHOLE), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 3), st.binary(max_size=3))))
def test_a_damaged_file_is_read_or_refused(whole, damages):
    content, suffix = bytearray(whole[0]), whole[1]
    for place, length, patch in damages:
        at = place % (len(content) + 1)
        content[at : at + length] = patch
    read_all_ways(bytes(content), suffix)


def mutated(table, mutations):
    """The table with cells, rows or columns replaced, deleted or doubled."""
    table = [list(row) for row in table]
    for what, i, j, cell in mutations:
        row = i % len(table)
        column = j % max(1, len(table[0]))
        if what == "cell":
            table[row] = [cell if c == column else old for c, old in enumerate(table[row])]
        elif what == "row deleted" and len(table) > 1:
            del table[row]
        elif what == "row doubled":
            table.insert(row, list(table[row]))
        elif what == "column deleted":
            table = [[old for c, old in enumerate(cells) if c != column] for cells in table]
        elif what == "column doubled":
            table = [[*cells[:column], *cells[column : column + 1], *cells[column:]] for cells in table]
        elif what == "rows swapped":
            table[row], table[0] = table[0], table[row]
    return table


MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["cell", "cell", "row deleted", "row doubled", "column deleted", "column doubled", "rows swapped"]
        ),
        st.integers(0, 20),
        st.integers(0, 20),
        CELLS,
    ),
    max_size=4,
)


@fuzz(400)
@given(st.sampled_from([LONG, WIDE, ROWS, TRUTH, FEATURES]), MUTATIONS, st.booleans())
def test_a_table_with_some_cells_rows_or_columns_wrong_is_read_or_refused(table, mutations, as_parquet):
    table = mutated(table, mutations)
    if as_parquet:
        columns = [[cells[c] for cells in table[1:]] for c in range(len(table[0]))]
        read_all_ways(parquet(table[0], columns), ".parquet")
    else:
        read_all_ways(csv_text(table), ".csv")


PATCHES = [b"", b",", b'"', b"\n", b"\r", b"\r\n", b"\0", b" ", b"\xef\xbb\xbf", b"\xff", b"'", b"nan", b"1_0"]


def outcome(content, least):
    """What a CSV says where Arrow reads those of so many bytes: reports to the bit, or the refusal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("verax.tables.text._LARGE", least)
        try:
            found = verax.read(content)
        except verax.VeraxError as refusal:
            return type(refusal), str(refusal)
    rows = None if found.probabilities is None else found.probabilities.tobytes()
    return found.labels.tobytes(), found.labels.dtype, rows, found.agents, found.tasks, found.classes, found.notes


@fuzz(400)
@given(
    st.sampled_from([LONG, WIDE, ROWS]),
    MUTATIONS,
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 3), st.sampled_from(PATCHES))),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_arrow_reads_a_csv_as_the_reader_without_it_does_or_leaves_it_to_it(table, mutations, damages, end, quoted):
    rows = [[f'"{cell}"' if quoted else cell for cell in row] for row in mutated(table, mutations)]
    content = bytearray("".join(",".join(row) + end for row in rows).encode(errors="replace"))
    for place, length, patch in damages:
        at = place % (len(content) + 1)
        content[at : at + length] = patch
    assert outcome(bytes(content), 0) == outcome(bytes(content), 2**60)


@pytest.mark.parametrize(("quoted", "plain"), [("agent 3", True), ('"agent 3"', True), ('"agent ""3"""', False)])
def test_arrow_reads_a_large_csv_where_quotes_are_plain(quoted, plain, tmp_path, monkeypatch):
    seen = []

    def spy(*args):
        seen.append(read_plain_csv(*args))
        return seen[-1]

    monkeypatch.setattr("verax.tables.text.read_plain_csv", spy)
    rows = "".join(f"{t},agent {a},{'xyz'[t * a % 3]}\n" for t in range(20_000) for a in range(4))
    path = tmp_path / "long.csv"
    path.write_text('"task","agent","label"\n' + rows.replace("agent 3", quoted))
    assert verax.read(path).labels[3].tolist() == [t * 3 % 3 for t in range(20_000)]
    assert [table is not None for table in seen] == [plain]


def test_arrow_is_read_without_pandas(tmp_path):
    tables.write(KNOWN, path := tmp_path / "long.parquet")
    code = f"import sys, verax; verax.read({str(path)!r}); sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# Integers stay small: a label of 10**12 without classes has a test of its own, in a process that may fail.
ANY_ARRAY = st.one_of(
    hnp.arrays(
        st.sampled_from([np.int8, np.int64]),
        hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
        elements=st.integers(-2, 4),
    ),
    hnp.arrays(st.sampled_from([np.float16, np.float64]), hnp.array_shapes(min_dims=0, min_side=0, max_side=3)),
    hnp.arrays(
        hnp.unicode_string_dtypes(max_len=3)
        | hnp.byte_string_dtypes(max_len=3)
        | hnp.datetime64_dtypes()
        | st.just(bool),
        hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
    ),
)


@fuzz(300)
@given(st.dictionaries(st.sampled_from([*ARRAYS, "probabilities", "tasks"]), ANY_ARRAY, max_size=3), st.booleans())
def test_an_npz_of_strange_arrays_is_read_or_refused(arrays, beside_good):
    read_all_ways(npz(**(ARRAYS if beside_good else {}) | arrays), ".npz")


@fuzz(100)
@given(ANY_ARRAY)
def test_an_npy_of_a_strange_array_is_read_or_refused(array):
    read_all_ways(npy(array), ".npy")


@st.composite
def any_reports(draw):
    """Reports of awkward names, with abstentions; two labels are always there, so that any file can be read."""
    k, n, size = draw(st.integers(1, 3)), draw(st.integers(2, 4)), draw(st.integers(2, 4))
    labels = draw(hnp.arrays(np.int64, (k, n), elements=st.integers(-1, size - 1)))
    labels[0, :2] = 0, 1
    agents, tasks, classes = (draw(st.lists(NAMES, min_size=m, max_size=m, unique=True)) for m in (k, n, size))
    rows = None
    if draw(st.booleans()):
        rows = np.random.default_rng(draw(st.integers(0, 2**32))).dirichlet(np.ones(size), (k, n))
    return Reports.of(labels, rows, agents=agents, tasks=tasks, classes=classes)


@fuzz(100)
@given(any_reports())
def test_any_reports_come_back_from_every_format_that_holds_them(reports):
    formats = FORMATS if reports.probabilities is None else ROW_FORMATS
    for name in formats:
        with tempfile.TemporaryDirectory() as folder:
            found = through(reports, Path(folder) / name)
        assert_sound(found)
        assert said(found) == said(reports)
        if name == "reports.npz":
            assert_same(found, reports)
        elif reports.probabilities is not None:
            assert found.classes == reports.classes
        else:
            assert found.classes == class_order({label for label, _ in said(reports).values()})
        if name.startswith("wide"):
            assert (found.agents, found.tasks) == (reports.agents, reports.tasks)
