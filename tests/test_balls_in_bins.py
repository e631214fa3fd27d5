import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from conftest import oracle
from hockey_stick import of_two_bins
from hubbub.accounting import BallsInBins, composition
from hubbub.accounting.balls_in_bins import BinsLaw, directions, of_mixture
from hubbub.mechanism import gaussian

POINTS = oracle("accounting")["balls_in_bins"]["points"]
INDEPENDENT = [point for point in POINTS if point["c_col"] == [1.0]]
# What a computed delta may exceed the pair's by, as its docstring states: some thousandths.
TOLERANCE = 3e-3


def delta(z: float, bins: int, rounds: int, epsilon: float, remove: bool) -> float:
    return directions(BallsInBins(z, bins, rounds), "zero-out")[0 if remove else 1].delta(epsilon)


@pytest.mark.parametrize("point", INDEPENDENT, ids=lambda p: f"{p['cycle']} bins, z {p['z']}, {p['direction']} {p['eps']}")
def test_delta_lies_between_what_was_sampled_and_a_coarser_bound(point: dict) -> None:
    of_mixture.cache_clear()
    remove = point["direction"] == "remove"
    ours = delta(point["z"], point["cycle"], point["iterations"], point["eps"], remove)
    # Four standard errors of either side fail by chance in 3 of 1e5 points.
    assert point["delta_mc"] - 4 * point["se"] <= ours <= point["delta_deterministic_upper_g3e-3"]


@pytest.mark.slow
def test_delta_of_many_runs_is_what_their_epsilon_was_computed_for() -> None:
    runs = [(BallsInBins(1.0, 1000, 1000), 100)]
    spent = composition.epsilon(runs, 1e-5, "replace-one")
    assert composition.delta(runs, spent, "replace-one") == pytest.approx(1e-5, rel=2e-3)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.1, 4), st.floats(0, 4), st.booleans())
def test_two_bins_are_never_below_their_definition_and_near_it(shift: float, epsilon: float, remove: bool) -> None:
    truth = of_two_bins(shift, shift, epsilon, remove)
    ours = delta(1 / shift, 2, 2, epsilon, remove)
    if truth > 1e-60:
        assert truth * (1 - 1e-9) <= ours <= truth * (1 + (TOLERANCE if truth > 1e-10 else 0.03))


@pytest.mark.parametrize("remove", [True, False])
def test_three_bins_are_never_below_their_definition_and_near_it(remove: bool) -> None:
    shift, epsilon = 1.2, 0.7
    y = np.linspace(-9, 9, 1801)
    weights = np.exp(-y * y / 2) / math.sqrt(2 * math.pi) * (y[1] - y[0])
    one = np.exp(shift * y - shift**2 / 2)
    two, mass = one[:, None] + one, weights[:, None] * weights
    bound = 3 * math.exp(epsilon if remove else -epsilon) - two
    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.where(bound > 0, (np.log(np.maximum(bound, 1e-300)) + shift**2 / 2) / shift, -np.inf)
    if remove:
        truth = (mass * ((two / 3 - math.exp(epsilon)) * ndtr(-at) + ndtr(shift - at) / 3)).sum()
    else:
        truth = (mass * ((1 - math.exp(epsilon) * two / 3) * ndtr(at) - math.exp(epsilon) / 3 * ndtr(at - shift))).sum()
    ours = delta(1 / shift, 3, 3, epsilon, remove)
    assert truth * (1 - 1e-9) <= ours <= truth * (1 + TOLERANCE)


@pytest.mark.parametrize(("relation", "factor"), [("zero-out", 1), ("add-or-remove-one", 1), ("replace-one", 2)])
def test_one_bin_is_one_gaussian(relation: str, factor: int) -> None:
    for z, rounds, epsilon in [(1.0, 1, 0.5), (5.0, 9, 2.0), (40.0, 100, 0.1)]:
        exact = gaussian.delta(epsilon, z / factor / math.sqrt(rounds))
        for law in directions(BallsInBins(z, 1, rounds), relation):
            assert law.delta(epsilon) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 1e-4, 5e-4])
def test_under_much_noise_the_ratio_is_linear_and_the_run_a_gaussian_of_a_root_of_the_bins_less(epsilon: float) -> None:
    for law in directions(BallsInBins(1000.0, 16, 16), "zero-out"):
        assert law.delta(epsilon) == pytest.approx(gaussian.delta(epsilon, 1000.0 * 4), rel=5e-3)
    # A replacement moves every contribution twice as far.
    for law in directions(BallsInBins(1000.0, 16, 16), "replace-one"):
        assert law.delta(epsilon) == pytest.approx(gaussian.delta(epsilon, 1000.0 * 2), rel=5e-3)


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("epsilon", [0.2, 1.5])
def test_slots_of_unequal_length_are_covered(remove: bool, epsilon: float) -> None:
    z = 1.7
    truth = of_two_bins(math.sqrt(3) / z, math.sqrt(2) / z, epsilon, remove)
    assert delta(z, 2, 5, epsilon, remove) > truth
    # And below three rounds for each slot by what is charged for the shorter one only.
    longer = of_two_bins(math.sqrt(3) / z, math.sqrt(3) / z, epsilon, remove)
    assert delta(z, 2, 5, epsilon, remove) <= longer * (1 + TOLERANCE)


@pytest.mark.parametrize("cosine", [-1.0, -0.5, 0.0, 0.8])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.5])
def test_replacement_dominates_contributions_at_any_angle(cosine: float, epsilon: float) -> None:
    shift, bins = 0.9, 3
    generator = np.random.default_rng(7)
    before, after = np.array([1.0, 0.0]), np.array([cosine, math.sqrt(1 - cosine**2)])
    y = generator.standard_normal((200_000, bins, 2))
    y[np.arange(len(y)), generator.integers(bins, size=len(y))] += shift * before
    ratios = [np.exp(shift * y @ u - shift**2 / 2).mean(axis=1) for u in (before, after)]
    seen = np.maximum(0, 1 - math.exp(epsilon) * ratios[1] / ratios[0])
    law, same = directions(BallsInBins(1 / shift, bins, bins), "replace-one")
    assert law == same
    # One-sided at five standard errors: a false alarm in 3e-7 of such tests.
    assert law.delta(epsilon) >= seen.mean() - 5 * seen.std() / math.sqrt(len(seen))
    # Never more than without amplification, and not far above what opposite contributions attain.
    assert law.delta(epsilon) <= gaussian.delta(epsilon, 1 / (2 * shift))
    if cosine == -1.0:
        assert law.delta(epsilon + 0.9) <= seen.mean()


@pytest.mark.parametrize("direction", ["removal", "addition", "replacement"])
@pytest.mark.parametrize("mesh", [0.3, 1e-2, 1e-3])
def test_a_loss_on_a_mesh_keeps_both_laws_and_dominates(direction: str, mesh: float) -> None:
    law = BinsLaw(0.8, 12, direction)  # type: ignore[arg-type]
    loss = law.discretized(mesh, -60.0)
    at = (loss.first + np.arange(len(loss.mass))) * mesh
    assert loss.mass.min() >= 0
    assert loss.infinite <= 3 * math.exp(-60)
    assert loss.mass.sum() == pytest.approx(1, abs=1e-9)
    assert loss.mass @ np.exp(-at) == pytest.approx(1, abs=1e-9)
    for epsilon in (0.05, 0.5, 1.0):
        profile = loss.mass[at > epsilon] @ -np.expm1(epsilon - at[at > epsilon]) + loss.infinite
        # delta is above the pair's by some thousandths itself.
        assert profile >= law.delta(epsilon) * (1 - TOLERANCE)
        if mesh <= 1e-3:
            assert profile <= law.delta(epsilon) * (1 + TOLERANCE)


@pytest.mark.parametrize("bins", [1, 2, 3, 7, 12, 100])
def test_what_is_cut_off_is_no_more_than_was_allowed(bins: int) -> None:
    ratio = of_mixture(1.3, bins, 512, -4.0)
    assert ratio.mass.sum() + ratio.zero == pytest.approx(1, abs=1e-12)
    assert 1 - math.exp(-4) <= ratio.mass @ np.exp(ratio.logarithms) < 1
    assert 0 < ratio.zero <= math.exp(-4)
