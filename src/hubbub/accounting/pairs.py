"""The pairs of output distributions that dominate one sampled round, their privacy losses, and the mesh on which they lie.

A pair has two mixtures P_a and P_b, where P_m = (1−q)·N(0, 1) + q·N(m, 1): with probability q a record moves the sum by m
standard deviations. The loss is l(x) = ln dP_a/dP_b (x), and b is 0, −a or a/2.

Why these pairs dominate. Let S be any set of outputs, and α, β, γ its masses under the sum without the record's round, with the
record, and with its neighbour. By Neyman and Pearson's lemma, where two means are at most m standard deviations apart,
β ≤ Φ(Φ⁻¹(α) + m). The hockey-stick divergence is (1−q)(1−e^ε)·α + q·β − e^ε q·γ: linear in the three, so that for each sign of
ε it is greatest where those inequalities hold with equality, which one line of means and a half-line S attain. The bound is the
same for whatever the other records are, so it holds for mixtures over them and, round by round, under adaptive composition.

* Poisson sampling: a record moves the sum by at most s = 1/z, its replacement by as much in the opposite direction: (s, 0) and
  its reverse; under replace-one (s, −s).
* A cohort of a fixed size: a record that enters displaces another, hence 2s. Under add-or-remove-one (2s, 0) and its reverse.
  Under replace-one (2s, 0) for losses above 0 and its reverse for those below. Under zero-out (2s, s) for losses above 0,
  (s, 0) reversed for those below, and the reverse of both.

Source: the domination of compositions is Zhu, Dong and Wang 2022, Theorem 10, https://arxiv.org/abs/2106.08567; the profile of
fixed cohorts under replace-one is Balle, Barthe and Gaboardi 2018, Theorem 9, https://arxiv.org/abs/1807.01647; splitting each
loss between its two neighbours on a mesh is Doroshenko et al. 2022, Algorithm 1, https://arxiv.org/abs/2207.04380.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from hubbub._util.checks import Array


@dataclass(frozen=True)
class Loss:
    """A discretized privacy loss L = ln P/Q that dominates the true one: its profile δ(ε) is nowhere below.

    Args:
        first: Position of the first mass, in steps of the mesh h.
        mass: ``mass[j]`` is the mass under P at the loss (``first`` + j)·h, ``(points,)``.
        infinite: Mass under P where the loss counts as infinite; it is added to delta.
    """

    first: int
    mass: Array
    infinite: float


# Logarithm of the mass below the lowest loss on the mesh; it is moved up to that loss, which only raises the profile.
LOW_TAIL = -40.0
# A tilt is chosen well with less missing mass.
_MISSING = 1e-2


class LossLaw(Protocol):
    """The privacy loss of one round in one direction."""

    def span(self, log_tail: float) -> tuple[float, float]:
        """The losses between which all but a mass of e^log_tail lies."""

    def discretized(self, mesh: float, log_tail: float) -> Loss:
        """A loss on the mesh that dominates this one; mass beyond the span counts as infinite loss."""

    def sampled(self, log_tail: float) -> tuple[Array, Array]:
        """Some hundred losses and their masses, to choose a tilt by: an approximation, not a bound."""

    def delta(self, epsilon: float, enough: float = 0.0) -> float:
        """The profile of one round at epsilon ≥ 0, exact but for rounding, which is upwards.

        With ``enough`` only the comparison of the answer with it needs to be right.
        """


@dataclass(frozen=True)
class LossPair(ABC):
    """Two laws on a line whose ratio increases along it; ``reverse`` takes the loss of the second against the first.

    Both have densities, as mixtures of Gaussians do: mass at a single loss could fall beyond an edge of :meth:`masses`, and be
    counted at a smaller loss than its own. What has atoms implements :class:`LossLaw` itself.
    """

    reverse: bool = field(default=False, kw_only=True)

    @abstractmethod
    def losses(self, x: Array) -> Array:
        """ln of the first density over the second at x, whatever the direction."""

    @abstractmethod
    def arguments(self, losses: Array) -> Array:
        """The x at which each of increasing losses is taken; −∞ below the least one."""

    @abstractmethod
    def between(self, x: Array) -> tuple[Array, Array]:
        """The masses of both laws between increasing points of the line, ``(points − 1,)`` each."""

    @abstractmethod
    def extremes(self, log_tail: float) -> tuple[float, float]:
        """The losses that the first law of the direction leaves with mass e^log_tail above, and e^-40 below."""

    @abstractmethod
    def above(self, loss: float) -> tuple[float, float]:
        """The mass of each law of the direction above a loss: of the first from above, of the second from below."""

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """The masses of both laws of the direction between increasing losses, ``(edges − 1,)`` each."""
        first, second = self.between(self.arguments(-edges[::-1] if self.reverse else edges))
        return (second[::-1], first[::-1]) if self.reverse else (first, second)

    def nodes(self, low: float, high: float, points: int) -> tuple[Array, Array]:
        """Losses between two, evenly along the line, and the masses around them."""
        ends = self.arguments(np.array([-high, -low] if self.reverse else [low, high]))
        x = np.linspace(max(ends[0], -40.0), ends[1], points + 1)
        losses = self.losses((x[1:] + x[:-1]) / 2)
        return (-losses if self.reverse else losses), self.between(x)[self.reverse]


@dataclass(frozen=True)
class Pair(LossPair):
    """Two mixtures P_a and P_b.

    Example:
        >>> pair = Pair(q=0.1, a=1.0, b=0.0)
        >>> losses = pair.losses(np.array([-2.0, 0.5, 2.0]))
        >>> pair.arguments(losses).round(9).tolist()
        [-2.0, 0.5, 2.0]
    """

    q: float
    a: float
    b: float

    def losses(self, x: Array) -> Array:
        """ln P_a/P_b at x, whatever the direction."""
        if self.q == 1:
            return (self.a - self.b) * x - (self.a**2 - self.b**2) / 2
        stays, moves = math.log1p(-self.q), math.log(self.q)
        losses: Array = np.logaddexp(stays, moves + self.a * x - self.a**2 / 2)
        if self.b:
            losses = losses - np.logaddexp(stays, moves + self.b * x - self.b**2 / 2)
        return losses

    def arguments(self, losses: Array) -> Array:
        """The x whose ln P_a/P_b is the loss; −∞ below the least one."""
        if self.q == 1:
            return losses / (self.a - self.b) + (self.a + self.b) / 2
        odds = math.log1p(-self.q) - math.log(self.q)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if self.b == 0:
                near = np.log1p(np.expm1(np.minimum(losses, 30.0)) / self.q)
                far = losses + np.log1p(-(1 - self.q) * np.exp(-np.maximum(losses, 0))) - math.log(self.q)
                inside = np.where(losses < 30, near, far)
                return np.where(np.isnan(inside), -np.inf, inside / self.a + self.a / 2)
            if self.b == -self.a:
                half = np.abs(losses) / 2
                log_sinh = half + np.log(-np.expm1(-2 * half) / 2) + odds + self.a**2 / 2
                shift = np.where(log_sinh < 300, np.arcsinh(np.exp(np.minimum(log_sinh, 300.0))), log_sinh + math.log(2))
                return np.copysign(half + shift, losses) / self.a
            rest = 4 * np.exp(odds - self.b**2 - losses) * -np.expm1(-losses)
            return np.asarray((self.b**2 * 1.5 + losses - math.log(2) + np.log1p(np.sqrt(1 + rest))) / self.b)

    def extremes(self, log_tail: float) -> tuple[float, float]:
        """The losses that the first law of the direction leaves with mass e^log_tail above, and e^-40 below."""
        high, low = math.sqrt(-2 * log_tail), math.sqrt(-2 * max(log_tail, LOW_TAIL))
        if self.reverse:
            below, above = -self.losses(np.array([max(0.0, self.b) + low, min(0.0, self.b) - high]))
        else:
            below, above = self.losses(np.array([min(0.0, self.a) - low, max(0.0, self.a) + high]))
        return float(below), float(above)

    def between(self, x: Array) -> tuple[Array, Array]:
        """The masses of both laws between increasing points of the line, ``(points − 1,)`` each."""
        base = between(x)
        return _mixed(self.q, base, x, self.a), _mixed(self.q, base, x, self.b)

    def above(self, loss: float) -> tuple[float, float]:
        """The mass of each law of the direction above a loss: of the first from above, of the second from below."""
        x = float(self.arguments(np.array([-loss if self.reverse else loss]))[0])
        tails = [(x, x - self.b), (x, x - self.a)] if self.reverse else [(-x, self.a - x), (-x, self.b - x)]
        first, second = (float((1 - self.q) * ndtr(t) + self.q * ndtr(m)) for t, m in tails)
        # Φ loses precision with the square of how far out it is.
        out = abs(x) + abs(self.a)
        error = 2.0**-50 * (16 + out * out)
        return first * (1 + error), second * max(0.0, 1 - error)


def between(x: Array) -> Array:
    """Φ(x_{i+1}) − Φ(x_i), each from the side that keeps its relative precision.

    Example:
        >>> between(np.array([-1.0, 1.0, 30.0, 31.0])).tolist()
        [0.6826894921370859, 0.15865525393145707, 4.9067139271476384e-198]
    """
    tail = ndtr(-np.abs(x))
    masses: Array = np.abs(np.diff(tail))
    at = int(np.searchsorted(x, 0.0))
    if 0 < at < len(x):
        masses[at - 1] = 1 - tail[at - 1] - tail[at]
    return masses


def _mixed(q: float, base: Array, x: Array, mean: float) -> Array:
    if mean == 0:
        return base
    return (1 - q) * base + q * between(x - mean)


@dataclass(frozen=True)
class Law:
    """The loss of ``upper`` where it is above 0, and of ``lower`` where it is below; the same pair, or two that meet at 0."""

    upper: LossPair
    lower: LossPair

    def span(self, log_tail: float) -> tuple[float, float]:
        """The losses between which all but a mass of e^log_tail lies."""
        return min(0.0, self.lower.extremes(log_tail)[0]), max(0.0, self.upper.extremes(log_tail)[1])

    def discretized(self, mesh: float, log_tail: float) -> Loss:
        """A loss on the mesh that dominates this one."""
        low, high = self.span(log_tail)
        first = math.floor(low / mesh)
        edges = np.multiply(np.arange(first, math.ceil(high / mesh) + 1), mesh, dtype=np.float64)
        if self.upper == self.lower:
            zero = 0
            p, q = self.upper.masses(edges)
        else:
            zero = -first
            below, above = self.lower.masses(edges[: zero + 1]), self.upper.masses(edges[zero:])
            p, q = (np.concatenate(parts) for parts in zip(below, above, strict=True))
        # The part of each interval's mass that goes to its upper end keeps the mass under Q: ∫ e^{-L} dP.
        with np.errstate(divide="ignore"):
            # In logarithms where e^L alone overflows and its product with the mass does not.
            kept = q * np.exp(edges[:-1]) if high < 700 else np.exp(np.minimum(np.log(q) + edges[:-1], 700))
        upper = np.clip((p - kept) / -np.expm1(-np.diff(edges)), 0, p)
        mass = np.zeros(len(edges))
        mass[1:] += upper
        mass[:-1] += p - upper
        outside = math.exp(log_tail)
        # The mass below the mesh is moved up to its lowest loss, or to 0 if there are two pairs.
        mass[zero] += max(0.0, 1 - float(mass.sum()) - outside)
        return Loss(first, mass, outside)

    def sampled(self, log_tail: float) -> tuple[Array, Array]:
        """Some hundred losses and their masses: an approximation, not a bound."""
        low, high = self.span(log_tail)
        if self.upper == self.lower:
            losses, mass = self.upper.nodes(low, high, 256)
            missing = 1 - float(mass.sum())
            if missing < _MISSING:
                return losses, mass
            # Far left the loss is constant, ln(1 − q) for a pair: the mass there is added.
            flat = high if self.upper.reverse else low
            return np.append(losses, flat), np.append(mass, missing)
        below, above = self.lower.nodes(low, 0.0, 128), self.upper.nodes(0.0, high, 160)
        at_zero = max(0.0, 1 - float(below[1].sum() + above[1].sum()))
        return np.concatenate([below[0], [0.0], above[0]]), np.concatenate([below[1], [at_zero], above[1]])

    def delta(self, epsilon: float, enough: float = 0.0) -> float:
        """The profile of one round at epsilon ≥ 0, exact but for rounding, which is upwards."""
        p, q = self.upper.above(epsilon)
        return max(0.0, p - math.exp(min(epsilon, 700.0)) * q)


@dataclass(frozen=True)
class Blend:
    """A law that is one of several with given chances, which the adversary may see."""

    weights: tuple[float, ...]
    laws: tuple[LossLaw, ...]

    def __post_init__(self) -> None:
        if not math.fsum(self.weights) >= 1 - 1e-12:
            raise ValueError(f"weights = {self.weights!r}: must sum to 1")

    def span(self, log_tail: float) -> tuple[float, float]:
        """The losses between which all but a mass of e^log_tail lies."""
        spans = [law.span(log_tail) for law in self.laws]
        return min(low for low, _ in spans), max(high for _, high in spans)

    def discretized(self, mesh: float, log_tail: float) -> Loss:
        """A loss on the mesh that dominates this one."""
        parts = [law.discretized(mesh, log_tail) for law in self.laws]
        first = min(part.first for part in parts)
        mass = np.zeros(max(part.first + len(part.mass) for part in parts) - first)
        for weight, part in zip(self.weights, parts, strict=True):
            mass[part.first - first : part.first - first + len(part.mass)] += weight * part.mass
        return Loss(first, mass, math.fsum(w * part.infinite for w, part in zip(self.weights, parts, strict=True)))

    def sampled(self, log_tail: float) -> tuple[Array, Array]:
        """Some hundred losses and their masses: an approximation, not a bound."""
        parts = [law.sampled(log_tail) for law in self.laws]
        masses = [weight * mass for weight, (_, mass) in zip(self.weights, parts, strict=True)]
        return np.concatenate([losses for losses, _ in parts]), np.concatenate(masses)

    def delta(self, epsilon: float, enough: float = 0.0) -> float:
        """The profile of one round at epsilon ≥ 0, exact but for rounding, which is upwards."""
        return math.fsum(weight * law.delta(epsilon) for weight, law in zip(self.weights, self.laws, strict=True))
