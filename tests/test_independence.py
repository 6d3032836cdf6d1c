"""INDEPENDENT: the effective number is right where it is known, families are found, and hard tasks make no family."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng

import verax
from verax import Independence, Reports
from verax.audit import audit
from verax.audit.kinship import products_of
from verax.errors import InputError, OptionError

DATA = Path(__file__).parents[2] / "shared" / "data"
MODELS = DATA / "cifar10_30_models.npz"


def answers(rng, truth, accuracy, classes):
    """One agent's labels; whoever errs takes any other label."""
    other = (truth + rng.integers(1, classes, len(truth))) % classes
    return np.where(rng.random(len(truth)) < accuracy, truth, other)


def families(seed, sizes, tasks=600, classes=2, share=1.0, accuracy=0.75):
    """Families whose members take their head's label on a share of the tasks and answer alone on the others."""
    rng = default_rng(seed)
    truth, rows = rng.integers(0, classes, tasks), []
    for size in sizes:
        head = answers(rng, truth, accuracy, classes)
        for _ in range(size):
            kept = rng.random(tasks) < (share if size > 1 else 0.0)
            rows.append(np.where(kept, head, answers(rng, truth, accuracy, classes)))
    return np.array(rows), truth


def copula(seed, agents, latent, rate=0.3, tasks=600):
    """Two labels; errors at one rate, by a Gaussian copula; and the correlation that the errors then have."""
    from scipy.stats import multivariate_normal, norm

    rng, cut = default_rng(seed), norm.ppf(rate)
    normal = np.sqrt(latent) * rng.normal(size=tasks) + np.sqrt(1 - latent) * rng.normal(size=(agents, tasks))
    both = multivariate_normal([0, 0], [[1, latent], [latent, 1]]).cdf([cut, cut])
    truth = rng.integers(0, 2, tasks)
    return truth ^ (normal < cut), truth, (both - rate**2) / (rate * (1 - rate))


def hard_tasks(seed, agents=10, tasks=3000, classes=2, spread=1.5, skills=None, lure=0.0):
    """Independent agents of mixed skill on tasks of mixed difficulty, some of whose errors go to a task's lure."""
    rng = default_rng(seed)
    truth, difficulty = rng.integers(0, classes, tasks), rng.normal(0, spread, tasks)
    skill = rng.normal(1.2, 0.8, agents) if skills is None else np.asarray(skills)
    right = 1 / classes + (1 - 1 / classes) / (1 + np.exp(difficulty - skill[:, None]))
    other = (truth + rng.integers(1, classes, (len(skill), tasks))) % classes
    lures = (truth + rng.integers(1, classes, tasks)) % classes
    other = np.where(rng.random(right.shape) < lure, lures, other)
    return np.where(rng.random(right.shape) < right, truth, other), truth, difficulty


def kish(sizes, share):
    """What families are worth in a plain vote: members of one correlate by share^2, of two not at all."""
    pairs = sum(s * (s - 1) for s in sizes) * share**2
    return sum(sizes) ** 2 / (sum(sizes) + pairs)


def counted_once(sizes, share):
    """The best weights of independent families add up what each is worth."""
    return sum(s / (1 + (s - 1) * share**2) for s in sizes)


KNOWN = [((5, 4), 1.0), ((7, 2), 1.0), ((4, 3, 1, 1), 0.8), ((1,) * 9, 0.0), ((9,), 0.8)]


def covered(sizes, share, worlds):
    """In how many worlds the known number is within its interval: in a plain vote, and with clusters counted once."""
    inside = np.zeros(2)
    for seed in range(worlds):
        labels, truth = families(seed, sizes, share=share)
        found = verax.independence(Reports.of(labels), truth=truth)
        known = (found.interval, kish(sizes, share)), (found.once_interval, counted_once(sizes, share))
        inside += [low - 1e-9 <= number <= high + 1e-9 for (low, high), number in known]
    return inside


@pytest.mark.parametrize(("sizes", "share"), KNOWN)
def test_the_effective_number_is_within_its_interval_where_it_is_known(sizes, share):
    assert (covered(sizes, share, 40) >= 33).all()


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "share"), KNOWN)
def test_the_effective_number_is_within_its_interval_in_400_worlds(sizes, share):
    assert (covered(sizes, share, 400) >= 364).all()


@pytest.mark.parametrize("latent", [0.0, 0.3, 0.7])
def test_errors_of_one_correlation_have_kishs_number(latent):
    inside = 0
    for seed in range(100):
        labels, truth, rho = copula(seed, 9, latent)
        found = verax.independence(Reports.of(labels), truth=truth)
        inside += found.interval[0] <= 9 / (1 + 8 * rho) <= found.interval[1]
    assert inside >= 88


def test_without_truth_the_interval_holds_whatever_all_share():
    """One source behind all nine, two families, nine independent agents: the bound is never too low."""
    for sizes, share in KNOWN:
        held = 0
        for seed in range(20):
            found = verax.independence(Reports.of(families(seed, sizes, share=share)[0]))
            assert found.interval[0] == 1.0
            held += kish(sizes, share) <= found.interval[1] + 1e-9
        assert held >= 17


def test_nine_judges_that_copy_two_are_worth_two_with_truth_or_without():
    labels, truth = families(0, (5, 4))
    for given in (truth, None):
        found = verax.independence(Reports.of(labels), truth=given)
        assert found.effective == pytest.approx(81 / 41, abs=0.15)
        assert found.once == pytest.approx(2, abs=0.15)
        assert [len(c.agents) for c in found.clusters] == [5, 4]
        assert all(c.identical and c.effective == pytest.approx(1, abs=1e-6) for c in found.clusters)


def test_the_covariance_of_errors_is_that_of_the_definition():
    """Slow loops: within each true label the products of deviations, over the tasks both answered."""
    labels, truth, _ = hard_tasks(3, agents=5, tasks=120, classes=3)
    gaps = np.where(default_rng(1).random(labels.shape) < 0.2, -1, labels)
    for held in (labels, gaps):
        found = products_of(held, truth, 3, [str(n) for n in range(120)])
        for i, j in np.ndindex(5, 5):
            total, count = 0.0, 0
            for n in range(120):
                if held[i, n] < 0 or held[j, n] < 0:
                    continue
                apart = []
                for agent in (i, j):
                    mine = held[agent][(truth == truth[n]) & (held[agent] >= 0)]
                    apart.append(np.eye(3)[held[agent, n]] - np.eye(3)[mine].mean(0))
                total, count = total + apart[0] @ apart[1], count + 1
            assert found.sums.sum(0)[i, j] == pytest.approx(total, abs=1e-4)
            assert found.tasks[i, j] == count
    dense = products_of(labels, truth, 3, [str(n) for n in range(120)])
    np.testing.assert_allclose(dense.covariance(), dense.sums.sum(0) / (120 - 3), rtol=1e-12)


def test_a_plain_vote_of_kin_errs_as_that_of_so_many_independent_agents():
    """The variance of the mean error of all, given the truth, is that of one agent over the effective number."""
    labels, truth = families(5, (4, 3, 2), tasks=40_000, share=0.8)
    found = verax.independence(Reports.of(labels), truth=truth)
    wrong = (labels != truth).astype(float)
    assert wrong.var(1).mean() / wrong.mean(0).var() == pytest.approx(found.effective, rel=0.02)


@pytest.mark.parametrize(("sizes", "classes"), [((4, 1, 1, 1, 1, 1), 2), ((3, 3, 3), 2), ((4, 3, 2, *[1] * 11), 5)])
def test_families_are_found_and_nobody_else(sizes, classes):
    for seed in range(5):
        labels, truth = families(seed, sizes, 1500, classes, share=0.8)
        found = verax.independence(Reports.of(labels), truth=truth)
        named = np.repeat(np.arange(len(sizes)), sizes)
        wanted = {tuple(str(i) for i in np.nonzero(named == f)[0]) for f, size in enumerate(sizes) if size > 1}
        assert {c.agents for c in found.clusters} == wanted
        for c in found.clusters:
            assert c.interval[0] * 0.98 <= len(c.agents) / (1 + (len(c.agents) - 1) * 0.64) <= c.interval[1] * 1.02


def worlds_without_kin():
    skewed = default_rng(9)
    truth = (skewed.random(800) < 0.15).astype(int)
    yield "uneven", np.array([answers(skewed, truth, a, 2) for a in np.linspace(0.6, 0.95, 12)]), truth
    for classes in (2, 10):
        yield f"hard {classes}", *hard_tasks(classes, classes=classes, spread=2.0)[:2]
        yield f"tiers {classes}", *tiers(classes)[:2]


def tiers(classes):
    """Eight weak and four strong agents, independent given truth and difficulty, on tasks of very mixed difficulty."""
    return hard_tasks(classes, classes=classes, spread=2.0, skills=[0.0] * 8 + [2.5] * 4, lure=0.6)


@pytest.mark.parametrize(
    ("name", "labels", "truth"), list(worlds_without_kin()), ids=lambda x: x if type(x) is str else ""
)
def test_hard_tasks_tiers_of_skill_and_uneven_priors_make_no_family(name, labels, truth):
    assert verax.independence(Reports.of(labels), truth=truth).clusters == ()
    without = verax.independence(Reports.of(labels))
    assert not any(c.certain for c in without.clusters)


def test_what_hard_tasks_make_all_share_is_said_to_be_open_and_goes_with_known_difficulty():
    labels, truth, difficulty = hard_tasks(4, tasks=4000)
    reports = Reports.of(labels)
    found = next(c for c in audit(reports, truth) if c.code == "INDEPENDENT")
    assert (found.verdict, found.agent) == ("undecided", None)
    assert "as hard tasks make them" in found.why
    assert found.interval[1] < 7
    levels = np.searchsorted(np.quantile(difficulty, np.linspace(0, 1, 21)[1:-1]), difficulty)
    known = verax.independence(reports, truth=truth, public=levels)
    assert known.interval[1] > 9.5


def test_independent_agents_hold_with_truth_and_never_without():
    labels, truth = families(6, (1,) * 8, tasks=4000)
    held = [c for c in audit(Reports.of(labels), truth) if c.code == "INDEPENDENT"]
    assert [c.verdict for c in held] == ["holds"]
    assert held[0].interval[0] < 8 < held[0].interval[1]
    blind = [c for c in audit(Reports.of(labels)) if c.code == "INDEPENDENT"]
    assert [c.verdict for c in blind] == ["undecided"]
    assert "labelled tasks drawn at random would tell" in blind[0].why
    few = [c for c in audit(Reports.of(labels[:, :150]), truth[:150]) if c.code == "INDEPENDENT"]
    assert few[0].verdict == "undecided" and "tasks would decide" in few[0].why
    labels, truth = families(6, (1,) * 30, tasks=300)
    pairs = next(c for c in audit(Reports.of(labels), truth) if c.code == "INDEPENDENT")
    assert pairs.interval[0] > 0.8 * 30 and pairs.verdict == "undecided" and "two may share as much as" in pairs.why


def test_a_failing_certificate_names_the_cluster_by_a_chain():
    labels, truth = families(7, (3, 1, 1, 1, 1, 1), tasks=1500, share=0.8)
    names = ["ann", "bob", "cat", "dan", "eve", "fay", "gus", "hal"]
    found = [c for c in audit(Reports.of(labels, agents=names), truth) if c.code == "INDEPENDENT"]
    assert [(c.agent, c.verdict) for c in found] == [(None, "fails"), *[(a, "fails") for a in ("ann", "bob", "cat")]]
    assert found[0].deviation == {"ann": "bob", "bob": "cat"}
    assert found[2].deviation == {"bob": "ann", "ann": "cat"}
    assert found[1].gain == pytest.approx(3 / (1 + 2 * 0.64), rel=0.1)


def test_the_page_draws_what_is_shared_in_the_order_of_clusters():
    from verax.score import prepare, scored
    from verax.show.report import report

    labels, truth = families(7, (3, 1, 1, 1, 1, 1), tasks=1500, share=0.8)
    mixed = [5, 0, 7, 1, 6, 2, 3, 4]
    ready = prepare(Reports.of(labels[mixed], agents=[f"agent{i}" for i in mixed]), truth)
    text = report("Audit", ready, scored(ready), audit(ready.reports, truth))
    drawn = text[text.index("<h2>Shared errors</h2>") :]
    places = [drawn.index(f">agent{i}<") for i in mixed]
    assert {mixed[k] for k in np.argsort(places)[:3]} == {0, 1, 2}
    assert drawn[: drawn.index("</table>")].count("<i>◆") == 6
    assert "Shared errors" not in report("Scores", ready, scored(ready))


def test_copies_are_said_to_be_copies():
    labels, truth = families(8, (2, 1, 1, 1, 1), tasks=1500)
    found = [c for c in audit(Reports.of(labels), truth) if c.code == "INDEPENDENT" and c.agent]
    assert all("says the same as" in c.why and "COPIES names" in c.why for c in found)


def test_a_small_cluster_between_others_in_skill_fails_without_truth_and_a_tier_does_not():
    rng = default_rng(11)
    truth = rng.integers(0, 2, 4000)
    head = answers(rng, truth, 0.75, 2)
    kin = [np.where(rng.random(4000) < 0.85, head, answers(rng, truth, a, 2)) for a in (0.6, 0.75, 0.9)]
    others = [answers(rng, truth, a, 2) for a in np.linspace(0.6, 0.92, 9)]
    found = verax.independence(Reports.of(np.array([*kin, *others])))
    assert [(c.agents, c.certain) for c in found.clusters] == [(("0", "1", "2"), True)]
    many = [np.where(rng.random(4000) < 0.85, head, answers(rng, truth, a, 2)) for a in (0.6, 0.7, 0.75, 0.8, 0.9)]
    open_ = verax.independence(Reports.of(np.array([*many, *others[:7]])))
    assert [(c.agents, c.certain) for c in open_.clusters] == [(("0", "1", "2", "3", "4"), False)]
    blind = [c for c in audit(Reports.of(tiers(10)[0])) if c.code == "INDEPENDENT"]
    assert {c.verdict for c in blind} == {"undecided"}
    assert len(blind) == 5 and "or of like skill at hard tasks" in blind[1].why


def test_as_many_labels_as_it_names_give_the_number_to_a_tenth():
    for sizes, accuracy in (((3, 3, 3), 0.7), ((5, 4), 0.9)):
        labels, truth = families(12, sizes, 20_000, share=0.8, accuracy=accuracy)
        wanted = verax.independence(Reports.of(labels)).labels
        known = np.where(np.arange(20_000) < wanted, truth, -1)
        found = verax.independence(Reports.of(labels), truth=known)
        assert found.tasks == wanted
        reach = (found.interval[1] - found.interval[0]) / 2 / found.effective
        assert 0.03 < reach < 0.13


def test_each_cluster_counted_once_gives_the_better_order():
    """Three families of four and eight loners of mixed skill: against the order of accuracy."""
    from scipy.stats import spearmanr

    for seed in range(3):
        rng = default_rng(seed)
        truth = rng.integers(0, 2, 4000)
        heads = [answers(rng, truth, a, 2) for a in (0.85, 0.7, 0.6)]
        kin = [
            np.where(rng.random(4000) < 0.7, h, answers(rng, truth, a, 2))
            for h in heads
            for a in rng.uniform(0.55, 0.95, 4)
        ]
        labels = np.array([*kin, *[answers(rng, truth, a, 2) for a in rng.uniform(0.55, 0.95, 8)]])
        found, right = verax.independence(Reports.of(labels), truth=truth), (labels == truth).mean(1)
        plain, once = (spearmanr(right, [getattr(m, name) for m in found.agents])[0] for name in ("score", "once"))
        assert plain < 0.96 < 0.99 < once


def test_the_demos_liar_is_found_to_be_kin_of_the_model_whose_answers_it_changed():
    from importlib.resources import as_file, files

    from verax.demo import bundled

    with as_file(files("verax") / "data" / "digits-truth.csv") as path:
        labelled = verax.read_truth(path, bundled())
    found = verax.independence(labelled, truth=labelled.truth)
    assert {c.agents for c in found.clusters} == {("knn-400", "liar-30%"), ("tree-80", "copycat")}


def test_a_copied_report_no_longer_lifts_the_copied():
    """Ten copies of the worst agent put it first under a plain mean, and last again when counted once."""
    rng = default_rng(13)
    truth = rng.integers(0, 3, 900)
    honest = [answers(rng, truth, a, 3) for a in (0.9, 0.85, 0.8, 0.75, 0.5)]
    found = verax.independence(Reports.of(np.array([*honest, *[honest[-1]] * 10])))
    assert int(found.order(once=False)[0]) >= 4
    assert found.order()[:4] == ["0", "1", "2", "3"]


def test_the_order_of_tasks_and_agents_changes_nothing():
    labels, truth = families(14, (3, 2, 1, 1, 1), share=0.8)
    reports = Reports.of(labels, agents=list("abcdefgh"))
    tasks, agents = default_rng(1).permutation(600), default_rng(2).permutation(8)
    mixed = Reports.of(
        labels[np.ix_(agents, tasks)],
        agents=[reports.agents[i] for i in agents],
        tasks=[reports.tasks[n] for n in tasks],
    )
    for given, other in ((truth, truth[tasks]), (None, None)):
        one, two = verax.independence(reports, truth=given), verax.independence(mixed, truth=other)
        assert {frozenset(c.agents) for c in one.clusters} == {frozenset(c.agents) for c in two.clusters}
        assert one.effective == pytest.approx(two.effective, rel=1e-5)
        assert one.interval == pytest.approx(two.interval, rel=1e-4)
        assert one.order() == two.order()


def test_the_document_survives_its_json():
    labels, truth = families(15, (3, 1, 1, 1), share=0.9)
    found = verax.independence(Reports.of(labels), truth=truth)
    document = found.to_json()
    assert document["format"] == "verax.independence/1"
    assert list(document) == [
        "format", "given", "tasks", "judged", "confidence", "effective", "interval", "once", "once_interval", "shared",
        "clusters", "closest", "agents", "labels", "warnings",
    ]  # fmt: skip
    assert Independence.from_json(document) == found


def test_agents_that_abstain_or_always_say_the_same_do_not_spoil_it():
    labels, truth = families(16, (3, 1, 1, 1, 1), tasks=3000, share=0.9)
    gaps = np.where(default_rng(3).random(labels.shape) < 0.5, -1, labels)
    gaps = np.concatenate([gaps, np.zeros((1, 3000), dtype=int), np.where(np.arange(3000) < 10, truth, -1)[None]])
    found = verax.independence(Reports.of(gaps), truth=truth)
    assert [c.agents for c in found.clusters] == [("0", "1", "2")]
    assert found.interval[0] < kish((3, 1, 1, 1, 1), 0.9) < found.interval[1]
    assert "not judged" in found.warnings[0] and "'7', '8'" in found.warnings[0]
    assert found.judged == 7 and len(found.agents) == 9


def test_too_little_truth_is_said_and_left_out():
    labels, truth = families(17, (3, 1, 1, 1))
    found = verax.independence(Reports.of(labels), truth=np.where(np.arange(600) < 20, truth, -1))
    assert found.given == "reports"
    assert "the truth of 20 tasks is too little" in found.warnings[0]


def test_what_cannot_be_judged_is_refused_and_an_audit_goes_on():
    many = np.tile([[0, 1]], (1001, 20))
    with pytest.raises(InputError, match="1,001 agents"):
        verax.independence(many)
    with pytest.raises(OptionError):
        verax.independence(families(0, (2, 2))[0], confidence=1.0)
    lonely = Reports.of([[0, 1] * 30, [1] * 60])
    with pytest.raises(InputError, match="no two agents"):
        verax.independence(lonely)
    found = [c for c in audit(lonely) if c.code == "INDEPENDENT"]
    assert [c.verdict for c in found] == ["not-applicable"]


@pytest.mark.skipif(not MODELS.exists(), reason="labels of 30 public CIFAR-10 models are not on this machine")
def test_thirty_public_models_cluster_by_architecture():
    with np.load(MODELS) as stored:
        reports, truth = Reports.of(stored["labels"].astype(int), agents=stored["agents"]), stored["truth"].astype(int)
    found = verax.independence(reports, truth=truth)
    kinds = [{agent.split("_")[0] for agent in c.agents} for c in found.clusters]
    assert kinds == [{"shake"}, {"random"}, {"darc", "resnext"}]  # darc is a ResNeXt with another regulariser
    assert [len(c.agents) for c in found.clusters] == [5, 4, 3]
    assert 2.4 < found.interval[0] < found.interval[1] < 2.7
    blind = verax.independence(reports)
    assert [{agent.split("_")[0] for agent in c.agents} for c in blind.clusters] == [{"random"}]


def test_two_or_three_agents_are_judged_as_far_as_they_can_be():
    for sizes, named in (((2,), set()), ((2, 1), {("0", "1")})):
        labels, truth = families(20, sizes, 1500, share=0.8)
        found = verax.independence(Reports.of(labels), truth=truth)
        assert {c.agents for c in found.clusters} == named
        assert found.interval[0] < kish(sizes, 0.8) < found.interval[1]
        blind = [c for c in audit(Reports.of(labels)) if c.code == "INDEPENDENT"]
        assert [c.verdict for c in blind] == ["undecided"]


def test_a_hundred_labels_and_gaps_and_strata_go_together():
    labels, truth = families(21, (3, 1, 1, 1, 1), 2000, classes=100, share=0.8)
    gaps = np.where(default_rng(5).random(labels.shape) < 0.2, -1, labels)
    found = verax.independence(Reports.of(gaps), truth=truth, public=np.arange(2000) % 2)
    assert [c.agents for c in found.clusters] == [("0", "1", "2")]
