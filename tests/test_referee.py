"""What a federation's round is paid for and by, on plain arrays: no framework is needed, and none is imported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import verax
from verax.cli import app
from verax.errors import InputError, OptionError
from verax.federation import Encoded, Payroll, Referee, Reply
from verax.ledger import Ledger
from verax.log import Proof
from verax.money import major_text
from verax.notices import told_in
from verax.received import digest_of
from verax.rounds import Rounds, Spec

TASKS, CLASSES = 1500, tuple("abcd")
TRUTH = np.random.default_rng(0).integers(0, len(CLASSES), TASKS)
NOTHING = {"said": np.zeros(TASKS, np.int64)}


def says(model, pool):
    """A model is what it says of the pool."""
    return model["said"]


def noisy(share, seed):
    """The truth, with this share of it drawn anew."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(TASKS) < share, rng.integers(0, len(CLASSES), TASKS), TRUTH)


def replies(**said):
    return [Reply(agent, {"said": np.asarray(labels)}) for agent, labels in said.items()]


def crowd():
    """Workers of unlike worth, a ring of copies of the third best, an echo, and one who guesses."""
    rng = np.random.default_rng(9)
    workers = {f"w{i}": noisy(0.2 + 0.06 * i, i) for i in range(6)}
    ring = {f"ring{i}": workers["w2"] for i in range(2)}
    return replies(**workers, **ring, echo=NOTHING["said"], guess=rng.integers(0, len(CLASSES), TASKS))


def referee(predict=says, **terms):
    found = Referee(range(TASKS), predict, CLASSES, **terms)
    found.broadcast(NOTHING)
    return found


def played(found, sent, number=1):
    received = found.receive(sent, [reply.agent for reply in sent])
    outcome = found.settle_round(received) if found.due else None
    return outcome, found.weigh(received.works, outcome)


def test_what_is_shown_is_what_was_paid_by(tmp_path):
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00")
    outcome, _ = played(referee(payroll=payroll, pages=tmp_path), crowd())
    assert list(outcome.unpaid) == ["echo"] and outcome.amounts["echo"] == 0
    ring = {"w2", *(f"ring{i}" for i in range(2))}
    assert {c.agent for c in outcome.copies} == ring
    shares = 10_000 / 7  # the budget over six workers, copies and all, and the one who guesses
    alone = [s for s in outcome.scores.scores if s.agent not in ring and s.score is not None]
    assert {s.agent for s in alone} == {"w0", "w1", "w3", "w4", "w5"}
    for s in alone:
        assert outcome.amounts[s.agent] == pytest.approx(s.score * shares, abs=1)
    assert len({outcome.scores[agent].score for agent in ring}) == 1
    together = sum(outcome.amounts[agent] for agent in ring)
    assert together == pytest.approx(outcome.scores["w2"].score * shares, abs=1)
    assert outcome.amounts["guess"] == 0 and outcome.scores["guess"].score is None
    assert "no score for 'guess" in outcome.table()
    recorded = Rounds(Ledger.open(payroll.db)).show("federation-1")["settlement"]
    assert recorded["scores"] == outcome.scores.to_json()
    assert recorded["amounts"] == outcome.amounts
    listed = {p.agent: p.amount for p in outcome.payments.payments}
    assert listed | {"echo": 0} == outcome.amounts
    shown = {line.split()[0]: line.split()[1:4] for line in outcome.table().splitlines()[1:]}
    page = (tmp_path / "round-1.html").read_text()
    for s in (s for s in outcome.scores.scores if s.score is not None):
        assert shown[s.agent] == [f"{s.score:.4f}", f"{s.stderr:.4f}", str(outcome.amounts[s.agent])]
        assert f"{abs(s.score):.4f}" in page


def test_the_ring_does_not_lift_itself_above_those_who_are_better(tmp_path):
    """Two copies beside one agent are its peers in a plain score; in what is shown and paid they are not."""
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00")
    outcome, _ = played(referee(payroll=payroll), crowd())
    plain = verax.score(verax.Reports.of([r.arrays["said"] for r in crowd()], classes=CLASSES))
    assert plain["2"].score > plain["0"].score
    assert outcome.scores["w2"].score < outcome.scores["w0"].score
    assert outcome.scores.ranked()[0].agent == "w0"


def counted(call, agents):
    """How often each function of verax ran on reports of these agents while something is called."""
    seen = Counter()

    def watch(frame, event, _):
        if event == "call" and frame.f_globals.get("__name__", "").startswith("verax."):
            reports = frame.f_locals.get("reports")
            if isinstance(reports, verax.Reports) and set(reports.agents) & set(agents):
                seen[frame.f_code.co_name] += 1

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize("payroll", [True, False])
@pytest.mark.parametrize(
    ("terms", "scored"),
    [
        ({}, 1),
        ({"weights": "score"}, 1),
        ({"bar": 0.5}, 1),
        ({"protocol": "every"}, 1),
        ({"protocol": "every", "weights": "score"}, 2),
    ],
)
def test_a_round_is_scored_once_looked_through_once_and_every_model_speaks_once(tmp_path, terms, scored, payroll):
    spoken = Counter()

    def says_and_counts(model, pool):
        spoken[model["said"].tobytes()] += 1
        return model["said"]

    paid = Payroll(str(tmp_path / "r.db"), budget="100.00") if payroll else None
    found = referee(says_and_counts, payroll=paid, features={"copies": 1, "noise": ()}, **terms)
    sent = [reply for reply in crowd() if reply.agent.startswith("w")]
    calls = counted(lambda: played(found, sent), [reply.agent for reply in sent])
    assert found.outcomes[0].scores is not None
    assert calls["score"] == scored
    assert calls["copies"] == payroll
    assert all(spoken[reply.arrays["said"].tobytes()] == 1 for reply in sent)


def test_weights_are_the_scores_that_were_paid_by(tmp_path):
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00")
    outcome, shares = played(referee(payroll=payroll, weights="score"), crowd())
    for work, share in shares:
        scored = work.agent in {s.agent for s in outcome.scores.scores}
        assert share == (outcome.scores[work.agent].score or 0 if scored else 0)
    assert {work.agent: share for work, share in shares}["echo"] == 0
    _, kept = played(referee(payroll=payroll, bar=0.5, name="other"), crowd())
    assert not {"echo", "guess"} & {work.agent for work, _ in kept}


def test_under_every_and_in_rounds_that_are_not_scored_weights_are_plain_scores():
    sent = [reply for reply in crowd() if reply.agent != "echo"]
    plain = verax.score(verax.Reports.of([r.arrays["said"] for r in sent], classes=CLASSES), copies="apart")
    expected = dict(zip((r.agent for r in sent), (max(s.score, 0) for s in plain.scores), strict=True))
    _, shares = played(referee(protocol="every", weights="score"), sent)
    assert {work.agent: share for work, share in shares} == pytest.approx(expected, abs=1e-12)
    found = referee(weights="score")
    played(found, sent)
    outcome, shares = played(found, sent, 2)
    assert outcome is None and {work.agent: share for work, share in shares} == pytest.approx(expected, abs=1e-12)


def test_a_rule_of_ones_own_is_paid_by_its_name(tmp_path):
    def twice(joint):
        return min(1.0, 2 * float((joint.bonus - joint.penalty).trace()))

    twice.bounds = (-1.0, 1.0)
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00", copies=False)
    found = referee(payroll=payroll, options={"rule": twice})
    assert found.options["rule"].endswith("twice")


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        ({"budget": "ten"}, "ten"),
        ({"budget": "1.005"}, "1.005"),
        ({"budget": "1.00", "currency": "euro"}, "euro"),
    ],
)
def test_what_could_never_be_paid_is_refused_before_anybody_trains(terms, sentence):
    with pytest.raises((InputError, OptionError), match=sentence):
        Payroll("r.db", **terms)


def test_a_paid_round_can_only_be_asked_for_what_its_record_holds():
    with pytest.raises(OptionError, match="a paid round cannot be asked for 'against'; give rule, over, sign, floor"):
        referee(payroll=Payroll("r.db", budget="1.00"), options={"against": "truth"})


def test_replies_are_checked_before_they_are_decoded():
    decoded = []

    def encoded(shape, size, values):
        return {"said": Encoded(shape, size, lambda: decoded.append(size) or values)}

    good = noisy(0.2, 1)
    sent = [
        Reply("good", encoded((TASKS,), good.nbytes, good)),
        Reply("shape", encoded((TASKS, 2), good.nbytes, good)),
        Reply("bytes", encoded((TASKS,), 10**9, good)),
        Reply("liar", encoded((TASKS,), good.nbytes, good[:5])),
        Reply("none", {"said": None}),
        Reply("error", refused="an error in place of a model"),
        Reply("good", {"said": good}),
    ]
    received = referee().receive(sent, ["good", "gone"])
    assert [work.agent for work in received.works] == ["good"]
    assert decoded == [good.nbytes] * 2
    assert {agent: why.split(" (")[0] for agent, why in received.dropped.items()} == {
        "shape": "array 'said' has shape", "bytes": "array 'said' has shape",
        "liar": "array 'said' is int64", "none": "'said' is a NoneType, not an array",
        "error": "an error in place of a model", "good": "it replied twice", "gone": "no reply",
    }  # fmt: skip


def test_answers_that_are_none_drop_their_own_client_only():
    """Rows that sum to 0, logits, numbers that are no numbers, another form, labels that nobody has, no answer."""
    right = np.eye(len(CLASSES))[TRUTH]
    spoilt = right.copy()
    spoilt[7] = 0
    answers = [right, spoilt, right - 0.5, right * np.nan, right[:, :3], TRUTH, TRUTH + 1, right, ZeroDivisionError()]

    def predict(model, pool):
        said = answers[int(model["which"][0])]
        if isinstance(said, Exception):
            raise said
        return said

    found = Referee(range(TASKS), predict, CLASSES, kinship=None)
    found.broadcast({"which": np.zeros(1)})
    received = found.receive([Reply(f"a{n}", {"which": np.array([n])}) for n in range(len(answers))])
    assert [work.agent for work in received.works] == ["a0", "a7"]
    assert {agent: why[:40] for agent, why in received.dropped.items()} == {
        "a1": "its probabilities of input 7 sum to 0", "a2": "its predictions have -0.5; give probabiliti"[:40],
        "a3": "its predictions are not finite numbers", "a4": f"predict gives shape ({TASKS}, 3) and type f"[:40],
        "a5": "it gives labels where others give probab", "a6": "it says label 4 of 4 classes",
        "a8": "the pool cannot be predicted with it (Ze",
    }  # fmt: skip
    outcome = found.settle_round(received)
    assert not outcome.problem and outcome.scores["a7"].score == outcome.scores["a0"].score > 0.6


def test_a_model_is_cast_to_the_types_of_the_first_broadcast_and_predict_sees_no_others():
    seen = []

    def predict(model, pool):
        seen.append((str(model["at"].dtype), str(model["steps"].dtype), int(model["steps"])))
        return (pool > model["at"]).astype(int)

    found = Referee(np.linspace(0, 1, 50), predict, ["low", "high"], kinship=None, predict_always=True)
    found.broadcast({"at": np.array([0.5], np.float32), "steps": np.array(0)})
    found.broadcast({"at": np.array([0.5]), "steps": np.array(6.6)})  # as an optimiser on the server may leave it
    sent = {"f": (0.4, 9.5), "i": (1, 10), "h": (np.float16(0.4), 11)}
    received = found.receive(
        [Reply(n, {"steps": np.array(steps), "at": np.array([at])}) for n, (at, steps) in sent.items()]
        + [Reply("large", {"at": np.array([1e300]), "steps": np.array(0)})]
        + [Reply("word", {"at": np.array(["one"]), "steps": np.array(0)})]
    )
    assert set(seen) == {("float32", "int64", n) for n in (0, 10, 11)}
    assert received.dropped == {
        "large": "array 'at' is not finite everywhere as float32",
        "word": "array 'at' is <U3, not numbers such as float32",
    }


def test_a_model_of_other_shapes_starts_anew():
    found = referee(protocol="every")
    found.broadcast({"said": NOTHING["said"], "more": np.zeros(2)})
    outcome, _ = played(found, [Reply(f"w{i}", {"said": noisy(0.2, i), "more": np.ones(2)}) for i in range(3)])
    assert not outcome.problem and not outcome.dropped


def test_a_first_round_that_went_wrong_is_made_up_for_only_while_nothing_was_told():
    found = referee()
    found.settle_round(found.receive(crowd()[:1]))
    assert found.outcomes[0].problem and found.due
    found.broadcast(NOTHING)
    assert found.due
    found.broadcast({"said": TRUTH})
    assert not found.due


def test_broadcasts_are_kept_within_bounds():
    for protocol, most in (("first", 2), ("every", 5)):
        found = referee(protocol=protocol)
        for n in range(12):
            found.broadcast({"said": np.full(TASKS, n)})
        kept = [int(model["said"][0]) for model in found._broadcasts.models]
        assert kept == [0, *range(12 - most + 1, 12)]


def test_a_round_that_cannot_be_paid_says_why_and_raises_nothing(tmp_path):
    outcome, shares = played(
        referee(payroll=Payroll(str(tmp_path / "no" / "such" / "r.db"), budget="1.00"), weights="score"), crowd()
    )
    assert outcome.problem and outcome.amounts == {} and outcome.scores is None
    assert len(shares) == len(crowd())
    lonely, _ = played(referee(), crowd()[:1])
    assert lonely.problem == "1 replies can be scored; two at least are needed"


def test_no_framework_is_imported():
    program = (
        "import sys; sys.modules['flwr'] = None\n"
        "import numpy as np\n"
        "from verax.federation import Referee, Reply\n"
        "referee = Referee(range(50), lambda model, pool: model['said'], ['a', 'b'], kinship=None)\n"
        "referee.broadcast({'said': np.zeros(50, np.int64)})\n"
        "said = np.arange(50) % 2\n"
        "received = referee.receive([Reply('x', {'said': said}), Reply('y', {'said': said})])\n"
        "print(referee.settle_round(received).table())\n"
        "assert not {'torch', 'ray', 'pandas', 'jinja2'} & {name for name, held in sys.modules.items() if held}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0.51" in done.stdout


def test_what_a_round_asks_is_read_once_however_many_hand_in_a_reply(tmp_path, monkeypatch):
    read = Counter()
    original = Spec.from_json.__func__

    def counting(cls, document):
        read[document["round"]] += 1
        return original(cls, document)

    monkeypatch.setattr(Spec, "from_json", classmethod(counting))
    played(referee(payroll=Payroll(str(tmp_path / "r.db"), budget="100.00")), crowd())
    assert read == {"federation-1": 1}


def rows_of(model, pool):
    return np.eye(len(CLASSES))[model["said"]] * 0.9 + 0.1 / len(CLASSES)


def test_the_pool_is_predicted_only_where_something_depends_on_it():
    asked = Counter()

    def counting(model, pool):
        asked["times"] += 1
        return model["said"]

    spoken = {}
    for name, terms in {"plain": {}, "score": {"weights": "score"}, "always": {"predict_always": True}}.items():
        found = referee(counting, **terms)
        played(found, crowd())
        found.broadcast({"said": TRUTH})
        asked.clear()
        strange = [Reply("strange", {"said": TRUTH + 9})]  # labels that nobody has
        dropped = [*found.receive([*crowd(), *strange]).dropped]
        spoken[name] = asked["times"], dropped
    assert spoken == {"plain": (0, []), "score": (11, ["strange"]), "always": (11, ["strange"])}


@pytest.mark.parametrize(("rule", "kept"), [(None, False), ("zero-one", False), ("ca", False), ("brier", True)])
def test_rows_are_recorded_only_where_the_rule_looks_at_them(tmp_path, rule, kept):
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00")
    options = {"rule": rule} if rule else {}
    outcome, _ = played(referee(rows_of, payroll=payroll, options=options, kinship=None), crowd())
    assert not outcome.problem
    assert (payroll.reports_in("federation-1").probabilities is not None) == kept


def in_order(outcome):
    return [s.agent for s in outcome.scores.ranked() if s.score is not None]


def test_a_round_is_one_call_with_models_by_name():
    found = Referee(range(TASKS), says, CLASSES, kinship=None)
    models = {reply.agent: dict(reply.arrays) for reply in crowd()}
    outcome = found.pay_round(NOTHING, models | {"late": {}}, asked=[*models, "late", "gone"])
    assert outcome.dropped.keys() == {"late", "gone"} and in_order(outcome)[-1] == "echo"
    assert outcome.shares == dict.fromkeys(models, 1.0)
    later = found.pay_round({"said": TRUTH}, models)
    assert later.scores is None and later.server_round == 2 and later.shares == outcome.shares
    assert len(found.outcomes) == 1


class Killed(BaseException):
    """Nobody catches it, as nobody catches a kill."""


EVERY = {"kinship": None, "features": {"copies": 1, "noise": ()}}


def killed_at(monkeypatch, step):
    """Every transaction of the ledger after so many is never begun; how many there were."""
    original, begun = Ledger.writing, [0]

    def writing(ledger):
        if begun[0] == step:
            raise Killed
        begun[0] += 1
        return original(ledger)

    monkeypatch.setattr(Ledger, "writing", writing)
    return begun


def paid_out(payroll):
    """What everybody has, and that the ledger is sound and nothing is left in a round."""
    ledger = Ledger.open(payroll.db)
    assert ledger.verify() == []
    balances = ledger.balances()
    assert not [a for a, left in balances.items() if a.startswith("escrow:") and left]
    return {a.removeprefix("agent:"): left for a, left in balances.items() if a.startswith("agent:") and left}


@pytest.mark.parametrize("protocol", ["first", "every"])
def test_killed_anywhere_and_started_again_a_federation_goes_on_and_everybody_is_paid_once(
    tmp_path, monkeypatch, protocol
):
    """Two rounds of three workers, killed before each transaction of the ledger."""
    terms = {"protocol": protocol, **EVERY}
    workers = [{"a": noisy(0.2, n), "b": noisy(0.4, n + 10), "c": noisy(0.3, n + 20)} for n in range(2)]
    broadcasts = NOTHING, {"said": np.ones(TASKS, np.int64)}

    def play(payroll, since=0):
        found = Referee(range(TASKS), says, CLASSES, payroll=payroll, **terms)
        for broadcast, said in list(zip(broadcasts, workers, strict=True))[since:]:
            found.pay_round(broadcast, replies(**said), "abc")
        return found

    whole = Payroll(str(tmp_path / "whole.db"), budget="100.00")
    with monkeypatch.context() as patched:
        begun = killed_at(patched, -1)
        rounds = len(play(whole).outcomes)
    steps = begun[0]
    expected = paid_out(whole)
    assert rounds == (1 if protocol == "first" else 2) and min(expected[agent] for agent in "abc") > 1000
    assert steps > 8 * rounds  # begin, open, fund, three submissions, seal, settle; and what everybody is told
    for step in range(0, steps + 1, 6 if rounds > 1 else 3):
        payroll = Payroll(str(tmp_path / f"{step}.db"), budget="100.00")
        with monkeypatch.context() as patched:
            killed_at(patched, step)
            with pytest.raises(Killed) if step < steps else nullcontext():
                play(payroll)
        again = play(Payroll(payroll.db, budget="100.00"))  # from its beginning
        assert paid_out(payroll) == expected
        assert [outcome.server_round for outcome in again.outcomes] == list(range(1, rounds + 1))
        play(Payroll(payroll.db, budget="100.00"))
        assert paid_out(payroll) == expected
    once = Payroll(str(tmp_path / "12.db"), budget="100.00")
    if rounds == 2:  # from a checkpoint: the second broadcast is known, and a third would be the third round
        found = play(once, since=1)
        assert found.number == 2 and paid_out(once) == expected
        found.pay_round({"said": TRUTH}, replies(**workers[0]), "abc")
        assert found.number == 3 and [o.server_round for o in found.outcomes] == [1, 2, 3]


def test_two_processes_of_one_name_at_once_pay_a_round_once(tmp_path, monkeypatch):
    """Both have taken up what the ledger has of the name, which is nothing, before either begins."""
    payrolls = [Payroll(str(tmp_path / "rounds.db"), budget="100.00") for _ in range(2)]
    one, other = (
        Referee(range(TASKS), says, CLASSES, payroll=payroll, protocol="every", **EVERY) for payroll in payrolls
    )
    said = {"a": noisy(0.2, 1), "b": noisy(0.4, 2), "c": noisy(0.3, 3)}
    begin = Payroll.begin

    def late(payroll, *asked):
        if payroll is payrolls[1]:
            monkeypatch.setattr(Payroll, "begin", begin)
            one.pay_round(NOTHING, replies(**said), "abc")
        return begin(payroll, *asked)

    monkeypatch.setattr(Payroll, "begin", late)
    refused = other.pay_round(NOTHING, replies(**said), "abc")
    assert "another process has begun 'federation-1' of federation 'federation' meanwhile" in refused.problem
    assert paid_out(payrolls[0]) == paid_out(payrolls[1]) and one.outcomes[0].amounts
    assert payrolls[0].rounds.verify("federation-1") == []
    second = one.pay_round({"said": np.ones(TASKS, np.int64)}, replies(**said), "abc")
    assert not second.problem and second.round == "federation-2"


def test_a_checkpoint_that_was_never_broadcast_begins_the_next_round_and_is_no_first_one(tmp_path):
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00")
    found = referee(payroll=payroll)
    played(found, crowd())
    again = referee(payroll=Payroll(payroll.db, budget="100.00"))
    assert not again.due or again.outcomes[0].amounts == found.outcomes[0].amounts
    resumed = Referee(range(TASKS), says, CLASSES, payroll=Payroll(payroll.db, budget="100.00"))
    resumed.broadcast({"said": TRUTH})
    assert resumed.number == 2 and not resumed.due
    assert resumed.outcomes[0].amounts == found.outcomes[0].amounts
    assert resumed.newcomers(["w1", "echo", "new"]) == ["new"]


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("paid", [False, True])
def test_who_comes_later_is_scored_beside_the_first_and_paid_at_their_rate(tmp_path, paid, resumed):
    payroll = Payroll(str(tmp_path / "r.db"), budget="70.00") if paid else None
    terms = {"payroll": payroll, "kinship": None}
    early, late = crowd()[:6], [Reply("late", {"said": noisy(0.3, 77)}), Reply("copy", crowd()[2].arrays)]
    late += replies(twin=noisy(0.4, 78), other=noisy(0.4, 78))
    found = referee(**terms)
    first, _ = played(found, early)
    if resumed:
        found = Referee(range(TASKS), says, CLASSES, **(terms | {"payroll": payroll and Payroll(payroll.db, "70.00")}))
        if not paid:
            return  # nothing is kept where there is no ledger
    found.broadcast({"said": TRUTH})
    names = ["copy", "late", "other", "twin"]
    assert found.newcomers(["w0", *names]) == names
    outcome = found.settle_newcomers(found.receive(late, names, alone=False))
    assert not outcome.problem and sorted(s.agent for s in outcome.scores) == names
    everybody = verax.score(verax.Reports.of([r.arrays["said"] for r in [*early, late[0]]], classes=CLASSES))
    assert outcome.scores["late"].score == pytest.approx(everybody["6"].score, abs=0.05)
    assert found.newcomers(names) == []
    if paid:
        rate = first.amounts["w2"] / first.scores["w2"].score
        assert outcome.amounts["late"] == pytest.approx(rate * outcome.scores["late"].score, rel=0.01)
        assert outcome.amounts["twin"] * 2 == pytest.approx(rate * outcome.scores["twin"].score, abs=3)
        assert outcome.amounts["copy"] == 0 and sorted(outcome.amounts) == names
        assert Rounds(Ledger.open(payroll.db)).verify(outcome.round) == []
        assert Rounds(Ledger.open(payroll.db)).payment(outcome.round, "w0") == (0, 0)


def test_the_referee_of_the_docs_runs_without_any_framework(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "federation.md").read_text()
    program = re.search(r"```python\n(# without a framework\n.*?)```\s+```text\n(.*?)```", page, re.S)
    blocked = "import sys; sys.modules['flwr'] = sys.modules['torch'] = None\n"
    done = subprocess.run([sys.executable, "-c", blocked + program[1]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.splitlines()] == program[2].splitlines()


def split_crowd():
    """Four who say what is there, and six who rename the labels together."""
    honest = {f"w{i}": noisy(0.3, i) for i in range(4)}
    return replies(**honest, **{f"r{i}": (noisy(0.3, 20 + i) + 1) % len(CLASSES) for i in range(6)})


def test_a_ring_beyond_half_that_renames_labels_is_cut_off_by_ten_known_ones(tmp_path):
    payroll, gold = Payroll(str(tmp_path / "r.db"), budget="100.00"), {n: int(TRUTH[n]) for n in range(10)}
    outcome, _ = played(referee(payroll=payroll, gold=gold, sides=True, kinship=None), split_crowd())
    assert set(outcome.unpaid) == {f"r{i}" for i in range(6)}
    assert all(outcome.amounts[f"r{i}"] == 0 and outcome.amounts[f"w{i % 4}"] > 0 for i in range(6))
    assert "it disagrees over what labels mean" in outcome.table()
    assert Rounds(Ledger.open(payroll.db)).verify(outcome.round) == []
    without, _ = played(referee(gold=gold, kinship=None), split_crowd())
    assert without.scores["r0"].score > without.scores["w0"].score


def test_a_split_crowd_without_known_labels_is_reported_and_its_round_held(tmp_path):
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00")
    outcome, _ = played(referee(payroll=payroll, sides=True, kinship=None), split_crowd())
    assert "split 6 to 4 over what labels mean" in outcome.problem and "the round is held" in outcome.problem
    assert not outcome.amounts
    with pytest.raises(OptionError, match="sides are told in a first round"):
        Referee(range(9), says, CLASSES, protocol="every", sides=True)


def test_everybody_is_told_what_it_is_paid_and_why_signed_and_in_the_ledger(tmp_path):
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00")
    found = referee(payroll=payroll, name="plants")
    sent = [*crowd(), Reply("nan", {"said": np.full(TASKS, np.nan)})]
    outcome = found.settle_round(found.receive(sent, [*(r.agent for r in sent), "silent"]))
    key = Rounds(Ledger.open(payroll.db)).ledger.keys.key("operator").public
    assert outcome.notices.keys() == {r.agent for r in sent} | {"silent"}
    for agent, notice in outcome.notices.items():
        assert not notice.fault(operator=key) and notice.agent == agent and notice.amount == outcome.amounts.get(agent)
        assert "another" in replace(notice, why="another").why and replace(notice, why="another").fault()
        assert notice.fault(operator="ab" * 32).startswith("it is signed by")
    why = {agent: notice.why for agent, notice in outcome.notices.items()}
    assert re.match(r"score 0\.\d{4} ± 0\.\d{4} beside \d others$", why["w0"])
    assert "no work of its own" in why["echo"] and "near-duplicate of" in why["ring1"]
    assert (
        why["silent"] == "dropped: no reply" and why["nan"] == "dropped: array 'said' is not finite everywhere as int64"
    )
    model = digest_of({"said": crowd()[0].arrays["said"]})
    assert outcome.notices["w0"].model == model and not outcome.notices["w0"].fault(model=model)
    with Ledger.open(payroll.db).reading() as journal:
        (told,) = (n for n in told_in(journal, "plants-1") if n.agent == "ring1")
    assert told == outcome.notices["ring1"]
    proof = Proof.parsed(told.receipt)
    assert proof.is_included and proof.said["body"]["agent"] == "ring1" and proof.checkpoint.signed_at(key)
    assert len(told.receipt) < 5000
    mine, theirs = found.payroll.rounds.ledger.keys.key("operator"), outcome.notices["w0"].receipt
    assert replace(told, receipt=theirs).signed_by(mine).fault() == "its receipt is of another's submission"
    broken = replace(proof, proof=proof.proof[::-1])
    assert replace(told, receipt=str(broken)).signed_by(mine).fault().startswith("its receipt does not prove")
    assert Rounds(Ledger.open(payroll.db)).verify("plants-1") == []
    again = referee(payroll=Payroll(payroll.db, budget="100.00"), name="plants")
    assert again.outcomes[0].notices == outcome.notices


def test_who_is_dropped_in_a_round_that_is_not_scored_is_told_why_too(tmp_path):
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00")
    found = referee(payroll=payroll, name="plants")
    played(found, crowd())
    outcome = found.pay_round({"said": TRUTH}, {"w1": {}, "w2": {"said": TRUTH}}, ["w1", "w2", "gone"])
    assert {a: n.why for a, n in outcome.notices.items()} == {
        "w1": "dropped: the arrays' names are not the broadcast's ('said')", "gone": "dropped: no reply",
    }  # fmt: skip
    with Ledger.open(payroll.db).reading() as journal:
        assert told_in(journal, "plants-2") == [*outcome.notices.values()]
    without = referee()
    held = without.settle_round(without.receive(crowd()[:1], ["w0", "gone"]))
    assert held.notices["w0"].why.startswith("the round is not paid: 1 replies can be scored")
    assert held.notices["w0"].fault() == "nobody has signed it" and held.notices["w0"].pay == "nothing"


def test_started_again_every_knows_the_broadcasts_before_and_keeps_no_more_than_it_needs(tmp_path):
    terms = {"protocol": "every", "kinship": None, "features": {"copies": 1, "noise": ()}}
    sent = [{"said": np.where(np.arange(TASKS) < 100 * n, TRUTH, 0)} for n in range(7)]
    said = {f"w{i}": {"said": noisy(0.2, i)} for i in range(3)}

    def go_on(since, until):
        payroll = Payroll(str(tmp_path / "r.db"), budget="100.00")
        found = Referee(range(TASKS), says, CLASSES, payroll=payroll, **terms)
        for model in sent[since:until]:
            found.pay_round(model, said)
        return found

    whole = Referee(range(TASKS), says, CLASSES, **terms)
    for model in sent:
        whole.pay_round(model, said)
    go_on(0, 3)
    go_on(3, 5)
    found = go_on(5, 7)
    assert found.number == 7 and [o.server_round for o in found.outcomes] == list(range(1, 8))
    for mine, theirs in zip(found._broadcasts.models, whole._broadcasts.models, strict=True):
        assert np.array_equal(mine["said"], theirs["said"])
    assert not any(o.problem for o in found.outcomes)
    on_disk = sorted(path.name for path in (tmp_path / "r.db.models" / "federation").iterdir())
    assert on_disk == [*(f"broadcast-{n:08}.npz" for n in (4, 5, 6, 7)), "first.npz"]


def test_started_again_from_a_checkpoint_newcomers_train_from_the_first_broadcast_and_nobody_comes_new_twice(tmp_path):
    """One that was dropped in the first round, and one that had a broadcast later and never replied, are not new."""
    payroll = Payroll(str(tmp_path / "r.db"), budget="70.00")
    found = referee(payroll=payroll)
    found.settle_round(found.receive([*crowd(), Reply("broken", {})], ["broken", "silent"]))
    found.broadcast({"said": TRUTH})
    assert found.newcomers(["broken", "silent", "later"]) == ["later"]
    found.sends_to(["w1", "later"])  # and killed
    again = Referee(range(TASKS), says, CLASSES, payroll=Payroll(payroll.db, budget="70.00"))
    again.broadcast({"said": np.where(np.arange(TASKS) < 9, 0, TRUTH)})
    assert again.newcomers(["broken", "silent", "later", "echo", "w3", "new", "other"]) == ["new", "other"]
    assert np.array_equal(again.first_model["said"], NOTHING["said"])
    late = replies(new=NOTHING["said"], other=noisy(0.3, 77))
    outcome = again.settle_newcomers(again.receive(late, ["new", "other"], alone=False))
    assert list(outcome.unpaid) == ["new"] and outcome.amounts["other"] > 100  # an echo, told by those of before


@pytest.mark.parametrize("lost", [True, False])
def test_without_the_true_first_broadcast_nobody_is_asked_to_train_from_another(tmp_path, lost):
    payroll = Payroll(str(tmp_path / "r.db"), budget="70.00")
    played(referee(payroll=payroll), crowd())
    kept = payroll.models_of("federation")
    kept.forget_all_but(()) if lost else kept.keep("first", {"said": TRUTH})
    again = Referee(range(TASKS), says, CLASSES, payroll=Payroll(payroll.db, budget="70.00"))
    with pytest.warns(UserWarning, match="the first broadcast of federation 'federation' is not in"):
        again.broadcast({"said": np.where(np.arange(TASKS) < 9, 0, TRUTH)})
    assert again.newcomers(["new"]) == []


def test_models_that_cannot_be_kept_are_said_and_training_goes_on(tmp_path):
    (tmp_path / "r.db.models").write_text("no folder")
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00")
    with pytest.warns(UserWarning, match="a model cannot be kept there"):
        outcome, _ = played(referee(payroll=payroll), crowd())
    assert not outcome.problem and outcome.amounts["w0"] > 0


def test_a_round_is_shown_as_a_table_and_an_agent_as_what_it_was_told(tmp_path):
    db = str(tmp_path / "r.db")
    found = referee(payroll=Payroll(db, budget="100.00"), name="plants")
    outcome = found.settle_round(found.receive(crowd(), ["silent"]))
    found.pay_round({"said": TRUTH}, {"w1": {}, "w2": {"said": TRUTH}})

    def shown(*words, code=0):
        done = CliRunner().invoke(app, ["round", "show", *words, "--db", db], env={"COLUMNS": "300"})
        assert done.exit_code == code, done.output
        return done.stdout + done.stderr

    table = shown("plants-1")
    assert "plants-1, settled, budget 100.00 EUR" in table
    with Ledger.open(db).reading() as journal:
        bound = {e.said["agent"]: e.said["commitment"] for e in journal.entries("plants-1", "submit")}
    for agent, amount in outcome.amounts.items():
        line = next(line for line in table.splitlines() if f" {agent} " in line)
        assert major_text(amount, 2) in line and bound[agent][:12] in line
        score = outcome.scores[agent].score if agent != "echo" else None
        assert score is None or f"{score:.4f}" in line
    assert "no work of its own can be seen" in table and "near-duplicate of 'ring0', 'w2'" in table
    assert "dropped: no reply" in table and bound["w0"] not in table
    document = json.loads(shown("plants-1", "--json"))
    assert document == Rounds(Ledger.open(db)).show("plants-1") and document["format"] == "verax.round/1"
    mine = shown("plants-1", "--agent", "w0")
    assert str(outcome.notices["w0"]) in mine and bound["w0"] in mine and "signed by" in mine
    told = json.loads(shown("plants-1", "--agent", "w0", "--json"))
    assert told["notices"] == [outcome.notices["w0"].to_json()] and told["handed_in"][0]["commitment"] == bound["w0"]
    assert "the arrays' names are not the broadcast's" in shown("plants-2", "--agent", "w1")
    assert "agent 'eve' has handed in nothing" in shown("plants-1", "--agent", "eve", code=2)
    assert "no round is called 'plants-7'" in shown("plants-7", "--agent", "eve", code=2)


@pytest.mark.parametrize("paid", [True, False])
def test_a_held_round_is_settled_by_labels_of_the_tasks_it_asks_for_while_training_goes_on(paid, tmp_path):
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00") if paid else None
    found = referee(payroll=payroll, sides=True, kinship=None)
    outcome, _ = played(found, split_crowd())
    assert outcome.problem and len(found.held.sides.ask) == 10
    assert "the round is held" in outcome.problem
    found.broadcast({"said": TRUTH})
    settled = found.settle_held({n: int(TRUTH[n]) for n in found.held.sides.ask})
    assert not settled.problem and settled.server_round == 1 and found.held is None
    assert set(settled.unpaid) == {f"r{i}" for i in range(6)}
    if paid:
        assert all(settled.amounts[f"w{i}"] > 0 for i in range(4))
        assert Rounds(Ledger.open(payroll.db)).verify(settled.round) == []
    with pytest.raises(OptionError, match="no round is held"):
        found.settle_held({})


def test_labels_that_do_not_tell_leave_a_round_held():
    found = referee(sides=True, kinship=None)
    played(found, split_crowd())
    asked = found.held.sides.ask
    again = found.settle_held({asked[0]: int(TRUTH[asked[0]]), asked[1]: (int(TRUTH[asked[1]]) + 1) % len(CLASSES)})
    assert "favour neither" in again.problem and not {*found.held.sides.ask} & {*asked[:2]}


@pytest.mark.parametrize("paid", [True, False])
def test_newcomers_who_rename_labels_are_not_paid_beside_those_who_were(paid, tmp_path):
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00") if paid else None
    gold = {n: int(TRUTH[n]) for n in range(10)}
    found = referee(payroll=payroll, gold=gold, sides=True, kinship=None)
    played(found, split_crowd())
    found.broadcast({"said": TRUTH})
    late = replies(ann=noisy(0.3, 50), ren=(noisy(0.3, 51) + 1) % len(CLASSES), ron=(noisy(0.3, 52) + 1) % len(CLASSES))
    outcome = found.settle_newcomers(found.receive(late, ["ann", "ren", "ron"], alone=False))
    assert set(outcome.unpaid) == {"ren", "ron"} and "disagrees over what labels mean" in outcome.unpaid["ren"]
    assert [s.agent for s in outcome.scores] == ["ann"]
    if paid:
        assert outcome.amounts["ann"] > 0


def shuffled(model, pool):
    return np.random.default_rng().permutation(model["said"])


def in_place(model, pool):
    pool += 1
    return (model["said"] + pool.astype(int)) % len(CLASSES)


@pytest.mark.parametrize("predict", [shuffled, in_place])
def test_a_predict_that_answers_otherwise_when_it_is_asked_again_is_refused_before_anybody_trains(predict):
    """Else every client's agreement is chance, and all that work are paid nothing without a word."""
    model = {"said": np.arange(TASKS) % len(CLASSES)}
    with pytest.raises(InputError, match="other answers the second time; keep the pool in one order"):
        Referee(np.zeros(TASKS), predict, CLASSES).broadcast(model)


def test_what_predict_does_to_a_model_is_no_part_of_it():
    def spoiling(model, pool):
        said = model["said"].copy()
        model["said"][:] = 0
        return said

    found = Referee(range(TASKS), spoiling, CLASSES, kinship=None)
    outcome = found.pay_round({"said": np.arange(TASKS) % 3}, {n: {"said": np.arange(TASKS) % 2} for n in "ab"})
    assert outcome.scores["a"].score == pytest.approx(0.5, abs=0.01)
    assert found._broadcasts.now["said"].any()


@pytest.mark.parametrize(
    ("pool", "sentence"), [(iter([1, 2]), "which has no length"), ([], "the pool's length is 0"), ([1], "two at least")]
)
def test_a_pool_that_nobody_can_be_scored_on_is_refused(pool, sentence):
    with pytest.raises(OptionError, match=sentence):
        Referee(pool, shuffled, CLASSES)


def test_a_model_that_is_no_numbers_is_refused_before_anybody_trains():
    model = {"said": np.arange(TASKS) % 3, "phase": np.ones(2, np.complex64)}
    with pytest.raises(InputError, match="array 'phase' of the model is complex64; send real or whole numbers"):
        Referee(range(TASKS), lambda model, pool: model["said"], CLASSES).broadcast(model)


@pytest.mark.parametrize("blocked", ["pages", "pages/round-1.html"])
def test_a_page_that_cannot_be_written_is_said_and_training_goes_on(tmp_path, blocked):
    """Neither where the folder is a file, nor where the page is a folder."""
    if blocked == "pages":
        (tmp_path / blocked).write_text("")
    else:
        (tmp_path / blocked / "full").mkdir(parents=True)
    payroll = Payroll(str(tmp_path / "r.db"), budget="100.00")
    with pytest.warns(UserWarning, match="no page of round 1 can be written: .*pages"):
        outcome, _ = played(referee(payroll=payroll, pages=tmp_path / "pages"), crowd())
    assert outcome.amounts["w0"] > 0


@pytest.mark.parametrize(
    ("tasks", "classes", "sentence"),
    [
        (TASKS - 100, CLASSES, "1500 inputs"),
        (TASKS, tuple("wxyz"), "another pool"),
        (TASKS, (*CLASSES, "e"), "4 classes"),
    ],
)
def test_started_again_on_another_pool_nobody_is_scored_beside_what_was_said_of_the_old_one(
    tmp_path, tasks, classes, sentence
):
    db = str(tmp_path / "r.db")
    first, _ = played(referee(payroll=Payroll(db, budget="100.00")), crowd())

    def of_the_new(model, pool):
        return model["said"][: len(pool)]

    again = Referee(range(tasks), of_the_new, classes, payroll=Payroll(db, budget="100.00"))
    with pytest.warns(UserWarning, match=sentence):
        again.broadcast({"said": noisy(0.1, 5)})  # a checkpoint
    assert again.outcomes[0].amounts == first.amounts
    assert again.newcomers(["late"]) == []
    assert len(again.receive(crowd()).works) == len(crowd())
