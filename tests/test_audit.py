"""Bounds of an audit, from scores and from guesses, and scores of canaries under correlated noise."""

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import solve_triangular, toeplitz
from scipy.special import bdtrc, binom, ndtri

from conftest import oracle
from hubbub import FixedSizeSampling, Mechanism, audit
from hubbub._util import strict_json
from hubbub.accounting import unprotected
from hubbub.audit.bounds import epsilon_at_least, rate_at_most
from hubbub.mechanism import gaussian
from hubbub.mechanism.gaussian import denoising
from hubbub.mechanism.strategies import Identity

ACCOUNTING = oracle("accounting")
SCORES = ACCOUNTING["audit_scores"]
PRESENT, ABSENT = np.array(SCORES["in"]), np.array(SCORES["out"])


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
    # Steinke, Nasr and Jagielski 2023, Theorem 5.2, as printed, in 40 digits.
    with mpmath.workdps(40):
        q = mpmath.exp(epsilon) / (1 + mpmath.exp(epsilon))

        def tail(w: int) -> mpmath.mpf:
            return mpmath.fsum(mpmath.binomial(r, k) * q**k * (1 - q) ** (r - k) for k in range(max(w, 0), r + 1))

        alpha = max((tail(v - i) - tail(v)) / i for i in range(1, m + 1))
        truth = float(min(tail(v) + 2 * m * mpmath.mpf(delta) * alpha, mpmath.mpf(1)))
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
def test_the_bound_on_a_rate_is_where_so_few_are_just_as_rare_as_the_level(n: int, data: st.DataObject, level: float) -> None:
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


@pytest.mark.parametrize("delta", ["0", "1e-5"])
def test_with_its_own_count_of_thresholds_the_peers_clopper_pearson_bound_is_met_and_with_all_ours_is_below(delta: str) -> None:
    peers = SCORES[f"eps_clopper_pearson_0.05_delta{delta}"]
    positives, negatives = peers_vertices()
    level = 0.05 / positives.size / 2
    hits = 1 - rate_at_most(negatives, PRESENT.size, level) - float(delta)
    ratios = hits[hits > 0] / rate_at_most(positives, ABSENT.size, level)[hits > 0]
    assert math.log(ratios.max()) == pytest.approx(peers, rel=1e-9)
    assert audit.clopper_pearson_epsilon(PRESENT, ABSENT, delta=float(delta), confidence=0.95).epsilon < peers


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
def test_no_bound_exceeds_the_truth_of_a_gaussian_mechanism_more_often_than_its_confidence_says(method: str, mu: float) -> None:
    rng, delta, failures = np.random.default_rng(11), 1e-2, 0
    truth = epsilon_at_least(mu, delta)
    for _ in range(200):
        kept = rng.integers(0, 2, 200).astype(bool)
        scores = rng.normal(size=200) + mu * kept
        failures += ON_SCORES[method](scores[kept], scores[~kept], delta=delta, confidence=0.8).epsilon > truth
    assert failures <= most_failures(200, 0.2)


@pytest.mark.parametrize("thresholds", [audit.EveryThreshold(), audit.FixedThreshold(0.5)])
def test_no_bound_exceeds_the_truth_of_randomized_response_which_attains_the_inequality(thresholds: audit.Thresholds) -> None:
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
    bound, shifts = ON_SCORES[method], (-1.0, 0.0, 1.0, 2.0)
    values = [bound(PRESENT + shift, ABSENT, delta=1e-5, confidence=0.95).epsilon for shift in shifts]
    assert values == sorted(values)
    assert values[0] < values[-1]
    by_confidence = [bound(PRESENT, ABSENT, delta=1e-5, confidence=c).epsilon for c in (0.5, 0.9, 0.99, 0.9999)]
    assert by_confidence == sorted(by_confidence, reverse=True)
    assert by_confidence[0] > by_confidence[-1]
    assert bound(PRESENT, ABSENT, delta=1e-3, confidence=0.9).epsilon <= by_confidence[1]


@pytest.mark.parametrize("method", [audit.gdp_epsilon, audit.clopper_pearson_epsilon])
def test_two_canaries_prove_nothing(method) -> None:
    # The bounds on both rates are above one half: the absolute value of their mu, which jax_privacy takes, would not be.
    assert method([1.0], [0.0], delta=1e-5, confidence=0.95).epsilon == 0


GOOD = {"present": [1.0, 2.0, 3.0], "absent": [0.0, 1.0, -1.0], "delta": 1e-5, "confidence": 0.95}


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


ROUNDS, DIM, EACH, SEPARATION, CLIP = 32, 500, 200, 8, 0.25


class System:
    """Canaries that take part every SEPARATION rounds, half of them present, under noise of μ = 2."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        # The square root of the prefix sum: the coefficients of (1 − x)^(−1/2).
        self.C = toeplitz([binom(2 * k, k) / 4**k for k in range(ROUNDS)], np.zeros(ROUNDS))
        self.directions = CLIP * np.linalg.qr(self.rng.normal(size=(DIM, 2 * EACH)))[0].T
        offsets = self.rng.integers(0, SEPARATION, 2 * EACH)
        self.patterns = ((np.arange(ROUNDS) - offsets[:, None]) % SEPARATION == 0).astype(float)
        worst = max(np.linalg.norm(self.C @ pattern) for pattern in self.patterns)
        self.mu, self.stddev = 2.0, CLIP * worst / 2.0

    def sum(self, patterns: np.ndarray) -> np.ndarray:
        return patterns[:EACH].T @ self.directions[:EACH]

    def noise(self) -> np.ndarray:
        return solve_triangular(self.C, self.rng.normal(size=(ROUNDS, DIM)), lower=True)

    def checks(self, released: np.ndarray) -> dict[str, bool]:
        scores = audit.whitened_scores(self.C, released, self.patterns, self.directions, stddev=self.stddev)
        means = audit.present_means(self.C, self.patterns[:EACH], self.directions[:EACH], stddev=self.stddev)
        return {c.name: c.passed for c in audit.check_whitened_scores(scores[EACH:], scores[:EACH], means, mu=self.mu)}


@pytest.mark.parametrize("seed", range(10))
def test_a_system_that_adds_what_it_claims_passes(seed: int) -> None:
    # False alarm of each seed: 3e-6.
    system = System(seed)
    released = system.sum(system.patterns) + system.stddev * system.noise()
    assert all(system.checks(released).values())


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (lambda one: one.sum(one.patterns) + one.stddev * one.rng.normal(size=(ROUNDS, DIM)), {"null standard deviation"}),
        (lambda one: one.sum(one.patterns) + one.stddev**2 * one.noise(), {"null standard deviation", "mu"}),
        (lambda one: one.sum(2 * one.patterns) + one.stddev * one.noise(), {"mean of the present", "mu"}),
    ],
    ids=["independent noise", "stddev squared", "canaries of twice the norm"],
)
def test_a_broken_system_fails_the_tests_of_what_is_broken(broken: Callable[[System], np.ndarray], found: set[str]) -> None:
    system = System(0)
    passed = system.checks(broken(system))
    assert found <= {name for name, good in passed.items() if not good}


def test_a_false_alarm_that_no_spread_can_have_tests_nothing_of_mu() -> None:
    # Of one score the chi-square quantile is 0 in float64: a quotient by it.
    *_, check = audit.check_whitened_scores([1.0], [2.0], [1.0], mu=1.0, false_alarm=1e-200)
    assert check.high == math.inf
    assert check.passed


def test_noise_that_repeats_in_two_layers_is_caught_by_canaries_of_opposite_halves() -> None:
    system = System(0)
    halves = CLIP * np.linalg.qr(system.rng.normal(size=(DIM // 2, DIM // 2)))[0].T / math.sqrt(2)
    directions = np.hstack([halves, -halves])[:EACH]
    noise = system.noise()[:, : DIM // 2]
    released = system.stddev * np.hstack([noise, noise])
    scores = audit.whitened_scores(system.C, released, system.patterns[:EACH], directions, stddev=system.stddev)
    assert np.abs(scores).max() < 1e-10
    assert not audit.check_whitened_scores(scores, scores, np.full(EACH, 1.0), mu=2.0)[0].passed
    # Noise so small that the lattice swallows it: each finding is a number, which audit.json can hold.
    assert all(math.isfinite(check.value) for check in audit.check_whitened_scores([0.0], [1e9], [1e9], mu=1e9))


def test_without_noise_a_score_is_its_mean_and_that_of_the_absent_is_zero() -> None:
    system = System(1)
    canaries, stddev = (system.patterns, system.directions), system.stddev
    scores = audit.whitened_scores(system.C, system.sum(system.patterns), *canaries, stddev=stddev)
    means = audit.present_means(system.C, *canaries, stddev=stddev)
    assert scores[:EACH] == pytest.approx(means[:EACH], rel=1e-10)
    assert scores[EACH:] == pytest.approx(0, abs=1e-10)
    assert means.max() == pytest.approx(system.mu)


def test_the_false_alarms_of_each_test_are_as_often_as_stated() -> None:
    # The first two are exact, the third is on the safe side. Each count of 400 leaves its range with probability below 1e-6.
    rng, alarms = np.random.default_rng(4), np.zeros(3)
    for _ in range(400):
        absent, present = rng.normal(size=3), 5 + rng.normal(size=300)
        checks = audit.check_whitened_scores(absent, present, np.full(300, 5.0), mu=5.0, false_alarm=0.3)
        alarms += [not check.passed for check in checks]
    most = most_failures(400, 0.3)
    least = next(k for k in range(400) if 1 - bdtrc(k, 400, 0.3) > 1e-6)
    assert (alarms <= most).all()
    assert (alarms[:2] >= least).all()


def test_the_range_of_the_null_standard_deviation_is_that_of_chi_square() -> None:
    check = audit.check_whitened_scores(np.ones(50), np.ones(50), np.ones(50), mu=1.0)[0]
    with mpmath.workdps(30):
        below = mpmath.gammainc(25, 0, 25 * mpmath.mpf(check.low) ** 2, regularized=True)
        above = mpmath.gammainc(25, 25 * mpmath.mpf(check.high) ** 2, mpmath.inf, regularized=True)
    assert (float(below), float(above)) == pytest.approx((5e-7, 5e-7), rel=1e-9)
    assert check.false_alarm == 1e-6


SCORING = {"C": np.eye(2), "released": np.ones((2, 3)), "patterns": np.ones((2, 2)), "directions": np.eye(3)[:2], "stddev": 1.0}
SCORED = {"absent": [0.0, 1.0], "present": [1.0, 2.0], "means": [1.0, 1.0], "mu": 2.0, "false_alarm": 1e-6}


@pytest.mark.parametrize(
    ("function", "good", "name", "bad"),
    [
        *((audit.whitened_scores, SCORING, "C", bad) for bad in (np.ones((2, 3)), [[math.nan]])),
        *((audit.whitened_scores, SCORING, "released", bad) for bad in (np.ones((2, 2)), np.full((2, 3), math.inf))),
        *((audit.whitened_scores, SCORING, "patterns", bad) for bad in (np.ones((1, 2)), np.zeros((2, 2)))),
        (audit.whitened_scores, SCORING, "directions", [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
        (audit.whitened_scores, SCORING, "stddev", 0.0),
        *((audit.check_whitened_scores, SCORED, "means", bad) for bad in ([1.0], [1.0, 3.0])),
        (audit.check_whitened_scores, SCORED, "absent", []),
        (audit.check_whitened_scores, SCORED, "mu", -1.0),
        (audit.check_whitened_scores, SCORED, "false_alarm", 1),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(function, good: dict, name: str, bad: object) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        function(**{**good, name: bad})


def test_findings_on_what_promises_nothing_are_strict_json() -> None:
    empty, nothing = np.zeros(4), unprotected(4, 1e-5)
    found = audit.Audit(nothing, (), (), empty, empty, empty, canaries=8, runs=1, rounds=4).as_json()
    assert strict_json.loads(strict_json.canonical(found))["stated"]["epsilon"] is None


@pytest.mark.parametrize(
    "ask",
    [
        lambda rows: audit.clopper_pearson_epsilon(rows, [1.0], delta=1e-5, confidence=0.95),
        lambda rows: denoising.soft_threshold(rows, 1.0),
        lambda rows: denoising.james_stein(rows, 1.0),
    ],
)
def test_rows_of_several_lengths_are_refused_by_name(ask: Callable[[list[list[int]]], object]) -> None:
    with pytest.raises(ValueError, match=r" = \[\[1, 2\], \[3\]\]: has rows of several lengths"):
        ask([[1, 2], [3]])


def test_who_leaves_a_cohort_of_a_fixed_size_leaves_a_place_that_another_fills() -> None:
    mechanism = Mechanism(Identity(4), FixedSizeSampling(3, 10), 1.0)
    moved = {1: np.array([2**24, -(2**24), 2**24, -(2**24)])}
    for relation, holds in (("zero-out", False), ("add-or-remove-one", True), ("replace-one", True)):
        assert audit.influence(mechanism, moved, {1: 1.0}, relation=relation).holds is holds
