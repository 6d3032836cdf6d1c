"""Certificates: right when they speak, silent when they cannot know, and with a witness when they object."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng

import verax
from verax import Joint, OptionError, Reports
from verax.audit import CODES, VERDICTS, Certificates, audit, flipping_fraction, gamma_star
from verax.audit.certificate import tasks_needed
from verax.audit.confidence import TEMPERATURES
from verax.audit.copies import copies
from verax.audit.evidence import spearman
from verax.audit.replies import Gains
from verax.audit.worth import mean_delta, worth, worths
from verax.kernels import Engine
from verax.mechanisms.pairwise import pairs_with
from verax.plan import Mechanism
from verax.score import pairwise, prepare
from verax.statistic import Side

MODELS = Path(__file__).parents[2] / "shared" / "data" / "cifar10_30_models.npz"


def certificate(code, *args, agent="0", **options):
    return next(c for c in audit(*args, **options) if c.code == code and c.agent in (agent, None))


def drawn(rng, table, tasks):
    """A report and a reference drawn from a joint distribution (L, L)."""
    cells = rng.choice(table.size, tasks, p=table.ravel())
    return cells // len(table), cells % len(table)


def crowd(rng, agents=6, tasks=1000, classes=3, accuracy=0.8):
    truth = rng.integers(0, classes, tasks)
    wrong = rng.integers(1, classes, (agents, tasks))
    return np.where(rng.random((agents, tasks)) < accuracy, truth, (truth + wrong) % classes), truth


MECHANISMS = {
    "zero-one": {},
    "median": {"over": "median"},
    "one peer": {"over": "one", "seed": "7"},
    "ca identity": {"rule": "ca", "sign": "identity"},
    "ca split": {"rule": "ca", "sign": "split"},
    "ca matrix": {"rule": "ca", "sign": np.array([[1, 0.2, 0], [0, 1, 0.5], [0.1, 0, 1]])},
    "ce": {"rule": "ce", "floor": 1e-3},
    "brier": {"rule": "brier"},
    "truth": {"against": "truth"},
    "accuracy": {"against": "truth", "rule": "accuracy"},
    "log": {"against": "truth", "rule": "log"},
    "quadratic": {"against": "truth", "rule": "quadratic"},
    "hybrid": {"against": "hybrid"},
    "hybrid ce": {"against": "hybrid", "rule": "ce"},
}
LOSSES = ("accuracy", "log", "quadratic")
FOLLOWING = ("ca split", "median")  # the sign, or the peer in the middle, would follow a deviation


@pytest.mark.parametrize(
    ("name", "public"),
    [(name, p) for name in MECHANISMS for p in (None, "strata", "features") if not (p and name in LOSSES)],
)
def test_worth_adds_up_to_the_score_and_its_influence_to_the_error(name, public):
    options = MECHANISMS[name]
    rng = default_rng(1)
    labels, truth = crowd(rng, tasks=200)
    rows = 0.7 * np.eye(3)[labels] + 0.3 * rng.dirichlet(np.ones(3), labels.shape)
    left_out = rng.random(labels.shape) < 0.1
    reports = Reports.of(np.where(left_out, -1, rows.argmax(2)), rows)
    if options.get("against") == "hybrid":
        truth = np.where(np.arange(200) < 80, truth, -1)
    signal = {None: None, "strata": rng.integers(0, 3, 200), "features": rng.normal(size=(200, 2))}[public]
    given = truth if "against" in options else None
    scores = verax.score(reports, given, signal, **options)
    ready = prepare(reports, given, signal, Mechanism.of(**options))
    for i, s in enumerate(scores.scores):
        w = worth(ready, i)
        # a quadratic score has squared norms beside what swapping two entries can change
        norm = (rows[i][w.tasks] ** 2).sum(1).mean() + 1 if name == "quadratic" else 0.0
        assert w.score - norm == pytest.approx(s.score, abs=1e-12)
        if name not in FOLLOWING:
            # abstentions are centred pair by pair in the score, together here
            assert np.sqrt((w.influence**2).sum()) == pytest.approx(s.stderr, rel=0.08)


def test_a_label_confused_with_another_is_caught_with_its_deviation_and_exact_gain():
    """Holding k, the reference says r more than k: under `identity` saying r pays better.

    With two labels there is no such world but the reversed one: delta's rows sum to 0.
    """
    rng = default_rng(2)
    for classes in (3, 4, 5):
        k, r = 0, classes - 1
        table = np.full((classes, classes), 0.05) + np.eye(classes)
        table[k, k], table[k, r] = 0.1, 0.9
        report, reference = drawn(rng, table / table.sum(), 3000)
        reports = Reports.of(report[None], classes=[f"c{i}" for i in range(classes)])
        found = certificate("TRUTHFUL", reports, reference)
        assert found.verdict == "fails"
        assert found.deviation == {f"c{k}": f"c{r}"}
        truthful = verax.score(reports, reference)["0"].score
        brute = max(
            Joint.of(np.array(relabelled)[report], reference, classes).score().value
            for relabelled in itertools.product(range(classes), repeat=classes)
        )
        assert found.gain == pytest.approx(brute - truthful, abs=1e-12)
        assert found.interval[0] <= found.gain <= found.interval[1]
        assert found.interval[0] > 0


@pytest.mark.parametrize("name", list(MECHANISMS)[:8])
def test_the_gain_is_that_of_the_best_of_all_relabellings(name):
    """Against peers too, with any sign, and with rows, where a relabelling swaps two entries."""
    options = MECHANISMS[name]
    rng = default_rng(3)
    labels, _ = crowd(rng, agents=4, tasks=120, accuracy=0.45)
    rows = 0.5 * np.eye(3)[labels] + 0.5 * rng.dirichlet(np.ones(3), labels.shape)
    rows = np.where(rows.argmax(2)[..., None] == labels[..., None], rows, np.eye(3)[labels] * 0.8 + 0.2 / 3)
    reports = Reports.of(labels, rows)
    ready = prepare(reports, None, None, Mechanism.of(**options))
    w = worth(ready, 0)
    gains = Gains(*w.gains())

    def relabelled(order):
        said = np.array(order)[labels[0]]
        swapped = rows[0].copy()
        every = np.arange(120)
        swapped[every, labels[0]], swapped[every, said] = rows[0][every, said], rows[0][every, labels[0]]
        new_labels, new_rows = labels.copy(), rows.copy()
        new_labels[0], new_rows[0] = said, swapped
        return Reports.of(new_labels, new_rows)

    if name in FOLLOWING:  # worth holds fixed what would follow
        every = np.arange(120)
        earned = [
            (np.eye(3)[np.array(order)[labels[0]]] * w.value)[every].sum()
            for order in itertools.product(range(3), repeat=3)
        ]
        assert gains.total == pytest.approx(max(earned) - w.score, abs=1e-12)
        return
    earned = [verax.score(relabelled(order), **options)["0"].score for order in itertools.product(range(3), repeat=3)]
    assert gains.total == pytest.approx(max(earned) - verax.score(reports, **options)["0"].score, abs=1e-12)


def boundary_table(classes, margin):
    """Row 0's diagonal exceeds its largest other entry, in delta, by `margin`; at 0 saying 1 for 0 earns the same."""
    table = np.full((classes, classes), 0.02) + 0.6 * np.eye(classes)
    table /= table.sum()
    # moving mass inside row 0 between columns 0 and 1 moves both delta entries and the column sums
    low, high = -table[0, 0], table[0, 0]
    for _ in range(200):
        moved = (low + high) / 2
        trial = table.copy()
        trial[0, 0] -= moved
        trial[0, 1] += moved
        delta = trial - np.outer(trial.sum(1), trial.sum(0))
        low, high = (moved, high) if delta[0, 0] - delta[0, 1] > margin else (low, moved)
    return trial


def test_fails_is_seldom_wrong_even_exactly_on_the_boundary():
    """200 worlds at N = 1,000: half on the boundary, where a false alarm is likeliest, half well inside."""
    wrong = 0
    for seed in range(200):
        rng = default_rng(seed)
        table = boundary_table(2 + seed % 4, 0.0 if seed % 2 else 0.02)
        report, reference = drawn(rng, table, 1000)
        reports = Reports.of(report[None], classes=[str(i) for i in range(len(table))])
        wrong += certificate("TRUTHFUL", reports, reference).verdict == "fails"
    assert wrong <= 16


def test_as_the_margin_shrinks_holds_turns_into_undecided_before_fails():
    seen = []
    for margin in (0.1, 0.06, 0.03, 0.01, 0.0, -0.01, -0.03, -0.06, -0.1):
        report, reference = drawn(default_rng(5), boundary_table(3, margin), 4000)
        seen.append(certificate("TRUTHFUL", Reports.of(report[None], classes=list("abc")), reference).verdict)
    order = ["holds", "undecided", "fails"]
    assert [order.index(v) for v in seen] == sorted(order.index(v) for v in seen)
    assert set(seen) == set(order)


def test_strict_and_informed_truthfulness_are_told_apart():
    rng = default_rng(6)
    labels, truth = crowd(rng)
    strict = certificate("TRUTHFUL", Reports.of(labels), truth)
    assert strict.why.startswith("strictly")
    # a sign that treats 1 and 2 alike cannot tell which of them was said
    alike = np.array([[1, 0, 0], [0, 1, 1], [0, 1, 1]])
    informed = certificate("TRUTHFUL", Reports.of(labels), truth, rule="ca", sign=alike)
    assert informed.verdict == "holds"
    assert informed.why.startswith("informed")


def test_a_learned_sign_is_judged_on_other_tasks_than_it_was_learned_on():
    """Noise: `plugin` judged on its own tasks would always gain 0; judged elsewhere it is open."""
    rng = default_rng(7)
    reports = Reports.of(rng.integers(0, 3, (2, 1000)), classes=list("abc"))
    found = certificate("TRUTHFUL", reports, rule="ca", sign="plugin")
    assert found.verdict == "undecided"
    assert found.gain > 0


def test_undecided_names_the_number_of_tasks_that_decides():
    """The same tasks over again leave every estimate as it is and shrink its error: the named number decides."""
    report, reference = drawn(default_rng(8), boundary_table(3, 0.001), 1000)

    def judged(times):
        reports = Reports.of(np.tile(report, times)[None], classes=list("abc"))
        return certificate("TRUTHFUL", reports, np.tile(reference, times))

    found = judged(1)
    assert found.verdict == "undecided"
    named = int(found.why.split("about ")[1].split(" tasks")[0].replace(",", ""))
    assert named >= 2000
    assert judged(-(-named // 1000)).verdict == "holds"
    assert judged(round(named / 1000 * 0.7)).verdict == "undecided"


def test_confusable_labels_are_named_with_their_z_scores():
    rng = default_rng(9)
    truth = rng.integers(0, 4, 5000)
    # 2 and 3 are hardly told apart by anybody
    seen = np.where((truth >= 2) & (rng.random((4, 5000)) < 0.5), 5 - truth, truth)
    labels = np.where(rng.random((4, 5000)) < 0.9, seen, rng.integers(0, 4, (4, 5000)))
    reports = Reports.of(labels, classes=["ant", "bee", "wasp", "hornet"])
    found = certificate("CATEGORICAL", reports)
    assert found.verdict == "fails"
    assert found.deviation == {"wasp": "hornet", "hornet": "wasp"}
    assert "z = " in found.why
    clear, _ = crowd(rng, tasks=5000)
    assert certificate("CATEGORICAL", Reports.of(clear)).verdict == "holds"
    few, _ = crowd(rng, tasks=60, accuracy=0.6)
    assert certificate("CATEGORICAL", Reports.of(few)).verdict == "undecided"


def test_informative_tells_work_from_noise_constants_and_reversal():
    rng = default_rng(10)
    labels, truth = crowd(rng, agents=3, classes=2)
    cheats = np.stack([rng.integers(0, 2, 1000), np.zeros(1000, int), 1 - labels[0]])
    found = audit(Reports.of(np.concatenate([labels, cheats])), truth)
    verdicts = {c.agent: c for c in found if c.code == "INFORMATIVE"}
    assert [verdicts[a].verdict for a in "012345"] == ["holds"] * 3 + ["undecided", "fails", "fails"]
    assert "FNR + FPR" in verdicts["0"].why
    assert "below 1" in verdicts["0"].why
    assert "above 1" in verdicts["5"].why


def test_accuracy_is_undecided_without_labels_and_says_why():
    labels, _ = crowd(default_rng(11))
    found = certificate("ACCURACY", Reports.of(labels))
    assert (found.verdict, found.agent) == ("undecided", None)
    assert "without labels" in found.why


def test_accuracy_holds_at_an_even_prior_and_names_the_condition_that_does_not():
    rng = default_rng(12)
    quality = np.linspace(0.55, 0.95, 10)[:, None]

    def population(truth):
        wrong = rng.integers(1, 3, (10, len(truth)))
        return np.where(rng.random((10, len(truth))) < quality, truth, (truth + wrong) % 3)

    even = rng.integers(0, 3, 6000)
    labels = population(even)
    found = certificate("ACCURACY", Reports.of(labels), even)
    assert found.verdict == "holds"
    assert found.gain > 0.95  # the rank correlation of scores and accuracies
    assert "dependence" not in found.why  # which nobody looked for
    assert "no dependence seen" in certificate("ACCURACY", Reports.of(labels), even, against="peers").why
    uneven = rng.choice(3, 6000, p=[0.7, 0.2, 0.1])
    found = certificate("ACCURACY", Reports.of(population(uneven)), uneven)
    assert found.verdict == "fails"
    assert "prior is not even" in found.why
    shared = labels.copy()
    shared[1] = np.where(rng.random(6000) < 0.9, shared[0], shared[1])
    found = certificate("ACCURACY", Reports.of(shared), even, against="peers")
    assert found.verdict == "fails"
    assert "not independent" in found.why


def test_the_rank_correlation_is_scipys():
    from scipy.stats import spearmanr

    rng = default_rng(13)
    for _ in range(20):
        a, b = rng.integers(0, 8, 15), rng.integers(0, 8, 15)
        assert spearman(a, b, 0.95)[0] == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


def test_the_flipping_fraction_is_where_the_best_reply_turns():
    """Mix honest and colluding references at the fraction and just around it, over all permutations."""
    rng = default_rng(14)
    for classes in (2, 3, 4):
        for _ in range(20):
            confusion = rng.dirichlet(np.ones(classes), classes) * 0.4 + 0.6 * np.eye(classes)
            prior = rng.dirichlet(np.ones(classes) * 5)
            joint = (confusion * prior[:, None]).T @ confusion
            delta = joint - np.outer(joint.sum(1), joint.sum(0))
            worst = flipping_fraction(delta, "permuting").fraction

            def turns(gamma, orders, delta=delta):
                for order in orders:
                    mixed = (1 - gamma) * delta + gamma * delta[:, list(order)]
                    if (mixed > np.diag(mixed)[:, None]).any():
                        return True
                return False

            everything = list(itertools.permutations(range(classes)))
            assert not turns(worst - 1e-6, everything)
            assert turns(worst + 1e-6, everything)
            reverse = [tuple(reversed(range(classes)))]
            fraction = flipping_fraction(delta, "reversing").fraction
            assert not turns(fraction - 1e-6, reverse)
            assert fraction == 1.0 or turns(fraction + 1e-6, reverse)
            assert flipping_fraction(delta, "constant").fraction == 1.0


def test_robust_asks_the_corrected_bound_for_two_labels():
    """alpha = beta = .2 and alpha* = beta* = .1 give 3/7; equal rates give a half."""
    assert gamma_star(0.6, 0.8) == pytest.approx(3 / 7)
    assert gamma_star(0.8, 0.8) == 0.5
    labels, truth = crowd(default_rng(15), tasks=4000, classes=2)  # J = 0.6: J / (1 + J) = 0.375
    for given in (None, truth):
        found = certificate("ROBUST", Reports.of(labels), given, against="peers", colluders=0.3)
        assert found.verdict == "holds"
        assert 0.33 < found.interval[0] <= 0.376
    assert certificate("ROBUST", Reports.of(labels), colluders=0.45).verdict == "undecided"


def test_robust_speaks_for_many_labels_and_not_of_truth_or_learned_signs():
    labels, truth = crowd(default_rng(16), tasks=4000, classes=5)
    found = certificate("ROBUST", Reports.of(labels), colluders=0.3)
    assert found.verdict == "holds"
    assert certificate("ROBUST", Reports.of(labels), colluders=0.6).verdict == "fails"
    assert certificate("ROBUST", Reports.of(labels), truth).verdict == "not-applicable"
    assert certificate("ROBUST", Reports.of(labels), rule="ca", sign="split").verdict == "not-applicable"


@pytest.fixture(scope="module")
def digit_rows():
    """Test-set probabilities of three real classifiers on scikit-learn's digits, with the truth."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neural_network import MLPClassifier

    images, digits = load_digits(return_X_y=True)
    images = images / 16
    models = (
        LogisticRegression(max_iter=2000),
        MLPClassifier((32,), max_iter=150, random_state=0),
        GaussianNB(var_smoothing=0.05),
    )
    order = default_rng(0).permutation(len(digits))
    own, tasks = order[:600], order[600:]
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = np.stack([m.fit(images[own], digits[own]).predict_proba(images[tasks]) for m in models])
    return Reports.of(probabilities=rows), digits[tasks]


@pytest.mark.parametrize("against", ["truth", "peers"])
def test_ce_pays_for_overconfidence_on_real_rows_and_pmi_does_not(digit_rows, against):
    reports, digits = digit_rows
    truth = digits if against == "truth" else None
    for agent in reports.agents:
        sharp = certificate("OVERCONFIDENT", reports, truth, rule="ce", floor=1e-5, agent=agent)
        assert sharp.verdict == "fails"
        assert sharp.gain >= 0  # 0 where the rows are as sharp as the floor already
        assert "the log score at" in sharp.why
        proper = certificate("OVERCONFIDENT", reports, truth, rule="pmi", floor=1e-5, agent=agent)
        assert proper.verdict == "holds"
        assert "pmi pays best at temperature" in proper.why


def test_the_best_temperature_is_where_scoring_tempered_rows_peaks(digit_rows):
    """What the certificate names is what scoring the tempered rows again finds."""
    from verax.audit.confidence import tempered

    reports, digits = digit_rows
    for rule in ("ce", "brier", "pmi"):
        floor = None if rule == "brier" else 1e-5
        earned = []
        for t in TEMPERATURES:
            rows = reports.probabilities.copy()
            rows[0] = tempered(rows[0], t)
            earned.append(verax.score(Reports.of(probabilities=rows), digits, rule=rule, floor=floor)["0"].score)
        found = certificate("OVERCONFIDENT", reports, digits, rule=rule, floor=floor)
        assert f"pays best at temperature {TEMPERATURES[np.argmax(earned)]:.3g}" in found.why
        assert found.gain == pytest.approx(max(earned) - earned[20], abs=1e-9)


def test_rules_of_labels_are_not_asked_about_confidence():
    labels, _ = crowd(default_rng(17))
    assert certificate("OVERCONFIDENT", Reports.of(labels)).verdict == "not-applicable"


def copying_world(seed, tasks, low=0.7, high=0.97):
    """Ten honest agents; two more of one kind, trained on other halves; copies of 0, 3, 6 and 9, flipped a little.

    Tasks have a difficulty, and a lure that draws whoever errs: honest agents share errors, those of one kind
    share more.
    """
    rng = default_rng(seed)
    truth = rng.integers(0, 10, tasks)
    lure = (truth + rng.integers(1, 10, tasks)) % 10
    hardness = rng.random(tasks)
    kin_lure = (truth + rng.integers(1, 10, tasks)) % 10

    def honest(quality, own_lure):
        wrong = rng.random(tasks) < 2 * (1 - quality) * hardness
        other = np.where(rng.random(tasks) < 0.4, own_lure, (truth + rng.integers(1, 10, tasks)) % 10)
        return np.where(wrong, other, truth)

    agents = {f"honest-{i}": honest(q, lure) for i, q in enumerate(np.linspace(low, high, 10))}
    agents |= {f"kin-{i}": honest(0.85, kin_lure) for i in range(2)}
    for rate, original in ((0.0, 0), (0.02, 3), (0.05, 6), (0.1, 9)):
        flipped = (agents[f"honest-{original}"] + rng.integers(1, 10, tasks)) % 10
        agents[f"copy-of-{original}"] = np.where(rng.random(tasks) < rate, flipped, agents[f"honest-{original}"])
    return Reports.of(np.stack(list(agents.values())), agents=list(agents))


@pytest.mark.parametrize("tasks", [2000, 10_000])
def test_copies_are_found_or_left_open_and_honest_agents_never_merged(tasks):
    found_copies = 0
    for seed in range(5):
        found = {c.agent: c for c in copies(copying_world(seed, tasks), 0.95)}
        for agent, c in found.items():
            partners = set((c.deviation or {}).values()) | set(c.deviation or {})
            if agent.startswith("copy"):
                original = "honest-" + agent[-1]
                assert c.verdict in ("fails", "undecided")
                if c.verdict == "fails":
                    assert partners == {agent, original}
                    found_copies += 1
            else:
                twin = "copy-of-" + agent[-1] if agent.startswith("honest") else agent
                assert partners <= {agent, twin}
    assert found_copies >= (12 if tasks == 2000 else 18)


def test_a_large_ring_of_copies_cannot_hide_in_its_own_plurality():
    reports = copying_world(0, 4000)
    ring = np.tile(reports.labels[0], (5, 1))
    grown = Reports.of(np.concatenate([reports.labels, ring]))
    found = {c.agent: c.verdict for c in copies(grown, 0.95)}
    assert [found[str(i)] for i in (0, *range(16, 21))] == ["fails"] * 6


@pytest.mark.skipif(not MODELS.exists(), reason="labels of 30 public CIFAR-10 models are not on this machine")
def test_no_two_of_thirty_public_models_are_called_copies():
    with np.load(MODELS) as stored:
        reports = Reports.of(stored["labels"].astype(int), agents=stored["agents"])
    assert all(c.verdict != "fails" for c in copies(reports, 0.95))


def test_enough_names_tasks_for_the_wanted_error_and_neighbours_not_told_apart():
    rng = default_rng(18)
    labels, truth = crowd(rng, agents=2)
    labels = np.concatenate([labels, labels[:1], crowd(rng, agents=1, accuracy=0.5)[0]])
    found = {c.agent: c for c in audit(Reports.of(labels), truth, wanted=0.001) if c.code == "ENOUGH"}
    assert "tasks would do" in found["0"].why
    assert any("the same as" in c.why for c in found.values())
    stderr = verax.score(Reports.of(labels), truth)["0"].stderr
    need = int(found["0"].why.split("about ")[1].split(" ")[0].replace(",", ""))
    assert need == pytest.approx(1000 * (stderr / 0.001) ** 2, abs=1)


def test_the_error_of_a_difference_is_paired_by_task():
    """Scores against truth of two agents that differ on few tasks are told apart by those tasks."""
    rng = default_rng(19)
    labels, truth = crowd(rng, agents=1, tasks=2000, accuracy=0.7)
    worse = labels[0].copy()
    spoiled = np.nonzero(worse == truth)[0][:40]
    worse[spoiled] = (worse[spoiled] + 1) % 3
    found = {c.agent: c for c in audit(Reports.of(np.stack([labels[0], worse])), truth, wanted=0.02)
             if c.code == "ENOUGH"}  # fmt: skip
    scores = verax.score(Reports.of(np.stack([labels[0], worse])), truth)
    assert scores["0"].score - scores["1"].score < 2 * scores["0"].stderr  # unpaired errors would not tell
    assert found["0"].why.split("; ")[1].startswith("above '1'")


def test_an_audit_survives_its_json_and_has_the_fields_of_the_contract():
    labels, truth = crowd(default_rng(20))
    found = audit(Reports.of(labels), truth)
    document = found.to_json()
    assert document["format"] == "verax.audit/1"
    assert list(document["certificates"][0]) == ["code", "agent", "verdict", "gain", "interval", "deviation", "why"]
    assert Certificates.from_json(document) == found
    assert {c.code for c in found} == set(CODES)
    assert {c.verdict for c in found} <= set(VERDICTS)
    for c in found:
        assert c.verdict != "fails" or c.deviation is not None or c.code in ("INFORMATIVE", "ACCURACY")
        assert c.why.count("\n") == 0


def test_every_mechanism_can_be_audited():
    rng = default_rng(21)
    labels, truth = crowd(rng, tasks=150)
    rows = 0.8 * np.eye(3)[labels] + 0.2 / 3
    reports = Reports.of(np.where(rng.random(labels.shape) < 0.05, -1, labels), rows)
    for options in [*MECHANISMS.values(), {"rule": "pmi"}, {"rule": "pmi", "against": "truth"}]:
        given = np.where(np.arange(150) < 50, truth, -1) if options.get("against") == "hybrid" else truth
        for public in (None, rng.integers(0, 2, 150)):
            if public is not None and options.get("rule") in ("accuracy", "log", "quadratic"):
                continue
            found = audit(reports, given if "against" in options else None, public, **options)
            assert {c.code for c in found} == set(CODES)


def test_an_agent_without_references_is_not_judged():
    labels, _ = crowd(default_rng(22))
    labels[2] = -1
    found = [c for c in audit(Reports.of(labels)) if c.agent == "2"]
    assert {c.verdict for c in found if c.code in ("TRUTHFUL", "CATEGORICAL", "INFORMATIVE", "ROBUST")} == {
        "not-applicable"
    }


@pytest.mark.parametrize(
    "options",
    [{"confidence": 1.0}, {"confidence": 0.2}, {"colluders": -0.1}, {"wanted": 0}],
)
def test_audit_refuses_what_it_cannot_answer(options):
    labels, _ = crowd(default_rng(23))
    with pytest.raises(OptionError):
        audit(Reports.of(labels), **options)


def test_tasks_needed_grow_with_the_square_of_the_error():
    assert tasks_needed(100, 3.0) == "about 900 tasks would decide"
    assert "10,000,000" in tasks_needed(100, float("inf"))


def test_a_rule_of_ones_own_that_sees_rows_is_judged_by_relabelled_rows():
    """A rule that pays for probability on the other label: every report gains by swapping its two labels."""

    def contrary(joint):
        paired = joint.tasks_paired
        return -float(paired.rows[np.arange(joint.tasks), paired.reference].mean())

    rng = default_rng(5)
    truth = rng.integers(0, 2, 300)
    labels = np.where(rng.random((3, 300)) < 0.9, truth, 1 - truth)
    rows = np.where(np.eye(2, dtype=bool)[labels], 0.8, 0.2)
    reports = Reports.of(labels=labels, probabilities=rows)
    honest = verax.score(reports, rule=contrary)["0"].score
    swapped = Reports.of(labels=[1 - labels[0], *labels[1:]], probabilities=[1 - rows[0], *rows[1:]])
    gained = verax.score(swapped, rule=contrary)["0"].score - honest
    found = next(c for c in audit(reports, rule=contrary) if c.code == "TRUTHFUL" and c.agent == "0")
    assert (found.verdict, found.deviation) == ("fails", {"0": "1", "1": "0"})
    assert found.gain == pytest.approx(gained, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "public"),
    [(name, p) for name in MECHANISMS for p in (None, "strata", "features") if not (p and name in LOSSES)],
)
def test_worth_of_all_agents_is_that_of_each(name, public):
    """All at once where everybody answered, a few at a time where memory is short; `worth` goes one by one."""
    options, rng = MECHANISMS[name], default_rng(11)
    labels, truth = crowd(rng, tasks=120)
    rows = 0.7 * np.eye(3)[labels] + 0.3 * rng.dirichlet(np.ones(3), labels.shape)
    if options.get("against") == "hybrid":
        truth = np.where(np.arange(120) < 40, truth, -1)
    signal = {None: None, "strata": rng.integers(0, 3, 120), "features": rng.normal(size=(120, 2))}[public]
    given = truth if "against" in options else None
    for held, max_bytes in (
        (rows.argmax(2), 2**26),
        (rows.argmax(2), 2**16),
        (np.where(labels == 2, -1, labels), 2**26),
    ):
        reports = Reports.of(held, rows)
        ready = prepare(reports, given, signal, Mechanism.of(**options), Engine(max_bytes=max_bytes))
        for as_labels in (False, True):
            for i, w in enumerate(worths(ready, labels=as_labels)):
                one = worth(ready, i, labels=as_labels)
                assert (w.tasks.tolist(), w.held.tolist(), w.one_hot) == (
                    one.tasks.tolist(),
                    one.held.tolist(),
                    one.one_hot,
                )
                for mine, its in zip((w.rows, w.value, w.own), (one.rows, one.value, one.own), strict=True):
                    np.testing.assert_allclose(mine, its, rtol=1e-12, atol=1e-16)
        each = [np.eye(w.value.shape[1])[w.held].T @ w.value for w in worths(ready, labels=True)]
        np.testing.assert_allclose(mean_delta(ready), np.mean(each, 0), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("gaps", [0.0, 0.2])
@pytest.mark.parametrize("name", [n for n, how in MECHANISMS.items() if "against" not in how])
def test_every_pair_at_once_is_what_each_agent_has_beside_each(name, gaps):
    rng = default_rng(3)
    labels, _ = crowd(rng, tasks=90)
    labels = np.where(rng.random(labels.shape) < gaps, -1, labels)
    rows = np.where(
        labels[..., None] < 0, np.nan, 0.7 * np.eye(3)[labels] + 0.3 * rng.dirichlet(np.ones(3), labels.shape)
    )
    ready = prepare(Reports.of(labels, rows), None, None, Mechanism.of(**MECHANISMS[name]))
    found = pairwise(ready)
    for i in range(len(labels)):
        expected = pairs_with(Side(ready.reports, ready.signal, None), ready.plan, i, ready.reports.labels).value
        expected[i] = np.nan
        np.testing.assert_allclose(found[i], expected, rtol=1e-12, atol=1e-15)


def test_the_fraction_of_colluders_that_two_labels_bear_follows_from_the_others_scores():
    labels, _ = crowd(default_rng(12), agents=5, tasks=400, classes=2)
    for gaps in (False, True):
        held = np.where(default_rng(13).random(labels.shape) < 0.1, -1, labels) if gaps else labels
        for agent in range(5):
            among = verax.score(Reports.of(np.delete(held, agent, axis=0)))
            low = np.mean([s.score for s in among]) - 1.959964 * max(s.stderr for s in among)
            found = certificate("ROBUST", Reports.of(held), agent=str(agent)).interval
            assert found == pytest.approx((gamma_star(np.sqrt(2 * low)), 1.0), abs=1e-6)
