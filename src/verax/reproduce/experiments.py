"""The paper's figures as numbers: what an agent that misreports scores. Networks speak elsewhere; here they are rows.

Two agents, W (weak) and S (strong), report on the test images of MNIST and CIFAR-10. Each misreports at
11 rates, uniformly or inside five pairs of classes, and is scored against the truth, against the other agent,
or against the other agent under attack (section 5, appendix B). Every point has its exact mean and draw error
beside what the paper shows: the centre of a few drawn runs and their largest deviation.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import cached_property
from importlib.resources import files as resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from verax import misreport, rules, wire
from verax.errors import ExtraMissing, InputError, OptionError
from verax.joint import Joint
from verax.kernels import Floats, Ints

if TYPE_CHECKING:
    from verax.reproduce.agents import Recipe
    from verax.reproduce.datasets import Dataset

CLASSES = 10
RATES = tuple(step / 20 for step in range(11))
FIGURES = (1, 2, 3)
CLASS_NAMES = {
    "mnist": tuple("0123456789"),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}
# CIFAR-10's are those of the matrix in appendix B; the paper does not name MNIST's, so digits of like shape
PAIRS = {
    "mnist": ((4, 9), (3, 5), (1, 7), (2, 8), (0, 6)),
    "cifar10": ((0, 2), (1, 9), (3, 5), (4, 7), (6, 8)),
}
NETWORKS = {
    "mnist": {"W": "lenet", "S": "cnn13"},
    "cifar10": {"W": "resnet34", "S": "cnn13"},
}
MISREPORTS: dict[str, Callable[[str, float], Floats]] = {
    "uniform": lambda _, rate: misreport.uniform(CLASSES, rate),
    "sparse": lambda data, rate: misreport.sparse(CLASSES, PAIRS[data], rate),
}
ATTACKED = 0.3
MIXTURES = ("probabilities", "logits")
CENTRES: dict[str, Callable[[Floats], float]] = {
    "mean": lambda runs: float(runs.mean()),
    "median": lambda runs: float(np.median(runs)),
}
_SMALLEST = 2.0**-24  # of the positive numbers that float16 can record

Labels = Mapping[str, Ints]


@dataclass(frozen=True, eq=False)
class Predictions:
    """One agent's probabilities of the test images: of the images as they are, and under attack."""

    clean: Floats
    attacked: Floats

    @cached_property
    def labels(self) -> Ints:
        """What the agent takes each image for."""
        return np.asarray(self.clean.argmax(1))

    def mixed(self, mixture: str = "probabilities") -> Ints:
        """The labels of 0.7 f(x) + 0.3 f(x_attack), mixed before the most likely label is taken. (section 5.2)

        >>> told = Predictions(np.array([[0.9, 0.1], [0.6, 0.4]]), np.array([[0.0, 1.0], [0.0, 1.0]]))
        >>> told.mixed().tolist(), told.mixed("logits").tolist()
        ([0, 1], [1, 1])
        """
        parts = [self.clean, self.attacked]
        if mixture == "logits":
            parts = [np.log(np.maximum(part, _SMALLEST)) for part in parts]
        return np.asarray(((1 - ATTACKED) * parts[0] + ATTACKED * parts[1]).argmax(1))


Recorded = Mapping[tuple[str, str], Predictions]


@dataclass(frozen=True)
class Options:
    """What the paper leaves open, or its authors' code does otherwise; the defaults are the paper's text.

    >>> Options(centre="mode")
    Traceback (most recent call last):
    verax.errors.OptionError: centre is 'mode'; choose one of mean, median
    """

    seed: int = 0
    runs: int = 5
    reference_misreports: bool = False
    mixture: str = "probabilities"
    centre: str = "mean"

    def __post_init__(self) -> None:
        for name, known in (("mixture", MIXTURES), ("centre", tuple(CENTRES))):
            if getattr(self, name) not in known:
                raise OptionError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(known)}")
        if self.runs < 1 or self.seed < 0:
            raise OptionError(f"runs is {self.runs} and seed {self.seed}; give at least one run and a seed from 0 up")


@dataclass(frozen=True)
class _Setting:
    """Which curve it is, before it has numbers."""

    figure: int
    panel: str
    data: str
    agent: str
    score: str
    misreport: str
    reference: str


@dataclass(frozen=True)
class Curve(_Setting):
    """A score at every misreport rate: exactly, with the error of one draw, and as drawn runs showed it.

    >>> falling = Curve(1, "a", "mnist", "W", "0-1", "uniform", "truth", (0.0, 0.5), (0.9, 0.4), (0.0, 0.01), (), ())
    >>> falling.decreasing, falling.name
    (True, 'mnist W, 0-1, uniform, against truth')
    """

    rates: tuple[float, ...]
    exact: tuple[float, ...]
    draw_error: tuple[float, ...]
    centre: tuple[float, ...]
    deviation: tuple[float, ...]

    @property
    def name(self) -> str:
        """What is drawn, in words."""
        return f"{self.data} {self.agent}, {self.score}, {self.misreport}, against {self.reference}"

    @property
    def decreasing(self) -> bool:
        """Whether every higher rate scores less, exactly."""
        return all(later < earlier for earlier, later in zip(self.exact, self.exact[1:], strict=False))


def load(source: str | Path | int = 0) -> dict[tuple[str, str], Predictions]:
    """The predictions of both agents on both data sets, by (data, agent): a file's, or those recorded of a seed.

    >>> sorted(load(0))
    [('cifar10', 'S'), ('cifar10', 'W'), ('mnist', 'S'), ('mnist', 'W')]
    """
    path = _recorded_path(source) if isinstance(source, int) else Path(source)
    with np.load(path) as stored:
        agents = {name.rpartition("-")[0]: name for name in {key.partition("/")[0] for key in stored.files}}
        return {
            (data, agent): Predictions(*(_rows_of(stored[f"{agents[f'{data}-{network}']}/{part}"]) for part in _PARTS))
            for data, networks in NETWORKS.items()
            for agent, network in networks.items()
            if f"{data}-{network}" in agents
        }


_PARTS = ("clean", "attacked")


def _recorded_path(seed: int) -> Path:
    folder = Path(str(resources("verax.reproduce") / "recorded"))
    if not (folder / f"seed-{seed}.npz").exists():
        known = sorted(path.stem[5:] for path in folder.glob("seed-*.npz"))
        raise OptionError(f"no predictions are recorded for seed {seed}; choose one of {', '.join(known)}, or train=")
    return folder / f"seed-{seed}.npz"


def _rows_of(stored: npt.NDArray[np.float16]) -> Floats:
    rows = stored.astype(np.float64)
    return np.asarray(rows / rows.sum(1, keepdims=True))


def curves(
    figure: int, recorded: Recorded, labels: Labels | None = None, options: Options | None = None
) -> list[Curve]:
    """Every curve of a figure, in its panels' order; those against truth only where `labels` has the data set.

    1: MNIST, 2: CIFAR-10, each agent against truth and peer. 3: both, against the attacked peer.
    """
    check([figure])
    known = labels or {}
    wanted = [s for s in _settings_of(figure) if s.reference != "truth" or s.data in known]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # curves share nothing, and arrays this long leave the lock
        return list(pool.map(lambda setting: _curve_of(setting, recorded, known, options or Options()), wanted))


def _settings_of(figure: int) -> Iterator[_Setting]:
    """The paper's panels: figures 1 and 2 have one for each score and agent, figure 3 for each data set and score."""
    panels: list[tuple[str, str, str, tuple[str, ...]]]
    if figure == 3:
        panels = [(data, score, "WS", ("attacked peer",)) for data in NETWORKS for score in ("0-1", "CE")]
    else:
        data = "mnist" if figure == 1 else "cifar10"
        panels = [(data, score, agent, ("truth", "peer")) for score in ("0-1", "CE") for agent in "WS"]
    for panel, (data, score, agents, references) in zip("abcd", panels, strict=True):
        for agent in agents:
            for reference in references:
                for kind in MISREPORTS:
                    yield _Setting(figure, panel, data, agent, score, kind, reference)


def _curve_of(setting: _Setting, recorded: Recorded, labels: Labels, options: Options) -> Curve:
    report = recorded[setting.data, setting.agent]
    reference = _reference_of(setting, recorded, labels, options.mixture)
    if len(report.clean) != len(reference):
        raise InputError(
            f"{setting.data} has {len(reference)} labels for {len(report.clean)} predictions; "
            "give the folder of the whole test set"
        )
    world = _World(report, reference, setting.score, options.reference_misreports and setting.reference != "truth")
    matrices = [MISREPORTS[setting.misreport](setting.data, rate) for rate in RATES]
    exact = [world.expected(matrix) for matrix in matrices]
    # each curve draws from its own stream, so that it is the same whichever other curves are asked for
    rng = np.random.default_rng([options.seed, *"".join(map(str, astuple(setting))).encode()])
    runs = [np.array([world.drawn(matrix, rng) for _ in range(options.runs)]) for matrix in matrices]
    centre = tuple(CENTRES[options.centre](run) for run in runs)
    return Curve(
        **asdict(setting),
        rates=RATES,
        exact=tuple(e.score for e in exact),
        draw_error=tuple(e.draw_error for e in exact),
        centre=centre,
        deviation=tuple(float(np.abs(run - c).max()) for run, c in zip(runs, centre, strict=True)),
    )


def _reference_of(setting: _Setting, recorded: Recorded, labels: Labels, mixture: str) -> Ints:
    if setting.reference == "truth":
        return labels[setting.data]
    peer = recorded[setting.data, "S" if setting.agent == "W" else "W"]
    return peer.labels if setting.reference == "peer" else peer.mixed(mixture)


@dataclass(frozen=True, eq=False)
class _World:
    """One agent, one reference and one score: what misreporting by a matrix gives, exactly or in one draw."""

    report: Predictions
    reference: Ints
    score: str
    reference_misreports: bool

    @cached_property
    def rows(self) -> Floats:
        """What the score is linear in: log p, or one-hot labels."""
        if self.score == "CE":
            return np.log(np.maximum(self.report.clean, rules.FLOOR))
        return np.asarray(np.eye(CLASSES)[self.report.labels])

    @cached_property
    def joint(self) -> Joint:
        """The truthful report beside its reference."""
        return Joint.of(self.rows if self.score == "CE" else self.report.labels, self.reference, CLASSES)

    def expected(self, matrix: Floats) -> misreport.Expectation:
        if self.reference_misreports:
            return _expected_of_both(self.rows, self.reference, matrix)
        return misreport.expected(self.joint, matrix)

    def drawn(self, matrix: Floats, rng: np.random.Generator) -> float:
        reference = self.reference
        if self.reference_misreports:
            reference = misreport.apply(matrix, reference, rng=rng).astype(np.int64)
        if self.score == "CE":
            return _ce_of_logs(misreport.apply(matrix, self.rows, rng=rng).astype(np.float64), reference)
        return rules.zero_one(Joint.of(misreport.apply(matrix, self.report.labels, rng=rng), reference, CLASSES)).value


def _ce_of_logs(logs: Floats, reference: Ints) -> float:
    """`rules.ce` by sums alone, five times as fast: own/N - (h.b - own)/(N (N-1)), h the sum of the rows of log p."""
    size = len(logs)
    own = float(logs[np.arange(size), reference].sum())
    crossed = float(logs.sum(0) @ np.bincount(reference, minlength=logs.shape[1]))
    return own / size - (crossed - own) / (size * (size - 1))


def _expected_of_both(rows: Floats, reference: Ints, matrix: Floats) -> misreport.Expectation:
    """The mean and the draw error when the reference misreports too, independently and by the same matrix.

    The score is linear in the drawn rows and in the drawn labels: its mean takes the mean of both. Its variance
    is that of the labels' draw, rows at their mean, plus the mean over that draw of the rows' own; how far the
    drawn labels' shares stray from their mean is left out, one part in N.
    """
    every, held = np.arange(len(rows)), rows.argmax(1)
    chance, told = matrix[held], matrix[reference]
    gap = rows[every, held][:, None] - rows  # reporting r adds this to entry r and takes it from the held one
    mean_rows = rows + chance * gap
    mean_rows[every, held] -= (chance * gap).sum(1)
    shares = told.mean(0)
    residual = mean_rows - mean_rows.mean(0)
    variance = float((told * residual**2).sum() - ((told * residual).sum(1) ** 2).sum())
    for label in range(matrix.shape[1]):
        worth = np.eye(matrix.shape[1])[label] - shares
        change = gap * (worth - worth[held][:, None])
        spread = (chance * change**2).sum(1) - (chance * change).sum(1) ** 2
        variance += float(told[:, label] @ spread)
    mean = float((mean_rows * (told - shares)).sum())
    return misreport.Expectation(mean / (len(rows) - 1), math.sqrt(max(variance, 0.0)) / (len(rows) - 1))


def data_of(figures: Sequence[int]) -> list[str]:
    """The data sets that these figures show.

    >>> data_of([1]), data_of([3, 1])
    (['mnist'], ['mnist', 'cifar10'])
    """
    return [name for name, own in (("mnist", 1), ("cifar10", 2)) if {own, 3} & set(figures)]


def check(figures: Sequence[int], train: bool = False, tiny: bool = False) -> None:
    """Refuse figures that the paper has not, and a tiny training that is none.

    >>> check([4])
    Traceback (most recent call last):
    verax.errors.OptionError: there is no figure 4; choose 1, 2 or 3
    """
    for figure in figures:
        if figure not in FIGURES:
            raise OptionError(f"there is no figure {figure}; choose 1, 2 or 3")
    if tiny and not train:
        raise OptionError("tiny= says how to train; give train= too, or leave it out")


def left_out(figures: Sequence[int], labels: Labels) -> list[str]:
    """One sentence about the curves that the missing labels keep out, if any.

    >>> left_out([1, 3], {"mnist": np.zeros(2, np.int64)})
    []
    >>> print(*left_out([1, 3], {}))
    the curves against ground truth are left out for mnist, for its labels are not there; give data_dir= the folder
    that holds mnist and cifar-10-batches-bin
    """
    missing = [name for name in data_of([n for n in figures if n != 3]) if name not in labels]
    if not missing:
        return []
    whose = "its labels are" if len(missing) == 1 else "their labels are"
    return [
        f"the curves against ground truth are left out for {' and '.join(missing)}, for {whose} not there; "
        "give data_dir= the folder that holds mnist and cifar-10-batches-bin"
    ]


def read_labels(data: Sequence[str], folder: Path | None) -> dict[str, Ints]:
    """The true labels of those data sets whose files are in the folder."""
    from verax.reproduce.datasets import label_file, test_labels

    return {n: test_labels(n, folder) for n in data if folder is not None and label_file(n, folder).exists()}


def to_json(found: Sequence[Curve], options: Options) -> dict[str, Any]:
    """Every number of every curve, with what they were made from."""
    pairs = {data: [[CLASS_NAMES[data][k] for k in pair] for pair in pairs] for data, pairs in PAIRS.items()}
    document = {"options": options, "floor": rules.FLOOR, "sparse_pairs": pairs, "curves": found}
    return {"format": wire.CURVES, **wire.plain(document)}


def to_csv(found: Sequence[Curve]) -> str:
    """The same numbers as a table, one line for each rate of each curve."""
    names = [field.name for field in fields(Curve)]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["rate" if name == "rates" else name for name in names])
    for curve in found:
        setting, numbers = astuple(curve)[:7], astuple(curve)[7:]
        table.writerows([*setting, *point] for point in zip(*numbers, strict=True))
    return text.getvalue()


def trained(
    data: Sequence[str],
    folder: Path,
    out: Path,
    *,
    seed: int = 0,
    tiny: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[dict[tuple[str, str], Predictions], dict[str, Ints]]:
    """Train the agents of these data sets from scratch, attack them, and return what they and the truth say.

    Resumed from `out`/checkpoints if an earlier run stopped. `tiny` is a smoke test: narrow networks, 2 epochs
    on 500 images, 200 test images.
    """
    if find_spec("torch") is None:
        raise ExtraMissing("Training agents", "lab")
    from verax.reproduce import agents, datasets

    found, labels = {}, {}
    for recipe in agents.paper_recipes(seed):
        if (name := recipe.data) not in data:
            continue
        if name not in labels:
            dataset = datasets.load(name, folder, progress=_tell_tenths(name, progress))
            few = slice(200 if tiny else None)
            dataset = replace(dataset, test_images=dataset.test_images[few], test_labels=dataset.test_labels[few])
            labels[name] = dataset.test_labels
        if tiny:
            recipe = replace(recipe, images=500, epochs=2, every=2, rate=0.05, batch=32, width=8)
        agent = next(agent for agent, network in NETWORKS[name].items() if network == recipe.network)
        found[name, agent] = _trained_predictions(recipe, dataset, out, progress)
    return found, labels


def _tell_tenths(name: str, progress: Callable[[str], None]) -> Callable[[int, int], None]:
    told: set[tuple[int, int]] = set()

    def fetched(done: int, size: int) -> None:
        tenth = (size, 10 * done // max(size, done))
        if tenth not in told:
            told.add(tenth)
            progress(f"{name}: fetched {done / 1e6:.1f} of {max(size, done) / 1e6:.1f} MB")

    return fetched


def _trained_predictions(recipe: Recipe, dataset: Dataset, out: Path, progress: Callable[[str], None]) -> Predictions:
    from verax.reproduce import agents

    def told(epoch: int, epochs: int, loss: float) -> None:
        if epoch % 10 == 0 or epoch == epochs:
            progress(f"{recipe.name}: epoch {epoch}/{epochs}, loss {loss:.4f}")

    folder = out / "checkpoints" / ("paper" if recipe.width == 1 else "tiny")
    net, images = agents.train(recipe, dataset, folder=folder, progress=told), dataset.test_images
    clean = agents.predict(net, images)
    attacked = agents.predict(net, images, attacked=dataset.test_labels, seed=recipe.seed)
    return Predictions(*(_rows_of(rows.astype(np.float16)) for rows in (clean, attacked)))
