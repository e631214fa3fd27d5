"""Alternatives to the settings of a run: other strategies and cohorts at the same privacy, with error, memory and time.

An alternative is the run's own settings with a few changes, planned as every run is. Its noise meets the same budget under the
same neighboring relation, its cohorts are drawn from the same number of clients, and ``--set`` with the changes makes exactly
that run. Alternatives that no theorem covers or that cannot be sampled are left out, with the reason.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hubbub.accounting.events_of_mechanism import default_relation
from hubbub.errors import ConfigError, HubbubError
from hubbub.experiment.config import Config, Layer, ParticipationConfig, layer_of, resolve
from hubbub.experiment.estimates import MOST_ROUNDS, deviation, noise_levels
from hubbub.experiment.planner import default_strategy, planned, strategy_word, workload_of
from hubbub.experiment.settings import encryption_of
from hubbub.factorization.families import Family, default_bands
from hubbub.mechanism.participation import (
    CyclicPoissonSampling,
    FixedEpochs,
    MinSeparation,
    Pattern,
    RandomParticipation,
    SingleParticipation,
    sampling_word,
)
from hubbub.mechanism.strategies.dense import Dense
from hubbub.mechanism.strategies.strategy import memory_rows
from hubbub.training.plan import RunPlan

__all__ = ["Alternative", "Alternatives", "alternatives", "assignments", "recommended"]

# Errors that differ by less are equal; then the alternative with less memory is better.
_SAME = 0.02
# Relative difference of a number that was computed twice.
_ROUNDING = 1e-6
_MOST_BANDS = 512
# The largest product of rounds and bands for which Toeplitz coefficients are optimized in some tenths of a second, in seconds.
_QUICK_TOEPLITZ, _SLOW_TOEPLITZ = 200_000, 5_000_000
# The largest number of rounds for families whose time depends on the rounds alone.
_QUICK = {"tree-full": 1024, "blt": 10_000, "banded-inverse": 1024, "banded": 128, "dense": 128}
_SLOW = {
    "tree-full": MOST_ROUNDS,
    "blt": 100_000,
    "banded-inverse": MOST_ROUNDS,
    "normalized-toeplitz": MOST_ROUNDS,
    "banded": 512,
    "dense": 512,
    "time-varying": 1024,
}
_WITH_OBJECTIVE = ("optimal-toeplitz", "banded", "banded-inverse", "blt", "time-varying", "dense")
# Of a thorough search for the band count of cyclic cohorts; each halves the logarithm of the ratio between candidates.
_REFINEMENTS = 4


@dataclass(frozen=True, eq=False)
class Alternative:
    """Settings that meet the same budget.

    Args:
        strategy: The name of the strategy.
        changes: The changed settings, by section and key; ``None`` resets one to its default. Empty for the run itself.
        plan: The plan of the changed settings.
        epsilon: The epsilon that the run would state.
        error: The standard deviation of the noise in a coordinate of the model, for clip norm 1 and a sum over the cohort's
            expected size: the root mean square over rounds, or the largest, as the settings' objective says.
        cpu_seconds: Measured time to optimize the strategy and to calibrate its noise.
    """

    strategy: str
    changes: Layer
    plan: RunPlan
    epsilon: float
    error: float
    cpu_seconds: float

    @property
    def cohorts(self) -> str:
        """The kind of sampling, in a word."""
        return sampling_word(self.plan.participation)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the mechanism."""
        return 0.0 if self.plan.mechanism is None else self.plan.mechanism.noise_multiplier

    @property
    def memory_rows(self) -> int | None:
        """The number of rows of noise in memory; ``None`` if the strategy does not say."""
        return 0 if self.plan.mechanism is None else memory_rows(self.plan.mechanism.strategy)

    @property
    def name(self) -> str:
        """The strategy, with its bands or buffers."""
        made = None if self.plan.mechanism is None else self.plan.mechanism.strategy
        for part in ("bands", "buffers"):
            count = getattr(made, part, None)
            if count is not None and not isinstance(made, Dense):
                return f"{self.strategy}, {count} {part if count > 1 else part[:-1]}"
        return self.strategy

    def same_as(self, other: "Alternative") -> bool:
        """Whether both are the same mechanism."""
        alike = (self.strategy, self.plan.participation, self.memory_rows) == (
            other.strategy,
            other.plan.participation,
            other.memory_rows,
        )
        return alike and math.isclose(self.error, other.error, rel_tol=_ROUNDING)


@dataclass(frozen=True, eq=False)
class Alternatives:
    """A run and its alternatives.

    Args:
        own: The run with its own settings; ``None`` if its error takes long to compute.
        options: All alternatives by increasing error, with the run itself.
        left_out: The reason for each one left out, by name.
    """

    own: Alternative | None
    options: tuple[Alternative, ...]
    left_out: Mapping[str, str]


def alternatives(
    config: Config,
    clients: int,
    plan: RunPlan,
    *,
    cpu_seconds: float = 0.0,
    thorough: bool = False,
    progress: Callable[[str], object] = str,
) -> Alternatives:
    """The run's alternatives: strategies for its own cohorts, and for other cohorts of the same size.

    The choice depends on the numbers of rounds and clients, never on speed.

    Args:
        config: The run's settings.
        clients: The number of units of privacy.
        plan: The plan of the settings.
        cpu_seconds: The time that the plan took.
        thorough: Whether to try families that take some seconds as well.
        progress: Called with the name of each family that is planned.

    Raises:
        ConfigError: The run has no privacy, or ends when a budget is spent.

    Example:
        >>> from hubbub.experiment.planner import planned
        >>> config = resolve({"training": {"rounds": 4, "cohort_size": 10}, "privacy": {"epsilon": 4.0}})
        >>> found = alternatives(config, 100, planned(config, 100))
        >>> sorted({one.cohorts for one in found.options})
        ['cyclic-poisson', 'fixed-size', 'poisson']
    """
    if plan.mechanism is None:
        raise ConfigError('privacy.mode = "none": there is no noise to compare; say mode = "dp-fedavg" or "dp-ftrl"')
    if config.privacy.stop_epsilon is not None:
        raise ConfigError(
            f"privacy.stop_epsilon = {config.privacy.stop_epsilon}: ends this run after {plan.rounds} rounds, and others after "
            f"other ones; to compare, say training.rounds = {plan.rounds} and privacy.epsilon in its place"
        )
    # Loading this once is not part of the time of a search.
    import scipy.signal  # noqa: F401

    left_out: dict[str, str] = {}
    own = _judged(config, strategy_word(config), {}, plan, cpu_seconds)
    if own is None:
        left_out["the run as it is"] = "its error takes long to compute for so many rounds"
    stated = plan.promise().after(plan.rounds, plan.delta)
    search = _Search(config, clients, plan, (stated.epsilon, stated.neighboring_relation), thorough, progress, [], left_out)
    search.add_own()
    search.add_others()
    options: list[Alternative] = [] if own is None else [own]
    for one in search.found:
        if not any(one.same_as(other) for other in options):
            options.append(one)
    return Alternatives(own, tuple(sorted(options, key=lambda one: one.error)), search.left_out)


def recommended(
    among: Alternatives, fits: Callable[[Alternative], bool] = lambda _: True
) -> tuple[Alternative, str] | tuple[None, str]:
    """The recommended alternative and the reason, among those whose cohorts need no more trust than the run's own.

    Of errors within 2 % of the least, this is the run itself, or else the one with the fewest rows of noise in memory.

    Args:
        among: The alternatives.
        fits: Whether the noise of an alternative fits into memory.
    """
    own = among.own
    random = own is not None and own.cohorts != "pattern"
    able = [one for one in among.options if (random or one.cohorts == "pattern") and fits(one)]
    if not able:
        return None, "nothing here can be run"
    least = able[0].error
    near = [one for one in able if one.error <= least * (1 + _SAME)]
    if own is not None and own in near:
        return own, "it has the least error" if own.error == least else "nothing else is better by more than 2 %"
    best = min(near, key=lambda one: (math.inf if one.memory_rows is None else one.memory_rows, one.error))
    why = "it has the least error" if best.error == least else "of those within 2 % of the least error it remembers least"
    gain = "" if own is None else f", {100 * (1 - best.error / own.error):.0f} % below that of the settings as they are"
    return best, f"{why}{gain}"


def _judged(config: Config, strategy: str, changes: Layer, plan: RunPlan, cpu_seconds: float) -> Alternative | None:
    """The alternative with its error; ``None`` if the error takes long to compute."""
    if plan.mechanism is None:
        return None
    levels = noise_levels(workload_of(config), plan.mechanism.strategy)
    if levels is None:
        return None
    encryption = encryption_of(config, plan.expected_cohort_size)
    error = deviation(plan, encryption.noise_rows if encryption else 0) * levels.model(config.privacy.objective or "mean")
    spent = plan.promise().after(plan.rounds, plan.delta).epsilon
    return Alternative(strategy, changes, plan, spent, error, cpu_seconds)


@dataclass(frozen=True, eq=False)
class _Search:
    """A search in progress; ``stated`` is the epsilon and the neighboring relation that all alternatives must meet."""

    config: Config
    clients: int
    plan: RunPlan
    stated: tuple[float, str]
    thorough: bool
    progress: Callable[[str], object]
    found: list[Alternative]
    left_out: dict[str, str]

    def add_own(self) -> None:
        """Strategies for the run's own cohorts."""
        own = self.plan.participation
        if isinstance(own, CyclicPoissonSampling):
            most = min(own.cycle_length, self.plan.rounds)
            for bands in sorted({most, most // 2} - {0, 1}, reverse=True):
                self.add(Family("optimal-toeplitz", bands), {})
        elif not isinstance(own, RandomParticipation):
            self.add_pattern("the same cohorts", own, {})

    def add_others(self) -> None:
        """Cohorts of the same size that are sampled in another way."""
        size = min(max(1, round(self.plan.expected_cohort_size)), self.clients)
        # The number of disjoint cohorts, at most one a round.
        cycle = min(self.plan.rounds, self.clients // size)
        if isinstance(self.plan.participation, RandomParticipation):
            wanted = MinSeparation(cycle, math.ceil(self.plan.rounds / cycle))
            numbers = {"min_separation": wanted.min_separation, "max_participations": wanted.max_participations}
            self.add_pattern("cohorts by a pattern", wanted, self._sized("pattern", size, pattern="min-separation", **numbers))
        if size >= self.clients:
            self.left_out["random cohorts"] = "every client takes part in every round, so that there is nothing to amplify"
            return
        for kind in ("poisson", "fixed-size"):
            self.add(Family("identity"), self._sized(kind, size))
        self.add_cyclic(cycle, size)

    def add_pattern(self, name: str, pattern: Pattern, cohorts: Layer) -> None:
        """All families for a pattern, unless the cheapest of independent or of correlated noise is refused."""
        for noise, family in (("", Family("identity")), ("correlated noise, ", Family("banded-toeplitz"))):
            one, reason = self.made(family, cohorts)
            if one is None:
                self.left_out[f"{noise}{name}"] = reason
                return
            self.found.append(one)
        for family in _pattern_families(pattern, self.plan.rounds, thorough=self.thorough):
            self.add(family, cohorts)

    def add_cyclic(self, cycle: int, size: int) -> None:
        """Banded noise for cyclic Poisson cohorts, with the band count of least error."""
        tried: dict[int, Alternative] = {}

        def error(bands: int) -> float:
            one, reason = self.made(Family("optimal-toeplitz", bands), self._sized("cyclic-poisson", size, cycle_length=bands))
            if one is None:
                self.left_out["optimal-toeplitz, cyclic-poisson"] = reason
                return math.inf
            return tried.setdefault(bands, one).error

        _search_bands(cycle, error, _REFINEMENTS if self.thorough else 0)
        if tried:
            self.left_out.pop("optimal-toeplitz, cyclic-poisson", None)
            bands, best = min(tried.items(), key=lambda one: one[1].error)
            self.found.append(best)
            if self.thorough and self.plan.rounds <= _SLOW["normalized-toeplitz"]:
                self.add(Family("normalized-toeplitz", bands), self._sized("cyclic-poisson", size, cycle_length=bands))

    def add(self, family: Family, cohorts: Layer) -> None:
        """Add an alternative, or the reason against it."""
        one, reason = self.made(family, cohorts)
        if one is not None:
            self.found.append(one)
            return
        bands = "" if family.bands is None else f" of {family.bands} bands"
        sampling = cohorts.get("privacy", {}).get("sampling", "the same cohorts")
        self.left_out[f"{family.name}{bands}, {sampling}"] = reason

    def made(self, family: Family, cohorts: Layer) -> tuple[Alternative | None, str]:
        """An alternative, or ``None`` and the reason against it."""
        self.progress(family.name)
        epsilon, relation = self.stated
        changes = _changed(self.config, family, cohorts, epsilon=epsilon, relation=relation)
        started = time.process_time()
        try:
            plan = planned(resolve(layer_of(self.config), changes), self.clients, earlier=self.plan.earlier)
        except (HubbubError, ValueError) as refusal:
            return None, " ".join(str(refusal).split())
        seconds = time.process_time() - started
        if self.config.privacy.neighboring_relation is None and relation == default_relation(plan.participation):
            # The default says it.
            changes.get("privacy", {}).pop("neighboring_relation", None)
        one = _judged(self.config, family.name, changes, plan, seconds)
        return one, "" if one else "its error takes long to compute for so many rounds"

    def _sized(self, sampling: str, size: int, **numbers: Any) -> Layer:
        """The settings of cohorts of a kind and a size; the size is left out if it is the default."""
        default = self.config.training.cohort_size or max(1, self.clients // 10)
        sized: Layer = {} if default == size else {"training": {"cohort_size": size}}
        return {**_cohorts_of(sampling, **numbers), **sized}


def _cohorts_of(sampling: str, **numbers: Any) -> Layer:
    """The settings of cohorts of a kind.

    Args:
        sampling: The kind, as in ``privacy.sampling``.
        numbers: Settings of ``[participation]``; all others are reset.
    """
    none = dict.fromkeys(asdict(ParticipationConfig()))
    return {"privacy": {"sampling": sampling}, "participation": {**none, **numbers}}


def _changed(config: Config, family: Family, cohorts: Layer, *, epsilon: float, relation: str) -> Layer:
    """The changes of a run's settings for another strategy or other cohorts; ``None`` resets a setting to its default.

    Args:
        config: The run's settings.
        family: The other strategy.
        cohorts: As :func:`_cohorts_of`, or empty for the run's own.
        epsilon: The budget, if the settings give a noise multiplier in its place.
        relation: The neighboring relation, if other cohorts have another default.
    """
    random = cohorts.get("privacy", {}).get("sampling") in ("poisson", "fixed-size")
    own = not cohorts and family.name == "identity"
    mode = config.privacy.mode if own else "dp-fedavg" if random else "dp-ftrl"
    # The default strategy of the mode need not be named.
    unnamed = config.privacy.strategy is None and family.name == default_strategy(mode)
    objective = config.privacy.objective if family.name in _WITH_OBJECTIVE else None
    wanted: Layer = {
        "training": dict(cohorts.get("training", {})),
        "privacy": {
            "mode": mode,
            "strategy": None if unnamed else family.name,
            "bands": family.bands,
            "buffers": family.buffers,
            "matrix": None,
            "objective": objective,
            **({} if config.privacy.epsilon is not None else {"epsilon": epsilon}),
            **({"neighboring_relation": relation} if cohorts else {}),
            **cohorts.get("privacy", {}),
        },
        "participation": dict(cohorts.get("participation", {})),
    }
    now = asdict(config)
    layer = {
        section: {key: value for key, value in keys.items() if value != now[section][key]} for section, keys in wanted.items()
    }
    return {section: keys for section, keys in layer.items() if keys}


def assignments(changes: Layer) -> list[str]:
    """The changes as arguments of ``--set``.

    Example:
        >>> assignments({"privacy": {"mode": "dp-ftrl", "strategy": None}})
        ['privacy.mode=dp-ftrl', 'privacy.strategy=default']
    """
    return [
        f"{section}.{key}={'default' if value is None else value}"
        for section, keys in changes.items()
        for key, value in keys.items()
    ]


def _pattern_families(pattern: Pattern, rounds: int, *, thorough: bool) -> Iterator[Family]:
    """Families for a pattern that together are optimized in about a second; with ``thorough`` in a minute."""
    top = min(default_bands(pattern, rounds), _MOST_BANDS)
    most = _SLOW_TOEPLITZ if thorough else _QUICK_TOEPLITZ
    for bands in sorted({top, top // 2, top // 4, top // 16} - {0, 1}, reverse=True):
        if rounds * bands <= most:
            yield Family("optimal-toeplitz", bands)
    longest = _SLOW if thorough else _QUICK
    fixed = isinstance(pattern, SingleParticipation | FixedEpochs)
    for name, length in longest.items():
        dense = name == "dense"
        if rounds > length or (dense and not fixed) or (name == "time-varying" and pattern != SingleParticipation()):
            continue
        if name == "blt" and thorough:
            yield Family("blt", buffers=2)
        yield Family(name)


def _search_bands(most: int, error: Callable[[int], float], refinements: int) -> dict[int, float]:
    """The errors of a few band counts from 2 to ``most``, each four times the one before, then ever nearer to the best.

    Example:
        >>> list(_search_bands(100, lambda bands: abs(bands - 20), refinements=1))
        [2, 8, 32, 100, 4, 16]
    """
    ladder = [*itertools.takewhile(lambda bands: bands < most, (2 * 4**i for i in itertools.count())), most] if most > 1 else []
    known = {bands: error(bands) for bands in ladder}
    for _ in range(refinements if ladder else 0):
        least = min(range(len(ladder)), key=lambda i: known[ladder[i]])
        near = ladder[max(0, least - 1) : least + 2]
        ladder = sorted({*near, *(math.isqrt(a * b) for a, b in itertools.pairwise(near))})
        known |= {bands: error(bands) for bands in ladder if bands not in known}
    return known
