"""Alternatives to the settings of a run: other strategies and cohorts at the same privacy, with error, memory and time.

An alternative is the run's own settings with a few changes, planned as every run is. Its noise meets the same budget under the
same neighboring relation, its cohorts are drawn from the same number of clients, and ``--set`` with the changes makes exactly
that run. Alternatives that no theorem covers or that cannot be sampled are left out, with the reason.
"""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hubbub.accounting import PrivacyGuarantee
from hubbub.errors import ConfigError, HubbubError
from hubbub.experiment.config import Config, Layer, ParticipationConfig, layer_of, merge, resolve
from hubbub.experiment.estimates import MOST_ROUNDS, deviation, noise_levels
from hubbub.experiment.planner import planned, strategy_word
from hubbub.experiment.settings import encryption_of
from hubbub.factorization import FAMILIES
from hubbub.factorization.families import Family, default_bands
from hubbub.mechanism import Mechanism
from hubbub.mechanism import participation as patterns
from hubbub.mechanism.strategies.dense import Dense
from hubbub.mechanism.strategies.strategy import memory_rows
from hubbub.training.plan import RunPlan

# Errors that differ by less are equal; then the alternative with less memory is better.
_SAME = 0.02
_MOST_BANDS = 512
_TOO_LONG = "its error takes long to compute for so many rounds"
# The largest product of rounds and bands of optimized Toeplitz coefficients, for a quick search (tenths of a second) and a
# thorough one (seconds); and the ratio of the band counts that are tried with cyclic Poisson cohorts.
_TOEPLITZ = (200_000, 5_000_000)
_RATIOS = (4.0, 2**0.5)


@dataclass(frozen=True, eq=False)
class Alternative:
    """Settings that meet the same budget.

    Args:
        changes: The changed settings, by section and key; ``None`` resets one to its default. Empty for the run itself.
        plan: That of the changed settings, with its ``mechanism`` and the ``epsilon`` that the run would state.
        error: The standard deviation of the noise in a coordinate of the model, for clip norm 1 and a sum over the cohort's
            expected size: the root mean square over rounds, or the largest, as the settings' objective says.
        cpu_seconds: Measured time to optimize the strategy and to calibrate its noise.
    """

    strategy: str
    changes: Layer
    plan: RunPlan
    mechanism: Mechanism
    epsilon: float
    error: float
    cpu_seconds: float

    @property
    def cohorts(self) -> str:
        """The kind of sampling, in a word."""
        return patterns.sampling_word(self.plan.participation)

    @property
    def memory_rows(self) -> int | None:
        """The number of rows of noise in memory; ``None`` if the strategy does not say."""
        return memory_rows(self.mechanism.strategy)

    @property
    def name(self) -> str:
        """The strategy, with its bands or buffers."""
        made = self.mechanism.strategy
        for part in ("bands", "buffers"):
            count = getattr(made, part, None)
            if count is not None and not isinstance(made, Dense):
                return f"{self.strategy}, {count} {part if count > 1 else part[:-1]}"
        return self.strategy


@dataclass(frozen=True, eq=False)
class Alternatives:
    """A run and its alternatives by increasing error, the run itself among them; and the reasons for others that are left out.

    ``own`` is the run with its own settings; ``None`` if its error takes long to compute.
    """

    own: Alternative | None
    options: tuple[Alternative, ...]
    left_out: Mapping[str, str]

    @cached_property
    def recommended(self) -> tuple[Alternative, str] | tuple[None, str]:
        """The recommended alternative and the reason, among those whose cohorts need no more trust than the run's own.

        Of errors within 2 % of the least, this is the run itself, or else the one with the fewest rows of noise in memory.
        """
        own = self.own
        random = own is not None and own.cohorts != "pattern"
        able = [one for one in self.options if random or one.cohorts == "pattern"]
        if not able:
            return None, "nothing here can be run"
        least = able[0].error
        near = [one for one in able if one.error <= least * (1 + _SAME)]
        among = "" if len(able) == len(self.options) else "of those without random cohorts, "
        if own is not None and own in near:
            why = "it has the least error" if own.error == least else "nothing else is better by more than 2 %"
            return own, f"{among}{why}"
        best = min(near, key=lambda one: (math.inf if one.memory_rows is None else one.memory_rows, one.error))
        why = "it has the least error" if best.error == least else "within 2 % of the least error, it remembers least"
        gain = "" if own is None else f", {100 * (1 - best.error / own.error):.0f} % below that of the settings as they are"
        return best, f"{among}{why}{gain}"


def alternatives(
    config: Config, clients: int, plan: RunPlan, *, cpu_seconds: float = 0.0, thorough: bool = False
) -> Alternatives:
    """The run's alternatives: strategies for its own cohorts, and for other cohorts of the same size.

    The choice depends on the numbers of rounds and clients, never on speed.

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
            f"privacy.stop_epsilon = {config.privacy.stop_epsilon}: ends this run after {plan.rounds} rounds; to compare, say "
            f"training.rounds = {plan.rounds} and privacy.epsilon in its place"
        )
    own = _judged(config, strategy_word(config), {}, plan, cpu_seconds)
    search = _Search(config, clients, plan, thorough)
    if own is None:
        search.left_out["the run as it is"] = _TOO_LONG
    search.add_own()
    search.add_others()
    # One of each mechanism, the run itself first.
    options: dict[Any, Alternative] = {}
    for one in (*([] if own is None else [own]), *search.found):
        options.setdefault((one.strategy, one.plan.participation, one.memory_rows), one)
    return Alternatives(own, tuple(sorted(options.values(), key=lambda one: one.error)), search.left_out)


def _judged(config: Config, strategy: str, changes: Layer, plan: RunPlan, cpu_seconds: float) -> Alternative | None:
    """The alternative with its error; ``None`` if the error takes long to compute."""
    if plan.mechanism is None:
        return None
    levels = noise_levels(plan.server.workload(plan.scheduled_rounds), plan.mechanism.strategy)
    if levels is None:
        return None
    encryption = encryption_of(config, plan.expected_cohort_size)
    _, models = levels
    error = models.max() if config.privacy.objective == "max" else np.sqrt(np.square(models).mean())
    error = float(error) * deviation(plan, encryption.noise_rows if encryption else 0)
    return Alternative(strategy, changes, plan, plan.mechanism, plan.promised.epsilon, error, cpu_seconds)


@dataclass(frozen=True, eq=False)
class _Search:
    """A search in progress."""

    config: Config
    clients: int
    plan: RunPlan
    thorough: bool
    found: list[Alternative] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def add_own(self) -> None:
        """Strategies for the run's own cohorts."""
        own = self.plan.participation
        if isinstance(own, patterns.CyclicPoissonSampling):
            most = min(own.cycle_length, self.plan.rounds)
            for bands in sorted({most, most // 2} - {0, 1}, reverse=True):
                self.add("the same cohorts", Family("optimal-toeplitz", bands), {})
        elif not isinstance(own, patterns.RandomParticipation):
            self.add_pattern("the same cohorts", own, {})

    def add_others(self) -> None:
        """Cohorts of the same size that are sampled in another way."""
        size = min(max(1, round(self.plan.expected_cohort_size)), self.clients)
        # The number of disjoint cohorts, at most one a round.
        cycle = min(self.plan.rounds, self.clients // size)
        if isinstance(self.plan.participation, patterns.RandomParticipation):
            wanted = patterns.MinSeparation(cycle, math.ceil(self.plan.rounds / cycle))
            cohorts = self.sized("pattern", size, pattern="min-separation", **asdict(wanted))
            self.add_pattern("cohorts by a pattern", wanted, cohorts)
        if size >= self.clients:
            self.left_out["random cohorts"] = "every client takes part in every round, so that there is nothing to amplify"
            return
        for kind in ("poisson", "fixed-size"):
            self.add(kind, Family("identity"), self.sized(kind, size))
        self.add_cyclic(cycle, size)

    def add_pattern(self, name: str, pattern: patterns.Pattern, cohorts: Layer) -> None:
        """All families for a pattern, unless the cheapest of independent or of correlated noise is refused."""
        if not (
            self.add(name, Family("identity"), cohorts, "independent noise")
            and self.add(name, Family("banded-toeplitz"), cohorts, "correlated noise")
        ):
            return
        for family in _pattern_families(pattern, self.plan.rounds, thorough=self.thorough):
            self.add(name, family, cohorts)

    def add_cyclic(self, cycle: int, size: int) -> None:
        """Banded noise for cyclic Poisson cohorts, with the band count of least error."""
        ratio, name = _RATIOS[self.thorough], "cyclic-poisson"
        counts = sorted({min(cycle, round(2 * ratio**i)) for i in range(64)} - {1})
        tried = {n: self.made(Family("optimal-toeplitz", n), self.sized(name, size, cycle_length=n)) for n in counts}
        possible = {n: one for n, (one, _) in tried.items() if one is not None}
        if possible:
            bands = min(possible, key=lambda n: possible[n].error)
            self.found.append(possible[bands])
            if self.thorough and self.plan.rounds <= MOST_ROUNDS:
                self.add(name, Family("normalized-toeplitz", bands), self.sized(name, size, cycle_length=bands))
        elif tried:
            self.left_out[f"optimal-toeplitz, {name}"] = tried[counts[-1]][1]

    def add(self, cohort_name: str, family: Family, cohorts: Layer, name: str = "") -> bool:
        """Add an alternative, or the reason against it under a name; returns whether it was added."""
        one, reason = self.made(family, cohorts)
        if one is None:
            bands = "" if family.bands is None else f" of {family.bands} bands"
            self.left_out[f"{name or family.name + bands}, {cohort_name}"] = reason
            return False
        self.found.append(one)
        return True

    def made(self, family: Family, cohorts: Layer) -> tuple[Alternative | None, str]:
        """An alternative, or ``None`` and the reason against it."""
        changes = _changed(self.config, family, cohorts, self.plan.promised)
        started = time.process_time()
        try:
            plan = planned(resolve(layer_of(self.config), changes), self.clients, earlier=self.plan.earlier)
        except (HubbubError, ValueError) as refusal:
            return None, " ".join(str(refusal).split())
        one = _judged(self.config, family.name, changes, plan, time.process_time() - started)
        return one, "" if one else _TOO_LONG

    def sized(self, sampling: str, size: int, **numbers: Any) -> Layer:
        """The settings of cohorts of a kind and a size, which is left out if it is the default."""
        default = self.config.training.cohort_size or max(1, self.clients // 10)
        return {
            "privacy": {"sampling": sampling},
            "participation": {**dict.fromkeys(asdict(ParticipationConfig())), **numbers},
            **({} if default == size else {"training": {"cohort_size": size}}),
        }


def _changed(config: Config, family: Family, cohorts: Layer, stated: PrivacyGuarantee) -> Layer:
    """The changes of a run's settings for another strategy, and for other cohorts, if any; ``None`` resets a setting.

    They have the ``stated`` epsilon to meet if the settings give a noise multiplier, and its relation with other cohorts.
    """
    random = cohorts.get("privacy", {}).get("sampling") in ("poisson", "fixed-size")
    own = not cohorts and family.name == "identity"
    mode = config.privacy.mode if own else "dp-fedavg" if random else "dp-ftrl"
    privacy = {
        "mode": mode,
        "strategy": family.name,
        "bands": family.bands,
        "buffers": family.buffers,
        "matrix": None,
        "objective": config.privacy.objective if "objective" in FAMILIES[family.name].options else None,
        **({} if config.privacy.epsilon is not None else {"epsilon": stated.epsilon}),
        **({"neighboring_relation": stated.neighboring_relation} if cohorts else {}),
    }
    now, wanted = asdict(config), merge({"privacy": privacy}, cohorts)
    layer = {name: {key: value for key, value in keys.items() if value != now[name][key]} for name, keys in wanted.items()}
    return {name: keys for name, keys in layer.items() if keys}


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


def _pattern_families(pattern: patterns.Pattern, rounds: int, *, thorough: bool) -> Iterator[Family]:
    """Families for a pattern that together are optimized in about a second; with ``thorough`` in a minute."""
    top = min(default_bands(pattern, rounds), _MOST_BANDS)
    for bands in sorted({top, top // 2, top // 4, top // 16} - {0, 1}, reverse=True):
        if rounds * bands <= _TOEPLITZ[thorough]:
            yield Family("optimal-toeplitz", bands)
    repeated = patterns.worst_rounds(pattern, rounds)[1] > 1
    for name, record in FAMILIES.items():
        if rounds > record.most_rounds[thorough] or (repeated and type(pattern).__name__ not in record.repeats):
            continue
        if name == "blt" and thorough:
            yield Family("blt", buffers=2)
        yield Family(name)
