"""A Merkle tree over the entries of a log (RFC 9162, section 2.1), which grows by one leaf at a time.

leaf          SHA-256(0x00 || data)
node          SHA-256(0x01 || left || right)
subtree       (level, place): the 2^level leaves from place * 2^level on; it never changes once it is full

Each leaf completes itself and every subtree that it is the last leaf of, two on the average. Whoever keeps these has
every root and every proof by looking up O(log n) of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

EMPTY = hashlib.sha256(b"").digest()
Subtree = tuple[int, int]
Range = tuple[int, int]


def leaf_hash(data: bytes) -> bytes:
    """MTH({d}) of RFC 9162.

    >>> leaf_hash(b"").hex()[:8]
    '6e340b9c'
    """
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """What stands above two subtrees."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class Growth:
    """A tree as it grows: the roots of the full subtrees that it is made of, by level.

    >>> growth = Growth()
    >>> [len(growth.add(leaf_hash(b""))) for _ in range(8)]
    [1, 2, 1, 3, 1, 2, 1, 4]
    """

    def __init__(self, size: int = 0, peaks: Mapping[Subtree, bytes] | None = None) -> None:
        self.size = size
        self._peaks = {level: found for (level, _), found in (peaks or {}).items()}

    def add(self, leaf: bytes) -> list[bytes]:
        """One leaf more: the hashes of the subtrees that it completes, from itself up."""
        found, level = [leaf], 0
        while level in self._peaks:
            found.append(node_hash(self._peaks.pop(level), found[-1]))
            level += 1
        self._peaks[level] = found[-1]
        self.size += 1
        return found

    @property
    def root(self) -> bytes:
        """The hash above all leaves so far."""
        return _folded([self._peaks[level] for level in sorted(self._peaks, reverse=True)]) if self.size else EMPTY


@dataclass(frozen=True)
class Tree:
    """The tree over the first `size` leaves; `look_up` gives the hashes of full subtrees.

    >>> growth, kept = Growth(), {}
    >>> for n in range(1, 4):
    ...     kept |= {(level, (n >> level) - 1): found for level, found in enumerate(growth.add(leaf_hash(b"%d" % n)))}
    >>> tree = Tree(3, lambda subtrees: {subtree: kept[subtree] for subtree in subtrees})
    >>> tree.root == growth.root, includes(leaf_hash(b"3"), 2, 3, tree.inclusion(2), tree.root)
    (True, True)
    """

    size: int
    look_up: Callable[[Sequence[Subtree]], Mapping[Subtree, bytes]]

    @property
    def root(self) -> bytes:
        """The hash above all leaves."""
        return self._hashes([(0, self.size)])[0] if self.size else EMPTY

    @property
    def growth(self) -> Growth:
        """The same tree, to grow on."""
        return Growth(self.size, self.look_up([*_full_subtrees(0, self.size)]))

    def inclusion(self, index: int) -> list[bytes]:
        """The proof that leaf `index` (from 0) is in this tree: RFC 9162, section 2.1.3.1."""
        return self._hashes(_path(index, self.size))

    def consistency(self, earlier: int) -> list[bytes]:
        """The proof that this tree continues the one of its first leaves: RFC 9162, section 2.1.4.1."""
        return self._hashes(_continuation(earlier, self.size))

    def _hashes(self, ranges: Sequence[Range]) -> list[bytes]:
        parts = [list(_full_subtrees(*each)) for each in ranges]
        known = self.look_up(sorted({subtree for each in parts for subtree in each}))
        return [_folded([known[subtree] for subtree in each]) for each in parts]


def _folded(hashes: Sequence[bytes]) -> bytes:
    """The hash above full subtrees of falling sizes."""
    found = hashes[-1]
    for left in reversed(hashes[:-1]):
        found = node_hash(left, found)
    return found


def _full_subtrees(start: int, end: int) -> Iterator[Subtree]:
    """A range of leaves as full subtrees; it starts where one of its length may start."""
    while start < end:
        level = (end - start).bit_length() - 1
        yield level, start >> level
        start += 1 << level


def _split(count: int) -> int:
    """The largest power of two below a number of leaves."""
    return 1 << ((count - 1).bit_length() - 1)


def _path(index: int, size: int) -> list[Range]:
    """What stands beside the way from a leaf to the root, from the leaf up."""
    start, end, found = 0, size, []
    while end - start > 1:
        middle = start + _split(end - start)
        left, right = (start, middle), (middle, end)
        found.append(right if index < middle else left)
        start, end = left if index < middle else right
    return found[::-1]


def _continuation(earlier: int, size: int) -> list[Range]:
    """What the root of the first `earlier` leaves lacks to be the root of all."""
    start, end, found, known = 0, size, [], True  # known: the subtree's hash is the earlier root itself
    while 0 < earlier < end:
        middle = start + _split(end - start)
        if earlier <= middle:
            found.append((middle, end))
            end = middle
        else:
            found.append((start, middle))
            start, known = middle, False
    if not known:
        found.append((start, end))
    return found[::-1]


def includes(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether the proof leads from a leaf to the root: RFC 9162, section 2.1.3.2."""
    if not 0 <= index < size:
        return False
    place, last, found = index, size - 1, leaf
    for other in proof:
        if last == 0:
            return False
        if place & 1 or place == last:
            found = node_hash(other, found)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, other)
        place, last = place >> 1, last >> 1
    return last == 0 and found == root


def continues(earlier: int, size: int, proof: Sequence[bytes], earlier_root: bytes, root: bytes) -> bool:
    """Whether the tree of `size` leaves continues that of `earlier`: RFC 9162, section 2.1.4.2."""
    if not 0 <= earlier <= size:
        return False
    if earlier in (0, size):
        return not proof and (earlier == 0 or earlier_root == root) and (earlier > 0 or earlier_root == EMPTY)
    hashes = [*proof] if earlier & (earlier - 1) else [earlier_root, *proof]
    if not hashes:
        return False
    place, last = earlier - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    was = now = hashes[0]
    for other in hashes[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            was, now = node_hash(other, was), node_hash(other, now)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            now = node_hash(now, other)
        place, last = place >> 1, last >> 1
    return last == 0 and (was, now) == (earlier_root, root)
