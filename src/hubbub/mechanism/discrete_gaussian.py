"""Discrete Gaussian noise: whole numbers x with probability ∝ e^{−x²/2s²}, as a function of a key.

A client's running time must not depend on its noise (Jin et al. 2022). So there is no rejection: the number of random words and
passes, and the shapes of all arrays, depend on s and the length alone. (The entries of a table that are read do depend on the
words: there is no protection against a program that shares the processor's cache.) The price is a distance from the discrete
Gaussian, :func:`statistical_distance`, which the accountant adds to delta.

* **A table.** For a variance up to 140², the values' probabilities, whole multiples of 2⁻⁷⁰⁴, are cut and glued into buckets of
  equal mass that hold two values each (Walker's aliases). A word's first bits name the bucket; whether the rest is below the
  bucket's threshold says which value. Where the rest *is* the first bits of the threshold, a tie, ten more words decide. A tie
  has a chance of 2⁻⁵¹ or less: a few are settled in each chunk, always as many, whether they are ties or not.
* **A ladder.** A larger variance V is that of X + m·Y, X from the table of variance f² and Y with the variance (V − f²)/m². Its
  probability at x is in proportion to e^{−x²/2V} times Σ_y e^{−(m·y − v)²/2u}, u = f²·(V − f²)/V and some v for each x. By
  Poisson's summation formula these sums are the same for all v up to a factor 1 ± θ, θ = 2·Σ_{k≥1} e^{−2π²k²u/m²}. So the
  probabilities are those of the discrete Gaussian of variance V up to a factor from (1 − θ)/(1 + θ) to (1 + θ)/(1 − θ), and the
  distance is θ/(1 − θ) at most.

Letters: s standard deviation in steps, V variance, f that of the fine table (``_FINE``), m ``_COARSE``, J largest value.

Source: Canonne, Kamath and Steinke 2020, "The Discrete Gaussian for Differential Privacy", https://arxiv.org/abs/2004.00010
(subgaussian tails); Micciancio and Walter 2017, "Gaussian Sampling over the Integers", https://eprint.iacr.org/2017/259 (sums);
Walker 1977 and Vose 1991 (aliases); Jin, McMurtry, Rubinstein and Ohrimenko 2022, "Are We There Yet? Timing and Floating-Point
Attacks on Differential Privacy Systems", https://arxiv.org/abs/2112.05307.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hubbub._util.checks import integer
from hubbub._util.prf import KEY_BYTES, word_stream
from hubbub.mechanism import MOST_STDDEV

__all__ = ["discrete_gaussian", "statistical_distance"]

# Standard deviations of the widest table and of the fine ones; the steps of what is not fine; J in standard deviations. They
# are chosen together, so that θ and the tails are about 2⁻⁶¹⁶ and seven tables reach 2²⁸: 140·13⁶ is above it.
_WIDEST, _FINE, _COARSE, _REACH = 140, 70, 13, 29.25
_MOST_TABLES = 7
# Of a probability: one word, and ten more for ties. Weights are computed to as many bits and 64 more.
_WORD, _MORE_WORDS = 64, 10
_BITS = _WORD * (1 + _MORE_WORDS)
_PRECISION, _DIGITS = _BITS + 64, 250
# Numbers at a time: their arrays stay in a processor's cache. So many ties are settled in each such chunk.
_CHUNK, _SETTLED = 2**14, 16

_Words = npt.NDArray[np.uint64]
_Numbers = npt.NDArray[np.int64]
_Source = Callable[[int], _Words]


def discrete_gaussian(key: bytes, stddev: int, count: int) -> _Numbers:
    """``(count,)`` discrete Gaussian numbers of mean 0, independent up to :func:`statistical_distance`.

    Args:
        key: 32 bytes, used for one call: a second one gives the same numbers.
        stddev: s, a whole number from 1 to 2²⁸. The variance is at most s², and above s²·(1 − 3e-7).
        count: At least 0.

    Raises:
        ValueError: A number out of range, or a key of another length.

    Example:
        >>> from hubbub._util.prf import seed_key
        >>> noise = discrete_gaussian(seed_key(0), stddev=1000, count=10_000)
        >>> noise.dtype, bool(950 < noise.std() < 1050)
        (dtype('int64'), True)
    """
    s, wanted = integer("stddev", stddev, at_least=1, at_most=MOST_STDDEV), integer("count", count, at_least=0)
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise ValueError(f"key: must be {KEY_BYTES} bytes, such as hubbub._util.prf.fresh_key() gives")
    words, tables = word_stream(key), [_table(variance) for variance in _ladder(Fraction(s * s))]
    found = np.zeros(wanted, dtype=np.int64)
    for start in range(0, wanted, _CHUNK):
        some = found[start : start + _CHUNK]
        # From the coarsest to the finest.
        for table in reversed(tables):
            some *= _COARSE
            some += _drawn(words, table, len(some))
    return found


def statistical_distance(numbers: int) -> float:
    """An upper bound on the total variation distance of that many numbers from independent discrete Gaussian ones.

    It is the same for each standard deviation, and for numbers of several calls with independent keys together.

    Args:
        numbers: At least 0.

    Example:
        >>> f"{statistical_distance(10**12):.0e}"
        '3e-173'

    Source: Canonne, Kamath and Steinke 2020 (tails), and the module's docstring.
    """
    tail = 2 * math.exp(-(_REACH**2) / 2)
    most_buckets = 1 << math.ceil(math.log2(2 * _REACH * _WIDEST))
    # What is lost of each value's mass; weights are off by less than 2·J² of their last bits each.
    rounding = most_buckets * 2.0**-_BITS + most_buckets**3 * 2.0**-_PRECISION
    # That more than those settled of a chunk are tied, divided among its numbers.
    tie = most_buckets * 2.0**-_WORD
    ties = tie * (_CHUNK * tie) ** _SETTLED / math.factorial(_SETTLED + 1)
    # V is above _WIDEST² where there is a sum, so that u is at least this; further terms of θ are below a millionth of it.
    least_u = _FINE**2 * (1 - (_FINE / _WIDEST) ** 2)
    theta = 2.000002 * math.exp(-2 * math.pi**2 * least_u / _COARSE**2)
    sums = (_MOST_TABLES - 1) * theta / (1 - theta)
    # All of it in floating point, whose errors are far below 1e-9 of it.
    return integer("numbers", numbers, at_least=0) * (_MOST_TABLES * (tail + rounding + ties) + sums) * (1 + 1e-9)


@dataclass(frozen=True)
class _Table:
    """Buckets of equal mass: bucket b holds b − ``zero`` with its threshold's mass, and its alias with the rest.

    The first bits of a word name its bucket, the ``shift`` others are below its threshold or not; ``tops`` are those bits of
    each threshold, 2^shift where the whole bucket is its own.
    """

    shift: int
    zero: int
    tops: _Words
    aliases: npt.NDArray[np.int16]
    thresholds: tuple[int, ...]

    def value(self, word: int, more: int) -> int:
        """The value of a word and of the bits that follow it."""
        bucket, rest = word >> self.shift, word & ((1 << self.shift) - 1)
        # Both are looked up: the time of a branch would depend on the value.
        both = int(self.aliases[bucket]), bucket - self.zero
        return both[(rest << (_BITS - _WORD) | more) < self.thresholds[bucket]]


def _drawn(words: _Source, table: _Table, count: int) -> _Numbers:
    """``(count,)`` numbers of a table."""
    w = words(count)
    bucket = (w >> np.uint64(table.shift)).view(np.int64)
    rest = w & np.uint64((1 << table.shift) - 1)
    top = table.tops.take(bucket)
    values = np.where(rest < top, bucket - table.zero, table.aliases.take(bucket))
    # 0 says that there is no tie left: what is settled there then is no tie, so that its value stays, or it is the last one.
    tied = np.where(rest == top, np.arange(count), 0)
    more = words(_SETTLED * _MORE_WORDS).reshape(_SETTLED, _MORE_WORDS)
    for row in more:
        at = int(tied.max())
        values[at] = table.value(int(w[at]), int.from_bytes(row.tobytes(), "big"))
        tied[at] = 0
    return values


def _ladder(variance: Fraction) -> list[Fraction]:
    """The variances of the tables of which a number is made, the finest first."""
    found = []
    while variance > _WIDEST**2:
        found.append(Fraction(_FINE**2))
        variance = (variance - _FINE**2) / _COARSE**2
    return [*found, variance]


# The fine table, and one for each standard deviation of late: it takes some thousandths of a second to make.
@lru_cache(maxsize=8)
def _table(variance: Fraction) -> _Table:
    """The table of a variance up to ``_WIDEST``²."""
    # The least power of two that is J + 1 or more.
    half = 1 << (math.ceil(_REACH * math.sqrt(variance)) - 1).bit_length()
    masses = _masses(variance, half - 1)
    # One value more on the left, of no mass: the buckets are a power of two.
    thresholds, aliases = _aliased([0, *reversed(masses[1:]), *masses])
    shift = _WORD - half.bit_length()
    tops = np.array([threshold >> (_BITS - _WORD) for threshold in thresholds], dtype=np.uint64)
    return _Table(shift, half, tops, np.array(aliases, dtype=np.int16) - np.int16(half), tuple(thresholds))


def _masses(variance: Fraction, reach: int) -> list[int]:
    """P(0), P(1), …, P(J) in units of 2^−_BITS, rounded down but for P(0), which makes the whole one: ``(reach + 1,)``."""
    with localcontext(Context(prec=_DIGITS)):
        unit = (-Decimal(variance.denominator) / (2 * Decimal(variance.numerator))).exp() * 2**_PRECISION
        # e^{−(2x−1)/2V}, from x = 1 on, the ratio of P(x) to P(x − 1); its own ratio is e^{−1/V}.
        ratio, square = int(unit), int(unit * unit) >> _PRECISION
    weights = [1 << _PRECISION]
    for _ in range(reach):
        weights.append(weights[-1] * ratio >> _PRECISION)
        ratio = ratio * square >> _PRECISION
    whole = 2 * sum(weights) - weights[0]
    masses = [(weight << _BITS) // whole for weight in weights]
    masses[0] = (1 << _BITS) - 2 * sum(masses[1:])
    return masses


def _aliased(masses: list[int]) -> tuple[list[int], list[int]]:
    """Each bucket's own mass, and the bucket that owns the rest; the masses are exactly one whole share a bucket on average."""
    share = sum(masses) // len(masses)
    left = list(masses)
    thresholds, aliases = [share] * len(left), list(range(len(left)))
    small = [b for b, mass in enumerate(left) if mass < share]
    large = [b for b, mass in enumerate(left) if mass >= share]
    while small:
        needy, giver = small.pop(), large[-1]
        thresholds[needy], aliases[needy] = left[needy], giver
        left[giver] -= share - left[needy]
        if left[giver] < share:
            small.append(large.pop())
    return thresholds, aliases
