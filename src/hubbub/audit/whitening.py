"""Tests of correlated noise: scores of canaries that are exactly Gaussian if the noise is the promised one.

The release is X̂ = X + stddev·C⁻¹Z. A canary contributes u_t·c in round t, with pattern u and direction c.
C whitens the noise, so the best test of one canary is

    s = ⟨C·X̂, (C·u)·cᵀ⟩ / (stddev·‖C·u‖·‖c‖) ~ N(0, 1) if absent, N(‖C·u‖·‖c‖/stddev, 1) if present.

The largest such mean over all allowed patterns is the μ of the guarantee. With orthogonal directions the scores of the canaries
are independent, and all distributions below are exact.

Source: Denisov et al. 2022, Theorem 2.1 (the Gaussian mechanism on C·X), https://arxiv.org/abs/2202.08312; the optimal test
between two Gaussian laws: Dong, Roth and Su 2022, Section 2, https://arxiv.org/abs/1905.02383.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import gammainccinv, gammaincinv, ndtri

from hubbub._util.checks import Array, non_negative, open_unit, positive, real_array
from hubbub.audit.bounds import scores

_FALSE_ALARM = 1e-6
_ORTHOGONAL = 1e-9
Rows: TypeAlias = npt.ArrayLike


@dataclass(frozen=True)
class Check:
    """One test of a system, with its false-alarm probability.

    Args:
        name: The tested property, such as ``"null standard deviation"``.
        value: The measured value.
        low: The least value that passes.
        high: The largest value that passes.
        false_alarm: An upper bound on the probability that a correct system fails.

    Example:
        >>> Check("null standard deviation", value=1.4, low=0.8, high=1.2, false_alarm=1e-6).passed
        False
    """

    name: str
    value: float
    low: float
    high: float
    false_alarm: float

    @property
    def passed(self) -> bool:
        """Whether the value is in its range."""
        return self.low <= self.value <= self.high


def present_means(C: Rows, patterns: Rows, directions: Rows, *, stddev: float) -> Array:
    """The mean ‖C·u‖·‖c‖/stddev of the score of each canary, if it is present.

    Args:
        C: The strategy, ``(rounds, rounds)``.
        patterns: The multiple of its direction that each canary contributes in each round, ``(canaries, rounds)``.
        directions: ``(canaries, dim)``; orthogonal to one another.
        stddev: Standard deviation of z, in the unit of the directions.

    Raises:
        ValueError: Shapes that do not fit, a zero pattern or direction, a number that is not finite.

    Example:
        >>> present_means([[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0]], [[1.0, 0.0, 0.0]], stddev=0.5).round(4).tolist()
        [2.8284]
    """
    *_, lengths, norms = _canaries(C, patterns, directions)
    return lengths * norms / positive("stddev", stddev)


def whitened_scores(C: Rows, released: Rows, patterns: Rows, directions: Rows, *, stddev: float) -> Array:
    """The score of each canary: exactly N(0, 1) if absent, N(:func:`present_means`, 1) if present.

    Exact if along the directions the rows contain only noise and these canaries: all else must be subtracted from them or be
    orthogonal.

    Args:
        C: The strategy, ``(rounds, rounds)``.
        released: The noisy sums of all rounds, ``(rounds, dim)``.
        patterns: The multiple of its direction that each canary contributes in each round, ``(canaries, rounds)``.
        directions: ``(canaries, dim)``; orthogonal to one another, as the rows of ``numpy.linalg.qr(...)[0].T`` are.
        stddev: Standard deviation of z, in the unit of the rows.

    Raises:
        ValueError: Shapes that do not fit, directions that are not orthogonal, a zero pattern or direction, a number that is
            not finite.

    Example:
        >>> import numpy as np
        >>> C, u, c = np.eye(2), [[1.0, 1.0]], [[1.0, 0.0, 0.0]]
        >>> whitened_scores(C, [[1.0, 9.0, 9.0], [1.0, 9.0, 9.0]], u, c, stddev=0.5).round(4).tolist()
        [2.8284]
        >>> present_means(C, u, c, stddev=0.5).round(4).tolist()
        [2.8284]
    """
    matrix, vectors, whitened, lengths, norms = _canaries(C, patterns, directions)
    rows = real_array("released", released, ndim=2)
    if rows.shape != (matrix.shape[0], vectors.shape[1]):
        raise ValueError(f"released has shape {rows.shape}: must be (rounds, dim) = {(matrix.shape[0], vectors.shape[1])}")
    along = matrix @ (rows @ vectors.T)
    return np.asarray(np.einsum("tj,tj->j", along, whitened) / (positive("stddev", stddev) * lengths * norms))


def check_whitened_scores(
    absent: npt.ArrayLike, present: npt.ArrayLike, means: npt.ArrayLike, *, mu: float, false_alarm: float = _FALSE_ALARM
) -> tuple[Check, Check, Check]:
    """Three tests of a system by the whitened scores of canaries, each with the given false-alarm probability.

    1. The root mean square of the absent scores, between exact chi-square quantiles: fails for another size or correlation.
    2. The mean of the present scores minus its prediction, between exact normal quantiles: fails if canaries took part more
       often, or with more weight, than their pattern says.
    3. The mean of the present scores in units of the *measured* standard deviation against the claimed ``mu``. Its threshold
       divides the false-alarm probability between the mean and the standard deviation.

    Args:
        absent: Whitened scores of absent canaries.
        present: Whitened scores of present canaries.
        means: :func:`present_means` of the present ones, in the same order.
        mu: The μ of the guarantee: sensitivity over stddev.
        false_alarm: Of each test, strictly between 0 and 1.

    Raises:
        ValueError: No score, another number of means than of present scores, a mean above ``mu``, a number out of range.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> absent, present = rng.normal(size=300), 0.7 + rng.normal(size=300)
        >>> [check.passed for check in check_whitened_scores(absent, present, np.full(300, 0.7), mu=0.7)]
        [True, True, True]
        >>> [check.passed for check in check_whitened_scores(absent, present + 0.6, np.full(300, 0.7), mu=0.7)]
        [True, False, False]
    """
    null, seen, expected = scores("absent", absent), scores("present", present), scores("means", means)
    alarm = open_unit("false_alarm", false_alarm)
    claimed = non_negative("mu", mu)
    if expected.size != seen.size:
        raise ValueError(f"means holds {expected.size} numbers: must hold one for each of the {seen.size} present scores")
    if float(expected.max()) > claimed * (1 + 1e-9):
        raise ValueError(f"means holds {expected.max()}, above mu = {claimed}: the guarantee does not cover such a pattern")
    deviation = math.sqrt(float(np.mean(null**2)))
    smallest, largest = _deviations(null.size, alarm)
    margin = -float(ndtri(alarm / 2)) / math.sqrt(seen.size)
    excess = float(np.mean(seen - expected))
    measured = float(np.mean(seen)) / max(deviation, 1e-100)
    return (
        Check("null standard deviation", deviation, smallest, largest, alarm),
        Check("mean of the present", excess, -margin, margin, alarm),
        Check("mu", measured, -math.inf, (claimed + margin) / smallest if smallest > 0 else math.inf, alarm),
    )


def _deviations(size: int, alarm: float) -> tuple[float, float]:
    """The range of the root mean square of ``size`` independent N(0, 1), except with probability ``alarm``."""
    half = size / 2
    low, high = (math.sqrt(float(quantile(half, alarm / 2)) / half) for quantile in (gammaincinv, gammainccinv))
    return low, high


def _canaries(C: Rows, patterns: Rows, directions: Rows) -> tuple[Array, Array, Array, Array, Array]:
    """C, the directions, C·u of every canary as columns, its norms, and the norms of the directions."""
    matrix, shares = real_array("C", C, ndim=2), real_array("patterns", patterns, ndim=2)
    vectors = real_array("directions", directions, ndim=2)
    rounds = matrix.shape[0]
    if matrix.shape != (rounds, rounds):
        raise ValueError(f"C has shape {matrix.shape}: must be square")
    if shares.shape != (vectors.shape[0], rounds):
        raise ValueError(f"patterns has shape {shares.shape}: must be (canaries, rounds) = {(vectors.shape[0], rounds)}")
    norms = np.linalg.norm(vectors, axis=1)
    whitened = matrix @ shares.T
    lengths = np.linalg.norm(whitened, axis=0)
    for name, sizes in (("directions", norms), ("patterns", lengths)):
        if not sizes.all():
            raise ValueError(f"{name}[{int(np.argmin(sizes))}] is zero (after C): such a canary cannot be seen")
    units = vectors / norms[:, None]
    cosines = np.abs(units @ units.T)
    np.fill_diagonal(cosines, 0.0)
    i, j = np.unravel_index(int(np.argmax(cosines)), cosines.shape)
    if cosines[i, j] > _ORTHOGONAL:
        raise ValueError(
            f"directions[{int(i)}] and directions[{int(j)}] have the cosine {cosines[i, j]:.3g}: must be orthogonal, or one "
            f"score depends on another; take the rows of numpy.linalg.qr(directions.T)[0].T"
        )
    return matrix, vectors, whitened, lengths, norms


# Rows in one product.
_ROWS = 1024
# Numbers in one Fourier transform.
_AT_ONCE = 2**22


def check_noise(noise: Sequence[Array]) -> tuple[Check, ...]:
    """Tests of the whitened noise of each run, ``(rounds, dim)``, each with a false-alarm probability of 1e-6.

    1. Its root mean square, between exact chi-square quantiles.
    2. The largest mean product of two rows, of one run or of two: about 1 if a row of noise is used twice.
    3. The largest mean product of entries of one row that lie equally far apart, over all rows: if a part of each
       row repeats, it is about the size of that part.
    4. The same of entries of one column, over all columns of a run: far from 0 if rows are not correlated as
       promised.

    Of the last three, those with too few numbers to fail are left out.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(20, 3000))
        >>> [check.passed for check in check_noise([rows])]
        [True, True, True, True]
        >>> [check.passed for check in check_noise([np.concatenate([rows, rows])])]
        [True, False, True, False]
    """
    rows, alarm = np.concatenate(list(noise)), _FALSE_ALARM
    count, dim = rows.shape
    size = math.sqrt(float(np.mean(np.square(rows))))
    further = []
    if count > 1:
        most = _at_most(dim / 2, 0.5, math.log(count * (count - 1) / alarm)) / dim
        further.append(Check("largest correlation of two rounds", _largest_product(rows), 0.0, most, alarm))
    further += _by_distance("largest correlation within rounds", rows, alarm)
    further += _by_distance("largest correlation over rounds", np.concatenate([run.T for run in noise]), alarm)
    return (
        Check("size of the noise", size, *_deviations(rows.size, alarm), alarm),
        *(check for check in further if check.high < 1.0),
    )


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


def mean_outside(scores: Array) -> Check:
    """A test that canaries contribute nothing in rounds without them: the mean of N(0, 1) scores between normal quantiles."""
    margin = -float(ndtri(_FALSE_ALARM / 2)) / math.sqrt(scores.size)
    return Check("mean of canaries outside their rounds", float(np.mean(scores)), -margin, margin, _FALSE_ALARM)


def _at_most(frobenius_squared: float, norm: float, x: float) -> float:
    """An upper bound on a quadratic form without a trace, except with probability e^(−x)."""
    return 2 * math.sqrt(frobenius_squared * x) + 2 * norm * x


def _largest_product(noise: Array) -> float:
    """The largest mean product of two rows, in absolute value; some rows at a time."""
    largest = 0.0
    for start in range(0, len(noise), _ROWS):
        products = np.abs(noise[start : start + _ROWS] @ noise.T) / noise.shape[1]
        products[np.arange(len(products)), np.arange(start, start + len(products))] = 0.0
        largest = max(largest, float(products.max()))
    return largest


def _lagged(sequences: Array) -> Array:
    """The sum over sequences of the products of entries ``lag`` apart, ``(length,)``, by a Fourier transform."""
    length = sequences.shape[1]
    size = 1 << (2 * length - 1).bit_length()
    power = np.zeros(size // 2 + 1)
    some = max(1, _AT_ONCE // size)
    for start in range(0, len(sequences), some):
        power += np.square(np.abs(np.fft.rfft(sequences[start : start + some], size))).sum(axis=0)
    return np.asarray(np.fft.irfft(power, size)[:length])
