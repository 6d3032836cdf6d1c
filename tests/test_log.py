"""The log that outsiders verify: published vectors, another library's answers, and forgeries of every line."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import warnings
from datetime import UTC, datetime

import pytest

from verax.errors import InputError, VeraxError
from verax.keys import Key
from verax.log import Checkpoint, Continuation, NoteKey, Proof, Witness
from verax.log.merkle import EMPTY, Growth, Tree, continues, includes, leaf_hash
from verax.log.notes import PLAIN, TIMED, Signed
from verax.log.witness import ForkError, RollbackError, StaleError, UnknownLogError, UnsignedError

# the tree of eight leaves that the Certificate Transparency code is tested with, and that everybody copies
LEAVES = [bytes.fromhex(text) for text in (
    "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"
)]  # fmt: skip
_ROOTS = """e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d
fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125
aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77
d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7
4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4
76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef
ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c
5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"""
ROOTS = _ROOTS.split()
INCLUSION = {
    (0, 8): """96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7
               5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e
               6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4""",
    (5, 8): """bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b
               ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0
               d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7""",
    (2, 3): "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
}
CONSISTENCY = {
    (1, 1): "",
    (1, 8): INCLUSION[0, 8],
    (6, 8): """0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a
               ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0
               d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7""",
    (2, 5): """5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e
               bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b""",
}


def hashes(text):
    return [bytes.fromhex(word) for word in text.split()]


def tree_of(leaves, size=None):
    """A tree as a database would keep it: what each leaf completes."""
    growth, kept = Growth(), {}
    for n, leaf in enumerate(leaves, start=1):
        kept |= {(level, (n >> level) - 1): found for level, found in enumerate(growth.add(leaf_hash(leaf)))}
    assert size is not None or growth.root == Tree(len(leaves), lambda asked: {each: kept[each] for each in asked}).root
    return Tree(len(leaves) if size is None else size, lambda asked: {each: kept[each] for each in asked})


# the tree


@pytest.mark.parametrize("size", range(9))
def test_the_roots_are_those_of_certificate_transparency(size):
    assert tree_of(LEAVES, size).root.hex() == tree_of(LEAVES[:size]).root.hex() == ROOTS[size]


@pytest.mark.parametrize(("index", "size"), INCLUSION)
def test_the_inclusion_proofs_are_those_of_certificate_transparency(index, size):
    proof = hashes(INCLUSION[index, size])
    assert tree_of(LEAVES, size).inclusion(index) == proof
    assert includes(leaf_hash(LEAVES[index]), index, size, proof, bytes.fromhex(ROOTS[size]))


@pytest.mark.parametrize(("earlier", "size"), CONSISTENCY)
def test_the_consistency_proofs_are_those_of_certificate_transparency(earlier, size):
    proof = hashes(CONSISTENCY[earlier, size])
    assert tree_of(LEAVES, size).consistency(earlier) == proof
    assert continues(earlier, size, proof, bytes.fromhex(ROOTS[earlier]), bytes.fromhex(ROOTS[size]))


def root_by_definition(leaves):
    """RFC 9162, section 2.1.1, word by word."""
    if len(leaves) < 2:
        return leaf_hash(leaves[0]) if leaves else hashlib.sha256(b"").digest()
    k = max(2**n for n in range(20) if 2**n < len(leaves))
    return hashlib.sha256(b"\x01" + root_by_definition(leaves[:k]) + root_by_definition(leaves[k:])).digest()


def test_every_proof_of_every_size_holds_and_none_holds_for_anything_else():
    leaves = [b"%d" % n for n in range(40)]
    roots = [root_by_definition(leaves[:n]) for n in range(41)]
    for size in range(41):
        tree = tree_of(leaves, size)
        assert tree.root == roots[size]
        for index in range(size):
            proof, leaf = tree.inclusion(index), leaf_hash(leaves[index])
            assert includes(leaf, index, size, proof, roots[size])
            assert not includes(leaf_hash(b"x"), index, size, proof, roots[size])
            assert not includes(leaf, index, size, [*proof, leaf], roots[size])
            assert not any(includes(leaf, wrong, size, proof, roots[size]) for wrong in (-1, size))
            assert size == 1 or not includes(leaf, index, size, proof[:-1], roots[size])
        for earlier in range(1, size):
            proof = tree.consistency(earlier)
            assert continues(earlier, size, proof, roots[earlier], roots[size])
            assert not continues(earlier, size, proof, roots[earlier - 1], roots[size])
            assert not continues(earlier, size, proof, roots[earlier], roots[size - 1])
            assert not continues(earlier, size, [*proof, proof[0]], roots[earlier], roots[size])
            assert not continues(earlier, size, proof[:-1], roots[earlier], roots[size])
    assert continues(0, 5, [], EMPTY, roots[5]) and not continues(0, 5, [EMPTY], EMPTY, roots[5])
    assert not continues(0, 5, [], roots[1], roots[5]) and not continues(6, 5, [], roots[5], roots[5])


def test_pymerkle_agrees_on_roots_and_ways_to_them():
    pymerkle = pytest.importorskip("pymerkle")
    other = pymerkle.InmemoryTree(algorithm="sha256")
    leaves = [hashlib.sha256(b"%d" % n).digest() for n in range(70)]
    for size, leaf in enumerate(leaves, start=1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other.append_entry(leaf)
            assert tree_of(leaves, size).root == other.get_state()
            index = size // 3
            path = other.prove_inclusion(index + 1).serialize()["path"]  # it begins with the leaf's own hash
        assert [found.hex() for found in tree_of(leaves, size).inclusion(index)] == path[1:]


# notes: the vector of Go's note package, that of the specification, and a checkpoint of a public log with its witnesses

GO_SEED = base64.b64decode("AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz")[1:]
GO_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_NOTE = """If you think cryptography is the answer to your problem,
then you don't know what your problem is.

— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=
"""
EXAMPLE_KEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
EXAMPLE_NOTE = """This is an example message.

— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=
"""
PUBLIC_LOG = """arche2025h1.staging.ct.transparency.dev
1432088532
U7WM79jrzyhGZ5/GUBTpM7NzwdyfFx61t3RovgcC4Ro=

— arche2025h1.staging.ct.transparency.dev ui8GwCF1+kWqZrxGdhj4aX3gcw7XUlXQQabg/27lefwhUkzbC3NygNI75MdhL1bfTW9g8Ei59RA23oHP7Ry1k3ZFWwQ=
— witness1.smartit.nu/witness1 pIyCDwAAAABqEiEghIp82KWebrw7/oHQwlTAm3g2RKS4+eebl8eO0WH+/iEcxZ75W3u5hNI7TOQtmJbqmNWVuE0tgh0XwzdZsDsUAQ==
— remora.n621.de 2net5wAAAABqEiEgPlfF3V06o0Y+fHM+J5J9s27wgxxcOVSpZ/2g/KSiXCg9DEZI+aVCIobWX9sXTynk5XeU/zZ0WBxtqB0DrAWfBw==
"""  # noqa: E501
LOG_KEY = "arche2025h1.staging.ct.transparency.dev+ba2f06c0+AU0vHmlGCS/PdN8b2OaGmKprLI8HKM+dJ472xgFYh15f"
WITNESS_KEYS = (
    "remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2",
    "witness1.smartit.nu/witness1+a48c820f+BPSFWg9G6KPiO7QPryYO5Xq4oYJJ+kAvLKLSimDhoxMO",
)


def test_gos_note_is_signed_and_read_to_the_byte():
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Key(Ed25519PrivateKey.from_private_bytes(GO_SEED))
    assert str(NoteKey("PeterNeumann", key.public)) == GO_KEY
    assert str(Signed(GO_NOTE.partition("\n\n")[0] + "\n").by("PeterNeumann", key)) == GO_NOTE


@pytest.mark.parametrize(("key", "note"), [(GO_KEY, GO_NOTE), (EXAMPLE_KEY, EXAMPLE_NOTE), (LOG_KEY, PUBLIC_LOG)])
def test_published_notes_verify_and_changed_ones_do_not(key, note):
    known, signed = NoteKey.of(key), Signed.parsed(note)
    assert str(known) == key and str(signed) == note and signed.signed_at(known) == 0
    assert Signed.parsed(note.replace("e", "E", 1)).signed_at(known) is None
    assert signed.signed_at(dataclasses.replace(known, name="else")) is None
    assert signed.signed_at(known.of_kind(TIMED)) is None
    broken = dataclasses.replace(signed, lines=(*signed.lines, signed.lines[0][:-8] + "AAAAAAA="))
    assert broken.signed_at(known) is None  # one line of a known key that is wrong spoils the note


@pytest.mark.parametrize("key", WITNESS_KEYS)
def test_the_witnesses_of_a_public_log_have_seen_its_checkpoint(key):
    found = Checkpoint.parsed(PUBLIC_LOG)
    assert found.size == 1432088532
    assert datetime.fromtimestamp(found.note.signed_at(NoteKey.of(key)), UTC).year == 2026
    other = Checkpoint.parsed(PUBLIC_LOG.replace("1432088532", "1432088533"))
    assert other.note.signed_at(NoteKey.of(key)) is None


@pytest.mark.parametrize("key", [
    "", "a", "a+b", GO_KEY[:-4], GO_KEY.replace("c74f20a3", "c74f20a4"), GO_KEY.replace("Peter", "Meter"),
    "a b+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
])  # fmt: skip
def test_what_is_no_key_is_refused(key):
    with pytest.raises(InputError):
        NoteKey.of(key)


@pytest.mark.parametrize("note", [
    "", "text\n", "text\n\n", "text\n\n— a\n", "text\n\n— a !!!\n", "text\n\n- a AAAAAAAAAA==\n", "a\n\n— a AAAA",
    "bell\x07\n\n— a AAAAAAAA\n", "text\n\n" + "— a AAAAAAAA\n" * 101,
])  # fmt: skip
def test_what_is_no_note_is_refused(note):
    with pytest.raises(InputError, match="no signed note"):
        Signed.parsed(note)


@pytest.mark.parametrize("text", [
    "log\n1\n", "log\n01\nROOT\n", "log\n-1\nROOT\n", "log\n1\nROOT=\n", "log\n1\nshort\n", "\n1\nROOT\n",
    "log\n٣\nROOT\n", "log\n" + "9" * 30 + "\nROOT\n", "log\n1\nROOT\n\nx\n",
])  # fmt: skip
def test_what_is_no_checkpoint_is_refused(text):
    root = base64.b64encode(EMPTY).decode()
    with pytest.raises(InputError):
        Checkpoint.parsed(str(Signed(text.replace("ROOT", root)).by("log", Key.new())))


# witnesses

LOG = "verax/test"


@pytest.fixture
def operator():
    return Key.new()


@pytest.fixture
def witness(tmp_path, operator):
    return Witness("witness.example/w1", Key.new(), {LOG: (operator.public,)}, tmp_path / "seen.json")


def request(leaves, since, operator, *, first=None):
    tree = tree_of(leaves)
    made = Checkpoint.of(LOG, tree.size, tree.root).signed(operator, 1_700_000_000)
    return Continuation.parsed(str(Continuation(since, tuple(tree.consistency(since)), made)))


GROWING = [b"%d" % n for n in range(20)]


def test_a_witness_signs_what_continues_what_it_has_seen(witness, operator):
    for before, now in ((0, 5), (5, 5), (5, 13), (13, 20)):
        asked = request(GROWING[:now], before, operator)
        [line] = witness.cosign(asked, at=1_800_000_000)
        assert asked.checkpoint.note.with_lines([line]).signed_at(witness.note_key) == 1_800_000_000
    assert witness.last(LOG) == asked.checkpoint


def test_a_witness_refuses_a_fork_and_keeps_both_checkpoints_as_evidence(witness, operator):
    seen = request(GROWING[:10], 0, operator)
    witness.cosign(seen)
    for fork, since in (([b"x", *GROWING[1:10]], 10), ([b"x", *GROWING[1:]], 10), ([*GROWING[:9], b"x", b"y"], 10)):
        asked = request(fork, since, operator)
        with pytest.raises(ForkError) as refusal:
            witness.cosign(asked)
        assert str(seen.checkpoint) in refusal.value.evidence and str(asked.checkpoint) in refusal.value.evidence
    assert witness.last(LOG) == seen.checkpoint


def test_a_witness_refuses_a_rollback_with_the_evidence(witness, operator):
    witness.cosign(request(GROWING, 0, operator))
    old = request(GROWING[:10], 0, operator)
    with pytest.raises(RollbackError, match="goes back from 20 entries to 10") as refusal:
        witness.cosign(old)
    assert refusal.value.size == 20 and str(old.checkpoint) in refusal.value.evidence


def test_a_witness_says_from_where_it_wants_the_proof(witness, operator):
    witness.cosign(request(GROWING[:10], 0, operator))
    with pytest.raises(StaleError, match="ask for what came since 10") as refusal:
        witness.cosign(request(GROWING, 0, operator))
    assert refusal.value.size == 10 and refusal.value.status == 409


def test_a_witness_signs_for_nobody_it_does_not_know(witness, operator):
    with pytest.raises(UnsignedError):
        witness.cosign(request(GROWING, 0, Key.new()))
    asked = request(GROWING, 0, operator)
    elsewhere = Checkpoint.of("other/log", 20, asked.checkpoint.root).signed(operator, 0)
    with pytest.raises(UnknownLogError):
        witness.cosign(Continuation(0, (), elsewhere))
    plain = dataclasses.replace(asked.checkpoint, note=Signed(asked.checkpoint.note.text).by(LOG, operator))
    with pytest.raises(UnsignedError):  # a log says when it signed
        witness.cosign(dataclasses.replace(asked, checkpoint=plain))
    assert witness.last(LOG) is None


def test_of_two_requests_at_once_a_witness_signs_one(witness, operator):
    """Both continue what was seen, and not each other: whichever comes second is a fork, or stale."""
    from concurrent.futures import ThreadPoolExecutor

    witness.cosign(request(GROWING[:4], 0, operator))
    asked = [request([*GROWING[:4], b"%d" % n], 4, operator) for n in range(8)]

    def told(each):
        try:
            return bool(witness.cosign(each))
        except VeraxError:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(told, asked)) == 1


def test_a_witness_whose_memory_cannot_be_read_signs_nothing(witness, operator):
    witness.cosign(request(GROWING[:4], 0, operator))
    witness.state.write_text(json.dumps({LOG: "nonsense"}))
    with pytest.raises(InputError, match="no signed note"):
        witness.cosign(request(GROWING, 4, operator))


# proofs in one file


def test_a_proof_is_read_as_written_and_no_line_of_it_can_be_changed(operator):
    leaves = [b'{"n":%d}' % n for n in range(7)]
    tree = tree_of(leaves)
    top = Checkpoint.of(LOG, 7, tree.root).signed(operator, 1_700_000_000)
    kept = Proof(leaves[3].decode(), 3, tuple(tree.inclusion(3)), top, {"note": "é"})
    text = str(kept)
    assert Proof.parsed(text) == kept and kept.is_included and Proof.parsed(text).beside == {"note": "é"}
    lines = text.split("\n")
    for n, line in enumerate(lines):
        for other in ([], [line, line], [line[:-3] + "A=="], [line[1:]], ["index 4"]):
            changed = "\n".join([*lines[:n], *other, *lines[n + 1 :]])
            try:
                found = Proof.parsed(changed)
            except InputError:
                continue
            holds = found.is_included and found.checkpoint.signed_at(operator.public) is not None
            assert not holds or (found.leaf, found.checkpoint.note.text) == (kept.leaf, top.note.text), (n, other)


def test_both_kinds_of_a_logs_signature_are_needed(operator):
    top = Checkpoint.of(LOG, 0, EMPTY)
    for kind in (PLAIN, TIMED):
        once = top.note.by(LOG, operator, None if kind == PLAIN else 5)
        assert Checkpoint.parsed(str(once)).signed_at(operator.public) is None
    assert top.signed(operator, 5).signed_at(operator.public) == 5
