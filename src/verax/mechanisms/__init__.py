"""Mechanisms: which pairs are scored, or the whole population at once. What a pair earns is the rule's business.

Both kinds answer the same question, `parts(side, plan)`: what does everybody score on these tasks?

    pairwise.py    a rule over pairs: the default, by the cheapest way that rule and reports allow
    meetings.py    the same of few answers: each agent beside those it shares tasks with
    dmi.py         determinant mutual information, on two disjoint groups of tasks
    soft.py        references put together before anything is scored: weights of peers, or rows in place of labels
    skilled.py     peers weighed by how well they agree with everybody but the agent that is scored
    consensus.py   what everybody else together believes of each task's label
    skilled_meetings.py, consensus_answers.py   the two, of few answers

A rule whose `population` names a function here is scored by it, and so is a mixture that `plan` names; a new mechanism
is a new file and an entry in `rules`, or in `plan`.
"""
