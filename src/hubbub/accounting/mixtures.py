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
from hubbub.accounting.pairs import LOW_TAIL, between, outward

__all__ = ["MixturePair"]

_STEPS = 12
# Of the line: beyond it no law has mass.
_FARTHEST = 1e6


@dataclass(frozen=True)
class MixturePair:
    """P_+ against N(0, 1), or against P_− where ``mirrored``; ``reverse`` takes the loss of the second against the first."""

    probabilities: tuple[float, ...]
    shifts: tuple[float, ...]
    mirrored: bool
    reverse: bool = False

    def losses(self, x: Array) -> Array:
        """ln of the first density over the second at x, whatever the direction; increasing."""
        return self._losses_and_slopes(x)[0]

    def _losses_and_slopes(self, x: Array) -> tuple[Array, Array]:
        value, slope = self._log_ratio(x)
        if not self.mirrored:
            return value, slope
        other, other_slope = self._log_ratio(-x)
        return value - other, slope + other_slope

    def _log_ratio(self, x: Array) -> tuple[Array, Array]:
        """ln P_+ / N(0, 1), and its derivative."""
        s = np.array(self.shifts)
        exponents = np.multiply.outer(x, s) + (np.log(np.array(self.probabilities)) - s**2 / 2)
        top = exponents.max(axis=-1)
        weights = np.exp(exponents - top[..., None])
        total = weights.sum(axis=-1)
        return top + np.log(total), weights @ s / total

    def arguments(self, losses: Array) -> Array:
        """The x at which each of increasing losses is taken, by Newton's steps inside brackets; −∞ below the least one."""
        answer = np.full(len(losses), -np.inf)
        taken = losses > self._least()
        wanted = losses[taken]
        if not len(wanted):
            return answer
        grid = self._grid(float(wanted[0]), float(wanted[-1]))
        at = np.clip(np.searchsorted(self.losses(grid), wanted), 1, len(grid) - 1)
        low, high = grid[at - 1], grid[at]
        x = (low + high) / 2
        for _ in range(_STEPS):
            value, slope = self._losses_and_slopes(x)
            low, high = np.where(value < wanted, x, low), np.where(value < wanted, high, x)
            with np.errstate(divide="ignore", invalid="ignore"):
                newton = x - (value - wanted) / slope
            x = np.where((newton > low) & (newton < high), newton, (low + high) / 2)
        answer[taken] = x
        return answer

    def _grid(self, lowest: float, highest: float) -> Array:
        """Points between which the losses from ``lowest`` to ``highest`` are taken."""
        low, high = np.array([-1.0]), np.array([1.0])
        while self.losses(high)[0] < highest:
            high *= 2
        while self.losses(low)[0] > lowest and low[0] > -_FARTHEST:
            low *= 2
        return np.linspace(low[0], high[0], 2048)

    def _least(self) -> float:
        """The loss that all others exceed."""
        still = math.fsum(p for p, s in zip(self.probabilities, self.shifts, strict=True) if s == 0)
        return -math.inf if self.mirrored or still == 0 else math.log(still)

    def extremes(self, log_tail: float) -> tuple[float, float]:
        """The losses that the first law of the direction leaves with mass e^log_tail above, and e^-40 below."""
        high, low = math.sqrt(-2 * log_tail), math.sqrt(-2 * max(log_tail, LOW_TAIL))
        most = max(self.shifts)
        if self.reverse:
            below, above = -self.losses(np.array([low, -most * self.mirrored - high]))
        else:
            below, above = self.losses(np.array([-low, most + high]))
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
        x = float(self.arguments(np.array([-loss if self.reverse else loss]))[0])
        side = -1.0 if self.reverse else 1.0
        first, second = (self._tail(x, sign, side) for sign in (1.0, -1.0 if self.mirrored else 0.0))
        first, second = (second, first) if self.reverse else (first, second)
        return outward(first, second, abs(x) + max(self.shifts))

    def _tail(self, x: float, sign: float, side: float) -> float:
        """The mass beyond x, on the right for side 1 and on the left for −1, of Σ pᵢ·N(sign·sᵢ, 1)."""
        return math.fsum(p * float(ndtr(side * (sign * s - x))) for p, s in zip(self.probabilities, self.shifts, strict=True))

    def nodes(self, low: float, high: float, points: int) -> tuple[Array, Array]:
        """Losses between two, evenly in x, and the masses around them."""
        ends = self.arguments(np.array([-high, -low] if self.reverse else [low, high]))
        x = np.linspace(max(ends[0], -40.0), ends[1], points + 1)
        sign = 1.0 if not self.reverse else -1.0 if self.mirrored else 0.0
        losses = self.losses((x[1:] + x[:-1]) / 2)
        return (-losses if self.reverse else losses), self._between(x, sign)
