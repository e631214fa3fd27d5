"""The exact delta of one Gaussian release, and epsilon and noise by inversion, rounded up.

A query of L2 sensitivity Δ, released with Gaussian noise of standard deviation σ, is (ε, δ)-DP exactly for
δ ≥ Φ(h/2 − εσ/Δ) − e^ε Φ(−h/2 − εσ/Δ) with h = Δ/σ.

Letters: x = εσ/Δ − h/2, R(x) = Φ(−x)/φ(x) the Mills ratio. Then δ = φ(x)·(R(x) − R(x + h)), which keeps its relative precision
where the textbook form subtracts two nearly equal numbers; below x = −1, where δ is large, 1 − δ is a sum of positive terms.
Both roots are sought by Newton's method on the log odds of δ, whose slopes are closed: ∂δ/∂ε = −φ(x) R(x + h), ∂δ/∂h = φ(x).

R(x) = ∫ e^(−xs − s²/2) ds over s ≥ 0, so that R(x) − R(x + h) = ∫ e^(−xs − s²/2)·(1 − e^(−hs)) ds: no term of a quadrature
cancels another.

Source: Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy", Theorem 8,
https://arxiv.org/abs/1805.06530; Abramowitz and Stegun 1964, 26.2.12 (the ratio); Takahasi and Mori 1974, "Double Exponential
Formulas for Numerical Integration", https://doi.org/10.2977/prims/1195192451.
"""

import math

from scipy.special import erfcinv, erfcx, erfinv

from hubbub._util.checks import non_negative, open_unit, positive, scale
from hubbub._util.roots import newton, pushed

__all__ = ["delta", "epsilon", "log_delta", "mills_ratio", "mills_ratio_and_difference", "noise", "noise_multiplier"]

_ROOT_HALF = math.sqrt(0.5)
_ROOT_HALF_PI = math.sqrt(math.pi / 2)
# Points and weights of a double exponential quadrature for e^(−u) and for e^(u − u²/2) over u ≥ 0: u = e^(t − e^(−t)).
_STEPS = [i / 10 for i in range(-32, 38)]
_POINTS = [(u, u * (1 + math.exp(-t)) / 10) for t in _STEPS for u in [math.exp(t - math.exp(-t))]]


def mills_ratio(x: float) -> float:
    """R(x)."""
    return _ROOT_HALF_PI * float(erfcx(x * _ROOT_HALF))


def mills_ratio_and_difference(x: float, h: float) -> tuple[float, float]:
    """R(x + h), and R(x) − R(x + h), for x ≥ −1 and h > 0."""
    after, reach = mills_ratio(x + h), max(1.0, x)
    if h > reach:
        # R(x) is at least about twice as large.
        return after, mills_ratio(x) - after
    # No sum of NumPy's, whose last bits depend on the processor: a ledger states epsilon, and is resumed on other machines.
    x, h, half, exp, expm1 = x / reach, h / reach, 0.5 / (reach * reach), math.exp, math.expm1
    return after, -math.fsum([weight * exp(-u * (x + u * half)) * expm1(-h * u) for u, weight in _POINTS]) / reach


_LOG_ROOT_2_PI = math.log(2 * math.pi) / 2
_ROOT_2 = math.sqrt(2)
# Below, 1 − δ is computed and δ is at least 0.68; above, δ itself.
_PLAIN_BELOW = -1.0
# Relative error of a difference of Mills ratios (measured: 2e-15), and of the functions of the standard library.
_EVALUATION = 2e-14
# Beyond these, δ is below every float64 and squares overflow; they are cut, which states more delta.
_LARGEST_X, _LARGEST_EPSILON = 1e100, 1e250
_SPLIT = 2.0**27 + 1
_SMALLEST, _GREATEST = 1e-100, 1e100


def noise(name: str, value: object) -> float:
    """A noise multiplier from 1e-100 to 1e100: beyond, squares leave the range of float64."""
    number = positive(name, value)
    if not _SMALLEST <= number <= _GREATEST:
        raise ValueError(f"{name} = {value!r}: must be from {_SMALLEST:g} to {_GREATEST:g}")
    return number


def log_delta(epsilon: float, noise_multiplier: float, sensitivity: float = 1.0) -> float:
    """The natural logarithm of :func:`delta`, rounded up; finite where delta itself underflows.

    Example:
        >>> round(log_delta(epsilon=100.0, noise_multiplier=1.0), 3)
        -4960.255
    """
    sigma = noise("noise_multiplier", noise_multiplier)
    return _log_delta(non_negative("epsilon", epsilon), _ratio(sigma, scale("sensitivity", sensitivity)))[0]


def delta(epsilon: float, noise_multiplier: float, sensitivity: float = 1.0) -> float:
    """The smallest delta for which one release is (epsilon, delta)-DP, rounded up.

    Args:
        epsilon: At least 0.
        noise_multiplier: Standard deviation of the noise, in the unit in which ``sensitivity`` is stated; with the clip norm as
            the unit it is σ/C. From 1e-100 to 1e100.
        sensitivity: How far one person can move what is released, in L2 norm and the same unit: 1 where a contribution of norm
            at most 1 appears or vanishes, 2 where it may be replaced by another. From 1e-12 to 1e12.

    Returns:
        Never below the exact value, and above it by at most 5e-13 of it, plus 2e-15·√epsilon, down to 1e-300; of a value that
        underflows, the smallest number above 0.

    Raises:
        ValueError: A number out of range or not finite.

    Example:
        >>> f"{delta(epsilon=1.0, noise_multiplier=3.7306316) :.6e}"
        '1.000000e-05'
        >>> f"{delta(epsilon=1.0, noise_multiplier=2 * 3.7306316, sensitivity=2.0) :.6e}"
        '1.000000e-05'

    Source: Balle and Wang 2018, Theorem 8, https://arxiv.org/abs/1805.06530.
    """
    return _exponential(log_delta(epsilon, noise_multiplier, sensitivity))


def epsilon(delta: float, noise_multiplier: float, sensitivity: float = 1.0) -> float:
    """The smallest epsilon for which one release is (epsilon, delta)-DP, rounded up.

    Args:
        delta: Strictly between 0 and 1.
        noise_multiplier: As for :func:`delta`.
        sensitivity: As for :func:`delta`.

    Raises:
        ValueError: A number out of range or not finite.

    Example:
        >>> round(epsilon(delta=1e-10, noise_multiplier=1.8215931671662196), 9)
        3.424007273

    Source: Balle and Wang 2018, Theorem 8, https://arxiv.org/abs/1805.06530.
    """
    target = open_unit("delta", delta)
    sigma = noise("noise_multiplier", noise_multiplier)
    return _epsilon(target, _ratio(sigma, scale("sensitivity", sensitivity)))


def noise_multiplier(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest noise multiplier for which one release is (epsilon, delta)-DP, rounded up.

    Args:
        epsilon: From 0 to 1e12.
        delta: Strictly between 0 and 1.
        sensitivity: As for :func:`delta`; the answer is in its unit, and so proportional to it.

    Raises:
        ValueError: A number out of range or not finite, or an answer beyond 1e100.

    Example:
        >>> round(noise_multiplier(epsilon=1.0, delta=1e-5), 4)
        3.7306
        >>> round(noise_multiplier(epsilon=0.0, delta=1e-5), 1)
        39894.2

    Source: Balle and Wang 2018, Theorem 8 and Algorithm 1, https://arxiv.org/abs/1805.06530.
    """
    eps = non_negative("epsilon", epsilon)
    if eps > 1e12:
        raise ValueError(f"epsilon = {epsilon!r}: must be at most 1e12")
    target = open_unit("delta", delta)
    size = scale("sensitivity", sensitivity)
    wanted = _log_odds(math.log(target))

    def excess(sigma: float) -> tuple[float, float]:
        log_value, x, _ = _log_delta(eps, sigma)
        odds, slope = _odds_and_slope(log_value, x)
        return odds - wanted, -slope / sigma**2

    start = _enough_noise(eps, target)
    if start > _GREATEST and not _meets(eps, _GREATEST, target):
        raise ValueError(f"epsilon = {epsilon!r}: delta = {delta!r} would need noise above {_GREATEST:g}; allow more of either")
    sigma = newton(excess, min(start, _GREATEST)) * size

    def enough(sigma: float) -> bool:
        # Delta alone is not enough: the epsilon stated for this noise must not exceed the requested one by an ulp.
        return _meets(eps, _ratio(sigma, size), target) and _epsilon(target, _ratio(sigma, size)) <= eps

    return pushed(sigma, enough)


def _epsilon(target: float, sigma: float) -> float:
    h = 1 / sigma
    # At epsilon 0 delta is erf(h/√8).
    if math.erf(h / (2 * _ROOT_2)) <= target * (1 + 1e-9) and _meets(0.0, sigma, target):
        return 0.0
    wanted = _log_odds(math.log(target))

    def excess(eps: float) -> tuple[float, float]:
        log_value, x, after = _log_delta(eps, sigma)
        odds, slope = _odds_and_slope(log_value, x)
        return odds - wanted, -slope * after

    return pushed(newton(excess, _enough_epsilon(h, target)), lambda eps: _meets(eps, sigma, target))


def _enough_epsilon(h: float, target: float) -> float:
    """A sufficient epsilon: δ ≤ Φ(−x) for every x, and δ ≤ h·φ(x) for x ≥ 0."""
    x = _ROOT_2 * float(erfcinv(2 * target))
    square = 2 * (math.log(h / target) - _LOG_ROOT_2_PI)
    if 0 < square < x * x and x > 0:
        x = math.sqrt(square)
    return max(h * (h / 2 + x), 5e-324)


def _enough_noise(eps: float, target: float) -> float:
    """Sufficient noise at sensitivity 1: for epsilon 0, or because δ ≤ Φ(−x)."""
    for_nothing = 1 / (2 * _ROOT_2 * max(float(erfinv(target)), 1e-300))
    if eps == 0:
        return for_nothing
    b = float(erfcinv(2 * target))
    root = math.sqrt(b * b + eps)
    return min(for_nothing, (b + root) / (eps * _ROOT_2) if b > 0 else 1 / (_ROOT_2 * (root - b)))


def _ratio(sigma: float, size: float) -> float:
    """The noise per unit of sensitivity, rounded down, which states more delta, never less."""
    ratio = sigma / size
    high, low = _product(ratio, size)
    return ratio if high == sigma and low == 0 else math.nextafter(ratio, 0)


def _log_delta(eps: float, sigma: float) -> tuple[float, float, float]:
    """The logarithm of delta at sensitivity 1, with an allowance for every rounding, so that it is never below the truth.

    Together with it x and R(x + h), for slopes.
    """
    h = 1 / sigma
    x, lost = _argument(min(eps, _LARGEST_EPSILON), sigma, h)
    nearly_cancelled = 2.0**-50 * (abs(x) + h)
    if x < _PLAIN_BELOW:
        after = mills_ratio(x + h)
        rest = math.erfc(-x / _ROOT_2) / 2 + math.exp(-x * x / 2 - _LOG_ROOT_2_PI) * after
        return math.log1p(-rest * max(0.0, 1 - _EVALUATION - nearly_cancelled * (1 + abs(x)))), x, after
    after, difference = mills_ratio_and_difference(x, h)
    log_difference = math.log(difference)
    value = -x * x / 2 - x * lost - _LOG_ROOT_2_PI + log_difference
    value += _EVALUATION + nearly_cancelled + 2.0**-52 * (x * x + abs(log_difference))
    return min(0.0, value), x, after


def _argument(eps: float, sigma: float, h: float) -> tuple[float, float]:
    """x = εσ − 1/(2σ), and its rounding error: an error of x moves log δ by x times as much."""
    t, lost_t = _product(eps, sigma)
    near_one, lost_one = _product(h, sigma)
    lost_h = ((1 - near_one) - lost_one) * h
    x = t - h / 2
    if x > _LARGEST_X:
        return _LARGEST_X, 0.0
    back = x - t
    return x, (t - (x - back)) - (h / 2 + back) + lost_t - lost_h / 2


def _product(a: float, b: float) -> tuple[float, float]:
    """a·b and its rounding error (Dekker 1971)."""
    scaled_a, scaled_b = _SPLIT * a, _SPLIT * b
    a_high, b_high = scaled_a - (scaled_a - a), scaled_b - (scaled_b - b)
    a_low, b_low = a - a_high, b - b_high
    product = a * b
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _log_odds(log_probability: float) -> float:
    """log p − log(1 − p), in which neither end is flat."""
    rest = -math.expm1(log_probability)
    return log_probability - math.log(rest) if rest > 0 else math.inf


def _odds_and_slope(log_value: float, x: float) -> tuple[float, float]:
    """The log odds of δ, and φ(x) / (δ(1 − δ)), by which they change where δ changes by φ(x)."""
    rest = -math.expm1(log_value)
    if not rest > 0:
        return math.inf, 0.0
    log_rest = math.log(rest)
    return log_value - log_rest, math.exp(min(700.0, -x * x / 2 - _LOG_ROOT_2_PI - log_value - log_rest))


def _exponential(log_value: float) -> float:
    """Rounded up, and never 0."""
    return min(1.0, math.nextafter(math.exp(log_value), math.inf))


def _meets(eps: float, sigma: float, target: float) -> bool:
    return _exponential(_log_delta(eps, sigma)[0]) <= target
