"""The paper's numbered claims, each on worlds where its conditions hold and on worlds where they fail.

Nothing is sampled: a world of fractions is measured by verax on tasks that have exactly its probabilities, and by
the paper's definition. From N tasks verax estimates Delta* without bias, which on such tasks is N / (N - 1) times
the population's value; `population` takes that factor out. Where the paper slips, the corrected claim is tested
and the printed one is shown to fail. Label 0 is the paper's label 1, label 1 its label 2.
"""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from numpy.random import default_rng

import verax
from verax import Joint, Reports, misreport, rules
from worlds import (
    between,
    binary,
    classified,
    conditionally_independent,
    copying,
    counts,
    even_errors,
    even_prior,
    every_map,
    exact,
    listed,
    never_wrong_together,
    random_rows,
    youden,
)

HALF = even_prior(2)
TENTHS = [Fraction(n, 10) for n in range(11)]
IDENTITY, REVERSED = np.eye(2, dtype=int), np.eye(2, dtype=int)[::-1]
ROUNDING = 1e-12  # what sums of a few hundred doubles may be off by

# Right on most tasks of every label, and yet holding 2 speaks more for 1 than for 2, because 2 is rare.
RARE_LABEL = exact([0.45, 0.45, 0.1]), exact([[0.8, 0.1, 0.1], [0.05, 0.55, 0.4], [0.1, 0.3, 0.6]])
# P(signal | truth). Where label 0 has a prior of 0.8, signal 1 speaks for label 1 but not loudly enough.
SIGNALS = exact([[0.6, 0.3, 0.1], [0.1, 0.4, 0.5]])
FOUR_TO_ONE = exact([0.8, 0.2])


def near(value):
    return pytest.approx(np.asarray(value, dtype=float), rel=ROUNDING, abs=ROUNDING)


def population(score, tasks):
    """The population's value of what verax found on tasks with exactly the population's probabilities."""
    return score * (tasks - 1) / tasks


def delta_star(joint):
    """P(k, g) - P(k) P(g), entry by entry. (section 2.1)"""
    delta = np.empty_like(joint)
    for k, g in np.ndindex(*joint.shape):
        delta[k, g] = joint[k, g] - joint[k, :].sum() * joint[:, g].sum()
    return delta


def sgn(delta):
    """1 where positive, else 0. (section 2.1)"""
    return (delta > 0).astype(int)


def earned(delta, s, strategy):
    """Sum over k, g of Delta(k, g) times sum over r of P(report r | hold k) S(r, g). (proof of Theorem 2)"""
    labels = range(len(delta))
    return sum(delta[k, g] * strategy[k, r] * s[r, g] for k in labels for g in labels for r in labels)


def strategy_of(relabelling):
    return np.eye(len(relabelling), dtype=int)[relabelling]


def expected_score(joint):
    """E S(f, g) when Sgn(Delta*) is the identity: P(f = g) minus P(f = k) P(g = k) over k. (proof of Theorem 3)"""
    return np.trace(joint) - sum(joint[k, :].sum() * joint[:, k].sum() for k in range(len(joint)))


def measured_score(joint):
    """The same by verax."""
    joint = Joint.of_counts(counts(joint))
    return population(rules.zero_one(joint).value, joint.tasks)


def accuracy_of(joint_with_truth):
    return np.trace(joint_with_truth)


def scored_against_truth(reports, truth, s):
    classes = range(len(s))
    return [x.score for x in verax.score(Reports.of(labels=reports, classes=classes), truth, rule="ca", sign=s).scores]


def scored_against_a_peer(reports, peer, s):
    classes = range(len(s))
    pairs = (Reports.of(labels=[report, peer], classes=classes) for report in reports)
    return [verax.score(pair, rule="ca", sign=s)["0"].score for pair in pairs]


def truth_and_lies(joint, s, scored):
    """What the truth and what every other relabelling earn by the definition; verax must find the same."""
    own, reference = listed(counts(joint))
    relabellings = every_map(len(s), len(s))
    delta = delta_star(joint)
    earnings = np.array([earned(delta, s, strategy_of(r)) for r in relabellings])
    assert population(np.array(scored(relabellings[:, own], reference, s)), len(own)) == near(earnings)
    truthful = (relabellings == np.arange(len(s))).all(1)
    return earnings[truthful].item(), earnings[~truthful]


def assert_no_lie_pays(joint, scored, rng):
    """Under S = Sgn(Delta*): no deterministic relabelling, and none of some random ones, beats the truth."""
    counted, delta = Joint.of_counts(counts(joint)), delta_star(joint)
    s = sgn(delta)
    assert np.array_equal(counted.sign, s)
    truth, lies = truth_and_lies(joint, s, scored)
    assert truth >= max(lies)
    assert truth > min(lies)
    assert truth > 0
    for strategy in (random_rows(len(s), len(s), rng) for _ in range(5)):
        lie = earned(delta, s, strategy)
        assert truth >= lie
        found = misreport.expected(counted, strategy.astype(float), s).score
        assert population(found, counted.tasks) == near(lie)


def rows_of(parts, classes):
    """All probability rows in steps of 1 / parts."""
    every = every_map(classes, parts + 1)
    return every[every.sum(1) == parts] / parts


def every_hypothesis(candidates):
    """All ways to give each signal one of its candidate rows: (hypotheses, signals, classes)."""
    return np.array([np.stack(choice) for choice in product(*candidates)])


def on_tasks(signals_and_truth):
    """The signal and the truth of each of a list of tasks with exactly the world's probabilities."""
    return listed(counts(signals_and_truth))


def posterior(signals_and_truth):
    """P(truth | signal), a row a signal."""
    return (signals_and_truth / signals_and_truth.sum(1, keepdims=True)).astype(float)


def hardened(hypotheses):
    """The hypotheses as classifiers: all on the likeliest label."""
    return np.eye(hypotheses.shape[-1])[hypotheses.argmax(-1)]


# Minus the loss by the definition: for each row of probabilities, an entry for each label that may be the truth.
MINUS_LOSS = {
    "accuracy": hardened,
    "log": lambda rows: np.log(np.maximum(rows, rules.FLOOR)),
    "quadratic": lambda rows: -((rows[..., None, :] - np.eye(rows.shape[-1])) ** 2).sum(-1),
}


def missing_label_0_costs_four_times(joint):
    """A loss that is not calibrated: minus the share of errors, those on truth 0 counted four times."""
    return -float((joint.bonus * [[0, 1], [4, 0]]).sum())


@pytest.mark.parametrize("rule", MINUS_LOSS)
def test_theorem_1_a_calibrated_loss_elicits_the_bayes_optimal_classifier(rule):
    """Theorem 1: paid by minus a calibrated loss, no hypothesis earns more than the Bayes-optimal one.

    All hypotheses over a few signals, in steps of a seventh: the best classify as the Bayes-optimal classifier
    does. The proof has that classifier's own loss as the least, which is so for the 0-1 loss; for the other two the
    least, and the only least, is the posterior's, which classifies the same. A loss that is not calibrated, here
    one that counts a kind of error four times, elicits another classifier.
    """
    parts, rng = 7, default_rng(1)
    for signals, classes in [(3, 2), (2, 3)] * 3:
        belief = random_rows(signals, classes, rng, parts)
        while (np.sort(belief)[:, -1] == np.sort(belief)[:, -2]).any():  # a tie leaves two classifiers optimal
            belief = random_rows(signals, classes, rng, parts)
        world = belief * random_rows(1, signals, rng, parts=10).T
        candidates = np.eye(classes) if rule == "accuracy" else rows_of(parts, classes)
        hypotheses = every_hypothesis([candidates] * signals)
        x, y = on_tasks(world)

        found = verax.score(Reports.of(probabilities=hypotheses[:, x]), y, rule=rule)
        earnings = np.array([score.score for score in found.scores])
        assert earnings == near((MINUS_LOSS[rule](hypotheses) * world.astype(float)).sum((1, 2)))

        best = hypotheses[earnings > earnings.max() - ROUNDING]
        assert (best.argmax(2) == belief.argmax(1)).all()
        others = (hypotheses.argmax(2) != belief.argmax(1)).any(1)
        assert earnings[others].max() < earnings.max() - ROUNDING
        if rule != "accuracy":
            assert best[0] == near(belief)
            assert len(best) == 1

    world = exact([[0.3, 0.7], [0.9, 0.1]]) * exact([0.5, 0.5])[:, None]
    x, y = on_tasks(world)
    classifiers = every_map(2, 2)
    found = verax.score(Reports.of(labels=classifiers[:, x]), y, rule=missing_label_0_costs_four_times)
    elicited = classifiers[np.argmax([score.score for score in found.scores])]
    # On signal 0, saying 1 loses 4 x 0.3 and saying 0 loses 0.7.
    assert elicited.tolist() == [0, 0]
    assert posterior(world).argmax(1).tolist() == [1, 0]


def test_theorem_2_no_relabelling_beats_the_truth_under_ca():
    """Theorem 2: scored against the truth with S = Sgn(Delta*), an agent does best to report what it holds.

    Every deterministic relabelling is tried, and random ones. With a sign that is not Delta*'s, lies pay: the
    identity in a world where a label speaks more for another one, or the sign of a reversed agent.
    """
    rng = default_rng(2)
    for classes, number in ((2, 20), (3, 20), (4, 5)):
        for _ in range(number):
            prior, confusion = random_rows(1, classes, rng)[0], random_rows(classes, classes, rng)
            joint = between(conditionally_independent(prior, confusion), 0, -1)
            assert_no_lie_pays(joint, scored_against_truth, rng)

    joint = between(conditionally_independent(*RARE_LABEL), 0, -1)
    truth, lies = truth_and_lies(joint, np.eye(3, dtype=int), scored_against_truth)
    # Reporting 1 while holding 2 trades Delta*(2, 2) for Delta*(2, 1).
    assert max(lies) - truth == delta_star(joint)[2, 1] - delta_star(joint)[2, 2] > 0

    informative = between(conditionally_independent(HALF, binary(0.2, 0.1)), 0, -1)
    truth, lies = truth_and_lies(informative, REVERSED, scored_against_truth)
    assert truth < 0 < max(lies)


def test_truthfulness_is_strict_in_a_categorical_world_and_informed_otherwise():
    """Section 2.1: where Sgn(Delta*) = I, each lie that changes a report costs something; elsewhere it may be free.

    An agent that cannot tell 1 from 2 may swap or merge them under S = Sgn(Delta*) and earns exactly the same;
    only lies that lose information cost. (Informed truthfulness.)
    """
    rng = default_rng(3)
    for classes in (2, 3, 4):
        for accuracy in (0.6, 0.9):
            prior = random_rows(1, classes, rng)[0]
            joint = between(conditionally_independent(prior, even_errors(classes, accuracy)), 0, -1)
            assert np.array_equal(Joint.of_counts(counts(joint)).sign, np.eye(classes))
            truth, lies = truth_and_lies(joint, np.eye(classes, dtype=int), scored_against_truth)
            assert truth > max(lies)

    blurred = exact([[0.8, 0.1, 0.1], [0.2, 0.4, 0.4], [0.2, 0.4, 0.4]])
    joint = between(conditionally_independent(exact([0.5, 0.25, 0.25]), blurred), 0, -1)
    s = Joint.of_counts(counts(joint)).sign.astype(int)
    assert s.tolist() == [[1, 0, 0], [0, 1, 1], [0, 1, 1]]
    truth, lies = truth_and_lies(joint, s, scored_against_truth)
    # 1 and 2 may each be reported as either: 2 x 2 relabellings, the truth among them.
    assert sum(lies == truth) == 3
    assert max(lies) == truth
    own, reference = listed(counts(joint))
    merged, honest = scored_against_truth([np.minimum(own, 1), own], reference, s)
    assert merged == honest


def test_lemma_1_an_informative_binary_classifier_has_the_identity_as_its_sign():
    """Lemma 1: two labels and FNR + FPR < 1 give Sgn(Delta*) = I, because Delta* = +-P(0) P(1) (1 - FNR - FPR).

    The proof prints P(1) P(1) off the diagonal, which is right at an even prior only. At FNR + FPR = 1 nothing is
    positive, above it the sign is reversed, and with three labels being right most of the time is not enough.
    """
    for p, alpha, beta in product(TENTHS[1:-1], TENTHS, TENTHS):
        confusion = binary(alpha, beta)
        joint = Joint.of_counts(counts(between(conditionally_independent(exact([p, 1 - p]), confusion), 0, -1)))
        j = youden(confusion)
        assert np.array_equal(joint.sign, IDENTITY if j > 0 else REVERSED if j < 0 else np.zeros((2, 2)))
        found = population(joint.delta, joint.tasks)
        assert found == near(p * (1 - p) * j * (2 * IDENTITY - 1))
        printed = (1 - p) * (1 - p) * -j
        assert (found[0, 1] == near(printed)) == (p == Fraction(1, 2) or j == 0)

    prior, confusion = RARE_LABEL
    assert min(np.diag(confusion)) > Fraction(1, 2)
    joint = Joint.of_counts(counts(between(conditionally_independent(prior, confusion), 0, -1)))
    assert np.argwhere(joint.sign & ~np.eye(3, dtype=bool)).tolist() == [[2, 1]]


def test_theorem_3_at_an_even_prior_the_more_accurate_classifier_scores_higher():
    """Theorem 3: with even priors and S = I the expected score is accuracy - 1/L, so accuracy decides.

    The paper has L = 2; it holds for any L. At a prior of 0.9 a nearly constant classifier is the more accurate
    and scores less, and if a reversed classifier is scored with its own sign it earns as much as an accurate one.
    """
    rng = default_rng(4)
    for classes in (2, 3, 4):
        seen = []
        for _ in range(40):
            world = conditionally_independent(even_prior(classes), random_rows(classes, classes, rng))
            joint = between(world, 0, -1)
            accuracy, score = accuracy_of(joint), measured_score(joint)
            assert expected_score(joint) == accuracy - Fraction(1, classes)
            assert score == near(accuracy - Fraction(1, classes))
            seen.append((accuracy, score))
        for (accuracy, score), (other_accuracy, other_score) in product(seen, seen):
            assert accuracy <= other_accuracy or score > other_score
        assert len({accuracy for accuracy, _ in seen}) > 10

    lopsided = exact([0.9, 0.1])
    nearly_constant, even = (
        between(conditionally_independent(lopsided, confusion), 0, -1)
        for confusion in (binary(0, 0.9), binary(0.2, 0.2))
    )
    assert all(np.array_equal(Joint.of_counts(counts(joint)).sign, IDENTITY) for joint in (nearly_constant, even))
    assert accuracy_of(nearly_constant) == Fraction(91, 100) > accuracy_of(even) == Fraction(80, 100)
    assert measured_score(nearly_constant) == near(0.018)
    assert measured_score(even) == near(0.108)

    accurate, reversed_ = (
        Joint.of_counts(counts(between(conditionally_independent(HALF, confusion), 0, -1)))
        for confusion in (binary(0.1, 0.1), binary(0.9, 0.9))
    )
    assert rules.ca(reversed_).value == rules.ca(accurate).value > 0 > rules.zero_one(reversed_).value


def test_theorem_4_no_relabelling_beats_the_truth_while_the_peer_is_truthful():
    """Theorem 4: scored against a truthful peer with S = Sgn(Delta*) of the two, an agent does best to be truthful.

    Peers may be conditionally independent or share errors: Delta* takes that in. It is an equilibrium, no more:
    if the peer reverses its labels, so should the agent; and the identity in a world that is not categorical
    pays lies, as it does against the truth.
    """
    rng = default_rng(5)
    for classes, number in ((2, 10), (3, 6), (4, 2)):
        for share in (0, Fraction(1, 2)):
            for _ in range(number):
                prior = random_rows(1, classes, rng, parts=10)[0]
                own, peer = (random_rows(classes, classes, rng, parts=10) for _ in range(2))
                joint = between(copying(prior, own, peer, share), 0, 1)
                assert_no_lie_pays(joint, scored_against_a_peer, rng)

    own, peer = binary(0.2, 0.1), binary(0.1, 0.3)
    honest_peer, lying_peer = (
        between(conditionally_independent(HALF, own, reported), 0, 1) for reported in (peer, peer[:, ::-1])
    )
    at_equilibrium = sgn(delta_star(honest_peer))
    truth, lies = truth_and_lies(honest_peer, at_equilibrium, scored_against_a_peer)
    assert truth > max(lies)
    betrayed, lies = truth_and_lies(lying_peer, at_equilibrium, scored_against_a_peer)
    assert betrayed == -truth
    assert max(lies) == truth

    joint = between(conditionally_independent(*RARE_LABEL, even_errors(3, 0.9)), 0, 1)
    truth, lies = truth_and_lies(joint, np.eye(3, dtype=int), scored_against_a_peer)
    assert max(lies) - truth == delta_star(joint)[2, 1] - delta_star(joint)[2, 2] > 0


def test_lemma_2_two_informative_independent_peers_have_the_identity_as_their_sign():
    """Lemma 2: two labels, both FNR + FPR < 1, independent given the truth: Sgn(Delta*) = I.

    Delta*(k, g) = (P(peer = g | 0) - P(peer = g | 1)) Delta(k, 0), with Delta the agent's against the truth. A step
    of the proof prints P(agent = k | 0) where it needs P(agent = k | 1). If one of the two is reversed so is the
    sign, if one is uninformative nothing is positive, and two informative peers who never err together look reversed.
    """
    rates = [Fraction(n, 4) for n in range(5)]
    for p, *errors in product((Fraction(1, 2), Fraction(7, 10)), rates, rates, rates, rates):
        prior, own, peer = exact([p, 1 - p]), binary(*errors[:2]), binary(*errors[2:])
        world = conditionally_independent(prior, own, peer)
        joint = Joint.of_counts(counts(between(world, 0, 1)))
        j = youden(own) * youden(peer)
        assert np.array_equal(joint.sign, IDENTITY if j > 0 else REVERSED if j < 0 else np.zeros((2, 2)))
        against_truth = delta_star(between(world, 0, -1))
        assert population(joint.delta, joint.tasks) == near(np.outer(against_truth[:, 0], peer[0] - peer[1]))
        together = p * np.outer(own[0], peer[0]) + (1 - p) * np.outer(own[1], peer[1])
        printed = p * np.outer(own[0], peer[0]) + (1 - p) * np.outer(own[0], peer[1])
        assert np.array_equal(between(world, 0, 1), together)
        assert np.array_equal(between(world, 0, 1), printed) == (youden(own) == 0)

    world = never_wrong_together(HALF, error=0.4)
    for agent in (0, 1):
        assert np.array_equal(Joint.of_counts(counts(between(world, agent, -1))).sign, IDENTITY)
    assert np.array_equal(Joint.of_counts(counts(between(world, 0, 1))).sign, REVERSED)


def youden_of(world, agent):
    """J of an agent of a binary world."""
    joint = between(world, agent, -1)
    return youden((joint / joint.sum(0)).T)


def test_affine_identity_a_peers_score_is_the_truths_score_times_the_peers_informativeness():
    """The affine identity (proof of Theorem 5): E S(f, f') = (1 - alpha' - beta') E S(f, Y), at any prior.

    It needs f and f' to be independent given the truth: a peer that copies raises the left side without getting
    any better, one that avoids the agent's errors lowers it.
    """
    rates = [Fraction(n, 5) for n in range(6)]
    for p, *errors in product((Fraction(1, 2), Fraction(9, 10)), rates, rates, rates[:4], rates[:4]):
        prior, own, peer = exact([p, 1 - p]), binary(*errors[:2]), binary(*errors[2:])
        world = conditionally_independent(prior, own, peer)
        assert measured_score(between(world, 0, 1)) == near(youden(peer) * expected_score(between(world, 0, -1)))

    agent = peer = binary(0.2, 0.2)
    predicted = youden(peer) * expected_score(between(conditionally_independent(HALF, agent), 0, -1))
    assert predicted == Fraction(18, 100)
    for share in TENTHS:
        world = copying(HALF, agent, peer, share)
        assert youden_of(world, 1) == youden(peer)
        # A copy agrees with the agent always, and two fair coins agree half the time.
        assert measured_score(between(world, 0, 1)) == near((1 - share) * predicted + share * Fraction(1, 2))
    apart = never_wrong_together(HALF, error=0.2)
    assert youden_of(apart, 1) == youden(peer)
    assert measured_score(between(apart, 0, 1)) == near(0.1)


def test_theorem_5_at_an_even_prior_an_informative_independent_peer_rewards_accuracy():
    """Theorem 5: against an informative, conditionally independent peer at an even prior, accuracy decides.

    E score = (1 - alpha' - beta') (accuracy - 1/2). The paper asks for Sgn(Delta*) = I in place of an informative
    peer. That is not enough: two reversed classifiers have it too, and of those the less accurate scores higher. The
    claim breaks as well at a lopsided prior, and with a peer that copies.
    """
    some = TENTHS[::2]
    informative = [binary(a, b) for a, b in product(some, some) if a + b < 1]
    for peer in informative:
        seen = []
        for own in (binary(a, b) for a, b in product(some, some)):
            world = conditionally_independent(HALF, own, peer)
            accuracy, score = accuracy_of(between(world, 0, -1)), measured_score(between(world, 0, 1))
            assert score == near(youden(peer) * (accuracy - Fraction(1, 2)))
            seen.append((accuracy, score))
        for (accuracy, score), (other_accuracy, other_score) in product(seen, seen):
            assert accuracy <= other_accuracy or score > other_score

    def both(prior, own, peer, share=0):
        """Accuracy and score of an agent with these errors, in a world whose Sgn(Delta*) is the identity."""
        world = copying(prior, own, peer, share)
        assert np.array_equal(Joint.of_counts(counts(between(world, 0, 1))).sign, IDENTITY)
        return accuracy_of(between(world, 0, -1)), measured_score(between(world, 0, 1))

    reversed_peer = binary(0.8, 0.8)
    bad, worse = (both(HALF, binary(error, error), reversed_peer) for error in (0.7, 0.9))
    assert bad == (Fraction(3, 10), near(0.12))
    assert worse == (Fraction(1, 10), near(0.24))

    peer = binary(0.2, 0.2)
    nearly_constant, even = (both(exact([0.9, 0.1]), own, peer) for own in (binary(0, 0.9), binary(0.2, 0.2)))
    assert nearly_constant == (Fraction(91, 100), near(0.0108))
    assert even == (Fraction(80, 100), near(0.0648))

    copied, accurate = both(HALF, binary(0.4, 0.4), peer, share=0.8), both(HALF, binary(0.1, 0.1), peer)
    assert copied == (Fraction(60, 100), near(0.412))
    assert accurate == (Fraction(90, 100), near(0.24))


def lead_of_truth(agent, prior, crowd, adversary, gamma):
    """What truth earns beyond the best lie when a share gamma of the references is adversarial, S = I."""
    honest, hostile = (between(conditionally_independent(prior, agent, peer), 0, 1) for peer in (crowd, adversary))
    joint = Joint.of_counts(counts((1 - gamma) * honest + gamma * hostile))
    truth, *lies = (misreport.expected(joint, strategy_of(r)).score for r in ([0, 1], [1, 0], [0, 0], [1, 1]))
    return population(truth - max(lies), joint.tasks)


def every_classifier(likelihood):
    """P(label | truth) of every binary classifier of the signals; every agent sees a draw of its own."""
    return [classified(likelihood, classifier, 2) for classifier in every_map(likelihood.shape[1], 2)]


def bayes_optimal(prior, likelihood):
    """P(label | truth) of the classifier that says the more probable label on every signal."""
    return classified(likelihood, (likelihood * prior[:, None]).argmax(0), 2)


def test_theorem_7_truth_pays_while_adversaries_are_fewer_than_the_best_classifier_allows():
    """Theorem 7, corrected: truthful if gamma < J / (J + J*), J* the largest 1 - alpha - beta of any classifier.

    In general truth is best iff (1 - gamma) J + gamma J_adversary > 0, J the crowd's. The paper takes J* from the
    Bayes-optimal classifier, which is sure to be largest at an even prior only: at P(0) = 0.8 an adversary does
    worse than reversing it, and a smaller share than the printed bound breaks truth. So do, below the corrected
    bound, adversaries who know the truth itself: against them J* = 1.
    """
    rng = default_rng(7)
    kept, broken = 0, 0
    for prior in (HALF, FOUR_TO_ONE, exact([0.4, 0.6])):
        for _ in range(6):
            likelihood = random_rows(2, 3, rng, parts=10)
            classifiers = every_classifier(likelihood)
            largest = max(map(youden, classifiers))
            if np.array_equal(prior, HALF):
                assert youden(bayes_optimal(prior, likelihood)) == largest
            informative = [c for c in classifiers if youden(c) > 0]
            agent, crowd = (informative[i] for i in rng.integers(len(informative), size=2))
            bound = youden(crowd) / (youden(crowd) + largest)
            for gamma in TENTHS[1:-1]:
                leads = [lead_of_truth(agent, prior, crowd, adversary, gamma) for adversary in classifiers]
                balance = [(1 - gamma) * youden(crowd) + gamma * youden(adversary) for adversary in classifiers]
                assert [lead > ROUNDING for lead in leads] == [total > 0 for total in balance]
                assert (min(leads) > ROUNDING) == (gamma < bound)
                kept, broken = kept + (gamma < bound), broken + (gamma >= bound)
    assert min(kept, broken) > 30

    crowd = bayes_optimal(FOUR_TO_ONE, SIGNALS)
    adversary = min(every_classifier(SIGNALS), key=youden)
    assert youden(adversary) == Fraction(-5, 10) < -youden(crowd) == Fraction(-4, 10)
    printed = youden(crowd) / (youden(crowd) + youden(crowd))
    corrected = youden(crowd) / (youden(crowd) - youden(adversary))
    assert corrected == Fraction(4, 9) < Fraction(49, 100) < printed
    # Reversing earns what truth loses: 0.51 x 0.4 - 0.49 x 0.5 of the score against the truth, 2 x 0.8 x 0.2 x 0.4.
    lead = lead_of_truth(crowd, FOUR_TO_ONE, crowd, adversary, Fraction(49, 100))
    assert lead == near(2 * -0.041 * 0.128)
    assert lead_of_truth(crowd, FOUR_TO_ONE, crowd, adversary, Fraction(44, 100)) > ROUNDING

    all_knowing, small = binary(1, 1), youden(crowd) / (youden(crowd) + 1)
    assert small == Fraction(2, 7) < corrected
    assert lead_of_truth(crowd, FOUR_TO_ONE, crowd, all_knowing, Fraction(28, 100)) > ROUNDING
    assert lead_of_truth(crowd, FOUR_TO_ONE, crowd, all_knowing, Fraction(29, 100)) < -ROUNDING

    # The same as `score` has it, as the mean over four peers: with equal J the bound is half of them.
    honest, hostile = binary(0.25, 0.25), binary(0.75, 0.75)
    for adversaries in range(5):
        peers = [hostile] * adversaries + [honest] * (4 - adversaries)
        labels = listed(counts(conditionally_independent(HALF, honest, *peers)))[:-1]
        found = population(verax.score(Reports.of(labels=labels))["0"].score, labels.shape[1])
        # J = 1/2 against the truth too, and at an even prior E S(f, Y) = J / 2.
        assert found == near(Fraction(4 - 2 * adversaries, 4) * Fraction(1, 2) * Fraction(1, 4))


def ca_scores(signals_and_truth, hypotheses, rule):
    """The population score of every hypothesis, (hypotheses, signals, classes), by one of verax's rules."""
    x, y = on_tasks(signals_and_truth)
    return np.array([population(rule(Joint.of(rows[x], y)).value, len(y)) for rows in hypotheses])


def calibrated_ca(signals_and_truth, minus_loss):
    """E -loss(f(X), Y) on one task, minus the same with f(X) and Y of two tasks. (Calibrated CA scores)"""
    apart = np.outer(signals_and_truth.sum(1), signals_and_truth.sum(0))
    return (minus_loss * (signals_and_truth - apart).astype(float)).sum((1, 2))


def test_theorem_8_a_calibrated_ca_score_elicits_what_ca_elicits():
    """Theorem 8: if Psi(E S(f*) - E S(f)) <= E S_loss(f*) - E S_loss(f) for all f, S_loss elicits f*, as S does.

    Psi never decreases and Psi(0) = 0. The squared loss meets this with Psi(t) = 2t / L at any prior: a row that
    classifies wrongly puts at least 1/L on the wrong label. Printed with both differences reversed, the condition
    is met by the negated score, which pays for lies. Cross-entropy does not meet the corrected one with three
    labels: it pays a wrong classifier that hedges more than the right one that does not.
    """
    rng = default_rng(8)
    for signals, classes, parts in [(3, 2, 5), (2, 3, 4)] * 4:
        world = random_rows(1, signals, rng, parts=10).T * random_rows(signals, classes, rng, parts=10)
        hypotheses = every_hypothesis([rows_of(parts, classes)] * signals)
        f_star = hardened(posterior(world) - world.sum(0).astype(float))[None]
        by_ca = ca_scores(world, f_star, rules.zero_one) - ca_scores(world, hardened(hypotheses), rules.zero_one)
        scores = ca_scores(world, hypotheses, rules.brier)
        assert scores == near(calibrated_ca(world, MINUS_LOSS["quadratic"](hypotheses)))
        by_loss = ca_scores(world, f_star, rules.brier) - scores
        assert by_ca.min() == near(0)
        assert (by_loss >= 2 * by_ca / classes - ROUNDING).all()
        assert by_loss.min() == near(0)
        lies = by_ca > ROUNDING
        assert by_loss[lies].min() > ROUNDING
        assert lies.sum() > 100

        negated_f_star, negated = (ca_scores(world, -hardened(f), rules.zero_one) for f in (f_star, hypotheses))
        assert (-by_ca <= negated - negated_f_star + ROUNDING).all()
        assert negated[lies].min() > negated_f_star + ROUNDING

    # Signal 0 speaks for label 0, a little for 1 and against 2; signal 1 speaks for 2.
    world = exact([[0.3, 0.2, 0.0], [0.05, 0.1, 0.35]])
    f_star, lie = np.eye(3)[[0, 2]], np.array([[0.45, 0.55, 0.0], [0.0, 0.0, 1.0]])
    honest, lying = ca_scores(world, hardened(np.array([f_star, lie])), rules.zero_one)
    assert honest == near(0.3)
    assert lying == near(0.225)
    honest, lying = ca_scores(world, [f_star, lie], rules.ce)
    # Half the tasks show signal 0; there log p weighs P(y | signal) - P(y) = 0.25, 0.1, -0.35.
    floor = math.log(rules.FLOOR)
    assert lying - honest == near((0.25 * math.log(0.45) + 0.1 * (math.log(0.55) - floor)) / 2)
    assert lying > honest


# Symmetric losses are 1 - gain(p), p the probability of the true label, with gain(p) + gain(1 - p) = 1.
GAINS = (
    lambda p: (p > 0.5) + 0.5 * (p == 0.5),  # the 0-1 loss
    lambda p: p,
    lambda p: 3 * p**2 - 2 * p**3,
    lambda p: np.sin(np.pi * p / 2) ** 2,
)


def losses(signals_and_truth, minus_loss):
    """E loss(f, Y) and E loss(f, not Y) of every hypothesis, two labels."""
    chances = signals_and_truth.astype(float)
    return -(minus_loss * chances).sum((1, 2)), -(minus_loss[..., ::-1] * chances).sum((1, 2))


def test_theorem_9_a_symmetric_loss_at_an_even_prior_is_calibrated_and_cross_entropy_is_not():
    """Theorem 9: at an even prior, if what minimises E loss(f, Y) also maximises E loss(f, not Y), S_loss elicits it.

    A symmetric loss (its values on the two labels sum to a constant) meets the condition, and what minimises it has
    the highest score of all hypotheses. Cross-entropy and the squared loss are minimised by the posterior, which
    does not meet it: an extreme row costs more on the wrong labels, so a row surer than the posterior scores higher.
    At a prior of 0.8 a symmetric loss meets the condition too, and another classifier scores higher.
    """
    rng = default_rng(9)
    for _ in range(3):
        world = between(conditionally_independent(HALF, random_rows(2, 3, rng)), 0, -1)
        belief = posterior(world)
        hypotheses = every_hypothesis([np.vstack([rows_of(5, 2), row]) for row in belief])
        for gain in GAINS:
            assert gain(hypotheses) + gain(1 - hypotheses) == near(np.ones(hypotheses.shape))
            loss, loss_on_wrong = losses(world, gain(hypotheses) - 1)
            scores = ca_scores(world, gain(hypotheses), rules.zero_one)
            assert scores == near((loss_on_wrong - loss) / 2)
            best = loss.argmin()
            assert loss_on_wrong[best] > loss_on_wrong.max() - ROUNDING
            assert scores[best] > scores.max() - ROUNDING
            assert scores[best] > scores.min() + ROUNDING

        sharper = belief**2 / (belief**2).sum(1, keepdims=True)
        for rule, minus_loss in ((rules.ce, MINUS_LOSS["log"]), (rules.brier, MINUS_LOSS["quadratic"])):
            loss, loss_on_wrong = losses(world, minus_loss(hypotheses))
            scores = ca_scores(world, hypotheses, rule)
            assert scores == near((loss_on_wrong - loss) / 2)
            best = loss.argmin()
            assert hypotheses[best] == near(belief)
            assert loss_on_wrong[best] < loss_on_wrong.max() - ROUNDING
            assert scores[best] < scores.max() - ROUNDING
            (loss, sharper_loss), _ = losses(world, minus_loss(np.array([belief, sharper])))
            score, sharper_score = ca_scores(world, [belief, sharper], rule)
            assert sharper_loss > loss + ROUNDING
            assert sharper_score > score + ROUNDING

    world = between(conditionally_independent(FOUR_TO_ONE, SIGNALS), 0, -1)
    classifiers = np.eye(2)[every_map(3, 2)]
    loss, loss_on_wrong = losses(world, classifiers - 1)
    scores = ca_scores(world, classifiers, rules.zero_one)
    assert loss_on_wrong.argmax() == loss.argmin() != scores.argmax()
    # At any prior the 0-1 score is 2 P(0) P(1) (1 - alpha - beta): 0.4 for the least loss, 0.5 at most.
    assert scores[loss.argmin()] == near(0.128)
    assert scores.max() == near(0.16)


def test_theorem_6_an_independent_informative_survey_closes_the_market_as_the_truth_would():
    """Theorem 6: closed by f', conditionally independent and informative, every step earns 1 - alpha' - beta' of
    what it earns when the truth closes the market, so that the same reports pay best.

    Two labels, any prior; market contributions may depend on one another. A survey that copies from the market
    pays for going back to what it copied; one that knows nothing pays nobody; a reversed one pays for lies.
    """
    from verax.market import Submissions, market

    def increments(path, initial, **closing):
        closed = market(Submissions.of(path, owners=["a", "b", "c"][: len(path)]), initial=initial, **closing)
        return np.array([p.score for p in closed.payments])

    rng, informative = default_rng(6), 0
    for _ in range(40):
        prior = random_rows(1, 2, rng, parts=5)[0]
        confusions = [random_rows(2, 2, rng, parts=5) for _ in range(4)]
        *path, survey, truth = listed(counts(conditionally_independent(prior, *confusions)))
        first, second, third = path
        path = [second, third, (first + second + third) // 2]  # the last sees the others, and says what most say
        by_truth = increments(path, first, truth=truth)
        by_survey = increments(path, first, survey=Reports.of([survey]))
        j = youden(confusions[3])
        assert by_survey == near(float(j) * by_truth)
        informative += j > 0

        for lie in every_map(2, 2)[:, second]:  # all relabellings of one's hypothesis
            by_truth, by_survey = (
                increments([second], first, **closing) - increments([lie], first, **closing)
                for closing in ({"truth": truth}, {"survey": Reports.of([survey])})
            )
            assert by_survey == near(float(j) * by_truth)
    assert informative > 10

    better, worse, alone = binary(0.2, 0.2), binary(0.4, 0.4), binary(0.3, 0.3)
    world = copying(HALF, worse, alone, share=0.8)
    world = better.T.reshape(2, 1, 1, 2) * world[None]
    step, start, survey, truth = listed(counts(world))
    assert increments([step], start, truth=truth)[0] > 0 > increments([step], start, survey=Reports.of([survey]))[0]

    world = conditionally_independent(HALF, better, worse, binary(0.5, 0.5), binary(0.9, 0.9))
    step, start, knows_nothing, reversed_, truth = listed(counts(world))
    assert increments([step], start, survey=Reports.of([knows_nothing])).tolist() == [0.0]
    against = increments([step], start, survey=Reports.of([reversed_]))
    assert against == near(-0.8 * increments([step], start, truth=truth))
    assert against[0] < increments([1 - step], start, survey=Reports.of([reversed_]))[0]


def agreement(reports, reference):
    """E S on a list of tasks that is the population, S = I: P(f = g) minus P(f = k) P(g = k) over k."""
    shares = sum((reports == k).mean(-1) * np.mean(reference == k) for k in (0, 1))
    return (reports == reference).mean(-1) - shares


def pay_in_both(reports, before, other, scale, own_drawn):
    """S(r_i, f_-i) + lambda (S(r_t, f') - S(f_t-1, f')) for all reports r_i in the survey (rows), r_t in the market.

    With probability `own_drawn` f' is r_i itself, else another survey.
    """
    own = np.array([agreement(reports, r) - agreement(before, r) for r in reports])
    others = agreement(reports, other) - agreement(before, other)
    return agreement(reports, other)[:, None] + scale * ((1 - own_drawn) * others + own_drawn * own)


def test_theorem_10_who_is_in_market_and_survey_gains_by_no_report_much_less_accurate():
    """Theorem 10: at an even prior, with C independent surveys, nobody who is in both gains by a report more than
    delta = lambda / ((1 - alpha' - beta') (C + lambda (C - 1))) less accurate: one report used in both places, or the
    weighted mean of what two reports lose.

    Every pair of reports, one for the survey and one for the market, that one can make of what one holds and of the
    hypothesis before; Term I carries no lambda. With few surveys a less accurate report does pay: it contradicts the
    hypothesis before, which is paid badly where one's own survey closes the market. Excluded from the draw, none does.
    """
    from verax.market import Submissions, deviation_bound, draw, market

    most_lost = {}
    truthful = 3  # of the 16 functions of (held, before), the one that says 0, 0, 1, 1
    for errors in product(("12/25", "3/8", "1/4"), ("1/2", "2/5"), ("1/4", "1/10")):
        confusions = [binary(e, e) for e in errors]
        held, before, other, truth = listed(counts(conditionally_independent(HALF, *confusions)))
        reports = every_map(4, 2)[:, 2 * held + before]
        assert np.array_equal(reports[truthful], held)
        lost = np.mean(held == truth) - (reports == truth).mean(1)
        for surveys, scale in product((2, 3, 10, 100), (0.5, 1.0, 3.0)):
            delta = deviation_bound(scale, float(youden(confusions[2])), surveys)
            for weight, own_drawn, allowed in ((scale * (surveys - 1) / surveys, 1 / surveys, delta), (scale, 0, 0)):
                pay = pay_in_both(reports, before, other, scale, own_drawn)
                gains = pay > pay[truthful, truthful] + ROUNDING
                less_accurate = (lost[:, None] + weight * lost) / (1 + weight)
                assert not gains[less_accurate > allowed + ROUNDING].any()
                most_lost[surveys] = max(most_lost.get(surveys, 0.0), less_accurate[gains].max(initial=0.0))
    assert most_lost[2] > most_lost[3] > most_lost[10] > 0.01 > most_lost[100]

    # The same by the market, over every draw: three surveys, and who reports against the hypothesis before.
    confusions = [binary(e, e) for e in ("3/8", "1/2", "1/4", "1/4")]
    held, before, *others, truth = listed(counts(conditionally_independent(HALF, *confusions)))

    def earned(report, keep_both):
        surveys, path = Reports.of([report, *others], agents=["me", "x", "y"]), Submissions.of([report], owners=["me"])
        able, found = 3 if keep_both else 2, []
        for drawn in range(able):
            seed = next(f"{n:02x}" for n in range(256) if draw(f"{n:02x}", able) == drawn)
            closed = market(path, survey=surveys, seed=seed, initial=before, keep_both=keep_both)
            found.append(closed.survey.scores[0].score + closed.payments[0].score)
        return population(np.mean(found), len(truth))

    for keep_both, own_drawn in ((True, 1 / 3), (False, 0)):
        for report in (held, 1 - before):
            assert earned(report, keep_both) == near(pay_in_both(report[None], before, others[0], 1.0, own_drawn)[0, 0])
    assert earned(1 - before, keep_both=True) > earned(held, keep_both=True) + 0.05
    assert earned(1 - before, keep_both=False) < earned(held, keep_both=False) - 0.05
    assert np.mean(held == truth) - np.mean(before != truth) == 0.125 < deviation_bound(1.0, 0.5, 3)


def test_theorem_10_bounds_each_of_two_reports_only_where_the_truthful_one_is_the_best_that_can_be_made():
    """The theorem bounds one report used in both places, or the weighted mean of what two different ones lose.

    Where nothing better can be made of what one holds and of the hypothesis before, each of the two alone is within it
    too. Else what the better report earns in one place pays for a far worse one in the other.
    """
    from verax.market import deviation_bound

    found = {True: {"both": 0.0, "survey": 0.0, "market": 0.0}, False: {"both": 0.0, "survey": 0.0, "market": 0.0}}
    worlds = [(("1/20", "1/20", "2/5"), 0.5, 2), (("3/10", "12/25", "1/10"), 10.0, 100),
              (("1/5", "1/20", "1/20"), 10.0, 100), (("2/5", "1/20", "1/20"), 0.5, 100)]  # fmt: skip
    for errors, scale, surveys in worlds:
        confusions = [binary(e, e) for e in errors]
        held, before, other, truth = listed(counts(conditionally_independent(HALF, *confusions)))
        reports, truthful = every_map(4, 2)[:, 2 * held + before], 3
        lost = np.mean(held == truth) - (reports == truth).mean(1)
        pay = pay_in_both(reports, before, other, scale, 1 / surveys)
        gains = pay > pay[truthful, truthful] + ROUNDING
        share, best = lost / deviation_bound(scale, youden(confusions[2]), surveys), lost.min() >= -ROUNDING
        most = {"both": share[np.diag(gains)], "survey": share[gains.any(1)], "market": share[gains.any(0)]}
        found[best] = {place: max(found[best][place], by.max(initial=0.0)) for place, by in most.items()}
    assert found[True] == {"both": near(0.9), "survey": near(0.9), "market": near(0.9)}
    assert found[False] == {"both": 0.0, "survey": near(73.575), "market": near(148.005)}
