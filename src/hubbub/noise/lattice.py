"""Clipped updates as integers, summed exactly, so that no bit of a release reveals who took part.

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

import torch

from hubbub._util.checks import lattice_bits, scale
from hubbub.errors import NoiseExhaustedError
from hubbub.noise.steps import LARGEST, MOST_BITS, step_of

__all__ = ["Lattice", "require_one_shape"]

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
    bits: int = MOST_BITS

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", scale("clip_norm", self.clip_norm))
        object.__setattr__(self, "bits", lattice_bits("bits", self.bits))

    @property
    def step(self) -> float:
        """The distance of neighbouring points."""
        return step_of(self.clip_norm, self.bits)

    @property
    def radius(self) -> int:
        """The largest norm of an update in steps: from 2^bits to 2^(bits+1) − 1, never above ``clip_norm`` over ``step``."""
        return math.floor(self.clip_norm / self.step)

    def encode(self, update: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """An update in steps, clipped to ``radius``, and whether it had to be.

        An update with a number that is not finite counts as zero: whether a round is released must not depend on one client.
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
        whole = torch.empty(len(update), dtype=torch.float64, device=update.device)
        clipped = self._steps(update.detach(), whole)
        return whole.to(torch.int64), clipped

    def encode_rows(self, rows: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """Add the encoding of each row to ``total``, in place: bit for bit what :meth:`encode` makes of each row alone.

        Args:
            rows: ``(updates, dim)``, any floating dtype; they stay as they are.
            total: ``(dim,)`` int64.

        Returns:
            ``(updates,)`` bool: which had to be clipped.

        Raises:
            ValueError: As for :meth:`encode`, or a total of another shape or dtype.
        """
        if rows.ndim != 2 or rows.is_complex() or total.shape != rows.shape[1:] or total.dtype != torch.int64:
            raise ValueError(
                f"rows has shape {tuple(rows.shape)} and {rows.dtype}, total {tuple(total.shape)} and {total.dtype}: must be "
                "(updates, dim) of real numbers and (dim,) of int64"
            )
        self.require_dim(rows.shape[1])
        # One buffer for all rows: it stays in the cache, and each row meets the same kernels at the same place.
        whole = torch.empty(rows.shape[1], dtype=torch.float64, device=rows.device)
        # Whole numbers of at most 2^25, of which float64 adds 2^27 exactly.
        gathered = torch.zeros_like(whole)
        clipped = torch.zeros(len(rows), dtype=torch.bool)
        for i, row in enumerate(rows.detach()):
            clipped[i] = self._steps(row, whole)
            gathered += whole
        total += gathered.to(torch.int64)
        return clipped

    def _steps(self, row: torch.Tensor, whole: torch.Tensor) -> bool:
        """Put a row in whole steps, clipped, into a buffer ``(dim,)`` float64; returns whether it had to be clipped."""
        scale = _safe_scale(row)

        def copied() -> torch.Tensor:
            return whole.copy_(row) if scale == 1 else whole.copy_(row).div_(scale)

        norm = math.sqrt(float(torch.dot(copied(), whole)))
        if not 0 < norm < math.inf:
            whole.zero_()
            return norm != 0
        # Rounding moves each coordinate by half a step at most.
        room = self.radius - math.sqrt(len(row)) / 2
        clipped = norm * (scale / self.step) > room
        factor = room / norm if clipped else scale / self.step
        whole.mul_(factor).round_()
        while not self._fits(whole):
            clipped, factor = True, factor * _SHRINK
            copied().mul_(factor).round_()
        return clipped

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
            ValueError: Sum and row are of different lengths; torch would repeat the shorter one.
        """
        if row is None:
            return total.to(torch.float64) * self.step
        require_one_shape(total, row)
        noise = (row.to(total.device, torch.float64) / self.step).round_()
        if not float(noise.abs().max()) <= LARGEST:
            raise NoiseExhaustedError(
                f"a row of noise reaches {float(noise.abs().max()):g} steps of 2^-{self.bits} clip norms, more than 2^52"
            )
        return noise.add_(total.to(torch.float64)).mul_(self.step)

    def holds(self, release: torch.Tensor) -> bool:
        """Whether every number of a release lies on the lattice."""
        steps = release.to(torch.float64) / self.step
        return bool(torch.isfinite(steps).all()) and torch.equal(steps.round(), steps)


def require_one_shape(total: torch.Tensor, row: torch.Tensor) -> None:
    """Refuse a sum that torch would repeat to the length of its noise: a contribution would count once for each number.

    Raises:
        ValueError: They are of different shapes.
    """
    if total.shape != row.shape:
        raise ValueError(f"total has shape {tuple(total.shape)}, its row of noise {tuple(row.shape)}: must be alike")


def _safe_scale(row: torch.Tensor) -> float:
    """A power of two to divide a row by, so that squares of huge numbers do not overflow and those of tiny ones do not vanish.

    Of numbers of 32 bits or fewer float64 holds all squares.
    """
    if row.dtype != torch.float64 or not len(row):
        return 1.0
    low, high = torch.aminmax(row)
    largest = max(-float(low), float(high))
    return math.ldexp(1.0, max(-1000, min(1000, math.frexp(largest)[1]))) if 0 < largest < math.inf else 1.0
