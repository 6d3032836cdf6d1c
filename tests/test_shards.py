"""Reports in shards score as they do whole: to the last bit for labels, whoever reads them, or not at all."""

from __future__ import annotations

import copy
import importlib
import json
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from multiprocessing import get_context
from operator import add
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng
from typer.testing import CliRunner

import verax
from verax import Reports, executors, statistic, tally
from verax.cli import app
from verax.errors import InputError, OptionError, VeraxError
from verax.kernels import Engine
from verax.plan import Mechanism
from verax.tables import Shard, beside, blocks, find, formats, truth_of, writing
from verax.tally import Tally, score_shards

psutil = pytest.importorskip("psutil")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

MECHANISMS = [
    {},
    {"rule": "ca"},
    {"rule": "ca", "sign": "plugin"},
    {"rule": "ca", "sign": "identity", "over": "median"},
    {"rule": "ca", "over": "median"},
    {"over": "median"},
    {"rule": "ce"},
    {"rule": "brier"},
    {"rule": "ce", "over": "median", "floor": 1e-3},
    {"rule": "ca", "sign": "matrix"},
    {"rule": "ca", "sign": "zeros and ones"},
]  # fmt: skip


def world(case):
    """A random case: reports, options, and the truth as a mapping or None."""
    rng = default_rng(case)
    agents, tasks, size = (int(rng.integers(*limits)) for limits in ((2, 9), (6, 120), (2, 6)))
    options = dict(MECHANISMS[case % len(MECHANISMS)])
    right = rng.integers(0, size, tasks)
    labels = np.where(rng.random((agents, tasks)) < 0.6, right, rng.integers(0, size, (agents, tasks)))
    if case % 3 == 1:
        labels[rng.random(labels.shape) < 0.2] = -1
    if case % 3 == 2:  # the same gaps in several agents, as `linear` groups them
        labels = np.where((rng.random((2, tasks)) < 0.8)[rng.integers(0, 2, agents)], labels, -1)
    rows = None
    if options.get("rule") in ("ce", "brier"):
        rows = rng.random((agents, tasks, size)) + 3 * np.eye(size)[np.maximum(labels, 0)]
        rows = np.where((labels < 0)[..., None], np.nan, rows / rows.sum(2, keepdims=True))
    names = [f"c{i}" for i in range(size)]
    match options.get("sign"):
        case "matrix":
            options["sign"] = rng.random((size, size))
        case "zeros and ones":
            options["sign"] = (rng.random((size, size)) < 0.5).astype(int)
    reports = Reports.of(labels, rows, agents=[f"a{i}" for i in range(agents)], classes=names,
                         tasks=[f"t{i}" for i in rng.permutation(tasks)])  # fmt: skip
    truth = None
    if case // len(MECHANISMS) % 3:
        covered = rng.random(tasks) < (1.0 if case // len(MECHANISMS) % 3 == 1 else 0.4)
        covered[:2] = True
        truth = {
            t: names[k] for t, k, known in zip(reports.tasks, right.tolist(), covered.tolist(), strict=True) if known
        }
        if len(truth) == tasks:
            options.pop("over", None)
    return reports, options, truth


def cut(reports, rng, pieces, named=False):
    """The reports in batches of tasks; labels alone name only the agents and classes that occur there, as files do."""
    place = rng.integers(0, pieces, len(reports.tasks))
    batches = [reports.take(place == piece) for piece in range(pieces) if (place == piece).any()]
    given = reports.probabilities is not None or named or rng.random() < 0.3
    return batches if given else [bare(batch) for batch in batches]


def bare(batch):
    who = np.nonzero((batch.labels >= 0).any(1))[0]
    used = np.unique(batch.labels[batch.labels >= 0])
    labels = np.where(batch.labels[who] < 0, -1, np.searchsorted(used, batch.labels[who]))
    names = [batch.classes[k] for k in used]
    named = Reports.of(labels, agents=[batch.agents[i] for i in who], tasks=batch.tasks, classes=names)
    return replace(named, classes_given=False)


def alike(one, other):
    """The same document; labels to the last bit, errors and rows to rounding."""
    assert (one.mechanism, one.tasks, one.classes, one.warnings) == (
        other.mechanism, other.tasks, other.classes, other.warnings,
    )  # fmt: skip
    exact = one.mechanism.rule not in ("ce", "brier")
    for a, b in zip(one.scores, other.scores, strict=True):
        assert (a.agent, a.tasks, a.references) == (b.agent, b.tasks, b.references)
        assert (
            a.score == b.score
            if exact or b.score is None
            else math.isclose(a.score, b.score, rel_tol=1e-11, abs_tol=1e-13)
        )
        assert (a.stderr is None) == (b.stderr is None)
        assert a.stderr is None or math.isclose(a.stderr, b.stderr, rel_tol=1e-12, abs_tol=1e-14)


def tallied(batches, options, truth, pairs=False):
    found = Tally(Mechanism.of(**options), truth, pairs=pairs)
    for batch in batches:
        found.update(batch)
    return found


@pytest.mark.parametrize("case", range(len(MECHANISMS) * 3))
def test_batches_of_tasks_score_as_the_whole(case):
    for seed in (case, case + 99, case + 198, case + 297):
        reports, options, truth = world(seed)
        given = "sign" in options and not isinstance(options["sign"], str)
        if truth is not None:
            options["against"] = [None, "peers", "hybrid"][seed // 7 % 3]
        batches = cut(reports, default_rng(seed), 1 + case % 5, given)
        whole = verax.score(reduce(add, batches), truth, **options)
        try:
            scores = tallied(batches, options, truth).scores(again=batches)
        except tally.Abstained:
            scores = tallied(batches, options, truth, pairs=True).scores(again=batches)
        alike(scores, whole)


def test_tallies_merge_in_any_grouping_to_the_same_scores():
    for case in range(0, 66, 5):
        reports, options, truth = world(case)
        batches = [*cut(reports, default_rng(case), 4, named=True)]
        one = tallied(batches, options, truth, pairs=True)
        pieces = [tallied([batch], options, truth, pairs=True) for batch in batches]
        before = [pickle.dumps(piece._held) for piece in pieces]
        right = reduce(lambda later, earlier: copy.deepcopy(earlier).merge(later), reversed(pieces))
        left = reduce(Tally.merge, pieces[1:], copy.deepcopy(pieces[0]))
        assert [pickle.dumps(piece._held) for piece in pieces] == before, "merging must leave the other as it was"
        alike(right.scores(again=batches), one.scores(again=batches))
        assert left.scores(again=batches) == one.scores(again=batches)


def test_a_tally_that_refuses_a_batch_is_as_it_was_before():
    one, gap = Reports.of(labels=[[0, 1, 1], [0, 1, 0]]), Reports.of(labels=[[0, 1]], tasks=["a", "b"])
    found = Tally().update(one)
    with pytest.raises(tally.Abstained):
        found.update(gap)
    assert found.scores(again=[one]) == verax.score(one)


def test_tallies_of_different_mechanisms_do_not_merge():
    for other in (Tally(Mechanism.of("ca")), Tally(pairs=True), Tally(truth={"a": "b"})):
        with pytest.raises(OptionError, match="made for different mechanisms"):
            Tally().merge(other)


def test_without_a_second_look_scores_are_the_same_and_errors_are_absent():
    reports = world(0)[0]
    scores, whole = Tally().update(reports).scores(), verax.score(reports)
    assert [s.score for s in scores.scores] == [s.score for s in whole.scores]
    assert {s.stderr for s in scores.scores} == {None}
    assert "second look" in scores.warnings[-1]
    truth = dict.fromkeys(reports.tasks, "c0")  # against truth, counts say all
    alike(Tally(truth=truth).update(reports).scores(), verax.score(reports, truth))


# Files


def frame(reports, path, kind):
    """Write reports as one kind of file."""
    if kind == "stored.npz":
        np.savez(path, **writing.arrays_of(reports))
    elif kind == "groups.parquet":
        table = pa.table(dict(writing.wide_columns(reports)))
        pq.write_table(table, path, row_group_size=7)
    else:
        verax.write(reports, path, wide="wide" in kind)


KINDS = ["long.csv", "wide.csv", "long.parquet", "wide.parquet", "groups.parquet", "stored.npz", "compressed.npz"]


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_every_kind_score_as_the_files_read_whole(kind, tmp_path, monkeypatch):
    for name, small in {"BLOCK": 40, "SHARD": 60, "LEAST_TASKS": 1}.items():
        monkeypatch.setattr(formats, name, small)
    done = 0
    for case in range(40):
        reports, options, truth = world(case)
        rows = reports.probabilities is not None
        if rows and ("wide" in kind or "groups" in kind):
            continue
        if "sign" in options and not isinstance(options["sign"], str):
            continue
        folder = tmp_path / str(case)
        folder.mkdir()
        batches = cut(reports, default_rng(case), 3, named="npz" in kind)
        for i, batch in enumerate(batches):
            frame(batch, folder / f"{i}-{kind}", kind)
        whole = verax.score(verax.read(*sorted(folder.iterdir())), truth, **options)
        found = find(folder / f"*{kind[-4:]}")
        assert len(found) >= len(batches)
        alike(score_shards(found, Mechanism.of(**options), truth), whole)
        done += 1
    assert done > 15


def test_a_single_npy_is_reports_of_numbered_agents_and_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "SHARD", 100)
    monkeypatch.setattr(formats, "LEAST_TASKS", 5)
    labels = default_rng(3).integers(-1, 4, (5, 200)).astype(np.int16)
    np.save(tmp_path / "labels.npy", labels)
    found = find(tmp_path / "labels.npy")
    assert len(found) == 10
    alike(score_shards(found, Mechanism.of("ca")), verax.score(Reports.of(labels), rule="ca"))
    np.save(tmp_path / "more.npy", labels)
    with pytest.raises(InputError, match="must be the only file"):
        find(tmp_path / "*.npy")


def test_truth_inside_arrays_counts_only_where_it_is_asked_for(tmp_path):
    reports, _, _ = world(0)
    truth = np.where(default_rng(0).random(len(reports.tasks)) < 0.5, 0, -1)
    verax.write(replace(reports, truth=truth.astype(np.int8)), tmp_path / "r.npz")
    whole = verax.read(tmp_path / "r.npz")
    alike(score_shards(find(tmp_path / "r.npz")), verax.score(whole))
    for against in ("truth", "hybrid"):
        found = score_shards(find(tmp_path / "r.npz"), Mechanism.of(against=against))
        alike(found, verax.score(whole, against=against))


def test_truth_files_say_what_the_mapping_says(tmp_path):
    reports, options, truth = world(22)
    assert truth is not None
    names = [*reports.tasks, "elsewhere"]
    table = {"task": names, "label": [truth.get(t) for t in names[:-1]] + ["c0"]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    lines = (f"{t},{label or ''}" for t, label in zip(*table.values(), strict=True))
    (tmp_path / "t.csv").write_text("\n".join(["task,label", *lines]))
    whole = verax.score(reports, truth, **options)
    for name in ("t.parquet", "t.csv"):
        found = tallied([reports], options, truth_of(tmp_path / name), pairs=True).scores(again=[reports])
        answered, mismatch = found.warnings
        assert "of its 22 tasks 1 not in the reports" in mismatch
        alike(replace(found, warnings=(answered,)), whole)


def columns_of(values):
    """Columns that hold the same labels in other types, or with odd cells."""
    text = [None if v is None else f"c{v}" for v in values]
    yield "text", pa.array(text), text
    yield "padded", pa.array([None if t is None else f" {t} " for t in text]), text
    yield "dictionary", pa.array([*text, "unused"]).dictionary_encode().slice(0, len(text)), text
    yield "integers", pa.array(values, pa.int16()), [None if v is None else str(v) for v in values]
    yield "floats", pa.array([math.nan if v is None else float(v) for v in values]), None
    yield "booleans", pa.array([None if v is None else v > 1 for v in values]), None
    yield "large text", pa.array(text, pa.large_string()), text
    yield "bytes", pa.array([None if t is None else t.encode() for t in text]), None


def test_parquet_columns_of_any_type_are_read_as_the_plain_reader_reads_them(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "BLOCK", 30)
    values = [None if v < 0 else v for v in default_rng(0).integers(-1, 4, 50).tolist()]
    tasks = pa.array([f"t{i}" for i in range(50)])
    for name, column, _ in columns_of(values):
        table = pa.table({"task": tasks, "ann": column, "bob": column, "__index_level_0__": tasks})
        pq.write_table(table, tmp_path / "r.parquet", row_group_size=20)
        whole = verax.read(tmp_path / "r.parquet")
        parts = [block for shard in find(tmp_path / "r.parquet") for block in blocks(shard)]
        assert len(parts) > 2
        joined = reduce(add, parts)
        assert (joined.agents, joined.tasks, joined.classes) == (whole.agents, whole.tasks, whole.classes), name
        assert np.array_equal(joined.labels, whole.labels), name
        long = {"task": tasks, "worker": pa.array([f"a{i % 3}" for i in range(50)]), "label": column}
        pq.write_table(pa.table(long), tmp_path / "l.parquet", row_group_size=20)
        whole, [part] = verax.read(tmp_path / "l.parquet"), [*blocks(find(tmp_path / "l.parquet")[0])]
        assert (part.agents, part.tasks, part.classes) == (whole.agents, whole.tasks, whole.classes), name
        assert np.array_equal(part.labels, whole.labels), name


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)


REFUSED = {
    "a label outside the classes": lambda p: parquet(p, task=["t1", "t2"], ann=["c0", "c9"], bob=["c0", "c1"]),
    "a task twice": lambda p: parquet(p, task=["t1", "t1"], ann=["c0", "c1"]),
    "an empty task": lambda p: parquet(p, task=["t1", None], ann=["c0", "c1"]),
    "no task": lambda p: parquet(p, ann=["c0", "c1"]),
    "no rows": lambda p: parquet(p, task=pa.array([], pa.string()), ann=pa.array([], pa.string())),
    "no agent": lambda p: parquet(p, task=["t1", "t2"]),
    "one column of labels": lambda p: parquet(p, task=["t1", "t2"], label=["c0", "c1"]),
    "probabilities of nobody": lambda p: parquet(p, task=["t1", "t2"], **{"p:c0": [0.5, 0.5]}),
    "text": lambda p: p.write_text("task,ann\nt1,c0\n"),
    "nothing": lambda p: p.write_bytes(b""),
    "a report twice": lambda p: parquet(p, task=["t1", "t1"], agent=["ann", "ann"], label=["c0", "c1"]),
    "nobody's report": lambda p: parquet(p, task=["t1", "t2"], agent=["ann", None], label=["c0", "c1"]),
    "a strange column": lambda p: parquet(p, task=["t1"], agent=["ann"], label=["c0"], note=["x"]),
    "a long label outside the classes": lambda p: parquet(p, task=["t1"], agent=["ann"], label=["c9"]),
    "a name that cannot be shown": lambda p: parquet(p, task=["t1", "t\u200b2"], ann=["c0", "c1"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_file_gets_the_plain_readers_sentence(case, tmp_path):
    path = tmp_path / "r.parquet"
    REFUSED[case](path)
    with pytest.raises(InputError) as plain:
        verax.read(path, classes=["c0", "c1"])
    with pytest.raises(InputError) as fast:
        score_shards(find(path, classes=["c0", "c1"]))
    assert str(fast.value) == str(plain.value)


def test_a_label_that_is_no_whole_number_is_refused_rather_than_read_in_two_ways(tmp_path):
    parquet(tmp_path / "r.parquet", task=["t1", "t2"], ann=[1.0, 2.5])
    with pytest.raises(InputError, match=r"column 'ann' has 2.5; write labels and tasks as text or whole numbers"):
        score_shards(find(tmp_path / "r.parquet"))


def test_rows_are_numbered_from_the_beginning_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "SHARD", 1)
    table = pa.table({"task": [f"t{i}" for i in range(30)], "ann": ["c0"] * 25 + ["c9"] + ["c1"] * 4})
    pq.write_table(table, tmp_path / "r.parquet", row_group_size=10)
    found = find(tmp_path / "r.parquet", classes=["c0", "c1"])
    assert len(found) == 3
    with pytest.raises(InputError, match=r"r.parquet, row 26: agent 'ann' has the unknown label 'c9'"):
        score_shards(found)


def test_a_task_in_two_shards_is_refused_with_both_names(tmp_path, monkeypatch):
    (tmp_path / "1.csv").write_text("task,ann,bob\nt1,a,b\nt2,b,b\n")
    (tmp_path / "2.csv").write_text("task,ann,bob\nt3,a,b\nt2,b,b\n")
    with pytest.raises(
        InputError, match=r"task 't2' is in \S*1.csv and again in \S*2.csv; a task belongs to one shard"
    ):
        score_shards(find(tmp_path / "*.csv"))
    monkeypatch.setattr(formats, "SHARD", 1)
    table = pa.table({"task": ["t1", "t2", "t3", "t1"], "ann": ["a", "b", "a", "b"]})
    pq.write_table(table, tmp_path / "r.parquet", row_group_size=2)
    with pytest.raises(InputError, match=r"'t1' is in \S* \(row group 0\) and again in \S* \(row group 1\)"):
        score_shards(find(tmp_path / "r.parquet"), Mechanism.of("accuracy"), {"t1": "a"})
    twice = tallied([Reports.of(labels=[[0, 1]])] * 2, {"rule": "accuracy"}, {"0": "0"})
    with pytest.raises(InputError, match="a task is twice in the reports"):
        twice.scores()


def test_two_tasks_that_share_a_digest_are_two_tasks(tmp_path, monkeypatch):
    (tmp_path / "1.csv").write_text("task,ann,bob\nt1,a,b\nt2,b,b\n")
    (tmp_path / "2.csv").write_text("task,ann,bob\nt3,a,b\nt4,b,b\n")
    whole = verax.score(verax.read(*sorted(tmp_path.iterdir())))
    same = {"t1": 1, "t2": 2, "t3": 3, "t4": 1}
    for module in (beside, tally):
        monkeypatch.setattr(module, "digests", lambda tasks: np.array([same[t] for t in tasks], dtype=np.uint64))
    alike(score_shards(find(tmp_path / "*.csv")), whole)


def test_a_damaged_shard_is_refused_and_nothing_is_scored(tmp_path):
    reports, _, _ = world(0)
    for name in ("1.parquet", "2.parquet"):
        verax.write(replace(reports, tasks=tuple(f"{name} {t}" for t in reports.tasks)), tmp_path / name, wide=True)
    damaged = bytearray((tmp_path / "2.parquet").read_bytes())
    damaged[4:200] = bytes(196)
    (tmp_path / "2.parquet").write_bytes(damaged)
    with pytest.raises(InputError, match=r"2.parquet: cannot be read as Parquet \("):
        score_shards(find(tmp_path / "*.parquet"))
    np.savez(tmp_path / "r.npz", **writing.arrays_of(reports))
    damaged = bytearray((tmp_path / "r.npz").read_bytes())
    labels = reports.labels.tobytes()
    at = damaged.index(labels)
    damaged[at] ^= 1
    (tmp_path / "r.npz").write_bytes(damaged)
    with pytest.raises(InputError, match=r"r.npz: not a NumPy file of plain arrays \(bad bytes in labels.npy\)"):
        score_shards(find(tmp_path / "r.npz"))
    (tmp_path / "r.npy").write_bytes(b"not an array")
    with pytest.raises(InputError, match=r"r.npy: not a NumPy file of one plain array"):
        find(tmp_path / "r.npy")


def test_a_shard_that_changes_between_the_looks_is_refused(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.csv").write_text(f"task,ann,bob\nt{i},a,b\nu{i},b,b\n")

    def progress(done, total):
        if done == 3:
            (tmp_path / "1.csv").write_text("task,ann,bob\nt1,b,b\nu1,a,b\n")

    with pytest.raises(InputError, match=r"1.csv: it changed between two looks"):
        score_shards(find(tmp_path / "*.csv"), progress=progress)


def test_what_is_no_sum_over_tasks_says_to_score_whole(tmp_path):
    np.savez(tmp_path / "r.npz", labels=[[0, 1, 0], [0, 1, 1]], public=[0, 1, 1])
    with pytest.raises(OptionError, match="public signal cannot be taken out shard by shard; score the file whole"):
        score_shards(find(tmp_path / "r.npz"))
    for options in ({"rule": "pmi"}, {"rule": "log"}, {"over": "one", "seed": "s"}, {"draws": 2}):
        with pytest.raises(OptionError, match=r"cannot be scored shard by shard .*; score the files whole"):
            Tally(Mechanism.of(**options))
    with pytest.raises(OptionError, match="sign matrix over shards needs all classes beforehand"):
        tallied([bare(world(0)[0])], {"rule": "ca", "sign": np.eye(5)}, None)


def test_sums_over_pairs_that_would_not_fit_are_refused_by_their_size(monkeypatch):
    monkeypatch.setattr(statistic, "_MOST_BYTES", 1000)
    reports, _, _ = world(0)
    agents, classes = len(reports.agents), len(reports.classes)
    with pytest.raises(InputError, match=rf"all pairs of {agents} agents with {classes} classes take .* GiB"):
        tallied([reports], {"rule": "ca"}, None)


def test_no_file_and_no_match_are_said(tmp_path):
    with pytest.raises(InputError, match=r"nothing\*.csv: no file matches this pattern"):
        find(tmp_path / "nothing*.csv")
    with pytest.raises(InputError, match="no such file"):
        find(tmp_path / "nothing.csv")
    with pytest.raises(InputError, match="is a folder"):
        find(tmp_path)
    with pytest.raises(InputError, match="no shards"):
        score_shards([])


# Executors


@pytest.fixture
def folder(tmp_path):
    """Twelve shards: wide Parquet files of 8 agents."""
    rng = default_rng(5)
    for i in range(12):
        right = rng.integers(0, 4, 50)
        labels = np.where(rng.random((8, 50)) < 0.7, right, rng.integers(0, 4, (8, 50)))
        named = Reports.of(labels, agents=[f"a{k}" for k in range(8)], tasks=[f"t{i}-{n}" for n in range(50)])
        verax.write(named, tmp_path / f"{i:02}.parquet", wide=True)
    return tmp_path


@pytest.fixture(autouse=True, scope="module")
def nobody_stays():
    """The processes that tests begin end with them; the one that minds what processes share ends with this one."""
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    yield
    begun = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    stay = psutil.wait_procs([p for p in begun if "resource_tracker" not in command(p)], timeout=10)[1]
    assert not [command(p) for p in stay]


def command(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def expected(folder, **options):
    return verax.score(verax.read(*sorted(folder.iterdir())), **options)


@pytest.mark.parametrize("options", [{}, {"rule": "ca"}, {"over": "median"}], ids=str)
def test_threads_and_processes_give_what_this_process_gives(folder, options):
    found = find(folder / "*.parquet")
    here = score_shards(found, Mechanism.of(**options))
    alike(here, expected(folder, **options))
    with ThreadPoolExecutor(3) as threads:
        assert score_shards(found, Mechanism.of(**options), executor=threads) == here
    with executors.Processes(2) as processes:
        assert score_shards(found, Mechanism.of(**options), executor=processes) == here


def test_processes_that_are_lost_half_way_are_begun_again(folder):
    found = find(folder / "*.parquet")
    killed = []

    def progress(done, total):
        if done in (2, 15):
            victim = next(iter(processes._pool._processes.values()))
            os.kill(victim.pid, signal.SIGKILL)
            killed.append(victim.pid)

    with executors.Processes(2) as processes:
        scores = score_shards(found, executor=processes, progress=progress)
    assert len(set(killed)) == 2
    assert scores == score_shards(found)


class Mortal(Shard):
    """A shard that ends whoever reads it."""

    def __reduce__(self):
        return os._exit, (9,)


def test_a_shard_that_ends_its_reader_twice_is_given_up_with_a_sentence(folder):
    found = find(folder / "*.parquet")
    with (
        executors.Processes(1) as processes,
        pytest.raises(VeraxError, match=r"0[01].parquet.*was lost twice .*nothing was scored"),
    ):
        score_shards([*found[:1], Mortal(found[1].path)], executor=processes)


def test_an_executor_that_cannot_go_on_is_said(folder):
    pool = ProcessPoolExecutor(1, get_context("spawn"))

    def progress(done, total):
        if done == 1:
            os.kill(next(iter(pool._processes)), signal.SIGKILL)

    with pool, pytest.raises(VeraxError, match=r"no worker is left to read it .*nothing was scored"):
        score_shards(find(folder / "*.parquet"), executor=pool, progress=progress)


def test_work_that_nobody_is_there_to_do_is_given_up(folder):
    ready, found = threading.Event(), find(folder / "*.parquet")
    with ThreadPoolExecutor(1) as inner:
        inner.submit(ready.wait)
        watched = executors.Watched(inner, lambda: False, workers=1, patience=0.2)
        with pytest.raises(VeraxError, match=r"nobody did the work for 0.2 seconds"):
            score_shards(found, executor=watched)
        ready.set()
        watched.shutdown()


class Elsewhere(Shard):
    """A shard that cannot be unpacked where it arrives."""

    def __reduce__(self):
        return importlib.import_module, ("verax_is_not_there",)


def test_a_place_that_lacks_what_it_needs_is_said(folder):
    with executors.Processes(1) as processes, pytest.raises(VeraxError, match=r"lost twice|install the same verax"):
        score_shards([Elsewhere(str(folder / "00.parquet"))], executor=processes)


def test_a_refusal_in_a_process_is_the_same_refusal(folder):
    (folder / "07.parquet").write_bytes(b"PAR1")
    here = "07.parquet: cannot be read as Parquet"
    with pytest.raises(InputError, match=here):
        find(folder / "*.parquet")
    (folder / "07.parquet").unlink()
    found = [*find(folder / "*.parquet"), Shard(str(folder / "gone.csv"))]
    with executors.Processes(2) as processes, pytest.raises(InputError, match=r"gone.csv: no such file"):
        score_shards(found, executor=processes)


@pytest.fixture(scope="module")
def dask():
    distributed = pytest.importorskip("distributed")
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
    ):
        yield cluster.scheduler_address


def test_a_dask_cluster_gives_what_this_process_gives(folder, dask):
    found = find(folder / "*.parquet")
    with executors.cluster(dask) as cluster:
        for options in ({}, {"rule": "ca"}):
            assert score_shards(found, Mechanism.of(**options), executor=cluster) == score_shards(
                found, Mechanism.of(**options)
            )
    for arguments in ([], ["--rule", "ca"]):
        here = run(str(folder / "*.parquet"), "--json", *arguments)
        assert run(str(folder / "*.parquet"), "--json", "--dask", dask, *arguments).stdout == here.stdout


@pytest.mark.slow
def test_five_hundred_worlds_score_the_same_in_shards_whoever_counts_and_wherever(tmp_path, dask):
    """Files read here, in threads, in processes and on a cluster, counted by each backend, beside the whole."""
    done = 0
    with (
        ThreadPoolExecutor(3) as threads, executors.Processes(2) as processes, executors.cluster(dask) as cluster,
    ):  # fmt: skip
        for case in range(640):
            reports, options, truth = world(case)
            if "sign" in options and not isinstance(options["sign"], str):
                continue
            folder = tmp_path / str(case)
            folder.mkdir()
            kind = "compressed.npz" if reports.probabilities is not None else KINDS[case % len(KINDS)]
            for i, batch in enumerate(cut(reports, default_rng(case), 1 + case % 4, named="npz" in kind)):
                frame(batch, folder / f"{i}-{kind}", kind)
            found, whole = find(folder / f"*{kind[-4:]}"), verax.read(*sorted(folder.iterdir()))
            here = score_shards(found, Mechanism.of(**options), truth)
            for backend in ("numpy", "numba", "torch"):
                alike(here, verax.score(whole, truth, backend=backend, **options))
                ours = Mechanism.of(**options)
                alike(score_shards(found, ours, truth, engine=Engine(backend, 1), executor=threads), here)
            for executor in (processes, cluster):
                assert score_shards(found, Mechanism.of(**options), truth, executor=executor) == here
            done += 1
    assert done >= 500


def test_a_dask_worker_that_is_killed_half_way_changes_nothing(folder, dask):
    distributed = pytest.importorskip("distributed")
    found, killed = find(folder / "*.parquet"), []

    def progress(done, total):
        if done in (3, 17):
            killed.append(next(iter(client.run(os.getpid).values())))
            os.kill(killed[-1], signal.SIGKILL)

    with distributed.Client(dask, set_as_default=False) as client, executors.cluster(dask) as cluster:
        scores = score_shards(found, executor=cluster, progress=progress)
    assert len(set(killed)) == 2
    assert scores == score_shards(found)


def test_no_scheduler_at_the_address_is_said(folder, monkeypatch):
    monkeypatch.setattr(executors, "_ANSWER", 0.5)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = run(str(folder / "*.parquet"), "--dask", f"tcp://127.0.0.1:{taken.getsockname()[1]}")
    assert result.exit_code == 2
    assert "no Dask scheduler answers" in result.stderr


# The command line


def run(*arguments):
    return CliRunner().invoke(app, ["score", *arguments])


def test_the_command_line_gives_the_same_json_for_shards_as_for_files(folder):
    paths = [str(path) for path in sorted(folder.iterdir())]
    truth = folder.parent / f"{folder.name}-truth.csv"
    truth.write_text("task,label\n" + "".join(f"t{i}-{n},{n % 4}\n" for i in range(12) for n in range(0, 50, 3)))
    for options in ([], ["--truth", str(truth)], ["--over", "median"], ["--rule", "ca", "--classes", "0,1,2,3"]):
        whole = json.loads(run(*paths, "--json", *options).stdout)
        for way in ([str(folder / "*.parquet")], [*paths, "--workers", "1"]):
            result = run(*way, "--json", *options)
            assert (result.exit_code, result.stderr) == (0, "")
            scores = json.loads(result.stdout)
            for one, other in zip(scores.pop("scores"), whole["scores"], strict=True):
                assert one.pop("stderr") == pytest.approx(other["stderr"], rel=1e-12)
                assert one.items() <= other.items()
            assert scores.items() <= whole.items()


def test_options_that_do_not_go_with_shards_are_refused_before_anything_is_read(folder):
    pattern = str(folder / "*.parquet")
    for options, words in {
        ("--html", "page.html"): "--html needs the reports whole",
        ("--public", "signal.csv"): "public signal cannot be taken out shard by shard",
        ("--rule", "pmi"): "by rule pmi; score the files whole",
        ("--over", "one", "--seed", "x"): "against one drawn peer; score the files whole",
        ("--workers", "0"): "workers is 0",
        ("--workers", "2", "--dask", "tcp://127.0.0.1:1"): "give one",
        ("--truth", "truth.npy"): "give task,label with shards",
        ("--over", "worst"): "over is 'worst'",
        ("--rule", "accuracy"): "rule accuracy needs the truth",
        ("--sign", __file__, "--rule", "ca"): "needs all classes beforehand",
        ("--sign", "spilt", "--rule", "ca"): "sign is 'spilt'",
    }.items():
        result = run(pattern, *options)
        assert (result.exit_code, result.stdout) == (2, ""), options
        assert words in result.stderr
    result = CliRunner().invoke(app, ["audit", pattern])
    assert result.exit_code == 2
    assert "only verax score takes a pattern" in result.stderr
    result = run(str(folder / "*.npz"))
    assert result.exit_code == 2
    assert "no file matches this pattern" in result.stderr


def test_files_beyond_a_gibibyte_are_read_as_shards_where_the_rule_allows(folder, monkeypatch):
    from verax.cli import score as cli

    asked = []
    monkeypatch.setattr(cli, "_LARGE", 10)
    monkeypatch.setattr(tally, "score_shards", lambda *a, **k: asked.append(a) or expected(folder))
    paths = [str(path) for path in sorted(folder.iterdir())]
    assert run(*paths).exit_code == 0
    assert len(asked) == 1
    assert run(*paths, "--over", "one", "--seed", "x").exit_code == 0
    assert len(asked) == 1


# a process inherits an ignored SIGINT (under nohup, say), and would then never end: the child sets its own handler
INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_leaves_no_process_behind(folder, how, tmp_path_factory):
    slow = tmp_path_factory.mktemp("slow")  # where whoever is begun to read learns to take for ever
    (slow / "sitecustomize.py").write_text(
        "import sys, time\nif any('spawn_main' in argument for argument in sys.orig_argv):\n"
        "    import verax.tables\n    verax.tables.blocks = lambda shard: time.sleep(600)\n"
    )
    path = os.pathsep.join([str(slow), *filter(None, [os.environ.get("PYTHONPATH")])])
    started = INTERRUPTIBLE + "from verax.cli import main; main()"
    command = [sys.executable, "-c", started, "score", str(folder / "*"), "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                          env={**os.environ, "PYTHONPATH": path}) as process:  # fmt: skip
        parent, children = psutil.Process(process.pid), []
        try:
            begun = time.monotonic()
            while sum("spawn_main" in argument for argument in map(globals()["command"], parent.children())) < 2:
                assert time.monotonic() - begun < 60
                time.sleep(0.05)
            time.sleep(0.5)
            children = parent.children(recursive=True)
            if how == signal.SIGINT:
                os.killpg(process.pid, how)
            else:
                os.kill(process.pid, how)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
        assert out == b""
        assert process.returncode != 0
    assert not psutil.wait_procs(children, timeout=20)[1]


@pytest.mark.slow
def test_a_hundred_million_reports_take_little_memory(tmp_path):
    script = Path(__file__).parents[1] / "benchmarks" / "shards.py"
    out = tmp_path / "shards.json"
    subprocess.run([sys.executable, script, "--runs", "1", "--out", out], check=True)
    found = json.loads(out.read_text())
    assert found["reports"] == 10**8
    assert max(held for name, held in found["megabytes"].items() if "reading alone" not in name) < 500
    assert found["identical"]


def test_shards_that_take_little_memory_are_read_once(tmp_path, monkeypatch):
    labels = default_rng(3).integers(0, 3, (4, 90))
    for i in range(3):
        some = slice(30 * i, 30 * i + 30)
        verax.write(
            Reports.of(labels[:, some], tasks=[f"t{n}" for n in range(90)][some]), tmp_path / f"{i}.csv", wide=True
        )
    found, read = find(tmp_path / "*.csv"), []

    def seen(shard):
        read.append(shard.name)
        return blocks(shard)

    monkeypatch.setattr(tally, "blocks", seen)
    for room, times in ((2**25, [1, 1, 1]), (30 * 104 * 2, [1, 1, 2]), (0, [2, 2, 2])):
        read.clear()
        monkeypatch.setattr(tally, "_KEPT_BYTES", room + 500)
        scores = score_shards(found)
        assert sorted(read.count(shard.name) for shard in found) == times
        alike(scores, verax.score(verax.read(*sorted(tmp_path.glob("*.csv")))))
