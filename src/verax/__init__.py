"""verax scores and pays the models that self-interested agents report, with labels or with none.

Liu & Wei, "Incentives for Federated Learning: a Hypothesis Elicitation Approach", as functions:

    Delta*, the correlation matrix              Joint.of(report, reference).delta
    Algorithm 1, S(f, f*)                       rules.ca, exact; score(..., draws=) as printed
    Theorem 1, calibrated losses                rules.accuracy, rules.log, rules.quadratic
    Theorems 2 and 4, CA with truth, with peers score(reports, truth), score(reports)
    Lemmas 1 and 2, Sgn(Delta*) = I             Joint.sign
    Theorems 3 and 5, 0-1 score                 rules.zero_one
    Theorems 8 and 9, calibrated CA             rules.ce, rules.brier
    the remark on both kinds of tasks           score(reports, truth of some tasks)
    section 5, misreport matrices T             misreport.uniform, sparse, ...; apply; expected
    best reply, strict or informed              audit: TRUTHFUL, the best relabelling in closed form
    Lemmas 1 and 2 on real reports              audit: CATEGORICAL, INFORMATIVE
    Theorems 3 and 5, their conditions          audit: ACCURACY
    Theorem 7, corrected                        audit: ROBUST; audit.gamma_star
    references weighed by their skill           score(reports, over="skilled"), skilled(values, common)
    a belief of all the others as reference     score(reports, against="consensus")
    a market that pays improvements             market.market(submissions, truth=...)
    Theorem 6, Algorithm 2, Theorem 10          market.market(submissions, survey=..., seed=...)
    one agent beside another, paired           compare(reports, a, b)
    who shares errors, and what all are worth  independence(reports, truth)
    few labels and many answers, PPI++          plan_labels(reports, 50); estimate_accuracies(reports, truth, plan)
    paying by the score                         pay(scores, budget=...); rounds.Rounds for the record
    beyond the paper                            rules.pmi, public signals (joint.Public), audit: OVERCONFIDENT, COPIES

>>> import verax
>>> reports = verax.Reports.of(labels=[[0, 1, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]])
>>> [round(s.score, 3) for s in verax.score(reports).scores]
[0.167, 0.167, 0.0]
"""

from verax import misreport, rules
from verax.audit import Certificate, audit
from verax.audit.independence import Independence, independence
from verax.compare import Comparisons, compare
from verax.errors import ConflictError, ExtraMissing, InputError, LedgerError, OptionError, VeraxError
from verax.joint import Estimate, Joint
from verax.leaderboard import Boards
from verax.leaderboard import evaluate as eval
from verax.mechanisms.skilled import skilled
from verax.payments import Payment, Payments, pay
from verax.public import Public
from verax.reports import Reports
from verax.score import Mechanism, Score, Scores, score
from verax.spotcheck import Accuracies, SpotCheck, estimate_accuracies, plan_labels
from verax.tables import read, read_public, read_truth, write
from verax.topk import TopK

__version__ = "0.1.0"

__all__ = [
    "Accuracies",
    "Boards",
    "Certificate",
    "Comparisons",
    "ConflictError",
    "Estimate",
    "ExtraMissing",
    "Independence",
    "InputError",
    "Joint",
    "LedgerError",
    "Mechanism",
    "OptionError",
    "Payment",
    "Payments",
    "Public",
    "Reports",
    "Score",
    "Scores",
    "SpotCheck",
    "TopK",
    "VeraxError",
    "audit",
    "compare",
    "estimate_accuracies",
    "eval",
    "independence",
    "misreport",
    "pay",
    "plan_labels",
    "read",
    "read_public",
    "read_truth",
    "rules",
    "score",
    "skilled",
    "write",
]
