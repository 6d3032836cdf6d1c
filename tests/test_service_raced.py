"""Sixteen at once, and a thousand submissions changed on their way: what is taken is taken once, and whole."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from test_service import SAID, Place, here, place, played, report
from verax import wire
from verax.keys import Key, is_signed
from verax.rounds import Submission, content_of

__all__ = ["here", "place"]  # fixtures
RACERS, TAMPERINGS = 16, 1000


def raced(asks: list[Callable[[httpx.Client], httpx.Response]], there: Place) -> list[httpx.Response]:
    """What each is answered when all ask at the same moment."""
    start, found = threading.Barrier(len(asks)), dict[int, httpx.Response]()

    def run(n: int) -> None:
        with httpx.Client(base_url=there.address, timeout=60) as client:
            client.get("/health")
            start.wait()
            found[n] = asks[n](client)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[n] for n in range(len(asks))]


def body_of(there: Place, agent: str, key: Key, labels: tuple[int, ...]) -> bytes:
    opened, spec = there.service.rounds.public_record("r"), there.service.rounds.spec("r")
    return wire.canonical(Submission.of(opened, agent, 1, content_of(report(labels), spec), key).to_json()).encode()


def sending(
    body: bytes, path: str = "/rounds/r/submissions", **headers: str
) -> Callable[[httpx.Client], httpx.Response]:
    return lambda client: client.post(path, content=body, headers=headers)


def kinds_in(there: Place) -> Counter[str]:
    with there.service.rounds.ledger.reading() as journal:
        return Counter(entry.kind for entry in journal.entries())


def race(place: Place) -> None:
    """Sixteen ask the same, ask for one name, hand in, seal and settle, each at the same moment."""
    played(place)
    before = kinds_in(place)["submit"]
    dan = Key.new()
    same = raced([sending(body_of(place, "dan", dan, SAID["ann"]))] * RACERS, place)
    assert {found.status_code for found in same} == {201} and len({found.text for found in same}) == 1
    names = raced([sending(body_of(place, "eve", Key.new(), SAID["bob"])) for _ in range(RACERS)], place)
    assert sorted(found.status_code for found in names) == [201] + [409] * (RACERS - 1)
    others = raced([sending(body_of(place, f"f{n}", Key.new(), SAID["cy"])) for n in range(RACERS)], place)
    assert {found.status_code for found in others} == {201}
    assert len({found.json()["entry"] for found in others}) == RACERS
    token = {"authorization": f"Bearer {place.service.guard._token}"}
    for step, status in (("seal", 200), ("settle", 202)):
        found = raced([sending(b"", f"/rounds/r/{step}", **token)] * RACERS, place)
        assert {each.status_code for each in found} == {status}, found[0].text
    assert len({each.text for each in raced([sending(b"", "/rounds/r/seal", **token)] * 2, place)}) == 1
    place.work()
    assert place.operator.settle("r").amounts
    kinds = kinds_in(place)
    assert kinds["submit"] == before + 2 + RACERS and kinds["seal"] == kinds["settle"] == kinds["score"] == 1
    assert place.service.rounds.verify("r") == []


def test_sixteen_who_race_are_answered_as_if_they_had_come_one_by_one(here):
    race(here)


@pytest.mark.slow
def test_sixteen_who_race_on_each_database(place):
    race(place)


def tampered(rng: random.Random, document: dict[str, Any], other: dict[str, Any]) -> bytes:
    """The same with something in it changed: a letter, a field taken from another, a number, a bit of the text."""
    way, name = rng.randrange(4), rng.choice([*document])
    if way == 0 and isinstance(document[name], str):
        at = rng.randrange(len(document[name]))
        letter = rng.choice("0123456789abcdef")
        return json.dumps({**document, name: document[name][:at] + letter + document[name][at + 1 :]}).encode()
    if way == 1:
        return json.dumps({**document, name: other[name]}).encode()
    if way == 2:
        return json.dumps({**document, "number": rng.randint(-3, 9)}).encode()
    text = bytearray(json.dumps(document).encode())
    text[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
    return bytes(text)


def test_a_thousand_submissions_that_were_changed_on_their_way_are_all_refused(here):
    played(here)
    before, rng = here.service.rounds.head(), random.Random(0)
    document, other = (json.loads(body_of(here, agent, Key.new(), SAID["ann"])) for agent in ("dan", "eve"))
    tried = 0
    while tried < TAMPERINGS:
        body = tampered(rng, document, other)
        try:
            if json.loads(body) == document:
                continue  # nothing was changed
        except ValueError:
            pass
        found = here.http.post("/rounds/r/submissions", content=body)
        assert 400 <= found.status_code < 500, (body, found.text)
        tried += 1
    assert here.service.rounds.head() == before
    assert here.http.post("/rounds/r/submissions", content=json.dumps(document).encode()).status_code == 201


@pytest.mark.parametrize("written", [str.upper, lambda text: f"{text[:8]} {text[8:]}", lambda text: f"{text}\n"])
def test_one_key_is_written_in_one_way_so_that_it_has_one_name(here, written):
    played(here)
    key, opened = Key.new(), here.service.rounds.public_record("r")
    assert here.http.post("/rounds/r/submissions", content=body_of(here, "dan", key, SAID["ann"])).status_code == 201
    made = json.loads(body_of(here, "mallory", key, SAID["bob"]))
    said = here.http.post("/rounds/r/submissions", content=json.dumps(made | {"key": written(made["key"])}).encode())
    assert said.status_code == 409 and "is not signed by its key" in said.json()["detail"]
    assert not is_signed(opened["digest"], key.public, written(key.sign(opened["digest"])))
