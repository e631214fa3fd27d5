"""What mechanisms are charged, against the mixtures of Gaussians that they release, by the definition of delta."""

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
from scipy import stats

from hubbub import Mechanism, accounting, factorization
from hubbub._util.checks import Array
from hubbub.accounting.events import RELATIONS, BallsInBins, FixedSizeSampled, Gaussian, PoissonSampled, TruncatedPoissonSampled
from hubbub.accounting.events_of_mechanism import default_relation, mechanism_events, stated_relation
from hubbub.errors import ConfigError
from hubbub.mechanism import participation as parts
from hubbub.mechanism import strategies as forms
from hubbub.mechanism.sensitivity import of_matrix
from hubbub.mechanism.workloads import prefix_sum
from small_runs import PATTERNS, SAMPLED, Foreign

ROUNDS = 6


def delta_shown(mixture: Mapping[tuple[float, ...], float], other: Mapping[tuple[float, ...], float], epsilon: float) -> float:
    """∫ max(0, P − e^ε Q) of two mixtures of unit Gaussians, on a grid in the space of their means."""
    means = np.array([*mixture, *other])
    span = np.linalg.svd(means)[2][: max(1, np.linalg.matrix_rank(means))]
    placed = means @ span.T
    points = 4001 if len(span) == 1 else 401 if len(span) == 2 else 121
    axes = [np.linspace(at.min() - 7, at.max() + 7, points) for at in placed.T]
    cell = float(np.prod([axis[1] - axis[0] for axis in axes]))

    def density(weights: list[float], centres: Array) -> Array:
        total = np.zeros([points] * len(axes))
        for weight, centre in zip(weights, centres, strict=True):
            factors = [stats.norm.pdf(axis - c) for axis, c in zip(axes, centre, strict=True)]
            product = factors[0]
            for factor in factors[1:]:
                product = np.multiply.outer(product, factor)
            total += weight * product
        return total

    p = density([*mixture.values()], placed[: len(mixture)])
    q = density([*other.values()], placed[len(mixture) :])
    return float(np.maximum(0.0, p - np.exp(epsilon) * q).sum() * cell)


def subsampled(C: Array, rounds: list[int], probability: float, stddev: float) -> dict[tuple[float, ...], float]:
    """What a unit of these rounds moves C·x to, coin by coin, in units of the noise."""
    mixture: dict[tuple[float, ...], float] = {}
    for coins in itertools.product((0, 1), repeat=len(rounds)):
        mean = tuple(sum((c * C[:, r] for c, r in zip(coins, rounds, strict=True)), np.zeros(len(C))) / stddev)
        chance = float(np.prod([probability if c else 1 - probability for c in coins]))
        mixture[mean] = mixture.get(mean, 0.0) + chance
    return mixture


NOTHING = {(0.0,) * ROUNDS: 1.0}
BANDED = {
    "identity": forms.Identity(ROUNDS),
    "square root, 2 bands": forms.toeplitz.square_root(ROUNDS, 2),
    "normalized": forms.NormalizedToeplitz(ROUNDS, (1.0, 0.6)),
    "banded of least error": factorization.banded.optimize(prefix_sum(ROUNDS), 2).strategy,
    "from outside": Foreign(forms.toeplitz.square_root(ROUNDS, 2).matrix()),
    "negative": forms.Dense(np.eye(ROUNDS) * 2 - np.eye(ROUNDS, k=-1)),
}


@pytest.mark.parametrize("name", BANDED)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_cyclic_cohorts_of_banded_noise_cost_at_least_what_their_mixture_shows(name: str, direction: str) -> None:
    mechanism = Mechanism(BANDED[name], parts.CyclicPoissonSampling(0.3, 2), 0.8)
    ((event, count),) = mechanism_events(mechanism, ROUNDS)
    assert (event, count) == (PoissonSampled(0.8, 0.3), 3)
    C = mechanism.strategy.matrix()
    for delta, rounds in itertools.product((0.03, 0.003), ([0, 2, 4], [1, 3, 5])):
        epsilon = accounting.epsilon([(event, count)], delta, "add-or-remove-one")
        with_unit = subsampled(C, rounds, 0.3, mechanism.stddev)
        pair = (with_unit, NOTHING) if direction == "remove" else (NOTHING, with_unit)
        assert delta_shown(*pair, epsilon) <= delta * (1 + 2e-3)


@pytest.mark.parametrize("name", ["identity", "normalized"])
def test_with_columns_of_one_norm_they_cost_no_more_than_that(name: str) -> None:
    mechanism = Mechanism(BANDED[name], parts.CyclicPoissonSampling(0.3, 2), 0.8)
    epsilon = accounting.epsilon(mechanism_events(mechanism, ROUNDS), 0.003, "add-or-remove-one")
    mixture = subsampled(mechanism.strategy.matrix(), [0, 2, 4], 0.3, mechanism.stddev)
    assert delta_shown(mixture, NOTHING, epsilon - 0.01) > 0.003


def test_more_bands_than_groups_would_cost_more_than_the_composition_of_samples() -> None:
    mechanism = Mechanism(forms.BandedToeplitz(ROUNDS, (1.0, 0.9, 0.9, 0.9)), parts.CyclicPoissonSampling(0.5, 2), 1.0)
    claimed = accounting.epsilon([(PoissonSampled(1.0, 0.5), 3)], 0.01, "add-or-remove-one")
    mixture = subsampled(mechanism.strategy.matrix(), [0, 2, 4], 0.5, mechanism.stddev)
    assert delta_shown(mixture, NOTHING, claimed) > 0.015
    with pytest.raises(ConfigError, match=r"4 bands, cycle_length = 2.*at most 2 bands, or a cycle_length of at least 4"):
        mechanism_events(mechanism, ROUNDS)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_the_first_rounds_of_bins_cost_at_least_what_their_mixture_shows(rounds: int, direction: str) -> None:
    bins, z = 3, 0.9
    event = mechanism_events(Mechanism(forms.Identity(ROUNDS), parts.BallsInBinsSampling(bins), z), rounds)
    mixture: dict[tuple[float, ...], float] = {}
    for slot in range(bins):
        mean = tuple(np.eye(ROUNDS)[slot] / z) if slot < rounds else (0.0,) * ROUNDS
        mixture[mean] = mixture.get(mean, 0.0) + 1 / bins
    for delta in (0.05, 0.005):
        epsilon = accounting.epsilon(event, delta, "add-or-remove-one")
        pair = (mixture, NOTHING) if direction == "remove" else (NOTHING, mixture)
        assert delta_shown(*pair, epsilon) <= delta * (1 + 2e-3)


def test_fixed_size_cohorts_under_add_or_remove_cost_what_a_displaced_unit_shows() -> None:
    once = Mechanism(forms.Identity(1), parts.FixedSizeSampling(1, 10), 1.0)
    guarantee = accounting.guarantee(once, 1e-3, neighboring_relation="add-or-remove-one")
    # All others at -1: the sum is -1, or 1 where the unit is drawn in the place of another.
    with_unit, without = {(1.0,): 0.1, (-1.0,): 0.9}, {(-1.0,): 1.0}
    assert delta_shown(with_unit, without, guarantee.epsilon) == pytest.approx(1e-3, rel=1e-2)
    assert delta_shown(with_unit, without, guarantee.epsilon) <= 1e-3 * (1 + 1e-4)


def test_each_participation_is_charged_by_its_event() -> None:
    z = 1.3
    expected = [
        (PoissonSampled(z, 1 / 3), 4),
        (FixedSizeSampled(z, 4, 12), 4),
        (TruncatedPoissonSampled(z, 1 / 3, 4, 12), 4),
        (PoissonSampled(z, 0.7), 2),
        (BallsInBins(z, 3, 4), 1),
        (Gaussian(z), 1),
    ]
    for participation, event in zip([*SAMPLED, PATTERNS[0]], expected, strict=True):
        mechanism = Mechanism(forms.Identity(ROUNDS), participation, z)
        assert mechanism_events(mechanism, 4) == (event,)
        assert mechanism_events(mechanism, 0) == ()


@pytest.mark.parametrize(("rounds", "turns"), [(1, 1), (2, 1), (3, 2), (5, 3), (6, 3)])
def test_a_cycle_that_was_begun_is_charged(rounds: int, turns: int) -> None:
    mechanism = Mechanism(forms.Identity(ROUNDS), parts.CyclicPoissonSampling(0.3, 2), 1.0)
    assert mechanism_events(mechanism, rounds) == ((PoissonSampled(1.0, 0.3), turns),)


@pytest.mark.parametrize("name", [*BANDED, "square root", "inverse, of two bands", "stamped", "dense", "tree", "Fourier"])
def test_without_amplification_a_slot_is_a_rotation_and_a_coin_may_fall_in_every_round(name: str) -> None:
    strategy = BANDED.get(name) or CORRELATED[name]
    epochs = strategy.sensitivity(parts.FixedEpochs(3, 2)).value
    for slots in (parts.CyclicPoissonSampling(0.1, 2), parts.BallsInBinsSampling(2)):
        assert strategy.sensitivity(slots).value == pytest.approx(epochs, rel=1e-12)
    for coins in (parts.PoissonSampling(0.1), parts.FixedSizeSampling(2, 9), parts.TruncatedPoissonSampling(0.1, 2, 9)):
        assert strategy.sensitivity(coins).value == pytest.approx(of_matrix(strategy.matrix(), parts.MinSeparation(1, 6)).value)


CORRELATED: dict[str, forms.Strategy] = {
    "square root": forms.toeplitz.square_root(ROUNDS, 3),
    "described by columns": forms.Columns(ROUNDS, 3, 1.0),
    "inverse, of two bands": forms.BandedInverse(ROUNDS, (1.0, -0.5)),
    "stamped": forms.Stamped(np.tril(np.ones((3, 3))), ROUNDS),
    "dense": forms.Dense(np.tril(np.ones((ROUNDS, ROUNDS)))),
    "tree": forms.BinaryTree(ROUNDS),
    "Fourier": forms.Fourier(ROUNDS),
    "looks ahead": Foreign(np.eye(ROUNDS) + np.eye(ROUNDS, k=1)),
    "tall": Foreign(np.vstack([np.eye(ROUNDS), np.eye(ROUNDS)])),
}


@pytest.mark.parametrize("participation", SAMPLED, ids=repr)
@pytest.mark.parametrize("name", CORRELATED)
def test_acc_8_what_no_theorem_covers_is_refused_with_the_next_step(name: str, participation: parts.Participation) -> None:
    mechanism = Mechanism(CORRELATED[name], participation, 1.0)
    for rounds in (0, ROUNDS):
        with pytest.raises(ConfigError, match=rf"strategy = {type(mechanism.strategy).__name__} with .*; use "):
            mechanism_events(mechanism, rounds)


def test_a_client_of_one_round_is_amplified_under_any_triangular_strategy() -> None:
    mechanism = Mechanism(CORRELATED["dense"], parts.CyclicPoissonSampling(0.2, ROUNDS), 1.0)
    assert mechanism_events(mechanism, ROUNDS) == ((PoissonSampled(1.0, 0.2), 1),)


def test_fil_2_a_matrix_without_a_column_for_each_round_is_refused() -> None:
    class OneStamp(Foreign):
        rounds = property(lambda self: 10 * len(self.C), lambda self, rounds: None)  # type: ignore[assignment]

    mechanism = Mechanism(OneStamp(np.eye(3)), parts.MinSeparation(1, 30), 1.0)
    words = r"OneStamp.matrix\(\) has shape \(3, 3\): must have a column for each of its 30 rounds"
    doors = (lambda: mechanism.sensitivity, lambda: mechanism.stddev, lambda: accounting.guarantee(mechanism, 1e-5, rounds=2))
    for ask in doors:
        with pytest.raises(ValueError, match=words):
            ask()


@pytest.mark.parametrize("participation", [*SAMPLED, *PATTERNS], ids=repr)
def test_acc_9_each_relation_is_stated_or_refused(participation: parts.Participation) -> None:
    drawn_by_coins = isinstance(participation, parts.RandomParticipation)
    for relation in RELATIONS:
        if drawn_by_coins or relation != "add-or-remove-one":
            assert stated_relation(participation, relation) == relation
            continue
        with pytest.raises(ValueError, match=r"'add-or-remove-one': not offered.*'zero-out' or 'replace-one', or draw random"):
            stated_relation(participation, relation)
    own_coins = drawn_by_coins and not isinstance(participation, parts.FixedSizeSampling)
    assert default_relation(participation) == ("add-or-remove-one" if own_coins else "zero-out")
