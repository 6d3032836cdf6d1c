"""The ledger: one append-only, hash-chained journal of transfers and records. It keeps; it decides nothing.

An entry is never changed. A transfer moves a whole number of minor units between two accounts:

    house                 the operator; the only account that may fall below 0
    escrow:<round>        what is set aside for a round
    agent:<name>          an agent's own

and is `posted` at once, or `pending` (it holds the debited account's money) until a `post` or a `void`
entry settles it. A record keeps anything else that must not change: what a round asked, what was
submitted, what was decided. Every entry's hash covers the one before it, so that `verify` finds any
change, removal, insertion or reordering; a `Head` kept elsewhere shows a cut-off tail too. Every entry bears the
time it was written at, which never goes back. Money is of one currency: what an account has of another is another
balance.

Private halves of keys are not in the database: `Ledger.keys` is a folder beside it, which only its owner may read.

SQLite in one file by default, PostgreSQL by URL: one schema, one code path.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from verax import wire
from verax.errors import ConflictError, ExtraMissing, LedgerError

try:
    import sqlalchemy as sa
    from sqlalchemy import exc

    from verax.database import engine_of, journal_table, make_ready
    from verax.keys import Keyring
except ImportError:
    raise ExtraMissing("Rounds and ledgers", "rounds") from None

HOUSE = "house"
TRANSFERS = ("posted", "pending", "post", "void")
GENESIS = "0" * 64
_MOST = 2**63 - 1
_SLACK = timedelta(minutes=1)  # by which a clock may lag behind the last entry
_Sides = tuple[str | None, str | None, int | None]


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
    currency: str = ""


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
    at: str | None = None
    currency: str | None = None

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
        if (self.at, self.currency) != (None, None):  # as in every journal but those of the first version
            written += [self.at, self.currency]
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

    def __init__(self, engine: sa.Engine, keys: Keyring) -> None:
        self._engine, self.keys = engine, keys

    @classmethod
    def open(cls, url: str = "verax.db", *, create: bool = True, keys: str | os.PathLike[str] | None = None) -> Ledger:
        """The ledger of a database URL, or of an SQLite file by its path; made there unless told not to.

        `keys` is the folder of the operator's keys and of what rounds keep secret: by default beside an SQLite file,
        else in the home folder, and in memory where the database is.
        """
        address = url if "://" in url else f"sqlite:///{Path(url)}"
        try:
            if sa.make_url(address).get_backend_name() not in ("sqlite", "postgresql"):
                raise LedgerError(f"{url!r}: that kind of database is not known; use SQLite or PostgreSQL")
            ledger = cls(engine_of(address), _keyring_of(address, keys))
        except (exc.ArgumentError, exc.NoSuchModuleError):
            raise LedgerError(f"{url!r} is no database address; give a file, or postgresql+psycopg://...") from None
        except ModuleNotFoundError:
            raise ExtraMissing("PostgreSQL ledgers", "postgres") from None
        file = ledger._engine.url.database
        if not create and address.startswith("sqlite") and file and not Path(file).exists():
            raise LedgerError(f"{file}: no such ledger; open a round first, or check db=")
        try:
            with ledger._failing_closed():
                make_ready(ledger._engine, create)
        except LedgerError:
            ledger.close()
            raise
        return ledger

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

    def balances(self, currency: str | None = None) -> dict[str, int]:
        """What every account has of a currency, of the only one if not given; pending transfers not counted."""
        with self.reading() as journal:
            found = _balances_of(journal.entries())
        if currency is None and len(found) > 1:
            raise LedgerError(f"this ledger holds {' and '.join(map(repr, found))}; name one with currency=")
        return found.get(next(iter(found), "") if currency is None else currency, {})

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

    def said(self, round: str, kind: str) -> list[Any]:
        """What the records of a round and a kind say, in order."""
        return [wire.parsed(e.body, f"entry {e.seq}") for e in self.entries(round, kind)]

    def get(self, id: str) -> Entry | None:
        """The entry of an id, if there is one."""
        row = self._connection.execute(sa.select(journal_table).where(journal_table.c.id == id)).first()
        return None if row is None else Entry(*row)

    def among(self, *ids: str) -> list[Entry]:
        """The entries of those ids that are recorded."""
        return [
            Entry(*row) for row in self._connection.execute(sa.select(journal_table).where(journal_table.c.id.in_(ids)))
        ]

    def last(self, round: str, kind: str, prefix: str = "") -> Entry | None:
        """The latest entry of a round and a kind, of those whose id begins with `prefix`."""
        j = journal_table.c
        query = sa.select(journal_table).where(j.round == round, j.kind == kind, _begins_with(prefix))
        row = self._connection.execute(query.order_by(j.seq.desc()).limit(1)).first()
        return None if row is None else Entry(*row)

    def count(self, round: str, kind: str, prefix: str = "") -> int:
        """How many entries of a round and a kind have an id that begins with `prefix`."""
        j = journal_table.c
        query = sa.select(sa.func.count()).where(j.round == round, j.kind == kind, _begins_with(prefix))
        return int(self._connection.scalar(query) or 0)

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
        j = journal_table.c
        row = self._connection.execute(sa.select(j.seq, j.hash, j.at).order_by(j.seq.desc()).limit(1)).first()
        return (Head(0, GENESIS), None) if row is None else (Head(row[0], row[1]), row[2])

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
        j, settled = journal_table.c, sa.select(journal_table.c.settles).where(journal_table.c.settles.is_not(None))
        moved = j.kind.in_(("posted", "post"))
        held = sa.and_(j.debit == account, sa.or_(moved, sa.and_(j.kind == "pending", j.id.not_in(settled))))
        change = sa.case((held, -j.amount), (sa.and_(j.credit == account, moved), j.amount), else_=0)
        mine = sa.or_(j.debit == account, j.credit == account), sa.func.coalesce(j.currency, "") == currency
        query = sa.select(sa.func.sum(change)).where(*mine)
        return int(self._connection.scalar(query) or 0)

    def _move_money(self, t: Transfer, kind: str) -> Entry:
        two = t.debit and t.credit and t.debit != t.credit
        if type(t.amount) is not int or not 0 < t.amount <= _MOST or not two:
            raise LedgerError(
                f"transfer {t.id!r} of {t.amount!r} from {t.debit!r} to {t.credit!r}: two accounts, above 0"
            )
        if t.debit == HOUSE and t.amount - self.available(HOUSE, t.currency) > _MOST:
            raise LedgerError(f"transfer {t.id!r} of {t.amount:,}: the house would have given out more than {_MOST:,}")
        body = wire.canonical({"code": t.code})
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
        entry = replace(entry, hash=entry.sealed_by(head.hash))
        self._connection.execute(journal_table.insert().values(**vars(entry)))
        return entry


def clock() -> datetime:
    """The time by this machine.

    >>> clock().tzinfo
    datetime.timezone.utc
    """
    return datetime.now(UTC)


def _begins_with(prefix: str) -> sa.ColumnElement[bool]:
    """Of an id, to the letter: LIKE would take capitals for small ones."""
    return sa.func.substr(journal_table.c.id, 1, len(prefix)) == prefix


def _balances_of(entries: Iterable[Entry]) -> dict[str, dict[str, int]]:
    """By currency, what every account has."""
    balance: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for e in entries:
        if e.kind in ("posted", "post") and e.amount is not None and e.debit is not None and e.credit is not None:
            balance[e.currency or ""][e.debit] -= e.amount
            balance[e.currency or ""][e.credit] += e.amount
    return {currency: dict(sorted(held.items())) for currency, held in sorted(balance.items())}


def _journal_problems(entries: Iterator[Entry], heads: tuple[Head, ...]) -> list[str]:
    found: list[str] = []
    previous, count, hashes = GENESIS, 0, {0: GENESIS}
    open_: dict[str, Entry] = {}
    kept: dict[str, Entry] = {}
    at = ""
    for count, e in enumerate(entries, start=1):
        if e.seq != count:
            return [*found, f"entry {count} is missing or out of order: number {e.seq} stands there"]
        if e.hash != e.sealed_by(previous):
            said = f"entry {e.seq} ({e.id!r}) is not what was recorded"
            return [*found, f"{said}: its hash does not follow from entry {count - 1}"]
        if e.id in kept:
            found.append(f"entry {e.seq} repeats the id {e.id!r}")
        if (e.at or at) < at:
            found.append(f"entry {e.seq} ({e.id!r}) is of {e.at}, before the entry it follows, of {at}")
        found += _side_problems(e, open_)
        at = e.at or at
        previous, hashes[count] = e.hash, e.hash
        kept[e.id] = e
    every = [each for held in _balances_of(kept.values()).values() for each in held.items()]
    below = [(account, amount) for account, amount in every if account != HOUSE and amount < 0]
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
        sides = e.debit, e.credit, e.amount, e.currency
        if held is None or (held.debit, held.credit, held.amount, held.currency) != sides:
            yield f"entry {e.seq} ({e.id!r}) settles {e.settles!r}, which is not pending with the same sides"


def _keyring_of(address: str, keys: str | os.PathLike[str] | None) -> Keyring:
    """Where private halves are kept for a database."""
    given = keys or os.environ.get("VERAX_KEYS")
    if given:
        return Keyring(Path(given))
    url = sa.make_url(address)
    if url.get_backend_name() != "sqlite":
        named = hashlib.sha256(url.set(password=None).render_as_string().encode()).hexdigest()[:16]
        home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
        return Keyring(home / "verax" / named)
    return Keyring(None if url.database in (None, "", ":memory:") else Path(f"{url.database}.keys"))
