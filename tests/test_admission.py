"""Who may take part: invitations that cannot be guessed, copied or used twice, quotas, and names that look alike."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from postgres import shared
from test_trust import SPEC, TASKS, command, everything, report, rewritten, with_body
from verax.admission import Admission, skeleton
from verax.errors import ConflictError, InputError
from verax.keys import Key
from verax.ledger import Ledger
from verax.rounds import Rounds, Submission

INVITED = dataclasses.replace(SPEC, invited=True)
ANSWERS = (0, 1, 0, 1, 1, 0)


@pytest.fixture
def rounds():
    ledger = Ledger.open("sqlite://")
    yield Rounds(ledger)
    ledger.close()


@pytest.fixture
def stored(tmp_path):
    ledger = Ledger.open(str(tmp_path / "verax.db"))
    yield Rounds(ledger)
    ledger.close()


def using(rounds, agent, key, token, round="r"):
    return Admission.of(rounds.public_record(round), agent, key, token)


def test_an_invitation_admits_one_key_under_one_name_for_good(rounds):
    ann, eve = Key.new(), Key.new()
    rounds.open(INVITED)
    [token] = rounds.invite("r")
    with pytest.raises(ConflictError, match="'ann' is not admitted to round 'r'; use an invitation"):
        rounds.submit("r", "ann", report(ANSWERS), signer=ann)
    admitted = rounds.admit(using(rounds, "ann", ann, token))
    before = rounds.ledger.head()
    assert rounds.admit(using(rounds, "ann", ann, token)) == admitted and rounds.ledger.head() == before
    for agent, key in (("ann", eve), ("eve", ann), ("eve", eve)):
        with pytest.raises(ConflictError, match="this invitation has been used"):
            rounds.admit(using(rounds, agent, key, token))
    rounds.submit("r", "ann", report(ANSWERS), signer=ann)
    with pytest.raises(ConflictError, match="'ann' is another key's"):
        rounds.submit("r", "ann", report(ANSWERS), signer=eve)


def test_an_invitation_is_for_one_round_and_cannot_be_guessed(rounds):
    ann = Key.new()
    rounds.open(INVITED), rounds.open(dataclasses.replace(INVITED, round="r2"))
    rounds.open(dataclasses.replace(SPEC, round="open"))
    [token] = rounds.invite("r2")
    for guess in (token, token[:-1], "", "a" * 43):
        with pytest.raises(ConflictError, match="this is no invitation to round 'r'"):
            rounds.admit(using(rounds, "ann", ann, guess))
    with pytest.raises(ConflictError, match="asks for no invitation"):
        rounds.invite("open")
    assert len({*rounds.invite("r", 50)}) == 50


def test_whoever_listens_can_use_an_invitation_for_nothing(rounds):
    """What is sent admits one key; with the invitation's public half, the proof or both eve gets no other in."""
    ann, eve = Key.new(), Key.new()
    rounds.open(INVITED)
    sent = using(rounds, "ann", ann, rounds.invite("r")[0])
    for change in ({"agent": "eve"}, {"key": eve.public}, {"key": eve.public, "signature": eve.sign("x")},
                   {"round": "r", "proof": sent.signature}, {"signature": sent.proof}):  # fmt: skip
        with pytest.raises(ConflictError, match="this is no invitation"):
            rounds.admit(dataclasses.replace(sent, **change))
    assert rounds.admit(sent).key == ann.public


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_of_many_who_use_one_invitation_at_once_one_is_admitted(database, tmp_path):
    url = str(tmp_path / "verax.db") if database == "sqlite" else shared().schema()
    ring = tmp_path / "keys"
    stored = Rounds(Ledger.open(url, keys=ring))
    stored.open(INVITED)
    [token] = stored.invite("r")

    def race(n):
        mine = Rounds(Ledger.open(url, keys=ring))
        try:
            return mine.admit(using(mine, f"a{n}", Key.new(), token)).agent
        except ConflictError:
            return None
        finally:
            mine.ledger.close()

    with ThreadPoolExecutor(12) as pool:
        won = [agent for agent in pool.map(race, range(12)) if agent]
    assert len(won) == 1 and stored.verify("r") == []
    stored.ledger.close()


def test_a_token_is_kept_nowhere_and_only_the_operator_makes_one(stored, tmp_path):
    stored.open(INVITED)
    [token] = stored.invite("r")
    stored.admit(using(stored, "ann", Key.new(), token))
    for path in (p for p in tmp_path.rglob("*") if p.is_file()):
        assert token.encode() not in path.read_bytes(), path
    stranger = Rounds(Ledger.open(str(tmp_path / "verax.db"), keys=tmp_path / "other"))
    with pytest.raises(ConflictError, match="another operator"):
        stranger.invite("r")
    stranger.ledger.close()


def test_a_list_and_invitations_go_together(rounds):
    ann, bob = Key.new(), Key.new()
    rounds.open(dataclasses.replace(INVITED, admitted={"ann": ann.public}))
    [token] = rounds.invite("r")
    with pytest.raises(ConflictError, match="'ann' is on the list"):
        rounds.admit(using(rounds, "ann", bob, token))
    rounds.admit(using(rounds, "bob", bob, token))
    for agent, key in (("ann", ann), ("bob", bob)):
        rounds.submit("r", agent, report(ANSWERS), signer=key)
    assert rounds.verify("r") == []


def test_one_organisation_has_one_name_however_it_is_spelled(rounds):
    ann, bob, cy = Key.new(), Key.new(), Key.new()
    rounds.open(dataclasses.replace(INVITED, admitted={"ann": ann.public}, organisations={"ann": "Acme"}))
    for organisation in ("Acme", "ACME", "Ac\u200bme"):
        [token] = rounds.invite("r", organisation=organisation)
        with pytest.raises(ConflictError, match="has 1 of 1 names in round 'r'"):
            rounds.admit(using(rounds, "bob", bob, token))
    first, second = rounds.invite("r", 2, organisation="Zeta")
    rounds.admit(using(rounds, "bob", bob, first))
    with pytest.raises(ConflictError, match="'Zeta' has 1 of 1 names"):
        rounds.admit(using(rounds, "cy", cy, second))
    assert rounds.verify("r") == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"admitted": {}}, "the list of agents is empty"),
        ({"admitted": {"Ann": "00", "ANN": "11"}}, "'Ann' and 'ANN' are written alike"),
        ({"quota": 0}, "quota is 0"),
        ({"admitted": {"ann": "00"}}, "'ann' alone is listed, and there is no truth"),
        ({"per_organisation": 0}, "per_organisation is 0"),
        ({"organisations": {"ann": "Acme"}}, "an organisation is given for 'ann', who is not listed"),
    ],
)
def test_terms_that_nobody_could_meet_are_refused(rounds, change, says):
    keys = change.get("admitted") and {name: Key.new().public for name in change["admitted"]}
    with pytest.raises(InputError, match=says):
        rounds.open(dataclasses.replace(SPEC, **change | ({"admitted": keys} if keys else {})))


def test_a_list_of_one_organisation_is_as_long_as_it_may_have_names(rounds):
    listed = {name: Key.new().public for name in ("ann", "bob")}
    spec = dataclasses.replace(SPEC, admitted=listed, organisations={"ann": "Acme", "bob": "acme"})
    with pytest.raises(InputError, match="'ann' and 'bob' are of one organisation, which may have 1"):
        rounds.open(spec)
    rounds.open(dataclasses.replace(spec, per_organisation=2))


def test_a_quota_counts_what_an_agent_hands_in(rounds):
    rounds.open(dataclasses.replace(SPEC, quota=2))
    first = rounds.submit("r", "ann", report(ANSWERS), key="1")
    rounds.submit("r", "ann", report((1, 1, 0, 1, 1, 0)), key="2")
    with pytest.raises(ConflictError, match="'ann' has handed in 2 times, which is all"):
        rounds.submit("r", "ann", report((1, 1, 1, 1, 1, 0)), key="3")
    assert rounds.submit("r", "ann", report(ANSWERS), key="1") == first  # a retry is no more than it was
    rounds.submit("r", "bob", report(ANSWERS))


# Unicode's own examples of TR39, and pairs from its table: the package's data against what the standard says
@pytest.mark.parametrize(
    "pair",
    [("paypal", "раураӏ"), ("scope", "ѕсоре"), ("modern", "rnodern"), ("Ann", "Αnn"), ("bob1", "bobI"),
     ("O0", "00"), ("𝐚nn", "ann"), ("Circle", "Сіrсӏе")],
)  # fmt: skip
def test_names_that_look_alike_have_one_skeleton(pair):
    assert skeleton(pair[0]) == skeleton(pair[1])


@pytest.mark.parametrize("pair", [("ann", "anna"), ("bob", "rob"), ("Zoë", "Zoe"), ("x", "y"), ("a1", "a2")])
def test_names_that_differ_to_the_eye_have_two(pair):
    assert skeleton(pair[0]) != skeleton(pair[1])


def test_a_name_that_looks_like_another_is_taken_with_a_warning(rounds):
    def taken_elsewhere(name):
        content = {"labels": list(ANSWERS)}
        return rounds.take(Submission.of(rounds.public_record("r"), name, 1, content, Key.new()))

    rounds.open(SPEC)
    assert rounds.submit("r", "paypal", report(ANSWERS)).warnings == ()
    [warning] = rounds.submit("r", "раураl", report((0, 1, 0, 1, 0, 0)), key="1").warnings
    assert "looks like 'paypal'" in warning and "\\u0440" in warning
    assert rounds.submit("r", "раураl", report((0, 1, 0, 1, 0, 0)), key="1").warnings == (warning,)
    with pytest.raises(InputError, match="unprintable characters"):
        rounds.submit("r", "\u200b", report(ANSWERS))
    for way in (lambda: rounds.submit("r", "pay\u200bpal", report(ANSWERS)), lambda: taken_elsewhere("pay\u200bpal")):
        with pytest.raises((InputError, ConflictError), match=r"unprintable characters|is written like 'paypal'"):
            way()


@pytest.mark.parametrize("name", ["", " ann", "ann\n", "a\u202enn", "\x00", "zoe\u0308"])
def test_a_name_that_no_report_can_have_is_not_taken_from_elsewhere_either(rounds, name):
    """It would be found at settlement only, and keep everybody else from being paid."""
    rounds.open(SPEC)
    made = Submission.of(rounds.public_record("r"), name, 1, {"labels": list(ANSWERS)}, Key.new())
    with pytest.raises(InputError, match="agent name"):
        rounds.take(made)
    assert rounds.show("r")["submissions"] == []


def stranger_instead(entries):
    """The operator puts another key in the place of who was admitted, with hashes that all fit."""
    eve = Key.new()
    return [with_body(e, key=eve.public) if "proof" in e.said else e for e in entries]


def test_who_was_admitted_by_nobody_shows_when_the_round_is_verified(stored):
    stored.open(INVITED)
    for name, token in zip(("ann", "bob"), stored.invite("r", 2), strict=True):
        key = Key.new()
        stored.admit(using(stored, name, key, token))
        stored.submit("r", name, report(ANSWERS), signer=key)
    assert rewritten(stored, lambda entries: entries) == []
    assert "without an invitation" in rewritten(stored, stranger_instead)[0]
    forged = rewritten(stored, lambda es: [with_body(e, organisation="X") if e.kind == "invite" else e for e in es])
    assert "is not signed by the operator" in forged[0]
    dropped = rewritten(stored, lambda es: [e for e in es if "proof" not in (e.said if e.kind == "admit" else {})])
    assert "is of nobody who was admitted" in dropped[0]
    assert len(everything(stored)) > 5


@pytest.mark.parametrize(
    ("terms", "agent", "by", "says"),
    [
        ({"admitted": True}, "eve", "eve", "'eve', is of nobody who was admitted"),
        ({}, "carl", "ann", "'carl', is by the key of 'ann'"),
        ({}, "ANN", "eve", "'ANN', is of a name written like 'ann'"),
        ({"quota": 1}, "ann", "ann", "'ann', is number 2, of the 1"),
    ],
)
def test_who_the_operator_lets_in_past_its_own_terms_shows_when_the_round_is_verified(rounds, terms, agent, by, says):
    keys = {name: Key.new() for name in ("ann", "bob", "eve")}
    listed = {name: keys[name].public for name in ("ann", "bob")} if terms.pop("admitted", False) else None
    rounds.open(dataclasses.replace(SPEC, admitted=listed, **terms))
    rounds.fund("r")
    for name in ("ann", "bob"):
        rounds.submit("r", name, report(ANSWERS), signer=keys[name])
    number = 2 if agent == "ann" else 1
    made = Submission.of(rounds.public_record("r"), agent, number, {"labels": [1, *ANSWERS[1:]]}, keys[by])
    with rounds.ledger.writing() as journal:  # whoever has the database writes what it likes
        journal.record(f"r:submit:{agent}:{made.commitment}:0", "submit", "r", made.to_json())
    rounds.seal("r")
    rounds.settle("r")
    [found] = rounds.verify("r")
    assert says in found


# default-ignorable letters of Unicode 15 that are no format characters, and the blank of Braille
@pytest.mark.parametrize("unseen", ["️", "͏", "ㅤ", "⠀", "ᅟ", "᠋", "󠄁", "ﾠ"])
def test_a_name_with_something_in_it_that_is_not_seen_is_the_same_name(rounds, unseen):
    rounds.open(SPEC)
    rounds.submit("r", "ann", report(ANSWERS), signer=Key.new())
    with pytest.raises(ConflictError, match="is written like 'ann'"):
        rounds.submit("r", f"an{unseen}n", report(ANSWERS), signer=Key.new())


def test_invitations_by_command(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tasks.csv").write_text("task\n" + "".join(f"{t}\n" for t in TASKS))
    Path("ann.csv").write_text("task,label\n" + "".join(f"{t},no\n" for t in TASKS))
    asked = "--tasks", "tasks.csv", "--classes", "no,yes", "--budget", "10.00", "--invitation", "--quota", "3"
    assert command("round", "open", "r", *asked).exit_code == 0
    tokens = json.loads(command("round", "invite", "r", "--count", "2", "--organisation", "Acme").stdout)["invitations"]
    for name in ("ann", "аnn"):
        command("key", "new", f"{name}.pem")
    hand_in = "round", "submit", "r", "ann.csv", "--agent", "ann", "--sign", "ann.pem"
    assert "use an invitation first: verax round admit" in command(*hand_in).stderr
    admitted = command("round", "admit", "r", "--agent", "ann", "--sign", "ann.pem", "--invitation", tokens[0])
    assert admitted.exit_code == 0 and json.loads(admitted.stdout)["agent"] == "ann"
    assert command(*hand_in).exit_code == 0
    second = command("round", "admit", "r", "--agent", "аnn", "--sign", "аnn.pem", "--invitation", tokens[1])
    assert second.exit_code == 2 and "'Acme' has 1 of 1 names" in second.stderr
    [token] = json.loads(command("round", "invite", "r").stdout)["invitations"]
    monkeypatch.setenv("VERAX_INVITATION", token)
    third = command("round", "admit", "r", "--agent", "аnn", "--sign", "аnn.pem")
    assert third.exit_code == 0 and "warning: the name 'аnn' looks like 'ann'" in third.stderr


def test_a_list_by_file_names_organisations_and_warns_of_names_that_look_alike(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tasks.csv").write_text("task\n" + "".join(f"{t}\n" for t in TASKS))
    rows = [f"{name},{Key.new().public},{of}\n" for name, of in (("ann", "Acme"), ("аnn", "Zeta"), ("cy", ""))]
    Path("agents.csv").write_text("agent,key,organisation\n" + "".join(rows))
    asked = "--tasks", "tasks.csv", "--classes", "no,yes", "--budget", "10.00", "--agents", "agents.csv"
    opened = command("round", "open", "r", *asked)
    assert opened.exit_code == 0 and "warning: the name 'аnn' looks like 'ann'" in opened.stderr
    assert "fewer than 30 tasks are not paid, and there are 6: nobody will be" in opened.stderr
    shown = json.loads(command("round", "show", "r", "--json").stdout)["spec"]
    assert shown["organisations"] == {"ann": "Acme", "аnn": "Zeta"}
