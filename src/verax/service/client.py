"""A service from afar: what `Rounds` does, asked over HTTP. Reports are sealed and signed here, and checked here.

Truth and tokens go to an operator's own service only, and only where nobody can listen.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, urlsplit

from verax import wire
from verax.answered import content_to_take
from verax.errors import (
    AccessError,
    ConflictError,
    ExtraMissing,
    IdentityError,
    InputError,
    LedgerError,
    LimitError,
    NotFoundError,
    VeraxError,
)
from verax.keys import Key
from verax.ledger import Entry, Head, Ledger
from verax.log import Checkpoint, Proof
from verax.models.prediction import Model
from verax.reports import Reports
from verax.rounds import Admission, Admitted, Receipt, Reveal, Rounds, Settlement, Spec, Submission, content_of
from verax.sealed import nonce_by, spec_of
from verax.service.access import signed_headers
from verax.service.views import address

try:
    import httpx
    from sqlalchemy.exc import SQLAlchemyError

    from verax.database import journal_table
except ImportError:
    raise ExtraMissing("Services", "service") from None

_ERRORS: dict[int, type[VeraxError]] = {
    401: IdentityError, 403: AccessError, 404: NotFoundError, 409: ConflictError, 422: InputError, 429: LimitError,
    503: LedgerError,
}  # fmt: skip
_TRIES = 6
_POLL = 0.2


class _Signed(httpx.Auth):
    """Signs each request as it is sent, so that one that is sent again is a new one."""

    requires_request_body = True

    def __init__(self, key: Key) -> None:
        self._key = key

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        path, _, query = request.url.raw_path.decode("ascii").partition("?")
        url = urlsplit("")._replace(scheme=request.url.scheme, netloc=request.headers["host"], path=path, query=query)
        request.headers.update(signed_headers(self._key, request.method, url, request.content))
        yield request


class _Said(dict[str, Any]):
    """A document of somebody else's: what it does not say is refused, wherever it is asked for."""

    def __missing__(self, name: str) -> Any:
        raise LedgerError(f"the answer has no {name!r}, as that of a verax service has; check the server's address")


class Remote:
    """The rounds of a service. `credential` is a file: an operator's key, or the token that its service made."""

    def __init__(self, server: str, credential: str | Path | None = None, *, wait: float = 0.25) -> None:
        self._server, self._wait = server.rstrip("/"), wait
        where = urlsplit(self._server)
        if where.scheme not in ("http", "https") or not where.hostname or where.query or where.fragment:
            raise InputError(f"{server!r} is no server; give its address as http://host:port or https://host")
        self._private = where.scheme == "https" or _is_here(where.hostname)
        self._auth, headers = None, {}
        if credential is not None:
            text = _text_of(Path(credential)).strip()
            if "PRIVATE KEY" in text:
                self._auth = _Signed(Key.of(text, str(credential)))
            else:
                self._must_be_private("an operator's token")
                headers = {"Authorization": f"Bearer {text}"}
        # certificates take long to load, and http has none; a proxy would read what stays within this machine
        how: dict[str, Any] = {"verify": where.scheme == "https", "trust_env": not _is_here(where.hostname)}
        self._http = httpx.Client(headers=headers, timeout=60.0, follow_redirects=False, **how)
        self._opened: dict[str, dict[str, Any]] = {}
        self._copy: Rounds | None = None

    def _must_be_private(self, what: str) -> None:
        if not self._private:
            raise InputError(
                f"{what} would go to {self._server} for everybody to read; use https, or for an operator a key"
            )

    def close(self) -> None:
        """Let go of the connections, and of a copy of the journal."""
        self._http.close()
        if self._copy is not None:
            self._copy.ledger.close()
            self._folder.cleanup()

    def ask(
        self, method: str, path: str, document: Any = None, *, auth: httpx.Auth | None = None,
        headers: Mapping[str, str] | None = None, query: Mapping[str, Any] | None = None,
    ) -> httpx.Response:  # fmt: skip
        """One request, made again where nobody can know whether it arrived: every one of them may be."""
        content = b"" if document is None else wire.canonical(document).encode()
        sent = {"Content-Type": "application/json", **(headers or {})} if content else dict(headers or {})
        used = auth or self._auth
        for tries in range(_TRIES):
            try:
                found = self._http.request(
                    method, self._server + path, content=content, headers=sent, params=query, auth=used
                )
                if found.status_code not in (429, 502, 503, 504) or tries == _TRIES - 1:
                    return _checked(found)
            except httpx.HTTPError as error:
                if tries == _TRIES - 1:
                    raise LedgerError(f"{self._server}: no answer ({error}); see whether it runs, and where") from None
            time.sleep(self._wait * 2**tries)
        raise AssertionError

    def _document(self, method: str, path: str, document: Any = None, **how: Any) -> Any:
        found = wire.parsed(self.ask(method, path, document, **how).content, self._server)
        if not isinstance(found, dict):
            raise LedgerError(f"{self._server} answered something else than a verax service does; check the address")
        return _Said(found)

    def _entry(self, path: str, document: Any = None) -> Entry:
        return wire.decoded(Entry, self._document("POST", path, document), "the entry")

    def public_record(self, round: str) -> dict[str, Any]:
        """The record of a round's opening."""
        if round not in self._opened:
            self._opened[round] = self._document("GET", f"{address(round)}/opening.json")
        return self._opened[round]

    def spec(self, round: str) -> Spec:
        """What a round asks."""
        found = spec_of(self.public_record(round))
        if ":" in found.rule:
            raise InputError(f"rule {found.rule!r} is code that the server names; it is not run here for a stranger")
        return found

    def rounds(self) -> list[dict[str, Any]]:
        """All rounds, and how far each is."""
        found: list[dict[str, Any]] = self._document("GET", "/rounds.json")["rounds"]
        return found

    def open(self, spec: Spec) -> Entry:
        """Open a round."""
        if spec.truth is not None:
            self._must_be_private("the truth")
        return self._entry("/rounds", spec.to_json())

    def fund(self, round: str, amount: int | None = None, *, agent: str | None = None, key: str | None = None) -> Entry:
        """Set the budget aside, or put money on an agent's account."""
        again = key or (None if amount is None and agent is None else secrets.token_hex(16))
        return self._entry(f"{address(round)}/fund", {"amount": amount, "agent": agent, "key": again})

    def invite(self, round: str, count: int = 1, *, organisation: str | None = None) -> list[str]:
        """New invitations, each for one agent, once."""
        asked = {"count": count, "organisation": organisation}
        found: list[str] = self._document("POST", f"{address(round)}/invitations", asked)["invitations"]
        return found

    def admit(self, given: Admission) -> Admitted:
        """Use an invitation, which stays here."""
        return Admitted.from_json(self._document("POST", f"{address(given.round)}/admissions", given.to_json()))

    def submit(
        self, round: str, agent: str, report: Reports | Model, *, key: str | None = None, signer: Key | None = None,
        survey: bool = False,
    ) -> Receipt:  # fmt: skip
        """Seal and sign a report here, and hand it in; what leaves this machine only the round's secret opens."""
        if signer is None:
            raise InputError("a report is signed here, by its agent; give sign= and the file of its key")
        content = content_to_take(report, self.spec(round))
        opened, number = self.public_record(round), self.of_agent(round, agent)["next"]
        made = Submission.of(opened, agent, number, content, signer, survey=survey)
        try:
            headers = {"Idempotency-Key": key} if key else {}
            found = self._document("POST", f"{address(round)}/submissions", made.to_json(), headers=headers)
            receipt = Receipt.from_json(found)
        except ConflictError as refusal:
            receipt = self._taken_before(made, refusal)  # where the answer to it was lost
        return replace(receipt, nonce=nonce_by(opened, agent, content, signer))

    def reveal(self, round: str, agent: str, report: Reports, *, signer: Key | None = None) -> Entry:
        """Show what an agent committed to, by the same report and key."""
        if signer is None:
            raise InputError("what was committed to is shown by the key that did; give sign= and the file of it")
        made = Reveal.of(self.public_record(round), agent, content_of(report, self.spec(round)), signer)
        return self._entry(f"{address(round)}/reveals", made.to_json())

    def give_beacon(self, round: str, text: str) -> Entry:
        """Bring the beacon that a round waits for."""
        return self._entry(f"{address(round)}/beacon", {"text": text})

    def _taken_before(self, made: Submission, refusal: ConflictError) -> Receipt:
        """The receipt of just this submission; if it was never taken, its refusal stands."""
        for each in self.of_agent(made.round, made.agent)["submissions"]:
            if (each["number"], each["commitment"]) == (made.number, made.commitment):
                head = Head(each["entry"], each["hash"])
                return Receipt(made.round, made.agent, made.commitment, "", each["entry"], head)
        raise refusal

    def receipt(self, round: str, agent: str, entry: int | None = None, *, nonce: str | None = None) -> Proof:
        """What an agent keeps of a submission; the nonce is put in here, and sent to nobody."""
        query = {} if entry is None else {"entry": entry}
        found = Proof.parsed(self.ask("GET", f"{address(round, agent)}.receipt", query=query).text, self._server)
        return found if nonce is None else replace(found, beside={**found.beside, "nonce": nonce})

    def of_agent(self, round: str, agent: str) -> dict[str, Any]:
        """What an agent has handed in, and what became of it."""
        found: dict[str, Any] = self._document("GET", f"{address(round, agent)}.json")
        return found

    def handed_in(self, round: str, agent: str) -> list[dict[str, Any]]:
        """What an agent has handed in, in order."""
        found: list[dict[str, Any]] = self.of_agent(round, agent)["submissions"]
        return found

    def state(self, round: str) -> str:
        """How far a round is."""
        return str(self.show(round)["state"])

    def balance(self, round: str, agent: str, signer: Key | None = None) -> dict[str, Any]:
        """What is on an agent's account, in minor units."""
        auth = None if signer is None else _Signed(signer)
        found: dict[str, Any] = self._document("GET", f"{address(round, agent)}/balance.json", auth=auth)
        return found

    def seal(self, round: str) -> Entry:
        """Take nothing more."""
        return self._entry(f"{address(round)}/seal")

    def void(self, round: str) -> Entry:
        """Call the round off."""
        return self._entry(f"{address(round)}/void")

    def settle(self, round: str, *, inputs: Any = None, jail: str = "strong") -> Settlement:
        """Have the round settled, and wait for it; the inputs of models are not sent anywhere."""
        if inputs is not None or (jail != "strong" and self.spec(round).asks is not None):
            raise InputError("models are run beside the database, where their inputs are: verax round settle, there")
        found = self._document("POST", f"{address(round)}/settle")
        while found["state"] in ("none", "queued", "running"):
            time.sleep(_POLL)
            found = self._document("GET", f"{address(round)}/settlement.json")
        if found["state"] != "settled":
            raise ConflictError(f"round {round!r} was not settled: {found['reason']}")
        return Settlement.from_json(found["settlement"])

    def ask_again(self, round: str, *given: Any, jail: str = "strong") -> bool:
        """A model is run again with a copy of the database, not from afar."""
        raise InputError("a model is run again with a copy of the database: verax round verify --model, beside it")

    def show(self, round: str) -> dict[str, Any]:
        """What may be known of a round now."""
        found: dict[str, Any] = self._document("GET", f"{address(round)}.json")
        return found

    def payouts(self, round: str) -> str:
        """Who is to be paid what, as CSV."""
        return self.ask("GET", f"{address(round)}/payouts.csv").text

    def webhooks(self) -> list[dict[str, Any]]:
        """Whom the service tells what happens, and how the last telling went."""
        found: list[dict[str, Any]] = self._document("GET", "/webhooks.json")["webhooks"]
        return found

    def add_webhook(self, url: str) -> dict[str, Any]:
        """Tell an address; the secret that signs is in the answer, this once."""
        found: dict[str, Any] = self._document("POST", "/webhooks", {"url": url})
        return found

    def remove_webhook(self, id: str) -> None:
        """Tell it no more."""
        self.ask("DELETE", f"/webhooks/{quote(id, safe='')}")

    def head(self) -> Head:
        """Where the journal ends that was copied here, or else the one of the service."""
        if self._copy is not None:
            return self._copy.ledger.head()
        return wire.decoded(Head, self._document("GET", "/journal.json", query={"most": 1})["head"], "the head")

    def verify(self, round: str | None = None, *kept: Head | Checkpoint) -> list[str]:
        """Every problem of a copy of the journal, checked here: nothing that the service says of itself is taken."""
        return self._copied(round).verify(round, *kept)

    def payment(self, round: str, agent: str) -> tuple[int, int]:
        """What an agent was paid, and what the transcript gives when computed here."""
        return self._copied(round).payment(round, agent)

    def _copied(self, round: str | None) -> Rounds:
        """The whole journal, in a database of its own."""
        if self._copy is None:
            self._folder = TemporaryDirectory(prefix="verax-copy-")
            self._copy = Rounds(Ledger.open(str(Path(self._folder.name) / "copy.db")))
            self._copy_entries(self._copy.ledger)
        if round is not None and ":" in (rule := self._copy.spec(round).rule):
            raise InputError(f"rule {rule!r} is code that the server names; it is not run here for a stranger")
        return self._copy

    def _copy_entries(self, ledger: Ledger) -> None:
        """Take the service's entries as they are; what is wrong with them is for `verify` to say."""
        last = 0
        while said := self._document("GET", "/journal.json", query={"after": last, "most": 1000})["entries"]:
            found = [vars(entry) for entry in wire.decoded(list[Entry], said, "the journal")]
            if found[-1]["seq"] <= last:
                raise LedgerError(f"{self._server}: its journal comes to no end; keep what it answered, and trust none")
            try:
                with ledger.engine.begin() as connection:
                    connection.execute(journal_table.insert(), found)
            except (SQLAlchemyError, OverflowError):
                raise LedgerError(f"{self._server}: its journal has an entry twice, or one that cannot be") from None
            last = found[-1]["seq"]
        ledger.catch_up()


def _checked(found: httpx.Response) -> httpx.Response:
    if found.is_success:
        return found
    try:
        said = wire.parsed(found.content)["detail"]
    except (VeraxError, KeyError, TypeError):
        said = f"{found.url.host} answered {found.status_code}, and not as a verax service does; check the address"
    raise _ERRORS.get(found.status_code, VeraxError)(str(said))


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _text_of(path: Path) -> str:
    from verax.tables import read_text

    return read_text(path)
