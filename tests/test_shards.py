"""Reports in shards score as they do whole: to the last bit for labels, whoever reads them, or not at all."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pytest
from numpy.random import default_rng

import verax
from verax import Reports, files, shards, sums, tally
from verax.errors import InputError, OptionError
from verax.mechanisms import Options
from verax.shards import find, read, read_truth
from verax.tally import Tally, score_shards

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
    found = Tally(Options(**options), truth, pairs=pairs)
    for batch in batches:
        found.update(batch)
    return found


@pytest.mark.parametrize("case", range(len(MECHANISMS) * 3))
def test_batches_of_tasks_score_as_the_whole(case):
    for seed in (case, case + 99, case + 198, case + 297):
        reports, options, truth = world(seed)
        given = "sign" in options and not isinstance(options["sign"], str)
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
        np.savez(path, **files._arrays(reports))
    elif kind == "groups.parquet":
        table = pa.table(dict(files._wide_columns(reports)))
        pq.write_table(table, path, row_group_size=7)
    else:
        verax.write(reports, path, wide="wide" in kind)


KINDS = ["long.csv", "wide.csv", "long.parquet", "wide.parquet", "groups.parquet", "stored.npz", "compressed.npz"]


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_every_kind_score_as_the_files_read_whole(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_BLOCK", 40)
    monkeypatch.setattr(shards, "_SHARD", 60)
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
        alike(score_shards(found, Options(**options), truth), whole)
        done += 1
    assert done > 15


def test_a_single_npy_is_reports_of_numbered_agents_and_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_SHARD", 100)
    labels = default_rng(3).integers(-1, 4, (5, 200)).astype(np.int16)
    np.save(tmp_path / "labels.npy", labels)
    found = find(tmp_path / "labels.npy")
    assert len(found) == 10
    alike(score_shards(found, Options("ca")), verax.score(Reports.of(labels), rule="ca"))
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
        found = score_shards(find(tmp_path / "r.npz"), Options(against=against))
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
        alike(tallied([reports], options, read_truth(tmp_path / name), pairs=True).scores(again=[reports]), whole)


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
    monkeypatch.setattr(shards, "_BLOCK", 30)
    values = [None if v < 0 else v for v in default_rng(0).integers(-1, 4, 50).tolist()]
    tasks = pa.array([f"t{i}" for i in range(50)])
    for name, column, _ in columns_of(values):
        table = pa.table({"task": tasks, "ann": column, "bob": column, "__index_level_0__": tasks})
        pq.write_table(table, tmp_path / "r.parquet", row_group_size=20)
        whole = verax.read(tmp_path / "r.parquet")
        parts = [block for shard in find(tmp_path / "r.parquet") for block in read(shard)]
        assert len(parts) > 2
        joined = reduce(add, parts)
        assert (joined.agents, joined.tasks, joined.classes) == (whole.agents, whole.tasks, whole.classes), name
        assert np.array_equal(joined.labels, whole.labels), name
        long = {"task": tasks, "worker": pa.array([f"a{i % 3}" for i in range(50)]), "label": column}
        pq.write_table(pa.table(long), tmp_path / "l.parquet", row_group_size=20)
        whole, [part] = verax.read(tmp_path / "l.parquet"), [*read(find(tmp_path / "l.parquet")[0])]
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
    monkeypatch.setattr(shards, "_SHARD", 1)
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
    monkeypatch.setattr(shards, "_SHARD", 1)
    table = pa.table({"task": ["t1", "t2", "t3", "t1"], "ann": ["a", "b", "a", "b"]})
    pq.write_table(table, tmp_path / "r.parquet", row_group_size=2)
    with pytest.raises(InputError, match=r"'t1' is in \S* \(row group 0\) and again in \S* \(row group 1\)"):
        score_shards(find(tmp_path / "r.parquet"), Options("accuracy"), {"t1": "a"})
    twice = tallied([Reports.of(labels=[[0, 1]])] * 2, {"rule": "accuracy"}, {"0": "0"})
    with pytest.raises(InputError, match="a task is twice in the reports"):
        twice.scores()


def test_two_tasks_that_share_a_digest_are_two_tasks(tmp_path, monkeypatch):
    (tmp_path / "1.csv").write_text("task,ann,bob\nt1,a,b\nt2,b,b\n")
    (tmp_path / "2.csv").write_text("task,ann,bob\nt3,a,b\nt4,b,b\n")
    whole = verax.score(verax.read(*sorted(tmp_path.iterdir())))
    same = {"t1": 1, "t2": 2, "t3": 3, "t4": 1}
    for module in (shards, tally):
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
    np.savez(tmp_path / "r.npz", **files._arrays(reports))
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


def test_what_is_no_sum_over_tasks_says_to_score_whole(tmp_path):
    np.savez(tmp_path / "r.npz", labels=[[0, 1, 0], [0, 1, 1]], public=[0, 1, 1])
    with pytest.raises(OptionError, match="public signal cannot be taken out shard by shard; score the file whole"):
        score_shards(find(tmp_path / "r.npz"))
    for options in ({"rule": "pmi"}, {"rule": "log"}, {"rule": len}, {"over": "one", "seed": "s"}, {"draws": 2}):
        with pytest.raises(OptionError, match=r"cannot be scored shard by shard .*; score the files whole"):
            Tally(Options(**options))
    with pytest.raises(OptionError, match="sign matrix over shards needs all classes beforehand"):
        tallied([bare(world(0)[0])], {"rule": "ca", "sign": np.eye(5)}, None)


def test_sums_over_pairs_that_would_not_fit_are_refused_by_their_size(monkeypatch):
    monkeypatch.setattr(sums, "_MOST_BYTES", 1000)
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
