"""The ledger: one append-only, hash-chained journal of transfers and records. It keeps; it decides nothing.

An entry is never changed. A transfer moves a whole number of minor units between two accounts:

    house                 the operator; the only account that may fall below 0
    escrow:<round>        what is set aside for a round
    agent:<name>          an agent's own

and is `posted` at once, or `pending` (it holds the debited account's money) until a `post` or a `void`
entry settles it. A record keeps anything else that must not change: what a round asked, what was
submitted, what was decided. Every entry's hash covers the one before it, so that `verify` finds any
change, removal, insertion or reordering; a `Head` kept elsewhere shows a cut-off tail too. Entries are the leaves of a
Merkle tree (`verax.log`), so that outsiders can check one entry, or that nothing was rewritten, without the others.
Every entry bears the time it was written at, which never goes back. Money is of one currency: what an account has of
another is another balance.

Private halves of keys are not in the database: `Ledger.keys` is a folder beside it, which only its owner may read.

SQLite in one file by default, PostgreSQL by URL: one schema, one code path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from verax import wire
from verax.entries import GENESIS, HOUSE, MOST, TRANSFERS, Entry, Head, Transfer, sha256
from verax.errors import ConflictError, ExtraMissing, InputError, LedgerError, OptionError

try:
    import sqlalchemy as sa
    from sqlalchemy import exc

    from verax import roles
    from verax.database import engine_of, is_address, journal_table, make_ready, shown
    from verax.folding import balances_of, journal_problems, tree_problems
    from verax.keys import OPERATOR, Key, Keyring
    from verax.log import Checkpoint, Continuation, NoteKey
    from verax.log.merkle import leaf_hash
    from verax.log.stored import StoredTree
except ImportError:
    raise ExtraMissing("Rounds and ledgers", "rounds") from None

__all__ = ["GENESIS", "HOUSE", "TRANSFERS", "Entry", "Head", "Journal", "Ledger", "Transfer", "clock"]

_SLACK = timedelta(minutes=1)  # by which a clock may lag behind the last entry
_Sides = tuple[str | None, str | None, int | None]


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

    def __init__(self, engine: sa.Engine, keys: Keyring) -> None:
        self._engine, self.keys = engine, keys

    @classmethod
    def open(cls, url: str = "verax.db", *, create: bool = True, keys: str | os.PathLike[str] | None = None) -> Ledger:
        """The ledger of a database URL, or of an SQLite file by its path; made there unless told not to.

        `keys` is the folder of the operator's keys and of what rounds keep secret: by default beside an SQLite file,
        else in the home folder, and in memory where the database is.
        """
        address = url if is_address(url) else f"sqlite:///{Path(url)}"
        try:
            if "@" in (sa.make_url(address).host or ""):
                raise LedgerError(f"{shown(url)!r} has an @ in its password; write it as %40")
            if sa.make_url(address).get_backend_name() not in ("sqlite", "postgresql"):
                raise LedgerError(f"{shown(url)!r}: that kind of database is not known; use SQLite or PostgreSQL")
            ledger = cls(engine_of(address), _keyring_of(address, keys))
        except (exc.ArgumentError, exc.NoSuchModuleError, ValueError):
            named = f"{shown(url)!r} is no database address"
            raise LedgerError(f"{named}; give a file, or postgresql+psycopg://...") from None
        except ModuleNotFoundError:
            raise ExtraMissing("PostgreSQL ledgers", "postgres") from None
        file = ledger._engine.url.database
        if not create and address.startswith("sqlite") and file and not Path(file).exists():
            raise LedgerError(f"{shown(file)}: no such ledger; open a round first, or check db=")
        try:
            with ledger._failing_closed():
                make_ready(ledger._engine, create)
        except LedgerError:
            ledger.close()
            raise
        return ledger

    @property
    def engine(self) -> sa.Engine:
        """The database, for tables that others keep beside the journal."""
        return self._engine

    @property
    def _is_postgres(self) -> bool:
        return self._engine.dialect.name == "postgresql"

    @contextmanager
    def writing(self) -> Iterator[Journal]:
        """One transaction, alone: everything in it is kept, or nothing."""
        with self._failing_closed():
            if not self._owns:
                # each statement sees what is there when it begins: the call that waits comes before all others
                with self._engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
                    roles.take_turn(connection)
                    yield Journal(connection, calls=True)
                return
            with self._engine.begin() as connection:
                if self._is_postgres:
                    # before any snapshot is taken, or a waiting writer would see a stale end of the chain
                    connection.execute(sa.text("LOCK TABLE journal IN EXCLUSIVE MODE"))
                yield Journal(connection)

    @cached_property
    def _owns(self) -> bool:
        """Whether this writes the journal itself; else it may call what it was let (`grant`)."""
        if not self._is_postgres:
            return True
        with self._engine.connect() as connection:
            return roles.is_owner(connection)

    def grant(self, role: str) -> None:
        """Let a PostgreSQL role read and hand in, and nothing else."""
        if not self._is_postgres:
            raise OptionError("an SQLite file has no roles; who may write the file may write the ledger")
        with self._failing_closed(), self._engine.begin() as connection:
            roles.let_hand_in(connection, role)

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

    def balances(self, currency: str | None = None) -> dict[str, int]:
        """What every account has of a currency, of the only one if not given; pending transfers not counted."""
        with self.reading() as journal:
            found = balances_of(journal.entries())
        if currency is None and len(found) > 1:
            raise LedgerError(f"this ledger holds {' and '.join(map(repr, found))}; name one with currency=")
        return found.get(next(iter(found), "") if currency is None else currency, {})

    def head(self) -> Head:
        """Where the journal ends."""
        with self.reading() as journal:
            return journal.head()

    def verify(self, *kept: Head | Checkpoint) -> list[str]:
        """Fold the whole journal again: every problem in a sentence, [] if there is none.

        `kept` is what somebody has kept of it: heads, checkpoints; the journal must still begin as they say.
        """
        with self.reading() as journal:
            heads = tuple(each for each in kept if isinstance(each, Head))
            problems = journal_problems(journal.entries(), heads)
            checkpoints = [each for each in kept if isinstance(each, Checkpoint)]
            return problems or tree_problems(journal.tree, journal.entries(), checkpoints)

    def checkpoint(self) -> Checkpoint:
        """What the log is now; signed, and kept, where the operator's key is at hand, else as it was signed last."""
        text = self.keys.get(OPERATOR)
        key = None if text is None else Key.of(text)
        with self.reading() as journal:
            sizes = journal.tree.signed_sizes(None if key is None else key.public)
            if key is None or (sizes and sizes[-1] == journal.head().count):
                return journal.tree.checkpoint(sizes[-1] if sizes else 0)
        with self.writing() as journal:
            return journal.keep_checkpoint(key)

    def continuation(self, since: int) -> Continuation:
        """The same with the proof that it continues the first `since` entries, as a witness asks for it."""
        now = self.checkpoint()
        if not 0 <= since <= now.size:
            raise InputError(f"the log has {now.size} entries and not {since}; it was cut, or is another one")
        with self.reading() as journal:
            return Continuation(since, tuple(journal.tree.at(now.size).consistency(since)), now)

    def keep_cosignature(self, witness: NoteKey, lines: Sequence[str]) -> int:
        """Keep a witness's lines with the checkpoint that they sign; of how many entries it is."""
        with self.writing() as journal:
            for size in reversed(journal.tree.signed_sizes()):
                if journal.tree.checkpoint(size).note.with_lines(lines).signed_at(witness) is not None:
                    journal.tree.keep(size, witness.public, lines)
                    return size
        raise InputError(f"{witness.name} has signed no checkpoint that is kept here; send it one of this ledger's")

    def catch_up(self) -> None:
        """Bring the tree to the journal's end: of an older version's journal nothing is in it yet."""
        with self.reading() as journal:
            behind = journal.tree.size < journal.head().count
        if behind and self._owns:
            with self.writing() as journal:
                journal.grow()

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()


class Journal:
    """The journal inside one transaction."""

    def __init__(self, connection: sa.Connection, *, calls: bool = False) -> None:
        self._connection, self._calls = connection, calls
        self.tree = StoredTree(connection)
        # while a transaction lasts nobody else changes these
        self._last: tuple[Head, str | None] | None = None
        self._spendable: dict[tuple[str, str], int] = {}

    def entries(
        self, round: str | None = None, kind: str | None = None, *, after: int = 0, most: int | None = None
    ) -> Iterator[Entry]:
        """All entries in order, or those of a round or a kind; those after a number, and so many at most."""
        query = sa.select(journal_table).where(journal_table.c.seq > after).order_by(journal_table.c.seq).limit(most)
        if round is not None:
            query = query.where(journal_table.c.round == round)
        if kind is not None:
            query = query.where(journal_table.c.kind == kind)
        return (Entry(*row) for row in self._connection.execute(query))

    def rounds(self) -> list[str]:
        """Every round that an entry is of."""
        return [*self._connection.scalars(sa.select(journal_table.c.round).distinct().order_by("round"))]

    def said(self, round: str, kind: str) -> list[Any]:
        """What the records of a round and a kind say, in order."""
        return [wire.parsed(e.body, f"entry {e.seq}") for e in self.entries(round, kind)]

    def signed_checkpoint(self, key: Key) -> Checkpoint:
        """What the log is now, signed by who keeps it, with the lines of all others who did."""
        return self.tree.checkpoint().signed(key, int(clock().timestamp()))

    def keep_checkpoint(self, key: Key) -> Checkpoint:
        """Sign what the log is now, for everybody to find."""
        self.grow()
        made = self.tree.checkpoint()
        if made.signed_at(key.public) is None:
            made = made.signed(key, int(clock().timestamp()))
            self.tree.keep(made.size, key.public, made.note.lines)
        return made

    def grow(self, entry: Entry | None = None) -> None:
        """Take into the tree what it has not yet: the entry, where it is the next, else all that came since."""
        size = self.tree.growth.size
        new = [entry] if entry is not None and entry.seq == size + 1 else self.entries(after=size)
        self.tree.grow(leaf_hash(e.leaf.encode()) for e in new)

    def get(self, id: str) -> Entry | None:
        """The entry of an id, if there is one."""
        row = self._connection.execute(_BY_ID, {"wanted": id}).first()
        return None if row is None else Entry(*row)

    def among(self, *ids: str) -> list[Entry]:
        """The entries of those ids that are recorded."""
        return [
            Entry(*row) for row in self._connection.execute(sa.select(journal_table).where(journal_table.c.id.in_(ids)))
        ]

    def last(self, round: str, kind: str, prefix: str = "") -> Entry | None:
        """The latest entry of a round and a kind, of those whose id begins with `prefix`."""
        query = sa.select(journal_table).where(*self._where(round, kind, prefix))
        row = self._connection.execute(query.order_by(journal_table.c.seq.desc()).limit(1)).first()
        return None if row is None else Entry(*row)

    def count(self, round: str, kind: str, prefix: str = "") -> int:
        """How many entries of a round and a kind have an id that begins with `prefix`."""
        query = sa.select(sa.func.count()).where(*self._where(round, kind, prefix))
        return int(self._connection.scalar(query) or 0)

    def held(self, round: str, account: str) -> int:
        """What has been held of an account for a round, settled since or not."""
        j = journal_table.c
        mine = j.debit == account, j.kind == "pending", _without_index(j.round) == round
        return int(self._connection.scalar(sa.select(sa.func.sum(j.amount)).where(*mine)) or 0)

    def _where(self, round: str, kind: str, prefix: str) -> tuple[sa.ColumnElement[bool], ...]:
        """Of a round and a kind, with an id that begins so: found by the id, of which a round has very many."""
        j = journal_table.c
        if not prefix:
            return j.round == round, j.kind == kind
        id = j.id if self._connection.dialect.name == "sqlite" else sa.collate(j.id, "C")
        begins = sa.func.substr(j.id, 1, len(prefix)) == prefix  # LIKE would take capitals for small ones
        return id >= prefix, id < _after(prefix), begins, _without_index(j.round) == round, j.kind == kind

    def head(self) -> Head:
        """Where the journal ends."""
        return self._end()[0]

    def now(self) -> datetime:
        """The time by which deadlines are judged: this machine's, and never before the last entry."""
        last = self._end()[1]
        now = clock()
        if last is not None and datetime.fromisoformat(last) > now + _SLACK:
            raise LedgerError(
                f"the last entry was written at {last} and the clock here says {now.isoformat(timespec='seconds')}: "
                "one of them is wrong, so that no deadline can be judged; set the clock right"
            )
        return now

    def _end(self) -> tuple[Head, str | None]:
        if self._last is None:
            row = self._connection.execute(_LAST).first()
            self._last = (Head(0, GENESIS), None) if row is None else (Head(row[0], row[1]), row[2])
        return self._last

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

    def available(self, account: str, currency: str = "") -> int:
        """What an account may still spend of a currency: its balance less what pending transfers hold."""
        if (account, currency) not in self._spendable:
            found = self._connection.scalar(_SPENDABLE, {"account": account, "currency": currency})
            self._spendable[account, currency] = int(found or 0)
        return self._spendable[account, currency]

    def _move_money(self, t: Transfer, kind: str) -> Entry:
        two = t.debit and t.credit and t.debit != t.credit
        if type(t.amount) is not int or not 0 < t.amount <= MOST or not two:
            raise LedgerError(
                f"transfer {t.id!r} of {t.amount!r} from {t.debit!r} to {t.credit!r}: two accounts, above 0"
            )
        if t.debit == HOUSE and t.amount - self.available(HOUSE, t.currency) > MOST:
            raise ConflictError(f"transfer {t.id!r} of {t.amount:,}: the house would have given out more than {MOST:,}")
        body = wire.canonical({"code": t.code} | ({"signature": t.signature} if t.signature else {}))
        return self._append(t.id, kind, t.round, body, (t.debit, t.credit, t.amount), currency=t.currency)

    def _settle_pending(self, id: str, pending: str, kind: str) -> Entry:
        held = self.get(pending)
        if held is None or held.kind != "pending":
            raise LedgerError(f"{pending!r} is no pending transfer; hold it first")
        sides = held.debit, held.credit, held.amount
        return self._append(id, kind, held.round, held.body, sides, pending, held.currency)

    def _append(
        self, id: str, kind: str, round: str, body: str, sides: _Sides = (None, None, None),
        settles: str | None = None, currency: str | None = None,
    ) -> Entry:  # fmt: skip
        known, (head, last) = self.get(id), self._end()
        at = max(clock().isoformat(timespec="microseconds"), last or "")
        entry = Entry(head.count + 1, id, kind, round, *sides, settles, body, "", at, currency)
        if known is not None:
            if (known.content, known.currency) != (entry.content, entry.currency):
                raise ConflictError(f"{id!r} was recorded before with other content; use another key")
            return known
        debit, _, amount = sides
        if kind in ("posted", "pending") and debit and amount and debit != HOUSE:
            there = self.available(debit, currency or "")
            if there < amount:
                raise ConflictError(
                    f"{debit!r} has {there} {currency} to spend and {amount} are asked; fund it first".replace(
                        "  ", " "
                    )
                )
        settled = sa.select(journal_table.c.id).where(journal_table.c.settles == settles)
        if settles is not None and self._connection.scalar(settled) is not None:
            raise ConflictError(f"{settles!r} is settled already; nothing was recorded")
        if self._calls:
            roles.hand_in(self._connection, id, *entry.content, currency)
            entry = self.among(id)[0]
        else:
            entry = replace(entry, hash=entry.sealed_by(head.hash))
            self._connection.execute(_INSERT, vars(entry))
            self.grow(entry)
        self._follow(entry)
        return entry

    def _follow(self, entry: Entry) -> None:
        """Know what an entry has changed: the end, and what its two accounts may spend."""
        self._last = Head(entry.seq, entry.hash), entry.at
        sides = {"posted": (-1, 1), "pending": (-1, 0), "post": (0, 1), "void": (1, 0)}.get(entry.kind, (0, 0))
        for account, sign in zip((entry.debit, entry.credit), sides, strict=True):
            known = str(account), entry.currency or ""
            if known in self._spendable:
                self._spendable[known] += sign * (entry.amount or 0)


def clock() -> datetime:
    """The time by this machine.

    >>> clock().tzinfo
    datetime.timezone.utc
    """
    return datetime.now(UTC)


def _after(prefix: str) -> str:
    """What comes after all texts that begin so.

    >>> "a:~" < _after("a:") < "b"
    True
    """
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _without_index(column: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
    """A column as a database cannot look it up, where it would take that to be the shorter way."""
    return sa.func.coalesce(column, "")


def _spendable() -> sa.Select[Any]:
    """What an account may spend: its balance less what pending transfers hold, each looked up by what settles it."""
    j, later = journal_table.c, journal_table.alias("later").c
    account: sa.BindParameter[str] = sa.bindparam("account")
    moved = j.kind.in_(("posted", "post"))
    settled = sa.exists().where(later.settles == j.id)
    held = sa.and_(j.debit == account, sa.or_(moved, sa.and_(j.kind == "pending", ~settled)))
    change = sa.case((held, -j.amount), (sa.and_(j.credit == account, moved), j.amount), else_=0)
    mine = sa.or_(j.debit == account, j.credit == account)
    return sa.select(sa.func.sum(change)).where(mine, sa.func.coalesce(j.currency, "") == sa.bindparam("currency"))


# made once: SQLAlchemy takes longer to put one together than a database to answer it
_BY_ID = sa.select(journal_table).where(journal_table.c.id == sa.bindparam("wanted"))
_LAST = sa.select(*(journal_table.c[name] for name in ("seq", "hash", "at"))).order_by(sa.desc("seq")).limit(1)
_SPENDABLE = _spendable()
_INSERT = journal_table.insert()


def _keyring_of(address: str, keys: str | os.PathLike[str] | None) -> Keyring:
    """Where private halves are kept for a database."""
    given = keys or os.environ.get("VERAX_KEYS")
    if given:
        return Keyring(Path(given))
    url = sa.make_url(address)
    if url.get_backend_name() != "sqlite":
        named = sha256(url.set(password=None).render_as_string())[:16]
        home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
        return Keyring(home / "verax" / named)
    return Keyring(None if url.database in (None, "", ":memory:") else Path(f"{url.database}.keys"))
