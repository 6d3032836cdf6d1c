"""The model and the data: one matrix and one bias on scikit-learn's digits, split among the clients."""

import numpy as np
from sklearn.datasets import load_digits

CLASSES = tuple(map(str, range(10)))


def digits():
    """Inputs in 0..1 and labels, in a fixed random order; the last 500 are nobody's: the pool and the test."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return (x[order] / 16).astype(np.float32), y[order]


def partition(number, of):
    """One client's share of the rest."""
    x, y = digits()
    return x[:-500][number::of], y[:-500][number::of]


def initial():
    """A model that knows nothing."""
    return {"matrix": np.zeros((64, 10), np.float32), "bias": np.zeros(10, np.float32)}


def probabilities(model, x):
    """What a model says of every input."""
    logits = x @ model["matrix"] + model["bias"]
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def trained(model, x, y, steps=200, rate=0.5):
    """The model after some steps down the slope of the cross-entropy."""
    matrix, bias = model["matrix"].copy(), model["bias"].copy()
    for _ in range(steps):
        slope = probabilities({"matrix": matrix, "bias": bias}, x)
        slope[np.arange(len(y)), y] -= 1
        matrix -= rate * x.T @ slope / len(y)
        bias -= rate * slope.mean(0)
    return {"matrix": matrix, "bias": bias}
