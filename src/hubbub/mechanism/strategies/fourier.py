"""The Fourier mechanism: prefix sums embedded in a circulant matrix of twice the size, with its root by Fourier transform.

Letters: A the prefix sum ``(n, n)``, P the real circulant of size 2n whose square has A as its first n rows and columns, C the
first n columns of P and B its first n rows, X = CᵀC, N noising matrix with N·C = I, z noise ``(2n, dim)``.

P mixes all 2n rows of z into every round, so N·z with N = A⁻¹B cannot be streamed. But guarantee and error depend only on the
distribution of the noise, Gaussian with covariance N·Nᵀ: its Cholesky factor L gives the same noise as L·z from n rows, one a
round. It is the noise of the triangular strategy L⁻¹, whose sensitivity is at most that of C:
N·C = I means N = C⁺ + M with M·C = 0, so N·Nᵀ = X⁻¹ + M·Mᵀ ⪰ X⁻¹, and (L⁻¹)ᵀL⁻¹ = (N·Nᵀ)⁻¹ ⪯ X. Both BBᵀ and X are the first n
rows and columns of the circulant PPᵀ = PᵀP, hence L = A⁻¹K with K the Cholesky factor of X, KKᵀ = X.

Source: Choquette-Choo et al. 2023, "Multi-Epoch Matrix Factorization Mechanisms", Appendix, https://arxiv.org/abs/2211.06530.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg

from hubbub._util.checks import Array, Rebuilt, one_of, plain_numbers, rounds_count
from hubbub.mechanism.participation import Participation
from hubbub.mechanism.sensitivity import Sensitivity, of_matrix
from hubbub.mechanism.strategies.matrices import gram_root
from hubbub.mechanism.strategies.strategy import Description, Draw, Memory, Row, require_dense, require_round, substituted

DECODERS = ("optimal", "circulant")


@dataclass(frozen=True)
class Fourier(Rebuilt):
    """The Fourier mechanism for prefix sums, as the triangular matrix that streams its noise.

    Args:
        rounds: n, at least 1.
        decoder: ``"optimal"`` for A·C⁺, ``"circulant"`` for B: all rounds have the same error then.

    Raises:
        ValueError: An unknown decoder, or too few or many rounds.

    Example:
        >>> Fourier(rounds=2).matrix().round(3)
        array([[1.   , 0.   ],
               [0.455, 1.099]])
    """

    rounds: int
    decoder: str = "optimal"

    def __post_init__(self) -> None:
        plain_numbers(self, rounds=rounds_count)
        one_of("decoder", self.decoder, DECODERS)

    @property
    def description(self) -> Description:
        """Words, bands and sources, for statements and reports."""
        return Description("Fourier", self.rounds, ("choquettechoo2023multi",))

    @property
    def memory_rows(self) -> int:
        """The most rows that :meth:`step` remembers: all before it."""
        return self.rounds - 1

    def matrix(self) -> Array:
        """The lower-triangular strategy, ``(rounds, rounds)``, read-only."""
        return self._matrix

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x, computed from the matrix: inner products of its columns can be negative."""
        return of_matrix(self.matrix(), participation)

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of the noise, by forward substitution."""
        require_round(round_index, self.rounds)
        return substituted(self.matrix()[round_index, : round_index + 1], draw(round_index), memory, self.rounds)

    @cached_property
    def _matrix(self) -> Array:
        require_dense(self.rounds)
        # X is Toeplitz, and its spectrum is |λ|, with λ that of the kernel 1ⁿ0ⁿ.
        magnitudes = np.zeros(self.rounds + 1)
        magnitudes[0] = self.rounds
        odd = np.arange(1, self.rounds + 1, 2)
        magnitudes[odd] = 1 / np.sin(np.pi * odd / (2 * self.rounds))
        X = scipy.linalg.toeplitz(np.fft.irfft(magnitudes, 2 * self.rounds)[: self.rounds])
        if self.decoder == "optimal":
            C = gram_root(X)
        else:
            C = scipy.linalg.solve_triangular(np.linalg.cholesky(X), np.tri(self.rounds), lower=True)
        C.setflags(write=False)
        return C
