"""The old recipe for cohorts of a fixed size, as tensorflow-privacy has it: for comparison with published numbers only.

Letters: q sampling probability, σ noise multiplier, a order, e(j) = j/(2σ²), B(l) = E[(Y − 1)^l] for the lognormal Y with
E[Y^i] = e^{(i−1)·e(i)}, the l-th forward difference of that sequence at 0.

A_a = 1 + q²·C(a,2)·min{4(e^{e(2)} − 1), 2e^{e(2)}} + Σ_{j=3}^{a} q^j·C(a,j)·min{4√(B(2⌊j/2⌋)·B(2⌈j/2⌉)), 2e^{(j−1)e(j)}}, and
the bound at a whole order is ln A_a/(a − 1). Only even l occur, for which B is an integral of a positive function: it is
summed as such where the alternating sum would cancel. tensorflow-privacy and dp_accounting let it cancel: for q = 0.5 and
σ = 20 their values depend on the processor from order 20 on, in the tenth digit, and are twice too high from order 63 on.

Source: Wang, Balle and Kasiviswanathan 2019, "Subsampled Rényi Differential Privacy and Analytical Moments Accountant",
Theorem 27 and Corollary 10, https://arxiv.org/abs/1808.00087.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from hubbub._checks import Array, integer, probability, scale
from hubbub.accounting.conversions import require_orders

__all__ = ["compute_rdp_sample_without_replacement"]

# Above it, as in tensorflow-privacy, only the second of the two bounds of each term is taken.
_MOST_EXACT = 256
_MOST_ORDER = 10**5
# From this noise on the alternating sum for B cancels.
_CANCELS = 0.5


def compute_rdp_sample_without_replacement(q: float, noise_multiplier: float, steps: int, orders: npt.ArrayLike) -> Array:
    """Rényi divergences of fixed-size cohorts by the old recipe, under replace-one, for comparison with published numbers.

    ``noise_multiplier`` is the noise over the sensitivity under replace-one, which is 2C for a clip norm C: pass σ/(2C). With
    σ/C, as DP-FedAvg did, the answer is a bound under no relation at all, and epsilon is understated 6 to 8 times.
    ``accounting.rdp`` and ``accounting.epsilon`` of a ``FixedSizeSampled`` take σ/C and are tighter.

    Args:
        q: Size of the cohort over that of the population, above 0 and at most 1.
        noise_multiplier: Standard deviation of the noise on the sum over how far the replacement of one record moves it.
        steps: Rounds, at least 0.
        orders: Numbers above 1; between whole ones (a − 1) times the divergence is interpolated.

    Returns:
        One value an order, ``(orders,)``.

    Raises:
        ValueError: A number out of range or not finite.

    Example:
        >>> compute_rdp_sample_without_replacement(q=0.01, noise_multiplier=0.5, steps=1000, orders=(2, 8)).round(4).tolist()
        [10.8604, 10835.9694]

    Source: Wang, Balle and Kasiviswanathan 2019, Theorem 27, https://arxiv.org/abs/1808.00087.
    """
    rate, sigma = probability("q", q), scale("noise_multiplier", noise_multiplier)
    rounds, a = integer("steps", steps, at_least=0), require_orders(orders)
    if float(a.max()) > _MOST_ORDER:
        raise ValueError(f"orders = {float(a.max())!r}: must be at most {_MOST_ORDER} here")
    if rate == 1:
        return rounds * a / (2 * sigma**2)
    low, high = np.floor(a), np.ceil(a)
    whole = {int(order): _log_moment(rate, sigma, int(order)) for order in np.union1d(low, high)}
    share = a - low
    below, above = (np.array([whole[int(order)] for order in ends]) for ends in (low, high))
    divergences: Array = rounds * ((1 - share) * below + share * above) / (a - 1)
    return divergences


def _log_moment(q: float, sigma: float, order: int) -> float:
    """ln A_a."""
    if order == 1:
        return 0.0
    j = np.arange(2, order + 1)
    bounds = math.log(2) + (j - 1) * j / (2 * sigma**2)
    first = 1 / sigma**2
    bounds[0] = min(math.log(4) + first + math.log(-math.expm1(-first)), bounds[0])
    if order <= _MOST_EXACT:
        differences = _log_differences(sigma, order + 1)
        bounds[1:] = np.minimum(bounds[1:], math.log(4) + (differences[j[1:] // 2] + differences[(j[1:] + 1) // 2]) / 2)
    terms = bounds + j * math.log(q) + gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    return float(np.logaddexp.reduce(np.append(terms, 0.0)))


def _log_differences(sigma: float, most: int) -> Array:
    """ln B(2m) at position m, for 2m up to ``most``."""
    if sigma < _CANCELS:
        return np.array([_alternating(sigma, length) for length in range(0, most + 1, 2)])
    # Y = e^{(x − 1/2)/σ²} under N(0, σ²); (Y − 1)^l is made of Gaussians around 0, 1, …, l. The integrand has no poles, so
    # that steps of σ/2 err by e^{−2π²·4}.
    step = sigma / 2
    x = np.arange(-12 * sigma, most + 13 * sigma, step)
    density = -np.square(x / sigma) / 2 - math.log(2 * math.pi) / 2 + math.log(step / sigma)
    exponents = (x - 0.5) / sigma**2
    with np.errstate(divide="ignore"):
        above = np.maximum(exponents, 0) + np.log(-np.expm1(-np.abs(exponents)))
    lengths = np.arange(0, most + 1, 2)[:, None]
    with np.errstate(invalid="ignore"):
        terms = np.where(lengths > 0, lengths * above, 0.0) + density
    differences: Array = np.logaddexp.reduce(terms, axis=1)
    return differences


def _alternating(sigma: float, length: int) -> float:
    """ln B(l) as Σ_i (−1)^{l−i} C(l, i) e^{(i−1)e(i)}, from its largest terms."""
    i = np.arange(length + 1)
    logs = gammaln(length + 1) - gammaln(i + 1) - gammaln(length - i + 1) + i * (i - 1) / (2 * sigma**2)
    top = float(logs.max())
    return top + math.log(float(np.sum(np.exp(logs - top) * np.where((length - i) % 2, -1, 1)))) if length else 0.0
