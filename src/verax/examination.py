"""A federation's exam as it goes on: rounds are sat, recorded where there is a ledger, and paid for once at the end.

    examination.sit(broadcasts, works, imitations, still, seed, number)      a round: who is not examined, and why
    examination.scores()                                                     everybody's, over all rounds so far
    examination.settle()                                                     what the ledger pays; the same ever after

Labels are at hand (dues and gold, `sitting.Sitting`), or members keep theirs and mark by `Members`; or both. A round
that is recorded is not sat again, so a federation that is killed and begun anew under its name loses and repeats none.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from verax.audit.copies import copies
from verax.errors import ConflictError, InputError, OptionError
from verax.exam import ExamRecord
from verax.examined import Sat, Terms, copies_among, deviations_of, sheet_of, stake_needed
from verax.groups import clusters_of
from verax.innovations import public_moves
from verax.judgements import SURE, Judgement, Sheet
from verax.keys import OPERATOR
from verax.marking import Entry, Paper
from verax.money import major_text, minor_units, scale_of
from verax.payments import Payments, pay_marks
from verax.payroll import Payroll
from verax.received import Model, Question, Work, digest_of
from verax.reports import Reports
from verax.rounds import Settlement, Spec
from verax.score import Scores
from verax.sitting import Members, Sitting

_MOST_EXAMPLES = 3  # times the middle member's, so that nobody's labels drown the others'


@dataclass(frozen=True, eq=False)
class Book:
    """The ledger's round of one federation's exam, opened with terms that cannot change."""

    payroll: Payroll
    name: str

    @property
    def terms(self) -> Terms | None:
        """Those it was opened with, if it was."""
        rounds = self.payroll.rounds
        return None if rounds.state(self.name) == "none" else rounds.spec(self.name).exam

    def salt(self, holder: str) -> str:
        """A salt that the operator's key gives again, and nobody guesses."""
        return self.payroll.rounds.ledger.keys.key(OPERATOR).mark(["verax.exam/1", self.name, holder])

    def open(self, terms: Terms, classes: Sequence[str]) -> list[Sat]:
        """The rounds that are recorded already; an exam that was sealed before a kill is settled."""
        pay, rounds = self.payroll, self.payroll.rounds
        scheme = "signed" if terms.signed else "marks"
        asked = {"kind": "exam", "currency": pay.currency, "scheme": scheme, "exam": terms}
        rounds.open(Spec(self.name, (), tuple(classes), pay.budget, **asked))  # type: ignore[arg-type]
        rounds.fund(self.name)
        if rounds.state(self.name) in ("sealed", "scored"):
            rounds.settle(self.name)
        return rounds.sat(self.name)

    def settle(self) -> Settlement:
        """Sealed and paid for, once."""
        if self.payroll.rounds.state(self.name) == "open":
            self.payroll.rounds.seal(self.name)
        return self.payroll.rounds.settle(self.name)


class Examination:
    """One federation's exam: see above. `reports_of` says what replies answered on the pool, for copies to be found."""

    def __init__(
        self, sitting: Sitting, question: Question, classes: Sequence[str],
        reports_of: Callable[[Sequence[Work]], Reports], book: Book | None = None, members: Members | None = None,
    ) -> None:  # fmt: skip
        self.sitting, self.question, self.classes = sitting, question, tuple(classes)
        self.reports_of, self.book, self.members = reports_of, book, members
        if book is not None and sitting.own_past is not None:
            raise OptionError("own_past needs moves that a process begun anew has not seen; leave it or payroll out")
        self.exam, self.session = sitting.exam(classes), secrets.token_hex(8)
        self.sats, self.examples = list[Sat](), dict[str, int]()
        self._veil = secrets.token_hex(16)
        self.left_out: dict[str, str] = {}  # members who do not examine, and why
        self._begun = False
        if book is not None and book.terms is not None:  # it was begun by another process
            self.sats = book.payroll.rounds.sat(book.name)

    def begin(self) -> None:
        """Before the first round: members promise their examples, and the exam is opened in the ledger, once."""
        if self._begun:
            return
        if self.sitting.members and self.members is None:
            raise OptionError("members=True needs an adapter that reaches members, such as verax.adapters.flower")
        promises = dict(self.members.promises()) if self.members is not None else {}
        known = None if self.book is None else self.book.terms
        if known is not None:
            self.left_out |= {h: "its examples are not those it promised before the first round"
                              for h, p in promises.items() if known.commitments.get(h) != p.commitment}  # fmt: skip
        self._count_examples({h: p.examples for h, p in promises.items() if h not in self.left_out})
        if self.book is not None:
            said = {h: p.commitment for h, p in promises.items()} if known is None else known.commitments
            own = self.sitting.commitments(self.book.salt)
            said = own if self.members is None else said | own
            terms = self.book.payroll.exam_terms(self.sitting.together, said)
            self.sats = self.book.open(terms, self.classes)
        self._begun = True

    def _count_examples(self, promised: Mapping[str, int]) -> None:
        most = _MOST_EXAMPLES * float(np.median([*promised.values()])) if promised else 0.0
        self.left_out |= {h: f"it holds back {n} examples, more than {most:.0f}, {_MOST_EXAMPLES} times the middle one"
                          for h, n in promised.items() if not 0 < n <= most}  # fmt: skip
        self.examples = {h: n for h, n in promised.items() if h not in self.left_out}

    @property
    def recorded(self) -> dict[str, int]:
        """The rounds that are sat, by what was broadcast in them; of one sent twice the first."""
        return {sat.broadcast: sat.number for sat in reversed(self.sats)}

    @property
    def labels(self) -> int:
        """How many examples there are, of all examiners."""
        return self.sitting.size + sum(self.examples.values())

    def sit(
        self, broadcasts: Sequence[Model], works: Sequence[Work], imitations: Sequence[Sequence[Model]],
        still: Collection[int], seed: int, number: int,
    ) -> dict[str, str]:  # fmt: skip
        """These replies to the last of the broadcasts examined too; who is not, and why."""
        self.begin()
        if any(sat.number == number for sat in self.sats):
            return {}
        if self.book is not None and (state := self.book.payroll.rounds.state(self.book.name)) != "open":
            raise ConflictError(f"the exam {self.book.name!r} is {state}; another federation needs another name")
        if self.labels == 0:
            raise InputError("nobody holds labels back to examine on; give HeldBack examples, or have members answer")
        paper = Paper(self.session, number, broadcasts, {}, imitations, tuple(still), seed, self.sitting.copies)
        entries, prior = self._taken(paper, works)
        short = self._withdrawn([work.agent for work in works])
        taken = {agent: entry for agent, entry in entries.items() if agent not in short}
        said = (*self.exam.judgements(), *self._of_members(replace(paper, replies=taken)))
        alike = self._alike([work for work in works if work.agent not in short])
        sat = Sat(number, self.session, digest_of(broadcasts[-1]), prior, said, tuple(sorted(taken)),
                  self.exam.deviations(), alike)  # fmt: skip
        if self.book is not None:
            self.book.payroll.rounds.sit(self.book.name, sat)
        self.sats = [*(_shortened(one, sat) for one in self.sats), sat]
        return short

    def _taken(self, paper: Paper, works: Sequence[Work]) -> tuple[dict[str, Entry], tuple[float, ...]]:
        """The round as the server sees it: what is public in each reply, by the fit on all inputs that it has."""
        now = np.asarray(self.question.tried_on(paper.broadcasts[-1]))
        if now.ndim == 1:
            raise OptionError("an exam needs probabilities; predict gives labels only")
        groups = [group for group in paper.public_models() if group]
        public = [
            np.asarray(sum(np.asarray(self.question.tried_on(model)) for model in group) / len(group))
            for group in groups
        ]
        told = self.exam.sit(now, public_moves(now, public), {work.agent: work.said for work in works})
        entries = {work.agent: Entry(work.model, *told[work.agent]) for work in works}
        pool = now[: len(now) - self.sitting.size] if len(now) > self.sitting.size else now
        return entries, tuple(pool.mean(0).tolist())

    def _withdrawn(self, agents: Collection[str]) -> dict[str, str]:
        """Where pay is signed, who cannot cover what bad luck with these labels may take; of the others it is held.

        With fewer at the exam each may gain and lose more, so the rest are asked again.
        """
        why: dict[str, str] = {}
        while self.book is not None:
            needed = {a: amount for a, amount in self.stakes_needed().items() if a in agents}
            short = self.book.payroll.rounds.stake(self.book.name, needed) if needed else {}
            self.exam.withdraw(short)
            why |= {agent: self._short(needed[agent], left, agent) for agent, left in short.items()}
            if not short:
                break
        return why

    def _short(self, needed: int, left: int, agent: str) -> str:
        assert self.book is not None
        places, currency = scale_of(self.book.payroll.currency), self.book.payroll.currency
        return (
            f"its stake is short: bad luck with {self.labels} labels can take {major_text(needed, places)} {currency} "
            f"and its account has {major_text(left, places)} beyond what is held; pay more in with "
            f"verax round fund {self.book.name} --agent {agent}"
        )

    def stakes_needed(self) -> dict[str, int]:
        """What bad luck can take from everybody so far, in minor units: by rows alone, no label is looked at."""
        if self.book is None or (terms := self.book.terms) is None or not terms.signed:
            return {}
        pay = self.book.payroll
        now = Sat(0, self.session, "", (), (), (), self.exam.deviations())
        wide = deviations_of([*(sat for sat in self.sats if sat.session != self.session), now])
        budget = minor_units(pay.budget, scale_of(pay.currency), pay.currency)
        return {a: stake_needed(terms, budget, len(wide), self.labels, deviation) for a, deviation in wide.items()}

    def _of_members(self, paper: Paper) -> list[Judgement]:
        """What members say, each of everybody but itself; what cannot be is cut to what it can be, or left out."""
        if self.members is None:
            return []
        names = {self._alias(agent): agent for agent in self.exam.deviations()}
        papers = {
            holder: replace(paper, replies={self._alias(a): e for a, e in paper.replies.items() if a != holder})
            for holder in self.examples
        }
        found = []
        for holder, said in sorted(self.members.judgements(papers).items()):
            if sum(said.counts) != self.examples.get(holder) or len(said.counts) != len(self.classes):
                self.left_out[holder] = "its judgement is not on the examples that it promised"
                continue
            mine = {names[alias]: alias for alias in said.means if alias in names and names[alias] != holder}
            found.append(said.of_others(holder, mine).within(self.exam.widest()))
        return found

    def _alias(self, agent: str) -> str:
        return hashlib.sha256(f"{self._veil} {agent}".encode()).hexdigest()[:16]

    def _alike(self, works: Sequence[Work]) -> tuple[tuple[str, ...], ...]:
        twins = [c for c in copies(self.reports_of(works), 0.95) if c.verdict == "fails"] if len(works) > 1 else []
        return tuple(tuple(sorted(group)) for group in clusters_of(twins)) if twins else ()

    def sheet(self) -> Sheet:
        """What all rounds so far come to."""
        return sheet_of(self.classes, self.sitting.together, self.sats)

    def scores(self) -> Scores:
        """Everybody's, over all rounds so far."""
        return self.sheet().scores()

    def settle(self, budget: str | None, full_marks: str | None, **terms: Any) -> tuple[Payments, Settlement | None]:
        """What the exam pays over all rounds so far: by the ledger, where there is one, once and for all."""
        if self.book is not None:
            if budget is not None or full_marks is not None or any(terms.values()):
                raise OptionError("this exam's terms are in the ledger since it was opened; give pay_exam() none")
            settled = self.book.settle()
            assert settled.payments is not None
            return settled.payments, settled
        if budget is None or full_marks is None:
            raise OptionError("give budget= and full_marks=, such as pay_exam('100.00', '0.05'), or a payroll")
        sheet = self.sheet()
        if not sheet.agents:
            raise InputError("nobody was examined yet; pay once a round was sat")
        needed = SURE * max(deviations_of(self.sats).values()) / math.sqrt(self.labels)
        paid = pay_marks(
            sheet.scores(), budget=budget, full_marks=full_marks, exposure=needed, agreement=sheet.agreement(),
            clusters=copies_among(self.sats) or None, **terms,
        )  # fmt: skip
        return paid, None

    def record(self, name: str, budget: str, full_marks: str, **terms: Any) -> ExamRecord:
        """All that the payments of the rounds so far follow from, where all examples are at hand."""
        if self.members is not None:
            raise OptionError("members keep their labels, so there is no record of them; give a payroll for a ledger's")
        groups, promised = tuple(map(tuple, copies_among(self.sats))), self.sitting.promised
        promises = {holder: promise for holder, (promise, _) in promised.items()}
        asked = {"budget": budget, "full_marks": full_marks, "clusters": groups, "commitments": promises, **terms}
        return ExamRecord.of(self.exam, name, **asked)


def _shortened(one: Sat, later: Sat) -> Sat:
    """Without judgements that a later round of the session contains."""
    said = {j.holder for j in later.judgements} if one.session == later.session else set()
    return replace(one, judgements=tuple(j for j in one.judgements if j.holder not in said))
