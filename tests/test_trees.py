import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import oracle
from hubbub.accounting.composition import unamplified_zcdp_rho
from hubbub.accounting.dominating_pairs import as_gaussian
from hubbub.accounting.events import TreeAggregation
from hubbub.mechanism import gaussian, utility, workloads
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, PoissonSampling
from hubbub.mechanism.strategies import tree as module
from hubbub.mechanism.strategies.matrices import triangular_form
from hubbub.mechanism.strategies.tree import DECODERS, BinaryTree
from hubbub.testing import brute_force_sensitivity, check_strategy
from matrix_oracles import best_by_enumeration, require_reference

MF = oracle("matrix_factorization")
ACCOUNTING = oracle("accounting")
ERRORS = {case["id"]: case for case in MF["mechanism_errors"]}
# Of so many rounds, by each decoder, with so many rounds in a tree, completed or not.
SETTINGS = itertools.product((1, 2, 3, 7, 8, 13), DECODERS, (None, 1, 3, 4, 6), (False, True))


@pytest.mark.parametrize("tree", [BinaryTree(*settings) for settings in SETTINGS], ids=repr)
def test_matrix_stream_and_sensitivity_agree(tree: BinaryTree) -> None:
    check_strategy(tree)


@pytest.mark.parametrize("case", [c for name, c in ERRORS.items() if "tree" in name], ids=lambda case: case["id"])
def test_every_decoder_has_the_reference_error_and_sensitivity(case: dict) -> None:
    decoder = next(d for d in DECODERS if d in case["id"])
    per_tree = case["n"] // 2 if case["id"].startswith("stamped") else None
    require_reference(case, BinaryTree(case["n"], decoder, per_tree))


@pytest.mark.parametrize("n", [1, 3, 8, 13, 32])
@pytest.mark.parametrize("completed", [False, True])
def test_the_full_decoder_is_the_pseudoinverse(n: int, completed: bool) -> None:
    A, C = workloads.prefix_sum(n), BinaryTree(n, completed=completed).matrix()
    errors = np.square(A.matrix() @ np.linalg.pinv(C)).sum(axis=1)
    full = BinaryTree(n, "full", completed=completed)
    np.testing.assert_allclose(utility.squared_errors(A, full), errors, rtol=1e-12)
    np.testing.assert_allclose(full.matrix(), triangular_form(C), atol=1e-12)


@pytest.mark.parametrize("height", range(6))
def test_the_online_estimate_of_a_whole_tree_has_the_variance_of_honaker(height: int) -> None:
    errors = utility.squared_errors(workloads.prefix_sum(2**height), BinaryTree(2**height, "online"))
    assert errors[-1] == pytest.approx(1 / (2 - 2**-height), rel=1e-12)


@pytest.mark.parametrize("case", MF["tree_minsep_sensitivity"], ids=lambda case: case["id"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_separated_participation_in_a_tree_is_exact(case: dict, decoder: str) -> None:
    stated = BinaryTree(case["n"], decoder).sensitivity(MinSeparation(case["min_sep"], case["max_participations"]))
    assert stated.exact
    assert stated.value**2 == pytest.approx(case["sens2"], rel=1e-12)


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 13), st.sampled_from(DECODERS), st.integers(1, 14), st.booleans(), st.integers(1, 8), st.integers(1, 5))
def test_a_tree_states_what_enumeration_finds(n: int, decoder: str, m: int, completed: bool, b: int, k: int) -> None:
    tree = BinaryTree(n, decoder, m, completed)
    stated = tree.sensitivity(MinSeparation(b, k))
    # Entries are not negative, so equal signs are the worst.
    truth = best_by_enumeration(tree.matrix().T @ tree.matrix(), b, min(k, n))
    assert stated.value**2 >= truth * (1 - 1e-12)
    assert stated.exact == (decoder != "full" or n % m == 0)
    if stated.exact:
        assert stated.value**2 == pytest.approx(truth, rel=1e-12)
    epochs = tree.sensitivity(FixedEpochs(k, b))
    assert epochs.value >= brute_force_sensitivity(tree.matrix(), FixedEpochs(k, b)) * (1 - 1e-12)
    everybody = tree.sensitivity(PoissonSampling(0.1)).value
    assert everybody >= np.linalg.norm(tree.matrix().sum(axis=1)) * (1 - 1e-12)


def test_where_the_programme_would_be_too_large_a_bound_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    tree, pattern = BinaryTree(13), MinSeparation(2, 4)
    exact = tree.sensitivity(pattern)
    monkeypatch.setattr(module, "_MOST_PAIRS", 3)
    bound = tree.sensitivity(pattern)
    assert (exact.exact, bound.exact) == (True, False)
    assert bound.value >= exact.value


def rho(event: TreeAggregation) -> float:
    return unamplified_zcdp_rho([(event, 1)], "zero-out")


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
