"""One Gaussian release: delta, epsilon and the noise against 80 digits, and calibrations by name with where they end."""

import math
import os
import re
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import oracle
from hockey_stick import gaussian_delta
from hubbub.mechanism import gaussian
from hubbub.mechanism.gaussian.exact import mills_ratio, mills_ratio_and_difference

ACCOUNTING = oracle("accounting")
SIGMAS = ACCOUNTING["analytic_gaussian_sigma"]["points"]
EPSILONS = ACCOUNTING["analytic_gaussian_epsilon"]["points"]


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
@example(10**3.875, -2.5, -0.53125)  # the rounding of sigma/sensitivity alone moves delta by 5e-13 of it
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


@pytest.mark.parametrize("point", ACCOUNTING["analytic_gaussian_delta"]["points"], ids=lambda p: f"{p['eps']}-{p['sigma']}")
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


def test_delta_accepts_every_noise_that_is_calibrated_for_it() -> None:
    random = np.random.default_rng(11)
    for log_epsilon, log_delta, log_size in random.uniform((-3, -12, -3), (2, -0.01, 3), (500, 3)):
        epsilon, delta, size = 10**log_epsilon, 10**log_delta, 10**log_size
        assert gaussian.delta(epsilon, gaussian.noise_multiplier(epsilon, delta, size), size) <= delta
    assert gaussian.calibrate("analytic", 0.3, 0.01, 0.1).holds


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
    ("x", "h"),
    [(-1, 0.3), (0, 1e-9), (0.4, 1e-12), (1, 0.49), (2.4, 0.2), (2.6, 0.4), (7.9, 0.5), (8.1, 0.5), (40, 3), (1e4, 1)],
)
def test_differences_of_mills_ratios_keep_their_digits(x: float, h: float) -> None:
    with mpmath.workdps(60):
        near, far = (
            mpmath.quad(lambda s, y=y: mpmath.exp(-y * s - s * s / 2), [0, 1 / (1 + abs(x)), 5, 60])
            for y in (x, x + mpmath.mpf(h))
        )
        pieces = [0, 3 / (1 + abs(x)), 40 / (1 + abs(x)), 60]
        truth = mpmath.quad(lambda s: -mpmath.expm1(-s * mpmath.mpf(h)) * mpmath.exp(-x * s - s * s / 2), pieces)
    # Also in a program for which a number that underflows is an error.
    with np.errstate(all="raise"):
        after, difference = mills_ratio_and_difference(x, h)
    assert abs(relative(difference, truth)) < 1.5e-14
    assert after == pytest.approx(float(far), rel=4e-15)
    assert mills_ratio(x) == pytest.approx(float(near), rel=4e-15)


def test_an_epsilon_has_the_same_bits_on_any_processor() -> None:
    """A ledger that states it is resumed on another machine, and compared to the last bit."""
    program = "from hubbub.mechanism import gaussian as g; print([g.epsilon(1e-6, 1.01**i) for i in range(-100, 500)])"
    kinds = [{}, {"OPENBLAS_CORETYPE": "Prescott"}, {"NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL"}]
    command = [sys.executable, "-W", "ignore", "-c", program]
    asked = [subprocess.run(command, env={**os.environ, **kind}, capture_output=True, text=True) for kind in kinds]
    assert asked[0].stdout.count(",") == 599, asked[0].stderr
    assert [answer.stdout == asked[0].stdout for answer in asked] == [True] * 3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, True, "1", None, 1e-200, 1e300, 10**400])
def test_noise_that_is_none_is_refused_by_name(bad: float) -> None:
    for call in (gaussian.epsilon, gaussian.delta):
        with pytest.raises((ValueError, TypeError), match="noise_multiplier"):
            call(1e-5, bad)


@pytest.mark.parametrize(("sigma", "delta"), [(3.3e-4, 6.7e-24), (1.5e-5, 1e-9), (1e-6, 1e-5), (1e6, 1e-12)])
def test_epsilon_is_not_below_the_truth_where_the_numbers_nearly_cancel(sigma: float, delta: float) -> None:
    assert exact_delta(gaussian.epsilon(delta, sigma), sigma) <= delta


CLOSED = oracle("accounting")["closed_form_sigma"]["points"]
COLUMNS = {
    "classical": "classical_DR14", "dwork2006": "dwork06", "zhao1": "zhao_mech1", "simple": "zhao_simple_inverfc2delta",
    "zhao2": "zhao_mech2", "extended": "phan_extended", "vinterbo": "vinterbo2020", "zcdp": "zcdp_closed",
}  # fmt: skip
# The largest epsilon at which the classical noise is private all the same.
CLASSICAL_HOLDS_UP_TO = {1e-12: 10.248, 1e-8: 9.374, 1e-5: 8.420, 1e-3: 7.463, 0.1: 5.743, 0.49: 4.488}


@pytest.mark.parametrize("name", COLUMNS)
def test_each_formula_gives_the_published_noise_and_what_it_attains(name: str) -> None:
    assert len(CLOSED) > 25
    for point in CLOSED:
        answer = gaussian.computed(name, point["eps"], point["delta"])
        column = COLUMNS[name]
        assert answer.noise_multiplier == pytest.approx(float(point[column]), rel=1e-13), point
        assert answer.attained_delta == pytest.approx(float(point[f"{column}__delta_attained"]), rel=1e-12), point


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(gaussian.NAMES),
    st.floats(-9, 5),
    st.one_of(st.floats(-300, -1e-3).map(lambda log: 10**log), st.floats(1e-3, 0.999)),
)
def test_what_calibrate_answers_always_holds(name: str, log_epsilon: float, delta: float) -> None:
    try:
        answer = gaussian.calibrate(name, 10**log_epsilon, delta)
    except ValueError as refusal:
        assert "is proved only for epsilon" in str(refusal) or "is for delta" in str(refusal)  # noqa: PT017 # either is right
        return
    assert answer.attained_delta <= delta
    assert answer.holds
    assert answer.proved
    assert answer.noise_multiplier >= gaussian.noise_multiplier(10**log_epsilon, delta) * (1 - 1e-13)


@pytest.mark.parametrize(("delta", "largest"), CLASSICAL_HOLDS_UP_TO.items())
def test_the_classical_noise_stops_being_private_where_it_is_known_to(delta: float, largest: float) -> None:
    assert gaussian.computed("classical", largest - 2e-3, delta).holds
    assert not gaussian.computed("classical", largest + 2e-3, delta).holds


@pytest.mark.parametrize(("name", "first"), [("classical", 1.0), ("dwork2006", math.nextafter(1.0, 2.0))])
def test_a_budget_beyond_the_theorem_is_refused_with_the_delta_that_would_be_attained(name: str, first: float) -> None:
    assert gaussian.calibrate(name, math.nextafter(first, 0.0), 1e-5).proved
    with pytest.raises(ValueError, match=rf"epsilon = {first}: the calibration '{name}' is proved only for epsilon .* 1: its"):
        gaussian.calibrate(name, first, 1e-5)
    # Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ) at the classical noise for epsilon 10 and delta 1e-5.
    with mpmath.workdps(40):
        sigma = mpmath.sqrt(2 * mpmath.log(mpmath.mpf("1.25e5"))) / 10
        truth = gaussian_delta(1 / sigma, 10)
    with pytest.raises(ValueError, match=r"attains delta .* here, more than the claimed") as refused:
        gaussian.calibrate("classical", 10.0, 1e-5)
    assert truth > 1e-5
    stated = re.search(r"its noise (\S+) attains delta (\S+) here", str(refused.value))
    # Rounded up, in the last digit shown.
    assert sigma <= mpmath.mpf(stated[1]) <= sigma + 1e-6
    assert truth <= mpmath.mpf(stated[2]) <= truth + mpmath.mpf(f"1e{math.floor(mpmath.log10(truth)) - 2}")
    assert "use 'analytic'" in str(refused.value)


@pytest.mark.parametrize("delta", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", ["analytic", "zhao1", "zcdp"])
def test_what_is_proved_for_every_delta_answers_for_every_delta(name: str, delta: float) -> None:
    assert all(gaussian.calibrate(name, epsilon, delta).holds for epsilon in (1e-6, 0.1, 1.0, 30.0))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(gaussian.NAMES), st.floats(-3, 2), st.floats(-12, -0.4), st.floats(-1, 1))
@example("zhao1", -2.0, -1.5, 0.0)
def test_the_claimed_epsilon_undoes_the_calibration(name: str, log_epsilon: float, log_delta: float, log_size: float) -> None:
    epsilon, delta, size = 10**log_epsilon, 10**log_delta, 10**log_size
    answer = gaussian.computed(name, epsilon, delta, size)
    claim = gaussian.claimed_epsilon(name, delta, answer.noise_multiplier, size)
    if name == "zhao1" and epsilon < 0.05 and delta > 1e-3:
        # Its noise is not monotone there: two epsilons have the same.
        same = gaussian.computed(name, claim.claimed_epsilon, delta, size)
        assert same.noise_multiplier == pytest.approx(answer.noise_multiplier, rel=1e-9)
        return
    assert claim.claimed_epsilon == pytest.approx(epsilon, rel=1e-9)
    assert claim.proved == answer.proved or epsilon == pytest.approx(1)
    assert claim.exact_epsilon == gaussian.epsilon(delta, answer.noise_multiplier, size)
    if abs(answer.attained_delta / delta - 1) > 1e-6:
        assert claim.holds == answer.holds
