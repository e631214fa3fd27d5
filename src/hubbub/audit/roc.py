"""How well scores tell present from absent canaries: measurements for a report, which prove nothing by themselves."""

import numpy as np
import numpy.typing as npt

from hubbub._checks import Array, finite
from hubbub.audit.bound import scores

__all__ = ["auroc", "hull_auroc", "tpr_at_fpr"]


def auroc(present: npt.ArrayLike, absent: npt.ArrayLike) -> float:
    """The probability that a present canary scores above an absent one, ties counted half.

    Example:
        >>> auroc([2.0, 1.0], [1.0, 0.0])
        0.875
    """
    positive, negative = scores("present", present), np.sort(scores("absent", absent))
    below = np.searchsorted(negative, positive, side="left")
    not_above = np.searchsorted(negative, positive, side="right")
    return float((below + not_above).sum() / 2 / (positive.size * negative.size))


def hull_auroc(present: npt.ArrayLike, absent: npt.ArrayLike) -> float:
    """The area under the concave hull of the ROC curve: of guesses that may draw lots between two thresholds.

    At least :func:`auroc`, with which it agrees where the curve is concave.

    Example:
        >>> hull_auroc([2.0, 1.0], [1.0, 0.0])
        0.875

    Source: Provost and Fawcett 2001, Section 3, https://arxiv.org/abs/cs/0009007.
    """
    fpr, tpr = _hull(scores("present", present), scores("absent", absent))
    return float(np.sum(np.diff(fpr) * (tpr[1:] + tpr[:-1])) / 2)


def tpr_at_fpr(present: npt.ArrayLike, absent: npt.ArrayLike, *, fpr: float) -> float:
    """The largest true positive rate at a false positive rate, on the concave hull of the ROC curve.

    Args:
        present: Scores of canaries that took part.
        absent: Scores of canaries that did not.
        fpr: From 0 to 1.

    Raises:
        ValueError: A number out of range or not finite.

    Example:
        >>> tpr_at_fpr([3.0, 2.0], [1.0, 0.0], fpr=0.0)
        1.0

    Source: Carlini et al. 2022, Section 3, https://arxiv.org/abs/2112.03570.
    """
    rate = finite("fpr", fpr)
    if not 0 <= rate <= 1:
        raise ValueError(f"fpr = {fpr!r}: must be from 0 to 1")
    rates, hits = _hull(scores("present", present), scores("absent", absent))
    at_zero = hits[np.flatnonzero(rates == 0)[-1]]
    return float(at_zero if rate == 0 else np.interp(rate, rates, hits))


def _hull(present: Array, absent: Array) -> tuple[Array, Array]:
    """False and true positive rates at the corners of the hull, ascending from (0, 0) to (1, 1)."""
    thresholds = np.unique(np.concatenate([present, absent]))[::-1]
    false = absent.size - np.searchsorted(np.sort(absent), thresholds, side="left")
    true = present.size - np.searchsorted(np.sort(present), thresholds, side="left")
    corners: list[tuple[int, int]] = []
    for point in zip((0, *false.tolist()), (0, *true.tolist()), strict=True):
        while len(corners) > 1 and _turns_left(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    x, y = np.array(corners, dtype=np.float64).T
    return x / absent.size, y / present.size


def _turns_left(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    """Whether b lies on or below the line from a to c."""
    return (b[0] - a[0]) * (c[1] - a[1]) >= (c[0] - a[0]) * (b[1] - a[1])
