"""Requests that nobody meant, made from the service's own OpenAPI: none is answered by a mistake of ours."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from test_service import SAID, SPEC, Place, played, report, settled
from verax.keys import Key
from verax.rounds import Admission, Submission, content_of
from verax.service.gate import Limits

QUICK: dict[str, Any] = {
    "deadline": None, "database": None, "derandomize": True, "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzzed")
    found = Place(str(folder / "verax.db"), folder, Limits(rate=0))
    played(found)
    settled(found)
    found.operator.open(type(SPEC)("r2", SPEC.tasks, SPEC.classes, "100.00", min_tasks=2))
    yield found
    found.close()


def checked(found: httpx.Response, what: str) -> None:
    """No mistake of ours, and a refusal is a sentence."""
    assert found.status_code < 500, f"{what}: {found.status_code} {found.text[:300]}"
    if found.status_code >= 400 and found.request.method != "HEAD":
        assert found.headers["content-type"] == "application/problem+json", what
        assert len(found.json()["detail"]) > 15 and found.json()["status"] == found.status_code, what


def schema_of(place: Place) -> Any:
    schemathesis = pytest.importorskip("schemathesis")
    return schemathesis.openapi.from_dict(place.http.get("/openapi.json").json())


def bearer(place: Place) -> dict[str, str]:
    return {"Authorization": f"Bearer {Path(place.service.token_file).read_text().strip()}"}


def fuzz(place: Place, examples: int) -> Counter[int]:
    """So many requests to each operation, with the operator's token and without; the statuses of the answers."""
    count: Counter[int] = Counter()
    for operation in (each.ok() for each in schema_of(place).get_all_operations()):
        if operation.path.endswith("/events"):
            continue  # which answer without end

        @settings(max_examples=examples, **QUICK)
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            for headers in ({}, bearer(place)):
                sent = case.as_transport_kwargs(base_url=place.address, headers=headers)
                try:
                    found = place.http.request(**{k: v for k, v in sent.items() if k != "cookies"}, timeout=60)
                except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeError, TypeError):
                    continue  # which no client can send
                count[found.status_code] += 1
                checked(found, f"{case.method} {case.formatted_path}")

        ask()
    return count


def test_what_openapi_allows_is_never_answered_by_a_mistake_of_ours(place):
    assert fuzz(place, 2).total() > 80


@pytest.mark.slow
def test_many_requests_are_never_answered_by_a_mistake_of_ours(place):
    found = fuzz(place, int(os.environ.get("VERAX_FUZZ", "150")))
    print(dict(found))
    assert found.total() > 3000 and {200, 401, 404, 422} <= {*found}
    assert place.service.rounds.verify("r") == []


# documents that are nearly right, to rounds that are there


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6)
    | st.sampled_from([2**63, -1, 1e308, "", "\u202e", "r", "ann", "1e9", "NaN", "0x1", "a" * 600, "../..", "ab" * 32]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6,
)  # fmt: skip


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a document."""
    inside = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [at, *(path for key, held in inside for path in places(held, (*at, key)))]


def changed(document: Any, path: tuple[Any, ...], value: Any, *, gone: bool) -> Any:
    """The same with one thing in it another, or gone."""
    if not path:
        return value
    copy = document.copy()
    if gone and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(document[path[0]], path[1:], value, gone=gone)
    return copy


def nearly_right(place: Place) -> list[tuple[str, Any]]:
    key, spec = Key.new(), place.service.rounds.spec("r2")
    record = place.remote().public_record("r2")
    made = Submission.of(record, "dan", 1, content_of(report(SAID["ann"]), spec), key).to_json()
    truth, public = (0, 1, 1, 0, 1, 0), ([0.5, 1.0], [1.0, 2.0], [0.0, 0.0], [1.0, 1.0], [2.0, 0.0], [1.0, 0.0])
    asked = [
        spec, replace(spec, truth=truth, public=public, quota=3, significance=2.0, unpaid=("ann",)),
        replace(spec, over="one", copies=True, admitted={"ann": key.public}, organisations={"ann": "a"}, invited=True),
        replace(spec, rule="ce", floor=1e-6, copies="clusters"), replace(spec, rule="ca", sign="split"),
        replace(spec, kind="market", truth=truth, scale="1.00", public=(0, 1, 0, 1, 0, 1)),
        replace(spec, kind="survey", places=4, weight=1.0),
        replace(spec, kind="hybrid", places=4, truth=(0, 1, -1, 0, -1, 0)),
    ]  # fmt: skip
    rounds = [("/rounds", replace(each, round=f"new{n}").to_json()) for n, each in enumerate(asked)]
    admission = Admission.of(record, "dan", key, "token").to_json()
    return [
        *rounds, ("/rounds/r2/submissions", made), ("/rounds/r2/admissions", admission),
        ("/rounds/r2/fund", {"amount": 5, "agent": "ann", "key": "k"}),
        ("/rounds/r2/invitations", {"count": 1, "organisation": None}), ("/webhooks", {"url": "https://127.0.0.1/"}),
        ("/log/cosignatures", {"witness": "w+00000000+AAAA", "lines": ["\u2014 w AAAA"]}),
    ]  # fmt: skip


def fuzz_nearly(place: Place, examples: int) -> Counter[int]:
    """So many documents with up to two things changed, sent as the operator; the statuses of the answers."""
    count: Counter[int] = Counter()
    headers = bearer(place)

    @settings(max_examples=examples, **QUICK)
    @given(st.sampled_from(nearly_right(place)), st.data())
    def ask(case: tuple[str, Any], data: st.DataObject) -> None:
        path, document = case
        for _ in range(data.draw(st.integers(0, 2))):
            where = data.draw(st.sampled_from(places(document)))
            document = changed(document, where, data.draw(ANY), gone=data.draw(st.booleans()))
        found = place.http.post(path, content=json.dumps(document).encode("utf-8", "replace"), headers=headers)
        count[found.status_code] += 1
        checked(found, f"{path} {json.dumps(document)[:1500]}")

    ask()
    return count


def test_documents_that_are_nearly_right_are_never_answered_by_a_mistake_of_ours(place):
    assert fuzz_nearly(place, 150).total() >= 100


@pytest.mark.slow
def test_many_documents_that_are_nearly_right(place):
    found = fuzz_nearly(place, int(os.environ.get("VERAX_FUZZ", "150")) * 100)
    print(dict(found))
    assert {200, 409, 422} <= {*found} and place.service.rounds.verify() == []
