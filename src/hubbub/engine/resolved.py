"""A run's settings with everything that was derived from others written out."""

from dataclasses import asdict, replace
from pathlib import Path

from hubbub import config as configs
from hubbub.build import Run
from hubbub.participation import (
    BallsInBinsSampling,
    CyclicPoissonSampling,
    FixedEpochs,
    FixedSizeSampling,
    MinSeparation,
    Participation,
    PoissonSampling,
    SingleParticipation,
    TruncatedPoissonSampling,
)
from hubbub.strategies import BandedToeplitz
from hubbub.training import SimulatedPopulation
from hubbub.training.clipping import AdaptiveClipping

__all__ = ["resolved"]


def resolved(run: Run) -> configs.Config:
    """Settings from which alone the run can be repeated."""
    config, plan = run.config, run.plan
    privacy = replace(config.privacy, epsilon=None, noise_multiplier=None)
    if plan.mechanism is not None:
        strategy = plan.mechanism.strategy
        name = config.privacy.strategy or ("identity" if config.privacy.mode == "dp-fedavg" else "banded-toeplitz")
        privacy = replace(
            privacy,
            noise_multiplier=plan.mechanism.noise_multiplier,
            strategy=name,
            bands=strategy.bands if isinstance(strategy, BandedToeplitz) and ":" not in name else config.privacy.bands,
            matrix=None if config.privacy.matrix is None else str(Path(config.privacy.matrix).expanduser().absolute()),
            neighboring_relation=plan.promise().after(0, plan.delta).neighboring_relation,
        )
    if isinstance(plan.clip_norm, AdaptiveClipping) and plan.clip_norms.split is not None:
        privacy = replace(
            privacy,
            target_quantile=plan.clip_norm.target_quantile,
            clip_norm_learning_rate=plan.clip_norm.clip_norm_learning_rate,
            clip_count_stddev=plan.clip_norms.split.count_stddev,
        )
    if privacy.earlier_runs:
        folders = tuple(str(Path(run).expanduser().absolute()) for run in privacy.earlier_runs)
        privacy = replace(privacy, earlier_runs=folders)
    sampling, participation = _named(plan.participation, config.participation)
    privacy = replace(privacy, sampling=sampling or privacy.sampling)
    data = config.data
    if data.path:
        data = replace(data, path=str(Path(data.path).expanduser().absolute()))
    size = None if isinstance(plan.participation, FixedEpochs | BallsInBinsSampling) else int(plan.expected_cohort_size)
    # A run that goes on has the last bits of one that was never interrupted.
    chosen = run.population.plan if isinstance(run.population, SimulatedPopulation) else config.training.plan
    extends = config.training.extends
    extends = None if extends is None else str(Path(extends).expanduser().absolute())
    training = replace(config.training, cohort_size=size, plan=chosen, extends=extends)
    return replace(config, training=training, privacy=privacy, participation=participation, data=data, secagg=_secagg(run))


def _secagg(run: Run) -> configs.SecaggConfig:
    """The section with what follows from others."""
    told, terms = run.config.secagg, run.encryption
    if terms is None:
        return told
    keys = None if told.keys is None else str(Path(told.keys).expanduser().absolute())
    return replace(
        told,
        threshold=terms.threshold,
        min_contributions=terms.min_contributions,
        min_survivors=terms.min_survivors,
        keys=keys,
    )


def _named(participation: Participation, wanted: configs.ParticipationConfig) -> tuple[str | None, configs.ParticipationConfig]:
    """How a config names it: as ``privacy.sampling``, and by the section ``[participation]``."""
    match participation:
        case PoissonSampling():
            return "poisson", wanted
        case FixedSizeSampling():
            return "fixed-size", wanted
        case TruncatedPoissonSampling():
            return "truncated-poisson", wanted
        case CyclicPoissonSampling():
            return "cyclic-poisson", wanted
        case BallsInBinsSampling(bins):
            return "balls-in-bins", configs.ParticipationConfig(bins=bins)
        case SingleParticipation():
            return None, configs.ParticipationConfig(pattern="single")
        case FixedEpochs() as pattern:
            return None, configs.ParticipationConfig(pattern="fixed-epochs", **asdict(pattern))
        case MinSeparation() as pattern:
            return None, configs.ParticipationConfig(pattern="min-separation", **asdict(pattern))
