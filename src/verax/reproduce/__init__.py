"""The paper again: its data sets, its agents that are real networks, attacks on them, and its figures.

Needs extras: `pip install 'verax[lab]'` to train; drawing the paper's figures from recorded predictions
needs matplotlib only (`verax[report]`). `agents` is the only place where a tensor becomes an array.
"""
