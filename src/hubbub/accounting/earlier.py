"""A run of which no more is known than its charge, in words: what it did, and what must hold for it."""

from hubbub.accounting.events import (
    BallsInBins,
    DiscreteGaussianShares,
    Event,
    FixedSizeSampled,
    Gaussian,
    MixtureOfGaussians,
    NeighboringRelation,
    PoissonSampled,
    TreeAggregation,
    TruncatedPoissonSampled,
)
from hubbub.accounting.runs import Events, RunCharge
from hubbub.accounting.wording import Assumption, assumptions, cohort_words, one_unit, stopped
from hubbub.participation import (
    BallsInBinsSampling,
    CyclicPoissonSampling,
    FixedSizeSampling,
    Participation,
    PoissonSampling,
    SingleParticipation,
    TruncatedPoissonSampling,
)

__all__ = ["charge_assumptions", "charge_participations", "charge_words"]


def charge_words(run: RunCharge) -> str:
    """The run in one line: its mechanism, cohorts, noise multiplier, rounds and relation.

    Example:
        >>> from hubbub.accounting.events import FixedSizeSampled
        >>> events = ((FixedSizeSampled(1.5, 10, 100), 6),)
        >>> run = RunCharge("a" * 64, "b" * 64, 6, 8, events, "zero-out", ("zero-out",), "client")
        >>> print(*charge_words(run).split(": ")[-1].split("; "), sep=chr(10))
        Gaussian noise with noise multiplier 1.5, cohorts of 10 of 100 clients drawn at random
        6 of 8 rounds, zero-out relation
    """
    if run.events is None:
        done = "nothing bounds what its releases tell"
    else:
        done = " and ".join(_event_words(event, count, run) for event, count in run.events) or "nothing was released"
    simulated = "; a simulation, not for release" if run.simulation else ""
    setting = f"; setting: {run.setting}" if run.setting else ""
    return (
        f"the run of ledger {run.first[:16]} as of head {run.head[:16]}: {done}; {run.rounds} of {run.planned} rounds, "
        f"{run.neighboring_relation} relation{simulated}{setting}"
    )


def charge_assumptions(run: RunCharge, neighboring_relation: NeighboringRelation) -> tuple[Assumption, ...]:
    """What must hold for its charge under a relation, each once."""
    found = [
        assumption
        for event, count in run.events or ()
        for assumption in assumptions(
            _participation(event, count, run.rounds),
            neighboring_relation,
            shares_of=event.shares if isinstance(event, DiscreteGaussianShares) else None,
            privacy_unit=run.privacy_unit,
        )
    ]
    ended = (stopped(run.rounds),) if found and run.rounds < run.planned else ()
    return tuple(dict.fromkeys((*found, *ended, *run.further)))


def charge_participations(events: Events | None, rounds: int) -> tuple[Participation | None, ...]:
    """Cohorts that are charged like these events of so many rounds, ``None`` where no participation is."""
    return tuple(
        None if isinstance(event, MixtureOfGaussians) else _participation(event, count, rounds) for event, count in events or ()
    )


def _event_words(event: Event, count: int, run: RunCharge) -> str:
    rounds, one = run.rounds, one_unit(run.privacy_unit)
    match event:
        case Gaussian(z):
            return f"Gaussian noise with noise multiplier {z!r} over the sensitivity of the whole run to {one}'s rounds"
        case DiscreteGaussianShares(z, shares):
            often = "one round" if count == 1 else f"{count} rounds"
            who = f"shares of at least {shares} clients, each client in at most {often}"
            return f"discrete Gaussian noise with noise multiplier {z!r} in {who}"
        case MixtureOfGaussians(z):
            return f"Gaussian noise with noise multiplier {z!r}, contributions by chance, {count} times"
        case TreeAggregation(z, leaves):
            return f"tree aggregation with noise multiplier {z!r}, {count} trees of {leaves} rounds"
        case PoissonSampled(z, q) if count < rounds:
            who = f"groups that take turns, so that {one}'s group has {count} rounds, in each of them with probability {q!r}"
            return f"Gaussian noise with noise multiplier {z!r}, {who}"
        case _:
            who = cohort_words(_participation(event, count, rounds), run.privacy_unit)
            return f"Gaussian noise with noise multiplier {event.noise_multiplier!r}, {who}"


def _participation(event: Event, count: int, rounds: int) -> Participation:
    """Cohorts that are charged like this; of a pattern, whose numbers a charge does not tell, any."""
    match event:
        case PoissonSampled(_, q):
            # Fewer charges than rounds: of groups that take turns, whose number is between these.
            return CyclicPoissonSampling(q, -(-rounds // count)) if count < rounds else PoissonSampling(q)
        case FixedSizeSampled(_, cohort_size, population):
            return FixedSizeSampling(cohort_size, population)
        case TruncatedPoissonSampled(_, q, max_cohort_size, population):
            return TruncatedPoissonSampling(q, max_cohort_size, population)
        case BallsInBins(_, bins):
            return BallsInBinsSampling(bins)
        case MixtureOfGaussians():
            # A coin of each decides who contributes how much.
            return PoissonSampling(1.0)
        case Gaussian() | TreeAggregation() | DiscreteGaussianShares():
            return SingleParticipation()
