"""Cohorts by coins of each kind, as they are drawn; and coins as they must not fall."""

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import pytest
from scipy import stats

from hubbub._util.prf import fresh_key
from hubbub.ledger import Ledger, Promise
from hubbub.mechanism import participation as parts
from hubbub.training import cohorts
from hubbub.training.cohorts import CohortKeys, draw
from twins.twin import Array, System, Twin, binomial, instead

ROUNDS, CLIENTS, PROBABILITY = 2000, 12, 0.3
# At most so many of a cohort, so many groups that take turns, and so many clients in so many bins.
MOST, GROUPS, BALLS, BINS = 4, 4, 6000, 7


def _joined(participation: parts.RandomParticipation, rounds: int, clients: int) -> Array:
    """Who takes part in which round, ``(rounds, clients)``."""
    key = fresh_key()
    ledger, keys = Ledger(Promise(rounds, None), bytes(32)), CohortKeys(key, key)
    joined = np.zeros((rounds, clients))
    for t in range(rounds):
        cohort = draw(participation, t, range(clients), 1, keys=keys, ledger=ledger)
        joined[t, [int(str(client)) for client in cohort]] = 1
    return joined


def run() -> Array:
    """Cohorts of Poisson coins."""
    return _joined(parts.PoissonSampling(PROBABILITY), ROUNDS, CLIENTS)


def rate(joined: Array) -> bool:
    """How often anybody takes part: a binomial count of 24,000 coins, exact."""
    return binomial(np.array([joined.sum()]), joined.size, PROBABILITY)


def client_rates(joined: Array) -> bool:
    """How often each client takes part: twelve binomial counts, exact."""
    return binomial(joined.sum(axis=0), ROUNDS, PROBABILITY)


def together(joined: Array) -> bool:
    """In how many rounds two clients meet: 66 binomial counts, exact."""
    return binomial((joined.T @ joined)[np.triu_indices(CLIENTS, 1)], ROUNDS, PROBABILITY**2)


def in_a_row(joined: Array) -> bool:
    """How often a client is in both rounds of a pair, of each client and of all: 13 binomial counts, exact."""
    twice = (joined[::2] * joined[1::2]).sum(axis=0)
    counts = ((twice, ROUNDS // 2), (twice.sum(keepdims=True), ROUNDS // 2 * CLIENTS))
    return any(binomial(count, trials, PROBABILITY**2) for count, trials in counts)


Heads = Callable[[bytes, int, float], Array]


def _tossed(change: Callable[[Heads, bytes, int, float], Array]) -> Callable[[pytest.MonkeyPatch], None]:
    def made(right: Callable[[bytes, int, float], list[int]]) -> Callable[[bytes, int, float], list[int]]:
        def heads(coins: bytes, clients: int, probability: float) -> Array:
            return np.isin(np.arange(clients), right(coins, clients, probability))

        return lambda *coin: np.flatnonzero(change(heads, *coin)).tolist()

    return instead(cohorts, "_sampled", made)


def _favoured(heads: Heads, coins: bytes, clients: int, probability: float) -> Array:
    fair, more = heads(coins, clients, probability), heads(coins, clients, 1.5 * probability)
    fair[0] = more[0]
    return fair


def _shared(heads: Heads, coins: bytes, clients: int, probability: float) -> Array:
    fair = heads(coins, clients, probability)
    fair[1] = fair[0]
    return fair


def _one_round(patch: pytest.MonkeyPatch) -> None:
    right = cohorts.derive
    patch.setattr(cohorts, "derive", lambda key, *name: right(key, *(0 if isinstance(part, int) else part for part in name)))


def _filtered(patch: pytest.MonkeyPatch) -> None:
    """Who took part in the last round is left out of the next."""
    before: list[Sequence[Hashable]] = [()]
    right = draw

    def drawn(*arguments: object, **keys: object) -> list[Hashable]:
        cohort = [client for client in right(*arguments, **keys) if client not in before[0]]  # type: ignore[arg-type]
        before[0] = cohort
        return cohort

    patch.setitem(_joined.__globals__, "draw", drawn)


def _full(patch: pytest.MonkeyPatch) -> None:
    """No more than four are asked."""
    right = draw
    patch.setitem(_joined.__globals__, "draw", lambda *arguments, **keys: right(*arguments, **keys)[:4])


def evenly_kept(joined: Array) -> bool:
    """How often each client is in a truncated cohort: twelve binomial counts, exact."""
    sizes = stats.binom(CLIENTS, PROBABILITY)
    chance = sum(sizes.pmf(k) * min(k, MOST) for k in range(CLIENTS + 1)) / CLIENTS
    return binomial(joined.sum(axis=0), ROUNDS, chance)


def in_turn(joined: Array) -> bool:
    """How often each client takes part where groups take turns: twelve binomial counts of a quarter of the rounds, exact."""
    return binomial(joined.sum(axis=0), ROUNDS // GROUPS, PROBABILITY)


def bins_filled(joined: Array) -> bool:
    """How many clients each bin has: seven binomial counts, exact."""
    return binomial(joined.sum(axis=1), BALLS, 1 / BINS)


def neighbours_in_bins(joined: Array) -> bool:
    """How many of disjoint pairs of neighbours share a bin: a binomial count, exact."""
    return binomial(np.array([(joined[:, ::2] * joined[:, 1::2]).sum()]), BALLS // 2, 1 / BINS)


def _slot_by(slot: Callable[[int, int], int]) -> Callable[[pytest.MonkeyPatch], None]:
    """A client's slot as another function of 256 random bits and of its number."""

    def breaks(patch: pytest.MonkeyPatch) -> None:
        right = cohorts._slots.__wrapped__

        def slots(key: bytes, clients: range, count: int) -> Array:
            drawn = (right(key, (client,), 2**62)[0] for client in clients)
            return np.array([slot(int(bits), int(str(client))) % count for bits, client in zip(drawn, clients, strict=True)])

        patch.setattr(cohorts, "_slots", slots)

    return breaks


def _first_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cohorts, "uniform_choice", lambda key, population, size: list(range(size)))


STATISTICS = {each.__name__: each for each in (rate, client_rates, together, in_a_row)}
TWINS = [
    Twin("a probability that is 10 % high", "rate", _tossed(lambda heads, coins, n, q: heads(coins, n, 1.1 * q))),
    Twin("one client whose coin is heavier", "client_rates", _tossed(_favoured)),
    Twin("two clients that share a coin", "together", _tossed(_shared)),
    Twin("the same coins in every round", "in_a_row", _one_round),
    Twin("who took part last is left out", "in_a_row", _filtered),
    Twin("no more than four are asked", "rate", _full),
]

SYSTEM = System(run, STATISTICS, TWINS)

_HEAVY = _tossed(lambda heads, coins, n, q: heads(coins, n, 2 * q))
TRUNCATED = System(
    lambda: _joined(parts.TruncatedPoissonSampling(PROBABILITY, MOST, CLIENTS), ROUNDS, CLIENTS),
    {"evenly_kept": evenly_kept},
    [
        Twin("of a cohort that is too large the first are kept", "evenly_kept", _first_kept),
        Twin("coins before a cohort is cut that are twice as heavy", "evenly_kept", _HEAVY),
    ],
)
CYCLIC = System(
    lambda: _joined(parts.CyclicPoissonSampling(PROBABILITY, GROUPS), ROUNDS, CLIENTS),
    {"in_turn": in_turn},
    [Twin("coins of a group that are twice as heavy", "in_turn", _HEAVY)],
)
BINS_FILLED = System(
    lambda: _joined(parts.BallsInBinsSampling(BINS), BINS, BALLS),
    {"bins_filled": bins_filled, "neighbours_in_bins": neighbours_in_bins},
    [
        Twin("three bits modulo seven", "bins_filled", _slot_by(lambda bits, client: bits % 8 % BINS)),
        Twin("a client's number modulo the bins", "neighbours_in_bins", _slot_by(lambda bits, client: client % BINS)),
        Twin("one slot for each pair", "neighbours_in_bins", _slot_by(lambda bits, client: hash(client // 2) * 31 % 97 % BINS)),
    ],
)
