"""Rounds that ask for models: paid as if the same answers had been handed in; nobody is harmed by another's model."""

from __future__ import annotations

import json
import platform
import re
import runpy
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import verax
from verax import answered
from verax.cli import app
from verax.errors import ConflictError, ExtraMissing, InputError, ModelError, VeraxError
from verax.keys import Key, unseal
from verax.ledger import Journal, Ledger
from verax.models import Limits, predict, prediction
from verax.models.asked import Asks
from verax.recorded import RecordedRound
from verax.rounds import Rounds, Spec, Submission, transcript_of
from verax.sealed import opened_record

pytest.importorskip("onnxruntime", reason="models need an extra: pip install 'verax[models]'")
pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="a strong jail is Linux's")

# models of other tools: sklearn by skl2onnx, torch by its two exporters, and one of onnx.helper's
HERE = Path(__file__).parent / "models"
FILES = ("forest-skl2onnx", "net-torch", "logistic-by-hand")
CLASSES = ("cat", "dog", "eel")
INPUTS = np.load(HERE / "inputs.npz")["x"]
TASKS = tuple(f"t{n}" for n in range(len(INPUTS)))
TRUTH = verax.read_truth(HERE / "truth.csv", verax.Reports.of([[0] * 200], tasks=TASKS, classes=CLASSES)).truth
SHORT = Limits(seconds=1, clock=30, file=2**20)
SPEC = Spec("r", TASKS, CLASSES, "100.00", asks=Asks.of(INPUTS, SHORT), scheme="proportional")


def model(name):
    return (HERE / f"{name}.onnx").read_bytes()


@pytest.fixture
def rounds():
    ledger = Ledger.open("sqlite://")
    yield Rounds(ledger)
    ledger.close()


KEPT = {}


@pytest.fixture
def kept_answers(monkeypatch):
    """What a model of these files says is asked of a jail once, for tests of what becomes of it."""

    def once(content, inputs, classes, **how):
        key = content, classes, how["limits"]
        if key not in KEPT:
            KEPT[key] = predict(content, inputs, classes, **how)
        return KEPT[key]

    monkeypatch.setattr(answered, "predict", once)


def sealed(rounds, spec, handed):
    rounds.open(spec)
    rounds.fund(spec.round)
    for agent, given in handed.items():
        rounds.submit(spec.round, agent, given)
    rounds.seal(spec.round)
    return rounds


@pytest.mark.parametrize("truth", [None, pytest.param(tuple(TRUTH.tolist()), marks=pytest.mark.slow)])
def test_models_are_paid_to_the_last_digit_what_their_answers_are_paid(rounds, truth):
    models = {name: model(name) for name in FILES}
    said = {name: replace(predict(m, INPUTS, CLASSES, tasks=TASKS), probabilities=None) for name, m in models.items()}
    spec = replace(SPEC, truth=truth)
    found = sealed(rounds, spec, models).settle("r", inputs=INPUTS)
    alike = sealed(rounds, replace(spec, round="q", asks=None), said).settle("q")
    assert found.scores == alike.scores and found.amounts == alike.amounts
    assert sum(found.amounts.values()) == 10000 and len({*found.amounts.values()}) == 3
    assert rounds.verify("r") == [] and rounds.settle("r") == found
    assert rounds.payment("r", "net-torch") == (found.amounts["net-torch"],) * 2


@pytest.mark.slow
def test_rules_that_need_probabilities_get_those_of_the_model_and_others_get_labels_only(rounds):
    models = {"a": model("logistic-by-hand"), "b": model("net-torch")}
    found = sealed(rounds, replace(SPEC, rule="brier", truth=tuple(TRUTH.tolist())), models).settle("r", inputs=INPUTS)
    assert found.amounts["a"] > 0 == found.amounts["b"]
    assert "'b' says nothing and is paid nothing: the rule brier needs probabilities" in found.notes[-1]
    rows = predict(models["a"], INPUTS, CLASSES, tasks=TASKS, agent="a")
    assert found.scores["a"].score == verax.score(rows, TRUTH, rule="brier", backend="numpy")["a"].score
    sealed(rounds, replace(SPEC, round="labels"), models).settle("labels", inputs=INPUTS)
    with rounds.ledger.reading() as journal:
        assert all({*s["content"]} == {"labels"} for s in journal.get("labels:answers").said["answers"])
        assert "probabilities" in journal.get("r:answers").said["answers"][0]["content"]


BAD = {
    "loops": "1 seconds of processor time",
    "nan": "not finite",
    "huge": "bad_alloc|allocate",
    "wide": r"shape \[200, 2\]",
}


def hostile(name):
    onnx = pytest.importorskip("onnx")
    import test_models as made

    number, node = onnx.TensorProto.FLOAT, made.node
    how = {"inputs": [("x", ["n", 8])], "output": ("y", number, None)}
    return {
        "loops": lambda: made.endless_loop(**how),
        "nan": lambda: made.a_model([node("Sqrt", ["x"], ["r"]), node("Gemm", ["r", "w"], ["y"])],
                                    constants=[made.constant("w", np.ones((8, 3)), np.float32)], **how),
        "huge": lambda: made.filled([125 * 10**8], [node("Identity", ["big"], ["y"])], **how),
        "wide": lambda: made.a_model([node("Gemm", ["x", "w"], ["y"])],
                                     constants=[made.constant("w", np.ones((8, 2)), np.float32)], **how),
    }[name]().SerializeToString()  # fmt: skip


def test_a_hostile_model_is_paid_nothing_with_its_reason_and_changes_nothing_for_others(rounds):
    good = {name: model(name) for name in FILES}
    alone = sealed(rounds, SPEC, good).settle("r", inputs=INPUTS)
    bad = {name: hostile(name) for name in BAD}
    mixed = sealed(rounds, replace(SPEC, round="q"), good | bad).settle("q", inputs=INPUTS)
    assert mixed.amounts == alone.amounts | dict.fromkeys(bad, 0) and mixed.scores == alone.scores
    for name, reason in BAD.items():
        [note] = [note for note in mixed.notes if repr(name) in note]
        assert note.startswith(f"'{name}' says nothing and is paid nothing: ")
        assert re.search(reason, note), note
    assert rounds.verify("q") == []


def test_when_no_model_says_anything_nothing_is_paid_and_the_round_is_over(rounds):
    found = sealed(rounds, SPEC, {name: hostile(name) for name in ("nan", "wide")}).settle("r", inputs=INPUTS)
    assert found.amounts == {"nan": 0, "wide": 0} and rounds.verify("r") == [] and rounds.state("r") == "settled"


def test_one_model_under_two_names_is_paid_once(rounds, kept_answers):
    others = {name: model(name) for name in ("forest-skl2onnx", "logistic-by-hand")}
    handed = {"ann": model("net-torch"), "eve": model("net-torch"), **others}
    found = sealed(rounds, SPEC, handed).settle("r", inputs=INPUTS)
    assert found.amounts["ann"] > 0 and found.amounts["eve"] == 0


def test_what_is_no_model_is_not_taken(rounds, tmp_path):
    rounds.open(SPEC)
    large = tmp_path / "large.onnx"
    with large.open("wb") as file:
        file.truncate(2**31)
    report = verax.Reports.of([[0] * 200], tasks=TASKS, classes=CLASSES)
    for given, kind, reason in (
        (b"task,label\n", ModelError, "it is no ONNX model"),
        (large, ModelError, "2,147,483,648 bytes and the most that is taken is 1,048,576"),
        (tmp_path / "none.onnx", InputError, "No such file"),
        (report, InputError, "asks for models; hand in an .onnx file"),
    ):
        with pytest.raises(kind, match=reason):
            rounds.submit("r", "ann", given)
    assert rounds.show("r")["submissions"] == []
    rounds.open(replace(SPEC, round="q", asks=None))
    with pytest.raises(InputError, match="give Reports of one agent"):
        rounds.submit("q", "ann", model("net-torch"))


def test_what_is_sealed_elsewhere_and_is_no_model_says_nothing(rounds, kept_answers):
    rounds.open(SPEC)
    rounds.fund("r")
    for n, content in enumerate(({"onnx": "%%%"}, {"labels": [0] * 200}, {"onnx": 5}, {"onnx": "QUJD"})):
        rounds.take(Submission.of(rounds.public_record("r"), f"bad{n}", 1, content, Key.new()))
    for name in FILES[:2]:
        rounds.submit("r", name, model(name), signer=Key.new())
    rounds.seal("r")
    found = rounds.settle("r", inputs=INPUTS)
    assert {a for a, paid in found.amounts.items() if paid} == {*FILES[:2]} and len(found.notes) >= 4


def test_inputs_are_hidden_and_only_those_of_the_opening_count(rounds, kept_answers):
    sealed(rounds, SPEC, {name: model(name) for name in FILES[:2]})
    for wrong in (INPUTS + 1, {"y": INPUTS}, INPUTS.astype(np.float64), INPUTS[::-1]):
        with pytest.raises(ConflictError, match="not the inputs that round 'r' was opened with"):
            rounds.settle("r", inputs=wrong)
    with pytest.raises(InputError, match="asks for models; give the inputs they are run on"):
        rounds.settle("r")
    assert rounds.state("r") == "sealed"
    with rounds.ledger.reading() as journal:
        everything = json.dumps([(e.id, e.body) for e in journal.entries()])
    assert SPEC.asks.digest not in everything and SPEC.asks.digest not in json.dumps(rounds.show("r"))
    assert rounds.show("r")["spec"]["asks"]["inputs"] == {"x": {"type": "float32", "shape": [8]}}
    rounds.settle("r", inputs={"x": INPUTS})
    with rounds.ledger.reading() as journal:
        assert SPEC.asks.digest not in json.dumps([(e.id, e.body) for e in journal.entries()])


def test_the_same_round_opens_again_and_with_other_inputs_does_not(rounds):
    entry = rounds.open(SPEC)
    assert rounds.open(SPEC) == entry
    with pytest.raises(ConflictError, match="open with another spec"):
        rounds.open(replace(SPEC, asks=Asks.of(INPUTS + 1, SHORT)))
    with pytest.raises(InputError, match="asked for in a batch"):
        Rounds(rounds.ledger).open(replace(SPEC, round="m", kind="market", truth=tuple(TRUTH.tolist())))


def test_a_model_stays_sealed_to_everybody_but_its_operator_even_when_the_secret_is_known(rounds, kept_answers):
    sealed(rounds, SPEC, {name: model(name) for name in FILES[:2]})
    secret = rounds.settle("r", inputs=INPUTS).secret
    with rounds.ledger.reading() as journal:
        bodies = [e.said for e in journal.entries("r", "submit")]
    assert all(unseal(b["sealed"], secret, ["r", b["agent"]]) is None for b in bodies)


def test_whoever_has_only_the_journal_computes_the_payments_again(rounds, kept_answers):
    found = sealed(rounds, SPEC, {name: model(name) for name in FILES}).settle("r", inputs=INPUTS)
    with rounds.ledger.reading() as journal:
        spec, contents, *_ = transcript_of(journal, "r")  # without any key
    assert [a for a, _ in contents] and verax.rounds.settlement(spec, contents, *_).amounts == found.amounts


@pytest.mark.slow
def test_a_model_that_is_run_again_says_what_was_recorded_or_another_was_meant(rounds):
    sealed(rounds, SPEC, {name: model(name) for name in FILES} | {"bad": hostile("nan")}).settle("r", inputs=INPUTS)
    assert rounds.ask_again("r", "net-torch", HERE / "net-torch.onnx", INPUTS)
    assert rounds.ask_again("r", "bad", hostile("nan"), INPUTS)
    assert not rounds.ask_again("r", "net-torch", model("forest-skl2onnx"), INPUTS)
    with pytest.raises(ConflictError, match="not the inputs"):
        rounds.ask_again("r", "net-torch", model("net-torch"), INPUTS + 1)
    with pytest.raises(InputError, match="agent 'zoe' has no submission"):
        rounds.ask_again("r", "zoe", model("net-torch"), INPUTS)


@pytest.mark.parametrize("lie", ["labels", "problem", "commitment", "left out"])
def test_answers_that_are_changed_in_the_record_are_found(rounds, kept_answers, monkeypatch, lie):
    """An operator without its key, or another than the round's: whoever can write, but not sign."""
    record = Journal.record

    def lying(self, id, kind, round, body):
        if kind == "answers":
            first = body["answers"][0]
            if lie == "labels":
                first["content"]["labels"][:150] = [0] * 150
            elif lie == "problem":
                del first["content"]
                first["problem"] = "it crashes"
            elif lie == "commitment":
                first["commitment"] = "0" * 64
            else:
                body["answers"].pop()
        return record(self, id, kind, round, body)

    sealed(rounds, SPEC, {name: model(name) for name in FILES})
    monkeypatch.setattr(Journal, "record", lying)
    rounds.settle("r", inputs=INPUTS)
    [problem, *_] = rounds.verify("r")
    assert "answers of round 'r' is not signed" in problem


@pytest.mark.slow
def test_a_machine_without_walls_or_runtime_harms_no_agent(rounds, monkeypatch):
    sealed(rounds, SPEC, {name: model(name) for name in FILES[:2]})
    with monkeypatch.context() as here:
        here.setattr(prediction.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ExtraMissing, match="Models need an extra"):
            rounds.settle("r", inputs=INPUTS)
    with monkeypatch.context() as here:
        here.setattr(prediction, "WORK", "no_such_module:work")
        with pytest.raises(VeraxError, match="no jail can be made"):
            rounds.settle("r", inputs=INPUTS)
    assert rounds.state("r") == "sealed" and sum(rounds.settle("r", inputs=INPUTS).amounts.values()) == 10000


def test_older_specs_hash_as_before():
    spec = Spec("r1", ("t1", "t2"), ("cat", "dog"), "100.00", copies=False)
    assert "asks" not in spec.to_json() and "inputs" not in opened_record(spec, "s")


def test_the_whole_story_on_the_command_line(tmp_path):
    def run(*words, code=0):
        found = CliRunner().invoke(app, [str(w) for w in words], env={"VERAX_DB": str(tmp_path / "v.db")})
        assert found.exit_code == code, found.output
        return found

    (tmp_path / "tasks.csv").write_text("task\n" + "".join(f"{t}\n" for t in TASKS))
    shutil.copy(HERE / "inputs.npz", tmp_path / "inputs.npz")
    inputs = "--inputs", tmp_path / "inputs.npz"
    asked = "r1", "--tasks", tmp_path / "tasks.csv", "--classes", "cat,dog,eel", "--budget", "100.00"
    for words, reason in (
        (("--asks", "onnx"), "--asks onnx needs the inputs|needs the inputs"),
        (("--asks", "pickle"), "choose report or onnx"),
        (inputs, "are of models"),
        (("--asks", "onnx", *inputs, "--limits", "memory=much"), "write file=NUMBER"),
    ):
        refused = run("round", "open", *asked, *words, code=2)
        assert re.search(reason, refused.stderr), refused.stderr
    run("round", "open", *asked, "--asks", "onnx", *inputs, "--limits", "seconds=20")
    run("round", "fund", "r1")
    run("key", "new", tmp_path / "ann.pem")
    run("round", "submit", "r1", HERE / "net-torch.onnx", "--agent", "ann", "--sign", tmp_path / "ann.pem")
    run("round", "submit", "r1", HERE / "forest-skl2onnx.onnx", "--agent", "bob")
    assert "no ONNX model" in run("round", "submit", "r1", HERE / "truth.csv", "--agent", "eve", code=2).stderr
    run("round", "seal", "r1")
    assert "give the inputs they are run on: --inputs" in run("round", "settle", "r1", code=2).stderr
    settled = run("round", "settle", "r1", *inputs)
    assert "models run in a strong jail; walls: " in settled.stderr
    assert json.loads(settled.stdout)["amounts"]["ann"] > 0
    again = run("round", "verify", "r1", "--agent", "ann", "--model", HERE / "net-torch.onnx", *inputs)
    assert again.stdout.splitlines()[0].endswith("equal")
    assert again.stdout.splitlines()[1] == "ann: the model says what was recorded"
    assert json.loads(run("round", "show", "r1", "--json").stdout)["spec"]["asks"]["kind"] == "onnx"
    told = run("round", "show", "r1").output
    assert "models in ONNX, given a row a task of x float32[8]" in told and "seconds 20" in told


@pytest.mark.parametrize("lie", ["short", "beyond", "none", "both", "twice", "unread", "other"])
def test_an_operator_who_signs_answers_that_cannot_be_is_found(rounds, kept_answers, monkeypatch, lie):
    def lying(self, step, body, kind=None):
        if step == "answers":
            first = body["answers"][0]
            wrong = {"short": {"labels": [0]}, "beyond": {"labels": [7] * 200}, "unread": {"labels": "x"}}
            first |= {"content": wrong[lie]} if lie in wrong else {}
            if lie == "none":
                body["answers"].pop(0)
            elif lie == "both":
                first["problem"] = "it crashes"
            elif lie == "other":
                first["commitment"] = "0" * 64
            elif lie == "twice":
                body["answers"] = 5
        return record(self, step, body, kind)

    record = RecordedRound.record_signed
    sealed(rounds, SPEC, {name: model(name) for name in FILES})
    monkeypatch.setattr(RecordedRound, "record_signed", lying)
    rounds.settle("r", inputs=INPUTS)
    [problem] = rounds.verify("r")
    assert "not those that were sealed" in problem or "what models said in round 'r' is none" in problem


def test_a_model_is_handed_in_from_afar_and_run_where_the_database_is(tmp_path):
    service = pytest.importorskip("test_service", reason="a service needs an extra: pip install 'verax[service]'")
    place = service.Place(str(tmp_path / "verax.db"), tmp_path)
    try:
        place.operator.open(SPEC)
        place.operator.fund("r")
        for name in FILES:
            place.remote().submit("r", name, HERE / f"{name}.onnx", signer=Key.new())
        with pytest.raises(ModelError, match="no ONNX model"):
            place.remote().submit("r", "eve", b"%PDF", signer=Key.new())
        place.operator.seal("r")
        place.operator.ask("POST", "/rounds/r/settle")
        place.work()
        ended = place.remote().ask("GET", "/rounds/r/settlement.json").json()
        assert ended["state"] == "failed" and "asks for models; give the inputs" in ended["reason"]
        with pytest.raises(InputError, match="run beside the database"):
            place.operator.settle("r", inputs=INPUTS)
        found = place.service.rounds.settle("r", inputs=INPUTS)
        assert place.operator.settle("r").amounts == found.amounts and place.remote().verify("r") == []
    finally:
        place.close()


@pytest.mark.slow
def test_what_a_model_says_in_a_jail_is_what_the_tool_that_made_it_says(tmp_path):
    for tool in ("skl2onnx", "sklearn", "torch", "onnxscript"):
        pytest.importorskip(tool, reason="the models are made with skl2onnx, torch and onnxscript")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = runpy.run_path(str(HERE / "make.py"))["make"](tmp_path)
    for name, labels in said.items():
        found = predict(tmp_path / f"{name}.onnx", np.load(tmp_path / "inputs.npz"), CLASSES)
        assert [CLASSES[label] for label in found.labels[0]] == labels.tolist(), name


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_models_with_bytes_changed_say_something_or_why_not(seed):
    rng = np.random.default_rng(seed)
    for _ in range(100):
        content = bytearray(model((*FILES, "net-torch-dynamo")[rng.integers(4)]))
        for place in rng.integers(0, len(content), rng.integers(1, 6)):
            content[place] = rng.choice([0, 1, 127, 128, 255, rng.integers(256)])
        with suppress(ModelError):  # and nothing else
            predict(bytes(content), INPUTS[:20], CLASSES, limits=SHORT)
