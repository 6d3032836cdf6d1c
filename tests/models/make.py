"""How the models beside this file were made: `python make.py FOLDER`, with skl2onnx, torch and onnxscript."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

NAMES = np.array(["cat", "dog", "eel"])


def forest(x, y):
    from skl2onnx import to_onnx
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(5, max_depth=4, random_state=0).fit(x[:200], NAMES[y[:200]])
    return to_onnx(model, x[:1]).SerializeToString(), model.predict(x[400:])


def logistic(x, y):
    from onnx import TensorProto, helper, numpy_helper
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=500).fit(x[:300], y[:300])
    shapes = ("x", ["n", 8]), ("probabilities", ["n", 3])
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes)
    weights = {"w": model.coef_.T, "b": model.intercept_}
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["l"]), helper.make_node("Softmax", ["l"], ["probabilities"])]
    arrays = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "by hand", [given], [made], arrays)
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return found.SerializeToString(), NAMES[model.predict(x[400:])]


def net(x, y, folder):
    """By both of torch's exporters; the newer one needs onnxscript."""
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3)
    model = torch.nn.Sequential(*layers)
    steps = torch.optim.Adam(model.parameters(), 1e-2)
    mine, right = torch.tensor(x[200:400]), torch.tensor(y[200:400])
    for _ in range(200):
        steps.zero_grad()
        torch.nn.functional.cross_entropy(model(mine), right).backward()
        steps.step()
    model.eval()
    old = {"dynamo": False, "input_names": ["pixels"], "output_names": ["logits"], "dynamic_axes": {"pixels": {0: "n"}}}
    new = {"dynamo": True, "external_data": False, "dynamic_shapes": ({0: torch.export.Dim("n")},)}
    for name, how in (("net-torch", old), ("net-torch-dynamo", new)):
        torch.onnx.export(model, (mine[:2],), path := str(folder / f"{name}.onnx"), **how)
        without_places(path)
    with torch.no_grad():
        return NAMES[model(torch.tensor(x[400:])).argmax(1).numpy()]


def without_places(path):
    """Leave out where on somebody's machine each node was made, which the exporter writes down."""
    import onnx

    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(model, path)


def make(folder):
    """Write everything; what each model says to the tools that made it."""
    from sklearn.datasets import make_classification

    x, y = make_classification(600, 8, n_informative=6, n_classes=3, random_state=0)
    x = x.astype(np.float32)
    said = {}
    for name, how in (("forest-skl2onnx", forest), ("logistic-by-hand", logistic)):
        content, said[name] = how(x, y)
        (folder / f"{name}.onnx").write_bytes(content)
    said["net-torch"] = said["net-torch-dynamo"] = net(x, y, folder)
    np.savez(folder / "inputs.npz", x=x[400:])
    lines = [f"t{n},{NAMES[label]}" for n, label in enumerate(y[400:])]
    (folder / "truth.csv").write_text("\n".join(["task,label", *lines]) + "\n")
    return said


if __name__ == "__main__":
    make(Path(sys.argv[1]))
