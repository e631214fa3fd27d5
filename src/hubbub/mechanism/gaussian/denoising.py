"""Denoising: post-processing that brings a release nearer to the truth, at no privacy cost.

Both estimators use the release and the public standard deviation of its noise, no data. Their mean error is below that of the
release if the truth is small or sparse. They are biased: an average of denoised releases is not a denoised average.

Source: Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy", Section 4,
https://arxiv.org/abs/1805.06530.
"""

import math

import numpy as np
import numpy.typing as npt

from hubbub._util.checks import Array, as_array, real_array, scale

__all__ = ["james_stein", "soft_threshold"]


def james_stein(released: npt.ArrayLike, stddev: float) -> Array:
    """The release shrunk towards zero as a whole: for any truth, nearer to it in mean square.

    Args:
        released: Truth plus independent Gaussian noise in each of at least 3 coordinates; any shape.
        stddev: Standard deviation of the added noise, public: from 1e-12 to 1e12.

    Returns:
        ``max(0, 1 − (d − 2)·stddev²/‖released‖²) · released`` for d coordinates, of the same shape.

    Raises:
        ValueError: Fewer than 3 coordinates, or a number out of range.

    Example:
        >>> james_stein([3.0, 4.0, 0.0], stddev=1.0).tolist()
        [2.88, 3.84, 0.0]

    Source: Balle and Wang 2018, Section 4.1; the positive part by Baranchik 1964.
    """
    values, sigma = _checked(released, stddev)
    if values.size < 3:
        raise ValueError(f"released has {values.size} coordinates: the James-Stein estimator needs at least 3")
    relative = float(np.linalg.norm(values / sigma))
    kept = 1 - (values.size - 2) / relative**2 if relative**2 > values.size - 2 else 0.0
    shrunk: Array = kept * values
    return shrunk


def soft_threshold(released: npt.ArrayLike, stddev: float) -> Array:
    """Each coordinate moved towards zero by the largest value of noise alone: good for a sparse truth, bad for a dense one.

    Args:
        released: Truth plus independent Gaussian noise in each coordinate; any shape.
        stddev: As for :func:`james_stein`.

    Returns:
        ``sign(released) · max(0, |released| − stddev·√(2 ln d))`` for d coordinates, of the same shape.

    Raises:
        ValueError: A number out of range.

    Example:
        >>> soft_threshold([5.0, -0.5, 1.0, 0.0], stddev=1.0).round(4).tolist()
        [3.3349, -0.0, 0.0, 0.0]

    Source: Balle and Wang 2018, Section 4.2; Donoho and Johnstone 1994, "Ideal spatial adaptation by wavelet shrinkage".
    """
    values, sigma = _checked(released, stddev)
    moved: Array = np.sign(values) * np.maximum(0.0, np.abs(values) - sigma * math.sqrt(2 * math.log(values.size)))
    return moved


def _checked(released: npt.ArrayLike, stddev: float) -> tuple[Array, float]:
    return real_array("released", released, ndim=as_array("released", released).ndim), scale("stddev", stddev)
