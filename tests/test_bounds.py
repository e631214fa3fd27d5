"""Bounds that hold for every strategy: against the optimum, against random strategies, and against slower arithmetic."""

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import solve_triangular

from conftest import oracle
from hubbub import FixedEpochs, Mechanism, MinSeparation, SingleParticipation, factorization
from hubbub.errors import ConfigError
from hubbub.factorization import families
from hubbub.factorization.bounds import classes_of, lower_bound
from hubbub.factorization.diagonal import Effort, maximize
from hubbub.factorization.families import DESCRIPTIONS, Family
from hubbub.mechanism import utility
from hubbub.mechanism.strategies import Dense, Identity, NormalizedToeplitz
from hubbub.mechanism.workloads import Workload, momentum, prefix_sum
from hubbub.noise import NoiseStream
from hubbub.testing import brute_force_sensitivity
from matrix_oracles import workload_of

MF = oracle("matrix_factorization")
ONCE = SingleParticipation()
PATTERNS = [ONCE, *(FixedEpochs(k, b) for k, b in ((2, 4), (3, 3), (2, 3)))]
PATTERNS += [MinSeparation(b, k) for b, k in ((3, 2), (2, 3), (3, 9))]
FAMILIES = sorted(set(DESCRIPTIONS) - {"file"})
WARM_UP = tuple(min(1.0, 1e-5 + (1 - 1e-5) * 4 * t / 149) for t in range(150))
# Where a bound was once above the squared error of a strategy; the second of these is what factorization.blt.optimize finds.
FALSE_BEFORE = [
    pytest.param(Workload(1500, 0.999), ONCE, "max", 684_893, marks=pytest.mark.slow),
    pytest.param(Workload(1500, 0.999), FixedEpochs(3, 500), "max", 3_316_695, marks=pytest.mark.slow),
    (Workload(3, 0.99, (1e-4, 1.0, 1.0)), ONCE, "max", 4.462),
    (Workload(150, 0.99, WARM_UP), ONCE, "mean", 113_304),
]


@pytest.mark.parametrize("case", MF["dense_single_mean"] + MF["dense_single_mean_momentum_lr"], ids=lambda c: c["id"])
def test_the_bound_on_the_mean_is_just_below_the_least_error_of_one_participation(case: dict) -> None:
    bound = lower_bound(workload_of(case), ONCE, "mean")
    assert case["mean_sq_error"] * (1 - (5e-3 if case.get("momentum") else 3e-4)) <= bound <= case["mean_sq_error"] * (1 + 1e-9)


@pytest.mark.parametrize("case", MF["dense_single_max_gamma2"], ids=lambda c: c["id"])
def test_the_bound_on_the_maximum_is_just_below_the_square_of_gamma_2(case: dict) -> None:
    bound = lower_bound(prefix_sum(case["n"]), ONCE, "max")
    assert case["max_sq_error"] * (1 - 1e-3) <= bound <= case["max_sq_error"] * (1 + 1e-12)


@pytest.mark.parametrize("case", MF["dense_kb_mean"] + MF["dense_kb_mean_large"], ids=lambda c: c["id"])
def test_the_bound_for_epochs_is_below_the_least_error(case: dict) -> None:
    bound = lower_bound(prefix_sum(case["n"]), FixedEpochs(case["k"], case["b"]), "mean")
    assert 0.4 * case["mean_sq_error"] < bound < case["mean_sq_error"]


def test_rates_that_differ_by_160_decades_have_a_bound_below_a_strategy_and_others_a_clear_error() -> None:
    workload, strategy = Workload(2, 0.9, (1e-80, 1e80)), Dense([[0.19**0.5, 0.0], [0.9, 1.0]])
    reached = utility.mean_squared_error(workload, strategy) * strategy.sensitivity(ONCE).value ** 2
    assert 0 < lower_bound(workload, ONCE, "mean") <= reached
    near = factorization.banded.optimize(Workload(6, 0.9, (1e-2, 1.0) * 3), 6).strategy
    for objective, error in (("mean", utility.mean_squared_error), ("max", utility.max_squared_error)):
        # Whether float64 proves one for these depends on the processor.
        for uneven in (Workload(6, 0.9, (rate, 1.0) * 3) for rate in (1e-20, 1e-30)):
            reached, bound = error(uneven, near) * near.sensitivity(ONCE).value ** 2, 1e-9
            with suppress(ValueError):
                bound = lower_bound(uneven, ONCE, objective)
            assert 0 < bound <= reached
        with pytest.raises(ValueError, match=r"workload: has no bound that float64 can prove .* take rates that differ less"):
            lower_bound(Workload(6, 0.9, (1e-100, 1.0) * 3), ONCE, objective)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("objective", ["mean", "max"])
@pytest.mark.parametrize("beta", [0.0, 0.8])
def test_no_strategy_of_any_kind_is_below_the_bound(pattern: object, objective: str, beta: float) -> None:
    rng = np.random.default_rng(0)
    n = 8
    workload = momentum(n, beta, rng.uniform(0.3, 1, n))
    A, bound = workload.matrix(), lower_bound(workload, pattern, objective)
    # Near the optimum of the plain problem, far from it, and tall.
    root = np.linalg.cholesky(A.T @ A)
    strategies = [np.eye(n), root.T, np.linalg.svd(A)[2] * np.sqrt(np.linalg.svd(A)[1])[:, None]]
    strategies += [np.tril(rng.normal(size=(n, n))) + 2 * np.eye(n) for _ in range(5)]
    strategies += [rng.normal(size=(n + 3, n)) for _ in range(5)]
    for C in strategies:
        errors = np.square(A @ np.linalg.pinv(C)).sum(axis=1)
        error = errors.mean() if objective == "mean" else errors.max()
        assert error * brute_force_sensitivity(C, pattern) ** 2 >= bound


@pytest.mark.parametrize("pattern", [*PATTERNS, FixedEpochs(2, 9), MinSeparation(1, 1), MinSeparation(20, 5)], ids=str)
def test_the_rounds_of_a_class_are_such_as_one_client_may_join_together(pattern: object) -> None:
    rng = np.random.default_rng(1)
    classes = classes_of(8, pattern)
    for _ in range(20):
        C = rng.normal(size=(8, 8))
        own = np.square(C).sum(axis=0)
        squared = brute_force_sensitivity(C, pattern) ** 2
        for label in range(classes.max() + 1):
            assert pattern.allows(np.flatnonzero(classes == label).tolist())
            assert own[classes == label].sum() <= squared * (1 + 1e-12)
    assert [pattern.allows([r]) for r in range(8)] == (classes >= 0).tolist()


@pytest.mark.parametrize(("workload", "participation", "objective", "reached"), FALSE_BEFORE, ids=range(len(FALSE_BEFORE)))
def test_bounds_made_false_by_rounding_hold(workload: Workload, participation: object, objective: str, reached: float) -> None:
    # ``reached`` is the squared error of a strategy that was found, at sensitivity 1.
    assert reached / 60 < lower_bound(workload, participation, objective) < reached


def test_a_strategy_whose_bound_is_above_its_error_is_refused() -> None:
    answer = factorization.blt.optimize(prefix_sum(8), buffers=1)
    with pytest.raises(ValueError, match="so one of them is false"):
        replace(answer, lower_bound=answer.squared_error * 1.01)
    assert replace(answer, lower_bound=answer.squared_error * (1 + 1e-12)).relative_gap == 0.0
    for unknown in ({"squared_error": math.nan}, {"lower_bound": math.nan}, {"squared_error": math.inf}):
        with pytest.raises(ValueError, match="must be finite; the strategy's inverse is beyond float64"):
            replace(answer, **unknown)


def test_a_program_that_stops_at_every_underflow_gets_the_same_answers() -> None:
    def answers() -> list[object]:
        found = factorization.blt.optimize(prefix_sum(2000), buffers=3)
        strategies = [found.strategy, factorization.semiseparable.optimize(prefix_sum(60)).strategy]
        strategies.append(NormalizedToeplitz(2000, tuple(0.5**i for i in range(700))))
        mechanisms = [Mechanism(strategy, ONCE, 1.0) for strategy in strategies]
        rows = [NoiseStream(mechanism, 3, seed=0).next_row().tolist() for mechanism in mechanisms]
        return [found.squared_error, *(mechanism.l2_sensitivity for mechanism in mechanisms), *rows]

    with np.errstate(all="raise"):
        stopped = answers()
    assert stopped == answers()


def test_bounds_of_random_problems_are_below_what_any_strategy_reaches() -> None:
    for seed in range(25):
        bounds_are_below_errors(seed, most_rounds=40)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_bounds_of_twenty_thousand_random_problems_are_below_what_any_strategy_reaches(part: int) -> None:
    for seed in range(1000):
        bounds_are_below_errors(1000 * part + seed, most_rounds=2000 if seed % 100 == 0 else 200 if seed % 10 == 0 else 30)


def bounds_are_below_errors(seed: int, most_rounds: int) -> None:
    """The law, for one random problem: the quick bound against C = I, against the dual itself, and against one family."""
    rng = np.random.default_rng(seed)
    n = int(np.exp(rng.uniform(0, math.log(most_rounds + 0.5))))
    beta = float(rng.choice([0.0, 0.5, 0.9, 0.99, 0.999, rng.uniform(0, 0.999)]))
    decades = rng.uniform(0, 6)
    rates = {
        "equal": np.full(n, 10**-decades),
        "uneven": 10 ** rng.uniform(-decades, 0, n),
        "warm-up": np.minimum(1.0, 10**-decades + 4 * np.arange(n) / n),
        "falling": np.geomspace(1, 10**-decades, n),
    }[rng.choice(["equal", "uneven", "warm-up", "falling"])]
    workload = momentum(n, beta, rates)
    separation, most = int(rng.integers(1, n + 1)), int(rng.integers(1, 6))
    patterns = (ONCE, FixedEpochs(most, separation), MinSeparation(separation, most))
    participation = patterns[rng.integers(3)]
    objective = ("mean", "max")[rng.integers(2)]
    bound, A = lower_bound(workload, participation, objective), workload.matrix()

    def error_of(C: np.ndarray, sensitivity: float) -> float:
        square = C.shape[0] == C.shape[1]
        B = solve_triangular(C, A.T, lower=True, trans="T").T if square else A @ np.linalg.pinv(C)
        rows = np.square(B).sum(axis=1)
        return float(rows.mean() if objective == "mean" else rows.max()) * sensitivity**2

    own = Identity(n)
    assert 0 <= bound <= error_of(np.eye(n), own.sensitivity(participation).value) * (1 + 1e-12)
    classes = classes_of(n, participation)
    dual = maximize(workload, classes, objective, Effort(0.03, 5, 1e-9))
    squared = np.linalg.svd(np.sqrt(dual.w)[:, None] * A * np.sqrt(dual.v), compute_uv=False).sum() ** 2
    weights = sum(dual.v[classes == label].max() for label in range(classes.max() + 1))
    assert dual.bound <= squared / weights * (1 + 1e-13)
    try:
        answer = families.answer_of(Family(str(rng.choice(FAMILIES)), objective=None), workload, participation)
    except (ValueError, ConfigError):
        # Not every family does every problem.
        return
    if answer.objective != objective:
        bound = lower_bound(workload, participation, answer.objective)
        objective = answer.objective
    reached = error_of(answer.strategy.matrix(), answer.strategy.sensitivity(participation).value)
    assert max(bound, answer.lower_bound) <= reached * (1 + 1e-9)


def test_the_dual_stays_a_bound_however_little_effort_it_gets() -> None:
    for evaluations in (1, 2, 3, 5):
        for poles in (0.3, 1e-2, 1e-8):
            bound = maximize(prefix_sum(64), np.arange(64), "mean", Effort(1e-9, evaluations, poles)).bound
            assert bound <= 4.409397203953
