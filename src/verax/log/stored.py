"""A log's tree in the ledger's database, inside one transaction, and who has signed it at which size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from verax.database import journal_table, signatures_table, tree_table
from verax.errors import LedgerError
from verax.log.checkpoint import HASH_BYTES, Checkpoint, Continuation
from verax.log.merkle import Growth, Subtree, Tree

_MANY = 10_000  # rows that are written at once


class StoredTree:
    """The tree over a journal's entries."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._growth: Growth | None = None  # while this transaction writes, nobody else does

    @property
    def size(self) -> int:
        """How many entries are in it."""
        return int(self._connection.scalar(sa.select(sa.func.max(tree_table.c.seq))) or 0)

    @property
    def origin(self) -> str:
        """What this log is called in checkpoints: by its first entry, so that another beginning is another log."""
        first = self._connection.scalar(sa.select(journal_table.c.hash).where(journal_table.c.seq == 1))
        return f"verax/{str(first or '')[:32]}"

    def at(self, size: int | None = None) -> Tree:
        """The tree over the first entries, over all if not said."""
        return Tree(self.size if size is None else size, self._look_up)

    @property
    def growth(self) -> Growth:
        """The tree as it grows in this transaction."""
        if self._growth is None:
            self._growth = self.at().growth
        return self._growth

    def grow(self, leaves: Iterable[bytes]) -> None:
        """Take in what comes next."""
        growth, rows = self.growth, []
        for leaf in leaves:
            rows.append({"nodes": b"".join(growth.add(leaf)), "seq": growth.size})
            if len(rows) == _MANY:
                self._connection.execute(tree_table.insert(), rows)
                rows = []
        if rows:
            self._connection.execute(tree_table.insert(), rows)

    def kept(self) -> Iterable[tuple[int, bytes]]:
        """What is kept for each entry, in order."""
        return ((seq, nodes) for seq, nodes in self._connection.execute(sa.select(tree_table).order_by("seq")))

    def checkpoint(self, size: int | None = None) -> Checkpoint:
        """What the log is, or was, with the lines of all who signed it so."""
        tree = self.at(size)
        query = sa.select(signatures_table.c.line).where(signatures_table.c.size == tree.size)
        lines = self._connection.scalars(query.order_by(signatures_table.c.line))
        return Checkpoint.of(self.origin, tree.size, tree.root, [*lines])

    def continuation(self, since: int) -> Continuation:
        """What the log is now, and the proof that it continues what it was at an earlier size."""
        now = self.checkpoint()
        return Continuation(since, tuple(self.at(now.size).consistency(since)), now)

    def signed_sizes(self, key: str | None = None) -> list[int]:
        """At which sizes somebody, or that key, has signed it."""
        query = sa.select(signatures_table.c.size).distinct().order_by("size")
        return [*self._connection.scalars(query if key is None else query.where(signatures_table.c.key == key))]

    def signatures(self) -> list[tuple[int, str, str]]:
        """Every size at which it was signed, by which key, and the line that says so."""
        s = signatures_table.c
        return [(row.size, row.key, row.line) for row in self._connection.execute(sa.select(s.size, s.key, s.line))]

    def keep(self, size: int, key: str, lines: Sequence[str]) -> None:
        """Keep the lines by which a key has signed it at a size."""
        there = {*self._connection.scalars(sa.select(signatures_table.c.line).where(signatures_table.c.size == size))}
        rows = [{"line": line, "size": size, "key": key} for line in lines if line not in there]
        if rows:
            self._connection.execute(signatures_table.insert(), rows)

    def _look_up(self, subtrees: Sequence[Subtree]) -> dict[Subtree, bytes]:
        """The hashes of full subtrees: each is kept with the entry that completed it."""
        after = {(place + 1) << level for level, place in subtrees}
        query = sa.select(tree_table.c.seq, tree_table.c.nodes).where(tree_table.c.seq.in_(after))
        kept = {row.seq: row.nodes for row in self._connection.execute(query)} if after else {}
        found = {}
        for level, place in subtrees:
            start = level * HASH_BYTES
            hashed = kept.get((place + 1) << level, b"")[start : start + HASH_BYTES]
            if len(hashed) != HASH_BYTES:
                raise LedgerError("the log's tree has lost a part; verify the ledger before anything else")
            found[level, place] = hashed
        return found
