"""A journal folded again from its first entry on: balances, and every problem in a sentence. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from verax.entries import GENESIS, HOUSE, TRANSFERS, Entry, Head
from verax.log.checkpoint import Checkpoint
from verax.log.merkle import EMPTY, Growth, leaf_hash
from verax.log.stored import StoredTree


def balances_of(entries: Iterable[Entry]) -> dict[str, dict[str, int]]:
    """By currency, what every account has."""
    balance: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for e in entries:
        if e.kind in ("posted", "post") and e.amount is not None and e.debit is not None and e.credit is not None:
            balance[e.currency or ""][e.debit] -= e.amount
            balance[e.currency or ""][e.credit] += e.amount
    return {currency: dict(sorted(held.items())) for currency, held in sorted(balance.items())}


def journal_problems(entries: Iterator[Entry], heads: tuple[Head, ...]) -> list[str]:
    """Where the chain breaks, money does not add up, or what somebody has kept of it is not there any more."""
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
    every = [each for held in balances_of(kept.values()).values() for each in held.items()]
    below = [(account, amount) for account, amount in every if account != HOUSE and amount < 0]
    found += [f"account {account!r} is at {amount}, below 0" for account, amount in below]
    return found + [
        f"a receipt names entry {head.count} with another hash: the journal was cut or rewritten "
        f"(it has {count} entries now)"
        for head in heads if hashes.get(head.count) != head.hash
    ]  # fmt: skip


def tree_problems(tree: StoredTree, entries: Iterable[Entry], checkpoints: Iterable[Checkpoint]) -> list[str]:
    """Where the tree is not that of the entries, or not the one that somebody has signed or kept."""
    growth, rows, roots = Growth(), iter(tree.kept()), {0: EMPTY}
    checkpoints, signed = [*checkpoints], tree.signatures()
    sizes = {each.size for each in checkpoints} | {size for size, _, _ in signed}
    for e in entries:
        made = b"".join(growth.add(leaf_hash(e.leaf.encode())))
        seq, kept = next(rows, (e.seq, made))  # it may be behind
        if (seq, kept) != (e.seq, made):
            return [f"the tree does not hold what entry {e.seq} ({e.id!r}) says: one of them was rewritten"]
        if growth.size in sizes:
            roots[growth.size] = growth.root
    if next(rows, None) is not None:
        return [f"the tree goes on after entry {growth.size}: the journal was cut"]
    was = {size: Checkpoint.of(tree.origin, size, root) for size, root in roots.items()}
    gone = "and there are no more than {}: the journal was cut, or an old copy was restored"
    found = [f"a checkpoint is of {size} entries {gone.format(growth.size)}" for size in sorted(sizes - {*was})]
    found += [why for each in checkpoints if each.size in was and (why := was[each.size].problem_beside(each))]
    return found + [
        f"the key {key[:16]} has signed another log than this at {size} entries: it was rewritten"
        for size, key, line in signed if size in was and not was[size].note.with_lines([line]).is_signed_by(key)
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
