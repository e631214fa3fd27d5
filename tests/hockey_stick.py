"""Slow, independent references for privacy profiles: written from the definitions, sharing nothing with the package.

* :func:`attained` builds the output laws of an explicit pair of data sets, cohort by cohort, and integrates (p − e^ε q)⁺.
* :func:`contour_epsilon` composes a pair of densities by a contour integral of its moment generating function
  (Alghamdi et al. 2023, https://arxiv.org/abs/2208.09595): neither a mesh of losses nor an FFT.
* :func:`gaussian_delta` and :func:`sampled_delta` are closed forms in 50 digits; :func:`of_two_bins` and :func:`shares_delta`
  sum up definitions.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import mpmath
import numpy as np
from scipy.special import ndtr

Cohorts = list[tuple[float, tuple[int, ...]]]


def poisson_cohorts(members: int, q: float) -> Cohorts:
    subsets = (chosen for size in range(members + 1) for chosen in itertools.combinations(range(members), size))
    return [(q ** len(chosen) * (1 - q) ** (members - len(chosen)), chosen) for chosen in subsets]


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
    rest = list(values[1:])
    changed = {"zero-out": [0.0, *rest], "replace-one": [other, *rest], "add-or-remove-one": rest}[relation]
    yield list(values), changed
    yield changed, list(values)


def mixture(q: float, mean: float, x: np.ndarray) -> np.ndarray:
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
    tails = tilts * np.log(tilts) - (1 + tilts) * np.log1p(tilts) - math.log(delta)
    bounds = (rounds * log_moment(tilts + 0j).real + tails) / tilts
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


def gaussian_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """Delta of a Gaussian release of a given μ, in 50 digits (Balle and Wang 2018, Theorem 8)."""
    with mpmath.workdps(50):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def sampled_delta(z: float, q: float, epsilon: float, relation: str) -> mpmath.mpf:
    """Delta of one release that a unit joins by a coin, in 50 digits: the set where the loss exceeds epsilon, by definition.

    The densities of x are (1 − q)·φ(x) + q·φ(x − 1/z) with the unit, and φ(x), or for a replacement the same with −1/z,
    without it.
    """
    with mpmath.workdps(50):
        s, p, E = 1 / mpmath.mpf(z), mpmath.mpf(q), mpmath.exp(mpmath.mpf(epsilon))

        def mixed(move: mpmath.mpf, upper: mpmath.mpf) -> mpmath.mpf:
            return (1 - p) * mpmath.ncdf(-upper) + p * mpmath.ncdf(move - upper)

        if relation == "replace-one":
            # With u = e^{xs}: (1 − p) + a·u exceeds E·((1 − p) + a/u) above the root of a quadratic.
            a, b = p * mpmath.exp(-s * s / 2), (1 - p) * (1 - E)
            at = mpmath.log((-b + mpmath.sqrt(b * b + 4 * a * a * E)) / (2 * a)) / s
            return mixed(s, at) - E * mixed(-s, at)
        at = mpmath.log(1 + (E - 1) / p) / s + s / 2
        removed = mixed(s, at) - E * mpmath.ncdf(-at)
        # The other way round: φ exceeds E times the mixture below a point, or nowhere.
        room = (1 / E - (1 - p)) / p
        if room <= 0:
            return removed
        below = mpmath.log(room) / s + s / 2
        added = mpmath.ncdf(below) - E * ((1 - p) * mpmath.ncdf(below) + p * mpmath.ncdf(below - s))
        return max(removed, added)


def exact_mixture_delta(
    norms: Sequence[float], chances: Sequence[float], z: float, epsilon: float, relation: str
) -> mpmath.mpf:
    """Delta of one release of a norm drawn by chance, in 60 digits: the set where the loss exceeds epsilon, by definition."""
    with mpmath.workdps(60):
        total = mpmath.fsum(mpmath.mpf(p) for p in chances)
        parts = [(mpmath.mpf(p) / total, mpmath.mpf(s) / mpmath.mpf(z)) for p, s in zip(chances, norms, strict=True)]
        e, E, mirrored = mpmath.mpf(epsilon), mpmath.exp(mpmath.mpf(epsilon)), relation == "replace-one"

        def ratio(x: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
            """ln of Σ pᵢ·N(sᵢ, 1) over N(0, 1), and its derivative."""
            terms = [p * mpmath.exp(x * s - s * s / 2) for p, s in parts]
            whole = mpmath.fsum(terms)
            return mpmath.log(whole), mpmath.fsum(term * s for term, (_, s) in zip(terms, parts, strict=True)) / whole

        def loss(x: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
            (value, slope), (other, steep) = ratio(x), ratio(-x) if mirrored else (mpmath.mpf(0), mpmath.mpf(0))
            return value - other, slope + steep

        def argument(wanted: mpmath.mpf) -> mpmath.mpf:
            low, high = mpmath.mpf(-1), mpmath.mpf(1)
            while loss(low)[0] > wanted:
                low *= 2
            while loss(high)[0] < wanted:
                high *= 2
            x = (low + high) / 2
            # An argument that is wrong by so much moves delta by its square.
            while high - low > mpmath.mpf("1e-35") * (1 + abs(x)):
                value, slope = loss(x)
                low, high = (x, high) if value < wanted else (low, x)
                newton = x + (wanted - value) / slope if slope else low
                if abs(newton - x) < mpmath.mpf("1e-35") * (1 + abs(x)):
                    break
                x = newton if low < newton < high else (low + high) / 2
            return x

        def mass(upper: mpmath.mpf, sign: int) -> mpmath.mpf:
            """Of Σ pᵢ·N(sign·sᵢ, 1), or of N(0, 1) for 0, above a point."""
            return mpmath.fsum(p * mpmath.ncdf(sign * s - upper) for p, s in parts)

        at = argument(e)
        there = mass(at, 1) - E * mass(at, -1 if mirrored else 0)
        least = mpmath.log(mpmath.fsum(p for p, s in parts if s == 0) or mpmath.mpf("1e-5000"))
        if mirrored or -e <= least:
            return there
        at = argument(-e)
        gone = mpmath.ncdf(at) - E * mpmath.fsum(p * mpmath.ncdf(at - s) for p, s in parts)
        return max(there, gone)


Means = list[tuple[float, float]]


def mixture_delta(one: Means, other: Means, epsilon: float) -> float:
    """Delta of two mixtures of normal laws of deviation 1, or less: of a set that is nearly the worst one.

    Its ends are sought by bisection between points of a grid; of any set at all it is a bound from below. What stands in it is
    summed up by distribution functions, without a grid.

    Args:
        one: Chances and means of the first mixture.
        other: Of the second.
        epsilon: At least 0.
    """
    parts = [*one, *((-math.exp(epsilon) * chance, mean) for chance, mean in other)]
    x = np.linspace(min(m for _, m in parts) - 12, max(m for _, m in parts) + 12, 8001)

    def favoured(x: np.ndarray) -> np.ndarray:
        return sum(weight * np.exp(-((x - mean) ** 2) / 2) for weight, mean in parts) > 0

    inside = favoured(x)
    last = np.flatnonzero(np.diff(inside.astype(int)))
    low, high = x[last], x[last + 1]
    for _ in range(30):
        middle = (low + high) / 2
        left = favoured(middle) == inside[last]
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    edges = np.concatenate([[-np.inf] * int(inside[0]), low, [np.inf] * int(inside[-1])])
    begins, ends = edges[::2], edges[1::2]

    def between(mean: float) -> float:
        # In whichever tail the digits are.
        low, high = begins - mean, ends - mean
        return float(np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low)).sum())

    return math.fsum(weight * between(mean) for weight, mean in parts)


def sums(values: Sequence[float], cohorts: Cohorts) -> Means:
    """Chances and values of the sum over a random cohort."""
    return [(chance, sum(values[i] for i in chosen)) for chance, chosen in cohorts]


def of_two_bins(first: float, second: float, epsilon: float, remove: bool) -> float:
    """The delta of two bins with shifts of their own by its definition: a fine grid in one coordinate, exact in the other."""
    y = np.linspace(-30, 30 + 2 * first, 100_001)
    density = np.exp(-y * y / 2) / math.sqrt(2 * math.pi) * (y[1] - y[0])
    one = np.exp(first * y - first**2 / 2)
    bound = 2 * math.exp(epsilon if remove else -epsilon) - one
    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.where(bound > 0, (np.log(np.maximum(bound, 1e-300)) + second**2 / 2) / second, -np.inf)
    if remove:
        return float(density @ ((one / 2 - math.exp(epsilon)) * ndtr(-at) + ndtr(second - at) / 2))
    return float(density @ ((1 - math.exp(epsilon) * one / 2) * ndtr(at) - math.exp(epsilon) / 2 * ndtr(at - second)))


def shares_law(stddev: int, shares: int, reach: int) -> np.ndarray:
    """The law of the sum of so many discrete Gaussians on −reach … reach, by definition: each summed with the next."""
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    one = np.exp(-(x**2) / (2 * stddev**2))
    one /= one.sum()
    law = one
    for _ in range(shares - 1):
        law = np.convolve(law, one, mode="same")
    return law


def shares_delta(stddev: int, shares: int, move: int, epsilon: float) -> float:
    """Delta of the sum of so many discrete Gaussians where it moves by so many steps: their laws, convolved."""
    law = shares_law(stddev, shares, 12 * stddev * shares + abs(move))
    p, q = law[abs(move) :], law[: len(law) - abs(move)]
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
