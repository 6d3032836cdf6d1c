"""Make the reports that `verax demo` scores: real classifiers on scikit-learn's digits, and four that cheat.

    python examples/digits/make_reports.py [FOLDER]      default: src/verax/data

Ten honest agents train different kinds of model on different numbers of images, each drawn by its
own seed; none sees the 897 images of the tasks. Four more do no honest work. FOLDER gets
digits.csv (task, one column an agent) and digits-truth.csv (task, label).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import verax
from verax import misreport

HONEST = {
    "svm-800": SVC(gamma=0.001),
    "mlp-600": MLPClassifier(hidden_layer_sizes=(64,), max_iter=800, random_state=0),
    "forest-500": RandomForestClassifier(random_state=0),
    "knn-400": KNeighborsClassifier(3),
    "logistic-400": LogisticRegression(max_iter=5000),
    "svm-150": SVC(gamma=0.001),
    "bayes-700": GaussianNB(var_smoothing=1e-2),
    "logistic-60": LogisticRegression(max_iter=5000),
    "tree-800": DecisionTreeClassifier(random_state=0),
    "tree-80": DecisionTreeClassifier(random_state=0),
}


def main(folder: Path) -> None:
    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(digits))
    pool, tasks = order[:900], order[900:]
    labels = {}
    for seed, (name, model) in enumerate(HONEST.items()):
        own = np.random.default_rng(seed).choice(pool, int(name.split("-")[1]), replace=False)
        labels[name] = model.fit(images[own], digits[own]).predict(images[tasks])
    rng = np.random.default_rng(99)
    labels["liar-30%"] = misreport.apply(misreport.uniform(10, 0.3), labels["knn-400"], rng=rng)
    labels["copycat"] = labels["tree-80"]
    labels["random"] = rng.integers(0, 10, len(tasks))
    labels["always-7"] = np.full(len(tasks), 7)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"digit-{i:04d}" for i in tasks]
    reports = verax.Reports.of(np.stack(list(labels.values())), agents=list(labels), tasks=names)
    verax.write(reports, folder / "digits.csv", wide=True)
    rows = "".join(f"{name},{digit}\n" for name, digit in zip(names, digits[tasks], strict=True))
    (folder / "digits-truth.csv").write_text("task,label\n" + rows)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "src/verax/data"))
