"""The exact delta of one Gaussian release, and epsilon and noise by inversion, rounded up.

A query of L2 sensitivity Δ, released with Gaussian noise of standard deviation σ, is (ε, δ)-DP exactly for
δ ≥ Φ(h/2 − εσ/Δ) − e^ε Φ(−h/2 − εσ/Δ) with h = Δ/σ.

Letters: x = εσ/Δ − h/2, R(x) = Φ(−x)/φ(x) the Mills ratio. Then δ = φ(x)·(R(x) − R(x + h)), which keeps its relative precision
where the textbook form subtracts two nearly equal numbers; below x = −1, where δ is large, 1 − δ is a sum of positive terms.
Both roots are sought by Newton's method on the log odds of δ, whose slopes are closed: ∂δ/∂ε = −φ(x) R(x + h), ∂δ/∂h = φ(x).

R falls, and so do its derivatives in size: |R⁽ⁿ⁾(x)| = ∫ sⁿ e^(−xs − s²/2) ds. Their ratios r_n = |R⁽ⁿ⁾| / |R⁽ⁿ⁻¹⁾| obey
r_n = n / (x + r_{n+1}), which is Laplace's continued fraction of R = 1 / (x + r_1). Run from the far end it only adds positive
numbers, so that one pass yields R and as many derivatives as a Taylor series needs, none with any cancellation.

Source: Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy", Theorem 8,
https://arxiv.org/abs/1805.06530; Abramowitz and Stegun 1964, 26.2.14 (the continued fraction), 7.2.10 (the recurrence).
"""

import math

from scipy.special import erfcinv, erfcx, erfinv

from hubbub._util.checks import non_negative, number, open_unit, positive, scale
from hubbub._util.roots import newton, pushed

_ROOT_HALF = math.sqrt(0.5)
_ROOT_HALF_PI = math.sqrt(math.pi / 2)
# From here on series come from the fraction: below it converges slowly, above it 1 − x·R loses digits.
_FRACTION_FROM = 2.5
# Steps wider than this need no series: R(x) and R(x + h) are far enough apart, while x is not large.
_SMALL_STEP = 0.5
_LARGE = 8.0
# Terms of a series in half a step, at most a quarter: later terms are below the last bit of the sum.
_TERMS = 16


def mills_ratio(x: float) -> float:
    """R(x)."""
    return _ROOT_HALF_PI * float(erfcx(x * _ROOT_HALF))


def mills_ratio_and_difference(x: float, h: float) -> tuple[float, float]:
    """R(x + h), and R(x) − R(x + h), for x ≥ −1 and h > 0."""
    if h < _SMALL_STEP:
        middle = x + h / 2
        even, odd = _ratios(middle, h / 2) if middle >= _FRACTION_FROM else _recurrence(middle, h / 2)
        return even - odd, 2 * odd
    if x < _LARGE:
        after = mills_ratio(x + h)
        return after, mills_ratio(x) - after
    near, far = _first_ratio(x), _first_ratio(x + h)
    after = 1 / (x + h + far)
    # 1/R(x + h) − 1/R(x), times both; near − far is far below h, so that little cancels.
    return after, (h - (near - far)) * after / (x + near)


def _start(x: float) -> tuple[int, float]:
    """The level from which the fraction is right to the last bit (measured), and about its value there: r = n / (x + r)."""
    level = 5 + int(130 / x)
    return level, 2 * level / (x + math.sqrt(x * x + 4 * level))


def _first_ratio(x: float) -> float:
    level, ratio = _start(x)
    for n in range(level - 1, 0, -1):
        ratio = n / (x + ratio)
    return ratio


def _ratios(middle: float, half: float) -> tuple[float, float]:
    """Σ |R⁽ⁿ⁾(middle)| halfⁿ/n! over even and over odd n, where |R⁽ⁿ⁾|/n! = R · Π 1/(middle + r_{j+1}) over j ≤ n."""
    level, ratio = _start(middle)
    # A term is at most half/middle of the one before it.
    terms = min(_TERMS, 3 + int(37 / math.log(middle / half)))
    for n in range(max(level, terms + 2) - 1, terms, -1):
        ratio = n / (middle + ratio)
    steps = []
    for n in range(terms, 0, -1):
        step = 1 / (middle + ratio)
        steps.append(half * step)
        ratio = n * step
    term = 1 / (middle + ratio)
    sums = [term, 0.0]
    for n, step in enumerate(reversed(steps), 1):
        term *= step
        sums[n % 2] += term
    return sums[0], sums[1]


def _recurrence(middle: float, half: float) -> tuple[float, float]:
    """The same from R itself, by |R⁽ⁿ⁺¹⁾| = n |R⁽ⁿ⁻¹⁾| − middle |R⁽ⁿ⁾|, which keeps its digits below 2.5."""
    before = mills_ratio(middle)
    size = 1 - middle * before
    even, odd, weight = before, half * size, half
    for n in range(1, _TERMS if half > 1e-3 else 5, 2):
        before, size = size, n * before - middle * size
        weight *= half / (n + 1)
        even += weight * size
        before, size = size, (n + 1) * before - middle * size
        weight *= half / (n + 2)
        odd += weight * size
    return even, odd


_LOG_ROOT_2_PI = math.log(2 * math.pi) / 2
_ROOT_2 = math.sqrt(2)
# Below, 1 − δ is computed and δ is at least 0.68; above, δ itself.
_PLAIN_BELOW = -1.0
# Relative error of a difference of Mills ratios (measured: 9e-15), and of the functions of the standard library.
_EVALUATION = 2e-14
# Beyond these, δ is below every float64 and squares overflow; they are cut, which states more delta.
_LARGEST_X, _LARGEST_EPSILON = 1e100, 1e250
_SPLIT = 2.0**27 + 1
_SMALLEST, _GREATEST = 1e-100, 1e100


def noise(name: str, value: object) -> float:
    """A noise multiplier from 1e-100 to 1e100: beyond, squares leave the range of float64."""
    return number(name, positive(name, value), lambda x: _SMALLEST <= x <= _GREATEST, f"be from {_SMALLEST:g} to {_GREATEST:g}")


def log_delta(epsilon: float, noise_multiplier: float, sensitivity: float = 1.0) -> float:
    """The natural logarithm of :func:`delta`, rounded up; finite where delta itself underflows.

    Args:
        epsilon: At least 0.
        noise_multiplier: As of :func:`delta`.
        sensitivity: As of :func:`delta`.

    Raises:
        ValueError: A number out of range.

    Example:
        >>> round(log_delta(epsilon=100.0, noise_multiplier=1.0), 3)
        -4960.255
    """
    sigma, size = noise("noise_multiplier", noise_multiplier), scale("sensitivity", sensitivity)
    return _log_delta(non_negative("epsilon", epsilon), *_quotient(sigma, size))[0]


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
    eps = number("epsilon", non_negative("epsilon", epsilon), lambda x: x <= 1e12, "be at most 1e12")
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
        # Neither delta nor epsilon, as stated for this noise, may exceed the request by an ulp: they round its quotient apart.
        attained, ratio = _exponential(_log_delta(eps, *_quotient(sigma, size))[0]), _ratio(sigma, size)
        return attained <= target and _meets(eps, ratio, target) and _epsilon(target, ratio) <= eps

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
    ratio, lost = _quotient(sigma, size)
    return math.nextafter(ratio, 0) if lost else ratio


def _quotient(sigma: float, size: float) -> tuple[float, float]:
    """The noise per unit of sensitivity, and its rounding error."""
    ratio = sigma / size
    high, low = _product(ratio, size)
    return ratio, ((sigma - high) - low) / size


def _log_delta(eps: float, sigma: float, more: float = 0.0) -> tuple[float, float, float]:
    """The logarithm of delta at sensitivity 1, with an allowance for every rounding, so that it is never below the truth.

    Together with it x and R(x + h), for slopes. The noise is ``sigma`` plus ``more``, a rounding of it.
    """
    h = 1 / sigma
    x, lost = _argument(min(eps, _LARGEST_EPSILON), sigma, h, more)
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


def _argument(eps: float, sigma: float, h: float, more: float) -> tuple[float, float]:
    """x = εσ − 1/(2σ), and its rounding error, that of σ included: an error of x moves log δ by x times as much."""
    t, lost_t = _product(eps, sigma)
    near_one, lost_one = _product(h, sigma)
    lost_h = ((1 - near_one) - lost_one) * h
    x = t - h / 2
    if x > _LARGEST_X:
        return _LARGEST_X, 0.0
    back = x - t
    return x, (t - (x - back)) - (h / 2 + back) + lost_t - lost_h / 2 + (eps + h * h / 2) * more


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
