"""The likelihood ratio of a mixture of orthogonal Gaussian shifts, on a grid: a bound from above on every profile at once.

Letters: Q = N(0, I_b), P = (1/b)·Σ_j N(μ e_j, I_b), R = dP/dQ = (1/b)·Σ_j W_j with W_j = exp(μ y_j − μ²/2), g the grid's
step.

Both profiles are means under Q of a convex function of R: removal E_Q (R − e^ε)⁺, addition E_Q (1 − e^ε R)⁺. So whatever
spreads R without a change of its mean can only raise them (Jensen), and it is the ratio of another pair of which (P, Q) is a
post-processing (Blackwell), so that compositions are bounded as well. Here every value is split between its two neighbours
on the grid {e^(kg)} so that its mean is kept: first each W_j, then each weighted mean of two independent ratios. Rounding ln
R up would lose O(g) at every step; this loses O(g²). What is below the grid is split between 0 and the lowest point; of what
is above it, the excess over the highest point goes to a part of P that Q does not have.

Source: the splitting is that of Doroshenko et al. 2022, Algorithm 1, https://arxiv.org/abs/2207.04380, here in the space of
the ratio; spreads and post-processing: Blackwell 1953, "Equivalent Comparisons of Experiments", Theorem 2.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from hubbub._checks import Array

__all__ = ["Ratio", "fits", "of_mixture"]

# μ and the reach of the tails may add up to this: e^(-37²/2) is still a normal float64, and what products of two masses lose to
# underflow, in all at most 1e9·2^-1074·e^(37²/2) of the tail's mass, is below e^-35 of it.
_MOST_DEVIATIONS = 37.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


@dataclass(frozen=True)
class Ratio:
    """The law of a likelihood ratio under Q.

    Args:
        step: g.
        first: Position of the first point.
        mass: ``mass[j]`` is the mass under Q at the ratio exp((``first`` + j)·g), ``(points,)``.
        zero: Mass under Q where the ratio is 0, which P does not have.
    """

    step: float
    first: int
    mass: Array
    zero: float

    @property
    def logarithms(self) -> Array:
        """ln R at each point, ``(points,)``."""
        return np.arange(self.first, self.first + len(self.mass), dtype=np.float64) * self.step


def fits(shift: float, bins: int, log_tail: float) -> bool:
    """Whether float64 holds the masses that :func:`of_mixture` needs."""
    return shift + math.sqrt(-2 * _log_share(bins, log_tail)) <= _MOST_DEVIATIONS


def _log_share(bins: int, log_tail: float) -> float:
    """What one step may cut off: the steps are as many as b has bits, and half of the tail is left for underflow."""
    return log_tail - math.log(2 * bins.bit_length())


@lru_cache(maxsize=16)
def of_mixture(shift: float, bins: int, points: int, log_tail: float) -> Ratio:
    """The ratio R of the mixture of ``bins`` shifts by μ = ``shift``, spread on a grid.

    R over n bins is the mean of those over ⌊n/2⌋ and ⌈n/2⌉: from the leading bit of b on, the ratios over n and n + 1 bins are
    made of those of the bit before. Steps get finer as the mean concentrates.

    Args:
        shift: μ.
        bins: b.
        points: About how many points the grid has.
        log_tail: Below 0, such that it ``fits``. At most e to its power, underflow included, is cut off: of P above the grid,
            by which the mean of the ratio falls short of 1, and of Q below it, which is ``zero``.
    """
    bits = f"{bins:b}"[1:]
    log_share = _log_share(bins, log_tail)
    share = math.exp(log_share)
    count, ratios = 1, [_one_bin(shift, points, log_share)]
    if "1" in bits:
        ratios.append(_mean(ratios[0], 1, ratios[0], 1, 1))
    for place, bit in enumerate(bits):
        finer = _finer(len(ratios[0].mass), points)
        first = 2 * count + (bit == "1")
        # From the last 1 on, the ratio over one bin more is of no use.
        last = first + ("1" in bits[place + 1 :])
        halves = [(total // 2, (total + 1) // 2) for total in range(first, last + 1)]
        ratios = [_trimmed(_mean(ratios[m - count], m, ratios[n - count], n, finer), share) for m, n in halves]
        count = first
    return ratios[0]


def _one_bin(shift: float, points: int, log_tail: float) -> Ratio:
    """The law of W = exp(μy − μ²/2)."""
    reach = math.sqrt(-2 * log_tail)
    step = 2 * (shift**2 / 2 + shift * reach) / points
    last = math.ceil((shift**2 / 2 + shift * reach) / step)
    within = (_NODES + 1) / 2
    starts = np.arange(-last, last) * step
    # The integral over each interval by quadrature: a difference of two normal distribution functions would cancel.
    deviations = (starts[:, None] + within * step) / shift + shift / 2
    density = np.exp(-(deviations**2) / 2) * (_WEIGHTS / 2 * step / shift / math.sqrt(2 * math.pi))
    upwards = np.expm1(within * step) / math.expm1(step)
    mass = np.zeros(2 * last + 1)
    mass[:-1] += density @ (1 - upwards)
    mass[1:] += density @ upwards
    low, high = -last * step / shift, last * step / shift
    # Under P y has the mean μ: the mass of P where W is small, over W's bound there, is what the lowest point takes.
    below = float(ndtr(low + shift / 2))
    lifted = min(below, float(ndtr(low - shift / 2)) * math.exp(last * step))
    mass[0] += lifted
    mass[-1] += float(ndtr(-(high + shift / 2)))
    return Ratio(step, -last, mass, below - lifted)


def _finer(length: int, points: int) -> int:
    """By how much to divide the step, a power of two: a mean of two is about 3/4 as wide as each."""
    finer = 1
    while 3 * length * finer <= 2 * points:
        finer *= 2
    return finer


def _mean(left: Ratio, m: int, right: Ratio, n: int, finer: int) -> Ratio:
    """The law of (m·``left`` + n·``right``)/(m + n), independent and of one step, on a grid ``finer`` times as fine."""
    weight, other = m / (m + n), n / (m + n)
    a, b = left.mass, right.mass
    same = left is right and m == n
    gaps = np.arange(0 if same else left.first - right.first - len(b) + 1, left.first - right.first + len(a))
    # Where the two are d points apart, their mean is e^logarithm times the right one, so that one split serves all such pairs.
    d = gaps * left.step
    # ln(weight·e^d + other), written so that nothing cancels or overflows.
    logarithms = np.where(
        d > 0, d + np.log1p(other * np.expm1(-np.maximum(d, 0))), np.log1p(weight * np.expm1(np.minimum(d, 0)))
    )
    whole, upwards = _split(logarithms, left.step / finer)
    lowest = finer * min(left.first, right.first)
    mass = np.zeros(finer * max(left.first + len(a), right.first + len(b)) - lowest + 2)
    for gap, place, share in zip(gaps.tolist(), whole.tolist(), upwards.tolist(), strict=True):
        start, stop = max(right.first, left.first - gap), min(right.first + len(b), left.first + len(a) - gap)
        products = a[start + gap - left.first : stop + gap - left.first] * b[start - right.first : stop - right.first]
        if same and gap:
            products *= 2
        at = start * finer + place - lowest
        end = at + (stop - start - 1) * finer + 1
        higher = share * products
        mass[at + 1 : end + 1 : finer] += higher
        products -= higher
        mass[at:end:finer] += products
    ratio = Ratio(left.step / finer, lowest, mass, left.zero * right.zero)
    return _with(_with(ratio, left.zero * b, right, other), right.zero * a, left, weight)


def _split(logarithms: Array, step: float) -> tuple[npt.NDArray[np.int64], Array]:
    """The point of the grid at or below each value, and the part of a mass that goes to the next one to keep its mean."""
    whole = np.floor(logarithms / step)
    rest = np.clip(logarithms - whole * step, 0, step)
    return whole.astype(np.int64), np.expm1(rest) / math.expm1(step)


def _with(ratio: Ratio, masses: Array, part: Ratio, weight: float) -> Ratio:
    """With masses added at ``weight`` times the points of ``part``; those below the grid go to 0 and to its lowest point."""
    x = part.logarithms + math.log(weight) - ratio.first * ratio.step
    if not masses.any():
        return ratio
    below = x < 0
    lifted = masses[below] * np.exp(x[below])
    whole, upwards = _split(x[~below], ratio.step)
    mass = ratio.mass.copy()
    mass[0] += lifted.sum()
    mass += np.bincount(whole, (1 - upwards) * masses[~below], len(mass))
    mass += np.bincount(whole + 1, upwards * masses[~below], len(mass))
    return replace(ratio, mass=mass, zero=ratio.zero + float((masses[below] - lifted).sum()))


def _trimmed(ratio: Ratio, share: float) -> Ratio:
    """Without the points of which at most ``share`` under Q lies at the low end, or under P at the high end."""
    x = ratio.logarithms
    under_p = ratio.mass * np.exp(x)
    low = int(np.searchsorted(np.cumsum(ratio.mass), share, side="right"))
    high = len(x) - 1 - int(np.searchsorted(np.cumsum(under_p[::-1]), share, side="right"))
    mass = ratio.mass[low : high + 1].copy()
    lifted = float(under_p[:low].sum()) * math.exp(-x[low])
    mass[0] += lifted
    mass[-1] += float(ratio.mass[high + 1 :].sum())
    zero = ratio.zero + max(0.0, float(ratio.mass[:low].sum()) - lifted)
    return Ratio(ratio.step, ratio.first + low, mass, zero)
