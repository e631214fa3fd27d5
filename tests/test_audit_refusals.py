import math
from collections.abc import Callable

import numpy as np
import pytest

from hubbub import audit

GOOD = {"present": [1.0, 2.0, 3.0], "absent": [0.0, 1.0, -1.0], "delta": 1e-5, "confidence": 0.95}
COUNT = audit.GuessCount(canaries=100, guesses=50, correct=45)
ON_SCORES = [audit.clopper_pearson_epsilon, audit.gdp_epsilon]
ON_COUNTS = [audit.one_run_epsilon, audit.one_run_gdp_epsilon]


@pytest.mark.parametrize("method", ON_SCORES)
@pytest.mark.parametrize("name", ["present", "absent"])
@pytest.mark.parametrize(
    "bad", [[], [math.nan], [math.inf], [-math.inf], ["1.0"], [True], [None], [1j], 1.0, [[1.0]], [10**400]]
)
def test_scores_that_are_no_numbers_are_refused_by_name(
    method: Callable[..., audit.LowerBound], name: str, bad: object
) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        method(**{**GOOD, name: bad})


@pytest.mark.parametrize("bad", [0, 1, 0.0, 1.0, -0.5, 2.0, math.nan, math.inf, True, "0.95", None])
def test_a_confidence_outside_0_and_1_is_refused_by_name(bad: object) -> None:
    for method in ON_SCORES:
        with pytest.raises((ValueError, TypeError), match="confidence"):
            method(**{**GOOD, "confidence": bad})
    for method in ON_COUNTS:
        with pytest.raises((ValueError, TypeError), match="confidence"):
            method([COUNT], delta=1e-5, confidence=bad)


@pytest.mark.parametrize("bad", [1.0, -1e-9, 2, math.nan, math.inf, False, "1e-5", None, 10**400])
def test_a_delta_outside_0_and_1_is_refused_by_name(bad: object) -> None:
    for method in ON_SCORES:
        with pytest.raises((ValueError, TypeError), match="delta"):
            method(**{**GOOD, "delta": bad})
    for method in ON_COUNTS:
        with pytest.raises((ValueError, TypeError), match="delta"):
            method([COUNT], delta=bad, confidence=0.95)


@pytest.mark.parametrize(
    "method", [audit.gdp_epsilon, lambda **k: audit.one_run_gdp_epsilon([COUNT], delta=k["delta"], confidence=0.95)]
)
def test_a_gaussian_curve_has_no_epsilon_at_delta_0(method: Callable[..., audit.LowerBound]) -> None:
    with pytest.raises(ValueError, match="delta"):
        method(**{**GOOD, "delta": 0.0})


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "name"),
    [
        (10, 11, 5, "guesses = 11"),
        (10, 5, 6, "correct = 6"),
        (10, 5, -1, "correct"),
        (10, 0, 0, "guesses"),
        (0, 1, 0, "canaries"),
        (10**9, 1, 0, "canaries"),
        (10.0, 5, 4, "canaries"),
        (10, True, 1, "guesses"),
        (10, 5, "4", "correct"),
        (10, 5, math.nan, "correct"),
    ],
)
def test_counts_that_cannot_be_are_refused_by_name(canaries: int, guesses: int, correct: int, name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        audit.GuessCount(canaries, guesses, correct)
    with pytest.raises((ValueError, TypeError), match=name):
        audit.one_run_p_value(canaries, guesses, correct, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, True, "1", None])
def test_an_epsilon_that_is_none_is_refused_by_name(bad: object) -> None:
    with pytest.raises((ValueError, TypeError), match="epsilon"):
        audit.one_run_p_value(100, 50, 40, epsilon=bad, delta=0.0)


@pytest.mark.parametrize("method", ON_COUNTS)
@pytest.mark.parametrize("bad", [[], COUNT, [1], "x", None, [COUNT, audit.GuessCount(101, 50, 45)]])
def test_counts_of_nothing_or_of_different_runs_are_refused_by_name(
    method: Callable[..., audit.LowerBound], bad: object
) -> None:
    with pytest.raises((ValueError, TypeError), match="counts"):
        method(bad, delta=1e-5, confidence=0.95)


@pytest.mark.parametrize(("highest", "lowest"), [(0, 0), (7, 0), (4, 3), (-1, 2), (2, -1), (1.0, 0), (True, 0)])
def test_numbers_of_guesses_that_cannot_be_are_refused_by_name(highest: int, lowest: int) -> None:
    with pytest.raises((ValueError, TypeError), match=r"highest|lowest"):
        audit.count_guesses(GOOD["present"], GOOD["absent"], highest=highest, lowest=lowest)


@pytest.mark.parametrize("bad", ["all", None, 0.5, audit.FixedThreshold])
def test_thresholds_are_one_of_two_choices(bad: object) -> None:
    for method in ON_SCORES:
        with pytest.raises(TypeError, match="thresholds"):
            method(**GOOD, thresholds=bad)


def test_a_threshold_of_no_number_is_refused_by_name() -> None:
    for bad in (math.nan, math.inf, "1", True):
        with pytest.raises((ValueError, TypeError), match="value"):
            audit.FixedThreshold(bad)


def test_ties_count_against_us_and_all_coins_may_fall_alike() -> None:
    assert audit.count_guesses([1.0, 1.0], [1.0, 1.0], highest=2).correct == 0
    assert audit.count_guesses([1.0, 1.0], [1.0, 1.0], highest=0, lowest=3).correct == 1
    assert audit.count_guesses([], [1.0, 2.0], highest=1, lowest=1) == audit.GuessCount(2, 2, 1)


def test_numpy_numbers_are_numbers() -> None:
    bound = audit.gdp_epsilon(
        np.arange(50, dtype=np.float32) + 40, np.arange(50), delta=np.float64(1e-5), confidence=np.float32(0.9)
    )
    assert bound.epsilon > 0
    assert audit.GuessCount(np.int64(10), np.int32(5), np.int8(3)) == audit.GuessCount(10, 5, 3)


@pytest.mark.parametrize(
    "bound",
    [
        audit.clopper_pearson_epsilon(**GOOD),
        audit.gdp_epsilon(**GOOD, thresholds=audit.FixedThreshold(0.5)),
        audit.one_run_epsilon([COUNT], delta=0.0, confidence=0.9),
        audit.one_run_gdp_epsilon([COUNT], delta=1e-5, confidence=0.9),
    ],
    ids=lambda bound: bound.source[:20],
)
def test_a_bound_says_its_confidence_its_assumptions_and_its_source(bound: audit.LowerBound) -> None:
    assert f"confidence {bound.confidence}" in bound.statement
    assert bound.assumptions
    assert all(assumption in bound.statement for assumption in (*bound.assumptions, bound.source))
    assert ("Gaussian trade-off curve" in bound.statement) is (bound.mu is not None)


def test_what_is_printed_is_rounded_down_too() -> None:
    bound = audit.LowerBound(1.99999, 1e-5, 0.95, None, (), "")
    assert "below 1.9999." in bound.statement
