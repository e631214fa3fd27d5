"""Which mechanism has the least error for a population and a budget: all that can be run and proved, side by side.

Each is calibrated to the same budget, and judged by the noise in the released sum of the updates so far, which is what a model
is made of. What cohorts drawn by coins cost in accuracy, because their sizes vary, is not in it.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from hubbub import families
from hubbub.accounting.deployment import Budget, Deployment, sampling_word
from hubbub.errors import BudgetError, ConfigError, HubbubError
from hubbub.families import Family
from hubbub.mechanism import Mechanism
from hubbub.participation import Participation, RandomParticipation, SingleParticipation
from hubbub.strategies import Identity, Strategy
from hubbub.workloads import prefix_sum

__all__ = ["Option", "Recommendation", "recommend", "search_bands"]

_SLOTS = "what it costs takes long to compute; calibrate it by its name, with --bins"
# Correlated noise other than Toeplitz, and for how many rounds it is a matter of seconds.
_FAMILIES = {"blt": 10**5, "banded-inverse": 4096, "tree-full": 2048, "banded": 512}
_MOST_FOR_NORMALIZED = 4096
_MOST_BANDS = 4096
# Of the band count, each halves the ratio of neighbors.
_REFINEMENTS = 3


@dataclass(frozen=True, eq=False)
class Option:
    """A mechanism that meets the budget.

    Args:
        family: Of its strategy.
        mechanism: With the noise that it needs.
        root_mean_squared_error: Of a coordinate of the released sum of updates, over rounds and per client of a cohort, at clip
            norm 1.
    """

    family: Family
    mechanism: Mechanism
    root_mean_squared_error: float

    @property
    def cohorts(self) -> str:
        """How clients come to take part, in the word that a run's settings have for it."""
        return sampling_word(self.mechanism.participation)


@dataclass(frozen=True)
class Recommendation:
    """Mechanisms that meet one budget, and why others are not among them.

    Args:
        options: In the order of their errors; the first is the one to take.
        left_out: By name, the reason.
    """

    options: tuple[Option, ...]
    left_out: dict[str, str]


def recommend(deployment: Deployment, budget: Budget, progress: Callable[[str], object] = str) -> Recommendation:
    """The mechanisms that meet a budget, in the order of the errors of their released sums.

    Among them are independent noise with Poisson cohorts, with cohorts of a fixed size and with a participation pattern;
    correlated noise with that pattern; and banded noise with cyclic Poisson cohorts, at the band count of least error.

    Args:
        deployment: Rounds and clients.
        budget: The same for all.
        progress: Is told what is being computed.

    Raises:
        BudgetError: Nothing meets the budget.
        ConfigError: A delta that sums of random cohorts would meet without any noise.

    Example:
        >>> answer = recommend(Deployment(rounds=64, population=1000, cohort_size=50), Budget(epsilon=4.0, delta=1e-5))
        >>> best = answer.options[0]
        >>> best.family.name, best.family.bands, best.cohorts
        ('normalized-toeplitz', 4, 'cyclic-poisson')

    Source: Choquette-Choo et al. 2023, https://arxiv.org/abs/2306.08153, for banded noise with cyclic cohorts and the choice
    of its bands.
    """
    if budget.delta * deployment.population >= deployment.cohort_size:
        raise ConfigError(
            f"delta = {budget.delta!r}: a client is in a round of {deployment.cohort_size} of {deployment.population} with a "
            "chance no larger, so that sums without any noise would meet it; choose one well below "
            f"{1 / deployment.population:g}"
        )
    search = _Search(deployment, budget, progress, [], {})
    for participation in deployment.independent:
        search.add(Family("identity"), participation)
    search.add_correlated()
    search.add_cyclic()
    if not search.found:
        name, reason = next(iter(search.left_out.items()))
        raise BudgetError(f"epsilon = {budget.epsilon!r}: no mechanism meets it; {name}: {reason}")
    search.left_out["identity, balls-in-bins"] = _SLOTS
    return Recommendation(tuple(sorted(search.found, key=_error)), search.left_out)


def search_bands(most: int, error: Callable[[int], float]) -> None:
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


def _error(option: Option) -> float:
    return option.root_mean_squared_error


@dataclass(frozen=True, eq=False)
class _Search:
    """What was found so far."""

    deployment: Deployment
    budget: Budget
    progress: Callable[[str], object]
    found: list[Option]
    left_out: dict[str, str]

    def add(self, family: Family, participation: Participation) -> None:
        """Calibrate a mechanism and keep it, or the reason why there is none."""
        option = self.option(family, participation)
        if option is not None:
            self.found.append(option)

    def option(self, family: Family, participation: Participation) -> Option | None:
        """The mechanism, calibrated."""
        bands = "" if family.bands is None else f", {family.bands} bands"
        name = f"{family.name}{bands}, {sampling_word(participation)}"
        self.progress(name)
        try:
            strategy, error = self.strategy(family, participation)
            mechanism = self.budget.meets(strategy, participation)
        except (HubbubError, ValueError) as refusal:
            self.left_out[name] = " ".join(str(refusal).split())
            return None
        return Option(family, mechanism, error * mechanism.stddev / self.deployment.cohort_size)

    def strategy(self, family: Family, participation: Participation) -> tuple[Strategy, float]:
        """The strategy, and its error for noise z of standard deviation 1."""
        rounds = self.deployment.rounds
        if family.name == "identity":
            return Identity(rounds), math.sqrt((rounds + 1) / 2)
        # What chance may give one client is in the price of random cohorts; the strategy is made for one participation.
        pattern = SingleParticipation() if isinstance(participation, RandomParticipation) else participation
        answer = families.answer_of(family, prefix_sum(rounds), pattern)
        return answer.strategy, answer.root_squared_error / answer.strategy.sensitivity(pattern).value

    def add_correlated(self) -> None:
        """Correlated noise with the pattern: the band count of least error, fewer for less memory, and other families."""
        pattern, rounds = self.deployment.pattern, self.deployment.rounds
        most = min(pattern.min_separation, _MOST_BANDS)
        for bands in sorted({most, most // 4, most // 16} - {0, 1}):
            self.add(Family("optimal-toeplitz", bands), pattern)
        for name, longest in _FAMILIES.items():
            if rounds <= longest:
                self.add(Family(name), pattern)
            else:
                self.left_out[name] = (
                    f"takes minutes for more than {longest:,} rounds; calibrate it by its name, with --strategy"
                )

    def add_cyclic(self) -> None:
        """Banded noise with cyclic Poisson cohorts: more bands correlate more, and are amplified less."""
        most = min(self.deployment.cycle, _MOST_BANDS)
        tried: dict[int, Option | None] = {}

        def error(bands: int) -> float:
            option = tried[bands] = self.option(Family("optimal-toeplitz", bands), self.deployment.cyclic(bands))
            return math.inf if option is None else option.root_mean_squared_error

        search_bands(most, error)
        best = min((option for option in tried.values() if option is not None), key=_error, default=None)
        if best is None:
            return
        self.found.append(best)
        if self.deployment.rounds <= _MOST_FOR_NORMALIZED:
            self.add(Family("normalized-toeplitz", best.family.bands), best.mechanism.participation)
