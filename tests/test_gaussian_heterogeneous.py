"""Noise of any covariance: its delta by whitening, what splits gain, which claims are false; and denoising."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.mechanism import gaussian
from hubbub.mechanism.gaussian.denoising import james_stein, soft_threshold
from hubbub.mechanism.gaussian.heterogeneous import Ball, Differences, for_blocks, redistributed, with_covariance

BUDGET = {"epsilon": 1.0, "delta": 1e-5}


def random_covariance(seed: int, dim: int) -> np.ndarray:
    factor = np.random.default_rng(seed).normal(size=(dim, dim + 2))
    covariance = factor @ factor.T
    return (covariance + covariance.T) / 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_differences_are_measured_in_standard_deviations_of_the_noise(seed: int, dim: int) -> None:
    covariance = random_covariance(seed, dim)
    rows = np.random.default_rng(seed + 1).normal(size=(7, dim))
    # By definition: uᵀ Σ⁻¹ u, by elimination.
    truth = math.sqrt(max(float(row @ np.linalg.solve(covariance, row)) for row in rows))
    answer = with_covariance(covariance, Differences(rows), epsilon=1.0)
    assert truth * (1 - 1e-9) <= answer.mu <= truth * (1 + 1e-6)
    assert answer.attained_delta == gaussian.delta(1.0, math.nextafter(1 / answer.mu, 0))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_of_a_ball_no_difference_is_worse_than_stated_and_one_is_as_bad(seed: int, dim: int) -> None:
    covariance = random_covariance(seed, dim)
    stated = with_covariance(covariance, Ball(0.5), epsilon=1.0).mu
    directions = np.random.default_rng(seed).normal(size=(200, dim))
    directions *= 0.5 / np.linalg.norm(directions, axis=1, keepdims=True)
    assert with_covariance(covariance, Differences(directions), epsilon=1.0).mu <= stated * (1 + 1e-9)
    # Power iteration on Σ⁻¹ finds the worst direction.
    step = np.linalg.inv(covariance)
    for _ in range(12):
        step = step @ step / np.linalg.norm(step @ step)
    worst = step @ directions[0]
    worst *= 0.5 / np.linalg.norm(worst)
    assert with_covariance(covariance, Differences([worst]), epsilon=1.0).mu == pytest.approx(stated, rel=1e-3)


# What the published code of the heterogeneous mechanism does: it divides by the largest share, and scales noise by the share.
@pytest.mark.parametrize(("scaled_by_the_share", "attained"), [(False, 0.0219), (True, 0.273)])
def test_dividing_by_the_largest_share_is_caught_as_a_false_claim(scaled_by_the_share: bool, attained: float) -> None:
    shares = np.array([0.9, 0.1])
    sigma = gaussian.calibrate("extended", **BUDGET).noise_multiplier / math.sqrt(2 * shares.max())
    variances = sigma**2 * (2 * shares if not scaled_by_the_share else (2 * shares) ** 2)
    answer = with_covariance(variances, Ball(1.0), epsilon=1.0)
    assert answer.attained_delta == pytest.approx(attained, rel=3e-3)
    with pytest.raises(ValueError, match=r"delta = 1e-05: this noise attains .* not the claim; multiply") as refused:
        with_covariance(variances, Ball(1.0), **BUDGET)
    factor = float(str(refused.value).split()[-1])
    with_covariance(variances * (factor * (1 + 1e-5)) ** 2, Ball(1.0), **BUDGET)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=8), st.floats(0.01, 20), st.integers(0, 1000))
def test_redistributed_noise_holds_for_a_ball_and_for_known_differences(parts: list[float], epsilon: float, seed: int) -> None:
    shares = np.array(parts) / math.fsum(parts)
    for known in (Ball(3.0), Differences(np.random.default_rng(seed).normal(size=(4, len(parts))))):
        answer = redistributed(shares, known, epsilon=epsilon, delta=1e-5)
        assert answer.attained_delta <= 1e-5
        # Theorem 3 spends what the extended calibration spends, on whatever is whitened.
        assert answer.mu == pytest.approx(1 / gaussian.calibrate("extended", epsilon, 1e-5).noise_multiplier, rel=1e-9)
        assert np.allclose(answer.covariance / answer.covariance.sum(), shares, rtol=1e-12)
        assert "public" in answer.assumptions[0]
        assert "computed from the data" in answer.assumptions[0]


def test_a_coordinate_without_noise_is_refused_unless_it_never_changes() -> None:
    with pytest.raises(ValueError, match=r"shares\[1\] = 0: coordinate 1 has no noise"):
        redistributed([1.0, 0.0], Ball(1.0), **BUDGET)
    with pytest.raises(ValueError, match=r"shares\[1\] = 0: coordinate 1 has no noise"):
        redistributed([1.0, 0.0], Differences([[1.0, 1e-300]]), **BUDGET)
    assert redistributed([1.0, 0.0], Differences([[1.0, 0.0]]), **BUDGET).attained_delta <= 1e-5
    flat = [[1.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.5, 0.0, 2.0]]
    assert with_covariance(flat, Differences([[1.0, 0.0, 1.0]]), epsilon=1.0).mu > 0
    with pytest.raises(ValueError, match=r"covariance\[1\] = 0: coordinate 1 has no noise"):
        with_covariance(flat, Differences([[1.0, 1.0, 1.0]]), epsilon=1.0)


def test_the_best_split_between_blocks_is_the_published_one() -> None:
    answer = for_blocks([1.0, 0.2], [100, 10_000], **BUDGET)
    assert answer.total_variance == pytest.approx(12_526, rel=1e-4)
    assert answer.isotropic_variance == pytest.approx(146_191, rel=1e-4)
    assert answer.attained_delta <= 1e-5


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 10**6)), min_size=1, max_size=5),
    st.floats(0.01, 20),
    st.floats(-9, -1),
)
def test_no_other_split_of_blocks_has_less_noise(blocks: list[tuple[float, int]], epsilon: float, log_delta: float) -> None:
    norms, dims = (list(part) for part in zip(*blocks, strict=True))
    answer = for_blocks(norms, dims, epsilon=epsilon, delta=10**log_delta)
    assert answer.attained_delta <= 10**log_delta
    assert answer.attained_delta == pytest.approx(10**log_delta, rel=1e-9)
    assert answer.total_variance <= answer.isotropic_variance * (1 + 1e-9)
    # On the surface of the same mu, along any two blocks, the total has its minimum here.
    weights = [(norm / stddev) ** 2 for norm, stddev in zip(norms, answer.stddevs, strict=True)]
    for i, j in pairwise(range(len(norms))):
        for moved in (0.01, -0.01):
            other = list(weights)
            shift = moved * min(weights[i], weights[j])
            other[i], other[j] = other[i] + shift, other[j] - shift
            total = math.fsum(dim * norm**2 / weight for dim, norm, weight in zip(dims, norms, other, strict=True))
            assert total >= answer.total_variance * (1 - 1e-12)


@pytest.mark.parametrize(("rho", "expected"), [(0.5, 0.2), (1.0, 0.5), (2.0, 0.8)])
def test_james_stein_errs_by_as_much_as_theory_says(rho: float, expected: float) -> None:
    # ρ²/(1 + ρ²) of the release's error for ‖f‖ = ρ·σ·√d; at d = 1e4 the mean of 20 is within 1 % of it, 5 standard errors.
    generator = np.random.default_rng(0)
    dim, sigma = 10_000, 0.3
    truth = generator.normal(size=dim)
    truth *= rho * sigma * math.sqrt(dim) / np.linalg.norm(truth)
    noisy = truth + sigma * generator.normal(size=(20, dim))
    errors = [float(np.square(james_stein(one, sigma) - truth).mean()) / sigma**2 for one in noisy]
    assert np.mean(errors) == pytest.approx(expected, rel=0.01)


def test_the_soft_threshold_helps_the_sparse_and_harms_the_dense() -> None:
    generator = np.random.default_rng(1)
    dim = 10_000
    sparse = np.zeros(dim)
    sparse[:200] = generator.normal(size=200)
    sparse *= math.sqrt(dim) / np.linalg.norm(sparse)
    dense = 2 * generator.normal(size=dim)
    noise = generator.normal(size=dim)
    error = {name: np.square(soft_threshold(f + noise, 1.0) - f).mean() for name, f in (("sparse", sparse), ("dense", dense))}
    assert 0.15 < error["sparse"] < 0.35
    assert 3 < error["dense"] < 4
