"""A lower bound on epsilon from the scores of canaries that were present and of canaries that were absent.

Under (ε, δ)-DP a test's error rates satisfy 1 − FNR ≤ e^ε·FPR + δ and 1 − FPR ≤ e^ε·FNR + δ; under μ-GDP they satisfy
FNR ≥ Φ(Φ⁻¹(1 − FPR) − μ). Upper bounds on both rates turn each into a lower bound on ε or on μ.
"""

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from hubbub._util.checks import Array, open_unit
from hubbub.audit.bounds import (
    GAUSSIAN_CURVE,
    EveryThreshold,
    FixedThreshold,
    LowerBound,
    Merit,
    Thresholds,
    best_merit,
    delta_or_zero,
    epsilon_at_least,
    scores,
    significance,
)

__all__ = ["clopper_pearson_epsilon", "gdp_epsilon"]

_INDEPENDENT = (
    "The scores of present canaries are independent and of one law, so are those of absent canaries (several runs with one "
    "canary each, or one run whose canaries do not influence one another)."
)


def clopper_pearson_epsilon(
    present: npt.ArrayLike,
    absent: npt.ArrayLike,
    *,
    delta: float,
    confidence: float,
    thresholds: Thresholds = EveryThreshold(),  # noqa: B008
) -> LowerBound:
    """An epsilon that is too small for what was audited; no shape of the trade-off curve is assumed.

    Args:
        present: One score for each canary that took part; larger means "looks present".
        absent: One score for each canary that did not.
        delta: At least 0 and below 1.
        confidence: Strictly between 0 and 1.
        thresholds: Which thresholds compete. One chosen by looking at the scores is covered by ``EveryThreshold()`` (the
            default), never by ``FixedThreshold(...)``.

    Raises:
        ValueError: A score that is not finite, no score, a number out of range.
        TypeError: Something that is no number.

    Example:
        >>> import numpy as np
        >>> present, absent = np.arange(200) + 150.0, np.arange(200.0)
        >>> round(clopper_pearson_epsilon(present, absent, delta=1e-5, confidence=0.95).epsilon, 2)
        2.87

    Source: Jagielski, Ullman and Oprea 2020, Section 3, https://arxiv.org/abs/2006.07709; both directions: Nasr et al. 2021,
    https://arxiv.org/abs/2101.04535.
    """
    allowed = delta_or_zero(delta)

    def merit(fpr: Array, fnr: Array) -> Array:
        return np.maximum(_epsilon(fpr, fnr, allowed), _epsilon(fnr, fpr, allowed))

    epsilon, assumed = _best(present, absent, confidence, thresholds, merit)
    return LowerBound(
        epsilon=max(epsilon, 0.0),
        delta=allowed,
        confidence=float(confidence),
        mu=None,
        assumptions=assumed,
        source="Clopper and Pearson 1934; Jagielski, Ullman and Oprea 2020, Section 3",
    )


def gdp_epsilon(
    present: npt.ArrayLike,
    absent: npt.ArrayLike,
    *,
    delta: float,
    confidence: float,
    thresholds: Thresholds = EveryThreshold(),  # noqa: B008
) -> LowerBound:
    """A μ that is too small for what was audited, and its epsilon if the trade-off curve is Gaussian.

    The sharpest of the methods where that assumption holds. The disproof of μ-GDP does not need it.

    Args:
        present: One score for each canary that took part; larger means "looks present".
        absent: One score for each canary that did not.
        delta: Strictly between 0 and 1.
        confidence: Strictly between 0 and 1.
        thresholds: As for :func:`clopper_pearson_epsilon`.

    Raises:
        ValueError: A score that is not finite, no score, a number out of range.
        TypeError: Something that is no number.

    Example:
        >>> import numpy as np
        >>> present, absent = np.arange(200) + 150.0, np.arange(200.0)
        >>> round(gdp_epsilon(present, absent, delta=1e-5, confidence=0.95).mu, 2)
        2.14

    Source: Nasr et al. 2023, Section 4, https://arxiv.org/abs/2302.07956.
    """
    allowed = open_unit("delta", delta)

    def merit(fpr: Array, fnr: Array) -> Array:
        return np.asarray(-ndtri(fpr) - ndtri(fnr))

    best, assumed = _best(present, absent, confidence, thresholds, merit)
    mu = max(best * (1 - 1e-12), 0.0)
    return LowerBound(
        epsilon=epsilon_at_least(mu, allowed),
        delta=allowed,
        confidence=float(confidence),
        mu=mu,
        assumptions=(*assumed, GAUSSIAN_CURVE),
        source="Nasr et al. 2023, Section 4; Dong, Roth and Su 2022, Corollary 2.13",
    )


def _epsilon(fpr: Array, fnr: Array, delta: float) -> Array:
    """ln((1 − FNR − δ)/FPR), rounded down; 0 where the numerator is not positive."""
    hits = np.maximum(1 - fnr - delta - 1e-15, 0.0)
    return np.asarray(np.log(np.maximum(hits * (1 - 1e-12) / fpr, 1.0)))


def _best(
    present: npt.ArrayLike, absent: npt.ArrayLike, confidence: float, thresholds: object, merit: Merit
) -> tuple[float, tuple[str, ...]]:
    """The largest merit over the thresholds, and what is assumed for it."""
    if not isinstance(thresholds, EveryThreshold | FixedThreshold):
        raise TypeError(f"thresholds = {thresholds!r}: must be EveryThreshold() or FixedThreshold(value)")
    best = best_merit(scores("present", present), scores("absent", absent), significance(confidence), thresholds, merit)
    if isinstance(thresholds, FixedThreshold):
        return best, (_INDEPENDENT, f"The threshold {thresholds.value:g} was chosen before any score was seen.")
    return best, (_INDEPENDENT,)
