"""What the service tells of a round in words of its own: what became of each submission, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verax.money import major_text, scale_of


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
        if shown["state"] != "settled":
            return "sealed", "nothing can change it any more; it waits for the settlement"
        return _paid(shown, agent)

    return [
        dict(each) | dict(zip(("state", "reason"), state_of(each["entry"], each.get("survey", False)), strict=True))
        for each in submissions
    ]


def _paid(shown: Mapping[str, Any], agent: str) -> tuple[str, str]:
    settlement, currency = shown["settlement"], shown["spec"]["currency"]
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
    for agent, amount in shown["settlement"]["amounts"].items():
        guarded = f"'{agent}" if agent[:1] in "=+-@\t\r" else agent
        writer.writerow([guarded, major_text(amount, places), currency, amount])
    return text.getvalue()
