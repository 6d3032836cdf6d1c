"""A beacon: a number that nobody knows before its time and everybody can check after it. Here drand's quicknet.

Its number n comes every three seconds, as a BLS signature on n by a key that no member of the network holds alone.
Nothing is fetched here: the signature is given, as text, and checked.
"""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime, timedelta

from verax import wire
from verax.errors import ExtraMissing, InputError

_GENESIS, _PERIOD = datetime.fromtimestamp(1_692_803_367, UTC), timedelta(seconds=3)
_PUBLIC = (
    "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d106451"
    "0d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a"
)
_DOMAIN = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"
_MOST = 2**40  # which is long after anybody could ask


def beacon_time(number: int) -> datetime:
    """When a beacon's number is known, and not before.

    >>> str(beacon_time(1000))
    '2023-08-23 15:59:24+00:00'
    """
    if not 1 <= number <= _MOST:
        raise InputError(f"beacon is {number}; give the number of a beacon to come, or a time")
    return _GENESIS + (number - 1) * _PERIOD


def beacon_after(moment: datetime) -> int:
    """The number of the first beacon at or after a time.

    >>> beacon_after(beacon_time(1000)), beacon_after(beacon_time(1000) + timedelta(seconds=1))
    (1000, 1001)
    """
    return max(1, math.ceil((moment - _GENESIS) / _PERIOD) + 1)


def signature_in(text: str, number: int) -> str:
    """The signature of a beacon, as drand publishes it (JSON) or alone (hexadecimal); refused if it is not that one's.

    >>> signature_in("00" * 48, 1000)
    Traceback (most recent call last):
    verax.errors.InputError: this is not the signature of beacon 1000 of drand's quicknet; get /public/1000 of it
    """
    found = wire.parsed(text, "the beacon") if text.lstrip().startswith("{") else {"signature": text.strip()}
    signature = str(found.get("signature")).lower()
    if found.get("round", number) != number or not _is_signed(number, signature):
        raise InputError(
            f"this is not the signature of beacon {number} of drand's quicknet; get /public/{number} of it"
        )
    return signature


def randomness_of(number: int, signature: str) -> str:
    """What a beacon gives, which is what drand publishes beside it: SHA-256 of its signature, once that is checked."""
    return hashlib.sha256(bytes.fromhex(signature_in(signature, number))).hexdigest()


def _is_signed(number: int, signature: str) -> bool:
    try:
        from py_arkworks_bls12381 import GT, G1Point, G2Point
    except ImportError:
        raise ExtraMissing("Beacons", "beacon") from None
    message = hashlib.sha256(number.to_bytes(8, "big")).digest()
    try:
        signed = G1Point.from_compressed_bytes(bytes.fromhex(signature))
    except (ValueError, TypeError):
        return False
    key = G2Point.from_compressed_bytes(bytes.fromhex(_PUBLIC))
    same: bool = GT.pairing(G1Point.hash_to_curve(message, _DOMAIN), key) == GT.pairing(signed, G2Point())
    return same
