"""Groups of copies as they are given: certificates, clusters, their documents, names, or the wish that they be found.

A group that is a list has the original first; where no order is given, names are as good as any.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from verax import wire
from verax.copies import Groups, find_copies
from verax.errors import InputError, OptionError
from verax.reports import Reports, some

APART = "apart"


def groups_among(reports: Reports, copies: Any) -> Groups:
    """The groups that `copies` stands for: "apart" has copies found, else names, an audit, or None.

    Or what `verax.independence` found: each of its clusters, copies or not, is one group.

    >>> reports = Reports.of(labels=[[0, 1], [0, 1], [1, 1]], agents=["ann", "bob", "cy"])
    >>> groups_among(reports, [("bob", "ann")]), groups_among(reports, None)
    ((('bob', 'ann'),), ())
    """
    if copies is None:
        return ()
    if isinstance(copies, str):
        if copies != APART:
            raise OptionError(f"copies is {copies!r}; give {APART!r}, an audit, or lists of the names of agents")
        return find_copies(reports).groups
    return named_groups(copies, reports.agents, "a report")


def named_groups(given: Any, known: Collection[str], what: str) -> Groups:
    """Groups as certificates, their document, or collections of names; lists keep their order, the original first."""
    found, seen = [], set[str]()
    for names in _collections_of_names(given):
        members = tuple(dict.fromkeys(names)) if isinstance(names, list | tuple) else tuple(sorted(names, key=str))
        if unknown := {*members} - {*known}:
            raise InputError(
                f"a cluster names {some(sorted(map(str, unknown)))}, without {what} here; audit the reports you scored"
            )
        if twice := {*members} & seen:
            raise InputError(f"in two clusters: {some(sorted(twice))}; join clusters that share an agent")
        seen |= {*members}
        found += [members] if members else []
    return tuple(found)


def joined(groups: Iterable[Iterable[str]]) -> Groups:
    """Groups of which no two share an agent: those that meet are one.

    >>> joined([["a", "b"], ["c"], ["b", "d"]])
    (('c',), ('a', 'b', 'd'))
    """
    found: list[dict[str, None]] = []
    for names in groups:
        one = dict.fromkeys(names)
        for met in [group for group in found if group.keys() & one.keys()]:
            found.remove(met)
            one = met | one
        found.append(one)
    return tuple(tuple(group) for group in found)


def _collections_of_names(given: Any) -> list[Collection[str]]:
    if isinstance(given, wire.Document) and given.format == wire.INDEPENDENCE:
        given = given.to_json()
    if isinstance(given, Mapping) and given.get("format") == wire.INDEPENDENCE:
        return [tuple(sorted(cluster["agents"])) for cluster in given["clusters"]]
    if isinstance(given, Mapping) or are_certificates(given):
        return [*clusters_of(given)]
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"clusters is {given!r}; give an audit, or lists of the names of agents")
    found = list(given)
    for cluster in found:
        if isinstance(cluster, str) or not isinstance(cluster, Collection):
            raise InputError(f"a cluster is the text {cluster!r}; give a list of the names of agents")
    return found


def clusters_of(audit: Any) -> list[set[str]]:
    """The groups of copies that an audit found, as certificates or as a document: linked by COPIES that fail.

    >>> link = {"code": "COPIES", "verdict": "fails"}
    >>> found = [link | {"agent": "a", "deviation": {"a": "b"}}, link | {"agent": "c", "deviation": {"c": "b"}}]
    >>> [sorted(group) for group in clusters_of({"format": "verax.audit/1", "certificates": found})]
    [['a', 'b', 'c']]
    """
    group_of: dict[str, set[str]] = {}
    for one, other in _copied_pairs(certificates_of(audit)):
        mine, theirs = group_of.setdefault(one, {one}), group_of.setdefault(other, {other})
        if mine is not theirs:
            mine |= theirs
            group_of.update(dict.fromkeys(theirs, mine))
    return sorted({id(group): group for group in group_of.values()}.values(), key=min)


def certificates_of(audit: Any) -> list[dict[str, Any]]:
    """The certificates of an audit, or of its document, as plain dicts."""
    if are_certificates(audit):
        audit = {"format": wire.AUDIT, "certificates": wire.plain(audit)}
    if not isinstance(audit, Mapping) or audit.get("format") != wire.AUDIT:
        raise InputError(f"not a document of format {wire.AUDIT}; make one with: verax audit REPORTS --json")
    found = audit.get("certificates")
    if not isinstance(found, list) or not all(isinstance(c, dict) for c in found):
        raise InputError("the audit has no list of certificates; make it again with: verax audit REPORTS --json")
    return found


def are_certificates(given: Any) -> bool:
    """Whether what is given is the certificates of an audit, not names.

    >>> are_certificates([["ann", "bob"]])
    False
    """
    return isinstance(given, list | tuple) and any(hasattr(each, "verdict") for each in given)


def _copied_pairs(certificates: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Who copies whom; a finding that cannot be read is refused, or a copy would be paid twice."""
    for c in certificates:
        if c.get("code") != "COPIES" or c.get("verdict") != "fails":
            continue
        agent, witness = c.get("agent"), c.get("deviation")
        pairs = list(witness.items()) if isinstance(witness, dict) else []
        if not isinstance(agent, str) or not pairs or not all(isinstance(n, str) for pair in pairs for n in pair):
            raise InputError(f"the COPIES certificate of {agent!r} does not say whose copy it is; make the audit again")
        for one, other in pairs:
            yield from ((agent, one), (one, other))
