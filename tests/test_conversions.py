"""Divergences, zCDP and groups turned into epsilon and delta, and the old recipe."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import oracle
from hubbub import gaussian
from hubbub.accounting.conversions import (
    bun_steinke_epsilon_from_zcdp,
    delta_from_rdp,
    delta_from_zcdp,
    epsilon_from_rdp,
    epsilon_from_zcdp,
    split_noise_multiplier,
)
from hubbub.accounting.events import (
    FixedSizeSampled,
)
from hubbub.accounting.groups import group_epsilon, group_noise_multiplier
from hubbub.accounting.rdp import DEFAULT_ORDERS, rdp_epsilon
from hubbub.accounting.without_replacement import compute_rdp_sample_without_replacement

ACCOUNTING = oracle("accounting")


@pytest.mark.parametrize("point", ACCOUNTING["raw_rdp_wor"]["points"],
                         ids=lambda p: f"{p['q']}-{p['z']}")  # fmt: skip
def test_the_old_recipe_gives_the_old_numbers(point: dict) -> None:
    ours = compute_rdp_sample_without_replacement(point["q"], point["z"], 1, point["orders"])
    for order, value, peer in zip(point["orders"], ours, point["rdp"], strict=True):
        if (point["q"], point["z"]) == (0.5, 20.0) and 20 <= order <= 256:
            # The peer's differences have cancelled: on other processors it does not repeat its own number.
            assert value <= peer * (1 + 1e-8)
        else:
            assert value == pytest.approx(peer, rel=1e-10)


def test_the_old_recipe_is_its_theorem_where_the_peer_has_cancelled() -> None:
    q, z, order = 0.5, 20.0, 64
    with mpmath.workdps(60):

        def difference(length):
            return mpmath.fsum(
                (-1) ** (length - i) * mpmath.binomial(length, i) * mpmath.exp(mpmath.mpf(i * (i - 1)) / (2 * z**2))
                for i in range(length + 1)
            )  # fmt: skip

        even = {length: difference(length) for length in range(0, order + 2, 2)}
        total = mpmath.mpf(1) + q**2 * mpmath.binomial(order, 2) * min(
            4 * mpmath.expm1(mpmath.mpf(1) / z**2), 2 * mpmath.exp(mpmath.mpf(1) / z**2)
        )
        for j in range(3, order + 1):
            product = 4 * mpmath.sqrt(even[2 * (j // 2)] * even[2 * ((j + 1) // 2)])
            total += q**j * mpmath.binomial(order, j) * min(product, 2 * mpmath.exp((j - 1) * j / (2 * mpmath.mpf(z) ** 2)))
        expected = float(mpmath.log(total) / (order - 1))
    assert compute_rdp_sample_without_replacement(q, z, 1, [order])[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("point", ACCOUNTING["rdp_without_replacement"]["points"][::3])  # fmt: skip
def test_the_old_recipe_gives_the_old_epsilons(point: dict) -> None:
    for name, orders in (("eps_orders_2_32", range(2, 33)), ("eps_default_orders", DEFAULT_ORDERS)):
        curve = compute_rdp_sample_without_replacement(point["q"], point["z"], point["n"], list(orders))
        assert epsilon_from_rdp(list(orders), curve, point["delta"]) == pytest.approx(point[name], rel=1e-9)


def test_the_old_recipe_with_half_the_sensitivity_understates_six_to_eight_times() -> None:
    # One round of 10 of 1000 at σ = C: what was claimed, and what the recipe says of sensitivity 2C.
    orders = list(range(2, 33))
    claimed, right = (
        epsilon_from_rdp(orders, compute_rdp_sample_without_replacement(0.01, z, 1000, orders), 1e-6) for z in (1.0, 0.5)
    )
    assert 5 < right / claimed < 8
    tight = rdp_epsilon([(FixedSizeSampled(1.0, 100, 10_000), 1000)], 1e-6, "replace-one")
    # Attained by two datasets: 15.484.
    assert 15.484 < tight < right


@pytest.mark.parametrize("point", ACCOUNTING["zcdp_to_eps"]["points"], ids=lambda p: f"{p['rho']}-{p['delta']}")
def test_zcdp_converts_at_the_optimum_and_back(point: dict) -> None:
    ours = epsilon_from_zcdp(point["rho"], point["delta"])
    assert ours == pytest.approx(point["cks20_eps"], rel=1e-11)
    assert point["gaussian_exact_eps"] < ours <= point["dp_accounting_RDP_ZCDpEvent_eps"] * (1 + 1e-12)
    assert bun_steinke_epsilon_from_zcdp(point["rho"], point["delta"]) == pytest.approx(
        point["bun_steinke_rho+2sqrt(rho*ln(1/delta))"], rel=1e-14
    )
    assert delta_from_zcdp(point["rho"], ours) == pytest.approx(point["delta"], rel=1e-9)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(log_rho=st.floats(-12, 12), log_delta=st.floats(-300, -0.01), log_order=st.floats(-6, 6))
def test_no_order_does_better_than_the_optimum(log_rho: float, log_delta: float, log_order: float) -> None:
    rho, delta, order = 10.0**log_rho, 10.0**log_delta, 1 + 10.0**log_order
    best = epsilon_from_zcdp(rho, delta)
    assert 0 <= best <= epsilon_from_rdp([order], [rho * order], delta) * (1 + 1e-12) + 1e-12
    assert delta_from_zcdp(rho, best) <= delta * (1 + 1e-9 * (1 + best))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(orders=st.lists(st.floats(1.0001, 1e6), min_size=1, max_size=5), log_r=st.floats(-6, 3), epsilon=st.floats(0, 50))
def test_conversions_are_not_below_proposition_12_in_60_digits(orders: list[float], log_r: float, epsilon: float) -> None:
    curve = [10.0**log_r * a for a in orders]
    ours = delta_from_rdp(orders, curve, epsilon)
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
        back = epsilon_from_rdp(orders, curve, ours)
        assert back <= epsilon + 1e-9 * (1 + epsilon)


@pytest.mark.parametrize("case", ACCOUNTING["adaptive_clipping_split"]["points"], ids=lambda c: f"{c['z']}-{c['sigma_b']}")
def test_updates_and_count_together_cost_the_whole(case: dict) -> None:
    ours = split_noise_multiplier(case["z"], case["sigma_b"])
    assert ours == pytest.approx(case["z_delta"], rel=1e-13)
    # Two Gaussians: μ² adds up; the centred count has sensitivity 1/2.
    assert 1 / ours**2 + 1 / (2 * case["sigma_b"]) ** 2 <= 1 / case["z"] ** 2


def test_a_group_meets_less_noise_and_the_general_bound_is_above_the_exact_one() -> None:
    assert group_noise_multiplier(3.0, 2) == 1.5
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
        stated = epsilon_from_zcdp(rho, delta)
        assert stated <= bun_steinke_epsilon_from_zcdp(rho, delta) * (1 + 1e-12) + 1e-11
        # A Gaussian release with that ρ has a delta near 1/2 at the epsilon ρ.
        assert stated >= rho or rho < 1e3
        order = 1 + float(10 ** r.uniform(-12, 8))
        for answer in (delta_from_zcdp(rho, eps), delta_from_rdp([order], [rho], eps)):
            # What underflows is not 0.
            assert 0 < answer <= 1
        assert epsilon_from_rdp([order], [rho], delta) >= 0
        assert epsilon_from_rdp([order], [math.inf], delta) == math.inf
