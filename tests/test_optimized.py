"""What an optimizer of any family says of its answer is true of the answer's matrix and of its stream."""

import itertools
from contextlib import suppress

import numpy as np
import pytest

from hubbub.errors import ConfigError
from hubbub.factorization import FAMILIES, Optimized
from hubbub.factorization.families import Family, answer_of
from hubbub.mechanism import utility
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, SingleParticipation
from hubbub.mechanism.workloads import momentum
from hubbub.testing import brute_force_sensitivity, check_strategy

ROUNDS = 12


def answers(name: str, participation: SingleParticipation | FixedEpochs | MinSeparation) -> list[Optimized]:
    """Of a family, for both errors and with and without momentum; not every family does every problem."""
    found = []
    for objective, beta in itertools.product(("mean", "max"), (0.0, 0.7)):
        family = Family(name, objective=objective if "objective" in FAMILIES[name].options else None)
        with suppress(ConfigError, ValueError):
            found.append(answer_of(family, momentum(ROUNDS, beta, np.full(ROUNDS, 0.5)), participation))
    return found


@pytest.mark.parametrize("participation", [SingleParticipation(), MinSeparation(4, 3), FixedEpochs(3, 4)], ids=str)
@pytest.mark.parametrize("name", [name for name, record in FAMILIES.items() if record.optimizer])
def test_what_is_stated_of_an_optimum_is_true_of_its_matrix_and_its_stream(
    name: str, participation: SingleParticipation | FixedEpochs | MinSeparation
) -> None:
    found = answers(name, participation)
    assert found or type(participation).__name__ not in (*FAMILIES[name].repeats, "SingleParticipation")
    for answer in found:
        check_strategy(answer.strategy, [participation])
        # The rows of the noising matrix are those that the stream makes.
        errors = utility.squared_errors(answer.workload, answer.strategy)
        error = errors.mean() if answer.objective == "mean" else errors.max()
        stated, true = (
            answer.strategy.sensitivity(participation),
            brute_force_sensitivity(answer.strategy.matrix(), participation),
        )
        assert stated.value >= true * (1 - 1e-12)
        assert not stated.exact or stated.value == pytest.approx(true, rel=1e-9)
        assert answer.squared_error == pytest.approx(error * stated.value**2, rel=1e-9)
        assert answer.lower_bound <= error * true**2 * (1 + 1e-9)
