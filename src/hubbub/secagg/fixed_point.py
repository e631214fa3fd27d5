"""Real numbers as whole numbers of a few bits, and back.

A value is clipped to ±clip and rounded to the nearest whole multiple of step = clip/(2^(bits−1) − 1). The clip is public and
the same for everybody; no exponent goes along with a value, since that would tell its magnitude.

Source: Zhang et al. 2020, "BatchCrypt", https://www.usenix.org/conference/atc20/presentation/zhang-chengliang (quantised
gradients under Paillier); phe, docs/caveats (what a public exponent gives away).
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubbub._checks import integer, scale

__all__ = ["FixedPoint"]

_MOST_BITS = 32
# With 32 bits a quotient is below 2³¹, and the floats on the way there and back are off by less than 2⁻²⁰ steps together.
_FLOATING_POINT = 2.0**-19


@dataclass(frozen=True)
class FixedPoint:
    """The whole multiples of ``step`` from −``clip`` to ``clip``.

    Args:
        bits: Of one whole number, its sign included, from 2 to 32.
        clip: The largest absolute value, from 1e-12 to 1e12; larger values are cut off.

    Example:
        >>> FixedPoint(bits=8, clip=1.0).encode([0.5, -3.0]).tolist()
        [64, -127]
    """

    bits: int
    clip: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", integer("bits", self.bits, at_least=2, at_most=_MOST_BITS))
        object.__setattr__(self, "clip", scale("clip", self.clip))

    @property
    def limit(self) -> int:
        """The largest whole number: 2^(bits−1) − 1."""
        return int(2 ** (self.bits - 1) - 1)

    @property
    def step(self) -> float:
        """The distance of neighbouring values."""
        return self.clip / self.limit

    @property
    def error_bound(self) -> float:
        """How far a value from −``clip`` to ``clip`` may come back from where it was: half a step, rounded up.

        A bound for one value and for the mean of several; a sum of m values is off by at most m times as much.
        """
        return math.nextafter(self.step * (0.5 + _FLOATING_POINT), math.inf)

    def encode(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Values in steps, clipped, ties to the even neighbour.

        Args:
            values: Any shape, real and finite.

        Returns:
            ``(size,)``, row by row, from −``limit`` to ``limit``.

        Raises:
            ValueError: A value is NaN or infinite (its place is named, not the value), or there is none.
            TypeError: The values are no real numbers.
        """
        array = np.asarray(values)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"values has dtype {array.dtype}: must be real numbers")
        if array.size == 0:
            raise ValueError(f"values has shape {array.shape}: must not be empty")
        flat = array.astype(np.float64).ravel()
        bad = np.flatnonzero(~np.isfinite(flat))
        if bad.size:
            raise ValueError(f"values[{bad[0]}] is NaN or infinite: must be finite ({bad.size} of {flat.size} are not)")
        return np.rint(np.clip(flat, -self.clip, self.clip) / self.step).astype(np.int64)

    def decode(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Whole numbers of steps as real numbers; sums below 2⁵³ lose nothing but the last rounding."""
        return steps.astype(np.float64) * self.step
