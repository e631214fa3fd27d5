"""A mechanism, its cohorts and what must hold for its guarantee, in words."""

from dataclasses import dataclass
from typing import Literal

from hubbub.accounting.events import NeighboringRelation
from hubbub.mechanism import Mechanism
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
from hubbub.strategies import (
    OWN,
    Banded,
    BandedInverse,
    BandedToeplitz,
    BinaryTree,
    BufferedLinearToeplitz,
    Columns,
    Described,
    Fourier,
    Identity,
    NormalizedToeplitz,
    Semiseparable,
    Stamped,
    Strategy,
)

__all__ = ["EACH_RUN", "FIXED_RUNS", "NOT_COVERED", "Assumption", "assumptions", "cohort_words", "describe"]

NOT_COVERED = (
    "metrics that are computed from clients' updates, such as their training loss",
    "choosing settings, models or features on the same people: each try is a run of its own",
    "other runs and other releases about the same people, where they are not named here",
    "what the time, the traffic and the failures of clients show to those who watch them",
    "facts about groups: for k clients that act as one, epsilon is that of k times the sensitivity",
)


@dataclass(frozen=True)
class Assumption:
    """What must hold for a guarantee, and who sees to it: ``"ledger"``, ``"software"`` or ``"operator"``."""

    text: str
    enforced_by: Literal["ledger", "software", "operator"]

    def __str__(self) -> str:
        """Both in one line."""
        return f"{self.text} ({self.enforced_by})"


_COINS = Assumption(
    "cohorts were drawn by random coins exactly as stated, never filtered by who answered, and stay secret", "operator"
)
FIXED_RUNS = Assumption("no run's noise, cohorts or number of rounds was chosen by what another released", "operator")
# Of several runs, where no statement names what each of them assumes.
EACH_RUN = Assumption("each run's own assumptions hold, as its own statement names them", "operator")
_ALWAYS = (
    Assumption("all data of one client enter one update, which is held to the clip norm as one vector", "software"),
    Assumption("every round that was begun is charged, whether or not it was released", "ledger"),
    Assumption("one person is one client", "operator"),
    Assumption("readers see the released models, not the single updates, the cohorts, the noise or its keys", "operator"),
    Assumption("the number of clients and the classes of the data are public", "operator"),
)


def describe(mechanism: Mechanism) -> str:
    """The mechanism in words."""
    strategy = mechanism.strategy
    independent = type(strategy) is Identity
    name = "independent Gaussian noise" if independent else f"correlated Gaussian noise ({_family(strategy)})"
    return f"{name} with noise multiplier {mechanism.noise_multiplier:.6g}, {cohort_words(mechanism.participation)}"


def _family(strategy: Strategy) -> str:  # noqa: C901 # one line a family
    if type(strategy) not in (*OWN, Described):
        return type(strategy).__name__
    match strategy:
        case Banded(bands=bands) | Columns(bands=bands):
            return f"banded, {bands} bands"
        case BandedInverse(noising_coefficients=coefficients):
            return f"banded inverse, {len(coefficients)} bands"
        case BandedToeplitz(bands=bands):
            return f"banded Toeplitz, {bands} bands"
        case NormalizedToeplitz(coefficients=coefficients):
            return f"banded Toeplitz with columns of norm 1, {len(coefficients)} bands"
        case BinaryTree(decoder="plain"):
            return "binary tree aggregation"
        case BinaryTree(decoder=decoder):
            return f"binary tree aggregation, {decoder} estimates"
        case BufferedLinearToeplitz(output_scales=scales):
            return f"buffered linear Toeplitz, {len(scales)} buffers"
        case Fourier():
            return "Fourier"
        case Semiseparable(memory_rows=buffers):
            return f"time-varying buffers, {buffers} of them"
        case Stamped(stamp=stamp):
            return f"copies of one strategy of {len(stamp)} rounds"
        case Described(origin=origin):
            return origin.rpartition(".")[2]
        case other:
            return type(other).__name__


def cohort_words(participation: Participation) -> str:
    """Who takes part when, in words."""
    match participation:
        case SingleParticipation():
            return "each client in at most one round"
        case FixedEpochs(epochs, rounds_per_epoch):
            return f"each client in at most {epochs} rounds exactly {rounds_per_epoch} apart"
        case MinSeparation(1, max_participations):
            return f"each client in at most {max_participations} rounds"
        case MinSeparation(min_separation, max_participations):
            return f"each client in at most {max_participations} rounds at least {min_separation} apart"
        case PoissonSampling(sampling_probability):
            return f"each client in a round with probability {sampling_probability:g}"
        case FixedSizeSampling(cohort_size, population):
            return f"cohorts of {cohort_size} of {population} clients drawn at random"
        case TruncatedPoissonSampling(sampling_probability, max_cohort_size, population):
            return (
                f"each client in a round with probability {sampling_probability:g}, of {population} clients at most "
                f"{max_cohort_size}"
            )
        case CyclicPoissonSampling(sampling_probability, cycle_length):
            return (
                f"each client in one of {cycle_length} groups that take turns, and in a round of its group with probability "
                f"{sampling_probability:g}"
            )
        case BallsInBinsSampling(bins):
            return f"each client in one of {bins} slots drawn at random, and so in every {bins}th round"


def assumptions(
    participation: Participation, neighboring_relation: NeighboringRelation | None = None
) -> tuple[Assumption, ...]:
    """What must hold for the guarantee, under the relation in which it is stated, and who sees to it."""
    match participation:
        case SingleParticipation() | FixedEpochs() | MinSeparation():
            drawn: tuple[Assumption, ...] = (Assumption("no client breaks the participation pattern", "ledger"),)
        case PoissonSampling() | FixedSizeSampling() | TruncatedPoissonSampling():
            drawn = (_COINS,)
        case CyclicPoissonSampling():
            group = "each client's group is given for good by its name alone, whatever the data and the other clients are"
            drawn = (_COINS, Assumption(group, "operator"))
        case BallsInBinsSampling():
            slot = "each client's slot is drawn once for the whole run, whatever the data and the other clients are"
            drawn = (_COINS, Assumption(slot, "operator"))
    if neighboring_relation is not None:
        drawn = (*drawn, *_compared(participation, neighboring_relation))
    return (*drawn, *_ALWAYS)


def _compared(participation: Participation, neighboring_relation: NeighboringRelation) -> tuple[Assumption, ...]:
    """What the two data sets that the relation compares have in common, where that is not plain."""
    if neighboring_relation == "add-or-remove-one":
        same = "the cohorts' law and the fixed divisor of the sums are the same numbers whether a client is there or not"
        match participation:
            case FixedSizeSampling(population=population) | TruncatedPoissonSampling(population=population):
                same = f"{same}; the client that may be missing is one of the {population}"
            case _:
                pass
        return (Assumption(same, "operator"),)
    match participation:
        case CyclicPoissonSampling() | BallsInBinsSampling() if neighboring_relation == "replace-one":
            return (Assumption("a client that replaces another takes its name, and with it its rounds", "operator"),)
        case _:
            return ()
