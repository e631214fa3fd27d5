"""Lower bounds on epsilon from one run: many canaries, each kept with probability 1/2, and guesses about some of them.

Letters: m canaries, r guesses, v of them right, W ~ Bin(r, e^ε/(1 + e^ε)). Under (ε, δ)-DP

    P[v or more right] ≤ P[W ≥ v] + 2·m·δ·max over i of P[v > W ≥ v − i]/i.

The weights C(r, w)·e^(εw) are built outward from the largest and divided by their sum: all terms are positive, nothing
cancels.

Source: Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", Theorem 5.2,
https://arxiv.org/abs/2305.08846.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from hubbub._util.checks import Array, integer, non_negative, open_unit, plain_numbers
from hubbub.audit.bounds import LowerBound, delta_or_zero, gaussian_bound, largest_rejected, scores, significance

_MOST = 10**7
_ASSUMED = (
    "Each canary was kept with probability 1/2, independently; whoever guessed did not see which were kept; the numbers of "
    "guesses were chosen before any score was seen; neighbouring data sets differ by one canary."
)


@dataclass(frozen=True)
class GuessCount:
    """The number of right guesses about the canaries of one run.

    Args:
        canaries: Each kept with probability 1/2, independently.
        guesses: Number of guesses, chosen before any score is seen.
        correct: Number of right guesses.

    Raises:
        ValueError: More correct than guesses, or more guesses than canaries.

    Example:
        >>> one_run_epsilon([GuessCount(canaries=100, guesses=50, correct=49)], delta=1e-5, confidence=0.95).epsilon > 2
        True
    """

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        integer("canaries", self.canaries, at_least=1, at_most=_MOST)
        integer("guesses", self.guesses, at_least=1, at_most=self.canaries)
        integer("correct", self.correct, at_least=0, at_most=self.guesses)
        plain_numbers(self)


def count_guesses(present: npt.ArrayLike, absent: npt.ArrayLike, *, highest: int, lowest: int = 0) -> GuessCount:
    """The count of right guesses, with "present" for the highest scores and "absent" for the lowest.

    Ties are broken against the audit: the wrong guess comes first.

    Args:
        present: One score for each canary that took part; larger means "looks present".
        absent: One score for each canary that did not; one of the two may be empty, by chance.
        highest: Number of guesses of "present".
        lowest: Number of guesses of "absent".

    Raises:
        ValueError: No guess, more guesses than canaries, a score that is not finite.

    Example:
        >>> count_guesses([3.0, 2.0, 0.5], [1.0, 0.0, -1.0], highest=3, lowest=2)
        GuessCount(canaries=6, guesses=5, correct=4)
    """
    kept, left = scores("present", present, may_be_empty=True), scores("absent", absent, may_be_empty=True)
    canaries = kept.size + left.size
    first = integer("highest", highest, at_least=0)
    last = integer("lowest", lowest, at_least=0)
    if first + last == 0:
        raise ValueError("highest = 0 and lowest = 0: there must be at least one guess")
    if first + last > canaries:
        raise ValueError(f"highest + lowest = {first + last}: there are only {canaries} canaries")
    right = _right_among_highest(kept, left, first) + _right_among_highest(-left, -kept, last)
    return GuessCount(canaries=canaries, guesses=first + last, correct=right)


def _right_among_highest(right: Array, wrong: Array, guesses: int) -> int:
    """The number of the highest scores of both that are in ``right``; ties go to ``wrong``."""
    both = np.concatenate([right, wrong])
    is_right = np.concatenate([np.ones(right.size, dtype=bool), np.zeros(wrong.size, dtype=bool)])
    order = np.lexsort((is_right, -both))
    return int(np.count_nonzero(is_right[order[:guesses]]))


def one_run_p_value(canaries: int, guesses: int, correct: int, *, epsilon: float, delta: float) -> float:
    """An upper bound on the probability, under (epsilon, delta)-DP, of at least ``correct`` right guesses.

    O(guesses) steps.

    Args:
        canaries: Each kept with probability 1/2, independently.
        guesses: At most the number of canaries.
        correct: At most the number of guesses.
        epsilon: At least 0.
        delta: At least 0 and below 1.

    Raises:
        ValueError: A number out of range.

    Example:
        >>> f"{one_run_p_value(1000, 100, 98, epsilon=2.0, delta=1e-5):.4e}"
        '1.6524e-03'

    Source: Steinke, Nasr and Jagielski 2023, Theorem 5.2, https://arxiv.org/abs/2305.08846.
    """
    return _p_value(GuessCount(canaries, guesses, correct), non_negative("epsilon", epsilon), delta_or_zero(delta))


def _p_value(count: GuessCount, epsilon: float, delta: float) -> float:
    r, v = count.guesses, count.correct
    w = np.arange(r)
    steps = np.log((r - w) / (w + 1)) + epsilon
    mode = int(np.count_nonzero(steps > 0))
    logs = np.zeros(r + 1)
    logs[mode + 1 :] = np.cumsum(steps[mode:])
    logs[:mode] = -np.cumsum(steps[:mode][::-1])[::-1]
    weights = np.exp(logs)
    total = float(weights.sum())
    p = float(weights[v:].sum()) / total
    if delta > 0 and v > 0:
        averages = np.cumsum(weights[:v][::-1]) / np.arange(1, v + 1)
        p += 2 * count.canaries * delta * float(averages.max()) / total
    return min(p, 1.0)


def one_run_epsilon(counts: Sequence[GuessCount], *, delta: float, confidence: float) -> LowerBound:
    """A lower bound on epsilon from the guesses about one run; no shape of the trade-off curve is assumed.

    Args:
        counts: One or more counts about the same canaries; their numbers of guesses were chosen before any score was seen.
            The significance is divided among them (Bonferroni).
        delta: At least 0 and below 1.
        confidence: Strictly between 0 and 1.

    Raises:
        ValueError: No count, counts of different canaries, a number out of range.
        TypeError: A value that is not a count or not a number.

    Example:
        >>> bound = one_run_epsilon([GuessCount(canaries=1000, guesses=100, correct=98)], delta=1e-5, confidence=0.95)
        >>> round(bound.epsilon, 3)
        2.711

    Source: Steinke, Nasr and Jagielski 2023, Theorem 5.2, https://arxiv.org/abs/2305.08846.
    """
    allowed = delta_or_zero(delta)
    epsilon = _largest(counts, confidence, lambda count, level, at: _p_value(count, at, allowed) * (1 + 1e-9) <= level)
    source = "Steinke, Nasr and Jagielski 2023, Theorem 5.2"
    return LowerBound(epsilon, allowed, float(confidence), mu=None, assumptions=(_ASSUMED,), source=source)


def _largest(counts: Sequence[GuessCount], confidence: float, rejects: Callable[[GuessCount, float, float], bool]) -> float:
    """The largest parameter that one of the counts rejects at its share of the significance."""
    if not isinstance(counts, Sequence) or not all(isinstance(count, GuessCount) for count in counts):
        raise TypeError(
            f"counts = {counts!r}: must be a list of GuessCount, such as [count_guesses(present, absent, highest=100)]"
        )
    if not counts:
        raise ValueError("counts is empty: must hold at least one GuessCount")
    sizes = sorted({count.canaries for count in counts})
    if len(sizes) > 1:
        raise ValueError(f"counts speak of {sizes[0]} and of {sizes[1]} canaries: must be about the same canaries")
    level = significance(confidence) / len(counts)
    return max(largest_rejected(partial(rejects, count, level)) for count in counts)


def one_run_gdp_epsilon(counts: Sequence[GuessCount], *, delta: float, confidence: float) -> LowerBound:
    """A lower bound on μ from the guesses about one run, and its epsilon if the trade-off curve is Gaussian.

    Args:
        counts: One or more counts about the same canaries; their numbers of guesses were chosen before any score was seen.
            The significance is divided among them (Bonferroni).
        delta: Strictly between 0 and 1.
        confidence: Strictly between 0 and 1.

    Raises:
        ValueError: No count, counts of different canaries, a number out of range.
        TypeError: A value that is not a count or not a number.

    Example:
        >>> bound = one_run_gdp_epsilon([GuessCount(canaries=1000, guesses=100, correct=98)], delta=1e-5, confidence=0.95)
        >>> bound.epsilon > 2.711  # sharper than one_run_epsilon, which assumes no curve
        True

    Source: Mahloujifar, Melis and Chaudhuri 2024, Section 3, https://arxiv.org/abs/2410.22235.
    """
    allowed = open_unit("delta", delta)
    mu = _largest(counts, confidence, _falsified)
    return gaussian_bound(mu, allowed, confidence, (_ASSUMED,), "Mahloujifar, Melis and Chaudhuri 2024, Section 3")


def _falsified(count: GuessCount, level: float, mu: float) -> bool:
    """Whether μ-GDP would need a total probability above 1."""
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
