import json
import math
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from conftest import oracle
from hubbub import accounting, gaussian
from hubbub.accounting import FixedSizeSampled, Gaussian, PoissonSampled
from hubbub.accounting.ledger import Promise
from hubbub.errors import BudgetError, ConfigError, ParticipationError
from hubbub.mechanism import Mechanism
from hubbub.participation import (
    FixedEpochs,
    FixedSizeSampling,
    MinSeparation,
    PoissonSampling,
    SingleParticipation,
    every_round,
)
from hubbub.strategies import BinaryTree, Columns, Dense, Identity, toeplitz

ACCOUNTING = oracle("accounting")
FACTORIZATION = oracle("matrix_factorization")
PUBLISHED = FACTORIZATION["published_notebook"]
# What the composed bound may exceed the truth by, as its docstring states.
TOLERANCE = 1e-4


@pytest.mark.parametrize("case", FACTORIZATION["accounting"], ids=lambda case: f"{case['sens2']} at {case['sigma']}")
def test_a_correlated_run_costs_half_its_squared_sensitivity_over_its_variance(case: dict) -> None:
    # One column of that norm: the noise multiplier is relative to it.
    column = math.sqrt(case["sens2"])
    mechanism = Mechanism(Dense([[column]]), SingleParticipation(), case["sigma"] / column)
    assert mechanism.stddev == pytest.approx(case["sigma"], rel=1e-15)
    assert mechanism.zcdp_rho == pytest.approx(case["zcdp"], rel=1e-14)


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: case["id"])
def test_the_published_gboard_guarantees_come_out_to_the_last_digit(case: dict) -> None:
    squared = 0.2 if case["bands"] == 400 else 1.0
    mechanism = Mechanism(
        Columns(case["n"], case["bands"], squared),
        MinSeparation(case["notebook_min_separation"] + 1, case["max_participations"]),
        case["l2_clip_noise_multiplier"] / math.sqrt(squared),
    )
    published = accounting.guarantee(mechanism, delta=1e-10, accountant="pld")
    assert published.zcdp_rho == pytest.approx(case["zcdp"], rel=1e-14)
    assert published.epsilon == pytest.approx(case["eps_pld_delta_1e10"], rel=1e-13)
    exact = {3: 3.4240072730610398, 2: 0.99354995701953926}[case["max_participations"]]
    tight = accounting.guarantee(mechanism, delta=1e-10)
    assert tight.epsilon == pytest.approx(exact, rel=1e-13)
    assert exact * (1 - 1e-15) <= tight.epsilon < published.epsilon
    assert published.sensitivity_exact


CONTOUR = [
    pytest.param(point, marks=pytest.mark.slow if point["n"] > 10_000 else ())
    for point in ACCOUNTING["poisson_contour_reference"]
]


@pytest.mark.parametrize("point", CONTOUR, ids=lambda p: f"{p['q']}-{p['z']}-{p['n']}-{p['delta']}")
def test_poisson_composition_is_above_the_truth_and_near_it(point: dict) -> None:
    event = PoissonSampled(point["z"], point["q"])
    ours = accounting.epsilon([(event, point["n"])], point["delta"], "add-or-remove-one")
    # Two independent contours of the reference agree to 1e-7.
    assert point["eps_contour"] - 1e-7 <= ours <= point["eps_contour"] + 2 * TOLERANCE


@pytest.mark.parametrize(
    "point", ACCOUNTING["fixed_size_without_replacement_by_relation"], ids=lambda p: f"{p['population']}-{p['sample']}-{p['n']}"
)
def test_cohorts_of_a_fixed_size_are_above_what_is_attained_under_both_relations(point: dict) -> None:
    event = FixedSizeSampled(point["z_sigma_over_C"], point["sample"], point["population"])
    ours = accounting.epsilon([(event, point["n"])], point["delta"], "replace-one")
    assert point["replace_one_attained_lower"] - 1e-7 <= ours
    assert ours == pytest.approx(point["replace_one_upper_pld"], abs=2 * TOLERANCE)
    assert accounting.epsilon([(event, point["n"])], point["delta"], "zero-out") >= point["zero_out_attained_lower"] - 1e-7


def exact_one_round(q: float, z: float, epsilon: float, remove: bool) -> float:
    """Delta of one Poisson-sampled release by its definition, ∫ (p − e^ε q)⁺, over a fine grid."""
    x = np.linspace(-12 * z - 1, 12 * z + 2, 400_001)

    def masses(x: np.ndarray) -> np.ndarray:
        return np.where(x[:-1] > 0, ndtr(-x[:-1]) - ndtr(-x[1:]), ndtr(x[1:]) - ndtr(x[:-1]))

    base, shifted = masses(x / z), masses((x - 1) / z)
    mixture = (1 - q) * base + q * shifted
    p, other = (mixture, base) if remove else (base, mixture)
    return float(np.maximum(p - math.exp(epsilon) * other, 0).sum())


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 1), st.floats(0.4, 8), st.floats(-7, -2))
def test_one_round_is_the_hockey_stick_of_its_two_laws(q: float, z: float, log_delta: float) -> None:
    delta = 10**log_delta
    epsilon = accounting.epsilon([(PoissonSampled(z, q), 1)], delta, "add-or-remove-one")
    truth = max(exact_one_round(q, z, epsilon, remove) for remove in (True, False))
    assert truth <= delta * (1 + 1e-6)
    if epsilon > 2 * TOLERANCE:
        below = max(exact_one_round(q, z, epsilon - 2 * TOLERANCE, remove) for remove in (True, False))
        assert below >= delta * (1 - 1e-6)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 20), st.integers(1, 500), st.floats(-12, -2))
def test_certain_sampling_is_no_sampling(z: float, rounds: int, log_delta: float) -> None:
    delta = 10**log_delta
    exact = gaussian.epsilon(delta, z / math.sqrt(rounds))
    assert accounting.epsilon([(Gaussian(z), rounds)], delta, "zero-out") == pytest.approx(exact, rel=1e-12)
    if exact < 100:
        sampled = accounting.epsilon([(PoissonSampled(z, 1.0), rounds)], delta, "add-or-remove-one")
        assert exact - 1e-9 <= sampled <= exact + 2 * TOLERANCE + 2e-5 * exact


@settings(max_examples=20, deadline=None)
@given(st.floats(0.02, 0.5), st.floats(0.5, 5), st.integers(2, 100), st.floats(-9, -3), st.floats(1.05, 2))
def test_epsilon_falls_with_noise_and_rises_with_rounds_and_sampling(
    q: float, z: float, rounds: int, log_delta: float, factor: float
) -> None:
    delta = 10**log_delta

    def epsilon(q: float, z: float, rounds: int, delta: float) -> float:
        return accounting.epsilon([(PoissonSampled(z, q), rounds)], delta, "add-or-remove-one")

    here, slack = epsilon(q, z, rounds, delta), 2 * TOLERANCE
    assert epsilon(q, z * factor, rounds, delta) <= here + slack
    assert epsilon(q, z, rounds * 2, delta) >= here - slack
    assert epsilon(min(1, q * factor), z, rounds, delta) >= here - slack
    assert epsilon(q, z, rounds, delta / 10) >= here - slack
    assert here <= gaussian.epsilon(delta, z / math.sqrt(rounds)) + slack


def test_the_second_opinion_agrees() -> None:
    event = PoissonSampled(1.0, 0.05)
    ours = accounting.epsilon([(event, 100)], 1e-6, "add-or-remove-one")
    assert ours == pytest.approx(accounting.epsilon([(event, 100)], 1e-6, "add-or-remove-one", accountant="pld"), abs=1e-3)


def test_replace_one_doubles_the_sensitivity() -> None:
    once = accounting.epsilon([(Gaussian(1.0), 1)], 1e-6, "replace-one")
    assert once == pytest.approx(gaussian.epsilon(1e-6, 0.5))
    mechanism = Mechanism(Identity(4), MinSeparation(2, 2), 1.0)
    single, double = (accounting.guarantee(mechanism, 1e-6, r).zcdp_rho for r in ("zero-out", "replace-one"))
    assert double == pytest.approx(4 * single)


def test_noise_that_is_far_too_small_answers_at_once_and_not_below_the_truth() -> None:
    for z in (0.05, 1e-3, 1e-6):
        exact = gaussian.epsilon(1e-5, z / 10)
        sampled = accounting.epsilon([(PoissonSampled(z, 0.1), 100)], 1e-5, "add-or-remove-one")
        assert sampled > 1000
        assert accounting.epsilon([(Gaussian(z), 100)], 1e-5, "zero-out") == pytest.approx(exact)


@pytest.mark.parametrize("strategy", [Identity(40), toeplitz.square_root(40, 10), BinaryTree(40)], ids=repr)
@pytest.mark.parametrize(
    "participation", [MinSeparation(10, 4), FixedEpochs(4, 10), SingleParticipation(), every_round(40)], ids=repr
)
@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_a_calibrated_mechanism_meets_its_budget_and_no_less_noise_would(
    strategy: Identity, participation: MinSeparation, relation: str
) -> None:
    mechanism = accounting.calibrate(strategy, participation, epsilon=3.0, delta=1e-6, neighboring_relation=relation)
    assert 3.0 * (1 - 1e-9) <= accounting.guarantee(mechanism, 1e-6, relation).epsilon <= 3.0
    less = Mechanism(strategy, participation, mechanism.noise_multiplier * (1 - 1e-6))
    assert accounting.guarantee(less, 1e-6, relation).epsilon > 3.0


@pytest.mark.parametrize("participation", [PoissonSampling(0.1), FixedSizeSampling(10, 100)], ids=repr)
def test_sampled_cohorts_calibrate_to_their_budget(participation: PoissonSampling) -> None:
    mechanism = accounting.calibrate(Identity(50), participation, epsilon=4.0, delta=1e-5)
    assert 4.0 - 1e-3 <= accounting.guarantee(mechanism, 1e-5).epsilon <= 4.0


@pytest.mark.parametrize(
    "point", [p for p in ACCOUNTING["calibrate_sigma"] if p["n"] <= 1000], ids=lambda p: f"{p['eps']}-{p['q']}"
)
def test_calibration_agrees_with_the_reference(point: dict) -> None:
    ours = accounting.calibrate_noise_multiplier(
        PoissonSampled(1.0, point["q"]), point["n"], point["eps"], point["delta"], "add-or-remove-one"
    )
    assert ours == pytest.approx(point["sigma_pld"], rel=2e-3)


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


def test_scale_of_the_strategy_changes_nothing() -> None:
    small = toeplitz.BandedToeplitz(8, (1.0, 0.5))
    large = toeplitz.BandedToeplitz(8, (10.0, 5.0))
    one, other = (Mechanism(strategy, MinSeparation(2, 4), 1.5) for strategy in (small, large))
    assert one.stddev * 10 == pytest.approx(other.stddev)
    assert one.mu == pytest.approx(other.mu)


@pytest.mark.parametrize("participation", [MinSeparation(2, 2), SingleParticipation(), FixedSizeSampling(1, 10)], ids=repr)
def test_adding_a_unit_is_refused_where_cohorts_depend_on_who_is_there(participation: MinSeparation) -> None:
    with pytest.raises(ValueError, match=r"add-or-remove-one.*draw Poisson cohorts"):
        accounting.guarantee(Mechanism(Identity(4), participation, 1.0), 1e-5, "add-or-remove-one")


def test_correlated_noise_with_random_cohorts_is_refused() -> None:
    with pytest.raises(ConfigError, match="independent noise only"):
        accounting.guarantee(Mechanism(toeplitz.square_root(4, 2), PoissonSampling(0.5), 1.0), 1e-5)


def test_epochs_beyond_the_strategy_are_refused() -> None:
    with pytest.raises(ParticipationError, match="the strategy has 10 rounds"):
        Mechanism(Identity(10), FixedEpochs(3, 10), 1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, True, "1"])
def test_a_noise_multiplier_that_is_none_never_reaches_an_accountant(bad: float) -> None:
    for make in (
        lambda: Gaussian(bad),
        lambda: PoissonSampled(bad, 0.1),
        lambda: FixedSizeSampled(bad, 1, 2),
        lambda: Mechanism(Identity(2), SingleParticipation(), bad),
    ):
        with pytest.raises((ValueError, TypeError), match="noise_multiplier"):
            make()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_a_budget_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        accounting.calibrate(Identity(4), MinSeparation(1, 4), epsilon=bad, delta=1e-5)


def test_dp_accounting_is_not_asked_what_it_cannot_answer() -> None:
    with pytest.raises(BudgetError, match="outgrows memory"):
        accounting.epsilon([(Gaussian(1e-3), 1)], 1e-5, "zero-out", accountant="pld")
    with pytest.raises(BudgetError, match="no bound for FixedSizeSampled"):
        accounting.epsilon([(FixedSizeSampled(1.0, 1, 2), 1)], 1e-5, "zero-out", accountant="pld")


def test_an_integer_multiplier_means_the_same_as_a_float() -> None:
    as_int = accounting.epsilon([(PoissonSampled(1, 0.1), 10)], 1e-5, "add-or-remove-one", accountant="pld")
    assert as_int == accounting.epsilon([(PoissonSampled(1.0, 0.1), 10)], 1e-5, "add-or-remove-one", accountant="pld")


def test_a_guarantee_is_strict_json_and_rounds_its_sentence_up() -> None:
    mechanism = Mechanism(Identity(4), MinSeparation(1, 4), 1.0)
    guarantee = accounting.guarantee(mechanism, 1e-5)
    assert json.loads(json.dumps(guarantee.as_json(), allow_nan=False))["private"] is True
    stated = float(guarantee.sentence().split(",")[0][1:])
    assert guarantee.epsilon <= stated <= guarantee.epsilon * 1.001
    nothing = accounting.unprotected(4, 1e-5).as_json()
    assert nothing["epsilon"] is None
    assert nothing["private"] is False


def test_import_hubbub_loads_neither_torch_nor_dp_accounting() -> None:
    program = "import sys, hubbub, hubbub.accounting; print([m for m in ('torch', 'dp_accounting') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


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


def test_a_printed_epsilon_is_never_below_the_computed_one() -> None:
    for epsilon in (0.61012, 8.000000000000002, 3.4240072730610398, 1e-9, 0.3, 123456.7, 99999.0):
        assert Decimal(accounting.rounded_up(epsilon)) >= Decimal(epsilon)
        assert float(accounting.rounded_up(epsilon)) <= epsilon * 1.001


def test_a_simulation_says_so_wherever_it_is_stated() -> None:
    promise = Promise(4, Mechanism(Identity(4), MinSeparation(1, 4), 1.0), simulation=True)
    assert promise.after(4, 1e-5).as_json()["simulation"] is True
    assert "Simulation, not for release" in promise.after(4, 1e-5).sentence()


def test_what_is_stated_as_exact_is() -> None:
    C = np.tril(np.random.default_rng(2).normal(size=(6, 6))) + 2 * np.eye(6)
    mechanism = Mechanism(Dense(C), FixedEpochs(3, 2), 1.0)
    for t in range(1, 7):
        stated, own = accounting.guarantee(mechanism, 1e-5, rounds=t), mechanism.sensitivity_after(t)
        assert stated.sensitivity_exact <= (own.exact or own.value >= mechanism.l2_sensitivity)


def test_the_second_opinion_calibrates_budgets_that_it_can_state() -> None:
    found = accounting.calibrate_noise_multiplier(Gaussian(1.0), 1, 45.0, 1e-5, "zero-out", accountant="pld")
    assert found == pytest.approx(gaussian.noise_multiplier(45.0, 1e-5), rel=1e-4)


REPLACED = [p for p in ACCOUNTING["poisson_subsampled_gaussian"] if p["n"] <= 1000 and p["delta"] >= 1e-8][::4]


@pytest.mark.parametrize("point", REPLACED, ids=lambda p: f"{p['q']}-{p['z']}-{p['n']}-{p['delta']}")
def test_replacing_one_under_poisson_cohorts_costs_at_least_what_a_pair_of_data_sets_attains(point: dict) -> None:
    ours = accounting.epsilon([(PoissonSampled(point["z"], point["q"]), point["n"])], point["delta"], "replace-one")
    # The reference is the composed pair of a record at +1 and one at -1: attained, so a bound from below.
    assert ours >= point["pld_replace_one"] - 1e-3
    assert ours >= accounting.epsilon([(PoissonSampled(point["z"], point["q"]), point["n"])], point["delta"], "zero-out") - 1e-3
    assert ours <= gaussian.epsilon(point["delta"], point["z"] / 2 / math.sqrt(point["n"])) + 2 * TOLERANCE


def test_halves_compose_to_the_whole_in_any_order() -> None:
    light, heavy = PoissonSampled(1.0, 0.05), PoissonSampled(0.8, 0.1)
    whole = accounting.epsilon([(light, 60), (heavy, 40)], 1e-6, "add-or-remove-one")
    parts = accounting.epsilon([(heavy, 10), (light, 60), (heavy, 30)], 1e-6, "add-or-remove-one")
    assert parts == pytest.approx(whole, abs=2 * TOLERANCE)
    assert whole > max(accounting.epsilon([(event, n)], 1e-6, "zero-out") for event, n in ((light, 60), (heavy, 40)))


def test_rounds_that_differ_cost_what_the_second_opinion_says() -> None:
    events = [(PoissonSampled(1.0, 0.01), 500), (PoissonSampled(1.5, 0.02), 500)]
    ours = accounting.epsilon(events, 1e-5, "add-or-remove-one")
    assert ours == pytest.approx(accounting.epsilon(events, 1e-5, "add-or-remove-one", accountant="pld"), abs=1e-3)
