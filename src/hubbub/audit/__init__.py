"""What can be proved against a privacy claim from canaries: lower bounds, an estimate, and tests of the noise itself.

=====================================  ==========================================  =======================================
method                                 what it needs                               what it gives
=====================================  ==========================================  =======================================
:func:`clopper_pearson_epsilon`        independent scores of present and absent    a lower bound, whatever the mechanism
:func:`gdp_epsilon`                    the same                                    a lower bound on μ; epsilon if Gaussian
:func:`one_run_epsilon`                canaries kept by fair coins, one run        a lower bound, whatever the mechanism
:func:`one_run_gdp_epsilon`            the same                                    a lower bound on μ; epsilon if Gaussian
:func:`one_shot_estimate`              cosines with random directions              an estimate, no bound
:func:`check_whitened_scores`          the strategy and every released row         tests with exact false-alarm probabilities
=====================================  ==========================================  =======================================

A lower bound far below the guarantee proves nothing in its favour: the audit may be weak.
"""

from hubbub.audit.bound import LowerBound
from hubbub.audit.canaries import clopper_pearson_epsilon, gdp_epsilon
from hubbub.audit.one_run import GuessCount, count_guesses, one_run_epsilon, one_run_p_value
from hubbub.audit.one_run_gdp import one_run_gdp_epsilon
from hubbub.audit.one_shot import NormalLaw, OneShotEstimate, one_shot_estimate, two_normals_delta, two_normals_epsilon
from hubbub.audit.roc import auroc, hull_auroc, tpr_at_fpr
from hubbub.audit.thresholds import EveryThreshold, FixedThreshold, HeldOutThreshold, Thresholds
from hubbub.audit.whitening import Check, check_whitened_scores, present_means, whitened_scores

__all__ = [
    "Check",
    "EveryThreshold",
    "FixedThreshold",
    "GuessCount",
    "HeldOutThreshold",
    "LowerBound",
    "NormalLaw",
    "OneShotEstimate",
    "Thresholds",
    "auroc",
    "check_whitened_scores",
    "clopper_pearson_epsilon",
    "count_guesses",
    "gdp_epsilon",
    "hull_auroc",
    "one_run_epsilon",
    "one_run_gdp_epsilon",
    "one_run_p_value",
    "one_shot_estimate",
    "present_means",
    "tpr_at_fpr",
    "two_normals_delta",
    "two_normals_epsilon",
    "whitened_scores",
]
