"""The cohort of a round.

Random cohorts are never filtered: to leave out a client for any reason breaks the sampling that amplification assumes. Cohorts
of a participation pattern are drawn from the clients that the ledger lets join, and the ledger checks them again.
"""

import hmac
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hubbub._util.prf import Uncopied, bits, derive, uniform_choice
from hubbub.errors import ParticipationError
from hubbub.ledger.ledger import Ledger
from hubbub.mechanism import participation as parts


@dataclass(frozen=True)
class CohortKeys(Uncopied):
    """The keys from which cohorts are drawn; secret in a real run.

    Args:
        lasting: The same for the whole run: for draws of the whole run, and for patterns, whose history the ledger keeps.
        fresh: For the draws of a round. A new one in each incarnation of a real run with random cohorts: otherwise two copies
            of a folder would draw the same cohorts, and their costs would not add up.
    """

    lasting: bytes = field(repr=False)
    fresh: bytes = field(repr=False)

    def renewed(self, participation: parts.Participation, key: bytes) -> "CohortKeys":
        """The keys of an incarnation with this key."""
        random = isinstance(participation, parts.RandomParticipation)
        return CohortKeys(self.lasting, derive(key, "cohorts")) if random else self


def draw(
    participation: parts.Participation,
    round_index: int,
    clients: Sequence[Hashable],
    size: float,
    *,
    keys: CohortKeys,
    ledger: Ledger,
) -> list[Hashable]:
    """The cohort of a round, of all clients in a fixed order: a function of the keys, which are secret in a real run.

    For a pattern it has ``size`` clients, and the ledger is asked who may join.

    Raises:
        ParticipationError: A client is listed twice, or too few may join.
    """
    listed = clients if isinstance(clients, range) else tuple(clients)
    require_distinct(listed)
    _require_counted(participation, len(clients))
    coins = derive(keys.fresh, "cohort", round_index)
    match participation:
        case parts.PoissonSampling(sampling_probability):
            chosen = _sampled(coins, len(clients), sampling_probability)
        case parts.TruncatedPoissonSampling(sampling_probability, max_cohort_size):
            chosen = _sampled(coins, len(clients), sampling_probability)
            if len(chosen) > max_cohort_size:
                chosen = [chosen[i] for i in uniform_choice(derive(coins, "kept"), len(chosen), max_cohort_size)]
        case parts.CyclicPoissonSampling(sampling_probability, cycle_length):
            # A draw for each client, those of other groups too: a client's draw does not depend on the other members.
            drawn = _sampled(coins, len(clients), sampling_probability)
            groups = _slots(derive(keys.lasting, "groups"), listed, cycle_length)
            chosen = [i for i in drawn if groups[i] == round_index % cycle_length]
        case parts.BallsInBinsSampling(bins):
            chosen = np.flatnonzero(_slots(derive(keys.lasting, "slots"), listed, bins) == round_index % bins).tolist()
        case parts.FixedSizeSampling(cohort_size):
            chosen = uniform_choice(coins, len(clients), cohort_size)
        case parts.FixedEpochs(rounds_per_epoch=rounds_per_epoch):
            # One secret order for the whole run assigns the clients to the rounds of an epoch.
            order = np.argsort(bits(derive(keys.lasting, "rotation"), len(clients)), kind="stable")
            chosen = sorted(order[round_index % rounds_per_epoch :: rounds_per_epoch].tolist())
        case parts.SingleParticipation() | parts.MinSeparation():
            cohort = eligible(round_index, clients, int(size), keys=keys, ledger=ledger)
            if len(cohort) < int(size):
                raise ParticipationError(
                    f"round {round_index}: {len(cohort)} of {len(clients)} clients may join, the cohort needs {int(size)}; the "
                    "promise is not relaxed: lower the cohort size, or plan fewer rounds"
                )
            return cohort
    return [clients[i] for i in chosen]


def _sampled(coins: bytes, clients: int, probability: float) -> list[int]:
    """The places of a Poisson sample."""
    # 53 of 64 random bits: the probability is never above the stated one, and within 2^-53 of it.
    limit = np.uint64(math.floor(probability * 2.0**53))
    return np.flatnonzero(bits(coins, clients) >> np.uint64(11) < limit).tolist()


@lru_cache(maxsize=1)
def _slots(key: bytes, clients: range | tuple[Hashable, ...], slots: int) -> npt.NDArray[np.int64]:
    """``(clients,)``: the permanent bin of each, from the key and its name as text alone."""
    numbers = (int.from_bytes(hmac.digest(key, str(client).encode(), "sha256")) for client in clients)
    # The remainder of 256 random bits: no slot is likelier than another by more than 2^-200.
    return np.array([number % slots for number in numbers], dtype=np.int64)


def eligible(round_index: int, clients: Sequence[Hashable], size: int, *, keys: CohortKeys, ledger: Ledger) -> list[Hashable]:
    """``size`` of the clients that the ledger lets join, or all of them if they are fewer.

    Clients with the fewest participations come first, ties by chance.
    """
    able, joined = ledger.standing(clients, round_index)
    places = np.flatnonzero(able)
    if len(places) > size:
        joined, ties = joined[places], bits(derive(keys.fresh, "cohort", round_index), len(clients))[places]
        # All with fewer participations than the last one taken, and a random choice of those with as many.
        most = np.partition(joined, size - 1)[size - 1] if size else -1
        fewer, same = np.flatnonzero(joined < most), np.flatnonzero(joined == most)
        wanted = size - len(fewer)
        kept = same[np.argpartition(ties[same], wanted - 1)[:wanted]] if wanted else same[:0]
        places = places[np.sort(np.concatenate([fewer, kept]))]
    return [clients[i] for i in places.tolist()]


def counts_on_list(participation: parts.Participation) -> bool:
    """Whether the promise assumes one list of clients for the whole run.

    Random cohorts are drawn from the list, and a rotation assigns places of the list. For other patterns the ledger knows by
    name who took part when.
    """
    return isinstance(participation, parts.RandomParticipation | parts.FixedEpochs)


@lru_cache(maxsize=1)
def require_distinct(clients: range | tuple[Hashable, ...]) -> None:
    """Refuse a client that is listed twice, also under names that are equal as text: it would be sampled twice as often."""
    places: dict[str, int] = {}
    for place, client in enumerate(() if isinstance(clients, range) else clients):
        first = places.setdefault(str(client), place)
        if first != place:
            raise ParticipationError(
                f"clients: {client!r}, at place {place}, is listed at place {first}, too, as {clients[first]!r}; a client that "
                "is listed twice takes part twice as often as its cost counts: list each once, under a name of its own as text"
            )


def _require_counted(participation: parts.Participation, clients: int) -> None:
    if (counted := getattr(participation, "population", clients)) != clients:
        raise ParticipationError(f"population = {counted}: there are {clients} clients")


def require_feasible(participation: parts.Participation, rounds: int, clients: int, size: float) -> None:
    """Refuse, before the first round, a pattern that this many clients cannot keep."""
    _require_counted(participation, clients)
    match participation:
        case parts.SingleParticipation() | parts.MinSeparation() if size < 1 or size != int(size):
            raise ParticipationError(
                f"expected_cohort_size = {size:g}: is the size of each cohort of a pattern; take a whole number of at least 1"
            )
        case parts.SingleParticipation() if rounds * size > clients:
            fewer = {"rounds": int(clients // size), "cohort_size": clients // rounds}
            lower = " or ".join(f"{name} to {most}" for name, most in fewer.items() if most)
            raise ParticipationError(
                f"pattern 'single': {rounds} rounds of {size:g} clients need {rounds * size:g} clients, there are {clients}; "
                f"choose another pattern{lower and f', or lower {lower}'}"
            )
        case parts.FixedEpochs(epochs, rounds_per_epoch) if epochs * rounds_per_epoch < rounds:
            raise ParticipationError(
                f"epochs = {epochs} of {rounds_per_epoch} rounds: the run has {rounds} rounds; raise epochs to "
                f"{-(-rounds // rounds_per_epoch)}, or lower rounds to {epochs * rounds_per_epoch}"
            )
        case parts.FixedEpochs(rounds_per_epoch=rounds_per_epoch) if rounds_per_epoch > clients:
            raise ParticipationError(
                f"rounds_per_epoch = {rounds_per_epoch}: there are {clients} clients, so that some rounds would have none"
            )
        case parts.MinSeparation(min_separation, max_participations):
            separation, most = min(min_separation, rounds), max_participations
        case _:
            return
    if separation * size > clients:
        raise ParticipationError(
            f"min_separation = {min_separation}: with cohorts of {size:g} it needs {separation * size:g} clients, there are "
            f"{clients}; lower cohort_size to {clients // separation} or min_separation to {int(clients // size)}"
        )
    if rounds * size > most * clients:
        raise ParticipationError(
            f"max_participations = {most}: {rounds} rounds of {size:g} clients need "
            f"{math.ceil(rounds * size / clients)} participations of each of {clients} clients"
        )
