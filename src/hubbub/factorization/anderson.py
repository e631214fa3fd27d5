"""Anderson acceleration: fixed points of slowly converging maps.

Letters: x the point, g the map, f = g(x) − x the residual.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hubbub._util.checks import Array

# A step with more than this many times the least residual so far is undone.
_MOST_GROWTH = 4.0
# The number of earlier points in a mixture.
_MEMORY = 10


class FixedPoint(NamedTuple):
    """The best point, its residual (largest entry), and the number of evaluations."""

    point: Array
    residual: float
    evaluations: int


def fixed_point(
    update: Callable[[Array], Array],
    start: Array,
    *,
    tolerance: float,
    most: int,
    within: Callable[[Array], Array] = lambda x: x,
    importance: Callable[[Array], Array] = np.ones_like,
) -> FixedPoint:
    """A point that ``update`` moves by at most ``tolerance`` in any entry, or the best one after ``most`` evaluations.

    Args:
        update: The map g; ``(n,)`` in and out.
        start: The first point, ``(n,)``.
        tolerance: Of the largest entry of g(x) − x.
        most: Evaluations of ``update``, at least 1.
        within: Projects a point onto the domain of ``update``.
        importance: The weight of each entry of g(x) − x at x, from 0 to 1, in the mixture, and in the residual for entries that
            fall; entries that rise count in full there. By default all are 1.

    Example:
        >>> import numpy as np
        >>> found = fixed_point(np.cos, np.array([1.0]), tolerance=1e-12, most=30)
        >>> round(float(found.point[0]), 9), found.evaluations < 10
        (0.739085133, True)

    Source: Walker and Ni 2011, "Anderson acceleration for fixed-point iterations", https://doi.org/10.1137/10078356X.
    """
    x = start
    points: list[Array] = []
    left: list[Array] = []
    best = FixedPoint(start, np.inf, 0)
    for evaluations in range(1, most + 1):
        f = update(x) - x
        counts = importance(x)
        residual = float(np.maximum(f, -f * counts).max())
        if residual < best.residual:
            best = FixedPoint(x, residual, evaluations)
        if best.residual <= tolerance:
            break
        if not residual <= _MOST_GROWTH * best.residual:
            # The mixture diverged: continue from the best point by plain steps, with an empty memory.
            x, f = best.point, update(best.point) - best.point
            points, left = [], []
        points, left = [*points, x][-_MEMORY - 1 :], [*left, f][-_MEMORY - 1 :]
        x = within(_mixed(points, left, np.square(counts)))
    return FixedPoint(best.point, best.residual, evaluations)


def _mixed(points: list[Array], left: list[Array], metric: Array) -> Array:
    """The next point: the newest step, less its part in the span of the earlier differences."""
    x, f = points[-1], left[-1]
    if len(points) == 1:
        return x + f
    dx, df = np.diff(points, axis=0), np.diff(left, axis=0)
    # Normal equations of a handful of unknowns: a slightly wrong mixture only costs a step.
    gram = (df * metric) @ df.T
    gram[np.diag_indices(len(gram))] *= 1 + 1e-12
    try:
        mixture = np.linalg.solve(gram, (df * metric) @ f)
    except np.linalg.LinAlgError:
        return x + f
    mixed: Array = x + f - mixture @ (dx + df)
    return mixed
