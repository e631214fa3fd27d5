"""Cohort sizes (batch sizes) and rounds for a budget, each with the noise in the mean update, and those that are proposed.

At a fixed epsilon and number of rounds the noise multiplier over the cohort size falls with the size and then levels off
(Ponomareva et al. 2023, How to DP-fy ML, https://arxiv.org/abs/2303.00654). At a fixed cohort size the noise of each round
rises with the rounds, but the noise in the mean over all of them falls and levels off, too: with noise multipliers above 2 or
so epsilon follows this total amount of noise alone, and with smaller ones it is larger (Sander, Stock and Sablayrolles 2023,
TAN Without a Burn, https://arxiv.org/abs/2210.03403). What is proposed is the least to compute of what has close to the least
noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hubbub.errors import HubbubError
from hubbub.experiment.config import Config, Layer, layer_of, resolve
from hubbub.experiment.estimates import MOST_ROUNDS, deviation, noise_levels
from hubbub.experiment.planner import planned, strategy_word
from hubbub.factorization import FAMILIES
from hubbub.mechanism.participation import CyclicPoissonSampling, FixedSizeSampling, PoissonSampling, TruncatedPoissonSampling
from hubbub.mechanism.workloads import prefix_sum
from hubbub.training.plan import RunPlan

# What is proposed has at most this part more noise than the option with the least.
NEAR = 0.1
# Powers of two are shown whose noise is at most about this many times the least.
_LOUD = 2.0
# The rounds are doubled until that takes away less than this part of the noise.
_LEVEL = 0.01
# The samplings whose cohort size is a setting of its own.
_FREE = (PoissonSampling, TruncatedPoissonSampling, FixedSizeSampling, CyclicPoissonSampling)


@dataclass(frozen=True)
class CohortSize:
    """A cohort size and a number of rounds that meet the budget.

    Args:
        size: The expected number of units in a cohort.
        mean_stddev: The standard deviation of a coordinate of the noise in the mean update: the largest over rounds.
        run_stddev: The same of the mean of all rounds' mean updates. For independent noise it is ``mean_stddev / √rounds``.
        changes: The changed settings, by section and key. Empty for the run itself.
    """

    size: int
    rounds: int
    noise_multiplier: float
    mean_stddev: float
    run_stddev: float
    changes: Layer

    @property
    def processed(self) -> int:
        """The expected number of units in all cohorts of the run."""
        return self.size * self.rounds


def cohort_sizes(config: Config, units: int, plan: RunPlan) -> tuple[CohortSize, ...]:
    """The size of the settings, and powers of two up to half of the units that a cohort is sampled from, by size.

    All have the epsilon, delta, rounds, sampling and strategy of the settings. Sizes that a run refuses are left out. There are
    none if the run has no noise, if its cohort size follows from other settings (patterns, balls in bins), if a budget ends it,
    or if its noise takes long to compute.

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
    own = _judged(plan, {})
    if own is None:
        return ()
    most = units // (2 * sampling.cycle_length if isinstance(sampling, CyclicPoissonSampling) else 2)
    if isinstance(sampling, TruncatedPoissonSampling):
        most = min(most, sampling.max_cohort_size)
    found = {own.size: own}
    for size in (2**power for power in reversed(range(most.bit_length()))):
        one = _made(config, units, plan, {"cohort_size": size})
        if one is None:
            continue
        found.setdefault(size, one)
        if one.mean_stddev > _LOUD * min(other.mean_stddev for other in found.values()):
            break
    return tuple(found[size] for size in sorted(found))


def round_counts(config: Config, units: int, plan: RunPlan, sizes: Sequence[CohortSize]) -> tuple[CohortSize, ...]:
    """The rounds of the settings, and powers of two, all with the proposed one of the cohort sizes, by rounds.

    The rounds are doubled until that takes away less than 1 % of the noise in the mean over all rounds, up to 4,096. There are
    none without cohort ``sizes``, or if strategies of other lengths are not known or take long to optimize.

    Example:
        >>> config = resolve({"training": {"rounds": 100, "cohort_size": 30}, "privacy": {"epsilon": 2.0}})
        >>> plan = planned(config, 1000)
        >>> counts = round_counts(config, 1000, plan, cohort_sizes(config, 1000, plan))
        >>> proposed(counts).size, proposed(counts).rounds
        (128, 100)
    """
    family = FAMILIES.get(strategy_word(config))
    # A matrix file has as many rounds as it has rows.
    if not sizes or family is None or family is FAMILIES["file"] or family.optimizer not in (None, "toeplitz"):
        return ()
    sized = proposed(sizes)
    found, before = {sized.rounds: sized}, None
    for rounds in (2**power for power in range(MOST_ROUNDS.bit_length())):
        training = {"rounds": rounds, **sized.changes.get("training", {})}
        one = sized if rounds == sized.rounds else _made(config, units, plan, training)
        if one is None:
            continue
        found[rounds] = one
        if before is not None and one.run_stddev > (1 - _LEVEL) * before:
            break
        before = one.run_stddev
    least = min(one.run_stddev for one in found.values())
    return tuple(
        found[rounds] for rounds in sorted(found) if rounds == sized.rounds or found[rounds].run_stddev <= _LOUD * least
    )


def proposed(options: Sequence[CohortSize]) -> CohortSize:
    """What processes fewest units, of the options whose noise over the run is at most 10 % above the least of all.

    Example:
        >>> made = [CohortSize(2**i, 8, 1.0, noise, noise / 8**0.5, {}) for i, noise in enumerate((2.0, 1.09, 1.0))]
        >>> proposed(made).size
        2
    """
    least = min(one.run_stddev for one in options)
    return min((one for one in options if one.run_stddev <= (1 + NEAR) * least), key=lambda one: one.processed)


def _made(config: Config, units: int, plan: RunPlan, training: dict[str, int]) -> CohortSize | None:
    """The option with changed settings of training, at the same epsilon; ``None`` if a run refuses it."""
    changes: Layer = {"training": training}
    if config.privacy.epsilon is None:
        changes["privacy"] = {"epsilon": plan.promised.epsilon}
    try:
        return _judged(planned(resolve(layer_of(config), changes), units, earlier=plan.earlier), changes)
    except (HubbubError, ValueError):
        return None


def _judged(plan: RunPlan, changes: Layer) -> CohortSize | None:
    """The option of a plan; ``None`` if its noise takes long to compute."""
    if plan.mechanism is None or plan.clip_norms.first is None:
        return None
    levels = noise_levels(prefix_sum(plan.rounds), plan.mechanism.strategy)
    if levels is None:
        return None
    releases, models = levels
    # Encryption, which may add rows of noise, is for patterns alone.
    stddev = deviation(plan, noise_rows=0) * plan.clip_norms.first
    return CohortSize(
        size=round(plan.expected_cohort_size),
        rounds=plan.rounds,
        noise_multiplier=plan.mechanism.noise_multiplier,
        mean_stddev=stddev * float(releases.max()),
        run_stddev=stddev * float(models[-1]) / plan.rounds,
        changes=changes,
    )
