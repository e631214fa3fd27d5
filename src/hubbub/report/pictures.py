"""Pictures of commands as PNG files: errors of strategies, matrices, Gaussian calibrations, alternatives, times of operations.

Letters: A workload, C strategy, N noising matrix with N·C = I, B = A·N decoder.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from hubbub._util.checks import Array
from hubbub.mechanism.strategies import Strategy
from hubbub.mechanism.utility import noising_matrix
from hubbub.report.drawing import QUIET, canvas, name_ends, png

if TYPE_CHECKING:
    from hubbub.factorization.optimized import Optimized

__all__ = [
    "Alternative",
    "Calibrated",
    "draw_alternatives",
    "draw_calibrations",
    "draw_errors",
    "draw_matrices",
    "draw_operation_times",
    "largest_by_block",
    "signed_image",
    "smoothed",
]

# Okabe and Ito's colours, which people with any colour vision can distinguish, without their yellow, which print loses. Curves
# with similar colours differ in line style, for print in black and white; no two of the first 21 have the same looks.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
_STYLES: tuple[Any, ...] = ("-", (0, (6, 1.5)), (0, (2, 1)))
_SUBTITLE: dict[str, Any] = {"loc": "left", "fontsize": 10, "color": QUIET}
# The errors of a tree jump from round to round. A curve that goes up and down by more than this many times its range is drawn
# faintly, and its mean over a window of this part of the rounds in its stead.
_JUMPS, _WINDOW = 6.0, 1 / 16
# The first rounds of a strategy that starts without noise of the past would take half of a logarithmic axis.
_FIRST = 0.02
# As many entries a side as a panel of the picture has dots.
_MOST_DOTS = 1000
# How far below the largest entry the colours continue by factors of ten; nearer to 0 they fade to white.
_DECADES = 3
# Ratios beyond are of no use to anyone, and would flatten the rest.
_LOWEST, _HIGHEST = 0.25, 5.0


def _looks(number: int) -> tuple[str, Any]:
    return _COLORS[number % len(_COLORS)], _STYLES[number % len(_STYLES)]


def _plain(axis: Any, subs: Sequence[float] | None = None) -> None:
    """Marks of a logarithmic axis as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if subs is not None:
        axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def draw_errors(title: str, subtitle: str, curves: Mapping[str, Array]) -> bytes:
    """A PNG of the root squared error over rounds of each strategy, all at sensitivity 1, each named at its end with its RMSE.

    Errors that jump from round to round, as those of trees, are drawn faintly behind their running mean.

    Args:
        title: Its first line.
        subtitle: Its second, such as the setting.
        curves: ``(rounds,)`` each, by name.
    """
    from matplotlib.ticker import MaxNLocator

    figure = canvas(9, 6)
    axes = figure.subplots()
    ordered = sorted(curves, key=lambda name: float(np.square(curves[name]).mean()))
    rounds = np.arange(1, len(curves[ordered[0]]) + 1)
    lines = [smoothed(curves[name]) for name in ordered]
    lowest = min(float(np.quantile(line, _FIRST)) for line in lines) / 1.1
    highest = max(float(curve.max()) for curve in curves.values()) * 1.08
    axes.set_yscale("log")
    axes.set_ylim(lowest, highest)
    axes.set_xlim(1, max(2, len(rounds)))
    looks = [_looks(number) for number in range(len(ordered))]
    for name, line, (color, style) in zip(ordered, lines, looks, strict=True):
        axes.plot(rounds, line, color=color, linestyle=style, linewidth=1.8, zorder=3)
        if line is not curves[name]:
            axes.plot(rounds, curves[name], color=color, linewidth=0.5, alpha=0.3, zorder=1)
    labels = [f"{name}  {float(np.sqrt(np.square(curves[name]).mean())):.4g}" for name in ordered]
    name_ends(axes, labels, [float(line[-1]) for line in lines], looks)
    # More marks where the errors span less than a factor of ten.
    _plain(axes.yaxis, (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0) if highest < 30 * lowest else (1.0, 2.0, 5.0))
    axes.set_xlabel("round")
    axes.set_ylabel("root squared error at sensitivity 1")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    jumps = any(line is not curves[name] for name, line in zip(ordered, lines, strict=True))
    key = "next to each name: its RMSE" + ("; faint: single rounds, behind their running mean" if jumps else "")
    axes.set_title(f"{subtitle}\n{key}", **_SUBTITLE)
    axes.grid(visible=True, color="#e5e5e5")
    return png(figure, title)


def smoothed(curve: Array) -> Array:
    """The curve itself, or its root mean square over a window of rounds where it jumps, ``(rounds,)``."""
    if float(np.abs(np.diff(curve)).sum()) <= _JUMPS * float(np.ptp(curve)):
        return curve
    half = max(1, round(len(curve) * _WINDOW / 2))
    total = np.concatenate([[0.0], np.cumsum(np.square(curve))])
    first = np.maximum(np.arange(len(curve)) - half, 0)
    last = np.minimum(np.arange(len(curve)) + half + 1, len(curve))
    means: Array = np.sqrt((total[last] - total[first]) / (last - first))
    return means


def draw_matrices(title: str, answer: "Optimized[Strategy]", roots: Array) -> bytes:
    """A PNG of A, B, C and C⁻¹, as the published notebook shows them, above the error over rounds.

    Entries of either sign have a colour each, by the logarithm of their size, so that structure is seen at every scale. A large
    matrix is shown by the entry of largest size in each block: a single diagonal does not get lost. Where C is not square, the
    noising matrix N stands for C⁻¹.

    Args:
        title: In its first line.
        answer: The strategy, with its error and the bound below it.
        roots: ``(rounds,)``, the root squared error of each round at sensitivity 1.

    Source: for the four panels, the notebook published with Choquette-Choo et al. 2023, https://arxiv.org/abs/2306.08153.
    """
    A, C = answer.workload.matrix(), np.asarray(answer.strategy.matrix(), dtype=np.float64)
    square = C.shape[0] == C.shape[1] and not np.triu(C, 1).any()
    N = solve_triangular(C, np.eye(len(C)), lower=True) if square else noising_matrix(answer.strategy)
    inverse = "C⁻¹" if square else "N"
    figure = canvas(9, 11.5)
    grid = figure.add_gridspec(3, 2, height_ratios=(4, 4, 3))
    panels = (("A, the workload", A), (f"B = A·{inverse}", A @ N), ("C, the strategy", C), (f"{inverse}, the noise", N))
    for place, (name, matrix) in enumerate(panels):
        axes = figure.add_subplot(grid[place // 2, place % 2])
        signed_image(figure, axes, matrix)
        axes.set_title(f"{name}   {matrix.shape[0]:,} × {matrix.shape[1]:,}", loc="left", fontsize=10)
    _draw_errors_below(figure.add_subplot(grid[2, :]), answer, roots)
    return png(figure, title)


def _draw_errors_below(axes: Any, answer: "Optimized[Strategy]", roots: Array) -> None:
    from matplotlib.ticker import MaxNLocator

    rounds, root = np.arange(1, len(roots) + 1), answer.root_squared_error
    axes.plot(rounds, roots, color=_COLORS[0], linewidth=1.5, marker="o" if len(rounds) < 50 else "", markersize=3)
    words = "root mean squared error" if answer.objective == "mean" else "largest root squared error"
    axes.axhline(root, color=_COLORS[0], linestyle="--", linewidth=1, label=f"{words}: {root:.6g}")
    bound = math.sqrt(answer.lower_bound)
    label = f"lower bound: {bound:.6g}, for {answer.bound_family}"
    axes.axhline(bound, color=_COLORS[1], linestyle=":", linewidth=1.5, label=label)
    axes.set_xlim(1, max(2, len(rounds)))
    axes.set_ylim(0, max(float(roots.max()), root) * 1.25)
    axes.set_xlabel("round")
    axes.set_ylabel("root squared error\nat sensitivity 1")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    axes.grid(visible=True, color="#e5e5e5")
    axes.tick_params(labelsize=8, colors=QUIET)


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
    extent = (0, matrix.shape[1], matrix.shape[0], 0)
    image = axes.imshow(shown, cmap="RdBu_r", norm=norm, interpolation="nearest", extent=extent, aspect="auto")
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


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The noise of a calibration of the Gaussian mechanism, over the least noise.

    Args:
        name: Of the calibration.
        epsilons: ``(points,)``, rising.
        ratios: ``(points,)``; below 1 the claim is false; NaN where it makes none.
        proved: ``(points,)``, whether the theorem covers that epsilon.
    """

    name: str
    epsilons: Array
    ratios: Array
    proved: npt.NDArray[np.bool_]


def draw_calibrations(epsilon: float, delta: float, curves: Sequence[Calibrated]) -> bytes:
    """A PNG of the noise of each calibration over the exact one, over epsilon; thin where its theorem does not reach.

    Args:
        epsilon: Marked.
        delta: Of all.
        curves: On the same epsilons.
    """
    figure = canvas(9, 6)
    axes = figure.subplots()
    low = max(_LOWEST, min([0.95, *(float(curve.ratios.min()) for curve in curves)]) / 1.03)
    high = min(_HIGHEST, max([1.2, *(float(curve.ratios.max()) for curve in curves)]) * 1.03)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    if curves:
        axes.set_xlim(float(curves[0].epsilons[0]), float(curves[0].epsilons[-1]))
    axes.axhspan(low, 1, color="#f1e3dc", zorder=0)
    axes.axhline(1, color="#000000", linewidth=1.2, zorder=2)
    note: dict[str, Any] = {"textcoords": "offset points", "va": "top", "fontsize": 9}
    floor = "analytic, the least noise; below it the claim is false"
    axes.annotate(floor, (0, 1), xycoords=axes.get_yaxis_transform(), xytext=(6, -4), **note)
    axes.axvline(epsilon, color=QUIET, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    axes.annotate(f"epsilon = {epsilon:g}", (epsilon, high), xytext=(4, -2), color=QUIET, **note)
    looks = [_looks(number) for number in range(len(curves))]
    for curve, (color, style) in zip(curves, looks, strict=True):
        beyond = ~curve.proved
        # The last proved point too, so that the line has no gap.
        beyond[:-1] |= beyond[1:]
        for part, width in ((curve.proved, 2.0), (beyond, 0.9)):
            ratios = np.where(part, curve.ratios, np.nan)
            axes.plot(curve.epsilons, ratios, color=color, linestyle=style, linewidth=width, zorder=3)
    ends = [min(high, max(low, float(curve.ratios[-1]))) for curve in curves]
    name_ends(axes, [curve.name for curve in curves], ends, looks)
    axes.set_xlabel("epsilon")
    axes.set_ylabel("noise over that of the analytic calibration")
    marks = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 5.0)
    axes.set_yticks([mark for mark in marks if low <= mark <= high])
    for axis in (axes.xaxis, axes.yaxis):
        _plain(axis)
    notes = [f"delta = {delta:g}"]
    if not all(curve.proved.all() for curve in curves):
        notes.append("thin: beyond its theorem")
    if any(curve.ratios.max() > high for curve in curves):
        notes.append(f"above {high:g} not drawn")
    axes.set_title("; ".join(notes), **_SUBTITLE)
    axes.grid(visible=True, color="#e5e5e5", zorder=0)
    return png(figure, "How much more noise than needed each calibration adds")


@dataclass(frozen=True)
class Alternative:
    """One bar: its name, its error, what it remembers in words, whether it is the run itself, and the recommended one."""

    name: str
    error: float
    memory: str
    own: bool
    best: bool


def draw_alternatives(title: str, marks: Sequence[Alternative], spent: Sequence[tuple[int, float]]) -> bytes:
    """A PNG: above the errors as bars from zero, the least on top; below epsilon after some of the rounds.

    Args:
        title: Of the run.
        marks: In the order of their errors.
        spent: Rounds, and epsilon after that many.
    """
    from matplotlib.ticker import MaxNLocator

    height = 0.32 * len(marks)
    figure = canvas(9, 3.6 + height)
    bars, curve = figure.subplots(2, 1, height_ratios=[max(1.2, height), 2.2])
    largest = max(mark.error for mark in marks)
    for place, mark in enumerate(marks):
        color = _COLORS[1] if mark.best else _COLORS[0] if mark.own else "#9a9a9a"
        # Not by colour alone: print is grey.
        bars.barh(place, mark.error, color=color, hatch="//" if mark.best else None, edgecolor="white", linewidth=0)
        roles = [word for word, given in (("as it is", mark.own), ("recommended", mark.best)) if given]
        said = " · ".join(filter(None, [f"{mark.error:.4g}", mark.memory, *roles]))
        bars.text(mark.error + largest * 0.01, place, said, va="center", fontsize=8)
    bars.set_yticks(range(len(marks)), [mark.name for mark in marks], fontsize=9)
    bars.invert_yaxis()
    bars.set_xlim(0, largest * 1.45)
    bars.set_xlabel("error of the model's noise, in clip norms")
    bars.set_title("next to each bar: error, and memory of the noise", **_SUBTITLE)
    rounds, epsilons = zip(*spent, strict=True)
    # Between two of them it is at most what it is after the later one.
    curve.step(rounds, epsilons, where="pre", color=_COLORS[0], marker="o", markersize=4, linewidth=1.8)
    curve.set_xlabel("round")
    curve.set_ylabel("epsilon so far")
    curve.set_ylim(0, max(epsilons) * 1.08)
    curve.set_xlim(0, rounds[-1] * 1.02)
    curve.xaxis.set_major_locator(MaxNLocator(integer=True))
    curve.grid(visible=True, color="#e5e5e5")
    return png(figure, f"{title}: its alternatives at the same privacy")


def draw_operation_times(
    title: str, subtitle: str, sizes: Sequence[int], panels: Mapping[tuple[str, str], Mapping[str, Array]]
) -> bytes:
    """A PNG of one panel for each row and column, each with one curve for each implementation, on logarithmic axes of time.

    Args:
        title: Its first line.
        subtitle: Its second, such as the setting.
        sizes: ``(sizes,)``, bits of the operand, rising.
        panels: Seconds, ``(sizes,)``, by row and column, then by the name of the implementation.
    """
    rows, columns = (list(dict.fromkeys(name[axis] for name in panels)) for axis in (0, 1))
    figure = canvas(11, 9)
    grid = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey=True)
    for (row, column), curves in panels.items():
        axes = grid[rows.index(row)][columns.index(column)]
        axes.set_yscale("log")
        for number, (name, seconds) in enumerate(curves.items()):
            color, style = _looks(number)
            marker = ("o", "s", "^")[number % 3]
            axes.plot(sizes, 1e3 * seconds, label=name, color=color, linestyle=style, marker=marker, markersize=3, zorder=3)
        _plain(axes.yaxis, (1.0, 2.0, 5.0))
        axes.grid(visible=True, color="#e5e5e5", zorder=0)
    for axes, row in zip(grid[:, 0], rows, strict=True):
        axes.set_ylabel(f"{row}: milliseconds")
    for axes, column in zip(grid[0], columns, strict=True):
        axes.set_title(column, loc="left", fontweight="bold", fontsize=11)
    for axes in grid[-1]:
        axes.set_xlabel("bits of the operand")
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="upper right", ncols=len(names), frameon=False)
    figure.text(0.01, 0.965, subtitle, ha="left", va="top", fontsize=9, color=QUIET)
    return png(figure, f"{title}\n")
