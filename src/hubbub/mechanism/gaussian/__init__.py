"""How much noise one Gaussian release needs, what was added really gives, and what may be done with it afterwards."""

from hubbub.mechanism.gaussian import denoising, heterogeneous
from hubbub.mechanism.gaussian.closed_forms import NAMES, Calibration, Claim, calibrate, claimed_epsilon, computed
from hubbub.mechanism.gaussian.exact import delta, epsilon, log_delta, noise_multiplier

__all__ = [
    "NAMES",
    "Calibration",
    "Claim",
    "calibrate",
    "claimed_epsilon",
    "computed",
    "delta",
    "denoising",
    "epsilon",
    "heterogeneous",
    "log_delta",
    "noise_multiplier",
]
