import math

import numpy as np
import pytest

from conftest import oracle
from hubbub import accounting
from hubbub.accounting import Gaussian, PoissonSampled
from hubbub.errors import ConfigError
from hubbub.mechanism import Mechanism, gaussian
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, PoissonSampling, SingleParticipation, every_round
from hubbub.mechanism.strategies import BinaryTree, Columns, Dense, Identity, toeplitz

FACTORIZATION = oracle("matrix_factorization")


@pytest.mark.parametrize("case", FACTORIZATION["accounting"], ids=lambda case: f"{case['sens2']} at {case['sigma']}")
def test_a_correlated_run_costs_half_its_squared_sensitivity_over_its_variance(case: dict) -> None:
    # One column of that norm: the noise multiplier is relative to it.
    column = math.sqrt(case["sens2"])
    mechanism = Mechanism(Dense([[column]]), SingleParticipation(), case["sigma"] / column)
    assert mechanism.stddev == pytest.approx(case["sigma"], rel=1e-15)
    assert mechanism.zcdp_rho == pytest.approx(case["zcdp"], rel=1e-14)


@pytest.mark.parametrize("case", FACTORIZATION["published_notebook"], ids=lambda case: case["id"])
def test_the_published_gboard_guarantees_come_out_to_the_last_digit(case: dict) -> None:
    squared = 0.2 if case["bands"] == 400 else 1.0
    pattern = MinSeparation(case["notebook_min_separation"] + 1, case["max_participations"])
    z = case["l2_clip_noise_multiplier"] / math.sqrt(squared)
    mechanism = Mechanism(Columns(case["n"], case["bands"], squared), pattern, z)
    exact = {3: 3.4240072730610398, 2: 0.99354995701953926}[case["max_participations"]]
    tight = accounting.guarantee(mechanism, delta=1e-10)
    assert tight.epsilon == pytest.approx(exact, rel=1e-13)
    # What was published was computed by dp_accounting on a mesh.
    assert exact * (1 - 1e-15) <= tight.epsilon < case["eps_pld_delta_1e10"] < exact * (1 + 2e-7)
    assert tight.zcdp_rho == pytest.approx(case["zcdp"], rel=1e-14)
    assert tight.sensitivity_exact


def test_what_is_stated_as_exact_is() -> None:
    C = np.tril(np.random.default_rng(2).normal(size=(6, 6))) + 2 * np.eye(6)
    mechanism = Mechanism(Dense(C), FixedEpochs(3, 2), 1.0)
    for t in range(1, 7):
        stated, own = accounting.guarantee(mechanism, 1e-5, rounds=t), mechanism.sensitivity_after(t)
        assert stated.sensitivity_exact <= (own.exact or own.value >= mechanism.l2_sensitivity)


def test_acc_9_replace_one_doubles_the_sensitivity() -> None:
    once = accounting.epsilon([(Gaussian(1.0), 1)], 1e-6, "replace-one")
    assert once == pytest.approx(gaussian.epsilon(1e-6, 0.5))
    mechanism = Mechanism(Identity(4), MinSeparation(2, 2), 1.0)
    single, double = (accounting.guarantee(mechanism, 1e-6, r).zcdp_rho for r in ("zero-out", "replace-one"))
    assert double == pytest.approx(4 * single)


@pytest.mark.parametrize("strategy", [Identity(40), toeplitz.square_root(40, 10), BinaryTree(40)], ids=repr)
@pytest.mark.parametrize(
    "participation", [MinSeparation(10, 4), FixedEpochs(4, 10), SingleParticipation(), every_round(40)], ids=repr
)
@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_calibrated_noise_is_the_least_in_the_budget(strategy: Identity, participation: MinSeparation, relation: str) -> None:
    mechanism = accounting.calibrate(strategy, participation, epsilon=3.0, delta=1e-6, neighboring_relation=relation)
    assert 3.0 * (1 - 1e-9) <= accounting.guarantee(mechanism, 1e-6, relation).epsilon <= 3.0
    less = Mechanism(strategy, participation, mechanism.noise_multiplier * (1 - 1e-6))
    assert accounting.guarantee(less, 1e-6, relation).epsilon > 3.0


@pytest.mark.parametrize("strategy", [Identity(12), toeplitz.square_root(12, 4), BinaryTree(12)], ids=repr)
def test_epsilon_after_t_rounds_grows_to_the_promise(strategy: Identity) -> None:
    mechanism = Mechanism(strategy, MinSeparation(4, 3), 1.0)
    spent = [accounting.guarantee(mechanism, 1e-5, rounds=t).epsilon for t in range(13)]
    assert spent[0] == 0
    assert spent == sorted(spent)
    assert spent[12] == accounting.guarantee(mechanism, 1e-5).epsilon
    # By hand for round t: the Gaussian with the sensitivity of the leading part and the noise of the whole run.
    for t in (1, 5, 12):
        sensitivity = strategy.leading(t).sensitivity(mechanism.participation).value
        assert spent[t] == pytest.approx(gaussian.epsilon(1e-5, mechanism.stddev / sensitivity), rel=1e-12)


@pytest.mark.parametrize("participation", [MinSeparation(2, 2), SingleParticipation(), FixedEpochs(2, 2)], ids=repr)
def test_acc_8_acc_9_adding_a_unit_is_refused_where_cohorts_depend_on_who_is_there(participation: MinSeparation) -> None:
    with pytest.raises(ValueError, match=r"add-or-remove-one.*draw random cohorts"):
        accounting.guarantee(Mechanism(Identity(4), participation, 1.0), 1e-5, "add-or-remove-one")


def test_acc_8_correlated_noise_with_random_cohorts_is_refused() -> None:
    with pytest.raises(ConfigError, match="independent noise only"):
        accounting.guarantee(Mechanism(toeplitz.square_root(4, 2), PoissonSampling(0.5), 1.0), 1e-5)


def test_the_leading_part_of_a_matrix_that_is_not_triangular_is_not_understated() -> None:
    class Reversed:
        """Rows of z numbered from the last round to the first."""

        rounds = 6
        step = Identity(6).step
        sensitivity = Identity(6).sensitivity

        def matrix(self) -> np.ndarray:
            return np.eye(6)[::-1]

    mechanism = Mechanism(Reversed(), every_round(6), 1.0)
    for t in range(1, 7):
        assert mechanism.sensitivity_after(t).value >= math.sqrt(t) * (1 - 1e-12)


@pytest.mark.parametrize(("z", "q"), [(0.027, 1.0), (0.03, 0.5), (0.025, 1e-3)])
def test_losses_beyond_the_range_of_the_exponential_do_not_lower_epsilon(z: float, q: float) -> None:
    ours = accounting.epsilon([(PoissonSampled(z, q), 1)], 1e-5, "add-or-remove-one")
    # One release: δ(ε) of the removal is q·δ_Gauss(ln(1 + (e^ε − 1)/q)), Balle, Barthe and Gaboardi 2018, Theorem 8.
    assert q * gaussian.delta(ours - math.log(q), z) <= 1e-5 * (1 + 1e-9)
