"""Strategies by name, made for a workload and a participation: for settings, commands and sweeps."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hubbub import factorization
from hubbub._util.checks import Array, integer, one_of, plain_numbers
from hubbub.errors import ConfigError
from hubbub.factorization import FAMILIES
from hubbub.mechanism.participation import (
    CyclicPoissonSampling,
    FixedEpochs,
    MinSeparation,
    Participation,
    RandomParticipation,
    SingleParticipation,
)
from hubbub.mechanism.strategies import Strategy
from hubbub.mechanism.strategies.strategy import WithLeadingPart
from hubbub.mechanism.workloads import Workload

if TYPE_CHECKING:
    from hubbub.factorization.optimized import Objective, Optimized

DESCRIPTIONS = {name: record.description for name, record in FAMILIES.items()}
_MOST_BY_MATRIX = 20_000


@dataclass(frozen=True)
class Family:
    """A family by its name, with its options.

    Args:
        name: One of :data:`DESCRIPTIONS`.
        bands: For banded families; by default as many as keep the columns of one client from overlapping.
        buffers: For families with buffers.
        objective: The error to minimize: the ``"mean"`` over rounds, or the ``"max"``.
        matrix: A file, for ``"dense"`` and ``"file"``.

    Raises:
        ConfigError: An option that the family does not have.

    Example:
        >>> Family("tree", bands=3)
        Traceback (most recent call last):
        hubbub.errors.ConfigError: bands = 3: strategy 'tree' has none; leave it out, or use one of banded-toeplitz, \
optimal-toeplitz, normalized-toeplitz, banded, banded-inverse
    """

    name: str
    bands: int | None = None
    buffers: int | None = None
    objective: "Objective | None" = None
    matrix: str | None = None

    def __post_init__(self) -> None:
        plain_numbers(self)
        one_of("strategy", self.name, DESCRIPTIONS)
        for key in OPTIONS:
            value = getattr(self, key)
            if value is not None and key not in FAMILIES[self.name].options:
                having = [name for name, record in FAMILIES.items() if key in record.options]
                raise ConfigError(
                    f"{key} = {value!r}: strategy {self.name!r} has none; leave it out, or use one of {', '.join(having)}"
                )
            if value is not None and key in ("bands", "buffers"):
                integer(key, value, at_least=1)
        if self.objective is not None:
            one_of("objective", self.objective, ("mean", "max"))
        if self.objective and self.matrix is not None:
            raise ConfigError(f"objective = {self.objective!r} with matrix = {self.matrix!r}: a matrix is not optimized")
        if self.name == "file" and self.matrix is None:
            raise ConfigError("strategy = 'file': needs matrix (--matrix of a command), the file to read")


# All but the name; each is a setting, too.
OPTIONS = tuple(field.name for field in fields(Family))[1:]


def default_bands(participation: Participation, rounds: int) -> int:
    """The most bands with which the columns of one client do not overlap."""
    match participation:
        case (
            MinSeparation(min_separation=separation)
            | FixedEpochs(rounds_per_epoch=separation)
            | CyclicPoissonSampling(cycle_length=separation)
        ):
            return min(separation, rounds)
        case _:
            return rounds


def strategy_of(family: Family, workload: Workload, participation: Participation) -> Strategy:
    """The family's strategy for a workload and a participation, optimized where the family is."""
    made = _closed_form(family, workload, participation)
    return _optimized(family, workload, participation).strategy if made is None else made


def answer_of(family: Family, workload: Workload, participation: Participation) -> "Optimized[Strategy]":
    """The family's strategy with its error and a lower bound; for closed forms, computed from the matrix."""
    made = _closed_form(family, workload, participation)
    if made is None:
        return _optimized(family, workload, participation)
    with np.errstate(all="ignore"):
        error = float((squared_errors(workload, made) * made.sensitivity(participation).value ** 2).mean())
    bound = factorization.lower_bound(workload, participation, "mean")
    return factorization.Optimized(made, workload, participation, "mean", error, bound, "every strategy", iterations=0)


def squared_errors(workload: Workload, strategy: Strategy) -> Array:
    """:func:`hubbub.mechanism.utility.squared_errors`, beyond the rounds of a dense matrix from buffers alone."""
    from hubbub.factorization import semiseparable
    from hubbub.mechanism import utility
    from hubbub.mechanism.strategies import Semiseparable, blt

    if workload.rounds <= _MOST_BY_MATRIX:
        return utility.squared_errors(workload, strategy)
    if isinstance(strategy, blt.BufferedLinearToeplitz):
        return blt.squared_errors(workload, strategy)
    if isinstance(strategy, Semiseparable) and not workload.momentum:
        return semiseparable.squared_errors(workload, strategy.recursion())
    raise ConfigError(
        f"rounds = {workload.rounds}: the error of a {type(strategy).__name__} is computed from its matrix, and not checked "
        f"beyond {_MOST_BY_MATRIX:,} rounds; account and train take the strategy, or its file, as it is"
    )


def _closed_form(family: Family, workload: Workload, participation: Participation) -> Strategy | None:
    if family.matrix is not None:
        return _from_file(family.matrix, workload.rounds)
    record = FAMILIES[family.name]
    if record.closed_form is None:
        return None
    file, name = record.closed_form.split(".")
    make: Callable[..., Strategy] = getattr(import_module(f"hubbub.mechanism.strategies.{file}"), name)
    return make(workload.rounds, **_options(family, workload.rounds, participation))


def _options(family: Family, rounds: int, participation: Participation) -> dict[str, Any]:
    """Options of the family, given or by default, but for a matrix."""
    defaults = {key: value for key, value in FAMILIES[family.name].options.items() if key != "matrix"}
    given = {key: value for key in defaults if (value := getattr(family, key, None)) is not None}
    options: dict[str, Any] = defaults | given
    if "bands" in options and family.bands is None:
        options["bands"] = min(options["bands"] or default_bands(participation, rounds), rounds)
    return options


def _from_file(matrix: str, rounds: int) -> Strategy:
    from hubbub.factorization import strategy_file
    from hubbub.mechanism.strategies import dense

    strategy = strategy_file.load(matrix) if Path(matrix).suffix == ".safetensors" else dense.load(matrix)
    if strategy.rounds < rounds:
        raise ConfigError(f"rounds = {rounds}: the matrix {matrix} has {strategy.rounds} rounds")
    if strategy.rounds == rounds:
        return strategy
    if not isinstance(strategy, WithLeadingPart):
        raise ConfigError(
            f"rounds = {rounds}: the strategy of {matrix} has {strategy.rounds} rounds and cannot be cut; run all"
        )
    return strategy.leading(rounds)


def _optimized(family: Family, workload: Workload, participation: Participation) -> "Optimized[Strategy]":
    options = _options(family, workload.rounds, participation)
    if isinstance(participation, CyclicPoissonSampling):
        # Its cost depends on the largest column norm alone, as for one participation.
        participation = SingleParticipation()
    if isinstance(participation, RandomParticipation):
        raise ConfigError(
            f"strategy = {family.name!r} with {type(participation).__name__}: random cohorts are accounted for independent "
            "noise only; use the identity strategy, cyclic Poisson cohorts, or a participation pattern"
        )
    optimize: Callable[..., Optimized[Any]] = import_module(f"hubbub.factorization.{FAMILIES[family.name].optimizer}").optimize
    return optimize(workload, participation=participation, **options)
