"""Mixtures of Gaussians, and groups of units that are sampled: what is stated against definitions, never below them."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from hockey_stick import attained, contour_epsilon, output_density, poisson_cohorts
from hubbub import accounting
from hubbub.accounting import (
    RELATIONS,
    BallsInBins,
    DiscreteGaussianShares,
    FixedSizeSampled,
    Gaussian,
    MixtureOfGaussians,
    PoissonSampled,
    TreeAggregation,
    TruncatedPoissonSampled,
    group_events,
)

ADD = "add-or-remove-one"


def explicit_group_delta(
    values: Sequence[float], others: Sequence[float], q: float, z: float, relation: str, eps: float
) -> float:
    """Delta of one round for a group, of its data and the others', cohort by cohort: all of it is there or none."""
    missing = {"zero-out": [0.0] * len(values), "replace-one": [-v for v in values], ADD: []}[relation]
    x = np.linspace(-len(values) - len(others) - 12 * z, len(values) + len(others) + 12 * z, 40_001)
    there, not_there = (
        output_density(x, data, poisson_cohorts(len(data), q), z) for data in ([*values, *others], [*missing, *others])
    )
    both = [attained(p, r, x[1] - x[0], np.array([eps]))[0] for p, r in ((there, not_there), (not_there, there))]
    return float(max(both))


def test_two_clients_that_act_as_one_cost_more_than_twice_the_sensitivity_where_cohorts_are_random() -> None:
    # One of the two is sampled more often than one is: δ = 0.015 is above q and below 1 − (1 − q)².
    assert accounting.epsilon([(PoissonSampled(0.1 / 2, 0.01), 1)], 0.015, ADD) == 0
    stated = accounting.epsilon(group_events([(PoissonSampled(0.1, 0.01), 1)], 2), 0.015, ADD)
    assert stated == pytest.approx(38.2, abs=0.05)
    assert explicit_group_delta([1, 1], [], 0.01, 0.1, ADD, stated) == pytest.approx(0.015, rel=1e-6)


@pytest.mark.parametrize("cases", [30, pytest.param(20_000, marks=pytest.mark.slow)], ids=["few", "many"])
def test_what_a_sampled_group_pays_is_attained_by_equal_units_and_never_exceeded(cases: int) -> None:
    r = np.random.default_rng(23)
    for _ in range(cases):
        k, z, q, relation = (
            int(r.integers(1, 5)),
            math.exp(r.uniform(-1.5, 2)),
            float(r.uniform(0.01, 1)),
            RELATIONS[r.integers(3)],
        )
        eps = float(r.uniform(0, 3 / z))
        stated = accounting.delta(group_events([(PoissonSampled(z, q), 1)], k), eps, relation)
        # The others hide nothing where they are zero; a grid is good to so much.
        assert explicit_group_delta([1.0] * k, [], q, z, relation, eps) == pytest.approx(stated, rel=1e-5, abs=1e-12)
        values, others = r.uniform(-1, 1, k).round(2).tolist(), r.uniform(-1, 1, 2).round(2).tolist()
        assert explicit_group_delta(values, others, q, z, relation, eps) <= stated * (1 + 1e-5) + 1e-12


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
        assert true * (1 - 1e-7) <= stated <= true + 1e-3 * (1 + true)


def test_a_group_of_one_pays_what_one_unit_does_and_each_more_makes_it_dearer() -> None:
    r = np.random.default_rng(5)
    for _ in range(20):
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
            general = accounting.group_epsilon(
                lambda d, one=one, relation=relation: accounting.epsilon(one, d, relation), delta, 2
            )
            assert costs[1] <= general + 1e-3


def test_a_group_that_is_certain_to_take_part_moves_the_sum_by_as_many_clip_norms() -> None:
    assert group_events([(Gaussian(3.0), 4), (PoissonSampled(3.0, 1.0), 1)], 3) == [
        (Gaussian(1.0), 4),
        (PoissonSampled(1.0, 1.0), 1),
    ]
    assert group_events([(TreeAggregation(3.0, 8), 1)], 2) == [(TreeAggregation(1.5, 8), 1)]
    assert group_events([(DiscreteGaussianShares(4.0, 4, 8, 10), 2)], 2) == [(DiscreteGaussianShares(2.0, 4, 8, 10), 2)]


def test_a_group_is_refused_where_no_theorem_says_what_it_pays() -> None:
    for event in (
        FixedSizeSampled(1.0, 5, 100),
        TruncatedPoissonSampled(1.0, 0.1, 5, 100),
        BallsInBins(1.0, 4, 8),
        MixtureOfGaussians(1.0, (0, 1), (0.5, 0.5)),
    ):
        assert group_events([(event, 2)], 1) == [(event, 2)]
        with pytest.raises(ValueError, match=rf"group_size = 2: .*{type(event).__name__}.*group_epsilon"):
            group_events([(event, 2)], 2)
    for size, message in ((0, "must be at least 1"), (1001, "must be at most 1000")):
        with pytest.raises(ValueError, match=f"group_size = {size}: {message}"):
            group_events([(PoissonSampled(1.0, 0.1), 1)], size)
