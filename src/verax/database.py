"""The database below the ledger: its tables, their guards, and how it is reached. SQLite in a file, or PostgreSQL."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from verax import roles
from verax.errors import LedgerError

_WAIT_MS = 60_000
_FIRST_USE = 762178  # the lock that keeps two first users apart

metadata = sa.MetaData()
journal_table = sa.Table(
    "journal",
    metadata,
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
    sa.Column("at", sa.Text),  # not in the first version's journals, nor is the currency
    sa.Column("currency", sa.Text),
    sa.CheckConstraint("amount > 0 AND debit <> credit", name="two_sides"),
    sa.CheckConstraint("(amount IS NULL) = (debit IS NULL) AND (debit IS NULL) = (credit IS NULL)", name="whole"),
)
# PostgreSQL orders texts by a language, and those that begin alike are together only by their bytes; a ledger that was
# made without it reads all entries of a round in its place
sa.Index("journal_ids", sa.collate(journal_table.c.id, "C")).ddl_if(dialect="postgresql")

# of each entry the hashes of the subtrees that it completes, joined: what proofs are made from, without the entries
tree_table = sa.Table(
    "tree",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("nodes", sa.LargeBinary, nullable=False),
)
# who has signed what the tree was at a size: a line of a note, and whose key's it is
signatures_table = sa.Table(
    "signatures",
    metadata,
    sa.Column("line", sa.Text, primary_key=True),
    sa.Column("size", sa.BigInteger, nullable=False, index=True),
    sa.Column("key", sa.Text, nullable=False),
)
# what of a row is in no other, by table
_UNIQUE = {"journal": ("seq", "id", "settles", "hash"), "tree": ("seq",), "signatures": ("line",)}
_SINCE_THEN = {"journal": ("at", "currency")}  # columns that a first version's table has not


def is_address(given: str) -> bool:
    """Whether a database is named by its address, well or badly, and not by the path of a file."""
    return "://" in given or re.match(r"(postgres|sqlite|mysql|maria)[\w+]*:", given) is not None


def shown(address: str) -> str:
    """An address as it may be shown: without its password, wherever it stands.

    >>> shown("postgresql://ann:pa@ss@host/db"), shown("postgresql://host/db?user=ann&password=secret")
    ('postgresql://***@host/db', 'postgresql://host/db?user=ann&password=***')
    """
    before, at, after = address.rpartition("@")
    scheme, slashes, _ = before.partition("//") if "//" in before else before.partition(":")
    whole = f"{scheme}{slashes}***@{after}" if at and ":" in before else address
    return re.sub(r"(?i)(pass\w*=)[^&\s]*", r"\1***", whole)


def make_ready(engine: sa.Engine, create: bool) -> None:
    """The table and its guards, made once or brought up to date; a lock keeps two first users apart."""
    postgres = engine.dialect.name == "postgresql"
    if create and not postgres and engine.url.database not in (None, "", ":memory:"):
        with suppress(OSError):  # which SQLite then refuses in its own words
            os.close(os.open(str(engine.url.database), os.O_CREAT, 0o600))
    able = engine.execution_options(isolation_level="READ COMMITTED") if postgres else engine
    with able.begin() as connection:
        if postgres:
            connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_FIRST_USE})"))
        there = {*sa.inspect(connection).get_table_names()}
        if "journal" not in there and not create:
            raise LedgerError("this database holds no ledger; open a round first, or check db=")
        if not {*_UNIQUE} <= there:
            metadata.create_all(connection)
        _bring_up_to_date(connection, there)
        if not {*_UNIQUE} <= there:
            for statement in guard_statements(engine.dialect.name):
                connection.execute(sa.text(statement))
            if postgres:
                roles.make_functions(connection)


def _bring_up_to_date(connection: sa.Connection, there: set[str]) -> None:
    """Add what a first version's table has not; refuse one of a later version, or one that lost its guards."""
    for table in {*_UNIQUE} & there:
        held = {column["name"] for column in sa.inspect(connection).get_columns(table)}
        if strange := held - {*metadata.tables[table].c.keys()}:
            raise LedgerError(
                f"the {table} has columns {', '.join(sorted(strange))}: a later version wrote it; use that one"
            )
        for name in (name for name in _SINCE_THEN.get(table, ()) if name not in held):
            connection.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN {name} TEXT"))
        older = set() if {*_UNIQUE} <= there else {f"{table}_no_stranger"}
        if lost := _guards(connection.dialect.name, table) - _guards_there(connection, table) - older:
            raise LedgerError(
                f"the {table} has lost its guards {', '.join(sorted(lost))}: somebody may have rewritten it; "
                "compare it with a receipt or a copy before anything else"
            )


def _guards_there(connection: sa.Connection, table: str) -> set[str]:
    sqlite = f"SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = '{table}'"
    postgres = f"SELECT tgname FROM pg_trigger WHERE tgrelid = '{table}'::regclass AND tgenabled IN ('O', 'A')"
    return {*connection.scalars(sa.text(sqlite if connection.dialect.name == "sqlite" else postgres))}


def _guards(dialect: str, table: str) -> set[str]:
    """The names of a table's triggers."""
    statements = guard_statements(dialect, table)
    return {name for text in statements for name in re.findall(r"TRIGGER (?:IF NOT EXISTS )?(\w+)", text)}


def engine_of(address: str) -> sa.Engine:
    """The engine of a database's address."""
    if not address.startswith("sqlite"):
        engine = sa.create_engine(address, isolation_level="SERIALIZABLE", pool_pre_ping=True)
        sa.event.listen(engine, "connect", roles.set_limits)
        return engine
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


def guard_statements(dialect: str, *tables: str) -> list[str]:
    """Triggers that refuse to change or remove what was recorded, in the words of a database; of all tables if none."""
    return [statement for table in tables or _UNIQUE for statement in _guards_of(dialect, table)]


def _guards_of(dialect: str, table: str) -> list[str]:
    refuse = f"the {table} is append-only"
    if dialect == "sqlite":
        # REPLACE removes a row without asking the triggers on DELETE
        same = " OR ".join(f"{name} = NEW.{name}" for name in _UNIQUE[table])
        refused = {
            "update": f"UPDATE ON {table}",
            "delete": f"DELETE ON {table}",
            "replace": f"INSERT ON {table} WHEN EXISTS (SELECT 1 FROM {table} WHERE {same})",
        }
        return [
            f"CREATE TRIGGER IF NOT EXISTS {table}_no_{name} BEFORE {what} BEGIN SELECT RAISE(ABORT, '{refuse}'); END"
            for name, what in refused.items()
        ]
    return [
        f"CREATE OR REPLACE FUNCTION {table}_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{refuse}'; END $$",
        f"CREATE OR REPLACE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION {table}_refuse()",
        f"CREATE OR REPLACE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_refuse()",
        # in a function of the owner's the current user is the owner, whoever calls it
        f"CREATE OR REPLACE FUNCTION {table}_refuse_stranger() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF NOT pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'MEMBER') "
        f"THEN RAISE EXCEPTION 'only its owner writes the {table}'; END IF; RETURN NEW; END $$",
        f"CREATE OR REPLACE TRIGGER {table}_no_stranger BEFORE INSERT ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_refuse_stranger()",
    ]
