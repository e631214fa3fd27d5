"""One Gaussian release: its noise, its exact epsilon and delta, published calibrations, uneven noise, and denoising."""

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
