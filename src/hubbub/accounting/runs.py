"""What whole runs have cost, as values that a later run or an account of several takes over."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from hubbub._checks import digest, integer, one_of, table
from hubbub.accounting.events import RELATIONS, Event, NeighboringRelation
from hubbub.accounting.wording import Assumption, require_text, require_words, words_from_record, words_record
from hubbub.errors import ConfigError

__all__ = ["Events", "RunCharge", "event_from_record", "event_record", "events_of", "require_together"]

Events = tuple[tuple[Event, int], ...]

_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Event)}
# More rounds than any run has, and few enough that an accountant answers.
_MOST_ROUNDS = 10**9
_MOST_EVENTS = 10**4


@dataclass(frozen=True)
class RunCharge:
    """What one run has cost, without the runs that it was told of.

    Args:
        first: Hash of the first record of its ledger: by this the run is known.
        head: Hash of the last record that was read.
        rounds: How many rounds were charged by then.
        planned: How many it promised.
        events: What they cost; ``None`` where nothing bounds it.
        neighboring_relation: Under which the run stated its guarantee.
        relations: Under which of them its events are covered.
        privacy_unit: Whose contribution is hidden.
        simulation: Whether its noise came from a known seed.
        further: What must hold for it beside what its events say.
        not_covered: What its promise named that it does not cover.
        setting: One line of who was trusted with what; empty for a server that saw each update.
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
    further: tuple[Assumption, ...] = ()
    not_covered: tuple[str, ...] = ()
    setting: str = ""

    def __post_init__(self) -> None:
        require_words("further", self.further, Assumption)
        require_words("not_covered", self.not_covered, str)
        if self.setting != "":
            require_text("setting", self.setting)
        for name in ("first", "head"):
            digest(name, getattr(self, name))
        integer("rounds", self.rounds, at_least=0, at_most=_MOST_ROUNDS)
        integer("planned", self.planned, at_least=1, at_most=_MOST_ROUNDS)
        for relation in (self.neighboring_relation, *self.relations):
            one_of("neighboring_relation", relation, RELATIONS)
        if not isinstance(self.privacy_unit, str) or not self.privacy_unit.isprintable():
            raise TypeError(f"privacy_unit = {self.privacy_unit!r}: must be text")
        if not isinstance(self.simulation, bool):
            raise TypeError(f"simulation = {self.simulation!r}: must be true or false")

    def record(self) -> dict[str, Any]:
        """It as strict JSON values."""
        events = None if self.events is None else [event_record(event, count) for event, count in self.events]
        words = words_record(self.further, self.not_covered)
        return {**vars(self), "relations": list(self.relations), "events": events, **words}

    @classmethod
    def from_record(cls, record: object) -> "RunCharge":
        """The charge of a record, each of its values checked.

        Raises:
            ValueError: A value that cannot be, one that is missing, or one too many.
            TypeError: A value of another type.
        """
        stated = dict(table("an earlier run", record))
        known = set(cls.__dataclass_fields__)
        if set(stated) != known:
            raise ValueError(f"an earlier run: has {sorted(stated, key=str)!r:.200}, must have {sorted(known)}")
        further, not_covered = words_from_record(stated)
        for name in ("events", "relations"):
            if (
                not isinstance(stated[name], list | None if name == "events" else list)
                or len(stated[name] or ()) > _MOST_EVENTS
            ):
                raise TypeError(f"{name} = {str(stated[name])[:80]!r}: must be a list of at most {_MOST_EVENTS}")
        events = None if stated["events"] is None else tuple(event_from_record(event) for event in stated["events"])
        words = {"further": further, "not_covered": not_covered}
        return cls(**{**stated, "events": events, "relations": tuple(stated["relations"]), **words})


def events_of(runs: Sequence[RunCharge]) -> Events | None:
    """The events of all runs; ``None`` where one of them has no bound."""
    found: list[tuple[Event, int]] = []
    for run in runs:
        if run.events is None:
            return None
        found += run.events
    return tuple(found)


def require_together(runs: Sequence[RunCharge], privacy_unit: str, neighboring_relation: NeighboringRelation) -> None:
    """Refuse runs whose costs do not add up to one guarantee.

    Raises:
        ConfigError: A run that hides another unit, or whose cohorts no theorem covers under the relation.
    """
    for run in runs:
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


def event_from_record(record: object) -> tuple[Event, int]:
    """The event of a record, each of its numbers checked.

    Raises:
        ValueError: No such event, or numbers that make none.
        TypeError: A value of another type.
    """
    stated = dict(table("an event", record))
    kind = _KINDS[one_of("event", stated.pop("event", None), _KINDS)]
    count = integer("count", stated.pop("count", None), at_least=1, at_most=_MOST_ROUNDS)
    event: Event = kind(**stated)
    integer("rounds", getattr(event, "rounds", 0), at_least=0, at_most=_MOST_ROUNDS)
    return event, count
