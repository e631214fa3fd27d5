"""Parts of a plan from sections of the settings: participation, clipping, optimizer, evaluation, encryption."""

import importlib.util
import math
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from hubbub.accounting.calibrate import calibrate
from hubbub.errors import ConfigError
from hubbub.experiment.config import SAMPLINGS, Config, ParticipationConfig
from hubbub.mechanism import participation as patterns
from hubbub.mechanism.private_evaluation import Mean, PrivateEvaluation, epsilon_of_share
from hubbub.training.clipping import AdaptiveClipping, Clipping
from hubbub.training.plan import ServerOptimizer

if TYPE_CHECKING:
    from hubbub.training.encryption import Encryption

# The default share of private evaluations in the ρ of the budget.
_SHARE = 0.05

# The pattern or sampling that each number belongs to.
_OWNERS = {
    part.name: word for kind, word in (patterns.PATTERN_WORDS | patterns.SAMPLING_WORDS).items() for part in fields(kind)
}


def participation_of(config: Config, clients: int, size: int) -> tuple[patterns.Participation, float]:
    """The participation, and the expected size of a cohort.

    Example:
        >>> from hubbub.experiment.config import resolve
        >>> participation_of(resolve({"privacy": {"mode": "dp-ftrl"}, "training": {"rounds": 20}}), clients=100, size=10)
        (MinSeparation(min_separation=10, max_participations=2), 10.0)
        >>> participation_of(resolve({}), clients=100, size=10)
        (PoissonSampling(sampling_probability=0.1), 10.0)
    """
    privacy, wanted, rounds = config.privacy, config.participation, config.training.rounds
    implied = {
        "fixed-epochs": wanted.rounds_per_epoch or wanted.epochs,
        "min-separation": wanted.min_separation or wanted.max_participations,
    }
    pattern = wanted.pattern or next((word for word, given in implied.items() if given), None)
    encrypted = config.secagg.scheme != "none"
    sampling = privacy.sampling or ("pattern" if pattern or encrypted or privacy.mode == "dp-ftrl" else "poisson")
    if encrypted and sampling != "pattern":
        raise ConfigError(
            f"privacy.sampling = {sampling!r} with secagg.scheme = {config.secagg.scheme!r}: whoever opens the sums sees how "
            "many took part, while amplification counts on cohorts that nobody sees; leave it out"
        )
    if sampling != "pattern" and pattern:
        raise ConfigError(f"privacy.sampling = {sampling!r} with participation.pattern = {pattern!r}: leave one of them out")
    _require_fitting(wanted, pattern or sampling)
    if sampling != "pattern":
        return _random(config, sampling, clients, size)
    match pattern or "min-separation":
        case "single":
            return patterns.SingleParticipation(), float(size)
        case "every-round":
            if config.training.cohort_size not in (None, clients):
                raise ConfigError(f"training.cohort_size = {size}: with pattern 'every-round' all {clients} join; leave it out")
            return patterns.every_round(rounds), float(clients)
        case "fixed-epochs":
            period = wanted.rounds_per_epoch or max(1, clients // size)
            if config.training.cohort_size is not None and math.ceil(clients / period) != size:
                raise _other_size(size, clients, f"epochs of {period} rounds", math.ceil(clients / period))
            return patterns.FixedEpochs(wanted.epochs or math.ceil(rounds / period), period), clients / period
        case _:
            separation = wanted.min_separation or max(1, clients // size)
            return patterns.MinSeparation(separation, wanted.max_participations or math.ceil(rounds / separation)), float(size)


def _other_size(size: int, clients: int, what: str, found: float) -> ConfigError:
    return ConfigError(f"training.cohort_size = {size}: {clients} clients in {what} make cohorts of {found:g}; leave it out")


def _random(config: Config, sampling: str, clients: int, size: int) -> tuple[patterns.RandomParticipation, float]:
    wanted = config.participation
    match sampling:
        case "poisson":
            return patterns.PoissonSampling(size / clients), float(size)
        case "fixed-size":
            return patterns.FixedSizeSampling(size, clients), float(size)
        case "truncated-poisson":
            if (most := wanted.max_cohort_size) is None:
                raise ConfigError("participation.max_cohort_size: is missing; truncated Poisson sampling bounds cohorts by it")
            if most < size:
                raise ConfigError(f"participation.max_cohort_size = {most}: must be at least training.cohort_size = {size}")
            return patterns.TruncatedPoissonSampling(size / clients, most, clients), float(size)
        case "cyclic-poisson":
            if (cycle := wanted.cycle_length) is None:
                raise ConfigError("participation.cycle_length: is missing; cyclic Poisson sampling has this many groups")
            if cycle * size > clients:
                smaller = f", or training.cohort_size to {clients // cycle}" if clients >= cycle else ""
                raise ConfigError(
                    f"participation.cycle_length = {cycle}: groups of {clients / cycle:g} give no cohorts of {size}; lower it "
                    f"to {clients // size}{smaller}"
                )
            return patterns.CyclicPoissonSampling(cycle * size / clients, cycle), float(size)
        case _:
            bins = wanted.bins or max(1, clients // size)
            if config.training.cohort_size is not None and round(clients / bins) != size:
                raise _other_size(size, clients, f"{bins} bins", clients / bins)
            return patterns.BallsInBinsSampling(bins), clients / bins


def _require_fitting(wanted: ParticipationConfig, drawn: str) -> None:
    """Refuse numbers of a pattern or a sampling that the run does not have."""
    for key, value in asdict(wanted).items():
        if key != "pattern" and value is not None and (owner := _OWNERS[key]) != drawn:
            home, here = (
                f"{'privacy.sampling' if name in SAMPLINGS else 'participation.pattern'} = {name!r}" for name in (owner, drawn)
            )
            raise ConfigError(f"participation.{key} = {value}: belongs to {home}, this run has {here}; leave it out")


# Settings that DP-SGD over single examples does not have, and the settings to use instead.
_OF_CLIENTS = {
    "training.batch_size": "say training.cohort_size, how many examples a step has on average; memory holds fewer at a time",
    "training.server_learning_rate": "say training.learning_rate, the step size",
    "training.server_momentum": "say training.momentum",
    "training.local_epochs": "say training.rounds, the number of steps",
    "training.local_steps": "say training.rounds, the number of steps",
    **dict.fromkeys(
        (
            *(f"training.{key}" for key in ("weight_decay", "proximal", "plan", "precision")),
            *(f"training.{key}" for key in ("schedule_rounds", "final_learning_rate", "fairness")),
            *(f"data.{key}" for key in ("clients", "partition", "alpha")),
        ),
        "leave it out",
    ),
    "training.engine": 'say "process"',
    "secagg.scheme": 'say "none"',
    "training.schedule": "say training.cooldown, the part of the rounds in which the learning rate falls",
}


def require_fitting_unit(config: Config) -> None:
    """Refuse settings of clients if each example is a unit by itself."""
    if config.privacy.unit != "example":
        return
    for name, advice in _OF_CLIENTS.items():
        section, key = name.split(".")
        if (value := getattr(getattr(config, section), key)) != getattr(getattr(Config, section), key):
            raise ConfigError(f'{name} = {value!r} with privacy.unit = "example": no client trains; {advice}')
    if config.training.server_optimizer == "fedavgm":
        raise ConfigError('training.server_optimizer = "fedavgm" with privacy.unit = "example": say training.momentum')
    if config.training.server_optimizer == "fedadam" and config.training.momentum:
        raise ConfigError(f'training.momentum = {config.training.momentum} with server_optimizer = "fedadam": leave it out')


def server_of(config: Config) -> ServerOptimizer:
    """The server's optimizer; for single examples SGD or Adam with ``learning_rate`` and ``momentum``."""
    training = config.training
    name, rate, momentum = training.server_optimizer, training.server_learning_rate, training.server_momentum
    if config.privacy.unit == "example":
        rate, momentum = training.learning_rate, training.momentum
        name = "fedavgm" if momentum else name
    return ServerOptimizer(name, rate, momentum, training.cooldown, training.cooldown_to)  # type: ignore[arg-type] # as checked


def evaluation_of(config: Config) -> PrivateEvaluation | None:
    """The private evaluation of clients; ``None`` without one."""
    said, privacy = config.evaluation, config.privacy
    if said.statistics is None:
        return None
    times = config.training.rounds // said.every
    if privacy.mode == "none" or not times:
        every = f"evaluation.every = {said.every} in {config.training.rounds} rounds: evaluate more often, or"
        other = 'privacy.mode = "none": there is no noise for it;' if privacy.mode == "none" else every
        raise ConfigError(f"evaluation.statistics = {list(said.statistics)} with {other} leave [evaluation] out")
    participation, noise_multiplier = patterns.PoissonSampling(said.sampling_probability), said.noise_multiplier
    if noise_multiplier is None:
        if privacy.epsilon is None:
            raise ConfigError("evaluation.noise_multiplier: is missing; give it, or privacy.epsilon, of which it takes a share")
        part = epsilon_of_share(_SHARE if said.share is None else said.share, privacy.epsilon, privacy.delta)
        relation = privacy.neighboring_relation
        noise_multiplier = calibrate(
            rounds=times, participation=participation, epsilon=part, delta=privacy.delta, neighboring_relation=relation
        ).noise_multiplier
    measured = tuple(Mean(name, 0.0, said.loss_bound if name == "loss" else 1.0) for name in said.statistics)
    return PrivateEvaluation(noise_multiplier, measured, said.sampling_probability, said.every)


def clipping_of(config: Config) -> Clipping | None:
    """The clip norm of a run, or its adaptive clipping; ``None`` if updates are not clipped."""
    privacy = config.privacy
    own = ("target_quantile", "clip_norm_learning_rate", "clip_count_stddev")
    given = {key: value for key in own if (value := getattr(privacy, key)) is not None}
    if privacy.clipping == "fixed":
        for key, value in given.items():
            raise ConfigError(f'privacy.{key} = {value!r}: belongs to privacy.clipping = "adaptive"; say that, or leave it out')
        return None if privacy.mode == "none" else privacy.clip_norm
    if privacy.mode == "none":
        raise ConfigError('privacy.clipping = "adaptive" with privacy.mode = "none": updates are not clipped; leave it out')
    if config.secagg.scheme != "none" and config.training.engine == "flower":
        raise ConfigError(
            f'privacy.clipping = "adaptive" with secagg.scheme = {config.secagg.scheme!r} and training.engine = "flower": fix '
            "the clip norm, or take the strategy hubbub.flower.DPFedAvgAdaptive(secagg=...)"
        )
    try:
        return AdaptiveClipping(privacy.clip_norm, **given)
    except ValueError as error:
        raise ConfigError(f"privacy.clip_norm: {error}") from error


def require_engine(config: Config) -> None:
    """Refuse to continue if the engine is Flower and not installed."""
    if config.training.engine == "flower" and importlib.util.find_spec("flwr") is None:
        raise ConfigError("training.engine = 'flower': Flower is not installed; pip install 'hubbub[flower]'")


def encryption_of(config: Config, expected: float, *, deployed: bool = False) -> "Encryption | None":
    """The terms of encrypted sums, with all derived values; ``None`` if updates are not encrypted.

    Only if the run is ``deployed`` on machines of a federation are its parties not in one process.
    """
    secagg = config.secagg
    if secagg.scheme == "none":
        return None
    from hubbub.training.encryption import Encryption

    if importlib.util.find_spec("gmpy2") is None:
        raise ConfigError(f"secagg.scheme = {secagg.scheme!r}: gmpy2 is not installed; pip install 'hubbub[secagg]'")
    if config.privacy.mode == "none" and config.training.engine == "flower":
        raise ConfigError("privacy.mode = 'none' with secagg and training.engine = 'flower': say engine = 'process'")
    # Cohorts of a rotation may differ by one client.
    fewest = math.floor(expected)
    survivors = secagg.min_survivors or (fewest if secagg.noise_by == "clients" else None)
    for name, asked in (("min_contributions", secagg.min_contributions), ("min_survivors", survivors)):
        if asked is not None and asked > fewest:
            raise ConfigError(f"secagg.{name} = {asked}: cohorts have {fewest}; ask for fewer")
    if secagg.clip != 1.0 and config.privacy.mode != "none":
        raise ConfigError(f'secagg.clip = {secagg.clip}: is for privacy.mode = "none"; here privacy.clip_norm bounds updates')
    if secagg.noise_by != "server" and config.privacy.mode == "none":
        raise ConfigError(f'secagg.noise_by = {secagg.noise_by!r}: with privacy.mode = "none" there is no noise; leave it out')
    terms = {
        **{part.name: getattr(secagg, part.name) for part in fields(Encryption) if hasattr(secagg, part.name)},
        "threshold": secagg.threshold or (secagg.holders if secagg.noise_by == "holders" else secagg.holders // 2 + 1),
        "min_contributions": max(secagg.min_contributions, survivors or 1),
        "min_survivors": survivors,
    }
    return Encryption(**terms, in_process=not deployed)
