"""How much noise one Gaussian release needs, what was added really gives, and what may be done with it afterwards."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # An accountant asks for the exact cost of a release, and for nothing else.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("denoising", "heterogeneous"):
        return import_module(f"{__name__}.{name}")
    return getattr(import_module(f"{__name__}.closed_forms"), name)
