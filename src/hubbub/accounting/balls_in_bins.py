"""What balls-in-bins costs with independent noise, by a deterministic bound.

Letters: b bins, T rounds, z the noise multiplier, μ = √⌈T/b⌉/z, e_j the unit vector of slot j, R = dP/dQ.

**The pair.** A unit that draws slot j adds u_t, of norm at most 1, in each round t of the slot, chosen with all earlier
outputs in view. Let the adversary instead see s_t + noise, with s_t = 1 in the rounds of the slot and else 0: from that it
makes the true output of round t, by the map that takes 1 to u_t and by more noise where u_t is shorter. The rounds of a slot
are as good as their sum over the root of their number, μ_j·[slot j] + N(0, 1). A slot of fewer than ⌈T/b⌉ rounds, or a unit
that stays away, is that with μ scaled down and noise added. So P = (1/b)·Σ_j N(μ e_j, I) against Q = N(0, I) dominates
removal and zero-out, and (Q, P) addition. For the same reasons the bound falls with z and with b: P over b bins is that over
b − 1 with a coordinate of pure noise put in at a random place.

**Replace-one.** The unit keeps its slot, and u_t turns into u'_t. The map that takes √2·e to u_t and √2·e' to u'_t, for
orthonormal e and e', does not lengthen any vector: |x u + y u'|² ≤ 2x² + 2y². So the adversary gains by seeing two copies,
one with shifts √2·μ in the first run and none in the second, and one the other way round: replacement is dominated by a
removal and an addition, composed, at the noise multiplier z/√2. Nothing is lost for b = 1, nor as μ gets small; in between
opposite contributions, u' = −u, attain less.

Source: Chua et al. 2025, https://arxiv.org/abs/2412.16802, and Choquette-Choo et al. 2025, Lemma 3.2,
https://arxiv.org/abs/2410.06266 for the pair; post-processing of Gaussian shifts: Torgersen 1991, "Comparison of Statistical
Experiments", Theorem 8.2.13.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hubbub._checks import Array
from hubbub.accounting.events import BallsInBins, NeighboringRelation
from hubbub.accounting.loss import Loss
from hubbub.accounting.pairs import EVERYWHERE, Law, LossLaw, Pair
from hubbub.accounting.ratio import fits, of_mixture

__all__ = ["BinsLaw", "directions"]

# A grid is refined until delta falls by less than this part of itself: a third of that is left.
_TOLERANCE = 1e-3
_FEWEST_POINTS, _MOST_POINTS = 256, 2048
# Smaller shifts count as this one.
_LEAST_SHIFT = 1e-6
# Sums of positive numbers: up to 30 levels of 3000 roundings each.
_ROUNDING = 1e-10
_FIRST_LOG_TAIL = -60.0
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

    def discretized(self, mesh: float, log_tail: float, fine: tuple[float, float] = EVERYWHERE) -> Loss:
        """A loss on the mesh that dominates this one, fine everywhere.

        Where float64 cannot hold its tails (μ above 25 or so, an epsilon of hundreds) it is that of one bin, never less.
        """
        if not self._amplified(log_tail):
            return self._unamplified.discretized(mesh, log_tail, fine)
        low, high = self.span(log_tail)
        points = _FEWEST_POINTS
        while points < _MOST_POINTS and points * mesh < high - low:
            points *= 2
        losses, mass = self._atoms(points, log_tail)
        return _on_mesh(losses, mass * (1 + _ROUNDING), mesh, self._cut(log_tail))

    def sampled(self, log_tail: float) -> tuple[Array, Array]:
        """Some hundred losses and their masses, near the law but no bound."""
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
        while best > enough and points <= _MOST_POINTS and self._amplified(log_tail):
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
        return self.bins > 1 and fits(self.shift, self.bins, log_tail)

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
                return np.arange(1 - len(x), len(x), dtype=np.float64) * ratio.step, np.convolve(removal, addition).astype(
                    np.float64
                )


def directions(event: BallsInBins, neighboring_relation: NeighboringRelation) -> tuple[LossLaw, LossLaw]:
    """The laws of the loss with the unit against without, and the reverse; equal where the two are symmetric.

    Example:
        >>> remove, add = directions(BallsInBins(noise_multiplier=3.0, bins=10, rounds=100), "zero-out")
        >>> round(remove.delta(0.5), 3), round(add.delta(0.5), 3)
        (0.034, 0.025)
    """
    shift = _shift(event)
    if neighboring_relation == "replace-one":
        shift *= math.sqrt(2)
        return BinsLaw(shift, event.bins, "replacement"), BinsLaw(shift, event.bins, "replacement")
    return BinsLaw(shift, event.bins, "removal"), BinsLaw(shift, event.bins, "addition")


def _shift(event: BallsInBins) -> float:
    return max(_LEAST_SHIFT, math.sqrt(-(-event.rounds // event.bins)) / event.noise_multiplier)


def _on_mesh(losses: Array, mass: Array, mesh: float, infinite: float) -> Loss:
    """Each loss split between its neighbours on the mesh, so that both laws keep their masses: ∫ e^{-L} dP as well as ∫ dP."""
    place = np.floor(losses / mesh).astype(np.int64)
    rest = np.clip(losses - place * mesh, 0, mesh)
    higher = mass * (np.expm1(-rest) / math.expm1(-mesh))
    first, last = int(place[0]), int(place[-1]) + 1
    split: Array = np.bincount(place - first, mass - higher, last - first + 1).astype(np.float64)
    split += np.bincount(place - first + 1, higher, last - first + 1)
    return Loss(first, split, infinite)
