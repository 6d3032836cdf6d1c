"""Other tools' logs are read to the last answer: counted anew here in a few lines each, from the files themselves."""

from __future__ import annotations

import contextlib
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import verax
from verax.errors import InputError
from verax.logs import Chosen, explanation, label_of, task_sets

SAMPLES = Path("/work/shared/data/logs")
real = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample logs are not on this machine")


def lm_eval_line(i, values, target=0, **more):
    given = {"doc_id": i, "doc": {"q": i}, "target": target, "arguments": {}, "filter": "none",
             "resps": [[v] for v in values], "filtered_resps": values, "doc_hash": f"{i:064x}"}  # fmt: skip
    return json.dumps(given | more)


def write_lm_eval(folder, model, answers, task="quiz", date="2026-01-01T00-00-00.1", **more):
    """Answers as places among three choices, with the strings that the tool writes."""
    (folder / model).mkdir(exist_ok=True, parents=True)
    lines = [lm_eval_line(i, [[str(-0.5 - 2 * (k != a)), str(k == a)] for k in range(3)], "0", **more)
             for i, a in enumerate(answers)]  # fmt: skip
    path = folder / model / f"samples_{task}_{date}.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def inspect_log(model="m/a", answers=("A", "B"), version=2, **sample):
    samples = [{"id": i, "epoch": 1, "target": "A", "choices": ["x", "y"], "input": "?",
                "scores": {"choice": {"value": "C" if a == "A" else "I", "answer": a}}} | sample
               for i, a in enumerate(answers)]  # fmt: skip
    about = {"model": model, "task": "quiz", "run_id": "r", "created": "2026-01-01T00:00:00"}
    return {"version": version, "status": "success", "eval": about, "samples": samples}


def write_eval(path, log):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps({k: v for k, v in log.items() if k != "samples"}))
        for sample in log["samples"]:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
    return path


@real
def test_helm_folders_agree_with_a_count_of_their_states():
    sets = task_sets(SAMPLES / "helm")
    for folder in sorted((SAMPLES / "helm").iterdir()):
        right = total = 0
        for state in json.loads((folder / "scenario_state.json").read_text())["request_states"]:
            text = state["output_mapping"].get(state["result"]["completions"][0]["text"].strip())
            right += any(
                text == r["output"]["text"] and "correct" in r["tags"] for r in state["instance"]["references"]
            )
            total += 1
        found = next(s for s in sets if folder.name.split(",model=")[0] == s.name.replace(":", "-"))
        assert ((found.reports.labels == found.reports.truth).sum(), len(found.reports.tasks)) == (right, total)
        assert found.logged[0] == right / total


@real
def test_inspect_logs_agree_with_a_count_of_their_samples():
    (found,) = task_sets(SAMPLES / "inspect")
    for path in (SAMPLES / "inspect").glob("*.json"):
        log = json.loads(path.read_text())
        i = found.reports.agents.index(log["eval"]["model"])
        for sample in log["samples"]:
            column = found.reports.tasks.index(str(sample["id"]))
            said = found.reports.classes[found.reports.labels[i, column]]
            assert said == sample["scores"]["choice"]["answer"]
            assert found.reports.classes[found.reports.truth[column]] == sample["target"]
        assert (found.reports.labels[i] >= 0).sum() == len(log["samples"])


@real
def test_an_lm_eval_folder_whose_answers_are_no_labels_abstains_and_says_how_often():
    (found,) = task_sets(SAMPLES / "lm_eval")
    lines = next((SAMPLES / "lm_eval").rglob("*.jsonl")).read_text().splitlines()
    assert len(found.reports.tasks) == found.unreadable[0] == len(lines)
    assert found.reports.truth is not None and (found.reports.truth >= 0).all()
    assert found.logged[0] == sum(json.loads(line)["exact_match"] for line in lines) / len(lines)


def test_of_choices_the_likeliest_is_the_label_and_the_rows_are_the_softmax(tmp_path):
    write_lm_eval(tmp_path, "ann", [0, 1, 2, 0])
    write_lm_eval(tmp_path, "bob", [0, 0, 2, 1])
    reports = verax.read(tmp_path)
    assert reports.agents == ("ann", "bob") and reports.labels.tolist() == [[0, 1, 2, 0], [0, 0, 2, 1]]
    values = np.exp([-0.5, -2.5, -2.5])
    assert np.allclose(reports.probabilities[0, 0], values / values.sum())
    assert reports.truth.tolist() == [0] * 4


def test_choices_named_by_their_text_or_letter_are_found(tmp_path):
    folder = tmp_path / "ann"
    folder.mkdir()
    arguments = {f"gen_args_{k}": {"arg_0": "Q", "arg_1": f" {word}"} for k, word in enumerate(["no", "yes"])}
    lines = [
        lm_eval_line(i, [[-1.0, True], [-2.0, False]], t, arguments=arguments) for i, t in enumerate([" Yes", "B"])
    ]
    (folder / "samples_q_2026-01-01T00-00-00.jsonl").write_text("\n".join(lines))
    (found,) = task_sets(tmp_path)
    assert found.reports.truth.tolist() == [1, 1] and found.reports.labels.tolist() == [[0, 0]]


def test_of_several_filters_the_one_that_is_read_is_named(tmp_path):
    folder = tmp_path / "ann"
    folder.mkdir()
    lines = [lm_eval_line(i, [text], "18", filter=name) for i in range(3)
             for name, text in (("strict-match", "[invalid]"), ("flexible-extract", "18"))]  # fmt: skip
    (folder / "samples_gsm8k_2026-01-01T00-00-00.jsonl").write_text("\n".join(lines))
    (strict,), (flexible,) = task_sets(tmp_path), task_sets(tmp_path, chosen=Chosen(filter="flexible-extract"))
    assert strict.unreadable.tolist() == [3] and flexible.reports.labels.min() >= 0
    assert any("'strict-match' is read, and not 'flexible-extract'" in line for line in explanation([strict]))


def test_the_later_of_two_runs_is_read_and_said(tmp_path):
    write_lm_eval(tmp_path, "ann", [0, 0], date="2026-02-01T00-00-00")
    write_lm_eval(tmp_path, "ann", [1, 1], date="2026-01-01T00-00-00")
    (found,) = task_sets(tmp_path)
    assert found.reports.labels.tolist() == [[0, 0]]
    assert any("the later of two runs" in line for line in found.how)


def test_a_zip_and_a_document_of_inspect_read_alike(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(inspect_log()))
    write_eval(tmp_path / "b.eval", inspect_log("m/b"))
    (found,) = task_sets(tmp_path)
    assert found.reports.labels[0].tolist() == found.reports.labels[1].tolist() == [0, 1]


def test_epochs_are_repeats_and_errors_are_no_answers(tmp_path):
    log = inspect_log(answers=("A", "B", "A", "B"))
    one, two, three, four = log["samples"]
    for epoch, sample in enumerate((one, two, three), start=1):
        sample |= {"id": "q", "epoch": epoch}
    four |= {"error": {"message": "boom"}}
    (found,) = task_sets(write_eval(tmp_path / "a.eval", log))
    assert found.reports.labels[0, found.reports.tasks.index("q")] == found.reports.classes.index("A")
    assert found.silent.tolist() == [1] and found.logged[0] == pytest.approx(2 / 3)
    assert any("1 task answered 3 times at most" in line for line in found.how)


def eee_line(model, sample, said, **more):
    given = {"schema_version": "0.3.0", "evaluation_id": "e", "model_id": model, "evaluation_name": "quiz",
             "sample_id": sample, "interaction_type": "single_turn", "sample_hash": f"hash-{sample}",
             "input": {"raw": "?", "reference": ["B"], "choices": ["x", "y"]}, "output": {"raw": [said]},
             "answer_attribution": [{"turn_idx": 0, "source": "output.raw", "extracted_value": said,
                                     "extraction_method": "regex", "is_terminal": True}],
             "evaluation": {"score": 1.0, "is_correct": said == "B"}}  # fmt: skip
    return json.dumps(given | more)


def test_every_eval_ever_is_read_by_its_schema(tmp_path):
    lines = [eee_line("m/a", "1", "B"), eee_line("m/a", "2", "x"), eee_line("m/b", "1", "A", error="timeout")]
    (tmp_path / "quiz_samples.jsonl").write_text("\n".join(lines))
    (found,) = task_sets(tmp_path)
    assert found.reports.agents == ("m/a", "m/b") and found.reports.classes == ("A", "B")
    assert found.reports.labels.tolist() == [[1, 0], [-1, -1]] and found.silent.tolist() == [0, 1]
    assert found.logged[0] == 0.5


def test_label_studio_people_models_and_ground_truth(tmp_path):
    def said(label):
        return [{"type": "choices", "from_name": "animal", "to_name": "t", "value": {"choices": [label]}}]

    tasks = [{"id": i, "data": {}, "annotations": [
        {"completed_by": 1, "result": said("Cat")}, {"completed_by": {"email": "bob@x"}, "result": said("Dog")},
        {"completed_by": 9, "ground_truth": True, "result": said("Cat")}],
        "predictions": [{"model_version": "v1", "result": said("Cat")}]} for i in range(2)]  # fmt: skip
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    (found,) = task_sets(tmp_path)
    assert found.name == "animal" and found.reports.agents == ("1", "bob@x", "v1")
    assert (found.reports.labels == found.reports.truth).mean(1).tolist() == [1.0, 0.0, 1.0]


def test_a_crowds_csv_takes_the_truth_beside_it(tmp_path):
    (tmp_path / "crowd_labels.csv").write_text("worker,task,label\nann,1,cat\nbob,1,dog\nann,2,dog\n")
    (tmp_path / "gt.csv").write_text("task,label\n1,cat\n")
    (found,) = task_sets(tmp_path)
    assert found.reports.labels.tolist() == [[0, 1], [1, -1]] and found.reports.truth.tolist() == [0, -1]


@pytest.mark.parametrize(("text", "label"), [
    ("(C)", "C"), ("c.", "C"), ("ANSWER: D", "D"), ("so the answer is **B**", "B"), ("1,234.50", "1234.5"),
    ("$18", "18"), ("-0", "0"), (r"\boxed{\frac{1}{2}} or \boxed{3}", "3"), (r"$\dfrac{13}{9}$", r"\frac{13}{9}"),
    ("#### 72", "72"), ("", ""), ("[invalid]", ""), ("x" * 61, ""), ("two\nlines", ""), ("Paris.", "paris"),
])  # fmt: skip
def test_text_becomes_a_label_by_the_rules_that_are_shown(text, label):
    assert label_of(text) == label


def broken_logs(folder):
    ann = write_lm_eval(folder, "ann", [0, 1, 2])
    bob = write_lm_eval(folder, "bob", [0, 1, 2])
    return ann, bob


def half_a_line(folder):
    ann, _ = broken_logs(folder)
    ann.write_text(ann.read_text()[:-40])
    return r"line 3: half a JSON record"


def other_hashes(folder):
    broken_logs(folder)
    write_lm_eval(folder, "bob", [0, 1, 2], doc_hash="f" * 64)
    return "document 0 of 'quiz' is another than in"


def other_truth(folder):
    _, bob = broken_logs(folder)
    bob.write_text(bob.read_text().replace('"target": "0"', '"target": "2"'))
    return "the truth of task 0 of 'quiz' is '2', and '0' in"


def two_runs_in_one(folder):
    ann, _ = broken_logs(folder)
    ann.write_text(ann.read_text() * 2)
    return "document 0 is there twice"


def another_record(folder):
    ann, _ = broken_logs(folder)
    ann.write_text('{"question": 1}\n')
    return "line 1: not a record of this tool"


def truncated_zip(folder):
    path = write_eval(folder / "a.eval", inspect_log())
    path.write_bytes(path.read_bytes()[:-60])
    return "not a whole zip"


def other_version(folder):
    (folder / "a.json").write_text(json.dumps(inspect_log(version=7)))
    return "a log of version 7; expected version 2"


def truncated_json(folder):
    (folder / "a.json").write_text(json.dumps(inspect_log())[:-30])
    return "not whole JSON"


def other_schema(folder):
    (folder / "q_samples.jsonl").write_text(eee_line("m", "1", "B", schema_version="1.0.0"))
    return "a log of version 1.0.0"


def state_alone(folder):
    (folder / "scenario_state.json").write_text('{"request_states": []}')
    return "without run_spec.json"


def nothing(folder):
    return "no log of Every Eval Ever, lm-evaluation-harness"


@pytest.mark.parametrize("broken", [
    half_a_line, other_hashes, other_truth, two_runs_in_one, another_record, truncated_zip, other_version,
    truncated_json, other_schema, state_alone, nothing,
])  # fmt: skip
def test_what_is_wrong_with_a_log_is_one_sentence(tmp_path, broken):
    expected = broken(tmp_path)
    with pytest.raises(InputError, match=expected.replace("(", r"\(")) as refused:
        task_sets(tmp_path)
    assert "\n" not in str(refused.value) and ";" in str(refused.value)


def test_a_folder_of_two_sets_is_no_one_report(tmp_path):
    write_lm_eval(tmp_path, "ann", [0, 1])
    write_lm_eval(tmp_path, "ann", [0, 1], task="other")
    with pytest.raises(InputError, match="logs of 2 sets of tasks"):
        verax.read(tmp_path)


def test_any_cut_of_a_log_reads_or_is_refused_in_a_sentence(tmp_path):
    path = write_lm_eval(tmp_path, "ann", [0, 1])
    whole = path.read_bytes()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with contextlib.suppress(InputError):
            task_sets(path)
