"""The noise: where z comes from, and the stream of rows of stddev·N·z that a run adds to its sums."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hubbub.noise.sources import NoiseSource, SecureSource, Segments, SimulationSource, sampler
    from hubbub.noise.stream import NoiseStream

__all__ = ["NoiseSource", "NoiseStream", "SecureSource", "Segments", "SimulationSource", "sampler"]


def __getattr__(name: str) -> Any:
    # Whoever plans a run asks how fine its lattice is, and loads no tensors for it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'stream' if name == 'NoiseStream' else 'sources'}"), name)
