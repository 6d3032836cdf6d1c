"""Mechanisms: which pairs are scored, or the whole population at once. What a pair earns is the rule's business.

Both kinds answer the same question, `parts(side, plan)`: what does everybody score on these tasks?

    pairwise.py    a rule over pairs: the default, by the cheapest way that rule and reports allow
    dmi.py         determinant mutual information, on two disjoint groups of tasks

A rule whose `population` names a function here is scored by it; a new mechanism is a new file and an entry in `rules`.
"""
