"""The noise: where z comes from, and the stream of rows of stddev·N·z that a run adds to its sums."""

from typing import TYPE_CHECKING

from hubbub._util import lazily

if TYPE_CHECKING:
    from hubbub.noise.sources import NoiseSource, SecureSource, Segments, SimulationSource, sampler
    from hubbub.noise.stream import NoiseStream

__all__ = ["NoiseSource", "NoiseStream", "SecureSource", "Segments", "SimulationSource", "sampler"]

# Whoever plans a run asks how fine its lattice is, and loads no tensors for it.
__getattr__, __dir__ = lazily(
    __name__,
    {"sources": ("NoiseSource", "SecureSource", "Segments", "SimulationSource", "sampler"), "stream": ("NoiseStream",)},
)
