"""One Gaussian release: delta, epsilon and the noise against 80 digits, at every scale, and never on the wrong side."""

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import oracle
from hubbub.mechanism import gaussian
from hubbub.mechanism.gaussian.exact import mills_ratio, mills_ratio_and_difference

ACCOUNTING = oracle("accounting")
SIGMAS = ACCOUNTING["analytic_gaussian_sigma"]["points"]
EPSILONS = ACCOUNTING["analytic_gaussian_epsilon"]["points"]
DELTAS = ACCOUNTING["analytic_gaussian_delta"]["points"]


def exact_delta(epsilon: float, sigma: float, sensitivity: float = 1.0) -> mpmath.mpf:
    """Balle and Wang 2018, Theorem 8, as printed, in 80 digits."""
    with mpmath.workdps(80):
        e, s = mpmath.mpf(epsilon), mpmath.mpf(sigma) / mpmath.mpf(sensitivity)
        return mpmath.ncdf(1 / (2 * s) - e * s) - mpmath.exp(e) * mpmath.ncdf(-1 / (2 * s) - e * s)


def relative(ours: float, truth: mpmath.mpf) -> float:
    """How far ours is above the truth, of the truth."""
    with mpmath.workdps(80):
        return float(mpmath.mpf(ours) / truth - 1)


@settings(max_examples=600, deadline=None)
@given(st.one_of(st.floats(0, 50), st.floats(-9, 4).map(lambda log: 10**log)), st.floats(-3.5, 9), st.floats(-1.5, 1.5))
def test_delta_is_that_of_the_theorem_and_never_below_it(epsilon: float, log_sigma: float, log_sensitivity: float) -> None:
    sigma, sensitivity = 10**log_sigma, 10**log_sensitivity
    truth = exact_delta(epsilon, sigma, sensitivity)
    if mpmath.mpf("1e-300") < truth < 1:
        assert 0 <= relative(gaussian.delta(epsilon, sigma, sensitivity), truth) < 1e-12


@settings(max_examples=400, deadline=None)
@given(st.floats(-12, 10), st.floats(-8, 30))
def test_delta_is_exact_where_epsilon_is_about_that_of_the_noise(log_epsilon: float, standard: float) -> None:
    # Where εσ and 1/2σ nearly cancel; most points of a box are far from it.
    epsilon = 10**log_epsilon
    root = math.sqrt(standard**2 + 2 * epsilon)
    sigma = (standard + root) / (2 * epsilon) if standard > 0 else 1 / (root - standard)
    truth = exact_delta(epsilon, sigma)
    # What cancels is about √(2ε), and its rounding is allowed for.
    assert 0 <= relative(gaussian.delta(epsilon, sigma), truth) < 1e-12 + 2e-15 * math.sqrt(epsilon)


@pytest.mark.parametrize("point", DELTAS, ids=lambda p: f"{p['eps']}-{p['sigma']}")
def test_delta_is_the_reference(point: dict) -> None:
    reference = mpmath.mpf(point["delta_mp"])
    if reference < mpmath.mpf("1e-320"):
        assert gaussian.delta(point["eps"], point["sigma"]) == 5e-324
    else:
        assert 0 <= relative(gaussian.delta(point["eps"], point["sigma"]), reference) < 1e-12


def test_the_calibrated_noise_is_the_reference_and_never_below_it() -> None:
    assert len(SIGMAS) > 100
    for point in SIGMAS:
        ours = gaussian.noise_multiplier(point["eps"], point["delta"])
        assert 0 <= relative(ours, mpmath.mpf(point["sigma_mp_doubles"])) < 1e-13, point
        assert exact_delta(point["eps"], ours) <= point["delta"], point
        assert gaussian.delta(point["eps"], ours) <= point["delta"], point


def test_epsilon_is_the_reference_and_never_below_it() -> None:
    assert len(EPSILONS) > 40
    for point in EPSILONS:
        ours, reference = gaussian.epsilon(point["delta"], point["sigma"]), mpmath.mpf(point["eps_mp"])
        assert 0 <= ours - reference <= 1e-12 * reference, point


@pytest.mark.parametrize("delta", [1e-300, 1e-100, 1e-20, 1e-5, 0.3, 0.5, 0.9, 1 - 1e-9])
@pytest.mark.parametrize("sigma", [1e-90, 1e-12, 1e-3, 0.3, 1.0, 30.0, 1e6, 1e12, 1e90])
@pytest.mark.parametrize("sensitivity", [1.0, 2.0, 0.3, 1e9])
def test_epsilon_and_noise_undo_each_other_at_every_scale(delta: float, sigma: float, sensitivity: float) -> None:
    epsilon = gaussian.epsilon(delta, sigma, sensitivity)
    assert gaussian.delta(epsilon, sigma, sensitivity) <= delta
    if 0 < epsilon <= 1e12:
        again = gaussian.noise_multiplier(epsilon, delta, sensitivity)
        # What determines the noise is how far delta is from 1.
        assert again == pytest.approx(sigma, rel=1e-6 if delta > 0.99 else 1e-12)
    elif epsilon == 0:
        assert gaussian.delta(0.0, sigma, sensitivity) <= delta


@pytest.mark.parametrize("delta", [1e-99, 1e-12, 1e-5, 0.1, 0.5, 0.99])
def test_noise_for_epsilon_0_is_that_of_the_total_variation(delta: float) -> None:
    # 2Φ(1/2σ) − 1 = δ.
    with mpmath.workdps(60):
        truth = 1 / (2 * mpmath.sqrt(2) * mpmath.erfinv(mpmath.mpf(delta)))
    assert 0 <= relative(gaussian.noise_multiplier(0.0, delta), truth) < 1e-12


@settings(max_examples=300, deadline=None)
@given(st.floats(0, 20), st.floats(-14, -0.01))
def test_calibrate_then_account_never_exceeds_the_target(epsilon: float, log_delta: float) -> None:
    delta = 10**log_delta
    sigma = gaussian.noise_multiplier(epsilon, delta)
    assert gaussian.epsilon(delta, sigma) <= epsilon
    assert gaussian.epsilon(delta, 2 * sigma, 2.0) <= epsilon
    assert exact_delta(epsilon, sigma) <= delta
    assert gaussian.delta(epsilon, sigma) <= delta


@pytest.mark.parametrize(
    ("x", "h"), [(-1, 0.3), (0, 1e-9), (1, 0.49), (2.4, 0.2), (2.6, 0.4), (7.9, 0.5), (8.1, 0.5), (40, 3), (1e4, 1)]
)
def test_differences_of_mills_ratios_keep_their_digits(x: float, h: float) -> None:
    with mpmath.workdps(60):
        near, far = (
            mpmath.quad(lambda s, y=y: mpmath.exp(-y * s - s * s / 2), [0, 1 / (1 + abs(x)), 5, 60])
            for y in (x, x + mpmath.mpf(h))
        )
        truth = mpmath.quad(
            lambda s: -mpmath.expm1(-s * mpmath.mpf(h)) * mpmath.exp(-x * s - s * s / 2),
            [0, 3 / (1 + abs(x)), 40 / (1 + abs(x)), 60],
        )
    after, difference = mills_ratio_and_difference(x, h)
    assert abs(relative(difference, truth)) < 1.5e-14
    assert after == pytest.approx(float(far), rel=4e-15)
    assert mills_ratio(x) == pytest.approx(float(near), rel=4e-15)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, True, "1", None, 1e-200, 1e300, 10**400])
def test_noise_that_is_none_is_refused_by_name(bad: float) -> None:
    for call in (gaussian.epsilon, gaussian.delta):
        with pytest.raises((ValueError, TypeError), match="noise_multiplier"):
            call(1e-5, bad)


@pytest.mark.parametrize(("sigma", "delta"), [(3.3e-4, 6.7e-24), (1.5e-5, 1e-9), (1e-6, 1e-5), (1e6, 1e-12)])
def test_epsilon_is_not_below_the_truth_where_the_numbers_nearly_cancel(sigma: float, delta: float) -> None:
    assert exact_delta(gaussian.epsilon(delta, sigma), sigma) <= delta
