"""The ledger: one append-only, hash-chained journal of transfers and records. It keeps; it decides nothing.

An entry is never changed. A transfer moves a whole number of minor units between two accounts:

    house                 the operator; the only account that may fall below 0
    escrow:<round>        what is set aside for a round
    agent:<name>          an agent's own

and is `posted` at once, or `pending` (it holds the debited account's money) until a `post` or a `void`
entry settles it. A record keeps anything else that must not change: what a round asked, what was
submitted, what was decided. Every entry's hash covers the one before it, so that `verify` finds any
change, removal, insertion or reordering; a `Head` kept elsewhere shows a cut-off tail too.

SQLite in one file by default, PostgreSQL by URL: one schema, one code path.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verax import wire
from verax.errors import ConflictError, ExtraMissing, LedgerError

try:
    import sqlalchemy as sa
    from sqlalchemy import exc
except ImportError:
    raise ExtraMissing("Rounds and ledgers", "rounds") from None

HOUSE = "house"
TRANSFERS = ("posted", "pending", "post", "void")
GENESIS = "0" * 64
_MOST = 2**63 - 1
_WAIT_MS = 60_000
_Sides = tuple[str | None, str | None, int | None]

_metadata = sa.MetaData()
_journal = sa.Table(
    "journal",
    _metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("round", sa.Text, nullable=False, index=True),
    sa.Column("debit", sa.Text, index=True),
    sa.Column("credit", sa.Text, index=True),
    sa.Column("amount", sa.BigInteger),
    sa.Column("settles", sa.Text, sa.ForeignKey("journal.id"), unique=True),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False, unique=True),
    sa.CheckConstraint("amount > 0 AND debit <> credit", name="two_sides"),
    sa.CheckConstraint("(amount IS NULL) = (debit IS NULL) AND (debit IS NULL) = (credit IS NULL)", name="whole"),
)


@dataclass(frozen=True)
class Transfer:
    """Money from one account to another: an integer above 0, immutable, known by its id.

    >>> Transfer("r1:fund", "house", "escrow:r1", 100_000, "fund", "r1").amount
    100000
    """

    id: str
    debit: str
    credit: str
    amount: int
    code: str
    round: str


@dataclass(frozen=True)
class Entry:
    """One row of the journal."""

    seq: int
    id: str
    kind: str
    round: str
    debit: str | None
    credit: str | None
    amount: int | None
    settles: str | None
    body: str
    hash: str

    @property
    def said(self) -> Any:
        """What a record holds, or a transfer's code, as plain dicts and lists."""
        return wire.parsed(self.body, f"entry {self.seq}")

    @property
    def content(self) -> tuple[Any, ...]:
        """What two requests of the same id must share."""
        return (self.kind, self.round, self.debit, self.credit, self.amount, self.settles, self.body)

    def sealed_by(self, previous: str) -> str:
        """The hash this entry must have after `previous`: SHA-256 over one canonical byte string."""
        written = [previous, self.seq, self.id, *self.content]
        # a stored value of a kind that is never written (a blob, say) becomes a list, which no honest entry holds
        line = json.dumps(written, ensure_ascii=True, separators=(",", ":"), default=lambda odd: [repr(odd)])
        return hashlib.sha256(line.encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Head(wire.Document):
    """How long the journal is and what its last hash is: keep it, and a cut-off tail shows.

    >>> Head(0, GENESIS).count
    0
    """

    count: int
    hash: str


class Ledger:
    """The journal in one database.

    >>> ledger = Ledger.open("sqlite://")
    >>> with ledger.writing() as journal:
    ...     _ = journal.transfer(Transfer("r1:fund", "house", "escrow:r1", 500, "fund", "r1"))
    >>> ledger.balances()
    {'escrow:r1': 500, 'house': -500}
    >>> ledger.verify()
    []
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, url: str = "verax.db", *, create: bool = True) -> Ledger:
        """The ledger of a database URL, or of an SQLite file by its path; made there unless told not to."""
        address = url if "://" in url else f"sqlite:///{Path(url)}"
        try:
            if sa.make_url(address).get_backend_name() not in ("sqlite", "postgresql"):
                raise LedgerError(f"{url!r}: that kind of database is not known; use SQLite or PostgreSQL")
            ledger = cls(_engine_of(address))
        except (exc.ArgumentError, exc.NoSuchModuleError):
            raise LedgerError(f"{url!r} is no database address; give a file, or postgresql+psycopg://...") from None
        except ModuleNotFoundError:
            raise ExtraMissing("PostgreSQL ledgers", "postgres") from None
        file = ledger._engine.url.database
        if not create and address.startswith("sqlite") and file and not Path(file).exists():
            raise LedgerError(f"{file}: no such ledger; open a round first, or check db=")
        try:
            ledger._make_table(create)
        except LedgerError:
            ledger.close()
            raise
        return ledger

    def _make_table(self, create: bool) -> None:
        """The table and its guards, made once; a lock keeps two first users apart."""
        engine = self._engine.execution_options(isolation_level="READ COMMITTED") if self._is_postgres else self._engine
        with self._failing_closed(), engine.begin() as connection:
            if self._is_postgres:
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(762178)"))
            if sa.inspect(connection).has_table("journal"):
                return
            if not create:
                raise LedgerError("this database holds no ledger; open a round first, or check db=")
            _metadata.create_all(connection)
            for statement in _guard_statements(engine.dialect.name):
                connection.execute(sa.text(statement))

    @property
    def _is_postgres(self) -> bool:
        return self._engine.dialect.name == "postgresql"

    @contextmanager
    def writing(self) -> Iterator[Journal]:
        """One transaction, alone: everything in it is kept, or nothing."""
        with self._failing_closed(), self._engine.begin() as connection:
            if self._is_postgres:
                # before any snapshot is taken, or a waiting writer would see a stale end of the chain
                connection.execute(sa.text("LOCK TABLE journal IN EXCLUSIVE MODE"))
            yield Journal(connection)

    @contextmanager
    def reading(self) -> Iterator[Journal]:
        """One consistent view."""
        engine = self._engine.execution_options(reading=True)
        with self._failing_closed(), engine.connect() as connection:
            yield Journal(connection)

    @contextmanager
    def _failing_closed(self) -> Iterator[None]:
        """A database that cannot be used is a sentence, and nothing is kept by halves."""
        try:
            yield
        except (exc.DBAPIError, exc.TimeoutError, UnicodeEncodeError) as error:
            reason = str(getattr(error, "orig", None) or error).splitlines()[0].strip()
            raise LedgerError(
                f"the database refused ({reason}); nothing was recorded, mend it and try again"
            ) from error

    def balances(self) -> dict[str, int]:
        """What every account has, pending transfers not counted."""
        with self.reading() as journal:
            return _balances_of(journal.entries())

    def head(self) -> Head:
        """Where the journal ends."""
        with self.reading() as journal:
            return journal.head()

    def verify(self, *heads: Head) -> list[str]:
        """Fold the whole journal again: every problem in a sentence, [] if there is none."""
        with self.reading() as journal:
            return _journal_problems(journal.entries(), heads)

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()


class Journal:
    """The journal inside one transaction."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def entries(self, round: str | None = None, kind: str | None = None) -> Iterator[Entry]:
        """All entries in order, or those of a round or a kind."""
        query = sa.select(_journal).order_by(_journal.c.seq)
        if round is not None:
            query = query.where(_journal.c.round == round)
        if kind is not None:
            query = query.where(_journal.c.kind == kind)
        return (Entry(*row) for row in self._connection.execute(query))

    def said(self, round: str, kind: str) -> list[Any]:
        """What the records of a round and a kind say, in order."""
        return [wire.parsed(e.body, f"entry {e.seq}") for e in self.entries(round, kind)]

    def get(self, id: str) -> Entry | None:
        """The entry of an id, if there is one."""
        row = self._connection.execute(sa.select(_journal).where(_journal.c.id == id)).first()
        return None if row is None else Entry(*row)

    def among(self, *ids: str) -> list[Entry]:
        """The entries of those ids that are recorded."""
        return [Entry(*row) for row in self._connection.execute(sa.select(_journal).where(_journal.c.id.in_(ids)))]

    def last(self, round: str, kind: str, prefix: str = "") -> Entry | None:
        """The latest entry of a round and a kind, of those whose id begins with `prefix`."""
        j = _journal.c
        query = sa.select(_journal).where(j.round == round, j.kind == kind, j.id.startswith(prefix, autoescape=True))
        row = self._connection.execute(query.order_by(j.seq.desc()).limit(1)).first()
        return None if row is None else Entry(*row)

    def head(self) -> Head:
        """Where the journal ends."""
        query = sa.select(_journal.c.seq, _journal.c.hash).order_by(_journal.c.seq.desc()).limit(1)
        row = self._connection.execute(query).first()
        return Head(0, GENESIS) if row is None else Head(row[0], row[1])

    def record(self, id: str, kind: str, round: str, body: Any) -> Entry:
        """Keep a record; the same again is answered as before, another under the same id is refused."""
        if kind in TRANSFERS:
            raise LedgerError(f"{kind!r} is a kind of transfer; use transfer, hold, post or void")
        return self._append(id, kind, round, wire.canonical(body))

    def transfer(self, t: Transfer) -> Entry:
        """Move money now."""
        return self._move_money(t, "posted")

    def hold(self, t: Transfer) -> Entry:
        """Hold money until it is posted or voided."""
        return self._move_money(t, "pending")

    def post(self, id: str, pending: str) -> Entry:
        """Move what a pending transfer holds."""
        return self._settle_pending(id, pending, "post")

    def void(self, id: str, pending: str) -> Entry:
        """Let go of what a pending transfer holds."""
        return self._settle_pending(id, pending, "void")

    def available(self, account: str) -> int:
        """What an account may still spend: its balance less what pending transfers hold."""
        j, settled = _journal.c, sa.select(_journal.c.settles).where(_journal.c.settles.is_not(None))
        moved = j.kind.in_(("posted", "post"))
        held = sa.and_(j.debit == account, sa.or_(moved, sa.and_(j.kind == "pending", j.id.not_in(settled))))
        change = sa.case((held, -j.amount), (sa.and_(j.credit == account, moved), j.amount), else_=0)
        query = sa.select(sa.func.sum(change)).where(sa.or_(j.debit == account, j.credit == account))
        return int(self._connection.scalar(query) or 0)

    def _move_money(self, t: Transfer, kind: str) -> Entry:
        two = t.debit and t.credit and t.debit != t.credit
        if type(t.amount) is not int or not 0 < t.amount <= _MOST or not two:
            raise LedgerError(
                f"transfer {t.id!r} of {t.amount!r} from {t.debit!r} to {t.credit!r}: two accounts, above 0"
            )
        body = wire.canonical({"code": t.code})
        return self._append(t.id, kind, t.round, body, (t.debit, t.credit, t.amount))

    def _settle_pending(self, id: str, pending: str, kind: str) -> Entry:
        held = self.get(pending)
        if held is None or held.kind != "pending":
            raise LedgerError(f"{pending!r} is no pending transfer; hold it first")
        return self._append(id, kind, held.round, held.body, (held.debit, held.credit, held.amount), pending)

    def _append(
        self, id: str, kind: str, round: str, body: str, sides: _Sides = (None, None, None), settles: str | None = None
    ) -> Entry:
        known, head = self.get(id), self.head()
        entry = Entry(head.count + 1, id, kind, round, *sides, settles, body, "")
        if known is not None:
            if known.content != entry.content:
                raise ConflictError(f"{id!r} was recorded before with other content; use another key")
            return known
        debit, _, amount = sides
        if kind in ("posted", "pending") and debit and amount and debit != HOUSE:
            there = self.available(debit)
            if there < amount:
                raise LedgerError(f"{debit!r} has {there} to spend and {amount} are asked; fund it first")
        settled = sa.select(_journal.c.id).where(_journal.c.settles == settles)
        if settles is not None and self._connection.scalar(settled) is not None:
            raise ConflictError(f"{settles!r} is settled already; nothing was recorded")
        entry = replace(entry, hash=entry.sealed_by(head.hash))
        self._connection.execute(_journal.insert().values(**vars(entry)))
        return entry


def _balances_of(entries: Iterable[Entry]) -> dict[str, int]:
    balance: dict[str, int] = defaultdict(int)
    for e in entries:
        if e.kind in ("posted", "post") and e.amount is not None and e.debit is not None and e.credit is not None:
            balance[e.debit] -= e.amount
            balance[e.credit] += e.amount
    return dict(sorted(balance.items()))


def _journal_problems(entries: Iterator[Entry], heads: tuple[Head, ...]) -> list[str]:
    found: list[str] = []
    previous, count, hashes = GENESIS, 0, {0: GENESIS}
    open_: dict[str, Entry] = {}
    kept: dict[str, Entry] = {}
    for count, e in enumerate(entries, start=1):
        if e.seq != count:
            return [*found, f"entry {count} is missing or out of order: number {e.seq} stands there"]
        if e.hash != e.sealed_by(previous):
            said = f"entry {e.seq} ({e.id!r}) is not what was recorded"
            return [*found, f"{said}: its hash does not follow from entry {count - 1}"]
        if e.id in kept:
            found.append(f"entry {e.seq} repeats the id {e.id!r}")
        found += _side_problems(e, open_)
        previous, hashes[count] = e.hash, e.hash
        kept[e.id] = e
    below = [(a, n) for a, n in _balances_of(kept.values()).items() if a != HOUSE and n < 0]
    found += [f"account {account!r} is at {amount}, below 0" for account, amount in below]
    return found + [
        f"a receipt names entry {head.count} with another hash: the journal was cut or rewritten "
        f"(it has {count} entries now)"
        for head in heads if hashes.get(head.count) != head.hash
    ]  # fmt: skip


def _side_problems(e: Entry, open_: dict[str, Entry]) -> Iterator[str]:
    """A transfer has two sides and settles what it names, once."""
    if e.kind not in TRANSFERS:
        return
    if e.amount is None or e.amount <= 0 or not e.debit or not e.credit or e.debit == e.credit:
        yield f"entry {e.seq} ({e.id!r}) is no transfer between two accounts"
    if e.kind == "pending":
        open_[e.id] = e
    if e.kind in ("post", "void"):
        held = open_.pop(e.settles or "", None)
        if held is None or (held.debit, held.credit, held.amount) != (e.debit, e.credit, e.amount):
            yield f"entry {e.seq} ({e.id!r}) settles {e.settles!r}, which is not pending with the same sides"


def _engine_of(address: str) -> sa.Engine:
    if not address.startswith("sqlite"):
        return sa.create_engine(address, isolation_level="SERIALIZABLE", pool_pre_ping=True)
    memory = sa.make_url(address).database in (None, "", ":memory:")
    pool: dict[str, Any] = {"poolclass": sa.pool.StaticPool} if memory else {"poolclass": sa.pool.NullPool}
    engine = sa.create_engine(address, connect_args={"timeout": _WAIT_MS / 1000, "isolation_level": None}, **pool)
    sa.event.listen(engine, "connect", _on_connect)
    sa.event.listen(engine, "begin", _on_begin)
    return engine


def _on_begin(connection: sa.Connection) -> None:
    """A writer takes its turn at once, so that it never finds at the end that another was first."""
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _on_connect(connection: Any, _: Any) -> None:
    """Durable before it is acknowledged; no WAL, which SQLite before 3.51.3 can corrupt on reset."""
    for pragma in ("journal_mode=TRUNCATE", "synchronous=EXTRA", "foreign_keys=ON", f"busy_timeout={_WAIT_MS}"):
        connection.execute(f"PRAGMA {pragma}")


def _guard_statements(dialect: str) -> list[str]:
    """Triggers that refuse to change or remove an entry."""
    refuse = "the journal is append-only"
    if dialect == "sqlite":
        # REPLACE removes a row without asking the triggers on DELETE
        same = " OR ".join(f"{name} = NEW.{name}" for name in ("seq", "id", "settles", "hash"))
        refused = {
            "update": "UPDATE ON journal",
            "delete": "DELETE ON journal",
            "replace": f"INSERT ON journal WHEN EXISTS (SELECT 1 FROM journal WHERE {same})",
        }
        return [
            f"CREATE TRIGGER IF NOT EXISTS journal_no_{name} BEFORE {what} BEGIN SELECT RAISE(ABORT, '{refuse}'); END"
            for name, what in refused.items()
        ]
    return [
        f"CREATE OR REPLACE FUNCTION journal_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{refuse}'; END $$",
        "CREATE OR REPLACE TRIGGER journal_no_change BEFORE UPDATE OR DELETE ON journal "
        "FOR EACH ROW EXECUTE FUNCTION journal_refuse()",
        "CREATE OR REPLACE TRIGGER journal_no_truncate BEFORE TRUNCATE ON journal "
        "FOR EACH STATEMENT EXECUTE FUNCTION journal_refuse()",
    ]
