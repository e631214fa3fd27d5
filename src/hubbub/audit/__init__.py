"""Audits of a privacy claim with canaries: lower bounds on epsilon, and tests of the noise.

=====================================  ==========================================  =======================================
method                                 needs                                       gives
=====================================  ==========================================  =======================================
:func:`clopper_pearson_epsilon`        independent scores of present and absent    a lower bound, whatever the mechanism
:func:`gdp_epsilon`                    the same                                    a lower bound on μ; epsilon if Gaussian
:func:`one_run_epsilon`                each canary kept with probability 1/2       a lower bound, whatever the mechanism
:func:`one_run_gdp_epsilon`            the same                                    a lower bound on μ; epsilon if Gaussian
:func:`check_whitened_scores`          the strategy and every released row         tests with exact false-alarm probabilities
:func:`influence`                      two runs under the same keys, one client    its exact influence and the bound on it
=====================================  ==========================================  =======================================

:func:`audit` makes some clients of a run canaries, runs its rounds on the real path with new noise, and applies these to the
releases. It works on any population that can inject updates, with any engine.

A lower bound far below the guarantee proves nothing in its favour: the audit may be weak.
"""

from typing import TYPE_CHECKING

from hubbub._util import lazily
from hubbub.audit.bounds import EveryThreshold, FixedThreshold, LowerBound, Thresholds, clopper_pearson_epsilon, gdp_epsilon
from hubbub.audit.neighbours import Influence, influence
from hubbub.audit.one_run import GuessCount, count_guesses, one_run_epsilon, one_run_gdp_epsilon, one_run_p_value
from hubbub.audit.whitening import Check, check_whitened_scores, present_means, whitened_scores

if TYPE_CHECKING:
    from hubbub.audit.runs import Effort, audit
    from hubbub.audit.verdict import Audit, Comparison

__all__ = [
    "Audit",
    "Check",
    "Comparison",
    "Effort",
    "EveryThreshold",
    "FixedThreshold",
    "GuessCount",
    "Influence",
    "LowerBound",
    "Thresholds",
    "audit",
    "check_whitened_scores",
    "clopper_pearson_epsilon",
    "count_guesses",
    "gdp_epsilon",
    "influence",
    "one_run_epsilon",
    "one_run_gdp_epsilon",
    "one_run_p_value",
    "present_means",
    "whitened_scores",
]

# The statistics need no torch.
__getattr__, __dir__ = lazily(__name__, {"verdict": ("Audit", "Comparison"), "runs": ("Effort", "audit")})
