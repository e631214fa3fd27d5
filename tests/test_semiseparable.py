"""A few buffers whose coefficients change from round to round."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from hubbub import factorization
from hubbub.factorization import semiseparable as recursions
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Participation, SingleParticipation
from hubbub.mechanism.strategies import Semiseparable
from hubbub.mechanism.strategies import semiseparable as streamed
from hubbub.mechanism.workloads import momentum, prefix_sum
from hubbub.testing import check_strategy


def random_strategy(*, full: bool) -> Semiseparable:
    """Nine rounds and three buffers."""
    rng = np.random.default_rng(full)
    diagonal, outputs, transitions = rng.uniform(0.5, 1, 9), rng.normal(size=(9, 3)), rng.normal(size=(9, 3, 3)[: 2 + full])
    return Semiseparable(diagonal, outputs, 0.5 * transitions, rng.normal(size=(9, 3)))


def matrix_by_definition(strategy: Semiseparable) -> np.ndarray:
    n = strategy.rounds
    C = np.diag(np.asarray(strategy.diagonal))
    for j in range(n):
        for i in range(j + 1, n):
            state = strategy.inputs[j]
            for t in range(j + 1, i):
                factor = strategy.transitions[t]
                state = factor * state if factor.ndim == 1 else factor @ state
            C[i, j] = strategy.outputs[i] @ state
    return C


@pytest.mark.parametrize("full", [False, True])
def test_the_matrix_is_that_of_the_definition_and_the_contract_holds(full: bool) -> None:
    strategy = random_strategy(full=full)
    np.testing.assert_allclose(strategy.matrix(), matrix_by_definition(strategy), rtol=1e-12)
    check_strategy(strategy)
    check_strategy(strategy.leading(5))
    np.testing.assert_array_equal(strategy.leading(5).matrix(), strategy.matrix()[:5, :5])


@pytest.mark.parametrize("full", [False, True])
def test_errors_and_norms_by_recursion_are_those_of_the_matrices(full: bool) -> None:
    strategy = random_strategy(full=full)
    workload = momentum(9, 0.0, np.linspace(0.3, 1, 9))
    C = matrix_by_definition(strategy)
    errors = np.square(workload.matrix() @ np.linalg.inv(C)).sum(axis=1)
    np.testing.assert_allclose(recursions.squared_errors(workload, strategy.recursion()), errors, rtol=1e-10)
    np.testing.assert_allclose(streamed.column_norms(strategy.recursion()), np.square(C).sum(axis=0), rtol=1e-12)


def test_six_buffers_of_two_thousand_rounds_beat_every_blt_that_does_not_change() -> None:
    result = factorization.semiseparable.optimize(prefix_sum(2000))
    # 10.6943 is the least mean error of a BLT with six buffers, 10.0164910561 that of any strategy.
    assert 10.0164910560 <= result.squared_error <= 10.0166
    assert result.strategy.memory_rows == 6


def _exact_columns(strategy: Semiseparable) -> list[list[Fraction]]:
    """C by columns, of the numbers as they are, without rounding."""
    numbers = [np.vectorize(Fraction, otypes=[object])(part) for part in strategy.recursion()]
    diagonal, outputs, transitions, inputs = numbers
    columns = []
    for j in range(strategy.rounds):
        column, state = [Fraction(0)] * j + [diagonal[j]], inputs[j]
        for i in range(j + 1, strategy.rounds):
            column.append(outputs[i] @ state)
            state = transitions[i] * state
        columns.append(column)
    return columns


def test_one_participation_by_any_name_needs_no_matrix() -> None:
    rounds = 20_001
    strategy = Semiseparable(np.linspace(1, 2, rounds), np.ones((rounds, 1)), np.full((rounds, 1), 0.5), np.ones((rounds, 1)))
    for participation in (MinSeparation(5, 1), FixedEpochs(1, rounds), MinSeparation(rounds, 9)):
        assert strategy.sensitivity(participation) == strategy.sensitivity(SingleParticipation())
    # Of the first rounds alone: those after them have longer columns.
    assert strategy.sensitivity(FixedEpochs(1, 3)).value ** 2 == pytest.approx((1 + 2 / 20_000) ** 2 + 4 / 3, rel=1e-9)


@pytest.mark.parametrize("participation", [SingleParticipation(), FixedEpochs(2, 3), MinSeparation(2, 2)])
@pytest.mark.parametrize("size", [1.0, 1e2, 1e4, 1e6, 1e8])
def test_buffers_that_nearly_cancel_understate_nothing(size: float, participation: Participation) -> None:
    for seed in range(20):
        random = np.random.default_rng(seed)
        outputs = np.tile([size, -size], (6, 1))
        outputs[:, 1] += random.normal(size=6)
        diagonal, inputs = random.uniform(1e-3, 1, 6), random.uniform(0.7, 0.9, (6, 1)) * [1, 1]
        strategy = Semiseparable(diagonal, outputs, np.full((6, 2), 0.6), inputs)
        columns = _exact_columns(strategy)
        sets = (rounds for count in (1, 2) for rounds in itertools.combinations(range(6), count))
        truth = max(
            sum((x + sign * y) ** 2 for x, y in zip(columns[rounds[0]], columns[rounds[-1]], strict=True))
            / (4 if len(rounds) == 1 else 1)
            for rounds in sets
            if participation.allows(rounds)
            for sign in (1, -1)
        )
        stated = strategy.sensitivity(participation).value
        assert Fraction(stated) ** 2 >= truth
        assert stated == pytest.approx(float(truth) ** 0.5, rel=1e-9 + 1e-13 * size)
