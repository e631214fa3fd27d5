import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from conftest import oracle
from hubbub import FixedEpochs, MinSeparation, SingleParticipation, factorization
from hubbub.factorization import blt as search
from hubbub.factorization.blt import squared_error_with_momentum
from hubbub.factorization.bounds import toeplitz_bound
from hubbub.mechanism import utility, workloads
from hubbub.mechanism.strategies import BufferedLinearToeplitz, blt, matrices
from hubbub.testing import check_strategy

MF = oracle("matrix_factorization")
ONCE = SingleParticipation()

STRATEGIES = [
    BufferedLinearToeplitz(1, (0.3,), (0.5,)),
    BufferedLinearToeplitz(9, (0.5,), (0.4,)),
    BufferedLinearToeplitz(9, (1e-12,), (0.3,)),
    BufferedLinearToeplitz(9, (0.02, 0.3, 0.9), (0.1, 0.3, 0.2)),
    BufferedLinearToeplitz(9, (0.3, 0.3), (0.1, 0.2)),
    # Coefficients that are larger than the one before, that are negative, and that change their sign.
    BufferedLinearToeplitz(9, (0.5, 0.1), (0.9, 0.8)),
    BufferedLinearToeplitz(9, (0.4,), (-0.7,)),
    BufferedLinearToeplitz(9, (0.05, 0.4), (0.6, -0.9)),
    BufferedLinearToeplitz(9, (0.1, 0.5), (0.5, -0.1)),
    BufferedLinearToeplitz(40, (0.02, 0.3), (0.1, 0.3)),
]


def _materialized(result: factorization.Optimized) -> float:
    """The error by definition, of the matrix and the stream; the sensitivity of the columns that Theorem 2 names."""
    strategy, n = result.strategy, result.strategy.rounds
    C = strategy.matrix()
    assert (np.diff(C[:, 0]) <= 0).all()
    assert (C[:, 0] >= 0).all()
    pattern = result.participation
    b, k = (n, 1) if pattern == ONCE else (pattern.min_separation, pattern.max_participations)
    squared = np.square(C[:, : b * k : b].sum(axis=1)).sum()
    errors = utility.squared_errors(result.workload, strategy)
    return float(squared * (errors.mean() if result.objective == "mean" else errors.max()))


@pytest.mark.parametrize("case", MF["blt"], ids=lambda case: case["id"])
def test_no_known_strategy_is_better_than_the_one_found(case: dict) -> None:
    pattern = ONCE if case["max_participations"] == 1 else MinSeparation(case["min_sep"], case["max_participations"])
    A = workloads.prefix_sum(case["n"])
    result = factorization.blt.optimize(A, buffers=case["buffers"], participation=pattern, objective=case["error"])
    assert result.squared_error <= case["loss"] * (1 + 1e-6)
    assert result.strategy.buffers <= case["buffers"]
    assert 0 < result.lower_bound <= result.squared_error * (1 + 1e-12)
    if result.squared_error < case["loss"] * (1 - 1e-9):
        # A better one than was known: then it must show it by definition.
        assert result.squared_error == pytest.approx(_materialized(result), rel=1e-11)


def test_local_optima_that_were_taken_for_the_best_are_left_behind() -> None:
    A = workloads.prefix_sum(1000)
    result = factorization.blt.optimize(A, buffers=3, participation=MinSeparation(100, 10), objective="mean")
    assert result.squared_error < 148.6886  # the reference has 148.6900
    assert result.squared_error == pytest.approx(_materialized(result), rel=1e-11)


@pytest.mark.parametrize("case", MF["blt_fixed"], ids=lambda case: case["id"])
def test_a_given_strategy_has_the_known_coefficients_sensitivity_and_errors(case: dict) -> None:
    n = case["n"]
    strategy = BufferedLinearToeplitz.from_decays(n, case["theta"], case["omega"])
    np.testing.assert_allclose(strategy.theta, case["theta"], rtol=1e-15)
    assert strategy.omega == tuple(case["omega"])
    np.testing.assert_allclose(strategy.coefficients(10), case["toeplitz_first10"], rtol=1e-13)
    np.testing.assert_allclose(utility.noising_matrix(strategy)[:10, 0], case["inverse_first10"], atol=1e-15)
    assert strategy.sensitivity(ONCE).value ** 2 == pytest.approx(case["sens2_single"], rel=1e-13)
    separated = strategy.sensitivity(MinSeparation(case["min_sep"], case["max_participations"]))
    assert separated.exact
    assert separated.value**2 == pytest.approx(case["sens2_minsep"], rel=1e-13)
    errors = blt.squared_errors(workloads.prefix_sum(n), strategy)
    assert errors[-1] == pytest.approx(case["max_sq_error"], rel=1e-12)
    assert errors.mean() == pytest.approx(case["mean_sq_error"], rel=1e-12)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_matrix_stream_and_sensitivity_agree_and_no_pattern_is_understated(strategy: BufferedLinearToeplitz) -> None:
    n = min(strategy.rounds, 9)
    separations = [MinSeparation(b, k) for b in (1, 2, 4, n + 5) for k in (2, n)]
    epochs = [FixedEpochs(k, b) for b in (1, 2, n) for k in (2, n)]
    check_strategy(strategy.leading(n), [ONCE, *separations, *epochs])
    check_strategy(strategy)


@pytest.mark.parametrize(("b", "k"), [(1, 300), (7, 4), (7, 43), (20, 15), (50, 2), (299, 2), (300, 1)])
def test_the_closed_form_of_the_sensitivity_is_the_norm_of_the_columns(b: int, k: int) -> None:
    for delta in (1e-14, 1e-6, 0.01, 0.7):
        strategy = BufferedLinearToeplitz(300, (delta, 0.2), (0.2, 0.3))
        columns = strategy.matrix()[:, : b * k : b].sum(axis=1)
        assert strategy.sensitivity(MinSeparation(b, k)).value == pytest.approx(np.linalg.norm(columns), rel=1e-13)


def test_many_participations_are_summed_over_coefficients() -> None:
    strategy = BufferedLinearToeplitz(200_000, (0.001, 0.2), (0.01, 0.3))
    columns = np.cumsum(strategy.coefficients(200_000))
    stated = strategy.sensitivity(MinSeparation(1, 10**9))
    assert stated.exact
    assert stated.value == pytest.approx(np.linalg.norm(columns), rel=1e-9)


@pytest.mark.parametrize("delta", [1e-9, 1e-10, 1e-13, 1e-200])
def test_a_decay_next_to_one_keeps_all_of_its_digits(delta: float) -> None:
    n = 10**7
    strategy = BufferedLinearToeplitz(n, (delta,), (1e-4,))
    # Σ_{i<m} (1 − δ)^{2i} by its first terms in m·δ, in whole numbers.
    m, d = n - 1, 2 * Fraction(delta) - Fraction(delta) ** 2
    exact = sum((-d) ** q * math.comb(m, q + 1) for q in range(8))
    squared = 1 + Fraction(1e-4) ** 2 * exact
    assert strategy.sensitivity(ONCE).value ** 2 == pytest.approx(float(squared), rel=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_errors_without_a_matrix_are_those_of_the_definition(strategy: BufferedLinearToeplitz, momentum: float) -> None:
    for rates in (None, (0.3,) * strategy.rounds):
        A = workloads.Workload(strategy.rounds, momentum, rates)
        np.testing.assert_allclose(blt.squared_errors(A, strategy), utility.squared_errors(A, strategy), rtol=1e-10)


def test_ten_million_rounds_need_no_matrix() -> None:
    n = 10**7
    result = factorization.blt.optimize(workloads.prefix_sum(n), buffers=4, objective="max")
    assert result.squared_error == pytest.approx(40.868669552, rel=1e-9)
    # Summed one by one, with what float64 loses over so many rounds.
    last = blt.squared_errors(result.workload, result.strategy)[-1]
    assert last * result.strategy.sensitivity(ONCE).value ** 2 == pytest.approx(result.squared_error, rel=1e-8)


@pytest.mark.parametrize("n", [2, 7, 30])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_no_toeplitz_strategy_is_below_the_bound(n: int, momentum: float) -> None:
    # Coefficients of any sign, and the square root itself, which attains the bound of one participation and the last row.
    generator = np.random.default_rng(n)
    A = workloads.Workload(n, momentum).matrix()
    root = matrices.root_series(momentum, n)
    tried = [root, *(root * (1 + generator.normal(size=n) * size) for size in (0.01, 0.1, 1.0) for _ in range(30))]
    for b, k in ((n, 1), (1, 2), (2, 4), (3, 2)):
        k = min(k, -(-n // b))
        bounds = [toeplitz_bound(root, b, k, mean=mean) for mean in (False, True)]
        reached = []
        for c in tried:
            C = np.tril(c[np.subtract.outer(np.arange(n), np.arange(n))])
            rows = np.square(A @ np.linalg.inv(C)).sum(axis=1)
            signs = np.array(list(itertools.product([1, -1], repeat=k)))
            squared = np.square(C[:, : b * k : b] @ signs.T).sum(axis=0).max()
            reached.append((rows.max() * squared, rows.mean() * squared))
        assert (np.min(reached, axis=0) >= np.array(bounds)).all()
        if k == 1:
            assert reached[0][0] == pytest.approx(bounds[0], rel=1e-9)


PROBLEMS = [
    search.Problem(50, 50, 1, mean=False),
    search.Problem(50, 50, 1, mean=True),
    search.Problem(50, 7, 4, mean=False),
    search.Problem(53, 1, 53, mean=True),
    search.Problem(10**7, 10**4, 900, mean=True),
    search.Problem(400, 50, 8, mean=False, momentum=0.9),
    search.Problem(400, 400, 1, mean=True, momentum=0.9),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
@pytest.mark.parametrize("buffers", [1, 2, 4])
def test_the_gradient_is_that_of_finite_differences(problem: search.Problem, buffers: int) -> None:
    generator = np.random.default_rng(buffers)
    gaps = generator.normal(size=2 * buffers - 1)
    if buffers == 4:
        gaps[1:3] = -9.0  # poles and zeros that all but meet
    p = np.concatenate([[-math.log(problem.rounds)], gaps])
    steps = 1e-5 * np.eye(2 * buffers)
    slopes = [(search._log_loss(p + h, problem)[0] - search._log_loss(p - h, problem)[0]) / 2e-5 for h in steps]
    np.testing.assert_allclose(search._log_loss(p, problem)[1], slopes, rtol=1e-7, atol=2e-8)


@pytest.mark.parametrize("beta", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("mean", [False, True])
def test_errors_with_momentum_are_summed_where_a_pole_meets_it(beta: float, mean: bool) -> None:
    r, w = np.array([1.0, 0.999, beta, beta * (1 + 1e-9), 0.1]), np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    n = 150
    b = (w * r ** np.arange(n)[:, None]).sum(axis=1)
    m = np.array([sum(beta ** (i - j) * b[j] for j in range(i + 1)) for i in range(n)])
    expected = np.cumsum(m**2).mean() if mean else (m**2).sum()
    assert squared_error_with_momentum(n, beta, mean, np.log(r), w)[0] == pytest.approx(expected, rel=1e-12)


def test_with_momentum_three_buffers_are_nearly_the_best_of_all_toeplitz_strategies() -> None:
    A = workloads.momentum(1000, 0.9)
    result = factorization.blt.optimize(A, buffers=3, objective="max")
    assert result.bound_family == "every lower-triangular Toeplitz strategy"
    assert result.relative_gap < 5e-3
    plain = factorization.blt.optimize(workloads.prefix_sum(1000), buffers=3, objective="max").strategy
    theirs = blt.squared_errors(A, plain)[-1] * plain.sensitivity(ONCE).value ** 2
    assert result.squared_error < 0.9 * theirs


def test_the_sensitivity_covers_the_decays_that_the_stream_computes_with() -> None:
    n, omega = 100_000, 2e9
    # On both sides of the middle of two neighbouring numbers 1 − δ.
    middle = (9_007_199 + 0.5) * 2.0**-53
    strategy = BufferedLinearToeplitz(n, (middle - 1e-18, middle + 1e-18), (omega, -omega))
    # 1 − θ is exact, and the two coefficients nearly cancel.
    first, second = (np.arange(n - 1) * math.log1p(-(1 - theta)) for theta in strategy.theta)
    norm = math.hypot(1, np.linalg.norm(omega * np.exp(first) * np.expm1(second - first)))
    assert 4 < norm <= strategy.sensitivity(SingleParticipation()).value
