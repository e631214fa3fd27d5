"""A mechanism, its cohorts and the assumptions of its guarantee, in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from hubbub._util.checks import one_of, shown
from hubbub.accounting.events import NeighboringRelation
from hubbub.mechanism import Mechanism, strategies
from hubbub.mechanism import participation as parts
from hubbub.mechanism.strategies import Identity, own


def not_covered(
    privacy_unit: str,
    participations: Sequence[parts.Participation | None],
    neighboring_relation: NeighboringRelation,
    *,
    shares: bool = False,
) -> tuple[str, ...]:
    """What no guarantee covers, by whose contribution is clipped as one, and what several of them pay together."""
    examples = privacy_unit == "example"
    source = "gradients or examples, such as the" if examples else "clients' updates, such as their"
    watched = "time that training takes shows" if examples else "time, the traffic and the failures of clients show"
    usual = (
        f"metrics that are computed from {source} training loss",
        "choosing settings, models or features on the same people: each try is a run of its own, and counts where it is named "
        "here",
        "other runs and other releases about the same people, where they are not named here",
        f"what the {watched} to those who watch {'it' if examples else 'them'}",
    )
    return (*usual, _groups(privacy_unit, participations, neighboring_relation, shares)) if participations else usual


# How a line begins that says what k units pay.
OF_GROUPS = (
    "facts about groups: for k clients that act as one",
    "facts about people with several examples: for k examples of one person",
)


def _groups(
    privacy_unit: str,
    participations: Sequence[parts.Participation | None],
    neighboring_relation: NeighboringRelation,
    shares: bool,
) -> str:
    """What k units pay that act as one, as far as a theorem says it for these cohorts.

    Patterns: the norm of a sum is at most the sum of norms, and Gaussian noise costs by norms alone; shares of noise cost more
    in each round that one of the k is in. Poisson sampling with independent noise: the mixture over how many of the k are drawn
    dominates. All others, cyclic cohorts with correlated noise among them: a step for each of the k.

    Source: Vadhan 2017, "The Complexity of Differential Privacy", Lemma 2.2 (the steps); Zhu, Dong and Wang 2022, Theorem 10
    (the rounds of a mixture), https://arxiv.org/abs/2106.08567.
    """
    who = OF_GROUPS[privacy_unit == "example"]
    if all(isinstance(one, parts.Pattern) for one in participations) and not shares:
        return f"{who}, epsilon is that of k times the sensitivity"
    if all(isinstance(one, parts.Pattern | parts.PoissonSampling) for one in participations):
        return f"{who}, epsilon is not that of k times the sensitivity, but that of hubbub.accounting.group_events"
    stepwise = f"{who}, epsilon is at most what hubbub.accounting.group_epsilon makes of it"
    if neighboring_relation == "add-or-remove-one" and any(
        isinstance(one, parts.FixedSizeSampling | parts.TruncatedPoissonSampling) for one in participations
    ):
        # The cohorts of those who remain are drawn from fewer with each of the k that is taken away.
        return f"{stepwise}, with k − 1 fewer in the population"
    return stepwise


# Whose contribution can be clipped as one. A client may stand for a person, a phone or a hospital: that is for who deals data.
UNITS = ("client", "example")


def one_unit(privacy_unit: str) -> str:
    """One of those, with its article."""
    return "an example" if privacy_unit == "example" else "a client"


Enforcer = Literal["ledger", "devices", "software", "operator"]
_MOST_WORDS, _LONGEST_TEXT = 100, 1000


def crude_delta(delta: float, units: int, unit: str = "client") -> str:
    """What is wrong with a delta that a release of somebody's data meets, in a sentence; empty where it is below 1/units.

    Example:
        >>> crude_delta(1e-5, units=1000)
        ''
        >>> crude_delta(1e-2, units=1000).partition(":")[0]
        'delta = 0.01 is not below 1/clients = 0.001'
    """
    if delta * units < 1:
        return ""
    return (
        f"delta = {delta:g} is not below 1/{unit}s = {1 / units:g}: a delta of 1/{unit}s or more allows "
        f"publishing all data of one {unit}, drawn at random."
    )


@dataclass(frozen=True)
class Assumption:
    """An assumption of a guarantee, and who enforces it: ``"ledger"``, ``"devices"``, ``"software"`` or ``"operator"``.

    Args:
        text: The assumption, in words.
        enforced_by: Who enforces it.

    Example:
        >>> print(Assumption("updates are clipped before they are summed", "software"))
        updates are clipped before they are summed (software)
    """

    text: str
    enforced_by: Enforcer

    def __str__(self) -> str:
        """Both in one line."""
        return f"{self.text} ({self.enforced_by})"


def require_words(name: str, values: object, kind: type[Assumption] | type[str]) -> None:
    """Refuse what is no tuple of a few assumptions, or of a few texts of one line."""
    if not isinstance(values, tuple) or not all(isinstance(value, kind) for value in values):
        raise TypeError(f"{name} = {shown(values)}: must be a tuple of {kind.__name__}")
    if len(values) > _MOST_WORDS:
        raise ValueError(f"{name}: has {len(values)} entries, at most {_MOST_WORDS} can be stated")
    for value in values:
        if isinstance(value, Assumption):
            one_of(f"{name}: enforced_by", value.enforced_by, get_args(Enforcer))
        require_text(name, value.text if isinstance(value, Assumption) else value)


def require_text(name: str, text: object) -> None:
    """Refuse what is no text of one printable line."""
    if not isinstance(text, str) or not text.strip() or not text.isprintable() or len(text) > _LONGEST_TEXT:
        raise ValueError(f"{name}: {shown(text)} must be a text of one line and at most {_LONGEST_TEXT} letters")


def words_from_record(record: Mapping[str, Any]) -> tuple[tuple[Assumption, ...], tuple[str, ...]]:
    """The assumptions ``further`` and the texts ``not_covered`` of a record, unchecked but for their shape."""
    for name in ("further", "not_covered"):
        if not isinstance(record[name], list):
            raise TypeError(f"{name} = {shown(record[name])}: must be a list")
    for stated in record["further"]:
        if not isinstance(stated, Mapping) or set(stated) != {"text", "enforced_by"}:
            raise ValueError(f"further: {shown(stated)} must be a table of text and enforced_by")
    return tuple(Assumption(**stated) for stated in record["further"]), tuple(record["not_covered"])


_COINS = Assumption(
    "cohorts were sampled at random exactly as stated, never filtered by who answered, and stay secret", "operator"
)
FIXED_RUNS = Assumption("no run's noise, cohorts or number of rounds was chosen by what another released", "operator")


def same_units(unit: str) -> Assumption:
    """What is assumed of the clients or examples of several runs."""
    text = f"each {unit} is the same {unit} in all runs counted here: its data are no other {unit}'s in any"
    return Assumption(text, "operator")


HOLDERS_ADD = Assumption(
    "each share holder adds the whole noise, from a key of its own, before a sum is decrypted, and at least one of them keeps "
    "its key and its noise to itself",
    "operator",
)


def ranks_assumption(ranks: int) -> Assumption:
    """What is assumed of the processes that shared a run's rounds."""
    return Assumption(
        f"the {ranks} processes that shared rounds, and what they send each other, are the server's: each saw sums and the "
        "noise's key",
        "operator",
    )


# Of several runs, where no statement names what each of them assumes.
EACH_RUN = Assumption("each run's own assumptions hold, as its own statement names them", "operator")
_ALWAYS = (
    Assumption("all data of one client enter one update, which is held to the clip norm as one vector", "software"),
    Assumption("the privacy cost of every round that was begun is recorded, whether or not the round was released", "ledger"),
    Assumption("one person is one client", "operator"),
    Assumption(
        "readers see only the released models: no single update, cohort, noise or key, neither on the operator's machines nor "
        "on the network, where TLS hides them",
        "operator",
    ),
)
_ALWAYS_OF_EXAMPLES = (
    Assumption("the gradient of one example is held to the clip norm as one vector, and is of that example alone", "software"),
    _ALWAYS[1],
    Assumption("one person has one example: of a person with several, each is protected by itself", "operator"),
    Assumption(
        "readers see only the released models: no single gradient, batch, noise or key, neither on the operator's machines nor "
        "on the network, where TLS hides them",
        "operator",
    ),
)


def describe(mechanism: Mechanism, privacy_unit: str = "client") -> str:
    """The mechanism in words."""
    strategy = mechanism.strategy
    if mechanism.shares is not None:
        name = f"independent discrete Gaussian noise in shares of at least {mechanism.shares.clients} clients"
    elif type(strategy) is Identity:
        name = "independent Gaussian noise"
    elif type(strategy) is strategies.Described:
        name = f"correlated Gaussian noise ({strategy.origin.rpartition('.')[2]})"
    else:
        said = own(strategy)
        name = f"correlated Gaussian noise ({said.words if said else type(strategy).__name__})"
    return f"{name} with noise multiplier {mechanism.noise_multiplier:.6g}, {cohorts_of(mechanism, privacy_unit)}"


def cohorts_of(mechanism: Mechanism, privacy_unit: str = "client") -> str:
    """Who takes part when in a mechanism's rounds, in words."""
    if mechanism.participation == parts.every_round(mechanism.rounds):
        return f"any {privacy_unit} in any round"
    return cohort_words(mechanism.participation, privacy_unit, mechanism.rounds)


def cohort_words(participation: parts.Participation, privacy_unit: str = "client", rounds: int | None = None) -> str:
    """Who takes part when, in words; epochs that end before the last of ``rounds`` rounds, or of unknown ones, are said to.

    Example:
        >>> cohort_words(parts.BallsInBinsSampling(bins=10), privacy_unit="example")
        'each example in one of 10 bins drawn at random, and so in one round of every 10'
    """
    unit = privacy_unit
    match participation:
        case parts.FixedEpochs(epochs, b):
            most, one, apart = ("one", "round", "") if epochs == 1 else (epochs, "rounds", f", whole multiples of {b} apart")
            first = f"of the first {count(epochs * b, 'round')}" if rounds is None or epochs * b < rounds else one
            return f"each {unit} in at most {most} {first}{apart}"
        case parts.SingleParticipation() | parts.MinSeparation(_, 1):
            return f"each {unit} in at most one round"
        case parts.MinSeparation(1, max_participations):
            return f"each {unit} in at most {max_participations} rounds"
        case parts.MinSeparation(min_separation, max_participations):
            return f"each {unit} in at most {max_participations} rounds at least {min_separation} apart"
        case parts.PoissonSampling(sampling_probability):
            return f"each {unit} in a round with probability {sampling_probability:g}"
        case parts.FixedSizeSampling(cohort_size, population):
            return f"cohorts of {cohort_size} of {population} {unit}s drawn at random"
        case parts.TruncatedPoissonSampling(sampling_probability, max_cohort_size, population):
            return (
                f"each {unit} in a round with probability {sampling_probability:g}, of {population} {unit}s at most "
                f"{max_cohort_size}"
            )
        case parts.CyclicPoissonSampling(sampling_probability, cycle_length):
            return (
                f"each {unit} in one of {cycle_length} groups of cyclic Poisson sampling, and in a round of its group with "
                f"probability {sampling_probability:g}"
            )
        case parts.BallsInBinsSampling(bins):
            return f"each {unit} in one of {bins} bins drawn at random, and so in one round of every {bins}"


DEVICES_KEEP = (
    Assumption(
        "each device keeps a record of the rounds that it was asked for, takes part in none that breaks the participation "
        "pattern, and without a record counts every earlier round as one that it may have taken part in",
        "devices",
    ),
    Assumption(
        "each person has one device, which runs one node at a time and has one record that nobody copies or sets back; of a "
        "device that does otherwise, or lies, nothing is promised",
        "operator",
    ),
)


def assumptions(
    participation: parts.Participation,
    neighboring_relation: NeighboringRelation | None = None,
    *,
    shares_of: int | None = None,
    privacy_unit: str = "client",
    pattern_kept_by: str = "ledger",
) -> tuple[Assumption, ...]:
    """The assumptions of the guarantee, under the relation in which it is stated, and who enforces each.

    Without a relation nothing is said of the two data sets that it compares. At least ``shares_of`` clients bring the noise
    along, where the server adds none; a pattern is kept by the ``"ledger"`` or by ``"devices"``.
    """
    unit = privacy_unit
    match participation:
        case parts.SingleParticipation() | parts.FixedEpochs() | parts.MinSeparation():
            kept = f"no {unit} breaks the participation pattern, or its own rounds are counted as they were"
            drawn: tuple[Assumption, ...] = DEVICES_KEEP if pattern_kept_by == "devices" else (Assumption(kept, "ledger"),)
        case parts.PoissonSampling() | parts.FixedSizeSampling() | parts.TruncatedPoissonSampling():
            drawn = (_COINS,)
        case parts.CyclicPoissonSampling():
            group = f"each {unit}'s group is fixed permanently by its name alone, whatever the data and the other {unit}s are"
            drawn = (_COINS, Assumption(group, "operator"))
        case parts.BallsInBinsSampling():
            one_bin = f"each {unit}'s bin is drawn once for the whole run, whatever the data and the other {unit}s are"
            drawn = (_COINS, Assumption(one_bin, "operator"))
    if neighboring_relation is not None:
        drawn = (*drawn, *compared(participation, neighboring_relation, unit))
    if shares_of is not None:
        added = (
            f"at least {shares_of} of the clients whose replies were counted in a released round added their share of noise, "
            "and nobody subtracts it; which clients answer does not depend on the data"
        )
        drawn = (*drawn, Assumption(added, "operator"))
    known = "" if neighboring_relation == "add-or-remove-one" else f"the number of {unit}s and "
    public = Assumption(f"{known}the classes of the data are public", "operator")
    return (*drawn, *(_ALWAYS_OF_EXAMPLES if unit == "example" else _ALWAYS), public)


def count(number: int, thing: str) -> str:
    """A number of things, in words."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def stopped(rounds: int) -> Assumption:
    """What is assumed if epsilon is of fewer rounds than were promised: that of a stop which looks at releases is larger.

    Source: Rogers, Roth, Ullman and Vadhan 2016, "Privacy Odometers and Filters", https://arxiv.org/abs/1605.08294.
    """
    text = f"that the run ended after {count(rounds, 'round')} was decided by nothing that its data or its releases showed"
    return Assumption(text, "operator")


def compared(
    participation: parts.Participation, neighboring_relation: NeighboringRelation, unit: str
) -> tuple[Assumption, ...]:
    """What the two data sets that the relation compares have in common, where that is not plain."""
    if neighboring_relation == "add-or-remove-one":
        who = one_unit(unit)
        # Who knows how many there are, to the last one, knows whether one is there.
        numbers = f"the cohorts' law, the fixed divisor of the sums and every number of {unit}s that is published"
        same = f"{numbers} are the same whether {who} is there or not"
        if isinstance(participation, parts.FixedSizeSampling | parts.TruncatedPoissonSampling):
            same = f"{same}; the {unit} that may be missing is one of the {participation.population}"
        return (Assumption(same, "operator"),)
    if neighboring_relation == "replace-one" and isinstance(
        participation, parts.CyclicPoissonSampling | parts.BallsInBinsSampling
    ):
        return (Assumption(f"{one_unit(unit)} that replaces another takes its name, and with it its rounds", "operator"),)
    return ()
