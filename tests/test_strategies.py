import copy
import pickle
import re
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from conftest import oracle
from hubbub import FixedEpochs, MinSeparation, SingleParticipation, factorization, report
from hubbub._util.tensor_proto import read_tensor_proto
from hubbub.accounting.wording import describe
from hubbub.errors import NoiseExhaustedError
from hubbub.mechanism import Mechanism, strategies, utility, workloads
from hubbub.mechanism.sensitivity import bands_of
from hubbub.mechanism.strategies.strategy import progress
from hubbub.testing import ContractError, brute_force_sensitivity, check_strategy

ROOT = Path(__file__).parent.parent
MF = oracle("matrix_factorization")
RANDOM = np.tril(np.random.default_rng(3).normal(size=(9, 9))) + 2 * np.eye(9)

# Every strategy of the package passes the shared contract test; a new one is one line here.
STRATEGIES = [
    *(strategies.Identity(n) for n in (1, 7)),
    *(strategies.BinaryTree(n) for n in (1, 2, 7, 8, 10, 33)),
    *(strategies.toeplitz.square_root(n, b) for n, b in ((1, 1), (8, 8), (9, 3), (60, 20))),
    strategies.BandedToeplitz(9, (1.0, -0.6, 0.4)),
    strategies.BandedToeplitz(9, (0.5, 0.7, 0.1, 0.2)),
    strategies.Dense(RANDOM),
    strategies.Dense([[2.0]]),
    strategies.Banded([[1.0, 0.8, 1.2, 1.0], [0.5, -0.4, 0.3, 0.0]]),
    factorization.banded.optimize(workloads.prefix_sum(9), 4).strategy,
    strategies.BandedInverse(9, (1.0, -0.5, -0.125)),
    strategies.BufferedLinearToeplitz(9, forgetting=(0.1, 0.6), output_scales=(0.3, 0.2)),
    factorization.blt.optimize(workloads.momentum(20, 0.5), buffers=2).strategy,
    strategies.Fourier(9),
    strategies.Fourier(8, decoder="circulant"),
    strategies.NormalizedToeplitz(9, (1.0, 0.5, 0.2)),
    strategies.NormalizedToeplitz(6, (1.0, -0.5, 0.9, 0.1, 0.2, 0.3)),
    strategies.Stamped(RANDOM, 20),
    strategies.Stamped([[1.0, 0.0], [-0.5, 2.0]], 9),
    factorization.semiseparable.optimize(workloads.prefix_sum(9), buffers=2).strategy,
    factorization.dense.optimize(workloads.prefix_sum(40)).strategy,
    *(strategies.BinaryTree(n, decoder=decoder) for n in (1, 8, 10) for decoder in ("online", "full")),
    strategies.BinaryTree(10, decoder="online", rounds_per_tree=3),
    strategies.BinaryTree(10, decoder="plain", rounds_per_tree=4, completed=True),
]


def test_every_family_is_tested_and_in_the_package_the_import_contract_and_the_page() -> None:
    # Columns have no matrix.
    assert {type(strategy) for strategy in STRATEGIES} | {strategies.Columns} == set(strategies.OWN)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    contract = next(one["modules"] for one in contracts if one["type"] == "independence")

    def files_with(package: ModuleType, line: str) -> set[str]:
        return {path.stem for path in Path(package.__file__).parent.glob("*.py") if line in path.read_text()}

    files = files_with(strategies, "    def sensitivity(self") - {"strategy"}
    assert {kind.__module__.rpartition(".")[2] for kind in strategies.OWN} == files
    assert {f"hubbub.mechanism.strategies.{file}" for file in files} == set(contract)
    assert {kind.__name__ for kind in strategies.OWN} <= set(strategies.__all__)
    optimizers = files_with(factorization, "\ndef optimize(")
    assert {record.optimizer for record in factorization.FAMILIES.values()} - {None} == optimizers <= set(factorization.__all__)
    table = (ROOT / "docs/choosing-a-strategy.md").read_text().partition("\n## The families\n")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)))
    assert set(named) == set(factorization.FAMILIES) - {"file"}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda value: repr(value)[:40])
def test_matrix_stream_and_sensitivity_agree_and_stay_so_in_a_copy(strategy: strategies.Strategy) -> None:
    for one in (strategy, copy.copy(strategy), copy.deepcopy(strategy), pickle.loads(pickle.dumps(strategy))):  # noqa: S301 # ours
        check_strategy(one)
        assert not any(array.flags.writeable for array in vars(one).values() if isinstance(array, np.ndarray))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda value: repr(value)[:40])
def test_what_our_own_strategies_say_of_themselves_is_true_of_their_matrix(strategy: strategies.Strategy) -> None:
    said, C = strategies.own(strategy), strategy.matrix()
    triangular = C.shape[0] == C.shape[1] and not np.triu(C, 1).any()
    # Of a square C of a tree no number of bands is claimed.
    banded = triangular and not isinstance(strategy, strategies.BinaryTree)
    assert said.matrix_bands >= bands_of(C) if banded else said.matrix_bands is None
    assert not said.toeplitz or (triangular and np.allclose(C[1:, 1:], C[:-1, :-1]))
    references = (Path(report.__file__).parent / "templates" / "references.bib").read_text()
    assert all(f"{{{key}," in references for key in said.sources)


def test_what_a_class_of_others_says_of_itself_does_not_count() -> None:
    class Boasting(strategies.Identity):
        words = "no noise was ever needed"
        matrix_bands = 1

    assert strategies.own(Boasting(3)) is None
    assert "never" not in describe(Mechanism(Boasting(3), SingleParticipation(), 1.0))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda value: repr(value)[:40])
def test_our_own_strategies_say_exactly_how_many_rows_they_remember(strategy: strategies.Strategy) -> None:
    assert strategy.memory_rows == progress(strategy, strategy.rounds).most_remembered


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s.rounds <= 10], ids=lambda value: repr(value)[:40])
def test_no_strategy_understates_any_pattern(strategy: strategies.Strategy) -> None:
    n = strategy.rounds
    separations = [MinSeparation(b, k) for b in range(1, n + 1) for k in range(1, n + 1)]
    epochs = [FixedEpochs(k, b) for b in range(1, n + 1) for k in range(1, n + 1)]
    check_strategy(strategy, [SingleParticipation(), *separations, *epochs])


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s.rounds <= 10 and hasattr(s, "leading")], ids="{!r:.40}".format)
@pytest.mark.parametrize("pattern", [SingleParticipation(), MinSeparation(3, 4), FixedEpochs(5, 2)], ids=repr)
def test_the_leading_part_is_what_the_first_rounds_use(strategy: strategies.Strategy, pattern: MinSeparation) -> None:
    for t in range(1, strategy.rounds + 1):
        leading = strategy.leading(t)
        C = strategy.matrix()
        # By definition: the rows of C that involve no later round, and the first columns.
        used = C[~C[:, t:].any(axis=1), :t]
        np.testing.assert_array_equal(leading.matrix(), used)
        assert leading.sensitivity(pattern).value >= brute_force_sensitivity(used, pattern) * (1 - 1e-12)


def test_a_stream_is_refused_by_what_its_error_does_to_c_and_a_c_that_nothing_inverts_too() -> None:
    class Added(strategies.BandedToeplitz):
        def step(self, round_index, draw, memory):
            """As C⁻¹, whose entries reach 2²³, but for 0.15 of the first row of z in the last round: C⁻¹ of another C."""
            rows = [*memory, draw(round_index)]
            last = 0.15 * rows[0] if round_index == self.rounds - 1 else 0.0
            return sum((-2.0) ** (round_index - i) * row for i, row in enumerate(rows)) + last, tuple(rows)

    with pytest.raises(ContractError, match=r"N·C differs from I by 0\.15"):
        check_strategy(Added(24, (1.0, 2.0)), [])

    class Own(Added):
        def matrix(self):
            return np.diag([1.0, 1.0, 0.0])

    with pytest.raises(ValueError, match="has not full column rank"):
        strategies.Described(3, [[1.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="has not full column rank"):
        _ = Mechanism(Own(3, (1.0,)), SingleParticipation(), 1.0).mu


def test_a_broken_stream_is_caught() -> None:
    class ForgetsTheBand(strategies.BandedToeplitz):
        def step(self, round_index, draw, memory):  # a deliberately broken twin
            return draw(round_index), ()

    class LooksAhead(strategies.Identity):
        def step(self, round_index, draw, memory):  # as above
            return draw(round_index) + 0 * draw(self.rounds - 1 - round_index), ()

    class Understates(strategies.Identity):
        def sensitivity(self, participation):  # as above
            return strategies.Identity(1).sensitivity(participation)

    class Forgetful(strategies.BandedToeplitz):
        memory_rows = 0  # as above

    class NeverEnds(strategies.Identity):
        def step(self, round_index, draw, memory):  # as above
            return draw(min(round_index, self.rounds - 1)), ()

    for broken, message in (
        (ForgetsTheBand(4, (1.0, 0.5)), "does not invert"),
        (LooksAhead(4), "belongs to a later round"),
        (Understates(4), "brute force finds"),
        (NeverEnds(4), "past the last"),
        (Forgetful(4, (1.0, 0.5)), "memory_rows = 0"),
    ):
        with pytest.raises(ContractError, match=message):
            check_strategy(broken)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda value: repr(value)[:40])
def test_prt_7_the_round_after_the_last_is_refused(strategy: strategies.Strategy) -> None:
    with pytest.raises(NoiseExhaustedError, match=f"rounds 0 to {strategy.rounds - 1} only"):
        strategy.step(strategy.rounds, lambda i: np.zeros(1), ())


@pytest.mark.parametrize("case", MF["streaming"], ids=lambda case: case["id"])
def test_the_stream_is_c_inverse_z(case: dict) -> None:
    z, memory, strategy = np.array(case["z"]), (), strategies.Dense(case["C"])
    for t, expected in enumerate(case["y"]):
        row, memory = strategy.step(t, lambda i: z[i], memory)
        np.testing.assert_allclose(row, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", [c for c in MF["sqrt_toeplitz"] if c["n"] <= 1000], ids=lambda case: f"n={case['n']}")
def test_the_full_square_root_has_the_known_error(case: dict) -> None:
    root = strategies.toeplitz.square_root(case["n"], bands=case["n"])
    A = workloads.prefix_sum(case["n"])
    squared = root.sensitivity(SingleParticipation()).value ** 2
    np.testing.assert_allclose(root.matrix() @ root.matrix(), A.matrix(), atol=1e-10)
    assert squared == pytest.approx(case["sens2"], rel=1e-12)
    assert utility.max_squared_error(A, root) * squared == pytest.approx(case["max_sq_error_at_sens1"], rel=1e-9)
    assert utility.mean_squared_error(A, root) * squared == pytest.approx(case["mean_sq_error_at_sens1"], rel=1e-9)


def test_a_momentum_workload_is_what_sgd_with_momentum_does() -> None:
    rates = np.array([1.0, 0.5, 0.25, 0.125])
    x = np.random.default_rng(0).normal(size=4)
    buffer = model = 0.0
    models = []
    for rate, gradient in zip(rates, x, strict=True):
        buffer = 0.9 * buffer + gradient
        model += rate * buffer
        models.append(model)
    np.testing.assert_allclose(workloads.momentum(4, 0.9, rates).matrix() @ x, models, rtol=1e-12)


def test_the_published_learning_rates_are_the_stated_cooldown(data_folder: Path) -> None:
    rates = read_tensor_proto(data_folder / "lr_vector_tensor_pb")
    np.testing.assert_allclose(rates, np.concatenate([np.ones(1500), np.linspace(1, 0.05, 500)]), rtol=1e-12)
