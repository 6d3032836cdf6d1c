"""Keys: who signs, and what only one can open. Ed25519 and HPKE come from `cryptography`; nothing here is our own.

Key       an agent's or an operator's: it signs documents
sealed    a document that only who holds a round's secret can open
Keyring   private halves, outside any database, in files that only their owner may read
"""

from __future__ import annotations

import base64
import hmac
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from verax import wire
from verax.errors import ExtraMissing, InputError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise ExtraMissing("Keys", "rounds") from None

OPERATOR = "operator"
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_OWNER_ONLY = 0o600
_PRIME = 2**255 - 19
# the y of the eight points of Ed25519 whose multiples are few: a signature by them binds nobody
_EIGHTH = int.from_bytes(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "little")
_SMALL_ORDER = frozenset({0, 1, _PRIME - 1, _EIGHTH, _PRIME - _EIGHTH})


@dataclass(frozen=True)
class Key:
    """An Ed25519 key: who signs is who holds it.

    >>> key = Key.new()
    >>> is_signed(["r1", "ann"], key.public, key.sign(["r1", "ann"]))
    True
    >>> is_signed(["r1", "bob"], key.public, key.sign(["r1", "ann"]))
    False
    """

    private: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def new(cls) -> Key:
        """A key that nobody has had before."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def derived(cls, secret: str, purpose: str) -> Key:
        """The key that a secret stands for, a different one for every purpose.

        >>> Key.derived("a token", "invitation").public == Key.derived("a token", "invitation").public
        True
        """
        return cls(Ed25519PrivateKey.from_private_bytes(_derived(secret.encode(), f"verax {purpose}")))

    @classmethod
    def of(cls, text: str, source: str = "the key") -> Key:
        """The key that a PEM file holds."""
        try:
            found = serialization.load_pem_private_key(text.encode(), None)
        except (ValueError, TypeError):
            found = None
        if not isinstance(found, Ed25519PrivateKey):
            raise InputError(f"{source}: no Ed25519 key in PEM without a password; make one with: verax key new FILE")
        return cls(found)

    @property
    def pem(self) -> str:
        """The text that `of` reads: keep it to yourself."""
        kind, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        return self.private.private_bytes(kind, form, serialization.NoEncryption()).decode()

    @property
    def public(self) -> str:
        """The half that everybody may know, in hexadecimal."""
        return self.private.public_key().public_bytes_raw().hex()

    def sign(self, document: Any) -> str:
        """A signature over the canonical bytes of a document."""
        return self.sign_bytes(wire.canonical(document).encode()).hex()

    def sign_bytes(self, data: bytes) -> bytes:
        """A signature over bytes as they are."""
        return self.private.sign(data)

    def mark(self, document: Any) -> str:
        """The same for the same document, and nothing that anybody without this key can guess."""
        hidden = _derived(self.private.private_bytes_raw(), "verax mark")
        return hmac.new(hidden, wire.canonical(document).encode(), "sha256").hexdigest()


def is_signed(document: Any, public: str, signature: str) -> bool:
    """Whether the holder of that key signed this document; keys and signatures are written in one way only."""
    try:
        return verifies(public, _bytes_of(signature), wire.canonical(document).encode())
    except (ValueError, TypeError):
        return False


def verifies(public: str, signature: bytes, data: bytes) -> bool:
    """Whether the holder of that key signed these bytes."""
    try:
        held = _bytes_of(public)
        Ed25519PublicKey.from_public_bytes(held).verify(signature, data)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return not _is_anybodys(held)


def _is_anybodys(public: bytes) -> bool:
    """Whether a key is a point of small order: signatures by it are made by anybody, and hold for many messages.

    >>> _is_anybodys(bytes([1]) + bytes(31)), _is_anybodys(bytes.fromhex(Key.new().public))
    (True, False)
    """
    return int.from_bytes(public, "little") % 2**255 % _PRIME in _SMALL_ORDER


def _bytes_of(text: str) -> bytes:
    """What hexadecimal says, in the one way that it is written here: else one key could pass for several."""
    found = bytes.fromhex(text)
    if found.hex() != text:
        raise ValueError(f"{text!r} is not written as it is here")
    return found


def checked_public(public: str, source: str) -> str:
    """A public key as it is written; refused if it is none.

    >>> checked_public("AB" * 32, "ann") == "ab" * 32
    True
    """
    try:
        found = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).public_bytes_raw()
        if _is_anybodys(found):
            raise ValueError(public)
        return found.hex()
    except (ValueError, TypeError):
        raise InputError(f"{source}: {public!r} is no public key; give what verax key show prints") from None


def sealing_key(secret: str) -> str:
    """The public half of a round's secret, to which reports are sealed.

    >>> len(sealing_key("5ec2e7"))
    64
    """
    return _opener(secret).public_key().public_bytes_raw().hex()


def seal(document: Any, public: str, bound: Any) -> str:
    """A document that only the secret opens, and only as what it is bound to.

    >>> text = seal({"labels": [0, 1]}, sealing_key("5ec2e7"), ["r1", "ann"])
    >>> unseal(text, "5ec2e7", ["r1", "ann"]), unseal(text, "5ec2e7", ["r1", "bob"])
    ({'labels': [0, 1]}, None)
    """
    key = X25519PublicKey.from_public_bytes(bytes.fromhex(public))
    hidden = _SUITE.encrypt(wire.canonical(document).encode(), key, info=wire.canonical(bound).encode())
    return base64.b64encode(hidden).decode()


def unseal(text: str, secret: str, bound: Any) -> Any:
    """What was sealed; None where this secret does not open it, or it is bound to something else."""
    try:
        hidden = base64.b64decode(text, validate=True)
        opened = _SUITE.decrypt(hidden, _opener(secret), info=wire.canonical(bound).encode())
        return wire.parsed(opened)
    except (InvalidTag, ValueError, InputError):
        return None


def _opener(secret: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(_derived(secret.encode(), "verax seal"))


def _derived(secret: bytes, purpose: str) -> bytes:
    return HKDF(SHA256(), 32, salt=None, info=purpose.encode()).derive(secret)


class Keyring:
    """Private halves by name: files of one folder, 0600; in memory where there is no folder.

    >>> ring = Keyring()
    >>> ring.key("operator").public == ring.key("operator").public, ring.get("r1")
    (True, None)
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._memory: dict[str, str] = {}

    def __str__(self) -> str:
        return "memory" if self.folder is None else str(self.folder)

    def get(self, name: str) -> str | None:
        """What is kept under a name."""
        if self.folder is None:
            return self._memory.get(name)
        path = self._path(name)
        try:
            return path.read_text()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); only who holds the key may do this") from None

    def keep(self, name: str, text: str) -> str:
        """Keep a text under a name, unless one is there; what is there then."""
        if self.folder is None:
            return self._memory.setdefault(name, text)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(self._path(name), text)
        except FileExistsError:
            pass
        except OSError as error:
            raise InputError(
                f"{self.folder}: no key can be kept there ({error.strerror}); name another folder"
            ) from None
        return self.get(name) or text

    def key(self, name: str) -> Key:
        """The key of that name, made when it is first asked for."""
        return Key.of(self.get(name) or self.keep(name, Key.new().pem), f"{self}, {name}")

    def where(self, name: str) -> str:
        """In which file it is kept."""
        return "memory" if self.folder is None else str(self._path(name))

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{quote(name, safe='')}.key"


def write_private(path: Path, text: str, *, over: bool = False) -> None:
    """A file that only its owner may read, whole or not at all; FileExistsError where one is, unless `over` it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            os.fchmod(file.fileno(), _OWNER_ONLY)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        (os.replace if over else os.link)(name, path)
    finally:
        with suppress(OSError):
            os.unlink(name)
