"""The ledger on SQLite and on PostgreSQL: what it keeps, what it refuses, what it finds, and what an outage leaves."""

import json
import multiprocessing
import random
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

import verax
from postgres import shared
from verax.database import guard_statements, journal_table
from verax.errors import ConflictError, InputError, LedgerError
from verax.folding import journal_problems
from verax.ledger import GENESIS, Entry, Head, Journal, Ledger, Transfer
from verax.recorded import secret_name
from verax.rounds import Rounds, Spec, Submission

FIELDS = ("seq", "id", "kind", "round", "debit", "credit", "amount", "settles", "body", "hash", "at", "currency")
MANY = 10_000
_UNSAID = {"at": None, "currency": None}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of its own."""
    return f"sqlite:///{tmp_path / 'ledger.db'}" if request.param == "sqlite" else shared().schema()


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    opened = Ledger.open(url)
    yield opened
    opened.close()


@contextmanager
def raw(url: str, *, foreign_keys: bool = False) -> Iterator[sa.Connection]:
    """The database past the ledger; committed at the end."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    try:
        with engine.begin() as connection:
            if foreign_keys and connection.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA foreign_keys=ON")
            yield connection
    finally:
        engine.dispose()


def move(ledger: Ledger, id: str, debit: str, credit: str, amount: Any = 100) -> Entry:
    with ledger.writing() as journal:
        return journal.transfer(Transfer(id, debit, credit, amount, "test", "r1"))


def hold(ledger: Ledger, id: str, debit: str, credit: str, amount: int = 100) -> Entry:
    with ledger.writing() as journal:
        return journal.hold(Transfer(id, debit, credit, amount, "test", "r1"))


def post(ledger: Ledger, id: str, pending: str) -> Entry:
    with ledger.writing() as journal:
        return journal.post(id, pending)


def void(ledger: Ledger, id: str, pending: str) -> Entry:
    with ledger.writing() as journal:
        return journal.void(id, pending)


def available(ledger: Ledger, account: str) -> int:
    with ledger.reading() as journal:
        return journal.available(account)


# transfers


@pytest.mark.parametrize("seed", range(3))
def test_within_a_transaction_an_account_has_what_the_next_one_finds(ledger: Ledger, seed: int) -> None:
    drawn, open_, accounts = random.Random(seed), list[str](), ["house", "escrow:r1", "agent:ann", "agent:bob"]
    for part in range(6):
        with ledger.writing() as journal:
            for account in drawn.sample(accounts, 2):  # some it has looked at before, some not
                journal.available(account)
            for n in range(20):
                id, what = f"{part}:{n}", drawn.choice(["transfer", "hold", "post", "void"])
                debit, credit = drawn.sample(accounts, 2)
                if what in ("post", "void") and open_:
                    getattr(journal, what)(id, open_.pop(drawn.randrange(len(open_))))
                elif debit == "house" or journal.available(debit) > 10:
                    amount = drawn.randint(1, 10) if debit != "house" else 30
                    moved = journal.hold if what == "hold" else journal.transfer
                    moved(Transfer(id, debit, credit, amount, "test", "r1"))
                    open_ += [id] if what == "hold" else []
            known, end = {account: journal.available(account) for account in accounts}, journal.head()
        assert known == {account: available(ledger, account) for account in accounts}
        assert end == ledger.head()
    assert ledger.verify() == []


def test_ids_that_begin_alike_are_counted_to_the_letter(ledger: Ledger) -> None:
    names = ["ann", "Ann", "anna", "an", "ann%3A", "ann_", "\u00e4nn", "zoe"]
    with ledger.writing() as journal:
        for name in names:
            journal.record(f"r:submit:{name}:1", "submit", "r", {"of": name})
        journal.record("r:submit:ann:2", "other", "r", {})
        journal.record("r:submit:ann:3", "submit", "another", {})
        for name in names:
            assert journal.count("r", "submit", f"r:submit:{name}:") == 1
            last = journal.last("r", "submit", f"r:submit:{name}:")
            assert last is not None and last.said == {"of": name}
        assert journal.count("r", "submit", "r:submit:") == journal.count("r", "submit") == len(names)


def steps_of_a_submission(ledger: Ledger, others: int) -> int:
    """How many steps SQLite takes for whom it has not seen, after so many others: the same on every machine."""
    rounds = Rounds(ledger)
    name = f"beside {others}"
    rounds.open(asked := replace(spec(), round=name))
    with ledger.writing() as journal:
        for n in range(others):
            journal.record(f"{name}:submit:agent{n}:1", "submit", name, {"agent": f"agent{n}", "commitment": str(n)})
    taken = [0]

    def count() -> int:
        taken[0] += 1
        return 0

    engine = ledger.engine

    def watch(dbapi: Any, *_: Any) -> None:
        dbapi.set_progress_handler(count, 1)

    sa.event.listen(engine, "connect", watch)
    rounds.submit(name, "new", report("new", asked))
    sa.event.remove(engine, "connect", watch)
    return taken[0]


def test_a_submission_costs_the_same_after_very_many_others(tmp_path: Path) -> None:
    with closing(Ledger.open(str(tmp_path / "ledger.db"))) as ledger:
        few, many = steps_of_a_submission(ledger, 20), steps_of_a_submission(ledger, 2_000)
    assert many < 1.5 * few


def test_postgres_finds_an_id_by_how_it_begins() -> None:
    with closing(Ledger.open(shared().schema())) as ledger, ledger.reading() as journal:
        journal._connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        asked = sa.select(journal_table.c.seq).where(*journal._where("r", "submit", "r:submit:ann:"))
        text = asked.compile(journal._connection, compile_kwargs={"literal_binds": True})
        plan = journal._connection.exec_driver_sql(f"EXPLAIN {text}".replace("%", "%%")).scalars().all()
        assert any("journal_ids" in line for line in plan), plan


def test_a_transfer_takes_from_one_account_what_it_gives_another(ledger: Ledger) -> None:
    move(ledger, "t1", "house", "escrow:r1", 500)
    move(ledger, "t2", "escrow:r1", "agent:ann", 200)
    assert ledger.balances() == {"agent:ann": 200, "escrow:r1": 300, "house": -500}
    assert ledger.verify() == []


@pytest.mark.parametrize("amount", [0, -1, 1.0, "5", None, True, Decimal(5), np.int64(5), 2**63])
def test_an_amount_is_a_whole_number_above_0_that_the_database_can_hold(ledger: Ledger, amount: Any) -> None:
    with pytest.raises(LedgerError, match="two accounts, above 0"):
        move(ledger, "t1", "house", "agent:ann", amount)
    assert ledger.head() == Head(0, GENESIS)


@pytest.mark.parametrize(("debit", "credit"), [("house", "house"), ("", "agent:ann"), ("house", "")])
def test_a_transfer_has_two_different_accounts(ledger: Ledger, debit: str, credit: str) -> None:
    with pytest.raises(LedgerError, match="two accounts"):
        move(ledger, "t1", debit, credit)
    assert ledger.head().count == 0


def test_the_largest_amount_is_kept_exactly(ledger: Ledger) -> None:
    move(ledger, "t1", "house", "agent:ann", 2**63 - 1)
    assert ledger.balances()["agent:ann"] == available(ledger, "agent:ann") == 2**63 - 1
    assert ledger.verify() == []


@pytest.mark.parametrize(
    "sides",
    [
        {"debit": "house", "credit": None, "amount": 5},
        {"debit": None, "credit": "agent:ann", "amount": 5},
        {"debit": "house", "credit": "agent:ann", "amount": None},
        {"debit": "house", "credit": "agent:ann", "amount": 0},
        {"debit": "house", "credit": "agent:ann", "amount": -5},
        {"debit": "house", "credit": "house", "amount": 5},
        {"debit": "house", "credit": "agent:ann", "amount": 5, "settles": "nothing that was recorded"},
    ],
)
def test_the_database_itself_refuses_a_row_that_is_no_transfer(ledger: Ledger, url: str, sides: dict[str, Any]) -> None:
    row = {"seq": 1, "id": "t1", "kind": "posted", "round": "r1", "settles": None, "body": "{}", "hash": "h"} | sides
    with pytest.raises(sa.exc.IntegrityError), raw(url, foreign_keys=True) as connection:
        insert(connection, [row])
    assert ledger.head().count == 0


def test_an_entry_can_be_neither_changed_nor_removed_nor_replaced(ledger: Ledger, url: str) -> None:
    for n in range(3):
        move(ledger, f"t{n}", "house", "agent:ann")
    columns = "seq, id, kind, round, debit, credit, amount, settles, body, hash"
    forged = "'posted', 'r1', 'house', 'agent:eve', 9, NULL, '{}'"
    orders = ["UPDATE journal SET amount = amount + 1", "UPDATE journal SET body = '{}' WHERE seq = 2"]
    orders += ["DELETE FROM journal", "DELETE FROM journal WHERE seq = 3"]
    again = f"INSERT INTO journal ({columns}) VALUES (2, 'x', {forged}, 'h')"
    orders += [f"{again} ON CONFLICT (seq) DO UPDATE SET id = 'x'"]
    if url.startswith("postgresql"):
        orders += ["TRUNCATE journal", "TRUNCATE journal CASCADE"]
    else:
        orders += [
            f"INSERT OR REPLACE INTO journal ({columns}) VALUES (2, 'x', {forged}, 'h')",
            f"REPLACE INTO journal ({columns}) VALUES (9, 't1', {forged}, 'h')",
            f"REPLACE INTO journal ({columns}) SELECT 9, 'x', {forged}, hash FROM journal WHERE seq = 2",
            "UPDATE OR REPLACE journal SET seq = 1 WHERE seq = 2",
        ]
    before = ledger.head()
    for order in orders:
        with pytest.raises(sa.exc.DBAPIError, match="append-only"), raw(url) as connection:
            connection.exec_driver_sql(order)
        assert ledger.verify(before) == [] and ledger.head() == before, order


def test_the_same_transfer_again_is_the_same_entry(ledger: Ledger) -> None:
    first = move(ledger, "t1", "house", "agent:ann")
    move(ledger, "t2", "house", "agent:bob")
    assert move(ledger, "t1", "house", "agent:ann") == first
    assert ledger.head().count == 2


def test_a_transfer_made_again_after_its_account_was_emptied_is_still_the_same(ledger: Ledger) -> None:
    move(ledger, "t1", "house", "agent:ann")
    spent = move(ledger, "t2", "agent:ann", "house")
    assert move(ledger, "t2", "agent:ann", "house") == spent


@pytest.mark.parametrize(
    "other", [("house", "agent:ann", 101), ("house", "agent:bob", 100), ("escrow:r1", "agent:ann", 100)]
)
def test_another_transfer_under_the_same_id_is_refused(ledger: Ledger, other: tuple[str, str, int]) -> None:
    move(ledger, "t1", "house", "agent:ann")
    before = ledger.head()
    with pytest.raises(ConflictError, match="other content"):
        move(ledger, "t1", *other)
    with pytest.raises(ConflictError, match="other content"):
        hold(ledger, "t1", "house", "agent:ann")
    assert ledger.head() == before


def test_a_record_is_kept_once_and_never_under_the_kind_of_a_transfer(ledger: Ledger) -> None:
    with ledger.writing() as journal:
        first = journal.record("n1", "note", "r1", {"b": [1, None, 0.1], "a": "é €"})
        assert journal.record("n1", "note", "r1", {"a": "é €", "b": [1, None, 0.1]}) == first
        with pytest.raises(ConflictError):
            journal.record("n1", "note", "r1", {"a": "e"})
        with pytest.raises(LedgerError, match="kind of transfer"):
            journal.record("n2", "posted", "r1", {})
    assert ledger.head() == Head(1, first.hash)


@pytest.mark.parametrize(("settle", "balance"), [(post, 100), (void, 0)])
def test_a_pending_transfer_is_posted_or_voided_exactly_once(
    ledger: Ledger, settle: Callable[..., Entry], balance: int
) -> None:
    hold(ledger, "p1", "house", "agent:ann")
    first = settle(ledger, "s1", "p1")
    assert settle(ledger, "s1", "p1") == first
    for again in (post, void):
        with pytest.raises(ConflictError):
            again(ledger, "s2", "p1")
    with pytest.raises(ConflictError):
        (void if settle is post else post)(ledger, "s1", "p1")
    assert ledger.balances().get("agent:ann", 0) == balance
    assert ledger.head().count == 2 and ledger.verify() == []


def test_only_a_pending_transfer_can_be_posted_or_voided(ledger: Ledger) -> None:
    move(ledger, "t1", "house", "agent:ann")
    hold(ledger, "p1", "house", "agent:ann")
    post(ledger, "s1", "p1")
    for settle in (post, void):
        for what in ("t1", "s1", "never heard of"):
            with pytest.raises(LedgerError, match="no pending transfer"):
                settle(ledger, "s2", what)
    assert ledger.head().count == 3


def test_nobody_but_the_house_spends_what_it_does_not_have(ledger: Ledger) -> None:
    move(ledger, "t1", "house", "agent:ann", 100)
    for debit, amount in (("agent:ann", 101), ("agent:bob", 1), ("escrow:r1", 1), ("House", 1), ("house ", 1)):
        for spend in (move, hold):
            with pytest.raises(LedgerError, match="fund it first"):
                spend(ledger, "t2", debit, "agent:eve", amount)
    move(ledger, "t2", "agent:ann", "agent:eve", 100)
    move(ledger, "t3", "house", "agent:eve", 10**12)
    assert ledger.balances()["house"] == -(10**12) - 100 and ledger.verify() == []


def test_held_money_cannot_be_spent_until_it_is_let_go(ledger: Ledger) -> None:
    move(ledger, "t1", "house", "agent:ann", 100)
    hold(ledger, "p1", "agent:ann", "escrow:r1", 70)
    assert available(ledger, "agent:ann") == 30 and available(ledger, "escrow:r1") == 0
    with pytest.raises(LedgerError, match="has 30 to spend and 31"):
        move(ledger, "t2", "agent:ann", "agent:bob", 31)
    void(ledger, "v1", "p1")
    assert available(ledger, "agent:ann") == 100
    hold(ledger, "p2", "agent:ann", "escrow:r1", 100)
    post(ledger, "s2", "p2")
    assert (available(ledger, "agent:ann"), available(ledger, "escrow:r1")) == (0, 100)


def test_a_random_history_adds_up_and_verifies(ledger: Ledger) -> None:
    rng = random.Random(1)
    accounts = ["house", *(f"agent:{n}" for n in range(4)), "escrow:r1"]
    have, pending = Counter[str](), {}
    with ledger.writing() as journal:
        for n in range(400):
            debit, credit = rng.sample(accounts, 2)
            amount = rng.randint(1, 50)
            held = sum(t.amount for t in pending.values() if t.debit == debit)
            enough = debit == "house" or have[debit] - held >= amount
            t = Transfer(f"t{n}", debit, credit, amount, "test", "r1")
            what = rng.choice(["transfer", "transfer", "hold", "post", "void"])
            if what in ("post", "void") and pending:
                known = rng.choice(sorted(pending))
                getattr(journal, what)(f"s{n}", known)
                done = pending.pop(known)
                have.update({done.debit: -done.amount, done.credit: done.amount} if what == "post" else {})
            elif what in ("transfer", "hold") and enough:
                getattr(journal, what)(t)
                if what == "hold":
                    pending[t.id] = t
                else:
                    have.update({debit: -amount, credit: amount})
            elif what in ("transfer", "hold"):
                with pytest.raises(LedgerError, match="fund it first"):
                    getattr(journal, what)(t)
    assert {a: n for a, n in ledger.balances().items() if n} == {a: n for a, n in have.items() if n}
    assert sum(ledger.balances().values()) == 0 and ledger.verify(ledger.head()) == []


def test_a_transaction_that_fails_half_way_leaves_nothing(ledger: Ledger) -> None:
    move(ledger, "t1", "house", "agent:ann")
    before = ledger.head()

    def half_way(then: Callable[[Journal], object]) -> None:
        with ledger.writing() as journal:
            journal.transfer(Transfer("t2", "house", "agent:ann", 1, "test", "r1"))
            then(journal)

    with pytest.raises(ZeroDivisionError):
        half_way(lambda _: 1 / 0)
    with pytest.raises(LedgerError, match="fund it first"):
        half_way(lambda journal: journal.transfer(Transfer("t3", "agent:bob", "agent:ann", 1, "test", "r1")))
    assert ledger.head() == before and ledger.verify(before) == []


def test_the_same_history_has_the_same_hashes_on_every_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = []
    monkeypatch.setattr("verax.ledger.clock", lambda: datetime(2026, 1, 1, tzinfo=UTC))
    for url in (str(tmp_path / "a.db"), shared().schema(), "sqlite://", ":memory:"):
        ledger = Ledger.open(url)
        move(ledger, "t1", "house", "agent:Zoë 李 💶", 2**60)
        hold(ledger, "p1", "agent:Zoë 李 💶", "escrow:r1")
        post(ledger, "s1", "p1")
        with ledger.writing() as journal:
            journal.record("n1", "note", "r1", {"text": 'quote " backslash \\ newline \n'})
        assert ledger.verify() == []
        heads.append(ledger.head())
        ledger.close()
    assert len(set(heads)) == 1


@pytest.mark.parametrize("name", ["nul \0", "half of a pair \ud800"])
def test_a_name_that_the_database_cannot_store_is_refused_or_kept_whole(ledger: Ledger, name: str) -> None:
    try:
        move(ledger, "t1", "house", f"agent:{name}")
    except LedgerError:
        assert ledger.head().count == 0
    else:
        assert list(ledger.balances()) == [f"agent:{name}", "house"]
    assert ledger.verify() == []


def test_every_field_is_under_the_hash_and_no_two_contents_share_one() -> None:
    entry = Entry(7, "id", "posted", "r1", "house", "agent:ann", 5, None, "{}", "")
    others = [replace(entry, **{field: "x"}) for field in FIELDS if field != "hash"]
    others += [replace(entry, amount=None), replace(entry, settles=""), replace(entry, amount="5")]
    # what leaves one field and enters the next is another content
    others += [replace(entry, debit="hous", credit="eagent:ann"), replace(entry, id='id","posted', kind="")]
    others += [replace(entry, body=b"{}"), replace(entry, body="b'{}'")]
    hashes = [e.sealed_by(previous) for e in [entry, *others] for previous in (GENESIS, "1" * 64)]
    assert len(set(hashes)) == len(hashes)


# opening


def test_a_ledger_that_must_exist_is_not_made(url: str) -> None:
    with pytest.raises(LedgerError, match="open a round first"):
        Ledger.open(url, create=False)
    with pytest.raises(LedgerError, match="open a round first"):
        Ledger.open(url, create=False)
    Ledger.open(url).close()
    Ledger.open(url, create=False).close()


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be one, " * 50)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="file is not a database"):
        Ledger.open(str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("address", ["://", "nonsense://x", "sqlite:////no/such/folder/a.db"])
def test_an_address_of_nothing_is_refused_in_a_sentence(address: str) -> None:
    with pytest.raises(LedgerError):
        Ledger.open(address)


# tampering


@pytest.fixture(scope="module")
def honest() -> list[Entry]:
    """10,000 transfers, hashed as the ledger hashes them: funding, payments, stakes posted and voided."""
    rng = random.Random(2)
    entries: list[Entry] = []

    def append(id: str, kind: str, round: str, sides: tuple[str, str, int], settles: str | None = None) -> None:
        entry = Entry(len(entries) + 1, id, kind, round, *sides, settles, '{"code":"test"}', "")
        entries.append(replace(entry, hash=entry.sealed_by(entries[-1].hash if entries else GENESIS)))

    for n in range(MANY // 10):
        round, agent = f"r{n}", f"agent:{n % 30}"
        append(f"{round}:fund", "posted", round, ("house", f"escrow:{round}", 1000))
        for k in range(5):
            append(f"{round}:pay:{k}", "posted", round, (f"escrow:{round}", f"agent:{k}", rng.randint(1, 200)))
        for settle in ("post", "void"):
            sides = ("house", agent, rng.randint(1, 99))
            append(f"{round}:hold:{settle}", "pending", round, sides)
            append(f"{round}:{settle}", settle, round, sides, f"{round}:hold:{settle}")
    assert len(entries) == MANY
    return entries


def insert(connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
    columns = ", ".join(FIELDS)
    values = ", ".join(f":{field}" for field in FIELDS)
    connection.execute(sa.text(f"INSERT INTO journal ({columns}) VALUES ({values})"), [_UNSAID | row for row in rows])


def filled(url: str, entries: list[Entry]) -> None:
    Ledger.open(url).close()
    with raw(url) as connection:
        insert(connection, [vars(e) for e in entries])


def another(rng: random.Random, field: str, value: Any) -> Any:
    """A value that differs from the stored one in something a forger would want, or in one character."""
    if field in ("seq", "amount"):
        return value + rng.choice([-1, 1, 10, 1000]) if isinstance(value, int) and value > 1 else 7
    if field == "kind":
        return rng.choice([kind for kind in ("posted", "pending", "post", "void", "note") if kind != value])
    if value and rng.random() < 0.5:
        place = rng.randrange(len(value))
        return value[:place] + ("0" if value[place] != "0" else "1") + value[place + 1 :]
    return f"{value} " if rng.random() < 0.5 else secrets.token_hex(8)


def rehashed(entries: list[Entry], start: int, end: int | None = None) -> list[Entry]:
    """The hashes made to fit again from `start` on, as a forger who knows the format would."""
    found = entries[:start]
    for e in entries[start:end]:
        found.append(replace(e, hash=e.sealed_by(found[-1].hash if found else GENESIS)))
    return found + (entries[end:] if end is not None else [])


def tampered(rng: random.Random, entries: list[Entry]) -> tuple[str, list[Entry], bool]:
    """One way to tamper with a journal: its name, the result, and whether only a receipt can show it."""
    what: str = rng.choices(["change", "remove", "insert", "swap", "cut", "rewrite"], [8, 3, 3, 3, 2, 1])[0]
    n = rng.randrange(len(entries) - 1)
    if what == "cut":
        return what, entries[:n], True
    if what in ("change", "rewrite"):
        field = rng.choice(FIELDS if what == "change" else [f for f in FIELDS[1:] if f != "hash"])
        other = replace(entries[n], **{field: another(rng, field, getattr(entries[n], field))})
        found = [*entries[:n], other, *entries[n + 1 :]]
        if what == "rewrite":
            return what, rehashed(found, n), True
        # half the forgers mend the hash of the entry they changed
        return f"change {field}", rehashed(found, n, n + 1) if field != "hash" and rng.random() < 0.5 else found, False
    if what == "remove":
        found = entries[:n] + entries[n + 1 :]
    elif what == "insert":
        copy = replace(entries[rng.randrange(len(entries))], seq=n + 1, id=f"forged {n}", settles=None)
        found = rehashed([*entries[:n], copy, *entries[n:]], n, n + 1)
    else:
        m = rng.choice([k for k in (rng.randrange(len(entries)), len(entries) - 1) if k != n])
        found = list(entries)
        found[n], found[m] = found[m], found[n]
    if what != "remove" or rng.random() < 0.5:
        found = [e if e.seq == place else replace(e, seq=place) for place, e in enumerate(found, start=1)]
    return what, found, False


@pytest.mark.parametrize("chunk", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 10))])
def test_a_thousand_ways_to_tamper_are_all_found(honest: list[Entry], chunk: int) -> None:
    rng = random.Random(chunk)
    receipt = Head(MANY, honest[-1].hash)
    missed = []
    for n in range(100):
        what, entries, needs_receipt = tampered(rng, honest)
        if not journal_problems(iter(entries), (receipt,) if needs_receipt else ()):
            missed.append((n, what))
    assert missed == []


def test_an_honest_journal_of_ten_thousand_transfers_has_no_problem(honest: list[Entry], url: str) -> None:
    filled(url, honest)
    ledger = Ledger.open(url)
    receipts = [Head(e.seq, e.hash) for e in honest[::100]]
    assert ledger.head() == Head(MANY, honest[-1].hash)
    assert ledger.verify(*receipts) == []
    ledger.close()


def store(url: str, before: list[Entry], after: list[Entry]) -> None:
    """Make a stored journal be `after` instead of `before`, with the guards gone."""
    with raw(url) as connection:
        if connection.dialect.name == "sqlite":
            for name in ("update", "delete", "replace"):
                connection.exec_driver_sql(f"DROP TRIGGER journal_no_{name}")
        else:
            connection.exec_driver_sql("SET session_replication_role = replica")
        was, now = ({tuple(vars(e).values()) for e in side} for side in (before, after))
        gone = [{"id": row[1]} for row in was - now]
        if gone:
            connection.execute(sa.text("DELETE FROM journal WHERE id = :id"), gone)
        if now - was:
            insert(connection, [dict(zip(FIELDS, row, strict=True)) for row in now - was])
        for statement in guard_statements(connection.dialect.name):
            connection.exec_driver_sql(statement)


@pytest.fixture(scope="module")
def full_file(honest: list[Entry], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("honest") / "ledger.db"
    filled(f"sqlite:///{path}", honest)
    return path


def found_in(url: str, *heads: Head) -> list[str]:
    ledger = Ledger.open(url, create=False)
    try:
        return ledger.verify(*heads)
    finally:
        ledger.close()


@pytest.mark.parametrize("chunk", range(5))
def test_tampering_with_a_stored_file_is_found(
    honest: list[Entry], full_file: Path, tmp_path: Path, chunk: int
) -> None:
    rng = random.Random(100 + chunk)
    receipt = Head(MANY, honest[-1].hash)
    path, stored = tmp_path / "copy.db", 0
    while stored < 12:
        shutil.copy(full_file, path)
        what, entries, needs_receipt = tampered(rng, honest)
        try:
            store(f"sqlite:///{path}", honest, entries)
        except sa.exc.IntegrityError:
            continue  # even without its guards the database refuses two entries with one number
        stored += 1
        assert found_in(f"sqlite:///{path}", *([receipt] if needs_receipt else [])), (stored, what)


def test_tampering_in_postgresql_is_found(honest: list[Entry]) -> None:
    rng = random.Random(200)
    receipt = Head(MANY, honest[-1].hash)
    original = shared().schema()
    filled(original, honest)
    stored = 0
    while stored < 8:
        copy = shared().schema()
        Ledger.open(copy).close()
        with raw(copy) as connection:
            connection.exec_driver_sql(f"INSERT INTO journal SELECT * FROM {original.split('%3D')[1]}.journal")
        what, entries, needs_receipt = tampered(rng, honest)
        try:
            store(copy, honest, entries)
        except sa.exc.IntegrityError:
            continue
        stored += 1
        assert found_in(copy, *([receipt] if needs_receipt else [])), (stored, what)


@pytest.mark.parametrize("value", ["x'7b7d'", "CAST(x'ff' AS TEXT)", "1.5", "'not json'"])
@pytest.mark.parametrize("field", ["body", "amount", "debit", "kind"])
def test_a_value_of_another_type_in_the_file_is_found(tmp_path: Path, field: str, value: str) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger.open(url)
    for n in range(3):
        move(ledger, f"t{n}", "house", "agent:ann")
    with raw(url) as connection:
        connection.exec_driver_sql("DROP TRIGGER journal_no_update")
        connection.exec_driver_sql(f"UPDATE journal SET {field} = {value} WHERE seq = 2")
    if "ff" in value:  # bytes that are no text cannot even be read
        with pytest.raises(LedgerError, match="decode"):
            ledger.verify()
    else:
        assert ledger.verify() != []


# outages


def spec() -> Spec:
    return Spec("r1", tuple(f"t{n}" for n in range(12)), ("no", "yes"), "100.00", scheme="affine", min_tasks=2)


def report(agent: str, asked: Spec, seed: int = 0) -> verax.Reports:
    rng = np.random.default_rng([seed, *agent.encode()])
    labels = np.where(rng.random(len(asked.tasks)) < 0.8, np.arange(len(asked.tasks)) % 2, 0)
    return verax.Reports.of(labels[None], agents=[agent], tasks=asked.tasks, classes=asked.classes)


def sealed_round(ledger: Ledger, agents: int = 3) -> Rounds:
    rounds = Rounds(ledger)
    rounds.open(spec())
    rounds.fund("r1")
    for n in range(agents):
        rounds.submit("r1", f"agent {n}", report(f"agent {n}", spec()))
    rounds.seal("r1")
    return rounds


def test_a_full_disk_refuses_and_a_later_try_completes(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path / "ledger.db"))
    rounds = sealed_round(ledger, agents=12)
    before, refused = ledger.head(), 0
    with ledger.reading() as journal:
        pages = journal._connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    limit = [pages]

    def little_space(connection: Any, _: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={limit[0]}")

    sa.event.listen(ledger._engine, "connect", little_space)

    def settle() -> str:
        try:
            return str(len(rounds.settle("r1").amounts))
        except LedgerError as error:
            return str(error)

    while (said := settle()) != "12":
        # one page more each time, so that the disk is full at every moment of the settlement once
        assert "disk is full" in said and "try again" in said
        assert ledger.head() == before and ledger.verify(before) == []
        refused, limit[0] = refused + 1, limit[0] + 1
    assert refused > 0 and settle() == "12" and rounds.verify("r1", before) == []
    ledger.close()


def test_a_full_disk_under_postgresql_refuses_and_a_later_try_completes() -> None:
    ledger = Ledger.open(shared().schema())
    move(ledger, "t1", "house", "agent:ann")
    before = ledger.head()
    ledger.close()
    body = random.Random(0).randbytes(10_000_000).hex()  # nothing that compresses below the limit

    def large() -> Entry:
        with ledger.writing() as journal:
            journal.transfer(Transfer("t2", "house", "agent:ann", 1, "test", "r1"))
            return journal.record("n1", "note", "r1", body)

    shared().stop()
    shared().start(largest_file=2**24)  # as large as the server's own log files, which must still fit
    try:
        with pytest.raises(LedgerError, match="could not extend file"):
            large()
        assert ledger.head() == before
    finally:
        shared().stop()
        shared().start()
    assert large().seq == 3 and ledger.verify(before) == []
    ledger.close()


@pytest.mark.parametrize("gone", ["file", "folder"])
def test_a_vanished_file_refuses_and_a_later_try_completes(tmp_path: Path, gone: str) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    ledger = Ledger.open(str(folder / "ledger.db"))
    rounds = sealed_round(ledger)
    before = ledger.head()
    what = folder if gone == "folder" else folder / "ledger.db"
    away = what.rename(tmp_path / "away")
    for step in (lambda: rounds.settle("r1"), lambda: rounds.void("r1"), ledger.head, ledger.verify):
        with pytest.raises(LedgerError, match="the database refused"):
            step()
    if gone == "folder":
        assert not folder.exists()
    away.replace(what)
    assert len(rounds.settle("r1").amounts) == 3 and rounds.verify("r1", before) == []
    ledger.close()


def test_a_stopped_postgresql_refuses_and_a_later_try_completes() -> None:
    ledger = Ledger.open(shared().schema())
    rounds = sealed_round(ledger)
    before = ledger.head()
    shared().stop()
    try:
        for step in (lambda: rounds.settle("r1"), lambda: rounds.void("r1"), ledger.head, ledger.verify):
            with pytest.raises(LedgerError, match="the database refused"):
                step()
    finally:
        shared().start()
    assert ledger.head() == before
    assert len(rounds.settle("r1").amounts) == 3 and rounds.verify("r1", before) == []
    ledger.close()


def test_postgresql_stopped_inside_a_transaction_keeps_nothing_of_it() -> None:
    ledger = Ledger.open(shared().schema())
    move(ledger, "t1", "house", "agent:ann")
    before = ledger.head()

    def cut_short() -> None:
        with ledger.writing() as journal:
            journal.transfer(Transfer("t2", "house", "agent:ann", 1, "test", "r1"))
            shared().stop()
            shared().start()
            journal.transfer(Transfer("t3", "house", "agent:ann", 1, "test", "r1"))

    with pytest.raises(LedgerError, match="the database refused"):
        cut_short()
    assert ledger.head() == before
    assert move(ledger, "t2", "house", "agent:ann", 1).seq == 2 and ledger.verify(before) == []
    ledger.close()


def test_a_postgresql_that_became_read_only_refuses_and_a_later_try_completes() -> None:
    url = shared().database()
    ledger = Ledger.open(url)
    rounds = sealed_round(ledger)
    before, name = ledger.head(), url.split("@/")[1].split("?")[0]
    for setting, works in (("on", False), ("off", True)):
        with shared().connect() as connection:
            connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {setting}")
        ledger.close()
        if not works:
            with pytest.raises(LedgerError, match="read-only"):
                rounds.settle("r1")
            assert ledger.verify(before) == [] and ledger.head() == before
    assert len(rounds.settle("r1").amounts) == 3 and rounds.verify("r1", before) == []
    ledger.close()


# many processes

_gate: Any = None


def _at_the_gate(gate: Any) -> None:
    global _gate
    _gate = gate


def at_once(processes: int, task: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[Any]:
    """The task in as many processes as there are arguments, all let go at the same moment."""
    # processes that share nothing with this one, started from one that has imported everything already
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "verax.rounds", "sqlalchemy.dialects.sqlite", "psycopg"])
    gate = context.Barrier(processes)
    with ProcessPoolExecutor(processes, context, _at_the_gate, (gate,)) as pool:
        return list(pool.map(_opened, [task] * processes, arguments))


def _opened(task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    url, *rest = arguments
    _gate.wait(60)
    ledger = Ledger.open(url)
    try:
        return task(Rounds(ledger), *rest)
    except LedgerError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        ledger.close()


def _settle(rounds: Rounds) -> dict[str, Any]:
    return rounds.settle("r1").to_json()


def _submit(rounds: Rounds, agent: str, key: str | None, seed: int) -> dict[str, Any]:
    return rounds.submit("r1", agent, report(agent, spec(), seed), key=key).to_json()


def _open_round(rounds: Rounds, secret: str) -> tuple[int, str]:
    entry = rounds.open(spec(), secret=secret)
    return entry.seq, entry.hash


def test_sixteen_processes_settle_one_round_once_with_one_answer(ledger: Ledger, url: str) -> None:
    rounds = sealed_round(ledger)
    before = ledger.head().count
    answers = at_once(16, _settle, [(url,)] * 16)
    assert all(answer == answers[0] for answer in answers), answers
    paid = [amount for amount in answers[0]["amounts"].values() if amount]
    # a score, a settlement, the residue, and each payment once
    assert ledger.head().count == before + 3 + len(paid)
    assert len(paid) == 3 and rounds.verify("r1") == []
    assert sum(ledger.balances().values()) == 0 and ledger.balances()["escrow:r1"] == 0


def test_eight_processes_submit_at_once_and_all_are_kept(ledger: Ledger, url: str) -> None:
    rounds = Rounds(ledger)
    rounds.open(spec())
    receipts = at_once(8, _submit, [(url, f"agent {n}", None, 0) for n in range(8)])
    heads = [Head(**receipt["head"]) for receipt in receipts]
    assert len({head.count for head in heads}) == 8
    assert {s["agent"] for s in rounds.show("r1")["submissions"]} == {f"agent {n}" for n in range(8)}
    assert rounds.verify("r1", *heads) == []


def test_eight_processes_with_one_key_get_one_reply(ledger: Ledger, url: str) -> None:
    rounds = Rounds(ledger)
    rounds.open(spec())
    receipts = at_once(8, _submit, [(url, "ann", "k1", 0)] * 8)
    assert all(receipt == receipts[0] for receipt in receipts), receipts
    assert len(rounds.show("r1")["submissions"]) == 1


def test_eight_processes_with_one_key_and_other_contents_leave_one(ledger: Ledger, url: str) -> None:
    rounds = Rounds(ledger)
    rounds.open(spec())
    replies = at_once(8, _submit, [(url, "ann", "k1", seed) for seed in range(8)])
    taken = [reply for reply in replies if isinstance(reply, dict)]
    refused = [reply for reply in replies if isinstance(reply, str)]
    # reports that happen to be equal are the same request
    assert taken and all(reply == taken[0] for reply in taken)
    assert refused and all("ConflictError" in reply and "other content" in reply for reply in refused)
    assert len(rounds.show("r1")["submissions"]) == 1 and rounds.verify("r1") == []


def test_eight_processes_make_one_ledger_and_one_round(url: str) -> None:
    answers = at_once(8, _open_round, [(url, f"secret {n}") for n in range(8)])
    assert len(set(answers)) == 1 and answers[0][0] == 1, answers
    assert found_in(url) == []


def test_others_can_write_while_a_settlement_is_computed(
    ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = sealed_round(ledger)
    other = Ledger.open(url)
    compute = verax.rounds.settlement

    def meanwhile(*transcript: Any) -> Any:
        with other.writing() as journal:
            journal.transfer(Transfer("meanwhile", "house", "agent:ann", 100, "test", "another round"))
        return compute(*transcript)

    with monkeypatch.context() as patched:
        patched.setattr(verax.rounds, "settlement", meanwhile)
        assert len(rounds.settle("r1").amounts) == 3
    assert ledger.balances("")["agent:ann"] == 100 and rounds.verify("r1") == []
    other.close()


def test_a_round_voided_while_its_settlement_is_computed_pays_nobody(
    ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = sealed_round(ledger)
    other = Ledger.open(url)
    compute = verax.rounds.settlement

    def meanwhile(*transcript: Any) -> Any:
        Rounds(other).void("r1")
        return compute(*transcript)

    monkeypatch.setattr(verax.rounds, "settlement", meanwhile)
    with pytest.raises(ConflictError, match="is void and cannot score"):
        rounds.settle("r1")
    assert not any(ledger.balances().values()) and rounds.show("r1")["state"] == "void"
    other.close()


# requests again


def test_a_repeated_request_is_answered_as_before_in_every_later_state(ledger: Ledger) -> None:
    rounds = Rounds(ledger)
    requests: dict[str, Callable[[], Any]] = {
        "open": lambda: rounds.open(spec()),
        "fund": lambda: rounds.fund("r1"),
        "gift": lambda: rounds.fund("r1", 5, agent="ann", key="gift"),
        "ann": lambda: rounds.submit("r1", "ann", report("ann", spec()), key="k1"),
        "ann again": lambda: rounds.submit("r1", "ann", report("ann", spec(), 1), key="k2"),
        "bob": lambda: rounds.submit("r1", "bob", report("bob", spec())),
        "seal": lambda: rounds.seal("r1"),
        "settle": lambda: rounds.settle("r1"),
    }
    replies: dict[str, Any] = {}
    for name, request in requests.items():
        replies[name] = request()
        count = ledger.head().count
        assert {known: requests[known]() for known in replies} == replies
        assert ledger.head().count == count
    with pytest.raises(ConflictError, match="other content"):
        rounds.submit("r1", "ann", report("ann", spec(), 2), key="k1")
    with pytest.raises(ConflictError, match="other content"):
        rounds.fund("r1", 6, agent="ann", key="gift")
    with pytest.raises(ConflictError, match="another spec"):
        rounds.open(replace(spec(), budget="200.00"))


def test_a_submission_that_could_not_be_settled_is_refused_at_once(ledger: Ledger) -> None:
    rounds = Rounds(ledger)
    rounds.open(spec())
    rounds.open(replace(spec(), round="r2", rule="brier", scheme="clipped"))
    before = ledger.head()
    for name in ("", " ann", "ann\n", "nul \0", "half \ud800"):
        with pytest.raises(InputError, match="agent name"):
            rounds.submit("r1", name, report("ann", spec()))
    with pytest.raises(InputError, match="needs probabilities"):
        rounds.submit("r2", "ann", report("ann", spec()))
    assert ledger.head() == before


def test_a_payment_made_twice_under_another_id_is_found(ledger: Ledger) -> None:
    rounds = sealed_round(ledger)
    amounts = rounds.settle("r1").amounts
    with ledger.writing() as journal:
        for agent, amount in amounts.items():
            journal.transfer(Transfer(f"r1:again:{agent}", "house", f"agent:{agent}", amount, "pay", "r1"))
    assert ledger.verify() == []
    assert len(rounds.verify("r1")) == 3
    assert rounds.payment("r1", "agent 0") == (2 * amounts["agent 0"], amounts["agent 0"])


def test_submissions_are_stored_as_they_were_committed_to(ledger: Ledger) -> None:
    rounds = sealed_round(ledger)
    with ledger.reading() as journal:
        for entry in journal.entries("r1", "submit"):
            secret_hash = rounds.show("r1")["secret_hash"]
            made, secret = Submission.from_json(entry.said), ledger.keys.get(secret_name("r1", secret_hash))
            assert secret is not None and (opened := made.opened(secret)) is not None
            assert opened[0]["labels"] == report(made.agent, spec()).labels[0].tolist()
            assert json.dumps(opened[0]["labels"]) not in entry.body
    assert rounds.show("r1")["state"] == "sealed"
