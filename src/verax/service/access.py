"""Who asks: agents and operators by signed requests, operators also by a token. It says who; not what they may have.

A signed request is one of RFC 9421 (HTTP Message Signatures) in one fixed form: Ed25519 over method, authority, path,
query and a digest of the body (RFC 9530), with the time it was made at and a nonce, so that it counts once, here, soon.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from threading import Lock
from urllib.parse import SplitResult

from verax.errors import AccessError, IdentityError, LimitError
from verax.keys import Key, verifies

COVERED = ("@method", "@authority", "@path", "@query", "content-digest")
WINDOW = 60.0  # seconds by which a signed request may be old, or ahead of this clock
_MOST_NONCES = 200_000
_NAMES = " ".join(f'"{name}"' for name in COVERED)
_FORM = re.compile(
    rf"v=(?P<parameters>\({re.escape(_NAMES)}\);created=(?P<created>\d{{1,12}})"
    r';nonce="(?P<nonce>[\w-]{16,64})";keyid="(?P<key>[0-9a-f]{64})";alg="ed25519")',
    re.ASCII,
)


def signature_base(parts: Iterable[tuple[str, str]], parameters: str) -> str:
    """What is signed of a message: a line for each part, and what the signature says of itself (RFC 9421, 2.5).

    >>> print(signature_base([("@method", "GET"), ("@path", "/rounds")], '("@method" "@path");created=1'))
    "@method": GET
    "@path": /rounds
    "@signature-params": ("@method" "@path");created=1
    """
    return "\n".join(f'"{name}": {value}' for name, value in (*parts, ("@signature-params", parameters)))


def digest_header(body: bytes) -> str:
    """The Content-Digest of a body (RFC 9530).

    >>> digest_header(b"")[:20]
    'sha-256=:47DEQpj8HBS'
    """
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def _parts(method: str, url: SplitResult, digest: str) -> list[tuple[str, str]]:
    authority = url.netloc.lower().removesuffix({"http": ":80", "https": ":443"}.get(url.scheme, ":"))
    return list(zip(COVERED, (method, authority, url.path or "/", f"?{url.query}", digest), strict=True))


def signed_headers(key: Key, method: str, url: SplitResult, body: bytes) -> dict[str, str]:
    """What makes a request one that the holder of this key has signed, now."""
    said = f'created={int(time.time())};nonce="{secrets.token_urlsafe(18)}";keyid="{key.public}";alg="ed25519"'
    parameters, digest = f"({_NAMES});{said}", digest_header(body)
    signature = key.sign_bytes(signature_base(_parts(method, url, digest), parameters).encode())
    shown = base64.b64encode(signature).decode()
    return {"Content-Digest": digest, "Signature-Input": f"v={parameters}", "Signature": f"v=:{shown}:"}


class Guard:
    """Tells who made a request; `operators` are public keys, `token` what a request may bear in place of a signature.

    >>> from urllib.parse import urlsplit
    >>> key, url = Key.new(), urlsplit("https://verax.test/rounds/r1/seal")
    >>> guard, headers = Guard([key.public]), signed_headers(key, "POST", url, b"")
    >>> guard.operator("POST", url, headers, b"") == key.public
    True
    >>> guard.operator("POST", url, headers, b"")
    Traceback (most recent call last):
    verax.errors.IdentityError: this signed request was made before; sign it anew
    """

    def __init__(
        self, operators: Collection[str] = (), token: str | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.operators, self._token, self._clock = frozenset(operators), token, clock
        self._since = clock()  # what was signed before is not known to be new: nonces are not kept when this stops
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._lock = Lock()

    def operator(self, method: str, url: SplitResult, headers: Mapping[str, str], body: bytes) -> str:
        """The operator who asks, by its key, or as `token`; refused if it is none."""
        kind, _, given = headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            if not self.is_token(given.strip()):
                raise IdentityError("this is not the operator's token; it is in the file that verax serve names")
            return "token"
        key = self.signer(method, url, headers, body)
        if key not in self.operators:
            raise AccessError(f"the key {key[:16]} is no operator's here; sign with one that is, or bear the token")
        return key

    def is_token(self, given: str) -> bool:
        """Whether this is the operator's token; how long the answer takes says nothing of it."""
        expected = self._token or secrets.token_hex()
        return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())

    def signer(self, method: str, url: SplitResult, headers: Mapping[str, str], body: bytes) -> str:
        """The public key whose holder signed this request, for this place, just now, and for the first time."""
        said, signature = (headers.get(name, "") for name in ("Signature-Input", "Signature"))
        if not said and not signature:
            raise IdentityError("nobody has signed this request; sign it with a key, or as operator bear the token")
        found = _FORM.fullmatch(said)
        if found is None or not (signature.startswith("v=:") and signature.endswith(":")):
            raise IdentityError("the signature is not in the form that docs/service.md describes; sign as it says")
        digest = digest_header(body)
        if headers.get("Content-Digest", "") != digest:
            raise IdentityError("the Content-Digest is not that of the body; sign what is sent")
        base = signature_base(_parts(method, url, digest), found["parameters"])
        try:
            held = base64.b64decode(signature[3:-1], validate=True)
        except ValueError:
            held = b""
        if not verifies(found["key"], held, base.encode()):
            raise IdentityError("the signature is not this key's, or not of this request at this address")
        self._take_once(found["key"] + found["nonce"], int(found["created"]))
        return found["key"]

    def _take_once(self, nonce: str, created: int) -> None:
        now = self._clock()
        if abs(now - created) > WINDOW or created < int(self._since):
            raise IdentityError(f"the request was signed {now - created:.0f} s ago by its clock; sign it anew, in time")
        with self._lock:
            while self._seen and next(iter(self._seen.values())) < now - 2 * WINDOW:
                self._seen.popitem(last=False)
            if nonce in self._seen:
                raise IdentityError("this signed request was made before; sign it anew")
            if len(self._seen) >= _MOST_NONCES:
                raise LimitError("too many signed requests at a time; try again in a minute")
            self._seen[nonce] = now


class Sessions:
    """Who has shown the token in a browser, by a cookie that says nothing else; all end with the service.

    >>> sessions = Sessions()
    >>> sessions.knows(sessions.begin()), sessions.knows("guess")
    (True, False)
    """

    seconds = 8 * 3600.0
    _most = 1000

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[str, float] = OrderedDict()

    def begin(self) -> str:
        """A new session's name, which nobody can guess."""
        while len(self._until) >= self._most:
            self._until.popitem(last=False)
        name = secrets.token_urlsafe(32)
        self._until[name] = self._clock() + self.seconds
        return name

    def knows(self, name: str | None) -> bool:
        """Whether a session of that name has begun, and is not over."""
        return name is not None and self._until.get(name, 0.0) > self._clock()

    def end(self, name: str | None) -> None:
        """Forget it."""
        self._until.pop(name or "", None)
