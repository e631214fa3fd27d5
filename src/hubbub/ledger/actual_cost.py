"""The actual cost of a run, computed from its records, and what it promised for as many rounds.

The cost of random cohorts is computed round by round as they were drawn, never by who turned up: to condition on the draws
would undo the amplification. Of patterns the record names each client's rounds, so that the cost of exactly these can be
computed; the larger of that and of the promise so far may be stated.
"""

import math
from dataclasses import dataclass, replace

from hubbub.accounting.composition import certain_zcdp_rho, epsilon
from hubbub.accounting.events_of_mechanism import mechanism_events, one_release, shares_of
from hubbub.accounting.runs import Events, RunCharge, events_of
from hubbub.accounting.statement import PrivacyGuarantee, rounded_up
from hubbub.accounting.wording import Assumption, ranks_assumption
from hubbub.ledger.chain import Chain
from hubbub.ledger.history import History
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import RandomParticipation, every_round
from hubbub.mechanism.sensitivity import Sensitivity, of_sets
from hubbub.mechanism.strategies import OWN, Identity
from hubbub.mechanism.strategies.strategy import WithLeadingPart

__all__ = ["Breaches", "Recorded", "Spent", "breaches", "cost_of_run", "spent"]

# Up to this many rounds and participations the cost of every client's rounds is computed, beyond it that of clients that broke
# the pattern.
_MOST_ROUNDS = 2048
_MOST_PARTICIPATIONS = 10**6
# What follows it names a client.
_EXAMPLE = ", such as "


@dataclass(frozen=True)
class Recorded:
    """A run as its folder records it; ``alone`` if only its ledger was found, so that a cut-off end would go unnoticed."""

    name: str
    chain: Chain
    promise: Promise
    history: History
    alone: bool = False

    @property
    def rounds_left(self) -> int:
        """The rounds that it may still do; 0 after it was closed."""
        return 0 if self.history.closed else max(0, self.promise.rounds - len(self.history.rounds))

    @property
    def state(self) -> str:
        """``"closed"``, ``"interrupted"`` (with rounds left) or ``"finished"``."""
        return "closed" if self.history.closed else "interrupted" if self.rounds_left else "finished"


@dataclass(frozen=True)
class Spent:
    """What was promised for the recorded rounds, what happened, and where the two differ.

    Args:
        promised: For as many of the planned rounds as were recorded.
        happened: As recorded; its epsilon is infinite where no theorem bounds what happened.
        breaches: Each way in which the records do not keep the promise, in words.
    """

    promised: PrivacyGuarantee
    happened: PrivacyGuarantee
    breaches: tuple[str, ...]

    @property
    def worse(self) -> bool:
        """Whether more was spent than promised."""
        return self.happened.epsilon > self.promised.epsilon

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What may be stated: the larger of the two."""
        return self.happened if self.worse else self.promised

    def warnings(self) -> tuple[str, ...]:
        """What is worse than promised, in words; nothing where the promise was kept."""
        if not self.worse:
            return self.breaches
        promised, happened = rounded_up(self.promised.epsilon), rounded_up(self.happened.epsilon)
        return (f"worse than promised: promised epsilon {promised}, happened {happened}", *self.breaches)

    def public_warnings(self) -> tuple[str, ...]:
        """The same for those who may not know which client joined when."""
        return tuple(warning.rpartition(_EXAMPLE)[0] or warning for warning in self.warnings())


@dataclass(frozen=True)
class Breaches:
    """How the records of a run depart from its promise.

    Args:
        of_rounds: Each departure of a round or an incarnation, in words.
        of_clients: The same of clients that broke the pattern.
        clients: Their numbers.
        scale: The largest scale of updates over that of their noise.
        bounded: Whether a theorem bounds what happened.
    """

    of_rounds: tuple[str, ...]
    of_clients: tuple[str, ...] = ()
    clients: tuple[int, ...] = ()
    scale: float = 1.0
    bounded: bool = True

    @property
    def words(self) -> tuple[str, ...]:
        """Each departure, in words."""
        return (*self.of_rounds, *self.of_clients)


def spent(promise: Promise, history: History, delta: float | None = None) -> Spent:
    """What a run has spent, together with the earlier runs that it names.

    Args:
        promise: Of the run.
        history: What its records lead to; aborted rounds count.
        delta: By default the promise's.

    Raises:
        ValueError: A number out of range, or a mechanism that no theorem covers.

    Example:
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> promise = Promise(4, Mechanism(Identity(4), MinSeparation(2, 2), noise_multiplier=3.0))
        >>> found = spent(promise, History())
        >>> found.guarantee.epsilon, found.warnings()
        (0.0, ())
    """
    at = promise.delta if delta is None else delta
    begun = len(history.rounds)
    promised = promise.after(min(begun, promise.rounds), at)
    promised = replace(promised, assumptions=tuple(dict.fromkeys((*promised.assumptions, *_of_ranks(history)))))
    if promise.mechanism is None:
        return Spent(promised, promised, ())
    found = breaches(promise, history)
    events, sensitivity = _happened(promise, promise.mechanism, history, found)
    before = events_of(promise.earlier)
    # What follows a round beyond the promise is charged as the round is.
    measured = promise.evaluations(begun)
    evaluations = () if measured is None else mechanism_events(*measured)
    whole = None if events is None or before is None else (*before, *events, *evaluations)
    relation = promised.neighboring_relation
    if whole == promised.events:
        return Spent(promised, replace(promised, rounds=begun), found.words)
    moved = 2 if relation == "replace-one" else 1
    broken = ", as promised and not kept" if found.words else ""
    happened = replace(
        promised,
        mechanism=f"{promised.mechanism}{broken}",
        cohorts=f"{promised.cohorts}{broken}",
        epsilon=math.inf if whole is None else epsilon(whole, at, relation, promise.accountant),
        zcdp_rho=certain_zcdp_rho(whole, relation),
        l2_sensitivity=promised.l2_sensitivity if sensitivity is None else sensitivity.stated(found.scale * moved),
        sensitivity_exact=promised.sensitivity_exact if sensitivity is None else sensitivity.exact,
        events=whole,
        rounds=begun,
    )
    return Spent(promised, happened, found.words)


def _of_ranks(history: History) -> tuple[Assumption, ...]:
    """What is assumed of the processes that shared rounds, if there were several."""
    most = max((epoch.ranks for epoch in history.epochs), default=1)
    return (ranks_assumption(most),) if most > 1 else ()


def cost_of_run(chain: Chain, promise: Promise, history: History) -> RunCharge:
    """What a run has cost by itself, for an account of several or as an earlier run of the next."""
    alone = spent(replace(promise, earlier=()), history).guarantee
    return RunCharge(
        first=chain.hashes[0],
        head=chain.head,
        rounds=len(history.rounds),
        planned=promise.rounds,
        events=alone.events,
        neighboring_relation=alone.neighboring_relation,
        relations=alone.relations,
        privacy_unit=promise.privacy_unit,
        simulation=promise.simulation,
        further=(*promise.assumed, *_of_ranks(history)),
        not_covered=promise.not_covered,
        setting=promise.setting,
    )


def breaches(promise: Promise, history: History) -> Breaches:
    """Each departure of a run's records from its promise; without any, the run costs at most what was promised."""
    mechanism, rounds = promise.mechanism, history.rounds
    boundless, others = list[str](), list[str]()
    if len(rounds) > promise.rounds:
        others.append(f"{len(rounds)} rounds were begun, {promise.rounds} were promised")
    if mechanism is None:
        return Breaches(tuple(others))
    if len(rounds) > mechanism.rounds and type(mechanism.strategy) is not Identity:
        boundless.append(f"the correlated noise has {mechanism.rounds} rounds")
    for number, epoch in enumerate(history.epochs):
        if promise.simulation and epoch.key is not None:
            others.append(f"incarnation {number} of a simulation has a key")
        elif not promise.simulation and epoch.key is None:
            boundless.append(f"incarnation {number} has no key, so that its noise came from a known seed")
    if promise.lists_clients and (unnamed := [t for t, entry in enumerate(rounds) if entry.clients is None]):
        boundless.append(f"rounds {str(unnamed)[:200]} name no cohort")
    if (fixed := promise.terms.clip_norm) is not None:
        norms = {t: entry.clip_norm for t, entry in enumerate(rounds) if entry.clip_norm != fixed}
        boundless += [f"round {t} was not clipped" for t, norm in norms.items() if norm is None]
        others += [
            f"round {t} was clipped to {norm:g}, {fixed:g} was promised" for t, norm in norms.items() if norm is not None
        ]
    # The noise of a round was of at least the smaller of the two scales.
    scale = max([1.0, *((entry.clip_norm or fixed) / fixed for entry in rounds)]) if fixed else 1.0
    joined = history.participations
    clients = joined.breaking(mechanism.participation)
    who = f"{len(clients)} {promise.privacy_unit}s broke {mechanism.participation}"
    of_clients = [f"{who}{_EXAMPLE}{joined.tag(c)} in rounds {str(list(joined.rounds_of(c)))[:200]}" for c in clients[:1]]
    unbounded = [f"{reason}; nothing bounds what that costs" for reason in boundless]
    return Breaches((*unbounded, *others), tuple(of_clients), tuple(clients), scale, not boundless)


def _happened(
    promise: Promise, mechanism: Mechanism, history: History, found: Breaches
) -> tuple[Events | None, Sensitivity | None]:
    """What the recorded rounds cost, without earlier runs; of patterns also the sensitivity to what each client really did."""
    rounds = len(history.rounds)
    if not found.bounded:
        return None, None
    if rounds == 0:
        return (), None
    if rounds > mechanism.rounds:
        # Independent noise: further rounds cost what those before them did.
        mechanism = replace(mechanism, strategy=Identity(rounds))
    if isinstance(mechanism.participation, RandomParticipation):
        if found.clients:
            # A draw that a record contradicts amplifies nothing: any client may have been in any round.
            mechanism = replace(mechanism, participation=every_round(rounds))
        drawn = mechanism_events(mechanism, rounds)
        return tuple((replace(event, noise_multiplier=event.noise_multiplier / found.scale), n) for event, n in drawn), None
    # What the ledger has no list of was as promised, by the word of those who keep it.
    real = _sensitivity(mechanism, history, found) if promise.lists_clients else mechanism.sensitivity_after(rounds)
    if mechanism.shares is not None:
        # Of independent noise the squared sensitivity is the number of a client's rounds.
        times = round(real.value**2)
        event = shares_of(mechanism, mechanism.shares)
        least = max(1, math.floor(event.share_stddev / found.scale))
        event = replace(event, noise_multiplier=event.noise_multiplier / found.scale, share_stddev=least)
        return (((event, times),) if times else ()), real
    return (((one_release(mechanism.mu_squared(real, found.scale)), 1),) if real.value else ()), real


def _sensitivity(mechanism: Mechanism, history: History, found: Breaches) -> Sensitivity:
    """The sensitivity of C to the rounds that each client joined, or a bound on it."""
    rounds = len(history.rounds)
    kept = mechanism.sensitivity_after(rounds)
    if mechanism.rounds > _MOST_ROUNDS:
        # Columns add up to at most the sum of their norms.
        most = max((int(history.participations.counts[client]) for client in found.clients), default=0)
        broken = Sensitivity(most * mechanism.column_norm, False, "the sum of the column norms")
        return max(kept, broken, key=lambda s: s.value)
    if not found.clients and history.participations.total > _MOST_PARTICIPATIONS:
        return kept
    sets = history.participations.sets()
    strategy = mechanism.strategy
    if type(strategy) is Identity:
        most = max(map(len, sets), default=0)
        real = Sensitivity(math.sqrt(most), True, "the most rounds of one client", square=most)
    else:
        leading = type(strategy) in OWN and isinstance(strategy, WithLeadingPart)
        real = of_sets((strategy.leading(rounds) if leading else strategy).matrix(), sets)  # type: ignore[attr-defined]
    # What keeps the pattern is covered by its bound, which may be the tighter one.
    return real if found.clients else min(real, kept, key=lambda s: s.value)
