"""The mechanism as one value: strategy, participation and noise multiplier.

A mechanism is stated for contributions of norm at most 1: training divides updates by the clip norm, and multiplies the sum
by it.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Literal

import numpy as np

from hubbub._util import least_float, least_root, no_lower
from hubbub._util.checks import Array, integer, lattice_bits, real_array, scale
from hubbub.errors import ConfigError, ParticipationError
from hubbub.mechanism.participation import (
    FixedEpochs,
    Participation,
    RandomParticipation,
    SingleParticipation,
    require_participation,
)
from hubbub.mechanism.sensitivity import Sensitivity, is_triangular, of_matrix, require_full_rank
from hubbub.mechanism.strategies import OWN, Identity
from hubbub.mechanism.strategies.strategy import MOST_DENSE, Strategy, WithLeadingPart, require_strategy

# The largest standard deviation of a noise share, in steps of its lattice.
MOST_STDDEV = 2**28

# Who adds the noise, unless clients add noise shares: the server, or each key holder of a secure aggregation, who adds all of
# it from a key of its own, encrypted. Then neither the server nor any holder knows all noise in a sum.
NoiseBy = Literal["server", "holders"]
_MOST_SHARES, _MOST_DIM = 10**9, 10**12
# Squares of the norms of smaller columns have lost digits, and noise in proportion would be too small.
_LEAST_COLUMN = 1e-100


@dataclass(frozen=True)
class NoiseShares:
    """Noise shares: each client adds discrete Gaussian noise on the lattice of the sums, and the server adds none.

    Args:
        clients: The fewest clients whose shares are in a released sum.
        dim: The most numbers in a sum. A generous value costs nothing: the sum of shares of a few steps differs from one
            Gaussian by less than float64 resolves.
        lattice_bits: From 8 to 24: a clip norm has at least 2^lattice_bits steps of the lattice. With fewer steps a share
            costs more privacy, which is accounted for.

    Raises:
        ValueError: A number out of range: 1 to 10⁹ clients, 1 to 10¹² numbers, 8 to 24 bits.

    Example:
        >>> NoiseShares(clients=100).least_stddev(noise_multiplier=2.0) == 2 * 2**24 // 10 + 1
        True
    """

    clients: int
    dim: int = _MOST_DIM
    lattice_bits: int = 24

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", integer("clients", self.clients, at_least=1, at_most=_MOST_SHARES))
        object.__setattr__(self, "dim", integer("dim", self.dim, at_least=1, at_most=_MOST_DIM))
        object.__setattr__(self, "lattice_bits", lattice_bits("lattice_bits", self.lattice_bits))

    def least_stddev(self, noise_multiplier: float) -> int:
        """The least standard deviation of a share in steps of the lattice, for any clip norm."""
        return whole_share(Fraction(noise_multiplier) * 2**self.lattice_bits, self.clients)


@dataclass(frozen=True)
class Mechanism:
    """A matrix mechanism: it releases x + N·z, and one client's contribution to a round has norm at most 1.

    Args:
        strategy: How noise is correlated over rounds.
        participation: Who may contribute when.
        noise_multiplier: Standard deviation of z, divided by the sensitivity of C to *one* participation (its largest column
            norm). For independent noise it is the σ/C of DP-SGD.
        shares: Noise shares of the clients; ``None`` if the server adds the noise.

    Raises:
        ValueError: The noise multiplier is not a number from 1e-12 to 1e12.
        ConfigError: Noise shares with correlated noise, with random cohorts, or of more noise than can be drawn.
        ParticipationError: Fixed epochs need more rounds than the strategy has.

    Example:
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> from hubbub.mechanism.strategies import Identity
        >>> mechanism = Mechanism(Identity(rounds=100), MinSeparation(10, 10), noise_multiplier=2.0)
        >>> mechanism.stddev, round(mechanism.l2_sensitivity, 4)
        (2.0, 3.1623)
    """

    strategy: Strategy
    participation: Participation
    noise_multiplier: float
    shares: NoiseShares | None = None

    def __post_init__(self) -> None:
        require_strategy(self.strategy)
        require_participation(self.participation)
        object.__setattr__(self, "noise_multiplier", scale("noise_multiplier", self.noise_multiplier))
        pattern = self.participation
        if isinstance(pattern, FixedEpochs) and (last := (pattern.epochs - 1) * pattern.rounds_per_epoch) >= self.rounds:
            raise ParticipationError(f"{pattern} starts its last epoch in round {last}: the strategy has {self.rounds} rounds")
        if self.shares is not None:
            _require_shareable(self, self.shares)

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return int(self.strategy.rounds)

    @cached_property
    def column_sensitivity(self) -> Sensitivity:
        """The sensitivity of C to one participation, exact or a bound."""
        found = _sensitivity(self.strategy, SingleParticipation())
        if found.value < _LEAST_COLUMN:
            raise ValueError("strategy: its columns are 0, or so small that their squares underflow; scale C")
        return found

    @property
    def column_norm(self) -> float:
        """The sensitivity of C to one participation."""
        return self.column_sensitivity.value

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """The sensitivity of C to the whole participation pattern, zero-out relation, exact or a bound; never amplified."""
        return _sensitivity(self.strategy, self.participation)

    @property
    def l2_sensitivity(self) -> float:
        """The sensitivity of C to the whole participation pattern, zero-out relation, rounded up."""
        return self.sensitivity.stated()

    @property
    def stddev(self) -> float:
        """Standard deviation of z, per unit of clip norm."""
        return self.noise_multiplier * self.column_norm

    @property
    def mu(self) -> float:
        """The Gaussian's μ, rounded up: sensitivity over standard deviation, without amplification (zero-out relation).

        Raises:
            ValueError: The noise comes in shares, whose sum is not Gaussian.
        """
        return least_root(self.mu_squared(self.sensitivity))

    @property
    def zcdp_rho(self) -> float:
        """ρ of zero-concentrated DP without amplification, μ²/2, rounded up (zero-out relation)."""
        return least_float(self.mu_squared(self.sensitivity) / 2)

    def sensitivity_after(self, rounds: int) -> Sensitivity:
        """The sensitivity of the release of the first ``rounds`` rounds: that of the leading part of C.

        Args:
            rounds: From 1.

        Raises:
            ValueError: More rounds than the strategy has, or fewer than 1.
        """
        integer("rounds", rounds, at_least=1, at_most=self.rounds)
        if rounds == self.rounds:
            return self.sensitivity
        if type(self.strategy) in OWN and isinstance(self.strategy, WithLeadingPart):
            return _sensitivity(self.strategy.leading(rounds), self.participation)
        if self.rounds > MOST_DENSE:
            # What is known of all releases bounds what is known of the first ones.
            return replace(self.sensitivity, exact=False)
        C = _matrix(self.strategy)
        # All rows of a C that is not lower triangular.
        return of_matrix(C[:rounds, :rounds] if is_triangular(C) else np.ascontiguousarray(C[:, :rounds]), self.participation)

    def mu_squared(self, moved: Sensitivity, factor: float = 1.0) -> Fraction:
        """The square of sensitivity times factor over standard deviation, rounded up.

        Raises:
            ValueError: The noise comes in shares, whose sum is not Gaussian.
        """
        if self.shares is not None:
            raise ValueError("mu: a sum of discrete Gaussian shares has none; ask hubbub.accounting.guarantee what it costs")
        if moved.square is not None and type(self.strategy) is Identity:
            return moved.square * Fraction(factor) ** 2 / Fraction(self.noise_multiplier) ** 2
        return Fraction(no_lower(moved.value * factor / self.stddev)) ** 2

    def least_sensitivity(self, rounds: int) -> Sensitivity:
        """The least known sensitivity of the first rounds: the bound for all rounds covers them too, and may be tighter."""
        return min(self.sensitivity_after(rounds), self.sensitivity, key=lambda s: s.value)


def _require_shareable(mechanism: Mechanism, shares: NoiseShares) -> None:
    """Refuse noise shares that no theorem accounts for, or that cannot be drawn."""
    if not isinstance(shares, NoiseShares):
        raise TypeError(f"shares = {shares!r}: must be NoiseShares(clients, dim), or None if the server adds the noise")
    name, cohorts = type(mechanism.strategy).__name__, type(mechanism.participation).__name__
    if type(mechanism.strategy) is not Identity:
        raise ConfigError(
            f"shares with strategy = {name}: a client cannot know the noise that others added in earlier rounds, so that its "
            "noise is independent; use Identity, or let the server add correlated noise"
        )
    if isinstance(mechanism.participation, RandomParticipation):
        raise ConfigError(
            f"shares with {cohorts}: sums of discrete noise are accounted without amplification by random cohorts; use a "
            "participation pattern, or let the server add the noise"
        )
    try:
        # A clip norm has fewer steps than 2^(lattice_bits + 1).
        whole_share(Fraction(mechanism.noise_multiplier) * 2 ** (shares.lattice_bits + 1), shares.clients)
    except ValueError as error:
        raise ConfigError(
            f"noise_multiplier = {mechanism.noise_multiplier!r} in shares of {shares.clients} clients: is more than "
            f"{MOST_STDDEV >> (shares.lattice_bits + 1)} clip norms for each, which is not drawn; take less noise, or "
            "ask for more clients"
        ) from error


@np.errstate(under="ignore")
def _sensitivity(strategy: Strategy, participation: Participation) -> Sensitivity:
    """A strategy of this package states its sensitivity; that of any other class is computed from its matrix."""
    if type(strategy) in OWN:
        return strategy.sensitivity(participation)
    return of_matrix(require_full_rank(f"{type(strategy).__name__}.matrix()", _matrix(strategy)), participation)


def _matrix(strategy: Strategy) -> Array:
    """C, with a column for each round."""
    C = real_array(f"{type(strategy).__name__}.matrix()", strategy.matrix(), ndim=2)
    if C.shape[1] != strategy.rounds:
        raise ValueError(
            f"{type(strategy).__name__}.matrix() has shape {C.shape}: must have a column for each of its {strategy.rounds} "
            "rounds"
        )
    return C


def whole_share(stddev: Fraction, shares: int) -> int:
    """The least whole standard deviation s of a share with s²·shares ≥ stddev², exactly.

    Raises:
        ValueError: It is above 2²⁸.

    Example:
        >>> whole_share(Fraction(40), shares=100), whole_share(Fraction(40) + Fraction(1, 10**30), shares=100)
        (4, 5)
    """
    square = stddev**2 / shares
    root = math.isqrt(math.ceil(square))
    root += root * root < square
    if root > MOST_STDDEV:
        raise ValueError(f"stddev of a share = {root} steps: is at most 2^28; take more shares, or less noise")
    return root
