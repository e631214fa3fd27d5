"""Pictures of commands as PNG files: errors of strategies, matrices, Gaussian calibrations, alternatives, times of operations.

Letters: A workload, C strategy, N noising matrix with N·C = I, B = A·N decoder.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from hubbub._util.checks import Array
from hubbub.factorization import Optimized
from hubbub.mechanism.sensitivity import is_triangular
from hubbub.mechanism.strategies import Strategy
from hubbub.mechanism.utility import noising_matrix
from hubbub.report.drawing import INK, MARKERS, QUIET, SERIES, canvas, labelled, look, png, styled

_SUBTITLE: dict[str, Any] = {"loc": "left", "fontsize": 10, "color": QUIET}
_OUTSIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0, "fontsize": 9}
# A panel of the picture has about this many dots a side.
_MOST_DOTS = 1000
# Colors cover this many powers of ten below the largest entry, then fade to white.
_DECADES = 3
# Larger and smaller ratios would flatten the rest.
_LOWEST, _HIGHEST = 0.25, 5.0


def _plain(axis: Any, subs: Sequence[float] = (1.0, 2.0, 5.0)) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


@styled()
def draw_errors(title: str, subtitle: str, curves: Mapping[str, Array]) -> bytes:
    """A PNG of the root squared error of each strategy over rounds, at sensitivity 1; the legend has the RMSE of each."""
    figure = canvas(9, 6)
    axes = figure.subplots()
    ordered = sorted(curves, key=lambda name: float(np.square(curves[name]).mean()))
    rounds = np.arange(1, len(curves[ordered[0]]) + 1)
    for number, name in enumerate(ordered):
        rmse = float(np.sqrt(np.square(curves[name]).mean()))
        axes.plot(rounds, curves[name], label=f"{name}  {rmse:.4g}", **look(number))
    axes.set(yscale="log", xlim=(1, max(2, len(rounds))))
    _plain(axes.yaxis)
    labelled(axes, "root squared error at sensitivity 1")
    axes.set_title(subtitle, **_SUBTITLE)
    axes.legend(title="RMSE", **_OUTSIDE)
    return png(figure, title)


@styled()
def draw_matrices(title: str, answer: Optimized[Strategy], roots: Array) -> bytes:
    """A PNG of A, B, C and C⁻¹ above the error over rounds.

    Each sign has a color, by the logarithm of an entry's size. A large matrix is shown by the largest entry of each block,
    so that a single diagonal stays visible. If C is not square, the noising matrix N stands for C⁻¹.

    Source: for the four panels, the notebook published with Choquette-Choo et al. 2023, https://arxiv.org/abs/2306.08153.
    """
    A, C = answer.workload.matrix(), np.asarray(answer.strategy.matrix(), dtype=np.float64)
    square = is_triangular(C)
    N = solve_triangular(C, np.eye(len(C)), lower=True) if square else noising_matrix(answer.strategy)
    inverse = "C⁻¹" if square else "N"
    figure = canvas(9, 11.5)
    grid = figure.add_gridspec(3, 2, height_ratios=(4, 4, 3))
    panels = (("A, the workload", A), (f"B = A·{inverse}", A @ N), ("C, the strategy", C), (f"{inverse}, the noise", N))
    for place, (name, matrix) in enumerate(panels):
        axes = figure.add_subplot(grid[place // 2, place % 2])
        signed_image(figure, axes, matrix)
        axes.set_title(f"{name}   {matrix.shape[0]:,} × {matrix.shape[1]:,}", loc="left", fontsize=10)
    axes = figure.add_subplot(grid[2, :])
    rounds, root, bound = np.arange(1, len(roots) + 1), answer.root_squared_error, math.sqrt(answer.lower_bound)
    axes.plot(rounds, roots, marker="o" if len(rounds) < 50 else "", markersize=3, **look(0))
    words = "largest root squared error" if answer.objective == "max" else f"root {answer.objective} squared error"
    axes.axhline(root, color=SERIES[0], linestyle="--", linewidth=1, label=f"{words}: {root:.6g}")
    axes.axhline(bound, color=SERIES[1], linestyle=":", label=f"lower bound: {bound:.6g}, for {answer.bound_family}")
    axes.set(xlim=(1, max(2, len(rounds))), ylim=(0, max(float(roots.max()), root) * 1.25))
    labelled(axes, "root squared error\nat sensitivity 1")
    axes.legend(loc="lower right")
    return png(figure, title)


def _largest_by_block(matrix: Array, most: int) -> Array:
    """The entry of largest size in each block, so that at most ``most`` rows and columns are left.

    Example:
        >>> _largest_by_block(np.array([[1.0, 0.0, 2.0], [0.0, -3.0, 0.0]]), most=2)
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
    """Draw a matrix with a color for each sign, by the logarithm of its entries' size, and a color bar."""
    from matplotlib.colors import SymLogNorm

    shown = _largest_by_block(matrix, most)
    top = float(np.abs(shown).max())
    norm = SymLogNorm(linthresh=top * 10.0**-_DECADES, vmin=-top, vmax=top, base=10)
    extent = (0, matrix.shape[1], matrix.shape[0], 0)
    image = axes.imshow(shown, cmap="RdBu_r", norm=norm, interpolation="nearest", extent=extent, aspect="auto")
    axes.set_box_aspect(1)
    axes.grid(visible=False)
    axes.tick_params(labelsize=8)
    bar = figure.colorbar(image, ax=axes, shrink=0.9, aspect=25, pad=0.02)
    bar.ax.tick_params(labelsize=7)
    bar.ax.set_ylim(-top if shown.min() < 0 else 0, top)


@styled()
def draw_calibrations(
    epsilon: float, delta: float, epsilons: Array, curves: Mapping[str, tuple[Array, npt.NDArray[np.bool_]]]
) -> bytes:
    """A PNG of the noise of each calibration over the exact one, over epsilon; thin where its theorem does not hold.

    Each has its ratios, below 1 where its claim is false and NaN where it claims nothing, and whether its theorem covers them.
    """
    figure = canvas(9, 6)
    axes = figure.subplots()
    low = max(_LOWEST, min([0.95, *(float(ratios.min()) for ratios, _ in curves.values())]) / 1.03)
    high = min(_HIGHEST, max([1.2, *(float(ratios.max()) for ratios, _ in curves.values())]) * 1.03)
    for number, (name, (ratios, covered)) in enumerate(curves.items()):
        beyond = ~covered
        # With the last proved point, so that the line has no gap.
        beyond[:-1] |= beyond[1:]
        proved, thin = (np.where(part, ratios, np.nan) for part in (covered, beyond))
        axes.plot(epsilons, proved, linewidth=2.0, label=name, zorder=3, **look(number))
        axes.plot(epsilons, thin, linewidth=0.9, zorder=3, **look(number))
    axes.axhspan(low, 1, color="#f1e3dc", zorder=0)
    axes.axhline(1, color=INK, linewidth=1.2, zorder=2, label="analytic: the least noise;\nbelow it the claim is false")
    axes.axvline(epsilon, color=QUIET, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1, label=f"epsilon = {epsilon:g}")
    axes.set(xscale="log", yscale="log", xlim=epsilons[[0, -1]], ylim=(low, high))
    for axis, subs in ((axes.xaxis, (1.0,)), (axes.yaxis, (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0))):
        _plain(axis, subs)
    axes.set(xlabel="epsilon", ylabel="noise over that of the analytic calibration")
    notes = [f"delta = {delta:g}"]
    if not all(covered.all() for _, covered in curves.values()):
        notes.append("thin: beyond its theorem")
    if any(ratios.max() > high for ratios, _ in curves.values()):
        notes.append(f"above {high:g} not drawn")
    axes.set_title("; ".join(notes), **_SUBTITLE)
    axes.legend(**_OUTSIDE)
    return png(figure, "How much more noise than needed each calibration adds")


@styled()
def draw_alternatives(
    title: str, marks: Sequence[tuple[str, float, str, bool, bool]], spent: Sequence[tuple[int, float]]
) -> bytes:
    """A PNG of errors as bars, the least on top, above epsilon over rounds.

    A mark is name, error, memory of the noise in words, whether it is the run itself, and whether it is recommended.
    """
    height = 0.32 * len(marks)
    figure = canvas(9, 3.6 + height)
    bars, curve = figure.subplots(2, 1, height_ratios=[max(1.2, height), 2.2])
    for place, (_, error, memory, own, best) in enumerate(marks):
        color = SERIES[1] if best else SERIES[0] if own else SERIES[7]
        # Hatched, for print without color.
        bar = bars.barh(place, error, color=color, hatch="//" if best else None, edgecolor="white", linewidth=0)
        roles = ["as it is" if own else "", "recommended" if best else ""]
        bars.bar_label(bar, [" · ".join(filter(None, [f"{error:.4g}", memory, *roles]))], padding=4, fontsize=8)
    bars.set_yticks(range(len(marks)), [name for name, *_ in marks])
    bars.invert_yaxis()
    bars.set(xlim=(0, max(error for _, error, *_ in marks) * 1.45), xlabel="error of the model's noise, in clip norms")
    bars.grid(visible=False)
    bars.set_title("next to each bar: error, and memory of the noise", **_SUBTITLE)
    rounds, epsilons = zip(*spent, strict=True)
    # Between two points epsilon is at most that of the later one.
    curve.step(rounds, epsilons, where="pre", marker="o", **look(0))
    labelled(curve, "epsilon so far")
    curve.set(xlim=(0, rounds[-1] * 1.02), ylim=(0, max(epsilons) * 1.08))
    return png(figure, f"{title}: its alternatives at the same privacy")


@styled()
def draw_operation_times(
    title: str, subtitle: str, sizes: Sequence[int], panels: Mapping[tuple[str, str], Mapping[str, Array]]
) -> bytes:
    """A PNG of one panel for each row and column, with one curve for each implementation, on a logarithmic axis of time."""
    rows, columns = (list(dict.fromkeys(name[axis] for name in panels)) for axis in (0, 1))
    figure = canvas(11, 9)
    grid = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey=True)
    for (row, column), curves in panels.items():
        axes = grid[rows.index(row)][columns.index(column)]
        axes.set_yscale("log")
        for number, (name, seconds) in enumerate(curves.items()):
            axes.plot(sizes, 1e3 * seconds, label=name, marker=MARKERS[number % len(MARKERS)], **look(number))
        _plain(axes.yaxis)
        axes.set_title(f"{row}, {column}", loc="left", fontsize=10)
    figure.supxlabel(f"bits of the operand\n{subtitle}", fontsize=9)
    figure.supylabel("milliseconds", fontsize=9)
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper right", ncols=len(names))
    return png(figure, title)
