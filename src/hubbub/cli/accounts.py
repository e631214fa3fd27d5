"""``hubbub account``, and the flags that it shares with ``hubbub calibrate``."""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields

from hubbub import accounting
from hubbub._checks import integer, rounds_count, scale
from hubbub.accounting import PrivacyGuarantee
from hubbub.accounting.statement import zcdp_standing
from hubbub.cli.output import console, print_json, print_table, say
from hubbub.config import strategy_name
from hubbub.errors import ConfigError
from hubbub.families import Family, strategy_of
from hubbub.mechanism import Mechanism
from hubbub.participation import (
    BallsInBinsSampling,
    CyclicPoissonSampling,
    FixedEpochs,
    FixedSizeSampling,
    MinSeparation,
    Participation,
    PoissonSampling,
    RandomParticipation,
    SingleParticipation,
    TruncatedPoissonSampling,
    every_round,
)
from hubbub.strategies import Columns, Strategy
from hubbub.workloads import prefix_sum

__all__ = ["CohortFlags", "Statement", "Wanted", "account", "participation_from", "print_guarantee"]


@dataclass(frozen=True)
class Statement:
    """How an answer is to be stated."""

    delta: float
    neighboring_relation: str | None
    accountant: str
    as_json: bool
    in_full: bool = False


@dataclass(frozen=True)
class Wanted:
    """The strategy that flags name."""

    name: str
    rounds: int
    bands: int | None
    buffers: int | None
    column_norm_squared: float | None
    matrix: str | None

    def __post_init__(self) -> None:
        rounds_count(self.rounds)

    def strategy(self, participation: Participation) -> Strategy:
        """It; ``banded`` with a column norm is described by its columns alone, all others are made for prefix sums."""
        if ":" in self.name:
            raise ConfigError(
                f"--strategy {self.name!r}: code of your own is accounted in Python, by hubbub.accounting.guarantee"
            )
        known = strategy_name("--strategy", self.name)
        if self.column_norm_squared is None:
            family = Family(known, self.bands, self.buffers, None, self.matrix)
            try:
                return strategy_of(family, prefix_sum(self.rounds), participation)
            except ValueError as error:
                if participation != every_round(self.rounds):
                    raise
                raise ConfigError(
                    f"{error}; without flags each client may join every round: say --min-separation and --max-participations, "
                    "or --epochs and --rounds-per-epoch"
                ) from error
        if known != "banded":
            raise ConfigError(f"--column-norm-squared {self.column_norm_squared}: describes --strategy banded, this is {known}")
        if self.bands is None:
            raise ConfigError("--column-norm-squared: describes a banded strategy together with --bands")
        Family(known, self.bands, self.buffers, None, self.matrix)
        return Columns(self.rounds, self.bands, self.column_norm_squared)


# By the flags that name them; no other combination is a kind of cohorts.
_COHORTS: dict[frozenset[str], Callable[..., RandomParticipation]] = {
    frozenset({"sampling_probability"}): PoissonSampling,
    frozenset({"sampling_probability", "max_cohort_size", "population"}): TruncatedPoissonSampling,
    frozenset({"sampling_probability", "cycle_length"}): CyclicPoissonSampling,
    frozenset({"bins"}): BallsInBinsSampling,
    frozenset({"cohort_size", "population"}): FixedSizeSampling,
}


@dataclass(frozen=True)
class CohortFlags:
    """The flags that name random cohorts."""

    sampling_probability: float | None = None
    cohort_size: int | None = None
    population: int | None = None
    max_cohort_size: int | None = None
    cycle_length: int | None = None
    bins: int | None = None

    def given(self) -> dict[str, float]:
        """Those that were given."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def participation(self) -> RandomParticipation:
        """The cohorts that they name together.

        Raises:
            ConfigError: Together they name none.
        """
        given = self.given()
        names = frozenset(given)
        if names in _COHORTS:
            return _COHORTS[names](**given)
        missing = [_as_typed(name for name in _NAMES if name in kind - names) for kind in _COHORTS if names < kind]
        if missing:
            raise ConfigError(f"{_as_typed(given)}: random cohorts need {' or '.join(missing)}, too")
        known = ", ".join(_as_typed(name for name in _NAMES if name in kind) for kind in _COHORTS)
        raise ConfigError(f"{_as_typed(given)}: name no kind of random cohorts together; there are {known}")


_NAMES = tuple(field.name for field in fields(CohortFlags))


def _as_typed(names: Iterable[str]) -> str:
    """Names as flags."""
    return " with ".join(f"--{name.replace('_', '-')}" for name in names)


def participation_from(
    rounds: int,
    *,
    separation: tuple[int | None, int | None],
    rotation: tuple[int | None, int | None],
    random: CohortFlags,
) -> Participation:
    """The participation that the flags name; none of them means that each client may join each round."""
    given = [
        flag
        for flag, values in {
            "--min-separation/--max-participations": separation,
            "--epochs/--rounds-per-epoch": rotation,
            _as_typed(random.given()): random.given().values(),
        }.items()
        if any(value is not None for value in values)
    ]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)}: say one of them; random cohorts and patterns do not combine")
    if random.given():
        return random.participation()
    if any(value is not None for value in rotation):
        epochs, rounds_per_epoch = rotation
        if rounds_per_epoch is None:
            raise ConfigError("--epochs: needs --rounds-per-epoch, the rounds from one participation to the next")
        period = integer("rounds_per_epoch", rounds_per_epoch, at_least=1)
        return FixedEpochs(math.ceil(rounds / period) if epochs is None else epochs, period)
    least, most = separation
    if least is None and most is None:
        return every_round(rounds)
    if least is None and most == 1:
        return SingleParticipation()
    b = 1 if least is None else integer("min_separation", least, at_least=1)
    return MinSeparation(b, math.ceil(rounds / b) if most is None else most)


def account(
    wanted: Wanted,
    participation: Participation,
    *,
    multipliers: tuple[float | None, float | None],
    statement: Statement,
) -> None:
    """Print what a mechanism guarantees."""
    relative, absolute = multipliers
    if (relative is None) == (absolute is None):
        raise ConfigError("--noise-multiplier and --clip-noise-multiplier: give exactly one of them")
    strategy = wanted.strategy(participation)
    if relative is None:
        column_norm = strategy.sensitivity(SingleParticipation()).value
        relative = scale("--clip-noise-multiplier", absolute) / column_norm
    print_guarantee(Mechanism(strategy, participation, relative), statement)


def print_guarantee(mechanism: Mechanism, statement: Statement) -> None:
    """Print what a mechanism guarantees, as a table or as JSON."""
    answer = accounting.guarantee(mechanism, statement.delta, statement.neighboring_relation, accountant=statement.accountant)
    if statement.as_json:
        print_json(answer.as_json())
        return
    if statement.in_full:
        console().print(answer.statement(), end="")
        return
    print_table("Guarantee", guarantee_rows(answer))
    screen = console()
    say(screen)
    say(screen, answer.sentence())
    if answer.amplified:
        worst = accounting.rounded_up(answer.unamplified_epsilon)
        say(screen, f"Assuming the cohorts as stated; in the worst case over them, without amplification, epsilon is {worst}.")
    if isinstance(mechanism.participation, MinSeparation) and mechanism.participation.min_separation > 1:
        b = mechanism.participation.min_separation
        say(
            screen,
            f"A separation of {b} means rounds r and r + {b}; Google's accounting notebook counts the {b - 1} rounds between.",
        )


def guarantee_rows(answer: PrivacyGuarantee) -> dict[str, str]:
    """The guarantee as rows of a table, each number in full."""
    covered = "of the whole run" + (" and the earlier ones" if answer.earlier else "")
    standing = "exact" if answer.sensitivity_exact else "a bound"
    return {
        "epsilon": f"{answer.epsilon!r}",
        "delta": f"{answer.delta!r}",
        "zCDP rho": f"{answer.unamplified_zcdp_rho!r} ({covered}{zcdp_standing(answer)})",
        "L2 sensitivity": f"{answer.l2_sensitivity!r} (of {answer.sensitivity_of}, {standing})",
        "noise multiplier": f"{answer.noise_multiplier!r} (over clip norm × largest column norm)",
        "clip noise multiplier": f"{answer.clip_noise_multiplier!r} (over the clip norm)",
        "privacy unit": answer.privacy_unit,
        "neighboring relation": answer.neighboring_relation,
        "accountant": answer.accountant,
    }
