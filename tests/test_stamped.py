import numpy as np
import pytest

from conftest import oracle
from hubbub.mechanism.participation import FixedEpochs, MinSeparation
from hubbub.mechanism.strategies import BinaryTree, Dense, Identity, toeplitz
from hubbub.mechanism.strategies.stamped import Stamped, stamp
from hubbub.testing import brute_force_sensitivity, check_strategy
from matrix_oracles import require_reference

MF = oracle("matrix_factorization")
CASES = [c for c in MF["mechanism_errors"] if c["id"].startswith("stamped") and "online" not in c["id"]]
SIGNED = np.tril(np.random.default_rng(5).normal(size=(5, 5))) + 2 * np.eye(5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_stamps_have_the_reference_error_and_sensitivity(case: dict) -> None:
    root = toeplitz.square_root(case["n"] // 4, case["n"] // 4).matrix()
    square_roots, trees = stamp(Dense(root / np.linalg.norm(root, axis=0)), times=4), stamp(BinaryTree(case["n"] // 2), times=2)
    require_reference(case, trees if "tree" in case["id"] else square_roots)


@pytest.mark.parametrize("rounds", [1, 4, 5, 13])
def test_the_matrix_has_copies_of_the_stamp_along_its_diagonal(rounds: int) -> None:
    np.testing.assert_array_equal(Stamped(SIGNED, rounds).matrix(), np.kron(np.eye(3), SIGNED)[:rounds, :rounds])


@pytest.mark.parametrize("inner", [Identity(6), BinaryTree(6), toeplitz.square_root(6, 3)], ids=repr)
def test_any_strategy_can_be_stamped(inner: BinaryTree) -> None:
    strategy = stamp(inner, times=3)
    check_strategy(strategy)
    pattern = FixedEpochs(3, 6)
    expected = brute_force_sensitivity(np.kron(np.eye(3), inner.matrix()), pattern)
    assert strategy.sensitivity(pattern).value == pytest.approx(expected, rel=1e-12)


def test_a_million_rounds_need_no_matrix() -> None:
    strategy = Stamped(toeplitz.square_root(100, 100).matrix(), 10**6)
    norms = np.square(strategy.stamp).sum(axis=0)
    apart = strategy.sensitivity(FixedEpochs(100, 10_000))
    assert apart.exact
    assert apart.value**2 == pytest.approx(100 * norms.max(), rel=1e-12)
    assert strategy.sensitivity(MinSeparation(100, 7)).value ** 2 == pytest.approx(7 * norms.max(), rel=1e-12)
    crowded = strategy.sensitivity(MinSeparation(50, 7))
    assert not crowded.exact
    assert crowded.value**2 >= 7 * norms.max()
    with pytest.raises(ValueError, match="a dense matrix"):
        strategy.matrix()
