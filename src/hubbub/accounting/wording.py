"""A mechanism, its cohorts and what must hold for its guarantee, in words."""

from hubbub.mechanism import Mechanism
from hubbub.participation import (
    FixedEpochs,
    FixedSizeSampling,
    MinSeparation,
    Participation,
    PoissonSampling,
    SingleParticipation,
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

__all__ = ["assumptions", "describe"]


def describe(mechanism: Mechanism) -> str:
    """The mechanism in words."""
    strategy = mechanism.strategy
    independent = type(strategy) is Identity
    name = "independent Gaussian noise" if independent else f"correlated Gaussian noise ({_family(strategy)})"
    return f"{name} with noise multiplier {mechanism.noise_multiplier:.6g}, {_cohorts(mechanism.participation)}"


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


def _cohorts(participation: Participation) -> str:
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


def assumptions(participation: Participation) -> tuple[str, ...]:
    """What must hold for the guarantee."""
    match participation:
        case PoissonSampling() | FixedSizeSampling():
            drawn: tuple[str, ...] = (
                "cohorts were drawn by the operator's random coins exactly as stated, never filtered, and stay secret",
            )
        case SingleParticipation() | FixedEpochs() | MinSeparation():
            drawn = ("the ledger of the run enforces the participation pattern; one person is one client",)
    return (
        *drawn,
        "readers see the released models, not the single updates, the cohorts or the noise",
        "metrics that are computed from clients' updates stay with the operator",
        "the number of clients and the classes of the data are public",
        "the guarantee covers this run alone: tuning on the same people, and other runs, cost extra",
    )
