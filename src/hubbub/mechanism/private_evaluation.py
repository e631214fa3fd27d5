"""Private evaluation: bounded means and histograms of clients, as one vector that each adds to a noised sum.

Each statistic of a client is a block of norm at most 1, and one more coordinate counts the answers, so that the vector of m
statistics has norm at most √(m + 1). Estimates are post-processing of the release: fractions of the noisy count, so that
clients that do not answer change no estimate, and quantiles of a noisy histogram.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from hubbub._util.checks import Array, finite, integer, number, plain_numbers, probability, scale, shown, table
from hubbub._util.strict_json import finite_only
from hubbub.errors import ConfigError
from hubbub.mechanism import gaussian
from hubbub.mechanism.mechanism import Mechanism
from hubbub.mechanism.participation import PoissonSampling
from hubbub.mechanism.strategies import Identity

__all__ = ["ClientStatistic", "Estimate", "Histogram", "Mean", "PrivateEvaluation", "epsilon_of_share"]

_MOST_STATISTICS, _MOST_BINS = 100, 10_000


def _require_name(name: object) -> None:
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 100:
        raise ValueError(f"name = {shown(name)}: must be a text of one line and at most 100 letters")


@dataclass(frozen=True)
class Mean:
    """The mean over clients of one number of each; one outside the bounds counts as the nearer bound.

    Args:
        name: The name of the number among those of a client, such as ``"accuracy"``.
        low: The lower bound.
        high: The upper bound.

    Raises:
        ValueError: An invalid name, or bounds that are not finite and increasing.

    Example:
        >>> Mean("loss", low=0.0, high=10.0)
        Mean(name='loss', low=0.0, high=10.0)
        >>> Mean("loss", low=1.0, high=0.0)
        Traceback (most recent call last):
            ...
        ValueError: loss: low = 1.0 and high = 0.0: must be increasing
    """

    name: str
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        plain_numbers(self)
        _require_name(self.name)
        if not finite(f"{self.name}: low", self.low) < finite(f"{self.name}: high", self.high):
            raise ValueError(f"{self.name}: low = {self.low!r} and high = {self.high!r}: must be increasing")
        if self._middle()[1] <= 0:
            raise ValueError(f"{self.name}: low = {self.low!r} and high = {self.high!r}: are too close to lie between")

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return 1

    def encode(self, value: float) -> Array:
        """A client's block, ``(1,)``: its number between the bounds, as −1 to 1."""
        middle, half = self._middle()
        return np.array([min(max((value - middle) / half, -1.0), 1.0)])

    def estimate(self, block: Array, count: float, stddev: float) -> "Estimate":
        """The estimate of the mean from a noisy sum of blocks."""
        middle, half = self._middle()
        share = float(np.clip(block[0] / count, -1.0, 1.0))
        # The standard error of a quotient of two noisy sums, to first order.
        return Estimate(self.name, middle + half * share, half * stddev * math.sqrt(1 + share**2) / count)

    def _middle(self) -> tuple[float, float]:
        return self.low / 2 + self.high / 2, self.high / 2 - self.low / 2


@dataclass(frozen=True)
class Histogram:
    """The fraction of clients with their number in each bin; numbers outside the edges count in the outer bins.

    Args:
        name: The name of the number among those of a client.
        edges: Bin edges, increasing, at least 2; a number on an inner edge is in the bin above.

    Raises:
        ValueError: An invalid name, or edges that are not finite and increasing, or too many.
    """

    name: str
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        plain_numbers(self)
        _require_name(self.name)
        edges = tuple(finite(f"{self.name}: edges", edge) for edge in self.edges)
        if not 2 <= len(edges) <= _MOST_BINS or any(b <= a for a, b in pairwise(edges)):
            raise ValueError(f"{self.name}: edges = {shown(self.edges)}: must be 2 to {_MOST_BINS} increasing numbers")
        object.__setattr__(self, "edges", edges)

    @property
    def dim(self) -> int:
        """The number of coordinates: its bins."""
        return len(self.edges) - 1

    def encode(self, value: float) -> Array:
        """A client's block, ``(bins,)``: 1 in its bin."""
        block = np.zeros(self.dim)
        block[np.searchsorted(self.edges[1:-1], value, side="right")] = 1.0
        return block

    def estimate(self, block: Array, count: float, stddev: float) -> "Estimate":
        """The estimate of the fractions from a noisy sum of blocks; its value is the median."""
        parts = np.clip(block / count, 0.0, 1.0)
        # The largest standard error of a bin, that of a fraction of 1.
        found = Estimate(self.name, math.nan, stddev * math.sqrt(2) / count, tuple(parts.tolist()), self.edges)
        return replace(found, value=found.quantile(0.5))


ClientStatistic = Mean | Histogram


@dataclass(frozen=True)
class Estimate:
    """The private estimate of one statistic.

    Args:
        name: The name of the statistic.
        value: The mean, or the median of a histogram.
        standard_error: Of the mean, or the largest of the fractions, from the noise alone; sampling of clients adds its own.
        parts: For a histogram the fraction of clients in each bin, from 0 to 1.
        edges: Its bin edges.

    Example:
        >>> Estimate("loss", 1.0, 0.01, parts=(0.5, 0.25, 0.25), edges=(0.0, 1.0, 2.0, 3.0)).quantile(0.75)
        2.0
    """

    name: str
    value: float
    standard_error: float
    parts: tuple[float, ...] = ()
    edges: tuple[float, ...] = ()

    def quantile(self, at: float) -> float:
        """A quantile of a histogram, linear within a bin.

        Raises:
            ValueError: ``at`` is not from 0 to 1, or this is not a histogram.
        """
        if not self.parts:
            raise ValueError(f"{self.name}: has no quantiles; measure a Histogram")
        number("at", at, lambda x: 0 <= x <= 1, "be from 0 to 1")
        below = np.concatenate([[0.0], np.cumsum(self.parts)])
        # All bins are empty: take them as equally likely.
        below = below / below[-1] if below[-1] > 0 else np.linspace(0, 1, len(below))
        # Nobody is above the last bin that is not empty.
        used = int(np.argmax(below >= 1)) + 1
        return float(np.interp(at, below[:used], self.edges[:used]))

    def as_json(self) -> dict[str, Any]:
        """The estimate as strict JSON values."""
        histogram = {"parts": list(self.parts), "edges": list(self.edges)} if self.parts else {}
        return {"value": self.value, "standard_error": self.standard_error, **histogram}


@dataclass(frozen=True)
class PrivateEvaluation:
    """The private evaluation of a run: its statistics, its schedule and its noise.

    After every ``every`` rounds a Poisson sample of clients adds the model's statistics on their own data to a sum with
    Gaussian noise. Its privacy cost is part of the run's.

    Args:
        noise_multiplier: Standard deviation of the noise over the norm of a client's vector; see :meth:`at_share`.
        statistics: The statistics, with equal weight.
        sampling_probability: That a client takes part in an evaluation.
        every: Rounds from one evaluation to the next.

    Raises:
        ConfigError: No statistic, two of the same name and kind, or too many.
        ValueError: A number out of range.
        TypeError: Not a tuple of statistics.

    Example:
        >>> evaluation = PrivateEvaluation(noise_multiplier=0.5, statistics=(Mean("accuracy"), Mean("loss", 0.0, 5.0)))
        >>> total = sum(evaluation.encode({"accuracy": 0.75, "loss": 1.0}) for _ in range(4))
        >>> [(found.name, found.value) for found in evaluation.estimates(total)]
        [('accuracy', 0.75), ('loss', 1.0)]
    """

    noise_multiplier: float
    statistics: tuple[ClientStatistic, ...] = (Mean("accuracy"),)
    sampling_probability: float = 1.0
    every: int = 10

    def __post_init__(self) -> None:
        plain_numbers(self)
        scale("evaluation.noise_multiplier", self.noise_multiplier)
        probability("evaluation.sampling_probability", self.sampling_probability)
        integer("evaluation.every", self.every, at_least=1)
        if not isinstance(self.statistics, tuple) or not all(isinstance(one, ClientStatistic) for one in self.statistics):
            raise TypeError(f"evaluation.statistics = {shown(self.statistics)}: must be a tuple of Mean and Histogram")
        kinds = {(type(one), one.name) for one in self.statistics}
        if not 0 < len(self.statistics) <= _MOST_STATISTICS or len(kinds) < len(self.statistics):
            raise ConfigError(
                f"evaluation.statistics: has {len(self.statistics)}; name 1 to {_MOST_STATISTICS}, each kind of a number once"
            )

    @classmethod
    def at_share(
        cls,
        share: float,
        *,
        rounds: int,
        epsilon: float,
        delta: float,
        statistics: tuple[ClientStatistic, ...] = (Mean("accuracy"),),
        every: int = 10,
    ) -> "PrivateEvaluation":
        """The evaluation of all clients that spends a share of a run's budget, in ρ of zero-concentrated DP, which adds up.

        It is that share under zero-out and add-or-remove-one; under replace-one an evaluation moves twice as far.

        Args:
            share: The share of the budget, above 0 and below 1.
            rounds: The rounds of the run.
            epsilon: The epsilon of the budget.
            delta: The delta of the budget.
            statistics: The statistics.
            every: Rounds from one evaluation to the next.

        Raises:
            ConfigError: A run of fewer rounds than ``every``.
            ValueError: A number out of range.

        Example:
            >>> round(PrivateEvaluation.at_share(0.05, rounds=100, epsilon=2.0, delta=1e-5).noise_multiplier, 1)
            28.2
        """
        times = integer("rounds", rounds, at_least=1) // integer("evaluation.every", every, at_least=1)
        if not times:
            raise ConfigError(f"evaluation.every = {every}: the run has {rounds} rounds; evaluate more often, or not at all")
        return cls(_noise_at_share(share, epsilon, delta) * math.sqrt(times), statistics, 1.0, every)

    def times(self, rounds: int) -> int:
        """The most evaluations in that many rounds: one after each ``every`` of them."""
        return rounds // self.every

    def due(self, round_index: int) -> bool:
        """Whether an evaluation follows this round."""
        return (round_index + 1) % self.every == 0

    def mechanism(self, times: int) -> Mechanism:
        """The mechanism of that many evaluations."""
        return Mechanism(Identity(times), PoissonSampling(self.sampling_probability), self.noise_multiplier)

    @property
    def dim(self) -> int:
        """The length of a client's vector."""
        return sum(one.dim for one in self.statistics) + 1

    @property
    def norm(self) -> float:
        """The largest norm of a client's vector."""
        return math.sqrt(len(self.statistics) + 1)

    def encode(self, values: Mapping[str, float] | None) -> Array:
        """A client's vector, ``(dim,)``, of norm at most :attr:`norm`; zero for one that does not answer or lacks a number."""
        try:
            numbers = [float((values or {})[one.name]) for one in self.statistics]
        except Exception:  # noqa: BLE001 # a client may send anything
            return np.zeros(self.dim)
        if any(map(math.isnan, numbers)):
            return np.zeros(self.dim)
        return np.concatenate([*(one.encode(x) for one, x in zip(self.statistics, numbers, strict=True)), [1.0]])

    def estimates(self, release: Array) -> tuple[Estimate, ...]:
        """The estimates of a release, ``(dim,)``: post-processing.

        Where the noisy number of answers is below twice its standard deviation, maybe nobody answered: the estimate is then the
        middle of the bounds, or empty bins, with a standard error of half of the bounds, or more than 1.
        """
        stddev = self.noise_multiplier * self.norm
        if release[-1] < max(0.5, 2 * stddev):
            release, stddev = np.zeros(self.dim), 1.0
        # At least one client, so that quotients stay finite.
        count = max(float(release[-1]), 1.0)
        # Behind the last block stands the count.
        *blocks, _ = np.split(release, np.cumsum([one.dim for one in self.statistics]))
        return tuple(one.estimate(block, count, stddev) for one, block in zip(self.statistics, blocks, strict=True))

    def record(self) -> dict[str, Any]:
        """The settings as strict JSON values."""
        statistics = [{"kind": type(one).__name__, **asdict(one)} for one in self.statistics]
        return {**asdict(self), "statistics": finite_only(statistics)}

    @classmethod
    def from_record(cls, record: object) -> "PrivateEvaluation":
        """The evaluation of a record, checked.

        Raises:
            ValueError, TypeError, ConfigError: The record is invalid.
        """
        stated = dict(table("evaluation", record))
        if set(stated) != set(cls.__dataclass_fields__) or not isinstance(stated["statistics"], list):
            raise ValueError(f"evaluation: has {sorted(stated, key=str)!r:.200}, must have {sorted(cls.__dataclass_fields__)}")
        return cls(**{**stated, "statistics": tuple(_statistic(one) for one in stated["statistics"])})


def epsilon_of_share(share: float, epsilon: float, delta: float) -> float:
    """The epsilon of one Gaussian release that costs a part of the ρ of the one that costs ``epsilon``, at the same delta."""
    return gaussian.epsilon(delta, _noise_at_share(share, epsilon, delta))


def _noise_at_share(share: float, epsilon: float, delta: float) -> float:
    """The noise multiplier of a release that costs a part of the ρ of the one that costs ``epsilon``."""
    part = number("evaluation.share", share, lambda x: 0 < x < 1, "be above 0 and below 1")
    return gaussian.noise_multiplier(epsilon, delta) / math.sqrt(part)


def _statistic(record: object) -> ClientStatistic:
    stated = dict(table("a statistic", record))
    kinds: dict[str, type[Mean | Histogram]] = {"Mean": Mean, "Histogram": Histogram}
    kind = kinds.get(str(stated.pop("kind", None)))
    if kind is None or set(stated) != set(kind.__dataclass_fields__):
        raise ValueError(f"evaluation.statistics: {shown(record)} is no Mean and no Histogram")
    if isinstance(edges := stated.get("edges"), Sequence):
        stated["edges"] = tuple(edges)
    return kind(**stated)
