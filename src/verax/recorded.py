"""A round as its journal has it, inside one transaction: what is recorded, by whom, and what may come next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import quote

from verax.answered import Answers, refuse_other_inputs
from verax.beacon import beacon_time, randomness_of
from verax.errors import ConflictError, InputError, LedgerError, NotFoundError
from verax.examined import Sat
from verax.keys import OPERATOR, Key, Keyring, is_signed
from verax.ledger import HOUSE, Entry, Journal, Transfer
from verax.sealed import Submission, shown_content, spec_of, with_truth
from verax.spec import FIRST, Spec, digest_of
from verax.transcript import Content, Settlement, Transcript, commitment, nonce_of, nothing_said, reports_of

TRANSITIONS: dict[tuple[str, str], str] = {
    ("none", "open"): "open",
    ("open", "fund"): "open",
    ("open", "invite"): "open",
    ("open", "submit"): "open",
    ("open", "seal"): "sealed",
    ("sealed", "reveal"): "sealed",
    ("sealed", "score"): "scored",
    ("scored", "settle"): "settled",
    ("open", "void"): "void",
    ("sealed", "void"): "void",
}
_MOVES = {"moves": "signed"}  # what an operator's transfers are, since there are rounds that say so
LATEST_FIRST = ("settle", "score", "void", "seal", "open")  # the steps that leave a record


@dataclass(frozen=True)
class RecordedRound:
    """One round inside one transaction: what is recorded of it, and what may come next."""

    journal: Journal
    name: str
    keys: Keyring
    asked: dict[str, Spec]
    openings: dict[str, dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def steps(self) -> dict[str, Entry]:
        """The records of its steps, by name, but what it asks where that is known: it may be large."""
        known = ("open",) if self.name in self.asked else ()
        ids = [f"{self.name}:{step}" for step in (*LATEST_FIRST, "answers", "secret", "beacon") if step not in known]
        return {e.id.removeprefix(f"{self.name}:"): e for e in self.journal.among(*ids)}

    def said(self, step: str) -> Any:
        """What a step has recorded that no round is without."""
        entry = self.steps.get(step) or self.journal.get(f"{self.name}:{step}")
        if entry is None:
            raise NotFoundError(f"no round is called {self.name!r}; open it first, or check db=")
        return entry.said

    @cached_property
    def opened(self) -> dict[str, Any]:
        """The record of its opening, read once: it may be large."""
        if self.name not in self.openings:
            self.openings[self.name] = self.said("open")
        return self.openings[self.name]

    def record(self, step: str, body: Any, kind: str | None = None) -> Entry:
        return self.journal.record(f"{self.name}:{step}", kind or step, self.name, body)

    def record_signed(self, step: str, body: dict[str, Any], kind: str | None = None) -> Entry:
        """A step of the operator's, signed together with all that was recorded before it."""
        key, head = self.operator, self.journal.head()
        whole = body | {"after": head.to_json(), "operator": key.public} | (_MOVES if step == "open" else {})
        return self.record(step, whole | {"signature": key.sign([self.name, step, whole])}, kind)

    @property
    def operator(self) -> Key:
        """The operator's key, which only who opened the round has."""
        key = self.keys.key(OPERATOR)
        if "open" in self.steps or self.name in self.asked:
            of_round = self.opened.get("operator", key.public)
            if of_round != key.public:
                raise ConflictError(
                    f"round {self.name!r} was opened by another operator: the key of {of_round[:16]} is needed, "
                    f"and {self.keys} has that of {key.public[:16]}"
                )
        return key

    def move(self, step: str, debit: str, credit: str, amount: int) -> Entry:
        """Money that the operator moves, signed."""
        code, key = step.partition(":")[0], self.operator
        asked = Transfer(f"{self.name}:{step}", debit, credit, amount, code, self.name, self.spec.currency)
        if "moves" in self.opened:
            asked = replace(asked, signature=key.sign(self.ordered(asked)))
        return self.journal.transfer(asked)

    def ordered(self, t: Transfer | Entry) -> list[Any]:
        """What the operator signs of a transfer: it is of this round, and of no other of that name."""
        opened = self.opened["secret_hash"]
        return ["verax.transfer/1", opened, t.round, t.id, t.debit, t.credit, t.amount, t.currency]

    def available(self, account: str) -> int:
        return self.journal.available(account, self.spec.currency)

    @property
    def escrow(self) -> str:
        return f"escrow:{self.name}"

    @property
    def spec(self) -> Spec:
        """What it asks, without what is hidden until settlement."""
        if self.name not in self.asked:
            self.asked[self.name] = spec_of(self.opened)
        return self.asked[self.name]

    @property
    def secret(self) -> str:
        if "secret" in self.steps:  # a first version's journal holds it
            return str(self.said("secret")["secret"])
        if (kept := self.known_secret) is None:
            raise LedgerError(f"the secret of round {self.name!r} is not in {self.keys}; give the folder with keys=")
        return kept

    @property
    def known_secret(self) -> str | None:
        """The secret where it is published, or in the keyring."""
        if "settle" in self.steps:
            return str(self.settlement_document["secret"])
        return self.keys.get(secret_name(self.name, self.opened["secret_hash"]))

    @property
    def state(self) -> str:
        there = {*self.steps, *(["open"] if self.name in self.asked else [])}
        latest = next((step for step in LATEST_FIRST if step in there), None)
        return next((state for (_, step), state in TRANSITIONS.items() if step == latest), "none")

    def require(self, step: str) -> None:
        """Refuse a step that the table of transitions does not have."""
        state = self.state
        if state == "none":
            self.said("open")  # which says that there is no such round
        if (state, step) not in TRANSITIONS:
            allowed = [name for (before, name) in TRANSITIONS if before == state]
            raise ConflictError(
                f"round {self.name!r} is {state} and cannot {step}; it can only {' or '.join(allowed) or 'be shown'}"
            )

    @property
    def has_truth(self) -> bool:
        return "truth" in self.opened or self.opened["spec"].get("truth") is not None

    def taken(self) -> list[tuple[str, Any]]:
        """The submissions that count, as recorded: all of a market or an exam, else each agent's last, as they came.

        Where a batch does not ask who was first they go by name, and so does the root of what was sealed. What a survey
        was answered follows the steps of its market.
        """
        taken = [(body["agent"], body) for body in self.journal.said(self.name, "submit")]
        if self.spec.exam is not None:
            return taken
        steps = [each for each in taken if self.spec.is_market and not each[1].get("survey")]
        standing: dict[str, Any] = {}
        for agent, body in taken:
            if not self.spec.is_market or body.get("survey"):
                standing.pop(agent, None)  # whoever replaces its report has the place of the new one
                standing[agent] = body
        return steps + (list(standing.items()) if self.spec.copies == FIRST else sorted(standing.items()))

    def missing(self, taken: list[tuple[str, Any]]) -> str:
        """What these submissions lack to be settled; nothing if they lack nothing."""
        spec = self.spec
        if not taken:
            return "no submissions"
        surveyed = {agent for agent, body in taken if body.get("survey")}
        steps = {agent for agent, body in taken if spec.is_market and not body.get("survey")}
        if spec.is_surveyed and len(surveyed) < 2:
            return f"{len(surveyed)} of the survey's answers, and two score each other"
        if spec.is_surveyed and not spec.keep_both and surveyed <= steps:
            return "nobody in the survey without a step in the market, so that none can be drawn"
        if spec.is_market and not steps:
            return "no step in the market"
        if spec.kind == "batch" and len(taken) < 2 and not (self.has_truth or spec.unpaid):
            return "one submission and no truth to score it by"
        return ""

    def handed_in(self, agent: str) -> int:
        """How often an agent has handed in."""
        parts = (False, True) if self.spec.is_surveyed else (False,)
        return sum(self.journal.count(self.name, "submit", self.prefix_of(agent, part)) for part in parts)

    def prefix_of(self, agent: str, survey: bool) -> str:
        """How the ids of an agent's submissions begin."""
        return f"{self.name}:{'survey' if survey else 'submit'}:{quote(agent, safe='')}:"

    def key_of(self, made: Submission) -> str:
        """The key of a submission without one: that of the report that stands if it is the same, else a new one.

        In a market the last step of all stands, so that an agent may restore what another changed.
        """
        mine = self.prefix_of(made.agent, made.survey)
        step = self.spec.is_market and not made.survey
        standing = self.journal.last(self.name, "submit", f"{self.name}:submit:" if step else mine)
        if standing is not None and standing.id.startswith(mine) and standing.said["commitment"] == made.commitment:
            return standing.id.removeprefix(mine)
        return f"{made.commitment}:{0 if standing is None else standing.seq}"

    def signature_problems(self) -> Iterator[str]:
        """Steps and submissions that nobody signed who may have made them."""
        operator = self.opened.get("operator")
        if operator is None:
            return  # a first version's round, where nobody signed anything
        for step in (*LATEST_FIRST, "answers"):
            if step in self.steps:
                whole = dict(self.steps[step].said)
                signature = whole.pop("signature", "")
                if not is_signed([self.name, step, whole], operator, signature):
                    yield f"the step {step} of round {self.name!r} is not signed by the operator who opened it"
        beacon, sealed = self.spec.beacon, self.steps.get("seal")
        if beacon is not None and sealed is not None and str(sealed.at) >= beacon_time(beacon).isoformat():
            yield f"round {self.name!r} was sealed when beacon {beacon} was known, and what it draws could be chosen"
        count: dict[str, int] = defaultdict(int)
        holders: dict[str, str] = {}
        for entry in self.journal.entries(self.name, "submit"):
            try:
                made = Submission.from_json(entry.said)
            except InputError as error:
                yield f"entry {entry.seq} is no submission: {error}"
                continue
            if not is_signed(made.signed_part(self.opened), made.key, made.signature):
                yield f"entry {entry.seq}, the submission of {made.agent!r}, is not signed by its key"
            if self.spec.exam is not None and made.key != operator:
                yield f"entry {entry.seq}, {made.agent} of the exam, is not recorded by the operator who opened it"
            if holders.setdefault(made.agent, made.key) != made.key:
                yield f"entry {entry.seq} replaces a submission of {made.agent!r} by another key's"
            count[made.agent] += 1
            if made.number != count[made.agent]:
                yield f"entry {entry.seq} is number {made.number} of {made.agent!r}, in place of {count[made.agent]}"
            if entry.at and self.spec.is_closed(datetime.fromisoformat(entry.at)):
                yield f"entry {entry.seq}, the submission of {made.agent!r}, came after the deadline"

    @property
    def opener(self) -> str:
        """What opens submissions: the secret; for models what only the operator can tell, before and after."""
        return self.secret if self.spec.asks is None else opener_of_models(self.operator, self.name, self.opened)

    def models(self, inputs: Mapping[str, Any]) -> list[tuple[str, str, Content | None]]:
        """Whose model was taken: commitment, and what was handed in where it can be opened; refuses other inputs."""
        refuse_other_inputs(self.spec, self.opened, self.secret, inputs)
        taken = [(agent, Submission.from_json(body)) for agent, body in self.taken()]
        opener = self.opener
        return [(agent, made.commitment, (made.opened(opener) or (None,))[0]) for agent, made in taken]

    @property
    def answers(self) -> Answers:
        """What was recorded of models when they were run."""
        if "answers" not in self.steps:
            raise ConflictError(f"the models of round {self.name!r} were not run; settle it first")
        try:
            return Answers.recorded(self.steps["answers"].said)
        except InputError as error:
            raise LedgerError(f"the record of what models said in round {self.name!r} is none: {error}") from None

    def transcript(self, answers: Answers | None = None) -> Transcript:
        """What a settlement rests on; `answers` are those of its models where they are not recorded yet."""
        sealed, secret, taken = self.steps.get("seal"), self.secret, self.taken()
        if sealed is None:
            raise ConflictError(f"round {self.name!r} is not sealed; seal it first")
        root = digest_of([body["commitment"] for _, body in taken])
        spec = with_truth(self.spec, self.opened, secret)
        if spec.asks is not None:
            answers = answers or self.answers
            spec = replace(spec, unpaid=(*spec.unpaid, *answers.problems))
        shown = self.revealed()
        missing = [each for each in taken if self.spec.sealing and each[1]["commitment"] not in shown]
        opened = [(each[0], self._content_of(each[1], secret, answers, shown)) for each in taken if each not in missing]
        if root != sealed.said["root"] or any(content is None for _, content in opened):
            raise LedgerError(f"the submissions of round {self.name!r} are not those that were sealed; nothing is paid")
        said = [(agent, content) for agent, content in opened if content is not None]
        withheld = [(agent, self.spec.is_market and not body.get("survey")) for agent, body in missing]
        return Transcript(spec, said, secret, root, self.chance(shown), withheld)

    def chance(self, shown: dict[str, Any]) -> str:
        """What enters the draws and nobody knew before the sealing: the beacon, and every nonce that was shown."""
        nonces = sorted(str(each["nonce"]) for each in shown.values())
        beacon = [] if self.spec.beacon is None else [randomness_of(self.spec.beacon, self.said("beacon")["signature"])]
        return digest_of([*beacon, *nonces]) if beacon or nonces else ""

    def revealed(self) -> dict[str, Any]:
        """What was shown of what was committed to, by commitment."""
        if self.spec.sealing is None:
            return {}
        before = f"{self.name}:reveal:"
        return {entry.id.removeprefix(before): entry.said for entry in self.journal.entries(self.name, "reveal")}

    def contents(self) -> list[tuple[str, Content | None]]:
        """What was handed in to an exam so far, opened with its secret."""
        return [(agent, self._content_of(body, self.secret, None, {})) for agent, body in self.taken()]

    def _content_of(self, body: Any, secret: str, answers: Answers | None, shown: Mapping[str, Any]) -> Content | None:
        """What was handed in; None where it is not what was committed to, by whoever keeps the journal."""
        agent = body["agent"]
        if "content" in body:
            nonce = nonce_of(secret, self.name, agent, body["content"])
            return (
                body["content"] if commitment(self.name, agent, body["content"], nonce) == body["commitment"] else None
            )
        found = Submission.from_json(body)
        if not is_signed(found.signed_part(self.opened), found.key, found.signature):
            return None
        if answers is not None:
            return answers.content(self.spec, agent, found.commitment)
        if self.spec.sealing is None:
            content = (found.opened(secret) or (None,))[0]
        elif (content := shown_content(self.opened, body, shown[found.commitment])) is None:
            return None
        try:
            assert content is not None
            content = {name: held for name, held in content.items() if name != "survey"}  # its signature says so
            check_content(self.spec, agent, content)
        except (ArithmeticError, AssertionError, InputError, KeyError, TypeError, ValueError):
            if self.spec.exam is not None:
                return None  # signed by the operator, who has not recorded what it committed to
            content = nothing_said(self.spec)  # signed by its agent, who has to bear that it says nothing
        return {**content, "survey": True} if found.survey else content

    def settled(self) -> Settlement | None:
        """What was settled, if it was."""
        if "settle" not in self.steps:
            return None
        _ = self.spec.chosen  # a market's document is checked against what its rule can give
        return Settlement.recorded(self.spec, self.settlement_document)

    @property
    def settlement_document(self) -> Any:
        said = self.said("score")
        return said.get("settlement", said)  # a first version's record is the settlement itself

    def paid(self) -> dict[str, int]:
        """What was really moved to (or from) each agent when the round was settled."""
        found: dict[str, int] = defaultdict(int)
        for e in self.journal.entries(self.name, "posted"):
            if e.said["code"] == "pay" and e.debit and e.credit and e.amount:
                gained = e.credit.startswith("agent:")
                found[(e.credit if gained else e.debit).removeprefix("agent:")] += e.amount if gained else -e.amount
        return found

    def staked(self, agent: str) -> int:
        """What is held of an agent for this round, released or not."""
        return self.journal.held(self.name, f"agent:{agent}")

    def hold_stake(self, agent: str, amount: int) -> Entry:
        mine = f"{self.name}:stake:{quote(agent, safe='')}:"
        number = self.journal.count(self.name, "pending", mine) + 1
        sides = f"agent:{agent}", self.escrow, amount
        return self.journal.hold(Transfer(f"{mine}{number}", *sides, "stake", self.name, self.spec.currency))

    def release_stakes(self) -> None:
        for e in list(self.journal.entries(self.name, "pending")):
            self.journal.void(f"{e.id}:release", e.id)

    def give_back(self) -> None:
        if rest := self.available(self.escrow):
            self.move("residue", self.escrow, HOUSE, rest)


def opener_of_models(operator: Key, round: str, opened: Mapping[str, Any]) -> str:
    """What opens a round's models: nobody can tell it but who holds the operator's key."""
    return operator.mark(["models", round, opened["secret_hash"]])


def check_content(spec: Spec, agent: str, content: Any) -> None:
    """Refuse what could not be settled: of a batch or a market a report, of an exam a round that was sat."""
    if spec.exam is not None:
        Sat.from_json(content)
        return
    labels = content["labels"]  # just these: what NumPy would make something of, beside other reports it may not
    if type(labels) is not list or not all(type(k) is int and -1 <= k < len(spec.classes) for k in labels):
        raise InputError(f"the labels of {agent!r} are not numbers of the round's classes, or -1")
    if reports_of(spec, [(agent, content)]).probabilities is None and spec.chosen.needs_rows:
        raise InputError(f"{agent!r} has labels only, and the rule {spec.rule} needs probabilities")


def secret_name(round: str, secret_hash: str) -> str:
    """Under which a round's secret is kept in a keyring."""
    return f"{round}.{secret_hash[:16]}"
