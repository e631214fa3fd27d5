"""Private federations on Flower: strategies, mods for its clients, and a grid in this process.

What is named here is imported when it is first used, so that a client's process loads no accounting.
"""

from typing import TYPE_CHECKING, Any

from hubbub._util import lazily

if TYPE_CHECKING:
    from hubbub.flower.compat import (
        DifferentialPrivacyClientSideAdaptiveClipping,
        DifferentialPrivacyClientSideFixedClipping,
        DifferentialPrivacyServerSideAdaptiveClipping,
        DifferentialPrivacyServerSideFixedClipping,
    )
    from hubbub.flower.local_grid import LocalGrid
    from hubbub.flower.mods import clipping_mod, noising_mod, timer_mod
    from hubbub.flower.numpy_client import DPNumPyClient
    from hubbub.flower.population import GridPopulation
    from hubbub.flower.secagg import Paillier
    from hubbub.flower.secagg_client import encrypting_mod, hold
    from hubbub.flower.separation import separation_mod
    from hubbub.flower.strategies import DPFedAvgAdaptive, DPFedAvgFixed, MatrixFactorizationDP

__all__ = [
    "DPFedAvgAdaptive",
    "DPFedAvgFixed",
    "DPNumPyClient",
    "DifferentialPrivacyClientSideAdaptiveClipping",
    "DifferentialPrivacyClientSideFixedClipping",
    "DifferentialPrivacyServerSideAdaptiveClipping",
    "DifferentialPrivacyServerSideFixedClipping",
    "GridPopulation",
    "LocalGrid",
    "MatrixFactorizationDP",
    "Paillier",
    "clipping_mod",
    "encrypting_mod",
    "hold",
    "noising_mod",
    "separation_mod",
    "timer_mod",
]

_named, __dir__ = lazily(
    __name__,
    {
        "compat": tuple(name for name in __all__ if name.startswith("DifferentialPrivacy")),
        "local_grid": ("LocalGrid",),
        "mods": ("clipping_mod", "noising_mod", "timer_mod"),
        "numpy_client": ("DPNumPyClient",),
        "population": ("GridPopulation",),
        "secagg": ("Paillier",),
        "secagg_client": ("encrypting_mod", "hold"),
        "separation": ("separation_mod",),
        "strategies": ("DPFedAvgAdaptive", "DPFedAvgFixed", "MatrixFactorizationDP"),
    },
)


def __getattr__(name: str) -> Any:
    try:
        return _named(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise ImportError(f"hubbub.flower.{name} needs Flower: pip install 'hubbub[flower]'") from error
