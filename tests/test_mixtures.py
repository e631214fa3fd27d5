"""Mixtures of Gaussians, and groups of units that are sampled: what is stated against definitions, never below them."""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from hockey_stick import Means, contour_epsilon, exact_mixture_delta, mixture_delta, poisson_cohorts, sums
from hubbub import accounting
from hubbub.accounting import RELATIONS, MixtureOfGaussians, PoissonSampled, group_events, pld

ADD = "add-or-remove-one"


def random_mixture(r: np.random.Generator) -> MixtureOfGaussians:
    """Some norms, which may be zero or equal, with chances down to 1e-15, under noise from 1/20 to 500."""
    parts = int(r.integers(1, 6))
    norms = np.choose(r.choice(3, parts, p=[0.3, 0.2, 0.5]), [np.zeros(parts), np.ones(parts), r.uniform(0, 2, parts)])
    norms[0] = norms[0] if norms.max() else 1.0
    chances = np.maximum(r.dirichlet(np.full(parts, 10 ** r.uniform(-0.7, 1))), 10 ** r.uniform(-15, -3))
    chances /= chances.sum()
    return MixtureOfGaussians(float(10 ** r.uniform(-1.3, 2.7)), tuple(norms.tolist()), tuple(chances.tolist()))


def random_epsilon(r: np.random.Generator, event: MixtureOfGaussians) -> float:
    """Near 0, among the likely losses, far out, or just below the largest loss that a release without the unit can have."""
    top = max(event.sensitivities) / event.noise_multiplier
    still = sum(p for p, s in zip(event.probabilities, event.sensitivities, strict=True) if s == 0)
    edge = -math.log(still) * (1 - 10 ** r.uniform(-17, -1)) if still else 0.0
    far = min(r.uniform(0, 1) * top * (top / 2 + 8), 690.0)
    return float((0.0, r.uniform(0, 6) * min(top, 1), far, max(0.0, edge))[r.choice(4, p=[0.05, 0.45, 0.4, 0.1])])


@pytest.mark.parametrize("cases", [100, pytest.param(20_000, marks=pytest.mark.slow)], ids=["few", "many"])
def test_acc_11_one_release_of_a_mixture_is_never_stated_below_60_digits_and_hardly_above(cases: int) -> None:
    r, close = np.random.default_rng(23), 0
    for number in range(cases):
        event, relation = random_mixture(r), RELATIONS[r.integers(3)]
        epsilon = random_epsilon(r, event)
        stated = accounting.delta([(event, 1)], epsilon, relation)
        law = (event.sensitivities, event.probabilities, event.noise_multiplier)
        true = exact_mixture_delta(*law, epsilon, relation)
        assert stated >= true, (event, relation, epsilon)
        # What two masses lose by their subtraction is all that is added.
        close += stated <= true * (1 + 1e-9)
        if number % 10 == 0:
            delta = float(10 ** r.uniform(-12, -1))
            paid = accounting.epsilon([(event, 1)], delta, relation)
            assert exact_mixture_delta(*law, paid, relation) <= delta
    assert close > 0.9 * cases


def after_two(event: MixtureOfGaussians, epsilon: float, relation: str) -> float:
    """Delta of two releases: the mean over the first one's loss of the delta of the second, by definition.

    A grid for the first output; for the second the set where what is left of epsilon is exceeded, by bisection.
    """
    s, p = np.array(event.sensitivities) / event.noise_multiplier, np.array(event.probabilities)
    mirrored = relation == "replace-one"

    def loss(x: np.ndarray) -> np.ndarray:
        up, down = (np.logaddexp.reduce(np.log(p) + sign * np.multiply.outer(x, s) - s**2 / 2, axis=-1) for sign in (1, -1))
        return up - down if mirrored else up

    def argument(wanted: np.ndarray) -> np.ndarray:
        low, high = np.full(len(wanted), -400.0), np.full(len(wanted), 400.0)
        for _ in range(60):
            middle = (low + high) / 2
            short = loss(middle) < wanted
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        return high

    x = np.linspace(-10, s.max() + 10, 2001) if not mirrored else np.linspace(-s.max() - 10, s.max() + 10, 2001)
    first = np.exp(-((x[:, None] - s) ** 2) / 2) @ p / math.sqrt(2 * math.pi)
    base = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    rest = epsilon - loss(x)
    at = argument(rest)
    present = ndtr(s - at[:, None]) @ p
    absent = np.logaddexp.reduce(np.log(p) + log_ndtr(-s - at[:, None]), axis=-1) if mirrored else log_ndtr(-at)
    there = float(first @ np.maximum(0, present - np.exp(np.minimum(rest + absent, 700)))) * (x[1] - x[0])
    if mirrored:
        return there
    rest = epsilon + loss(x)
    at = argument(-rest)
    present = np.logaddexp.reduce(np.log(p) + log_ndtr(at[:, None] - s), axis=-1)
    gone = float(base @ np.maximum(0, ndtr(at) - np.exp(np.minimum(rest + present, 700)))) * (x[1] - x[0])
    return max(there, gone)


@pytest.mark.slow
@pytest.mark.parametrize("cases", [8, pytest.param(400, marks=pytest.mark.slow)], ids=["few", "many"])
def test_two_releases_of_a_mixture_cost_what_their_definition_says_and_never_less(cases: int) -> None:
    r = np.random.default_rng(7)
    for _ in range(cases):
        event, relation, delta = random_mixture(r), RELATIONS[r.integers(3)], float(10 ** r.uniform(-8, -1))
        event = MixtureOfGaussians(max(event.noise_multiplier, 0.3), event.sensitivities, event.probabilities)
        stated = accounting.epsilon([(event, 2)], delta, relation)
        assert after_two(event, stated, relation) <= delta * (1 + 1e-6), (event, relation, delta)
        nearby = stated - 2 * pld.tolerance(stated)
        assert stated < 1e-5 or after_two(event, nearby, relation) > delta, (event, relation, delta, stated)
        epsilon = float(r.uniform(0, 4) * min(1, max(event.sensitivities) / event.noise_multiplier))
        assert accounting.delta([(event, 2)], epsilon, relation) >= after_two(event, epsilon, relation) * (1 - 1e-6) - 1e-13


def explicit_group_delta(
    values: Sequence[float], others: Sequence[float], q: float, z: float, relation: str, eps: float
) -> float:
    """Delta of one round for a group, of its data and the others', cohort by cohort: all of it is there or none."""
    missing = {"zero-out": [0.0] * len(values), "replace-one": [-v for v in values], ADD: []}[relation]

    def law(data: Sequence[float]) -> Means:
        chances = defaultdict[float, float](float)
        for chance, total in sums(data, poisson_cohorts(len(data), q)):
            chances[round(total, 9) / z] += chance
        return [(chance, mean) for mean, chance in chances.items()]

    there, gone = law([*values, *others]), law([*missing, *others])
    return max(mixture_delta(there, gone, eps), mixture_delta(gone, there, eps))


def test_acc_8_two_clients_that_act_as_one_cost_more_than_twice_the_sensitivity_where_cohorts_are_random() -> None:
    # One of the two is sampled more often than one is: δ = 0.015 is above q and below 1 − (1 − q)².
    assert accounting.epsilon([(PoissonSampled(0.1 / 2, 0.01), 1)], 0.015, ADD) == 0
    stated = accounting.epsilon(group_events([(PoissonSampled(0.1, 0.01), 1)], 2), 0.015, ADD)
    assert stated == pytest.approx(38.2, abs=0.05)
    assert explicit_group_delta([1, 1], [], 0.01, 0.1, ADD, stated) == pytest.approx(0.015, rel=1e-6)


@pytest.mark.parametrize("cases", [40, pytest.param(20_000, marks=pytest.mark.slow)], ids=["few", "many"])
def test_what_a_sampled_group_pays_is_attained_by_equal_units_and_never_exceeded(cases: int) -> None:
    r = np.random.default_rng(23)
    for _ in range(cases):
        k, z, q = int(r.integers(1, 5)), math.exp(r.uniform(-1.5, 2)), float(r.uniform(0.01, 1))
        relation, eps = RELATIONS[r.integers(3)], float(r.uniform(0, 3 / z))
        stated = accounting.delta(group_events([(PoissonSampled(z, q), 1)], k), eps, relation)
        # The reference is below the truth, if anything: of a set that it takes for the worst.
        true = explicit_group_delta([1.0] * k, [], q, z, relation, eps)
        assert true * (1 - 1e-9) - 1e-15 <= stated <= true * (1 + 1e-6) + 1e-12
        values, others = r.uniform(-1, 1, k).round(2).tolist(), r.uniform(-1, 1, 1).round(2).tolist()
        assert explicit_group_delta(values, others, q, z, relation, eps) <= stated * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize(("k", "z", "q", "rounds"), [(2, 1.5, 0.1, 300), (8, 3.0, 0.1, 300)])
def test_composed_rounds_of_a_group_cost_what_a_contour_integral_says(k: int, z: float, q: float, rounds: int) -> None:
    x = np.linspace(-14, 14 + k / z, 1001)
    weights = [math.comb(k, n) * q**n * (1 - q) ** (k - n) for n in range(k + 1)]
    there = sum(w * np.exp(-((x - n / z) ** 2) / 2) for n, w in enumerate(weights)) / math.sqrt(2 * math.pi)
    gone = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    loss = np.log(there / gone)
    for delta in (1e-3, 1e-8):
        stated = accounting.epsilon(group_events([(PoissonSampled(z, q), rounds)], k), delta, ADD)
        pairs = [(there, loss), (gone, -loss)]
        true = max(contour_epsilon([pair], x[1] - x[0], rounds, delta) for pair in pairs)
        assert true * (1 - 1e-7) <= stated <= true + 1e-4 * (1 + true)


@pytest.mark.slow
def test_a_group_of_one_pays_what_one_unit_does_and_each_more_makes_it_dearer() -> None:
    r = np.random.default_rng(5)
    for _ in range(8):
        z, q, relation = math.exp(r.uniform(-0.5, 2)), float(10 ** r.uniform(-3, 0)), RELATIONS[r.integers(3)]
        rounds, delta = int(10 ** r.uniform(0, 3)), float(10 ** r.uniform(-9, -2))
        one = [(PoissonSampled(z, q), rounds)]
        assert group_events(one, 1) == one
        costs = [accounting.epsilon(group_events(one, k), delta, relation) for k in (1, 2, 3, 6)]
        assert costs == sorted(costs)
        alone = [(MixtureOfGaussians(z, (0, 1), (1 - q, q)), rounds)]
        assert accounting.epsilon(alone, delta, relation) == pytest.approx(costs[0], rel=1e-11, abs=2e-4 * (rounds > 1))
        if relation != "replace-one" and rounds < 30:
            # The general bound, from one unit's profile.
            unit = partial(accounting.epsilon, one, neighboring_relation=relation)
            assert costs[1] <= accounting.group_epsilon(unit, delta, 2) + 1e-3
