"""The log that outsiders verify: a Merkle tree, signed checkpoints of it, proofs and witnesses.

    merkle     RFC 9162: roots, proofs that a leaf is in a tree, and that one tree continues another
    notes      C2SP signed notes: a text and who signed it, when
    checkpoint an origin, a size and a root, as a signed note; two of them, and the proof that one continues the other
    proof      one leaf, its proof and a checkpoint in one text file, checked without any database
    witness    who signs the checkpoints it sees, and never two that cannot both be true

Nothing here knows what a ledger or a round is.
"""

from verax.log.checkpoint import Checkpoint, Continuation
from verax.log.notes import NoteKey
from verax.log.proof import Proof
from verax.log.witness import Witness

__all__ = ["Checkpoint", "Continuation", "NoteKey", "Proof", "Witness"]
