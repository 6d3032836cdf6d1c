"""What a round hides until it is settled: reports, sealed to it and signed where they are made, and the truth.

A round has one secret, which its operator alone holds. To the secret's public half every report is sealed, so that
nobody without the secret reads it; the truth is sealed likewise. The secret's hash is in the round's record from the
beginning and the secret itself when all is settled, so that then everybody can open and check everything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from verax import wire
from verax.errors import ConflictError
from verax.keys import Key, is_signed, seal, sealing_key, unseal
from verax.spec import Spec, digest_of
from verax.transcript import Content, commitment, nonce_of


@dataclass(frozen=True)
class Submission(wire.Document):
    """A report as it leaves whoever made it: committed to, sealed to the round, and signed.

    `number` counts what the agent has handed in, so that nothing old can be handed in again for it. `survey`: it
    answers the survey of a market, and is no step of it.
    """

    round: str
    agent: str
    number: int
    commitment: str
    sealed: str
    key: str
    signature: str
    survey: bool = wire.if_given(False)

    @classmethod
    def of(
        cls, opened: Mapping[str, Any], agent: str, number: int, content: Content, key: Key, *, survey: bool = False
    ) -> Submission:
        """What `agent` hands in to a round, whose public record is `opened`."""
        round, nonce = opened["spec"]["round"], nonce_by(opened, agent, content, key)
        bound, hidden = commitment(round, agent, content, nonce), ""
        if not opened["spec"].get("sealing"):
            hidden = seal({"content": content, "nonce": nonce}, opened["seal_to"], [round, agent])
        unsigned = cls(round, agent, number, bound, hidden, key.public, "", survey)
        return replace(unsigned, signature=key.sign(unsigned.signed_part(opened)))

    def signed_part(self, opened: Mapping[str, Any]) -> list[Any]:
        """What the signature covers: this round and no other of that name, and everything handed in."""
        return ["verax.submission/1", opened["digest"], opened["secret_hash"], self.round, self.agent, self.number,
                self.commitment, digest_of(self.sealed), *(["survey"] if self.survey else [])]  # fmt: skip

    def check_signature(self, opened: Mapping[str, Any]) -> None:
        """Refuse what the holder of its key has not signed for this round."""
        if not is_signed(self.signed_part(opened), self.key, self.signature):
            raise ConflictError(f"the submission of {self.agent!r} is not signed by its key for this round")

    def opened(self, secret: str) -> tuple[Content, str] | None:
        """What was handed in and the commitment's nonce; None if it is not what the agent committed to."""
        found = unseal(self.sealed, secret, [self.round, self.agent])
        if not isinstance(found, dict) or not isinstance(found.get("content"), dict):
            return None
        content, nonce = found["content"], str(found.get("nonce"))
        return (content, nonce) if commitment(self.round, self.agent, content, nonce) == self.commitment else None


def nonce_by(opened: Mapping[str, Any], agent: str, content: Content, key: Key) -> str:
    """The nonce of a commitment that only this key makes; where it will be shown, bound to round and key besides."""
    hidden = hidden_nonce(opened, agent, content, key)
    return _bound(opened, key.public, hidden) if opened["spec"].get("sealing") else hidden


def hidden_nonce(opened: Mapping[str, Any], agent: str, content: Content, key: Key) -> str:
    """What an agent keeps to itself until it shows its report."""
    return key.mark([opened["digest"], agent, content])


def _bound(opened: Mapping[str, Any], public: str, hidden: str) -> str:
    return digest_of([opened["digest"], public, hidden])


def shown_content(opened: Mapping[str, Any], body: Mapping[str, Any], shown: Mapping[str, Any]) -> Content | None:
    """What an agent has shown of what it handed in; None if that is not what it committed to."""
    round, agent, content = opened["spec"]["round"], body["agent"], shown["content"]
    nonce = _bound(opened, body["key"], shown["nonce"])
    return content if commitment(round, agent, content, nonce) == body["commitment"] else None


def opened_record(spec: Spec, secret: str, opener: str | None = None) -> dict[str, Any]:
    """What everybody may know of a round from its opening on; the truth is sealed, and its digest salted.

    `opener` is what opens submissions, where that is not the secret, which everybody knows in the end. Of the inputs
    that models are given there is a salted digest only.

    >>> spec = Spec("r1", ("t1", "t2"), ("cat", "dog"), "100.00", truth=(0, 1))
    >>> found = opened_record(spec, "5ec2e7")
    >>> found["spec"]["truth"], spec_of(found, "5ec2e7") == spec, spec_of(found).truth
    (None, True, None)
    """
    found: dict[str, Any] = {"spec": spec.to_json(), "secret_hash": hashlib.sha256(secret.encode()).hexdigest()}
    if spec.truth is not None:
        salted = nonce_of(secret, spec.round, "truth", {"labels": list(spec.truth)})
        found |= {"spec": found["spec"] | {"truth": None}, "truth": salted}
        found["truth_sealed"] = seal(list(spec.truth), sealing_key(secret), [spec.round, "truth"])
    if spec.asks is not None:
        found |= {"spec": found["spec"] | {"asks": spec.asks.shown.to_json()}}
        found["inputs"] = nonce_of(secret, spec.round, "inputs", {"digest": spec.asks.digest})
    return found | {"digest": _digest_at_opening(found), "seal_to": sealing_key(opener or secret)}


def _digest_at_opening(opened: Mapping[str, Any]) -> str:
    """The spec's digest; truth and inputs enter as salted digests of their own, which help no guess."""
    return digest_of(opened["spec"] | {name: opened[name] for name in ("truth", "inputs") if name in opened})


def spec_of(opened: Mapping[str, Any], secret: str | None = None) -> Spec:
    """What a round asks, as far as anybody may know; with the secret, its truth too."""
    spec = Spec.from_json(opened["spec"])
    return spec if secret is None else with_truth(spec, opened, secret)


def with_truth(spec: Spec, opened: Mapping[str, Any], secret: str) -> Spec:
    """The same spec with the truth that its round hides."""
    if "truth_sealed" not in opened:
        return spec
    found = unseal(opened["truth_sealed"], secret, [spec.round, "truth"])
    return replace(spec, truth=None if found is None else tuple(found))


def opening_problems(opened: Mapping[str, Any], secret: str | None) -> list[str]:
    """What is wrong with the record of an opening, as far as can be said; with the secret, everything."""
    if _digest_at_opening(opened) != opened["digest"]:
        return ["the round's spec is not the one that was hashed at opening"]
    if secret is None:
        return []
    if hashlib.sha256(secret.encode()).hexdigest() != opened["secret_hash"]:
        return ["the published secret is not the one committed to at opening"]
    spec = spec_of(opened, secret)
    salted = nonce_of(secret, spec.round, "truth", {"labels": list(spec.truth or ())})
    if "truth" in opened and opened["truth"] != salted:
        return ["the truth is not the one that was hashed at opening"]
    return []
