"""What can be proved against a privacy claim from canaries: lower bounds, and tests of the noise itself.

=====================================  ==========================================  =======================================
method                                 what it needs                               what it gives
=====================================  ==========================================  =======================================
:func:`clopper_pearson_epsilon`        independent scores of present and absent    a lower bound, whatever the mechanism
:func:`gdp_epsilon`                    the same                                    a lower bound on μ; epsilon if Gaussian
:func:`one_run_epsilon`                each canary kept with probability 1/2       a lower bound, whatever the mechanism
:func:`one_run_gdp_epsilon`            the same                                    a lower bound on μ; epsilon if Gaussian
:func:`check_whitened_scores`          the strategy and every released row         tests with exact false-alarm probabilities
:func:`influence`                      two runs under the same keys, one client    how far it moved them and may, exactly
=====================================  ==========================================  =======================================

:func:`audit` plants canaries among the clients of a run, runs its rounds on the real path with keys of their own, and applies
these to what was released. It works on any population whose clients' updates can be chosen, and knows no engine.

A lower bound far below the guarantee proves nothing in its favour: the audit may be weak.
"""

from typing import TYPE_CHECKING

from hubbub._util import lazily
from hubbub.audit.bounds import EveryThreshold, FixedThreshold, LowerBound, Thresholds
from hubbub.audit.canaries import clopper_pearson_epsilon, gdp_epsilon
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

# Statistics need no torch, which takes longer to load than they take.
__getattr__, __dir__ = lazily(__name__, {"verdict": ("Audit", "Comparison"), "runs": ("Effort", "audit")})
