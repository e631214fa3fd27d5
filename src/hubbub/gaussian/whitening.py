"""The most that two neighbouring data sets differ, in standard deviations of noise of any covariance: sup ‖Σ^(−1/2) u‖₂.

Rounded up, and refused where a difference meets no noise.

Source: Balle and Wang 2018, Theorem 8, https://arxiv.org/abs/1805.06530, for the whitened release.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubbub._checks import Array, real_array, scale

__all__ = ["Ball", "Differences", "Known", "mahalanobis"]

_EPS = 2.0**-52
# Beyond this condition, rounding decides what the noise hides.
_WORST_CONDITION = 1e10
_LEAST_VARIANCE = 1e-50


@dataclass(frozen=True)
class Ball:
    """All that is known of two neighbouring data sets: they differ by at most this, in L2 norm.

    Args:
        radius: From 1e-12 to 1e12.
    """

    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", scale("radius", self.radius))


@dataclass(frozen=True, eq=False)
class Differences:
    """Every difference that two neighbouring data sets can have, up to its sign.

    Args:
        rows: ``(count, dim)``, or the corners of a set whose convex hull holds them all. Public.
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
        ValueError: No covariance, or a difference where there is no noise.
    """
    if np.ndim(covariance) == 1:
        matrix = None
        variances = real_array(name, covariance, ndim=1, at_most=1e50)
    else:
        matrix = _symmetric(name, covariance)
        variances = np.diag(matrix)
    if (variances < 0).any():
        k = int(np.argmax(variances < 0))
        raise ValueError(f"{name}[{k}] = {variances[k]}: a variance must not be negative")
    if ((variances > 0) & (variances < _LEAST_VARIANCE)).any():
        k = int(np.argmax((variances > 0) & (variances < _LEAST_VARIANCE)))
        raise ValueError(f"{name}[{k}] = {variances[k]}: a variance must be 0 or at least {_LEAST_VARIANCE:g}")
    rows = _rows(name, known, len(variances))
    noisy = variances > 0
    _require_noise(name, noisy, rows)
    if not noisy.any():
        return 0.0
    if matrix is None or not (matrix - np.diag(variances)).any():
        values, vectors, lost = variances[noisy], None, 0.0
    else:
        if matrix[~noisy].any():
            k = int(np.argmax(~noisy & matrix.any(axis=1)))
            raise ValueError(f"{name}[{k}, {k}] = 0 beside entries that are not: must be positive semidefinite")
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
    unlike = np.argwhere(matrix != matrix.T)
    if unlike.size:
        i, j = (int(k) for k in unlike[0])
        raise ValueError(f"{name}[{i}, {j}] = {matrix[i, j]} and [{j}, {i}] = {matrix[j, i]}: must be symmetric")
    return matrix


def _rows(name: str, known: Known, dim: int) -> Array | None:
    if isinstance(known, Ball):
        return None
    rows = known.array()
    if rows.shape[1] != dim:
        raise ValueError(f"differences have shape {rows.shape}: must have as many columns as {name} has coordinates, {dim}")
    return rows


def _require_noise(name: str, noisy: npt.NDArray[np.bool_], rows: Array | None) -> None:
    bare = ~noisy if rows is None else ~noisy & rows.any(axis=0)
    if bare.any():
        k = int(np.argmax(bare))
        raise ValueError(
            f"{name}[{k}] = 0: coordinate {k} has no noise and may differ between neighbouring data sets, which hides nothing; "
            "give it noise, or state in differences that it never changes"
        )


def _spectrum(name: str, matrix: Array) -> tuple[Array, Array, float]:
    """Eigenvalues, eigenvectors as columns, and by how much an eigenvalue may be wrong."""
    values, vectors = np.linalg.eigh(matrix)
    lost = 8 * len(matrix) * _EPS * float(values[-1])
    if values[0] <= max(2 * lost, float(values[-1]) / _WORST_CONDITION):
        raise ValueError(
            f"{name} has eigenvalues from {values[0]:.3g} to {values[-1]:.3g}: in some direction its noise hides nothing, or "
            "too little to compute; state the release in coordinates of which each has noise of its own"
        )
    return values, vectors, lost
