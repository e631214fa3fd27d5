"""How loud the noise of a run is: by closed forms and by matrices, beside the definition and noise that was really drawn."""

import numpy as np
import pytest

from hubbub.experiment.estimates import noise_levels
from hubbub.factorization import families
from hubbub.factorization.families import DESCRIPTIONS, Family
from hubbub.mechanism.participation import FixedEpochs, SingleParticipation
from hubbub.mechanism.utility import noising_matrix, squared_errors
from hubbub.mechanism.workloads import Workload, prefix_sum

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
