"""Private federations on Flower: strategies, mods for its clients, and a grid in this process.

What is named here is imported when it is first used, so that a client's process loads no accounting.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOMES = {
    **dict.fromkeys((name for name in __all__ if name.startswith("DifferentialPrivacy")), "compat"),
    **dict.fromkeys(("DPFedAvgAdaptive", "DPFedAvgFixed", "MatrixFactorizationDP"), "strategies"),
    **dict.fromkeys(("clipping_mod", "noising_mod", "timer_mod"), "mods"),
    **dict.fromkeys(("encrypting_mod", "hold"), "secagg_client"),
    "DPNumPyClient": "numpy_client",
    "GridPopulation": "population",
    "LocalGrid": "local_grid",
    "Paillier": "secagg",
    "separation_mod": "separation",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        match (error.name or "").partition(".")[0]:
            case "flwr":
                raise ImportError(f"hubbub.flower.{name} needs Flower: pip install 'hubbub[flower]'") from error
            case "gmpy2":
                raise ImportError(f"hubbub.flower.{name} needs gmpy2: pip install 'hubbub[flower,secagg]'") from error
        raise
