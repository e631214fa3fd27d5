"""Strategies whose inverse is banded: known values, other optimizers, and what a sensitivity may claim."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as draws
from scipy import optimize as scipy_optimize

from conftest import oracle
from hubbub import FixedEpochs, MinSeparation, SingleParticipation, factorization
from hubbub.factorization import banded_inverse as numerics
from hubbub.factorization import toeplitz as search
from hubbub.mechanism import utility, workloads
from hubbub.mechanism.strategies import BandedInverse, banded_inverse, matrices
from hubbub.mechanism.strategies.strategy import progress
from hubbub.testing import check_strategy
from matrix_oracles import unit_error

PATTERNS = [SingleParticipation(), MinSeparation(4, 3), FixedEpochs(3, 4), MinSeparation(2, 6)]


STRATEGIES = [
    BandedInverse(1, (2.0,)),
    BandedInverse(6, (0.5,)),
    BandedInverse(9, (1.0, -0.9)),
    BandedInverse(9, (1.0, 0.4, -0.8)),
    banded_inverse.square_root(8, 8),
    banded_inverse.square_root(30, 5),
    banded_inverse.square_root_of(workloads.momentum(9, 0.9), 3),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: f"{s.rounds} rounds, {s.bands} bands")
def test_the_inverse_of_c_is_banded_and_memory_is_what_a_step_carries(strategy: BandedInverse) -> None:
    inverse = np.linalg.inv(strategy.matrix())
    assert np.abs(np.tril(inverse, -strategy.bands)).max() < 1e-12
    assert strategy.memory_rows == progress(strategy, strategy.rounds).most_remembered
    np.testing.assert_array_equal(strategy.leading(1).matrix(), strategy.matrix()[:1, :1])


@pytest.mark.parametrize("case", oracle("matrix_factorization")["bisr"], ids=lambda case: case["id"])
def test_the_banded_inverse_square_root_has_the_known_values(case: dict) -> None:
    strategy = banded_inverse.square_root(case["n"], case["bands_inverse"])
    stated = strategy.sensitivity(MinSeparation(case["min_sep"], case["max_participations"]))
    first = len(case["noising_coef"])
    np.testing.assert_allclose(strategy.noising_coefficients[:first], case["noising_coef"], rtol=1e-12)
    np.testing.assert_allclose(strategy.coefficients[:16], case["strategy_coef_first16"], rtol=1e-12)
    assert stated.exact == case["coef_nonneg_nonincreasing"]
    assert stated.value**2 == pytest.approx(case["sens2"], rel=1e-10)
    errors = utility.squared_errors(workloads.prefix_sum(case["n"]), strategy)
    assert errors.mean() == pytest.approx(case["mean_sq_error"], rel=1e-10)
    assert errors.max() == pytest.approx(case["max_sq_error"], rel=1e-10)


@settings(max_examples=40)
@given(d=draws.lists(draws.floats(-1, 1), min_size=0, max_size=4), b=draws.integers(1, 7), k=draws.integers(1, 7))
def test_no_sensitivity_is_understated(d: list[float], b: int, k: int) -> None:
    check_strategy(BandedInverse(7, (1.0, *d)), [SingleParticipation(), MinSeparation(b, k), FixedEpochs(k, b)])


@pytest.mark.parametrize("objective", ["mean", "max"])
@pytest.mark.parametrize(("rounds", "bands", "beta"), [(30, 1, 0.0), (30, 2, 0.0), (40, 5, 0.0), (40, 4, 0.9), (12, 12, 0.0)])
def test_at_one_participation_nothing_is_better_and_it_is_proved(rounds: int, bands: int, beta: float, objective: str) -> None:
    A = workloads.momentum(rounds, beta)
    result = factorization.banded_inverse.optimize(A, bands=bands, objective=objective)
    assert result.relative_gap < 1e-8
    assert "Toeplitz inverse" in result.bound_family
    if bands == 1:
        return

    def dense(d: np.ndarray) -> float:
        D = matrices.matrix(np.append(1.0, d), rounds)
        errors = np.square(A.matrix() @ D).sum(axis=1)
        return np.log((errors.max() if objective == "max" else errors.mean()) * np.square(np.linalg.inv(D)).sum(axis=0).max())

    start = -np.random.default_rng(0).uniform(0.1, 0.5, bands - 1)
    other = scipy_optimize.minimize(dense, start / np.arange(1, bands) ** 2, method="BFGS", options={"maxiter": 300})
    assert np.exp(other.fun) >= result.squared_error * (1 - 1e-8)


@settings(max_examples=40)
@given(d=draws.lists(draws.floats(-1, 1), min_size=2, max_size=2), at=draws.floats(0.05, 0.95))
def test_the_bound_holds_for_every_strategy_wherever_it_is_taken(d: list[float], at: float) -> None:
    A, other = workloads.prefix_sum(15), BandedInverse(15, (1.0, *d))
    for pattern in (SingleParticipation(), MinSeparation(5, 3), MinSeparation(3, 2)):
        for objective in ("mean", "max"):
            cost = unit_error(A, other, objective) * other.sensitivity(pattern).value ** 2
            weights, inverse = search.row_weights(15, objective), np.array([1.0, -at, at / 9])
            bound = numerics.banded_inverse_bound(A.coefficients(), weights, inverse, *matrices.worst_rounds(pattern, 15))
            assert cost >= bound


@pytest.mark.parametrize("movement", ["signed", "magnitude", "majorant"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("d", [(1.0, -0.5, -0.1, 0.02), (1.0, -0.4, 0.3, -0.6)])
def test_the_gradient_is_that_of_finite_differences(movement: numerics.Movement, pattern: MinSeparation, d: tuple) -> None:
    a, weights = workloads.momentum(12, 0.6).coefficients(), search.row_weights(12, "mean")
    function = numerics.error_and_movement(a, weights, 4, *matrices.worst_rounds(pattern, 12), movement)
    point = np.array(d)
    numeric = [(function(point + 1e-6 * e)[0] - function(point - 1e-6 * e)[0]) / 2e-6 for e in np.eye(4)]
    np.testing.assert_allclose(function(point)[1], numeric, rtol=1e-5, atol=1e-5 * np.abs(numeric).max())
    assert function(3 * point)[0] == pytest.approx(function(point)[0], rel=1e-12)


@pytest.mark.parametrize("pattern", [MinSeparation(12, 5), MinSeparation(1, 60)])
def test_two_bands_are_the_best_lambda_by_trying_all(pattern: MinSeparation) -> None:
    A = workloads.prefix_sum(60)
    result = factorization.banded_inverse.optimize(A, bands=2, participation=pattern)
    tried = [BandedInverse(60, (1.0, -x)) for x in np.linspace(0, 1, 401)]
    errors = [unit_error(A, s) * s.sensitivity(pattern).value ** 2 for s in tried]
    assert result.squared_error <= min(errors) * (1 + 1e-12)
    assert result.squared_error == pytest.approx(min(errors), rel=1e-4)


def test_an_inverse_that_explodes_is_refused_where_it_is_needed() -> None:
    strategy = BandedInverse(500, (1.0, -3.0))
    with pytest.raises(ValueError, match=r"noising_coefficients.*grows too far in 500 rounds"):
        strategy.sensitivity(SingleParticipation())


def test_a_sensitivity_that_rounding_may_raise_is_called_a_bound() -> None:
    found = [BandedInverse(40, (1.0, last)).sensitivity(SingleParticipation()) for last in (-0.5, -1.9)]
    assert [one.exact for one in found] == [True, False]


@pytest.mark.parametrize("power", range(1, 8))
@pytest.mark.parametrize("root", [1.0, 0.97 * np.exp(0.1j)], ids=["on the circle", "a pair near it"])
def test_acc_2_no_sensitivity_is_lost_to_rounding_where_roots_cluster(root: complex, power: int) -> None:
    # 0.3 is no power of two, so that coefficients are rounded.
    d = 0.3 * np.poly([1 / root, 1 / np.conj(root)] * power).real
    strategy, exact, digits = BandedInverse(300, tuple(d.tolist())), list[Fraction](), [Fraction(x) for x in d.tolist()]
    for i in range(300):
        known = sum((digits[k] * exact[i - k] for k in range(1, min(i, len(digits) - 1) + 1)), Fraction(0))
        exact.append((Fraction(i == 0) - known) / digits[0])
        # A double of twice the digits: exact fractions would grow with each round.
        exact[-1] = Fraction(round(exact[-1] * 2**160), 2**160)
    truth = math.sqrt(sum(x * x for x in exact))
    try:
        stated = strategy.sensitivity(SingleParticipation()).value
    except ValueError as error:
        assert "grows too far" in str(error)  # noqa: PT017
        assert power > 2
    else:
        assert truth * (1 - 1e-15) <= stated <= truth * (1 + 2e-3)
