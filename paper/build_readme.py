"""Write paper/README.md, and the tables of docs/federation.md and docs/ranking.md, from the numbers that the studies left in results/.

python paper/build_readme.py                     rewrite them
python paper/build_readme.py --check             exit 1 if they are not what the numbers say
python paper/build_readme.py --figures DATA      first run `verax reproduce` for the three recorded seeds

A page in docs keeps its text; what stands between `<!-- table: NAME -->` or `<!-- said: NAME -->` and `<!-- end -->` is
made here.
"""

# ruff: noqa: E501, a table has its rows on one line

import argparse
import csv
import json
import re
import subprocess
import sys
import tempfile
import textwrap
from itertools import groupby, pairwise
from pathlib import Path

HERE = Path(__file__).parent
RECORDED = HERE.parent / "src" / "verax" / "reproduce" / "recorded"
FEDERATION = HERE.parent / "docs" / "federation.md"
EXAM = HERE.parent / "docs" / "exam.md"
RANKING = HERE.parent / "docs" / "ranking.md"
OVERHEAD = HERE.parent / "benchmarks" / "results" / "federation.json"
ROUND = HERE.parent / "benchmarks" / "results" / "federation_round.json"
STUDIES = ("accuracy", "collusion", "market", "hybrid", "overconfidence", "learned_sign", "federation",
           "ranking", "intervals", "exam", "sides", "every", "contribution")  # fmt: skip
AGENTS = {"mnist-lenet": ("MNIST, weak: LeNet", 99.37), "mnist-cnn13": ("MNIST, strong: CNN13", 99.74),
          "cifar10-resnet34": ("CIFAR-10, weak: ResNet34", 62.46), "cifar10-cnn13": ("CIFAR-10, strong: CNN13", 76.89)}  # fmt: skip
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10"}

TEXT = """# The paper's claims, run

Every theorem, lemma and figure of *Incentives for Federated Learning: a Hypothesis Elicitation Approach* (Liu and
Wei), what running it shows, and thirteen studies that go further. Written by `python paper/build_readme.py` from
`results/*.json`; numbers stand there in full. `DATA` is the folder that holds `cifar-10-batches-bin` and `mnist`.
The studies draw with matplotlib: `pip install 'verax[report]'`.

## Theorems and lemmas

Exact: worlds of fractions, measured on tasks that have exactly their probabilities, without sampling. The command
is `pytest tests/test_paper.py -k` and what stands in the second column. "Agrees" means that the claim holds where
its conditions hold; the tests also show it failing where they do not.

| claim | `-k` | the paper | ours | agrees? |
|---|---|---|---|---|
| Theorem 1: calibrated losses elicit the Bayes-optimal classifier | `theorem_1_` | holds | holds for 0-1, log and quadratic; for the last two the best report is the posterior, which classifies the same | yes |
| Theorem 2: CA with truth is truthful | `theorem_2_` | no relabelling gains | gain 0 in 45 random worlds, every relabelling | yes |
| Lemma 1: FNR + FPR < 1 gives Sgn(Δ\\*) = I | `lemma_1` | holds | holds, 1,089 binary worlds; not with three labels | yes, with a slip in the proof |
| Theorem 3: accuracy decides at an even prior | `theorem_3_` | two labels | E score = accuracy - 1/L for any L | yes |
| Theorem 4: CA with peers is truthful | `theorem_4_` | an equilibrium | the same; a reversed peer makes lies best | yes |
| Lemma 2: two informative independent peers give Sgn(Δ\\*) = I | `lemma_2` | holds | holds; not where they never err together | yes, with a slip in the proof |
| The affine identity | `affine` | E S(f, f') = (1 - α' - β') E S(f, Y) | to 1e-12, at any prior | yes |
| Theorem 5: accuracy decides against a peer | `theorem_5_` | Sgn(Δ\\*) = I suffices | an informative peer is needed | corrected |
| Theorem 6: a survey closes the market | `theorem_6_` | as the truth would | every step earns 1 - α' - β' of what truth pays | yes |
| Theorem 7: robustness | `theorem_7_` | J\\* of the Bayes-optimal classifier | the largest J of any classifier; at P(Y=1) = 0.8 the bound is 4/9, not 1/2 | corrected |
| Theorem 8: calibrated CA | `theorem_8_` | elicits what CA elicits | holds for the squared loss; cross-entropy pays a hedged wrong classifier more | yes, inequality reversed |
| Theorem 9: its condition at an even prior | `theorem_9_` | suffices | suffices; symmetric losses meet it, cross-entropy does not | yes, narrower |
| Theorem 10: market with C surveys | `theorem_10_` | δ = λ/((1 - α' - β')(C + λ(C - 1))); C = 10, errors 0.1: 0.0658 | no gain by a greater loss of accuracy: of one report used in both places, or in the weighted mean of two; where a better one than the truthful can be made, a survey report alone may lose 74 δ, a market report alone 148 δ | yes, said so |

## Figures

`verax reproduce --data-dir DATA --seed 0` (and 1, 2) draws figures 1 to 3 from recorded predictions; exact means, so
"falling" is a statement about every curve and not about five draws. The paper prints no values; it says that
scores fall in most situations, fluctuating under attack on CIFAR-10.

| figure | the paper | ours: 0-1 score at misreport rates 0 and 0.5, three seeds | strictly falling curves | agrees? |
|---|---|---|---|---|
{figures}

The agents behind them: 25,000 training images each, seeds {seeds}, on an {device}; ResNet34 took {resnet_seconds} s
with the four agents of a seed side by side. `python paper/train.py --data-dir DATA --out OUT --seeds 0 1 2`.

| agent | the paper, % | ours, three seeds, % | mean within a point? |
|---|---|---|---|
{agents}

The CIFAR-10 images trained on here had gone through JPEG (quality 75), so its accuracies compare only roughly.
Our ResNet34 is more accurate than the paper's, so weak and strong are closer together. The small networks of
`accuracy.py` and `market.py` are {population} more, seeds {first} to {last}, of the same machine (`--population`).

### ResNet34 and the authors' published code

The authors' published CIFAR-10 training code does not do what their appendix says. It puts the networks into
evaluation mode after the first epoch and never back, so that batch normalisation keeps the statistics of that epoch
and dropout is off (`frozen`); it makes a new optimiser every epoch, so that momentum starts from nothing (`rebuilt`);
and it runs 120 epochs with the rate times 0.1 every 20, not 180 and 40 (`published`: all three). Our agents trained
so, on the same images from the same first weights, on an {variants_device}:
`python paper/train.py --data-dir DATA --out paper/results --variants --seeds 0 1 2` runs all of it; what was run is in
`results/published.json`, and `-` stands for what was not.

| training | ResNet34, %, recipe seeds {weak_seeds} | CNN13, %, recipe seeds {strong_seeds} |
|---|---|---|
{variants}

{shown}

Not tried: inputs centred with 0.5 and 0.5, the same images for both agents, a rate that changes one epoch late and
stays at 1e-5 from epoch 81 on, channel dropout in CNN13, and float32 (ours is bfloat16, which may bear on what
diverges). That the paper's figures come from the code as published is not known.

## Slips in the paper, and what verax does

| the text says | we do | shown by |
|---|---|---|
| e runs "from 0 to 0.56" (uniform misreport) | 9e runs 0 to 0.5 in steps of 0.05, as its appendix says | `verax reproduce` |
| central line: median (section 5) or mean (appendix B) | mean, with the largest absolute deviation | `verax reproduce --centre median` offers the other |
| proof of Lemma 1: Δ\\*(1,2) has P(Y=2) P(Y=2) | P(Y=1) P(Y=2) | `-k lemma_1` |
| proof of Lemma 2: P(f=k given Y=1) in the Y=2 term | given Y=2 | `-k lemma_2` |
| Theorem 5 (ii): Sgn(Δ\\*) = I implies an informative peer | two reversed ones give I too: ask for informativeness | `-k theorem_5` |
| Theorem 7: the Bayes-optimal classifier bounds every adversary | only at P(Y=1) = 1/2 | `-k theorem_7`, `paper/collusion.py` |
| definition of calibrated CA: the inequality's direction | reversed, for scores are better when higher | `-k theorem_8` |
| Theorem 9's condition for common losses | holds for symmetric losses, fails for cross-entropy | `-k theorem_9` |
| "deviation δ := E[1(f,Y) - 1(f\\*,Y)]", an extra λ in Term I | the loss of accuracy; no λ | `-k theorem_10` |
| proofs cite "Theorem 6" for the affine identity | it is in the proof of Theorem 5 | `-k affine` |
| attack: 0.7 f(x) + 0.3 f(x_attack) "before one-hot" | of probabilities; the authors' code mixes logits | `verax reproduce --mixture logits` offers the other |
| how a misreport changes a probability row is not said | the two entries are swapped, as in the authors' code | `verax reproduce` |
| reference agents are truthful | yes; the authors' code lets them misreport too | `verax reproduce --reference-misreports` offers the other |
| CIFAR-10 agents: 180 epochs, rate times 0.1 every 40, different images | as said; the authors' code runs 120, every 20, on the same images | `paper/train.py --variants published`, but for the images |

The authors' published code divides CE by the batch size twice and reseeds NumPy in every batch, so its figures are
comparable in shape only. Its CIFAR-10 training leaves the networks in evaluation mode from the second epoch on, and
makes new optimisers every epoch: what that does is shown
[above](#resnet34-and-the-authors-published-code).

## Thirteen studies

Each prints a table, leaves `results/<name>.json`, `.png` and `.svg`, and ends in asserts that state what it shows.
Seconds on one core of a shared machine, for `federation`, `ranking` and `intervals` on all cores (the last two on 16); no
GPU, but for the worlds that `exam` reads (`python paper/exam_worlds.py --play ...` made them in 143 s on an NVIDIA H200
and 16 cores), and RINGS, which `python paper/sides.py --play RINGS ...` left there in 35 s; the worlds of
`every` took 400 s there and those of `contribution` ten minutes of the 16 cores. What they mean is in [docs/federation.md](../docs/federation.md), [docs/ranking.md](../docs/ranking.md) and
[docs/exam.md](../docs/exam.md).

| claim | command | expected | ours | agrees? |
|---|---|---|---|---|
{studies}

{pictures}
"""

CLAIMS = {
    "accuracy": ("accuracy without labels (Theorem 5 beyond its conditions)", " --data-dir DATA"),
    "collusion": ("honesty turns at γ\\* = J/(J + J\\*); the printed bound fails at P(Y=1) = 0.8 (Theorem 7)", ""),
    "market": (
        "payments telescope; who is in market and survey stays within the bound (Theorem 10)",
        " --data-dir DATA",
    ),
    "hybrid": ("hybrid pay varies less than truth on the labelled tasks alone", ""),
    "overconfidence": ("`ce` and `brier` pay overconfidence, `pmi` does not (beyond the paper)", " --data-dir DATA"),
    "learned_sign": ("a sign learned on the tasks it scores pays noise (beyond the paper)", ""),
    "federation": (
        "who sends the broadcast back out-earns work; taking out what is public stops it (beyond the paper)",
        " --data-dir DATA",
    ),
    "ranking": ("the order that the truth gives, without labels, beside what others use (beyond the paper)", ""),
    "every": ("what replies add to what is public, beside one another: a meter, no guard (beyond the paper)", ""),
    "contribution": ("scores rank clients as Shapley values do, and cost far less (beyond the paper)", ""),
    "sides": ("a few known labels cut off rings that rename labels (beyond the paper)", " --worlds RINGS"),
    "exam": ("labels that others hold back pay for what data taught, and nothing else (beyond the paper)", ""),
    "intervals": ("intervals over skilled references and against the consensus hold (beyond the paper)", ""),
}
SECONDS = {"accuracy": 10, "collusion": 20, "market": 9, "hybrid": 8, "overconfidence": 3, "learned_sign": 20,
           "federation": 970, "ranking": 160, "intervals": 130,
           "exam": 20, "sides": 40, "every": 5, "contribution": 7}  # fmt: skip


def results(name):
    return json.loads((HERE / "results" / f"{name}.json").read_text())


def accuracy():
    by = results("accuracy")["rules"]
    told = [f"`{r}` {n['spearman']:.3f} ({n['interval'][0]:.2f} to {n['interval'][1]:.2f})" for r, n in by.items()]
    told[-1] = told[-1].replace("`tempered`", "`pmi` at each agent's best temperature")
    clean = ", ".join(f"`{r}` {by[r]['clean']:.3f}" for r in ("zero-one", "brier"))
    ours = f"Spearman with true accuracy, 24 networks: {'; '.join(told)}; the 12 trained on clean labels: {clean}"
    return (
        "above 0.9 (30 public classifiers: 0.970)",
        ours,
        "`brier` yes, `zero-one` nearly, `ca` and `ce` partly; `pmi` no",
    )


def collusion():
    n = results("collusion")
    cases = [case for world in n["found"].values() for case in world.values()]
    worst = n["found"]["lopsided"]["largest J, reversed"]
    most = max(case["furthest_in_errors"] for case in cases)
    ours = (f"{len(cases)} worlds turn within 0.001 of γ\\*; at P(Y=1) = 0.8 at {worst['predicted']:.4f}, where the paper "
            f"has {n['printed_bound']:.1f}; ten labels with mistakable pairs "
            f"{n['found']['ten']['mistakable pairs']['predicted']:.3f}; simulated within {most:.1f} standard errors; "
            f"seed {n['seed']}")  # fmt: skip
    return "J = 0.6, J\\* = 0.8: 3/7", ours, "yes, as corrected"


def market():
    n = results("market")
    exact = all(run["paid"] == run["ends"] for runs in n["paths"].values() for run in runs)
    runs = sum(map(len, n["paths"].values()))
    ten = n["surveys"]["C"].index(10)
    by = n["surveys"]["0.1"]
    ours = (f"{runs} paths, difference {'0 units' if exact else 'not 0'} of {n['unit']:,}; C = 10, errors 0.1: the most accuracy "
            f"found lost by a report that gains is {by['realised'][ten]:.4f}; excluded from the draw: "
            f"{n['excluded_from_the_draw']:g}; seed {n['seed']}")  # fmt: skip
    return f"difference 0; at most {by['bound'][ten]:.4f}", ours, "yes; the bound is about twice what is reached"


def hybrid():
    n = results("hybrid")
    row = next(row for row in n["rows"] if row["labelled"] == 100)
    low, high = n["reported_over_simulated"]
    ours = (f"100 of {n['tasks']:,} labelled: variance {row['hybrid']['variance']:.2e}, truth alone "
            f"{row['truth']['variance']:.2e}; reported over simulated variance {low:.2f} to {high:.2f}; "
            f"{n['worlds']} worlds, seed {n['seed']}")  # fmt: skip
    return "lower", ours, "yes"


def overconfidence():
    n = results("overconfidence")["found"]
    truth, peer = n["the truth"], n["a peer"]
    ours = (f"squaring the rows lifts `ce` from {truth['ce']['plain']:.2f} to {truth['ce']['squared']:.2f} (floor 1e-5) "
            f"while the log score falls from {truth['log']['plain']:.2f} to {truth['log']['squared']:.2f}; best exponent "
            f"against truth: `ce` {truth['ce']['best']:.2f}, `pmi` {truth['pmi']['best']:.2f}, log {truth['log']['best']:.2f}; "
            f"against a peer: {peer['ce']['best']:.2f}, {peer['pmi']['best']:.2f}, {peer['log']['best']:.2f}; "
            "seed-0 CNN13")  # fmt: skip
    return "7.72 to 8.02, -1.24 to -1.88 (another network); `pmi` peaks with log", ours, "yes"


def learned_sign():
    n = results("learned_sign")
    case = next(row for row in n["rows"] if row["tasks"] == 1000 and row["labels"] == 10)
    low, high = n["ratio"]
    ours = (f"`plugin` pays {case['plugin'][0]:.4f} at N = 1,000, L = 10; {low:.2f} to {high:.2f} of the formula where "
            f"N >= 5 L^2; `split` and `identity` within {n['errors_from_0']:.1f} standard errors of 0 in 40 cases; "
            f"seed {n['seed']}")  # fmt: skip
    return f"0.399 (L - 1)/√N: {case['predicted']:.4f}; 0", ours, "yes"


def federation():
    n = results("federation")
    pay, of, first = n["every"]["pay"], n["every"]["honest"], n["first"]
    plain = [name for name in pay["IID"] if name not in IMITATING and name not in WORKED]
    top = max(skew[name]["every"]["max"] for skew in pay.values() for name in plain)
    least = min(first[world]["spearman"]["min"] for world in first)
    missed = [world for world in first if first[world]["spearman"]["mean"] < 0.8]
    ring = {world: 100 * max(of["rings"][f"{kind} 45%"]["median"]["max"] for kind in ("made up", "permuted"))
            for world, of in first.items()}  # fmt: skip
    assert (
        top == 0
        and missed == ["digits, Dirichlet 0.3"]
        and [world for world in ring if ring[world] < 2] == ["mnist, IID"]
    )
    ours = (f"% of mean honest pay, IID / Dirichlet 0.3: echo {both(pay, 'echo', 'plain')} plain, 0 / 0 `every`, as all noise, earlier "
            f"broadcasts and steps; AUC {pair(of, 'plain', 'AUC')} plain, {pair(of, 'every, kinship 6', 'AUC')} `every`, "
            f"{pair(of, 'every, kinship 6', 'AUC, knowing riders too')} with riders that imitate work, of which random labels on real "
            f"images earn {both(pay, 'real images, random labels', 'every')}; `first`: plain riders 0, Spearman with accuracy "
            f"{span(first, 'spearman')} in the mean, {least:.2f} at worst, a ring of 45 % takes up to {ring['mnist, IID']:.1f} / "
            f"{ring['mnist, Dirichlet 0.3']:.0f} % of the pot under the median, on digits {ring['digits, IID']:.0f} / "
            f"{ring['digits, Dirichlet 0.3']:.0f} %; {n['seeds']} seeds")  # fmt: skip
    expected = "`every`: plain riders at most 5, AUC 0.95; `first`: at most 2, Spearman 0.8, rings 2 %"
    return (
        expected,
        ours,
        "plain riders yes; missed: imitated work, rings but on MNIST IID, Spearman on digits under Dirichlet",
    )


def ranking():
    rows = results("ranking")["rows"]
    real = [(row["set"].split(" (")[0], row["score"]) for row in rows[:4]]
    made = [row["score"] for row in rows if "classes, " in row["set"]]
    near = sum(max(row.values()) - row["consensus"] <= 0.02 for row in made)
    told = [f"{name} {row['skilled']:.3f} / {row['consensus']:.3f}" for name, row in real]
    ours = (f"Spearman with the truth-scored order, `--over skilled` / `--against consensus`: {'; '.join(told)}; the consensus "
            f"within 0.02 of the best way in {near} of {len(made)} families; advice right in {sum(row['right'] for row in rows)} "
            f"of {sum(row['worlds'] for row in rows)} worlds")  # fmt: skip
    expected = "dog 0.885, product 0.80, 30 models 0.974, 24 networks 0.93; worlds within 0.02 of the best way"
    return expected, ours, "`skilled` on the four; worlds but where a herd meets a poor majority"


def intervals():
    rows = results("intervals")["rows"]
    held = {way: [row[way] for row in rows] for way in ("skilled", "consensus")}
    told = [f"`{way}` {sum(0.92 <= x <= 0.97 for x in xs)} of {len(xs)} cases, {min(xs):.3f} to {max(xs):.3f}"
            for way, xs in held.items()]  # fmt: skip
    return "0.92 to 0.97", "; ".join(told), "but for the consensus of five agents with ten classes and 200 tasks"


def of_worst(cell, form=".0f"):
    return f"{cell['mean']:{form}} [{cell['max']:.0f}]"


def exam():
    n = results("exam")
    pay, few, liars = n["pay"], n["signed"]["50"], n["liars"]
    groups, of = pay["exam, most 2"]["groups"], pay["exam, most 2"]["members"]
    rho = of["rank agreement with adds, everybody"]
    kept = {over: " / ".join(f"{100 * liars[f'{k} renamed, {over}']['kept']['mean']:.0f}" for k in (2, 4))
            for over in ("median", "trusted")}  # fmt: skip
    assert rho < 0.85 and few["members below 0"] < 0.1
    ours = (f"{n['worlds']} worlds, % of mean honest pay, mean [worst]: {len(pay['exam, most 2']['riders'])} kinds of reply; no information "
            f"{of_worst(groups['no information'], '.1f')}, self-training {of_worst(groups['self-training'])}, a tenth or ten images "
            f"{of_worst(groups['a tenth, ten images'])}, a replay {of_worst(groups['replay'])}, with `own_past` "
            f"{of_worst(pay['fresh']['groups']['replay'])}; honest pay kept {100 * of['kept']:.0f} %, unpaid {100 * of['unpaid']:.0f} %; "
            f"Spearman with what a reply adds on labels apart {rho:.2f} (members alone {of['rank agreement with adds, members']:.2f}, signed pay "
            f"{pay['signed']['members']['rank agreement with adds, everybody']:.2f}); signed pay with 50 labels, no information: {few['no information']:+.1f} in the mean; 2 / 4 of 10 examiners rename labels: honest pay kept, median "
            f"{kept['median']} %, trusted {kept['trusted']} %")  # fmt: skip
    expected = (
        "no information at most 2 [40], self-training 10, kept 95 %, unpaid 10 %, Spearman 0.85, signed within 5 of 0"
    )
    return expected, ours, "yes; missed: Spearman of gated pay, by 0.01"


def sides():
    rings = results("sides")["rings"]

    def most(ring, where, rule="20 asked for", what="taken"):
        cells = [of[rule][what] for name, of in rings.items() if ring in name and name.split(",")[0] in where]
        ends = max(cells, key=lambda c: c["mean"]) if what == "taken" else min(cells, key=lambda c: c["mean"])
        return 100 * ends["mean"]

    small, renamed, three = ("mnist", "digits"), "all renamed", "three turned"
    taken, kept = most(renamed, small, "10 asked for"), most(renamed, small, "10 asked for", "kept")
    assert (
        taken <= 2
        and kept >= 95
        and most(three, ("mnist",)) <= 10 < most(three, ("digits",)) < most(three, ("cifar10",))
    )
    ours = (f"rings of 45 and 60 %, MNIST and digits, IID and Dirichlet 0.3, the ten labels that are asked for: renamed, "
            f"at most {taken:.1f} % in the mean, honest keep {kept:.0f} % at least; three turned, twenty labels: MNIST at "
            f"most {most(three, ('mnist',)):.1f}, digits {most(three, ('digits',)):.1f}, CIFAR-10 {most(three, ('cifar10',)):.0f} % "
            f"(renamed {most(renamed, ('cifar10',)):.1f}); the median {most(renamed, small, 'median'):.0f} %")  # fmt: skip
    expected = "renamed at most 2 % of the pot, honest keep 95 %; three turned at most 10 %"
    return expected, ours, "yes, but for three turned labels on skewed digits (by 0.6) and CIFAR-10"


def every():
    of = results("every")["worlds"]
    small, layer = every_group(("cnn", "groupnorm")), every_group(("mlp",))
    ranks = [of[f"{d}, {s}"]["taught"]["everybody"] for d in DATA for s in ("cnn", "groupnorm")]
    kept = min(of[f"{d}, {s}"]["taught"]["kept"] for d in DATA for s in ("mlp", "cnn", "groupnorm"))
    digits = of["digits, mlp"]["taught"]["groups"]["no information"]
    ours = (f"MNIST and CIFAR-10, ten worlds each: no information {min(small):.1f} to {max(small):.1f} % of honest pay on convolutional "
            f"networks, {layer[0]:.1f} and {layer[1]:.1f} on one hidden layer; rank agreement {min(ranks):.2f} to {max(ranks):.2f}, honest kept "
            f"{100 * kept:.0f} % at least; digits, one hidden layer: {of_worst(digits, '.0f')} %")  # fmt: skip
    return (
        "no information 7 %, rank .76, honest kept 1.00",
        ours,
        "on convolutional networks; missed on one hidden layer and on digits",
    )


def contribution():
    of = {d: results("contribution")[d]["compared"] for d in ("mnist", "digits")}

    def pair(way, what, form=".2f"):
        return " / ".join(f"{of[d][way][what]['mean']:{form}}" for d in of)

    ours = (f"MNIST / digits, Spearman with right labels held: exact Shapley {pair('exact', 'with worth')}, GTG {pair('GTG-Shapley', 'with worth')}, "
            f"`exam` {pair('exam', 'with worth')}, `every` {pair('every', 'with worth')}, `first` {pair('first', 'with worth')}; CPU seconds "
            f"{pair('exact', 'seconds', '.0f')}, {pair('GTG-Shapley', 'seconds', '.1f')}, {pair('exam', 'seconds', '.1f')}, {pair('every', 'seconds', '.1f')}, "
            f"{pair('first', 'seconds', '.3f')}; three best over three worst, `first` {pair('first', 'best over worst three', '.1f')}, "
            f"`exam` {pair('exam', 'best over worst three', '.1f')}, Shapley {pair('exact', 'best over worst three', '.1f')}")  # fmt: skip
    return (
        "ranks as Shapley's, at a fraction of the cost",
        ours,
        "`exam` yes; `first` and `every` rank less well than GTG-Shapley",
    )


def study_row(name):
    expected, ours, agrees = globals()[name]()
    claim, more = CLAIMS[name]
    command = f"`python paper/{name}.py{more}` ({SECONDS[name]} s)"
    return f"| {claim} | {command} | {expected} | {ours} | {agrees} |"


def training():
    return json.loads((RECORDED / "training.json").read_text())


def agent_rows():
    rows = []
    for kind, (name, printed) in AGENTS.items():
        ours = [100 * a["accuracy"] for run in training().values() for a in run["agents"]
                if f"{a['recipe']['data']}-{a['recipe']['network']}" == kind]  # fmt: skip
        gap = sum(ours) / len(ours) - printed
        agrees = "yes" if abs(gap) < 1 else f"{gap:+.1f} points"
        rows.append(f"| {name} | {printed} | {' / '.join(f'{x:.2f}' for x in ours)} | {agrees} |")
    return rows


def accuracies(variant, network):
    """Accuracy in % by seed, as recorded or of a variant; None where the run diverged."""
    if variant == "recorded":
        runs = [a for run in training().values() for a in run["agents"] if a["recipe"]["data"] == "cifar10"]
    else:
        runs = [run for run in results("published")["runs"] if run["variant"] == variant]
    return {run["recipe"]["seed"]: None if "diverged_in_epoch" in run else 100 * run["accuracy"]
            for run in runs if run["recipe"]["network"] == network}  # fmt: skip


def variant_rows():
    names = {"recorded": "as the appendix says (recorded)", "rebuilt": "`rebuilt`", "frozen": "`frozen`",
             "published": "`published`"}  # fmt: skip
    rows = []
    for variant, name in names.items():
        cells = []
        for network in ("resnet34", "cnn13"):
            found = accuracies(variant, network)
            told = [
                "-" if seed not in found else "diverged" if found[seed] is None else f"{found[seed]:.2f}"
                for seed in accuracies("recorded", network)
            ]
            cells.append(" / ".join(told) if found else "-")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    printed = [AGENTS[f"cifar10-{network}"][1] for network in ("resnet34", "cnn13")]
    return [*rows, f"| the paper's figure | {printed[0]} | {printed[1]} |"]


def closed(variant):
    """How many points nearer the paper's figure each ResNet34 is that did not diverge, of how many it was away."""
    ours, printed = accuracies("recorded", "resnet34"), AGENTS["cifar10-resnet34"][1]
    told = [f"{ours[seed] - found:.1f} of {ours[seed] - printed:.1f} points (seed {seed})"
            for seed, found in accuracies(variant, "resnet34").items() if found is not None]  # fmt: skip
    return " and ".join(told)


def shown():
    """What the variants show, in words that the numbers bear out."""
    ours, printed = accuracies("recorded", "resnet34"), AGENTS["cifar10-resnet34"][1]
    frozen, rebuilt = accuracies("frozen", "resnet34"), accuracies("rebuilt", "resnet34")
    lost = {seed for v in ("frozen", "published") for seed, x in accuracies(v, "resnet34").items() if x is None}
    strong, says = accuracies("published", "cnn13"), AGENTS["cifar10-cnn13"][1]
    below = [f"{says - x:.1f} (seed {seed})" for seed, x in strong.items() if x is not None]
    stopped = [run["diverged_in_epoch"] for run in results("published")["runs"] if "diverged_in_epoch" in run]
    assert all(ours[s] - x > (ours[s] - printed) / 2 for s, x in frozen.items() if x is not None)
    assert all(abs(ours[s] - x) < 1 for s, x in rebuilt.items())
    assert all(x is None or x < says - 1 for x in strong.values()) and set(stopped) == {2}
    survived = sum(x is not None for x in frozen.values())
    words = (
        f"Frozen statistics alone take away most of the difference in the {survived} of {len(frozen)} runs that survive them: "
        f"{closed('frozen')}. A new optimiser every epoch takes away next to nothing: {closed('rebuilt')}. All together, "
        f"`published`: {closed('published')}. The shorter schedule was not run alone. In {len(stopped)} of the "
        f"{len(results('published')['runs'])} runs the loss is not a number in epoch 2, the first with frozen statistics: "
        f"ResNet34 with seed {', '.join(map(str, sorted(lost)))}, `frozen` and `published`, and CNN13 with seed "
        f"{', '.join(str(seed) for seed, x in strong.items() if x is None)}. And `published` does not give the paper's pair: it leaves CNN13 "
        f"{' and '.join(below)} points below the paper's figure, which the appendix's training meets."
    )
    return textwrap.fill(words, 118, break_on_hyphens=False)


def figure_rows():
    rows = []
    says = {
        "1": "MNIST: scores fall",
        "2": "CIFAR-10: scores fall",
        "3": "under attack: fall on MNIST, fluctuate on CIFAR-10",
    }
    for number, n in results("figures").items():
        from_to = "; ".join(
            f"{DATA[data]}: {a:.2f} to {b:.2f} at 0, {c:.2f} to {d:.2f} at 0.5"
            for data, (a, b, c, d) in n["0-1"].items()
        )
        agrees = "yes" if n["falling"] == n["curves"] else "mostly"
        if number == "3" and agrees == "yes":
            agrees = "yes; in expectation nothing fluctuates"
        rows.append(f"| {number} | {says[number]} | {from_to} | {n['falling']} of {n['curves']} | {agrees} |")
    return rows


def text():
    runs = training()
    made = json.loads((HERE / "recorded" / "training.json").read_text())["population"]["agents"]
    small = [a["recipe"]["seed"] for a in made]
    resnet = [a["seconds"] for run in runs.values() for a in run["agents"] if a["recipe"]["network"] == "resnet34"]
    return TEXT.format(
        figures="\n".join(figure_rows()),
        agents="\n".join(agent_rows()),
        variants="\n".join(variant_rows()),
        variants_device=results("published")["device"],
        weak_seeds=" / ".join(map(str, accuracies("recorded", "resnet34"))),
        strong_seeds=" / ".join(map(str, accuracies("recorded", "cnn13"))),
        shown=shown(),
        studies="\n".join(map(study_row, STUDIES)),
        pictures="\n\n".join(f"![{CLAIMS[name][0]}](results/{name}.png)" for name in STUDIES),
        population=len(small),
        first=min(small),
        last=max(small),
        seeds=", ".join(run.removeprefix("seed-") for run in runs),
        device=next(iter(runs.values()))["device"],
        resnet_seconds=" / ".join(f"{s:.0f}" for s in resnet),
    )


# docs/federation.md.

WORKED = ("honest, two labels only", "honest", "30% misreported", "names of labels permuted")
IMITATING = ("last change, a factor a unit", "last change, units mixed", "random pixels, random labels",
             "random pixels, own answers", "real images, random labels", "real images, own answers",
             "a tenth of its data, noise 30%", "a tenth of its data", "its last update again")  # fmt: skip
PROTOCOLS = {"plain": "plain", "features": "features", "every": "every", "every, imitating": "+ imitations"}
WORLDS = {"mnist, IID": "MNIST, IID", "mnist, Dirichlet 0.3": "MNIST, Dirichlet 0.3",
          "digits, IID": "digits, IID", "digits, Dirichlet 0.3": "digits, Dirichlet 0.3"}  # fmt: skip


def both(pay, name, protocol):
    return " / ".join(f"{100 * skew[name][protocol]['mean']:.0f}" for skew in pay.values())


def pair(of, protocol, what, form=".2f", times=1):
    return " / ".join(format(times * skew[protocol][what], form) for skew in of.values())


def span(first, what):
    means = [of[what]["mean"] for of in first.values()]
    return f"{min(means):.2f} to {max(means):.2f}"


def table(header, rows):
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *rows])


def worst(cell):
    """Mean in %, and the highest in brackets where it is another number."""
    mean, most = f"{100 * cell['mean']:.0f}", f"{100 * cell['max']:.0f}"
    return mean if most == mean else f"{mean} ({most})"


def attacks_table():
    pay = results("federation")["every"]["pay"]
    rows = []
    for name in pay["IID"]:
        cells = [worst(of[name][protocol]) for of in pay.values() for protocol in PROTOCOLS]
        rows.append([f"*{name}*" if name in WORKED else name, *cells])
    header = [f"{skew}: {told}" if told == "plain" else told for skew in pay for told in PROTOCOLS.values()]
    return table(["rider (in italics: a client that worked)", *header], rows)


def separation_table():
    of = results("federation")["every"]["honest"]
    named = {
        "plain": "plain",
        "features": "features",
        "every, kinship 6": "every",
        "every, imitating, kinship 6": "+ imitations",
    }
    rows = [["plain riders", *(pair(of, p, "AUC") for p in named)],
            ["those that imitate work too", *(pair(of, p, "AUC, knowing riders too") for p in named)]]  # fmt: skip
    return table(
        ["how often an honest client's total pay is above a rider's (AUC), IID / Dirichlet", *named.values()], rows
    )


def first_table():
    rows = []
    for world, told in WORLDS.items():
        of = results("federation")["first"][world]
        plain = [name for name in of["riders"] if name not in IMITATING and name not in WORKED]
        most = [f"{100 * max(of[asked][name]['max'] for name in plain):.0f}" for asked in ("riders", "z alone")]
        some = [worst(of["riders"][name]) for name in ("a tenth of its data", *WORKED)]
        rank = f"{of['spearman']['mean']:.2f} ({of['spearman']['min']:.2f})"
        rows.append([told, *most, *some, rank])
    header = [
        "",
        "plain riders, at most",
        "the same without the echo test",
        "a tenth of its data",
        *(f"*{name}*" for name in WORKED),
    ]
    return table([*header, "Spearman of pay with accuracy (least)"], rows)


def report_table():
    found = results("federation")["report"]
    told = {"plain": "plain", "features": "features", "every": "features and echo test"}
    student = "student of the broadcast"
    plain = [name for name in found["IID"] if name != student]
    most = [" / ".join(f"{100 * max(of[name][p]['max'] for name in plain):.0f}" for of in found.values()) for p in told]
    rows = [["plain riders, at most", *most], [student, *(both(found, student, p) for p in told)]]
    return table(["% of mean honest pay, IID / Dirichlet", *told.values()], rows)


def weights_table():
    found = results("federation")["weighted"]
    rules = {"equal": "equal", "mean score": '`weights="score"`', "median score": "median score"}
    rows = [[case, *(" / ".join(f"{of[f'{case}, {rule}']['mean']:.3f}" for of in found.values()) for rule in rules)]
            for case in ("all honest", "a third flips labels")]  # fmt: skip
    return table(["IID / Dirichlet", *rules.values()], rows)


def rings_table():
    rows = []
    for world, told in WORLDS.items():
        rings = results("federation")["first"][world]["rings"]
        for kind in ("made up", "permuted"):
            cells = [("mean", 30), ("median", 30), ("median", 40), ("median", 45)]
            rows.append(
                [told, kind, *(f"{100 * rings[f'{kind} {share}%'][over]['max']:.1f} %" for over, share in cells)]
            )
    return table(["", "labelling", "mean, ring of 30 %", "median, 30 %", "median, 40 %", "median, 45 %"], rows)


def honest_table():
    of = results("federation")["every"]["honest"]
    rows = [[told, *(pair(of, f"{p}, kinship 6", what, ".1f", 100) for p in ("every", "every, imitating"))]
            for what, told in (("honest replies that fail", "replies that fail the echo test, %"), ("honest pay lost", "pay lost to it, %"),
                               ("with z", "pay lost to it and to z > 3, %"), ("honest clients paid nothing", "clients paid nothing at all, %"),
                               ("lowest honest pay", "the least that one was paid, % of the mean"))]  # fmt: skip
    rows.append(
        [
            "mean score a round",
            *(pair(of, f"{p}, kinship 6", "mean honest score", ".4f") for p in ("every", "every, imitating")),
        ]
    )
    return table(["honest clients, IID / Dirichlet", "every", "+ imitations"], rows)


def private_table():
    found = results("federation")["private"]
    told = {"fail, round 1": "fail the echo test, round 1", "fail, rounds 2 to 4": "fail it, rounds 2 to 4",
            "significant, round 1": "plain score above 3 errors, round 1"}  # fmt: skip
    rows = [[noise.removeprefix("noise "), *(pair(found, noise, what, ".0%") for what in told), pair(found, noise, "accuracy after round 4", ".3f")]
            for noise in found["IID"]]  # fmt: skip
    return table(["noise multiplier", *told.values(), "accuracy after round 4"], rows)


def round_table():
    n = json.loads(ROUND.read_text())
    yardstick, rows = n["times"][0]["seconds"], []
    for each in n["times"]:
        about = "~" if each["scaled"] else ""
        stored = f"; {each['bytes'] / 1e6:.1f} MB on disk" if "bytes" in each else ""
        room = (
            f"; {each['grown']:.2f} GB beside the models' own, {each['whole']:.2f} GB in all" if "grown" in each else ""
        )
        rows.append(
            [each["what"], f"{about}{seconds(each['seconds'])} s{stored}{room}", f"{each['seconds'] / yardstick:.1%}"]
        )
    said = (
        f"{n['machine']['cpu']}, seconds of one core (CPU time), medians of three where they take less than a minute."
    )
    return table(["20 clients, 10,000 inputs, 10 classes", "CPU", "of the first row"], rows) + "\n\n" + said


def overhead_table():
    n = json.loads(OVERHEAD.read_text())
    yardstick = next(each["median"] for each in n["times"] if each["part"] == "inference")
    rows = []
    for each in n["times"]:
        about = "~" if each["scaled"] else ""
        spread = f" ({seconds(each['least'])} to {seconds(each['most'])})" if each["runs"] > 1 else ""
        stored = f"; {each['bytes'] / 1e6:.0f} MB on disk" if "bytes" in each else ""
        rows.append(
            [each["what"], f"{about}{seconds(each['median'])} s{spread}{stored}", seconds(each["median"] / yardstick)]
        )
    loads = [each["load"] for each in n["times"]]
    machine = n["machine"]
    said = (f"{machine['cpu']}, one thread, NumPy {machine['numpy']}; medians with the least and the most; `~`: timed on a part and scaled up. "
            f"Load when a figure began {min(loads):.1f} to {max(loads):.1f}"
            f"{'' if n['quiet'] else ': others were using the machine, so the ratios say more than the seconds'}.")  # fmt: skip
    return table(["", "time", "of the first row"], rows) + "\n\n" + textwrap.fill(said, 118, break_on_hyphens=False)


def seconds(s):
    return f"{s:.0f}" if s >= 10 else f"{s:.1f}" if s >= 1 else f"{s:.2g}"


WAYS = ("majority", "plain", "Dawid-Skene", "one-coin", "MACE", "GLAD", "mean", "skilled", "consensus")


def orders_table():
    rows = [[row["set"], *(f"{row['score'][w]:.3f} ({row['accuracy'][w]:.2f})" if w in row["score"] else "-" for w in WAYS),
             advice_of(row)] for row in results("ranking")["rows"] if "classes, " not in row["set"]]  # fmt: skip
    return table(["Spearman with the truth-scored order (with accuracy)", *WAYS, "advised, right"], rows)


def worlds_table():
    rows = [[row["set"], *(f"{row['score'][w]:.3f}" for w in WAYS), advice_of(row)]
            for row in results("ranking")["rows"] if "classes, " in row["set"]]  # fmt: skip
    return table(["Spearman with the truth-scored order", *WAYS, "advised, right"], rows)


def top_table():
    rows = [[row["set"], *(f"{row['top'][w]:.2f}" if w in row["top"] else "-" for w in WAYS)]
            for row in results("ranking")["rows"] if row["top"] and "classes, " not in row["set"]]  # fmt: skip
    return table(["Kendall's tau inside the true best 20", *WAYS], rows)


def advice_of(row):
    counts = {name: row["advised"].count(name) for name in ("consensus", "skilled", "mean")}
    told = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    return f"{told}; {row['right']} of {row['worlds']}"


def intervals_table():
    rows = [[f"{row['tasks']:,}", row["classes"], row["agents"], "half" if row["left_out"] else "none",
             *(f"{row[w]:.3f}" for w in ("skilled", "skilled, mean score", "consensus", "consensus, mean score"))]
            for row in results("intervals")["rows"]]  # fmt: skip
    header = ["tasks", "classes", "agents", "left out", "skilled: these references", "mean of many worlds",
              "consensus: these references", "mean of many worlds"]  # fmt: skip
    return table(header, [[str(cell) for cell in row] for row in rows])


def said_right():
    rows = results("ranking")["rows"]
    return f"{sum(row['right'] for row in rows)} of {sum(row['worlds'] for row in rows)}"


def said_small():
    found = results("federation")["small network"]
    return (
        " / ".join(f"{100 * of['honest replies that fail alone']:.0f} %" for of in found.values())
        + " (IID / Dirichlet)"
    )


def said_standing():
    found = results("federation")["small network"].values()
    return f"{min(of['honest']['min'] for of in found):.1f} at least and noise {max(of['riders']['max'] for of in found):.1f} at most"


def said_noise():
    of = [skew["every, kinship 6"] for skew in results("federation")["every"]["honest"].values()]
    total, passed = (sum(each[what] for each in of) for what in ("noised replies", "noised replies that pass"))
    return f"{passed or 'none'} of {total} noised models, the highest {max(each['highest kinship of noise'] for each in of):.1f}"


def said_gold():
    pay = results("federation")["every"]["pay"].values()
    most = max(abs(of[name]["plain + 100 gold"]["mean"] - of[name]["plain"]["mean"]) for of in pay for name in of)
    return f"{100 * most:.1f} points"


def said_copies():
    found = [of["copies"]["mean, not audited"]["mean"] for of in results("federation")["first"].values()]
    assert all(
        of["copies"]["mean, audited"]["min"] == of["copies"]["mean, audited"]["max"] == 1
        for of in results("federation")["first"].values()
    )
    return f"{min(found):.1f} to {max(found):.1f} times"


def said_minority():
    pay = results("federation")["every"]["pay"]
    assert all(of[WORKED[0]]["every"]["min"] > 0 for of in pay.values())
    return f"{both(pay, WORKED[0], 'every')} % of the others' mean under `every` and {both(pay, WORKED[0], 'plain')} % under plain scores"


def said_score():
    return pair(results("federation")["every"]["honest"], "every, kinship 6", "mean honest score", ".4f")


def took(what):
    return next(each["median"] for each in json.loads(OVERHEAD.read_text())["times"] if what in each["what"])


def said_plain():
    found = [took(what) / took("784-64-10 (NumPy)") for what in ("mean over peers", "median over peers")]
    assert max(found) < 1
    return f"{100 * found[0]:.0f} % (mean) or {100 * found[1]:.0f} % (median)"


def said_features():
    found, yardstick = took("mean, public features"), took("784-64-10 (NumPy)")
    assert found < yardstick
    return (
        f"{100 * found / yardstick:.0f} %, and {100 * found / took('small CNN'):.1f} % of the convolutional network's"
    )


RULES = {"plain": "plain", "every": "`every`", "peers": "peers' innovations", "exam, most 2": "**exam**", "trusted": "trusted examiners",
         "median": "median of examiners", "fresh": '`own_past="public"`', "signed": "exam, signed", "gold 500": "500 gold labels",
         "gold 2000": "2,000 gold", "adds": "the labels apart themselves, gated"}  # fmt: skip


def exam_rules_table():
    rows = []
    for rule, name in RULES.items():
        of = results("exam")["pay"][rule]
        groups = [of_worst(cell, ".1f" if cell["mean"] < 10 else ".0f") for cell in of["groups"].values()]
        who = of["members"]
        ranks = [f"{who[f'rank agreement with {what}, members']:.2f}" for what in ("adds", "accuracy")]
        rows.append(
            [name, *groups, f"{100 * who['unpaid']:.0f} %", f"{who['rank agreement with adds, everybody']:.2f}", *ranks]
        )
    header = [
        "rule",
        *results("exam")["pay"]["every"]["groups"],
        "honest unpaid",
        "rank, all replies",
        "members",
        "members, with accuracy",
    ]
    return table(header, rows)


def exam_riders_table():
    pay = results("exam")["pay"]
    rules = ("plain", "every", "peers", "exam, most 2", "fresh", "adds")
    rows = [[name, *(of_worst(pay[rule]["riders"][name]) for rule in rules)] for name in pay["every"]["riders"]]
    return table(["reply", *(RULES[rule] for rule in rules[:-1]), "what it adds"], rows)


def said_ranked():
    """What no rule that is paid for what replies add can exceed, and what is reached."""
    pay = results("exam")["pay"]
    gate, signed, most = (
        pay[r]["members"]["rank agreement with adds, everybody"] for r in ("exam, most 2", "signed", "adds")
    )
    true = pay["adds"]["members"]["rank agreement with accuracy, members"]
    assert (
        gate < 0.85 < signed and most < 0.86 and true < pay["every"]["members"]["rank agreement with accuracy, members"]
    )
    return (
        f"Signed pay ranks all replies at {signed:.2f}, the gate at {gate:.2f}: who has nothing then has one pay, 0, "
        f"and even a gate on the labels apart themselves ranks at {most:.2f} by what those labels say. With the accuracy of "
        f"members' replies those labels themselves rank at {true:.2f}, so that "
        f"{pay['every']['members']['rank agreement with accuracy, members']:.2f}, which `every` has, is not to be had by "
        "paying for what a reply adds"
    )


def exam_members_table():
    found, rows = results("exam_members")["liars"], []
    overs = [*dict.fromkeys(key.split(", ")[1] for key in found)]
    for lie in dict.fromkeys(key.split(",")[0] for key in found):
        cells = [found[f"{lie}, {over}"] for over in overs]
        kept = [f"{c['kept']['mean']:.0f} % [{c['kept']['min']:.0f}]" for c in cells]
        rows.append(
            [lie, *kept, *(of_worst(c["liars"]) for c in cells[1:]), of_worst(cells[-1]["no information"], ".1f")]
        )
    liars = [f"liars' own, {over}" for over in overs[1:]]
    return table(["liars of 10", *overs, *liars, f"no information, {overs[-1]}"], rows)


def exam_few_table():
    rows = [[k, f"{c['no information']:+.1f} (sd {c['spread']:.0f})", f"{100 * c['members below 0']:.0f} %",
             f"{c['deposit in mean pay']['mean']:.1f} ({c['deposit in mean pay']['min']:.1f} to {c['deposit in mean pay']['max']:.1f})",
             f"{100 * c['deposit was short']:.2f} %"] for k, c in results("exam")["signed"].items()]  # fmt: skip
    return table(["labels", "no information", "honest members below 0", "deposit, in mean pay", "it was short"], rows)


def exam_liars_table():
    found, rows = results("exam")["liars"], []
    for lie in dict.fromkeys(key.split(",")[0] for key in found):
        cells = [found[f"{lie}, {over}"] for over in ("mean", "median", "trusted")]
        kept = [f"{100 * c['kept']['mean']:.0f} % [{100 * c['kept']['min']:.0f}]" for c in cells]
        rows.append(
            [
                lie,
                *kept,
                of_worst(cells[2]["no information"], ".1f"),
                of_worst(cells[1]["liars"]),
                of_worst(cells[2]["liars"]),
            ]
        )
    return table(
        [
            "liars of 10",
            "mean",
            "median",
            "trusted",
            "no information, trusted",
            "liars' own, median",
            "liars' own, trusted",
        ],
        rows,
    )


def sides_table():
    rows = []
    for where, of in results("sides")["rings"].items():
        name, skew, ring = where.split(", ")
        cells = [
            of[rule] for rule in ("median", "10 at random", "10 asked for", "20 asked for", "whose lie shows left out")
        ]
        found = [f"{share_of_pot(c)}{held_note(c)}" for c in cells]
        shows, kept = (share_of_pot(cells[3], what) for what in ("by whose lie shows", "kept"))
        if ring == "nobody lies":
            found, shows = ["-"] * 5, "-"
        rows.append([f"{DATA.get(name, name)}, {skew}, {ring}", *found[:4], shows, kept.split(" [")[0] + " %", found[4],
                     f"{100 * of['held without gold']:.0f} %"])  # fmt: skip
    header = ["ring", "median", "10 gold labels at random", "the 10 asked for", "and 10 more", "of it, whose lie shows",
              "honest keep", "if it were known whose lie shows", "held without gold"]  # fmt: skip
    return table(header, rows)


def share_of_pot(cell, what="taken"):
    return "-" if what not in cell else f"{100 * cell[what]['mean']:.0f} [{100 * cell[what]['max']:.0f}]"


def held_note(cell):
    return f" (held {100 * cell['held']:.0f} %)" if cell["held"] else ""


def said_turned_digits():
    return turned("digits")


def said_turned_cifar():
    return turned("cifar10")


def turned(data):
    return f"{100 * results('sides')['rings'][f'{data}, Dirichlet 0.3, 60% three turned']['20 asked for']['taken']['mean']:.0f} %"


def every_table():
    from_study = {"before": "labels, features, echo test (the older way)", "bare": "innovations, no imitations", "drifts": "and *drifts*",
                  "taught": "**innovations, imitations**", "taught, echo test": "and the echo test"}  # fmt: skip
    shapes = {"mlp": "one hidden layer", "cnn": "small CNN", "groupnorm": "GroupNorm CNN"}
    rows = []
    for where, of in results("every")["worlds"].items():
        data, shape = where.split(", ")
        for rule, name in from_study.items():
            c = of[rule]
            rows.append([f"{DATA.get(data, data)}, {shapes[shape]}", name, *(of_worst(g, ".1f") for g in c["groups"].values()),
                         f"{100 * c['kept']:.0f} %", f"{100 * c['unpaid']:.0f} %", f"{c['everybody']:.2f} / {c['members']:.2f}"])  # fmt: skip
    groups = ["no information", "self-training", "a tenth", "replay"]
    return table(["network", "scored by", *groups, "honest kept", "unpaid", "rank, all / members"], rows)


def every_group(shapes):
    of = results("every")["worlds"]
    return [of[f"{data}, {shape}"]["taught"]["groups"]["no information"]["mean"] for data in DATA for shape in shapes]


def said_every_cnn():
    found = every_group(("cnn", "groupnorm"))
    return f"{min(found):.1f} to {max(found):.1f}"


def said_every_mlp():
    return " / ".join(f"{x:.1f}" for x in every_group(("mlp",)))


def said_every_worst():
    riders = results("every")["worlds"]["cifar10, mlp"]["taught"]["riders"]
    names = ("another data set", "random pixels, random labels", "random labels", "noise 100%", "entropy")
    return "CIFAR-10, " + ", ".join(f"{name} {riders[name]['mean']:.0f}" for name in names)


def said_every_cost():
    spent = results("every")["seconds a round"]
    return f"{spent['bare']:.1f}, with imitations {spent['taught']:.1f}, the older way {spent['before']:.1f}"


VALUED = {"exact": "exact Shapley", "sampled": "sampled, 20 orders cut short", "leave-one-out": "leave-one-out",
        "GTG-Shapley": "GTG-Shapley", "first": "`first`", "every": "`every`", "exam": "`exam`", "split": "*divided*"}  # fmt: skip


def contribution_table():
    rows = []
    for data, name in (("mnist", "MNIST"), ("digits", "digits")):
        for way, said in VALUED.items():
            c = results("contribution")[data]["compared"][way]
            steep = c["best over worst three"]["mean"]
            rows.append([name, said, *(f"{c[k]['mean']:.2f}" for k in ("with worth", "with exact Shapley", "another seed", "by sizes", "median")),
                         f"{steep:.1f}" if steep < 1000 else "worst have 0", f"{c['seconds']['mean']:.2g}"])  # fmt: skip
    return table(["data", "way", "rank with right labels held", "with exact Shapley", "another seed", "averaged by sizes",
                  "by median", "best three over worst", "CPU seconds"], rows)  # fmt: skip


def incentives_table():
    rows = []
    for data, name in (("mnist", "MNIST"), ("digits", "digits")):
        for what, c in results("contribution")[data]["incentives"].items():
            ways = ("first", "every", "exam", "split", "fall of the average's loss")
            rows.append([name, what, *(f"{c[w]['mean']:.2f}" for w in ways)])
    return table(["data", "it sends", "`first`", "`every`", "`exam`", "*divided*", "fall of the average's loss"], rows)


def contribution_riders_table():
    found, rows = {d: results("contribution")[d]["riders"] for d in ("mnist", "digits")}, []
    for name in found["mnist"]:
        cells = [found["mnist"][name].get(way) for way in ("exact", "GTG-Shapley", "first", "every", "exam")]
        cells += [found["digits"][name].get(way) for way in ("GTG-Shapley", "every", "exam")]
        rows.append([name, *("-" if c is None else of_worst(c) for c in cells)])
    ways = ["exact Shapley (two worlds)", "GTG-Shapley", "`first`", "`every`", "`exam`"]
    return table(
        ["rider", *(f"MNIST: {w}" for w in ways), *(f"digits: {w}" for w in ("GTG-Shapley", "`every`", "`exam`"))], rows
    )


def private_pay_table():
    rows = []
    for data, name in (("mnist", "MNIST"), ("digits", "digits")):
        for noise, c in results("contribution")[data]["private"].items():
            rows.append(
                [
                    name,
                    noise,
                    *(f"{c[k]:.2f}" for k in ("first", "accuracy above chance", "exam", "exam, not gated", "adds")),
                ]
            )
    return table(["data", "noise multiplier", "`first` pays", "accuracy above chance", "`exam` pays", "without its gate",
                  "adds about labels apart"], rows)  # fmt: skip


def said_fresh():
    kept = results("exam")["pay"]["fresh"]["members"]["of the exam's pay"]
    return f"{100 * kept:.0f} %"


def said_labels():
    return both(results("federation")["every"]["pay"], "real images, random labels", "every") + " %"


def filled(page):
    """The page with its tables and numbers as the results have them; a comment that begins a line would end a paragraph."""
    assert not re.search(r"^\s*<!-- said", page, flags=re.M)
    page = re.sub(
        r"<!-- table: (\w+) -->.*?<!-- end -->",
        lambda m: f"<!-- table: {m[1]} -->\n{globals()[m[1] + '_table']()}\n<!-- end -->",
        page,
        flags=re.S,
    )
    return re.sub(
        r"<!-- said: (\w+) -->.*?<!-- end -->",
        lambda m: f"<!-- said: {m[1]} -->{globals()['said_' + m[1]]()}<!-- end -->",
        page,
        flags=re.S,
    )


def curves(data, seed, out):
    """The exact curves of `verax reproduce` as rows."""
    verax = Path(sys.executable).with_name("verax")
    subprocess.run(
        [verax, "reproduce", "--data-dir", data, "--seed", str(seed), "--out", out],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with open(Path(out) / "curves.csv", newline="") as file:
        return list(csv.DictReader(file))


def summarised(rows):
    """For each figure: the range of 0-1 scores at the first and the last rate, and how many curves fall."""
    names = ("seed", "panel", "data", "agent", "score", "misreport", "reference")
    found = {}
    for figure in ("1", "2", "3"):
        mine = [row for row in rows if row["figure"] == figure]
        lines = [
            [*map(float, (row["exact"] for row in line))] for _, line in groupby(mine, lambda r: [r[n] for n in names])
        ]
        heads = [next(line) for _, line in groupby(mine, lambda r: [r[n] for n in names])]
        ends = {}
        for data in sorted({row["data"] for row in mine}):
            of = [
                line for line, head in zip(lines, heads, strict=True) if head["data"] == data and head["score"] == "0-1"
            ]
            first, last = [line[0] for line in of], [line[-1] for line in of]
            ends[data] = [round(x, 6) for x in (min(first), max(first), min(last), max(last))]
        falling = sum(all(a > b for a, b in pairwise(line)) for line in lines)
        found[figure] = {"curves": len(lines), "falling": falling, "0-1": ends}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page would change")
    parser.add_argument("--figures", metavar="DATA", help="run `verax reproduce` on the data in this folder first")
    args = parser.parse_args()
    if args.figures:
        with tempfile.TemporaryDirectory() as out:
            rows = [row | {"seed": seed} for seed in range(3) for row in curves(args.figures, seed, out)]
        (HERE / "results" / "figures.json").write_text(json.dumps(summarised(rows), indent=1) + "\n")
    wanted = {
        HERE / "README.md": text(),
        FEDERATION: filled(FEDERATION.read_text()),
        EXAM: filled(EXAM.read_text()),
        RANKING: filled(RANKING.read_text()),
    }
    for page, told in wanted.items():
        if not args.check:
            page.write_text(told)
        elif not page.exists() or page.read_text() != told:
            sys.exit(f"{page.parent.name}/{page.name} is not what the results say; run: python paper/build_readme.py")


if __name__ == "__main__":
    main()
