"""What one whole run has cost, as a value, as a record and in words, for a later run or an account of several."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from hubbub._util.checks import boolean, digest, integer, one_of, plain_numbers, shown, table
from hubbub.accounting import wording
from hubbub.accounting.events import (
    RELATIONS,
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
    counted,
)
from hubbub.errors import ConfigError
from hubbub.mechanism import participation as parts

Events = tuple[tuple[Event, int], ...]

_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Event)}
# More rounds than any run has, and few enough that an accountant answers.
_MOST_ROUNDS = 10**9
_MOST_EVENTS = 10**4


@dataclass(frozen=True)
class RunCharge:
    """What one run has cost, without the earlier runs that it names.

    Args:
        first: Hash of the first record of its ledger: by this the run is known.
        head: Hash of the last record that was read.
        rounds: How many rounds were recorded by then.
        planned: How many it promised.
        events: What they cost; ``None`` where nothing bounds it.
        neighboring_relation: Under which the run stated its guarantee.
        relations: Under which of them its events are covered.
        privacy_unit: Whose contribution is hidden.
        simulation: Whether its noise came from a known seed.
        further: What it assumes in addition to the assumptions of its events.
        not_covered: What its promise named that it does not cover.
        setting: One line of who was trusted with what; empty for a server that saw each update.

    Example:
        >>> from hubbub.accounting import Gaussian, guarantee
        >>> from hubbub.mechanism import Mechanism
        >>> from hubbub.mechanism.participation import SingleParticipation
        >>> from hubbub.mechanism.strategies import Identity
        >>> before = RunCharge("a" * 64, "b" * 64, 5, 5, ((Gaussian(2.0), 1),), "zero-out", ("zero-out",), "client")
        >>> mechanism = Mechanism(Identity(5), SingleParticipation(), noise_multiplier=2.0)
        >>> [round(guarantee(mechanism, 1e-5, earlier=earlier).epsilon, 3) for earlier in ((), (before,))]
        [1.993, 2.943]
    """

    first: str
    head: str
    rounds: int
    planned: int
    events: Events | None
    neighboring_relation: NeighboringRelation
    relations: tuple[NeighboringRelation, ...]
    privacy_unit: str
    simulation: bool = False
    further: tuple[wording.Assumption, ...] = ()
    not_covered: tuple[str, ...] = ()
    setting: str = ""

    def __post_init__(self) -> None:
        plain_numbers(self, simulation=boolean)
        wording.require_words("further", self.further, wording.Assumption)
        wording.require_words("not_covered", self.not_covered, str)
        if self.setting != "":
            wording.require_text("setting", self.setting)
        for name in ("first", "head"):
            digest(name, getattr(self, name))
        integer("rounds", self.rounds, at_least=0, at_most=_MOST_ROUNDS)
        integer("planned", self.planned, at_least=1, at_most=_MOST_ROUNDS)
        for relation in (self.neighboring_relation, *self.relations):
            one_of("neighboring_relation", relation, RELATIONS)
        one_of("privacy_unit", self.privacy_unit, wording.UNITS)
        counted(self.events or ())

    def record(self) -> dict[str, Any]:
        """It as strict JSON values."""
        events = None if self.events is None else [event_record(event, count) for event, count in self.events]
        further = [asdict(assumption) for assumption in self.further]
        lists = {"relations": list(self.relations), "further": further, "not_covered": list(self.not_covered)}
        return {**vars(self), "events": events, **lists}

    @classmethod
    def from_record(cls, record: object) -> "RunCharge":
        """The cost that a record states, each of its values checked.

        Raises:
            ValueError: A value that cannot be, one that is missing, or one too many.
            TypeError: A value of another type.
        """
        stated = dict(table("an earlier run", record))
        known = set(cls.__dataclass_fields__)
        if set(stated) != known:
            raise ValueError(f"an earlier run: has {sorted(stated, key=str)!r:.200}, must have {sorted(known)}")
        further, not_covered = wording.words_from_record(stated)
        for name, kind in (("events", list | None), ("relations", list)):
            if not isinstance(stated[name], kind) or len(stated[name] or ()) > _MOST_EVENTS:
                raise TypeError(f"{name} = {str(stated[name])[:80]!r}: must be a list of at most {_MOST_EVENTS}")
        events = None if stated["events"] is None else tuple(_event_from_record(event) for event in stated["events"])
        return cls(**{**stated, "events": events, "further": further, "not_covered": not_covered})


def events_of(runs: Sequence[RunCharge]) -> Events | None:
    """The events of all runs; ``None`` where one of them has no bound."""
    known = [run.events for run in runs if run.events is not None]
    return tuple(one for events in known for one in events) if len(known) == len(runs) else None


def require_together(runs: Sequence[RunCharge], privacy_unit: str, neighboring_relation: NeighboringRelation) -> None:
    """Refuse runs whose costs do not add up to one guarantee."""
    if not isinstance(runs, Sequence):
        raise TypeError(f"earlier: {shown(runs)} is no sequence of RunCharge; hubbub.training.charged_with(folder) makes one")
    for run in runs:
        if not isinstance(run, RunCharge):
            raise TypeError(f"earlier: {shown(run)} is no RunCharge; hubbub.training.charged_with(folder) reads those of a run")
        if run.privacy_unit != privacy_unit:
            raise ConfigError(
                f"privacy_unit = {privacy_unit!r}: the run of ledger {run.first[:16]} hides each {run.privacy_unit!r}; "
                "costs of different units do not add up"
            )
        # A run without a bound costs as much under each relation.
        if run.events is not None and neighboring_relation not in run.relations:
            raise ConfigError(
                f"neighboring_relation = {neighboring_relation!r}: no theorem covers the run of ledger {run.first[:16]} under "
                f"it; state {' or '.join(repr(relation) for relation in run.relations) or 'no relation'} for all"
            )


def event_record(event: Event, count: int) -> dict[str, Any]:
    """An event and how often it happens, as strict JSON values."""
    return {"event": type(event).__name__, "count": count, **asdict(event)}


def _event_from_record(record: object) -> tuple[Event, int]:
    """The event of a record, each of its numbers checked.

    Example:
        >>> _event_from_record({"event": "Gaussian", "count": 3, "noise_multiplier": 2.0})
        (Gaussian(noise_multiplier=2.0), 3)
    """
    stated = dict(table("an event", record))
    kind = _KINDS[one_of("event", stated.pop("event", None), _KINDS)]
    count = integer("count", stated.pop("count", None), at_least=1, at_most=_MOST_ROUNDS)
    event: Event = kind(**stated)
    integer("rounds", getattr(event, "rounds", 0), at_least=0, at_most=_MOST_ROUNDS)
    return event, count


def run_words(run: RunCharge) -> str:
    """The run in one line: its mechanism, cohorts, noise multiplier, rounds and relation.

    Example:
        >>> from hubbub.accounting.events import FixedSizeSampled
        >>> events = ((FixedSizeSampled(1.5, 10, 100), 6),)
        >>> run = RunCharge("a" * 64, "b" * 64, 6, 8, events, "zero-out", ("zero-out",), "client")
        >>> print(*run_words(run).split(": ")[-1].split("; "), sep=chr(10))
        Gaussian noise with noise multiplier 1.5, cohorts of 10 of 100 clients drawn at random
        6 of 8 rounds, zero-out relation
    """
    if run.events is None:
        done = "nothing bounds what its releases reveal"
    else:
        said = [_event_words(event, times, run.rounds, run.privacy_unit) for event, times in run.events[:1]]
        for event, times in run.events[1:]:
            by = _event_words(event, times, times, run.privacy_unit)
            said.append(f"{wording.count(times, 'private evaluation')} by {by}")
        done = " and ".join(said) or "nothing was released"
    simulated = "; a simulation, not for release" if run.simulation else ""
    setting = f"; setting: {run.setting}" if run.setting else ""
    return (
        f"the run of ledger {run.first[:16]} as of head {run.head[:16]}: {done}; {run.rounds} of {run.planned} rounds, "
        f"{run.neighboring_relation} relation{simulated}{setting}"
    )


def run_assumptions(run: RunCharge, neighboring_relation: NeighboringRelation) -> tuple[wording.Assumption, ...]:
    """What its cost assumes under a relation, each assumption once."""
    found = [
        assumption
        for (event, _), participation in zip(run.events or (), run_participations(run.events, run.rounds), strict=True)
        for assumption in wording.assumptions(
            # Each contribution of a mixture is drawn at random.
            participation or parts.PoissonSampling(1.0),
            neighboring_relation,
            shares_of=event.shares if isinstance(event, DiscreteGaussianShares) else None,
            privacy_unit=run.privacy_unit,
            pattern_kept_by="devices" if wording.DEVICES_KEEP[0] in run.further else "ledger",
        )
    ]
    ended = (wording.stopped(run.rounds),) if found and run.rounds < run.planned else ()
    return tuple(dict.fromkeys((*found, *ended, *run.further)))


def run_participations(events: Events | None, rounds: int) -> list[parts.Participation | None]:
    """Cohorts that cost these events over a number of rounds; ``None`` for an event that no participation has."""
    # Behind the event of a run's rounds stands that of its private evaluations.
    return [_participation(event, count, count if place else rounds) for place, (event, count) in enumerate(events or ())]


def _event_words(event: Event, times: int, rounds: int, unit: str) -> str:
    one = wording.one_unit(unit)
    match event:
        case Gaussian(z):
            return f"Gaussian noise with noise multiplier {z!r} over the sensitivity of the whole run to {one}'s rounds"
        case DiscreteGaussianShares(z, shares):
            often = "one round" if times == 1 else f"{times} rounds"
            who = f"shares of at least {shares} clients, each client in at most {often}"
            return f"discrete Gaussian noise with noise multiplier {z!r} in {who}"
        case TreeAggregation(z, leaves):
            return f"tree aggregation with noise multiplier {z!r}, {times} trees of {leaves} rounds"
        case PoissonSampled(z, q) if times < rounds:
            who = f"cyclic Poisson sampling: {one}'s group has {times} rounds, in each of them with probability {q!r}"
            return f"Gaussian noise with noise multiplier {z!r}, {who}"
        case PoissonSampled() | FixedSizeSampled() | TruncatedPoissonSampled() | BallsInBins() | MixtureOfGaussians():
            cohorts = _participation(event, times, rounds)
            who = wording.cohort_words(cohorts, unit) if cohorts else f"contributions by chance, {times} times"
            return f"Gaussian noise with noise multiplier {event.noise_multiplier!r}, {who}"


def _participation(event: Event, count: int, rounds: int) -> parts.Participation | None:
    """Cohorts that cost this event; for a pattern any, since an event does not name its numbers."""
    match event:
        case PoissonSampled(_, q):
            # Fewer events than rounds: cyclic Poisson sampling, whose number of groups is between these.
            return parts.CyclicPoissonSampling(q, -(-rounds // count)) if count < rounds else parts.PoissonSampling(q)
        case FixedSizeSampled(_, cohort_size, population):
            return parts.FixedSizeSampling(cohort_size, population)
        case TruncatedPoissonSampled(_, q, max_cohort_size, population):
            return parts.TruncatedPoissonSampling(q, max_cohort_size, population)
        case BallsInBins(_, bins):
            return parts.BallsInBinsSampling(bins)
        case MixtureOfGaussians():
            return None
        case Gaussian() | TreeAggregation() | DiscreteGaussianShares():
            return parts.SingleParticipation()
