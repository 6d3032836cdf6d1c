"""A PostgreSQL role that hands in and can do nothing else, whatever it tries; and how long anybody may wait."""

from __future__ import annotations

import dataclasses
import json

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

import verax
from postgres import shared
from verax.cli import app
from verax.errors import ConflictError, LedgerError
from verax.keys import Key
from verax.ledger import Ledger, Transfer
from verax.rounds import Admission, Rounds, Spec

TASKS = tuple(f"t{n}" for n in range(6))
SPEC = Spec("r", TASKS, ("no", "yes"), "100.00", min_tasks=2)
MARKET = dataclasses.replace(SPEC, round="m", kind="market", truth=(0, 1, 1, 0, 1, 0))
ROLE = "verax_submit"


def report(*labels) -> verax.Reports:
    return verax.Reports.of([list(labels)], tasks=TASKS, classes=SPEC.classes)


@pytest.fixture
def url():
    return shared().schema()


@pytest.fixture
def operator(url, tmp_path):
    ledger = Ledger.open(url, keys=tmp_path / "operator")
    rounds = Rounds(ledger)
    for spec in (SPEC, MARKET):
        rounds.open(spec)
        rounds.fund(spec.round)
    rounds.fund("m", 20_000, agent="ann")
    ledger.grant(ROLE)
    with shared().connect() as connection:
        connection.execute(f"ALTER ROLE {ROLE} LOGIN")
    yield rounds
    ledger.close()


def as_role(url: str) -> str:
    return url.replace("postgres@", f"{ROLE}@")


@pytest.fixture
def agent(operator, url, tmp_path):
    """The same database, as the role sees it."""
    ledger = Ledger.open(as_role(url), create=False, keys=tmp_path / "agent")
    yield Rounds(ledger)
    ledger.close()


def order(url: str, text: str, **values):
    engine = sa.create_engine(as_role(url), poolclass=sa.pool.NullPool)
    try:
        with engine.begin() as connection:
            connection.execute(sa.text(text), values)
    finally:
        engine.dispose()


def test_a_role_that_may_only_call_hands_in_and_the_operator_settles(operator, agent):
    keys = {name: Key.new() for name in ("ann", "Zoë 李 💶", "cy")}
    for n, (name, key) in enumerate(keys.items()):
        taken = agent.submit("r", name, report(0, 1, 0, 1, 1, n // 2), signer=key)
        assert agent.submit("r", name, report(0, 1, 0, 1, 1, n // 2), signer=key).entry == taken.entry
    with pytest.raises(ConflictError, match="under no checkpoint yet"):
        agent.receipt("r", "ann")
    agent.submit("m", "ann", report(0, 1, 1, 0, 1, 0), signer=keys["ann"])
    with pytest.raises(LedgerError, match="to spend"):
        agent.submit("m", "cy", report(0, 1, 1, 0, 1, 1), signer=keys["cy"])
    for round in ("r", "m"):
        assert operator.verify(round) == []
        operator.seal(round)
        operator.settle(round)
        assert operator.verify(round) == [] and operator.receipt(round, "ann").is_included
        assert agent.receipt(round, "ann").is_included and agent.verify(round) == []
    with pytest.raises(ConflictError, match="is settled and cannot submit"):
        agent.submit("r", "cy", report(1, 1, 1, 1, 1, 1), signer=keys["cy"])


def test_a_role_that_may_only_call_takes_no_step_of_the_operators(operator, agent, tmp_path):
    for name in ("ann", "bob"):
        agent.submit("r", name, report(0, 1, 0, 1, 1, 0), signer=Key.new())
    stolen = Rounds(agent.ledger)
    stolen.ledger.keys = operator.ledger.keys  # even with the operator's own files
    before = operator.ledger.head()
    for step in (lambda: stolen.open(dataclasses.replace(SPEC, round="x")), lambda: stolen.fund("r", 5, agent="ann"),
                 lambda: stolen.seal("r"), lambda: stolen.void("r")):  # fmt: skip
        with pytest.raises(LedgerError, match="this role can only"):
            step()
    with agent.ledger.writing() as journal, pytest.raises(sa.exc.DBAPIError, match="can only hold what an agent has"):
        journal.hold(Transfer("m:stake:1", "house", "escrow:m", 5, "stake", "m", "EUR"))
    assert operator.ledger.head() == before


_COLUMNS = "kind, round, debit, credit, amount, settles, body"
_MINTED = "'posted', 'r', 'house', 'agent:eve', 1000000, NULL, '{}'"


@pytest.mark.parametrize("text", [
    f"INSERT INTO journal (seq, id, {_COLUMNS}, hash) VALUES (99, 'x', {_MINTED}, 'h')",
    "UPDATE journal SET amount = 9", "DELETE FROM journal", "TRUNCATE journal", "DROP TABLE journal CASCADE",
    "ALTER TABLE journal DISABLE TRIGGER ALL", "DROP TRIGGER journal_no_stranger ON journal",
    "INSERT INTO tree VALUES (99, '')", "INSERT INTO signatures VALUES ('line', 1, 'key')", "DELETE FROM signatures",
    "CREATE OR REPLACE FUNCTION journal_lock() RETURNS void LANGUAGE sql AS ''",
])  # fmt: skip
def test_a_role_cannot_write_past_the_functions_even_where_it_was_granted_to(operator, url, text):
    name = url.split("%3D")[1]
    with shared().connect() as connection:
        connection.execute(f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA {name} TO {ROLE}")
    before = operator.ledger.head()
    with pytest.raises(sa.exc.DBAPIError, match=r"only its owner writes|permission denied|must be owner"):
        order(url, text)
    assert operator.ledger.head() == before and operator.ledger.verify(before) == []


@pytest.mark.parametrize("call", [
    ("r:pay:eve", "posted", "r", "house", "agent:eve", 5, None, "{}", "EUR"),
    ("m:stake:1", "pending", "m", "house", "escrow:m", 5, None, "{}", "EUR"),
    ("m:stake:1", "pending", "m", "agent:ann", "agent:eve", 5, None, "{}", "EUR"),
    ("m:stake:1", "pending", "m", "agent:ann", "escrow:r", 5, None, "{}", "EUR"),
    ("m:stake:1", "pending", "m", "agent:ann", "escrow:m", 20_001, None, "{}", "EUR"),
    ("m:stake:1", "pending", "m", "agent:ann", "escrow:m", 5, None, "{}", "USD"),
    ("m:stake:1", "pending", "m", "agent:ann", "escrow:m", -5, None, "{}", "EUR"),
    ("m:1", "void", "m", "agent:ann", "escrow:m", 5, "m:stake:1", "{}", "EUR"),
    ("r:seal", "seal", "r", None, None, None, None, "{}", None),
    ("r:x", "submit", "r", "house", "agent:eve", 5, None, "{}", "EUR"),
    ("q:submit:1", "submit", "q", None, None, None, None, "{}", None),
    ("r2:submit:1", "submit", "r", None, None, None, None, "{}", None),
    (None, "submit", "r", None, None, None, None, "{}", None),
    ("r:open", "submit", "r", None, None, None, None, "{}", None),
])  # fmt: skip
def test_the_function_takes_nothing_but_what_handing_in_takes(operator, url, call):
    before = operator.ledger.head()
    with pytest.raises(sa.exc.DBAPIError, match=r"this role can only|journal_id_key|two_sides"):
        order(
            url,
            "SELECT journal_submit(:a, :b, :c, :d, :e, :f, :g, :h, :i)",
            **dict(zip("abcdefghi", call, strict=True)),
        )
    assert operator.ledger.head() == before


def test_the_function_takes_nothing_once_a_round_is_sealed_or_over(operator, agent, url):
    for name in ("ann", "bob"):
        agent.submit("r", name, report(0, 1, 0, 1, 1, 0), signer=Key.new())
    for kind, step in (("reveal", None), ("submit", operator.seal), ("reveal", operator.settle), ("submit", None)):
        if step is not None:
            step("r")
        before = operator.ledger.head()
        call = f"SELECT journal_submit('r:{kind}:x', '{kind}', 'r', NULL, NULL, NULL, NULL, '{{}}', NULL)"
        with pytest.raises(sa.exc.DBAPIError, match="can only hand in what the round takes now"):
            order(url, call)
        assert operator.ledger.head() == before
    operator.void("m")
    with pytest.raises(sa.exc.DBAPIError, match="can only hand in what the round takes now"):
        order(url, "SELECT journal_submit('m:s:1','pending','m','agent:ann','escrow:m',5,NULL,'{}','EUR')")


def test_a_table_of_the_callers_own_is_not_taken_for_the_journal(operator, url):
    """A function of the owner's that looked into the caller's temporary tables first would believe the caller."""
    before = operator.ledger.head()
    engine = sa.create_engine(as_role(url), poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TEMP TABLE journal AS SELECT * FROM journal")
        connection.exec_driver_sql("UPDATE pg_temp.journal SET amount = 999999999 WHERE credit = 'agent:ann'")
        call = "SELECT journal_submit('m:stake:1', 'pending', 'm', 'agent:ann', 'escrow:m', 30000, NULL, '{}', 'EUR')"
        with pytest.raises(sa.exc.DBAPIError, match="can only hold what an agent has"):
            connection.exec_driver_sql(call)
    engine.dispose()
    assert operator.ledger.head() == before


def test_nobody_else_may_call(operator, url):
    with shared().connect() as connection:
        connection.execute("DROP ROLE IF EXISTS verax_stranger")
        connection.execute("CREATE ROLE verax_stranger LOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA {url.split('%3D')[1]} TO verax_stranger")
    engine = sa.create_engine(url.replace("postgres@", "verax_stranger@"), poolclass=sa.pool.NullPool)
    for call in ("SELECT journal_lock()", "SELECT journal_submit('r:a','submit','r',NULL,NULL,NULL,NULL,'{}',NULL)",
                 "SELECT * FROM journal"):  # fmt: skip
        with pytest.raises(sa.exc.DBAPIError, match="permission denied"), engine.begin() as connection:
            connection.exec_driver_sql(call)
    engine.dispose()


def test_the_database_writes_every_text_as_python_does(operator):
    texts = [
        "",
        "plain",
        'a"b\\c/d',
        "\t\n\r\x08\x0c\x01\x1f\x7f",
        "é€李💶",
        "\u2028\ufeff\uffff\U0010ffff",
        "%s %(x)s $1 ''",
    ]
    texts += ["%s %(x)s $1 ''", "".join(map(chr, range(1, 0x300))), "x" * 10_000 + "é"]
    with operator.ledger.engine.connect() as connection:
        for text in texts:
            assert connection.scalar(sa.text("SELECT journal_quoted(:t)"), {"t": text}) == json.dumps(text)
        assert connection.scalar(sa.text("SELECT journal_quoted(NULL)")) == "null"


def test_who_waits_too_long_for_the_journal_is_told_so_and_nothing_is_recorded(url, monkeypatch):
    monkeypatch.setattr("verax.roles.LOCK_MS", 200)
    ledger = Ledger.open(url)
    other = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with other.begin() as connection:
        connection.exec_driver_sql("LOCK TABLE journal IN EXCLUSIVE MODE")
        with pytest.raises(LedgerError, match="lock timeout"):
            Rounds(ledger).open(SPEC)
    assert ledger.head().count == 0 and Rounds(ledger).open(SPEC).seq == 1
    other.dispose(), ledger.close()


def test_what_runs_too_long_is_stopped(url, monkeypatch):
    monkeypatch.setattr("verax.roles.STATEMENT_MS", 200)
    ledger = Ledger.open(url)
    with pytest.raises(LedgerError, match="statement timeout"), ledger.reading() as journal:
        journal._connection.exec_driver_sql("SELECT pg_sleep(5)")
    assert ledger.verify() == []
    ledger.close()


def test_an_older_database_is_brought_up_to_date_and_guarded(url):
    ledger = Ledger.open(url)
    Rounds(ledger).open(SPEC)
    with ledger.engine.begin() as connection:
        for text in ("DROP TABLE tree, signatures", "DROP TRIGGER journal_no_stranger ON journal",
                     "DROP FUNCTION journal_lock, journal_submit"):  # fmt: skip
            connection.exec_driver_sql(text)
    again = Ledger.open(url)
    again.grant(ROLE)
    assert Rounds(again).verify("r") == [] and again.checkpoint().size == 1
    with again.engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER journal_no_stranger ON journal")
    with pytest.raises(LedgerError, match="has lost its guards journal_no_stranger"):
        Ledger.open(url)
    ledger.close(), again.close()


def test_the_command_lets_a_role_hand_in(url, tmp_path, monkeypatch):
    monkeypatch.setenv("VERAX_DB", url)
    Ledger.open(url).close()
    done = CliRunner().invoke(app, ["round", "grant", ROLE])
    assert done.exit_code == 0 and ROLE in done.stdout, done.output
    refused = CliRunner().invoke(app, ["round", "grant", ROLE, "--db", str(tmp_path / "none.db")])
    assert refused.exit_code == 2
    Ledger.open(str(tmp_path / "verax.db")).close()
    refused = CliRunner().invoke(app, ["round", "grant", ROLE, "--db", str(tmp_path / "verax.db")])
    assert refused.exit_code == 2 and "has no roles" in refused.stderr


def test_a_role_that_may_only_call_is_admitted_commits_and_shows(operator, agent):
    """All that handing in may take: an invitation used, a deposit held, and a report shown once the round is sealed."""
    spec = dataclasses.replace(SPEC, round="c", invited=True, sealing="commit", reveal_hours=1.0, deposit="1.00")
    operator.open(spec), operator.fund("c")
    keys = {name: Key.new() for name in ("ann", "bob")}
    for (name, key), token in zip(keys.items(), operator.invite("c", 2, organisation=None), strict=True):
        operator.fund("c", 100, agent=name)
        agent.admit(Admission.of(agent.public_record("c"), name, key, token))
        agent.submit("c", name, report(0, 1, 1, 0, 1, len(name) % 2), signer=key)
    operator.seal("c")
    for name, key in keys.items():
        agent.reveal("c", name, report(0, 1, 1, 0, 1, len(name) % 2), signer=key)
    assert {*operator.settle("c").amounts} == {*keys} and operator.verify("c") == []
