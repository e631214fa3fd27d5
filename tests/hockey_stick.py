"""Slow, independent references for privacy profiles: written from the definitions, sharing nothing with the package.

* :func:`attained` builds the output laws of an explicit pair of data sets, cohort by cohort, and integrates (p − e^ε q)⁺.
* :func:`contour_epsilon` composes a pair of densities by a contour integral of its moment generating function
  (Alghamdi et al. 2023, https://arxiv.org/abs/2208.09595): neither a mesh of losses nor an FFT.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

Cohorts = list[tuple[float, tuple[int, ...]]]


def poisson_cohorts(members: int, q: float) -> Cohorts:
    return [
        (q ** len(chosen) * (1 - q) ** (members - len(chosen)), chosen)
        for size in range(members + 1)
        for chosen in itertools.combinations(range(members), size)
    ]


def fixed_cohorts(members: int, size: int) -> Cohorts:
    chosen = list(itertools.combinations(range(members), size))
    return [(1 / len(chosen), each) for each in chosen]


def truncated_cohorts(members: int, q: float, most: int) -> Cohorts:
    cohorts: Cohorts = []
    for chance, chosen in poisson_cohorts(members, q):
        kept = list(itertools.combinations(chosen, most)) if len(chosen) > most else [chosen]
        cohorts += [(chance / len(kept), each) for each in kept]
    return cohorts


def output_density(x: np.ndarray, values: Sequence[float], cohorts: Cohorts, z: float) -> np.ndarray:
    """The density of the noisy sum over a random cohort."""
    sums = np.array([sum(values[i] for i in chosen) for _, chosen in cohorts])
    chances = np.array([chance for chance, _ in cohorts])
    means, at = np.unique(sums.round(12), return_inverse=True)
    weights = np.bincount(at, chances)
    return np.exp(-((x[:, None] - means) ** 2) / (2 * z * z)) @ weights / (z * math.sqrt(2 * math.pi))


def attained(p: np.ndarray, q: np.ndarray, step: float, epsilons: np.ndarray) -> np.ndarray:
    """∫ (p − e^ε q)⁺ for each epsilon."""
    return np.maximum(p - np.exp(epsilons)[:, None] * q, 0).sum(axis=1) * step


def neighbors(relation: str, values: Sequence[float], other: float) -> Iterator[tuple[list[float], list[float]]]:
    """Both orders of the data and its neighbor in the first record; for add-or-remove-one the shorter data lacks it."""
    changed = {"zero-out": [0.0, *values[1:]], "replace-one": [other, *values[1:]], "add-or-remove-one": list(values[1:])}[
        relation
    ]
    yield list(values), changed
    yield changed, list(values)


def mixture(q: float, mean: float, x: np.ndarray) -> np.ndarray:
    """(1 − q)·N(0, 1) + q·N(mean, 1)."""
    return ((1 - q) * np.exp(-x * x / 2) + q * np.exp(-((x - mean) ** 2) / 2)) / math.sqrt(2 * math.pi)


def contour_epsilon(parts: Sequence[tuple[np.ndarray, np.ndarray]], step: float, rounds: int, delta: float) -> float:
    """Epsilon of the composition of a loss whose law is given by densities.

    Args:
        parts: Pairs (p, loss) over grids of the same step; masses may be points where the step is 1 already.
        step: Of the grids.
        rounds: n.
        delta: Above 0.
    """
    weights = np.concatenate([p for p, _ in parts]) * step
    losses = np.concatenate([loss for _, loss in parts])
    kept = weights > 0
    weights, losses = weights[kept], losses[kept]

    def log_moment(s: np.ndarray) -> np.ndarray:
        exponents = s[:, None] * losses
        top = exponents.real.max(axis=1)
        return top + np.log((np.exp(exponents - top[:, None])) @ weights)

    tilts = np.exp(np.linspace(math.log(1e-2), math.log(1e4), 4000))
    bounds = (
        rounds * log_moment(tilts + 0j).real - math.log(delta) + tilts * np.log(tilts) - (1 + tilts) * np.log1p(tilts)
    ) / tilts
    c = float(tilts[np.argmin(bounds)])
    tilted = weights * np.exp(c * losses - (c * losses).max())
    tilted /= tilted.sum()
    mean = rounds * float(tilted @ losses)
    width = math.sqrt(rounds * float(tilted @ (losses - tilted @ losses) ** 2))
    t = np.linspace(0, 14 / width, 2000)
    s = c + 1j * t
    logs = np.concatenate([rounds * log_moment(chunk) for chunk in np.array_split(s, 40)])
    if logs[-1].real > logs[0].real - 25:
        raise ValueError("the integrand has not decayed: too few rounds for this reference")
    kernel = -np.log(s) - np.log(s + 1)

    def log_delta(epsilon: float) -> float:
        exponents = logs - s * epsilon + kernel
        top = exponents.real.max()
        values = np.exp(exponents - top).real
        integral = float(np.trapezoid(values, t))
        if integral <= 0:
            # Far from the tilted mean all that is left is rounding.
            return math.inf if epsilon < mean else -math.inf
        return top + math.log(integral / math.pi)

    low, high = 0.0, float(bounds.min())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if log_delta(middle) > math.log(delta) else (low, middle)
    return high
