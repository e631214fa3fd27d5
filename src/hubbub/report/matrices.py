"""A factorization as a picture: the four matrices, and the error of each round.

Letters: A workload, C strategy, N noising matrix with N·C = I, B = A·N decoder.
"""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from hubbub._checks import Array
from hubbub.strategies import Strategy
from hubbub.utility import noising_matrix
from hubbub.workloads import Workload

__all__ = ["Curve", "draw_matrices", "largest_by_block", "signed_image"]

# As many entries a side as a panel of the picture has dots.
_MOST_DOTS = 1000
# How far below the largest entry the colours go on by factors of ten; nearer to 0 they fade to white.
_DECADES = 3
_ERROR, _BOUND, _QUIET = "#1b6ca8", "#b5542b", "#6b6b6b"


@dataclass(frozen=True, eq=False)
class Curve:
    """What is drawn below the matrices: standard deviations at sensitivity 1.

    Args:
        roots: ``(rounds,)``, the root squared error of each round.
        objective: ``"mean"`` or ``"max"``.
        root: Of the squared error that was made least.
        root_bound: Of its lower bound.
        bound_family: Whose bound that is.
    """

    roots: Array
    objective: str
    root: float
    root_bound: float
    bound_family: str


def draw_matrices(title: str, workload: Workload, strategy: Strategy, curve: Curve) -> bytes:
    """A PNG of A, B, C and C⁻¹, as the published notebook shows them, above the error over rounds.

    Entries of either sign have a colour each, by the logarithm of their size, so that structure is seen at every scale. A large
    matrix is shown by the entry of largest size in each block: a single diagonal does not get lost. Where C is not square, the
    noising matrix N stands for C⁻¹.

    Source: for the four panels, the notebook published with Choquette-Choo et al. 2023, https://arxiv.org/abs/2306.08153.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    A, C = workload.matrix(), np.asarray(strategy.matrix(), dtype=np.float64)
    square = C.shape[0] == C.shape[1] and not np.triu(C, 1).any()
    N = solve_triangular(C, np.eye(len(C)), lower=True) if square else noising_matrix(strategy)
    inverse = "C⁻¹" if square else "N"
    figure = Figure(figsize=(9, 11.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=13)
    grid = figure.add_gridspec(3, 2, height_ratios=(4, 4, 3))
    panels = (("A, the workload", A), (f"B = A·{inverse}", A @ N), ("C, the strategy", C), (f"{inverse}, the noise", N))
    for place, (name, matrix) in enumerate(panels):
        axes = figure.add_subplot(grid[place // 2, place % 2])
        signed_image(figure, axes, matrix)
        axes.set_title(f"{name}   {matrix.shape[0]:,} × {matrix.shape[1]:,}", loc="left", fontsize=10)
    _draw_curve(figure.add_subplot(grid[2, :]), curve)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def largest_by_block(matrix: Array, most: int = _MOST_DOTS) -> Array:
    """A matrix of at most ``most`` rows and columns: of each block the entry of largest size.

    Example:
        >>> largest_by_block(np.array([[1.0, 0.0, 2.0], [0.0, -3.0, 0.0]]), most=2)
        array([[-3.,  2.]])
    """
    step = -(-max(matrix.shape) // most)
    rows, columns = (-(-size // step) for size in matrix.shape)
    padded = np.zeros((rows * step, columns * step))
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    blocks = padded.reshape(rows, step, columns, step).swapaxes(1, 2).reshape(rows, columns, step * step)
    found: Array = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[..., None], axis=2)[..., 0]
    return found


def signed_image(figure: Any, axes: Any, matrix: Array, most: int = _MOST_DOTS) -> None:
    """Draw a matrix with a colour for each sign, by the logarithm of its entries' size, and the bar that says so."""
    from matplotlib.colors import SymLogNorm

    shown = largest_by_block(matrix, most)
    top = float(np.abs(shown).max())
    # The decades take nine tenths of each side of the scale, what is smaller the rest.
    norm = SymLogNorm(linthresh=top * 10.0**-_DECADES, linscale=0.3, vmin=-top, vmax=top, base=10)
    image = axes.imshow(
        shown,
        cmap="RdBu_r",
        norm=norm,
        interpolation="nearest",
        extent=(0, matrix.shape[1], matrix.shape[0], 0),
        aspect="auto",
    )
    axes.set_box_aspect(1)
    axes.tick_params(labelsize=8)
    signed = shown.min() < 0
    ticks = [top * 10.0**-decade for decade in range(_DECADES + 1)]
    bar = figure.colorbar(image, ax=axes, shrink=0.9, aspect=25, pad=0.02)
    marks = [*(-tick for tick in ticks), 0.0, *reversed(ticks)] if signed else [0.0, *reversed(ticks)]
    bar.set_ticks(marks, labels=[f"{mark:.2g}" for mark in marks])
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=7)
    if not signed:
        bar.ax.set_ylim(0, top)


def _draw_curve(axes: Any, curve: Curve) -> None:
    from matplotlib.ticker import MaxNLocator

    rounds = np.arange(1, len(curve.roots) + 1)
    axes.plot(rounds, curve.roots, color=_ERROR, linewidth=1.5, marker="o" if len(rounds) < 50 else "", markersize=3)
    words = "root mean squared error" if curve.objective == "mean" else "largest root squared error"
    axes.axhline(curve.root, color=_ERROR, linestyle="--", linewidth=1, label=f"{words}: {curve.root:.6g}")
    bound = f"lower bound: {curve.root_bound:.6g}, for {curve.bound_family}"
    axes.axhline(curve.root_bound, color=_BOUND, linestyle=":", linewidth=1.5, label=bound)
    axes.set_xlim(1, max(2, len(rounds)))
    axes.set_ylim(0, max(float(curve.roots.max()), curve.root) * 1.25)
    axes.set_xlabel("round")
    axes.set_ylabel("root squared error\nat sensitivity 1")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    axes.grid(visible=True, color="#e5e5e5")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=_QUIET)
