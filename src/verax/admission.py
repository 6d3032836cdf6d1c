"""Who may take part in a round: by list, by invitation or whoever comes; one key one name, one organisation so many.

open          whoever first hands in under a name has it
by list       the agents that the spec admits, each by its public key
by invitation whoever brings a token of the operator's, once; it is bound to the name and key it is first used for

A token is the secret of a key pair, and the journal has only the public half: whoever reads it can check an admission
and make none. The token signs the name and the key it admits and never leaves its holder, so that nobody who listens
can use it for another key.
"""

from __future__ import annotations

import functools
import json
import re
import secrets
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import quote

from verax import wire
from verax.errors import ConflictError, ExtraMissing, InputError
from verax.keys import Key, is_signed
from verax.labels import checked_names
from verax.ledger import Entry
from verax.recorded import RecordedRound
from verax.spec import Spec

try:
    import confusable_homoglyphs
except ImportError:
    raise ExtraMissing("Rounds", "rounds") from None

_INVITATION = "invitation"
# what is not seen and no format character: Default_Ignorable_Code_Point of Unicode, and the blank of Braille
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True)
class Admission(wire.Document):
    """A token used: it and the agent's key both sign that this key has this name in this round."""

    round: str
    agent: str
    key: str
    invitation: str
    proof: str
    signature: str

    @classmethod
    def of(cls, opened: Mapping[str, Any], agent: str, key: Key, token: str) -> Admission:
        """What the holder of a token sends; the token itself stays where it is.

        >>> opened = {"spec": {"round": "r1"}, "digest": "d", "secret_hash": "s"}
        >>> Admission.of(opened, "ann", Key.new(), "the token").is_signed(opened)
        True
        """
        token_key, round = Key.derived(token, _INVITATION), opened["spec"]["round"]
        said = _admits(opened, agent, key.public, token_key.public)
        return cls(round, agent, key.public, token_key.public, token_key.sign(said), key.sign(said))

    def is_signed(self, opened: Mapping[str, Any]) -> bool:
        """Whether the token and the agent's key have signed this, for this round."""
        said = _admits(opened, self.agent, self.key, self.invitation)
        return is_signed(said, self.invitation, self.proof) and is_signed(said, self.key, self.signature)


@dataclass(frozen=True)
class Admitted(wire.Document):
    """Under which name a key takes part, and what should be known of that name."""

    round: str
    agent: str
    key: str
    entry: int
    warnings: tuple[str, ...] = ()


def _admits(opened: Mapping[str, Any], agent: str, key: str, invitation: str) -> list[str]:
    return ["verax.admission/1", opened["digest"], opened["secret_hash"], agent, key, invitation]


def invite(this: RecordedRound, count: int, organisation: str | None) -> list[str]:
    """So many new tokens, each for one agent; the operator signs that it has given them out, and to which organisation.

    A token is shown here and kept nowhere.
    """
    if not this.spec.invited:
        raise ConflictError(f"round {this.name!r} asks for no invitation; open another with invited=True")
    if count < 1:
        raise InputError(f"{count} invitations; give a number above 0")
    this.require("invite")
    tokens = [secrets.token_urlsafe(32) for _ in range(count)]
    for token in tokens:
        public = Key.derived(token, _INVITATION).public
        this.record_signed(f"invite:{public}", {"invitation": public, "organisation": organisation}, "invite")
    return tokens


def redeem(this: RecordedRound, given: Admission) -> Admitted:
    """Admit a key under a name by a token; the same again is answered as before, any other use of it is refused."""
    invited = this.journal.get(f"{this.name}:invite:{given.invitation}")
    if invited is None or not given.is_signed(this.opened):
        raise ConflictError(f"this is no invitation to round {this.name!r}; ask its operator for one")
    used = this.journal.get(f"{this.name}:invited:{given.invitation}")
    if used is not None:
        if (used.said["agent"], used.said["key"]) != (given.agent, given.key):
            raise ConflictError("this invitation has been used, for another name or key; ask the operator for another")
        return _admitted(this, used)
    this.require("submit")
    if given.agent in (this.spec.admitted or {}):
        raise ConflictError(f"agent {given.agent!r} is on the list of round {this.name!r}; it needs no invitation")
    _take_place(this, invited.said["organisation"])
    _take_name(this, given.agent, given.key)
    return _admitted(this, this.record(f"invited:{given.invitation}", given.to_json(), "admit"))


def _admitted(this: RecordedRound, entry: Entry) -> Admitted:
    given = Admission.from_json(entry.said)
    return Admitted(given.round, given.agent, given.key, entry.seq, warnings_of(this, given.agent))


def admit(this: RecordedRound, agent: str, key: Key | str) -> None:
    """Refuse who may not hand in under a name; where nobody is asked for, who comes first has it."""
    public = key if isinstance(key, str) else key.public
    listed = this.spec.admitted
    if listed is not None and agent in listed:
        if listed[agent] != public:
            raise ConflictError(
                f"agent {agent!r} of round {this.name!r} is another key; hand in with the one that was admitted"
            )
    elif this.spec.invited:
        if _name_of(this, agent) is None:
            raise ConflictError(
                f"agent {agent!r} is not admitted to round {this.name!r}; use an invitation first: verax round admit"
            )
    elif listed is not None:
        raise ConflictError(f"agent {agent!r} is not among the {len(listed)} that round {this.name!r} admits")
    _take_name(this, agent, public)


def _take_name(this: RecordedRound, agent: str, public: str) -> None:
    """One name has one key, and one key one name; but the operator may act for anybody."""
    held = _name_of(this, agent)
    if held is None:
        [composed] = checked_names([agent], 1, "agent", "the submission")  # at settlement it would be too late
        if composed != agent:
            raise InputError(f"agent name {agent!a} is not composed; write it as {composed!a}")
        alike = this.journal.last(this.name, "admit", f"{this.name}:name:{skeleton(agent)}:")
        like = {} if alike is None else {"like": alike.said["agent"]}
        this.record(f"name:{skeleton(agent)}:{folded(agent)}", {"agent": agent, "key": public, **like}, "admit")
    elif held.said["agent"] != agent:
        raise ConflictError(f"agent {agent!r} is written like {held.said['agent']!r}, who is in the round; rename it")
    elif held.said["key"] != public:
        raise ConflictError(f"agent {agent!r} is another key's in round {this.name!r}; hand in with that key")
    if public == this.opened.get("operator"):
        return
    other = this.journal.get(f"{this.name}:key:{public}")
    if other is None:
        this.record(f"key:{public}", {"agent": agent}, "admit")
    elif other.said["agent"] != agent:
        raise ConflictError(f"this key is already {other.said['agent']!r} in round {this.name!r}; one key, one name")


def _take_place(this: RecordedRound, organisation: str | None) -> None:
    """One of the names that an organisation may have."""
    if organisation is None:
        return
    place = f"place:{folded(organisation)}:"
    taken = this.journal.count(this.name, "place", f"{this.name}:{place}")
    taken += sum(folded(other) == folded(organisation) for other in (this.spec.organisations or {}).values())
    if taken >= this.spec.places_each:
        raise ConflictError(
            f"organisation {organisation!r} has {taken} of {this.spec.places_each} names in round {this.name!r}; "
            "it may have no more"
        )
    this.record(f"{place}{taken}", {"organisation": organisation}, "place")


def admission_problems(this: RecordedRound) -> Iterator[str]:
    """Who takes part without having been admitted, or as more than one, as far as the journal shows it."""
    if this.opened.get("operator") is None or this.spec.exam is not None:
        return
    yield from _invitation_problems(this) if this.spec.invited else ()
    admitted = dict(this.spec.admitted or {})
    if this.spec.invited:
        for given in _used_invitations(this):
            admitted.setdefault(given.agent, given.key)
    yield from _taker_problems(this, admitted)


def _used_invitations(this: RecordedRound) -> Iterator[Admission]:
    said = (entry.said for entry in this.journal.entries(this.name, "admit"))
    return (Admission.from_json(each) for each in said if "proof" in each)


def _invitation_problems(this: RecordedRound) -> Iterator[str]:
    """Invitations that the operator has not made, that were used twice, or for more names than an organisation has."""
    spec, operator = this.spec, str(this.opened["operator"])
    organisation_of: dict[str, str | None] = {}
    for entry in this.journal.entries(this.name, "invite"):
        whole, step = dict(entry.said), entry.id.removeprefix(f"{this.name}:")
        signature = whole.pop("signature", "")
        if not is_signed([this.name, step, whole], operator, signature):
            yield f"entry {entry.seq}, an invitation, is not signed by the operator who opened round {this.name!r}"
        organisation_of[whole["invitation"]] = whole["organisation"]
    used = set[str]()
    places: dict[str, int] = defaultdict(int, {folded(name): 0 for name in (spec.organisations or {}).values()})
    for given in _used_invitations(this):
        if given.invitation in used or given.invitation not in organisation_of or not given.is_signed(this.opened):
            yield f"{given.agent!r} is admitted without an invitation of its own"
        used.add(given.invitation)
        places[folded(organisation_of.get(given.invitation) or "")] += 1
    if any(n > spec.places_each for name, n in places.items() if name):
        yield f"an organisation has more than {spec.places_each} names in round {this.name!r}"


def _taker_problems(this: RecordedRound, admitted: Mapping[str, str]) -> Iterator[str]:
    """Submissions of nobody who was admitted, of one key under two names, of names written alike, over the quota."""
    spec, asked = this.spec, this.spec.invited or this.spec.admitted is not None
    name_of, written = dict[str, str](), dict[str, str]()
    often: dict[str, int] = defaultdict(int)
    for entry in this.journal.entries(this.name, "submit"):
        said = entry.said if isinstance(entry.said, dict) else {}
        agent, key = (str(said.get(name)) for name in ("agent", "key"))
        which = f"entry {entry.seq}, the submission of {agent!r},"
        if asked and admitted.get(agent) != key:
            yield f"{which} is of nobody who was admitted"
        if key != this.opened["operator"] and name_of.setdefault(key, agent) != agent:
            yield f"{which} is by the key of {name_of[key]!r}"
        if written.setdefault(folded(agent), agent) != agent:
            yield f"{which} is of a name written like {written[folded(agent)]!r}"
        often[agent] += 1
        if spec.quota is not None and often[agent] > spec.quota:
            yield f"{which} is number {often[agent]}, of the {spec.quota} that each may hand in"


def check_admission(spec: Spec) -> None:
    """Refuse terms of admission that could never be met."""
    if spec.admitted is not None and not spec.admitted:
        raise InputError("the list of agents is empty, so that nobody could take part; list some, or leave it out")
    listed = [*(spec.admitted or {})]
    alone = spec.is_surveyed or (spec.kind == "batch" and spec.truth is None and not spec.unpaid)
    if len(listed) == 1 and not spec.invited and alone:
        raise InputError(f"{listed[0]!r} alone is listed, and there is no truth to score one by; list two, or give it")
    names = {folded(agent): agent for agent in listed}
    if alike := [agent for agent in listed if names[folded(agent)] != agent]:
        first = names[folded(alike[0])]
        raise InputError(f"agents {alike[0]!r} and {first!r} are written alike; give them names that differ")
    if spec.quota is not None and spec.quota < 1:
        raise InputError(f"quota is {spec.quota}; let each agent hand in once at least")
    if spec.places_each < 1:
        raise InputError(f"per_organisation is {spec.places_each}; let each organisation have one name at least")
    organisations = spec.organisations or {}
    if strange := {*organisations} - {*listed}:
        raise InputError(f"an organisation is given for {min(strange)!r}, who is not listed; list it in admitted=")
    names_of: dict[str, list[str]] = defaultdict(list)
    for agent, organisation in organisations.items():
        names_of[folded(organisation)].append(agent)
    for agents in names_of.values():
        if len(agents) > spec.places_each:
            raise InputError(
                f"{' and '.join(map(repr, agents))} are of one organisation, which may have {spec.places_each}; "
                "list fewer, or raise per_organisation="
            )


def warnings_of(this: RecordedRound, agent: str) -> tuple[str, ...]:
    """What should be known of a name before somebody is taken for somebody else."""
    held = _name_of(this, agent)
    like = None if held is None else held.said.get("like")
    return () if like is None else (_looks_like(agent, like),)


def list_warnings(spec: Spec) -> list[str]:
    """Names on a list that look like one another and are not the same."""
    first: dict[str, str] = {}
    return [
        _looks_like(agent, first[skeleton(agent)])
        for agent in spec.admitted or {} if first.setdefault(skeleton(agent), agent) != agent
    ]  # fmt: skip


def _looks_like(agent: str, other: str) -> str:
    return f"the name {agent!r} looks like {other!r} and is another: {agent!a} beside {other!a}"


def _name_of(this: RecordedRound, agent: str) -> Entry | None:
    return this.journal.get(f"{this.name}:name:{skeleton(agent)}:{folded(agent)}")


def folded(name: str) -> str:
    """A name as two that are written alike share it: composed, without capitals or what is not seen, quoted.

    >>> folded("ZOE\u0308") == folded("zo\u200bë") == folded("zo\ufe0fë"), folded("a:b")
    (True, 'a%3Ab')
    """
    return quote(_plain(name), safe="")


def skeleton(name: str) -> str:
    """The same once letters that look alike are one letter. (Unicode TR39, section 4)

    Capitals do not count here, and a capital I is a small l to the eye: i is l too.

    >>> skeleton("раураl") == skeleton("paypal"), skeleton("modern") == skeleton("rnodem"), skeleton("BobI")
    (True, True, 'bobl')
    """
    letters = map(_prototype, unicodedata.normalize("NFD", _plain(name)))
    return quote(unicodedata.normalize("NFD", "".join(letters)).casefold().replace("i", "l"), safe="")


def _plain(name: str) -> str:
    seen = "".join(c for c in name if unicodedata.category(c) != "Cf" and not _UNSEEN.match(c))
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold())


def _prototype(letter: str) -> str:
    """The one of its look-alikes that stands for all; the data have each pair both ways round."""
    alike = _lookalikes().get(letter, [])
    if len(alike) != 1:
        return letter  # many look like it, so it stands for them; or nothing does
    other: str = alike[0]["c"]
    return other if len(other) > 1 or len(_lookalikes().get(other, [])) > 1 else min(letter, other)


@functools.cache
def _lookalikes() -> dict[str, list[dict[str, str]]]:
    data = resources.files(confusable_homoglyphs).joinpath("confusables.json")
    found: dict[str, list[dict[str, str]]] = json.loads(data.read_text("utf-8"))
    return found
