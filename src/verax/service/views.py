"""What the service tells of a round in words of its own: what became of each submission, and why."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from verax.examined import Terms
from verax.money import major_text, scale_of
from verax.rounds import Spec
from verax.schemes import known_rule


def address(round: str, agent: str | None = None) -> str:
    """The path of a round, or of an agent in it; a dot would look like the end of a name.

    >>> address("a/b", "v1.2")
    '/rounds/a%2Fb/agents/v1%2E2'
    """
    quoted = [quote(name, safe="").replace(".", "%2E") for name in (round, agent) if name is not None]
    return f"/rounds/{'/agents/'.join(quoted)}"


def shell_word(text: str) -> str:
    """A name as it is written in a command.

    >>> print(shell_word("r1"), shell_word("a b"))
    r1 'a b'
    """
    return shlex.quote(text)


def rules_in_words(spec: Spec, knows_truth: bool, state: str, now: datetime) -> list[str]:
    """What a round asks and pays, for who reads no options.

    >>> spec = Spec("r1", ("t1", "t2"), ("cat", "dog"), "100.00")
    >>> print(rules_in_words(spec, False, "open", datetime(2026, 1, 1))[0])
    2 tasks, each with one of 2 classes. Tasks may be left out.
    """
    if spec.exam is not None:
        return _exam(spec, spec.exam, state)
    if spec.exam is not None:
        return [
            "An exam of a federation: its clients' replies are scored round by round, and recorded as they are sat.",
            f"The budget is {spec.budget} {spec.currency}.",
        ]
    tasks, classes = f"{len(spec.tasks):,} tasks", f"{len(spec.classes)} classes"
    beside = "the true labels, which are sealed until settlement" if knows_truth else "what the other agents report"
    rule = known_rule(spec.rule)
    return [
        f"{tasks}, each with one of {classes}. Tasks may be left out.",
        _KINDS[spec.kind if spec.kind in _KINDS else "batch"].format(beside=beside)
        + ("." if knows_truth or spec.kind != "batch" else "; no labels are needed."),
        f"The rule is {spec.rule}: {rule.says}." if rule and rule.says else f"The rule is {spec.rule}.",
        f"The budget is {spec.budget} {spec.currency}. {_pay(spec)}",
        *_copies(spec),
        *_special(spec),
        _admission(spec),
        _clock(spec, state, now),
    ]


_KINDS = {
    "batch": "An agent's report earns more the more it tells of {beside} on the same tasks",
    "market": "Reports come in order, and each earns what it adds to the one before it, measured by {beside}; a step "
    "that makes it worse loses, out of a stake",
    "survey": "Reports come in order, and each earns what it adds to the one before it, measured by one drawn from a "
    "survey that is paid beside it",
    "hybrid": "Reports come in order, and each earns what it adds to the one before it, measured by the true labels "
    "where they are known and by a survey elsewhere",
}  # fmt: skip
_SCHEMES = {
    "clipped": "Each agent can earn an equal part of it, if its score were the highest possible; below 0 it earns "
    "nothing.",
    "affine": "Each agent has an equal part of it that rises and falls with its score.",
    "proportional": "It is shared out in proportion to the scores above 0.",
}


def _exam(spec: Spec, terms: Terms, state: str) -> list[str]:
    """What an exam asks and pays."""
    below = "loses, out of a stake" if terms.signed else "earns nothing"
    least = "0" if terms.signed else f"{terms.sure:g} standard errors above 0"
    held = f"{len(terms.commitments)} holders have" if len(terms.commitments) != 1 else "One holder has"
    return [
        f"This is the exam of a federation: its models, with {len(spec.classes)} classes, earn what they add about "
        "labels that others hold back, over all rounds together.",
        f"{held} committed to their examples before the first round.",
        f"The budget is {spec.budget} {spec.currency}. A score of {terms.full_marks} earns an equal part of it, and "
        f"more earns no more; what is below {least} {below}.",
        "Its operator records the rounds; nobody hands in a report here."
        + ("" if state == "open" else " No more rounds are recorded."),
    ]


def _pay(spec: Spec) -> str:
    if spec.is_market:
        scale = "the whole of it" if spec.scale is None else f"{spec.scale} {spec.currency}"
        return f"One unit of score earns {scale}." if spec.kind == "market" else "The opening says how it is divided."
    return f"{_SCHEMES[spec.scheme]} Who answers fewer than {spec.min_tasks} tasks is not paid."


def _copies(spec: Spec) -> list[str]:
    if spec.kind != "batch":
        return []
    said = {
        "first": "Of agents that hand in one report, only the first to commit to it is paid.",
        "clusters": "Agents that hand in one report, or share their errors, are paid once, together.",
        True: "Agents that hand in one report are paid once, in equal parts.",
        False: "Agents that hand in one report are paid each.",
    }
    return [said[spec.copies]]


def _special(spec: Spec) -> list[str]:
    """What not every round asks."""
    found = []
    if spec.asks is not None:
        found.append("Models are handed in, in ONNX; they are run in a jail on inputs that stay with the operator.")
    if spec.sealing is not None:
        lost = "" if spec.deposit is None else f", and loses its deposit of {spec.deposit} {spec.currency}"
        found.append(
            "Only commitments are handed in, which nobody can open, the operator included. Within "
            f"{spec.reveal_hours:g} hours of the seal each agent shows what it committed to; who does not says "
            f"nothing{lost}."
        )
    if spec.beacon is not None:
        found.append(f"Draws are decided by the drand beacon {spec.beacon}, which nobody knows before.")
    return found


def _admission(spec: Spec) -> str:
    listed = f"the {len(spec.admitted)} agents that its list names" if spec.admitted is not None else ""
    invited = "whoever has an invitation" if spec.invited else ""
    who = " and ".join(each for each in (listed, invited) if each)
    often = "" if spec.quota is None else f" An agent may hand in {spec.quota} times."
    return (f"It is open to {who}." if who else "Whoever comes first with a name has it, by its key.") + often


def _clock(spec: Spec, state: str, now: datetime) -> str:
    if state != "open":
        return "No more reports are taken."
    if spec.deadline is None:
        return "Reports are taken until the operator seals the round; until then an agent may replace its own."
    if spec.is_closed(now):
        return f"Reports were taken until {spec.deadline}."
    left = int((datetime.fromisoformat(spec.deadline) - now).total_seconds()) // 60
    hours, minutes = divmod(left, 60)
    rest = f"{hours // 24} days" if hours >= 48 else f"{hours} h {minutes} min" if hours else f"{minutes} min"
    return f"Reports are taken until {spec.deadline}: {rest} are left. Until then an agent may replace its own."


def handed_in(shown: Mapping[str, Any], agent: str, submissions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """An agent's submissions with the state of each, and why: replaced, void, paid, lost or unpaid in the end.

    >>> shown = {"state": "open", "spec": {"kind": "batch", "currency": "EUR"}}
    >>> [s["state"] for s in handed_in(shown, "ann", [{"entry": 3}, {"entry": 5}])]
    ['replaced', 'standing']
    """
    last = {each.get("survey", False): each["entry"] for each in submissions}
    steps = shown["spec"]["kind"] != "batch"  # of a market each counts, but of a survey's answers the last

    def state_of(entry: int, survey: bool) -> tuple[str, str]:
        market = steps and not survey
        if shown["state"] == "void":
            return "void", "the round was called off; nothing is scored, and every stake is let go"
        if entry != last[survey] and not market:
            return "replaced", f"entry {last[survey]} of the same agent stands in its place"
        if shown["state"] == "open":
            rest = "each counts, in order" if market else "it counts unless it is replaced"
            return "standing", f"taken; {rest}, and the round is still open"
        if "reveal_until" in shown and shown["state"] == "sealed" and agent not in shown["revealed"]:
            return "sealed", f"show it by {shown['reveal_until']}, with the same report and key, or it says nothing"
        if shown["state"] != "settled":
            return "sealed", "nothing can change it any more; it waits for the settlement"
        return _paid(shown, agent)

    return [
        dict(each) | dict(zip(("state", "reason"), state_of(each["entry"], each.get("survey", False)), strict=True))
        for each in submissions
    ]


def _paid(shown: Mapping[str, Any], agent: str) -> tuple[str, str]:
    settlement, currency = shown["settlement"], shown["spec"]["currency"]
    if agent not in settlement["amounts"] and "reveal_until" in shown:
        return "lost", "it was not shown in time; it says nothing, and what was held for it is forfeited"
    amount = settlement["amounts"].get(agent, 0)
    money = f"{major_text(abs(amount), scale_of(currency))} {currency}"
    if amount:
        return ("paid", f"its score earned {money}") if amount > 0 else ("lost", f"its steps lost {money}")
    said = [*(settlement["scores"] or {}).get("warnings", []), *settlement.get("notes", [])]
    why = next((line for line in said if repr(agent) in line), None)
    score = next((s for s in (settlement["scores"] or {}).get("scores", []) if s["agent"] == agent), None)
    if why is None and score is not None and score["score"] is not None:
        why = f"its score of {score['score']:.4f} earns nothing by the scheme {shown['spec']['scheme']}"
    return "unpaid", why or "it was not scored, as the settlement says"


def payouts(shown: Mapping[str, Any]) -> str:
    """The payouts of a settled round as CSV: agent, amount in major units, currency, minor units.

    A spreadsheet takes some texts for formulas: such a name stands behind an apostrophe.

    >>> shown = {"spec": {"currency": "EUR"}, "settlement": {"amounts": {"ann": 450, "=HYPERLINK(1)": 0}}}
    >>> print(payouts(shown))
    agent,amount,currency,minor_units
    ann,4.50,EUR,450
    '=HYPERLINK(1),0.00,EUR,0
    <BLANKLINE>
    """
    import csv
    import io

    currency = shown["spec"]["currency"]
    places = scale_of(currency)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["agent", "amount", "currency", "minor_units"])
    forfeits = shown["settlement"].get("forfeits", {})
    for agent, earned in shown["settlement"]["amounts"].items():
        amount = earned + forfeits.get(agent, 0)
        guarded = f"'{agent}" if agent[:1] in "=+-@\t\r" else agent
        writer.writerow([guarded, major_text(amount, places), currency, amount])
    return text.getvalue()
