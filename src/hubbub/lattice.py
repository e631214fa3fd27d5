"""Clipped updates as integers, summed exactly, so that no bit of a release tells who took part.

Floating-point addition rounds differently for different sums: who sees ``x + noise`` to the last bit, and knows all other
clients, can often exclude one of two values of x with certainty, however large the noise. So updates are rounded to whole
multiples of a step, the sum is one of integers, and noise is rounded to the same lattice before it is added. As x lies on the
lattice, x + round(w) = round(x + w): the release is a *rounding of the ideal real mechanism*, and what is proved for that,
correlated noise included, holds for its post-processing.

Source: Mironov 2012, "On significance of the least significant bits for differential privacy"; Casacuberta et al. 2022,
https://arxiv.org/abs/2207.10635 (sums); Jin et al. 2021, https://arxiv.org/abs/2112.05307.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch

from hubbub._checks import integer, lattice_bits, positive, scale
from hubbub.discrete_gaussian import whole_share
from hubbub.errors import ConfigError, NoiseExhaustedError

__all__ = ["Lattice", "require_room", "share_stddev"]

_MOST_BITS = 24
# Sums and noise stay below this, so that they and their sum are whole numbers that float64 holds exactly.
_LARGEST = 2.0**52
# Noise beyond so many deviations does not happen: a radius of 106 bits ends at 12.2.
_DEVIATIONS = 13
_SHRINK = 1 - 2.0**-30


@dataclass(frozen=True)
class Lattice:
    """The whole multiples of the power of two at or below 2^−bits clip norms.

    Since the step is a power of two, values on the lattice are exact in float64; a coarser lattice of the same clip norm is a
    part of a finer one. Coarse steps cost accuracy, never privacy: the norm of what was rounded is held to the clip norm.

    Args:
        clip_norm: The largest L2 norm of one update, from 1e-12 to 1e12.
        bits: From 8 to 24, for updates of at most 4^bits numbers.

    Example:
        >>> lattice = Lattice(clip_norm=1.0)
        >>> lattice.step == 2**-24, lattice.radius == 2**24
        (True, True)
    """

    clip_norm: float
    bits: int = _MOST_BITS

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", scale("clip_norm", self.clip_norm))
        object.__setattr__(self, "bits", lattice_bits("bits", self.bits))

    @property
    def step(self) -> float:
        """The distance of neighbouring points."""
        return math.ldexp(1.0, math.frexp(self.clip_norm)[1] - 1 - self.bits)

    @property
    def radius(self) -> int:
        """The largest norm of an update in steps: from 2^bits to 2^(bits+1) − 1, never above ``clip_norm`` over ``step``."""
        return math.floor(self.clip_norm / self.step)

    def encode(self, update: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """An update in steps, clipped to ``radius``, and whether it had to be.

        An update with a number that is not finite counts as zero: whether a round is released must not hang on one client.
        That the squares of the integers add up to at most ``radius``² is checked exactly.

        Args:
            update: ``(dim,)``, any floating dtype.

        Returns:
            ``(dim,)`` int64, and the flag.

        Raises:
            ValueError: The update is no vector of real numbers, or has more of them than the lattice has room for.
        """
        if update.ndim != 1 or update.is_complex():
            raise ValueError(f"update has shape {tuple(update.shape)} and {update.dtype}: must be one vector of real numbers")
        self.require_dim(len(update))
        vector = update.detach().to(torch.float64)
        largest = float(vector.abs().max()) if vector.numel() else 0.0
        if not math.isfinite(largest):
            return torch.zeros_like(vector, dtype=torch.int64), True
        if largest == 0:
            return vector.to(torch.int64), False
        # Scaled first, so that the squares of huge numbers do not overflow and those of tiny ones do not vanish.
        unit = vector / largest
        norm = float(unit.norm())
        # Rounding moves each coordinate by half a step at most.
        room = self.radius - math.sqrt(vector.numel()) / 2
        clipped = norm * (largest / self.step) > room
        steps = unit * (room / norm) if clipped else vector / self.step
        whole = steps.round()
        while not self._fits(whole):
            clipped, steps = True, steps * _SHRINK
            whole = steps.round()
        return whole.to(torch.int64), clipped

    def require_dim(self, dim: int) -> None:
        """Refuse more numbers than can be rounded and still be held to the clip norm: half of it is left to them at least.

        Raises:
            ValueError: More than 4^bits.
        """
        if dim > 4**self.bits:
            raise ValueError(
                f"dim = {dim:,}: on a lattice of {self.bits} bits an update has at most {4**self.bits:,} numbers, or rounding "
                f"moves it by more than half of the clip norm; take lattice_bits = {-(-(dim - 1).bit_length() // 2)} or more"
            )

    def _fits(self, whole: torch.Tensor) -> bool:
        """Whether Σ q² ≤ radius² < 2⁵⁰, exactly.

        float64 adds whole numbers exactly up to 2⁵³, in any order, and rounding never takes a larger sum below that.
        """
        return float(torch.dot(whole, whole)) <= self.radius**2

    def release(self, total: torch.Tensor, row: torch.Tensor | None) -> torch.Tensor:
        """A sum plus a row of noise that is rounded to the lattice.

        Args:
            total: ``(dim,)`` int64, in steps.
            row: ``(dim,)`` float64, in the unit of the clip norm; ``None`` adds nothing.

        Returns:
            ``(dim,)`` float64 in the unit of the clip norm, on the lattice.

        Raises:
            NoiseExhaustedError: The noise is beyond what float64 holds to the last whole number.
        """
        if row is None:
            return total.to(torch.float64) * self.step
        noise = (row.to(total.device, torch.float64) / self.step).round_()
        if not float(noise.abs().max()) <= _LARGEST:
            raise NoiseExhaustedError(
                f"a row of noise reaches {float(noise.abs().max()):g} steps of 2^-{self.bits} clip norms, more than 2^52"
            )
        return noise.add_(total.to(torch.float64)).mul_(self.step)

    def holds(self, release: torch.Tensor) -> bool:
        """Whether every number of a release lies on the lattice."""
        steps = release.to(torch.float64) / self.step
        return bool(torch.isfinite(steps).all()) and torch.equal(steps.round(), steps)


def share_stddev(noise_multiplier: float, clip_norm: float, clients: int, bits: int = _MOST_BITS) -> int:
    """The standard deviation of a client's share of the noise, in steps of ``Lattice(clip_norm, bits)``, rounded up.

    The least whole number with which the shares of so many clients have at least the standard deviation ``noise_multiplier`` ×
    ``clip_norm`` together, exactly: z·C/√n in steps is never rounded down, not even by floating point.

    Args:
        noise_multiplier: From 1e-12 to 1e12.
        clip_norm: Of the lattice.
        clients: The fewest whose shares are in a sum.
        bits: Of the lattice.

    Raises:
        ValueError: A number out of range, or a share of more than 2²⁸ steps, which is not drawn exactly.

    Example:
        >>> share_stddev(noise_multiplier=1.0, clip_norm=1.0, clients=16) == 2**22
        True
    """
    lattice = Lattice(clip_norm, bits)
    noise = Fraction(scale("noise_multiplier", noise_multiplier)) * Fraction(lattice.clip_norm) / Fraction(lattice.step)
    return whole_share(noise, integer("clients", clients, at_least=1))


def require_room(clients: int, stddev: float) -> None:
    """Refuse, before the first round, sums or noise that would not be exact on the finest lattice, and so on any.

    Args:
        clients: The most clients of a cohort.
        stddev: Of z, per unit of clip norm.

    Raises:
        ConfigError: Too many clients, or too much noise.
    """
    most = 2 ** (_MOST_BITS + 1)
    if integer("clients", clients, at_least=0) * most > _LARGEST:
        raise ConfigError(
            f"clients = {clients}: a sum of so many is not exact; at most {int(_LARGEST) // most:,} can be in a cohort"
        )
    if positive("stddev", stddev) * most * _DEVIATIONS > _LARGEST:
        raise ConfigError(
            f"noise_multiplier: noise of {stddev:g} clip norms is not exact on the lattice; at most "
            f"{_LARGEST / most / _DEVIATIONS:,.0f} can be hidden behind"
        )
