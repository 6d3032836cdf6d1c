"""Spot checks: a few labels, drawn where they tell most, and what they and all the unlabelled answers together say.

Which tasks are worth a label, the others' answers say (`belief`). That may be wrong, so tasks are drawn by chance, more
likely where a label is worth more (`design`), and every chance is written down (`check`). An estimate that divides by
these chances is right whatever was believed: beliefs decide how wide its interval is, not whether it holds
(`estimate`, `accuracies`).

Angelopoulos, Duchi & Zrnic, "PPI++: Efficient Prediction-Powered Inference", 2023. Zrnic & Candès, "Active statistical
inference", 2024. Duffield, Lund & Thorup, "Priority sampling for estimation of arbitrary subset sums", 2007.
"""

from verax.spotcheck.accuracies import Accuracies, AgentAccuracy, estimate_accuracies
from verax.spotcheck.check import Asked, Expected, SpotCheck, plan_labels

__all__ = ["Accuracies", "AgentAccuracy", "Asked", "Expected", "SpotCheck", "estimate_accuracies", "plan_labels"]
