"""What other strategies and cohorts would give for the settings of a run: the same privacy, at which error, memory and time.

An alternative is the run's own settings with a few of them changed, planned as every run is. So its noise
meets the same budget under the same neighboring relation, its cohorts can be drawn from as many clients, and ``--set`` with
those changes makes exactly that run. What no theorem covers or nobody can draw is left out, with the reason.
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

# Errors that differ by less are the same: then what remembers less is better.
_SAME = 0.02
# Of a number that was computed twice.
_ROUNDING = 1e-6
_MOST_BANDS = 512
# Rounds times bands of a search for the best Toeplitz coefficients that takes some tenths of a second, and some seconds.
_QUICK_TOEPLITZ, _SLOW_TOEPLITZ = 200_000, 5_000_000
# The same of families whose time depends on the rounds.
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
# Of cyclic cohorts each band count has a price of its own: as many, four times as many, and so on.
_FIRST_BANDS, _RATIO = 2, 4
# Of the band count, each halves the ratio of candidates.
_REFINEMENTS = 3


@dataclass(frozen=True, eq=False)
class Alternative:
    """Settings that meet the same budget.

    Args:
        strategy: Its name.
        changes: What is changed, by section and key; ``None`` takes a setting back to its default. Empty for the run itself.
        plan: The plan that they make.
        epsilon: Of the whole run, as it would state it.
        error: The standard deviation of the noise in a coordinate of the model, for clip norm 1 and a sum over the cohort's
            expected size: the root mean square over rounds, or the largest, as the settings' objective says.
        cpu_seconds: To optimise the strategy and to calibrate its noise, measured.
    """

    strategy: str
    changes: Layer
    plan: RunPlan
    epsilon: float
    error: float
    cpu_seconds: float

    @property
    def cohorts(self) -> str:
        """How clients come to take part."""
        return sampling_word(self.plan.participation)

    @property
    def noise_multiplier(self) -> float:
        """Of its mechanism."""
        return 0.0 if self.plan.mechanism is None else self.plan.mechanism.noise_multiplier

    @property
    def memory_rows(self) -> int | None:
        """The rows that its noise remembers; ``None`` where the strategy does not say."""
        return 0 if self.plan.mechanism is None else memory_rows(self.plan.mechanism.strategy)

    @property
    def name(self) -> str:
        """Its strategy, with its bands or buffers."""
        made = None if self.plan.mechanism is None else self.plan.mechanism.strategy
        for part in ("bands", "buffers"):
            count = getattr(made, part, None)
            if count is not None and not isinstance(made, Dense):
                return f"{self.strategy}, {count} {part if count > 1 else part[:-1]}"
        return self.strategy

    def same_as(self, other: "Alternative") -> bool:
        """Whether the two are one mechanism, however they were asked for."""
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
        own: The run as its settings are; ``None`` where its error takes long to compute.
        options: In the order of their errors, the run itself among them.
        left_out: By name, the reason.
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
    """The run's alternatives: strategies for its own cohorts, and what other cohorts of the same size would give.

    What is tried depends on the numbers of rounds and clients, never on how fast it goes.

    Args:
        config: The run's settings.
        clients: How many units of privacy there are.
        plan: What the settings make.
        cpu_seconds: That took to make.
        thorough: Try what takes some seconds, too.
        progress: Is given the name of what is being planned.

    Raises:
        ConfigError: The run has no privacy, or ends when a budget is spent.
    """
    if plan.mechanism is None:
        raise ConfigError('privacy.mode = "none": there is no noise to compare; say mode = "dp-fedavg" or "dp-ftrl"')
    if config.privacy.stop_epsilon is not None:
        raise ConfigError(
            f"privacy.stop_epsilon = {config.privacy.stop_epsilon}: ends this run after {plan.rounds} rounds, and others after "
            f"other ones; to compare, say training.rounds = {plan.rounds} and privacy.epsilon in its place"
        )
    # What searches load once is not part of their time.
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
    """The alternative to take and why; of those whose cohorts need no more trust than the run's own.

    Of errors within 2 % of the least it takes the run itself, or else what remembers the fewest rows.

    Args:
        among: What there is.
        fits: Whether there is room for what an alternative's noise remembers.
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
    """The alternative with its error, or ``None`` where that takes long to compute."""
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
    """What was found so far; ``stated`` are the epsilon and the neighboring relation that all must meet."""

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
        """Cohorts of the same size that come about in another way."""
        size = min(max(1, round(self.plan.expected_cohort_size)), self.clients)
        # As many cohorts as the clients make, at most one a round.
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
        """All families for a pattern, unless the cheapest of independent or of correlated noise is refused already."""
        for noise, family in (("", Family("identity")), ("correlated noise, ", Family("banded-toeplitz"))):
            one, reason = self.made(family, cohorts)
            if one is None:
                self.left_out[f"{noise}{name}"] = reason
                return
            self.found.append(one)
        for family in _pattern_families(pattern, self.plan.rounds, thorough=self.thorough):
            self.add(family, cohorts)

    def add_cyclic(self, cycle: int, size: int) -> None:
        """Banded noise for cyclic Poisson cohorts: of a few band counts, or of a search, the one of least error."""
        tried: dict[int, Alternative] = {}

        def error(bands: int) -> float:
            one, reason = self.made(Family("optimal-toeplitz", bands), self._sized("cyclic-poisson", size, cycle_length=bands))
            if one is None:
                self.left_out["optimal-toeplitz, cyclic-poisson"] = reason
                return math.inf
            return tried.setdefault(bands, one).error

        counts = _cyclic_bands(cycle)
        if self.thorough and counts:
            _search_bands(counts[-1], error)
        for bands in [] if self.thorough else counts:
            error(bands)
        if tried:
            self.left_out.pop("optimal-toeplitz, cyclic-poisson", None)
            bands, best = min(tried.items(), key=lambda one: one[1].error)
            self.found.append(best)
            if self.thorough and self.plan.rounds <= _SLOW["normalized-toeplitz"]:
                self.add(Family("normalized-toeplitz", bands), self._sized("cyclic-poisson", size, cycle_length=bands))

    def add(self, family: Family, cohorts: Layer) -> None:
        """An alternative, or the reason why there is none."""
        one, reason = self.made(family, cohorts)
        if one is not None:
            self.found.append(one)
            return
        bands = "" if family.bands is None else f" of {family.bands} bands"
        sampling = cohorts.get("privacy", {}).get("sampling", "the same cohorts")
        self.left_out[f"{family.name}{bands}, {sampling}"] = reason

    def made(self, family: Family, cohorts: Layer) -> tuple[Alternative | None, str]:
        """An alternative, or ``None`` and the reason why there is none."""
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
            # It need not be said.
            changes.get("privacy", {}).pop("neighboring_relation", None)
        one = _judged(self.config, family.name, changes, plan, seconds)
        return one, "" if one else "its error takes long to compute for so many rounds"

    def _sized(self, sampling: str, size: int, **numbers: Any) -> Layer:
        """Cohorts of a kind and of a size, which is named where the default is another."""
        default = self.config.training.cohort_size or max(1, self.clients // 10)
        sized: Layer = {} if default == size else {"training": {"cohort_size": size}}
        return {**_cohorts_of(sampling, **numbers), **sized}


def _cohorts_of(sampling: str, **numbers: Any) -> Layer:
    """What makes cohorts of a kind, whatever the settings say about them now.

    Args:
        sampling: The kind, as ``privacy.sampling`` has it.
        numbers: Of ``[participation]``; all others are taken back.
    """
    none = dict.fromkeys(asdict(ParticipationConfig()))
    return {"privacy": {"sampling": sampling}, "participation": {**none, **numbers}}


def _changed(config: Config, family: Family, cohorts: Layer, *, epsilon: float, relation: str) -> Layer:
    """What of a run's settings another strategy or other cohorts change; ``None`` takes a setting back to its default.

    Args:
        config: The run's settings.
        family: The other strategy.
        cohorts: As :func:`_cohorts_of` says, or empty for the run's own.
        epsilon: The budget, where the settings give a noise multiplier in its place.
        relation: The neighboring relation, where other cohorts have another default.
    """
    random = cohorts.get("privacy", {}).get("sampling") in ("poisson", "fixed-size")
    own = not cohorts and family.name == "identity"
    mode = config.privacy.mode if own else "dp-fedavg" if random else "dp-ftrl"
    # Where the settings name none, and another mode has another default, it must be named.
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
    """The changes as ``--set`` takes them.

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
    """Families for a pattern that are optimized in a second or so together; with ``thorough`` in a minute."""
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


def _cyclic_bands(most: int) -> list[int]:
    """A few band counts up to the most that cyclic cohorts have groups for; empty for fewer than two."""
    counts = []
    bands = _FIRST_BANDS
    while bands < most:
        counts.append(bands)
        bands *= _RATIO
    return [*counts, most] if most >= _FIRST_BANDS else []


def _search_bands(most: int, error: Callable[[int], float]) -> None:
    """Ask for the error of band counts up to ``most``: powers of two, then ever nearer to the best; of each at most once.

    Args:
        most: At least 2, or nothing is asked.
        error: Of a band count; infinite where it cannot be had.
    """
    known: dict[int, float] = {}

    def asked(bands: int) -> float:
        if bands not in known:
            known[bands] = error(bands)
        return known[bands]

    ladder = sorted({most, *(2**i for i in range(1, most.bit_length()))} - {1})
    for _ in range(_REFINEMENTS):
        if len(ladder) < 2:
            break
        least = min(range(len(ladder)), key=lambda i: asked(ladder[i]))
        near = ladder[max(0, least - 1) : least + 2]
        ladder = sorted({*near, *(math.isqrt(a * b) for a, b in itertools.pairwise(near))})
    for bands in ladder:
        asked(bands)
