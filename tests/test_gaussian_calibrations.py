"""Calibrations by name: the published numbers, what each really attains, and where its theorem ends."""

import math
import re

import mpmath
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import oracle
from hockey_stick import gaussian_delta
from hubbub.mechanism import gaussian

CLOSED = oracle("accounting")["closed_form_sigma"]["points"]
COLUMNS = {
    "classical": "classical_DR14",
    "dwork2006": "dwork06",
    "zhao1": "zhao_mech1",
    "simple": "zhao_simple_inverfc2delta",
    "zhao2": "zhao_mech2",
    "extended": "phan_extended",
    "vinterbo": "vinterbo2020",
    "zcdp": "zcdp_closed",
}
# Noise over sensitivity at delta 1e-5: (Balle and Wang's, and how many times as much the others take).
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
    assert stated is not None
    # Rounded up, in the last digit shown.
    assert sigma <= mpmath.mpf(stated[1]) <= sigma + 1e-6
    assert truth <= mpmath.mpf(stated[2]) <= truth + mpmath.mpf(f"1e{math.floor(mpmath.log10(truth)) - 2}")
    assert "use 'analytic'" in str(refused.value)


@pytest.mark.parametrize("delta", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", ["analytic", "zhao1", "zcdp"])
def test_what_is_proved_for_every_delta_answers_for_every_delta(name: str, delta: float) -> None:
    assert all(gaussian.calibrate(name, epsilon, delta).holds for epsilon in (1e-6, 0.1, 1.0, 30.0))


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
