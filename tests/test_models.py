"""Models in a jail: what they say is what they would say anywhere, and what strangers put into them stays inside."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import verax
from verax.errors import ExtraMissing, InputError, ModelError, OptionError, VeraxError
from verax.models import EXAMPLE, Limits, jail, predict, walls
from verax.models import prediction as predicting
from verax.models.jail import confined
from verax.models.onnxfile import check_model

pytest.importorskip("onnxruntime", reason="models need an extra: pip install 'verax[models]'")
onnx = pytest.importorskip("onnx", reason="models are made for the tests with onnx")
pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="a strong jail is Linux's")

SHORT = Limits(seconds=1, clock=20)
INPUTS = np.random.default_rng(5).normal(size=(6, 2)).astype(np.float32)
CLASSES = ["cat", "dog"]


def nothing():
    return io.BytesIO()


def asked(text, folder):
    """A request that a jail's work reads."""
    path = folder / "request"
    path.write_bytes(text.encode())
    return path.open("rb")


def a_model(nodes, *, constants=(), output=("y", onnx.TensorProto.FLOAT, ["n", 2]), inputs=(("x", ["n", 2]),), **more):
    make, number = onnx.helper, onnx.TensorProto.FLOAT
    graph = make.make_graph(
        nodes, "g", [make.make_tensor_value_info(name, number, shape) for name, shape in inputs],
        [make.make_tensor_value_info(*output)], [*constants],
    )  # fmt: skip
    return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8, **more)


def node(kind, given, made, **how):
    return onnx.helper.make_node(kind, given, made, **how)


def constant(name, value, kind=np.int64):
    return onnx.numpy_helper.from_array(np.array(value, dtype=kind), name)


def said_by(model, inputs=INPUTS, classes=CLASSES, limits=SHORT):
    return predict(model.SerializeToString(), inputs, classes, limits=limits)


# walls


def test_every_way_out_is_shut(tmp_path):
    assert walls().strong and not walls().doors
    victim = tmp_path / "outside"
    victim.write_text("mine")
    for work in ("everything", "without_namespaces"):
        with asked(str(victim), tmp_path) as request:
            found = json.loads(confined(f"jail_payloads:{work}", request, 2**16))
        assert found.pop("the answer") is True
        assert found.pop("more memory than allowed") == "MemoryError"
        assert {*found.values()} <= {"PermissionError", "OSError", 1}, found
        assert victim.read_text() == "mine"


def test_a_process_that_is_not_shut_in_is_not_given_a_model(tmp_path):
    mark = tmp_path / "mark"
    with asked(str(mark), tmp_path) as request:
        with pytest.raises(VeraxError, match=r"walls: none; open in spite of them: files"):
            confined("jail_payloads:without_walls", request, 100)
        assert not mark.exists()
        assert confined("jail_payloads:without_walls", request, 100, jail="weak") == b"reached"
    assert mark.read_text() == "reached"


def nothing_file():
    return open(os.devnull, "rb")


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ("flooding", "more than 1,000 bytes"),
        ("sleeping", "more than 2 seconds$"),
        ("lingering", "says that it has ended and goes on"),
        ("spinning", "1 seconds of processor time"),
        ("crashing", "crashes .SIGSEGV"),
        ("old_calls", "crashes .SIGSYS"),
        ("failing", r"status 1: .{1,310}$"),
    ],
)
def test_whoever_misbehaves_is_ended_and_the_reason_said(work, reason, monkeypatch):
    monkeypatch.setattr(jail, "_TO_END", 0.2)
    started = time.monotonic()
    with nothing_file() as request, pytest.raises(ModelError, match=reason) as refused:
        confined(f"jail_payloads:{work}", request, 1000, Limits(seconds=1, clock=2 if work == "sleeping" else 60))
    assert str(refused.value).isprintable()
    assert time.monotonic() - started < 60


def test_a_fork_bomb_has_no_children_and_noise_is_no_answer(tmp_path):
    with nothing_file() as request:
        assert json.loads(confined("jail_payloads:forking", request, 1000)) == ["PermissionError"]
        assert confined("jail_payloads:printing", request, 1000) == b"done"


def test_what_cannot_be_started_is_this_machines_fault_not_a_models():
    with nothing_file() as request, pytest.raises(VeraxError, match="no jail can be made") as refused:
        confined("no_such_module:work", request, 100)
    assert not isinstance(refused.value, InputError)


def test_without_a_strong_jail_models_are_refused_unless_a_weak_one_is_asked_for(monkeypatch):
    monkeypatch.setattr(jail, "walls", lambda: jail.Walls((), ("files",), False))
    with pytest.raises(VeraxError, match=r"cannot be run safely here .walls: none; open .* files.*weak"):
        predict(EXAMPLE, INPUTS, CLASSES)
    assert predict(EXAMPLE, INPUTS, CLASSES, jail="weak").labels.shape == (1, 6)
    with pytest.raises(OptionError, match="choose strong, or weak"):
        predict(EXAMPLE, INPUTS, CLASSES, jail="none")


def test_without_the_extra_one_sentence_says_so(monkeypatch):
    monkeypatch.setattr(predicting.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExtraMissing, match=r"Models need an extra: pip install 'verax\[models\]'"):
        predict(EXAMPLE, INPUTS, CLASSES)


RARE = ["deep", "list", "no labels", "some", "silent", "nothing", "letters"]
LIES = ["no json", "long", "no class", "nan", *(pytest.param(lie, marks=pytest.mark.slow) for lie in RARE)]


@pytest.mark.parametrize("lie", LIES)
def test_whatever_comes_out_of_a_jail_is_a_strangers_word(lie, monkeypatch):
    monkeypatch.setattr(predicting, "WORK", "jail_payloads:lying")
    if lie == "nan":  # numbers that are no probabilities: the labels stand
        found = predict(b"LIE:nan", INPUTS[:3], CLASSES)
        assert found.probabilities is None and found.labels.tolist() == [[0, 0, 0]]
        return
    with pytest.raises(ModelError) as refused:
        predict(f"LIE:{lie}".encode(), INPUTS[:3], CLASSES)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 400


# hostile models


def endless_loop(**how):
    make, number = onnx.helper, onnx.TensorProto
    body = make.make_graph(
        [node("Identity", ["go"], ["go2"]), node("Identity", ["v"], ["v2"])], "body",
        [make.make_tensor_value_info("i", number.INT64, []), make.make_tensor_value_info("go", number.BOOL, []),
         make.make_tensor_value_info("v", number.FLOAT, None)],
        [make.make_tensor_value_info("go2", number.BOOL, []), make.make_tensor_value_info("v2", number.FLOAT, None)],
    )  # fmt: skip
    constants = constant("trips", 2**62), constant("yes", True, np.bool_)
    return a_model([node("Loop", ["trips", "yes", "x"], ["y"], body=body)], constants=constants, **how)


def filled(size, then, **how):
    return a_model([node("ConstantOfShape", ["size"], ["big"]), *then], constants=[constant("size", size)], **how)


HOSTILE = {
    "endless loop": (endless_loop, "1 seconds of processor time"),
    "50 GB": (
        lambda: filled([125 * 10**8], [node("ReduceSum", ["big"], ["s"], keepdims=0), node("Add", ["x", "s"], ["y"])]),
        "bad_alloc|allocate",
    ),
    "repeated without end": (
        lambda: a_model([node("Expand", ["x", "size"], ["y"])], constants=[constant("size", [2**33, 1, 1])]),
        "bad_alloc|allocate|shape",
    ),
    "huge output": (lambda: filled([10**7], [node("Identity", ["big"], ["y"])]), r"shape \[10000000\], not \[6, 2\]"),
    "not a number": (lambda: a_model([node("Sqrt", ["x"], ["y"])]), "'y' has numbers that are not finite"),
    "another shape": (lambda: a_model([node("Transpose", ["x"], ["y"])]), r"shape \[2, 6\]"),
    "more inputs": (
        lambda: a_model([node("Add", ["x", "z"], ["y"])], inputs=[("x", ["n", 2]), ("z", ["n", 2])]),
        "asks for the input 'z'",
    ),
    "wrong inside": (
        lambda: a_model([node("Gather", ["x", "there"], ["y"])], constants=[constant("there", [2**40])]),
        "out of|indices",
    ),
}  # fmt: skip


SELDOM = ("another shape", "more inputs", "wrong inside", "repeated without end")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SELDOM)) for n in HOSTILE])
def test_a_hostile_model_says_nothing_and_the_reason_is_known(name):
    make, reason = HOSTILE[name]
    with pytest.raises(ModelError, match=reason) as refused:
        said_by(make())
    assert str(refused.value).isprintable() and len(str(refused.value)) < 400


def elsewhere(path):
    model = a_model([node("Add", ["x", "w"], ["y"])], constants=[constant("w", [1.0, 2.0], np.float32)])
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", path
    return model


def in_a_branch(model):
    """The same as a branch inside a branch, where a look at the top does not see it."""
    inner = onnx.helper.make_graph(model.graph.node, "inner", [], model.graph.output, model.graph.initializer)
    for _ in range(2):
        choose = node("If", ["yes"], ["y"], then_branch=inner, else_branch=inner)
        inner = onnx.helper.make_graph([choose], "outer", [], model.graph.output)
    return a_model([choose], constants=[constant("yes", True, np.bool_)])


@pytest.mark.parametrize("path", ["../../../../etc/passwd", "/etc/passwd", "weights.bin", "/proc/self/mem"])
@pytest.mark.parametrize("hidden", [False, True])
def test_weights_in_other_files_are_refused_unread(path, hidden):
    model = in_a_branch(elsewhere(path)) if hidden else elsewhere(path)
    with pytest.raises(ModelError, match="weights are in other files"):
        check_model(model.SerializeToString())
    model = elsewhere(path)
    model.graph.initializer[0].ClearField("data_location")
    with pytest.raises(ModelError, match="weights are in other files"):
        check_model(model.SerializeToString())


def test_weights_in_other_files_are_out_of_reach_even_if_nobody_looks(tmp_path, monkeypatch):
    """The walls hold without the check: what cannot be opened cannot be read."""
    monkeypatch.setattr(predicting, "WORK", "jail_payloads_unchecked:answering")
    (tmp_path / "jail_payloads_unchecked.py").write_text(
        "from verax.models import answering as a\na.check_model = lambda model: None\nanswering = a.answering\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "w").write_bytes(np.array([1, 2], dtype=np.float32).tobytes())
    with pytest.raises(ModelError):
        predict(elsewhere(str(tmp_path / "w")).SerializeToString(), INPUTS, CLASSES)


def test_operators_of_strangers_functions_and_draws_are_refused():
    strange = a_model([node("Identity", ["x"], ["y"], domain="com.microsoft")])
    drawn = a_model([node("RandomNormalLike", ["x"], ["y"])])
    body = onnx.helper.make_function("mine", "F", ["a"], ["b"], [node("Identity", ["a"], ["b"])], [])
    for model, reason in (
        (strange, "'Identity' of 'com.microsoft'"),
        (in_a_branch(drawn), "draws at random .RandomNormalLike"),
        (a_model([node("F", ["x"], ["y"])], functions=[body]), "functions of its own"),
    ):
        with pytest.raises(ModelError, match=reason):
            check_model(model.SerializeToString())


def test_whatever_bytes_come_they_are_refused_in_a_sentence():
    rng = np.random.default_rng(0)
    whole = endless_loop().SerializeToString()
    for _ in range(2000):
        cut = bytearray(whole[: rng.integers(1, len(whole))])
        for place in rng.integers(0, len(cut), 3):
            cut[place] = rng.integers(256)
        with suppress(ModelError):  # and nothing else
            check_model(bytes(cut))
    for bad in (
        b"",
        b"\x08",
        b"\x3a\x00"[:1],
        b"PK\x03\x04",
        b"\x0b\x0c",
        b"\x08" + b"\xff" * 20,
        b"\x00\x01",
        b"\0\0\0\0ORTM",
    ):
        with pytest.raises(ModelError, match="no ONNX model"):
            check_model(bad)


def test_nesting_without_end_is_refused_unloaded():
    inner = b""
    for _ in range(200):  # a graph (6) in an attribute (5) in a node (1)
        for field in (6, 5, 1):
            inner = bytes([field << 3 | 2]) + size_of(inner) + inner
    with pytest.raises(ModelError, match="nested more than 64 deep"):
        check_model(b"\x3a" + size_of(inner) + inner)


def size_of(content):
    n, found = len(content), b""
    while n > 127:
        found, n = found + bytes([n & 127 | 128]), n >> 7
    return found + bytes([n])


def test_a_file_that_is_too_large_is_refused_by_its_size(tmp_path):
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)  # no byte of it is on the disk
    started = time.monotonic()
    with pytest.raises(ModelError, match="2,147,483,648 bytes and the most that is taken is 33,554,432"):
        predict(path, INPUTS, CLASSES)
    assert time.monotonic() - started < 5


# honest models


def test_what_a_model_says_in_a_jail_is_what_it_says_outside():

    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(500, 8)).astype(np.float32)
    weights = [constant(n, rng.normal(size=s), np.float32) for n, s in (("a", (8, 16)), ("b", (16, 3)))]
    nodes = [node("MatMul", ["x", "a"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "b"], ["l"]),
             node("Softmax", ["l"], ["y"])]  # fmt: skip
    model = a_model(nodes, constants=weights, output=("y", onnx.TensorProto.FLOAT, ["n", 3]), inputs=[("x", ["n", 8])])
    hidden = inputs @ onnx.numpy_helper.to_array(weights[0])
    logits = np.maximum(hidden, 0) @ onnx.numpy_helper.to_array(weights[1])
    found = predict(model.SerializeToString(), inputs, ["a", "b", "c"])
    assert (found.labels[0] == logits.argmax(1)).mean() > 0.99
    assert found.probabilities[0] == pytest.approx(np.exp(logits) / np.exp(logits).sum(1, keepdims=True), abs=1e-5)


@pytest.mark.slow
def test_an_answer_does_not_depend_on_when_it_is_asked_for_or_how_many_at_a_time():
    inputs = np.random.default_rng(3).normal(size=(300, 2)).astype(np.float32)
    found = [predict(EXAMPLE, inputs, CLASSES, limits=Limits(batch=batch)).probabilities for batch in (300, 300, 7)]
    assert (found[0] == found[1]).all() and found[2] == pytest.approx(found[0], abs=1e-6)


def test_a_model_made_for_a_fixed_number_of_rows_gets_as_many():
    exported = a_model([node("Softmax", ["x"], ["y"])], inputs=[("x", [4, 2])], output=("y", 1, [4, 2]))
    assert (said_by(exported).probabilities == predict(EXAMPLE, INPUTS, CLASSES).probabilities).all()


def labelled(kind, *nodes, **more):
    return a_model([*nodes], output=("y", kind, None), **more)


@pytest.mark.slow
def test_labels_are_places_names_or_the_largest_of_a_row():
    largest = node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)
    places = INPUTS.argmax(1).tolist()
    number = onnx.TensorProto
    assert said_by(labelled(number.INT64, largest)).labels[0].tolist() == places
    assert said_by(a_model([node("Identity", ["x"], ["y"])])).labels[0].tolist() == places  # logits
    assert said_by(labelled(number.INT64, largest), classes=["1", "0"]).labels[0].tolist() == [1 - p for p in places]
    with pytest.raises(ModelError, match=r"'y' has '[01]', which is no class"):
        said_by(labelled(number.INT64, largest), classes=["7", "8"])
    named = onnx.helper.make_tensor("names", number.STRING, [2], [b"dog", b"cat"])
    spoken = node("ArgMax", ["x"], ["at"], axis=1, keepdims=0), node("Gather", ["names", "at"], ["y"])
    assert said_by(labelled(number.STRING, *spoken, constants=[named])).labels[0].tolist() == [1 - p for p in places]
    with pytest.raises(ModelError, match=r"'y' has '(dog|cat)', which is no class"):
        said_by(labelled(number.STRING, *spoken, constants=[named]), classes=["a", "b"])
    too_large = node("ArgMax", ["x"], ["z"], axis=1, keepdims=0), node("Add", ["z", "five"], ["y"])
    beyond = labelled(number.INT64, *too_large, constants=[constant("five", [5])])
    with pytest.raises(ModelError, match="numbers other than 0 to 1"):
        said_by(beyond)


def test_inputs_come_in_the_type_and_under_the_name_that_is_asked_for():
    whole = (INPUTS * 10).astype(np.uint8)
    assert (
        said_by(a_model([node("Identity", ["x"], ["y"])]), {"pixels": whole}).labels[0].tolist()
        == whole.argmax(1).tolist()
    )
    two = a_model([node("Sub", ["x", "z"], ["y"])], inputs=[("x", ["n", 2]), ("z", ["n", 2])])
    found = said_by(two, {"z": INPUTS, "x": 3 * INPUTS})
    assert found.labels[0].tolist() == INPUTS.argmax(1).tolist()
    with pytest.raises(ModelError, match=r"asks for tensor.float. as the input 'x'; that is <U1"):
        said_by(a_model([node("Identity", ["x"], ["y"])]), np.array([["a", "b"]]))
    for bad in ({"x": INPUTS, "z": INPUTS[:2]}, {"x": np.zeros(0)}, {"x": np.array([{}])}, {}):
        with pytest.raises(InputError, match=r"inputs? ") as refused:
            predict(EXAMPLE, bad, CLASSES)
        assert not isinstance(refused.value, ModelError)


def test_limits_are_numbers_that_can_be():
    for wrong in ({"memory": 0}, {"seconds": 1.5}, {"file": 2**40}, {"batch": -1}, {"clock": "x"}):
        with pytest.raises(OptionError, match="give a whole number from 1"):
            Limits(**wrong)


@pytest.mark.slow
def test_a_report_of_a_model_is_scored_like_any_other():
    reports = [predict(EXAMPLE, INPUTS * sign, CLASSES, agent=name) for name, sign in (("a", 1), ("b", 1), ("c", -1))]
    assert verax.score(verax.Reports.of([r.labels[0] for r in reports])).scores[2].score < 0


def test_the_page_prints_what_it_shows(capsys):
    page = (Path(__file__).parents[1] / "docs" / "models.md").read_text()
    [program], [shown] = (re.findall(rf"```{kind}\n(.*?)```", page, flags=re.S) for kind in ("python", "text"))
    exec(compile(program, "models.md", "exec"), {})
    assert capsys.readouterr().out == shown


def test_a_file_of_countless_parts_costs_nobody_anything():
    parts = b"\x3a\x00" * 10**6  # graphs of nothing
    started = time.monotonic()
    with pytest.raises(ModelError, match="more than 500,000 parts"):
        predict(parts, INPUTS, CLASSES, limits=Limits(seconds=30))
    assert time.monotonic() - started < 60


def test_an_inmate_does_not_outlive_who_waits_for_it(tmp_path):
    program = (
        "from verax.models import jail; f = open('/dev/null', 'rb')\n"
        "with jail._inmate('jail_payloads:sleeping', f, jail.Limits(), 'strong') as inmate:\n"
        "    print(inmate.process.pid, flush=True); input()"
    )
    path = os.pathsep.join([str(Path(verax.__file__).parents[1]), str(Path(__file__).parent)])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    parent = subprocess.Popen([sys.executable, "-c", program], env={"PYTHONPATH": path}, **pipes)
    assert parent.stdout is not None
    inmate = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    until = time.monotonic() + 10
    while is_alive(inmate) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(inmate)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
