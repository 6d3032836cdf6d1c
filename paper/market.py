"""The market: payments telescope to the unit, and a survey closes it within Theorem 10's bound. (Theorems 6 and 10)

First, the 24 recorded networks arrive in random orders and the truth closes the market: each replaces the
hypothesis before with its own, or pools its rows with all that came before. What is paid out is the last level
minus the first, to the minor unit, whatever the path. Second, an agent of a binary market is also one of C surveys,
one of which is drawn to close it: how much accuracy can a report lose and still gain? Exact, over all pairs of
reports that it can make of what it holds and of the hypothesis before, beside the bound that nobody exceeds.

    python paper/market.py --data-dir DATA
"""

import numpy as np
from drawing import BLACK, COLOURS, DASHES, MARKERS, labelled, leave, options, panels, population

from verax.market import Submissions, deviation_bound, market
from verax.reproduce.datasets import test_labels

SEED, ORDERS, UNIT = 3, 4, 1_000_000
SURVEYS = np.arange(2, 51)
SURVEY_ERRORS = (0.1, 0.25)
ERRORS = 0.5 - np.append(0, np.geomspace(5e-4, 0.495, 70))  # with many surveys only the least informed gain
SCALE = 1.0


def paid(rows, owners, truth):
    """The market's levels, what it paid out in minor units, and what the difference of its ends comes to."""
    closed = market(Submissions.of(probabilities=rows, owners=owners), truth=truth)
    money = closed.money(UNIT)
    assert sum(money.totals.values()) == sum(money.amounts) <= money.worst_case_loss
    ends = round(closed.final * UNIT) - round(closed.initial * UNIT)
    return {"levels": [closed.initial, *(p.level for p in closed.payments)], "paid": sum(money.amounts), "ends": ends}


def paths(agents, truth):
    """Each random order twice: every network alone, and pooled with all before it."""
    rng, found = np.random.default_rng(SEED), {"alone": [], "pooled": []}
    for _ in range(ORDERS):
        order = rng.permutation(list(agents))
        rows = np.stack([agents[name] for name in order])
        pooled = rows.cumsum(0) / np.arange(1, len(rows) + 1)[:, None, None]
        found["alone"].append(paid(rows, list(order), truth))
        found["pooled"].append(paid(pooled, list(order), truth))
    return found


# Held label, label before, another survey's label and the truth: all 16 combinations, and all reports that an agent
# can make of the first two.
HELD, BEFORE, OTHER, TRUTH = CELLS = np.indices((2, 2, 2, 2)).reshape(4, -1)
REPORTS = np.indices((2, 2, 2, 2)).reshape(4, -1).T[:, 2 * HELD + BEFORE]
TRUTHFUL = 3  # the report that says 0, 0, 1, 1: what is held


def chances(errors):
    """The probability of each cell, labels independent given an even truth, erring at these rates."""
    right = [np.where(label == TRUTH, 1 - e, e) for label, e in zip(CELLS[:3], errors, strict=True)]
    return 0.5 * np.prod(right, axis=0)


def agreement(reports, references, weight):
    """E S of all reports beside all references, S = I, two labels: 2 Cov."""
    centred = reports - reports @ weight[:, None], references - references @ weight[:, None]
    return 2 * (centred[0] * weight) @ centred[1].T


def lost_by_gaining(errors, own_drawn):
    """The most accuracy, weighted by what it counts for, that a gaining pair of reports loses.

    For each probability that the agent's own survey closes the market. Pay is S(r_i, f') + lambda (S(r_t, f) -
    S(f_t-1, f)) for report r_i in the survey (rows) and r_t in the market (columns); f is r_i or another survey f'.
    """
    weight = chances(errors)
    by_other = agreement(REPORTS, OTHER[None], weight)[:, 0]
    moved_by_other = by_other - agreement(BEFORE[None], OTHER[None], weight)[0, 0]
    moved_by_own = agreement(REPORTS, REPORTS, weight) - agreement(REPORTS, BEFORE[None], weight)
    share = own_drawn[:, None, None]
    pay = by_other[:, None] + SCALE * ((1 - share) * moved_by_other + share * moved_by_own)
    gains = pay > pay[:, [TRUTHFUL], [TRUTHFUL]][:, None] + 1e-12
    lost = ((HELD == TRUTH) * weight).sum() - ((REPORTS == TRUTH) * weight).sum(1)
    counts = SCALE * (1 - share)
    return ((lost[:, None] + counts * lost) / (1 + counts)).max((1, 2), where=gains, initial=0.0)


def realised(survey_error, own_drawn):
    """The same, the most over how good the agent is and over how good the hypothesis before."""
    worlds = ((held, before, survey_error) for held in ERRORS for before in ERRORS)
    return np.max([lost_by_gaining(errors, own_drawn) for errors in worlds], axis=0)


def drawn(found, surveys):
    title = "Every order pays out exactly what the last hypothesis is worth; who is in the survey too gains little"
    figure, axes = panels(title, 3, size=(13, 4))
    heads = {"alone": "each network replaces the one before", "pooled": "each network is pooled with all before"}
    for panel, (way, head) in zip(axes[:2], heads.items(), strict=True):
        for path, colour, marker in zip(found[way], COLOURS, MARKERS, strict=False):
            panel.plot(path["levels"], color=colour, marker=marker, ms=3, lw=1, label=f"paid {path['paid']:,}")
        panel.set_ylim(0, 0.95)
        panel.legend(loc="upper center", ncols=2, title=f"{ORDERS} orders, {UNIT:,} units to a score of 1")
        labelled(panel, head, "networks arrived", "level (zero-one against the truth)")
    for (error, by), colour, marker, dash in zip(surveys.items(), COLOURS, MARKERS, DASHES, strict=False):
        axes[2].plot([1, *SURVEYS], [by["bound_at_1"], *by["bound"]], color=colour, ls=dash,
                     label=f"bound, surveys err at {error}")  # fmt: skip
        some = np.unique(np.geomspace(1, len(SURVEYS), 14).astype(int)) - 1
        axes[2].plot(SURVEYS[some], by["realised"][some], marker, color=colour, label="most that a gainer loses")
    axes[2].axhline(1, color=BLACK, lw=0.8, ls=":")
    axes[2].set(xscale="log", yscale="log", xticks=[1, 2, 5, 10, 20, 50], xticklabels=[1, 2, 5, 10, 20, 50])
    axes[2].minorticks_off()
    axes[2].legend(loc="lower left")
    labelled(axes[2], "in market and survey (Theorem 10)", "surveys C", "loss of accuracy that still gains")
    return figure


def main():
    args = options(__doc__, labels=True)
    found = paths(population(), test_labels("cifar10", args.data_dir))
    for way, runs in found.items():
        print(f"{way:7} paid {[r['paid'] for r in runs]}, last minus first {[r['ends'] for r in runs]}")
    surveys = {}
    for error in SURVEY_ERRORS:
        bound = np.array([deviation_bound(SCALE, 1 - 2 * error, c) for c in (1, *SURVEYS)])
        surveys[error] = {"bound_at_1": bound[0], "bound": bound[1:], "realised": realised(error, 1 / SURVEYS)}
        by, ten = surveys[error], list(SURVEYS).index(10)
        print(f"surveys err at {error}: C = 10 realised {by['realised'][ten]:.4f}, bound {by['bound'][ten]:.4f}; "
              f"closest {(by['realised'] / by['bound']).max():.3f} of the bound")  # fmt: skip
    excluded = realised(SURVEY_ERRORS[0], np.zeros(1))
    numbers = {"seed": SEED, "unit": UNIT, "paths": found, "surveys": {"C": SURVEYS, **surveys},
               "excluded_from_the_draw": excluded.max()}  # fmt: skip
    leave(args.out, "market", numbers, drawn(found, surveys))

    assert np.array_equal(REPORTS[TRUTHFUL], HELD)
    for runs in found.values():
        assert all(run["paid"] == run["ends"] for run in runs)
    # Pooled, every order ends with the same hypothesis, up to the rounding of sums.
    assert np.ptp([run["paid"] for run in found["pooled"]]) <= 200
    for by in surveys.values():
        assert (by["realised"] <= by["bound"]).all()
        assert by["realised"][0] > by["realised"][8] > by["realised"][-1]
        # With one survey the bound is above 1, which says nothing; nobody is there to pay it by either.
        assert by["bound_at_1"] > 1
    assert round(surveys[0.1]["bound"][8], 10) == 0.0657894737
    assert excluded.max() == 0


if __name__ == "__main__":
    main()
