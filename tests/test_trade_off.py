import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from hubbub.accounting.composition import certain_zcdp_rho, unamplified_epsilon
from hubbub.accounting.events import Gaussian, PoissonSampled, TreeAggregation
from hubbub.accounting.trade_offs import gdp_mu, trade_off, trade_off_from_profile
from hubbub.mechanism import gaussian


@pytest.mark.parametrize("cases", [1000, pytest.param(20_000, marks=pytest.mark.slow)], ids=["few", "many"])
def test_no_error_of_a_gaussian_release_is_stated_above_60_digits(cases: int) -> None:
    r = np.random.default_rng(23)
    for _ in range(cases):
        z, root, relation = float(10 ** r.uniform(-1.6, 3)), int(r.integers(1, 5)), ("zero-out", "replace-one")[r.integers(2)]
        # A replacement moves a sum twice as far, and rounds add their squares.
        apart = root * (1 + (relation == "replace-one"))
        # Where tests err neither always nor never, and anywhere.
        middle = float(ndtr(2 * r.normal() - apart / z))
        rate = min(max((middle, float(10 ** r.uniform(-300, 0)))[r.integers(2)], 1e-300), 1 - 2.0**-53)
        with mpmath.workdps(60):
            x, alpha = mpmath.mpf(float(ndtri(rate))), mpmath.mpf(rate)
            for _ in range(4):
                x -= (mpmath.ncdf(x) - alpha) / mpmath.npdf(x)
            true = mpmath.ncdf(-x - apart / mpmath.mpf(z))
        stated = float(trade_off([(Gaussian(z), root**2)], [rate], relation)[0])
        assert stated <= true
        assert stated >= true * (1 - mpmath.mpf("2e-11")) or true < 1e-300


@pytest.mark.slow
def test_the_ends_of_the_curve() -> None:
    assert trade_off([(Gaussian(2.0), 16)], (0, 1), "zero-out").tolist() == [pytest.approx(1.0), 0.0]
    assert trade_off([], (0, 0.25, 1), "zero-out").tolist() == [1.0, 0.75, 0.0]
    # Events that can be read but once.
    half, end = trade_off(iter([(PoissonSampled(1.0, 0.1), 3)]), (0.5, 1), "zero-out")
    assert half < 0.49
    assert end == 0.0
    some, others = (iter([(Gaussian(0.1), 1)]) for _ in range(2))
    assert min(unamplified_epsilon(some, 1e-5, "zero-out"), certain_zcdp_rho(others, "zero-out")) > 4


def test_mu_is_stated_only_where_all_is_one_gaussian() -> None:
    assert gdp_mu([(Gaussian(1.0), 3), (Gaussian(0.5), 1)], "zero-out") == pytest.approx(math.sqrt(7))
    assert gdp_mu([(TreeAggregation(1.0, rounds=8), 4)], "replace-one") == pytest.approx(2 * math.sqrt(4 * 4))
    assert gdp_mu([(Gaussian(1.0), 3), (PoissonSampled(1.0, 0.1), 1)], "zero-out") is None
    assert gdp_mu([(Gaussian(1.0), 3), (PoissonSampled(1.0, 0.1), 0)], "zero-out") == pytest.approx(math.sqrt(3))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(mu=st.floats(0.05, 8), rates=st.lists(st.floats(1e-9, 1 - 1e-9), min_size=1, max_size=6))
def test_a_profile_bounds_the_curve_from_below_and_nearly(mu: float, rates: list[float]) -> None:
    ours = trade_off_from_profile(lambda epsilon: gaussian.delta(epsilon, 1 / mu), np.array(rates))
    exact = trade_off([(Gaussian(1 / mu), 1)], rates, "zero-out")
    assert np.all((exact - 0.02 <= ours) & (ours <= exact * (1 + 1e-12)))


def test_pure_differential_privacy_has_the_curve_of_randomized_response() -> None:
    # δ(ε) of randomized response at ε₀: its curve is the largest of the lines through its two corners.
    e0 = 1.0
    profile = lambda epsilon: max(0.0, -math.expm1(epsilon - e0)) * math.exp(e0) / (1 + math.exp(e0))  # noqa: E731
    corner = 1 / (1 + math.exp(e0))
    rates = np.array([0.0, corner / 2, corner, 1 - corner, 1.0])
    expected = [1.0, 1 - corner / 2 * math.exp(e0), corner, math.exp(-e0) * corner, 0.0]
    assert trade_off_from_profile(profile, rates) == pytest.approx(expected, abs=2e-3)
    assert np.all(trade_off_from_profile(profile, rates) <= np.array(expected) + 1e-15)


def test_a_sampled_release_errs_as_much_as_its_best_test() -> None:
    # One round: the likelihood ratio tests of (1−q)N(0)+qN(1) against N(0) at thresholds t, and of the reverse.
    q, t = 0.3, np.linspace(-6, 6, 241)
    positive = np.array([float(mpmath.ncdf(-x)) for x in t])
    negative = np.array([float((1 - q) * mpmath.ncdf(x) + q * mpmath.ncdf(x - 1)) for x in t])
    rates = np.array([1e-3, 0.05, 0.3, 0.6, 0.9])
    forth, back = np.interp(rates, positive[::-1], negative[::-1]), np.interp(rates, negative, positive)
    ours = trade_off([(PoissonSampled(1.0, q), 1)], rates, "add-or-remove-one")
    # The thresholds' chords lie above the curve by less than 1e-3.
    assert np.all((np.minimum(forth, back) - 0.01 <= ours) & (ours <= np.minimum(forth, back)))
