"""L-BFGS: the least value of a smooth function of many variables, from its gradient.

scipy's L-BFGS-B handles bounds, passes over its vectors several times a step and starts with a step of length 1, which moves
a root of a power series out of the unit disc. Here the first step is short, the line search steps back from a value that is not
finite, and the work apart from the function is 4·memory passes over a vector.

Source: Nocedal and Wright 2006, "Numerical Optimization", Algorithms 7.4 and 7.5; the line search, which also descends where a
function has kinks, is Algorithm 2.6 of Lewis and Overton 2013, https://doi.org/10.1007/s10107-012-0514-2."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from hubbub._util.checks import Array

# The value at a point, and the gradient in its shape. A value that is not finite is outside of the domain.
ValueAndGradient = Callable[[Array], tuple[float, Array]]

# Wolfe's conditions, as in Nocedal and Wright, section 3.1.
_DECREASE, _CURVATURE = 1e-4, 0.9
# Beyond this many trials, a line search is limited by rounding.
_MOST_TRIALS = 30
# A decrease below this part of the value is rounding.
_ROUNDING = 4e-16


@dataclass(frozen=True, eq=False)
class Minimum:
    """The best point of a search, its value and gradient, and the number of evaluations."""

    point: Array
    value: float
    gradient: Array
    evaluations: int


@dataclass
class _Memory:
    """The inverse Hessian by the last few steps and the changes of the gradient along them."""

    most: int
    pairs: list[tuple[Array, Array, float]] = field(default_factory=list)

    def add(self, step: Array, change: Array) -> None:
        product = float(np.vdot(step, change))
        if product > 1e-14 * math.sqrt(float(np.vdot(step, step)) * float(np.vdot(change, change))):
            self.pairs = [*self.pairs, (step, change, product)][-self.most :]

    def direction(self, gradient: Array) -> Array:
        """Minus the inverse Hessian times the gradient."""
        d = -gradient
        shares = []
        for step, change, product in reversed(self.pairs):
            share = float(np.vdot(step, d)) / product
            d -= share * change
            shares.append(share)
        _, change, product = self.pairs[-1]
        d *= product / float(np.vdot(change, change))
        for (step, change, product), share in zip(self.pairs, reversed(shares), strict=True):
            d += (share - float(np.vdot(change, d)) / product) * step
        return d


def minimize(
    value_and_gradient: ValueAndGradient,
    start: Array,
    *,
    memory: int = 5,
    most_evaluations: int = 1000,
    gradient_tolerance: float = 0.0,
    curvature: float | None = None,
    stop: Callable[[Minimum], bool] | None = None,
) -> Minimum:
    """The least value that L-BFGS finds from ``start``.

    Ends when the gradient is short, when ``stop`` is true, or when no step lowers the value by more than rounding.

    Args:
        value_and_gradient: Of a point in the shape of ``start``; must return a new gradient array each time, and ``inf`` with
            any gradient outside of the domain.
        start: A point of finite value, any shape; not changed.
        memory: The number of remembered steps, two vectors each; dozens for functions with kinks.
        most_evaluations: Of ``value_and_gradient``; at least 1 is made.
        gradient_tolerance: Ends when ‖gradient‖·‖point‖ is at most this part of the value.
        curvature: A typical second derivative, if known: the first step is −gradient / curvature instead.
        stop: Called at ``start`` and after each step.

    Raises:
        ValueError: The value at ``start`` is not finite.

    Example:
        >>> goal = np.array([1.0, 2.0])
        >>> minimize(lambda x: (float(((x - goal) ** 2).sum()), 2 * (x - goal)), np.array([5.0, 5.0])).point.round(6)
        array([1., 2.])
    """
    value, gradient = value_and_gradient(start)
    if not math.isfinite(value):
        raise ValueError(f"start: its value is {value}: must be finite")
    best = Minimum(start, value, gradient, 1)
    # The length of a first step, relative to that of the point.
    remembered, first_step = _Memory(memory), 1e-2
    while not (stop is not None and stop(best)):
        size = float(np.linalg.norm(best.gradient))
        if size * float(np.linalg.norm(best.point)) <= gradient_tolerance * abs(best.value) or size == 0:
            break
        if remembered.pairs:
            direction = remembered.direction(best.gradient)
        elif curvature is not None:
            direction = best.gradient / -curvature
        else:
            direction = best.gradient * (-first_step * max(float(np.linalg.norm(best.point)), 1e-8) / size)
        found = _search(value_and_gradient, best, direction, most_evaluations)
        if found.value >= best.value - _ROUNDING * abs(best.value):
            best = replace(best, evaluations=found.evaluations)
            if not remembered.pairs or best.evaluations >= most_evaluations:
                break
            # The remembered curvature may have misled: try once along the gradient itself.
            remembered, first_step, curvature = _Memory(memory), 1e-6, None
            continue
        remembered.add(found.point - best.point, found.gradient - best.gradient)
        best = found
        if best.evaluations >= most_evaluations:
            break
    return best


def _search(value_and_gradient: ValueAndGradient, at: Minimum, direction: Array, most_evaluations: int) -> Minimum:
    """The best point met along ``direction``: the first one with Wolfe's two conditions, by doubling and interpolation."""
    slope = float(np.vdot(at.gradient, direction))
    low, high, step = 0.0, math.inf, 1.0
    best, evaluations = at, at.evaluations
    for _ in range(_MOST_TRIALS):
        if slope >= 0 or evaluations >= most_evaluations:
            break
        point = at.point + step * direction
        value, gradient = value_and_gradient(point)
        evaluations += 1
        if not math.isfinite(value) or value > at.value + _DECREASE * step * slope:
            high = step
            # The minimum of the parabola through the start and the failed trial, kept within the middle of the interval.
            curvature = 2 * (value - at.value - slope * step)
            least = -slope * step**2 / curvature if math.isfinite(curvature) and curvature > 0 else 0.0
            step = min(max(least, low + 0.1 * (step - low)), low + 0.5 * (step - low))
        else:
            if value < best.value:
                best = Minimum(point, value, gradient, evaluations)
            if float(np.vdot(gradient, direction)) >= _CURVATURE * slope:
                return Minimum(point, value, gradient, evaluations)
            low = step
            step = 2 * step if math.isinf(high) else (low + high) / 2
    return replace(best, evaluations=evaluations)
