"""The sensitivity of a banded strategy to spaced participations, against the recursion that Google published.

The accounting notebook of Gboard's language models states Algorithm 5 of Choquette-Choo et al. 2023 as a memoised
recursion. The peer is that recursion, written here from its definition and given the column norms as Python floats,
which are faster to add than the notebook's NumPy scalars.

Source: https://github.com/google-research/federated/blob/master/mf_dpftrl_matrices/privacy_accounting.ipynb and
https://arxiv.org/abs/2306.08153.
"""

import functools
import math
import sys
from collections.abc import Sequence

import numpy as np

import _runner
from hubbub.mechanism.participation import MinSeparation
from hubbub.mechanism.sensitivity import of_columns

ROUNDS, SEPARATION, PARTICIPATIONS = 2000, 485, 3
TOLERANCE = 1e-12
LIMIT = 0.010


def recursion(squared_norms: Sequence[float], separation: int, participations: int) -> float:
    """The squared sensitivity: the best value F(i, m) of the rounds from i on with m participations, which must fit."""

    @functools.cache
    def best(i: int, m: int) -> float:
        if m == 0:
            return 0.0
        if i + separation * (m - 1) >= len(squared_norms):
            return -math.inf
        return max(best(i + 1, m), squared_norms[i] + best(i + separation, m - 1))

    return best(0, participations)


def rows(seconds: float) -> list[_runner.Row]:
    sys.setrecursionlimit(10 * ROUNDS)
    squared_norms = np.random.default_rng(0).uniform(size=ROUNDS)
    as_floats = squared_norms.tolist()
    pattern = MinSeparation(SEPARATION, PARTICIPATIONS)
    name = f"sensitivity, {ROUNDS:,} rounds, {PARTICIPATIONS} participations"
    row = _runner.compare(
        f"{name}; peer: published recursion",
        lambda: of_columns(squared_norms, pattern).value ** 2,
        lambda: recursion(as_floats, SEPARATION, PARTICIPATIONS),
        seconds=seconds,
        tolerance=TOLERANCE,
        goal=10,
    )
    return [row, _runner.Row(f"{name}; peer: a limit of 10 ms", row.ours, LIMIT, goal=1)]


if __name__ == "__main__":
    _runner.main(__doc__, rows)
