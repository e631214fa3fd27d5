"""Divergences, zCDP and groups turned into epsilon and delta."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import oracle
from hubbub.accounting import FixedSizeSampled, conversions, group_epsilon, group_noise_multiplier
from hubbub.accounting.renyi import rdp_epsilon
from hubbub.mechanism import gaussian

ACCOUNTING = oracle("accounting")


def test_a_cohort_of_fixed_size_costs_what_two_data_sets_attain_and_less_than_the_old_recipe() -> None:
    # Cohorts of 100 of 10,000 at σ = C, by Wang, Balle and Kasiviswanathan 2019, Theorem 27, at orders 2 to 32: what was
    # claimed, and what that theorem says of sensitivity 2C.
    claimed, right = 4.0212, 23.2897
    tight = rdp_epsilon([(FixedSizeSampled(1.0, 100, 10_000), 1000)], 1e-6, "replace-one")
    # Attained by two datasets: 15.484.
    assert 3 * claimed < 15.484 < tight < right


@pytest.mark.parametrize("point", ACCOUNTING["zcdp_to_eps"]["points"], ids=lambda p: f"{p['rho']}-{p['delta']}")
def test_zcdp_converts_at_the_optimum_and_back(point: dict) -> None:
    ours = conversions.epsilon_from_zcdp(point["rho"], point["delta"])
    assert ours == pytest.approx(point["cks20_eps"], rel=1e-11)
    assert point["gaussian_exact_eps"] < ours <= point["dp_accounting_RDP_ZCDpEvent_eps"] * (1 + 1e-12)
    bun_steinke = conversions.bun_steinke_epsilon_from_zcdp(point["rho"], point["delta"])
    assert bun_steinke == pytest.approx(point["bun_steinke_rho+2sqrt(rho*ln(1/delta))"], rel=1e-14)
    assert conversions.delta_from_zcdp(point["rho"], ours) == pytest.approx(point["delta"], rel=1e-9)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(log_rho=st.floats(-12, 12), log_delta=st.floats(-300, -0.01), log_order=st.floats(-6, 6))
def test_no_order_does_better_than_the_optimum(log_rho: float, log_delta: float, log_order: float) -> None:
    rho, delta, order = 10.0**log_rho, 10.0**log_delta, 1 + 10.0**log_order
    best = conversions.epsilon_from_zcdp(rho, delta)
    assert 0 <= best <= conversions.epsilon_from_rdp([order], [rho * order], delta) * (1 + 1e-12) + 1e-12
    assert conversions.delta_from_zcdp(rho, best) <= delta * (1 + 1e-9 * (1 + best))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(orders=st.lists(st.floats(1.0001, 1e6), min_size=1, max_size=5), log_r=st.floats(-6, 3), epsilon=st.floats(0, 50))
def test_conversions_are_not_below_proposition_12_in_60_digits(orders: list[float], log_r: float, epsilon: float) -> None:
    curve = [10.0**log_r * a for a in orders]
    ours = conversions.delta_from_rdp(orders, curve, epsilon)
    with mpmath.workdps(60):
        bounds = [
            mpmath.exp((mpmath.mpf(a) - 1) * (r - mpmath.mpf(epsilon) + mpmath.log(1 - 1 / mpmath.mpf(a)))) / a
            for a, r in zip(orders, curve, strict=True)
        ]
        truth = min(1, *bounds, mpmath.sqrt(-mpmath.expm1(-mpmath.mpf(min(curve)))))
        # Below the smallest number the exponential is 0.
        assert ours >= truth or truth < 1e-300
        assert ours <= truth * (1 + mpmath.mpf("1e-10") * (1 + max(orders) * 60)) or truth < 1e-300
    if 1e-300 < ours < 0.999 * math.sqrt(-math.expm1(-min(curve))):
        back = conversions.epsilon_from_rdp(orders, curve, ours)
        assert back <= epsilon + 1e-9 * (1 + epsilon)


@pytest.mark.parametrize("case", ACCOUNTING["adaptive_clipping_split"]["points"], ids=lambda c: f"{c['z']}-{c['sigma_b']}")
def test_updates_and_count_together_cost_the_whole(case: dict) -> None:
    ours = conversions.split_noise_multiplier(case["z"], case["sigma_b"])
    assert ours == pytest.approx(case["z_delta"], rel=1e-13)
    # Two Gaussians: μ² adds up; the centred count has sensitivity 1/2.
    assert 1 / ours**2 + 1 / (2 * case["sigma_b"]) ** 2 <= 1 / case["z"] ** 2


def test_a_group_meets_less_noise_and_the_general_bound_is_above_the_exact_one() -> None:
    assert group_noise_multiplier(3.0, 2) == 1.5
    assert all(Fraction(group_noise_multiplier(z, k)) * k <= z for z in range(1, 12) for k in range(1, 12))
    for k, z, delta in itertools.product((1, 2, 5), (2.0, 10.0), (1e-9, 1e-3)):
        exact = gaussian.epsilon(delta, group_noise_multiplier(z, k))
        general = group_epsilon(lambda d, z=z: gaussian.epsilon(d, z), delta, k)
        assert exact <= general or k == 1
    assert group_epsilon(lambda d: 0.3, 1e-5, 4) == pytest.approx(1.2)
    # δ/(1 + e^0.3 + e^0.6 + e^0.9) is what is left for one unit.
    assert group_epsilon(lambda d: 0.3 if d >= 1e-5 / 7 else math.inf, 1e-5, 4) == math.inf
    assert math.isinf(group_epsilon(lambda d: math.inf, 1e-5, 2))
    # What bounds nothing for one unit bounds nothing for two.
    for size, bad in itertools.product((1, 2), (math.nan, -1.0)):
        with pytest.raises(ValueError, match=r"epsilon_at\(.*\) = (nan|-1.0): must be an epsilon of one unit"):
            group_epsilon(lambda d, bad=bad: bad, 1e-5, size)


@pytest.mark.filterwarnings("error")
def test_a_conversion_of_any_zcdp_or_renyi_bound_is_a_number_and_not_below_the_truth() -> None:
    r = np.random.default_rng(3)
    for _ in range(2000):
        rho, delta, eps = (float(10 ** r.uniform(*ends)) for ends in ((-280, 300), (-300, -0.4), (-300, 308)))
        stated = conversions.epsilon_from_zcdp(rho, delta)
        assert stated <= conversions.bun_steinke_epsilon_from_zcdp(rho, delta) * (1 + 1e-12) + 1e-11
        # A Gaussian release with that ρ has a delta near 1/2 at the epsilon ρ.
        assert stated >= rho or rho < 1e3
        order = 1 + float(10 ** r.uniform(-12, 8))
        for answer in (conversions.delta_from_zcdp(rho, eps), conversions.delta_from_rdp([order], [rho], eps)):
            # What underflows is not 0.
            assert 0 < answer <= 1
        assert conversions.epsilon_from_rdp([order], [rho], delta) >= 0
        assert conversions.epsilon_from_rdp([order], [math.inf], delta) == math.inf
