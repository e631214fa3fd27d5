import numpy as np
import pytest

from conftest import oracle
from hubbub.mechanism import utility, workloads
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, SingleParticipation
from hubbub.mechanism.strategies.fourier import Fourier
from hubbub.testing import brute_force_sensitivity

MF = oracle("matrix_factorization")
CASES = [case for case in MF["mechanism_errors"] if case["id"].startswith("fft")]


def circulant_root(n: int) -> np.ndarray:
    """By definition: the real circulant whose square has the prefix sum as its first n rows and columns, by O(n³) means."""
    kernel = np.concatenate([np.ones(n), np.zeros(n)])
    transform = np.exp(-2j * np.pi * np.outer(np.arange(2 * n), np.arange(2 * n)) / (2 * n))
    eigenvalues = transform @ kernel
    # Every second one is 0, whose rounding error would have a large root.
    eigenvalues[np.abs(eigenvalues) < 1e-9] = 0
    root = np.linalg.inv(transform) @ np.diag(np.sqrt(eigenvalues)) @ transform
    assert np.abs(root.imag).max() < 1e-9
    return root.real


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_both_decoders_have_the_reference_error_and_no_more_than_the_reference_sensitivity(case: dict) -> None:
    optimal = "optimal" in case["id"]
    strategy = Fourier(case["n"], "optimal" if optimal else "circulant")
    errors = utility.squared_errors(workloads.prefix_sum(case["n"]), strategy)
    assert errors.sum() == pytest.approx(case["total_sq_error"], rel=1e-12)
    assert errors.max() == pytest.approx(case["max_sq_error"], rel=1e-12)
    assert errors[-1] == pytest.approx(case["last_sq_error"], rel=1e-12)
    single = strategy.sensitivity(SingleParticipation()).value ** 2
    assert single <= case["sens2_single"] * (1 + 1e-12)
    assert not optimal or single == pytest.approx(case["sens2_single"], rel=1e-12)
    for k, known in case["fixed_epoch"].items():
        stated = strategy.sensitivity(FixedEpochs(int(k), case["n"] // int(k))).value ** 2
        assert stated <= min(known["sens2_abs"], known["sens2_spectral"]) * (1 + 1e-12)
        assert not optimal or stated == pytest.approx(known["sens2_abs"], rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 7, 16])
def test_the_optimal_decoder_keeps_the_inner_products_of_the_circulant(n: int) -> None:
    C = circulant_root(n)[:, :n]
    streamed = Fourier(n).matrix()
    np.testing.assert_allclose(streamed.T @ streamed, C.T @ C, atol=1e-10)
    errors = np.square(np.tri(n) @ np.linalg.pinv(C)).sum(axis=1)
    np.testing.assert_allclose(utility.squared_errors(workloads.prefix_sum(n), Fourier(n)), errors, rtol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 7, 16])
def test_the_circulant_decoder_streams_noise_of_the_same_law(n: int) -> None:
    P, A = circulant_root(n), np.tri(n)
    N = np.linalg.inv(A) @ P[:n]
    np.testing.assert_allclose(N @ P[:, :n], np.eye(n), atol=1e-9)
    streamed = utility.noising_matrix(Fourier(n, "circulant"))
    np.testing.assert_allclose(streamed @ streamed.T, N @ N.T, atol=1e-10)


@pytest.mark.parametrize("n", [2, 7, 16, 40])
def test_noise_of_the_same_law_hides_no_less_than_the_circulant(n: int) -> None:
    C, streamed = circulant_root(n)[:, :n], Fourier(n, "circulant").matrix()
    # Post-processing can lose only: the Gram matrix of what is streamed lies below.
    assert np.linalg.eigvalsh(C.T @ C - streamed.T @ streamed).min() > -1e-10


def test_negative_inner_products_are_not_dropped() -> None:
    C = Fourier(16).matrix()
    X = C.T @ C
    i, j = np.unravel_index(int(X.argmin()), X.shape)
    assert X[i, j] < -0.2
    pattern = MinSeparation(abs(int(i) - int(j)), 2)
    stated = Fourier(16).sensitivity(pattern)
    assert stated.value >= np.linalg.norm(C[:, i] - C[:, j]) * (1 - 1e-12)
    assert stated.value >= brute_force_sensitivity(C, pattern) * (1 - 1e-12)
