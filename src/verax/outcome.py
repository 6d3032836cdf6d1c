"""What became of one scored round of a federation: who was scored, paid, dropped, or not paid, and why."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from verax.audit import Certificate
from verax.errors import InputError
from verax.notices import Notice
from verax.payments import Payments
from verax.score import Score, Scores
from verax.tables import write_atomically


@dataclass(frozen=True)
class Outcome:
    """What became of one scored round: who was scored, paid, dropped, or not paid, and why.

    Where there is a payroll, scores, payments and copies are those of the round's settlement. `shares`: what each
    reply counts for in the average, where that was asked for. `notices`: what each client is to be told, by its name.
    `models`: the replies' digests in a paid round. `before`: who was paid before for what newcomers are scored beside.
    `stakes`: in an exam with signed pay, what bad luck can take of each with the labels at hand, in minor units, which
    is held of its account. `untold`: what clients are told in place of a score, where they are not to know it yet.
    `imitated`: the seconds in which the server made imitations of work.

    >>> Outcome(1, None, dropped={"eve": "no reply"}).reasons()
    {'eve': 'dropped: no reply'}
    """

    server_round: int
    scores: Scores | None
    amounts: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    unpaid: dict[str, str] = field(default_factory=dict)
    round: str | None = None
    copies: tuple[Certificate, ...] = ()
    payments: Payments | None = None
    problem: str = ""
    shares: dict[str, float] = field(default_factory=dict)
    notices: dict[str, Notice] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    stakes: dict[str, int] = field(default_factory=dict)
    untold: str = ""
    imitated: float = field(default=0.0, compare=False)

    def table(self) -> str:
        """The round as text, one line a client."""
        notes = {c.agent: c.why for c in self.copies if c.agent} | self.unpaid
        lines = [f"{'client':>22}  {'score':>8}  {'stderr':>7}  {'paid':>8}  note"]
        ranked = self.scores.ranked() if self.scores else []
        for s in ranked:
            number, error = ("-" if x is None else f"{x:.4f}" for x in (s.score, s.stderr))
            lines.append(self._line(s.agent, notes.get(s.agent, ""), number, error))
        left = dict.fromkeys(self.amounts, "there is nobody to score it against") | notes
        left = {agent: why for agent, why in left.items() if agent not in {s.agent for s in ranked}}
        left |= {agent: f"dropped: {why}" for agent, why in self.dropped.items()}
        lines += [self._line(agent, why) for agent, why in left.items()]
        if self.stakes:
            most = max(self.stakes, key=lambda agent: self.stakes[agent])
            lines.append(f"stake needed for the labels at hand: at most {self.stakes[most]} ({most})")
        if self.imitated:
            lines.append(f"imitations of work, which are public too, took the server {self.imitated:.1f} s")
        return "\n".join([*lines, *(self.scores.warnings if self.scores else ())])

    def _line(self, agent: str, note: str, number: str = "-", error: str = "-") -> str:
        return f"{agent[:22]:>22}  {number:>8}  {error:>7}  {self.amounts.get(agent, '-'):>8}  {note}"

    def write_page(self, folder: Path, name: str) -> None:
        """The round as a page of its own, in a folder that is made if it is not there; if it cannot be, a warning."""
        from verax.show.page import page

        title = f"{name}, round {self.server_round}"
        text = page(title, scores=self.scores, certificates=self.certificates(), payments=self.payments)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / f"round-{self.server_round}.html", lambda file: file.write(text.encode()))
        except (OSError, InputError) as error:  # what is paid is in the ledger, and training goes on
            warnings.warn(f"no page of round {self.server_round} can be written: {error}", stacklevel=2)

    def certificates(self) -> list[Certificate]:
        """The same reasons as certificates, for a page."""
        found = [("REPLY", agent, why) for agent, why in self.dropped.items()]
        found += [("OWN-WORK", agent, why) for agent, why in self.unpaid.items()]
        return [Certificate(code, agent, "fails", None, None, None, why) for code, agent, why in found] + [*self.copies]

    def reasons(self, others: Collection[str] = ()) -> dict[str, str]:
        """Why each client is paid what it is, or nothing, in a sentence; `others` are more that took part."""
        found = dict.fromkeys(others, self._unscored)
        found |= dict.fromkeys(self.amounts, "there is nobody to score it against")
        found |= {s.agent: self.untold or self._score_in_words(s) for s in self.scores or ()}
        for copy in self.copies:
            if copy.agent in found:
                found[copy.agent] += f"; {copy.why}"
        found |= self.unpaid | {agent: f"dropped: {why}" for agent, why in self.dropped.items()}
        return {agent: why for agent, why in found.items() if agent not in self.before}

    @property
    def _unscored(self) -> str:
        return f"the round is not paid: {self.problem}" if self.problem else "there is nobody to score it against"

    def _score_in_words(self, s: Score) -> str:
        """A score, with what it is made of, or why there is none."""
        if s.score is None:
            said = self.scores.warnings if self.scores else ()
            return next((warning for warning in said if repr(s.agent) in warning), "it has no score")
        error = "" if s.stderr is None else f" ± {s.stderr:.4f}"
        found = f"score {s.score:.4f}{error} beside {s.references} other{'s' * (s.references != 1)}"
        return found if s.score > 0 or not self.amounts else f"{found}; what is not above 0 is paid nothing"


def notices_of(
    outcome: Outcome, federation: str, models: Mapping[str, str], identities: Mapping[str, str]
) -> dict[str, Notice]:
    """What each client is to be told of a round, nobody having signed it; `models` are the digests of the replies.

    >>> notices_of(Outcome(3, None, dropped={"eve": "no reply"}), "plants", {}, {})["eve"].number
    3
    """
    scores = {} if outcome.untold else {s.agent: s for s in outcome.scores or ()}
    currency = None if outcome.payments is None else outcome.payments.currency
    found = {}
    for agent, why in sorted(outcome.reasons(models).items()):
        scored = scores.get(agent)
        score, error = (None, None) if scored is None else (scored.score, scored.stderr)
        found[agent] = Notice(
            federation, outcome.server_round, agent, why, identities.get(agent), models.get(agent), outcome.round,
            score, error, outcome.amounts.get(agent), currency if agent in outcome.amounts else None,
        )  # fmt: skip
    return found
