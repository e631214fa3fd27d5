"""From a budget to noise, rounds, sampling, cohorts and separation, and to the mechanism of least error."""

import importlib
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import oracle
from hubbub import MinSeparation, accounting
from hubbub._util.roots import Grid, first
from hubbub.accounting import epsilon as epsilon_of
from hubbub.accounting import events
from hubbub.errors import BudgetError
from hubbub.mechanism import Mechanism, gaussian
from hubbub.mechanism.strategies import Identity, toeplitz

RELATION = "add-or-remove-one"
# What an accountant's answer may exceed the truth by; a peer's has the same freedom.
MESH = 2e-4


def points(block: str) -> Sequence[dict]:
    return oracle("accounting")[block]["points"]


@settings(max_examples=150, deadline=None)
@given(st.integers(-1000, 10**9), st.integers(1, 10**9), st.floats(0.01, 30), st.floats(0, 1e-2), st.integers(-2000, 2 * 10**9))
def test_the_answer_of_a_search_meets_the_target_and_the_index_before_it_does_not(
    lowest: int, size: int, steepness: float, roughness: float, start: int
) -> None:
    """Whatever gauge it is told, and though the cost does not fall everywhere."""
    highest = lowest + size
    root = lowest + (size * 0.37)
    costs: dict[int, float] = {}

    def cost(index: int) -> float:
        assert lowest <= index <= highest
        rough = roughness * (hash((index, 1)) % 1000) / 1000
        costs[index] = math.exp(max(-700, min(700, steepness * (root - index) / size))) * (1 + rough)
        return costs[index]

    found = first(cost, 1.0, lambda c: -math.log(c) * size / 3, Grid(lowest, highest, float, math.ceil), start)
    if found is None:
        assert costs[highest] > 1
    else:
        assert costs[found] <= 1
        assert found == lowest or costs[found - 1] > 1
    assert len(costs) <= 100


@pytest.mark.parametrize("point", points("calibrate_sigma"), ids=str)
def test_the_noise_is_that_of_the_second_opinion(point: dict) -> None:
    event = events.PoissonSampled(1.0, point["q"])
    ours = accounting.calibrate_noise_multiplier(event, point["n"], point["eps"], point["delta"], RELATION)
    cost = epsilon_of([(events.PoissonSampled(ours, point["q"]), point["n"])], point["delta"], RELATION)
    assert point["eps"] - 2e-5 * point["eps"] <= cost <= point["eps"]
    # As much noise as makes up for the mesh of either accountant.
    assert ours == pytest.approx(point["sigma_pld"], rel=MESH / point["eps"])
    assert ours < point["sigma_rdp"]


EVENTS: list[tuple[events.Event, int, str, str]] = [
    (events.Gaussian(1.0), 7, "replace-one", "tight"),
    (events.PoissonSampled(1.0, 0.02), 300, "zero-out", "tight"),
    (events.PoissonSampled(1.0, 0.02), 300, "replace-one", "tight"),
    (events.PoissonSampled(1.0, 1.0), 3, RELATION, "tight"),
    (events.PoissonSampled(1.0, 0.05), 20, RELATION, "tight"),
    (events.PoissonSampled(1.0, 0.05), 20, RELATION, "rdp"),
    (events.FixedSizeSampled(1.0, 20, 1000), 100, "zero-out", "tight"),
    (events.TruncatedPoissonSampled(1.0, 0.05, 80, 1000), 50, RELATION, "tight"),
    (events.BallsInBins(1.0, 2, 4), 1, RELATION, "tight"),
    (events.TreeAggregation(1.0, 100, 3, 20), 2, "zero-out", "tight"),
]


@pytest.mark.parametrize(("event", "rounds", "relation", "accountant"), EVENTS, ids=str)
def test_the_noise_meets_the_budget_by_its_accountant_and_a_millionth_less_does_not(
    event: events.Event, rounds: int, relation: str, accountant: str
) -> None:
    def cost(z: float) -> float:
        return epsilon_of([(replace(event, noise_multiplier=z), rounds)], 1e-5, relation, accountant)

    z = accounting.calibrate_noise_multiplier(event, rounds, 1.5, 1e-5, relation, accountant)
    assert cost(z) <= 1.5
    assert cost(z * math.exp(-1e-6)) > 1.5
    loud = replace(event, noise_multiplier=123.0)
    assert accounting.calibrate_noise_multiplier(loud, rounds, 1.5, 1e-5, relation, accountant) == z


@settings(max_examples=40, deadline=None)
@given(st.floats(-8, 6), st.floats(-290, -1), st.integers(1, 10**6), st.sampled_from(["zero-out", "replace-one"]))
def test_the_noise_of_gaussian_rounds_needs_no_search(log_epsilon: float, log_delta: float, rounds: int, relation: str) -> None:
    epsilon, delta = 10**log_epsilon, 10**log_delta
    sensitivity = math.sqrt(rounds) * (2 if relation == "replace-one" else 1)
    expected = gaussian.noise_multiplier(epsilon, delta) * sensitivity
    if expected > 1e12:
        with pytest.raises(BudgetError, match="no noise multiplier up to 1e\\+12"):
            accounting.calibrate_noise_multiplier(events.Gaussian(1.0), rounds, epsilon, delta, relation)
        return
    z = accounting.calibrate_noise_multiplier(events.Gaussian(1.0), rounds, epsilon, delta, relation)
    assert z == pytest.approx(expected, rel=1e-10)
    assert epsilon_of([(events.Gaussian(z), rounds)], delta, relation) <= epsilon


@pytest.mark.parametrize(("epsilon", "q", "rounds"), [(2.0, 0.01, 2000), (8.0, 0.1, 100), (0.5, 0.01, 1000), (4.0, 0.001, 500)])
def test_a_calibration_asks_few_times(epsilon: float, q: float, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("hubbub.accounting.calibrate")
    asked: list[float] = []

    def counting(*arguments: object) -> float:
        asked.append(epsilon_of(*arguments))  # type: ignore[arg-type] # passes on what it is given
        return asked[-1]

    monkeypatch.setattr(module, "epsilon_once", counting)
    accounting.calibrate_noise_multiplier(events.PoissonSampled(1.0, q), rounds, epsilon, 1e-6, RELATION)
    assert 2 <= len(asked) <= 10


@pytest.mark.parametrize("point", points("calibrate_rounds"), ids=str)
def test_as_many_rounds_fit_as_the_second_opinion_finds_and_one_more_does_not(point: dict) -> None:
    event = events.PoissonSampled(point["z"], point["q"])
    n = accounting.calibrate_rounds(event, epsilon=point["eps"], delta=point["delta"], neighboring_relation=RELATION)
    assert n >= point["rounds_pld"] * (1 - MESH)
    assert epsilon_of([(event, n)], point["delta"], RELATION) <= point["eps"]
    assert epsilon_of([(event, n + 1)], point["delta"], RELATION) > point["eps"]


@settings(max_examples=50, deadline=None)
@given(st.floats(-1, 5), st.floats(-2, 3), st.floats(-200, -1))
def test_the_rounds_of_gaussians_are_those_of_the_closed_form(log_z: float, log_epsilon: float, log_delta: float) -> None:
    event, epsilon, delta = events.Gaussian(10**log_z), 10**log_epsilon, 10**log_delta
    # n rounds are one release at z/√n.
    exact = (event.noise_multiplier / gaussian.noise_multiplier(epsilon, delta)) ** 2
    if exact < 1:
        with pytest.raises(BudgetError, match=r"one round alone costs .*; a noise multiplier of .* would allow one") as refused:
            accounting.calibrate_rounds(event, epsilon, delta, "zero-out")
        advised = events.Gaussian(float(str(refused.value).split("multiplier of ")[1].split()[0]))
        assert accounting.calibrate_rounds(advised, epsilon, delta, "zero-out") >= 1
        return
    found = accounting.calibrate_rounds(event, epsilon, delta, "zero-out")
    assert found == pytest.approx(min(math.floor(exact), 10**12), rel=1e-9, abs=1)


@pytest.mark.parametrize("point", points("calibrate_sampling_rate"), ids=str)
def test_as_many_clients_may_be_sampled_as_the_second_opinion_finds(point: dict) -> None:
    event = events.PoissonSampled(point["z"], 0.5)
    q = accounting.calibrate_sampling_probability(event, point["n"], point["eps"], point["delta"], RELATION)
    assert q >= point["q_pld"] * (1 - MESH)
    for factor, meets in ((1, True), (math.exp(1e-6), False)):
        cost = epsilon_of([(events.PoissonSampled(point["z"], q * factor), point["n"])], point["delta"], RELATION)
        assert (cost <= point["eps"]) is meets


def test_everybody_may_be_sampled_where_the_noise_allows_it() -> None:
    assert accounting.calibrate_sampling_probability(events.PoissonSampled(100.0, 0.1), 10, 1.0, 1e-5, RELATION) == 1.0
    assert accounting.calibrate_cohort_size(events.FixedSizeSampled(1000.0, 1, 50), 10, 1.0, 1e-5, "replace-one") == 50


def test_one_more_member_of_a_cohort_would_cost_more_than_the_budget() -> None:
    m = accounting.calibrate_cohort_size(events.FixedSizeSampled(2.0, 1, 5000), 200, 1.5, 1e-5, "zero-out")
    costs = [epsilon_of([(events.FixedSizeSampled(2.0, size, 5000), 200)], 1e-5, "zero-out") for size in (m, m + 1)]
    assert costs[0] <= 1.5 < costs[1]


@pytest.mark.parametrize("strategy", [Identity(60), toeplitz.square_root(60, 5)], ids=repr)
@pytest.mark.parametrize("most", [None, 3])
def test_the_least_separation_is_that_of_trying_them_all(strategy: Identity, most: int | None) -> None:
    def cost(separation: int) -> float:
        k = min(math.ceil(60 / separation), most or 60)
        return accounting.guarantee(Mechanism(strategy, MinSeparation(separation, k), 5.0), 1e-5).epsilon

    asked = {"noise_multiplier": 5.0, "epsilon": 1.6, "delta": 1e-5, "max_participations": most}
    found = accounting.calibrate_min_separation(strategy, **asked)
    assert found == min(b for b in range(1, 61) if cost(b) <= 1.6)
