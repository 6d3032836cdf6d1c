"""`ce` and `brier` pay for overconfidence; `pmi` is best where the log score is. (beyond the paper)

A recorded CIFAR-10 network's rows p are reported as p^e, normalised: e above 1 is surer than the network, below 1
less sure. Scored against the labels and against the other recorded network's labels. The penalty makes `ce` linear
in log p and `brier` in p, so that the best row is an extreme one, and nothing but the floor stops `ce`. The log
score and `pmi` have a best row in between, flatter against a peer, who errs, than against the truth.

    python paper/overconfidence.py --data-dir DATA
"""

import numpy as np
from drawing import BLACK, COLOURS, DASHES, RECORDED, labelled, leave, options, panels, recorded

from verax import Joint, rules
from verax.reproduce.datasets import test_labels

AGENT, PEER = "cifar10-cnn13-1", "cifar10-resnet34-0"
EXPONENTS = np.unique(np.append(np.geomspace(0.05, 20, 79), [1, 2]))
FLOOR, LOW_FLOOR = 1e-5, 1e-12
NAMES = {"ce": "ce, floor 1e-5", "log": "log score"}
LEAST = 6e-8  # the least float16: a recorded zero is below it
RULES = {
    "ce": lambda joint: rules.ce(joint, floor=FLOOR),
    "ce, floor 1e-12": lambda joint: rules.ce(joint, floor=LOW_FLOOR),
    "brier": rules.brier,
    "pmi": lambda joint: rules.pmi(joint, floor=FLOOR),
    "log": lambda joint: rules.log(joint, floor=FLOOR),
}


def sharpened(rows, exponent):
    """The rows to a power, normalised."""
    powers = np.maximum(rows, LEAST) ** exponent
    return powers / powers.sum(1, keepdims=True)


def curves(rows, reference):
    """Each rule's score at each exponent."""
    joints = [Joint.of(sharpened(rows, e), reference) for e in EXPONENTS]
    return {name: np.array([rule(joint).value for joint in joints]) for name, rule in RULES.items()}


def summary(found):
    """Where each rule is highest, and what squaring the rows does to it."""
    once, twice = (int(np.argmin(np.abs(EXPONENTS - e))) for e in (1, 2))
    return {
        name: {"best": EXPONENTS[v.argmax()], "plain": v[once], "squared": v[twice], "curve": v}
        for name, v in found.items()
    }


def drawn(found):
    title = "Paid by ce or brier, be surer than you are; paid by pmi, be as sure as the log score would have you"
    figure, axes = panels(title, 2, size=(10.5, 4))
    for panel, (reference, by) in zip(axes, found.items(), strict=True):
        for (name, n), colour, dash in zip(by.items(), COLOURS, DASHES, strict=False):
            low, high = n["curve"].min(), n["curve"].max()
            shares = (n["curve"] - low) / (high - low)
            beyond = " or more" if n["best"] == EXPONENTS[-1] else ""
            broad = {"lw": 6, "alpha": 0.4} if name == "pmi" else {"lw": 1.8, "ls": dash}  # log lies on it
            panel.plot(
                EXPONENTS,
                shares,
                color=colour,
                label=f"{NAMES.get(name, name)}: best at {n['best']:.2g}{beyond}",
                **broad,
            )
            panel.plot(n["best"], 1, "o", color=colour, clip_on=False, zorder=3)
        panel.axvline(1, color=BLACK, lw=0.8)
        panel.annotate("as the network says", (1, 0.02), (4, 0), textcoords="offset points", fontsize=8)
        panel.set(xscale="log", xticks=[0.1, 0.5, 1, 2, 10], xticklabels=["0.1", "0.5", "1", "2", "10"])
        panel.legend(loc="center right")
        labelled(
            panel, f"against {reference}", "exponent e of the reported rows p^e", "score, from its least to its most"
        )
    return figure


def main():
    args = options(__doc__, labels=True)
    agents = recorded(RECORDED / "seed-0.npz")
    references = {
        "the truth": test_labels("cifar10", args.data_dir),
        "a peer": agents[PEER].argmax(1),
    }
    found = {name: summary(curves(agents[AGENT], reference)) for name, reference in references.items()}
    for reference, by in found.items():
        for name, n in by.items():
            print(f"{name:15} against {reference:9}: best at e = {n['best']:6.3f}; "
                  f"{n['plain']:7.4f} as it is, {n['squared']:7.4f} squared")  # fmt: skip
    numbers = {"agent": AGENT, "peer": PEER, "floor": FLOOR, "exponents": EXPONENTS, "found": found}
    leave(args.out, "overconfidence", numbers, drawn(found))

    step = EXPONENTS[1] / EXPONENTS[0] + 1e-9
    for by in found.values():
        # The two peaks are one, to a step of the grid; both are less sure than the network.
        assert 1 / step <= by["pmi"]["best"] / by["log"]["best"] <= step
        assert by["pmi"]["best"] < 1
        # Surer rows lift ce and brier while the log score of the same rows falls.
        assert by["ce"]["squared"] > by["ce"]["plain"]
        assert by["brier"]["squared"] > by["brier"]["plain"]
        assert by["log"]["squared"] < by["log"]["plain"] - 0.3
        # Nothing but the floor stops ce, and brier runs on.
        assert by["ce"]["best"] > 1.5
        assert by["ce, floor 1e-12"]["best"] > 2 * by["ce"]["best"]
        assert by["brier"]["best"] > 4
    assert found["a peer"]["log"]["best"] <= found["the truth"]["log"]["best"]


if __name__ == "__main__":
    main()
