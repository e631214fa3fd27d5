"""One Gaussian release: its noise, its exact epsilon and delta, published calibrations, uneven noise, and denoising."""

from typing import TYPE_CHECKING

from hubbub._util import lazily
from hubbub.mechanism.gaussian.exact import delta, epsilon, log_delta, noise_multiplier

if TYPE_CHECKING:
    from hubbub.mechanism.gaussian import denoising, heterogeneous
    from hubbub.mechanism.gaussian.closed_forms import NAMES, Calibration, Claim, calibrate, claimed_epsilon, computed

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

# Accounting needs the exact cost alone.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "closed_forms": ("NAMES", "Calibration", "Claim", "calibrate", "claimed_epsilon", "computed"),
        "denoising": (),
        "heterogeneous": (),
    },
)
