"""Copies cannot profit: who is found, who never is, and what k names earn beside one."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from numpy.random import default_rng
from typer.testing import CliRunner

import verax
from verax import Reports
from verax.audit.copies import copies
from verax.cli import app
from verax.copies import SHARED, find_copies, voices
from verax.errors import InputError, OptionError
from verax.federation import Payroll, Referee
from verax.groups import groups_among, joined
from verax.intervals import least_share, quantile, wilson
from verax.ledger import Ledger
from verax.rounds import Rounds, Spec
from verax.transcript import settlement

SCHEMES = ("clipped", "affine", "proportional")
CLASSES = tuple("abcd")


def answers(rng, truth, quality, classes=4):
    """Labels of agents that are right on a share of the tasks, and otherwise wrong in any way."""
    wrong = (truth + rng.integers(1, classes, (len(quality), len(truth)))) % classes
    return np.where(rng.random(wrong.shape) < np.array(quality)[:, None], truth, wrong)


def crowd(seed, tasks=600, quality=(0.9, 0.85, 0.8, 0.75, 0.7, 0.65)):
    rng = default_rng(seed)
    return answers(rng, rng.integers(0, 4, tasks), quality)


def with_noise(rng, labels, rate, names, classes=4):
    """Copies of one report, each with a share of its labels changed."""
    rows = np.tile(labels, (names, 1))
    changed = rng.random(rows.shape) < rate
    return np.where(changed, (rows + rng.integers(1, classes, rows.shape)) % classes, rows)


def accused(reports):
    return {c.agent for c in copies(reports, 0.95) if c.verdict == "fails"}


def honest_and_ring(seed, noise=0.0):
    """Three honest agents at 93 to 99 %, and two to four names with the report of one that is half right."""
    rng = default_rng(seed)
    classes, tasks, ring = int(rng.integers(2, 5)), int(rng.choice([100, 300, 1000, 3000])), int(rng.integers(2, 5))
    truth = rng.integers(0, classes, tasks)
    honest = answers(rng, truth, rng.uniform(0.93, 0.99, 3), classes)
    half = answers(rng, truth, [0.5], classes)[0]
    return Reports.of(np.vstack([honest, with_noise(rng, half, noise, ring, classes)]), classes=range(classes))


def test_no_honest_agent_is_accused_beside_a_ring_of_copies():
    worlds = [accused(honest_and_ring(seed)) for seed in range(400)]
    assert sum(bool(found & {"0", "1", "2"}) for found in worlds) == 0
    assert sum(bool(found) for found in worlds) >= 395  # and the ring is found


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
def test_no_honest_agent_is_accused_beside_a_ring_whose_copies_differ(noise):
    assert not any(accused(honest_and_ring(seed, noise)) & {"0", "1", "2"} for seed in range(60))


def test_eight_identical_of_thirteen_are_found_and_nobody_else():
    for seed in range(10):
        labels = crowd(seed, quality=(0.9, 0.85, 0.8, 0.75, 0.7, 0.6))
        grown = Reports.of(np.vstack([labels[:5], *[labels[5:]] * 8]))
        assert accused(grown) == {str(i) for i in range(5, 13)}


def test_six_identical_of_ten_are_found_and_paid_no_more_than_one():
    labels = crowd(3, quality=(0.9, 0.85, 0.8, 0.75, 0.6))
    grown = Reports.of(np.vstack([labels[:4], *[labels[4:]] * 6]))
    assert accused(grown) == {str(i) for i in range(4, 10)}
    alone = verax.pay(verax.score(Reports.of(labels)), budget=1000)
    paid = verax.pay(verax.score(grown), budget=1000, clusters=verax.audit(grown))
    assert sum(paid[str(i)].amount for i in range(4, 10)) == alone["4"].amount
    assert [paid[str(i)].amount for i in range(4)] == [alone[str(i)].amount for i in range(4)]


def test_agents_that_are_nearly_always_right_are_not_copies_where_they_say_the_same():
    """Equal reports of 60 tasks, with three departures: the next good agent may well say the same."""
    truth = default_rng(0).integers(0, 4, 60)
    good = truth.copy()
    good[:3] = (good[:3] + 1) % 4
    others = answers(default_rng(1), truth, [0.8, 0.8, 0.7])
    found = {c.agent: c for c in copies(Reports.of(np.vstack([good, good, others])), 0.95)}
    assert found["0"].verdict == found["1"].verdict == "undecided"
    assert "the same as '1' on every task" in found["0"].why and "tasks would decide" in found["0"].why


def test_a_merge_is_undone_when_the_ring_it_rested_on_is_found():
    """In the first round a ring of five that differ a little has the plurality of a few tasks."""
    for seed in range(5):
        rng = default_rng(seed)
        truth = rng.integers(0, 4, 2000)
        honest = answers(rng, truth, [0.97, 0.96, 0.95, 0.94, 0.93, 0.92, 0.9, 0.9, 0.88, 0.85])
        ring = with_noise(rng, answers(rng, truth, [0.6])[0], 0.01, 5)
        assert find_copies(Reports.of(np.vstack([honest, ring]))).groups == (("10", "11", "12", "13", "14"),)


def literal_side(labels, i, j):
    """Departures of i from the clear plurality of everybody but i and j, and how many of them j follows."""
    departures = followed = 0
    for n in range(labels.shape[1]):
        if min(labels[i, n], labels[j, n]) < 0:
            continue
        votes = [labels[k, n] for k in range(len(labels)) if k not in (i, j) and labels[k, n] >= 0]
        most = max([votes.count(v) for v in votes], default=0)
        if most >= 3 and 2 * votes.count(labels[i, n]) < most:
            departures += 1
            followed += labels[i, n] == labels[j, n]
    return departures, followed


@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_pairs_are_judged_as_the_definition_says_and_none_that_would_be_found_is_overlooked(gaps):
    rng = default_rng(4)
    labels = np.vstack([crowd(5, 500, np.linspace(0.55, 0.9, 9)), np.empty((2, 500), dtype=int)])
    labels[9:] = with_noise(rng, labels[2], 0.04, 2)
    labels[rng.random(labels.shape) < gaps] = -1
    reports, z, sure = Reports.of(labels), quantile(0.95, 55), set()
    for i, j in combinations(range(11), 2):
        for a, b in ((i, j), (j, i)):
            departures, followed = literal_side(labels, a, b)
            if departures >= 50 and wilson(followed / departures, departures, z)[0] > SHARED:
                sure |= {i, j}
    assert {int(a) for group in find_copies(reports).groups for a in group} == sure
    assert sure == {2, 9, 10} or gaps
    for side, j in ((s, t.other(s.voice)) for t in find_copies(Reports.of(labels[:9])).twins for s in t.sides):
        departures, followed = literal_side(labels[:9], side.voice, j)
        assert side.departures == departures and round(side.share * departures) == followed


def test_the_bound_for_reports_that_are_the_same_is_the_exact_one():
    from scipy.stats import beta

    for count, pairs in ((10, 1), (28, 78), (200, 1000)):
        expected = beta.ppf(0.05 / pairs / 2, count, 1)
        assert least_share(count, 0.95, pairs) == pytest.approx(expected, rel=1e-12)


def test_what_is_found_does_not_depend_on_the_order_of_agents_or_tasks():
    rng = default_rng(6)
    labels = crowd(7, 800, np.linspace(0.6, 0.9, 12))
    labels = np.vstack([labels, labels[:2], with_noise(rng, labels[4], 0.02, 2)])
    names, tasks = [f"a{i}" for i in range(16)], [f"t{n}" for n in range(800)]
    plain = find_copies(Reports.of(labels, agents=names, tasks=tasks))
    assert plain.groups == (("a0", "a12"), ("a1", "a13"), ("a14", "a15", "a4"))
    i, n = rng.permutation(16), rng.permutation(800)
    moved = Reports.of(labels[np.ix_(i, n)], agents=[names[k] for k in i], tasks=[tasks[k] for k in n])
    assert find_copies(moved).groups == plain.groups
    assert {c.agent: c.why for c in copies(moved, 0.95) if c.verdict == "holds"} == {
        c.agent: c.why for c in copies(Reports.of(labels, agents=names, tasks=tasks), 0.95) if c.verdict == "holds"
    }


def test_who_says_nothing_is_nobodys_copy():
    labels = np.vstack([crowd(8), np.full((3, 600), -1)])
    assert voices(labels).tolist() == list(range(9))
    assert accused(Reports.of(labels)) == set()


# scores


@pytest.mark.parametrize(
    "options",
    [{}, {"over": "median"}, {"over": "skilled"}, {"against": "consensus"}, {"rule": "ca"}, {"rule": "dmi"}],
    ids=str,
)
def test_a_group_scores_what_its_first_scores_without_the_others(options):
    labels = crowd(9, 900)
    grown = Reports.of(np.vstack([labels, labels[2:3], labels[2:3]]))
    alone, apart = verax.score(Reports.of(labels), **options), verax.score(grown, copies="apart", **options)
    assert apart.copies == (("2", "6", "7"),) and len(apart) == 8
    for s in alone:
        assert (apart[s.agent].score, apart[s.agent].stderr, apart[s.agent].references) == (
            s.score, s.stderr, s.references,
        )  # fmt: skip
    assert apart["7"].score == apart["6"].score == alone["2"].score
    assert verax.Scores.from_json(apart.to_json()) == apart
    assert "copies" not in alone.to_json() and "copies" not in verax.score(grown, **options).to_json()


def test_groups_are_given_as_an_audit_its_document_or_names():
    labels = crowd(10)
    grown = Reports.of(np.vstack([labels, labels[:1]]))
    found = verax.audit(grown)
    assert groups_among(grown, "apart") == groups_among(grown, found) == groups_among(grown, found.to_json())
    assert groups_among(grown, [["6", "0"]]) == (("6", "0"),)  # the first in a list is the original
    with pytest.raises(OptionError, match="copies is 'away'; give 'apart'"):
        verax.score(grown, copies="away")
    with pytest.raises(InputError, match="a cluster names 'zoe', without a report here"):
        verax.score(grown, copies=[["0", "zoe"]])
    with pytest.raises(InputError, match="all agents are copies of one another"):
        verax.score(grown, copies=[[str(i) for i in range(7)]])


def test_an_audit_says_what_copies_gain_as_references_of_one_another():
    labels = crowd(11)
    grown = Reports.of(np.vstack([labels, labels[5:], labels[5:]]))
    scores, apart = verax.score(grown), verax.score(grown, copies="apart")
    gain = {c.agent: c.gain for c in verax.audit(grown) if c.code == "COPIES"}
    assert all(scores[a].score - gain[a] == pytest.approx(apart[a].score, abs=1e-15) for a in gain)
    assert min(gain["5"], gain["6"], gain["7"]) > 0.1 > abs(gain["0"]) > 0
    assert {c.gain for c in verax.audit(Reports.of(labels)) if c.code == "COPIES"} == {None}


# what k names earn beside one


def paid_for(amounts, names):
    return sum(amounts[name] for name in names)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_k_exact_copies_earn_no_more_than_one_name_paid_by_an_audit_or_by_scores_held_apart(scheme):
    labels = crowd(12)
    one = verax.pay(verax.score(Reports.of(labels)), budget=1000, scheme=scheme)
    for k in range(1, 21):
        grown = Reports.of(np.vstack([labels, *[labels[3:4]] * (k - 1)]))
        names = ["3", *map(str, range(6, 5 + k))]
        by_audit = verax.pay(verax.score(grown), budget=1000, scheme=scheme, clusters=verax.audit(grown))
        by_scores = verax.pay(verax.score(grown, copies="apart"), budget=1000, scheme=scheme)
        for paid in (by_audit, by_scores):
            amounts = {p.agent: p.amount for p in paid}
            assert paid_for(amounts, names) == one["3"].amount
            assert all(amounts[a] == one[a].amount for a in "01245")  # nobody else has more or less for it


@pytest.mark.parametrize("scheme", SCHEMES)
def test_k_exact_copies_earn_no_more_than_one_name_in_a_round_and_the_first_keeps_it(scheme):
    labels = crowd(12)
    spec = Spec("r", tuple(map(str, range(600))), CLASSES, "1000.00", scheme=scheme)
    honest = [(f"a{i}", {"labels": row.tolist()}) for i, row in enumerate(labels)]
    one = settlement(spec, honest, "", "").amounts
    for k in range(1, 21):
        stolen = [(f"A thief {n}", honest[3][1]) for n in range(k)]
        amounts = settlement(spec, honest + stolen, "", "").amounts
        assert amounts == one | {name: 0 for name, _ in stolen}  # the victim was first, and keeps all of it
        first = settlement(spec, [*honest[:3], *stolen, *honest[4:]], "", "").amounts
        assert first["A thief 0"] == one["a3"] and paid_for(first, [name for name, _ in stolen]) == one["a3"]


def test_k_exact_copies_earn_no_more_than_one_name_in_a_federation(tmp_path):
    labels, nothing = crowd(13, 400), {"said": np.zeros(400, dtype=np.int64)}

    def paid(name, rows):
        payroll = Payroll(str(tmp_path / "r.db"), budget="1000.00", significance=None)
        found = Referee(range(400), lambda model, pool: model["said"], CLASSES, payroll=payroll, name=name)
        return found.pay_round(nothing, {f"c{i:02}": {"said": row} for i, row in enumerate(rows)}).amounts

    one = paid("alone", labels)
    for k in (2, 3, 5, 10, 20):
        amounts = paid(f"with-{k}", np.vstack([labels, *[labels[3:4]] * (k - 1)]))
        assert paid_for(amounts, ["c03", *(f"c{i:02}" for i in range(6, 5 + k))]) == one["c03"]
        assert {a: amounts[a] for a in one if a != "c03"} == {a: one[a] for a in one if a != "c03"}


def test_copies_of_what_most_say_are_copies_though_they_depart_from_nothing():
    """The plurality of the others is a better report than any, and departs from nobody."""
    labels = crowd(12, 1000)
    votes = np.stack([(labels == k).sum(0) for k in range(4)]).argmax(0)
    spec = Spec("r", tuple(map(str, range(1000))), CLASSES, "1000.00")
    taken = [(f"a{i:02}", {"labels": row.tolist()}) for i, row in enumerate([*labels, *[votes] * 20])]
    one = settlement(spec, taken[:7], "", "").amounts
    for k in range(2, 21):
        assert settlement(spec, taken[: 6 + k], "", "").amounts == one | {name: 0 for name, _ in taken[7 : 6 + k]}


def test_the_study_of_sybils_is_what_the_docs_say():
    import sybils

    results = json.loads(sybils.RESULTS.read_text())
    written = (sybils.RESULTS.parents[2] / "docs" / "copies.md").read_text()
    assert sybils.tables(results) in written
    world = sybils.World("2 labels", 0)
    rows = [*world.honest, *sybils.ATTACKS["noisy copies only"](world, 5, 0.0)]
    one = sybils.paid(world, [*world.honest, world.own], True)
    assert sybils.paid(world, rows, True)[10:].sum() == one[10]
    assert sybils.paid(world, rows, False)[10:].sum() > 5 * one[10]


# rounds


@pytest.fixture
def rounds():
    ledger = Ledger.open("sqlite://")
    yield Rounds(ledger)
    ledger.close()


def a_round(rounds, taken, **asked):
    spec = Spec("r", tuple(map(str, range(600))), CLASSES, "1000.00", **asked)
    rounds.open(spec)
    rounds.fund("r")
    for agent, row in taken:
        rounds.submit("r", agent, Reports.of([row], tasks=spec.tasks, classes=CLASSES))
    rounds.seal("r")
    return rounds.settle("r")


def test_the_first_to_commit_is_the_original_and_who_replaces_its_report_moves_back(rounds):
    labels, other = crowd(14), crowd(15)[0]
    taken = [*((f"h{i}", row) for i, row in enumerate(labels[1:])), ("zoe", labels[0]), ("ann", labels[0])]
    found = a_round(rounds, taken)
    assert found.amounts["ann"] == 0 < found.amounts["zoe"]
    assert found.scores["ann"].score is None and found.scores.copies == (("zoe", "ann"),)
    assert "no score for 'ann': a copy of 'zoe', who committed first" in found.scores.warnings
    assert rounds.verify("r") == [] and rounds.payment("r", "zoe") == (found.amounts["zoe"],) * 2
    shown = rounds.show("r")["settlement"]
    assert shown["scores"]["copies"] == [["zoe", "ann"]]
    assert {c["agent"] for c in shown["copies"]} == {"ann", "zoe"}
    assert verax.pay(found.scores, budget="1000.00").payments == found.payments.payments

    later = Rounds(Ledger.open("sqlite://"))
    moved = a_round(later, [("zoe", labels[0]), *taken[:5], ("zoe", other), ("ann", labels[0]), ("zoe", labels[0])])
    assert moved.amounts["zoe"] == 0 and moved.amounts["ann"] == found.amounts["zoe"]
    later.ledger.close()


def test_a_round_may_pay_copies_in_equal_parts_or_each_of_them(rounds):
    labels = crowd(16)
    taken = [*((f"h{i}", row) for i, row in enumerate(labels)), ("copy", labels[0])]
    first = a_round(rounds, taken).amounts
    for asked, check in ((True, lambda a: a["h0"] + a["copy"] == first["h0"]), (False, lambda a: a["copy"] == a["h0"])):
        other = Rounds(Ledger.open("sqlite://"))
        assert check(a_round(other, taken, copies=asked).amounts)
        other.ledger.close()


def test_a_round_may_count_clusters_once_which_bounds_what_noisy_copies_gain():
    """Five names that each change a tenth of one report are no near-duplicates, and a cluster."""
    labels = crowd(17, 1000, np.linspace(0.6, 0.9, 10))
    ring = with_noise(default_rng(18), labels[5], 0.1, 4)
    spec = Spec("r", tuple(map(str, range(1000))), CLASSES, "1000.00", copies="clusters")
    taken = [(f"a{i:02}", {"labels": row.tolist()}) for i, row in enumerate(np.vstack([labels, ring]))]
    names = ["a05", *(f"a{i}" for i in range(10, 14))]
    alone, once = (settlement(spec, rows, "", "").amounts for rows in (taken[:10], taken))
    each = settlement(replace(spec, copies="first"), taken, "", "").amounts
    assert paid_for(once, names) <= alone["a05"] < paid_for(each, names) / 2
    assert {a: once[a] for a in alone if a != "a05"} == {a: alone[a] for a in alone if a != "a05"}
    grown = Reports.of(np.vstack([labels, ring]))
    found = verax.independence(grown)
    apart = verax.score(grown, copies=found)
    assert apart.copies == (("10", "11", "12", "13", "5"),) == groups_among(grown, found.to_json())
    assert (
        settlement(
            replace(spec, tasks=("1", "2"), min_tasks=1), [(name, {"labels": [0, 1]}) for name in "xy"], "", ""
        ).scores.copies
        == ()
    )  # too little to judge anybody by


def test_groups_that_meet_are_one():
    assert joined([["a", "b"], ["c"], ["b", "d"], ["d", "e"]]) == (("c",), ("a", "b", "d", "e"))


def test_the_command_line_says_who_is_paid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.csv").write_text("task\n" + "\n".join(map(str, range(40))) + "\n")

    def opened(name, *more):
        words = ["round", "open", name, "--tasks", "tasks.csv", "--classes", "a,b", "--budget", "10.00", *more]
        return CliRunner().invoke(app, words)

    asked = {(): "first", ("equal",): True, ("clusters",): "clusters", ("each",): None}
    for n, (more, said) in enumerate(asked.items()):
        assert opened(f"r{n}", *(["--copies", *more] if more else [])).exit_code == 0
        shown = json.loads(CliRunner().invoke(app, ["round", "show", f"r{n}", "--json"]).stdout)
        assert shown["spec"].get("copies") == said
    assert opened("r9", "--copies", "none").exit_code != 0


def test_what_a_spec_says_of_copies_is_what_it_said_when_it_was_stored():
    spec = Spec("r", ("1", "2"), ("a", "b"), "10.00")
    assert spec.to_json()["copies"] == "first" == Spec.from_json(spec.to_json()).copies
    of_before = {name: value for name, value in spec.to_json().items() if name != "copies"}
    assert Spec.from_json(of_before).copies is False and Spec.from_json(of_before).to_json() == of_before
    assert Spec.from_json(of_before | {"copies": True}).copies is True
    market = Spec("m", ("1", "2"), ("a", "b"), "10.00", kind="market", truth=(0, 1))
    assert market.copies is False and "copies" not in market.to_json()
    with pytest.raises(InputError, match="the spec"):
        Spec.from_json(of_before | {"copies": "last"})
