"""The step of a lattice, and the limits of exact sums on it; no tensors."""

import math
from fractions import Fraction

from hubbub._util.checks import integer, lattice_bits, positive, scale
from hubbub.errors import ConfigError
from hubbub.mechanism import whole_share

MOST_BITS = 24
# Sums and noise stay below this, so that they and their sum are whole numbers that float64 holds exactly.
LARGEST = 2.0**52
# Beyond the largest possible noise in standard deviations: a radius of 106 bits ends at 12.2.
DEVIATIONS = 13


def step_of(clip_norm: float, bits: int) -> float:
    """The distance of adjacent points of a lattice: the power of two at or below 2^−bits clip norms.

    Example:
        >>> step_of(clip_norm=0.7, bits=8) == 2.0**-9
        True
    """
    return math.ldexp(1.0, math.frexp(clip_norm)[1] - 1 - bits)


def share_stddev(noise_multiplier: float, clip_norm: float, clients: int, bits: int = MOST_BITS) -> int:
    """The standard deviation of a client's share of the noise, in steps of ``Lattice(clip_norm, bits)``, rounded up.

    The least whole number with which the shares of these clients have at least the standard deviation ``noise_multiplier`` ×
    ``clip_norm`` together, exactly: z·C/√n in steps is never rounded down, not even by floating point.
    ``clients`` is the fewest whose shares are in a sum; a share of more than 2²⁸ steps is refused.

    Example:
        >>> share_stddev(noise_multiplier=1.0, clip_norm=1.0, clients=16) == 2**22
        True
    """
    norm = scale("clip_norm", clip_norm)
    step = step_of(norm, lattice_bits("bits", bits))
    noise = Fraction(scale("noise_multiplier", noise_multiplier)) * Fraction(norm) / Fraction(step)
    return whole_share(noise, integer("clients", clients, at_least=1))


def require_room(clients: int, stddev: float) -> None:
    """Refuse, before the first round, sums or noise that are not exact on the finest lattice.

    ``clients`` is the most of a cohort, ``stddev`` that of z per unit of clip norm.

    Example:
        >>> require_room(clients=1_000_000_000, stddev=1.0)
        Traceback (most recent call last):
        hubbub.errors.ConfigError: clients = 1000000000: a sum of that many is not exact; at most 134,217,728 can be in a cohort
    """
    most = 2 ** (MOST_BITS + 1)
    if integer("clients", clients, at_least=0) * most > LARGEST:
        raise ConfigError(
            f"clients = {clients}: a sum of that many is not exact; at most {int(LARGEST) // most:,} can be in a cohort"
        )
    if positive("stddev", stddev) * most * DEVIATIONS > LARGEST:
        raise ConfigError(
            f"noise_multiplier: noise of {stddev:g} clip norms is not exact on the lattice; at most "
            f"{LARGEST / most / DEVIATIONS:,.0f} can be hidden behind"
        )
