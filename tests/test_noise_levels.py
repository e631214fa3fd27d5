"""How loud the noise of a run is: by closed forms and by matrices, beside the definition and noise that was really drawn."""

import numpy as np
import pytest

from hubbub.experiment.estimates import MOST_ROUNDS, noise_levels
from hubbub.factorization import families
from hubbub.factorization.families import DESCRIPTIONS, Family
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import FixedEpochs, SingleParticipation
from hubbub.mechanism.strategies import Identity
from hubbub.mechanism.utility import noising_matrix, squared_errors
from hubbub.mechanism.workloads import Workload, prefix_sum
from hubbub.noise import NoiseStream

ROUNDS = 24
ROTATION = FixedEpochs(3, 8)
WORKLOADS = {
    "prefix sums": prefix_sum(ROUNDS),
    "momentum": Workload(ROUNDS, momentum=0.8),
    "one rate": Workload(ROUNDS, momentum=0.5, learning_rates=(0.3,) * ROUNDS),
    "cooldown": Workload(ROUNDS, momentum=0.5, learning_rates=tuple(np.linspace(1, 0.1, ROUNDS))),
}
FAMILIES = [Family(name) for name in DESCRIPTIONS if name != "file"]


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_levels_are_the_norms_of_rows_of_the_matrices_that_define_them(family: Family, workload: Workload) -> None:
    pattern = SingleParticipation() if family.name == "time-varying" else ROTATION
    strategy = families.strategy_of(family, prefix_sum(ROUNDS), pattern)
    levels = noise_levels(workload, strategy)
    assert levels is not None
    np.testing.assert_allclose(levels.releases, np.linalg.norm(noising_matrix(strategy), axis=1), rtol=1e-9)
    np.testing.assert_allclose(levels.models**2, squared_errors(workload, strategy), rtol=1e-9)
    assert levels.model("mean") == pytest.approx(np.sqrt(squared_errors(workload, strategy).mean()))
    assert levels.model("max") == pytest.approx(np.sqrt(squared_errors(workload, strategy).max()))


def test_levels_are_those_of_noise_that_is_really_drawn() -> None:
    """4,000 coordinates of each of 24 rounds: a deviation is off by 1.1 %; 5 % happens by chance once in 100,000 rounds."""
    mechanism = Mechanism(families.strategy_of(Family("blt"), prefix_sum(ROUNDS), ROTATION), ROTATION, 1.7)
    levels = noise_levels(prefix_sum(ROUNDS), mechanism.strategy)
    assert levels is not None
    stream = NoiseStream(mechanism, dim=4000, seed=3)
    rows = np.stack([stream.next_row().numpy() for _ in range(ROUNDS)])
    np.testing.assert_allclose(rows.std(axis=1), mechanism.stddev * levels.releases, rtol=0.05)
    np.testing.assert_allclose(rows.cumsum(axis=0).std(axis=1), mechanism.stddev * levels.models, rtol=0.08)


def test_a_long_run_has_levels_where_there_is_a_closed_form_and_none_elsewhere() -> None:
    rounds = MOST_ROUNDS + 1
    levels = noise_levels(prefix_sum(rounds), Identity(rounds))
    assert levels is not None
    assert levels.models[-1] == pytest.approx(rounds**0.5)
    banded = families.strategy_of(Family("tree"), prefix_sum(rounds), SingleParticipation())
    assert noise_levels(prefix_sum(rounds), banded) is None
