"""How much collusion honesty bears: it stops paying at gamma*, and the printed bound is too high. (Theorem 7)

A share gamma of an agent's references are the worst adversaries, independent given the truth. Against them truth
is best iff (1 - gamma) J + gamma J_adversary > 0, so it turns at gamma* = J / (J + J*), J = 1 - alpha - beta of the
honest references and J* the largest that any adversary can reach. The paper takes J* from the Bayes-optimal
classifier, which is the largest at an even prior only. With ten labels colluders permute what they would say.
Lines are exact; points are simulated and scored by `verax.score`.

    python paper/collusion.py
"""

import numpy as np
from drawing import BLACK, COLOURS, DASHES, MARKERS, RED, labelled, leave, options, panels

import verax
from verax.audit import flipping_fraction, gamma_star

SEED, PEERS, TASKS, WORLDS = 11, 10, 5000, 12
GAMMAS = np.linspace(0, 0.7, 701)
EVEN, LOPSIDED = np.array([0.5, 0.5]), np.array([0.8, 0.2])
SIGNALS = np.array([[0.6, 0.3, 0.1], [0.1, 0.4, 0.5]])  # P(signal | truth)


def binary(alpha, beta):
    """P(label | truth) with false negative rate alpha and false positive rate beta."""
    return np.array([[1 - alpha, alpha], [beta, 1 - beta]])


def youden(confusion):
    """J = 1 - alpha - beta."""
    return confusion[0, 0] + confusion[1, 1] - 1


def every_classifier():
    """P(label | truth) of each of the eight classifiers of the three signals."""
    return [SIGNALS @ np.eye(2)[[a, b, c]] for a in (0, 1) for b in (0, 1) for c in (0, 1)]


def bayes_optimal(prior):
    """P(label | truth) of the classifier that says the likelier label on every signal."""
    return SIGNALS @ np.eye(2)[(SIGNALS * prior[:, None]).argmax(0)]


def delta(prior, own, reference):
    """Delta* of two agents who are independent given the truth."""
    joint = own.T @ (prior[:, None] * reference)
    return joint - np.outer(joint.sum(1), joint.sum(0))


def replies(classes, lie=None):
    """The truth and the lies it is compared with: every other relabelling of two labels, or the one given."""
    honest = np.arange(classes)
    return [honest, *([[1, 0], [0, 0], [1, 1]] if lie is None else [lie])]


def exact_lead(mixed, lie=None):
    """What truth earns beyond the best of the lies, from the references' mean delta."""
    earned = [mixed[np.arange(len(mixed)), reply].sum() for reply in replies(len(mixed), lie)]
    return earned[0] - max(earned[1:])


def line(prior, own, honest, hostile, lie=None):
    """The lead of truth at every gamma."""
    a, b = (delta(prior, own, reference) for reference in (honest, hostile))
    return np.array([exact_lead((1 - g) * a + g * b, lie) for g in GAMMAS])


def turning(lead):
    """The first gamma at which truth is no longer ahead."""
    return float(GAMMAS[np.argmax(lead <= 1e-12)])


def said(confusion, truth, rng):
    """Labels drawn given the truth."""
    return (rng.random(len(truth))[:, None] >= confusion.cumsum(1)[truth][:, :-1]).sum(1)


def simulated(prior, own, honest, hostile, lie=None):
    """The mean lead of truth, by `verax.score`, with 0 to 7 of 10 references hostile, and its error."""
    rng, found = np.random.default_rng(SEED), []
    for hostiles in range(8):
        leads = []
        for _ in range(WORLDS):
            truth = rng.choice(len(prior), TASKS, p=prior)
            peers = [said(hostile if i < hostiles else honest, truth, rng) for i in range(PEERS)]
            held = said(own, truth, rng)
            earned = [score_beside(np.asarray(reply)[held], peers, len(prior)) for reply in replies(len(prior), lie)]
            leads.append(earned[0] - max(earned[1:]))
        found.append((hostiles / PEERS, np.mean(leads), np.std(leads, ddof=1) / np.sqrt(WORLDS)))
    return np.array(found)


def score_beside(report, peers, classes):
    """`zero-one`, mean over peers."""
    return verax.score(verax.Reports.of(labels=[report, *peers], classes=range(classes)))["0"].score


def paired_confusion(right=0.6, mistaken=0.25, classes=10):
    """Ten labels in pairs that are easily mistaken for each other; other errors fall evenly."""
    confusion = np.full((classes, classes), (1 - right - mistaken) / (classes - 2))
    labels = np.arange(classes)
    confusion[labels, labels], confusion[labels, labels ^ 1] = right, mistaken
    return confusion


def permuted(confusion, d):
    """The colluders of `flipping_fraction`: they pay its lie first. They say `said` for `held`, and `held` for the
    label that stands least beside it.
    """
    flip = flipping_fraction(d, "permuting")
    least = int(d[flip.held].argmin())
    says = np.arange(len(d))
    says[flip.held], says[least] = flip.said, flip.held
    if least != flip.said:
        says[flip.said] = least
    hostile = np.zeros_like(confusion)
    hostile[:, says] = confusion
    lie = np.where(np.arange(len(d)) == flip.held, flip.said, np.arange(len(d)))
    return hostile, lie, flip.fraction


def even_prior():
    """J = 0.6 against reversed adversaries of J* = 0.6, 0.8 and 1."""
    crowd, cases = binary(0.2, 0.2), {}
    for best in (0.6, 0.8, 1.0):
        rate = (1 + best) / 2
        world = (EVEN, crowd, crowd, binary(rate, rate))
        cases[f"J* = {best:g}"] = (gamma_star(0.6, best), line(*world), simulated(*world))
    return cases


def lopsided_prior():
    """At P(Y=1) = 0.8 a classifier that is not Bayes-optimal has the largest J."""
    crowd = bayes_optimal(LOPSIDED)
    worst = min(every_classifier(), key=youden)
    reversed_bayes = crowd[:, ::-1]
    cases = {}
    for name, hostile in (("Bayes-optimal, reversed", reversed_bayes), ("largest J, reversed", worst)):
        world = (LOPSIDED, crowd, crowd, hostile)
        cases[name] = (gamma_star(youden(crowd), -youden(hostile)), line(*world), simulated(*world))
    return cases


def pays_by(d, hostile_delta):
    """The first gamma at which any relabelling of any one label earns as much as the truth."""
    for gamma in GAMMAS:
        mixed = (1 - gamma) * d + gamma * hostile_delta
        margin = np.diag(mixed)[:, None] - mixed + np.eye(len(d))
        if margin.min() <= 1e-12:
            return gamma
    return np.inf


def ten_labels():
    """The worst permutation, in a world of even errors and in one of labels in pairs."""
    prior, cases = np.full(10, 0.1), {}
    for name, own in (("even errors", paired_confusion(0.6, 0.4 / 9)), ("mistakable pairs", paired_confusion())):
        hostile, lie, fraction = permuted(own, delta(prior, own, own))
        world = (prior, own, own, hostile, lie)
        # The lie that is followed here is the first that pays: no other relabelling does before.
        first = pays_by(delta(prior, own, own), delta(prior, own, hostile))
        assert abs(first - fraction) <= 0.001 + 1e-9
        cases[name] = (fraction, line(*world), simulated(*world))
    return cases


def drawn(worlds, printed):
    title = "Honesty stops paying at the predicted share of colluders, and below the paper's bound at P(Y=1) = 0.8"
    figure, axes = panels(title, 3, size=(13, 4))
    heads = ("two labels, even prior", "two labels, P(Y=1) = 0.8", "ten labels, permuting colluders")
    for panel, head, cases in zip(axes, heads, worlds.values(), strict=True):
        shown = zip(cases.items(), COLOURS, MARKERS, DASHES, strict=False)
        for (name, (predicted, lead, points)), colour, marker, dash in shown:
            panel.plot(GAMMAS, lead, color=colour, ls=dash, label=f"{name}: γ* = {predicted:.3f}")
            panel.errorbar(*points.T[:2], 2 * points[:, 2], color=colour, marker=marker, ls="", elinewidth=1)
            panel.axvline(predicted, color=colour, ls=":", lw=1)
        panel.axhline(0, color=BLACK, lw=0.8)
        panel.legend(loc="lower left")
        lie = "the lie that pays first" if head.startswith("ten") else "the best lie"
        labelled(panel, head, "share of colluders γ", f"truth minus {lie}")
    _, lead, _ = worlds["lopsided"]["largest J, reversed"]
    broken = (lead < 0) & (printed > GAMMAS)
    axes[1].fill_between(GAMMAS, lead, 0, where=broken, color=RED, alpha=0.3)
    axes[1].annotate("lies pay below\nthe printed ½", (0.47, -0.003), (0.53, 0.02), fontsize=8,
                     arrowprops={"arrowstyle": "->"})  # fmt: skip
    return figure


def main():
    args = options(__doc__)
    worlds = {"even": even_prior(), "lopsided": lopsided_prior(), "ten": ten_labels()}
    printed = gamma_star(youden(bayes_optimal(LOPSIDED)), youden(bayes_optimal(LOPSIDED)))
    numbers = {"seed": SEED, "tasks": TASKS, "worlds": WORLDS, "peers": PEERS, "printed_bound": printed, "found": {}}
    for world, cases in worlds.items():
        for name, (predicted, lead, points) in cases.items():
            at = np.searchsorted(GAMMAS, points[:, 0] - 1e-9)
            off = np.abs(points[:, 1] - lead[at]) / points[:, 2]
            print(f"{world:8} {name:24} predicted {predicted:.4f}, turns at {turning(lead):.4f}; "
                  f"simulated within {off.max():.1f} errors")  # fmt: skip
            numbers["found"].setdefault(world, {})[name] = {
                "predicted": predicted, "turns": turning(lead), "points": points, "furthest_in_errors": off.max(),
            }  # fmt: skip
    broken = worlds["lopsided"]["largest J, reversed"][1][np.searchsorted(GAMMAS, 0.49 - 1e-9)]
    numbers["lead_at_0.49"] = broken
    print(f"P(Y=1) = 0.8: the paper's bound is {printed:.3f}; at 0.49 truth earns {-broken:.5f} less than a lie")
    leave(args.out, "collusion", numbers, drawn(worlds, printed))

    for cases in numbers["found"].values():
        for case in cases.values():
            # The exact lead changes sign within one step of the grid of the predicted share.
            assert abs(case["turns"] - case["predicted"]) <= 0.001 + 1e-9
            assert case["furthest_in_errors"] < 5
    assert round(numbers["found"]["even"]["J* = 0.8"]["predicted"], 6) == round(3 / 7, 6)
    assert round(numbers["found"]["lopsided"]["largest J, reversed"]["predicted"], 6) == round(4 / 9, 6)
    assert printed == 0.5
    # 2 (0.51 x 0.4 - 0.49 x 0.5) of what truth earns against the truth, 2 x 0.8 x 0.2 x 0.4.
    assert abs(broken - 2 * -0.041 * 0.128) < 1e-12


if __name__ == "__main__":
    main()
