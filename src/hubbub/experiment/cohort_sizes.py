"""Cohort sizes (batch sizes) for a budget, each with the noise in the mean update, and the size that is proposed.

At a fixed epsilon and number of rounds the noise multiplier over the cohort size falls with the size and then levels off. The
proposed size is the smallest whose noise is close to the least (Ponomareva et al. 2023, How to DP-fy ML,
https://arxiv.org/abs/2303.00654).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hubbub.errors import HubbubError
from hubbub.experiment.config import Config, Layer, layer_of, resolve
from hubbub.experiment.estimates import noise_estimate
from hubbub.experiment.planner import planned, workload_of
from hubbub.mechanism.participation import (
    CyclicPoissonSampling,
    FixedSizeSampling,
    PoissonSampling,
    TruncatedPoissonSampling,
)
from hubbub.training.plan import RunPlan

__all__ = ["NEAR", "CohortSize", "cohort_sizes", "proposed"]

# The proposed size has at most this part more noise than the size with the least.
NEAR = 0.1
# Powers of two are tried from the largest down, until the noise is this many times the least.
_LOUD = 2.0
# The samplings whose cohort size is a setting of its own.
_FREE = (PoissonSampling, TruncatedPoissonSampling, FixedSizeSampling, CyclicPoissonSampling)


@dataclass(frozen=True)
class CohortSize:
    """A cohort size that meets the budget.

    Args:
        size: The expected number of units in a cohort.
        noise_multiplier: The calibrated noise multiplier.
        mean_stddev: The standard deviation of a coordinate of the noise in the mean update: the largest over rounds.
        processed: The expected number of units in all cohorts of the run.
        changes: The changed settings, by section and key. Empty for the run itself.
    """

    size: int
    noise_multiplier: float
    mean_stddev: float
    processed: int
    changes: Layer


def cohort_sizes(config: Config, units: int, plan: RunPlan) -> tuple[CohortSize, ...]:
    """The size of the settings, and powers of two up to half of the units that a cohort is sampled from, by size.

    All have the epsilon, delta, rounds, sampling and strategy of the settings. Sizes that a run refuses are left out.

    Returns:
        Nothing if the run has no noise, if its cohort size follows from other settings (patterns, balls in bins), if a budget
        ends it, or if its noise takes long to compute.

    Example:
        >>> config = resolve({"training": {"rounds": 100, "cohort_size": 30}, "privacy": {"epsilon": 2.0}})
        >>> sizes = cohort_sizes(config, 1000, planned(config, 1000))
        >>> [(one.size, round(one.mean_stddev, 4)) for one in sizes]
        [(16, 0.0516), (30, 0.0342), (32, 0.033), (64, 0.0248), (128, 0.0217), (256, 0.0206)]
        >>> proposed(sizes).size
        128
    """
    sampling = plan.participation
    if plan.mechanism is None or config.privacy.stop_epsilon is not None or not isinstance(sampling, _FREE):
        return ()
    own = _judged(config, plan, {})
    if own is None:
        return ()
    most = units // (2 * sampling.cycle_length if isinstance(sampling, CyclicPoissonSampling) else 2)
    if isinstance(sampling, TruncatedPoissonSampling):
        most = min(most, sampling.max_cohort_size)
    budget: Layer = {} if config.privacy.epsilon is not None else {"privacy": {"epsilon": plan.promised.epsilon}}
    found = {own.size: own}
    for size in (2**power for power in reversed(range(most.bit_length()))):
        changes: Layer = {"training": {"cohort_size": size}, **budget}
        try:
            one = _judged(config, planned(resolve(layer_of(config), changes), units, earlier=plan.earlier), changes)
        except (HubbubError, ValueError):
            continue
        if one is None:
            continue
        found.setdefault(size, one)
        if one.mean_stddev > _LOUD * min(other.mean_stddev for other in found.values()):
            break
    return tuple(found[size] for size in sorted(found))


def proposed(sizes: Sequence[CohortSize]) -> CohortSize:
    """The smallest size whose noise is at most 10 % above the least of all.

    Example:
        >>> made = [CohortSize(2**i, 1.0, noise, 2**i, {}) for i, noise in enumerate((2.0, 1.09, 1.0))]
        >>> proposed(made).size
        2
    """
    least = min(one.mean_stddev for one in sizes)
    return min((one for one in sizes if one.mean_stddev <= (1 + NEAR) * least), key=lambda one: one.size)


def _judged(config: Config, plan: RunPlan, changes: Layer) -> CohortSize | None:
    """The size of a plan; ``None`` if its noise takes long to compute."""
    # Encryption, which may add noise, is for patterns alone.
    noise = noise_estimate(plan, workload_of(config), parameters=None)
    if noise is None or plan.mechanism is None:
        return None
    size = round(plan.expected_cohort_size)
    return CohortSize(size, plan.mechanism.noise_multiplier, noise.mean_stddev, size * plan.rounds, changes)
