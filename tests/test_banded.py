"""The optimal banded factorization: its error, its gradient, its proof, and the strategy that carries it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import oracle
from hubbub import FixedEpochs, MinSeparation, SingleParticipation, factorization
from hubbub._util.checks import Array
from hubbub.factorization.banded import BandedError
from hubbub.factorization.certificate import lower_bound
from hubbub.mechanism import utility, workloads
from hubbub.mechanism.strategies import Banded, banded
from hubbub.mechanism.workloads import Workload
from matrix_oracles import workload_of

MF = oracle("matrix_factorization")


def _random(rounds: int, bands: int, seed: int) -> Array:
    generator = np.random.default_rng(seed)
    C = generator.normal(size=(rounds, bands)) * 0.3 / np.arange(1, bands + 1)
    C[:, 0] = generator.uniform(0.7, 1.3, rounds)
    # Where column j has a row j + d.
    return np.asarray(C * (np.add.outer(np.arange(rounds), np.arange(bands)) < rounds))


def _workload(rounds: int, momentum: float, seed: int | None) -> Workload:
    rates = None if seed is None else np.random.default_rng(seed).uniform(0.2, 1.5, rounds)
    return workloads.momentum(rounds, momentum, rates)


SHAPES = [(1, 1, 0.0), (2, 2, 0.9), (5, 2, 0.0), (9, 9, 0.5), (40, 7, 0.9), (130, 1, 0.0), (150, 60, 0.3)]


@pytest.mark.parametrize(("rounds", "bands", "momentum"), SHAPES)
@pytest.mark.parametrize("block", [None, 3])
def test_the_error_is_that_of_the_definition(rounds: int, bands: int, momentum: float, block: int | None) -> None:
    workload, C = _workload(rounds, momentum, 1), _random(rounds, bands, 2)
    weights = np.random.default_rng(3).uniform(0, 1, rounds)
    error = BandedError(workload.inverse_bands(), weights, bands, block)
    dense = sum(np.diag(C[: rounds - d, d], -d) for d in range(bands))
    truth = np.square(workload.matrix() @ np.linalg.inv(dense)).sum(axis=1)
    assert error(C)[0] == pytest.approx(weights @ truth, rel=1e-11)
    np.testing.assert_allclose(error.squared_errors(C), truth, rtol=1e-11)


@pytest.mark.parametrize("case", MF["banded_mean"] + MF["banded_mean_momentum_lr"], ids=lambda case: case["id"])
def test_the_mean_error_is_that_of_the_reference_and_proved_to_be(case: dict[str, Any]) -> None:
    result = factorization.banded.optimize(workload_of(case), case["bands"])
    assert case["mean_sq_error"] * (1 - 1e-9) <= result.squared_error <= case["mean_sq_error"] * (1 + 2e-7)
    assert result.lower_bound <= case["mean_sq_error"] * (1 + 1e-11)
    assert result.relative_gap <= 2e-7
    assert result.bound_family == f"every strategy of at most {case['bands']} bands"


@pytest.mark.parametrize("case", [case for case in MF["banded_mean"] if case["C"]], ids=lambda case: case["id"])
def test_the_strategy_is_that_of_the_reference(case: dict[str, Any]) -> None:
    result = factorization.banded.optimize(workload_of(case), bands=case["bands"], relative_gap=1e-12)
    np.testing.assert_allclose(np.abs(result.strategy.matrix()), np.abs(case["C"]), atol=1e-4)


@pytest.mark.parametrize("case", MF["banded_max_brackets"], ids=lambda case: case["id"])
def test_the_largest_error_lies_in_the_bracket_of_the_reference(case: dict[str, Any]) -> None:
    workload = workloads.prefix_sum(case["n"])
    result = factorization.banded.optimize(workload, case["bands"], objective="max", relative_gap=1e-5)
    assert case["lower"] * (1 - 1e-9) <= result.squared_error <= case["upper"] * (1 + 1e-5)
    assert result.lower_bound <= case["upper"]
    assert result.relative_gap <= 1e-5
    assert result.squared_error == pytest.approx(utility.max_squared_error(workload, result.strategy), rel=1e-10)


@given(seed=st.integers(0, 10**6), rounds=st.integers(2, 12), momentum=st.sampled_from([0.0, 0.8]), data=st.data())
@settings(max_examples=40, deadline=None)
def test_no_strategy_is_below_the_bound_of_any_other(seed: int, rounds: int, momentum: float, data: st.DataObject) -> None:
    bands = data.draw(st.integers(1, rounds))
    workload = _workload(rounds, momentum, seed)
    weights = np.random.default_rng(seed).dirichlet(np.full(rounds, 0.5))
    bound = lower_bound(_random(rounds, bands, seed), workload, weights)
    best = factorization.banded.optimize(workload, bands, weights=weights)
    assert 0 <= bound <= best.squared_error * (1 + 1e-9)


@pytest.mark.parametrize("weights", [None, "last", "some", "few"])
def test_the_error_stated_is_that_of_the_stream(weights: str | None) -> None:
    workload = workloads.momentum(24, 0.9, np.linspace(1, 0.1, 24))
    w = {None: np.ones(24), "last": np.eye(24)[-1], "some": np.linspace(0, 1, 24), "few": np.arange(24) % 7 == 3}[weights]
    result = factorization.banded.optimize(workload, 6, weights=None if weights is None else w)
    errors = utility.squared_errors(workload, result.strategy)
    assert result.squared_error == pytest.approx(float(w @ errors / w.sum()), rel=1e-9)
    assert result.lower_bound <= result.squared_error
    assert result.relative_gap < (1e-6 if weights in (None, "some") else 0.05)


def test_a_long_strategy_needs_no_matrix() -> None:
    rounds = 30_000
    strategy = Banded(_random(rounds, 3, 15).T)
    norms = np.square(strategy.diagonals).sum(axis=0)
    assert strategy.sensitivity(SingleParticipation()).value == pytest.approx(np.sqrt(norms.max()))
    assert strategy.sensitivity(MinSeparation(3, rounds)).exact
    assert strategy.sensitivity(MinSeparation(2, 1)).exact
    row, memory = strategy.step(0, lambda i: np.ones(2), ())
    assert row == pytest.approx(1 / np.asarray(strategy.diagonals)[0, 0] * np.ones(2))
    assert len(memory) == 1
    with pytest.raises(ValueError, match="a dense matrix of 7 GiB"):
        strategy.sensitivity(MinSeparation(2, 2))


@pytest.mark.parametrize(("rounds", "spread"), [(20, 1e12), (200, 1e9)])
def test_learning_rates_beyond_float64_are_refused_with_what_to_do(rounds: int, spread: float) -> None:
    with pytest.raises(ValueError, match=f"its learning rates, from {1 / spread:g} to 1, are too uneven .*use dense.optimize"):
        factorization.banded.optimize(workloads.momentum(rounds, 0.0, [1 / spread, 1.0] * (rounds // 2)), rounds // 10)


def test_columns_that_nobody_may_join_are_no_part_of_the_bound() -> None:
    # They could be of any norm: then the error of a banded strategy is lower.
    A, pattern = workloads.prefix_sum(10), FixedEpochs(1, 5)
    result = factorization.banded.optimize(A, 3, participation=pattern)
    diagonals = np.array(result.strategy.diagonals)
    diagonals[:, 5:] *= 1e3
    other = banded.Banded(diagonals)
    reached = utility.mean_squared_error(A, other) * other.sensitivity(pattern).value ** 2
    assert reached < result.squared_error
    assert result.lower_bound <= reached or "equal norm" in result.bound_family


# Rounds, bands, and where another implementation proved the least mean error to be.
BRACKETS = [
    (512, 100, 9.06493673, 9.06493722),
    (1000, 200, 10.29132482, 10.29132604),
    (2000, 400, 11.71872176, 11.71872310),
    (2000, 1000, 10.25159270, 10.25159400),
]


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "bands", "low", "high"), BRACKETS)
def test_the_proved_bracket_meets_the_one_of_the_reference(rounds: int, bands: int, low: float, high: float) -> None:
    result = factorization.banded.optimize(workloads.prefix_sum(rounds), bands, relative_gap=1e-4)
    assert low <= result.squared_error <= low * (1 + 1e-4)
    assert result.lower_bound <= high
    assert result.relative_gap <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("case", MF["banded_mean_large"][:2], ids=lambda case: case["id"])
def test_the_mean_error_is_that_of_the_reference(case: dict[str, Any]) -> None:
    workload = workloads.prefix_sum(case["n"])
    result = factorization.banded.optimize(workload, case["bands"], relative_gap=1e-6)
    assert case["dual_lower_bound"] * (1 - 1e-9) <= result.squared_error <= case["mean_sq_error"] * (1 + 1e-6)
    assert result.lower_bound <= case["mean_sq_error"]
    assert result.relative_gap <= 1e-6
    assert result.squared_error == pytest.approx(utility.mean_squared_error(workload, result.strategy), rel=1e-9)


@pytest.mark.slow
def test_a_published_setting_with_a_cooldown_of_the_learning_rate_is_solved() -> None:
    case = MF["gboard_like"][0]
    rates = np.concatenate([np.ones(1500), np.linspace(1, 0.05, 500)])
    # The published workload scales the columns of the prefix sum: the learning rate of a round is that of its update.
    workload = workloads.momentum(2000, 0.0, rates)
    result = factorization.banded.optimize(workload, 400, participation=MinSeparation(400, 5), relative_gap=1e-5)
    value = case["mean_sq_error_unit_columns"]
    assert result.squared_error == pytest.approx(5 * value, rel=1e-5)
    assert result.squared_error >= 5 * value * (1 - 2e-6)


@pytest.mark.slow
def test_without_a_proof_of_its_own_the_bound_is_that_of_every_strategy() -> None:
    workload = workloads.prefix_sum(6000)
    result = factorization.banded.optimize(workload, 16, participation=MinSeparation(16, 2), relative_gap=0.01)
    assert result.bound_family == "every strategy"
    assert 0 < result.lower_bound < result.squared_error


@pytest.mark.slow
def test_the_largest_error_of_many_rounds_is_proved_too() -> None:
    workload = workloads.prefix_sum(128)
    result = factorization.banded.optimize(workload, 32, objective="max")
    mean = factorization.banded.optimize(workload, 32)
    assert result.relative_gap <= 1e-4
    assert result.squared_error < utility.max_squared_error(workload, mean.strategy)
