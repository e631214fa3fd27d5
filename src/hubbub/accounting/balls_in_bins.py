"""Balls in bins with independent noise: what a run costs, by a deterministic bound on the loss of the mixture over bins.

Letters: b bins, T rounds, z the noise multiplier, μ = √⌈T/b⌉/z, e_j the unit vector of bin j, Q = N(0, I_b),
P = (1/b)·Σ_j N(μ e_j, I_b), R = dP/dQ = (1/b)·Σ_j W_j with W_j = exp(μ y_j − μ²/2), g the grid's step.

**The grid** bounds every profile at once from above. Both profiles are means under Q of a convex function of R: removal E_Q
(R − e^ε)⁺, addition E_Q (1 − e^ε R)⁺. So whatever spreads R without a change of its mean can only raise them (Jensen), and it
is the ratio of another pair of which (P, Q) is a post-processing (Blackwell), so that compositions are bounded as well. Here
every value is split between its two neighbours on the grid {e^(kg)} so that its mean is kept: first each W_j, then each
weighted mean of two independent ratios. Rounding ln R up would lose O(g) at every step; this loses O(g²). What is below the
grid is split between 0 and the lowest point; of what is above it, the excess over the highest point goes to a part of P that
Q does not have.

**The pair.** A unit that draws bin j adds u_t, of norm at most 1, in each round t of the bin, chosen with all earlier
outputs in view. Let the adversary instead see s_t + noise, with s_t = 1 in the rounds of the bin and else 0: from that it
makes the true output of round t, by the map that takes 1 to u_t and by more noise where u_t is shorter. The rounds of a bin
are as good as their sum over the root of their number, μ_j·[bin j] + N(0, 1). A bin of fewer than ⌈T/b⌉ rounds, or a unit
that stays away, is that with μ scaled down and noise added. So P = (1/b)·Σ_j N(μ e_j, I) against Q = N(0, I) dominates
removal and zero-out, and (Q, P) addition. For the same reasons the bound falls with z and with b: P over b bins is that over
b − 1 with a coordinate of pure noise put in at a random place.

**Replace-one.** The unit keeps its bin, and u_t turns into u'_t. The map that takes √2·e to u_t and √2·e' to u'_t, for
orthonormal e and e', does not lengthen any vector: |x u + y u'|² ≤ 2x² + 2y². So the adversary gains by seeing two copies,
one with shifts √2·μ in the first run and none in the second, and one the other way round: replacement is dominated by a
removal and an addition, composed, at the noise multiplier z/√2. Nothing is lost for b = 1, nor as μ gets small; in between
opposite contributions, u' = −u, attain less.

Source: the splitting is that of Doroshenko et al. 2022, Algorithm 1, https://arxiv.org/abs/2207.04380, here in the space of
the ratio; spreads and post-processing: Blackwell 1953, "Equivalent Comparisons of Experiments", Theorem 2; Chua et al. 2025,
https://arxiv.org/abs/2412.16802, and Choquette-Choo et al. 2025, Lemma 3.2, https://arxiv.org/abs/2410.06266 for the pair;
post-processing of Gaussian shifts: Torgersen 1991, "Comparison of Statistical Experiments", Theorem 8.2.13.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from hubbub._util.checks import Array
from hubbub.accounting.events import BallsInBins, NeighboringRelation
from hubbub.accounting.pairs import Law, Loss, LossLaw, Pair

__all__ = ["BinsLaw", "Ratio", "directions", "of_mixture"]

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


def _log_share(bins: int, log_tail: float) -> float:
    """What one step may cut off: the steps are as many as b has bits, and half of the tail is left for underflow."""
    return log_tail - math.log(2 * bins.bit_length())


@lru_cache(maxsize=16)
def of_mixture(shift: float, bins: int, points: int, log_tail: float) -> Ratio:
    """The ratio R of the mixture of ``bins`` shifts by μ = ``shift``, spread on a grid of about so many points.

    R over n bins is the mean of those over ⌊n/2⌋ and ⌈n/2⌉: from the leading bit of b on, the ratios over n and n + 1 bins are
    made of those of the bit before. Steps get finer as the mean concentrates. At most e^``log_tail``, which must fit, is cut
    off, underflow included: of P above the grid, by which the mean of the ratio falls short of 1, and of Q below it, which is
    ``zero``.
    """
    bits = f"{bins:b}"[1:]
    log_share = _log_share(bins, log_tail)
    share = math.exp(log_share)
    count, ratios = 1, [_one_bin(shift, points, log_share)]
    if "1" in bits:
        ratios.append(_mean(ratios[0], 1, ratios[0], 1, 1))
    for place, bit in enumerate(bits):
        # By how much to divide the step, a power of two: a mean of two is about 3/4 as wide as each.
        finer = 1
        while 3 * len(ratios[0].mass) * finer <= 2 * points:
            finer *= 2
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


# A grid is refined until delta falls by less than this part of itself: a third of that is left.
_TOLERANCE = 1e-3
_FEWEST_POINTS, _MOST_POINTS = 256, 2048
# A delta below 1e-30 needs more of them.
_MOST_POINTS_OF_DELTA = 4096
# Smaller shifts count as this one.
_LEAST_SHIFT = 1e-6
# Sums of positive numbers: up to 30 levels of 3000 roundings each.
_ROUNDING = 1e-10
_FIRST_LOG_TAIL = -60.0
# Of lighter tails float64 does not hold the mixture, and a law that is only near it needs none.
_LEAST_SAMPLED = -100.0
# What is cut off may be this part of delta.
_CUT = 1e-4


@dataclass(frozen=True)
class BinsLaw:
    """The privacy loss of a whole run in one direction: a :class:`hubbub.accounting.pairs.LossLaw`.

    Args:
        shift: μ; of a replacement √2·μ.
        bins: b.
        direction: Of a replacement one law serves both.
    """

    shift: float
    bins: int
    direction: Literal["removal", "addition", "replacement"]

    def span(self, log_tail: float) -> tuple[float, float]:
        """The losses between which all but a mass of e^log_tail lies."""
        if not self._amplified(log_tail):
            return self._unamplified.span(log_tail)
        losses, _ = self._atoms(_FEWEST_POINTS, log_tail)
        return min(0.0, float(losses[0])), max(0.0, float(losses[-1]))

    def discretized(self, mesh: float, log_tail: float) -> Loss:
        """A loss on the mesh that dominates this one.

        Where float64 cannot hold its tails (μ above 25 or so, an epsilon of hundreds) it is that of one bin, never less.
        """
        if not self._amplified(log_tail):
            return self._unamplified.discretized(mesh, log_tail)
        low, high = self.span(log_tail)
        points = _FEWEST_POINTS
        while points < _MOST_POINTS and points * mesh < high - low:
            points *= 2
        losses, mass = self._atoms(points, log_tail)
        mass = mass * (1 + _ROUNDING)
        # Each is split between its neighbours on the mesh, so that both laws keep their masses: ∫ e^{-L} dP as well as ∫ dP.
        place = np.floor(losses / mesh).astype(np.int64)
        rest = np.clip(losses - place * mesh, 0, mesh)
        higher = mass * (np.expm1(-rest) / math.expm1(-mesh))
        first, last = int(place[0]), int(place[-1]) + 1
        split: Array = np.bincount(place - first, mass - higher, last - first + 1).astype(np.float64)
        split += np.bincount(place - first + 1, higher, last - first + 1)
        return Loss(first, split, self._cut(log_tail))

    def sampled(self, log_tail: float) -> tuple[Array, Array]:
        """Some hundred losses and their masses, near the law but no bound."""
        log_tail = max(log_tail, _LEAST_SAMPLED)
        if not self._amplified(log_tail):
            return self._unamplified.sampled(log_tail)
        return self._atoms(_FEWEST_POINTS, log_tail)

    def delta(self, epsilon: float, enough: float = 0.0) -> float:
        """The profile at epsilon ≥ 0: never below that of the pair, and above it by some thousandths of itself at most.

        It is off by hundredths below 1e-10, and by more only where μ exceeds 15, or delta is below 1e-60. Where ``enough`` is
        given the grid is refined only until it shows on which side of that delta lies.
        """
        best, before = self._unamplified.delta(epsilon), math.inf
        points, log_tail = _FEWEST_POINTS, _FIRST_LOG_TAIL
        while self._cut(log_tail) > _CUT * enough > 0 and self._amplified(2 * log_tail):
            log_tail *= 2
        while best > enough and points <= _MOST_POINTS_OF_DELTA and self._amplified(log_tail):
            losses, mass = self._atoms(points, log_tail)
            above = losses > epsilon
            value = float(mass[above] @ -np.expm1(epsilon - losses[above])) * (1 + _ROUNDING)
            best = min(best, value + self._cut(log_tail))
            if self._cut(log_tail) > _CUT * value:
                log_tail *= 2
                continue
            # Each refinement takes a fourth of what the one before did, or less.
            if before - value <= (max(_TOLERANCE * value, (value - enough) / 2) if enough else _TOLERANCE * value):
                break
            before, points = value, 2 * points
        return min(1.0, best)

    def _amplified(self, log_tail: float) -> bool:
        # Whether float64 holds the masses that the mixture needs.
        return self.bins > 1 and self.shift + math.sqrt(-2 * _log_share(self.bins, log_tail)) <= _MOST_DEVIATIONS

    @property
    def _unamplified(self) -> Law:
        """What one bin costs."""
        pair = Pair(1.0, self.shift * (math.sqrt(2) if self.direction == "replacement" else 1.0), 0.0)
        return Law(pair, pair)

    def _cut(self, log_tail: float) -> float:
        """What counts as infinite loss: one tail, or those of the two laws that make a replacement."""
        return math.exp(log_tail) * (2 if self.direction == "replacement" else 1)

    def _atoms(self, points: int, log_tail: float) -> tuple[Array, Array]:
        """Finite losses, increasing, and their masses under the first law, on the ratio's grid."""
        ratio = of_mixture(self.shift, self.bins, points, log_tail)
        x = ratio.logarithms
        addition: Array = ratio.mass[::-1]
        removal: Array = ratio.mass * np.exp(x)
        match self.direction:
            case "removal":
                return x, removal
            case "addition":
                return -x[::-1], addition
            case "replacement":
                losses = np.arange(1 - len(x), len(x), dtype=np.float64) * ratio.step
                return losses, np.convolve(removal, addition).astype(np.float64)


def directions(event: BallsInBins, neighboring_relation: NeighboringRelation) -> tuple[LossLaw, LossLaw]:
    """The laws of the loss with the unit against without, and the reverse; equal where the two are symmetric."""
    shift = max(_LEAST_SHIFT, math.sqrt(-(-event.rounds // event.bins)) / event.noise_multiplier)
    if neighboring_relation == "replace-one":
        return (BinsLaw(shift * math.sqrt(2), event.bins, "replacement"),) * 2
    return BinsLaw(shift, event.bins, "removal"), BinsLaw(shift, event.bins, "addition")
