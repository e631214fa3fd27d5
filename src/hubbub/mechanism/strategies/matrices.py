"""Matrices of strategies: Toeplitz matrices as power series, and the triangular form of any other matrix.

A lower-triangular Toeplitz matrix is its first column, the coefficients of a power series: products, inverses and roots of such
matrices are those of their series. Short series are divided by recursion, long ones by Newton's iteration with fast Fourier
transforms, whose errors are relative to the largest coefficients.

The guarantee depends on any other C, tall or not triangular, only through X = CᵀC, and the error of the best decoder A·C⁺ is
tr(A·X⁻¹·Aᵀ): so the square triangular matrix with the same X has the same sensitivity to every pattern, the error of the best
decoder, and can be streamed.

Letters: a, c, u series, lists of coefficients from x⁰ up; C strategy, X = CᵀC.

Source: Brent and Kung 1978, "Fast Algorithms for Manipulating Formal Power Series", https://doi.org/10.1145/322092.322099.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy import fft, linalg

from hubbub._util.checks import Array, real_array
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Participation, covering, worst_rounds
from hubbub.mechanism.sensitivity import Sensitivity, of_columns, of_matrix, summed
from hubbub.mechanism.workloads import Workload, require_workload

# The inverse would overflow below this.
_LEAST_DIAGONAL = 1e-100
# Up to this many rounds the bounds from the Gram matrix are tried too: O(rounds²·participations) time.
_DENSE = 512
# The rounding error of a computed series, relative to its largest coefficient.
_ROUNDING = 1e-13
# A sum in pairs is rounded at most so often, however long it is.
_PAIRED = 40


def root_series(momentum: float, length: int, power: float = 0.5) -> Array:
    """The first coefficients of the workload's series to a power: 1/2 is its square root, −1/2 the inverse of that.

    At a learning rate of 1 the workload is 1/((1 − x)·(1 − βx)) for momentum β. At 1/2 they are positive and do not increase.
    """
    series = binomial(1.0, -power, length)
    return multiply(series, binomial(momentum, -power, length), length) if momentum else series


def require_invertible(place: str, diagonal: Array) -> None:
    """Refuse a diagonal of C with a 0, or nearly 0; ``place`` is the name of an entry, with {0} for its index."""
    for i in np.flatnonzero(np.abs(diagonal) < _LEAST_DIAGONAL)[:1].tolist():
        raise ValueError(f"{place.format(i)} = {diagonal[i]}: the diagonal of C must not be 0, or nearly so: C has no inverse")


def checked_triangular(matrix: npt.ArrayLike) -> Array:
    """C, ``(rounds, rounds)``, copied and read-only."""
    C = real_array("C", matrix, ndim=2)
    if C.shape[0] != C.shape[1]:
        raise ValueError(
            f"C has shape {C.shape}: must be square, one row and one column a round; dense.from_matrix and stamped.stamp take "
            "any other"
        )
    for i, j in np.argwhere(np.triu(C, 1))[:1].tolist():
        raise ValueError(f"C[{i}, {j}] = {C[i, j]}: C must be lower triangular, or round {i} would need noise of a later round")
    require_invertible("C[{0}, {0}]", np.diag(C))
    return C


def first_column(name: str, values: npt.ArrayLike, rounds: int) -> tuple[float, ...]:
    """The first column of a Toeplitz matrix or of its inverse, checked: at most ``rounds`` finite numbers, the first not 0."""
    column = real_array(name, values, ndim=1)
    if len(column) > rounds:
        raise ValueError(f"{name} has {len(column)} bands: must be at most rounds = {rounds}")
    require_invertible(name + "[{0}]", column[:1])
    return tuple(column.tolist())


def require_equal_rates(workload: Workload) -> float:
    """The learning rate, equal in all rounds; a workload with different rates, which is not Toeplitz, is refused."""
    if not require_workload(workload).toeplitz:
        raise ValueError(
            "workload.learning_rates differ: a Toeplitz strategy is for equal ones; use banded.optimize, which takes any"
        )
    return 1.0 if workload.learning_rates is None else workload.learning_rates[0]


def matrix(column: npt.ArrayLike, rounds: int) -> Array:
    """``(rounds, rounds)``, lower triangular with this first column."""
    first = np.atleast_1d(column)
    return np.asarray(linalg.toeplitz(np.pad(first, (0, rounds - len(first))), np.zeros(rounds)))


def columns_at(c: Array, rounds: int, separation: int, participations: int) -> Array:
    """v, ``(rounds,)``: the sum of the columns 0, d, …, (r − 1)·d of C."""
    most = min(participations, -(-rounds // separation))
    blocks = np.zeros((-(-rounds // (separation * most)), most, separation))
    blocks.ravel()[: len(c)] = c
    # A sum over ``most`` lines ends in one block and began in the one before it; a difference of two long sums loses digits.
    v, begun = np.cumsum(blocks, axis=1), np.cumsum(blocks[:-1, :0:-1], axis=1)[:, ::-1]
    v[1:, :-1] += begun
    return v.ravel()[:rounds]


def columns_at_transposed(v: Array, bands: int, separation: int, participations: int) -> Array:
    """``(bands,)``: the transpose of :func:`columns_at`, for gradients."""
    return columns_at(v[::-1], len(v), separation, participations)[::-1][:bands]


def sensitivity(c: Array, rounds: int, participation: Participation) -> Sensitivity:
    """The sensitivity of C with the coefficients c along its diagonals.

    Exact while the bands are no more than the separation, for coefficients that are not negative and do not increase and, at
    fixed epochs, for all that are not negative; otherwise a bound: at fixed epochs that of the magnitudes, else the least of
    several.

    Source: Kalinin and Lampert 2024, Theorem 2, https://arxiv.org/abs/2405.13763.
    """
    pattern = covering(participation, rounds)
    separation, participations = worst_rounds(pattern, rounds)
    if participations == 1 or len(c) <= separation:
        # Later columns run out of rounds: none is longer than an earlier one.
        lengths = np.minimum(rounds - separation * np.arange(participations), len(c))
        squares = np.square(c)
        squared = math.fsum(np.cumsum(squares)[lengths - 1])
        # One after the other, 10⁵ numbers lose digits; summed in pairs, they do not.
        reached = np.cumsum(np.bincount(lengths, minlength=len(c) + 1)[::-1])[-2::-1]
        squared = max(squared, float((squares * reached).sum()) * summed(1.0, min(len(c), _PAIRED)))
        return Sensitivity(math.sqrt(squared), True, "column norms, Choquette-Choo et al. 2023, Algorithm 5")
    magnitude = np.abs(c)
    rounding = _ROUNDING * float(magnitude.max())
    exact = bool(c.min() >= -rounding)
    if isinstance(pattern, FixedEpochs):
        return _stacked(magnitude, rounds, separation, participations, exact)
    majorant = np.maximum.accumulate(magnitude[::-1])[::-1]
    exact = exact and bool((majorant <= magnitude + rounding).all())
    answers = [_stacked(majorant, rounds, separation, participations, exact)]
    if not exact:
        # The largest sum of inner products of one column with the others of a client, once for each participation. An inner
        # product is at most that of whole columns at the same distance. The best choice of m rounds on one side is concave in
        # m, so that the best split of the others between the two sides is the even one.
        products, others = correlate(magnitude, magnitude, len(magnitude)), participations - 1
        beside = np.maximum(products[separation:], 0.0)
        sides = [of_columns(beside, MinSeparation(separation, m)).value ** 2 for m in (others // 2, others - others // 2) if m]
        squared = participations * (float(products[0]) + math.fsum(sides)) * (1 + participations * _ROUNDING)
        answers.append(Sensitivity(math.sqrt(squared), False, "row-wise bound, Choquette-Choo et al. 2023"))
        if rounds <= _DENSE:
            answers.append(of_matrix(matrix(c, rounds), participation))
    return min(answers, key=lambda answer: (answer.value, not answer.exact))


def _stacked(magnitude: Array, rounds: int, separation: int, participations: int, exact: bool) -> Sensitivity:
    v = columns_at(magnitude, rounds, separation, participations)
    squared = summed(float(np.square(v).sum()), participations + min(rounds, _PAIRED))
    return Sensitivity(math.sqrt(squared), exact, "Kalinin and Lampert 2024, Theorem 2")


# Coefficients of a series, and multiplications in all: beyond both, transforms are faster than the recursion.
_SHORT, _FEW = 300, 2_000_000
# How many coefficients the recursion makes before Newton's iteration doubles them.
_FIRST = 512


def multiply(a: Array, c: Array, length: int) -> Array:
    """The first ``length`` coefficients of a·c."""
    a, c = sorted((a[:length], c[:length]), key=len)
    if _recursive(length, len(a)):
        return _recursion(a, np.ones(1), np.pad(c, (0, length - len(c))))
    size = fft.next_fast_len(len(a) + len(c) - 1, real=True)
    product: Array = fft.irfft(fft.rfft(a, size) * fft.rfft(c, size), size)
    return np.pad(product[:length], (0, max(0, length - size)))


def inverse(c: Array, length: int) -> Array:
    """The first ``length`` coefficients of 1/c; ``c[0]`` must not be 0."""
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


def inverse_and_rounding(c: Array, length: int) -> tuple[Array, float]:
    """The first ``length`` coefficients of 1/c, one after the other, and a bound ρ on their rounding.

    With k for what is computed, c·k is 1 + r for a series r whose magnitudes add up to at most ρ: each k_i is rounded once for
    each term of its sum. So 1/c is k/(1 + r), and as ‖r·x‖ ≤ ρ·‖x‖ for series x, no sensitivity of it is above that of k by
    more than a factor of 1/(1 − ρ).
    """
    k = _recursion(np.ones(1), c, np.pad([1.0], (0, length - 1)))
    return k, (len(c) + 4) * 2.0**-52 * float(np.abs(c).sum()) * float(np.abs(k).sum())


def divide(a: Array, c: Array) -> Array:
    """The first ``len(a)`` coefficients of a/c."""
    if _recursive(len(a), len(c)):
        return _recursion(np.ones(1), c, a)
    return multiply(a, inverse(c, len(a)), len(a))


def transposed_divide(a: Array, c: Array) -> Array:
    """T⁻ᵀ·a for the Toeplitz matrix T of c: the gradient of :func:`divide`."""
    return divide(a[::-1], c)[::-1]


def correlate(u: Array, a: Array, lags: int) -> Array:
    """``(lags,)``: the sum of u_{i+k}·a_i for each lag k, for u and a of equal length: the gradient of a product."""
    size = fft.next_fast_len(len(u) + lags - 1, real=True)
    correlation: Array = fft.irfft(fft.rfft(u, size) * np.conj(fft.rfft(a, size)), size)
    return correlation[:lags]


def binomial(ratio: float, power: float, length: int) -> Array:
    """The first ``length`` coefficients of (1 − ``ratio``·x) to the ``power``, by the binomial series."""
    i = np.arange(1, length)
    return np.concatenate([[1.0], np.cumprod(ratio * (i - 1 - power) / i)])


def _recursion(a: Array, c: Array, x: Array) -> Array:
    """The first ``len(x)`` coefficients of a·x/c, one after the other."""
    # Slow to import: as long as everything else that a plan needs.
    from scipy.signal import lfilter

    filtered: Array = lfilter(a, c, x)
    return filtered


def _recursive(length: int, bands: int) -> bool:
    return bands <= _SHORT or length * bands <= _FEW


def gram_root(X: npt.ArrayLike) -> Array:
    """The lower-triangular C with CᵀC = X and a positive diagonal, ``(n, n)``.

    A Cholesky factor L of X itself has L·Lᵀ = X, with other column norms; here the order of rows and columns is reversed before
    and after.
    """
    gram = real_array("X", X, ndim=2)
    if gram.shape[0] != gram.shape[1] or not np.allclose(gram, gram.T, rtol=1e-10, atol=1e-12 * float(np.abs(gram).max())):
        raise ValueError(f"X has shape {gram.shape}: must be symmetric")
    try:
        root = np.linalg.cholesky(gram[::-1, ::-1])
    except np.linalg.LinAlgError as error:
        raise ValueError("X is not positive definite: two rounds of C are the same, or C has no full rank") from error
    return np.ascontiguousarray(root[::-1, ::-1].T)


def triangular_form(C: npt.ArrayLike) -> Array:
    """The lower-triangular matrix with the same inner products of columns as C, ``(rounds, rounds)``.

    Args:
        C: ``(rows, rounds)``, of full column rank.
    """
    strategy = real_array("C", C, ndim=2)
    if strategy.shape[0] < strategy.shape[1]:
        raise ValueError(f"C has shape {strategy.shape}: must have at least as many rows as rounds")
    # By QR of the reversed columns: more accurate than through X, which squares.
    triangle: Array = np.linalg.qr(strategy[:, ::-1]).R[::-1, ::-1]
    triangle = triangle * np.where(np.diag(triangle) < 0, -1.0, 1.0)[:, None]
    if (np.diag(triangle) <= 1e-13 * float(np.abs(triangle).max())).any():
        raise ValueError("C has not full column rank: some round has no noise of its own")
    return np.ascontiguousarray(np.tril(triangle))
