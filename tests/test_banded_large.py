"""The optimal banded factorization at the sizes that people use: quality, memory and what was proved."""

from typing import Any

import numpy as np
import pytest

from conftest import oracle
from hubbub import factorization
from hubbub.mechanism import utility, workloads
from hubbub.mechanism.participation import MinSeparation

MF = oracle("matrix_factorization")
pytestmark = pytest.mark.slow

# Rounds, bands, and where another implementation proved the least mean error to be.
BRACKETS = [
    (512, 100, 9.06493673, 9.06493722),
    (1000, 200, 10.29132482, 10.29132604),
    (2000, 400, 11.71872176, 11.71872310),
    (2000, 1000, 10.25159270, 10.25159400),
]


@pytest.mark.parametrize(("rounds", "bands", "low", "high"), BRACKETS)
def test_the_proved_bracket_meets_the_one_of_the_reference(rounds: int, bands: int, low: float, high: float) -> None:
    result = factorization.banded.optimize(workloads.prefix_sum(rounds), bands, relative_gap=1e-4)
    assert low <= result.squared_error <= low * (1 + 1e-4)
    assert result.lower_bound <= high
    assert result.relative_gap <= 1e-4


@pytest.mark.parametrize("case", MF["banded_mean_large"][:2], ids=lambda case: case["id"])
def test_the_mean_error_is_that_of_the_reference(case: dict[str, Any]) -> None:
    workload = workloads.prefix_sum(case["n"])
    result = factorization.banded.optimize(workload, case["bands"], relative_gap=1e-6)
    assert case["dual_lower_bound"] * (1 - 1e-9) <= result.squared_error <= case["mean_sq_error"] * (1 + 1e-6)
    assert result.lower_bound <= case["mean_sq_error"]
    assert result.relative_gap <= 1e-6
    assert result.squared_error == pytest.approx(utility.mean_squared_error(workload, result.strategy), rel=1e-9)


def test_a_published_setting_with_a_cooldown_of_the_learning_rate_is_solved() -> None:
    case = MF["gboard_like"][0]
    rates = np.concatenate([np.ones(1500), np.linspace(1, 0.05, 500)])
    participation = MinSeparation(400, 5)
    # The published workload scales the columns of the prefix sum: the learning rate of a round is that of its update.
    result = factorization.banded.optimize(
        workloads.momentum(2000, 0.0, rates), 400, participation=participation, relative_gap=1e-5
    )
    value = case["mean_sq_error_unit_columns"]
    assert result.squared_error == pytest.approx(5 * value, rel=1e-5)
    assert result.squared_error >= 5 * value * (1 - 2e-6)


def test_without_a_proof_of_its_own_the_bound_is_that_of_every_strategy() -> None:
    result = factorization.banded.optimize(
        workloads.prefix_sum(6000), 16, participation=MinSeparation(16, 2), relative_gap=0.01
    )
    assert result.bound_family == "every strategy"
    assert 0 < result.lower_bound < result.squared_error


def test_the_largest_error_of_many_rounds_is_proved_too() -> None:
    workload = workloads.prefix_sum(128)
    result = factorization.banded.optimize(workload, 32, objective="max")
    mean = factorization.banded.optimize(workload, 32)
    assert result.relative_gap <= 1e-4
    assert result.squared_error < utility.max_squared_error(workload, mean.strategy)
