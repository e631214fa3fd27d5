"""Heterogeneous Gaussian noise, different in each direction: its guarantee, and how to split it.

For noise N(0, Σ) and the set U of differences f(D) − f(D') of neighbouring data sets, the release is (ε, δ)-DP exactly where
one of sensitivity μ = sup over u in U of ‖Σ^(−1/2) u‖₂ and noise 1 is: whiten. μ is rounded up, and refused if a difference
has no noise. If U is known only as an L2 ball, μ is its radius over the root of the least eigenvalue, so that uneven noise is
waste; it helps if more is known, such as a clip norm for each block.

Letters: K the number of coordinates, r_k the share of coordinate k, C_b and d_b the clip norm and the size of a block.

Source: Balle and Wang 2018, Theorem 8, https://arxiv.org/abs/1805.06530; Phan et al. 2019, "Heterogeneous Gaussian Mechanism",
Theorem 3, https://arxiv.org/abs/1906.01444.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubbub._util.checks import Array, as_array, integer, open_unit, real_array, scale
from hubbub._util.checks import shown as plain
from hubbub.mechanism.gaussian import exact
from hubbub.mechanism.gaussian.closed_forms import computed, shown

__all__ = [
    "Ball",
    "BlockNoise",
    "Differences",
    "HeterogeneousNoise",
    "Known",
    "for_blocks",
    "mahalanobis",
    "redistributed",
    "with_covariance",
]

_EPS = 2.0**-52
# Beyond this condition number, rounding dominates.
_WORST_CONDITION = 1e10
_LEAST_VARIANCE = 1e-50


@dataclass(frozen=True)
class Ball:
    """Two neighbouring data sets differ by at most ``radius``, in L2 norm; nothing else is known.

    Args:
        radius: From 1e-12 to 1e12.

    Raises:
        ValueError: A radius out of range.

    Example:
        >>> round(with_covariance([4.0, 1.0], Ball(radius=2.0), epsilon=1.0).mu, 9)
        2.0
    """

    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", scale("radius", self.radius))


@dataclass(frozen=True, eq=False)
class Differences:
    """Every difference that two neighbouring data sets can have, up to its sign.

    Args:
        rows: ``(count, dim)``, or the corners of a set whose convex hull holds them all. Public.

    Raises:
        ValueError: Not a matrix of finite numbers, or one beyond 1e50.

    Example:
        >>> Differences([[1.0, 0.0], [0.0, 0.5]]).array().shape
        (2, 2)
        >>> round(with_covariance([4.0, 1.0], Differences([[1.0, 0.0], [0.0, 0.5]]), epsilon=1.0).mu, 9)
        0.5
    """

    rows: npt.ArrayLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", real_array("differences", self.rows, ndim=2, at_most=1e50))

    def array(self) -> Array:
        """``(count, dim)``."""
        return np.asarray(self.rows, dtype=np.float64)


Known = Ball | Differences


def mahalanobis(name: str, covariance: npt.ArrayLike, known: Known) -> float:
    """sup ‖Σ^(−1/2) u‖₂ over what is known, rounded up.

    Args:
        name: Of the covariance, in messages.
        covariance: ``(dim, dim)``, or ``(dim,)`` variances.
        known: The differences.

    Raises:
        ValueError: Not a covariance, or a difference in a coordinate without noise.

    Example:
        >>> round(mahalanobis("covariance", [[4.0, 0.0], [0.0, 1.0]], Ball(1.0)), 9)
        1.0
        >>> round(mahalanobis("covariance", [4.0, 1.0], Differences([[1.0, 0.0]])), 9)
        0.5
    """
    if as_array(name, covariance).ndim == 1:
        matrix, variances = None, real_array(name, covariance, ndim=1, at_most=1e50)
    else:
        matrix = _symmetric(name, covariance)
        variances = np.diag(matrix)
    for k in np.flatnonzero(variances < 0)[:1]:
        raise ValueError(f"{name}[{k}] = {variances[k]}: a variance must not be negative")
    noisy = variances > 0
    for k in np.flatnonzero(noisy & (variances < _LEAST_VARIANCE))[:1]:
        raise ValueError(f"{name}[{k}] = {variances[k]}: a variance must be 0 or at least {_LEAST_VARIANCE:g}")
    _require_noise(name, noisy, known)
    if not noisy.any():
        return 0.0
    if matrix is None or not (matrix - np.diag(variances)).any():
        values, vectors, lost = variances[noisy], None, 0.0
    else:
        for k in np.flatnonzero(~noisy & matrix.any(axis=1))[:1]:
            raise ValueError(f"{name}[{k}, {k}] = 0 in a row with entries that are not: must be positive semidefinite")
        values, vectors, lost = _spectrum(name, matrix[np.ix_(noisy, noisy)])
    least = float(values.min()) - lost
    if isinstance(known, Ball):
        return known.radius / math.sqrt(least) * (1 + 4 * _EPS)
    kept = known.array()[:, noisy]
    squares = ((kept if vectors is None else kept @ vectors) ** 2 / values).sum(axis=1)
    # Whitening by rounded vectors moves a squared norm by no more than the condition allows.
    slack = len(values) + 4 + (0 if vectors is None else 16 * len(values) * float(values.max()) / least)
    return math.sqrt(float(squares.max())) * (1 + slack * _EPS)


def _symmetric(name: str, covariance: npt.ArrayLike) -> Array:
    matrix = real_array(name, covariance, ndim=2, at_most=1e50)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} has shape {matrix.shape}: must be square")
    for i, j in np.argwhere(matrix != matrix.T)[:1]:
        raise ValueError(f"{name}[{i}, {j}] = {matrix[i, j]} and [{j}, {i}] = {matrix[j, i]}: must be symmetric")
    return matrix


def _require_noise(name: str, noisy: npt.NDArray[np.bool_], known: Known) -> None:
    bare = ~noisy
    if not isinstance(known, Known):
        raise TypeError(f"known = {plain(known)}: must be Ball(radius) or Differences(rows)")
    if isinstance(known, Differences):
        rows = known.array()
        if rows.shape[1] != len(noisy):
            raise ValueError(
                f"differences have shape {rows.shape}: must have as many columns as {name} has coordinates, {len(noisy)}"
            )
        bare = bare & rows.any(axis=0)
    for k in np.flatnonzero(bare)[:1]:
        raise ValueError(
            f"{name}[{k}] = 0: coordinate {k} has no noise and may differ between neighbouring data sets, which hides nothing; "
            "give it noise, or state in differences that it never changes"
        )


def _spectrum(name: str, matrix: Array) -> tuple[Array, Array, float]:
    """Eigenvalues, eigenvectors as columns, and the largest error of an eigenvalue."""
    values, vectors = np.linalg.eigh(matrix)
    lost = 8 * len(matrix) * _EPS * float(values[-1])
    if values[0] <= max(2 * lost, float(values[-1]) / _WORST_CONDITION):
        raise ValueError(
            f"{name} has eigenvalues from {values[0]:.3g} to {values[-1]:.3g}: in some direction its noise hides nothing, or "
            "too little to compute; state the release in coordinates of which each has noise of its own"
        )
    return values, vectors, lost


PUBLIC_SHARES = (
    "the shares of the noise are public: were they computed from the data, that would be a release of its own, unpaid for here"
)
PUBLIC_COVARIANCE = (
    "the covariance is public: were it computed from the data, that would be a release of its own, unpaid for here"
)
EVERY_DIFFERENCE = "the differences given are all that two neighbouring data sets can have, up to their sign"
WITHIN_BALL = "no two neighbouring data sets differ by more than the radius, in L2 norm"


@dataclass(frozen=True, eq=False)
class HeterogeneousNoise:
    """Noise with a covariance, and its guarantee.

    Args:
        covariance: ``(dim, dim)``, or ``(dim,)`` variances of independent coordinates.
        mu: The most that two neighbouring data sets differ, in standard deviations of the noise; rounded up.
        epsilon: The requested epsilon.
        attained_delta: The exact delta at epsilon and ``mu``, rounded up.
        assumptions: The assumptions of the guarantee.

    Example:
        >>> noise = with_covariance([4.0, 1.0], Ball(1.0), epsilon=1.0)
        >>> noise.covariance.tolist(), round(noise.mu, 9), f"{noise.attained_delta:.4f}"
        ([4.0, 1.0], 1.0, '0.1269')
    """

    covariance: Array
    mu: float
    epsilon: float
    attained_delta: float
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class BlockNoise:
    """Noise for a vector in blocks, each clipped on its own.

    Args:
        stddevs: Standard deviation in each coordinate of a block, one a block, in the unit of the clip norms.
        mu: As of :class:`HeterogeneousNoise`.
        epsilon: The budget.
        attained_delta: The exact delta at epsilon, rounded up; at most the budget's.
        total_variance: Summed over all coordinates.
        isotropic_variance: The same for one standard deviation everywhere, which hides the norm of all blocks together.

    Example:
        >>> noise = for_blocks([1.0, 0.2], dims=[100, 10_000], epsilon=1.0, delta=1e-5)
        >>> [round(stddev, 2) for stddev in noise.stddevs], noise.attained_delta <= 1e-5
        ([6.46, 0.91], True)
    """

    stddevs: tuple[float, ...]
    mu: float
    epsilon: float
    attained_delta: float
    total_variance: float
    isotropic_variance: float


def with_covariance(
    covariance: npt.ArrayLike, known: Known, *, epsilon: float, delta: float | None = None
) -> HeterogeneousNoise:
    """The guarantee of noise of any covariance.

    Args:
        covariance: ``(dim, dim)``, symmetric and positive definite but for coordinates without any noise, or ``(dim,)``
            variances of independent coordinates. Public.
        known: How two neighbouring data sets can differ: a :class:`Ball`, or all :class:`Differences`.
        epsilon: From 0.
        delta: A claim to check, or ``None``.

    Raises:
        ValueError: A number out of range, not a covariance, a difference in a direction without noise, or a false claim.

    Example:
        >>> round(with_covariance([4.0, 1.0], Ball(1.0), epsilon=1.0).mu, 9)
        1.0
        >>> round(with_covariance([4.0, 1.0], Differences([[1.0, 0.0]]), epsilon=1.0).mu, 9)
        0.5

    Source: Balle and Wang 2018, Theorem 8, after whitening.
    """
    mu = mahalanobis("covariance", covariance, known)
    sigma = np.array(covariance, dtype=np.float64)
    sigma.setflags(write=False)
    attained = _delta(epsilon, mu)
    if delta is not None and attained > open_unit("delta", delta):
        needed = exact.noise_multiplier(epsilon, delta) * mu
        raise ValueError(
            f"delta = {delta!r}: this noise attains {shown(attained, 3)} at epsilon {float(epsilon):g}, not the claim; "
            f"multiply its standard deviations by {shown(needed, 6)}"
        )
    return HeterogeneousNoise(sigma, mu, float(epsilon), attained, (PUBLIC_COVARIANCE, _known(known)))


def redistributed(shares: npt.ArrayLike, known: Known, *, epsilon: float, delta: float) -> HeterogeneousNoise:
    """Independent noise of variance σ²·K·r_k on coordinate k, by Phan et al.'s heterogeneous Gaussian mechanism.

    σ is that of the calibration ``"extended"`` at the sensitivity sup ‖u / √(K·r)‖₂, divided coordinate by coordinate, so that
    the smallest share decides if only a ball is known. Dividing by the largest, or scaling noise by r_k and not by its root,
    is not private.

    Args:
        shares: r, ``(dim,)``, at least 0, of sum 1. A coordinate of share 0 must be the same in all data sets. Public.
        known: How two neighbouring data sets can differ.
        epsilon: From 1e-12 to 1e12.
        delta: At most √(2/π).

    Raises:
        ValueError: A number out of range, or a coordinate without noise that may differ.

    Example:
        >>> noise = redistributed([0.9, 0.1], Ball(1.0), epsilon=1.0, delta=1e-5)
        >>> noise.attained_delta < 1e-5
        True

    Source: Phan et al. 2019, Theorem 3, https://arxiv.org/abs/1906.01444.
    """
    r = real_array("shares", shares, ndim=1)
    for k in np.flatnonzero(r < 0)[:1]:
        raise ValueError(f"shares[{k}] = {r[k]}: must not be negative")
    if abs(math.fsum(r) - 1) > 1e-9:
        raise ValueError(f"shares of sum {math.fsum(r)!r}: must sum to 1; divide them by their sum")
    relative = r * len(r)
    sensitivity = mahalanobis("shares", relative, known)
    sigma = computed("extended", epsilon, delta, 1.0).noise_multiplier * sensitivity
    variances = sigma**2 * relative
    mu = mahalanobis("shares", variances, known)
    variances.setflags(write=False)
    return HeterogeneousNoise(variances, mu, float(epsilon), _delta(epsilon, mu), (PUBLIC_SHARES, _known(known)))


def for_blocks(clip_norms: Sequence[float], dims: Sequence[int], *, epsilon: float, delta: float) -> BlockNoise:
    """The noise of least total variance for blocks that are clipped each to a norm of its own.

    Differences with ‖u_b‖₂ ≤ C_b in every block b at once are hidden where Σ C_b²/s_b² ≤ 1/σ² for the exact σ of sensitivity
    1; the least Σ d_b·s_b² has s_b² = σ²·(C_b/√d_b)·Σ_j C_j·√d_j.

    Args:
        clip_norms: C, one a block, from 1e-12 to 1e12.
        dims: d, the number of coordinates of each block.
        epsilon: From 0 to 1e12.
        delta: Strictly between 0 and 1.

    Raises:
        ValueError: A number out of range, or not one clip norm and one size a block.

    Example:
        >>> noise = for_blocks([1.0, 0.2], [100, 10_000], epsilon=1.0, delta=1e-5)
        >>> round(noise.total_variance), round(noise.isotropic_variance)
        (12526, 146191)

    Source: Balle and Wang 2018, Theorem 8, after whitening; the split by Cauchy and Schwarz.
    """
    if as_array("clip_norms", clip_norms).ndim != 1 or as_array("dims", dims).ndim != 1:
        raise TypeError(f"clip_norms = {plain(clip_norms)}, dims = {plain(dims)}: must be sequences, one number a block")
    if len(clip_norms) != len(dims) or not len(dims):
        raise ValueError(
            f"dims = {tuple(dims)!r}: must hold one size for each of the {len(clip_norms)} clip norms, at least one"
        )
    norms = [scale(f"clip_norms[{b}]", norm) for b, norm in enumerate(clip_norms)]
    sizes = [integer(f"dims[{b}]", size, at_least=1, at_most=10**15) for b, size in enumerate(dims)]
    budget = open_unit("delta", delta)
    sigma = exact.noise_multiplier(epsilon, budget)
    total = math.fsum(norm * math.sqrt(size) for norm, size in zip(norms, sizes, strict=True))
    stddevs = [sigma * math.sqrt(norm / math.sqrt(size) * total) for norm, size in zip(norms, sizes, strict=True)]
    while _delta(epsilon, _blocks_mu(norms, stddevs)) > budget:
        stddevs = [stddev * (1 + 2.0**-51) for stddev in stddevs]
    mu = _blocks_mu(norms, stddevs)
    variance = math.fsum(size * stddev**2 for size, stddev in zip(sizes, stddevs, strict=True))
    isotropic = sigma**2 * math.fsum(norm**2 for norm in norms) * sum(sizes)
    return BlockNoise(tuple(stddevs), mu, float(epsilon), _delta(epsilon, mu), variance, isotropic)


def _blocks_mu(norms: Sequence[float], stddevs: Sequence[float]) -> float:
    """√Σ (C_b/s_b)², rounded up."""
    squares = math.fsum((norm / stddev) ** 2 for norm, stddev in zip(norms, stddevs, strict=True))
    return math.sqrt(squares) * (1 + 2.0**-50)


def _delta(epsilon: float, mu: float) -> float:
    # The least μ that is accounted for, 1e-100, also stands for no difference at all.
    return exact.delta(epsilon, math.nextafter(1 / max(mu, 1e-100), 0))


def _known(known: Known) -> str:
    return WITHIN_BALL if isinstance(known, Ball) else EVERY_DIFFERENCE
