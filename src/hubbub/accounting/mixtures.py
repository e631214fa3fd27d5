"""The pair that dominates a release in which a unit contributes more or less by chance.

P_± = Σ pᵢ·N(±sᵢ, 1): with probability pᵢ the unit moves the sum by sᵢ standard deviations. Without the unit it is N(0, 1);
under replace-one another unit may move it as far the other way. As for two contributions (:mod:`hubbub.accounting.pairs`),
Neyman and Pearson bound the masses of any set under each N(sᵢ u) by those of a half-line, all at once, so that the pair
dominates whatever the direction and the size, up to sᵢ, of each contribution.

Source: Choquette-Choo et al. 2023, "Privacy Amplification for Matrix Mechanisms", https://arxiv.org/abs/2310.15526.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from hubbub._checks import Array
from hubbub.accounting.pairs import LOW_TAIL, between

__all__ = ["MixturePair"]

# Where a Newton step leaves its bracket, that is halved; so many halvings leave nothing of any.
_STEPS = 200
# Of the line: beyond it no law has mass.
_FARTHEST = 1e6
# Of a loss, over the terms that it is made of; of a mass, over the square of where it begins, in standard deviations.
_ROUNDING = 2.0**-50


@dataclass(frozen=True)
class MixturePair:
    """P_+ against N(0, 1), or against P_− where ``mirrored``; ``reverse`` takes the loss of the second against the first."""

    probabilities: tuple[float, ...]
    shifts: tuple[float, ...]
    mirrored: bool
    reverse: bool = False

    def losses(self, x: Array) -> Array:
        """ln of the first density over the second at x, whatever the direction; increasing."""
        return self._losses(x)[0]

    def _losses(self, x: Array) -> tuple[Array, Array, Array]:
        """The losses, their derivatives, and by how much rounding may have moved them."""
        value, slope, error = self._log_ratio(x)
        if not self.mirrored:
            return value, slope, error
        other, other_slope, other_error = self._log_ratio(-x)
        return value - other, slope + other_slope, error + other_error

    def _log_ratio(self, x: Array) -> tuple[Array, Array, Array]:
        """ln P_+ / N(0, 1), its derivative and its error."""
        s, logs = np.array(self.shifts), np.log(np.array(self.probabilities))
        exponents = np.multiply.outer(x, s) + (logs - s**2 / 2)
        top = exponents.max(axis=-1)
        weights = np.exp(exponents - top[..., None])
        total = weights.sum(axis=-1)
        slope = weights @ s / total
        # Only the terms that weigh anything.
        terms = np.abs(x) * slope + weights @ (s**2 / 2 - logs) / total
        return top + np.log(total), slope, _ROUNDING * (1 + terms)

    def arguments(self, losses: Array) -> Array:
        """The x at which each of increasing losses is taken, by Newton's steps inside brackets; −∞ below the least one."""
        answer = np.full(len(losses), -np.inf)
        taken = losses > self._least()
        wanted = losses[taken]
        if not len(wanted):
            return answer
        grid = self._grid(float(wanted[0]), float(wanted[-1]), min(8 * len(wanted), 2048))
        at = np.clip(np.searchsorted(self.losses(grid), wanted), 1, len(grid) - 1)
        low, high = grid[at - 1], grid[at]
        found = (low + high) / 2
        left = np.arange(len(wanted))
        for _ in range(_STEPS):
            x = found[left]
            value, slope, error = self._losses(x)
            short = wanted[left] - value
            low[left], high[left] = np.where(short > 0, x, low[left]), np.where(short > 0, high[left], x)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                newton = x + short / slope
            inside = (newton >= low[left]) & (newton <= high[left])
            found[left] = np.where(inside, newton, (low[left] + high[left]) / 2)
            left = left[(np.abs(short) > error) & (found[left] != x)]
            if not len(left):
                break
        answer[taken] = found
        return answer

    def _grid(self, lowest: float, highest: float, points: int) -> Array:
        """Points between which the losses from ``lowest`` to ``highest`` are taken."""
        low, high = np.array([-1.0]), np.array([1.0])
        while self.losses(high)[0] < highest:
            high *= 2
        while self.losses(low)[0] > lowest and low[0] > -_FARTHEST:
            low *= 2
        return np.linspace(low[0], high[0], points)

    def _least(self) -> float:
        """The loss that all others exceed, from below."""
        still = math.fsum(p for p, s in zip(self.probabilities, self.shifts, strict=True) if s == 0)
        return -math.inf if self.mirrored or still == 0 else math.log(still) * (1 + _ROUNDING) - _ROUNDING

    def extremes(self, log_tail: float) -> tuple[float, float]:
        """The losses that the first law of the direction leaves with mass e^log_tail above, and e^-40 below."""
        high, low = math.sqrt(-2 * log_tail), math.sqrt(-2 * max(log_tail, LOW_TAIL))
        # Of each part at most its share of the tail lies beyond; a part that is rarer than that may lie there wholly.
        room = [math.log(p * len(self.shifts)) - log_tail for p in self.probabilities]
        most = max(s + math.sqrt(2 * r) for s, r in zip(self.shifts, room, strict=True) if r > 0)
        if self.reverse:
            below, above = -self.losses(np.array([low, -most if self.mirrored else -high]))
        else:
            below, above = self.losses(np.array([-low, most]))
        return float(below), float(above)

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """The masses of both laws of the direction between increasing losses, ``(edges − 1,)`` each."""
        x = self.arguments(-edges[::-1] if self.reverse else edges)
        first = self._between(x, 1.0)
        second = self._between(x, -1.0 if self.mirrored else 0.0)
        return (second[::-1], first[::-1]) if self.reverse else (first, second)

    def _between(self, x: Array, sign: float) -> Array:
        if sign == 0:
            return between(x)
        parts = [p * between(x - sign * s) for p, s in zip(self.probabilities, self.shifts, strict=True)]
        return np.asarray(sum(parts))

    def above(self, loss: float) -> tuple[float, float]:
        """The mass of each law of the direction above a loss: of the first from above, of the second from below."""
        side, wanted = (-1.0, -loss) if self.reverse else (1.0, loss)
        x = self.arguments(np.array([wanted]))
        if math.isinf(x[0]):
            # Below all losses.
            return (0.0, 0.0) if self.reverse else (1.0, 1.0)
        value, slope, error = (float(of[0]) for of in self._losses(x))
        wrong = abs(value - wanted) + error
        # Between x and the point where the loss is taken, wherever that lies, the first density exceeds e^loss times the second
        # by a factor of at most e^wrong. It lies on this side of a point whose loss is beyond doubt.
        beyond = x - side * min(4 * wrong / max(slope, 1e-290), _FARTHEST)
        there, _, doubt = (float(of[0]) for of in self._losses(beyond))
        doubtful = float(beyond[0]) if side * (wanted - there) >= doubt else -side * math.inf
        one, other = (0.0, 1.0) if self.reverse else (1.0, -1.0 if self.mirrored else 0.0)
        missed = math.expm1(wrong) * self._tail(doubtful, one, side, 1) if wrong < 1 else 1.0
        return self._tail(float(x[0]), one, side, 1) + missed, self._tail(float(x[0]), other, side, -1)

    def _tail(self, x: float, sign: float, side: float, up: int) -> float:
        """The mass of Σ pᵢ·N(sign·sᵢ, 1) beyond x, on the right for side 1, the left for −1; rounded up, or down (−1)."""
        whole, parts = math.fsum(self.probabilities), []
        for p, s in zip(self.probabilities, self.shifts, strict=True):
            t = side * (sign * s - x)
            # Φ loses precision with the square of how far out it is.
            out = min(t, 0.0)
            parts.append(p * float(ndtr(t)) * max(0.0, 1 + up * (_ROUNDING * (16 + out * (out - s)) + abs(whole - 1))))
        return math.fsum(parts)

    def nodes(self, low: float, high: float, points: int) -> tuple[Array, Array]:
        """Losses between two, evenly in x, and the masses around them."""
        ends = self.arguments(np.array([-high, -low] if self.reverse else [low, high]))
        x = np.linspace(max(ends[0], -40.0), ends[1], points + 1)
        sign = 1.0 if not self.reverse else -1.0 if self.mirrored else 0.0
        losses = self.losses((x[1:] + x[:-1]) / 2)
        return (-losses if self.reverse else losses), self._between(x, sign)
