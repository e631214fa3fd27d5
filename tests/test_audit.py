import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import bdtrc, ndtri

from conftest import oracle
from hubbub import audit
from hubbub.audit.bounds import epsilon_at_least, rate_at_most
from hubbub.mechanism import gaussian

ACCOUNTING = oracle("accounting")
SCORES = ACCOUNTING["audit_scores"]
PRESENT, ABSENT = np.array(SCORES["in"]), np.array(SCORES["out"])


def p_value_by_definition(m: int, r: int, v: int, epsilon: float, delta: float) -> mpmath.mpf:
    """Steinke, Nasr and Jagielski 2023, Theorem 5.2, as printed, in 40 digits."""
    with mpmath.workdps(40):
        q = mpmath.exp(epsilon) / (1 + mpmath.exp(epsilon))

        def tail(w: int) -> mpmath.mpf:
            return mpmath.fsum(mpmath.binomial(r, k) * q**k * (1 - q) ** (r - k) for k in range(max(w, 0), r + 1))

        alpha = max((tail(v - i) - tail(v)) / i for i in range(1, m + 1))
        return min(tail(v) + 2 * m * mpmath.mpf(delta) * alpha, mpmath.mpf(1))


@pytest.mark.parametrize(
    "point", ACCOUNTING["audit_one_run_p_value"]["points"], ids=lambda p: "-".join(str(x) for x in p.values())
)
def test_the_p_value_of_one_run_is_the_reference(point: dict) -> None:
    ours = audit.one_run_p_value(point["m"], point["guesses"], point["correct"], epsilon=point["eps"], delta=point["delta"])
    assert ours == pytest.approx(point["p_value"], rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_p_value_of_one_run_is_that_of_the_theorem(data: st.DataObject) -> None:
    m = data.draw(st.integers(1, 30))
    r = data.draw(st.integers(1, m))
    v = data.draw(st.integers(0, r))
    epsilon, delta = data.draw(st.floats(0, 5)), data.draw(st.sampled_from([0.0, 1e-6, 1e-2]))
    truth = float(p_value_by_definition(m, r, v, epsilon, delta))
    assert audit.one_run_p_value(m, r, v, epsilon=epsilon, delta=delta) == pytest.approx(truth, rel=1e-11)


def test_the_p_value_keeps_its_digits_for_a_million_canaries() -> None:
    with mpmath.workdps(30):
        q = mpmath.exp(mpmath.mpf(0.4)) / (1 + mpmath.exp(mpmath.mpf(0.4)))
        term = mpmath.binomial(100_000, 61_000) * q**61_000 * (1 - q) ** 39_000
        truth = term
        for k in range(61_000, 100_000):
            term *= (100_000 - k) * q / ((k + 1) * (1 - q))
            truth += term
    assert audit.one_run_p_value(10**6, 10**5, 61_000, epsilon=0.4, delta=0.0) == pytest.approx(float(truth), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.data(), st.floats(1e-6, 0.5))
def test_a_rate_is_bounded_by_the_one_at_which_so_few_are_just_as_rare_as_the_level(
    n: int, data: st.DataObject, level: float
) -> None:
    count = data.draw(st.integers(0, n - 1))
    bound = float(rate_at_most(np.array([count]), n, level)[0])

    def so_few(rate: float) -> mpmath.mpf:
        with mpmath.workdps(40):
            p = mpmath.mpf(rate)
            return mpmath.fsum(mpmath.binomial(n, i) * p**i * (1 - p) ** (n - i) for i in range(count + 1))

    assert so_few(bound) <= level < so_few(bound * (1 - 1e-9))
    assert rate_at_most(np.array([n]), n, level)[0] == 1


def peers_vertices() -> tuple[np.ndarray, np.ndarray]:
    """False positives and false negatives at the corners of the hull: jax_privacy divides the significance by their number."""
    thresholds = [math.inf, *sorted({*PRESENT, *ABSENT}, reverse=True)]
    corners: list[tuple[int, int]] = []
    for x, y in [(int((value <= ABSENT).sum()), int((value <= PRESENT).sum())) for value in thresholds]:
        while len(corners) > 1:
            (a, b), (c, d) = corners[-2:]
            if (c - a) * (y - b) < (x - a) * (d - b):
                break
            corners.pop()
        corners.append((x, y))
    return np.array([x for x, _ in corners]), PRESENT.size - np.array([y for _, y in corners])


@pytest.mark.parametrize(
    ("delta", "name"), [(0.0, "eps_clopper_pearson_0.05_delta0"), (1e-5, "eps_clopper_pearson_0.05_delta1e-5")]
)
def test_with_its_own_count_of_thresholds_the_peers_clopper_pearson_bound_is_met_and_with_all_ours_is_below(
    delta: float, name: str
) -> None:
    positives, negatives = peers_vertices()
    level = 0.05 / positives.size / 2
    hits = 1 - rate_at_most(negatives, PRESENT.size, level) - delta
    ratios = hits[hits > 0] / rate_at_most(positives, ABSENT.size, level)[hits > 0]
    assert math.log(ratios.max()) == pytest.approx(SCORES[name], rel=1e-9)
    assert audit.clopper_pearson_epsilon(PRESENT, ABSENT, delta=delta, confidence=0.95).epsilon < SCORES[name]


def test_with_its_own_count_of_thresholds_the_peers_gdp_bound_is_met_and_with_all_ours_is_below() -> None:
    positives, negatives = peers_vertices()
    level = 0.05 / positives.size / 2
    mu = np.max(-ndtri(rate_at_most(positives, ABSENT.size, level)) - ndtri(rate_at_most(negatives, PRESENT.size, level)))
    assert epsilon_at_least(float(mu), 1e-5) == pytest.approx(SCORES["eps_from_gdp_0.05_1e-5"], rel=1e-6)
    assert audit.gdp_epsilon(PRESENT, ABSENT, delta=1e-5, confidence=0.95).epsilon < SCORES["eps_from_gdp_0.05_1e-5"]


@pytest.mark.parametrize(
    ("method", "name"),
    [(audit.one_run_epsilon, "eps_one_run_0.05_1e-5"), (audit.one_run_gdp_epsilon, "eps_one_run_fdp_0.05_1e-5")],
)
def test_at_its_own_thresholds_the_peers_one_run_bound_is_met(method, name: str) -> None:
    positives, negatives = peers_vertices()
    hits = PRESENT.size - negatives
    counts = [audit.GuessCount(400, int(f + t), int(t)) for f, t in zip(positives, hits, strict=True) if f + t > 0]
    confidence = 1 - 0.05 / positives.size
    best = max(method([count], delta=1e-5, confidence=confidence).epsilon for count in counts)
    assert best == pytest.approx(SCORES[name], abs=3e-6)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.01, 20), st.floats(-14, -1))
def test_the_epsilon_of_a_mu_is_rounded_down_and_by_little(mu: float, log_delta: float) -> None:
    delta = 10**log_delta
    ours = epsilon_at_least(mu, delta)
    upper = gaussian.epsilon(delta=delta, noise_multiplier=1 / mu)
    assert upper * (1 - 1e-6) - 1e-6 <= ours <= upper
    with mpmath.workdps(60):
        e, m = mpmath.mpf(ours), mpmath.mpf(mu)
        exact = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
    assert ours == 0 or exact >= delta


def most_failures(repetitions: int, probability: float) -> int:
    """The smallest count that is exceeded with probability at most 1e-6 (the false alarm of the tests below)."""
    return next(k for k in range(repetitions) if bdtrc(k, repetitions, probability) <= 1e-6)


def by_coins(rng: np.random.Generator, mu: float, canaries: int) -> tuple[np.ndarray, np.ndarray]:
    kept = rng.integers(0, 2, canaries).astype(bool)
    scores = rng.normal(size=canaries) + mu * kept
    return scores[kept], scores[~kept]


def guesses(present: np.ndarray, absent: np.ndarray) -> list[audit.GuessCount]:
    pairs = [(20, 20), (60, 60)]
    return [audit.count_guesses(present, absent, highest=high, lowest=low) for high, low in pairs]


ON_SCORES = {
    "clopper-pearson": lambda p, a, **k: audit.clopper_pearson_epsilon(p, a, **k),
    "gdp": lambda p, a, **k: audit.gdp_epsilon(p, a, **k),
    "gdp, fixed": lambda p, a, **k: audit.gdp_epsilon(p, a, thresholds=audit.FixedThreshold(0.5), **k),
    "one run": lambda p, a, **k: audit.one_run_epsilon(guesses(p, a), **k),
    "one run, gdp": lambda p, a, **k: audit.one_run_gdp_epsilon(guesses(p, a), **k),
}


@pytest.mark.parametrize("mu", [0.0, 1.0])
@pytest.mark.parametrize("method", ON_SCORES)
def test_no_bound_exceeds_the_truth_of_a_gaussian_mechanism_more_often_than_its_confidence_allows(
    method: str, mu: float
) -> None:
    rng, delta, failures = np.random.default_rng(11), 1e-2, 0
    truth = epsilon_at_least(mu, delta)
    for _ in range(200):
        present, absent = by_coins(rng, mu, 200)
        failures += ON_SCORES[method](present, absent, delta=delta, confidence=0.8).epsilon > truth
    assert failures <= most_failures(200, 0.2)


@pytest.mark.parametrize("thresholds", [audit.EveryThreshold(), audit.FixedThreshold(0.5)])
def test_no_bound_exceeds_the_truth_of_randomized_response_where_the_inequality_is_attained(
    thresholds: audit.Thresholds,
) -> None:
    rng, failures = np.random.default_rng(5), 0
    for _ in range(400):
        present, absent = rng.random(100) < 0.75, rng.random(100) < 0.25
        bound = audit.clopper_pearson_epsilon(present * 1.0, absent * 1.0, delta=0.0, confidence=0.5, thresholds=thresholds)
        failures += bound.epsilon > math.log(3)
    assert failures <= most_failures(400, 0.5)


def test_one_run_of_randomized_response_is_not_overstated_although_its_bound_is_tight() -> None:
    rng, failures = np.random.default_rng(6), 0
    for _ in range(400):
        count = audit.GuessCount(100, 100, int(rng.binomial(100, 0.75)))
        failures += audit.one_run_epsilon([count], delta=0.0, confidence=0.8).epsilon > math.log(3)
    assert 20 <= failures <= most_failures(400, 0.2)  # and it is sharp: a bound of 0 would never fail (false alarm below 1e-6)


@pytest.mark.parametrize("method", ON_SCORES)
def test_bounds_grow_as_scores_move_apart_and_shrink_with_confidence(method: str) -> None:
    values = [
        ON_SCORES[method](PRESENT + shift, ABSENT, delta=1e-5, confidence=0.95).epsilon for shift in (-1.0, 0.0, 1.0, 2.0)
    ]
    assert values == sorted(values)
    assert values[0] < values[-1]
    by_confidence = [ON_SCORES[method](PRESENT, ABSENT, delta=1e-5, confidence=c).epsilon for c in (0.5, 0.9, 0.99, 0.9999)]
    assert by_confidence == sorted(by_confidence, reverse=True)
    assert by_confidence[0] > by_confidence[-1]
    assert ON_SCORES[method](PRESENT, ABSENT, delta=1e-3, confidence=0.9).epsilon <= by_confidence[1]


@pytest.mark.parametrize("method", [audit.gdp_epsilon, audit.clopper_pearson_epsilon])
def test_two_canaries_prove_nothing(method) -> None:
    # The bounds on both rates are above one half: the absolute value of their mu, which jax_privacy takes, would not be.
    assert method([1.0], [0.0], delta=1e-5, confidence=0.95).epsilon == 0


# --- what is refused ---

GOOD = {"present": [1.0, 2.0, 3.0], "absent": [0.0, 1.0, -1.0], "delta": 1e-5, "confidence": 0.95}
COUNT = audit.GuessCount(canaries=100, guesses=50, correct=45)


@pytest.mark.parametrize("method", [audit.clopper_pearson_epsilon, audit.gdp_epsilon])
@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *((name, bad) for name in ("present", "absent") for bad in ([], [math.nan], ["1.0"], [True], [1j], 1.0)),
        *(("confidence", bad) for bad in (0, 1.0, math.nan, True, "0.95")),
        *(("delta", bad) for bad in (1.0, -1e-9, math.nan, False)),
        *(("thresholds", bad) for bad in ("all", audit.FixedThreshold)),
    ],
)
def test_a_bound_from_scores_refuses_what_is_no_number_by_its_name(method, name: str, bad: object) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        method(**{**GOOD, name: bad})


def test_ties_count_against_the_audit_and_all_canaries_may_be_absent() -> None:
    assert audit.count_guesses([1.0, 1.0], [1.0, 1.0], highest=2).correct == 0
    assert audit.count_guesses([1.0, 1.0], [1.0, 1.0], highest=0, lowest=3).correct == 1
    assert audit.count_guesses([], [1.0, 2.0], highest=1, lowest=1) == audit.GuessCount(2, 2, 1)


def test_a_bound_states_its_confidence_its_assumptions_and_its_source_and_is_rounded_down() -> None:
    for bound in (audit.gdp_epsilon(**GOOD), audit.one_run_epsilon([COUNT], delta=0.0, confidence=0.9)):
        assert all(part in bound.statement for part in (f"confidence {bound.confidence}", *bound.assumptions, bound.source))
        assert ("Gaussian trade-off curve" in bound.statement) is (bound.mu is not None)
    assert "below 1.9999." in audit.LowerBound(1.99999, 1e-5, 0.95, None, (), "").statement
