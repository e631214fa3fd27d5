"""Power series cut to their first coefficients: what a lower-triangular Toeplitz matrix is, by its first column.

Products, inverses and roots of such matrices are those of their series. Short series are divided by recursion, long ones by
Newton's iteration with fast Fourier transforms, whose errors are relative to the largest coefficients.

Letters: a, c, u series, lists of coefficients from x⁰ up.

Source: Brent and Kung 1978, "Fast Algorithms for Manipulating Formal Power Series", https://doi.org/10.1145/322092.322099.
"""

import numpy as np
from scipy import fft

from hubbub._checks import Array

__all__ = ["binomial", "correlate", "divide", "inverse", "multiply", "transposed_divide"]

# A series of so many coefficients, or so many multiplications in all: beyond both, transforms are faster than the recursion.
_SHORT, _FEW = 300, 2_000_000
# How many coefficients the recursion makes before Newton's iteration doubles them.
_FIRST = 512


def multiply(a: Array, c: Array, length: int) -> Array:
    """The first ``length`` coefficients of a·c.

    Example:
        >>> multiply(np.array([1.0, 1.0]), np.array([1.0, 2.0, 3.0]), 3).round(12)
        array([1., 3., 5.])
    """
    a, c = sorted((a[:length], c[:length]), key=len)
    if _recursive(length, len(a)):
        return _recursion(a, np.ones(1), np.pad(c, (0, length - len(c))))
    size = fft.next_fast_len(len(a) + len(c) - 1, real=True)
    product: Array = fft.irfft(fft.rfft(a, size) * fft.rfft(c, size), size)
    return np.pad(product[:length], (0, max(0, length - size)))


def inverse(c: Array, length: int) -> Array:
    """The first ``length`` coefficients of 1/c; ``c[0]`` must not be 0.

    Example:
        >>> inverse(np.array([1.0, -0.5]), 4)
        array([1.   , 0.5  , 0.25 , 0.125])
    """
    c = c[:length]
    first = length if _recursive(length, len(c)) else min(length, _FIRST)
    result = np.zeros(length)
    unit = np.zeros(first)
    unit[0] = 1.0
    result[:first] = _recursion(np.ones(1), c, unit)
    known = first
    while known < length:
        more = min(2 * known, length)
        error = multiply(c[:more], result[:known], more)[known:]
        result[known:more] = -multiply(result[:known], error, more - known)
        known = more
    return result


def divide(a: Array, c: Array) -> Array:
    """The first ``len(a)`` coefficients of a/c.

    Example:
        >>> divide(np.ones(4), np.array([1.0, 1.0]))
        array([1., 0., 1., 0.])
    """
    if _recursive(len(a), len(c)):
        return _recursion(np.ones(1), c, a)
    return multiply(a, inverse(c, len(a)), len(a))


def transposed_divide(a: Array, c: Array) -> Array:
    """T⁻ᵀ·a for the Toeplitz matrix T of c: what carries a gradient back through :func:`divide`."""
    return divide(a[::-1], c)[::-1]


def correlate(u: Array, a: Array, lags: int) -> Array:
    """``(lags,)``: of each lag k the sum of u_{i+k}·a_i, for u and a of equal length: what carries one back to a factor.

    Example:
        >>> correlate(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 1.0]), 2).round(12)
        array([6., 5.])
    """
    size = fft.next_fast_len(len(u) + lags - 1, real=True)
    correlation: Array = fft.irfft(fft.rfft(u, size) * np.conj(fft.rfft(a, size)), size)
    return correlation[:lags]


def binomial(ratio: float, power: float, length: int) -> Array:
    """The first ``length`` coefficients of (1 − ``ratio``·x) to the ``power``, by the binomial series.

    Example:
        >>> binomial(1.0, -0.5, 4)
        array([1.    , 0.5   , 0.375 , 0.3125])
    """
    i = np.arange(1, length)
    return np.concatenate([[1.0], np.cumprod(ratio * (i - 1 - power) / i)])


def _recursion(a: Array, c: Array, x: Array) -> Array:
    """The first ``len(x)`` coefficients of a·x/c, one after the other."""
    # Takes as long to load as all else that a plan needs.
    from scipy.signal import lfilter

    filtered: Array = lfilter(a, c, x)
    return filtered


def _recursive(length: int, bands: int) -> bool:
    return bands <= _SHORT or length * bands <= _FEW
