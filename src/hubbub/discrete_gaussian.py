"""Exact discrete Gaussian noise: whole numbers x with probability ∝ e^{−x²/2s²}, as a function of a key.

All is decided by whole numbers, nothing in floating point, so that no rounding makes one of two neighbors impossible. An event
of probability e^{−γ} is a race (Algorithm 1): of events of the probabilities γ/1, γ/2, γ/3, … count how many happen before the
first that does not; that number is even with probability e^{−γ}. A two-sided geometric proposal |y| = b + s·V with b below s
(Algorithm 2) is taken with probability e^{−(|y| − s)²/2s²} (Algorithm 3, its t = s), which is split so that no number in it
passes 2⁶³: with a = V − 1 it is e^{−a²/2}·e^{−a·b/s}·e^{−b²/2s²}, and e^{−(s − b)²/2s²} where V = 0.

Letters: s standard deviation in steps, K place in a race, p/m a probability, w a random word.

Source: Canonne, Kamath and Steinke 2020, "The Discrete Gaussian for Differential Privacy", Algorithms 1 to 3,
https://arxiv.org/abs/2004.00010.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from hubbub._checks import integer
from hubbub.randomness import KEY_BYTES, word_stream

__all__ = ["MOST_STDDEV", "discrete_gaussian", "whole_share"]

# A race gets farther with a chance below 1/63! < 1e-86, and 2·s²·K stays below 2⁶³ up to it.
_MOST_PLACES = 63
MOST_STDDEV = 2**28
# Proposals at a time: their arrays stay in a processor's cache.
_CHUNK = 2**15
# About how many samples a proposal gives, 1/2.08, with room to spare.
_PROPOSALS = 2.2
# A proposal is larger, in standard deviations, with a chance of e^-1000.
_MOST_QUOTIENT = 1000

_Words = npt.NDArray[np.uint64]
_Flags = npt.NDArray[np.bool_]


def discrete_gaussian(key: bytes, stddev: int, count: int) -> npt.NDArray[np.int64]:
    """``(count,)`` independent discrete Gaussian numbers of mean 0.

    Args:
        key: 32 bytes, used for one call: a second one gives the same numbers.
        stddev: s, a whole number from 1 to 2²⁸. The variance is at most s², and above s²·(1 − 3e-7).
        count: At least 0.

    Raises:
        ValueError: A number out of range, or a key of another length.
        OverflowError: A race went on for longer than any does; the key is not random.

    Example:
        >>> from hubbub.randomness import seed_key
        >>> noise = discrete_gaussian(seed_key(0), stddev=1000, count=10_000)
        >>> noise.dtype, bool(950 < noise.std() < 1050)
        (dtype('int64'), True)
    """
    s, wanted = integer("stddev", stddev, at_least=1, at_most=MOST_STDDEV), integer("count", count, at_least=0)
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise ValueError(f"key: must be {KEY_BYTES} bytes, such as hubbub.randomness.fresh_key() gives")
    following = word_stream(key)

    def words(number: int) -> _Words:
        return following(number).view(np.uint64)

    found, done = np.empty(wanted, dtype=np.int64), 0
    while done < wanted:
        some = _accepted(words, s, min(_CHUNK, math.ceil(_PROPOSALS * (wanted - done)) + 16))[: wanted - done]
        found[done : done + len(some)] = some
        done += len(some)
    return found


def whole_share(stddev: Fraction, shares: int) -> int:
    """The least whole s with which s²·shares is at least stddev², exactly: what each of the shares of a noise has.

    Raises:
        ValueError: It is above 2²⁸.

    Example:
        >>> whole_share(Fraction(40), shares=100), whole_share(Fraction(40) + Fraction(1, 10**30), shares=100)
        (4, 5)
    """
    square = stddev**2 / shares
    root = math.isqrt(math.ceil(square))
    root += root * root < square
    if root > MOST_STDDEV:
        raise ValueError(
            f"stddev of a share = {root} steps: is at most 2^28; more shares, or less noise, are needed to draw it exactly"
        )
    return root


_Source = Callable[[int], _Words]


def _accepted(words: _Source, s: int, proposals: int) -> npt.NDArray[np.int64]:
    """The accepted ones of so many proposals, in their order."""
    b = _below(words, s, proposals)
    b = b[_exponential(words, b, s)]
    quotient = _geometric(words, len(b))
    negative = (words(len(b)) & np.uint64(1)).astype(bool)
    # 0 has one sign.
    kept = ~(negative & (b == 0) & (quotient == 0))
    b, quotient, negative = b[kept], quotient[kept], negative[kept]
    near = np.where(quotient == 0, np.uint64(s) - b, b)
    kept = _exponential(words, near * near, 2 * s * s)
    b, quotient, negative = b[kept], quotient[kept], negative[kept]
    kept = _far(words, b, quotient, s)
    size = b[kept].astype(np.int64) + s * quotient[kept]
    signed: npt.NDArray[np.int64] = np.where(negative[kept], -size, size)
    return signed


def _far(words: _Source, b: _Words, quotient: npt.NDArray[np.int64], s: int) -> _Flags:
    """With probability e^{−a²/2}·e^{−a·b/s} for a = V − 1 where that is above 0; for certain elsewhere."""
    taken = np.ones(len(b), dtype=bool)
    active = np.flatnonzero(quotient > 1)
    a = quotient[active] - 1
    turn = 0
    while active.size:
        # a² events of probability e^{−1/2}, then a of probability e^{−b/s}; whoever misses one is out.
        hit = _exponential(words, np.ones(len(active), dtype=np.uint64), 2)
        again = np.flatnonzero(hit & (a > turn))
        hit[again] = _exponential(words, b[active[again]], s)
        taken[active[~hit]] = False
        turn += 1
        left = hit & (a * a > turn)
        active, a = active[left], a[left]
    return taken


def _geometric(words: _Source, number: int) -> npt.NDArray[np.int64]:
    """How many events of probability e⁻¹ happen before the first that does not, ``(number,)``."""
    counts = np.zeros(number, dtype=np.int64)
    active = np.arange(number)
    for _ in range(_MOST_QUOTIENT):
        active = active[_exponential(words, np.ones(len(active), dtype=np.uint64), 1)]
        if not active.size:
            return counts
        counts[active] += 1
    raise OverflowError(f"a proposal passed {_MOST_QUOTIENT} deviations, which does not happen: the key is not random")


def _exponential(words: _Source, p: _Words, q: int) -> _Flags:
    """Events of the probabilities e^{−p/q}, for p below q, or q = 1, by a race of each."""
    even = np.ones(len(p), dtype=bool)
    active = np.arange(len(p))
    place = 1
    while active.size:
        if place > _MOST_PLACES:
            raise OverflowError(f"a race went on for {_MOST_PLACES} places, which does not happen: the key is not random")
        active = active[_event(words, p[active], q * place)]
        # As many events happened as the place says.
        even[active] = place % 2 == 0
        place += 1
    return even


def _event(words: _Source, p: _Words, m: int) -> _Flags:
    """Events of the probabilities p/m, for p below m < 2⁶³, or m = 1, exactly."""
    if m == 1:
        return p >= 1
    share = 2**64 // m
    w = _fair(words, len(p), share * m)
    return w < p * np.uint64(share)


def _below(words: _Source, bound: int, number: int) -> _Words:
    """Uniform whole numbers below a bound, ``(number,)``."""
    if bound == 1:
        return np.zeros(number, dtype=np.uint64)
    share = 2**64 // bound
    return _fair(words, number, share * bound) // np.uint64(share)


def _fair(words: _Source, number: int, end: int) -> _Words:
    """Uniform words below ``end``, which is above 2⁶³: those beyond are drawn again."""
    w = words(number)
    if end == 2**64:
        return w
    beyond = np.flatnonzero(w >= np.uint64(end))
    while beyond.size:
        w[beyond] = words(len(beyond))
        beyond = beyond[w[beyond] >= np.uint64(end)]
    return w
