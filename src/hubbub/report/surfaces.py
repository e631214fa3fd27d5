"""A surface over two settings, as students of private training draw it: accuracy over clip norm and noise."""

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["draw_surface", "has_surface"]


def has_surface(points: Sequence[tuple[float, float, float]]) -> bool:
    """Whether the points ``(x, y, height)`` span more than a line."""
    if len(points) < 3:
        return False
    flat = np.array([point[:2] for point in points])
    extent = np.ptp(flat, axis=0)
    if not extent.all():
        return False
    return int(np.linalg.matrix_rank((flat - flat[0]) / extent)) == 2


def draw_surface(axes: Any, points: Sequence[tuple[float, float, float]], *, ink: str = "#333333") -> None:
    """Draw the points, and a surface through them where they span one.

    Args:
        axes: Of matplotlib, with ``projection="3d"``.
        points: ``(x, y, accuracy)``.
        ink: The colour of the points.
    """
    from matplotlib.ticker import PercentFormatter

    x, y, heights = ([point[i] for point in points] for i in range(3))
    if has_surface(points):
        axes.plot_trisurf(x, y, heights, cmap="viridis", alpha=0.85, linewidth=0.2, edgecolor="#ffffff")
    axes.scatter(x, y, heights, color=ink, s=8, depthshade=False)
    axes.zaxis.set_major_formatter(PercentFormatter(1.0))
    axes.view_init(elev=22, azim=-130)
