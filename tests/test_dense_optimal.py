"""The least error that any strategy reaches: against reference optima, slow oracles and its own proof."""

import numpy as np
import pytest

from conftest import oracle
from hubbub import FixedEpochs, MinSeparation, SingleParticipation, factorization
from hubbub.mechanism import utility
from hubbub.mechanism.participation import Participation
from hubbub.mechanism.sensitivity import Sensitivity
from hubbub.mechanism.strategies import Identity, dense, matrices
from hubbub.mechanism.workloads import momentum, prefix_sum
from hubbub.testing import brute_force_sensitivity, check_strategy
from matrix_oracles import workload_of

MF = oracle("matrix_factorization")
ONCE = SingleParticipation()


# Blocks of reference optima, how far an optimum may lie above them, and how far above its own bound.
MEANS = [("dense_single_mean", 1e-8, 1e-8), ("dense_single_mean_momentum_lr", 1e-6, 1e-6), ("dense_kb_mean", 1e-6, 1e-7)]


@pytest.mark.parametrize(
    ("case", "above", "gap"),
    [pytest.param(case, above, gap, id=case["id"]) for block, above, gap in MEANS for case in MF[block]],
)
def test_the_mean_error_is_the_least_under_any_workload_and_pattern(case: dict, above: float, gap: float) -> None:
    pattern = FixedEpochs(case["k"], case["b"]) if "k" in case else ONCE
    result = factorization.dense.optimize(workload_of(case), participation=pattern)
    assert case["mean_sq_error"] * (1 - 1e-9) <= result.squared_error <= case["mean_sq_error"] * (1 + above)
    assert result.relative_gap <= gap
    assert result.bound_family == "every strategy"


@pytest.mark.parametrize("case", MF["dense_single_max_gamma2"], ids=lambda c: c["id"])
def test_the_largest_error_of_one_participation_is_the_square_of_gamma_2(case: dict) -> None:
    result = factorization.dense.optimize(prefix_sum(case["n"]), objective="max")
    assert case["max_sq_error"] * (1 - 1e-9) <= result.squared_error <= case["max_sq_error"] * (1 + 1e-8)
    assert result.relative_gap <= 1e-8
    assert result.squared_error < case["optimal_toeplitz_max_sq_error"]


@pytest.mark.parametrize("pattern", [FixedEpochs(16, 1), FixedEpochs(8, 2), pytest.param(ONCE, marks=pytest.mark.slow)])
def test_the_largest_error_is_no_more_than_that_of_simpler_strategies(pattern: Participation) -> None:
    workload = momentum(16, 0.95) if pattern == ONCE else prefix_sum(16)
    found = factorization.dense.optimize(workload, participation=pattern, objective="max")
    simpler = [Identity(16), factorization.dense.optimize(workload, participation=pattern).strategy]
    for bands in (2, 16):
        simpler.append(factorization.toeplitz.optimize(workload, bands=bands, participation=pattern, objective="max").strategy)
    for other in simpler:
        error = utility.squared_errors(workload, other).max() * other.sensitivity(pattern).value ** 2
        assert found.squared_error <= error * 1.001
    if pattern == FixedEpochs(16, 1):
        # One client in all rounds: nothing is better than to cancel nothing.
        assert (found.squared_error, found.relative_gap) == (pytest.approx(256), pytest.approx(0, abs=1e-6))


def test_gamma_2_of_256_rounds_is_the_published_one() -> None:
    result = factorization.dense.optimize(prefix_sum(256), objective="max")
    assert result.root_squared_error == pytest.approx(2.5327161, abs=5e-8)


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c["id"], marks=() if c["n"] == 512 else pytest.mark.slow) for c in MF["dense_kb_mean_large"]]
)
def test_many_rounds_of_epochs_reach_their_least_mean_error(case: dict) -> None:
    result = factorization.dense.optimize(prefix_sum(case["n"]), participation=FixedEpochs(case["k"], case["b"]))
    # The reference states its own accuracy as about 1e-8.
    assert result.squared_error == pytest.approx(case["mean_sq_error"], rel=2e-8)
    assert result.relative_gap <= (1e-7 if case["n"] == 512 else 1e-6)


@pytest.mark.parametrize("participation", [SingleParticipation(), FixedEpochs(3, 4), FixedEpochs(2, 6)], ids=str)
@pytest.mark.parametrize(("objective", "beta", "gap"), [("mean", 0.0, 1e-5), ("max", 0.0, 1e-5), ("mean", 0.7, 1e-2)])
def test_uneven_rates_have_an_optimum_that_its_matrix_reaches_and_the_bound_proves(
    objective: str, beta: float, gap: float, participation: FixedEpochs
) -> None:
    workload = momentum(12, beta, np.linspace(1, 0.4, 12))
    result = factorization.dense.optimize(workload, participation=participation, objective=objective)
    C = result.strategy.matrix()
    errors = np.square(workload.matrix() @ np.linalg.inv(C)).sum(axis=1)
    reached = (errors.mean() if objective == "mean" else errors.max()) * brute_force_sensitivity(C, participation) ** 2
    assert reached == pytest.approx(result.squared_error, rel=1e-9)
    assert result.lower_bound <= reached * (1 + 1e-9)
    assert result.relative_gap < gap


@pytest.mark.slow
def test_the_optimum_of_a_hundred_thousand_rounds_is_that_of_the_reference() -> None:
    result = factorization.dense.optimize(prefix_sum(100_000))
    assert result.squared_error == pytest.approx(19.33184677841, rel=1e-6)
    assert result.relative_gap < 2e-8


def test_a_gram_matrix_becomes_the_strategy_with_those_inner_products() -> None:
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(6, 6))
    X = roots.T @ roots + np.eye(6)
    C = matrices.gram_root(X)
    np.testing.assert_allclose(C.T @ C, X, rtol=1e-12)
    # A plain Cholesky factor has the inner products of its rows instead: a peer's mistake.
    wrong = np.linalg.cholesky(X)
    assert np.abs(wrong.T @ wrong - X).max() > 0.1


def test_a_tall_strategy_becomes_a_streamable_one_with_its_sensitivity_and_the_error_of_its_best_decoder() -> None:
    C = np.random.default_rng(0).normal(size=(9, 6))
    strategy, A = dense.from_matrix(C), prefix_sum(6)
    check_strategy(strategy)
    assert strategy.sensitivity(ONCE).value == pytest.approx(np.linalg.norm(C, axis=0).max(), rel=1e-12)
    expected = np.square(A.matrix() @ np.linalg.pinv(C)).sum(axis=1)
    np.testing.assert_allclose(utility.squared_errors(A, strategy), expected, rtol=1e-9)


def test_an_exact_sensitivity_that_vectors_reach_and_no_signs_do_keeps_the_contract() -> None:
    class Stated(dense.Dense):
        def sensitivity(self, participation: object) -> Sensitivity:
            return Sensitivity(4.2**0.5, True, "three vectors at 120 degrees")

    gram = 1.4 * np.eye(3) - 0.4
    C = np.tril(np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T)
    assert brute_force_sensitivity(C, MinSeparation(1, 3)) < 4.2**0.5 - 0.1
    check_strategy(Stated(C), [MinSeparation(1, 3)])
