"""Tests of the noise itself, where everything else in a release is known: its size, and whether it repeats.

Whitened noise of a right system is a matrix of independent N(0, 1). Canaries in random directions see neither noise that comes
twice in one row, as of layers that share a seed, nor noise that comes again in another run; these tests do.

For a symmetric A and z ~ N(0, I): P[zᵀAz − tr A ≥ 2‖A‖_F·√x + 2‖A‖·x] ≤ e^(−x).

Source: Laurent and Massart 2000, Lemma 1, https://doi.org/10.1214/aos/1015957395, for positive A; Boucheron, Lugosi and Massart
2013, "Concentration Inequalities", Example 2.12, for any symmetric A.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import gammainccinv, gammaincinv, ndtri

from hubbub._checks import Array, open_unit
from hubbub.audit.whitening import Check

__all__ = ["check_noise", "mean_outside"]

_FALSE_ALARM = 1e-6
# That are multiplied at once.
_ROWS = 1024
# Numbers that are transformed at once.
_AT_ONCE = 2**22


def check_noise(noise: Sequence[Array], *, false_alarm: float = _FALSE_ALARM) -> tuple[Check, ...]:
    """Tests of whitened noise, each of which fails a right system with at most the given probability.

    1. Its root mean square, between exact chi-square quantiles.
    2. The largest mean product of two rows, of one run or of two: of noise that is used twice it is about 1.
    3. The largest mean product of entries of one row that lie equally far apart, over all rows: of noise that comes again in a
       part of each row it is about that part.
    4. The same of entries of one column, over all columns of a run: it is far from 0 where rows are correlated otherwise than
       was promised.

    Of the last three those are left out that have too few numbers for any noise to fail them.

    Args:
        noise: Of each run, ``(rounds, dim)``: N(0, 1) if the system is right.
        false_alarm: Of each test, strictly between 0 and 1.
    """
    alarm = open_unit("false_alarm", false_alarm)
    rows = np.concatenate(list(noise))
    count, dim = rows.shape
    half = rows.size / 2
    size = math.sqrt(float(np.mean(np.square(rows))))
    low = math.sqrt(float(gammaincinv(half, alarm / 2)) / half)
    high = math.sqrt(float(gammainccinv(half, alarm / 2)) / half)
    further = []
    if count > 1:
        most = _at_most(dim / 2, 0.5, math.log(count * (count - 1) / alarm)) / dim
        further.append(Check("largest correlation of two rounds", _largest_product(rows), 0.0, most, alarm))
    further += _by_distance("largest correlation within rounds", rows, alarm)
    further += _by_distance("largest correlation over rounds", np.concatenate([run.T for run in noise]), alarm)
    return (Check("size of the noise", size, low, high, alarm), *(check for check in further if check.high < 1.0))


def _by_distance(name: str, sequences: Array, alarm: float) -> list[Check]:
    """A test of the products of entries of one sequence that lie equally far apart, ``(sequences, length)``."""
    count, length = sequences.shape
    if length < 2:
        return []
    x = math.log(2 * (length - 1) / alarm)
    # Of the sum over sequences of z_i·z_(i+lag), ‖A‖_F² is count·(length − lag)/2, and ‖A‖ below 1.
    allowed = np.array([_at_most(count * (length - lag) / 2, 1.0, x) for lag in range(1, length)])
    worst = np.abs(_lagged(sequences)[1:]) / allowed
    found = int(np.argmax(worst))
    most = float(allowed[found]) / (count * length)
    return [Check(name, float(worst[found]) * most, 0.0, most, alarm)]


def mean_outside(scores: Array, *, false_alarm: float = _FALSE_ALARM) -> Check:
    """Whether canaries contributed nothing where they were not asked: the mean of N(0, 1) scores between normal quantiles."""
    margin = -float(ndtri(open_unit("false_alarm", false_alarm) / 2)) / math.sqrt(scores.size)
    return Check("mean outside their rounds", float(np.mean(scores)), -margin, margin, false_alarm)


def _at_most(frobenius_squared: float, norm: float, x: float) -> float:
    """What a quadratic form without a trace stays below, but for a probability of e^(−x)."""
    return 2 * math.sqrt(frobenius_squared * x) + 2 * norm * x


def _largest_product(noise: Array) -> float:
    """The largest mean product of two rows, by its size; of many rows some at a time."""
    largest = 0.0
    for start in range(0, len(noise), _ROWS):
        products = np.abs(noise[start : start + _ROWS] @ noise.T) / noise.shape[1]
        products[np.arange(len(products)), np.arange(start, start + len(products))] = 0.0
        largest = max(largest, float(products.max()))
    return largest


def _lagged(sequences: Array) -> Array:
    """The sum over sequences of the products of entries ``lag`` apart, ``(length,)``, by a transform that is long enough."""
    length = sequences.shape[1]
    size = 1 << (2 * length - 1).bit_length()
    power = np.zeros(size // 2 + 1)
    some = max(1, _AT_ONCE // size)
    for start in range(0, len(sequences), some):
        power += np.square(np.abs(np.fft.rfft(sequences[start : start + some], size))).sum(axis=0)
    found: Array = np.fft.irfft(power, size)[:length]
    return found
