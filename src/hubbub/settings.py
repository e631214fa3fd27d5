"""What the sections of the settings make by themselves: who takes part when, and how sums are encrypted."""

import importlib.util
import math

from hubbub.config import SAMPLINGS, Config, ParticipationConfig
from hubbub.errors import ConfigError
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
from hubbub.training.encryption import Encryption

__all__ = ["encryption_of", "participation_of"]

# Of which pattern, or of which random cohorts, a number is.
_OWNERS = {
    "min_separation": "min-separation",
    "max_participations": "min-separation",
    "epochs": "fixed-epochs",
    "rounds_per_epoch": "fixed-epochs",
    "max_cohort_size": "truncated-poisson",
    "cycle_length": "cyclic-poisson",
    "bins": "balls-in-bins",
}


def participation_of(config: Config, clients: int, size: int) -> tuple[Participation, float]:
    """The participation, and the expected size of a cohort.

    Args:
        config: The settings.
        clients: How many there are.
        size: Of a cohort, as the settings say or by default.

    Raises:
        ConfigError: Numbers of another pattern, or that do not go together.
    """
    privacy, wanted, rounds = config.privacy, config.participation, config.training.rounds
    pattern = wanted.pattern or (
        "fixed-epochs"
        if wanted.rounds_per_epoch or wanted.epochs
        else "min-separation"
        if wanted.min_separation or wanted.max_participations
        else None
    )
    encrypted = config.secagg.scheme != "none"
    sampling = privacy.sampling or ("pattern" if pattern or encrypted or privacy.mode == "dp-ftrl" else "poisson")
    if encrypted and sampling != "pattern":
        raise ConfigError(
            f"privacy.sampling = {sampling!r} with secagg.scheme = {config.secagg.scheme!r}: whoever opens the sums sees how "
            "many took part, while amplification counts on cohorts that nobody sees; leave it out, for cohorts by a pattern"
        )
    if sampling != "pattern" and pattern:
        raise ConfigError(
            f"privacy.sampling = {sampling!r} with participation.pattern = {pattern!r}: random cohorts are never filtered by "
            "a pattern, or their amplification is void; leave one of them out"
        )
    _require_fitting(wanted, pattern or sampling)
    if sampling != "pattern":
        return _random(config, sampling, clients, size)
    match pattern or "min-separation":
        case "single":
            return SingleParticipation(), float(size)
        case "every-round":
            if config.training.cohort_size not in (None, clients):
                raise ConfigError(
                    f"training.cohort_size = {size}: with pattern 'every-round' each of the {clients} clients takes part"
                )
            return every_round(rounds), float(clients)
        case "fixed-epochs":
            period = wanted.rounds_per_epoch or max(1, clients // size)
            if config.training.cohort_size is not None and math.ceil(clients / period) != size:
                raise ConfigError(
                    f"training.cohort_size = {size}: {clients} clients in epochs of {period} rounds make cohorts of "
                    f"{math.ceil(clients / period)}"
                )
            return FixedEpochs(wanted.epochs or math.ceil(rounds / period), period), clients / period
        case _:
            separation = wanted.min_separation or max(1, clients // size)
            return MinSeparation(separation, wanted.max_participations or math.ceil(rounds / separation)), float(size)


def _random(config: Config, sampling: str, clients: int, size: int) -> tuple[RandomParticipation, float]:
    """Random cohorts of a kind, and their expected size."""
    wanted = config.participation
    match sampling:
        case "poisson":
            return PoissonSampling(size / clients), float(size)
        case "fixed-size":
            return FixedSizeSampling(size, clients), float(size)
        case "truncated-poisson":
            if wanted.max_cohort_size is None:
                raise ConfigError("participation.max_cohort_size: is missing; truncated Poisson cohorts have at most so many")
            if wanted.max_cohort_size < size:
                raise ConfigError(
                    f"participation.max_cohort_size = {wanted.max_cohort_size}: is below training.cohort_size = {size}, what "
                    "cohorts have on average before they are cut"
                )
            return TruncatedPoissonSampling(size / clients, wanted.max_cohort_size, clients), float(size)
        case "cyclic-poisson":
            if wanted.cycle_length is None:
                raise ConfigError("participation.cycle_length: is missing; cyclic Poisson cohorts take turns in so many groups")
            if wanted.cycle_length * size > clients:
                raise ConfigError(
                    f"participation.cycle_length = {wanted.cycle_length}: a group of {clients / wanted.cycle_length:g} of "
                    f"{clients} clients gives no cohorts of {size}; lower it to {clients // size}, or training.cohort_size to "
                    f"{clients // wanted.cycle_length}"
                )
            return CyclicPoissonSampling(wanted.cycle_length * size / clients, wanted.cycle_length), float(size)
        case _:
            bins = wanted.bins or max(1, clients // size)
            if config.training.cohort_size is not None and round(clients / bins) != size:
                raise ConfigError(
                    f"training.cohort_size = {size}: {clients} clients in {bins} bins make cohorts of {clients / bins:g} on "
                    "average; leave one of them out"
                )
            return BallsInBinsSampling(bins), clients / bins


def _require_fitting(wanted: ParticipationConfig, drawn: str) -> None:
    """Refuse numbers of another pattern or of other cohorts than are drawn: they would promise what nobody keeps."""
    for key, owner in _OWNERS.items():
        value = getattr(wanted, key)
        if value is not None and owner != drawn:
            home, here = (
                f"{'privacy.sampling' if name in SAMPLINGS else 'participation.pattern'} = {name!r}" for name in (owner, drawn)
            )
            raise ConfigError(f"participation.{key} = {value}: belongs to {home}, this run has {here}; leave it out")


def encryption_of(config: Config, expected: float) -> Encryption | None:
    """The terms of secure aggregation with what follows from others; ``None`` where nothing is encrypted.

    Args:
        config: The settings.
        expected: The size of a cohort.

    Raises:
        ConfigError: Numbers that do not go together.
    """
    told = config.secagg
    if told.scheme == "none":
        return None
    if importlib.util.find_spec("gmpy2") is None:
        raise ConfigError(f"secagg.scheme = {told.scheme!r}: gmpy2 is not installed; pip install 'hubbub[secagg]'")
    most = math.ceil(expected)
    if told.min_contributions > most:
        raise ConfigError(
            f"secagg.min_contributions = {told.min_contributions}: cohorts have {most}, so that no sum would be opened; ask "
            "for fewer, or raise training.cohort_size"
        )
    threshold = told.threshold or (told.holders if told.noise_by == "holders" else told.holders // 2 + 1)
    survivors = told.min_survivors or (most if told.noise_by == "clients" else None)
    if survivors is not None and survivors > most:
        raise ConfigError(f"secagg.min_survivors = {survivors}: cohorts have {most}; ask for fewer")
    if told.clip != 1.0 and config.privacy.mode != "none":
        raise ConfigError(f'secagg.clip = {told.clip}: is for privacy.mode = "none"; here privacy.clip_norm bounds updates')
    if told.noise_by != "server" and config.privacy.mode == "none":
        raise ConfigError(f'secagg.noise_by = {told.noise_by!r}: with privacy.mode = "none" there is no noise; leave it out')
    return Encryption(
        key_bits=told.key_bits,
        bits=told.bits,
        holders=told.holders,
        threshold=threshold,
        noise_by=told.noise_by,  # type: ignore[arg-type] # checked by the config
        min_contributions=max(told.min_contributions, survivors or 1),
        min_survivors=survivors,
        clip=told.clip,
        in_process=config.training.engine == "process",
    )
