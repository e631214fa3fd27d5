"""Slow, independent references for matrices: what errors and sensitivities are by definition, and what others computed."""

import itertools
from typing import Any

import numpy as np
import pytest

from hubbub.mechanism import utility
from hubbub.mechanism.participation import FixedEpochs, SingleParticipation
from hubbub.mechanism.strategies import Strategy
from hubbub.mechanism.workloads import Workload, momentum, prefix_sum


def workload_of(case: dict[str, Any]) -> Workload:
    """That of a reference value."""
    return momentum(case["n"], case.get("momentum") or 0.0, case.get("lr"))


def unit_error(workload: Workload, strategy: Strategy, objective: str = "mean") -> float:
    """The squared error for noise of deviation 1, from the noising matrix that the stream makes."""
    errors = utility.squared_errors(workload, strategy)
    return float(errors.max() if objective == "max" else errors.mean())


def best_by_enumeration(X: np.ndarray, b: int, k: int) -> float:
    """The largest sum of the entries of X at a set of rounds, over all sets of at most k that are b apart."""
    sets = (s for m in range(1, k + 1) for s in itertools.combinations(range(len(X)), m))
    return max(float(X[np.ix_(s, s)].sum()) for s in sets if all(j - i >= b for i, j in itertools.pairwise(s)))


def require_reference(case: dict[str, Any], strategy: Strategy, workload: Workload | None = None, rel: float = 1e-12) -> None:
    """A strategy has the errors and the sensitivities that a reference states of it."""
    errors = utility.squared_errors(workload or prefix_sum(case["n"]), strategy)
    single = strategy.sensitivity(SingleParticipation()).value
    found = {"total_sq_error": errors.sum(), "max_sq_error": errors.max(), "sens2_single": single**2}
    assert found == pytest.approx({name: case[name] for name in found}, rel=rel)
    assert "last_sq_error" not in case or errors[-1] == pytest.approx(case["last_sq_error"], rel=rel)
    for k, known in case.get("fixed_epoch", {}).items():
        stated = strategy.sensitivity(FixedEpochs(int(k), case["n"] // int(k)))
        assert stated.exact
        assert stated.value**2 == pytest.approx(known["sens2_abs"], rel=rel)
