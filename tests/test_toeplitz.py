"""The best banded Toeplitz strategies: known values, other optimizers, and a proof that nothing in the family is better."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as draws
from scipy import optimize as scipy_optimize

from conftest import oracle
from hubbub import FixedEpochs, Mechanism, MinSeparation, SingleParticipation, factorization
from hubbub.factorization import normalized_toeplitz as normalized_numerics
from hubbub.factorization import toeplitz as search
from hubbub.factorization.bounds import toeplitz_bound
from hubbub.mechanism import workloads
from hubbub.mechanism.strategies import Banded, BandedToeplitz, Dense, NormalizedToeplitz, Semiseparable, matrices, toeplitz
from hubbub.testing import brute_force_sensitivity, check_strategy
from matrix_oracles import require_reference, unit_error

MF = oracle("matrix_factorization")
MOMENTUM = [0.0, 0.9]


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.95])
def test_the_root_series_squared_is_the_workload_and_falls(beta: float) -> None:
    root, inverse = (matrices.root_series(beta, 300, power) for power in (0.5, -0.5))
    np.testing.assert_allclose(np.convolve(root, root)[:300], workloads.momentum(300, beta).coefficients(), rtol=1e-11)
    np.testing.assert_allclose(np.convolve(root, inverse)[:300], np.eye(1, 300)[0], atol=1e-12)
    assert (np.diff(root) < 0).all()


@pytest.mark.parametrize(("length", "bands"), [(7, 3), (2600, 900), (4000, 2500)])
def test_products_inverses_and_divisions_of_series_are_those_of_their_matrices(length: int, bands: int) -> None:
    c, a = matrices.binomial(0.99, -0.5, bands), np.random.default_rng(0).normal(size=length)
    T = matrices.matrix(c, length)
    np.testing.assert_allclose(matrices.multiply(a, c, length), T @ a, atol=1e-10)
    np.testing.assert_allclose(T @ matrices.inverse(c, length), np.eye(1, length)[0], atol=1e-12)
    np.testing.assert_allclose(T @ matrices.divide(a, c), a, atol=1e-10)
    np.testing.assert_allclose(T.T @ matrices.transposed_divide(a, c), a, atol=1e-10)


@settings(max_examples=50)
@given(
    coefficients=draws.lists(draws.floats(-1, 1), min_size=1, max_size=8),
    separation=draws.integers(1, 8),
    participations=draws.integers(1, 8),
)
def test_no_sensitivity_is_understated(coefficients: list[float], separation: int, participations: int) -> None:
    strategy = BandedToeplitz(8, (1.0, *coefficients[:7]))
    patterns = [MinSeparation(separation, participations), FixedEpochs(participations, separation)]
    for large in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if large:  # without the help of the dense matrix, as for many rounds
                patch.setattr(matrices, "_DENSE", 0)
            check_strategy(strategy, [SingleParticipation(), *patterns])


KNOWN = [case for case in MF["banded_toeplitz"] if case["n"] <= 1000 or case["bands"] <= 400]


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: case["id"])
def test_the_optimum_has_the_known_value_and_a_proof(case: dict) -> None:
    A = workloads.prefix_sum(case["n"])
    result = factorization.toeplitz.optimize(A, bands=case["bands"])
    assert case["value"] * (1 - 1e-9) <= result.squared_error <= case["value"] * (1 + 1e-10)
    assert result.lower_bound <= result.squared_error
    assert 0 <= result.relative_gap < 1e-10
    assert result.bound_family == f"every banded Toeplitz strategy of at most {case['bands']} bands"
    if case["coef"]:
        np.testing.assert_allclose(result.strategy.coefficients, case["coef"], atol=1e-4)
    if case["n"] > 1000:
        assert result.squared_error == pytest.approx(case["value"], rel=1e-10)
        assert result.iterations <= 25


@pytest.mark.parametrize("objective", ["mean", "max"])
@pytest.mark.parametrize("pattern", [SingleParticipation(), MinSeparation(6, 3), FixedEpochs(4, 6), MinSeparation(7, 2)])
@pytest.mark.parametrize("beta", MOMENTUM)
def test_another_optimizer_from_another_start_finds_nothing_better(objective: str, pattern: MinSeparation, beta: float) -> None:
    n, bands = 20, 6
    A = workloads.momentum(n, beta, np.full(n, 0.5))
    result = factorization.toeplitz.optimize(A, bands=bands, participation=pattern, objective=objective)
    truth = unit_error(A, result.strategy, objective) * brute_force_sensitivity(result.strategy.matrix(), pattern) ** 2
    assert result.squared_error == pytest.approx(truth, rel=1e-9)

    def dense(c: np.ndarray) -> float:
        C = matrices.matrix(np.append(1.0, c), n)
        errors = np.square(A.matrix() @ np.linalg.inv(C)).sum(axis=1)
        return np.log((errors.max() if objective == "max" else errors.mean()) * squared(C))

    def squared(C: np.ndarray) -> float:
        norms = np.square(C).sum(axis=0)
        if isinstance(pattern, SingleParticipation):
            return norms.max()
        k, b = (pattern.max_participations, pattern.min_separation) if isinstance(pattern, MinSeparation) else (4, 6)
        return norms[: k * b : b].sum()

    starts = np.random.default_rng(0).uniform(-0.4, 0.6, (3, bands - 1))
    others = [scipy_optimize.minimize(dense, start, method="BFGS").fun for start in starts]
    assert np.exp(min(others)) >= result.squared_error * (1 - 1e-8)
    assert np.exp(min(others)) >= result.lower_bound * (1 - 1e-9)
    # Where the last column of a client runs out of rounds, the proof may be less than tight.
    assert result.relative_gap < (0.1 if isinstance(pattern, FixedEpochs) else 1e-9)


@pytest.mark.parametrize("pattern", [MinSeparation(4, 3), FixedEpochs(3, 4)])
def test_overlapping_columns_keep_an_exact_sensitivity(pattern: MinSeparation) -> None:
    A = workloads.prefix_sum(40)
    result = factorization.toeplitz.optimize(A, bands=16, participation=pattern)
    assert result.bound_family in ("every strategy", "every lower-triangular Toeplitz strategy")
    stated = result.strategy.sensitivity(pattern)
    truth = brute_force_sensitivity(result.strategy.matrix(), pattern)
    assert stated.exact
    assert stated.value == pytest.approx(truth, rel=1e-12)
    assert result.squared_error == pytest.approx(unit_error(A, result.strategy) * truth**2, rel=1e-10)
    few = factorization.toeplitz.optimize(A, bands=4, participation=pattern)
    assert result.lower_bound <= result.squared_error < 0.999 * few.squared_error


@settings(max_examples=40)
@given(c=draws.lists(draws.floats(-1.5, 1.5), min_size=1, max_size=6), beta=draws.sampled_from(MOMENTUM))
def test_the_bounds_hold_for_every_strategy_wherever_they_are_taken(c: list[float], beta: float) -> None:
    n, A = 15, workloads.momentum(15, beta)
    other = BandedToeplitz(n, (1.0, *c[:5]))
    anywhere = np.append(1.0, np.random.default_rng(len(c)).uniform(-0.5, 0.9, 5))
    root = matrices.root_series(beta, n)
    for pattern in (SingleParticipation(), MinSeparation(6, 2)):
        for objective in ("mean", "max"):
            cost = unit_error(A, other, objective) * other.sensitivity(pattern).value ** 2
            weights = search.row_weights(n, objective)
            assert cost >= search.banded_bound(A.coefficients(), weights, anywhere, *matrices.worst_rounds(pattern, n))
            assert cost >= toeplitz_bound(root, len(root), 1, objective == "mean") * (1 - 1e-12)


@given(seed=draws.integers(0, 10**6), bands=draws.integers(1, 6))
def test_the_quick_bound_on_an_eigenvalue_is_never_below_it(seed: int, bands: int) -> None:
    generator = np.random.default_rng(seed)
    f, scales, counted = generator.normal(size=9), generator.uniform(0.1, 2, 9), generator.uniform(1, 2, bands)
    form = search._Form(f, scales, counted)
    values, vectors = np.linalg.eigh(form.matrix())
    # Any eigenvector, not only the first: what is beside it must then be bounded as well.
    point = vectors[:, generator.integers(bands)] + generator.choice([0.0, 1e-3, 0.3]) * generator.normal(size=bands)
    assert form.largest(point / np.linalg.norm(point)) >= values[-1] * (1 - 1e-12)


def test_the_full_square_root_is_the_best_for_the_largest_error() -> None:
    for beta in MOMENTUM:
        result = factorization.toeplitz.optimize(workloads.momentum(64, beta), bands=64, objective="max")
        root = matrices.root_series(beta, 64)
        np.testing.assert_allclose(result.strategy.coefficients, root / np.linalg.norm(root), atol=1e-9)
        assert toeplitz_bound(root, len(root), 1, mean=False) == pytest.approx(result.squared_error, rel=1e-10)


@pytest.mark.parametrize(("rounds", "bands", "beta"), [(20, 20, 0.0), (40, 8, 0.0), (40, 8, 0.9)])
def test_normalized_columns_lower_the_error_to_a_value_that_the_definition_confirms(
    rounds: int, bands: int, beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normalized_numerics, "_CHUNK", 9)  # so that the last rows come in several parts
    A = workloads.momentum(rounds, beta)
    result, plain = factorization.normalized_toeplitz.optimize(A, bands=bands), factorization.toeplitz.optimize(A, bands=bands)
    assert result.squared_error == pytest.approx(unit_error(A, result.strategy), rel=1e-10)
    assert result.lower_bound <= result.squared_error < plain.squared_error
    start = np.random.default_rng(0).uniform(0.1, 0.5, bands - 1)
    other = scipy_optimize.minimize(
        lambda c: normalized_numerics.mean_error(np.append(1.0, c), rounds, beta)[0] / plain.squared_error, start, method="BFGS"
    )
    assert other.fun * plain.squared_error == pytest.approx(result.squared_error, rel=1e-6)


def case_of(identity: str) -> tuple[workloads.Workload, BandedToeplitz | NormalizedToeplitz] | None:
    """The workload and strategy that the id of a reference value names."""
    n = int(next(part for part in identity.split("_") if part.startswith("n") and part[1:].isdigit())[1:])
    A = workloads.prefix_sum(n)
    if identity.startswith("workload_momentum"):
        rates = np.ones(n)
        rates[n - n // 4 :] = np.linspace(1, 0.05, n // 4)
        A = workloads.momentum(n, float(identity.split("_")[1].removeprefix("momentum")), rates)
    root = toeplitz.square_root(n, n)
    if identity.startswith("banded_sqrt_b"):
        return A, toeplitz.square_root(n, int(identity.split("_")[2][1:]))
    if "sqrt_toeplitz_colnorm" in identity:
        return A, NormalizedToeplitz(n, root.coefficients)
    if identity.startswith("sqrt_toeplitz"):
        return A, root
    if identity.startswith("input_is_output"):
        return A, BandedToeplitz(n, (1.0,) * n)
    return (A, BandedToeplitz(n, (1.0,))) if identity.endswith("identity") or identity.startswith("identity") else None


@pytest.mark.parametrize(
    "case",
    [c for c in MF["mechanism_errors"] if not c["id"].startswith(("tree", "fft", "stamped"))],
    ids=lambda case: case["id"],
)
def test_a_closed_form_has_the_known_error_and_sensitivity(case: dict) -> None:
    A, strategy = case_of(case["id"])
    assert strategy.sensitivity(SingleParticipation()).value ** 2 == pytest.approx(case["sens2_single"], rel=1e-12)
    require_reference(case, strategy, A, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("v", [0.1, 0.01])
def test_long_sums_are_stated_no_lower_than_they_are_and_lose_no_digits(v: float) -> None:
    n, ones = 200_000, np.ones((200_000, 1))
    square, once, normed = Fraction(v) ** 2, SingleParticipation(), NormalizedToeplitz(n, (v,) * n)
    for strategy, pattern, exact in (
        (BandedToeplitz(n, (v,) * n), once, n * square),
        (BandedToeplitz(5 * n, (v,) * 5 * n), MinSeparation(5 * n, 1), 5 * n * square),
        (BandedToeplitz(n, (v,) * n), MinSeparation(1, 2), (4 * n - 3) * square),
        (Banded(np.tri(2000)[::-1] * v), once, 2000 * square),
        (Dense(np.tri(500) * v), once, 500 * square),
        (normed, once, n * square / Fraction(float(normed.column_norms[-1])) ** 2),
        (Semiseparable(ones[:, 0], ones * v, ones, ones), once, 1 + (n - 1) * square),
    ):
        assert exact <= Fraction(strategy.sensitivity(pattern).stated()) ** 2 <= exact * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize("pattern", [MinSeparation(2, 50), MinSeparation(1, 3)])
def test_the_first_of_very_many_rounds_cost_at_most_what_all_do(pattern: MinSeparation) -> None:
    """No part of a normalized matrix is one, and a dense one would not fit: what bounds all rounds bounds the first."""
    mechanism = Mechanism(NormalizedToeplitz(20_001, (1.0, 0.5)), pattern, 1.0)
    for rounds in (1, 12_000):
        assert (first := mechanism.sensitivity_after(rounds)).value == mechanism.sensitivity.value
        assert not first.exact
