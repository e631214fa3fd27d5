"""A lower bound on μ from one run: the guesses of :mod:`hubbub.audit.one_run` judged by a whole Gaussian trade-off curve.

Letters: m canaries kept by fair coins, exactly g guesses, p_i the probability of exactly i right ones, f̄(x) = Φ(Φ⁻¹(x) + μ).
Flip the coin of one random canary: for every j

    r_j = Σ_{i ≥ j} i/m·p_i ≤ f̄(h_{j−1}),   h_j = Σ_{i ≥ j} (g − i)/m·p_i,   r_{i} − r_{i+1} = i/(g − i)·(h_i − h_{i+1}),

and r_0 + h_0 = g/m. If v or more were right with probability at least τ, then r and h, followed down from v as slowly as these
allow, end at most at g/m; with all of τ on exactly v they grow least. Where even then r + h passes g/m, μ-GDP is false but for
a probability τ.

Source: Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run", Section 3: the recursion
for a bounded number of guesses, https://arxiv.org/abs/2410.22235.
"""

from collections.abc import Sequence

from scipy.special import ndtr, ndtri

from hubbub._checks import open_unit
from hubbub.audit.bound import GAUSSIAN_CURVE, LowerBound, epsilon_at_least, largest_rejected, significance
from hubbub.audit.one_run import COINS, GuessCount, require_counts

__all__ = ["one_run_gdp_epsilon"]


def one_run_gdp_epsilon(counts: Sequence[GuessCount], *, delta: float, confidence: float) -> LowerBound:
    """A μ that is too small for the run that was audited, and its epsilon if the trade-off curve is Gaussian.

    Args:
        counts: One or more numbers of guesses about the same canaries; which numbers was chosen before any score was seen.
            The significance is divided among them (Bonferroni).
        delta: Strictly between 0 and 1.
        confidence: Strictly between 0 and 1.

    Raises:
        ValueError: No count, counts of different canaries, a number out of range.
        TypeError: Something that is no count or no number.

    Example:
        >>> bound = one_run_gdp_epsilon([GuessCount(canaries=1000, guesses=100, correct=98)], delta=1e-5, confidence=0.95)
        >>> bound.epsilon > 2.711  # sharper than one_run_epsilon, which assumes no curve
        True

    Source: Mahloujifar, Melis and Chaudhuri 2024, Section 3, https://arxiv.org/abs/2410.22235.
    """
    allowed = open_unit("delta", delta)
    known = require_counts(counts)
    level = significance(confidence) / len(known)
    mu = max(largest_rejected(lambda mu, count=count: _falsified(count, mu, level)) for count in known)  # type: ignore[misc]
    return LowerBound(
        epsilon=epsilon_at_least(mu, allowed),
        delta=allowed,
        confidence=float(confidence),
        mu=mu,
        assumptions=(COINS, GAUSSIAN_CURVE),
        source="Mahloujifar, Melis and Chaudhuri 2024, Section 3; Dong, Roth and Su 2022, Corollary 2.13",
    )


def _falsified(count: GuessCount, mu: float, level: float) -> bool:
    """Whether μ-GDP would need more than all the probability there is."""
    g, v = count.guesses, count.correct
    most = g / count.canaries * (1 + 1e-9)
    r, h = level * v / count.canaries, level * (g - v) / count.canaries
    for i in range(v - 1, -1, -1):
        needed = float(ndtr(ndtri(r) - mu))
        if needed <= h:
            return False
        r, h = r + i / (g - i) * (needed - h), needed
        if r + h > most:
            return True
    return False
