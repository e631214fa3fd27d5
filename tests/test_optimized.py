"""What an optimizer of any family says of its answer is true of the answer's matrix and of its stream."""

import itertools
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hubbub import CyclicPoissonSampling, FixedEpochs, FixedSizeSampling, MinSeparation, SingleParticipation, factorization
from hubbub.accounting import BallsInBins, calibrate, group_epsilon, group_noise_multiplier, guarantee
from hubbub.accounting.events_of_mechanism import mechanism_events
from hubbub.errors import ConfigError
from hubbub.factorization import FAMILIES, Optimized, published, strategy_file
from hubbub.factorization.families import Family, answer_of
from hubbub.mechanism import Mechanism, sensitivity, utility
from hubbub.mechanism.gaussian import denoising, heterogeneous
from hubbub.mechanism.strategies import Dense, Described, Identity
from hubbub.mechanism.workloads import Workload, momentum, prefix_sum
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
        stated = answer.strategy.sensitivity(participation)
        true = brute_force_sensitivity(answer.strategy.matrix(), participation)
        assert stated.value >= true * (1 - 1e-12)
        assert not stated.exact or stated.value == pytest.approx(true, rel=1e-9)
        assert answer.squared_error == pytest.approx(error * stated.value**2, rel=1e-9)
        assert answer.lower_bound <= error * true**2 * (1 + 1e-9)


def test_a_shown_bound_is_no_higher_and_a_shown_gap_no_lower_than_the_proved_one() -> None:
    for gap in np.random.default_rng(3).uniform(0, 0.3, 50):
        found = Optimized(Identity(1), prefix_sum(1), SingleParticipation(), "mean", 1.0, 1 - gap, "every strategy", 0)
        card = found._repr_mimebundle_()["text/html"]
        assert float(re.search(r"([\d.e-]+), for every strategy", card)[1]) <= found.lower_bound
        assert found.relative_gap <= float(re.search(r"([\d.e-]+) of the squared error", card)[1]) <= found.relative_gap + 0.01


def test_what_is_no_strategy_no_workload_no_matrix_or_no_pattern_of_a_family_is_refused(tmp_path: Path) -> None:
    found, eight, once = answers("banded", SingleParticipation())[0], prefix_sum(8), FixedEpochs(1, 4)
    doors: list[tuple[str, Callable[[], object]]] = [
        (r"give its \.strategy", lambda: Mechanism(found, once, 1.0)),
        (r"such as Identity\(rounds\)", lambda: calibrate(np.eye(8), once, epsilon=1.0, delta=1e-5)),
        (r"prefix_sum\(rounds\)", lambda: factorization.banded.optimize(8, 2)),
        (r"prefix_sum\(rounds\)", lambda: factorization.blt.optimize(8)),
        (r"prefix_sum\(rounds\)", lambda: factorization.lower_bound(8, SingleParticipation(), "mean")),
        ("strategy = Workload", lambda: utility.mean_squared_error(found.strategy, found.workload)),
        ("must be an Optimized", lambda: strategy_file.save(tmp_path / "s.safetensors", found.strategy)),
        # Rounds that no client may join: the proved bound would be false.
        (r"SingleParticipation\(\) only", lambda: factorization.semiseparable.optimize(eight, participation=once)),
        ("a dense matrix of", prefix_sum(10**7).matrix),
        ("complex128 holds no real numbers", lambda: Dense(np.eye(3) * (1 + 5j))),
        ("must be an array of real numbers of 2 axes", lambda: Dense([[1.0], [1.0, 2.0]])),
        ("released = nan: must be finite", lambda: denoising.soft_threshold(np.nan, 1.0)),
        ("its columns are 0", lambda: Mechanism(Described(2, np.eye(2) * 2.7e-162), once, 1.0).column_norm),
        ("round_index = -1", lambda: sensitivity.of_sets(np.eye(2), [[-1]])),
        ("known = 5.0", lambda: heterogeneous.with_covariance([1.0], 5.0, epsilon=1.0)),
        ("clip_norms = 5", lambda: heterogeneous.for_blocks(5, [1], epsilon=1.0, delta=1e-5)),
        ("is no sequence of RunCharge", lambda: calibrate(Identity(4), once, epsilon=1.0, delta=1e-5, prior=tmp_path)),
        ("is no RunCharge", lambda: guarantee(Mechanism(Identity(4), once, 1.0), 1e-5, earlier=["run"])),
        ("mechanism = .*must be a Mechanism", lambda: guarantee(Identity(4), 1e-5)),
        ("evaluation = .*must be a pair", lambda: guarantee(Mechanism(Identity(4), once, 1.0), 1e-5, evaluation=1.0)),
        ("rounds = -1", lambda: mechanism_events(Mechanism(Identity(4), CyclicPoissonSampling(0.1, 8), 1.0), -1)),
        ("epsilon_at = 2.0", lambda: group_epsilon(2.0, 1e-5, 2)),
        ("learning_rates = 0.1", lambda: Workload(3, 0.5, 0.1)),
        ("learning_rates = '123'", lambda: momentum(3, 0.5, "123")),
        ("rounds = 1000", lambda: BallsInBins(1.0, 10**400, 10**400)),
        ("population = 1000", lambda: guarantee(Mechanism(Identity(4), FixedSizeSampling(2, 10**400), 1.0), 1e-5)),
        ("group_size = 1000", lambda: group_noise_multiplier(1.0, 10**400)),
        ("group_size = 1000", lambda: group_epsilon(lambda _: 0.1, 1e-5, 10**400)),
        ("rounds = 4.0: must", lambda: Mechanism(SimpleNamespace(rounds=4.0, matrix=0, sensitivity=0, step=0), once, 1.0)),
        ("fraction = 2", lambda: published.cooldown(8, fraction=2)),
    ]
    for words, door in doors:
        with pytest.raises((TypeError, ValueError), match=words):
            door()
