"""Noise with a banded Toeplitz C⁻¹: a round's noise is a moving average over the last few rows of z.

With the same memory it beats banded C if clients come back soon, and its rows of z can be drawn again from their counters
instead of being kept. Two bands are λ-CGD, C⁻¹ = I − λS.

Letters: d coefficients of C⁻¹, c = 1/d those of C, b bands, n rounds.

Source: Kalinin et al. 2025, "Back to Square Roots", https://arxiv.org/abs/2505.12128.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hubbub._util.checks import Array, Rebuilt, integer, plain_numbers, rounds_count
from hubbub.mechanism.participation import Participation
from hubbub.mechanism.sensitivity import Sensitivity
from hubbub.mechanism.strategies import matrices
from hubbub.mechanism.strategies.strategy import Description, Draw, Memory, Row, require_dense, require_round
from hubbub.mechanism.workloads import Workload

# If rounding may change the sensitivity of C by more than this part, float64 has too few digits for C.
_MOST_ROUNDING = 1e-3
# And up to this part its sensitivity is called exact.
_EXACT = 1e-9


@dataclass(frozen=True)
class BandedInverse(Rebuilt):
    """C whose inverse has ``noising_coefficients`` along its diagonals and zeros below the last band.

    Args:
        rounds: n, at least 1.
        noising_coefficients: d, from the main diagonal of C⁻¹ down; at most n, the first not 0. Scale is free.

    Raises:
        ValueError: More bands than rounds, a zero on the diagonal, or a number that is not finite.

    Example:
        >>> BandedInverse(rounds=3, noising_coefficients=(1.0, -0.5)).matrix()
        array([[1.  , 0.  , 0.  ],
               [0.5 , 1.  , 0.  ],
               [0.25, 0.5 , 1.  ]])
    """

    rounds: int
    noising_coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        plain_numbers(self, rounds=rounds_count)
        d = matrices.first_column("noising_coefficients", self.noising_coefficients, self.rounds)
        object.__setattr__(self, "noising_coefficients", d)

    @property
    def bands(self) -> int:
        """b, the number of diagonals of C⁻¹ that may be other than 0, the main one counted."""
        return len(self.noising_coefficients)

    @property
    def description(self) -> Description:
        """Words, bands and sources, for statements and reports."""
        return Description(f"banded inverse, {self.bands} bands", self.rounds, ("kalinin2025back",), toeplitz=True)

    @property
    def memory_rows(self) -> int:
        """The most rows that :meth:`step` remembers."""
        return self.bands - 1

    @property
    def coefficients(self) -> Array:
        """c, ``(rounds,)``: the first column of C.

        Raises:
            ValueError: It grows so far that float64 has too few digits for it.
        """
        return self._inverted[0]

    @cached_property
    def _inverted(self) -> tuple[Array, float]:
        """c, and how far its sensitivity may be below that of C for rounding, as a part of it."""
        with np.errstate(over="ignore", invalid="ignore"):
            c, rounding = matrices.inverse_and_rounding(np.array(self.noising_coefficients), self.rounds)
        if not rounding <= _MOST_ROUNDING:
            raise ValueError(
                f"noising_coefficients: the inverse of their Toeplitz matrix grows too far in {self.rounds} rounds, so that "
                "its sensitivity is lost to rounding; their polynomial must have no roots inside of the unit disc, and no "
                "cluster of roots near it"
            )
        c.setflags(write=False)
        return c, rounding

    def matrix(self) -> Array:
        """C as a dense matrix, ``(rounds, rounds)``."""
        require_dense(self.rounds)
        return matrices.matrix(self.coefficients, self.rounds)

    def leading(self, rounds: int) -> "BandedInverse":
        """The first ``rounds`` rounds."""
        return BandedInverse(rounds, self.noising_coefficients[:rounds])

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x.

        Exact for one participation, and where c is positive and does not increase, unless rounding is more; otherwise a bound.

        Source: Kalinin and Lampert 2024, Theorem 2, https://arxiv.org/abs/2405.13763.
        """
        c, rounding = self._inverted
        found = matrices.sensitivity(c, self.rounds, participation)
        return replace(found, value=found.value / (1 - rounding), exact=found.exact and rounding <= _EXACT)

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of C⁻¹z, a combination of the last ``bands`` rows of z."""
        require_round(round_index, self.rounds)
        d = self.noising_coefficients
        drawn = draw(round_index)
        row = d[0] * drawn
        for coefficient, earlier in zip(d[1:], reversed(memory), strict=False):
            row += coefficient * earlier
        kept = (*memory, drawn)
        return row, kept[max(0, len(kept) - (self.bands - 1)) :]


def square_root(rounds: int, bands: int) -> BandedInverse:
    """The inverse of the square root of the prefix sum, cut to ``bands`` diagonals: the banded inverse square root, BISR.

    Args:
        rounds: n, at least 1.
        bands: b, from 1 to n.

    Raises:
        ValueError: More bands than rounds.

    Example:
        >>> square_root(rounds=4, bands=3).noising_coefficients
        (1.0, -0.5, -0.125)

    Source: Kalinin et al. 2025, https://arxiv.org/abs/2505.12128.
    """
    return square_root_of(Workload(rounds), bands)


def square_root_of(workload: Workload, bands: int) -> BandedInverse:
    """The inverse of the square root of a workload with momentum, cut to ``bands`` diagonals.

    Args:
        workload: A, of equal learning rates, whose value is left out: the scale of C is free.
        bands: b, from 1 to n.

    Raises:
        ValueError: More bands than rounds, or learning rates that differ.

    Example:
        >>> from hubbub.mechanism.workloads import momentum
        >>> square_root_of(momentum(rounds=4, momentum=0.5), bands=3).noising_coefficients
        (1.0, -0.75, -0.03125)
    """
    matrices.require_equal_rates(workload)
    bands = integer("bands", bands, at_least=1, at_most=workload.rounds)
    return BandedInverse(workload.rounds, tuple(matrices.root_series(workload.momentum, bands, -0.5).tolist()))
