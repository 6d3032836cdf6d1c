"""Histories rewritten by an operator who holds every key, its own and the agents', and makes all hashes, signatures and
checkpoints fit again. Whoever has kept one receipt, or one checkpoint, finds each of them.

A REMADE history is one that could have been: played again from the start, so that nothing in it is wrong by itself, and
only what somebody has kept shows it. A FORGED one could never have been: it is found without anything kept, too.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

import verax
from verax import wire
from verax.cli import app
from verax.database import journal_table
from verax.errors import LedgerError
from verax.keys import Key
from verax.ledger import GENESIS, Entry, Head, Ledger
from verax.log import Checkpoint, Proof
from verax.receipts import findings
from verax.recorded import RecordedRound
from verax.rounds import Rounds, Spec, Submission

TASKS = tuple(f"t{n}" for n in range(6))
SPEC = Spec("r", TASKS, ("no", "yes"), "100.00", min_tasks=2, copies=False)
EARLIER = dataclasses.replace(SPEC, round="q")
LABELS = {"ann": (0, 1, 0, 1, 1, 0), "bob": (0, 1, 0, 1, 0, 0), "cy": (1, 1, 0, 1, 1, 0), "puppet": (0, 1, 0, 1, 1, 1)}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
Step = tuple[Any, ...]


def round_of(spec: Spec, start: int) -> list[Step]:
    """What happens in an honest round, each step with its minute."""
    name = spec.round
    handed_in = [(start + 2 + n, "submit", name, agent, LABELS[agent]) for n, agent in enumerate(("ann", "bob", "cy"))]
    opened = [(start, "open", spec), (start + 1, "fund", name)]
    return [*opened, *handed_in, (start + 8, "seal", name), (start + 9, "settle", name)]


HONEST = [*round_of(EARLIER, 0), *round_of(SPEC, 20)]


class World:
    """An operator, the agents, all their keys, and what an agent has kept of the honest history."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch, self._numbers = folder, monkeypatch, itertools.count()
        self.keys = {agent: Key.new() for agent in LABELS}
        self.secrets = {"q": "5ec2e7 of q", "r": "5ec2e7 of r"}
        self.honest = self.played("honest.db", HONEST)
        self.unsettled = self.played("open.db", HONEST[:-2])
        with Rounds(self.opened(self.honest)).ledger.reading() as journal:
            self.entries = list(journal.entries())
        rounds = Rounds(self.opened(self.honest))
        self.operator = rounds.ledger.keys.key("operator")
        self.receipt = Proof.parsed(str(rounds.receipt("r", "ann")))
        self.checkpoint = Checkpoint.parsed(str(rounds.ledger.checkpoint()))

    def named(self, name: str) -> Path:
        return self.folder / f"{next(self._numbers)} {name}"

    def opened(self, path: Path) -> Ledger:
        return Ledger.open(str(path), keys=self.folder / "keys")

    def played(self, name: str, script: list[Step], *, onto: Path | None = None, **secrets: str) -> Path:
        """A history in a file of its own, or as it goes on from a copy of another."""
        path = self.named(name)
        if onto is not None:
            shutil.copy(onto, path)
        ledger = self.opened(path)
        rounds = Rounds(ledger)
        for minute, verb, *asked in sorted(script, key=lambda step: step[0]):
            self._patch.setattr("verax.ledger.clock", lambda minute=minute: NOON + timedelta(minutes=minute))
            if verb == "open":
                rounds.open(asked[0], secret=(self.secrets | secrets)[asked[0].round])
            elif verb == "submit":
                report = verax.Reports.of([list(asked[2])], tasks=TASKS, classes=SPEC.classes)
                rounds.submit(asked[0], asked[1], report, signer=self.keys[asked[1]])
            else:
                getattr(rounds, verb)(*asked)
        ledger.close()
        return path

    def forged(self, name: str, entries: list[Entry]) -> Path:
        """A journal of these entries: every hash, step, transfer and submission signed anew, checkpoints and all."""
        path = self.named(name)
        ledger = self.opened(path)
        head, opened, counted = Head(0, GENESIS), {}, {}
        with ledger.writing() as journal:
            for seq, entry in enumerate(entries, start=1):
                entry = self._signed(dataclasses.replace(entry, seq=seq), head, opened, counted)
                if entry.id.endswith(":open"):
                    opened[entry.round] = entry.said
                entry = dataclasses.replace(entry, hash=entry.sealed_by(head.hash))
                head = Head(seq, entry.hash)
                journal._connection.execute(journal_table.insert().values(**vars(entry)))
                journal.grow(entry)
                if entry.kind in ("seal", "settle", "void-round"):
                    journal.keep_checkpoint(self.operator)
            journal.keep_checkpoint(self.operator)
        ledger.close()
        return path

    def _signed(self, entry: Entry, head: Head, opened: dict[str, Any], counted: dict[Any, int]) -> Entry:
        said = dict(entry.said)
        if entry.kind == "submit":
            counted[entry.round, said["agent"]] = counted.get((entry.round, said["agent"]), 0) + 1
            key = self.keys[said["agent"]]
            said |= {"number": counted[entry.round, said["agent"]], "key": key.public}
            said["signature"] = key.sign(Submission.from_json(said).signed_part(opened[entry.round]))
        elif "after" in said:
            whole = {k: v for k, v in said.items() if k != "signature"} | {"after": head.to_json()}
            step = entry.id.removeprefix(f"{entry.round}:")
            said = whole | {"signature": self.operator.sign([entry.round, step, whole])}
        elif "signature" in said:
            this = RecordedRound(None, entry.round, None, {})
            this.__dict__["opened"] = opened[entry.round]
            said["signature"] = self.operator.sign(this.ordered(entry))
        return dataclasses.replace(entry, body=wire.canonical(said))

    def problems(self, path: Path, *kept: Any) -> list[str]:
        """What verify says of a database: nothing, or what is wrong, or that it cannot even be opened."""
        try:
            ledger = self.opened(path)
        except LedgerError as error:
            return [str(error)]
        try:
            return Rounds(ledger).verify("r", *kept) + Rounds(ledger).verify(None, *kept)
        except LedgerError as error:  # there is no such round any more
            return [str(error)]
        finally:
            ledger.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("world"), patch)


def without(script: list[Step], *, verb: str, round: str = "r", agent: str | None = None) -> list[Step]:
    return [s for s in script if not (s[1] == verb and s[2] == round and (agent is None or s[3] == agent))]


def other_spec(**change: Any) -> list[Step]:
    return [(s[0], s[1], dataclasses.replace(s[2], **change)) if s[2] is SPEC else s for s in HONEST]


def swapped(world: World) -> Path:
    labels = {"ann": LABELS["bob"], "bob": LABELS["ann"]}
    script = [(*s[:4], labels.get(s[3], s[4])) if s[1:3] == ("submit", "r") else s for s in HONEST]
    return world.played("forged.db", script)


PUPPET = (24, "submit", "r", "puppet", LABELS["puppet"])
REMADE = {
    "the tail cut off": lambda w: w.played("forged.db", without(HONEST, verb="settle")),
    "the head cut off": lambda w: w.played("forged.db", round_of(SPEC, 20)),
    "void after settle": lambda w: w.played("forged.db", [*without(HONEST, verb="settle"), (29, "void", "r")]),
    "a sock puppet": lambda w: w.played("forged.db", [*HONEST, PUPPET]),
    "submissions swapped": swapped,
    "a submission left out": lambda w: w.played("forged.db", without(HONEST, verb="submit", agent="cy")),
    "a submission replaced": lambda w: w.played("forged.db", [*HONEST, (26, "submit", "r", "cy", LABELS["puppet"])]),
    "submissions in another order": lambda w: w.played("forged.db", [
        *without(HONEST, verb="submit", agent="ann"), (27, "submit", "r", "ann", LABELS["ann"])
    ]),
    "another budget": lambda w: w.played("forged.db", other_spec(budget="900.00")),
    "another rule of payment": lambda w: w.played("forged.db", other_spec(scheme="affine")),
    "a truth that was not asked by": lambda w: w.played("forged.db", other_spec(truth=(0, 1, 1, 0, 1, 0))),
    "another secret": lambda w: w.played("forged.db", HONEST, r="5ec2e7 that suits"),
    "times moved": lambda w: w.played("forged.db", [(s[0] + 3 * (s[2] == "r"), *s[1:]) for s in HONEST]),
    "a round put in between": lambda w: w.played(
        "forged.db", [*HONEST, (15, "open", dataclasses.replace(SPEC, round="x"))], x="5ec2e7 of x"
    ),
    "an old backup restored": lambda w: w.played("forged.db", [], onto=w.played("backup.db", HONEST[:10])),
    "an old backup restored, and gone on from": lambda w: w.played(
        "forged.db", [PUPPET, *HONEST[-2:]], onto=w.played("backup.db", HONEST[:-2])
    ),
    "all made anew": lambda w: w.played("forged.db", HONEST),  # reports are sealed with other randomness
}  # fmt: skip


@pytest.mark.parametrize("name", REMADE)
def test_a_history_made_again_is_found_by_one_receipt_and_by_one_checkpoint(world, name):
    assert world.problems(world.honest, world.receipt.checkpoint, world.checkpoint) == []
    path = REMADE[name](world)
    assert "head" in name or world.problems(path) == []  # the rewriting is competent: by itself nothing is wrong
    for kept in (world.receipt.checkpoint, world.checkpoint):
        assert world.problems(path, kept) != [], name


def with_body(entry: Entry, **change: Any) -> Entry:
    return dataclasses.replace(entry, body=wire.canonical(entry.said | change))


def said_otherwise(entries: list[Entry], step: str, **change: Any) -> list[Entry]:
    return [with_body(e, **change) if e.id == f"r:{step}" else e for e in entries]


def settlement_of(entries: list[Entry]) -> dict[str, Any]:
    [found] = [e.said["settlement"] for e in entries if e.id == "r:score"]
    return found


def garbage(entries: list[Entry]) -> list[Entry]:
    """Another settlement, and the payments that follow from it."""
    score = settlement_of(entries)
    total = sum(score["amounts"].values())
    changed = said_otherwise(entries, "score", settlement=score | {"amounts": {"ann": 0, "bob": 0, "cy": total}})
    paid = [e for e in changed if e.id.startswith("r:pay:")]
    whole = dataclasses.replace(paid[0], id="r:pay:cy", credit="agent:cy", amount=total)
    return [whole if e is paid[0] else e for e in changed if e is paid[0] or e not in paid]


def better_scores(entries: list[Entry]) -> list[Entry]:
    """Amounts as they are, and another score beside them."""
    score = settlement_of(entries)
    rows = [row | {"score": 0.99} if row["agent"] == "ann" else row for row in score["scores"]["scores"]]
    return said_otherwise(entries, "score", settlement=score | {"scores": score["scores"] | {"scores": rows}})


def appended(entries: list[Entry], step: str, **change: Any) -> list[Entry]:
    [like] = [e for e in entries if e.id == f"r:{step}"]
    return [*entries, dataclasses.replace(like, settles=None, **change)]


def to_eve(entries: list[Entry], step: str, **change: Any) -> list[Entry]:
    return [dataclasses.replace(e, **change) if e.id == f"r:{step}" else e for e in entries]


def moved_before(entries: list[Entry], step: str, before: str) -> list[Entry]:
    [one] = [e for e in entries if e.id == f"r:{step}"]
    rest = [e for e in entries if e is not one]
    place = next(n for n, e in enumerate(rest) if e.id == f"r:{before}")
    return [*rest[:place], dataclasses.replace(one, at=rest[place].at), *rest[place:]]


FORGED = {
    "a void put after the settlement": lambda es: appended(es, "seal", id="r:void", kind="void-round"),
    "settled again with garbage": garbage,
    "falsified scores": better_scores,
    "falsified amounts": lambda es: said_otherwise(es, "score", settlement=settlement_of(es) | {
        "amounts": {"ann": 1, "bob": 1, "cy": 1}
    }),
    "an appended transfer": lambda es: appended(es, "fund:budget", id="r:pay:eve", credit="agent:eve", amount=500),
    "an appended deposit": lambda es: appended(es, "fund:budget", id="r:fund:99", credit="agent:eve", amount=500),
    "a payment sent elsewhere": lambda es: to_eve(es, "pay:ann", credit="agent:eve"),
    "a payment made larger": lambda es: to_eve(es, "pay:ann", amount=9_000),
    "the budget taken back early": lambda es: moved_before(es, "residue", "seal"),
    "a deposit out of the round's money": lambda es: moved_before(to_eve(
        es, "residue", id="r:fund:7", debit="escrow:r", credit="agent:eve", body='{"code":"fund","signature":""}'
    ), "fund:7", "seal"),
    "settled before it was sealed": lambda es: moved_before(es, "score", "seal"),
    "a submission after the sealing": lambda es: moved_before(es, "seal", [
        e.id for e in es if e.kind == "submit" and e.round == "r"
    ][-1].removeprefix("r:")),
    "money in a round that never was": lambda es: appended(
        es, "fund:budget", id="z:fund:1", round="z", credit="agent:eve", body='{"code":"fund"}'
    ),
    "another root": lambda es: said_otherwise(es, "seal", root="0" * 64),
    "another secret published": lambda es: said_otherwise(es, "score", settlement={
        **settlement_of(es), "secret": "other"
    }),
    "times that go back": lambda es: [dataclasses.replace(e, at="1999-01-01") if e.id == "r:seal" else e for e in es],
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_history_that_cannot_have_been_is_found_with_and_without_a_receipt(world, name):
    path = world.forged("forged.db", FORGED[name](world.entries))
    assert world.problems(path) != [], name
    for kept in (world.receipt.checkpoint, world.checkpoint):
        assert world.problems(path, kept) != [], name


def test_the_forger_makes_a_journal_that_verifies(world):
    """Or what it forges would show nothing."""
    assert world.problems(world.forged("same.db", world.entries)) == []


def test_a_journal_without_its_triggers_and_changed_under_the_checkpoint_is_found(world):
    """The row is changed, the chain made to fit, the tree left as it was signed; then the guards are put back."""
    path = world.played("changed.db", [], onto=world.honest)
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        names = [*connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")]
        for name, _ in names:
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
    assert any("lost its guards" in said for said in world.problems(path))
    with engine.begin() as connection:
        previous = GENESIS
        for entry in world.entries:
            if entry.id == "r:pay:ann":
                entry = dataclasses.replace(entry, credit="agent:eve")
            entry = dataclasses.replace(entry, hash=entry.sealed_by(previous))
            previous = entry.hash
            connection.execute(journal_table.update().where(journal_table.c.seq == entry.seq).values(**vars(entry)))
        for _, text in names:
            connection.exec_driver_sql(text)
    engine.dispose()
    assert any("the tree does not hold what entry" in said for said in world.problems(path))
    assert world.problems(path, world.receipt.checkpoint) != []


@pytest.mark.parametrize("values", [
    ("posted", "r", "house", "agent:eve", 500, '{"code":"fund"}'),
    ("posted", "r", "house", "agent:eve", 500, '{"code":"pay"}'),
    ("posted", "q", "house", "agent:eve", 500, '{"code":"pay"}'), ("posted", "z", "house", "agent:eve", 500, "{}"),
    ("pending", "r", "house", "escrow:r", 500, '{"code":"stake"}'), ("settle", "q", None, None, None, "{}"),
    ("submit", "r", None, None, None, "{}"), ("submit", "r", None, None, None, "[]"),
])  # fmt: skip
@pytest.mark.parametrize("settled", [False, True])
def test_a_row_put_in_by_hand_by_who_has_no_key_is_found(world, values, settled):
    """Whoever can write the file can chain a row; but not sign for the operator, nor for an agent."""
    path = world.played("raw.db", [], onto=world.honest if settled else world.unsettled)
    ledger = world.opened(path)
    with ledger.writing() as journal:
        head = journal.head()
        kind, round, debit, credit, amount, body = values
        entry = Entry(head.count + 1, f"{round}:by hand", kind, round, debit, credit, amount, None, body, "",
                      (NOON + timedelta(hours=9)).isoformat(), "EUR" if amount else None)  # fmt: skip
        entry = dataclasses.replace(entry, hash=entry.sealed_by(head.hash))
        journal._connection.execute(journal_table.insert().values(**vars(entry)))
        journal.grow(entry)
    ledger.close()
    assert world.problems(path) != []


def test_a_receipt_from_before_the_settlement_fixes_what_came_before_it_and_nothing_else(world):
    """What a receipt cannot show is said in docs/receipts.md: take another one when the round is settled."""
    early = world.played("early.db", HONEST[:-2])
    ledger = world.opened(early)
    kept = Rounds(ledger).receipt("r", "ann").checkpoint
    ledger.close()
    went_on = world.played("went on.db", HONEST[-2:], onto=early)
    puppet = world.played("puppet.db", [PUPPET, *HONEST[-2:]], onto=early)
    assert world.problems(went_on, kept) == world.problems(puppet, kept) == []
    left_out = world.played("left out.db", without(HONEST, verb="submit", agent="cy"))
    assert world.problems(left_out, kept) != []


def test_the_commands_find_a_rewriting_too(world, tmp_path):
    (tmp_path / "ann.receipt").write_text(str(world.receipt))
    forged = REMADE["a sock puppet"](world)
    against = ["receipt", "verify", str(tmp_path / "ann.receipt"), "--operator", world.operator.public, "--against"]
    verify = ["round", "verify", "r", "--receipt", str(tmp_path / "ann.receipt"), "--db"]
    for words in (against, verify):
        assert CliRunner().invoke(app, [*words, str(world.honest)]).exit_code == 0
        found = CliRunner().invoke(app, [*words, str(forged)])
        assert found.exit_code == 2 and "rewritten" in found.stderr
    ledger = world.opened(forged)
    (tmp_path / "later.txt").write_text(str(ledger.continuation(world.receipt.checkpoint.size)))
    ledger.close()
    assert CliRunner().invoke(app, [*against, str(tmp_path / "later.txt")]).exit_code == 2
    assert all(found.holds for found in findings(world.receipt, world.operator.public))


def test_every_rewriting_is_in_the_docs():
    page = (Path(__file__).parents[1] / "docs" / "trust.md").read_text()
    names = {part.strip() for row in re.findall(r"^\| (.+?) \|", page, re.MULTILINE) for part in row.split(";")}
    assert {*REMADE, *FORGED} <= names
