import math
import time

import numpy as np
import pytest

from conftest import oracle
from hubbub.accounting.dominating_pairs import as_gaussian
from hubbub.accounting.events import TreeAggregation
from hubbub.mechanism import gaussian

ACCOUNTING = oracle("accounting")


def rho(event: TreeAggregation) -> float:
    return 0.5 / as_gaussian(event).noise_multiplier ** 2


@pytest.mark.parametrize("point", ACCOUNTING["tree_aggregation_single_tree"]["points"], ids=lambda p: f"{p['steps']} rounds")
def test_one_tree_costs_what_tensorflow_privacy_says(point: dict) -> None:
    # There the separation counts the rounds between two participations.
    apart = point["min_separation_zeros_between"] + 1
    event = TreeAggregation(7.0, point["steps"], point["max_participation"], apart)
    assert (event.noise_multiplier / as_gaussian(event).noise_multiplier) ** 2 == pytest.approx(point["sens_sq"], rel=1e-15)
    assert rho(event) == pytest.approx(point["zcdp_at_z=7"], rel=1e-15)


@pytest.mark.parametrize("point", ACCOUNTING["tree_aggregation_restart"]["points"], ids=lambda p: f"{p['steps']} rounds")
def test_a_tree_that_is_restarted_every_epoch_costs_its_depth(point: dict) -> None:
    event = TreeAggregation(point["z"], point["steps"])
    assert rho(event) == pytest.approx(point["rho"], rel=1e-15)
    assert rho(event) == pytest.approx(math.ceil(math.log2(point["steps"] + 1)) / (2 * point["z"] ** 2), rel=1e-15)
    exact = gaussian.epsilon(1e-6, as_gaussian(event).noise_multiplier)
    # The peer converts from Rényi divergences, which is not exact.
    assert exact < point["eps_1e-6"] < 1.1 * exact


def test_the_published_tree_takes_no_time() -> None:
    start = time.process_time()
    event = TreeAggregation(7.0, 2000, max_participations=6, min_separation=314)
    assert rho(event) == pytest.approx(79 / 98, rel=1e-15)
    assert time.process_time() - start < 20
    assert gaussian.epsilon(1e-10, as_gaussian(event).noise_multiplier) == pytest.approx(8.526, abs=5e-4)


def test_participations_that_do_not_fit_cost_nothing() -> None:
    assert as_gaussian(TreeAggregation(1.0, 10, 50, 4)) == as_gaussian(TreeAggregation(1.0, 10, 3, 4))
    assert as_gaussian(TreeAggregation(np.float64(1.0), 10, 1, 4)) == as_gaussian(TreeAggregation(1.0, 10))


def test_too_little_noise_for_the_tree_is_refused() -> None:
    with pytest.raises(ValueError, match="noise_multiplier = "):
        as_gaussian(TreeAggregation(1e-12, 7))
