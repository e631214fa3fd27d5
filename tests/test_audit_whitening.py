import math

import mpmath
import numpy as np
import pytest
from scipy.linalg import solve_triangular, toeplitz
from scipy.special import bdtrc, binom

from hubbub import audit

ROUNDS, DIM, EACH, SEPARATION, CLIP = 32, 500, 200, 8, 0.25


def strategy() -> np.ndarray:
    """The square root of the prefix sum: C has the coefficients of (1 − x)^(−1/2)."""
    column = [binom(2 * k, k) / 4**k for k in range(ROUNDS)]
    return toeplitz(column, np.zeros(ROUNDS))


class System:
    """Canaries that take part every SEPARATION rounds, half of them present, under noise of μ = 2."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.C = strategy()
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


def test_without_noise_a_score_is_its_mean_and_that_of_the_absent_is_zero() -> None:
    system = System(1)
    scores = audit.whitened_scores(
        system.C, system.sum(system.patterns), system.patterns, system.directions, stddev=system.stddev
    )
    means = audit.present_means(system.C, system.patterns, system.directions, stddev=system.stddev)
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
    most = next(k for k in range(400) if bdtrc(k, 400, 0.3) <= 1e-6)
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


GOOD = {"C": np.eye(2), "released": np.ones((2, 3)), "patterns": np.ones((2, 2)), "directions": np.eye(3)[:2], "stddev": 1.0}


SCORES = {"absent": [0.0, 1.0], "present": [1.0, 2.0], "means": [1.0, 1.0], "mu": 2.0, "false_alarm": 1e-6}


@pytest.mark.parametrize(
    ("function", "good", "name", "bad"),
    [
        *((audit.whitened_scores, GOOD, "C", bad) for bad in (np.ones((2, 3)), [[math.nan]])),
        *((audit.whitened_scores, GOOD, "released", bad) for bad in (np.ones((2, 2)), np.full((2, 3), math.inf))),
        *((audit.whitened_scores, GOOD, "patterns", bad) for bad in (np.ones((1, 2)), np.zeros((2, 2)))),
        (audit.whitened_scores, GOOD, "directions", [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
        (audit.whitened_scores, GOOD, "stddev", 0.0),
        *((audit.check_whitened_scores, SCORES, "means", bad) for bad in ([1.0], [1.0, 3.0])),
        (audit.check_whitened_scores, SCORES, "absent", []),
        (audit.check_whitened_scores, SCORES, "mu", -1.0),
        (audit.check_whitened_scores, SCORES, "false_alarm", 1),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(function, good: dict, name: str, bad: object) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        function(**{**good, name: bad})
