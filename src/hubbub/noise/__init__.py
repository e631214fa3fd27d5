"""The noise: where z comes from, and the stream of rows of stddev·N·z that a run adds to its sums."""

from hubbub.noise.sources import NoiseSource, SecureSource, Segments, SimulationSource, sampler
from hubbub.noise.stream import NoiseStream

__all__ = ["NoiseSource", "NoiseStream", "SecureSource", "Segments", "SimulationSource", "sampler"]
